//! How the states of a text's tokens become one vector, and how near two vectors are.

use std::path::Path;

use super::{config::Config, encoder::TextEncoder, error::PretrainedError, json};

/// How the states of a text's tokens become one vector, as sentence-transformers has it. A model that makes a vector itself
/// ([`TextEncoder::vector`]) is not pooled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pooling {
    first: bool,
    normalized: bool,
}

impl Pooling {
    /// Of a folder: `1_Pooling/config.json` (the mean, or the state of the first token); the mean where there is no such file.
    /// `modules.json` says whether vectors have length 1; without this file they have.
    ///
    /// # Errors
    /// [`PretrainedError`] for another way of pooling, or files that cannot be read.
    pub fn open(folder: impl AsRef<Path>) -> Result<Self, PretrainedError> {
        let folder = folder.as_ref();
        let (file, modules) = (
            folder.join("1_Pooling/config.json"),
            folder.join("modules.json"),
        );
        let mut pooling = Self {
            first: false,
            normalized: true,
        };
        if file.exists() {
            let config = Config::read_file(&file)?;
            pooling.first = config.flag_or("pooling_mode_cls_token", false)?;
            let mean = config.flag_or("pooling_mode_mean_tokens", !pooling.first)?;
            if mean == pooling.first {
                let expected =
                    "either the mean or the first token; other ways of pooling are not supported";
                return Err(config.refuse("pooling_mode_mean_tokens", expected));
            }
        }
        if modules.exists() {
            let list = json::json(&modules, json::LARGEST_LIST)?;
            let list: serde_json::Value = list;
            let kinds = list.as_array().into_iter().flatten();
            pooling.normalized = kinds
                .filter_map(|module| module["type"].as_str())
                .any(|kind| kind.ends_with("Normalize"));
        }
        Ok(pooling)
    }

    /// The vector of a text from its tokens and their states `[tokens, model]`.
    pub fn vector(&self, model: &TextEncoder, ids: &[u32], states: &[f32]) -> Vec<f32> {
        let vector = model.vector(ids, states);
        let mut vector = vector.unwrap_or_else(|| self.pooled(model.size(), states));
        if self.normalized {
            normalize(&mut vector);
        }
        vector
    }

    fn pooled(&self, size: usize, states: &[f32]) -> Vec<f32> {
        let mut vector = vec![0.0f32; size];
        let used = if self.first {
            &states[..size.min(states.len())]
        } else {
            states
        };
        let count = used.len() / size;
        for state in used.chunks_exact(size) {
            vector.iter_mut().zip(state).for_each(|(sum, x)| *sum += x);
        }
        let factor = 1.0 / count.max(1) as f32;
        vector.iter_mut().for_each(|x| *x *= factor);
        vector
    }
}

/// Gives a vector the length 1; 0 stays as it is.
pub fn normalize(vector: &mut [f32]) {
    let length = vector.iter().map(|x| x * x).sum::<f32>().sqrt();
    let factor = 1.0 / length.max(1e-12);
    vector.iter_mut().for_each(|x| *x *= factor);
}

/// The cosine of the angle between two vectors of one length; 0 if one of them is 0.
///
/// ```
/// use regard_models::pretrained::cosine;
///
/// assert_eq!(cosine(&[3.0, 4.0], &[6.0, 8.0]), 1.0);
/// assert_eq!(cosine(&[1.0, 0.0], &[0.0, 2.0]), 0.0);
/// ```
pub fn cosine(a: &[f32], b: &[f32]) -> f64 {
    let dot = |a: &[f32], b: &[f32]| -> f64 {
        let products = a.iter().zip(b).map(|(&a, &b)| f64::from(a) * f64::from(b));
        products.sum()
    };
    let lengths = (dot(a, a) * dot(b, b)).sqrt();
    match lengths > 0.0 {
        true => (dot(a, b) / lengths).clamp(-1.0, 1.0),
        false => 0.0,
    }
}
