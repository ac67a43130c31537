//! Properties that the metrics have for any text.

use proptest::prelude::*;
use regard_evaluate::{Bleu, Bootstrap, Chrf, Metric, SegmentCounts, Smoothing, Tokenizer};

/// Text with characters that tokenisers often get wrong, or arbitrary Unicode.
fn line() -> impl Strategy<Value = String> {
    let nasty = "[a-cA-C0-3 .,'\"&;:/()-]{0,30}|(&amp;|&quot;|<skipped>|1\\.2|,5|ß|猫|[\u{1c}-\u{20}]){0,8}|\\PC{0,20}|.{0,20}";
    proptest::string::string_regex(nasty).expect("the pattern is valid")
}

fn corpus() -> impl Strategy<Value = Vec<(String, String, String)>> {
    proptest::collection::vec((line(), line(), line()), 1..8)
}

fn bleus() -> impl Strategy<Value = Bleu> {
    let tokenizer = proptest::sample::select(Tokenizer::ALL.to_vec());
    let smoothing = proptest::sample::select(vec![
        Smoothing::Exp,
        Smoothing::None,
        Smoothing::Floor(0.1),
        Smoothing::AddK(1.0),
        Smoothing::Tiny,
    ]);
    (
        tokenizer,
        smoothing,
        any::<bool>(),
        any::<bool>(),
        1usize..6,
    )
        .prop_map(
            |(tokenizer, smoothing, lowercase, effective_order, order)| Bleu {
                tokenizer,
                lowercase,
                smoothing,
                effective_order,
                order,
            },
        )
}

fn chrfs() -> impl Strategy<Value = Chrf> {
    (1usize..8, 0usize..4, 1u32..4, any::<[bool; 3]>()).prop_map(
        |(character_order, word_order, beta, [lowercase, whitespace, epsilon_smoothing])| Chrf {
            character_order,
            word_order,
            beta,
            lowercase,
            whitespace,
            epsilon_smoothing,
        },
    )
}

fn streams(corpus: &[(String, String, String)]) -> (Vec<String>, [Vec<String>; 2]) {
    let hypotheses = corpus
        .iter()
        .map(|(hypothesis, _, _)| hypothesis.clone())
        .collect();
    let first = corpus.iter().map(|(_, first, _)| first.clone()).collect();
    let second = corpus.iter().map(|(_, _, second)| second.clone()).collect();
    (hypotheses, [first, second])
}

fn check_metric(
    metric: &dyn Metric,
    corpus: &[(String, String, String)],
) -> Result<(), TestCaseError> {
    let (hypotheses, references) = streams(corpus);
    let counts = SegmentCounts::collect(metric, &hypotheses, &references).unwrap();
    let score = metric.score(&counts.total());
    // BLEU's mean of logarithms may pass 100 by rounding, in sacrebleu too.
    prop_assert!((0.0..=100.0 + 1e-9).contains(&score), "{}", score);

    let mut turned = corpus.to_vec();
    turned.reverse();
    let (hypotheses, [first, second]) = streams(&turned);
    let turned = SegmentCounts::collect(metric, &hypotheses, &[first, second]).unwrap();
    prop_assert_eq!(
        metric.score(&turned.total()),
        score,
        "the order of sentences"
    );

    let all: Vec<usize> = (0..counts.segments()).collect();
    prop_assert_eq!(&counts.select(&all), &counts);
    let confidence = Bootstrap {
        resamples: 40,
        seed: 3,
    }
    .confidence(metric, &counts)
    .unwrap();
    prop_assert!(confidence.lower <= confidence.upper);
    prop_assert!(confidence.mean >= 0.0 && confidence.mean <= 100.0 + 1e-9);
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn bleu_is_a_score_of_a_set_of_sentences(bleu in bleus(), corpus in corpus()) {
        check_metric(&bleu, &corpus)?;
    }

    #[test]
    fn chrf_is_a_score_of_a_set_of_sentences(chrf in chrfs(), corpus in corpus()) {
        check_metric(&chrf, &corpus)?;
    }

    #[test]
    fn bleu_of_the_reference_is_100(bleu in bleus(), lines in proptest::collection::vec(line(), 1..6)) {
        let score = bleu.corpus(&lines, &[&lines]).unwrap();
        prop_assert_eq!(&score.counts, &score.totals);
        let orders = if bleu.effective_order { 1 } else { bleu.order };
        let add_k = matches!(bleu.smoothing, Smoothing::AddK(_)) && score.totals[0] > 0;
        if add_k || score.totals[orders - 1] > 0 {
            prop_assert!((score.score - 100.0).abs() < 1e-9, "{:?}", score);
        }
    }

    #[test]
    fn chrf_of_the_reference_is_100(lines in proptest::collection::vec(line(), 1..6)) {
        let score = Chrf::plus_plus().corpus(&lines, &[&lines]).unwrap();
        if score.counts[0] > 0 {
            prop_assert!((score.score - 100.0).abs() < 1e-9, "{:?}", score);
        }
    }

    #[test]
    fn the_order_of_references_does_not_matter(bleu in bleus(), corpus in corpus()) {
        let (hypotheses, [first, second]) = streams(&corpus);
        let one = bleu.corpus(&hypotheses, &[&first, &second]).unwrap();
        let other = bleu.corpus(&hypotheses, &[&second, &first]).unwrap();
        prop_assert_eq!(one, other);
    }

    #[test]
    fn tokenisers_keep_every_visible_character(line in line()) {
        let visible = |text: &str| text.chars().filter(|c| !c.is_whitespace() && !c.is_control()).collect::<String>();
        for tokenizer in [Tokenizer::International, Tokenizer::Character, Tokenizer::None] {
            prop_assert_eq!(visible(&tokenizer.apply(&line)), visible(&line));
        }
        if !line.contains(['&', '<']) {
            prop_assert_eq!(visible(&Tokenizer::Mteval13a.apply(&line)), visible(&line));
        }
    }

    #[test]
    fn tokenising_twice_changes_nothing(line in "[^&<\n]{0,40}|[a-c0-3.,'\" -]{0,30}") {
        let twice = |tokenizer: Tokenizer| {
            let once = tokenizer.apply(&line);
            (tokenizer.apply(&once), once)
        };
        // Of two adjacent stops one pass separates only the first: `.,0` gives `. ,0`, then `. , 0`.
        let stop = |character: char| matches!(character, '.' | ',');
        let adjacent = line.chars().zip(line.chars().skip(1)).any(|(l, r)| stop(l) && stop(r));
        if !adjacent {
            let (again, once) = twice(Tokenizer::Mteval13a);
            prop_assert_eq!(again, once);
        }
        let (again, once) = twice(Tokenizer::Character);
        prop_assert!(again.split_whitespace().eq(once.split_whitespace()));
    }

    #[test]
    fn lower_casing_first_is_the_same_as_the_option(corpus in corpus()) {
        let (hypotheses, references) = streams(&corpus);
        let bleu = Bleu { lowercase: true, ..Bleu::default() };
        let lower = |lines: &[String]| lines.iter().map(|line| line.to_lowercase()).collect::<Vec<_>>();
        let lowered = references.each_ref().map(|stream| lower(stream));
        let option = bleu.corpus(&hypotheses, &references).unwrap();
        let before = Bleu::default().corpus(&lower(&hypotheses), &lowered).unwrap();
        prop_assert_eq!(option.score, before.score);
    }
}

#[test]
fn threads_do_not_change_a_bit() {
    let lines: Vec<String> = (0..500)
        .map(|n| format!("line {n} of {} words, {}.", n % 7, n * n))
        .collect();
    let other: Vec<String> = (0..500)
        .map(|n| format!("line {} of {} words {}.", n / 2, n % 5, n * n))
        .collect();
    let score = |threads: usize| {
        let pool = rayon::ThreadPoolBuilder::new()
            .num_threads(threads)
            .build()
            .unwrap();
        pool.install(|| {
            let counts = SegmentCounts::collect(&Bleu::default(), &lines, &[&other]).unwrap();
            (
                counts.clone(),
                Bootstrap::default()
                    .confidence(&Bleu::default(), &counts)
                    .unwrap(),
            )
        })
    };
    assert_eq!(score(1), score(2));
    assert_eq!(score(2), score(3));
}
