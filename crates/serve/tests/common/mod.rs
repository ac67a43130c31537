//! Traces with known numbers, a model whose heads have known effects, and a client of HTTP.
#![allow(dead_code, unused_imports)]

pub mod small;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::mpsc::{Receiver, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use regard_kernels::Attention;
use regard_serve::{
    Ablation, Alternative, Change, Config, Contents, Control, ControlKind, Cut, Explainable,
    Explained, ExplainedGroup, ExplainedStep, Explainer, Input, InputKind, Model, Opened, Running,
    Seen, ServeError, serve,
};
use regard_trace::long::{Piece, Texts};
use regard_trace::{AttentionMap, Axis, Image, Kind, LongMap, LongWriter, Token, Tokens, Trace};

pub use small::Small;

pub fn opened(name: &str, trace: Trace) -> Opened {
    Opened {
        name: name.to_owned(),
        trace,
        long: None,
        training: None,
    }
}

/// Numbers from 0 to 1 that look random and are always the same.
pub struct Numbers(pub u64);

impl Numbers {
    pub fn next(&mut self) -> f32 {
        self.0 = self
            .0
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        (self.0 >> 40) as f32 / (1u64 << 24) as f32
    }

    pub fn below(&mut self, bound: usize) -> usize {
        (self.next() * bound as f32) as usize % bound
    }
}

/// Rows that sum to 1: of head 0 a sink, of head 1 the token before, of others a peak or spread out. `causal` hides what comes after.
pub fn weights(heads: usize, queries: usize, keys: usize, causal: bool, seed: u64) -> Vec<f32> {
    let mut numbers = Numbers(seed);
    let mut weights = Vec::with_capacity(heads * queries * keys);
    for head in 0..heads {
        for query in 0..queries {
            let favourite = match head % 4 {
                0 => 0,
                1 => query.saturating_sub(1) % keys,
                2 => (query * keys / queries.max(1) + 1) % keys,
                _ => numbers.below(keys),
            };
            let row: Vec<f32> = (0..keys)
                .map(|key| match causal && key > query {
                    true => 0.0,
                    false => {
                        0.02 + numbers.next() * 0.3 / keys as f32
                            + f32::from(u8::from(key == favourite))
                                * (1.0 - 0.2 * (head % 4) as f32)
                    }
                })
                .collect();
            let sum: f32 = row.iter().sum();
            weights.extend(row.iter().map(|weight| weight / sum));
        }
    }
    weights
}

fn pieces(text: &[(&str, usize)]) -> Tokens {
    let tokens = text
        .iter()
        .map(|&(text, word)| Token::new(text).in_word(word));
    tokens.chain([Token::special("</s>")]).collect()
}

/// A Transformer that translates: two layers of encoder, decoder and cross-attention, four heads each.
pub fn translation(seed: u64) -> Trace {
    let source = pieces(&[
        ("A", 0),
        ("man", 1),
        ("in", 2),
        ("a", 3),
        ("red", 4),
        ("shirt", 5),
        ("is", 6),
        ("rid", 7),
        ("ing", 7),
        ("a", 8),
        ("bi", 9),
        ("cycle", 9),
        (".", 9),
    ]);
    let target = pieces(&[
        ("Ein", 0),
        ("Mann", 1),
        ("in", 2),
        ("einem", 3),
        ("roten", 4),
        ("Hemd", 5),
        ("fährt", 6),
        ("Fahr", 7),
        ("rad", 7),
        (".", 8),
    ]);
    let mut trace = Trace::new(
        "transformer",
        "A man in a red shirt is riding a bicycle.",
        "Ein Mann in einem roten Hemd fährt Fahrrad.",
    );
    for layer in 0..2 {
        for (kind, queries, keys) in [
            (Kind::EncoderSelf, &source, &source),
            (Kind::DecoderSelf, &target, &target),
            (Kind::Cross, &target, &source),
        ] {
            let causal = kind == Kind::DecoderSelf;
            let seed = seed + 10 * layer as u64 + kind as u64;
            let weights = weights(4, queries.len(), keys.len(), causal, seed);
            let map = AttentionMap::new(kind, queries.clone(), keys.clone(), 4, weights).unwrap();
            trace = trace.with_map(map.at_layer(layer));
        }
    }
    trace
}

/// A captioner over a grid of 7 x 7 cells, and a class token with cells that look at each other.
pub fn caption() -> Trace {
    let (height, width) = (56, 84);
    let pixels: Vec<u8> = (0..height * width)
        .flat_map(|i| {
            let (y, x) = (i / width, i % width);
            let inside = (12..30).contains(&y) && (10..34).contains(&x);
            let round = (y as i32 - 38).pow(2) + (x as i32 - 62).pow(2) < 150;
            if inside {
                [200, 50, 40]
            } else if round {
                [40, 90, 190]
            } else {
                [236, 232, 220]
            }
        })
        .collect();
    let grid = |prefix| Axis::Image {
        prefix,
        rows: 7,
        columns: 7,
    };
    let words = Tokens::from_words("a red square left of a blue circle");
    let captioned = weights(2, words.len(), 49, false, 5);
    let own = weights(2, 50, 50, false, 6);
    let class = grid(Tokens::from(vec![Token::special("[CLS]")]));
    Trace::new(
        "captioner",
        "scene.png",
        "a red square left of a blue circle",
    )
    .with_image(Image::new(height, width, 3, pixels).unwrap())
    .with_map(AttentionMap::new(Kind::EncoderSelf, class.clone(), class, 2, own).unwrap())
    .with_map(AttentionMap::new(Kind::Cross, words, grid(Tokens::default()), 2, captioned).unwrap())
}

/// Tokens that try to leave their place.
pub fn hostile() -> Trace {
    let texts = [
        "<script>window.hit=1</script>",
        "\"><img src=x onerror=\"window.hit=1\">",
        "\u{202e}evil\u{202c}",
        "'; window.hit=1; '",
        "\u{0}\u{1b}[2J",
        "{{7*7}}",
        "</style>",
        "&lt;b&gt;",
        "\u{feff}\u{200b}",
    ];
    let mut tokens: Vec<Token> = texts.iter().map(|text| Token::new(*text)).collect();
    tokens.push(Token::new("long".repeat(2_500)));
    let tokens = Tokens::from(tokens);
    let n = tokens.len();
    let map = AttentionMap::new(
        Kind::SelfAttention,
        tokens.clone(),
        tokens,
        2,
        weights(2, n, n, false, 3),
    )
    .unwrap();
    Trace::new("<b onclick=window.hit=1>model</b>", texts[1], texts[0])
        .with_map(map.named("<i>self</i>"))
}

/// The trace of a long text in `folder`: layer 3, heads 2 and 5, causal.
pub fn long(folder: &std::path::Path, length: usize) -> Opened {
    const DIM: usize = 16;
    let path = folder.join("long.safetensors");
    let tokens = Tokens::from_words(&(0..length).map(|i| format!("word{i} ")).collect::<String>());
    let map = LongMap::new(2, vec![1, 4], vec![0, 1], DIM);
    let mut writer = LongWriter::create(&path, "long model", "book", tokens, vec![map]).unwrap();
    let attention = Attention {
        causal: true,
        ..Attention::default()
    };
    for head in 0..2 {
        let mut numbers = Numbers(head as u64);
        let mut rows = || -> Vec<f32> { (0..length * DIM).map(|_| 3.0 * numbers.next()).collect() };
        let (query, key) = (rows(), rows());
        let piece = Piece {
            first: 0,
            query: &query,
            keys_from: 0,
            key: &key,
        };
        writer.piece(0, head, &attention, piece).unwrap();
    }
    writer.finish().unwrap();
    Opened::read(path).unwrap().remove(0)
}

/// The trace of an encoder-decoder in `folder`, which has read so many tokens and written so many.
pub fn long_source(folder: &std::path::Path, lengths: [usize; 2]) -> Opened {
    const DIM: usize = 16;
    let path = folder.join("source.safetensors");
    let words = |count: usize| {
        Tokens::from_words(&(0..count).map(|i| format!("word{i} ")).collect::<String>())
    };
    let [read, written] = lengths;
    let texts = Texts {
        tokens: words(read),
        others: vec![words(written), words(written)],
    };
    let map = |kind, texts| LongMap::new(0, vec![0], vec![0], DIM).between(kind, texts);
    let maps = vec![
        map(Kind::EncoderSelf, [0, 0]),
        map(Kind::DecoderSelf, [1, 1]),
        map(Kind::Cross, [2, 0]),
    ];
    let mut writer = LongWriter::create(&path, "t5", "book", texts, maps).unwrap();
    for (map, [queries, keys]) in [[read, read], [written, written], [written, read]]
        .into_iter()
        .enumerate()
    {
        let mut numbers = Numbers(map as u64);
        let mut rows =
            |count: usize| -> Vec<f32> { (0..count * DIM).map(|_| 3.0 * numbers.next()).collect() };
        let (query, key) = (rows(queries), rows(keys));
        let attention = Attention {
            causal: map == 1,
            ..Attention::default()
        };
        let piece = Piece {
            first: 0,
            query: &query,
            keys_from: 0,
            key: &key,
        };
        writer.piece(map, 0, &attention, piece).unwrap();
    }
    writer.finish().unwrap();
    Opened::read(path).unwrap().remove(0)
}

/// Many tokens: layers x heads.
pub fn large(length: usize, layers: usize, heads: usize) -> Trace {
    let tokens = Tokens::from_words(&(0..length).map(|i| format!("word{i} ")).collect::<String>());
    (0..layers).fold(Trace::new("large", "many words", ""), |trace, layer| {
        let weights = weights(heads, length, length, true, layer as u64);
        let map = AttentionMap::new(
            Kind::DecoderSelf,
            tokens.clone(),
            tokens.clone(),
            heads,
            weights,
        )
        .unwrap();
        trace.with_map(map.at_layer(layer))
    })
}

/// Head 0 of its two layers looks at the first word, head 1 at the last one; layer 1 counts three times as much. The output is the
/// word with most weight, and the probabilities are these weights.
pub struct Chooser;

impl Chooser {
    pub fn answer(text: &str, ablation: &Ablation) -> Seen {
        let words = Tokens::from_words(text);
        let n = words.len();
        let mut trace = Trace::new("chooser", text, "");
        let mut votes = vec![0.0f64; n];
        for layer in 0..2 {
            let mut all = vec![];
            for head in 0..2 {
                let change = ablation.of("self", layer, head);
                let row: Vec<f32> = (0..n)
                    .map(|key| match change {
                        Some(Change::Off) => 0.0,
                        Some(Change::Uniform) => 1.0 / n as f32,
                        Some(Change::Hide { key: hidden, .. }) if hidden == key => 0.0,
                        Some(Change::Hide { .. }) => 1.0 / (n - 1).max(1) as f32,
                        Some(Change::Replace(_)) => panic!("no test gives this model weights"),
                        None => f32::from(u8::from(key == if head == 0 { 0 } else { n - 1 })),
                    })
                    .collect();
                let count = [1.0, 3.0][layer] * [1.0, 0.5][head];
                votes
                    .iter_mut()
                    .zip(&row)
                    .for_each(|(vote, &w)| *vote += count * f64::from(w));
                (0..n).for_each(|_| all.extend(&row));
            }
            let map = AttentionMap::new(Kind::SelfAttention, words.clone(), words.clone(), 2, all)
                .unwrap();
            trace = trace.with_map(map.at_layer(layer));
        }
        let total: f64 = votes.iter().sum::<f64>().max(1e-9);
        let mut alternatives: Vec<Alternative> = (words.iter().zip(&votes))
            .map(|(word, vote)| Alternative {
                text: word.text.clone(),
                probability: vote / total,
            })
            .collect();
        alternatives.sort_by(|a, b| b.probability.total_cmp(&a.probability));
        let output = alternatives[0].text.clone();
        trace.target.clone_from(&output);
        Seen {
            alternatives,
            ..Seen::new(trace, output)
        }
    }
}

impl Model for Chooser {
    fn name(&self) -> &str {
        "chooser"
    }

    fn input(&self) -> InputKind {
        InputKind::Text
    }

    fn look(&mut self, input: &Input, ablation: &Ablation) -> Result<Seen, String> {
        match input.text.split_whitespace().next() {
            None => Err("there are no words: write some".to_owned()),
            Some("panic") => panic!("the test's model fails"),
            Some(_) => Ok(Self::answer(&input.text, ablation)),
        }
    }
}

/// Reads the first two words of a text, and tells if there are more.
pub struct Brief;

impl Model for Brief {
    fn name(&self) -> &str {
        "brief"
    }

    fn input(&self) -> InputKind {
        InputKind::Text
    }

    fn look(&mut self, input: &Input, ablation: &Ablation) -> Result<Seen, String> {
        let words: Vec<&str> = input.text.split(' ').collect();
        let (tokens, read) = (words.len(), words.len().min(2));
        Ok(Seen {
            cut: (tokens > read).then_some(Cut { tokens, read }),
            ..Chooser::answer(&words[..read].join(" "), ablation)
        })
    }
}

/// A model that begins when it is told to.
pub struct Slow {
    pub begin: Receiver<()>,
}

impl Model for Slow {
    fn name(&self) -> &str {
        "slow"
    }

    fn input(&self) -> InputKind {
        InputKind::Text
    }

    fn look(&mut self, input: &Input, ablation: &Ablation) -> Result<Seen, String> {
        self.begin
            .recv()
            .map_err(|_| "the test is over".to_owned())?;
        Ok(Chooser::answer(&input.text, ablation))
    }
}

/// Explains `double`: each number of `x` times `by`.
pub struct Double;

impl Explainer for Double {
    fn list(&self) -> Vec<ExplainedGroup> {
        let entries = vec![Explainable {
            name: "double".into(),
            aliases: vec!["twice".into()],
            about: "a product".into(),
        }];
        vec![ExplainedGroup {
            name: "Mechanisms".into(),
            entries,
        }]
    }

    fn explain(&self, name: &str, options: &[(String, String)]) -> Result<Explained, String> {
        if !["double", "twice"].contains(&name) {
            return Err(format!("there is no {name:?}; did you mean \"double\"?"));
        }
        let (mut x, mut by, mut mask) = (vec![1.0, 2.0], 2.0, "window:3 & causal".to_owned());
        let number = |text: &str| -> Result<f64, String> {
            let number = text.parse().ok().filter(|x: &f64| x.is_finite());
            number.ok_or_else(|| format!("{text:?} is no number"))
        };
        for (option, value) in options {
            match option.as_str() {
                "x" => x = value.split(',').map(number).collect::<Result<_, _>>()?,
                "by" => by = number(value)?,
                "mask" => mask.clone_from(value),
                _ => return Err(format!("there is no option {option:?}")),
            }
        }
        let text: Vec<String> = x.iter().map(f64::to_string).collect();
        let matrix = ControlKind::Matrix {
            rows: vec!["<b>x</b>".into()],
            least: -5.0,
            most: 5.0,
            step: 0.5,
        };
        let slider = ControlKind::Slider {
            least: 0.0,
            most: 10.0,
            step: 0.5,
        };
        let usages = vec!["window:WIDTH".into()];
        Ok(Explained {
            name: "double".into(),
            summary: "a product".into(),
            formula: "y = by x".into(),
            source: "Here 2026".into(),
            command: format!("regard explain double {options:?}"),
            steps: vec![ExplainedStep {
                name: "y".into(),
                formula: "by x".into(),
                columns: x.iter().map(f64::to_string).collect(),
                rows: vec![(
                    "y".into(),
                    x.iter().map(|x| Some(by * x)).chain([None]).collect(),
                )],
            }],
            remarks: vec![format!("the mask is {mask}")],
            svg: format!(
                "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 90 30\" width=\"90\" height=\"30\"><text y=\"20\">{by}</text></svg>"
            ),
            text: format!("times {by}"),
            controls: vec![
                Control::new("by", "the factor", slider, by.to_string()),
                Control::new("x", "numbers", matrix, text.join(",")),
                Control::new("mask", "a mask", ControlKind::Text { usages }, mask),
            ],
        })
    }
}

/// A server of worked examples alone.
pub fn explaining() -> Server {
    let contents = Contents {
        explainer: Some(Box::new(Double)),
        ..Contents::default()
    };
    Server::of(Config::default(), contents)
}

/// A server on a free port, stopped when dropped.
pub struct Server {
    pub running: Running,
    thread: Option<JoinHandle<Result<(), ServeError>>>,
}

impl Server {
    pub fn start(config: Config, traces: Vec<Opened>, model: Option<Box<dyn Model>>) -> Self {
        Self::of(
            config,
            Contents {
                traces,
                model,
                explainer: None,
            },
        )
    }

    pub fn of(config: Config, contents: Contents) -> Self {
        let (sender, receiver) = channel();
        let thread = std::thread::spawn(move || {
            serve(config, contents, |running| sender.send(running).unwrap())
        });
        Self {
            running: receiver.recv().expect("the server starts"),
            thread: Some(thread),
        }
    }

    pub fn stop(mut self) -> Result<(), ServeError> {
        self.running.stop.now();
        self.thread.take().unwrap().join().unwrap()
    }

    pub fn get(&self, path: &str) -> Answer {
        self.ask("GET", path, &[], b"")
    }

    pub fn look(&self, body: &str) -> Answer {
        self.ask("POST", "/api/look", &[], body.as_bytes())
    }

    /// A request with the usual `Host`, unless `headers` has one.
    pub fn ask(&self, method: &str, path: &str, headers: &[(&str, &str)], body: &[u8]) -> Answer {
        ask(self.running.address, method, path, headers, body)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.running.stop.now();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    pub head: String,
    pub body: Vec<u8>,
}

impl Answer {
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    pub fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|_| panic!("{}", self.text()))
    }

    pub fn header(&self, name: &str) -> Option<&str> {
        let lines = self.head.lines().filter_map(|line| line.split_once(": "));
        lines
            .filter(|(key, _)| key.eq_ignore_ascii_case(name))
            .map(|(_, value)| value)
            .next()
    }

    pub fn floats(&self) -> Vec<f32> {
        let (chunks, _) = self.body.as_chunks::<4>();
        chunks
            .iter()
            .map(|&bytes| f32::from_le_bytes(bytes))
            .collect()
    }
}

pub fn ask(
    address: SocketAddr,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: &[u8],
) -> Answer {
    let mut stream = TcpStream::connect(address).expect("the server listens");
    stream
        .set_read_timeout(Some(Duration::from_secs(60)))
        .unwrap();
    let mut head = format!(
        "{method} {path} HTTP/1.1\r\nConnection: close\r\nContent-Length: {}\r\n",
        body.len()
    );
    if !headers.iter().any(|(name, _)| *name == "Host") {
        head.push_str(&format!("Host: {address}\r\n"));
    }
    for (name, value) in headers {
        head.push_str(&format!("{name}: {value}\r\n"));
    }
    head.push_str("\r\n");
    stream.write_all(head.as_bytes()).unwrap();
    // A server that refuses a large body may close before it has read it.
    let _ = stream.write_all(body);
    let mut answer = vec![];
    let mut part = [0; 65536];
    // Chromium leaves the connection open, so the stated length is the end.
    while let Ok(read @ 1..) = stream.read(&mut part) {
        answer.extend(&part[..read]);
        let head = answer.windows(4).position(|window| window == b"\r\n\r\n");
        let stated = head.and_then(|end| {
            let head = String::from_utf8_lossy(&answer[..end]).to_ascii_lowercase();
            let length = head
                .split("content-length:")
                .nth(1)?
                .lines()
                .next()?
                .trim()
                .parse::<usize>();
            Some(end + 4 + length.ok()?)
        });
        if stated.is_some_and(|length| answer.len() >= length) {
            break;
        }
    }
    let end = answer
        .windows(4)
        .position(|window| window == b"\r\n\r\n")
        .unwrap_or_else(|| panic!("no answer to {method} {path}"));
    let head = String::from_utf8_lossy(&answer[..end]).into_owned();
    let mut body = answer[end + 4..].to_vec();
    if head
        .to_ascii_lowercase()
        .contains("transfer-encoding: chunked")
    {
        body = unchunked(&body);
    }
    Answer {
        status: head[9..12].parse().unwrap(),
        head,
        body,
    }
}

fn unchunked(mut body: &[u8]) -> Vec<u8> {
    let mut whole = vec![];
    while let Some(end) = body.windows(2).position(|window| window == b"\r\n") {
        let size = usize::from_str_radix(std::str::from_utf8(&body[..end]).unwrap(), 16).unwrap();
        if size == 0 {
            break;
        }
        whole.extend(&body[end + 2..end + 2 + size]);
        body = &body[end + 4 + size..];
    }
    whole
}
