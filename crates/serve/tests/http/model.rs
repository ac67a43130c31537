//! What a model is asked for: changed heads, queries, searches, images, gradients, and which looks are kept.

use regard_serve::{AblatedHead, Ablation, Change, Config, Input, InputKind, Model, Seen};
use regard_trace::Trace;

use crate::common::{Chooser, Server, Small, opened, translation};
use crate::server;

#[test]
fn a_model_is_asked_with_heads_switched_off() {
    let server = server();
    let plain = server.look(r#"{"text":"one two three"}"#).json();
    assert_eq!(plain["output"], "one");
    assert_eq!(plain["trace"], 3);
    let off =
        r#"{"text":"one two three","ablation":[{"map":"self","layer":1,"head":0,"change":"off"}]}"#;
    let changed = server.look(off).json();
    assert_eq!(changed["output"], "three");
    let head = AblatedHead {
        map: "self".to_owned(),
        layer: 1,
        head: 0,
        change: Change::Off,
    };
    let expected = Chooser::answer("one two three", &Ablation { heads: vec![head] });
    assert_eq!(
        changed["alternatives"][0]["probability"],
        expected.alternatives[0].probability
    );
    let row = server
        .get("/api/trace/4/window?map=1&heads=0&q0=0&q1=1")
        .floats();
    assert_eq!(row, [0.0; 3]);
    let aside = server.look(r#"{"text":"a b","keep":false}"#).json();
    assert!(aside["trace"].is_null());
    assert_eq!(
        server.get("/api/traces").json()["traces"]
            .as_array()
            .unwrap()
            .len(),
        5
    );
}

/// The numbers of a JSON list.
fn floats(list: &serde_json::Value) -> Vec<f32> {
    let numbers = list.as_array().unwrap().iter();
    numbers.map(|x| x.as_f64().unwrap() as f32).collect()
}

#[test]
fn a_query_has_the_weights_of_its_trace() {
    let server = Server::start(
        Config::default(),
        vec![opened("file", translation(1))],
        Some(Box::new(Small::new())),
    );
    assert_eq!(
        server.get("/api/traces").json()["model"]["shows_queries"],
        true
    );
    let text = "the red fox sees the dog and a cat";
    for ablation in [
        "[]",
        r#"[{"map":"decoder.self","layer":1,"head":0,"change":"uniform"},{"map":"decoder.self","layer":1,"head":1,"change":{"hide":{"query":6,"key":2}}}]"#,
    ] {
        let looked = server.look(&format!(r#"{{"text":"{text}","ablation":{ablation}}}"#));
        let id = looked.json()["trace"].as_u64().unwrap();
        for (map, head, query) in [(0, 0, 0), (1, 1, 6), (1, 0, 8)] {
            let window = server.get(&format!("/api/trace/{id}/window?map={map}&heads={head}"));
            let row = &window.floats()[query * 9..][..9];
            let found = server
                .get(&format!(
                    "/api/trace/{id}/query?map={map}&head={head}&query={query}"
                ))
                .json();
            let keys = found["keys"].as_array().unwrap();
            assert_eq!(keys.len(), 9);
            let asked = floats(&found["query"]);
            let mut context = vec![0.0; asked.len()];
            for (position, (key, &weight)) in keys.iter().zip(row).enumerate() {
                assert_eq!(key["position"], position);
                assert_eq!(key["weight"].as_f64().unwrap() as f32, weight);
                let products = asked.iter().zip(floats(&key["key"])).map(|(q, k)| q * k);
                let product = products.sum::<f32>() * found["scale"].as_f64().unwrap() as f32;
                match key["score"].as_f64() {
                    Some(score) => assert!((product - score as f32).abs() < 1e-5),
                    None => assert!(
                        position > query || (head, query, position) == (1, 6, 2),
                        "{ablation}"
                    ),
                }
                let values = floats(&key["value"]);
                (context.iter_mut().zip(values)).for_each(|(sum, v)| *sum += weight * v);
            }
            for (a, b) in context.iter().zip(floats(&found["context"])) {
                assert!((a - b).abs() < 1e-5);
            }
        }
    }
    for (path, status, told) in [
        (
            "/api/trace/0/query?map=0&head=0&query=0",
            400,
            "opened from a file",
        ),
        ("/api/trace/1/query?map=0&head=2&query=0", 400, "below 2"),
        ("/api/trace/1/query?map=0&head=0&query=9", 400, "below 9"),
        ("/api/trace/1/query?map=2&head=0&query=0", 404, "0 to 1"),
        ("/api/trace/1/query?map=0&head=x&query=0", 400, "head"),
        ("/api/trace/1/query?map=0", 400, "head"),
        ("/api/trace/7/query?map=0&head=0&query=0", 404, "no trace 7"),
    ] {
        let answer = server.get(path);
        assert_eq!(answer.status, status, "{path}: {}", answer.text());
        assert!(answer.text().contains(told), "{path}: {}", answer.text());
    }
}

#[test]
fn the_tree_of_a_search_is_sent_with_its_hypotheses() {
    let config = Config {
        kept_looks: 2,
        ..Config::default()
    };
    let server = Server::start(config, vec![], Some(Box::new(Small::new())));
    assert_eq!(server.get("/api/traces").json()["model"]["continues"], true);
    let ask = |tokens: usize| {
        let body = format!(r#"{{"text":"the red fox","continuation":{{"tokens":{tokens}}}}}"#);
        server.look(&body).json()
    };
    let looked = ask(4);
    let words: Vec<_> = looked["output"].as_str().unwrap().split(' ').collect();
    assert_eq!(words.len(), 4);
    let found = server.get("/api/trace/0/generation").json();
    let proposals = found["proposals"].as_array().unwrap();
    assert_eq!(proposals.len(), 4 * 8);
    let hypotheses = found["hypotheses"].as_array().unwrap();
    assert_eq!(hypotheses.len(), 2);
    assert_eq!(hypotheses[1]["score"], -1.5);
    let mut place = hypotheses[0]["leaf"].as_u64();
    for word in words.iter().rev() {
        let proposal = &proposals[place.unwrap() as usize];
        assert_eq!(proposal["text"], *word);
        assert_eq!(proposal["taken"], true);
        place = proposal["parent"].as_u64();
    }
    assert_eq!(place, None);
    for step in proposals.chunks(8) {
        let sum: f64 = step
            .iter()
            .map(|one| one["probability"].as_f64().unwrap())
            .sum();
        assert!((sum - 1.0).abs() < 1e-6);
    }
    // Each hypothesis has its trace, with the same tree, and all go together.
    for hypothesis in hypotheses {
        let id = hypothesis["trace"].as_u64().unwrap();
        assert_eq!(
            server.get(&format!("/api/trace/{id}/window?map=0")).status,
            200
        );
        assert_eq!(
            server.get(&format!("/api/trace/{id}/generation")).json(),
            found
        );
    }
    let ids = || -> Vec<u64> {
        let traces = server.get("/api/traces").json();
        let traces = traces["traces"].as_array().unwrap().iter();
        traces.map(|one| one["id"].as_u64().unwrap()).collect()
    };
    assert_eq!(ids(), [0, 1]);
    assert_eq!(ask(0)["trace"], 2);
    assert_eq!(ids(), [0, 1, 2]);
    let none = server.get("/api/trace/2/generation");
    assert_eq!(none.status, 404);
    assert!(none.text().contains("no search"));
    ask(1);
    assert_eq!(ids(), [2, 3, 4]);
    for (continuation, told) in [
        (r#"{"tokens":257}"#, "at most 256"),
        (r#"{"tokens":1,"temperature":-1}"#, "0 to 100"),
        (r#"{"tokens":-1}"#, "tokens"),
    ] {
        let answer = server.look(&format!(
            r#"{{"text":"the","continuation":{continuation}}}"#
        ));
        assert_eq!(answer.status, 400);
        assert!(
            answer.text().contains(told) || told == "tokens",
            "{}",
            answer.text()
        );
    }
}

#[test]
fn wrong_questions_are_told_what_is_wrong() {
    let server = server();
    let failed = |body: &str, status: u16, sentence: &str| {
        let answer = server.look(body);
        assert_eq!(answer.status, status, "{}", answer.text());
        assert!(answer.text().contains(sentence), "{}", answer.text());
    };
    failed("{\"text\":\"\"}", 422, "write some");
    failed("{\"text\":\"panic\"}", 422, "the model failed");
    failed("nonsense", 400, "first line");
    failed(r#"{"text":"\ud800"}"#, 400, "first line");
    failed(
        r#"{"ablation":[{"map":"self","layer":-1,"head":0,"change":"off"}]}"#,
        400,
        "first line",
    );
    // The model goes on after its panic.
    assert_eq!(server.look(r#"{"text":"fine"}"#).status, 200);
    let none = Server::start(Config::default(), vec![], None);
    assert_eq!(none.look("{}").status, 404);
}

/// Describes the bytes that it gets.
struct Bytes;

impl Model for Bytes {
    fn name(&self) -> &str {
        "bytes"
    }

    fn input(&self) -> InputKind {
        InputKind::ImageAndQuestion
    }

    fn look(&mut self, input: &Input, _: &Ablation) -> Result<Seen, String> {
        Ok(Seen::new(
            Trace::new("bytes", &input.text, ""),
            format!("{}: {:?}", input.text, input.image),
        ))
    }
}

#[test]
fn an_image_follows_the_first_line() {
    let server = Server::start(Config::default(), vec![], Some(Box::new(Bytes)));
    let body = b"{\"text\":\"what?\"}\n\x89P\n\xff\0";
    let answer = server.ask("POST", "/api/look", &[], body);
    assert_eq!(
        answer.json()["output"],
        format!("what?: {:?}", b"\x89P\n\xff\0")
    );
    assert!(server.look("{}").text().contains("choose one"));
}

#[test]
fn only_the_last_looks_are_kept() {
    let config = Config {
        kept_looks: 2,
        ..Config::default()
    };
    let server = Server::start(
        config,
        vec![opened("t", translation(1))],
        Some(Box::new(Chooser)),
    );
    for _ in 0..5 {
        server.look(r#"{"text":"a b"}"#);
    }
    let listed = server.get("/api/traces").json();
    let ids: Vec<u64> = listed["traces"]
        .as_array()
        .unwrap()
        .iter()
        .map(|one| one["id"].as_u64().unwrap())
        .collect();
    assert_eq!(ids, [0, 4, 5]);
    assert!(
        server
            .get("/api/trace/1/overview")
            .text()
            .contains("only the last ones are kept")
    );
}

#[test]
fn gradients_need_a_model_that_has_them() {
    let server = server();
    server.look(r#"{"text":"one two three"}"#);
    let refused = |path: &str, status: u16| {
        let answer = server.get(path);
        assert_eq!(answer.status, status, "{path}");
        answer.text()
    };
    assert!(refused("/api/trace/3/gradients", 422).contains("no gradients"));
    assert!(refused("/api/trace/0/gradient?map=0", 400).contains("opened from a file"));
    server.look(
        r#"{"text":"one two three","ablation":[{"map":"self","layer":1,"head":0,"change":"off"}]}"#,
    );
    assert!(refused("/api/trace/4/gradients", 400).contains("without changed heads"));
}
