//! Bad input: a clear message, the right exit code, and nothing lost.

use std::{
    fs,
    io::{BufRead, BufReader, Read, Write},
    process::{Command, Stdio},
    thread,
};

use tempfile::tempdir;

use crate::{
    RECIPE, file, inside, refused, refused_command, regard, run, stderr, stdout, text, trained,
};

#[test]
fn a_missing_or_unreadable_file_is_named() {
    let folder = tempdir().unwrap();
    let (_, none) = inside(folder.path(), "none");
    // A folder cannot be read as a file, by any user.
    let unreadable = text(folder.path());
    refused(
        ["translate", "-m", &none, "a"],
        1,
        [&none, "cannot read", "No such file"],
    );
    refused(
        ["translate", "-m", &unreadable, "a"],
        1,
        [&unreadable, "model.safetensors"],
    );
    for input in [&none, &unreadable] {
        refused(
            ["translate", "-m", trained(), "-i", input],
            1,
            [input, "cannot read"],
        );
        refused(
            ["evaluate", "-i", input, "-r", input],
            1,
            [input, "cannot read"],
        );
        refused(
            ["evaluate", "--alignments", input, "--gold", input],
            1,
            [input, "cannot read"],
        );
        refused(["train", input], 1, [input, "cannot read"]);
        refused(["view", input], 1, [input]);
    }
    let recipe = file(folder.path(), "r.toml", files_recipe(&none, &none));
    refused(
        ["train", &recipe, "--folder", &none],
        1,
        [&none, "cannot read"],
    );
}

/// The recipe with files in place of the synthetic task.
fn files_recipe(source: &str, target: &str) -> String {
    let (model, rest) = RECIPE.split_once("[data.synthetic]").unwrap();
    let (_, rest) = rest.split_once("[batch]").unwrap();
    let data = ["train", "valid"]
        .map(|part| format!("{part}_source = {source:?}\n{part}_target = {target:?}\n"))
        .concat();
    format!("{model}[data]\n{data}[batch]{rest}")
}

#[test]
fn line_counts_that_differ_name_both_files() {
    let folder = tempdir().unwrap();
    let two = file(folder.path(), "two", "a\nb\n");
    let three = file(folder.path(), "three", "a\nb\nc\n");
    let parts = [two.as_str(), three.as_str(), "2", "3"];
    refused(["evaluate", "-i", &two, "-r", &three], 1, parts);
    refused(["evaluate", "-i", &two, "-r", &two, &three], 1, parts);
    refused(
        [
            "evaluate",
            "-m",
            "chrf",
            "-i",
            &three,
            "--bootstrap",
            &two,
            "-r",
            &three,
        ],
        1,
        parts,
    );
    refused(
        ["evaluate", "--model", trained(), "-s", &two, "-r", &three],
        1,
        parts,
    );
    let recipe = file(folder.path(), "r.toml", files_recipe(&two, &three));
    let (_, run_folder) = inside(folder.path(), "run");
    refused(["train", &recipe, "--folder", &run_folder], 1, parts);
}

#[test]
fn an_empty_file_and_an_empty_line_are_two_things() {
    let folder = tempdir().unwrap();
    let empty = file(folder.path(), "empty", "");
    let blank = file(folder.path(), "blank", "\n");
    refused(
        ["translate", "-m", trained(), "-i", &empty],
        1,
        [&empty, "empty"],
    );
    refused(
        ["evaluate", "-i", &empty, "-r", &blank],
        1,
        [&empty, "empty"],
    );
    refused(
        ["evaluate", "-i", &blank, "-r", &empty],
        1,
        [&empty, "empty"],
    );
    let recipe = file(folder.path(), "r.toml", files_recipe(&empty, &blank));
    let (_, run_folder) = inside(folder.path(), "run");
    refused(
        ["train", &recipe, "--folder", &run_folder],
        1,
        [&empty, "empty"],
    );
    let assert = run(["translate", "-m", trained(), "-i", &blank]).success();
    assert_eq!(
        (stdout(&assert).as_str(), stderr(&assert).as_str()),
        ("\n", "")
    );
    let recipe = file(folder.path(), "blank.toml", files_recipe(&blank, &blank));
    refused(
        ["train", &recipe, "--folder", &run_folder],
        1,
        ["every line was empty"],
    );
    let mut command = regard();
    let assert = command
        .args(["translate", "-m", trained()])
        .write_stdin("")
        .assert()
        .success();
    assert_eq!(stdout(&assert), "");
    assert!(stderr(&assert).contains("warning: standard input had no lines"));
}

#[test]
fn a_line_of_ten_thousand_words_is_cut_or_refused() {
    let folder = tempdir().unwrap();
    let long = vec!["a"; 10_000].join(" ");
    let input = file(folder.path(), "long", format!("a b\n{long}\nc d\n"));
    let short = [
        "translate",
        "-m",
        trained(),
        "-i",
        &input,
        "--max-source-tokens",
        "6",
    ];
    let assert = regard().args(short).assert().success();
    let lines: Vec<String> = stdout(&assert).lines().map(str::to_owned).collect();
    assert_eq!(
        (lines.len(), lines[0].as_str(), lines[2].as_str()),
        (3, "b a", "d c")
    );
    let warning = format!("warning: {input}: line 2 has 10000 tokens; only the first 6");
    assert!(stderr(&assert).contains(&warning), "{}", stderr(&assert));

    let mut command = regard();
    let (picture, svg) = inside(folder.path(), "look.svg");
    command.args(short).args(["--long-lines", "error"]);
    refused_command(
        command.args(["--svg", &svg]),
        1,
        [&input, "line 2 has 10000 tokens", "6 allowed"],
    );
    assert_eq!(
        stdout(&command.assert()),
        "b a\n",
        "the lines before have their translations"
    );
    assert!(picture.is_file(), "and their pictures");
    // Nothing to draw is no reason to tell another error.
    let arguments = [
        &short[..3],
        &["--max-source-tokens=6", "--long-lines=error"],
    ]
    .concat();
    let mut command = regard();
    command.args(arguments).args(["--svg", &svg, &long, "a b"]);
    refused_command(&mut command, 1, ["line 1 has 10000 tokens"]);
    // Without an option the recipe's setting holds: here its 1000 tokens.
    let assert = run([
        "translate",
        "-m",
        trained(),
        "-i",
        &input,
        "--max-length",
        "5",
    ])
    .success();
    assert!(stderr(&assert).contains("only the first 1000"));

    let references = file(folder.path(), "references", "b a\na\nd c\n");
    let arguments = [
        "evaluate",
        "-s",
        &input,
        "-r",
        &references,
        "--max-source-tokens",
        "6",
        "--model",
        trained(),
    ];
    assert!(stderr(&run(arguments).success()).contains("1 lines have more than 6 tokens"));
    let mut command = regard();
    refused_command(
        command.args(arguments).args(["--long-lines=error"]),
        1,
        [&input, "line 2"],
    );
}

#[test]
fn bytes_that_are_not_utf8_are_located() {
    let folder = tempdir().unwrap();
    let bad = file(folder.path(), "bad", b"a b\nc \xff d\ne f\n");
    let good = file(folder.path(), "good", "a\nb\nc\n");
    refused(
        ["translate", "-m", trained(), "-i", &bad],
        1,
        [&bad, "line 2", "offset 6", "0xff"],
    );
    let assert = run(["translate", "-m", trained(), "-i", &bad]).code(1);
    assert_eq!(
        stdout(&assert),
        "b a\n",
        "the lines before have their translations"
    );
    let first = file(folder.path(), "first", b"\xff\n");
    let (_, svg) = inside(folder.path(), "look.svg");
    refused(
        ["translate", "-m", trained(), "-i", &first, "--svg", &svg],
        1,
        [&first, "line 1"],
    );
    let mut command = regard();
    command
        .args(["translate", "-m", trained()])
        .write_stdin(b"\xc3".to_vec());
    refused_command(&mut command, 1, ["standard input", "offset 0"]);
    refused(
        ["evaluate", "-i", &bad, "-r", &good],
        1,
        [&bad, "line 2", "offset 6"],
    );
    refused(
        ["evaluate", "-i", &good, "-r", &bad],
        1,
        [&bad, "line 2", "offset 6"],
    );
    let recipe = file(folder.path(), "r.toml", files_recipe(&good, &bad));
    let (_, run_folder) = inside(folder.path(), "run");
    refused(
        ["train", &recipe, "--folder", &run_folder],
        1,
        [&bad, "line 2", "offset 6"],
    );
    let recipe = file(folder.path(), "bad.toml", b"[model]\nkind = \"\xff\"\n");
    refused(["train", &recipe], 1, [&recipe, "not UTF-8"]);
}

#[test]
fn a_damaged_archive_is_not_taken_for_text() {
    let folder = tempdir().unwrap();
    let mut encoder = flate2::write::GzEncoder::new(vec![], flate2::Compression::default());
    encoder
        .write_all("a b c\n".repeat(1000).as_bytes())
        .unwrap();
    let bytes = encoder.finish().unwrap();
    let cut = file(folder.path(), "cut.gz", &bytes[..bytes.len() / 2]);
    refused(
        ["translate", "-m", trained(), "-i", &cut, "-q"],
        1,
        [&cut, "damaged gzip"],
    );
    refused(
        ["evaluate", "-i", &cut, "-r", &cut],
        1,
        [&cut, "damaged gzip"],
    );
}

#[test]
fn truncated_and_foreign_checkpoints_are_refused() {
    let folder = tempdir().unwrap();
    let source = std::path::Path::new(trained());
    let model = fs::read(source.join("model.safetensors")).unwrap();
    for length in [0, 4, 100, model.len() / 2, model.len() - 1] {
        let cut = file(folder.path(), "cut.safetensors", &model[..length]);
        refused(["translate", "-m", &cut, "a"], 1, [&cut]);
        refused(["model", &cut], 1, [&cut]);
        refused(["view", &cut], 1, [&cut]);
    }
    let foreign = file(
        folder.path(),
        "foreign.safetensors",
        b"\x02\0\0\0\0\0\0\0{}",
    );
    refused(
        ["translate", "-m", &foreign, "a"],
        1,
        [&foreign, "regard.model"],
    );
    refused(["view", &foreign], 1, [&foreign, "not a trace"]);
    let words = file(folder.path(), "words", "not a model at all, only words\n");
    refused(["translate", "-m", &words, "a"], 1, [&words, "safetensors"]);
    let broken = String::from_utf8_lossy(&model[..200]).into_owned();
    assert!(
        broken.contains("regard."),
        "the description stands at the start"
    );

    let checkpoint = text(&source.join("last.safetensors"));
    refused(
        ["translate", "-m", &checkpoint, "a"],
        1,
        [&checkpoint, "a checkpoint", "--resume", "run folder"],
    );
    // What has no end and is no model is not read to its end.
    #[cfg(unix)]
    for endless in ["/dev/zero", "/dev/urandom"] {
        refused(["translate", "-m", endless, "a"], 1, [endless]);
    }
    let last = fs::read(source.join("last.safetensors")).unwrap();
    let recipe = fs::read(source.join("recipe.toml")).unwrap();
    file(folder.path(), "recipe.toml", recipe);
    let run_folder = text(folder.path());
    for bytes in [&last[..last.len() / 2], &model[..], b"x"] {
        let path = file(folder.path(), "last.safetensors", bytes);
        refused(["train", "--resume", &run_folder, "-q"], 1, [&path]);
        assert_eq!(fs::read(&path).unwrap(), bytes, "what was there stays");
    }
}

#[test]
fn a_recipe_is_checked_before_anything_is_done() {
    let folder = tempdir().unwrap();
    let (never, never_argument) = inside(folder.path(), "never");
    let train = |from: &str, to: &str, parts: &[&str]| {
        let recipe = RECIPE.replace(from, to);
        assert_ne!(recipe, RECIPE);
        let recipe = file(folder.path(), "r.toml", recipe);
        refused(
            ["train", &recipe, "--folder", &never_argument],
            1,
            [recipe.as_str()],
        );
        let message = stderr(&run(["train", &recipe, "--folder", &never_argument]));
        for part in parts {
            assert!(message.contains(part), "{part:?} is not in: {message}");
        }
    };
    train(
        "hidden = 24",
        "hidden = \"many\"",
        &["r.toml:5", "model.hidden", "expected a whole number"],
    );
    train(
        "hidden = 24",
        "hiden = 24",
        &["unknown key model.hiden", "did you mean hidden?"],
    );
    train("hidden = 24", "hidden = 0", &["model.hidden", "found 0"]);
    train("kind = \"adam\"", "kind = \"adem\"", &["adem", "adam"]);
    train("[batch]", "[batsh]", &["batsh", "batch"]);
    train("[model]", "[model", &["r.toml:2", "not valid TOML"]);
    let recipe = file(folder.path(), "good.toml", RECIPE);
    let with = |set: &str| {
        stderr(&run(["train", &recipe, "--folder", &never_argument, "--set", set]).code(1))
    };
    assert!(with("training.stepps=3").contains("did you mean steps?"));
    assert!(with("training.steps=three").contains("--set training.steps=three"));
    assert!(with("steps").contains("section.key=value"));
    assert!(!never.exists());
}

#[test]
fn a_device_that_is_not_there_is_an_error() {
    let folder = tempdir().unwrap();
    let recipe = file(folder.path(), "r.toml", RECIPE);
    // What wgpu computes by is no device.
    for (device, code) in [("cuda:0", 1), ("metal", 2), ("vulkan:1", 2)] {
        refused(
            ["translate", "-m", trained(), "--device", device, "a"],
            code,
            [device, "cpu"],
        );
        refused(
            ["train", &recipe, "--device", device],
            code,
            [device, "cpu"],
        );
        refused(["model", "--device", device], code, [device, "cpu"]);
    }
    assert_eq!(
        stdout(&run(["translate", "-m", trained(), "--device", "cpu", "a b"]).success()),
        "b a\n"
    );
}

/// A full disk, simulated by a limit on the size of files: writing beyond it is an error.
#[cfg(unix)]
#[test]
fn a_full_disk_leaves_the_former_checkpoint() {
    let folder = tempdir().unwrap();
    let recipe = file(folder.path(), "r.toml", RECIPE);
    let (run_path, run_folder) = inside(folder.path(), "run");
    let mut command = regard();
    command.args([
        "train",
        &recipe,
        "--folder",
        &run_folder,
        "-q",
        "--set",
        "training.steps=20",
    ]);
    command
        .args(["--set", "training.validate_every=10"])
        .assert()
        .success();
    let files = ["last.safetensors", "best.safetensors", "model.safetensors"];
    let read = || files.map(|name| fs::read(run_path.join(name)).unwrap());
    let before = read();
    assert!(
        before.iter().all(|bytes| bytes.len() > 20_000),
        "larger than the limit below"
    );

    // 512 or 1024 bytes each, by the shell.
    let script = "trap '' XFSZ; ulimit -f 20; exec \"$0\" \"$@\"";
    let output = Command::new("sh")
        .args([
            "-c",
            script,
            env!("CARGO_BIN_EXE_regard"),
            "train",
            "--resume",
            &run_folder,
            "-q",
        ])
        .args(["--set", "training.steps=40"])
        .output()
        .unwrap();
    let message = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{message}");
    assert!(
        message.contains("error: ") && message.contains(&run_folder),
        "{message}"
    );
    assert!(
        message.contains("cannot write") && message.contains("File too large"),
        "{message}"
    );
    assert_eq!(read()[0], before[0]);
    assert_eq!(read()[2], before[2]);
    let left = fs::read_dir(&run_path)
        .unwrap()
        .map(|entry| entry.unwrap().file_name());
    let left: Vec<_> = left
        .filter(|name| name.to_string_lossy().contains("tmp"))
        .collect();
    assert!(left.is_empty(), "{left:?}");

    run(["translate", "-m", &run_folder, "-q", "a b"]).success();
    let mut command = regard();
    command
        .args([
            "train",
            "--resume",
            &run_folder,
            "-q",
            "--set",
            "training.steps=40",
        ])
        .assert()
        .success();
    assert_ne!(read()[0], before[0]);
}

#[cfg(target_os = "linux")]
#[test]
fn a_full_disk_under_standard_output_is_an_error() {
    let full = || Stdio::from(fs::File::options().write(true).open("/dev/full").unwrap());
    for arguments in [
        &["translate", "-m", trained(), "a b"][..],
        &["model", "--json", trained(), "--f32=/dev/null"],
        &["--version"],
        &["help"],
        &["translate", "--help"],
    ] {
        let output = Command::new(env!("CARGO_BIN_EXE_regard"))
            .args(arguments)
            .stdout(full())
            .output()
            .unwrap();
        let message = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1));
        assert!(
            message.contains("standard output: cannot write: No space left"),
            "{message}"
        );
    }
}

#[test]
fn variables_of_the_environment_are_checked() {
    let folder = tempdir().unwrap();
    let lines = file(folder.path(), "lines.txt", "a b c\n");
    let commands: [&[&str]; 3] = [
        &["model"],
        &["explain", "softmax"],
        &["evaluate", "-i", &lines, "-r", &lines],
    ];
    for arguments in commands {
        let with = |variable: &str, value: &str| {
            let mut command = regard();
            command.env(variable, value).args(arguments);
            command
        };
        for (variable, value, expected) in [
            ("RAYON_NUM_THREADS", "100000", "from 1 to 1024"),
            ("RAYON_NUM_THREADS", "two", "from 1 to 1024"),
            ("REGARD_SIMD", "AVX2", "scalar, neon, avx2, avx512"),
        ] {
            refused_command(&mut with(variable, value), 2, [variable, value, expected]);
        }
        for (variable, value) in [
            ("RAYON_NUM_THREADS", "0"),
            ("RAYON_NUM_THREADS", "2"),
            ("REGARD_SIMD", ""),
        ] {
            with(variable, value).assert().success();
        }
    }
}

/// The stacks of as many threads have no room in the address space.
#[cfg(target_os = "linux")]
#[test]
fn threads_that_cannot_be_had_are_an_error() {
    let cases: [(&[&str], &str); 2] = [
        (&[], "give a smaller number in the environment variable"),
        (&["--threads", "200"], "give a smaller --threads"),
    ];
    for (more, advice) in cases {
        let script = "ulimit -v 900000; exec \"$0\" \"$@\"";
        let output = Command::new("sh")
            .args(["-c", script, env!("CARGO_BIN_EXE_regard"), "model"])
            .args(more)
            .env("RAYON_NUM_THREADS", "200")
            .output()
            .unwrap();
        let message = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{message}");
        let told = "error: cannot start 200 threads: ";
        assert!(
            message.starts_with(told) && message.contains(advice),
            "{message}"
        );
    }
}

#[test]
fn a_closed_pipe_is_a_clean_end() {
    let mut child = Command::new(env!("CARGO_BIN_EXE_regard"))
        .args(["translate", "-m", trained()])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut input = child.stdin.take().unwrap();
    // It ends when the program has gone.
    let writer = thread::spawn(move || while input.write_all(b"a b c\nd e\n").is_ok() {});
    let mut output = BufReader::new(child.stdout.take().unwrap());
    let mut first = String::new();
    output.read_line(&mut first).unwrap();
    assert_eq!(first, "c b a\n");
    drop(output);
    let status = child.wait().unwrap();
    writer.join().unwrap();
    let mut message = String::new();
    child
        .stderr
        .take()
        .unwrap()
        .read_to_string(&mut message)
        .unwrap();
    assert_eq!((status.code(), message.as_str()), (Some(0), ""));
}

#[test]
fn text_that_no_one_expects_is_translated_all_the_same() {
    let lines = [
        "\u{0}",
        "🚲 自転車",
        "\u{202e}abc",
        "a\tb",
        "\u{feff}a",
        "zzz unknown",
        "  a   b  ",
    ];
    let mut command = regard();
    command
        .args(["translate", "-q", "-m", trained()])
        .write_stdin(lines.join("\n"));
    let assert = command.assert().success();
    assert_eq!(stdout(&assert).lines().count(), lines.len());
    for line in &lines[1..] {
        let assert = run([
            "translate",
            "-q",
            "-m",
            trained(),
            "--attention",
            "always",
            line,
        ])
        .success();
        assert!(stdout(&assert).contains("source"), "{line:?}");
    }
}

/// A terminal obeys nothing that stands in the name of a file or of a key.
#[test]
fn messages_have_no_control_characters() {
    let folder = tempdir().unwrap();
    let recipe = file(
        folder.path(),
        "esc.toml",
        "[model]\nkind = \"luong\"\n\"\\u001b[31mx\\u202e\" = 3\n",
    );
    let named = ["look", "--model", "no\u{1b}[31m\u{202e}where", "text"];
    for arguments in [&["train", recipe.as_str()][..], &named] {
        let message = stderr(&regard().args(arguments).assert().failure());
        assert!(!message.contains(['\u{1b}', '\u{202e}']), "{message:?}");
        assert!(message.contains("\\u{1b}"), "{message}");
    }
}
