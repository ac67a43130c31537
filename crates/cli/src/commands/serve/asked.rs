//! Models as the viewer asks them.

use std::{fmt::Display, ops::ControlFlow};

use burn::tensor::Device;
use regard_images::{Decoding, Image};
use regard_kernels::{
    Kind as Storage, loss,
    stack::{ChangedHead, HeadChange, QueryObserver},
};
use regard_models::{
    generate::{Prompt, Recorder, SampleConfig, SearchTree, sample},
    gradient::{OutputGradients, of_text_model},
    pretrained::{EncoderOutput, Encoding, Heads, TextEncoder},
};
use regard_nn::changed::{Changes, Place, with_changed, with_query};
use regard_serve::{
    Ablation, Alternative, Continuation, Generation, GradientMap, Gradients, Hypothesis, Input,
    InputKind, Model, Proposed, QueryKeys, QueryPlace, Seen,
};
use regard_trace::{Kind, Trace};
use regard_train::{
    DetectedObject, Detector, ImageCaptioner, ImageClassifier, QuestionAnswerer, TextToText,
    Translator,
    opened::{Opened, TextModel, input_of},
    recipe::Translation as Settings,
    translator::Translation,
};

use crate::commands::classify;
use crate::failure::Failure;

/// Alternatives that the page lists.
const LISTED: usize = 8;

/// Proposals of each step that the page lists at least.
const PROPOSED: usize = 5;

/// The least probability of an object that is shown, as `regard detect` has it.
const THRESHOLD: f32 = 0.5;

/// Why there is no answer, for the person at the page.
fn sentence(error: impl Display) -> String {
    error.to_string()
}

/// What went wrong, for the person at the page.
pub fn failed(failure: Failure) -> String {
    match failure {
        Failure::Usage(message) | Failure::Interrupted(message) => message,
        Failure::Error(error) => sentence(error),
        Failure::ClosedPipe => "the output was closed".to_owned(),
    }
}

/// The best of `all`, largest first.
fn best_of(all: impl Iterator<Item = (String, f64)>) -> Vec<Alternative> {
    let mut all: Vec<Alternative> = all
        .map(|(text, probability)| Alternative { text, probability })
        .collect();
    all.sort_by(|a, b| b.probability.total_cmp(&a.probability));
    all.truncate(LISTED);
    all
}

/// An answer of which there are several, the best first.
fn answered(trace: Trace, alternatives: Vec<Alternative>) -> Seen {
    let output = alternatives
        .first()
        .map_or(String::new(), |best| best.text.clone());
    Seen {
        alternatives,
        ..Seen::new(trace, output)
    }
}

fn image(bytes: &[u8], decoding: &Decoding) -> Result<Image, String> {
    Image::decode(bytes, "the image", decoding).map_err(sentence)
}

/// A model that computes by modules: its name, what it takes, and how it answers.
struct Answering<F> {
    name: String,
    input: InputKind,
    /// Whether its heads can be changed.
    changes: bool,
    /// Whether its queries can be shown: its scores are products.
    queries: bool,
    answer: F,
}

/// An answer, and which queries of the model the rows of its maps are; empty if they are all of them.
type Answer = (Seen, Vec<usize>);

impl<F: FnMut(&Input) -> Result<Answer, String> + Send> Answering<F> {
    /// Answers with heads changed. What is done to a query of the model goes by the rows of the maps with no head changed.
    fn answer(&mut self, input: &Input, ablation: &Ablation) -> Result<Answer, String> {
        let rows = match ablation.heads.is_empty() {
            true => vec![],
            false => (self.answer)(input)?.1,
        };
        let mut changes = Changes::default();
        for one in &ablation.heads {
            let Place {
                decoder,
                cross,
                layer,
            } = place(&one.map, one.layer);
            let mut change = HeadChange::from(&one.change);
            match &mut change {
                _ if rows.is_empty() => {}
                HeadChange::Hide { query, .. } => {
                    *query = *rows.get(*query).ok_or_else(no_query)?
                }
                HeadChange::Replace(_) => {
                    return Err("the queries of this model are objects, and those of another image are others: their weights cannot be \
                                taken by position"
                        .to_owned());
                }
                HeadChange::Off | HeadChange::Uniform => {}
            }
            let changed = ChangedHead {
                layer,
                cross,
                head: one.head,
                change,
            };
            match decoder {
                true => changes.decoder.push(changed),
                false => changes.encoder.push(changed),
            }
        }
        let mut answer = None;
        let changed = with_changed(&changes, || answer = Some((self.answer)(input)));
        // What is wrong with the input comes before heads that were not reached because of it.
        let answer = answer.ok_or("the model gave no answer")??;
        changed.map_err(sentence)?;
        Ok(answer)
    }
}

/// The attention of a map.
fn place(map: &str, layer: usize) -> Place {
    Place {
        decoder: [Kind::DecoderSelf, Kind::Cross]
            .iter()
            .any(|kind| kind.name() == map),
        cross: map == Kind::Cross.name(),
        layer,
    }
}

impl<F: FnMut(&Input) -> Result<Answer, String> + Send> Model for Answering<F> {
    fn name(&self) -> &str {
        &self.name
    }

    fn input(&self) -> InputKind {
        self.input
    }

    fn changes_heads(&self) -> bool {
        self.changes
    }

    fn look(&mut self, input: &Input, ablation: &Ablation) -> Result<Seen, String> {
        Ok(self.answer(input, ablation)?.0)
    }

    fn shows_queries(&self) -> bool {
        self.queries
    }

    fn query(
        &mut self,
        input: &Input,
        ablation: &Ablation,
        asked: &QueryPlace,
    ) -> Result<QueryKeys, String> {
        let at = place(&asked.map, asked.layer);
        let mut query = asked.query;
        if at.decoder {
            let (_, rows) = self.answer(input, ablation)?;
            query = *rows.get(query).ok_or_else(no_query)?;
        }
        let answer = || self.answer(input, ablation);
        let (answer, found) = with_query(at, asked.head, query, answer);
        answer?;
        found.ok_or_else(no_query)
    }
}

/// The hypotheses of a search in its order, whose length penalty may prefer a less likely one, with the trace of the best.
fn hypotheses(
    all: impl IntoIterator<Item = (String, f64, Trace)>,
    none: &str,
) -> Result<Seen, String> {
    let mut best = None;
    let mut alternatives = vec![];
    for (text, log_probability, trace) in all {
        best.get_or_insert(trace);
        let probability = log_probability.exp();
        alternatives.push(Alternative { text, probability });
    }
    Ok(answered(best.ok_or(none)?, alternatives))
}

/// What translates: its search, and its heads, which can be changed and observed.
trait Translates: Send {
    fn change(
        &mut self,
        encoder: Vec<ChangedHead>,
        decoder: Vec<ChangedHead>,
    ) -> Result<(), String>;
    fn search(&self, text: &str) -> Result<(Vec<Translation>, SearchTree), String>;
    fn token(&self, id: u32) -> Result<String, String>;
    fn query(
        &self,
        text: &str,
        rank: usize,
        kind: Kind,
        at: [usize; 3],
    ) -> Result<Option<QueryKeys>, String>;
    fn gradients(
        &self,
        text: &str,
        rank: usize,
    ) -> Result<Option<(String, OutputGradients)>, String>;
}

/// All hypotheses of the beam.
fn settings(translator: &Translator) -> Settings {
    Settings {
        n_best: translator.settings().beam,
        ..translator.settings().clone()
    }
}

impl Translates for Translator {
    fn change(
        &mut self,
        encoder: Vec<ChangedHead>,
        decoder: Vec<ChangedHead>,
    ) -> Result<(), String> {
        self.change_heads(encoder, decoder).map_err(sentence)
    }

    fn search(&self, text: &str) -> Result<(Vec<Translation>, SearchTree), String> {
        let settings = settings(self);
        let listed = settings.beam.max(PROPOSED);
        self.search_tree(text, &settings, listed).map_err(sentence)
    }

    fn token(&self, id: u32) -> Result<String, String> {
        self.token(id).map_err(sentence)
    }

    fn query(
        &self,
        text: &str,
        rank: usize,
        kind: Kind,
        at: [usize; 3],
    ) -> Result<Option<QueryKeys>, String> {
        self.query(text, &settings(self), rank, kind, at)
            .map_err(sentence)
    }

    fn gradients(
        &self,
        text: &str,
        rank: usize,
    ) -> Result<Option<(String, OutputGradients)>, String> {
        self.gradients(text, &settings(self), rank)
            .map_err(sentence)
    }
}

impl Translates for TextToText {
    fn change(
        &mut self,
        encoder: Vec<ChangedHead>,
        decoder: Vec<ChangedHead>,
    ) -> Result<(), String> {
        self.change_heads(encoder, decoder).map_err(sentence)
    }

    fn search(&self, text: &str) -> Result<(Vec<Translation>, SearchTree), String> {
        let listed = self.settings().beam.max(PROPOSED);
        self.search_tree(text, listed).map_err(sentence)
    }

    fn token(&self, id: u32) -> Result<String, String> {
        self.token(id).map_err(sentence)
    }

    fn query(
        &self,
        text: &str,
        rank: usize,
        kind: Kind,
        at: [usize; 3],
    ) -> Result<Option<QueryKeys>, String> {
        self.query(text, rank, kind, at).map_err(sentence)
    }

    fn gradients(
        &self,
        text: &str,
        rank: usize,
    ) -> Result<Option<(String, OutputGradients)>, String> {
        self.gradients(text, rank).map_err(sentence)
    }
}

/// Translates a text, or rewrites it.
pub struct Translations {
    name: String,
    translator: Box<dyn Translates>,
    /// Whether its heads can be changed and its queries shown.
    opened: bool,
}

impl Translations {
    /// A translator that was trained here.
    pub fn new(name: &str, mut translator: Translator) -> Self {
        Self {
            name: name.to_owned(),
            opened: translator.open_heads(),
            translator: Box::new(translator),
        }
    }

    /// An encoder-decoder that others have trained.
    pub fn pretrained(name: &str, model: TextToText) -> Self {
        Self {
            name: name.to_owned(),
            opened: true,
            translator: Box::new(model),
        }
    }

    /// Changes these heads, and no others.
    fn change(&mut self, ablation: &Ablation) -> Result<(), String> {
        let (mut encoder, mut decoder) = (vec![], vec![]);
        for one in &ablation.heads {
            let changed = ChangedHead {
                layer: one.layer,
                cross: one.map == Kind::Cross.name(),
                head: one.head,
                change: (&one.change).into(),
            };
            match one.map == Kind::EncoderSelf.name() {
                true => encoder.push(changed),
                false => decoder.push(changed),
            }
        }
        self.translator.change(encoder, decoder)
    }
}

impl Model for Translations {
    fn name(&self) -> &str {
        &self.name
    }

    fn input(&self) -> InputKind {
        InputKind::Text
    }

    fn changes_heads(&self) -> bool {
        self.opened
    }

    fn look(&mut self, input: &Input, ablation: &Ablation) -> Result<Seen, String> {
        self.change(ablation)?;
        let (found, tree) = self.translator.search(&input.text)?;
        let text = |id| self.translator.token(id);
        let traces = found.iter().map(|one| one.trace.clone()).collect();
        let generation = generation(tree, traces, text)?;
        let all = found.into_iter();
        let all = all.map(|one| (one.text, one.log_probability, one.trace));
        let seen = hypotheses(all, "there is no translation; type some words")?;
        Ok(Seen {
            generation: Some(generation),
            ..seen
        })
    }

    fn shows_queries(&self) -> bool {
        self.opened
    }

    fn query(
        &mut self,
        input: &Input,
        ablation: &Ablation,
        place: &QueryPlace,
    ) -> Result<QueryKeys, String> {
        self.change(ablation)?;
        let kinds = [Kind::EncoderSelf, Kind::DecoderSelf, Kind::Cross];
        let kind = kinds.into_iter().find(|kind| kind.name() == place.map);
        let kind = kind.ok_or_else(|| format!("there is no attention {:?}", place.map))?;
        let at = [place.layer, place.head, place.query];
        let found = (self.translator).query(&input.text, place.rank, kind, at);
        found?.ok_or_else(no_query)
    }

    fn gradients(&mut self, input: &Input, rank: usize) -> Result<Gradients, String> {
        self.change(&Ablation::default())?;
        let found = self.translator.gradients(&input.text, rank)?;
        let (output, found) = found.ok_or("there is no such translation")?;
        Ok(products(output, found, Kind::DecoderSelf))
    }
}

/// Gradient times attention, whose maps of a text to itself are of kind `own`.
fn products(output: String, found: OutputGradients, own: Kind) -> Gradients {
    let kinds = [
        (Kind::EncoderSelf, found.source),
        (own, found.own),
        (Kind::Cross, found.cross),
    ];
    let maps = kinds.into_iter().flat_map(|(kind, layers)| {
        let layers = layers.into_iter().enumerate();
        layers.map(move |(layer, weights)| GradientMap {
            map: kind.name().to_owned(),
            layer,
            shape: weights.shape,
            products: weights.products(),
        })
    });
    Gradients {
        output,
        log_probability: found.log_probability,
        maps: maps.collect(),
    }
}

fn no_query() -> String {
    "the model has no such query".to_owned()
}

/// The tree of a search with the texts of its tokens, and what was looked at for each of its texts.
fn generation(
    tree: SearchTree,
    traces: Vec<Trace>,
    text: impl Fn(u32) -> Result<String, String>,
) -> Result<Generation, String> {
    let proposals = tree.proposals.into_iter().map(|one| {
        Ok(Proposed {
            parent: one.parent,
            text: text(one.token)?,
            probability: one.log_probability.exp(),
            taken: one.taken,
        })
    });
    let hypotheses = tree.leaves.into_iter().zip(traces);
    Ok(Generation {
        proposals: proposals.collect::<Result<_, String>>()?,
        hypotheses: hypotheses
            .map(|(leaf, trace)| Hypothesis { leaf, trace })
            .collect(),
    })
}

/// Answers a question about an image.
pub fn questions(name: &str, model: QuestionAnswerer) -> Box<dyn Model> {
    Box::new(Answering {
        name: name.to_owned(),
        input: InputKind::ImageAndQuestion,
        changes: false,
        queries: false,
        answer: move |input: &Input| {
            let description = model.description();
            let image = image(&input.image, &description.preparation.decoding())?;
            let found = model.ask(&[image], &[(0, &input.text)]).map_err(sentence)?;
            let (found, trace) = found.into_iter().next().ok_or("ask a question")?;
            let answers = description.answers.iter().cloned();
            let scores = found.scores.iter().map(|&score| f64::from(score));
            Ok((answered(trace, best_of(answers.zip(scores))), vec![]))
        },
    })
}

/// Describes an image.
pub fn captions(name: &str, model: ImageCaptioner) -> Box<dyn Model> {
    Box::new(Answering {
        name: name.to_owned(),
        input: InputKind::Image,
        changes: true,
        queries: false,
        answer: move |input: &Input| {
            let image = image(&input.image, &model.description().preparation.decoding())?;
            let found = model
                .caption(&[image], model.settings())
                .map_err(sentence)?;
            let all = found.into_iter().flatten();
            let all = all.map(|one| (one.text, one.log_probability, one.trace));
            let seen = hypotheses(all, "the model has no caption for this image")?;
            Ok((seen, vec![]))
        },
    })
}

/// Gives an image a class.
pub fn images(name: &str, model: ImageClassifier) -> Box<dyn Model> {
    Box::new(Answering {
        name: name.to_owned(),
        input: InputKind::Image,
        changes: model.model().has_stack(),
        queries: model.model().has_stack(),
        answer: move |input: &Input| Ok((classified(&model, &input.image)?, vec![])),
    })
}

fn classified(model: &ImageClassifier, bytes: &[u8]) -> Result<Seen, String> {
    let description = model.description();
    let image = image(bytes, &description.preparation.decoding())?;
    let found = model.look(&[image]).map_err(sentence)?;
    let (found, trace) = found.into_iter().next().ok_or("choose an image")?;
    let labels = description.labels.iter().cloned();
    let scores = found.probabilities.iter().map(|&p| f64::from(p));
    Ok(answered(trace, best_of(labels.zip(scores))))
}

/// Compares an image with texts; `open` makes the classifier of these labels.
pub fn labelled(
    name: &str,
    open: impl Fn(Vec<String>) -> Result<ImageClassifier, Failure> + Send + 'static,
) -> Box<dyn Model> {
    let mut known: Option<(String, ImageClassifier)> = None;
    Box::new(Answering {
        name: name.to_owned(),
        input: InputKind::ImageAndLabels,
        changes: true,
        queries: true,
        answer: move |input: &Input| {
            let model = match known.take().filter(|(text, _)| *text == input.text) {
                Some((_, model)) => model,
                None => {
                    let labels: Vec<String> = input.text.split(',').map(str::to_owned).collect();
                    let labels = classify::labels(&labels).map_err(failed)?;
                    open(labels).map_err(failed)?
                }
            };
            let (_, model) = known.insert((input.text.clone(), model));
            Ok((classified(model, &input.image)?, vec![]))
        },
    })
}

/// Finds the objects in an image.
pub fn objects(name: &str, model: Detector) -> Box<dyn Model> {
    Box::new(Answering {
        name: name.to_owned(),
        input: InputKind::Image,
        changes: true,
        queries: true,
        answer: move |input: &Input| {
            let description = model.description();
            let image = image(&input.image, &description.preparation.decoding())?;
            let found = model.look(&[image], THRESHOLD, false).map_err(sentence)?;
            let (found, trace) = found.into_iter().next().ok_or("choose an image")?;
            let label = |object: &DetectedObject| description.labels[object.class].as_str();
            let names: Vec<&str> = found.iter().map(label).collect();
            let output = match names.is_empty() {
                true => "no object".to_owned(),
                false => names.join(", "),
            };
            // Objects of one class are told apart by their queries.
            let named = found.iter().map(|object| {
                let name = format!("{} (query {})", label(object), object.query);
                (name, f64::from(object.score))
            });
            let seen = Seen {
                alternatives: best_of(named),
                ..Seen::new(trace, output)
            };
            Ok((seen, found.iter().map(|object| object.query).collect()))
        },
    })
}

/// What a model read, its own continuation included.
struct Reading {
    text: String,
    encoded: Encoding,
    /// How many of its tokens were given, not written.
    given: usize,
    tree: Option<SearchTree>,
    written: String,
}

/// Reads a text, and says what may come next, or stand at its masked word; a causal model writes on if it is asked to.
pub struct Texts {
    name: String,
    opened: Opened,
    model: TextModel,
}

impl Texts {
    pub fn new(name: &str, opened: Opened, model: TextModel) -> Self {
        let name = name.to_owned();
        Self {
            name,
            opened,
            model,
        }
    }

    /// What the model reads: the text with its own token for a masked word, and what it writes on.
    fn read(&self, input: &Input) -> Result<Reading, Failure> {
        let text = &input.text;
        let special = self.opened.tokenizer.special();
        let mask = special.mask.and_then(|id| self.opened.tokenizer.token(id));
        let text = match &mask {
            Some(token) => text.replace("[MASK]", token).replace("<mask>", token),
            None => text.to_owned(),
        };
        let encoded = self.opened.tokenizer.encode(&text, true)?;
        if encoded.ids.is_empty() {
            return Err(Failure::Usage(
                "the text has no tokens; type some words".to_owned(),
            ));
        }
        let mut reading = Reading {
            text,
            given: encoded.ids.len(),
            encoded,
            tree: None,
            written: String::new(),
        };
        if input.continuation.tokens > 0 && self.writes() {
            self.write(&mut reading, &input.continuation)?;
        }
        Ok(reading)
    }

    fn writes(&self) -> bool {
        !matches!(self.model, TextModel::Reads(_))
    }

    /// Writes on, greedily or drawn.
    fn write(&self, reading: &mut Reading, wanted: &Continuation) -> Result<(), Failure> {
        let tokenizer = &self.opened.tokenizer;
        let ids = &mut reading.encoded.ids;
        let stop = tokenizer.special().eos.clone();
        // An encoder's tokenizer ends a text; here it goes on.
        if ids.len() > 1 && ids.last().is_some_and(|id| stop.contains(id)) {
            ids.pop();
        }
        reading.given = ids.len();
        let model = self.opened.causal(&self.model)?;
        let config = SampleConfig {
            temperature: wanted.temperature,
            seed: wanted.seed,
            limit: wanted.tokens.min(model.context().saturating_sub(ids.len())),
            stop,
            ..SampleConfig::default()
        };
        let stepper = model.read(&[&ids[..ids.len() - 1]], Storage::F32)?;
        let mut recorder = Recorder::new(stepper);
        let prompt = Prompt {
            tokens: ids.clone(),
            stream: 0,
        };
        let each = |_, _| ControlFlow::Continue(());
        let found = sample(&mut recorder, &[prompt], &config, each)?;
        for one in found {
            reading.tree = Some(recorder.tree(0, &[one.with_end()], LISTED));
            reading.written = tokenizer.decode(&one.tokens, true)?;
            ids.extend(one.tokens);
        }
        Ok(())
    }

    /// Changes these heads, and no others.
    fn change(&mut self, ablation: &Ablation) -> Result<(), String> {
        let changed = ablation.heads.iter().map(|one| ChangedHead {
            layer: one.layer,
            cross: false,
            head: one.head,
            change: (&one.change).into(),
        });
        let changed: Vec<ChangedHead> = changed.collect();
        match self.model.stack_mut() {
            Some(stack) => stack.change_heads(changed).map_err(sentence),
            None => Ok(()),
        }
    }

    /// What the model looks at, and what it says.
    fn seen(&self, input: &Input) -> Result<Seen, Failure> {
        let Reading {
            text,
            encoded,
            tree,
            written,
            ..
        } = self.read(input)?;
        let mut trace = self.opened.look(&self.model, &text, &encoded)?;
        if let Some(tree) = tree {
            trace.target.clone_from(&written);
            let text = |id| (self.opened.tokenizer.decode(&[id], false)).map_err(sentence);
            let generation = generation(tree, vec![trace.clone()], text).map_err(Failure::Usage)?;
            let first = generation.proposals.iter();
            let first = first.filter(|one| one.parent.is_none());
            let next = first.map(|one| (one.text.clone(), one.probability));
            return Ok(Seen {
                alternatives: best_of(next),
                generation: Some(generation),
                ..Seen::new(trace, written)
            });
        }
        if let TextModel::Reads(model) = &self.model
            && let Some(Heads::Classes(labels)) = model.purpose()
        {
            let scores = classes(model, &encoded)?.into_iter().map(f64::from);
            return Ok(answered(trace, best_of(labels.iter().cloned().zip(scores))));
        }
        let likely = match &self.model {
            TextModel::Reads(model) => match self.masked(&encoded) {
                Some(place) => filled(model, &encoded, place)?,
                None => vec![],
            },
            _ => self.next(&encoded.ids)?,
        };
        let words = likely.into_iter().map(|(id, probability)| {
            let word = self.opened.tokenizer.decode(&[id], false)?;
            Ok((word, probability))
        });
        let words: Vec<(String, f64)> = words.collect::<Result<_, Failure>>()?;
        Ok(answered(trace, best_of(words.into_iter())))
    }

    /// The likeliest tokens after `ids`.
    fn next(&self, ids: &[u32]) -> Result<Vec<(u32, f64)>, Failure> {
        let mut likely = vec![];
        let model = self.opened.causal(&self.model)?;
        model.predict(ids, ids.len() - 1, &mut |_, logits| {
            likely = probabilities(logits);
        })?;
        Ok(likely)
    }

    /// The place of the first mask.
    fn masked(&self, encoded: &Encoding) -> Option<usize> {
        let mask = self.opened.tokenizer.special().mask?;
        encoded.ids.iter().position(|&token| token == mask)
    }

    /// The gradients of the next token, of what was written, of the word for the mask or of the class.
    fn gradients_of(&self, input: &Input) -> Result<(String, OutputGradients), Failure> {
        let Reading {
            encoded,
            given,
            written,
            ..
        } = self.read(input)?;
        let (ids, device) = (&encoded.ids, Device::flex());
        let none = || {
            let message = "this text has no output whose probability could be followed: write [MASK] in the place of a word, or ask a model \
                           that writes or that gives a class";
            Failure::Usage(message.to_owned())
        };
        let TextModel::Reads(model) = &self.model else {
            let mut wanted: Vec<(usize, u32)> =
                (given..ids.len()).map(|at| (at - 1, ids[at])).collect();
            let mut output = written;
            if wanted.is_empty() {
                let next = self.next(ids)?.first().ok_or_else(none)?.0;
                wanted.push((ids.len() - 1, next));
                output = self.opened.tokenizer.decode(&[next], false)?;
            }
            let found = match &self.model {
                TextModel::Writes(model) => model.gradients(ids, &wanted, &device)?,
                TextModel::Plain(model) => of_text_model(model.model(), ids, &wanted, &device)?,
                TextModel::Reads(_) => return Err(none()),
            };
            return Ok((output, found));
        };
        let (output, chosen) = match (model.purpose(), self.masked(&encoded)) {
            (Some(Heads::Classes(labels)), _) => {
                let scores = classes(model, &encoded)?;
                let all = scores.iter().zip(labels).enumerate();
                let best = all.max_by(|(_, (a, _)), (_, (b, _))| a.total_cmp(b));
                let (class, (_, label)) = best.ok_or_else(none)?;
                (label.clone(), EncoderOutput::Class(class))
            }
            (_, Some(place)) => {
                let likely = filled(model, &encoded, place)?;
                let token = likely.first().ok_or_else(none)?.0;
                let word = self.opened.tokenizer.decode(&[token], false)?;
                (word, EncoderOutput::Token { place, token })
            }
            _ => return Err(none()),
        };
        Ok((
            output,
            model.gradients(input_of(&encoded), chosen, &device)?,
        ))
    }
}

/// The scores of the classes of a text.
fn classes(model: &TextEncoder, encoded: &Encoding) -> Result<Vec<f32>, Failure> {
    let states = model.states(&[input_of(encoded)], None)?;
    Ok(model.classes(&states[0]).unwrap_or_default())
}

/// The likeliest tokens in the place of a masked one; none from a model that fills no masks.
fn filled(
    model: &TextEncoder,
    encoded: &Encoding,
    place: usize,
) -> Result<Vec<(u32, f64)>, Failure> {
    let states = model.states(&[input_of(encoded)], None)?;
    let size = model.size();
    let likely = model.likeliest(&states[0][place * size..][..size], LISTED);
    Ok(likely.unwrap_or_default())
}

/// The likeliest tokens with their probabilities, from `logits [vocabulary]`.
fn probabilities(logits: &mut [f32]) -> Vec<(u32, f64)> {
    let classes = logits.len();
    loss::log_softmax(logits, classes);
    let mut all: Vec<(u32, f32)> = (0..).zip(logits.iter().copied()).collect();
    all.sort_by(|a, b| b.1.total_cmp(&a.1));
    all.truncate(LISTED);
    all.into_iter()
        .map(|(id, logarithm)| (id, f64::from(logarithm).exp()))
        .collect()
}

impl Model for Texts {
    fn name(&self) -> &str {
        &self.name
    }

    fn input(&self) -> InputKind {
        InputKind::Text
    }

    fn changes_heads(&self) -> bool {
        self.model.stack().is_some()
    }

    fn continues(&self) -> bool {
        self.writes()
    }

    fn look(&mut self, input: &Input, ablation: &Ablation) -> Result<Seen, String> {
        self.change(ablation)?;
        self.seen(input).map_err(failed)
    }

    fn shows_queries(&self) -> bool {
        self.model.stack().is_some()
    }

    fn query(
        &mut self,
        input: &Input,
        ablation: &Ablation,
        place: &QueryPlace,
    ) -> Result<QueryKeys, String> {
        self.change(ablation)?;
        let encoded = self.read(input).map_err(failed)?.encoded;
        let mut observer = QueryObserver::new(place.layer, false, place.head, place.query);
        let read = self.model.observe(&encoded, &mut observer);
        read.map_err(sentence)?;
        observer.found().ok_or_else(no_query)
    }

    fn gradients(&mut self, input: &Input, _rank: usize) -> Result<Gradients, String> {
        self.change(&Ablation::default())?;
        let (output, found) = self.gradients_of(input).map_err(failed)?;
        Ok(products(output, found, Kind::SelfAttention))
    }
}
