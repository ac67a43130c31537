//! Helpers that the tests share.

pub mod samples;

use std::fs;
use std::path::Path;

/// Compares with `tests/snapshots/NAME`, escape characters written as `␛`. With `REGARD_BLESS=1` in
/// the environment the file is written instead: look at it before committing.
#[allow(dead_code)]
pub fn snapshot(name: &str, found: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/snapshots")
        .join(name);
    let found = found.replace('\u{1b}', "␛");
    if std::env::var_os("REGARD_BLESS").is_some_and(|value| value == "1") {
        fs::write(&path, found).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        return;
    }
    let expected = fs::read_to_string(&path)
        .unwrap_or_else(|e| panic!("{}: {e}; REGARD_BLESS=1 writes it", path.display()))
        .replace("\r\n", "\n");
    if let Some((number, (was, is))) = expected
        .lines()
        .zip(found.lines())
        .enumerate()
        .find(|(_, (was, is))| was != is)
    {
        panic!(
            "{name}, line {}:\n was {was}\n  is {is}\nREGARD_BLESS=1 accepts it",
            number + 1
        );
    }
    assert_eq!(
        expected.lines().count(),
        found.lines().count(),
        "{name}: number of lines"
    );
}
