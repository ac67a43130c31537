//! Parallel, labelled and plain text: reading, filtering, batching, and synthetic tasks.
//!
//! **What it does.** Two files aligned by line ([`ParallelText`]) go through a [`LengthFilter`],
//! which encodes them and counts what it drops, into [`EncodedPair`]s; [`Batches`] orders these
//! for an epoch under a token budget. `regard_models::{SourceBatch, TargetBatch}` pad them.
//!
//! **Order.** The batches of an epoch depend only on the pairs, the budget, the seed and the epoch's
//! number, not on the epochs before: a training that resumes at batch `b` of epoch `e` sees the
//! batches that an uninterrupted one would have seen.
//!
//! ```
//! use regard_train::corpus::{Batches, Budget, LengthFilter, Synthetic, Task};
//! use regard_train::tokenizer::TokenizerPair;
//!
//! let corpus = Synthetic { task: Task::Reverse, sentences: 100, ..Synthetic::default() }
//!     .generate(7)?;
//! let text = &corpus.text;
//! let tokenizers = TokenizerPair::learn_words(text.source(), text.target(), false)?;
//! let (pairs, report) = LengthFilter::default().apply(text, &tokenizers)?;
//! assert_eq!(report.kept, 100);
//!
//! let batches = Batches::new(&pairs, Budget { tokens: Some(256), ..Budget::default() })?;
//! let epoch = batches.epoch(42, 0);
//! assert_eq!(epoch.concat().len(), 100);
//! assert!(batches.padding(&epoch) < 0.3);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod error;
mod filter;
mod labelled;
mod lines;
mod order;
mod parallel;
mod random;
mod synthetic;
mod text;

pub use error::CorpusError;
pub(crate) use filter::with_spaces;
pub use filter::{EncodedPair, FilterReport, LengthFilter, Limited, LongLines};
pub use labelled::LabelledText;
pub use lines::{Lines, read_lines};
pub use order::{Batches, Budget};
pub use parallel::ParallelText;
pub use random::Random;
pub use synthetic::{Synthetic, SyntheticCorpus, Task, pharaoh};
pub use text::PlainText;
