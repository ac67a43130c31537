//! Which maps of a trace become panels.

use std::borrow::Cow;

use regard_trace::diagnose::{rollout, stacks};
use regard_trace::{AttentionMap, Axis, Image, Kind, Region, Trace};

use super::{ImageError, ImagePanel, ImagePicture, MOST_PANELS, number};
use crate::choice::{Choice, Pick};

/// What a picture of an image trace shows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ImageChoice {
    /// Which maps, of those over an image. Usual: the last layer, the mean of its heads.
    pub maps: Choice,
    /// Which queries, counted from 0. Usual: every word, box or position; of a model whose queries are cells those whose states its
    /// answer is read from ([`Axis::readout`]): the class token, or, if there is none, the mean over the cells.
    pub query: Pick<usize>,
    /// Instead of the weights of a layer those of all layers together ([`rollout()`]).
    pub rollout: bool,
}

/// A row of weights, and the parts of which its title is made.
struct Row<'a> {
    keys: &'a Axis,
    weights: Cow<'a, [f32]>,
    /// Query, name of the map, layer, head.
    parts: [String; 4],
    asks: Asks<'a>,
}

/// What a query is, beside its name.
enum Asks<'a> {
    Nothing,
    /// Row and column of a cell, and rows and columns of its grid.
    Cell([usize; 4]),
    Region(usize, &'a Region),
}

impl ImagePicture {
    /// The picture of a trace: its image, with the boxes that its queries found, then a panel for each chosen row of weights. The
    /// title of a panel says what differs between panels, that of the picture what they share.
    ///
    /// # Errors
    /// [`ImageError::NoImage`], [`ImageError::NoMap`], [`ImageError::Choice`], [`ImageError::Query`], [`ImageError::Stack`],
    /// [`ImageError::Panels`], [`ImageError::Mask`], and [`ImageError::Cells`] for a grid without cells.
    pub fn of(trace: &Trace, choice: &ImageChoice) -> Result<Self, ImageError> {
        let Some(image) = &trace.image else {
            return Err(ImageError::NoImage {
                model: trace.model.clone(),
            });
        };
        let over_image = only_over_image(trace);
        if over_image.maps.is_empty() {
            return Err(ImageError::NoMap {
                there: trace.maps.iter().map(|map| map.name().to_owned()).collect(),
            });
        }
        let maps = match choice.rollout {
            true => vec![rolled_out(&over_image, &choice.maps)?],
            false => chosen(&over_image, &choice.maps)?,
        };
        let mut rows = vec![];
        for (map, parts) in &maps {
            rows.extend(rows_of(map, parts, choice.query)?);
            if rows.len() >= MOST_PANELS {
                return Err(ImageError::Panels {
                    found: rows.len() + 1,
                    limit: MOST_PANELS,
                });
            }
        }
        let differs = |part: usize| {
            rows.iter()
                .any(|row| row.parts[part] != rows[0].parts[part])
        };
        let differing = [0, 1, 2, 3].map(differs);
        let title = |parts: &[String; 4], wanted: bool| {
            let parts = parts.iter().zip(differing);
            let parts = parts.filter(|(part, differs)| *differs == wanted && !part.is_empty());
            parts
                .map(|(part, _)| part.as_str())
                .collect::<Vec<_>>()
                .join(" · ")
        };
        // Where the other panels have titles, the first has one too.
        let name = if differing.contains(&true) {
            "image"
        } else {
            ""
        };
        let mut panels = vec![first(image, &rows)?.titled(name)];
        for row in &rows {
            panels.push(row.panel(image, title(&row.parts, true))?);
        }
        // The usual name of the only map says nothing.
        let usual = |map: &AttentionMap| map.name() == map.kind().name();
        let named =
            over_image.maps.len() > 1 || choice.rollout || !over_image.maps.iter().all(usual);
        let shared = rows.first().map(|row| match (named, row.parts.clone()) {
            (true, parts) => title(&parts, false),
            (false, [query, _, _, head]) => {
                title(&[query, String::new(), String::new(), head], false)
            }
        });
        let picture = Self::new(shared.unwrap_or_default(), panels)?;
        Ok(match maps.iter().any(|(map, _)| map.is_normalized()) {
            true => picture,
            false => picture.from_least(),
        })
    }
}

/// The image, with the boxes that the queries of the rows found.
fn first(image: &Image, rows: &[Row<'_>]) -> Result<ImagePanel, ImageError> {
    let mut panel = ImagePanel::new(image.clone());
    let mut seen = vec![];
    for row in rows {
        if let Asks::Region(index, region) = row.asks
            && !seen.contains(&index)
        {
            seen.push(index);
            panel = panel.regions(std::slice::from_ref(region), index)?;
        }
    }
    Ok(panel)
}

/// The trace with those of its maps whose keys are cells or boxes of an image.
fn only_over_image(trace: &Trace) -> Cow<'_, Trace> {
    let is_over_image =
        |map: &&AttentionMap| matches!(map.keys(), Axis::Image { .. } | Axis::Regions { .. });
    if trace.maps.iter().all(|map| is_over_image(&map)) {
        return Cow::Borrowed(trace);
    }
    Cow::Owned(Trace {
        maps: trace.maps.iter().filter(is_over_image).cloned().collect(),
        ..Trace::new(&trace.model, &trace.source, &trace.target)
    })
}

/// The chosen maps, of one head each, with the parts of their titles after that of the query.
type Chosen = (AttentionMap, [String; 3]);

fn chosen(trace: &Trace, choice: &Choice) -> Result<Vec<Chosen>, ImageError> {
    let chosen = choice.chosen(trace)?.into_iter();
    let maps = chosen.map(|chosen| {
        let map = match chosen.head {
            // The head was checked when it was chosen.
            Some(head) => chosen
                .map
                .head(head)
                .unwrap_or_else(|_| chosen.map.mean_heads()),
            None => chosen.map.mean_heads(),
        };
        let is_factors = !chosen.map.is_normalized();
        let parts = match (chosen.map.kind(), is_factors) {
            // Maps of no layer: their names say where they are. Factors of channels stand as heads.
            (Kind::Other, true) => {
                let channels = chosen.head_name().replace("head", "channel");
                [chosen.name(), String::new(), channels]
            }
            (Kind::Other, false) => [chosen.name(), String::new(), chosen.head_name()],
            _ => [chosen.name(), chosen.layer(), chosen.head_name()],
        };
        (map, parts)
    });
    Ok(maps.collect())
}

fn rolled_out(trace: &Trace, choice: &Choice) -> Result<Chosen, ImageError> {
    let stacks = stacks(trace);
    let wanted = stacks.iter().find(|(kind, _)| match choice.kind {
        Pick::One(wanted) => *kind == wanted,
        _ => true,
    });
    let layers = wanted.map_or(&[][..], |(_, layers)| layers);
    let map = rollout(layers)?;
    let parts = [
        format!("rollout of {} layers", layers.len()),
        String::new(),
        String::new(),
    ];
    Ok((map, parts))
}

fn rows_of<'a>(
    map: &'a AttentionMap,
    parts: &[String; 3],
    query: Pick<usize>,
) -> Result<Vec<Row<'a>>, ImageError> {
    let queries = map.queries();
    let row = |label: String, weights: Cow<'a, [f32]>, asks: Asks<'a>| {
        let [name, layer, head] = parts.clone();
        Row {
            keys: map.keys(),
            weights,
            parts: [label, name, layer, head],
            asks,
        }
    };
    let all = || 0..queries.len();
    let wanted = match (query, queries) {
        (Pick::Usual, Axis::Image { .. }) => match queries.readout() {
            Some(read) if read.len() > 1 => {
                let label = format!("mean of {} queries", read.len());
                let mean = map.mean_of_queries(read).into_iter();
                let mean = mean.map(|weight| weight as f32).collect();
                return Ok(vec![row(label, mean, Asks::Nothing)]);
            }
            read => read.unwrap_or_default(),
        },
        (Pick::Usual | Pick::All, _) => all(),
        (Pick::One(wanted), _) if wanted < queries.len() => wanted..wanted + 1,
        (Pick::One(wanted), _) => {
            return Err(ImageError::Query {
                map: map.name().to_owned(),
                wanted,
                last: queries.len().saturating_sub(1),
            });
        }
    };
    if wanted.len() >= MOST_PANELS {
        return Err(ImageError::Panels {
            found: wanted.len() + 1,
            limit: MOST_PANELS,
        });
    }
    let labels = map.row_labels();
    let rows = wanted.map(|query| {
        let asks = match queries {
            Axis::Image {
                prefix,
                rows,
                columns,
            } if query >= prefix.len() => {
                let cell = query - prefix.len();
                Asks::Cell([cell / columns, cell % columns, *rows, *columns])
            }
            Axis::Regions { regions } => Asks::Region(query, &regions[query]),
            _ => Asks::Nothing,
        };
        let label = match asks {
            Asks::Cell(_) => format!("query {}", labels[query]),
            _ => labels[query].clone(),
        };
        row(label, map.row(0, query).into(), asks)
    });
    Ok(rows.collect())
}

impl Row<'_> {
    fn panel(&self, image: &Image, title: String) -> Result<ImagePanel, ImageError> {
        let panel = ImagePanel::new(image.clone()).titled(title);
        let mut panel = match self.keys {
            Axis::Regions { regions } => panel.weighted(regions, &self.weights)?,
            Axis::Image {
                prefix,
                rows,
                columns,
            } => {
                let (before, cells) = self.weights.split_at(prefix.len().min(self.weights.len()));
                let mut panel = panel.map(*rows, *columns, cells)?;
                // What lies on a class token is nowhere in the image.
                for (token, &weight) in prefix.iter().zip(before) {
                    let on = format!("{} on {}", number(weight), token.text);
                    panel.note = format!("{}, {on}", panel.note);
                }
                panel
            }
            _ => panel,
        };
        panel = match self.asks {
            Asks::Cell([row, column, rows, columns]) => panel.query(row, column, rows, columns)?,
            Asks::Region(index, region) => {
                if let Some(score) = region.score() {
                    panel.note = format!("score {score:.2}, {}", panel.note);
                }
                panel.regions(std::slice::from_ref(region), index)?
            }
            Asks::Nothing => panel,
        };
        Ok(panel)
    }
}
