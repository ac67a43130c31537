//! The modules of regard-nn, from outside.
//!
//! | module | what holds |
//! |---|---|
//! | [`golden`] | outputs and gradients equal PyTorch's (`../golden/nn_golden.py`) |
//! | [`properties`] | masks, windows and weights behave for any numbers |
//! | [`recurrent`] | padding, stepping and dropout of sequences |
//! | [`vision`] | attention in vision |
//! | [`weights`] | files of weights: exact, checked, safe against any bytes |

mod golden;
mod properties;
mod recurrent;
mod support;
mod vision;
mod weights;
