//! The command started by `mpirun`, with 2 and 4 processes on this machine. Tried with Open MPI; for another MPI no options are given but
//! the number of processes.

use std::{
    fs,
    io::{BufRead, BufReader},
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
    sync::OnceLock,
};

use serde_json::Value;

/// A small task with everything random: dropout, and inputs that the model wrote itself.
const RECIPE: &str = r#"
[model]
kind = "rnnsearch"
embedding = 16
hidden = 24
attention_dimension = 16
maxout = 16
dropout = { embedding = 0.1, annotation = 0.1, output = 0.1 }
[data.synthetic]
task = "reverse"
symbols = 6
min_length = 2
max_length = 5
sentences = 320
valid_sentences = 21
test_sentences = 40
[batch]
sentences = 30
[optimizer]
kind = "adam"
clip_norm = 1.0
[schedule]
kind = "constant"
learning_rate = 0.003
[training]
threads = 1
steps = 30
validate_every = 10
log_every = 1
average = 2
scheduled_sampling = { final_probability = 0.3, decay_steps = 10 }
[validation]
tokenizer = "none"
"#;

const REGARD: &str = env!("CARGO_BIN_EXE_regard");

fn is_open_mpi() -> bool {
    static IS_OPEN_MPI: OnceLock<bool> = OnceLock::new();
    *IS_OPEN_MPI.get_or_init(|| {
        let told = Command::new("mpirun").arg("--version").output();
        text(&told.expect("mpirun is there").stdout).contains("Open MPI")
    })
}

/// `mpirun` for `count` processes on a machine of any size.
fn mpirun(count: usize, folder: &Path) -> Command {
    mpirun_with(&[], count, folder)
}

/// The same with more options of Open MPI, which no other MPI knows, nor those without which it refuses to be started so.
fn mpirun_with(more: &[&str], count: usize, folder: &Path) -> Command {
    let mut command = Command::new("mpirun");
    if is_open_mpi() {
        command.args(["--allow-run-as-root", "--oversubscribe"]);
        command.args(["--bind-to", "none"]).args(more);
    }
    command.args(["-n", &count.to_string()]).current_dir(folder);
    command
}

/// The command in `folder`, by `count` processes, or without mpirun.
fn regard(count: usize, folder: &Path, arguments: &[&str]) -> Output {
    let mut command = match count {
        0 => {
            let mut alone = Command::new(REGARD);
            alone.current_dir(folder);
            alone
        }
        _ => {
            let mut command = mpirun(count, folder);
            command.arg(REGARD);
            command
        }
    };
    command.args(arguments).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn succeeded(output: &Output) -> String {
    assert!(output.status.success(), "{}", text(&output.stderr));
    text(&output.stdout)
}

/// Losses of all updates and validations.
fn losses(folder: &Path, run: &str) -> Vec<f64> {
    let lines = fs::read_to_string(folder.join(run).join("metrics.jsonl")).unwrap();
    let values = lines
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap());
    values
        .filter_map(|value| value.get("loss")?.as_f64())
        .collect()
}

fn assert_alike(a: &[f64], b: &[f64]) {
    assert_eq!(a.len(), b.len());
    for (a, b) in a.iter().zip(b) {
        assert!((a - b).abs() <= 1e-4 * a.abs(), "{a} and {b}");
    }
}

#[test]
fn processes_make_the_losses_of_one() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    fs::write(folder.join("tiny.toml"), RECIPE).unwrap();
    for (count, run) in [(0, "0"), (1, "1"), (2, "2"), (4, "4"), (2, "again")] {
        let printed = regard(
            count,
            folder,
            &["train", "tiny.toml", "--folder", run, "-q"],
        );
        assert_eq!(
            succeeded(&printed),
            format!("{run}/model.safetensors\n"),
            "by one process"
        );
        assert_eq!(text(&printed.stderr), "");
    }
    let alone = losses(folder, "0");
    assert_eq!(alone.len(), 33);
    assert_eq!(alone, losses(folder, "1"));
    assert_alike(&alone, &losses(folder, "2"));
    assert_alike(&alone, &losses(folder, "4"));
    assert_eq!(losses(folder, "2"), losses(folder, "again"), "bit by bit");
    // The weights, which stand behind the header.
    let model = |run: &str| {
        let bytes = fs::read(folder.join(run).join("model.safetensors")).unwrap();
        let header = u64::from_le_bytes(bytes[..8].try_into().unwrap());
        bytes[8 + header as usize..].to_vec()
    };
    assert_eq!(model("2"), model("again"));
    assert_eq!(model("0"), model("1"));

    // The same work of inference: the same output, in the same order.
    let lines: String = (0..90)
        .map(|i| format!("a b c {}\n", ["d", "e f"][i % 2]))
        .collect();
    fs::write(folder.join("lines.txt"), &lines).unwrap();
    for arguments in [
        &[
            "evaluate",
            "--model",
            "2",
            "--split",
            "test",
            "--tokenizer",
            "none",
        ][..],
        &["translate", "--model", "2", "--input", "lines.txt", "-q"],
        &[
            "translate",
            "--model",
            "2",
            "--input",
            "lines.txt",
            "-q",
            "--batch-sentences",
            "2",
        ],
    ] {
        let one = succeeded(&regard(0, folder, arguments));
        assert!(!one.is_empty());
        for count in [2, 4] {
            assert_eq!(
                succeeded(&regard(count, folder, arguments)),
                one,
                "{arguments:?}"
            );
        }
    }

    // A command that was interrupted goes on after the last whole line.
    let whole = [
        "translate",
        "--model",
        "2",
        "--input",
        "lines.txt",
        "-q",
        "-o",
        "whole.txt",
    ];
    succeeded(&regard(0, folder, &whole));
    let done = fs::read_to_string(folder.join("whole.txt")).unwrap();
    fs::write(folder.join("part.txt"), &done[..done.len() / 3]).unwrap();
    let resumed = [
        "translate",
        "--model",
        "2",
        "--input",
        "lines.txt",
        "-q",
        "-o",
        "part.txt",
        "--resume",
    ];
    for count in [2, 0] {
        succeeded(&regard(count, folder, &resumed));
        assert_eq!(fs::read_to_string(folder.join("part.txt")).unwrap(), done);
    }
    // So does a command that scores what it translates.
    let evaluate = [
        "evaluate",
        "--model",
        "2",
        "--source",
        "lines.txt",
        "--references",
        "lines.txt",
        "--tokenizer",
        "none",
        "-q",
        "-o",
    ];
    let whole = [&evaluate[..], &["evaluated.txt"]].concat();
    let scores = succeeded(&regard(0, folder, &whole));
    let done = fs::read_to_string(folder.join("evaluated.txt")).unwrap();
    fs::write(folder.join("rest.txt"), &done[..done.len() / 3]).unwrap();
    let resumed = [&evaluate[..], &["rest.txt", "--resume"]].concat();
    for count in [2, 0] {
        assert_eq!(succeeded(&regard(count, folder, &resumed)), scores);
        assert_eq!(fs::read_to_string(folder.join("rest.txt")).unwrap(), done);
    }
}

/// A golden file or folder of the models.
fn golden(name: &str) -> PathBuf {
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("../models/tests/golden");
    golden.join(name)
}

/// A tiny pretrained model of random weights, in a folder.
fn pretrained(case: &str, folder: &Path) {
    let from = golden("pretrained").join(case);
    let to = folder.join(case);
    fs::create_dir(&to).unwrap();
    for name in ["config.json", "model.safetensors"] {
        fs::copy(from.join(name), to.join(name)).unwrap();
    }
    fs::copy(golden("scores/tokenizer.json"), to.join("tokenizer.json")).unwrap();
}

#[test]
fn pretrained_models_work_on_shares() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    pretrained("bert", folder);
    pretrained("gpt2", folder);
    let words = [
        "the", "old", "town", "river", "bridge", "money", "bank", "hill",
    ];
    let texts: Vec<String> = (0..40)
        .map(|i| format!("{} {}", words[i % 8], words[i / 5]))
        .collect();
    fs::write(folder.join("book.txt"), texts.join(" ").repeat(3)).unwrap();

    let score = [
        "evaluate",
        "--model",
        "gpt2",
        "--text",
        "book.txt",
        "--context",
        "16",
        "--score-only",
    ];
    let free = [
        "evaluate",
        "--model",
        "gpt2",
        "--text",
        "book.txt",
        "--free-running",
        "8",
        "--prompt-tokens",
        "4",
        "-q",
    ];
    for arguments in [&score[..], &free] {
        let one = succeeded(&regard(0, folder, arguments));
        for count in [2, 4] {
            assert_eq!(
                succeeded(&regard(count, folder, arguments)),
                one,
                "{arguments:?}"
            );
        }
    }

    let embed = |count, more: &[&str]| {
        let texts = texts.iter().map(String::as_str);
        let arguments = ["embed", "--model", "bert", "-q"]
            .into_iter()
            .chain(more.iter().copied());
        succeeded(&regard(
            count,
            folder,
            &arguments.chain(texts).collect::<Vec<_>>(),
        ))
    };
    let lines = embed(0, &[]);
    assert_eq!(lines.lines().count(), texts.len());
    assert_eq!(embed(2, &[]), lines);
    let file = |name: &str| fs::read(folder.join(name)).unwrap();
    embed(0, &["-o", "one.safetensors"]);
    embed(2, &["-o", "two.safetensors", "--resume"]);
    assert_eq!(file("one.safetensors"), file("two.safetensors"));
    // What an interrupted command leaves: some vectors, and a part of one.
    let (output, part) = (
        folder.join("three.safetensors"),
        folder.join("three.safetensors.part"),
    );
    // With a folder in the place of the output all are done, but not written.
    fs::create_dir(&output).unwrap();
    let mut alone = vec!["embed", "--model", "bert", "-q", "--resume"];
    alone.extend(["-o", "three.safetensors"]);
    alone.extend(texts.iter().map(String::as_str));
    assert_eq!(regard(0, folder, &alone).status.code(), Some(1));
    fs::remove_dir(&output).unwrap();
    let done = fs::read_to_string(&part).unwrap();
    // The first line says what they are made with.
    let done: String = done.split_inclusive('\n').take(1 + 34).collect();
    fs::write(&part, &done[..done.len() - 9]).unwrap();
    embed(2, &["-o", "three.safetensors", "--resume"]);
    assert_eq!(file("one.safetensors"), file("three.safetensors"));
    assert!(!part.exists());
}

#[test]
fn an_interrupted_run_goes_on_with_another_number_of_processes() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    fs::write(folder.join("tiny.toml"), RECIPE).unwrap();
    // Ctrl-C reaches the processes through mpirun, which loses what they say from then on, and waits as long as it was told to.
    let waiting = ["--mca", "odls_base_sigkill_timeout", "5"];
    let mut command = mpirun_with(&waiting, 2, folder);
    command.args([REGARD, "train", "tiny.toml", "--folder", "run", "--json"]);
    command.args(["--set", "training.steps=1000000"]);
    // So seldom that the signal, which takes some tens of updates to arrive, never falls upon a validation.
    let seldom = "training.validate_every=10000";
    command.args(["--set", seldom]);
    let mut running = command
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut events = BufReader::new(running.stdout.take().unwrap()).lines();
    let reached = events.by_ref().map(Result::unwrap).any(|line| {
        let event: Value = serde_json::from_str(&line).unwrap();
        event["step"] == 5
    });
    assert!(reached, "each event is told once, by rank 0");
    let interrupted = Command::new("kill")
        .args(["-INT", &running.id().to_string()])
        .status();
    assert!(interrupted.unwrap().success());
    events.for_each(drop);
    assert!(!running.wait_with_output().unwrap().status.success());

    let told = losses(folder, "run");
    let saved = saved_step(folder, "run");
    assert!(
        !saved.is_multiple_of(10_000),
        "in the middle, not at a validation: {saved}"
    );
    // Whoever goes on makes the updates that would have been made.
    let steps = format!("training.steps={}", saved + 15);
    let more = ["--set", &steps, "--set", seldom, "-q"];
    succeeded(&regard(
        2,
        folder,
        &[&["train", "tiny.toml", "--folder", "whole"], &more[..]].concat(),
    ));
    let whole = losses(folder, "whole");
    assert_eq!(told, whole[..told.len()]);
    succeeded(&regard(
        4,
        folder,
        &[&["train", "--resume", "run"], &more[..]].concat(),
    ));
    assert_alike(&whole, &losses(folder, "run"));
}

/// The update of the last line of the run's log, which is that of the checkpoint after an interruption.
fn saved_step(folder: &Path, run: &str) -> u64 {
    let lines = fs::read_to_string(folder.join(run).join("metrics.jsonl")).unwrap();
    let last: Value = serde_json::from_str(lines.lines().last().unwrap()).unwrap();
    last["step"].as_u64().unwrap()
}

/// A process that another library's launcher started finds no others: each would train by itself, in the same folder.
#[test]
fn a_launcher_of_another_library_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("tiny.toml"), RECIPE).unwrap();
    // What MPICH's launcher says, and Slurm with PMIx.
    let said = match is_open_mpi() {
        true => [("PMI_RANK", "0"), ("PMI_SIZE", "2")],
        false => [("PMIX_RANK", "0"), ("SLURM_STEP_NUM_TASKS", "2")],
    };
    let mut alone = Command::new(REGARD);
    alone.args(["train", "tiny.toml", "--folder", "run"]);
    let output = alone.envs(said).current_dir(&folder).output().unwrap();
    let error = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{error}");
    assert!(error.contains("one of 2 processes"), "{error}");
    assert!(!folder.path().join("run").exists());
}

#[test]
fn other_files_on_one_process_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    for rank in 0..4 {
        let recipe = match rank {
            2 => RECIPE.replace("hidden = 24", "hidden = 25"),
            _ => RECIPE.to_owned(),
        };
        fs::write(folder.join(format!("{rank}.toml")), recipe).unwrap();
    }
    let own = format!("{REGARD} train ${{OMPI_COMM_WORLD_RANK:-$PMI_RANK}}.toml --folder run");
    let refused = mpirun(4, folder).args(["sh", "-c", &own]).output().unwrap();
    assert_eq!(refused.status.code(), Some(1));
    let said = text(&refused.stderr);
    let expected =
        "error: rank 2 differs from rank 0 in the recipe: `hidden = 25` in place of `hidden = 24`";
    assert!(said.contains(expected), "{said}");
    assert!(!said.contains("rank 1:"), "it is said once: {said}");
    assert!(!folder.join("run").exists());

    // A command line that is wrong on all is explained once.
    let refused = regard(2, folder, &["train", "0.toml", "--no-such-option"]);
    assert_eq!(refused.status.code(), Some(2));
    let said = text(&refused.stderr);
    assert_eq!(said.matches("unexpected argument").count(), 1, "{said}");

    let refused = regard(2, folder, &["explain", "scaled-dot"]);
    assert_eq!(refused.status.code(), Some(2));
    assert!(text(&refused.stderr).contains("start this one without mpirun"));
}

#[test]
fn another_model_or_text_on_one_process_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    for rank in ["0", "1"] {
        let own = folder.join(rank);
        fs::create_dir(&own).unwrap();
        pretrained("bert", &own);
        pretrained("gpt2", &own);
        let lines = "a man\n".repeat(3 + usize::from(rank == "1"));
        fs::write(own.join("lines.txt"), lines).unwrap();
    }
    let refused_in = |place: &str, arguments: &str, what: &str| {
        let own = format!("cd {place} && {REGARD} {arguments}");
        let own = own.replace("RANK", "${OMPI_COMM_WORLD_RANK:-$PMI_RANK}");
        let refused = mpirun(2, folder).args(["sh", "-c", &own]).output().unwrap();
        assert_eq!(refused.status.code(), Some(1), "{}", text(&refused.stdout));
        let said = text(&refused.stderr);
        let expected = format!("error: rank 1 differs from rank 0 in {what}");
        assert!(said.contains(&expected), "{said}");
    };
    let refused = |arguments: &str, what: &str| refused_in(".", arguments, what);
    // The last weight.
    let weights = folder.join("1/bert/model.safetensors");
    let mut bytes = fs::read(&weights).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    fs::write(&weights, bytes).unwrap();
    refused(
        "embed --model RANK/bert -o vectors.safetensors hill",
        "the files of the model: `model.safetensors, ",
    );
    assert!(!folder.join("vectors.safetensors").exists());
    // Lines and their translations are files of the same length on each rank, with the embedded model.
    refused(
        "evaluate --source RANK/lines.txt --references RANK/lines.txt -o translated.txt",
        "the inputs: `8 of hash ",
    );
    assert!(!folder.join("translated.txt").exists());
    refused(
        "evaluate --model RANK/gpt2 --text RANK/lines.txt --context 2",
        "the inputs: `1 of hash ",
    );
    refused("translate a man RANK", "the inputs: `3 of hash ");
    // The same model and text, but not asked for the same.
    refused(
        "translate --beam RANK5 a man",
        "the options: `\"beam\": 15,` in place of `\"beam\": 5,`",
    );
    refused(
        "evaluate --source 0/lines.txt --references 0/lines.txt --beam RANK5",
        "the options: `\"beam\": 15,`",
    );
    refused(
        "evaluate --model 0/gpt2 --text 0/lines.txt --context RANK2",
        "the options: `--context 12`",
    );
    refused(
        "embed --model 0/bert --prompt RANK hill",
        "the options: `--prompt 1`",
    );
    // Images of the same name: what their files hold.
    let clip = golden("pretrained/clip");
    let clip = clip.to_str().unwrap();
    for rank in ["0", "1"] {
        fs::copy(
            golden("pretrained/clip/photo.png"),
            folder.join(rank).join("photo.png"),
        )
        .unwrap();
    }
    let embed = [
        "embed",
        "--model",
        clip,
        "--image",
        "0/photo.png",
        "--image",
        "1",
    ];
    let one = succeeded(&regard(0, folder, &embed));
    assert_eq!(succeeded(&regard(2, folder, &embed)), one);
    let mut photo = fs::read(folder.join("1/photo.png")).unwrap();
    photo.push(0);
    fs::write(folder.join("1/photo.png"), photo).unwrap();
    refused_in(
        "RANK",
        &format!("embed --model {clip} --image photo.png"),
        "the input files: `photo.png, ",
    );
}

#[test]
fn a_process_that_dies_ends_all_and_leaves_the_checkpoint() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    fs::write(folder.join("tiny.toml"), RECIPE).unwrap();
    let dying = format!(
        "{REGARD} train tiny.toml --folder run --json --set training.steps=100000 & \
         if [ ${{OMPI_COMM_WORLD_RANK:-$PMI_RANK}} = 1 ]; then \
           until [ \"$(wc -l < run/metrics.jsonl)\" -gt 25 ]; do sleep 0.1; done; kill -KILL $!; \
         fi; wait $!"
    );
    let ended = mpirun(2, folder)
        .args(["sh", "-c", &dying])
        .output()
        .unwrap();
    assert!(!ended.status.success(), "{}", text(&ended.stdout));
    assert!(
        !text(&ended.stderr).is_empty(),
        "mpirun says which process died"
    );
    assert!(losses(folder, "run").len() > 20);
    // The checkpoint of the last validation is whole: one process goes on with it.
    let more = [
        "train",
        "--resume",
        "run",
        "-q",
        "--set",
        "training.steps=40",
    ];
    // It may be beyond update 40 already, and then only finishes.
    assert_eq!(
        succeeded(&regard(0, folder, &more)),
        "run/model.safetensors\n"
    );
}
