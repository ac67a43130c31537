//! Positions: the numbers that they add, and which distances they make similar.

use burn::{module::Param, tensor::DType};

use super::{Lesson, Matrix, named, rows, short, tensor, zeros};
use crate::{
    Attention, AttentionOptions, Observe, Path,
    explain::{
        ExplainError, Quantity,
        modules::{device, products, vectors},
        table::number,
    },
    initialize::Initializer,
    mask::Mask,
    position::{
        Alibi, Positions, RelativeBuckets, RelativeBucketsConfig, RotaryConfig, Sinusoidal,
    },
    record::recorded,
    score::Score,
};

/// `0, 1, ..`: positions count from 0.
fn positions(count: usize) -> Vec<String> {
    (0..count).map(|position| position.to_string()).collect()
}

pub(super) fn sinusoidal(lesson: &mut Lesson) -> Result<(), ExplainError> {
    let [length, size, base] = ["length", "dimension", "base"].map(|name| lesson.number(name));
    let sinusoidal = Sinusoidal::with_base(size, base as f64)?;
    let table = rows(sinusoidal.table(0, length, &device(), DType::F64));
    let names = positions(length);
    let dimensions = (0..size / 2).flat_map(|i| [format!("sin {i}"), format!("cos {i}")]);
    let dimensions: Vec<String> = dimensions.collect();
    let formula = format!(
        "PE(p, 2i) = sin(p / {base}^{{2i/d}}), PE(p, 2i+1) = cos(p / {base}^{{2i/d}}), d = {size}"
    );
    lesson.step(
        Quantity::Matrix,
        "positions",
        formula,
        [&names, &dimensions],
        &table,
    );
    let similar = products(&table, &table);
    lesson.row();
    lesson.step(
        Quantity::Matrix,
        "similarity",
        "PE(p)ᵀ PE(p'), a sum of cosines of p - p'",
        [&names, &names],
        &similar,
    );
    lesson.remark(format!(
        "The first pair turns by 1 radian from position to position, the last by {}: fast and slow clocks.",
        number((base as f64).powf(-((size - 2) as f64) / size as f64))
    ));
    lesson.remark(format!(
        "A position is most like itself ({}); its neighbours follow ({}). Further away the fast pairs make ripples ({} at a distance of 3, \
         {} at 6), which the slow ones tell apart. Along a diagonal all are equal.",
        short(similar[0][0]),
        short(similar[0][1]),
        short(similar[0][3]),
        short(similar[0][6]),
    ));
    Ok(())
}

pub(super) fn rotary(lesson: &mut Lesson) -> Result<(), ExplainError> {
    let (length, base) = (lesson.number("length"), lesson.number("base"));
    let (query, key) = (vec![1.0, 0.5, 1.0, 0.0], vec![1.0, 1.0, 0.0, 0.5]);
    let config = RotaryConfig {
        base: base as f64,
        ..RotaryConfig::new(query.len())
    };
    let rotary = config.init()?;
    let rotation = rotary.rotation(0, length, &device(), DType::F64);
    let rotated = |vector: &[f64]| {
        let everywhere = vec![vector.to_vec(); length];
        rotation.apply(vectors(&everywhere)).map(rows)
    };
    let (queries, keys) = (rotated(&query)?, rotated(&key)?);
    let names = positions(length);
    let angles: Vec<Vec<f64>> = (0..length)
        .map(|p| rotary.frequencies().iter().map(|f| f * p as f64).collect())
        .collect();
    let pairs = named(&["pair 1", "pair 2"]);
    let formula = format!("p · {base}^{{-2i/d}} in radians; a pair is entry i and entry i + d/2");
    lesson.step(
        Quantity::Matrix,
        "angles",
        formula,
        [&names, &pairs],
        &angles,
    );
    lesson.matrix(
        "query at each position",
        "R_m q, q = (1, 0.5, 1, 0)",
        &names,
        &queries,
    );
    lesson.matrix(
        "key at each position",
        "R_n k, k = (1, 1, 0, 0.5)",
        &names,
        &keys,
    );
    let scores = products(&queries, &keys);
    lesson.row();
    lesson.step(
        Quantity::Scores,
        "scores",
        "(R_m q)ᵀ (R_n k), queries down and keys across",
        [&names, &names],
        &scores,
    );
    lesson.remark(format!(
        "The score depends on the distance n - m alone: it is {} wherever the key stands one after the query, and {} where it stands \
         one before. Lengths do not change, only directions.",
        short(scores[0][1]),
        short(scores[1][0])
    ));
    Ok(())
}

pub(super) fn alibi(lesson: &mut Lesson) -> Result<(), ExplainError> {
    let (length, heads) = (lesson.number("length"), lesson.number("heads"));
    let alibi = Alibi::new(heads)?;
    let alike = || zeros([1, heads, length, 2]);
    let call = AttentionOptions::new(Observe::Nothing)
        .path(Path::Plain)
        .mask(Mask::causal())
        .alibi(&alibi);
    let (read, record) = recorded(|| {
        Attention::new(Score::scaled_dot()).forward_with(alike(), alike(), alike(), call)
    });
    read?;
    let names = positions(length);
    let head_names: Vec<String> = (1..=heads).map(|head| format!("head {head}")).collect();
    let slopes: Matrix = alibi.slopes().iter().map(|&slope| vec![slope]).collect();
    lesson.step(
        Quantity::Vectors,
        "slopes",
        match heads.is_power_of_two() {
            true => format!("m_h = 2^{{-8h/{heads}}}"),
            false => format!(
                "m_h = 2^{{-8h/{0}}}, then every other slope of {1} heads",
                heads.next_power_of_two() / 2,
                heads.next_power_of_two()
            ),
        },
        [&head_names, &named(&["m"])],
        &slopes,
    );
    let (bias, weights) = (record.rows("bias"), record.rows("weights"));
    let mut shown = vec![0, 1, heads - 1];
    shown.retain(|&head| head < heads);
    shown.dedup();
    for head in shown {
        let part = |all: &Matrix| -> Vec<Vec<Option<f64>>> {
            let rows = all[head * length..][..length].iter().enumerate();
            rows.map(|(i, row)| {
                row.iter()
                    .enumerate()
                    .map(|(j, x)| (j <= i).then_some(*x))
                    .collect()
            })
            .collect()
        };
        let name = &head_names[head];
        lesson.row();
        let formula = format!("-m |i - j|, m = {}", number(alibi.slopes()[head]));
        lesson.partial(
            Quantity::Scores,
            format!("{name}: bias"),
            formula,
            [&names, &names],
            part(&bias),
        );
        let formula = "softmax, if all words are alike";
        lesson.partial(
            Quantity::Weights,
            format!("{name}: weights"),
            formula,
            [&names, &names],
            part(&weights),
        );
    }
    let last = match heads {
        1 => "a head looks at its neighbours most",
        _ => "the first head looks at its neighbours, the last one far back",
    };
    lesson.remark(format!(
        "All scores are 0 here, so that the weights show the positions alone: {last}."
    ));
    Ok(())
}

pub(super) fn relative_buckets(lesson: &mut Lesson) -> Result<(), ExplainError> {
    let [length, buckets, max_distance] =
        ["length", "buckets", "max-distance"].map(|name| lesson.number(name));
    let side = buckets / 2;
    let config = RelativeBucketsConfig {
        buckets,
        max_distance,
        bidirectional: true,
    };
    // Learned in training; given here: keys before the query count for more than those after it.
    let before = (0..side).map(|bucket| 1.5 - bucket as f64 / 2.0);
    let after = (1..side).map(|bucket| 1.0 - bucket as f64 / 2.0);
    let values: Vec<f64> = before.chain([0.0]).chain(after).collect();
    let mut table = RelativeBuckets::new(&config, 1, &mut Initializer::new(1, &device()))?;
    table.table = Param::from_tensor(tensor(values.clone(), [buckets, 1]));
    let bias = table.bias(&Positions::lower_right(length, length));
    let alike = || zeros([1, 1, length, 2]);
    let call = AttentionOptions::new(Observe::Nothing)
        .path(Path::Plain)
        .bias(bias.clone());
    let (read, record) = recorded(|| {
        Attention::new(Score::scaled_dot()).forward_with(alike(), alike(), alike(), call)
    });
    read?;
    let names = positions(length);
    let distances: Matrix = Positions::lower_right(length, length)
        .distances()
        .map(|distance| config.bucket(distance) as f64)
        .collect::<Vec<_>>()
        .chunks(length)
        .map(<[f64]>::to_vec)
        .collect();
    let of_buckets: Vec<String> = (0..buckets)
        .map(|bucket| format!("bucket {bucket}"))
        .collect();
    let table: Matrix = values.iter().map(|&value| vec![value]).collect();
    lesson.step(
        Quantity::Vectors,
        "table",
        "B, learned; given here",
        [&of_buckets, &named(&["B"])],
        &table,
    );
    let formula = format!(
        "bucket(j - i): narrow near the query, wider further away; {side} to {} after it",
        buckets - 1
    );
    lesson.step(
        Quantity::Matrix,
        "buckets",
        formula,
        [&names, &names],
        &distances,
    );
    lesson.step(
        Quantity::Scores,
        "bias",
        "B[bucket(j - i)]",
        [&names, &names],
        &rows(bias),
    );
    lesson.step(
        Quantity::Weights,
        "weights",
        "softmax, if all words are alike",
        [&names, &names],
        &record.rows("weights"),
    );
    lesson.remark(format!(
        "All distances of {} and more share the last bucket of their side, so any length is covered. Bucket {side} would be distance 0 on \
         the side of later keys, which bucket 0 stands for.",
        (1..).find(|&d| config.bucket(-d) == side - 1).unwrap_or(0)
    ));
    Ok(())
}
