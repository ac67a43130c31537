//! `keras.layers.Attention` and `AdditiveAttention`: outputs and gradients, by the usual path and by plain operations
//! (`../golden/keras_golden.py` and its output).

use regard_nn::{
    Attention, AttentionOptions, Observe, Path,
    initialize::Initializer,
    mask::{Alignment, Mask, PaddingMask},
    score::{Additive, ScaledDot, Score},
    weights::{self, Arrays},
};

use crate::support::{Case, GoldenFile, device};

const BATCH: usize = 2;
const SIZE: usize = 5;
const VALUE: usize = 3;
const QUERY: usize = 4;
const ANNOTATION: usize = 7;

fn golden() -> GoldenFile {
    GoldenFile::read(include_bytes!("../golden/keras.safetensors"))
}

/// Every case of a kind, by both paths.
fn twice<'a>(golden: &'a GoldenFile, kind: &str, expected: usize) -> Vec<(Case<'a>, Path)> {
    let paths = [Path::Auto, Path::Plain];
    let cases = paths.map(|path| golden.cases(kind).into_iter().map(move |case| (case, path)));
    let cases: Vec<_> = cases.into_iter().flatten().collect();
    assert_eq!(cases.len(), 2 * expected);
    cases
}

/// Keras' masks as ours: its causal mask is aligned upper left.
fn mask(case: &Case, keys: usize) -> Mask {
    let lengths: Option<Vec<usize>> =
        serde_json::from_value(case.description["lengths"].clone()).unwrap();
    let mut mask = Mask::all();
    if let Some(lengths) = lengths {
        mask = mask & Mask::padding(PaddingMask::from_lengths(&lengths, keys, &device()));
    }
    match case.description["causal"].as_bool().unwrap() {
        true => mask & Mask::causal_aligned(Alignment::UpperLeft),
        false => mask,
    }
}

/// Compares context, weights and the gradients of query, key, value and of `score`'s weights that the file has.
fn compare(mut case: Case, attention: Attention, sizes: [usize; 2], path: Path, trained: bool) {
    let (queries, keys) = (
        case.number("queries") as usize,
        case.number("keys") as usize,
    );
    let leaves = [
        case.leaf("query", [BATCH, queries, sizes[0]]),
        case.leaf("key", [BATCH, keys, sizes[1]]),
        case.leaf("value", [BATCH, keys, VALUE]),
    ];
    let [query, key, value] = leaves.clone().map(|x| x.unsqueeze_dim::<4>(1));
    let call = AttentionOptions::new(Observe::Weights)
        .mask(mask(&case, keys))
        .path(path);
    let attended = attention.forward_with(query, key, value, call).unwrap();
    let context = attended.context.squeeze_dim::<3>(1);
    case.output("context", &context);
    case.output("weights", &attended.weights.unwrap().squeeze_dim::<3>(1));
    let loss = context * case.constant("loss", [BATCH, queries, VALUE]);
    let all = loss.sum().backward();
    for (name, leaf) in ["query", "key", "value"].into_iter().zip(&leaves) {
        case.gradient(name, leaf, &all);
    }
    if let (true, Score::Additive(score)) = (trained, &attention.score) {
        case.gradients(score, &all);
    }
    case.close();
}

/// `Attention`: Luong's dot score, alone and with the factor of `use_scale`.
#[test]
fn attention_by_dot_product() {
    for (case, path) in twice(&golden(), "dot", 12) {
        let score = match case.description["scale"].as_f64() {
            Some(scale) => Score::ScaledDot(ScaledDot::with_scale(scale)),
            None => Score::dot(),
        };
        compare(case, Attention::new(score), [SIZE; 2], path, false);
    }
}

/// `Attention(score_mode="concat")`: an additive score with `W = U = scale · I`, `b = 0` and `v = weight · 1`.
#[test]
fn attention_by_concat() {
    for (case, path) in twice(&golden(), "concat", 6) {
        let (scale, weight) = (case.number("scale") as f32, case.number("weight") as f32);
        let score = Additive::new(SIZE, SIZE, SIZE, &mut Initializer::new(1, &device()));
        let mut arrays: Arrays = weights::collect(&score);
        for (name, array) in &mut arrays {
            for (i, value) in array.values.iter_mut().enumerate() {
                *value = match name.as_str() {
                    "vector" => weight,
                    "key.bias" => 0.0,
                    _ if i / SIZE == i % SIZE => scale,
                    _ => 0.0,
                };
            }
        }
        let score = weights::apply(score, arrays).unwrap();
        let attention = Attention::new(Score::Additive(score));
        compare(case, attention, [SIZE; 2], path, false);
    }
}

/// `AdditiveAttention(use_scale=True)` after projections of query and key.
#[test]
fn additive_attention() {
    for (case, path) in twice(&golden(), "additive", 6) {
        let init = &mut Initializer::new(1, &device());
        let score = case.fill(Additive::new(QUERY, ANNOTATION, SIZE, init));
        let attention = Attention::new(Score::Additive(score));
        compare(case, attention, [QUERY, ANNOTATION], path, true);
    }
}
