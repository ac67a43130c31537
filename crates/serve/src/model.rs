//! What the server needs of a model: its name, its input, and what it looked at, with heads switched off if asked.

use std::sync::Arc;

use regard_kernels::stack::{GivenWeights, HeadChange, QueryKeys};
use regard_trace::Trace;
use serde::{Deserialize, Serialize};

/// A model that the page can ask. The server calls it on one thread, one input after the other.
///
/// ```
/// use regard_serve::{Ablation, Input, InputKind, Model, Seen};
/// use regard_trace::{AttentionMap, Kind, Tokens, Trace};
///
/// /// Looks at the word before, and says the last word again.
/// struct Echo;
///
/// impl Model for Echo {
///     fn name(&self) -> &str { "echo" }
///     fn input(&self) -> InputKind { InputKind::Text }
///     fn look(&mut self, input: &Input, ablation: &Ablation) -> Result<Seen, String> {
///         let words = Tokens::from_words(&input.text);
///         let n = words.len();
///         let mut weights = vec![0.0; n * n];
///         for query in 0..n {
///             match ablation.of("self", 0, 0) {
///                 None => weights[query * n + query.saturating_sub(1)] = 1.0,
///                 Some(_) => weights[query * n..][..n].fill(1.0 / n as f32),
///             }
///         }
///         let map = AttentionMap::new(Kind::SelfAttention, words.clone(), words.clone(), 1, weights)
///             .map_err(|error| error.to_string())?;
///         let output = words.last().map_or(String::new(), |word| word.text.clone());
///         Ok(Seen::new(Trace::new("echo", &input.text, &output).with_map(map), output))
///     }
/// }
/// # let input = Input { text: "a b".into(), ..Input::default() };
/// # assert_eq!(Echo.look(&input, &Ablation::default()).unwrap().output, "b");
/// ```
pub trait Model: Send {
    /// The name, as the page shows it.
    fn name(&self) -> &str;

    /// What it takes. It must not change.
    fn input(&self) -> InputKind;

    /// Whether [`look`](Self::look) heeds an ablation; if not, none but the empty one is asked for. It must not change.
    fn changes_heads(&self) -> bool {
        true
    }

    /// Its output for an input, and what it looked at, with the heads of `ablation` changed.
    ///
    /// # Errors
    /// A sentence for the person at the page: what is wrong with the input, and what to do.
    fn look(&mut self, input: &Input, ablation: &Ablation) -> Result<Seen, String>;

    /// Whether [`look`](Self::look) heeds an input's [`Continuation`]; if not, none is asked for. It must not change.
    fn continues(&self) -> bool {
        false
    }

    /// Whether [`query`](Self::query) is answered; if not, the page has no such view. It must not change.
    fn shows_queries(&self) -> bool {
        false
    }

    /// One query with its keys and values, from the same computation as [`look`](Self::look): the weights are those of its trace.
    ///
    /// # Errors
    /// As for [`look`](Self::look), and for a place whose numbers the model does not give.
    fn query(
        &mut self,
        _input: &Input,
        _ablation: &Ablation,
        _place: &QueryPlace,
    ) -> Result<QueryKeys, String> {
        Err("this model gives its weights alone, without queries and keys".to_owned())
    }

    /// Gradient times attention, `a ∂ log p / ∂ a` of every weight `a`, each varied alone, for the output of hypothesis `rank` of the
    /// [`look`](Self::look) at `input` with all heads as they are.
    ///
    /// # Errors
    /// As for [`look`](Self::look); a text that is too long, and a model or an output without gradients.
    fn gradients(&mut self, _input: &Input, _rank: usize) -> Result<Gradients, String> {
        Err("this model computes no gradients of its weights".to_owned())
    }
}

/// Gradient times attention of an output.
#[derive(Clone, Debug, PartialEq)]
pub struct Gradients {
    /// The output, as a person reads it.
    pub output: String,
    /// Its log probability, natural logarithm.
    pub log_probability: f64,
    /// A map for each of the trace's; the order is free.
    pub maps: Vec<GradientMap>,
}

/// Gradient times attention of the weights of a map.
#[derive(Clone, Debug, PartialEq)]
pub struct GradientMap {
    /// The name of the map in the trace.
    pub map: String,
    /// Its layer, counted from 0.
    pub layer: usize,
    /// `[heads, queries, keys]`
    pub shape: [usize; 3],
    /// `a ∂ log p / ∂ a`, of this shape.
    pub products: Vec<f32>,
}

/// A query in the trace of a look.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueryPlace {
    /// Which of the look's hypotheses, 0 for the answer.
    pub rank: usize,
    /// The name of its map.
    pub map: String,
    /// The layer of its map, counted from 0.
    pub layer: usize,
    /// The head, counted from 0.
    pub head: usize,
    /// The query, counted from 0.
    pub query: usize,
}

/// What a model takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum InputKind {
    /// One text.
    Text,
    /// A source and the target that is scored.
    SourceAndTarget,
    /// An image.
    Image,
    /// An image and a question about it.
    ImageAndQuestion,
    /// An image, and texts to compare it with, separated by commas.
    ImageAndLabels,
}

impl InputKind {
    /// Whether a text belongs to the input.
    pub fn has_text(self) -> bool {
        self != Self::Image
    }

    /// Whether a target belongs to the input.
    pub fn has_target(self) -> bool {
        self == Self::SourceAndTarget
    }

    /// Whether an image belongs to the input.
    pub fn has_image(self) -> bool {
        matches!(
            self,
            Self::Image | Self::ImageAndQuestion | Self::ImageAndLabels
        )
    }
}

/// One input; parts that the model's [`InputKind`] does not have are empty.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Input {
    /// The text, the source, the question or the labels.
    pub text: String,
    /// The target.
    pub target: String,
    /// The bytes of an image file as they were dropped: any format, not checked.
    pub image: Vec<u8>,
    /// How the model writes on, if it [can](Model::continues).
    pub continuation: Continuation,
}

/// How a language model writes on after a text. The default writes nothing.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Continuation {
    /// How many tokens at most.
    pub tokens: usize,
    /// Divides the scores before a token is drawn; 0 takes the likeliest.
    pub temperature: f64,
    /// Where the draws begin.
    pub seed: u64,
}

/// The heads that are changed while the model looks. Empty: the model as it is.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Ablation {
    /// Each head at most once, but for its hidden weights.
    pub heads: Vec<AblatedHead>,
}

impl Ablation {
    /// How this head is changed first; `None` if it is not. Layers and heads count from 0.
    pub fn of(&self, map: &str, layer: usize, head: usize) -> Option<Change> {
        let found = |one: &&AblatedHead| one.map == map && one.layer == layer && one.head == head;
        self.heads.iter().find(found).map(|one| one.change.clone())
    }
}

/// One head and what is done to it.
#[derive(Clone, Debug, PartialEq)]
pub struct AblatedHead {
    /// The name of its map, as in the trace.
    pub map: String,
    /// The layer of its map, counted from 0.
    pub layer: usize,
    /// The head, counted from 0.
    pub head: usize,
    /// What is done to it.
    pub change: Change,
}

/// What is done to a head.
#[derive(Clone, Debug, PartialEq)]
pub enum Change {
    /// Its context is 0: nothing is read.
    Off,
    /// Each query gives every key that it may see the same weight.
    Uniform,
    /// One query gives one key no weight, and the others of its row what that one had, each in proportion. Positions count from 0.
    Hide {
        /// The position of the query.
        query: usize,
        /// The position of the key.
        key: usize,
    },
    /// Its weights are those that it has for another input, by position: of each query over the keys that it may see and that the other
    /// input has, divided by their sum. A query beyond the end of the other input keeps its own weights.
    Replace(Arc<GivenWeights>),
}

impl From<&Change> for HeadChange {
    fn from(change: &Change) -> Self {
        match change {
            Change::Off => Self::Off,
            Change::Uniform => Self::Uniform,
            &Change::Hide { query, key } => Self::Hide { query, key },
            Change::Replace(given) => Self::Replace(given.clone()),
        }
    }
}

/// What a model answered, and what it looked at.
#[derive(Clone, Debug, PartialEq)]
pub struct Seen {
    /// The maps. Their names, layers and heads are those that an [`Ablation`] names.
    pub trace: Trace,
    /// The answer as a person reads it.
    pub output: String,
    /// The best alternatives with their probabilities, largest first; empty if the model has none.
    pub alternatives: Vec<Alternative>,
    /// How the answer was searched for, of a model that writes.
    pub generation: Option<Generation>,
    /// How much of the text was read, if it was cut.
    pub cut: Option<Cut>,
}

impl Seen {
    /// An answer without alternatives.
    pub fn new(trace: Trace, output: impl Into<String>) -> Self {
        Self {
            trace,
            output: output.into(),
            alternatives: vec![],
            generation: None,
            cut: None,
        }
    }
}

impl From<Trace> for Seen {
    /// A trace without an answer beside it.
    fn from(trace: Trace) -> Self {
        Self::new(trace, "")
    }
}

/// A text that is longer than the model reads, of which it read the beginning.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Cut {
    /// How many tokens the text has.
    pub tokens: usize,
    /// How many of them were read.
    pub read: usize,
}

/// Something that the model could have answered.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Alternative {
    /// The class, the next token, the answer. Alternatives of one text count together.
    pub text: String,
    /// Its probability, 0 to 1.
    pub probability: f64,
}

/// The tree of a search, by beam or along one path.
#[derive(Clone, Debug, PartialEq)]
pub struct Generation {
    /// Parents before their children.
    pub proposals: Vec<Proposed>,
    /// The texts that were found, the answer first.
    pub hypotheses: Vec<Hypothesis>,
}

/// A token that the model proposed.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Proposed {
    /// The place of the token before it; `None` for the first.
    pub parent: Option<usize>,
    /// The token.
    pub text: String,
    /// Its probability after the tokens before it, 0 to 1.
    pub probability: f64,
    /// Whether the search went on from it, or ended with it.
    pub taken: bool,
}

/// A text that a search found.
#[derive(Clone, Debug, PartialEq)]
pub struct Hypothesis {
    /// The place of its last token among the proposals.
    pub leaf: usize,
    /// Its text (`target`), its score, and what the model looked at for it. That of the answer is [`Seen::trace`].
    pub trace: Trace,
}
