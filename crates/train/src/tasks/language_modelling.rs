//! The task of language modelling: the next token of a text, or tokens behind masks; cross-entropy.
//!
//! | objective | a training text `w_1 .. w_n` is read as | and predicts |
//! |---|---|---|
//! | causal, parts of a file | `w_1 .. w_{n-1}` | `w_2 .. w_n` |
//! | causal, lines | `<s> w_1 .. w_n` | `w_1 .. w_n </s>` |
//! | masked (Devlin 2018, section 3.1) | `w` with some tokens replaced (of lines: `<s> w_1 .. w_n </s>`) | the tokens that were chosen |
//!
//! Parts of a file begin at other places in every update: they are shifted together by a number that follows from (seed, update).

use std::{ops::Range, path::PathBuf};

use burn::tensor::{Device, Tensor, TensorData};
use regard_config::Check;
use regard_models::{
    AnyTextModel, Objective, RoleOf, TextBatch, Vocabulary,
    language::TransformerLmConfig,
    pretrained::{self, SpecialIds},
    role::TextProperties,
};
use regard_nn::{dropout::DropoutRng, mask::PaddingMask};
use regard_trace::{AttentionMap, Kind, Trace};
use serde::{Deserialize, Serialize};

use super::{
    BatchLoss, Contents, Describe, OF_IMAGES, OF_TRANSLATION, Task, Term, Update, Verdict,
    fingerprint, known_tokenizers,
};
use crate::{
    corpus::{Batches, CorpusError, FilterReport, PlainText, Random},
    error::TrainError,
    learner::events::Quality,
    model_file::{
        Header, Metadata, ModelFileError, entry, expect_table, json_entry, tokenizers,
        tokenizers_entry,
    },
    ranks::Ranks,
    recipe::{Measure, Model, Recipe, TextData, Texts, Training},
    tokenizer::{SubwordTokenizer, TokenizerPair},
    translator::axis,
};

const TEXT: &str = "regard.text";

/// Models of text.
#[derive(Debug, Clone, Copy)]
pub struct LanguageModelling(RoleOf<AnyTextModel>);

impl LanguageModelling {
    fn form(&self, model: &Model, tokenizer: &SubwordTokenizer, texts: Texts) -> TextForm {
        let TextProperties { objective, context } = self.0.of(&*model.config).properties();
        let masks = ["<mask>", "[MASK]"];
        TextForm {
            texts,
            objective,
            context,
            mask: masks.iter().find_map(|name| tokenizer.id(name)),
        }
    }
}

/// The content of a language model's file apart from the weights.
#[derive(Debug, Clone)]
pub struct Description {
    /// The architecture.
    pub model: Model,
    /// Text to ids; a language model has one tokenizer, which stands for both sides.
    pub tokenizers: TokenizerPair,
    /// What its texts are.
    pub texts: TextForm,
}

impl Describe<AnyTextModel> for Description {
    fn model(&self) -> &Model {
        &self.model
    }

    fn sizes(&self) -> Vocabulary {
        self.tokenizers.source().vocabulary()
    }
}

impl Description {
    /// The tokenizer as pretrained models have theirs: it puts the marks of a training text around a text, and knows which token ends
    /// one. Errors call it `name`.
    ///
    /// # Errors
    /// A tokenizer of another library than `tokenizers`.
    pub fn tokenizer(&self, name: &str) -> Result<pretrained::Tokenizer, TrainError> {
        let learned = self.tokenizers.source();
        let Some(document) = learned.document() else {
            return Err(TrainError::OwnTokenizer);
        };
        let Vocabulary {
            padding,
            start,
            end,
            ..
        } = learned.vocabulary();
        let lines = self.texts.texts == Texts::Lines;
        let masked = self.texts.objective == Objective::Masked;
        let special = SpecialIds {
            bos: lines.then_some(start),
            eos: if lines { vec![end] } else { vec![] },
            pad: Some(padding),
            mask: self.texts.mask,
            unk: learned.id("<unk>"),
            ..SpecialIds::default()
        };
        let around = [lines.then_some(start), (lines && masked).then_some(end)];
        let tokenizer = pretrained::Tokenizer::trained(document, special, around, name);
        tokenizer.map_err(|error| TrainError::Task(Box::new(error)))
    }
}

/// What the metadata of a file say of its texts; all else follows from the architecture and the tokenizer.
#[derive(Serialize, Deserialize)]
struct StoredTexts {
    texts: Texts,
}

/// What the texts of a language model are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct TextForm {
    /// Parts of a file, or lines between marks.
    pub texts: Texts,
    /// What is predicted.
    pub objective: Objective,
    /// Tokens of a training text.
    pub context: usize,
    /// The token of masks, if there is one.
    pub mask: Option<u32>,
}

/// Texts as ids.
#[derive(Debug)]
pub struct Data {
    train: Encoded,
    filtered: FilterReport,
    validation: Encoded,
}

/// The texts of a part of the data.
#[derive(Debug)]
struct Encoded {
    /// The file's tokens, or those of each line.
    ids: Vec<Vec<u32>>,
    /// The bytes that they stand for.
    bytes: usize,
    form: TextForm,
    /// The share of tokens behind masks, of a masked model.
    masked: f64,
    /// What the masks of a validation follow from.
    seed: u64,
    batches: Batches,
}

impl Encoded {
    fn new(
        text: &PlainText,
        tokenizer: &SubwordTokenizer,
        form: TextForm,
        recipe: &Recipe,
    ) -> Result<(Self, FilterReport), CorpusError> {
        let mut bytes = text.bytes();
        let mut report = FilterReport::default();
        // Marks count too.
        let room = form.context.saturating_sub(form.marks());
        let ids = match form.texts {
            Texts::File => vec![text.encode(tokenizer)?],
            Texts::Lines => {
                let mut lines = text.encode_lines(tokenizer)?;
                bytes = 0;
                for (ids, line) in lines.iter_mut().zip(text.lines()) {
                    if ids.len() > room {
                        ids.truncate(room);
                        report.cut += 1;
                        bytes += tokenizer.decode(ids)?.len() + 1;
                    } else if !ids.is_empty() {
                        bytes += line.len() + 1;
                    }
                }
                let all = lines.len();
                lines.retain(|ids| !ids.is_empty());
                report.empty = all - lines.len();
                lines
            }
        };
        let lengths: Vec<(usize, usize)> = match form.texts {
            Texts::File => {
                let parts = form.parts(ids[0].len());
                vec![(form.context.min(ids[0].len()), 0); parts]
            }
            Texts::Lines => ids
                .iter()
                .map(|line| (line.len() + form.marks(), 0))
                .collect(),
        };
        report.kept = lengths.len();
        if lengths.is_empty() {
            return Err(CorpusError::NothingLeft { report });
        }
        let encoded = Self {
            batches: Batches::of_lengths(lengths, recipe.batch.budget())?,
            ids,
            bytes,
            form,
            masked: recipe.data.text.as_ref().map_or(0.0, |text| text.masked),
            seed: recipe.training.seed,
        };
        Ok((encoded, report))
    }

    /// The tokens of the text at `row`, with its marks and, of a causal model, one more than it reads; parts of a file begin
    /// `shift` tokens later, if there are as many.
    fn text(&self, row: usize, shift: usize, vocabulary: &Vocabulary) -> Vec<u32> {
        match self.form.texts {
            Texts::File => {
                let (ids, length) = (&self.ids[0], self.form.span());
                let start = row * self.form.context + shift;
                let start = start.min(ids.len().saturating_sub(length));
                ids[start..ids.len().min(start + length)].to_vec()
            }
            Texts::Lines => {
                let marks = [vocabulary.start, vocabulary.end];
                [&marks[..1], &self.ids[row], &marks[1..]].concat()
            }
        }
    }

    /// What the model reads and should predict of the texts at `rows`.
    fn pairs(
        &self,
        rows: &[usize],
        shift: usize,
        vocabulary: &Vocabulary,
        random: &mut Random,
    ) -> Vec<(Vec<u32>, Vec<u32>)> {
        let texts = rows.iter().map(|&row| self.text(row, shift, vocabulary));
        texts
            .map(|text| match (self.form.objective, self.form.mask) {
                (Objective::Masked, Some(mask)) => {
                    let chance = Masking {
                        share: self.masked,
                        mask,
                    };
                    chance.apply(text, vocabulary, random)
                }
                _ => (text[..text.len() - 1].to_vec(), text[1..].to_vec()),
            })
            .collect()
    }

    /// What the model reads and should predict of the texts at the places `share` of `rows`, and how many tokens it reads and predicts.
    fn batch(
        &self,
        rows: &[usize],
        share: Range<usize>,
        shift: usize,
        vocabulary: &Vocabulary,
        random: &mut Random,
        device: &Device,
    ) -> (TextBatch, [usize; 2]) {
        let pairs = self.pairs(rows, shift, vocabulary, random);
        let own = &pairs[share.clone()];
        let read = own.iter().map(|(read, _)| read.len()).sum();
        let counted = |id: &&u32| **id != vocabulary.padding;
        let predicted = own.iter().map(|(_, to)| to.iter().filter(counted).count());
        let predicted = predicted.sum();
        (
            TextBatch::new(&pairs, vocabulary, device).rows(share),
            [read, predicted],
        )
    }
}

impl TextForm {
    /// The marks around a line; of a causal model one of them is only predicted.
    fn marks(&self) -> usize {
        match self.objective {
            Objective::Causal => 1,
            Objective::Masked => 2,
        }
    }

    /// The tokens that a part of a file takes.
    fn span(&self) -> usize {
        match self.objective {
            Objective::Causal => self.context + 1,
            Objective::Masked => self.context,
        }
    }

    /// How many parts a file of `tokens` has.
    fn parts(&self, tokens: usize) -> usize {
        let last = tokens.saturating_sub(self.span() - self.context);
        match last {
            0 => 0,
            last => (last / self.context).max(1),
        }
    }
}

/// Which tokens are to be guessed, and what stands in their place.
struct Masking {
    /// The share of tokens.
    share: f64,
    mask: u32,
}

impl Masking {
    /// `text` with some tokens replaced, and the tokens that were there, padding elsewhere. At least one token is chosen, and never
    /// a mark.
    fn apply(
        &self,
        text: Vec<u32>,
        vocabulary: &Vocabulary,
        random: &mut Random,
    ) -> (Vec<u32>, Vec<u32>) {
        let is_mark = |id| [vocabulary.padding, vocabulary.start, vocabulary.end].contains(&id);
        let mut places: Vec<usize> = (0..text.len()).filter(|&at| !is_mark(text[at])).collect();
        random.shuffle(&mut places);
        let count = (self.share * places.len() as f64).round() as usize;
        places.truncate(count.max(1));
        let (mut read, mut predicted) = (text.clone(), vec![vocabulary.padding; text.len()]);
        for at in places {
            predicted[at] = text[at];
            match random.uniform() {
                chance if chance < 0.8 => read[at] = self.mask,
                chance if chance < 0.9 => read[at] = random.below(vocabulary.size) as u32,
                _ => {}
            }
        }
        (read, predicted)
    }
}

impl Task for LanguageModelling {
    const MODEL: &'static str = "a language model";
    const DOES: &'static str = "models text";
    const UNREAD: &'static [&'static [&'static str]] =
        &[OF_TRANSLATION, OF_IMAGES, &["data.filter", "data.labelled"]];
    const BY_LOSS: bool = true;
    const PERPLEXITY: bool = true;
    type Model = AnyTextModel;
    type Description = Description;
    type Data = Data;

    fn of(role: RoleOf<AnyTextModel>) -> Self {
        Self(role)
    }

    fn role(&self) -> RoleOf<AnyTextModel> {
        self.0
    }

    fn example(&self, recipe: &mut Recipe) {
        recipe.data.text = Some(TextData {
            train: Some(PathBuf::from("data/train.txt")),
            ..TextData::default()
        });
    }

    fn check(&self, recipe: &Recipe, check: &mut Check) {
        let data = &recipe.data;
        match &data.text {
            Some(TextData { train: Some(_), .. }) => {}
            _ => {
                let expected = "a section [data.text] with train, a file of plain text";
                check.fail("data.text", "missing", expected);
            }
        }
        if let Some(measure @ (Measure::Bleu | Measure::Accuracy)) = recipe.validation.measure {
            let found = format!("found {measure:?}").to_lowercase();
            check.fail(
                "validation.measure",
                found,
                "\"loss\" for this kind of model",
            );
        }
        let config = self.0.of(&*recipe.model.config).properties();
        if let Some(text) = &data.text {
            let default = TextData::default();
            if config.objective == Objective::Causal && text.masked != default.masked {
                let expected = "no such key: the model's objective is \"causal\"";
                check.fail(
                    "data.text.masked",
                    format!("found {}", text.masked),
                    expected,
                );
            }
            let finished = recipe.training.start.is_some() || data.tokenizer.is_some();
            if finished && text.units != default.units {
                let expected = "no such key beside training.start or data.tokenizer, which say what a token is";
                check.fail("data.text.units", "set", expected);
            }
        }
        let texts = data.text.as_ref().map(|text| text.texts);
        let (least, expected) = match (config.objective, texts) {
            (Objective::Masked, Some(Texts::Lines)) => {
                (3, "at least 3: a token and the marks around a line")
            }
            _ => (2, "at least 2"),
        };
        let context = config.context;
        check.require(context >= least, "model.context", context, expected);
    }

    fn load(
        &self,
        recipe: &Recipe,
        former: Option<Description>,
        tokenizers: Option<TokenizerPair>,
    ) -> Result<(Data, Description), TrainError> {
        let former = former.map(|former| former.tokenizers);
        let known = known_tokenizers(recipe, former, tokenizers)?;
        let settings = recipe.data.text.as_ref().ok_or(TrainError::NoData)?;
        let [train, valid] = settings.load()?.ok_or(TrainError::NoData)?;
        let tokenizers = match known {
            Some(known) => known,
            None => {
                let size = recipe.data.vocabulary.size;
                let texts = match settings.texts {
                    Texts::File => train.blocks(),
                    Texts::Lines => train.lines().to_vec(),
                };
                let lowercase = recipe.data.lowercase;
                let units = settings.units;
                let learned = SubwordTokenizer::learn_units(&texts, units, size, lowercase)?;
                TokenizerPair::joint(learned)
            }
        };
        let tokenizer = tokenizers.source();
        let form = self.form(&recipe.model, tokenizer, settings.texts);
        if form.objective == Objective::Masked && form.mask.is_none() {
            return Err(TrainError::NoMask);
        }
        let encoded = |text: &PlainText, name| {
            Encoded::new(text, tokenizer, form, recipe).map_err(|error| error.of(name))
        };
        let (train, filtered) = encoded(&train, "the training text")?;
        let (validation, _) = encoded(&valid, "the validation text")?;
        let data = Data {
            train,
            filtered,
            validation,
        };
        let description = Description {
            model: recipe.model.clone(),
            tokenizers,
            texts: form,
        };
        Ok((data, description))
    }

    fn metadata(&self, description: &Description) -> Metadata {
        let vocabulary = description.tokenizers.source().vocabulary();
        Metadata::from([
            Header::entry(&description.model, &vocabulary),
            tokenizers_entry(&description.tokenizers),
            entry(
                TEXT,
                &StoredTexts {
                    texts: description.texts.texts,
                },
            ),
        ])
    }

    fn describe(
        &self,
        header: Header,
        metadata: &Metadata,
        name: &str,
    ) -> Result<Description, ModelFileError> {
        let vocabulary: Vocabulary = header.sizes(name)?;
        let tokenizers = tokenizers(metadata, name)?;
        expect_table("source", tokenizers.source(), vocabulary, name)?;
        let StoredTexts { texts } = json_entry(metadata, TEXT, name)?;
        Ok(Description {
            texts: self.form(&header.model, tokenizers.source(), texts),
            model: header.model,
            tokenizers,
        })
    }

    fn fingerprint(&self, data: &Data) -> Result<u64, TrainError> {
        Ok(fingerprint(data.train.ids.iter().map(Vec::as_slice)))
    }

    /// Also of how the texts are judged: of the length of a file's parts, and of the masks. What is usual adds nothing, so that runs of
    /// before keep their hash.
    fn validation_fingerprint(&self, data: &Data) -> Result<u64, TrainError> {
        let set = &data.validation;
        let words = |number: u64| [number as u32, (number >> 32) as u32];
        let mut settings: Vec<u32> = vec![];
        let context = set.form.context;
        if set.form.texts == Texts::File && context != TransformerLmConfig::default().context {
            settings.extend(words(context as u64));
        }
        let masks = |masked: f64, seed| [masked.to_bits(), seed];
        let own = masks(set.masked, set.seed);
        let usual = masks(TextData::default().masked, Training::default().seed);
        if set.form.objective == Objective::Masked && own != usual {
            settings.extend(own.into_iter().flat_map(words));
        }
        let settings = (!settings.is_empty()).then_some(&settings[..]);
        let ids = set.ids.iter().map(Vec::as_slice);
        Ok(fingerprint(ids.chain(settings)))
    }

    fn contents<'a>(&self, data: &'a Data, description: &'a Description) -> Contents<'a> {
        Contents {
            examples: "texts",
            tokenizers: Some(&description.tokenizers),
            batches: &data.train.batches,
            filtered: &data.filtered,
            validation: data.validation.batches.len(),
        }
    }

    fn loss(
        &self,
        data: &Data,
        model: &AnyTextModel,
        update: &Update<'_>,
    ) -> Result<BatchLoss, TrainError> {
        let settings = &update.recipe.training;
        let mut random = Random::new(&[settings.seed, update.step]);
        let mut noise = update.noise(random.next_u64());
        let vocabulary = model.vocabulary();
        let shift = random.below(data.train.form.context);
        let (batch, [tokens, _]) = data.train.batch(
            update.rows,
            update.share.clone(),
            shift,
            &vocabulary,
            &mut random,
            update.training,
        );
        let scored = model.forward(batch.inputs, &batch.keep, &mut noise);
        let scored = scored.cross_entropy(batch.outputs, settings.label_smoothing);
        Ok(BatchLoss {
            terms: vec![Term::new(scored.loss, scored.tokens)],
            negative_log_likelihood: scored.nll,
            predictions: scored.tokens,
            tokens,
            baseline: None,
        })
    }

    /// Masks are the same at every validation.
    fn validate(
        &self,
        data: &Data,
        _description: &Description,
        model: &AnyTextModel,
        _recipe: &Recipe,
        device: &Device,
        ranks: &dyn Ranks,
    ) -> Result<Option<Verdict>, TrainError> {
        let set = &data.validation;
        let vocabulary = model.vocabulary();
        let mut random = Random::new(&[set.seed, 0]);
        let batches = set.batches.sorted();
        let judged: Vec<(f64, usize)> = ranks.spread(&batches, |begin, own| {
            // The draws of masks follow each other.
            for rows in &batches[..begin] {
                drop(set.pairs(rows, 0, &vocabulary, &mut random));
            }
            let judge = |rows: &Vec<usize>| {
                let all = 0..rows.len();
                let (batch, [_, predicted]) =
                    set.batch(rows, all, 0, &vocabulary, &mut random, device);
                let scored = model.forward(batch.inputs, &batch.keep, &mut DropoutRng::none());
                (scored.cross_entropy(batch.outputs, 0.0).nll, predicted)
            };
            Ok::<_, TrainError>(own.iter().map(judge).collect())
        })?;
        let sum: f64 = judged.iter().map(|(sum, _)| sum).sum();
        let count: usize = judged.iter().map(|(_, count)| count).sum();
        let loss = sum / count.max(1) as f64;
        // Tokens that no part of the file holds count as the others.
        let all = match set.form.texts {
            Texts::File => set.ids[0].len(),
            Texts::Lines => count,
        };
        let bits = loss * all as f64 / (set.bytes.max(1) as f64 * std::f64::consts::LN_2);
        Ok(Some(Verdict {
            loss,
            quality: Quality::Likelihood {
                bits_per_byte: (set.form.objective == Objective::Causal).then_some(bits),
            },
            lines: vec![],
        }))
    }

    fn look(
        &self,
        data: &Data,
        description: &Description,
        model: &AnyTextModel,
        row: usize,
        device: &Device,
    ) -> Result<Option<Trace>, TrainError> {
        let set = &data.validation;
        if row >= set.batches.len() {
            return Ok(None);
        }
        let mut ids = set.text(row, 0, &model.vocabulary());
        let kind = match set.form.objective {
            Objective::Causal => {
                // The last one is only predicted.
                ids.pop();
                Kind::DecoderSelf
            }
            Objective::Masked => Kind::EncoderSelf,
        };
        let tokens = axis(description.tokenizers.source(), &ids, false)?;
        let length = ids.len();
        let keep = PaddingMask::from_lengths(&[length], length, device);
        let ids: Vec<i32> = ids.into_iter().map(|id| id as i32).collect();
        let ids = Tensor::from_data(TensorData::new(ids, [length, 1]), device); // [time, 1]
        let mut trace = Trace::new(description.model.kind, "", "");
        for (layer, weights) in model.look(ids, &keep).into_iter().enumerate() {
            let heads = weights.dims()[1]; // [1, heads, time, time]
            let weights = weights.into_data().iter::<f32>().collect();
            let (queries, keys) = (tokens.clone(), tokens.clone());
            let map = match model.is_normalized() {
                true => AttentionMap::new(kind, queries, keys, heads, weights),
                false => AttentionMap::unnormalized(kind, queries, keys, heads, weights),
            };
            trace = trace.with_map(map.map_err(TrainError::look)?.at_layer(layer));
        }
        Ok(Some(trace))
    }
}
