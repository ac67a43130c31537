//! Decoding. Work: the bytes of the cache that a step reads.

use half::{bf16, f16};

use crate::{
    Attention, Element, View, ViewMut,
    dot::{self, Cache},
    measure::{
        case::{Call, Case, Unit, Yardstick},
        numbers,
    },
};

const HEADS: usize = 32;
const KEY_HEADS: usize = 8;
const KEYS: usize = 32_768;
const DIM: usize = 128;

pub(super) fn cases() -> Vec<Case> {
    vec![case::<f32>("f32"), case::<bf16>("bf16"), case::<f16>("f16")]
}

fn case<T: Element>(dtype: &'static str) -> Case {
    Case {
        kernel: "dot decode".to_owned(),
        shape: format!("b1 h{HEADS}/{KEY_HEADS} kv{KEYS} d{DIM}"),
        dtype,
        unit: Unit::Bytes,
        yardstick: Yardstick::Stream,
        work: (2 * KEY_HEADS * KEYS * DIM * size_of::<T>()) as f64,
        scores: Some(HEADS * KEYS),
        prepare: Box::new(call::<T>),
    }
}

fn call<T: Element>() -> Call {
    let cached = |seed| -> Vec<T> {
        numbers(seed, KEY_HEADS * KEYS * DIM, 1.0)
            .into_iter()
            .map(T::narrow)
            .collect()
    };
    let (key, value) = (cached(1), cached(2));
    let query = numbers(3, HEADS * DIM, 1.0);
    let mut output = vec![0.0; query.len()];
    Box::new(move || {
        let cache = Cache::Contiguous {
            key: View::heads_first(&key, [1, KEY_HEADS, KEYS, DIM]),
            value: View::heads_first(&value, [1, KEY_HEADS, KEYS, DIM]),
            filled: None,
        };
        dot::decode(
            &Attention::default(),
            View::heads_first(&query, [1, HEADS, 1, DIM]),
            cache,
            ViewMut::heads_first(&mut output, [1, HEADS, 1, DIM]),
            None,
        )
    })
}
