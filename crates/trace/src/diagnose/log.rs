//! The validations of a training, from the lines of its log (`metrics.jsonl` in the run folder): losses, and with
//! `validation.diagnose` in the recipe the [measures of every layer](super::layer).
//!
//! ```
//! use regard_trace::diagnose::log;
//!
//! let line = r#"{"kind":"validation","step":50,"seconds":1.5,"loss":2.25,"attention":
//!     [{"map":"encoder.self","layer":0,"heads":4,"entropy":1.1,"diagonality":0.7,"dead":0,"sinks":1}]}"#.replace('\n', " ");
//! let found = log::validations(&format!("{line}\n{{\"kind\":\"train\",\"step\":60}}\n{{\"kind\":\"val"));
//! assert_eq!((found.len(), found[0].step, found[0].attention[0].sinks), (1, 50, 1));
//! ```

use std::{
    fs::File,
    io::Read,
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};

use super::LayerMeasures;
use crate::TraceError;

/// The name of the log in a run folder.
pub const FILE: &str = "metrics.jsonl";

/// The largest log that is read, in bytes.
const MAX_BYTES: u64 = 1 << 28;

/// One validation during training.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Validation {
    /// Updates done.
    pub step: u64,
    /// Seconds of training until then.
    pub seconds: f64,
    /// Nats per prediction.
    pub loss: f64,
    /// The measures of every layer; empty if they were not asked for.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub attention: Vec<LayerMeasures>,
}

/// The validations among the lines of a log, in order. Other lines, and one that a crash cut short, are passed over.
pub fn validations(log: &str) -> Vec<Validation> {
    #[derive(Deserialize)]
    #[serde(tag = "kind", rename_all = "kebab-case")]
    enum Line {
        Validation(Validation),
        #[serde(other)]
        Other,
    }
    let lines = log
        .lines()
        .filter_map(|line| serde_json::from_str(line).ok());
    let found = lines.filter_map(|line| match line {
        Line::Validation(validation) => Some(validation),
        Line::Other => None,
    });
    found.collect()
}

/// The log of a training: `path` itself if its name ends with `.jsonl`, or the file [`FILE`] in the folder `path`; `None` if it is
/// neither.
pub fn path_of(path: &Path) -> Option<PathBuf> {
    match path.is_dir() {
        true => Some(path.join(FILE)),
        false => (path.extension()? == "jsonl").then(|| path.to_owned()),
    }
}

/// The validations of the log at `path`, which may still be written to.
///
/// # Errors
/// [`TraceError::Io`], [`TraceError::TooLarge`]; [`TraceError::NoMeasures`] for a log without measures of attention.
pub fn read(path: &Path) -> Result<Vec<Validation>, TraceError> {
    let mut bytes = vec![];
    let read = File::open(path).and_then(|file| file.take(MAX_BYTES + 1).read_to_end(&mut bytes));
    let path = path.to_owned();
    match read {
        Err(source) => return Err(TraceError::Io { path, source }),
        Ok(found) if found as u64 > MAX_BYTES => {
            let limit = MAX_BYTES;
            return Err(TraceError::TooLarge { path, limit });
        }
        Ok(_) => {}
    }
    let found = validations(&String::from_utf8_lossy(&bytes));
    match found.iter().any(|one| !one.attention.is_empty()) {
        true => Ok(found),
        false => Err(TraceError::NoMeasures { path }),
    }
}
