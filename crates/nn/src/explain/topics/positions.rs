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
    const LENGTH: usize = 12;
    const SIZE: usize = 12;
    let table = rows(Sinusoidal::new(SIZE)?.table(0, LENGTH, &device(), DType::F64));
    let names = positions(LENGTH);
    let dimensions = (0..SIZE / 2).flat_map(|i| [format!("sin {i}"), format!("cos {i}")]);
    let dimensions: Vec<String> = dimensions.collect();
    let formula = format!(
        "PE(p, 2i) = sin(p / 10000^{{2i/d}}), PE(p, 2i+1) = cos(p / 10000^{{2i/d}}), d = {SIZE}"
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
        number(10000f64.powf(-((SIZE - 2) as f64) / SIZE as f64))
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
    const LENGTH: usize = 8;
    let (query, key) = (vec![1.0, 0.5, 1.0, 0.0], vec![1.0, 1.0, 0.0, 0.5]);
    let rotary = RotaryConfig::new(query.len()).init()?;
    let rotation = rotary.rotation(0, LENGTH, &device(), DType::F64);
    let rotated = |vector: &[f64]| {
        let everywhere = vec![vector.to_vec(); LENGTH];
        rotation.apply(vectors(&everywhere)).map(rows)
    };
    let (queries, keys) = (rotated(&query)?, rotated(&key)?);
    let names = positions(LENGTH);
    let angles: Vec<Vec<f64>> = (0..LENGTH)
        .map(|p| rotary.frequencies().iter().map(|f| f * p as f64).collect())
        .collect();
    let pairs = named(&["pair 1", "pair 2"]);
    let formula = "p · 10000^{-2i/d} in radians; a pair is entry i and entry i + d/2";
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
    const LENGTH: usize = 6;
    const HEADS: usize = 4;
    let alibi = Alibi::new(HEADS)?;
    let alike = || zeros([1, HEADS, LENGTH, 2]);
    let call = AttentionOptions::new(Observe::Nothing)
        .path(Path::Plain)
        .mask(Mask::causal())
        .alibi(&alibi);
    let (read, record) = recorded(|| {
        Attention::new(Score::scaled_dot()).forward_with(alike(), alike(), alike(), call)
    });
    read?;
    let names = positions(LENGTH);
    let heads: Vec<String> = (1..=HEADS).map(|head| format!("head {head}")).collect();
    let slopes: Matrix = alibi.slopes().iter().map(|&slope| vec![slope]).collect();
    lesson.step(
        Quantity::Vectors,
        "slopes",
        format!("m_h = 2^{{-8h/{HEADS}}}"),
        [&heads, &named(&["m"])],
        &slopes,
    );
    let (bias, weights) = (record.rows("bias"), record.rows("weights"));
    for head in [0, 1, HEADS - 1] {
        let part = |all: &Matrix| -> Vec<Vec<Option<f64>>> {
            let rows = all[head * LENGTH..][..LENGTH].iter().enumerate();
            rows.map(|(i, row)| {
                row.iter()
                    .enumerate()
                    .map(|(j, x)| (j <= i).then_some(*x))
                    .collect()
            })
            .collect()
        };
        let name = &heads[head];
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
    lesson.remark("All scores are 0 here, so that the weights show the positions alone: the first head looks at its neighbours, the last one far back.");
    Ok(())
}

pub(super) fn relative_buckets(lesson: &mut Lesson) -> Result<(), ExplainError> {
    const LENGTH: usize = 8;
    let config = RelativeBucketsConfig {
        buckets: 8,
        max_distance: 16,
        bidirectional: true,
    };
    // Learned in training; given here: keys before the query count for more than those after it.
    let values = vec![1.5, 1.0, 0.5, 0.0, 0.0, 0.5, 0.0, -0.5];
    let mut buckets = RelativeBuckets::new(&config, 1, &mut Initializer::new(1, &device()))?;
    buckets.table = Param::from_tensor(tensor(values.clone(), [config.buckets, 1]));
    let bias = buckets.bias(&Positions::lower_right(LENGTH, LENGTH));
    let alike = || zeros([1, 1, LENGTH, 2]);
    let call = AttentionOptions::new(Observe::Nothing)
        .path(Path::Plain)
        .bias(bias.clone());
    let (read, record) = recorded(|| {
        Attention::new(Score::scaled_dot()).forward_with(alike(), alike(), alike(), call)
    });
    read?;
    let names = positions(LENGTH);
    let distances: Matrix = Positions::lower_right(LENGTH, LENGTH)
        .distances()
        .map(|distance| config.bucket(distance) as f64)
        .collect::<Vec<_>>()
        .chunks(LENGTH)
        .map(<[f64]>::to_vec)
        .collect();
    let of_buckets: Vec<String> = (0..config.buckets)
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
    let formula = "bucket(j - i): narrow near the query, wider further away; 4 to 7 after it";
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
        "All distances of {} and more share the last bucket of their side, so any length is covered. Bucket 4 would be distance 0 on the side \
         of later keys, which bucket 0 stands for.",
        (1..).find(|&d| config.bucket(-d) == config.buckets / 2 - 1).unwrap_or(0)
    ));
    Ok(())
}
