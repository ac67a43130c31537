//! Rotary positions, RoPE: pairs of features of queries and keys are rotated by an angle that grows with
//! the position, so that their dot product depends only on the distance (Su et al. 2021, section 3).
//!
//! Pair `i` of a vector at position `p` is rotated by `p θ_i`, `θ_i = base^{-2i/r}`, `i = 0..r/2`:
//!
//! `(x, y) -> (x cos pθ_i - y sin pθ_i, x sin pθ_i + y cos pθ_i)`, hence
//! `⟨turn(q, p), turn(k, s)⟩` depends on `p - s` only.
//!
//! - **Layouts**: which features form pair `i`. [`Layout::Interleaved`]: `2i` and `2i + 1` (the paper,
//!   GPT-J, Meta's Llama files). [`Layout::HalfSplit`]: `i` and `i + r/2` (GPT-NeoX, and Llama as
//!   converted for most libraries). Weights trained for one layout give meaningless results with the other.
//! - **Shapes**: `x [batch, heads, length, d]` -> the same; the first `r <= d` features of a head are
//!   rotated.
//! - **Longer contexts**: [`Scaling`] and the base.
//! - **Images**: with a [`RotaryGrid`] the first half of the pairs turns by a token's row, the other half by its column, so that
//!   products depend on the distances in both directions: `θ_i = base^{-4i/r}`, `i = 0..r/4`, for each (Heo et al. 2024, *Rotary
//!   Position Embedding for Vision Transformer*, arXiv:2403.13298, section 3.2; there the base is 100).
//! - **When**: the choice of nearly all recent decoders; works with any cache, as keys are stored after
//!   rotation. **When not**: far beyond the length of training without scaling.
//! - **Cost**: no parameters; six multiplications a pair, and `length · r/2` sines and cosines a call,
//!   shared by all heads, queries and keys.
//!
//! ```
//! use burn::tensor::{Device, DType, Tensor};
//! use regard_nn::position::{Layout, RotaryConfig};
//!
//! let device = Device::flex();
//! let rotary = RotaryConfig { layout: Layout::Interleaved, ..RotaryConfig::new(2) }.init()?;
//! let rotation = rotary.rotation(1, 2, &device, DType::F32); // positions 1 and 2
//! let x = Tensor::<4>::from_floats([[[[1.0, 0.0], [1.0, 0.0]]]], &device);
//! let turned = rotation.apply(x)?.into_data().into_vec::<f32>().unwrap();
//! assert!((turned[0] - 1f32.cos()).abs() < 1e-6 && (turned[1] - 1f32.sin()).abs() < 1e-6);
//! assert!((turned[2] - 2f32.cos()).abs() < 1e-6 && (turned[3] - 2f32.sin()).abs() < 1e-6);
//! # Ok::<(), regard_nn::AttentionError>(())
//! ```

use std::f64::consts::TAU;

use burn::{
    module::Module,
    tensor::{DType, Device, Tensor, TensorData},
};
use serde::{Deserialize, Serialize};

use crate::{
    attention::AttentionError,
    bridge::{Angles, matmul},
};

/// Which features of a head form a pair.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, Default)]
#[serde(rename_all = "kebab-case")]
pub enum Layout {
    /// `i` and `i + r/2`.
    #[default]
    HalfSplit,
    /// `2i` and `2i + 1`.
    Interleaved,
}

/// How angles are reduced, so that a model can read texts longer than those it was trained on.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, Default)]
#[serde(rename_all = "kebab-case")]
pub enum Scaling {
    /// Not at all.
    #[default]
    None,
    /// All angles are divided by `factor`: position interpolation (Chen et al. 2023).
    Linear {
        /// The new length over the length of training.
        factor: f64,
    },
    /// The base is multiplied by `factor^{r / (r - 2)}`: the frequency of the slowest pair is divided by
    /// `factor`, that of the fastest is unchanged ("NTK-aware", bloc97 2023; Peng et al. 2023, section
    /// 3.1).
    Ntk {
        /// The new length over the length of training.
        factor: f64,
    },
    /// Llama 3.1: the frequencies of pairs whose wavelength is longer than
    /// `original_length / low_frequency_factor` are divided by `factor`, those of pairs with wavelengths
    /// shorter than `original_length / high_frequency_factor` are unchanged, those between are interpolated
    /// (Grattafiori et al. 2024; the formula is that of the published code).
    Llama3 {
        /// The largest factor by which a frequency is divided (8).
        factor: f64,
        /// 1.
        low_frequency_factor: f64,
        /// 4; more than `low_frequency_factor`.
        high_frequency_factor: f64,
        /// The length of training, in tokens (8192).
        original_length: usize,
    },
}

/// Sizes and choices of [`Rotary`].
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct RotaryConfig {
    /// `r`: how many of a head's features are rotated, from the first one on; even.
    pub size: usize,
    /// The base of the wavelengths (10000; Llama 3: 500000).
    pub base: f64,
    /// Which features form a pair.
    pub layout: Layout,
    /// How angles are reduced.
    pub scaling: Scaling,
    /// The cells that the tokens stand for, if they are an image's; `size` is then a multiple of 4.
    #[serde(default)]
    pub grid: Option<RotaryGrid>,
}

/// Tokens that are the cells of a grid, row by row, after some that have no place.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct RotaryGrid {
    /// Tokens before the first cell, such as a class token; they are not rotated.
    pub marks: usize,
    /// Cells of a row, at least 1.
    pub columns: usize,
}

impl RotaryConfig {
    /// The paper's angles for `size` features, half-split, without scaling.
    pub fn new(size: usize) -> Self {
        Self {
            size,
            base: 10000.0,
            layout: Layout::HalfSplit,
            scaling: Scaling::None,
            grid: None,
        }
    }

    /// Computes the frequencies.
    ///
    /// # Errors
    /// If `size` is 0 or odd, or with a grid no multiple of 4, if `base` is not above 1, or if a number of the scaling or of the grid
    /// is out of range.
    pub fn init(&self) -> Result<Rotary, AttentionError> {
        let at_least_1 = |field, found: f64| match found.is_finite() && found >= 1.0 {
            true => Ok(()),
            false => Err(AttentionError::value(
                field,
                found,
                "a finite number of at least 1",
                "it is the new length over the length of training",
            )),
        };
        if self.size == 0 || !self.size.is_multiple_of(2) {
            return Err(AttentionError::value(
                "rotary.size",
                self.size,
                "an even number of at least 2",
                "features turn in pairs; the last of an odd head must stay as it is",
            ));
        }
        if !self.base.is_finite() || self.base <= 1.0 {
            return Err(AttentionError::value(
                "rotary.base",
                self.base,
                "a finite number above 1",
                "the paper has 10000",
            ));
        }
        if let Some(RotaryGrid { columns, .. }) = self.grid {
            if !self.size.is_multiple_of(4) {
                return Err(AttentionError::value(
                    "rotary.size",
                    self.size,
                    "a multiple of 4 for the cells of a grid",
                    "half of the pairs turn by the row, half by the column",
                ));
            }
            if columns == 0 {
                return Err(AttentionError::value(
                    "rotary.grid.columns",
                    0,
                    "at least 1",
                    "it is the number of cells of a row",
                ));
            }
        }
        // Rows and columns have half of the features each.
        let axes = if self.grid.is_some() { 2 } else { 1 };
        let size = (self.size / axes) as f64;
        let mut base = self.base;
        match self.scaling {
            Scaling::None => {}
            Scaling::Linear { factor } => at_least_1("scaling.factor", factor)?,
            Scaling::Ntk { factor } => {
                at_least_1("scaling.factor", factor)?;
                if self.size == 2 * axes {
                    return Err(AttentionError::combination(
                        "rotary.size",
                        self.size,
                        "`Scaling::Ntk`",
                        "it leaves the first pair as it is, and there is no other; turn at least 4 features",
                    ));
                }
                base *= factor.powf(size / (size - 2.0));
            }
            Scaling::Llama3 {
                factor,
                low_frequency_factor: low,
                high_frequency_factor: high,
                original_length,
            } => {
                at_least_1("scaling.factor", factor)?;
                if !(low > 0.0 && high > low && high.is_finite()) {
                    return Err(AttentionError::value(
                        "scaling.high_frequency_factor",
                        high,
                        format!(
                            "a finite number above `low_frequency_factor` ({low}), itself above 0"
                        ),
                        "Llama 3.1 has 1 and 4",
                    ));
                }
                if original_length == 0 {
                    return Err(AttentionError::value(
                        "scaling.original_length",
                        0,
                        "at least 1",
                        "it is the length of training; Llama 3.1 has 8192",
                    ));
                }
            }
        }
        let frequencies: Vec<f64> = (0..self.size / (2 * axes))
            .map(|i| self.scaling.slow(base.powf(-2.0 * i as f64 / size)))
            .collect();
        Ok(Rotary {
            frequencies: frequencies.repeat(axes),
            layout: self.layout,
            grid: self.grid,
        })
    }
}

impl Scaling {
    /// The frequency, in radians per position, that replaces `frequency`.
    fn slow(&self, frequency: f64) -> f64 {
        match *self {
            Self::None | Self::Ntk { .. } => frequency,
            Self::Linear { factor } => frequency / factor,
            Self::Llama3 {
                factor,
                low_frequency_factor: low,
                high_frequency_factor: high,
                original_length,
            } => {
                let turns = original_length as f64 * frequency / TAU;
                let kept = ((turns - low) / (high - low)).clamp(0.0, 1.0);
                kept * frequency + (1.0 - kept) * frequency / factor
            }
        }
    }
}

/// Rotates queries and keys by their positions.
#[derive(Module, Debug)]
pub struct Rotary {
    #[module(skip)]
    frequencies: Vec<f64>,
    #[module(skip)]
    layout: Layout,
    #[module(skip)]
    grid: Option<RotaryGrid>,
}

impl Rotary {
    /// `r`: how many of a head's features are rotated.
    pub fn size(&self) -> usize {
        2 * self.frequencies.len()
    }

    /// The cells that the tokens stand for, if they are an image's.
    pub fn grid(&self) -> Option<RotaryGrid> {
        self.grid
    }

    /// By what a pair of the token at `position` is rotated, in radians.
    fn angle(&self, position: usize, pair: usize) -> f64 {
        let place = match self.grid {
            None => position,
            Some(RotaryGrid { marks, columns }) => {
                let cell = position.saturating_sub(marks);
                match pair < self.frequencies.len() / 2 {
                    true => cell / columns,
                    false => cell % columns,
                }
            }
        };
        place as f64 * self.frequencies[pair]
    }

    /// `[r / 2]`: the angle of each pair at position 1, in radians; of cells of a grid those of the next row, then of the next column.
    pub fn frequencies(&self) -> &[f64] {
        &self.frequencies
    }

    /// Which features form a pair.
    pub fn layout(&self) -> Layout {
        self.layout
    }

    /// The angles of the first `length` positions.
    pub(crate) fn angles(&self, length: usize) -> Angles {
        let pairs = 0..self.frequencies.len();
        let all = (0..length).flat_map(|row| {
            let pairs = pairs.clone();
            pairs.map(move |pair| self.angle(row, pair).sin_cos())
        });
        let (sine, cosine) = all.map(|(s, c)| (s as f32, c as f32)).unzip();
        Angles {
            cosine,
            sine,
            interleaved: self.layout == Layout::Interleaved,
        }
    }

    /// The angles of the positions `first..first + length`, to be used by any number of
    /// [`Rotation::apply`].
    pub fn rotation(&self, first: usize, length: usize, device: &Device, dtype: DType) -> Rotation {
        let size = self.size();
        let (mut cosine, mut sine) = (vec![0.0f64; length * size], vec![0.0f64; length * size]);
        let mut quarter_turn = vec![0.0f64; size * size];
        for pair in 0..self.frequencies.len() {
            let [i, j] = self.layout.pair(pair, size);
            for row in 0..length {
                let (s, c) = self.angle(first.saturating_add(row), pair).sin_cos();
                (cosine[row * size + i], cosine[row * size + j]) = (c, c);
                (sine[row * size + i], sine[row * size + j]) = (s, s);
            }
            quarter_turn[i * size + j] = 1.0;
            quarter_turn[j * size + i] = -1.0;
        }
        let tensor = |values, rows| {
            let data = TensorData::new(values, [1, 1, rows, size]);
            Tensor::from_data(data, (device, dtype))
        };
        Rotation {
            cosine: tensor(cosine, length),
            sine: tensor(sine, length),
            quarter_turn: tensor(quarter_turn, size),
        }
    }
}

impl Layout {
    /// The features of a pair.
    fn pair(self, pair: usize, size: usize) -> [usize; 2] {
        match self {
            Self::HalfSplit => [pair, pair + size / 2],
            Self::Interleaved => [2 * pair, 2 * pair + 1],
        }
    }
}

/// The angles of consecutive positions.
///
/// `turn(x) = x ∘ cos + (x R) ∘ sin`, where `R` rotates every pair by a right angle, `(x, y) -> (-y, x)`.
/// One small product does that several times faster than picking features one by one, and as each of its
/// sums has one term, it is exact.
#[derive(Debug, Clone)]
pub struct Rotation {
    cosine: Tensor<4>,       // [1, 1, length, r]
    sine: Tensor<4>,         // [1, 1, length, r]
    quarter_turn: Tensor<4>, // [1, 1, r, r]
}

impl Rotation {
    /// `x [batch, heads, length, d]` rotated, of the same shape; features from `r` on are unchanged.
    ///
    /// # Errors
    /// If `length` is not the number of positions, or if `d` is less than `r`.
    pub fn apply(&self, x: Tensor<4>) -> Result<Tensor<4>, AttentionError> {
        let [_, _, length, size] = x.dims();
        let [_, _, positions, turning] = self.cosine.dims();
        if length != positions || size < turning {
            return Err(AttentionError::shape(
                "x",
                &x.dims(),
                format!("[_, _, {positions}, at least {turning}]"),
                "make the rotation for the length of `x`, and turn at most as many features as a head has",
            ));
        }
        if x.shape().num_elements() == 0 {
            return Ok(x);
        }
        if size == turning {
            return Ok(self.turn(x));
        }
        let rest = x.clone().narrow(3, turning, size - turning);
        Ok(Tensor::cat(
            vec![self.turn(x.narrow(3, 0, turning)), rest],
            3,
        ))
    }

    fn turn(&self, x: Tensor<4>) -> Tensor<4> {
        let turned = matmul(x.clone(), self.quarter_turn.clone());
        x * self.cosine.clone() + turned * self.sine.clone()
    }
}
