//! Rotary positions (Su 2021): pairs of features turn by an angle that grows with the position.
//!
//! `(x_i, x_j) -> (x_i cos θ - x_j sin θ, x_j cos θ + x_i sin θ)` for pair `p` of a head at position `t`, `θ = θ_{t,p}`. The gradient
//! of the input is that of the output turned back.
//!
//! ```
//! use regard_kernels::rotary::{self, Rotary};
//!
//! // One head of two features, turned by a right angle at position 1.
//! let (cosine, sine) = ([1.0, 0.0], [0.0, 1.0]);
//! let rotary = Rotary { length: 2, heads: 1, size: 2, cosine: &cosine, sine: &sine, interleaved: false };
//! let mut x = [3.0, 4.0, 3.0, 4.0];
//! rotary::rotate(&rotary, &mut x)?;
//! assert_eq!(x, [3.0, 4.0, -4.0, 3.0]);
//! rotary::rotate_back(&rotary, &mut x)?;
//! assert_eq!(x, [3.0, 4.0, 3.0, 4.0]);
//! # Ok::<(), regard_kernels::KernelError>(())
//! ```

use crate::{
    KernelError,
    error::{check_length, check_size},
    threads::{RowsMut, for_each_chunk, rows},
};

/// Sizes and angles.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Rotary<'a> {
    /// Positions of a sequence: row `r` stands at position `r mod length`.
    pub length: usize,
    /// Heads in a row, side by side.
    pub heads: usize,
    /// Features of a head; the first `2 · pairs` turn.
    pub size: usize,
    /// `[length, pairs]`
    pub cosine: &'a [f32],
    /// `[length, pairs]`
    pub sine: &'a [f32],
    /// Whether features `2 p` and `2 p + 1` form a pair, not `p` and `p + pairs`.
    pub interleaved: bool,
}

/// Turns `x [rows, heads · size]` in place.
///
/// # Errors
/// [`KernelError`] if a length does not fit the sizes, or a head has fewer than `2 · pairs` features.
pub fn rotate(rotary: &Rotary<'_>, x: &mut [f32]) -> Result<(), KernelError> {
    rotary.run(x, 1.0)
}

/// Turns `x [rows, heads · size]` in place by the negative angles, as the backward pass does with gradients.
///
/// # Errors
/// As [`rotate`].
pub fn rotate_back(rotary: &Rotary<'_>, x: &mut [f32]) -> Result<(), KernelError> {
    rotary.run(x, -1.0)
}

impl Rotary<'_> {
    fn run(&self, x: &mut [f32], way: f32) -> Result<(), KernelError> {
        let width = self.heads.saturating_mul(self.size);
        let count = x.len() / width.max(1);
        let pairs = self.cosine.len() / self.length.max(1);
        let of_angles = [self.length, pairs];
        check_length("cosine", "[length, pairs]", &of_angles, self.cosine.len())?;
        check_length("sine", "[length, pairs]", &of_angles, self.sine.len())?;
        check_length("x", "[rows, heads * size]", &[count, width], x.len())?;
        let turning = self.size.min(2 * pairs);
        check_size(
            "cosine",
            "features",
            2 * pairs,
            turning,
            "a head has no more",
        )?;
        if x.is_empty() || pairs == 0 {
            return Ok(());
        }
        let nanoseconds = x.len() as f64 * 0.5;
        for_each_chunk(
            rows(x, width),
            count,
            (4096 / width).max(1),
            nanoseconds,
            &|first, chunk: RowsMut<'_, f32>| {
                for (row, x) in (first..).zip(chunk.data.chunks_exact_mut(width)) {
                    let angles = (row % self.length) * pairs..(row % self.length + 1) * pairs;
                    let (cosine, sine) = (&self.cosine[angles.clone()], &self.sine[angles]);
                    for head in x.chunks_exact_mut(self.size) {
                        let head = &mut head[..2 * pairs];
                        let angles = cosine.iter().zip(sine).map(|(&c, &s)| (c, way * s));
                        if self.interleaved {
                            for (pair, angle) in head.as_chunks_mut::<2>().0.iter_mut().zip(angles)
                            {
                                let [x, y] = pair;
                                (*x, *y) = rotated(*x, *y, angle);
                            }
                        } else {
                            let (xs, ys) = head.split_at_mut(pairs);
                            for ((x, y), angle) in xs.iter_mut().zip(ys).zip(angles) {
                                (*x, *y) = rotated(*x, *y, angle);
                            }
                        }
                    }
                }
            },
        );
        Ok(())
    }
}

#[inline(always)]
fn rotated(x: f32, y: f32, (cosine, sine): (f32, f32)) -> (f32, f32) {
    (x * cosine - y * sine, y * cosine + x * sine)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every length, head and layout against the definition in f64; turning back gives what was there.
    #[test]
    fn pairs_turn_by_their_angles() {
        for (length, heads, size, pairs, batch) in [
            (1, 1, 2, 1, 1),
            (3, 2, 7, 3, 2),
            (5, 3, 8, 2, 1),
            (64, 4, 40, 20, 3),
        ] {
            let angle = |t: usize, p: usize| 0.3 * (t * pairs + p) as f64;
            let table = |f: fn(f64) -> f64| -> Vec<f32> {
                let angles = (0..length * pairs).map(|i| angle(i / pairs, i % pairs));
                angles.map(|angle| f(angle) as f32).collect()
            };
            let (cosine, sine) = (table(f64::cos), table(f64::sin));
            let count = batch * length * heads * size;
            let x: Vec<f32> = (0..count).map(|i| (i as f32 * 0.7).sin()).collect();
            for interleaved in [false, true] {
                let rotary = Rotary {
                    length,
                    heads,
                    size,
                    cosine: &cosine,
                    sine: &sine,
                    interleaved,
                };
                let mut found = x.clone();
                rotate(&rotary, &mut found).unwrap();
                for (i, &found) in found.iter().enumerate() {
                    let (feature, head) = (i % size, i - i % size);
                    let position = i / (heads * size) % length;
                    let (pair, is_first, other) = match (interleaved, feature) {
                        (_, feature) if feature >= 2 * pairs => (0, true, feature),
                        (true, feature) => (feature / 2, feature % 2 == 0, feature ^ 1),
                        (false, feature) if feature < pairs => (feature, true, feature + pairs),
                        (false, feature) => (feature - pairs, false, feature - pairs),
                    };
                    let (own, other) = (f64::from(x[i]), f64::from(x[head + other]));
                    let (s, c) = angle(position, pair).sin_cos();
                    let expected = match (feature < 2 * pairs, is_first) {
                        (false, _) => own,
                        (true, true) => own * c - other * s,
                        (true, false) => own * c + other * s,
                    };
                    assert!((f64::from(found) - expected).abs() < 1e-6, "{i}");
                }
                rotate_back(&rotary, &mut found).unwrap();
                let off = found.iter().zip(&x).map(|(a, b)| (a - b).abs());
                assert!(off.fold(0.0, f32::max) < 1e-6);
            }
        }
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        let rotary = Rotary {
            length: 2,
            heads: 1,
            size: 2,
            cosine: &[1.0; 2],
            sine: &[0.0; 2],
            interleaved: false,
        };
        assert!(rotate(&rotary, &mut [0.0; 4]).is_ok());
        assert!(rotate(&rotary, &mut []).is_ok());
        for (rotary, numbers, argument) in [
            (rotary, 3, "`x`"),
            (
                Rotary {
                    sine: &[0.0; 3],
                    ..rotary
                },
                4,
                "`sine`",
            ),
            (
                Rotary {
                    cosine: &[0.0; 3],
                    ..rotary
                },
                4,
                "`cosine`",
            ),
            (
                Rotary {
                    cosine: &[0.0; 4],
                    sine: &[0.0; 4],
                    ..rotary
                },
                4,
                "`cosine`",
            ),
            (
                Rotary {
                    length: 0,
                    ..rotary
                },
                4,
                "`cosine`",
            ),
        ] {
            let error = rotate(&rotary, &mut vec![0.0; numbers])
                .unwrap_err()
                .to_string();
            assert!(error.starts_with(argument), "{error}");
        }
    }
}
