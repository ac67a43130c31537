//! `regard generate`.

use clap::Args;

use super::{
    Compute, Show,
    pretrained::{Cache, Pretrained},
    search::{at_least_one, beam, not_negative, whole},
};

const EXAMPLES: &str = "\
Examples:
  regard generate --model openai-community/gpt2 \"Once upon a time\"
  regard generate --model ./smollm --chat \"Why is the sky blue?\"
  regard generate --model ./gpt2 --temperature 0 --max-tokens 50 --png look.png \"The animal didn't cross the street because\"
  regard generate --model ./gpt2 --json < prompts.txt
  regard generate --model runs/shakespeare-transformer-small --slide --max-tokens 500 \"ROMEO:\"

The text is printed as it is written. Without PROMPT, each line of standard input is a prompt; several prompts are written \
together. At the end standard error says how fast it went.

Tokens are drawn after these steps, in this order: the repetition penalty, the temperature, --top-k, --top-p, --min-p. \
A temperature of 0 takes the likeliest token each time. The model's own settings are those of its generation_config.json, or else \
its config.json: its repetition penalty, and the others where it says \"do_sample\": true. The same seed gives the same text \
to the same prompt at the same place among the prompts: each place draws by numbers of its own.

Pictures show the self-attention of the whole text, the prompt included, from one more pass over it.";

/// Write on from a prompt with a language model
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct Generate {
    /// Prompts, one an argument; without any, lines of standard input
    #[arg(value_name = "PROMPT")]
    pub prompts: Vec<String>,
    /// The model.
    #[command(flatten)]
    pub model: Pretrained,
    /// Most tokens of a text
    #[arg(long, value_name = "N", default_value = "128", value_parser = at_least_one)]
    pub max_tokens: usize,
    /// Go on beyond the model's context: when it is full, its older half is forgotten
    #[arg(long, conflicts_with = "beam")]
    pub slide: bool,
    /// End a text before it contains TEXT; may be given several times. With --beam, what was found ends there
    #[arg(long, value_name = "TEXT")]
    pub stop: Vec<String>,
    /// The prompt is a message to the model, by the model's own template of conversations
    #[arg(long)]
    pub chat: bool,
    /// A message before it that says how to answer
    #[arg(long, value_name = "TEXT", requires = "chat")]
    pub system: Option<String>,
    /// Divides the scores: below 1 likely tokens become likelier; 0 takes the likeliest [default: the model's, or 0.8]
    #[arg(long, value_name = "T", value_parser = not_negative, help_heading = "Search")]
    pub temperature: Option<f64>,
    /// Draw from the K likeliest tokens; 0 for all [default: the model's, or 40]
    #[arg(long, value_name = "K", value_parser = whole::<usize>, help_heading = "Search")]
    pub top_k: Option<usize>,
    /// Draw from the fewest tokens whose probabilities sum to P [default: the model's, or 0.95]
    #[arg(long, value_name = "P", value_parser = not_negative, help_heading = "Search")]
    pub top_p: Option<f64>,
    /// Draw from tokens at least P times as likely as the likeliest [default: the model's, or 0]
    #[arg(long, value_name = "P", value_parser = not_negative, help_heading = "Search")]
    pub min_p: Option<f64>,
    /// Above 1, tokens that have occurred become less likely, with --beam too [default: the model's, or 1]
    #[arg(long, value_name = "X", value_parser = not_negative, help_heading = "Search")]
    pub repetition_penalty: Option<f64>,
    /// Where random numbers begin
    #[arg(long, value_name = "N", default_value = "0", value_parser = whole::<u64>, help_heading = "Search")]
    pub seed: u64,
    /// Search for the likeliest text with N hypotheses, without drawing
    #[arg(long, value_name = "N", value_parser = beam, help_heading = "Search",
          conflicts_with_all = ["temperature", "top_k", "top_p", "min_p", "seed"])]
    pub beam: Option<usize>,
    /// How keys and values are kept
    #[arg(
        long,
        value_name = "TYPE",
        default_value = "f32",
        help_heading = "Computing"
    )]
    pub cache: Cache,
    /// What is shown beside it.
    #[command(flatten)]
    pub show: Show,
    /// Where to compute.
    #[command(flatten)]
    pub compute: Compute,
}
