//! `memory`: what attention has in memory at most, forward and backward, with the matrix of weights and in tiles that never hold it
//! (Dao 2022).
//!
//! ```text
//! plain   S = q kᵀ, α = softmax(S), y = α v       several [heads, length, length]
//! tiled   running maximum and sum over tiles of keys, weights computed again in the backward pass: [heads, length, size]
//! ```

use burn::tensor::{Device, Tensor};
use regard_nn::{
    Attention, Observe, bridge::without_kernels, initialize::Initializer, score::Score,
};

use super::{Curves, Estimate, ExperimentError, Findings, Setting, Table};

const LENGTHS: [usize; 5] = [256, 512, 1024, 2048, 4096];
const HEADS: usize = 4;
const SIZE: usize = 64;

pub(super) fn run(setting: &Setting<'_>) -> Result<Findings, ExperimentError> {
    let megabytes = |bytes: usize| Estimate::of([bytes as f64 / 1e6]);
    let mut found = vec![];
    for length in LENGTHS {
        setting.step(&format!("{length} positions"))?;
        let tiled = bytes(setting, length, false)?;
        let plain = bytes(setting, length, true)?;
        found.push([plain, tiled]);
    }
    let names = ["plain", "tiled"];
    let rows = LENGTHS.iter().zip(&found).map(|(length, &[plain, tiled])| {
        let ratio = Estimate::of([plain as f64 / (tiled as f64).max(1.0)]);
        (
            length.to_string(),
            vec![Some(megabytes(plain)), Some(megabytes(tiled)), Some(ratio)],
        )
    });
    let lines = names.iter().enumerate().map(|(at, name)| {
        let points = LENGTHS.iter().zip(&found);
        let points = points.map(|(&length, found)| {
            let bytes = Estimate::of([(found[at].max(1) as f64 / 1e6).log2()]);
            ((length as f64).log2(), bytes)
        });
        ((*name).to_owned(), points.collect())
    });
    // The last doubling: how much more memory twice the length takes.
    let doubled = |at: usize| {
        let [.., before, last] = &found[..] else {
            return f64::NAN;
        };
        last[at] as f64 / (before[at] as f64).max(1.0)
    };
    let [plain, tiled] = found[LENGTHS.len() - 1];
    let words = vec![
        format!(
            "Twice the length takes {:.1} times the memory with the matrix of weights, and {:.1} times in tiles: the square of the length beside the length.",
            doubled(0),
            doubled(1)
        ),
        format!(
            "At {} positions, {HEADS} heads of {SIZE}, forward and backward: {:.0} MB beside {:.1} MB, {:.0} times as much.",
            LENGTHS[LENGTHS.len() - 1],
            plain as f64 / 1e6,
            tiled as f64 / 1e6,
            plain as f64 / (tiled as f64).max(1.0)
        ),
        "The bytes are counted at the allocator, so there is no interval; a few per cent depend on which threads compute at the same time.".to_owned(),
    ];
    Ok(Findings {
        table: Table {
            columns: ["positions", "plain, MB", "tiled, MB", "ratio"]
                .map(str::to_owned)
                .to_vec(),
            rows: rows.collect(),
        },
        figure: vec![Curves {
            title: "Memory of attention, forward and backward".to_owned(),
            x: "positions".to_owned(),
            y: "log2 of the megabytes".to_owned(),
            x_names: LENGTHS.map(|l| ((l as f64).log2(), l.to_string())).to_vec(),
            connected: true,
            lines: lines.collect(),
        }],
        words,
    })
}

/// The most bytes in use beyond queries, keys and values, on the CPU: those of a card are not counted.
fn bytes(setting: &Setting<'_>, length: usize, plain: bool) -> Result<usize, ExperimentError> {
    let device = Device::flex().autodiff();
    let mut init = Initializer::new(0, &device);
    let mut drawn = || -> Tensor<4> {
        init.normal([1, HEADS, length, SIZE], 1.0)
            .val()
            .detach()
            .require_grad()
    };
    let [query, key, value] = [drawn(), drawn(), drawn()];
    let attention = Attention::new(Score::scaled_dot());
    let mut failed = None;
    let most = (setting.extra_bytes)(&mut || {
        let forward =
            || attention.forward(query.clone(), key.clone(), value.clone(), Observe::Nothing);
        let attended = if plain {
            without_kernels(forward)
        } else {
            forward()
        };
        match attended {
            Ok(attended) => drop(attended.context.sum().backward()),
            Err(error) => failed = Some(error),
        }
    });
    match failed {
        Some(error) => Err(error.into()),
        None => Ok(most),
    }
}
