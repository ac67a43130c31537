//! Additive attention. Work: one tanh for each visible pair of query and key and each dim.

use crate::{
    additive::{Gradients, Input, PaddingMask, Shape, backward, forward},
    measure::{
        case::{Call, Case, Unit, Yardstick},
        numbers,
    },
};

pub(super) fn cases() -> Vec<Case> {
    let many = Shape {
        batch: 64,
        queries: 20,
        keys: 50,
        dim: 256,
        value_dim: 256,
    };
    let step = Shape {
        batch: 64,
        queries: 1,
        keys: 20,
        dim: 256,
        value_dim: 512,
    };
    [many, step]
        .into_iter()
        .flat_map(|shape| {
            [
                case("additive forward", shape, false),
                case("additive forward + backward", shape, true),
            ]
        })
        .collect()
}

fn case(kernel: &str, shape: Shape, with_backward: bool) -> Case {
    let Shape {
        batch,
        queries,
        keys,
        dim,
        value_dim,
    } = shape;
    Case {
        kernel: kernel.to_owned(),
        shape: format!("b{batch} {queries}x{keys} d{dim} v{value_dim}"),
        dtype: "f32",
        unit: Unit::Values,
        yardstick: Yardstick::Nothing,
        work: (batch * queries * keys * dim) as f64,
        scores: None,
        prepare: Box::new(move || call(shape, with_backward)),
    }
}

fn call(shape: Shape, with_backward: bool) -> Call {
    let Shape {
        batch,
        queries,
        keys,
        dim,
        value_dim,
    } = shape;
    let query = numbers(1, batch * queries * dim, 1.0);
    let key = numbers(2, batch * keys * dim, 1.0);
    let v = numbers(3, dim, 0.1);
    let value = numbers(4, batch * keys * value_dim, 1.0);
    let d_context = numbers(5, batch * queries * value_dim, 1.0);
    let mut context = vec![0.0; batch * queries * value_dim];
    let mut weights = vec![0.0; batch * queries * keys];
    let (mut d_query, mut d_key) = (vec![0.0; query.len()], vec![0.0; key.len()]);
    let (mut d_v, mut d_value) = (vec![0.0; dim], vec![0.0; value.len()]);
    Box::new(move || {
        let input = Input {
            shape,
            query: &query,
            key: &key,
            v: &v,
            value: &value,
            keep: PaddingMask::All,
            bias: None,
        };
        forward(&input, &mut context, &mut weights)?;
        if !with_backward {
            return Ok(());
        }
        let mut gradients = Gradients {
            query: &mut d_query,
            key: &mut d_key,
            v: &mut d_v,
            value: &mut d_value,
            bias: None,
            accumulate: false,
        };
        backward(&input, &weights, &d_context, None, &mut gradients)
    })
}
