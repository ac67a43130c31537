//! Which kernel serves a call, or why none does. This is decided here and nowhere else.
//!
//! | score | normaliser | mask | around it | plan |
//! |---|---|---|---|---|
//! | dot, scaled dot, general, scaled general, cosine, any that [says so](ScoreFunction::form) | softmax, sink | any | grouped heads, softcap, bias, ALiBi, dropout, any [`Observe`] | [`KernelPlan::Dot`] |
//! | dot, scaled dot | softmax | any | in a [`MultiHead`], also with rotary positions, RMS norm of queries and keys, a gate: the same, but no bias and [`Observe::Nothing`] | [`KernelPlan::Projected`] |
//! | additive, weight-normed additive, any that says so | softmax | padding | grouped heads, bias, any [`Observe`] | [`KernelPlan::Additive`] |
//! | as `Dot`, on a graphics card | softmax | causal, window, padding | grouped heads, softcap, bias, any [`Observe`] | [`KernelPlan::Card`] |
//!
//! The first three serve `f32` on the Flex backend with the feature `kernels`, the last one f32, f16 and bfloat16 on devices of the features
//! `wgpu` and `cuda`. A plan is made without looking at the numbers: a
//! sink that is not finite, and a bias of `-∞` beside keys, values or scores that are not finite, take the plain path
//! afterwards ([`Unserved::NotFinite`]).
//!
//! A call that takes the plain path says so in a [`tracing`] event of level `debug`, with the reason; the command `regard explain
//! MECHANISM --path` prints it.
//!
//! [`MultiHead`]: crate::heads::MultiHead
//! [`ScoreFunction::form`]: crate::score::ScoreFunction::form

use std::fmt;

use burn::tensor::Tensor;

use super::{Attention, AttentionError, AttentionOptions, Observe, Path};
use crate::{
    bridge, changed,
    mask::{Grid, Mask, Rule},
    normalize::Normalize,
    score::{KernelForm, Score, Sizes},
};

/// The kernel that serves a call: [`Attention::plan`], [`MultiHead::plan`](crate::heads::MultiHead::plan).
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub enum KernelPlan {
    /// Dot products, softmax and reading in one operation, which never holds the matrix of scores.
    Dot {
        /// The factor of the products.
        scale: f64,
    },
    /// The same with the projections of queries, keys and values.
    Projected {
        /// The factor of the products.
        scale: f64,
    },
    /// The additive score, softmax and reading in one operation.
    Additive,
    /// [`KernelPlan::Dot`] on a graphics card.
    Card {
        /// The factor of the products.
        scale: f64,
    },
}

impl fmt::Display for KernelPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Dot { .. } => "the dot-product kernel",
            Self::Projected { .. } => "the dot-product kernel, projections included",
            Self::Additive => "the additive kernel",
            Self::Card { .. } => "the dot-product kernel for graphics cards",
        })
    }
}

/// Why a call takes plain tensor operations.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[error("no kernel serves {}: plain operations", self.what())]
pub enum Unserved {
    /// [`Path::Plain`] was asked for.
    Asked,
    /// Another precision than `f32`, another backend than Flex, or kernels that are off: by
    /// [`without_kernels`](crate::bridge::without_kernels), or without the feature `kernels`.
    Tensors,
    /// This score has no form that a kernel knows.
    Score(&'static str),
    /// This normaliser is not computed by the score's kernel.
    Normalizer(&'static str),
    /// local-p, whose Gaussian acts on the weights.
    Predictor,
    /// Observations with a gradient.
    Differentiable,
    /// More features than the kernel takes.
    Size(usize),
    /// A mask that the additive kernel does not know.
    Mask,
    /// A mask that the kernel for graphics cards does not know.
    CardMask,
    /// An option that the kernel does not know.
    Around(&'static str),
    /// Talking heads or Shaw's vectors for values, which act on scores and weights.
    BetweenWords,
    /// Heads that are changed or recorded ([`crate::changed`]).
    Changed,
    /// Numbers that are not finite in hidden places, which only plain operations keep from spreading.
    NotFinite(&'static str),
}

impl Unserved {
    /// What no kernel serves, as text.
    pub fn what(&self) -> String {
        match self {
            Self::Asked => "Path::Plain".to_owned(),
            Self::Tensors => "tensors other than f32 on the Flex backend".to_owned(),
            Self::Score(name) => format!("the {name} score"),
            Self::Normalizer(name) => format!("the {name} normaliser"),
            Self::Predictor => "local-p".to_owned(),
            Self::Differentiable => "differentiable observations".to_owned(),
            Self::Size(size) => format!(
                "a size of {size} (the kernel takes up to {})",
                bridge::MAX_SIZE
            ),
            Self::Mask => "a mask other than padding".to_owned(),
            Self::CardMask => "a mask other than causal, window and padding on a card".to_owned(),
            Self::Around(what) | Self::NotFinite(what) => (*what).to_owned(),
            Self::Changed => "heads that are changed or recorded".to_owned(),
            Self::BetweenWords => "talking heads or Shaw's vectors for values".to_owned(),
        }
    }

    /// The error for a call that required a kernel; otherwise, a tracing event that says why none serves.
    pub(super) fn refuse_or_tell(
        &self,
        attention: &Attention,
        path: Path,
    ) -> Result<(), AttentionError> {
        if path == Path::Fused {
            let advice = "use Path::Auto";
            return Err(AttentionError::combination(
                "path",
                "Fused",
                self.what(),
                advice,
            ));
        }
        tracing::debug!(
            score = attention.score.name(),
            normalizer = attention.normalize.name(),
            "{self}"
        );
        Ok(())
    }
}

/// What a plan depends on, apart from the mechanism and the options of the call.
pub(crate) struct Asked<'a> {
    /// Whether kernels accept these tensors.
    pub(crate) tensors: bool,
    /// Whether the kernel for graphics cards does.
    pub(crate) card: bool,
    /// The sizes of a query and of a value.
    pub(crate) sizes: [usize; 2],
    /// All masks that hide keys.
    pub(crate) mask: &'a Mask,
    pub(crate) grid: &'a Grid,
    /// Whether scores are lowered by distance.
    pub(crate) alibi: bool,
    /// Whether the mechanism adds steps of its own ([`Between`](super::between::Between)).
    pub(crate) between: bool,
}

impl KernelPlan {
    /// The plan for a call whose shapes fit together.
    pub(crate) fn of(
        attention: &Attention,
        call: &AttentionOptions<'_>,
        asked: Asked<'_>,
    ) -> Result<Self, Unserved> {
        let no = |no: bool, unserved: Unserved| if no { Err(unserved) } else { Ok(()) };
        no(call.path == Path::Plain, Unserved::Asked)?;
        no(!asked.tensors && !asked.card, Unserved::Tensors)?;
        no(asked.between, Unserved::BetweenWords)?;
        no(changed::concerns(), Unserved::Changed)?;
        no(attention.predictor.is_some(), Unserved::Predictor)?;
        no(call.differentiable, Unserved::Differentiable)?;
        let [query_size, value_size] = asked.sizes;
        let (score, normalize) = (&attention.score, &attention.normalize);
        let form = score
            .form(query_size)
            .ok_or(Unserved::Score(score.name()))?;
        let of_normalizer = Unserved::Normalizer(normalize.name());
        match form {
            KernelForm::Dot { scale } => {
                let served = matches!(normalize, Normalize::Softmax(_) | Normalize::Sink(_));
                no(!served, of_normalizer)?;
                let size = match score.sizes() {
                    Sizes::Made { key, .. } => key,
                    _ => query_size,
                };
                let largest = size.max(value_size);
                no(largest > bridge::MAX_SIZE, Unserved::Size(largest))?;
                if !asked.card {
                    return Ok(Self::Dot { scale });
                }
                let sink = matches!(normalize, Normalize::Sink(_));
                let drops = attention.dropout > 0.0 && call.noise.is_some();
                no(sink, Unserved::Normalizer(normalize.name()))?;
                no(drops, Unserved::Around("dropout on the weights"))?;
                no(asked.alibi, Unserved::Around("ALiBi"))?;
                // One that does not fit is refused by the plain path.
                no(asked.mask.check(asked.grid).is_err(), Unserved::CardMask)?;
                let mask = asked.mask.for_kernel(asked.grid, None);
                no(!mask.is_band(), Unserved::CardMask)?;
                // What a card takes along an axis of a launch.
                let many = asked.grid.batch.max(asked.grid.heads) > 65_535;
                no(
                    many,
                    Unserved::Around("more than 65,535 texts or heads on a card"),
                )?;
                Ok(Self::Card { scale })
            }
            KernelForm::Additive => {
                no(asked.card, Unserved::Tensors)?;
                no(!matches!(normalize, Normalize::Softmax(_)), of_normalizer)?;
                let known = match &asked.mask.0 {
                    Rule::All => true,
                    Rule::Padding(keep) => {
                        keep.batch() == asked.grid.batch && asked.grid.first_key == 0
                    }
                    _ => false,
                };
                no(!known, Unserved::Mask)?;
                let drops = attention.dropout > 0.0 && call.noise.is_some();
                no(attention.softcap.is_some(), Unserved::Around("a softcap"))?;
                no(drops, Unserved::Around("dropout on the weights"))?;
                no(asked.alibi, Unserved::Around("ALiBi"))?;
                Ok(Self::Additive)
            }
        }
    }

    /// The same plan with projections, where the operation that includes them serves the call too.
    pub(crate) fn with_projections(
        self,
        attention: &Attention,
        call: &AttentionOptions<'_>,
    ) -> Self {
        let served = matches!(attention.score, Score::Dot(_) | Score::ScaledDot(_))
            && matches!(attention.normalize, Normalize::Softmax(_))
            && call.observe == Observe::Nothing
            && call.bias.is_none()
            && call.alibi.is_none()
            && call.carried.is_none();
        match self {
            Self::Dot { scale } if served => Self::Projected { scale },
            other => other,
        }
    }
}

impl Attention {
    /// The kernel that serves [`Attention::forward_with`] for a query `[batch, heads, queries, size]` and a value `[batch, key heads,
    /// keys, size]` whose shapes fit the mechanism, as far as this can be told without their numbers.
    ///
    /// ```
    /// use burn::tensor::{DType, Device, Tensor};
    /// use regard_nn::{Attention, AttentionOptions, KernelPlan, Unserved, normalize::Normalize, score::Score};
    ///
    /// let x = Tensor::<4>::ones([1, 2, 3, 16], &Device::flex());
    /// let attention = Attention::new(Score::scaled_dot());
    /// # if cfg!(feature = "kernels") {
    /// let plan = attention.plan(&x, &x, &AttentionOptions::default());
    /// assert_eq!(plan, Ok(KernelPlan::Dot { scale: 0.25 }));
    ///
    /// let sparse = attention.clone().with_normalize(Normalize::sparsemax());
    /// let unserved = sparse.plan(&x, &x, &AttentionOptions::default()).unwrap_err();
    /// assert_eq!(unserved, Unserved::Normalizer("sparsemax"));
    /// assert_eq!(unserved.to_string(), "no kernel serves the sparsemax normaliser: plain operations");
    /// # }
    /// let x = x.cast(DType::F64);
    /// assert_eq!(attention.plan(&x, &x, &AttentionOptions::default()), Err(Unserved::Tensors));
    /// ```
    ///
    /// # Errors
    /// The reason why no kernel serves.
    pub fn plan(
        &self,
        query: &Tensor<4>,
        value: &Tensor<4>,
        call: &AttentionOptions<'_>,
    ) -> Result<KernelPlan, Unserved> {
        let [batch, heads, queries, query_size] = query.dims();
        let [_, _, keys, value_size] = value.dims();
        let grid = Grid {
            batch,
            heads,
            queries,
            keys,
            first_query: call.first_query,
            first_key: call.first_key,
        };
        let asked = Asked {
            tensors: bridge::serves(query),
            card: bridge::card_serves(query),
            sizes: [query_size, value_size],
            mask: &(self.mask.clone() & call.mask.clone()),
            grid: &grid,
            alibi: call.alibi.is_some(),
            between: false,
        };
        KernelPlan::of(self, call, asked)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mask_that_does_not_fit_a_card_is_left_to_the_plain_path() {
        let grid = Grid {
            batch: 2,
            heads: 1,
            queries: 3,
            keys: 3,
            ..Grid::default()
        };
        let plan = |mask: &Mask| {
            let asked = Asked {
                tensors: false,
                card: true,
                sizes: [4, 4],
                mask,
                grid: &grid,
                alibi: false,
                between: false,
            };
            let attention = Attention::new(Score::dot());
            KernelPlan::of(&attention, &AttentionOptions::default(), asked)
        };
        assert_eq!(plan(&Mask::causal()), Ok(KernelPlan::Card { scale: 1.0 }));
        for unfit in [Mask::document(&[vec![0]]), Mask::prefix(&[])] {
            assert_eq!(plan(&unfit), Err(Unserved::CardMask));
        }
    }
}
