//! Input data for measurements.

/// `count` pseudorandom numbers in `[-scale, scale)`: the same for the same seed, on every machine.
///
/// ```
/// use regard_kernels::measure::numbers;
/// assert_eq!(numbers(1, 4, 1.0), numbers(1, 4, 1.0));
/// assert_ne!(numbers(1, 4, 1.0), numbers(2, 4, 1.0));
/// ```
pub fn numbers(seed: u32, count: usize, scale: f32) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9E37_79B9) ^ 0x85EB_CA6B;
    let next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        ((state >> 8) as f32 / (1 << 23) as f32 - 1.0) * scale
    };
    std::iter::repeat_with(next).take(count).collect()
}
