//! An image in, a caption out, and where the model looked for every word.

use burn::tensor::{Device, Tensor};
use rayon::prelude::*;
use regard_evaluate::{CaptionCounts, CaptionScores, CellMask, ExactMatch, Looking};
use regard_images::{
    Image, ImagesError,
    data::{Example, Phrase, Pictures, Source},
};
use regard_models::{
    TargetBatch,
    generate::{BeamConfig, Hypothesis, LengthLimit, caption},
    gradient::{WeightGradients, followable, log_probability, of_maps},
    image::{Captioner, CaptionerSizes},
    recurrent::index,
    text::Piece,
};
use regard_nn::dropout::DropoutRng;
use regard_trace::{AttentionMap, Kind, Trace};
use serde::{Deserialize, Serialize};

use crate::{
    error::TrainError,
    image_classifier::{Form, LookError, Preparation, cells},
    ranks::Ranks,
    recipe::{Model, SceneData, SceneSet, Translation as Settings},
    tasks::Describe,
    tokenizer::{TokenizerError, TokenizerPair},
    translator::{axis, beam_config},
};

/// Images that are captioned together.
const AT_ONCE: usize = 64;

/// The content of a captioner's file apart from the weights.
#[derive(Debug, Clone)]
pub struct Description {
    /// The architecture.
    pub model: Model,
    /// Text to ids and back.
    pub tokenizers: TokenizerPair,
    /// How an image becomes numbers.
    pub preparation: Preparation,
    /// Search settings used unless others are asked for.
    pub search: Settings,
    /// The scenes that it learned from, if it did, and their seed.
    pub scenes: Option<(SceneData, u64)>,
}

impl Describe<Captioner> for Description {
    fn model(&self) -> &Model {
        &self.model
    }

    fn sizes(&self) -> CaptionerSizes {
        CaptionerSizes {
            channels: self.preparation.normalize.mean().len(),
            size: self.preparation.size,
            vocabulary: self.tokenizers.target().vocabulary(),
        }
    }
}

/// Images with what is known of them.
#[derive(Debug)]
pub enum CaptionedImages {
    /// Drawn when they are asked for.
    Scenes(SceneSet),
    /// Of files, in the model's size.
    Files {
        /// The images.
        images: Pictures,
        /// The captions of each.
        captions: Vec<Vec<Phrase>>,
    },
}

impl CaptionedImages {
    /// The number of images.
    pub fn len(&self) -> usize {
        match self {
            Self::Scenes(scenes) => scenes.len(),
            Self::Files { images, .. } => images.len(),
        }
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// What the images are like.
    pub(crate) fn form(&self) -> Form {
        match self {
            Self::Scenes(scenes) => Form::of_scenes(scenes),
            Self::Files { images, .. } => Form::of("data.captions", images),
        }
    }

    /// The image of this number, from 0, and what is known of it.
    ///
    /// # Errors
    /// Scenes whose configuration is wrong; an image that cannot be read any more.
    pub fn example(&self, index: usize) -> Result<Example, ImagesError> {
        match self {
            Self::Scenes(scenes) => Ok(scenes.scene(index)?.example(scenes.config())),
            Self::Files { images, captions } => Ok(Example {
                captions: captions[index].clone(),
                ..Example::new(Source::Pixels(images.get(index)?.into_owned()))
            }),
        }
    }
}

/// A caption as it is learned: in lower case, its words without punctuation, one space between them.
pub(crate) fn plain(caption: &str) -> String {
    let kept = |c: char| c.is_alphanumeric() || c == '\'' || c.is_whitespace();
    let words = caption.to_lowercase().replace(|c| !kept(c), " ");
    words.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// The pixels of an example whose image is in memory.
pub(crate) fn pixels(example: &Example) -> &Image {
    match &example.source {
        Source::Pixels(image) => image,
        Source::File(path) => unreachable!("{} was read before", path.display()),
    }
}

/// A captioner with its words, ready for use.
#[derive(Debug)]
pub struct ImageCaptioner {
    model: Captioner,
    description: Description,
    device: Device,
}

/// A caption of an image.
#[derive(Debug, Clone)]
pub struct Caption {
    /// The text.
    pub text: String,
    /// The score by which captions are ranked (see [`BeamConfig::rank`]).
    pub score: f64,
    /// The sum of the tokens' log-probabilities, natural logarithm.
    pub log_probability: f64,
    /// False when the length limit cut it.
    pub finished: bool,
    /// Where the model looked for every word, over the image as it read it.
    pub trace: Trace,
}

/// How good captions are.
#[derive(Debug, Clone)]
pub struct Judged {
    /// Nats per token of the references, teacher-forced, and their tokens.
    pub loss: f64,
    /// The captions that the model wrote.
    pub captions: Vec<String>,
    /// Which of them equal one of their references.
    pub right: Vec<bool>,
    /// How many.
    pub exact: ExactMatch,
    /// Against their references.
    pub scores: CaptionScores,
    /// What the scores of any choice of the images follow from.
    pub counts: CaptionCounts,
    /// Where the model looked, teacher-forced, for words of which the object is known; no looks where none is.
    pub looking: Looking,
    /// The same, with the box of an object in place of its pixels: a digit is more than its strokes.
    pub looking_at_boxes: Looking,
    /// Both, image by image.
    pub looks: Vec<[Looking; 2]>,
}

/// Some images, judged.
#[derive(Serialize, Deserialize)]
struct JudgedBatch {
    captions: Vec<String>,
    references: Vec<Vec<String>>,
    /// At the pixels and at the boxes, image by image.
    looks: Vec<[Looking; 2]>,
    nll: f64,
    tokens: usize,
}

impl ImageCaptioner {
    /// A captioner from its parts.
    pub fn new(model: Captioner, description: Description, device: &Device) -> Self {
        Self {
            model,
            description,
            device: device.clone(),
        }
    }

    /// Architecture, words, preparation.
    pub fn description(&self) -> &Description {
        &self.description
    }

    /// The search settings that come with the model.
    pub fn settings(&self) -> &Settings {
        &self.description.search
    }

    /// Writes captions of images, which are brought to the model's size first: for each its n-best list, best first.
    ///
    /// # Errors
    /// Those of [`Preparation::fit`]; numbers that are no weights.
    pub fn caption(
        &self,
        images: &[Image],
        settings: &Settings,
    ) -> Result<Vec<Vec<Caption>>, CaptionError> {
        let search = search(settings);
        let mut captions = Vec::with_capacity(images.len());
        for images in images.chunks(AT_ONCE) {
            let preparation = &self.description.preparation;
            let fitted = images.iter().map(|image| preparation.fit(image));
            let fitted = fitted
                .collect::<Result<Vec<_>, _>>()
                .map_err(LookError::from)?;
            let found = caption(
                &self.model,
                preparation.tensor(&fitted, &self.device),
                &search,
            );
            for (image, hypotheses) in fitted.iter().zip(found) {
                let n_best = hypotheses.into_iter().enumerate();
                let n_best = n_best.map(|(rank, one)| self.shown(image, one, rank));
                captions.push(n_best.collect::<Result<_, _>>()?);
            }
        }
        Ok(captions)
    }

    /// The caption of rank `rank`, 0 for the best, and the gradients of its log probability with respect to each weight over the regions:
    /// of the map of its trace. `None` if there is no such caption.
    ///
    /// # Errors
    /// Those of [`Preparation::fit`]; a model that is too large.
    pub fn gradients(
        &self,
        image: &Image,
        settings: &Settings,
        rank: usize,
    ) -> Result<Option<(String, WeightGradients, f64)>, CaptionError> {
        let preparation = &self.description.preparation;
        let image = [preparation.fit(image).map_err(LookError::from)?];
        let read = |device: &Device| preparation.tensor(&image, device);
        let found = caption(&self.model, read(&self.device), &search(settings));
        let Some(hypothesis) = found.into_iter().flatten().nth(rank) else {
            return Ok(None);
        };
        let tokenizer = self.description.tokenizers.target();
        let text = tokenizer.decode(&hypothesis.tokens)?;
        let device = self.device.clone().autodiff();
        let model = followable(&self.model);
        let vocabulary = self.model.vocabulary();
        let tokens = std::slice::from_ref(&hypothesis.tokens);
        let target = TargetBatch::new(tokens, &vocabulary, &device);
        let end = hypothesis.finished.then_some(vocabulary.end);
        let wanted: Vec<u32> = hypothesis.tokens.iter().copied().chain(end).collect();
        let [rows, columns] = self.model.grid();
        // One look for each word, that of the end included.
        let looks = vec![[1, 1, rows * columns]; hypothesis.tokens.len() + 1];
        let (log_probability, calls) = of_maps(&model, &looks, || {
            let scored = model.forward(read(&device), &target, &mut DropoutRng::none());
            log_probability(scored.logits().narrow(0, 0, wanted.len()), &wanted)
        })
        .map_err(LookError::from)?;
        let found = WeightGradients::of_steps(&calls, 0, [wanted.len(), rows * columns]);
        Ok(Some((text, found, log_probability)))
    }

    fn shown(
        &self,
        image: &Image,
        hypothesis: Hypothesis,
        rank: usize,
    ) -> Result<Caption, CaptionError> {
        let tokenizer = self.description.tokenizers.target();
        let text = tokenizer.decode(&hypothesis.tokens)?;
        let (height, width, channels) = (image.height(), image.width(), image.channels());
        let pixels = image.clone().into_pixels();
        let image = regard_trace::Image::new(height, width, channels, pixels);
        let words = axis(tokenizer, &hypothesis.tokens, hypothesis.finished)?;
        let [rows, columns] = self.model.grid();
        let weights = hypothesis.weights.concat();
        let map = match self.model.is_normalized() {
            true => AttentionMap::new(Kind::Cross, words, cells(rows, columns), 1, weights),
            false => {
                AttentionMap::unnormalized(Kind::Cross, words, cells(rows, columns), 1, weights)
            }
        };
        let trace = Trace::new(self.description.model.kind, "", text.clone())
            .with_score(hypothesis.score)
            .with_rank(rank)
            .with_image(image.map_err(LookError::from)?)
            .with_map(map.map_err(LookError::from)?);
        Ok(Caption {
            text,
            score: hypothesis.score,
            log_probability: hypothesis.log_probability,
            finished: hypothesis.finished,
            trace,
        })
    }

    /// Judges the model on the first `count` of `images`: its captions against all references, and where it looks while it is given a
    /// reference word by word (so that every word has its object). The `ranks` share the images.
    ///
    /// # Errors
    /// Images of another size than the model reads or that cannot be drawn, references without words; ranks that are gone.
    pub fn judge(
        &self,
        images: &CaptionedImages,
        count: usize,
        settings: &Settings,
        ranks: &dyn Ranks,
    ) -> Result<Judged, TrainError> {
        self.description.preparation.expect_form(images.form())?;
        let search = search(settings);
        let rows: Vec<usize> = (0..images.len().min(count)).collect();
        let batches: Vec<&[usize]> = rows.chunks(settings.batch_sentences.max(1)).collect();
        let judged = ranks.spread(&batches, |_, own| {
            let judge = |rows: &&[usize]| self.judge_batch(images, rows, &search);
            own.iter()
                .map(judge)
                .collect::<Result<Vec<_>, TrainError>>()
        })?;
        let (mut captions, mut references, mut looks) = (vec![], vec![], vec![]);
        let (mut nll, mut tokens) = (0.0, 0);
        for batch in judged {
            captions.extend(batch.captions);
            references.extend(batch.references);
            looks.extend(batch.looks);
            nll += batch.nll;
            tokens += batch.tokens;
        }
        let pairs = captions.iter().zip(&references);
        let right: Vec<bool> = pairs
            .map(|(caption, references)| references.contains(caption))
            .collect();
        let counts = CaptionCounts::collect(&captions, &references)?;
        let [looking, looking_at_boxes] = looks
            .iter()
            .fold([Looking::default(); 2], |all, image| both(all, *image));
        Ok(Judged {
            loss: nll / tokens.max(1) as f64,
            exact: ExactMatch {
                exact: right.iter().filter(|right| **right).count(),
                lines: right.len(),
            },
            right,
            scores: counts.scores(),
            counts,
            captions,
            looking,
            looking_at_boxes,
            looks,
        })
    }

    fn judge_batch(
        &self,
        images: &CaptionedImages,
        rows: &[usize],
        search: &BeamConfig,
    ) -> Result<JudgedBatch, TrainError> {
        let tokenizer = self.description.tokenizers.target();
        let examples = rows.par_iter().map(|&row| images.example(row));
        let examples = examples.collect::<Result<Vec<Example>, _>>()?;
        let shown: Vec<Image> = examples.iter().map(pixels).cloned().collect();
        let tensor = self.description.preparation.tensor(&shown, &self.device);
        let pairs = || {
            let examples = examples.iter().enumerate();
            examples.flat_map(|(i, of)| of.captions.iter().map(move |phrase| (i, phrase)))
        };
        let ids = pairs().map(|(_, phrase)| tokenizer.encode(&plain(&phrase.text)));
        let ids = ids.collect::<Result<Vec<_>, _>>()?;
        let target = TargetBatch::new(&ids, &self.model.vocabulary(), &self.device);
        let of_image: Vec<usize> = pairs().map(|(i, _)| i).collect();
        let repeated: Tensor<4> = tensor.clone().select(0, index(&of_image, &self.device));
        let scored = self
            .model
            .forward(repeated, &target, &mut DropoutRng::none());
        let weights: Option<Vec<f32>> = scored
            .weights
            .as_ref()
            .map(|weights| weights.clone().into_data().iter().collect());
        let batch = scored.cross_entropy(target.outputs, 0.0);
        let mut looks = vec![[Looking::default(); 2]; examples.len()];
        if let Some(weights) = weights {
            let of_caption = weights.len() / ids.len().max(1);
            let weights = weights.chunks_exact(of_caption.max(1));
            for (((i, phrase), ids), weights) in pairs().zip(&ids).zip(weights) {
                looks[i] = both(looks[i], self.looks(&examples[i], phrase, ids, weights)?);
            }
        }
        let mut captions = vec![];
        for hypotheses in caption(&self.model, tensor, search) {
            let best = hypotheses.first().map_or(&[][..], |best| &best.tokens);
            captions.push(tokenizer.decode(best)?);
        }
        let texts = |example: &Example| {
            let texts = example.captions.iter().map(|phrase| plain(&phrase.text));
            texts.collect()
        };
        Ok(JudgedBatch {
            captions,
            references: examples.iter().map(texts).collect(),
            looks,
            nll: batch.nll,
            tokens: batch.tokens,
        })
    }

    /// The looks of one caption, whose tokens are `ids`, at the pixels and at the boxes of the objects that its words speak of; `weights
    /// [time, regions]`. Weights that are no finite numbers are no look: the loss tells of them.
    fn looks(
        &self,
        example: &Example,
        phrase: &Phrase,
        ids: &[u32],
        weights: &[f32],
    ) -> Result<[Looking; 2], TrainError> {
        let size = self.description.preparation.size;
        let grid = self.model.grid();
        let [mut pixels, mut boxes] = [Looking::default(); 2];
        let pieces = self.description.tokenizers.target().pieces(ids)?;
        let words = phrase.words.iter();
        for (word, token) in words.zip(first_tokens(&pieces, phrase.words.len())) {
            let object = word.object.and_then(|object| example.objects.get(object));
            let Some(object) = object else { continue };
            let regions = grid[0] * grid[1];
            let weights = &weights[token * regions..][..regions];
            if !weights.iter().all(|weight| weight.is_finite()) {
                continue;
            }
            if let Some(region) = &object.region {
                let mask = region.mask(size[0], size[1])?;
                pixels.add(weights, &CellMask::new(size, mask.iter(), grid)?)?;
            }
            let within = (0..size[0] * size[1])
                .map(|place| object.bounds.covers(place / size[1], place % size[1]));
            boxes.add(weights, &CellMask::new(size, within, grid)?)?;
        }
        Ok([pixels, boxes])
    }
}

/// The looks at the pixels and at the boxes, of both.
fn both([pixels, boxes]: [Looking; 2], other: [Looking; 2]) -> [Looking; 2] {
    [pixels.with(other[0]), boxes.with(other[1])]
}

/// The place of the first token of each of so many `words`; none where the tokens make other words.
fn first_tokens(pieces: &[Piece], words: usize) -> Vec<usize> {
    let mut places: Vec<usize> = (0..pieces.len()).collect();
    places.dedup_by_key(|place| pieces[*place].word);
    match places.len() == words {
        true => places,
        false => vec![],
    }
}

/// The search that `settings` describe: the length limit does not depend on the image.
fn search(settings: &Settings) -> BeamConfig {
    BeamConfig {
        limit: LengthLimit {
            factor: 0.0,
            constant: settings.max_length.absolute,
            most: settings.max_length.absolute,
        },
        ..beam_config(settings)
    }
}

/// Why an image has no caption.
#[derive(Debug, thiserror::Error)]
pub enum CaptionError {
    /// The image cannot be brought to the model's size, or the model's numbers are no weights.
    #[error(transparent)]
    Look(#[from] LookError),
    /// The tokenizer failed.
    #[error(transparent)]
    Tokenizer(#[from] TokenizerError),
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tokenizer::SubwordTokenizer;

    #[test]
    fn a_word_of_several_tokens_has_the_look_of_the_first() {
        let known = ["a red a red a left a left"; 4];
        let parts = SubwordTokenizer::learn(known.iter(), 300, true).unwrap();
        let words = SubwordTokenizer::learn_words(["a triangle left"].iter(), true).unwrap();
        let of = |tokenizer: &SubwordTokenizer| {
            let ids = tokenizer.encode("a triangle left").unwrap();
            tokenizer.pieces(&ids).unwrap()
        };
        assert_eq!(first_tokens(&of(&words), 3), [0, 1, 2]);
        let pieces = of(&parts);
        assert!(pieces.len() > 4, "{pieces:?}");
        let first = first_tokens(&pieces, 3);
        assert_eq!(first[..2], [0, 1]);
        assert!(pieces[first[2]].text.starts_with('l'), "{pieces:?}");
        assert!(first_tokens(&pieces, 2).is_empty());
        assert!(first_tokens(&[], 0).is_empty());
    }
}
