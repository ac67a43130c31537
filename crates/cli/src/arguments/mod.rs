//! The command line.
//!
//! Every command has a file with its options. Options that several commands share are structs of
//! their own: [`Compute`], [`Search`], [`Lengths`], [`PictureFiles`], [`Show`] and [`Drawing`].

mod answer;
mod ask;
mod bench;
mod caption;
mod classify;
mod compare;
mod completions;
mod compute;
mod detect;
mod embed;
mod evaluate;
mod experiment;
mod fill;
mod generate;
mod inspect;
mod lengths;
mod look;
mod man;
mod model;
mod named;
mod pictures;
mod pretrained;
mod search;
mod serve;
mod similar;
mod train;
mod translate;
mod view;

use clap::{Parser, Subcommand};

pub use answer::Answer;
pub use ask::Ask;
pub use bench::Bench;
pub use caption::Caption;
pub use classify::Classify;
pub use compare::Compare;
pub use completions::Completions;
pub use compute::Compute;
pub use detect::Detect;
pub use embed::Embed;
pub use evaluate::{Evaluate, MetricName, OfText, Part};
pub use experiment::Experiment;
pub use fill::Fill;
pub use generate::Generate;
pub use inspect::Inspect;
pub use lengths::Lengths;
pub use look::Look as LookText;
pub use man::Man;
pub use model::ModelFile;
pub use named::Named;
pub use pictures::{Drawing, OverImage, PictureFiles, Show};
pub use search::Search;
pub use serve::Serve;
pub use similar::Similar;
pub use train::Train;
pub use translate::{Attention, Translate};
pub use view::View;

const EXAMPLES: &str = "\
Examples:
  regard translate \"A man in a red shirt is riding a bicycle.\"
  regard train recipes/multi30k-en-de-rnnsearch.toml
  regard evaluate --hypotheses output.de --references test.de

Results go to standard output, progress and warnings to standard error.

Exit code: 0 done, 1 it failed (also for a recipe, or a value of --set, that does not fit), 2 wrong command line, \
130 interrupted and saved.";

/// Train models with attention, translate and classify with them, and see what they looked at.
#[derive(Debug, Parser)]
#[command(name = "regard", version, long_version = crate::version::long(), arg_required_else_help = true, max_term_width = 100, after_help = EXAMPLES)]
pub struct CommandLine {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Translate text, and see what the model looked at
    Translate(Box<Translate>),
    /// Write on from a prompt with a language model
    Generate(Box<Generate>),
    /// Show what a model looks at while it reads a text
    Look(Box<LookText>),
    /// Fill in the masked words of a text
    Fill(Box<Fill>),
    /// Describe images in a sentence, and see where the model looked for every word
    Caption(Box<Caption>),
    /// Give texts, the words in them, or images a class
    Classify(Box<Classify>),
    /// Find the objects in images
    Detect(Box<Detect>),
    /// Find answers to questions in a text with a pretrained model
    Answer(Box<Answer>),
    /// Answer questions about an image, and see where the model looked
    Ask(Box<Ask>),
    /// Turn texts, or images, into vectors with a pretrained encoder
    Embed(Embed),
    /// Compare texts, or a word in several texts, by the cosine of their vectors
    Similar(Similar),
    /// Train a model from a recipe
    Train(Train),
    /// Score translations, models, language models and alignments
    Evaluate(Box<Evaluate>),
    /// Train several recipes under one budget, and compare the results
    Compare(Compare),
    /// Show saved attention: a file of `regard translate --trace`
    View(View),
    /// Look at attention in the browser: a model that answers as you type, saved traces, mechanisms with sliders
    Serve(Box<Serve>),
    /// Describe what the heads of saved attention do
    Inspect(Box<Inspect>),
    /// Show a mechanism at work, step by step, on vectors small enough to read
    Explain(Box<regard_explain::Explain>),
    /// Show in minutes what a mechanism does: a table, a figure, and what they say
    Experiment(Experiment),
    /// Describe a model, or write it in another form
    Model(ModelFile),
    /// Measure the kernels on this machine
    Bench(Bench),
    /// Print the completions of a shell
    Completions(Completions),
    /// Print the manual page of a command, or write all of them
    Man(Man),
}
