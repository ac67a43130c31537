//! The weights of a decoder, the checks of their sizes, its norms and its activations.

use super::product::Product;
use crate::error::{KernelError, check_length};
use crate::norm::{self, Kind, Norm};
use crate::simd::{self, Kernel, Level, Simd, run};

/// The sizes of a decoder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sizes {
    /// The size of a state.
    pub model: usize,
    /// Query heads.
    pub heads: usize,
    /// Key/value heads, a divisor of `heads`.
    pub key_value_heads: usize,
    /// The features of a head.
    pub head: usize,
    /// How many positions a position sees, including itself; `None` for all.
    pub window: Option<usize>,
    /// Whether norms stand after the blocks.
    pub post_norm: bool,
}

/// The weights of a norm.
#[derive(Debug, Clone)]
pub struct NormWeights {
    /// The kind of norm.
    pub kind: Kind,
    /// `[model]`
    pub weight: Vec<f32>,
    /// `[model]`, for layer norm.
    pub bias: Option<Vec<f32>>,
    /// `ε`
    pub epsilon: f64,
}

/// The activation between the products of a feed-forward network.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Activation {
    /// `max(x, 0)`
    Relu,
    /// `SiLU(g) ∘ x` of `[g | x]`.
    Swiglu,
}

/// One layer.
#[derive(Debug, Clone)]
pub struct Layer {
    /// `W^Q | W^K | W^V` of self-attention, `[model, (heads + 2 key_value_heads) head]`.
    pub own: Product,
    /// `W^O [heads · head, model]`
    pub own_output: Product,
    /// Self-attention's norm.
    pub own_norm: NormWeights,
    /// `W^Q` of cross-attention, `[model, heads · head]`.
    pub cross_query: Product,
    /// `W^K | W^V` of cross-attention, `[source size, 2 key_value_heads · head]`.
    pub cross_source: Product,
    /// `W^O [heads · head, model]`
    pub cross_output: Product,
    /// Cross-attention's norm.
    pub cross_norm: NormWeights,
    /// `W_1 [model, inner]`; under SwiGLU `W_g | W_1 [model, 2 inner]`.
    pub inner: Product,
    /// `φ`
    pub activation: Activation,
    /// `W_2 [inner, model]`
    pub outer: Product,
    /// The feed-forward network's norm.
    pub outer_norm: NormWeights,
}

/// Checks both sizes of a matrix.
pub(super) fn expect(
    argument: &'static str,
    shape: &'static str,
    found: [usize; 2],
    expected: [usize; 2],
) -> Result<(), KernelError> {
    check_length(argument, shape, &[expected[0]], found[0])?;
    check_length(argument, shape, &[expected[1]], found[1])
}

impl Layer {
    pub(super) fn check(&self, sizes: &Sizes) -> Result<(), KernelError> {
        let Sizes {
            model,
            heads,
            key_value_heads,
            head,
            ..
        } = *sizes;
        let (query, both) = (heads * head, 2 * key_value_heads * head);
        expect(
            "own",
            "[model, (heads + 2 key_value_heads) head]",
            self.own.sizes(),
            [model, query + both],
        )?;
        expect(
            "own_output",
            "[heads · head, model]",
            self.own_output.sizes(),
            [query, model],
        )?;
        expect(
            "cross_query",
            "[model, heads · head]",
            self.cross_query.sizes(),
            [model, query],
        )?;
        let source = self.cross_source.sizes();
        expect(
            "cross_source",
            "[source, 2 key_value_heads · head]",
            source,
            [source[0], both],
        )?;
        expect(
            "cross_output",
            "[heads · head, model]",
            self.cross_output.sizes(),
            [query, model],
        )?;
        let [_, inner] = self.inner.sizes();
        expect(
            "inner",
            "[model, inner]",
            self.inner.sizes(),
            [model, inner],
        )?;
        let inner = match self.activation {
            Activation::Relu => inner,
            Activation::Swiglu => inner / 2,
        };
        expect(
            "outer",
            "[inner, model]",
            self.outer.sizes(),
            [inner, model],
        )?;
        [&self.own_norm, &self.cross_norm, &self.outer_norm]
            .into_iter()
            .try_for_each(|norm| norm.check(model))
    }
}

impl NormWeights {
    pub(super) fn check(&self, model: usize) -> Result<(), KernelError> {
        check_length("norm weight", "[model]", &[model], self.weight.len())?;
        match &self.bias {
            Some(bias) => check_length("norm bias", "[model]", &[model], bias.len()),
            None => Ok(()),
        }
    }

    pub(super) fn apply(&self, x: &[f32]) -> Result<Vec<f32>, KernelError> {
        let width = self.weight.len();
        let mut y = vec![0.0; x.len()];
        let norm = Norm {
            kind: self.kind,
            rows: x.len() / width.max(1),
            width,
            weight: Some(&self.weight),
            bias: self.bias.as_deref(),
            epsilon: self.epsilon,
        };
        norm::forward(&norm, x, &mut y)?;
        Ok(y)
    }
}

impl Activation {
    /// Applies to rows of `width` numbers; under SwiGLU half as many remain.
    pub(super) fn apply(self, x: &mut Vec<f32>, width: usize) {
        match self {
            Self::Relu => run(Level::current(), Relu(x)),
            Self::Swiglu => {
                let half = width / 2;
                let mut kept = Vec::with_capacity(x.len() / 2);
                for row in x.chunks_exact(width) {
                    let (gate, value) = row.split_at(half);
                    kept.extend_from_slice(gate);
                    let to = kept.len() - half;
                    run(
                        Level::current(),
                        Gated {
                            gate: &mut kept[to..],
                            value,
                        },
                    );
                }
                *x = kept;
            }
        }
    }
}

struct Relu<'a>(&'a mut [f32]);

impl Kernel for Relu<'_> {
    type Output = ();

    #[inline(always)]
    fn call<S: Simd>(self, s: S) {
        let zero = s.zero();
        simd::zip_map(
            s,
            [],
            [self.0],
            #[inline(always)]
            |[], [x]| [s.max(x, zero)],
        );
    }
}

/// `gate = gate σ(gate) value`
struct Gated<'a> {
    gate: &'a mut [f32],
    value: &'a [f32],
}

impl Kernel for Gated<'_> {
    type Output = ();

    #[inline(always)]
    fn call<S: Simd>(self, s: S) {
        simd::zip_map(
            s,
            [self.value],
            [self.gate],
            #[inline(always)]
            |[value], [gate]| [s.mul(s.mul(gate, simd::sigmoid(s, gate)), value)],
        );
    }
}
