//! `uniform`: "my attention is uniform over all tokens, why?" A layer of cross-attention as it is drawn, and the same layer with one
//! thing wrong, for six things; [`check`] looks at each head's queries and keys and is to name what is wrong, and nothing in the layer
//! as drawn.
//!
//! ```text
//! α = softmax(scale · q kᵀ), q = W_Q x, k = W_K y          entropy, % of the largest = 100 H(α) / ln n
//! ```
//!
//! | fault | how it is made |
//! |---|---|
//! | zero W_Q | the matrix is multiplied by 0 |
//! | scaled twice | scores are divided by `d`, not by `√d` |
//! | small weights | `W_Q` and `W_K` are multiplied by 0.1 |
//! | low softcap | scores are capped at 0.05 |
//! | states alike | source states differ by a thousandth (oversmoothing) |
//! | seen padding | 8 states of the source are words, 56 are zeros that no mask hides |

use burn::{module::Param, tensor::Tensor};
use regard_nn::{
    Attention, AttentionOptions, Observe, Path,
    heads::{MultiHeadConfig, Projection},
    initialize::Initializer,
    record::recorded,
    score::{ScaledDot, Score},
};
use regard_trace::{
    AttentionMap, Kind, Tokens,
    diagnose::{self, Cause, Finding, Problem, Side, check},
};

use super::{Curves, Estimate, ExperimentError, Findings, Setting, Table};

const MODEL: usize = 64;
const HEADS: usize = 4;
const QUERIES: usize = 16;
const KEYS: usize = 64;
/// Words of a padded source; the other keys are padding.
const WORDS: usize = 8;
const SOFTCAP: f64 = 0.05;

/// What is wrong with a layer.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Fault {
    Nothing,
    DeadProjection,
    ScaledTwice,
    SmallWeights,
    LowSoftcap,
    EqualStates,
    VisiblePadding,
}

impl Fault {
    const ALL: [Self; 7] = [
        Self::Nothing,
        Self::DeadProjection,
        Self::ScaledTwice,
        Self::SmallWeights,
        Self::LowSoftcap,
        Self::EqualStates,
        Self::VisiblePadding,
    ];

    fn name(self) -> &'static str {
        match self {
            Self::Nothing => "healthy",
            Self::DeadProjection => "zero W_Q",
            Self::ScaledTwice => "scaled twice",
            Self::SmallWeights => "small weights",
            Self::LowSoftcap => "low softcap",
            Self::EqualStates => "states alike",
            Self::VisiblePadding => "seen padding",
        }
    }

    /// Whether the finding names this fault and no other.
    fn is_named_by(self, finding: &Finding) -> bool {
        let sole = match finding {
            Finding::Uniform { causes, .. } => match causes.as_slice() {
                [cause] => Some(cause),
                _ => None,
            },
            _ => None,
        };
        match self {
            Self::Nothing => false,
            Self::DeadProjection => matches!(
                finding,
                Finding::DeadHead {
                    side: Side::Queries,
                    ..
                }
            ),
            Self::ScaledTwice => matches!(sole, Some(Cause::Scale { .. })),
            Self::SmallWeights => matches!(sole, Some(Cause::Lengths { .. })),
            Self::LowSoftcap => matches!(sole, Some(Cause::Softcap { .. })),
            Self::EqualStates => matches!(finding, Finding::CollapsedKeys { .. }),
            Self::VisiblePadding => {
                matches!(finding, Finding::Padding { from: WORDS, .. })
            }
        }
    }
}

/// One head: how uniform its weights are, and what the checks say.
struct Head {
    uniformity: f64,
    findings: Vec<Finding>,
}

pub(super) fn run(setting: &Setting<'_>) -> Result<Findings, ExperimentError> {
    let (mut rows, mut words) = (vec![], vec![]);
    for fault in Fault::ALL {
        setting.step(fault.name())?;
        let mut said = None;
        let found: [Estimate; 3] = setting.repeat(|seed| {
            let heads = heads(setting, fault, seed)?;
            if said.is_none() {
                let first = heads.iter().find_map(|head| head.findings.first());
                said = first.map(Finding::to_string);
            }
            let mean = |of: &dyn Fn(&Head) -> f64| {
                100.0 * heads.iter().map(of).sum::<f64>() / heads.len() as f64
            };
            let any = |named: bool| {
                mean(&|head| {
                    let is = |finding| fault.is_named_by(finding) == named;
                    f64::from(head.findings.iter().any(is))
                })
            };
            Ok([mean(&|head| head.uniformity), any(true), any(false)])
        })?;
        let name = fault.name();
        let said = said.unwrap_or_else(|| "nothing is found".to_owned());
        let stop = if said.ends_with('?') { "" } else { "." };
        words.push(format!("{name}: {said}{stop}"));
        rows.push((name.to_owned(), found.map(Some).to_vec()));
    }
    let measured = |at: usize| rows.iter().filter_map(move |(_, cells)| cells[at]);
    // The first row is the healthy layer.
    let right = measured(1).skip(1).filter(|named| named.mean == 100.0);
    let wrong = measured(2).map(|other| other.mean).fold(0.0, f64::max);
    words.push(format!(
        "{} of {} faults are named by their own check in every head of {} layers, {HEADS} heads each, drawn by as many seeds; {}.",
        right.count(),
        Fault::ALL.len() - 1,
        setting.seeds,
        match wrong > 0.0 {
            true => format!("something else is named in up to {wrong:.0} % of the heads"),
            false => "nothing else is named in any, and nothing in the healthy layer".to_owned(),
        }
    ));
    words.push(
        "Weights alone do not tell these apart: the checks read queries, keys, scale, softcap and mask."
            .to_owned(),
    );
    let names = ["entropy", "named by its check", "named something else"];
    let line = |(at, name): (usize, &&str)| {
        let points = (0..).map(f64::from).zip(measured(at));
        ((*name).to_owned(), points.collect())
    };
    let figure = Curves {
        title: "Uniform attention made on purpose, and what the checks name".to_owned(),
        x: "fault".to_owned(),
        y: "%".to_owned(),
        x_names: (0..)
            .map(f64::from)
            .zip(Fault::ALL.map(|fault| fault.name().to_owned()))
            .collect(),
        connected: false,
        lines: names.iter().enumerate().map(line).collect(),
    };
    Ok(Findings {
        table: Table {
            columns: [
                "fault",
                "entropy, % of the largest",
                "named by its check, % of heads",
                "named something else, %",
            ]
            .map(str::to_owned)
            .to_vec(),
            rows,
        },
        figure: vec![figure],
        words,
    })
}

fn heads(setting: &Setting<'_>, fault: Fault, seed: u64) -> Result<Vec<Head>, ExperimentError> {
    let mut init = Initializer::new(seed, setting.device);
    let mut states =
        |length: usize| -> Tensor<3> { init.normal([1, length, MODEL], 1.0).val().detach() };
    let (x, mut source) = (states(QUERIES), states(KEYS));
    let size = MODEL / HEADS;
    let (mut score, mut softcap) = (ScaledDot::default(), None);
    match fault {
        Fault::ScaledTwice => score = ScaledDot::with_scale(1.0 / size as f64),
        Fault::LowSoftcap => softcap = Some(SOFTCAP),
        Fault::EqualStates => source = source.clone().narrow(1, 0, 1) + source * 1e-3,
        Fault::VisiblePadding => {
            let padding = Tensor::zeros([1, KEYS - WORDS, MODEL], setting.device);
            source = Tensor::cat(vec![source.narrow(1, 0, WORDS), padding], 1);
        }
        _ => {}
    }
    let scale = score.scale(size);
    let mut attention = Attention::new(Score::ScaledDot(score));
    if let Some(softcap) = softcap {
        attention = attention.with_softcap(softcap);
    }
    let mut layer = MultiHeadConfig::new(MODEL, HEADS).init_with(attention, &mut init)?;
    if let Projection::Separate(matrices) = &mut layer.projection {
        let times = |weight: &Param<Tensor<2>>, by: f64| weight.clone().map(|w| w * by);
        let [query, key] = [&mut matrices.query.weight, &mut matrices.key.weight];
        match fault {
            Fault::DeadProjection => *query = times(query, 0.0),
            Fault::SmallWeights => (*query, *key) = (times(query, 0.1), times(key, 0.1)),
            _ => {}
        }
    }
    let call = AttentionOptions::new(Observe::Weights).path(Path::Plain);
    let (read, record) = recorded(|| layer.forward_cross(x, source, call));
    let weights = read?.attended.weights.expect("weights were asked for");
    let weights: Vec<f32> = weights.into_data().iter::<f32>().collect();
    let names = |length: usize| Tokens::from_words(&vec!["w"; length].join(" "));
    let map = AttentionMap::new(Kind::Cross, names(QUERIES), names(KEYS), HEADS, weights)?;
    let [queries, keys] = ["queries", "keys"].map(|name| record.rows(name));
    let sides = queries.chunks(QUERIES).zip(keys.chunks(KEYS));
    let heads = diagnose::heads(&map)
        .into_iter()
        .zip(sides)
        .map(|(head, (queries, keys))| {
            let mut problem = Problem::new(&queries.concat(), &keys.concat(), size).scale(scale);
            if let Some(softcap) = softcap {
                problem = problem.softcap(softcap);
            }
            Head {
                uniformity: head.uniformity.unwrap_or(0.0),
                findings: check(&problem).expect("queries and keys are of one size"),
            }
        });
    Ok(heads.collect())
}
