//! The devices that this build can compute on, by their names, and what becomes of a device that fails.
//!
//! | name | device | feature of the build |
//! |---|---|---|
//! | `cpu` | the processor, with the kernels of `regard-kernels` | always there |
//! | `cuda:0`, `cuda:1` ... | NVIDIA's cards, by CUDA | `cuda` |
//! | `wgpu:0`, `wgpu:1` ... | cards of any maker, by Vulkan, Metal or DirectX | `wgpu` |
//! | `gpu` | the best of these cards | either |
//!
//! A kind alone is its number 0.

use std::{
    panic::{self, AssertUnwindSafe, PanicHookInfo},
    str::FromStr,
    sync::{Mutex, OnceLock, PoisonError},
};

#[cfg(feature = "wgpu")]
use burn::tensor::DeviceKind;
use burn::tensor::Device;
#[cfg(any(feature = "cuda", feature = "wgpu"))]
use burn::tensor::DeviceType;

use crate::{
    failure::{CommandError, Failure},
    output,
};

/// The kinds beside the processor, best first: each is a feature of the build.
const KINDS: [(&str, bool); 2] = [
    ("cuda", cfg!(feature = "cuda")),
    ("wgpu", cfg!(feature = "wgpu")),
];
/// Names that people know for what `wgpu` reaches.
const BY_WGPU: [&str; 4] = ["vulkan", "metal", "dx12", "webgpu"];
/// The libraries between us and a device: a panic in one of them is the device's failure.
const LIBRARIES: [&str; 8] = [
    "burn-cubecl",
    "cubecl",
    "cubek",
    "cudarc",
    "naga",
    "wgpu",
    "ash-",
    "metal-",
];
/// The device of this process, if it is not the processor.
static CHOSEN: OnceLock<String> = OnceLock::new();
/// What the first of its libraries to fail said.
static FAILED: Mutex<Option<String>> = Mutex::new(None);

/// A device, by its name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceName {
    kind: String,
    index: usize,
}

impl Default for DeviceName {
    fn default() -> Self {
        Self {
            kind: "cpu".to_owned(),
            index: 0,
        }
    }
}

impl FromStr for DeviceName {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (kind, index) = match text.split_once(':') {
            Some((kind, index)) => (kind, index.parse().ok()),
            None => (text, Some(0)),
        };
        let alone = ["cpu", "gpu"].contains(&kind);
        let numbered = KINDS.iter().any(|(known, _)| *known == kind) || BY_WGPU.contains(&kind);
        match index {
            Some(index) if numbered || (alone && kind == text) => Ok(Self {
                kind: kind.to_owned(),
                index,
            }),
            _ => Err("there is no such kind of device; expected cpu, gpu, cuda:NUMBER or wgpu:NUMBER".to_owned()),
        }
    }
}

impl std::fmt::Display for DeviceName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.kind.as_str() {
            "cpu" | "gpu" => f.write_str(&self.kind),
            kind => write!(f, "{kind}:{}", self.index),
        }
    }
}

impl DeviceName {
    /// Does `work` with the device. A device that fails meanwhile, for want of memory for instance, ends it with an error.
    ///
    /// # Errors
    /// A device that is not there or fails; those of `work`.
    pub fn with<T>(&self, work: impl FnOnce(&Device) -> Result<T, Failure>) -> Result<T, Failure> {
        if self.kind == "cpu" {
            return work(&Device::flex());
        }
        let (name, device) = self.find()?;
        let name = CHOSEN.get_or_init(|| name).clone();
        match panic::catch_unwind(AssertUnwindSafe(|| work(&device))) {
            Ok(done) => done,
            Err(told) => match failed().take() {
                Some(reason) => Err(CommandError::DeviceFailed { name, reason }.into()),
                None => panic::resume_unwind(told),
            },
        }
    }

    fn find(&self) -> Result<(String, Device), CommandError> {
        let mut there = cards();
        let wanted = self.to_string();
        let place = match self.kind.as_str() {
            "gpu" => best(&there),
            _ => there.iter().position(|(name, _)| *name == wanted),
        };
        if let Some(place) = place {
            return Ok(there.swap_remove(place));
        }
        let missing = |kind: &&(&str, bool)| {
            let asked = self.kind == kind.0 || self.kind == "gpu";
            !kind.1 && (asked || (kind.0 == "wgpu" && BY_WGPU.contains(&&*self.kind)))
        };
        let missing: Vec<_> = KINDS.iter().filter(missing).map(|kind| kind.0).collect();
        let advice = match (missing.is_empty(), BY_WGPU.contains(&&*self.kind)) {
            (false, _) => format!(", or build regard with `--features {}`", missing.join(",")),
            (true, true) => "; Vulkan, Metal and DirectX are reached by wgpu".to_owned(),
            (true, false) => String::new(),
        };
        Err(CommandError::NoDevice {
            name: wanted,
            known: names(&there).join(", "),
            advice,
        })
    }
}

/// The devices of this machine that this build can compute on, each with what it is: `wgpu:0 (NVIDIA H100)`.
pub fn list() -> Vec<String> {
    let described = cards().into_iter().map(|(name, _device)| {
        #[cfg(any(feature = "cuda", feature = "wgpu"))]
        if let Ok(Some(identity)) = panic::catch_unwind(|| _device.identity()) {
            return format!("{name} ({})", identity.name);
        }
        name
    });
    std::iter::once("cpu".to_owned()).chain(described).collect()
}

/// Says on standard error, once, that `what` computes on the processor, if another device was asked for.
pub fn tell_cpu(what: &str) {
    static TOLD: OnceLock<()> = OnceLock::new();
    if let Some(chosen) = CHOSEN.get()
        && TOLD.set(()).is_ok()
    {
        output::warn(&format!(
            "{what}: the CPU computes, not {chosen}, as there are kernels for the CPU alone"
        ));
    }
}

/// Whether a panic is the failure of a device, which [`DeviceName::with`] makes an error.
pub fn is_failure(info: &PanicHookInfo<'_>) -> bool {
    let message = info.payload_as_str().unwrap_or_default();
    let file = info.location().map_or("", |location| location.file());
    let mut folders = file.split(['/', '\\']);
    let of_library = folders.any(|folder| LIBRARIES.iter().any(|name| folder.starts_with(name)));
    // Burn passes on what its libraries report as it reads numbers back.
    let passed_on = folders_of_burn(file) && message.starts_with("Error while reading data");
    if CHOSEN.get().is_none() || !(of_library || passed_on) {
        return false;
    }
    let first_lines: Vec<_> = message.lines().take(3).collect();
    failed().get_or_insert_with(|| first_lines.join(" "));
    true
}

fn folders_of_burn(file: &str) -> bool {
    file.contains("burn-tensor")
}

fn failed() -> std::sync::MutexGuard<'static, Option<String>> {
    FAILED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The devices beside the processor, by name.
fn cards() -> Vec<(String, Device)> {
    #[allow(unused_mut)] // in a build for the processor alone
    let mut cards = vec![];
    #[cfg(feature = "cuda")]
    numbered("cuda", DeviceType::Cuda, &mut cards);
    #[cfg(feature = "wgpu")]
    numbered("wgpu", DeviceType::Wgpu, &mut cards);
    cards
}

#[cfg(any(feature = "cuda", feature = "wgpu"))]
fn numbered(kind: &str, of: DeviceType, cards: &mut Vec<(String, Device)>) {
    let found = Device::enumerate(of).into_iter().enumerate();
    cards.extend(found.map(|(index, device)| (format!("{kind}:{index}"), device)));
}

/// The best of `cards`: NVIDIA's by CUDA, then by kind, and a program that plays a card last.
fn best(cards: &[(String, Device)]) -> Option<usize> {
    #[cfg(feature = "wgpu")]
    {
        let is_cuda = |name: &str| name.starts_with("cuda");
        let kinds = [
            DeviceKind::DiscreteGpu(0),
            DeviceKind::IntegratedGpu(0),
            DeviceKind::VirtualGpu(0),
        ];
        let of_kind = |kind| {
            let wanted = Device::wgpu(kind);
            cards.iter().position(|(_, device)| *device == wanted)
        };
        let by_cuda = cards.iter().position(|(name, _)| is_cuda(name));
        if let Some(found) = by_cuda.or_else(|| kinds.into_iter().find_map(of_kind)) {
            return Some(found);
        }
    }
    (!cards.is_empty()).then_some(0)
}

fn names(cards: &[(String, Device)]) -> Vec<String> {
    let cards = cards.iter().map(|(name, _)| name.clone());
    std::iter::once("cpu".to_owned()).chain(cards).collect()
}
