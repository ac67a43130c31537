//! What attention refuses: shapes that do not fit, settings out of range, impossible combinations; each a typed error
//! that names the field, what was found and what was expected.

use burn::tensor::{DType, Tensor};
use regard_nn::{
    Attended, Attention, AttentionError, AttentionOptions, Memory, Observe, Path,
    initialize::Initializer,
    mask::{Mask, PaddingMask, PositionPredictor},
    normalize::{Addressing, Estimator, Form, HardSample, Monotonic, Normalize, Sigmoid, Sink},
    score::{
        Additive, Cosine, Distance, GaussianWindow, General, Location, ScaledDot, ScaledGeneral,
        Score, WeightNormAdditive,
    },
};

use crate::{mechanisms::SIZE, support::device};

fn refused(result: Result<Attended, AttentionError>) -> String {
    result.unwrap_err().to_string()
}

#[test]
fn shapes_that_do_not_fit() {
    let attention = Attention::new(Score::scaled_dot());
    let zeros = |shape: [usize; 4]| Tensor::<4>::zeros(shape, &device());
    let run = |query, key, value| {
        refused(attention.forward(zeros(query), zeros(key), zeros(value), Observe::Nothing))
    };
    let found = run([2, 4, 3, 8], [1, 4, 5, 8], [1, 4, 5, 8]);
    assert!(
        found.starts_with("`key` has shape [1, 4, 5, 8], expected batch 2, as the query"),
        "{found}"
    );
    let found = run([2, 4, 3, 8], [2, 3, 5, 8], [2, 3, 5, 8]);
    assert!(
        found.contains("expected a number of heads that divides the query's 4"),
        "{found}"
    );
    let found = run([2, 4, 3, 8], [2, 4, 5, 8], [2, 4, 6, 8]);
    assert!(
        found.starts_with("`value` has shape [2, 4, 6, 8], expected [2, 4, 5, any]"),
        "{found}"
    );
    let found = run([2, 4, 3, 8], [2, 4, 5, 6], [2, 4, 5, 8]);
    assert!(
        found.starts_with("`key` has shape [2, 4, 5, 6], expected size 8 for the scaled dot score"),
        "{found}"
    );
    let init = &mut Initializer::new(1, &device());
    for score in [
        Score::General(General::new(6, 8, init)),
        Score::ScaledGeneral(ScaledGeneral::new(6, 8, init)),
        Score::Additive(Additive::new(6, 8, 3, init)),
        Score::WeightNormAdditive(WeightNormAdditive::new(6, 8, 3, init)),
        Score::Location(Location::new(6, 9, init)),
        Score::Cosine(Cosine::learned(6, init)),
        Score::GaussianWindow(GaussianWindow::new(6, 2, init)),
    ] {
        let name = score.name();
        let attention = Attention::new(score).with_normalize(Normalize::identity());
        let found = refused(attention.forward(
            zeros([1, 1, 2, 8]),
            zeros([1, 1, 3, 8]),
            zeros([1, 1, 3, 8]),
            Observe::Nothing,
        ));
        let expected = format!(
            "`query` has shape [1, 1, 2, 8], expected size 6, which the {name} score was made for"
        );
        assert!(found.starts_with(&expected), "{found}");
    }
    let predictor = PositionPredictor::new(6, 2, init);
    let attention = Attention::new(Score::dot()).with_predictor(predictor);
    let same = || zeros([1, 1, 2, 8]);
    assert!(
        refused(attention.forward(same(), same(), same(), Observe::Nothing)).contains("size 6")
    );
    let addressing = Normalize::Addressing(Addressing::new(6, 1, init));
    let attention = Attention::new(Score::dot()).with_normalize(addressing);
    assert!(
        refused(attention.forward(same(), same(), same(), Observe::Nothing)).contains("size 6")
    );
}

#[test]
fn settings_out_of_range_and_impossible_combinations() {
    let init = &mut Initializer::new(1, &device());
    let zeros = || Tensor::<4>::zeros([1, 2, 3, SIZE], &device());
    let run = |attention: Attention, call: AttentionOptions<'_>| {
        refused(attention.forward_with(zeros(), zeros(), zeros(), call))
    };
    let dot = || Attention::new(Score::dot());
    // In f32, 1e300 is infinite and 1e-60 is 0.
    for softcap in [0.0, -1.0, f64::NAN, f64::INFINITY, 1e300, 1e20, 1e-60] {
        let found = run(dot().with_softcap(softcap), AttentionOptions::default());
        assert!(found.contains(&format!(
            "`softcap` is {softcap}, expected a finite number above 0 in f32"
        )));
    }
    for dropout in [1.0, -0.1, f64::NAN, 1.0 - 1e-12] {
        let found = run(dot().with_dropout(dropout), AttentionOptions::default());
        assert!(
            found.contains(&format!("`dropout` is {dropout}")),
            "{found}"
        );
    }
    for (attention, field) in [
        (
            Attention::new(Score::ScaledDot(ScaledDot::with_scale(f64::NAN))),
            "scale",
        ),
        (
            Attention::new(Score::Distance(Distance::with_scale(f64::INFINITY))),
            "scale",
        ),
        (
            Attention::new(Score::Cosine(Cosine::fixed(f64::NAN))),
            "sharpening",
        ),
        (
            Attention::new(Score::ScaledDot(ScaledDot::with_scale(1e39))),
            "scale",
        ),
        (
            dot().with_normalize(Normalize::Sink(Sink::fixed(1e39))),
            "sink",
        ),
        (
            dot().with_normalize(Normalize::Sigmoid(Sigmoid::with_bias(-1e39))),
            "sigmoid bias",
        ),
        (
            dot().with_normalize(Normalize::Monotonic(
                Monotonic::default().with_noise(f64::NAN),
            )),
            "monotonic noise",
        ),
        (
            dot().with_normalize(Normalize::Sink(Sink::fixed(f64::NAN))),
            "sink",
        ),
    ] {
        let found = run(attention, AttentionOptions::default());
        assert!(found.starts_with(&format!("`{field}` is ")), "{found}");
        assert!(found.contains("expected a finite number"), "{found}");
    }
    let sink = Normalize::Sink(Sink::learned(3, init));
    let found = run(dot().with_normalize(sink), AttentionOptions::default());
    assert!(
        found.contains("`sink heads` is 3, expected 2 (the query's heads) or 1"),
        "{found}"
    );
    let gumbel =
        |temperature| Normalize::HardSample(HardSample::new(Estimator::Gumbel { temperature }));
    for temperature in [0.0, 1e-60, f64::NAN] {
        let found = run(
            dot().with_normalize(gumbel(temperature)),
            AttentionOptions::default(),
        );
        let expected = format!("`Gumbel temperature` is {temperature}");
        assert!(found.contains(&expected), "{found}");
    }
    let backwards = Monotonic::default().with_noise(-1.0);
    let found = run(
        dot().with_normalize(Normalize::Monotonic(backwards)),
        AttentionOptions::default(),
    );
    assert!(
        found.contains("`monotonic noise` is -1, expected at least 0"),
        "{found}"
    );
    let window = Score::GaussianWindow(GaussianWindow::new(SIZE, 2, init));
    let found = run(Attention::new(window), AttentionOptions::default());
    assert!(
        found.contains(
            "`score` is Gaussian window, which cannot be combined with the softmax normaliser"
        ),
        "{found}"
    );
    for (attention, with) in [
        (
            dot().with_normalize(gumbel(1.0)),
            "the hard sample normaliser",
        ),
        (
            dot().with_normalize(Normalize::hardmax()),
            "the hardmax normaliser",
        ),
        (
            dot().with_normalize(Normalize::sparsemax()),
            "the sparsemax normaliser",
        ),
        (
            Attention::new(Score::Location(Location::new(SIZE, 3, init))),
            "the location score",
        ),
    ] {
        let found = run(attention, AttentionOptions::default().path(Path::Fused));
        let expected =
            format!("`path` is Fused, which cannot be combined with {with}: use Path::Auto");
        assert_eq!(found, expected);
    }
    let found = run(
        dot(),
        AttentionOptions::default()
            .path(Path::Fused)
            .differentiable(),
    );
    assert!(found.contains("differentiable observations"), "{found}");
    let bias = Tensor::<4>::zeros([1, 3, 3, 3], &device());
    let found = run(dot(), AttentionOptions::default().bias(bias));
    assert!(
        found.starts_with("`bias` has shape [1, 3, 3, 3], expected [1, 2, 3, 3]"),
        "{found}"
    );
    let found = run(dot(), AttentionOptions::new(Observe::Rows(vec![0, 3])));
    assert!(
        found.contains("`observed row` is 3, expected less than 3"),
        "{found}"
    );
    for k in [0, 4] {
        let found = run(dot(), AttentionOptions::new(Observe::TopK(k)));
        assert!(
            found.contains(&format!("`top k` is {k}, expected from 1 to 3")),
            "{found}"
        );
    }
    let padding = Mask::padding(PaddingMask::from_lengths(&[3], 4, &device()));
    let found = run(dot(), AttentionOptions::default().mask(padding));
    assert!(
        found.contains("`padding length` is 4, expected 3"),
        "{found}"
    );
    let found = Additive::concat(
        5,
        Tensor::zeros([5, 3], &device()),
        Tensor::zeros([3], &device()),
    );
    assert!(
        found
            .unwrap_err()
            .to_string()
            .starts_with("`weight` has shape [5, 3], expected more than 5 rows")
    );
    let found = Additive::concat(
        4,
        Tensor::zeros([5, 3], &device()),
        Tensor::zeros([2], &device()),
    );
    assert!(
        found
            .unwrap_err()
            .to_string()
            .starts_with("`vector` has shape [2], expected [3]")
    );
}

/// The same numbers are accepted where the precision can hold them.
#[test]
fn what_only_f64_holds() {
    let x = Tensor::<4>::ones([1, 1, 2, 4], (&device(), DType::F64)) * 1e-3;
    for attention in [
        Attention::new(Score::ScaledDot(ScaledDot::with_scale(1e39))),
        Attention::new(Score::dot()).with_softcap(1e100),
        Attention::new(Score::dot()).with_softcap(1e-100),
        Attention::new(Score::dot()).with_normalize(Normalize::Sink(Sink::fixed(1e39))),
    ] {
        let query = x.clone().require_grad();
        let run = attention.forward(query.clone(), x.clone(), x.clone(), Observe::Weights);
        let run = run.unwrap();
        let slope = query.grad(&run.context.sum().backward()).unwrap();
        assert!(slope.is_finite().all().into_scalar::<bool>());
        let weights: Vec<f64> = run.weights.unwrap().into_data().iter().collect();
        assert!(
            weights.iter().all(|weight| weight.is_finite()),
            "{weights:?}"
        );
    }
}

#[test]
fn sizes_of_nothing_and_precisions_that_do_not_meet() {
    let attention = Attention::new(Score::scaled_dot());
    let f32s = |shape: [usize; 4]| Tensor::<4>::zeros(shape, &device());
    let f64s = |shape: [usize; 4]| Tensor::<4>::zeros(shape, (&device(), DType::F64));
    let (query, none) = (|| f32s([1, 1, 2, 4]), || f32s([1, 1, 2, 0]));
    let found = refused(attention.forward(none(), none(), query(), Observe::Nothing));
    assert!(
        found.starts_with("`query` has shape [1, 1, 2, 0], expected a size of at least 1"),
        "{found}"
    );
    let found = refused(attention.forward(query(), query(), none(), Observe::Weights));
    assert!(
        found.starts_with("`value` has shape [1, 1, 2, 0], expected a size of at least 1"),
        "{found}"
    );
    let wide = || f64s([1, 1, 2, 4]);
    let run = |query, key, value, call: AttentionOptions<'_>| {
        refused(attention.forward_with(query, key, value, call))
    };
    for (found, field) in [
        (
            run(query(), wide(), query(), AttentionOptions::default()),
            "key",
        ),
        (
            run(query(), query(), wide(), AttentionOptions::default()),
            "value",
        ),
        (
            run(
                query(),
                query(),
                query(),
                AttentionOptions::default().bias(f64s([1, 1, 2, 2])),
            ),
            "bias",
        ),
        (
            run(
                query(),
                query(),
                query(),
                AttentionOptions::default().carried(Some(wide())),
            ),
            "carried",
        ),
    ] {
        let expected = format!("`{field}` is f64, expected f32, as the query");
        assert!(found.starts_with(&expected), "{found}");
    }
    let init = &mut Initializer::new(1, &device());
    let general = Attention::new(Score::General(General::new(4, 4, init)));
    let found = refused(general.forward(wide(), wide(), wide(), Observe::Nothing));
    assert!(
        found.starts_with("`query` is f64, expected f32, as the weights"),
        "{found}"
    );
}

#[test]
fn what_is_carried_on_must_fit() {
    let init = &mut Initializer::new(1, &device());
    let x = || Tensor::<4>::zeros([1, 2, 3, SIZE], &device());
    let window = Score::GaussianWindow(GaussianWindow::new(SIZE, 5, init));
    let of = |normalize| Attention::new(Score::dot()).with_normalize(normalize);
    for (attention, size) in [
        (of(Normalize::Monotonic(Monotonic::new(Form::Parallel))), 3),
        (of(Normalize::Addressing(Addressing::new(SIZE, 1, init))), 3),
        (
            Attention::new(window).with_normalize(Normalize::identity()),
            5,
        ),
    ] {
        let run = |shape: [usize; 4]| {
            let carried = Tensor::zeros(shape, &device());
            let call = AttentionOptions::default().carried(Some(carried));
            attention.forward_with(x(), x(), x(), call)
        };
        run([1, 2, 1, size]).unwrap();
        for wrong in [[1, 2, 1, size + 1], [1, 2, 2, size], [2, 2, 1, size]] {
            let found = refused(run(wrong));
            let expected = format!("`carried` has shape {wrong:?}, expected [1, 2, 1, {size}]");
            assert!(found.starts_with(&expected), "{found}");
        }
    }
}

#[test]
fn memories_that_do_not_fit() {
    let init = &mut Initializer::new(1, &device());
    let attention = Attention::new(Score::General(General::new(4, 6, init)));
    let keep = |lengths: &[usize], length| PaddingMask::from_lengths(lengths, length, &device());
    let zeros = |shape: [usize; 3]| Tensor::<3>::zeros(shape, &device());
    let message = |result: Result<Memory, AttentionError>| result.unwrap_err().to_string();
    let found = message(attention.memory(zeros([2, 3, 5]), keep(&[3, 3], 3)));
    assert!(
        found.starts_with(
            "`annotations` has shape [2, 3, 5], expected size 6 for the general score"
        ),
        "{found}"
    );
    for wrong in [keep(&[3], 3), keep(&[3, 3], 4)] {
        let found = message(attention.memory(zeros([2, 3, 6]), wrong));
        assert!(found.starts_with("`keep` has shape ["), "{found}");
        assert!(found.contains("expected [2, 3]"), "{found}");
    }
    let wide = Tensor::<3>::zeros([2, 3, 6], (&device(), DType::F64));
    let found = message(attention.memory(wide, keep(&[3, 3], 3)));
    assert!(
        found.starts_with("`annotations` is f64, expected f32"),
        "{found}"
    );
    let memory = attention
        .memory(zeros([2, 3, 6]), keep(&[3, 1], 3))
        .unwrap();
    let found = message(memory.select(&[0, 2]));
    assert!(
        found.starts_with("`rows` is 2, expected less than 2, the rows of the batch"),
        "{found}"
    );
    assert_eq!(memory.select(&[1, 1, 0]).unwrap().keys.dims(), [3, 3, 4]);
    let other = Memory {
        keep: keep(&[3, 3, 3], 3),
        ..memory
    };
    let found = attention.read(zeros([2, 1, 4]), &other, AttentionOptions::default());
    let found = found.unwrap_err().to_string();
    assert!(
        found.starts_with("`keep` has shape [3, 3], expected [2, 3]"),
        "{found}"
    );
}

/// NaN comes before all numbers among the largest weights, on both paths, so that it is not taken for a weight of 0.
#[test]
fn weights_that_are_nan_are_the_first_to_be_reported() {
    let x = |rows: [[f32; 2]; 3]| Tensor::<2>::from_floats(rows, &device()).reshape([1, 1, 3, 2]);
    let key = x([[1.0, 0.0], [0.0, f32::NAN], [0.5, 0.5]]);
    let query = x([[1.0, 2.0]; 3]);
    for path in [Path::Fused, Path::Plain] {
        let call = AttentionOptions::new(Observe::TopK(2)).path(path);
        let attention = Attention::new(Score::dot());
        let attended = attention.forward_with(query.clone(), key.clone(), query.clone(), call);
        let top = attended.unwrap().top.unwrap();
        let keys: Vec<i64> = top.keys.into_data().iter().collect();
        let weights: Vec<f32> = top.weights.into_data().iter().collect();
        assert!(
            weights.iter().all(|weight| weight.is_nan()),
            "{path:?} {weights:?}"
        );
        assert_eq!(keys, [0, 1, 0, 1, 0, 1], "{path:?}");
    }
}
