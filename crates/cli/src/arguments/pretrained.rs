//! Which pretrained model, and how it is kept in memory.

use clap::{Args, ValueEnum};
use regard_kernels::{Kind, matmul::Storage};

/// What is said of `--model` by commands that need an encoder.
pub const ENCODER: &str = "\
A folder as Hugging Face models have it, a name in the local cache such as `google-bert/bert-base-uncased`, `hf:NAME`, which is \
downloaded, or a masked language model of `regard train`";

/// A pretrained model.
#[derive(Debug, Args)]
pub struct Pretrained {
    /// A folder as Hugging Face models have it, a name in the local cache such as `openai-community/gpt2`, `hf:NAME`, which is
    /// downloaded, or a language model of `regard train`
    #[arg(short, long, value_name = "MODEL")]
    pub model: String,
    /// How its weights are kept.
    #[command(flatten)]
    pub stored: Stored,
}

/// How weights are kept.
#[derive(Debug, Default, Args)]
pub struct Stored {
    /// How weights of a pretrained model are kept in memory [default: as the files have them]
    #[arg(long, value_name = "TYPE", help_heading = "Computing")]
    weights: Option<Weights>,
}

/// How weights are stored.
#[derive(Debug, Clone, Copy, ValueEnum)]
enum Weights {
    /// 32 bits
    F32,
    /// 16 bits, 8 of them mantissa; where the machine has AVX512-BF16 products are made in it, with sums of 32 bits
    Bf16,
    /// 16 bits, 11 of them mantissa
    F16,
    /// 8 bits, with a scale for each group of 32
    Int8,
}

impl Pretrained {
    /// As [`Stored::storage`].
    pub fn storage(&self) -> Option<Storage> {
        self.stored.storage()
    }

    /// As [`Stored::typed`].
    pub fn typed(&self) -> Option<String> {
        self.stored.typed()
    }
}

impl Stored {
    /// The value of `--weights` as it is typed.
    pub fn typed(&self) -> Option<String> {
        let value = self.weights?.to_possible_value()?;
        Some(value.get_name().to_owned())
    }

    /// As [`Pretrained::storage`].
    pub fn storage(&self) -> Option<Storage> {
        self.weights.map(|weights| match weights {
            Weights::F32 => Storage::F32,
            Weights::Bf16 => Storage::Bf16,
            Weights::F16 => Storage::F16,
            Weights::Int8 => Storage::Int8,
        })
    }
}

/// How keys and values are stored.
#[derive(Debug, Clone, Copy, ValueEnum)]
pub enum Cache {
    /// 32 bits
    F32,
    /// 16 bits, 8 of them mantissa
    Bf16,
    /// 16 bits, 11 of them mantissa
    F16,
}

impl Cache {
    /// The kernels' name of it.
    pub fn kind(self) -> Kind {
        match self {
            Self::F32 => Kind::F32,
            Self::Bf16 => Kind::Bf16,
            Self::F16 => Kind::F16,
        }
    }
}
