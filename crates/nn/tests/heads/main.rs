//! Heads, positions and caches of regard-nn, from outside.
//!
//! | module | what holds |
//! |---|---|
//! | [`cache`] | keys and values come out as they went in |
//! | [`changed`] | heads that are changed equal heads with other weights; one query with its keys |
//! | [`decoding`] | steps without a gradient, on caches of every storage, have the plain path's numbers |
//! | [`golden`] | multi-head attention equals PyTorch's, Keras' and the published code (`../golden/heads_golden.py`) |
//! | [`gradients`] | autodiff of whole layers equals finite differences |
//! | [`plans`] | which heads use the operation with projections, and that it changes no number beyond rounding |
//! | [`positions`] | positions equal the published code and depend on distances alone |
//! | [`properties`] | multi-head attention behaves for any numbers: caches, order, groups, observation |
//! | [`refusals`] | bad configurations and input give errors that name the field |
//! | [`rolling`] | a cache changes no number, whatever the masks |

mod cache;
mod changed;
mod decoding;
mod finite_differences;
mod golden;
mod gradients;
mod mechanisms;
mod plans;
mod positions;
mod properties;
mod refusals;
mod rolling;
#[path = "../modules/support.rs"]
#[allow(dead_code, reason = "shared with the tests of the other modules")]
mod support;
mod transformer;
