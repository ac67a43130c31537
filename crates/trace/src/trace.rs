//! One output of a model and everything it looked at on the way.

use std::collections::BTreeMap;

use crate::{AttentionMap, Image};

/// One sentence translated, one image captioned, one entry of an n-best list.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Trace {
    /// Name of the model, such as `rnnsearch` or a path.
    pub model: String,
    /// The input as given.
    pub source: String,
    /// The output as written.
    pub target: String,
    /// The score by which the search ranked this output (for beam search the normalised
    /// log-probability in nats), if there was one.
    pub score: Option<f64>,
    /// Place in the n-best list, 0 being the best; `None` outside of such a list.
    pub rank: Option<usize>,
    /// The image that the model looked at, if it looked at one.
    pub image: Option<Image>,
    /// The attention maps, in the order in which the model computed them.
    pub maps: Vec<AttentionMap>,
    /// Anything else worth keeping: settings of the search, versions, dates.
    pub metadata: BTreeMap<String, String>,
}

impl Trace {
    /// A trace without score and maps.
    pub fn new(
        model: impl Into<String>,
        source: impl Into<String>,
        target: impl Into<String>,
    ) -> Self {
        Self {
            model: model.into(),
            source: source.into(),
            target: target.into(),
            ..Self::default()
        }
    }

    /// The same trace with one more map.
    pub fn with_map(mut self, map: AttentionMap) -> Self {
        self.maps.push(map);
        self
    }

    /// The same trace with the image that the model looked at.
    pub fn with_image(self, image: Image) -> Self {
        Self {
            image: Some(image),
            ..self
        }
    }

    /// The same trace with a score.
    pub fn with_score(self, score: f64) -> Self {
        Self {
            score: Some(score),
            ..self
        }
    }

    /// The same trace as entry `rank` of an n-best list, 0 being the best.
    pub fn with_rank(self, rank: usize) -> Self {
        Self {
            rank: Some(rank),
            ..self
        }
    }

    /// The same trace with every map between words, see [`AttentionMap::merge_words`].
    pub fn merge_words(&self) -> Self {
        Self {
            maps: self.maps.iter().map(AttentionMap::merge_words).collect(),
            ..self.clone()
        }
    }
}
