//! Threads of one process in the place of processes.

use std::sync::{
    Arc, Mutex,
    mpsc::{Receiver, Sender, channel},
};

use super::{Ranks, RanksError};

/// One of several threads that work as [`Ranks`]: what several processes do can be tested in one.
///
/// ```
/// use regard_train::ranks::{Ranks, Threads};
///
/// let sums: Vec<f32> = std::thread::scope(|scope| {
///     let ranks = Threads::new(3).into_iter();
///     let running: Vec<_> = ranks
///         .map(|ranks| scope.spawn(move || {
///             let ranks: &dyn Ranks = &ranks;
///             let mut values = [ranks.rank() as f32 + 1.0];
///             ranks.sum(&mut values).unwrap();
///             values[0]
///         }))
///         .collect();
///     running.into_iter().map(|thread| thread.join().unwrap()).collect()
/// });
/// assert_eq!(sums, [6.0; 3]);
/// ```
#[derive(Debug)]
pub struct Threads {
    rank: usize,
    /// To each rank.
    senders: Vec<Sender<Vec<u8>>>,
    /// From each rank; locked, as a receiver cannot be shared.
    receivers: Mutex<Vec<Receiver<Vec<u8>>>>,
    /// Bytes that all ranks have sent to others.
    sent: Arc<Mutex<u64>>,
}

impl Threads {
    /// `count` ranks, one for each thread.
    pub fn new(count: usize) -> Vec<Self> {
        let sent = Arc::new(Mutex::new(0));
        let mut senders: Vec<Vec<_>> = (0..count).map(|_| vec![]).collect();
        let mut receivers: Vec<Vec<_>> = (0..count).map(|_| vec![]).collect();
        for from in &mut senders {
            for to in &mut receivers {
                let (sender, receiver) = channel();
                from.push(sender);
                to.push(receiver);
            }
        }
        let both = senders.into_iter().zip(receivers).enumerate();
        both.map(|(rank, (senders, receivers))| Self {
            rank,
            senders,
            receivers: Mutex::new(receivers),
            sent: Arc::clone(&sent),
        })
        .collect()
    }

    /// Bytes that all ranks together have sent to other ranks so far.
    pub fn sent(&self) -> u64 {
        *self
            .sent
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

impl Ranks for Threads {
    fn rank(&self) -> usize {
        self.rank
    }

    fn count(&self) -> usize {
        self.senders.len()
    }

    fn exchange(&self, to: &[&[u8]]) -> Result<Vec<Vec<u8>>, RanksError> {
        assert_eq!(to.len(), self.count(), "a message for each rank");
        // Messages of a rank stay in order, so that two exchanges cannot be confused.
        let receivers = self.receivers.lock().map_err(|_| RanksError::Gone)?;
        let others = to.iter().enumerate().filter(|&(rank, _)| rank != self.rank);
        let bytes: usize = others.map(|(_, message)| message.len()).sum();
        *self.sent.lock().map_err(|_| RanksError::Gone)? += bytes as u64;
        for (sender, message) in self.senders.iter().zip(to) {
            sender
                .send(message.to_vec())
                .map_err(|_| RanksError::Gone)?;
        }
        let receive = |receiver: &Receiver<Vec<u8>>| receiver.recv().map_err(|_| RanksError::Gone);
        receivers.iter().map(receive).collect()
    }
}
