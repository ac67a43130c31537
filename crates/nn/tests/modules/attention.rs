//! Scores, normalisers and whole attentions: outputs and gradients equal those of `../golden/attention_golden.py`
//! (and of `../golden/nn_golden.py` for the recurrent decoders' form).

use burn::tensor::Tensor;
use regard_nn::{
    Attention, AttentionOptions, Observe, Path,
    initialize::Initializer,
    mask::{Alignment, Grid, Locality, Mask, PaddingMask},
    normalize::{Addressing, Form, Monotonic, Normalize, Sigmoid, Sink},
    score::{
        Additive, Cosine, Distance, GaussianWindow, General, Location, ScaledDot, ScaledGeneral,
        Score, WeightNormAdditive,
    },
};

use crate::support::{Case, GoldenFile, device};

const BATCH: usize = 2;
const HEADS: usize = 2;
const QUERIES: usize = 3;
const KEYS: usize = 5;
const QUERY: usize = 4;
const ANNOTATION: usize = 6;
const SIZE: usize = 3;

fn golden() -> GoldenFile {
    GoldenFile::read(include_bytes!("../golden/attention.safetensors"))
}

fn initializer() -> Initializer {
    Initializer::new(1, &device())
}

/// The score with this name, and the size of the annotations it takes.
fn score(name: &str) -> (Score, usize) {
    let init = &mut initializer();
    match name {
        "dot" => (Score::dot(), QUERY),
        "scaled-dot" => (Score::scaled_dot(), QUERY),
        "scaled-dot-0.3" => (Score::ScaledDot(ScaledDot::with_scale(0.3)), QUERY),
        "general" => (
            Score::General(General::new(QUERY, ANNOTATION, init)),
            ANNOTATION,
        ),
        "scaled-general" => {
            let score = ScaledGeneral::new(QUERY, ANNOTATION, init);
            (Score::ScaledGeneral(score), ANNOTATION)
        }
        "additive" => {
            let score = Additive::new(QUERY, ANNOTATION, SIZE, init);
            (Score::Additive(score), ANNOTATION)
        }
        "weight-normed" => {
            let score = WeightNormAdditive::new(QUERY, ANNOTATION, SIZE, init);
            (Score::WeightNormAdditive(score), ANNOTATION)
        }
        "cosine" => (Score::Cosine(Cosine::fixed(2.5)), QUERY),
        "cosine-learned" => (Score::Cosine(Cosine::learned(QUERY, init)), QUERY),
        "distance" => (Score::Distance(Distance::default()), QUERY),
        "distance-0.2" => (Score::Distance(Distance::with_scale(0.2)), QUERY),
        "gaussian-window" => {
            let score = GaussianWindow::new(QUERY, 2, init);
            (Score::GaussianWindow(score), ANNOTATION)
        }
        other => panic!("{other}"),
    }
}

fn normalize(name: &str) -> Normalize {
    match name {
        "softmax" => Normalize::softmax(),
        "sink" => Normalize::Sink(Sink::learned(HEADS, &mut initializer())),
        "sink-0.5" => Normalize::Sink(Sink::fixed(0.5)),
        "sparsemax" => Normalize::sparsemax(),
        "entmax15" => Normalize::entmax15(),
        "sigmoid" => Normalize::Sigmoid(Sigmoid::default()),
        "sigmoid-0.3" => Normalize::Sigmoid(Sigmoid::with_bias(0.3)),
        "hardmax" => Normalize::hardmax(),
        "monotonic-recursive" => Normalize::Monotonic(Monotonic::new(Form::Recursive)),
        "monotonic-parallel" => Normalize::Monotonic(Monotonic::new(Form::Parallel)),
        "addressing" => Normalize::Addressing(Addressing::new(QUERY, 1, &mut initializer())),
        "identity" => Normalize::identity(),
        other => panic!("{other}"),
    }
}

/// The masks of the script, as ours.
fn mask(name: &str, queries: usize) -> Mask {
    let padding = || Mask::padding(PaddingMask::from_lengths(&[5, 3], KEYS, &device()));
    let window = || Mask::window(2).unwrap();
    let documents = [vec![0, 0, 1, 1, 1], vec![0, 1, 1, 2, 2]];
    match name {
        "all" => Mask::all(),
        "padding" => padding(),
        "causal" => Mask::causal(),
        "causal-upper-left" => Mask::causal_aligned(Alignment::UpperLeft),
        "sliding" => window() & Mask::causal(),
        "window" => window(),
        "dilated" => Mask::dilated_window(2, 2).unwrap(),
        "longformer" => Mask::longformer(2, 1, &[1]).unwrap(),
        "local" => Mask::local_monotonic(1),
        "block" => Mask::block(2).unwrap(),
        "chunked" => Mask::chunked(2, 1).unwrap(),
        "block-sparse" => {
            let table = [vec![true, false], vec![true, true]];
            Mask::block_sparse(2, 3, &table).unwrap()
        }
        "document" => {
            let of_queries = documents.clone().map(|row| row[KEYS - queries..].to_vec());
            Mask::documents(&of_queries, &documents)
        }
        "prefix" => Mask::prefix(&[1, 3]),
        "not-longformer" => !Mask::longformer(2, 1, &[0]).unwrap(),
        "nothing" => !Mask::all(),
        other => panic!("{other}"),
    }
}

#[test]
fn scores() {
    let golden = golden();
    let cases = golden.cases("score");
    assert_eq!(cases.len(), 12);
    for mut case in cases {
        let (score, size) = score(case.text("score"));
        let score = case.fill(score);
        let query = case.leaf("query", [BATCH, HEADS, QUERIES, QUERY]);
        let annotations = case.leaf("annotations", [BATCH, HEADS, KEYS, size]);
        let scores = score.forward(query.clone(), score.keys(annotations.clone()));
        case.output("scores", &scores);
        let loss = scores * case.constant("loss", [BATCH, HEADS, QUERIES, KEYS]);
        let gradients = loss.sum().backward();
        case.gradients(&score, &gradients);
        case.gradient("query", &query, &gradients);
        case.gradient("annotations", &annotations, &gradients);
        case.close();
    }
}

#[test]
fn normalisers() {
    let golden = golden();
    let cases = golden.cases("normalize");
    assert_eq!(cases.len(), 48);
    let grid = Grid {
        batch: BATCH,
        heads: HEADS,
        queries: QUERIES,
        keys: KEYS,
        ..Grid::default()
    };
    for mut case in cases {
        let normalize = case.fill(normalize(case.text("normalize")));
        let seen = match case.text("mask") {
            "all" => None,
            name => Some(mask(name, QUERIES).tensor(&grid, &device()).unwrap()),
        };
        let needs_query = case.text("normalize") == "addressing";
        let query = match needs_query {
            true => case.leaf("query", [BATCH, HEADS, QUERIES, QUERY]),
            false => Tensor::zeros([BATCH, HEADS, QUERIES, QUERY], &device()),
        };
        let scores = case.leaf("scores", [BATCH, HEADS, QUERIES, KEYS]);
        let weights = normalize
            .forward(scores.clone(), seen, &query, None, None)
            .weights;
        case.output("weights", &weights);
        let loss = weights * case.constant("loss", [BATCH, HEADS, QUERIES, KEYS]);
        // Hardmax has no gradient; without this there would be nothing to differentiate.
        let gradients = (loss + scores.clone() * 0.0).sum().backward();
        case.gradients(&normalize, &gradients);
        case.gradient("scores", &scores, &gradients);
        if needs_query {
            case.gradient("query", &query, &gradients);
        }
        case.close();
    }
}

/// Masks, grouped heads and bias against PyTorch's scaled dot attention, on every path there is.
#[test]
fn scaled_dot_attention() {
    let golden = golden();
    for path in [Path::Auto, Path::Plain] {
        let cases = golden.cases("attention");
        assert_eq!(cases.len(), 39);
        for mut case in cases {
            let queries = case.number("queries") as usize;
            let key_heads = case.number("key_heads") as usize;
            let mask = mask(case.text("mask"), queries);
            let attention = Attention::new(Score::scaled_dot()).with_mask(mask);
            let query = case.leaf("query", [BATCH, 4, queries, QUERY]);
            let key = case.leaf("key", [BATCH, key_heads, KEYS, QUERY]);
            let value = case.leaf("value", [BATCH, key_heads, KEYS, SIZE]);
            let mut call = AttentionOptions::new(Observe::Nothing).path(path);
            let bias = case.description["bias"].as_bool().unwrap();
            let bias = bias.then(|| case.leaf("bias", [1, 4, queries, KEYS]));
            call.bias = bias.clone();
            let attended = attention
                .forward_with(query.clone(), key.clone(), value.clone(), call)
                .unwrap();
            case.output("context", &attended.context);
            let loss = attended.context * case.constant("loss", [BATCH, 4, queries, SIZE]);
            let gradients = loss.sum().backward();
            case.gradient("query", &query, &gradients);
            case.gradient("key", &key, &gradients);
            case.gradient("value", &value, &gradients);
            if let Some(bias) = bias {
                case.gradient("bias", &bias, &gradients);
            }
            case.close();
        }
    }
}

#[test]
fn any_score_with_any_normaliser() {
    let golden = golden();
    let cases = golden.cases("combination");
    assert_eq!(cases.len(), 10);
    for mut case in cases {
        let (score, size) = score(case.text("score"));
        let mut attention = Attention::new(score)
            .with_normalize(normalize(case.text("normalize")))
            .with_mask(mask(case.text("mask"), QUERIES));
        let softcap = case.number("softcap");
        if softcap > 0.0 {
            attention = attention.with_softcap(softcap);
        }
        let attention = case.fill(attention);
        let query = case.leaf("query", [BATCH, HEADS, QUERIES, QUERY]);
        let key = case.leaf("key", [BATCH, HEADS, KEYS, size]);
        let value = case.leaf("value", [BATCH, HEADS, KEYS, SIZE]);
        let attended = attention
            .forward(query.clone(), key.clone(), value.clone(), Observe::Weights)
            .unwrap();
        case.output("context", &attended.context);
        case.output("weights", &attended.weights.unwrap());
        let loss = attended.context * case.constant("loss", [BATCH, HEADS, QUERIES, SIZE]);
        let gradients = loss.sum().backward();
        case.gradients(&attention, &gradients);
        case.gradient("query", &query, &gradients);
        case.gradient("key", &key, &gradients);
        case.gradient("value", &value, &gradients);
        case.close();
    }
}

/// The form of the recurrent decoders: Luong's localities and the scores of the two papers.
mod of_decoders {
    use super::*;

    const BATCH: usize = 3;
    const QUERIES: usize = 4;
    const KEYS: usize = 6;
    const QUERY: usize = 5;
    const ANNOTATION: usize = 7;
    const SOURCES: [usize; BATCH] = [6, 3, 1];
    const FIRST_STEP: usize = 1;

    fn golden() -> GoldenFile {
        GoldenFile::read(include_bytes!("../golden/nn.safetensors"))
    }

    fn score(case: &Case) -> (Score, usize) {
        let init = &mut initializer();
        match case.text("score") {
            "dot" => (Score::dot(), QUERY),
            "general" => (
                Score::General(General::new(QUERY, ANNOTATION, init)),
                ANNOTATION,
            ),
            "additive" => (
                Score::Additive(Additive::new(QUERY, ANNOTATION, 3, init)),
                ANNOTATION,
            ),
            "location-short" => (Score::Location(Location::new(QUERY, 4, init)), ANNOTATION),
            "location-long" => (Score::Location(Location::new(QUERY, 9, init)), ANNOTATION),
            other => panic!("{other}"),
        }
    }

    #[test]
    fn scores() {
        let golden = golden();
        let cases = golden.cases("score");
        assert_eq!(cases.len(), 5);
        for mut case in cases {
            let (score, size) = score(&case);
            let score = case.fill(score);
            let query = case.leaf("query", [BATCH, QUERIES, QUERY]);
            let annotations = case.leaf("annotations", [BATCH, KEYS, size]);
            let keys = score.keys(annotations.clone()).unsqueeze_dim(1);
            let scores = score.forward(query.clone().unsqueeze_dim(1), keys);
            let scores = scores.squeeze_dim::<3>(1);
            case.output("scores", &scores);
            let loss = scores * case.constant("loss", [BATCH, QUERIES, KEYS]);
            let gradients = loss.sum().backward();
            case.gradients(&score, &gradients);
            case.gradient("query", &query, &gradients);
            case.gradient("annotations", &annotations, &gradients);
            case.close();
        }
    }

    #[test]
    fn reading_a_memory() {
        let golden = golden();
        for path in [Path::Auto, Path::Plain] {
            let cases = golden.cases("attention");
            assert_eq!(cases.len(), 15);
            for mut case in cases {
                let half_width = case.number("half_width") as usize;
                let locality = match case.text("locality") {
                    "global" => Locality::Global,
                    "monotonic" => Locality::Monotonic { half_width },
                    "predictive" => Locality::Predictive { half_width },
                    other => panic!("{other}"),
                };
                let (score, size) = score(&case);
                let attention =
                    Attention::new(score).with_locality(locality, QUERY, &mut initializer());
                assert_eq!(attention.locality(), locality);
                let attention = case.fill(attention);
                let query = case.leaf("query", [BATCH, QUERIES, QUERY]);
                let annotations = case.leaf("annotations", [BATCH, KEYS, size]);
                let keep = PaddingMask::from_lengths(&SOURCES, KEYS, &device());
                let memory = attention.memory(annotations.clone(), keep).unwrap();
                let call = AttentionOptions::default()
                    .first_query(FIRST_STEP)
                    .path(path);
                let reading = attention.read(query.clone(), &memory, call).unwrap();
                case.output("context", &reading.context);
                case.output("weights", &reading.weights);
                let loss = reading.context * case.constant("loss", [BATCH, QUERIES, size]);
                let gradients = loss.sum().backward();
                case.gradients(&attention, &gradients);
                case.gradient("query", &query, &gradients);
                case.gradient("annotations", &annotations, &gradients);
                case.close();
            }
        }
    }
}
