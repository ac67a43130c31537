//! Softmax cross-entropy with label smoothing, and its gradient in the same pass.
//!
//! For a row of logits `x [classes]` with target `t`, smoothing `ε` and `p = softmax(x)`:
//! ```text
//! nll      = -ln p_t
//! smoothed = (1 - ε) nll + ε/classes Σ_j -ln p_j          (ε spread over all classes, as in PyTorch)
//! gradient = p - (1 - ε) onehot(t) - ε/classes
//! ```
//! A row whose target is the ignored id is left out: its logits are not read and its gradient is 0. Rows are spread over
//! threads; the sums are taken in `f64` in the order of the rows, so they are the same for any number of threads.
//!
//! ```text
//! a row:   x --largest m--> --e^(x - m), in place--> --times 1 / Σ, less ε/classes, in place--> gradient
//!                             Σ e^(x - m), Σ (x - m)     less 1 - ε at t
//! ```
//! [`forward_backward`] overwrites the logits with their gradient: the largest matrix of a translation model is read and
//! written once, where separate operations do so about ten times. During the three sweeps over a row, the row stays in the
//! cache. Sums are taken in `f32` over blocks of 512 numbers, and the sums of the blocks are added in `f64`.
//!
//! ```
//! use regard_kernels::loss::{CrossEntropy, forward_backward};
//! let spec = CrossEntropy { rows: 2, classes: 2, targets: &[1u32, 0], ignore: Some(0), smoothing: 0.0 };
//! let mut logits = [0.0, 0.0, 7.0, 7.0];
//! let losses = forward_backward(&spec, &mut logits, 1.0, None)?;
//! assert_eq!(losses.tokens, 1);
//! assert!((losses.nll - std::f64::consts::LN_2).abs() < 1e-7);
//! assert_eq!(logits, [0.5, -0.5, 0.0, 0.0]);
//! # Ok::<(), regard_kernels::KernelError>(())
//! ```

use crate::error::{KernelError, check_length, check_value};
use crate::simd::{self, Kernel, Level, Simd, run};
use crate::threads::{RowsMut, for_each_chunk, rows};

/// An integer that names a class.
pub trait ClassId: Copy + Sync + std::fmt::Display {
    /// As an index; `None` if it is negative.
    fn index(self) -> Option<usize>;
}

macro_rules! class_id {
    ($($integer:ty),*) => {$(
        impl ClassId for $integer {
            fn index(self) -> Option<usize> {
                usize::try_from(self).ok()
            }
        }
    )*};
}
class_id!(u32, i32, i64);

/// Sizes, targets and options of a cross-entropy.
#[derive(Debug, Clone, Copy)]
pub struct CrossEntropy<'a, I> {
    /// Rows of logits: positions to predict.
    pub rows: usize,
    /// Columns of logits: the vocabulary.
    pub classes: usize,
    /// `[rows]`: the right class of each row, below `classes`.
    pub targets: &'a [I],
    /// Rows with this target (padding) do not count. It need not be below `classes`.
    pub ignore: Option<usize>,
    /// `ε` in `[0, 1]`: the share of the target that is spread evenly over all classes.
    pub smoothing: f32,
}

/// Sums over the rows that count.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Losses {
    /// Sum of the smoothed losses: what training minimises.
    pub smoothed: f64,
    /// Sum of `-ln p_t`, from which perplexity is computed.
    pub nll: f64,
    /// Rows that count.
    pub tokens: usize,
}

/// The two losses of one row, `[smoothed, nll]`; zeros for a row that does not count.
pub type RowLoss = [f64; 2];

/// The losses of `logits [rows, classes]`, and those of each row in `row_losses [rows]` if given.
///
/// # Errors
/// [`KernelError`] if a length, a target or the smoothing is out of range.
pub fn forward<I: ClassId>(
    spec: &CrossEntropy<'_, I>,
    logits: &[f32],
    row_losses: Option<&mut [RowLoss]>,
) -> Result<Losses, KernelError> {
    forward_at(Level::current(), spec, logits, row_losses)
}

pub(crate) fn forward_at<I: ClassId>(
    level: Level,
    spec: &CrossEntropy<'_, I>,
    logits: &[f32],
    row_losses: Option<&mut [RowLoss]>,
) -> Result<Losses, KernelError> {
    spec.check(logits.len(), row_losses.as_deref())?;
    let classes = spec.classes;
    spec.over_rows(row_losses, |losses| {
        for_each_chunk(
            rows(losses, 1),
            spec.rows,
            spec.chunk_rows(),
            spec.nanoseconds(0.5),
            &|first, losses: RowsMut<RowLoss>| {
                for (row, loss) in (first..).zip(losses.data) {
                    if let Some(target) = spec.target(row) {
                        let row = &logits[row * classes..(row + 1) * classes];
                        *loss = run(
                            level,
                            ForwardRow {
                                row,
                                target,
                                smoothing: spec.smoothing,
                            },
                        );
                    }
                }
            },
        );
    })
}

/// As [`forward`], and overwrites `logits` with `scale` times the gradient of the summed smoothed
/// loss.
///
/// # Errors
/// [`KernelError`] if a length, a target, the smoothing or the scale is out of range; the logits
/// are then untouched.
pub fn forward_backward<I: ClassId>(
    spec: &CrossEntropy<'_, I>,
    logits: &mut [f32],
    scale: f32,
    row_losses: Option<&mut [RowLoss]>,
) -> Result<Losses, KernelError> {
    forward_backward_at(Level::current(), spec, logits, scale, row_losses)
}

pub(crate) fn forward_backward_at<I: ClassId>(
    level: Level,
    spec: &CrossEntropy<'_, I>,
    logits: &mut [f32],
    scale: f32,
    row_losses: Option<&mut [RowLoss]>,
) -> Result<Losses, KernelError> {
    spec.check(logits.len(), row_losses.as_deref())?;
    check_value(
        "scale",
        "a finite number",
        f64::from(scale),
        scale.is_finite(),
    )?;
    let classes = spec.classes;
    spec.over_rows(row_losses, |losses| {
        for_each_chunk(
            (rows(losses, 1), rows(logits, classes)),
            spec.rows,
            spec.chunk_rows(),
            spec.nanoseconds(1.0),
            &|first, (losses, logits): (RowsMut<RowLoss>, RowsMut<f32>)| {
                let mut rest = logits.data;
                for (row, loss) in (first..).zip(losses.data) {
                    let (logits, tail) = rest.split_at_mut(classes);
                    rest = tail;
                    match spec.target(row) {
                        Some(target) => {
                            let smoothing = spec.smoothing;
                            *loss = run(
                                level,
                                BackwardRow {
                                    logits,
                                    target,
                                    smoothing,
                                    scale,
                                },
                            );
                        }
                        None => logits.fill(0.0),
                    }
                }
            },
        );
    })
}

/// Overwrites each row of `logits [rows, classes]` with its log-probabilities, `x_j - ln Σ_k e^{x_k}`; numbers after the
/// last whole row are left as they are.
pub fn log_softmax(logits: &mut [f32], classes: usize) {
    if classes == 0 {
        return;
    }
    let (level, count) = (Level::current(), logits.len() / classes);
    let work = |_: usize, part: RowsMut<f32>| {
        for row in part.data.chunks_exact_mut(classes) {
            run(level, LogSoftmax(row));
        }
    };
    let nanoseconds = count as f64 * classes as f64 * 0.5;
    for_each_chunk(
        rows(&mut logits[..count * classes], classes),
        count,
        1,
        nanoseconds,
        &work,
    );
}

struct LogSoftmax<'a>(&'a mut [f32]);

impl Kernel for LogSoftmax<'_> {
    type Output = ();

    #[inline(always)]
    fn call<S: Simd>(self, s: S) {
        let largest = simd::max(s, self.0);
        let shift = s.splat(largest);
        // The numbers that fill no vector are summed apart: a zero of padding would add exp(0 - largest).
        let lanes = self.0.len() / S::LANES * S::LANES;
        let (whole, rest) = self.0.split_at(lanes);
        let sum = simd::sum_f64(
            s,
            whole,
            #[inline(always)]
            |x| simd::exp(s, s.sub(x, shift)),
        ) + rest
            .iter()
            .map(|x| f64::from((x - largest).exp()))
            .sum::<f64>();
        // Apart from the largest, which may be so large that the logarithm of the sum would be rounded away beside it.
        let log = s.splat(sum.ln() as f32);
        simd::zip_map(
            s,
            [],
            [self.0],
            #[inline(always)]
            |[], [x]| [s.sub(s.sub(x, shift), log)],
        );
    }
}

/// Multiplies every number of a gradient by `factor`, over the threads.
pub fn scale(gradient: &mut [f32], factor: f32) {
    const CHUNK: usize = 65_536;
    let level = Level::current();
    let count = gradient.len();
    for_each_chunk(
        rows(gradient, 1),
        count,
        CHUNK,
        count as f64 * 0.2,
        &|_, part: RowsMut<f32>| {
            run(level, Scale(part.data, factor));
        },
    );
}

struct Scale<'a>(&'a mut [f32], f32);

impl Kernel for Scale<'_> {
    type Output = ();
    #[inline(always)]
    fn call<S: Simd>(self, s: S) {
        simd::scale(s, self.1, self.0);
    }
}

impl<I: ClassId> CrossEntropy<'_, I> {
    fn check(&self, logits: usize, row_losses: Option<&[RowLoss]>) -> Result<(), KernelError> {
        check_length(
            "logits",
            "[rows, classes]",
            &[self.rows, self.classes],
            logits,
        )?;
        check_length("targets", "[rows]", &[self.rows], self.targets.len())?;
        if let Some(row_losses) = row_losses {
            check_length("row_losses", "[rows]", &[self.rows], row_losses.len())?;
        }
        let smoothing = f64::from(self.smoothing);
        check_value(
            "smoothing",
            "a number from 0 to 1",
            smoothing,
            (0.0..=1.0).contains(&smoothing),
        )?;
        let wrong = self.targets.iter().position(|target| {
            let index = target.index();
            index.is_none_or(|index| index >= self.classes && self.ignore != Some(index))
        });
        match wrong {
            None => Ok(()),
            Some(position) => Err(KernelError::Entry {
                argument: "targets",
                position,
                expected: format!("a class from 0 to below {}", self.classes),
                found: self.targets[position].to_string(),
            }),
        }
    }

    /// The class of a row; `None` where the row does not count.
    fn target(&self, row: usize) -> Option<usize> {
        self.targets[row]
            .index()
            .filter(|&index| self.ignore != Some(index))
    }

    fn chunk_rows(&self) -> usize {
        (65_536 / self.classes.max(1)).max(1)
    }

    fn nanoseconds(&self, of_logit: f64) -> f64 {
        self.rows as f64 * self.classes as f64 * of_logit
    }

    /// Lets `fill` write a loss for each row, and sums them in order.
    fn over_rows(
        &self,
        row_losses: Option<&mut [RowLoss]>,
        fill: impl FnOnce(&mut [RowLoss]),
    ) -> Result<Losses, KernelError> {
        let mut own = Vec::new();
        let losses = match row_losses {
            Some(given) => given,
            None => {
                own.resize(self.rows, [0.0; 2]);
                &mut own[..]
            }
        };
        losses.fill([0.0; 2]);
        fill(losses);
        let mut sums = Losses::default();
        for (row, [smoothed, nll]) in losses.iter().enumerate() {
            sums.smoothed += smoothed;
            sums.nll += nll;
            sums.tokens += usize::from(self.target(row).is_some());
        }
        Ok(sums)
    }
}

/// Blocks are summed in `f32`, and the blocks in `f64`.
const BLOCK: usize = 512;

/// `[smoothed, nll]` from `Σ e^{x - m}`, `Σ (x - m)` and `x_t - m`.
fn row_loss(total: f64, shifted: f64, target: f32, classes: usize, smoothing: f32) -> RowLoss {
    let log_total = total.ln();
    let nll = log_total - f64::from(target);
    if smoothing == 0.0 {
        return [nll, nll];
    }
    let uniform = log_total - shifted / classes as f64;
    let smoothing = f64::from(smoothing);
    [(1.0 - smoothing) * nll + smoothing * uniform, nll]
}

struct ForwardRow<'a> {
    row: &'a [f32],
    target: usize,
    smoothing: f32,
}

impl Kernel for ForwardRow<'_> {
    type Output = RowLoss;
    #[inline(always)]
    fn call<S: Simd>(self, s: S) -> RowLoss {
        let ForwardRow {
            row,
            target,
            smoothing,
        } = self;
        let largest = simd::max(s, row);
        let shift = s.splat(largest);
        let (mut total, mut shifted) = (0.0, 0.0);
        for block in row.chunks(BLOCK) {
            let (mut powers, mut plain) = (s.zero(), s.zero());
            let whole = block.len() / S::LANES * S::LANES;
            let mut at = 0;
            while at < whole {
                let x = s.sub(s.load(&block[at..]), shift);
                plain = s.add(plain, x);
                powers = s.add(powers, simd::exp(s, x));
                at += S::LANES;
            }
            let mut rest = [0.0; 2];
            for &x in &block[at..] {
                rest[0] += f64::from(x - largest);
                rest[1] += f64::from((x - largest).exp());
            }
            shifted += f64::from(s.reduce_add(plain)) + rest[0];
            total += f64::from(s.reduce_add(powers)) + rest[1];
        }
        row_loss(total, shifted, row[target] - largest, row.len(), smoothing)
    }
}

struct BackwardRow<'a> {
    logits: &'a mut [f32],
    target: usize,
    smoothing: f32,
    scale: f32,
}

impl Kernel for BackwardRow<'_> {
    type Output = RowLoss;
    #[inline(always)]
    fn call<S: Simd>(self, s: S) -> RowLoss {
        let BackwardRow {
            logits,
            target,
            smoothing,
            scale,
        } = self;
        let classes = logits.len();
        let largest = simd::max(s, logits);
        let of_target = logits[target] - largest;
        let shift = s.splat(largest);
        let (mut total, mut shifted) = (0.0, 0.0);
        // The powers replace the logits, so that the last sweep is one multiplication each.
        for block in logits.chunks_mut(BLOCK) {
            let (mut powers, mut plain) = (s.zero(), s.zero());
            let whole = block.len() / S::LANES * S::LANES;
            let mut at = 0;
            while at < whole {
                let x = s.sub(s.load(&block[at..]), shift);
                let power = simd::exp(s, x);
                plain = s.add(plain, x);
                powers = s.add(powers, power);
                s.store(&mut block[at..], power);
                at += S::LANES;
            }
            let mut rest = [0.0; 2];
            for x in &mut block[at..] {
                rest[0] += f64::from(*x - largest);
                *x = (*x - largest).exp();
                rest[1] += f64::from(*x);
            }
            shifted += f64::from(s.reduce_add(plain)) + rest[0];
            total += f64::from(s.reduce_add(powers)) + rest[1];
        }
        let factor = s.splat((f64::from(scale) / total) as f32);
        let uniform = scale * smoothing / classes as f32;
        let spread = s.splat(uniform);
        simd::zip_map(
            s,
            [],
            [&mut *logits],
            #[inline(always)]
            |[], [power]| [s.sub(s.mul(power, factor), spread)],
        );
        logits[target] -= scale * (1.0 - smoothing);
        row_loss(total, shifted, of_target, classes, smoothing)
    }
}

#[cfg(test)]
#[path = "loss_tests.rs"]
mod tests;
