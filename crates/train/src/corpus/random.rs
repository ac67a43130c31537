//! A random number generator whose sequence will not change.
//!
//! SplitMix64 (Steele, Lea and Flood 2014): `x += 0x9e3779b97f4a7c15`, then three xor-shift and
//! multiply rounds. The order of a corpus is part of an experiment, and a resumed run must see the
//! same order with a later release of the program, so it does not depend on a library's choices.
//!
//! ```
//! use regard_train::corpus::Random;
//! let mut random = Random::new(&[1234567]);
//! let mut numbers: Vec<u32> = (0..10).collect();
//! random.shuffle(&mut numbers);
//! let again: Vec<u32> = { let mut n: Vec<u32> = (0..10).collect();
//!     Random::new(&[1234567]).shuffle(&mut n); n };
//! assert_eq!(numbers, again);
//! ```

/// A seeded stream of random numbers; not for secrets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Random {
    state: u64,
}

impl Random {
    /// A stream that depends on all of `keys` (such as seed, purpose, epoch) and their order.
    pub fn new(keys: &[u64]) -> Self {
        let mut random = Self { state: 0 };
        for &key in keys {
            random.state ^= key;
            random.state = random.next_u64();
        }
        random
    }

    /// The next 64 random bits.
    pub fn next_u64(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut bits = self.state;
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        bits ^ (bits >> 31)
    }

    /// A number in `0..bound`, each equally likely (Lemire 2019); 0 for a bound of 0.
    pub fn below(&mut self, bound: usize) -> usize {
        let bound = bound as u64;
        if bound == 0 {
            return 0;
        }
        let rejected = bound.wrapping_neg() % bound;
        loop {
            let product = u128::from(self.next_u64()) * u128::from(bound);
            if product as u64 >= rejected {
                return (product >> 64) as usize;
            }
        }
    }

    /// A number in `[0, 1)` with 53 random bits.
    pub fn uniform(&mut self) -> f64 {
        (self.next_u64() >> 11) as f64 * (1.0 / (1u64 << 53) as f64)
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
    fn sequence_is_that_of_the_published_algorithm() {
        let mut random = Random { state: 1234567 };
        let first: Vec<u64> = (0..3).map(|_| random.next_u64()).collect();
        assert_eq!(
            first,
            [
                6457827717110365317,
                3203168211198807973,
                9817491932198370423
            ]
        );
    }

    #[test]
    fn below_is_even_and_in_range() {
        let mut random = Random::new(&[3]);
        let mut counts = [0u32; 7];
        for _ in 0..70_000 {
            counts[random.below(7)] += 1;
        }
        let chi: f64 = counts
            .iter()
            .map(|&c| (f64::from(c) - 1e4).powi(2) / 1e4)
            .sum();
        assert!(chi < 30.0, "{counts:?}");
        assert_eq!(random.below(0), 0);
        assert_eq!(random.below(1), 0);
    }

    #[test]
    fn keys_and_their_order_matter() {
        let first = |keys: &[u64]| Random::new(keys).next_u64();
        assert_ne!(first(&[1, 2]), first(&[2, 1]));
        assert_ne!(first(&[1]), first(&[1, 0]));
        assert_eq!(first(&[5, 6]), first(&[5, 6]));
    }
}
