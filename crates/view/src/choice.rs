//! Which maps of a trace a picture shows.
//!
//! A Transformer of four layers and four heads has 48 maps. Unless told otherwise a picture shows one: the cross-attention of
//! the layer that is most like an alignment, the mean of its heads. The title of each map says what it shows.
//!
//! ```
//! use regard_trace::{AttentionMap, Kind, Tokens, Trace};
//! use regard_view::choice::{Choice, Pick};
//!
//! let (keys, queries) = (Tokens::from_words("a man"), Tokens::from_words("ein Mann"));
//! let layer = |weights| AttentionMap::new(Kind::Cross, queries.clone(), keys.clone(), 1, weights);
//! let trace = Trace::new("transformer", "a man", "ein Mann")
//!     .with_map(layer(vec![0.5, 0.5, 0.5, 0.5])?)
//!     .with_map(layer(vec![0.9, 0.1, 0.1, 0.9])?.at_layer(1));
//!
//! let usual = Choice::default().heatmaps(&trace)?;
//! assert_eq!(usual[0].title(), "decoder.cross · layer 2 of 2, the one most like an alignment");
//! let first = Choice { layer: Pick::One(0), ..Choice::default() };
//! assert_eq!(first.heatmaps(&trace)?[0].title(), "decoder.cross · layer 1 of 2");
//! assert!(Choice { layer: Pick::One(2), ..Choice::default() }.heatmaps(&trace).is_err());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use regard_trace::{AttentionMap, Kind, Trace};

use crate::Heatmap;

/// One of several things, all of them, or the one that is usually wanted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Pick<T> {
    /// The usual one.
    #[default]
    Usual,
    /// Every one.
    All,
    /// This one.
    One(T),
}

/// Which maps of a trace are shown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Choice {
    /// Which attention. Usual: cross-attention, or the first map's if there is none.
    pub kind: Pick<Kind>,
    /// Which layer, counted from 0. Usual: of cross-attention the one most like an alignment, of others the last.
    pub layer: Pick<usize>,
    /// Which head, counted from 0. Usual: the mean over all.
    pub head: Pick<usize>,
}

/// Why there is nothing to show.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ChoiceError {
    /// The trace has no such attention.
    #[error("there is no {wanted}; the maps are {}", there.join(", "))]
    Kind {
        /// What was asked for.
        wanted: &'static str,
        /// The names of the maps that there are.
        there: Vec<String>,
    },
    /// The attention has no such layer.
    #[error("{map}: the model has no layer {}; its layers are {}", wanted + 1, numbers(there))]
    Layer {
        /// The name of the maps.
        map: String,
        /// What was asked for, counted from 0.
        wanted: usize,
        /// The layers that there are, counted from 0.
        there: Vec<usize>,
    },
    /// The layer has no such head.
    #[error("{map}: the model has no head {}; its heads are 1 to {heads}", wanted + 1)]
    Head {
        /// The name of the map.
        map: String,
        /// What was asked for, counted from 0.
        wanted: usize,
        /// How many there are.
        heads: usize,
    },
}

/// `1, 2, 4` of layers counted from 0.
fn numbers(layers: &[usize]) -> String {
    let numbers: Vec<String> = layers.iter().map(|layer| (layer + 1).to_string()).collect();
    numbers.join(", ")
}

impl Choice {
    /// Whether anything other than the usual was asked for.
    pub fn is_made(&self) -> bool {
        *self != Self::default()
    }

    /// The pictures of the chosen maps, lowest layer first; an empty list for a trace without maps. Merge subwords first with
    /// [`Trace::merge_words`] if words are wanted.
    ///
    /// # Errors
    /// An attention, a layer or a head that the trace does not have.
    pub fn heatmaps(&self, trace: &Trace) -> Result<Vec<Heatmap>, ChoiceError> {
        let chosen = self.chosen(trace)?;
        let pictures = chosen.iter().map(|chosen| {
            let picture = match chosen.head {
                Some(head) => chosen.map.head(head).map(|map| Heatmap::from_map(&map)),
                None => Ok(Heatmap::from_map(chosen.map)),
            };
            let parts = [chosen.name(), chosen.layer(), chosen.head_name()];
            let parts: Vec<String> = parts.into_iter().filter(|part| !part.is_empty()).collect();
            Some(picture.ok()?.titled(parts.join(" · ")))
        });
        let mut heatmaps: Vec<Heatmap> = pictures.flatten().collect();
        // The only map of a trace needs no title.
        if let ([single], [map]) = (heatmaps.as_mut_slice(), trace.maps.as_slice())
            && map.heads() == 1
        {
            *single = single.clone().titled("");
        }
        Ok(heatmaps)
    }

    /// What is chosen, lowest layer first.
    pub(crate) fn chosen<'a>(&self, trace: &'a Trace) -> Result<Vec<Chosen<'a>>, ChoiceError> {
        let mut chosen = vec![];
        for kind in self.kinds(trace)? {
            let mut layers: Vec<&AttentionMap> =
                trace.maps.iter().filter(|map| map.kind() == kind).collect();
            layers.sort_by_key(|map| map.layer());
            for (map, why) in self.layers(trace, kind, &layers)? {
                let heads = self.heads(map)?.into_iter();
                chosen.extend(heads.map(|head| Chosen {
                    map,
                    layers: layers.len(),
                    why,
                    head,
                }));
            }
        }
        Ok(chosen)
    }

    fn kinds(&self, trace: &Trace) -> Result<Vec<Kind>, ChoiceError> {
        let mut there: Vec<Kind> = vec![];
        for map in &trace.maps {
            if !there.contains(&map.kind()) {
                there.push(map.kind());
            }
        }
        match self.kind {
            Pick::All => Ok(there),
            Pick::Usual => Ok(match there.contains(&Kind::Cross) {
                true => vec![Kind::Cross],
                false => there.into_iter().take(1).collect(),
            }),
            Pick::One(kind) if there.is_empty() || there.contains(&kind) => Ok(vec![kind]),
            Pick::One(kind) => {
                let mut names: Vec<String> =
                    trace.maps.iter().map(|map| map.name().to_owned()).collect();
                names.dedup();
                Err(ChoiceError::Kind {
                    wanted: match kind {
                        Kind::Cross => "cross-attention",
                        Kind::EncoderSelf => "self-attention of an encoder",
                        Kind::DecoderSelf => "self-attention of a decoder",
                        Kind::SelfAttention => "self-attention of a model of one sequence",
                        _ => "attention of another kind",
                    },
                    there: names,
                })
            }
        }
    }

    /// The chosen ones of `layers`, each with the end of its title, which says why it was chosen.
    fn layers<'a>(
        &self,
        trace: &'a Trace,
        kind: Kind,
        layers: &[&'a AttentionMap],
    ) -> Result<Vec<(&'a AttentionMap, &'static str)>, ChoiceError> {
        Ok(match self.layer {
            Pick::All => layers.iter().map(|&map| (map, "")).collect(),
            Pick::One(wanted) => {
                let chosen: Vec<_> = layers.iter().filter(|map| map.layer() == wanted).collect();
                if let (true, Some(first)) = (chosen.is_empty(), layers.first()) {
                    return Err(ChoiceError::Layer {
                        map: first.name().to_owned(),
                        wanted,
                        there: layers.iter().map(|map| map.layer()).collect(),
                    });
                }
                chosen.into_iter().map(|&map| (map, "")).collect()
            }
            Pick::Usual if layers.len() < 2 => layers.iter().map(|&map| (map, "")).collect(),
            // Only sequences of tokens can be aligned.
            Pick::Usual
                if kind == Kind::Cross
                    && layers.iter().all(|map| map.keys().tokens().is_some()) =>
            {
                let best = trace.most_aligned().into_iter();
                best.map(|map| (map, ", the one most like an alignment"))
                    .collect()
            }
            Pick::Usual => layers.last().map(|&map| (map, "")).into_iter().collect(),
        })
    }

    /// The chosen heads; `None` is the mean over all.
    fn heads(&self, map: &AttentionMap) -> Result<Vec<Option<usize>>, ChoiceError> {
        let heads = map.heads();
        match self.head {
            Pick::One(wanted) if wanted >= heads => Err(ChoiceError::Head {
                map: map.name().to_owned(),
                wanted,
                heads,
            }),
            Pick::All => Ok((0..heads).map(Some).collect()),
            Pick::One(head) => Ok(vec![Some(head)]),
            Pick::Usual => Ok(vec![None]),
        }
    }
}

/// A map, or one head of it, that is to be shown.
pub(crate) struct Chosen<'a> {
    pub map: &'a AttentionMap,
    /// How many maps of its kind there are.
    layers: usize,
    /// Why it was chosen, as the end of its title.
    why: &'static str,
    /// `None` for the mean over all heads.
    pub head: Option<usize>,
}

impl Chosen<'_> {
    pub fn name(&self) -> String {
        self.map.name().to_owned()
    }

    /// `layer 2 of 6`
    pub fn layer(&self) -> String {
        let of = match self.layers {
            1 => String::new(),
            count => format!(" of {count}"),
        };
        format!("layer {}{of}{}", self.map.layer() + 1, self.why)
    }

    /// `head 2 of 8`, or nothing for the only one.
    pub fn head_name(&self) -> String {
        match (self.head, self.map.heads()) {
            (_, 1) => String::new(),
            (Some(head), heads) => format!("head {} of {heads}", head + 1),
            (None, heads) => format!("mean of {heads} heads"),
        }
    }
}
