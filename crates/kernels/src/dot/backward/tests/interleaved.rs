//! Few heads and many keys: each part has keys of its own, and the parts add to `dQ` in turn.

use super::{properties::bits, *};

/// Just above the length from which keys are divided among parts, and no multiple of a tile.
fn long(heads: usize, key_heads: usize, queries: usize) -> Shape {
    Shape {
        batch: 1,
        heads,
        key_heads,
        queries,
        keys: unless_miri(1100, 70),
        dim: unless_miri(24, 3),
        value_dim: unless_miri(20, 2),
    }
}

const OPTION_SETS: [&[&str]; 10] = [
    &[],
    &["causal"],
    &["causal", "upper left"],
    &["window"],
    &["softcap", "sink", "dropout"],
    &["lengths", "alibi"],
    &["keep", "causal"],
    &["documents", "prefix"],
    &["blocks"],
    &["softcap"],
];

#[test]
#[cfg_attr(miri, ignore = "large")]
fn gradients_of_few_heads_of_many_keys() {
    let mut checked = 0;
    for shape in [
        long(1, 1, 130),
        long(2, 1, 49),
        long(3, 3, 5),
        long(1, 1, 1),
    ] {
        let (data, inputs) = (Data::new(shape, false), shape.inputs(1.0));
        for options in OPTION_SETS {
            checked += data.check(options, &inputs);
        }
    }
    // The longest sequence has 1,200 keys; one has no queries.
    let shape = Shape {
        keys: 2000,
        ..long(2, 1, 150)
    };
    let (data, inputs) = (Data::new(shape, true), shape.inputs(1.0));
    for options in [&[][..], &["causal", "sink"], &["window", "dropout"]] {
        checked += data.check(options, &inputs);
    }
    assert_eq!(checked, (4 * 10 + 3) * Level::available().len());
}

#[test]
fn the_same_bits_whoever_takes_a_turn() {
    let shapes = [long(1, 1, 1000), long(4, 2, 300), long(3, 3, 100)];
    for &shape in unless_miri(&shapes[..], &[long(1, 1, 30)]) {
        let (data, inputs) = (Data::new(shape, false), shape.inputs(1.0));
        let option_sets = [&["causal", "sink"][..], &["window"], &[]];
        for &options in unless_miri(&option_sets[..], &option_sets[..1]) {
            let attention = data.attention(options);
            let on = |threads: usize| {
                let pool = rayon::ThreadPoolBuilder::new()
                    .num_threads(threads)
                    .build()
                    .unwrap();
                let level = Level::current();
                bits(&pool.install(|| fast(level, &attention, shape, &inputs)))
            };
            let alone = on(1);
            for &threads in unless_miri(&[2, 3, 8][..], &[2]) {
                assert_eq!(
                    alone,
                    on(threads),
                    "{threads} threads, {shape:?}, {options:?}"
                );
            }
        }
    }
}
