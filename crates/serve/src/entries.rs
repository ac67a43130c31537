//! The traces that the page can see: those that were opened, and the last looks of the model.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use crate::data::{Asked, Entry, Found, shown};
use crate::{Ablation, Input, Opened, Seen};

/// The list is locked only to copy a handle or to add an entry.
pub struct Entries {
    list: RwLock<Vec<Arc<Entry>>>,
    next: AtomicU64,
    kept_looks: usize,
    kept_bytes: usize,
}

impl Entries {
    /// With these traces, and room for as many looks, as far as their numbers fit into so many bytes.
    pub fn new(opened: Vec<Opened>, kept_looks: usize, kept_bytes: usize) -> Self {
        let entries = Self {
            list: RwLock::default(),
            next: AtomicU64::new(0),
            kept_looks: kept_looks.max(1),
            kept_bytes,
        };
        entries.add(opened);
        entries
    }

    /// Adds these traces, and gives the number of the first.
    pub fn add(&self, opened: Vec<Opened>) -> u64 {
        let first = self.next.fetch_add(opened.len() as u64, Ordering::Relaxed);
        let opened = opened.into_iter().zip(first..);
        let entries = opened.map(|(one, id)| {
            let mut entry = match one.long {
                Some(long) => Entry::long(id, one.name, long),
                None => Entry::new(id, one.name, None, one.trace),
            };
            entry.training = one.training;
            Arc::new(entry)
        });
        let mut list = self.list.write().unwrap_or_else(PoisonError::into_inner);
        list.extend(entries);
        first
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

    /// Adds a look, drops the oldest ones if there are too many or they take too many bytes, and gives the number of its answer. The last
    /// one without changes and the last one with some stay: the page compares them. Each hypothesis of a search has an entry, the answer's
    /// first.
    pub fn keep(&self, seen: Seen, input: Input, ablation: Ablation) -> u64 {
        let first = self.next.fetch_add(count(&seen), Ordering::Relaxed);
        let name = match (input.text.as_str(), seen.output.as_str()) {
            ("", output) => output.to_owned(),
            (text, _) => text.to_owned(),
        };
        let entries = of_look(name, seen, input, ablation, first);
        let mut list = self.list.write().unwrap_or_else(PoisonError::into_inner);
        list.extend(entries.map(Arc::new));
        // The looks with their bytes, the oldest first.
        let mut looks: Vec<(Arc<Asked>, usize)> = vec![];
        for entry in list.iter() {
            let Some(asked) = &entry.asked else { continue };
            match looks.last_mut() {
                Some((last, bytes)) if Arc::ptr_eq(last, asked) => *bytes += entry.bytes(),
                _ => looks.push((asked.clone(), asked.bytes() + entry.bytes())),
            }
        }
        let mut held: usize = looks.iter().map(|(_, bytes)| bytes).sum();
        while looks.len() > self.kept_looks || held > self.kept_bytes {
            let is_plain = |at: usize| looks[at].0.ablation.heads.is_empty();
            let is_last =
                |at: usize| (at + 1..looks.len()).all(|later| is_plain(later) != is_plain(at));
            let Some(at) = (0..looks.len()).find(|&at| !is_last(at)) else {
                break;
            };
            let (oldest, bytes) = looks.remove(at);
            held -= bytes;
            let is_oldest = |asked: &Arc<Asked>| Arc::ptr_eq(asked, &oldest);
            list.retain(|one| !one.asked.as_ref().is_some_and(is_oldest));
        }
        first
    }
}

/// How many entries a look has: one for each hypothesis of its search.
pub fn count(seen: &Seen) -> u64 {
    let generation = seen.generation.as_ref();
    generation.map_or(1, |generation| generation.hypotheses.len().max(1) as u64)
}

/// The entries of a look, numbered from `first` on: that of its answer, called `name`, and those of the other hypotheses.
pub fn of_look(
    name: String,
    seen: Seen,
    input: Input,
    ablation: Ablation,
    first: u64,
) -> impl Iterator<Item = Entry> {
    let (proposals, hypotheses) = match seen.generation {
        Some(generation) => (generation.proposals, generation.hypotheses),
        None => (vec![], vec![]),
    };
    let found = hypotheses.iter().zip(first..).map(|(one, id)| Found {
        leaf: one.leaf,
        trace: id,
        text: shown(&one.trace.target, 10_000),
        score: one.trace.score.filter(|score| score.is_finite()),
    });
    let asked = Arc::new(Asked {
        input,
        ablation,
        proposals,
        hypotheses: found.collect(),
    });
    let others = hypotheses.into_iter().skip(1).map(|one| one.trace);
    let traces = std::iter::once(seen.trace).chain(others);
    traces.zip(first..).map(move |(trace, id)| {
        let name = match id - first {
            0 => name.clone(),
            rank => format!("{}. {}", rank + 1, trace.target),
        };
        Entry::new(id, name, Some(asked.clone()), trace)
    })
}
