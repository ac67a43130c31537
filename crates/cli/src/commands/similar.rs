//! `regard similar`.

use std::collections::BTreeMap;

use burn::tensor::Device;
use regard_kernels::stack::Point;
use regard_models::pretrained::{Encoding, InputError, WordStates, cosine, occurrences};
use regard_trace::Trace;
use regard_train::opened::{Opened, TextModel, input_of};
use regard_view::{
    Heatmap,
    chart::{Chart, Point as Place, Series},
    label::{columns, visible},
    svg::{self, SvgOptions},
};
use serde_json::{Value, json};

use super::{
    embed::warn_of_longer,
    pretrained::{self, Encoder, characters, expect_finite, texts},
};
use crate::{
    arguments::Similar,
    failure::Failure,
    output::{self, Output},
    pictures::{Shown, expect_drawable, write_drawing},
};

/// The most texts: each is compared with each.
const MOST_TEXTS: usize = 1000;
/// How many texts are computed together.
const BATCH: usize = 32;

/// Compares texts, or a word in them.
///
/// # Errors
/// A model that cannot be read, a text without the word.
pub fn run(options: &Similar) -> Result<(), Failure> {
    options.compute.run(None, |device| work(options, device))
}

fn work(options: &Similar, device: &Device) -> Result<(), Failure> {
    let model = output::model_files(&options.model.model);
    expect_drawable(&options.drawing, model.iter().chain(&options.trace))?;
    let texts = texts(&options.texts)?;
    if !(2..=MOST_TEXTS).contains(&texts.len()) {
        let given = output::counted(texts.len(), "texts");
        return Err(Failure::Usage(format!(
            "{given} to compare; expected from 2 to {MOST_TEXTS}"
        )));
    }
    let show = options.show();
    let mut shown = Shown::new(&show, Some(&options.model.model))?;
    match &options.word {
        Some(word) => compare_word(options, &texts, word, &mut shown)?,
        None => compare_texts(options, device, &texts, &mut shown)?,
    }
    shown.write()
}

/// The cosine of each text with each.
fn compare_texts(
    options: &Similar,
    device: &Device,
    texts: &[String],
    shown: &mut Shown<'_>,
) -> Result<(), Failure> {
    let encoder = Encoder::open(
        &options.model.model,
        device,
        options.model.storage(),
        options.quiet,
    )?;
    let pooling = encoder.pooling(options.prompt.as_deref())?;
    let (mut vectors, mut traces) = (vec![], vec![]);
    let whole = encoder.encode_by(&pooling, texts)?;
    let most = pooling.most_tokens(&encoder.model);
    let similarity = pooling.similarity();
    if !options.quiet && similarity != "cosine" {
        output::warn(&format!(
            "the model compares vectors by {similarity} (similarity_fn_name of its config_sentence_transformers.json); these are cosines"
        ));
    }
    if !options.quiet {
        let longer = whole.iter().filter(|text| text.ids.len() > most).count();
        warn_of_longer(longer, texts.len(), most);
    }
    let side = encoder.opened.tokenizer.truncation_side();
    let cut = whole.iter().map(|text| text.truncated(most, side));
    let encoded: Vec<Encoding> = cut.collect();
    for (texts, encoded) in texts.chunks(BATCH).zip(encoded.chunks(BATCH)) {
        let read = encoder.read(texts, encoded, shown.is_wanted())?;
        for ((states, trace), text) in read.into_iter().zip(encoded) {
            let vector = pooling.vector(&encoder.model, &text.ids, &states);
            expect_finite(&options.model.model, vector.iter().copied())?;
            vectors.push(vector);
            traces.extend(trace);
        }
    }
    let cosines: Vec<Vec<f64>> = vectors
        .iter()
        .map(|a| vectors.iter().map(|b| cosine(a, b)).collect())
        .collect();
    let numbers: Vec<String> = (1..=texts.len()).map(|number| number.to_string()).collect();
    let header = std::iter::once(String::new()).chain(numbers.iter().cloned());
    let rows = texts
        .iter()
        .zip(&cosines)
        .zip(&numbers)
        .map(|((text, row), number)| {
            let cells = row.iter().map(|cosine| format!("{cosine:.3}"));
            std::iter::once(format!("{number} {}", short(text)))
                .chain(cells)
                .collect()
        });
    let table = columns(
        &std::iter::once(header.collect())
            .chain(rows)
            .collect::<Vec<_>>(),
    );
    match options.json {
        true => {
            let mut all = json!({"texts": texts, "cosines": cosines});
            add_maps(&mut all, shown, &traces);
            output::print(&format!("{all}\n"))?;
        }
        false => output::print(&table)?,
    }
    show_all(shown, &traces)?;
    if options.drawing.any() {
        let title = "Cosines of texts";
        let names: Vec<String> = texts
            .iter()
            .zip(&numbers)
            .map(|(text, n)| format!("{n} {}", short(text)))
            .collect();
        let values = cosines
            .iter()
            .flatten()
            .map(|&cosine| cosine as f32)
            .collect();
        let heatmap = Heatmap::table(names, numbers, values).titled(title);
        let picture = svg::heatmap(&heatmap, &SvgOptions::default());
        write_drawing(&options.drawing, title, &picture, &table)?;
    }
    Ok(())
}

/// Adds what the model looked at in each text, if JSON is to have it.
fn add_maps(json: &mut Value, shown: &Shown<'_>, traces: &[Trace]) {
    let maps: Option<Vec<Value>> = traces.iter().map(|trace| shown.json(trace)).collect();
    if let Some(maps) = maps.filter(|maps| !maps.is_empty()) {
        json["maps"] = maps.into();
    }
}

/// Prints what the model looked at in each text, and keeps it for a file.
fn show_all(shown: &mut Shown<'_>, traces: &[Trace]) -> Result<(), Failure> {
    let mut out = Output::standard();
    for (line, trace) in (1..).zip(traces) {
        shown.push(&mut out, line, trace)?;
    }
    out.flush()
}

/// The beginning of a text, on one line.
fn short(text: &str) -> String {
    const MOST: usize = 40;
    let text = visible(text);
    match text.char_indices().nth(MOST) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}

/// A word in a text, and its vector at each point of the stack.
struct Occurrence {
    /// Its characters.
    place: [usize; 2],
    tokens: Vec<String>,
    vectors: BTreeMap<(usize, Point), Vec<f32>>,
}

fn compare_word(
    options: &Similar,
    texts: &[String],
    word: &str,
    shown: &mut Shown<'_>,
) -> Result<(), Failure> {
    let opened = pretrained::find(&options.model.model, options.quiet)?;
    let model = pretrained::model(&opened, options.model.storage(), options.quiet)?;
    let found = (1..)
        .zip(texts)
        .map(|(number, text)| find(options, &opened, &model, number, text, word));
    let found: Vec<Occurrence> = found.collect::<Result<_, Failure>>()?;
    let mut traces = vec![];
    if shown.is_wanted() {
        for text in texts {
            let encoded = opened.tokenizer.encode(text, true)?;
            traces.push(opened.look(&model, text, &encoded)?);
        }
    }
    let pairs: Vec<(usize, usize)> = (0..texts.len())
        .flat_map(|first| (first + 1..texts.len()).map(move |second| (first, second)))
        .collect();
    let mut chart = Chart::new(
        format!("cosine of {word:?} in two texts"),
        "layer (0: embedding, halves: after attention)",
        "cosine",
    );
    let (mut tables, mut lines) = (String::new(), vec![]);
    for &(first, second) in &pairs {
        let cosines = cosines(&found[first], &found[second]);
        let place = |&(layer, point): &(usize, Point)| match point {
            Point::Input => layer as f64,
            Point::FeedForward => layer as f64 + 1.0,
            _ => layer as f64 + 0.5,
        };
        // What leaves a layer enters the next one, at the same place.
        let drawn = cosines
            .iter()
            .filter(|((layer, point), _)| *point != Point::Input || *layer == 0);
        let points = drawn
            .map(|(point, &cosine)| Place::new(place(point), cosine))
            .collect();
        chart = chart.with(Series::new(
            format!("{} and {}", first + 1, second + 1),
            points,
        ));
        tables.push_str(&table(word, texts, (first, second), &cosines));
        lines.push(pair_json((first, second), &cosines));
    }
    match options.json {
        true => {
            let texts = texts.iter().zip(&found).map(|(text, found)| {
                json!({"text": text, "start": found.place[0], "end": found.place[1], "tokens": found.tokens})
            });
            let mut all = json!({"word": word, "texts": texts.collect::<Vec<_>>(), "pairs": lines});
            add_maps(&mut all, shown, &traces);
            output::print(&format!("{all}\n"))?;
        }
        false => {
            let mut out = Output::standard();
            out.text(&tables)?;
            out.flush()?;
        }
    }
    show_all(shown, &traces)?;
    let title = format!("{word:?} in context");
    match options.drawing.any() {
        true => write_drawing(&options.drawing, &title, &chart.svg(), &tables),
        false => Ok(()),
    }
}

/// Reads a text, and follows the word through the stack.
fn find(
    options: &Similar,
    opened: &Opened,
    model: &TextModel,
    number: usize,
    text: &str,
    word: &str,
) -> Result<Occurrence, Failure> {
    let places = occurrences(text, word);
    let Some(place) = places.first() else {
        return Err(Failure::Usage(format!(
            "text {number} has no word {word:?}: {text:?}"
        )));
    };
    if places.len() > 1 && !options.quiet {
        output::warn(&format!(
            "text {number} has {word:?} {} times; the first one is compared",
            places.len()
        ));
    }
    let encoded = opened.tokenizer.encode(text, true)?;
    let tokens = encoded.tokens_of(place);
    if tokens.is_empty() {
        let expected = format!("a tokenizer that has tokens for {word:?}");
        return Err(opened.other(&expected).into());
    }
    let context = match model {
        TextModel::Writes(model) => model.context(),
        TextModel::Reads(model) => model.context(),
        TextModel::Plain(_) => usize::MAX,
    };
    InputError::expect_room(number, text, encoded.ids.len(), context, 0)?;
    let ids: Vec<u32> = tokens.iter().map(|&at| encoded.ids[at]).collect();
    let names = ids
        .iter()
        .map(|&id| opened.tokenizer.token(id).unwrap_or_default());
    let mut states = WordStates::new(tokens);
    match model {
        TextModel::Writes(model) => model
            .begin(1, Default::default())
            .read(&[&encoded.ids], Some(&mut states))?,
        TextModel::Reads(model) => {
            model.states(&[input_of(&encoded)], Some(&mut states))?;
        }
        TextModel::Plain(_) => {
            return Err(opened
                .other("a Transformer whose attention has a kernel")
                .into());
        }
    }
    let vectors = states
        .points()
        .map(|(layer, point, vector)| ((layer, point), vector.to_vec()));
    let vectors: BTreeMap<_, _> = vectors.collect();
    let numbers = vectors.values().flatten().copied();
    expect_finite(&options.model.model, numbers)?;
    Ok(Occurrence {
        place: [place.start, place.end].map(|byte| characters(text, byte)),
        tokens: names.collect(),
        vectors,
    })
}

fn cosines(a: &Occurrence, b: &Occurrence) -> BTreeMap<(usize, Point), f64> {
    let both = a.vectors.iter().zip(&b.vectors);
    both.map(|((&point, a), (_, b))| (point, cosine(a, b)))
        .collect()
}

/// The points of a layer, and what they are called.
const POINTS: [(Point, &str); 3] = [
    (Point::Input, "before attention"),
    (Point::Attention, "after attention"),
    (Point::FeedForward, "after feed-forward"),
];

fn table(
    word: &str,
    texts: &[String],
    (first, second): (usize, usize),
    cosines: &BTreeMap<(usize, Point), f64>,
) -> String {
    let titles = POINTS.map(|(_, title)| title.to_owned());
    let header = std::iter::once("layer".to_owned()).chain(titles).collect();
    let layers = cosines
        .keys()
        .map(|(layer, _)| layer + 1)
        .max()
        .unwrap_or(0);
    let rows = (0..layers).map(|layer| {
        let cells = POINTS.map(|(point, _)| {
            let cosine = cosines.get(&(layer, point));
            cosine.map_or_else(String::new, |cosine| format!("{cosine:.3}"))
        });
        std::iter::once((layer + 1).to_string())
            .chain(cells)
            .collect()
    });
    let rows: Vec<Vec<String>> = std::iter::once(header).chain(rows).collect();
    format!(
        "cosine of {} in {} ({}) and {} ({})\n{}",
        visible(&format!("{word:?}")),
        first + 1,
        short(&texts[first]),
        second + 1,
        short(&texts[second]),
        columns(&rows)
    )
}

fn pair_json((first, second): (usize, usize), cosines: &BTreeMap<(usize, Point), f64>) -> Value {
    let layers = cosines
        .keys()
        .map(|(layer, _)| layer + 1)
        .max()
        .unwrap_or(0);
    let layers: Vec<Value> = (0..layers)
        .map(|layer| {
            let at = |point| cosines.get(&(layer, point));
            json!({
                "input": at(Point::Input),
                "attention": at(Point::Attention),
                "feed_forward": at(Point::FeedForward),
            })
        })
        .collect();
    json!({"texts": [first, second], "layers": layers})
}
