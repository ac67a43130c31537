//! Starts the program, feeds it, waits, and keeps what it wrote.
//!
//! A crate for this would bring features of common dependencies that the program does without, so that building the tests
//! would build Burn a second time.

use std::{
    ffi::OsStr,
    io::{Read, Write},
    path::Path,
    process::{self, Output, Stdio},
    thread,
    time::{Duration, Instant},
};

/// A program that runs longer hangs.
const PATIENCE: Duration = Duration::from_secs(60);

/// The program, not yet started.
#[derive(Debug)]
pub struct Command {
    process: process::Command,
    stdin: Vec<u8>,
}

/// What the program wrote, and how it ended.
#[derive(Debug)]
pub struct Assert(Output);

impl Command {
    /// The program in an environment without a terminal's habits, with an empty standard input.
    pub fn new() -> Self {
        let mut process = process::Command::new(env!("CARGO_BIN_EXE_regard"));
        for variable in ["NO_COLOR", "CLICOLOR_FORCE", "FORCE_COLOR", "COLUMNS"] {
            process.env_remove(variable);
        }
        process
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        Self {
            process,
            stdin: vec![],
        }
    }

    pub fn arg(&mut self, argument: impl AsRef<OsStr>) -> &mut Self {
        self.process.arg(argument);
        self
    }

    pub fn args(&mut self, arguments: impl IntoIterator<Item: AsRef<OsStr>>) -> &mut Self {
        self.process.args(arguments);
        self
    }

    pub fn env(&mut self, variable: &str, value: &str) -> &mut Self {
        self.process.env(variable, value);
        self
    }

    pub fn current_dir(&mut self, folder: &Path) -> &mut Self {
        self.process.current_dir(folder);
        self
    }

    pub fn write_stdin(&mut self, bytes: impl Into<Vec<u8>>) -> &mut Self {
        self.stdin = bytes.into();
        self
    }

    /// Runs the program to its end.
    pub fn assert(&mut self) -> Assert {
        let mut child = self.process.spawn().expect("the program starts");
        let (mut stdin, bytes) = (child.stdin.take(), std::mem::take(&mut self.stdin));
        // A program that has seen enough closes its input, so that writing may fail.
        let writer = thread::spawn(move || drop(stdin.as_mut().map(|to| to.write_all(&bytes))));
        let [stdout, stderr] = [reader(child.stdout.take()), reader(child.stderr.take())];
        let started = Instant::now();
        let status = loop {
            if let Some(status) = child.try_wait().expect("the program can be waited for") {
                break status;
            }
            if started.elapsed() > PATIENCE {
                child.kill().expect("the program can be ended");
                panic!("{:?} did not end within {PATIENCE:?}", self.process);
            }
            thread::sleep(Duration::from_millis(2));
        };
        writer.join().expect("the writer ends");
        let [stdout, stderr] = [stdout, stderr].map(|reader| reader.join().expect("readers end"));
        Assert(Output {
            status,
            stdout,
            stderr,
        })
    }
}

fn reader(from: Option<impl Read + Send + 'static>) -> thread::JoinHandle<Vec<u8>> {
    thread::spawn(move || {
        let mut bytes = vec![];
        if let Some(mut from) = from {
            from.read_to_end(&mut bytes).expect("output can be read");
        }
        bytes
    })
}

impl Assert {
    #[track_caller]
    pub fn success(self) -> Self {
        self.code(0)
    }

    #[track_caller]
    pub fn code(self, code: i32) -> Self {
        let Output { status, stderr, .. } = &self.0;
        let message = String::from_utf8_lossy(stderr);
        assert_eq!(status.code(), Some(code), "{message}");
        self
    }

    #[track_caller]
    pub fn stdout(self, expected: &str) -> Self {
        assert_eq!(String::from_utf8_lossy(&self.0.stdout), expected);
        self
    }

    pub fn get_output(&self) -> &Output {
        &self.0
    }
}
