//! The changes of heads that the page asks for. One of them needs what the model looks at in another text or image.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, PoisonError};

use regard_kernels::stack::GivenWeights;
use regard_trace::Trace;
use serde::Deserialize;

use crate::entries::Entries;
use crate::named::Named;
use crate::{AblatedHead, Ablation, Change, Input, Model};

/// The last text whose weights were taken, and what the model looks at in it: ranking asks for each head of the same text.
pub type OtherText = Arc<Mutex<Option<(Input, Arc<Trace>)>>>;

/// The most changes of one look: each costs time, and given weights cost memory.
const MOST_CHANGES: usize = 1024;

/// Heads as the page names them.
#[derive(Default, Deserialize)]
#[serde(transparent)]
pub struct Changes(Vec<Named<Changed>>);

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Changed {
    map: String,
    layer: usize,
    head: usize,
    change: Asked,
}

#[derive(Deserialize)]
#[serde(rename_all = "snake_case")]
enum Asked {
    Off,
    Uniform,
    Hide(Named<Weight>),
    Replace(Other),
}

/// The weight of a key for a query, by their positions.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Weight {
    query: usize,
    key: usize,
}

/// Whose weights a head takes.
#[derive(Deserialize)]
#[serde(rename_all = "snake_case")]
enum Other {
    /// Those of this text.
    Text(String),
    /// Those of an earlier look.
    Look(u64),
}

impl Changes {
    /// Whether no head is changed.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Refuses what no look needs, before anything is computed.
    ///
    /// # Errors
    /// A sentence, for more than [`MOST_CHANGES`], for a head that is changed twice, but for its hidden weights, and for weights of
    /// several texts, each of which the model would have to read.
    pub fn check(&self) -> Result<(), String> {
        let count = self.0.len();
        if count > MOST_CHANGES {
            return Err(format!(
                "{count} changes of heads: expected at most {MOST_CHANGES}"
            ));
        }
        let texts = self.0.iter().filter_map(|Named(one)| match &one.change {
            Asked::Replace(Other::Text(text)) => Some(text),
            _ => None,
        });
        let texts = texts.collect::<HashSet<_>>().len();
        if texts > 1 {
            return Err(format!(
                "weights of {texts} other texts: expected those of one text"
            ));
        }
        let mut seen = HashSet::new();
        for Named(one) in &self.0 {
            let Changed {
                map, layer, head, ..
            } = one;
            if !matches!(one.change, Asked::Hide(_)) && !seen.insert((map, layer, head)) {
                return Err(format!(
                    "head {head} of layer {layer} of {map:?} is changed twice: expected each head once, but for weights that are hidden"
                ));
            }
        }
        Ok(())
    }

    /// The changes as `model` takes them; it looks at the other texts first. Looks are those of `entries`.
    ///
    /// # Errors
    /// Those of [`Model::look`]; a look that is not kept; a head that it does not have for the other input.
    pub fn of(
        self,
        model: &mut dyn Model,
        input: &Input,
        other: &OtherText,
        entries: &Entries,
    ) -> Result<Ablation, String> {
        let changed = self.0.into_iter().map(|Named(one)| {
            let Changed {
                map,
                layer,
                head,
                change,
            } = one;
            let change = match change {
                Asked::Off => Change::Off,
                Asked::Uniform => Change::Uniform,
                Asked::Hide(Named(Weight { query, key })) => Change::Hide { query, key },
                Asked::Replace(Other::Text(text)) => {
                    let input = Input {
                        text,
                        target: input.target.clone(),
                        ..Input::default()
                    };
                    let trace = seen(model, input, other)?;
                    Change::Replace(Arc::new(given(&trace, &map, layer, head)?))
                }
                Asked::Replace(Other::Look(id)) => {
                    let look = entries.get(id).filter(|one| one.asked.is_some());
                    let look = look.ok_or_else(|| {
                        format!("look {id} is not kept: ask the model about the other image again")
                    })?;
                    Change::Replace(Arc::new(given(look.trace(false), &map, layer, head)?))
                }
            };
            Ok(AblatedHead {
                map,
                layer,
                head,
                change,
            })
        });
        let heads = changed.collect::<Result<_, String>>()?;
        Ok(Ablation { heads })
    }
}

/// What the model, as it is, looks at in the other text.
fn seen(model: &mut dyn Model, input: Input, other: &OtherText) -> Result<Arc<Trace>, String> {
    let mut known = other.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some((_, trace)) = known.as_ref().filter(|(text, _)| *text == input) {
        return Ok(trace.clone());
    }
    let looked = model.look(&input, &Ablation::default());
    let trace = looked.map_err(|error| format!("the other text: {error}"))?;
    let trace = Arc::new(trace.trace);
    *known = Some((input, trace.clone()));
    Ok(trace)
}

/// The weights of one head.
fn given(trace: &Trace, name: &str, layer: usize, head: usize) -> Result<GivenWeights, String> {
    let mut maps = trace.maps.iter();
    let map = maps.find(|map| map.name() == name && map.layer() == layer);
    let map = map.filter(|map| head < map.heads()).ok_or_else(|| {
        format!("the model has no weights of this head for the other text or image ({name:?}, layer {layer}, head {head}): take another")
    })?;
    let [_, queries, keys] = map.shape();
    let weights = map.weights()[head * queries * keys..][..queries * keys].to_vec();
    GivenWeights::new(weights, queries, keys).map_err(|error| error.to_string())
}
