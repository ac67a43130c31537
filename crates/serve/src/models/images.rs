//! Models that read an image, as the viewer asks them.

use regard_images::{Decoding, Image};
use regard_kernels::stack::{ChangedHead, HeadChange};
use regard_nn::changed::{Changes, Place, with_changed, with_query};
use regard_trace::Kind;
use regard_train::{
    DetectedObject, Detector, ImageCaptioner, ImageClassifier, LEAST_PROBABILITY, LayerGradients,
    QuestionAnswerer,
};

use super::{
    Told, answered, best_of, classified, hypotheses, kind_of, no_query, product, sentence,
};
use crate::{Ablation, Cut, Gradients, Input, InputKind, Model, QueryKeys, QueryPlace, Seen};

fn image(bytes: &[u8], decoding: &Decoding) -> Result<Image, String> {
    Image::decode(bytes, "the image", decoding).map_err(sentence)
}

/// How a model that computes by modules answers.
trait Answers: Send {
    /// What it says, and what it looks at.
    fn answer(&mut self, input: &Input) -> Result<Answer, String>;

    /// Gradient times attention, see [`Model::gradients`].
    fn gradients(&mut self, input: &Input, rank: usize) -> Result<Gradients, String>;
}

/// A model that computes by modules: its name, what it takes, and how it answers.
struct Answering<A> {
    name: String,
    input: InputKind,
    /// The attention whose heads can be changed.
    attention: &'static [Kind],
    /// Whether its queries can be shown: its scores are products.
    queries: bool,
    model: A,
}

/// An answer, and which queries of the decoder the rows of its maps are; `None` if they are all of them.
type Answer = (Seen, Option<Vec<usize>>);

impl<A: Answers> Answering<A> {
    /// Answers with heads changed. What is done to a query of the decoder goes by the rows of the maps with no head changed.
    fn answer(&mut self, input: &Input, ablation: &Ablation) -> Result<Answer, String> {
        let rows = match ablation.heads.is_empty() {
            true => None,
            false => self.model.answer(input)?.1,
        };
        let mut changes = Changes::default();
        for one in &ablation.heads {
            let Place {
                decoder,
                cross,
                layer,
            } = self.place(&one.map, one.layer)?;
            let mut change = HeadChange::from(&one.change);
            match (&mut change, rows.as_ref().filter(|_| decoder)) {
                (HeadChange::Hide { query, .. }, Some(rows)) => {
                    *query = *rows.get(*query).ok_or_else(no_query)?
                }
                (HeadChange::Replace(_), Some(_)) => {
                    return Err("the queries of this model are objects, and those of another image are others: their weights cannot be \
                                taken by position"
                        .to_owned());
                }
                _ => {}
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
        let changed = with_changed(&changes, || answer = Some(self.model.answer(input)));
        // What is wrong with the input comes before heads that were not reached because of it.
        let answer = answer.ok_or("the model gave no answer")??;
        changed.map_err(sentence)?;
        Ok(answer)
    }

    /// The attention of a map.
    fn place(&self, map: &str, layer: usize) -> Result<Place, String> {
        let kind = kind_of(map, self.attention)?;
        Ok(Place {
            decoder: matches!(kind, Kind::DecoderSelf | Kind::Cross),
            cross: kind == Kind::Cross,
            layer,
        })
    }
}

impl<A: Answers> Model for Answering<A> {
    fn name(&self) -> &str {
        &self.name
    }

    fn input(&self) -> InputKind {
        self.input
    }

    fn changes_heads(&self) -> bool {
        !self.attention.is_empty()
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
        let at = self.place(&asked.map, asked.layer)?;
        let mut query = asked.query;
        if at.decoder {
            let (_, rows) = self.answer(input, ablation)?;
            if let Some(rows) = rows {
                query = *rows.get(query).ok_or_else(no_query)?;
            }
        }
        let answer = || self.answer(input, ablation);
        let (answer, found) = with_query(at, asked.head, query, answer);
        answer?;
        found.ok_or_else(no_query)
    }

    fn gradients(&mut self, input: &Input, rank: usize) -> Result<Gradients, String> {
        self.model.gradients(input, rank)
    }
}

/// Gradient times attention of the layers of map `map`.
fn layers(
    output: String,
    map: &str,
    (found, log_probability): (Vec<LayerGradients>, f64),
) -> Gradients {
    let maps = found.iter();
    Gradients {
        output,
        log_probability,
        maps: maps
            .map(|(layer, weights)| product(map, *layer, weights))
            .collect(),
    }
}

/// Answers a question about an image.
pub fn questions(name: &str, model: QuestionAnswerer) -> Box<dyn Model> {
    Box::new(Answering {
        name: name.to_owned(),
        input: InputKind::ImageAndQuestion,
        attention: &[],
        queries: false,
        model,
    })
}

impl Answers for QuestionAnswerer {
    fn answer(&mut self, input: &Input) -> Result<Answer, String> {
        let description = self.description();
        let image = image(&input.image, &description.preparation.decoding())?;
        let found = self.ask(&[image], &[(0, &input.text)]).map_err(sentence)?;
        let (found, trace) = found.into_iter().next().ok_or("ask a question")?;
        let answers = description.answers.iter().cloned();
        let scores = found.scores.iter().map(|&score| f64::from(score));
        let limited = description.encode(&input.text);
        let read = limited.ids.len();
        let seen = Seen {
            cut: limited.cut_from.map(|tokens| Cut { tokens, read }),
            ..answered(trace, best_of(answers.zip(scores)))
        };
        Ok((seen, None))
    }

    fn gradients(&mut self, input: &Input, _rank: usize) -> Result<Gradients, String> {
        let image = image(&input.image, &self.description().preparation.decoding())?;
        let found = QuestionAnswerer::gradients(self, &image, &input.text).map_err(sentence)?;
        let (answer, found, log_probability) = found.ok_or("this model looks at nothing")?;
        let map = format!("{} {answer}", input.text);
        Ok(layers(answer, &map, (vec![(0, found)], log_probability)))
    }
}

/// Describes an image.
pub fn captions(name: &str, model: ImageCaptioner) -> Box<dyn Model> {
    Box::new(Answering {
        name: name.to_owned(),
        input: InputKind::Image,
        attention: &[Kind::Cross],
        queries: false,
        model,
    })
}

impl Answers for ImageCaptioner {
    fn answer(&mut self, input: &Input) -> Result<Answer, String> {
        let image = image(&input.image, &self.description().preparation.decoding())?;
        let found = self.caption(&[image], self.settings()).map_err(sentence)?;
        let all = found.into_iter().flatten();
        let all = all.map(|one| (one.text, one.log_probability, one.trace));
        let seen = hypotheses(all, NO_CAPTION)?;
        Ok((seen, None))
    }

    fn gradients(&mut self, input: &Input, rank: usize) -> Result<Gradients, String> {
        let image = image(&input.image, &self.description().preparation.decoding())?;
        let found = ImageCaptioner::gradients(self, &image, self.settings(), rank);
        let (text, found, log_probability) = found.map_err(sentence)?.ok_or(NO_CAPTION)?;
        let found = (vec![(0, found)], log_probability);
        Ok(layers(text, Kind::Cross.name(), found))
    }
}

const NO_CAPTION: &str = "the model has no caption for this image";

/// Gives an image a class.
pub fn images(name: &str, model: ImageClassifier) -> Box<dyn Model> {
    Box::new(Answering {
        name: name.to_owned(),
        input: InputKind::Image,
        attention: match model.model().has_stack() {
            true => &[Kind::SelfAttention],
            false => &[],
        },
        queries: model.model().has_stack(),
        model,
    })
}

impl Answers for ImageClassifier {
    fn answer(&mut self, input: &Input) -> Result<Answer, String> {
        let description = self.description();
        let image = image(&input.image, &description.preparation.decoding())?;
        let found = self.look(&[image]).map_err(sentence)?;
        let (found, trace) = found.into_iter().next().ok_or("choose an image")?;
        let scores = found.probabilities.iter().map(|&p| f64::from(p));
        let scores = description.labels.iter().cloned().zip(scores);
        Ok((classified(trace, self.class_scores(), scores), None))
    }

    fn gradients(&mut self, input: &Input, _rank: usize) -> Result<Gradients, String> {
        let image = image(&input.image, &self.description().preparation.decoding())?;
        let found = ImageClassifier::gradients(self, &image).map_err(sentence)?;
        let (class, found, log_probability) = found;
        let label = self.description().labels[class].clone();
        let found = (found, log_probability);
        Ok(layers(label, Kind::SelfAttention.name(), found))
    }
}

/// Compares an image with the labels of a text; `open` makes their classifier.
pub fn labelled(
    name: &str,
    open: impl Fn(&str) -> Result<ImageClassifier, Told> + Send + 'static,
) -> Box<dyn Model> {
    Box::new(Answering {
        name: name.to_owned(),
        input: InputKind::ImageAndLabels,
        attention: &[Kind::SelfAttention],
        queries: true,
        model: Labelled { open, known: None },
    })
}

/// A classifier whose labels come with the image.
struct Labelled<F> {
    open: F,
    /// That of the last labels.
    known: Option<(String, ImageClassifier)>,
}

impl<F: Fn(&str) -> Result<ImageClassifier, Told>> Labelled<F> {
    fn of(&mut self, text: &str) -> Result<&mut ImageClassifier, String> {
        let model = match self.known.take().filter(|(known, _)| known == text) {
            Some((_, model)) => model,
            None => (self.open)(text).map_err(sentence)?,
        };
        let (_, model) = self.known.insert((text.to_owned(), model));
        Ok(model)
    }
}

impl<F: Fn(&str) -> Result<ImageClassifier, Told> + Send> Answers for Labelled<F> {
    fn answer(&mut self, input: &Input) -> Result<Answer, String> {
        self.of(&input.text)?.answer(input)
    }

    fn gradients(&mut self, input: &Input, rank: usize) -> Result<Gradients, String> {
        Answers::gradients(self.of(&input.text)?, input, rank)
    }
}

/// Finds the objects in an image.
pub fn objects(name: &str, model: Detector) -> Box<dyn Model> {
    Box::new(Answering {
        name: name.to_owned(),
        input: InputKind::Image,
        attention: &[Kind::EncoderSelf, Kind::DecoderSelf, Kind::Cross],
        queries: true,
        model,
    })
}

/// The names of objects.
fn names(model: &Detector, found: &[DetectedObject]) -> String {
    let labels = &model.description().labels;
    let names: Vec<&str> = found
        .iter()
        .map(|object| labels[object.class].as_str())
        .collect();
    match names.is_empty() {
        true => "no object".to_owned(),
        false => names.join(", "),
    }
}

impl Answers for Detector {
    fn answer(&mut self, input: &Input) -> Result<Answer, String> {
        let description = self.description();
        let image = image(&input.image, &description.preparation.decoding())?;
        let found = self.look(&[image], LEAST_PROBABILITY, false);
        let found = found.map_err(sentence)?;
        let (found, trace) = found.into_iter().next().ok_or("choose an image")?;
        // Objects of one class are told apart by their queries.
        let named = found.iter().map(|object| {
            let name = format!(
                "{} (query {})",
                description.labels[object.class], object.query
            );
            (name, f64::from(object.score))
        });
        let seen = Seen {
            alternatives: best_of(named),
            ..Seen::new(trace, names(self, &found))
        };
        let rows = found.iter().map(|object| object.query).collect();
        Ok((seen, Some(rows)))
    }

    fn gradients(&mut self, input: &Input, _rank: usize) -> Result<Gradients, String> {
        let image = image(&input.image, &self.description().preparation.decoding())?;
        let found = Detector::gradients(self, &image, LEAST_PROBABILITY).map_err(sentence)?;
        let (objects, found, log_probability) = found;
        let found = (found, log_probability);
        Ok(layers(names(self, &objects), Kind::Cross.name(), found))
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, sync::Arc};

    use burn::tensor::Device;
    use regard_images::Normalize;
    use regard_models::{
        image::{VqaConfig, vqa::RegionAttention},
        pretrained::Folder,
    };
    use regard_nn::weights::{self, Storage};
    use regard_trace::Trace;
    use regard_train::{
        Registry,
        image_classifier::Preparation,
        question_answerer::Description,
        recipe,
        tasks::{Task, VisualQuestions},
        tokenizer::TokenizerPair,
    };
    use serde_json::json;

    use super::{super::tests::copied, *};
    use crate::{AblatedHead, Change, GivenWeights};

    /// Finds no object.
    struct Nothing;

    impl Answers for Nothing {
        fn answer(&mut self, _: &Input) -> Result<Answer, String> {
            Ok((Seen::new(Trace::default(), "no object"), Some(vec![])))
        }

        fn gradients(&mut self, _: &Input, _: usize) -> Result<Gradients, String> {
            Err("there is no object".to_owned())
        }
    }

    /// Queries of the decoder go by the objects that were found, also if there are none; those of the encoder are all cells.
    #[test]
    fn queries_that_are_changed_are_those_that_were_named() {
        let mut model = Answering {
            name: String::new(),
            input: InputKind::Image,
            attention: &[Kind::EncoderSelf, Kind::Cross],
            queries: true,
            model: Nothing,
        };
        let hide = Change::Hide { query: 0, key: 0 };
        let replace = Change::Replace(Arc::new(GivenWeights::new(vec![1.0], 1, 1).unwrap()));
        let of_objects = "the queries of this model are objects";
        // This model attends nowhere, so that a change which is not refused before is not met.
        for (kind, change, told) in [
            (Kind::Cross, &hide, "no such query"),
            (Kind::Cross, &replace, of_objects),
            (Kind::EncoderSelf, &hide, "changed head"),
            (Kind::EncoderSelf, &replace, "changed head"),
        ] {
            let head = AblatedHead {
                map: kind.name().to_owned(),
                layer: 0,
                head: 0,
                change: change.clone(),
            };
            let heads = vec![head];
            let error = model.look(&Input::default(), &Ablation { heads });
            let error = error.unwrap_err();
            assert!(error.contains(told), "{kind:?}: {error}");
        }
    }

    /// The model reads the first words.
    #[test]
    fn a_question_that_was_cut_is_told() {
        let (registry, device) = (Registry::default(), Device::flex());
        let model = recipe::Model {
            kind: "vqa",
            config: Box::new(VqaConfig::tiny(RegionAttention::QuestionOnly)),
        };
        let description = Description {
            model: model.clone(),
            tokenizers: TokenizerPair::learn_words(&["what is red"], &[], false).unwrap(),
            answers: vec!["yes".to_owned(), "no".to_owned()],
            preparation: Preparation::new([16, 16], Normalize::imagenet()),
            max_tokens: 2,
            scenes: None,
        };
        let task = registry.task_of::<VisualQuestions>(&model).unwrap();
        let model = task.init(&description, 1, &device).unwrap();
        let mut model = questions("vqa", QuestionAnswerer::new(model, description, &device));
        let photo = Image::filled(16, 16, &[90; 3]).unwrap().png().unwrap();
        let mut cut = |question: &str| {
            let input = Input {
                image: photo.clone(),
                text: question.to_owned(),
                ..Input::default()
            };
            model.look(&input, &Ablation::default()).unwrap().cut
        };
        assert_eq!(cut("What is red?"), Some(Cut { tokens: 3, read: 2 }));
        assert_eq!(cut("What is?"), None);
    }

    /// What `regard detect` does not show without a threshold.
    #[test]
    fn objects_of_a_small_probability_are_not_shown() {
        let folder = tempfile::tempdir().unwrap();
        let path = copied("detr-timm", folder.path(), &json!({}));
        let file = path.join("model.safetensors");
        let input = Input {
            image: fs::read(path.join("photo.png")).unwrap(),
            ..Input::default()
        };
        let (mut arrays, metadata) = weights::from_bytes(&fs::read(&file).unwrap()).unwrap();
        // The second time no object is likelier: 0.6 in place of 0.8 for the others.
        for (added, expected) in [(0.0, "person"), (3.0, "no object")] {
            let bias = arrays.get_mut("detr.class_labels_classifier.bias").unwrap();
            *bias.values.last_mut().unwrap() += added;
            let bytes = weights::to_bytes(&arrays, metadata.clone(), Storage::F32).unwrap();
            fs::write(&file, bytes).unwrap();
            let model =
                Detector::pretrained(&Folder::open(&path).unwrap(), &Device::flex()).unwrap();
            let decoding = model.description().preparation.decoding();
            let photo = image(&input.image, &decoding).unwrap();
            assert!(!model.detect(&[photo], 0.5, false).unwrap()[0].is_empty());
            let seen = objects("detr", model).look(&input, &Ablation::default());
            let seen = seen.unwrap();
            assert!(seen.output.starts_with(expected), "{}", seen.output);
        }
    }

    #[test]
    fn numbers_are_no_probabilities() {
        let folder = tempfile::tempdir().unwrap();
        let keys = json!({"problem_type": "regression"});
        let path = copied("deit-classes", folder.path(), &keys);
        let classifier =
            ImageClassifier::pretrained(&Folder::open(&path).unwrap(), &Device::flex()).unwrap();
        let input = Input {
            image: fs::read(path.join("photo.png")).unwrap(),
            ..Input::default()
        };
        let seen = images("deit", classifier).look(&input, &Ablation::default());
        let seen = seen.unwrap();
        assert!(seen.alternatives.is_empty());
        assert!(
            seen.output.starts_with("cat ") && seen.output.contains(", frog "),
            "{}",
            seen.output
        );
    }
}
