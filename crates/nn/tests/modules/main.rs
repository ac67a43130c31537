//! The modules of regard-nn, from outside.
//!
//! | module | what holds |
//! |---|---|
//! | [`added_positions`] | positions of queries and keys alone, decoders of all positions at once |
//! | [`attention`] | scores, normalisers, whole attentions: golden outputs and gradients |
//! | [`attention_errors`] | what attention refuses, and how it says so |
//! | [`attention_gradients`] | finite differences in f64 of every score and normaliser |
//! | [`attention_paths`] | fused against plain, every combination; what no kernel serves |
//! | [`attention_properties`] | what holds for any attention; known mistakes of other libraries |
//! | [`attention_unseen`] | hidden positions have no influence, by mask or by a bias of -∞ |
//! | [`empty`] | empty inputs give empty outputs, and gradients of 0 |
//! | [`golden`] | outputs and gradients equal PyTorch's (`../golden/nn_golden.py`) |
//! | [`half_precision`] | normalisers, entropies, norms and distances are those of f32 |
//! | [`hard_attention`] | draws, estimators, REINFORCE against enumeration |
//! | [`keras`] | Keras' `Attention` and `AdditiveAttention` (`../golden/keras_golden.py`) |
//! | [`mask`] | every mask is its definition; combinations, pictures, errors |
//! | [`matmul`] | products of matrices in batches, however they lie |
//! | [`plan`] | which kernel serves a call, and every reason why none does |
//! | [`properties`] | masks, windows and weights behave for any numbers |
//! | [`record`] | reporting changes nothing, and reports equal the results |
//! | [`recurrent`] | padding, stepping and dropout of sequences |
//! | [`vision`] | attention in vision |
//! | [`weights`] | files of weights: exact, checked, safe against any bytes |
//! | [`your_own`] | a score, a normaliser and a mask of another crate |

mod added_positions;
mod attention;
mod attention_errors;
mod attention_gradients;
mod attention_paths;
mod attention_properties;
mod attention_unseen;
mod both_paths;
mod early_gradients;
mod empty;
mod golden;
mod half_precision;
mod hard_attention;
mod keras;
mod mask;
mod matmul;
mod mechanisms;
mod plan;
mod properties;
mod record;
mod recurrent;
mod support;
mod vision;
mod weights;
mod your_own;
