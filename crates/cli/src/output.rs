//! Results go to standard output, everything else to standard error; either may be closed early.

use std::{
    fs::{self, File},
    io::{self, BufWriter, Write},
    path::{Path, PathBuf},
};

use regard_train::files;

use crate::failure::{CommandError, Failure};

/// Where results are written to.
pub struct Output {
    writer: BufWriter<Box<dyn Write>>,
    name: String,
    is_standard: bool,
}

impl Output {
    /// Standard output.
    pub fn standard() -> Self {
        Self {
            writer: BufWriter::new(Box::new(io::stdout())),
            name: "standard output".to_owned(),
            is_standard: true,
        }
    }

    /// A file, which is emptied first.
    ///
    /// # Errors
    /// A file that cannot be made.
    pub fn file(path: &Path) -> Result<Self, Failure> {
        let name = path.display().to_string();
        match File::create(path) {
            Ok(file) => Ok(Self {
                writer: BufWriter::new(Box::new(file)),
                name,
                is_standard: false,
            }),
            Err(source) => Err(CommandError::Write { name, source }.into()),
        }
    }

    /// A file if one is named, else standard output.
    ///
    /// # Errors
    /// A file that cannot be made.
    pub fn open(path: Option<&Path>) -> Result<Self, Failure> {
        path.map_or_else(|| Ok(Self::standard()), Self::file)
    }

    /// Writes `text` as it is.
    ///
    /// # Errors
    /// [`Failure::ClosedPipe`], or whatever else the system says.
    pub fn text(&mut self, text: &str) -> Result<(), Failure> {
        let written = self.writer.write_all(text.as_bytes());
        self.checked(written)
    }

    /// Writes `text` and ends the line.
    ///
    /// # Errors
    /// As for [`text`](Self::text).
    pub fn line(&mut self, text: &str) -> Result<(), Failure> {
        self.text(text)?;
        self.text("\n")
    }

    /// Writes out everything that is buffered: to be called whenever a reader may wait, and at the end.
    ///
    /// # Errors
    /// As for [`text`](Self::text).
    pub fn flush(&mut self) -> Result<(), Failure> {
        let flushed = self.writer.flush();
        self.checked(flushed)
    }

    fn checked(&self, result: io::Result<()>) -> Result<(), Failure> {
        result.map_err(|source| match source.kind() {
            io::ErrorKind::BrokenPipe if self.is_standard => Failure::ClosedPipe,
            _ => CommandError::Write {
                name: self.name.clone(),
                source,
            }
            .into(),
        })
    }
}

/// Prints a result to standard output.
///
/// # Errors
/// As for [`Output::text`].
pub fn print(text: &str) -> Result<(), Failure> {
    let mut output = Output::standard();
    output.text(text)?;
    output.flush()
}

/// A number of things: `1 text`, `2 texts`; `things` is a plural that ends in "s".
pub fn counted(count: usize, things: &str) -> String {
    match (count, things.strip_suffix('s')) {
        (1, Some(thing)) => format!("1 {thing}"),
        _ => format!("{count} {things}"),
    }
}

/// Prints a message on standard error. Characters that a terminal would obey are written out: names of files and keys may have any.
pub fn say(text: &str) {
    let obeyed = |c: char| {
        let control = c.is_control() && c != '\n' && c != '\t';
        let direction = matches!(c, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
        control || direction
    };
    let mut safe = String::with_capacity(text.len());
    for c in text.chars() {
        match obeyed(c) {
            true => safe.extend(c.escape_unicode()),
            false => safe.push(c),
        }
    }
    // If standard error is closed, there is no way to report that.
    let _ = writeln!(io::stderr(), "{safe}");
}

/// Warns on standard error.
pub fn warn(text: &str) {
    say(&format!("warning: {text}"));
}

/// Writes a whole file; whatever goes wrong, a former one stays as it was.
///
/// # Errors
/// Anything the system refuses.
pub fn write_file(path: &Path, bytes: &[u8]) -> Result<(), Failure> {
    if is_device(path) {
        let write = || File::options().write(true).open(path)?.write_all(bytes);
        return write().map_err(|source| {
            CommandError::Write {
                name: path.display().to_string(),
                source,
            }
            .into()
        });
    }
    Ok(files::write_atomically(&target(path), bytes)?)
}

/// Refuses a path that [`write_file`] could not write to, before the work whose result it is to hold.
///
/// # Errors
/// As for [`write_file`].
pub fn expect_writable(path: &Path) -> Result<(), Failure> {
    match is_device(path) {
        true => Ok(()),
        false => Ok(files::expect_writable(&target(path))?),
    }
}

/// Whether `path` is a device or a pipe, which cannot be replaced by a file.
fn is_device(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|existing| !existing.is_file() && !existing.is_dir())
}

/// The file to replace: the target of a symbolic link, not the link.
fn target(path: &Path) -> PathBuf {
    fs::canonicalize(path).unwrap_or_else(|_| path.to_owned())
}
