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
    /// The texts of tokens that follow others.
    fn following(&self, context: &[u32], tokens: &[u32]) -> Result<Vec<String>, String>;
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

    fn following(&self, context: &[u32], tokens: &[u32]) -> Result<Vec<String>, String> {
        self.following(context, tokens).map_err(sentence)
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

    fn following(&self, context: &[u32], tokens: &[u32]) -> Result<Vec<String>, String> {
        self.following(context, tokens).map_err(sentence)
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
        let (mut found, tree) = self.translator.search(&input.text)?;
        let following =
            |context: &[u32], tokens: &[u32]| self.translator.following(context, tokens);
        // The maps of a hypothesis may be large: those of the answer alone are there twice.
        let mut best = found.first().map(|one| one.trace.clone());
        let traces = found.iter_mut().map(|one| std::mem::take(&mut one.trace));
        let generation = generation(tree, traces.collect(), following)?;
        let all = found.into_iter().map(|one| {
            let trace = best.take().unwrap_or_default();
            (one.text, one.log_probability, trace)
        });
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

#[cfg(test)]
mod tests {
    use burn::tensor::Device;
    use regard_models::TransformerConfig;
    use regard_train::{
        Registry, recipe,
        tasks::{self, Task},
        tokenizer::TokenizerPair,
        translator::{Description, Languages},
    };
    use serde_json::json;

    use super::{
        super::tests::{copied, opened, write},
        *,
    };

    /// A small translator that nobody has trained.
    fn own(translate: Settings) -> Translator {
        let (registry, device) = (Registry::default(), Device::flex());
        let text = ["a red shirt", "two dogs"];
        let model = recipe::Model {
            kind: "transformer",
            config: Box::new(TransformerConfig::tiny()),
        };
        let description = Description {
            model: model.clone(),
            tokenizers: TokenizerPair::learn(&text, &text, true, 270, false).unwrap(),
            translate,
            languages: Languages {
                source: "en".to_owned(),
                target: "de".to_owned(),
            },
            familiarity: None,
        };
        let task = registry.task_of::<tasks::Translation>(&model).unwrap();
        let model = task.init(&description, 1, &device).unwrap();
        Translator::new(model, description, &device)
    }

    /// What would not fit in memory is refused before it is kept.
    #[test]
    fn the_maps_of_all_hypotheses_have_a_bound() {
        let mut settings = Settings {
            beam: 100,
            ..Settings::default()
        };
        settings.max_length.absolute = 2;
        let folder = tempfile::tempdir().unwrap();
        let path = copied("t5", folder.path(), &json!({}));
        let search = json!({"num_beams": 64, "max_new_tokens": 2});
        write(&path.join("generation_config.json"), &search);
        let opened = opened(&path, [&["<pad>", "</s>", "<unk>"], &[]], &json!({}));
        let pretrained = TextToText::read(opened, None, "").unwrap();
        for (mut model, word) in [
            (Translations::new("own", own(settings)), "a "),
            (Translations::pretrained("t5", pretrained), "w1 "),
        ] {
            let mut look = |words: usize| {
                let input = Input {
                    text: word.repeat(words),
                    ..Input::default()
                };
                model.look(&input, &Ablation::default())
            };
            let seen = look(2).unwrap();
            let hypotheses = seen.generation.unwrap().hypotheses;
            assert!(hypotheses.len() > 30, "{word}: {}", hypotheses.len());
            assert_eq!(hypotheses[0].trace, seen.trace, "{word}");
            assert!(hypotheses[1].trace.maps.len() > 3, "{word}");
            let error = look(1_000).unwrap_err();
            assert!(
                error.contains("at most 240000000 are kept"),
                "{word}: {error}"
            );
        }
    }
}
