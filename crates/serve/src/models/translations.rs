//! Translators, as the viewer asks them.

use regard_kernels::stack::ChangedHead;
use regard_models::{generate::SearchTree, gradient::OutputGradients};
use regard_trace::Kind;
use regard_train::{
    TextToText, Translator, opened::OpenedError, recipe::Translation as Settings,
    translator::Translation,
};

use super::{generation, hypotheses, kind_of, listed, no_query, products, sentence};
use crate::{Ablation, Cut, Gradients, Input, InputKind, Model, QueryKeys, QueryPlace, Seen};

/// What translates: its search, and its heads, which can be changed and observed.
trait Translates: Send {
    fn change(
        &mut self,
        encoder: Vec<ChangedHead>,
        decoder: Vec<ChangedHead>,
    ) -> Result<(), String>;
    fn search(&self, text: &str) -> Result<(Vec<Translation>, SearchTree), String>;
    /// How much of a text is read, if the search cuts it.
    fn cut(&self, text: &str) -> Result<Option<Cut>, String>;
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
fn whole_beam(settings: Settings) -> Settings {
    Settings {
        n_best: settings.beam,
        ..settings
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
        let settings = whole_beam(self.settings().clone());
        self.search_tree(text, &settings, listed(&settings))
            .map_err(sentence)
    }

    fn cut(&self, text: &str) -> Result<Option<Cut>, String> {
        let tokenizer = self.description().tokenizers.source();
        let filter = self.settings().length_filter();
        let limited = filter.limit(0, text, tokenizer).map_err(sentence)?;
        let read = limited.ids.len();
        Ok(limited.cut_from.map(|tokens| Cut { tokens, read }))
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
        let settings = whole_beam(self.settings().clone());
        self.query(text, &settings, rank, kind, at)
            .map_err(sentence)
    }

    fn gradients(
        &self,
        text: &str,
        rank: usize,
    ) -> Result<Option<(String, OutputGradients)>, String> {
        let settings = whole_beam(self.settings().clone());
        self.gradients(text, &settings, rank).map_err(sentence)
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
        let settings = whole_beam(self.settings());
        self.search_tree(text, &settings, listed(&settings))
            .map_err(sentence)
    }

    fn cut(&self, text: &str) -> Result<Option<Cut>, String> {
        // A whole text is read beside a target, which is given, so that nothing is searched for; or it is told to be too long.
        let tokens = match self.read_and_written(text, Some("a")) {
            Ok([source, _]) => source.len(),
            Err(OpenedError::LongPrompt { tokens, .. }) => tokens,
            // The search has told what is wrong with a text that has no tokens.
            Err(_) => 0,
        };
        let read = self.settings().max_source_tokens;
        Ok((tokens > read).then_some(Cut { tokens, read }))
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
        let settings = whole_beam(self.settings());
        self.query(text, &settings, rank, kind, at)
            .map_err(sentence)
    }

    fn gradients(
        &self,
        text: &str,
        rank: usize,
    ) -> Result<Option<(String, OutputGradients)>, String> {
        let settings = whole_beam(self.settings());
        self.gradients(text, &settings, rank).map_err(sentence)
    }
}

/// The attention that a translator has.
const KINDS: [Kind; 3] = [Kind::EncoderSelf, Kind::DecoderSelf, Kind::Cross];

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
            let kind = kind_of(&one.map, &KINDS)?;
            let changed = ChangedHead {
                layer: one.layer,
                cross: kind == Kind::Cross,
                head: one.head,
                change: (&one.change).into(),
            };
            match kind {
                Kind::EncoderSelf => encoder.push(changed),
                _ => decoder.push(changed),
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
            cut: self.translator.cut(&input.text)?,
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
        let kind = kind_of(&place.map, &KINDS)?;
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
