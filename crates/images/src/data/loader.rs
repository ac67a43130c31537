//! Examples made on other threads than the one that uses them.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::{Builder, JoinHandle};

use super::Broken;
use crate::ImagesError;

/// How examples are loaded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Loading {
    /// Threads. Default 1: decoding small images is quick beside a training step.
    pub threads: usize,
    /// Examples that wait for the consumer, for each thread, at most. Default 32.
    pub ahead: usize,
    /// What happens with a broken image ([`ImagesError::is_broken_image`]). Default an error.
    pub broken: Broken,
}

impl Default for Loading {
    fn default() -> Self {
        Self {
            threads: 1,
            ahead: 32,
            broken: Broken::default(),
        }
    }
}

/// An iterator over examples that threads make ahead of it, in the order asked for, whatever the number of threads.
///
/// Thread `t` of `n` makes the examples at places `t`, `t + n`, `t + 2n`, ... of the order and waits when its queue is full. An
/// error is given at the place of its example and ends the iterator. Dropping the loader stops the threads and waits for the
/// example that each is at.
///
/// ```
/// use regard_images::data::{Loader, Loading};
/// let loading = Loading { threads: 2, ..Loading::default() };
/// let loader = Loader::start(vec![3, 1, 2], &loading, |i| Ok(i * 10))?;
/// assert_eq!(loader.collect::<Result<Vec<_>, _>>()?, [30, 10, 20]);
/// # Ok::<(), regard_images::ImagesError>(())
/// ```
#[derive(Debug)]
pub struct Loader<T> {
    /// Of the thread whose turn is next, in front.
    queues: VecDeque<Receiver<Result<T, ImagesError>>>,
    threads: Vec<JoinHandle<()>>,
    left: usize,
    broken: Broken,
    skipped: Vec<ImagesError>,
}

impl<T: Send + 'static> Loader<T> {
    /// Starts the threads; `make` makes the example of an index of `order`. What is random in it should depend on a seed and the
    /// index alone, as by [`Random::new`](crate::Random::new).
    ///
    /// # Errors
    /// [`ImagesError::Option`] without threads or with more than 1,024, and for a queue of 0 or above 65,536;
    /// [`ImagesError::Thread`] if the system has no thread.
    pub fn start<F>(order: Vec<usize>, loading: &Loading, make: F) -> Result<Self, ImagesError>
    where
        F: Fn(usize) -> Result<T, ImagesError> + Send + Sync + 'static,
    {
        for (option, value, most) in [
            ("threads", loading.threads, 1024),
            ("ahead", loading.ahead, 1 << 16),
        ] {
            if !(1..=most).contains(&value) {
                return Err(ImagesError::Option {
                    option,
                    given: value.to_string(),
                    expected: format!("a number from 1 to {most}"),
                });
            }
        }
        let mut loader = Self {
            queues: VecDeque::new(),
            threads: vec![],
            left: order.len(),
            broken: loading.broken,
            skipped: vec![],
        };
        let (order, make) = (Arc::new(order), Arc::new(make));
        let count = loading.threads.min(order.len());
        for first in 0..count {
            let (sender, receiver) = sync_channel(loading.ahead);
            let (order, make) = (order.clone(), make.clone());
            let work = move || {
                let own = order.iter().skip(first).step_by(count);
                send_all(own.copied(), &*make, &sender);
            };
            let thread = Builder::new().name(format!("images {first}")).spawn(work);
            loader
                .threads
                .push(thread.map_err(|error| ImagesError::Thread {
                    reason: format!("the system gave no thread: {error}"),
                })?);
            loader.queues.push_back(receiver);
        }
        Ok(loader)
    }
}

impl<T> Loader<T> {
    /// What was left out so far, and why.
    pub fn skipped(&self) -> &[ImagesError] {
        &self.skipped
    }

    fn stop(&mut self) {
        self.left = 0;
        // A thread that waits for room finds that there is nobody to take.
        self.queues.clear();
        for thread in self.threads.drain(..) {
            // Panics of the work were caught, and become errors where the example is due.
            let _ = thread.join();
        }
    }
}

fn send_all<T>(
    indices: impl Iterator<Item = usize>,
    make: &dyn Fn(usize) -> Result<T, ImagesError>,
    sender: &SyncSender<Result<T, ImagesError>>,
) {
    for index in indices {
        let made = catch_unwind(AssertUnwindSafe(|| make(index))).unwrap_or_else(|panic| {
            let message = panic.downcast_ref::<String>().map(String::as_str);
            let message = message
                .or(panic.downcast_ref::<&str>().copied())
                .unwrap_or("no message");
            Err(ImagesError::Thread {
                reason: format!("making example {index} panicked: {message}"),
            })
        });
        if sender.send(made).is_err() {
            return;
        }
    }
}

impl<T> Iterator for Loader<T> {
    type Item = Result<T, ImagesError>;

    fn next(&mut self) -> Option<Self::Item> {
        while self.left > 0 {
            self.left -= 1;
            let queue = self.queues.pop_front()?;
            let made = queue.recv().unwrap_or_else(|_| {
                Err(ImagesError::Thread {
                    reason: "a loading thread ended early".to_owned(),
                })
            });
            self.queues.push_back(queue);
            match made {
                Ok(example) => return Some(Ok(example)),
                Err(error) if self.broken == Broken::Skip && error.is_broken_image() => {
                    self.skipped.push(error);
                }
                Err(error) => {
                    self.stop();
                    return Some(Err(error));
                }
            }
        }
        None
    }
}

impl<T> Drop for Loader<T> {
    fn drop(&mut self) {
        self.stop();
    }
}
