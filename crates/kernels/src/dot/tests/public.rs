//! Calls that are refused.

use super::*;

/// The error of a call of [`super::forward`] whose arguments were made invalid.
fn refused(spoil: impl Fn(&mut Attention, &mut [View; 3])) -> String {
    let numbers = vec![0.0f32; 4096];
    let view = |shape| View::heads_first(&numbers, shape);
    let mut views = [view([2, 4, 6, 8]), view([2, 2, 5, 8]), view([2, 2, 5, 3])];
    let mut attention = Attention::default();
    spoil(&mut attention, &mut views);
    let mut output = vec![0.0f32; 2 * 4 * 6 * 3];
    let [query, key, value] = views;
    let to = ViewMut::heads_first(&mut output, [2, 4, 6, 3]);
    let error: KernelError =
        crate::dot::forward(&attention, query, key, value, to, None).unwrap_err();
    error.to_string()
}

#[test]
fn wrong_arguments_are_named() {
    let says = |message: String, words: &[&str]| {
        for word in words {
            assert!(message.contains(word), "{message:?} lacks {word:?}");
        }
    };
    says(
        refused(|_, v| v[1].shape[0] = 1),
        &["`key`", "batch", "1", "2"],
    );
    says(
        refused(|_, v| v[1].shape[3] = 7),
        &["`key`", "dim", "7", "8"],
    );
    says(
        refused(|_, v| v[2].shape[2] = 4),
        &["`value`", "length", "4", "5"],
    );
    says(
        refused(|_, v| (v[1].shape[1], v[2].shape[1]) = (3, 3)),
        &["`key`", "heads", "divides", "3"],
    );
    says(
        refused(|_, v| v[0].strides[2] = 100_000),
        &["`query`", "strides", "4096"],
    );
    says(
        refused(|_, v| (v[0].shape[3], v[1].shape[3]) = (0, 0)),
        &["`query`", "dim"],
    );
    says(
        refused(|a, _| a.scale = Some(f32::NAN)),
        &["`scale`", "finite"],
    );
    says(
        refused(|a, _| a.softcap = Some(0.0)),
        &["`softcap`", "above 0"],
    );
    // The inverse would be infinite, or not precise.
    for softcap in [1e-39, 3e38] {
        says(
            refused(|a, _| a.softcap = Some(softcap)),
            &["`softcap`", "1.2e-38 to 8.5e37"],
        );
    }
    says(
        refused(|a, _| a.lengths = Some(&[1])),
        &["`lengths`", "1", "2"],
    );
    says(
        refused(|a, _| a.alibi = Some(&[1.0; 3])),
        &["`alibi`", "3", "4"],
    );
    let relative = |zero| {
        let values = &[0.0; 8][..];
        Some(RelativeBias { values, zero })
    };
    says(
        refused(|a, _| a.relative = relative(2)),
        &["`relative.zero`", "2", "distances"],
    );
    says(
        refused(|a, _| {
            let values = &[0.0; 6][..];
            a.relative = Some(RelativeBias { values, zero: 0 })
        }),
        &["`relative`", "heads", "6"],
    );
    says(
        refused(|a, _| a.sink = Some(&[1.0, f32::NAN, 0.0, 0.0])),
        &["`sink`", "position 1", "NaN"],
    );
    static KEEP: [u8; 64] = [1; 64];
    says(
        refused(|a, _| a.keep = Some(View::heads_first(&KEEP, [1, 1, 6, 4]))),
        &["`keep`", "columns", "4", "5", "or 1"],
    );
    says(
        refused(|a, _| {
            a.dropout = Some(Dropout {
                probability: 1.0,
                seed: 0,
                first_batch: 0,
            })
        }),
        &["`dropout.probability`", "[0, 1)"],
    );
    says(
        refused(|a, _| {
            a.offsets = Some(Offsets {
                query: &[0, 6],
                key: &[0, 5],
            })
        }),
        &["`query`", "batch", "packed"],
    );
    let table = View::heads_first(&KEEP, [1, 1, 2, 2]);
    says(
        refused(|a, _| {
            a.blocks = Some(Blocks {
                query_size: 0,
                key_size: 4,
                table,
            })
        }),
        &["`blocks.query_size`", "at least 1"],
    );
    says(
        refused(|a, _| {
            a.documents = Some(Documents {
                query: &[0; 12],
                key: &[0; 9],
            })
        }),
        &["`documents.key`", "9", "10"],
    );
}
