//! Ranks that are processes which `mpirun` started, on one machine or several: Open MPI, MPICH, or whatever was built against.

use std::{
    fmt,
    sync::Mutex,
    thread,
    time::{Duration, Instant},
};

use mpi::{
    Threading,
    environment::Universe,
    request::{self, Request, Scope},
    topology::{Communicator, SimpleCommunicator},
    traits::{CommunicatorCollectives, Destination, Source},
};

use super::{Ranks, RanksError, launched};

/// Bytes of a message at most; MPI counts them in 32 bits with a sign.
const MOST: usize = 1 << 30;

/// The processes of an MPI program.
pub struct Mpi {
    rank: usize,
    count: usize,
    local_rank: usize,
    /// One call at a time is what MPI is asked to allow.
    turn: Mutex<()>,
    /// Ends MPI when it is dropped.
    universe: Mutex<Option<Universe>>,
}

impl Mpi {
    /// Joins the processes that an MPI launcher started; `None` if this process was started by itself. To be called by the main thread,
    /// once.
    ///
    /// # Errors
    /// An MPI library that cannot be called from several threads, or that another one's launcher started.
    pub fn join() -> Result<Option<Self>, RanksError> {
        let Some(launched) = launched() else {
            return Ok(None);
        };
        let started = mpi::initialize_with_threading(Threading::Serialized);
        let Some((universe, threading)) = started else {
            return Err(RanksError::Carrier("MPI was begun twice".to_owned()));
        };
        if threading < Threading::Serialized {
            let problem =
                "the MPI library was built without threads; expected MPI_THREAD_SERIALIZED";
            return Err(RanksError::Carrier(problem.to_owned()));
        }
        let world = SimpleCommunicator::world();
        if world.size() == 1 && launched > 1 {
            return Err(RanksError::Carrier(format!(
                "this is one of {launched} processes, but MPI finds no other: the launcher is not of the MPI library that this build is of; \
                 expected the library's own mpirun, or with Slurm `srun --mpi=pmix` for Open MPI and `--mpi=pmi2` for MPICH"
            )));
        }
        Ok(Some(Self {
            rank: world.rank() as usize,
            count: world.size() as usize,
            local_rank: world.split_shared(0).rank() as usize,
            turn: Mutex::new(()),
            universe: Mutex::new(Some(universe)),
        }))
    }

    /// The number of this process among those of its machine, from 0.
    pub fn local_rank(&self) -> usize {
        self.local_rank
    }

    /// Leaves the other processes in good order: each has to, at its end, on the main thread.
    pub fn part(&self) {
        // What is left of a thread that panicked is ended all the same.
        let mut universe = self
            .universe
            .lock()
            .unwrap_or_else(|broken| broken.into_inner());
        drop(universe.take());
    }

    /// Ends the processes of all ranks with an exit code.
    pub fn abort(&self, code: u8) -> ! {
        SimpleCommunicator::world().abort(code.into())
    }
}

impl fmt::Debug for Mpi {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Mpi({} of {})", self.rank, self.count)
    }
}

impl Ranks for Mpi {
    fn rank(&self) -> usize {
        self.rank
    }

    fn count(&self) -> usize {
        self.count
    }

    /// MPI's own errors end all processes, which is its default.
    fn exchange(&self, to: &[&[u8]]) -> Result<Vec<Vec<u8>>, RanksError> {
        assert_eq!(to.len(), self.count, "a message for each rank");
        let _turn = self.turn.lock().map_err(|_| RanksError::Gone)?;
        let world = SimpleCommunicator::world();
        let lengths: Vec<u64> = to.iter().map(|message| message.len() as u64).collect();
        let mut incoming = vec![0u64; self.count];
        request::scope(|scope| {
            let (lengths, incoming) = (&lengths[..], &mut incoming[..]);
            finish(world.immediate_all_to_all_into(scope, lengths, incoming));
        });
        let mut received: Vec<Vec<u8>> = incoming.iter().map(|&n| vec![0; n as usize]).collect();
        received[self.rank].copy_from_slice(to[self.rank]);
        request::scope(|scope| {
            let mut requests = vec![];
            for (from, message) in received.iter_mut().enumerate() {
                let process = world.process_at_rank(from as i32);
                for part in message.chunks_mut(MOST).filter(|_| from != self.rank) {
                    requests.push(process.immediate_receive_into(scope, part));
                }
            }
            let mut sent = vec![];
            for (rank, message) in to.iter().enumerate() {
                let process = world.process_at_rank(rank as i32);
                for part in message.chunks(MOST).filter(|_| rank != self.rank) {
                    sent.push(process.immediate_send(scope, part));
                }
            }
            sent.into_iter().for_each(finish);
            requests.into_iter().for_each(finish);
        });
        Ok(received)
    }
}

/// Waits for a request. MPI's own waiting keeps a core busy, which the backward pass needs; here the thread sleeps between looks, after
/// a time in which short messages arrive.
fn finish<'a, D: ?Sized, S: Scope<'a>>(mut request: Request<'a, D, S>) {
    let begun = Instant::now();
    while let Err(unfinished) = request.test() {
        request = unfinished;
        match begun.elapsed() < Duration::from_micros(20) {
            true => thread::yield_now(),
            false => thread::sleep(Duration::from_micros(50)),
        }
    }
}
