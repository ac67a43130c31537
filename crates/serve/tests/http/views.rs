//! Numbers of traces, of long maps and of worked examples, and requests that are refused.

use regard_serve::Config;
use regard_trace::diagnose::{flow_from, rollout};

use regard_trace::{AttentionMap, Axis, Kind, Trace};

use crate::common::{Numbers, Server, explaining, large, long, long_source, opened, translation};
use crate::server;

fn close(a: f32, b: f32) -> bool {
    (a - b).abs() < 1e-5
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
        ("/api/trace/0/window?heads=,", 400, "numbers from 0 to 3"),
        ("/api/trace/0/window?heads=0,,1", 400, "numbers from 0 to 3"),
        ("/api/trace/0/window?head=1", 400, "unknown field `head`"),
        ("/api/trace/0/overview?word=1", 400, "unknown field `word`"),
        ("/api/traces?model=x", 400, "question mark"),
        ("/api/trace/1/image?side=9", 400, "question mark"),
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
    let answer = server.ask("POST", "/api/table", &[], b"[]");
    assert_eq!(answer.status, 400, "{}", answer.text());
    let answer = server.ask("POST", "/api/traces", &[], b"");
    assert_eq!(answer.status, 405);
    assert!(answer.json()["error"].is_string());
    assert_eq!(server.get("/../Cargo.toml").status, 404);
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
        opened("deep", large(64, 200, 1)),
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
        (
            "/api/trace/4/flow",
            "200 layers of a text of 64 tokens: at most 24",
        ),
    ] {
        let answer = server.get(path);
        assert_eq!(answer.status, 400, "{path}");
        assert!(answer.text().contains(told), "{path}: {}", answer.text());
    }
    assert_eq!(server.get("/api/trace/0/rollout?map=3").status, 404);
    assert_eq!(server.get("/api/trace/4/rollout").status, 200);
}

/// One row over more keys than the page could name.
#[test]
fn a_vast_axis_is_not_sent() {
    let keys = (1 << 20) + 1;
    let [query, channels] = [1, keys].map(|length| Axis::Positions { length });
    let map = AttentionMap::unnormalized(Kind::Other, query, channels, 1, vec![0.5; keys]);
    let trace = Trace::new("vast", "", "").with_map(map.unwrap());
    let server = Server::start(Config::default(), vec![opened("vast", trace)], None);
    for path in ["axes", "sums?chosen=0", "picture?view=head"] {
        let answer = server.get(&format!("/api/trace/0/{path}"));
        assert_eq!(answer.status, 400, "{path}");
        assert!(
            answer.text().contains(
                "1048577 queries or keys are more than the page shows (1048576): write fewer"
            ),
            "{path}: {}",
            answer.text()
        );
    }
    // A part of it is.
    let part = server.get("/api/trace/0/window?k0=1048570");
    assert_eq!(part.floats(), [0.5; 7]);
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
