//! What a query may see. Masks are types, never bare booleans whose meaning must be remembered.
//!
//! - [`Keep`]: which positions of a padded batch are real (true = may be seen).
//! - [`Locality`]: which part of the source a decoder step may see: all of it, or Luong's local windows.

mod keep;
pub(crate) mod local;

pub use keep::Keep;
pub use local::{Locality, PositionPredictor};
