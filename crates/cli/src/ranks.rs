//! The processes that `mpirun` started, if it did: they run the same command, share its work, and rank 0 alone prints and writes files.

mod images;

use std::{
    fmt::Display,
    fs::{self, File},
    io::Read,
    iter,
    path::{Path, PathBuf},
    process::ExitCode,
};

use regard_train::{
    model_file,
    ranks::{Alone, Ranks},
    tasks::fingerprint,
};

use crate::{
    arguments::Command,
    failure::{CommandError, Failure},
    output,
};

pub use images::{expect_same_files, expect_same_images, expect_same_part};

/// Bytes of a file that are hashed at once.
const PART: u64 = 1 << 20;

/// The ranks of this process' command.
pub fn all() -> &'static dyn Ranks {
    joined().unwrap_or(&Alone)
}

/// Whether this process prints and writes files.
pub fn is_first() -> bool {
    all().is_first()
}

/// Refuses a command that does not share its work.
///
/// # Errors
/// [`Failure::Usage`].
pub fn expect_shared(command: &Command) -> Result<(), Failure> {
    let shared = matches!(
        command,
        Command::Train(_) | Command::Translate(_) | Command::Embed(_) | Command::Evaluate(_)
    );
    match shared || all().is_alone() {
        true => Ok(()),
        false => Err(Failure::Usage(
            "only train, translate, embed and evaluate share their work between processes; start this one without mpirun"
                .to_owned(),
        )),
    }
}

/// Checks that all ranks run the same program with the same files and `options`, and share the same `inputs` out: otherwise their shares
/// would not fit together. `models` are files, run folders and folders of Hugging Face; `options` are those that change what a rank makes
/// of its share, or what it asks of the others, on lines of their own. A process that is alone reads nothing for it.
///
/// # Errors
/// What differs, on all ranks; a file that cannot be read.
pub fn expect_same<T: AsRef<[u8]>>(
    models: impl IntoIterator<Item = PathBuf>,
    inputs: impl IntoIterator<Item = T>,
    options: &str,
) -> Result<(), Failure> {
    compare(all(), models, inputs, options)
}

fn compare<T: AsRef<[u8]>>(
    ranks: &dyn Ranks,
    models: impl IntoIterator<Item = PathBuf>,
    inputs: impl IntoIterator<Item = T>,
    options: &str,
) -> Result<(), Failure> {
    if ranks.is_alone() {
        return Ok(());
    }
    let mut files: Vec<String> = vec![];
    for model in models {
        files.extend(contents(&model, &[])?);
    }
    let inputs = inputs.into_iter().map(|input| hash(input.as_ref()));
    let inputs: Vec<u64> = inputs.collect();
    let shared = format!("{} of hash {:016x}", inputs.len(), hash_of_all(&inputs));
    ranks.expect_same(&[
        ("the files of the model", files.join("\n")),
        ("the inputs", shared),
        ("the options", options.to_owned()),
    ])?;
    Ok(())
}

/// An option as it is typed, or that it is not.
pub fn option(name: &str, value: Option<impl Display>) -> String {
    match value {
        Some(value) => format!("{name} {value}"),
        None => format!("no {name}"),
    }
}

/// The files that `model` is read from, each with its size and a hash of what it holds, in an order that all ranks have. `model` is a file,
/// a run folder or a folder of Hugging Face; of the last, files that are `written` are left out, which have no links in their paths.
///
/// # Errors
/// A file that cannot be read.
pub fn contents(model: &Path, written: &[PathBuf]) -> Result<Vec<String>, Failure> {
    let mut files = read_of(model)?;
    files.retain(|file| !fs::canonicalize(file).is_ok_and(|file| written.contains(&file)));
    let files = files.into_iter();
    files.map(|file| content(model, &file)).collect()
}

/// The files that `model` is read from, in an order that all ranks have: the file itself, that of a run folder, or those of a folder of
/// Hugging Face.
fn read_of(model: &Path) -> Result<Vec<PathBuf>, Failure> {
    if !output::is_configured(model) {
        return Ok(vec![model_file::locate(model)?]);
    }
    let mut files = output::model_files(model);
    files.retain(|path| path.is_file());
    files.sort();
    Ok(files)
}

/// The name of a file of `model`, its size, and a hash of what it holds. What is no plain file, such as a pipe, cannot be read twice.
fn content(model: &Path, path: &Path) -> Result<String, Failure> {
    let inside = path.strip_prefix(model).unwrap_or(path);
    let name = match inside.as_os_str().is_empty() {
        true => path.file_name().unwrap_or_default().display().to_string(),
        false => inside.display().to_string(),
    };
    let refused = |source| CommandError::Read {
        name: path.display().to_string(),
        source,
    };
    if !fs::metadata(path).map_err(refused)?.is_file() {
        return Ok(name);
    }
    let file = File::open(path).map_err(refused)?;
    let (mut bytes, mut size, mut hashes): (Vec<u8>, usize, Vec<u64>) = (vec![], 0, vec![]);
    loop {
        bytes.clear();
        let part = (&file).take(PART).read_to_end(&mut bytes);
        match part.map_err(refused)? {
            0 => break,
            read => size += read,
        }
        hashes.push(hash(&bytes));
    }
    let hash = hash_of_all(&hashes);
    Ok(format!("{name}, {size} bytes of hash {hash:016x}"))
}

/// The hash by which training compares its data, of bytes.
fn hash(bytes: &[u8]) -> u64 {
    let (words, rest) = bytes.as_chunks::<4>();
    let words = words.iter().map(|word| u32::from_le_bytes(*word));
    let rest = rest.iter().map(|&byte| u32::from(byte));
    let words: Vec<u32> = words.chain(rest).chain([bytes.len() as u32]).collect();
    fingerprint(iter::once(words.as_slice()))
}

fn hash_of_all(hashes: &[u64]) -> u64 {
    let bytes = hashes.iter().flat_map(|hash| hash.to_le_bytes());
    hash(&bytes.collect::<Vec<u8>>())
}

/// Reports how the command ended, and parts from the other ranks. If it failed here, all of them end.
pub fn end(done: Result<(), Failure>) -> ExitCode {
    let code = match &done {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            if all().is_alone() || matches!(failure, Failure::Interrupted(_)) {
                failure.report()
            } else {
                abort(failure)
            }
        }
    };
    part();
    code
}

/// Ends all processes after a panic, which has been told.
pub fn end_broken() -> ExitCode {
    if !all().is_alone() {
        kill(1);
    }
    ExitCode::FAILURE
}

fn abort(failure: &Failure) -> ExitCode {
    if !is_first() {
        // If all fail alike, rank 0 says so and ends this one meanwhile.
        std::thread::sleep(std::time::Duration::from_secs(5));
    }
    let code = failure.report();
    kill(failure.code());
    code
}

#[cfg(feature = "mpi")]
mod processes {
    use std::sync::OnceLock;

    use regard_train::ranks::{Mpi, Ranks, RanksError};

    static JOINED: OnceLock<Mpi> = OnceLock::new();

    /// Joins the processes that were started with this one. To be called first, by the main thread.
    ///
    /// # Errors
    /// An MPI library that cannot be used.
    pub fn join() -> Result<(), RanksError> {
        if let Some(joined) = Mpi::join()? {
            JOINED.get_or_init(|| joined);
        }
        Ok(())
    }

    /// The number of this process among those of its machine that work together, from 0.
    pub fn local_rank() -> usize {
        JOINED.get().map_or(0, Mpi::local_rank)
    }

    pub(super) fn joined() -> Option<&'static dyn Ranks> {
        JOINED.get().map(|joined| joined as &dyn Ranks)
    }

    /// Parts from the other ranks, in good order.
    pub fn part() {
        if let Some(joined) = JOINED.get() {
            joined.part();
        }
    }

    /// Ends all processes at once.
    pub fn kill(code: u8) {
        if let Some(joined) = JOINED.get() {
            joined.abort(code);
        }
    }
}

#[cfg(not(feature = "mpi"))]
mod processes {
    use regard_train::ranks::{Ranks, RanksError, launched};

    /// Refuses to be one of several processes: each would do the whole work, all in the same files.
    ///
    /// # Errors
    /// Several processes.
    pub fn join() -> Result<(), RanksError> {
        match launched() {
            Some(count) if count > 1 => Err(RanksError::Carrier(format!(
                "this is one of {count} processes, but this build knows nothing of the others; build regard with `--features mpi`, or start it without mpirun"
            ))),
            _ => Ok(()),
        }
    }

    pub fn local_rank() -> usize {
        0
    }

    pub(super) fn joined() -> Option<&'static dyn Ranks> {
        None
    }

    pub fn part() {}

    pub fn kill(_code: u8) {}
}

pub use processes::{join, kill, local_rank};
use processes::{joined, part};

#[cfg(test)]
mod tests {
    use std::thread;

    use regard_train::ranks::Threads;

    use super::*;

    /// What two ranks are told, each with a model and inputs of its own; both are told the same.
    fn told(models: [&Path; 2], inputs: [&[&str]; 2]) -> Result<(), String> {
        told_with(models, inputs, ["", ""])
    }

    /// The same, also with options of its own.
    fn told_with(
        models: [&Path; 2],
        inputs: [&[&str]; 2],
        options: [&str; 2],
    ) -> Result<(), String> {
        both(|ranks| {
            let own = ranks.rank();
            compare(ranks, [models[own].to_owned()], inputs[own], options[own])
        })
    }

    /// What two ranks are told by what `compare` does on each; both are told the same.
    pub(super) fn both(
        compare: impl Fn(&dyn Ranks) -> Result<(), Failure> + Sync,
    ) -> Result<(), String> {
        let compare = &compare;
        let told = thread::scope(|scope| {
            let ranks = Threads::new(2).into_iter();
            let running = ranks.map(|ranks| {
                scope.spawn(move || {
                    compare(&ranks).map_err(|failure| match failure {
                        Failure::Error(error) => error.to_string(),
                        other => panic!("{other:?}"),
                    })
                })
            });
            let running: Vec<_> = running.collect();
            let told = running.into_iter().map(|thread| thread.join().unwrap());
            told.collect::<Vec<Result<(), String>>>()
        });
        assert_eq!(told[0], told[1]);
        told.into_iter().next().unwrap()
    }

    /// A file of a folder that is made for it.
    pub(super) fn file(folder: &Path, name: &str, content: &str) -> PathBuf {
        let path = folder.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, content).unwrap();
        path
    }

    #[test]
    fn ranks_with_other_files_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        let write = |name: &str, content: &str| file(folder.path(), name, content);
        for run in ["0", "1"] {
            write(&format!("{run}/model.safetensors"), "the weights");
            write(&format!("{run}/recipe.toml"), run);
        }
        let same = told([&path("0"), &path("1")], [&["a", "b"], &["a", "b"]]);
        assert_eq!(same, Ok(()));
        // A run folder is its model, whatever stands beside that.
        let whole = path("0/model.safetensors");
        let same = told([&whole, &path("1/model.safetensors")], [&[], &[]]);
        assert_eq!(same, Ok(()));

        // As long, and its end is no whole word.
        write("1/model.safetensors", "the weighty");
        let differ = told([&path("0"), &path("1")], [&[], &[]]).unwrap_err();
        for part in [
            "rank 1 differs from rank 0 in the files of the model",
            "`model.safetensors, 11 bytes of hash ",
        ] {
            assert!(differ.contains(part), "{differ}");
        }
        // Of several parts the last.
        let long = |end: &str| "0123456789abcdef".repeat(1 << 17) + end;
        let [first, second] = ["0", "1"].map(|end| write(&format!("{end}/long"), &long(end)));
        assert!(told([&first, &second], [&[], &[]]).is_err());
    }

    #[test]
    fn folders_of_hugging_face_are_compared_with_their_modules() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        let write = |name: &str, content: &str| file(folder.path(), name, content);
        for model in ["0", "1"] {
            for name in ["config.json", "model.safetensors", "1_Pooling/config.json"] {
                write(&format!("{model}/{name}"), name);
            }
            // No part of the model.
            write(&format!("{model}/README.md"), model);
            write(&format!("{model}/onnx/model.bin"), model);
        }
        let compared = || told([&path("0"), &path("1")], [&[], &[]]);
        assert_eq!(compared(), Ok(()));
        write("1/1_Pooling/config.json", "another");
        let differ = compared().unwrap_err();
        assert!(
            differ.contains("`1_Pooling/config.json, 7 bytes"),
            "{differ}"
        );
    }

    #[test]
    fn ranks_with_other_inputs_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let model = file(folder.path(), "model.safetensors", "the weights");
        for other in [&["a", "b", "c"][..], &["a", "c"], &["ab", ""], &[]] {
            let differ = told([&model, &model], [&["a", "b"], other]).unwrap_err();
            let count = format!("in the inputs: `{} of hash ", other.len());
            assert!(differ.contains(&count), "{differ}");
        }
    }

    #[test]
    fn ranks_with_other_options_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let model = file(folder.path(), "model.safetensors", "the weights");
        let compared = |options: [&str; 2]| told_with([&model, &model], [&["a"], &["a"]], options);
        assert_eq!(compared(["beam: 1\njson: true"; 2]), Ok(()));
        let differ = compared(["beam: 1\njson: true", "beam: 5\njson: true"]).unwrap_err();
        let expected = "in the options: `beam: 5` in place of `beam: 1`";
        assert!(differ.contains(expected), "{differ}");
    }
}
