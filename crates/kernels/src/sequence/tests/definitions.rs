//! Values and gradients against the definitions, over awkward sizes.

use super::*;

/// Lengths that differ from row to row; one row has no real step; time-major.
pub(super) fn ragged(steps: usize, batch: usize) -> Vec<bool> {
    (0..steps * batch)
        .map(|at| {
            let (step, row) = (at / batch, at % batch);
            step < [steps, steps.div_ceil(2), 0, 1][row % 4].min(steps)
        })
        .collect()
}

/// Steps, batch, hidden.
const SIZES: [(usize, usize, usize); 9] = [
    (1, 1, 1),
    (2, 3, 1),
    (17, 1, 7),
    (2, 9, 7),
    (17, 3, 7),
    (1, 3, 40),
    (2, 9, 59),
    (3, 9, 64),
    (2, 3, 256),
];

fn layers(unit: Unit, mut visit: impl FnMut(Layer)) {
    for &(steps, batch, hidden) in unless_miri(&SIZES[..], &SIZES[1..2]) {
        for (reverse, padded) in [(false, false), (true, false), (false, true), (true, true)] {
            let keep = padded.then(|| ragged(steps, batch));
            // Large sizes take one variant each: the variants do not depend on size.
            if hidden < 40 || padded != reverse {
                visit(Layer {
                    unit,
                    steps,
                    batch,
                    hidden,
                    keep,
                    reverse,
                });
            }
        }
    }
}

fn decoders(unit: Unit, mut visit: impl FnMut(AdditiveDecoder)) {
    // steps, batch, sources, hidden, attention, value
    let sizes = [
        (1usize, 1usize, 1usize, 1usize, 1usize, 1usize),
        (2, 3, 2, 1, 7, 3),
        (17, 3, 17, 7, 5, 9),
        (2, 9, 17, 40, 59, 33),
        (3, 4, 2, 59, 16, 64),
        (2, 9, 5, 64, 64, 128),
        (1, 3, 6, 256, 64, 512),
    ];
    for &(steps, batch, sources, hidden, attention, value) in unless_miri(&sizes[..], &sizes[1..2])
    {
        for padded in [false, true] {
            let keep = padded.then(|| ragged(steps, batch));
            // By row: the source mask is [batch, sources].
            let keep_source = padded.then(|| {
                let lengths = [sources, sources.div_ceil(2), 0, 1];
                (0..batch * sources)
                    .map(|at| at % sources < lengths[at / sources % 4])
                    .collect()
            });
            visit(AdditiveDecoder {
                layer: Layer {
                    steps,
                    batch,
                    hidden,
                    keep,
                    ..Layer::new(unit)
                },
                sources,
                attention,
                value,
                keep_source,
            });
        }
    }
}

/// Scaled masks of dropout with p = 1/4.
pub(super) fn dropout(count: usize) -> Vec<f32> {
    random(55, count, 1.0)
        .into_iter()
        .map(|x| if x < -0.5 { 0.0 } else { 4.0 / 3.0 })
        .collect()
}

/// Luong's local-m with D = 1; the last windows lie beyond the source.
fn windows(steps: usize, batch: usize, sources: usize) -> Vec<[usize; 2]> {
    let of_step = |step: usize| [step.saturating_sub(1).min(sources), (step + 2).min(sources)];
    (0..steps * batch).map(|at| of_step(at / batch)).collect()
}

fn score(attention: Option<usize>) -> Score {
    attention.map_or(Score::Dot, |attention| Score::Additive { attention })
}

fn input_feedings(mut visit: impl FnMut(InputFeedingDecoder)) {
    // steps, batch, sources, hidden, layers, value, attention
    let sizes = [
        (1usize, 1usize, 1usize, 1usize, 1usize, 1usize, 1usize),
        (2, 3, 2, 1, 3, 3, 7),
        (17, 3, 17, 7, 2, 9, 5),
        (2, 9, 17, 40, 2, 33, 59),
        (3, 4, 2, 59, 1, 64, 16),
        (2, 9, 5, 64, 2, 64, 64),
    ];
    for &(steps, batch, sources, hidden, layers, value, attention) in
        unless_miri(&sizes[..], &sizes[1..2])
    {
        for additive in [false, true] {
            for varied in [false, true] {
                let lengths = [sources, sources.div_ceil(2), 0, 1];
                visit(InputFeedingDecoder {
                    steps,
                    batch,
                    sources,
                    hidden,
                    layers,
                    value,
                    score: score(additive.then_some(attention)),
                    dropout: varied.then(|| dropout(steps * layers * batch * hidden)),
                    windows: (varied && additive).then(|| windows(steps, batch, sources)),
                    keep_source: varied.then(|| {
                        let kept = |at: usize| at % sources < lengths[at / sources % 4];
                        (0..batch * sources).map(kept).collect()
                    }),
                });
            }
        }
    }
}

#[test]
fn input_feeding_is_its_definition() {
    let mut checked = 0;
    input_feedings(|case| {
        check(&case, &draw(&case, 4));
        checked += 1;
    });
    assert_eq!(checked, unless_miri(24, 4));
}

#[test]
fn gru_is_its_definition() {
    let mut checked = 0;
    for unit in [Unit::ChoGru, Unit::PyTorchGru] {
        layers(unit, |case| {
            check(&case, &draw(&case, 1));
            checked += 1;
        });
    }
    assert_eq!(checked, 2 * unless_miri(5 * 4 + 4 * 2, 4));
}

#[test]
fn lstm_is_its_definition() {
    let mut checked = 0;
    layers(Unit::Lstm, |case| {
        check(&case, &draw(&case, 2));
        checked += 1;
    });
    assert_eq!(checked, unless_miri(5 * 4 + 4 * 2, 4));
}

/// Around every unit: Bahdanau's decoder has the first, GNMT's bottom layer the last.
#[test]
fn an_additive_decoder_is_its_definition() {
    let mut checked = 0;
    for unit in [Unit::ChoGru, Unit::PyTorchGru, Unit::Lstm] {
        decoders(unit, |case| {
            check(&case, &draw(&case, 3));
            checked += 1;
        });
    }
    assert_eq!(checked, 3 * unless_miri(14, 2));
}

#[test]
#[cfg_attr(miri, ignore = "computes nothing but definitions")]
fn definitions_agree_with_central_differences() {
    for unit in [Unit::ChoGru, Unit::PyTorchGru, Unit::Lstm] {
        let layer = |steps, batch, reverse| Layer {
            steps,
            batch,
            hidden: 5,
            keep: Some(ragged(steps, batch)),
            reverse,
            ..Layer::new(unit)
        };
        check_differences(&layer(4, 3, true));
        check_differences(&AdditiveDecoder {
            layer: layer(4, 2, false),
            sources: 3,
            attention: 4,
            value: 3,
            keep_source: Some(vec![true, true, true, false, true, true]),
        });
    }
    for attention in [None, Some(4)] {
        check_differences(&luong(4, 2, attention));
    }
}

/// A Luong decoder with everything switched on.
pub(super) fn luong(steps: usize, batch: usize, attention: Option<usize>) -> InputFeedingDecoder {
    let (sources, hidden, layers) = (5, 13, 2);
    InputFeedingDecoder {
        steps,
        batch,
        sources,
        hidden,
        layers,
        value: 9,
        score: score(attention),
        dropout: Some(dropout(steps * layers * batch * hidden)),
        windows: Some(windows(steps, batch, sources)),
        keep_source: Some((0..batch * sources).map(|at| at % 7 != 3).collect()),
    }
}
