//! The cases of `regard bench` under criterion: `cargo bench -- "dot forward"` in `bench/criterion`.
//!
//! For changes over time on one machine. Fractions of the peak, which hold from machine to machine, come
//! from `regard bench`.

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use regard_kernels::measure::suite;

fn kernels(criterion: &mut Criterion) {
    for case in suite() {
        let mut group = criterion.benchmark_group(&case.kernel);
        group.throughput(Throughput::Elements(case.work as u64));
        let name = BenchmarkId::new(&case.shape, case.dtype);
        // The data are made only if the name was asked for.
        let mut call = None;
        group.bench_function(name, |bencher| {
            let call = call.get_or_insert_with(|| case.prepare());
            bencher.iter(|| call().expect("the suite's calls are right"));
        });
    }
}

criterion_group! {
    name = benches;
    config = Criterion::default().sample_size(20);
    targets = kernels
}
criterion_main!(benches);
