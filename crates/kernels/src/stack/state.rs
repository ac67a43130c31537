//! What a running generation keeps: keys and values of past positions and of sources, and which of them each row has.

use half::{bf16, f16};

use crate::element::Kind;
use crate::error::KernelError;

/// The sequences of a running generation, a row each.
#[derive(Debug, Clone)]
pub struct State {
    /// The keys and values of each block.
    pub(super) past: Vec<Past>,
    /// Numbers of the keys and values of a state, `k | v`.
    pub(super) width: usize,
    pub(super) sources: Option<Sources>,
    pub(super) rows: Vec<Row>,
    /// Number of states of all rows together.
    pub(super) states: u32,
}

/// Keys and values of one block, `[states, k | v]`.
#[derive(Debug, Clone)]
pub(super) enum Past {
    F32(Vec<f32>),
    Bf16(Vec<bf16>),
    F16(Vec<f16>),
}

/// Keys and values of sources.
#[derive(Debug, Clone)]
pub(super) struct Sources {
    /// For each block, `[sources, length, k | v]`.
    pub(super) key_values: Vec<Vec<f32>>,
    /// The padded length.
    pub(super) length: usize,
    /// The real length of each.
    pub(super) lengths: Vec<usize>,
}

#[derive(Debug, Clone)]
pub(super) struct Row {
    pub(super) source: usize,
    /// The state that holds each position.
    pub(super) ancestors: Vec<u32>,
    /// The length that it is known to reach ([`State::expect`]).
    pub(super) expected: usize,
}

impl Past {
    pub(super) fn new(kind: Kind) -> Self {
        match kind {
            Kind::F32 => Self::F32(vec![]),
            Kind::Bf16 => Self::Bf16(vec![]),
            Kind::F16 => Self::F16(vec![]),
        }
    }

    /// Appends a state, and leaves in `state` what can be read back: the same numbers, or rounded.
    pub(super) fn push(&mut self, state: &mut [f32]) {
        match self {
            Self::F32(past) => past.extend_from_slice(state),
            Self::Bf16(past) => past.extend(state.iter_mut().map(|x| {
                let half = bf16::from_f32(*x);
                *x = half.to_f32();
                half
            })),
            Self::F16(past) => past.extend(state.iter_mut().map(|x| {
                let half = f16::from_f32(*x);
                *x = half.to_f32();
                half
            })),
        }
    }

    fn truncate(&mut self, numbers: usize) {
        match self {
            Self::F32(past) => past.truncate(numbers),
            Self::Bf16(past) => past.truncate(numbers),
            Self::F16(past) => past.truncate(numbers),
        }
    }

    /// The states at `ancestors`, widened, one after another.
    pub(super) fn gather(&self, ancestors: &[u32], width: usize) -> Vec<f32> {
        let mut all = Vec::with_capacity(ancestors.len() * width);
        for &ancestor in ancestors {
            let place = ancestor as usize * width..(ancestor as usize + 1) * width;
            match self {
                Self::F32(past) => all.extend_from_slice(&past[place]),
                Self::Bf16(past) => all.extend(past[place].iter().map(|x| x.to_f32())),
                Self::F16(past) => all.extend(past[place].iter().map(|x| x.to_f32())),
            }
        }
        all
    }
}

impl State {
    /// How many rows there are.
    pub fn rows(&self) -> usize {
        self.rows.len()
    }

    /// How many positions row `row` has; 0 if there is no such row.
    pub fn length(&self, row: usize) -> usize {
        self.rows.get(row).map_or(0, |row| row.ancestors.len())
    }

    /// The length that decides of the angles of row `row`'s next positions: its own, or a greater one that it is known to reach.
    pub fn expected(&self, row: usize) -> usize {
        let expected = self.rows.get(row).map_or(0, |row| row.expected);
        expected.max(self.length(row))
    }

    /// Says which length each row is known to reach, for rotations that depend on it ([`LongTexts`](super::LongTexts)): a text that is
    /// read in several calls then has the numbers of one call. A row with more positions counts those.
    pub fn expect(&mut self, lengths: &[usize]) {
        for (row, &length) in self.rows.iter_mut().zip(lengths) {
            row.expected = row.expected.max(length);
        }
    }

    /// Forgets the positions of row `row`, to read it again. Its memory is used again once no row has positions.
    pub fn restart(&mut self, row: usize) {
        if let Some(row) = self.rows.get_mut(row) {
            row.ancestors.clear();
            row.expected = 0;
        }
        if self.rows.iter().all(|row| row.ancestors.is_empty()) {
            self.states = 0;
            self.past.iter_mut().for_each(|past| past.truncate(0));
        }
    }

    /// Its states, and the positions of each row.
    pub(super) fn extent(&self) -> (u32, Vec<usize>) {
        let lengths = self.rows.iter().map(|row| row.ancestors.len());
        (self.states, lengths.collect())
    }

    /// Forgets what came after an extent: a pass that failed in the middle has left states in some blocks.
    pub(super) fn cut(&mut self, (states, lengths): (u32, Vec<usize>)) {
        self.states = states;
        for (row, length) in self.rows.iter_mut().zip(lengths) {
            row.ancestors.truncate(length);
        }
        for past in &mut self.past {
            past.truncate(states as usize * self.width);
        }
    }

    /// Keeps the rows at `rows`, in that order (rows may repeat).
    ///
    /// # Errors
    /// [`KernelError::Entry`] if a row is not there.
    pub fn select(&mut self, rows: &[usize]) -> Result<(), KernelError> {
        if let Some(position) = rows.iter().position(|&row| row >= self.rows.len()) {
            return Err(KernelError::Entry {
                argument: "rows",
                position,
                expected: format!("less than {}", self.rows.len()),
                found: rows[position].to_string(),
            });
        }
        self.rows = rows.iter().map(|&row| self.rows[row].clone()).collect();
        Ok(())
    }
}
