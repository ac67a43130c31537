//! Heads that are changed while a model computes, and one query of a head with its keys: to see what a head does, and whether it matters.
//!
//! [`with_changed`] runs some work with heads changed, [`with_query`] records a query. What the changes mean is defined at
//! [`HeadChange`]; here they act on scores, masks and weights of any mechanism. Both belong to a thread, as
//! [`record::recorded`](crate::record::recorded) does, so that no model has to pass them on: they reach every attention that says
//! [where](at) it is: those of a [`Stack`](crate::transformer::Stack) do. An attention that is changed or recorded takes the plain path;
//! all others, and everything outside of such work, compute as always.
//!
//! ```
//! use burn::tensor::{Device, Tensor};
//! use regard_kernels::stack::{ChangedHead, HeadChange};
//! use regard_nn::{changed::{Changes, with_changed}, dropout::DropoutRng, initialize::Initializer};
//! use regard_nn::transformer::{StackConfig, StackOptions};
//!
//! let init = &mut Initializer::new(1, &Device::flex());
//! let stack = StackConfig::new(8, 2).encoder(1, init)?;
//! let x = Tensor::<3>::ones([1, 3, 8], &Device::flex());
//! let off = ChangedHead { layer: 0, cross: false, head: 1, change: HeadChange::Off };
//! let changes = Changes { encoder: vec![off], decoder: vec![] };
//! let look = || stack.forward(x.clone(), None, &StackOptions::default(), &mut DropoutRng::none());
//! let read = with_changed(&changes, look)??;
//! let context = read.own[0].context.clone().slice([0..1, 1..2]); // of the second head
//! assert_eq!(context.abs().sum().into_scalar::<f32>(), 0.0);
//! # Ok::<(), regard_nn::AttentionError>(())
//! ```

use std::cell::{Cell, RefCell};

use burn::tensor::{Bool, Tensor, TensorData};
use regard_kernels::stack::{ChangedHead, GivenWeights, HeadChange, QueryKeys};

use crate::{attention::AttentionError, mask::Grid};

/// An attention of a model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    /// Whether it belongs to what reads a source.
    pub decoder: bool,
    /// Whether it attends to the source.
    pub cross: bool,
    /// Its block, counted from 0.
    pub layer: usize,
}

/// The heads that are changed.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Changes {
    /// Of stacks that read no source.
    pub encoder: Vec<ChangedHead>,
    /// Of stacks that read a source.
    pub decoder: Vec<ChangedHead>,
}

impl Changes {
    /// Every head with the place of its attention.
    fn all(&self) -> impl Iterator<Item = (Place, &ChangedHead)> {
        let encoder = self.encoder.iter().map(|one| (false, one));
        let all = encoder.chain(self.decoder.iter().map(|one| (true, one)));
        all.map(|(decoder, one)| {
            let ChangedHead { layer, cross, .. } = *one;
            let place = Place {
                decoder,
                cross,
                layer,
            };
            (place, one)
        })
    }
}

/// A query that is to be recorded.
struct Wanted {
    place: Place,
    head: usize,
    query: usize,
    found: Option<QueryKeys>,
}

thread_local! {
    static PLACE: Cell<Option<Place>> = const { Cell::new(None) };
    /// Each head with its place, and whether an attention has had it.
    static CHANGED: RefCell<Vec<(Place, usize, HeadChange, bool)>> = const { RefCell::new(vec![]) };
    static WANTED: RefCell<Option<Wanted>> = const { RefCell::new(None) };
}

/// Runs `work` on this thread with these heads changed, and no others.
///
/// # Errors
/// If no attention that `work` computed has one of the heads.
pub fn with_changed<T>(changes: &Changes, work: impl FnOnce() -> T) -> Result<T, AttentionError> {
    let changed = changes
        .all()
        .map(|(place, one)| (place, one.head, one.change.clone(), false));
    let before = CHANGED.replace(changed.collect());
    let restore = on_drop(|| drop(CHANGED.replace(before)));
    let given = work();
    let missed = CHANGED.with_borrow(|changed| {
        let missed = changed.iter().find(|(.., met)| !met);
        missed.map(|&(place, head, ..)| (place, head))
    });
    drop(restore);
    match missed {
        None => Ok(given),
        Some((place, head)) => Err(AttentionError::value(
            "changed head",
            head,
            format!("a head of block {} that is computed here", place.layer),
            "name a head of one of the model's attentions",
        )),
    }
}

/// Runs `work` on this thread, and records the query at position `query` of this head, in the first row of the batch: after norms and
/// positions, with its keys and values. `None` if `work` did not compute it, or if the score is no scaled product of query and key.
pub fn with_query<T>(
    place: Place,
    head: usize,
    query: usize,
    work: impl FnOnce() -> T,
) -> (T, Option<QueryKeys>) {
    let before = WANTED.replace(Some(Wanted {
        place,
        head,
        query,
        found: None,
    }));
    let restore = on_drop(|| drop(WANTED.replace(before)));
    let given = work();
    let found = WANTED.with_borrow_mut(|wanted| wanted.as_mut()?.found.take());
    drop(restore);
    (given, found)
}

/// Says where the attention is that `work` computes. A [`Stack`](crate::transformer::Stack) says it; so does a model that reads a source
/// without one: then it is the cross-attention of block 0.
pub fn at<T>(place: Place, work: impl FnOnce() -> T) -> T {
    let before = PLACE.replace(Some(place));
    let _restore = on_drop(|| PLACE.set(before));
    work()
}

/// Whether the attention at work is changed or recorded.
pub(crate) fn concerns() -> bool {
    let Some(place) = PLACE.get() else {
        return false;
    };
    let wanted = WANTED.with_borrow(|wanted| wanted.as_ref().is_some_and(|one| one.place == place));
    wanted || CHANGED.with_borrow(|changed| changed.iter().any(|(at, ..)| *at == place))
}

/// What is done to the heads of one attention.
pub(crate) struct Here {
    grid: Grid,
    heads: Vec<(usize, HeadChange)>,
}

/// The changes of the attention at work; `None` if there are none.
pub(crate) fn here(grid: &Grid) -> Option<Here> {
    let place = PLACE.get()?;
    let heads: Vec<(usize, HeadChange)> = CHANGED.with_borrow_mut(|changed| {
        let here = changed.iter_mut();
        let here = here.filter(|(at, head, ..)| *at == place && *head < grid.heads);
        here.map(|(_, head, change, met)| {
            *met = true;
            (*head, change.clone())
        })
        .collect()
    });
    (!heads.is_empty()).then_some(Here { grid: *grid, heads })
}

/// The queries `[batch, heads, queries, size]` of the attention at work, with zeros for heads that are uniform.
pub(crate) fn queries(query: Tensor<4>, grid: &Grid) -> Tensor<4> {
    match here(grid) {
        None => query,
        Some(here) => here.without(query, |change, _| *change == HeadChange::Uniform),
    }
}

impl Here {
    /// `seen`, or everything, without the pairs that are hidden: `[batch or 1, heads, queries, keys]`.
    pub(crate) fn seen(
        &self,
        seen: Option<Tensor<4, Bool>>,
        like: &Tensor<4>,
    ) -> Option<Tensor<4, Bool>> {
        let Grid {
            batch,
            heads,
            queries,
            keys,
            first_query,
            first_key,
        } = self.grid;
        let mut shown = vec![true; heads * queries * keys];
        for (head, change) in &self.heads {
            if let HeadChange::Hide { query, key } = *change
                && let (Some(row), Some(column)) =
                    (query.checked_sub(first_query), key.checked_sub(first_key))
                && row < queries
                && column < keys
            {
                shown[(head * queries + row) * keys + column] = false;
            }
        }
        if shown.iter().all(|&shown| shown) {
            return seen;
        }
        let shown = TensorData::new(shown, [1, heads, queries, keys]);
        let shown = Tensor::<4, Bool>::from_data(shown, &like.device());
        Some(match seen {
            None => shown,
            Some(seen) => {
                let shape = [batch, heads, queries, keys];
                seen.expand(shape).bool_and(shown.expand(shape))
            }
        })
    }

    /// Scores without the heads that are uniform and the rows whose weights are given: 0 there.
    pub(crate) fn scores(&self, scores: Tensor<4>) -> Tensor<4> {
        let uniform = |change: &HeadChange, row: usize| match change {
            HeadChange::Uniform => true,
            HeadChange::Replace(given) => self.given(given, row).is_some(),
            HeadChange::Off | HeadChange::Hide { .. } => false,
        };
        self.without(scores, uniform)
    }

    /// Weights, with those that are given in their rows. `[batch, heads, queries, keys]`.
    pub(crate) fn weights(&self, weights: Tensor<4>, seen: &Option<Tensor<4, Bool>>) -> Tensor<4> {
        let Grid {
            heads,
            queries,
            keys,
            first_key,
            ..
        } = self.grid;
        let mut rows = vec![0.0f32; heads * queries * keys];
        let mut any = false;
        for (head, change) in &self.heads {
            let HeadChange::Replace(given) = change else {
                continue;
            };
            for row in 0..queries {
                let Some(given) = self.given(given, row) else {
                    continue;
                };
                any = true;
                let row = &mut rows[(head * queries + row) * keys..][..keys];
                let given = given.iter().skip(first_key);
                row.iter_mut()
                    .zip(given)
                    .for_each(|(weight, given)| *weight = *given);
            }
        }
        if !any {
            return weights;
        }
        let rows = TensorData::new(rows, [1, heads, queries, keys]);
        let options = (&weights.device(), weights.dtype());
        let rows = Tensor::<4>::from_data(rows, options).expand(weights.dims());
        let rows = match seen {
            None => rows,
            Some(seen) => rows.mask_fill(seen.clone().expand(weights.dims()).bool_not(), 0.0),
        };
        let sums = rows.clone().sum_dim(3);
        let none = sums.clone().equal_elem(0.0);
        let rows = rows / sums.mask_fill(none, 1.0);
        let own = |change: &HeadChange, row: usize| match change {
            HeadChange::Replace(given) => self.given(given, row).is_some(),
            _ => false,
        };
        self.without(weights, own) + rows
    }

    /// What heads have read, with zeros for those that are switched off: `[batch, heads, queries, size]`.
    pub(crate) fn context(&self, context: Tensor<4>) -> Tensor<4> {
        self.without(context, |change, _| *change == HeadChange::Off)
    }

    /// The weights of a row, of keys from the beginning of the sequence.
    fn given<'a>(&self, given: &'a GivenWeights, row: usize) -> Option<&'a [f32]> {
        given.row(self.grid.first_query + row)
    }

    /// `x [batch, heads, queries, _]` with zeros in rows of heads of which `gone` holds.
    fn without(&self, x: Tensor<4>, gone: impl Fn(&HeadChange, usize) -> bool) -> Tensor<4> {
        let [batch, heads, queries, columns] = x.dims();
        let mut rows = vec![false; heads * queries];
        for (head, change) in &self.heads {
            for row in 0..queries {
                rows[head * queries + row] |= gone(change, row);
            }
        }
        if !rows.contains(&true) {
            return x;
        }
        let rows = Tensor::<4, Bool>::from_data(
            TensorData::new(rows, [1, heads, queries, 1]),
            &x.device(),
        );
        x.mask_fill(rows.expand([batch, heads, queries, columns]), 0.0)
    }
}

/// What a query is recorded from: `query [batch, heads, queries, size]`, `key` and `value [batch, key heads, keys, size]`, `scores` and
/// `weights [batch, heads, queries, keys]`.
pub(crate) struct Computed<'a> {
    pub(crate) grid: &'a Grid,
    pub(crate) tensors: [&'a Tensor<4>; 3],
    /// Before the mask.
    pub(crate) scores: &'a Tensor<4>,
    pub(crate) weights: &'a Tensor<4>,
    pub(crate) seen: &'a Option<Tensor<4, Bool>>,
    pub(crate) scale: Option<f64>,
    pub(crate) softcap: Option<f64>,
}

/// Records the query that is wanted, if it is one of these.
pub(crate) fn record(computed: &Computed<'_>) {
    let place = PLACE.get();
    WANTED.with_borrow_mut(|wanted| {
        let Some(wanted) = wanted.as_mut().filter(|one| Some(one.place) == place) else {
            return;
        };
        wanted.found = computed
            .query(wanted.head, wanted.query)
            .or(wanted.found.take());
    });
}

impl Computed<'_> {
    fn query(&self, head: usize, position: usize) -> Option<QueryKeys> {
        let Grid {
            heads,
            queries,
            keys,
            first_query,
            first_key,
            batch,
        } = *self.grid;
        let row = position
            .checked_sub(first_query)
            .filter(|&row| row < queries)?;
        if head >= heads || batch == 0 {
            return None;
        }
        let numbers = |x: Tensor<4>| -> Vec<f32> { x.into_data().iter::<f32>().collect() };
        let [query, key, value] = self.tensors;
        let group = head / (heads / key.dims()[1]);
        let of_row = |x: &Tensor<4>| numbers(x.clone().slice([0..1, head..head + 1, row..row + 1]));
        let of_keys = |x: &Tensor<4>| numbers(x.clone().slice([0..1, group..group + 1]));
        let seen: Vec<bool> = match self.seen {
            None => vec![true; keys],
            Some(seen) => {
                let seen = seen.clone().expand([batch, heads, queries, keys]);
                let seen = seen.slice([0..1, head..head + 1, row..row + 1]);
                seen.into_data().iter::<bool>().collect()
            }
        };
        // The scores of weights that are given are their logarithms, of a query that is 0.
        let here = here(self.grid);
        let changes = here.iter().flat_map(|here| &here.heads);
        let changes = changes
            .filter(|(changed, _)| *changed == head)
            .map(|(_, change)| change);
        let (mut query, mut scores) = (of_row(query), of_row(self.scores));
        for change in changes {
            match change {
                HeadChange::Uniform => query.fill(0.0),
                HeadChange::Replace(given) => {
                    let Some(given) = given.row(position) else {
                        continue;
                    };
                    query.fill(0.0);
                    for (key, score) in scores.iter_mut().enumerate() {
                        *score = given
                            .get(first_key + key)
                            .map_or(f32::NEG_INFINITY, |w| w.ln());
                    }
                }
                HeadChange::Off | HeadChange::Hide { .. } => {}
            }
        }
        let scores = scores.into_iter().zip(seen);
        let shown = scores
            .map(|(score, seen)| (seen && score > f32::NEG_INFINITY).then_some(f64::from(score)));
        Some(QueryKeys {
            query,
            scale: self.scale? as f32,
            softcap: self.softcap.map(|cap| cap as f32),
            positions: (first_key..first_key + keys).collect(),
            keys: of_keys(key),
            values: of_keys(value),
            scores: shown.collect(),
            weights: of_row(self.weights),
        })
    }
}

/// Runs something at the end of a scope, also in a panic.
struct OnDrop<F: FnOnce()>(Option<F>);

fn on_drop<F: FnOnce()>(work: F) -> OnDrop<F> {
    OnDrop(Some(work))
}

impl<F: FnOnce()> Drop for OnDrop<F> {
    fn drop(&mut self) {
        self.0.take().into_iter().for_each(|work| work());
    }
}
