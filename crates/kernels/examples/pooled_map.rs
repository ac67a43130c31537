//! Times the picture of one causal head: `pooled_map [tokens] [dim] [side]`.

use std::time::Instant;

use regard_kernels::{Attention, View, ViewMut, dot, pool::Kind};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let mut number =
        |default: usize| (arguments.next()).map_or(Ok(default), |text| text.parse::<usize>());
    let (tokens, dim, side) = (number(100_000)?, number(64)?, number(1024)?);
    let mut state = 1u64;
    let mut numbers = |count: usize| -> Vec<f32> {
        let mut next = || {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1);
            (state >> 40) as f32 / (1 << 23) as f32 - 1.0
        };
        (0..count).map(|_| next() * 2.0).collect()
    };
    let (query, key) = (numbers(tokens * dim), numbers(tokens * dim));
    let shape = [1, 1, tokens, dim];
    let (query, key) = (
        View::heads_first(&query, shape),
        View::heads_first(&key, shape),
    );
    let nothing = vec![0.0; tokens];
    let value = View::heads_first(&nothing, [1, 1, tokens, 1]);
    let causal = Attention {
        causal: true,
        ..Attention::default()
    };
    let (mut output, mut lse) = (vec![0.0; tokens], vec![0.0; 3 * tokens]);
    let start = Instant::now();
    let to = ViewMut::heads_first(&mut output, [1, 1, tokens, 1]);
    dot::forward(&causal, query, key, value, to, Some(&mut lse))?;
    println!("lse: {:.2} s", start.elapsed().as_secs_f64());
    for kind in [Kind::Max, Kind::Mean] {
        let mut cells = vec![0.0; side * side];
        let start = Instant::now();
        let part = dot::Pooled {
            queries: 0..tokens,
            keys: 0..tokens,
            rows: side,
            columns: side,
            kind,
            cells: &mut cells,
        };
        dot::pool(&causal, query, key, &lse, part)?;
        println!("{kind:?}: {:.2} s", start.elapsed().as_secs_f64());
    }
    Ok(())
}
