//! A new score and a new model, trained on the reverse task through `regard-train`.
//!
//! ```text
//! h_j  = GRU(E x)_j
//! e_j  = -‖W s_{t-1} - h_j‖² / √n                    the score: how near
//! c_t  = Σ_j softmax(e)_j h_j
//! s_t  = GRU(E y_{t-1}, s_{t-1}; C c_t)
//! p    ∝ exp(E tanh(R [s_t; c_t]))
//! ```
//! `cargo run --release --manifest-path examples/outside/Cargo.toml --target-dir target`

use std::{error::Error, sync::atomic::AtomicBool};

use regard_models::config::{SIZE, config};
use regard_models::tables::{Tables, TablesConfig, Tie};
use regard_models::{recurrent::index, *};
use regard_nn::burn::tensor::{Device, Int, Tensor};
use regard_nn::burn::{self, module::Module, nn::Linear};
use regard_nn::recurrent::{Direction, Gru, Reset};
use regard_nn::score::{Score, ScoreFunction, Sizes};
use regard_nn::{Attention, AttentionOptions, Memory};
use regard_nn::{dropout::DropoutRng, initialize::Initializer};
use regard_train::{Architecture, Registry, learner::Run, ranks::Alone, recipe::Split, tasks::Translation};

config! {
    /// Nearest: an encoder-decoder whose attention looks for the annotations nearest to its state.
    pub struct NearestConfig {
        /// Size of a word vector and of a state.
        hidden: usize = 64, in SIZE;
    }
}

impl ModelConfig for NearestConfig {
    type Role = AnyGenerator;
    type Model = Nearest;

    fn layers(&self) -> usize {
        1
    }

    fn draw(&self, words: &Vocabularies, init: &mut Initializer) -> Result<Nearest, ModelError> {
        let n = self.hidden;
        let tables = TablesConfig {
            vocabularies: *words,
            embedding: n,
            readout: n,
            tie: Tie::None,
        };
        Ok(Nearest {
            tables: tables.init(init)?,
            encoder: Gru::new(n, n, Reset::BeforeProduct, init),
            attention: Attention::new(Score::custom(Nearness {
                query: init.linear(n, n, false),
            })),
            decoder: Gru::new(n, n, Reset::BeforeProduct, init),
            context: init.linear(n, 3 * n, false),
            readout: init.linear(2 * n, n, true),
        })
    }
}

/// The score.
#[derive(Module, Debug)]
struct Nearness {
    query: Linear,
}

impl ScoreFunction for Nearness {
    fn name(&self) -> &'static str {
        "nearness"
    }

    fn sizes(&self) -> Sizes {
        Sizes::Equal
    }

    /// `query [rows, 1, queries, n]` against `keys [rows, 1, source, n]`: `[rows, 1, queries, source]`.
    fn score(&self, query: Tensor<4>, keys: Tensor<4>) -> Tensor<4> {
        let scale = -(keys.dims()[3] as f64).sqrt();
        let query = self.query.forward(query).unsqueeze_dim::<5>(3);
        let apart = keys.unsqueeze_dim::<5>(2) - query;
        (apart.clone() * apart).sum_dim(4).squeeze_dim::<4>(4) / scale
    }
}

#[derive(Module, Debug)]
pub struct Nearest {
    tables: Tables,
    encoder: Gru,
    attention: Attention,
    decoder: Gru,
    context: Linear,
    readout: Linear,
}

#[derive(Debug, Clone)]
pub struct State {
    hidden: Tensor<2>, // [rows, n]
    source: Memory,
}

impl DecoderState for State {
    fn select(self, rows: &[usize], _same_sources: bool) -> Self {
        let index = index(rows, &self.hidden.device());
        Self {
            hidden: self.hidden.select(0, index),
            source: self.source.select(rows).expect("rows that are there"),
        }
    }
}

impl Nearest {
    /// One step from `embedded [rows, n]`: the input of the output layer, the weights, and the next state.
    fn advance(&self, embedded: Tensor<2>, state: State) -> (Tensor<2>, Tensor<2>, State) {
        let query = state.hidden.clone().unsqueeze_dim(1);
        let options = AttentionOptions::default();
        let read = self.attention.read(query, &state.source, options);
        let read = read.expect("the model's own sizes");
        let [context, weights] = [read.context, read.weights].map(|x| x.squeeze_dim::<2>(1));
        let x = self.decoder.project(embedded);
        let around = self.context.forward(context.clone());
        let hidden = self.decoder.step(x, state.hidden, Some(around));
        let both = Tensor::cat(vec![hidden.clone(), context], 1);
        let readout = self.readout.forward(both).tanh();
        (readout, weights, State { hidden, ..state })
    }
}

impl Generator for Nearest {
    const NAME: &'static str = "Nearest";
    type State = State;

    fn vocabularies(&self) -> Vocabularies {
        self.tables.vocabularies
    }

    fn encode(&self, source: &SourceBatch, _noise: &mut DropoutRng) -> State {
        let [length, batch] = source.ids.dims();
        let gru = &self.encoder;
        let x = gru.project(self.tables.embed_source(source.ids.clone()));
        let start = Tensor::zeros([batch, gru.size()], &x.device());
        let keep = source.keep.clone();
        let states = gru.sequence(x, start, Some(keep.time_major()), Direction::Forward);
        let source = self.attention.memory(states.clone().swap_dims(0, 1), keep);
        State {
            hidden: states.narrow(0, length - 1, 1).squeeze_dim(0),
            source: source.expect("the model's own sizes"),
        }
    }

    fn forward(
        &self,
        source: &SourceBatch,
        target: &TargetBatch,
        noise: &mut DropoutRng,
    ) -> Scored {
        let mut state = self.encode(source, noise);
        let embedded = self.tables.embed_target(target.inputs.clone());
        let step = |step: Tensor<3>| {
            let (readout, weights, next) = self.advance(step.squeeze_dim(0), state.clone());
            state = next;
            (readout, weights)
        };
        let (readouts, weights): (Vec<_>, Vec<_>) = embedded.iter_dim(0).map(step).unzip();
        self.tables
            .scored(Tensor::cat(readouts, 0), Some(Tensor::stack(weights, 1)))
    }

    fn step(&self, previous: Tensor<1, Int>, state: State, _: bool) -> (Output, State) {
        let embedded = self.tables.embed_target(previous.unsqueeze_dim::<2>(0));
        let (readout, weights, state) = self.advance(embedded.squeeze_dim(0), state);
        let (logits, weights) = (self.tables.logits(readout), Some(weights));
        (Output { logits, weights }, state)
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let nearest = Architecture::new::<NearestConfig, Translation>("nearest");
    let registry = Registry::default().with(nearest);
    let recipe = registry.parse(include_str!("../reverse.toml"), "reverse.toml", &[])?;
    let (temporary, device) = (tempfile::tempdir()?, &Device::flex());
    let (folder, stop) = (temporary.path(), &AtomicBool::new(false));
    let run = Run {
        folder,
        device,
        stop,
        ranks: &Alone,
    };
    registry.train(&recipe, &run, &mut |_| ())?;
    let translator = registry.translator(folder, device)?;
    let test = recipe.data.load(Split::Test, recipe.training.seed)?;
    let test = test.ok_or("no test data")?.text;
    let found = translator.translate(test.source(), translator.settings())?;
    let pairs = found.iter().zip(test.target());
    let exact = pairs.filter(|(a, b)| a.n_best[0].text == **b).count();
    println!("{exact} of {} sequences reversed exactly", test.len());
    assert!(exact * 100 >= test.len() * 95);
    Ok(())
}
