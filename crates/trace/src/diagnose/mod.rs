//! Diagnostics: what an attention map says about its heads, in numbers and in words.
//!
//! All numbers are computed in `f64` from the weights `α [heads, queries, keys]` of a
//! [`Trace`](crate::Trace)'s maps. None of them says that a model is right; they say where to look.
//!
//! | module | what | source |
//! |---|---|---|
//! | [`head`] | entropy, uniformity, sink, diagonality, previous and duplicate token, coverage, span | named there, measure by measure |
//! | [`layer`] | the same of whole layers, over several examples: metrics of a training | |
//! | [`log`] | these metrics, read from a training's log | |
//! | [`report`] | the same in words: "layer 3 head 6: 92 % on `<s>`, a sink" | |
//! | [`rollout`](mod@rollout) | what a stack of layers looked at, by products | Abnar & Zuidema 2020 |
//! | [`flow`](mod@flow) | the same by maximum flow | Abnar & Zuidema 2020 |
//! | [`check`](mod@check) | "my attention is uniform over all tokens, why?": from queries and keys | |
//!
//! Layers and heads count from 0, here as in the maps.
//!
//! ```
//! use regard_trace::{AttentionMap, Kind, Token, Tokens};
//! use regard_trace::diagnose::{heads, report::describe};
//!
//! let tokens = Tokens::from(vec![Token::special("<s>"), Token::new("a"), Token::new("man")]);
//! #[rustfmt::skip]
//! let weights = vec![1.0,  0.0,  0.0,
//!                    0.9,  0.1,  0.0,
//!                    0.94, 0.03, 0.03];
//! let map = AttentionMap::new(Kind::DecoderSelf, tokens.clone(), tokens, 1, weights)?;
//! let head = &heads(&map)[0];
//! // The first query saw one key alone and had no choice, so it does not count.
//! assert!((head.first_token.unwrap() - 0.92).abs() < 1e-6);
//! assert_eq!(describe(&map, head), "layer 1 head 1: 92 % on `<s>`, a sink");
//! # Ok::<(), regard_trace::TraceError>(())
//! ```

pub mod check;
mod finding;
pub mod flow;
pub mod head;
pub mod layer;
pub mod log;
pub mod report;
pub mod rollout;
mod stack;

pub use check::{Problem, check};
pub use finding::{Cause, Finding, Names, Side};
pub use flow::{flow, flow_from};
pub use head::{HeadDiagnostics, heads};
pub use layer::{LayerMeasures, Layers};
pub use rollout::rollout;
pub use stack::{StackError, stacks};
