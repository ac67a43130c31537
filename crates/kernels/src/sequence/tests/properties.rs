//! Padding, poison, batches, threads, extremes and bad calls.

use super::definitions::{dropout, luong, ragged};
use super::*;
use crate::sequence::gru::GruSequence;

#[test]
fn a_row_alone_is_the_row_in_the_batch() {
    let (steps, batch, hidden) = unless_miri((3, 11, 33), (2, 9, 3));
    for convention in [Convention::Cho, Convention::PyTorch] {
        let keep = Some(ragged(steps, batch));
        let case = GruCase {
            steps,
            batch,
            hidden,
            convention,
            reverse: false,
            keep,
        };
        check_rows_alone(&case, &[(steps * batch * hidden, Rows::TimeMajor)]);
    }
    let case = LstmCase {
        steps,
        batch,
        hidden,
        reverse: true,
        keep: None,
    };
    check_rows_alone(&case, &[(2 * steps * batch * hidden, Rows::TimeMajor)]);
    let (sources, attention, value) = unless_miri((6, 20, 50), (3, 5, 4));
    let keep_source = Some((0..batch * sources).map(|at| at % 5 != 3).collect());
    let case = AdditiveGruCase {
        steps,
        batch,
        sources,
        hidden,
        attention,
        value,
        keep: None,
        keep_source,
    };
    let output = (steps * batch * (hidden + value), Rows::TimeMajor);
    check_rows_alone(&case, &[output, (steps * batch * sources, Rows::TimeMajor)]);
    let case = AdditiveLstmCase {
        steps,
        batch,
        sources,
        hidden,
        attention,
        value,
        keep_source: case.keep_source,
    };
    check_rows_alone(&case, &[output, (steps * batch * sources, Rows::TimeMajor)]);
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
    for convention in [Convention::Cho, Convention::PyTorch] {
        let keep = Some(ragged(steps, batch));
        check_threads(&GruCase {
            steps,
            batch,
            hidden,
            convention,
            reverse: false,
            keep,
        });
    }
    check_threads(&LstmCase {
        steps,
        batch,
        hidden,
        reverse: false,
        keep: None,
    });
    check_threads(&AdditiveGruCase {
        steps,
        batch,
        sources: 7,
        hidden,
        attention: 39,
        value: 70,
        keep: None,
        keep_source: Some((0..batch * 7).map(|at| at % 5 != 3).collect()),
    });
    check_threads(&AdditiveLstmCase {
        steps,
        batch,
        sources: 7,
        hidden,
        attention: 39,
        value: 70,
        keep_source: Some((0..batch * 7).map(|at| at % 5 != 3).collect()),
    });
    for attention in [None, Some(39)] {
        let case = luong(steps, batch, attention);
        let dropout = Some(dropout(steps * case.layers * batch * hidden));
        check_threads(&InputFeedingCase {
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
    for convention in [Convention::Cho, Convention::PyTorch] {
        let keep = Some(keep.clone());
        let case = GruCase {
            steps,
            batch,
            hidden,
            convention,
            reverse: false,
            keep,
        };
        let mut inputs = draw(&case, 8);
        poison(&mut inputs[0]);
        check(&case, &inputs);
        let states = case.forward(Level::current(), &inputs, false);
        // Row 2 has no real step.
        let last = &states[((steps - 1) * batch + 2) * hidden..][..hidden];
        assert_eq!(last, &inputs[3][2 * hidden..3 * hidden]);
    }
    let case = LstmCase {
        steps,
        batch,
        hidden,
        reverse: true,
        keep: Some(keep.clone()),
    };
    let mut inputs = draw(&case, 9);
    poison(&mut inputs[0]);
    check(&case, &inputs);
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
    let case = AdditiveGruCase {
        steps: 3,
        batch,
        sources,
        hidden: unless_miri(7, 2),
        attention,
        value,
        keep: None,
        keep_source: Some(keep_source.clone()),
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

    let case = AdditiveLstmCase {
        steps: 3,
        batch,
        sources,
        hidden: unless_miri(7, 2),
        attention,
        value,
        keep_source: Some(keep_source.clone()),
    };
    let mut inputs = draw(&case, 14);
    for (at, &kept) in keep_source.iter().enumerate() {
        if !kept {
            inputs[3][at * attention..][..attention].fill(f32::NAN);
            inputs[4][at * value..][..value].fill(f32::INFINITY);
        }
    }
    check(&case, &inputs);
    weights_ignore_what_is_not_kept(&case, &inputs, batch * sources, sources);
}

/// The first row's weights sum to 1, the second keeps nothing, the third one source.
fn weights_ignore_what_is_not_kept<D: Described>(
    case: &D,
    inputs: &[Vec<f32>],
    of_step: usize,
    sources: usize,
) {
    let outputs = case.forward(Level::current(), inputs, true);
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
    let case = AdditiveGruCase {
        steps: 3,
        batch: 2,
        sources: 3,
        hidden: 8,
        attention: 8,
        value: 8,
        keep: None,
        keep_source: None,
    };
    let inputs: Vec<Vec<f32>> = draw(&case, 11)
        .into_iter()
        .map(|of| of.into_iter().map(|x| x * 1e4).collect())
        .collect();
    for &level in Level::available() {
        assert!(
            case.forward(level, &inputs, true)
                .iter()
                .all(|x| x.is_finite())
        );
        let gradients = case.backward(level, &inputs, &vec![1.0; case.tracked()]);
        assert!(gradients.iter().flatten().all(|x| x.is_finite()));
    }
}

#[test]
fn a_wrong_length_names_the_argument() {
    let gru = GruSequence {
        steps: 2,
        batch: 1,
        hidden: 2,
        x_projection: &[0.0; 12],
        recurrent: &[0.0; 11],
        hidden_bias: None,
        initial: &[0.0; 2],
        keep: None,
        reverse: false,
        convention: Convention::Cho,
    };
    let error = gru.forward(&mut [0.0; 4], None).unwrap_err();
    assert!(matches!(
        error,
        KernelError::Length {
            argument: "recurrent",
            expected: 12,
            found: 11,
            ..
        }
    ));
    let gru = GruSequence {
        recurrent: &[0.0; 12],
        keep: Some(&[true]),
        ..gru
    };
    let error = gru.forward(&mut [0.0; 4], None).unwrap_err();
    assert!(matches!(
        error,
        KernelError::Length {
            argument: "keep",
            expected: 2,
            found: 1,
            ..
        }
    ));
    let gru = GruSequence {
        keep: None,
        hidden_bias: Some(&[0.0; 6]),
        ..gru
    };
    let error = gru.forward(&mut [0.0; 4], None).unwrap_err();
    assert!(matches!(
        error,
        KernelError::Length {
            argument: "hidden_bias",
            ..
        }
    ));
}

#[test]
fn empty_sizes_are_no_error() {
    for (steps, batch, hidden) in [(0, 3, 4), (2, 0, 4), (2, 3, 0)] {
        let case = GruCase {
            steps,
            batch,
            hidden,
            convention: Convention::Cho,
            reverse: false,
            keep: None,
        };
        let inputs = draw(&case, 12);
        assert_eq!(
            case.forward(Level::current(), &inputs, true).len(),
            steps * batch * hidden
        );
        let gradients = case.backward(Level::current(), &inputs, &vec![0.0; case.tracked()]);
        assert!(
            gradients.iter().flatten().all(|&x| x == 0.0),
            "poison left in a gradient"
        );
    }
}
