//! From scores to weights. Today: softmax over the positions that may be seen.

mod softmax;

pub use softmax::masked_softmax;
