//! How the log probability of an output changes with each attention weight, `∂ log p / ∂ a_ij`, and gradient times attention,
//! `a_ij ∂ log p / ∂ a_ij` (as of inputs: Denil et al. 2014, arXiv:1412.6815): to first order what the output would lose without the
//! weight.
//!
//! Each weight varies alone, as [`regard_nn::vary`] says: the others of its row stay as they are, and the row's sum changes with it.
//! `Σ_ij a_ij ∂ log p / ∂ a_ij` of a head is the derivative by a factor of the whole head (Michel et al. 2019, arXiv:1905.10650).
//! Everything is computed by plain tensor operations in `f32`: the numbers are those of the kernels up to rounding.

use std::fmt;

use burn::{
    module::Module,
    tensor::{Device, Int, Tensor, TensorData, activation::log_softmax},
};
use regard_nn::{
    dropout::DropoutRng,
    mask::PaddingMask,
    vary::{Varied, varied},
};

use crate::{
    batch::{SourceBatch, TargetBatch},
    erased::{AnyGenerator, AnyTextModel},
    pretrained::InputError,
};

/// The longest text whose weights are followed, in tokens.
pub const MOST_TOKENS: usize = 256;

/// The most attention weights that are followed, and the most weights of a model that are copied for it.
const MOST_FOLLOWED: usize = 1 << 25;
const MOST_PARAMETERS: usize = 1 << 30;

/// The gradients of one output with respect to all weights of a model's attention.
#[derive(Debug, Clone, PartialEq)]
pub struct OutputGradients {
    /// `log p` of the output, natural logarithm.
    pub log_probability: f64,
    /// Attention of the source to itself, by layer.
    pub source: Vec<WeightGradients>,
    /// Attention to itself of the text that is written, or of the only one, by layer.
    pub own: Vec<WeightGradients>,
    /// Attention of the text that is written to the source, by layer.
    pub cross: Vec<WeightGradients>,
}

/// The weights of one layer and their gradients.
#[derive(Debug, Clone, PartialEq)]
pub struct WeightGradients {
    /// `[heads, queries, keys]`
    pub shape: [usize; 3],
    /// `a_ij`, of this shape.
    pub weights: Vec<f32>,
    /// `∂ log p / ∂ a_ij`, of this shape.
    pub gradients: Vec<f32>,
}

impl WeightGradients {
    /// Gradient times attention, `a_ij ∂ log p / ∂ a_ij`, `[heads, queries, keys]`: 0 where the weight is 0.
    pub fn products(&self) -> Vec<f32> {
        let pairs = self.weights.iter().zip(&self.gradients);
        let product = |(&weight, &gradient): (&f32, &f32)| match weight == 0.0 {
            true => 0.0,
            false => weight * gradient,
        };
        pairs.map(product).collect()
    }
}

/// Why there are no gradients.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum GradientError {
    /// The model cannot read the text.
    Input(InputError),
    /// The text is too long.
    Long {
        /// Its length, in tokens.
        tokens: usize,
    },
    /// There are too many weights of attention.
    Weights {
        /// How many.
        found: usize,
    },
    /// The model is too large to be copied.
    Large {
        /// How many weights it has.
        parameters: usize,
    },
    /// The model attends in a way that is not followed: what it has.
    Unserved(&'static str),
}

impl fmt::Display for GradientError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Input(error) => error.fmt(f),
            Self::Long { tokens } => write!(
                f,
                "a text of {tokens} tokens is too long for gradients, which are computed for at most {MOST_TOKENS}; expected a shorter one"
            ),
            Self::Weights { found } => write!(
                f,
                "the model has {found} attention weights here, but gradients are computed of at most {MOST_FOLLOWED}; expected a shorter text, \
                 or a smaller image"
            ),
            Self::Large { parameters } => write!(
                f,
                "the model has {parameters} weights, but gradients are computed of models with at most {MOST_PARAMETERS}"
            ),
            Self::Unserved(what) => write!(f, "gradients of attention are not computed for {what}"),
        }
    }
}

impl std::error::Error for GradientError {}

impl From<InputError> for GradientError {
    fn from(error: InputError) -> Self {
        Self::Input(error)
    }
}

/// The model attends in other places than those whose weights are shown.
const ELSEWHERE: GradientError = GradientError::Unserved(
    "a model that attends in other places than its maps show, such as this one",
);

/// Refuses a text that is too long.
pub(crate) fn expect_short(tokens: usize) -> Result<(), GradientError> {
    match tokens <= MOST_TOKENS {
        true => Ok(()),
        false => Err(GradientError::Long { tokens }),
    }
}

/// Refuses as many weights of attention, or of a model.
pub(crate) fn expect_few(found: usize, parameters: usize) -> Result<(), GradientError> {
    if found > MOST_FOLLOWED {
        return Err(GradientError::Weights { found });
    }
    match parameters <= MOST_PARAMETERS {
        true => Ok(()),
        false => Err(GradientError::Large { parameters }),
    }
}

/// The gradients of what `work` computes, a log probability `[1]`, on a device with autodiff: with respect to the weights of each map that
/// the model has, whose shapes `[heads, queries, keys]` are `maps`, in the order in which they are computed. The `model` is that
/// of `work`.
///
/// # Errors
/// A model that is too large, too many weights; a model that attends in other places than its maps show.
pub fn of_maps<M: Module>(
    model: &M,
    maps: &[[usize; 3]],
    work: impl FnOnce() -> Tensor<1>,
) -> Result<(f64, Vec<WeightGradients>), GradientError> {
    let weights = maps.iter().map(|shape| shape.iter().product::<usize>());
    let weights = weights.fold(0, usize::saturating_add);
    expect_few(weights, model.num_params())?;
    let (log_probability, calls) = followed(vec![], work);
    match calls.iter().map(|call| &call.shape).eq(maps) {
        true => Ok((log_probability, calls)),
        false => Err(ELSEWHERE),
    }
}

/// `model` where its outputs can be differentiated, by its attention weights alone: with the running moments of its batch norms, as
/// without gradients.
pub fn followable<M: Module>(model: &M) -> M {
    Module::train(model.clone().freeze())
}

/// `Σ_t log softmax(logits_t)[tokens_t]`, `logits [rows, classes]`; `[1]`.
///
/// # Panics
/// If there are not as many rows as tokens.
pub fn log_probability(logits: Tensor<2>, tokens: &[u32]) -> Tensor<1> {
    let ids: Vec<i32> = tokens.iter().map(|&id| id as i32).collect();
    let ids =
        Tensor::<2, Int>::from_data(TensorData::new(ids, [tokens.len(), 1]), &logits.device());
    log_softmax(logits, 1).gather(1, ids).sum()
}

/// The output of `work`, a log probability, and the weights of each call of attention in it, each of one text.
pub(crate) fn followed(
    added: Vec<Tensor<4>>,
    work: impl FnOnce() -> Tensor<1>,
) -> (f64, Vec<WeightGradients>) {
    let (output, varied) = varied(added, work);
    if varied.is_empty() {
        // Nothing depends on a weight.
        return (number(output), vec![]);
    }
    let gradients = output.backward();
    let numbers = |tensor: Tensor<4>| tensor.into_data().iter::<f32>().collect();
    let of_call = |Varied { weights, added }: Varied| {
        let [_, heads, queries, keys] = weights.dims();
        let gradient = added.grad(&gradients);
        WeightGradients {
            shape: [heads, queries, keys],
            gradients: gradient.map_or_else(|| vec![0.0; heads * queries * keys], numbers),
            weights: numbers(weights.inner()),
        }
    };
    let calls = varied.into_iter().map(of_call).collect();
    (number(output), calls)
}

fn number(output: Tensor<1>) -> f64 {
    output.inner().into_data().iter::<f64>().sum()
}

/// The gradients of `log p` of `written`, which `model` writes after it has read `source` (both without marks); `finished` says
/// whether the mark that ends a text belongs to it.
///
/// # Errors
/// Texts that are too long, or without tokens; an architecture that attends in other places than encoder, decoder and between them.
///
/// # Panics
/// If an id is not in the vocabulary.
pub fn of_generator(
    model: &AnyGenerator,
    source: &[u32],
    written: &[u32],
    finished: bool,
    device: &Device,
) -> Result<OutputGradients, GradientError> {
    let (read, count) = (source.len() + 1, written.len() + usize::from(finished));
    expect_short(read.max(written.len() + 1))?;
    if source.is_empty() || count == 0 {
        return Err(GradientError::Unserved("a text without tokens"));
    }
    let device = device.clone().autodiff();
    let vocabularies = model.vocabularies();
    let reads = SourceBatch::new(&[source.to_vec()], &vocabularies.source, &device);
    let writes = TargetBatch::new(&[written.to_vec()], &vocabularies.target, &device);
    let end = vocabularies.target.end;
    let tokens: Vec<u32> = written.iter().copied().chain([end]).take(count).collect();
    let model = followable(model);
    let layers = model.look(&reads, &writes).map(|maps| maps.encoder.len());
    let (log_probability, calls) = followed(vec![], || {
        let scored = model.forward(&reads, &writes, &mut DropoutRng::none());
        let logits = scored.logits(); // [time, vocabulary]
        self::log_probability(logits.narrow(0, 0, count), &tokens)
    });
    let mut found = OutputGradients {
        log_probability,
        source: vec![],
        own: vec![],
        cross: vec![],
    };
    match layers {
        Some(1) if calls.iter().all(|call| call.shape[..2] == [1, 1]) => {
            // An LSTMN: of each word of the source its attention to those before, and of each word of the target that to the source, and
            // from the second on that to those before; which of them comes first the second word tells, which has one before it.
            let sees = |call: &WeightGradients, keys: usize| call.shape[2] == keys;
            let (source, rest) = calls.split_at((read - 1).min(calls.len()));
            let own_first = rest.get(1).is_some_and(|call| sees(call, 1));
            let (mut own, mut cross) = (
                vec![],
                rest.first().cloned().into_iter().collect::<Vec<_>>(),
            );
            for pair in rest.get(1..).unwrap_or_default().chunks(2) {
                let (to_own, to_source) = match pair {
                    [one, other] if own_first => (one, other),
                    [one, other] => (other, one),
                    _ => return Err(ELSEWHERE),
                };
                own.push(to_own.clone());
                cross.push(to_source.clone());
            }
            let steps =
                |calls: &[WeightGradients]| (1..).zip(calls).all(|(keys, call)| sees(call, keys));
            if !(steps(source) && steps(&own) && cross.iter().all(|call| sees(call, read)))
                || [source.len() + 1, cross.len()] != [read, written.len() + 1]
            {
                return Err(ELSEWHERE);
            }
            found
                .source
                .push(WeightGradients::of_steps(source, 1, [read, read]));
            found
                .own
                .push(WeightGradients::of_steps(&own, 1, [count, count]));
            found
                .cross
                .push(WeightGradients::of_steps(&cross, 0, [count, read]));
        }
        Some(layers) => {
            let decoder = written.len() + 1;
            let whole = |(at, call): (usize, &WeightGradients)| {
                let expected = match at.checked_sub(layers) {
                    None => [read, read],
                    Some(at) if at % 2 == 0 => [decoder, decoder],
                    Some(_) => [decoder, read],
                };
                call.shape[1..] == expected
            };
            if !calls.iter().enumerate().all(whole) {
                return Err(ELSEWHERE);
            }
            // The encoder's layers, and then of each layer of the decoder its own attention and that to the source.
            for (at, call) in calls.into_iter().enumerate() {
                match at.checked_sub(layers) {
                    None => found.source.push(call),
                    Some(at) if at % 2 == 0 => found.own.push(call.narrowed([count, count])),
                    Some(_) => found.cross.push(call.narrowed([count, read])),
                }
            }
        }
        None => {
            let steps = calls.iter().map(|call| call.shape[1]).sum::<usize>();
            let to_source = calls
                .iter()
                .all(|call| [call.shape[0], call.shape[2]] == [1, read]);
            if steps != written.len() + 1 || !to_source {
                return Err(ELSEWHERE);
            }
            found
                .cross
                .push(WeightGradients::of_steps(&calls, 0, [count, read]));
        }
    }
    Ok(found)
}

/// The gradients of `Σ log p(token | text up to place)` over `wanted`, pairs of a place and a token, while `model` reads `text`.
///
/// # Errors
/// A text that is too long; an architecture whose weights are not those of each token to the text.
///
/// # Panics
/// If an id is not in the vocabulary, or a place not in the text.
pub fn of_text_model(
    model: &AnyTextModel,
    text: &[u32],
    wanted: &[(usize, u32)],
    device: &Device,
) -> Result<OutputGradients, GradientError> {
    expect_short(text.len())?;
    let device = device.clone().autodiff();
    let ids: Vec<i32> = text.iter().map(|&id| id as i32).collect();
    let ids = Tensor::<2, Int>::from_data(TensorData::new(ids, [text.len(), 1]), &device);
    let keep = PaddingMask::from_lengths(&[text.len()], text.len(), &device);
    let model = followable(model);
    let layers = model.look(ids.clone(), &keep).len();
    let (log_probability, calls) = followed(vec![], || {
        let scored = model.forward(ids, &keep, &mut DropoutRng::none());
        let (places, tokens) = unzipped(wanted);
        let readout = scored
            .readout
            .select(0, Tensor::from_ints(&places[..], &device));
        self::log_probability(scored.output.logits(readout), &tokens)
    });
    let length = text.len();
    let whole = |call: &WeightGradients| call.shape[1..] == [length; 2];
    // Those of a recurrent layer: each word but the first sees those before.
    let recurrent =
        |(at, call): (usize, &WeightGradients)| call.shape == [1, 1, 1 + at % (length - 1)];
    let own = match calls.iter().all(whole) && calls.len() == layers {
        true => calls,
        false
            if length > 1
                && calls.len() == layers * (length - 1)
                && calls.iter().enumerate().all(recurrent) =>
        {
            let of_layer = calls.chunks_exact(length - 1);
            of_layer
                .map(|calls| WeightGradients::of_steps(calls, 1, [length; 2]))
                .collect()
        }
        false => return Err(ELSEWHERE),
    };
    Ok(OutputGradients {
        log_probability,
        source: vec![],
        own,
        cross: vec![],
    })
}

/// Places and tokens.
pub(crate) fn unzipped(wanted: &[(usize, u32)]) -> (Vec<i32>, Vec<u32>) {
    let pairs = wanted.iter();
    pairs.map(|&(place, token)| (place as i32, token)).unzip()
}

impl WeightGradients {
    /// The rows of `calls` of a single head, some of them for each step, as a map `[1, queries, keys]`; the first `skipped` rows, and the
    /// keys behind those that a row sees, are 0. Queries that the map does not have are left out.
    pub fn of_steps(calls: &[Self], skipped: usize, [queries, keys]: [usize; 2]) -> Self {
        let rows = |part: fn(&Self) -> &[f32]| {
            let mut all = vec![0.0; skipped.min(queries) * keys];
            for call in calls {
                for row in part(call).chunks_exact(call.shape[2]) {
                    let from = all.len();
                    all.extend_from_slice(&row[..row.len().min(keys)]);
                    all.resize(from + keys, 0.0);
                }
            }
            all.resize(queries * keys, 0.0);
            all
        };
        Self {
            shape: [1, queries, keys],
            weights: rows(|call| &call.weights),
            gradients: rows(|call| &call.gradients),
        }
    }

    /// Those of some queries, in this order.
    ///
    /// # Panics
    /// If there is no such query.
    pub fn of_queries(self, queries: &[usize]) -> Self {
        let [heads, of, keys] = self.shape;
        let kept = |all: &[f32]| {
            let rows =
                (0..heads).flat_map(|head| queries.iter().map(move |query| head * of + query));
            let parts = rows.flat_map(|row| all[row * keys..][..keys].to_vec());
            parts.collect()
        };
        Self {
            shape: [heads, queries.len(), keys],
            weights: kept(&self.weights),
            gradients: kept(&self.gradients),
        }
    }

    /// Those of the first queries and keys.
    fn narrowed(self, [queries, keys]: [usize; 2]) -> Self {
        let [heads, of, width] = self.shape;
        let kept = |all: &[f32]| {
            let rows = (0..heads).flat_map(|head| (0..queries).map(move |query| head * of + query));
            let parts = rows.flat_map(|row| all[row * width..][..keys].to_vec());
            parts.collect()
        };
        Self {
            shape: [heads, queries, keys],
            weights: kept(&self.weights),
            gradients: kept(&self.gradients),
        }
    }
}
