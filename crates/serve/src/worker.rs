//! The model's thread: a queue of bounded length, and answers that nobody has to wait for. Where there are no threads, who asks waits.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::oneshot;

use crate::{InputKind, Model};

type Job = Box<dyn FnOnce(&mut dyn Model) + Send>;

/// Why there is no answer.
pub enum Unanswered {
    /// A sentence of the model.
    Refused(String),
    Full,
    /// It took too long for the work to begin; it will not be done.
    Waited,
    /// The work has begun, and takes too long.
    Timeout,
    Stopped,
}

/// The way to the model's thread.
pub struct Worker {
    pub name: String,
    pub input: InputKind,
    pub changes_heads: bool,
    pub shows_queries: bool,
    pub continues: bool,
    place: Place,
}

/// Where the model is.
enum Place {
    Thread {
        jobs: SyncSender<Job>,
        timeout: Duration,
    },
    Here(Mutex<Box<dyn Model>>),
}

impl Worker {
    /// Starts the thread. It ends when this value is dropped and the work under way is done.
    #[cfg(not(target_family = "wasm"))]
    pub fn start(
        mut model: Box<dyn Model>,
        queue: usize,
        timeout: Duration,
    ) -> std::io::Result<Self> {
        let (jobs, received) = sync_channel::<Job>(queue);
        let worker = Self::about(&*model)(Place::Thread { jobs, timeout });
        std::thread::Builder::new()
            .name("regard-model".to_owned())
            .spawn(move || {
                for job in received {
                    job(&mut *model);
                }
            })?;
        Ok(worker)
    }

    /// Does the work where it is asked for.
    pub fn here(model: Box<dyn Model>) -> Self {
        let about = Self::about(&*model);
        about(Place::Here(Mutex::new(model)))
    }

    fn about(model: &dyn Model) -> impl FnOnce(Place) -> Self + use<> {
        let name = model.name().to_owned();
        let input = model.input();
        let changes_heads = model.changes_heads();
        let shows_queries = model.shows_queries();
        let continues = model.continues();
        move |place| Self {
            name,
            input,
            changes_heads,
            shows_queries,
            continues,
            place,
        }
    }

    /// What `work` gives on the model's thread. If it comes too late, it is done all the same, unless it had not begun.
    pub async fn ask<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut dyn Model) -> Result<T, String> + Send + 'static,
    ) -> Result<T, Unanswered> {
        let (jobs, timeout) = match &self.place {
            Place::Thread { jobs, timeout } => (jobs, *timeout),
            Place::Here(model) => {
                let mut model = model.lock().unwrap_or_else(PoisonError::into_inner);
                return work(&mut **model).map_err(Unanswered::Refused);
            }
        };
        let (answer, answered) = oneshot::channel();
        let begun = Arc::new(AtomicBool::new(false));
        let begins = begun.clone();
        let job = move |model: &mut dyn Model| {
            // Who asked has gone, or has been told that it takes too long.
            if answer.is_closed() {
                return;
            }
            begins.store(true, Ordering::Relaxed);
            let done = catch_unwind(AssertUnwindSafe(|| work(model))).unwrap_or_else(|_| {
                Err("the model failed on this input; change it, and report the input to the model's authors".to_owned())
            });
            let _ = answer.send(done);
        };
        jobs.try_send(Box::new(job)).map_err(|error| match error {
            TrySendError::Full(_) => Unanswered::Full,
            TrySendError::Disconnected(_) => Unanswered::Stopped,
        })?;
        match tokio::time::timeout(timeout, answered).await {
            Ok(Ok(done)) => done.map_err(Unanswered::Refused),
            Ok(Err(_)) => Err(Unanswered::Stopped),
            Err(_) if begun.load(Ordering::Relaxed) => Err(Unanswered::Timeout),
            Err(_) => Err(Unanswered::Waited),
        }
    }
}
