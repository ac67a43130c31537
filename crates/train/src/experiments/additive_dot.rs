//! `additive-dot`: additive scores, dot products and scaled dot products of vectors of size `d`: what a model learns with each, and
//! what each costs (Bahdanau 2014; Luong 2015; Vaswani 2017, section 3.2.1).
//!
//! ```text
//! additive   s = vᵀ tanh(W q + U k), v of size d        L² d tanh
//! dot        s = qᵀ k            scaled dot   s = qᵀ k / √d        L² d multiplications
//! ```
//! Quality is that of an encoder-decoder of LSTMs with states of size `d`; speed that of the kernels, forward and backward.

use std::{hint::black_box, time::Instant};

use burn::tensor::Tensor;
use regard_nn::{
    Attention, Observe,
    initialize::Initializer,
    score::{Additive, Score},
};

use super::{
    Curves, ExperimentError, Findings, Setting, Table,
    trained::{self, Contest},
};

/// Sizes that models are trained with.
const TRAINED: [usize; 3] = [16, 32, 64];
/// Sizes that are timed, the trained ones first.
const TIMED: [usize; 5] = [16, 32, 64, 128, 256];
const SCORES: [&str; 3] = ["additive", "dot", "scaled-dot"];
const LENGTH: usize = 128;
const HEADS: usize = 4;
/// Passes of which the fastest counts: another program can only make one slower.
const PASSES: usize = 5;

const MODEL: &str = r#"
kind = "gnmt"
layers = 2
embedding = 32
dropout = { embedding = 0.0, layers = 0.0, annotation = 0.0, output = 0.0 }
"#;

/// Names and recipes, all of a size together.
pub(super) fn recipes() -> Vec<(String, String)> {
    let task = trained::sequences("reverse", [2, 8], [8000, 500]);
    let of_size = |size: usize| {
        SCORES.map(|score| {
            let model = format!(
                "score = \"{score}\"\nhidden = {size}\nattention_dimension = {size}{MODEL}{task}"
            );
            (format!("{score}, {size}"), trained::recipe(&model, 50, 600))
        })
    };
    TRAINED.into_iter().flat_map(of_size).collect()
}

pub(super) fn run(setting: &Setting<'_>) -> Result<Findings, ExperimentError> {
    let mut times = vec![];
    for size in TIMED {
        setting.step(&format!("speed at size {size}"))?;
        times.push(setting.repeat(|seed| {
            let additive = milliseconds(setting, Scored::Additive, size, seed)?;
            let dot = milliseconds(setting, Scored::ScaledDot, size, seed)?;
            Ok([additive, dot, additive / dot])
        })?);
    }
    let title = "Sequences reversed with each score";
    let contest = Contest::hold(setting, title, "score, size", &recipes())?;
    let exact = |size: usize, score: usize| contest.scores[size * SCORES.len() + score][0];
    let rows = TIMED.iter().enumerate().map(|(at, size)| {
        let quality = (0..SCORES.len()).map(|score| (at < TRAINED.len()).then(|| exact(at, score)));
        let cells = quality.chain(times[at].map(Some)).collect();
        (size.to_string(), cells)
    });
    let mut words: Vec<String> = TRAINED
        .iter()
        .enumerate()
        .map(|(at, size)| {
            let mut ranked: Vec<usize> = (0..SCORES.len()).collect();
            ranked.sort_by(|&a, &b| exact(at, b).mean.total_cmp(&exact(at, a).mean));
            let told = ranked
                .iter()
                .map(|&score| format!("{} {} %", SCORES[score], exact(at, score)));
            let told: Vec<String> = told.collect();
            let behind = ranked[1..]
                .iter()
                .filter(|&&score| !exact(at, score).overlaps(&exact(at, ranked[0])));
            let behind: Vec<&str> = behind.map(|&score| SCORES[score]).collect();
            let sure = match behind.is_empty() {
                true => "all intervals overlap that of the first".to_owned(),
                false => format!(
                    "behind the first beyond the interval: {}",
                    behind.join(", ")
                ),
            };
            format!(
                "d = {size}, sequences reversed without a mistake: {}; {sure}.",
                told.join(", ")
            )
        })
        .collect();
    let (first, last) = (times[0], times[TIMED.len() - 1]);
    words.push(format!(
        "An additive score takes {} times as long as a scaled dot product at d = {}, and {} times at d = {}: {} ms beside {} ms, \
         forward and backward, {HEADS} heads, {LENGTH} queries and keys.",
        first[2],
        TIMED[0],
        last[2],
        TIMED[TIMED.len() - 1],
        last[0],
        last[1],
    ));
    words.push(
        "States are of size d too, so a larger d is a larger model: compare scores at one size. Times include the additive score's \
         products W q and U k, and depend on the machine and on what else it does."
            .to_owned(),
    );
    let places = |size: usize| (size as f64).log2();
    let names = |sizes: &[usize]| {
        let named = sizes.iter().map(|&size| (places(size), size.to_string()));
        named.collect::<Vec<_>>()
    };
    let quality = SCORES.iter().enumerate().map(|(score, name)| {
        let points = TRAINED.iter().enumerate();
        let points = points.map(|(at, &size)| (places(size), exact(at, score)));
        ((*name).to_owned(), points.collect())
    });
    let speed = ["additive", "scaled-dot"]
        .iter()
        .enumerate()
        .map(|(at, name)| {
            let points = TIMED.iter().zip(&times);
            let points = points.map(|(&size, times)| (places(size), times[at]));
            ((*name).to_owned(), points.collect())
        });
    let curves = |title: &str, y: &str, sizes: &[usize], lines: Vec<_>| Curves {
        title: title.to_owned(),
        x: "d".to_owned(),
        y: y.to_owned(),
        x_names: names(sizes),
        connected: true,
        lines,
    };
    let figure = vec![
        curves(title, "exact, %", &TRAINED, quality.collect()),
        curves("Forward and backward", "ms", &TIMED, speed.collect()),
    ];
    let columns = SCORES.iter().map(|score| format!("{score}, exact %"));
    let columns = std::iter::once("d".to_owned()).chain(columns);
    let timed = ["additive, ms", "scaled-dot, ms", "ratio of times"].map(str::to_owned);
    Ok(Findings {
        table: Table {
            columns: columns.chain(timed).collect(),
            rows: rows.collect(),
        },
        figure,
        words,
    })
}

#[derive(Clone, Copy)]
enum Scored {
    Additive,
    ScaledDot,
}

/// The shortest time of a forward and a backward pass.
fn milliseconds(
    setting: &Setting<'_>,
    score: Scored,
    size: usize,
    seed: u64,
) -> Result<f64, ExperimentError> {
    let device = setting.device.clone().autodiff();
    let mut init = Initializer::new(seed, &device);
    let attention = Attention::new(match score {
        Scored::Additive => Score::Additive(Additive::new(size, size, size, &mut init)),
        Scored::ScaledDot => Score::scaled_dot(),
    });
    let mut drawn = || -> Tensor<4> {
        let values = init.normal([1, HEADS, LENGTH, size], 1.0);
        values.val().detach().require_grad()
    };
    let [query, key, value] = [drawn(), drawn(), drawn()];
    let mut shortest = f64::INFINITY;
    // The first pass, which allocates, does not count.
    for pass in 0..=PASSES {
        let begun = Instant::now();
        let attended =
            attention.forward(query.clone(), key.clone(), value.clone(), Observe::Nothing)?;
        black_box(attended.context.sum().backward());
        // A card computes later.
        let done = device.sync();
        done.map_err(|error| ExperimentError::Device(error.to_string()))?;
        if pass > 0 {
            shortest = shortest.min(1e3 * begun.elapsed().as_secs_f64());
        }
    }
    Ok(shortest)
}
