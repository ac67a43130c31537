//! `[model]`: the architecture and its sizes.

use serde::{Deserialize, Serialize};

use super::section::{plain_fields, section};

/// The model, chosen by `kind`.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
pub enum Model {
    /// Bahdanau, Cho and Bengio 2014.
    Rnnsearch(Rnnsearch),
    /// Luong, Pham and Manning 2015.
    Luong(Luong),
    /// Vaswani et al. 2017.
    Transformer(Transformer),
    /// No attention: Cho et al. 2014 or Sutskever, Vinyals and Le 2014.
    Seq2seq(Seq2seq),
    /// A sentence classifier: Cheng, Dong and Lapata 2016.
    Lstmn(Lstmn),
    /// A sentence classifier without attention.
    Lstm(Lstm),
    /// A sentence classifier: Lin et al. 2017.
    #[serde(rename = "self-attentive")]
    SelfAttentive(SelfAttentive),
    /// Wu et al. 2016.
    Gnmt(Gnmt),
}

/// What a model is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Task {
    /// From a sentence to another one.
    Translation,
    /// From a sentence to a label.
    Classification,
}

impl Model {
    /// The name in `kind`.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Rnnsearch(_) => "rnnsearch",
            Self::Luong(_) => "luong",
            Self::Transformer(_) => "transformer",
            Self::Seq2seq(_) => "seq2seq",
            Self::Lstmn(_) => "lstmn",
            Self::Lstm(_) => "lstm",
            Self::SelfAttentive(_) => "self-attentive",
            Self::Gnmt(_) => "gnmt",
        }
    }

    /// What the model is for.
    pub fn task(&self) -> Task {
        match self {
            Self::Rnnsearch(_)
            | Self::Luong(_)
            | Self::Transformer(_)
            | Self::Seq2seq(_)
            | Self::Gnmt(_) => Task::Translation,
            Self::Lstmn(_) | Self::Lstm(_) | Self::SelfAttentive(_) => Task::Classification,
        }
    }

    /// Which embeddings are shared.
    pub fn tie(&self) -> Tie {
        match self {
            Self::Rnnsearch(model) => model.tie,
            Self::Luong(model) => model.tie,
            Self::Transformer(model) => model.tie,
            Self::Seq2seq(model) => model.tie,
            Self::Gnmt(model) => model.tie,
            Self::Lstmn(_) | Self::Lstm(_) | Self::SelfAttentive(_) => Tie::None,
        }
    }
}

/// Which matrices of word vectors are one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Tie {
    /// None: source embedding, target embedding and output projection are separate.
    #[default]
    None,
    /// Target embedding and output projection (Press and Wolf 2017).
    Target,
    /// All three; needs a joint vocabulary.
    All,
}

/// How parameters start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Initialisation {
    /// As the model's paper says.
    Paper,
    /// Scaled uniform, as deep-learning libraries do today.
    #[default]
    Default,
}

/// Luong's score functions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Score {
    /// `s . h`
    Dot,
    /// `s . W h`
    #[default]
    General,
    /// `v . tanh(W [s; h])`
    Concat,
    /// `W s`: the position alone.
    Location,
}

/// Where Luong's attention may look.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum AttentionKind {
    /// Everywhere.
    #[default]
    Global,
    /// In a window around the target's own position.
    LocalM,
    /// In a window around a position that the decoder predicts.
    LocalP,
}

/// The recurrent cell of the model without attention.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Cell {
    /// Cho's GRU: the source's summary enters every step.
    #[default]
    GruContext,
    /// Sutskever's stacked LSTM: the decoder starts from the encoder's last state.
    Lstm,
}

/// How an encoder reads the source.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Encoder {
    /// First word first.
    Forward,
    /// Last word first (Luong 2015).
    #[default]
    Reversed,
    /// Both ways at once.
    Bidirectional,
}

/// What stands between the products of a feed-forward network.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Activation {
    /// `max(x, 0)`
    #[default]
    Relu,
    /// `x Φ(x)`
    Gelu,
    /// `SiLU(W_g x) ∘ W_1 x`
    Swiglu,
}

/// The norms of a Transformer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Norm {
    /// Layer norm.
    #[default]
    Layer,
    /// RMS norm.
    Rms,
}

/// Where the norms of a Transformer stand.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum NormPlace {
    /// Before each block.
    #[default]
    Pre,
    /// After each residual sum.
    Post,
}

/// How a Transformer knows where a token stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Positions {
    /// Sines and cosines, added to embeddings.
    #[default]
    Sinusoidal,
    /// Trained vectors, added to embeddings.
    Learned,
    /// Queries and keys are turned by their positions.
    Rotary,
    /// Trained vectors for distances, compared with queries.
    Relative,
}

plain_fields!(Encoder, Tie, Initialisation, Score, AttentionKind, Cell);
plain_fields!(Activation, Norm, NormPlace, Positions);

section! {
    /// Shares of units set to zero in training, by place.
    pub struct Dropout {
        /// On word vectors, in [0, 1).
        embedding: f64 = 0.2;
        /// On the encoder's annotations, in [0, 1).
        annotation: f64 = 0.2;
        /// On what the output projection reads, in [0, 1).
        output: f64 = 0.2;
    }
}

section! {
    /// Shares of units set to zero in training, by place, with stacked layers.
    pub struct StackDropout {
        /// On word vectors, in [0, 1).
        embedding: f64 = 0.2;
        /// Between stacked layers, in [0, 1); not on recurrent connections.
        layers: f64 = 0.2;
        /// On the encoder's annotations (or the one summary vector), in [0, 1).
        annotation: f64 = 0.0;
        /// On what the output projection reads, in [0, 1).
        output: f64 = 0.2;
    }
}

section! {
    /// RNNsearch: bidirectional GRU encoder, additive attention from the previous decoder state,
    /// maxout readout (Bahdanau, Cho and Bengio 2014, appendix A).
    pub struct Rnnsearch {
        /// Size of a word vector (m in the paper, there 620).
        embedding: usize = 256;
        /// Size of the decoder state and of each encoder direction (n, there 1000).
        hidden: usize = 256;
        /// Size of the alignment model's hidden layer (n', there 1000).
        attention_dimension: usize = 256;
        /// Size of the readout after maxout (l, there 500).
        maxout: usize = 256;
        /// Shared word vectors: "none", "target" (target embedding and output projection) or
        /// "all" (the source embedding too; needs a joint vocabulary).
        tie: Tie = Tie::None;
        /// Starting parameters: "paper" or "default".
        initialisation: Initialisation = Initialisation::Default;
        /// Dropout.
        dropout: Dropout = Dropout::default();
    }
}

section! {
    /// Luong's model: stacked LSTMs, attention from the current top state.
    pub struct Luong {
        /// Size of a word vector.
        embedding: usize = 256;
        /// Size of a layer's state.
        hidden: usize = 256;
        /// Number of stacked layers in encoder and decoder.
        layers: usize = 1;
        /// Score function: "dot", "general", "concat" or "location".
        score: Score = Score::General;
        /// Where to look: "global", "local-m" (monotonic) or "local-p" (predicted).
        attention: AttentionKind = AttentionKind::Global;
        /// Half width D of the window of local attention, in tokens.
        window: usize = 10;
        /// Whether the attentional state h~ is part of the next input.
        input_feeding: bool = true;
        /// Size of the alignment model's hidden layer; for score "concat".
        attention_dimension: usize = 256;
        /// Longest source in tokens, the end marker included; for score "location".
        max_source_length: usize = 100;
        /// How the encoder reads the source: "forward", "reversed" (as in the paper) or
        /// "bidirectional" (each direction with half of the units).
        encoder: Encoder = Encoder::Reversed;
        /// Shared word vectors: "none", "target" or "all".
        tie: Tie = Tie::None;
        /// Dropout.
        dropout: StackDropout = StackDropout::default();
    }
}

section! {
    /// Shares of numbers set to zero in training, by place, of a Transformer.
    pub struct TransformerDropout {
        /// On the sums of word vectors and positions, in [0, 1).
        embedding: f64 = 0.1;
        /// On what each block gives, before the residual sum, in [0, 1).
        residual: f64 = 0.1;
        /// On attention weights, in [0, 1).
        attention: f64 = 0.0;
        /// Between the products of the feed-forward network, in [0, 1).
        activation: f64 = 0.0;
    }
}

section! {
    /// Transformer: self-attention in every layer of encoder and decoder, and attention from the
    /// decoder's layers to the encoder's last states (Vaswani et al. 2017).
    pub struct Transformer {
        /// Size of a word vector and of every state (there 512).
        model_size: usize = 256;
        /// Layers of the encoder (there 6).
        encoder_layers: usize = 3;
        /// Layers of the decoder (there 6).
        decoder_layers: usize = 3;
        /// Heads, a divisor of model_size (there 8).
        heads: usize = 8;
        /// Key/value heads, a divisor of heads; as many as heads if left out.
        key_value_heads: Option<usize> = None, example "2";
        /// Inner size of the feed-forward network (there 2048).
        feed_forward: usize = 1_024;
        /// Between its products: "relu", "gelu" or "swiglu".
        activation: Activation = Activation::Relu;
        /// Norms: "layer" or "rms".
        norm: Norm = Norm::Layer;
        /// Where they stand: "pre" (before each block) or "post" (after it, as in the paper).
        norm_place: NormPlace = NormPlace::Pre;
        /// How a token knows its place: "sinusoidal", "learned", "rotary" or "relative".
        positions: Positions = Positions::Sinusoidal;
        /// Longest sentence in tokens, its marks included; for positions "learned".
        max_length: usize = 256;
        /// Largest distance that has a vector of its own; for positions "relative".
        reach: usize = 16;
        /// How many tokens back (in the encoder: to either side) self-attention sees, the token
        /// itself among them; all if left out.
        window: Option<usize> = None, example "64";
        /// Whether products have biases.
        bias: bool = true;
        /// Shared word vectors: "none", "target" or "all".
        tie: Tie = Tie::None;
        /// Dropout.
        dropout: TransformerDropout = TransformerDropout::default();
    }
}

section! {
    /// Encoder and decoder without attention, the baseline.
    pub struct Seq2seq {
        /// "gru-context" (Cho et al. 2014) or "lstm" (Sutskever, Vinyals and Le 2014).
        cell: Cell = Cell::GruContext;
        /// Size of a word vector.
        embedding: usize = 256;
        /// Size of a layer's state.
        hidden: usize = 256;
        /// Number of stacked layers; cell "gru-context" has one.
        layers: usize = 1;
        /// Size of the readout after maxout; for cell "gru-context".
        maxout: usize = 256;
        /// Whether the encoder reads the source backwards.
        reverse_source: bool = false;
        /// Shared word vectors: "none", "target" or "all".
        tie: Tie = Tie::None;
        /// Dropout.
        dropout: StackDropout = StackDropout::default();
    }
}

section! {
    /// GNMT: deep stacks of LSTMs with residual connections, additive attention asked by the bottom
    /// decoder layer and read by all of them (Wu et al. 2016, section 3).
    pub struct Gnmt {
        /// Size of a word vector (there 1024).
        embedding: usize = 256;
        /// Size of a layer's state, and of each direction of the first encoder layer (there 1024).
        hidden: usize = 256;
        /// Number of layers of the encoder and of the decoder, at least 2 (there 8).
        layers: usize = 8;
        /// Size of the alignment model's hidden layer (there 1024).
        attention_dimension: usize = 256;
        /// Shared word vectors: "none", "target" or "all".
        tie: Tie = Tie::None;
        /// Dropout.
        dropout: StackDropout = StackDropout::default();
    }
}

section! {
    /// Shares of units set to zero in training, by place, of a sentence classifier.
    pub struct ClassifierDropout {
        /// Of whole words, in [0, 1).
        word: f64 = 0.1;
        /// On word vectors, in [0, 1).
        embedding: f64 = 0.3;
        /// Between stacked layers, in [0, 1); not on recurrent connections.
        layers: f64 = 0.3;
        /// On the pooled vector and the classifier's hidden layer, in [0, 1).
        output: f64 = 0.5;
    }
}

section! {
    /// Long short-term memory-network: a sentence classifier that reads word by word and searches
    /// everything read so far by attention (Cheng, Dong and Lapata 2016).
    pub struct Lstmn {
        /// Size of a word vector (there 300, trained before).
        embedding: usize = 128;
        /// Size of a layer's state (there 168).
        hidden: usize = 168;
        /// Number of stacked layers (there 1 and 2).
        layers: usize = 1;
        /// Size in which a word and the states read so far are compared.
        attention_dimension: usize = 64;
        /// Size of the classifier's hidden layer.
        readout: usize = 64;
        /// Dropout.
        dropout: ClassifierDropout = ClassifierDropout::default();
    }
}

section! {
    /// LSTM: a sentence classifier without attention, the baseline.
    pub struct Lstm {
        /// Size of a word vector.
        embedding: usize = 128;
        /// Size of a layer's state, of both directions together.
        hidden: usize = 168;
        /// Number of stacked layers.
        layers: usize = 1;
        /// Whether it reads in both directions, each with half of the units.
        bidirectional: bool = false;
        /// Size of the classifier's hidden layer.
        readout: usize = 64;
        /// Dropout.
        dropout: ClassifierDropout = ClassifierDropout::default();
    }
}

section! {
    /// Self-attentive encoder: a sentence classifier, an LSTM in both directions whose states are
    /// pooled by several hops of attention (Lin et al. 2017).
    pub struct SelfAttentive {
        /// Size of a word vector.
        embedding: usize = 128;
        /// Size of a layer's state, of both directions together (there 600).
        hidden: usize = 168;
        /// Number of stacked layers.
        layers: usize = 1;
        /// Size of the alignment model's hidden layer (d_a, there 350).
        attention_dimension: usize = 64;
        /// Number of hops (r, there 30).
        hops: usize = 4;
        /// Weight of the penalty on hops that look at the same words, at least 0.
        penalty: f64 = 0.1;
        /// Size of the classifier's hidden layer.
        readout: usize = 64;
        /// Dropout.
        dropout: ClassifierDropout = ClassifierDropout::default();
    }
}
