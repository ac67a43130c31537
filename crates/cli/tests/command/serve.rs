//! `regard serve`: the address that it prints is answered, by traces and by models.

use std::{
    io::{BufRead, BufReader, Read, Write},
    net::TcpStream,
    path::Path,
    process::{Child, Command, Stdio},
};

use assert_cmd::cargo::cargo_bin;
use serde_json::{Value, json};
use tempfile::tempdir;

use crate::{file, inside, refused, regard, run, stdout};

/// A server, which ends with the test.
struct Served {
    child: Child,
    address: String,
}

impl Served {
    fn start(arguments: &[&str]) -> Self {
        let mut child = Command::new(cargo_bin!("regard"))
            .args(["serve", "--no-open", "--quiet"])
            .args(arguments)
            .stdout(Stdio::piped())
            .spawn()
            .expect("the command starts");
        let mut line = String::new();
        let out = child.stdout.take().expect("its output is piped");
        BufReader::new(out)
            .read_line(&mut line)
            .expect("it prints a line");
        let address = line.trim().strip_prefix("http://").expect("an address");
        let address = address.split('/').next().unwrap_or_default().to_owned();
        Self { child, address }
    }

    fn get(&self, path: &str) -> Value {
        let body = self.bytes(path);
        serde_json::from_slice(&body).unwrap_or_else(|error| panic!("{error}: {body:?}"))
    }

    fn bytes(&self, path: &str) -> Vec<u8> {
        self.speak(&format!(
            "GET {path} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n\r\n",
            self.address
        ))
    }

    fn post(&self, path: &str, body: &Value) -> Value {
        let (head, body) = self.posted(path, body.to_string().as_bytes());
        assert!(head.starts_with("HTTP/1.1 200"), "{head}{body}");
        body
    }

    fn posted(&self, path: &str, body: &[u8]) -> (String, Value) {
        let head = format!(
            "POST {path} HTTP/1.1\r\nHost: {0}\r\nOrigin: http://{0}\r\nContent-Type: application/json\r\nContent-Length: {1}\r\nConnection: close\r\n\r\n",
            self.address,
            body.len()
        );
        let (head, body) = self.answer([head.as_bytes(), body].concat());
        let body = serde_json::from_slice(&body);
        (head, body.unwrap_or_else(|error| panic!("{error}")))
    }

    /// Looks at an image with heads changed.
    fn look(&self, image: &[u8], text: &str, heads: &Value) -> Result<Value, String> {
        let line = json!({"text": text, "ablation": heads}).to_string();
        let (head, answer) = self.posted("/api/look", &[line.as_bytes(), b"\n", image].concat());
        match head.starts_with("HTTP/1.1 200") {
            true => Ok(answer),
            false => Err(answer["error"].as_str().unwrap().to_owned()),
        }
    }

    /// The weights of one query by its view, after comparing them with those of the map.
    fn query(&self, id: &Value, map: usize, head: usize, query: usize) -> Vec<f32> {
        let window = self.bytes(&format!("/api/trace/{id}/window?map={map}&heads={head}"));
        let found = self.get(&format!(
            "/api/trace/{id}/query?map={map}&head={head}&query={query}"
        ));
        let keys = found["keys"].as_array().unwrap();
        assert_eq!(found["of"], keys.len());
        let row = window[query * keys.len() * 4..].chunks(4).take(keys.len());
        let rows = row.map(|bytes| f32::from_le_bytes(bytes.try_into().unwrap()));
        let pairs = keys.iter().zip(rows).map(|(key, weight)| {
            let found = key["weight"].as_f64().unwrap() as f32;
            assert!((found - weight).abs() < 1e-6, "{key}: {weight}");
            found
        });
        pairs.collect()
    }

    /// The gradients of a look: its output and log probability, and for each head the sum of gradient times attention, which are those of
    /// the maps of the view.
    fn gradients(&self, id: &Value) -> Value {
        let found = self.get(&format!("/api/trace/{id}/gradients"));
        let mut largest = 0.0f64;
        for one in found["heads"].as_array().unwrap() {
            let (map, head) = (&one["map"], &one["head"]);
            let path = format!("/api/trace/{id}/gradient?map={map}&heads={head}");
            let products = self.bytes(&path);
            let products = products.chunks(4);
            let sum: f32 = products
                .map(|four| f32::from_le_bytes(four.try_into().unwrap()))
                .sum();
            let told = one["sum"].as_f64().unwrap();
            assert!((f64::from(sum) - told).abs() < 1e-4, "{one}: {sum}");
            largest = largest.max(told.abs());
        }
        assert!(largest > 1e-5, "{found}");
        found
    }

    /// What is wrong with a request that is refused.
    fn refusal(&self, path: &str) -> String {
        let get = format!(
            "GET {path} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n\r\n",
            self.address
        );
        let (head, body) = self.answer(&get);
        assert!(head.starts_with("HTTP/1.1 400"), "{path}: {head}{body:?}");
        let body: Value = serde_json::from_slice(&body).unwrap();
        body["error"].as_str().unwrap().to_owned()
    }

    /// The body of an answer.
    fn speak(&self, request: &str) -> Vec<u8> {
        let (head, body) = self.answer(request);
        assert!(head.starts_with("HTTP/1.1 200"), "{head}{body:?}");
        body
    }

    fn answer(&self, request: impl AsRef<[u8]>) -> (String, Vec<u8>) {
        let mut stream = TcpStream::connect(&self.address).expect("the server listens");
        stream.write_all(request.as_ref()).expect("it reads");
        let mut answer = vec![];
        stream.read_to_end(&mut answer).expect("it answers");
        let end = answer.windows(4).position(|four| four == b"\r\n\r\n");
        let body = answer.split_off(end.expect("a head and a body") + 4);
        (String::from_utf8_lossy(&answer).into_owned(), body)
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        // One that has ended already is as good.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn traces_and_the_embedded_translator_are_served() {
    let folder = tempdir().unwrap();
    let (_, trace) = inside(folder.path(), "look.safetensors");
    run(["translate", "--quiet", "--trace", &trace, "Two dogs play."]).success();
    let served = Served::start(&[&trace]);
    let listed = served.get("/api/traces");
    assert_eq!(listed["traces"].as_array().unwrap().len(), 1, "{listed}");
    assert!(listed["model"].is_null(), "{listed}");

    let served = Served::start(&[]);
    let model = &served.get("/api/traces")["model"];
    assert_eq!(
        *model,
        json!({"name": "multi30k-en-de", "input": "text", "changes_heads": true, "shows_queries": true, "continues": false})
    );
    let answer = served.post("/api/look", &json!({"text": "Two dogs play in the snow."}));
    assert!(
        answer["output"].as_str().unwrap().contains("Hunde"),
        "{answer}"
    );
    // The tree of the beam ends in its hypotheses, each with maps of its own.
    let tree = served.get("/api/trace/0/generation");
    let hypotheses = tree["hypotheses"].as_array().unwrap();
    assert!(hypotheses.len() > 1, "{tree}");
    assert_eq!(hypotheses[0]["text"], answer["output"]);
    for hypothesis in hypotheses {
        let (mut log, mut place) = (0.0, hypothesis["leaf"].as_u64());
        while let Some(at) = place {
            let proposal = &tree["proposals"][at as usize];
            assert_eq!(proposal["taken"], true);
            log += proposal["probability"].as_f64().unwrap().ln();
            place = proposal["parent"].as_u64();
        }
        let listed = answer["alternatives"].as_array().unwrap().iter();
        let mut listed = listed.filter(|one| one["text"] == hypothesis["text"]);
        let probability = listed.next().unwrap()["probability"].as_f64().unwrap();
        assert!((log - probability.ln()).abs() < 1e-3, "{log} {probability}");
        let maps = served.get(&format!("/api/trace/{}/axes?map=0", hypothesis["trace"]));
        assert!(maps["queries"]["labels"].is_array());
    }
    // Of the best and of another hypothesis, and with a changed head of the encoder and of the decoder, the view of one query has the
    // weights of the trace.
    let heads = json!([
        {"map": "encoder.self", "layer": 0, "head": 0, "change": "uniform"},
        {"map": "decoder.cross", "layer": 0, "head": 1, "change": {"hide": {"query": 1, "key": 1}}},
    ]);
    let changed = served.post(
        "/api/look",
        &json!({"text": "Two dogs play in the snow.", "ablation": heads}),
    );
    let changed = changed["trace"].as_u64().unwrap();
    let traces = served.get("/api/traces");
    let maps = traces["traces"][0]["maps"].as_array().unwrap();
    let place = |kind: &str| {
        let is = |map: &Value| map["kind"] == kind && map["layer"] == 0;
        maps.iter().position(is).unwrap()
    };
    let other = hypotheses[1]["trace"].as_u64().unwrap();
    for (id, kind, head) in [
        (0, "encoder.self", 0),
        (0, "decoder.self", 0),
        (other, "decoder.cross", 1),
        (changed, "encoder.self", 0),
        (changed, "decoder.cross", 1),
    ] {
        let map = place(kind);
        let window = served.bytes(&format!("/api/trace/{id}/window?map={map}&heads={head}"));
        let found = served.get(&format!(
            "/api/trace/{id}/query?map={map}&head={head}&query=1"
        ));
        let keys = found["keys"].as_array().unwrap();
        for (key, bytes) in keys.iter().zip(window[keys.len() * 4..].chunks(4)) {
            let weight = f32::from_le_bytes(bytes.try_into().unwrap());
            assert_eq!(
                key["weight"].as_f64().unwrap() as f32,
                weight,
                "{kind}: {key}"
            );
            let uniform = id == changed && kind == "encoder.self";
            assert!(!uniform || (weight - 1.0 / keys.len() as f32).abs() < 1e-6);
        }
        assert!(id != changed || head == 0 || keys[1]["score"].is_null());
    }
    // Without its cross-attention it does not know what to translate.
    let off: Vec<Value> = maps
        .iter()
        .filter(|map| map["kind"] == "decoder.cross")
        .flat_map(|map| {
            let heads = 0..map["heads"].as_u64().unwrap();
            let layer = map["layer"].clone();
            heads.map(move |head| json!({"map": "decoder.cross", "layer": layer, "head": head, "change": "off"}))
        })
        .collect();
    let blind = served.post(
        "/api/look",
        &json!({"text": "Two dogs play in the snow.", "ablation": off}),
    );
    assert_ne!(blind["output"], answer["output"]);
}

#[test]
fn heads_of_a_language_model_are_switched_off() {
    let folder = tempdir().unwrap();
    let text = file(
        folder.path(),
        "text.txt",
        "the cat sat on the mat and the dog sat on the log\n".repeat(40),
    );
    let recipe = format!(
        r#"
[model]
kind = "transformer-lm"
context = 16

[model.transformer]
d_model = 16
layers = 2
heads = 2
feed_forward = 32

[data.text]
train = {text:?}
units = "characters"

[batch]
sentences = 8

[optimizer]
kind = "adam"

[schedule]
kind = "constant"
learning_rate = 0.01

[training]
steps = 30
"#
    );
    let recipe = file(folder.path(), "lm.toml", recipe);
    let (_, trained) = inside(folder.path(), "run");
    run(["train", &recipe, "--folder", &trained, "--quiet"]).success();
    let served = Served::start(&["--model", &trained]);
    assert_eq!(served.get("/api/traces")["model"]["changes_heads"], true);
    let ask = |heads: Value| {
        let answer = served.post(
            "/api/look",
            &json!({"text": "the cat s", "ablation": heads}),
        );
        answer["alternatives"][0]["probability"].as_f64().unwrap()
    };
    let as_it_is = ask(json!([]));
    let all = |change: &str| {
        let heads = [(0, 0), (0, 1), (1, 0), (1, 1)];
        json!(heads.map(
            |(layer, head)| json!({"map": "self", "layer": layer, "head": head, "change": change})
        ))
    };
    let (off, uniform) = (ask(all("off")), ask(all("uniform")));
    assert!((off - as_it_is).abs() > 1e-4, "{off} and {as_it_is}");
    assert!((uniform - off).abs() > 1e-4, "{uniform} and {off}");
    assert_eq!(
        ask(json!([])),
        as_it_is,
        "what is switched on again is as it was"
    );
    let hidden =
        json!([{"map": "self", "layer": 1, "head": 0, "change": {"hide": {"query": 8, "key": 8}}}]);
    assert!((ask(hidden) - as_it_is).abs() > 1e-7);
    let unknown = json!([{"map": "encoder.self", "layer": 0, "head": 0, "change": "off"}]);
    let unknown = json!({"text": "the cat s", "ablation": unknown}).to_string();
    let (head, told) = served.posted("/api/look", unknown.as_bytes());
    assert!(head.starts_with("HTTP/1.1 422"), "{head}{told}");
    assert_eq!(
        told["error"],
        "there is no attention \"encoder.self\"; expected one of self"
    );
    // The view of one query has the weights of the trace, with this weight hidden.
    let traces = served.get("/api/traces");
    let id = traces["traces"].as_array().unwrap().last().unwrap()["id"]
        .as_u64()
        .unwrap();
    let window = served.bytes(&format!("/api/trace/{id}/window?map=1&heads=0"));
    let found = served.get(&format!("/api/trace/{id}/query?map=1&head=0&query=8"));
    let keys = found["keys"].as_array().unwrap();
    assert_eq!(keys.len(), 9);
    for (key, bytes) in keys.iter().zip(window[8 * 9 * 4..].chunks(4)) {
        let weight = f32::from_le_bytes(bytes.try_into().unwrap());
        assert_eq!(key["weight"].as_f64().unwrap() as f32, weight, "{key}");
    }
    assert_eq!(keys[8]["score"], Value::Null);
    // It writes on, greedily or drawn, and what it proposed stands in the tree.
    let write = |temperature: f64| {
        let continuation = json!({"tokens": 5, "temperature": temperature, "seed": 3});
        let answer = served.post(
            "/api/look",
            &json!({"text": "the cat s", "continuation": continuation}),
        );
        let tree = served.get(&format!("/api/trace/{}/generation", answer["trace"]));
        assert_eq!(tree["hypotheses"][0]["text"], answer["output"]);
        assert_eq!(tree["proposals"][0]["parent"], Value::Null);
        (answer, tree)
    };
    let (greedy, tree) = write(0.0);
    assert_eq!(greedy["output"].as_str().unwrap().chars().count(), 5);
    assert_eq!(tree["proposals"].as_array().unwrap().len(), 5 * 8);
    assert_eq!(tree["proposals"][0]["taken"], true);
    let first = greedy["alternatives"][0]["probability"].as_f64().unwrap();
    assert!((first - as_it_is).abs() < 1e-6, "{first} {as_it_is}");
    assert_ne!(write(5.0).0["output"], greedy["output"]);
}

/// The options of `command` after its name, as a shell would part them, and what the command prints.
fn printed(command: &str) -> String {
    let mut words = vec![String::new()];
    let mut quoted = false;
    for c in command.chars() {
        match c {
            '\'' => quoted = !quoted,
            ' ' if !quoted => words.push(String::new()),
            c => words.last_mut().unwrap().push(c),
        }
    }
    assert_eq!(words.remove(0), "regard");
    words.push("--json".to_owned());
    let done = regard().args(words).assert().success();
    stdout(&done)
}

#[test]
fn worked_examples_are_those_of_the_command() {
    let served = Served::start(&["--explain", "flash"]);
    let listed = served.get("/api/traces");
    assert_eq!(listed["explains"], true);
    assert!(listed["model"].is_null(), "{listed}");
    let groups = served.get("/api/explain");
    let entries = groups.as_array().unwrap().iter();
    let entries = entries.flat_map(|group| group["entries"].as_array().unwrap());
    let mut count = 0;
    for entry in entries {
        let name = entry["name"].as_str().unwrap();
        let found = served.get(&format!("/api/explain/{name}"));
        assert!(found["svg"].as_str().unwrap().starts_with("<svg"), "{name}");
        count += 1;
        // The ends of every slider are answered, or refused with a sentence.
        for control in found["controls"].as_array().unwrap() {
            let kind = &control["kind"];
            let ends = match (&kind["slider"], &kind["values"]) {
                (Value::Object(slider), _) => {
                    vec![slider["least"].to_string(), slider["most"].to_string()]
                }
                (_, Value::Array(values)) => [&values[0], &values[values.len() - 1]]
                    .map(|v| v.as_str().unwrap().to_owned())
                    .to_vec(),
                _ => continue,
            };
            for end in ends {
                let (option, end) = (
                    control["option"].as_str().unwrap(),
                    end.trim_end_matches(".0").to_owned(),
                );
                let get = format!(
                    "GET /api/explain/{name}?{option}={end} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n\r\n",
                    served.address
                );
                let (head, body) = served.answer(&get);
                let told = String::from_utf8_lossy(&body);
                assert!(
                    head.starts_with("HTTP/1.1 200")
                        || head.starts_with("HTTP/1.1 400") && told.contains(option),
                    "{name} {option} {end}: {head}{told}"
                );
            }
        }
    }
    assert!(count > 45, "{count}");
    // The same numbers as the command's.
    for path in [
        "flash?tile=3",
        "scaled-dot?scale=2&query=1,2,3;-1,0,0.5;0,0,1&mask=causal",
        "ntm?gate=0.25",
        "rope?base=100&length=12",
        "dot?keys=-1,0,0;0,1,0;0,0,1",
        "longformer?mask=longformer:3:0,5&length=12",
    ] {
        let found = served.get(&format!("/api/explain/{path}"));
        let command: Value =
            serde_json::from_str(&printed(found["command"].as_str().unwrap())).unwrap();
        let (ours, theirs) = (
            found["steps"].as_array().unwrap(),
            command["steps"].as_array().unwrap(),
        );
        assert_eq!(ours.len(), theirs.len(), "{path}");
        for (ours, theirs) in ours.iter().zip(theirs) {
            let rows = theirs["table"]["rows"].as_array().unwrap().iter();
            let rows: Vec<Value> = rows.map(|row| json!([row["name"], row["cells"]])).collect();
            assert_eq!(ours["rows"], json!(rows), "{path}");
        }
    }
    for (path, expected) in [
        ("bahdanu", "did you mean \"bahdanau\"?"),
        ("flash-atention", "did you mean \"flash-attention\"?"),
        ("scaled-dot?scale=NaN", "`scale` is NaN"),
        ("scaled-dot?length=1000000000", "expected 1 to 64"),
        ("flash?tile=1000000000", "`tile` is 1000000000"),
        ("mask?size=512", "at most 64"),
        ("mask?mask=window:99999999999999999999", "mask"),
        ("dot?svg=/tmp/file", "there is no option \"svg\""),
        ("dot?json=1", "there is no option \"json\""),
        ("dot?query=1,2;3", "row 2"),
        ("--svg=x", "no mechanism"),
        ("scaled-dot?scale=1&scale=2", "--scale"),
        ("additive?tile=2", "--tile"),
    ] {
        let told = served.refusal(&format!("/api/explain/{path}"));
        assert!(told.contains(expected), "{path}: {told}");
    }
    refused(
        ["serve", "--explain", "flsh", "--no-open"],
        2,
        ["did you mean \"flash\"?"],
    );
}

#[test]
fn heads_of_encoder_decoders_are_switched_off() {
    let folder = tempdir().unwrap();
    for case in ["t5", "bart", "marian"] {
        let model = crate::pretrained::model(case, folder.path());
        let served = Served::start(&["--model", &model]);
        let about = &served.get("/api/traces")["model"];
        assert_eq!(about["changes_heads"], true, "{about}");
        let ask = |ablation: Value| {
            served.post(
                "/api/look",
                &json!({"text": "w1 w2 w3 w4", "ablation": ablation}),
            )
        };
        let plain = ask(json!([]));
        let changes = json!([
            {"map": "encoder.self", "layer": 0, "head": 0, "change": "uniform"},
            {"map": "decoder.cross", "layer": 0, "head": 1, "change": {"hide": {"query": 0, "key": 1}}},
            {"map": "decoder.self", "layer": 1, "head": 0, "change": "off"},
        ]);
        let changed = ask(changes);
        let id = changed["trace"].as_u64().unwrap();
        assert_ne!(plain["alternatives"], changed["alternatives"], "{case}");
        assert_eq!(
            ask(json!([]))["alternatives"],
            plain["alternatives"],
            "{case}"
        );
        let listed = served.get("/api/traces");
        let traces = listed["traces"].as_array().unwrap();
        let trace = traces.iter().find(|one| one["id"] == id).unwrap();
        let maps = trace["maps"].as_array().unwrap();
        for (kind, head) in [
            ("encoder.self", 0),
            ("encoder.self", 1),
            ("decoder.self", 1),
            ("decoder.cross", 1),
        ] {
            let map = maps
                .iter()
                .position(|map| map["kind"] == kind && map["layer"] == 0)
                .unwrap();
            let window = served.bytes(&format!("/api/trace/{id}/window?map={map}&heads={head}"));
            let found = served.get(&format!(
                "/api/trace/{id}/query?map={map}&head={head}&query=0"
            ));
            let keys = found["keys"].as_array().unwrap();
            assert!(!keys.is_empty(), "{case} {kind}");
            for key in keys {
                let at = 4 * key["position"].as_u64().unwrap() as usize;
                let weight = f32::from_le_bytes(window[at..at + 4].try_into().unwrap());
                assert_eq!(
                    key["weight"].as_f64().unwrap() as f32,
                    weight,
                    "{case} {kind}: {key}"
                );
            }
            assert!(
                kind != "decoder.cross" || keys[1]["score"].is_null(),
                "{case}: {found}"
            );
        }
        let tree = served.get(&format!("/api/trace/{id}/generation"));
        assert!(!tree["proposals"].as_array().unwrap().is_empty());
    }
}

#[test]
fn what_cannot_be_served_is_refused() {
    refused(["serve", "nothing.safetensors"], 1, ["nothing.safetensors"]);
    refused(
        ["serve", "--model", "no-such-model", "--no-open"],
        1,
        ["no-such-model"],
    );
    refused(["serve", "--token", "short", "--no-open"], 2, ["token"]);
    refused(["serve", "--listen", "everywhere"], 2, ["--listen"]);
    // The embedded ones have weights of one kind.
    for model in ["multi30k-en-de", "scenes-captioner", "mnist-resnet"] {
        refused(
            ["serve", "--no-open", "--weights", "f16", "--model", model],
            2,
            ["--weights", "leave it out"],
        );
    }
}

/// A tiny model that others have trained, and an image.
fn of_images(case: &str) -> (String, Vec<u8>) {
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("../models/tests/golden/pretrained");
    let photo = std::fs::read(golden.join("clip/photo.png")).unwrap();
    (crate::text(&golden.join(case)), photo)
}

fn probability(answer: &Value) -> f64 {
    answer["alternatives"][0]["probability"].as_f64().unwrap()
}

#[test]
fn heads_of_image_classifiers_are_switched_off() {
    for (case, text) in [("vit", ""), ("deit", ""), ("clip", "cat, dog,12 things")] {
        let (model, photo) = of_images(case);
        let served = Served::start(&["--model", &model]);
        let about = &served.get("/api/traces")["model"];
        for can in ["changes_heads", "shows_queries"] {
            assert_eq!(about[can], true, "{case}: {about}");
        }
        let look = |heads: Value| served.look(&photo, text, &heads).unwrap();
        let plain = look(json!([]));
        let found = served.gradients(&plain["trace"]);
        assert_eq!(found["output"], plain["output"], "{case}");
        let logarithm = found["log_probability"].as_f64().unwrap();
        assert!(
            (logarithm - probability(&plain).ln()).abs() < 1e-4,
            "{case}: {found}"
        );
        let maps = served.get("/api/traces")["traces"][0]["maps"].clone();
        let map = maps[1]["id"].clone();
        let heads = maps[1]["heads"].as_u64().unwrap() as usize;
        let all = |change: &Value| -> Value {
            let one = |head| json!({"map": map, "layer": 1, "head": head, "change": change});
            (0..heads).map(one).collect()
        };
        let off = look(all(&json!("off")));
        let uniform = look(all(&json!("uniform")));
        for changed in [&off, &uniform] {
            let effect = (probability(changed) - probability(&plain)).abs();
            assert!(effect > 1e-6, "{case}: {changed} {plain}");
        }
        assert_eq!(look(json!([]))["alternatives"], plain["alternatives"]);
        let weights = served.query(&uniform["trace"], 1, 0, 0);
        let each = 1.0 / weights.len() as f32;
        assert!(weights.iter().all(|weight| (weight - each).abs() < 1e-6));

        // A hidden weight is 0, and the others of its row share its weight.
        let before = served.query(&plain["trace"], 1, 0, 2);
        let hide = json!([{"map": map, "layer": 1, "head": 0, "change": {"hide": {"query": 2, "key": 3}}}]);
        let hidden = look(hide);
        let after = served.query(&hidden["trace"], 1, 0, 2);
        assert_eq!(after[3], 0.0);
        assert!((after[4] - before[4] / (1.0 - before[3])).abs() < 1e-6);

        // The weights of another look: its own change nothing, those of the uniform heads are uniform.
        let own = look(all(&json!({"replace": {"look": plain["trace"]}})));
        assert!((probability(&own) - probability(&plain)).abs() < 1e-5);
        let other = look(all(&json!({"replace": {"look": uniform["trace"]}})));
        assert!((probability(&other) - probability(&uniform)).abs() < 1e-5);
        let wrong = served.look(&photo, text, &all(&json!({"replace": {"look": 999}})));
        assert!(wrong.unwrap_err().contains("look 999 is not kept"));
        let beyond = json!([{"map": map, "layer": 9, "head": 0, "change": "off"}]);
        let told = served.look(&photo, text, &beyond).unwrap_err();
        assert!(told.contains("changed head"), "{told}");
        let nowhere = json!([{"map": "decoder.cross", "layer": 1, "head": 0, "change": "off"}]);
        let told = served.look(&photo, text, &nowhere).unwrap_err();
        let expected = format!(
            "there is no attention \"decoder.cross\"; expected one of {}",
            map.as_str().unwrap()
        );
        assert!(told.contains(&expected), "{told}");
    }
    let (model, photo) = of_images("clip");
    let served = Served::start(&["--model", &model]);
    let told = served.look(&photo, "cat,,dog", &json!([])).unwrap_err();
    assert!(told.contains("found \"\" at place 2"), "{told}");
}

#[test]
fn heads_of_a_detector_are_switched_off() {
    let (model, photo) = of_images("detr-timm");
    let served = Served::start(&["--model", &model]);
    let look = |heads: Value| served.look(&photo, "", &heads);
    let plain = look(json!([])).unwrap();
    assert!(
        plain["output"].as_str().unwrap().contains("person"),
        "{plain}"
    );
    let found = served.gradients(&plain["trace"]);
    assert_eq!(found["output"], plain["output"]);
    let map = served.get("/api/traces")["traces"][0]["maps"][0].clone();
    let layer = map["layer"].clone();
    let one = |change: Value| json!([{"map": "decoder.cross", "layer": layer, "head": 0, "change": change}]);
    let off = look(one(json!("off"))).unwrap();
    assert_ne!(off["alternatives"], plain["alternatives"]);
    // The queries of its maps are those of the objects that it found.
    let before = served.query(&plain["trace"], 0, 0, 1);
    let hidden = look(one(json!({"hide": {"query": 1, "key": 0}}))).unwrap();
    let name = |answer: &Value, at: usize| answer["alternatives"][at]["text"].clone();
    if name(&hidden, 1) == name(&plain, 1) {
        let after = served.query(&hidden["trace"], 0, 0, 1);
        assert_eq!(after[0], 0.0);
        assert!((after[1] - before[1] / (1.0 - before[0])).abs() < 1e-6);
    }
    let told = look(one(json!({"replace": {"look": plain["trace"]}}))).unwrap_err();
    assert!(
        told.contains("the queries of this model are objects"),
        "{told}"
    );
}

#[test]
fn the_head_of_a_captioner_is_switched_off() {
    let scene = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/scene.png");
    let scene = std::fs::read(scene).unwrap();
    let served = Served::start(&["--model", "scenes-captioner"]);
    let about = &served.get("/api/traces")["model"];
    assert_eq!(about["changes_heads"], true);
    assert_eq!(about["shows_queries"], false, "its scores are no products");
    let look = |change: Value| {
        let heads = json!([{"map": "decoder.cross", "layer": 0, "head": 0, "change": change}]);
        served.look(&scene, "", &heads).unwrap()
    };
    let plain = served.look(&scene, "", &json!([])).unwrap();
    for change in ["off", "uniform"] {
        assert_ne!(look(json!(change))["output"], plain["output"], "{change}");
    }
    // The region that the second word looks at most: without one of hardly any weight every digit may stay.
    let path = format!(
        "/api/trace/{}/window?map=0&heads=0&q0=1&q1=2",
        plain["trace"]
    );
    let weights = served.bytes(&path);
    let weights = weights
        .chunks(4)
        .map(|bytes| f32::from_le_bytes(bytes.try_into().unwrap()));
    let (most, _) = weights
        .enumerate()
        .max_by(|a, b| a.1.total_cmp(&b.1))
        .unwrap();
    let hidden = look(json!({"hide": {"query": 1, "key": most}}));
    assert_ne!(hidden["alternatives"], plain["alternatives"]);
    let own = look(json!({"replace": {"look": plain["trace"]}}));
    assert_eq!(own["output"], plain["output"]);

    let found = served.gradients(&plain["trace"]);
    let logarithm = found["log_probability"].as_f64().unwrap();
    assert_eq!(found["output"], plain["output"]);
    assert!(
        (logarithm - probability(&plain).ln()).abs() < 1e-3,
        "{found}"
    );

    for model in ["mnist-resnet", "scenes-vqa"] {
        let served = Served::start(&["--model", model]);
        assert_eq!(served.get("/api/traces")["model"]["changes_heads"], false);
        let change = json!([{"map": "self", "layer": 0, "head": 0, "change": "off"}]);
        let question = match model {
            "scenes-vqa" => "what is red?",
            _ => "",
        };
        let told = served.look(&scene, question, &change).unwrap_err();
        assert!(told.contains("no heads that can be changed"), "{told}");
        let asked = served.look(&scene, question, &json!([])).unwrap();
        let path = format!("/api/trace/{}/gradients", asked["trace"]);
        match model {
            "scenes-vqa" => {
                let found = served.gradients(&asked["trace"]);
                let logarithm = found["log_probability"].as_f64().unwrap();
                assert_eq!(found["output"], asked["output"]);
                assert!(
                    (logarithm - probability(&asked).ln()).abs() < 1e-4,
                    "{found}"
                );
            }
            _ => {
                let get = format!("GET {path} HTTP/1.1\r\nHost: {}\r\n", served.address);
                let (head, body) = served.answer(get + "Connection: close\r\n\r\n");
                assert!(head.starts_with("HTTP/1.1 422"), "{head}");
                let told = String::from_utf8(body).unwrap();
                assert!(told.contains("a model without attention"), "{told}");
            }
        }
    }
}

/// A PNG with a comment that tries to be part of the page.
#[test]
fn a_comment_in_an_image_reaches_no_page() {
    const COMMENT: &[u8] = b"Comment\0</script><img src=x onerror=window.hit=1>";
    let (model, photo) = of_images("vit");
    // Behind the header, which ends after 33 bytes: length, kind, content, checksum.
    let mut chunk = [b"tEXt", COMMENT].concat();
    let checksum = chunk.iter().fold(u32::MAX, |sum, &byte| {
        (0..8).fold(sum ^ u32::from(byte), |sum, _| {
            (sum >> 1) ^ if sum & 1 == 1 { 0xedb8_8320 } else { 0 }
        })
    });
    chunk.extend((!checksum).to_be_bytes());
    let length = (COMMENT.len() as u32).to_be_bytes();
    let commented = [&photo[..33], &length, &chunk, &photo[33..]].concat();
    let served = Served::start(&["--model", &model]);
    let plain = served.look(&photo, "", &json!([])).unwrap();
    let found = served.look(&commented, "", &json!([])).unwrap();
    assert_eq!(found["alternatives"], plain["alternatives"]);
    let id = &found["trace"];
    for path in [
        "/api/traces".to_owned(),
        format!("/api/trace/{id}/image"),
        format!("/api/trace/{id}/axes"),
        format!("/api/trace/{id}/picture?view=image&format=html"),
        format!("/api/trace/{id}/picture?view=image&format=svg"),
    ] {
        let sent = served.bytes(&path);
        let there = sent.windows(10).any(|part| part == b"window.hit");
        assert!(!there, "{path}");
    }
}
