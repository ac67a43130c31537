//! The inner steps of a mechanism: numbers that it reports while it computes.
//!
//! [`recorded`] runs some work and returns what was reported during it. A mechanism reports a step in one line, by [`report`];
//! so can a score or a normaliser of yours. Reporting changes no number, and without a recording the reported value is never
//! computed. So nothing has to be computed twice to be shown: [`crate::explain`] prints what is reported here.
//!
//! Only the plain path reports ([`crate::Path::Plain`]); a kernel reports nothing, as it keeps none of its steps. All tensors
//! are `[batch, heads, queries, ..]` unless said otherwise:
//!
//! | by | name | what |
//! |---|---|---|
//! | [`Attention`](crate::Attention) | `keys` | the keys as [`Score::keys`](crate::score::Score::keys) prepares them, `[batch, key heads, keys, size]` |
//! | | `scores` | of the score alone, `[.., keys]` |
//! | | `capped scores` | after a softcap, `[.., keys]` |
//! | | `seen` | 1 where a key may be seen, 0 elsewhere, each axis of its size or 1; not reported where all may be |
//! | | `bias` | of ALiBi, `[1, heads, queries, keys]` |
//! | | `predicted positions`, `Gaussian` | local-p's `p_t`, `[.., 1]`, and its factors, `[.., keys]` |
//! | | `normalized` | the weights as the normaliser gives them, `[.., keys]` |
//! | | `weights` | the weights of the values, before dropout, `[.., keys]` |
//! | | `context` | `[.., value size]` |
//! | additive scores | `projected queries` | `W q`, `[.., size]` |
//! | | `hidden` | the tanh, `[batch, heads, queries · keys, size]` |
//! | cosine | `lengths` | of keys, then of queries, `[batch, heads, vectors, 1]` |
//! | Gaussian window | `heights`, `sharpnesses`, `centres` | `[.., components]` |
//! | softmax, sink | `exponentials` | above the row's maximum, `[.., keys]` |
//! | monotonic | `stopping probabilities` | `[.., keys]` |
//! | NTM addressing | `content`, `interpolated`, `shifted` | `[.., keys]`, the latter two query by query |
//! | [`MultiHead`](crate::heads::MultiHead) | `queries`, `values` | as the heads read them, `[.., size]` |
//! | [`Block`](crate::transformer::Block) | `attention input`, `attention output`, `after attention`, `feed-forward input`, `activations`, `feed-forward output` | `[batch, length, size]` |
//! | [`Lstmn`](crate::recurrent::Lstmn) | `read hidden`, `read cell` | `h̃`, `c̃`, `[batch, n]` |
//! | channel attention | `squeezed`, `hidden`, `scores` | `[batch, size]` |
//! | spatial attention | `summary` | mean and maximum over channels, `[batch, 2, height, width]` |
//! | residual attention | `pooled`, `bottom`, `enlarged`, `scores` | the mask branch on its way down and up, `[batch, channels, height, width]` |
//! | [`PatchEmbedding`](crate::vision::PatchEmbedding) | `patches`, `tokens` | pixels of each patch, and tokens without positions, `[batch, tokens, size]` |
//!
//! ```
//! use burn::tensor::{Device, Tensor};
//! use regard_nn::{Attention, AttentionOptions, Observe, Path, record::recorded, score::Score};
//!
//! let x = Tensor::<4>::from_floats([[[[1.0, 0.0], [0.0, 2.0]]]], &Device::flex());
//! let plain = AttentionOptions::new(Observe::Nothing).path(Path::Plain);
//! let (attended, record) = recorded(|| Attention::new(Score::dot()).forward_with(x.clone(), x.clone(), x, plain));
//! assert_eq!(record.rows("scores"), [[1.0, 0.0], [0.0, 4.0]]);
//! assert_eq!(record.rows("context").len(), 2);
//! # attended?;
//! # Ok::<(), regard_nn::AttentionError>(())
//! ```
//!
//! A recording belongs to a thread, as [`crate::bridge::without_kernels`] does, and is not an argument: it covers everything
//! that is called, and no score, normaliser or layer has to pass it on.

use std::cell::RefCell;

use burn::tensor::{Tensor, TensorData};

thread_local! {
    static RECORD: RefCell<Option<Record>> = const { RefCell::new(None) };
}

/// What was reported, in order.
#[derive(Debug, Clone, Default)]
pub struct Record(Vec<(&'static str, TensorData)>);

impl Record {
    /// Everything of this name, in the order of its reports.
    pub fn get(&self, name: &str) -> impl Iterator<Item = &TensorData> {
        let named = self.0.iter().filter(move |(found, _)| *found == name);
        named.map(|(_, data)| data)
    }

    /// All that was reported by this name as rows along the last axis; none if nothing was.
    pub fn rows(&self, name: &str) -> Vec<Vec<f64>> {
        let mut rows = Vec::new();
        for data in self.get(name) {
            let numbers: Vec<f64> = data.iter::<f64>().collect();
            let width = data
                .shape()
                .as_slice()
                .last()
                .map_or(1, |&width| width.max(1));
            rows.extend(numbers.chunks(width).map(<[f64]>::to_vec));
        }
        rows
    }
}

/// Runs `work` and returns its result and what was reported during it, on this thread. Inside another recording, the reports go
/// only to the inner one.
pub fn recorded<T>(work: impl FnOnce() -> T) -> (T, Record) {
    struct Restore(Option<Record>);
    impl Drop for Restore {
        fn drop(&mut self) {
            RECORD.set(self.0.take());
        }
    }
    let _restore = Restore(RECORD.replace(Some(Record::default())));
    let given = work();
    (given, RECORD.take().unwrap_or_default())
}

/// Whether reports are kept on this thread ([`recorded`]).
pub(crate) fn is_recording() -> bool {
    RECORD.with_borrow(Option::is_some)
}

/// Reports `value` under `name`; without a recording, it is not computed.
pub fn report<const D: usize>(name: &'static str, value: impl FnOnce() -> Tensor<D>) {
    if !is_recording() {
        return;
    }
    let data = value().into_data();
    RECORD.with_borrow_mut(|record| {
        if let Some(Record(reports)) = record {
            reports.push((name, data));
        }
    });
}
