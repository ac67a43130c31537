//! The processes that `mpirun` started, if it did: they run the same command, share its work, and rank 0 alone prints and writes files.

use std::process::ExitCode;

use regard_train::ranks::{Alone, Ranks};

use crate::{arguments::Command, failure::Failure};

/// The ranks of this process' command.
pub fn all() -> &'static dyn Ranks {
    joined().unwrap_or(&Alone)
}

/// Whether this process prints and writes files.
pub fn is_first() -> bool {
    all().is_first()
}

/// Refuses a command that does not share its work.
///
/// # Errors
/// [`Failure::Usage`].
pub fn expect_shared(command: &Command) -> Result<(), Failure> {
    let shared = matches!(
        command,
        Command::Train(_) | Command::Translate(_) | Command::Embed(_) | Command::Evaluate(_)
    );
    match shared || all().is_alone() {
        true => Ok(()),
        false => Err(Failure::Usage(
            "only train, translate, embed and evaluate share their work between processes; start this one without mpirun"
                .to_owned(),
        )),
    }
}

/// Reports how the command ended, and parts from the other ranks. If it failed here, all of them end.
pub fn end(done: Result<(), Failure>) -> ExitCode {
    let code = match &done {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            if all().is_alone() || matches!(failure, Failure::Interrupted(_)) {
                failure.report()
            } else {
                abort(failure)
            }
        }
    };
    part();
    code
}

/// Ends all processes after a panic, which has been told.
pub fn end_broken() -> ExitCode {
    if !all().is_alone() {
        kill(1);
    }
    ExitCode::FAILURE
}

fn abort(failure: &Failure) -> ExitCode {
    if !is_first() {
        // If all fail alike, rank 0 says so and ends this one meanwhile.
        std::thread::sleep(std::time::Duration::from_secs(5));
    }
    let code = failure.report();
    kill(failure.code());
    code
}

#[cfg(feature = "mpi")]
mod processes {
    use std::sync::OnceLock;

    use regard_train::ranks::{Mpi, Ranks, RanksError};

    static JOINED: OnceLock<Mpi> = OnceLock::new();

    /// Joins the processes that were started with this one. To be called first, by the main thread.
    ///
    /// # Errors
    /// An MPI library that cannot be used.
    pub fn join() -> Result<(), RanksError> {
        if let Some(joined) = Mpi::join()? {
            JOINED.get_or_init(|| joined);
        }
        Ok(())
    }

    /// The number of this process among those of its machine that work together, from 0.
    pub fn local_rank() -> usize {
        JOINED.get().map_or(0, Mpi::local_rank)
    }

    pub(super) fn joined() -> Option<&'static dyn Ranks> {
        JOINED.get().map(|joined| joined as &dyn Ranks)
    }

    /// Parts from the other ranks, in good order.
    pub fn part() {
        if let Some(joined) = JOINED.get() {
            joined.part();
        }
    }

    /// Ends all processes at once.
    pub fn kill(code: u8) {
        if let Some(joined) = JOINED.get() {
            joined.abort(code);
        }
    }
}

#[cfg(not(feature = "mpi"))]
mod processes {
    use std::env;

    use regard_train::ranks::{Ranks, RanksError};

    /// Where launchers say how many processes they started.
    const STARTED: [&str; 2] = ["OMPI_COMM_WORLD_SIZE", "PMI_SIZE"];

    /// Refuses to be one of several processes: each would do the whole work, all in the same files.
    ///
    /// # Errors
    /// Several processes.
    pub fn join() -> Result<(), RanksError> {
        let count = |name: &&str| env::var(name).ok()?.parse::<usize>().ok();
        match STARTED.iter().find_map(count) {
            Some(count) if count > 1 => Err(RanksError::Carrier(format!(
                "this is one of {count} processes, but this build knows nothing of the others; build regard with `--features mpi`, or start it without mpirun"
            ))),
            _ => Ok(()),
        }
    }

    pub fn local_rank() -> usize {
        0
    }

    pub(super) fn joined() -> Option<&'static dyn Ranks> {
        None
    }

    pub fn part() {}

    pub fn kill(_code: u8) {}
}

pub use processes::{join, kill, local_rank};
use processes::{joined, part};
