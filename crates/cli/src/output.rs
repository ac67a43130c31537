//! Results go to standard output, everything else to standard error; either may be closed early.

use std::{
    collections::BTreeSet,
    fs::{self, File},
    io::{self, BufWriter, Read, Seek, SeekFrom, Write},
    path::{Path, PathBuf},
};

use regard_images::data::is_image;
use regard_train::files;

use crate::{
    failure::{CommandError, Failure},
    ranks,
};

/// Where results are written to.
pub struct Output {
    writer: BufWriter<Box<dyn Write>>,
    name: String,
    is_standard: bool,
}

impl Output {
    /// Standard output; of several ranks only the first has one, as it alone writes files.
    pub fn standard() -> Self {
        let writer: Box<dyn Write> = match ranks::is_first() {
            true => Box::new(io::stdout()),
            false => Box::new(io::sink()),
        };
        Self {
            writer: BufWriter::new(writer),
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
        if !ranks::is_first() {
            return Ok(Self {
                writer: BufWriter::new(Box::new(io::sink())),
                name,
                is_standard: false,
            });
        }
        match File::create(path) {
            Ok(file) => Ok(Self {
                writer: BufWriter::new(Box::new(file)),
                name,
                is_standard: false,
            }),
            Err(source) => Err(CommandError::Write { name, source }.into()),
        }
    }

    /// A file that is gone on with, and how many whole lines it holds already; what follows the last of them is cut off.
    ///
    /// # Errors
    /// A file that cannot be read or written.
    pub fn resumed(path: &Path) -> Result<(Self, usize), Failure> {
        let name = path.display().to_string();
        let open = || -> io::Result<(Box<dyn Write>, usize)> {
            if !ranks::is_first() {
                return Ok((Box::new(io::sink()), 0));
            }
            let mut options = File::options();
            let mut file = options
                .read(true)
                .write(true)
                .create(true)
                .truncate(false)
                .open(path)?;
            let (mut lines, mut end, mut at) = (0, 0, 0);
            let mut buffer = vec![0; 1 << 16];
            loop {
                let read = file.read(&mut buffer)?;
                if read == 0 {
                    break;
                }
                for (place, _) in (at + 1..)
                    .zip(&buffer[..read])
                    .filter(|(_, byte)| **byte == b'\n')
                {
                    lines += 1;
                    end = place;
                }
                at += read as u64;
            }
            file.set_len(end)?;
            file.seek(SeekFrom::Start(end))?;
            Ok((Box::new(file), lines))
        };
        let opened = open().map_err(|source| CommandError::Write {
            name: name.clone(),
            source,
        });
        let (writer, lines) = opened?;
        let lines = ranks::all().gather(&lines)?[0];
        let output = Self {
            writer: BufWriter::new(writer),
            name,
            is_standard: false,
        };
        Ok((output, lines))
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

/// Names as keys of a JSON object: as they are, but for those that several have; the number of each, counted from 0, follows it, as in
/// `crane (134)`.
pub fn keys<'a>(names: impl IntoIterator<Item = &'a str>) -> Vec<String> {
    let names: Vec<&str> = names.into_iter().collect();
    let repeated = |names: &[&str]| -> BTreeSet<String> {
        let mut seen = BTreeSet::new();
        let names = names.iter().filter(|name| !seen.insert(**name));
        names.map(|name| (*name).to_owned()).collect()
    };
    let several = repeated(&names);
    let numbered = |(number, name): (usize, &&str)| match several.contains(*name) {
        true => format!("{name} ({number})"),
        false => (*name).to_owned(),
    };
    let keys: Vec<String> = names.iter().enumerate().map(numbered).collect();
    let all: Vec<&str> = keys.iter().map(String::as_str).collect();
    if repeated(&all).is_empty() {
        return keys;
    }
    // One is called what another one is with its number.
    let names = names.iter().enumerate();
    names
        .map(|(number, name)| format!("{name} ({number})"))
        .collect()
}

/// Prints a message on standard error; of several ranks only the first does. Characters that a terminal would obey are written out: names
/// of files and keys may have any.
pub fn say(text: &str) {
    if ranks::is_first() {
        say_here(text);
    }
}

/// Prints why a command failed, with the rank if it is not the first.
pub fn complain(text: &str) {
    match ranks::is_first() {
        true => say_here(text),
        false => say_here(&format!("rank {}: {text}", ranks::all().rank())),
    }
}

fn say_here(text: &str) {
    // If standard error is closed, there is no way to report that.
    let _ = writeln!(io::stderr(), "{}", safe(text));
}

/// A message in which characters that a terminal would obey are written out.
pub fn safe(text: &str) -> String {
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
    safe
}

/// Warns on standard error.
pub fn warn(text: &str) {
    say(&format!("warning: {text}"));
}

/// Writes a file of lines, as [`write_file`] does.
///
/// # Errors
/// Anything the system refuses.
pub fn write_lines(path: &Path, lines: impl IntoIterator<Item = String>) -> Result<(), Failure> {
    let lines = lines.into_iter().map(|line| line + "\n");
    write_file(path, lines.collect::<String>().as_bytes())
}

/// Writes a whole file; whatever goes wrong, a former one stays as it was.
///
/// # Errors
/// Anything the system refuses.
pub fn write_file(path: &Path, bytes: &[u8]) -> Result<(), Failure> {
    if !ranks::is_first() {
        return Ok(());
    }
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
    match is_device(path) || !ranks::is_first() {
        true => Ok(()),
        false => Ok(files::expect_writable(&target(path))?),
    }
}

/// Refuses files to write if one of them is among those that are `used` otherwise, or is named twice: what it holds would be lost. In place
/// of a `numbered` one, files with numbers at the end of its name may be written.
///
/// # Errors
/// A usage error that names the first of them.
pub fn expect_apart<'a, P: AsRef<Path>>(
    used: impl IntoIterator<Item = P>,
    written: impl IntoIterator<Item = (&'a PathBuf, bool)>,
) -> Result<(), Failure> {
    let written = written.into_iter().filter(|(path, _)| !is_device(path));
    let written: Vec<(&PathBuf, bool)> = written.collect();
    if written.is_empty() {
        return Ok(());
    }
    let used = used.into_iter();
    let mut taken: Vec<Place> = used.map(|path| Place::of(path.as_ref(), false)).collect();
    for (path, numbered) in written {
        let place = Place::of(path, numbered);
        if taken.iter().any(|other| other.clashes(&place)) {
            return Err(lost(path));
        }
        taken.push(place);
    }
    Ok(())
}

/// Refuses files to write that are there already and lie in one of the `read` folders, at any depth, if data may be read from files of such
/// names. What is no folder is passed over.
///
/// # Errors
/// A usage error that names the first of them.
pub fn expect_outside<'a, P: AsRef<Path>>(
    read: impl IntoIterator<Item = P>,
    written: impl IntoIterator<Item = &'a PathBuf>,
) -> Result<(), Failure> {
    let folders = read.into_iter().filter(|path| path.as_ref().is_dir());
    let folders: Vec<PathBuf> = folders.map(|path| target(path.as_ref())).collect();
    let written = written.into_iter();
    for path in written.filter(|path| path.is_file() && is_data(path)) {
        let Place { named, located, .. } = Place::of(path, false);
        let lies_in = |folder: &PathBuf| named.starts_with(folder) || located.starts_with(folder);
        if folders.iter().any(lies_in) {
            return Err(lost(path));
        }
    }
    Ok(())
}

/// Whether its name is one that files in a folder of data have: images, batches of CIFAR, files of MNIST, annotations, names of classes.
fn is_data(path: &Path) -> bool {
    const ENDINGS: [&str; 2] = [".bin", ".json"];
    const CLASSES: [&str; 2] = ["batches.meta.txt", "fine_label_names.txt"];
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let name = name.to_ascii_lowercase();
    is_image(path)
        || ENDINGS.iter().any(|ending| name.ends_with(ending))
        || CLASSES.contains(&name.as_str())
        || ["idx3", "idx1"].iter().any(|part| name.contains(part))
}

/// The error for a file to write that would take the place of another.
fn lost(path: &Path) -> Failure {
    Failure::Usage(format!(
        "{}: this file is read, or written for something else, and would be lost; name another file to write",
        path.display()
    ))
}

/// The files that a model is read from: the file itself, or those of a folder, and of the folders of its modules, whose names are those of
/// a model's.
pub fn model_files(model: impl AsRef<Path>) -> Vec<PathBuf> {
    let model = model.as_ref();
    const WEIGHTS: [&str; 4] = ["model", "best.", "last.", "pytorch_model"];
    const SETTINGS: [&str; 5] = [".json", ".toml", ".txt", ".model", ".spm"];
    let is_part = |path: &PathBuf| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        WEIGHTS.iter().any(|start| name.starts_with(start))
            || SETTINGS.iter().any(|end| name.ends_with(end))
    };
    let listed = |folder: &Path| -> Vec<PathBuf> {
        let entries = fs::read_dir(folder).into_iter().flatten().flatten();
        entries.map(|entry| entry.path()).collect()
    };
    let mut files = listed(model);
    let modules = files.iter().filter(|path| is_configured(path));
    let inside: Vec<PathBuf> = modules.flat_map(|module| listed(module)).collect();
    files.extend(inside);
    files.retain(is_part);
    files.push(model.to_owned());
    files
}

/// Whether a folder is one of Hugging Face, or of a module in one.
pub fn is_configured(folder: &Path) -> bool {
    folder.join("config.json").is_file()
}

/// Where a file is, or will be.
struct Place {
    /// Its name in its folder.
    named: PathBuf,
    /// The same, or what a link of that name leads to.
    located: PathBuf,
    numbered: bool,
}

impl Place {
    fn of(path: &Path, numbered: bool) -> Self {
        let folder = path
            .parent()
            .filter(|folder| !folder.as_os_str().is_empty());
        let folder = folder.unwrap_or(Path::new("."));
        let folder = fs::canonicalize(folder).unwrap_or_else(|_| folder.to_owned());
        let named = folder.join(path.file_name().unwrap_or_default());
        Self {
            located: target(&named),
            named,
            numbered,
        }
    }

    fn clashes(&self, other: &Self) -> bool {
        self.located == other.located
            || (self.numbered && is_numbered(&other.named, &self.named))
            || (other.numbered && is_numbered(&self.named, &other.named))
    }
}

/// Whether `path` is `of` with numbers at the end of its name: `look-1.svg` or `look-1-2.svg` of `look.svg`.
fn is_numbered(path: &Path, of: &Path) -> bool {
    let stem = |path: &Path| {
        path.file_stem()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned()
    };
    let (stem, of_stem) = (stem(path), stem(of));
    let numbers = stem
        .strip_prefix(&of_stem)
        .and_then(|rest| rest.strip_prefix('-'));
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    path.parent() == of.parent()
        && path.extension() == of.extension()
        && numbers.is_some_and(|numbers| numbers.split('-').all(is_number))
}

/// Whether `path` is a device or a pipe, which cannot be replaced by a file.
pub fn is_device(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|existing| !existing.is_file() && !existing.is_dir())
}

/// The file to replace: the target of a symbolic link, not the link.
fn target(path: &Path) -> PathBuf {
    fs::canonicalize(path).unwrap_or_else(|_| path.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_terminal_would_obey_is_written_out() {
        let written_out = "a\tb\n\\u{1b}[31m\\u{9b}\\u{202e}c";
        assert_eq!(safe("a\tb\n\u{1b}[31m\u{9b}\u{202e}c"), written_out);
    }

    #[test]
    fn keys_are_distinct() {
        for (names, expected) in [
            (["cat", "dog", "bird"], ["cat", "dog", "bird"]),
            (["crane", "dog", "crane"], ["crane (0)", "dog", "crane (2)"]),
            (["x", "x", "x (0)"], ["x (0)", "x (1)", "x (0) (2)"]),
        ] {
            assert_eq!(keys(names), expected);
        }
    }
}
