//! A non-local block holds no number for every pair of positions, forward or backward.

#[path = "../../kernels/tests/memory/counted.rs"]
mod counted;

use burn::tensor::{Device, Tensor};
use regard_nn::{
    initialize::Initializer,
    vision::{Affinity, NonLocalConfig},
};

use counted::extra;

const CHANNELS: usize = 8;

/// The most bytes in use in both passes over one map of `side` x `side` positions, and those of a number for every pair of its positions.
fn of_map(affinity: Affinity, side: usize) -> [isize; 2] {
    let device = Device::flex().autodiff();
    let config = NonLocalConfig::new(CHANNELS).with_affinity(affinity);
    let block = config.init(&mut Initializer::new(1, &device)).unwrap();
    let map = Tensor::<4>::ones([1, CHANNELS, side, side], &device).require_grad();
    let bytes = extra(|| {
        let output = block.forward(map.clone()).unwrap();
        let gradients = output.sum().backward();
        assert!(map.grad(&gradients).is_some());
    });
    let pairs = (side * side).pow(2);
    let matrix = pairs * size_of::<f32>();
    println!("{affinity:?}, {side} x {side}: {bytes} bytes, the matrix {matrix}");
    [bytes, matrix as isize]
}

/// The only test of this program, see [`counted`].
#[test]
fn a_non_local_block_holds_no_matrix() {
    // Of two threads, since each has memory of its own.
    let pool = rayon::ThreadPoolBuilder::new().num_threads(2).build();
    pool.unwrap().install(|| {
        for affinity in [
            Affinity::Gaussian,
            Affinity::EmbeddedGaussian,
            Affinity::Dot,
        ] {
            let [bytes, matrix] = of_map(affinity, 56);
            assert!(
                bytes < matrix,
                "{affinity:?}: {bytes} of a matrix's {matrix}"
            );
        }
        // The concatenation does hold it: it would be seen.
        let [bytes, matrix] = of_map(Affinity::Concatenation, 24);
        assert!(bytes >= matrix, "{bytes} of a matrix's {matrix}");
    });
}
