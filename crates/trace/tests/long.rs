//! Traces of long texts.

use std::sync::Mutex;

use regard_kernels::stack::{Observer, Positions, Seen};
use regard_kernels::{Attention, Documents, RelativeBias, View, Window, pool};
use regard_trace::long::{Piece, Texts, Watch};
use regard_trace::{
    Kind, LongHead, LongMap, LongTrace, LongWriter, Opened, Tokens, TraceError, open, open_bytes,
};

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
        let cells = head.pooled(10..50, 20..60, 8, 5, pool::Kind::Max).unwrap();
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
fn bytes_are_opened_as_files_are() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("long");
    written(&path);
    let bytes = std::fs::read(&path).unwrap();
    let there = long(&path);
    let Opened::Long(here) = open_bytes("long", bytes.clone()).unwrap() else {
        panic!("not long")
    };
    assert_eq!(here.maps(), there.maps());
    for (map, head) in [(0, 0), (1, 1)] {
        let all: Vec<usize> = (0..LENGTH).collect();
        let [here, there] = [&here, &there].map(|trace| trace.head(map, head).unwrap());
        assert_eq!(here.rows(&all).unwrap(), there.rows(&all).unwrap());
    }
    // Of every length but the whole, an error with the name.
    for length in (0..bytes.len()).step_by(101) {
        let error = open_bytes("the book", bytes[..length].to_vec()).unwrap_err();
        assert!(error.to_string().contains("the book"), "{error}");
    }
    let short = regard_trace::to_bytes(&[]).unwrap();
    assert!(matches!(open_bytes("", short).unwrap(), Opened::Traces(traces) if traces.is_empty()));
}

/// Bytes that are not as they were written, digits of the header most of all: an error or another trace, never a panic.
#[test]
fn mutated_bytes_are_opened_or_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("long");
    written(&path);
    let bytes = std::fs::read(&path).unwrap();
    let header = 8 + u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let digits: Vec<usize> = (8..header)
        .filter(|&at| bytes[at].is_ascii_digit())
        .collect();
    let mut state = 7u64;
    let mut below = |count: usize| {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(97);
        (state >> 33) as usize % count
    };
    let (mut opened, mut refused) = (0, 0);
    for round in 0..2000 {
        let mut bytes = bytes.clone();
        for _ in 0..=below(3) {
            let (at, to) = match round % 3 {
                0 => (below(bytes.len()), below(256) as u8),
                1 => (below(header), below(256) as u8),
                _ => (digits[below(digits.len())], b'0' + below(10) as u8),
            };
            bytes[at] = to;
        }
        let Ok(Opened::Long(trace)) = open_bytes("it", bytes) else {
            refused += 1;
            continue;
        };
        opened += 1;
        for (map, about) in trace.maps().iter().enumerate() {
            for head in 0..about.heads().len() {
                let Ok(head) = trace.head(map, head) else {
                    continue;
                };
                let [queries, keys] = head.shape();
                head.rows(&[0, queries - 1]).unwrap();
                let kind = pool::Kind::Mean;
                head.pooled(0..queries, 0..keys, 1, 1, kind).unwrap();
            }
        }
    }
    assert!(opened > 100 && refused > 100, "{opened} {refused}");
}

/// The file would take the place of a device, and the device would be gone.
#[test]
fn only_a_file_is_replaced() {
    let folder = tempfile::tempdir().unwrap();
    let refuse = |path: &std::path::Path| {
        let map = LongMap::new(0, vec![0], vec![0], 4);
        let error = LongWriter::create(path, "m", "s", Tokens::from_words("a"), vec![map]);
        let error = error.unwrap_err();
        assert!(matches!(error, TraceError::NoFile { .. }), "{error}");
        assert!(error.to_string().contains("give the name of a file"));
        assert!(std::fs::metadata(path).is_ok_and(|there| !there.is_file()));
    };
    let inner = folder.path().join("folder");
    std::fs::create_dir(&inner).unwrap();
    refuse(&inner);
    #[cfg(unix)]
    {
        let [socket, link] = ["socket", "link"].map(|name| folder.path().join(name));
        let _listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
        std::os::unix::fs::symlink(&socket, &link).unwrap();
        refuse(&socket);
        refuse(&link);
    }
    let file = folder.path().join("file");
    std::fs::write(&file, "before").unwrap();
    written_over(&file);
}

/// A file may be replaced.
fn written_over(path: &std::path::Path) {
    let map = LongMap::new(0, vec![0], vec![0], 1);
    let tokens = Tokens::from_words("a");
    let mut writer = LongWriter::create(path, "m", "s", tokens, vec![map]).unwrap();
    let piece = from(0, &[1.0], &[1.0]);
    writer.piece(0, 0, &Attention::default(), piece).unwrap();
    writer.finish().unwrap();
    assert_eq!(long(path).maps().len(), 1);
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
        LongMap::new(u32::MAX as usize, vec![0], vec![0], 4),
        LongMap::new(0, vec![u32::MAX as usize], vec![0], 4),
        LongMap::new(0, vec![0], vec![0], 4).between(Kind::Cross, [1, 0]),
    ] {
        assert!(matches!(create(map), Err(TraceError::Description { .. })));
    }
    // A quotation mark takes four bytes of the header, which may have 100 million.
    let source = "\"".repeat(26_000_000);
    let map = LongMap::new(0, vec![0], vec![0], 4);
    let error = LongWriter::create(&path, "m", source, tokens(), vec![map]).unwrap_err();
    assert!(matches!(error, TraceError::TooLong { .. }), "{error}");
    let mut writer = create(LongMap::new(4, vec![7], vec![0], 1)).unwrap();
    let sinks = [0.5];
    let sink = Attention {
        sink: Some(&sinks),
        ..Attention::default()
    };
    let ones = [1.0; 3];
    let piece = from(0, &ones, &ones);
    let error = writer.piece(0, 0, &sink, piece).unwrap_err().to_string();
    assert!(
        error.contains("layer 4") && error.contains("sinks"),
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

fn expect_refused(
    writer: &mut LongWriter,
    index: usize,
    attention: &Attention,
    piece: Piece,
    told: &str,
) {
    let error = writer.piece(0, index, attention, piece).unwrap_err();
    assert!(matches!(error, TraceError::LongHead { .. }), "{error}");
    assert!(error.to_string().contains(told), "{error}");
}

/// A file whose pieces leave gaps, or follow from other options, could not be read.
#[test]
fn pieces_follow_each_other() {
    let folder = tempfile::tempdir().unwrap();
    let tokens = Tokens::from_words("a b c d");
    let maps = vec![LongMap::new(4, vec![7, 8], vec![0, 1], 1)];
    let mut writer =
        LongWriter::create(folder.path().join("long"), "m", "s", tokens, maps).unwrap();
    let plain = Attention::default();
    let halves = [0.5; 4];
    let late = from(2, &halves[..2], &halves);
    expect_refused(&mut writer, 0, &plain, late, "position 2, expected 0");
    let beyond = from(usize::MAX, &halves[..2], &halves);
    expect_refused(&mut writer, 0, &plain, beyond, "4 tokens");
    writer
        .piece(0, 0, &plain, from(0, &halves[..2], &halves))
        .unwrap();
    let causal = Attention {
        causal: true,
        ..plain
    };
    let again = from(0, &halves[..2], &halves);
    expect_refused(&mut writer, 0, &plain, again, "position 0, expected 2");
    expect_refused(&mut writer, 0, &causal, late, "causality");
    // Another head of the layer.
    expect_refused(
        &mut writer,
        1,
        &causal,
        from(0, &halves, &halves),
        "causality",
    );
    writer.piece(0, 0, &plain, late).unwrap();
    writer
        .piece(0, 1, &plain, from(0, &halves, &halves))
        .unwrap();
    writer.finish().unwrap();
}

/// A piece that is refused leaves nothing in the file, and all pieces of a head have its biases.
#[test]
fn biases_are_those_of_the_first_piece() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("long");
    let tokens = Tokens::from_words(&"w ".repeat(LENGTH));
    let maps = vec![
        LongMap::new(0, vec![0], vec![0], DIM),
        LongMap::new(1, vec![0], vec![0], DIM),
    ];
    let mut writer = LongWriter::create(&path, "m", "s", tokens, maps).unwrap();
    let (query, key) = (numbers(1, LENGTH * DIM), numbers(2, LENGTH * DIM));
    let (first, late) = (
        from(0, &query[..25 * DIM], &key[..25 * DIM]),
        from(25, &query[25 * DIM..], &key),
    );
    let biased = |values, zero| Attention {
        causal: true,
        scale: Some(0.7),
        relative: Some(RelativeBias { values, zero }),
        ..Attention::default()
    };
    let (table, few, others) = (numbers(3, 5), numbers(4, 3), numbers(5, 5));
    let told = "position 25, expected 0";
    expect_refused(&mut writer, 0, &biased(&few, 1), late, told);
    for map in 0..2 {
        writer.piece(map, 0, &biased(&table, 3), first).unwrap();
    }
    let told = "numbers of its biases";
    expect_refused(&mut writer, 0, &biased(&others, 3), late, told);
    for map in 0..2 {
        writer.piece(map, 0, &biased(&table, 3), late).unwrap();
    }
    writer.finish().unwrap();
    let trace = long(&path);
    let bias = |i: usize, j: usize| {
        let place = (3 + j as i64 - i as i64).clamp(0, 4) as usize;
        (j <= i).then(|| f64::from(table[place]))
    };
    for map in 0..2 {
        let head = trace.head(map, 0).unwrap();
        expect_weights(&head, &softmax([&query, &key], bias));
    }
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

/// Each pooled cell, each row and each measure of a head against the weights by definition, `[queries, keys]`.
fn expect_weights(head: &LongHead, expected: &[f64]) {
    let [queries, keys] = head.shape();
    assert_eq!(expected.len(), queries * keys);
    let near = |found: f32, expected: f64| {
        let error = (f64::from(found) - expected).abs();
        assert!(error < 2e-5 * (1.0 + expected), "{found} {expected}");
    };
    let all: Vec<usize> = (0..queries).rev().collect();
    let rows = head.rows(&all).unwrap();
    for (&query, row) in all.iter().zip(rows.chunks_exact(keys)) {
        for (weight, expected) in row.iter().zip(&expected[query * keys..]) {
            near(*weight, *expected);
        }
    }
    let measures = head.measures().unwrap();
    for (query, entropy) in measures.entropy.iter().enumerate() {
        let row = expected[query * keys..][..keys].iter();
        near(
            *entropy,
            row.filter(|w| **w > 0.0).map(|w| -w * w.ln()).sum(),
        );
    }
    for (key, sum) in measures.column_sums.iter().enumerate() {
        near(*sum, expected.iter().skip(key).step_by(keys).sum());
    }
    let (q, k) = (queries, keys);
    for (of_queries, of_keys, rows, columns) in [
        (0..q, 0..k, q, k),
        (0..q, 0..k, 7, 5),
        (1..q - 2, 3..k - 1, 4, 3),
        (q / 2..q, 0..2, 1, 2),
    ] {
        for kind in [pool::Kind::Max, pool::Kind::Mean] {
            let cells = head
                .pooled(of_queries.clone(), of_keys.clone(), rows, columns, kind)
                .unwrap();
            let part = |range: &std::ops::Range<usize>, index: usize, cells: usize| {
                let start = |index: usize| range.start + index * range.len() / cells;
                start(index)..start(index + 1)
            };
            for (place, cell) in cells.iter().enumerate() {
                let columns_of = part(&of_keys, place % columns, columns);
                let weights: Vec<f64> = part(&of_queries, place / columns, rows)
                    .flat_map(|i| columns_of.clone().map(move |j| i * keys + j))
                    .map(|at| expected[at])
                    .collect();
                let sum: f64 = weights.iter().sum();
                near(
                    *cell,
                    match kind {
                        pool::Kind::Max => weights.iter().copied().fold(0.0, f64::max),
                        pool::Kind::Mean => sum / weights.len() as f64,
                    },
                );
            }
        }
    }
}

/// The softmax of `score(query, key)` over the keys that are seen, of numbers at half precision.
fn softmax([query, key]: [&[f32]; 2], added: impl Fn(usize, usize) -> Option<f64>) -> Vec<f64> {
    let half = |x: f32| f64::from(half::f16::from_f32(x).to_f32());
    let rows = query.chunks_exact(DIM).enumerate().flat_map(|(i, query)| {
        let keys = key.chunks_exact(DIM).enumerate();
        let scores = keys.map(|(j, key)| {
            let product: f64 = query
                .iter()
                .zip(key)
                .map(|(&q, &k)| half(q) * half(k))
                .sum();
            added(i, j).map_or(0.0, |added| (0.7 * product + added).exp())
        });
        let scores: Vec<f64> = scores.collect();
        let sum: f64 = scores.iter().sum();
        scores.into_iter().map(move |score| score / sum)
    });
    rows.collect()
}

/// Biases by distance and ALiBi, in an encoder and in a decoder that reads in pieces, and attention to another text.
#[test]
fn biases_by_distance_and_another_text() {
    const TARGET: usize = 21;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("long");
    let words = |count: usize| Tokens::from_words(&"w ".repeat(count));
    let map =
        |layer, kind, texts| LongMap::new(layer, vec![1, 3], vec![0, 0], DIM).between(kind, texts);
    let maps = vec![
        map(0, Kind::EncoderSelf, [0, 0]),
        map(1, Kind::EncoderSelf, [0, 0]),
        map(0, Kind::DecoderSelf, [1, 1]),
        map(0, Kind::Cross, [2, 0]),
    ];
    let texts = Texts {
        tokens: words(LENGTH),
        others: vec![words(TARGET), words(TARGET)],
    };
    let mut writer = LongWriter::create(&path, "t5", "book.txt", texts, maps).unwrap();
    // Distances from -5 to 3.
    let tables = [numbers(3, 9), numbers(4, 9)];
    let slopes = [[0.25], [0.0625]];
    let (query, key) = (numbers(1, LENGTH * DIM), numbers(2, LENGTH * DIM));
    let (read, to) = (numbers(5, TARGET * DIM), numbers(6, TARGET * DIM));
    let plain = Attention {
        scale: Some(0.7),
        ..Attention::default()
    };
    for head in 0..2 {
        let relative = Attention {
            relative: Some(RelativeBias {
                values: &tables[head],
                zero: 5,
            }),
            ..plain
        };
        let alibi = Attention {
            alibi: Some(&slopes[head]),
            ..plain
        };
        let decoder = Attention {
            causal: true,
            ..relative
        };
        writer
            .piece(0, head, &relative, from(0, &query, &key))
            .unwrap();
        writer
            .piece(1, head, &alibi, from(0, &query, &key))
            .unwrap();
        for piece in [0..8, 8..TARGET] {
            let part = &read[piece.start * DIM..piece.end * DIM];
            let keys = &to[..piece.end * DIM];
            writer
                .piece(2, head, &decoder, from(piece.start, part, keys))
                .unwrap();
            writer
                .piece(3, head, &plain, from(piece.start, part, &key))
                .unwrap();
        }
    }
    let error = writer
        .piece(0, 0, &plain, from(0, &query, &key))
        .unwrap_err();
    assert!(error.to_string().contains("biases are others"), "{error}");
    writer.finish().unwrap();
    let trace = long(&path);
    assert_eq!(trace.maps()[3].kind(), Kind::Cross);
    assert_eq!(
        [trace.queries(3).len(), trace.keys(3).len()],
        [TARGET, LENGTH]
    );
    for head in 0..2 {
        let table = |i: usize, j: usize| {
            let place = (5 + j as i64 - i as i64).clamp(0, 8) as usize;
            Some(f64::from(tables[head][place]))
        };
        let slope = |i: usize, j: usize| Some(-f64::from(slopes[head][0]) * i.abs_diff(j) as f64);
        let causal = |i, j| if j <= i { table(i, j) } else { None };
        let found = |map| trace.head(map, head).unwrap();
        expect_weights(&found(0), &softmax([&query, &key], table));
        expect_weights(&found(1), &softmax([&query, &key], slope));
        expect_weights(&found(2), &softmax([&read, &to], causal));
        expect_weights(&found(3), &softmax([&read, &key], |_, _| Some(0.0)));
    }
    expect_refusals(&path);
}

/// A window and global positions, as Longformer's stack shows them.
#[test]
fn global_positions() {
    let folder = tempfile::tempdir().unwrap();
    // More global positions than are pooled at a time, and one in several cells.
    let many: Vec<usize> = (0..LENGTH * 2).filter(|at| at % 3 != 1).collect();
    for (length, globals) in [
        (LENGTH, vec![]),
        (LENGTH, vec![0, 17, 18, 59]),
        (LENGTH * 2, many),
    ] {
        let path = folder.path().join("long");
        let count = globals.len();
        let tokens = Tokens::from_words(&"w ".repeat(length));
        let map = LongMap::new(2, vec![1], vec![0], DIM);
        let writer = Mutex::new(LongWriter::create(&path, "m", "s", tokens, vec![map]).unwrap());
        // Two heads, of which the second is kept.
        let rows = |seed, rows: usize| numbers(seed, 2 * rows * DIM);
        let (query, key) = (rows(1, length), rows(2, length));
        let (to_all, of_all) = (rows(3, count), rows(4, length));
        let view = |numbers, count| View {
            data: numbers,
            shape: [1, 2, count, DIM],
            strides: [0, DIM, 2 * DIM],
        };
        let order: Vec<usize> = globals.iter().copied().chain(0..length).collect();
        let mut front: Vec<f32> = vec![];
        for at in &order {
            front.extend_from_slice(&key[at * 2 * DIM..][..2 * DIM]);
        }
        let (mut of_queries, mut of_keys) = (vec![0; length], vec![0; count + length]);
        for at in &globals {
            (of_queries[*at], of_keys[count + at]) = (1, 2);
        }
        let prefix = [count as u32];
        let plain = Attention {
            scale: Some(0.7),
            ..Attention::default()
        };
        let window = Attention {
            window: Some(Window {
                left: Some(6),
                right: Some(6),
            }),
            prefix: Some(&prefix)
                .filter(|_| count > 0)
                .map(|prefix| &prefix[..]),
            documents: (count > 0).then_some(Documents {
                query: &of_queries,
                key: &of_keys,
            }),
            ..plain
        };
        let mut watch = Watch::new(&writer, Kind::SelfAttention);
        assert!(watch.wants(2, false) && !watch.wants(2, true) && !watch.wants(1, false));
        watch
            .see(Seen {
                layer: 2,
                cross: false,
                row: 0,
                queries: Positions::From(0),
                keys: Positions::At(&order),
                attention: window,
                query: view(&query, length),
                key: view(&front, count + length),
                value: view(&front, count + length),
                lse: &[],
            })
            .unwrap();
        if count > 0 {
            watch
                .see(Seen {
                    layer: 2,
                    cross: false,
                    row: 0,
                    queries: Positions::At(&globals),
                    keys: Positions::From(0),
                    attention: plain,
                    query: view(&to_all, count),
                    key: view(&of_all, length),
                    value: view(&of_all, length),
                    lse: &[],
                })
                .unwrap();
        }
        writer.into_inner().unwrap().finish().unwrap();
        let second = |all: &[f32]| -> Vec<f32> {
            let rows = all.chunks_exact(2 * DIM);
            rows.flat_map(|row| &row[DIM..]).copied().collect()
        };
        let own = softmax([&second(&query), &second(&key)], |i, j| {
            let sees = i.abs_diff(j) <= 6 || globals.contains(&j);
            sees.then_some(0.0)
        });
        let global = softmax([&second(&to_all), &second(&of_all)], |_, _| Some(0.0));
        let mut expected = own;
        for (place, at) in globals.iter().enumerate() {
            expected[at * length..][..length].copy_from_slice(&global[place * length..][..length]);
        }
        expect_weights(&long(&path).head(0, 0).unwrap(), &expected);
        expect_refusals(&path);
    }
}

/// A file of version 4, which had queries, keys and `lse` alone, opens as before.
#[test]
fn files_of_the_first_version_open() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("long");
    // Two tokens, dim 1; the second query sees both keys alike.
    let description = r#"{"version":4,"model":"m","source":"s","tokens":[{"text":"a"},{"text":"b"}],"maps":[{"layer":1,"heads":[2],"keys_of":[0],"dim":1,"scale":1.0,"causal":true,"left":null,"right":null,"softcap":null}]}"#;
    let header = serde_json::json!({
        "__metadata__": { "regard.trace": description },
        "map.0.query": { "dtype": "F16", "shape": [1, 2, 1], "data_offsets": [0, 4] },
        "map.0.key": { "dtype": "F16", "shape": [1, 2, 1], "data_offsets": [4, 8] },
        "map.0.lse": { "dtype": "F32", "shape": [1, 2, 3], "data_offsets": [8, 32] },
    });
    let header = header.to_string();
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend(header.bytes());
    let one = half::f16::ONE.to_le_bytes();
    bytes.extend([one; 4].concat());
    for lse in [1.0f32, 0.0, 0.0, 1.0, 0.0, 2.0f32.ln()] {
        bytes.extend(lse.to_le_bytes());
    }
    std::fs::write(&path, bytes).unwrap();
    let trace = long(&path);
    assert_eq!(trace.maps()[0].kind(), Kind::SelfAttention);
    expect_weights_of_two(&trace.head(0, 0).unwrap());
}

fn expect_weights_of_two(head: &LongHead) {
    let rows = head.rows(&[0, 1]).unwrap();
    for (weight, expected) in rows.iter().zip([1.0, 0.0, 0.5, 0.5]) {
        assert!((weight - expected).abs() < 1e-6, "{rows:?}");
    }
}

/// Changed anywhere in its header or a little behind it, a file is a trace or an error, no panic.
fn expect_refusals(path: &std::path::Path) {
    let bytes = std::fs::read(path).unwrap();
    let length = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let end = bytes.len();
    let mut state = 11u64;
    for turn in 0..600 {
        let mut mutated = bytes.clone();
        for _ in 0..3 {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(97);
            // In turns: the header, its numbers, and the tensors that stand last.
            let at = match turn % 3 {
                0 => (state >> 33) as usize % (8 + length),
                1 => {
                    let digits: Vec<usize> = (8..8 + length)
                        .filter(|&at| bytes[at].is_ascii_digit())
                        .collect();
                    let at = digits[(state >> 33) as usize % digits.len()];
                    mutated[at] = b'0' + (state >> 25) as u8 % 10;
                    continue;
                }
                _ => end - 1 - (state >> 33) as usize % (end / 4),
            };
            mutated[at] = (state >> 25) as u8;
        }
        std::fs::write(path, &mutated).unwrap();
        if let Ok(Opened::Long(long)) = open(path) {
            for (map, of) in long.maps().iter().enumerate() {
                for head in 0..of.heads().len() {
                    if let Ok(head) = long.head(map, head) {
                        let [queries, keys] = head.shape();
                        head.pooled(0..queries, 0..keys, 3, 2, pool::Kind::Mean)
                            .unwrap();
                    }
                }
            }
        }
    }
    std::fs::write(path, bytes).unwrap();
}
