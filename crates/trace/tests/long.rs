//! Traces of long texts.

use regard_kernels::{Attention, Window, pool::Kind};
use regard_trace::{LongMap, LongTrace, LongWriter, Opened, Tokens, TraceError, long::Piece, open};

const LENGTH: usize = 60;
const DIM: usize = 8;

/// Numbers from -2 to 2, the same each time.
fn numbers(seed: u64, count: usize) -> Vec<f32> {
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(97);
        ((state >> 40) as f32 / (1u64 << 24) as f32 - 0.5) * 4.0
    };
    (0..count).map(|_| next()).collect()
}

fn attention() -> Attention<'static> {
    Attention {
        causal: true,
        window: Some(Window {
            left: Some(40),
            right: None,
        }),
        softcap: Some(5.0),
        scale: Some(0.7),
        ..Attention::default()
    }
}

fn from<'a>(first: usize, query: &'a [f32], key: &'a [f32]) -> Piece<'a> {
    Piece {
        first,
        query,
        keys_from: 0,
        key,
    }
}

/// Two maps; two heads of the second share keys. Written in two pieces.
fn written(path: &std::path::Path) -> (Vec<f32>, Vec<f32>) {
    let tokens = Tokens::from_words(&"w ".repeat(LENGTH));
    let maps = vec![
        LongMap::new(2, vec![5], vec![0], DIM),
        LongMap::new(3, vec![1, 2], vec![0, 0], DIM),
    ];
    let mut writer = LongWriter::create(path, "model", "book.txt", tokens, maps).unwrap();
    let (query, key) = (numbers(1, LENGTH * DIM), numbers(2, LENGTH * DIM));
    for (map, head) in [(0, 0), (1, 0), (1, 1)] {
        for piece in [0..25, 25..LENGTH] {
            let part = &query[piece.start * DIM..piece.end * DIM];
            let keys = &key[..piece.end * DIM];
            writer
                .piece(map, head, &attention(), from(piece.start, part, keys))
                .unwrap();
        }
    }
    assert!(!path.exists(), "nothing has the name before it is whole");
    writer.finish().unwrap();
    (query, key)
}

fn long(path: &std::path::Path) -> LongTrace {
    match open(path).unwrap() {
        Opened::Long(long) => long,
        Opened::Traces(_) => panic!("not long"),
    }
}

#[test]
fn weights_are_those_of_the_definition() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("long.safetensors");
    let (query, key) = written(&path);
    let half = |x: f32| f64::from(half::f16::from_f32(x).to_f32());
    let mut expected = vec![0.0f64; LENGTH * LENGTH];
    for i in 0..LENGTH {
        let row = &mut expected[i * LENGTH..][..LENGTH];
        for j in i.saturating_sub(40)..=i {
            let dot: f64 = (0..DIM)
                .map(|c| half(query[i * DIM + c]) * half(key[j * DIM + c]))
                .sum();
            row[j] = (5.0 * (dot * 0.7 / 5.0).tanh()).exp();
        }
        let sum: f64 = row.iter().sum();
        row.iter_mut().for_each(|w| *w /= sum);
    }
    let trace = long(&path);
    assert_eq!((trace.model(), trace.source()), ("model", "book.txt"));
    assert_eq!(trace.maps()[1].heads(), [1, 2]);
    assert_eq!(trace.maps()[0].layer(), 2);
    assert!(trace.maps()[0].is_causal());
    for (map, head) in [(0, 0), (1, 0), (1, 1)] {
        let head = trace.head(map, head).unwrap();
        let all: Vec<usize> = (0..LENGTH).collect();
        for (weight, expected) in head.rows(&all).unwrap().iter().zip(&expected) {
            assert!((f64::from(*weight) - expected).abs() < 1e-5);
        }
        let cells = head.pooled(10..50, 20..60, 8, 5, Kind::Max).unwrap();
        for (place, cell) in cells.iter().enumerate() {
            let (row, column) = (10 + place / 5 * 5, 20 + place % 5 * 8);
            let largest = (row..row + 5)
                .flat_map(|i| (column..column + 8).map(move |j| i * LENGTH + j))
                .map(|at| expected[at])
                .fold(0.0, f64::max);
            assert!((f64::from(*cell) - largest).abs() < 1e-5);
        }
    }
}

#[test]
fn long_and_short_files_are_told_apart() {
    let folder = tempfile::tempdir().unwrap();
    let (long, short) = (folder.path().join("long"), folder.path().join("short"));
    written(&long);
    let error = regard_trace::read(&long).unwrap_err().to_string();
    assert!(error.contains("long text"), "{error}");
    regard_trace::write(&short, &[]).unwrap();
    assert!(matches!(open(&short).unwrap(), Opened::Traces(traces) if traces.is_empty()));
    let error = open(folder.path().join("none")).unwrap_err();
    assert!(matches!(error, TraceError::Io { .. }));
}

#[test]
fn what_cannot_be_kept_is_refused_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("long");
    let tokens = || Tokens::from_words("a b c");
    let create = |map| LongWriter::create(&path, "m", "s", tokens(), vec![map]);
    for map in [
        LongMap::new(0, vec![], vec![], 4),
        LongMap::new(0, vec![0], vec![0, 0], 4),
        LongMap::new(0, vec![0], vec![usize::MAX], 4),
        LongMap::new(0, vec![0], vec![0], 0),
        LongMap::new(0, vec![0], vec![0], 257),
    ] {
        assert!(matches!(create(map), Err(TraceError::Description { .. })));
    }
    let mut writer = create(LongMap::new(4, vec![7], vec![0], 1)).unwrap();
    let slopes = [0.5];
    let alibi = Attention {
        alibi: Some(&slopes),
        ..Attention::default()
    };
    let ones = [1.0; 3];
    let piece = from(0, &ones, &ones);
    let error = writer.piece(0, 0, &alibi, piece).unwrap_err().to_string();
    assert!(
        error.contains("layer 4") && error.contains("ALiBi"),
        "{error}"
    );
    let plain = Attention::default();
    let large = [1e5, 0.0, 0.0];
    let error = writer
        .piece(0, 0, &plain, from(0, &large, &large))
        .unwrap_err();
    assert!(error.to_string().contains("half precision"), "{error}");
    let error = writer.piece(0, 0, &plain, from(2, &[0.0; 2], &[0.0; 3]));
    assert!(error.unwrap_err().to_string().contains("3 tokens"));
    writer
        .piece(0, 0, &plain, from(0, &[0.5; 2], &[0.5; 3]))
        .unwrap();
    let error = writer.finish().unwrap_err().to_string();
    assert!(error.contains("2 of 3 queries"), "{error}");
}

#[test]
fn damaged_files_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("long");
    written(&path);
    let bytes = std::fs::read(&path).unwrap();
    let reopened = |bytes: &[u8]| {
        std::fs::write(&path, bytes).unwrap();
        match open(&path)? {
            Opened::Long(long) => long.head(0, 0).map(|_| ()),
            Opened::Traces(_) => Ok(()),
        }
    };
    assert!(reopened(&bytes[..bytes.len() - 1]).is_err());
    // The numbers of the first head begin behind the header.
    let length = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let mut nan = bytes.clone();
    nan[8 + length..][..2].copy_from_slice(&half::f16::NAN.to_le_bytes());
    let error = reopened(&nan).unwrap_err().to_string();
    assert!(error.contains("layer 2, head 5"), "{error}");
    let mut zero = bytes.clone();
    zero[8 + length..][..2 * LENGTH * DIM].fill(0);
    let error = reopened(&zero).unwrap_err().to_string();
    assert!(error.contains("sum to"), "{error}");
    // Anywhere else: an error or a trace, no panic.
    let mut state = 3u64;
    for _ in 0..1_000 {
        let mut mutated = bytes.clone();
        for _ in 0..3 {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(97);
            let at = (state >> 33) as usize % (8 + length + 64);
            mutated[at] = (state >> 25) as u8;
        }
        let _ = reopened(&mutated);
    }
}
