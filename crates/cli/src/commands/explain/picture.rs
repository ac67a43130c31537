//! The pictures of an example: arrows where vectors have two or three numbers, else its weights.

use std::path::Path;

use regard_nn::explain::{Example, Explanation, Scorer};
use regard_trace::{AttentionMap, Kind, Token, Tokens};
use regard_view::{
    Heatmap,
    png::{self, PngOptions},
    svg::{self, SvgOptions},
    vectors::{Arrow, Vectors},
};

use super::print::number;
use crate::{
    arguments::Explain,
    failure::{CommandError, Failure},
    output,
};

/// With more numbers below a picture nobody reads them.
const MOST_CAPTIONS: usize = 6;

/// Writes the pictures that were asked for.
///
/// # Errors
/// Weights that are no weights, a file that cannot be written.
pub fn write(
    options: &Explain,
    example: &Example,
    explanation: &Explanation,
) -> Result<(), Failure> {
    let Some(path) = options.svg.as_ref().or(options.png.as_ref()) else {
        return Ok(());
    };
    let picture = match arrows(example, explanation) {
        Some(picture) => picture,
        None => weights(example, explanation, path)?,
    };
    if let Some(path) = &options.svg {
        output::write_file(path, picture.as_bytes())?;
    }
    if let Some(path) = &options.png {
        let bytes = png::from_svg(&picture, &PngOptions::default())?;
        output::write_file(path, &bytes)?;
    }
    Ok(())
}

fn title(explanation: &Explanation) -> String {
    format!("{} ({})", explanation.mechanism, explanation.source)
}

fn names(given: &[String], letter: char, count: usize) -> Vec<String> {
    match given.is_empty() {
        true => (1..=count).map(|i| format!("{letter}{i}")).collect(),
        false => given.to_vec(),
    }
}

fn arrows(example: &Example, explanation: &Explanation) -> Option<String> {
    let arrow = |name: &str, vector: &[f64]| match *vector {
        [x, y] => Some(Arrow::flat(name, [x, y])),
        [x, y, z] => Some(Arrow::new(name, [x, y, z])),
        _ => None,
    };
    let (queries, keys) = (&example.queries, &example.keys);
    let query_names = names(&example.query_names, 'q', queries.len());
    let key_names = names(&example.key_names, 'k', keys.len());
    let one_set = queries == keys && query_names == key_names;
    let mut picture = Vectors::new(title(explanation));
    for (name, vector) in key_names.iter().zip(keys) {
        picture = picture.with(arrow(name, vector)?);
    }
    if !one_set {
        for (name, vector) in query_names.iter().zip(queries) {
            picture = picture.with(arrow(name, vector)?.emphasized());
        }
    }
    let mut captions = Vec::new();
    for (i, query) in query_names.iter().enumerate() {
        for (j, key) in key_names.iter().enumerate() {
            // Among themselves, a pair is said once and nobody with himself.
            if one_set && j <= i {
                continue;
            }
            let score = number(explanation.scores[i][j], 4);
            captions.push(match example.scorer {
                Scorer::Dot => format!("{query} · {key} = {score}"),
                _ => format!("score({query}, {key}) = {score}"),
            });
        }
    }
    if captions.len() <= MOST_CAPTIONS {
        for caption in captions {
            picture = picture.caption(caption);
        }
    }
    Some(picture.svg())
}

fn weights(example: &Example, explanation: &Explanation, path: &Path) -> Result<String, Failure> {
    let tokens = |names: Vec<String>| names.into_iter().map(Token::new).collect::<Tokens>();
    let (queries, keys) = (example.queries.len(), example.keys.len());
    let map = AttentionMap::unnormalized(
        Kind::Other,
        tokens(names(&example.query_names, 'q', queries)),
        tokens(names(&example.key_names, 'k', keys)),
        1,
        explanation
            .weights
            .iter()
            .flatten()
            .map(|&weight| weight as f32)
            .collect(),
    )
    .map_err(|error| CommandError::NothingToDraw {
        path: path.to_owned(),
        reason: error.to_string(),
    })?;
    let picture = Heatmap::from_map(&map).titled(title(explanation));
    Ok(svg::heatmap(&picture, &SvgOptions::default()))
}
