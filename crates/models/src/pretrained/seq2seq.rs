//! An encoder-decoder: an encoder reads a source, and a decoder, which attends to the encoder's states, writes a target.

use std::sync::Arc;

use regard_kernels::{
    KernelError, Kind,
    matmul::Storage,
    stack::{ChangedHead, Observer, Stack},
};
use serde_json::Value;

use super::{
    config::Config,
    embedding::{Embedding, EmbeddingSource},
    error::PretrainedError,
    folder::Folder,
    language_model::{InputError, LanguageModel, LanguageModelSource, Reading},
    searching::{Searching, WritingRules},
    source::{Expected, StackSource},
};
use crate::{
    generate::{
        BeamConfig, Hypothesis, LengthLimit, LengthPenalty, Recorder, SearchTree, Stopping,
        beam_search,
    },
    generator::expect_valid,
};

/// An encoder-decoder by the names of its weights; each family makes one from its configuration.
#[derive(Debug, Clone)]
pub struct Seq2SeqSource {
    /// The encoder's embeddings.
    pub embedding: EmbeddingSource,
    /// The encoder's blocks.
    pub encoder: StackSource,
    /// The decoder, whose blocks attend to the encoder's states; its `names` are those of the whole model.
    pub decoder: LanguageModelSource,
}

/// An encoder-decoder with packed weights.
#[derive(Debug, Clone)]
pub struct Seq2SeqModel {
    pub(super) embedding: Embedding,
    pub(super) encoder: Stack,
    pub(super) decoder: LanguageModel,
    pub(super) writing: Writing,
}

/// How a model writes, by `generation_config.json`, or else `config.json`. The tokens that start, end and fill a text may stand in either
/// file.
#[derive(Debug, Clone, PartialEq)]
pub struct Writing {
    /// The decoder's first input.
    pub start: u32,
    /// The tokens that end a text, the usual one first.
    pub ends: Vec<u32>,
    /// Which tokens may be written. A search decides the rules that follow from its configuration.
    pub rules: WritingRules,
    /// The search. Its limit is the usual one where no file states a length.
    pub search: BeamConfig,
    /// The most tokens of a text after its first one, if a file states it.
    pub longest: Option<usize>,
    /// Keys that transformers obeys, that are set to something, and that are not obeyed here.
    pub ignored: Vec<&'static str>,
}

/// Keys that are not obeyed, each with the number with which it has no effect.
const IGNORED: [(&str, f64); 10] = [
    ("do_sample", 0.0),
    ("encoder_no_repeat_ngram_size", 0.0),
    ("encoder_repetition_penalty", 1.0),
    ("exponential_decay_length_penalty", 0.0),
    ("guidance_scale", 1.0),
    ("num_beam_groups", 1.0),
    ("penalty_alpha", 0.0),
    ("sequence_bias", 0.0),
    ("stop_strings", 0.0),
    ("watermarking_config", 0.0),
];

impl Writing {
    /// That of a folder, for a model with `vocabulary` tokens.
    ///
    /// # Errors
    /// [`PretrainedError`] for a token that is not in the vocabulary, or no token that starts or ends a text.
    pub fn open(folder: &Folder, vocabulary: usize) -> Result<Self, PretrainedError> {
        let model = folder.config();
        let own = Config::of_generation(folder.path())?;
        let stated = own.as_ref().unwrap_or(model);
        let known = |of: &Config, key: &str, id: u32| match (id as usize) < vocabulary {
            true => Ok(id),
            false => {
                let expected = format!("a token of the vocabulary of {vocabulary}");
                Err(of.refuse(key, expected))
            }
        };
        let many = |of: &Config, key: &str| -> Result<Vec<u32>, PretrainedError> {
            let ids = of.ids_or(key, vec![])?;
            ids.into_iter().map(|id| known(of, key, id)).collect()
        };
        let one = |of: &Config, key: &str| -> Result<Option<u32>, PretrainedError> {
            Ok(many(of, key)?.first().copied())
        };
        // The file that states a mark.
        let of = |key: &str| match stated.has(key) {
            true => stated,
            false => model,
        };
        let mark = |key: &str| one(of(key), key);
        let needed = |key: &str| match mark(key)? {
            Some(id) => Ok(id),
            None => Err(of(key).refuse(key, "the id of a token")),
        };
        let start = match (mark("decoder_start_token_id")?, mark("pad_token_id")?) {
            (Some(start), _) => start,
            (None, Some(padding)) if model.text("model_type")? == "t5" => padding,
            _ => needed("decoder_start_token_id")?,
        };
        let end = "eos_token_id";
        needed(end)?;
        let ends = many(of(end), end)?;
        let mut banned = words(stated, "bad_words_ids")?;
        for &id in banned.iter().flatten() {
            known(stated, "bad_words_ids", id)?;
        }
        // What ends a text cannot be forbidden in this way.
        banned.retain(|word| !matches!(word[..], [id] if ends.contains(&id)));
        let suppressed = stated.ids_or("suppress_tokens", vec![])?;
        banned.extend(suppressed.into_iter().map(|id| vec![id]));
        // A key of BART's first files.
        let former = "force_bos_token_to_be_generated";
        let first = match own.is_none() && model.flag_or(former, false)? {
            true => one(model, "bos_token_id")?.or(one(stated, "forced_bos_token_id")?),
            false => one(stated, "forced_bos_token_id")?,
        };
        let count = |key: &str| stated.count_or(key, 0);
        // `max_length` and `min_length` count the token that begins a text.
        let (new, all) = ("max_new_tokens", "max_length");
        let longest = match (stated.has(new), stated.has(all)) {
            (true, _) => Some(stated.size(new)?),
            (_, true) => Some((stated.size(all)? - 1).max(1)),
            _ => None,
        };
        let shortest = match stated.has("min_new_tokens") {
            true => 1 + count("min_new_tokens")?,
            false => count("min_length")?,
        };
        let penalty = stated.positive_or("repetition_penalty", 1.0)?;
        let renormalized = stated.flag_or("renormalize_logits", false)?;
        let key = "early_stopping";
        let stopping = match stated.value(key) {
            None | Some(Value::Bool(false)) => Stopping::Heuristic,
            Some(Value::Bool(true)) => Stopping::Early,
            Some(Value::String(text)) if text == "never" => Stopping::Never,
            _ => return Err(stated.refuse(key, "true, false or \"never\"")),
        };
        let limit = longest.map(|most| LengthLimit {
            factor: 0.0,
            constant: most,
            most,
        });
        let has_effect = |&&(key, none): &&(&str, f64)| stated.has_effect(key, none);
        Ok(Self {
            start,
            rules: WritingRules {
                repetition_penalty: Some(penalty).filter(|&penalty| penalty != 1.0),
                banned,
                begin_banned: stated.ids_or("begin_suppress_tokens", vec![])?,
                shortest,
                first,
                renormalized,
                ..WritingRules::default()
            },
            search: BeamConfig {
                size: stated.size_or("num_beams", 1)?,
                stopping,
                penalty: LengthPenalty::Power,
                length_penalty: stated.float_or("length_penalty", 1.0)?,
                no_repeat_ngram: count("no_repeat_ngram_size")?,
                limit: limit.unwrap_or_default(),
                forced_end: one(stated, "forced_eos_token_id")?,
                ..BeamConfig::default()
            },
            longest,
            ignored: IGNORED.iter().filter(has_effect).map(|key| key.0).collect(),
            ends,
        })
    }
}

/// The list of lists of ids of a key; none for a missing one.
fn words(config: &Config, key: &str) -> Result<Vec<Vec<u32>>, PretrainedError> {
    let id = |id: &Value| u32::try_from(id.as_u64()?).ok();
    let word = |word: &Value| -> Option<Vec<u32>> { word.as_array()?.iter().map(id).collect() };
    let Some(words) = config.value(key) else {
        return Ok(vec![]);
    };
    let list = words.as_array();
    let read = list.and_then(|words| words.iter().map(word).collect::<Option<Vec<_>>>());
    read.ok_or_else(|| config.refuse(key, "a list of lists of ids of tokens"))
}

impl Seq2SeqSource {
    /// Reads the weights of `folder` into `storage`, or as they are stored.
    ///
    /// # Errors
    /// [`PretrainedError`] that lists every weight that is missing, left over or of another shape; weights that are not finite.
    pub fn read(
        self,
        folder: &Folder,
        storage: Option<Storage>,
    ) -> Result<Seq2SeqModel, PretrainedError> {
        let (own, others) = (&self.embedding.tokens, &self.decoder.embedding.tokens);
        let shared = own == others;
        let tables = Expected::default().matrix(Some(others));
        let tables = tables.matrix(Some(own).filter(|_| !shared));
        let expected = self.embedding.expect(tables).stack(&self.encoder);
        let names = self.decoder.names;
        let weights = self.decoder.expect(expected).weights(folder, &names)?;
        let written = Arc::new(others.read(&weights, storage)?);
        let read = match shared {
            true => written.clone(),
            false => Arc::new(own.read(&weights, storage)?),
        };
        let (encoder, decoder) = rayon::join(
            || self.encoder.read(&weights, storage),
            || (self.decoder).with_tokens(|| Ok(written), &weights, storage),
        );
        let decoder = decoder?;
        Ok(Seq2SeqModel {
            embedding: self.embedding.read(read, &weights, storage)?,
            encoder: encoder?,
            writing: Writing::open(folder, decoder.vocabulary())?,
            decoder,
        })
    }
}

impl Seq2SeqModel {
    /// Reads a model's folder with any of the known [`FAMILIES`](super::FAMILIES).
    ///
    /// # Errors
    /// [`PretrainedError`].
    pub fn open(folder: &Folder, storage: Option<Storage>) -> Result<Self, PretrainedError> {
        let family = super::families::of(folder)?;
        let Some(source) = family.seq2seq else {
            let expected = "a family of encoder-decoders, such as t5, bart or marian";
            return Err(folder.config().refuse("model_type", expected));
        };
        let source = source(folder)?;
        for stack in [&source.encoder, &source.decoder.stack] {
            stack.expect_head(folder)?;
        }
        source.read(folder, storage)
    }

    /// The size of the source's vocabulary.
    pub fn source_vocabulary(&self) -> usize {
        self.embedding.vocabulary()
    }

    /// The longest source, in tokens.
    pub fn source_context(&self) -> usize {
        self.embedding.context
    }

    /// The encoder's blocks.
    pub fn encoder(&self) -> &Stack {
        &self.encoder
    }

    /// The decoder.
    pub fn decoder(&self) -> &LanguageModel {
        &self.decoder
    }

    /// How it writes.
    pub fn writing(&self) -> &Writing {
        &self.writing
    }

    /// The encoder's states of each source, `[tokens, model]`. Sources are computed together, without padding.
    ///
    /// # Errors
    /// [`InputError`].
    pub fn encode(
        &self,
        sources: &[&[u32]],
        observer: Option<&mut (dyn Observer + Send)>,
    ) -> Result<Vec<Vec<f32>>, InputError> {
        let size = self.encoder.sizes().model;
        let mut embedded = vec![];
        for source in sources {
            self.embedding.check(source, 0)?;
            self.embedding.embed(source, &[], 0, &mut embedded)?;
        }
        let counts: Vec<usize> = sources.iter().map(|source| source.len()).collect();
        let states = expect_valid(self.encoder.forward(None, &embedded, &counts, observer));
        let mut rest = &states[..];
        let parts = counts.iter().map(|count| {
            let (part, after) = rest.split_at(count * size);
            rest = after;
            part.to_vec()
        });
        Ok(parts.collect())
    }

    /// Begins a target for each source, of whose states [`encode`](Self::encode) has made `encoded`. What the decoder reads begins
    /// with [`Writing::start`].
    ///
    /// # Panics
    /// If `encoded` holds parts of states.
    pub fn begin(&self, encoded: &[Vec<f32>], cache: Kind) -> Reading<'_> {
        let size = self.encoder.sizes().model;
        let lengths: Vec<usize> = encoded.iter().map(|states| states.len() / size).collect();
        let length = lengths.iter().copied().max().unwrap_or(0);
        let mut padded = Vec::with_capacity(encoded.len() * length * size);
        for (row, states) in (1..).zip(encoded) {
            padded.extend_from_slice(states);
            padded.resize(row * length * size, 0.0);
        }
        let stack = self.decoder.stack();
        let state = stack.begin_with_sources(&padded, length, &lengths, cache);
        self.decoder.begin_in(expect_valid(state))
    }

    /// Searches for the target of each source: its n-best list, best first. A source without tokens gives an empty target.
    ///
    /// # Errors
    /// [`InputError`].
    pub fn write(
        &self,
        sources: &[&[u32]],
        config: &BeamConfig,
    ) -> Result<Vec<Vec<Hypothesis>>, InputError> {
        let there = |source: &&&[u32]| !source.is_empty();
        let full: Vec<&[u32]> = sources.iter().filter(there).copied().collect();
        let lengths: Vec<usize> = full.iter().map(|source| source.len()).collect();
        let mut found = vec![].into_iter();
        if !full.is_empty() {
            let (mut searching, config) = self.searching(&full, config)?;
            found = beam_search(&mut searching, &lengths, &config).into_iter();
        }
        let of = |source: &&[u32]| match source.is_empty() {
            true => vec![Hypothesis::empty()],
            false => found.next().unwrap_or_default(),
        };
        Ok(sources.iter().map(of).collect())
    }

    /// The targets of one source, best first, and the tree of the search with the `listed` likeliest proposals of each step; its leaves
    /// are the targets. A source without tokens has none.
    ///
    /// # Errors
    /// [`InputError`].
    pub fn write_tree(
        &self,
        source: &[u32],
        config: &BeamConfig,
        listed: usize,
    ) -> Result<(Vec<Hypothesis>, SearchTree), InputError> {
        if source.is_empty() {
            return Ok(Default::default());
        }
        let (searching, config) = self.searching(&[source], config)?;
        let mut recorder = Recorder::new(searching);
        let found = beam_search(&mut recorder, &[source.len()], &config);
        let found = found.into_iter().next().unwrap_or_default();
        let texts: Vec<Vec<u32>> = found.iter().map(Hypothesis::with_end).collect();
        let tree = recorder.tree(0, &texts, listed);
        Ok((found, tree))
    }

    /// What a search steps through, and its limits: the decoder reads all tokens but the last.
    fn searching(
        &self,
        sources: &[&[u32]],
        config: &BeamConfig,
    ) -> Result<(Searching<Reading<'_>>, BeamConfig), InputError> {
        let mut config = config.clone();
        config.limit.most = config.limit.most.min(self.decoder.context());
        let Writing {
            start, ends, rules, ..
        } = &self.writing;
        let rules = WritingRules {
            penalizes_logits: config.size <= 1,
            // The token that begins a text counts.
            no_repeat_ngram: std::mem::take(&mut config.no_repeat_ngram),
            ..rules.clone()
        };
        let reading = self.begin(&self.encode(sources, None)?, Kind::F32);
        Ok((Searching::new(reading, &[], *start, ends, rules), config))
    }

    /// Changes these heads of the encoder and of the decoder from now on, and no others.
    ///
    /// # Errors
    /// [`KernelError`] for a head that is not there; then no head is changed.
    pub fn change_heads(
        &mut self,
        encoder: Vec<ChangedHead>,
        decoder: Vec<ChangedHead>,
    ) -> Result<(), KernelError> {
        self.encoder.change_heads(vec![])?;
        self.decoder.stack_mut().change_heads(decoder)?;
        self.encoder.change_heads(encoder).inspect_err(|_| {
            // An empty list cannot be refused.
            let _ = self.decoder.stack_mut().change_heads(vec![]);
        })
    }
}
