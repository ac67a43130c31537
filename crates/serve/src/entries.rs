//! The traces that the page can see: those that were opened, and the last looks of the model.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use crate::data::{Asked, Entry};
use crate::{Ablation, Input, Opened, Seen};

/// The list is locked only to copy a handle or to add an entry.
pub struct Entries {
    list: RwLock<Vec<Arc<Entry>>>,
    next: AtomicU64,
    kept_looks: usize,
}

impl Entries {
    /// With these traces, and room for as many looks.
    pub fn new(opened: Vec<Opened>, kept_looks: usize) -> Self {
        let next = AtomicU64::new(opened.len() as u64);
        let opened = opened.into_iter().zip(0..);
        let entries = opened.map(|(one, id)| Arc::new(Entry::new(id, one.name, None, one.trace)));
        Self {
            list: RwLock::new(entries.collect()),
            next,
            kept_looks: kept_looks.max(1),
        }
    }

    /// All of them.
    pub fn all(&self) -> Vec<Arc<Entry>> {
        let list = self.list.read().unwrap_or_else(PoisonError::into_inner);
        list.clone()
    }

    /// The one with this number.
    pub fn get(&self, id: u64) -> Option<Arc<Entry>> {
        let list = self.list.read().unwrap_or_else(PoisonError::into_inner);
        list.iter().find(|entry| entry.id == id).cloned()
    }

    /// Adds a look, drops the oldest one if there are too many, and gives its number.
    pub fn keep(&self, seen: &Seen, input: Input, ablation: Ablation) -> u64 {
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        let name = match (input.text.as_str(), seen.output.as_str()) {
            ("", output) => output,
            (text, _) => text,
        };
        let name = name.to_owned();
        let asked = Asked { input, ablation };
        let entry = Entry::new(id, name, Some(asked), seen.trace.clone());
        let mut list = self.list.write().unwrap_or_else(PoisonError::into_inner);
        list.push(Arc::new(entry));
        let looks = list.iter().filter(|entry| entry.asked.is_some()).count();
        if looks > self.kept_looks
            && let Some(oldest) = list.iter().position(|entry| entry.asked.is_some())
        {
            list.remove(oldest);
        }
        id
    }
}
