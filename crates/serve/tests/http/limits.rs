//! Limits of bodies, time and connections, many requests at once, and stopping.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use regard_serve::{
    Ablation, Config, Contents, Explained, ExplainedGroup, Explainer, Gradients, Input, InputKind,
    Model, QueryKeys, QueryPlace, Seen,
};

use crate::common::{Answer, Chooser, Server, Slow, Small, ask, large, opened, translation};
use crate::model::Bytes;
use crate::server;

#[test]
fn bodies_have_a_limit() {
    let config = Config {
        max_body: 1000,
        ..Config::default()
    };
    let server = Server::start(config, vec![], Some(Box::new(Chooser)));
    let answer = server.look(&format!(r#"{{"text":"{}"}}"#, "x".repeat(2000)));
    assert_eq!(answer.status, 413, "{}", answer.text());
    assert_eq!(server.look(r#"{"text":"short"}"#).status, 200);
}

#[test]
fn a_slow_model_holds_nobody_else() {
    let (begin, begun) = channel();
    let config = Config {
        look_timeout: Duration::from_secs(1),
        queue: 1,
        ..Config::default()
    };
    let server = Server::start(
        config,
        vec![opened("t", translation(1))],
        Some(Box::new(Slow { begin: begun })),
    );
    let address = server.running.address;
    // The first is at work, one may wait, others are refused at once; all are answered while the model has not begun.
    let looks: Vec<_> = (0..6)
        .map(|_| {
            std::thread::spawn(move || ask(address, "POST", "/api/look", &[], br#"{"text":"a b"}"#))
        })
        .collect();
    assert_eq!(server.get("/api/trace/0/overview").status, 200);
    let answers: Vec<Answer> = looks.into_iter().map(|look| look.join().unwrap()).collect();
    assert!(answers.iter().all(|answer| answer.status == 503));
    let told = |sentence| {
        answers
            .iter()
            .filter(|answer| answer.text().contains(sentence))
            .count()
    };
    assert!(
        told("still at work") >= 1 && told("too many inputs wait") >= 3,
        "{answers:?}"
    );
    // The work goes on, and its trace is in the list when it is done.
    begin.send(()).unwrap();
    while server.get("/api/traces").json()["traces"]
        .as_array()
        .unwrap()
        .len()
        < 2
    {
        std::thread::sleep(Duration::from_millis(10));
    }
    // Stopping does not wait for a look that never ends.
    let late = server.look(r#"{"text":"a b","keep":false}"#).text();
    assert!(late.contains("its answer will be lost"), "{late}");
    server.stop().unwrap();
}

/// Gives gradients and queries when it is told to, and counts the gradients that it was asked for and those that it gave.
struct Late {
    model: Small,
    begin: Receiver<()>,
    asked: Arc<AtomicUsize>,
    computed: Arc<AtomicUsize>,
}

impl Late {
    fn new(begin: Receiver<()>) -> Self {
        Self {
            model: Small::new(),
            begin,
            asked: Arc::default(),
            computed: Arc::default(),
        }
    }
}

impl Model for Late {
    fn name(&self) -> &str {
        "late"
    }

    fn input(&self) -> InputKind {
        InputKind::Text
    }

    fn look(&mut self, input: &Input, ablation: &Ablation) -> Result<Seen, String> {
        self.model.look(input, ablation)
    }

    fn query(
        &mut self,
        input: &Input,
        ablation: &Ablation,
        place: &QueryPlace,
    ) -> Result<QueryKeys, String> {
        let _ = self.begin.recv();
        self.model.query(input, ablation, place)
    }

    fn gradients(&mut self, input: &Input, rank: usize) -> Result<Gradients, String> {
        self.asked.fetch_add(1, Ordering::Relaxed);
        let _ = self.begin.recv();
        self.computed.fetch_add(1, Ordering::Relaxed);
        self.model.gradients(input, rank)
    }
}

#[test]
fn gradients_that_come_too_late_are_there_when_they_are_asked_for_again() {
    let (begin, begun) = channel();
    let model = Late::new(begun);
    let computed = model.computed.clone();
    let config = Config {
        look_timeout: Duration::from_secs(1),
        ..Config::default()
    };
    let server = Server::start(config, vec![], Some(Box::new(model)));
    assert_eq!(server.look(r#"{"text":"the red fox"}"#).status, 200);
    let late = |path: &str, sentence: &str| {
        let answer = server.get(&format!("/api/trace/0/{path}"));
        assert_eq!(answer.status, 503, "{}", answer.text());
        assert!(answer.text().contains(sentence), "{}", answer.text());
        begin.send(()).unwrap();
    };
    late(
        "query?map=0&head=0&query=0",
        "queries and keys will be lost",
    );
    late("gradients", "ask again in a moment");
    let started = Instant::now();
    while server.get("/api/trace/0/gradients").status != 200 {
        assert!(started.elapsed() < Duration::from_secs(20));
        std::thread::sleep(Duration::from_millis(10));
    }
    assert_eq!(server.get("/api/trace/0/gradient?map=0").status, 200);
    assert_eq!(computed.load(Ordering::Relaxed), 1);
}

#[test]
fn views_do_not_wait_for_gradients() {
    let (begin, begun) = channel();
    let model = Late::new(begun);
    let asked = model.asked.clone();
    let server = Server::start(Config::default(), vec![], Some(Box::new(model)));
    assert_eq!(server.look(r#"{"text":"the red fox"}"#).status, 200);
    let address = server.running.address;
    let gradients =
        std::thread::spawn(move || ask(address, "GET", "/api/trace/0/gradients", &[], b"").status);
    while asked.load(Ordering::Relaxed) == 0 {
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(server.get("/api/trace/0/overview").status, 200);
    assert!(
        !gradients.is_finished(),
        "the overview came before the gradients"
    );
    begin.send(()).unwrap();
    assert_eq!(gradients.join().unwrap(), 200);
}

/// Explains when it is told to.
struct Thinker(Mutex<Receiver<()>>);

impl Explainer for Thinker {
    fn list(&self) -> Vec<ExplainedGroup> {
        vec![]
    }

    fn explain(&self, _: &str, _: &[(String, String)]) -> Result<Explained, String> {
        let _ = self.0.lock().unwrap().recv();
        Err("it has thought".to_owned())
    }
}

/// The connection is not cut without a word.
#[test]
fn a_view_that_takes_long_is_told() {
    let (begin, begun) = channel();
    let contents = Contents {
        explainer: Some(Box::new(Thinker(Mutex::new(begun)))),
        ..Contents::default()
    };
    let config = Config {
        look_timeout: Duration::from_millis(100),
        patience: Duration::from_millis(700),
        ..Config::default()
    };
    let server = Server::of(config, contents);
    let late = server.get("/api/explain/double");
    assert_eq!(late.status, 503, "{}", late.text());
    assert!(late.text().contains("ask again"), "{}", late.text());
    assert!(late.header("content-security-policy").is_some());
    begin.send(()).unwrap();
    begin.send(()).unwrap();
    let told = server.get("/api/explain/double").text();
    assert!(told.contains("it has thought"), "{told}");
}

/// Nothing is allocated or added up by what stands in the settings.
#[test]
fn settings_without_bounds_are_served() {
    let config = Config {
        look_timeout: Duration::MAX,
        queue: usize::MAX,
        connections: usize::MAX,
        patience: Duration::MAX,
        ..Config::default()
    };
    let server = Server::start(config, vec![], Some(Box::new(Chooser)));
    assert_eq!(server.look(r#"{"text":"a b"}"#).status, 200);
    assert_eq!(server.get("/api/trace/0/overview").status, 200);
}

#[test]
fn a_hundred_requests_at_once() {
    let server = server();
    let address = server.running.address;
    let paths = [
        "/api/trace/0/overview",
        "/api/trace/1/window?map=0",
        "/",
        "/api/trace/2/axes",
        "/api/trace/0/picture?view=head&map=5",
    ];
    let asked: Vec<_> = (0..100)
        .map(|i| {
            std::thread::spawn(move || ask(address, "GET", paths[i % paths.len()], &[], b"").status)
        })
        .collect();
    assert!(asked.into_iter().all(|one| one.join().unwrap() == 200));
}

/// Clients that say nothing, send a byte now and then, or take no answer hold all places, and are let go.
#[test]
fn slow_clients_do_not_hold_their_places() {
    let config = Config {
        connections: 6,
        patience: Duration::from_millis(300),
        look_timeout: Duration::from_millis(100),
        ..Config::default()
    };
    let server = Server::start(config, vec![opened("large", large(1024, 1, 1))], None);
    let address = server.running.address;
    let connect = || TcpStream::connect(address).unwrap();
    let silent = [connect(), connect()];
    let greedy: Vec<_> = (0..2)
        .map(|_| {
            let mut stream = connect();
            let window = "GET /api/trace/0/window HTTP/1.1\r\nHost: localhost\r\n\r\n";
            // Four megabytes each time, and none is read.
            stream.write_all(window.repeat(8).as_bytes()).unwrap();
            stream
        })
        .collect();
    let slow = (0..2).map(|_| {
        let mut stream = connect();
        std::thread::spawn(move || {
            let begun = Instant::now();
            let bytes = b"GET / HTTP/1.1\r\nHost: localhost\r\nX-Long: ".iter();
            for byte in bytes.chain(std::iter::repeat(&b'x')) {
                if stream.write_all(&[*byte]).is_err() {
                    break;
                }
                std::thread::sleep(Duration::from_millis(50));
                assert!(
                    begun.elapsed() < Duration::from_secs(20),
                    "it is never let go"
                );
            }
        })
    });
    let slow: Vec<_> = slow.collect();
    // All places are taken; yet these come through.
    let begun = Instant::now();
    for _ in 0..12 {
        assert_eq!(server.get("/api/traces").status, 200);
    }
    assert!(begun.elapsed() < Duration::from_secs(20));
    slow.into_iter().for_each(|one| one.join().unwrap());
    drop((silent, greedy));
}

/// A client that sends steadily may take longer than the patience.
#[test]
fn a_large_body_may_take_its_time() {
    let config = Config {
        patience: Duration::from_millis(400),
        look_timeout: Duration::from_millis(100),
        ..Config::default()
    };
    let server = Server::start(config, vec![], Some(Box::new(Bytes)));
    let mut stream = TcpStream::connect(server.running.address).unwrap();
    let line = r#"{"text":"a b"}"#;
    let parts = 12;
    let head = format!(
        "POST /api/look HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: {}\r\n\r\n{line}\n",
        line.len() + 1 + parts * 20_000
    );
    stream.write_all(head.as_bytes()).unwrap();
    for _ in 0..parts {
        std::thread::sleep(Duration::from_millis(100));
        stream.write_all(&[0; 20_000]).unwrap();
    }
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
}

#[test]
fn stopping_frees_the_address() {
    let server = server();
    let address = server.running.address;
    // A connection that was opened and says nothing does not hold it.
    let _idle = std::net::TcpStream::connect(address).unwrap();
    assert_eq!(server.get("/").status, 200);
    server.stop().unwrap();
    assert!(std::net::TcpStream::connect(address).is_err());
}
