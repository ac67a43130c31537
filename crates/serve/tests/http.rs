//! The server, spoken to over HTTP.

mod common;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use common::*;
use regard_serve::{
    AblatedHead, Ablation, Change, Config, Contents, Input, InputKind, Model, Opened, Seen,
    ServeError, serve,
};
use regard_trace::diagnose::{flow_from, rollout};
use regard_trace::{Trace, from_bytes, to_bytes};

const TOKEN: &str = "a-token_of-24-characters";

fn server() -> Server {
    let traces = vec![
        opened("translation", translation(1)),
        opened("caption", caption()),
        opened("hostile", hostile()),
    ];
    Server::start(Config::default(), traces, Some(Box::new(Chooser)))
}

fn close(a: f32, b: f32) -> bool {
    (a - b).abs() < 1e-5
}

#[test]
fn every_answer_has_strict_headers() {
    let server = server();
    for (path, status) in [
        ("/", 200),
        ("/app.js", 200),
        ("/api/traces", 200),
        ("/nowhere", 404),
        ("/api/trace/99/overview", 404),
        ("/api/trace/0/window?map=x", 400),
    ] {
        let answer = server.get(path);
        assert_eq!(answer.status, status, "{path}: {}", answer.text());
        let policy = answer.header("content-security-policy").unwrap();
        assert!(
            policy.starts_with("default-src 'none'; script-src 'self'; style-src 'self'"),
            "{policy}"
        );
        assert!(
            !policy.contains("unsafe") && policy.contains("frame-ancestors 'none'"),
            "{policy}"
        );
        assert_eq!(answer.header("x-content-type-options"), Some("nosniff"));
        assert_eq!(answer.header("cache-control"), Some("no-store"));
        assert_eq!(
            answer.header("cross-origin-resource-policy"),
            Some("same-origin")
        );
        assert!(answer.header("access-control-allow-origin").is_none());
    }
}

#[test]
fn the_page_names_only_its_own_files() {
    let server = server();
    let page = server.get("/").text();
    assert!(
        !page.contains("http://")
            && !page.contains("https://")
            && !page.contains("<style")
            && !page.contains(" style=")
    );
    for file in page
        .split('"')
        .filter(|part| part.ends_with(".js") || part.ends_with(".css"))
    {
        assert_eq!(server.get(&format!("/{file}")).status, 200, "{file}");
    }
}

#[test]
fn other_names_and_other_sites_are_refused() {
    let server = server();
    let get = |headers: &[(&str, &str)]| server.ask("GET", "/api/traces", headers, b"");
    for host in [
        "evil.example",
        "evil.example:80",
        "localhost.evil.example",
        "127.0.0.1.evil.example",
        "",
        "[::1",
        "127.0.0.1:80:80",
    ] {
        let answer = get(&[("Host", host)]);
        assert_eq!(answer.status, 403, "{host}");
        assert!(answer.text().contains("IP address"), "{}", answer.text());
    }
    for host in [
        "localhost",
        "localhost:9000",
        "127.0.0.1",
        "[::1]:9000",
        "LOCALHOST",
    ] {
        assert_eq!(get(&[("Host", host)]).status, 200, "{host}");
    }
    let host = server.running.address.to_string();
    for origin in [
        "http://evil.example",
        "null",
        "https://localhost",
        "http://127.0.0.1:1",
        "",
    ] {
        for method in ["GET", "POST"] {
            let answer = server.ask(method, "/api/look", &[("Origin", origin)], b"{}");
            assert_eq!(answer.status, 403, "{method} {origin}");
            assert!(answer.text().contains("another site"));
        }
    }
    assert_eq!(get(&[("Origin", &format!("http://{host}"))]).status, 200);
    assert_eq!(
        get(&[
            ("Sec-Fetch-Site", "cross-site"),
            ("Sec-Fetch-Mode", "no-cors")
        ])
        .status,
        403
    );
    assert_eq!(
        get(&[
            ("Sec-Fetch-Site", "same-origin"),
            ("Sec-Fetch-Mode", "cors")
        ])
        .status,
        200
    );
}

#[test]
fn a_token_opens_the_page() {
    let config = Config {
        token: Some(TOKEN.to_owned()),
        ..Config::default()
    };
    let server = Server::start(config, vec![opened("t", translation(1))], None);
    assert!(server.running.url.ends_with(&format!("/?token={TOKEN}")));
    for (path, headers) in [
        ("/", vec![]),
        ("/api/traces", vec![("Cookie", "regard=1")]),
        ("/?token=wrong", vec![]),
        (
            "/api/traces",
            vec![("Authorization", "Bearer a-token_of-24-characterz")],
        ),
        ("/api/traces?token=a-token_of-24-characters", vec![]),
    ] {
        let answer = server.ask("GET", path, &headers, b"");
        assert_eq!(answer.status, 401, "{path}");
        assert!(answer.text().contains("token"));
    }
    let answer = server.get(&format!("/?token={TOKEN}"));
    assert_eq!((answer.status, answer.header("location")), (303, Some("/")));
    let cookie = answer.header("set-cookie").unwrap();
    assert!(
        cookie.contains("HttpOnly") && cookie.contains("SameSite=Strict"),
        "{cookie}"
    );
    let pair = cookie.split(';').next().unwrap();
    assert_eq!(
        server
            .ask("GET", "/", &[("Cookie", &format!("a=b; {pair}"))], b"")
            .status,
        200
    );
    assert_eq!(
        server
            .ask(
                "GET",
                "/api/traces",
                &[("Authorization", &format!("Bearer {TOKEN}"))],
                b""
            )
            .status,
        200
    );
}

#[test]
fn an_open_address_is_printed_as_one_that_a_browser_opens() {
    let config = Config {
        listen: "0.0.0.0:0".parse().unwrap(),
        token: Some(TOKEN.to_owned()),
        ..Config::default()
    };
    let server = Server::start(config, vec![], None);
    assert!(
        server.running.url.starts_with("http://127.0.0.1:"),
        "{}",
        server.running.url
    );
}

#[test]
fn unsafe_settings_do_not_start() {
    let refused = |config: Config| {
        serve(config, Contents::default(), |_| panic!("it must not start")).unwrap_err()
    };
    let open = Config {
        listen: "0.0.0.0:0".parse().unwrap(),
        ..Config::default()
    };
    assert!(matches!(
        refused(open.clone()),
        ServeError::NeedsToken { .. }
    ));
    for token in ["", "short", "sixteen letters!", "sixteen&letters_"] {
        let error = refused(Config {
            token: Some(token.to_owned()),
            ..open.clone()
        });
        assert!(matches!(error, ServeError::Token { .. }), "{error}");
    }
    assert!(
        Config {
            token: Some(TOKEN.to_owned()),
            ..open
        }
        .check()
        .is_ok()
    );
    let taken = Server::start(Config::default(), vec![], None);
    let again = Config {
        listen: taken.running.address,
        ..Config::default()
    };
    assert!(refused(again).to_string().contains("choose another port"));
}

#[test]
fn views_hold_the_numbers_of_the_trace() {
    let server = server();
    let trace = translation(1);
    let map = &trace.maps[5];
    let [_, queries, keys] = map.shape();

    let listed = server.get("/api/traces").json();
    assert_eq!(listed["traces"][0]["maps"][5]["queries"], queries);
    assert_eq!(listed["model"]["input"], "text");

    let window = server.get("/api/trace/0/window?map=5&heads=2");
    assert_eq!(window.header("x-columns"), Some(keys.to_string().as_str()));
    assert_eq!(window.floats(), map.head(2).unwrap().weights());
    let mean = server.get("/api/trace/0/window?map=5").floats();
    assert!(
        mean.iter()
            .zip(map.mean_heads().weights())
            .all(|(&a, &b)| close(a, b))
    );
    let part = server
        .get("/api/trace/0/window?map=5&heads=1,3&by=max&q0=2&q1=4&k0=3&k1=5")
        .floats();
    let largest = |q, k| map.weight(1, q, k).max(map.weight(3, q, k));
    assert_eq!(
        part,
        [largest(2, 3), largest(2, 4), largest(3, 3), largest(3, 4)]
    );
    let words = server
        .get("/api/trace/0/window?map=5&heads=0&words=true")
        .floats();
    assert_eq!(
        words,
        trace.merge_words().maps[5].head(0).unwrap().weights()
    );

    let pooled = server
        .get("/api/trace/0/window?map=5&heads=2&side=1&pool=max")
        .floats();
    assert_eq!(
        pooled,
        [map.head(2)
            .unwrap()
            .weights()
            .iter()
            .copied()
            .fold(0.0, f32::max)]
    );

    let from = server
        .get("/api/trace/0/sums?map=5&heads=2&chosen=1,3")
        .floats();
    assert!((0..keys).all(|k| close(from[k], map.weight(2, 1, k) + map.weight(2, 3, k))));
    let to = server
        .get("/api/trace/0/sums?map=5&heads=2&chosen=0&direction=to")
        .floats();
    assert!((0..queries).all(|q| close(to[q], map.weight(2, q, 0))));

    let axes = server.get("/api/trace/0/axes?map=5").json();
    assert_eq!(axes["keys"]["labels"][7], "rid");
    assert_eq!(axes["keys"]["special"][0], keys - 1);
    assert_eq!(
        server.get("/api/trace/1/axes?map=1").json()["keys"]["grid"],
        serde_json::json!([0, 7, 7])
    );
    assert_eq!(axes["queries"]["readout"], serde_json::Value::Null);
    assert_eq!(
        server.get("/api/trace/1/axes?map=1").json()["keys"]["readout"],
        serde_json::json!([0, 49])
    );

    let overview = server.get("/api/trace/0/overview").json();
    let head = &overview[0]["heads"][0];
    let measured = &regard_trace::diagnose::heads(&trace.maps[0])[0];
    assert_eq!(head["role"], "sink");
    assert!((head["entropy"].as_f64().unwrap() - measured.entropy.unwrap()).abs() < 1e-9);
    assert!(
        head["text"].as_str().unwrap().contains("on `A`, a sink"),
        "{head}"
    );
    let small = head["small"].as_str().unwrap();
    assert_eq!(
        small.len(),
        2 * head["rows"].as_u64().unwrap() as usize * head["columns"].as_u64().unwrap() as usize
    );
    assert!(
        server
            .get("/api/trace/1/image")
            .body
            .starts_with(b"\x89PNG")
    );
}

#[test]
fn large_maps_are_sent_in_bounded_pieces() {
    let server = Server::start(
        Config::default(),
        vec![opened("large", large(1500, 1, 1))],
        None,
    );
    let whole = server.get("/api/trace/0/window?side=999999");
    assert_eq!(
        (whole.header("x-rows"), whole.body.len()),
        (Some("1024"), 4 << 20)
    );
    let overview = server.get("/api/trace/0/overview");
    assert_eq!(overview.json()[0]["heads"][0]["rows"], 32);
    assert!(overview.body.len() < 5_000);
    let part = server
        .get("/api/trace/0/window?q0=1400&q1=1500&k0=0&k1=10")
        .floats();
    assert_eq!(part.len(), 1000);
}

#[test]
fn maps_of_long_texts_are_computed_when_they_are_asked_for() {
    // Base cells of 2 tokens, and a last one that is not whole.
    const LENGTH: usize = 8_211;
    let folder = tempfile::tempdir().unwrap();
    let opened = long(folder.path(), LENGTH);
    let head = opened.long.as_ref().unwrap().head(0, 1).unwrap();
    let server = Server::start(Config::default(), vec![opened], None);
    let listed = &server.get("/api/traces").json()["traces"][0];
    assert_eq!(listed["long"], true);
    assert_eq!(listed["maps"][0]["numbers"], serde_json::json!([1, 4]));
    let axes = server.get("/api/trace/0/axes").json();
    assert_eq!(axes["keys"]["labels"][8_210], "word8210");
    for (part, size, pool) in [
        ((0usize, LENGTH, 0usize, LENGTH), 16, "max"),
        ((0, LENGTH, 0, LENGTH), 16, "mean"),
        ((4_096, 8_192, 0, 3_000), 8, "max"),
        ((8_000, LENGTH, 7_900, 8_100), 1, "max"),
        ((8_000, LENGTH, 7_900, 8_100), 4, "mean"),
    ] {
        let (q0, q1, k0, k1) = part;
        let answer = server.get(&format!(
            "/api/trace/0/window?map=0&heads=1&pool={pool}&cell={size}&q0={q0}&q1={q1}&k0={k0}&k1={k1}"
        ));
        assert_eq!(answer.status, 200, "{}", answer.text());
        let columns = (k1 - k0).div_ceil(size);
        let values = answer.floats();
        assert_eq!(values.len(), (q1 - q0).div_ceil(size) * columns);
        let mut numbers = Numbers(size as u64);
        for _ in 0..20 {
            let (row, column) = (
                numbers.below(values.len() / columns),
                numbers.below(columns),
            );
            let cell = |first: usize| first..(first + size).min(LENGTH);
            let queries: Vec<usize> = cell(q0 + row * size).collect();
            let keys = cell(k0 + column * size);
            let rows = head.rows(&queries).unwrap();
            let weights = rows.chunks_exact(LENGTH).flat_map(|row| &row[keys.clone()]);
            let expected = match pool {
                "max" => weights.copied().fold(0.0, f32::max),
                _ => weights.sum::<f32>() / (queries.len() * keys.len()) as f32,
            };
            let value = values[row * columns + column];
            let error = (value - expected).abs();
            assert!(
                error <= 1e-6 + 1e-4 * expected,
                "{part:?} {size} {pool} {row} {column}: {value} {expected}"
            );
        }
    }
    let overview = server.get("/api/trace/0/overview").json();
    let entropy = overview[0]["heads"][1]["entropy"].as_f64().unwrap();
    assert!(entropy > 1.0 && entropy < (LENGTH as f64).ln(), "{entropy}");
    for (path, sentence) in [
        ("window?map=0", "one head"),
        ("window?map=0&heads=7", "head"),
        ("window?map=3&heads=0", "there is no map 3"),
        ("window?map=0&heads=0&q0=9000", "entries"),
    ] {
        let refused = server.get(&format!("/api/trace/0/{path}"));
        assert!(
            refused.status >= 400 && refused.text().contains(sentence),
            "{path}: {}",
            refused.text()
        );
    }
    for format in ["svg", "png", "html"] {
        let file = server.get(&format!(
            "/api/trace/0/picture?map=0&heads=0&q0=10&q1=60&k0=0&k1=50&format={format}"
        ));
        assert_eq!(file.status, 200, "{}", file.text());
    }
}

/// A long source and a short target: encoder, decoder, and a map that is no square.
#[test]
fn maps_of_a_long_source_have_their_own_shapes() {
    const SOURCE: usize = 8_211;
    const TARGET: usize = 37;
    let folder = tempfile::tempdir().unwrap();
    let opened = long_source(folder.path(), [SOURCE, TARGET]);
    let trace = opened.long.clone().unwrap();
    let server = Server::start(Config::default(), vec![opened], None);
    let listed = &server.get("/api/traces").json()["traces"][0]["maps"];
    let shapes = [[SOURCE, SOURCE], [TARGET, TARGET], [TARGET, SOURCE]];
    for (map, [rows, columns]) in shapes.into_iter().enumerate() {
        assert_eq!(
            [&listed[map]["queries"], &listed[map]["keys"]],
            [rows, columns]
        );
        let axes = server.get(&format!("/api/trace/0/axes?map={map}")).json();
        let length = |side: &str| axes[side]["labels"].as_array().unwrap().len();
        assert_eq!([length("queries"), length("keys")], [rows, columns]);
        for (size, pool) in [(16, "mean"), (2, "max"), (1, "max")] {
            let (end, last) = ((900 * size).min(columns), (900 * size).min(rows));
            let asked = format!("map={map}&heads=0&pool={pool}&cell={size}&q1={last}&k1={end}");
            let answer = server.get(&format!("/api/trace/0/window?{asked}"));
            assert_eq!(answer.status, 200, "{}", answer.text());
            let values = answer.floats();
            let wide = end.div_ceil(size);
            assert_eq!(values.len(), last.div_ceil(size) * wide, "{asked}");
            let head = trace.head(map, 0).unwrap();
            let mut numbers = Numbers(map as u64);
            for _ in 0..10 {
                let (row, column) = (numbers.below(last.div_ceil(size)), numbers.below(wide));
                let cell = |first: usize, end: usize| first..(first + size).min(end);
                let queries: Vec<usize> = cell(row * size, rows).collect();
                let keys = cell(column * size, columns);
                let weights = head.rows(&queries).unwrap();
                let weights = weights
                    .chunks_exact(columns)
                    .flat_map(|row| &row[keys.clone()]);
                let expected = match pool {
                    "max" => weights.copied().fold(0.0, f32::max),
                    _ => weights.sum::<f32>() / (queries.len() * keys.len()) as f32,
                };
                let value = values[row * wide + column];
                let error = (value - expected).abs();
                assert!(
                    error <= 1e-6 + 1e-4 * expected,
                    "{asked} {row} {column}: {value} {expected}"
                );
            }
        }
        let file = format!("/api/trace/0/picture?map={map}&heads=0&q1=30&k1=50&format=svg");
        let file = server.get(&file).text();
        assert!(file.contains(["encoder.self", "decoder.self", "decoder.cross"][map]));
    }
    let overview = server.get("/api/trace/0/overview").json();
    assert!(overview[2]["heads"][0]["entropy"].as_f64().unwrap() > 0.5);
    let refused = server.get("/api/trace/0/window?map=2&heads=0&q0=40");
    assert!(refused.status >= 400 && refused.text().contains("37 entries"));
}

#[test]
fn wrong_requests_are_told_what_is_wrong() {
    let server = server();
    for (path, status, sentence) in [
        ("/api/trace/0/window?map=99", 404, "the maps are 0 to 5"),
        ("/api/trace/0/window?heads=9", 400, "numbers from 0 to 3"),
        ("/api/trace/0/window?heads=3-1", 400, "numbers from 0 to 3"),
        ("/api/trace/0/window?heads=a", 400, "numbers from 0 to 3"),
        ("/api/trace/0/window?q0=5&q1=5", 400, "at least one"),
        ("/api/trace/0/sums?chosen=99", 400, "numbers from 0 to"),
        ("/api/trace/0/sums?by=sum", 400, "by"),
        ("/api/trace/0/image", 404, "no image"),
        ("/api/trace/0/picture?view=text", 400, "0 tokens are chosen"),
        ("/api/trace/0/picture?view=image", 400, "no image"),
        ("/api/trace/0/picture?view=compare", 400, "trace2"),
        (
            "/api/trace/0/picture?view=compare&map=0&trace2=1&map2=0",
            400,
            "cannot be compared",
        ),
    ] {
        let answer = server.get(path);
        assert_eq!(answer.status, status, "{path}: {}", answer.text());
        assert!(
            answer.json()["error"].as_str().unwrap().contains(sentence),
            "{path}: {}",
            answer.text()
        );
    }
    for path in [
        "/api/trace/x/overview",
        "/api/trace/x/image",
        "/api/trace/x/generation",
        "/api/explain/dot/picture/gif",
    ] {
        let answer = server.get(path);
        assert_eq!(answer.status, 400, "{path}: {}", answer.text());
        assert!(answer.json()["error"].is_string(), "{path}");
    }
    let answer = server.ask("POST", "/api/traces", &[], b"");
    assert_eq!(answer.status, 405);
    assert!(answer.json()["error"].is_string());
    assert_eq!(server.get("/../Cargo.toml").status, 404);
}

#[test]
fn views_become_files() {
    let server = server();
    for (trace, view) in [
        (0, "overview"),
        (0, "head&map=5&heads=1"),
        (0, "text&map=5&chosen=1,2"),
        (0, "text&map=5&chosen=0&direction=to"),
        (1, "image&map=1&chosen=2,3"),
        (1, "image&map=0"),
        (0, "compare&map=0&trace2=0&map2=3"),
        (2, "head"),
        (2, "text&chosen=0"),
        (2, "overview"),
    ] {
        for (format, start) in [
            ("svg", "<svg"),
            ("png", "\u{fffd}PNG"),
            ("html", "<!DOCTYPE html>"),
        ] {
            let answer = server.get(&format!(
                "/api/trace/{trace}/picture?view={view}&format={format}"
            ));
            assert_eq!(answer.status, 200, "{view} {format}: {}", answer.text());
            assert!(answer.text().starts_with(start), "{view} {format}");
            assert!(
                answer
                    .header("content-disposition")
                    .unwrap()
                    .starts_with("attachment")
            );
            if format != "png" {
                assert!(
                    !answer.text().contains("<script>window") && !answer.text().contains("<img"),
                    "{view} {format}"
                );
            }
        }
    }
}

#[test]
fn a_zoomed_map_becomes_a_file_of_what_is_shown() {
    let server = server();
    let path = "/api/trace/0/picture?map=5&heads=1&q0=2&q1=5&k0=3&k1=7";
    let svg = server.get(path).text();
    assert_eq!(svg.matches("<title>").count(), 3 * 4 + 1, "{svg}");
    assert!(svg.contains(">shirt<") && !svg.contains(">man<"));
    assert_eq!(server.get(&format!("{path}&format=html")).status, 200);
}

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
fn rollout_and_flow_are_those_of_the_trace() {
    let trace = large(20, 3, 2);
    let layers: Vec<_> = trace.maps.iter().collect();
    let (joint, row) = (rollout(&layers).unwrap(), flow_from(&layers, 7).unwrap());
    let traces = vec![
        opened("large", trace.clone()),
        opened("long", large(70, 1, 1)),
        opened("longer", large(600, 1, 1)),
        opened("translation", translation(1)),
    ];
    let server = Server::start(Config::default(), traces, None);
    let answer = server.get("/api/trace/0/rollout?map=1");
    assert_eq!(answer.header("x-rows"), Some("20"));
    assert_eq!(answer.floats(), joint.weights());
    let answer = server.get("/api/trace/0/flow?map=1&query=7");
    assert_eq!(answer.header("x-columns"), Some("20"));
    let row: Vec<f32> = row.into_iter().map(|weight| weight as f32).collect();
    assert_eq!(answer.floats(), row);
    assert_eq!(server.get("/api/trace/1/rollout").status, 200);
    for (path, told) in [
        ("/api/trace/0/flow?query=20", "20"),
        ("/api/trace/1/flow", "at most 64"),
        ("/api/trace/2/rollout", "at most 512"),
        ("/api/trace/3/rollout?map=2", "self-attention"),
    ] {
        let answer = server.get(path);
        assert_eq!(answer.status, 400, "{path}");
        assert!(answer.text().contains(told), "{path}: {}", answer.text());
    }
    assert_eq!(server.get("/api/trace/0/rollout?map=3").status, 404);
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
fn a_table_of_the_page_becomes_a_file() {
    let server = server();
    let file = |body: &str| server.ask("POST", "/api/table", &[], body.as_bytes());
    let table = |format: &str| {
        format!(
            r#"{{"title":"<b>","rows":["a","b"],"columns":["c"],"values":[0.25,0],"format":"{format}"}}"#
        )
    };
    for (format, start) in [
        ("svg", "<svg"),
        ("png", "\u{fffd}PNG"),
        ("html", "<!DOCTYPE html>"),
    ] {
        let answer = file(&table(format));
        assert!(answer.text().starts_with(start), "{}", answer.text());
        assert!(!answer.text().contains("<b>"));
    }
    let wrong = file(r#"{"title":"","rows":["a"],"columns":[],"values":[1],"format":"svg"}"#);
    assert_eq!(wrong.status, 400);
    assert!(
        wrong.text().contains("1 values for 1 rows and 0 columns"),
        "{}",
        wrong.text()
    );
    assert_eq!(file("{}").status, 400);
    // Neither many names without numbers nor a long one beside many make a large file.
    let columns = |count: usize| vec![r#""c""#; count].join(",");
    let wide = format!(
        r#"{{"title":"","rows":[],"columns":[{}],"values":[],"format":"svg"}}"#,
        columns(2000)
    );
    let refused = file(&wide);
    assert_eq!(refused.status, 400);
    assert!(
        refused.text().contains("at most 1024"),
        "{}",
        refused.text()
    );
    let long = format!(
        r#"{{"title":"","rows":["{}"],"columns":[{}],"values":[{}],"format":"svg"}}"#,
        "x".repeat(100_000),
        columns(1000),
        vec!["0.5"; 1000].join(",")
    );
    let drawn = file(&long);
    assert_eq!(drawn.status, 200);
    assert!(drawn.text().len() < 1_000_000, "{}", drawn.text().len());
}

#[test]
fn bodies_have_a_limit() {
    let config = Config {
        max_body: 1000,
        ..Config::default()
    };
    let server = Server::start(config, vec![], Some(Box::new(Chooser)));
    let answer = server.look(&format!(r#"{{"text":"{}"}}"#, "x".repeat(2000)));
    assert_eq!(answer.status, 413, "{}", answer.text());
    assert_eq!(server.look(r#"{"text":"short"}"#).status, 200);
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
fn a_slow_model_holds_nobody_else() {
    let (begin, begun) = channel();
    let config = Config {
        look_timeout: Duration::from_secs(1),
        queue: 1,
        ..Config::default()
    };
    let server = Server::start(
        config,
        vec![opened("t", translation(1))],
        Some(Box::new(Slow { begin: begun })),
    );
    let address = server.running.address;
    // The first is at work, one may wait, others are refused at once; all are answered while the model has not begun.
    let looks: Vec<_> = (0..6)
        .map(|_| {
            std::thread::spawn(move || ask(address, "POST", "/api/look", &[], br#"{"text":"a b"}"#))
        })
        .collect();
    assert_eq!(server.get("/api/trace/0/overview").status, 200);
    let answers: Vec<Answer> = looks.into_iter().map(|look| look.join().unwrap()).collect();
    assert!(answers.iter().all(|answer| answer.status == 503));
    let told = |sentence| {
        answers
            .iter()
            .filter(|answer| answer.text().contains(sentence))
            .count()
    };
    assert!(
        told("still at work") >= 1 && told("too many inputs wait") >= 3,
        "{answers:?}"
    );
    // The work goes on, and its trace is in the list when it is done.
    begin.send(()).unwrap();
    while server.get("/api/traces").json()["traces"]
        .as_array()
        .unwrap()
        .len()
        < 2
    {
        std::thread::sleep(Duration::from_millis(10));
    }
    // Stopping does not wait for a look that never ends.
    let _ = server.look(r#"{"text":"a b"}"#);
    server.stop().unwrap();
}

#[test]
fn a_hundred_requests_at_once() {
    let server = server();
    let address = server.running.address;
    let paths = [
        "/api/trace/0/overview",
        "/api/trace/1/window?map=0",
        "/",
        "/api/trace/2/axes",
        "/api/trace/0/picture?view=head&map=5",
    ];
    let asked: Vec<_> = (0..100)
        .map(|i| {
            std::thread::spawn(move || ask(address, "GET", paths[i % paths.len()], &[], b"").status)
        })
        .collect();
    assert!(asked.into_iter().all(|one| one.join().unwrap() == 200));
}

/// Clients that say nothing, send a byte now and then, or take no answer hold all places, and are let go.
#[test]
fn slow_clients_do_not_hold_their_places() {
    let config = Config {
        connections: 6,
        patience: Duration::from_millis(300),
        look_timeout: Duration::from_millis(100),
        ..Config::default()
    };
    let server = Server::start(config, vec![opened("large", large(1024, 1, 1))], None);
    let address = server.running.address;
    let connect = || TcpStream::connect(address).unwrap();
    let silent = [connect(), connect()];
    let greedy: Vec<_> = (0..2)
        .map(|_| {
            let mut stream = connect();
            let window = "GET /api/trace/0/window HTTP/1.1\r\nHost: localhost\r\n\r\n";
            // Four megabytes each time, and none is read.
            stream.write_all(window.repeat(8).as_bytes()).unwrap();
            stream
        })
        .collect();
    let slow = (0..2).map(|_| {
        let mut stream = connect();
        std::thread::spawn(move || {
            let begun = Instant::now();
            let bytes = b"GET / HTTP/1.1\r\nHost: localhost\r\nX-Long: ".iter();
            for byte in bytes.chain(std::iter::repeat(&b'x')) {
                if stream.write_all(&[*byte]).is_err() {
                    break;
                }
                std::thread::sleep(Duration::from_millis(50));
                assert!(
                    begun.elapsed() < Duration::from_secs(20),
                    "it is never let go"
                );
            }
        })
    });
    let slow: Vec<_> = slow.collect();
    // All places are taken; yet these come through.
    let begun = Instant::now();
    for _ in 0..12 {
        assert_eq!(server.get("/api/traces").status, 200);
    }
    assert!(begun.elapsed() < Duration::from_secs(20));
    slow.into_iter().for_each(|one| one.join().unwrap());
    drop((silent, greedy));
}

/// A client that sends steadily may take longer than the patience.
#[test]
fn a_large_body_may_take_its_time() {
    let config = Config {
        patience: Duration::from_millis(400),
        look_timeout: Duration::from_millis(100),
        ..Config::default()
    };
    let server = Server::start(config, vec![], Some(Box::new(Chooser)));
    let mut stream = TcpStream::connect(server.running.address).unwrap();
    let line = r#"{"text":"a b"}"#;
    let parts = 12;
    let head = format!(
        "POST /api/look HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: {}\r\n\r\n{line}\n",
        line.len() + 1 + parts * 20_000
    );
    stream.write_all(head.as_bytes()).unwrap();
    for _ in 0..parts {
        std::thread::sleep(Duration::from_millis(100));
        stream.write_all(&[0; 20_000]).unwrap();
    }
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
}

#[test]
fn stopping_frees_the_address() {
    let server = server();
    let address = server.running.address;
    // A connection that was opened and says nothing does not hold it.
    let _idle = std::net::TcpStream::connect(address).unwrap();
    assert_eq!(server.get("/").status, 200);
    server.stop().unwrap();
    assert!(std::net::TcpStream::connect(address).is_err());
}

#[test]
fn a_file_of_traces_is_opened_under_its_name() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("look.safetensors");
    regard_trace::write(&path, &[translation(1), caption()]).unwrap();
    let names: Vec<String> = Opened::read(&path)
        .unwrap()
        .into_iter()
        .map(|one| one.name)
        .collect();
    assert_eq!(names, ["look.safetensors 1", "look.safetensors 2"]);
    assert!(Opened::read(folder.path().join("none")).is_err());
}

/// A copy of a file with bits turned, cut short, or with numbers of its header replaced by extreme ones.
fn mutated(file: &[u8], numbers: &mut Numbers) -> Vec<u8> {
    const EXTREMES: [&str; 8] = [
        "0",
        "1",
        "2",
        "5",
        "65536",
        "4294967296",
        "18446744073709551615",
        "-1",
    ];
    let length = u64::from_le_bytes(file[..8].try_into().unwrap()) as usize;
    match numbers.below(8) {
        0 => return file[..numbers.below(file.len())].to_vec(),
        1..=3 => {
            let mut file = file.to_vec();
            for _ in 0..1 + numbers.below(4) {
                let at = numbers.below(file.len());
                file[at] ^= 1 << numbers.below(8);
            }
            return file;
        }
        _ => {}
    }
    let mut header = String::from_utf8(file[8..8 + length].to_vec()).unwrap();
    let digit = |header: &str, at: usize| header.as_bytes()[at].is_ascii_digit();
    let starts: Vec<usize> = (1..header.len())
        .filter(|&at| digit(&header, at) && !digit(&header, at - 1))
        .collect();
    let start = starts[numbers.below(starts.len())];
    let end = start
        + header[start..]
            .bytes()
            .take_while(u8::is_ascii_digit)
            .count();
    header.replace_range(start..end, EXTREMES[numbers.below(EXTREMES.len())]);
    [
        &(header.len() as u64).to_le_bytes(),
        header.as_bytes(),
        &file[8 + length..],
    ]
    .concat()
}

#[test]
fn mutated_traces_are_shown_or_refused() {
    let small = translation(1);
    let cut = Trace {
        maps: small.maps[2..4].to_vec(),
        ..small
    };
    let file = to_bytes(&[cut, caption()]).unwrap();
    let mut numbers = Numbers(7);
    let mut traces = vec![];
    let mut refused = 0;
    for _ in 0..1000 {
        match from_bytes(&mutated(&file, &mut numbers)) {
            Ok(read) => traces.extend(read.into_iter().map(|trace| opened("mutated", trace))),
            Err(_) => refused += 1,
        }
    }
    assert!(
        refused > 100 && traces.len() > 100,
        "{refused} {}",
        traces.len()
    );
    let count = traces.len();
    let server = Server::start(Config::default(), traces, None);
    assert_eq!(server.get("/api/traces").status, 200);
    let parts = [
        "overview?words=true",
        "axes?map=1",
        "window?map=1&words=true",
        "sums?map=0&chosen=0",
        "image",
        "picture?view=head",
        "picture?view=image&format=html",
        "rollout?words=true",
        "flow?map=1",
        "query?map=0&head=0&query=0",
        "generation",
    ];
    for id in 0..count {
        // Every view of some, and one view of each.
        let views = if id % 40 == 0 {
            &parts[..]
        } else {
            std::slice::from_ref(&parts[id % parts.len()])
        };
        for part in views {
            let status = server.get(&format!("/api/trace/{id}/{part}")).status;
            assert!([200, 400, 404].contains(&status), "{id} {part}: {status}");
        }
    }
}

#[test]
fn worked_examples_are_computed_with_the_given_numbers() {
    let server = explaining();
    let listed = server.get("/api/traces").json();
    assert_eq!(listed["explains"], true);
    assert_eq!(
        server.get("/api/explain").json()[0]["entries"][0]["name"],
        "double"
    );
    let found = server.get("/api/explain/twice?by=3&x=1,-2").json();
    let cells = serde_json::json!([3.0, -6.0, null]);
    assert_eq!(found["steps"][0]["rows"][0][1], cells, "{found}");
    for (format, kind) in [
        ("svg", "image/svg+xml"),
        ("png", "image/png"),
        ("html", "text/html"),
    ] {
        let file = server.get(&format!("/api/explain/double/picture/{format}?by=3"));
        assert!(
            file.status == 200 && file.head.contains(kind),
            "{}",
            file.head
        );
        assert!(file.head.contains("attachment"), "{}", file.head);
    }
    for path in [
        "nothing",
        "double?by=NaN",
        "double?by=1e999",
        "double?x=",
        "double?svg=/tmp/file",
        "double/picture/exe",
        "%00%ff",
        "..%2f..%2fetc%2fpasswd",
    ] {
        let answer = server.get(&format!("/api/explain/{path}"));
        assert_eq!(answer.status, 400, "{path}: {}", answer.text());
    }
    assert!(
        server
            .get("/api/explain/dubble")
            .text()
            .contains("did you mean")
    );
    // A server without worked examples says so.
    let other = Server::start(Config::default(), vec![], None);
    assert_eq!(other.get("/api/explain").status, 404);
    assert_eq!(other.get("/api/explain/double").status, 404);
    assert_eq!(other.get("/api/traces").json()["explains"], false);
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
