//! A stack of Transformer blocks for inference: encoders over whole batches, decoders over prompts and token by token.
//!
//! ```text
//! x ← after(x + inside(W_o attend(turn(norm(W_qkv before(x))), own past)))      for each block; norms and turns are optional
//! x ← after(x + inside(W_o attend(W_q before(x), source)))                      if the stack reads a source
//! x ← after(x + inside(W_2 φ(W_1 before(x))))                                   or W_2 (φ(W_g ..) ∘ W_1 ..)
//! ```
//! Weights are packed once ([`Product`]), in `f32`, half precision or 8 bits. A step of generation multiplies a few rows with every
//! weight, so it takes as long as the weights take to come from memory: all threads read them side by side (`helper.rs`). A prompt
//! is many rows, which are divided among the threads. Products with bfloat16 are made in bfloat16 where the machine can
//! ([`Level::has_pairs`](crate::simd::Level::has_pairs)), twice as many numbers an instruction.
//!
//! ```text
//! past:              | k v of state 0 | k v of state 1 | ..    a state for each position of each row, in the order of their steps
//! row 2's ancestors: position 0: state 0, position 1: state 1, position 2: state 4, ..
//! ```
//! Beam search reorders, drops and repeats rows after every step. Keys and values stay where they are: only the list of ancestors
//! of each row is copied. Keys and values of a source are kept once for all of its hypotheses. To [`dot::decode`](crate::dot::decode()) both are pages
//! and their table: a page of one position for each state, and one for each source.
//!
//! Positions of several sequences are packed: sequence 0's, then sequence 1's, .., `counts[i]` of sequence `i`.
//!
//! | positions of each row in a call | attention by |
//! |---|---|
//! | one | [`dot::decode`](crate::dot::decode()) |
//! | any, none before them | one packed [`dot::forward`](crate::dot::forward()) |
//! | any, after others | [`dot::forward`](crate::dot::forward()), row by row |
//! | all, some of them global ([`GlobalAttention`]) | the same, for global positions and for the others |
//!
//! Each row's numbers are the same to the last bit on any number of threads, and whatever rows it is computed with in calls of the
//! same line (but for rows beside one in which a head's pairs of positions are changed: [`HeadChange`]). A prompt in one call has the
//! bits of the same prompt in several calls of two or more positions, except for blocks with a window; these, and steps of one
//! position, agree with it to rounding, as their keys are added up in another order. Looking ([`Observer`]) changes no bit.
//!
//! ```
//! use regard_kernels::stack::{Activation, Block, FeedForward, Norms, Product, SelfAttention, Sizes, Stack};
//!
//! // One head of one feature in a model of two, all weights 0: every state keeps its value.
//! let zeros = |inner, columns| Product::new(&vec![0.0; inner * columns], inner, columns, None);
//! let block = Block {
//!     attention: SelfAttention {
//!         query_key_value: zeros(2, 3)?,
//!         output: zeros(1, 2)?,
//!         query_norm: None,
//!         key_norm: None,
//!         scale: None,
//!         window: None,
//!         rotation: None,
//!         global: None,
//!         norms: Norms::default(),
//!     },
//!     cross: None,
//!     feed_forward: FeedForward {
//!         inner: zeros(2, 4)?,
//!         activation: Activation::Relu,
//!         gated: false,
//!         outer: zeros(4, 2)?,
//!         norms: Norms::default(),
//!         parallel: false,
//!     },
//! };
//! let stack = Stack::new(Sizes::new(2, 1, 1, 1), vec![block], None, vec![])?;
//! let mut state = stack.begin(1, Default::default());
//! let states = stack.forward(Some(&mut state), &[1.0, 2.0, 3.0, 4.0], &[2], None)?;
//! assert_eq!(states, [1.0, 2.0, 3.0, 4.0]);
//! assert_eq!(state.length(0), 2);
//! # Ok::<(), regard_kernels::KernelError>(())
//! ```
//!
//! What was tried is in `docs/experiments.md`.

mod attend;
mod changed;
mod global;
mod helper;
mod observer;
mod product;
mod query;
mod relative;
mod rotation;
mod state;
mod weights;

#[cfg(test)]
mod tests;

pub use crate::activation::Activation;
pub use changed::{ChangedHead, GivenWeights, HeadChange};
pub use observer::{Observer, Point, Positions, Seen, States};
pub use product::Product;
pub use query::{QueryKeys, QueryObserver};
pub use relative::RelativePositions;
pub use rotation::{LongTexts, Rotation};
pub use state::State;
pub use weights::{
    Block, CrossAttention, FeedForward, GlobalAttention, NormWeights, Norms, SelfAttention, Sizes,
};

use crate::activation::Activated;
use crate::element::Kind;
use crate::error::{KernelError, check_length, check_size, check_value};
use attend::Pass;
use helper::Helper;
use observer::Observing;
use relative::Distances;
use state::{Past, Row, Sources};

/// Blocks one after another, ready for inference.
#[derive(Debug, Clone)]
pub struct Stack {
    sizes: Sizes,
    blocks: Vec<Block>,
    last_norm: Option<NormWeights>,
    rotations: Vec<Rotation>,
    distances: Distances,
    changed: Vec<ChangedHead>,
}

impl Stack {
    /// A stack from its weights.
    ///
    /// # Errors
    /// [`KernelError`] that names the first weight whose sizes do not fit.
    pub fn new(
        sizes: Sizes,
        blocks: Vec<Block>,
        last_norm: Option<NormWeights>,
        rotations: Vec<Rotation>,
    ) -> Result<Self, KernelError> {
        sizes.check()?;
        for block in &blocks {
            block.check(&sizes, rotations.len())?;
        }
        if let Some(norm) = &last_norm {
            norm.check(sizes.model)?;
        }
        for rotation in &rotations {
            let turning = 2 * rotation.frequencies.len();
            let most = turning.min(sizes.head);
            check_size("rotation", "features", turning, most, "a head has no more")?;
            let reason = "one for each pair, for texts of any length";
            let pairs = rotation.frequencies.len();
            let long = if rotation.is_whole() {
                pairs
            } else {
                pairs + 1
            };
            check_size("rotation", "frequencies", long, pairs, reason)?;
        }
        Ok(Self {
            sizes,
            blocks,
            last_norm,
            rotations,
            distances: Distances::default(),
            changed: vec![],
        })
    }

    /// With biases of relative positions in self-attention: those of each block, or one for all.
    ///
    /// # Errors
    /// [`KernelError`] if they are neither one nor one for each block, have not the same distances for each head, or hold numbers that
    /// are not finite; a block with [`GlobalAttention`].
    pub fn with_relative(self, relative: Vec<RelativePositions>) -> Result<Self, KernelError> {
        let (found, blocks) = (relative.len(), self.blocks.len());
        let expected = if found == 1 { 1 } else { blocks };
        check_size(
            "relative",
            "blocks",
            found,
            expected,
            "one, or one for each block",
        )?;
        let alibi = self.distances.alibi.clone();
        self.with_distances("relative", Distances { relative, alibi })
    }

    /// With ALiBi in the self-attention of every block: `slopes [heads]` times the distance is subtracted from scores (Press et al.
    /// 2022).
    ///
    /// # Errors
    /// [`KernelError`] for another number of slopes, or numbers that are not finite; a block with [`GlobalAttention`].
    pub fn with_alibi(self, slopes: Vec<f32>) -> Result<Self, KernelError> {
        let relative = self.distances.relative.clone();
        let alibi = Some(slopes);
        self.with_distances("alibi", Distances { relative, alibi })
    }

    fn with_distances(
        mut self,
        argument: &'static str,
        distances: Distances,
    ) -> Result<Self, KernelError> {
        let mut blocks = self.blocks.iter();
        let global = blocks.any(|block| block.attention.global.is_some());
        check_value(argument, "no global positions", 1.0, !global)?;
        let Sizes {
            heads,
            key_value_heads,
            head,
            ..
        } = self.sizes;
        let keys = [0, key_value_heads, 0, head];
        for layer in 0..distances.relative.len().max(1) {
            let options = distances.options(layer);
            options.check([0, heads, 0, head], keys, keys)?;
        }
        self.distances = distances;
        Ok(self)
    }

    /// The sizes.
    pub fn sizes(&self) -> &Sizes {
        &self.sizes
    }

    /// The blocks.
    pub fn blocks(&self) -> &[Block] {
        &self.blocks
    }

    /// The norm after the last block.
    pub fn last_norm(&self) -> Option<&NormWeights> {
        self.last_norm.as_ref()
    }

    /// How blocks turn their queries and keys.
    pub fn rotations(&self) -> &[Rotation] {
        &self.rotations
    }

    /// Whether distances add to the scores of self-attention.
    pub fn has_distances(&self) -> bool {
        !self.distances.relative.is_empty() || self.distances.alibi.is_some()
    }

    /// What the distance of a key from a query adds to their score in the self-attention of block `layer`.
    ///
    /// # Panics
    /// If there is no such head.
    pub fn added_by_distance(&self, layer: usize, head: usize, query: usize, key: usize) -> f32 {
        let heads = [head, self.sizes.heads];
        self.distances.add(layer, heads, [query, key])
    }

    /// Begins `rows` sequences whose keys and values are kept in `cache`.
    pub fn begin(&self, rows: usize, cache: Kind) -> State {
        let row = |source| Row {
            source,
            ancestors: vec![],
            expected: 0,
        };
        State {
            past: self.blocks.iter().map(|_| Past::new(cache)).collect(),
            width: self.state_width(),
            sources: None,
            rows: (0..rows).map(row).collect(),
            states: 0,
        }
    }

    /// Begins a sequence for each of `lengths.len()` sources, whose states are `encoded [sources, length, source size]`, of which
    /// source `i` has `lengths[i]` real ones.
    ///
    /// # Errors
    /// [`KernelError`] if `encoded` does not hold `sources · length` states, or a real length is more than `length`.
    pub fn begin_with_sources(
        &self,
        encoded: &[f32],
        length: usize,
        lengths: &[usize],
        cache: Kind,
    ) -> Result<State, KernelError> {
        if let Some(position) = lengths.iter().position(|&real| real > length) {
            return Err(KernelError::Entry {
                argument: "lengths",
                position,
                expected: format!("at most {length}, the padded length"),
                found: lengths[position].to_string(),
            });
        }
        let states = lengths.len().saturating_mul(length);
        let of_block = |block: &Block| {
            let Some(cross) = &block.cross else {
                return Ok(vec![]);
            };
            let [size, _] = cross.key_value.sizes();
            let shape = "[sources, length, source size]";
            let sizes = [lengths.len(), length, size];
            check_length("encoded", shape, &sizes, encoded.len())?;
            cross.key_value.forward(encoded, states)
        };
        let key_values = self
            .blocks
            .iter()
            .map(of_block)
            .collect::<Result<_, KernelError>>()?;
        let mut state = self.begin(lengths.len(), cache);
        state.sources = Some(Sources {
            key_values,
            length,
            lengths: lengths.to_vec(),
        });
        Ok(state)
    }

    /// The states of `counts[i]` more positions of each sequence `i`: `[positions, model]`, from their embeddings
    /// `x [positions, model]`. Without a `state` the sequences are whole, and nothing is kept. With one, positions do not see those of
    /// later calls, even in a stack that is not causal.
    ///
    /// # Errors
    /// [`KernelError`] if `state` has the sizes of another stack, `counts` is not one for each row of `state`, or `x` does not hold that
    /// many positions; blocks that read a source, without one.
    pub fn forward(
        &self,
        state: Option<&mut State>,
        x: &[f32],
        counts: &[usize],
        observer: Option<&mut (dyn Observer + Send)>,
    ) -> Result<Vec<f32>, KernelError> {
        Helper::beside(|helper| self.run(state, x, (counts, &[]), observer, helper))
    }

    /// [`Stack::forward`] of whole sequences, of whose positions `global`, in the order of `x` and ascending, see all positions of
    /// their sequence and are seen by all, whatever the window: see [`GlobalAttention`]. Memory grows linearly with the length.
    ///
    /// # Errors
    /// As [`Stack::forward`]; a `global` that is not ascending or not in `x`; a block without [`GlobalAttention`].
    pub fn forward_with_global(
        &self,
        x: &[f32],
        counts: &[usize],
        global: &[usize],
        observer: Option<&mut (dyn Observer + Send)>,
    ) -> Result<Vec<f32>, KernelError> {
        Helper::beside(|helper| self.run(None, x, (counts, global), observer, helper))
    }

    /// [`Stack::forward`], and of the last position of each sequence the product with `output`: `[rows, columns]`, in the memory
    /// of `to`.
    ///
    /// # Errors
    /// As [`Stack::forward`]; a sequence without a position; an `output` of another size.
    pub fn last_outputs(
        &self,
        state: &mut State,
        x: &[f32],
        counts: &[usize],
        output: &Product,
        to: &mut Vec<f32>,
        observer: Option<&mut (dyn Observer + Send)>,
    ) -> Result<(), KernelError> {
        let model = self.sizes.model;
        let [inner, _] = output.sizes();
        check_size("output", "inner", inner, model, "the size of a state")?;
        if let Some(position) = counts.iter().position(|&count| count == 0) {
            return Err(KernelError::Entry {
                argument: "counts",
                position,
                expected: "at least 1".to_owned(),
                found: "0".to_owned(),
            });
        }
        Helper::beside(|helper| {
            let states = self.run(Some(state), x, (counts, &[]), observer, helper)?;
            let mut end = 0;
            let last = counts.iter().flat_map(|count| {
                end += count;
                &states[(end - 1) * model..end * model]
            });
            let last: Vec<f32> = last.copied().collect();
            output.apply_to(&last, counts.len(), to, helper);
            Ok(())
        })
    }

    /// Numbers of the keys and values of a position in one block, `k | v`.
    fn state_width(&self) -> usize {
        2 * self.sizes.widths().1
    }

    /// Checks that a state has the sizes of those that this stack begins.
    fn check_state(&self, state: &State) -> Result<(), KernelError> {
        let (blocks, width) = (self.blocks.len(), self.state_width());
        let reason = "a state goes on with the stack that began it";
        check_size("state", "blocks", state.past.len(), blocks, reason)?;
        let axis = "features of keys and values";
        check_size("state", axis, state.width, width, reason)?;
        let Some(sources) = &state.sources else {
            return Ok(());
        };
        let positions = sources.lengths.len().saturating_mul(sources.length);
        let expected = positions.saturating_mul(width);
        let blocks = self.blocks.iter().zip(&sources.key_values);
        for (_, found) in blocks.filter(|(block, _)| block.cross.is_some()) {
            let axis = "keys and values of sources";
            check_size("state", axis, found.len(), expected, reason)?;
        }
        Ok(())
    }

    fn run<'a>(
        &'a self,
        mut state: Option<&mut State>,
        x: &[f32],
        counts: (&[usize], &[usize]),
        observer: Option<&mut (dyn Observer + Send)>,
        helper: &Helper<'_, '_, 'a>,
    ) -> Result<Vec<f32>, KernelError> {
        let before = state.as_deref().map(State::extent);
        let result = self.pass(state.as_deref_mut(), x, counts, observer, helper);
        if let (Err(_), Some(state), Some(before)) = (&result, state, before) {
            state.cut(before);
        }
        result
    }

    fn pass<'a>(
        &'a self,
        mut state: Option<&mut State>,
        x: &[f32],
        (counts, global): (&[usize], &[usize]),
        mut observer: Option<&mut (dyn Observer + Send)>,
        helper: &Helper<'_, '_, 'a>,
    ) -> Result<Vec<f32>, KernelError> {
        if let Some(state) = state.as_deref() {
            self.check_state(state)?;
        }
        let added = |sum: usize, &count| sum.checked_add(count);
        let total = counts.iter().try_fold(0, added).unwrap_or(usize::MAX);
        let shape = "[positions, model]";
        check_length("x", shape, &[total, self.sizes.model], x.len())?;
        let sources = state.as_deref().and_then(|state| state.sources.as_ref());
        if sources.is_none() && self.blocks.iter().any(|block| block.cross.is_some()) {
            let (rows, reason) = (counts.len(), "its blocks read a source");
            check_size("state", "sources", 0, rows.max(1), reason)?;
        }
        self.check_global(global, total)?;
        let pass = Pass::new(self, state.as_deref_mut(), counts, global)?;
        let mut x = x.to_vec();
        // Memory that the blocks use one after another, so that it is cleared once.
        let (mut entered_memory, mut joint, mut read) = (vec![], vec![], vec![]);
        let (mut inner, mut gated, mut left) = (vec![], vec![], vec![]);
        for (layer, block) in self.blocks.iter().enumerate() {
            let states = |point, states: &[f32], observer: &mut Observing<'_>| match observer {
                None => Ok(()),
                Some(observer) => observer.states(States {
                    layer,
                    point,
                    counts,
                    states,
                }),
            };
            states(Point::Input, &x, &mut observer)?;
            let own = &block.attention;
            let entered = own.norms.enter(&x, &mut entered_memory)?;
            own.query_key_value
                .apply_to(entered, total, &mut joint, helper);
            let past = state.as_deref_mut().map(|state| &mut state.past[layer]);
            match global.is_empty() {
                true => pass.own(
                    layer,
                    own,
                    &mut joint,
                    &mut read,
                    past,
                    &mut observer,
                    helper,
                )?,
                false => {
                    read =
                        pass.own_and_global(layer, own, entered, &joint, &mut observer, helper)?;
                }
            }
            let part = &block.feed_forward;
            if part.parallel {
                part.inner.apply_to(entered, total, &mut inner, helper);
            }
            pass.silence(layer, false, &mut read);
            own.output.apply_to(&read, total, &mut left, helper);
            own.norms.leave(&mut x, &mut left)?;
            states(Point::Attention, &x, &mut observer)?;

            if let Some(cross) = &block.cross {
                let sources = state.as_deref().and_then(|state| state.sources.as_ref());
                let entered = cross.norms.enter(&x, &mut entered_memory)?;
                let queries = cross.query.apply(entered, total, helper);
                let mut read =
                    pass.cross(layer, queries, cross.scale, sources, &mut observer, helper)?;
                pass.silence(layer, true, &mut read);
                cross.output.apply_to(&read, total, &mut left, helper);
                cross.norms.leave(&mut x, &mut left)?;
                states(Point::Cross, &x, &mut observer)?;
            }

            if !part.parallel {
                let entered = part.norms.enter(&x, &mut entered_memory)?;
                part.inner.apply_to(entered, total, &mut inner, helper);
            }
            let activated = match part.gated {
                true => {
                    let [_, inputs] = part.inner.sizes();
                    let spec = Activated {
                        activation: part.activation,
                        gated: true,
                        rows: total,
                        width: inputs / 2,
                        bias: None,
                        dropout: None,
                    };
                    gated.resize(inner.len() / 2, 0.0);
                    spec.forward(&inner, &mut gated)?;
                    &gated
                }
                false => {
                    part.activation.apply(&mut inner);
                    &inner
                }
            };
            part.outer.apply_to(activated, total, &mut left, helper);
            part.norms.leave(&mut x, &mut left)?;
            states(Point::FeedForward, &x, &mut observer)?;
        }
        match &self.last_norm {
            Some(norm) => norm.apply(&x),
            None => Ok(x),
        }
    }
}
