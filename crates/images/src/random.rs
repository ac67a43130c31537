//! The source of all chance in this crate: a seeded generator that is an argument, never a hidden state.
//!
//! ```text
//! key of ChaCha12 = seed (8 bytes) | stream (8 bytes) | purpose (8 bytes) | 0 (8 bytes), little-endian
//! ```
//!
//! ChaCha12 (Bernstein 2008) is fixed by its definition, so the numbers are the same on every machine and with every release.
//!
//! ```
//! use regard_images::Random;
//! let (mut one, mut other) = (Random::new(7, 0), Random::new(7, 0));
//! assert_eq!(one.below(1000), other.below(1000));
//! ```

use rand_chacha::ChaCha12Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};

/// A seeded stream of random numbers; not for secrets.
#[derive(Clone, Debug)]
pub struct Random(ChaCha12Rng);

impl Random {
    /// The stream of this number among those of `seed`, such as the number of an example: any stream can be had at any time.
    pub fn new(seed: u64, stream: u64) -> Self {
        Self::for_purpose(seed, stream, 0)
    }

    pub(crate) fn for_purpose(seed: u64, stream: u64, purpose: u64) -> Self {
        let mut key = [0; 32];
        for (part, number) in key.chunks_exact_mut(8).zip([seed, stream, purpose]) {
            part.copy_from_slice(&number.to_le_bytes());
        }
        Self(ChaCha12Rng::from_seed(key))
    }

    /// A number in `0..bound`, each as likely to within `bound / 2^64`; 0 for a bound of 0.
    pub fn below(&mut self, bound: usize) -> usize {
        ((u128::from(self.0.next_u64()) * bound as u128) >> 64) as usize
    }

    /// A number in `[0, 1)` with 53 random bits.
    pub fn uniform(&mut self) -> f64 {
        (self.0.next_u64() >> 11) as f64 * (1.0 / (1_u64 << 53) as f64)
    }

    /// A number in `[low, high)`.
    pub fn between(&mut self, low: f64, high: f64) -> f64 {
        low + (high - low) * self.uniform()
    }

    /// True with this probability.
    pub fn chance(&mut self, probability: f64) -> bool {
        self.uniform() < probability
    }

    /// Puts `items` in random order, each order equally likely (Fisher and Yates).
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            items.swap(last, self.below(last + 1));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_stay_the_same() {
        let mut random = Random::new(1, 2);
        let drawn: Vec<usize> = (0..6).map(|_| random.below(1000)).collect();
        assert_eq!(drawn, NUMBERS);
        let mut other = Random::new(2, 1);
        assert_ne!(
            (0..6).map(|_| other.below(1000)).collect::<Vec<_>>(),
            NUMBERS
        );
        assert_eq!(random.below(0), 0);
        assert_eq!(random.below(1), 0);
    }

    const NUMBERS: [usize; 6] = [194, 64, 28, 385, 380, 449];

    #[test]
    fn numbers_fill_their_range() {
        let mut random = Random::new(3, 0);
        let mut counts = [0_u32; 7];
        for _ in 0..70_000 {
            counts[random.below(7)] += 1;
        }
        assert!(
            counts.iter().all(|&count| count.abs_diff(10_000) < 500),
            "{counts:?}"
        );
        assert!((0..1000).all(|_| (2.0..5.0).contains(&random.between(2.0, 5.0))));
    }
}
