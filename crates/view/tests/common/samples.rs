//! Traces to draw: made up, but with the look of trained attention.
#![allow(dead_code)]

use regard_trace::{AttentionMap, Kind, Token, Tokens, Trace};

/// Tokens of a text in which `|` cuts a word into subwords, with `</s>` at the end.
pub fn tokens(text: &str) -> Tokens {
    let mut tokens = Vec::new();
    for (word, pieces) in text.split_whitespace().enumerate() {
        tokens.extend(
            pieces
                .split('|')
                .map(|piece| Token::new(piece).in_word(word)),
        );
    }
    tokens.push(Token::special("</s>"));
    tokens.into()
}

/// Weights with a peak at `centres[query]` of every query, some spread and a little noise.
pub fn peaked(
    queries: usize,
    keys: usize,
    head: usize,
    centres: impl Fn(usize) -> f32,
) -> Vec<f32> {
    let mut weights = Vec::with_capacity(queries * keys);
    for query in 0..queries {
        let centre = centres(query);
        let row: Vec<f32> = (0..keys)
            .map(|key| {
                let noise = ((query * 31 + key * 17 + head * 7) % 23) as f32 / 23.0;
                let spread = 0.35 + 0.25 * ((query * 7 + head * 3) % 5) as f32 / 4.0;
                let distance = (key as f32 - centre) / spread;
                (-0.5 * distance * distance).exp() + 0.02 * noise * noise
            })
            .collect();
        let sum: f32 = row.iter().sum();
        weights.extend(row.iter().map(|w| w / sum));
    }
    weights
}

/// A trace with one cross-attention map; `links[query]` is the key that the query looks at.
pub fn linked(source: &str, target: &str, links: &[f32]) -> Trace {
    let (keys, queries) = (tokens(source), tokens(target));
    assert_eq!(
        queries.len(),
        links.len(),
        "one link for every target token"
    );
    let weights = peaked(queries.len(), keys.len(), 0, |query| links[query]);
    let map = AttentionMap::new(Kind::Cross, queries, keys, 1, weights).expect("normalised");
    let plain = |text: &str| text.replace('|', "");
    Trace::new("rnnsearch", plain(source), plain(target)).with_map(map)
}

pub fn german() -> Trace {
    linked(
        "a man in a red shi|rt is rid|ing a bi|cycle .",
        "ein Mann in einem ro|ten Hemd fährt Fahr|rad .",
        &[0., 1., 2., 3., 4., 4.2, 5.5, 7.6, 10.4, 11., 12., 13.],
    )
    .with_score(-0.31)
    .with_rank(0)
}

pub fn german_second() -> Trace {
    linked(
        "a man in a red shi|rt is rid|ing a bi|cycle .",
        "ein Mann mit rotem Hemd fährt ein Fahr|rad .",
        &[0., 1., 2., 4., 5.5, 7.6, 9., 10.4, 11., 12., 13.],
    )
    .with_score(-0.87)
    .with_rank(1)
}

pub fn arabic() -> Trace {
    linked(
        "يركب رجل يرتدي قميصا أحمر دراجة .",
        "a man in a red shirt rides a bicycle .",
        &[1., 1., 2., 3., 4., 3., 0., 5., 5., 6., 7.],
    )
}

pub fn hebrew() -> Trace {
    linked(
        "the (small) dog runs in the park .",
        "הכלב ה(קטן) רץ בפארק .",
        &[2., 1., 3., 5.6, 7., 8.],
    )
}

pub fn chinese() -> Trace {
    linked(
        "一个 穿 红 衬衫 的 男人 正在 骑 自行车 。",
        "赤い シャツ を 着た 男性 が 自転車 に 乗って いる 。",
        &[2., 3., 1.4, 1., 5., 5.2, 8., 7.6, 7., 6., 9., 10.],
    )
}

pub fn one_token() -> Trace {
    let token = Tokens::from(vec![Token::new("Hi")]);
    let map =
        AttentionMap::new(Kind::Cross, token.clone(), token, 1, vec![1.0]).expect("normalised");
    Trace::new("rnnsearch", "Hi", "Hi").with_map(map)
}

pub fn hostile() -> Trace {
    let strange = |word: &str| {
        Tokens::from(vec![
            Token::new(format!("\u{1b}[31m{word}")),
            Token::new(""),
            Token::new(" "),
            Token::new("\u{202e}abc"),
            Token::new("</script><b>&\"'"),
            Token::new("\u{301}"),
            Token::new("👩‍👩‍👧 🇩🇪"),
            Token::new("Donaudampfschifffahrtsgesellschaftskapitänsmütze"),
        ])
    };
    let weights = peaked(8, 8, 0, |query| query as f32);
    let map = AttentionMap::new(Kind::Cross, strange("t"), strange("s"), 1, weights);
    Trace::new("<model>", "\u{1b}]0;owned\u{7}", "</script>").with_map(map.expect("normalised"))
}

/// A map of any size between invented words.
pub fn sized(queries: usize, keys: usize, heads: usize) -> AttentionMap {
    const SYLLABLES: [&str; 12] = [
        "ra", "min", "to", "sel", "va", "non", "ki", "der", "lu", "as", "pre", "zo",
    ];
    let word = |seed: usize| -> String {
        (0..1 + seed * 7 % 4)
            .map(|i| SYLLABLES[(seed * 5 + i * 3) % 12])
            .collect()
    };
    let words = |length: usize, shift: usize| -> Tokens {
        (0..length)
            .map(|i| Token::new(word(i + shift)).in_word(i))
            .collect()
    };
    let mut weights = Vec::new();
    for head in 0..heads {
        let slope = keys as f32 / queries.max(1) as f32;
        weights.extend(peaked(queries, keys, head, |query| {
            let wave = (query as f32 / 3.0 + head as f32).sin() * 2.5;
            query as f32 * slope + wave
        }));
    }
    AttentionMap::new(
        Kind::Cross,
        words(queries, 3),
        words(keys, 0),
        heads,
        weights,
    )
    .expect("normalised")
}

/// A small Transformer: layers of several heads, cross and self-attention.
pub fn transformer() -> Trace {
    let words = tokens("a man in a red shirt is riding a bicycle .");
    let mut trace = Trace::new("transformer", "a man …", "ein Mann …");
    for layer in 0..2 {
        let cross = sized(9, 11, 4).at_layer(layer).named("decoder.cross");
        let weights: Vec<f32> = (0..4)
            .flat_map(|head| {
                peaked(12, 12, head + layer, |q| {
                    (q + head * 2 + layer) as f32 % 12.0
                })
            })
            .collect();
        let own = AttentionMap::new(Kind::EncoderSelf, words.clone(), words.clone(), 4, weights)
            .expect("normalised")
            .at_layer(layer);
        trace = trace.with_map(own).with_map(cross);
    }
    trace
}
