//! Heads, positions and caches of regard-nn, from outside.
//!
//! | module | what holds |
//! |---|---|
//! | [`cache`] | keys and values come out as they went in |
//! | [`golden`] | multi-head attention equals PyTorch's and the published code (`../golden/heads_golden.py`) |
//! | [`positions`] | positions equal the published code and know distances alone |
//! | [`properties`] | multi-head attention behaves for any numbers: caches, order, groups, gradients |

mod cache;
mod finite_differences;
mod golden;
mod positions;
mod properties;
#[path = "../modules/support.rs"]
mod support;
