//! The folder of a run, which one process at a time trains in.

use std::{
    fs::{self, File, TryLockError},
    io::ErrorKind,
    path::Path,
};

use super::{BEST, LAST, LOCK, METRICS, RECENT, VALIDATION, checkpoint::Checkpoint};
use crate::{
    error::TrainError,
    files::{self, FileError},
};

/// A run folder that no other process trains in.
pub(crate) struct RunFolder<'a> {
    path: &'a Path,
    /// How many folders were made for it: itself and those above it.
    made: usize,
    /// The system unlocks it when it is closed, however the process ends.
    _lock: File,
}

impl<'a> RunFolder<'a> {
    /// Makes the folder, if it is not there, and locks it.
    ///
    /// # Errors
    /// A folder that another process trains in; anything the system refuses.
    pub(crate) fn lock(path: &'a Path) -> Result<Self, TrainError> {
        let absent = |folder: &&Path| !folder.as_os_str().is_empty() && !folder.exists();
        let made = path.ancestors().take_while(absent).count();
        files::create_folder(path)?;
        let name = path.join(LOCK);
        let refused = |source| FileError::new(&name, "lock", source);
        let mut options = File::options();
        let file = options.create(true).truncate(false).write(true);
        let file = file.open(&name).map_err(refused)?;
        match file.try_lock() {
            Err(TryLockError::WouldBlock) => return Err(TrainError::Busy(path.to_owned())),
            // Some file systems have no locks.
            Err(TryLockError::Error(error)) if error.kind() != ErrorKind::Unsupported => {
                return Err(refused(error).into());
            }
            _ => {}
        }
        remove_temporary(path);
        Ok(Self {
            path,
            made,
            _lock: file,
        })
    }

    /// After a run that began here and failed: removes its state if that is of the first update and nothing was validated, so that the
    /// folder is free for another start, and the folder itself if it was made for the run and nothing was reported of it.
    pub(crate) fn abandon(self) {
        let last = self.path.join(LAST);
        if last.exists() && (Checkpoint::step(&last) != Some(0) || self.path.join(BEST).exists()) {
            return;
        }
        // What cannot be removed stays: the error to tell is the one that ended the run.
        let _ = fs::remove_file(last);
        let reported = fs::metadata(self.path.join(METRICS)).is_ok_and(|file| file.len() > 0);
        if self.made > 0 && !reported {
            let _ = fs::remove_dir_all(self.path);
            for above in self.path.ancestors().take(self.made).skip(1) {
                let _ = fs::remove_dir(above);
            }
        }
    }
}

/// Removes what a process that was killed while it wrote has left; nobody else writes in a folder that is locked.
fn remove_temporary(path: &Path) {
    for folder in [path, &path.join(RECENT), &path.join(VALIDATION)] {
        let entries = fs::read_dir(folder).into_iter().flatten().flatten();
        for entry in entries.filter(|entry| files::is_temporary(&entry.file_name())) {
            // What cannot be removed stays: it does no harm.
            let _ = fs::remove_file(entry.path());
        }
    }
}
