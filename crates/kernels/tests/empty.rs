//! Sizes beside a size of 0: no number is there, so any of them fits, and a call must not count or allocate by them.

use regard_kernels::{
    Attention, KernelError, View, ViewMut, additive,
    batch_norm::{self, BatchNorm, Saved},
    dot::{self, Cache},
    gated_scores::{self, GatedScores},
    resize::Resize,
};

const MANY: usize = 1 << 40;

#[test]
fn dot_products_of_no_queries() -> Result<(), KernelError> {
    let attention = Attention::default();
    for shape in [[MANY, 1, 0, 8], [0, MANY, 5, 8], [MANY, 0, 5, 8]] {
        let none = || View::heads_first(&[], shape);
        let to = || ViewMut::heads_first(&mut [], shape);
        dot::forward(&attention, none(), none(), none(), to(), Some(&mut []))?;
        let gradients = dot::Gradients {
            query: to(),
            key: to(),
            value: to(),
            bias: None,
            sink: None,
        };
        dot::backward(
            &attention,
            none(),
            none(),
            none(),
            none(),
            &[],
            none(),
            gradients,
        )?;
        dot::observe(&attention, none(), none(), &[], dot::Observe::default())?;
        let cache = Cache::Contiguous {
            key: none(),
            value: none(),
            filled: None,
        };
        dot::decode(&attention, none(), cache, to(), None)?;
    }
    Ok(())
}

/// Without queries the gradients of keys, values and sinks are 0.
#[test]
fn gradients_without_queries_are_zeros() -> Result<(), KernelError> {
    let sinks = [0.5; 2];
    let attention = Attention {
        sink: Some(&sinks),
        ..Attention::default()
    };
    let query = View::heads_first(&[], [1, 2, 0, 4]);
    let numbers = [1.0; 24];
    let key = View::heads_first(&numbers, [1, 2, 3, 4]);
    let (mut d_key, mut d_value, mut d_sink) = ([f32::NAN; 24], [f32::NAN; 24], [f32::NAN; 2]);
    let gradients = dot::Gradients {
        query: ViewMut::heads_first(&mut [], [1, 2, 0, 4]),
        key: ViewMut::heads_first(&mut d_key, [1, 2, 3, 4]),
        value: ViewMut::heads_first(&mut d_value, [1, 2, 3, 4]),
        bias: None,
        sink: Some(&mut d_sink),
    };
    dot::backward(&attention, query, key, key, query, &[], query, gradients)?;
    assert_eq!((d_key, d_value, d_sink), ([0.0; 24], [0.0; 24], [0.0; 2]));
    Ok(())
}

#[test]
fn additive_scores_of_no_queries() -> Result<(), KernelError> {
    let input = additive::Input {
        shape: additive::Shape {
            batch: 1,
            queries: 0,
            keys: MANY,
            dim: 0,
            value_dim: 0,
        },
        query: &[],
        key: &[],
        v: &[],
        value: &[],
        keep: additive::PaddingMask::All,
        bias: None,
    };
    additive::forward(&input, &mut [], &mut [])?;
    let mut gradients = additive::Gradients {
        query: &mut [],
        key: &mut [],
        v: &mut [],
        value: &mut [],
        bias: None,
        accumulate: false,
    };
    additive::backward(&input, &[], &[], None, &mut gradients)
}

#[test]
fn gated_scores_of_an_empty_batch() -> Result<(), KernelError> {
    let scores = GatedScores {
        batch: MANY,
        queries: 0,
        keys: 0,
        dim: 1,
    };
    scores.forward(&[], &[], &[1.0], &mut [])?;
    let mut vector = [f32::NAN];
    let gradients = gated_scores::Gradients {
        query: &mut [],
        key: &mut [],
        vector: &mut vector,
    };
    scores.backward(&[], &[], &[1.0], &[], gradients)?;
    assert_eq!(vector, [0.0]);
    Ok(())
}

#[test]
fn batch_norm_of_empty_maps() -> Result<(), KernelError> {
    let norm = BatchNorm {
        batch: 1 << 60,
        channels: 1,
        positions: 0,
        weight: &[1.0],
        bias: &[0.0],
        epsilon: 1e-5,
        relu: false,
    };
    let moments = norm.train(&[], None, &mut [])?;
    let saved = Saved {
        x: &[],
        y: &[],
        moments: &moments,
        of_batch: true,
    };
    let (mut weight, mut bias) = ([f32::NAN], [f32::NAN]);
    let mut gradients = batch_norm::Gradients {
        input: &mut [],
        residual: None,
        weight: &mut weight,
        bias: &mut bias,
    };
    norm.backward(&saved, &mut gradients)?;
    assert_eq!((weight, bias), ([0.0], [0.0]));
    Ok(())
}

#[test]
fn resized_maps_of_an_empty_batch() -> Result<(), KernelError> {
    let resize = Resize {
        maps: 0,
        size: [1, MANY],
        output: [MANY, 1],
        align_corners: false,
    };
    resize.forward(&[], &mut [])?;
    resize.backward(&[], &mut [])
}
