//! Scores by their definitions, in `f64`, with the steps that a person would write down.

use super::{
    Bump, Example, ExplainError, Quantity, Scorer, Step, map,
    table::{Names, Table, number},
};

type Matrix = Vec<Vec<f64>>;

/// Scores `[queries][keys]`; the steps on the way go to `steps`. The example has passed its checks.
pub(super) fn scores(
    example: &Example,
    names: &Names,
    steps: &mut Vec<Step>,
) -> Result<Matrix, ExplainError> {
    let parameters = &example.parameters;
    let (queries, keys) = (&example.queries, &example.keys);
    let size = queries[0].len();
    let scale = parameters
        .scale
        .unwrap_or_else(|| (size as f64).sqrt().recip());
    let by_key = |rows: &[Vec<f64>]| {
        Table::vectors("", names.keys.iter().cloned().zip(rows.iter().cloned()))
    };
    let mut push = |name: &str, formula: String, table: Table| {
        let quantity = match table.columns == names.keys {
            true => Quantity::Scores,
            false => Quantity::Vectors,
        };
        steps.push(Step::new(name, formula, table).of(quantity));
    };
    let scores = match example.scorer {
        Scorer::Dot => {
            let scores = dots(queries, keys);
            push("scores", "s_i = qᵀ k_i".to_owned(), names.pairs(&scores));
            scores
        }
        Scorer::ScaledDot => {
            let products = dots(queries, keys);
            push("scores", "s_i = qᵀ k_i".to_owned(), names.pairs(&products));
            let scaled = map(&products, |s| scale * s);
            let formula = match parameters.scale {
                None => format!("s_i ← s_i / √d, d = {size}"),
                Some(scale) => format!("s_i ← {} · s_i", number(scale)),
            };
            push("scaled scores", formula, names.pairs(&scaled));
            scaled
        }
        Scorer::General | Scorer::ScaledGeneral => {
            let projected = apply(parameters.query_weight.as_deref(), keys);
            push(
                "projected keys",
                format!("W k_i{}", identity("W", &parameters.query_weight)),
                by_key(&projected),
            );
            let products = dots(queries, &projected);
            push(
                "scores",
                "s_i = qᵀ (W k_i)".to_owned(),
                names.pairs(&products),
            );
            if example.scorer == Scorer::General {
                return Ok(products);
            }
            let gain = parameters.gain.unwrap_or(1.0);
            let scaled = map(&products, |s| gain * s);
            push(
                "scaled scores",
                format!("s_i ← g · s_i, g = {}", number(gain)),
                names.pairs(&scaled),
            );
            scaled
        }
        Scorer::Additive | Scorer::WeightNormAdditive => {
            let projected = apply(parameters.query_weight.as_deref(), queries);
            push(
                "projected queries",
                format!("W q{}", identity("W", &parameters.query_weight)),
                names.by_query("", &projected),
            );
            let keyed = apply(parameters.key_weight.as_deref(), keys);
            push(
                "projected keys",
                format!("U k_i{}", identity("U", &parameters.key_weight)),
                by_key(&keyed),
            );
            let hidden_size = projected[0].len();
            let bias = parameters
                .bias
                .clone()
                .unwrap_or_else(|| vec![0.0; hidden_size]);
            let vector = parameters
                .vector
                .clone()
                .unwrap_or_else(|| vec![1.0; hidden_size]);
            let hidden = |query: &[f64], key: &[f64]| -> Vec<f64> {
                let sums = query.iter().zip(key).zip(&bias);
                sums.map(|((q, k), b)| (q + k + b).tanh()).collect()
            };
            let rows = projected.iter().enumerate().flat_map(|(i, query)| {
                keyed
                    .iter()
                    .enumerate()
                    .map(move |(j, key)| (i, j, query, key))
            });
            let rows = rows.map(|(i, j, query, key)| (names.pair(i, j), hidden(query, key)));
            push(
                "hidden",
                "h_i = tanh(W q + U k_i + b)".to_owned(),
                Table::vectors("", rows),
            );
            let (vector, formula) = match example.scorer {
                Scorer::WeightNormAdditive => {
                    let (gain, length) =
                        (parameters.gain.unwrap_or(1.0), dot(&vector, &vector).sqrt());
                    let formula = format!(
                        "s_i = g v/‖v‖ · h_i, g = {}, ‖v‖ = {}",
                        number(gain),
                        number(length)
                    );
                    (vector.iter().map(|v| gain * v / length).collect(), formula)
                }
                _ => (vector, "s_i = vᵀ h_i".to_owned()),
            };
            let scores: Matrix = projected
                .iter()
                .map(|query| {
                    keyed
                        .iter()
                        .map(|key| dot(&vector, &hidden(query, key)))
                        .collect()
                })
                .collect();
            push("scores", formula, names.pairs(&scores));
            scores
        }
        Scorer::Cosine => {
            let beta = parameters.beta.unwrap_or(1.0);
            let products = dots(queries, keys);
            push("products", "qᵀ k_i".to_owned(), names.pairs(&products));
            let lengths = |rows: &Matrix| -> Vec<f64> {
                // Shorter vectors count as this long, so that 0 has a cosine of 0.
                rows.iter()
                    .map(|row| dot(row, row).sqrt().max(1e-8))
                    .collect()
            };
            let (of_queries, of_keys) = (lengths(queries), lengths(keys));
            push(
                "query lengths",
                "‖q‖".to_owned(),
                names.each_query("‖q‖", &of_queries),
            );
            let rows = names.keys.iter().cloned().zip(of_keys.iter().copied());
            push(
                "key lengths",
                "‖k_i‖".to_owned(),
                Table::column("‖k‖", rows),
            );
            let scores: Matrix = products
                .iter()
                .zip(&of_queries)
                .map(|(row, q)| {
                    row.iter()
                        .zip(&of_keys)
                        .map(|(s, k)| beta * s / (q * k))
                        .collect()
                })
                .collect();
            push(
                "scores",
                format!("s_i = β · qᵀ k_i / (‖q‖ ‖k_i‖), β = {}", number(beta)),
                names.pairs(&scores),
            );
            scores
        }
        Scorer::Distance => {
            let squares: Matrix = queries
                .iter()
                .map(|query| {
                    let square =
                        |key: &Vec<f64>| query.iter().zip(key).map(|(q, k)| (q - k).powi(2)).sum();
                    keys.iter().map(square).collect()
                })
                .collect();
            push(
                "squared distances",
                "‖q - k_i‖²".to_owned(),
                names.pairs(&squares),
            );
            let scores = map(&squares, |square| -scale * square);
            push(
                "scores",
                format!("s_i = -scale · ‖q - k_i‖², scale = {}", number(scale)),
                names.pairs(&scores),
            );
            scores
        }
        Scorer::Location => {
            let scores = apply(parameters.query_weight.as_deref(), queries);
            push(
                "scores",
                format!("s_i = (W q)_i{}", identity("W", &parameters.query_weight)),
                names.pairs(&scores),
            );
            scores
        }
        Scorer::GaussianWindow => gaussian_window(queries, keys.len(), names, &mut push),
    };
    Ok(scores)
}

/// Graves 2013: heights, sharpnesses and steps through an exponential, centres that add up; `[queries][components]`.
pub(super) fn bumps(queries: &Matrix) -> Vec<Vec<Bump>> {
    let components = queries[0].len() / 3;
    let mut centres = vec![0.0; components];
    let of = |query: &Vec<f64>| {
        let part = |index: usize, k: usize| query[index * components + k].exp();
        (0..components)
            .map(|k| {
                centres[k] += part(2, k);
                Bump {
                    height: part(0, k),
                    sharpness: part(1, k),
                    centre: centres[k],
                }
            })
            .collect()
    };
    queries.iter().map(of).collect()
}

fn gaussian_window(
    queries: &Matrix,
    keys: usize,
    names: &Names,
    push: &mut impl FnMut(&str, String, Table),
) -> Matrix {
    let bumps = bumps(queries);
    let part = |of: fn(&Bump) -> f64| -> Matrix {
        let rows = bumps.iter().map(|row| row.iter().map(of).collect());
        rows.collect()
    };
    let mut each = |name: &str, formula: &str, entry: &str, part: Matrix| {
        push(name, formula.to_owned(), names.by_query(entry, &part));
    };
    each("heights", "a = e^{â}", "a", part(|bump| bump.height));
    each("sharpnesses", "b = e^{b̂}", "b", part(|bump| bump.sharpness));
    each(
        "centres",
        "κ_t = κ_{t-1} + e^{κ̂}, starting from 0",
        "κ",
        part(|bump| bump.centre),
    );
    let window: Matrix = bumps
        .iter()
        .map(|row| {
            let at = |i: usize| row.iter().map(|bump| bump.at(i as f64)).sum();
            (0..keys).map(at).collect()
        })
        .collect();
    push(
        "window",
        "φ_i = Σ_m a_m exp(-b_m (κ_m - i)²), positions i counted from 0".to_owned(),
        names.pairs(&window),
    );
    window
}

/// local-p's `p_t = S · σ(v_pᵀ tanh(W_p q))` for each query.
pub(super) fn predict(example: &Example, names: &Names, steps: &mut Vec<Step>) -> Vec<f64> {
    let parameters = &example.parameters;
    let hidden = apply(parameters.position_weight.as_deref(), &example.queries);
    let ones = vec![1.0; hidden[0].len()];
    let vector = parameters.position_vector.as_ref().unwrap_or(&ones);
    let length = example.keys.len() as f64;
    let centres: Vec<f64> = hidden
        .iter()
        .map(|hidden| {
            let sum: f64 = hidden.iter().zip(vector).map(|(h, v)| h.tanh() * v).sum();
            length / (1.0 + (-sum).exp())
        })
        .collect();
    steps.push(Step::new(
        "predicted position",
        format!("p_t = S · σ(v_pᵀ tanh(W_p q)), S = {length} keys; positions count from 0"),
        names.each_query("p_t", &centres),
    ));
    centres
}

/// What stands for a matrix that is not given.
fn identity(name: &str, weight: &Option<Matrix>) -> String {
    match weight {
        None => format!(" ({name} = identity, as none is given)"),
        Some(_) => String::new(),
    }
}

/// `W x` for every vector; the vectors themselves without a matrix.
fn apply(weight: Option<&[Vec<f64>]>, vectors: &[Vec<f64>]) -> Matrix {
    match weight {
        None => vectors.to_vec(),
        Some(weight) => dots(vectors, weight),
    }
}

/// All products of one side with the other, `[rows][columns]`.
fn dots(rows: &[Vec<f64>], columns: &[Vec<f64>]) -> Matrix {
    rows.iter()
        .map(|row| columns.iter().map(|column| dot(row, column)).collect())
        .collect()
}

pub(super) fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}
