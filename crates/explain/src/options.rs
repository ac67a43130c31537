//! The options of `regard explain`.

use std::path::PathBuf;

use clap::Args;
use regard_nn::explain::Parameters;

use crate::{Matrix, Vector};

const EXAMPLES: &str = "\
Examples:
  regard explain --list
  regard explain dot --query 10,5,10 --keys \"0,1,1;5,0,1;1,1,0;0,5,1\"
  regard explain words --svg words.svg
  regard explain self-attention --png self-attention.png
  regard explain flash --tile 3
  regard explain sinusoidal --base 100 --png positions.png
  regard explain additive --query 1,0 --keys \"1,2;3,4\" --vector 1,-1 \\
      --normalizer sparsemax
  regard explain scaled-dot --keys \"1,0;0,1;1,1\" --query \"1,0;0,1;1,1\" --causal
  regard explain ntm --previous 0,1,0 --gate 0 --shift 0,0,1
  regard explain additive --causal --path
  regard explain mask \"window:3 & causal\"
  regard explain mask longformer:2:0 --size 12 --png mask.png

Numbers of a vector are separated by commas, vectors of a list by semicolons. Without vectors the \
example has those of the preset `words`, but sparsemax and entmax15 have longer queries, gaussian-window has queries \
of its own, sliding-window, longformer and block-sparse have eight tokens, and ntm has --gate 0.5 --shift 0,0.2,0.8 --sharpening 2. Matrices act from the left, one row for each output. An \
option that the mechanism does not have is refused.";

/// Show a mechanism at work, step by step, on vectors small enough to read
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct Explain {
    /// A mechanism, layer, algorithm or preset of --list, or `mask`
    #[arg(value_name = "NAME", required_unless_present = "list")]
    pub name: Option<String>,
    /// The mask to draw, after `mask`: masks of --list, combined with &, | and !
    #[arg(value_name = "MASK")]
    pub mask_to_draw: Option<String>,
    /// List mechanisms, layers, algorithms, presets, normalisers and masks
    #[arg(long, conflicts_with_all = ["svg", "png", "html", "check", "quiet"])]
    pub list: bool,
    /// Queries, keys and values.
    #[command(flatten)]
    pub vectors: Vectors,
    /// Mask, normaliser and other choices.
    #[command(flatten)]
    pub mechanism: Mechanism,
    /// Parameters of mechanisms.
    #[command(flatten)]
    pub parameters: ParameterOptions,
    /// Numbers of layers and algorithms.
    #[command(flatten)]
    pub settings: SettingOptions,
    /// What to print and draw.
    #[command(flatten)]
    pub output: Output,
}

/// Vectors and their names.
#[derive(Debug, Args)]
#[command(next_help_heading = "Vectors")]
pub struct Vectors {
    /// Queries
    #[arg(
        long,
        visible_alias = "queries",
        value_name = "VECTORS",
        allow_hyphen_values = true
    )]
    pub query: Option<Matrix>,
    /// Keys
    #[arg(long, value_name = "VECTORS", allow_hyphen_values = true)]
    pub keys: Option<Matrix>,
    /// Values, one for each key [default: the keys]
    #[arg(long, value_name = "VECTORS", allow_hyphen_values = true)]
    pub values: Option<Matrix>,
    /// What the queries are called
    #[arg(long, value_name = "NAME,..", value_delimiter = ',')]
    pub query_names: Vec<String>,
    /// What the keys are called
    #[arg(long, value_name = "NAME,..", value_delimiter = ',')]
    pub key_names: Vec<String>,
}

/// The choices of a mechanism.
#[derive(Debug, Args)]
#[command(next_help_heading = "Mechanism")]
pub struct Mechanism {
    /// What each query may see, such as "window:3 & causal"; of sliding-window, longformer and block-sparse in place of their own
    #[arg(long, value_name = "MASK")]
    pub mask: Option<String>,
    /// No query sees a later key (together with any other mask)
    #[arg(long)]
    pub causal: bool,
    /// From scores to weights: softmax, sparsemax, .. of --list
    #[arg(long, value_name = "NAME")]
    pub normalizer: Option<String>,
    /// The factor of scaled-dot and distance [default: 1/√d]
    #[arg(long, value_name = "X", allow_hyphen_values = true)]
    pub scale: Option<f64>,
    /// Cap scores at ±X by X · tanh(s / X)
    #[arg(long, value_name = "X", allow_hyphen_values = true)]
    pub softcap: Option<f64>,
    /// D of local-m [default: 1] and local-p [default: 2]
    #[arg(long, value_name = "D")]
    pub half_width: Option<usize>,
}

/// The numbers that some mechanisms need beside vectors.
#[derive(Debug, Args)]
#[command(next_help_heading = "Parameters")]
pub struct ParameterOptions {
    /// W of general, additive and location [default: the identity]
    #[arg(long, value_name = "MATRIX", allow_hyphen_values = true)]
    pub query_weight: Option<Matrix>,
    /// U of additive [default: the identity]
    #[arg(long, value_name = "MATRIX", allow_hyphen_values = true)]
    pub key_weight: Option<Matrix>,
    /// v of additive [default: ones]
    #[arg(long, value_name = "VECTOR", allow_hyphen_values = true)]
    pub vector: Option<Vector>,
    /// b inside the tanh of additive [default: zeros]
    #[arg(long, value_name = "VECTOR", allow_hyphen_values = true)]
    pub bias: Option<Vector>,
    /// g of scaled-general and weight-norm-additive [default: 1]
    #[arg(long, value_name = "X", allow_hyphen_values = true)]
    pub gain: Option<f64>,
    /// β of cosine and ntm [default: 1]
    #[arg(long, value_name = "X", allow_hyphen_values = true)]
    pub beta: Option<f64>,
    /// The score of the sink [default: 0]
    #[arg(long, value_name = "X", allow_hyphen_values = true)]
    pub sink: Option<f64>,
    /// b of sigmoid [default: -ln(seen keys)]
    #[arg(long, value_name = "X", allow_hyphen_values = true)]
    pub sigmoid_bias: Option<f64>,
    /// The uniform number, from 0 to below 1, by which hard-sample draws [default: 0.5]
    #[arg(long, value_name = "U", allow_hyphen_values = true)]
    pub draw: Option<f64>,
    /// The weights before the first query, of monotonic and ntm [default: all on the first key]
    #[arg(long, value_name = "VECTOR", allow_hyphen_values = true)]
    pub previous: Option<Vector>,
    /// g of ntm: 1 is content alone, 0 the weights before [default: 1]
    #[arg(long, value_name = "G", allow_hyphen_values = true)]
    pub gate: Option<f64>,
    /// The weights of ntm's shifts, -R to R [default: no shift]
    #[arg(long, value_name = "VECTOR", allow_hyphen_values = true)]
    pub shift: Option<Vector>,
    /// γ of ntm [default: 1]
    #[arg(long, value_name = "X", allow_hyphen_values = true)]
    pub sharpening: Option<f64>,
    /// W_p of local-p [default: the identity]
    #[arg(long, value_name = "MATRIX", allow_hyphen_values = true)]
    pub position_weight: Option<Matrix>,
    /// v_p of local-p [default: ones]
    #[arg(long, value_name = "VECTOR", allow_hyphen_values = true)]
    pub position_vector: Option<Vector>,
}

/// The numbers with which layers and algorithms are worked out. Which a topic has, and with which values, it knows itself.
#[derive(Debug, Args)]
#[command(next_help_heading = "Layers and algorithms")]
pub struct SettingOptions {
    /// How many tokens, positions or keys; a mechanism then reads so many tokens in place of the words
    #[arg(long, value_name = "N")]
    pub length: Option<usize>,
    /// Numbers of a position's vector (sinusoidal)
    #[arg(long, value_name = "N")]
    pub dimension: Option<usize>,
    /// The base of the wavelengths (sinusoidal, rotary)
    #[arg(long, value_name = "N")]
    pub base: Option<usize>,
    /// How many heads (multi-head, grouped-query, alibi, block)
    #[arg(long, value_name = "N")]
    pub heads: Option<usize>,
    /// Keys of a tile (flash)
    #[arg(long, value_name = "N")]
    pub tile: Option<usize>,
    /// How many ranges of distances (relative-buckets)
    #[arg(long, value_name = "N")]
    pub buckets: Option<usize>,
    /// From this distance on all share a bucket (relative-buckets)
    #[arg(long, value_name = "N")]
    pub max_distance: Option<usize>,
    /// Height and width of the convolution (cbam)
    #[arg(long, value_name = "N")]
    pub kernel: Option<usize>,
    /// Height and width of a patch, in pixels (patches)
    #[arg(long, value_name = "N")]
    pub patch: Option<usize>,
}

/// What to print and draw.
#[derive(Debug, Args)]
#[command(next_help_heading = "Output")]
pub struct Output {
    /// Queries and keys of a mask: one number, or QUERIESxKEYS [default: 8, or as long as its lists]
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub size: Option<(usize, usize)>,
    /// Say why the weights are uniform or saturated, if they are (softmax of dot products)
    #[arg(long)]
    pub check: bool,
    /// Say what computes the mechanism on tensors: which kernel, or plain operations and why
    #[arg(long, conflicts_with_all = ["list", "svg", "png", "html", "check", "quiet"])]
    pub path: bool,
    /// Most decimals of printed steps [default: 8]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(0..=15))]
    pub digits: Option<u8>,
    /// Draw the steps from scores to weights as SVG: bars for one query, maps for several, and for `dot`
    /// arrows; a mask as squares
    #[arg(long, value_name = "FILE")]
    pub svg: Option<PathBuf>,
    /// Draw as PNG
    #[arg(long, value_name = "FILE")]
    pub png: Option<PathBuf>,
    /// Write a page with the picture and the numbers, for any browser
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
    /// Print JSON, with all digits
    #[arg(long)]
    pub json: bool,
    /// Print weights and context alone, or a mask without its count
    #[arg(short, long)]
    pub quiet: bool,
}

impl Explain {
    /// The given parameters, which some mechanisms need beside queries and keys.
    pub fn parameters(&self) -> Parameters {
        let matrix = |matrix: &Option<Matrix>| matrix.as_ref().map(|matrix| matrix.0.clone());
        let vector = |vector: &Option<Vector>| vector.as_ref().map(|vector| vector.0.clone());
        let given = &self.parameters;
        Parameters {
            scale: self.mechanism.scale,
            softcap: self.mechanism.softcap,
            query_weight: matrix(&given.query_weight),
            key_weight: matrix(&given.key_weight),
            vector: vector(&given.vector),
            bias: vector(&given.bias),
            gain: given.gain,
            beta: given.beta,
            sink: given.sink,
            sigmoid_bias: given.sigmoid_bias,
            draw: given.draw,
            previous: vector(&given.previous),
            gate: given.gate,
            shift: vector(&given.shift),
            sharpening: given.sharpening,
            position_weight: matrix(&given.position_weight),
            position_vector: vector(&given.position_vector),
        }
    }

    /// The given numbers of layers and algorithms, by name.
    pub fn settings(&self) -> Vec<(&'static str, usize)> {
        let given = &self.settings;
        let all = [
            ("length", given.length),
            ("dimension", given.dimension),
            ("base", given.base),
            ("heads", given.heads),
            ("tile", given.tile),
            ("buckets", given.buckets),
            ("max-distance", given.max_distance),
            ("kernel", given.kernel),
            ("patch", given.patch),
        ];
        let given = all.into_iter();
        given
            .filter_map(|(name, value)| Some((name, value?)))
            .collect()
    }

    /// The first given option that is about single mechanisms or masks, and so means nothing for a layer or an algorithm.
    pub fn of_examples(&self) -> Option<String> {
        let more = [
            ("size", self.output.size.is_some()),
            (
                "mask",
                self.mechanism.mask.is_some() || self.mask_to_draw.is_some(),
            ),
            ("causal", self.mechanism.causal),
        ];
        let given = more.into_iter().find(|(_, given)| *given);
        let given = given.map(|(name, _)| name.to_owned());
        given.or_else(|| self.of_mechanisms())
    }

    /// The given options that are about a mechanism, and so mean nothing for a mask alone.
    pub fn of_mechanisms(&self) -> Option<String> {
        let options = [
            ("query", self.vectors.query.is_some()),
            ("keys", self.vectors.keys.is_some()),
            ("values", self.vectors.values.is_some()),
            ("query-names", !self.vectors.query_names.is_empty()),
            ("key-names", !self.vectors.key_names.is_empty()),
            ("normalizer", self.mechanism.normalizer.is_some()),
            ("half-width", self.mechanism.half_width.is_some()),
            ("check", self.output.check),
            ("path", self.output.path),
        ];
        let given = options.into_iter().filter(|(_, given)| *given);
        let first = given.map(|(name, _)| name).next();
        let parameters = self.parameters();
        let name = first.or_else(|| parameters.given().next())?;
        Some(name.replace(' ', "-"))
    }
}

impl Output {
    /// Whether a picture is written.
    pub fn draws(&self) -> bool {
        self.svg.is_some() || self.png.is_some() || self.html.is_some()
    }
}

/// The most queries or keys of a mask: in a larger picture nothing could be seen.
pub const LARGEST_SIZE: usize = 512;

/// `8` or `4x8`.
fn size(text: &str) -> Result<(usize, usize), String> {
    let (queries, keys) = text.split_once('x').unwrap_or((text, text));
    let number = |part: &str| {
        part.parse()
            .ok()
            .filter(|size| (1..=LARGEST_SIZE).contains(size))
    };
    number(queries)
        .zip(number(keys))
        .ok_or_else(|| format!("expected a number from 1 to {LARGEST_SIZE}, or two as in 4x8"))
}
