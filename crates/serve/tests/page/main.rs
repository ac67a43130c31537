//! The page in headless Chromium: each view opens, and shows the numbers that the trace holds.
//!
//! | module | what is tested |
//! |---|---|
//! | [`changed`] | heads, layers and weights that are changed, and rankings by such changes |
//! | [`hostile_texts`] | texts of traces and of models that try to leave their place |
//! | [`model`] | queries with their keys, searches, gradients, looks at an image |
//! | [`numbers`] | numbers that are shown are those of the trace |
//! | [`screenshots`] | pictures of every view and times of large maps, for the reader |
//! | [`views`] | every view opens, by addresses and by keys, from a server and from a file |

mod changed;
#[path = "../common/chromium.rs"]
mod chromium;
#[path = "../common/mod.rs"]
mod common;
mod hostile_texts;
mod model;
mod numbers;
mod screenshots;
mod views;

use common::{Chooser, Server, ask, caption, hostile, large, opened, translation};
use regard_serve::Config;

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
