//! Writing files so that no full disk, crash or simultaneous reader ever leaves or sees half a file.

use std::{
    ffi::OsStr,
    fs, io,
    io::Write as _,
    path::{Path, PathBuf},
};

/// A file or folder that could not be read or written.
#[derive(Debug, thiserror::Error)]
#[error("{}: cannot {action}: {source}", path.display())]
pub struct FileError {
    /// The file.
    pub path: PathBuf,
    /// What was tried: "read", "write", "create".
    pub action: &'static str,
    /// What the system said.
    pub source: io::Error,
}

impl FileError {
    /// An error of `action` on `path`.
    pub fn new(path: &Path, action: &'static str, source: io::Error) -> Self {
        Self {
            path: path.to_owned(),
            action,
            source,
        }
    }
}

/// Writes `bytes` to a temporary file in the same folder, which is flushed to disk and then renamed to
/// `path`. Whatever goes wrong, a former file at `path` stays whole.
///
/// # Errors
/// Anything the system refuses: a full disk, a folder that is not there, no permission.
pub fn write_atomically(path: &Path, bytes: &[u8]) -> Result<(), FileError> {
    let write = || {
        let mut file = temporary(path)?;
        file.write_all(bytes)?;
        file.as_file().sync_all()?;
        file.persist(path).map_err(|error| error.error)?;
        Ok(())
    };
    write().map_err(|source| FileError::new(path, "write", without_temporary(source)))
}

/// Refuses a path where [`write_atomically`] would fail, before the work whose result it is to hold: a folder that is not there or
/// may not be written to, or a path that is a folder.
///
/// # Errors
/// What the system would say.
pub fn expect_writable(path: &Path) -> Result<(), FileError> {
    let refused = match path.is_dir() {
        true => Err(io::ErrorKind::IsADirectory.into()),
        false => temporary(path).map(|_| ()),
    };
    refused.map_err(|source| FileError::new(path, "write", without_temporary(source)))
}

const PREFIX: &str = ".regard-";
const SUFFIX: &str = ".tmp";

/// Whether a file of this name is one that [`write_atomically`] began.
pub(crate) fn is_temporary(name: &OsStr) -> bool {
    let name = name.to_string_lossy();
    name.starts_with(PREFIX) && name.ends_with(SUFFIX)
}

/// A temporary file in the folder of `path`.
fn temporary(path: &Path) -> io::Result<tempfile::NamedTempFile> {
    let folder = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    let mut builder = tempfile::Builder::new();
    builder.prefix(PREFIX).suffix(SUFFIX);
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt as _;
        // The usual permissions of a new file; the system applies the umask to them.
        builder.permissions(fs::Permissions::from_mode(0o666));
    }
    builder.tempfile_in(folder)
}

/// The system's error without the name of the temporary file, which means nothing to the user.
fn without_temporary(error: io::Error) -> io::Error {
    match error.to_string().split_once(" at path ") {
        Some((said, _)) => io::Error::new(error.kind(), said.to_owned()),
        None => error,
    }
}

/// Reads a whole file.
///
/// # Errors
/// Anything the system refuses.
pub fn read(path: &Path) -> Result<Vec<u8>, FileError> {
    fs::read(path).map_err(|source| FileError::new(path, "read", source))
}

/// Creates a folder and those above it.
///
/// # Errors
/// Anything the system refuses.
pub fn create_folder(path: &Path) -> Result<(), FileError> {
    fs::create_dir_all(path).map_err(|source| FileError::new(path, "create", source))
}
