//! The changes of heads that the page asks for. One of them needs what the model looks at in another text or image.

use std::sync::{Arc, Mutex, PoisonError};

use regard_kernels::stack::GivenWeights;
use regard_trace::Trace;
use serde::Deserialize;

use crate::entries::Entries;
use crate::{AblatedHead, Ablation, Change, Input, Model};

/// The last text whose weights were taken, and what the model looks at in it: ranking asks for each head of the same text.
pub type OtherText = Arc<Mutex<Option<(Input, Arc<Trace>)>>>;

/// Heads as the page names them.
#[derive(Default, Deserialize)]
#[serde(transparent)]
pub struct Changes(Vec<Changed>);

#[derive(Deserialize)]
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
    Hide { query: usize, key: usize },
    Replace(Other),
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
        let changed = self.0.into_iter().map(|one| {
            let Changed {
                map,
                layer,
                head,
                change,
            } = one;
            let change = match change {
                Asked::Off => Change::Off,
                Asked::Uniform => Change::Uniform,
                Asked::Hide { query, key } => Change::Hide { query, key },
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
