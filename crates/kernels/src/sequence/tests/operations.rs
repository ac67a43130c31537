//! The operations as the checks see them.

use super::{Described, Rows};
use crate::reference::Real;
use crate::sequence::additive_gru::{
    AdditiveGruDecoder, AdditiveGruGradients, AdditiveGruResult, AdditiveGruSaved,
};
use crate::sequence::gru::{Convention, GruGradients, GruSequence};
use crate::sequence::lstm::{LstmGradients, LstmSequence};
use crate::sequence::reference;
use crate::simd::Level;

/// NaN everywhere: whatever is not overwritten shows.
pub(super) fn poison(length: usize) -> Vec<f32> {
    vec![f32::NAN; length]
}

pub(super) fn poison_like(inputs: &[Vec<f32>]) -> Vec<Vec<f32>> {
    inputs.iter().map(|x| poison(x.len())).collect()
}

/// The mask of one row out of `[steps, batch]`.
fn keep_of(keep: &Option<Vec<bool>>, batch: usize, row: usize) -> Option<Vec<bool>> {
    keep.as_ref()
        .map(|keep| keep.iter().copied().skip(row).step_by(batch).collect())
}

#[derive(Debug, Clone)]
pub(super) struct GruCase {
    pub(super) steps: usize,
    pub(super) batch: usize,
    pub(super) hidden: usize,
    pub(super) convention: Convention,
    pub(super) reverse: bool,
    pub(super) keep: Option<Vec<bool>>,
}

impl GruCase {
    fn kernel<'a>(&'a self, inputs: &'a [Vec<f32>]) -> GruSequence<'a> {
        GruSequence {
            steps: self.steps,
            batch: self.batch,
            hidden: self.hidden,
            x_projection: &inputs[0],
            recurrent: &inputs[1],
            hidden_bias: (self.convention == Convention::PyTorch).then_some(&inputs[2]),
            initial: &inputs[3],
            keep: self.keep.as_deref(),
            reverse: self.reverse,
            convention: self.convention,
        }
    }
}

impl Described for GruCase {
    fn inputs(&self) -> Vec<(&'static str, usize, Rows)> {
        let (cells, n) = (self.steps * self.batch, self.hidden);
        vec![
            ("x_projection", cells * 3 * n, Rows::TimeMajor),
            ("recurrent", n * 3 * n, Rows::None),
            ("hidden_bias", 3 * n, Rows::None),
            ("initial", self.batch * n, Rows::First),
        ]
    }
    fn scale(&self, name: &str) -> f32 {
        match name {
            // Cho's unit has no hidden bias: the definition then adds zeros.
            "hidden_bias" if self.convention == Convention::Cho => 0.0,
            "recurrent" => 2.0 / (self.hidden as f32).sqrt(),
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
        Self {
            batch: 1,
            keep: keep_of(&self.keep, self.batch, row),
            ..self.clone()
        }
    }
    fn tracked(&self) -> usize {
        self.steps * self.batch * self.hidden
    }
    fn define<T: Real>(&self, inputs: &[Vec<T>]) -> Vec<T> {
        let none = vec![Vec::new(); 4];
        reference::gru(
            &self.kernel(&none),
            &inputs[0],
            &inputs[1],
            &inputs[2],
            &inputs[3],
        )
    }
    fn forward(&self, level: Level, inputs: &[Vec<f32>], save: bool) -> Vec<f32> {
        let kernel = self.kernel(inputs);
        let (mut states, mut saved) = (poison(self.tracked()), poison(kernel.saved_len()));
        kernel
            .forward_at(level, &mut states, save.then_some(&mut saved))
            .unwrap();
        states
    }
    fn backward(&self, level: Level, inputs: &[Vec<f32>], d_output: &[f32]) -> Vec<Vec<f32>> {
        let kernel = self.kernel(inputs);
        let (mut states, mut saved) = (poison(self.tracked()), poison(kernel.saved_len()));
        kernel
            .forward_at(level, &mut states, Some(&mut saved))
            .unwrap();
        let mut gradients = poison_like(inputs);
        let [x_projection, recurrent, bias, initial] = &mut gradients[..] else {
            panic!()
        };
        let hidden_bias = kernel.hidden_bias.is_some().then_some(&mut bias[..]);
        let into = GruGradients {
            x_projection,
            recurrent,
            hidden_bias,
            initial,
        };
        kernel
            .backward_at(level, &states, &saved, d_output, into)
            .unwrap();
        if kernel.hidden_bias.is_none() {
            // Cho's definition never reads the bias.
            gradients[2].fill(0.0);
        }
        gradients
    }
}

#[derive(Debug, Clone)]
pub(super) struct LstmCase {
    pub(super) steps: usize,
    pub(super) batch: usize,
    pub(super) hidden: usize,
    pub(super) reverse: bool,
    pub(super) keep: Option<Vec<bool>>,
}

impl LstmCase {
    fn kernel<'a>(&'a self, inputs: &'a [Vec<f32>]) -> LstmSequence<'a> {
        LstmSequence {
            steps: self.steps,
            batch: self.batch,
            hidden: self.hidden,
            x_projection: &inputs[0],
            recurrent: &inputs[1],
            initial_hidden: &inputs[2],
            initial_cell: &inputs[3],
            keep: self.keep.as_deref(),
            reverse: self.reverse,
        }
    }
}

impl Described for LstmCase {
    fn inputs(&self) -> Vec<(&'static str, usize, Rows)> {
        let (cells, n) = (self.steps * self.batch, self.hidden);
        vec![
            ("x_projection", cells * 4 * n, Rows::TimeMajor),
            ("recurrent", n * 4 * n, Rows::None),
            ("initial_hidden", self.batch * n, Rows::First),
            ("initial_cell", self.batch * n, Rows::First),
        ]
    }
    fn scale(&self, name: &str) -> f32 {
        if name == "recurrent" {
            2.0 / (self.hidden as f32).sqrt()
        } else {
            1.0
        }
    }
    fn steps(&self) -> usize {
        self.steps
    }
    fn batch(&self) -> usize {
        self.batch
    }
    fn alone(&self, row: usize) -> Self {
        Self {
            batch: 1,
            keep: keep_of(&self.keep, self.batch, row),
            ..self.clone()
        }
    }
    fn tracked(&self) -> usize {
        2 * self.steps * self.batch * self.hidden
    }
    fn define<T: Real>(&self, inputs: &[Vec<T>]) -> Vec<T> {
        let none = vec![Vec::new(); 4];
        reference::lstm(
            &self.kernel(&none),
            &inputs[0],
            &inputs[1],
            &inputs[2],
            &inputs[3],
        )
    }
    fn forward(&self, level: Level, inputs: &[Vec<f32>], save: bool) -> Vec<f32> {
        let kernel = self.kernel(inputs);
        let (mut states, mut saved) = (poison(self.tracked()), poison(kernel.saved_len()));
        kernel
            .forward_at(level, &mut states, save.then_some(&mut saved))
            .unwrap();
        states
    }
    fn backward(&self, level: Level, inputs: &[Vec<f32>], d_output: &[f32]) -> Vec<Vec<f32>> {
        let kernel = self.kernel(inputs);
        let (mut states, mut saved) = (poison(self.tracked()), poison(kernel.saved_len()));
        kernel
            .forward_at(level, &mut states, Some(&mut saved))
            .unwrap();
        let mut gradients = poison_like(inputs);
        let [x_projection, recurrent, initial_hidden, initial_cell] = &mut gradients[..] else {
            panic!()
        };
        let into = LstmGradients {
            x_projection,
            recurrent,
            initial_hidden,
            initial_cell,
        };
        kernel
            .backward_at(level, &states, &saved, d_output, into)
            .unwrap();
        gradients
    }
}

#[derive(Debug, Clone)]
pub(super) struct AdditiveGruCase {
    pub(super) steps: usize,
    pub(super) batch: usize,
    pub(super) sources: usize,
    pub(super) hidden: usize,
    pub(super) attention: usize,
    pub(super) value: usize,
    pub(super) keep: Option<Vec<bool>>,
    pub(super) keep_source: Option<Vec<bool>>,
}

impl AdditiveGruCase {
    fn kernel<'a>(&'a self, inputs: &'a [Vec<f32>]) -> AdditiveGruDecoder<'a> {
        AdditiveGruDecoder {
            steps: self.steps,
            batch: self.batch,
            sources: self.sources,
            hidden: self.hidden,
            attention: self.attention,
            value: self.value,
            x_projection: &inputs[0],
            initial: &inputs[1],
            keys: &inputs[2],
            values: &inputs[3],
            query_weight: &inputs[4],
            score: &inputs[5],
            recurrent: &inputs[6],
            context_weight: &inputs[7],
            keep_source: self.keep_source.as_deref(),
            keep: self.keep.as_deref(),
        }
    }

    /// Output, weights, gates, queries.
    fn run(&self, level: Level, inputs: &[Vec<f32>], save: bool) -> [Vec<f32>; 4] {
        let cells = self.steps * self.batch;
        let mut output = poison(self.tracked());
        let mut weights = poison(cells * self.sources);
        let (mut gates, mut queries) = (
            poison(cells * 3 * self.hidden),
            poison(cells * self.attention),
        );
        let saved = save.then_some(AdditiveGruSaved {
            gates: &mut gates,
            queries: &mut queries,
        });
        self.kernel(inputs)
            .forward_at(level, &mut output, &mut weights, saved)
            .unwrap();
        [output, weights, gates, queries]
    }
}

impl Described for AdditiveGruCase {
    fn inputs(&self) -> Vec<(&'static str, usize, Rows)> {
        let (n, a, d) = (self.hidden, self.attention, self.value);
        vec![
            (
                "x_projection",
                self.steps * self.batch * 3 * n,
                Rows::TimeMajor,
            ),
            ("initial", self.batch * n, Rows::First),
            ("keys", self.batch * self.sources * a, Rows::First),
            ("values", self.batch * self.sources * d, Rows::First),
            ("query_weight", n * a, Rows::None),
            ("score", a, Rows::None),
            ("recurrent", n * 3 * n, Rows::None),
            ("context_weight", d * 3 * n, Rows::None),
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
            keep: keep_of(&self.keep, self.batch, row),
            keep_source: self.keep_source.as_ref().map(of_row),
            ..self.clone()
        }
    }
    fn tracked(&self) -> usize {
        self.steps * self.batch * (self.hidden + self.value)
    }
    fn define<T: Real>(&self, inputs: &[Vec<T>]) -> Vec<T> {
        let none = vec![Vec::new(); 8];
        let tensors = reference::AdditiveGruTensors {
            x_projection: &inputs[0],
            initial: &inputs[1],
            keys: &inputs[2],
            values: &inputs[3],
            query_weight: &inputs[4],
            score: &inputs[5],
            recurrent: &inputs[6],
            context_weight: &inputs[7],
        };
        let (mut output, weights) = reference::additive_gru(&self.kernel(&none), &tensors);
        output.extend(weights);
        output
    }
    fn forward(&self, level: Level, inputs: &[Vec<f32>], save: bool) -> Vec<f32> {
        let [mut output, weights, ..] = self.run(level, inputs, save);
        output.extend(weights);
        output
    }
    fn backward(&self, level: Level, inputs: &[Vec<f32>], d_output: &[f32]) -> Vec<Vec<f32>> {
        let [output, weights, gates, queries] = &self.run(level, inputs, true);
        let mut gradients = poison_like(inputs);
        let [
            x_projection,
            initial,
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
        let into = AdditiveGruGradients {
            x_projection,
            initial,
            keys,
            values,
            query_weight,
            score,
            recurrent,
            context_weight,
        };
        let result = AdditiveGruResult {
            output,
            weights,
            gates,
            queries,
        };
        self.kernel(inputs)
            .backward_at(level, result, d_output, into)
            .unwrap();
        gradients
    }
}
