//! A causal language model of two layers on the kernels, small enough for tests: its heads, queries and keys are real.

use regard_kernels::stack::{
    Activation, Block, ChangedHead, FeedForward, Norms, Observer, Product, QueryObserver, Rotation,
    Seen as Attended, SelfAttention, Sizes, Stack,
};
use regard_kernels::{KernelError, dot};
use regard_serve::{
    Ablation, Alternative, Generation, GradientMap, Gradients, Hypothesis, Input, InputKind, Model,
    Proposed, QueryKeys, QueryPlace, Seen,
};
use regard_trace::{AttentionMap, Kind, Tokens, Trace};

use super::Numbers;

const WORDS: [&str; 8] = ["the", "red", "fox", "sees", "a", "dog", "and", "cat"];
const MODEL: usize = 8;
const HEADS: usize = 2;
const LAYERS: usize = 2;

pub struct Small {
    stack: Stack,
    /// `[words, model]`
    table: Vec<f32>,
}

impl Small {
    pub fn new() -> Self {
        let mut numbers = Numbers(7);
        let mut random = |count, size: f32| -> Vec<f32> {
            (0..count)
                .map(|_| size * (2.0 * numbers.next() - 1.0))
                .collect()
        };
        let block = |random: &mut dyn FnMut(usize, f32) -> Vec<f32>| {
            let mut product = |inner, columns| {
                Product::new(&random(inner * columns, 0.9), inner, columns, None).unwrap()
            };
            Block {
                attention: SelfAttention {
                    query_key_value: product(MODEL, 3 * MODEL),
                    output: product(MODEL, MODEL),
                    query_norm: None,
                    key_norm: None,
                    scale: None,
                    window: None,
                    rotation: Some(0),
                    global: None,
                    norms: Norms::default(),
                },
                cross: None,
                feed_forward: FeedForward {
                    inner: product(MODEL, 16),
                    activation: Activation::Gelu,
                    gated: false,
                    outer: product(16, MODEL),
                    norms: Norms::default(),
                    parallel: false,
                },
            }
        };
        let table = random(WORDS.len() * MODEL, 1.0);
        let blocks = (0..LAYERS).map(|_| block(&mut random)).collect();
        let rotation = Rotation {
            frequencies: vec![1.0, 0.1],
            factor: 1.0,
            interleaved: false,
            long: None,
        };
        let sizes = Sizes::new(MODEL, HEADS, HEADS, MODEL / HEADS);
        let stack = Stack::new(sizes, blocks, None, vec![rotation]).unwrap();
        Self { stack, table }
    }

    fn ids(text: &str) -> Result<Vec<usize>, String> {
        let id = |word| {
            let found = WORDS.iter().position(|known| *known == word);
            found.ok_or_else(|| format!("{word:?} is no word of this model; use {WORDS:?}"))
        };
        let ids: Vec<usize> = text.split_whitespace().map(id).collect::<Result<_, _>>()?;
        match ids.is_empty() {
            true => Err("there are no words: write some".to_owned()),
            false => Ok(ids),
        }
    }

    /// The probabilities of the words after `ids`, of which `observer` sees the attention.
    fn read(&self, ids: &[usize], observer: &mut (dyn Observer + Send)) -> Vec<f64> {
        let embedded: Vec<f32> = ids
            .iter()
            .flat_map(|id| &self.table[id * MODEL..][..MODEL])
            .copied()
            .collect();
        let states = self
            .stack
            .forward(None, &embedded, &[ids.len()], Some(observer));
        let states = states.unwrap();
        let last = &states[(ids.len() - 1) * MODEL..];
        let score = |word: &[f32]| -> f64 {
            let products = word.iter().zip(last).map(|(a, b)| f64::from(a * b));
            (0.5 * products.sum::<f64>()).exp()
        };
        let scores: Vec<f64> = self.table.chunks(MODEL).map(score).collect();
        let sum: f64 = scores.iter().sum();
        scores.iter().map(|score| score / sum).collect()
    }

    fn change(&mut self, ablation: &Ablation) -> Result<(), String> {
        let changed = ablation.heads.iter().map(|one| ChangedHead {
            layer: one.layer,
            cross: false,
            head: one.head,
            change: (&one.change).into(),
        });
        let changed = self.stack.change_heads(changed.collect());
        changed.map_err(|error| error.to_string())
    }
}

/// Gradient times attention of a weight: numbers below and above 0 that tell places apart, and not derivatives of anything.
pub fn product(weight: f32, head: usize, query: usize, key: usize) -> f32 {
    weight * (((7 * head + 3 * query + key) % 5) as f32 - 1.5)
}

/// All weights, by layer.
#[derive(Default)]
struct Weights(Vec<Vec<f32>>);

impl Observer for Weights {
    fn wants(&self, _: usize, _: bool) -> bool {
        true
    }

    fn see(&mut self, seen: Attended<'_>) -> Result<(), KernelError> {
        let queries = seen.query.shape[2];
        let mut weights = vec![0.0; HEADS * queries * queries];
        let rows: Vec<usize> = (0..queries).collect();
        let observe = dot::Observe {
            rows: Some((&rows, &mut weights)),
            ..Default::default()
        };
        dot::observe(&seen.attention, seen.query, seen.key, seen.lse, observe)?;
        self.0.push(weights);
        Ok(())
    }
}

impl Model for Small {
    fn name(&self) -> &str {
        "small"
    }

    fn input(&self) -> InputKind {
        InputKind::Text
    }

    fn look(&mut self, input: &Input, ablation: &Ablation) -> Result<Seen, String> {
        self.change(ablation)?;
        let mut ids = Self::ids(&input.text)?;
        let mut proposals = vec![];
        let mut leaf = None;
        let mut written = vec![];
        for _ in 0..input.continuation.tokens {
            let likely = self.read(&ids, &mut Weights::default());
            let best = (0..likely.len()).max_by(|&a, &b| likely[a].total_cmp(&likely[b]));
            let best = best.unwrap();
            let first = proposals.len();
            proposals.extend(WORDS.iter().zip(likely).enumerate().map(
                |(id, (word, probability))| Proposed {
                    parent: leaf,
                    text: (*word).to_owned(),
                    probability,
                    taken: id == best,
                },
            ));
            leaf = Some(first + best);
            ids.push(best);
            written.push(WORDS[best]);
        }
        let mut seen = Weights::default();
        let likely = self.read(&ids, &mut seen);
        let tokens = Tokens::from_words(&[&[input.text.as_str()], &written[..]].concat().join(" "));
        let mut trace = Trace::new("small", &input.text, written.join(" "));
        for (layer, weights) in seen.0.into_iter().enumerate() {
            let map = AttentionMap::new(
                Kind::DecoderSelf,
                tokens.clone(),
                tokens.clone(),
                HEADS,
                weights,
            );
            trace = trace.with_map(map.unwrap().at_layer(layer));
        }
        let mut alternatives: Vec<Alternative> = (WORDS.iter().zip(likely))
            .map(|(word, probability)| Alternative {
                text: (*word).to_owned(),
                probability,
            })
            .collect();
        alternatives.sort_by(|a, b| b.probability.total_cmp(&a.probability));
        let Some(leaf) = leaf else {
            let output = alternatives[0].text.clone();
            return Ok(Seen {
                alternatives,
                ..Seen::new(trace, output)
            });
        };
        // Not as the answer, but beside it: what was looked at without the last word.
        let mut other = trace.clone();
        other.target = written[..written.len() - 1].join(" ");
        other.score = Some(-1.5);
        let parent = proposals[leaf].parent.unwrap_or(leaf);
        let hypotheses = [(leaf, trace.clone()), (parent, other)];
        Ok(Seen {
            alternatives,
            generation: Some(Generation {
                proposals,
                hypotheses: hypotheses
                    .map(|(leaf, trace)| Hypothesis { leaf, trace })
                    .into(),
            }),
            ..Seen::new(trace, written.join(" "))
        })
    }

    fn continues(&self) -> bool {
        true
    }

    fn shows_queries(&self) -> bool {
        true
    }

    fn query(
        &mut self,
        input: &Input,
        ablation: &Ablation,
        place: &QueryPlace,
    ) -> Result<QueryKeys, String> {
        self.change(ablation)?;
        let mut one = QueryObserver::new(place.layer, false, place.head, place.query);
        self.read(&Self::ids(&input.text)?, &mut one);
        one.found()
            .ok_or_else(|| "there is no such query".to_owned())
    }

    fn gradients(&mut self, input: &Input, _: usize) -> Result<Gradients, String> {
        let trace = self.look(input, &Ablation::default())?.trace;
        let maps = trace.maps.iter().map(|map| {
            let [heads, queries, keys] = map.shape();
            let places = (0..heads * queries * keys)
                .map(|at| (at / queries / keys, at / keys % queries, at % keys));
            GradientMap {
                map: map.name().to_owned(),
                layer: map.layer(),
                shape: map.shape(),
                products: places
                    .map(|(h, q, k)| product(map.weight(h, q, k), h, q, k))
                    .collect(),
            }
        });
        Ok(Gradients {
            output: "fox".to_owned(),
            log_probability: -0.25,
            maps: maps.collect(),
        })
    }
}
