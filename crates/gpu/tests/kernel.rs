//! The kernels against the definition in f64, on the card that REGARD_TEST_DEVICE names, else on the first one that there is.
//!
//! Bound: `max |card - ref| <= 2 max |naive f32 - ref| + a rounding of ref and of the card's exp`; Vulkan lets `exp(x)` be wrong by
//! `3 + 2 |x|` units in the last place.

use burn::{
    backend::{BackendTensor, DispatchAutodiffContext, DispatchTensor, DispatchTensorKind},
    tensor::{DType, Device, DeviceType, Tensor, TensorData},
};
use burn_cubecl::tensor::CubeTensor;
use regard_gpu::{Forward, Gradients, Inputs, Options, backward, exp, forward};
use regard_kernels::{Alignment, Attention, View, Window, dot::reference};

fn device() -> Option<Device> {
    let kinds = Vec::<(&str, DeviceType)>::from([
        #[cfg(feature = "cuda")]
        ("cuda", DeviceType::Cuda),
        #[cfg(feature = "wgpu")]
        ("wgpu", DeviceType::Wgpu),
    ]);
    let mut cards = kinds.into_iter().flat_map(|(kind, of)| {
        let found = Device::enumerate(of).into_iter().enumerate();
        found.map(move |(index, card)| (format!("{kind}:{index}"), card))
    });
    match std::env::var("REGARD_TEST_DEVICE") {
        Ok(wanted) => Some(
            cards
                .find(|(name, _)| *name == wanted)
                .expect("no such card")
                .1,
        ),
        Err(_) => {
            let card = cards.next();
            if card.is_none() {
                println!("skipped: there is no card");
            }
            Some(card?.1)
        }
    }
}

/// Numbers from about a normal distribution that follow from `seed`.
fn numbers(seed: u64, count: usize) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 40) as f32 / (1 << 24) as f32
    };
    (0..count)
        .map(|_| (0..6).map(|_| next()).sum::<f32>() * 1.4 - 4.2)
        .collect()
}

fn rounded(mut numbers: Vec<f32>, dtype: DType) -> Vec<f32> {
    for x in &mut numbers {
        *x = match dtype {
            DType::F16 => half::f16::from_f32(*x).to_f32(),
            DType::BF16 => half::bf16::from_f32(*x).to_f32(),
            _ => *x,
        };
    }
    numbers
}

fn cube(tensor: Tensor<4>) -> CubeTensor {
    match tensor.into_dispatch().kind {
        DispatchTensorKind::Cube(BackendTensor::Float(tensor)) => tensor,
        other => panic!("{other:?}"),
    }
}

fn read(tensor: CubeTensor) -> Vec<f64> {
    let kind = DispatchTensorKind::Cube(BackendTensor::Float(tensor));
    let tensor = DispatchTensor {
        kind,
        autodiff: DispatchAutodiffContext::Disabled,
    };
    let tensor = Tensor::<4>::from_dispatch(tensor).cast(DType::F32);
    tensor.into_data().iter::<f64>().collect()
}

fn tensor(numbers: &[f32], shape: [usize; 4], device: &Device, dtype: DType) -> CubeTensor {
    let data = TensorData::new(numbers.to_vec(), shape);
    cube(Tensor::<4>::from_data(data, device).cast(dtype))
}

#[derive(Debug, Clone)]
struct Case {
    batch: usize,
    heads: [usize; 2],
    lengths: [usize; 2],
    sizes: [usize; 2],
    causal: bool,
    window: Option<[usize; 2]>,
    keys_of: Option<Vec<u32>>,
    softcap: Option<f32>,
    bias: Option<[usize; 4]>,
    /// What the bias is multiplied by, and what hides where it says so.
    bias_factor: f32,
    bias_hides: bool,
    /// What the queries are multiplied by.
    factor: f32,
    lower_right: bool,
    /// What the numbers are rounded to.
    dtype: DType,
}

impl Case {
    fn new(batch: usize, heads: [usize; 2], lengths: [usize; 2], sizes: [usize; 2]) -> Self {
        Self {
            batch,
            heads,
            lengths,
            sizes,
            causal: false,
            window: None,
            keys_of: None,
            softcap: None,
            bias: None,
            bias_factor: 1.0,
            bias_hides: false,
            factor: 1.0,
            lower_right: true,
            dtype: DType::F32,
        }
    }

    fn shapes(&self) -> [[usize; 4]; 3] {
        let [queries, keys] = self.lengths;
        [
            [self.batch, self.heads[0], queries, self.sizes[0]],
            [self.batch, self.heads[1], keys, self.sizes[0]],
            [self.batch, self.heads[1], keys, self.sizes[1]],
        ]
    }

    fn data(&self) -> [Vec<f32>; 3] {
        let mut seed = 7;
        let mut data = self.shapes().map(|shape| {
            seed += 1;
            numbers(seed, shape.iter().product())
        });
        data[0].iter_mut().for_each(|x| *x *= self.factor);
        data.map(|numbers| rounded(numbers, self.dtype))
    }

    fn inputs(&self, device: &Device, dtype: DType) -> Inputs {
        let (data, shapes) = (self.data(), self.shapes());
        let [query, key, value] = [0, 1, 2].map(|i| tensor(&data[i], shapes[i], device, dtype));
        let [queries, keys] = self.lengths;
        let bias = self.bias().map(|(numbers, shape)| {
            let full = [self.batch, self.heads[0], queries, keys];
            cube(Tensor::<4>::from_data(TensorData::new(numbers, shape), device).expand(full))
        });
        Inputs {
            query,
            key,
            value,
            bias,
        }
    }

    fn bias(&self) -> Option<(Vec<f32>, [usize; 4])> {
        let shape = self.bias?;
        let mut bias = numbers(99, shape.iter().product());
        for (place, x) in bias.iter_mut().enumerate() {
            *x *= self.bias_factor;
            if self.bias_hides && place % 3 != 0 {
                *x = f32::NEG_INFINITY;
            }
        }
        Some((bias, shape))
    }

    fn scale(&self) -> f32 {
        (self.sizes[0] as f32).sqrt().recip()
    }

    fn options(&self) -> Options {
        let [queries, keys] = self.lengths.map(|length| length as i64);
        let mut options = Options::new(self.scale());
        options.softcap = self.softcap;
        options.shift = if self.lower_right { keys - queries } else { 0 };
        options.lengths = self.keys_of.clone();
        options.left = self.window.map(|[left, _]| left);
        options.right = self.window.map(|[_, right]| right);
        if self.causal {
            options.right = Some(0);
        }
        options
    }

    /// The same for the definition.
    fn attention<'a>(&'a self, bias: Option<&'a (Vec<f32>, [usize; 4])>) -> Attention<'a> {
        Attention {
            scale: Some(self.scale()),
            softcap: self.softcap,
            alignment: if self.lower_right {
                Alignment::LowerRight
            } else {
                Alignment::UpperLeft
            },
            causal: self.causal,
            window: self.window.map(|[left, right]| Window {
                left: Some(left),
                right: Some(right),
            }),
            lengths: self.keys_of.as_deref(),
            bias: bias.map(|(numbers, shape)| View::heads_first(numbers, *shape)),
            ..Attention::default()
        }
    }
}

/// What the card computes: context, `lse`, and the gradients of query, key, value and bias (before it is summed).
fn on_card(case: &Case, device: &Device, dtype: DType) -> [Vec<f64>; 6] {
    let (inputs, options) = (case.inputs(device, dtype), case.options());
    let out = [case.batch, case.heads[0], case.lengths[0], case.sizes[1]];
    let gradient = tensor(&numbers(5, out.iter().product()), out, device, dtype);
    let found = forward(inputs.clone(), &options);
    let wants_bias = inputs.bias.is_some();
    let gradients = backward(inputs, &options, &found, gradient, wants_bias);
    let Forward { context, stats } = found;
    let lse = read(stats)
        .chunks(2)
        .map(|row| row[0] + row[1].ln())
        .collect();
    let Gradients {
        query,
        key,
        value,
        bias,
    } = gradients;
    [
        read(context),
        lse,
        read(query),
        read(key),
        read(value),
        bias.map(read).unwrap_or_default(),
    ]
}

/// The same by the definition. The gradient of the bias is summed where it is broadcast.
fn by_definition<T: regard_kernels::reference::Real>(case: &Case) -> [Vec<f64>; 6] {
    let bias = case.bias();
    let attention = case.attention(bias.as_ref());
    let shapes = case.shapes();
    let wide = |numbers: Vec<f32>| {
        numbers
            .into_iter()
            .map(|x| T::of(x.into()))
            .collect::<Vec<T>>()
    };
    let [query, key, value] = case.data().map(wide);
    let found = reference::forward(&attention, shapes, &query, &key, &value);
    let gradient = wide(rounded(numbers(5, found.output.len()), case.dtype));
    let gradients = reference::backward(
        &attention,
        shapes,
        &query,
        &key,
        &value,
        &found.output,
        &gradient,
    );
    let all = [
        found.output,
        found.lse,
        gradients.query,
        gradients.key,
        gradients.value,
        gradients.bias,
    ];
    all.map(|numbers| numbers.into_iter().map(|x| x.to_f64()).collect())
}

/// Sums `full` over the axes on which `shape` has 1.
fn summed(full: Vec<f64>, whole: [usize; 4], shape: [usize; 4]) -> Vec<f64> {
    let mut sums = vec![0.0; shape.iter().product()];
    for (place, x) in full.into_iter().enumerate() {
        let (mut rest, mut to, mut step) = (place, 0, 1);
        for axis in (0..4).rev() {
            let index = rest % whole[axis];
            rest /= whole[axis];
            to += if shape[axis] == 1 { 0 } else { index * step };
            step *= shape[axis];
        }
        sums[to] += x;
    }
    sums
}

fn cases() -> Vec<Case> {
    let plain = Case::new(2, [3, 3], [70, 70], [16, 16]);
    let two = |left, right| Some([left, right]);
    vec![
        plain.clone(),
        Case::new(1, [1, 1], [1, 1], [1, 1]),
        Case {
            causal: true,
            ..plain.clone()
        },
        Case {
            causal: true,
            ..Case::new(1, [4, 2], [33, 130], [64, 64])
        },
        Case {
            causal: true,
            lower_right: false,
            ..Case::new(1, [2, 1], [130, 33], [20, 72])
        },
        // Queries before the first key see nothing.
        Case {
            causal: true,
            ..Case::new(1, [2, 2], [130, 33], [8, 24])
        },
        Case {
            window: two(9, 3),
            ..Case::new(1, [2, 2], [200, 200], [32, 32])
        },
        Case {
            causal: true,
            window: two(70, 0),
            ..Case::new(2, [4, 1], [150, 150], [128, 64])
        },
        Case {
            keys_of: Some(vec![5, 0, 70]),
            ..Case::new(3, [2, 2], [40, 70], [24, 24])
        },
        Case {
            softcap: Some(3.0),
            causal: true,
            ..plain.clone()
        },
        Case {
            bias: Some([1, 3, 70, 70]),
            ..plain.clone()
        },
        Case {
            bias: Some([2, 1, 1, 70]),
            softcap: Some(5.0),
            causal: true,
            ..plain
        },
        Case::new(1, [2, 2], [65, 129], [256, 200]),
        // Extremes: products beyond what exp takes, next to nothing, or far beyond the cap; windows and biases without measure.
        Case {
            factor: 1e3,
            ..Case::new(1, [2, 2], [70, 70], [16, 16])
        },
        Case {
            factor: 1e-36,
            ..Case::new(1, [2, 2], [70, 70], [16, 16])
        },
        Case {
            factor: 1e6,
            softcap: Some(4.0),
            ..Case::new(1, [2, 2], [70, 70], [16, 16])
        },
        Case {
            window: two(usize::MAX, usize::MAX),
            ..Case::new(1, [2, 2], [70, 70], [16, 16])
        },
        Case {
            bias: Some([1, 2, 70, 70]),
            bias_factor: 1e30,
            ..Case::new(1, [2, 2], [70, 70], [16, 16])
        },
        Case {
            bias: Some([1, 2, 70, 70]),
            bias_hides: true,
            ..Case::new(1, [2, 2], [70, 70], [16, 16])
        },
    ]
}

#[test]
fn all_numbers_are_those_of_the_definition() {
    let Some(device) = device() else { return };
    const NAMES: [&str; 6] = ["context", "lse", "query", "key", "value", "bias"];
    for case in cases() {
        let mut card = on_card(&case, &device, DType::F32);
        if let Some(shape) = case.bias {
            let whole = [case.batch, case.heads[0], case.lengths[0], case.lengths[1]];
            card[5] = summed(std::mem::take(&mut card[5]), whole, shape);
        }
        let (exact, naive) = (by_definition::<f64>(&case), by_definition::<f32>(&case));
        for (((name, card), exact), naive) in NAMES.iter().zip(card).zip(exact).zip(naive) {
            assert_eq!(card.len(), exact.len(), "{name} of {case:?}");
            // Nothing seen: no lse.
            let seen = |x: &f64| x.is_finite();
            let worst = |found: &[f64]| {
                let pairs = found.iter().zip(&exact).filter(|(_, exact)| seen(exact));
                pairs
                    .map(|(found, exact)| (found - exact).abs())
                    .fold(0.0, f64::max)
            };
            let largest = exact
                .iter()
                .filter(|x| seen(x))
                .fold(0.0, |a: f64, x| a.max(x.abs()));
            let bound = 2.0 * worst(&naive) + 2.0 * f64::from(f32::EPSILON) * largest;
            let error = worst(&card);
            println!(
                "{name:8} {:5.2} of its bound",
                error / bound.max(f64::MIN_POSITIVE)
            );
            assert!(
                error <= bound,
                "{name}: {error:e}, at most {bound:e}, of {case:?}"
            );
            let hidden = card.iter().zip(&exact).filter(|(_, exact)| !seen(exact));
            assert!(
                hidden.map(|(card, _)| card).all(|&lse| lse < -3e38),
                "{name} of {case:?}"
            );
        }
    }
}

/// Where there are tensor cores, they compute what has sizes divisible by 16.
#[test]
fn half_precision_is_rounded_once() {
    let Some(device) = device() else { return };
    let of = |lengths, sizes| Case::new(2, [4, 2], lengths, sizes);
    let cases = [
        of([300, 300], [128, 128]),
        of([130, 40], [16, 128]),
        of([20, 500], [64, 16]),
        Case {
            causal: true,
            ..of([200, 333], [64, 64])
        },
        Case {
            causal: true,
            lower_right: false,
            ..of([200, 333], [128, 64])
        },
        // Queries before the first key see nothing.
        Case {
            causal: true,
            ..of([300, 100], [16, 128])
        },
        Case {
            window: Some([100, 3]),
            ..of([400, 400], [64, 64])
        },
        Case {
            keys_of: Some(vec![5, 0]),
            ..of([150, 70], [64, 64])
        },
        Case {
            keys_of: Some(vec![130, 64]),
            softcap: Some(2.0),
            ..of([150, 200], [64, 64])
        },
        // Extremes, as in `cases`.
        Case {
            factor: 1e3,
            ..of([150, 150], [64, 64])
        },
        Case {
            window: Some([usize::MAX; 2]),
            ..of([150, 150], [64, 64])
        },
        Case {
            bias: Some([1, 4, 150, 150]),
            bias_factor: 1e30,
            ..of([150, 150], [64, 64])
        },
        Case {
            bias: Some([1, 4, 150, 150]),
            bias_hides: true,
            ..of([150, 150], [64, 64])
        },
        // Not for tensor cores.
        of([70, 70], [20, 36]),
    ];
    let biased = Case {
        bias: Some([1, 4, 200, 200]),
        ..of([200, 200], [64, 64])
    };
    for (dtype, unit) in [(DType::F16, 2f64.powi(-11)), (DType::BF16, 2f64.powi(-8))] {
        if !device.supports_dtype(dtype) {
            println!("skipped: {device:?} has no {dtype:?}");
            continue;
        }
        for case in cases.iter().chain([&biased]) {
            let case = Case {
                dtype,
                ..case.clone()
            };
            let (card, exact) = (on_card(&case, &device, dtype), by_definition::<f64>(&case));
            for (card, exact) in card.iter().zip(&exact).take(5) {
                let seen = exact.iter().filter(|x| x.is_finite());
                let largest = seen.fold(0.0, |a: f64, x| a.max(x.abs()));
                let error = card
                    .iter()
                    .zip(exact)
                    .filter(|(_, exact)| exact.is_finite())
                    .map(|(a, b)| (a - b).abs())
                    .fold(0.0, f64::max);
                println!("{:5.2} of its bound", error / (6.0 * unit * largest));
                assert!(
                    error <= 6.0 * unit * largest,
                    "{error:e} of {largest}, of {case:?}"
                );
            }
        }
    }
}

/// The types of numbers that the card takes.
fn dtypes(device: &Device) -> impl Iterator<Item = DType> {
    let all = [DType::F32, DType::F16, DType::BF16];
    all.into_iter()
        .filter(|&dtype| device.supports_dtype(dtype))
}

#[test]
fn what_is_hidden_never_matters() {
    let Some(device) = device() else { return };
    let case = Case {
        keys_of: Some(vec![37]),
        ..Case::new(1, [2, 2], [50, 80], [16, 16])
    };
    for dtype in dtypes(&device) {
        let run = |value| run_poisoned(&case, &device, dtype, 37, value);
        let clean = run(0.0);
        for poison in [f32::NAN, f32::INFINITY, 1e30] {
            assert!(run(poison) == clean, "{poison} of {dtype:?} shows");
        }
        // The gradients of hidden keys are 0.
        let rows = clean[2].iter().zip(&clean[3]).enumerate();
        for (place, (key, value)) in rows.filter(|(place, _)| place / 16 % 80 >= 37) {
            assert_eq!((*key, *value), (0.0, 0.0), "{place}");
        }
    }
}

/// Numbers that are not finite reach the queries that see them, and no others.
#[test]
fn what_comes_later_never_matters() {
    let Some(device) = device() else { return };
    let sizes = [16, 64];
    for (size, bias) in sizes
        .into_iter()
        .flat_map(|size| [(size, None), (size, Some([1, 2, 200, 200]))])
    {
        let case = Case {
            causal: true,
            bias,
            ..Case::new(1, [2, 2], [200, 200], [size, size])
        };
        for dtype in dtypes(&device) {
            let run = |value| run_poisoned(&case, &device, dtype, 150, value);
            let clean = run(0.0);
            for poison in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
                let found = run(poison);
                for (kind, name) in ["context", "query"].iter().enumerate() {
                    let pairs = found[kind].iter().zip(&clean[kind]).enumerate();
                    for (place, (found, clean)) in pairs {
                        let row = place / size % 200;
                        let expected = if row < 150 {
                            found == clean
                        } else {
                            !found.is_finite()
                        };
                        assert!(
                            expected,
                            "{name} of row {row} with {poison} of {dtype:?}, {bias:?}: {found}"
                        );
                    }
                }
            }
        }
    }
}

/// The context and the gradients of query, key and value where keys and values from `first` on are `poison`.
fn run_poisoned(
    case: &Case,
    device: &Device,
    dtype: DType,
    first: usize,
    poison: f32,
) -> [Vec<f64>; 4] {
    let shapes = case.shapes();
    let poisoned = |mut numbers: Vec<f32>, shape: [usize; 4]| {
        for (place, x) in numbers.iter_mut().enumerate() {
            if place / shape[3] % shape[2] >= first {
                *x = poison;
            }
        }
        tensor(&numbers, shape, device, dtype)
    };
    let [_, key, value] = case.data();
    let inputs = Inputs {
        key: poisoned(key, shapes[1]),
        value: poisoned(value, shapes[2]),
        ..case.inputs(device, dtype)
    };
    let options = case.options();
    let found = forward(inputs.clone(), &options);
    let out = [case.batch, case.heads[0], case.lengths[0], case.sizes[1]];
    let gradient = tensor(&numbers(5, out.iter().product()), out, device, dtype);
    let back = backward(inputs, &options, &found, gradient, false);
    [found.context, back.query, back.key, back.value].map(read)
}

/// A bias of the lowest number on every key has no effect; one of -∞ hides.
#[test]
fn the_lowest_bias_hides_nothing() {
    let Some(device) = device() else { return };
    for dtype in dtypes(&device) {
        let case = Case {
            dtype,
            ..Case::new(1, [1, 1], [20, 30], [16, 16])
        };
        let data = case.data();
        let context = |bias: f32| {
            let inputs = Inputs {
                bias: Some(cube(Tensor::<4>::full([1, 1, 20, 30], bias, &device))),
                ..case.inputs(&device, dtype)
            };
            read(forward(inputs, &case.options()).context)
        };
        // The context is rounded to its type.
        let room = match dtype {
            DType::F32 => 1e-6,
            DType::F16 => 2f64.powi(-11),
            _ => 2f64.powi(-8),
        };
        let mean = context(f32::MIN);
        for (column, mean) in mean[..16].iter().enumerate() {
            let values = data[2]
                .iter()
                .skip(column)
                .step_by(16)
                .map(|&x| f64::from(x));
            let expected = values.sum::<f64>() / 30.0;
            assert!(
                (mean - expected).abs() < room,
                "{mean}, expected {expected}, {dtype:?}"
            );
        }
        assert!(context(f32::NEG_INFINITY).iter().all(|&x| x == 0.0));
    }
}

#[test]
fn strides_are_read_in_place() {
    let Some(device) = device() else { return };
    let case = Case {
        causal: true,
        ..Case::new(2, [3, 3], [40, 40], [16, 16])
    };
    let [shape, ..] = case.shapes();
    for dtype in dtypes(&device) {
        let heads_first = case.data().map(|numbers| {
            let data = TensorData::new(numbers, shape);
            Tensor::<4>::from_data(data, &device).cast(dtype)
        });
        let same = heads_first.clone().map(|x| {
            let [b, h, n, d] = x.dims();
            // [batch, length, heads, size], seen as [batch, heads, length, size].
            let moved = x.swap_dims(1, 2).reshape([b, n, h * d]);
            moved.reshape([b, n, h, d]).swap_dims(1, 2)
        });
        let run = |inputs: [Tensor<4>; 3]| {
            let [query, key, value] = inputs.map(cube);
            let inputs = Inputs {
                query,
                key,
                value,
                bias: None,
            };
            read(forward(inputs, &case.options()).context)
        };
        assert_eq!(run(heads_first), run(same), "{dtype:?}");
    }
}

/// `eˣ` within two roundings, from where it is 0 to where it is infinite, of tensors with any strides.
#[test]
fn exponentials_are_within_two_roundings() {
    let Some(device) = device() else { return };
    let mut x: Vec<f32> = (-1200..900).map(|i| i as f32 * 0.1003).collect();
    x.extend((-3000..3000).map(|i| i as f32 * 1e-3));
    x.extend([
        f32::NEG_INFINITY,
        -1e30,
        -103.9,
        -0.0,
        1e-30,
        88.7,
        89.5,
        1e30,
        f32::INFINITY,
        f32::MAX,
    ]);
    let shape = [1, 10, x.len() / 10, 1];
    assert_eq!(x.len() % 10, 0);
    let across = Tensor::<4>::from_data(TensorData::new(x.clone(), shape), (&device, DType::F32));
    let across = cube(across.swap_dims(1, 2));
    let order = |i: usize| i % 10 * shape[2] + i / 10;
    for (i, found) in read(exp(across)).into_iter().enumerate() {
        let x = x[order(i)];
        let exact = f64::from(x).exp();
        // Cards may take numbers below the normal ones for 0.
        let bound = 2.0 * f64::from(f32::EPSILON) * exact + f64::from(f32::MIN_POSITIVE);
        let close = (found - exact).abs() <= bound;
        let infinite = exact > f64::from(f32::MAX) && found == f64::INFINITY;
        assert!(close || infinite, "e^{x} is {found}, expected {exact}");
    }
    let nan = Tensor::<4>::full([1, 1, 1, 3], f32::NAN, (&device, DType::F32));
    assert!(read(exp(cube(nan))).iter().all(|x| x.is_nan()));
    let none = Tensor::<4>::zeros([2, 0, 1, 3], (&device, DType::F32));
    assert!(read(exp(cube(none))).is_empty());
}
