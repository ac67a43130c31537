//! Reading text the way a scorer must: one segment a line, lines end at `\n` and nowhere else.
//!
//! sacrebleu opens its files with `newline="\n"` and strips white space from the right of each
//! line; so do we. U+2028, form feeds and lone carriage returns are ordinary characters inside a
//! line, which keeps files aligned that other readers would tear apart.
//!
//! ```
//! use regard_evaluate::lines;
//! let text = "Ein Hund.\r\n\nZwei\u{2028}Katzen. \n";
//! assert_eq!(lines::parse("demo", text.as_bytes())?, ["Ein Hund.", "", "Zwei\u{2028}Katzen."]);
//! # Ok::<(), regard_evaluate::EvaluateError>(())
//! ```

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use crate::EvaluateError;
use crate::tokenize::is_space;

/// The longest text that is read at once: 1 GiB.
pub const MAX_BYTES: u64 = 1 << 30;

/// Splits bytes into lines, stripped on the right; `name` says in errors where they came from.
///
/// # Errors
/// [`EvaluateError::InvalidUtf8`] with line and byte offset, [`EvaluateError::Empty`] for no bytes.
pub fn parse(name: &str, bytes: &[u8]) -> Result<Vec<String>, EvaluateError> {
    if bytes.is_empty() {
        return Err(EvaluateError::Empty {
            name: name.to_owned(),
        });
    }
    let text = str::from_utf8(bytes).map_err(|error| {
        let offset = error.valid_up_to();
        EvaluateError::InvalidUtf8 {
            name: name.to_owned(),
            line: 1 + bytes[..offset]
                .iter()
                .filter(|&&byte| byte == b'\n')
                .count(),
            offset,
        }
    })?;
    let text = text.strip_suffix('\n').unwrap_or(text);
    Ok(text
        .split('\n')
        .map(|line| line.trim_end_matches(is_space).to_owned())
        .collect())
}

/// Reads one plain text file into its lines.
///
/// # Errors
/// [`EvaluateError::Read`], also for more than [`MAX_BYTES`], and those of [`parse`].
pub fn read(path: &Path) -> Result<Vec<String>, EvaluateError> {
    let bytes = File::open(path).and_then(bytes);
    let bytes = bytes.map_err(|source| EvaluateError::Read {
        path: path.to_owned(),
        source,
    })?;
    parse(&path.display().to_string(), &bytes)
}

/// All bytes of a text.
///
/// # Errors
/// Those of reading it, and more than [`MAX_BYTES`].
///
/// ```
/// use regard_evaluate::lines;
/// assert_eq!(lines::bytes(&b"ein hund"[..])?, b"ein hund");
/// # Ok::<(), std::io::Error>(())
/// ```
pub fn bytes(file: impl Read) -> io::Result<Vec<u8>> {
    let mut bytes = vec![];
    file.take(MAX_BYTES + 1).read_to_end(&mut bytes)?;
    match bytes.len() as u64 > MAX_BYTES {
        true => Err(io::Error::new(
            io::ErrorKind::FileTooLarge,
            "more than 1 GiB of text; cut it into parts",
        )),
        false => Ok(bytes),
    }
}

/// Reads several files that are aligned by line: entry `f` of the result holds file `f`'s lines.
///
/// # Errors
/// Those of [`read`], and [`EvaluateError::LineCounts`] naming the first file and the first file
/// that differs from it.
pub fn read_aligned<P: AsRef<Path>>(paths: &[P]) -> Result<Vec<Vec<String>>, EvaluateError> {
    let streams = paths
        .iter()
        .map(|path| read(path.as_ref()))
        .collect::<Result<Vec<_>, _>>()?;
    let names: Vec<String> = paths
        .iter()
        .map(|path| path.as_ref().display().to_string())
        .collect();
    for (name, stream) in names.iter().zip(&streams).skip(1) {
        check_aligned((&names[0], streams[0].len()), (name, stream.len()))?;
    }
    Ok(streams)
}

/// Refuses two named streams whose numbers of lines differ.
///
/// # Errors
/// [`EvaluateError::LineCounts`].
pub fn check_aligned(first: (&str, usize), second: (&str, usize)) -> Result<(), EvaluateError> {
    if first.1 == second.1 {
        return Ok(());
    }
    Err(EvaluateError::LineCounts {
        first: first.0.to_owned(),
        first_lines: first.1,
        second: second.0.to_owned(),
        second_lines: second.1,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_newline_is_optional_and_empty_lines_count() {
        assert_eq!(parse("x", b"a\nb").unwrap(), ["a", "b"]);
        assert_eq!(parse("x", b"a\nb\n").unwrap(), ["a", "b"]);
        assert_eq!(parse("x", b"\n\n").unwrap(), ["", ""]);
        assert_eq!(parse("x", b"a\x0cb\rc\n").unwrap(), ["a\u{c}b\rc"]);
    }

    #[test]
    fn bad_bytes_are_located() {
        let error = parse("ref.de", b"gut\nschl\xffecht\n").unwrap_err();
        assert!(matches!(
            &error,
            EvaluateError::InvalidUtf8 {
                line: 2,
                offset: 8,
                ..
            }
        ));
        assert!(error.to_string().contains("`ref.de`") && error.to_string().contains("offset 8"));
        assert!(matches!(
            parse("x", b"").unwrap_err(),
            EvaluateError::Empty { .. }
        ));
    }

    #[test]
    fn a_missing_file_is_named() {
        let error = read(Path::new("/no/such/file.de")).unwrap_err();
        assert!(error.to_string().contains("/no/such/file.de"));
    }
}
