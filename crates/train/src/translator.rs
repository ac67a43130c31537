//! Text in, text out, and what the model looked at.

use std::sync::OnceLock;

use burn::tensor::{Device, Tensor, TensorData};
use regard_evaluate::{Conditioning, Perplexity};
use regard_kernels::stack::{ChangedHead, Observer, QueryKeys, QueryObserver, Stack};
use regard_models::{
    AnyGenerator, AttentionMaps, SourceBatch, TargetBatch, Vocabularies,
    generate::{BeamConfig, Hypothesis, LengthLimit, Prepared, SearchTree},
    gradient::{OutputGradients, of_generator},
    pretrained::{Look, LookedAt},
};
use regard_nn::dropout::DropoutRng;
use regard_trace::{AttentionMap, Kind, Token, Tokens, Trace, TraceError};
use serde::{Deserialize, Serialize};

use crate::{
    corpus::{Batches, Budget, CorpusError, EncodedPair, LengthFilter, Limited, ParallelText},
    familiarity::{Familiarity, Unfamiliar},
    opened::MOST_WEIGHTS,
    ranks::{Ranks, RanksError},
    recipe::{LongSource, Model, Translation as Settings},
    tasks::Describe,
    tokenizer::{SubwordTokenizer, TokenizerError, TokenizerPair},
};

mod error;

pub use error::{LineError, PerplexityError};

/// Source and target language, as short names such as `en` and `de`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Languages {
    /// Translated from.
    pub source: String,
    /// Translated to.
    pub target: String,
}

/// The content of a model file apart from the weights.
#[derive(Debug, Clone)]
pub struct Description {
    /// The architecture.
    pub model: Model,
    /// Text to ids and back.
    pub tokenizers: TokenizerPair,
    /// Search settings used unless others are asked for.
    pub translate: Settings,
    /// Source and target.
    pub languages: Languages,
    /// The statistics that detect unfamiliar sentences, if they were measured.
    pub familiarity: Option<Familiarity>,
}

impl Describe<AnyGenerator> for Description {
    fn model(&self) -> &Model {
        &self.model
    }

    fn sizes(&self) -> Vocabularies {
        Vocabularies {
            source: self.tokenizers.source().vocabulary(),
            target: self.tokenizers.target().vocabulary(),
        }
    }
}

/// Most padded positions of a batch whose perplexity is computed.
const PERPLEXITY_TOKENS: usize = 4096;

/// A model with its tokenizers, ready to translate.
#[derive(Debug)]
pub struct Translator {
    model: Prepared,
    description: Description,
    device: Device,
    looking: bool,
    /// Whether heads can be changed and observed.
    opened: bool,
    /// How many heads the layers of the encoder, of the decoder and between them have, once they were counted; none in a model whose
    /// weights come with the search.
    heads: OnceLock<Option<[usize; 3]>>,
}

/// A text and its translation, as tokens.
#[derive(Debug, Clone)]
pub struct ReadAndWritten {
    source: Vec<u32>,
    hypothesis: Hypothesis,
    /// What the encoder reads, what the decoder reads, and what it writes.
    pub texts: [Tokens; 3],
}

/// One translation of one line.
#[derive(Debug, Clone)]
pub struct Translation {
    /// The text.
    pub text: String,
    /// The score by which hypotheses are ranked (see [`BeamConfig::rank`]).
    pub score: f64,
    /// The sum of the tokens' log-probabilities, natural logarithm.
    pub log_probability: f64,
    /// How many tokens it has, `</s>` included.
    pub tokens: usize,
    /// False when the length limit cut it.
    pub finished: bool,
    /// What the model looked at; no maps without attention, for an empty line, or where it was not asked for
    /// ([`Translator::looking`]).
    pub trace: Trace,
}

/// The translations of one line.
#[derive(Debug, Clone)]
pub struct Translated {
    /// Best first; at least one.
    pub n_best: Vec<Translation>,
    /// The line's length in tokens, if it was cut to the limit.
    pub cut_from: Option<usize>,
    /// Why the line is far from what the model was trained on, if it is and the model's file can tell.
    pub unfamiliar: Option<Unfamiliar>,
}

impl Translator {
    /// A translator from its parts.
    pub fn new(model: AnyGenerator, description: Description, device: &Device) -> Self {
        Self {
            model: Prepared::new(model),
            description,
            device: device.clone(),
            looking: true,
            opened: false,
            heads: OnceLock::new(),
        }
    }

    /// Whether to record what a model with many heads looked at, which takes a second pass over each translation; true by
    /// default. The weights of other models come with the search.
    pub fn looking(self, looking: bool) -> Self {
        Self { looking, ..self }
    }

    /// Prepares the model for changed heads and for [`Translator::query`]; false if it has no heads that a kernel serves, or a coverage
    /// penalty, which needs weights in the search. From then on all weights come from the packed model, equal up to rounding.
    pub fn open_heads(&mut self) -> bool {
        let served = self.settings().coverage_penalty == 0.0;
        self.opened = served && self.model.packed_mut().is_some_and(|packed| packed.open());
        self.opened
    }

    /// Changes these heads of the encoder and of the decoder from now on, and no others.
    ///
    /// # Errors
    /// [`LineError::Heads`]: heads that are not there, or that [`Translator::open_heads`] has not prepared.
    pub fn change_heads(
        &mut self,
        encoder: Vec<ChangedHead>,
        decoder: Vec<ChangedHead>,
    ) -> Result<(), LineError> {
        match self.model.packed_mut().filter(|_| self.opened) {
            Some(packed) => Ok(packed.change_heads(encoder, decoder)?),
            None if encoder.is_empty() && decoder.is_empty() => Ok(()),
            None => Err(LineError::Closed),
        }
    }

    /// One query while the translation of rank `rank`, 0 for the best, is written: of the encoder, of the decoder, or of the decoder to
    /// the source, as `kind` says. `None` if there is no such query.
    ///
    /// # Errors
    /// As for [`Translator::translate`]; a translator that [`Translator::open_heads`] has not prepared.
    pub fn query(
        &self,
        line: &str,
        settings: &Settings,
        rank: usize,
        kind: Kind,
        [layer, head, query]: [usize; 3],
    ) -> Result<Option<QueryKeys>, LineError> {
        let Some((source, hypothesis)) = self.hypothesis(line, settings, rank)? else {
            return Ok(None);
        };
        let mut observer = QueryObserver::new(layer, kind == Kind::Cross, head, query);
        // Whoever wants nothing costs nothing.
        let mut nothing = Look::new(0);
        nothing.own = false;
        match kind {
            Kind::EncoderSelf => {
                self.observe(&source, &hypothesis, &mut observer, &mut nothing)?;
            }
            _ => self.observe(&source, &hypothesis, &mut nothing, &mut observer)?,
        }
        Ok(observer.found())
    }

    /// The translation of rank `rank`, 0 for the best, and the gradients of its log probability with respect to each weight of attention:
    /// of the maps of its trace, from the model with all heads as they are. `None` if there is no such translation.
    ///
    /// # Errors
    /// As for [`Translator::translate`]; [`LineError::Gradients`].
    pub fn gradients(
        &self,
        line: &str,
        settings: &Settings,
        rank: usize,
    ) -> Result<Option<(String, OutputGradients)>, LineError> {
        let Some((source, hypothesis)) = self.hypothesis(line, settings, rank)? else {
            return Ok(None);
        };
        let Hypothesis {
            tokens, finished, ..
        } = &hypothesis;
        let found = of_generator(self.model.model(), &source, tokens, *finished, &self.device)?;
        let text = self.description.tokenizers.target().decode(tokens)?;
        Ok(Some((text, found)))
    }

    /// The tokens of a line, and its translation of rank `rank`.
    fn hypothesis(
        &self,
        line: &str,
        settings: &Settings,
        rank: usize,
    ) -> Result<Option<(Vec<u32>, Hypothesis)>, LineError> {
        let tokenizer = self.description.tokenizers.source();
        let (limited, _) = settings.length_filter().limit_all(&[line], tokenizer)?;
        let source = limited[0].ids.clone();
        let beam = beam_config(settings);
        let sources = std::slice::from_ref(&source);
        let found = self.model.translate(sources, &beam, &self.device);
        let mut found = found.into_iter().flatten();
        let hypothesis = found.nth(rank).filter(|_| !source.is_empty());
        Ok(hypothesis.map(|hypothesis| (source, hypothesis)))
    }

    /// A text, and a translation of it that ends: `target`, or else the best one that a search finds.
    ///
    /// # Errors
    /// A text without tokens, or longer than `settings` allow.
    pub fn read_and_written(
        &self,
        text: &str,
        target: Option<&str>,
        settings: &Settings,
    ) -> Result<ReadAndWritten, LineError> {
        let settings = Settings {
            long_lines: LongSource::Error,
            ..settings.clone()
        };
        let (source, mut hypothesis) = match target {
            None => self.hypothesis(text, &settings, 0)?,
            Some(target) => {
                let tokenizers = &self.description.tokenizers;
                let limit = |text, tokenizer| {
                    let (limited, _) = settings.length_filter().limit_all(&[text], tokenizer)?;
                    Ok::<_, LineError>(limited[0].ids.clone())
                };
                let tokens = limit(target, tokenizers.target())?;
                let source = limit(text, tokenizers.source())?;
                let empty = source.is_empty() || tokens.is_empty();
                let hypothesis = Hypothesis {
                    tokens,
                    ..Hypothesis::empty()
                };
                (!empty).then_some((source, hypothesis))
            }
        }
        .ok_or(LineError::NoTokens)?;
        hypothesis.finished = true;
        let texts = self.texts(&source, &hypothesis)?;
        Ok(ReadAndWritten {
            source,
            hypothesis,
            texts,
        })
    }

    /// What the model reads, what its decoder reads, and what it writes.
    fn texts(
        &self,
        source: &[u32],
        hypothesis: &Hypothesis,
    ) -> Result<[Tokens; 3], TokenizerError> {
        let tokenizers = &self.description.tokenizers;
        let read = axis(tokenizers.source(), source, true)?;
        let written = axis(tokenizers.target(), &hypothesis.tokens, hypothesis.finished)?;
        // At its first position the decoder reads the start marker, at each other position the token that it wrote before.
        let start = self.model.model().vocabularies().target.start;
        let start = tokenizers.target().token(start).unwrap_or_default();
        let past = written.iter().take(written.len().saturating_sub(1));
        let inputs = std::iter::once(Token::special(start)).chain(past.cloned());
        Ok([read, inputs.collect(), written])
    }

    /// The stacks of encoder and decoder, of a model that [`Translator::open_heads`] has prepared.
    pub fn stacks(&self) -> Option<[&Stack; 2]> {
        let packed = self.model.packed().filter(|_| self.opened);
        packed.and_then(|packed| packed.stacks())
    }

    /// Reads and writes a text and its translation again, observed.
    ///
    /// # Errors
    /// [`LineError::Closed`] before [`Translator::open_heads`]; those of the observers.
    pub fn watch(
        &self,
        text: &ReadAndWritten,
        encoder: &mut (dyn Observer + Send),
        decoder: &mut (dyn Observer + Send),
    ) -> Result<(), LineError> {
        self.observe(&text.source, &text.hypothesis, encoder, decoder)
    }

    /// Reads `source` and writes `hypothesis` with the packed model, observed.
    fn observe(
        &self,
        source: &[u32],
        hypothesis: &Hypothesis,
        encoder: &mut (dyn Observer + Send),
        decoder: &mut (dyn Observer + Send),
    ) -> Result<(), LineError> {
        let Some(packed) = self.model.packed().filter(|_| self.opened) else {
            return Err(LineError::Closed);
        };
        let vocabularies = self.model.model().vocabularies();
        let reads = SourceBatch::new(&[source.to_vec()], &vocabularies.source, &self.device);
        let written = std::slice::from_ref(&hypothesis.tokens);
        let writes = TargetBatch::new(written, &vocabularies.target, &self.device);
        Ok(packed.observe(&reads, &writes, encoder, decoder)?)
    }

    /// Architecture, tokenizers, languages.
    pub fn description(&self) -> &Description {
        &self.description
    }

    /// The search settings that come with the model.
    pub fn settings(&self) -> &Settings {
        &self.description.translate
    }

    /// Translates `lines`, giving one result a line in the same order. Lines are batched by length
    /// within the call; batching changes no result.
    ///
    /// # Errors
    /// A line that is too long, where `settings` make that an error. Of the lines that are refused otherwise ([`LineError::Of`]) the
    /// first: where the maps of all of its translations do not fit in memory ([`LineError::TooManyWeights`]).
    pub fn translate<S: AsRef<str>>(
        &self,
        lines: &[S],
        settings: &Settings,
    ) -> Result<Vec<Translated>, LineError> {
        self.translate_lines(lines, settings, self.looking)
    }

    /// The best translation of a line, with what the model looked at, whatever [`Translator::looking`] says.
    ///
    /// # Errors
    /// As for [`Translator::translate`].
    pub fn look(&self, line: &str, settings: &Settings) -> Result<Option<Translation>, LineError> {
        let translated = self.translate_lines(&[line], settings, true)?;
        let mut n_best = translated.into_iter().flat_map(|line| line.n_best);
        Ok(n_best.next())
    }

    fn translate_lines<S: AsRef<str>>(
        &self,
        lines: &[S],
        settings: &Settings,
        looking: bool,
    ) -> Result<Vec<Translated>, LineError> {
        let tokenizer = self.description.tokenizers.source();
        let (limited, order) = settings.length_filter().limit_all(lines, tokenizer)?;
        let beam = beam_config(settings);
        let mut results: Vec<_> = lines.iter().map(|_| None).collect();
        for rows in order.chunks(settings.batch_sentences.max(1)) {
            let sentences: Vec<Vec<u32>> = rows.iter().map(|&i| limited[i].ids.clone()).collect();
            let found = self.model.translate(&sentences, &beam, &self.device);
            for (&i, found) in rows.iter().zip(found) {
                let line = lines[i].as_ref();
                results[i] = Some(self.translated(line, &limited[i], found, looking));
            }
        }
        of_lines(results)
    }

    /// A line as [`Translator::translate`] gives it, from the hypotheses that a search `found`.
    fn translated(
        &self,
        line: &str,
        limited: &Limited,
        found: Vec<Hypothesis>,
        looking: bool,
    ) -> Result<Translated, LineError> {
        let n_best = self.translations(line, &limited.ids, found, looking)?;
        Ok(Translated {
            unfamiliar: self.unfamiliar(line, &n_best)?,
            n_best,
            cut_from: limited.cut_from,
        })
    }

    /// The translations of a line, with what was looked at for each of them if all of that fits in memory.
    fn translations(
        &self,
        line: &str,
        source: &[u32],
        found: Vec<Hypothesis>,
        looking: bool,
    ) -> Result<Vec<Translation>, LineError> {
        if looking && !source.is_empty() {
            expect_room(self.numbers(source, &found))?;
        }
        let found = found.into_iter().enumerate();
        found
            .map(|(rank, one)| self.translation(line, source, one, rank, looking))
            .collect()
    }

    /// The translations of a line, best first, and the tree of the search with the `listed` likeliest proposals of each step; its leaves
    /// are the translations. The texts of its tokens are given by [`Translator::following`].
    ///
    /// # Errors
    /// As for [`Translator::translate`]; [`LineError::TooManyWeights`] if the maps of all of them do not fit in memory.
    pub fn search_tree(
        &self,
        line: &str,
        settings: &Settings,
        listed: usize,
    ) -> Result<(Vec<Translation>, SearchTree), LineError> {
        let tokenizer = self.description.tokenizers.source();
        let (limited, _) = settings.length_filter().limit_all(&[line], tokenizer)?;
        let source = &limited[0].ids;
        let beam = beam_config(settings);
        let (found, tree) = (self.model).search_tree(source, &beam, &self.device, listed);
        let found = self.translations(line, source, found, self.looking)?;
        Ok((found, tree))
    }

    /// The text that each of `tokens` adds to a translation if it follows `context`, or its name if it adds none.
    ///
    /// # Errors
    /// A tokenizer that cannot decode it.
    pub fn following(
        &self,
        context: &[u32],
        tokens: &[u32],
    ) -> Result<Vec<String>, TokenizerError> {
        let tokenizer = self.description.tokenizers.target();
        tokenizer.following(context, tokens)
    }

    fn unfamiliar(
        &self,
        line: &str,
        n_best: &[Translation],
    ) -> Result<Option<Unfamiliar>, TokenizerError> {
        let tokenizer = self.description.tokenizers.source();
        match (&self.description.familiarity, n_best.first()) {
            (Some(familiarity), Some(best)) => familiarity.judge(tokenizer, line, best),
            _ => Ok(None),
        }
    }

    /// How well the model predicts the target side of `text`, teacher-forced; `None` if no pair has words on both sides.
    /// Pairs beyond `max_source_tokens` of the model's search settings are left out.
    ///
    /// # Errors
    /// [`PerplexityError::Text`] for text that cannot be batched, [`PerplexityError::Likelihood`] for a model that gives
    /// numbers that are not likelihoods.
    pub fn perplexity(
        &self,
        text: &ParallelText,
        ranks: &dyn Ranks,
    ) -> Result<Option<Perplexity>, PerplexityError> {
        let filter = LengthFilter {
            max_tokens: Some(self.settings().max_source_tokens),
            ..LengthFilter::default()
        };
        let pairs = match filter.apply(text, &self.description.tokenizers) {
            Ok((pairs, _)) => pairs,
            Err(CorpusError::NothingLeft { .. }) => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        let budget = Budget {
            tokens: Some(PERPLEXITY_TOKENS),
            ..Budget::default()
        };
        let batches = Batches::new(&pairs, budget)?;
        let model = self.model.model();
        let (mean, tokens) = teacher_forced(model, &pairs, &batches, &self.device, ranks)?;
        let mut perplexity = Perplexity::new(Conditioning::TeacherForced);
        perplexity.add(mean * tokens as f64, tokens as u64)?;
        Ok(Some(perplexity))
    }

    fn translation(
        &self,
        line: &str,
        source: &[u32],
        hypothesis: Hypothesis,
        rank: usize,
        looking: bool,
    ) -> Result<Translation, LineError> {
        let tokenizers = &self.description.tokenizers;
        let text = tokenizers.target().decode(&hypothesis.tokens)?;
        let mut trace = Trace::new(self.description.model.kind, line, text.clone())
            .with_score(hypothesis.score)
            .with_rank(rank);
        if looking && !source.is_empty() {
            for map in self.maps(source, &hypothesis)? {
                trace = trace.with_map(map);
            }
        }
        if !hypothesis.weights.is_empty() && trace.maps.is_empty() {
            let keys = axis(tokenizers.source(), source, true)?;
            let queries = axis(tokenizers.target(), &hypothesis.tokens, hypothesis.finished)?;
            let weights = hypothesis.weights.concat();
            trace = trace.with_map(self.map(Kind::Cross, queries, keys, 1, weights)?);
        }
        Ok(Translation {
            text,
            score: hypothesis.score,
            log_probability: hypothesis.log_probability,
            tokens: hypothesis.tokens.len() + usize::from(hypothesis.finished),
            finished: hypothesis.finished,
            trace,
        })
    }

    /// A map of this model. Under some normalisers, and under local-p, its rows need not sum to 1.
    fn map(
        &self,
        kind: Kind,
        queries: Tokens,
        keys: Tokens,
        heads: usize,
        weights: Vec<f32>,
    ) -> Result<AttentionMap, TraceError> {
        match self.model.model().is_normalized() {
            true => AttentionMap::new(kind, queries, keys, heads, weights),
            false => AttentionMap::unnormalized(kind, queries, keys, heads, weights),
        }
    }

    /// How many heads the layers of the encoder, of the decoder and between them have; none in a model whose weights come with the search.
    fn heads(&self) -> Option<[usize; 3]> {
        // Only a look says so: one at marks alone.
        *self.heads.get_or_init(|| {
            let model = self.model.model();
            let vocabularies = model.vocabularies();
            let mark = vec![vocabularies.source.end];
            let reads = SourceBatch::new(&[mark], &vocabularies.source, &self.device);
            let writes = TargetBatch::new(&[vec![]], &vocabularies.target, &self.device);
            let looks = model.look(&reads, &writes)?;
            let heads = |layers: Vec<Tensor<4>>| -> usize {
                let heads = layers.iter().map(|weights| {
                    let [_, heads, ..] = weights.dims();
                    heads
                });
                heads.sum()
            };
            Some([looks.encoder, looks.decoder, looks.cross].map(heads))
        })
    }

    /// How many weights the maps of all these hypotheses have.
    fn numbers(&self, source: &[u32], found: &[Hypothesis]) -> usize {
        let Some([encoder, decoder, cross]) = self.heads() else {
            let weights = found.iter().flat_map(|one| &one.weights);
            return weights.map(Vec::len).sum();
        };
        // Both sides have a mark beside their tokens.
        let read = source.len() + 1;
        let map = |heads: usize, queries: usize, keys: usize| {
            heads.saturating_mul(queries).saturating_mul(keys)
        };
        let numbers = found.iter().flat_map(|one| {
            let written = one.tokens.len() + 1;
            [
                map(encoder, read, read),
                map(decoder, written, written),
                map(cross, written, read),
            ]
        });
        numbers.fold(0, usize::saturating_add)
    }

    /// The maps of every layer while `source` is read and `hypothesis` written, with all heads; an empty list for a model
    /// whose weights come with the search.
    fn maps(
        &self,
        source: &[u32],
        hypothesis: &Hypothesis,
    ) -> Result<Vec<AttentionMap>, LineError> {
        let model = self.model.model();
        let vocabularies = model.vocabularies();
        let written = std::slice::from_ref(&hypothesis.tokens);
        let reads = SourceBatch::new(&[source.to_vec()], &vocabularies.source, &self.device);
        let writes = TargetBatch::new(written, &vocabularies.target, &self.device);
        let looks = match self.opened {
            true => self.look_packed(source, hypothesis)?,
            false => match model.look(&reads, &writes) {
                Some(looks) => looks,
                None => return Ok(vec![]),
            },
        };
        let [read, inputs, written] = self.texts(source, hypothesis)?;
        let mut maps = vec![];
        // Cross-attention comes first, as it is nearest to an alignment.
        for (kind, layers, queries, keys) in [
            (Kind::Cross, looks.cross, &written, &read),
            (Kind::DecoderSelf, looks.decoder, &inputs, &inputs),
            (Kind::EncoderSelf, looks.encoder, &read, &read),
        ] {
            for (layer, weights) in layers.into_iter().enumerate().rev() {
                let [_, heads, ..] = weights.dims();
                let (rows, columns) = (queries.len(), keys.len());
                // A translation that was cut has no row for its end.
                let weights = weights.narrow(2, 0, rows).narrow(3, 0, columns);
                let weights = weights.into_data().iter::<f32>().collect();
                let map = self.map(kind, queries.clone(), keys.clone(), heads, weights)?;
                let map = match kind {
                    Kind::DecoderSelf => map.predicting(written.clone())?,
                    _ => map,
                };
                maps.push(map.at_layer(layer));
            }
        }
        Ok(maps)
    }
}

impl Translator {
    /// The maps of every layer, from the packed model with its changed heads.
    fn look_packed(
        &self,
        source: &[u32],
        hypothesis: &Hypothesis,
    ) -> Result<AttentionMaps, LineError> {
        // Both sides have a mark beside their tokens.
        let (read, written) = (source.len() + 1, hypothesis.tokens.len() + 1);
        let mut encoder = Look::new(read);
        let mut decoder = Look::new(written);
        decoder.source = Some(read);
        self.observe(source, hypothesis, &mut encoder, &mut decoder)?;
        let tensor = |seen: LookedAt, [queries, keys]: [usize; 2]| {
            let shape = [1, seen.heads, queries, keys];
            Tensor::<4>::from_data(TensorData::new(seen.weights, shape), &self.device)
        };
        let mut maps = AttentionMaps {
            encoder: encoder.maps().map(|seen| tensor(seen, [read; 2])).collect(),
            decoder: vec![],
            cross: vec![],
        };
        for seen in decoder.maps() {
            match seen.cross {
                true => maps.cross.push(tensor(seen, [written, read])),
                false => maps.decoder.push(tensor(seen, [written; 2])),
            }
        }
        Ok(maps)
    }
}

/// The mean negative log-likelihood per target token of `pairs`, teacher-forced, and the tokens. The `ranks` share the batches.
///
/// # Errors
/// Ranks that are gone.
pub fn teacher_forced(
    model: &AnyGenerator,
    pairs: &[EncodedPair],
    batches: &Batches,
    device: &Device,
    ranks: &dyn Ranks,
) -> Result<(f64, usize), RanksError> {
    let vocabularies = model.vocabularies();
    let score = |rows: &Vec<usize>| {
        let source: Vec<_> = rows.iter().map(|&i| pairs[i].source.clone()).collect();
        let target: Vec<_> = rows.iter().map(|&i| pairs[i].target.clone()).collect();
        let source = SourceBatch::new(&source, &vocabularies.source, device);
        let target = TargetBatch::new(&target, &vocabularies.target, device);
        let scored = model.forward(&source, &target, &mut DropoutRng::none());
        let batch = scored.cross_entropy(target.outputs, 0.0);
        (batch.nll, batch.tokens)
    };
    let scored: Vec<(f64, usize)> = ranks.spread(&batches.sorted(), |_, own| {
        Ok::<_, RanksError>(own.iter().map(score).collect())
    })?;
    let sum: f64 = scored.iter().map(|(sum, _)| sum).sum();
    let tokens: usize = scored.iter().map(|(_, tokens)| tokens).sum();
    Ok((sum / tokens.max(1) as f64, tokens))
}

/// The results of lines in their order.
///
/// # Errors
/// Why the first of those that were refused was.
pub(crate) fn of_lines(
    results: Vec<Option<Result<Translated, LineError>>>,
) -> Result<Vec<Translated>, LineError> {
    let results = (1..).zip(results.into_iter().flatten());
    results
        .map(|(line, result)| result.map_err(|error| error.of_line(line)))
        .collect()
}

/// Refuses more weights than fit in memory.
///
/// # Errors
/// How many they are.
pub(crate) fn expect_room(numbers: usize) -> Result<(), LineError> {
    match numbers <= MOST_WEIGHTS {
        true => Ok(()),
        false => Err(LineError::TooManyWeights {
            numbers,
            most: MOST_WEIGHTS,
        }),
    }
}

/// The search that `settings` describe.
pub fn beam_config(settings: &Settings) -> BeamConfig {
    BeamConfig {
        size: settings.beam,
        length_penalty: settings.length_penalty,
        coverage_penalty: settings.coverage_penalty,
        n_best: settings.n_best,
        no_repeat_ngram: settings.no_repeat_ngram,
        limit: LengthLimit {
            factor: settings.max_length.factor,
            constant: settings.max_length.extra,
            most: settings.max_length.absolute,
        },
        ..BeamConfig::default()
    }
}

/// Ids as the tokens of a picture's axis.
pub(crate) fn axis(
    tokenizer: &SubwordTokenizer,
    ids: &[u32],
    ended: bool,
) -> Result<Tokens, TokenizerError> {
    let end = ended.then_some(tokenizer.vocabulary().end);
    let ids: Vec<u32> = ids.iter().copied().chain(end).collect();
    let pieces = tokenizer.pieces(&ids)?.into_iter();
    Ok(pieces
        .zip(&ids)
        .map(|(piece, &id)| match tokenizer.is_special(id) {
            true => Token::special(piece.text).in_word(piece.word),
            false => Token::new(piece.text).in_word(piece.word),
        })
        .collect())
}
