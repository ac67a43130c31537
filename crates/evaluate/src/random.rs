//! The random numbers of `numpy.random.default_rng(seed)`, so that resamples equal sacrebleu's.
//!
//! Seeding mixes the seed into four words (numpy's `SeedSequence`, after O'Neill's `randutils`);
//! the generator is PCG64, the 128-bit linear congruential generator with the XSL-RR output
//! (O'Neill 2014); `choice(n)` draws 32-bit halves, the low one first, and maps them to `0..n` by
//! Lemire's multiplication with rejection (2019).

const MULTIPLIER: u128 = 0x2360_ed05_1fc6_5da4_4385_df64_9fcc_f645;

/// numpy's default generator.
#[derive(Debug, Clone)]
pub(crate) struct Pcg64 {
    state: u128,
    increment: u128,
    upper_half: Option<u32>,
}

impl Pcg64 {
    pub(crate) fn new(seed: u64) -> Self {
        let [state_high, state_low, stream_high, stream_low] = expand_seed(seed);
        let wide = |high: u64, low: u64| u128::from(high) << 64 | u128::from(low);
        let increment = wide(stream_high, stream_low) << 1 | 1;
        let mut generator = Self {
            state: 0,
            increment,
            upper_half: None,
        };
        generator.step();
        generator.state = generator.state.wrapping_add(wide(state_high, state_low));
        generator.step();
        generator
    }

    fn step(&mut self) {
        self.state = self
            .state
            .wrapping_mul(MULTIPLIER)
            .wrapping_add(self.increment);
    }

    fn next_u64(&mut self) -> u64 {
        self.step();
        ((self.state >> 64) as u64 ^ self.state as u64).rotate_right((self.state >> 122) as u32)
    }

    fn next_u32(&mut self) -> u32 {
        if let Some(half) = self.upper_half.take() {
            return half;
        }
        let both = self.next_u64();
        self.upper_half = Some((both >> 32) as u32);
        both as u32
    }

    /// A number from `0..bound`, uniformly; 0 without a draw for `bound` up to 1.
    pub(crate) fn below(&mut self, bound: u32) -> u32 {
        if bound <= 1 {
            return 0;
        }
        let mut draw = || u64::from(self.next_u32()) * u64::from(bound);
        let mut product = draw();
        if (product as u32) < bound {
            let threshold = bound.wrapping_neg() % bound;
            while (product as u32) < threshold {
                product = draw();
            }
        }
        (product >> 32) as u32
    }
}

/// `SeedSequence(seed).generate_state(4, uint64)`.
fn expand_seed(seed: u64) -> [u64; 4] {
    const POOL: usize = 4;
    let entropy = [seed as u32, (seed >> 32) as u32, 0, 0];

    let mut constant: u32 = 0x43b0_d7e5;
    let mut hash = |value: u32| {
        let value = value ^ constant;
        constant = constant.wrapping_mul(0x931e_8875);
        let value = value.wrapping_mul(constant);
        value ^ value >> 16
    };
    let mut pool = entropy.map(&mut hash);
    for source in 0..POOL {
        for target in (0..POOL).filter(|&target| target != source) {
            let hashed = hash(pool[source]);
            let mixed = pool[target]
                .wrapping_mul(0xca01_f9dd)
                .wrapping_sub(hashed.wrapping_mul(0x4973_f715));
            pool[target] = mixed ^ mixed >> 16;
        }
    }

    let mut constant: u32 = 0x8b51_f9dd;
    let mut word = |index: usize| {
        let value = pool[index % POOL] ^ constant;
        constant = constant.wrapping_mul(0x58f3_8ded);
        let value = value.wrapping_mul(constant);
        u64::from(value ^ value >> 16)
    };
    std::array::from_fn(|index| {
        let low = word(2 * index);
        low | word(2 * index + 1) << 32
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `np.random.default_rng(seed).choice(n, size=12)`, numpy 2.4.6.
    #[test]
    fn equals_numpy() {
        let cases: [(u64, u32, [u32; 12]); 4] = [
            (
                12345,
                1000,
                [699, 227, 788, 316, 204, 797, 642, 676, 988, 391, 839, 332],
            ),
            (0, 7, [5, 4, 3, 1, 2, 0, 0, 0, 1, 5, 4, 6]),
            (
                1099511627793,
                3000000001,
                [
                    1012949011, 792377058, 1577116263, 138436596, 550646585, 1469433433,
                    2652277402, 1237143701, 597366773, 2612850545, 2087817154, 2562214046,
                ],
            ),
            (1, 1, [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]),
        ];
        for (seed, bound, expected) in cases {
            let mut generator = Pcg64::new(seed);
            let drawn: [u32; 12] = std::array::from_fn(|_| generator.below(bound));
            assert_eq!(drawn, expected, "seed {seed}, bound {bound}");
        }
    }
}
