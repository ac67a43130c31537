//! The download of a model, file by file.

use std::{
    collections::BTreeSet,
    ffi::OsStr,
    fs::{self, File, TryLockError},
    io::{self, ErrorKind},
    path::{Path, PathBuf},
    sync::{
        Arc,
        mpsc::{self, Sender},
    },
    thread,
};

use hf_hub::{
    Cache, Repo, RepoType,
    api::{
        Progress,
        sync::{ApiBuilder, ApiError, ApiRepo},
    },
};
use serde_json::{Map, Value};

use super::{Hub, HubProgress, Name, not_found};
use crate::{
    guard::guarded,
    pretrained::{
        error::PretrainedError,
        json::{LARGEST_LIST, LARGEST_SETTINGS, json},
        pooling::Module,
    },
};

/// The files beside the weights, in the order in which they are downloaded.
const SETTINGS: [&str; 14] = [
    "config.json",
    "generation_config.json",
    "preprocessor_config.json",
    "processor_config.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
    "tokenizer.json",
    MODULES,
    "1_Pooling/config.json",
    "config_sentence_transformers.json",
    "sentence_bert_config.json",
    "sentence_roberta_config.json",
    "sentence_distilbert_config.json",
];
/// The modules of sentence-transformers, which have folders of their own.
const MODULES: &str = "modules.json";
/// The files of a tokenizer without `tokenizer.json`.
const FORMER: [&str; 9] = [
    "vocab.json",
    "merges.txt",
    "vocab.txt",
    "added_tokens.json",
    "spiece.model",
    "tokenizer.model",
    "source.spm",
    "target.spm",
    "target_vocab.json",
];
/// Names of weights, in the order in which [`Folder`](crate::pretrained::Folder) looks for them.
const WEIGHTS: [&str; 4] = [
    "model.safetensors",
    "model.safetensors.index.json",
    "pytorch_model.bin",
    "pytorch_model.bin.index.json",
];

impl Hub {
    /// The folder of a model, after what is missing of it was downloaded, by one process at a time. A model that is in the cache is found
    /// without a network, and in a cache that cannot be written; it stays at its commit: what it lacks is downloaded from there.
    pub(super) fn download(
        &self,
        name: Name<'_>,
        progress: &mut dyn FnMut(HubProgress<'_>),
    ) -> Result<PathBuf, PretrainedError> {
        if self.offline {
            return self.cached(name).ok_or_else(|| {
                let problem =
                    "it is not in the cache, and HF_HUB_OFFLINE forbids a download; unset it";
                not_found(name.repository, problem.to_owned())
            });
        }
        let failed = |file: &str, problem: String| PretrainedError::Download {
            name: name.repository.to_owned(),
            file: file.to_owned(),
            problem,
        };
        let cached = self.cached(name);
        let commit = cached.as_deref().and_then(Path::file_name);
        let from = Name {
            revision: commit.and_then(OsStr::to_str).unwrap_or(name.revision),
            ..name
        };
        let repository = self
            .repository(from)
            .map_err(|error| failed("anything", error))?;
        let info = {
            let repository = Arc::clone(&repository);
            move |_| repository.info()
        };
        let listed = match self.awaited(info, |_, _| ()) {
            Ok(info) => info,
            Err(problem) => {
                return match cached {
                    Some(folder) => Ok(folder),
                    None => Err(failed("the list of its files", self.advice(&problem))),
                };
            }
        };
        let files: BTreeSet<String> = listed
            .siblings
            .into_iter()
            .map(|file| file.rfilename)
            .collect();
        let mut turn: Option<File> = None;
        let mut get = |file: &str| {
            // What is there is not downloaded again.
            let there = || match &cached {
                Some(folder) => Some(folder.join(file)).filter(|path| path.exists()),
                None => Cache::new(self.cache.clone()).repo(repo(name)).get(file),
            };
            if let Some(path) = there() {
                return Ok(path);
            }
            if turn.is_none() {
                match (self.turn(name, || progress(HubProgress::Waiting)), &cached) {
                    (Ok(own), _) => turn = Some(own),
                    // As without a network: what the model lacks is said by what needs it.
                    (Err(_), Some(folder)) => return Ok(folder.join(file)),
                    (Err(error), None) => {
                        let cache = self.cache.display();
                        let problem = format!(
                            "the cache {cache} cannot be written: {error}; make it writable, or set HF_HUB_CACHE to another folder"
                        );
                        return Err(failed(file, problem));
                    }
                }
                // A process that had its turn before may have brought it.
                if let Some(path) = there() {
                    return Ok(path);
                }
            }
            let (repository, name) = (Arc::clone(&repository), file.to_owned());
            let load = move |report| repository.download_with_progress(&name, report);
            let found = self.awaited(load, |done, total| {
                progress(HubProgress::Part { file, done, total });
            });
            found.map_err(|problem| failed(file, self.advice(&problem)))
        };
        let Some(weights) = weights(&files) else {
            let problem = "the repository has no weights that can be read (safetensors, or a checkpoint of PyTorch)";
            return Err(failed("its weights", problem.to_owned()));
        };
        if !files.contains(SETTINGS[0]) {
            let problem =
                "the repository has no such file, so it is no model of the library transformers";
            return Err(failed(SETTINGS[0], problem.to_owned()));
        }
        let mut wanted: Vec<&str> = SETTINGS.to_vec();
        if !files.contains("tokenizer.json") {
            wanted.extend(FORMER);
        }
        let mut config = None;
        for file in wanted {
            if files.contains(file) {
                let path = get(file)?;
                config.get_or_insert(path);
            }
        }
        if files.contains(MODULES) {
            // What is wrong with this list is said by what needs it.
            let modules = json(&get(MODULES)?, LARGEST_SETTINGS);
            let modules: Vec<Module> = modules.unwrap_or_default();
            for module in &modules {
                let Some(folder) = module.folder().filter(|folder| !folder.is_empty()) else {
                    continue;
                };
                let named = |file: &str| format!("{folder}/{file}");
                let weights = WEIGHTS
                    .into_iter()
                    .find(|file| files.contains(&named(file)));
                let weights = weights.filter(|_| module.kind() == Some("Dense"));
                for file in weights.into_iter().chain(["config.json"]) {
                    if files.contains(&named(file)) {
                        get(&named(file))?;
                    }
                }
            }
        }
        let first = get(weights)?;
        if weights.ends_with(".index.json") && first.exists() {
            let index: Map<String, Value> = json(&first, LARGEST_LIST)?;
            let shards = index.get("weight_map").and_then(Value::as_object);
            let shards: BTreeSet<&str> = shards
                .into_iter()
                .flat_map(Map::values)
                .filter_map(Value::as_str)
                .collect();
            for shard in shards {
                // A name that the hub does not list could lead anywhere.
                if !files.contains(shard) || shard.contains(['/', '\\']) {
                    return Err(failed(
                        shard,
                        format!("{weights} names it, but the repository lacks it"),
                    ));
                }
                get(shard)?;
            }
        }
        let folder = config.as_deref().and_then(|path| path.parent());
        Ok(folder.unwrap_or(&self.cache).to_owned())
    }

    /// A file that is locked as long as it is open, so that one process at a time downloads a model: the library waits five seconds for
    /// another, and then gives up. `wait` is called once, if another has it.
    fn turn(&self, name: Name<'_>, wait: impl FnOnce()) -> io::Result<File> {
        // Where Hugging Face's own locks are, among which its libraries look for no others.
        let folder = self.cache.join(".locks").join(name.folder());
        fs::create_dir_all(&folder)?;
        let mut options = File::options();
        let options = options.create(true).truncate(false).write(true);
        let file = options.open(folder.join("regard.lock"))?;
        match file.try_lock() {
            Err(TryLockError::WouldBlock) => {
                wait();
                while let Err(error) = file.lock() {
                    // A signal that the program has a handler for.
                    if error.kind() != ErrorKind::Interrupted {
                        return Err(error);
                    }
                }
            }
            // Some file systems have no locks.
            Err(TryLockError::Error(error)) if error.kind() != ErrorKind::Unsupported => {
                return Err(error);
            }
            _ => {}
        }
        Ok(file)
    }

    /// The result of a call that waits for a server, and its progress, as long as the server does not keep silent for too long. The
    /// library has no limits of time, so the call has a thread of its own, which may wait on after that.
    fn awaited<T: Send + 'static>(
        &self,
        call: impl FnOnce(Report<T>) -> Result<T, ApiError> + Send + 'static,
        mut progress: impl FnMut(u64, u64),
    ) -> Result<T, String> {
        let (sender, heard) = mpsc::channel();
        let report = Report {
            done: 0,
            total: 0,
            sender: sender.clone(),
        };
        thread::spawn(move || {
            // Nobody listens any more after too long a silence.
            let _ = sender.send(Heard::End(called(|| call(report))));
        });
        loop {
            match heard.recv_timeout(self.patience) {
                Ok(Heard::Part(done, total)) => progress(done, total),
                Ok(Heard::End(result)) => return result,
                Err(_) => {
                    let seconds = self.patience.as_secs_f64();
                    return Err(format!("it has sent nothing for {seconds} seconds"));
                }
            }
        }
    }

    fn repository(&self, name: Name<'_>) -> Result<Arc<ApiRepo>, String> {
        let api = ApiBuilder::from_cache(Cache::new(self.cache.clone()))
            .with_endpoint(self.endpoint.clone())
            .with_token(self.token.clone())
            .with_retries(2)
            .with_progress(false);
        let api = called(|| api.build())?;
        Ok(Arc::new(api.repo(repo(name))))
    }

    /// A problem, and what can be done about it.
    fn advice(&self, problem: &str) -> String {
        let endpoint = &self.endpoint;
        if ["401", "403", "404"]
            .iter()
            .any(|status| problem.contains(&format!("status: {status}")))
        {
            return format!(
                "{endpoint} answers: {problem}; it does not exist, or it needs a token in HF_TOKEN"
            );
        }
        format!(
            "{endpoint} cannot be reached or used: {problem}; check the network, or copy the model's folder here and name it in \
             place of hf:.."
        )
    }
}

fn repo(name: Name<'_>) -> Repo {
    Repo::with_revision(
        name.repository.to_owned(),
        RepoType::Model,
        name.revision.to_owned(),
    )
}

/// The file of weights, or the list of its parts.
fn weights(files: &BTreeSet<String>) -> Option<&str> {
    let usual = WEIGHTS.into_iter().find(|file| files.contains(*file));
    usual.or_else(|| {
        let mut others = files
            .iter()
            .filter(|file| file.ends_with(".safetensors") && !file.contains('/'));
        others
            .next()
            .filter(|_| others.next().is_none())
            .map(String::as_str)
    })
}

/// The result of a call of the library, with its panics as errors: it panics on some answers of a server.
fn called<T>(call: impl FnOnce() -> Result<T, ApiError>) -> Result<T, String> {
    match guarded(call) {
        Some(result) => result.map_err(|error| error.to_string()),
        None => Err("its answer was not understood".to_owned()),
    }
}

/// What a thread that waits for a server tells.
enum Heard<T> {
    /// Bytes so far and in all.
    Part(u64, u64),
    End(Result<T, String>),
}

/// Passes the progress of a download on.
struct Report<T> {
    done: u64,
    total: u64,
    sender: Sender<Heard<T>>,
}

impl<T> Progress for Report<T> {
    fn init(&mut self, size: usize, _: &str) {
        (self.done, self.total) = (0, size as u64);
    }

    fn update(&mut self, size: usize) {
        self.done += size as u64;
        let _ = self.sender.send(Heard::Part(self.done, self.total));
    }

    fn finish(&mut self) {}
}
