//! Burn's attention on the CPU (Flex): `burn::tensor::module::attention`, forward, and backward through its
//! autodiff.

use attention_peers::{Answer, Question, serve, timed};
use burn::tensor::{
    DType, Device, Tensor, TensorData, module::attention, ops::AttentionModuleOptions,
};

fn main() {
    serve(
        |question| match (question.kind.as_str(), question.dtype.as_str()) {
            _ if question.heads != question.key_heads => {
                Err("Burn's attention has no grouped queries".to_owned())
            }
            ("forward" | "decode", "f32") => forward(question, DType::F32),
            ("forward" | "decode", "bf16") => forward(question, DType::BF16),
            ("forward" | "decode", "f16") => forward(question, DType::F16),
            ("backward", "f32") => backward(question),
            _ => Err("Burn has no such kernel on the CPU".to_owned()),
        },
    );
}

fn tensors(question: &Question, device: &Device, dtype: DType) -> [Tensor<4>; 3] {
    let Question {
        batch,
        heads,
        queries,
        keys,
        dim,
        ..
    } = *question;
    let shapes = [
        [batch, heads, queries, dim],
        [batch, heads, keys, dim],
        [batch, heads, keys, dim],
    ];
    let mut shapes = shapes.into_iter();
    question.inputs().map(|numbers| {
        let shape = shapes.next().unwrap_or_default();
        let tensor: Tensor<4> = Tensor::from_data(TensorData::new(numbers, shape), device);
        tensor.cast(dtype)
    })
}

fn options(question: &Question) -> AttentionModuleOptions {
    AttentionModuleOptions {
        is_causal: question.causal,
        ..Default::default()
    }
}

fn numbers(tensor: Tensor<4>) -> Vec<f32> {
    tensor
        .cast(DType::F32)
        .into_data()
        .iter()
        .collect()
}

fn forward(question: &Question, dtype: DType) -> Answer {
    let [query, key, value] = tensors(question, &Device::flex(), dtype);
    let call = || {
        attention(
            query.clone(),
            key.clone(),
            value.clone(),
            None,
            None,
            options(question),
        )
    };
    call();
    timed(question.repeats, call, numbers)
}

/// Forward is not timed: the graph is made before the clock starts.
fn backward(question: &Question) -> Answer {
    let device = Device::flex().autodiff();
    let mut seconds = Vec::new();
    let mut probe = Vec::new();
    for _ in 0..=question.repeats {
        let [query, key, value] = tensors(question, &device, DType::F32).map(Tensor::require_grad);
        let output = attention(query.clone(), key, value, None, None, options(question));
        let loss = output.sum();
        let timed = timed(
            1,
            || loss.backward(),
            |gradients| query.grad(&gradients).map(numbers).unwrap_or_default(),
        )?;
        seconds.extend(timed.0);
        probe = timed.1;
    }
    Ok((seconds.split_off(1), probe)) // the first one warms up
}
