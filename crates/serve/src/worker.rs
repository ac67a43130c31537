//! The model's thread: a queue of bounded length, and answers that nobody has to wait for.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::time::Duration;

use tokio::sync::oneshot;

use crate::{Ablation, Input, InputKind, Model, Seen};

/// What the page is told of a look: the answer, or a sentence.
type Answer = Result<Looked, String>;

/// A look that is done.
pub struct Looked {
    /// Where its trace is kept, if it is.
    pub id: Option<u64>,
    pub seen: Seen,
}

struct Job {
    input: Input,
    ablation: Ablation,
    keep: bool,
    answer: oneshot::Sender<Answer>,
}

/// Why there is no answer yet.
pub enum Late {
    Full,
    Timeout,
    Stopped,
}

/// The way to the model's thread.
pub struct Worker {
    pub name: String,
    pub input: InputKind,
    pub changes_heads: bool,
    jobs: SyncSender<Job>,
    timeout: Duration,
}

impl Worker {
    /// Starts the thread. It ends when this value is dropped and the look under way is done. `keep` stores a look and gives its place.
    pub fn start(
        model: Box<dyn Model>,
        queue: usize,
        timeout: Duration,
        keep: impl Fn(&Seen, &Input) -> u64 + Send + 'static,
    ) -> std::io::Result<Self> {
        let (jobs, received) = sync_channel(queue);
        let (name, input) = (model.name().to_owned(), model.input());
        let changes_heads = model.changes_heads();
        std::thread::Builder::new()
            .name("regard-model".to_owned())
            .spawn(move || work(model, received, keep))?;
        Ok(Self {
            name,
            input,
            changes_heads,
            jobs,
            timeout,
        })
    }

    /// The model's answer.
    pub async fn look(&self, input: Input, ablation: Ablation, keep: bool) -> Result<Answer, Late> {
        let (answer, answered) = oneshot::channel();
        let job = Job {
            input,
            ablation,
            keep,
            answer,
        };
        self.jobs.try_send(job).map_err(|error| match error {
            TrySendError::Full(_) => Late::Full,
            TrySendError::Disconnected(_) => Late::Stopped,
        })?;
        match tokio::time::timeout(self.timeout, answered).await {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(_)) => Err(Late::Stopped),
            Err(_) => Err(Late::Timeout),
        }
    }
}

fn work(mut model: Box<dyn Model>, jobs: Receiver<Job>, keep: impl Fn(&Seen, &Input) -> u64) {
    for job in jobs {
        // Who asked has gone, or has been told that it takes too long, before the model began.
        if job.answer.is_closed() {
            continue;
        }
        let look = || model.look(&job.input, &job.ablation);
        let answer = catch_unwind(AssertUnwindSafe(look)).unwrap_or_else(|_| {
            Err("the model failed on this input; change it, and report the input to the model's authors".to_owned())
        });
        // Kept before it is told, so that a look which came too late is found in the list.
        let answer = answer.map(|seen| Looked {
            id: job.keep.then(|| keep(&seen, &job.input)),
            seen,
        });
        let _ = job.answer.send(answer);
    }
}
