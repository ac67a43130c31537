//! Pictures of every view and times of large maps, for the reader.

use regard_serve::Config;

use crate::chromium::Page;
use crate::common::{Server, Small, large, opened};
use crate::server;

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
