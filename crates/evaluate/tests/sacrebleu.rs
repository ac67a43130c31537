//! `regard_evaluate` against numbers that sacrebleu 2.6.0 wrote (`golden/sacrebleu_golden.py`).

use regard_evaluate::{
    Bleu, Bootstrap, Chrf, Metric, Score, SegmentCounts, Smoothing, Tokenizer, VERSION,
};
use serde::Deserialize;

#[derive(Deserialize)]
struct Golden {
    corpora: Vec<Corpus>,
    sentences: Vec<(String, f64, f64)>,
    tokenised: Vec<[String; 4]>,
    lowered: Vec<[String; 2]>,
    printed: Vec<(usize, usize, String, String, String, String)>,
    paired: Paired,
}

#[derive(Deserialize)]
struct Corpus {
    name: String,
    hypotheses: Vec<String>,
    references: Vec<Vec<String>>,
    bleu: Vec<BleuRow>,
    chrf: Vec<ChrfRow>,
}

/// Score, summed statistics, precisions, brevity penalty, printed line.
type BleuRow = (f64, Vec<u64>, Vec<f64>, f64, String);

/// Score, summed statistics, printed line.
type ChrfRow = (f64, Vec<u64>, String);

#[derive(Deserialize)]
struct Paired {
    references: Vec<String>,
    systems: Vec<Vec<String>>,
    /// Resamples, metric, signature, and of each system score, mean, half width, p-value.
    results: Vec<(usize, String, String, Vec<PairedRow>)>,
}

type PairedRow = (f64, f64, f64, Option<f64>);

fn golden() -> Golden {
    serde_json::from_str(include_str!("golden/sacrebleu.json")).expect("the golden file is JSON")
}

/// What sacrebleu prints, with our version in its place.
fn ours(text: &str) -> String {
    text.replace("version:2.6.0", &format!("version:{VERSION}"))
        .replace(
            "\"version\": \"2.6.0\"",
            &format!("\"version\": \"{VERSION}\""),
        )
        .replace("v:2.6.0", &format!("v:{VERSION}"))
}

fn close(ours: f64, theirs: f64) -> bool {
    (ours - theirs).abs() <= 1e-12 * theirs.abs()
}

/// The options of `BLEU_OPTIONS`, in order.
fn bleu_options() -> Vec<Bleu> {
    let plain = Bleu::default();
    let tokenizers = [
        Tokenizer::Mteval13a,
        Tokenizer::None,
        Tokenizer::International,
        Tokenizer::Character,
    ];
    let mut options: Vec<Bleu> = tokenizers
        .into_iter()
        .flat_map(|tokenizer| {
            [false, true].map(|lowercase| Bleu {
                tokenizer,
                lowercase,
                ..plain
            })
        })
        .collect();
    let floor = Smoothing::Floor(0.1);
    options.extend([
        Bleu {
            smoothing: floor,
            ..plain
        },
        Bleu {
            smoothing: Smoothing::Floor(0.01),
            tokenizer: Tokenizer::Character,
            ..plain
        },
        Bleu {
            smoothing: Smoothing::AddK(1.0),
            ..plain
        },
        Bleu {
            smoothing: Smoothing::AddK(0.5),
            tokenizer: Tokenizer::International,
            ..plain
        },
        Bleu {
            smoothing: Smoothing::None,
            ..plain
        },
        Bleu {
            effective_order: true,
            ..plain
        },
        Bleu {
            effective_order: true,
            smoothing: floor,
            ..plain
        },
        Bleu {
            order: 2,
            tokenizer: Tokenizer::None,
            ..plain
        },
        Bleu {
            order: 6,
            smoothing: Smoothing::AddK(1.0),
            lowercase: true,
            ..plain
        },
    ]);
    options
}

/// The options of `CHRF_OPTIONS`, in order.
fn chrf_options() -> Vec<Chrf> {
    let plain = Chrf::default();
    vec![
        plain,
        Chrf {
            lowercase: true,
            ..plain
        },
        Chrf {
            word_order: 1,
            ..plain
        },
        Chrf::plus_plus(),
        Chrf {
            lowercase: true,
            ..Chrf::plus_plus()
        },
        Chrf {
            whitespace: true,
            ..plain
        },
        Chrf {
            epsilon_smoothing: true,
            ..plain
        },
        Chrf {
            epsilon_smoothing: true,
            ..Chrf::plus_plus()
        },
        Chrf {
            character_order: 3,
            beta: 1,
            ..plain
        },
        Chrf {
            character_order: 8,
            beta: 3,
            word_order: 3,
            ..plain
        },
    ]
}

#[test]
fn corpus_bleu() {
    let options = bleu_options();
    let mut checks = 0;
    for corpus in golden().corpora {
        assert_eq!(corpus.bleu.len(), options.len());
        for (bleu, (score, sums, precisions, brevity_penalty, line)) in
            options.iter().zip(&corpus.bleu)
        {
            let context = format!("{}: {line}", corpus.name);
            let got = bleu.corpus(&corpus.hypotheses, &corpus.references).unwrap();
            let got_sums = [
                &[got.hypothesis_length, got.reference_length][..],
                &got.counts,
                &got.totals,
            ];
            assert_eq!(&got_sums.concat(), sums, "{context}");
            assert!(
                close(got.score, *score),
                "{context}: {} is not {score}",
                got.score
            );
            assert!(close(got.brevity_penalty, *brevity_penalty), "{context}");
            assert_eq!(got.precisions.len(), precisions.len());
            for (ours, theirs) in got.precisions.iter().zip(precisions) {
                assert!(
                    close(*ours, *theirs),
                    "{context}: precision {ours} is not {theirs}"
                );
            }
            assert_eq!(got.report().line(2), ours(line), "{}", corpus.name);
            checks += 1;
        }
    }
    assert_eq!(checks, 25 * 17);
}

#[test]
fn corpus_chrf() {
    let options = chrf_options();
    let mut checks = 0;
    for corpus in golden().corpora {
        assert_eq!(corpus.chrf.len(), options.len());
        for (chrf, (score, sums, line)) in options.iter().zip(&corpus.chrf) {
            let context = format!("{}: {line}", corpus.name);
            let counts = SegmentCounts::collect(chrf, &corpus.hypotheses, &corpus.references);
            let counts = counts.unwrap();
            assert_eq!(&counts.total(), sums, "{context}");
            let got = chrf.of(&counts);
            assert!(
                close(got.score, *score),
                "{context}: {} is not {score}",
                got.score
            );
            assert_eq!(got.report().line(2), ours(line), "{}", corpus.name);
            checks += 1;
        }
    }
    assert_eq!(checks, 25 * 10);
}

#[test]
fn sentence_scores() {
    let golden = golden();
    let mut expected = golden.sentences.iter();
    let count = golden.corpora.len();
    for corpus in golden.corpora[..8]
        .iter()
        .chain(&golden.corpora[count - 6..])
    {
        for (row, hypothesis) in corpus.hypotheses.iter().enumerate().take(12) {
            let references: Vec<&str> = corpus
                .references
                .iter()
                .map(|stream| stream[row].as_str())
                .collect();
            let (name, bleu, chrf) = expected.next().expect("as many sentences as were written");
            assert_eq!(name, &corpus.name);
            let got = Bleu::default().sentence(hypothesis, &references).unwrap();
            assert!(
                close(got.score, *bleu),
                "{name} {row}: {} is not {bleu}",
                got.score
            );
            assert_eq!(got.signature.get("eff"), Some("yes"));
            let got = Chrf::plus_plus().sentence(hypothesis, &references).unwrap();
            assert!(
                close(got.score, *chrf),
                "{name} {row}: {} is not {chrf}",
                got.score
            );
        }
    }
    assert!(expected.next().is_none());
}

#[test]
fn tokenisation_and_lower_casing() {
    let golden = golden();
    for [line, mteval, international, character] in &golden.tokenised {
        assert_eq!(&Tokenizer::Mteval13a.apply(line), mteval, "13a of {line:?}");
        assert_eq!(
            &Tokenizer::International.apply(line),
            international,
            "intl of {line:?}"
        );
        assert_eq!(
            &Tokenizer::Character.apply(line),
            character,
            "char of {line:?}"
        );
        assert_eq!(&Tokenizer::None.apply(line), line);
    }
    assert!(golden.tokenised.len() > 100);
    for [line, lowered] in &golden.lowered {
        assert_eq!(&line.to_lowercase(), lowered, "{line:?}");
    }
}

#[test]
fn printed_forms() {
    let golden = golden();
    let corpus = &golden.corpora[1];
    let bleu = Bleu {
        lowercase: true,
        tokenizer: Tokenizer::International,
        smoothing: Smoothing::AddK(1.0),
        ..Bleu::default()
    };
    let metrics: [&dyn Metric; 4] = [
        &Bleu::default(),
        &bleu,
        &Chrf::default(),
        &Chrf::plus_plus(),
    ];
    for (index, (width, resamples, line, number, json, short)) in golden.printed.iter().enumerate()
    {
        let metric = metrics[index / 3];
        let counts =
            SegmentCounts::collect(metric, &corpus.hypotheses, &corpus.references).unwrap();
        let mut score: Score = metric.report(&counts);
        if *resamples > 1 {
            let bootstrap = Bootstrap {
                resamples: *resamples,
                ..Bootstrap::default()
            };
            score = score.with_confidence(bootstrap.confidence(metric, &counts).unwrap());
        }
        assert_eq!(score.line(*width), ours(line));
        assert_eq!(&score.number(*width), number);
        assert_eq!(score.json(*width), ours(json));
        assert_eq!(score.signature.short(), ours(short));
    }
    assert_eq!(golden.printed.len(), 12);
}

#[test]
fn paired_bootstrap() {
    let golden = golden().paired;
    let bleu = Bleu {
        lowercase: true,
        tokenizer: Tokenizer::Character,
        ..Bleu::default()
    };
    let metrics: [&dyn Metric; 4] = [
        &Bleu::default(),
        &bleu,
        &Chrf::default(),
        &Chrf::plus_plus(),
    ];
    assert_eq!(golden.results.len(), metrics.len());
    for (metric, (resamples, name, signature, rows)) in metrics.into_iter().zip(&golden.results) {
        let bootstrap = Bootstrap {
            resamples: *resamples,
            ..Bootstrap::default()
        };
        assert_eq!(&metric.name(), name);
        let marked = metric
            .signature(1)
            .with_bootstrap(*resamples, bootstrap.seed);
        assert_eq!(marked.to_string(), ours(signature));
        let counts: Vec<SegmentCounts> = golden
            .systems
            .iter()
            .map(|system| SegmentCounts::collect(metric, system, &[&golden.references]).unwrap())
            .collect();
        for (system, (score, mean, half_width, p_value)) in counts.iter().zip(rows) {
            let result = bootstrap.paired(metric, &counts[0], system).unwrap();
            assert!(close(result.system, *score));
            // sacrebleu divides resampled counts in 32-bit floats.
            let interval = result.system_confidence;
            assert!(
                (interval.mean - mean).abs() < 2e-5 * mean,
                "{} {mean}",
                interval.mean
            );
            assert!((interval.half_width - half_width).abs() < 2e-5 * mean);
            match p_value {
                Some(p_value) => assert_eq!(result.p_value, *p_value, "{name}"),
                None => assert_eq!(result.p_value, 1.0, "the baseline against itself"),
            }
        }
    }
}
