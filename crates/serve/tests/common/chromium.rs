//! Headless Chromium by the DevTools protocol.
#![allow(dead_code)]

use std::io::{BufRead, BufReader};
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tempfile::TempDir;
use tungstenite::{Message, WebSocket};

/// A page that never answers fails its test after this.
const PATIENCE: Duration = Duration::from_secs(60);

/// One page of a browser of its own.
pub struct Page {
    browser: Child,
    socket: WebSocket<TcpStream>,
    next: u64,
    pub errors: Vec<String>,
    _folder: TempDir,
}

impl Page {
    /// `None`, with a line that says so, where there is no Chromium (`CHROMIUM` names it, if it has another name).
    pub fn open() -> Option<Self> {
        let named = std::env::var("CHROMIUM").ok().map(PathBuf::from);
        let usual = ["chromium", "chromium-browser", "google-chrome", "chrome"].iter();
        let path = std::env::var_os("PATH").unwrap_or_default();
        let usual = usual
            .flat_map(|name| std::env::split_paths(&path).map(move |folder| folder.join(name)));
        let Some(program) = named.into_iter().chain(usual).find(|path| path.is_file()) else {
            println!("skipped: there is no Chromium on this machine (set CHROMIUM to its path)");
            return None;
        };
        let folder = tempfile::tempdir().unwrap();
        let mut browser = Command::new(program)
            .args([
                "--headless=new",
                "--no-sandbox",
                "--disable-gpu",
                "--hide-scrollbars",
                "--no-first-run",
                "--disable-dev-shm-usage",
                "--disable-extensions",
                "--remote-debugging-port=0",
            ])
            .arg(format!("--user-data-dir={}", folder.path().display()))
            .arg("about:blank")
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("Chromium starts");
        let lines = BufReader::new(browser.stderr.take().unwrap());
        let mut lines = lines.lines();
        let port: u16 = loop {
            let line = lines.next().expect("Chromium tells its port").unwrap();
            if let Some(rest) = line.split("ws://127.0.0.1:").nth(1) {
                break rest.split('/').next().unwrap().parse().unwrap();
            }
        };
        // What it prints further is read, or it would wait.
        std::thread::spawn(move || lines.for_each(drop));
        let address = SocketAddr::from(([127, 0, 0, 1], port));
        let started = Instant::now();
        let url = loop {
            let pages = super::ask(address, "GET", "/json/list", &[], b"").json();
            let page = pages
                .as_array()
                .unwrap()
                .iter()
                .find(|page| page["type"] == "page");
            if let Some(page) = page {
                break page["webSocketDebuggerUrl"].as_str().unwrap().to_owned();
            }
            assert!(started.elapsed() < PATIENCE, "Chromium has no page");
            std::thread::sleep(Duration::from_millis(50));
        };
        let stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let (socket, _) = tungstenite::client(url, stream).expect("DevTools answers");
        let mut page = Self {
            browser,
            socket,
            next: 0,
            errors: vec![],
            _folder: folder,
        };
        page.call("Runtime.enable", json!({}));
        page.call("Log.enable", json!({}));
        page.call("Page.enable", json!({}));
        page.call(
            "Emulation.setFocusEmulationEnabled",
            json!({ "enabled": true }),
        );
        page.size(1280, 860);
        Some(page)
    }

    /// Calls a method and gives its result.
    pub fn call(&mut self, method: &str, parameters: Value) -> Value {
        self.next += 1;
        let call = json!({ "id": self.next, "method": method, "params": parameters });
        self.socket.send(Message::text(call.to_string())).unwrap();
        loop {
            let Message::Text(text) = self.socket.read().expect("Chromium answers") else {
                continue;
            };
            let mut message: Value = serde_json::from_str(&text).unwrap();
            match message["method"].as_str() {
                Some("Runtime.exceptionThrown") => self.errors.push(message["params"].to_string()),
                Some("Log.entryAdded") if message["params"]["entry"]["level"] == "error" => {
                    self.errors.push(message["params"]["entry"].to_string())
                }
                Some("Runtime.consoleAPICalled") if message["params"]["type"] == "error" => {
                    self.errors.push(message["params"].to_string())
                }
                _ => {}
            }
            if message["id"] == self.next {
                assert!(
                    message.get("error").is_none(),
                    "{method}: {}",
                    message["error"]
                );
                return message["result"].take();
            }
        }
    }

    pub fn size(&mut self, width: u32, height: u32) {
        self.call(
            "Emulation.setDeviceMetricsOverride",
            json!({ "width": width, "height": height, "deviceScaleFactor": 1, "mobile": false }),
        );
    }

    pub fn scheme(&mut self, dark: bool) {
        let value = if dark { "dark" } else { "light" };
        self.call(
            "Emulation.setEmulatedMedia",
            json!({ "features": [{ "name": "prefers-color-scheme", "value": value }] }),
        );
    }

    /// Loads an address anew and waits until its view is drawn.
    pub fn load(&mut self, url: &str) {
        self.call("Page.navigate", json!({ "url": "about:blank" }));
        self.call("Page.navigate", json!({ "url": url }));
        self.wait("document.body?.dataset.drawn !== undefined");
    }

    /// The value of an expression; promises are awaited.
    pub fn value(&mut self, expression: &str) -> Value {
        let mut result = self.call(
            "Runtime.evaluate",
            json!({ "expression": expression, "awaitPromise": true, "returnByValue": true }),
        );
        assert!(
            result.get("exceptionDetails").is_none(),
            "{expression}: {}",
            result["exceptionDetails"]
        );
        result["result"]["value"].take()
    }

    pub fn text(&mut self, selector: &str) -> String {
        let expression = format!(
            "[...document.querySelectorAll({})].map((node) => node.textContent).join(' | ')",
            json!(selector)
        );
        self.value(&expression)
            .as_str()
            .unwrap_or_default()
            .to_owned()
    }

    pub fn wait(&mut self, condition: &str) {
        let started = Instant::now();
        while self.value(&format!("Boolean({condition})")) != true {
            assert!(
                started.elapsed() < PATIENCE,
                "never true: {condition}\n{}\n{:?}",
                self.text("main"),
                self.errors
            );
            std::thread::sleep(Duration::from_millis(30));
        }
    }

    pub fn click(&mut self, selector: &str, shift: bool) {
        let expression = format!(
            "document.querySelector({}).dispatchEvent(new MouseEvent('click', {{ bubbles: true, cancelable: true, shiftKey: {shift} }}))",
            json!(selector)
        );
        self.value(&expression);
    }

    /// Moves the mouse to a place of an element, in pixels from its corner; where it is now.
    pub fn point(&mut self, selector: &str, x: f64, y: f64) -> (f64, f64) {
        let bounds = self.value(&format!("(() => {{ const node = document.querySelector({}); node.scrollIntoView({{ block: 'center' }}); const b = node.getBoundingClientRect(); return [b.left, b.top]; }})()", json!(selector)));
        let place = |i: usize| bounds[i].as_f64().unwrap();
        let (x, y) = (place(0) + x, place(1) + y);
        self.call(
            "Input.dispatchMouseEvent",
            json!({ "type": "mouseMoved", "x": x, "y": y }),
        );
        (x, y)
    }

    /// Presses the mouse at a place of an element.
    pub fn press(&mut self, selector: &str, x: f64, y: f64) {
        let (x, y) = self.point(selector, x, y);
        for kind in ["mousePressed", "mouseReleased"] {
            self.call(
                "Input.dispatchMouseEvent",
                json!({ "type": kind, "x": x, "y": y, "button": "left", "clickCount": 1 }),
            );
        }
    }

    pub fn key(&mut self, key: &str) {
        let text = if key.chars().count() == 1 { key } else { "" };
        self.call(
            "Input.dispatchKeyEvent",
            json!({ "type": "keyDown", "key": key, "code": key, "text": text }),
        );
        self.call(
            "Input.dispatchKeyEvent",
            json!({ "type": "keyUp", "key": key, "code": key }),
        );
    }

    /// What is shown, as the page without a server saves it: the text of an SVG that is whole; a PNG is saved beside it.
    pub fn saved(&mut self) -> String {
        self.value("window.make = URL.createObjectURL; window.saved = []; URL.createObjectURL = (file) => { saved.push(file); return '#'; }; 1");
        for (index, format) in ["svg", "png"].iter().enumerate() {
            self.click(&format!("#export [data-focus=save-{format}]"), false);
            self.wait(&format!("saved.length === {}", index + 1));
        }
        self.value("URL.createObjectURL = make; 1");
        // The page's policy forbids styles, of what it parses too.
        let wrong = "saved[0].text().then((text) => new DOMParser().parseFromString(text.replace(/ style=\"[^\"]*\"/g, ''), 'image/svg+xml').querySelectorAll('parsererror').length)";
        assert_eq!(self.value(wrong), 0);
        let wide = "createImageBitmap(saved[1]).then((image) => image.width > 100)";
        assert_eq!(self.value(wide), true);
        self.value("saved[0].text()").as_str().unwrap().to_owned()
    }

    /// Saves a picture of the page, if `REGARD_SCREENSHOTS` names a folder.
    pub fn screenshot(&mut self, name: &str) {
        let Some(folder) = std::env::var_os("REGARD_SCREENSHOTS") else {
            return;
        };
        let taken = self.call(
            "Page.captureScreenshot",
            json!({ "captureBeyondViewport": false }),
        );
        let png = decoded(taken["data"].as_str().unwrap());
        std::fs::write(PathBuf::from(folder).join(format!("{name}.png")), png).unwrap();
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        let _ = self.socket.send(Message::text(
            json!({ "id": 0, "method": "Browser.close" }).to_string(),
        ));
        let started = Instant::now();
        while self.browser.try_wait().is_ok_and(|ended| ended.is_none()) {
            if started.elapsed() > Duration::from_secs(5) {
                let _ = self.browser.kill();
                let _ = self.browser.wait();
                break;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

/// The bytes of base 64.
fn decoded(text: &str) -> Vec<u8> {
    const DIGITS: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let (mut bits, mut count, mut bytes) = (0u32, 0, vec![]);
    for digit in text
        .bytes()
        .filter_map(|byte| DIGITS.iter().position(|&digit| digit == byte))
    {
        bits = bits << 6 | digit as u32;
        count += 6;
        if count >= 8 {
            count -= 8;
            bytes.push((bits >> count) as u8);
        }
    }
    bytes
}
