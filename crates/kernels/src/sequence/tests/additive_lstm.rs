//! GNMT's bottom decoder layer as the checks see it.

use super::operations::{poison, poison_like};
use super::{Described, Rows};
use crate::reference::Real;
use crate::sequence::additive_lstm::{
    AdditiveLstmDecoder, AdditiveLstmGradients, AdditiveLstmResult, AdditiveLstmSaved,
};
use crate::sequence::reference;
use crate::simd::Level;

#[derive(Debug, Clone)]
pub(super) struct AdditiveLstmCase {
    pub(super) steps: usize,
    pub(super) batch: usize,
    pub(super) sources: usize,
    pub(super) hidden: usize,
    pub(super) attention: usize,
    pub(super) value: usize,
    pub(super) keep_source: Option<Vec<bool>>,
}

impl AdditiveLstmCase {
    fn kernel<'a>(&'a self, inputs: &'a [Vec<f32>]) -> AdditiveLstmDecoder<'a> {
        AdditiveLstmDecoder {
            steps: self.steps,
            batch: self.batch,
            sources: self.sources,
            hidden: self.hidden,
            attention: self.attention,
            value: self.value,
            x_projection: &inputs[0],
            initial_hidden: &inputs[1],
            initial_cell: &inputs[2],
            keys: &inputs[3],
            values: &inputs[4],
            query_weight: &inputs[5],
            score: &inputs[6],
            recurrent: &inputs[7],
            context_weight: &inputs[8],
            keep_source: self.keep_source.as_deref(),
        }
    }

    /// Output, weights, gates, states, queries.
    fn run(&self, level: Level, inputs: &[Vec<f32>], save: bool) -> [Vec<f32>; 5] {
        let cells = self.steps * self.batch;
        let mut output = poison(self.tracked());
        let mut weights = poison(cells * self.sources);
        let mut gates = poison(cells * 4 * self.hidden);
        let mut states = poison(cells * 2 * self.hidden);
        let mut queries = poison(cells * self.attention);
        let saved = save.then_some(AdditiveLstmSaved {
            gates: &mut gates,
            states: &mut states,
            queries: &mut queries,
        });
        self.kernel(inputs)
            .forward_at(level, &mut output, &mut weights, saved)
            .unwrap();
        [output, weights, gates, states, queries]
    }
}

impl Described for AdditiveLstmCase {
    fn inputs(&self) -> Vec<(&'static str, usize, Rows)> {
        let (n, a, d) = (self.hidden, self.attention, self.value);
        let (rows, cells) = (self.batch, self.steps * self.batch);
        vec![
            ("x_projection", cells * 4 * n, Rows::TimeMajor),
            ("initial_hidden", rows * n, Rows::First),
            ("initial_cell", rows * n, Rows::First),
            ("keys", rows * self.sources * a, Rows::First),
            ("values", rows * self.sources * d, Rows::First),
            ("query_weight", n * a, Rows::None),
            ("score", a, Rows::None),
            ("recurrent", n * 4 * n, Rows::None),
            ("context_weight", d * 4 * n, Rows::None),
        ]
    }
    fn scale(&self, name: &str) -> f32 {
        match name {
            "query_weight" | "recurrent" => 2.0 / (self.hidden as f32).sqrt(),
            "context_weight" => 2.0 / (self.value as f32).sqrt(),
            "score" => 3.0 / (self.attention as f32).sqrt(),
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
        Self {
            batch: 1,
            keep_source: self.keep_source.as_ref().map(of_row),
            ..self.clone()
        }
    }
    fn tracked(&self) -> usize {
        self.steps * self.batch * (self.hidden + self.value)
    }
    fn define<T: Real>(&self, inputs: &[Vec<T>]) -> Vec<T> {
        let none = vec![Vec::new(); 9];
        let tensors = reference::AdditiveLstmTensors {
            x_projection: &inputs[0],
            initial_hidden: &inputs[1],
            initial_cell: &inputs[2],
            keys: &inputs[3],
            values: &inputs[4],
            query_weight: &inputs[5],
            score: &inputs[6],
            recurrent: &inputs[7],
            context_weight: &inputs[8],
        };
        let (mut output, weights) = reference::additive_lstm(&self.kernel(&none), &tensors);
        output.extend(weights);
        output
    }
    fn forward(&self, level: Level, inputs: &[Vec<f32>], save: bool) -> Vec<f32> {
        let [mut output, weights, ..] = self.run(level, inputs, save);
        output.extend(weights);
        output
    }
    fn backward(&self, level: Level, inputs: &[Vec<f32>], d_output: &[f32]) -> Vec<Vec<f32>> {
        let [output, weights, gates, states, queries] = &self.run(level, inputs, true);
        let mut gradients = poison_like(inputs);
        let [
            x_projection,
            initial_hidden,
            initial_cell,
            keys,
            values,
            query_weight,
            score,
            recurrent,
            context_weight,
        ] = &mut gradients[..]
        else {
            panic!()
        };
        let into = AdditiveLstmGradients {
            x_projection,
            initial_hidden,
            initial_cell,
            keys,
            values,
            query_weight,
            score,
            recurrent,
            context_weight,
        };
        let result = AdditiveLstmResult {
            output,
            weights,
            gates,
            states,
            queries,
        };
        self.kernel(inputs)
            .backward_at(level, result, d_output, into)
            .unwrap();
        gradients
    }
}
