//! A causal language model that reads a text and writes on: the prompt in one pass, then token by token.

use std::{fmt, sync::Arc};

use regard_kernels::{
    Kind,
    matmul::Storage,
    stack::{LongTexts, Observer, Product, Stack, State},
};

use super::{
    embedding::{Embedding, EmbeddingSource},
    error::PretrainedError,
    folder::{Folder, Names, Weights},
    source::{Expected, Matrix, StackSource},
};
use crate::{
    generator::{Stepper, expect_valid},
    scoring::CausalModel,
    vocabulary::Vocabulary,
};

/// The most positions that are read in one pass, so that memory does not grow with the length of a prompt.
const PASS: usize = 2048;

/// The most positions whose logits are in memory together.
const OUTPUTS: usize = 256;

/// A language model by the names of its weights; each family makes one from its configuration.
#[derive(Debug, Clone)]
pub struct LanguageModelSource {
    /// The embeddings.
    pub embedding: EmbeddingSource,
    /// The blocks.
    pub stack: StackSource,
    /// The output layer; `None` if it shares the table of tokens.
    pub output: Option<Matrix>,
    /// The factor of logits (T5: `1 / √model` if the output layer shares the table of tokens).
    pub output_scale: f32,
    /// `c` of `c tanh(logit / c)`.
    pub softcap: Option<f32>,
    /// How names may differ.
    pub names: Names<'static>,
}

/// A causal language model with packed weights.
#[derive(Debug, Clone)]
pub struct LanguageModel {
    pub(super) embedding: Embedding,
    pub(super) stack: Stack,
    pub(super) output: Option<Product>,
    pub(super) output_scale: f32,
    pub(super) softcap: Option<f32>,
}

impl LanguageModelSource {
    /// Reads the weights of `folder` into `storage`, or as they are stored.
    ///
    /// # Errors
    /// [`PretrainedError`] that lists every weight that is missing, left over or of another shape; weights that are not finite.
    pub fn read(
        self,
        folder: &Folder,
        storage: Option<Storage>,
    ) -> Result<LanguageModel, PretrainedError> {
        let tokens = Expected::default().matrix(Some(&self.embedding.tokens));
        let weights = self.expect(tokens).weights(folder, &self.names)?;
        let table = self.embedding.tokens.clone();
        let tokens = || table.read(&weights, storage).map(Arc::new);
        self.with_tokens(tokens, &weights, storage)
    }

    /// Adds its weights but the table of tokens to `expected`.
    pub(super) fn expect(&self, expected: Expected) -> Expected {
        let expected = self.embedding.expect(expected).stack(&self.stack);
        expected.matrix(self.output.as_ref())
    }

    pub(super) fn with_tokens(
        self,
        tokens: impl FnOnce() -> Result<Arc<Product>, PretrainedError> + Send,
        weights: &Weights<'_>,
        storage: Option<Storage>,
    ) -> Result<LanguageModel, PretrainedError> {
        let (embedding, stack) = rayon::join(
            || self.embedding.read(tokens()?, weights, storage),
            || self.stack.read(weights, storage),
        );
        let output = self.output.as_ref();
        let output = output.map(|output| output.read(weights, storage));
        Ok(LanguageModel {
            embedding: embedding?,
            stack: stack?,
            output: output.transpose()?,
            output_scale: self.output_scale,
            softcap: self.softcap,
        })
    }
}

/// Why a model cannot read a text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum InputError {
    /// A token is not in the vocabulary.
    Token {
        /// Its id.
        id: u32,
        /// The size of the vocabulary.
        vocabulary: usize,
    },
    /// The text is too long.
    Long {
        /// Its length, in tokens.
        tokens: usize,
        /// The longest that the model reads.
        context: usize,
    },
    /// One of several texts is too long.
    LongText {
        /// Its number, counted from 1.
        number: usize,
        /// How it begins.
        beginning: String,
        /// Its length, in tokens.
        tokens: usize,
        /// The most that there is room for.
        most: usize,
        /// The longest text that the model reads, with what it writes.
        context: usize,
    },
    /// Global tokens that are not ascending, or not in the text, or of a model that has none.
    Global {
        /// How many tokens may be global.
        tokens: usize,
    },
    /// A question leaves no room for the text that holds the answer.
    Question {
        /// Its length, in tokens, with the special ones around question and text.
        tokens: usize,
        /// The longest that is read at once.
        window: usize,
    },
}

impl fmt::Display for InputError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Token { id, vocabulary } => write!(
                f,
                "the token {id} is not in the model's vocabulary of {vocabulary}; is the tokenizer that of the model?"
            ),
            Self::Long { tokens, context } => write!(
                f,
                "a text of {tokens} tokens is longer than the model's context of {context}; expected a shorter one"
            ),
            Self::LongText {
                number,
                beginning,
                tokens,
                most,
                context,
            } => write!(
                f,
                "text {number}, which begins with {beginning:?}, has {tokens} tokens; expected at most {most} in the model's \
                 context of {context}: shorten it or leave it out"
            ),
            Self::Global { tokens: 0 } => {
                write!(
                    f,
                    "global tokens for a model or a text without them; expected none"
                )
            }
            Self::Global { tokens } => write!(
                f,
                "global tokens are ascending positions below {tokens}, the number of tokens; found others"
            ),
            Self::Question { tokens, window } => write!(
                f,
                "a question of {tokens} tokens (with special ones) leaves no room for its context in a window of {window}; \
                 expected a shorter one"
            ),
        }
    }
}

impl std::error::Error for InputError {}

impl InputError {
    /// Checks that text `number` of several, counted from 1, has at most as many `tokens` as a `context` has room for beside `others`.
    ///
    /// # Errors
    /// [`InputError::LongText`].
    pub fn expect_room(
        number: usize,
        text: &str,
        tokens: usize,
        context: usize,
        others: usize,
    ) -> Result<(), Self> {
        const SHOWN: usize = 40;
        let most = context.saturating_sub(others);
        match tokens <= most {
            true => Ok(()),
            false => Err(Self::LongText {
                number,
                beginning: text.chars().take(SHOWN).collect(),
                tokens,
                most,
                context,
            }),
        }
    }
}

impl LanguageModel {
    /// The size of the vocabulary.
    pub fn vocabulary(&self) -> usize {
        self.embedding.vocabulary()
    }

    /// The longest text, in tokens.
    pub fn context(&self) -> usize {
        self.embedding.context
    }

    /// The blocks.
    pub fn stack(&self) -> &Stack {
        &self.stack
    }

    /// The blocks, to change heads ([`Stack::change_heads`]).
    pub fn stack_mut(&mut self) -> &mut Stack {
        &mut self.stack
    }

    /// The bytes of memory that the weights of all products take.
    pub fn bytes(&self) -> usize {
        let blocks = self.stack.blocks().iter();
        let blocks = blocks.flat_map(|block| block.products().map(Product::bytes));
        let output = self.output.as_ref().map_or(0, Product::bytes);
        blocks.sum::<usize>() + self.embedding.bytes() + output
    }

    /// Begins `rows` texts, whose keys and values are kept in `cache`.
    pub fn begin(&self, rows: usize, cache: Kind) -> Reading<'_> {
        self.begin_in(self.stack.begin(rows, cache))
    }

    /// The logits after every token of a text, `[tokens, vocabulary]`.
    ///
    /// # Errors
    /// [`InputError`].
    pub fn logits(&self, text: &[u32]) -> Result<Vec<f32>, InputError> {
        self.begin(1, Kind::F32).logits(text)
    }

    /// Begins texts in a state of the blocks.
    pub(super) fn begin_in(&self, state: State) -> Reading<'_> {
        let kept = match self.turns_anew(0, usize::MAX) {
            true => state.rows(),
            false => 0,
        };
        Reading {
            model: self,
            state,
            texts: vec![vec![]; kept],
        }
    }

    /// Whether a text that grows from `before` to `after` tokens gets other angles from its beginning on (LongRoPE).
    fn turns_anew(&self, before: usize, after: usize) -> bool {
        let mut rotations = self.stack.rotations().iter();
        rotations.any(|rotation| match &rotation.long {
            Some(LongTexts::Fixed { beyond, .. }) => before <= *beyond && *beyond < after,
            _ => false,
        })
    }

    pub(super) fn output(&self) -> &Product {
        self.output.as_ref().unwrap_or(&self.embedding.tokens)
    }

    fn finish(&self, logits: &mut [f32]) {
        if self.output_scale != 1.0 {
            logits.iter_mut().for_each(|x| *x *= self.output_scale);
        }
        if let Some(cap) = self.softcap {
            logits.iter_mut().for_each(|x| *x /= cap);
            regard_kernels::simd::tanh_in_place(logits);
            logits.iter_mut().for_each(|x| *x *= cap);
        }
    }
}

/// Texts that a model is reading and writing, one a row.
#[derive(Debug, Clone)]
pub struct Reading<'a> {
    model: &'a LanguageModel,
    state: State,
    /// The tokens of each row, if the model may have to read them again.
    texts: Vec<Vec<u32>>,
}

impl Reading<'_> {
    /// How many tokens row `row` has.
    pub fn length(&self, row: usize) -> usize {
        self.state.length(row)
    }

    /// Reads more tokens of each row (perhaps none), without an output. `observer` sees every attention that it asks for; a long
    /// text is read in several passes, with the numbers of one.
    ///
    /// # Errors
    /// [`InputError`]; nothing of this call was read then.
    pub fn read(
        &mut self,
        texts: &[&[u32]],
        observer: Option<&mut (dyn Observer + Send)>,
    ) -> Result<(), InputError> {
        self.check(texts)?;
        let rows = texts.iter().enumerate();
        let lengths: Vec<usize> = rows
            .map(|(row, text)| self.state.length(row) + text.len())
            .collect();
        self.grow(&lengths)?;
        self.passes(texts, observer)
    }

    /// Says how long each row becomes. A row whose tokens thereby get other angles is read again: kept keys have the former ones
    /// (as `Phi3ForCausalLM.prepare_inputs_for_generation` of transformers 5.24 does).
    fn grow(&mut self, lengths: &[usize]) -> Result<(), InputError> {
        let mut again = vec![vec![]; lengths.len()];
        for (row, &length) in lengths.iter().enumerate() {
            let before = self.state.expected(row);
            if self.state.length(row) > 0 && self.model.turns_anew(before, length) {
                self.state.restart(row);
                again[row] = std::mem::take(&mut self.texts[row]);
            }
        }
        self.state.expect(lengths);
        let again: Vec<&[u32]> = again.iter().map(Vec::as_slice).collect();
        self.passes(&again, None)
    }

    fn passes(
        &mut self,
        texts: &[&[u32]],
        mut observer: Option<&mut (dyn Observer + Send)>,
    ) -> Result<(), InputError> {
        let mut done = 0;
        while texts.iter().any(|text| text.len() > done) {
            let parts: Vec<&[u32]> = texts
                .iter()
                .map(|text| &text[text.len().min(done)..text.len().min(done + PASS)])
                .collect();
            let observer = observer.as_mut().map(|observer| &mut **observer as _);
            self.pass(&parts, observer)?;
            done += PASS;
        }
        Ok(())
    }

    /// Reads `text` in row 0, the only one, and gives the logits after each of its tokens, `[tokens, vocabulary]`.
    ///
    /// # Errors
    /// [`InputError`].
    pub fn logits(&mut self, text: &[u32]) -> Result<Vec<f32>, InputError> {
        let mut all = vec![];
        self.predict(text, 0, &mut |_, logits| all.extend_from_slice(logits))?;
        Ok(all)
    }

    /// Reads `text` in row 0, the only one, and gives the logits after each of its tokens from the one at `first` on.
    fn predict(
        &mut self,
        text: &[u32],
        first: usize,
        each: &mut dyn FnMut(usize, &mut [f32]),
    ) -> Result<(), InputError> {
        self.check(&[text])?;
        let length = self.state.length(0) + text.len();
        self.grow(&[length])?;
        let size = self.model.stack.sizes().model;
        for (start, part) in (0..).step_by(PASS).zip(text.chunks(PASS)) {
            let states = self.pass(&[part], None)?;
            let mut done = first.saturating_sub(start).min(part.len());
            for states in states[done * size..].chunks(OUTPUTS * size) {
                let count = states.len() / size;
                let product = self.model.output().forward(states, count);
                let mut logits = expect_valid(product);
                self.model.finish(&mut logits);
                each(start + done, &mut logits);
                done += count;
            }
        }
        Ok(())
    }

    fn check(&self, texts: &[&[u32]]) -> Result<(), InputError> {
        let embedding = &self.model.embedding;
        let mut rows = texts.iter().enumerate();
        rows.try_for_each(|(row, text)| embedding.check(text, self.state.length(row)))
    }

    fn pass(
        &mut self,
        parts: &[&[u32]],
        observer: Option<&mut (dyn Observer + Send)>,
    ) -> Result<Vec<f32>, InputError> {
        let mut embedded = vec![];
        for (row, part) in parts.iter().enumerate() {
            let before = self.state.length(row);
            (self.model.embedding).embed(part, &[], before, &mut embedded)?;
        }
        self.keep(parts.iter().copied());
        let counts: Vec<usize> = parts.iter().map(|part| part.len()).collect();
        let stack = &self.model.stack;
        Ok(expect_valid(stack.forward(
            Some(&mut self.state),
            &embedded,
            &counts,
            observer,
        )))
    }

    fn keep<'t>(&mut self, parts: impl Iterator<Item = &'t [u32]>) {
        let rows = self.texts.iter_mut().zip(parts);
        rows.for_each(|(text, part)| text.extend_from_slice(part));
    }
}

impl CausalModel for LanguageModel {
    fn vocabulary(&self) -> usize {
        self.vocabulary()
    }

    fn context(&self) -> usize {
        self.embedding.context
    }

    fn predict(
        &self,
        text: &[u32],
        first: usize,
        each: &mut dyn FnMut(usize, &mut [f32]),
    ) -> Result<(), InputError> {
        self.begin(1, Kind::F32).predict(text, first, each)
    }

    fn read(&self, texts: &[&[u32]], cache: Kind) -> Result<Box<dyn Stepper + '_>, InputError> {
        let mut reading = self.begin(texts.len(), cache);
        // The step after them makes each a token longer, and belongs to the prompt.
        let lengths: Vec<usize> = texts.iter().map(|text| text.len() + 1).collect();
        reading.state.expect(&lengths);
        reading.read(texts, None)?;
        Ok(Box::new(reading))
    }
}

/// Gives logits, not log-probabilities. A row must have room for one more token.
impl Stepper for Reading<'_> {
    fn vocabulary(&self) -> Vocabulary {
        Vocabulary::new(self.model.vocabulary())
    }

    fn step(&mut self, previous: &[u32], logits: &mut Vec<f32>) -> Option<Vec<f32>> {
        let rows = 0..previous.len();
        let lengths: Vec<usize> = rows.map(|row| self.state.length(row) + 1).collect();
        // They were read before.
        expect_valid(self.grow(&lengths));
        let mut embedded = vec![];
        for (row, &id) in previous.iter().enumerate() {
            let first = self.state.length(row);
            let done = (self.model.embedding).embed(&[id], &[], first, &mut embedded);
            done.unwrap_or_else(|error| unreachable!("the caller checked: {error}"));
        }
        self.keep(previous.chunks(1));
        let counts = vec![1; previous.len()];
        let LanguageModel { stack, .. } = self.model;
        let output = self.model.output();
        let state = &mut self.state;
        expect_valid(stack.last_outputs(state, &embedded, &counts, output, logits, None));
        self.model.finish(logits);
        None
    }

    fn select(&mut self, rows: &[usize], _same_sources: bool) {
        expect_valid(self.state.select(rows));
        if !self.texts.is_empty() {
            self.texts = rows.iter().map(|&row| self.texts[row].clone()).collect();
        }
    }
}

impl LanguageModel {
    /// Reads a model's folder with any of the known [`FAMILIES`](super::FAMILIES).
    ///
    /// # Errors
    /// [`PretrainedError`].
    pub fn open(folder: &Folder, storage: Option<Storage>) -> Result<Self, PretrainedError> {
        let family = super::families::of(folder)?;
        let Some(source) = family.language_model else {
            let expected = "a family of language models that write text from left to right";
            return Err(folder.config().refuse("model_type", expected));
        };
        let source = source(folder)?;
        source.stack.expect_head(folder)?;
        source.read(folder, storage)
    }
}

impl From<InputError> for PretrainedError {
    fn from(error: InputError) -> Self {
        Self::Input(error)
    }
}
