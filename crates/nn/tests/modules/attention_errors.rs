//! What attention refuses: shapes that do not fit, settings out of range, impossible combinations; each a typed error
//! that names the field, what was found and what was expected.

use burn::tensor::Tensor;
use regard_nn::{
    Attended, Attention, AttentionError, Call, Observe, Path,
    initialize::Initializer,
    mask::{Keep, Mask, PositionPredictor},
    normalize::{Addressing, Estimator, HardSample, Normalize, Sink},
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
    let run = |attention: Attention, call: Call<'_>| {
        refused(attention.forward_with(zeros(), zeros(), zeros(), call))
    };
    let dot = || Attention::new(Score::dot());
    for softcap in [0.0, -1.0, f64::NAN, f64::INFINITY] {
        let found = run(dot().with_softcap(softcap), Call::default());
        assert!(found.contains(&format!(
            "`softcap` is {softcap}, expected a finite number above 0"
        )));
    }
    for dropout in [1.0, -0.1, f64::NAN] {
        let found = run(dot().with_dropout(dropout), Call::default());
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
            dot().with_normalize(Normalize::Sink(Sink::fixed(f64::NAN))),
            "sink",
        ),
    ] {
        let found = run(attention, Call::default());
        assert!(found.starts_with(&format!("`{field}` is ")), "{found}");
        assert!(found.contains("expected a finite number"), "{found}");
    }
    let sink = Normalize::Sink(Sink::learned(3, init));
    let found = run(dot().with_normalize(sink), Call::default());
    assert!(
        found.contains("`sink heads` is 3, expected 2 (the query's heads) or 1"),
        "{found}"
    );
    let gumbel =
        |temperature| Normalize::HardSample(HardSample::new(Estimator::Gumbel { temperature }));
    let found = run(dot().with_normalize(gumbel(0.0)), Call::default());
    assert!(found.contains("`Gumbel temperature` is 0"), "{found}");
    let window = Score::GaussianWindow(GaussianWindow::new(SIZE, 2, init));
    let found = run(Attention::new(window), Call::default());
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
        let found = run(attention, Call::default().path(Path::Fused));
        let expected =
            format!("`path` is Fused, which cannot be combined with {with}: use Path::Auto");
        assert_eq!(found, expected);
    }
    let found = run(dot(), Call::default().path(Path::Fused).differentiable());
    assert!(found.contains("differentiable observations"), "{found}");
    let bias = Tensor::<4>::zeros([1, 3, 3, 3], &device());
    let found = run(dot(), Call::default().bias(bias));
    assert!(
        found.starts_with("`bias` has shape [1, 3, 3, 3], expected [1, 2, 3, 3]"),
        "{found}"
    );
    let found = run(dot(), Call::new(Observe::Rows(vec![0, 3])));
    assert!(
        found.contains("`observed row` is 3, expected less than 3"),
        "{found}"
    );
    for k in [0, 4] {
        let found = run(dot(), Call::new(Observe::TopK(k)));
        assert!(
            found.contains(&format!("`top k` is {k}, expected from 1 to 3")),
            "{found}"
        );
    }
    let padding = Mask::padding(Keep::from_lengths(&[3], 4, &device()));
    let found = run(dot(), Call::default().mask(padding));
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
