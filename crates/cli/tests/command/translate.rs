//! `regard translate` and `regard model`.

use std::{
    fs,
    io::{BufRead, BufReader, Write},
    path::Path,
    process::{Command, Stdio},
};

use serde_json::Value;
use tempfile::tempdir;

use crate::{file, inside, refused, refused_command, regard, run, stderr, stdout, trained};

/// Translates lines of standard input.
fn piped(input: &str, arguments: &[&str]) -> String {
    let mut command = regard();
    command
        .args(["translate", "--model", trained()])
        .args(arguments)
        .write_stdin(input);
    stdout(&command.assert().success())
}

#[test]
fn an_argument_is_a_sentence() {
    let assert = run(["translate", "--model", trained(), "a b c"]).success();
    assert_eq!(stdout(&assert), "c b a\n");
    assert_eq!(stderr(&assert), "");
    let assert = run(["translate", "--model", trained(), "f e", "", "d a b e"]).success();
    assert_eq!(stdout(&assert), "e f\n\ne b a d\n");
}

/// The embedded model's sub-words hold white space.
#[test]
fn white_space_around_a_sentence_plays_no_part() {
    let translated = |text: &str| stdout(&run(["translate", "--quiet", text]).success());
    let expected = translated("Two dogs are playing in the snow.");
    for text in [
        " Two dogs are playing in the snow. ",
        "Two dogs are\tplaying in the\u{a0}snow.\n",
    ] {
        assert_eq!(translated(text), expected, "{text:?}");
    }
    let blank = run(["translate", " \t "]).success();
    assert_eq!(
        (stdout(&blank).as_str(), stderr(&blank).as_str()),
        ("\n", "")
    );
    let face = run(["translate", "😀"]).success();
    assert!(stderr(&face).contains("far from what the model was trained on"));
}

#[test]
fn one_line_in_is_one_line_out_in_order() {
    assert_eq!(
        piped("a b\n\nc d e\n   \nf a\n", &[]),
        "b a\n\ne d c\n\na f\n"
    );
    assert_eq!(piped("a b\r\nc d", &[]), "b a\nd c\n");
    assert_eq!(piped("", &["--quiet"]), "");
    let symbols = ["a", "b", "c", "d", "e", "f"];
    let source: Vec<[&str; 3]> = (0..600)
        .map(|i| [symbols[i % 6], symbols[i / 6 % 6], symbols[i / 36 % 6]])
        .collect();
    let input: String = source
        .iter()
        .map(|[a, b, c]| format!("{a} {b} {c}\n"))
        .collect();
    let output = piped(&input, &[]);
    assert_eq!(output.lines().count(), 600);
    let right = output
        .lines()
        .zip(&source)
        .filter(|(line, [a, b, c])| *line == format!("{c} {b} {a}"));
    assert!(right.count() > 590);
    for arguments in [
        ["--batch-sentences=1", "--threads=1"],
        ["--batch-sentences=7", "--threads=2"],
        ["--batch-sentences=1048576", "--threads=2"],
    ] {
        assert_eq!(piped(&input, &arguments), output);
    }
}

#[test]
fn each_line_is_answered_before_the_next_one_comes() {
    let mut child = Command::new(env!("CARGO_BIN_EXE_regard"))
        .args(["translate", "--model", trained()])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut input = child.stdin.take().unwrap();
    let mut answers = BufReader::new(child.stdout.take().unwrap());
    for (line, expected) in [("a b c", "c b a\n"), ("", "\n"), ("e f", "f e\n")] {
        writeln!(input, "{line}").unwrap();
        input.flush().unwrap();
        let mut answer = String::new();
        answers.read_line(&mut answer).unwrap();
        assert_eq!(answer, expected);
    }
    drop(input);
    assert!(child.wait().unwrap().success());
}

#[test]
fn files_are_read_plain_or_compressed_and_written() {
    let folder = tempdir().unwrap();
    let plain = file(folder.path(), "in.txt", "a b\n\nc d\n");
    // `a b\n` and `c d\n`, compressed one after the other.
    let member = |content: &[u8]| {
        let mut encoder = flate2::write::GzEncoder::new(vec![], flate2::Compression::default());
        encoder.write_all(content).unwrap();
        encoder.finish().unwrap()
    };
    let gz = file(
        folder.path(),
        "in.gz",
        [member(b"a b\n\n"), member(b"c d\n")].concat(),
    );
    let (output, output_argument) = inside(folder.path(), "out.txt");
    for input in [&plain, &gz] {
        let assert = run([
            "translate",
            "-m",
            trained(),
            "-i",
            input,
            "-o",
            &output_argument,
        ])
        .success();
        assert_eq!(stdout(&assert), "");
        assert_eq!(fs::read_to_string(&output).unwrap(), "b a\n\nd c\n");
    }
    let assert = run(["translate", "-m", trained(), "-i", &gz]).success();
    assert_eq!(stdout(&assert), "b a\n\nd c\n");
}

#[test]
fn n_best_lists_are_ranked() {
    let assert = run([
        "translate",
        "-m",
        trained(),
        "--n-best",
        "3",
        "a b c",
        "d e",
    ])
    .success();
    let text = stdout(&assert);
    let rows: Vec<Vec<&str>> = text
        .lines()
        .map(|line| line.split(" ||| ").collect())
        .collect();
    assert_eq!(rows.len(), 6);
    assert_eq!((rows[0][0], rows[0][1], rows[0][2]), ("1", "1", "c b a"));
    assert_eq!((rows[5][0], rows[5][1]), ("2", "3"));
    for list in rows.chunks(3) {
        let scores: Vec<f64> = list.iter().map(|row| row[3].parse().unwrap()).collect();
        assert!(scores.is_sorted_by(|a, b| a >= b), "{scores:?}");
        let distinct: std::collections::HashSet<&str> = list.iter().map(|row| row[2]).collect();
        assert_eq!(distinct.len(), 3);
    }
    // The best of a list is the translation alone.
    assert_eq!(piped("a b c\n", &[]), format!("{}\n", rows[0][2]));
}

#[test]
fn json_tells_all_and_each_entry_has_its_own_weights() {
    let arguments = ["--json", "--n-best=2", "--attention=always"];
    let output = piped("a b c\n\n", &arguments);
    let lines: Vec<Value> = output
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert_eq!(lines.len(), 2);
    assert_eq!(
        (&lines[0]["line"], &lines[0]["source"]),
        (&1.into(), &"a b c".into())
    );
    let entries = lines[0]["translations"].as_array().unwrap();
    assert_eq!(entries.len(), 2);
    assert_eq!(entries[0]["text"], "c b a");
    assert_eq!(entries[0]["finished"], true);
    assert_eq!(
        entries[0]["attention"]["source"],
        serde_json::json!(["a", "b", "c", "</s>"])
    );
    for entry in entries {
        let target = entry["attention"]["target"].as_array().unwrap();
        let rows = entry["attention"]["weights"].as_array().unwrap();
        assert_eq!(rows.len(), target.len());
        for row in rows {
            let sum: f64 = row
                .as_array()
                .unwrap()
                .iter()
                .map(|weight| weight.as_f64().unwrap())
                .sum();
            assert!((sum - 1.0).abs() < 1e-4);
        }
    }
    assert_ne!(entries[0]["attention"], entries[1]["attention"]);
    assert_eq!(lines[1]["translations"][0]["text"], "");
    let plain = piped("a b c\n", &["--json"]);
    assert!(!plain.contains("attention"));
}

#[test]
fn what_the_search_may_do_is_up_to_the_user() {
    let short = piped("a b c d e\n", &["--max-length", "2", "--quiet"]);
    assert_eq!(short, "e d\n");
    let mut command = regard();
    command.args(["translate", "-m", trained(), "--max-length=2", "a b c d e"]);
    assert!(
        stderr(&command.assert().success())
            .contains("1 of 1 translations were ended by the length limit")
    );
    let bigrams = piped("a a a a a\n", &["--no-repeat-ngram", "2", "--quiet"]);
    assert!(!bigrams.contains("a a a"), "{bigrams}");
    assert_eq!(piped("a b c\n", &["--beam", "1"]), "c b a\n");
}

#[test]
fn a_model_of_half_the_size_translates_the_same() {
    let folder = tempdir().unwrap();
    let (half, half_argument) = inside(folder.path(), "half.safetensors");
    let (whole, whole_argument) = inside(folder.path(), "whole.safetensors");
    run([
        "model",
        trained(),
        "--f16",
        &half_argument,
        "--f32",
        &whole_argument,
    ])
    .success();
    let size = |path| fs::metadata(path).unwrap().len() as f64;
    assert!(size(&half) < 0.6 * size(&whole));
    let expected = piped("a b c\nd e f\n", &[]);
    for model in [&half_argument, &whole_argument] {
        let assert = run(["translate", "-m", model, "a b c", "d e f"]).success();
        assert_eq!(stdout(&assert), expected);
    }
    let description = stdout(&run(["model", &half_argument]).success());
    assert!(description.contains("rnnsearch") && description.contains("10 tokens, joint"));
    let json = stdout(&run(["model", trained(), "--json"]).success());
    let json: Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json["model"]["kind"], "rnnsearch");
    assert!(json["parameters"].as_u64().unwrap() > 1000);
}

/// A model that a recipe describes, after one update.
fn trained_once(folder: &Path, recipe: &str) -> String {
    let rest = r#"
        [data.synthetic]
        task = "reverse"
        symbols = 4
        min_length = 2
        max_length = 4
        sentences = 32
        valid_sentences = 4
        test_sentences = 4
        [training]
        steps = 1
    "#;
    let recipe = file(folder, "recipe.toml", format!("{recipe}{rest}"));
    let (_, model) = inside(folder, "run");
    run(["train", &recipe, "--folder", &model, "--quiet"]).success();
    model
}

/// Learned positions are a table, beyond which there are none.
#[test]
fn a_search_needs_room_in_the_model() {
    let folder = tempdir().unwrap();
    let recipe = r#"
        [model]
        kind = "transformer"
        d_model = 8
        heads = 2
        feed_forward = 8
        encoder_layers = 1
        decoder_layers = 1
        positions = "learned"
        max_length = 16
        [data.filter]
        max_tokens = 15
        [translate]
        max_source_tokens = 15
        max_length = { absolute = 15 }
    "#;
    let model = trained_once(folder.path(), recipe);
    let long = "a b c d ".repeat(20);
    for option in ["--max-source-tokens", "--max-length"] {
        refused(
            ["translate", "--model", &model, option, "500", &long],
            2,
            [option, "500", "expected at most 15"],
        );
        let evaluate = ["evaluate", "--model", &model, "--split", "test"];
        let mut command = regard();
        command.args(evaluate).args([option, "500"]);
        refused_command(&mut command, 2, [option, "expected at most 15"]);
    }
    run(["translate", "--model", &model, "--quiet", &long]).success();
}

/// Where the weights of a line do not fit in memory, the lines before it are kept, and the error names it.
#[test]
fn the_weights_of_a_line_have_a_bound() {
    let folder = tempdir().unwrap();
    let recipe = r#"
        [model]
        kind = "transformer"
        d_model = 8
        heads = 4
        feed_forward = 8
        encoder_layers = 2
        decoder_layers = 1
    "#;
    let model = trained_once(folder.path(), recipe);
    let lines = format!("a b\n{}\nc d\n", "a b c d ".repeat(500));
    let input = file(folder.path(), "in.txt", lines);
    let [(traces, trace), (page, html)] =
        ["look.trace", "look.html"].map(|name| inside(folder.path(), name));
    let translate = |more: &[&str]| {
        let mut command = regard();
        command.args(["translate", "--model", &model, "--input", &input, "--quiet"]);
        command.args(["--beam=10", "--n-best=10", "--max-length=2"]);
        command.args(["--max-source-tokens=2000"]).args(more);
        command
    };
    let done = translate(&["--trace", &trace, "--html", &html])
        .assert()
        .code(1);
    let told = stderr(&done);
    for part in ["in.txt: line 2: ", "at most 240000000 are kept"] {
        assert!(told.contains(part), "{told}");
    }
    let written = stdout(&done);
    assert_eq!(written.lines().count(), 10, "{written}");
    assert!(written.lines().all(|line| line.starts_with("1 ||| ")));
    assert_eq!(regard_trace::read(traces).unwrap().len(), 10);
    // Each hypothesis has the tree beside it.
    let page = fs::read_to_string(page).unwrap();
    assert_eq!(page.matches(r#""generation":{"#).count(), 10);
    // Without a picture nothing is kept.
    let written = stdout(&translate(&[]).assert().success());
    assert_eq!(written.lines().count(), 30, "{written}");
}

#[test]
fn translations_do_not_take_the_place_of_their_source() {
    let folder = tempdir().unwrap();
    let (path, text) = inside(folder.path(), "text.txt");
    fs::write(&path, "a b\n").unwrap();
    let (_, svg) = inside(folder.path(), "look.svg");
    let translate = ["translate", "--model", trained(), "--input", &text];
    for more in [
        ["--output", &text].as_slice(),
        &["--html", &text],
        &["--svg", &svg, "--png", &svg],
        &["--svg", &svg, "--output", &svg],
    ] {
        let mut command = regard();
        command.args(translate).args(more);
        refused_command(&mut command, 2, ["would be lost"]);
    }
    assert_eq!(fs::read_to_string(&path).unwrap(), "a b\n");
    // Nor that of the model, whose folder is named.
    let run = folder.path().join("run");
    fs::create_dir(&run).unwrap();
    let model = run.join("model.safetensors");
    let whole = fs::read(Path::new(trained()).join("model.safetensors")).unwrap();
    fs::write(&model, &whole).unwrap();
    let (run, file) = (run.to_str().unwrap(), model.to_str().unwrap());
    for named in [run, file] {
        for arguments in [
            ["translate", "a", "--model", named, "--trace", file].as_slice(),
            &["translate", "a", "--model", named, "--output", file],
            &["model", named, "--f16", file],
        ] {
            refused_command(regard().args(arguments), 2, ["would be lost"]);
        }
    }
    assert!(fs::read(&model).unwrap() == whole);
}

#[test]
fn the_coverage_penalty_needs_attention() {
    let folder = tempdir().unwrap();
    let recipe = r#"
        [model]
        kind = "seq2seq"
        embedding = 8
        hidden = 8
        maxout = 8
    "#;
    let model = trained_once(folder.path(), recipe);
    let said = ["--coverage-penalty 0.2", "kind seq2seq", "leave it out"];
    let translate = ["translate", "--quiet", "--model", &model, "a b"];
    let evaluate = ["evaluate", "--quiet", "--model", &model, "--split", "test"];
    for arguments in [&translate[..], &evaluate] {
        let with = |penalty: &str| {
            let mut command = regard();
            command
                .args(arguments)
                .args(["--coverage-penalty", penalty]);
            command
        };
        refused_command(&mut with("0.2"), 2, said);
        with("0").assert().success();
    }
    piped("a b c\n", &["--coverage-penalty", "0.2"]);
}

#[test]
fn a_misspelt_input_leaves_the_output() {
    let folder = tempdir().unwrap();
    let (path, output) = inside(folder.path(), "out.txt");
    fs::write(&path, "hours of work\n").unwrap();
    let (_, input) = inside(folder.path(), "none.txt");
    let translate = ["translate", "--model", trained(), "--output", &output];
    refused_command(
        regard().args(translate).args(["--input", &input]),
        1,
        [&input, "cannot read"],
    );
    // A page would have the remaining lines alone.
    let input = file(folder.path(), "in.txt", "a b\n");
    let (_, page) = inside(folder.path(), "look.html");
    let more = ["--input", &input, "--resume", "--html", &page];
    let mut resumed = regard();
    resumed.args(translate).args(more);
    refused_command(&mut resumed, 2, ["--resume", "--html"]);
    assert_eq!(fs::read_to_string(&path).unwrap(), "hours of work\n");
}

/// Who writes to a pipe may wait for the output first.
#[cfg(unix)]
#[test]
fn a_pipe_is_waited_for_after_the_output_is_opened() {
    use std::{thread, time::Duration};

    let folder = tempdir().unwrap();
    let [(pipe, input), (path, output)] = ["in", "out"].map(|name| inside(folder.path(), name));
    let made = Command::new("mkfifo").arg(&pipe).status().unwrap();
    assert!(made.success());
    let mut child = Command::new(env!("CARGO_BIN_EXE_regard"))
        .args(["translate", "--model", trained()])
        .args(["--input", &input, "--output", &output])
        .spawn()
        .unwrap();
    let waited = (0..600).any(|_| {
        thread::sleep(Duration::from_millis(50));
        path.exists()
    });
    assert!(child.try_wait().unwrap().is_none(), "it waits for the pipe");
    fs::write(&pipe, "a b\n").unwrap();
    assert!(child.wait().unwrap().success() && waited);
    assert_eq!(fs::read_to_string(&path).unwrap(), "b a\n");
}

#[test]
fn an_output_in_another_form_is_not_resumed() {
    let folder = tempdir().unwrap();
    let input = file(folder.path(), "in", "a b c\nf e\n");
    let translate = |output: &str, more: &[&str]| {
        let mut command = regard();
        command.args(["translate", "--model", trained(), "--quiet"]);
        command.args(["--input", &input, "--output", output]);
        command.args(more);
        command
    };
    let [(lines, as_lines), (json, as_json)] =
        ["lines", "json"].map(|name| inside(folder.path(), name));
    translate(&as_lines, &[]).assert().success();
    translate(&as_json, &["--json"]).assert().success();
    let whole = [&lines, &json].map(|path| fs::read_to_string(path).unwrap());
    refused_command(
        &mut translate(&as_lines, &["--resume", "--json"]),
        2,
        [&as_lines, "holds lines of text", "leave --json out"],
    );
    refused_command(
        &mut translate(&as_json, &["--resume"]),
        2,
        [&as_json, "holds lines of JSON", "add --json"],
    );
    for (path, argument, more, whole) in [
        (&lines, &as_lines, ["--resume"].as_slice(), &whole[0]),
        (&json, &as_json, &["--resume", "--json"], &whole[1]),
    ] {
        assert_eq!(&fs::read_to_string(path).unwrap(), whole);
        // The first line stays, and the rest of the second is cut off and made anew.
        fs::write(path, &whole[..whole.len() - 2]).unwrap();
        translate(argument, more).assert().success();
        let (first, made) = (whole.lines().next(), fs::read_to_string(path).unwrap());
        assert_eq!((made.lines().next(), made.lines().count()), (first, 2));
    }
}
