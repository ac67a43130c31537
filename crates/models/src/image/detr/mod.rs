//! DETR: objects as a set that a Transformer predicts at once (Carion et al. 2020).
//!
//! ```text
//! map     = backbone(image)                               [batch, features, rows, columns]
//! memory  = encoder(W_in map)                             every cell sees every other          [batch, cells, d]
//! states  = decoder(0; object queries, memory)            every query sees every other and the cells  [batch, queries, d]
//! classes = W_c norm(states) + b                          the last class: no object            [batch, queries, classes + 1]
//! boxes   = σ(MLP(norm(states)))                          centre and size in [0, 1]            [batch, queries, 4]
//! ```
//! Positions of the cells (2-D sines) and the object queries (learned) are added to queries and keys in every layer of encoder and
//! decoder, and never to values. The stack is the one of all Transformers here, with norms after its parts. Class and box are
//! predicted after every layer of the decoder with the same heads: only the last counts, the others are trained too.
//!
//! Each object is given the prediction that costs least, one of its own ([`assignment`]), and [`loss`] pulls that prediction to the
//! object and all others to "no object"; so there are no anchors and no suppression of doubles. [`boxes`] has the geometry,
//! [`masks`] the head that draws an object's pixels.
//!
//! The backbone is trained from scratch here, with its batch norm; the paper's was trained on ImageNet, and frozen norms. Published
//! detectors are read from their folders ([`pretrained::DetectorModel`](crate::pretrained::DetectorModel)).

pub mod assignment;
pub mod boxes;
pub mod loss;
pub mod masks;

use burn::{
    module::{Module, Param},
    nn::Linear,
    tensor::{Tensor, activation::relu},
};
use regard_config::{Check, FRACTION, LAYERS, Range, SIZE, config};
use regard_nn::{
    Observe,
    bridge::{apply, sigmoid},
    dropout::DropoutRng,
    initialize::Initializer,
    position::SinusoidalGrid,
    transformer::{Norm, NormConfig, NormPlace, Stack, StackConfig, StackDropout, StackOptions},
};

use super::{
    BackboneConfig,
    backbone::Backbone,
    detector::{Detected, Detector, DetectorLook, DetectorSizes, Predicted},
};
use crate::{
    AnyDetector,
    role::{DetectorProperties, ModelConfig},
    {error::ModelError, generator::expect_valid},
};
use masks::MaskHead;

const QUERIES: Range<usize> = Range {
    holds: |queries| (1..=1000).contains(&queries),
    expected: "1 to 1000",
};

config! {
    /// DETR: a detector of objects (Carion et al. 2020).
    pub struct DetrConfig {
        /// Size of a state, a multiple of 4.
        d_model: usize = 128, in SIZE;
        /// Layers of the encoder.
        encoder_layers: usize = 2, in LAYERS;
        /// Layers of the decoder; each is trained to predict.
        decoder_layers: usize = 3, in LAYERS;
        /// Heads, a divisor of d_model.
        heads: usize = 8, in SIZE;
        /// Inner size of the feed-forward network.
        feed_forward: usize = 256, in SIZE;
        /// Object queries: the most objects that are found in an image.
        queries: usize = 10, in QUERIES;
        /// Whether each object has a mask, not only a box.
        masks: bool = false;
        /// Share of each block's output, and of the activations inside it, that is set to zero in training, in [0, 1).
        dropout: f64 = 0.0, in FRACTION;
        /// The network whose last map the encoder reads.
        [table] backbone: BackboneConfig = BackboneConfig::default();
    }
    check DetrConfig::agree
}

impl DetrConfig {
    fn agree(&self, check: &mut Check) {
        check.require(
            self.d_model.is_multiple_of(4),
            "d_model",
            self.d_model,
            "a multiple of 4: positions have sines and cosines of rows and columns",
        );
        if !self.d_model.is_multiple_of(self.heads) {
            let expected = format!("a divisor of d_model, {}", self.d_model);
            check.fail("heads", format!("found {}", self.heads), expected);
        }
    }

    /// A network of a few thousand weights, for tests and examples.
    pub fn tiny() -> Self {
        Self {
            d_model: 8,
            encoder_layers: 1,
            decoder_layers: 2,
            heads: 2,
            feed_forward: 16,
            queries: 4,
            backbone: BackboneConfig::tiny(),
            ..Self::default()
        }
    }
}

/// DETR (see the [module's page](self)).
#[derive(Module, Debug)]
pub struct Detr {
    /// Image to maps.
    pub backbone: Backbone,
    /// `W_in`, from a cell of the last map to a state.
    pub input_projection: Linear,
    /// The object queries, `[queries, d]`.
    pub query_positions: Param<Tensor<2>>,
    /// Self-attention over the cells.
    pub encoder: Stack,
    /// Self-attention over the queries, and cross-attention to the cells.
    pub decoder: Stack,
    /// The norm of the states after each layer of the decoder, before the heads.
    pub decoder_norm: Norm,
    /// Scores of the classes and of no object.
    pub class_head: Linear,
    /// Three layers with ReLU between them: a box.
    pub box_head: Vec<Linear>,
    /// Masks.
    pub mask_head: Option<MaskHead>,
}

impl ModelConfig for DetrConfig {
    type Role = AnyDetector;
    type Model = Detr;

    fn draw(&self, sizes: &DetectorSizes, init: &mut Initializer) -> Result<Detr, ModelError> {
        let refused = |error: regard_nn::AttentionError| ModelError(error.to_string());
        let stack = StackConfig {
            feed_forward: self.feed_forward,
            norm_place: NormPlace::Post,
            dropout: StackDropout {
                residual: self.dropout,
                attention: self.dropout,
                activation: self.dropout,
            },
            ..StackConfig::new(self.d_model, self.heads)
        };
        let d = self.d_model;
        let backbone = self.backbone.draw(sizes.channels, init);
        let mask_head = || MaskHead::new(&self.backbone, d, self.heads, init);
        let mask_head = self.masks.then(mask_head);
        Ok(Detr {
            backbone,
            input_projection: init.linear(self.backbone.features(), d, true),
            query_positions: init.normal([self.queries, d], 1.0),
            encoder: stack.encoder(self.encoder_layers, init).map_err(refused)?,
            decoder: stack
                .parallel_decoder(self.decoder_layers, init)
                .map_err(refused)?,
            decoder_norm: NormConfig::default().init(d, init).map_err(refused)?,
            class_head: init.linear(d, sizes.classes + 1, true),
            box_head: [[d, d], [d, d], [d, 4]]
                .map(|[inputs, outputs]| init.linear(inputs, outputs, true))
                .into(),
            mask_head,
        })
    }

    fn layers(&self) -> usize {
        self.backbone.layers() + self.encoder_layers + self.decoder_layers
    }

    fn properties(&self) -> DetectorProperties {
        DetectorProperties {
            most_objects: self.queries,
        }
    }
}

impl Detr {
    /// The last map of the backbone (`maps`, from the largest to the smallest) as a set of objects.
    ///
    /// # Panics
    /// If there is no map, or its channels do not fit.
    pub fn detect(
        &self,
        maps: Vec<Tensor<4>>,
        observe: Observe,
        noise: &mut DropoutRng,
    ) -> DetectorLook {
        let map = maps.last().expect("a backbone gives at least one map");
        let [batch, _, rows, columns] = map.dims();
        let cells = regard_nn::recurrent::positions(map.clone()); // [batch, cells, features]
        let cells = apply(&self.input_projection, cells); // [batch, cells, d]
        let [_, _, d] = cells.dims();
        let (device, dtype) = (cells.device(), cells.dtype());
        let sines = expect_valid(SinusoidalGrid::new(d));
        let sines = sines.table([rows, columns], &device, dtype);
        let positions = sines.unsqueeze_dim::<3>(0); // [1, cells, d]
        let options = StackOptions::new(observe).positions(positions.clone());
        let encoded = expect_valid(self.encoder.forward(cells.clone(), None, &options, noise));
        let memory = encoded.states;

        let queries = self.query_positions.val().unsqueeze_dim::<3>(0); // [1, queries, d]
        let nothing = Tensor::zeros([batch, queries.dims()[1], d], (&device, dtype));
        let options = StackOptions {
            each_layer: true,
            ..options
        };
        let options = options.positions(queries).source_positions(positions);
        let source = Some(memory.clone());
        let decoded = expect_valid(self.decoder.forward(nothing, source, &options, noise));
        let mut states: Vec<Tensor<3>> = decoded.layers;
        for state in &mut states {
            *state = self.decoder_norm.forward(state.clone()); // [batch, queries, d]
        }
        let weights = |read: Vec<regard_nn::Attended>| {
            let weights = read.into_iter().filter_map(|layer| layer.weights);
            weights.collect()
        };
        DetectorLook {
            found: Detected {
                layers: states.iter().map(|state| self.predict(state)).collect(),
                queries: states.pop().expect("a decoder has at least one layer"),
                cells,
                memory,
                maps,
            },
            encoder: weights(encoded.own),
            decoder: weights(decoded.own),
            cross: weights(decoded.cross),
            grid: [rows, columns],
        }
    }

    /// Classes and boxes of states `[batch, queries, d]`.
    fn predict(&self, states: &Tensor<3>) -> Predicted {
        let last = self.box_head.len().saturating_sub(1);
        let layers = self.box_head.iter().enumerate();
        let boxes = layers.fold(states.clone(), |x, (index, layer)| {
            let x = apply(layer, x);
            if index < last { relu(x) } else { x }
        });
        Predicted {
            logits: apply(&self.class_head, states.clone()),
            boxes: sigmoid(boxes),
        }
    }
}

impl Detector for Detr {
    fn forward(&self, images: Tensor<4>, noise: &mut DropoutRng) -> Detected {
        let maps = self.backbone.maps(images);
        self.detect(maps, Observe::Nothing, noise).found
    }

    fn look(&self, images: Tensor<4>) -> DetectorLook {
        let maps = self.backbone.maps(images);
        self.detect(maps, Observe::Weights, &mut DropoutRng::none())
    }

    fn has_masks(&self) -> bool {
        self.mask_head.is_some()
    }

    fn masks(
        &self,
        found: &Detected,
        chosen: &[[usize; 2]],
        size: [usize; 2],
    ) -> Option<Tensor<3>> {
        let head = self.mask_head.as_ref()?;
        Some(head.forward(found, chosen, size))
    }
}
