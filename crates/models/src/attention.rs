//! Score, normaliser and mask as keys of a configuration, and how a decoder reads its source with them.
//!
//! | key | choice | of |
//! |---|---|---|
//! | `score` | [`ScoreConfig`] | how well a query and a key match |
//! | `normalizer` | [`NormalizerConfig`] | from scores to weights |
//! | `mask` | [`SourceMaskConfig`] | what a recurrent decoder sees of its source |
//! | `mask`, `decoder_mask` | [`SelfMaskConfig`] | which tokens self-attention of a Transformer sees |
//!
//! Each is a name, or a table with the name as `kind`: `normalizer = "sparsemax"`, `mask = { kind = "block", size = 16 }`. The
//! mechanisms themselves are in [`regard_nn::score`], [`regard_nn::normalize`] and [`regard_nn::mask`]. The decoders of RNNsearch,
//! Luong's model and GNMT have a kernel for all steps at once, which serves softmax and their usual scores; with another score or
//! normaliser they run step by step through plain operations.

use std::borrow::Cow;

use burn::tensor::{Tensor, activation::log_softmax};
use regard_config::{
    Check, Choice, FRACTION, LARGEST_SIZE, NOT_NEGATIVE, Range, SIZE, choice, config,
};
use regard_nn::{
    Attention, AttentionError, AttentionOptions, Memory, Reading,
    attention::Sampled,
    bridge::mean,
    changed::{Place, at},
    dropout::DropoutRng,
    initialize::Initializer,
    mask::{Locality, Mask, PaddingMask},
    normalize::{
        Addressing, Estimator, Form, HardSample, Monotonic, Normalize, Reinforce, Sigmoid, Sink,
    },
    score::{
        Additive, Cosine, Distance, General, Location, ScaledGeneral, Score, WeightNormAdditive,
    },
};

use crate::{
    batch::TargetBatch,
    generator::{Scored, expect_valid},
    recurrent::{index, select_memory},
};

const BIAS: Range<f64> = Range {
    holds: |value| (-1e3..=1e3).contains(&value),
    expected: "-1000 to 1000",
};

const TEMPERATURE: Range<f64> = Range {
    holds: |value| (1e-3..=1e3).contains(&value),
    expected: "0.001 to 1000",
};

const SHIFT: Range<usize> = Range {
    holds: |value| (1..=64).contains(&value),
    expected: "1 to 64",
};

const DEVIATION: Range<f64> = Range {
    holds: |value| (0.0..=1e3).contains(&value),
    expected: "0 to 1000",
};

config! {
    /// Keys of the score "location".
    pub struct LocationConfig {
        /// Longest source in tokens, the end marker included.
        positions: usize = 100, in SIZE;
    }
}

choice! {
    /// How well a query q and a key k match.
    pub enum ScoreConfig {
        /// v^T tanh(W q + U k) with v of the size attention_dimension (Bahdanau 2014; Luong's concat).
        "additive" => Additive,
        /// The same with a bias, and with the length of v as a parameter of its own (Salimans and Kingma 2016).
        "weight-norm-additive" => WeightNormAdditive,
        /// q^T W k (Luong 2015).
        "general" => General,
        /// The same times a trained number.
        "scaled-general" => ScaledGeneral,
        /// q^T k, of equal sizes (Luong 2015).
        "dot" => Dot,
        /// q^T k / sqrt(size) (Vaswani 2017).
        "scaled-dot" => ScaledDot,
        /// The cosine of q and k times a number computed from q (Graves 2014).
        "cosine" => Cosine,
        /// -|q - k|^2 / sqrt(size) (Kim 2021).
        "distance" => Distance,
        /// W q, a score for each source position, whatever the key there (Luong 2015).
        "location" => Location(LocationConfig),
    }
}

impl ScoreConfig {
    /// Draws a score of queries and keys of these sizes.
    pub fn init(
        &self,
        [query, key]: [usize; 2],
        attention_dimension: usize,
        init: &mut Initializer,
    ) -> Score {
        match self {
            Self::Additive => Score::Additive(Additive::new(query, key, attention_dimension, init)),
            Self::WeightNormAdditive => Score::WeightNormAdditive(WeightNormAdditive::new(
                query,
                key,
                attention_dimension,
                init,
            )),
            Self::General => Score::General(General::new(query, key, init)),
            Self::ScaledGeneral => Score::ScaledGeneral(ScaledGeneral::new(query, key, init)),
            Self::Dot => Score::dot(),
            Self::ScaledDot => Score::scaled_dot(),
            Self::Cosine => Score::Cosine(Cosine::learned(query, init)),
            Self::Distance => Score::Distance(Distance::default()),
            Self::Location(config) => Score::Location(Location::new(query, config.positions, init)),
        }
    }

    /// Checks that it compares queries and keys of these sizes.
    pub(crate) fn expect_sizes(&self, [query, key]: [usize; 2], check: &mut Check) {
        let one_size = matches!(
            self,
            Self::Dot | Self::ScaledDot | Self::Cosine | Self::Distance
        );
        if one_size && query != key {
            check.fail(
                "score",
                format!("found {:?}, which compares vectors of one size: this decoder's states have {query} numbers, its annotations {key}", self.kind()),
                "\"additive\" or \"general\", which have weights between two sizes",
            );
        }
    }
}

config! {
    /// Keys of the normaliser "sink".
    pub struct SinkConfig {
        /// Whether the sink's score is trained, one number for each head; if not, it is 0 (softmax off by one).
        learned: bool = true;
    }
}

config! {
    /// Keys of the normaliser "sigmoid".
    pub struct SigmoidConfig {
        /// Added to every score; with -ln of the usual number of keys a row sums to about 1 at first.
        bias: f64 = -3.0, in BIAS;
    }
}

config! {
    /// Keys of the normaliser "hard-gumbel".
    pub struct GumbelConfig {
        /// Temperature of the relaxed draw, 0.001 to 1000: if lower, nearer to the draw, with noisier gradients.
        temperature: f64 = 1.0, in TEMPERATURE;
    }
}

config! {
    /// Keys of the normaliser "hard-reinforce".
    pub struct ReinforceConfig {
        /// Whether the softmax takes the place of the draw with probability 1/2 (as in the paper).
        soften: bool = true;
        /// Weight of the reward: the log-likelihood per token, above a running mean.
        reward: f64 = 1.0, in NOT_NEGATIVE;
        /// Weight of the entropy of the softmax, which keeps the draws from settling early.
        entropy: f64 = 0.01, in NOT_NEGATIVE;
        /// Share of its former value that the running mean keeps at every update, in [0, 1).
        memory: f64 = 0.9, in FRACTION;
    }
}

config! {
    /// Keys of the normaliser "monotonic".
    pub struct MonotonicConfig {
        /// Standard deviation of the noise on scores in training, which drives the stopping probabilities to 0 or 1.
        noise: f64 = 1.0, in DEVIATION;
        /// Whether the search reads a single key: the next one with a stopping probability of at least 1/2.
        hard_search: bool = false;
    }
}

config! {
    /// Keys of the normaliser "addressing".
    pub struct AddressingConfig {
        /// How far to either side a query may shift the weights.
        range: usize = 1, in SHIFT;
    }
}

choice! {
    /// From scores to weights.
    pub enum NormalizerConfig {
        /// e^s over its sum.
        "softmax" => Softmax,
        /// The same with one more score in the sum, whose weight goes to no key (Xiao 2024).
        "sink" => Sink(SinkConfig),
        /// The nearest weights that sum to 1, many of them exactly 0 (Martins and Astudillo 2016).
        "sparsemax" => Sparsemax,
        /// Between softmax and sparsemax (Peters 2019).
        "entmax15" => Entmax15,
        /// The sigmoid of each score; a row may sum to anything (Ramapuram 2024).
        "sigmoid" => Sigmoid(SigmoidConfig),
        /// Hard attention: in training one drawn key, with the gradient of the softmax; in the search the best key.
        "hard-straight-through" => HardStraightThrough,
        /// The same with the gradient of the relaxed draw (Jang 2017).
        "hard-gumbel" => HardGumbel(GumbelConfig),
        /// The same trained by reward (Xu 2015).
        "hard-reinforce" => HardReinforce(ReinforceConfig),
        /// Monotonic attention: reading only moves forward, and stops at a key (Raffel 2017).
        "monotonic" => Monotonic(MonotonicConfig),
        /// Softmax, mixed with the weights of the step before, shifted and sharpened (Graves 2014, NTM).
        "addressing" => Addressing(AddressingConfig),
    }
}

impl NormalizerConfig {
    /// Draws a normaliser for this many heads, with queries of `query_size`.
    pub fn init(&self, heads: usize, query_size: usize, init: &mut Initializer) -> Normalize {
        let hard = |estimator| Normalize::HardSample(HardSample::new(estimator));
        match self {
            Self::Softmax => Normalize::softmax(),
            Self::Sink(SinkConfig { learned: true }) => Normalize::Sink(Sink::learned(heads, init)),
            Self::Sink(_) => Normalize::Sink(Sink::fixed(0.0)),
            Self::Sparsemax => Normalize::sparsemax(),
            Self::Entmax15 => Normalize::entmax15(),
            Self::Sigmoid(config) => Normalize::Sigmoid(Sigmoid::with_bias(config.bias)),
            Self::HardStraightThrough => hard(Estimator::StraightThrough),
            Self::HardGumbel(config) => hard(Estimator::Gumbel {
                temperature: config.temperature,
            }),
            Self::HardReinforce(config) => hard(Estimator::Reinforce {
                soften: config.soften,
            }),
            Self::Monotonic(config) => {
                Normalize::Monotonic(Monotonic::new(Form::Parallel).with_noise(config.noise))
            }
            Self::Addressing(config) => {
                Normalize::Addressing(Addressing::new(query_size, config.range, init))
            }
        }
    }

    /// Whether a row of weights sums to 1.
    pub fn sums_to_one(&self) -> bool {
        !matches!(self, Self::Sink(_) | Self::Sigmoid(_) | Self::Monotonic(_))
    }

    /// Whether rows of `attention`, which has this normaliser, sum to 1: the Gaussian of local-p is not normalised again.
    pub(crate) fn is_normalized(&self, attention: &Attention) -> bool {
        self.sums_to_one() && !matches!(attention.locality(), Locality::Predictive { .. })
    }

    /// The draws of hard attention that learns by reward, with the rule of the reward.
    pub(crate) fn draws(&self, sampled: Option<Sampled>) -> Option<Draws> {
        match self {
            Self::HardReinforce(config) => Some(Draws {
                sampled: sampled?,
                rule: Reinforce {
                    reward: config.reward,
                    entropy: config.entropy,
                    memory: config.memory,
                    ..Reinforce::default()
                },
            }),
            _ => None,
        }
    }

    /// `attention`, trained with this normaliser, in the form that the search uses.
    pub(crate) fn searching<'a>(&self, attention: &'a Attention) -> Cow<'a, Attention> {
        match self {
            Self::Monotonic(MonotonicConfig {
                hard_search: true, ..
            }) => {
                let hard = Normalize::Monotonic(Monotonic::new(Form::Hard));
                Cow::Owned(attention.clone().with_normalize(hard))
            }
            _ => Cow::Borrowed(attention),
        }
    }
}

config! {
    /// Keys of the masks "local-m" and "local-p".
    pub struct LocalConfig {
        /// Half width D of the window, in tokens.
        window: usize = 10, in SIZE;
    }
}

choice! {
    /// What a decoder sees of its source.
    pub enum SourceMaskConfig {
        /// All of it.
        "none" => None,
        /// A window around the target's own position (Luong 2015).
        "local-m" => LocalM(LocalConfig),
        /// A window around a position that the decoder predicts, with a Gaussian on the weights.
        "local-p" => LocalP(LocalConfig),
    }
}

impl SourceMaskConfig {
    /// The choice as the type of `regard-nn`.
    pub fn locality(&self) -> Locality {
        match self {
            Self::None => Locality::Global,
            Self::LocalM(LocalConfig { window }) => Locality::Monotonic {
                half_width: *window,
            },
            Self::LocalP(LocalConfig { window }) => Locality::Predictive {
                half_width: *window,
            },
        }
    }
}

config! {
    /// Keys of the mask "longformer".
    pub struct LongformerConfig {
        /// How many tokens back (in the encoder: to either side) a token sees, itself among them.
        window: usize = 8, in SIZE;
        /// Which of these it sees: every one (1), every second (2) and so on.
        dilation: usize = 1, in SIZE;
        /// Positions that see all and are seen by all, counted from 0.
        global: Vec<usize> = vec![0];
    }
    check LongformerConfig::agree
}

impl LongformerConfig {
    fn agree(&self, check: &mut Check) {
        let far = self
            .global
            .iter()
            .find(|&&position| position >= LARGEST_SIZE);
        if let Some(position) = far {
            let expected = format!("positions below {LARGEST_SIZE}");
            check.fail("global", format!("found {position}"), expected);
        }
    }
}

config! {
    /// Keys of the mask "block".
    pub struct BlockConfig {
        /// Tokens of a block.
        size: usize = 16, in SIZE;
    }
}

config! {
    /// Keys of the mask "chunked".
    pub struct ChunkedConfig {
        /// Tokens of a chunk.
        size: usize = 16, in SIZE;
        /// How many chunks before its own a token sees.
        left: usize = 1, in SIZE;
    }
}

choice! {
    /// What a token sees of its own sequence, apart from the key `window`, which is another mask.
    pub enum SelfMaskConfig {
        /// All of it (in the decoder: itself and the tokens before).
        "none" => None,
        /// A window, and a few global positions (Beltagy 2020).
        "longformer" => Longformer(LongformerConfig),
        /// The block that it is in (Qiu 2019).
        "block" => Block(BlockConfig),
        /// The chunk that it is in, and some before (Zhang 2020).
        "chunked" => Chunked(ChunkedConfig),
    }
}

impl SelfMaskConfig {
    /// The mask.
    ///
    /// # Errors
    /// A size of 0.
    pub fn mask(&self) -> Result<Mask, AttentionError> {
        match self {
            Self::None => Ok(Mask::all()),
            Self::Longformer(config) => {
                Mask::longformer(config.window, config.dilation, &config.global)
            }
            Self::Block(config) => Mask::block(config.size),
            Self::Chunked(config) => Mask::chunked(config.size, config.left),
        }
    }
}

/// A source that a decoder reads step by step, with what is carried from one reading to the next.
#[derive(Debug, Clone)]
pub struct SourceReader {
    /// The annotations.
    pub memory: Memory,
    /// The carried state of normalisers whose rows depend on the rows before.
    carried: Option<Tensor<4>>,
    /// The number of the next step.
    step: usize,
}

impl SourceReader {
    /// A reader of `annotations [batch, source, size]`, before its first step.
    pub(crate) fn new(attention: &Attention, annotations: Tensor<3>, keep: PaddingMask) -> Self {
        Self {
            memory: expect_valid(attention.memory(annotations, keep)),
            carried: None,
            step: 0,
        }
    }

    /// Reads with the states of the next steps, `query [rows, steps, size]`.
    ///
    /// # Panics
    /// Never: the sizes of memory and states follow from one configuration.
    pub(crate) fn read(
        &mut self,
        attention: &Attention,
        query: Tensor<3>,
        noise: &mut DropoutRng,
    ) -> Reading {
        let [_, steps, _] = query.dims();
        let options = AttentionOptions::default()
            .first_query(self.step)
            .carried(self.carried.take())
            .noise(noise);
        let place = Place {
            decoder: true,
            cross: true,
            layer: 0,
        };
        let reading = match at(place, || attention.read(query, &self.memory, options)) {
            Ok(reading) => reading,
            Err(error) => unreachable!("{error}"),
        };
        self.carried = reading.carried.clone();
        self.step += steps;
        reading
    }

    /// The rows at `rows`; see [`DecoderState::select`](crate::DecoderState::select).
    pub(crate) fn select(self, rows: &[usize], same_sources: bool) -> Self {
        let carried = self.carried.map(|carried| {
            let index = index(rows, &carried.device());
            carried.select(0, index)
        });
        Self {
            memory: select_memory(self.memory, rows, same_sources),
            carried,
            step: self.step,
        }
    }
}

/// The keys that hard attention drew while a batch was scored, and the rule by which it learns from them.
#[derive(Debug, Clone)]
pub struct Draws {
    sampled: Sampled, // [batch, 1, steps]
    rule: Reinforce,
}

impl Scored {
    /// The term that REINFORCE adds to the loss, `[1]`, and the baseline after this batch; `None` for models that draw no keys by
    /// it. The reward of a sentence is its mean log-likelihood per token, so that long and short sentences can share a
    /// baseline. Without a `baseline` the mean reward of this batch is the first one.
    pub fn reinforced(
        &self,
        target: &TargetBatch,
        baseline: Option<f32>,
    ) -> Option<(Tensor<1>, f32)> {
        let Draws { sampled, mut rule } = self.draws.clone()?;
        let [batch, _, steps] = sampled.log_probability.dims();
        let by_sentence = |x: Tensor<2>| x.reshape([steps, batch]).swap_dims(0, 1);
        let outputs = target.outputs.clone().unsqueeze_dim::<2>(1); // [time · batch, 1]
        let kept = outputs.clone().not_equal_elem(self.padding).float();
        let kept = by_sentence(kept); // [batch, time]
        let likelihoods = log_softmax(self.logits().detach(), 1).gather(1, outputs);
        let sums = (by_sentence(likelihoods) * kept.clone()).sum_dim(1);
        let reward: Tensor<1> = (sums / kept.clone().sum_dim(1)).squeeze_dim(1);
        let of_sentences = |x: Tensor<3>| x * kept.clone().unsqueeze_dim(1);
        let sampled = Sampled {
            keys: sampled.keys,
            log_probability: of_sentences(sampled.log_probability),
            entropy: of_sentences(sampled.entropy),
        };
        rule.baseline = match baseline {
            Some(baseline) => baseline.into(),
            None => mean(reward.clone()).into_scalar::<f32>().into(),
        };
        let term = rule.loss(reward, &sampled);
        Some((term, rule.baseline as f32))
    }
}
