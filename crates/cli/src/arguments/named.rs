//! A path that may carry a name: `NAME=PATH`.

use std::{
    convert::Infallible,
    path::{Path, PathBuf},
    str::FromStr,
};

/// A path, and its name in tables and pictures.
#[derive(Debug, Clone)]
pub struct Named {
    /// The name; the file's name if none was given.
    pub name: String,
    /// The path.
    pub path: PathBuf,
}

impl FromStr for Named {
    type Err = Infallible;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let named = match text.split_once('=') {
            // A text with `=` that is the path of an existing file is that path.
            Some((name, path)) if !name.is_empty() && !Path::new(text).exists() => Self {
                name: name.to_owned(),
                path: PathBuf::from(path),
            },
            _ => {
                let path = PathBuf::from(text);
                let name = path.file_name().unwrap_or(path.as_os_str());
                Self {
                    name: name.to_string_lossy().into_owned(),
                    path,
                }
            }
        };
        Ok(named)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> (String, String) {
        let Ok(named) = text.parse::<Named>();
        (named.name, named.path.display().to_string())
    }

    #[test]
    fn a_name_is_optional() {
        let pair = |name: &str, path: &str| (name.to_owned(), path.to_owned());
        assert_eq!(parsed("new=out/a.de"), pair("new", "out/a.de"));
        assert_eq!(parsed("out/a.de"), pair("a.de", "out/a.de"));
        assert_eq!(parsed("runs/small/"), pair("small", "runs/small/"));
        assert_eq!(parsed("=x"), pair("=x", "=x"));
        assert_eq!(parsed("-"), pair("-", "-"));
        assert_eq!(parsed("/"), pair("/", "/"));
    }
}
