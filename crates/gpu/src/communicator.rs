//! Sums over processes that have an NVIDIA card each, by [NCCL](https://docs.nvidia.com/deeplearning/nccl/): numbers go from card to card, over
//! NVLink, PCIe or the network, and never through a program's memory.
//!
//! Burn's and CubeCL's own collective operations join the cards of one process. Here every process has its own, as `mpirun` starts them.

use std::{fmt, sync::Arc};

use burn::tensor::DType;
use burn_cubecl::tensor::CubeTensor;
use cubecl::{Device, cuda::CudaRuntime, future};
use cubecl_runtime::runtime::Runtime;
use cudarc::{
    driver::{CudaContext, CudaStream, DriverError},
    nccl::{
        Comm, Id, ReduceOp,
        result::{NcclError, NcclStatus},
        sys,
    },
};

/// One of several processes that sum the numbers of their cards, a card each.
///
/// All of them must call the same functions in the same order, as all wait for each other.
pub struct Communicator {
    communicator: Comm,
    stream: Arc<CudaStream>,
}

/// Why cards could not sum.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CommunicatorError {
    /// The tensors are on a device that NCCL does not know.
    NotCuda,
    /// There is no library.
    NoLibrary,
    /// What was given to [`Communicator::join`] is no identity.
    Identity,
    /// A call failed.
    Failed {
        /// The call.
        call: &'static str,
        /// What the library said.
        reason: String,
    },
}

impl fmt::Display for CommunicatorError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotCuda => f.write_str("this device is none of CUDA's"),
            Self::NoLibrary => f.write_str("there is no library libnccl.so"),
            Self::Identity => f.write_str("the identity of the group is not one of NCCL's"),
            Self::Failed { call, reason } => write!(f, "{call}: {reason}"),
        }
    }
}

impl std::error::Error for CommunicatorError {}

/// A call's result, with its name.
trait Told<T> {
    fn told(self, call: &'static str) -> Result<T, CommunicatorError>;
}

impl<T> Told<T> for Result<T, NcclError> {
    fn told(self, call: &'static str) -> Result<T, CommunicatorError> {
        self.map_err(|error| failed(call, error.0))
    }
}

impl<T> Told<T> for Result<T, DriverError> {
    fn told(self, call: &'static str) -> Result<T, CommunicatorError> {
        self.map_err(|error| failed(call, error))
    }
}

fn failed(call: &'static str, reason: impl fmt::Debug) -> CommunicatorError {
    let reason = format!("{reason:?}");
    CommunicatorError::Failed { call, reason }
}

impl Communicator {
    /// Whether this process can [`join`](Self::join) a group: there is a library for cards like `device`, and a stream on it.
    ///
    /// # Errors
    /// [`CommunicatorError::NotCuda`], [`CommunicatorError::NoLibrary`], [`CommunicatorError::Failed`].
    pub fn check(device: &Device) -> Result<(), CommunicatorError> {
        cuda_index(device)?;
        // SAFETY: loads the library and lets it go; the library's own initialisation is all that runs.
        if !unsafe { sys::is_culib_present() } {
            return Err(CommunicatorError::NoLibrary);
        }
        stream(device).map(|_| ())
    }

    /// A new group's identity, for one process to make and all to [`join`](Self::join) by: 128 bytes. Needs [`check`](Self::check).
    ///
    /// # Errors
    /// [`CommunicatorError::Failed`]: NCCL finds no network to meet by.
    pub fn identity() -> Result<Vec<u8>, CommunicatorError> {
        let id = Id::new().told("ncclGetUniqueId")?;
        Ok(id.internal().map(|byte| byte as u8).to_vec())
    }

    /// Joins the group of `count` processes as number `rank`, with the card `device`; returns when all have joined. Needs
    /// [`check`](Self::check).
    ///
    /// # Errors
    /// [`CommunicatorError`]: two processes have the same card, or they cannot reach each other.
    pub fn join(
        device: &Device,
        identity: &[u8],
        rank: usize,
        count: usize,
    ) -> Result<Self, CommunicatorError> {
        let identity: [u8; 128] = identity
            .try_into()
            .map_err(|_| CommunicatorError::Identity)?;
        let stream = stream(device)?;
        let id = Id::uninit(identity.map(|byte| byte as _));
        let communicator =
            Comm::from_rank(stream.clone(), rank, count, id).told("ncclCommInitRank")?;
        Ok(Self {
            communicator,
            stream,
        })
    }

    /// The sum of every process's `numbers` (`f32`, `[n]`, whole in memory, and nobody else's), in their place; returns when it is there.
    ///
    /// # Errors
    /// [`CommunicatorError`]: the numbers could not be computed, or another process is gone.
    ///
    /// # Panics
    /// If `numbers` are not `f32`, or not one after the other.
    pub fn sum(&self, numbers: CubeTensor) -> Result<CubeTensor, CommunicatorError> {
        assert_eq!(numbers.dtype, DType::F32, "numbers that are summed");
        assert!(numbers.is_contiguous(), "numbers one after the other");
        cuda_index(&numbers.device)?;
        let count = numbers.meta.num_elements();
        let client = &numbers.client;
        // This stream knows nothing of CubeCL's: the numbers must be there before, and stay until the sum is.
        future::block_on(client.sync()).map_err(|error| failed("cuStreamSynchronize", error))?;
        let memory = client
            .get_resource::<<CudaRuntime as Runtime>::Server>(numbers.handle.clone())
            .map_err(|error| failed("the card's memory", error))?;
        // SAFETY: `memory` keeps the `count` numbers at this address until the end of this function, and `leak` returns them before, so
        // that they are not freed twice. The caller owns them alone, and nothing of CubeCL's is at work on them.
        let mut slice = unsafe {
            self.stream
                .upgrade_device_ptr::<f32>(memory.resource().ptr, count)
        };
        let summed = self
            .communicator
            .all_reduce_in_place(&mut slice, &ReduceOp::Sum)
            .map(|_: NcclStatus| ());
        let done = self.stream.synchronize();
        slice.leak();
        summed.told("ncclAllReduce")?;
        done.told("ncclAllReduce")?;
        drop(memory);
        Ok(numbers)
    }
}

impl fmt::Debug for Communicator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Communicator").finish_non_exhaustive()
    }
}

/// A stream of the card's primary context, which is CubeCL's too.
fn stream(device: &Device) -> Result<Arc<CudaStream>, CommunicatorError> {
    let context = CudaContext::new(cuda_index(device)?).told("cuDevicePrimaryCtxRetain")?;
    context.new_stream().told("cuStreamCreate")
}

/// The number of a card of CUDA's.
fn cuda_index(device: &Device) -> Result<usize, CommunicatorError> {
    match device {
        Device::Cuda(card) => Ok(card.index),
        _ => Err(CommunicatorError::NotCuda),
    }
}
