//! The task of captioning: images with sentences, teacher forcing, BLEU and the share of sentences that are exact.
//!
//! Scenes are drawn when a batch needs them, so that their number costs no memory. Images of files are decoded on all threads and kept as
//! bytes in the model's size as far as memory allows; each of their captions is an example of its own. Of words that speak of a known
//! object (those of scenes) the share of attention inside it is measured too ([`Looking`](regard_evaluate::Looking)).

use std::{borrow::Cow, ops::Range, path::Path};

use burn::tensor::Device;
use rayon::prelude::*;
use regard_config::Check;
use regard_images::{
    Image, ImagesError, Normalize,
    data::{Example, coco_captions},
};
use regard_models::{
    RoleOf, TargetBatch,
    image::{Captioner, CaptionerSizes},
};
use regard_trace::Trace;
use serde::{Deserialize, Serialize};

use super::{
    BatchLoss, Contents, Describe, Fingerprint, Task, Term, Update, Verdict, known_tokenizers,
    reward,
};
use crate::{
    captioner::{CaptionedImages, Description, ImageCaptioner, pixels, plain},
    corpus::{Batches, CorpusError, FilterReport, Random},
    error::TrainError,
    image_classifier::Preparation,
    learner::events::Quality,
    model_file::{
        Header, Metadata, ModelFileError, entry, expect_no_problem, expect_table, json_entry,
        tokenizers, tokenizers_entry,
    },
    ranks::Ranks,
    recipe::{self, CaptionData, Filter, Measure, Recipe, SceneData, Split, Vocabulary},
    tokenizer::{SubwordTokenizer, TokenizerPair},
};

const CAPTIONS: &str = "regard.captions";
const SEARCH: &str = "regard.translate";

/// Scenes whose captions give the words, and images that give mean and deviation of the pixels.
const LEARNED_FROM: usize = 4_000;
const MEASURED: usize = 500;

/// Models that write captions.
#[derive(Debug, Clone, Copy)]
pub struct Captioning(RoleOf<Captioner>);

/// Images with captions.
#[derive(Debug)]
pub struct Data {
    train: CaptionedImages,
    /// The image and the number of the caption of each example, for files; scenes have one caption each.
    pairs: Vec<(usize, usize)>,
    batches: Batches,
    filtered: FilterReport,
    validation: Option<CaptionedImages>,
    tokenizers: TokenizerPair,
    preparation: Preparation,
}

/// Images, and the tokens of captions.
type Examples<'a> = (Vec<Cow<'a, Image>>, Vec<Vec<u32>>);

impl Data {
    /// The images of the examples in the `share` of `rows`, and the captions of all.
    fn examples(&self, rows: &[usize], share: Range<usize>) -> Result<Examples<'_>, ImagesError> {
        let target = self.tokenizers.target();
        let ids = |text: &str| {
            let ids = target.encode(&plain(text));
            ids.expect("learned words encode any text")
        };
        match &self.train {
            CaptionedImages::Scenes(_) => {
                let made = rows.par_iter().map(|&row| {
                    let example = self.train.example(row)?;
                    Ok((pixels(&example).clone(), ids(&example.captions[0].text)))
                });
                let made = made.collect::<Result<Vec<_>, ImagesError>>()?;
                let (images, ids): (Vec<_>, _) = made.into_iter().unzip();
                let own = images.into_iter().skip(share.start).take(share.len());
                Ok((own.map(Cow::Owned).collect(), ids))
            }
            CaptionedImages::Files { images, captions } => {
                let own: Vec<usize> = rows[share].iter().map(|&row| self.pairs[row].0).collect();
                let ids = rows.par_iter().map(|&row| {
                    let (image, caption) = self.pairs[row];
                    ids(&captions[image][caption].text)
                });
                Ok((images.all(&own)?, ids.collect()))
            }
        }
    }
}

/// What the metadata of a file say of its images and their data.
#[derive(Serialize, Deserialize)]
struct Stored {
    mean: Vec<f32>,
    deviation: Vec<f32>,
    scenes: Option<SceneData>,
    seed: u64,
}

impl Captioning {
    /// The images of a part of the data that `recipe` names, in its size, and how many were left out; `None` if it names none.
    ///
    /// # Errors
    /// Files that are wrong; [`TrainError::NoImages`].
    pub fn part(
        recipe: &Recipe,
        split: Split,
    ) -> Result<Option<(CaptionedImages, FilterReport)>, TrainError> {
        if let Some(scenes) = &recipe.data.scenes {
            let set = scenes.part(split, recipe.training.seed);
            let filtered = FilterReport {
                kept: set.len(),
                ..FilterReport::default()
            };
            return Ok(Some((CaptionedImages::Scenes(set), filtered)));
        }
        let settings = recipe.data.captions.as_ref().ok_or(TrainError::NoData)?;
        match settings.paths(split) {
            Some((captions, images)) => {
                let (images, filtered) = read(captions, images, settings)?;
                if images.is_empty() {
                    return Err(TrainError::NoImages {
                        key: match split {
                            Split::Train => "data.captions.train",
                            Split::Valid => "data.captions.valid",
                            Split::Test => "data.captions.test",
                        },
                        broken: filtered.broken,
                        expected: "images with captions (annotations), which can be read",
                    });
                }
                Ok(Some((images, filtered)))
            }
            None => Ok(None),
        }
    }
}

/// Decodes the images of a file of captions; those without a caption are left out, and counted as empty.
fn read(
    captions: &Path,
    images: &Path,
    settings: &CaptionData,
) -> Result<(CaptionedImages, FilterReport), TrainError> {
    let dataset = coco_captions(captions, images, settings.broken())?;
    let mut filtered = FilterReport {
        broken: dataset.skipped.len(),
        ..FilterReport::default()
    };
    let said = |example: &Example| {
        example
            .captions
            .iter()
            .any(|one| !plain(&one.text).is_empty())
    };
    let all = dataset.examples.len();
    let examples: Vec<Example> = dataset.examples.into_iter().filter(said).collect();
    filtered.empty = all - examples.len();
    let (count, size) = (examples.len(), settings.size);
    let decoding = regard_images::Decoding {
        channels: regard_images::Channels::Colour,
        ..regard_images::Decoding::default()
    };
    let (broken, memory) = (settings.broken(), settings.memory);
    let (images, captions, left_out) = super::decoded(count, broken, memory, move |index| {
        let example = &examples[index];
        let image = example.image(&decoding)?.fitted(size, size)?;
        let mut captions = example.captions.clone();
        captions.retain(|one| !plain(&one.text).is_empty());
        Ok((image, captions))
    })?;
    filtered.broken += left_out;
    filtered.kept = images.len();
    Ok((CaptionedImages::Files { images, captions }, filtered))
}

impl Task for Captioning {
    const MODEL: &'static str = "a captioner";
    const DOES: &'static str = "writes captions of images";
    const UNREAD: &'static [&'static [&'static str]] = &[&[
        "data.source_language",
        "data.target_language",
        "data.train_source",
        "data.train_target",
        "data.valid_source",
        "data.valid_target",
        "data.test_source",
        "data.test_target",
        "data.lowercase",
        "data.vocabulary.joint",
        "data.vocabulary.dropout",
        "data.tokenizer",
        "data.target_tokenizer",
        "data.synthetic",
        "data.labelled",
        "data.text",
        "data.images",
        "data.questions",
        "data.objects",
        "data.filter.max_words",
        "data.filter.max_ratio",
        "data.filter.long_lines",
        "batch.tokens",
        "batch.pool",
        "training.scheduled_sampling",
        "training.guided_attention",
        "validation.tokenizer",
        "validation.lowercase",
        "translate.max_source_tokens",
        "translate.long_lines",
        "translate.max_length.factor",
        "translate.max_length.extra",
    ]];
    const PERPLEXITY: bool = true;
    type Model = Captioner;
    type Description = Description;
    type Data = Data;

    fn of(role: RoleOf<Captioner>) -> Self {
        Self(role)
    }

    fn role(&self) -> RoleOf<Captioner> {
        self.0
    }

    fn example(&self, recipe: &mut Recipe) {
        recipe.data.scenes = Some(SceneData::default());
        recipe.translate.max_length.absolute = 30;
    }

    fn check(&self, recipe: &Recipe, check: &mut Check) {
        let files = recipe.data.captions.as_ref();
        match (&recipe.data.scenes, files.map(|files| &files.train)) {
            (None, None) => check.fail(
                "data.scenes",
                "missing",
                "a section [data.scenes], or [data.captions] with train and train_images, which a captioner learns from",
            ),
            (None, Some(None)) => {
                check.fail("data.captions.train", "missing", "a file of captions");
            }
            (Some(_), Some(_)) => {
                let expected = "scenes or files, not both";
                check.fail("data.captions", "set together with data.scenes", expected);
            }
            (Some(_), None) | (None, Some(Some(_))) => {}
        }
        if recipe.data.scenes.is_some() {
            let (size, most) = (recipe.data.vocabulary.size, recipe.data.filter.max_tokens);
            let usual = Vocabulary::default().size;
            let expected = format!("{usual} with [data.scenes], whose words are learned whole");
            check.require(size == usual, "data.vocabulary.size", size, &expected);
            let usual = Filter::default().max_tokens;
            let expected = format!("{usual} with [data.scenes], whose captions are never left out");
            check.require(most == usual, "data.filter.max_tokens", most, &expected);
        }
        if recipe.validation.measure == Some(Measure::Accuracy) {
            let expected = "\"bleu\" or \"loss\" for this kind of model";
            check.fail("validation.measure", "found \"accuracy\"", expected);
        }
    }

    fn load(
        &self,
        recipe: &Recipe,
        former: Option<Description>,
        tokenizers: Option<TokenizerPair>,
    ) -> Result<(Data, Description), TrainError> {
        let (former, preparation) = former
            .map(|former| (former.tokenizers, former.preparation))
            .unzip();
        let known = known_tokenizers(recipe, former, tokenizers)?;
        if let Some(settings) = &recipe.data.captions
            && let Some((captions, images)) = settings.paths(Split::Test)
        {
            // What is wrong with test data is told now, not after training.
            coco_captions(captions, images, settings.broken())?;
        }
        let part = Self::part(recipe, Split::Train)?;
        let (train, mut filtered) = part.ok_or(TrainError::NoData)?;
        let tokenizers = match known {
            Some(known) => known,
            None => learned(&train, recipe.data.vocabulary.size)?,
        };
        let preparation = match preparation {
            Some(preparation) => preparation,
            None => prepared(&train)?,
        };
        preparation.expect_form(train.form())?;
        let mut pairs = vec![];
        let lengths = match &train {
            CaptionedImages::Scenes(scenes) => vec![(1, 0); scenes.len()],
            CaptionedImages::Files { captions, .. } => {
                let mut lengths = vec![];
                for (image, captions) in captions.iter().enumerate() {
                    for (caption, phrase) in captions.iter().enumerate() {
                        let length = tokenizers.target().encode(&plain(&phrase.text))?.len();
                        match length <= recipe.data.filter.max_tokens {
                            true => {
                                pairs.push((image, caption));
                                lengths.push((1, length + 1));
                            }
                            false => filtered.too_long += 1,
                        }
                    }
                }
                filtered.kept = pairs.len();
                lengths
            }
        };
        if lengths.is_empty() {
            let (most, all) = (recipe.data.filter.max_tokens, filtered.too_long);
            let problem = format!("found {most}, but all {all} captions are longer; raise it");
            let field = "data.filter.max_tokens";
            return Err(CorpusError::Setting { field, problem }.into());
        }
        let description = Description {
            model: recipe.model.clone(),
            tokenizers: tokenizers.clone(),
            preparation: preparation.clone(),
            search: recipe.translate.clone(),
            scenes: recipe
                .data
                .scenes
                .clone()
                .map(|scenes| (scenes, recipe.training.seed)),
        };
        let validation = match Self::part(recipe, Split::Valid)? {
            Some((images, read)) => {
                filtered.broken += read.broken;
                filtered.empty += read.empty;
                Some(images)
            }
            None => None,
        };
        let data = Data {
            batches: Batches::of_lengths(lengths, recipe.batch.budget())?,
            train,
            pairs,
            filtered,
            validation,
            tokenizers,
            preparation,
        };
        Ok((data, description))
    }

    fn metadata(&self, description: &Description) -> Metadata {
        let normalize = &description.preparation.normalize;
        let (scenes, seed) = description.scenes.clone().unzip();
        let stored = Stored {
            mean: normalize.mean().to_vec(),
            deviation: normalize.deviation().to_vec(),
            scenes,
            seed: seed.unwrap_or_default(),
        };
        Metadata::from([
            Header::entry(&description.model, &description.sizes()),
            tokenizers_entry(&description.tokenizers),
            entry(SEARCH, &description.search),
            entry(CAPTIONS, &stored),
        ])
    }

    fn describe(
        &self,
        header: Header,
        metadata: &Metadata,
        name: &str,
    ) -> Result<Description, ModelFileError> {
        let sizes: CaptionerSizes = header.sizes(name)?;
        let tokenizers = tokenizers(metadata, name)?;
        expect_table("target", tokenizers.target(), sizes.vocabulary, name)?;
        let search: recipe::Translation = json_entry(metadata, SEARCH, name)?;
        let stored: Stored = json_entry(metadata, CAPTIONS, name)?;
        let mut check = Check::default();
        check.table("translate", &search);
        if let Some(scenes) = &stored.scenes {
            check.table("data.scenes", scenes);
        }
        expect_no_problem(check, name)?;
        let numbers = [stored.mean, stored.deviation];
        let preparation = Preparation::stored(CAPTIONS, sizes.size, sizes.channels, numbers, name)?;
        Ok(Description {
            model: header.model,
            tokenizers,
            preparation,
            search,
            scenes: stored.scenes.map(|scenes| (scenes, stored.seed)),
        })
    }

    fn fingerprint(&self, data: &Data) -> Result<u64, TrainError> {
        images_fingerprint(&data.train)
    }

    fn validation_fingerprint(&self, data: &Data) -> Result<u64, TrainError> {
        data.validation.as_ref().map_or(Ok(0), images_fingerprint)
    }

    fn contents<'a>(&self, data: &'a Data, description: &'a Description) -> Contents<'a> {
        Contents {
            examples: "captions",
            tokenizers: Some(&description.tokenizers),
            batches: &data.batches,
            filtered: &data.filtered,
            validation: data.validation.as_ref().map_or(0, CaptionedImages::len),
        }
    }

    fn ahead(&self, data: &Data, rows: &[usize]) -> Result<(), TrainError> {
        match &data.train {
            CaptionedImages::Scenes(_) => Ok(()),
            CaptionedImages::Files { images, .. } => {
                let rows: Vec<usize> = rows.iter().map(|&row| data.pairs[row].0).collect();
                Ok(images.ahead(&rows)?)
            }
        }
    }

    fn loss(
        &self,
        data: &Data,
        model: &Captioner,
        update: &Update<'_>,
    ) -> Result<BatchLoss, TrainError> {
        let settings = &update.recipe.training;
        let mut noise = update.noise(Random::new(&[settings.seed, update.step]).next_u64());
        let share = &update.share;
        // The captions of all, as they are padded to the longest one of the batch.
        let (images, ids) = data.examples(update.rows, share.clone())?;
        let target = TargetBatch::new(&ids, &model.vocabulary(), update.training);
        let target = target.rows(share.clone());
        let images = data.preparation.tensor(&images, update.training);
        let scored = model.forward(images, &target, &mut noise);
        let reinforced = scored.reinforced(&target, update.baseline);
        let weights = scored.weights.as_ref();
        let penalty = weights.and_then(|weights| model.penalty(weights, &target));
        let batch = scored.cross_entropy(target.outputs, settings.label_smoothing);
        let loss = match penalty {
            Some(penalty) => batch.loss + penalty,
            None => batch.loss,
        };
        let (reward, baseline) = reward(reinforced, share.len());
        let loss = Term::new(loss, batch.tokens);
        Ok(BatchLoss {
            terms: [loss].into_iter().chain(reward).collect(),
            negative_log_likelihood: batch.nll,
            predictions: batch.tokens,
            tokens: batch.tokens,
            baseline,
        })
    }

    fn validate(
        &self,
        data: &Data,
        description: &Description,
        model: &Captioner,
        recipe: &Recipe,
        device: &Device,
        ranks: &dyn Ranks,
    ) -> Result<Option<Verdict>, TrainError> {
        let Some(images) = data.validation.as_ref().filter(|images| !images.is_empty()) else {
            return Ok(None);
        };
        let settings = &recipe.validation;
        let search = recipe::Translation {
            beam: settings.beam,
            n_best: 1,
            batch_sentences: settings.batch_sentences,
            ..description.search.clone()
        };
        let captioner = ImageCaptioner::new(model.clone(), description.clone(), device);
        let count = settings.max_sentences.unwrap_or(usize::MAX);
        let judged = captioner.judge(images, count, &search, ranks)?;
        let looked = judged.looking.looks > 0;
        Ok(Some(Verdict {
            loss: judged.loss,
            quality: Quality::Captions {
                bleu: judged.scores.bleu[3],
                cider_d: judged.scores.cider_d,
                exact: judged.exact.share(),
                inside: looked.then(|| judged.looking.inside()),
                pointing: looked.then(|| judged.looking.pointing()),
            },
            lines: judged.captions,
        }))
    }

    fn look(
        &self,
        data: &Data,
        description: &Description,
        model: &Captioner,
        row: usize,
        device: &Device,
    ) -> Result<Option<Trace>, TrainError> {
        let Some(images) = data.validation.as_ref().filter(|set| row < set.len()) else {
            return Ok(None);
        };
        let captioner = ImageCaptioner::new(model.clone(), description.clone(), device);
        let greedy = recipe::Translation {
            beam: 1,
            n_best: 1,
            ..description.search.clone()
        };
        let image = pixels(&images.example(row)?).clone();
        let found = captioner.caption(&[image], &greedy);
        let mut found = found.map_err(TrainError::look)?;
        Ok(Some(found.swap_remove(0).swap_remove(0).trace))
    }
}

/// The words of scenes; of files sub-words that fill a vocabulary of `size`.
fn learned(train: &CaptionedImages, size: usize) -> Result<TokenizerPair, TrainError> {
    match train {
        CaptionedImages::Scenes(_) => {
            let some = 0..train.len().min(LEARNED_FROM);
            let captions = some.into_par_iter().map(|index| {
                let mut example = train.example(index)?;
                Ok(example.captions.swap_remove(0).text)
            });
            let captions = captions.collect::<Result<Vec<_>, ImagesError>>()?;
            let words = SubwordTokenizer::learn_words(captions.iter(), false)?;
            Ok(TokenizerPair::joint(words))
        }
        CaptionedImages::Files { captions, .. } => {
            let captions = captions.iter().flatten();
            let captions: Vec<String> = captions.map(|one| plain(&one.text)).collect();
            let pieces = SubwordTokenizer::learn(captions.iter(), size, true)?;
            Ok(TokenizerPair::joint(pieces))
        }
    }
}

/// The size of the images, and mean and deviation of the pixels of some.
fn prepared(train: &CaptionedImages) -> Result<Preparation, TrainError> {
    if let CaptionedImages::Files { images, .. } = train {
        let [_, height, width] = images.form().ok_or(TrainError::NoData)?;
        return Ok(Preparation::new(
            [height, width],
            images.normalize(MEASURED)?,
        ));
    }
    let some = (0..train.len().min(MEASURED)).into_par_iter();
    let images = some.map(|index| Ok(pixels(&train.example(index)?).clone()));
    let images = images.collect::<Result<Vec<_>, ImagesError>>()?;
    let size = [images[0].height(), images[0].width()];
    Ok(Preparation::new(size, Normalize::of(&images)?))
}

/// A hash of images and captions.
fn images_fingerprint(images: &CaptionedImages) -> Result<u64, TrainError> {
    let mut hash = Fingerprint::new();
    // A word for each byte.
    let mut add = |bytes: &[u8]| hash.list(bytes.len(), bytes.iter().copied().map(u32::from));
    match images {
        // Everything follows from the configuration and the seed.
        CaptionedImages::Scenes(scenes) => add(format!("{scenes:?}").as_bytes()),
        CaptionedImages::Files { images, captions } => {
            images.each(|row, image| {
                let texts = captions[row].iter().map(|phrase| phrase.text.as_str());
                add(image.pixels());
                add(texts.collect::<Vec<_>>().join("\n").as_bytes());
            })?;
        }
    }
    Ok(hash.0)
}
