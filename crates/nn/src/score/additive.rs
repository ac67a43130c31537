//! Additive score: `score(s, h) = vᵀ tanh(W s + U h + b)` (Bahdanau 2014, App. A.1.2).
//!
//! A small network with one hidden layer computes how well a query and an annotation match. Luong's "concat",
//! `vᵀ tanh(W_a [s; h])`, is the same with both matrices side by side: [`Additive::concat`]. `U h` is computed once
//! per source.
//!
//! [`WeightNormAdditive`] writes `v` as a direction and a length, `g · v/‖v‖` (Salimans & Kingma 2016; TensorFlow's
//! "normed Bahdanau"): the length is trained separately, which makes large learning rates more stable.
//!
//! Use it in recurrent encoder-decoders, or where query and key differ in kind. Not for long self-attention: each
//! pair costs `size` tanh where a dot score costs `d` multiplications.
//!
//! Cost: `Lq · Lk · size` tanh. The plain form holds `[batch, heads, queries, keys, size]`; the fused one never does.
//!
//! ```
//! use burn::tensor::{Device, Tensor};
//! use regard_nn::{initialize::Initializer, score::Additive};
//!
//! let device = Device::flex();
//! let score = Additive::new(4, 6, 8, &mut Initializer::new(1, &device));
//! let keys = score.keys(Tensor::<4>::ones([2, 1, 5, 6], &device)); // [batch, heads, keys, attention size]
//! assert_eq!(score.forward(Tensor::ones([2, 1, 3, 4], &device), keys).dims(), [2, 1, 3, 5]);
//! ```

use burn::{
    module::{Module, Param},
    nn::Linear,
    tensor::{DType, Tensor},
};

use super::{KernelForm, ScoreFunction, Sizes};
use crate::{
    attention::AttentionError, bridge::apply, initialize::Initializer, normalize::Normalize,
    record::report,
};

/// `vᵀ tanh(W s + U h + b)`.
#[derive(Module, Debug)]
pub struct Additive {
    /// `W`, `[query size, attention size]`, no bias.
    pub query: Linear,
    /// `U`, `[annotation size, attention size]`, with the one bias inside the tanh.
    pub key: Linear,
    /// `v`, `[attention size]`.
    pub vector: Param<Tensor<1>>,
}

impl Additive {
    /// A score between queries of `query_size` and annotations of `annotation_size`, compared in
    /// `attention_size` dimensions.
    pub fn new(
        query_size: usize,
        annotation_size: usize,
        attention_size: usize,
        initializer: &mut Initializer,
    ) -> Self {
        let bound = 1.0 / (attention_size.max(1) as f32).sqrt();
        Self {
            query: initializer.linear(query_size, attention_size, false),
            key: initializer.linear(annotation_size, attention_size, true),
            vector: initializer.uniform([attention_size], bound),
        }
    }

    /// The same, initialised as Bahdanau 2014, App. B: `W, U ~ N(0, 0.001²)`, `v = 0`.
    pub fn as_in_paper(
        query_size: usize,
        annotation_size: usize,
        attention_size: usize,
        initializer: &mut Initializer,
    ) -> Self {
        Self {
            query: initializer.normal_linear(query_size, attention_size, false, 0.001),
            key: initializer.normal_linear(annotation_size, attention_size, true, 0.001),
            vector: initializer.zeros([attention_size]),
        }
    }

    /// Luong's concat from its one matrix: `weight [query size + annotation size, attention size]`, rows in the
    /// order `[s; h]`, and `vector [attention size]`. No bias.
    ///
    /// # Errors
    /// When the sizes do not fit together.
    pub fn concat(
        query_size: usize,
        weight: Tensor<2>,
        vector: Tensor<1>,
    ) -> Result<Self, AttentionError> {
        let [rows, size] = weight.dims();
        if rows <= query_size {
            return Err(AttentionError::shape(
                "weight",
                &[rows, size],
                format!("more than {query_size} rows"),
                "rows are query size + annotation size",
            ));
        }
        if vector.dims() != [size] {
            return Err(AttentionError::shape(
                "vector",
                &vector.dims(),
                format!("[{size}]"),
                "one entry a column of the weight",
            ));
        }
        let linear = |weight| Linear {
            weight: Param::from_tensor(weight),
            bias: None,
        };
        Ok(Self {
            query: linear(weight.clone().narrow(0, 0, query_size)),
            key: linear(weight.narrow(0, query_size, rows - query_size)),
            vector: Param::from_tensor(vector),
        })
    }

    /// `U h + b` for every annotation: `[.., annotation size]` -> `[.., attention size]`.
    pub fn keys<const D: usize>(&self, annotations: Tensor<D>) -> Tensor<D> {
        apply(&self.key, annotations)
    }

    /// `query [batch, heads, queries, query size]`, prepared `keys` -> `[batch, heads, queries, keys]`.
    pub fn forward(&self, query: Tensor<4>, keys: Tensor<4>) -> Tensor<4> {
        compare(apply(&self.query, query), keys, self.vector.val())
    }
}

/// `g · v/‖v‖ · tanh(W s + U h + b)`.
#[derive(Module, Debug)]
pub struct WeightNormAdditive {
    /// `W`, `[query size, attention size]`, no bias.
    pub query: Linear,
    /// `U`, `[annotation size, attention size]`, with the one bias inside the tanh, 0 at the start.
    pub key: Linear,
    /// `v`, `[attention size]`: the direction.
    pub vector: Param<Tensor<1>>,
    /// `g`, `[1]`: the length, `1/√(attention size)` at the start.
    pub gain: Param<Tensor<1>>,
}

impl WeightNormAdditive {
    /// A score between queries of `query_size` and annotations of `annotation_size`, compared in
    /// `attention_size` dimensions.
    pub fn new(
        query_size: usize,
        annotation_size: usize,
        attention_size: usize,
        initializer: &mut Initializer,
    ) -> Self {
        let bound = 1.0 / (attention_size.max(1) as f32).sqrt();
        let key = Linear {
            bias: Some(initializer.zeros([attention_size])),
            ..initializer.linear(annotation_size, attention_size, false)
        };
        Self {
            query: initializer.linear(query_size, attention_size, false),
            key,
            vector: initializer.uniform([attention_size], bound),
            gain: initializer.constant([1], bound),
        }
    }

    /// `g · v/‖v‖`, `[attention size]`.
    pub fn score_vector(&self) -> Tensor<1> {
        let vector = self.vector.val();
        let length = vector.clone().powi_scalar(2).sum().sqrt();
        vector * (self.gain.val() / length)
    }

    /// `U h + b` for every annotation: `[.., annotation size]` -> `[.., attention size]`.
    pub fn keys<const D: usize>(&self, annotations: Tensor<D>) -> Tensor<D> {
        apply(&self.key, annotations)
    }

    /// `query [batch, heads, queries, query size]`, prepared `keys` -> `[batch, heads, queries, keys]`.
    pub fn forward(&self, query: Tensor<4>, keys: Tensor<4>) -> Tensor<4> {
        compare(apply(&self.query, query), keys, self.score_vector())
    }
}

/// `vᵀ tanh(q + k)` of projected queries and keys.
fn compare(query: Tensor<4>, keys: Tensor<4>, vector: Tensor<1>) -> Tensor<4> {
    report("projected queries", || query.clone());
    let query = query.unsqueeze_dim::<5>(3); // [batch, heads, queries, 1, size]
    let keys = keys.unsqueeze_dim::<5>(2); // [batch, heads, 1, keys, size]
    let vector = vector.unsqueeze_dims::<5>(&[0, 1, 2, 3]);
    let hidden = (query + keys).tanh(); // [batch, heads, queries, keys, size]
    report("hidden", || hidden.clone().flatten::<4>(2, 3));
    (hidden * vector).sum_dim(4).squeeze_dim(4)
}

/// The sizes of `W` and `U`.
fn sizes(query: &Linear, key: &Linear) -> Sizes {
    let [annotation, size] = key.weight.dims();
    Sizes::Made {
        query: query.weight.dims()[0],
        annotation,
        key: size,
    }
}

/// Checks that the hidden layer has units.
fn check(vector: &Param<Tensor<1>>) -> Result<(), AttentionError> {
    match vector.dims() {
        [0] => Err(AttentionError::value(
            "attention size",
            0,
            "at least 1",
            "queries and keys are compared in at least one dimension",
        )),
        _ => Ok(()),
    }
}

impl ScoreFunction for Additive {
    fn name(&self) -> &'static str {
        "additive"
    }

    fn sizes(&self) -> Sizes {
        sizes(&self.query, &self.key)
    }

    fn prepared_keys(&self, annotations: &Tensor<4>) -> Option<Tensor<4>> {
        Some(self.keys(annotations.clone()))
    }

    fn score(&self, query: Tensor<4>, keys: Tensor<4>) -> Tensor<4> {
        self.forward(query, keys)
    }

    fn check(&self, _normalize: &Normalize, _dtype: DType) -> Result<(), AttentionError> {
        check(&self.vector)
    }

    fn form(&self, _query_size: usize) -> Option<KernelForm> {
        Some(KernelForm::Additive)
    }

    fn prepared_query(&self, query: Tensor<4>) -> Tensor<4> {
        apply(&self.query, query)
    }

    fn vector(&self) -> Option<Tensor<1>> {
        Some(self.vector.val())
    }
}

impl ScoreFunction for WeightNormAdditive {
    fn name(&self) -> &'static str {
        "weight-normed additive"
    }

    fn sizes(&self) -> Sizes {
        sizes(&self.query, &self.key)
    }

    fn prepared_keys(&self, annotations: &Tensor<4>) -> Option<Tensor<4>> {
        Some(self.keys(annotations.clone()))
    }

    fn score(&self, query: Tensor<4>, keys: Tensor<4>) -> Tensor<4> {
        self.forward(query, keys)
    }

    fn check(&self, _normalize: &Normalize, _dtype: DType) -> Result<(), AttentionError> {
        check(&self.vector)
    }

    fn form(&self, _query_size: usize) -> Option<KernelForm> {
        Some(KernelForm::Additive)
    }

    fn prepared_query(&self, query: Tensor<4>) -> Tensor<4> {
        apply(&self.query, query)
    }

    fn vector(&self) -> Option<Tensor<1>> {
        Some(self.score_vector())
    }
}
