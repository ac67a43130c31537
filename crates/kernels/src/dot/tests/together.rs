//! Heads that are computed together, neighbouring queries, and the panels of all plans.

use super::*;
use crate::{
    dot::plan::Plan,
    problem::{Blocks, Window},
};

/// The result is the same, to the last bit, as that of each head alone, with a NaN in a value that
/// some may not see.
#[test]
fn heads_computed_together_are_as_each_alone() {
    let (queries, keys) = unless_miri((100, 90), (20, 18));
    let (dim, value_dim) = (12, 8);
    let shape = Shape {
        heads: 18,
        key_heads: 6,
        ..Shape::one_head(queries, keys, dim, value_dim)
    };
    let mut inputs = shape.inputs(1.0);
    inputs[2][(2 * keys + 17) * value_dim] = f32::NAN;
    let bias = random(5, queries * keys, 1.0);
    let keep: Vec<u8> = (0..queries * keys).map(|x| u8::from(x % 11 != 3)).collect();
    let slopes = random(6, shape.heads, 0.1);
    let attention = Attention {
        causal: true,
        bias: Some(View::heads_first(&bias, [1, 1, queries, keys])),
        keep: Some(View::heads_first(&keep, [1, 1, queries, keys])),
        alibi: Some(&slopes),
        ..Attention::default()
    };
    for &level in Level::available() {
        let together = on_every_pool(|| {
            let (output, lse) = forward(level, &attention, shape, &inputs);
            vec![output, lse]
        });
        for head in 0..shape.heads {
            let part =
                |x: &[f32], head: usize, length: usize| x[head * length..][..length].to_vec();
            let one = [
                part(&inputs[0], head, queries * dim),
                part(&inputs[1], head / 3, keys * dim),
                part(&inputs[2], head / 3, keys * value_dim),
            ];
            let attention = Attention {
                alibi: Some(&slopes[head..=head]),
                ..attention
            };
            let shape = Shape::one_head(queries, keys, dim, value_dim);
            let alone = forward(level, &attention, shape, &one);
            let bits = |x: &[f32]| x.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
            let output = part(&together[0], head, queries * value_dim);
            assert_eq!(bits(&output), bits(&alone.0), "{level:?} {head}");
            let lse = part(&together[1], head, 3 * queries);
            assert_eq!(bits(&lse), bits(&alone.1), "{level:?} {head}");
        }
    }
}

/// To the last bit: a neighbour whose scores are a hundred times as large has no influence.
#[test]
#[cfg_attr(miri, ignore = "large")]
fn a_query_depends_on_its_own_row_alone() {
    let shape = Shape {
        heads: 2,
        key_heads: 2,
        ..Shape::one_head(60, 75, 12, 8)
    };
    let options = Options::new(shape);
    let clean = shape.inputs(1.0);
    let mut inputs = clean.clone();
    let other = 5; // of the first head
    inputs[0][other * shape.dim..][..shape.dim]
        .iter_mut()
        .for_each(|x| *x *= 100.0);
    for option in 0..OPTIONS {
        let mut attention = Attention::default();
        let name = options.set(option, &mut attention);
        for &level in Level::available() {
            let expected = forward(level, &attention, shape, &clean);
            let found = forward(level, &attention, shape, &inputs);
            for row in (0..shape.heads * shape.queries).filter(|&row| row != other) {
                let bits = |x: &(Vec<f32>, Vec<f32>)| {
                    let output = x.0[row * shape.value_dim..][..shape.value_dim].iter();
                    let numbers = output.chain(&x.1[3 * row..][..3]);
                    numbers.map(|x| x.to_bits()).collect::<Vec<_>>()
                };
                assert_eq!(bits(&found), bits(&expected), "{name} {level:?} {row}");
            }
        }
    }
}

/// Every query of every head is in one panel of one task.
#[test]
fn plans_leave_no_query_out() {
    let bias = vec![0.0; 200 * 40];
    let table = [1u8; 200];
    let none = Attention::default();
    let blocks = |query_size: usize| Attention {
        blocks: Some(Blocks {
            query_size,
            key_size: 40,
            table: View::heads_first(&table, [1, 1, 200usize.div_ceil(query_size), 1]),
        }),
        ..none
    };
    let options = [
        none,
        Attention {
            bias: Some(View::heads_first(&bias, [1, 1, 200, 40])),
            ..none
        },
        Attention {
            window: Some(Window {
                left: Some(3),
                right: None,
            }),
            ..none
        },
        blocks(64),
        blocks(40),
        blocks(100),
        blocks(7),
    ];
    for (option, attention) in options.into_iter().enumerate() {
        for heads in [1, 5, 18] {
            let shapes = [[2, heads, 200, 4], [2, heads, 40, 4], [2, heads, 40, 4]];
            let sizes = attention.check(shapes[0], shapes[1], shapes[2]).unwrap();
            for width in [12, 24, 48] {
                let plan = Plan::forward(&attention, &sizes, width);
                let mut times = vec![0; 2 * heads * 200];
                for task in 0..plan.tasks() {
                    let task = plan.task(&attention, &sizes, task);
                    assert!(task.queries <= width && task.heads > 0);
                    for head in task.head..task.head + task.heads {
                        for query in task.query..task.query + task.queries {
                            times[(task.index * heads + head) * 200 + query] += 1;
                        }
                    }
                }
                assert!(
                    times.iter().all(|&times| times == 1),
                    "{option} {heads} {width}"
                );
            }
        }
    }
}
