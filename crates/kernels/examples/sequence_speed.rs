//! Speed of the sequence operations: `cargo run --release -p regard-kernels --example sequence_speed`.
//!
//! Prints the best of forty calls, and the arithmetic rate of the products with weights alone.

use std::time::Instant;

use regard_kernels::KernelError;
use regard_kernels::sequence::additive_gru::{
    AdditiveGruDecoder, AdditiveGruGradients, AdditiveGruResult, AdditiveGruSaved,
};
use regard_kernels::sequence::gru::{Convention, GruGradients, GruSequence};
use regard_kernels::sequence::input_feeding::{
    InputFeedingDecoder, InputFeedingGradients, InputFeedingResult, InputFeedingSaved, Score,
};
use regard_kernels::sequence::lstm::{LstmGradients, LstmSequence};

const STEPS: usize = 20;
const BATCH: usize = 64;
const SOURCES: usize = 20;
const HIDDEN: usize = 256;
const ATTENTION: usize = 256;
const VALUE: usize = 512;
const LAYERS: usize = 2;

fn main() -> Result<(), KernelError> {
    println!(
        "steps {STEPS}, batch {BATCH}, sources {SOURCES}, hidden {HIDDEN}, attention {ATTENTION}, value {VALUE}"
    );
    println!(
        "{} threads, {:?}",
        rayon::current_num_threads(),
        regard_kernels::simd::Level::current()
    );
    gru(Convention::Cho)?;
    gru(Convention::PyTorch)?;
    lstm()?;
    additive_decoder()?;
    input_feeding_decoder()
}

/// Numbers in `[-scale, scale)` that look random.
fn numbers(count: usize, scale: f32) -> Vec<f32> {
    let mut state = 0x9e37_79b9_u32;
    let next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as f32 / (1 << 23) as f32 * scale - scale
    };
    std::iter::repeat_with(next).take(count).collect()
}

fn report(
    name: &str,
    products: usize,
    mut work: impl FnMut() -> Result<(), KernelError>,
) -> Result<(), KernelError> {
    let mut best = f64::INFINITY;
    for _ in 0..40 {
        let start = Instant::now();
        work()?;
        best = best.min(start.elapsed().as_secs_f64());
    }
    println!(
        "{name:<28} {:7.2} ms  {:6.1} GFLOP/s",
        best * 1e3,
        2.0 * products as f64 / best / 1e9
    );
    Ok(())
}

fn gru(convention: Convention) -> Result<(), KernelError> {
    let cells = STEPS * BATCH;
    let x = numbers(cells * 3 * HIDDEN, 1.0);
    let u = numbers(HIDDEN * 3 * HIDDEN, 0.1);
    let initial = numbers(BATCH * HIDDEN, 1.0);
    let gru = GruSequence {
        steps: STEPS,
        batch: BATCH,
        hidden: HIDDEN,
        x_projection: &x,
        recurrent: &u,
        hidden_bias: None,
        initial: &initial,
        keep: None,
        reverse: false,
        convention,
    };
    let mut states = vec![0.0; cells * HIDDEN];
    let mut saved = vec![0.0; gru.saved_len()];
    let products = cells * HIDDEN * 3 * HIDDEN;
    report(&format!("gru {convention:?} forward"), products, || {
        gru.forward(&mut states, Some(&mut saved))
    })?;
    let (mut d_x, mut d_u, mut d_h) = (
        vec![0.0; x.len()],
        vec![0.0; u.len()],
        vec![0.0; initial.len()],
    );
    report(
        &format!("gru {convention:?} backward"),
        2 * products,
        || {
            let gradients = GruGradients {
                x_projection: &mut d_x,
                recurrent: &mut d_u,
                hidden_bias: None,
                initial: &mut d_h,
            };
            gru.backward(&states, &saved, &states, gradients)
        },
    )
}

fn lstm() -> Result<(), KernelError> {
    let cells = STEPS * BATCH;
    let x = numbers(cells * 4 * HIDDEN, 1.0);
    let u = numbers(HIDDEN * 4 * HIDDEN, 0.1);
    let initial = numbers(BATCH * HIDDEN, 1.0);
    let lstm = LstmSequence {
        steps: STEPS,
        batch: BATCH,
        hidden: HIDDEN,
        x_projection: &x,
        recurrent: &u,
        initial_hidden: &initial,
        initial_cell: &initial,
        keep: None,
        reverse: false,
    };
    let mut states = vec![0.0; cells * 2 * HIDDEN];
    let mut saved = vec![0.0; lstm.saved_len()];
    let products = cells * HIDDEN * 4 * HIDDEN;
    report("lstm forward", products, || {
        lstm.forward(&mut states, Some(&mut saved))
    })?;
    let (mut d_x, mut d_u) = (vec![0.0; x.len()], vec![0.0; u.len()]);
    let (mut d_h, mut d_c) = (vec![0.0; initial.len()], vec![0.0; initial.len()]);
    report("lstm backward", 2 * products, || {
        let gradients = LstmGradients {
            x_projection: &mut d_x,
            recurrent: &mut d_u,
            initial_hidden: &mut d_h,
            initial_cell: &mut d_c,
        };
        lstm.backward(&states, &saved, &states, gradients)
    })
}

fn additive_decoder() -> Result<(), KernelError> {
    let cells = STEPS * BATCH;
    let x = numbers(cells * 3 * HIDDEN, 1.0);
    let initial = numbers(BATCH * HIDDEN, 1.0);
    let keys = numbers(BATCH * SOURCES * ATTENTION, 1.0);
    let values = numbers(BATCH * SOURCES * VALUE, 1.0);
    let query_weight = numbers(HIDDEN * ATTENTION, 0.1);
    let score = numbers(ATTENTION, 0.1);
    let recurrent = numbers(HIDDEN * 3 * HIDDEN, 0.1);
    let context_weight = numbers(VALUE * 3 * HIDDEN, 0.1);
    let decoder = AdditiveGruDecoder {
        steps: STEPS,
        batch: BATCH,
        sources: SOURCES,
        hidden: HIDDEN,
        attention: ATTENTION,
        value: VALUE,
        x_projection: &x,
        initial: &initial,
        keys: &keys,
        values: &values,
        query_weight: &query_weight,
        score: &score,
        recurrent: &recurrent,
        context_weight: &context_weight,
        keep_source: None,
        keep: None,
    };
    let mut output = vec![0.0; cells * (HIDDEN + VALUE)];
    let mut weights = vec![0.0; cells * SOURCES];
    let mut gates = vec![0.0; cells * 3 * HIDDEN];
    let mut queries = vec![0.0; cells * ATTENTION];
    let products = cells * (HIDDEN * ATTENTION + (HIDDEN + VALUE) * 3 * HIDDEN);
    report("additive decoder forward", products, || {
        let saved = AdditiveGruSaved {
            gates: &mut gates,
            queries: &mut queries,
        };
        decoder.forward(&mut output, &mut weights, Some(saved))
    })?;
    let (mut d_x, mut d_initial) = (vec![0.0; x.len()], vec![0.0; initial.len()]);
    let (mut d_keys, mut d_values) = (vec![0.0; keys.len()], vec![0.0; values.len()]);
    let (mut d_query, mut d_score) = (vec![0.0; query_weight.len()], vec![0.0; score.len()]);
    let (mut d_u, mut d_c) = (vec![0.0; recurrent.len()], vec![0.0; context_weight.len()]);
    report("additive decoder backward", 2 * products, || {
        let result = AdditiveGruResult {
            output: &output,
            weights: &weights,
            gates: &gates,
            queries: &queries,
        };
        let gradients = AdditiveGruGradients {
            x_projection: &mut d_x,
            initial: &mut d_initial,
            keys: &mut d_keys,
            values: &mut d_values,
            query_weight: &mut d_query,
            score: &mut d_score,
            recurrent: &mut d_u,
            context_weight: &mut d_c,
        };
        decoder.backward(result, &output, gradients)
    })
}

fn input_feeding_decoder() -> Result<(), KernelError> {
    let cells = STEPS * BATCH;
    let x = numbers(cells * 4 * HIDDEN, 1.0);
    let feed = numbers(BATCH * HIDDEN, 1.0);
    let feed_weight = numbers(HIDDEN * 4 * HIDDEN, 0.1);
    let recurrent = numbers(LAYERS * HIDDEN * 4 * HIDDEN, 0.1);
    let layer_weight = numbers((LAYERS - 1) * HIDDEN * 4 * HIDDEN, 0.1);
    let layer_bias = numbers((LAYERS - 1) * 4 * HIDDEN, 0.1);
    let initial = numbers(LAYERS * BATCH * HIDDEN, 1.0);
    let keys = numbers(BATCH * SOURCES * HIDDEN, 1.0);
    let values = numbers(BATCH * SOURCES * VALUE, 1.0);
    let combine_weight = numbers((VALUE + HIDDEN) * HIDDEN, 0.1);
    let combine_bias = numbers(HIDDEN, 0.1);
    let decoder = InputFeedingDecoder {
        steps: STEPS,
        batch: BATCH,
        sources: SOURCES,
        hidden: HIDDEN,
        layers: LAYERS,
        value: VALUE,
        score: Score::Dot,
        x_projection: &x,
        feed: &feed,
        feed_weight: &feed_weight,
        recurrent: &recurrent,
        layer_weight: &layer_weight,
        layer_bias: &layer_bias,
        initial_hidden: &initial,
        initial_cell: &initial,
        keys: &keys,
        values: &values,
        combine_weight: &combine_weight,
        combine_bias: &combine_bias,
        dropout: None,
        windows: None,
        keep_source: None,
    };
    let mut output = vec![0.0; cells * HIDDEN];
    let mut weights = vec![0.0; cells * SOURCES];
    let mut gates = vec![0.0; LAYERS * cells * 4 * HIDDEN];
    let mut states = vec![0.0; LAYERS * cells * 2 * HIDDEN];
    let mut contexts = vec![0.0; cells * VALUE];
    let mut combined = vec![0.0; cells * HIDDEN];
    let products = cells * (8 * HIDDEN * HIDDEN * LAYERS + (VALUE + HIDDEN) * HIDDEN);
    report("input feeding (dot) forward", products, || {
        let saved = InputFeedingSaved {
            gates: &mut gates,
            states: &mut states,
            contexts: &mut contexts,
            combined: &mut combined,
            queries: &mut [],
        };
        decoder.forward(&mut output, &mut weights, Some(saved))
    })?;
    let room = |like: &[f32]| vec![0.0; like.len()];
    let (mut d_x, mut d_feed, mut d_feed_weight) = (room(&x), room(&feed), room(&feed_weight));
    let (mut d_recurrent, mut d_layer) = (room(&recurrent), room(&layer_weight));
    let (mut d_bias, mut d_hidden, mut d_cell) =
        (room(&layer_bias), room(&initial), room(&initial));
    let (mut d_keys, mut d_values) = (room(&keys), room(&values));
    let (mut d_combine, mut d_combine_bias) = (room(&combine_weight), room(&combine_bias));
    report("input feeding (dot) backward", 2 * products, || {
        let result = InputFeedingResult {
            output: &output,
            weights: &weights,
            gates: &gates,
            states: &states,
            contexts: &contexts,
            combined: &combined,
            queries: &[],
        };
        let gradients = InputFeedingGradients {
            x_projection: &mut d_x,
            feed: &mut d_feed,
            feed_weight: &mut d_feed_weight,
            recurrent: &mut d_recurrent,
            layer_weight: &mut d_layer,
            layer_bias: &mut d_bias,
            initial_hidden: &mut d_hidden,
            initial_cell: &mut d_cell,
            keys: &mut d_keys,
            values: &mut d_values,
            combine_weight: &mut d_combine,
            combine_bias: &mut d_combine_bias,
            score: None,
        };
        decoder.backward(result, &output, gradients)
    })
}
