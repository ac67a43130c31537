//! The memory that calls take beyond their arguments does not grow with the length.

#[path = "memory/counted.rs"]
mod counted;

use regard_kernels::{
    Attention, View, ViewMut, Window,
    dot::{self, Cache, Gradients},
    stack::{
        Activation, Block, FeedForward, GlobalAttention, Norms, Product, SelfAttention, Sizes,
        Stack,
    },
};

use counted::extra;

const DIM: usize = 64;

/// Extra bytes of forward, backward and decoding at a length.
fn of_length(heads: usize, length: usize) -> [isize; 3] {
    let shape = [1, heads, length, DIM];
    let numbers = vec![0.5f32; shape.iter().product()];
    let view = View::heads_first(&numbers, shape);
    let mut output = vec![0.0; numbers.len()];
    let mut lse = vec![0.0; 3 * heads * length];
    // A window, so that a long call is fast; the memory it takes does not depend on the window.
    let attention = Attention {
        causal: true,
        window: Some(Window {
            left: Some(128),
            right: None,
        }),
        ..Attention::default()
    };
    let mut forward = || {
        let to = ViewMut::heads_first(&mut output, shape);
        dot::forward(&attention, view, view, view, to, Some(&mut lse)).unwrap();
    };
    forward();
    let of_forward = extra(forward);
    let mut slopes = [(); 3].map(|()| vec![0.0; numbers.len()]);
    let mut backward = || {
        let [query, key, value] = slopes
            .each_mut()
            .map(|x| ViewMut::heads_first(&mut x[..], shape));
        let gradients = Gradients {
            query,
            key,
            value,
            bias: None,
            sink: None,
        };
        let output = View::heads_first(&output, shape);
        dot::backward(
            &attention, view, view, view, output, &lse, output, gradients,
        )
        .unwrap();
    };
    backward();
    let of_backward = extra(backward);
    let mut step = vec![0.0; heads * DIM];
    let one = [1, heads, 1, DIM];
    let mut decode = || {
        let query = View::heads_first(&numbers[..heads * DIM], one);
        let cache = Cache::Contiguous {
            key: view,
            value: view,
            filled: None,
        };
        let to = ViewMut::heads_first(&mut step, one);
        dot::decode(&Attention::default(), query, cache, to, None).unwrap();
    };
    decode();
    [of_forward, of_backward, extra(decode)]
}

/// Extra bytes of an encoder with a window and global positions, at a length.
fn of_encoder(length: usize) -> isize {
    let product = |inner: usize, columns: usize| {
        Product::new(&vec![0.01; inner * columns], inner, columns, None).unwrap()
    };
    let block = Block {
        attention: SelfAttention {
            query_key_value: product(16, 48),
            output: product(16, 16),
            query_norm: None,
            key_norm: None,
            scale: None,
            window: Some(64),
            rotation: None,
            global: Some(GlobalAttention {
                query: product(16, 16),
                key_value: product(16, 32),
            }),
            norms: Norms::default(),
        },
        cross: None,
        feed_forward: FeedForward {
            inner: product(16, 32),
            activation: Activation::Gelu,
            gated: false,
            outer: product(32, 16),
            norms: Norms::default(),
            parallel: false,
        },
    };
    let sizes = Sizes {
        causal: false,
        ..Sizes::new(16, 2, 2, 8)
    };
    let stack = Stack::new(sizes, vec![block], None, vec![]).unwrap();
    let x = vec![0.5; length * 16];
    extra(|| {
        let global = [0, 1, 2, 3];
        let states = stack.forward_with_global(&x, &[length], &global, None);
        assert_eq!(states.unwrap().len(), x.len());
    })
}

const THREADS: usize = 2;

/// The only test of this program, see [`counted`].
#[test]
fn memory_does_not_grow_with_the_length() {
    let pool = rayon::ThreadPoolBuilder::new()
        .num_threads(THREADS)
        .build()
        .unwrap();
    pool.install(|| {
        // One head is split into parts with keys of their own; four heads are one task each.
        for heads in [4, 1] {
            let (short, long) = (of_length(heads, 2048), of_length(heads, 32_768));
            println!(
                "{heads} heads: forward, backward, decode: {short:?} at 2,048, {long:?} at 32,768"
            );
            for (name, most, i) in [
                ("forward", 512 << 10, 0),
                ("backward", 1 << 20, 1),
                ("decode", 512 << 10, 2),
            ] {
                assert!(long[i] <= most, "{name} takes {} bytes", long[i]);
            }
            // At sixteen times the length: a byte for 16 keys (backward), a row of sums for 2,048 keys
            // (decoding), no more. The tiles may be those of one thread or of two: a short call may be over
            // before the second thread is awake.
            for i in 0..2 {
                assert!(
                    long[i] <= THREADS as isize * short[i] + 16_384,
                    "{short:?} {long:?}"
                );
            }
        }
        let (short, long) = (of_encoder(4096), of_encoder(8192));
        println!("encoder: {short} at 4,096, {long} at 8,192");
        assert!(short < 4096 * 4096, "one byte for each pair: {short}");
        assert!(long <= 2 * short + (1 << 20), "{short} {long}");
    });
}
