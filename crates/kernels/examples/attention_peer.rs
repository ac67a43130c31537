//! The Rust side of `bench/peers/attention.py`. It reads requests from standard input, one line
//! `kind batch heads key_heads queries keys dim causal dtype repeats` each, and answers with one line of
//! JSON: the seconds of each repeat and eight numbers of the result.

use std::{io::BufRead, time::Instant};

use half::{bf16, f16};
use regard_kernels::{
    Attention, Element, KernelError, Offsets, View, ViewMut,
    dot::{self, Cache, Gradients},
};

fn main() {
    // On a thread of the pool, so that no call has to put the calling thread to sleep and wake a worker
    // first.
    rayon::scope(|_| serve());
}

fn serve() {
    for line in std::io::stdin().lock().lines().map_while(Result::ok) {
        let answer = match Question::parse(&line) {
            Some(question) => question
                .answer()
                .unwrap_or_else(|error| Err(error.to_string())),
            None => Err(format!("not a question: {line}")),
        };
        match answer {
            Ok((seconds, probe)) => println!("{{\"seconds\": {seconds:?}, \"probe\": {probe:?}}}"),
            Err(error) => println!("{{\"error\": {error:?}}}"),
        }
    }
}

/// The numbers as they are stored.
fn narrow<T: Element>(x: Vec<f32>) -> Vec<T> {
    x.into_iter().map(T::narrow).collect()
}

/// Seconds and probes, or why there are none.
type Answer = Result<(Vec<f64>, Vec<f32>), String>;

struct Question {
    kind: String,
    dtype: String,
    causal: bool,
    repeats: usize,
    query: [usize; 4],
    key: [usize; 4],
}

impl Question {
    fn parse(line: &str) -> Option<Self> {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [
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
        ] = words[..]
        else {
            return None;
        };
        let size = |word: &str| word.parse::<usize>().ok();
        Some(Self {
            kind: kind.to_owned(),
            dtype: dtype.to_owned(),
            causal: causal == "1",
            repeats: size(repeats)?,
            query: [size(batch)?, size(heads)?, size(queries)?, size(dim)?],
            key: [size(batch)?, size(key_heads)?, size(keys)?, size(dim)?],
        })
    }

    fn answer(self) -> Result<Answer, KernelError> {
        match (self.kind.as_str(), self.dtype.as_str()) {
            ("forward", "f32") => self.forward::<f32>(),
            ("forward", "bf16") => self.forward::<bf16>(),
            ("forward", "f16") => self.forward::<f16>(),
            ("backward", "f32") => self.backward(),
            ("packed", "f32") => self.packed(),
            ("decode", "f32") => self.decode::<f32>(),
            ("decode", "bf16") => self.decode::<bf16>(),
            ("decode", "f16") => self.decode::<f16>(),
            _ => Ok(Err("there is no such kernel".to_owned())),
        }
    }

    fn forward<T: Element>(&self) -> Result<Answer, KernelError> {
        let attention = Attention {
            causal: self.causal,
            ..Attention::default()
        };
        let [query, key, value] = self.inputs().map(narrow::<T>);
        let mut output = narrow::<T>(vec![0.0; query.len()]);
        let seconds = timed(self.repeats, || {
            dot::forward_stored(
                &attention,
                View::heads_first(&query, self.query),
                View::heads_first(&key, self.key),
                View::heads_first(&value, self.key),
                ViewMut::heads_first(&mut output, self.query),
                None,
            )
        })?;
        let output: Vec<f32> = output.into_iter().map(T::widen).collect();
        Ok(Ok((seconds, probe(&output))))
    }

    /// Gradients of the output's sum.
    fn backward(&self) -> Result<Answer, KernelError> {
        let attention = Attention {
            causal: self.causal,
            ..Attention::default()
        };
        Training::new(self).time(&attention, self.repeats, false)
    }

    /// Packed sentences of different lengths, forward and backward.
    fn packed(mut self) -> Result<Answer, KernelError> {
        let mut offsets = vec![0];
        for sentence in 0..64 {
            offsets.push(offsets[sentence] + 5 + sentence as u32 * 29 % 76);
        }
        self.query[2] = offsets[64] as usize;
        self.key[2] = self.query[2];
        let attention = Attention {
            offsets: Some(Offsets {
                query: &offsets,
                key: &offsets,
            }),
            ..Attention::default()
        };
        Training::new(&self).time(&attention, self.repeats, true)
    }

    fn decode<T: Element>(&self) -> Result<Answer, KernelError> {
        let attention = Attention {
            causal: self.causal,
            ..Attention::default()
        };
        let [query, key, value] = self.inputs();
        // The query stays in f32, whatever the cache is stored in, but is rounded as the peers' queries are.
        let query: Vec<f32> = narrow::<T>(query).into_iter().map(T::widen).collect();
        let (key, value) = (narrow::<T>(key), narrow::<T>(value));
        let mut output = vec![0.0; query.len()];
        let seconds = timed(self.repeats, || {
            let cache = Cache::Contiguous {
                key: View::heads_first(&key, self.key),
                value: View::heads_first(&value, self.key),
                filled: None,
            };
            let to = ViewMut::heads_first(&mut output, self.query);
            dot::decode(
                &attention,
                View::heads_first(&query, self.query),
                cache,
                to,
                None,
            )
        })?;
        Ok(Ok((seconds, probe(&output))))
    }

    fn inputs(&self) -> [Vec<f32>; 3] {
        let key = self.key.iter().product();
        [
            numbers(1, self.query.iter().product()),
            numbers(2, key),
            numbers(3, key),
        ]
    }
}

/// Everything that a forward and a backward pass read and write.
struct Training {
    shape: [usize; 4],
    inputs: [Vec<f32>; 3],
    output: Vec<f32>,
    lse: Vec<f32>,
    ones: Vec<f32>,
    gradients: [Vec<f32>; 3],
}

impl Training {
    fn new(question: &Question) -> Self {
        let inputs = question.inputs();
        Self {
            shape: question.query,
            output: vec![0.0; inputs[0].len()],
            lse: vec![0.0; 3 * question.query[..3].iter().product::<usize>()],
            ones: vec![1.0; inputs[0].len()],
            gradients: [(); 3].map(|()| vec![0.0; inputs[0].len()]),
            inputs,
        }
    }

    fn time(
        mut self,
        attention: &Attention,
        repeats: usize,
        both: bool,
    ) -> Result<Answer, KernelError> {
        self.forward(attention)?;
        let seconds = timed(repeats, || {
            if both {
                self.forward(attention)?;
            }
            self.backward(attention)
        })?;
        Ok(Ok((seconds, probe(&self.gradients[0]))))
    }

    fn forward(&mut self, attention: &Attention) -> Result<(), KernelError> {
        let [query, key, value] = self
            .inputs
            .each_ref()
            .map(|x| View::heads_first(x, self.shape));
        let output = ViewMut::heads_first(&mut self.output, self.shape);
        dot::forward(attention, query, key, value, output, Some(&mut self.lse))
    }

    fn backward(&mut self, attention: &Attention) -> Result<(), KernelError> {
        let [query, key, value] = self
            .inputs
            .each_ref()
            .map(|x| View::heads_first(x, self.shape));
        let [output, ones] = [&self.output, &self.ones].map(|x| View::heads_first(x, self.shape));
        let [d_query, d_key, d_value] = self
            .gradients
            .each_mut()
            .map(|x| ViewMut::heads_first(x, self.shape));
        let gradients = Gradients {
            query: d_query,
            key: d_key,
            value: d_value,
            bias: None,
            sink: None,
        };
        dot::backward(
            attention, query, key, value, output, &self.lse, ones, gradients,
        )
    }
}

/// Numbers in `[-1, 1]` by a formula that every side of the comparison uses.
fn numbers(seed: usize, count: usize) -> Vec<f32> {
    (0..count)
        .map(|i| (((i * 7919 + seed * 104_729) % 2003) as f64 / 1001.5 - 1.0) as f32)
        .collect()
}

/// Calls once to warm the caches, then `repeats` times with the time taken.
fn timed(
    repeats: usize,
    mut call: impl FnMut() -> Result<(), KernelError>,
) -> Result<Vec<f64>, KernelError> {
    call()?;
    (0..repeats)
        .map(|_| {
            let start = Instant::now();
            call()?;
            Ok(start.elapsed().as_secs_f64())
        })
        .collect()
}

/// Eight numbers, evenly spaced from the first to the last.
fn probe(result: &[f32]) -> Vec<f32> {
    (0..8).map(|k| result[k * (result.len() - 1) / 7]).collect()
}
