//! The cases of `regard bench` under criterion: see `benches/kernels.rs`.
