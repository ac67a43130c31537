//! One kernel in one shape, measured against a yardstick.

use std::{fmt, time::Instant};

use crate::{KernelError, simd::Level};

use super::{
    peak::{bf16_peak, fma_peak},
    stream::Stream,
};

/// What a rate counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unit {
    /// Floating-point operations.
    Operations,
    /// Bytes read and written.
    Bytes,
    /// Values of tanh, exp, sigmoid.
    Values,
}

impl fmt::Display for Unit {
    /// The unit of a rate in billions.
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str(match self {
            Self::Operations => "GFLOP/s",
            Self::Bytes => "GB/s",
            Self::Values => "Gvalues/s",
        })
    }
}

/// The rate that a kernel's rate is compared with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Yardstick {
    /// [`fma_peak`] on all threads.
    Fma,
    /// [`fma_peak`] on one thread, for what runs on the calling thread.
    FmaOneThread,
    /// [`bf16_peak`] on all threads.
    Bf16,
    /// [`Stream::read`].
    Stream,
    /// None: no loop of a single instruction would be a fair comparison.
    Nothing,
}

/// How long to measure.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Settings {
    /// Number of rounds, of which the median is reported. At least 1.
    pub rounds: usize,
    /// The least time in seconds that the kernel runs in each round; it always runs at least once.
    pub seconds: f64,
}

impl Default for Settings {
    /// 9 rounds of 30 ms.
    fn default() -> Self {
        Self {
            rounds: 9,
            seconds: 0.03,
        }
    }
}

/// One call of a kernel with its data, ready to be repeated.
pub type Call = Box<dyn FnMut() -> Result<(), KernelError>>;

/// A kernel in one shape. Its data are made when it is run.
pub struct Case {
    /// The kernel and its options, such as `dot forward causal`.
    pub kernel: String,
    /// The shape in words, such as `b1 h8 l1024 d64`.
    pub shape: String,
    /// The storage type of the data.
    pub dtype: &'static str,
    /// What `work` counts.
    pub unit: Unit,
    /// The rate that this one is compared with.
    pub yardstick: Yardstick,
    /// Work of one call.
    pub work: f64,
    /// Number of scores of one call, for attention: a computation in plain steps would hold them
    /// all in memory.
    pub scores: Option<usize>,
    pub(super) prepare: Box<dyn Fn() -> Call>,
}

/// A measured rate.
struct Rate {
    /// Units per second: the median over rounds.
    value: f64,
    /// Fraction of the yardstick, measured in the same rounds: the median over rounds.
    fraction: Option<f64>,
}

/// A line of the table.
#[derive(Debug, Clone, PartialEq)]
pub struct Row {
    /// The kernel and its options.
    pub kernel: String,
    /// The shape in words.
    pub shape: String,
    /// The storage type of the data.
    pub dtype: &'static str,
    /// The rate in billions of `unit` a second.
    pub value: f64,
    /// What `value` counts.
    pub unit: Unit,
    /// The part of the yardstick that was reached, if there is one.
    pub fraction: Option<f64>,
    /// What `fraction` is a part of.
    pub yardstick: Yardstick,
}

impl Case {
    /// Makes the data and returns the call, for other ways of measuring it.
    pub fn prepare(&self) -> Call {
        (self.prepare)()
    }

    /// Measures the kernel.
    ///
    /// # Errors
    /// What the kernel refuses; none of [`suite`](super::suite)'s cases is refused.
    pub fn run(&self, settings: &Settings) -> Result<Row, KernelError> {
        let rate = self.rate(settings)?;
        Ok(Row {
            kernel: self.kernel.clone(),
            shape: self.shape.clone(),
            dtype: self.dtype,
            value: rate.value / 1e9,
            unit: self.unit,
            fraction: rate.fraction,
            yardstick: self.yardstick,
        })
    }

    fn rate(&self, settings: &Settings) -> Result<Rate, KernelError> {
        let mut call = self.prepare();
        let mut reference = self.yardstick.ready();
        // The first call warms caches, page tables and the clock; the second shows how many calls a
        // round takes.
        call()?;
        let start = Instant::now();
        call()?;
        let calls = (settings.seconds / start.elapsed().as_secs_f64().max(1e-9))
            .ceil()
            .max(1.0);
        let (mut rates, mut fractions) = (Vec::new(), Vec::new());
        for _ in 0..settings.rounds.max(1) {
            let peak = reference.as_mut().map(|measure| measure());
            let start = Instant::now();
            for _ in 0..calls as usize {
                call()?;
            }
            let rate = self.work * calls / start.elapsed().as_secs_f64();
            rates.push(rate);
            fractions.extend(peak.map(|peak| rate / peak));
        }
        Ok(Rate {
            value: median(&mut rates),
            fraction: (!fractions.is_empty()).then(|| median(&mut fractions)),
        })
    }
}

impl fmt::Debug for Case {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "{} {} {}", self.kernel, self.shape, self.dtype)
    }
}

impl fmt::Display for Yardstick {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str(match self {
            Self::Fma => "FMA peak",
            Self::FmaOneThread => "FMA peak, one thread",
            Self::Bf16 => "bf16 peak",
            Self::Stream => "stream",
            Self::Nothing => "nothing",
        })
    }
}

/// The machine's own lines of the table: the yardsticks themselves.
pub fn machine(settings: &Settings) -> Vec<Row> {
    let threads = rayon::current_num_threads();
    let mut rows = Vec::new();
    let mut row = |kernel: &str, shape: String, dtype, unit, measure: &mut dyn FnMut() -> f64| {
        let mut rates: Vec<f64> = (0..settings.rounds.max(1)).map(|_| measure()).collect();
        rows.push(Row {
            kernel: kernel.to_owned(),
            shape,
            dtype,
            value: median(&mut rates) / 1e9,
            unit,
            fraction: None,
            yardstick: Yardstick::Nothing,
        });
    };
    let mut counts = vec![1, threads];
    counts.dedup();
    for &level in Level::available()
        .iter()
        .filter(|&&level| level <= Level::current())
    {
        for &threads in &counts {
            let shape = format!(
                "{}, {}",
                format!("{level:?}").to_lowercase(),
                threads_in_words(threads)
            );
            row("FMA peak", shape, "f32", Unit::Operations, &mut || {
                fma_peak(level, threads)
            });
        }
    }
    for &threads in counts
        .iter()
        .filter(|&&threads| bf16_peak(threads).is_some())
    {
        let measure = &mut || bf16_peak(threads).unwrap_or(f64::NAN);
        row(
            "bf16 peak",
            threads_in_words(threads),
            "bf16",
            Unit::Operations,
            measure,
        );
    }
    let mut stream = Stream::default();
    row(
        "stream",
        threads_in_words(threads),
        "f32",
        Unit::Bytes,
        &mut || stream.read(),
    );
    rows
}

fn threads_in_words(threads: usize) -> String {
    match threads {
        1 => "1 thread".to_owned(),
        _ => format!("{threads} threads"),
    }
}

impl Yardstick {
    /// The measurement of this yardstick, in units per second; `None` if this machine has none.
    fn ready(self) -> Option<Box<dyn FnMut() -> f64>> {
        let threads = rayon::current_num_threads();
        match self {
            Self::Fma => Some(Box::new(move || fma_peak(Level::current(), threads))),
            Self::FmaOneThread => Some(Box::new(|| fma_peak(Level::current(), 1))),
            Self::Bf16 => {
                bf16_peak(1)?;
                Some(Box::new(move || bf16_peak(threads).unwrap_or(f64::NAN)))
            }
            Self::Stream => {
                let mut stream = Stream::default();
                Some(Box::new(move || stream.read()))
            }
            Self::Nothing => None,
        }
    }
}

/// The middle one, or the mean of the two in the middle.
fn median(numbers: &mut [f64]) -> f64 {
    numbers.sort_by(f64::total_cmp);
    let middle = numbers.len() / 2;
    match numbers.len() % 2 {
        1 => numbers[middle],
        _ => (numbers[middle - 1] + numbers[middle]) / 2.0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians() {
        assert_eq!(median(&mut [3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(&mut [4.0, 1.0, 2.0, 3.0]), 2.5);
    }
}
