//! How fast the backward pass of dot-product attention is, as a fraction of this machine's FMA peak.
//!
//! ```text
//! cargo run --release -p regard-kernels --example dot_backward_speed [case] [length] [dim]
//! ```
//! Every run of a case stands between two measurements of the peak; the figure is the median of their
//! ratios. A case counts `10 · dim` operations for each (query, key) pair that its mask leaves.

use std::time::Instant;

use regard_kernels::{Attention, Dropout, Offsets, View, ViewMut, Window, dot};

/// FMA peak of the pool's threads, GFLOP/s, with as many accumulators as hide the latency.
fn peak() -> f64 {
    const ACCUMULATORS: usize = 192;
    const ROUNDS: usize = 400_000;
    #[cfg_attr(target_arch = "x86_64", inline(never))]
    fn spin() -> f64 {
        #[cfg(target_arch = "x86_64")]
        {
            #[target_feature(enable = "avx512f")]
            fn wide() -> f32 {
                spin_with(|x, y, z| x.mul_add(y, z))
            }
            #[target_feature(enable = "avx2,fma")]
            fn narrow() -> f32 {
                spin_with(|x, y, z| x.mul_add(y, z))
            }
            let start = Instant::now();
            if is_x86_feature_detected!("avx512f") {
                // SAFETY: just detected.
                std::hint::black_box(unsafe { wide() });
            } else if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
                // SAFETY: just detected.
                std::hint::black_box(unsafe { narrow() });
            }
            return start.elapsed().as_secs_f64();
        }
        #[allow(unreachable_code)]
        {
            let start = Instant::now();
            std::hint::black_box(spin_with(|x, y, z| x * y + z));
            start.elapsed().as_secs_f64()
        }
    }
    #[inline(always)]
    fn spin_with(fma: impl Fn(f32, f32, f32) -> f32) -> f32 {
        let mut sums = [1.0f32; ACCUMULATORS];
        let x = std::hint::black_box(0.999f32);
        for _ in 0..ROUNDS {
            for sum in &mut sums {
                *sum = fma(*sum, x, x);
            }
        }
        sums.iter().sum()
    }
    let seconds = rayon::broadcast(|_| spin()).into_iter().fold(0.0, f64::max);
    (2 * ACCUMULATORS * ROUNDS * rayon::current_num_threads()) as f64 / seconds / 1e9
}

fn numbers(count: usize, seed: u32) -> Vec<f32> {
    let mut state = seed | 1;
    (0..count)
        .map(|_| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 8) as f32 / (1 << 23) as f32 - 1.0
        })
        .collect()
}

/// One call's tensors, `[1, heads, length, dim]`.
struct Call {
    shape: [usize; 4],
    query: Vec<f32>,
    key: Vec<f32>,
    value: Vec<f32>,
    d_output: Vec<f32>,
    output: Vec<f32>,
    lse: Vec<f32>,
    gradients: [Vec<f32>; 3],
}

impl Call {
    fn new(heads: usize, length: usize, dim: usize) -> Self {
        let count = heads * length * dim;
        Self {
            shape: [1, heads, length, dim],
            query: numbers(count, 1),
            key: numbers(count, 2),
            value: numbers(count, 3),
            d_output: numbers(count, 4),
            output: vec![0.0; count],
            lse: vec![0.0; heads * length],
            gradients: [0; 3].map(|_| vec![0.0; count]),
        }
    }

    fn forward(&mut self, attention: &Attention) {
        let [query, key, value] =
            [&self.query, &self.key, &self.value].map(|x| View::heads_first(x, self.shape));
        let to = ViewMut::heads_first(&mut self.output, self.shape);
        dot::forward(attention, query, key, value, to, Some(&mut self.lse))
            .expect("a call that fits");
    }

    fn backward(&mut self, attention: &Attention) {
        let [query, key, value, output, d_output] = [
            &self.query,
            &self.key,
            &self.value,
            &self.output,
            &self.d_output,
        ]
        .map(|x| View::heads_first(x, self.shape));
        let [query_to, key_to, value_to] = self
            .gradients
            .each_mut()
            .map(|x| ViewMut::heads_first(x, self.shape));
        let gradients = dot::Gradients {
            query: query_to,
            key: key_to,
            value: value_to,
            bias: None,
            sink: None,
        };
        dot::backward(
            attention, query, key, value, output, &self.lse, d_output, gradients,
        )
        .expect("a call that fits");
    }
}

/// The median of the ratios of speed to peak, and the best speed, GFLOP/s.
fn measure(operations: f64, mut run: impl FnMut()) -> (f64, f64) {
    let once = Instant::now();
    run();
    let repeats = (0.03 / once.elapsed().as_secs_f64()).ceil().max(1.0) as usize;
    let (mut ratios, mut best) = (Vec::new(), 0.0f64);
    let mut before = peak();
    for _ in 0..9 {
        let start = Instant::now();
        for _ in 0..repeats {
            run();
        }
        let speed = operations * repeats as f64 / start.elapsed().as_secs_f64() / 1e9;
        let after = peak();
        ratios.push(speed / (0.5 * (before + after)));
        best = best.max(speed);
        before = after;
    }
    ratios.sort_by(f64::total_cmp);
    (ratios[ratios.len() / 2], best)
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let wanted = |at: usize, name: &str| arguments.get(at).is_none_or(|x| x == name || x == "all");
    println!(
        "threads {}, peak {:.0} GFLOP/s",
        rayon::current_num_threads(),
        peak()
    );
    for (heads, length, dim) in [
        (8, 512, 64),
        (8, 1024, 64),
        (8, 2048, 64),
        (8, 512, 128),
        (8, 2048, 128),
        (1, 512, 64),
        (1, 2048, 64),
    ] {
        if !wanted(1, &length.to_string()) || !wanted(2, &dim.to_string()) {
            continue;
        }
        let mut call = Call::new(heads, length, dim);
        let bias = numbers(length * length, 5);
        let keep: Vec<u8> = (0..length * length)
            .map(|x| u8::from(x % 17 != 0))
            .collect();
        let plane = [1, 1, length, length];
        let plain = Attention::default();
        let l = length as f64;
        let window = 256.0f64.min(l);
        let triangle = 0.5 * l * (l + 1.0);
        let cases = [
            ("full", plain, l * l),
            (
                "causal",
                Attention {
                    causal: true,
                    ..plain
                },
                triangle,
            ),
            (
                "window",
                Attention {
                    causal: true,
                    window: Some(Window {
                        left: Some(255),
                        right: None,
                    }),
                    ..plain
                },
                0.5 * window * (window + 1.0) + (l - window) * window,
            ),
            (
                "softcap",
                Attention {
                    softcap: Some(20.0),
                    ..plain
                },
                l * l,
            ),
            (
                "bias",
                Attention {
                    bias: Some(View::heads_first(&bias, plane)),
                    ..plain
                },
                l * l,
            ),
            (
                "keep",
                Attention {
                    keep: Some(View::heads_first(&keep, plane)),
                    ..plain
                },
                l * l,
            ),
            (
                "dropout",
                Attention {
                    dropout: Some(Dropout {
                        probability: 0.1,
                        seed: 1,
                    }),
                    ..plain
                },
                l * l,
            ),
        ];
        for (name, attention, pairs) in cases {
            if !wanted(0, name) {
                continue;
            }
            call.forward(&attention);
            let operations = 10.0 * pairs * (heads * dim) as f64;
            let (ratio, best) = measure(operations, || call.backward(&attention));
            println!(
                "heads {heads} length {length:5} dim {dim:4} {name:8} {best:6.1} GFLOP/s  {ratio:.3} of peak"
            );
        }
    }
    if wanted(0, "packed") {
        for dim in [32, 64] {
            packed(dim);
        }
    }
}

/// 64 sentences of 5 to 80 tokens, 8 heads: forward and backward together.
fn packed(dim: usize) {
    let lengths: Vec<u32> = (0..64).map(|i| 5 + (i * 47 + 13) % 76).collect();
    let offsets: Vec<u32> = std::iter::once(0)
        .chain(lengths.iter().scan(0, |sum, &x| {
            *sum += x;
            Some(*sum)
        }))
        .collect();
    let pairs: f64 = lengths.iter().map(|&x| f64::from(x * x)).sum();
    let mut call = Call::new(8, offsets[64] as usize, dim);
    let attention = Attention {
        offsets: Some(Offsets {
            query: &offsets,
            key: &offsets,
        }),
        ..Attention::default()
    };
    let operations = 14.0 * pairs * (8 * dim) as f64;
    let (ratio, best) = measure(operations, || {
        call.forward(&attention);
        call.backward(&attention);
    });
    let milliseconds = operations / best / 1e6;
    println!(
        "packed 64 sentences, dim {dim}: {milliseconds:.3} ms, {ratio:.3} of peak, {} tokens",
        offsets[64]
    );
}
