//! Shared by Burn's and candle's sides: the questions that `attention.py` asks, and how they are answered.
//!
//! A question is a line `kind batch heads key_heads queries keys dim causal dtype repeats`; the answer a line
//! of JSON with the seconds of each repeat and a few numbers of the result, or with the reason why this side
//! cannot do it.

use std::{io::BufRead, time::Instant};

/// One question.
#[derive(Debug, Clone)]
pub struct Question {
    pub kind: String,
    pub batch: usize,
    pub heads: usize,
    pub key_heads: usize,
    pub queries: usize,
    pub keys: usize,
    pub dim: usize,
    pub causal: bool,
    pub dtype: String,
    pub repeats: usize,
}

impl Question {
    fn parse(line: &str) -> Option<Self> {
        let mut words = line.split_whitespace();
        let kind = words.next()?.to_owned();
        let mut number = || words.next()?.parse().ok();
        let (batch, heads, key_heads) = (number()?, number()?, number()?);
        let (queries, keys, dim) = (number()?, number()?, number()?);
        let causal = number()? == 1usize;
        let dtype = words.next()?.to_owned();
        let repeats = words.next()?.parse().ok()?;
        Some(Self {
            kind,
            batch,
            heads,
            key_heads,
            queries,
            keys,
            dim,
            causal,
            dtype,
            repeats,
        })
    }

    /// Query, key and value, `[batch, heads, length, dim]`, the same on every side.
    pub fn inputs(&self) -> [Vec<f32>; 3] {
        let key = self.batch * self.key_heads * self.keys * self.dim;
        let query = self.batch * self.heads * self.queries * self.dim;
        [numbers(1, query), numbers(2, key), numbers(3, key)]
    }
}

/// Numbers in `[-1, 1]` by a formula that every side has.
fn numbers(seed: usize, count: usize) -> Vec<f32> {
    (0..count)
        .map(|i| (((i * 7919 + seed * 104_729) % 2003) as f64 / 1001.5 - 1.0) as f32)
        .collect()
}

/// Times `repeats` calls and looks at the last result.
pub fn timed<T>(
    repeats: usize,
    mut call: impl FnMut() -> T,
    result: impl Fn(T) -> Vec<f32>,
) -> Answer {
    let mut seconds = Vec::new();
    let mut last = None;
    for _ in 0..repeats {
        let start = Instant::now();
        last = Some(call());
        seconds.push(start.elapsed().as_secs_f64());
    }
    let result = last.map(result).unwrap_or_default();
    let probe = (0..8).map(|k| result[k * (result.len() - 1) / 7]).collect();
    Ok((seconds, probe))
}

/// Seconds and probes, or the reason why this side cannot answer.
pub type Answer = Result<(Vec<f64>, Vec<f32>), String>;

/// Answers questions until there are no more.
pub fn serve(answer: impl Fn(&Question) -> Answer) {
    for line in std::io::stdin().lock().lines().map_while(Result::ok) {
        let answer = match Question::parse(&line) {
            Some(question) => answer(&question),
            None => Err(format!("not a question: {line}")),
        };
        println!(
            "{}",
            match answer {
                Ok((seconds, probe)) => serde_json::json!({ "seconds": seconds, "probe": probe }),
                Err(error) => serde_json::json!({ "error": error }),
            }
        );
    }
}
