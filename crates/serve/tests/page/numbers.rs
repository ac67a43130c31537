//! Numbers that are shown are those of the trace, whatever the view and the length.

use regard_serve::Config;
use regard_trace::diagnose::{flow_from, rollout};
use regard_trace::{AttentionMap, Axis, Image, Kind, Token, Tokens, Trace};

use crate::chromium::Page;
use crate::common::{Server, caption, large, long, long_source, opened, translation};
use crate::{UNIQUE, close, server, told};

#[test]
fn a_long_text_is_zoomed_down_to_its_weights() {
    let folder = tempfile::tempdir().unwrap();
    let opened = long(folder.path(), 5_000);
    let head = opened.long.as_ref().unwrap().head(0, 1).unwrap();
    let server = Server::start(Config::default(), vec![opened], None);
    let Some(mut page) = Page::open() else { return };
    page.load(&server.running.url);
    assert!(page.text("main").contains("head 5"));
    assert!(!page.text("#views").contains("Text"));
    page.load(&format!("{}#view=head&heads=1", server.running.url));
    assert!(page.text("figcaption").contains("head 5"));
    page.point(".heat canvas", 300.0, 500.0);
    page.wait("document.querySelector('#readout b')");
    assert!(page.text("#readout").contains("the largest of its cell"));
    for _ in 0..5 {
        page.value("document.querySelector('.heat canvas').focus()");
        let drawn = page.value("document.body.dataset.drawn");
        page.key("+");
        page.wait(&format!("document.body.dataset.drawn !== {drawn}"));
    }
    page.point(".heat canvas", 320.0, 330.0);
    page.wait("document.querySelector('#readout b')");
    let readout = page.text("#readout");
    let words: Vec<&str> = readout.split_whitespace().collect();
    let index = |word: &str| word.strip_prefix("word").unwrap().parse::<usize>().unwrap();
    // Position, token, arrow, position, token, weight.
    let (query, key) = (index(words[1]), index(words[4]));
    assert_eq!(words[0], (query + 1).to_string());
    let weight = head.rows(&[query]).unwrap()[key];
    let shown: f32 = words[5].parse().unwrap();
    assert!(
        (shown - weight).abs() < 6e-5 + 0.06 * weight,
        "{readout}: {weight}"
    );
    assert_eq!(page.errors, Vec::<String>::new());
}

#[test]
fn maps_of_a_long_source_stand_side_by_side() {
    let folder = tempfile::tempdir().unwrap();
    let opened = long_source(folder.path(), [3_000, 40]);
    let server = Server::start(Config::default(), vec![opened], None);
    let Some(mut page) = Page::open() else { return };
    page.load(&format!("{}#view=head&beside=0,1", server.running.url));
    let captions = page.value("[...document.querySelectorAll('figcaption strong')].map((one) => one.textContent.split(' ')[0])");
    assert_eq!(
        captions,
        serde_json::json!(["decoder.cross", "encoder.self", "decoder.self"])
    );
    assert_eq!(
        page.value("document.querySelectorAll('.heat canvas').length"),
        3
    );
    page.point(".heat canvas", 200.0, 150.0);
    page.wait("document.querySelector('#readout b')");
    assert_eq!(page.text(".alert"), "");
    assert_eq!(page.errors, Vec::<String>::new());
}

#[test]
fn hovering_gives_the_weights_of_the_trace() {
    let server = server();
    let Some(mut page) = Page::open() else { return };
    let trace = large(20, 2, 2);
    let head = |map: &AttentionMap, q, k| map.weight(1, q, k);
    page.load(&format!(
        "{}#view=head&trace={UNIQUE}&map=1&heads=1",
        server.running.url
    ));
    let mut seen = vec![];
    for (x, y) in [
        (120.0, 90.0),
        (180.0, 300.0),
        (300.0, 500.0),
        (420.0, 420.0),
    ] {
        page.point(".heat canvas", x, y);
        page.wait("document.querySelector('#readout b')");
        let (query, key, weight) = told(&page.text("#readout"));
        assert!(
            close(weight, head(&trace.maps[1], query, key)),
            "{query} {key} {weight}"
        );
        seen.push((query, key));
    }
    seen.dedup();
    assert_eq!(seen.len(), 4, "{seen:?}");
    // By keys.
    page.value("document.querySelector('.heat canvas').focus()");
    page.point(".tools", 1.0, 1.0);
    for key in ["ArrowRight", "ArrowDown", "ArrowDown", "ArrowRight"] {
        page.key(key);
    }
    let (query, key, weight) = told(&page.text("#readout"));
    assert_eq!((query, key), (2, 1));
    assert!(close(weight, head(&trace.maps[1], 2, 1)));
    // A zoomed window has the same weights.
    page.key("+");
    page.wait("location.hash.includes('window')");
    page.wait("document.querySelector('.zoom').textContent.includes('Whole')");
    page.point(".heat canvas", 150.0, 150.0);
    page.wait("document.querySelector('#readout b')");
    let (query, key, weight) = told(&page.text("#readout"));
    assert!(close(weight, head(&trace.maps[1], query, key)));
    // Lines, and the mean of heads.
    page.load(&format!(
        "{}#view=head&trace={UNIQUE}&map=1&mode=lines",
        server.running.url
    ));
    page.value("document.querySelectorAll('.lines .side:first-child button')[7].focus()");
    let (query, key, weight) = told(&page.text("#readout"));
    let mean = trace.maps[1].mean_heads();
    assert_eq!(query, 7);
    assert!(
        close(
            (weight * 10.0).round() / 10.0,
            (mean.weight(0, 7, key) * 10.0).round() / 10.0
        ),
        "{weight}"
    );
    assert_eq!(page.errors, Vec::<String>::new());
}

#[test]
fn chosen_tokens_are_summed() {
    let server = server();
    let Some(mut page) = Page::open() else { return };
    let trace = large(20, 2, 2);
    let map = &trace.maps[0];
    page.load(&format!(
        "{}#view=text&trace={UNIQUE}&map=0&heads=1",
        server.running.url
    ));
    page.click("[data-index='5']", false);
    page.wait("document.querySelectorAll('.top tr').length");
    page.click("[data-index='9']", true);
    page.wait("document.querySelector('.top caption').textContent.includes('2 tokens')");
    let rows = page.value("[...document.querySelectorAll('.top tr')].map((row) => [Number(row.children[1].textContent), Number(row.children[3].textContent)])");
    let mut last = f64::INFINITY;
    for row in rows.as_array().unwrap() {
        let (key, weight) = (row[0].as_u64().unwrap() as usize, row[1].as_f64().unwrap());
        assert!(
            close(weight as f32, map.weight(1, 5, key) + map.weight(1, 9, key)),
            "{row}"
        );
        assert!(weight <= last);
        last = weight;
    }
    assert_eq!(rows.as_array().unwrap().len(), 8);
    // The address restores it, and the other direction gives columns.
    let link = page.value("location.href").as_str().unwrap().to_owned();
    let before = page.text(".top");
    page.load(&link);
    assert_eq!(page.text(".top"), before);
    page.click("[data-focus='direction-to']", false);
    page.wait("document.querySelector('.top caption').textContent.startsWith('Attending')");
    let rows = page.value("[...document.querySelectorAll('.top tr')].map((row) => [Number(row.children[1].textContent), Number(row.children[3].textContent)])");
    for row in rows.as_array().unwrap() {
        let query = row[0].as_u64().unwrap() as usize;
        assert!(
            close(
                row[1].as_f64().unwrap() as f32,
                map.weight(1, query, 5) + map.weight(1, query, 9)
            ),
            "{row}"
        );
    }
    page.key("Escape");
    page.wait("!document.querySelector('.top table')");
    assert_eq!(page.errors, Vec::<String>::new());
}

#[test]
fn a_map_larger_than_the_screen_is_pooled_and_exact_when_zoomed() {
    let trace = large(1200, 1, 1);
    let map = &trace.maps[0];
    let server = Server::start(
        Config::default(),
        vec![opened("large", trace.clone())],
        None,
    );
    let Some(mut page) = Page::open() else { return };
    let url = &server.running.url;
    page.load(&format!("{url}#view=head"));
    page.point(".heat canvas", 300.0, 300.0);
    page.wait("document.querySelector('#readout b')");
    assert!(page.text("#readout").contains("the largest of its cell"));
    page.load(&format!("{url}#view=head&window=700,712,690,702"));
    page.value("document.querySelector('.heat canvas').focus()");
    for key in ["ArrowRight", "ArrowDown"] {
        page.key(key);
    }
    let (query, key, weight) = told(&page.text("#readout"));
    assert_eq!((query, key), (701, 690));
    assert!(close(weight, map.weight(0, 701, 690)));
    // Dragging moves the window.
    let (x, y) = page.point(".heat canvas", 200.0, 200.0);
    for (kind, dx, dy) in [
        ("mousePressed", 0.0, 0.0),
        ("mouseMoved", -35.0, -40.0),
        ("mouseMoved", -70.0, -75.0),
        ("mouseReleased", -70.0, -75.0),
    ] {
        page.call("Input.dispatchMouseEvent", serde_json::json!({ "type": kind, "x": x + dx, "y": y + dy, "button": "left", "buttons": 1, "clickCount": 1 }));
    }
    page.wait("location.hash.includes('window=702%2C714%2C692%2C704')");
    page.load(&format!("{url}#view=text&chosen=1100,1101"));
    let rows = page.value("[...document.querySelectorAll('.top tr')].map((row) => [Number(row.children[1].textContent), Number(row.children[3].textContent)])");
    assert_eq!(rows.as_array().unwrap().len(), 8);
    for row in rows.as_array().unwrap() {
        let key = row[0].as_u64().unwrap() as usize;
        assert!(
            close(
                row[1].as_f64().unwrap() as f32,
                map.weight(0, 1100, key) + map.weight(0, 1101, key)
            ),
            "{row}"
        );
    }
    assert_eq!(page.errors, Vec::<String>::new());
}

#[test]
fn an_image_and_a_comparison_give_their_numbers() {
    let server = server();
    let Some(mut page) = Page::open() else { return };
    let trace = caption();
    page.load(&format!(
        "{}#view=image&trace=2&map=1&heads=1&chosen=4",
        server.running.url
    ));
    page.value("document.querySelector('.over').focus()");
    for key in ["ArrowRight", "ArrowDown", "ArrowRight"] {
        page.key(key);
    }
    let readout = page.text("#readout");
    let shown: f32 = page.text("#readout b").parse().unwrap();
    assert!(
        readout.contains("(1, 1)") && readout.starts_with("of"),
        "{readout}"
    );
    assert!(close(shown, trace.maps[1].weight(1, 4, 8)), "{readout}");
    // A cell of the image is a query, too.
    page.load(&format!(
        "{}#view=image&trace=2&map=0&heads=0",
        server.running.url
    ));
    page.wait("document.querySelector('.over img').complete && document.querySelector('.over img').naturalWidth === 84");
    page.press(".over", 200.0, 100.0);
    page.wait("location.hash.includes('chosen')");

    let (a, b) = (translation(1), translation(100));
    page.load(&format!(
        "{}#view=compare&words=0&map=5&heads=3&trace2=1&heads2=3",
        server.running.url
    ));
    page.value("document.querySelectorAll('.heat canvas')[2].focus()");
    for key in ["ArrowRight", "ArrowDown", "ArrowDown", "ArrowRight"] {
        page.key(key);
    }
    page.wait("document.querySelectorAll('#readout b').length === 3");
    let shown = page
        .value("[...document.querySelectorAll('#readout b')].map((b) => Number(b.textContent))");
    let (a, b) = (a.maps[5].weight(3, 2, 1), b.maps[5].weight(3, 2, 1));
    for (i, weight) in [a, b, a - b].into_iter().enumerate() {
        // Small numbers are shown with two digits.
        assert!(
            (shown[i].as_f64().unwrap() as f32 - weight).abs() < 6e-5,
            "{shown} {weight}"
        );
    }
    assert_eq!(page.errors, Vec::<String>::new());
}

#[test]
fn rollout_and_flow_stand_beside_raw_weights() {
    let server = server();
    let Some(mut page) = Page::open() else { return };
    page.load(&format!(
        "{}#view=rollout&trace={UNIQUE}&query=7&heads=1",
        server.running.url
    ));
    let trace = large(20, 2, 2);
    let layers: Vec<_> = trace.maps.iter().collect();
    let (joint, flow) = (rollout(&layers).unwrap(), flow_from(&layers, 7).unwrap());
    let shown = page.value("[...document.querySelectorAll('#rollout tbody tr')].map((row) => [2, 4, 6].map((i) => Number(row.children[i].textContent)))");
    assert_eq!(shown.as_array().unwrap().len(), 20);
    for (key, row) in shown.as_array().unwrap().iter().enumerate() {
        let expected = [
            trace.maps[1].weight(1, 7, key),
            joint.weight(0, 7, key),
            flow[key] as f32,
        ];
        for (told, weight) in row.as_array().unwrap().iter().zip(expected) {
            assert!(
                close(told.as_f64().unwrap() as f32, weight),
                "{row} {expected:?}"
            );
        }
    }
    page.click("[data-focus='query-3']", false);
    page.wait("document.querySelector('#rollout caption').textContent.includes('word3')");
    assert!(page.text(".note").contains("not explanation"));
    page.load(&format!(
        "{}#view=rollout&trace=0&map=0",
        server.running.url
    ));
    assert_eq!(page.text(".alert"), "");
    assert_eq!(page.errors, Vec::<String>::new());
}

/// A window is of words or of their pieces, and not of the others.
#[test]
fn a_window_does_not_outlive_its_axis() {
    let server = server();
    let Some(mut page) = Page::open() else { return };
    let shown = |page: &mut Page| {
        let label = "document.querySelector('.heat canvas').getAttribute('aria-label')";
        page.value(label).as_str().unwrap().to_owned()
    };
    let url = &server.running.url;
    let pieces = "#view=head&map=5&heads=1&words=0&window=8,11,10,14&chosen=2";
    page.load(&format!("{url}{pieces}"));
    assert!(shown(&mut page).contains("3 target entries by 4 source"));
    page.click("[data-focus='words-1']", false);
    page.wait("document.querySelector('[data-focus=\"words-1\"]').getAttribute('aria-pressed') === 'true'");
    let label = shown(&mut page);
    assert!(label.contains("10 target entries by 11 source"), "{label}");
    let hash = page.value("location.hash");
    let hash = hash.as_str().unwrap();
    assert!(
        !hash.contains("window") && !hash.contains("chosen"),
        "{hash}"
    );
    // One that an address names, and the words do not have.
    page.load(&format!("{url}{}", pieces.replace("words=0", "words=1")));
    let label = shown(&mut page);
    assert!(label.contains("10 target entries by 11 source"), "{label}");
    assert_eq!(page.errors, Vec::<String>::new());
}

/// What an address chooses of another map is no part of a file's address.
#[test]
fn every_file_that_is_offered_is_there() {
    let server = server();
    let Some(mut page) = Page::open() else { return };
    for hash in [
        "#heads=7&map=0",
        "#view=head&heads=7&map=5&words=1&window=8,11,10,14",
        "#view=text&heads=3,9&map=5&chosen=10,12",
        "#view=text&heads=3,9&map=5&chosen=10,12&direction=to",
        "#view=image&trace=2&map=1&heads=5&chosen=40&overlay=cells",
        "#view=compare&map=5&heads=9&heads2=9",
        "#view=compare&trace=1&trace2=0&map=5&heads2=9",
    ] {
        page.load(&format!("{}{hash}", server.running.url));
        let answers = page.value("Promise.all([...document.querySelectorAll('#export a')].map((one) => fetch(one.href).then((answer) => answer.status)))");
        assert_eq!(answers, serde_json::json!([200, 200, 200]), "{hash}");
    }
    assert_eq!(page.errors, Vec::<String>::new());
}

/// No file is offered that the server would refuse, and one of two traces is between words if either is shown so.
#[test]
fn files_are_offered_as_far_as_they_can_be_drawn() {
    let compared = |tokens: Tokens| {
        let count = tokens.len();
        let weights = vec![1.0 / count as f32; count * count];
        let map = AttentionMap::new(Kind::SelfAttention, tokens.clone(), tokens, 1, weights);
        Trace::new("m", "a bc", "").with_map(map.unwrap())
    };
    let pieces = [("a", 0), ("b", 1), ("##c", 1)];
    let pieces = pieces.map(|(text, word)| Token::new(text).in_word(word));
    let traces = vec![
        opened("words", compared(Tokens::from_words("a bc"))),
        opened("pieces", compared(pieces.into_iter().collect())),
        opened("many", large(70, 1, 1)),
    ];
    let server = Server::start(Config::default(), traces, None);
    let Some(mut page) = Page::open() else { return };
    let url = server.running.url.clone();
    for hash in [
        "#view=compare&trace=0&trace2=1",
        "#view=compare&trace=1&trace2=0",
    ] {
        page.load(&format!("{url}{hash}"));
        assert_eq!(page.text(".alert"), "", "{hash}");
        let answers = page.value("Promise.all([...document.querySelectorAll('#export a')].map((one) => fetch(one.href).then((answer) => answer.status)))");
        assert_eq!(answers, serde_json::json!([200, 200, 200]), "{hash}");
    }
    let chosen: Vec<String> = (0..65).map(|index| index.to_string()).collect();
    for (hash, told) in [
        (
            "#view=compare&trace=0&trace2=1&words=0".to_owned(),
            "Maps of other lengths have no file.",
        ),
        (
            format!("#view=text&trace=2&chosen={}", chosen.join(",")),
            "A file shows at most 64 chosen entries, not 65.",
        ),
    ] {
        page.load(&format!("{url}{hash}"));
        assert_eq!(page.text("#export .menu"), told, "{hash}");
        let links = page.value("document.querySelectorAll('#export a').length");
        assert_eq!(links, 0, "{hash}");
    }
    assert_eq!(page.errors, Vec::<String>::new());
}

#[test]
fn layers_of_a_text_that_is_too_long_have_no_table() {
    let server = Server::start(
        Config::default(),
        vec![opened("large", large(1_100, 1, 1))],
        None,
    );
    let Some(mut page) = Page::open() else { return };
    page.load(&format!("{}#view=rollout", server.running.url));
    assert!(page.text(".alert").contains("at most 512"));
    assert_eq!(
        page.value("document.querySelectorAll('.heat canvas').length"),
        1
    );
    assert_eq!(
        page.value("document.querySelectorAll('#rollout').length"),
        0
    );
    assert!(
        page.errors.iter().all(|error| error.contains("400")),
        "{:?}",
        page.errors
    );
}

#[test]
fn a_long_text_is_not_compared() {
    let folder = tempfile::tempdir().unwrap();
    let traces = vec![
        opened("words", large(20, 1, 1)),
        long(folder.path(), 3_000),
        opened("others", large(20, 1, 1)),
    ];
    let server = Server::start(Config::default(), traces, None);
    let Some(mut page) = Page::open() else { return };
    // Neither is a trace that is not there.
    for trace in [1, 9] {
        page.load(&format!(
            "{}#view=compare&trace=2&trace2={trace}",
            server.running.url
        ));
        let told = format!("There is no trace {trace} to compare with. B is others.");
        assert_eq!(page.text(".alert"), told);
        assert_eq!(page.text("[data-focus='trace2'] option"), "words | others");
        assert_eq!(
            page.value("document.querySelectorAll('.heat canvas').length"),
            3
        );
    }
    // Without a model nothing was forgotten.
    page.load(&format!("{}#view=head&trace=9", server.running.url));
    let told = "There is no trace 9. This is words.";
    assert_eq!(page.text(".alert"), told);
    assert_eq!(page.errors, Vec::<String>::new());
}

/// A model without a class token: all of its cells ask together.
#[test]
fn many_cells_ask_together() {
    let grid = |side| Axis::Image {
        prefix: Tokens::default(),
        rows: side,
        columns: side,
    };
    let weights = [0.1, 0.2, 0.3, 0.4].repeat(10_000);
    let map = AttentionMap::new(Kind::SelfAttention, grid(100), grid(2), 1, weights).unwrap();
    let image = Image::new(100, 100, 1, vec![9; 10_000]).unwrap();
    let trace = Trace::new("m", "", "").with_image(image).with_map(map);
    let server = Server::start(Config::default(), vec![opened("cells", trace)], None);
    let Some(mut page) = Page::open() else { return };
    page.load(&format!("{}#view=image", server.running.url));
    assert_eq!(page.text(".alert"), "");
    page.value("document.querySelector('.over').focus()");
    for key in ["ArrowDown", "ArrowDown"] {
        page.key(key);
    }
    let shown: f32 = page.text("#readout b").parse().unwrap();
    assert!(close(shown, 0.3), "{}", page.text("#readout"));
    assert_eq!(page.errors, Vec::<String>::new());
}
