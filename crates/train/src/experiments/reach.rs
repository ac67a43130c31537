//! `reach`: how large the gradient of the last state is at an input `n` steps before it, in networks that were drawn and not trained.
//! A recurrent network hands it back step by step; attention reaches every input in one (Vaswani 2017, table 1; Bengio 1994).
//!
//! ```text
//! g_n = log10 ‖∂(r · y_T)/∂x_{T-n}‖ - log10 ‖∂(r · y_T)/∂x_T‖        r drawn, norms as means over a batch
//! rnn        h_t = tanh(W x_t + U h_{t-1})                    lstm, gru: their cells        y_t = h_t
//! attention  one layer of causal self-attention with several heads
//! ```

use burn::tensor::Tensor;
use regard_nn::{
    Attention, AttentionOptions, bridge,
    heads::MultiHeadConfig,
    initialize::Initializer,
    mask::Mask,
    recurrent::{Direction, Gru, Lstm, Reset},
    score::Score,
};

use super::{Curves, Estimate, ExperimentError, Findings, Setting, Table};

const LENGTH: usize = 65;
const BATCH: usize = 16;
const SIZE: usize = 32;
/// Rows of the table: steps back.
const SHOWN: [usize; 7] = [1, 2, 4, 8, 16, 32, 64];
/// Steps between two points of the figure.
const DRAWN: usize = 4;
const NETWORKS: [&str; 4] = ["rnn", "gru", "lstm", "attention"];

pub(super) fn run(setting: &Setting<'_>) -> Result<Findings, ExperimentError> {
    let one = |&network: &&'static str| {
        setting.step(network)?;
        setting.repeat::<LENGTH>(|seed| measure(setting, network, seed))
    };
    let found: Vec<[Estimate; LENGTH]> = NETWORKS.iter().map(one).collect::<Result<_, _>>()?;
    let rows = SHOWN.iter().map(|&back| {
        let cells = found.iter().map(|of| Some(of[back]));
        (back.to_string(), cells.collect())
    });
    let lines = NETWORKS.iter().zip(&found).map(|(name, of)| {
        let points = (0..LENGTH)
            .step_by(DRAWN)
            .map(|back| (back as f64, of[back]));
        ((*name).to_owned(), points.collect())
    });
    let hundredth = |of: &[Estimate; LENGTH]| of.iter().position(|g| g.mean < -2.0);
    let mut words: Vec<String> = NETWORKS
        .iter()
        .zip(&found)
        .map(|(name, of)| {
            let last = of[LENGTH - 1];
            let back = LENGTH - 1;
            match hundredth(of) {
                Some(after) => format!(
                    "{name}: the gradient is less than a hundredth of the last input's after {after} steps, and 10^({last}) of it after {back}."
                ),
                None => format!(
                    "{name}: the gradient {back} steps back is 10^({last}) of the last input's, and never less than a hundredth."
                ),
            }
        })
        .collect();
    words.push(format!(
        "All networks have just been drawn, with states of {SIZE} numbers: training changes how far a gate remembers, not how many steps lie between."
    ));
    Ok(Findings {
        table: Table {
            columns: std::iter::once("steps back".to_owned())
                .chain(NETWORKS.map(|name| format!("{name}, log10")))
                .collect(),
            rows: rows.collect(),
        },
        figure: vec![Curves {
            title: "Gradient of the last state at earlier inputs".to_owned(),
            x: "steps back".to_owned(),
            y: "log10 of its share of the last input's".to_owned(),
            x_names: vec![],
            connected: true,
            lines: lines.collect(),
        }],
        words,
    })
}

fn measure(
    setting: &Setting<'_>,
    network: &str,
    seed: u64,
) -> Result<[f64; LENGTH], ExperimentError> {
    let device = setting.device.clone().autodiff();
    let mut init = Initializer::new(seed, &device);
    let x: Tensor<3> = init
        .normal([LENGTH, BATCH, SIZE], 1.0)
        .val()
        .detach()
        .require_grad(); // [time, batch, size]
    let zeros = Tensor::<2>::zeros([BATCH, SIZE], &device);
    let last = match network {
        "rnn" => {
            let (w, u) = (
                init.linear(SIZE, SIZE, true),
                init.linear(SIZE, SIZE, false),
            );
            let inputs = bridge::apply(&w, x.clone());
            (0..LENGTH).fold(zeros, |h, t| {
                let input = inputs.clone().narrow(0, t, 1).reshape([BATCH, SIZE]);
                (input + bridge::apply(&u, h)).tanh()
            })
        }
        "gru" => {
            let cell = Gru::new(SIZE, SIZE, Reset::AfterProduct, &mut init);
            let states = cell.sequence(cell.project(x.clone()), zeros, None, Direction::Forward);
            states.narrow(0, LENGTH - 1, 1).reshape([BATCH, SIZE])
        }
        "lstm" => {
            let cell = Lstm::new(SIZE, SIZE, &mut init);
            let state = cell.zeros(BATCH, &device);
            let projected = cell.project(x.clone());
            cell.sequence(projected, state, None, Direction::Forward)
                .1
                .hidden
        }
        _ => {
            let layer = MultiHeadConfig::new(SIZE, 4).init_with(
                Attention::new(Score::scaled_dot()).with_mask(Mask::causal()),
                &mut init,
            )?;
            let states = layer
                .forward(x.clone().swap_dims(0, 1), AttentionOptions::default())?
                .output; // [batch, time, size]
            states.narrow(1, LENGTH - 1, 1).reshape([BATCH, SIZE])
        }
    };
    let direction: Tensor<2> = init.normal([BATCH, SIZE], 1.0).val().detach();
    let gradients = (last * direction).sum().backward();
    let gradient = x
        .grad(&gradients)
        .expect("the last state depends on the inputs");
    // In f64: the squares of what is left after many steps are below the smallest f32.
    let gradient: Vec<f64> = gradient.into_data().iter::<f64>().collect();
    let norm = |row: &[f64]| row.iter().map(|x| x * x).sum::<f64>().sqrt();
    let of_step = |rows: &[f64]| rows.chunks_exact(SIZE).map(norm).sum::<f64>();
    let norms: Vec<f64> = gradient.chunks_exact(BATCH * SIZE).map(of_step).collect();
    Ok(std::array::from_fn(|back| {
        (norms[LENGTH - 1 - back] / norms[LENGTH - 1]).log10()
    }))
}
