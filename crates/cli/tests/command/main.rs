//! The command as a user drives it: every test starts the program and looks at what it prints,
//! writes and returns.

mod bad_input;
mod bench;
mod captions;
mod classifier;
mod compare;
mod detect;
mod evaluate;
mod experiment;
mod explain;
mod images;
mod inspect;
mod language_model;
mod pictures;
mod pretrained;
mod questions;
mod serve;
mod shell;
mod texts;
mod train;
mod translate;
mod unfamiliar;

use std::{
    fs,
    path::{Path, PathBuf},
    sync::OnceLock,
    time::Duration,
};

use assert_cmd::{Command, assert::Assert, cargo::cargo_bin_cmd};
use regard_trace::{Opened, open};
use serde_json::{Value, json};

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

/// The program, without the environment variables that change terminal output.
pub fn regard() -> Command {
    let mut command = cargo_bin_cmd!("regard");
    for variable in ["NO_COLOR", "CLICOLOR_FORCE", "FORCE_COLOR", "COLUMNS"] {
        command.env_remove(variable);
    }
    command.timeout(Duration::from_secs(60));
    command
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

/// Checks that a score of a few images lies in its interval, `[lower, upper]`: many resamples have all images, and so the score itself.
pub fn expect_within(score: &Value, ends: &Value) {
    let [score, lower, upper] = [score, &ends[0], &ends[1]].map(|number| {
        let number = number.as_f64();
        number.unwrap_or_else(|| panic!("no number: {ends}"))
    });
    let rounding = 1e-9;
    assert!(
        lower - rounding <= score && score <= upper + rounding,
        "{score} {ends}"
    );
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

/// Whether queries and keys of a text (`look --long`) give the weights that a look gives, to the rounding of half precision.
pub fn expect_long_as_looked(folder: &Path, model: &str, read: &str, more: &[&str]) {
    let kept = text(&folder.join("long.safetensors"));
    let book = file(folder, "book.txt", read);
    let look = ["look", "--model", model, "--json", read];
    let maps = stdout(&regard().args(look).args(more).assert().success());
    let maps: Vec<Value> = (maps.lines())
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let long = ["look", "--model", model, "--long", &book, "--trace", &kept];
    regard().args(long).args(more).assert().success();
    let Opened::Long(trace) = open(&kept).unwrap() else {
        panic!("not long")
    };
    assert_eq!(trace.maps().len(), maps.len(), "{model}");
    for (index, map) in trace.maps().iter().enumerate() {
        let same = |other: &&Value| {
            other["map"] == map.kind().name() && other["layer"] == json!(map.layer())
        };
        let weights = &maps.iter().find(same).unwrap()["weights"];
        for (head, rows) in weights.as_array().unwrap().iter().enumerate() {
            let queries: Vec<usize> = (0..trace.queries(index).len()).collect();
            let found = trace.head(index, head).unwrap().rows(&queries).unwrap();
            let rows = rows.as_array().unwrap().iter();
            let expected: Vec<&Value> = rows.flat_map(|row| row.as_array().unwrap()).collect();
            assert_eq!(found.len(), expected.len());
            for (weight, expected) in found.iter().zip(expected) {
                let error = (f64::from(*weight) - expected.as_f64().unwrap()).abs();
                let name = map.kind().name();
                assert!(error < 2e-3, "{model} {name} {index} head {head}: {error}");
            }
        }
    }
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
    for command in COMMANDS {
        assert!(help.contains(command), "{help}");
        let help = stdout(&run([command, "--help"]).success());
        assert!(
            help.contains("Examples:") && help.contains(&format!("regard {command}")),
            "{help}"
        );
    }
    let version = format!("regard {}\n", env!("CARGO_PKG_VERSION"));
    assert_eq!(stdout(&run(["-V"]).success()), version);
    let long = stdout(
        &regard()
            .env("REGARD_SIMD", "scalar")
            .arg("--version")
            .assert()
            .success(),
    );
    assert!(long.starts_with(&version), "{long}");
    for line in [
        "kernels:  scalar (of scalar",
        "features: ",
        "devices:  cpu",
        "platform: ",
    ] {
        assert!(long.contains(line), "{line:?} is not in: {long}");
    }
}

/// A build without MPI refuses to be one of several processes, whoever started them: each would do the whole work.
#[cfg(not(feature = "mpi"))]
#[test]
fn one_of_several_processes_is_refused() {
    for said in [
        &[("OMPI_COMM_WORLD_SIZE", "2")][..],
        &[("PMI_RANK", "0"), ("PMI_SIZE", "2")],
        &[("PMIX_RANK", "1"), ("SLURM_STEP_NUM_TASKS", "2")],
    ] {
        let asserted = regard().envs(said.iter().copied()).arg("explain").assert();
        let error = stderr(&asserted.code(1));
        assert!(error.contains("one of 2 processes"), "{said:?}: {error}");
    }
    // One process that a launcher started, and tasks of Slurm that know nothing of each other, are by themselves.
    for said in [("PMI_SIZE", "1"), ("SLURM_STEP_NUM_TASKS", "2")] {
        let mut command = regard();
        command.env(said.0, said.1).arg("--help").assert().success();
    }
}

/// The commands whose help has examples.
pub const COMMANDS: [&str; 18] = [
    "translate",
    "generate",
    "look",
    "fill",
    "classify",
    "answer",
    "embed",
    "similar",
    "train",
    "evaluate",
    "compare",
    "view",
    "inspect",
    "explain",
    "model",
    "bench",
    "completions",
    "man",
];

/// The text of `--help`, of the whole program and of each command, on a terminal of this many columns.
fn helps(columns: &str) -> Vec<String> {
    let whole = std::iter::once(vec!["--help"]);
    let each = COMMANDS.iter().map(|&command| vec![command, "--help"]);
    let said = |arguments: Vec<&str>| {
        let mut command = regard();
        stdout(&command.env("COLUMNS", columns).args(arguments).assert())
    };
    whole.chain(each).map(said).collect()
}

/// Below the options, paragraphs fill the terminal: a line ends only where the next word has no room.
#[test]
fn help_is_wrapped_once() {
    let mut lines = 0;
    for columns in [60, 80, 100] {
        for help in helps(&columns.to_string()) {
            let (_, text) = help.split_once("\nExamples:\n").unwrap();
            let text: Vec<&str> = text.lines().collect();
            for pair in text.windows(2) {
                if pair
                    .iter()
                    .any(|line| line.is_empty() || line.starts_with(' '))
                {
                    continue;
                }
                let word = pair[1].split(' ').next().unwrap();
                let together = pair[0].chars().count() + 1 + word.chars().count();
                assert!(together > columns, "at {columns} columns:\n{help}");
                lines += 1;
            }
        }
    }
    assert!(lines > 100, "{lines}");
}

#[test]
fn help_names_recipes_that_there_are() {
    let recipes = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../recipes");
    let mut seen = 0;
    for help in helps("100") {
        for name in help.split("recipes/").skip(1) {
            let name = name.split_whitespace().next().unwrap();
            assert!(recipes.join(name).is_file(), "recipes/{name} in: {help}");
            seen += 1;
        }
    }
    assert!(seen > 2, "{seen}");
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
        ["evaluate", "--alignments", "-", "--gold", "-"],
        2,
        ["once"],
    );
    refused(
        ["evaluate", "-i", "-", "-r", "x", "--bootstrap", "-"],
        2,
        ["once"],
    );
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
    refused(
        ["evaluate", "-i", "x", "-r", "y", "--resamples=10000001"],
        2,
        ["--resamples", "from 1 to 10000000"],
    );
    for (arguments, expected) in [
        (
            ["translate", "--no-repeat-ngram", "x"],
            "a whole number of at least 0",
        ),
        (
            ["translate", "--threads", "x"],
            "a whole number of at least 1",
        ),
        (
            ["translate", "--batch-sentences", "1048577"],
            "a whole number from 1 to 1048576",
        ),
        (["evaluate", "--seed", "x"], "a whole number of at least 0"),
        (
            ["evaluate", "--digits", "16"],
            "a whole number from 0 to 15",
        ),
        (
            ["experiment", "--seeds", "x"],
            "a whole number from 2 to 100",
        ),
        (["view", "--index", "x"], "a whole number of at least 0"),
        (["serve", "--listen", "x"], "an address with a port"),
    ] {
        let value = format!("invalid value '{}'", arguments[2]);
        refused(arguments, 2, [&value, &format!("expected {expected}")]);
    }
}

#[test]
fn the_embedded_model_needs_no_name() {
    let sentence = "A man in a red shirt is riding a bicycle.";
    let translation = stdout(&run(["translate", sentence]).success());
    assert!(translation.starts_with("Ein Mann"), "{translation}");
    assert!(stdout(&run(["model"]).success()).contains("en to de"));
}
