//! The page in headless Chromium: each view opens, and shows the numbers that the trace holds.

mod common;
#[path = "common/chromium.rs"]
mod chromium;

use chromium::Page;
use common::*;
use regard_serve::Config;

fn server() -> Server {
    let traces = vec![opened("translation", translation(1)), opened("other seed", translation(100)), opened("caption", caption()), opened("hostile", hostile())];
    Server::start(Config::default(), traces, Some(Box::new(Chooser)))
}

#[test]
fn screenshots() {
    if std::env::var_os("REGARD_SCREENSHOTS").is_none() {
        return println!("skipped: set REGARD_SCREENSHOTS to a folder to have pictures of every view");
    }
    let server = server();
    let Some(mut page) = Page::open() else { return };
    let url = &server.running.url;
    let views = [
        ("overview", "#"), ("sorted", "#sort=entropy"), ("overview-table", "#table=1"), ("head", "#view=head&map=5&heads=2"), ("lines", "#view=head&map=5&heads=2&mode=lines"),
        ("head-beside", "#view=head&map=3&beside=5,4"), ("text", "#view=text&map=3&heads=1&chosen=3,5"), ("text-cross", "#view=text&map=5&chosen=4"),
        ("image", "#view=image&trace=2&map=1&heads=0&chosen=2"), ("image-class", "#view=image&trace=2&map=0"), ("compare", "#view=compare&trace2=1"), ("ask", "#view=ask&text=the+quick+brown+fox"),
        ("ask-off", "#view=ask&text=the+quick+brown+fox&off=off+1+0+self"), ("hostile", "#trace=3&view=head"), ("hostile-text", "#trace=3&view=text&chosen=0"),
    ];
    for (dark, width, suffix) in [(false, 1280, "light"), (true, 1280, "dark"), (false, 400, "narrow")] {
        page.scheme(dark);
        page.size(width, 860);
        for (name, hash) in views {
            page.load(&format!("{url}{hash}"));
            if name.starts_with("ask") {
                page.wait("document.querySelector('.switch') && !document.querySelector('button.main').disabled");
            }
            std::thread::sleep(std::time::Duration::from_millis(200));
            page.screenshot(&format!("{name}-{suffix}"));
        }
    }
    println!("{:?}", page.errors);
}
