//! Implements [`Described`] for the operations.

use super::Described;
use crate::operation::Fields;
use crate::reference::Real;
use crate::sequence::{
    AdditiveDecoder, AdditiveFields, InputFeedingDecoder, InputFeedingFields, Layer, LayerFields,
    Score, reference,
};

/// The flags of one row out of `[steps, batch]`.
fn of_row<T: Copy>(all: &Option<Vec<T>>, batch: usize, row: usize) -> Option<Vec<T>> {
    all.as_ref()
        .map(|all| all.iter().copied().skip(row).step_by(batch).collect())
}

/// The flags of one row out of `[batch, sources]`.
fn sources_of(keep: &Option<Vec<bool>>, sources: usize, row: usize) -> Option<Vec<bool>> {
    keep.as_ref()
        .map(|keep| keep[row * sources..][..sources].to_vec())
}

impl Described for Layer {
    fn steps(&self) -> usize {
        self.steps
    }
    fn batch(&self) -> usize {
        self.batch
    }
    fn scale(&self, name: &str) -> f32 {
        if name == "recurrent" {
            2.0 / (self.hidden as f32).sqrt()
        } else {
            1.0
        }
    }
    fn alone(&self, row: usize) -> Self {
        Self {
            batch: 1,
            keep: of_row(&self.keep, self.batch, row),
            ..self.clone()
        }
    }
    fn define<T: Real>(&self, inputs: &[Vec<T>]) -> Vec<T> {
        reference::layer(self, &LayerFields::collect(inputs.iter().map(|x| &x[..])))
    }
}

impl Described for AdditiveDecoder {
    fn steps(&self) -> usize {
        self.layer.steps
    }
    fn batch(&self) -> usize {
        self.layer.batch
    }
    fn scale(&self, name: &str) -> f32 {
        match name {
            "query_weight" | "recurrent" => 2.0 / (self.layer.hidden as f32).sqrt(),
            "context_weight" => 2.0 / (self.value as f32).sqrt(),
            "score" => 3.0 / (self.attention as f32).sqrt(),
            _ => 1.0,
        }
    }
    fn alone(&self, row: usize) -> Self {
        Self {
            layer: self.layer.alone(row),
            keep_source: sources_of(&self.keep_source, self.sources, row),
            ..self.clone()
        }
    }
    fn define<T: Real>(&self, inputs: &[Vec<T>]) -> Vec<T> {
        let inputs = AdditiveFields::collect(inputs.iter().map(|x| &x[..]));
        let (mut output, weights) = reference::additive_decoder(self, &inputs);
        output.extend(weights);
        output
    }
}

impl Described for InputFeedingDecoder {
    fn steps(&self) -> usize {
        self.steps
    }
    fn batch(&self) -> usize {
        self.batch
    }
    fn scale(&self, name: &str) -> f32 {
        let hidden = self.hidden as f32;
        match (name, self.score) {
            ("feed_weight" | "recurrent" | "layer_weight" | "query_weight", _) => {
                2.0 / hidden.sqrt()
            }
            ("combine_weight", _) => 2.0 / (hidden + self.value as f32).sqrt(),
            ("score", Score::Additive { attention }) => 3.0 / (attention as f32).sqrt(),
            _ => 1.0,
        }
    }
    fn alone(&self, row: usize) -> Self {
        let masks = |all: &Vec<f32>| {
            let cells = all.chunks_exact(self.hidden).skip(row).step_by(self.batch);
            cells.flatten().copied().collect()
        };
        Self {
            batch: 1,
            dropout: self.dropout.as_ref().map(masks),
            windows: of_row(&self.windows, self.batch, row),
            keep_source: sources_of(&self.keep_source, self.sources, row),
            ..self.clone()
        }
    }
    fn define<T: Real>(&self, inputs: &[Vec<T>]) -> Vec<T> {
        let inputs = InputFeedingFields::collect(inputs.iter().map(|x| &x[..]));
        let (mut output, weights) = reference::input_feeding(self, &inputs);
        output.extend(weights);
        output
    }
}
