//! Text that is read: line by line as it arrives, or a whole file at once.

use std::{
    fs::File,
    io,
    path::Path,
    sync::mpsc::{Receiver, sync_channel},
    thread,
};

use flate2::read::MultiGzDecoder;
use regard_evaluate::{EvaluateError, lines};
use regard_train::{
    corpus::{CorpusError, Lines},
    ranks::RanksError,
};

use crate::{
    failure::{CommandError, Failure},
    output::is_device,
    ranks,
};

/// Stands for standard input where a file is expected.
const STANDARD_INPUT: &str = "-";
/// The most lines that are read before they are wanted.
const WAITING: usize = 4096;

/// Lines in groups of all that have arrived: a person at a terminal gets an answer at once, and a
/// file is processed in large batches. Of several ranks the first reads, and all get the same groups, which are full but for the last.
pub struct Groups {
    receiver: Receiver<Result<String, CorpusError>>,
    most: usize,
}

/// Some lines, and the error that ended them if one did.
pub struct Group {
    /// The lines, in order.
    pub lines: Vec<String>,
    /// Why there are no more.
    pub error: Option<CorpusError>,
}

impl Groups {
    /// Groups of at most `most` lines, read on a thread of its own from a file, which is opened at once, from a pipe, or from
    /// standard input if none is named.
    ///
    /// # Errors
    /// A file that cannot be read.
    pub fn read(path: Option<&Path>, most: usize) -> Result<Self, CorpusError> {
        let (sender, receiver) = sync_channel(most.saturating_mul(2).min(WAITING));
        if !ranks::is_first() {
            return Ok(Self { receiver, most });
        }
        let path = path
            .filter(|path| *path != Path::new(STANDARD_INPUT))
            .map(Path::to_owned);
        // Only the thread may wait for what writes to a pipe.
        let file = path.as_ref().filter(|path| !is_device(path));
        let file = file.map(Lines::open).transpose()?;
        thread::spawn(move || {
            let opened = match (file, path) {
                (Some(lines), _) => Ok(lines),
                (None, Some(path)) => Lines::open(path),
                (None, None) => Lines::standard_input(),
            };
            let lines = match opened {
                Ok(lines) => lines,
                Err(error) => {
                    let _ = sender.send(Err(error));
                    return;
                }
            };
            for line in lines {
                // The receiver is gone once the command has failed.
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
        Ok(Self { receiver, most })
    }
}

impl Iterator for Groups {
    type Item = Result<Group, RanksError>;

    fn next(&mut self) -> Option<Self::Item> {
        let received = self.received();
        if ranks::all().is_alone() {
            return received.map(Ok);
        }
        let lines = received.as_ref().map(|group| group.lines.clone());
        let all = match ranks::all().gather(&lines) {
            Ok(all) => all,
            Err(error) => return Some(Err(error)),
        };
        let group = Group {
            lines: all.into_iter().next()??,
            error: received.and_then(|group| group.error),
        };
        Some(Ok(group))
    }
}

impl Groups {
    fn received(&mut self) -> Option<Group> {
        let mut group = Group {
            lines: vec![],
            error: None,
        };
        let mut received = self.receiver.recv().ok()?;
        loop {
            match received {
                Ok(line) => group.lines.push(line),
                Err(error) => {
                    group.error = Some(error);
                    break;
                }
            }
            if group.lines.len() == self.most {
                break;
            }
            let next = match ranks::all().is_alone() {
                true => self.receiver.try_recv().ok(),
                false => self.receiver.recv().ok(),
            };
            match next {
                Some(next) => received = next,
                None => break,
            }
        }
        Some(group)
    }
}

/// The name of a file in messages.
pub fn name(path: &Path) -> String {
    match path == Path::new(STANDARD_INPUT) {
        true => "standard input".to_owned(),
        false => path.display().to_string(),
    }
}

/// The error for a file without text.
pub fn no_text(path: &Path) -> Failure {
    Failure::Usage(format!("{} has no text; give some text", name(path)))
}

/// The lines of a plain or gzip file (`-` for standard input), read as sacrebleu reads them: lines
/// end at `\n` alone and lose white space on their right.
///
/// # Errors
/// A file that is missing, unreadable, empty, damaged or not UTF-8.
pub fn segments(path: &Path) -> Result<Vec<String>, Failure> {
    Ok(lines::parse(&name(path), &bytes(path)?)?)
}

/// The text of a plain or gzip file as characters, `-` for standard input.
///
/// # Errors
/// As [`bytes`]; bytes that are not UTF-8.
pub fn text(path: &Path) -> Result<String, Failure> {
    String::from_utf8(bytes(path)?).map_err(|error| {
        let offset = error.utf8_error().valid_up_to();
        let before = &error.as_bytes()[..offset];
        let line = 1 + before.iter().filter(|&&byte| byte == b'\n').count();
        let name = name(path);
        EvaluateError::InvalidUtf8 { name, line, offset }.into()
    })
}

/// The text of a plain or gzip file, `-` for standard input, which rank 0 alone has and hands to the others.
///
/// # Errors
/// A file that is missing, unreadable, damaged, or of more than 1 GiB.
pub fn bytes(path: &Path) -> Result<Vec<u8>, Failure> {
    let name = name(path);
    let read = match path == Path::new(STANDARD_INPUT) {
        true if ranks::is_first() => lines::bytes(io::stdin().lock()),
        true => Ok(vec![]),
        false => File::open(path).and_then(lines::bytes),
    };
    let mut bytes = match read {
        Ok(bytes) => bytes,
        Err(source) => return Err(CommandError::Read { name, source }.into()),
    };
    if path == Path::new(STANDARD_INPUT) {
        bytes = ranks::all().broadcast(bytes)?;
    }
    if !bytes.starts_with(&[0x1f, 0x8b]) {
        return Ok(bytes);
    }
    let text = lines::bytes(MultiGzDecoder::new(bytes.as_slice()));
    Ok(text.map_err(|source| match source.kind() {
        io::ErrorKind::FileTooLarge => CommandError::Read { name, source },
        _ => CommandError::Gzip { name, source },
    })?)
}
