//! The ids that every vocabulary of this workspace reserves.

/// Fills a batch up to its longest sentence; never predicted, never attended to.
pub const PADDING: u32 = 0;
/// Starts a target: the decoder's first input.
pub const START: u32 = 1;
/// Ends a source and a target.
pub const END: u32 = 2;
/// A token outside the vocabulary.
pub const UNKNOWN: u32 = 3;
/// How many ids are reserved.
pub const RESERVED: u32 = 4;
