//! What a model looked at as a page of the viewer (`--html`).

use std::{iter, path::Path};

use regard_serve::Seen;

use super::Entry;
use crate::{
    failure::{CommandError, Failure},
    output,
};

/// The most weights on a page. One takes 2.7 characters, and as many between words, if these have several pieces; browsers read a text of at
/// most 2^29 characters.
const MOST_ON_PAGE: usize = 1 << 26;

/// Writes the page in which the entries can be explored.
///
/// # Errors
/// Too many weights, or a file that cannot be written.
pub fn write(path: &Path, entries: &[Entry]) -> Result<(), Failure> {
    // The page merges words by itself, so that its reader can choose. A search brings the other translations of its line.
    let mut searched = None;
    let entries = entries.iter().filter(|entry| match entry.rank {
        1 => {
            searched = entry.generation.as_ref().map(|_| entry.line);
            true
        }
        _ => searched != Some(entry.line),
    });
    let entries: Vec<&Entry> = entries.collect();
    let traces = entries.iter().flat_map(|entry| {
        let found = entry.generation.iter().flat_map(|tree| &tree.hypotheses);
        iter::once(&entry.trace).chain(found.skip(1).map(|other| &other.trace))
    });
    let maps = traces.flat_map(|trace| &trace.maps);
    expect_readable(path, maps.map(|map| map.weights().len()).sum())?;
    let named = entries.into_iter().map(|entry| {
        let (line, source) = (entry.line, entry.trace.source.trim());
        let name = match entry.rank {
            1 => format!("{line}: {source}"),
            rank => format!("{line} ({rank}): {source}"),
        };
        let seen = Seen {
            generation: entry.generation.clone(),
            ..entry.trace.clone().into()
        };
        (name, seen)
    });
    let page = regard_serve::page("What the model looked at", named.collect());
    output::write_file(path, page.as_bytes())
}

/// Refuses a page of so many weights that no browser would read it.
fn expect_readable(path: &Path, weights: usize) -> Result<(), CommandError> {
    match weights <= MOST_ON_PAGE {
        true => Ok(()),
        false => Err(CommandError::LargePage {
            path: path.to_owned(),
            found: weights,
            limit: MOST_ON_PAGE,
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_that_no_browser_reads_are_refused() {
        let expected = |weights| expect_readable(Path::new("look.html"), weights);
        assert!(expected(1 << 26).is_ok());
        let error = expected((1 << 26) + 1).unwrap_err().to_string();
        for part in ["look.html", "67108865 weights", "at most 67108864"] {
            assert!(error.contains(part), "{part:?} is not in: {error}");
        }
    }
}
