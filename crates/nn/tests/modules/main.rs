//! The modules of regard-nn, from outside.
//!
//! | module | what holds |
//! |---|---|
//! | [`attention`] | scores, normalisers, whole attentions: golden outputs and gradients |
//! | [`golden`] | outputs and gradients equal PyTorch's (`../golden/nn_golden.py`) |
//! | [`mask`] | every mask is its definition; combinations, pictures, errors |
//! | [`properties`] | masks, windows and weights behave for any numbers |
//! | [`recurrent`] | padding, stepping and dropout of sequences |
//! | [`weights`] | files of weights: exact, checked, safe against any bytes |

mod attention;
mod golden;
mod mask;
mod properties;
mod recurrent;
mod support;
mod weights;
