//! `regard completions`.

use clap::Args;
use clap_complete::Shell;

const EXAMPLES: &str = "\
Examples:
  regard completions bash > ~/.local/share/bash-completion/completions/regard
  regard completions zsh > ~/.zfunc/_regard                 with fpath+=~/.zfunc before compinit in .zshrc
  regard completions fish > ~/.config/fish/completions/regard.fish
  regard completions powershell >> $PROFILE
  regard completions elvish >> ~/.config/elvish/rc.elv";

/// Print the completions of a shell
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct Completions {
    /// The shell
    #[arg(value_name = "SHELL")]
    pub shell: Shell,
}
