//! The steps between the matrix products of a network, each in one pass: bias, ReLU, dropout, residual sum; with gradients.
//!
//! For rows `x [rows, width]`, a bias `b [width]` and dropout's factors `m` (`0` with probability `p`, else
//! `1 / (1 - p)`; Srivastava et al. 2014):
//! ```text
//! relu      y = m ∘ max(x + b, 0)          ẋ = m ∘ ẏ where y > 0
//! add_to    y = residual + m ∘ (x + b)     ẋ = m ∘ ẏ,  residual's gradient is ẏ (add_residual: in the place of x)
//! dropout   y = m ∘ (x + b)                ẋ = m ∘ ẏ
//! backward of a bias: ḃ = Σ_rows ẋ
//! ```
//! ```text
//! x:  | 256 numbers | 256 numbers | ..     their factors are hashed into the first-level cache and
//! m:  |   hashed    |   hashed    | ..     used there: a mask is never kept, the backward pass hashes again
//! ```
//! The factor of number `i` is a function of the seed and `i` alone, so it is the same in the backward pass, on any number of
//! threads and on any machine. The backward pass of the ReLU needs only its output: it is positive exactly where neither the
//! ReLU nor dropout set it to 0. Sums over rows are taken in chunks whose number follows from the sizes, and the chunks are
//! added in order in `f64`: the same bits on any number of threads.
//!
//! ```
//! use regard_kernels::pointwise::{Pointwise, relu};
//! let spec = Pointwise { rows: 1, width: 2, bias: Some(&[1.0, 1.0]), dropout: None };
//! let mut x = [-3.0, 2.0];
//! relu(&spec, &mut x)?;
//! assert_eq!(x, [0.0, 3.0]);
//! # Ok::<(), regard_kernels::KernelError>(())
//! ```

use crate::error::{KernelError, check_length, check_value};
use crate::simd::{self, Kernel, Level, Simd, run};
use crate::threads::{RowsMut, for_each_chunk, rows};

#[cfg(test)]
mod tests;

/// Which numbers of a tensor are dropped.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct DropoutMask {
    /// The probability that a number is dropped, in `[0, 1)`.
    pub probability: f64,
    /// The seed.
    pub seed: u64,
    /// The tensor of which the numbers are a part, if they are to be dropped as they would be there; `None` for a whole tensor.
    pub part: Option<Part>,
}

/// Where the numbers of a part stand in the whole tensor: number `i` of the part is number `(i / held) · of + first + i % held` of
/// the whole. With rows `first_row..first_row + rows` of a batch of `batch` rows, as `[.., rows, inner..]`, `held` is `rows · inner`,
/// `of` is `batch · inner` and `first` is `first_row · inner`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Part {
    /// Numbers of the part that stand side by side, at least 1.
    pub held: usize,
    /// Numbers of the whole tensor from one such run to the next, at least `first + held`.
    pub of: usize,
    /// Numbers before the first run.
    pub first: usize,
}

/// Sizes and options of a pointwise step.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Pointwise<'a> {
    /// Rows.
    pub rows: usize,
    /// Numbers in a row.
    pub width: usize,
    /// `[width]`, added to every row.
    pub bias: Option<&'a [f32]>,
    /// Dropout.
    pub dropout: Option<DropoutMask>,
}

/// Numbers whose factors are hashed at once.
const BLOCK: usize = 256;
/// Chunks of rows at most: each has its own sums for the bias.
const CHUNKS: usize = 32;

const ROWS: &str = "[rows, width]";

impl DropoutMask {
    /// Overwrites `factors` with what dropout multiplies numbers `0..` of a tensor with: 0 or `1 / (1 - probability)`.
    ///
    /// # Errors
    /// [`KernelError`] if the probability is not in `[0, 1)`.
    pub fn factors(&self, factors: &mut [f32]) -> Result<(), KernelError> {
        self.check()?;
        let (level, count) = (Level::current(), factors.len());
        let work = |first: usize, part: RowsMut<f32>| {
            let mask = *self;
            run(
                level,
                Factors {
                    mask,
                    first,
                    factors: part.data,
                },
            );
        };
        for_each_chunk(rows(factors, 1), count, 1 << 16, count as f64 * 0.5, &work);
        Ok(())
    }

    pub(crate) fn check(&self) -> Result<(), KernelError> {
        if let Some(Part { held, of, first }) = self.part {
            let fits = first.checked_add(held).is_some_and(|end| end <= of);
            check_value(
                "dropout.part",
                "at least one number side by side, all within the whole tensor",
                held as f64,
                held > 0 && fits,
            )?;
        }
        let accepted = (0.0..1.0).contains(&self.probability);
        check_value(
            "dropout.probability",
            "at least 0 and less than 1",
            self.probability,
            accepted,
        )
    }

    /// The factors of numbers `first..`.
    #[inline(always)]
    pub(crate) fn fill(&self, first: usize, factors: &mut [f32]) {
        let Some(part) = &self.part else {
            return self.fill_run(first as u32, factors);
        };
        let mut done = 0;
        while done < factors.len() {
            let (run, within) = ((first + done) / part.held, (first + done) % part.held);
            let count = (part.held - within).min(factors.len() - done);
            let place = run.wrapping_mul(part.of).wrapping_add(part.first + within);
            self.fill_run(place as u32, &mut factors[done..done + count]);
            done += count;
        }
    }

    /// The factors of numbers `first..` of the whole tensor.
    #[inline(always)]
    fn fill_run(&self, first: u32, factors: &mut [f32]) {
        // Integers are compared, so that the loop becomes vector code.
        let threshold = (self.probability * f64::from(u32::MAX)) as u32;
        let scale = (1.0 / (1.0 - self.probability)) as f32;
        let (low, high) = (self.seed as u32, (self.seed >> 32) as u32);
        for (i, factor) in factors.iter_mut().enumerate() {
            let dropped = hash(first.wrapping_add(i as u32), low, high) < threshold;
            *factor = if dropped { 0.0 } else { scale };
        }
    }
}

/// A 32-bit hash of a counter under a 64-bit key (two rounds of a multiply-xorshift permutation).
#[inline(always)]
fn hash(counter: u32, low: u32, high: u32) -> u32 {
    let mut x = counter.wrapping_mul(0x9e37_79b1) ^ low;
    x = (x ^ (x >> 16)).wrapping_mul(0x7feb_352d);
    x = (x ^ (x >> 15)).wrapping_add(high).wrapping_mul(0x846c_a68b);
    x = (x ^ (x >> 16)).wrapping_mul(0x9e37_79b1);
    x ^ (x >> 15)
}

struct Factors<'a> {
    mask: DropoutMask,
    first: usize,
    factors: &'a mut [f32],
}

impl Kernel for Factors<'_> {
    type Output = ();

    #[inline(always)]
    fn call<S: Simd>(self, _: S) {
        self.mask.fill(self.first, self.factors);
    }
}

/// `x = m ∘ max(x + b, 0)`, in place.
///
/// # Errors
/// [`KernelError`] if a length does not fit the sizes, or a probability is not in `[0, 1)`.
pub fn relu(spec: &Pointwise<'_>, x: &mut [f32]) -> Result<(), KernelError> {
    spec.forward(Level::current(), Step::Relu, x)
}

/// `x = m ∘ (x + b)`, in place.
///
/// # Errors
/// As [`relu`].
pub fn dropout(spec: &Pointwise<'_>, x: &mut [f32]) -> Result<(), KernelError> {
    spec.forward(Level::current(), Step::Linear, x)
}

/// `residual += m ∘ (x + b)`, in place.
///
/// # Errors
/// As [`relu`].
pub fn add_to(spec: &Pointwise<'_>, x: &[f32], residual: &mut [f32]) -> Result<(), KernelError> {
    check_length("x", ROWS, &[spec.rows, spec.width], x.len())?;
    spec.forward(Level::current(), Step::AddTo(x), residual)
}

/// `x = residual + m ∘ (x + b)`, in place of `x`, for `x` and `residual [rows, width]`: the numbers of [`add_to`], to the last bit.
///
/// # Errors
/// As [`relu`].
pub fn add_residual(
    spec: &Pointwise<'_>,
    x: &mut [f32],
    residual: &[f32],
) -> Result<(), KernelError> {
    check_length("residual", ROWS, &[spec.rows, spec.width], residual.len())?;
    spec.forward(Level::current(), Step::Residual(residual), x)
}

/// The gradients of [`relu`] from its `output`: overwrites `gradient [rows, width]`, that of the output, with that of `x`,
/// and `d_bias [width]` with that of the bias.
///
/// # Errors
/// As [`relu`].
pub fn relu_backward(
    spec: &Pointwise<'_>,
    output: &[f32],
    gradient: &mut [f32],
    d_bias: Option<&mut [f32]>,
) -> Result<(), KernelError> {
    check_length("output", ROWS, &[spec.rows, spec.width], output.len())?;
    spec.backward(Level::current(), Some(output), gradient, d_bias)
}

/// The gradients of [`dropout`], [`add_to`] and [`add_residual`]: overwrites `gradient [rows, width]`, that of the output, with that of
/// `x`, and `d_bias [width]` with that of the bias.
///
/// # Errors
/// As [`relu`].
pub fn backward(
    spec: &Pointwise<'_>,
    gradient: &mut [f32],
    d_bias: Option<&mut [f32]>,
) -> Result<(), KernelError> {
    spec.backward(Level::current(), None, gradient, d_bias)
}

/// The gradient of a bias alone: overwrites `sums [width]` with the sums of `x [rows, width]` over its rows. Bias and dropout of
/// `spec` are not read.
///
/// # Errors
/// [`KernelError`] if a length does not fit the sizes.
pub fn column_sums(spec: &Pointwise<'_>, x: &[f32], sums: &mut [f32]) -> Result<(), KernelError> {
    spec.column_sums(Level::current(), x, sums)
}

/// What a forward pass does with the numbers `to`.
#[derive(Clone, Copy)]
enum Step<'a> {
    /// `to = m ∘ (to + b)`
    Linear,
    /// `to = m ∘ max(to + b, 0)`
    Relu,
    /// `to += m ∘ (x + b)`, for this `x`
    AddTo(&'a [f32]),
    /// `to = r + m ∘ (to + b)`, for this `r`
    Residual(&'a [f32]),
}

impl<'a> Step<'a> {
    /// What `to` is called in errors.
    fn argument(self) -> &'static str {
        match self {
            Self::AddTo(_) => "residual",
            _ => "x",
        }
    }

    /// The step of `count` numbers of the tensor, from `first` on.
    fn part(self, first: usize, count: usize) -> Self {
        match self {
            Self::AddTo(x) => Self::AddTo(&x[first..][..count]),
            Self::Residual(r) => Self::Residual(&r[first..][..count]),
            _ => self,
        }
    }
}

impl Pointwise<'_> {
    fn check(&self, argument: &'static str, length: usize) -> Result<(), KernelError> {
        if let Some(bias) = self.bias {
            check_length("bias", "[width]", &[self.width], bias.len())?;
        }
        if let Some(mask) = &self.dropout {
            mask.check()?;
        }
        check_length(argument, ROWS, &[self.rows, self.width], length)
    }

    fn nanoseconds(&self) -> f64 {
        let of_number = if self.dropout.is_some() { 0.7 } else { 0.3 };
        self.rows as f64 * self.width as f64 * of_number
    }

    fn forward(&self, level: Level, step: Step<'_>, to: &mut [f32]) -> Result<(), KernelError> {
        self.check(step.argument(), to.len())?;
        let of_chunk = chunk_rows(self.rows, self.width) * self.width;
        if to.is_empty() {
            return Ok(());
        }
        let chunks = to.len().div_ceil(of_chunk);
        let work = |chunk: usize, to: RowsMut<f32>| {
            let first = chunk * of_chunk;
            run(
                level,
                Forward {
                    spec: self,
                    step,
                    first,
                    to: to.data,
                },
            );
        };
        for_each_chunk(rows(to, of_chunk), chunks, 1, self.nanoseconds(), &work);
        Ok(())
    }

    fn backward(
        &self,
        level: Level,
        output: Option<&[f32]>,
        gradient: &mut [f32],
        d_bias: Option<&mut [f32]>,
    ) -> Result<(), KernelError> {
        self.check("gradient", gradient.len())?;
        let width = self.width;
        if let Some(d_bias) = &d_bias {
            check_length("d_bias", "[width]", &[width], d_bias.len())?;
        }
        let of_chunk = (chunk_rows(self.rows, self.width) * width).max(1);
        let chunks = gradient.len().div_ceil(of_chunk);
        let summed = if d_bias.is_some() { width } else { 0 };
        let mut sums = vec![0.0f32; chunks * summed];
        let work = |chunk: usize, (gradient, sums): (RowsMut<f32>, RowsMut<f32>)| {
            let first = chunk * of_chunk;
            let output = output.map(|output| &output[first..first + gradient.data.len()]);
            let (gradient, sums) = (gradient.data, sums.data);
            run(
                level,
                Backward {
                    spec: self,
                    first,
                    output,
                    gradient,
                    sums,
                },
            );
        };
        let items = (rows(gradient, of_chunk), rows(&mut sums, summed));
        for_each_chunk(items, chunks, 1, self.nanoseconds(), &work);
        if let Some(d_bias) = d_bias {
            add_chunks(&sums, d_bias);
        }
        Ok(())
    }

    fn column_sums(&self, level: Level, x: &[f32], to: &mut [f32]) -> Result<(), KernelError> {
        let width = self.width;
        check_length("x", ROWS, &[self.rows, width], x.len())?;
        check_length("sums", "[width]", &[width], to.len())?;
        let of_chunk = (chunk_rows(self.rows, self.width) * width).max(1);
        let chunks = x.len().div_ceil(of_chunk);
        let mut sums = vec![0.0f32; chunks * width];
        let work = |chunk: usize, sums: RowsMut<f32>| {
            let x = &x[chunk * of_chunk..][..of_chunk.min(x.len() - chunk * of_chunk)];
            let sums = sums.data;
            run(level, ColumnSums { x, sums });
        };
        for_each_chunk(rows(&mut sums, width), chunks, 1, self.nanoseconds(), &work);
        add_chunks(&sums, to);
        Ok(())
    }
}

/// Rows in a chunk of work that sums over rows: a function of the sizes alone.
pub(crate) fn chunk_rows(rows: usize, width: usize) -> usize {
    let worth_a_chunk = 8192 / width.max(1);
    rows.div_ceil(CHUNKS).max(worth_a_chunk).max(1)
}

/// The sums of all chunks, added in order.
pub(crate) fn add_chunks(sums: &[f32], to: &mut [f32]) {
    let mut totals = vec![0.0; to.len()];
    for of_chunk in sums.chunks_exact(to.len().max(1)) {
        for (total, &sum) in totals.iter_mut().zip(of_chunk) {
            *total += f64::from(sum);
        }
    }
    for (to, total) in to.iter_mut().zip(totals) {
        *to = total as f32;
    }
}

/// Adds rows up.
pub(crate) struct ColumnSums<'a> {
    /// `[rows, width]`
    pub(crate) x: &'a [f32],
    /// `[width]`, added to.
    pub(crate) sums: &'a mut [f32],
}

impl Kernel for ColumnSums<'_> {
    type Output = ();

    #[inline(always)]
    fn call<S: Simd>(self, s: S) {
        for row in self.x.chunks_exact(self.sums.len().max(1)) {
            simd::zip_map(
                s,
                [row],
                [&mut *self.sums],
                #[inline(always)]
                |[x], [sum]| [s.add(x, sum)],
            );
        }
    }
}

struct Forward<'a> {
    spec: &'a Pointwise<'a>,
    step: Step<'a>,
    /// The first number's place in the tensor.
    first: usize,
    to: &'a mut [f32],
}

impl Kernel for Forward<'_> {
    type Output = ();

    #[inline(always)]
    fn call<S: Simd>(self, s: S) {
        let width = self.spec.width;
        let zero = s.zero();
        let mut factors = [1.0f32; BLOCK];
        let nothing = [0.0f32; BLOCK];
        let mut at = self.first;
        for to in self.to.chunks_exact_mut(width) {
            for (block, to) in to.chunks_mut(BLOCK).enumerate() {
                let (column, count) = (block * BLOCK, to.len());
                if let Some(mask) = &self.spec.dropout {
                    mask.fill(at, &mut factors[..count]);
                }
                let step = self.step.part(at, count);
                at += count;
                let bias = match self.spec.bias {
                    Some(bias) => &bias[column..column + count],
                    None => &nothing[..count],
                };
                let factors = &factors[..count];
                match step {
                    Step::AddTo(x) => simd::zip_map(
                        s,
                        [x, bias, factors],
                        [to],
                        #[inline(always)]
                        |[x, b, m], [to]| [s.fma(s.add(x, b), m, to)],
                    ),
                    Step::Residual(residual) => simd::zip_map(
                        s,
                        [residual, bias, factors],
                        [to],
                        #[inline(always)]
                        |[r, b, m], [x]| [s.fma(s.add(x, b), m, r)],
                    ),
                    Step::Linear => simd::zip_map(
                        s,
                        [bias, factors],
                        [to],
                        #[inline(always)]
                        |[b, m], [x]| [s.mul(s.add(x, b), m)],
                    ),
                    Step::Relu => simd::zip_map(
                        s,
                        [bias, factors],
                        [to],
                        #[inline(always)]
                        |[b, m], [x]| [s.mul(s.max(zero, s.add(x, b)), m)],
                    ),
                }
            }
        }
    }
}

struct Backward<'a> {
    spec: &'a Pointwise<'a>,
    first: usize,
    output: Option<&'a [f32]>,
    gradient: &'a mut [f32],
    /// `[width]`, added to; empty if not wanted.
    sums: &'a mut [f32],
}

impl Kernel for Backward<'_> {
    type Output = ();

    #[inline(always)]
    fn call<S: Simd>(self, s: S) {
        let width = self.spec.width;
        let mut factors = [1.0f32; BLOCK];
        let mut at = self.first;
        // Where the ReLU's output is positive, the number was kept, and all kept numbers have the same factor: nothing to hash. NaN keeps
        // its gradient, as in Burn and PyTorch.
        let scale = match (self.output, &self.spec.dropout) {
            (Some(_), Some(mask)) => (1.0 / (1.0 - mask.probability)) as f32,
            _ => 1.0,
        };
        for (row, gradient) in self.gradient.chunks_exact_mut(width).enumerate() {
            for (block, gradient) in gradient.chunks_mut(BLOCK).enumerate() {
                let (column, count) = (block * BLOCK, gradient.len());
                match (self.output, &self.spec.dropout) {
                    (Some(output), _) => {
                        let output = &output[row * width + column..][..count];
                        for (gradient, &y) in gradient.iter_mut().zip(output) {
                            *gradient = if y <= 0.0 { 0.0 } else { *gradient * scale };
                        }
                    }
                    (None, Some(mask)) => {
                        mask.fill(at, &mut factors[..count]);
                        simd::zip_map(
                            s,
                            [&factors[..count]],
                            [&mut *gradient],
                            #[inline(always)]
                            |[m], [g]| [s.mul(g, m)],
                        );
                    }
                    (None, None) => {}
                }
                at += count;
                if !self.sums.is_empty() {
                    let (x, sums) = (&*gradient, &mut self.sums[column..column + count]);
                    ColumnSums { x, sums }.call(s);
                }
            }
        }
    }
}
