//! What a model is asked for: changed heads, queries, searches, images, gradients, and which looks are kept.

use regard_serve::{
    AblatedHead, Ablation, Alternative, Change, Config, Input, InputKind, Model, Seen,
};
use regard_trace::Trace;

use crate::common::{Brief, Chooser, Server, Small, opened, translation};
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

#[test]
fn changes_are_bounded_and_change_a_head_once() {
    let server = Server::start(Config::default(), vec![], Some(Box::new(Small::new())));
    let change = |head: usize, change: &str| {
        format!(r#"{{"map":"decoder.self","layer":0,"head":{head},"change":{change}}}"#)
    };
    let look = |changes: &[String]| {
        let changes = changes.join(",");
        server.look(&format!(
            r#"{{"text":"the red fox","ablation":[{changes}]}}"#
        ))
    };
    assert_eq!(look(&[]).status, 200);
    let (off, uniform) = (r#""off""#, r#""uniform""#);
    let of_look = r#"{"replace":{"look":0}}"#;
    let hidden = |key: usize| format!(r#"{{"hide":{{"query":2,"key":{key}}}}}"#);
    let text = |text: &str| format!(r#"{{"replace":{{"text":"{text}"}}}}"#);
    let twice = "head 1 of layer 0 of \"decoder.self\" is changed twice";
    for (changes, told) in [
        (vec![change(0, of_look); 60_000], "at most 1024"),
        (vec![change(0, &hidden(0)); 1025], "at most 1024"),
        (vec![change(1, off), change(1, uniform)], twice),
        (vec![change(1, of_look), change(1, of_look)], twice),
        (
            vec![change(0, &text("the dog")), change(1, &text("the cat"))],
            "2 other texts",
        ),
    ] {
        let answer = look(&changes);
        assert_eq!(answer.status, 400, "{}", answer.text());
        let error = answer.json()["error"].as_str().unwrap().to_owned();
        assert!(error.contains(told), "{error}");
    }
    let hidden = [change(0, &hidden(0)), change(0, &hidden(1))];
    for changes in [
        vec![change(0, off), change(1, uniform)],
        vec![change(0, &text("the dog")), change(1, &text("the dog"))],
        [vec![change(0, off)], hidden.to_vec()].concat(),
    ] {
        let answer = look(&changes);
        assert_eq!(answer.status, 200, "{}", answer.text());
    }
}

#[test]
fn a_text_that_was_cut_is_told() {
    let server = Server::start(Config::default(), vec![], Some(Box::new(Brief)));
    let cut = |text: &str| server.look(&format!(r#"{{"text":"{text}"}}"#)).json()["cut"].clone();
    let expected = serde_json::json!({ "tokens": 5, "read": 2 });
    assert_eq!(cut("a b c d e"), expected);
    assert!(cut("a b").is_null());
}

/// The numbers of the traces that are listed.
fn ids(server: &Server) -> Vec<u64> {
    let traces = server.get("/api/traces").json();
    let traces = traces["traces"].as_array().unwrap().iter();
    traces.map(|one| one["id"].as_u64().unwrap()).collect()
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
    // Each hypothesis has its trace, with the same tree and of the same look, and all go together.
    let listed = server.get("/api/traces").json();
    assert!(
        (0..2).all(|at| listed["traces"][at]["look"] == 0),
        "{listed}"
    );
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
    assert_eq!(ids(&server), [0, 1]);
    assert_eq!(ask(0)["trace"], 2);
    assert_eq!(ids(&server), [0, 1, 2]);
    let none = server.get("/api/trace/2/generation");
    assert_eq!(none.status, 404);
    assert!(none.text().contains("no search"));
    ask(1);
    assert_eq!(ids(&server), [2, 3, 4]);
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
    // Misspelt or misshapen, they are not taken for looks with all heads as they are.
    let text = r#"{"text":"A man.""#;
    for (rest, told) in [
        (r#","ablations":[]}"#, "ablations"),
        (r#","continuation":{"token":3}}"#, "unknown field `token`"),
        (r#","continuation":[3]}"#, "fields by their names"),
        (
            r#","ablation":[["self",1,0,"off"]]}"#,
            "fields by their names",
        ),
        (
            r#","ablation":[{"map":"self","layer":1,"head":0,"change":{"hide":[0,1]}}]}"#,
            "fields by their names",
        ),
        (
            r#","ablation":[{"map":"self","layer":1,"head":0,"change":"off","on":1}]}"#,
            "unknown field `on`",
        ),
    ] {
        failed(&format!("{text}{rest}"), 400, told);
    }
    failed(r#"["A man."]"#, 400, "fields by their names");
    failed("[]", 400, "fields by their names");
    failed(r#"{"unknown":1}"#, 400, "unknown field `unknown`");
    let answer = server.ask("POST", "/api/look?keep=false", &[], br#"{"text":"a"}"#);
    assert_eq!(answer.status, 400);
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
pub(crate) struct Bytes;

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

/// Looks at an image alone, and has no heads to change.
struct Still;

impl Model for Still {
    fn name(&self) -> &str {
        "still"
    }

    fn input(&self) -> InputKind {
        InputKind::Image
    }

    fn changes_heads(&self) -> bool {
        false
    }

    fn look(&mut self, input: &Input, _: &Ablation) -> Result<Seen, String> {
        Bytes.look(input, &Ablation::default())
    }
}

#[test]
fn what_a_model_would_ignore_is_refused() {
    let refused = |model: Box<dyn Model>, wrong: &[(&str, &str)]| {
        let server = Server::start(Config::default(), vec![], Some(model));
        for (body, told) in wrong {
            let answer = server.ask("POST", "/api/look", &[], body.as_bytes());
            assert_eq!(answer.status, 400, "{}", answer.text());
            let error = answer.json()["error"].as_str().unwrap().to_owned();
            assert!(error.starts_with(told), "{error}");
        }
        server
    };
    let server = refused(
        Box::new(Chooser),
        &[
            (
                "{\"text\":\"a\"}\nPNG",
                "image: this model looks at no image",
            ),
            (r#"{"text":"a","target":"b"}"#, "target: "),
            (
                r#"{"text":"a","continuation":{"tokens":3}}"#,
                "continuation: this model does not write on",
            ),
        ],
    );
    // What asks for nothing is heeded.
    let nothing = r#"{"text":"a","target":"","ablation":[],"continuation":{"tokens":0,"seed":3}}"#;
    assert_eq!(server.look(nothing).status, 200);
    let head = r#"{"map":"self","layer":0,"head":0,"change":"off"}"#;
    let changed = format!("{{\"ablation\":[{head}]}}\nPNG");
    refused(
        Box::new(Still),
        &[
            (
                changed.as_str(),
                "ablation: this model has no heads that can be changed",
            ),
            ("{\"text\":\"a\"}\nPNG", "text: this model reads no text"),
        ],
    );
}

/// Has several answers, which stand in the text with `|` between two.
struct Several;

impl Model for Several {
    fn name(&self) -> &str {
        "several"
    }

    fn input(&self) -> InputKind {
        InputKind::Text
    }

    fn look(&mut self, input: &Input, _: &Ablation) -> Result<Seen, String> {
        let alternatives = input.text.split('|').map(|text| Alternative {
            text: text.to_owned(),
            probability: 0.25,
        });
        Ok(Seen {
            alternatives: alternatives.collect(),
            ..Seen::new(Trace::new("several", &input.text, ""), "")
        })
    }
}

/// Those that differ only far from their beginning are told apart.
#[test]
fn alternatives_are_sent_whole() {
    let server = Server::start(Config::default(), vec![], Some(Box::new(Several)));
    let long = "x".repeat(300);
    let looked = server.look(&format!(r#"{{"text":"{long}a|{long}b|"}}"#));
    let looked = looked.json();
    let texts = looked["alternatives"].as_array().unwrap().iter();
    let texts: Vec<&str> = texts.map(|one| one["text"].as_str().unwrap()).collect();
    let expected = [format!("{long}a"), format!("{long}b"), "∅".to_owned()];
    assert_eq!(texts, expected);
}

/// What asks for a look again stands in the list, unless it is an image or long.
#[test]
fn a_look_says_what_asks_for_it_again() {
    let server = Server::start(Config::default(), vec![], Some(Box::new(Small::new())));
    let head = r#"{"map":"decoder.self","layer":0,"head":0,"change":"off"}"#;
    let written = r#""continuation":{"tokens":2,"temperature":0.5,"seed":7}"#;
    server.look(r#"{"text":"the red"}"#);
    server.look(&format!(
        r#"{{"text":"the dog","ablation":[{head}],{written}}}"#
    ));
    server.look(&format!(r#"{{"text":"{}"}}"#, "the ".repeat(501)));
    let listed = server.get("/api/traces").json();
    let of = |id: usize| {
        let mut traces = listed["traces"].as_array().unwrap().iter();
        traces.find(|one| one["id"] == id).unwrap()
    };
    let again = |text: &str, write: usize, temperature: f64, seed: u64| {
        serde_json::json!({
            "text": text, "target": "", "write": write, "temperature": temperature, "seed": seed,
        })
    };
    assert_eq!(of(0)["again"], again("the red", 0, 0.0, 0));
    assert_eq!(of(0)["changed"], false);
    assert_eq!(of(1)["again"], again("the dog", 2, 0.5, 7));
    assert_eq!(of(1)["changed"], true);
    // The second look has two hypotheses.
    assert!(of(3)["again"].is_null());
    let server = Server::start(Config::default(), vec![], Some(Box::new(Bytes)));
    server.ask("POST", "/api/look", &[], b"{\"text\":\"what?\"}\nPNG");
    assert!(server.get("/api/traces").json()["traces"][0]["again"].is_null());
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
    assert_eq!(ids(&server), [0, 4, 5]);
    assert!(
        server
            .get("/api/trace/1/overview")
            .text()
            .contains("only the last ones are kept")
    );
}

#[test]
fn looks_are_kept_as_far_as_their_weights_fit() {
    let config = Config {
        kept_bytes: 400_000,
        ..Config::default()
    };
    let trace = opened("t", translation(1));
    let server = Server::start(config, vec![trace], Some(Box::new(Chooser)));
    let look = |words: usize| {
        let text = vec!["a"; words].join(" ");
        assert_eq!(server.look(&format!(r#"{{"text":"{text}"}}"#)).status, 200);
    };
    // Two layers of two heads: 160,000 bytes each.
    (0..4).for_each(|_| look(100));
    assert_eq!(ids(&server), [0, 3, 4]);
    // The last one stays, although it takes 640,000.
    look(200);
    assert_eq!(ids(&server), [0, 5]);
    look(100);
    assert_eq!(ids(&server), [0, 6]);
}

/// A change is compared with the last look without any: neither limit drops that.
#[test]
fn the_last_look_without_changes_stays() {
    let text = vec!["a"; 100].join(" ");
    let plain = format!(r#"{{"text":"{text}"}}"#);
    let off = r#"[{"map":"self","layer":1,"head":0,"change":"off"}]"#;
    let changed = format!(r#"{{"text":"{text}","ablation":{off}}}"#);
    let small = Config {
        kept_bytes: 1,
        ..Config::default()
    };
    let few = Config {
        kept_looks: 1,
        ..Config::default()
    };
    for config in [small, few] {
        let server = Server::start(config, vec![], Some(Box::new(Chooser)));
        for (body, kept) in [
            (&plain, &[0][..]),
            (&changed, &[0, 1]),
            (&changed, &[0, 2]),
            (&plain, &[2, 3]),
            (&changed, &[3, 4]),
        ] {
            assert_eq!(server.look(body).status, 200);
            assert_eq!(ids(&server), kept);
        }
    }
}

/// The hypotheses of a search count together, and so do gradients once they are there.
#[test]
fn all_weights_of_a_look_count() {
    let bytes = |words: usize| 4 * 2 * 2 * words * words;
    // A search for one word has two hypotheses of four words; then a look at three words and its gradients.
    let room = 2 * bytes(4) + bytes(3);
    let config = Config {
        kept_bytes: room,
        ..Config::default()
    };
    let server = Server::start(config, vec![], Some(Box::new(Small::new())));
    server.look(r#"{"text":"the red fox","continuation":{"tokens":1}}"#);
    server.look(r#"{"text":"the red fox"}"#);
    assert_eq!(ids(&server), [0, 1, 2]);
    assert_eq!(server.get("/api/trace/2/gradients").status, 200);
    server.look(r#"{"text":"the"}"#);
    assert_eq!(ids(&server), [2, 3]);
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
