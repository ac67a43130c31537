//! Every view opens, by addresses and by keys, from a server and from a file.

use regard_serve::{Config, Opened};
use regard_trace::AttentionMap;
use regard_trace::diagnose::{flow_from, rollout};

use crate::chromium::Page;
use crate::common::{Server, caption, explaining, hostile, large, opened, translation};
use crate::{UNIQUE, server, told};

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
        "#view=compare&map=0&map2=1",
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
        // Maps of other lengths have no difference, and a trace that is not there is told; nothing else is wrong.
        let alert = page.text(".alert");
        let told = match hash {
            "#view=compare&map=0&map2=1" => "No difference",
            _ if hash.contains("trace=77") => "There is no trace 77",
            _ => "",
        };
        assert!(
            alert.starts_with(told) && alert.is_empty() == told.is_empty(),
            "{hash}: {alert}"
        );
        assert_eq!(page.errors, Vec::<String>::new(), "{hash}");
    }
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

/// Of very many heads the first have buttons, and those that are chosen, by their numbers.
#[test]
fn a_head_of_many_is_chosen_by_its_number() {
    let traces = vec![opened("many", large(3, 1, 200))];
    let server = Server::start(Config::default(), traces, None);
    let Some(mut page) = Page::open() else { return };
    page.load(&format!("{}#view=head", server.running.url));
    page.wait("document.querySelector('[data-focus=heads-number]')");
    let buttons = "document.querySelectorAll('.chips button').length";
    assert_eq!(page.value(buttons), 65);
    page.value("{ const field = document.querySelector('[data-focus=heads-number]'); field.value = '150'; field.dispatchEvent(new Event('change')); }");
    page.wait(
        "location.hash.includes('heads=149') && document.querySelector('[data-focus=heads-149]')",
    );
    assert_eq!(page.value(buttons), 66);
    let pressed = "document.querySelector('[data-focus=heads-149]').getAttribute('aria-pressed')";
    assert_eq!(page.value(pressed), "true");
    assert_eq!(page.errors, Vec::<String>::new());
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
        ("#view=image&trace=2", "data:image/png"),
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
    // As it is shown: smooth, by cell, or the image alone; above a threshold.
    let mut saved = |hash: &str| {
        page.load(&format!("{file}{hash}"));
        page.saved()
    };
    let [smooth, cells, none] = ["smooth", "cells", "none"]
        .map(|overlay| saved(&format!("#view=image&trace=2&map=0&overlay={overlay}")));
    let crisp = |svg: &str| svg.matches("image-rendering: pixelated").count();
    assert_eq!(crisp(&cells), crisp(&smooth) + 1);
    let images = |svg: &str| svg.matches("<image").count();
    assert_eq!([images(&smooth), images(&none)], [2, 1]);
    let head = format!("#view=head&trace={UNIQUE}&map=1&heads=1");
    assert_ne!(saved(&head), saved(&format!("{head}&least=50")));
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
