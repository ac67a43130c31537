//! Decode bandwidth against a stream of reads.
use regard_kernels::{
    Attention, Element, View, ViewMut,
    dot::{self, Cache},
};
use std::time::Instant;
fn stream(data: &[f32]) -> f64 {
    let t = Instant::now();
    let n = rayon::current_num_threads();
    let s: f32 = std::thread::scope(|sc| {
        data.chunks(data.len() / n)
            .map(|c| {
                sc.spawn(move || {
                    let mut a = [0.0f32; 64];
                    for x in c.chunks_exact(64) {
                        for i in 0..64 {
                            a[i] += x[i];
                        }
                    }
                    a.iter().sum::<f32>()
                })
            })
            .collect::<Vec<_>>()
            .into_iter()
            .map(|h| h.join().unwrap())
            .sum()
    });
    std::hint::black_box(s);
    data.len() as f64 * 4.0 / t.elapsed().as_secs_f64() / 1e9
}
fn bench<T: Element>(name: &str, data: &[f32]) {
    let (h, l, d) = (8, 32768, 128);
    let k: Vec<T> = (0..h * l * d)
        .map(|x| T::narrow((x % 1013) as f32 / 1000.0))
        .collect();
    let v = k.clone();
    let q = vec![0.1f32; 32 * d];
    let mut o = vec![0.0f32; 32 * d];
    let (mut a, mut b) = (vec![], vec![]);
    for _ in 0..9 {
        let s = stream(data);
        let t = Instant::now();
        let cache = Cache::Contiguous {
            key: View::heads_first(&k, [1, h, l, d]),
            value: View::heads_first(&v, [1, h, l, d]),
        };
        dot::decode(
            &Attention::default(),
            View::heads_first(&q, [1, 32, 1, d]),
            cache,
            ViewMut::heads_first(&mut o, [1, 32, 1, d]),
            None,
        )
        .unwrap();
        let g = (2 * k.len() * size_of::<T>()) as f64 / t.elapsed().as_secs_f64() / 1e9;
        a.push(g);
        b.push(g / s);
    }
    a.sort_by(f64::total_cmp);
    b.sort_by(f64::total_cmp);
    println!("{name}: {:.1} GB/s, {:.2} of stream", a[4], b[4]);
}
fn main() {
    let data = vec![1.0f32; 1 << 26];
    println!("stream {:.1}", stream(&data));
    bench::<f32>("f32", &data);
    bench::<half::bf16>("bf16", &data);
    bench::<half::f16>("f16", &data);
}
