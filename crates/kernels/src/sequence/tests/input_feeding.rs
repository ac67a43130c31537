//! Luong's decoder as the checks see it.

use super::operations::{poison, poison_like};
use super::{Described, Rows};
use crate::reference::Real;
use crate::sequence::input_feeding::{
    InputFeedingDecoder, InputFeedingGradients, InputFeedingResult, InputFeedingSaved, Score,
    ScoreGradients,
};
use crate::sequence::reference;
use crate::simd::Level;

#[derive(Debug, Clone)]
pub(super) struct InputFeedingCase {
    pub(super) steps: usize,
    pub(super) batch: usize,
    pub(super) sources: usize,
    pub(super) hidden: usize,
    pub(super) layers: usize,
    pub(super) value: usize,
    /// Width of an additive score; `None` for dot.
    pub(super) attention: Option<usize>,
    pub(super) dropout: Option<Vec<f32>>,
    pub(super) windows: Option<Vec<[usize; 2]>>,
    pub(super) keep_source: Option<Vec<bool>>,
}

impl InputFeedingCase {
    fn kernel<'a>(&'a self, inputs: &'a [Vec<f32>]) -> InputFeedingDecoder<'a> {
        InputFeedingDecoder {
            steps: self.steps,
            batch: self.batch,
            sources: self.sources,
            hidden: self.hidden,
            layers: self.layers,
            value: self.value,
            score: match self.attention {
                None => Score::Dot,
                Some(attention) => Score::Additive {
                    attention,
                    query_weight: &inputs[12],
                    vector: &inputs[13],
                },
            },
            x_projection: &inputs[0],
            feed: &inputs[1],
            feed_weight: &inputs[2],
            recurrent: &inputs[3],
            layer_weight: &inputs[4],
            layer_bias: &inputs[5],
            initial_hidden: &inputs[6],
            initial_cell: &inputs[7],
            keys: &inputs[8],
            values: &inputs[9],
            combine_weight: &inputs[10],
            combine_bias: &inputs[11],
            dropout: self.dropout.as_deref(),
            windows: self.windows.as_deref(),
            keep_source: self.keep_source.as_deref(),
        }
    }

    /// Output, weights, gates, states, contexts, combined, queries.
    fn run(&self, level: Level, inputs: &[Vec<f32>], save: bool) -> [Vec<f32>; 7] {
        let (cells, n) = (self.steps * self.batch, self.hidden);
        let [mut output, mut combined] = [poison(cells * n), poison(cells * n)];
        let mut weights = poison(cells * self.sources);
        let mut gates = poison(self.layers * cells * 4 * n);
        let mut states = poison(self.layers * cells * 2 * n);
        let mut contexts = poison(cells * self.value);
        let mut queries = poison(cells * self.attention.unwrap_or(0));
        let saved = save.then_some(InputFeedingSaved {
            gates: &mut gates,
            states: &mut states,
            contexts: &mut contexts,
            combined: &mut combined,
            queries: &mut queries,
        });
        self.kernel(inputs)
            .forward_at(level, &mut output, &mut weights, saved)
            .unwrap();
        [output, weights, gates, states, contexts, combined, queries]
    }
}

impl Described for InputFeedingCase {
    fn inputs(&self) -> Vec<(&'static str, usize, Rows)> {
        let (n, d, layers) = (self.hidden, self.value, self.layers);
        let key = self.attention.unwrap_or(n);
        vec![
            (
                "x_projection",
                self.steps * self.batch * 4 * n,
                Rows::TimeMajor,
            ),
            ("feed", self.batch * n, Rows::First),
            ("feed_weight", n * 4 * n, Rows::None),
            ("recurrent", layers * n * 4 * n, Rows::None),
            ("layer_weight", (layers - 1) * n * 4 * n, Rows::None),
            ("layer_bias", (layers - 1) * 4 * n, Rows::None),
            (
                "initial_hidden",
                layers * self.batch * n,
                Rows::Layers(layers),
            ),
            (
                "initial_cell",
                layers * self.batch * n,
                Rows::Layers(layers),
            ),
            ("keys", self.batch * self.sources * key, Rows::First),
            ("values", self.batch * self.sources * d, Rows::First),
            ("combine_weight", (d + n) * n, Rows::None),
            ("combine_bias", n, Rows::None),
            ("query_weight", n * self.attention.unwrap_or(0), Rows::None),
            ("vector", self.attention.unwrap_or(0), Rows::None),
        ]
    }
    fn scale(&self, name: &str) -> f32 {
        match name {
            "feed_weight" | "recurrent" | "layer_weight" | "query_weight" => {
                2.0 / (self.hidden as f32).sqrt()
            }
            "combine_weight" => 2.0 / ((self.hidden + self.value) as f32).sqrt(),
            "vector" => 3.0 / (self.attention.unwrap_or(1) as f32).sqrt(),
            _ => 1.0,
        }
    }
    fn steps(&self) -> usize {
        self.steps
    }
    fn batch(&self) -> usize {
        self.batch
    }
    fn alone(&self, row: usize) -> Self {
        let of_row = |keep: &Vec<bool>| keep[row * self.sources..][..self.sources].to_vec();
        let windows =
            |all: &Vec<[usize; 2]>| all.iter().copied().skip(row).step_by(self.batch).collect();
        let masks = |all: &Vec<f32>| {
            let cells = all.chunks_exact(self.hidden).skip(row).step_by(self.batch);
            cells.flatten().copied().collect()
        };
        Self {
            batch: 1,
            dropout: self.dropout.as_ref().map(masks),
            windows: self.windows.as_ref().map(windows),
            keep_source: self.keep_source.as_ref().map(of_row),
            ..self.clone()
        }
    }
    fn tracked(&self) -> usize {
        self.steps * self.batch * self.hidden
    }
    fn define<T: Real>(&self, inputs: &[Vec<T>]) -> Vec<T> {
        let none = vec![Vec::new(); 14];
        let tensors = reference::InputFeedingTensors {
            x_projection: &inputs[0],
            feed: &inputs[1],
            feed_weight: &inputs[2],
            recurrent: &inputs[3],
            layer_weight: &inputs[4],
            layer_bias: &inputs[5],
            initial_hidden: &inputs[6],
            initial_cell: &inputs[7],
            keys: &inputs[8],
            values: &inputs[9],
            combine_weight: &inputs[10],
            combine_bias: &inputs[11],
            query_weight: &inputs[12],
            vector: &inputs[13],
        };
        let (mut output, weights) = reference::input_feeding(&self.kernel(&none), &tensors);
        output.extend(weights);
        output
    }
    fn forward(&self, level: Level, inputs: &[Vec<f32>], save: bool) -> Vec<f32> {
        let [mut output, weights, ..] = self.run(level, inputs, save);
        output.extend(weights);
        output
    }
    fn backward(&self, level: Level, inputs: &[Vec<f32>], d_output: &[f32]) -> Vec<Vec<f32>> {
        let [output, weights, gates, states, contexts, combined, queries] =
            &self.run(level, inputs, true);
        let mut gradients = poison_like(inputs);
        let [
            x_projection,
            feed,
            feed_weight,
            recurrent,
            layer_weight,
            layer_bias,
            initial_hidden,
            initial_cell,
            keys,
            values,
            combine_weight,
            combine_bias,
            query_weight,
            vector,
        ] = &mut gradients[..]
        else {
            panic!()
        };
        let into = InputFeedingGradients {
            x_projection,
            feed,
            feed_weight,
            recurrent,
            layer_weight,
            layer_bias,
            initial_hidden,
            initial_cell,
            keys,
            values,
            combine_weight,
            combine_bias,
            score: self.attention.map(|_| ScoreGradients {
                query_weight,
                vector,
            }),
        };
        let result = InputFeedingResult {
            output,
            weights,
            gates,
            states,
            contexts,
            combined,
            queries,
        };
        self.kernel(inputs)
            .backward_at(level, result, d_output, into)
            .unwrap();
        gradients
    }
}
