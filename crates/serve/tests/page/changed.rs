//! Heads, layers and weights that are changed, and rankings by such changes.

use regard_serve::{
    AblatedHead, Ablation, Alternative, Change, Config, Generation, Hypothesis, Input, InputKind,
    Model, Proposed, QueryKeys, QueryPlace, Seen,
};
use regard_trace::{AttentionMap, Axis, Bounds, Image, Kind, Region, Regions, Tokens, Trace};

use crate::chromium::Page;
use crate::common::{Brief, Chooser, Server, Slow, Small};
use crate::server;

#[test]
fn a_text_that_was_cut_is_told() {
    let server = Server::start(Config::default(), vec![], Some(Box::new(Brief)));
    let Some(mut page) = Page::open() else { return };
    page.load(&format!("{}#view=ask&text=a+b+c", server.running.url));
    page.wait("document.querySelector('#cut')");
    let told = "The text has 3 tokens; the model has read only the first 2.";
    assert_eq!(page.text("#cut"), told);
    page.load(&format!("{}#view=ask&text=a+b", server.running.url));
    page.wait("document.querySelector('#plain') && !document.querySelector('#cut')");
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

/// A weight of an earlier look is hidden in the text of that look, and heads are changed in the text that was sent.
#[test]
fn changes_are_of_the_text_that_was_looked_at() {
    let server = Server::start(Config::default(), vec![], Some(Box::new(Small::new())));
    let Some(mut page) = Page::open() else { return };
    let (first, second) = ("the red fox sees", "a dog and a cat");
    assert_eq!(server.look(&format!(r#"{{"text":"{first}"}}"#)).status, 200);
    let told = |heads: Vec<AblatedHead>| {
        let input = Input {
            text: first.to_owned(),
            ..Input::default()
        };
        let seen = Small::new().look(&input, &Ablation { heads }).unwrap();
        let best = seen.alternatives[0].probability;
        format!("{:.*} %", usize::from(best < 0.1), 100.0 * best)
    };
    page.load(&format!(
        "{}#view=query&trace=0&map=1&heads=1&query=3&key=1&text={}",
        server.running.url,
        second.replace(' ', "+")
    ));
    page.wait("document.querySelector('[data-focus=hide]')");
    page.click("[data-focus='hide']", false);
    let ready =
        "document.querySelector('#changed') && !document.querySelector('button.main').disabled";
    page.wait(ready);
    assert_eq!(
        page.value("document.querySelector('textarea').value"),
        first
    );
    let head = |layer, head, change| AblatedHead {
        map: "decoder.self".to_owned(),
        layer,
        head,
        change,
    };
    let hidden = head(1, 1, Change::Hide { query: 3, key: 1 });
    let shown = page.text("#changed td:last-child");
    assert!(shown.starts_with(&told(vec![hidden.clone()])), "{shown}");
    // What is typed is not asked yet.
    page.value("(() => { const area = document.querySelector('textarea'); area.value = 'dog'; area.dispatchEvent(new Event('input')); })()");
    page.click("[data-focus='switch-decoder.self-0-0']", false);
    page.wait(&format!(
        "{ready} && document.querySelector('#changed h2').textContent.includes('2 changes')"
    ));
    let both = told(vec![hidden, head(0, 0, Change::Off)]);
    let shown = page.text("#changed td:last-child");
    assert!(shown.starts_with(&both), "{shown}");
    assert_eq!(page.text(".alert"), "");
    assert_eq!(page.errors, Vec::<String>::new());
}

/// Looks at all words alike. What it answers is given by whether a head is changed.
struct Given(fn(bool) -> Vec<(&'static str, f64)>);

impl Model for Given {
    fn name(&self) -> &str {
        "given"
    }

    fn input(&self) -> InputKind {
        InputKind::Text
    }

    fn look(&mut self, input: &Input, ablation: &Ablation) -> Result<Seen, String> {
        let words = Tokens::from_words(&input.text);
        let weights = vec![1.0 / words.len() as f32; words.len() * words.len()];
        let map = AttentionMap::new(Kind::SelfAttention, words.clone(), words, 1, weights);
        let trace = Trace::new("given", &input.text, "").with_map(map.map_err(|e| e.to_string())?);
        let answers = (self.0)(!ablation.heads.is_empty());
        let output = answers.first().map_or("", |&(text, _)| text);
        let alternatives = answers.iter().map(|&(text, probability)| Alternative {
            text: text.to_owned(),
            probability,
        });
        Ok(Seen {
            alternatives: alternatives.collect(),
            ..Seen::new(trace, output)
        })
    }
}

/// A tokenizer may write two tokens alike: their effects do not hide each other.
#[test]
fn alternatives_of_one_text_count_together() {
    let answers = |changed| match changed {
        false => vec![("a", 0.6), ("b", 0.3), ("a", 0.1)],
        true => vec![("b", 0.5), ("a", 0.25), ("a", 0.25)],
    };
    let server = Server::start(Config::default(), vec![], Some(Box::new(Given(answers))));
    let Some(mut page) = Page::open() else { return };
    let url = &server.running.url;
    page.load(&format!("{url}#view=ask&text=x+y&off=off+0+0+self"));
    page.wait("document.querySelector('#verdict')");
    assert_eq!(
        page.text("#verdict"),
        "The output is another; effect 0.200."
    );
    assert_eq!(page.errors, Vec::<String>::new());
}

#[test]
fn no_output_is_not_told_as_no_effect() {
    let silent = Given(|_| vec![]);
    let server = Server::start(Config::default(), vec![], Some(Box::new(silent)));
    let Some(mut page) = Page::open() else { return };
    let url = &server.running.url;
    page.load(&format!("{url}#view=ask&text=x+y&off=off+0+0+self"));
    page.wait("document.querySelector('#verdict')");
    let told = page.text("#verdict");
    assert!(
        told.contains("no output") && !told.contains("same"),
        "{told}"
    );
    page.wait("document.querySelector('.switch.off')");
    let ranks = page.value("document.querySelectorAll('[data-focus=rank-off]').length");
    assert_eq!(ranks, 0);
    assert_eq!(page.errors, Vec::<String>::new());
}

/// Finds one object in any image, by a search that finds another one, too.
struct Finder;

impl Model for Finder {
    fn name(&self) -> &str {
        "finder"
    }

    fn input(&self) -> InputKind {
        InputKind::Image
    }

    fn look(&mut self, _: &Input, _: &Ablation) -> Result<Seen, String> {
        let bounds = Bounds {
            x: 0.0,
            y: 0.0,
            width: 2.0,
            height: 2.0,
        };
        let told = |error: regard_trace::TraceError| error.to_string();
        let queries = Axis::from(Regions::from(vec![
            Region::new("cat", bounds).map_err(told)?,
        ]));
        let keys = Axis::Image {
            prefix: Tokens::default(),
            rows: 1,
            columns: 2,
        };
        let map = AttentionMap::new(Kind::Cross, queries, keys, 1, vec![0.5; 2]).map_err(told)?;
        let image = Image::new(4, 4, 3, vec![127; 48]).map_err(told)?;
        let trace = (Trace::new("finder", "", "cat").with_image(image)).with_map(map);
        let proposals = ["cat", "dog"].map(|text| Proposed {
            parent: None,
            text: text.to_owned(),
            probability: 0.5,
            taken: true,
        });
        let hypotheses = [0, 1].map(|leaf| Hypothesis {
            leaf,
            trace: trace.clone(),
        });
        Ok(Seen {
            generation: Some(Generation {
                proposals: proposals.into(),
                hypotheses: hypotheses.into(),
            }),
            ..Seen::new(trace, "cat")
        })
    }

    fn shows_queries(&self) -> bool {
        true
    }

    fn query(&mut self, _: &Input, _: &Ablation, _: &QueryPlace) -> Result<QueryKeys, String> {
        Ok(QueryKeys {
            query: vec![1.0],
            scale: 1.0,
            softcap: None,
            positions: vec![0, 1],
            keys: vec![1.0; 2],
            values: vec![1.0; 2],
            scores: vec![Some(1.0); 2],
            weights: vec![0.5; 2],
        })
    }
}

/// The objects of a changed look are others than those by which a weight is hidden, and a link holds no image to hide a weight in.
#[test]
fn weights_of_objects_are_hidden_by_the_look_without_changes() {
    let server = Server::start(Config::default(), vec![], Some(Box::new(Finder)));
    let Some(mut page) = Page::open() else { return };
    let url = &server.running.url;
    page.load(&format!("{url}#view=ask"));
    page.value(
        "{ const files = new DataTransfer(); files.items.add(new File(['x'], 'a.png')); \
         const input = document.querySelector('[data-focus=file]'); input.files = files.files; input.dispatchEvent(new Event('change')); }",
    );
    page.wait("document.querySelector('.drop').textContent.includes('a.png')");
    let ready = "!document.querySelector('button.main').disabled";
    page.click("[data-focus=look]", false);
    page.wait(&format!("document.querySelector('.switch') && {ready}"));
    page.click("[data-focus='switch-decoder.cross-0-0']", false);
    page.wait(&format!("document.querySelector('#changed') && {ready}"));
    // Of the look without changes also where a further hypothesis is shown.
    for (trace, offered) in [(0, ""), (2, "!"), (1, ""), (3, "!")] {
        page.value(&format!("location.hash = 'view=query&trace={trace}'"));
        page.wait(&format!(
            "document.querySelector('#trace').value === '{trace}' && document.querySelector('#dimensions') && \
             {offered}document.querySelector('[data-focus=hide]')"
        ));
    }
    page.load(&format!("{url}#view=query&trace=0"));
    page.wait(
        "document.querySelector('#dimensions') && !document.querySelector('[data-focus=hide]')",
    );
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
