//! Convolutions, blocks and training steps of networks that read images, for `bench/peers/vision.py`, which drives them beside
//! PyTorch's.
//!
//! ```text
//! cargo run --release -p regard-train --example vision_peer
//! ```
//! answers each line `WORK N` of standard input with a line of JSON: it does the work N times and gives `{"seconds": [..]}`.
//!
//! | work | what is done |
//! |---|---|
//! | `conv64`, `conv128`, `conv16` | 3x3 convolution of a batch of 64: 64 channels at 32 x 32, 128 at 16 x 16, 16 at 32 x 32 |
//! | `conv64-both`, ... | forward, and the gradients of input and weights |
//! | `resnet20` | a training step of ResNet-20: batch 128, 32 x 32, AdamW |
//! | `vit` | a training step of a vision Transformer: d 192, 12 layers, patch 4, batch 64, 32 x 32, AdamW |
//! | `vit-b` | ViT-B/16 forward: batch 4, 224 x 224 |
//! | `non-local`, `non-local-both` | a non-local block: 64 channels, 56 x 56, batch 8 |

use std::{
    io::{self, BufRead, Write},
    process::ExitCode,
    time::Instant,
};

use burn::{
    module::Param,
    nn::{PaddingConfig2d, conv::Conv2d},
    tensor::{Device, Distribution, Int, Tensor},
};
use regard_models::{
    AnyImageClassifier, AnyModelConfig, ImageClassifier, ImageSizes, ModelConfig,
    image::{ResNetConfig, VisionTransformerConfig},
};
use regard_nn::{
    bridge::{convolve, cross_entropy_mean, sum},
    dropout::DropoutRng,
    initialize::Initializer,
    vision::NonLocalConfig,
};
use regard_train::{learner::optimizer::Optimizer, recipe};
use serde_json::json;

#[path = "training_peer/allocator.rs"]
mod allocator;

type Failure = Box<dyn std::error::Error>;
type Work = Box<dyn FnMut() -> Result<(), Failure>>;

const NO_CLASS: usize = usize::MAX;

fn device(records: bool) -> Device {
    match records {
        true => Device::flex().autodiff(),
        false => Device::flex(),
    }
}

fn noise<const D: usize>(shape: [usize; D], device: &Device) -> Tensor<D> {
    Tensor::random(shape, Distribution::Normal(0.0, 1.0), device)
}

/// `function` of an input of `shape`; with the gradients of what it returns if `both`.
fn repeated(
    shape: [usize; 4],
    both: bool,
    mut function: impl FnMut(Tensor<4>) -> Result<Tensor<4>, Failure> + 'static,
) -> Work {
    let x = noise(shape, &device(both));
    Box::new(move || {
        let x = match both {
            true => x.clone().require_grad(),
            false => x.clone(),
        };
        let y = function(x)?;
        if both {
            sum(y).backward();
        }
        Ok(())
    })
}

fn convolution(channels: usize, side: usize, both: bool) -> Work {
    let weight = noise([channels, channels, 3, 3], &device(both)) * 0.05;
    let layer = Conv2d {
        weight: Param::from_tensor(weight),
        bias: None,
        stride: [1; 2],
        kernel_size: [3; 2],
        dilation: [1; 2],
        groups: 1,
        padding: PaddingConfig2d::Explicit(1, 1, 1, 1),
    };
    let shape = [64, channels, side, side];
    repeated(shape, both, move |x| Ok(convolve(&layer, x)))
}

fn non_local(both: bool) -> Result<Work, Failure> {
    let mut initializer = Initializer::new(1, &device(both));
    let block = NonLocalConfig::new(64).init(&mut initializer)?;
    Ok(repeated([8, 64, 56, 56], both, move |x| {
        Ok(block.forward(x)?)
    }))
}

/// Training steps of a classifier of images of 32 x 32 pixels and ten classes.
fn training(
    config: &dyn AnyModelConfig<AnyImageClassifier>,
    batch: usize,
) -> Result<Work, Failure> {
    let device = device(true);
    let sizes = ImageSizes {
        channels: 3,
        size: [32, 32],
        classes: 10,
    };
    let mut model = Some(config.build(&sizes, 1, &device)?);
    let mut optimizer = Optimizer::new(recipe::Optimizer::AdamW(recipe::AdamW::default()));
    let images = noise([batch, 3, 32, 32], &device);
    let classes = Tensor::<1, Int>::arange(0..batch as i64, &device).remainder_scalar(10);
    Ok(Box::new(move || {
        let trained = model.take().ok_or("an earlier update failed")?;
        let logits = trained.forward(images.clone(), &mut DropoutRng::none());
        let loss = cross_entropy_mean(logits, classes.clone(), NO_CLASS, 0.0).loss;
        let gradients = loss.backward();
        // Moved, not cloned: weights with a single owner are updated in place.
        model = Some(optimizer.update(trained, gradients, 1e-3)?.0);
        Ok(())
    }))
}

fn forward_only(batch: usize) -> Result<Work, Failure> {
    let device = device(false);
    let sizes = ImageSizes {
        channels: 3,
        size: [224, 224],
        classes: 1000,
    };
    let config = VisionTransformerConfig {
        patch: 16,
        d_model: 768,
        layers: 12,
        heads: 12,
        ..Default::default()
    };
    let model = config.init(&sizes, 1, &device)?;
    Ok(repeated([batch, 3, 224, 224], false, move |x| {
        let logits = model.forward(x, &mut DropoutRng::none());
        Ok(logits.unsqueeze_dims(&[2, 3]))
    }))
}

fn work(name: &str) -> Result<Work, Failure> {
    let (name, both) = match name.strip_suffix("-both") {
        Some(name) => (name, true),
        None => (name, false),
    };
    Ok(match name {
        "conv64" => convolution(64, 32, both),
        "conv128" => convolution(128, 16, both),
        "conv16" => convolution(16, 32, both),
        "non-local" => non_local(both)?,
        "resnet20" => training(&ResNetConfig::default(), 128)?,
        "vit" => {
            let config = VisionTransformerConfig {
                layers: 12,
                ..Default::default()
            };
            training(&config, 64)?
        }
        "vit-b" => forward_only(4)?,
        _ => return Err(format!("unknown work {name:?}").into()),
    })
}

fn run() -> Result<(), Failure> {
    let mut current: Option<(String, Work)> = None;
    for line in io::stdin().lock().lines() {
        let line = line?;
        let (name, times) = line.trim().split_once(' ').ok_or("expected WORK N")?;
        if current.as_ref().is_none_or(|(known, _)| known != name) {
            current = Some((name.to_owned(), work(name)?));
        }
        let mut seconds = vec![];
        if let Some((_, work)) = &mut current {
            for _ in 0..times.parse()? {
                let started = Instant::now();
                work()?;
                seconds.push(started.elapsed().as_secs_f64());
            }
        }
        let mut output = io::stdout();
        writeln!(output, "{}", json!({ "seconds": seconds }))?;
        output.flush()?;
    }
    Ok(())
}

fn main() -> ExitCode {
    allocator::keep_freed_memory();
    // Runs on a thread of the pool, as the command `regard` does.
    match rayon::scope(|_| run().map_err(|error| error.to_string())) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("vision_peer: {error}");
            ExitCode::FAILURE
        }
    }
}
