//! The modules of `regard_nn::vision`.
//!
//! | module | what holds |
//! |---|---|
//! | [`golden`] | outputs and gradients equal timm's and PyTorch's (`../../golden/vision_golden.py`) |
//! | [`differences`] | gradients equal finite differences in f64, for every weight and input |
//! | [`properties`] | gates, weights and maps behave for any sizes |
//! | [`maps`] | the kernels of convolution, batch norm and pooling equal Burn's operations |
//! | [`errors`] | sizes that do not fit are errors that say which |

mod differences;
mod errors;
mod golden;
mod maps;
mod properties;
