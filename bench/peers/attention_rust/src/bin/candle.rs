//! candle's attention on the CPU: `candle_nn::attention::flash_attn`, forward only.

use attention_peers::{Answer, Question, serve, timed};
use candle_core::{DType, Device, Tensor};
use candle_nn::attention::{AttnMask, flash_attn};

fn main() {
    serve(|question| {
        if !matches!(question.kind.as_str(), "forward" | "decode") {
            return Err("candle has no such kernel on the CPU".to_owned());
        }
        answer(question).unwrap_or_else(|error| Err(error.to_string()))
    });
}

fn answer(question: &Question) -> candle_core::Result<Answer> {
    let dtype = match question.dtype.as_str() {
        "f32" => DType::F32,
        "f16" => DType::F16,
        _ => DType::BF16,
    };
    let Question {
        batch,
        heads,
        key_heads,
        queries,
        keys,
        dim,
        ..
    } = *question;
    let shapes = [
        (batch, heads, queries, dim),
        (batch, key_heads, keys, dim),
        (batch, key_heads, keys, dim),
    ];
    // Its layout is [batch, length, heads, dim].
    let tensors = question
        .inputs()
        .into_iter()
        .zip(shapes)
        .map(|(numbers, shape)| {
            Tensor::from_vec(numbers, shape, &Device::Cpu)?
                .transpose(1, 2)?
                .contiguous()?
                .to_dtype(dtype)
        })
        .collect::<candle_core::Result<Vec<_>>>()?;
    let [query, key, value] = &tensors[..] else {
        unreachable!("three inputs")
    };
    let scale = 1.0 / (dim as f32).sqrt();
    let call = || {
        let mask = match question.causal {
            true => AttnMask::causal_with_offset(keys - queries),
            false => AttnMask::None,
        };
        match dtype {
            DType::F32 => flash_attn::<f32>(query, key, value, scale, mask, None, None),
            DType::F16 => flash_attn::<half::f16>(query, key, value, scale, mask, None, None),
            _ => flash_attn::<half::bf16>(query, key, value, scale, mask, None, None),
        }
    };
    call()?;
    let numbers = |result: candle_core::Result<Tensor>| {
        result
            .and_then(|x| x.to_dtype(DType::F32)?.flatten_all()?.to_vec1())
            .unwrap_or_else(|error| panic!("it worked a moment ago: {error}"))
    };
    Ok(timed(question.repeats, call, numbers))
}
