//! `regard evaluate`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use regard_evaluate::{Smoothing, Tokenizer};

use super::{
    Compute, Lengths, Named, Search,
    pretrained::Stored,
    search::{at_least_one, resamples, whole, within},
};

const EXAMPLES: &str = "\
Examples:
  regard evaluate --hypotheses output.de --references test.de
  regard evaluate -i output.de -r test.de -m bleu chrf --lowercase --confidence
  regard evaluate -i old=old.de -r test.de --bootstrap new=new.de
  regard evaluate --model runs/small --source test.en -r test.de -o output.de
  regard evaluate --model runs/reverse-rnnsearch --split test
  regard evaluate --model att=runs/rnnsearch --model none=runs/seq2seq \\
      --source test.en -r test.de --by-length --svg length.svg
  regard evaluate --model runs/sst2-lstmn --split test
  regard evaluate --alignments found.pharaoh --gold gold.pharaoh
  regard evaluate --model openai-community/gpt2 --text book.txt --context 1024 --stride 512
  regard evaluate --model ./gpt2 --text book.txt --free-running 64 --svg running.svg

Scores equal those of sacrebleu 2.6 to the last digit, and are printed with its signature. Files are \
UTF-8, plain or gzip, one sentence a line; `-` is standard input. Short options are sacrebleu's.

A classifier (of `regard train`) is scored by its accuracy on --labelled PATH or --split; a captioner on --split by BLEU, \
CIDEr-D and exact captions, on drawn scenes also by the share of attention inside the object of a word (BLEU and CIDEr-D are those of \
pycocoevalcap with its tokenizer, but hyphens and signs such as & are spaces here, and rare words with an apostrophe, such as y'all \
and 'em, are split in another way); a detector by COCO's average \
precision of its boxes, and by the mean IoU of its masks: over all objects, 0 for those that are not found with a probability of .5. \
Scores of a captioner, a detector and of answers to questions have their 95 % intervals by a bootstrap over the images (--resamples, \
--seed), the accuracy of a classifier has Wilson's. The file of a captioner, of a detector or of a model that answers questions names the \
drawn scenes that it learned from, so that --split needs no recipe beside it.

A model's perplexity is teacher-forced, per token of its own vocabulary. With --gold its alignment is \
taken from its own translations: each target word is linked to the source word it looked at most.

A language model is scored on --text in windows: each token is scored once, with at least --context minus --stride tokens \
before it (at the beginning of the text with all that there are), as in Hugging Face's \"Perplexity of fixed-length models\". The first \
token is not scored. Bits per byte can be compared between models of different vocabularies, perplexities cannot. \
With --free-running the model goes on from prompts of the text, once reading the true tokens (teacher forcing) and once its own \
likeliest ones; loss and accuracy of the true token are given by position.";

/// Score translations, models and alignments
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct Evaluate {
    /// Translations to score; with several files, side by side
    #[arg(short = 'i', long, value_name = "[NAME=]FILE", num_args = 1..)]
    pub hypotheses: Vec<Named>,
    /// Model files or run folders, which translate first; side by side if there are several
    /// [default with --source alone: the embedded model]
    #[arg(long, value_name = "[NAME=]PATH", num_args = 1..)]
    pub model: Vec<Named>,
    /// Reference translations; several files are several references of each sentence
    #[arg(short, long, value_name = "FILE", num_args = 1..)]
    pub references: Vec<PathBuf>,
    /// The text to translate: for --model and --by-length
    #[arg(short, long, value_name = "FILE")]
    pub source: Option<PathBuf>,
    /// Take source, references and, for a synthetic task, the gold alignment from the recipe of the
    /// first model's run folder
    #[arg(long, value_name = "PART", requires = "model", conflicts_with_all = ["source", "references", "gold"])]
    pub split: Option<Part>,
    /// Labelled sentences, one `sentence TAB label` a line, for a classifier of sentences; for one of images a folder with a folder
    /// for each class, or MNIST's or CIFAR's files
    #[arg(long, value_name = "PATH", requires = "model", conflicts_with_all = ["source", "references", "split", "gold"])]
    pub labelled: Option<PathBuf>,
    /// Write the models' translations (or labels), one file for each --model
    #[arg(short, long, value_name = "FILE", num_args = 1..)]
    pub output: Vec<PathBuf>,
    /// Keep the translations that the files of --output hold already, as an interrupted command left them, and make the others
    #[arg(long, requires = "output", conflicts_with = "gold")]
    pub resume: bool,

    /// What to compute
    #[arg(short, long, value_name = "METRIC", num_args = 1.., default_value = "bleu", help_heading = "Scores")]
    pub metric: Vec<MetricName>,
    /// BLEU's tokeniser: 13a, intl, char or none
    #[arg(
        long,
        alias = "tokenize",
        value_name = "NAME",
        default_value = "13a",
        help_heading = "Scores"
    )]
    pub tokenizer: Tokenizer,
    /// Ignore case
    #[arg(long, alias = "lc", help_heading = "Scores")]
    pub lowercase: bool,
    /// BLEU's smoothing: exp, none, floor[=VALUE] or add-k[=VALUE]
    #[arg(
        long,
        value_name = "METHOD",
        default_value = "exp",
        help_heading = "Scores"
    )]
    pub smoothing: Smoothing,
    /// Print the 95 % interval of each score of translations
    #[arg(long, help_heading = "Scores")]
    pub confidence: bool,
    /// Compare the first system with these files, or without a file with the other systems, by a
    /// paired bootstrap
    #[arg(long, value_name = "[NAME=]FILE", num_args = 0.., help_heading = "Scores")]
    pub bootstrap: Option<Vec<Named>>,
    /// Resamples of the bootstrap
    #[arg(long, value_name = "N", default_value = "1000", value_parser = resamples, help_heading = "Scores")]
    pub resamples: usize,
    /// Seed of the bootstrap
    #[arg(
        long,
        value_name = "N",
        default_value = "12345",
        value_parser = whole::<u64>,
        help_heading = "Scores"
    )]
    pub seed: u64,

    /// Also give scores by source length; needs the source
    #[arg(long, help_heading = "Scores by length")]
    pub by_length: bool,
    /// How lengths are grouped, and where the scores are drawn.
    #[command(flatten)]
    pub lengths: Lengths,

    /// The text that a language model is scored on, plain or gzip; --model is then a folder as Hugging Face models have
    /// it, a name in the local cache, or `hf:NAME`
    #[arg(long, value_name = "FILE", help_heading = LANGUAGE, requires = "model", conflicts_with_all = ["hypotheses", "references", "source", "split", "labelled", "gold", "by_length", "bootstrap", "output"])]
    pub text: Option<PathBuf>,
    /// How a language model is scored.
    #[command(flatten)]
    pub language: OfText,

    /// Alignments to score against --gold, in Pharaoh format (`0-0 1-2`)
    #[arg(long, value_name = "FILE", requires = "gold", conflicts_with_all = ["hypotheses", "model"], help_heading = "Alignment")]
    pub alignments: Option<PathBuf>,
    /// The true alignments, in Pharaoh format; `1?2` is possible but not sure
    #[arg(long, value_name = "FILE", help_heading = "Alignment")]
    pub gold: Option<PathBuf>,
    /// The alignment files count words from 1
    #[arg(long, requires = "gold", help_heading = "Alignment")]
    pub one_based: bool,

    /// How a model searches.
    #[command(flatten)]
    pub search: Search,
    /// Print JSON: sacrebleu's for one system of files, else an object with everything
    #[arg(long, conflicts_with = "score_only", help_heading = "Output")]
    pub json: bool,
    /// Print the scores alone
    #[arg(short = 'b', long, help_heading = "Output")]
    pub score_only: bool,
    /// Decimals of scores; an average precision has at least three, an alignment error rate at least four. Those of a classifier, a
    /// captioner, answers to questions and a language model are chosen with --score-only alone
    #[arg(short = 'w', long, alias = "width", value_name = "N", default_value = "1", value_parser = within::<u8>(0..=15), help_heading = "Output")]
    pub digits: u8,
    /// Print no warnings and no progress
    #[arg(short, long, help_heading = "Output")]
    pub quiet: bool,
    /// Where to compute.
    #[command(flatten)]
    pub compute: Compute,
}

impl Evaluate {
    /// The options with which `regard compare` scores finished runs: BLEU and chrF with their intervals, by length, the
    /// first run against the others, on a part of its recipe's data.
    pub fn of_runs(model: Vec<Named>, part: Part) -> Self {
        Self {
            hypotheses: vec![],
            model,
            references: vec![],
            source: None,
            split: Some(part),
            labelled: None,
            resume: false,
            output: vec![],
            metric: vec![MetricName::Bleu, MetricName::Chrf],
            tokenizer: Tokenizer::default(),
            lowercase: false,
            smoothing: Smoothing::default(),
            confidence: true,
            bootstrap: Some(vec![]),
            resamples: 1000,
            seed: 12345,
            by_length: true,
            lengths: Lengths::default(),
            text: None,
            language: OfText::default(),
            alignments: None,
            gold: None,
            one_based: false,
            search: Search::default(),
            json: false,
            score_only: false,
            digits: 2,
            quiet: false,
            compute: Compute::default(),
        }
    }
}

/// The heading of options for language models.
const LANGUAGE: &str = "Language models";

/// How a language model is scored on a text.
#[derive(Debug, Default, Args)]
pub struct OfText {
    /// Most tokens of a window [default: what the model reads, at most 1024]
    #[arg(long, value_name = "N", help_heading = LANGUAGE, requires = "text", value_parser = at_least_one)]
    pub context: Option<usize>,
    /// How far the next window moves, at most --context [default: half of it]
    #[arg(long, value_name = "N", help_heading = LANGUAGE, requires = "text", value_parser = at_least_one)]
    pub stride: Option<usize>,
    /// Compare teacher forcing with free running over N tokens after a prompt
    #[arg(long, value_name = "N", help_heading = LANGUAGE, num_args = 0..=1, default_missing_value = "64", requires = "text",
          conflicts_with_all = ["context", "stride", "score_only"], value_parser = at_least_one)]
    pub free_running: Option<usize>,
    /// How many prompts are taken from the text, evenly spaced [default: 64]
    #[arg(long, value_name = "N", help_heading = LANGUAGE, requires = "free_running", value_parser = at_least_one)]
    pub prompts: Option<usize>,
    /// How many tokens a prompt has [default: 32]
    #[arg(long, value_name = "N", help_heading = LANGUAGE, requires = "free_running", value_parser = at_least_one)]
    pub prompt_tokens: Option<usize>,
    /// How its weights are kept.
    #[command(flatten)]
    pub stored: Stored,
}

/// A metric.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum MetricName {
    /// BLEU
    Bleu,
    /// chrF2
    Chrf,
    /// chrF2++
    #[value(name = "chrf++")]
    ChrfPlusPlus,
}

/// A part of a recipe's data.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Part {
    /// The validation data
    Valid,
    /// The test data
    Test,
}
