//! Whole models and generation, from outside.
//!
//! | module | what is tested |
//! |---|---|
//! | [`attention`] | scores, normalisers and masks chosen by keys |
//! | [`captioner`] | captions of images: PyTorch, search, hard attention |
//! | [`classifier`] | classifiers of sentences: padding, learning, replay, refusals |
//! | [`detr`] | objects as a set: matching, losses, masks |
//! | [`followed`] | gradients of attention weights equal finite differences |
//! | [`golden`] | logits, weights, loss and gradients equal PyTorch's (`../golden/models_golden.py`) |
//! | [`images`] | networks that read images |
//! | [`gradients`] | gradients with dropout equal finite differences |
//! | [`invariance`] | what must not change the numbers does not |
//! | [`search`] | beam search equals exhaustive search, and one written differently |
//! | [`translate`] | hypotheses of real models, scored again under teacher forcing |
//! | [`vqa`] | models that answer questions about images |

mod attention;
mod captioner;
mod classifier;
mod common;
mod detr;
mod followed;
mod golden;
mod gradients;
mod images;
mod invariance;
mod search;
mod search_tree;
#[path = "../../../nn/tests/modules/support.rs"]
#[allow(dead_code, reason = "shared with the tests of regard-nn")]
mod support;
mod translate;
mod vqa;
