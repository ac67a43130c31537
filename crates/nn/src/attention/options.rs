//! The options of one call of attention beside query, key and value, and what it reports beside the context.

use burn::tensor::Tensor;

use crate::{dropout::DropoutRng, mask::Mask, position::Alibi};

/// What to report of the weights. Asking changes no number, and where a kernel serves the call, nothing else is
/// materialised.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Observe {
    /// The context alone.
    #[default]
    Nothing,
    /// All weights, `[batch, heads, queries, keys]`.
    Weights,
    /// The weights of these queries, `[batch, heads, rows, keys]`, in this order.
    Rows(Vec<usize>),
    /// `-Σ_i α_i ln α_i` of each query, in nats, a sink counted as one more key: `[batch, heads, queries]`.
    Entropy,
    /// How much attention each key received, `Σ_t α_ti`: `[batch, heads, keys]`.
    ColumnSums,
    /// The most attended keys of each query and their weights, best first: `[batch, heads, queries, k]`. A key of
    /// weight 0 is reported as -1; weights that are NaN come first.
    TopK(usize),
}

/// Which implementation computes; the calls that a kernel serves are listed at [`KernelPlan`](crate::KernelPlan).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Path {
    /// A fused kernel where one serves, plain tensor operations elsewhere.
    #[default]
    Auto,
    /// A fused kernel, or an error that says why no kernel serves the call.
    Fused,
    /// Plain tensor operations, which define the result.
    Plain,
}

/// The options of one call of attention. [`AttentionOptions::new`] gives the usual ones.
///
/// ```
/// use burn::tensor::Device;
/// use regard_nn::{AttentionOptions, Observe, dropout::DropoutRng, mask::{PaddingMask, Mask}};
///
/// let padding = Mask::padding(PaddingMask::from_lengths(&[3, 5], 5, &Device::flex()));
/// let mut noise = DropoutRng::seeded(1);
/// let call = AttentionOptions::new(Observe::Entropy).mask(padding).noise(&mut noise);
/// assert_eq!(call.observe, Observe::Entropy);
/// ```
#[derive(Debug, Default)]
pub struct AttentionOptions<'a> {
    /// What to report.
    pub observe: Observe,
    /// What this batch may see, such as its padding; combined (`&`) with the mechanism's own mask.
    pub mask: Mask,
    /// Added to the scores after the softcap, such as a position bias: `[batch, heads, queries, keys]`,
    /// each of the four sizes or 1. `-∞` hides a key as a mask does.
    pub bias: Option<Tensor<4>>,
    /// Lowers the scores, after the softcap, with the distance of query and key; the last query stands at the last
    /// key. It has the effect of [`Alibi::bias`], without that tensor where a kernel serves the call.
    pub alibi: Option<&'a Alibi>,
    /// The randomness of dropout and of sampling; without it nothing is dropped and the most probable key
    /// is taken.
    pub noise: Option<&'a mut DropoutRng>,
    /// The number of the first query in its sequence, where a step of decoding has only a part of the sequence: masks
    /// count from the beginning ([`crate::mask`]).
    pub first_query: usize,
    /// The position of the first key in its sequence, where a rolling cache has dropped the beginning.
    pub first_key: usize,
    /// What the previous call returned in [`super::Attended::carried`], for mechanisms that continue from it
    /// (monotonic, NTM addressing, the Gaussian window).
    pub carried: Option<Tensor<4>>,
    /// Whether what is observed keeps its gradient, as a penalty on the weights needs. Takes the plain path.
    pub differentiable: bool,
    /// Which implementation computes.
    pub path: Path,
}

impl<'a> AttentionOptions<'a> {
    /// A call without padding, bias, noise or past.
    pub fn new(observe: Observe) -> Self {
        Self {
            observe,
            ..Self::default()
        }
    }

    /// Hides more keys: a query sees only what `mask` allows as well.
    pub fn mask(mut self, mask: Mask) -> Self {
        self.mask = self.mask & mask;
        self
    }

    /// With a bias on the scores.
    pub fn bias(mut self, bias: Tensor<4>) -> Self {
        self.bias = Some(bias);
        self
    }

    /// With scores lowered by the distance of query and key.
    pub fn alibi(mut self, alibi: &'a Alibi) -> Self {
        self.alibi = Some(alibi);
        self
    }

    /// With dropout and sampling drawn from `noise`.
    pub fn noise(mut self, noise: &'a mut DropoutRng) -> Self {
        self.noise = Some(noise);
        self
    }

    /// The queries are numbers `first_query..`.
    pub fn first_query(mut self, first_query: usize) -> Self {
        self.first_query = first_query;
        self
    }

    /// The keys are those of positions `first_key..`.
    pub fn first_key(mut self, first_key: usize) -> Self {
        self.first_key = first_key;
        self
    }

    /// Continues from the previous call.
    pub fn carried(mut self, carried: Option<Tensor<4>>) -> Self {
        self.carried = carried;
        self
    }

    /// What is observed keeps its gradient.
    pub fn differentiable(mut self) -> Self {
        self.differentiable = true;
        self
    }

    /// Uses the given implementation.
    pub fn path(mut self, path: Path) -> Self {
        self.path = path;
        self
    }
}
