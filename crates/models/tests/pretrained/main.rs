//! Models in folders: what is read is what was written, and what is damaged is refused with its place.

mod chat;
mod common;
mod config;
mod folder;
mod golden;
mod hostile;
#[cfg(feature = "hub")]
mod hub;
mod stated;
mod tokenizer;
