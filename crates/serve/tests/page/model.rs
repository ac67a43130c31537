//! What a model is asked for: queries with their keys, searches, gradients, looks at an image.

use regard_serve::{Ablation, Config, Input, InputKind, Model, Seen};

use crate::chromium::Page;
use crate::close;
use crate::common::{Server, Small, caption, small::product};

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
    page.wait("location.hash.includes('text=the+red+fox+sees')");
    assert_eq!(page.errors, Vec::<String>::new());
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
    // What another model was asked for is not sent to this one.
    page.load(&format!(
        "{url}#view=ask&text=a&target=b&write=9&off=off+0+0+self"
    ));
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
    assert_eq!(page.text(".alert"), "");
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
