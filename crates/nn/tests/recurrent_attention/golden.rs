//! Outputs and gradients of recurrent attention against PyTorch: `../golden/recurrent_golden.py` and its
//! output.

use burn::tensor::{Gradients, Int, Tensor, TensorData, activation::softmax};
use regard_nn::{
    Attention,
    dropout::DropoutRng,
    initialize::Initializer,
    mask::PaddingMask,
    recurrent::{
        AttentiveDecoder, AttentivePooling, Gru, Lstm, Lstmn, PointerGenerator, RecurrentCell,
        Reset, SourceTape,
    },
    score::{Additive, General, Score},
};

use crate::support::{Case, GoldenFile, device};

const TIME: usize = 5;
const BATCH: usize = 3;
const INPUT: usize = 4;
const SIZE: usize = 6;
const ATTENTION: usize = 3;
const LENGTHS: [usize; BATCH] = [5, 2, 4];
const SOURCE: usize = 7;
const POSITIONS: usize = 4;
const SOURCES: [usize; BATCH] = [4, 1, 3];
const HOPS: usize = 3;
const WORDS: usize = 5;
const EXTENDED: usize = 7;

fn golden() -> GoldenFile {
    GoldenFile::read(include_bytes!("../golden/recurrent.safetensors"))
}

fn initializer() -> Initializer {
    Initializer::new(1, &device())
}

fn source_keep() -> PaddingMask {
    PaddingMask::from_lengths(&SOURCES, POSITIONS, &device())
}

/// `states [time, batch, size]` with zeros at padded steps, where the golden file has them.
fn real_steps(states: Tensor<3>) -> Tensor<3> {
    let keep = PaddingMask::from_lengths(&LENGTHS, TIME, &device());
    keep.zero_padding(states.swap_dims(0, 1)).swap_dims(0, 1)
}

#[test]
fn lstmn_alone_and_with_deep_fusion() {
    let golden = golden();
    for kind in ["lstmn", "lstmn-deep"] {
        let mut cases = golden.cases(kind);
        assert_eq!(cases.len(), 1);
        let mut case = cases.remove(0);
        let mut lstmn = Lstmn::new(INPUT, SIZE, ATTENTION, &mut initializer());
        let mut source = None;
        if kind == "lstmn-deep" {
            lstmn = lstmn.with_fusion(SOURCE, ATTENTION, &mut initializer());
            source = Some(SourceTape {
                hidden: case.leaf("source.hidden", [BATCH, POSITIONS, SOURCE]),
                cell: case.leaf("source.cell", [BATCH, POSITIONS, SIZE]),
                keep: source_keep(),
            });
        }
        let lstmn = case.fill(lstmn);
        let x = case.leaf("x", [TIME, BATCH, INPUT]);
        let keep = PaddingMask::from_lengths(&LENGTHS, TIME, &device()).time_major();
        let read = lstmn
            .sequence(x.clone(), source.as_ref(), Some(keep))
            .unwrap();
        let (hidden, cell) = (real_steps(read.hidden), real_steps(read.cell));
        case.output("hidden", &hidden);
        case.output("cell", &cell);
        case.output("weights", &read.weights);
        if let Some(weights) = &read.source_weights {
            case.output("source_weights", weights);
        }
        let loss = (hidden * case.constant("loss.h", [TIME, BATCH, SIZE])).sum()
            + (cell * case.constant("loss.c", [TIME, BATCH, SIZE])).sum();
        let gradients = loss.backward();
        case.gradients(&lstmn, &gradients);
        case.gradient("x", &x, &gradients);
        if let Some(source) = &source {
            case.gradient("source.hidden", &source.hidden, &gradients);
            case.gradient("source.cell", &source.cell, &gradients);
        }
        case.close();
    }
}

fn score(case: &Case) -> Score {
    let init = &mut initializer();
    match case.text("score") {
        "additive" => Score::Additive(Additive::new(SIZE, SOURCE, ATTENTION, init)),
        "general" => Score::General(General::new(SIZE, SOURCE, init)),
        other => panic!("{other}"),
    }
}

#[test]
fn decoders_of_every_wiring() {
    let golden = golden();
    let cases = golden.cases("decoder");
    assert_eq!(cases.len(), 9);
    for case in cases {
        let attention = Attention::new(score(&case));
        let init = &mut initializer();
        match case.text("wiring") {
            "previous" => {
                let cell = Gru::new(INPUT + SOURCE, SIZE, Reset::AfterProduct, init);
                let decoder = AttentiveDecoder::previous(cell, attention, SOURCE).unwrap();
                compare_decoder(decoder, case);
            }
            wiring => {
                let feeding = wiring == "feeding";
                let fed = if feeding { SIZE } else { 0 };
                let cell = Lstm::new(INPUT + fed, SIZE, init);
                let decoder =
                    AttentiveDecoder::current(cell, attention, SOURCE, feeding, init).unwrap();
                compare_decoder(decoder, case);
            }
        }
    }
}

fn compare_decoder<C: RecurrentCell>(decoder: AttentiveDecoder<C>, mut case: Case<'_>) {
    let coverage = case.description["coverage"].as_bool().unwrap();
    let decoder = match coverage {
        true => decoder.with_coverage(&mut initializer()).unwrap(),
        false => decoder,
    };
    let decoder = case.fill(decoder);
    let x = case.leaf("x", [TIME, BATCH, INPUT]);
    let annotations = case.leaf("annotations", [BATCH, POSITIONS, SOURCE]);
    let memory = decoder
        .attention
        .memory(annotations.clone(), source_keep())
        .unwrap();
    let start = decoder.start(&memory);
    let decoded = decoder
        .sequence(x.clone(), start, &memory, &mut DropoutRng::none())
        .unwrap();
    case.output("output", &decoded.output);
    case.output("context", &decoded.context);
    case.output("weights", &decoded.weights);
    let mut loss = (decoded.output * case.constant("loss", [TIME, BATCH, SIZE])).sum()
        + (decoded.context * case.constant("loss.context", [TIME, BATCH, SOURCE])).sum();
    assert_eq!(decoded.coverage_loss.is_some(), coverage);
    if let Some(losses) = decoded.coverage_loss {
        case.output("coverage_loss", &losses);
        loss = loss + (losses * case.constant("loss.coverage", [TIME, BATCH])).sum();
    }
    let gradients: Gradients = loss.backward();
    case.gradients(&decoder, &gradients);
    case.gradient("x", &x, &gradients);
    case.gradient("annotations", &annotations, &gradients);
    case.close();
}

#[test]
fn pointer_generator() {
    let golden = golden();
    let mut cases = golden.cases("pointer-generator");
    assert_eq!(cases.len(), 1);
    let mut case = cases.remove(0);
    let pointer = case.fill(PointerGenerator::new(
        SOURCE,
        SIZE,
        INPUT,
        &mut initializer(),
    ));
    let context = case.leaf("context", [BATCH, SOURCE]);
    let state = case.leaf("state", [BATCH, SIZE]);
    let x = case.leaf("x", [BATCH, INPUT]);
    let words = case.leaf("words", [BATCH, WORDS]);
    let scores = case.leaf("scores", [BATCH, POSITIONS]);
    let text: Vec<Vec<i32>> = serde_json::from_value(case.description["text"].clone()).unwrap();
    let text = TensorData::new(text.concat(), [BATCH, POSITIONS]);
    let text = Tensor::<2, Int>::from_data(text, &device());
    let generate = pointer
        .generate(context.clone(), state.clone(), x.clone())
        .unwrap();
    let (said, looked) = (softmax(words.clone(), 1), softmax(scores.clone(), 1));
    let p = PointerGenerator::mix(said, looked, text, generate.clone(), EXTENDED).unwrap();
    case.output("generate", &generate);
    case.output("distribution", &p);
    let gradients = (p * case.constant("loss", [BATCH, EXTENDED]))
        .sum()
        .backward();
    case.gradients(&pointer, &gradients);
    case.gradient("context", &context, &gradients);
    case.gradient("state", &state, &gradients);
    case.gradient("x", &x, &gradients);
    case.gradient("words", &words, &gradients);
    case.gradient("scores", &scores, &gradients);
    case.close();
}

#[test]
fn attentive_pooling() {
    let golden = golden();
    let mut cases = golden.cases("pooling");
    assert_eq!(cases.len(), 1);
    let mut case = cases.remove(0);
    let pooling = AttentivePooling::new(SOURCE, ATTENTION, HOPS, &mut initializer());
    let pooling = case.fill(pooling);
    let annotations = case.leaf("annotations", [BATCH, POSITIONS, SOURCE]);
    let pooled = pooling
        .forward(annotations.clone(), &source_keep())
        .unwrap();
    let redundancy = AttentivePooling::redundancy(pooled.weights.clone());
    case.output("context", &pooled.context);
    case.output("weights", &pooled.weights);
    case.output("redundancy", &redundancy);
    let loss = (pooled.context * case.constant("loss", [BATCH, HOPS, SOURCE])).sum()
        + (redundancy * case.constant("loss.penalty", [BATCH])).sum();
    let gradients = loss.backward();
    case.gradients(&pooling, &gradients);
    case.gradient("annotations", &annotations, &gradients);
    case.close();
}
