//! Attention flow: how much could have come from each input (Abnar & Zuidema 2020, section 3).
//!
//! The layers become a network: a node for each position of each layer and of the input, an edge from
//! position `i` of layer `l` to position `j` below it with the capacity `Ã_l[i, j]` (see
//! [`rollout`](super::rollout())). The flow from output `i` to input `j` is the maximum flow between the
//! two nodes, computed for each input separately; a row is then divided by its sum, as in the authors' code.
//! Rollout adds up the shares along all paths; flow is bounded by the smallest capacities on the way.
//!
//! Shapes as for rollout. Cost: one maximum flow (Dinic 1970) for each pair asked for, over
//! `layers · length²` edges: for sentences, not for documents; [`flow_from`] asks for one row.
//!
//! ```
//! use regard_trace::{AttentionMap, Kind, Tokens, diagnose::flow_from};
//!
//! let words = Tokens::from_words("a b");
//! let layer = |weights| AttentionMap::new(Kind::EncoderSelf, words.clone(), words.clone(), 1, weights);
//! let (low, high) = (layer(vec![1.0, 0.0, 1.0, 0.0])?, layer(vec![0.0, 1.0, 0.0, 1.0])?);
//! // To "a": ½ straight down, and ½ by way of "b"; to "b": ½ by way of "b". Then divided by the sum.
//! let row = flow_from(&[&low, &high], 0)?;
//! assert!((row[0] - 2.0 / 3.0).abs() < 1e-12 && (row[1] - 1.0 / 3.0).abs() < 1e-12);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use std::collections::VecDeque;

use super::stack::{Stack, StackError};
use crate::AttentionMap;
use crate::map::as_weight;

/// What every position of the top layer could have taken from every input: a map `flow`,
/// `[1, length, length]`.
///
/// # Errors
/// As for [`rollout`](super::rollout()).
pub fn flow(layers: &[&AttentionMap]) -> Result<AttentionMap, StackError> {
    let stack = Stack::new(layers)?;
    let network = Network::new(&stack);
    let mut weights = Vec::with_capacity(stack.length * stack.length);
    for output in 0..stack.length {
        weights.extend(row(&stack, &network, output).into_iter().map(as_weight));
    }
    Ok(stack.map("flow", weights))
}

/// One row of [`flow`]: position `output` of the top layer over all inputs.
///
/// # Errors
/// As for [`flow`], and a position that is not there.
pub fn flow_from(layers: &[&AttentionMap], output: usize) -> Result<Vec<f64>, StackError> {
    let stack = Stack::new(layers)?;
    if output >= stack.length {
        return Err(StackError::Position {
            found: output,
            length: stack.length,
        });
    }
    Ok(row(&stack, &Network::new(&stack), output))
}

fn row(stack: &Stack<'_>, network: &Network, output: usize) -> Vec<f64> {
    let source = stack.layers.len() * stack.length + output;
    let flows: Vec<f64> = (0..stack.length)
        .map(|input| network.clone().maximum_flow(source, input))
        .collect();
    let total: f64 = flows.iter().sum();
    flows.iter().map(|flow| flow / total).collect()
}

/// A capacity up to this is a rounding error, and counts as used up.
const EXHAUSTED: f64 = 1e-14;

/// Residual capacities; edge `2e + 1` is the reverse of edge `2e`.
#[derive(Clone)]
struct Network {
    /// Edges that leave each node.
    leaving: Vec<Vec<usize>>,
    heads: Vec<usize>,
    capacities: Vec<f64>,
}

impl Network {
    /// Node `l · length + i` is position `i` above `l` layers.
    fn new(stack: &Stack<'_>) -> Self {
        let length = stack.length;
        let mut network = Self {
            leaving: vec![Vec::new(); (stack.layers.len() + 1) * length],
            heads: Vec::new(),
            capacities: Vec::new(),
        };
        for (below, layer) in stack.layers.iter().enumerate() {
            for (place, &capacity) in layer.iter().enumerate() {
                if capacity > 0.0 {
                    let (query, key) = (place / length, place % length);
                    network.connect((below + 1) * length + query, below * length + key, capacity);
                }
            }
        }
        network
    }

    fn connect(&mut self, from: usize, to: usize, capacity: f64) {
        for (from, to, capacity) in [(from, to, capacity), (to, from, 0.0)] {
            self.leaving[from].push(self.heads.len());
            self.heads.push(to);
            self.capacities.push(capacity);
        }
    }

    /// Dinic's algorithm: a blocking flow along all shortest paths at once, repeated until no path is left.
    fn maximum_flow(mut self, source: usize, sink: usize) -> f64 {
        let mut total = 0.0;
        while let Some(levels) = self.levels(source, sink) {
            let mut next = vec![0; self.leaving.len()];
            loop {
                let pushed = self.push(source, sink, &levels, &mut next);
                if pushed <= EXHAUSTED {
                    break;
                }
                total += pushed;
            }
        }
        total
    }

    /// The distance of every node from the source; `None` when the sink cannot be reached.
    fn levels(&self, source: usize, sink: usize) -> Option<Vec<usize>> {
        let mut levels = vec![usize::MAX; self.leaving.len()];
        levels[source] = 0;
        let mut queue = VecDeque::from([source]);
        while let Some(node) = queue.pop_front() {
            for &edge in &self.leaving[node] {
                let head = self.heads[edge];
                if self.capacities[edge] > EXHAUSTED && levels[head] == usize::MAX {
                    levels[head] = levels[node] + 1;
                    queue.push_back(head);
                }
            }
        }
        (levels[sink] != usize::MAX).then_some(levels)
    }

    /// Sends as much as fits along one shortest path; 0 if there is none left. `next` are the edges of each node that may still lead
    /// to the sink.
    fn push(&mut self, source: usize, sink: usize, levels: &[usize], next: &mut [usize]) -> f64 {
        // The edges from the source to `node`. A file may have so many layers that recursion would leave its stack.
        let mut path: Vec<usize> = Vec::new();
        let mut node = source;
        while node != sink {
            match self.leaving[node].get(next[node]).copied() {
                Some(edge) => {
                    let head = self.heads[edge];
                    if self.capacities[edge] > EXHAUSTED && levels[head] == levels[node] + 1 {
                        path.push(edge);
                        node = head;
                    } else {
                        next[node] += 1;
                    }
                }
                None => {
                    // A dead end: back, and past the edge that led here.
                    let Some(edge) = path.pop() else { return 0.0 };
                    node = self.heads[edge ^ 1];
                    next[node] += 1;
                }
            }
        }
        let capacities = path.iter().map(|&edge| self.capacities[edge]);
        let pushed = capacities.fold(f64::INFINITY, f64::min);
        for edge in path {
            self.capacities[edge] -= pushed;
            self.capacities[edge ^ 1] += pushed;
        }
        pushed
    }
}
