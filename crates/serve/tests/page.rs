//! The page in headless Chromium: each view opens, and shows the numbers that the trace holds.

#[path = "common/chromium.rs"]
mod chromium;
mod common;

use chromium::Page;
use common::{small::product, *};
use regard_serve::{
    AblatedHead, Ablation, Change, Config, Generation, Hypothesis, Input, InputKind, Model, Opened,
    Proposed, QueryKeys, QueryPlace, Seen,
};
use regard_trace::diagnose::{flow_from, rollout};
use regard_trace::{AttentionMap, Axis, Kind, Tokens, Trace};

fn server() -> Server {
    let traces = vec![
        opened("translation", translation(1)),
        opened("other seed", translation(100)),
        opened("caption", caption()),
        opened("hostile", hostile()),
        opened("unique words", large(20, 2, 2)),
    ];
    Server::start(Config::default(), traces, Some(Box::new(Chooser)))
}

const UNIQUE: usize = 4;

/// `word3 → word1 0.1234` as query, key and weight.
fn told(readout: &str) -> (usize, usize, f32) {
    let words: Vec<&str> = readout.split_whitespace().collect();
    let index = |word: &str| {
        word.strip_prefix("word")
            .unwrap_or_else(|| panic!("{readout}"))
            .parse()
            .unwrap()
    };
    (index(words[0]), index(words[2]), words[3].parse().unwrap())
}

fn close(shown: f32, weight: f32) -> bool {
    (shown - weight).abs() < 6e-5
}

#[test]
fn sliders_change_a_worked_example() {
    let server = explaining();
    let Some(mut page) = Page::open() else { return };
    let url = &server.running.url;
    // With no trace and no model it is the view that opens.
    page.load(&format!("{url}#topic=double"));
    assert!(
        page.text("main").contains("2.0000 4.0000") || page.text(".steps td").contains("2.0000")
    );
    assert!(page.text(".steps").contains("hidden") || page.text(".steps").contains('·'));
    let answered = |page: &mut Page, change: &str| {
        let before = page.value("document.body.dataset.answered ?? '0'");
        page.value(change);
        page.wait(&format!("document.body.dataset.answered > {before}"));
    };
    // As a hand moves it: the slider keeps the focus, and the numbers follow.
    page.value("document.querySelector('[data-focus=control-by]').focus()");
    let before = page.value("document.body.dataset.answered ?? '0'");
    page.key("ArrowRight");
    page.wait(&format!("document.body.dataset.answered > {before}"));
    assert!(
        page.text(".steps").contains("2.5000"),
        "{}",
        page.text(".steps")
    );
    assert_eq!(
        page.value("document.activeElement.dataset.focus"),
        "control-by"
    );
    let set = |focus: &str, value: f64| {
        format!(
            "{{ const slider = document.querySelector('[data-focus=\"{focus}\"]'); slider.value = {value}; slider.dispatchEvent(new Event('input')); }}"
        )
    };
    answered(&mut page, &set("control-x-0-1", -3.0));
    assert!(
        page.text(".steps").contains("-7.5000"),
        "{}",
        page.text(".steps")
    );
    // The number in a text has its own slider, named as in the usage.
    answered(&mut page, &set("control-mask-7", 5.0));
    assert!(page.text(".remarks").contains("window:5 & causal"));
    let hash = page.value("location.hash").as_str().unwrap().to_owned();
    let picture = page.value("document.querySelector('#export a').href");
    assert!(
        picture
            .as_str()
            .unwrap()
            .contains("/api/explain/double/picture/svg?by=2.5"),
        "{picture}"
    );
    // The state is a link, and can be taken back.
    page.load(&format!("{url}?again{hash}"));
    assert!(page.text(".steps").contains("-7.5000"));
    page.wait("document.querySelector('#worked').naturalWidth > 0");
    answered(
        &mut page,
        "document.querySelector('[data-focus=reset-x]').click()",
    );
    assert!(page.text(".steps").contains("5.0000"));
    page.value("document.querySelector('[data-focus=reset-all]').click()");
    page.wait("document.querySelector('.steps').textContent.includes('4.0000')");
    assert_eq!(
        page.value("document.querySelectorAll('main b').length"),
        0,
        "names are text"
    );
    let unnamed = "[...document.querySelectorAll('main input, main select')].filter((one) => !one.getAttribute('aria-label') && !one.labels.length).length";
    assert_eq!(page.value(unnamed), 0);
    for hash in [
        "#topic=dubble",
        "#topic=double&given=by%3DNaN",
        "#topic=double&given=svg%3D%2Ftmp%2Fx",
    ] {
        page.load(&format!("{url}?other{hash}"));
        assert!(!page.text(".alert").is_empty(), "{hash}");
    }
    assert!(
        page.errors.iter().all(|error| error.contains("400")),
        "{:?}",
        page.errors
    );
}

#[test]
fn every_view_opens() {
    let server = server();
    let Some(mut page) = Page::open() else { return };
    for hash in [
        "#",
        "#sort=distance",
        "#sort=entropy&role=sink",
        "#table=1",
        "#pool=max&words=0",
        "#view=head",
        "#view=head&map=5&heads=1,2&by=max&least=20&table=1",
        "#view=head&mode=lines&beside=0",
        "#view=head&beside=4,5&map=0",
        "#view=head&window=1,5,2,6",
        "#view=text",
        "#view=text&chosen=1,2&table=1",
        "#view=text&direction=to&map=5&chosen=0",
        "#view=image&trace=2",
        "#view=image&trace=2&map=0&overlay=cells&table=1",
        "#view=rollout",
        "#view=rollout&map=0&query=3&words=0",
        "#view=compare",
        "#view=compare&trace2=1&table=1",
        "#view=compare&map=0&map2=3",
        "#view=ask",
        "#trace=3",
        "#view=nonsense&trace=77&map=99&heads=99&chosen=999&window=a,b",
    ] {
        page.load(&format!("{}{hash}", server.running.url));
        let text = page.text("main");
        assert!(
            !text.is_empty()
                && !text.contains("undefined")
                && !text.contains("NaN")
                && !text.contains("false"),
            "{hash}: {text}"
        );
        // Maps of other lengths have no difference; nothing else is wrong.
        let alert = page.text(".alert");
        let unequal = hash == "#view=compare&map=0&map2=3";
        assert!(
            alert.is_empty() || unequal && alert.starts_with("No difference"),
            "{hash}: {alert}"
        );
        assert_eq!(page.errors, Vec::<String>::new(), "{hash}");
    }
}

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
fn a_training_is_plotted_from_its_log() {
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("metrics.jsonl");
    std::fs::write(&log, training_log(6)).unwrap();
    let traces = vec![
        Opened::read(folder.path()).unwrap().remove(0),
        opened("words", large(5, 1, 1)),
    ];
    let server = Server::start(Config::default(), traces, None);
    let Some(mut page) = Page::open() else { return };
    page.load(&server.running.url);
    // Four measures, two kinds of attention, and no view of a trace.
    let count = |page: &mut Page, what: &str| {
        page.value(&format!("document.querySelectorAll('{what}').length"))
    };
    assert_eq!(count(&mut page, ".plot"), 4);
    assert_eq!(count(&mut page, ".plot[data-plot=entropy] polyline"), 2);
    assert_eq!(page.text("#views"), "Training");
    let width = page.value("document.querySelector('.plot').clientWidth");
    let width = width.as_f64().unwrap();
    page.point(".plot[data-plot=entropy]", width - 12.0, 50.0);
    page.wait("document.querySelector('#readout b')");
    let readout = page.text("#readout");
    assert!(readout.starts_with("update 60: entropy"), "{readout}");
    // Means over the heads of both layers: 1/6 and 1/7.
    assert!(readout.contains("<b>self</b> 0.155"), "{readout}");
    page.value("document.querySelector('.plot[data-plot=sinks]').focus()");
    page.key("ArrowRight");
    page.wait("document.querySelector('#readout').textContent.startsWith('update 10: sinks')");
    // Lines for layers, minutes, the table, and what was logged since.
    page.click("[data-focus='layers-1']", false);
    page.wait("document.querySelectorAll('.plot[data-plot=entropy] polyline').length === 3");
    page.click("[data-focus='along-minutes']", false);
    page.wait(
        "document.querySelector('.plot text:last-of-type').textContent === 'minutes of training'",
    );
    page.value("document.activeElement.blur()");
    page.key("t");
    page.wait("document.querySelectorAll('.numbers tbody tr').length === 24");
    std::fs::write(&log, training_log(7)).unwrap();
    page.click("[data-focus='again']", false);
    page.wait("document.querySelectorAll('.numbers tbody tr').length === 28");
    assert_eq!(page.errors, Vec::<String>::new());
    for (format, part) in [("svg", "<svg"), ("png", "PNG"), ("html", "<!DOCTYPE html>")] {
        let asked = format!("/api/trace/0/picture?view=training&layers=true&format={format}");
        let file = server.get(&asked);
        assert!(file.status == 200 && file.text().contains(part), "{format}");
    }
    // A trace is no training, and a training no trace.
    assert_eq!(server.get("/api/trace/1/training").status, 404);
    assert_eq!(server.get("/api/trace/1/picture?view=training").status, 400);
    assert_eq!(server.get("/api/trace/0/window").status, 404);
    std::fs::remove_file(&log).unwrap();
    assert_eq!(server.get("/api/trace/0/training").status, 400);
}

/// Validations of a model with two kinds of attention, one of them with a hostile name.
fn training_log(validations: u64) -> String {
    let layer = |map: &str, layer: u64, entropy: f64| {
        format!(
            r#"{{"map":"{map}","layer":{layer},"heads":2,"entropy":{entropy},"diagonality":0.7,"dead":{layer},"sinks":1}}"#
        )
    };
    let line = |step: u64| {
        let entropy = |layer: u64| 1.0 / (step + layer) as f64;
        let layers = [
            layer("<b>self</b>", 0, entropy(0)),
            layer("<b>self</b>", 1, entropy(1)),
            layer("decoder.cross", 0, 0.5),
        ];
        format!(
            "{{\"kind\":\"train\",\"step\":{0}}}\n{{\"kind\":\"validation\",\"step\":{0},\"seconds\":{0},\"loss\":2.0,\"attention\":[{1}]}}\n",
            10 * step,
            layers.join(",")
        )
    };
    (1..=validations).map(line).collect()
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
fn switching_a_head_off_changes_the_output() {
    let server = server();
    let Some(mut page) = Page::open() else { return };
    page.load(&format!("{}#view=ask", server.running.url));
    page.value("(() => { const area = document.querySelector('textarea'); area.value = 'red green blue'; area.dispatchEvent(new Event('input')); })()");
    page.click("button.main", false);
    page.wait("document.querySelector('#plain')");
    page.wait("!document.querySelector('button.main').disabled");
    assert_eq!(page.text("#plain .output"), "red");
    page.click("[data-focus='switch-self-1-0']", false);
    page.wait("document.querySelector('#changed')");
    page.wait("!document.querySelector('button.main').disabled");
    let changed = |change| {
        let head = AblatedHead {
            map: "self".to_owned(),
            layer: 1,
            head: 0,
            change,
        };
        Chooser::answer("red green blue", &Ablation { heads: vec![head] })
    };
    let off = changed(Change::Off);
    assert_eq!(page.text("#changed .output"), off.output);
    assert_eq!(off.output, "blue");
    assert!(page.text("#verdict").contains("another"));
    // The probabilities of the link are those of the model.
    let link = page.value("location.href").as_str().unwrap().to_owned();
    page.load(&link);
    page.wait("document.querySelector('#changed')");
    assert_eq!(page.text("#changed .output"), "blue");
    let shown = page.text("#changed td:last-child");
    assert!(
        shown.starts_with(&format!("{:.0} %", 100.0 * off.alternatives[0].probability)),
        "{shown}"
    );
    page.wait("!document.querySelector('button.main').disabled");
    page.click("[data-focus='switch-self-1-0']", false);
    page.wait("!document.querySelector('button.main').disabled && document.querySelector('.switch.uniform')");
    assert_eq!(
        page.text("#changed .output"),
        changed(Change::Uniform).output
    );
    // Every head on its own, the largest effect first.
    page.click("[data-focus='rank-off']", false);
    page.wait("document.querySelectorAll('#ranking tbody tr').length === 4 && !document.querySelector('progress')");
    let ranked = page.value("[...document.querySelectorAll('#ranking tbody tr')].map((row) => [...row.children].slice(1, 4).map((cell) => Number(cell.textContent)))");
    assert_eq!(
        (ranked[0][0].as_u64(), ranked[0][1].as_u64()),
        (Some(2), Some(1)),
        "{ranked}"
    );
    assert!(ranked[0][2].as_f64() > ranked[1][2].as_f64(), "{ranked}");
    // The other views follow, and the looks stand in the list.
    page.key("1");
    page.wait("document.querySelector('#main').dataset.view === 'overview'");
    assert!(page.text("#texts").contains("red green blue"));
    assert_eq!(page.errors, Vec::<String>::new());
}

#[test]
fn a_query_is_shown_with_its_products() {
    let server = Server::start(Config::default(), vec![], Some(Box::new(Small::new())));
    let Some(mut page) = Page::open() else { return };
    let looked = server.look(r#"{"text":"the red fox sees the dog"}"#).json();
    let url = format!(
        "{}#trace={}&view=query&map=1&heads=1&query=4",
        server.running.url, looked["trace"]
    );
    page.load(&url);
    let window = server.get("/api/trace/0/window?map=1&heads=1");
    let shown = page.value("[...document.querySelectorAll('#keys tbody tr')].map((row) => [...row.children].map((cell) => cell.textContent))");
    let shown = shown.as_array().unwrap();
    assert_eq!(shown.len(), 6);
    for (key, row) in shown.iter().enumerate() {
        let weight: f32 = row[5].as_str().unwrap().parse().unwrap();
        assert!(close(weight, window.floats()[4 * 6 + key]), "{row}");
        assert_eq!(row[4] == "hidden", key == 5, "{row}");
    }
    // A key by the keyboard: its dimensions add up to its product.
    page.value("document.querySelector('#keys [data-item]').focus()");
    page.key("ArrowDown");
    page.wait("document.activeElement.dataset.focus === 'key-1'");
    page.value("document.activeElement.click()");
    page.wait("location.hash.includes('key=1') && document.querySelector('#dimensions')");
    page.wait("document.querySelector('#keys tr.picked').rowIndex === 2");
    let products = page.value("[...document.querySelectorAll('#dimensions tbody tr')].map((row) => Number(row.children[5].textContent))");
    let sum: f64 = products
        .as_array()
        .unwrap()
        .iter()
        .map(|x| x.as_f64().unwrap())
        .sum();
    let told: f64 = shown[1][3].as_str().unwrap().parse().unwrap();
    assert!((sum - told).abs() < 5e-3, "{sum} {told}");
    assert!(page.text("#readout").contains("q · k"));
    // Another query, another order, and another head.
    page.click("[data-focus='query-2']", false);
    page.wait("document.querySelectorAll('#keys tbody tr').length === 6 && [...document.querySelectorAll('#keys td')].filter((cell) => cell.textContent === 'hidden').length === 3");
    page.click("[data-focus='order-weight']", false);
    page.wait("location.hash.includes('order=weight')");
    let weights = "[...document.querySelectorAll('#keys tbody tr')].map((row) => Number(row.children[5].textContent))";
    page.wait(&format!(
        "{weights}.every((weight, i, all) => !i || weight <= all[i - 1])"
    ));
    page.value("document.activeElement.blur()");
    page.key("ArrowLeft");
    page.wait("document.querySelector('#keys caption').textContent.includes('head 1')");
    let unnamed = page.value("[...document.querySelectorAll('canvas')].filter((node) => !node.getAttribute('aria-label')).length");
    assert_eq!(unnamed, 0);
    page.click("[data-focus='save-svg']", false);
    std::thread::sleep(std::time::Duration::from_millis(200));
    assert_eq!(page.text(".alert"), "");
    assert_eq!(page.errors, Vec::<String>::new());
}

#[test]
fn a_head_takes_the_weights_of_another_text() {
    let server = Server::start(Config::default(), vec![], Some(Box::new(Small::new())));
    let look = |text: &str, ablation: &str| {
        let body = format!(r#"{{"text":"{text}","ablation":[{ablation}]}}"#);
        server.look(&body)
    };
    let replace = |head: usize, text: &str| {
        format!(
            r#"{{"map":"decoder.self","layer":1,"head":{head},"change":{{"replace":{{"text":"{text}"}}}}}}"#
        )
    };
    let (text, other) = ("the red fox sees the dog", "a dog sees the");
    let window = |trace: &serde_json::Value, head: usize| {
        let path = format!("/api/trace/{trace}/window?map=1&heads={head}");
        server.get(&path).floats()
    };
    let plain = look(text, "").json();
    let given = window(&look(other, "").json()["trace"], 1);
    let changed = look(text, &replace(1, other)).json();
    // Both are causal: the rows of the shorter text are taken as they are, the others are those of the longer one.
    let (found, own) = (window(&changed["trace"], 1), window(&plain["trace"], 1));
    for query in 0..6 {
        for key in 0..6 {
            let expected = match (query < 4, key < 4) {
                (true, true) => given[query * 4 + key],
                (true, false) => 0.0,
                (false, _) => own[query * 6 + key],
            };
            let found = found[query * 6 + key];
            assert!(
                (found - expected).abs() < 2e-6,
                "{query} {key}: {found} {expected}"
            );
        }
    }
    let whole = look(text, &replace(1, "a cat and a red fox")).json();
    assert_ne!(whole["alternatives"], plain["alternatives"]);
    // By its own weights nothing changes, and no other head does by those of another.
    let same = look(text, &replace(1, text)).json();
    let probabilities = |looked: &serde_json::Value| -> Vec<f64> {
        let all = looked["alternatives"].as_array().unwrap().iter();
        all.map(|one| one["probability"].as_f64().unwrap())
            .collect()
    };
    for (a, b) in probabilities(&same).iter().zip(probabilities(&plain)) {
        assert!((a - b).abs() < 1e-6, "{a} {b}");
    }
    assert_eq!(window(&changed["trace"], 0), window(&plain["trace"], 0));
    for (wrong, told) in [
        (replace(1, "unknown"), "the other text: "),
        (replace(1, ""), "the other text: "),
        (replace(7, other), "no weights of this head"),
    ] {
        let refused = look(text, &wrong);
        assert_eq!(refused.status, 422);
        assert!(refused.text().contains(told), "{}", refused.text());
    }

    // On the page: the other text, a head that takes its weights, and all heads ranked by it.
    let Some(mut page) = Page::open() else { return };
    let hash = format!(
        "#view=ask&text={}&other={}",
        text.replace(' ', "+"),
        other.replace(' ', "+")
    );
    page.load(&format!("{}{hash}", server.running.url));
    let ready =
        "document.querySelector('.switch') && !document.querySelector('button.main').disabled";
    page.wait(ready);
    for shown in ["off", "uniform", "replace"] {
        page.click("[data-focus='switch-decoder.self-1-1']", false);
        page.wait(&format!(
            "{ready} && document.querySelector('.switch.{shown}')"
        ));
    }
    let best = changed["alternatives"][0]["probability"].as_f64().unwrap();
    let told = page.text("#changed td:last-child");
    assert!(
        told.starts_with(&format!("{:.0} % | ", 100.0 * best)),
        "{told}"
    );
    page.click("[data-focus='rank-replace']", false);
    page.wait("document.querySelectorAll('#ranking tbody tr').length === 4 && !document.querySelector('progress')");
    // Without the other text there is nothing to take.
    page.value("(() => { const field = document.querySelector('[data-focus=other]'); field.value = ''; field.dispatchEvent(new Event('change')); })()");
    page.wait(&format!("{ready} && !document.querySelector('.switch.replace') && !document.querySelector('[data-focus=rank-replace]')"));
    assert_eq!(page.text(".alert"), "");
    assert_eq!(page.errors, Vec::<String>::new());
}

#[test]
fn a_search_is_a_tree_with_maps() {
    let server = Server::start(Config::default(), vec![], Some(Box::new(Small::new())));
    let Some(mut page) = Page::open() else { return };
    let url = format!("{}#view=ask&text=the+red+fox&write=3", server.running.url);
    page.load(&url);
    page.wait("document.querySelector('#plain')");
    let tree = server.get("/api/trace/0/generation").json();
    page.wait("document.querySelector('#views a[href*=generation]') && !document.querySelector('button.main').disabled");
    page.click("[data-focus='view-generation']", false);
    page.wait("document.querySelector('.tree')");
    let taken = |i: u64| {
        tree["proposals"][i as usize]["text"]
            .as_str()
            .unwrap()
            .to_owned()
    };
    // Two hypotheses: what was taken, at first; then everything that was proposed.
    assert_eq!(
        page.value("document.querySelectorAll('.proposal').length"),
        3
    );
    page.click("[data-focus='order-all']", false);
    page.wait("document.querySelectorAll('.proposal').length === 24");
    // As files: what was taken, or everything.
    let file = |asked: &str| server.get(&format!("/api/trace/0/generation/picture?{asked}"));
    for (all, boxes) in [("format=svg", 3), ("format=svg&all=true", 24)] {
        let svg = file(all).text();
        assert_eq!(svg.matches("<rect").count(), 1 + boxes);
    }
    assert!(file("format=png").body.starts_with(b"\x89PNG"));
    let html = file("format=html").text();
    assert!(html.starts_with("<!DOCTYPE html>") && html.contains("<svg"));
    // By keys along the best path, and a step with its alternatives.
    let leaf = tree["hypotheses"][0]["leaf"].as_u64().unwrap();
    let middle = tree["proposals"][leaf as usize]["parent"].as_u64().unwrap();
    page.value(&format!(
        "document.querySelector('[data-node=\"{leaf}\"]').focus()"
    ));
    page.key("ArrowLeft");
    page.wait(&format!(
        "document.activeElement.dataset.node === '{middle}'"
    ));
    assert!(page.text("#readout").contains(&taken(middle)));
    page.value("document.activeElement.click()");
    page.wait(&format!("location.hash.includes('node={middle}')"));
    page.wait("document.querySelectorAll('#proposed tr').length === 8");
    page.wait("document.querySelector('#proposed').textContent.includes('ends hypothesis 1')");
    let shown = page.value("[...document.querySelectorAll('#proposed tr')].map((row) => [row.children[0].textContent, row.children[2].textContent])");
    let of_step = tree["proposals"].as_array().unwrap();
    let of_step: Vec<_> = of_step
        .iter()
        .filter(|one| one["parent"] == middle)
        .collect();
    for (row, one) in shown.as_array().unwrap().iter().zip(of_step) {
        assert_eq!(row[0], one["text"]);
        let told = row[1]
            .as_str()
            .unwrap()
            .trim_end_matches(" %")
            .parse::<f64>();
        assert!((told.unwrap() - 100.0 * one["probability"].as_f64().unwrap()).abs() < 0.6);
    }
    // The other hypothesis has its own map, and the link restores it all.
    page.click("[data-focus='hypothesis-1']", false);
    page.wait("location.hash.includes('trace=1') && document.querySelector('#hypotheses tr.picked th')?.textContent === '2' && document.querySelector('.heat canvas')");
    let link = page.value("location.href").as_str().unwrap().to_owned();
    page.load(&link);
    page.wait("document.querySelector('#hypotheses tr.picked th').textContent === '2' && document.querySelector('[aria-pressed=\"true\"].proposal')");
    let unnamed = page.value("[...document.querySelectorAll('button, input, canvas, select')].filter((node) => !(node.textContent.trim() || node.getAttribute('aria-label') || node.closest('label')?.textContent.trim())).length");
    assert_eq!(unnamed, 0);
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

#[test]
fn a_layer_and_a_weight_are_switched_off() {
    let server = Server::start(Config::default(), vec![], Some(Box::new(Small::new())));
    let Some(mut page) = Page::open() else { return };
    let text = "the red fox sees the dog";
    page.load(&format!(
        "{}#view=ask&text={}",
        server.running.url,
        text.replace(' ', "+")
    ));
    page.wait(
        "document.querySelector('#plain') && !document.querySelector('button.main').disabled",
    );
    let answer = |heads: Vec<AblatedHead>| {
        let input = Input {
            text: text.to_owned(),
            ..Input::default()
        };
        Small::new().look(&input, &Ablation { heads }).unwrap()
    };
    let head = |layer, head, change| AblatedHead {
        map: "decoder.self".to_owned(),
        layer,
        head,
        change,
    };
    let shown = |page: &mut Page| page.text("#changed td:last-child");
    let told = |seen: &Seen| {
        let best = seen.alternatives[0].probability;
        format!("{:.*} %", usize::from(best < 0.1), 100.0 * best)
    };
    // The number of a layer switches all of its heads.
    page.click("[data-focus='switch-decoder.self-1']", false);
    page.wait("document.querySelectorAll('.switch.off').length === 2 && document.querySelector('#changed') && !document.querySelector('button.main').disabled");
    let off = answer(vec![head(1, 0, Change::Off), head(1, 1, Change::Off)]);
    assert!(
        shown(&mut page).starts_with(&told(&off)),
        "{} {}",
        shown(&mut page),
        told(&off)
    );
    page.click("[data-focus='rank-layers']", false);
    page.wait("document.querySelectorAll('#ranking tbody tr').length === 2 && !document.querySelector('progress')");
    assert!(page.text("#ranking caption").starts_with("Layers"));
    // A weight is hidden from the view of its query, and restored.
    let id = page.value("new URLSearchParams(location.hash.slice(1)).get('trace')");
    let id = id.as_str().unwrap();
    page.load(&format!(
        "{}#view=query&text={}&trace={id}&map=1&heads=1&query=5&key=2",
        server.running.url,
        text.replace(' ', "+")
    ));
    page.wait("document.querySelector('[data-focus=hide]')");
    page.click("[data-focus='hide']", false);
    page.wait("document.querySelector('#hidden li') && document.querySelector('#changed') && !document.querySelector('button.main').disabled");
    let hidden = answer(vec![head(1, 1, Change::Hide { query: 5, key: 2 })]);
    assert!(
        shown(&mut page).starts_with(&told(&hidden)),
        "{} {}",
        shown(&mut page),
        told(&hidden)
    );
    assert_ne!(hidden.alternatives, answer(vec![]).alternatives);
    assert_eq!(hidden.trace.maps[1].weight(1, 5, 2), 0.0);
    page.click("#hidden button", false);
    page.wait("!document.querySelector('#hidden') && !document.querySelector('#changed')");
    assert_eq!(page.errors, Vec::<String>::new());
}

#[test]
fn gradients_times_attention_are_the_models() {
    let server = Server::start(Config::default(), vec![], Some(Box::new(Small::new())));
    let Some(mut page) = Page::open() else { return };
    let looked = server.look(r#"{"text":"the red fox sees"}"#).json();
    let at = |more: &str| {
        format!(
            "{}#trace={}&view=gradient&map=1&table=1{more}",
            server.running.url, looked["trace"]
        )
    };
    let weights = |heads: &str| {
        let window = server.get(&format!("/api/trace/0/window?map=1&heads={heads}"));
        window.floats()
    };
    let of_head = |head: usize| -> Vec<f32> {
        let weights = weights(&head.to_string());
        let place = |(at, &weight): (usize, &f32)| product(weight, head, at / 4, at % 4);
        weights.iter().enumerate().map(place).collect()
    };
    let shown = |page: &mut Page| -> Vec<f32> {
        let cells = page.value("[...document.querySelectorAll('figure tbody td')].map((cell) => Number(cell.textContent))");
        let cells = cells.as_array().unwrap().iter();
        cells.map(|cell| cell.as_f64().unwrap() as f32).collect()
    };
    page.load(&at("&heads=1"));
    page.wait("document.querySelectorAll('figure tbody td').length === 16");
    let expected = of_head(1);
    assert!(expected.iter().any(|&x| x < 0.0) && expected.iter().any(|&x| x > 0.0));
    for (found, expected) in shown(&mut page).into_iter().zip(&expected) {
        assert!(close(found, *expected), "{found} {expected}");
    }
    assert!(page.text("#output").contains("fox") && page.text("#output").contains("-0.25"));
    // Several heads are added up.
    page.load(&at(""));
    page.wait("document.querySelector('figcaption')?.textContent.includes('sum of 2')");
    let sums = of_head(0).into_iter().zip(expected).map(|(a, b)| a + b);
    for (found, expected) in shown(&mut page).into_iter().zip(sums) {
        assert!((found - expected).abs() < 1.1e-4, "{found} {expected}");
    }
    // A cell by the keyboard, then the head that leads the table is switched off.
    page.value("document.querySelector('.heat canvas').focus()");
    page.key("ArrowRight");
    page.wait("document.querySelector('#readout b')");
    assert!(page.text("main").contains("not explanation"));
    page.click(
        "#gradients tbody tr:first-child td:last-child button",
        false,
    );
    page.wait("document.querySelector('#main').dataset.view === 'ask' && location.hash.includes('off=off')");
    assert_eq!(page.errors, Vec::<String>::new());
}

#[test]
fn a_ranking_can_be_cancelled() {
    let (begin, begun) = std::sync::mpsc::channel();
    let server = Server::start(
        Config::default(),
        vec![],
        Some(Box::new(Slow { begin: begun })),
    );
    let Some(mut page) = Page::open() else { return };
    begin.send(()).unwrap();
    page.load(&format!("{}#view=ask&text=a+b+c", server.running.url));
    page.wait("document.querySelector('[data-focus=\"rank-off\"]:not(:disabled)')");
    page.click("[data-focus='rank-off']", false);
    begin.send(()).unwrap();
    begin.send(()).unwrap();
    page.wait("document.querySelectorAll('#ranking tbody tr').length === 2");
    assert_eq!(page.value("document.querySelector('progress').value"), 0.5);
    page.click("[data-focus='cancel']", false);
    page.wait("!document.querySelector('progress')");
    assert_eq!(
        page.value("document.querySelectorAll('#ranking tbody tr').length"),
        2
    );
    assert_eq!(page.text(".alert"), "");
    // What has been ranked can be saved, and the page can ask again.
    page.click("[data-focus='save-svg']", false);
    page.wait("!document.querySelector('button.main').disabled");
    assert_eq!(page.text(".alert"), "");
    assert_eq!(page.errors, Vec::<String>::new());
}

#[test]
fn hostile_texts_stay_texts() {
    let server = server();
    let Some(mut page) = Page::open() else { return };
    for hash in [
        "",
        "&table=1",
        "&view=head",
        "&view=head&mode=lines&table=1",
        "&view=text&chosen=0,1",
        "&view=compare&table=1",
        "&view=rollout",
        "&view=ask&text=%22%3E%3Cimg+src%3Dx+onerror%3Dwindow.hit%3D1%3E+%3Cscript%3Ewindow.hit%3D1%3C%2Fscript%3E",
    ] {
        page.load(&format!("{}#trace=3{hash}", server.running.url));
        if hash.contains("ask") {
            page.wait("document.querySelector('#plain')");
        }
        assert_eq!(page.value("window.hit === undefined && document.querySelectorAll('main img, main script, main b[onclick]').length === 0"), true, "{hash}");
        assert!(
            page.value("document.documentElement.scrollWidth <= innerWidth") == true,
            "{hash}: the page is too wide"
        );
        assert_eq!(page.errors, Vec::<String>::new(), "{hash}");
    }
}

/// Answers with texts that try to leave their place.
struct Hostile;

const HOSTILE: &str = "\"><img src=x onerror=\"window.hit=1\"><script>window.hit=1</script>";

impl Model for Hostile {
    fn name(&self) -> &str {
        HOSTILE
    }

    fn input(&self) -> InputKind {
        InputKind::Text
    }

    fn look(&mut self, _: &Input, _: &Ablation) -> Result<Seen, String> {
        let proposed = |parent, taken| Proposed {
            parent,
            text: HOSTILE.to_owned(),
            probability: 0.5,
            taken,
        };
        let trace = hostile();
        let hypothesis = |leaf| Hypothesis {
            leaf,
            trace: trace.clone(),
        };
        Ok(Seen {
            generation: Some(Generation {
                proposals: vec![
                    proposed(None, true),
                    proposed(None, false),
                    proposed(Some(0), true),
                ],
                hypotheses: vec![hypothesis(2), hypothesis(0)],
            }),
            ..Seen::new(trace.clone(), HOSTILE)
        })
    }

    fn shows_queries(&self) -> bool {
        true
    }

    fn query(&mut self, _: &Input, _: &Ablation, _: &QueryPlace) -> Result<QueryKeys, String> {
        Ok(QueryKeys {
            query: vec![1.0, f32::NAN],
            scale: 0.5,
            softcap: Some(30.0),
            positions: (0..10).collect(),
            keys: vec![f32::INFINITY; 20],
            values: vec![1.0; 20],
            scores: vec![Some(f64::NAN); 10],
            weights: vec![0.1; 10],
        })
    }
}

#[test]
fn hostile_answers_stay_texts() {
    let server = Server::start(Config::default(), vec![], Some(Box::new(Hostile)));
    let Some(mut page) = Page::open() else { return };
    server.look(r#"{"text":"a"}"#);
    for hash in [
        "&view=generation",
        "&view=generation&order=all&node=0",
        "&view=query&key=3",
        "&view=ask&text=a&off=hide%3A1%3A0+0+0+%3Ci%3Eself%3C%2Fi%3E",
    ] {
        page.load(&format!("{}#trace=0{hash}", server.running.url));
        if hash.contains("ask") {
            page.wait("document.querySelector('#hidden')");
        }
        assert_eq!(page.value("window.hit === undefined && document.querySelectorAll('main img, main script, main b[onclick]').length === 0"), true, "{hash}");
        assert_eq!(page.text(".alert"), "", "{hash}");
        assert!(
            page.value("document.documentElement.scrollWidth <= innerWidth") == true,
            "{hash}: the page is too wide"
        );
        assert_eq!(page.errors, Vec::<String>::new(), "{hash}");
    }
}

#[test]
fn keys_reach_everything() {
    let server = server();
    let Some(mut page) = Page::open() else { return };
    page.load(&server.running.url);
    page.key("?");
    page.wait("document.querySelector('#help').open");
    page.click("#help button", false);
    page.wait("!document.querySelector('#help').open");
    page.value("document.querySelector('[data-item]').focus()");
    page.key("ArrowRight");
    page.wait("document.activeElement.dataset.focus === 'cell-0-1'");
    page.key("ArrowDown");
    page.wait("document.activeElement.dataset.focus !== 'cell-0-1'");
    page.key("2");
    page.wait("document.querySelector('#main').dataset.view === 'head'");
    page.value("document.activeElement.blur()");
    page.key("ArrowRight");
    page.wait("location.hash.includes('heads=0')");
    page.key("ArrowRight");
    page.wait("location.hash.includes('heads=1')");
    page.key("ArrowDown");
    page.wait("location.hash.includes('map=2')");
    page.key("t");
    page.wait("document.querySelector('.numbers table')");
    page.key("a");
    page.wait("!location.hash.includes('heads')");
    // Back through the history to the overview.
    page.value("history.back()");
    page.wait("document.querySelector('#main').dataset.view === 'overview'");
    // Every control has a name.
    for hash in [
        "#",
        "#view=head",
        "#view=text",
        "#view=image&trace=2",
        "#view=rollout",
        "#view=compare",
        "#view=ask",
    ] {
        page.load(&format!("{}{hash}", server.running.url));
        let unnamed = page.value("[...document.querySelectorAll('button, a[href], select, input, canvas[tabindex], textarea')].filter((node) => !(node.textContent.trim() || node.getAttribute('aria-label') || node.closest('label')?.textContent.trim())).map((node) => node.outerHTML)");
        assert_eq!(unnamed, serde_json::json!([]), "{hash}");
    }
    // Light and dark.
    let ground = "getComputedStyle(document.body).backgroundColor";
    page.scheme(true);
    let dark = page.value(ground);
    page.click("#theme", false);
    assert_ne!(page.value(ground), dark);
}

/// Numbers for the reader, not a test: `cargo test --release -p regard-serve --test page -- --ignored --nocapture`.
#[test]
#[ignore = "measures 12 layers x 12 heads of 512 tokens in the page"]
fn measure_512_tokens() {
    let server = Server::start(
        Config::default(),
        vec![opened("large", large(512, 12, 12))],
        None,
    );
    let Some(mut page) = Page::open() else { return };
    let loaded = |page: &mut Page, hash: &str| {
        page.load(&format!("{}{hash}", server.running.url));
        page.value("performance.now()").as_f64().unwrap()
    };
    println!(
        "overview, first time (diagnostics of 144 heads): {:.0} ms",
        loaded(&mut page, "#")
    );
    println!("overview, again: {:.0} ms", loaded(&mut page, "#"));
    page.screenshot("large-overview");
    for (name, hash, selector, event) in [
        (
            "head, map",
            "#view=head&heads=3",
            ".heat canvas",
            "pointermove",
        ),
        (
            "head, mean of 12 heads",
            "#view=head",
            ".heat canvas",
            "pointermove",
        ),
        (
            "text",
            "#view=text&heads=3",
            ".word:nth-child(INDEX)",
            "mouseenter",
        ),
    ] {
        let load = loaded(&mut page, hash);
        page.screenshot(&format!("large-{}", &name[..4]));
        // From the event to the next frame, as the eye sees it, and the work alone.
        let script = format!(
            "(async () => {{ const work = [], seen = []; for (let i = 0; i < 60; i++) {{ await new Promise(requestAnimationFrame); const node = document.querySelector('{selector}'.replace('INDEX', 20 + 7 * i)); const b = node.getBoundingClientRect(); const from = performance.now(); node.dispatchEvent(new PointerEvent('{event}', {{ clientX: b.left + 150 + 9 * i, clientY: b.top + 150 + 8 * i, bubbles: '{event}' === 'pointermove' }})); work.push(performance.now() - from); await new Promise((r) => requestAnimationFrame(() => setTimeout(r))); seen.push(performance.now() - from); }} const sorted = (a) => a.sort((x, y) => x - y); return [sorted(work)[30], work[59], sorted(seen)[30], seen[59]]; }})()"
        );
        let times = page.value(&script);
        let ms = |i: usize| times[i].as_f64().unwrap();
        println!(
            "{name}: load {load:.0} ms; hover: work median {:.1} ms, most {:.1} ms; until painted median {:.1} ms, most {:.1} ms; {}",
            ms(0),
            ms(1),
            ms(2),
            ms(3),
            page.text("#readout")
        );
    }
    println!("{:?}", page.errors);
}

/// The views of a model that writes, in the same colours and widths.
#[test]
fn screenshots_of_a_model() {
    if std::env::var_os("REGARD_SCREENSHOTS").is_none() {
        return println!("skipped, as above");
    }
    let server = Server::start(Config::default(), vec![], Some(Box::new(Small::new())));
    let Some(mut page) = Page::open() else { return };
    server.look(r#"{"text":"the red fox sees the dog and a cat"}"#);
    server.look(r#"{"text":"the red fox","continuation":{"tokens":9}}"#);
    for (dark, width, suffix) in SCREENS {
        page.scheme(dark);
        page.size(width, 860);
        for (name, hash) in [
            ("query", "#trace=0&view=query&map=1&heads=1&query=7"),
            ("generation", "#trace=1&view=generation"),
            (
                "ask-hidden",
                "#view=ask&text=the+red+fox&write=4&off=hide%3A2%3A0+1+1+decoder.self%0Aoff+0+0+decoder.self",
            ),
            (
                "generation-all",
                "#trace=1&view=generation&order=all&node=12",
            ),
        ] {
            page.load(&format!("{}{hash}", server.running.url));
            if name.starts_with("ask") {
                page.wait("document.querySelector('#changed') && !document.querySelector('button.main').disabled");
            }
            std::thread::sleep(std::time::Duration::from_millis(200));
            page.screenshot(&format!("{name}-{suffix}"));
        }
    }
    assert_eq!(page.errors, Vec::<String>::new());
}

const SCREENS: [(bool, u32, &str); 3] = [
    (false, 1280, "light"),
    (true, 1280, "dark"),
    (false, 400, "narrow"),
];

#[test]
fn screenshots() {
    if std::env::var_os("REGARD_SCREENSHOTS").is_none() {
        return println!(
            "skipped: set REGARD_SCREENSHOTS to a folder to have pictures of every view"
        );
    }
    let server = server();
    let Some(mut page) = Page::open() else { return };
    let url = &server.running.url;
    let views = [
        ("overview", "#"),
        ("sorted", "#sort=entropy"),
        ("overview-table", "#table=1"),
        ("head", "#view=head&map=5&heads=2"),
        ("lines", "#view=head&map=5&heads=2&mode=lines"),
        ("head-beside", "#view=head&map=3&beside=5,4"),
        ("text", "#view=text&map=3&heads=1&chosen=3,5"),
        ("text-cross", "#view=text&map=5&chosen=4"),
        ("image", "#view=image&trace=2&map=1&heads=0&chosen=2"),
        ("image-class", "#view=image&trace=2&map=0"),
        ("compare", "#view=compare&trace2=1"),
        ("rollout", "#view=rollout&map=0&query=3"),
        ("ask", "#view=ask&text=the+quick+brown+fox"),
        (
            "ask-off",
            "#view=ask&text=the+quick+brown+fox&off=off+1+0+self",
        ),
        ("hostile", "#trace=3&view=head"),
        ("hostile-text", "#trace=3&view=text&chosen=0"),
    ];
    for (dark, width, suffix) in SCREENS {
        page.scheme(dark);
        page.size(width, 860);
        for (name, hash) in views {
            page.load(&format!("{url}{hash}"));
            if name == "ask" {
                page.wait("document.querySelector('[data-focus=\"rank-off\"]:not(:disabled)')");
                page.click("[data-focus='rank-off']", false);
                page.wait("document.querySelector('[data-focus=\"save-svg\"]')");
                page.value("document.querySelector('.matter').scrollIntoView()");
            }
            if name.starts_with("ask") {
                page.wait("document.querySelector('.switch') && !document.querySelector('button.main').disabled");
            }
            std::thread::sleep(std::time::Duration::from_millis(200));
            page.screenshot(&format!("{name}-{suffix}"));
        }
    }
    println!("{:?}", page.errors);
}

/// Looks at any image, and has no heads to change.
struct Seer;

impl Model for Seer {
    fn name(&self) -> &str {
        "seer"
    }

    fn input(&self) -> InputKind {
        InputKind::Image
    }

    fn changes_heads(&self) -> bool {
        false
    }

    fn look(&mut self, _: &Input, _: &Ablation) -> Result<Seen, String> {
        Ok(Seen::new(caption(), "seen"))
    }
}

#[test]
fn a_link_to_an_image_names_its_look() {
    let server = Server::start(Config::default(), vec![], Some(Box::new(Seer)));
    let Some(mut page) = Page::open() else { return };
    let url = &server.running.url;
    page.load(&format!("{url}#view=ask"));
    page.value(
        "{ const files = new DataTransfer(); files.items.add(new File(['x'], 'a.png')); \
         const input = document.querySelector('[data-focus=file]'); input.files = files.files; input.dispatchEvent(new Event('change')); }",
    );
    page.wait("document.querySelector('.drop').textContent.includes('a.png')");
    page.click("[data-focus=look]", false);
    page.wait("document.querySelector('#kept')");
    assert!(
        page.text("#kept").contains("opens look 0"),
        "{}",
        page.text("#kept")
    );
    assert!(page.text("#unchanged").contains("cannot be changed"));
    let hash = page.value("location.hash").as_str().unwrap().to_owned();
    page.load(&format!("{url}?again{hash}"));
    assert!(
        page.text("#kept")
            .contains("look 0, whose image the server has kept"),
        "{}",
        page.text("#kept")
    );
    page.load(&format!("{url}?gone#view=ask&trace=99"));
    assert!(page.text("#kept").contains("Look 99 is no longer kept"));
    assert_eq!(page.errors, Vec::<String>::new());
}

/// Looks at four cells, each by its share of the first four bytes, and says where the middle of what it looks at is.
struct Cells;

impl Model for Cells {
    fn name(&self) -> &str {
        "cells"
    }

    fn input(&self) -> InputKind {
        InputKind::ImageAndLabels
    }

    fn look(&mut self, input: &Input, ablation: &Ablation) -> Result<Seen, String> {
        let bytes: Vec<f32> = input
            .image
            .iter()
            .take(4)
            .map(|&byte| byte.into())
            .collect();
        let sum: f32 = bytes.iter().sum();
        let row: Vec<f32> = match ablation.of("self", 0, 0) {
            None => bytes.iter().map(|byte| byte / sum).collect(),
            Some(Change::Replace(given)) => given.row(0).unwrap().to_vec(),
            Some(_) => vec![0.25; 4],
        };
        let middle: f32 = (0u8..)
            .zip(&row)
            .map(|(at, weight)| f32::from(at) * weight)
            .sum();
        let cells = || Axis::Image {
            prefix: Tokens::default(),
            rows: 2,
            columns: 2,
        };
        let map = AttentionMap::new(Kind::SelfAttention, cells(), cells(), 1, row.repeat(4));
        let trace = Trace::new("cells", &input.text, "").with_map(map.map_err(|e| e.to_string())?);
        Ok(Seen::new(trace, format!("{}: {middle:.3}", input.text)))
    }
}

#[test]
fn a_head_takes_the_weights_of_another_image() {
    let server = Server::start(Config::default(), vec![], Some(Box::new(Cells)));
    let Some(mut page) = Page::open() else { return };
    page.load(&format!("{}#view=ask", server.running.url));
    assert!(page.text("form").contains("Labels, separated by commas"));
    page.value("{ const field = document.querySelector('[data-focus=text]'); field.value = 'cat, dog'; field.dispatchEvent(new Event('input')); }");
    let ready =
        "document.querySelector('#plain') && !document.querySelector('button.main').disabled";
    for (bytes, output) in [("aaab", "1.504"), ("baaa", "1.496")] {
        page.value(&format!(
            "{{ const files = new DataTransfer(); files.items.add(new File(['{bytes}'], '{bytes}.png')); \
             const input = document.querySelector('[data-focus=file]'); input.files = files.files; input.dispatchEvent(new Event('change')); }}"
        ));
        page.wait(&format!(
            "document.querySelector('.drop').textContent.includes('{bytes}')"
        ));
        page.click("[data-focus=look]", false);
        page.wait(&format!(
            "{ready} && document.querySelector('#plain').textContent.includes('cat, dog: {output}')"
        ));
    }
    // Other looks are offered, that of this image is not.
    assert_eq!(
        page.text("[data-focus=other] option"),
        "– | look 0: cat, dog"
    );
    page.value("{ const field = document.querySelector('[data-focus=other]'); field.value = '0'; field.dispatchEvent(new Event('change')); }");
    page.wait(&format!(
        "{ready} && document.querySelector('[data-focus=rank-replace]')"
    ));
    for (shown, output) in [("off", "1.500"), ("uniform", "1.500"), ("replace", "1.504")] {
        page.click("[data-focus='switch-self-0-0']", false);
        page.wait(&format!(
            "{ready} && document.querySelector('.switch.{shown}')"
        ));
        let told = page.text("#changed .output");
        assert_eq!(told, format!("cat, dog: {output}"));
    }
    page.click("[data-focus='rank-replace']", false);
    page.wait("document.querySelectorAll('#ranking tbody tr').length === 1 && !document.querySelector('progress')");
    assert!(page.text("#ranking tbody").contains("1.504"));
    assert!(page.text(".matter .note").contains("another image"));
    page.screenshot("ask-image");
    assert_eq!(page.text(".alert"), "");
    assert_eq!(page.errors, Vec::<String>::new());
}

/// A page that is a file has the same views with the same numbers, and no server.
#[test]
fn a_page_that_is_a_file_has_the_same_views() {
    let Some(mut page) = Page::open() else { return };
    let trace = large(20, 2, 2);
    let traces = [
        ("translation", translation(1)),
        ("other seed", translation(100)),
        ("caption", caption()),
        ("</script><b onclick=window.hit=1>", hostile()),
        ("unique words", trace.clone()),
    ];
    let traces = traces.map(|(name, trace)| (name.to_owned(), trace));
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("look.html");
    let text = regard_serve::page("<i>a</i> & look", traces.to_vec());
    let others = text.replace("http://www.w3.org/2000/svg", "");
    assert!(!others.contains("http:") && !others.contains("https:"));
    std::fs::write(&path, text).unwrap();
    let file = format!("file://{}", path.display());
    let server = server();
    for hash in [
        "#",
        "#sort=distance",
        "#table=1&words=0",
        "#pool=max",
        "#view=head",
        "#view=head&map=5&heads=1,2&by=max&least=20&table=1",
        "#view=head&mode=lines&beside=0",
        "#view=head&window=1,5,2,6",
        "#view=text&chosen=1,2",
        "#view=text&direction=to&map=5&chosen=0",
        "#view=image&trace=2&table=1",
        "#view=rollout",
        "#view=compare&trace2=1",
        "#trace=3",
    ] {
        page.load(&format!("{}{hash}", server.running.url));
        let mut shown = [page.text("main"), String::new()];
        page.load(&format!("{file}{hash}"));
        shown[1] = page.text("main");
        // Sixteen bits of a weight may round another way: all but digits is the same, and the buttons that ask the server are gone.
        let [served, alone] = shown.map(|text| {
            let text = text.replace("Export\nSVG\nPNG\nHTML page\n", "");
            text.replace(|c: char| c.is_ascii_digit() || c.is_whitespace(), "")
                .replace("ExportSVGPNGHTMLpage", "")
                .replace("</script><bonclick=window.hit=>", "hostile")
        });
        assert_eq!(served, alone, "{hash}");
        assert_eq!(page.text(".alert"), "", "{hash}");
        assert_eq!(page.errors, Vec::<String>::new(), "{hash}");
        assert_eq!(page.value("window.hit"), serde_json::Value::Null);
    }
    assert_eq!(page.value("document.title"), "<i>a</i> & look");
    // What is shown is saved without a server.
    for (hash, expected) in [
        ("#view=overview", "1·1"),
        ("#view=head&map=5&heads=1", "Fahrrad"),
        ("#view=text&chosen=1,2", "sum"),
        ("#view=image&trace=2", "<image"),
        ("#view=rollout", "Rollout of 2 layers"),
        ("#view=compare&trace2=1", "A minus B"),
        ("#view=head&trace=3", "&#60;"),
    ] {
        page.load(&format!("{file}{hash}"));
        let svg = page.saved();
        assert!(svg.contains(expected), "{hash} {svg}");
        assert_eq!(page.errors, Vec::<String>::new(), "{hash}");
        assert_eq!(page.value("window.hit"), serde_json::Value::Null);
    }
    // The weights are those of the trace.
    page.load(&format!("{file}#view=head&trace={UNIQUE}&map=1&heads=1"));
    for (x, y) in [(120.0, 90.0), (300.0, 500.0), (420.0, 420.0)] {
        page.point(".heat canvas", x, y);
        page.wait("document.querySelector('#readout b')");
        let (query, key, weight) = told(&page.text("#readout"));
        let expected = trace.maps[1].weight(1, query, key);
        assert!((weight - expected).abs() < 8e-5, "{weight} {expected}");
    }
    let table = "[...document.querySelectorAll('#rollout tbody tr')].map((row) => [row.children[2], row.children[4], row.children[6]].map((cell) => Number(cell.textContent)))";
    page.load(&format!("{file}#view=rollout&trace={UNIQUE}&map=1&query=7"));
    let rows = page.value(table);
    let layers: Vec<&AttentionMap> = trace.maps.iter().collect();
    let (joint, flow) = (rollout(&layers).unwrap(), flow_from(&layers, 7).unwrap());
    for (key, row) in rows.as_array().unwrap().iter().enumerate() {
        let found = |column: usize| row[column].as_f64().unwrap() as f32;
        assert!((found(1) - joint.weight(0, 7, key)).abs() < 1e-4, "{row}");
        assert!((found(2) - flow[key] as f32).abs() < 1e-4, "{row}");
    }
}
