//! What the model looked at: in the terminal, as files, and again by `regard view`.

use std::{fs, path::Path};

use regard_trace::{AttentionMap, Kind, Tokens, Trace};
use tempfile::tempdir;

use crate::{inside, refused, regard, run, stdout, text, trained};

const PNG: &[u8] = b"\x89PNG\r\n\x1a\n";

#[test]
fn a_heat_map_is_printed_when_it_is_asked_for() {
    let with = |when: &str| {
        let assert = run(["translate", "-m", trained(), "--attention", when, "a b c"]).success();
        stdout(&assert)
    };
    assert_eq!(with("auto"), "c b a\n", "no picture in a pipe");
    assert_eq!(with("never"), "c b a\n");
    let picture = with("always");
    assert!(picture.starts_with("c b a\n"), "{picture}");
    let lines: Vec<&str> = picture.lines().collect();
    let header: Vec<&str> = lines[1].split_whitespace().collect();
    assert_eq!(header, ["a", "b", "c", "</s>"]);
    let rows: Vec<&str> = lines[2..6]
        .iter()
        .filter_map(|line| line.split_whitespace().next())
        .collect();
    assert_eq!(rows, ["c", "b", "a", "</s>"]);
    assert!(picture.contains("rows target, columns source"));
    assert!(picture.is_ascii(), "no colours in a pipe: {picture:?}");

    let mut command = regard();
    command.env("COLUMNS", "20").args([
        "translate",
        "-m",
        trained(),
        "--attention=always",
        "a b c d e f a b c d e f",
    ]);
    let narrow = stdout(&command.assert().success());
    assert!(
        narrow
            .lines()
            .skip(1)
            .all(|line| line.chars().count() <= 20),
        "{narrow}"
    );

    let mut command = regard();
    command
        .env("CLICOLOR_FORCE", "1")
        .env("COLORTERM", "truecolor");
    command.args(["translate", "-m", trained(), "--attention=always", "a b"]);
    assert!(stdout(&command.assert().success()).contains("\u{1b}[38;2;"));
}

#[test]
fn pictures_are_well_formed() {
    let folder = tempdir().unwrap();
    let (svg, svg_argument) = inside(folder.path(), "look.svg");
    let (png, png_argument) = inside(folder.path(), "look.png");
    let (html, html_argument) = inside(folder.path(), "look.html");
    let mut command = regard();
    command.args([
        "translate",
        "-m",
        trained(),
        "--svg",
        &svg_argument,
        "--png",
        &png_argument,
    ]);
    command
        .args(["--html", &html_argument, "a b c"])
        .assert()
        .success()
        .stdout("c b a\n");
    let svg = fs::read_to_string(svg).unwrap();
    assert!(svg.starts_with("<svg") && svg.trim_end().ends_with("</svg>"));
    assert!(svg.contains("<title>c → c: "), "hovering tells the weight");
    assert!(fs::read(png).unwrap().starts_with(PNG));
    let html = fs::read_to_string(html).unwrap();
    assert!(html.starts_with("<!DOCTYPE html>") && html.trim_end().ends_with("</html>"));
    assert!(
        html.contains("a b c") && !html.contains("https://"),
        "one file, no network"
    );
}

#[test]
fn several_translations_have_numbered_pictures_and_one_page() {
    let folder = tempdir().unwrap();
    let (_, svg) = inside(folder.path(), "look.svg");
    let (html, html_argument) = inside(folder.path(), "look.html");
    run([
        "translate",
        "-m",
        trained(),
        "--svg",
        &svg,
        "--html",
        &html_argument,
        "a b",
        "",
        "c d",
    ])
    .success();
    assert!(
        folder.path().join("look-1.svg").is_file() && folder.path().join("look-3.svg").is_file()
    );
    assert!(!folder.path().join("look.svg").exists() && !folder.path().join("look-2.svg").exists());
    let page = fs::read_to_string(html).unwrap();
    assert!(page.contains("a b") && page.contains("c d"));
    assert_eq!(
        page.matches(r#""generation":{"#).count(),
        2,
        "how each line was searched for"
    );

    let (_, list) = inside(folder.path(), "list.svg");
    run([
        "translate",
        "-m",
        trained(),
        "--svg",
        &list,
        "--n-best",
        "2",
        "a b c",
    ])
    .success();
    let entry = |rank| fs::read_to_string(folder.path().join(format!("list-{rank}.svg"))).unwrap();
    assert_ne!(entry(1), entry(2));
}

#[test]
fn traces_are_seen_again() {
    let folder = tempdir().unwrap();
    let (trace, trace_argument) = inside(folder.path(), "look.safetensors");
    let direct = run([
        "translate",
        "-m",
        trained(),
        "--trace",
        &trace_argument,
        "--attention",
        "always",
        "a b c",
    ]);
    let direct = stdout(&direct.success());
    let traces = regard_trace::read(&trace).unwrap();
    assert_eq!(
        (traces[0].source.as_str(), traces[0].target.as_str()),
        ("a b c", "c b a")
    );
    let (_, picture) = direct.split_once('\n').unwrap();
    let seen = stdout(&run(["view", &trace_argument]).success());
    assert!(
        seen.starts_with("rnnsearch: a b c → c b a (") && seen.contains(picture),
        "{seen}"
    );

    run([
        "translate",
        "-m",
        trained(),
        "--trace",
        &trace_argument,
        "a b",
        "c d",
    ])
    .success();
    let second = stdout(&run(["view", &trace_argument, "--index", "2"]).success());
    assert!(
        second.contains("c d → d c") && !second.contains("a b"),
        "{second}"
    );
    refused(
        ["view", &trace_argument, "--index", "3"],
        1,
        ["no entry 3", "it has 2"],
    );
    let (png, png_argument) = inside(folder.path(), "again.png");
    run([
        "view",
        &trace_argument,
        "--index",
        "1",
        "--png",
        &png_argument,
    ])
    .success()
    .stdout("");
    assert!(fs::read(png).unwrap().starts_with(PNG));
}

/// Cross-attention of two layers of two heads, the first along the diagonal, and an encoder's of two layers.
fn many_maps(folder: &Path) -> String {
    let words = Tokens::from_words("one two three");
    let sharp = |at: [usize; 3]| {
        let rows = at.map(|key| [0, 1, 2].map(|other| if other == key { 0.9 } else { 0.05 }));
        rows.into_iter().flatten().collect::<Vec<f32>>()
    };
    let map = |kind, layer: usize, heads: [[usize; 3]; 2]| {
        let weights = heads.into_iter().flat_map(sharp).collect();
        AttentionMap::new(kind, words.clone(), words.clone(), 2, weights)
            .unwrap()
            .at_layer(layer)
    };
    let trace = Trace::new("toy", "one two three", "one two three")
        .with_map(map(Kind::Cross, 1, [[0, 0, 0], [2, 2, 2]]))
        .with_map(map(Kind::Cross, 0, [[0, 1, 2], [0, 1, 2]]))
        .with_map(map(Kind::EncoderSelf, 0, [[0, 1, 2], [0, 0, 0]]))
        .with_map(map(Kind::EncoderSelf, 1, [[1, 1, 1], [0, 0, 0]]));
    let path = folder.join("many.safetensors");
    regard_trace::write(&path, &[trace]).unwrap();
    text(&path)
}

#[test]
fn one_map_is_drawn_unless_others_are_asked_for() {
    let folder = tempdir().unwrap();
    let trace = many_maps(folder.path());
    let (svg, svg_argument) = inside(folder.path(), "look.svg");
    let titles = |arguments: &[&str]| -> Vec<String> {
        let mut command = regard();
        command.args(["view", &trace, "--svg", &svg_argument]);
        command.args(arguments).assert().success();
        let picture = fs::read_to_string(&svg).unwrap();
        let titles = picture.split("font-weight=\"bold\"").skip(1);
        titles
            .map(|rest| {
                let (_, rest) = rest.split_once('>').unwrap();
                rest.split_once('<').unwrap().0.to_owned()
            })
            .collect()
    };
    assert_eq!(
        titles(&[]),
        ["decoder.cross · layer 1 of 2, the one most like an alignment · mean of 2 heads"]
    );
    assert_eq!(
        titles(&["--layer", "2", "--head", "1"]),
        ["decoder.cross · layer 2 of 2 · head 1 of 2"]
    );
    assert_eq!(
        titles(&["--map", "encoder"]),
        ["encoder.self · layer 2 of 2 · mean of 2 heads"]
    );
    assert_eq!(
        titles(&["--map", "encoder", "--layer=all", "--head=all"]).len(),
        4
    );
    assert_eq!(titles(&["--map=all", "--layer=all"]).len(), 4);

    let shown = stdout(&run(["view", &trace]).success());
    assert!(shown.contains("3 more maps: see --map"), "{shown}");
    let shown = stdout(&run(["view", &trace, "--map", "encoder", "--head", "2"]).success());
    assert!(shown.contains("layer 2 of 2 · head 2 of 2"), "{shown}");

    let (_, html) = inside(folder.path(), "look.html");
    refused(
        ["view", &trace, "--layer", "3"],
        2,
        ["no layer 3", "layers are 1, 2"],
    );
    refused(
        ["view", &trace, "--head", "3"],
        2,
        ["no head 3", "heads are 1 to 2"],
    );
    refused(
        ["view", &trace, "--map", "decoder"],
        2,
        [
            "no self-attention of a decoder",
            "decoder.cross, encoder.self",
        ],
    );
    refused(
        ["view", &trace, "--layer", "0"],
        2,
        ["at least 1, or `all`"],
    );
    refused(
        ["view", &trace, "--html", &html, "--layer", "1"],
        2,
        ["all maps"],
    );
    refused(
        ["translate", "-m", trained(), "--layer", "1", "a b"],
        2,
        ["nothing is drawn"],
    );
}

#[test]
fn there_may_be_nothing_to_draw_or_nowhere_to_write() {
    let folder = tempdir().unwrap();
    let (_, svg) = inside(folder.path(), "look.svg");
    refused(
        ["translate", "-m", trained(), "--svg", &svg, ""],
        1,
        [&svg, "there was no text"],
    );
    let (_, nowhere) = inside(folder.path(), "none/look.svg");
    refused(
        ["translate", "-m", trained(), "--svg", &nowhere, "a b"],
        1,
        [&nowhere, "cannot write"],
    );
    refused(
        ["translate", "-m", trained(), "--trace", &nowhere, "a b"],
        1,
        [&nowhere],
    );
    let (_, output) = inside(folder.path(), "none/out.txt");
    refused(
        ["translate", "-m", trained(), "-o", &output, "a b"],
        1,
        [&output, "cannot write"],
    );
}

#[cfg(target_os = "linux")]
#[test]
fn a_device_is_written_to_not_replaced() {
    run([
        "translate",
        "-m",
        trained(),
        "--svg",
        "/dev/null",
        "--html",
        "/dev/null",
        "a b",
    ])
    .success();
    use std::os::unix::fs::FileTypeExt;
    assert!(
        fs::metadata("/dev/null")
            .unwrap()
            .file_type()
            .is_char_device()
    );
}
