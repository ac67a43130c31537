//! Several processes that work as one: each is a rank, counted from 0, and takes its share of the work.
//!
//! All that is asked of the machinery between the processes is one operation, [`Ranks::exchange`]: each rank hands every rank some
//! bytes. The rest is built from it, and so gives the same bits whatever carries the bytes:
//!
//! | method of `dyn Ranks` | what |
//! |---|---|
//! | `sum` | `x_i ← Σ_r x_i^(r)`, added in the order of the ranks |
//! | `gather` | everyone's value, in the order of the ranks |
//! | `broadcast` | rank 0's bytes, for everyone |
//! | `spread` | the results of work on a list, each rank doing its part of it |
//! | `expect_same` | an error if the ranks differ in their program, or in what they were given |
//!
//! | implementation | what carries the bytes |
//! |---|---|
//! | [`Alone`] | nothing: there is one process |
//! | [`Threads`] | memory: threads of one process stand for processes, for tests |
//! | `Mpi` (feature `mpi`) | the Message Passing Interface, as `mpirun` starts it |
//!
//! Every rank must call the same functions in the same order, as all wait for each other.
//!
//! # How sums travel
//!
//! A list of `n` numbers is cut into buckets of 4 MiB, and a bucket into as many pieces as there are ranks. Rank `r` receives piece
//! `r` of everybody, adds them up in the order of the ranks, and hands the sum to everybody. So each of `N` ranks sends
//! `4 n · 2 (N - 1) / N` bytes, as little as any algorithm, and the order of the additions depends on nothing but `N`.

#[cfg(feature = "mpi")]
mod mpi;
mod threads;

use std::{env, fmt::Debug, ops::Range};

use regard_kernels::simd::Level;
use serde::{Serialize, de::DeserializeOwned};

#[cfg(feature = "mpi")]
pub use mpi::Mpi;
pub use threads::Threads;

/// How many processes a launcher of MPI programs says to have started, of which this is one; `None` if it was started by itself.
///
/// Open MPI, MPICH and its kin give the number; beside PMIx, which does not, Slurm gives it.
pub fn launched() -> Option<usize> {
    let count = |name| env::var(name).ok()?.parse().ok();
    let given = ["OMPI_COMM_WORLD_SIZE", "PMI_SIZE"];
    given.into_iter().find_map(count).or_else(|| {
        let mut ranks = ["PMI_RANK", "PMIX_RANK"].into_iter();
        let is_rank = ranks.any(|name| env::var_os(name).is_some());
        is_rank.then(|| count("SLURM_STEP_NUM_TASKS").unwrap_or(1))
    })
}

/// Numbers that are summed at once.
pub(crate) const BUCKET: usize = 1 << 20;

/// The processes that work together, seen from one of them.
pub trait Ranks: Debug + Send + Sync {
    /// The number of this process, below [`count`](Self::count).
    fn rank(&self) -> usize;

    /// How many processes there are.
    fn count(&self) -> usize;

    /// Sends `to[r]` to rank `r`, and gives what each rank sent here, in the order of the ranks.
    ///
    /// # Errors
    /// A rank that is gone, or whatever else the carrier reports.
    ///
    /// # Panics
    /// If there are not as many messages as ranks.
    fn exchange(&self, to: &[&[u8]]) -> Result<Vec<Vec<u8>>, RanksError>;
}

/// Why processes could not work together.
#[derive(Debug, thiserror::Error)]
pub enum RanksError {
    /// Another process ended.
    #[error("another process has ended before its work was done; its own message says why")]
    Gone,
    /// The carrier failed.
    #[error("the processes cannot talk to each other: {0}")]
    Carrier(String),
    /// A message is not what was expected: the processes do not do the same.
    #[error(
        "a message of rank {rank} is not what was expected; start all processes with the same program and arguments"
    )]
    Message {
        /// The sender.
        rank: usize,
    },
    /// The processes were started with different files or programs.
    #[error(
        "rank {rank} differs from rank 0 in {what}: {found} in place of {expected}; give all processes the same program and files"
    )]
    Differ {
        /// The first process that differs.
        rank: usize,
        /// In what.
        what: String,
        /// What it has.
        found: String,
        /// What rank 0 has.
        expected: String,
    },
}

/// A single process.
#[derive(Debug, Clone, Copy, Default)]
pub struct Alone;

impl Ranks for Alone {
    fn rank(&self) -> usize {
        0
    }

    fn count(&self) -> usize {
        1
    }

    fn exchange(&self, to: &[&[u8]]) -> Result<Vec<Vec<u8>>, RanksError> {
        assert_eq!(to.len(), 1, "a message for each rank");
        Ok(vec![to[0].to_vec()])
    }
}

impl dyn Ranks + '_ {
    /// Whether this is rank 0, which alone prints and writes files.
    pub fn is_first(&self) -> bool {
        self.rank() == 0
    }

    /// Whether there is no other process.
    pub fn is_alone(&self) -> bool {
        self.count() == 1
    }

    /// This rank's part of `count` things in a row: the ranks' parts follow each other and differ in length by at most 1.
    pub fn part(&self, count: usize) -> Range<usize> {
        part(count, self.rank(), self.count())
    }

    /// Overwrites `values` with the sums over all ranks, each added in the order of the ranks.
    ///
    /// # Errors
    /// As [`Ranks::exchange`]; lists of different lengths.
    pub fn sum(&self, values: &mut [f32]) -> Result<(), RanksError> {
        if self.is_alone() {
            return Ok(());
        }
        for bucket in values.chunks_mut(BUCKET) {
            self.sum_bucket(bucket)?;
        }
        Ok(())
    }

    fn sum_bucket(&self, bucket: &mut [f32]) -> Result<(), RanksError> {
        let (length, count) = (bucket.len(), self.count());
        let piece = |rank| part(length, rank, count);
        let pieces: Vec<&[u8]> = (0..count)
            .map(|rank| bytemuck::cast_slice(&bucket[piece(rank)]))
            .collect();
        let received = self.exchange(&pieces)?;
        let own = self.part(length);
        let mut sum = vec![0.0f32; own.len()];
        for (rank, message) in received.iter().enumerate() {
            add(&mut sum, message).ok_or(RanksError::Message { rank })?;
        }
        let sums = self.gather_bytes(bytemuck::cast_slice(&sum))?;
        for (rank, message) in sums.iter().enumerate() {
            let to = bytemuck::cast_slice_mut::<f32, u8>(&mut bucket[piece(rank)]);
            match message.len() == to.len() {
                true => to.copy_from_slice(message),
                false => return Err(RanksError::Message { rank }),
            }
        }
        Ok(())
    }

    fn gather_bytes(&self, bytes: &[u8]) -> Result<Vec<Vec<u8>>, RanksError> {
        self.exchange(&vec![bytes; self.count()])
    }

    /// The values of all ranks, in their order.
    ///
    /// # Errors
    /// As [`Ranks::exchange`]; a value of another type.
    ///
    /// # Panics
    /// If the value cannot be serialised.
    pub fn gather<T: Serialize + DeserializeOwned>(&self, value: &T) -> Result<Vec<T>, RanksError> {
        let all = self.gather_bytes(&packed(value))?;
        let all = all.iter().enumerate();
        all.map(|(rank, bytes)| unpacked(bytes, rank)).collect()
    }

    /// The bytes that rank 0 has; the others' argument is not read.
    ///
    /// # Errors
    /// As [`Ranks::exchange`].
    pub fn broadcast(&self, bytes: Vec<u8>) -> Result<Vec<u8>, RanksError> {
        if self.is_alone() {
            return Ok(bytes);
        }
        let sent = if self.is_first() { &bytes[..] } else { &[] };
        Ok(self.gather_bytes(sent)?.swap_remove(0))
    }

    /// What `work` makes of `items`, a result for each, in their order. Each rank works on its `part` of them and is told
    /// where it begins; all ranks get all results.
    ///
    /// # Errors
    /// Those of `work`; as [`Ranks::exchange`].
    ///
    /// # Panics
    /// If `work` gives more or fewer results than it was given items.
    pub fn spread<I, T, E>(
        &self,
        items: &[I],
        work: impl FnOnce(usize, &[I]) -> Result<Vec<T>, E>,
    ) -> Result<Vec<T>, E>
    where
        T: Serialize + DeserializeOwned,
        E: From<RanksError>,
    {
        let own = self.part(items.len());
        let results = work(own.start, &items[own.clone()])?;
        assert_eq!(results.len(), own.len(), "a result for each item");
        if self.is_alone() {
            return Ok(results);
        }
        Ok(self.gather(&results)?.into_iter().flatten().collect())
    }

    /// Checks that all ranks run the same program, with the same instructions of the processor, and have the same `facts`, each a name
    /// and what it is here.
    ///
    /// # Errors
    /// [`RanksError::Differ`] for the first of these that is not the same, on all ranks; as [`Ranks::exchange`].
    pub fn expect_same(&self, facts: &[(&str, String)]) -> Result<(), RanksError> {
        if self.is_alone() {
            return Ok(());
        }
        let program = [
            (
                "the version of regard",
                env!("CARGO_PKG_VERSION").to_owned(),
            ),
            (
                "the instructions of the processor",
                format!("{:?}", Level::current()),
            ),
        ];
        let facts: Vec<&(&str, String)> = program.iter().chain(facts).collect();
        let own: Vec<String> = facts.iter().map(|(_, fact)| fact.clone()).collect();
        let all = self.gather(&own)?;
        for (at, (what, _)) in facts.iter().enumerate() {
            let fact = |rank: usize| all[rank].get(at).map(String::as_str).unwrap_or_default();
            if let Some(rank) = (1..all.len()).find(|&rank| fact(rank) != fact(0)) {
                let [found, expected] = difference(fact(rank), fact(0));
                return Err(RanksError::Differ {
                    rank,
                    what: (*what).to_owned(),
                    found,
                    expected,
                });
            }
        }
        Ok(())
    }
}

/// The part of `rank` in `count` things that `ranks` share.
fn part(count: usize, rank: usize, ranks: usize) -> Range<usize> {
    let begin = |rank: usize| (count as u128 * rank as u128 / ranks as u128) as usize;
    begin(rank)..begin(rank + 1)
}

/// Adds the numbers of a message to `sum`; `None` if it has another length.
fn add(sum: &mut [f32], message: &[u8]) -> Option<()> {
    if message.len() != size_of_val(sum) {
        return None;
    }
    let numbers = message.as_chunks::<4>().0;
    for (sum, number) in sum.iter_mut().zip(numbers) {
        *sum += f32::from_ne_bytes(*number);
    }
    Some(())
}

fn packed(value: &impl Serialize) -> Vec<u8> {
    postcard::to_allocvec(value).expect("plain data serialises")
}

fn unpacked<T: DeserializeOwned>(bytes: &[u8], rank: usize) -> Result<T, RanksError> {
    postcard::from_bytes(bytes).map_err(|_| RanksError::Message { rank })
}

/// The first lines in which two texts differ.
fn difference(found: &str, expected: &str) -> [String; 2] {
    let (mut a, mut b) = (found.lines(), expected.lines());
    loop {
        match (a.next(), b.next()) {
            (None, None) => return [found, expected].map(|text| format!("`{text}`")),
            (x, y) if x == y => {}
            (x, y) => return [x, y].map(|line| line.map_or("nothing".into(), quoted)),
        }
    }
}

fn quoted(line: &str) -> String {
    format!("`{}`", line.trim())
}
