//! The page that `.ci/web` builds, in headless Chromium: it says what the library says on this machine.

#[path = "../../serve/tests/common/chromium.rs"]
mod chromium;
#[path = "../../serve/tests/common/mod.rs"]
mod common;

use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::time::Instant;
use std::{env, fs, thread};

use burn::tensor::Device;
use chromium::Page;
use common::ask;
use regard_models::TransformerConfig;
use regard_serve::{Ablation, Input, Local, Model, models::Translations};
use regard_trace::{Kind, Tokens};
use regard_train::{Translator, model_from_bytes, tasks::Translation};
use serde_json::{Value, json};

const SENTENCES: [&str; 4] = [
    "A man in a red shirt is riding a bicycle.",
    "Two dogs are running through the snow.",
    "An old woman sells fruit at the market.",
    "Children play football on a green field near the river.",
];

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The folder of the page, or `None` with a line that says so where it was not built.
fn built() -> Option<PathBuf> {
    let folder = repository().join("target/page");
    if folder.join("regard_web_bg.wasm").is_file() {
        return Some(folder);
    }
    println!("skipped: the page is built by .ci/web, and was not");
    None
}

/// Serves the files of `folder` to whoever asks, as long as the tests run.
fn serve(folder: PathBuf) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let folder = folder.clone();
            thread::spawn(move || send(&folder, stream));
        }
    });
    address
}

fn send(folder: &Path, mut stream: TcpStream) -> Option<()> {
    let mut lines = BufReader::new(stream.try_clone().ok()?).lines();
    let first = lines.next()?.ok()?;
    lines
        .take_while(|line| line.as_ref().is_ok_and(|line| !line.is_empty()))
        .count();
    let path = first.split(' ').nth(1)?.split('?').next()?;
    let path = if path == "/" { "/index.html" } else { path };
    let kind = match path.rsplit('.').next()? {
        "html" => "text/html; charset=utf-8",
        "js" => "text/javascript",
        "css" => "text/css",
        "wasm" => "application/wasm",
        _ => "application/octet-stream",
    };
    let (status, body) = match fs::read(folder.join(&path[1..])) {
        Ok(body) => ("200 OK", body),
        Err(_) => ("404 Not Found", vec![]),
    };
    let head = format!(
        "HTTP/1.1 {status}\r\ncontent-type: {kind}\r\ncontent-length: {}\r\nconnection: close\r\n\r\n",
        body.len()
    );
    stream.write_all(head.as_bytes()).ok()?;
    stream.write_all(&body).ok()
}

/// The file of a model.
fn weights(model: &str) -> Vec<u8> {
    let path = repository()
        .join("crates/cli/models")
        .join(model)
        .join("model.safetensors");
    fs::read(path).unwrap()
}

/// The same on this machine.
fn local(model: &str) -> Local {
    regard_web::viewer(Some((model, &weights(model)))).unwrap()
}

fn look(local: &Local, asked: Value, image: &[u8]) -> Value {
    let body = [format!("{asked}\n").as_bytes(), image].concat();
    let answer = local.answer("POST", "api/look", body);
    assert_eq!(
        answer.status,
        200,
        "{}",
        String::from_utf8_lossy(&answer.body)
    );
    serde_json::from_slice(&answer.body).unwrap()
}

/// Puts a file of the repository into the input `selector`.
fn choose(page: &mut Page, selector: &str, path: &Path) {
    let document = page.call("DOM.getDocument", json!({}));
    let node = page.call(
        "DOM.querySelector",
        json!({ "nodeId": document["root"]["nodeId"], "selector": selector }),
    );
    page.call(
        "DOM.setFileInputFiles",
        json!({ "nodeId": node["nodeId"], "files": [path] }),
    );
}

fn no_errors(page: &Page) {
    assert!(page.errors.is_empty(), "{:?}", page.errors);
}

/// Loads an address, and waits for its translation: seconds.
fn translated(page: &mut Page, url: &str) -> f64 {
    let started = Instant::now();
    page.load(url);
    page.wait("document.querySelector('#plain .output')");
    started.elapsed().as_secs_f64()
}

#[test]
fn translations_are_those_of_the_library() {
    let Some(folder) = built() else { return };
    let Some(mut page) = Page::open() else { return };
    page.size(1200, 900);
    let address = serve(folder);
    let local = local("multi30k-en-de");
    // The page begins with the first one by itself. The browser has nothing of it yet.
    let seconds = translated(&mut page, &format!("http://{address}/"));
    println!("first load of a fresh browser to translation: {seconds:.2} s");
    assert_eq!(
        page.value("document.querySelector('textarea').value"),
        SENTENCES[0]
    );
    for (number, sentence) in SENTENCES.iter().enumerate() {
        let expected = look(&local, json!({ "text": sentence }), &[]);
        let text = sentence.replace(' ', "+");
        let url = format!("http://{address}/#view=ask&text={text}");
        let seconds = translated(&mut page, &url);
        println!("later load {} to translation: {seconds:.2} s", number + 1);
        assert_eq!(
            page.text("#plain .output"),
            expected["output"].as_str().unwrap()
        );
    }
    page.screenshot("web-translation");
    page.click("a[data-focus='view-head']", false);
    page.wait("document.querySelector('#main').dataset.view === 'head'");
    page.wait("document.querySelector('.heat, canvas')");
    page.screenshot("web-head");
    no_errors(&page);
}

/// Of a text that is longer than the translator reads, the look says how much was read.
#[test]
fn a_text_that_was_cut_is_told() {
    let name = "multi30k-en-de";
    let device = &Device::flex();
    let (model, mut description) = model_from_bytes::<TransformerConfig, Translation>(
        "transformer",
        &weights(name),
        name,
        device,
    )
    .unwrap();
    description.translate.max_source_tokens = 4;
    let translator = Translator::new(model, description, device).looking(true);
    let mut model = Translations::new(name, translator);
    let mut look = |text: &str| {
        let input = Input {
            text: text.to_owned(),
            ..Input::default()
        };
        model.look(&input, &Ablation::default()).unwrap()
    };
    let seen = look(SENTENCES[0]);
    let cut = seen.cut.unwrap();
    assert!(cut.read == 4 && cut.tokens > 8, "{cut:?}");
    // And the mark of the end.
    let mut maps = seen.trace.maps.iter();
    let own = maps.find(|map| map.kind() == Kind::EncoderSelf).unwrap();
    assert_eq!(own.keys().len(), cut.read + 1);
    assert_eq!(look("A man.").cut, None);
}

/// Every view draws its own files.
#[test]
fn what_is_shown_is_saved() {
    let Some(folder) = built() else { return };
    let Some(mut page) = Page::open() else { return };
    page.size(1200, 900);
    let address = serve(folder);
    page.load(&format!(
        "http://{address}/#view=ask&text=Two+dogs+are+running+through+the+snow."
    ));
    page.wait("document.querySelector('[data-focus=\"rank-off\"]:not(:disabled)')");
    // Nothing to be saved is said.
    page.click("#export [data-focus=save-svg]", false);
    page.wait("document.querySelector('#readout').textContent.includes('no picture')");
    page.click("[data-focus='rank-off']", false);
    page.wait("document.querySelector('#ranking') && !document.querySelector('progress')");
    assert!(page.saved().contains("Effect of each head"));
    for (view, shown, expected) in [
        ("overview", "canvas", "1·1"),
        ("head", ".heat canvas", "Hunde"),
        ("text", "[data-item]", "what they attend to"),
        ("rollout", ".heat canvas", "Rollout"),
        ("query", "#keys", "Products of"),
        ("generation", ".tree", "Hunde"),
        ("compare", ".heat canvas", "A minus B"),
        ("gradient", "#gradients", "Gradient times attention"),
        ("explain", "#worked", "<svg"),
    ] {
        page.click(&format!("a[data-focus='view-{view}']"), false);
        page.wait(&format!(
            "document.querySelector('#main').dataset.view === '{view}' && document.querySelector('#main {shown}')"
        ));
        let svg = page.saved();
        assert!(svg.contains(expected), "{view}: {svg}");
        no_errors(&page);
    }
}

#[test]
fn a_model_that_is_not_there_is_named() {
    let Some(folder) = built() else { return };
    let Some(mut page) = Page::open() else { return };
    let address = serve(folder);
    let url = format!("http://{address}/?model=absent");
    page.call("Page.navigate", json!({ "url": url }));
    page.wait("document.querySelector('#main .alert')");
    let said = page.text("#main .alert");
    assert!(said.contains("models/absent.safetensors"), "{said}");
}

/// Whatever is asked after the worker has failed is answered, too.
#[test]
fn a_program_that_is_not_there_is_told() {
    let Some(folder) = built() else { return };
    let Some(mut page) = Page::open() else { return };
    let without = tempfile::tempdir().unwrap();
    for file in fs::read_dir(folder).unwrap() {
        let path = file.unwrap().path();
        if path.is_file() && !path.ends_with("regard_web.js") {
            fs::copy(&path, without.path().join(path.file_name().unwrap())).unwrap();
        }
    }
    let address = serve(without.path().to_owned());
    let url = format!("http://{address}/?model=");
    page.call("Page.navigate", json!({ "url": url }));
    page.wait("document.querySelector('#main .alert')");
    for _ in 0..2 {
        let said = page.value("import('/common.js').then((page) => page.request('api/explain')).catch((error) => error.message)");
        let said = said.as_str().unwrap();
        assert!(said.starts_with("the page's worker failed"), "{said}");
    }
}

#[test]
fn images_are_described_and_shown() {
    let Some(folder) = built() else { return };
    let Some(mut page) = Page::open() else { return };
    let address = serve(folder);
    let local = local("scenes-captioner");
    // The page begins with the first one by itself.
    page.load(&format!("http://{address}/?model=scenes-captioner"));
    for name in ["scene.png", "digit.png"] {
        let path = repository().join("docs").join(name);
        let path = path.canonicalize().unwrap();
        let expected = look(&local, json!({}), &fs::read(&path).unwrap());
        if name != "scene.png" {
            choose(&mut page, "input[data-focus=file]", &path);
            page.wait(&format!(
                "document.querySelector('.drop').textContent.includes('{name}')"
            ));
            page.click("[data-focus=look]", false);
        }
        page.wait(&format!(
            "document.querySelector('#plain .output')?.textContent === {}",
            expected["output"]
        ));
        page.wait("document.querySelector('.drop img').naturalWidth > 0");
    }
    page.click("a[data-focus='view-image']", false);
    page.wait("document.querySelector('#main').dataset.view === 'image' && document.querySelector('#main img')?.naturalWidth > 0");
    page.screenshot("web-image");
    // The image is part of what is saved.
    let svg = page.saved();
    assert!(svg.contains("<image href=\"data:image/png"), "{svg}");
    assert!(!svg.contains("blob:"), "{svg}");
    no_errors(&page);
}

#[test]
fn mechanisms_are_explained_with_sliders() {
    let Some(folder) = built() else { return };
    let Some(mut page) = Page::open() else { return };
    let address = serve(folder);
    let local = regard_web::viewer(None).unwrap();
    let explained = |path: &str| -> Value {
        let answer = local.answer("GET", &format!("api/explain/{path}"), vec![]);
        serde_json::from_slice(&answer.body).unwrap()
    };
    let all = local.answer("GET", "api/explain", vec![]);
    let all: Value = serde_json::from_slice(&all.body).unwrap();
    page.load(&format!("http://{address}/?model=#view=explain"));
    let mut topics = 0;
    for entry in all
        .as_array()
        .unwrap()
        .iter()
        .flat_map(|group| group["entries"].as_array().unwrap())
    {
        let name = entry["name"].as_str().unwrap();
        let expected = &explained(name)["command"];
        page.value(&format!("location.hash = 'view=explain&topic={name}'"));
        page.wait(&format!(
            "document.querySelector('#command').textContent === {expected} && document.querySelector('#worked')?.naturalWidth > 0"
        ));
        topics += 1;
    }
    assert!(topics > 50, "{topics}");
    page.load(&format!(
        "http://{address}/?model=#view=explain&topic=scaled-dot&given=scale%3D2"
    ));
    page.wait("document.querySelector('#worked')?.naturalWidth > 0");
    assert!(
        page.text("#command").contains("--scale 2"),
        "{}",
        page.text("#command")
    );
    page.screenshot("web-explain");
    no_errors(&page);
}

#[test]
fn traces_are_opened() {
    let Some(folder) = built() else { return };
    let Some(mut page) = Page::open() else { return };
    let address = serve(folder);
    let words = Tokens::from_words("to be or not");
    let weights = vec![0.25; 16];
    let map = regard_trace::AttentionMap::new(
        regard_trace::Kind::SelfAttention,
        words.clone(),
        words,
        1,
        weights,
    );
    let trace = regard_trace::Trace::new("by hand", "to be or not", "").with_map(map.unwrap());
    let folder = tempfile::tempdir().unwrap();
    let names = ["good", "bad", "empty"].map(|name| format!("{name}.safetensors"));
    let [good, bad, empty] = names.map(|name| folder.path().join(name));
    regard_trace::write(&good, &[trace]).unwrap();
    regard_trace::write(&empty, &[]).unwrap();
    fs::write(&bad, b"no trace").unwrap();
    page.load(&format!("http://{address}/?model="));
    choose(&mut page, "#open", &bad);
    page.wait("document.querySelector('#readout .alert')");
    no_errors(&page);
    choose(&mut page, "#open", &empty);
    page.wait("document.querySelector('#readout .alert')?.textContent.includes('holds no traces')");
    no_errors(&page);
    choose(&mut page, "#open", &good);
    page.wait("document.querySelector('#main').dataset.view === 'overview'");
    assert!(page.text("#texts").contains("to be or not"));
    page.screenshot("web-trace");
    no_errors(&page);
}

/// A long text's maps are computed in the page from queries and keys, and are those that this machine computes.
#[test]
fn long_texts_are_opened() {
    let Some(folder) = built() else { return };
    let Some(mut page) = Page::open() else { return };
    let address = serve(folder);
    let folder = tempfile::tempdir().unwrap();
    common::long(folder.path(), 20_000);
    let path = folder.path().join("long.safetensors");
    page.load(&format!("http://{address}/?model="));
    choose(&mut page, "#open", &path);
    page.wait("document.querySelector('#main').dataset.view === 'overview'");
    page.click("a[data-focus='view-head']", false);
    page.wait("document.querySelector('#main').dataset.view === 'head' && document.querySelector('.heat canvas')");
    page.point(".heat canvas", 200.0, 300.0);
    page.wait("document.querySelector('#readout b')");
    page.screenshot("web-long");
    // On the scale that is shown, logarithmic from 1 of 20,000 on.
    let svg = page.saved();
    assert!(svg.contains("5.0e-5 to"), "{svg}");
    let colours = page.value(
        "saved[0].text().then(async (text) => { \
         const image = new Image(); \
         image.src = text.match(/href=\"([^\"]+)\"/)[1]; \
         await image.decode(); \
         const canvas = Object.assign(document.createElement('canvas'), { width: image.width, height: image.height }); \
         const context = canvas.getContext('2d'); \
         context.drawImage(image, 0, 0); \
         const pixels = context.getImageData(0, 0, canvas.width, canvas.height).data; \
         return new Set(new Uint32Array(pixels.buffer)).size; })",
    );
    assert!(colours.as_u64().unwrap() > 100, "{colours}");
    let local = regard_web::viewer(None).unwrap();
    let id = local.open("long", fs::read(&path).unwrap()).unwrap();
    for (pool, part) in [
        ("max", "cell=64&q0=0&q1=20000&k0=0&k1=20000"),
        ("mean", "cell=1&q0=19000&q1=19100&k0=0&k1=200"),
    ] {
        let asked = format!("window?map=0&heads=0&pool={pool}&{part}");
        let path = format!("api/trace/{id}/{asked}");
        let expected = local.answer("GET", &path, vec![]);
        let expected = expected.body.as_chunks().0.iter();
        let expected: Vec<f32> = expected.map(|&bytes| f32::from_le_bytes(bytes)).collect();
        let found = page.value(&format!(
            "import('/common.js').then((page) => page.request(`api/trace/${{page.traceOf('').id}}/{asked}`)).then((found) => found.arrayBuffer()).then((bytes) => [...new Float32Array(bytes)])"
        ));
        let found = found.as_array().unwrap();
        assert_eq!(found.len(), expected.len(), "{asked}");
        for (found, expected) in found.iter().zip(&expected) {
            let found = found.as_f64().unwrap() as f32;
            assert!(
                (found - expected).abs() <= 1e-5 * expected.abs(),
                "{asked}: {found}, expected {expected}"
            );
        }
    }
    no_errors(&page);
}
