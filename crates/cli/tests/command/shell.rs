//! `regard completions` and `regard man`.

use std::{fs, process::Command};

use assert_cmd::cargo::cargo_bin;

use crate::{COMMANDS, inside, refused, run, stdout, text};

#[test]
fn every_shell_completes_every_command() {
    for shell in ["bash", "zsh", "fish", "powershell", "elvish"] {
        let script = stdout(&run(["completions", shell]).success());
        for command in COMMANDS {
            assert!(script.contains(command), "{command} for {shell}");
        }
    }
    refused(["completions", "tcsh"], 2, ["tcsh", "bash", "elvish"]);
}

/// What bash offers after the words, by the script that the command prints; nothing where there is no bash.
fn offered(words: &str) -> Option<String> {
    let regard = cargo_bin!("regard");
    let ask = format!(
        "source <({regard:?} completions bash); COMP_WORDS=({words}); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1)); \
         _regard regard \"${{COMP_WORDS[-1]}}\" \"${{COMP_WORDS[-2]}}\"; echo \"${{COMPREPLY[@]}}\""
    );
    let done = Command::new("bash").args(["-c", &ask]).output().ok()?;
    done.status
        .success()
        .then(|| String::from_utf8_lossy(&done.stdout).into_owned())
}

#[test]
#[cfg(unix)]
fn bash_completes_commands_and_options() {
    let Some(commands) = offered("regard tra") else {
        eprintln!("not tested, no bash: completions");
        return;
    };
    assert_eq!(commands.trim(), "translate train");
    let options = offered("regard translate --be").unwrap();
    assert_eq!(options.trim(), "--beam");
}

#[test]
fn every_command_has_a_manual_page() {
    let folder = tempfile::tempdir().unwrap();
    let (path, pages) = inside(folder.path(), "man1");
    run(["man", "--out", &pages]).success();
    for command in COMMANDS {
        let page = fs::read_to_string(path.join(format!("regard-{command}.1"))).unwrap();
        assert!(page.contains(&format!(".TH regard-{command} 1")), "{page}");
        assert_eq!(stdout(&run(["man", command]).success()), page);
    }
    let page = fs::read_to_string(path.join("regard.1")).unwrap();
    assert!(
        page.contains("SUBCOMMANDS") && page.contains("translate"),
        "{page}"
    );
    // The same on every machine.
    let (_, version) = page.split_once(".SH VERSION\n").unwrap();
    let plain = format!("v{}", env!("CARGO_PKG_VERSION"));
    assert_eq!(version.lines().collect::<Vec<_>>(), [plain]);
    assert_eq!(stdout(&run(["man"]).success()), page);
    refused(["man", "fly"], 2, ["fly", "translate"]);
    refused(["man", "translate", "--out", &pages], 2, ["--out"]);
    let in_the_way = text(&path.join("regard.1"));
    refused(["man", "--out", &in_the_way], 1, ["regard.1"]);
}
