//! Models that read a text, as the viewer asks them.

use std::ops::ControlFlow;

use burn::tensor::Device;
use regard_kernels::{
    Kind as Storage, loss,
    stack::{ChangedHead, QueryObserver},
};
use regard_models::{
    generate::{Prompt, Recorder, SampleConfig, SearchTree, sample},
    gradient::{OutputGradients, of_text_model},
    pretrained::{EncoderOutput, Encoding, Heads, TextEncoder, entities},
};
use regard_trace::Kind;
use regard_train::opened::{Opened, OpenedError, TextModel, input_of};

use super::{
    LISTED, Told, answered, best_of, classified, generation, kind_of, no_query, products, sentence,
};
use crate::{
    Ablation, Continuation, Gradients, Input, InputKind, Model, QueryKeys, QueryPlace, Seen,
};

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
    /// Of a folder or run that was opened.
    pub fn new(name: &str, opened: Opened, model: TextModel) -> Self {
        let name = name.to_owned();
        Self {
            name,
            opened,
            model,
        }
    }

    /// What the model reads: the text with its own token for a masked word, and what it writes on.
    fn read(&self, input: &Input) -> Result<Reading, Told> {
        let text = &input.text;
        let special = self.opened.tokenizer.special();
        let mask = special.mask.and_then(|id| self.opened.tokenizer.token(id));
        let text = match &mask {
            Some(token) => text.replace("[MASK]", token).replace("<mask>", token),
            None => text.to_owned(),
        };
        let encoded = self.opened.tokenizer.encode(&text, true)?;
        if encoded.ids.is_empty() {
            return Err("the text has no tokens; type some words".into());
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
    fn write(&self, reading: &mut Reading, wanted: &Continuation) -> Result<(), Told> {
        let tokenizer = &self.opened.tokenizer;
        let Encoding { ids, texts, .. } = &mut reading.encoded;
        let stop = tokenizer.special().eos.clone();
        // An encoder's tokenizer ends a text; here it goes on. An end that the text itself spells stays.
        let added = texts.last() == Some(&None);
        if added && ids.len() > 1 && ids.last().is_some_and(|id| stop.contains(id)) {
            ids.pop();
        }
        reading.given = ids.len();
        let model = self.opened.causal(&self.model)?;
        let (tokens, context) = (ids.len(), model.context());
        if tokens >= context {
            return Err(OpenedError::LongPrompt { tokens, context }.into());
        }
        let config = SampleConfig {
            temperature: wanted.temperature,
            seed: wanted.seed,
            limit: wanted.tokens.min(context - tokens),
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
        let there: &[Kind] = match self.changes_heads() {
            true => &[Kind::SelfAttention],
            false => &[],
        };
        let changed = ablation.heads.iter().map(|one| {
            kind_of(&one.map, there)?;
            Ok(ChangedHead {
                layer: one.layer,
                cross: false,
                head: one.head,
                change: (&one.change).into(),
            })
        });
        let changed = changed.collect::<Result<Vec<ChangedHead>, String>>()?;
        match self.model.stack_mut() {
            Some(stack) => stack.change_heads(changed).map_err(sentence),
            None => Ok(()),
        }
    }

    /// What the model looks at, and what it says.
    fn seen(&self, input: &Input) -> Result<Seen, Told> {
        let Reading {
            text,
            encoded,
            given,
            tree,
            written,
        } = self.read(input)?;
        let mut trace = self.opened.look(&self.model, &text, &encoded)?;
        if let Some(tree) = tree {
            trace.target.clone_from(&written);
            let first = tree.proposals.iter().filter(|one| one.parent.is_none());
            let first = first.map(|one| (one.token, one.log_probability.exp()));
            let next = self.words(&encoded.ids[..given], first)?;
            let following = |after: &[u32], tokens: &[u32]| {
                let context = [&encoded.ids[..given], after].concat();
                let texts = self.opened.tokenizer.following(&context, tokens);
                texts.map_err(sentence)
            };
            return Ok(Seen {
                alternatives: best_of(next.into_iter()),
                generation: Some(generation(tree, vec![trace.clone()], following)?),
                ..Seen::new(trace, written)
            });
        }
        let TextModel::Reads(model) = &self.model else {
            let words = self.words(&encoded.ids, self.next(&encoded.ids)?)?;
            return Ok(answered(trace, best_of(words.into_iter())));
        };
        match (model.purpose(), self.masked(&encoded)) {
            (Some(Heads::Classes(labels)), _) => {
                let scores = classes(model, &encoded)?.into_iter().map(f64::from);
                let scores = labels.iter().cloned().zip(scores);
                Ok(classified(trace, model.class_scores(), scores))
            }
            (Some(Heads::TokenClasses(labels)), _) => {
                let states = model.states(&[input_of(&encoded)], None)?;
                let of_tokens = model.token_classes(&states[0]).unwrap_or_default();
                Ok(Seen::new(trace, named(&encoded, &text, &of_tokens, labels)))
            }
            (_, Some(place)) => {
                let likely = filled(model, &encoded, place)?;
                let words = self.words(&encoded.ids[..place], likely)?;
                Ok(answered(trace, best_of(words.into_iter())))
            }
            _ => Ok(Seen::new(trace, "")),
        }
    }

    /// Tokens that may follow `context`, as texts that tell them apart.
    fn words(
        &self,
        context: &[u32],
        tokens: impl IntoIterator<Item = (u32, f64)>,
    ) -> Result<Vec<(String, f64)>, Told> {
        let (ids, probabilities): (Vec<u32>, Vec<f64>) = tokens.into_iter().unzip();
        let words = self.opened.tokenizer.following(context, &ids)?;
        Ok(words.into_iter().zip(probabilities).collect())
    }

    /// The text of a token that follows `context`.
    fn word(&self, context: &[u32], id: u32) -> Result<String, Told> {
        let words = self.opened.tokenizer.following(context, &[id])?;
        Ok(words.concat())
    }

    /// The likeliest tokens after `ids`.
    fn next(&self, ids: &[u32]) -> Result<Vec<(u32, f64)>, Told> {
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
    fn gradients_of(&self, input: &Input) -> Result<(String, OutputGradients), Told> {
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
            Told::from(message)
        };
        let TextModel::Reads(model) = &self.model else {
            let mut wanted: Vec<(usize, u32)> =
                (given..ids.len()).map(|at| (at - 1, ids[at])).collect();
            let mut output = written;
            if wanted.is_empty() {
                let next = self.next(ids)?.first().ok_or_else(none)?.0;
                wanted.push((ids.len() - 1, next));
                output = self.word(ids, next)?;
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
                let word = self.word(&ids[..place], token)?;
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
fn classes(model: &TextEncoder, encoded: &Encoding) -> Result<Vec<f32>, Told> {
    let states = model.states(&[input_of(encoded)], None)?;
    Ok(model.classes(&states[0]).unwrap_or_default())
}

/// The entities of a text, from the `probabilities` of the classes of its tokens.
fn named(encoded: &Encoding, text: &str, probabilities: &[f32], labels: &[String]) -> String {
    let found = entities(encoded, probabilities, labels).into_iter();
    let found = found.map(|one| format!("{} {}", one.label, &text[one.range]));
    let found: Vec<String> = found.collect();
    match found.is_empty() {
        true => "no entity".to_owned(),
        false => found.join(", "),
    }
}

/// The likeliest tokens in the place of a masked one; none from a model that fills no masks.
fn filled(model: &TextEncoder, encoded: &Encoding, place: usize) -> Result<Vec<(u32, f64)>, Told> {
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
        self.seen(input).map_err(sentence)
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
        kind_of(&place.map, &[Kind::SelfAttention])?;
        self.change(ablation)?;
        let encoded = self.read(input).map_err(sentence)?.encoded;
        let mut observer = QueryObserver::new(place.layer, false, place.head, place.query);
        let read = self.model.observe(&encoded, &mut observer);
        read.map_err(sentence)?;
        observer.found().ok_or_else(no_query)
    }

    fn gradients(&mut self, input: &Input, _rank: usize) -> Result<Gradients, String> {
        self.change(&Ablation::default())?;
        let (output, found) = self.gradients_of(input).map_err(sentence)?;
        Ok(products(output, found, Kind::SelfAttention))
    }
}

#[cfg(test)]
mod tests {
    use regard_models::{
        ModelConfig, Vocabulary,
        language::{LstmnLmConfig, PlainTextModel},
    };
    use serde_json::{Value, json};

    use super::{
        super::tests::{copied, opened},
        *,
    };
    use crate::{AblatedHead, Change};

    const GPT2: [&[&str]; 2] = [&["</s>", "<unk>"], &["▁the", "the", "<0xE2>"]];
    const BERT: [&[&str]; 2] = [&["[PAD]", "[CLS]", "[SEP]", "[MASK]", "[UNK]"], &[]];

    fn texts(case: &str, words: [&[&str]; 2], steps: &Value, keys: &Value) -> Texts {
        let folder = tempfile::tempdir().unwrap();
        let opened = opened(&copied(case, folder.path(), keys), words, steps);
        let model = opened.model(None).unwrap();
        Texts::new(case, opened, model)
    }

    fn input(text: &str, tokens: usize) -> Input {
        Input {
            text: text.to_owned(),
            continuation: Continuation {
                tokens,
                ..Continuation::default()
            },
            ..Input::default()
        }
    }

    fn look(texts: &mut Texts, text: &str, tokens: usize) -> Result<Seen, String> {
        texts.look(&input(text, tokens), &Ablation::default())
    }

    /// Alone, a token would lose its space, and each part of a character would be the same sign.
    #[test]
    fn tokens_that_may_follow_have_names_of_their_own() {
        let space = json!({"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": true});
        let decoder = json!({"type": "Sequence", "decoders": [{"type": "ByteFallback"}, space]});
        let texts = texts("gpt2", GPT2, &json!({"decoder": decoder}), &json!({}));
        let id = |token: &str| texts.opened.tokenizer.id(token).unwrap();
        let name = |token| texts.word(&[id("w1")], id(token)).unwrap();
        let names = ["▁the", "the", "<0xE2>"].map(name);
        assert_eq!(names, [" the", "the", "<0xE2>"]);
    }

    #[test]
    fn an_end_that_a_text_spells_stays() {
        let sequence = |id: &str| json!({"Sequence": {"id": id, "type_id": 0}});
        let end = json!({"SpecialToken": {"id": "</s>", "type_id": 0}});
        let ended = json!({"post_processor": {
            "type": "TemplateProcessing", "single": [sequence("A"), end], "pair": [sequence("A"), sequence("B"), end],
            "special_tokens": {"</s>": {"id": "</s>", "ids": [0], "tokens": ["</s>"]}},
        }});
        for steps in [json!({}), ended] {
            let texts = texts("gpt2", GPT2, &steps, &json!({}));
            for text in ["w1 w2", "w1 </s>"] {
                let given = texts.read(&input(text, 1)).unwrap().given;
                assert_eq!(given, 2, "{text}: {steps}");
            }
        }
    }

    #[test]
    fn a_text_without_room_to_go_on_is_refused() {
        let mut texts = texts("gpt2", GPT2, &json!({}), &json!({}));
        let words = |count: usize| vec!["w1"; count].join(" ");
        let error = look(&mut texts, &words(96), 5).unwrap_err();
        let expected = "a text of 96 tokens does not fit the model's context of 96";
        assert!(error.contains(expected), "{error}");
        assert!(look(&mut texts, &words(96), 0).is_ok());
        assert!(look(&mut texts, &words(95), 5).is_ok());
    }

    #[test]
    fn numbers_are_no_probabilities() {
        let looked = |keys: &Value| {
            let mut texts = texts("bert-classes", BERT, &json!({}), keys);
            look(&mut texts, "w1 w2", 0).unwrap()
        };
        let seen = looked(&json!({"problem_type": "regression"}));
        assert!(seen.alternatives.is_empty());
        let labels = seen.output.split(", ").map(|one| one.split(' ').next());
        let labels: Vec<&str> = labels.flatten().collect();
        assert_eq!(labels, ["ANGRY", "CALM", "GLAD"], "{}", seen.output);
        assert_eq!(looked(&json!({})).alternatives.len(), 3);
    }

    /// Without a mask there is nothing that such a model says.
    #[test]
    fn classes_of_tokens_are_an_output() {
        let nothing = json!({});
        let mut tokens = texts("bert-tokens", BERT, &nothing, &nothing);
        let seen = look(&mut tokens, "w1 w2", 0).unwrap();
        assert!(seen.output.contains(" w1"), "{}", seen.output);
        let mut masks = texts("bert", BERT, &nothing, &nothing);
        let seen = look(&mut masks, "w1 w2", 0).unwrap();
        assert!(seen.output.is_empty() && seen.alternatives.is_empty());
        let seen = look(&mut masks, "w1 [MASK]", 0).unwrap();
        assert_eq!(seen.alternatives.len(), LISTED);
    }

    #[test]
    fn changes_of_heads_are_not_ignored() {
        let mut texts = texts("gpt2", GPT2, &json!({}), &json!({}));
        let device = Device::flex();
        let plain = LstmnLmConfig::tiny().init(&Vocabulary::new(20), 1, &device);
        let plain = PlainTextModel::new(plain.unwrap().into(), &device).unwrap();
        texts.model = TextModel::Plain(Box::new(plain));
        let head = AblatedHead {
            map: Kind::SelfAttention.name().to_owned(),
            layer: 0,
            head: 0,
            change: Change::Off,
        };
        let heads = vec![head];
        let error = texts.change(&Ablation { heads }).unwrap_err();
        assert!(error.contains("no heads that can be changed"), "{error}");
        assert_eq!(texts.change(&Ablation::default()), Ok(()));
    }
}
