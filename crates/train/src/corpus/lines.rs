//! Lines of text from a file, gzip or plain, or from any reader.
//!
//! A line ends at `\n`, or at `\r\n`; nothing else ends a line (not NUL, not U+2028, not a lone
//! `\r`), so that files stay aligned. A last line without `\n` counts. A byte-order mark at the
//! very start is removed. Gzip is recognised by its first two bytes, not by the file's name. A line
//! of more than 256 MiB is refused.
//!
//! ```
//! use regard_train::corpus::Lines;
//! let lines: Result<Vec<String>, _> = Lines::new(&b"one\r\n\ntwo"[..], "example")?.collect();
//! assert_eq!(lines?, ["one", "", "two"]);
//! # Ok::<(), regard_train::corpus::CorpusError>(())
//! ```

use std::fs::File;
use std::io::{BufRead, BufReader, Cursor, Read};
use std::path::Path;

use flate2::bufread::MultiGzDecoder;

use super::error::CorpusError;

const GZIP_MAGIC: [u8; 2] = [0x1f, 0x8b];
const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";
const BUFFER: usize = 64 << 10;
/// The longest line in bytes: a device without line ends has none, and no end either.
const LONGEST: u64 = 256 << 20;

/// The lines of a reader, one at a time, as they arrive; an empty line is an empty string.
///
/// After an error the iterator ends.
pub struct Lines<'a> {
    reader: Box<dyn BufRead + Send + 'a>,
    name: String,
    gzip: bool,
    line: u64,
    offset: u64,
    buffer: Vec<u8>,
    finished: bool,
}

impl<'a> Lines<'a> {
    /// Lines of `reader`; errors call it `name`.
    ///
    /// Blocks until the first byte has come or the input has ended.
    ///
    /// # Errors
    /// [`CorpusError::Read`] if the first bytes cannot be read.
    pub fn new(
        reader: impl Read + Send + 'a,
        name: impl Into<String>,
    ) -> Result<Self, CorpusError> {
        let name = name.into();
        let mut reader = BufReader::with_capacity(BUFFER, reader);
        let mut magic = Vec::with_capacity(GZIP_MAGIC.len());
        // Waits for a second byte only if the first one is that of gzip: a person at a terminal may
        // have typed an empty line and nothing else.
        for expected in GZIP_MAGIC {
            if let Err(source) = reader.by_ref().take(1).read_to_end(&mut magic) {
                return Err(CorpusError::Read { name, source });
            }
            if magic.last() != Some(&expected) {
                break;
            }
        }
        let gzip = magic == GZIP_MAGIC;
        let whole = Cursor::new(magic).chain(reader);
        let reader: Box<dyn BufRead + Send + 'a> = if gzip {
            Box::new(BufReader::with_capacity(BUFFER, MultiGzDecoder::new(whole)))
        } else {
            Box::new(whole)
        };
        Ok(Self {
            reader,
            name,
            gzip,
            line: 0,
            offset: 0,
            buffer: Vec::new(),
            finished: false,
        })
    }

    fn read_line(&mut self, longest: u64) -> Result<Option<String>, CorpusError> {
        self.buffer.clear();
        let mut reader = self.reader.by_ref().take(longest + 1);
        let read = match reader.read_until(b'\n', &mut self.buffer) {
            Ok(read) => read,
            Err(source) if self.gzip => {
                return Err(CorpusError::Gzip {
                    name: self.name.clone(),
                    line: self.line,
                    source,
                });
            }
            Err(source) => {
                return Err(CorpusError::Read {
                    name: self.name.clone(),
                    source,
                });
            }
        };
        if read == 0 {
            return Ok(None);
        }
        let start = self.offset;
        self.offset += read as u64;
        self.line += 1;
        if read as u64 > longest {
            return Err(CorpusError::EndlessLine {
                name: self.name.clone(),
                line: self.line,
                most: longest,
            });
        }
        if self.buffer.last() == Some(&b'\n') {
            self.buffer.pop();
            if self.buffer.last() == Some(&b'\r') {
                self.buffer.pop();
            }
        }
        let mut text = self.buffer.as_slice();
        let mut skipped = 0;
        if self.line == 1
            && let Some(rest) = text.strip_prefix(BYTE_ORDER_MARK)
        {
            text = rest;
            skipped = BYTE_ORDER_MARK.len();
        }
        match std::str::from_utf8(text) {
            Ok(line) => Ok(Some(line.to_owned())),
            Err(error) => {
                let place = error.valid_up_to();
                Err(CorpusError::InvalidUtf8 {
                    name: self.name.clone(),
                    line: self.line,
                    offset: start + (skipped + place) as u64,
                    byte: text[place],
                })
            }
        }
    }
}

impl Lines<'static> {
    /// Lines of a file, plain or gzip.
    ///
    /// # Errors
    /// [`CorpusError::Read`] naming the file.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, CorpusError> {
        let path = path.as_ref();
        let name = path.display().to_string();
        match File::open(path) {
            Ok(file) => Self::new(file, name),
            Err(source) => Err(CorpusError::Read { name, source }),
        }
    }

    /// Lines of standard input, plain or gzip, returned as they arrive.
    ///
    /// # Errors
    /// [`CorpusError::Read`].
    pub fn standard_input() -> Result<Self, CorpusError> {
        Self::new(std::io::stdin(), "standard input")
    }
}

impl Iterator for Lines<'_> {
    type Item = Result<String, CorpusError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.finished {
            return None;
        }
        let line = self.read_line(LONGEST).transpose();
        self.finished = !matches!(line, Some(Ok(_)));
        line
    }
}

/// All lines of a file, plain or gzip; an empty file has none.
///
/// # Errors
/// [`CorpusError::Read`], [`CorpusError::Gzip`], [`CorpusError::InvalidUtf8`], each naming the
/// file.
pub fn read_lines(path: impl AsRef<Path>) -> Result<Vec<String>, CorpusError> {
    Lines::open(path)?.collect()
}

#[cfg(test)]
mod tests {
    use super::{CorpusError, Lines};

    #[test]
    fn a_line_without_end_is_refused() {
        let mut lines = Lines::new(&b"one\r\nfour\nfive!\n"[..], "text").unwrap();
        for expected in ["one", "four"] {
            assert_eq!(lines.read_line(5).unwrap().as_deref(), Some(expected));
        }
        let error = lines.read_line(5).unwrap_err();
        assert!(matches!(error, CorpusError::EndlessLine { line: 3, .. }));
        assert_eq!(
            error.to_string(),
            "text: line 3 has more than 5 bytes; expected text, with shorter lines"
        );
        let mut endless = Lines::new(std::io::repeat(0), "zeros").unwrap();
        assert!(endless.read_line(1 << 20).is_err());
    }
}
