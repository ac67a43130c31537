//! Self-attention, several heads, cross-attention.

use super::{Lesson, Matrix, drawn, named, numbered, rows, sentence, sequence, side_by_side};
use crate::{
    AttentionOptions, Observe, Path,
    explain::{ExplainError, Quantity, table::number},
    heads::{MultiHeadConfig, Projection},
    record::{Record, recorded},
};

pub(super) fn self_attention(lesson: &mut Lesson) -> Result<(), ExplainError> {
    attend(lesson, of_size_two(MultiHeadConfig::new(4, 1)), None)
}

pub(super) fn multi_head(lesson: &mut Lesson) -> Result<(), ExplainError> {
    let config = of_size_two(MultiHeadConfig::new(4, lesson.number("heads")));
    attend(lesson, config, None)
}

/// Heads of size 2, however many there are.
fn of_size_two(config: MultiHeadConfig) -> MultiHeadConfig {
    MultiHeadConfig {
        head_size: Some(2),
        value_size: Some(2),
        ..config
    }
}

pub(super) fn grouped_query(lesson: &mut Lesson) -> Result<(), ExplainError> {
    let heads = lesson.number("heads");
    let config = of_size_two(MultiHeadConfig::grouped_query(4, heads, 1));
    attend(lesson, config, None)?;
    lesson.remark(match heads {
        1 => "With one head this is multi-head attention: nobody shares its keys and values.".to_owned(),
        2 => "Both heads read the same keys and values, so a cache of them takes half the memory; their queries differ.".to_owned(),
        _ => format!("All heads read the same keys and values, so a cache of them takes 1/{heads} of the memory; their queries differ."),
    });
    Ok(())
}

pub(super) fn cross_attention(lesson: &mut Lesson) -> Result<(), ExplainError> {
    let source = vec![
        vec![1.0, 0.0, 0.0, 1.0],
        vec![0.0, 1.0, 2.0, 0.0],
        vec![2.0, 0.0, 1.0, 1.0],
        vec![0.0, 1.0, 0.0, 0.0],
    ];
    let names = named(&["le", "chat", "dort", "."]);
    attend(lesson, MultiHeadConfig::new(4, 1), Some((names, source)))?;
    lesson.remark(
        "Queries come from X and keys and values from Y: the weights have a row for each word of X and a column for each of Y.",
    );
    Ok(())
}

/// The numbers of heads.
const SUPERSCRIPTS: [&str; 4] = ["¹", "²", "³", "⁴"];

/// The steps of a layer over the sentence, or over the sentence and a source.
fn attend(
    lesson: &mut Lesson,
    config: MultiHeadConfig,
    source: Option<(Vec<String>, Matrix)>,
) -> Result<(), ExplainError> {
    let is_plain = lesson.mechanism == "self-attention";
    let (queries, x) = sentence();
    let (keys, y) = source
        .clone()
        .unwrap_or_else(|| (queries.clone(), x.clone()));
    let of_keys = if source.is_some() { "Y" } else { "X" };
    let layer = drawn(1.0, |initializer| config.init(initializer))?;
    let options = AttentionOptions::new(Observe::Nothing).path(Path::Plain);
    let (read, record) = recorded(|| match &source {
        None => layer.forward(sequence(&x), options),
        Some((_, y)) => layer.forward_cross(sequence(&x), sequence(y), options),
    });
    let output = rows(read?.output);

    lesson.matrix("X", "as given, a row for each word", &queries, &x);
    if source.is_some() {
        lesson.matrix(
            "Y",
            "as given, a row for each word of the source",
            &keys,
            &y,
        );
    }
    let Projection::Separate(weights) = &layer.projection else {
        return Ok(());
    };
    let inputs = numbered("", x[0].len());
    for (name, linear) in [
        ("W_Q", &weights.query),
        ("W_K", &weights.key),
        ("W_V", &weights.value),
    ] {
        // Of one head the picture has room for the matrices.
        let quantity = if is_plain {
            Quantity::Matrix
        } else {
            Quantity::Vectors
        };
        let matrix = rows(linear.weight.val());
        let columns = numbered("", matrix[0].len());
        let formula = match layer.heads() {
            1 => "learned (here random)".to_owned(),
            _ => format!("learned; {} columns for each head", layer.head_size()),
        };
        lesson.step(quantity, name, formula, [&inputs, &columns], &matrix);
    }
    let (heads, group) = (layer.heads(), layer.heads() / layer.key_value_heads());
    for (head, superscript) in SUPERSCRIPTS.into_iter().enumerate().take(heads) {
        let part = |name: &str, rows: usize, head: usize| of_head(&record, name, rows, head);
        let (of_head, mark) = match heads {
            1 => (String::new(), ""),
            _ => (format!("head {}: ", head + 1), superscript),
        };
        let named = |name: &str| format!("{of_head}{name}");
        // The first of several heads has room beside X.
        if is_plain || head > 0 {
            lesson.row();
        }
        let of_queries = part("queries", queries.len(), head);
        lesson.matrix(
            named("queries"),
            format!("Q = X W_Q{mark}"),
            &queries,
            &of_queries,
        );
        if head.is_multiple_of(group) {
            let (mark, of_head) = match group {
                1 => (mark, of_head.as_str()),
                _ => ("", "all heads: "),
            };
            for (name, letter) in [("keys", "K"), ("values", "V")] {
                let formula = format!("{letter} = {of_keys} W_{letter}{mark}");
                lesson.matrix(
                    format!("{of_head}{name}"),
                    formula,
                    &keys,
                    &part(name, keys.len(), head / group),
                );
            }
        }
        lesson.row();
        let scores = part("scores", queries.len(), head);
        let formula = format!("S = Q Kᵀ / √{}", layer.head_size());
        lesson.step(
            Quantity::Scores,
            named("scores"),
            formula,
            [&queries, &keys],
            &scores,
        );
        let weights = part("weights", queries.len(), head);
        let formula = "A = softmax of each row of S";
        lesson.step(
            Quantity::Weights,
            named("weights"),
            formula,
            [&queries, &keys],
            &weights,
        );
        let contexts = part("context", queries.len(), head);
        lesson.matrix(named("contexts"), "A V", &queries, &contexts);
        let strongest = strongest(&queries, &keys, &weights);
        lesson.remark(match heads {
            1 => format!("Strongest weights: {strongest}."),
            _ => format!("Strongest weights of head {}: {strongest}.", head + 1),
        });
    }
    if is_plain {
        lesson.remark("Every row of weights sums to 1, and a context is the sum of the rows of V by these weights.");
        return Ok(());
    }
    if heads > 1 {
        lesson.row();
        let context = record.rows("context");
        let joined: Matrix = (0..queries.len())
            .map(|query| {
                (0..heads)
                    .flat_map(|head| context[head * queries.len() + query].clone())
                    .collect()
            })
            .collect();
        lesson.matrix(
            "concatenation",
            format!("{}: contexts side by side", side_by_side(heads)),
            &queries,
            &joined,
        );
    }
    let matrix = rows(layer.output.weight.val());
    let (from, to) = (numbered("", matrix.len()), numbered("", matrix[0].len()));
    lesson.step(Quantity::Vectors, "W_O", "learned", [&from, &to], &matrix);
    let formula = match heads {
        1 => "contexts W_O".to_owned(),
        _ => format!("{} W_O", side_by_side(heads)),
    };
    lesson.matrix("output", formula, &queries, &output);
    Ok(())
}

/// The rows of one head.
fn of_head(record: &Record, name: &str, rows: usize, head: usize) -> Matrix {
    let all = record.rows(name);
    all.into_iter().skip(head * rows).take(rows).collect()
}

/// `the → cat 0.52, cat → cat 0.93`
pub(super) fn strongest(queries: &[String], keys: &[String], weights: &Matrix) -> String {
    let of = |(query, row): (&String, &Vec<f64>)| {
        let best = row.iter().zip(keys).max_by(|a, b| a.0.total_cmp(b.0));
        best.map(|(weight, key)| {
            format!(
                "{query} → {key} {}",
                number((100.0 * weight).round() / 100.0)
            )
        })
    };
    let all: Vec<String> = queries.iter().zip(weights).filter_map(of).collect();
    all.join(", ")
}
