//! Traces made up by proptest.
#![allow(dead_code)]

use proptest::collection::vec;
use proptest::prelude::*;
use regard_trace::{
    AttentionMap, Axis, Bounds, Image, Kind, Mask, Region, Regions, Token, Tokens, Trace,
};

pub fn tokens(length: std::ops::Range<usize>) -> impl Strategy<Value = Tokens> {
    vec((any::<String>(), 0u8..4, any::<bool>()), length).prop_map(|parts| {
        let mut word = 0;
        parts
            .into_iter()
            .map(|(text, step, own)| match (step, own) {
                (0, true) => Token::special(text),
                (0, false) => Token::new(text),
                (step, _) => {
                    word += usize::from(step == 1);
                    Token::new(text).in_word(word)
                }
            })
            .collect()
    })
}

pub fn axis() -> impl Strategy<Value = Axis> {
    prop_oneof![
        4 => tokens(0..9).prop_map(Axis::from),
        1 => (tokens(0..2), 0usize..4, 0usize..4)
            .prop_map(|(prefix, rows, columns)| Axis::Image { prefix, rows, columns }),
        1 => (0usize..9).prop_map(|length| Axis::Positions { length }),
        1 => vec(region(), 0..5).prop_map(|regions| Regions::from(regions).into()),
    ]
}

pub fn image() -> impl Strategy<Value = Image> {
    (1usize..5, 1usize..5, prop_oneof![Just(1usize), Just(3)])
        .prop_flat_map(|(height, width, channels)| {
            let pixels = vec(any::<u8>(), height * width * channels);
            (Just([height, width, channels]), pixels)
        })
        .prop_map(|([h, w, c], pixels)| Image::new(h, w, c, pixels).expect("it fills its shape"))
}

pub fn region() -> impl Strategy<Value = Region> {
    let sides = [-9.0f32..99.0, -9.0..99.0, 0.0..99.0, 0.0..99.0];
    let mask = vec(0u32..5, 0..5).prop_map(|runs| {
        let pixels = runs.iter().sum::<u32>() as usize;
        Mask::new(pixels, 1, runs).expect("it fills its size")
    });
    (
        any::<String>(),
        sides,
        proptest::option::of(-9.0f32..9.0),
        proptest::option::of(mask),
    )
        .prop_map(|(label, [x, y, width, height], score, mask)| {
            let bounds = Bounds {
                x,
                y,
                width,
                height,
            };
            let mut region = Region::new(label, bounds).expect("finite");
            if let Some(score) = score {
                region = region.scored(score).expect("finite");
            }
            match mask {
                Some(mask) => region.masked(mask),
                None => region,
            }
        })
}

pub fn kind() -> impl Strategy<Value = Kind> {
    prop_oneof![
        Just(Kind::Cross),
        Just(Kind::EncoderSelf),
        Just(Kind::DecoderSelf),
        Just(Kind::SelfAttention),
        Just(Kind::Other)
    ]
}

/// A map with normalised rows, some of them fully masked.
pub fn map() -> impl Strategy<Value = AttentionMap> {
    (
        kind(),
        axis(),
        axis(),
        1usize..4,
        any::<String>(),
        0usize..9,
    )
        .prop_flat_map(|(kind, queries, keys, heads, name, layer)| {
            let size = heads * queries.len() * keys.len();
            (
                Just((kind, queries, keys, heads, name, layer)),
                vec(0.0f32..1.0, size),
                vec(0u8..5, size),
            )
        })
        .prop_map(
            |((kind, queries, keys, heads, name, layer), mut weights, masked)| {
                for (row, masked) in weights
                    .chunks_mut(keys.len().max(1))
                    .zip(masked.chunks(keys.len().max(1)))
                {
                    let sum: f32 = row.iter().sum();
                    let keep = if masked[0] == 0 || sum == 0.0 {
                        0.0
                    } else {
                        sum.recip()
                    };
                    row.iter_mut().for_each(|w| *w *= keep);
                }
                AttentionMap::new(kind, queries, keys, heads, weights)
                    .expect("normalised rows")
                    .named(name)
                    .at_layer(layer)
            },
        )
}

pub fn trace() -> impl Strategy<Value = Trace> {
    (
        [any::<String>(), any::<String>(), any::<String>()],
        proptest::option::of(-1e6f64..1e6),
        proptest::option::of(0usize..9),
        vec(map(), 0..4),
        proptest::collection::btree_map(any::<String>(), any::<String>(), 0..3),
        proptest::option::of(image()),
    )
        .prop_map(
            |([model, source, target], score, rank, maps, metadata, image)| Trace {
                model,
                source,
                target,
                score,
                rank,
                maps,
                metadata,
                image,
            },
        )
}
