//! Padding, poison, batches, threads, extremes and invalid calls.

use super::definitions::{dropout, luong, ragged};
use super::*;
use crate::sequence::{LayerFields, LayerWritten};

const UNITS: [Unit; 3] = [Unit::ChoGru, Unit::PyTorchGru, Unit::Lstm];

fn layer(unit: Unit, [steps, batch, hidden]: [usize; 3], keep: Option<Vec<bool>>) -> Layer {
    // An LSTM runs backwards here.
    let reverse = unit == Unit::Lstm;
    Layer {
        unit,
        steps,
        batch,
        hidden,
        keep,
        reverse,
    }
}

/// Every fifth source is not kept.
fn decoder(
    unit: Unit,
    sizes: [usize; 3],
    [sources, attention, value]: [usize; 3],
) -> AdditiveDecoder {
    let kept = |at: usize| at % 5 != 3;
    AdditiveDecoder {
        layer: layer(unit, sizes, None),
        sources,
        attention,
        value,
        keep_source: Some((0..sizes[1] * sources).map(kept).collect()),
    }
}

#[test]
fn a_row_alone_is_the_row_in_the_batch() {
    let (steps, batch, hidden) = unless_miri((3, 11, 33), (2, 9, 3));
    for unit in UNITS {
        let case = layer(unit, [steps, batch, hidden], Some(ragged(steps, batch)));
        check_rows_alone(&case, &[(case.tracked(), Rows::TimeMajor)]);
        let of_source = unless_miri([6, 20, 50], [3, 5, 4]);
        let case = decoder(unit, [steps, batch, hidden], of_source);
        let weights = steps * batch * case.sources;
        let results = [case.tracked(), weights].map(|count| (count, Rows::TimeMajor));
        check_rows_alone(&case, &results);
    }
    for attention in [None, Some(20)] {
        let case = luong(steps, batch, attention);
        let output = (case.tracked(), Rows::TimeMajor);
        check_rows_alone(
            &case,
            &[output, (steps * batch * case.sources, Rows::TimeMajor)],
        );
    }
}

#[test]
#[cfg_attr(miri, ignore = "large")]
fn threads_change_no_bit() {
    // Large enough for the pool to be used, with a last block that is not full.
    let (steps, batch, hidden) = (6, 43, 41);
    for unit in UNITS {
        let keep = Some(ragged(steps, batch));
        check_threads(&layer(unit, [steps, batch, hidden], keep));
        check_threads(&decoder(unit, [steps, batch, hidden], [7, 39, 70]));
    }
    for attention in [None, Some(39)] {
        let case = luong(steps, batch, attention);
        let dropout = Some(dropout(steps * case.layers * batch * hidden));
        check_threads(&InputFeedingDecoder {
            hidden,
            dropout,
            ..case
        });
    }
}

#[test]
fn padded_steps_carry_the_state_and_may_hold_nan() {
    let (steps, batch, hidden) = unless_miri((5, 4, 9), (2, 4, 2));
    let keep = ragged(steps, batch);
    let poison = |x: &mut [f32]| {
        let width = x.len() / keep.len();
        for (cell, &real) in x.chunks_exact_mut(width).zip(&keep) {
            if !real {
                cell.fill(f32::NAN);
            }
        }
    };
    for unit in UNITS {
        let case = layer(unit, [steps, batch, hidden], Some(keep.clone()));
        let mut inputs = draw(&case, 8);
        poison(&mut inputs[0]);
        check(&case, &inputs);
        let states = case.results(Level::current(), &inputs, false);
        // Row 2 has no real step.
        let width = unit.states() * hidden;
        let last = if case.reverse { 0 } else { steps - 1 };
        let last = &states[(last * batch + 2) * width..][..width];
        assert_eq!(last, &inputs[2][2 * width..3 * width]);
    }
}

#[test]
fn sources_that_are_not_kept_have_no_influence() {
    let (batch, sources, attention, value) = (3, 4, 6, 5);
    let keep_source: Vec<bool> = [
        [true, false, true, true],
        [false; 4],
        [true, false, false, false],
    ]
    .concat();
    for unit in UNITS {
        let sizes = [3, batch, unless_miri(7, 2)];
        let case = AdditiveDecoder {
            keep_source: Some(keep_source.clone()),
            ..decoder(unit, sizes, [sources, attention, value])
        };
        let mut inputs = draw(&case, 10);
        for (at, &kept) in keep_source.iter().enumerate() {
            if !kept {
                inputs[2][at * attention..][..attention].fill(f32::NAN);
                inputs[3][at * value..][..value].fill(f32::INFINITY);
            }
        }
        check(&case, &inputs);
        weights_ignore_what_is_not_kept(&case, &inputs, batch * sources, sources);
    }
}

/// The first row's weights sum to 1, the second keeps nothing, the third one source.
fn weights_ignore_what_is_not_kept<D: Described>(
    case: &D,
    inputs: &[Vec<f32>],
    of_step: usize,
    sources: usize,
) {
    let outputs = case.results(Level::current(), inputs, true);
    let weights = &outputs[case.tracked()..];
    for step in weights.chunks_exact(of_step) {
        let sums: Vec<f32> = step
            .chunks_exact(sources)
            .map(|row| row.iter().sum())
            .collect();
        assert!(
            (sums[0] - 1.0).abs() < 1e-6 && sums[1] == 0.0 && sums[2] == 1.0,
            "{sums:?}"
        );
    }
}

#[test]
fn extreme_numbers_stay_finite() {
    let case = AdditiveDecoder {
        keep_source: None,
        ..decoder(Unit::ChoGru, [3, 2, 8], [3, 8, 8])
    };
    let inputs: Vec<Vec<f32>> = draw(&case, 11)
        .into_iter()
        .map(|of| of.into_iter().map(|x| x * 1e4).collect())
        .collect();
    for &level in Level::available() {
        assert!(
            case.results(level, &inputs, true)
                .iter()
                .all(|x| x.is_finite())
        );
        let gradients = case.gradients(level, &inputs, &vec![1.0; case.tracked()]);
        assert!(gradients.iter().flatten().all(|x| x.is_finite()));
    }
}

#[test]
fn a_wrong_length_names_the_argument() {
    let gru = layer(Unit::ChoGru, [2, 1, 2], None);
    let inputs = LayerFields {
        x_projection: &[0.0; 12][..],
        recurrent: &[0.0; 12],
        initial: &[0.0; 2],
    };
    let refused = |gru: &Layer, inputs, expected_argument: &str, sizes: [usize; 2]| {
        let mut states = [0.0; 4];
        let written = LayerWritten {
            states: &mut states[..],
            gates: &mut [],
        };
        match gru.forward(inputs, written).unwrap_err() {
            KernelError::Length {
                argument,
                expected,
                found,
                ..
            } => assert_eq!((argument, [expected, found]), (expected_argument, sizes)),
            other => panic!("{other}"),
        }
    };
    let short = LayerFields {
        recurrent: &inputs.recurrent[..11],
        ..inputs
    };
    refused(&gru, short, "recurrent", [12, 11]);
    let masked = Layer {
        keep: Some(vec![true]),
        ..gru.clone()
    };
    refused(&masked, inputs, "keep", [2, 1]);
    let huge = Layer {
        hidden: usize::MAX,
        ..gru.clone()
    };
    assert!(matches!(
        huge.forward(inputs, LayerWritten::default()),
        Err(KernelError::TooLarge {
            argument: "x_projection",
            shape: "[steps, batch, gates]"
        })
    ));

    // Backward: the gradients too, and everything that the forward pass saves.
    let (of_inputs, of_written) = gru.shapes().unwrap();
    let (gradients, written) = (of_inputs.zeros().unwrap(), of_written.zeros().unwrap());
    let backward = |written, d_states: &[f32], initial: usize| {
        let mut gradients = gradients.clone();
        let gradients = LayerFields {
            initial: &mut vec![0.0; initial][..],
            ..gradients.slices_mut()
        };
        match gru.backward(inputs, written, d_states, gradients) {
            Err(KernelError::Length { argument, .. }) => argument,
            other => panic!("{other:?}"),
        }
    };
    let unsaved = LayerWritten {
        gates: &[][..],
        ..written.slices()
    };
    assert_eq!(backward(unsaved, &[0.0; 4], 2), "gates");
    assert_eq!(backward(written.slices(), &[0.0; 3], 2), "d_result");
    let argument = backward(written.slices(), &[0.0; 4], 1);
    assert_eq!(argument, "gradients.initial");
}

#[test]
fn empty_sizes_are_no_error() {
    for unit in UNITS {
        for sizes in [[0, 3, 4], [2, 0, 4], [2, 3, 0]] {
            let case = layer(unit, sizes, None);
            nothing(&case);
            nothing(&decoder(unit, sizes, [3, 2, 4]));
            nothing(&decoder(unit, sizes, [0, 2, 4]));
        }
    }
    for attention in [None, Some(2)] {
        for (steps, batch) in [(0, 3), (2, 0)] {
            nothing(&luong(steps, batch, attention));
        }
    }
}

/// Sizes that no operand has, beside a 0, are not allocated.
#[test]
fn sizes_that_no_operand_has_cost_nothing() {
    for unit in UNITS {
        for sources in [1 << 40, usize::MAX] {
            nothing(&AdditiveDecoder {
                sources,
                keep_source: None,
                ..decoder(unit, [0, 1, 1], [0; 3])
            });
        }
    }
    for sources in [1 << 40, usize::MAX] {
        nothing(&InputFeedingDecoder {
            sources,
            value: 0,
            keep_source: None,
            ..luong(0, 1, Some(0))
        });
    }
}

/// Everything is overwritten, and without a gradient of the results, those of the inputs are 0.
fn nothing<D: Described>(case: &D) {
    let inputs = draw(case, 12);
    let results = case.results(Level::current(), &inputs, true);
    assert!(results.iter().all(|x| x.is_finite()), "poison in a result");
    let gradients = case.gradients(Level::current(), &inputs, &vec![0.0; case.tracked()]);
    assert!(
        gradients.iter().flatten().all(|&x| x == 0.0),
        "poison left in a gradient"
    );
}
