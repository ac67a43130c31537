//! Whole layers and algorithms, worked on an example small enough to calculate along.
//!
//! Each topic runs the modules themselves in `f64`, as [`explain`](super::explain) does for single mechanisms, and keeps the steps
//! that they report ([`record`](crate::record)). Weights are drawn from a seed and rounded to one decimal.
//!
//! ```
//! use regard_nn::explain::topics;
//!
//! let lesson = topics::find("self")?.lesson()?;
//! assert_eq!(lesson.mechanism, "self-attention");
//! assert_eq!(lesson.steps.last().unwrap().name, "contexts");
//! # Ok::<(), regard_nn::explain::ExplainError>(())
//! ```
//!
//! | file | what |
//! |---|---|
//! | `heads.rs` | self-attention, several heads, cross-attention |
//! | `recurrent.rs` | steps of Bahdanau's and Luong's decoders and of the LSTMN |
//! | `positions.rs` | sinusoidal, rotary, ALiBi, T5's buckets |
//! | `flash.rs` | attention in tiles |
//! | `images.rs` | SE, CBAM, non-local, residual attention, patches |
//! | `block.rs` | a Transformer block |
//! | `setting.rs` | numbers that an example is computed with: positions, heads, tiles |

use burn::{
    module::{Module, ModuleMapper, Param},
    tensor::{DType, Tensor},
};
use serde::Serialize;

use super::{
    ExplainError, Quantity, Step, Table,
    modules::{device, rows, tensor},
    table::{Row, number},
};
use crate::initialize::Initializer;

mod block;
mod flash;
mod heads;
mod images;
mod positions;
mod recurrent;
mod setting;

pub use setting::Setting;
use setting::{BASES, range, setting};

type Matrix = Vec<Vec<f64>>;

/// One layer or algorithm.
#[derive(Debug, Serialize)]
pub struct Topic {
    /// Its usual name.
    pub name: &'static str,
    /// Other names.
    pub aliases: &'static [&'static str],
    /// What it does, in a line.
    pub summary: &'static str,
    /// Where it is from.
    pub source: &'static str,
    /// What it computes, in a line.
    pub formula: &'static str,
    /// The numbers that its example can be computed with; none if it is always the same.
    pub settings: &'static [Setting],
    #[serde(skip)]
    work: fn(&mut Lesson) -> Result<(), ExplainError>,
}

/// A worked example of a topic.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Lesson {
    /// The topic's name.
    pub mechanism: String,
    /// What it does, in a line.
    pub summary: String,
    /// What it computes, in a line.
    pub formula: String,
    /// Where it is from.
    pub source: String,
    /// The steps in order.
    pub steps: Vec<Step>,
    /// What to notice, in sentences.
    pub remarks: Vec<String>,
    /// The settings and their numbers.
    #[serde(skip)]
    pub numbers: Vec<(&'static str, usize)>,
    /// Whether the next step begins a row of the picture.
    #[serde(skip)]
    at_row: bool,
}

/// All topics.
pub static TOPICS: [Topic; 18] = [
    Topic {
        name: "self-attention",
        aliases: &["self", "intra-attention", "qkv"],
        summary: "every word asks all words of its own sentence: queries, keys and values are made of the same X",
        source: "Vaswani 2017",
        formula: "Q = X W_Q, K = X W_K, V = X W_V;  softmax(Q Kᵀ / √d) V",
        settings: &[],
        work: heads::self_attention,
    },
    Topic {
        name: "multi-head",
        aliases: &["multihead", "mha", "multi-head-attention"],
        summary: "several attentions side by side, each with matrices of its own, put together by W_O",
        source: "Vaswani 2017",
        formula: "head_i = softmax(X W_Q^i (X W_K^i)ᵀ / √d) X W_V^i;  Concat(head_1, .., head_h) W_O",
        settings: &[setting("heads", 2, &range::<4>(1, 1))],
        work: heads::multi_head,
    },
    Topic {
        name: "grouped-query",
        aliases: &["gqa", "grouped-query-attention"],
        summary: "multi-head where several query heads share the keys and values of one head",
        source: "Ainslie 2023",
        formula: "head_i = softmax(X W_Q^i (X W_K^g)ᵀ / √d) X W_V^g, g the group of head i;  Concat(head_1, .., head_h) W_O",
        settings: &[setting("heads", 2, &range::<4>(1, 1))],
        work: heads::grouped_query,
    },
    Topic {
        name: "cross-attention",
        aliases: &["cross", "encoder-decoder"],
        summary: "the words of one sequence X ask those of another, Y",
        source: "Vaswani 2017",
        formula: "Q = X W_Q, K = Y W_K, V = Y W_V;  softmax(Q Kᵀ / √d) V W_O",
        settings: &[],
        work: heads::cross_attention,
    },
    Topic {
        name: "luong-step",
        aliases: &["luong", "luong-decoder"],
        summary: "a step of Luong's decoder with each of his scores: dot, general, concat, location",
        source: "Luong 2015",
        formula: "α = softmax(score(h_t, h̄_s));  c_t = Σ_s α_s h̄_s;  h̃_t = tanh(W_c [c_t; h_t])",
        settings: &[],
        work: recurrent::luong,
    },
    Topic {
        name: "bahdanau-step",
        aliases: &["rnnsearch", "bahdanau-decoder"],
        summary: "bidirectional encoder, and steps of the decoder that searches it",
        source: "Bahdanau 2014",
        formula: "e_j = vᵀ tanh(W s_{i-1} + U h_j);  α = softmax(e);  c_i = Σ_j α_j h_j;  s_i = GRU([y_{i-1}; c_i], s_{i-1})",
        settings: &[],
        work: recurrent::bahdanau,
    },
    Topic {
        name: "lstmn",
        aliases: &["lstmn-steps", "memory-network"],
        summary: "an LSTM that attends to all its earlier states in place of the last one",
        source: "Cheng 2016",
        formula: "a_i = vᵀ tanh(W_h h_i + W_x x_t + W_h̃ h̃_{t-1}), i < t;  [h̃_t; c̃_t] = Σ_i softmax(a)_i [h_i; c_i];  \
                  h_t, c_t = LSTM(x_t, h̃_t, c̃_t)",
        settings: &[],
        work: recurrent::lstmn,
    },
    Topic {
        name: "sinusoidal",
        aliases: &["sinusoids", "positional-encoding"],
        summary: "positions as sines and cosines of many wavelengths, added to embeddings",
        source: "Vaswani 2017",
        formula: "PE(p, 2i) = sin(p / 10000^{2i/d}), PE(p, 2i+1) = cos(p / 10000^{2i/d})",
        settings: &[
            setting("length", 12, &range::<26>(7, 1)),
            setting("dimension", 12, &range::<16>(2, 2)),
            setting("base", 10_000, &BASES),
        ],
        work: positions::sinusoidal,
    },
    Topic {
        name: "rotary",
        aliases: &["rope"],
        summary: "queries and keys rotated by their positions: products then depend on distances alone",
        source: "Su 2021",
        formula: "score(m, n) = (R_m q)ᵀ (R_n k) = qᵀ R_{n-m} k",
        settings: &[
            setting("length", 8, &range::<15>(2, 1)),
            setting("base", 10_000, &BASES),
        ],
        work: positions::rotary,
    },
    Topic {
        name: "alibi",
        aliases: &["linear-biases"],
        summary: "scores fall with the distance, in each head at another rate",
        source: "Press 2021",
        formula: "s_ij ← s_ij - m_h |i - j|, m_h = 2^{-8h/n} for head h of n",
        settings: &[
            setting("length", 6, &range::<11>(2, 1)),
            setting("heads", 4, &range::<8>(1, 1)),
        ],
        work: positions::alibi,
    },
    Topic {
        name: "relative-buckets",
        aliases: &["t5", "t5-relative", "relative-position-bias"],
        summary: "a learned number for each range of distances, added to scores",
        source: "Raffel 2019",
        formula: "s_ij ← s_ij + B[bucket(j - i)]",
        settings: &[
            setting("length", 8, &range::<15>(2, 1)),
            setting("buckets", 8, &range::<4>(4, 4)),
            setting("max-distance", 16, &range::<7>(8, 8)),
        ],
        work: positions::relative_buckets,
    },
    Topic {
        name: "flash",
        aliases: &["flash-attention", "tiled", "online-softmax"],
        summary: "softmax attention, one tile of keys after the other: exact, and no matrix of scores",
        source: "Dao 2022",
        formula: "m' = max(m, max s);  l' = e^{m-m'} l + Σ e^{s-m'};  o' = e^{m-m'} o + Σ e^{s-m'} v;  at the end o / l",
        settings: &[
            setting("length", 6, &range::<11>(2, 1)),
            setting("tile", 2, &range::<6>(1, 1)),
        ],
        work: flash::flash,
    },
    Topic {
        name: "squeeze-excite",
        aliases: &["se", "squeeze-and-excitation", "senet"],
        summary: "which channels of a map matter: a weight for each",
        source: "Hu 2017",
        formula: "z_c = mean of channel c;  s = σ(W_2 ReLU(W_1 z));  x̃_c = s_c x_c",
        settings: &[],
        work: images::squeeze_excite,
    },
    Topic {
        name: "cbam",
        aliases: &["channel-spatial"],
        summary: "which channels of a map matter, then which places",
        source: "Woo 2018",
        formula: "M_c = σ(f(mean) + f(max));  x' = M_c x;  M_s = σ(conv [mean; max over channels of x']);  x'' = M_s x'",
        settings: &[setting("kernel", 3, &[1, 3, 5])],
        work: images::cbam,
    },
    Topic {
        name: "non-local",
        aliases: &["nonlocal", "non-local-block"],
        summary: "self-attention between the places of a map, added to it",
        source: "Wang 2018",
        formula: "y_i = Σ_j softmax_j(θ(x_i)ᵀ φ(x_j)) g(x_j);  z_i = W_z y_i + x_i",
        settings: &[],
        work: images::non_local,
    },
    Topic {
        name: "residual-attention",
        aliases: &["residual", "residual-attention-network", "attention-module"],
        summary: "a mask computed on a smaller map strengthens what the trunk found, and removes nothing",
        source: "Wang 2017",
        formula: "H = (1 + M) ∘ T",
        settings: &[],
        work: images::residual,
    },
    Topic {
        name: "patches",
        aliases: &["vit", "class-token", "patch-embedding"],
        summary: "an image as a sentence of patches, and a class token that reads them",
        source: "Dosovitskiy 2020",
        formula: "tokens = [x_class; patch_1 E + b; ..; patch_N E + b] + E_pos",
        settings: &[setting("patch", 2, &[1, 2, 4])],
        work: images::patches,
    },
    Topic {
        name: "block",
        aliases: &["transformer-block", "transformer-layer", "encoder-layer"],
        summary: "one Transformer block: norm, attention, residual sum, norm, feed-forward, residual sum",
        source: "Vaswani 2017; norms first as Xiong 2020",
        formula: "x ← x + MultiHead(norm(x));  x ← x + W_2 ReLU(W_1 norm(x) + b_1) + b_2",
        settings: &[setting("heads", 2, &[1, 2, 4])],
        work: block::block,
    },
];

/// The topic of this name or alias.
///
/// # Errors
/// A name that is not known.
pub fn find(name: &str) -> Result<&'static Topic, ExplainError> {
    TOPICS
        .iter()
        .find(|topic| topic.name == name || topic.aliases.contains(&name))
        .ok_or_else(|| ExplainError::unknown("topic", name, names()))
}

/// All names and aliases.
pub fn names() -> impl Iterator<Item = &'static str> {
    let of =
        |topic: &'static Topic| std::iter::once(topic.name).chain(topic.aliases.iter().copied());
    TOPICS.iter().flat_map(of)
}

impl Topic {
    /// Computes the worked example.
    ///
    /// # Errors
    /// An error of the modules, which the examples here do not cause.
    pub fn lesson(&self) -> Result<Lesson, ExplainError> {
        self.lesson_with(&[])
    }

    /// The worked example with some of its [`settings`](Self::settings) changed.
    ///
    /// ```
    /// use regard_nn::explain::topics;
    ///
    /// let flash = topics::find("flash")?;
    /// assert_eq!(flash.settings[1].name, "tile");
    /// let tiles = |lesson: topics::Lesson| lesson.steps.iter().filter(|step| step.name.ends_with(": scores")).count();
    /// assert_eq!((tiles(flash.lesson()?), tiles(flash.lesson_with(&[("tile", 3)])?)), (3, 2));
    /// # Ok::<(), regard_nn::explain::ExplainError>(())
    /// ```
    ///
    /// # Errors
    /// A setting that the topic does not have, or a value that is not one of [`Setting::values`].
    pub fn lesson_with(&self, given: &[(&'static str, usize)]) -> Result<Lesson, ExplainError> {
        let mut lesson = Lesson {
            mechanism: self.name.to_owned(),
            summary: self.summary.to_owned(),
            formula: self.formula.to_owned(),
            source: self.source.to_owned(),
            steps: Vec::new(),
            remarks: Vec::new(),
            numbers: self.numbers(given)?,
            at_row: true,
        };
        (self.work)(&mut lesson)?;
        Ok(lesson)
    }
}

impl Lesson {
    /// One step: numbers with names on both sides.
    fn step(
        &mut self,
        quantity: Quantity,
        name: impl Into<String>,
        formula: impl Into<String>,
        [row_names, columns]: [&[String]; 2],
        cells: &Matrix,
    ) {
        let visible = cells
            .iter()
            .map(|row| row.iter().copied().map(Some).collect());
        self.partial(
            quantity,
            name,
            formula,
            [row_names, columns],
            visible.collect(),
        );
    }

    /// The same where some cells have no number.
    fn partial(
        &mut self,
        quantity: Quantity,
        name: impl Into<String>,
        formula: impl Into<String>,
        [row_names, columns]: [&[String]; 2],
        cells: Vec<Vec<Option<f64>>>,
    ) {
        let table = row_names.iter().cloned().zip(cells);
        self.steps.push(Step {
            name: name.into(),
            formula: formula.into(),
            quantity,
            table: Table {
                columns: columns.to_vec(),
                rows: table.map(|(name, cells)| Row { name, cells }).collect(),
            },
            begins_row: quantity.is_drawn() && std::mem::take(&mut self.at_row),
        });
    }

    /// Vectors, one a row, drawn as a matrix; entries are numbered from 1.
    fn matrix(
        &mut self,
        name: impl Into<String>,
        formula: impl Into<String>,
        rows: &[String],
        cells: &Matrix,
    ) {
        let columns = numbered("", cells.first().map_or(0, Vec::len));
        self.step(Quantity::Matrix, name, formula, [rows, &columns], cells);
    }

    /// The next step that is drawn begins a row of the picture.
    fn row(&mut self) {
        self.at_row = true;
    }

    fn remark(&mut self, text: impl Into<String>) {
        self.remarks.push(text.into());
    }
}

/// `prefix1, prefix2, ..`
fn numbered(prefix: &str, count: usize) -> Vec<String> {
    (1..=count).map(|i| format!("{prefix}{i}")).collect()
}

fn named(names: &[&str]) -> Vec<String> {
    names.iter().map(|&name| name.to_owned()).collect()
}

/// `head_1, head_2, ..`: the heads that are put side by side.
fn side_by_side(heads: usize) -> String {
    format!("Concat({})", numbered("head_", heads).join(", "))
}

/// Three words as vectors of four numbers.
fn sentence() -> (Vec<String>, Matrix) {
    let x = vec![
        vec![1.0, 0.0, 1.0, 0.0],
        vec![0.0, 2.0, 0.0, 1.0],
        vec![1.0, 1.0, 0.0, 2.0],
    ];
    (named(&["the", "cat", "sleeps"]), x)
}

/// `[1, rows, size]`
fn sequence(rows: &Matrix) -> Tensor<3> {
    tensor(rows.concat(), [1, rows.len(), rows[0].len()])
}

/// A module made from a seed in `f64`, its weights `scale` times as large as usual, so that weights differ visibly, and rounded to one
/// decimal, so that a reader can calculate along.
fn drawn<M: Module, E>(
    scale: f64,
    make: impl FnOnce(&mut Initializer) -> Result<M, E>,
) -> Result<M, E> {
    Ok(make(&mut Initializer::new(1, &device()))?.map(&mut Rounding(scale)))
}

struct Rounding(f64);

impl ModuleMapper for Rounding {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let (id, values, mapper) = param.consume();
        let shape = values.dims();
        let tenths = rows(values.cast(DType::F64)).concat();
        let rounded = tenths
            .into_iter()
            .map(|x| (10.0 * self.0 * x).round() / 10.0);
        Param::from_mapped_value(id, tensor(rounded.collect(), shape), mapper)
    }
}

fn zeros<const D: usize>(shape: [usize; D]) -> Tensor<D> {
    tensor(vec![0.0; shape.iter().product()], shape)
}

/// Up to three decimals.
fn short(x: f64) -> String {
    number((1000.0 * x).round() / 1000.0)
}
