//! Dropout with explicit, replayable randomness (Srivastava et al. 2014): in training each value is
//! zeroed with probability `p` and the others are multiplied by `1 / (1 - p)`.
//!
//! The noise is an argument, not hidden state: the same seed gives the same masks on every machine and
//! thread count, so that interrupted training can resume exactly.
//!
//! Several processes may each compute some rows of one batch: [`DropoutRng::of_rows`] says which, and every row then has the noise
//! that it would have in the whole batch.
//!
//! ```
//! use burn::tensor::{Device, Tensor};
//! use regard_nn::dropout::{DropoutRng, dropout};
//!
//! let x = Tensor::<2>::ones([4, 4], &Device::flex());
//! let same = dropout(x.clone(), 0.5, &mut DropoutRng::none());
//! assert!(same.equal(x.clone()).all().into_scalar::<bool>());
//! let a = dropout(x.clone(), 0.5, &mut DropoutRng::seeded(3));
//! let b = dropout(x, 0.5, &mut DropoutRng::seeded(3));
//! assert!(a.equal(b).all().into_scalar::<bool>());
//! ```

use std::ops::Range;

use burn::tensor::{Device, Tensor, TensorData};
use regard_kernels::pointwise::{DropoutMask, Part};

use crate::{attention::AttentionError, bridge};

/// The source of randomness of one forward pass: none (inference), or a seed (training).
#[derive(Debug, Clone)]
pub struct DropoutRng {
    seed: Option<u64>,
    draws: u64,
    /// The rows of a larger batch that this pass computes.
    rows: Option<Rows>,
    /// The axis of the batch in the tensor of the next draw.
    batch_axis: usize,
}

/// Some rows of a batch.
#[derive(Debug, Clone, Copy)]
struct Rows {
    first: usize,
    count: usize,
    batch: usize,
}

impl DropoutRng {
    /// Inference: nothing is dropped.
    // Not inlined: when optimising, rustc 1.95.0 gives two calls that receive the same constant by value the same memory, so
    // that the second would continue where the first stopped.
    #[inline(never)]
    pub fn none() -> Self {
        Self {
            seed: None,
            draws: 0,
            rows: None,
            batch_axis: 0,
        }
    }

    /// Training: masks follow from `seed` and the order of the calls.
    // As above.
    #[inline(never)]
    pub fn seeded(seed: u64) -> Self {
        Self {
            seed: Some(seed),
            draws: 0,
            rows: None,
            batch_axis: 0,
        }
    }

    /// The same noise for a pass over rows `rows` of a batch of `batch` rows: each gets what it would get in a pass over all of them,
    /// provided that sequences are padded as in the whole batch.
    pub fn of_rows(self, rows: Range<usize>, batch: usize) -> Self {
        let rows = (rows.len() < batch).then_some(Rows {
            first: rows.start,
            count: rows.len(),
            batch,
        });
        Self { rows, ..self }
    }

    /// Says that in the tensor of the next draw the batch is axis `axis`, such as 1 in `[time, batch, ..]`. Without it the batch is the
    /// first axis, or the last part of it, as in `[time · batch, ..]`.
    pub fn batch_axis(&mut self, axis: usize) -> &mut Self {
        self.batch_axis = axis;
        self
    }

    /// Where the numbers of a tensor of `shape` stand in that of the whole batch.
    fn part(&mut self, shape: &[usize]) -> Option<Part> {
        let axis = std::mem::take(&mut self.batch_axis);
        let rows = self.rows?;
        let inner: usize = shape[axis + 1..].iter().product();
        Some(Part {
            held: rows.count * inner,
            of: rows.batch * inner,
            first: rows.first * inner,
        })
    }

    /// The key of the next draw; `None` without a seed.
    fn next_key(&mut self) -> Option<u64> {
        let seed = self.seed?;
        self.draws += 1;
        Some(mix(seed ^ mix(self.draws)))
    }

    /// A seed for one operation that draws its own numbers; `None` in inference.
    pub fn seed(&mut self) -> Option<u64> {
        self.next_key()
    }

    /// The place of the first row in its batch.
    pub(crate) fn first_row(&self) -> usize {
        self.rows.map_or(0, |rows| rows.first)
    }

    /// Numbers from the open interval (0, 1); `None` in inference.
    pub fn uniform<const D: usize>(
        &mut self,
        shape: [usize; D],
        device: &Device,
    ) -> Option<Tensor<D>> {
        let part = self.part(&shape);
        let key = self.next_key()?;
        let (low, high) = (key as u32, (key >> 32) as u32);
        let place = |i: usize| match part {
            Some(Part { held, of, first }) => i / held * of + first + i % held,
            None => i,
        };
        let values: Vec<f32> = (0..shape.iter().product())
            .map(|i| between_0_and_1(hash(place(i) as u32, low, high)))
            .collect();
        Some(Tensor::from_data(TensorData::new(values, shape), device))
    }

    /// Numbers from the normal distribution N(0, 1); `None` in inference.
    pub fn normal<const D: usize>(
        &mut self,
        shape: [usize; D],
        device: &Device,
    ) -> Option<Tensor<D>> {
        // Box-Muller.
        let axis = self.batch_axis;
        let radius = (self.uniform(shape, device)?.log() * -2.0).sqrt();
        let angle = self.batch_axis(axis).uniform(shape, device)? * std::f32::consts::TAU;
        Some(radius * angle.cos())
    }

    /// A mask of `shape` holding 0 with `probability` and `1 / (1 - probability)` otherwise, or `None` when nothing is to be
    /// dropped.
    ///
    /// # Panics
    /// If `probability` is not in `[0, 1)`.
    #[track_caller]
    pub fn mask<const D: usize>(
        &mut self,
        shape: [usize; D],
        probability: f64,
        device: &Device,
    ) -> Option<Tensor<D>> {
        let mask = self.draw(probability, &shape)?;
        let mut values = vec![0.0f32; shape.iter().product()];
        match mask.factors(&mut values) {
            Ok(()) => Some(Tensor::from_data(TensorData::new(values, shape), device)),
            Err(error) => panic!("{error}"),
        }
    }

    /// A mask that an operation computes itself, number by number, for a tensor of `shape`; `None` when nothing is to be dropped.
    ///
    /// # Panics
    /// If `probability` is not in `[0, 1)`.
    #[track_caller]
    pub(crate) fn draw(&mut self, probability: f64, shape: &[usize]) -> Option<DropoutMask> {
        if let Err(error) = check_probability("probability", probability) {
            panic!("{error}");
        }
        let part = self.part(shape).filter(|part| part.held > 0);
        (probability > 0.0).then_some(())?;
        let seed = self.next_key()?;
        Some(DropoutMask {
            probability,
            seed,
            part,
        })
    }
}

/// `x` with values dropped with `probability`, as `noise` says. One pass for `f32` on the Flex backend, whose mask is never kept.
///
/// # Panics
/// If `probability` is not in `[0, 1)`, with or without noise.
#[track_caller]
pub fn dropout<const D: usize>(
    x: Tensor<D>,
    probability: f64,
    noise: &mut DropoutRng,
) -> Tensor<D> {
    if bridge::serves(&x) {
        return match noise.draw(probability, &x.dims()) {
            Some(mask) => bridge::dropout(x, mask),
            None => x,
        };
    }
    match noise.mask(x.dims(), probability, &x.device()) {
        Some(mask) => x.clone() * mask.cast(x.dtype()),
        None => x,
    }
}

/// Checks that `found` is in `[0, 1)`, so that dropping with this probability leaves some numbers.
pub(crate) fn check_probability(field: &'static str, found: f64) -> Result<(), AttentionError> {
    match (0.0..1.0).contains(&found) {
        true => Ok(()),
        false => Err(AttentionError::value(
            field,
            found,
            "at least 0 and below 1",
            "it is the share of numbers that are dropped",
        )),
    }
}

/// SplitMix64's finaliser.
fn mix(mut x: u64) -> u64 {
    x = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// A 32-bit hash of a counter under a 64-bit key (two rounds of a multiply-xorshift permutation).
fn hash(counter: u32, low: u32, high: u32) -> u32 {
    let mut x = counter.wrapping_mul(0x9e37_79b1) ^ low;
    x = (x ^ (x >> 16)).wrapping_mul(0x7feb_352d);
    x = (x ^ (x >> 15)).wrapping_add(high).wrapping_mul(0x846c_a68b);
    x = (x ^ (x >> 16)).wrapping_mul(0x9e37_79b1);
    x ^ (x >> 15)
}

/// A number of the open interval (0, 1) from random bits. The largest ones would be rounded to 1.
fn between_0_and_1(bits: u32) -> f32 {
    let number = ((bits >> 8) as f32 + 0.5) / 16_777_216.0;
    number.min(1.0f32.next_down())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_never_0_or_1() {
        for bits in [0, 255, 256, 1 << 31, u32::MAX - 256, u32::MAX] {
            let number = between_0_and_1(bits);
            assert!(0.0 < number && number < 1.0, "{bits}: {number}");
        }
    }

    #[test]
    fn the_share_and_the_mean_are_right() {
        let device = Device::flex();
        for probability in [0.1, 0.3, 0.5, 0.9] {
            let mask = DropoutRng::seeded(5).mask([400, 500], probability, &device);
            let mean = mask.unwrap().mean().into_scalar::<f32>();
            assert!((mean - 1.0).abs() < 0.03, "{probability}: {mean}");
        }
    }

    #[test]
    fn successive_masks_and_neighbouring_seeds_differ() {
        let device = Device::flex();
        let mut noise = DropoutRng::seeded(1);
        let masks = [
            noise.mask([1000], 0.5, &device).unwrap(),
            noise.mask([1000], 0.5, &device).unwrap(),
            DropoutRng::seeded(2).mask([1000], 0.5, &device).unwrap(),
        ];
        for (i, a) in masks.iter().enumerate() {
            for b in &masks[i + 1..] {
                let equal = a.clone().equal(b.clone()).int().sum().into_scalar::<i64>();
                assert!((400..600).contains(&equal), "{equal}");
            }
        }
    }
}
