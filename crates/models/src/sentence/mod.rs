//! Classifiers of sentences: word vectors, an encoder, one pooled vector, a small network.
//!
//! ```text
//! h_1 .. h_T = encoder(E w_1 .. E w_T)
//! s          = mean of the h_t, or the hops of self-attention (Lin et al. 2017)
//! p          = softmax(W ReLU(U s + b) + c)
//! ```
//!
//! | configuration | encoder | what it can show |
//! |---|---|---|
//! | [`LstmnConfig`] | a tape searched by attention (Cheng et al. 2016) | which earlier words each word was linked to |
//! | [`LstmConfig`] | an LSTM, in one direction or both | nothing: the baseline |
//! | [`TransformerClassifierConfig`] | self-attention in every layer (Devlin et al. 2018) | what every word looked at |
//! | [`SelfAttentiveConfig`] | an LSTM in both directions, pooled by attention (Lin et al. 2017) | which words the label was taken from |
//!
//! ```
//! use burn::tensor::Device;
//! use regard_models::{
//!     Classifier, ModelConfig, ClassifierSizes, SourceBatch, Vocabulary, sentence::LstmnConfig,
//! };
//! use regard_nn::dropout::DropoutRng;
//!
//! let (device, vocabulary) = (Device::flex(), Vocabulary::new(16));
//! let sizes = ClassifierSizes { vocabulary, classes: 2 };
//! let classifier = LstmnConfig::tiny().init(&sizes, 1, &device)?;
//! let batch = SourceBatch::new(&[vec![5, 6, 7], vec![8]], &vocabulary, &device);
//! let classified = classifier.forward(&batch, &mut DropoutRng::none());
//! assert_eq!(classified.logits.dims(), [2, 2]); // [batch, classes]
//! assert_eq!(classified.maps[0].weights.dims(), [2, 1, 4, 4]); // [batch, heads, queries, keys]
//! # Ok::<(), regard_models::ModelError>(())
//! ```

mod encoders;
mod lstm;
mod lstmn;
mod model;
mod self_attentive;
mod transformer;

pub use encoders::{LstmEncoder, SelfAttentiveEncoder, SentenceEncoder};
pub use lstm::LstmConfig;
pub use lstmn::LstmnConfig;
pub use model::{SentenceClassifier, SentenceDropout};
pub use self_attentive::SelfAttentiveConfig;
pub use transformer::{PooledStates, TransformerClassifier, TransformerClassifierConfig};
