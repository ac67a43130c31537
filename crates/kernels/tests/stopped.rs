//! Every kernel of attention ends early where [`regard_kernels::stoppable`] says so.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use regard_kernels::{
    Attention, KernelError, Stopped, View, ViewMut, additive, dot, pool::Kind, stoppable,
};

const SHAPE: [usize; 4] = [1, 2, 64, 8];

/// Whether the flag ends the call, and without it the call has the result that it has by itself.
fn stops(call: impl Fn(&mut [f32]) -> Result<(), KernelError>) {
    let result = |stop: Option<bool>| {
        let mut output = vec![0.0; SHAPE.iter().product()];
        let ended = match stop {
            Some(stop) => stoppable(&Arc::new(AtomicBool::new(stop)), || call(&mut output)),
            None => Ok(call(&mut output)),
        };
        ended.map(|called| called.map(|()| output))
    };
    assert_eq!(result(Some(true)), Err(Stopped));
    assert_eq!(result(Some(false)), result(None));
}

#[test]
fn dot_products() {
    let numbers: Vec<f32> = (0..1024).map(|i| (i as f32).sin()).collect();
    let x = || View::heads_first(&numbers, SHAPE);
    let (attention, mut lse) = (Attention::default(), vec![0.0; 2 * 64 * 3]);
    let mut output = [0.0; 1024];
    let whole = ViewMut::heads_first(&mut output, SHAPE);
    dot::forward(&attention, x(), x(), x(), whole, Some(&mut lse)).unwrap();
    stops(|to| {
        dot::forward(
            &attention,
            x(),
            x(),
            x(),
            ViewMut::heads_first(to, SHAPE),
            None,
        )
    });
    stops(|to| {
        let (mut d_key, mut d_value) = (vec![0.0; 1024], vec![0.0; 1024]);
        let gradients = dot::Gradients {
            query: ViewMut::heads_first(to, SHAPE),
            key: ViewMut::heads_first(&mut d_key, SHAPE),
            value: ViewMut::heads_first(&mut d_value, SHAPE),
            bias: None,
            sink: None,
        };
        dot::backward(&attention, x(), x(), x(), x(), &lse, x(), gradients)
    });
    stops(|to| {
        let observe = dot::Observe {
            entropy: Some(&mut to[..128]),
            ..dot::Observe::default()
        };
        dot::observe(&attention, x(), x(), &lse, observe)
    });
    stops(|to| {
        let pooled = dot::Pooled {
            queries: 0..64,
            keys: 0..64,
            rows: 8,
            columns: 8,
            kind: Kind::Mean,
            cells: &mut to[..128],
        };
        dot::pool(&attention, x(), x(), &lse, pooled)
    });
    stops(|to| {
        let cache = dot::Cache::Contiguous {
            key: x(),
            value: x(),
            filled: None,
        };
        let query = View::heads_first(&numbers[..16], [1, 2, 1, 8]);
        let to = ViewMut::heads_first(&mut to[..16], [1, 2, 1, 8]);
        dot::decode(&attention, query, cache, to, None)
    });
}

#[test]
fn additive_scores() {
    let numbers: Vec<f32> = (0..1024).map(|i| (i as f32).sin()).collect();
    let input = additive::Input {
        shape: additive::Shape {
            batch: 2,
            queries: 8,
            keys: 8,
            dim: 64,
            value_dim: 64,
        },
        query: &numbers,
        key: &numbers,
        v: &numbers[..64],
        value: &numbers,
        keep: additive::PaddingMask::All,
        bias: None,
    };
    let weights = vec![0.125; 128];
    stops(|to| additive::forward(&input, to, &mut [0.0; 128]));
    stops(|to| {
        let [mut key, mut value] = [vec![0.0; 1024], vec![0.0; 1024]];
        let mut gradients = additive::Gradients {
            query: to,
            key: &mut key,
            v: &mut [0.0; 64],
            value: &mut value,
            bias: None,
            accumulate: false,
        };
        additive::backward(&input, &weights, &numbers, None, &mut gradients)
    });
}

/// A call that writes up to three outputs.
type Call<'a> = dyn FnMut([&mut [f32]; 3]) -> Result<(), KernelError> + Send + 'a;

/// The flag is looked at while a call runs: by one thread and by many, some of which wait for others' parts of a gradient.
#[test]
fn in_the_middle_of_a_call() {
    let shape = [1, 1, 1 << 20, 8]; // 9 million million multiply-adds
    let x = View {
        data: &[0.5; 8],
        shape,
        strides: [0; 3],
    };
    let lse = vec![0.0; 3 << 20];
    let [mut a, mut b, mut c] = [(); 3].map(|()| vec![0.0f32; 8 << 20]);
    let attention = Attention::default();
    let mut stopped = |call: &mut Call| {
        for threads in [1, 3] {
            let builder = rayon::ThreadPoolBuilder::new().num_threads(threads);
            let pool = builder.build().unwrap();
            let stop = &Arc::new(AtomicBool::new(false));
            let result = std::thread::scope(|scope| {
                scope.spawn(|| {
                    std::thread::sleep(std::time::Duration::from_millis(50));
                    stop.store(true, Ordering::Relaxed);
                });
                pool.install(|| stoppable(stop, || call([&mut a, &mut b, &mut c])))
            });
            assert_eq!(result, Err(Stopped));
        }
    };
    stopped(&mut |[to, lse, _]| {
        let (to, lse) = (ViewMut::heads_first(to, shape), &mut lse[..3 << 20]);
        dot::forward(&attention, x, x, x, to, Some(lse))
    });
    stopped(&mut |[query, key, value]| {
        let gradients = dot::Gradients {
            query: ViewMut::heads_first(query, shape),
            key: ViewMut::heads_first(key, shape),
            value: ViewMut::heads_first(value, shape),
            bias: None,
            sink: None,
        };
        dot::backward(&attention, x, x, x, x, &lse, x, gradients)
    });
    stopped(&mut |[to, ..]| {
        let observe = dot::Observe {
            entropy: Some(&mut to[..1 << 20]),
            ..dot::Observe::default()
        };
        dot::observe(&attention, x, x, &lse, observe)
    });
}
