//! `teacher-forcing`: a model that has learned to predict the next symbol from the true ones before it, and then has to go on from its
//! own: an early mistake is read by every later step (exposure bias; Bengio 2015, Ranzato 2016).
//!
//! ```text
//! loss at position t = -ln p(x_t | x_1 .. x_{t-1})  teacher forcing,      -ln p(x_t | x_1 .. x_7, y_8 .. y_{t-1})  free running
//! ```

use regard_evaluate::{ByPosition, Conditioning};
use regard_models::scoring;

use super::{
    Curves, Estimate, ExperimentError, Findings, Setting, Table,
    looks::{self, DRAWN, LENGTH},
};

const HEADS: usize = 4;
/// Few enough updates that the model still makes mistakes.
const STEPS: u32 = 400;
const POSITIONS: usize = LENGTH - DRAWN;
const NAMES: [&str; 2] = ["teacher forcing", "free running"];
/// Sequences that are continued together.
const BATCH: usize = 100;

pub(super) fn run(setting: &Setting<'_>) -> Result<Findings, ExperimentError> {
    after(setting, STEPS)
}

/// Of models trained for so many updates.
pub(super) fn after(setting: &Setting<'_>, steps: u32) -> Result<Findings, ExperimentError> {
    // Loss and accuracy of both, for each position.
    const MEASURED: usize = 4 * POSITIONS;
    let found: [Estimate; MEASURED] = setting.repeat(|seed| {
        looks::train(setting, HEADS, steps, seed, |model, _, test| {
            let mut forced = ByPosition::new(Conditioning::TeacherForced, POSITIONS);
            let mut free = ByPosition::new(Conditioning::FreeRunning, POSITIONS);
            let mut checked = Ok(());
            // The mark at the beginning, and what was drawn.
            let prompt = 1 + DRAWN;
            for texts in test.chunks(BATCH) {
                let texts: Vec<&[u32]> = texts.iter().map(Vec::as_slice).collect();
                for text in &texts {
                    scoring::teacher_forced(model, text, prompt, |at, found| {
                        let added = forced.add(at, found.loss, found.correct);
                        checked = std::mem::replace(&mut checked, Ok(())).and(added);
                    })?;
                }
                scoring::free_running(model, &texts, prompt, |_, at, found| {
                    let added = free.add(at, found.loss, found.correct);
                    checked = std::mem::replace(&mut checked, Ok(())).and(added);
                })?;
            }
            checked?;
            Ok(std::array::from_fn(|measured| {
                let (at, what) = (measured / 4, measured % 4);
                let score = [&forced, &free][what % 2].positions()[at];
                match what < 2 {
                    true => score.perplexity().mean().unwrap_or(f64::NAN),
                    false => 100.0 * score.accuracy().unwrap_or(f64::NAN),
                }
            }))
        })
    })?;
    let of = |at: usize, what: usize| found[4 * at + what];
    let rows = (0..POSITIONS).map(|at| {
        let cells = (0..4).map(|what| Some(of(at, what))).collect();
        ((at + 1).to_string(), cells)
    });
    let curves = |title: &str, y: &str, first: usize| {
        let line = |(at, name): (usize, &&str)| {
            let points = (0..POSITIONS).map(|t| ((t + 1) as f64, of(t, first + at)));
            ((*name).to_owned(), points.collect())
        };
        Curves {
            title: title.to_owned(),
            x: "symbols after the beginning that is given".to_owned(),
            y: y.to_owned(),
            x_names: vec![],
            connected: true,
            lines: NAMES.iter().enumerate().map(line).collect(),
        }
    };
    let last = POSITIONS - 1;
    let told = |what: usize| {
        let ([first, end], name) = ([of(0, 2 + what), of(last, 2 + what)], NAMES[what]);
        let change = match (first.overlaps(&end), first.mean > end.mean) {
            (true, _) => "no change beyond the interval",
            (_, true) => "a fall beyond the interval",
            (_, false) => "a rise beyond the interval",
        };
        format!(
            "{name}: {first} % right at the first position and {end} % at position {POSITIONS}, {change}."
        )
    };
    let mut words = vec![told(0), told(1)];
    let apart = (0..POSITIONS).find(|&at| !of(at, 2).overlaps(&of(at, 3)));
    words.push(match apart {
        Some(at) => format!(
            "The two are first apart beyond their intervals at position {}; the loss of the last is {} nats under teacher forcing and {} \
             in free running, where the model reads its own mistakes, which training never showed it.",
            at + 1,
            of(last, 0),
            of(last, 1)
        ),
        None => format!(
            "{} seeds do not tell teacher forcing and free running apart at any position.",
            setting.seeds
        ),
    });
    Ok(Findings {
        table: Table {
            columns: [
                "position",
                "loss, teacher forcing",
                "loss, free running",
                "right, %, teacher forcing",
                "right, %, free running",
            ]
            .map(str::to_owned)
            .to_vec(),
            rows: rows.collect(),
        },
        figure: vec![
            curves("Loss of the true symbol", "nats", 0),
            curves("Right symbols", "%", 2),
        ],
        words,
    })
}
