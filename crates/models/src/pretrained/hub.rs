//! Finds a model by what it is called: a folder, a name in the local cache, or a name on the Hugging Face hub.

#[cfg(feature = "hub")]
mod download;

use std::{
    env, fs,
    path::{Path, PathBuf},
    time::Duration,
};

use regard_config::nearest;

use super::{
    error::PretrainedError,
    json::{LARGEST_SETTINGS, text},
};

/// What stands in front of the name of a model that may be downloaded.
const PREFIX: &str = "hf:";

/// The folder of a model that is called `model`:
/// - a folder: it itself;
/// - `organisation/name`: in the local cache of the Hugging Face libraries;
/// - `hf:organisation/name`: the same, downloaded into the cache if it is not there (with the feature `hub`).
///
/// A name may end in `@` and a revision.
///
/// # Errors
/// [`PretrainedError::NotFound`] with the nearest name of the cache; [`PretrainedError::Download`].
pub fn resolve(model: &str) -> Result<PathBuf, PretrainedError> {
    Hub::from_env().resolve(model, |_| ())
}

/// What is told of a download while it is under way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HubProgress<'a> {
    /// Another process downloads the model, which is waited for: told once.
    Waiting,
    /// A part of a file has come.
    Part {
        /// The name of the file.
        file: &'a str,
        /// The bytes so far.
        done: u64,
        /// The bytes in all.
        total: u64,
    },
}

/// The Hugging Face hub and its local cache.
#[derive(Debug, Clone)]
pub struct Hub {
    cache: PathBuf,
    #[cfg_attr(not(feature = "hub"), expect(dead_code))]
    endpoint: String,
    #[cfg_attr(not(feature = "hub"), expect(dead_code))]
    token: Option<String>,
    offline: bool,
    #[cfg_attr(not(feature = "hub"), expect(dead_code))]
    patience: Duration,
}

/// The name of a model on the hub.
#[derive(Debug, Clone, Copy)]
struct Name<'a> {
    /// `organisation/name`, or `name` alone.
    repository: &'a str,
    revision: &'a str,
}

impl Hub {
    /// The hub with the cache in the folder `cache`.
    pub fn new(cache: impl Into<PathBuf>) -> Self {
        Self {
            cache: cache.into(),
            endpoint: "https://huggingface.co".to_owned(),
            token: None,
            offline: false,
            patience: Duration::from_secs(60),
        }
    }

    /// The hub as the Hugging Face libraries are set up by the environment: `HF_HUB_CACHE`, `HF_HOME`, `HF_ENDPOINT`, `HF_TOKEN`
    /// and `HF_HUB_OFFLINE`.
    pub fn from_env() -> Self {
        let text = |key| env::var(key).ok().filter(|value| !value.is_empty());
        let path = |key| {
            env::var_os(key)
                .filter(|value| !value.is_empty())
                .map(PathBuf::from)
        };
        let home = path("HF_HOME").unwrap_or_else(|| {
            let cache = path("XDG_CACHE_HOME");
            let cache = cache.or_else(|| Some(env::home_dir()?.join(".cache")));
            cache.unwrap_or_default().join("huggingface")
        });
        let cache = path("HF_HUB_CACHE").or_else(|| path("HUGGINGFACE_HUB_CACHE"));
        let stored_token = || fs::read_to_string(home.join("token")).ok();
        let token = text("HF_TOKEN").or_else(stored_token);
        let hub = Self {
            token: token
                .map(|token| token.trim().to_owned())
                .filter(|token| !token.is_empty()),
            offline: text("HF_HUB_OFFLINE").is_some_and(|value| {
                ["1", "true", "yes", "on"].contains(&value.to_lowercase().as_str())
            }),
            ..Self::new(cache.unwrap_or_else(|| home.join("hub")))
        };
        match text("HF_ENDPOINT") {
            Some(endpoint) => hub.with_endpoint(endpoint.trim_end_matches('/')),
            None => hub,
        }
    }

    /// The same with another server.
    #[must_use]
    pub fn with_endpoint(self, endpoint: impl Into<String>) -> Self {
        Self {
            endpoint: endpoint.into(),
            ..self
        }
    }

    /// The same that gives up when a server sends nothing for `patience`; usual are 60 seconds.
    #[must_use]
    pub fn with_patience(self, patience: Duration) -> Self {
        Self { patience, ..self }
    }

    /// As [`resolve`], with this cache and server. `progress` is told of a download.
    ///
    /// # Errors
    /// As [`resolve`]'s.
    pub fn resolve(
        &self,
        model: &str,
        mut progress: impl FnMut(HubProgress<'_>),
    ) -> Result<PathBuf, PretrainedError> {
        if let Some(name) = model.strip_prefix(PREFIX) {
            let Some(name) = Name::new(name) else {
                return Err(not_found(model, "expected hf:organisation/name".to_owned()));
            };
            return self.download(name, &mut progress);
        }
        let folder = Path::new(model);
        if folder.is_dir() {
            return Ok(folder.to_owned());
        }
        if folder.exists() {
            return Err(not_found(
                model,
                "it is a file; expected a folder".to_owned(),
            ));
        }
        let name = Name::new(model);
        if let Some(found) = name.and_then(|name| self.cached(name)) {
            return Ok(found);
        }
        let cache = self.cache.display();
        let names = self.names();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        if let Some(name) = name.filter(|name| names.contains(&name.repository)) {
            let revision = name.revision;
            return Err(not_found(
                model,
                format!(
                    "there is no such folder, and the cache {cache} has it without a config.json of its revision {revision}; {PREFIX}{model} downloads it"
                ),
            ));
        }
        const OF_A_RUN: &str = "; the folder of a run is made by `regard train`";
        // A name on the hub is no path into a folder that is there.
        let around = folder.parent().unwrap_or(Path::new(""));
        let advice = match (nearest(model, &names), name) {
            (Some(near), _) => format!("; did you mean {near}?"),
            (None, Some(_)) if !around.is_dir() => format!(
                "; {PREFIX}{model} downloads it if it is a model of the Hugging Face hub{OF_A_RUN}"
            ),
            _ => OF_A_RUN.to_owned(),
        };
        let problem = format!("there is no such folder, and none in the cache {cache}{advice}");
        Err(not_found(model, problem))
    }

    /// The folder of a model in the cache, if it has a configuration.
    fn cached(&self, name: Name<'_>) -> Option<PathBuf> {
        let folder = self.cache.join(name.folder());
        let reference = text(&folder.join("refs").join(name.revision), LARGEST_SETTINGS).ok();
        // Without a reference the revision is a commit.
        let commit = reference.as_deref().map_or(name.revision, str::trim);
        let snapshot = folder.join("snapshots").join(commit);
        let plain = Path::new(commit)
            .file_name()
            .is_some_and(|plain| plain == commit);
        (plain && snapshot.join("config.json").exists()).then_some(snapshot)
    }

    /// The names of the models in the cache.
    fn names(&self) -> Vec<String> {
        let folders = fs::read_dir(&self.cache).into_iter().flatten().flatten();
        folders
            .filter_map(|folder| {
                let name = folder.file_name().into_string().ok()?;
                Some(name.strip_prefix("models--")?.replace("--", "/"))
            })
            .collect()
    }

    #[cfg(not(feature = "hub"))]
    fn download(
        &self,
        name: Name<'_>,
        _: &mut dyn FnMut(HubProgress<'_>),
    ) -> Result<PathBuf, PretrainedError> {
        let _ = self.offline;
        self.cached(name).ok_or_else(|| {
            not_found(
                name.repository,
                format!(
                    "it is not in the cache {}, and this program was built without the feature `hub`, which downloads",
                    self.cache.display()
                ),
            )
        })
    }
}

impl<'a> Name<'a> {
    /// A name that can be one of the hub: two parts at most, of letters, digits, `-`, `_` and `.`.
    fn new(name: &'a str) -> Option<Self> {
        let plain = |part: &str| {
            let known = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
            !part.is_empty() && part.chars().all(known) && !part.contains("..") && part != "."
        };
        let (repository, revision) = name.split_once('@').unwrap_or((name, "main"));
        let good = repository.split('/').count() <= 2
            && repository.split('/').chain(revision.split('/')).all(plain);
        good.then_some(Self {
            repository,
            revision,
        })
    }

    /// The folder in the cache.
    fn folder(self) -> String {
        format!("models--{}", self.repository.replace('/', "--"))
    }
}

fn not_found(name: &str, problem: String) -> PretrainedError {
    PretrainedError::NotFound {
        name: name.to_owned(),
        problem,
    }
}

#[cfg(test)]
mod tests {
    use super::Name;

    #[test]
    fn names_stay_inside_the_cache() {
        for good in [
            "gpt2",
            "org/name-1.5_x",
            "org/name@v1",
            "org/name@refs/pr/1",
        ] {
            assert!(Name::new(good).is_some(), "{good}");
        }
        for bad in [
            "", "/", "a/b/c", "..", "a/..", "../a", "a/.", "a b", "a/b@", "a@../x", "a\\b", "hf:a",
            "a:b",
        ] {
            assert!(Name::new(bad).is_none(), "{bad}");
        }
    }
}
