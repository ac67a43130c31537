//! Worked layers and algorithms: each step against its definition, computed again from the steps before it.

use std::collections::HashSet;

use regard_nn::explain::{
    Example, Explanation, Quantity, Step, catalogue, explain, masks, presets,
    topics::{self, Lesson},
};

use crate::Matrix;

fn lesson(name: &str) -> Lesson {
    let topic = topics::find(name).unwrap();
    topic
        .lesson()
        .unwrap_or_else(|error| panic!("{name}: {error}"))
}

/// The numbers of a step; 0 where there is none.
fn of(steps: &[Step], name: &str) -> Matrix {
    let step = steps.iter().find(|step| step.name == name);
    let step = step.unwrap_or_else(|| panic!("no step {name}"));
    let rows = step.table.rows.iter();
    rows.map(|row| row.cells.iter().map(|cell| cell.unwrap_or(0.0)).collect())
        .collect()
}

fn product(a: &Matrix, b: &Matrix) -> Matrix {
    let entry = |row: &Vec<f64>, column: usize| row.iter().zip(b).map(|(x, y)| x * y[column]).sum();
    let row = |row| (0..b[0].len()).map(|column| entry(row, column)).collect();
    a.iter().map(row).collect()
}

fn transposed(a: &Matrix) -> Matrix {
    (0..a[0].len())
        .map(|column| a.iter().map(|row| row[column]).collect())
        .collect()
}

fn softmax(rows: &Matrix) -> Matrix {
    let row = |row: &Vec<f64>| {
        let sum: f64 = row.iter().map(|x| x.exp()).sum();
        row.iter().map(|x| x.exp() / sum).collect()
    };
    rows.iter().map(row).collect()
}

fn both(a: &Matrix, b: &Matrix, of: impl Fn(f64, f64) -> f64) -> Matrix {
    let rows = a.iter().zip(b);
    rows.map(|(a, b)| a.iter().zip(b).map(|(&a, &b)| of(a, b)).collect())
        .collect()
}

fn each(a: &Matrix, of: impl Fn(f64) -> f64) -> Matrix {
    both(a, a, |x, _| of(x))
}

fn sigmoid(x: f64) -> f64 {
    (1.0 + (-x).exp()).recip()
}

fn near(found: &Matrix, expected: &Matrix, what: &str) {
    let shape = |rows: &Matrix| (rows.len(), rows[0].len());
    assert_eq!(shape(found), shape(expected), "{what}");
    for (a, b) in found.iter().flatten().zip(expected.iter().flatten()) {
        assert!(
            (a - b).abs() < 1e-12,
            "{what}: {found:?}, expected {expected:?}"
        );
    }
}

#[test]
fn every_topic_explains_itself() {
    let names = topics::names().chain(catalogue::names());
    let names = names.chain(presets::PRESETS.iter().map(|preset| preset.name));
    let mut known = HashSet::new();
    for name in names {
        assert!(known.insert(name), "{name} has two meanings");
    }
    for topic in &topics::TOPICS {
        let worked = lesson(topic.name);
        assert_eq!(worked, lesson(topic.name));
        assert_eq!(worked.mechanism, topic.name);
        assert!(
            worked
                .steps
                .iter()
                .any(|step| step.quantity.is_drawn() && step.begins_row)
        );
        assert!(!worked.remarks.is_empty(), "{}", topic.name);
        for Step {
            name,
            table,
            quantity,
            ..
        } in &worked.steps
        {
            for row in &table.rows {
                assert_eq!(
                    row.cells.len(),
                    table.columns.len(),
                    "{}: {name}",
                    topic.name
                );
                let mut cells = row.cells.iter().flatten();
                assert!(cells.all(|cell| cell.is_finite()), "{}: {name}", topic.name);
                let mut shares = row.cells.iter().flatten();
                let are_shares = shares.all(|share| (0.0..=1.0).contains(share));
                assert!(
                    *quantity != Quantity::Weights || are_shares,
                    "{}: {name}",
                    topic.name
                );
            }
        }
        for alias in topic.aliases {
            assert_eq!(topics::find(alias).unwrap().name, topic.name);
        }
    }
    for (synonym, name) in [
        ("soft-attention", "soft"),
        ("concat", "additive"),
        ("scaled", "scaled-dot"),
        ("local", "local-p"),
    ] {
        assert_eq!(catalogue::find(synonym).unwrap().name, name);
    }
    assert_eq!(topics::find("self").unwrap().name, "self-attention");
    let error = topics::find("flush").unwrap_err().to_string();
    assert_eq!(error, "there is no topic \"flush\"");
}

#[test]
fn heads_are_what_their_formulas_say() {
    let steps = lesson("self-attention").steps;
    let of = |name: &str| of(&steps, name);
    for (name, weight) in [("queries", "W_Q"), ("keys", "W_K"), ("values", "W_V")] {
        near(&of(name), &product(&of("X"), &of(weight)), name);
    }
    let scores = product(&of("queries"), &transposed(&of("keys")));
    near(&of("scores"), &each(&scores, |s| s / 2f64.sqrt()), "scores");
    near(&of("weights"), &softmax(&of("scores")), "weights");
    near(
        &of("contexts"),
        &product(&of("weights"), &of("values")),
        "contexts",
    );

    for (name, shared) in [("multi-head", false), ("grouped-query", true)] {
        let steps = lesson(name).steps;
        let of = |name: &str| crate::topics::of(&steps, name);
        let projected = product(&of("X"), &of("W_Q"));
        let mut joined = vec![Vec::new(); 3];
        for head in 0..2 {
            let part = |what: &str| match shared && what != "queries" {
                true => of(&format!("all heads: {what}")),
                false => of(&format!("head {}: {what}", head + 1)),
            };
            let columns = projected.iter().map(|row| row[2 * head..][..2].to_vec());
            near(&part("queries"), &columns.collect(), name);
            let scores = product(&part("queries"), &transposed(&part("keys")));
            let weights = softmax(&each(&scores, |s| s / 2f64.sqrt()));
            near(&of(&format!("head {}: weights", head + 1)), &weights, name);
            let contexts = product(&weights, &part("values"));
            for (row, context) in joined.iter_mut().zip(contexts) {
                row.extend(context);
            }
        }
        near(&of("concatenation"), &joined, name);
        near(&of("output"), &product(&joined, &of("W_O")), name);
    }

    let steps = lesson("cross").steps;
    let of = |name: &str| crate::topics::of(&steps, name);
    near(&of("queries"), &product(&of("X"), &of("W_Q")), "cross");
    near(&of("keys"), &product(&of("Y"), &of("W_K")), "cross");
    near(&of("values"), &product(&of("Y"), &of("W_V")), "cross");
    near(&of("weights"), &softmax(&of("scores")), "cross");
    assert_eq!((of("weights").len(), of("weights")[0].len()), (3, 4));
}

#[test]
fn decoders_read_what_their_formulas_say() {
    let steps = lesson("luong").steps;
    let of = |name: &str| of(&steps, name);
    let (states, query) = (of("source states"), of("decoder state"));
    near(
        &vec![of("scores")[0].clone()],
        &product(&query, &transposed(&states)),
        "dot",
    );
    near(&of("weights"), &softmax(&of("scores")), "luong");
    near(&of("contexts"), &product(&of("weights"), &states), "luong");

    let steps = lesson("rnnsearch").steps;
    let of = |name: &str| crate::topics::of(&steps, name);
    let (forwards, backwards) = (of("read forwards"), of("read backwards"));
    let joined = forwards
        .iter()
        .zip(&backwards)
        .map(|(f, b)| [f.as_slice(), b].concat());
    near(&of("annotations"), &joined.collect(), "bahdanau");
    near(&of("weights"), &softmax(&of("scores")), "bahdanau");
    near(
        &of("contexts"),
        &product(&of("weights"), &of("annotations")),
        "bahdanau",
    );
    // Two steps over three words.
    assert_eq!(of("hidden").len(), 6);

    let steps = lesson("lstmn").steps;
    let of = |name: &str| crate::topics::of(&steps, name);
    let weights = of("weights");
    for (t, row) in weights.iter().enumerate() {
        assert!(row[t..].iter().all(|&weight| weight == 0.0));
        let sum: f64 = row.iter().sum();
        assert!((sum - if t == 0 { 0.0 } else { 1.0 }).abs() < 1e-12);
    }
    near(
        &of("read hidden states"),
        &product(&weights, &of("new hidden states")),
        "h̃",
    );
    near(&of("read cells"), &product(&weights, &of("new cells")), "c̃");
}

#[test]
fn positions_make_the_similarity_that_they_claim() {
    let steps = lesson("sinusoidal").steps;
    let (table, similar) = (of(&steps, "positions"), of(&steps, "similarity"));
    for (p, row) in table.iter().enumerate() {
        for (i, pair) in row.chunks(2).enumerate() {
            let angle = p as f64 / 10000f64.powf(2.0 * i as f64 / row.len() as f64);
            near(
                &vec![pair.to_vec()],
                &vec![vec![angle.sin(), angle.cos()]],
                "sinusoidal",
            );
        }
    }
    near(
        &similar,
        &product(&table, &transposed(&table)),
        "similarity",
    );

    let scores = of(&lesson("rope").steps, "scores");
    for m in 1..scores.len() {
        near(
            &vec![scores[m][1..].to_vec()],
            &vec![scores[m - 1][..scores.len() - 1].to_vec()],
            "rotary",
        );
    }

    let steps = lesson("alibi").steps;
    for (head, slope) in [(1, 0.25), (2, 0.0625), (4, 0.003_906_25)] {
        let weights = of(&steps, &format!("head {head}: weights"));
        for (i, row) in of(&steps, &format!("head {head}: bias")).iter().enumerate() {
            let seen: Vec<f64> = (0..=i).map(|j| -slope * (i - j) as f64).collect();
            near(&vec![row[..=i].to_vec()], &vec![seen.clone()], "alibi");
            near(
                &vec![weights[i][..=i].to_vec()],
                &softmax(&vec![seen]),
                "alibi",
            );
        }
    }

    let steps = lesson("t5").steps;
    let (table, buckets) = (of(&steps, "table"), of(&steps, "buckets"));
    near(
        &of(&steps, "bias"),
        &each(&buckets, |bucket| table[bucket as usize][0]),
        "t5",
    );
    near(&of(&steps, "weights"), &softmax(&of(&steps, "bias")), "t5");
}

#[test]
fn flash_attention_ends_equal_to_the_plain_result() {
    let steps = lesson("flash").steps;
    let of = |name: &str| of(&steps, name);
    near(&of("output"), &of("plain attention"), "flash");
    let (scores, values) = (of("all scores"), of("values"));
    near(
        &of("output"),
        &product(&softmax(&scores), &values),
        "definition",
    );
    for tile in 1..=3 {
        for (row, running) in scores.iter().zip(of(&format!("tile {tile}: running"))) {
            let [_, maximum, sum, ..] = running[..] else {
                panic!("{running:?}");
            };
            let seen = &row[..2 * tile];
            assert_eq!(maximum, seen.iter().copied().fold(f64::MIN, f64::max));
            let expected: f64 = seen.iter().map(|s| (s - maximum).exp()).sum();
            assert!((sum - expected).abs() < 1e-12, "tile {tile}");
        }
    }
    let logs = of("log of the sum").concat();
    for (row, log) in scores.iter().zip(logs) {
        let sum: f64 = row.iter().map(|s| s.exp()).sum();
        assert!((log - sum.ln()).abs() < 1e-12);
    }
}

#[test]
fn gates_and_maps_are_what_their_formulas_say() {
    let steps = lesson("se").steps;
    let of = |name: &str| of(&steps, name);
    let maps = [of("map, channel 1"), of("map, channel 2")];
    let means = maps
        .each_ref()
        .map(|map| map.concat().iter().sum::<f64>() / 16.0);
    near(&of("squeeze"), &vec![means.to_vec()], "squeeze");
    near(&of("gate"), &each(&of("channel scores"), sigmoid), "gate");
    for (channel, map) in maps.iter().enumerate() {
        let gate = of("gate")[0][channel];
        let name = format!("output, channel {}", channel + 1);
        near(&of(&name), &each(map, |x| gate * x), &name);
    }

    let steps = lesson("cbam").steps;
    let of = |name: &str| crate::topics::of(&steps, name);
    let scores = of("channel scores");
    let sums = (0..2).map(|c| sigmoid(scores[0][c] + scores[1][c]));
    let gates: Vec<f64> = sums.collect();
    near(&of("channel gate"), &vec![gates.clone()], "cbam");
    let gated = [0, 1].map(|c| each(&maps[c], |x| gates[c] * x));
    near(
        &of("mean over channels"),
        &both(&gated[0], &gated[1], |a, b| (a + b) / 2.0),
        "cbam",
    );
    near(
        &of("maximum over channels"),
        &both(&gated[0], &gated[1], f64::max),
        "cbam",
    );
    near(
        &of("output, channel 1"),
        &both(&gated[0], &of("spatial gate"), |x, gate| x * gate),
        "cbam",
    );

    let steps = lesson("non-local").steps;
    let of = |name: &str| crate::topics::of(&steps, name);
    let weights = of("weights");
    near(&weights, &softmax(&of("scores")), "non-local");
    near(
        &vec![of("row 2,2 on the map").concat()],
        &vec![weights[5].clone()],
        "non-local",
    );
    for (channel, map) in maps.iter().enumerate() {
        let read = of(&format!("read, channel {}", channel + 1));
        let output = of(&format!("output, channel {}", channel + 1));
        near(&output, &both(map, &read, |x, y| x + y), "non-local");
    }

    let steps = lesson("residual-attention").steps;
    let of = |name: &str| crate::topics::of(&steps, name);
    for channel in 1..=2 {
        let part = |name: &str| of(&format!("{name}, channel {channel}"));
        near(&part("mask"), &each(&part("scores"), sigmoid), "mask");
        near(
            &part("output"),
            &both(&part("mask"), &part("trunk"), |m, t| (1.0 + m) * t),
            "H",
        );
    }
}

#[test]
fn patches_and_blocks_are_what_their_formulas_say() {
    let steps = lesson("vit").steps;
    let of = |name: &str| of(&steps, name);
    let image = of("image");
    let patches = of("patches");
    assert_eq!(
        patches[1],
        [image[0][2], image[0][3], image[1][2], image[1][3]]
    );
    // Two tokens differ as their patches do: the bias is the same.
    let tokens = of("tokens");
    let of_patches = product(&patches, &of("E"));
    let difference = |rows: &Matrix, a: usize, b: usize| {
        both(&vec![rows[a].clone()], &vec![rows[b].clone()], |a, b| a - b)
    };
    near(
        &difference(&tokens, 1, 3),
        &difference(&of_patches, 0, 2),
        "tokens",
    );
    near(
        &of("input"),
        &both(&tokens, &of("positions"), |t, p| t + p),
        "input",
    );
    near(
        &vec![of("class token").concat()],
        &vec![of("weights")[0][1..].to_vec()],
        "class",
    );

    let steps = lesson("transformer-block").steps;
    let of = |name: &str| crate::topics::of(&steps, name);
    near(
        &of("first sum"),
        &both(&of("x"), &of("attention"), |a, b| a + b),
        "first sum",
    );
    near(
        &of("output"),
        &both(&of("first sum"), &of("feed-forward"), |a, b| a + b),
        "output",
    );
    for (norm, of_what) in [("norm", "x"), ("second norm", "first sum")] {
        for (row, given) in of(norm).iter().zip(of(of_what)) {
            let mean = given.iter().sum::<f64>() / 4.0;
            let variance = given.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / 4.0;
            for (found, x) in row.iter().zip(given) {
                assert!(
                    (found - (x - mean) / variance.sqrt()).abs() < 1e-4,
                    "{norm}"
                );
            }
        }
    }
    assert!(of("hidden").concat().iter().all(|&x| x >= 0.0));
}

#[test]
fn costs_count_what_the_mask_shows() {
    let worked = |name: &str| explain(&Example::on_words(name).unwrap()).unwrap();
    let cost = |worked: &Explanation| of(&worked.steps, "cost");
    for (name, mask) in [
        ("causal", "causal"),
        ("sliding-window", "window:3 & causal"),
        ("longformer", "longformer:2:0"),
        ("block-sparse", "chunked:2:1 | global:0,1"),
    ] {
        let lengths = [if name == "causal" { 3 } else { 8 }, 128, 1024];
        for (row, length) in cost(&worked(name)).iter().zip(lengths) {
            let picture = masks::Expression::parse(mask)
                .unwrap()
                .picture(length, length);
            let pairs = picture.unwrap().matches('■').count() as f64;
            let share = 100.0 * pairs / (length * length) as f64;
            assert_eq!(row, &[pairs, share, 256.0 * pairs, 4.0 * pairs], "{name}");
        }
    }
    // A window of three and a causal mask: three keys, but fewer at the beginning.
    assert_eq!(cost(&worked("sliding-window"))[2][0], 3.0 * 1024.0 - 3.0);
    // With another mask these would be costs of something else.
    let mut other = Example::on_words("longformer").unwrap();
    other.mask = Some("causal".to_owned());
    assert!(
        explain(&other)
            .unwrap()
            .steps
            .iter()
            .all(|step| step.name != "cost")
    );
}

#[test]
fn every_setting_has_a_worked_example() {
    for topic in &topics::TOPICS {
        let usual = topic.lesson().unwrap();
        for setting in topic.settings {
            assert!(setting.values.contains(&setting.default), "{}", topic.name);
            let mut changes = false;
            for &value in setting.values {
                let lesson = topic.lesson_with(&[(setting.name, value)]).unwrap();
                let name = format!("{} {} {value}", topic.name, setting.name);
                changes |= lesson.steps != usual.steps;
                assert!(value != setting.default || lesson == usual, "{name}");
                let rows = lesson.steps.iter().flat_map(|step| &step.table.rows);
                let mut cells = rows.flat_map(|row| &row.cells).flatten();
                assert!(cells.all(|cell| cell.is_finite()), "{name}");
            }
            assert!(changes, "{} {}", topic.name, setting.name);
            for value in [0, 1_000_000_000, usize::MAX] {
                let error = topic
                    .lesson_with(&[(setting.name, value)])
                    .unwrap_err()
                    .to_string();
                assert!(error.contains(setting.name), "{error}");
            }
        }
        let error = topic.lesson_with(&[("colour", 1)]).unwrap_err().to_string();
        assert!(error.contains("`colour` is no parameter of"), "{error}");
    }
}
