//! Attention inside and around recurrent cells, from outside.
//!
//! | module | what holds |
//! |---|---|
//! | [`golden`] | outputs and gradients equal PyTorch's (`../golden/recurrent_golden.py`) |
//! | [`properties`] | causality, padding, stepping, finite differences, refusals |

mod golden;
mod properties;
#[path = "../modules/support.rs"]
#[allow(dead_code, reason = "shared with the tests of the other modules")]
mod support;
