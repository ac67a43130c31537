//! The pixels of an object: what its query looks at, drawn finer step by step (Carion et al. 2020, section 4.4).
//!
//! ```text
//! α_q   = softmax over heads and cells of (W_q s_q) · (W_k memory) / √(d / heads)       [heads, rows, columns]
//! x     = φ(conv(φ(conv([cells, α_q]))))                                                the smallest map
//! x     = φ(conv(adapt(map) + upsample(x)))                                             for each larger map of the backbone
//! mask  = upsample(conv(x))                                                             to the size of the image
//! ```
//! `φ` is group norm and ReLU, convolutions are 3x3, `adapt` is 1x1; steps to a larger map repeat cells, the last one interpolates.
//! Channels are halved in each step. Each object is drawn by itself, with the same weights: **cost** is that of a small convolution
//! network for each object.

use burn::{
    module::Module,
    nn::{GroupNorm, GroupNormConfig, Linear, PaddingConfig2d, conv::Conv2d},
    tensor::{
        Int, Tensor, TensorData,
        activation::{relu, softmax},
        module::interpolate,
        ops::{InterpolateMode, InterpolateOptions},
    },
};
use regard_nn::{
    bridge::{apply, convolve, matmul, resize, transposed},
    initialize::Initializer,
};

use super::super::{BackboneConfig, detector::Detected};

/// Most groups of channels that are normalised each by itself.
const GROUPS: usize = 8;

/// Makes masks of predictions (see the [module's page](self)).
#[derive(Module, Debug)]
pub struct MaskHead {
    /// `W_q`, `[d, d]`.
    pub query: Linear,
    /// `W_k`, `[d, d]`.
    pub key: Linear,
    /// Two convolutions of the smallest map, then one for each larger one.
    pub steps: Vec<Step>,
    /// For each larger map, a 1x1 convolution to the channels before its step.
    pub adapters: Vec<Conv2d>,
    /// From the last step to one channel.
    pub output: Conv2d,
    #[module(skip)]
    heads: usize,
}

/// A convolution with its norm.
#[derive(Module, Debug)]
pub struct Step {
    /// 3x3.
    pub conv: Conv2d,
    /// Group norm.
    pub norm: GroupNorm,
}

/// A convolution with bias that keeps the size of a map; weights from `U(-b, b)`, `b = √(3 / fan)` (He et al. 2015 with a slope of
/// 1, as the original).
fn convolution([inputs, outputs]: [usize; 2], kernel: usize, init: &mut Initializer) -> Conv2d {
    let fan = (inputs * kernel * kernel) as f32;
    let around = kernel / 2;
    Conv2d {
        weight: init.uniform([outputs, inputs, kernel, kernel], (3.0 / fan).sqrt()),
        bias: Some(init.zeros([outputs])),
        stride: [1; 2],
        kernel_size: [kernel; 2],
        dilation: [1; 2],
        groups: 1,
        padding: PaddingConfig2d::Explicit(around, around, around, around),
    }
}

impl Step {
    fn new(channels: [usize; 2], init: &mut Initializer) -> Self {
        let [_, outputs] = channels;
        let groups = (1..=GROUPS)
            .rev()
            .find(|&groups| outputs.is_multiple_of(groups));
        let norm = GroupNormConfig::new(groups.unwrap_or(1), outputs);
        Self {
            conv: convolution(channels, 3, init),
            norm: norm.init(init.device()),
        }
    }

    fn forward(&self, x: Tensor<4>) -> Tensor<4> {
        relu(self.norm.forward(convolve(&self.conv, x)))
    }
}

impl MaskHead {
    /// A head for states of size `d` and the maps of this backbone.
    pub(super) fn new(
        backbone: &BackboneConfig,
        d: usize,
        heads: usize,
        init: &mut Initializer,
    ) -> Self {
        let halved = |step: usize| (d >> step.min(63)).max(1);
        let mut steps = vec![
            Step::new([d + heads, d + heads], init),
            Step::new([d + heads, halved(1)], init),
        ];
        let mut adapters = vec![];
        let maps = backbone.map_channels();
        for (step, &channels) in (1..).zip(maps.iter().rev().skip(1)) {
            adapters.push(convolution([channels, halved(step)], 1, init));
            steps.push(Step::new([halved(step), halved(step + 1)], init));
        }
        Self {
            query: init.linear(d, d, true),
            key: init.linear(d, d, true),
            steps,
            adapters,
            output: convolution([halved(maps.len()), 1], 3, init),
            heads,
        }
    }

    /// The masks of the predictions `chosen`, image and query each, before the sigmoid: `[chosen, height, width]`.
    ///
    /// # Panics
    /// If nothing is chosen, or what is chosen is not there.
    pub fn forward(
        &self,
        found: &Detected,
        chosen: &[[usize; 2]],
        [height, width]: [usize; 2],
    ) -> Tensor<3> {
        let device = found.queries.device();
        let list = |numbers: Vec<i32>| -> Tensor<1, Int> {
            let length = numbers.len();
            Tensor::from_data(TensorData::new(numbers, [length]), &device)
        };
        let images = list(chosen.iter().map(|&[image, _]| image as i32).collect());
        let of_image = |map: &Tensor<4>| map.clone().select(0, images.clone());
        let smallest = found
            .maps
            .last()
            .expect("a backbone gives at least one map");
        let [batch, _, rows, columns] = smallest.dims();
        let [_, queries, d] = found.queries.dims();
        let (count, heads, cells) = (chosen.len(), self.heads, rows * columns);

        let places = chosen
            .iter()
            .map(|&[image, query]| (image * queries + query) as i32);
        let states = found.queries.clone().reshape([batch * queries, d]);
        let states = states.select(0, list(places.collect())); // [chosen, d]
        let query = apply(&self.query, states).reshape([count, heads, 1, d / heads]);
        let key = apply(&self.key, found.memory.clone());
        let key = key
            .reshape([batch, cells, heads, d / heads])
            .permute([0, 2, 3, 1]);
        let scale = (d as f64 / heads as f64).powf(-0.5);
        let scores = matmul(query * scale, of_image(&key)); // [chosen, heads, 1, cells]
        let weights = softmax(scores.reshape([count, heads * cells]), 1);
        let weights = weights.reshape([count, heads, rows, columns]);

        let projected = transposed(found.cells.clone(), 1);
        let projected = projected.reshape([batch, d, rows, columns]);
        let mut x = Tensor::cat(vec![of_image(&projected), weights], 1);
        let (first, rest) = self.steps.split_at(2.min(self.steps.len()));
        for step in first {
            x = step.forward(x);
        }
        let larger = found.maps.iter().rev().skip(1);
        for ((map, adapter), step) in larger.zip(&self.adapters).zip(rest) {
            let [_, _, rows, columns] = map.dims();
            let adapted = convolve(adapter, map.clone());
            x = repeated(x, [rows, columns]) + of_image(&adapted);
            x = step.forward(x);
        }
        let drawn = convolve(&self.output, x); // [chosen, 1, rows, columns]
        resize(drawn, [height, width], false).squeeze_dim::<3>(1)
    }
}

/// `map` at another height and width, by the nearest cell.
fn repeated(map: Tensor<4>, size: [usize; 2]) -> Tensor<4> {
    interpolate(
        map,
        InterpolateOptions::new(InterpolateMode::Nearest).with_output_size(size),
    )
}
