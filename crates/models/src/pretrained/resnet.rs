//! Residual networks (He et al. 2015) by the names of their weights, in classifiers and as the first part of detectors.

use regard_kernels::stack::Activation;

use super::{
    classify::ClassScores,
    config::Config,
    copies::Copies,
    error::PretrainedError,
    families::activation,
    folder::{Folder, Names},
    images::{ImageModel, ImagePreparation, channels, expect_resizing},
};
use crate::image::{ImageSizes, ResNetConfig, resnet::Shape};

const NAMES: Names<'static> = Names {
    prefixes: &["resnet."],
    renamed: &[],
    ignored: &["*num_batches_tracked"],
};

/// The sizes of a residual network for large images.
pub(super) struct Residual {
    pub(super) depth: usize,
    /// Channels of the first convolution.
    pub(super) stem: usize,
    shape: Shape,
}

/// Who named the weights.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Library {
    Transformers,
    /// timm, whose names are those of torchvision.
    Timm,
}

impl Residual {
    /// A network of this depth.
    pub(super) fn new(depth: usize, stem: usize) -> Option<Self> {
        let shape = Shape::of_large(depth)?;
        Some(Self { depth, stem, shape })
    }

    /// That of a configuration of transformers.
    pub(super) fn of(config: &Config) -> Result<Self, PretrainedError> {
        let depths = config.sizes("depths")?;
        let bottleneck = config.one_of("layer_type", &["basic", "bottleneck"])? == 1;
        let depth = match (bottleneck, &depths[..]) {
            (false, [2, 2, 2, 2]) => 18,
            (false, [3, 4, 6, 3]) => 34,
            (true, [3, 4, 6, 3]) => 50,
            (true, [3, 4, 23, 3]) => 101,
            _ => 0,
        };
        let stem = config.size_or("embedding_size", 64)?;
        let known = Self::new(depth, stem);
        let found =
            known.ok_or_else(|| config.refuse("depths", "those of ResNet-18, 34, 50 or 101"))?;
        let widths = found.widths();
        if config.sizes("hidden_sizes")? != widths {
            let expected = format!("{widths:?}, from embedding_size ({stem})");
            return Err(config.refuse("hidden_sizes", expected));
        }
        for key in ["downsample_in_first_stage", "downsample_in_bottleneck"] {
            if config.flag_or(key, false)? {
                return Err(config.refuse(key, "false"));
            }
        }
        match activation(config, "hidden_act", "relu")? {
            Activation::Relu => Ok(found),
            _ => Err(config.refuse("hidden_act", "\"relu\"")),
        }
    }

    /// Channels of the map after each stage.
    pub(super) fn widths(&self) -> Vec<usize> {
        (0..self.shape.blocks.len())
            .map(|stage| (self.stem << stage) * self.shape.expansion)
            .collect()
    }

    /// Adds its weights: `there` they begin so, and `here` are the names of the first convolution, of its norm, and of the stages.
    pub(super) fn copy(
        &self,
        channels: usize,
        (library, there): (Library, &str),
        here: [&str; 3],
        to: &mut Copies,
    ) {
        // A convolution and its norm.
        let mut add = |names: [String; 2], [conv, norm]: [&str; 2], shape: [usize; 4]| {
            let [of_conv, of_norm] = names.map(|name| format!("{there}{name}"));
            to.same(
                format!("{of_conv}.weight"),
                format!("{conv}.weight"),
                &shape,
            );
            for (name, here) in [
                ("weight", "gamma"),
                ("bias", "beta"),
                ("running_mean", "running_mean"),
                ("running_var", "running_var"),
            ] {
                to.same(
                    format!("{of_norm}.{name}"),
                    format!("{norm}.{here}"),
                    &shape[..1],
                );
            }
        };
        let pair = |name: String| {
            [
                format!("{name}.convolution"),
                format!("{name}.normalization"),
            ]
        };
        let [first, its_norm, stages] = here;
        let first_there = match library {
            Library::Transformers => pair("embedder.embedder".to_owned()),
            Library::Timm => ["conv1", "bn1"].map(str::to_owned),
        };
        add(first_there, [first, its_norm], [self.stem, channels, 7, 7]);
        let expansion = self.shape.expansion;
        let mut inputs = self.stem;
        for (stage, (&blocks, outputs)) in self.shape.blocks.iter().zip(self.widths()).enumerate() {
            let inside = outputs / expansion;
            for block in 0..blocks {
                let there = match library {
                    Library::Transformers => format!("encoder.stages.{stage}.layers.{block}"),
                    Library::Timm => format!("layer{}.{block}", stage + 1),
                };
                let here = |part: &str| {
                    ["conv", "norm"].map(|end| format!("{stages}.{stage}.{block}.{part}.{end}"))
                };
                let branch = match expansion {
                    1 => vec![[outputs, inputs, 3, 3], [outputs, outputs, 3, 3]],
                    _ => vec![
                        [inside, inputs, 1, 1],
                        [inside, inside, 3, 3],
                        [outputs, inside, 1, 1],
                    ],
                };
                for (index, shape) in branch.into_iter().enumerate() {
                    let names = match library {
                        Library::Transformers => pair(format!("{there}.layer.{index}")),
                        Library::Timm => {
                            ["conv", "bn"].map(|name| format!("{there}.{name}{}", index + 1))
                        }
                    };
                    let here = here(&format!("branch.{index}"));
                    add(names, here.each_ref().map(String::as_str), shape);
                }
                if inputs != outputs || (stage > 0 && block == 0) {
                    let names = match library {
                        Library::Transformers => pair(format!("{there}.shortcut")),
                        Library::Timm => {
                            ["0", "1"].map(|part| format!("{there}.downsample.{part}"))
                        }
                    };
                    let here = here("skip");
                    let shape = [outputs, inputs, 1, 1];
                    add(names, here.each_ref().map(String::as_str), shape);
                }
                inputs = outputs;
            }
        }
    }
}

/// A classifier of images.
pub(super) fn classifier(
    folder: &Folder,
    processor: &Config,
    labels: Vec<String>,
) -> Result<ImageModel, PretrainedError> {
    let config = folder.config();
    let channels = channels(config)?;
    expect_resizing(processor)?;
    let (preparation, size) = ImagePreparation::of(folder, processor, channels)?;
    let network = Residual::of(config)?;
    let mut copies = Copies::default();
    let here = ["conv1", "bn1", "stages"];
    network.copy(channels, (Library::Transformers, ""), here, &mut copies);
    let features = network.widths().pop().unwrap_or(network.stem);
    let head = ["classifier.1".to_owned()];
    copies.linear(&head, "fc", [features, labels.len()], &[]);
    Ok(ImageModel {
        kind: "resnet",
        config: Box::new(ResNetConfig {
            depth: network.depth,
            width: network.stem as f64 / 64.0,
            ..ResNetConfig::default()
        }),
        sizes: ImageSizes {
            channels,
            size,
            classes: labels.len(),
        },
        scores: ClassScores::of(config, labels.len())?,
        labels,
        arrays: copies.read(folder, &NAMES)?,
        preparation,
    })
}
