//! Models by name: in the local cache, and downloaded from a server on this machine.

use std::{
    collections::BTreeMap,
    fs::{self, File},
    io::{BufRead, BufReader, Write},
    net::{TcpListener, TcpStream},
    sync::{Arc, Mutex, mpsc},
    thread,
    time::Duration,
};

use regard_models::pretrained::{Folder, Hub, HubProgress, PretrainedError, Tokenizer};
use serde_json::json;

use crate::common::{Files, byte_level_document, safetensors, write_shards};

/// A server that has one repository, `org/tiny`, and writes down what it is asked for.
struct Server {
    endpoint: String,
    asked: Arc<Mutex<Vec<String>>>,
}

impl Server {
    fn new(files: BTreeMap<String, Vec<u8>>) -> Self {
        Self::at("c0ffee", files)
    }

    /// One whose newest commit is this one.
    fn at(main: &'static str, files: BTreeMap<String, Vec<u8>>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let endpoint = format!("http://{}", listener.local_addr().unwrap());
        let asked = Arc::new(Mutex::new(vec![]));
        let log = asked.clone();
        thread::spawn(move || {
            for stream in listener.incoming() {
                answer(stream.unwrap(), main, &files, &log);
            }
        });
        Self { endpoint, asked }
    }

    /// The files that were asked for since the last call, each once.
    fn asked(&self) -> Vec<String> {
        let mut asked = std::mem::take(&mut *self.asked.lock().unwrap());
        asked.dedup();
        asked
    }
}

fn answer(
    mut stream: TcpStream,
    main: &str,
    files: &BTreeMap<String, Vec<u8>>,
    log: &Mutex<Vec<String>>,
) {
    let mut lines = BufReader::new(stream.try_clone().unwrap())
        .lines()
        .map_while(Result::ok);
    let request = lines.next().unwrap_or_default();
    let path = request.split(' ').nth(1).unwrap_or_default().to_owned();
    let mut begin = 0;
    for line in lines.take_while(|line| !line.is_empty()) {
        if let Some(range) = line.to_lowercase().strip_prefix("range: bytes=") {
            begin = range.split('-').next().unwrap().parse().unwrap();
        }
    }
    let mut reply = |status: &str, headers: &str, body: &[u8]| {
        let head = format!(
            "HTTP/1.1 {status}\r\nContent-Length: {}\r\nConnection: close\r\n{headers}\r\n",
            body.len()
        );
        let _ = stream.write_all(head.as_bytes());
        let _ = stream.write_all(body);
    };
    // Another revision than `main` is a commit.
    let commit = |revision: &str| match revision {
        "main" => main.to_owned(),
        commit => commit.to_owned(),
    };
    let asked = path.strip_prefix("/org/tiny/resolve/").and_then(|rest| {
        let (revision, name) = rest.split_once('/')?;
        let (name, file) = files.get_key_value(name)?;
        Some((commit(revision), name, file))
    });
    if let Some(revision) = path.strip_prefix("/api/models/org/tiny/revision/") {
        let siblings: Vec<_> = files
            .keys()
            .map(|name| json!({"rfilename": name}))
            .collect();
        reply(
            "200 OK",
            "",
            json!({"siblings": siblings, "sha": commit(revision)})
                .to_string()
                .as_bytes(),
        );
    } else if let Some((commit, name, file)) = asked {
        log.lock().unwrap().push(name.clone());
        let headers = format!(
            "ETag: \"tag-{}\"\r\nX-Repo-Commit: {commit}\r\nContent-Range: bytes {begin}-{}/{}\r\n",
            name.replace('/', "-"),
            file.len() - 1,
            file.len()
        );
        reply("206 Partial Content", &headers, &file[begin..]);
    } else {
        reply("404 Not Found", "", b"");
    }
}

fn repository(weights: &Files) -> BTreeMap<String, Vec<u8>> {
    let mut files: BTreeMap<String, Vec<u8>> = fs::read_dir(weights.path())
        .unwrap()
        .map(|file| {
            let file = file.unwrap();
            (
                file.file_name().into_string().unwrap(),
                fs::read(file.path()).unwrap(),
            )
        })
        .collect();
    files.insert(
        "tokenizer.json".into(),
        byte_level_document().to_string().into_bytes(),
    );
    files.insert("generation_config.json".into(), b"{}".to_vec());
    for unneeded in [
        "README.md",
        "vocab.json",
        "merges.txt",
        "flax_model.msgpack",
        "onnx/model.onnx",
        "pytorch_model.bin",
    ] {
        files.insert(unneeded.into(), b"unneeded".to_vec());
    }
    files
}

/// A server that takes connections and never answers is given up, and a model that is in the cache is found all the same.
#[test]
fn a_silent_server_is_given_up() {
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let cache = Files::new();
    let hub = Hub::new(cache.path())
        .with_endpoint(format!("http://{}", silent.local_addr().unwrap()))
        .with_patience(Duration::from_millis(200));
    let error = hub.resolve("hf:org/tiny", |_| ()).unwrap_err();
    assert!(matches!(error, PretrainedError::Download { .. }));
    let error = error.to_string();
    assert!(
        error.contains("it has sent nothing for 0.2 seconds")
            && error.contains("check the network"),
        "{error}"
    );
    let snapshot = cache.path().join("models--org--tiny/snapshots/main");
    fs::create_dir_all(&snapshot).unwrap();
    fs::write(snapshot.join("config.json"), "{}").unwrap();
    assert_eq!(hub.resolve("hf:org/tiny", |_| ()).unwrap(), snapshot);
}

#[test]
fn a_model_is_downloaded_once_and_found_without_a_network() {
    let weights = Files::with_config();
    write_shards(&weights);
    let server = Server::new(repository(&weights));
    let cache = Files::new();
    let hub = Hub::new(cache.path()).with_endpoint(&server.endpoint);
    let mut told: BTreeMap<String, (u64, u64)> = BTreeMap::new();
    let folder = hub.resolve("hf:org/tiny", |progress| {
        let HubProgress::Part { file, done, total } = progress else {
            unreachable!("no other process downloads it");
        };
        told.insert(file.to_owned(), (done, total));
    });
    let folder = folder.unwrap();
    assert_eq!(
        folder,
        cache.path().join("models--org--tiny/snapshots/c0ffee")
    );
    let needed = [
        "config.json",
        "generation_config.json",
        "tokenizer.json",
        "model.safetensors.index.json",
        "a.safetensors",
        "b.safetensors",
    ];
    assert_eq!(server.asked(), needed);
    assert_eq!(told.keys().count(), needed.len());
    assert!(told.values().all(|(done, total)| done == total), "{told:?}");
    assert_eq!(Folder::open(&folder).unwrap().tensors().count(), 3);
    assert_eq!(Tokenizer::open(&folder).unwrap().size(), 268);
    // Again: nothing is downloaded.
    assert_eq!(
        hub.resolve("hf:org/tiny", |_| unreachable!()).unwrap(),
        folder
    );
    assert!(server.asked().is_empty());
    // What is missing is downloaded again.
    fs::remove_file(folder.join("b.safetensors")).unwrap();
    hub.resolve("hf:org/tiny", |_| ()).unwrap();
    assert_eq!(server.asked(), ["b.safetensors"]);
    // Without the prefix, and without a server.
    for model in ["org/tiny", "org/tiny@c0ffee", "hf:org/tiny"] {
        let alone = Hub::new(cache.path()).with_endpoint("http://127.0.0.1:1");
        assert_eq!(alone.resolve(model, |_| ()).unwrap(), folder, "{model}");
    }
}

/// Of those that want the same model one downloads it. The others wait, say so once, and find it in the cache.
#[test]
fn one_at_a_time_downloads_a_model() {
    let weights = Files::with_config();
    write_shards(&weights);
    let server = Server::new(repository(&weights));
    let cache = Files::new();
    let hub = Hub::new(cache.path()).with_endpoint(&server.endpoint);
    let locks = cache.path().join(".locks/models--org--tiny");
    fs::create_dir_all(&locks).unwrap();
    let other = File::create(locks.join("regard.lock")).unwrap();
    other.lock().unwrap();
    let (sender, told) = mpsc::channel();
    let found = thread::scope(|scope| {
        let both = [sender.clone(), sender].map(|sender| {
            let hub = &hub;
            scope.spawn(move || {
                let tell = |progress: HubProgress<'_>| {
                    let file = match progress {
                        HubProgress::Waiting => None,
                        HubProgress::Part { file, .. } => Some(file.to_owned()),
                    };
                    sender.send(file).unwrap();
                };
                let found = hub.resolve("hf:org/tiny", tell);
                found.map_err(|error| error.to_string())
            })
        });
        for _ in 0..2 {
            let first = told.recv_timeout(Duration::from_secs(60)).unwrap();
            assert_eq!(first, None, "waiting");
        }
        assert!(server.asked().is_empty());
        drop(other);
        both.map(|one| one.join().unwrap().unwrap())
    });
    let snapshot = cache.path().join("models--org--tiny/snapshots/c0ffee");
    assert_eq!(found, [snapshot.clone(), snapshot]);
    let needed = [
        "config.json",
        "generation_config.json",
        "tokenizer.json",
        "model.safetensors.index.json",
        "a.safetensors",
        "b.safetensors",
    ];
    assert_eq!(server.asked(), needed);
    let mut files = told.iter().map(|file| file.expect("told once"));
    assert!(files.all(|file| needed.contains(&&*file)));
}

/// A model in a cache that cannot be written is found there, though files of it are missing.
#[test]
fn a_cache_that_cannot_be_written_is_read() {
    let weights = Files::with_config();
    write_shards(&weights);
    let server = Server::new(repository(&weights));
    let cache = Files::new();
    let hub = Hub::new(cache.path()).with_endpoint(&server.endpoint);
    let resolve = || {
        let found = hub.resolve("hf:org/tiny", |_| ());
        found.map_err(|error| error.to_string())
    };
    // In the place of a folder, so that nobody can make one there.
    cache.write(".locks", "");
    let error = resolve().unwrap_err();
    let said = [
        "cannot download config.json",
        "cannot be written",
        "HF_HUB_CACHE",
    ];
    assert!(said.iter().all(|said| error.contains(said)), "{error}");
    let snapshot = cache.path().join("models--org--tiny/snapshots/main");
    fs::create_dir_all(&snapshot).unwrap();
    fs::write(snapshot.join("config.json"), "{}").unwrap();
    assert_eq!(resolve().unwrap(), snapshot);
    assert!(server.asked().is_empty());
}

/// The files of images, of pieces and of the modules of sentence-transformers; also where a model is in the cache without them, and the
/// repository has a newer commit by now.
#[test]
fn what_stands_beside_a_model_is_downloaded() {
    let modules = json!([
        {"path": "", "type": "sentence_transformers.models.Transformer"},
        {"path": "pooled", "type": "sentence_transformers.models.Pooling"},
        {"path": "2_Dense", "type": "sentence_transformers.models.Dense"},
        {"path": "../x", "type": "sentence_transformers.models.Dense"},
    ])
    .to_string();
    let needed = [
        "config.json",
        "preprocessor_config.json",
        "processor_config.json",
        "modules.json",
        "1_Pooling/config.json",
        "config_sentence_transformers.json",
        "sentence_bert_config.json",
        "vocab.json",
        "spiece.model",
        "source.spm",
        "target.spm",
        "target_vocab.json",
        "pooled/config.json",
        "2_Dense/model.safetensors",
        "2_Dense/config.json",
        "model.safetensors",
    ];
    let unneeded = [
        "2_Dense/pytorch_model.bin",
        "pooled/model.safetensors",
        "../x/config.json",
        "3_Other/config.json",
    ];
    let files: BTreeMap<String, Vec<u8>> = needed
        .iter()
        .chain(&unneeded)
        .map(|&name| match name {
            "modules.json" => (name.to_owned(), modules.clone().into_bytes()),
            _ => (name.to_owned(), b"{}".to_vec()),
        })
        .collect();
    let server = Server::new(files.clone());
    let cache = Files::new();
    let resolve = |endpoint: &str| {
        let hub = Hub::new(cache.path()).with_endpoint(endpoint);
        hub.resolve("hf:org/tiny", |_| ()).unwrap()
    };
    let folder = resolve(&server.endpoint);
    assert_eq!(server.asked(), needed);
    assert!(needed.iter().all(|name| folder.join(name).is_file()));

    let newer = Server::at("decade", files.clone());
    fs::remove_file(folder.join("preprocessor_config.json")).unwrap();
    fs::remove_dir_all(folder.join("2_Dense")).unwrap();
    assert_eq!(resolve("http://127.0.0.1:1"), folder);
    assert_eq!(resolve(&newer.endpoint), folder);
    let missing = [
        "preprocessor_config.json",
        "2_Dense/model.safetensors",
        "2_Dense/config.json",
    ];
    assert_eq!(newer.asked(), missing);
    assert!(needed.iter().all(|name| folder.join(name).is_file()));

    // Those of pieces are needed where there is no tokenizer.json.
    let mut files = files;
    files.insert("tokenizer.json".to_owned(), b"{}".to_vec());
    let server = Server::new(files);
    let cache = Files::new();
    let hub = Hub::new(cache.path()).with_endpoint(&server.endpoint);
    hub.resolve("hf:org/tiny", |_| ()).unwrap();
    let asked = server.asked();
    let of_pieces = |name: &String| name.ends_with(".spm") || name.ends_with("vocab.json");
    assert!(!asked.iter().any(of_pieces), "{asked:?}");
}

#[test]
fn what_cannot_be_downloaded_says_why_and_what_to_do() {
    let cache = Files::new();
    let failed = |endpoint: &str, model: &str| {
        let hub = Hub::new(cache.path()).with_endpoint(endpoint);
        let error = hub.resolve(model, |_| ()).unwrap_err();
        assert!(matches!(error, PretrainedError::Download { .. }), "{error}");
        error.to_string()
    };
    let found = failed("http://127.0.0.1:1", "hf:org/tiny");
    assert!(
        found.contains("http://127.0.0.1:1 cannot be reached or used")
            && found.contains("check the network"),
        "{found}"
    );
    let weights = Files::with_config();
    weights.write("model.safetensors", safetensors(&[("x", "F32", &[1])]));
    let server = Server::new(repository(&weights));
    let found = failed(&server.endpoint, "hf:org/other");
    assert!(
        found.contains("404") && found.contains("HF_TOKEN"),
        "{found}"
    );

    // Repositories without configuration or weights, or whose index leads elsewhere.
    let with = |files: &[(&str, &str)]| {
        let files = files
            .iter()
            .map(|(name, content)| ((*name).to_owned(), content.as_bytes().to_vec()));
        failed(&Server::new(files.collect()).endpoint, "hf:org/tiny")
    };
    let found = with(&[("config.json", "{}"), ("model.gguf", "x")]);
    assert!(found.contains("no weights that can be read"), "{found}");
    let found = with(&[("model.safetensors", "x")]);
    assert!(found.contains("cannot download config.json"), "{found}");
    let index = r#"{"weight_map": {"x": "../../x"}}"#;
    let found = with(&[
        ("config.json", "{}"),
        ("model.safetensors.index.json", index),
    ]);
    assert!(
        found.contains("names it, but the repository lacks it"),
        "{found}"
    );
}

#[test]
fn names_are_looked_for_in_the_cache() {
    let cache = Files::new();
    let hub = Hub::new(cache.path());
    let snapshot = |folder: &str, reference: &str, commit: &str| {
        let folder = cache.path().join(folder);
        fs::create_dir_all(folder.join("refs")).unwrap();
        fs::create_dir_all(folder.join("snapshots").join(commit)).unwrap();
        fs::write(folder.join("refs/main"), reference).unwrap();
        fs::write(
            folder.join("snapshots").join(commit).join("config.json"),
            "{}",
        )
        .unwrap();
    };
    snapshot("models--gpt2", "abc\n", "abc");
    snapshot("models--org--small", "../..", "abc");
    snapshot("models--org--empty", "other", "abc");
    let found = hub.resolve("gpt2", |_| ()).unwrap();
    assert_eq!(found, cache.path().join("models--gpt2/snapshots/abc"));
    let message = |model: &str| {
        let error = hub.resolve(model, |_| ()).unwrap_err();
        assert!(matches!(error, PretrainedError::NotFound { .. }), "{error}");
        error.to_string()
    };
    assert!(
        message("gtp2").ends_with("did you mean gpt2?"),
        "{}",
        message("gtp2")
    );
    for name in ["somebody/something", "somebody/something@v2"] {
        let expected = format!("; hf:{name} downloads it if it is a model of the Hugging Face hub");
        assert!(message(name).contains(&expected), "{}", message(name));
    }
    // In the folder of these tests: nothing that could be downloaded.
    let local = message("tests/none");
    assert!(
        local.ends_with("the folder of a run is made by `regard train`") && !local.contains("hf:"),
        "{local}"
    );
    // References that lead out of the cache or nowhere.
    assert!(message("org/small").contains("no such folder"));
    assert!(message("org/empty").contains("no such folder"));
    let without = "without a config.json of its revision main; hf:org/empty downloads it";
    assert!(
        message("org/empty").ends_with(without),
        "{}",
        message("org/empty")
    );
    assert!(message("hf:../x").contains("expected hf:organisation/name"));
    assert!(message("/no/such/folder").contains("there is no such folder"));
    // A folder is itself, a file is none.
    assert_eq!(
        hub.resolve(cache.path().to_str().unwrap(), |_| ()).unwrap(),
        cache.path()
    );
    cache.write("file", "");
    assert!(
        message(cache.file("file").to_str().unwrap()).contains("it is a file; expected a folder")
    );
}
