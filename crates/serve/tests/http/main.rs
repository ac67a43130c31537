//! The server, spoken to over HTTP.
//!
//! | module | what is tested |
//! |---|---|
//! | [`files`] | views and tables that become files, and files of traces that are opened |
//! | [`guard`] | headers, hosts, origins, tokens, unsafe settings |
//! | [`limits`] | limits of bodies, time and connections, many requests at once, and stopping |
//! | [`model`] | changed heads, queries, searches, images, gradients, and which looks are kept |
//! | [`views`] | numbers of traces, of long maps and of worked examples, and requests that are refused |

#[path = "../common/mod.rs"]
mod common;
mod files;
mod guard;
mod limits;
mod model;
mod views;

use common::{Chooser, Server, caption, hostile, opened, translation};
use regard_serve::Config;

fn server() -> Server {
    let traces = vec![
        opened("translation", translation(1)),
        opened("caption", caption()),
        opened("hostile", hostile()),
    ];
    Server::start(Config::default(), traces, Some(Box::new(Chooser)))
}
