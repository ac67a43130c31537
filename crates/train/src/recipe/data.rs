//! `[data]`: the text, its vocabulary and what is left out.

use std::path::PathBuf;

use regard_config::{Check, FRACTION, Range, SIZE, config};
use regard_models::text::Units;
use serde::{Deserialize, Serialize};

use super::{CaptionData, ImageData, ObjectData, QuestionData, SceneData};
use crate::corpus::{
    CorpusError, LabelledText, LengthFilter, LongLines, ParallelText, PlainText, Random, Synthetic,
    Task,
};
use crate::tokenizer::{
    MINIMUM_VOCABULARY_SIZE, SpecialTokens, SubwordTokenizer, TokenizerError, TokenizerPair,
};

const VOCABULARY: Range<usize> = Range {
    holds: |size| size >= MINIMUM_VOCABULARY_SIZE && (SIZE.holds)(size),
    expected: "260 (the reserved tokens and the bytes) to 1048576",
};

const RATIO: Range<f64> = Range {
    holds: |ratio| ratio >= 1.0 && ratio.is_finite(),
    expected: "at least 1",
};

const SHARE: Range<f64> = Range {
    holds: |share| share > 0.0 && share < 1.0,
    expected: "above 0 and below 1",
};

const SENTENCES: Range<usize> = Range {
    holds: |sentences| (1..=10_000_000).contains(&sentences),
    expected: "1 to 10000000",
};

config! {
    /// What to train on, from files or a synthetic task; and how text becomes tokens.
    pub struct Data {
        /// Source language, as a tag such as "en"; for cards and pictures.
        source_language: String = "en".to_owned();
        /// Target language.
        target_language: String = "de".to_owned();
        /// Training text, source side: plain or gzip, one sentence a line. Paths are relative to
        /// the working directory.
        train_source: Option<PathBuf> = None, example "\"data/train.en.gz\"";
        /// Training text, target side: line i translates line i of the source.
        train_target: Option<PathBuf> = None, example "\"data/train.de.gz\"";
        /// Validation text, source side.
        valid_source: Option<PathBuf> = None, example "\"data/val.en.gz\"";
        /// Validation text, target side.
        valid_target: Option<PathBuf> = None, example "\"data/val.de.gz\"";
        /// Test text, source side, for `regard evaluate` and `compare`; training only looks whether it is in order.
        test_source: Option<PathBuf> = None, example "\"data/test.en.gz\"";
        /// Test text, target side.
        test_target: Option<PathBuf> = None, example "\"data/test.de.gz\"";
        /// Whether all text is put in lower case.
        lowercase: bool = false;
        /// Sub-word vocabulary, learned from the training text.
        [table] vocabulary: Vocabulary = Vocabulary::default();
        /// A finished tokenizer in place of a learned vocabulary: for both sides, unless the target has its own.
        [table] tokenizer: Option<TokenizerFile> = None;
        /// The target's own finished tokenizer.
        [table] target_tokenizer: Option<TokenizerFile> = None;
        /// Which training pairs are left out.
        [table] filter: Filter = Filter::default();
        /// A synthetic task, in place of the files.
        [table] synthetic: Option<SyntheticData> = None;
        /// Sentences with a label each, in place of the files: for the classifiers.
        [table] labelled: Option<LabelledData> = None;
        /// Plain text, in place of the files: for language models.
        [table] text: Option<TextData> = None;
        /// Images with a class each, in place of the files: for image classifiers.
        [table] images: Option<ImageData> = None;
        /// Drawn scenes, of which everything is known, in place of the files: for captions, questions and boxes.
        [table] scenes: Option<SceneData> = None;
        /// Questions about images, in place of the files: for models that answer them.
        [table] questions: Option<QuestionData> = None;
        /// Images whose objects are known, in place of the files: for detectors.
        [table] objects: Option<ObjectData> = None;
        /// Images of files with captions, in place of the files: for captions.
        [table] captions: Option<CaptionData> = None;
    }
    check Data::agree
}

config! {
    /// A file tokenizer.json of the Hugging Face library. The tokens that pad, start and end a sentence have to be named if the
    /// file has others than the usual ones.
    pub struct TokenizerFile {
        /// The file.
        path: Option<PathBuf> = None, example "\"tokenizer.json\"";
        /// The padding token; if left out, the file's own padding, <pad> or [PAD].
        padding: Option<String> = None, example "\"<pad>\"";
        /// The token that starts a target; if left out, <s>, [BOS], <bos> or [CLS].
        start: Option<String> = None, example "\"<s>\"";
        /// The token that ends a sentence; if left out, </s>, [EOS], <eos> or [SEP].
        end: Option<String> = None, example "\"</s>\"";
        /// The token for text that is not in the vocabulary; if left out, the file's own.
        unknown: Option<String> = None, example "\"<unk>\"";
    }
    check TokenizerFile::agree
}

config! {
    /// The sub-word vocabulary. The vocabulary of a synthetic task is its symbols.
    pub struct Vocabulary {
        /// Whether source and target share one vocabulary.
        joint: bool = true;
        /// Most tokens (of each vocabulary if there are two); at least 260.
        size: usize = 8000, in VOCABULARY;
        /// BPE-dropout (Provilkov et al. 2020), for translation: the share of merges left out, drawn anew at each update; 0.1 there.
        dropout: f64 = 0.0, in FRACTION;
    }
}

config! {
    /// Limits on the length of training pairs. Pairs with an empty side are always left out.
    pub struct Filter {
        /// Most tokens on either side, or of a caption; of a question about an image, most words.
        max_tokens: usize = 100, in SIZE;
        /// Most words on either side.
        max_words: Option<usize> = None, in SIZE, example "50";
        /// Largest ratio of the longer side to the shorter, in tokens.
        max_ratio: Option<f64> = None, in RATIO, example "4.0";
        /// A longer line: "drop" the pair, "cut" the line with a warning, or "error".
        long_lines: LongLines = LongLines::Drop;
    }
}

config! {
    /// A task whose true alignment is known. Its symbols are the vocabulary.
    pub struct SyntheticData {
        /// "copy", "reverse" or "sort".
        task: Task = Task::Reverse;
        /// Number of different symbols.
        symbols: usize = 26, in SIZE;
        /// Fewest symbols in a source.
        min_length: usize = 2, in SIZE;
        /// Most symbols in a source.
        max_length: usize = 12, in SIZE;
        /// Training pairs.
        sentences: usize = 10_000, in SENTENCES;
        /// Validation pairs.
        valid_sentences: usize = 500, in SENTENCES;
        /// Test pairs.
        test_sentences: usize = 1_000, in SENTENCES;
    }
    check SyntheticData::agree
}

config! {
    /// Sentences with a label each: plain or gzip, one `sentence TAB label` a line.
    pub struct LabelledData {
        /// Training sentences.
        train: Option<PathBuf> = None, example "\"data/train.tsv\"";
        /// Validation sentences.
        valid: Option<PathBuf> = None, example "\"data/dev.tsv\"";
        /// Test sentences, for `regard evaluate` and `compare`; training only looks whether they are in order.
        test: Option<PathBuf> = None, example "\"data/test.tsv\"";
    }
}

config! {
    /// Plain text: files, plain or gzip. `vocabulary.size` is that of sub-words; `tokenizer` takes the place of a learned one.
    pub struct TextData {
        /// Training text.
        train: Option<PathBuf> = None, example "\"data/train.txt\"";
        /// Validation text; if left out, the end of the training text.
        valid: Option<PathBuf> = None, example "\"data/valid.txt\"";
        /// The share of the training text that is its end, above 0 and below 1.
        valid_share: f64 = 0.1, in SHARE;
        /// What a token is: "characters", "bytes" or "subwords".
        units: Units = Units::Subwords;
        /// What a text is: the whole "file", of which parts as long as the model's context are trained on, or each of its "lines".
        texts: Texts = Texts::File;
        /// For masked models the share of tokens that are to be guessed, above 0 and below 1 (there 0.15; of them 80 % are
        /// masked, 10 % replaced by another token, 10 % left).
        masked: f64 = 0.15, in SHARE;
    }
}

/// What a text of [`TextData`] is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Texts {
    /// The whole file.
    #[default]
    File,
    /// Each line, between marks of start and end.
    Lines,
}

impl TextData {
    /// Training and validation text.
    ///
    /// # Errors
    /// Those of [`PlainText::read`]; `None` if no file is named.
    pub fn load(&self) -> Result<Option<[PlainText; 2]>, CorpusError> {
        let Some(path) = &self.train else {
            return Ok(None);
        };
        let mut train = PlainText::read(path)?;
        let valid = match &self.valid {
            Some(path) => PlainText::read(path)?,
            None => train.split_off(self.valid_share),
        };
        Ok(Some([train, valid]))
    }
}

/// A part of the data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Split {
    /// For training.
    Train,
    /// For validation during training.
    Valid,
    /// For the score at the end.
    Test,
}

/// A part of the data, read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Loaded {
    /// The sentence pairs.
    pub text: ParallelText,
    /// The true alignment of each pair of a synthetic task: links (source, target) counted from 0.
    pub alignments: Option<Vec<Vec<(usize, usize)>>>,
}

impl Data {
    /// The files of a part, if both are given.
    pub fn files(&self, split: Split) -> Option<(&PathBuf, &PathBuf)> {
        let (source, target) = match split {
            Split::Train => (&self.train_source, &self.train_target),
            Split::Valid => (&self.valid_source, &self.valid_target),
            Split::Test => (&self.test_source, &self.test_target),
        };
        source.as_ref().zip(target.as_ref())
    }

    /// Reads a part from its files, or generates it; `None` if the recipe names no files for it.
    ///
    /// The same `seed` generates the same text; each part has a text of its own.
    ///
    /// # Errors
    /// Those of [`ParallelText::read`] and [`Synthetic::generate`].
    pub fn load(&self, split: Split, seed: u64) -> Result<Option<Loaded>, CorpusError> {
        if let Some(synthetic) = &self.synthetic {
            let corpus = synthetic.part(split).generate(split.seed(seed))?;
            return Ok(Some(Loaded {
                text: corpus.text,
                alignments: Some(corpus.alignments),
            }));
        }
        let Some((source, target)) = self.files(split) else {
            return Ok(None);
        };
        Ok(Some(Loaded {
            text: ParallelText::read(source, target)?,
            alignments: None,
        }))
    }

    /// Reads the finished tokenizers, or learns the vocabulary from the training text, as the recipe says: sub-words, or the
    /// symbols of a synthetic task.
    ///
    /// # Errors
    /// Those of [`SubwordTokenizer::load_hugging_face`] and of [`TokenizerPair::learn`].
    pub fn tokenizers(&self, text: &ParallelText) -> Result<TokenizerPair, TokenizerError> {
        if let Some(finished) = self.finished_tokenizers()? {
            return Ok(finished);
        }
        let (source, target) = (text.source(), text.target());
        if self.synthetic.is_some() {
            TokenizerPair::learn_words(source, target, self.lowercase)
        } else {
            let Vocabulary { joint, size, .. } = self.vocabulary;
            TokenizerPair::learn(source, target, joint, size, self.lowercase)
        }
    }
}

impl Data {
    /// The tokenizers whose files the recipe names, if it does.
    ///
    /// # Errors
    /// Those of [`SubwordTokenizer::load_hugging_face`].
    pub fn finished_tokenizers(&self) -> Result<Option<TokenizerPair>, TokenizerError> {
        let load = |file: &Option<TokenizerFile>| match file {
            Some(TokenizerFile {
                path: Some(path),
                padding,
                start,
                end,
                unknown,
            }) => {
                let special = SpecialTokens {
                    padding: padding.as_deref(),
                    start: start.as_deref(),
                    end: end.as_deref(),
                    unknown: unknown.as_deref(),
                };
                SubwordTokenizer::load_hugging_face(path, &special, self.lowercase).map(Some)
            }
            _ => Ok(None),
        };
        let (source, target) = (load(&self.tokenizer)?, load(&self.target_tokenizer)?);
        Ok(source.map(|source| match target {
            Some(target) => TokenizerPair::separate(source, target),
            None => TokenizerPair::joint(source),
        }))
    }

    /// The first key about tokens that has no effect, and the key that says in its place what a token is; `begun` says that training
    /// begins with a model, whose tokenizers are taken.
    pub(crate) fn token_key_without_effect(
        &self,
        begun: bool,
    ) -> Option<(&'static str, &'static str)> {
        let units = self.text.as_ref().map(|text| text.units);
        let decides = [
            (begun, "training.start"),
            (self.tokenizer.is_some(), "data.tokenizer"),
            (self.synthetic.is_some(), "data.synthetic"),
            (
                units.is_some_and(|units| units != Units::Subwords),
                "data.text.units",
            ),
        ];
        let (_, deciding) = decides.into_iter().find(|(decides, _)| *decides)?;
        let usual = Vocabulary::default();
        let set = [
            (begun && self.tokenizer.is_some(), "data.tokenizer"),
            (begun && self.lowercase, "data.lowercase"),
            (self.vocabulary.size != usual.size, "data.vocabulary.size"),
            (
                self.vocabulary.joint != usual.joint,
                "data.vocabulary.joint",
            ),
        ];
        let (_, key) = set.into_iter().find(|(is_set, _)| *is_set)?;
        Some((key, deciding))
    }

    fn agree(&self, check: &mut Check) {
        if self.target_tokenizer.is_some() && self.tokenizer.is_none() {
            let expected = "[data.tokenizer] too, for the source";
            check.fail("target_tokenizer", "set alone", expected);
        }
    }
}

impl TokenizerFile {
    fn agree(&self, check: &mut Check) {
        if self.path.is_none() {
            check.fail("path", "missing", "the path of a tokenizer.json");
        }
    }
}

impl LabelledData {
    /// Reads a part; `None` if the recipe names no file for it.
    ///
    /// # Errors
    /// Those of [`LabelledText::read`].
    pub fn load(&self, split: Split) -> Result<Option<LabelledText>, CorpusError> {
        let path = match split {
            Split::Train => &self.train,
            Split::Valid => &self.valid,
            Split::Test => &self.test,
        };
        path.as_ref().map(LabelledText::read).transpose()
    }
}

impl Split {
    pub(super) fn seed(self, seed: u64) -> u64 {
        let part = match self {
            Self::Train => 0,
            Self::Valid => 1,
            Self::Test => 2,
        };
        Random::new(&[seed, part]).next_u64()
    }
}

impl SyntheticData {
    fn agree(&self, check: &mut Check) {
        let holds = self.max_length >= self.min_length;
        check.require(holds, "max_length", self.max_length, "at least min_length");
    }

    /// The corpus to generate for a part.
    pub fn part(&self, split: Split) -> Synthetic {
        Synthetic {
            task: self.task,
            symbols: self.symbols,
            min_length: self.min_length,
            max_length: self.max_length,
            sentences: match split {
                Split::Train => self.sentences,
                Split::Valid => self.valid_sentences,
                Split::Test => self.test_sentences,
            },
        }
    }
}

impl Filter {
    /// The filter to apply to training pairs.
    pub fn length_filter(&self) -> LengthFilter {
        LengthFilter {
            max_tokens: Some(self.max_tokens),
            max_words: self.max_words,
            max_ratio: self.max_ratio,
            long_lines: self.long_lines,
        }
    }

    /// The filter to apply to validation pairs: all of them count, so that recipes with other filters are judged by the same ones. Lines
    /// of more than `max_tokens` are cut, or refused where training refuses them.
    pub fn validation_filter(&self) -> LengthFilter {
        LengthFilter {
            max_tokens: Some(self.max_tokens),
            long_lines: match self.long_lines {
                LongLines::Error => LongLines::Error,
                LongLines::Drop | LongLines::Cut => LongLines::Cut,
            },
            ..LengthFilter::default()
        }
    }
}
