//! The weights of a stack, the checks of their sizes, and its norms.

use super::product::Product;
use crate::activation::Activation;
use crate::error::{KernelError, check_length, check_size, check_value, product};
use crate::norm::{self, Kind, Norm};
use crate::threads::{RowsMut, for_each_chunk, rows};

/// The sizes of a stack, and how it scores.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Sizes {
    /// The size of a state.
    pub model: usize,
    /// Query heads.
    pub heads: usize,
    /// Key/value heads, a divisor of `heads`.
    pub key_value_heads: usize,
    /// The features of a head.
    pub head: usize,
    /// `c` of `c tanh(score / c)`.
    pub softcap: Option<f32>,
    /// Whether a position sees only itself and those before it.
    pub causal: bool,
}

impl Sizes {
    /// Causal, without a softcap.
    pub fn new(model: usize, heads: usize, key_value_heads: usize, head: usize) -> Self {
        Self {
            model,
            heads,
            key_value_heads,
            head,
            softcap: None,
            causal: true,
        }
    }

    /// The features of all queries, and of all keys, of a position.
    pub(super) fn widths(&self) -> (usize, usize) {
        (self.heads * self.head, self.key_value_heads * self.head)
    }
}

/// The weights of a norm.
#[derive(Debug, Clone)]
pub struct NormWeights {
    /// The kind of norm.
    pub kind: Kind,
    /// `[width]`
    pub weight: Vec<f32>,
    /// `[width]`, for layer norm.
    pub bias: Option<Vec<f32>>,
    /// `ε`
    pub epsilon: f64,
}

/// The norms around a part of a block: `x ← after(x + inside(f(before(x))))`, each of them optional.
#[derive(Debug, Clone)]
pub struct Norms<N = NormWeights> {
    /// Applied to the part's input (pre-norm).
    pub before: Option<N>,
    /// Applied to the part's output (Gemma 2 and 3).
    pub inside: Option<N>,
    /// Applied to the residual sum (post-norm).
    pub after: Option<N>,
}

impl<N> Norms<N> {
    /// Pre-norm.
    pub fn before(norm: N) -> Self {
        Self {
            before: Some(norm),
            ..Self::default()
        }
    }

    /// Post-norm.
    pub fn after(norm: N) -> Self {
        Self {
            after: Some(norm),
            ..Self::default()
        }
    }
}

impl<N> Default for Norms<N> {
    fn default() -> Self {
        Self {
            before: None,
            inside: None,
            after: None,
        }
    }
}

/// Self-attention of one block.
#[derive(Debug, Clone)]
pub struct SelfAttention<P = Product, N = NormWeights> {
    /// `W^Q | W^K | W^V`, `[model, (heads + 2 key_value_heads) head]`.
    pub query_key_value: P,
    /// `W^O [heads · head, model]`
    pub output: P,
    /// Normalises each query.
    pub query_norm: Option<N>,
    /// Normalises each key.
    pub key_norm: Option<N>,
    /// The factor of the scores; `None` for `1 / √head`.
    pub scale: Option<f32>,
    /// How many positions a position sees, including itself; in a stack that is not causal, to either side of itself, without
    /// itself. `None` for all.
    pub window: Option<usize>,
    /// Which of the stack's [`Rotation`](super::Rotation)s turns queries and keys.
    pub rotation: Option<usize>,
    /// The projections of global positions.
    pub global: Option<GlobalAttention<P>>,
    /// Norms around it.
    pub norms: Norms<N>,
}

/// What global positions see with (Longformer; Beltagy et al. 2020): each of them sees all positions, by projections of its own,
/// and is seen by all, by those of the others. See [`Stack::forward_with_global`](super::Stack::forward_with_global).
#[derive(Debug, Clone)]
pub struct GlobalAttention<P = Product> {
    /// `W^Q [model, heads · head]`, of a global position.
    pub query: P,
    /// `W^K | W^V`, `[model, 2 key_value_heads · head]`, of all positions that it sees.
    pub key_value: P,
}

/// Attention of one block to a source.
#[derive(Debug, Clone)]
pub struct CrossAttention<P = Product, N = NormWeights> {
    /// `W^Q [model, heads · head]`
    pub query: P,
    /// `W^K | W^V`, `[source size, 2 key_value_heads · head]`.
    pub key_value: P,
    /// `W^O [heads · head, model]`
    pub output: P,
    /// The factor of the scores; `None` for `1 / √head`.
    pub scale: Option<f32>,
    /// Norms around it.
    pub norms: Norms<N>,
}

/// The feed-forward network of one block.
#[derive(Debug, Clone)]
pub struct FeedForward<P = Product, N = NormWeights> {
    /// `W_1 [model, inner]`; with a gate `W_g | W_1 [model, 2 inner]`.
    pub inner: P,
    /// `φ`
    pub activation: Activation,
    /// Whether `φ(W_g x)` multiplies `W_1 x`.
    pub gated: bool,
    /// `W_2 [inner, model]`
    pub outer: P,
    /// Norms around it. `before` is not used if `parallel`.
    pub norms: Norms<N>,
    /// Whether its input is that of self-attention, after the norm, and not its output.
    pub parallel: bool,
}

/// One block. A field of a matrix or a norm may also hold something that it is made of, such as its name in a file: see
/// [`Block::try_map`].
#[derive(Debug, Clone)]
pub struct Block<P = Product, N = NormWeights> {
    /// Self-attention.
    pub attention: SelfAttention<P, N>,
    /// Attention to a source.
    pub cross: Option<CrossAttention<P, N>>,
    /// Feed-forward network.
    pub feed_forward: FeedForward<P, N>,
}

impl<P, N> Block<P, N> {
    /// The same block with every matrix made by `product` and every norm by `norm`.
    ///
    /// # Errors
    /// The first one of `product` or `norm`.
    pub fn try_map<Q, M, E>(
        self,
        mut product: impl FnMut(P) -> Result<Q, E>,
        mut norm: impl FnMut(N) -> Result<M, E>,
    ) -> Result<Block<Q, M>, E> {
        let own = self.attention;
        let attention = SelfAttention {
            query_key_value: product(own.query_key_value)?,
            output: product(own.output)?,
            query_norm: own.query_norm.map(&mut norm).transpose()?,
            key_norm: own.key_norm.map(&mut norm).transpose()?,
            scale: own.scale,
            window: own.window,
            rotation: own.rotation,
            global: match own.global {
                None => None,
                Some(global) => Some(GlobalAttention {
                    query: product(global.query)?,
                    key_value: product(global.key_value)?,
                }),
            },
            norms: own.norms.try_map(&mut norm)?,
        };
        let cross = match self.cross {
            None => None,
            Some(cross) => Some(CrossAttention {
                query: product(cross.query)?,
                key_value: product(cross.key_value)?,
                output: product(cross.output)?,
                scale: cross.scale,
                norms: cross.norms.try_map(&mut norm)?,
            }),
        };
        let inner = self.feed_forward;
        Ok(Block {
            attention,
            cross,
            feed_forward: FeedForward {
                inner: product(inner.inner)?,
                activation: inner.activation,
                gated: inner.gated,
                outer: product(inner.outer)?,
                norms: inner.norms.try_map(&mut norm)?,
                parallel: inner.parallel,
            },
        })
    }
}

impl<P, N> Block<P, N> {
    /// Its matrices.
    pub fn products(&self) -> impl Iterator<Item = &P> {
        let (own, inner) = (&self.attention, &self.feed_forward);
        let cross = self.cross.iter();
        let cross = cross.flat_map(|cross| [&cross.query, &cross.key_value, &cross.output]);
        let global = own.global.iter();
        let global = global.flat_map(|global| [&global.query, &global.key_value]);
        let all = [
            &own.query_key_value,
            &own.output,
            &inner.inner,
            &inner.outer,
        ];
        all.into_iter().chain(cross).chain(global)
    }
}

impl<N> Norms<N> {
    fn try_map<M, E>(self, mut norm: impl FnMut(N) -> Result<M, E>) -> Result<Norms<M>, E> {
        Ok(Norms {
            before: self.before.map(&mut norm).transpose()?,
            inside: self.inside.map(&mut norm).transpose()?,
            after: self.after.map(&mut norm).transpose()?,
        })
    }
}

/// Checks both sizes of a matrix.
fn expect(
    argument: &'static str,
    shape: &'static str,
    found: &Product,
    expected: [usize; 2],
) -> Result<(), KernelError> {
    let [inner, columns] = found.sizes();
    check_length(argument, shape, &[expected[0]], inner)?;
    check_length(argument, shape, &[expected[1]], columns)
}

impl Sizes {
    pub(super) fn check(&self) -> Result<(), KernelError> {
        check_value("model", "at least 1", self.model as f64, self.model > 0)?;
        let small = (1..=crate::MAX_DIM).contains(&self.head);
        check_value("head", "a size of 1 to 256", self.head as f64, small)?;
        let remainder = self.heads.checked_rem(self.key_value_heads);
        let (found, heads) = (self.key_value_heads, self.heads);
        let expected = if remainder == Some(0) { found } else { heads };
        let reason = "it must divide the query heads";
        check_size("key_value_heads", "count", found, expected, reason)?;
        check_value("heads", "at least 1", heads as f64, heads > 0)?;
        let all = self.key_value_heads.saturating_mul(2).saturating_add(heads);
        let shape = "[model, (heads + 2 key_value_heads) head]";
        product("query_key_value", shape, &[self.model, all, self.head]).map(|_| ())
    }
}

impl Block {
    pub(super) fn check(&self, sizes: &Sizes, rotations: usize) -> Result<(), KernelError> {
        let model = sizes.model;
        let (query, key) = sizes.widths();
        let own = &self.attention;
        if let (true, Some(window)) = (sizes.causal, own.window) {
            let expected = "at least 1: a position sees itself";
            check_value("window", expected, window as f64, window > 0)?;
        }
        let shape = "[model, (heads + 2 key_value_heads) head]";
        let joint = [model, query + 2 * key];
        expect("query_key_value", shape, &own.query_key_value, joint)?;
        expect(
            "output",
            "[heads · head, model]",
            &own.output,
            [query, model],
        )?;
        for norm in [&own.query_norm, &own.key_norm].into_iter().flatten() {
            norm.check(sizes.head)?;
        }
        if let Some(rotation) = own.rotation {
            let there = rotation < rotations;
            check_value("rotation", "one of the stack's", rotation as f64, there)?;
        }
        if let Some(global) = &own.global {
            let shape = "[model, heads · head]";
            expect("global query", shape, &global.query, [model, query])?;
            let shape = "[model, 2 key_value_heads · head]";
            expect(
                "global key_value",
                shape,
                &global.key_value,
                [model, 2 * key],
            )?;
            let norms = own.query_norm.is_some() || own.key_norm.is_some();
            let plain = !sizes.causal && !norms && own.rotation.is_none();
            let expected = "no causality, norms or rotations of queries and keys";
            check_value("global", expected, 1.0, plain)?;
        }
        own.norms.check(model)?;
        if let Some(cross) = &self.cross {
            expect(
                "cross query",
                "[model, heads · head]",
                &cross.query,
                [model, query],
            )?;
            let [source, _] = cross.key_value.sizes();
            let expected = "a source of at least 1 feature";
            check_value("cross key_value", expected, source as f64, source > 0)?;
            let shape = "[source size, 2 key_value_heads · head]";
            expect(
                "cross key_value",
                shape,
                &cross.key_value,
                [source, 2 * key],
            )?;
            let shape = "[heads · head, model]";
            expect("cross output", shape, &cross.output, [query, model])?;
            cross.norms.check(model)?;
        }
        let inner = &self.feed_forward;
        let [_, width] = inner.inner.sizes();
        expect("inner", "[model, inner]", &inner.inner, [model, width])?;
        let width = match inner.gated {
            true => {
                let (half, even) = (width / 2, width.is_multiple_of(2));
                check_value("inner", "columns of gate and value", width as f64, even)?;
                half
            }
            false => width,
        };
        expect("outer", "[inner, model]", &inner.outer, [width, model])?;
        inner.norms.check(model)
    }
}

impl Norms {
    fn check(&self, model: usize) -> Result<(), KernelError> {
        let norms = [&self.before, &self.inside, &self.after];
        let mut norms = norms.into_iter().flatten();
        norms.try_for_each(|norm| norm.check(model))
    }

    /// The input of the part: `x`, or its norm in the memory of `to`.
    pub(super) fn enter<'x>(
        &self,
        x: &'x [f32],
        to: &'x mut Vec<f32>,
    ) -> Result<&'x [f32], KernelError> {
        match &self.before {
            Some(norm) => {
                norm.apply_to(x, to)?;
                Ok(to)
            }
            None => Ok(x),
        }
    }

    /// Adds the output of the part, `y`, whose memory is used.
    pub(super) fn leave(&self, x: &mut Vec<f32>, y: &mut Vec<f32>) -> Result<(), KernelError> {
        if let Some(norm) = &self.inside {
            *y = norm.apply(y)?;
        }
        let work = x.len() as f64 * 0.3;
        let both = [rows(x, 1), rows(y, 1)];
        let count = both[0].data.len();
        for_each_chunk(both, count, 16384, work, &|_, [x, y]: [RowsMut<f32>; 2]| {
            x.data.iter_mut().zip(y.data).for_each(|(x, y)| *x += *y);
        });
        if let Some(norm) = &self.after {
            norm.apply_to(x, y)?;
            std::mem::swap(x, y);
        }
        Ok(())
    }
}

impl NormWeights {
    pub(super) fn check(&self, width: usize) -> Result<(), KernelError> {
        check_length("norm weight", "[width]", &[width], self.weight.len())?;
        match &self.bias {
            Some(bias) => check_length("norm bias", "[width]", &[width], bias.len()),
            None => Ok(()),
        }
    }

    /// The norm of each row of `x [rows, width]`.
    ///
    /// # Errors
    /// [`KernelError`] if the lengths do not fit, or `ε` is out of range.
    pub fn apply(&self, x: &[f32]) -> Result<Vec<f32>, KernelError> {
        let mut y = vec![];
        self.apply_to(x, &mut y)?;
        Ok(y)
    }

    /// The same into `y`, whose memory is reused.
    pub(super) fn apply_to(&self, x: &[f32], y: &mut Vec<f32>) -> Result<(), KernelError> {
        let width = self.weight.len();
        y.resize(x.len(), 0.0);
        let norm = Norm {
            kind: self.kind,
            rows: x.len() / width.max(1),
            width,
            weight: Some(&self.weight),
            bias: self.bias.as_deref(),
            epsilon: self.epsilon,
        };
        norm::forward(&norm, x, y)
    }
}
