//! One call of an [`Attention`]: fused, plain, and a softmax in `f64` on the host.

use burn::tensor::{Bool, DType, Device, Tensor, TensorData};
use regard_nn::{
    Attended, Attention, AttentionError, AttentionOptions, Observe, Path,
    dropout::DropoutRng,
    initialize::Initializer,
    mask::{Grid, Mask},
    normalize::Normalize,
    position::Alibi,
    score::Score,
};

use crate::{
    Outcome,
    compare::{close, dims, distance, finite, same},
    dice::Dice,
    mechanism,
    tensors::{Input, Spread, largest, length, numbers},
};

/// The gradients of a full call.
const GRADIENTS: [&str; 4] = [
    "gradient of query",
    "gradient of key",
    "gradient of value",
    "gradient of bias",
];

/// A call with all of its arguments.
struct Problem {
    device: Device,
    dtype: DType,
    spread: Spread,
    grid: Grid,
    key_heads: usize,
    size: usize,
    value_size: usize,
    attention: Attention,
    mask: Mask,
    query: Input<4>,
    key: Input<4>,
    value: Input<4>,
    bias: Option<Input<4>>,
    /// The input whose precision differs from that of the query.
    odd: Option<usize>,
    alibi: Option<Alibi>,
    carried: Option<Input<4>>,
    seed: Option<u64>,
    differentiable: bool,
    /// True where no query sees a key, so that the key may hold anything: `[batch, key heads, keys, 1]`.
    poison: Option<Tensor<4, Bool>>,
}

/// The results of one run, as numbers.
struct Run {
    context: Vec<f64>,
    attended: Attended,
    /// The gradients of query, key, value and bias.
    gradients: Vec<Vec<f64>>,
}

pub fn case(dice: &mut Dice) -> Outcome {
    let device = match dice.once_in(3) {
        true => Device::flex(),
        false => Device::flex().autodiff(),
    };
    let Some(problem) = Problem::new(dice, device) else {
        return Ok("no mask of such sizes");
    };
    let options = problem.options();
    calls(dice, problem).map_err(|error| format!("{error}; {options}"))
}

/// All calls of a case.
fn calls(dice: &mut Dice, mut problem: Problem) -> Outcome {
    let observe = observe(dice, &problem.grid);
    let auto = problem.run(Path::Auto, &observe, problem.dtype, true);
    let plain = problem.run(Path::Plain, &observe, problem.dtype, true);
    let (auto, plain) = match (auto, plain) {
        (Ok(auto), Ok(plain)) => (auto, plain),
        (Err(_), Err(_)) => return Ok("attention refused"),
        (auto, plain) => {
            let [auto, plain] = [auto, plain].map(|run| run.err().map(|error| error.to_string()));
            return Err(format!("one path refuses: auto {auto:?}, plain {plain:?}"));
        }
    };
    problem.shapes(&auto, &observe)?;
    problem.shapes(&plain, &observe)?;
    let unobserved = problem.run(Path::Auto, &Observe::Nothing, problem.dtype, false);
    let unobserved = unobserved.map_err(|error| format!("refused unobserved: {error}"))?;
    same(
        "context, observed and not,",
        &auto.context,
        &unobserved.context,
    )?;
    if problem.grid_is_empty() {
        return Ok("attention to nothing");
    }
    let seen = problem.seen()?;
    let weights = |path| {
        let run = problem.run(path, &Observe::Weights, problem.dtype, false);
        run.map(|run| numbers(&run.attended.weights.expect("weights were asked for")))
            .map_err(|error| error.to_string())
    };
    let weights = [weights(Path::Auto)?, weights(Path::Plain)?];
    for (path, weights) in ["auto", "plain"].iter().zip(&weights) {
        for (i, (&weight, &seen)) in weights.iter().zip(&seen).enumerate() {
            if !seen && weight != 0.0 {
                return Err(format!("{path}: hidden weight {i} is {weight}"));
            }
        }
    }
    if !problem.is_bounded() {
        return Ok("attention of any numbers");
    }
    for (path, (weights, run)) in ["auto", "plain"]
        .iter()
        .zip(weights.iter().zip([&auto, &plain]))
    {
        problem.invariants(path, weights, &seen, run)?;
    }
    if problem.dtype != DType::F32 {
        return Ok("attention in another precision");
    }
    if !problem.is_softmax() {
        same("weights by both paths", &weights[0], &weights[1])?;
        same("context by both paths", &auto.context, &plain.context)?;
        return Ok("attention without a kernel");
    }
    problem.compare(&seen, &weights, [&auto, &plain], &observe)?;
    if problem.spoil(dice, &seen) {
        let spoilt = problem.run(Path::Auto, &observe, problem.dtype, true);
        let spoilt = spoilt.map_err(|error| format!("poison refused: {error}"))?;
        let tolerance = 1e-4 * (1.0 + problem.value.largest()) * problem.raise();
        close(
            "context beside poison",
            &spoilt.context,
            &auto.context,
            tolerance,
        )?;
        problem.gradients_are_finite("beside poison", &spoilt)?;
    }
    Ok("attention compared")
}

fn observe(dice: &mut Dice, grid: &Grid) -> Observe {
    match dice.below(7) {
        0 => Observe::Weights,
        1 => {
            let beyond = usize::from(dice.once_in(40));
            Observe::Rows(
                (0..dice.below(4))
                    .map(|_| dice.below(grid.queries.max(1)) + beyond)
                    .collect(),
            )
        }
        2 => Observe::Entropy,
        3 => Observe::ColumnSums,
        4 | 5 => Observe::TopK(dice.below(grid.keys + 1) + usize::from(!dice.once_in(20))),
        _ => Observe::Nothing,
    }
}

impl Problem {
    fn new(dice: &mut Dice, device: Device) -> Option<Self> {
        let spread = dice.pick(&[
            Spread::Moderate,
            Spread::Moderate,
            Spread::Exact,
            Spread::Exact,
            Spread::Wild,
        ]);
        let dtype = match dice.below(12) {
            0 => dice.pick(&[DType::F64, DType::F16, DType::BF16]),
            _ => DType::F32,
        };
        let key_heads = if dice.once_in(60) {
            0
        } else {
            1 + dice.below(2)
        };
        let mut heads = key_heads * (1 + dice.below(3));
        if dice.once_in(80) {
            heads += 1;
        }
        let mut batch = if dice.once_in(30) {
            0
        } else {
            1 + dice.below(2)
        };
        let (mut queries, mut keys) = (length(dice), length(dice));
        if dice.once_in(100) {
            // Absurd sizes beside a size of 0.
            let absurd = dice.pick(&[1 << 20, 1 << 40]);
            match dice.below(3) {
                0 => (batch, queries, keys) = (0, queries, absurd),
                1 => (batch, queries, keys) = (0, absurd, keys),
                // These sizes have numbers, and take memory.
                _ => (batch, queries, keys) = (1, 0, 1 << 14),
            }
        }
        let size = match dice.below(60) {
            0 => 0,
            1 => 257,
            2..5 => 16 + dice.below(50),
            _ => 1 + dice.below(9),
        };
        let value_size = match dice.below(60) {
            0 => 0,
            1 => 257,
            _ => 1 + dice.below(6),
        };
        let grid = Grid {
            batch,
            heads,
            queries,
            keys,
            first_query: match dice.below(12) {
                0 => mechanism::distance(dice),
                1 => dice.below(5),
                _ => 0,
            },
            first_key: 0,
        };
        let init = &mut Initializer::new(dice.next(), &device);
        let attention = mechanism::attention(dice, heads, size, spread, init);
        let attention = mechanism::in_precision(&attention, dtype, &device);
        // For absurd lengths, a mask would take too much memory.
        let small = batch.max(1) * queries.max(1) * keys.max(1) < 1 << 16;
        let own = match small && dice.once_in(3) {
            true => mechanism::mask(dice, &grid, 1, &device)?,
            false => Mask::all(),
        };
        let mask = match small && dice.once_in(2) {
            true => mechanism::mask(dice, &grid, 2, &device)?,
            false => Mask::all(),
        };
        let number = |dice: &mut Dice| spread.number(dice);
        let query = Input::new(dice, [batch, heads, queries, size], number);
        let key = Input::new(dice, [batch, key_heads, keys, size], number);
        let value = Input::new(dice, [batch, key_heads, keys, value_size], number);
        let bias =
            (small && dice.once_in(if spread == Spread::Exact { 2 } else { 5 })).then(|| {
                let full = [batch, heads, queries, keys];
                let mut shape = full.map(|size| if dice.once_in(2) { 1 } else { size });
                shape[3] = keys + usize::from(dice.once_in(60));
                // Whole rows of one number, as people use them as masks.
                let constant = dice.once_in(3).then(|| spread.bias(dice));
                Input::new(dice, shape, |dice| match (constant, dice.below(12)) {
                    (None, 0) => f32::NEG_INFINITY,
                    (Some(constant), 1..) => constant,
                    _ => spread.bias(dice),
                })
            });
        let alibi = (heads > 0 && dice.once_in(12))
            .then(|| Alibi::new(heads + usize::from(dice.once_in(20))).ok())
            .flatten();
        let carried = dice.once_in(24).then(|| {
            let last = if dice.once_in(2) { keys.min(100) } else { 2 };
            Input::new(dice, [batch, heads, 1, last], |dice| dice.number(1.0).abs())
        });
        Some(Self {
            dtype,
            spread,
            grid,
            key_heads,
            size,
            value_size,
            attention: attention.with_mask(own),
            mask,
            query,
            key,
            value,
            bias,
            odd: dice.once_in(80).then(|| dice.below(4)),
            alibi,
            carried,
            seed: dice.once_in(3).then(|| dice.next()),
            differentiable: dice.once_in(10),
            poison: None,
            device,
        })
    }

    /// A description of the call, for the message of a failure.
    fn options(&self) -> String {
        let attention = &self.attention;
        format!(
            "{:?} {:?}, {:?}, key heads {}, size {}, values of {}, {}, {}, softcap {:?}, dropout {} ({}), predictor {}, \
             query, key and value up to {:?}, bias {:?}, alibi {}, carried {}",
            self.dtype,
            self.spread,
            self.grid,
            self.key_heads,
            self.size,
            self.value_size,
            attention.score.name(),
            attention.normalize.name(),
            attention.softcap(),
            attention.dropout(),
            self.seed.is_some(),
            attention.predictor.is_some(),
            [&self.query, &self.key, &self.value].map(Input::largest),
            self.bias.as_ref().map(|bias| (bias.shape, bias.largest())),
            self.alibi.is_some(),
            self.carried.is_some(),
        )
    }

    fn run(
        &self,
        path: Path,
        observe: &Observe,
        dtype: DType,
        backward: bool,
    ) -> Result<Run, AttentionError> {
        let attention = match dtype == self.dtype {
            true => self.attention.clone(),
            false => mechanism::in_precision(&self.attention, dtype, &self.device),
        };
        let precision = |which: usize| match self.odd == Some(which) {
            true if dtype == DType::F64 => DType::F32,
            true => DType::F64,
            false => dtype,
        };
        let inputs = [&self.query, &self.key, &self.value];
        let leaves: Vec<Tensor<4>> = inputs
            .into_iter()
            .enumerate()
            .map(|(i, input)| input.leaf(precision(i), &self.device))
            .collect();
        let bias = self
            .bias
            .as_ref()
            .map(|bias| bias.leaf(precision(3), &self.device));
        let mut noise = self.seed.map(DropoutRng::seeded);
        let mut call = AttentionOptions::new(observe.clone())
            .mask(self.mask.clone())
            .path(path)
            .first_query(self.grid.first_query);
        call.bias = bias.clone();
        call.alibi = self.alibi.as_ref();
        call.carried = self
            .carried
            .as_ref()
            .map(|carried| carried.leaf(dtype, &self.device));
        call.noise = noise.as_mut();
        call.differentiable = self.differentiable;
        let spoilt = |x: &Tensor<4>| match &self.poison {
            None => x.clone(),
            Some(poison) => x
                .clone()
                .mask_fill(poison.clone().expand(x.dims()), f32::NAN),
        };
        let (key, value) = (spoilt(&leaves[1]), spoilt(&leaves[2]));
        let attended = attention.forward_with(leaves[0].clone(), key, value, call)?;
        let mut gradients = vec![];
        if backward && self.device.is_autodiff() {
            let upstream = self.upstream(attended.context.dims());
            let upstream = Tensor::<4>::from_data(upstream, (&self.device, DType::F32)).cast(dtype);
            let all = (attended.context.clone() * upstream).sum().backward();
            gradients = leaves
                .iter()
                .chain(&bias)
                .map(|leaf| match leaf.grad(&all) {
                    Some(slope) => numbers(&slope),
                    None => vec![0.0; leaf.dims().iter().product()],
                })
                .collect();
        }
        Ok(Run {
            context: numbers(&attended.context),
            attended,
            gradients,
        })
    }

    /// The gradient of the context, numbers from -1 to 1.
    fn upstream(&self, shape: [usize; 4]) -> TensorData {
        let count: usize = if shape.contains(&0) {
            0
        } else {
            shape.iter().product()
        };
        let values = (0..count).map(|i| ((i * 7919 + 13) % 17) as f32 / 8.0 - 1.0);
        TensorData::new(values.collect::<Vec<f32>>(), shape)
    }

    fn grid_is_empty(&self) -> bool {
        let Grid {
            batch,
            heads,
            queries,
            keys,
            ..
        } = self.grid;
        [batch, heads, queries, keys].contains(&0)
    }

    fn raise(&self) -> f64 {
        match self.seed {
            None => 1.0,
            Some(_) => 1.0 / (1.0 - self.attention.dropout()),
        }
    }

    /// Whether dropout changes the result.
    fn drops(&self) -> bool {
        self.seed.is_some() && self.attention.dropout() > 0.0
    }

    fn is_softmax(&self) -> bool {
        matches!(
            self.attention.normalize,
            Normalize::Softmax(_) | Normalize::Sink(_)
        ) && self.attention.predictor.is_none()
    }

    /// Whether no intermediate score or result can exceed the range of the precision.
    fn is_bounded(&self) -> bool {
        let most = self.dtype.finfo().map_or(0.0, |info| info.max);
        let scale = match &self.attention.score {
            Score::Dot(_) => 1.0,
            Score::ScaledDot(score) => score.scale(self.size.max(1)),
            // The scale is applied after squaring.
            Score::Distance(score) => {
                score.scale(self.size.max(1)).abs().max(1.0)
                    * 4.0
                    * (self.query.largest() + self.key.largest())
            }
            Score::Cosine(score) => match &score.sharpening {
                Some(_) => 10.0 * (1.0 + self.query.largest() * self.size as f64),
                // The score of two equal vectors.
                None => {
                    let one = Tensor::ones([1, 1, 1, 1], (&Device::flex(), DType::F64));
                    largest(numbers(&score.forward(one.clone(), score.keys(one))))
                }
            },
            _ if self.spread == Spread::Wild => return false,
            _ => 10.0,
        };
        let of_bias = self.bias.as_ref().map_or(0.0, |bias| {
            let data = numbers(&bias.leaf(DType::F32, &Device::flex()));
            largest(data.into_iter().filter(|x| x.is_finite()))
        });
        let kernel = matches!(
            self.attention.normalize,
            Normalize::Softmax(_) | Normalize::Sink(_)
        );
        if !kernel && (self.spread == Spread::Wild || of_bias > 1e6 || scale > 1e6) {
            return false;
        }
        let product =
            scale.abs().max(1.0) * self.query.largest().max(1.0) * self.key.largest().max(1.0);
        let score = product * self.size as f64;
        score.is_finite()
            && score < most / 32.0
            && of_bias + score < 0.9 * most
            && self.value.largest() < most / 32.0 / self.raise()
    }

    /// Which keys a query may see, `[batch, heads, queries, keys]`.
    fn seen(&self) -> Result<Vec<bool>, String> {
        let Grid {
            batch,
            heads,
            queries,
            keys,
            ..
        } = self.grid;
        let mask = self.attention.mask().clone() & self.mask.clone();
        let shape = [batch, heads, queries, keys];
        let seen = mask
            .tensor(&self.grid, &Device::flex())
            .map_err(|error| error.to_string())?;
        let mut seen: Vec<bool> = seen.expand(shape).into_data().iter::<bool>().collect();
        if let Some(bias) = &self.bias {
            let bias = numbers(&bias.leaf(DType::F32, &Device::flex()).expand(shape));
            seen.iter_mut()
                .zip(bias)
                .for_each(|(seen, bias)| *seen &= bias != f64::NEG_INFINITY);
        }
        if let Some(reach) = self.attention.score.reach() {
            seen.iter_mut()
                .enumerate()
                .for_each(|(i, seen)| *seen &= i % keys < reach);
        }
        Ok(seen)
    }

    fn shapes(&self, run: &Run, observe: &Observe) -> Result<(), String> {
        let Grid {
            batch,
            heads,
            queries,
            keys,
            ..
        } = self.grid;
        let attended = &run.attended;
        dims(
            "context",
            attended.context.dims(),
            [batch, heads, queries, self.value_size],
        )?;
        if let Some(lse) = &attended.lse {
            dims("lse", lse.dims(), [batch, heads, queries])?;
        }
        let missing = || format!("{observe:?} was asked for and is not there");
        match observe {
            Observe::Nothing => Ok(()),
            Observe::Weights => {
                let found = attended.weights.as_ref().ok_or_else(missing)?.dims();
                dims("weights", found, [batch, heads, queries, keys])
            }
            Observe::Rows(rows) => {
                let found = attended.weights.as_ref().ok_or_else(missing)?.dims();
                dims("rows", found, [batch, heads, rows.len(), keys])
            }
            Observe::Entropy => {
                let found = attended.entropy.as_ref().ok_or_else(missing)?.dims();
                dims("entropy", found, [batch, heads, queries])
            }
            Observe::ColumnSums => {
                let found = attended.column_sums.as_ref().ok_or_else(missing)?.dims();
                dims("column sums", found, [batch, heads, keys])
            }
            Observe::TopK(k) => {
                let top = attended.top.as_ref().ok_or_else(missing)?;
                dims(
                    "top weights",
                    top.weights.dims(),
                    [batch, heads, queries, *k],
                )?;
                dims("top keys", top.keys.dims(), [batch, heads, queries, *k])
            }
        }
    }

    /// Checks what must hold of any weights that were computed from finite scores.
    fn invariants(
        &self,
        path: &str,
        weights: &[f64],
        seen: &[bool],
        run: &Run,
    ) -> Result<(), String> {
        finite(&format!("{path}: weights"), weights)?;
        finite(&format!("{path}: context"), &run.context)?;
        self.gradients_are_finite(path, run)?;
        // Local-p multiplies weights by a Gaussian. (Scores that are used as weights may be negative, with local-p
        // too.)
        let whole = match &self.attention.normalize {
            Normalize::Softmax(_)
            | Normalize::Sparsemax(_)
            | Normalize::Entmax15(_)
            | Normalize::Hardmax(_) => self.attention.predictor.is_none(),
            Normalize::Sink(_) => false,
            _ => return Ok(()),
        };
        // Each weight is rounded, and so is each addend of its denominator.
        let rounding = match self.dtype.finfo() {
            Some(info) => 1e-4 + (self.grid.keys + 4) as f64 * info.epsilon,
            None => 1e-4,
        };
        for (i, (row, seen)) in weights
            .chunks(self.grid.keys)
            .zip(seen.chunks(self.grid.keys))
            .enumerate()
        {
            let sum: f64 = row.iter().sum();
            if let Some(weight) = row.iter().find(|&&weight| weight < 0.0) {
                return Err(format!("{path}: row {i} has a weight {weight}"));
            }
            let expected = if seen.contains(&true) { 1.0 } else { 0.0 };
            if whole && (sum - expected).abs() > rounding || sum > expected + rounding {
                return Err(format!(
                    "{path}: row {i} sums to {sum}, expected {expected}"
                ));
            }
        }
        Ok(())
    }

    /// Scores, by the plain path.
    fn scores(&self, dtype: DType) -> Result<Vec<f64>, String> {
        let attention = mechanism::in_precision(&self.attention, dtype, &self.device);
        let mut call = AttentionOptions::default()
            .mask(self.mask.clone())
            .first_query(self.grid.first_query);
        call.bias = self
            .bias
            .as_ref()
            .map(|bias| bias.leaf(dtype, &self.device));
        call.alibi = self.alibi.as_ref();
        let [query, key] = [&self.query, &self.key].map(|input| input.leaf(dtype, &self.device));
        let scores = attention
            .scores(query, key, call)
            .map_err(|error| error.to_string())?;
        Ok(numbers(&scores))
    }

    /// Compares both paths with a softmax on the host.
    fn compare(
        &self,
        seen: &[bool],
        weights: &[Vec<f64>; 2],
        runs: [&Run; 2],
        observe: &Observe,
    ) -> Result<(), String> {
        let Grid {
            batch,
            heads,
            queries,
            keys,
            ..
        } = self.grid;
        let single = self.scores(DType::F32)?;
        let (scores, error) = match self.spread {
            // The sum with a bias is rounded once, in the same way on all paths.
            Spread::Exact => (single, 1e-5),
            _ => {
                let exact = self.scores(DType::F64)?;
                let visible = |x: &[f64]| -> Vec<f64> {
                    x.iter()
                        .zip(seen)
                        .filter(|(_, seen)| **seen)
                        .map(|(x, _)| *x)
                        .collect()
                };
                let (a, b) = (visible(&single), visible(&exact));
                let error = 8.0 * distance(&a, &b) + 4e-6 * (1.0 + largest(b.iter().copied()));
                (exact, error)
            }
        };
        if error > 0.05 {
            return Ok(()); // any weights are valid
        }
        let sinks = match &self.attention.normalize {
            Normalize::Sink(sink) => match &sink.logits {
                Some(logits) => Some(numbers(&logits.val())),
                None => Some(vec![self.fixed_sink()?; heads]),
            },
            _ => None,
        };
        let mut host = vec![0.0; scores.len()];
        let mut lse = vec![];
        for (i, row) in host.chunks_mut(keys).enumerate() {
            let scores = &scores[i * keys..][..keys];
            let seen = &seen[i * keys..][..keys];
            let sink = sinks.as_ref().map(|sinks| sinks[i / queries % heads]);
            let top = scores
                .iter()
                .zip(seen)
                .filter(|(_, seen)| **seen)
                .map(|(s, _)| *s);
            let top = top.chain(sink).fold(f64::NEG_INFINITY, f64::max);
            for ((weight, score), seen) in row.iter_mut().zip(scores).zip(seen) {
                *weight = if *seen { (score - top).exp() } else { 0.0 };
            }
            let sum = row.iter().sum::<f64>() + sink.map_or(0.0, |sink| (sink - top).exp());
            if sum > 0.0 {
                row.iter_mut().for_each(|weight| *weight /= sum);
            }
            lse.push(if sum > 0.0 {
                top + sum.ln()
            } else {
                f64::NEG_INFINITY
            });
        }
        let of_weight = (2.0 * error).exp_m1() + 4e-6;
        let values = numbers(&self.value.leaf(DType::F32, &self.device));
        let group = heads / self.key_heads;
        let value = |row: usize, key: usize, e: usize| {
            let (b, h) = (row / queries / heads, row / queries % heads);
            values[((b * self.key_heads + h / group) * keys + key) * self.value_size + e]
        };
        let most = self.value.largest();
        let of_context = (keys as f64 * of_weight + 1e-6 * (keys as f64).sqrt())
            * most.max(1e-30)
            * self.raise();
        let mut context = vec![0.0; batch * heads * queries * self.value_size];
        for (i, to) in context.iter_mut().enumerate() {
            let (row, e) = (i / self.value_size, i % self.value_size);
            *to = (0..keys)
                .map(|key| host[row * keys + key] * value(row, key, e))
                .sum();
        }
        for (path, (weights, run)) in ["auto", "plain"].iter().zip(weights.iter().zip(runs)) {
            close(&format!("{path}: weights"), weights, &host, of_weight)?;
            if !self.drops() {
                close(
                    &format!("{path}: context"),
                    &run.context,
                    &context,
                    of_context,
                )?;
            }
            if let Some(found) = &run.attended.lse {
                for (i, (found, expected)) in numbers(found).into_iter().zip(&lse).enumerate() {
                    let tolerance = error + 4e-6 * (1.0 + expected.abs());
                    close(
                        &format!("{path}: lse of row {i},"),
                        &[found],
                        &[*expected],
                        tolerance,
                    )?;
                }
            }
            self.observed(path, run, observe, &host, of_weight, sinks.is_some())?;
        }
        close(
            "context by both paths",
            &runs[0].context,
            &runs[1].context,
            2.0 * of_context,
        )?;
        if !self.device.is_autodiff() {
            return Ok(());
        }
        self.slopes(&host, runs, of_weight)
    }

    /// The score of a fixed sink as a call in `f32` rounds it: the `lse` of a row without keys.
    fn fixed_sink(&self) -> Result<f64, String> {
        let Normalize::Sink(sink) = &self.attention.normalize else {
            return Err("no sink".to_owned());
        };
        let lse = sink
            .forward(
                Tensor::<4>::zeros([1, 1, 1, 0], (&Device::flex(), DType::F32)),
                None,
            )
            .lse;
        lse.map(|lse| lse.into_scalar::<f64>())
            .ok_or_else(|| "a sink without lse".to_owned())
    }

    fn observed(
        &self,
        path: &str,
        run: &Run,
        observe: &Observe,
        host: &[f64],
        tolerance: f64,
        sink: bool,
    ) -> Result<(), String> {
        let Grid {
            heads,
            queries,
            keys,
            ..
        } = self.grid;
        let attended = &run.attended;
        let name = |what: &str| format!("{path}: {what}");
        match observe {
            Observe::Nothing | Observe::Weights => Ok(()),
            Observe::Rows(rows) => {
                let found = attended.weights.as_ref().map(numbers).unwrap_or_default();
                let mut expected = vec![];
                for head in 0..self.grid.batch * heads {
                    for &row in rows {
                        expected.extend_from_slice(&host[(head * queries + row) * keys..][..keys]);
                    }
                }
                close(&name("rows"), &found, &expected, tolerance)
            }
            Observe::Entropy => {
                let found = attended.entropy.as_ref().map(numbers).unwrap_or_default();
                finite(&name("entropy"), &found)?;
                if sink {
                    return Ok(());
                }
                let of = |row: &[f64]| {
                    -row.iter()
                        .filter(|w| **w > 0.0)
                        .map(|w| w * w.ln())
                        .sum::<f64>()
                };
                let expected: Vec<f64> = host.chunks(keys).map(of).collect();
                close(
                    &name("entropy"),
                    &found,
                    &expected,
                    40.0 * keys as f64 * tolerance + 1e-4,
                )
            }
            Observe::ColumnSums => {
                let found = attended
                    .column_sums
                    .as_ref()
                    .map(numbers)
                    .unwrap_or_default();
                let mut expected = vec![0.0; found.len()];
                for (i, weight) in host.iter().enumerate() {
                    expected[i / keys / queries * keys + i % keys] += weight;
                }
                close(
                    &name("column sums"),
                    &found,
                    &expected,
                    (queries + 1) as f64 * tolerance,
                )
            }
            Observe::TopK(k) => {
                let top = attended.top.as_ref().ok_or("no top")?;
                let found = numbers(&top.weights);
                let at: Vec<i64> = top.keys.clone().into_data().iter::<i64>().collect();
                for (i, row) in host.chunks(keys).enumerate() {
                    let mut sorted = row.to_vec();
                    sorted.sort_by(|a, b| b.total_cmp(a));
                    let (found, at) = (&found[i * k..][..*k], &at[i * k..][..*k]);
                    close(&name("top weights"), found, &sorted[..*k], tolerance)?;
                    for (weight, &key) in found.iter().zip(at) {
                        let right = match key {
                            -1 => *weight == 0.0,
                            _ => (row[key as usize] - weight).abs() <= tolerance,
                        };
                        if !right {
                            return Err(format!("{path}: row {i} has {weight} at key {key}"));
                        }
                    }
                }
                Ok(())
            }
        }
    }

    /// Gradients must be finite if their precision can hold them: those of keys of 1e30 and values of 1e30 are 1e60.
    fn gradients_are_finite(&self, which: &str, run: &Run) -> Result<(), String> {
        let most = self.dtype.finfo().map_or(0.0, |info| info.max);
        for ((name, slope), largest) in GRADIENTS
            .iter()
            .zip(&run.gradients)
            .zip(self.largest_gradients())
        {
            if largest < most {
                finite(&format!("{which}: {name}"), slope)?;
            }
        }
        Ok(())
    }

    /// Upper bounds of the gradients.
    fn largest_gradients(&self) -> [f64; 4] {
        let Grid {
            batch,
            heads,
            queries,
            keys,
            ..
        } = self.grid;
        let most = self.value.largest() * self.value_size as f64 * self.raise();
        let scale = match &self.attention.score {
            Score::ScaledDot(score) => score.scale(self.size).abs(),
            // The derivative at a vector is β over its length.
            Score::Cosine(_) if self.spread == Spread::Wild => f64::INFINITY,
            _ => 4.0,
        };
        let (of_query, of_key) = (self.query.largest().max(1.0), self.key.largest().max(1.0));
        let rows = (queries * heads / self.key_heads) as f64;
        [
            most * scale * of_key * keys as f64,
            most * scale * of_query * rows,
            rows * self.raise(),
            most * (batch * heads * queries * keys) as f64,
        ]
    }

    /// Gradients: computed by hand where scores are products alone; else both paths are compared with the plain one
    /// in `f64`.
    fn slopes(&self, host: &[f64], runs: [&Run; 2], of_weight: f64) -> Result<(), String> {
        let Grid {
            batch,
            heads,
            queries,
            keys,
            ..
        } = self.grid;
        let group = heads / self.key_heads;
        let natural = self.largest_gradients();
        if self.spread != Spread::Exact || self.drops() || self.attention.softcap().is_some() {
            if self.spread != Spread::Moderate {
                return Ok(());
            }
            let exact = self.run(Path::Plain, &Observe::Nothing, DType::F64, true);
            let exact = exact.map_err(|error| format!("in f64: {error}"))?.gradients;
            for (i, exact) in exact.iter().enumerate() {
                let plain = &runs[1].gradients[i];
                let tolerance = 8.0 * distance(plain, exact) + 1e-4 * natural[i];
                close(GRADIENTS[i], &runs[0].gradients[i], exact, tolerance)?;
            }
            return Ok(());
        }
        let Score::ScaledDot(score) = &self.attention.score else {
            return Ok(());
        };
        let scale = score.scale(self.size);
        let data = |input: &Input<4>| numbers(&input.leaf(DType::F32, &self.device));
        let (query, key, value) = (data(&self.query), data(&self.key), data(&self.value));
        let (size, value_size) = (self.size, self.value_size);
        let upstream: Vec<f64> = self
            .upstream([batch, heads, queries, value_size])
            .iter::<f64>()
            .collect();
        let mut slopes = [
            vec![0.0; query.len()],
            vec![0.0; key.len()],
            vec![0.0; value.len()],
        ];
        for row in 0..batch * heads * queries {
            let (b, h) = (row / queries / heads, row / queries % heads);
            let head = (b * self.key_heads + h / group) * keys;
            let up = &upstream[row * value_size..][..value_size];
            let weights = &host[row * keys..][..keys];
            let of_weight: Vec<f64> = (0..keys)
                .map(|key| {
                    (0..value_size)
                        .map(|e| up[e] * value[(head + key) * value_size + e])
                        .sum()
                })
                .collect();
            let mean: f64 = weights.iter().zip(&of_weight).map(|(w, d)| w * d).sum();
            for j in 0..keys {
                let of_score = weights[j] * (of_weight[j] - mean) * scale;
                for d in 0..size {
                    slopes[0][row * size + d] += of_score * key[(head + j) * size + d];
                    slopes[1][(head + j) * size + d] += of_score * query[row * size + d];
                }
                for e in 0..value_size {
                    slopes[2][(head + j) * value_size + e] += weights[j] * up[e];
                }
            }
        }
        for (path, run) in ["auto", "plain"].iter().zip(runs) {
            for (i, expected) in slopes.iter().enumerate() {
                let tolerance = 4.0 * (of_weight + 1e-6) * natural[i];
                close(
                    &format!("{path}: {}", GRADIENTS[i]),
                    &run.gradients[i],
                    expected,
                    tolerance,
                )?;
            }
        }
        Ok(())
    }

    /// Writes NaN to the keys that no query sees. Returns whether there are such keys.
    fn spoil(&mut self, dice: &mut Dice, seen: &[bool]) -> bool {
        let Grid {
            batch,
            heads,
            queries,
            keys,
            ..
        } = self.grid;
        let group = heads / self.key_heads;
        let hidden: Vec<bool> = (0..batch * self.key_heads * keys)
            .map(|i| {
                let (head, key) = (i / keys, i % keys);
                let first = head / self.key_heads * heads + head % self.key_heads * group;
                let mut rows = first * queries..(first + group) * queries;
                rows.all(|row| !seen[row * keys + key]) && !dice.once_in(4)
            })
            .collect();
        if !hidden.contains(&true) {
            return false;
        }
        let data = TensorData::new(hidden, [batch, self.key_heads, keys, 1]);
        self.poison = Some(Tensor::from_data(data, &self.device));
        true
    }
}
