//! Quick look at the speed of dot-product attention: fractions of the FMA peak.
use regard_kernels::{Attention, View, ViewMut, Window, dot};
use std::time::Instant;

fn peak(threads: usize) -> f64 {
    fn work() -> f64 {
        use std::arch::x86_64::*;
        #[target_feature(enable = "avx512f")]
        fn body(n: usize) -> f32 {
            let mut acc = [_mm512_set1_ps(1.0); 16];
            let x = _mm512_set1_ps(0.999);
            for _ in 0..n {
                for a in &mut acc {
                    *a = _mm512_fmadd_ps(*a, x, x);
                }
            }
            let mut t = _mm512_setzero_ps();
            for a in acc {
                t = _mm512_add_ps(t, a);
            }
            _mm512_reduce_add_ps(t)
        }
        let n = 3_000_000;
        let t = Instant::now();
        let r = unsafe { body(n) };
        std::hint::black_box(r);
        n as f64 * 16.0 * 32.0 / t.elapsed().as_secs_f64() / 1e9
    }
    std::thread::scope(|s| {
        (0..threads)
            .map(|_| s.spawn(work))
            .collect::<Vec<_>>()
            .into_iter()
            .map(|h| h.join().unwrap())
            .sum()
    })
}

fn main() {
    let only = std::env::args().nth(1);
    let threads = rayon::current_num_threads();
    println!("threads {threads} peak {:.0}", peak(threads));
    for (l, d) in [
        (128, 64),
        (512, 64),
        (1024, 64),
        (2048, 64),
        (512, 128),
        (2048, 128),
        (128, 32),
    ] {
        let h = 8 * (2048 / l).max(1).min(4);
        let n = h * l * d;
        let q: Vec<f32> = (0..n)
            .map(|x| ((x * 7919 % 1013) as f32 / 500.0 - 1.0) * 1.7)
            .collect();
        let k: Vec<f32> = (0..n)
            .map(|x| ((x * 104729 % 1009) as f32 / 500.0 - 1.0) * 1.7)
            .collect();
        let v = k.clone();
        let mut o = vec![0.0f32; n];
        let mut lse = vec![0.0f32; h * l];
        let bias: Vec<f32> = (0..l * l).map(|x| (x % 17) as f32 / 17.0).collect();
        let keep: Vec<u8> = (0..l * l).map(|x| (x % 17 != 0) as u8).collect();
        let shape = [1, h, l, d];
        let plain = Attention::default();
        let cases: Vec<(&str, Attention, f64)> = vec![
            ("full", plain, 1.0),
            (
                "causal",
                Attention {
                    causal: true,
                    ..plain
                },
                0.5 + 0.5 / l as f64,
            ),
            (
                "window256",
                Attention {
                    causal: true,
                    window: Some(Window {
                        left: Some(255),
                        right: None,
                    }),
                    ..plain
                },
                {
                    let w = 256.0f64.min(l as f64);
                    let l = l as f64;
                    (w * (w + 1.0) / 2.0 + (l - w) * w) / (l * l)
                },
            ),
            (
                "softcap",
                Attention {
                    softcap: Some(20.0),
                    ..plain
                },
                1.0,
            ),
            (
                "bias",
                Attention {
                    bias: Some(View::heads_first(&bias, [1, 1, l, l])),
                    ..plain
                },
                1.0,
            ),
            (
                "keep",
                Attention {
                    keep: Some(View::heads_first(&keep, [1, 1, l, l])),
                    ..plain
                },
                1.0,
            ),
            (
                "dropout",
                Attention {
                    dropout: Some(regard_kernels::Dropout {
                        probability: 0.1,
                        seed: 1,
                    }),
                    ..plain
                },
                1.0,
            ),
        ];
        for (name, a, area) in cases {
            if only.as_deref().is_some_and(|o| o != name) {
                continue;
            }
            let mut best: f64 = 0.0;
            let mut all = vec![];
            for _ in 0..9 {
                let p = peak(threads);
                let t = Instant::now();
                let reps = (2048 / l).max(1);
                for _ in 0..reps {
                    dot::forward(
                        &a,
                        View::heads_first(&q, shape),
                        View::heads_first(&k, shape),
                        View::heads_first(&v, shape),
                        ViewMut::heads_first(&mut o, shape),
                        Some(&mut lse),
                    )
                    .unwrap();
                }
                let g =
                    4.0 * (l * l * d * h * reps) as f64 * area / t.elapsed().as_secs_f64() / 1e9;
                all.push(g / p);
                best = best.max(g);
            }
            all.sort_by(f64::total_cmp);
            println!(
                "L {l:5} D {d:4} {name:10} {best:7.1} GFLOP/s  {:.3} of peak",
                all[all.len() / 2]
            );
        }
    }
}
