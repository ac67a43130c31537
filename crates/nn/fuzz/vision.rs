//! Attention in vision: every module in `f32` and in `f64`, and what must hold of gates and weights.

use burn::tensor::{DType, Device, Tensor};
use regard_nn::{
    initialize::Initializer,
    vision::{
        Affinity, AnswerHeadConfig, AxialAttentionConfig, CaptionAttentionConfig, CbamConfig,
        MaskActivation, MaskBranchConfig, NonLocalConfig, PatchEmbeddingConfig,
        QuestionAttentionConfig, Regions, ResidualUnit, SpatialAttentionConfig,
        SqueezeExciteConfig, VisionError,
    },
};

use crate::{
    Outcome,
    compare::{close, dims, finite},
    dice::Dice,
    mechanism,
    tensors::{Input, Spread, largest, numbers},
};

/// A size: mostly small, sometimes 0.
fn size(dice: &mut Dice, most: usize) -> usize {
    if dice.once_in(30) {
        0
    } else {
        1 + dice.below(most)
    }
}

pub fn case(dice: &mut Dice) -> Outcome {
    let device = match dice.once_in(3) {
        true => Device::flex(),
        false => Device::flex().autodiff(),
    };
    let channels = dice.pick(&[1, 2, 4, 4, 6, 8, 0]);
    let found = channels + usize::from(dice.once_in(30));
    let shape = [size(dice, 2), found, size(dice, 6), size(dice, 6)];
    let spread = match dice.below(6) {
        0 => Spread::Wild,
        _ => Spread::Moderate,
    };
    let map = Input::new(dice, shape, |dice| spread.number(dice));
    let problem = Problem {
        map,
        spread,
        channels,
        odd: dice.once_in(40),
        device,
    };
    let done = match dice.below(10) {
        0 => problem.squeeze_excite(dice),
        1 => problem.cbam(dice),
        2 => problem.spatial(dice),
        3 => problem.non_local(dice),
        4 => problem.axial(dice),
        5 => problem.mask_branch(dice),
        6 => problem.patches(dice),
        7 => problem.residual_unit(dice),
        8 => problem.regions(dice),
        _ => problem.answers(dice),
    };
    match done {
        Ok(what) => Ok(what),
        Err(Failed::Refused) => Ok("vision refused"),
        Err(Failed::Wrong(why)) => Err(why),
    }
}

enum Failed {
    Refused,
    Wrong(String),
}

impl From<VisionError> for Failed {
    fn from(_: VisionError) -> Self {
        Self::Refused
    }
}

impl From<String> for Failed {
    fn from(why: String) -> Self {
        Self::Wrong(why)
    }
}

type Done = Result<&'static str, Failed>;

struct Problem {
    map: Input<4>,
    spread: Spread,
    channels: usize,
    /// Whether the map has a precision that does not fit.
    odd: bool,
    device: Device,
}

impl Problem {
    fn init(&self, dice: &mut Dice) -> Initializer {
        Initializer::new(dice.next(), &self.device)
    }

    /// Runs a module in `f32` and `f64`, and compares outputs and the gradient of the map.
    fn both<M: burn::module::Module>(
        &self,
        module: &M,
        run: impl Fn(&M, Tensor<4>) -> Result<Vec<Vec<f64>>, VisionError>,
        output: impl Fn(&M, Tensor<4>) -> Result<Tensor<4>, VisionError>,
    ) -> Result<Vec<Vec<f64>>, Failed> {
        let dtype = if self.odd { DType::F64 } else { DType::F32 };
        let leaf = self.map.leaf(dtype, &self.device);
        let found = run(module, leaf.clone())?;
        if self.spread == Spread::Wild {
            return Ok(found);
        }
        for numbers in &found {
            finite("vision", numbers)?;
        }
        if self.device.is_autodiff() {
            let all = output(module, leaf.clone())?.sum().backward();
            let slope = leaf
                .grad(&all)
                .map(|slope| numbers(&slope))
                .unwrap_or_default();
            finite("slope of the map", &slope)?;
        }
        let exact = mechanism::in_precision(module, DType::F64, &self.device);
        let exact = run(&exact, self.map.leaf(DType::F64, &self.device))?;
        for (found, exact) in found.iter().zip(&exact) {
            let tolerance = 1e-3 * (1.0 + largest(exact.iter().copied()));
            close("vision in f32", found, exact, tolerance)?;
        }
        Ok(found)
    }

    /// Checks that all numbers are between 0 and 1.
    fn shares(&self, name: &str, of: &[f64]) -> Result<(), Failed> {
        match of.iter().find(|x| !(-1e-6..=1.0 + 1e-6).contains(*x)) {
            Some(x) if self.spread != Spread::Wild => {
                Err(format!("{name}: {x} is no share").into())
            }
            _ => Ok(()),
        }
    }

    /// Checks that rows of `width` sum to 1.
    fn rows(&self, name: &str, of: &[f64], width: usize) -> Result<(), Failed> {
        for row in of.chunks(width.max(1)) {
            if self.spread != Spread::Wild {
                close(name, &[row.iter().sum()], &[1.0], 1e-4)?;
            }
        }
        Ok(())
    }

    fn squeeze_excite(&self, dice: &mut Dice) -> Done {
        let config = SqueezeExciteConfig::new(self.channels)
            .with_reduction(dice.below(5))
            .with_bias(dice.once_in(2));
        let module = config.init(&mut self.init(dice))?;
        let found = self.both(
            &module,
            |module, map| {
                let gated = module.attend(map)?;
                Ok(vec![numbers(&gated.output), numbers(&gated.gate)])
            },
            |module, map| module.forward(map),
        )?;
        self.shares("gate", &found[1])?;
        Ok("squeeze and excitation")
    }

    fn cbam(&self, dice: &mut Dice) -> Done {
        let config = CbamConfig::new(self.channels)
            .with_reduction(1 + dice.below(3))
            .with_kernel(dice.pick(&[1, 3, 7, 2, 0]));
        let module = config.init(&mut self.init(dice))?;
        let found = self.both(
            &module,
            |module, map| {
                let read = module.attend(map)?;
                Ok(vec![
                    numbers(&read.output),
                    numbers(&read.channel_gate),
                    numbers(&read.spatial_gate),
                ])
            },
            |module, map| module.forward(map),
        )?;
        self.shares("channel gate", &found[1])?;
        self.shares("spatial gate", &found[2])?;
        Ok("cbam")
    }

    fn spatial(&self, dice: &mut Dice) -> Done {
        let config = SpatialAttentionConfig::new().with_kernel(dice.pick(&[1, 3, 5, 4, 0]));
        let module = config.init(&mut self.init(dice))?;
        let found = self.both(
            &module,
            |module, map| {
                let gated = module.attend(map)?;
                Ok(vec![numbers(&gated.output), numbers(&gated.gate)])
            },
            |module, map| module.forward(map),
        )?;
        self.shares("gate", &found[1])?;
        Ok("spatial attention")
    }

    fn non_local(&self, dice: &mut Dice) -> Done {
        let affinity = dice.pick(&[
            Affinity::Gaussian,
            Affinity::EmbeddedGaussian,
            Affinity::Dot,
            Affinity::Concatenation,
        ]);
        let config = NonLocalConfig::new(self.channels)
            .with_inner(dice.once_in(3).then(|| dice.below(4)))
            .with_affinity(affinity)
            .with_pool(dice.below(4))
            .with_scaled(dice.once_in(2));
        let module = config.init(&mut self.init(dice))?;
        let found = self.both(
            &module,
            |module, map| {
                let read = module.attend(map)?;
                let keys = read.weights.dims()[2];
                Ok(vec![
                    numbers(&read.output),
                    numbers(&read.weights),
                    vec![keys as f64],
                ])
            },
            |module, map| module.forward(map),
        )?;
        if matches!(affinity, Affinity::Gaussian | Affinity::EmbeddedGaussian) {
            self.rows("weights", &found[1], found[2][0] as usize)?;
        }
        Ok("non-local")
    }

    fn axial(&self, dice: &mut Dice) -> Done {
        let config = AxialAttentionConfig::new(self.channels)
            .with_heads(dice.pick(&[1, 2, 2, 3, 0]))
            .with_span(dice.once_in(2).then(|| dice.below(8)));
        let module = config.init(&mut self.init(dice))?;
        let found = self.both(
            &module,
            |module, map| {
                let read = module.attend(map)?;
                Ok(vec![
                    numbers(&read.output),
                    numbers(&read.column_weights),
                    numbers(&read.row_weights),
                ])
            },
            |module, map| module.forward(map),
        )?;
        self.rows("columns", &found[1], self.map.shape[2])?;
        self.rows("rows", &found[2], self.map.shape[3])?;
        Ok("axial attention")
    }

    fn mask_branch(&self, dice: &mut Dice) -> Done {
        let activation = dice.pick(&[
            MaskActivation::Mixed,
            MaskActivation::Channel,
            MaskActivation::Spatial,
        ]);
        let config = MaskBranchConfig::new(self.channels)
            .with_levels(dice.below(3))
            .with_reduction(dice.pick(&[1, 2, 3]))
            .with_activation(activation);
        let module = config.init(&mut self.init(dice))?;
        let map = self.map.leaf(DType::F32, &self.device);
        let gated = module.attend(map.clone(), map)?;
        dims("mask", gated.gate.dims(), self.map.shape)?;
        if self.spread != Spread::Wild {
            finite("mask", &numbers(&gated.gate))?;
        }
        if activation != MaskActivation::Channel {
            self.shares("mask", &numbers(&gated.gate))?;
        }
        Ok("mask branch")
    }

    fn residual_unit(&self, dice: &mut Dice) -> Done {
        let unit = ResidualUnit::new(self.channels, dice.below(4), &mut self.init(dice))?;
        let y = unit.forward(self.map.leaf(DType::F32, &self.device))?;
        dims("unit", y.dims(), self.map.shape)?;
        Ok("residual unit")
    }

    fn patches(&self, dice: &mut Dice) -> Done {
        let image = [self.map.shape[2], self.map.shape[3]];
        let config = PatchEmbeddingConfig::new(
            image,
            [dice.below(4), dice.below(4)],
            self.channels,
            dice.below(5),
        );
        let module = config.init(&mut self.init(dice))?;
        let [rows, columns] = module.grid();
        let dtype = if self.odd { DType::F64 } else { DType::F32 };
        let tokens = module.forward(self.map.leaf(dtype, &self.device))?;
        let size = tokens.dims()[2];
        dims(
            "tokens",
            tokens.dims(),
            [self.map.shape[0], 1 + rows * columns, size],
        )?;
        let larger = module.resized([dice.below(12), dice.below(12)])?;
        let [rows, columns] = larger.grid();
        dims(
            "positions",
            larger.positions.as_ref().map_or([1 + rows * columns, size], |p| p.dims()),
            [1 + rows * columns, size],
        )?;
        Ok("patches")
    }

    fn regions(&self, dice: &mut Dice) -> Done {
        let [batch, features, count, _] = self.map.shape;
        let state = size(dice, 4);
        let hidden = size(dice, 4);
        let x = Input::new(dice, [batch, count, features], |dice| {
            self.spread.number(dice)
        });
        let width = state + usize::from(dice.once_in(30));
        let query = Input::new(dice, [batch, width], |dice| self.spread.number(dice));
        let keep = mechanism::padding(dice, batch, count, &self.device);
        let regions = Regions::new(x.leaf(DType::F32, &self.device), keep.clone())?;
        let query = query.leaf(DType::F32, &self.device);
        let init = &mut self.init(dice);
        let read = match dice.once_in(2) {
            true => {
                let module =
                    CaptionAttentionConfig::new(self.channels, state, hidden).init(init)?;
                let prepared = module.prepare(&regions)?;
                module.forward(query, &prepared)?
            }
            false => {
                let module =
                    QuestionAttentionConfig::new(self.channels, state, hidden).init(init)?;
                module.forward(query, &regions)?
            }
        };
        dims("context", read.context.dims(), [batch, features])?;
        if self.spread == Spread::Wild {
            return Ok("regions");
        }
        finite("context", &numbers(&read.context))?;
        for (row, &length) in numbers(&read.weights)
            .chunks(count.max(1))
            .zip(keep.lengths())
        {
            let expected = if length > 0 { 1.0 } else { 0.0 };
            close("a row's sum", &[row.iter().sum()], &[expected], 1e-4)?;
        }
        Ok("regions")
    }

    fn answers(&self, dice: &mut Dice) -> Done {
        let [batch, features, question, _] = self.map.shape;
        let config = AnswerHeadConfig::new(question, self.channels, size(dice, 4), size(dice, 5));
        let module = config.init(&mut self.init(dice))?;
        let input = |dice: &mut Dice, size| {
            Input::new(dice, [batch, size], |dice| self.spread.number(dice))
        };
        let (q, v) = (input(dice, question), input(dice, features));
        let [q, v] = [q, v].map(|x| x.leaf(DType::F32, &self.device));
        let shares = module.forward(q, v)?;
        self.shares("answers", &numbers(&shares))?;
        Ok("answers")
    }
}
