//! What the page gets of a trace: small maps with diagnostics, windows of a map, rows. Each is bounded, whatever the trace holds.

use std::ops::Range;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

use regard_trace::diagnose::{HeadDiagnostics, heads, report};
use regard_trace::{AttentionMap, Axis, Image, LongMap, LongTrace, Mask, Region, Tokens, Trace};
use regard_view::image::Outline;
use regard_view::label::{beginning, visible};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::long::Long;
use crate::{Ablation, Change, Gradients, Input, Proposed};

/// Rows and columns of the small maps in the overview.
pub const SMALL: usize = 32;

/// The most rows or columns of a window; a larger one is pooled.
pub const MOST_SIDE: usize = 1024;

/// Characters of the path around a mask.
const MOST_AREA: usize = 64 << 10;

/// Characters of a label that are shown.
const LABEL: usize = 200;

/// How much of a text is followed through its layers: bounds what rollout and flow take.
#[derive(Clone, Copy)]
pub struct FollowLimits {
    /// The longest text, in tokens.
    tokens: usize,
    /// The weights of all layers, heads averaged.
    weights: usize,
}

impl FollowLimits {
    /// Layers that are multiplied for rollout: 128 of the longest text.
    pub const ROLLOUT: Self = Self {
        tokens: 512,
        weights: 128 * 512 * 512,
    };

    /// Layers whose flow is searched for: 24 of the longest text.
    pub const FLOW: Self = Self {
        tokens: 64,
        weights: 24 * 64 * 64,
    };

    /// Refuses layers that would take too long.
    ///
    /// # Errors
    /// A sentence that says what is too much.
    pub fn expect(self, layers: &[&AttentionMap]) -> Result<(), String> {
        let lengths = layers.iter().map(|map| map.queries().len());
        let length = lengths.max().unwrap_or(0);
        let most = self.tokens;
        if length > most {
            return Err(format!(
                "a text of {length} tokens: at most {most} are followed through the layers"
            ));
        }
        let (count, most) = (layers.len(), self.weights / (length * length).max(1));
        match count <= most {
            true => Ok(()),
            false => Err(format!(
                "{count} layers of a text of {length} tokens: at most {most} layers of such a text are followed"
            )),
        }
    }
}

/// A trace on the server: between pieces as the model made it, and between words, made when asked for.
pub struct Entry {
    pub id: u64,
    pub name: String,
    /// What the model of this server was asked for it.
    pub asked: Option<Arc<Asked>>,
    pieces: Arc<Trace>,
    words: OnceLock<Arc<Trace>>,
    overviews: [OnceLock<Vec<MapOverview>>; 4],
    /// Held by who computes an overview, so that others who want it take no thread meanwhile.
    pub turn: Arc<tokio::sync::Mutex<()>>,
    /// Held by who waits for its gradients: views that need no model do not wait for it.
    pub gradient_turn: tokio::sync::Mutex<()>,
    /// Gradient times attention of its weights, computed when asked for.
    pub gradients: OnceLock<Gradients>,
    /// Of a long text, queries and keys in place of maps.
    pub long: Option<Long>,
    /// Of a training, its log in place of a trace.
    pub training: Option<PathBuf>,
}

/// What a model was asked, and how it searched for the answer: common to the entries of all hypotheses.
pub struct Asked {
    pub input: Input,
    pub ablation: Ablation,
    pub proposals: Vec<Proposed>,
    pub hypotheses: Vec<Found>,
}

/// A hypothesis, and where its trace is.
#[derive(Serialize)]
pub struct Found {
    pub leaf: usize,
    pub trace: u64,
    pub text: String,
    pub score: Option<f64>,
}

impl Asked {
    /// The tree of the search as the page gets it; `None` if there was no search.
    pub fn tree(&self) -> Option<Value> {
        let shown = |one: &Proposed| Proposed {
            text: name(&one.text),
            ..one.clone()
        };
        let proposals: Vec<_> = self.proposals.iter().map(shown).collect();
        let tree = json!({ "proposals": proposals, "hypotheses": self.hypotheses });
        (!proposals.is_empty()).then_some(tree)
    }

    /// The bytes of the weights that its heads were given.
    pub fn bytes(&self) -> usize {
        let changes = self.ablation.heads.iter();
        let given = changes.filter_map(|one| match &one.change {
            Change::Replace(given) => Some(given),
            _ => None,
        });
        let rows = given.flat_map(|given| (0..).map_while(move |query| given.row(query)));
        size_of::<f32>() * rows.map(<[f32]>::len).sum::<usize>()
    }
}

impl Entry {
    pub fn new(id: u64, name: String, asked: Option<Arc<Asked>>, trace: Trace) -> Self {
        Self {
            id,
            name,
            asked,
            pieces: Arc::new(trace),
            words: OnceLock::new(),
            overviews: Default::default(),
            turn: Default::default(),
            gradient_turn: Default::default(),
            gradients: OnceLock::new(),
            long: None,
            training: None,
        }
    }

    /// The entry of a long text.
    pub fn long(id: u64, name: String, trace: Arc<LongTrace>) -> Self {
        let about = Trace::new(trace.model(), trace.source(), "");
        Self {
            long: Some(Long::new(trace)),
            ..Self::new(id, name, None, about)
        }
    }

    /// The trace; with `words`, between words.
    pub fn trace(&self, words: bool) -> &Trace {
        match words {
            false => &self.pieces,
            true => self.words.get_or_init(|| match merges(&self.pieces) {
                true => Arc::new(self.pieces.merge_words()),
                false => self.pieces.clone(),
            }),
        }
    }

    /// The bytes of its weights, those between words and gradients included once they were asked for.
    pub fn bytes(&self) -> usize {
        let merged = self.words.get();
        let merged = merged.filter(|words| !Arc::ptr_eq(words, &self.pieces));
        let maps = [Some(&self.pieces), merged].into_iter().flatten();
        let maps = maps.flat_map(|trace| &trace.maps);
        let weights: usize = maps.map(|map| map.weights().len()).sum();
        let gradients = self.gradients.get().into_iter();
        let gradients = gradients.flat_map(|found| &found.maps);
        let products: usize = gradients.map(|map| map.products.len()).sum();
        size_of::<f32>() * (weights + products)
    }

    /// Every head of every map, small, with its diagnostics. Computed once.
    pub fn overview(&self, words: bool, pool: Pool) -> &[MapOverview] {
        if let Some(long) = &self.long {
            return long.overview();
        }
        let place = usize::from(words) + 2 * usize::from(pool == Pool::Max);
        self.overviews[place].get_or_init(|| {
            let maps = self.trace(words).maps.iter();
            maps.map(|map| MapOverview::of(map, pool)).collect()
        })
    }

    /// Whether words have several pieces.
    pub fn has_pieces(&self) -> bool {
        merges(&self.pieces)
    }

    /// What the list of traces says of it.
    pub fn summary(&self) -> Summary {
        let trace = &self.pieces;
        let axis = |axis: &Axis| match axis {
            Axis::Image { rows, columns, .. } if rows * columns > 0 => "cells",
            Axis::Regions { .. } => "boxes",
            _ => "tokens",
        };
        Summary {
            id: self.id,
            name: shown(&self.name, LABEL),
            asked: self.asked.is_some(),
            look: (self.asked.as_ref()).map(|asked| {
                let answer = asked.hypotheses.first();
                answer.map_or(self.id, |answer| answer.trace)
            }),
            again: (self.asked.as_ref()).and_then(|asked| Again::of(&asked.input)),
            changed: (self.asked.as_ref()).is_some_and(|asked| !asked.ablation.heads.is_empty()),
            searched: (self.asked.as_ref()).is_some_and(|asked| !asked.proposals.is_empty()),
            model: shown(&trace.model, LABEL),
            source: shown(&trace.source, 10 * LABEL),
            target: shown(&trace.target, 10 * LABEL),
            score: trace.score.filter(|score| score.is_finite()),
            rank: trace.rank,
            image: (trace.image.as_ref()).map(|image| [image.width(), image.height()]),
            pieces: self.has_pieces(),
            long: self.long.is_some(),
            training: self.training.is_some(),
            maps: match &self.long {
                Some(long) => long
                    .trace
                    .maps()
                    .iter()
                    .enumerate()
                    .map(|(index, map)| MapSummary::long(index, map, &long.trace))
                    .collect(),
                None => (trace.maps.iter())
                    .map(|map| MapSummary {
                        name: shown(map.name(), LABEL),
                        id: map.name().to_owned(),
                        kind: map.kind().name(),
                        layer: map.layer(),
                        heads: map.heads(),
                        queries: map.queries().len(),
                        keys: map.keys().len(),
                        over: axis(map.keys()),
                        normalized: map.is_normalized(),
                        numbers: (0..map.heads()).collect(),
                    })
                    .collect(),
            },
        }
    }
}

/// Whether a word of the trace has several pieces.
fn merges(trace: &Trace) -> bool {
    let several = |axis: &Axis| axis.tokens().is_some_and(|t| t.words().len() < t.len());
    (trace.maps.iter()).any(|map| several(map.queries()) || several(map.keys()))
}

/// A text that can be shown anywhere, at most `most` characters of it.
pub fn shown(text: &str, most: usize) -> String {
    if text.is_empty() {
        return String::new();
    }
    beginning(text, most)
}

/// A trace in the list.
#[derive(Serialize)]
pub struct Summary {
    id: u64,
    name: String,
    asked: bool,
    /// The number of its look's answer, which all hypotheses of a search have in common.
    look: Option<u64>,
    again: Option<Again>,
    /// Whether heads were changed.
    changed: bool,
    /// Whether there is a tree of the search.
    searched: bool,
    model: String,
    source: String,
    target: String,
    score: Option<f64>,
    rank: Option<usize>,
    /// Width and height.
    image: Option<[usize; 2]>,
    /// Whether words have several pieces.
    pieces: bool,
    /// Whether its maps are computed from queries and keys.
    long: bool,
    /// Whether it is the log of a training.
    training: bool,
    maps: Vec<MapSummary>,
}

/// What the page fills in to ask for a look of a text again.
#[derive(Serialize)]
struct Again {
    text: String,
    target: String,
    write: usize,
    temperature: f64,
    seed: u64,
}

impl Again {
    /// `None` of an image, which is not sent back, and of a text that is too long for a list.
    fn of(input: &Input) -> Option<Self> {
        let short = |text: &str| text.chars().nth(10 * LABEL).is_none();
        let sent = input.image.is_empty() && !input.text.is_empty();
        (sent && short(&input.text) && short(&input.target)).then(|| Self {
            text: input.text.clone(),
            target: input.target.clone(),
            write: input.continuation.tokens,
            temperature: input.continuation.temperature,
            seed: input.continuation.seed,
        })
    }
}

#[derive(Serialize)]
struct MapSummary {
    name: String,
    /// The name as the trace has it, for ablations.
    id: String,
    kind: &'static str,
    layer: usize,
    heads: usize,
    queries: usize,
    keys: usize,
    over: &'static str,
    normalized: bool,
    /// The numbers of its heads in the model, counted from 0.
    numbers: Vec<usize>,
}

impl MapSummary {
    fn long(index: usize, map: &LongMap, trace: &LongTrace) -> Self {
        let kind = map.kind().name();
        Self {
            name: kind.to_owned(),
            id: kind.to_owned(),
            kind,
            layer: map.layer(),
            heads: map.heads().len(),
            queries: trace.queries(index).len(),
            keys: trace.keys(index).len(),
            over: "tokens",
            normalized: true,
            numbers: map.heads().to_vec(),
        }
    }
}

/// How several weights become one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Pool {
    /// Their mean.
    #[default]
    Mean,
    /// The largest.
    Max,
}

/// The heads of a map in the overview.
#[derive(Serialize)]
pub struct MapOverview {
    pub heads: Vec<HeadOverview>,
}

/// One head: a small map, its role, its numbers.
#[derive(Default, Serialize)]
pub struct HeadOverview {
    pub role: &'static str,
    pub text: String,
    pub rows: usize,
    pub columns: usize,
    /// The largest value of the small map, for which `ff` stands.
    pub max: f32,
    /// The values, row-major, two hexadecimal digits each.
    pub small: String,
    pub entropy: Option<f64>,
    pub uniformity: Option<f64>,
    pub distance: Option<f64>,
    pub largest_weight: Option<f64>,
    pub effective_keys: Option<f64>,
    pub effective_span: Option<f64>,
    pub diagonality: Option<f64>,
    pub first_token: Option<f64>,
    pub previous_token: Option<f64>,
    pub duplicate_token: Option<f64>,
    pub coverage: Option<f64>,
}

impl MapOverview {
    pub fn of(map: &AttentionMap, pool: Pool) -> Self {
        let measured = heads(map);
        Self {
            heads: (measured.iter())
                .map(|head| HeadOverview::of(map, head, pool))
                .collect(),
        }
    }
}

impl HeadOverview {
    fn of(map: &AttentionMap, head: &HeadDiagnostics, pool: Pool) -> Self {
        let [_, queries, keys] = map.shape();
        let heads = Heads {
            chosen: vec![head.head],
            by: Pool::Mean,
        };
        let small = window(map, &heads, 0..queries, 0..keys, SMALL, pool);
        Self {
            role: report::Role::of(map, head).0.name(),
            text: shown(&report::describe(map, head), 2 * LABEL),
            entropy: head.entropy,
            uniformity: head.uniformity,
            distance: head.distance,
            largest_weight: head.largest_weight,
            effective_keys: head.effective_keys,
            effective_span: head.effective_span,
            diagonality: head.diagonality,
            first_token: head.first_token,
            previous_token: head.previous_token,
            duplicate_token: head.duplicate_token,
            coverage: head.coverage,
            ..Self::default().with_small(small.rows, small.columns, &small.values)
        }
    }

    /// Without numbers.
    pub fn named(name: &str, text: &str) -> Self {
        let text = match text {
            "" => name.to_owned(),
            text => format!("{name}: {text}"),
        };
        Self {
            text: shown(&text, 2 * LABEL),
            ..Self::default()
        }
    }

    /// With a small map, `values [rows, columns]`.
    pub fn with_small(self, rows: usize, columns: usize, values: &[f32]) -> Self {
        let max = values.iter().copied().fold(0.0, f32::max);
        let share = |value: &f32| match max > 0.0 {
            true => format!("{:02x}", (value / max * 255.0).round() as u8),
            false => "00".to_owned(),
        };
        Self {
            rows,
            columns,
            max,
            small: values.iter().map(share).collect(),
            ..self
        }
    }
}

/// The names of both axes of a map, and where their entries lie in an image.
#[derive(Serialize)]
pub struct Axes {
    names: [&'static str; 2],
    queries: Side,
    keys: Side,
    /// Whether both are the same sequence.
    same: bool,
}

#[derive(Serialize)]
struct Side {
    labels: Vec<String>,
    special: Vec<usize>,
    /// Tokens before the first cell, rows, columns.
    grid: Option<[usize; 3]>,
    /// First and end of the queries that a classifier's answer is read from.
    readout: Option<[usize; 2]>,
    /// x, y, width and height as shares of the image's.
    boxes: Option<Vec<[f32; 4]>>,
    /// The areas of the boxes' masks, as data of SVG paths in pixels of the image; empty for a box without one, or with one that is
    /// too ragged to be drawn.
    areas: Option<Vec<String>>,
}

/// The area of a region's mask.
fn area(region: &Region, image: &Image) -> String {
    let fits = |mask: &&Mask| [mask.height(), mask.width()] == [image.height(), image.width()];
    let outline = region.mask().filter(fits).and_then(Outline::of);
    let area = outline.map(|outline| outline.area(1.0, 1.0));
    area.filter(|area| area.len() <= MOST_AREA)
        .unwrap_or_default()
}

impl Axes {
    /// Those of a map of a long text.
    pub fn long(trace: &LongTrace, map: usize) -> Self {
        let side = |tokens: &Tokens| Side {
            special: vec![],
            labels: tokens.iter().map(|token| name(&token.text)).collect(),
            grid: None,
            readout: None,
            boxes: None,
            areas: None,
        };
        let (query, key) = trace.maps()[map].kind().axis_names();
        let (queries, keys) = (trace.queries(map), trace.keys(map));
        Self {
            names: [query, key],
            queries: side(queries),
            keys: side(keys),
            same: queries == keys,
        }
    }

    /// Those of a map of this trace.
    pub fn of(map: &AttentionMap, trace: &Trace) -> Self {
        let side = |axis: &Axis, labels: Vec<String>| Side {
            special: (0..axis.len()).filter(|&i| axis.is_special(i)).collect(),
            labels: labels.iter().map(|label| name(label)).collect(),
            grid: match axis {
                Axis::Image {
                    prefix,
                    rows,
                    columns,
                } if *rows > 0 && *columns > 0 => Some([prefix.len(), *rows, *columns]),
                _ => None,
            },
            readout: axis.readout().map(|read| [read.start, read.end]),
            boxes: match (axis, &trace.image) {
                (Axis::Regions { regions }, Some(image)) => {
                    let (width, height) = (image.width() as f32, image.height() as f32);
                    let boxes = regions.iter().map(|region| {
                        let b = region.bounds();
                        [
                            b.x / width,
                            b.y / height,
                            b.width / width,
                            b.height / height,
                        ]
                    });
                    Some(boxes.collect())
                }
                _ => None,
            },
            areas: match (axis, &trace.image) {
                (Axis::Regions { regions }, Some(image)) => {
                    Some(regions.iter().map(|region| area(region, image)).collect())
                }
                _ => None,
            },
        };
        let (queries, keys) = map.axis_names();
        Self {
            names: [queries, keys],
            queries: side(map.queries(), map.row_labels()),
            keys: side(map.keys(), map.keys().labels()),
            same: map.queries() == map.keys(),
        }
    }
}

/// A label as it is shown: never empty.
pub fn name(label: &str) -> String {
    match label {
        "" => visible(""),
        label => shown(label, LABEL),
    }
}

/// Heads of one map, and how they become one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Heads {
    pub chosen: Vec<usize>,
    pub by: Pool,
}

impl Heads {
    /// Heads from a list such as `0,3`; all of the map's if it is empty.
    ///
    /// # Errors
    /// A sentence, for what is no number and a head that the map does not have.
    pub fn parse(list: &str, by: Pool, map: &AttentionMap) -> Result<Self, String> {
        let chosen = match list {
            "" => (0..map.heads()).collect(),
            list => indices(list, map.heads(), "head")?,
        };
        Ok(Self { chosen, by })
    }

    /// The weights of one query, `[keys]`. As in [`AttentionMap::mean_heads`], a head that masked the whole row is left out of a mean.
    fn row(&self, map: &AttentionMap, query: usize, out: &mut [f32]) {
        if let [head] = self.chosen[..] {
            out.copy_from_slice(map.row(head, query));
            return;
        }
        out.fill(0.0);
        let mut count = 0.0f32;
        for &head in &self.chosen {
            let row = map.row(head, query);
            match self.by {
                Pool::Max => (out.iter_mut().zip(row)).for_each(|(o, &w)| *o = o.max(w)),
                Pool::Mean if map.is_normalized() && row.iter().all(|&w| w == 0.0) => {}
                Pool::Mean => {
                    count += 1.0;
                    (out.iter_mut().zip(row)).for_each(|(o, &w)| *o = (*o + w).min(f32::MAX));
                }
            }
        }
        if count > 0.0 {
            out.iter_mut().for_each(|o| *o /= count);
        }
    }
}

/// Indices from a list such as `0,3,4-7`, each once, in order.
///
/// # Errors
/// A sentence, for an empty part, for what is no number and for an index that is not below `length`.
pub fn indices(list: &str, length: usize, what: &str) -> Result<Vec<usize>, String> {
    let wrong = |part: &str| {
        format!(
            "{what} {part:?}: expected numbers from 0 to {}, such as 0,2-3",
            length.saturating_sub(1)
        )
    };
    if list.is_empty() {
        return Ok(vec![]);
    }
    let mut chosen = vec![];
    for part in list.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let number = |text: &str| text.parse::<usize>().ok().filter(|&n| n < length);
        let range = number(first).zip(number(last));
        let range = range.filter(|(first, last)| first <= last);
        let (first, last) = range.ok_or_else(|| wrong(part))?;
        chosen.extend(first..=last);
        if chosen.len() > 4 * length + 16 {
            return Err(format!("too many entries: name each {what} once"));
        }
    }
    chosen.sort_unstable();
    chosen.dedup();
    Ok(chosen)
}

/// A part of a map, `[rows, columns]`, pooled if it is large.
pub struct Window {
    pub rows: usize,
    pub columns: usize,
    pub values: Vec<f32>,
}

/// The weights of these queries and keys, in at most `side` rows and columns: cell `i` of `n` pools entries `i·length/n` to
/// `(i+1)·length/n`. The ranges must lie in the map.
pub fn window(
    map: &AttentionMap,
    heads: &Heads,
    queries: Range<usize>,
    keys: Range<usize>,
    side: usize,
    pool: Pool,
) -> Window {
    let (rows, columns) = (queries.len().min(side), keys.len().min(side));
    let mut values = Vec::with_capacity(rows * columns);
    let mut row = vec![0.0; map.keys().len()];
    let mut sums = vec![0.0f64; columns];
    let part = |index: usize, count: usize, range: &Range<usize>| {
        let of = range.len();
        range.start + index * of / count..range.start + (index + 1) * of / count
    };
    for r in 0..rows {
        sums.fill(0.0);
        let covered = part(r, rows, &queries);
        for query in covered.clone() {
            heads.row(map, query, &mut row);
            for (c, sum) in sums.iter_mut().enumerate() {
                let cells = row[part(c, columns, &keys)].iter().map(|&w| f64::from(w));
                match pool {
                    Pool::Max => *sum = cells.fold(*sum, f64::max),
                    Pool::Mean => *sum += cells.sum::<f64>(),
                }
            }
        }
        values.extend(sums.iter().enumerate().map(|(c, sum)| match pool {
            Pool::Max => *sum as f32,
            Pool::Mean => {
                let cells = covered.len() * part(c, columns, &keys).len();
                ((sum / cells as f64) as f32).min(f32::MAX)
            }
        }));
    }
    Window {
        rows,
        columns,
        values,
    }
}

/// In which direction weights are added up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Direction {
    /// What the chosen queries attend to: a value for each key.
    #[default]
    From,
    /// Who attends to the chosen keys: a value for each query.
    To,
}

/// The weights of the chosen entries, added up: `Σ_q α_qk`, `[keys]`, or `Σ_k α_qk`, `[queries]`.
pub fn sums(map: &AttentionMap, heads: &Heads, chosen: &[usize], direction: Direction) -> Vec<f32> {
    let [_, queries, keys] = map.shape();
    let mut row = vec![0.0; keys];
    let mut added = |query: usize| -> Vec<f32> {
        heads.row(map, query, &mut row);
        row.clone()
    };
    match direction {
        Direction::From => {
            let mut sums = vec![0.0f64; keys];
            for &query in chosen {
                (sums.iter_mut().zip(added(query))).for_each(|(sum, w)| *sum += f64::from(w));
            }
            sums.iter().map(|&sum| (sum as f32).min(f32::MAX)).collect()
        }
        Direction::To => (0..queries)
            .map(|query| {
                let row = added(query);
                let sum: f64 = chosen.iter().map(|&key| f64::from(row[key])).sum();
                (sum as f32).min(f32::MAX)
            })
            .collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use regard_trace::Kind;

    #[test]
    fn layers_that_are_followed_have_an_end() {
        for (most, length, layers) in [
            (FollowLimits::ROLLOUT, 512, 128),
            (FollowLimits::ROLLOUT, 256, 512),
            (FollowLimits::FLOW, 64, 24),
        ] {
            let axis = Axis::Positions { length };
            let weights = vec![0.5; length * length];
            let map = AttentionMap::unnormalized(Kind::Other, axis.clone(), axis, 1, weights);
            let map = map.unwrap();
            assert_eq!(most.expect(&vec![&map; layers]), Ok(()));
            let told = format!("at most {layers} layers of such a text are followed");
            let error = most.expect(&vec![&map; layers + 1]).unwrap_err();
            assert!(error.ends_with(&told), "{error}");
        }
    }
}
