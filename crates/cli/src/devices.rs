//! The devices that this build can compute on, by their names, and what becomes of one that fails.
//!
//! | name | device | feature of the build |
//! |---|---|---|
//! | `cpu` | the processor, with the kernels of `regard-kernels` | always there |
//! | `cuda:0`, `cuda:1` ... | NVIDIA's cards, by CUDA | `cuda` |
//! | `wgpu:0`, `wgpu:1` ... | cards of any maker, by Vulkan, Metal or DirectX | `wgpu` |
//! | `gpu` | the first of these cards | either |
//!
//! A kind alone is its number 0. If `mpirun` started several processes on this machine, `gpu` is another card of the first one's kind for
//! each, in turns if there are fewer cards.

use std::{
    fmt,
    panic::{self, AssertUnwindSafe, PanicHookInfo},
    str::FromStr,
    sync::{Mutex, OnceLock, PoisonError},
};

use burn::tensor::Device;
use regard_nn::devices::{cards, describe, is_hardware};

use crate::{
    failure::{CommandError, Failure},
    output, ranks,
};

/// Kinds of cards, the feature of the build that reaches them, and whether this build has it.
const KINDS: [(&str, &str, bool); 3] = [
    ("gpu", "wgpu", cfg!(any(feature = "cuda", feature = "wgpu"))),
    ("cuda", "cuda", cfg!(feature = "cuda")),
    ("wgpu", "wgpu", cfg!(feature = "wgpu")),
];
/// The card of this process, if it does not compute on the processor.
static CHOSEN: OnceLock<String> = OnceLock::new();
/// What the first of the card's libraries to fail said.
static FAILED: Mutex<Option<String>> = Mutex::new(None);

/// A device, by its name.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum DeviceName {
    /// The processor.
    #[default]
    Cpu,
    /// The first card, or the next ones for further processes.
    Gpu,
    /// A card: `cuda:0`.
    Card(String),
}

impl FromStr for DeviceName {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (kind, index) = text.split_once(':').unwrap_or((text, "0"));
        let known = KINDS[1..].iter().any(|(name, ..)| *name == kind);
        match (text, index.parse::<u16>()) {
            ("cpu", _) => Ok(Self::Cpu),
            ("gpu", _) => Ok(Self::Gpu),
            (_, Ok(index)) if known => Ok(Self::Card(format!("{kind}:{index}"))),
            _ => Err(
                "there is no such kind of device; expected cpu, gpu, cuda:NUMBER or wgpu:NUMBER"
                    .to_owned(),
            ),
        }
    }
}

impl fmt::Display for DeviceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Cpu => "cpu",
            Self::Gpu => "gpu",
            Self::Card(name) => name,
        })
    }
}

impl DeviceName {
    /// Does `work` with the device. A card that fails meanwhile, for want of memory for instance, ends it with an error.
    ///
    /// # Errors
    /// A device that is not there or fails; those of `work`.
    pub fn with<T>(&self, work: impl FnOnce(&Device) -> Result<T, Failure>) -> Result<T, Failure> {
        let Some((name, device)) = self.card()? else {
            return work(&Device::flex());
        };
        let name = CHOSEN.get_or_init(|| name).clone();
        let ended = panic::catch_unwind(AssertUnwindSafe(|| work(&device)));
        ended.unwrap_or_else(|panicked| match failed().take() {
            Some(reason) => Err(CommandError::DeviceFailed { name, reason }.into()),
            None => panic::resume_unwind(panicked),
        })
    }

    /// The card of this name; `None` for the processor.
    fn card(&self) -> Result<Option<(String, Device)>, CommandError> {
        if *self == Self::Cpu {
            return Ok(None);
        }
        let cards = cards();
        let found = match self {
            Self::Gpu => by_local_rank(&cards, ranks::local_rank()),
            name => cards.iter().find(|(card, _)| *card == name.to_string()),
        };
        if let Some(found) = found {
            return Ok(Some(found.clone()));
        }
        let name = self.to_string();
        let kind = name.split(':').next();
        let missing = KINDS
            .iter()
            .find(|(known, _, built)| Some(*known) == kind && !built);
        let names = cards.into_iter().map(|(name, _)| name);
        let known: Vec<_> = std::iter::once("cpu".to_owned()).chain(names).collect();
        Err(CommandError::NoDevice {
            name,
            known: known.join(", "),
            advice: match missing {
                Some((_, feature, _)) => {
                    format!("; a build with `--features {feature}` may find more")
                }
                None => String::new(),
            },
        })
    }
}

/// The first of the cards, or for further processes of this machine the next one of its kind. A program that plays a card is taken only if
/// there is no other.
fn by_local_rank(cards: &[(String, Device)], local_rank: usize) -> Option<&(String, Device)> {
    let kind = |(name, card): &(String, Device)| {
        (is_hardware(card), name.split(':').next().map(str::to_owned))
    };
    let real = cards.iter().find(|(_, card)| is_hardware(card));
    let first = kind(real.or(cards.first())?);
    let alike: Vec<_> = cards.iter().filter(|card| kind(card) == first).collect();
    Some(alike[local_rank % alike.len()])
}

/// The devices of this machine that this build can compute on, each with what it is: `wgpu:0 (NVIDIA H100)`.
pub fn list() -> Vec<String> {
    let cards = cards().into_iter();
    let described = cards.map(|(name, card)| format!("{name} ({})", describe(&card)));
    std::iter::once("cpu".to_owned()).chain(described).collect()
}

/// Says on standard error, once, that `what` computes on the processor, if a card was asked for: it has kernels for the CPU alone.
pub fn tell_cpu(what: &str) {
    tell_cpu_as(what, "this has kernels for the CPU alone");
}

/// The same for another reason.
pub fn tell_cpu_as(what: &str, why: &str) {
    static TOLD: OnceLock<()> = OnceLock::new();
    if let Some(chosen) = CHOSEN.get()
        && TOLD.set(()).is_ok()
    {
        output::warn(&format!(
            "{what}: computed on the CPU, not on {chosen}, as {why}"
        ));
    }
}

/// Whether a panic is the failure of a card, which [`DeviceName::with`] makes an error.
pub fn is_failure(info: &PanicHookInfo<'_>) -> bool {
    let message = info.payload_as_str().unwrap_or_default();
    let file = info.location().map_or("", |location| location.file());
    let libraries = ["cube", "wgpu", "cudarc", "naga"];
    // Burn passes on what they report as it reads numbers back.
    let failed_there = libraries.iter().any(|library| file.contains(library))
        || message.starts_with("Error while reading data");
    if CHOSEN.get().is_none() || !failed_there {
        return false;
    }
    failed().get_or_insert_with(|| cause(message));
    true
}

/// What went wrong, by a library's message: CubeCL and wgpu tell what came of it first, and the failure itself after the last `Caused by:`.
/// Addresses of calls are left out.
fn cause(message: &str) -> String {
    let cause = message.rsplit("Caused by:").next().unwrap_or(message);
    let lines = cause.lines().map(str::trim);
    let lines = lines.filter(|line| !line.is_empty());
    let told =
        lines.take_while(|line| *line != "No backtrace available" && !line.starts_with("0:"));
    told.take(3).collect::<Vec<_>>().join(" ")
}

fn failed() -> std::sync::MutexGuard<'static, Option<String>> {
    FAILED.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_parsed() {
        let card = |name: &str| Ok(DeviceName::Card(name.to_owned()));
        assert_eq!("cpu".parse(), Ok(DeviceName::Cpu));
        assert_eq!("gpu".parse(), Ok(DeviceName::Gpu));
        assert_eq!("cuda".parse(), card("cuda:0"));
        assert_eq!("wgpu:12".parse(), card("wgpu:12"));
        for wrong in [
            "", "tpu", "vulkan", "metal:0", "dx12", "cpu:0", "gpu:1", "cuda:", "cuda:-1", "cuda:x",
            "wgpu:0:0",
        ] {
            let error = wrong.parse::<DeviceName>().unwrap_err();
            assert!(error.contains("expected cpu"), "{wrong}: {error}");
        }
        for name in ["cpu", "gpu", "cuda:3"] {
            assert_eq!(name.parse::<DeviceName>().unwrap().to_string(), name);
        }
    }

    #[test]
    fn processes_of_a_machine_take_turns_at_cards_of_one_kind() {
        let names = ["cuda:0", "cuda:1", "wgpu:0"];
        let cards = names.map(|name| (name.to_owned(), Device::flex()));
        let chosen =
            [0, 1, 2].map(|rank| by_local_rank(&cards, rank).map(|(name, _)| name.as_str()));
        assert_eq!(chosen, ["cuda:0", "cuda:1", "cuda:0"].map(Some));
        assert!(by_local_rank(&[], 0).is_none());
    }

    #[test]
    fn the_cause_of_a_failure_is_told() {
        let message = "Error while reading data: Execution(An error happened during execution
Caused by:
  The bytes were never written (failure #179, still claiming 3 buffer(s))
  skipped `ReduceKernel`: it needed memory ManagedMemoryId { value: 536 }, which carried the failure
Caused by:
  An IO error happened
Caused by:
  out of device memory allocating 4194304 bytes
No backtrace available
Asked at:
No backtrace available)";
        let expected = "out of device memory allocating 4194304 bytes";
        assert_eq!(cause(message), expected);
        let addresses =
            "Caused by:\n  out of device memory allocating 4194304 bytes\n   0: alloc\n   1: main";
        assert_eq!(cause(addresses), expected);
        let nested = "wgpu error: Validation Error\n\nCaused by:\n  In Device::create_buffer\n    Buffer size 9 is greater than 8\n";
        let expected = "In Device::create_buffer Buffer size 9 is greater than 8";
        assert_eq!(cause(nested), expected);
        assert_eq!(cause("the card\nis gone"), "the card is gone");
    }

    #[test]
    fn a_card_that_is_not_there_is_an_error_with_those_that_are() {
        let error = DeviceName::Card("cuda:999".to_owned()).card().unwrap_err();
        let error = error.to_string();
        assert!(
            error.contains("cuda:999") && error.contains("cpu"),
            "{error}"
        );
        assert_eq!(
            error.contains("--features cuda"),
            !cfg!(feature = "cuda"),
            "{error}"
        );
    }
}
