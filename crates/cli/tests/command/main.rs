//! The command as a user drives it: every test starts the program and looks at what it prints,
//! writes and returns.

mod bad_input;
mod bench;
mod classifier;
mod compare;
mod evaluate;
mod explain;
mod inspect;
mod pictures;
mod program;
mod train;
mod translate;

use std::{
    fs,
    path::{Path, PathBuf},
    sync::OnceLock,
};

use program::{Assert, Command};

/// A small task, solved in about a second.
pub const RECIPE: &str = r#"
[model]
kind = "rnnsearch"
embedding = 16
hidden = 24
attention_dimension = 16
maxout = 16
dropout = { embedding = 0.0, annotation = 0.0, output = 0.0 }

[data.synthetic]
task = "reverse"
symbols = 6
min_length = 2
max_length = 5
sentences = 320
valid_sentences = 20
test_sentences = 40

[batch]
sentences = 32

[optimizer]
kind = "adam"
clip_norm = 1.0

[schedule]
kind = "constant"
learning_rate = 0.01

[training]
steps = 900
validate_every = 100
log_every = 5
"#;

/// The program, in an environment without a terminal's habits.
pub fn regard() -> Command {
    Command::new()
}

/// Runs the program with arguments.
pub fn run<const N: usize>(arguments: [&str; N]) -> Assert {
    regard().args(arguments).assert()
}

/// What was written to standard output.
pub fn stdout(assert: &Assert) -> String {
    String::from_utf8(assert.get_output().stdout.clone()).expect("output is UTF-8")
}

/// What was written to standard error.
pub fn stderr(assert: &Assert) -> String {
    String::from_utf8(assert.get_output().stderr.clone()).expect("messages are UTF-8")
}

/// Runs the program, which must fail with `code` and say each of `parts` in one message.
pub fn refused<const N: usize, const M: usize>(arguments: [&str; N], code: i32, parts: [&str; M]) {
    refused_command(regard().args(arguments), code, parts);
}

/// As [`refused`], for a command that is made already.
pub fn refused_command<const M: usize>(command: &mut Command, code: i32, parts: [&str; M]) {
    let assert = command.assert().code(code);
    let message = stderr(&assert);
    assert!(message.contains("error: "), "{message}");
    assert!(!message.contains("this is a bug"), "{message}");
    for part in parts {
        assert!(message.contains(part), "{part:?} is not in: {message}");
    }
}

/// The run folder of a model that has learned to reverse `a` to `f`; trained once, by the program.
pub fn trained() -> &'static str {
    static RUN: OnceLock<String> = OnceLock::new();
    RUN.get_or_init(|| {
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("regard-command-run");
        // A former test's folder; on a first run there is none.
        let _ = fs::remove_dir_all(&folder);
        let recipe = file(
            Path::new(env!("CARGO_TARGET_TMPDIR")),
            "regard-command.toml",
            RECIPE,
        );
        let folder = text(&folder);
        run(["train", &recipe, "--folder", &folder, "--quiet"]).success();
        folder
    })
}

/// Writes a file into a folder and gives its path.
pub fn file(folder: &Path, name: &str, content: impl AsRef<[u8]>) -> String {
    let path = folder.join(name);
    fs::write(&path, content).expect("the test folder can be written");
    text(&path)
}

/// A path as an argument.
pub fn text(path: &Path) -> String {
    path.to_str().expect("test paths are UTF-8").to_owned()
}

/// A file's path inside a folder.
pub fn inside(folder: &Path, name: &str) -> (PathBuf, String) {
    let path = folder.join(name);
    let argument = text(&path);
    (path, argument)
}

/// Compares with `tests/snapshots/NAME`. With `REGARD_BLESS=1` in the environment the file is written instead:
/// look at it before committing.
pub fn snapshot(name: &str, found: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/snapshots")
        .join(name);
    if std::env::var_os("REGARD_BLESS").is_some_and(|value| value == "1") {
        fs::write(&path, found).expect("snapshots can be written");
        return;
    }
    let expected = fs::read_to_string(&path)
        .unwrap_or_default()
        .replace("\r\n", "\n");
    assert!(
        found == expected,
        "{name} was:\n{expected}\nis:\n{found}\nREGARD_BLESS=1 accepts it"
    );
}

#[test]
fn help_and_version_are_results() {
    let help = stdout(&run(["--help"]).success());
    for command in [
        "translate",
        "train",
        "evaluate",
        "compare",
        "view",
        "inspect",
        "explain",
        "model",
        "bench",
    ] {
        assert!(help.contains(command), "{help}");
        let help = stdout(&run([command, "--help"]).success());
        assert!(
            help.contains("Examples:") && help.contains(&format!("regard {command}")),
            "{help}"
        );
    }
    let version = stdout(&run(["--version"]).success());
    assert_eq!(version, format!("regard {}\n", env!("CARGO_PKG_VERSION")));
}

#[test]
fn a_wrong_command_line_is_told_from_a_failure() {
    run([]).code(2);
    run(["dance"]).code(2);
    refused(["translate", "--beem", "3", "a"], 2, ["--beam"]);
    refused(["translate", "--device", "tpu", "a"], 2, ["expected cpu"]);
    refused(["train"], 2, ["RECIPE"]);
    refused(["evaluate", "--hypotheses", "x"], 2, ["--references"]);
    refused(["evaluate", "--references", "x"], 2, ["--hypotheses"]);
    refused(
        ["evaluate", "-i", "x", "-r", "y", "--by-length"],
        2,
        ["--source"],
    );
    refused(
        ["evaluate", "-i", "x", "-r", "y", "--bootstrap"],
        2,
        ["second"],
    );
    refused(["evaluate", "-i", "-", "-r", "-"], 2, ["once"]);
    refused(
        ["evaluate", "-i", "x", "-r", "y", "--gold", "z"],
        2,
        ["--alignments"],
    );
    refused(["evaluate", "--alignments", "x"], 2, ["--gold"]);
    refused(
        ["translate", "--model", trained(), "--n-best", "9", "a"],
        2,
        ["--beam 9"],
    );
}

#[test]
fn the_embedded_model_needs_no_name() {
    let sentence = "A man in a red shirt is riding a bicycle.";
    let translation = stdout(&run(["translate", sentence]).success());
    assert!(translation.starts_with("Ein Mann"), "{translation}");
    assert!(stdout(&run(["model"]).success()).contains("en to de"));
}
