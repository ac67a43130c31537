//! Times attention and products on a card for `bench/gpu/attention.py` and `bench/gpu/products.py`: reads lines such as
//! `regard training bf16 4 16 4096 128 causal` (whose, what, numbers, batch, heads, length, size, mask) or
//! `regard product f32 1 4096 4096 4096 -` (batch and `m`, `k`, `n` of `[m, k] [k, n]`) and answers each with milliseconds per call and the
//! bytes that the card's memory pool holds.
//!
//! `regard` is the kernel of this crate, `burn` the operation of Burn; `forward` is a pass without gradients, `training` one with its
//! backward pass.

use std::{
    io::{BufRead, Write, stdin, stdout},
    time::Instant,
};

use burn::{
    backend::{BackendTensor, DispatchAutodiffContext, DispatchTensor, DispatchTensorKind},
    tensor::{
        DType, Device, DeviceType, Distribution, Tensor, module::attention,
        ops::AttentionModuleOptions,
    },
};
use burn_cubecl::tensor::CubeTensor;
use regard_gpu::{Inputs, Options, backward, forward, multiply};

fn main() {
    let kinds = [
        #[cfg(feature = "cuda")]
        DeviceType::Cuda,
        #[cfg(feature = "wgpu")]
        DeviceType::Wgpu,
    ];
    let device = kinds.into_iter().flat_map(Device::enumerate).next();
    let device = device.expect("a graphics card");
    for line in stdin().lock().lines() {
        let line = line.expect("standard input");
        let answer = match Case::read(&line) {
            Some(case) => {
                let (ms, bytes) = case.time(&device);
                format!("{ms} {bytes}")
            }
            None => {
                format!("expected `WHO WHAT NUMBERS BATCH HEADS LENGTH SIZE MASK`, not `{line}`")
            }
        };
        println!("{answer}");
        stdout().flush().expect("standard output");
    }
}

struct Case {
    burn: bool,
    what: What,
    dtype: DType,
    shape: [usize; 4],
    causal: bool,
}

#[derive(PartialEq)]
enum What {
    Forward,
    Training,
    Product,
}

impl Case {
    fn read(line: &str) -> Option<Self> {
        let [who, what, numbers, batch, heads, length, size, mask] = line
            .split_whitespace()
            .collect::<Vec<_>>()
            .try_into()
            .ok()?;
        let [batch, heads, length, size] =
            [batch, heads, length, size].map(|number: &str| number.parse().ok());
        Some(Self {
            burn: who == "burn",
            what: match what {
                "forward" => What::Forward,
                "training" => What::Training,
                "product" => What::Product,
                _ => return None,
            },
            dtype: match numbers {
                "f32" => DType::F32,
                "f16" => DType::F16,
                "bf16" => DType::BF16,
                _ => return None,
            },
            shape: [batch?, heads?, length?, size?],
            causal: mask == "causal",
        })
    }

    /// Milliseconds of a call (the median of five sets of calls), and the bytes that are held.
    fn time(&self, device: &Device) -> (f64, u64) {
        device.memory_cleanup();
        let training = self.what == What::Training;
        let device = if self.burn && training {
            device.clone().autodiff()
        } else {
            device.clone()
        };
        let drawn = |shape: [usize; 4]| {
            Tensor::<4>::random(shape, Distribution::Normal(0.0, 1.0), &device)
                .cast(self.dtype)
                .detach()
        };
        if self.what == What::Product {
            let [batch, m, k, n] = self.shape;
            let (a, b) = (drawn([1, batch, m, k]), drawn([1, batch, k, n]));
            #[expect(clippy::disallowed_methods, reason = "Burn's is measured here")]
            let burn = || a.clone().matmul(b.clone());
            return match self.burn {
                true => timed(&device, burn),
                false => {
                    let (a, b) = (cube(a.clone()), cube(b.clone()));
                    timed(&device, || tensor(multiply(a.clone(), b.clone())))
                }
            };
        }
        let [query, key, value, gradient] = [(); 4].map(|()| drawn(self.shape));
        let scale = (self.shape[3] as f64).sqrt().recip();
        let mut call: Box<dyn FnMut() -> Tensor<4>> = if self.burn {
            let options = AttentionModuleOptions {
                scale: Some(scale),
                is_causal: self.causal,
                ..Default::default()
            };
            Box::new(move || {
                let [query, key, value] = [&query, &key, &value].map(|x| match training {
                    true => x.clone().require_grad(),
                    false => x.clone(),
                });
                let found = attention(
                    query.clone(),
                    key.clone(),
                    value.clone(),
                    None,
                    None,
                    options,
                );
                if !training {
                    return found;
                }
                let gradients = (found * gradient.clone()).sum().backward();
                let [found, _, _] =
                    [query, key, value].map(|x| x.grad(&gradients).expect("a gradient"));
                found
            })
        } else {
            let [query, key, value, gradient] = [query, key, value, gradient].map(cube);
            let inputs = Inputs {
                query,
                key,
                value,
                bias: None,
            };
            let mut options = Options::new(scale as f32);
            options.right = self.causal.then_some(0);
            Box::new(move || {
                let found = forward(inputs.clone(), &options);
                tensor(match training {
                    true => {
                        let gradient = gradient.clone();
                        backward(inputs.clone(), &options, &found, gradient, false).query
                    }
                    false => found.context,
                })
            })
        };
        timed(&device, &mut call)
    }
}

/// Milliseconds of a call (the median of five sets of calls), and the bytes that are held.
fn timed(device: &Device, mut call: impl FnMut() -> Tensor<4>) -> (f64, u64) {
    // A kernel that fails says so when something of it is read.
    call().slice([0..1, 0..1, 0..1, 0..1]).into_data();
    let mut timed = |calls: usize| {
        device.sync().expect("the card");
        let begin = Instant::now();
        (0..calls).for_each(|_| drop(call()));
        device.sync().expect("the card");
        begin.elapsed().as_secs_f64() * 1e3 / calls as f64
    };
    timed(2);
    // Sets of about 50 ms.
    let calls = ((50.0 / timed(2)) as usize).clamp(1, 200);
    let mut times: Vec<_> = (0..5).map(|_| timed(calls)).collect();
    times.sort_by(f64::total_cmp);
    let held = device
        .memory_pool_usage()
        .map_or(0, |usage| usage.bytes_reserved);
    (times[2], held)
}

fn tensor(tensor: CubeTensor) -> Tensor<4> {
    Tensor::from_dispatch(DispatchTensor {
        kind: DispatchTensorKind::Cube(BackendTensor::Float(tensor)),
        autodiff: DispatchAutodiffContext::Disabled,
    })
}

fn cube(tensor: Tensor<4>) -> CubeTensor {
    match tensor.into_dispatch().kind {
        DispatchTensorKind::Cube(BackendTensor::Float(tensor)) => tensor,
        other => panic!("{other:?}"),
    }
}
