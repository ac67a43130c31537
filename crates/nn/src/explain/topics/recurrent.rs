//! Steps of decoders that attend: Luong's, Bahdanau's, and the LSTMN's reading of its own past.

use burn::tensor::{Tensor, activation::tanh};

use super::{Lesson, Matrix, drawn, heads::strongest, named, numbered, rows, tensor, zeros};
use crate::{
    Attention, AttentionError,
    dropout::DropoutRng,
    explain::{ExplainError, Quantity, modules::device},
    mask::PaddingMask,
    record::recorded,
    recurrent::{AttentiveDecoder, Direction, Gru, Lstm, LstmState, Lstmn, Reset},
    score::{Additive, General, Location, Score},
};

/// `[batch 1, size]`
fn single(row: &[f64]) -> Tensor<2> {
    tensor(row.to_vec(), [1, row.len()])
}

/// `[time, batch 1, size]`
fn in_time(x: &Matrix) -> Tensor<3> {
    tensor(x.concat(), [x.len(), 1, x[0].len()])
}

pub(super) fn luong(lesson: &mut Lesson) -> Result<(), ExplainError> {
    let words = named(&["le", "chat", "dort"]);
    let source = vec![vec![2.0, 0.0], vec![0.0, 4.0], vec![-2.0, 2.0]];
    let (input, former) = ([1.0, -1.0], [3.0, -2.0]);
    // The cell reads [x; h̃_{t-1}].
    let mut decoder = drawn(2.0, |initializer| {
        let cell = Lstm::new(4, 2, initializer);
        AttentiveDecoder::current(cell, Attention::new(Score::dot()), 2, true, initializer)
    })?;
    let scores = drawn(3.0, |initializer| {
        Ok::<_, AttentionError>(vec![
            Score::dot(),
            Score::General(General::new(2, 2, initializer)),
            Score::Additive(Additive::new(2, 2, 2, initializer)),
            Score::Location(Location::new(2, 3, initializer)),
        ])
    })?;
    let named_scores = [
        ("dot", "h_tᵀ h̄_s"),
        ("general", "h_tᵀ W_a h̄_s"),
        ("concat", "v_aᵀ tanh(W_a [h_t; h̄_s])"),
        ("location", "(W_a h_t)_s, without looking at the source"),
    ];
    lesson.matrix(
        "source states",
        "h̄_s of the encoder, as given",
        &words,
        &source,
    );
    let mut found = [const { Vec::new() }; 4];
    for (index, score) in scores.into_iter().enumerate() {
        decoder.attention = Attention::new(score);
        let length = source.len();
        let keep = PaddingMask::from_lengths(&[length], length, &device());
        let states = tensor(source.concat(), [1, length, 2]);
        let memory = decoder.attention.memory(states, keep)?;
        let cell = LstmState {
            hidden: single(&former),
            cell: single(&former),
        };
        let state = decoder.start_from(cell, &memory);
        let (stepped, record) =
            recorded(|| decoder.step(single(&input), state, &memory, &mut DropoutRng::none()));
        let (step, state) = stepped?;
        if index == 0 {
            let state = rows(state.cell.hidden);
            let formula =
                "h_t = LSTM([x_t; h̃_{t-1}], h_{t-1}); x_t = (1, -1), h̃_{t-1} = 0 (input feeding)";
            lesson.matrix("decoder state", formula, &named(&["h_t"]), &state);
        }
        let parts = [
            record.rows("scores"),
            record.rows("weights"),
            rows(step.context),
            rows(step.output),
        ];
        for (rows, part) in found.iter_mut().zip(parts) {
            rows.extend(part);
        }
    }
    let [scores, weights, contexts, outputs] = found;
    lesson.row();
    let names = named(&named_scores.map(|(name, _)| name));
    let formulas = named_scores.map(|(name, formula)| format!("{name}: {formula}"));
    lesson.step(
        Quantity::Scores,
        "scores",
        formulas.join(";  "),
        [&names, &words],
        &scores,
    );
    lesson.step(
        Quantity::Weights,
        "weights",
        "α = softmax of each row",
        [&names, &words],
        &weights,
    );
    lesson.matrix("contexts", "c_t = Σ_s α_s h̄_s", &names, &contexts);
    lesson.matrix(
        "attentional states",
        "h̃_t = tanh(W_c [c_t; h_t]), from which the next word is predicted",
        &names,
        &outputs,
    );
    lesson.remark("Each row is the same step with another score; matrices are random, rounded to one decimal.");
    lesson.remark(format!(
        "Strongest weights: {}.",
        strongest(&names, &words, &weights)
    ));
    Ok(())
}

pub(super) fn bahdanau(lesson: &mut Lesson) -> Result<(), ExplainError> {
    let words = named(&["le", "chat", "dort"]);
    let x = vec![vec![1.0, 0.0], vec![0.0, 1.0], vec![1.0, 1.0]];
    let inputs = [[0.0, 0.0], [2.0, -1.0]];
    let steps = named(&["i = 1", "i = 2"]);
    let encoder = drawn(2.0, |initializer| {
        let mut unit = || Gru::new(2, 2, Reset::BeforeProduct, initializer);
        Ok::<_, AttentionError>(vec![unit(), unit()])
    })?;
    let read = |unit: &Gru, direction| {
        let projected = unit.project(in_time(&x));
        unit.sequence(projected, zeros([1, 2]), None, direction) // [time, 1, 2]
    };
    let forward = read(&encoder[0], Direction::Forward);
    let backward = read(&encoder[1], Direction::Backward);
    let annotations = Tensor::cat(vec![forward.clone(), backward.clone()], 2).swap_dims(0, 1);
    let decoder = drawn(3.0, |initializer| {
        let score = Score::Additive(Additive::new(2, 4, 2, initializer));
        let cell = Gru::new(2 + 4, 2, Reset::BeforeProduct, initializer);
        AttentiveDecoder::previous(cell, Attention::new(score), 4)
    })?;
    let start = drawn(2.0, |initializer| {
        Ok::<_, AttentionError>(initializer.linear(2, 2, false))
    })?;
    let first = backward.clone().narrow(0, 0, 1).squeeze_dim::<2>(0);
    let first = tanh(crate::bridge::apply(&start, first));
    let keep = PaddingMask::from_lengths(&[3], 3, &device());
    let memory = decoder.attention.memory(annotations.clone(), keep)?;
    let mut state = decoder.start_from(first.clone(), &memory);
    let mut states = Vec::new();
    let (walked, record) = recorded(|| {
        for input in &inputs {
            let (step, next) = decoder.step(
                single(input),
                state.clone(),
                &memory,
                &mut DropoutRng::none(),
            )?;
            states.extend(rows(step.output));
            state = next;
        }
        Ok::<_, AttentionError>(())
    });
    walked?;
    lesson.matrix("source words", "x_j, as given", &words, &x);
    lesson.matrix(
        "read forwards",
        "→h_j = GRU(x_j, →h_{j-1})",
        &words,
        &rows(forward),
    );
    lesson.matrix(
        "read backwards",
        "←h_j = GRU(x_j, ←h_{j+1})",
        &words,
        &rows(backward),
    );
    lesson.row();
    lesson.matrix(
        "annotations",
        "h_j = [→h_j; ←h_j]",
        &words,
        &rows(annotations),
    );
    lesson.matrix(
        "first state",
        "s_0 = tanh(W_s ←h_1)",
        &named(&["s_0"]),
        &rows(first),
    );
    let names: Vec<String> = steps
        .iter()
        .flat_map(|step| words.iter().map(move |word| format!("{step} → {word}")))
        .collect();
    let hidden = record.rows("hidden");
    let columns = numbered("", hidden[0].len());
    let formula = "tanh(W s_{i-1} + U h_j), a small network over both";
    lesson.step(
        Quantity::Vectors,
        "hidden",
        formula,
        [&names, &columns],
        &hidden,
    );
    let weights = record.rows("weights");
    let scores = record.rows("scores");
    lesson.row();
    lesson.step(
        Quantity::Scores,
        "scores",
        "e_ij = vᵀ tanh(W s_{i-1} + U h_j)",
        [&steps, &words],
        &scores,
    );
    lesson.step(
        Quantity::Weights,
        "weights",
        "α_i = softmax of row e_i",
        [&steps, &words],
        &weights,
    );
    lesson.matrix(
        "contexts",
        "c_i = Σ_j α_ij h_j",
        &steps,
        &record.rows("context"),
    );
    lesson.matrix(
        "states",
        "s_i = GRU([y_{i-1}; c_i], s_{i-1}); y_0 = (0, 0), y_1 = (2, -1)",
        &steps,
        &states,
    );
    lesson.remark("The score asks with the state before the step: the context is needed to compute the next state.");
    lesson.remark(format!(
        "Strongest weights: {}.",
        strongest(&steps, &words, &weights)
    ));
    Ok(())
}

pub(super) fn lstmn(lesson: &mut Lesson) -> Result<(), ExplainError> {
    let words = named(&["the", "old", "cat", "sleeps"]);
    let x = vec![
        vec![1.0, 0.0],
        vec![0.0, 2.0],
        vec![-1.0, 1.0],
        vec![2.0, 1.0],
    ];
    let network = drawn(3.0, |initializer| {
        Ok::<_, AttentionError>(Lstmn::new(2, 2, 2, initializer))
    })?;
    let (read, record) = recorded(|| network.sequence(in_time(&x), None, None));
    let read = read?;
    let weights = rows(read.weights);
    // A word sees those before it.
    let seen = weights.iter().enumerate().map(|(t, row)| {
        let cells = row.iter().enumerate();
        cells
            .map(|(i, weight)| (i < t).then_some(*weight))
            .collect()
    });
    lesson.matrix("words", "x_t, as given", &words, &x);
    let formula =
        "a_i = vᵀ tanh(W_h h_i + W_x x_t + W_h̃ h̃_{t-1});  s = softmax(a) over the words before t";
    lesson.partial(
        Quantity::Weights,
        "weights",
        formula,
        [&words, &words],
        seen.collect(),
    );
    lesson.row();
    lesson.matrix(
        "read hidden states",
        "h̃_t = Σ_i s_i h_i; 0 at first",
        &words,
        &record.rows("read hidden"),
    );
    lesson.matrix(
        "read cells",
        "c̃_t = Σ_i s_i c_i; 0 at first",
        &words,
        &record.rows("read cell"),
    );
    lesson.matrix(
        "new cells",
        "c_t = f ∘ c̃_t + i ∘ ĉ",
        &words,
        &rows(read.cell),
    );
    lesson.matrix(
        "new hidden states",
        "h_t = o ∘ tanh c_t",
        &words,
        &rows(read.hidden),
    );
    lesson.remark("Row t says which earlier words the word at t was linked to; an LSTM would have only its last state.");
    lesson.remark(format!(
        "Strongest weights: {}.",
        strongest(&words[1..], &words, &weights[1..].to_vec())
    ));
    Ok(())
}
