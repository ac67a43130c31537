//! Pretrained families against what the original library computes (`tests/golden/pretrained_golden.py`).

mod clip;
mod detr;
mod encoders;
mod images;
mod language_models;
mod scores;
mod sentence;
mod seq2seq;
mod trainable;

use std::{collections::BTreeMap, path::PathBuf};

use regard_kernels::{
    KernelError, dot,
    stack::{Observer, Positions, Seen},
};
use regard_models::pretrained::Folder;
use safetensors::{Dtype, SafeTensors};

/// The folder of a case.
fn folder(case: &str) -> PathBuf {
    let tests = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden/pretrained");
    tests.join(case)
}

/// The model's files of a case alone.
fn copied(case: &str) -> tempfile::TempDir {
    let copy = tempfile::tempdir().unwrap();
    for entry in std::fs::read_dir(folder(case)).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap();
        if path.is_file() && name != "golden.safetensors" {
            std::fs::copy(&path, copy.path().join(name)).unwrap();
        }
    }
    copy
}

fn open(case: &str) -> Folder {
    Folder::open(folder(case)).unwrap_or_else(|error| panic!("{case}: {error}"))
}

/// Arrays of a case, as numbers and as ids.
struct Golden {
    numbers: BTreeMap<String, (Vec<usize>, Vec<f32>)>,
    ids: BTreeMap<String, (Vec<usize>, Vec<i64>)>,
}

impl Golden {
    fn of(case: &str) -> Self {
        let bytes = std::fs::read(folder(case).join("golden.safetensors")).unwrap();
        let file = SafeTensors::deserialize(&bytes).unwrap();
        let mut golden = Self {
            numbers: BTreeMap::new(),
            ids: BTreeMap::new(),
        };
        for (name, view) in file.tensors() {
            let (shape, data) = (view.shape().to_vec(), view.data());
            match view.dtype() {
                Dtype::F32 => {
                    let numbers = data
                        .as_chunks::<4>()
                        .0
                        .iter()
                        .map(|&b| f32::from_le_bytes(b));
                    golden.numbers.insert(name, (shape, numbers.collect()));
                }
                _ => {
                    let ids = data
                        .as_chunks::<8>()
                        .0
                        .iter()
                        .map(|&b| i64::from_le_bytes(b));
                    golden.ids.insert(name, (shape, ids.collect()));
                }
            }
        }
        golden
    }

    /// The rows of a table of ids.
    fn rows(&self, name: &str) -> Vec<Vec<u32>> {
        let (shape, ids) = &self.ids[name];
        let width = shape[shape.len() - 1];
        ids.chunks(width)
            .map(|row| row.iter().map(|&id| id as u32).collect())
            .collect()
    }

    /// Row `row` of an array.
    fn row(&self, name: &str, row: usize) -> &[f32] {
        let (shape, numbers) = &self.numbers[name];
        let size = shape[1..].iter().product::<usize>();
        &numbers[row * size..][..size]
    }
}

/// `max |a - b| <= bound · max |b|`
#[track_caller]
fn close(what: &str, found: &[f32], golden: &[f32], bound: f32) {
    assert_eq!(found.len(), golden.len(), "{what}: length");
    let largest = golden.iter().fold(1e-3f32, |max, x| max.max(x.abs()));
    let difference = |(a, b): (&f32, &f32)| (a - b).abs();
    let worst = found
        .iter()
        .zip(golden)
        .map(difference)
        .fold(0.0f32, |max, x| max.max(x));
    assert!(
        worst <= bound * largest,
        "{what}: differs by {worst}, the largest is {largest}"
    );
}

/// The entries of `row` where the mask is 1: `width` numbers each.
fn real(row: &[f32], mask: &[u32], width: usize) -> Vec<f32> {
    let kept = row.chunks(width).zip(mask).filter(|(_, mask)| **mask == 1);
    kept.flat_map(|(numbers, _)| numbers).copied().collect()
}

/// Every weight of every layer, to the own text and to a source: for each `[heads, queries, keys]`, by row.
#[derive(Default)]
struct Weights(
    BTreeMap<(usize, usize), Vec<f32>>,
    BTreeMap<(usize, usize), Vec<f32>>,
);

impl Observer for Weights {
    fn wants(&self, _: usize, _: bool) -> bool {
        true
    }

    fn see(&mut self, seen: Seen<'_>) -> Result<(), KernelError> {
        let [_, heads, queries, _] = seen.query.shape;
        let keys = seen.key.shape[2];
        let mut weights = vec![0.0; heads * queries * keys];
        let all: Vec<usize> = (0..queries).collect();
        let observe = dot::Observe {
            rows: Some((&all, &mut weights)),
            ..Default::default()
        };
        dot::observe(&seen.attention, seen.query, seen.key, seen.lse, observe)?;
        let to = if seen.cross { &mut self.1 } else { &mut self.0 };
        // Global tokens are seen apart from the others.
        let of = |positions: Positions, count| (0..count).map(|i| positions.of(i) + 1).max();
        let width = of(seen.keys, keys).unwrap_or(0);
        let place = to.entry((seen.layer, seen.row));
        let all = place.or_insert_with(|| {
            let length = of(seen.queries, queries).unwrap_or(0);
            vec![0.0; heads * length * width]
        });
        let length = all.len() / (heads * width).max(1);
        for (row, weights) in weights.chunks_exact(keys).enumerate() {
            let query = row / queries * length + seen.queries.of(row % queries);
            for (key, weight) in weights.iter().enumerate() {
                all[query * width + seen.keys.of(key)] += weight;
            }
        }
        Ok(())
    }
}
