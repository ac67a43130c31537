//! Text from files to batches: what is read, what is refused, what is dropped, and the order.

use std::collections::BTreeSet;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use flate2::Compression;
use flate2::write::GzEncoder;
use proptest::prelude::*;
use regard_train::corpus::{
    Batches, Budget, CorpusError, EncodedPair, FilterReport, LengthFilter, Lines, LongLines,
    ParallelText, Synthetic, Task, read_lines,
};
use regard_train::tokenizer::TokenizerPair;

fn gzip(text: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
    encoder.write_all(text).unwrap();
    encoder.finish().unwrap()
}

fn file(folder: &Path, name: &str, bytes: &[u8]) -> PathBuf {
    let path = folder.join(name);
    std::fs::write(&path, bytes).unwrap();
    path
}

fn lines_of(bytes: &[u8]) -> Vec<String> {
    Lines::new(bytes, "test")
        .unwrap()
        .collect::<Result<_, _>>()
        .unwrap()
}

#[test]
fn plain_and_gzip_are_told_apart_by_their_bytes() {
    let folder = tempfile::tempdir().unwrap();
    let text = "ein Hund\nzwei Hunde\n".as_bytes();
    // Two members, as `cat a.gz b.gz` makes them, under a plain name; and the other way round.
    let members = [gzip(&text[..9]), gzip(&text[9..])].concat();
    let packed = file(folder.path(), "packed.txt", &members);
    let plain = file(folder.path(), "plain.gz", text);
    assert_eq!(read_lines(packed).unwrap(), ["ein Hund", "zwei Hunde"]);
    assert_eq!(read_lines(plain).unwrap(), ["ein Hund", "zwei Hunde"]);
}

#[test]
fn only_line_feeds_end_lines() {
    assert_eq!(lines_of(b"a\r\nb\rc\r\n"), ["a", "b\rc"]);
    assert_eq!(
        lines_of("a\0b\u{2028}c\u{85}d\u{b}e\n".as_bytes()),
        ["a\0b\u{2028}c\u{85}d\u{b}e"]
    );
    assert_eq!(lines_of(b"a\n\n\nb"), ["a", "", "", "b"]);
    assert_eq!(lines_of(b"\n"), [""]);
    assert_eq!(lines_of(b"x"), ["x"]);
    assert!(lines_of(b"").is_empty());
    assert_eq!(
        lines_of("\u{feff}a\n\u{feff}b".as_bytes()),
        ["a", "\u{feff}b"]
    );
    assert_eq!(lines_of(&gzip(b"")), Vec::<String>::new());
}

#[test]
fn lines_come_as_they_are_typed() {
    /// A reader that fails the test when it is asked for more than has been typed.
    struct Typed(Vec<&'static [u8]>);
    impl std::io::Read for Typed {
        fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
            let next = self.0.pop().expect("nothing more has been typed");
            buffer[..next.len()].copy_from_slice(next);
            Ok(next.len())
        }
    }
    let mut lines = Lines::new(Typed(vec![b"b\n", b"\n"]), "terminal").unwrap();
    assert_eq!(lines.next().unwrap().unwrap(), "");
    assert_eq!(lines.next().unwrap().unwrap(), "b");
}

#[test]
fn invalid_utf8_is_named_with_its_place() {
    let folder = tempfile::tempdir().unwrap();
    let text = b"\xef\xbb\xbfgut\r\nz\xc3\xbcge\nschl\xfccht\n";
    for (name, bytes) in [("plain", text.to_vec()), ("packed", gzip(text))] {
        let path = file(folder.path(), name, &bytes);
        let error = read_lines(&path).unwrap_err();
        assert!(
            matches!(
                error,
                CorpusError::InvalidUtf8 {
                    line: 3,
                    offset: 18,
                    byte: 0xfc,
                    ..
                }
            ),
            "{error:?}"
        );
        assert_eq!(text[18], 0xfc);
        assert!(error.to_string().contains(name), "{error}");
        assert!(error.to_string().contains("offset 18"), "{error}");
    }
    let mut lines = Lines::new(&b"a\n\xff\nb"[..], "test").unwrap();
    assert!(lines.next().unwrap().is_ok());
    assert!(lines.next().unwrap().is_err());
    assert!(lines.next().is_none(), "an error is the end");
}

#[test]
fn damaged_gzip_is_an_error_and_not_a_short_text() {
    let folder = tempfile::tempdir().unwrap();
    let text: String = (0..2_000)
        .map(|line| format!("line {line} {}\n", line * 7919))
        .collect();
    let whole = gzip(text.as_bytes());
    for length in [3, 15, whole.len() / 2, whole.len() - 9, whole.len() - 1] {
        let path = file(folder.path(), "cut.gz", &whole[..length]);
        let error = read_lines(&path).unwrap_err();
        assert!(
            matches!(error, CorpusError::Gzip { .. }),
            "{length}: {error:?}"
        );
        assert!(error.to_string().contains("cut.gz"), "{error}");
    }
    let mut damaged = whole.clone();
    let last = damaged.len() - 6;
    damaged[last] ^= 1;
    let path = file(folder.path(), "checksum.gz", &damaged);
    assert!(matches!(read_lines(path), Err(CorpusError::Gzip { .. })));
}

#[test]
fn missing_and_unreadable_files_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let missing = folder.path().join("missing.en");
    let error = read_lines(&missing).unwrap_err();
    assert!(matches!(error, CorpusError::Read { .. }));
    assert!(error.to_string().contains("missing.en"), "{error}");
    let error = read_lines(folder.path()).unwrap_err();
    assert!(
        matches!(error, CorpusError::Read { .. }),
        "a folder is no text: {error:?}"
    );
}

#[test]
fn files_that_do_not_match_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let two = file(folder.path(), "two.en", b"a\nb\n");
    let three = file(folder.path(), "three.de", b"a\nb\n\n");
    let empty = file(folder.path(), "empty.de", b"");
    let error = ParallelText::read(&two, &three).unwrap_err();
    let message = error.to_string();
    assert!(matches!(
        error,
        CorpusError::LineCounts {
            source_lines: 2,
            target_lines: 3,
            ..
        }
    ));
    assert!(message.contains("two.en has 2 lines"), "{message}");
    assert!(message.contains("three.de has 3"), "{message}");
    let error = ParallelText::read(&two, &empty).unwrap_err();
    assert!(matches!(error, CorpusError::Empty { .. }));
    assert!(error.to_string().contains("empty.de"), "{error}");
    let text = ParallelText::read(&two, &two).unwrap();
    assert_eq!(text.iter().collect::<Vec<_>>(), [("a", "a"), ("b", "b")]);
}

fn words(lines: &[(&str, &str)]) -> (ParallelText, TokenizerPair) {
    let (source, target) = lines
        .iter()
        .map(|&(s, t)| (s.to_owned(), t.to_owned()))
        .unzip();
    let text = ParallelText::new(source, target).unwrap();
    let tokenizers = TokenizerPair::learn_words(text.source(), text.target(), false).unwrap();
    (text, tokenizers)
}

#[test]
fn the_filter_counts_what_it_drops() {
    let (text, tokenizers) = words(&[
        ("a b", "a b"),
        ("", "a"),
        ("a", " \u{a0}\t"),
        ("a b c d e", "a"),
        ("a", "a b c d"),
        ("a b c d", "a b"),
    ]);
    let filter = LengthFilter {
        max_tokens: Some(4),
        max_ratio: Some(2.0),
        ..LengthFilter::default()
    };
    let (pairs, report) = filter.apply(&text, &tokenizers).unwrap();
    assert_eq!(
        report,
        FilterReport {
            kept: 2,
            empty: 2,
            too_long: 1,
            ratio: 1,
            cut: 0,
            broken: 0,
        }
    );
    assert_eq!(report.dropped(), 4);
    assert_eq!(
        pairs.iter().map(|pair| pair.line).collect::<Vec<_>>(),
        [0, 5]
    );
    assert_eq!(
        pairs[1].source,
        tokenizers.source().encode("a b c d").unwrap()
    );
    let shown = report.to_string();
    assert!(
        shown.starts_with("2 pairs kept (0 of them cut), 4 dropped"),
        "{shown}"
    );
}

#[test]
fn long_lines_are_dropped_cut_or_refused() {
    let long = vec!["w"; 10_000].join(" ");
    let (text, tokenizers) = words(&[("a", "b"), (long.as_str(), "b")]);
    let filter = |long_lines, max_tokens, max_words| LengthFilter {
        max_tokens,
        max_words,
        max_ratio: None,
        long_lines,
    };
    for (tokens, words) in [(Some(7), None), (None, Some(7))] {
        let (pairs, report) = filter(LongLines::Drop, tokens, words)
            .apply(&text, &tokenizers)
            .unwrap();
        assert_eq!((pairs.len(), report.too_long), (1, 1));

        let (pairs, report) = filter(LongLines::Cut, tokens, words)
            .apply(&text, &tokenizers)
            .unwrap();
        assert_eq!((pairs.len(), report.cut), (2, 1));
        assert_eq!(pairs[1].source.len(), 7);

        let error = filter(LongLines::Error, tokens, words)
            .apply(&text, &tokenizers)
            .unwrap_err();
        assert!(
            matches!(
                error,
                CorpusError::LongLine {
                    line: 2,
                    side: "source",
                    length: 10_000,
                    limit: 7,
                    ..
                }
            ),
            "{error:?}"
        );
    }
    let (text, tokenizers) = words(&[("", "b")]);
    let error = LengthFilter::default()
        .apply(&text, &tokenizers)
        .unwrap_err();
    assert!(matches!(error, CorpusError::NothingLeft { .. }));
    assert!(
        error.to_string().contains("1 with an empty side"),
        "{error}"
    );
}

#[test]
fn a_line_to_translate_is_cut_or_refused() {
    let (_, tokenizers) = words(&[("a b c", "a")]);
    let tokenizer = tokenizers.source();
    let mut filter = LengthFilter {
        max_tokens: Some(2),
        long_lines: LongLines::Cut,
        ..LengthFilter::default()
    };
    let whole = filter.limit(0, "a b", tokenizer).unwrap();
    assert_eq!((whole.ids.len(), whole.cut_from), (2, None));
    let cut = filter.limit(0, "a b c", tokenizer).unwrap();
    assert_eq!((cut.ids.len(), cut.cut_from), (2, Some(3)));
    assert!(filter.limit(0, "", tokenizer).unwrap().ids.is_empty());
    filter.long_lines = LongLines::Error;
    let error = filter.limit(4, "a b c", tokenizer).unwrap_err();
    assert!(
        error.to_string().starts_with("line 5 has 3 tokens"),
        "{error}"
    );
}

fn pairs_of(lengths: &[(usize, usize)]) -> Vec<EncodedPair> {
    lengths
        .iter()
        .enumerate()
        .map(|(line, &(source, target))| EncodedPair {
            source: vec![4 + line as u32; source],
            target: vec![5 + line as u32; target],
            line,
        })
        .collect()
}

#[test]
fn padding_is_counted_on_both_sides() {
    let pairs = pairs_of(&[(1, 2), (3, 1), (9, 9)]);
    let batches = Batches::new(
        &pairs,
        Budget {
            sentences: Some(2),
            ..Budget::default()
        },
    )
    .unwrap();
    // Sources of 2 and 4 tokens, targets of 3 and 2, their markers counted.
    assert!((batches.padding(&[vec![1, 0]]) - 3.0 / 14.0).abs() < 1e-12);
    assert_eq!(batches.padding(&[vec![2]]), 0.0);
}

#[test]
fn budgets_that_allow_nothing_are_refused() {
    let pairs = pairs_of(&[(1, 1)]);
    for (budget, field) in [
        (Budget::default(), "batch"),
        (
            Budget {
                tokens: Some(0),
                ..Budget::default()
            },
            "batch.tokens",
        ),
        (
            Budget {
                sentences: Some(0),
                ..Budget::default()
            },
            "batch.sentences",
        ),
        (
            Budget {
                tokens: Some(1),
                sentences: None,
                pool: 0,
            },
            "batch.pool",
        ),
    ] {
        let error = Batches::new(&pairs, budget).unwrap_err();
        assert!(matches!(error, CorpusError::Setting { field: f, .. } if f == field));
    }
}

proptest! {
    #[test]
    fn every_epoch_has_every_pair_once_within_the_budget(
        lengths in prop::collection::vec((1usize..40, 1usize..40), 1..200),
        tokens in prop::option::of(1usize..400),
        sentences in prop::option::of(1usize..20),
        pool in 1usize..300,
        seed in any::<u64>(),
    ) {
        prop_assume!(tokens.is_some() || sentences.is_some());
        let pairs = pairs_of(&lengths);
        let batches = Batches::new(&pairs, Budget { tokens, sentences, pool }).unwrap();
        for epoch in [batches.epoch(seed, 0), batches.epoch(seed, 1), batches.sorted()] {
            let mut all: Vec<usize> = epoch.concat();
            all.sort_unstable();
            prop_assert_eq!(all, (0..pairs.len()).collect::<Vec<_>>());
            for rows in epoch {
                let longest = rows.iter().map(|&i| 1 + pairs[i].source.len().max(pairs[i].target.len())).max().unwrap();
                let positions = rows.len() * longest;
                prop_assert!(rows.len() == 1 || tokens.is_none_or(|most| positions <= most));
                prop_assert!(sentences.is_none_or(|most| rows.len() <= most));
            }
        }
    }

    #[test]
    fn reading_never_panics_and_keeps_lines(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        let lines: Result<Vec<String>, _> = Lines::new(&bytes[..], "random").unwrap().collect();
        if let (Ok(text), Ok(lines)) = (std::str::from_utf8(&bytes), lines)
            && !text.starts_with('\u{feff}')
        {
            prop_assert_eq!(lines, text.lines().collect::<Vec<_>>());
        }
    }
}

#[test]
fn the_order_depends_on_seed_and_epoch_alone() {
    let lengths: Vec<(usize, usize)> = (0..500)
        .map(|i| (1 + i * 7 % 30, 1 + i * 11 % 30))
        .collect();
    let pairs = pairs_of(&lengths);
    let budget = Budget {
        tokens: Some(256),
        sentences: None,
        pool: 100,
    };
    let batches = Batches::new(&pairs, budget).unwrap();
    let third = batches.epoch(9, 3);
    let again = Batches::new(&pairs, budget).unwrap();
    assert_eq!(again.epoch(9, 3), third, "without the epochs before");
    let orders: BTreeSet<_> = [(9, 3), (9, 4), (8, 3)]
        .into_iter()
        .map(|(seed, epoch)| batches.epoch(seed, epoch))
        .collect();
    assert_eq!(orders.len(), 3);
}

#[test]
fn the_order_is_that_of_the_first_release() {
    // If this fails, `--resume` of a run begun with an earlier release is no longer exact.
    let pairs = pairs_of(&[(1, 1), (5, 2), (3, 3), (2, 6), (4, 4), (1, 2), (6, 6)]);
    let budget = Budget {
        tokens: None,
        sentences: Some(2),
        pool: 4,
    };
    let batches = Batches::new(&pairs, budget).unwrap();
    let expected: [&[usize]; 4] = [&[3, 6], &[4, 2], &[0, 1], &[5]];
    assert_eq!(batches.epoch(1, 0), expected);
}

#[test]
fn sorting_by_length_saves_padding() {
    let lengths: Vec<(usize, usize)> = (0..2_000)
        .map(|i| (1 + i * 37 % 50, 1 + i * 37 % 50))
        .collect();
    let pairs = pairs_of(&lengths);
    let padding = |pool| {
        let budget = Budget {
            tokens: Some(1_024),
            sentences: None,
            pool,
        };
        let batches = Batches::new(&pairs, budget).unwrap();
        batches.padding(&batches.epoch(1, 0))
    };
    assert!(padding(2_000) < 0.05, "{}", padding(2_000));
    assert!(padding(1) > 0.2, "{}", padding(1));
}

#[test]
fn synthetic_targets_follow_their_alignment() {
    for task in [Task::Copy, Task::Reverse, Task::Sort] {
        for symbols in [1, 5, 26, 27, 200] {
            let synthetic = Synthetic {
                task,
                symbols,
                min_length: 1,
                max_length: 9,
                sentences: 50,
            };
            let corpus = synthetic.generate(3).unwrap();
            assert_eq!(corpus.text.len(), 50);
            let names = synthetic.names();
            for ((source, target), links) in corpus.text.iter().zip(&corpus.alignments) {
                let source: Vec<&str> = source.split(' ').collect();
                let target: Vec<&str> = target.split(' ').collect();
                assert_eq!(links.len(), target.len());
                for (place, &(from, to)) in links.iter().enumerate() {
                    assert_eq!(to, place);
                    assert_eq!(source[from], target[to]);
                    assert!(names.iter().any(|name| name == target[to]));
                }
                let used: BTreeSet<usize> = links.iter().map(|link| link.0).collect();
                assert_eq!(used.len(), source.len(), "each source position once");
                match task {
                    Task::Copy => assert_eq!(source, target),
                    Task::Reverse => assert!(source.iter().rev().eq(&target)),
                    Task::Sort => {
                        assert!(target.is_sorted());
                        let first_unused = links.windows(2).all(|pair| {
                            target[pair[0].1] != target[pair[1].1] || pair[0].0 < pair[1].0
                        });
                        assert!(first_unused);
                    }
                }
            }
        }
    }
}

#[test]
fn synthetic_text_depends_on_its_seed() {
    let synthetic = Synthetic {
        sentences: 20,
        ..Synthetic::default()
    };
    assert_eq!(
        synthetic.generate(1).unwrap(),
        synthetic.generate(1).unwrap()
    );
    assert_ne!(
        synthetic.generate(1).unwrap(),
        synthetic.generate(2).unwrap()
    );
}

#[test]
fn impossible_tasks_are_refused() {
    let good = Synthetic::default();
    for (bad, field) in [
        (Synthetic { symbols: 0, ..good }, "synthetic.symbols"),
        (
            Synthetic {
                sentences: 0,
                ..good
            },
            "synthetic.sentences",
        ),
        (
            Synthetic {
                min_length: 0,
                ..good
            },
            "synthetic.min_length",
        ),
        (
            Synthetic {
                max_length: 1,
                ..good
            },
            "synthetic.max_length",
        ),
    ] {
        let error = bad.generate(1).unwrap_err();
        assert!(error.to_string().starts_with(field), "{error}");
    }
}
