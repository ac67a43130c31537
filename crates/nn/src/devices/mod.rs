//! Graphics cards by their names, as far as this build reaches them: `cuda:0`, `cuda:1` ... (NVIDIA's, with the feature `cuda`) and
//! `wgpu:0`, `wgpu:1` ... (any maker's by Vulkan, Metal or DirectX, with the feature `wgpu`). Without these features there are none.
//! A [`Communicator`] sums over processes that have a card each.
//!
//! ```
//! use burn::tensor::{Device, Tensor};
//!
//! let device = match regard_nn::devices::cards().into_iter().next() {
//!     Some((name, card)) => {
//!         println!("{name}: {}", regard_nn::devices::describe(&card));
//!         card
//!     }
//!     None => Device::flex(),
//! };
//! let x = Tensor::<1>::from_data([1.0, 2.0], &device);
//! assert_eq!(x.sum().into_scalar::<f32>(), 3.0);
//! ```

mod communicator;

#[cfg(feature = "gpu")]
use burn::backend::DispatchDevice;
use burn::tensor::{Device, DeviceType};

pub use communicator::Communicator;

/// The cards of this machine that this build reaches, NVIDIA's by CUDA first.
pub fn cards() -> Vec<(String, Device)> {
    let kinds = Vec::<(&str, DeviceType)>::from([
        #[cfg(feature = "cuda")]
        ("cuda", DeviceType::Cuda),
        #[cfg(feature = "wgpu")]
        ("wgpu", DeviceType::Wgpu),
    ]);
    let of_kind = |(kind, of)| {
        let found = Device::enumerate(of).into_iter().enumerate();
        found.map(move |(index, card)| (format!("{kind}:{index}"), card))
    };
    kinds.into_iter().flat_map(of_kind).collect()
}

/// How a device names itself.
pub fn describe(device: &Device) -> String {
    #[cfg(feature = "gpu")]
    if let Some(identity) = device.identity() {
        return identity.name;
    }
    format!("{device:?}")
}

/// Whether `device` is a card, and no program that plays one.
pub fn is_hardware(device: &Device) -> bool {
    #[cfg(feature = "gpu")]
    return device
        .identity()
        .is_some_and(|identity| identity.physical.is_some());
    #[cfg(not(feature = "gpu"))]
    {
        let _ = device;
        false
    }
}

/// Whether `device` is one of those that [`cards`] may give, a program that plays a card included.
pub fn is_card(device: &Device) -> bool {
    match device.clone().inner().as_dispatch() {
        #[cfg(feature = "gpu")]
        DispatchDevice::Cube(_) => true,
        _ => false,
    }
}
