//! `length`: BLEU against length with attention and without, on sequences to be reversed. Without attention the whole source has to go
//! through one vector (Bahdanau 2014, figure 2); both models are trained on the same sequences, equally often.

use regard_evaluate::{Bleu, Tokenizer};

use super::{
    Curves, Estimate, ExperimentError, Findings, Setting, Table,
    trained::{self, Judged, translate},
};

/// The lengths of a group, both ends included.
const GROUPS: [(usize, usize); 4] = [(4, 8), (9, 12), (13, 16), (17, 20)];

const MODELS: [(&str, &str); 2] = [
    (
        "with attention",
        "kind = \"rnnsearch\"\nembedding = 32\nhidden = 48\nattention_dimension = 48\nmaxout = 48\n\
         dropout = { embedding = 0.0, annotation = 0.0, output = 0.0 }",
    ),
    (
        "without",
        "kind = \"seq2seq\"\nembedding = 32\nhidden = 96\nlayers = 1\ndropout = { embedding = 0.0, layers = 0.0, output = 0.0 }",
    ),
];

/// Names and recipes.
pub(super) fn recipes() -> Vec<(String, String)> {
    let task = trained::sequences("reverse", [4, 20], [12000, 800]);
    let recipe = |model: &str| trained::recipe(&format!("{model}\n{task}"), 50, 900);
    MODELS
        .map(|(name, model)| (name.to_owned(), recipe(model)))
        .to_vec()
}

pub(super) fn run(setting: &Setting<'_>) -> Result<Findings, ExperimentError> {
    let mut found = vec![];
    for (name, recipe) in recipes() {
        found.push(setting.repeat(|seed| by_group(&translate(setting, &name, &recipe, seed)?))?);
    }
    let names = GROUPS.map(|(from, to)| format!("{from} to {to}"));
    let rows = names.iter().enumerate().map(|(group, name)| {
        let cells = found.iter().map(|of: &[Estimate; 4]| Some(of[group]));
        (name.clone(), cells.collect())
    });
    let middle = |group: usize| (GROUPS[group].0 + GROUPS[group].1) as f64 / 2.0;
    let lines = MODELS.iter().zip(&found).map(|((name, _), of)| {
        let points = of
            .iter()
            .enumerate()
            .map(|(group, bleu)| (middle(group), *bleu));
        ((*name).to_owned(), points.collect())
    });
    let last = GROUPS.len() - 1;
    let [with, without] = [&found[0], &found[1]];
    let mut words: Vec<String> = MODELS
        .iter()
        .zip(&found)
        .map(|((name, _), of)| {
            format!(
                "{name}: BLEU {} on {} symbols, {} on {}.",
                of[0], names[0], of[last], names[last]
            )
        })
        .collect();
    words.push(match with[last].overlaps(&without[last]) {
        true => format!(
            "On the longest sequences the intervals overlap: {} seeds do not tell the two apart.",
            setting.seeds
        ),
        false => format!(
            "On the longest sequences attention is {:.1} BLEU {} beyond the interval.",
            (with[last].mean - without[last].mean).abs(),
            match with[last].mean > without[last].mean {
                true => "ahead,",
                false => "behind,",
            }
        ),
    });
    Ok(Findings {
        table: Table {
            columns: ["symbols", "BLEU with attention", "BLEU without"]
                .map(str::to_owned)
                .to_vec(),
            rows: rows.collect(),
        },
        figure: vec![Curves {
            title: "BLEU by length, sequences to be reversed".to_owned(),
            x: "symbols".to_owned(),
            y: "BLEU".to_owned(),
            x_names: (0..GROUPS.len())
                .map(|group| (middle(group), names[group].clone()))
                .collect(),
            connected: true,
            lines: lines.collect(),
        }],
        words,
    })
}

fn by_group(judged: &[Judged]) -> Result<[f64; GROUPS.len()], ExperimentError> {
    let bleu = Bleu {
        tokenizer: Tokenizer::None,
        ..Bleu::default()
    };
    let mut scores = [0.0; GROUPS.len()];
    for (score, (from, to)) in scores.iter_mut().zip(GROUPS) {
        let group = judged
            .iter()
            .filter(|judged| (from..=to).contains(&judged.length()));
        let (made, wanted): (Vec<&str>, Vec<&str>) = group
            .map(|judged| (judged.made.as_str(), judged.wanted.as_str()))
            .unzip();
        *score = bleu.corpus(&made, &[wanted])?.score;
    }
    Ok(scores)
}
