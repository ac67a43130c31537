//! Several processes as one, by threads that stand for them: the losses of one process, the same bits again, checkpoints, refusals.

use std::{
    fs,
    path::Path,
    sync::{
        atomic::{AtomicBool, Ordering},
        mpsc::{Sender, channel},
    },
    thread,
};

use burn::tensor::Device;
use regard_nn::weights;
use regard_train::{
    Registry, TrainError,
    learner::{Event, Reason, Run, Summary},
    ranks::{Alone, Ranks, RanksError, Threads},
    recipe::Recipe,
};

const REVERSE: &str = r#"
[data.synthetic]
task = "reverse"
symbols = 6
min_length = 2
max_length = 6
sentences = 200
valid_sentences = 14
[batch]
sentences = 13
[optimizer]
kind = "adam"
clip_norm = 1.0
[schedule]
kind = "constant"
learning_rate = 0.003
[training]
steps = 24
validate_every = 12
log_every = 1
average = 2
label_smoothing = 0.1
[validation]
tokenizer = "none"
beam = 2
"#;

const RNNSEARCH: &str = r#"
[model]
kind = "rnnsearch"
embedding = 16
hidden = 16
attention_dimension = 16
maxout = 16
dropout = { embedding = 0.2, annotation = 0.2, output = 0.2 }
"#;

const TRANSFORMER: &str = r#"
[model]
kind = "transformer"
d_model = 16
encoder_layers = 2
decoder_layers = 1
heads = 2
feed_forward = 32
dropout = { embedding = 0.2, residual = 0.2, attention = 0.2, activation = 0.2 }
"#;

const LUONG: &str = r#"
[model]
kind = "luong"
embedding = 16
hidden = 16
layers = 2
dropout = { embedding = 0.2, layers = 0.2, annotation = 0.1, output = 0.2 }
"#;

/// Questions of which some speak of objects that are known, and some do not.
const GUIDED_QUESTIONS: &str = r#"
[model]
kind = "vqa"
embedding = 8
hidden = 16
dropout = 0.2
[model.backbone]
channels = 4
[data.scenes]
train = 40
valid = 6
size = 32
questions = 5
[batch]
sentences = 6
[schedule]
kind = "constant"
learning_rate = 0.003
[training]
steps = 24
validate_every = 12
log_every = 1
guided_attention = 0.5
"#;

fn parse(text: &str, overrides: &[&str]) -> Recipe {
    let overrides: Vec<String> = overrides.iter().map(ToString::to_string).collect();
    let parsed = Registry::default().parse(text, "ranks.toml", &overrides);
    parsed.unwrap_or_else(|error| panic!("{error}"))
}

fn train_as(
    ranks: &dyn Ranks,
    recipe: Option<&Recipe>,
    folder: &Path,
    stop_at: Option<u64>,
) -> Result<Summary, TrainError> {
    let stop = AtomicBool::new(false);
    let run = Run {
        folder,
        device: &Device::flex(),
        stop: &stop,
        ranks,
    };
    let mut report = |event: &Event| {
        assert!(ranks.is_first(), "rank 0 alone reports");
        if let Event::Train(metrics) = event
            && Some(metrics.step) == stop_at
        {
            stop.store(true, Ordering::SeqCst);
        }
    };
    match recipe {
        Some(recipe) => Registry::default().train(recipe, &run, &mut report),
        None => Registry::default().resume(&[], &run, &mut report),
    }
}

/// Trains with `count` ranks, each with its recipe; without any goes on with the run in `folder`.
fn train(
    count: usize,
    recipe: impl Fn(usize) -> Option<Recipe> + Sync,
    folder: &Path,
    stop_at: Option<u64>,
) -> Vec<Result<Summary, TrainError>> {
    if count == 1 {
        return vec![train_as(&Alone, recipe(0).as_ref(), folder, stop_at)];
    }
    let recipe = &recipe;
    thread::scope(|scope| {
        let running: Vec<_> = Threads::new(count)
            .into_iter()
            .map(|ranks| {
                scope.spawn(move || {
                    let recipe = recipe(ranks.rank());
                    train_as(&ranks, recipe.as_ref(), folder, stop_at)
                })
            })
            .collect();
        let ended = running.into_iter().map(|thread| thread.join());
        ended.map(|end| end.expect("no panic")).collect()
    })
}

fn run(count: usize, recipe: &Recipe, folder: &Path) {
    for ended in train(count, |_| Some(recipe.clone()), folder, None) {
        assert_eq!(ended.unwrap().reason, Reason::Limit);
    }
}

/// Every number of `metrics.jsonl` that does not depend on the clock, with its key.
fn numbers(folder: &Path) -> Vec<(String, f64)> {
    let text = fs::read_to_string(folder.join("metrics.jsonl")).unwrap();
    let mut all = vec![];
    for line in text.lines() {
        let value: serde_json::Value = serde_json::from_str(line).unwrap();
        for key in ["step", "loss", "perplexity", "gradient_norm"] {
            if let Some(number) = value.get(key).and_then(|number| number.as_f64()) {
                all.push((key.to_owned(), number));
            }
        }
    }
    all
}

fn file(folder: &Path, name: &str) -> Vec<u8> {
    fs::read(folder.join(name)).unwrap()
}

/// The weights of a file, as bits.
fn bits(folder: &Path, name: &str) -> Vec<(String, Vec<u32>)> {
    let (arrays, _) = weights::from_bytes(&file(folder, name)).unwrap();
    let bits = |values: Vec<f32>| values.iter().map(|x| x.to_bits()).collect();
    let named = arrays.into_iter();
    named
        .map(|(name, array)| (name, bits(array.values)))
        .collect()
}

/// Checks that two runs agree up to rounding, which grows with the updates.
fn assert_alike(one: &Path, other: &Path, what: &str) {
    let (one, other) = (numbers(one), numbers(other));
    assert_eq!(one.len(), other.len(), "{what}");
    assert!(one.len() > 20, "{what}");
    for ((key, a), (_, b)) in one.iter().zip(&other) {
        let allowed = 1e-4 * a.abs().max(1e-2);
        assert!((a - b).abs() <= allowed, "{what}: {key} {a} and {b}");
    }
}

/// The losses of one process with 2, 3 and 4, and the same bits from run to run.
fn assert_joined(text: &str, overrides: &[&str]) {
    let folder = tempfile::tempdir().unwrap();
    let recipe = parse(text, overrides);
    let path = |name: &str| folder.path().join(name);
    run(1, &recipe, &path("1"));
    for count in [2, 3, 4] {
        let name = count.to_string();
        run(count, &recipe, &path(&name));
        assert_alike(
            &path("1"),
            &path(&name),
            &format!("{overrides:?}, {count} ranks"),
        );
    }
    run(3, &recipe, &path("again"));
    assert_eq!(numbers(&path("3")), numbers(&path("again")));
    for name in ["last.safetensors", "model.safetensors"] {
        assert_eq!(bits(&path("3"), name), bits(&path("again"), name));
    }
}

#[test]
fn translation_by_rnnsearch() {
    assert_joined(&format!("{RNNSEARCH}{REVERSE}"), &[]);
}

#[test]
fn translation_by_a_transformer() {
    assert_joined(&format!("{TRANSFORMER}{REVERSE}"), &[]);
}

#[test]
fn translation_by_luong() {
    assert_joined(&format!("{LUONG}{REVERSE}"), &[]);
}

#[test]
fn sampled_inputs() {
    let sampled = ["training.scheduled_sampling={ final_probability = 0.5, decay_steps = 4 }"];
    assert_joined(&format!("{RNNSEARCH}{REVERSE}"), &sampled);
}

/// Batch norm has moments of each rank's own images, so that the losses of one process are not those of several; the bits of several are
/// the same from run to run, where a rank has nothing to do as well.
#[test]
fn questions_with_guided_attention() {
    for sentences in [6, 2] {
        let folder = tempfile::tempdir().unwrap();
        let recipe = parse(GUIDED_QUESTIONS, &[&format!("batch.sentences={sentences}")]);
        let path = |name: &str| folder.path().join(name);
        for name in ["once", "again"] {
            run(3, &recipe, &path(name));
        }
        assert_eq!(numbers(&path("once")), numbers(&path("again")));
        let model = |name| bits(&path(name), "model.safetensors");
        assert_eq!(model("once"), model("again"));
    }
}

/// The moments of frozen batch norms are not averaged: rounding would move them.
#[test]
fn frozen_norms_stay_as_they_are() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let short = ["training.steps=6", "training.validate_every=6"];
    run(1, &parse(GUIDED_QUESTIONS, &short), &path("first"));
    let backbone = "answering.BottomUp.backbone.";
    let start = format!("training.start={}", path("first").display());
    let frozen = format!("training.frozen={backbone}");
    let more = [short[0], short[1], start.as_str(), frozen.as_str()];
    run(3, &parse(GUIDED_QUESTIONS, &more), &path("frozen"));
    let of = |name: &str| bits(&path(name), "model.safetensors");
    let (before, after) = (of("first"), of("frozen"));
    assert_ne!(before, after);
    let trunk = |all: Vec<(String, Vec<u32>)>| {
        let all = all.into_iter();
        all.filter(|(name, _)| name.starts_with(backbone))
            .collect::<Vec<_>>()
    };
    let trunk_before = trunk(before);
    let is_moment = |(name, _): &(String, Vec<u32>)| name.ends_with("running_var");
    assert!(trunk_before.iter().any(is_moment));
    assert_eq!(trunk_before, trunk(after));
}

/// A batch of fewer rows than ranks: one has nothing to do.
#[test]
fn a_batch_smaller_than_the_ranks() {
    assert_joined(
        &format!("{RNNSEARCH}{REVERSE}"),
        &[
            "batch.sentences=3",
            "training.steps=70",
            "training.validate_every=35",
        ],
    );
}

#[test]
fn a_run_goes_on_with_another_number_of_ranks() {
    let folder = tempfile::tempdir().unwrap();
    let recipe = parse(&format!("{RNNSEARCH}{REVERSE}"), &[]);
    let path = |name: &str| folder.path().join(name);
    run(1, &recipe, &path("whole"));
    let parted = path("parted");
    for ended in train(3, |_| Some(recipe.clone()), &parted, Some(7)) {
        assert_eq!(ended.unwrap().reason, Reason::Interrupted, "all ranks stop");
    }
    for ended in train(2, |_| None, &parted, Some(15)) {
        assert_eq!(ended.unwrap().reason, Reason::Interrupted);
    }
    for ended in train(4, |_| None, &parted, None) {
        assert_eq!(ended.unwrap().reason, Reason::Limit);
    }
    assert_alike(&path("whole"), &parted, "resumed");
    // With the same number it makes the same bits as without an interruption.
    let (whole, halved) = (path("whole of 3"), path("halved"));
    run(3, &recipe, &whole);
    train(3, |_| Some(recipe.clone()), &halved, Some(9));
    for ended in train(3, |_| None, &halved, None) {
        assert_eq!(ended.unwrap().reason, Reason::Limit);
    }
    assert_eq!(numbers(&whole), numbers(&halved));
    assert_eq!(
        bits(&whole, "model.safetensors"),
        bits(&halved, "model.safetensors")
    );
}

#[test]
fn ranks_with_different_files_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let text = format!("{RNNSEARCH}{REVERSE}");
    let differing = |extra: &'static str| {
        let text = text.clone();
        move |rank| match rank {
            2 => Some(parse(&text, &[extra])),
            _ => Some(parse(&text, &[])),
        }
    };
    for (extra, what, found) in [
        ("training.seed=9", "the recipe", "`seed = 9`"),
        ("model.hidden=24", "the recipe", "`hidden = 24`"),
    ] {
        let run = folder.path().join("refused");
        for ended in train(3, differing(extra), &run, None) {
            let error = ended.unwrap_err();
            let TrainError::Ranks(RanksError::Differ {
                rank,
                what: differs,
                found: had,
                ..
            }) = &error
            else {
                panic!("{error}")
            };
            assert_eq!(
                (*rank, differs.as_str(), had.as_str()),
                (2, what, found),
                "{error}"
            );
        }
        assert!(!run.exists(), "nothing is left of it");
    }
}

/// Rank 0 of several, which tells when it waits for the others: at first that is when it has read the files of a run.
#[derive(Debug)]
struct Telling {
    ranks: Threads,
    waits: Sender<()>,
}

impl Ranks for Telling {
    fn rank(&self) -> usize {
        self.ranks.rank()
    }

    fn count(&self) -> usize {
        self.ranks.count()
    }

    fn exchange(&self, to: &[&[u8]]) -> Result<Vec<Vec<u8>>, RanksError> {
        // Nobody listens after the first time.
        let _ = self.waits.send(());
        self.ranks.exchange(to)
    }
}

/// Trains with two ranks, of which the second begins after `change`, when the first has read its files.
fn train_apart(
    recipe: &Recipe,
    folder: &Path,
    change: impl FnOnce(),
) -> [Result<Summary, TrainError>; 2] {
    let (waits, waiting) = channel();
    let mut ranks = Threads::new(2);
    let last = ranks.pop().unwrap();
    let first = Telling {
        ranks: ranks.pop().unwrap(),
        waits,
    };
    thread::scope(|scope| {
        let first = scope.spawn(move || train_as(&first, Some(recipe), folder, None));
        waiting.recv().expect("rank 0 has read its files");
        change();
        let last = scope.spawn(move || train_as(&last, Some(recipe), folder, None));
        [first, last].map(|thread| thread.join().expect("no panic"))
    })
}

/// The recipe is the same, but not what the files hold that it names.
#[test]
fn ranks_with_different_data_or_weights_are_refused() {
    const TEXT: &str = "a b c\nc b a\nb a b\nc c a\n";
    const SHORT: &str = r#"
[batch]
sentences = 4
[schedule]
kind = "constant"
learning_rate = 0.003
[training]
steps = 2
validate_every = 2
[validation]
tokenizer = "none"
"#;
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let recipe = |more: &[String]| {
        let data = [
            ("train_source", "train"),
            ("train_target", "train"),
            ("valid_source", "valid"),
            ("valid_target", "valid"),
        ];
        let data = data.map(|(key, name)| format!("data.{key}={:?}", path(name)));
        let overrides: Vec<&str> = data.iter().chain(more).map(String::as_str).collect();
        parse(&format!("{RNNSEARCH}{SHORT}"), &overrides)
    };
    for name in ["train", "valid"] {
        fs::write(path(name), TEXT).unwrap();
    }
    for seed in 1..=2 {
        let named = format!("of seed {seed}");
        run(
            1,
            &recipe(&[format!("training.seed={seed}")]),
            &path(&named),
        );
    }
    let [start, other] =
        ["of seed 1", "of seed 2"].map(|run| file(&path(run), "model.safetensors"));
    fs::write(path("start.safetensors"), start).unwrap();
    let recipe = recipe(&[format!("training.start={:?}", path("start.safetensors"))]);
    let text = TEXT.replace("b a b", "b a a").into_bytes();
    for (name, content, what) in [
        ("train", text.clone(), "the training data"),
        ("valid", text, "the validation data"),
        ("start.safetensors", other, "the weights to begin with"),
    ] {
        let former = fs::read(path(name)).unwrap();
        let refused = path("refused");
        let ended = train_apart(&recipe, &refused, || {
            fs::write(path(name), content).unwrap();
        });
        for ended in ended {
            let error = ended.unwrap_err();
            let TrainError::Ranks(RanksError::Differ {
                rank: 1,
                what: differs,
                ..
            }) = &error
            else {
                panic!("{error}")
            };
            assert_eq!(differs, what, "{error}");
        }
        assert!(!refused.exists(), "nothing is left of it");
        fs::write(path(name), former).unwrap();
    }
}

/// A rank that fails ends the others, and the last checkpoint stays.
#[test]
fn a_rank_that_is_gone_ends_all() {
    let folder = tempfile::tempdir().unwrap();
    let run = folder.path().join("run");
    let recipe = parse(&format!("{RNNSEARCH}{REVERSE}"), &[]);
    let refused = |rank| match rank {
        // It goes on with a run, which is not there.
        0 => None,
        _ => Some(recipe.clone()),
    };
    let ended = train(3, refused, &run, None);
    assert!(matches!(ended[0], Err(TrainError::NothingToResume(_))));
    for other in &ended[1..] {
        assert!(
            matches!(other, Err(TrainError::Ranks(RanksError::Gone))),
            "{other:?}"
        );
    }
}

#[test]
fn sums_travel_as_computed() {
    // More than a bucket, and no multiple of the ranks.
    let length = (1 << 20) + 12_345;
    for count in [2, 3, 5] {
        let sent = thread::scope(|scope| {
            let running: Vec<_> = Threads::new(count)
                .into_iter()
                .map(|ranks| {
                    scope.spawn(move || {
                        let seed = ranks.rank() as f32;
                        let of = |seed: f32, i: usize| ((i % 1000) as f32 * 0.37 + seed).sin();
                        let mut values: Vec<f32> = (0..length).map(|i| of(seed, i)).collect();
                        let all: &dyn Ranks = &ranks;
                        all.sum(&mut values).unwrap();
                        for (i, &value) in values.iter().enumerate() {
                            // In the order of the ranks, from 0 on.
                            let sum = (0..count).fold(0.0f32, |sum, r| sum + of(r as f32, i));
                            assert_eq!(value.to_bits(), sum.to_bits());
                        }
                        // All have sent.
                        all.gather(&()).unwrap();
                        ranks.sent()
                    })
                })
                .collect();
            running
                .into_iter()
                .map(|thread| thread.join().unwrap())
                .max()
                .unwrap()
        });
        // Each rank sends the pieces of others, and its sum to all others.
        let computed = 4 * length * 2 * (count - 1);
        assert_eq!(sent, computed as u64, "{count} ranks");
    }
}

#[test]
fn work_is_spread_in_order() {
    let items: Vec<u64> = (0..11).collect();
    for count in [1, 2, 4, 13] {
        thread::scope(|scope| {
            for ranks in Threads::new(count) {
                let items = &items;
                scope.spawn(move || {
                    let all: &dyn Ranks = &ranks;
                    let squares = all.spread(items, |begin, own| {
                        assert_eq!(own.first().copied().unwrap_or(begin as u64), begin as u64);
                        Ok::<Vec<u64>, RanksError>(own.iter().map(|x| x * x).collect())
                    });
                    let expected: Vec<u64> = items.iter().map(|x| x * x).collect();
                    assert_eq!(squares.unwrap(), expected);
                });
            }
        });
    }
}
