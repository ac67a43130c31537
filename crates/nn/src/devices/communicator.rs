//! Sums over processes whose tensors are on cards.

use burn::tensor::{Device, Tensor};

#[cfg(feature = "cuda")]
use regard_gpu::Communicator as OfCards;

#[cfg(feature = "cuda")]
use crate::bridge::card;

/// What a build without CUDA has in the place of NCCL: nothing.
#[cfg(not(feature = "cuda"))]
#[derive(Debug)]
enum OfCards {}

/// One of several processes that sum tensors of their cards by [NCCL](https://docs.nvidia.com/deeplearning/nccl/), from card to card: one of
/// NVIDIA's each.
///
/// All processes must call the same functions in the same order, as all wait for each other. Errors are what NCCL says.
#[derive(Debug)]
pub struct Communicator(OfCards);

impl Communicator {
    /// Whether tensors of `device` can be summed so.
    ///
    /// # Errors
    /// Why not: a build without `cuda`, another kind of device, no library.
    pub fn check(device: &Device) -> Result<(), String> {
        #[cfg(feature = "cuda")]
        return match card::device(device) {
            Some(card) => OfCards::check(&card).map_err(|error| error.to_string()),
            None => Err("this device is no card".to_owned()),
        };
        #[cfg(not(feature = "cuda"))]
        Err(format!("a build without CUDA has no NCCL for {device:?}"))
    }

    /// The identity of a new group, made by one process for all to [`join`](Self::join) by. Only where [`check`](Self::check) is.
    ///
    /// # Errors
    /// NCCL finds no network.
    pub fn identity() -> Result<Vec<u8>, String> {
        #[cfg(feature = "cuda")]
        return OfCards::identity().map_err(|error| error.to_string());
        #[cfg(not(feature = "cuda"))]
        Ok(vec![])
    }

    /// Joins a group of `count` processes as number `rank`, once all do. Only where [`check`](Self::check) is.
    ///
    /// # Errors
    /// Two processes have the same card, or cannot reach each other.
    pub fn join(
        device: &Device,
        identity: &[u8],
        rank: usize,
        count: usize,
    ) -> Result<Self, String> {
        Self::check(device)?;
        #[cfg(feature = "cuda")]
        return {
            let card = card::device(device).expect("it is checked");
            let joined = OfCards::join(&card, identity, rank, count);
            joined.map(Self).map_err(|error| error.to_string())
        };
        #[cfg(not(feature = "cuda"))]
        unreachable!("nothing passes the check: {identity:?} of {rank} of {count}")
    }

    /// The sum of the processes' `numbers` `[n]`, in the memory of this one's.
    ///
    /// # Errors
    /// The numbers could not be computed, or another process is gone.
    pub fn sum(&self, numbers: Tensor<1>) -> Result<Tensor<1>, String> {
        #[cfg(feature = "cuda")]
        return card::with(numbers, |numbers| {
            self.0.sum(numbers).map_err(|error| error.to_string())
        });
        #[cfg(not(feature = "cuda"))]
        {
            let (Self(never), _) = (self, numbers);
            match *never {}
        }
    }
}
