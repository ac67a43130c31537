//! `why-scale`: queries and keys of independent numbers of variance 1 have a score of variance `d`, so that softmax puts nearly all
//! weight on one key and lets no gradient through. Divided by `√d` it has variance 1 at any `d` (Vaswani 2017, section 3.2.1).
//!
//! ```text
//! s = q kᵀ, α = softmax(s)        ‖∂α/∂s‖² = Σ_i α_i² - 2 Σ_i α_i³ + (Σ_i α_i²)²       for each query
//! ```

use burn::tensor::Tensor;
use regard_nn::{
    Attention, AttentionOptions, Observe,
    initialize::Initializer,
    score::{Dot, ScaledDot, Score},
};

use super::{Curves, Estimate, ExperimentError, Findings, Setting, Table};

const SIZES: [usize; 6] = [4, 16, 64, 256, 1024, 4096];
const QUERIES: usize = 64;
const KEYS: usize = 64;

/// Variance of the scores, largest weight, size of the gradient.
const MEASURED: [(&str, &str); 3] = [
    ("variance", "Variance of the scores"),
    ("largest weight", "Largest weight"),
    ("gradient", "Gradient of softmax"),
];

pub(super) fn run(setting: &Setting<'_>) -> Result<Findings, ExperimentError> {
    let plain = all_sizes(setting, "q kᵀ", || Score::Dot(Dot))?;
    let scaled = all_sizes(setting, "q kᵀ / √d", || {
        Score::ScaledDot(ScaledDot::default())
    })?;
    let both = || [("q kᵀ", &plain), ("q kᵀ / √d", &scaled)];
    let columns = MEASURED
        .iter()
        .flat_map(|&(name, _)| ["plain", "scaled"].map(|score| format!("{name}, {score}")));
    let rows = SIZES.iter().enumerate().map(|(at, size)| {
        let cells = (0..MEASURED.len()).flat_map(|m| [plain[at][m], scaled[at][m]].map(Some));
        (size.to_string(), cells.collect())
    });
    let places = || SIZES.iter().map(|&size| (size as f64).log2());
    let figure = MEASURED
        .iter()
        .enumerate()
        .map(|(measured, &(name, title))| {
            let line = |(score, found): (&str, &Vec<[Estimate; 3]>)| {
                let points = places().zip(found).map(|(x, found)| (x, found[measured]));
                (score.to_owned(), points.collect())
            };
            let logarithm = if measured == 0 { "log2 of the " } else { "" };
            let mut curves = Curves {
                title: title.to_owned(),
                x: "size of a key".to_owned(),
                y: format!("{logarithm}{name}"),
                x_names: places().zip(SIZES.map(|size| size.to_string())).collect(),
                connected: true,
                lines: both().into_iter().map(line).collect(),
            };
            if measured == 0 {
                for (_, points) in &mut curves.lines {
                    points
                        .iter_mut()
                        .for_each(|(_, estimate)| *estimate = logarithms(estimate));
                }
            }
            curves
        });
    let [first, last] = [0, SIZES.len() - 1];
    let times = |found: &[[Estimate; 3]], measured: usize| {
        found[last][measured].mean / found[first][measured].mean
    };
    let words = vec![
        format!(
            "Unscaled scores vary with the size: from d = {} to d = {}, {} times as long, their variance becomes {:.0} times as large; \
             divided by √d it stays near 1 ({} at d = {}).",
            SIZES[first],
            SIZES[last],
            SIZES[last] / SIZES[first],
            times(&plain, 0),
            scaled[last][0],
            SIZES[last],
        ),
        format!(
            "So softmax of unscaled scores becomes a choice of one key: its largest weight of {KEYS} grows from {} to {}; scaled it is {} at d = {}.",
            plain[first][1], plain[last][1], scaled[last][1], SIZES[last],
        ),
        format!(
            "A weight near 0 or 1 does not move: the gradient of softmax falls to {:.2} of its size at d = {}, and {} when scaled ({} and {}).",
            times(&plain, 2),
            SIZES[first],
            match scaled[first][2].overlaps(&scaled[last][2]) {
                true => "does not change beyond the interval".to_owned(),
                false => format!("to {:.2}", times(&scaled, 2)),
            },
            plain[last][2],
            scaled[last][2],
        ),
    ];
    Ok(Findings {
        table: Table {
            columns: std::iter::once("size of a key".to_owned())
                .chain(columns)
                .collect(),
            rows: rows.collect(),
        },
        figure: figure.collect(),
        words,
    })
}

/// In the logarithm to base 2, the interval by its ends.
fn logarithms(estimate: &Estimate) -> Estimate {
    let (low, high) = estimate.interval();
    Estimate {
        mean: estimate.mean.log2(),
        half: (high.log2() - low.max(f64::MIN_POSITIVE).log2()) / 2.0,
    }
}

fn all_sizes(
    setting: &Setting<'_>,
    name: &str,
    score: impl Fn() -> Score,
) -> Result<Vec<[Estimate; 3]>, ExperimentError> {
    let one = |&size: &usize| {
        setting.step(&format!("{name}, size {size}"))?;
        setting.repeat(|seed| measure(setting, Attention::new(score()), size, seed))
    };
    SIZES.iter().map(one).collect()
}

fn measure(
    setting: &Setting<'_>,
    attention: Attention,
    size: usize,
    seed: u64,
) -> Result<[f64; 3], ExperimentError> {
    let mut init = Initializer::new(seed, setting.device);
    let mut drawn = |length: usize| -> Tensor<4> { init.normal([1, 1, length, size], 1.0).val() };
    let (query, key) = (drawn(QUERIES), drawn(KEYS));
    let scores = attention.scores(query.clone(), key.clone(), AttentionOptions::default())?;
    let attended = attention.forward(query, key.clone(), key, Observe::Weights)?;
    let weights = attended.weights.expect("weights were asked for");
    let [scores, weights] =
        [scores, weights].map(|x| x.into_data().iter::<f64>().collect::<Vec<_>>());
    let count = scores.len() as f64;
    let mean = scores.iter().sum::<f64>() / count;
    let variance = scores.iter().map(|s| (s - mean) * (s - mean)).sum::<f64>() / count;
    let (mut largest, mut gradient) = (0.0, 0.0);
    for row in weights.chunks_exact(KEYS) {
        largest += row.iter().copied().fold(0.0, f64::max) / QUERIES as f64;
        let power = |n: i32| row.iter().map(|a| a.powi(n)).sum::<f64>();
        let square = power(2) - 2.0 * power(3) + power(2) * power(2);
        gradient += square.max(0.0).sqrt() / QUERIES as f64;
    }
    Ok([variance, largest, gradient])
}
