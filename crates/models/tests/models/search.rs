//! Beam search against exhaustive search and against a search written differently, on a language that
//! is a table of numbers.

use std::collections::BTreeMap;

use proptest::prelude::*;
use regard_models::{
    Stepper,
    generate::{BeamConfig, Hypothesis, LengthLimit, LengthPenalty, Stopping, beam_search},
    pretrained::{Searching, WritingRules},
};

const PADDING: u32 = 0;
const START: u32 = 1;
const END: u32 = 2;
const VOCABULARY: u32 = 7;

/// A language model whose next token depends on the language, the sentence and everything written so far.
#[derive(Clone, Copy)]
struct Language {
    seed: u64,
    attends: bool,
}

impl Language {
    fn number(self, sentence: usize, said: &[u32], slot: u64) -> f32 {
        let mut x = self.seed ^ (sentence as u64) << 32 ^ slot << 48;
        for &token in said {
            x = (x ^ u64::from(token)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            x ^= x >> 29;
        }
        x = (x ^ (x >> 32)).wrapping_mul(0xd6e8_feb8_6659_fd93);
        x = (x ^ (x >> 32)).wrapping_mul(0xd6e8_feb8_6659_fd93);
        (x >> 40) as f32 / (1 << 24) as f32
    }

    fn normalised(values: impl Iterator<Item = f32>) -> Vec<f32> {
        let values: Vec<f32> = values.collect();
        let sum: f32 = values.iter().sum();
        values.iter().map(|value| value / sum).collect()
    }

    /// Log-probabilities of the next token; padding and start are likely, so that the search has to refuse them.
    fn log_probabilities(self, sentence: usize, said: &[u32]) -> Vec<f32> {
        let share = |token: u32| self.number(sentence, said, u64::from(token)).powi(2) + 1e-3;
        let shares = Self::normalised((0..VOCABULARY).map(share));
        shares.iter().map(|share| share.ln()).collect()
    }

    fn weights(self, sentence: usize, said: &[u32], source: usize) -> Vec<f32> {
        let share = |s: usize| self.number(sentence, said, 100 + s as u64) + 1e-3;
        Self::normalised((0..source).map(share))
    }
}

/// The language as a [`Stepper`]. It also checks the arguments of each call.
struct Table {
    language: Language,
    lengths: Vec<usize>,
    rows: Vec<(usize, Vec<u32>)>,
}

impl Table {
    fn new(language: Language, lengths: &[usize]) -> Self {
        Self {
            language,
            lengths: lengths.to_vec(),
            rows: (0..lengths.len())
                .map(|sentence| (sentence, vec![]))
                .collect(),
        }
    }
}

impl Stepper for Table {
    fn vocabulary(&self) -> regard_models::Vocabulary {
        regard_models::Vocabulary::new(VOCABULARY as usize)
    }

    fn step(&mut self, previous: &[u32], scores: &mut Vec<f32>) -> Option<Vec<f32>> {
        scores.clear();
        assert_eq!(previous.len(), self.rows.len());
        let padded = self.lengths.iter().copied().max().unwrap();
        let mut weights = vec![];
        for ((sentence, said), &token) in self.rows.iter_mut().zip(previous) {
            assert!(token != PADDING && token != END);
            assert_eq!(token == START, said.is_empty());
            said.push(token);
            scores.extend(self.language.log_probabilities(*sentence, said));
            let row = self
                .language
                .weights(*sentence, said, self.lengths[*sentence]);
            weights.extend(row.iter().copied().chain([0.0; 9]).take(padded));
        }
        self.language.attends.then_some(weights)
    }

    fn select(&mut self, rows: &[usize], same_sources: bool) {
        assert!(!rows.is_empty());
        let selected: Vec<_> = rows.iter().map(|&row| self.rows[row].clone()).collect();
        let same = selected.len() == self.rows.len()
            && selected.iter().zip(&self.rows).all(|(a, b)| a.0 == b.0);
        assert!(
            same || !same_sources,
            "the memory would stay with another sentence"
        );
        self.rows = selected;
    }
}

/// Scores `tokens` from scratch.
fn score(
    language: Language,
    sentence: usize,
    source: usize,
    tokens: &[u32],
    finished: bool,
) -> Hypothesis {
    let end = finished.then_some(END);
    let mut said = vec![START];
    let (mut log_probability, mut weights) = (0.0, vec![]);
    for token in tokens.iter().copied().chain(end) {
        log_probability += f64::from(language.log_probabilities(sentence, &said)[token as usize]);
        weights.push(language.weights(sentence, &said, source));
        said.push(token);
    }
    Hypothesis {
        tokens: tokens.to_vec(),
        log_probability,
        score: f64::NAN,
        weights: if language.attends { weights } else { vec![] },
        finished,
        end,
    }
}

/// GNMT's ranking, from its formula.
fn rank(found: &Hypothesis, source: usize, config: &BeamConfig) -> f64 {
    let tokens = found.tokens.len() + usize::from(found.finished);
    let mut coverage = vec![0.0f64; if found.weights.is_empty() { 0 } else { source }];
    for row in &found.weights {
        coverage
            .iter_mut()
            .zip(row)
            .for_each(|(sum, &weight)| *sum += f64::from(weight));
    }
    let covered: f64 = coverage.iter().map(|sum| sum.min(1.0).ln()).sum();
    found.log_probability / ((5.0 + tokens as f64) / 6.0).powf(config.length_penalty)
        + config.coverage_penalty * covered
}

/// Beam search by whole prefixes, without any sharing: Bahdanau's, which shrinks as hypotheses end.
fn plain_beam(
    language: Language,
    sentence: usize,
    source: usize,
    config: &BeamConfig,
) -> Vec<Hypothesis> {
    let limit = config.limit.tokens(source);
    let mut live: Vec<(Vec<u32>, f64)> = vec![(vec![], 0.0)];
    let mut done = vec![];
    for length in 1.. {
        let mut all = vec![];
        for (tokens, log_probability) in &live {
            let said: Vec<u32> = [START].into_iter().chain(tokens.iter().copied()).collect();
            let scores = language.log_probabilities(sentence, &said);
            let extended = |token: u32| [tokens.as_slice(), &[token]].concat();
            let mut options: Vec<u32> = (2..VOCABULARY)
                .filter(|&token| !repeats(&extended(token), config.no_repeat_ngram))
                .collect();
            if options.is_empty() {
                options.push(END);
            }
            for token in options {
                all.push((
                    extended(token),
                    log_probability + f64::from(scores[token as usize]),
                ));
            }
        }
        all.sort_by(|a, b| b.1.total_cmp(&a.1));
        all.truncate(config.size - done.len());
        live.clear();
        for (mut tokens, log_probability) in all {
            let finished = tokens.last() == Some(&END);
            if finished || length == limit {
                tokens.truncate(tokens.len() - usize::from(finished));
                done.push(score(language, sentence, source, &tokens, finished));
            } else {
                live.push((tokens, log_probability));
            }
        }
        if live.is_empty() {
            break;
        }
    }
    sorted(done, source, config)
}

fn sorted(mut all: Vec<Hypothesis>, source: usize, config: &BeamConfig) -> Vec<Hypothesis> {
    for hypothesis in &mut all {
        hypothesis.score = rank(hypothesis, source, config);
    }
    all.sort_by(|a, b| {
        b.finished
            .cmp(&a.finished)
            .then(b.score.total_cmp(&a.score))
    });
    all.truncate(config.n_best);
    all
}

/// Whether an n-gram occurs twice; `END` is part of none.
fn repeats(tokens: &[u32], n: usize) -> bool {
    let mut seen = BTreeMap::new();
    let words = tokens.strip_suffix(&[END]).unwrap_or(tokens);
    n > 0 && words.windows(n).any(|gram| seen.insert(gram, ()).is_some())
}

fn assert_same(found: &[Hypothesis], expected: &[Hypothesis]) {
    let tokens = |all: &[Hypothesis]| -> Vec<_> {
        all.iter().map(|h| (h.tokens.clone(), h.finished)).collect()
    };
    assert_eq!(tokens(found), tokens(expected));
    for (found, expected) in found.iter().zip(expected) {
        assert!((found.log_probability - expected.log_probability).abs() < 1e-9);
        // Coverage is summed in f32.
        assert!(
            (found.score - expected.score).abs() < 1e-5,
            "{} {}",
            found.score,
            expected.score
        );
        assert_eq!(found.weights, expected.weights, "weights of another past");
    }
}

fn limit(most: usize) -> LengthLimit {
    LengthLimit {
        factor: 0.0,
        constant: most,
        most: 100,
    }
}

/// Every sequence of at most `most` tokens: those that end with `</s>`, and those that the limit cuts.
fn everything(language: Language, source: usize, most: usize) -> Vec<Hypothesis> {
    let (mut all, mut open) = (vec![], vec![vec![]]);
    for length in 1..=most {
        let mut longer: Vec<Vec<u32>> = vec![];
        for tokens in &open {
            all.push(score(language, 0, source, tokens, true));
            longer.extend((3..VOCABULARY).map(|token| [tokens.as_slice(), &[token]].concat()));
        }
        if length == most {
            all.extend(
                longer
                    .iter()
                    .map(|tokens| score(language, 0, source, tokens, false)),
            );
        }
        open = longer;
    }
    all
}

#[test]
fn a_wide_beam_is_exhaustive_search() {
    let mut checked = 0;
    for seed in 0..4 {
        let language = Language {
            seed,
            attends: true,
        };
        for length_penalty in [0.0, 0.6, 1.0, 2.0] {
            for coverage_penalty in [0.0, 0.2] {
                let config = BeamConfig {
                    size: 1000,
                    length_penalty,
                    coverage_penalty,
                    n_best: 1000,
                    limit: limit(4),
                    ..Default::default()
                };
                let found = beam_search(&mut Table::new(language, &[3]), &[3], &config);
                let all = everything(language, 3, 4);
                assert_eq!(all.len(), 1 + 4 + 16 + 64 + 256);
                assert_same(&found[0], &sorted(all, 3, &config));
                checked += 1;
            }
        }
    }
    assert_eq!(checked, 32);
}

/// So is a beam that keeps its width; those that the limit cut are ranked with the others.
#[test]
fn a_wide_beam_of_transformers_is_exhaustive_search() {
    let language = Language {
        seed: 3,
        attends: false,
    };
    for length_penalty in [-1.0, 0.0, 0.6, 2.0] {
        let config = BeamConfig {
            size: 1000,
            stopping: Stopping::Never,
            penalty: LengthPenalty::Power,
            length_penalty,
            n_best: 1000,
            limit: limit(4),
            ..Default::default()
        };
        let found = beam_search(&mut Table::new(language, &[3]), &[3], &config);
        let mut all = everything(language, 3, 4);
        for one in &mut all {
            let tokens = one.tokens.len() + usize::from(one.finished);
            one.score = one.log_probability / (tokens as f64).powf(length_penalty);
        }
        all.sort_by(|a, b| b.score.total_cmp(&a.score));
        assert_same(&found[0], &all);
    }
}

#[test]
fn the_length_penalty_prefers_longer_ones() {
    let mean_length = |length_penalty| {
        let best = |seed| {
            let language = Language {
                seed,
                attends: false,
            };
            let config = BeamConfig {
                size: 1000,
                length_penalty,
                limit: limit(4),
                ..Default::default()
            };
            beam_search(&mut Table::new(language, &[3]), &[3], &config)[0][0]
                .tokens
                .len()
        };
        (0..50).map(best).sum::<usize>()
    };
    let (plain, gentle, strong) = (mean_length(0.0), mean_length(1.0), mean_length(3.0));
    assert!(
        plain < gentle && gentle < strong,
        "{plain} {gentle} {strong}"
    );
}

fn configs() -> impl Strategy<Value = BeamConfig> {
    (
        1usize..12,
        0.0f64..2.0,
        0.0f64..0.5,
        1usize..12,
        0usize..4,
        1usize..8,
    )
        .prop_map(
            |(size, length_penalty, coverage_penalty, n_best, no_repeat_ngram, most)| BeamConfig {
                size,
                length_penalty,
                coverage_penalty,
                n_best: n_best.min(size),
                no_repeat_ngram,
                limit: LengthLimit {
                    factor: 0.5,
                    constant: most,
                    most: 100,
                },
                ..Default::default()
            },
        )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, failure_persistence: None, ..Default::default() })]

    /// Any width: the same hypotheses as the plain search, in the same order, each with the weights of
    /// its own past; and a sentence within a batch has the result it has alone.
    #[test]
    fn beam_search_equals_the_plain_one(
        seed: u64, attends: bool,
        lengths in prop::collection::vec(1usize..7, 1..5),
        config in configs(),
    ) {
        let config = BeamConfig {
            coverage_penalty: if attends { config.coverage_penalty } else { 0.0 },
            ..config
        };
        let language = Language { seed, attends };
        let found = beam_search(&mut Table::new(language, &lengths), &lengths, &config);
        prop_assert_eq!(found.len(), lengths.len());
        for (sentence, (found, &source)) in found.iter().zip(&lengths).enumerate() {
            let expected = plain_beam(language, sentence, source, &config);
            assert_same(found, &expected);
            prop_assert!(!found.is_empty() && found.len() <= config.n_best);
            for pair in found.windows(2) {
                prop_assert!(pair[0].finished >= pair[1].finished);
                prop_assert!(pair[0].finished != pair[1].finished || pair[0].score >= pair[1].score);
                prop_assert!(pair[0].tokens != pair[1].tokens || pair[0].finished != pair[1].finished);
            }
            for hypothesis in found {
                prop_assert!(!repeats(&hypothesis.tokens, config.no_repeat_ngram));
                prop_assert!(hypothesis.tokens.iter().all(|&t| t > END && t < VOCABULARY));
                let rows = hypothesis.tokens.len() + usize::from(hypothesis.finished);
                prop_assert!(rows <= config.limit.tokens(source));
                prop_assert_eq!(hypothesis.weights.len(), if attends { rows } else { 0 });
                prop_assert!(hypothesis.weights.iter().all(|row| row.len() == source));
            }
        }
    }

    /// A beam of one takes the likeliest token at every step.
    #[test]
    fn a_beam_of_one_is_greedy(seed: u64, source in 1usize..7, most in 1usize..9) {
        let language = Language { seed, attends: true };
        let config = BeamConfig { limit: limit(most), ..BeamConfig::greedy() };
        let found = beam_search(&mut Table::new(language, &[source]), &[source], &config);
        let mut tokens = vec![];
        while tokens.len() < most && tokens.last() != Some(&END) {
            let said: Vec<u32> = [START].into_iter().chain(tokens.iter().copied()).collect();
            let scores = language.log_probabilities(0, &said);
            let likeliest = (END..VOCABULARY).max_by(|&a, &b| scores[a as usize].total_cmp(&scores[b as usize]));
            tokens.push(likeliest.unwrap());
        }
        let finished = tokens.last() == Some(&END);
        tokens.truncate(tokens.len() - usize::from(finished));
        prop_assert_eq!(&found[0][0].tokens, &tokens);
        prop_assert_eq!(found[0][0].finished, finished);
    }
}

/// Without a coverage penalty nothing is kept for each position of a source.
#[test]
fn a_source_takes_memory_only_for_a_coverage_penalty() {
    let language = Language {
        seed: 1,
        attends: false,
    };
    let config = BeamConfig {
        limit: limit(5),
        ..Default::default()
    };
    let found = beam_search(&mut Table::new(language, &[3]), &[1 << 50], &config);
    assert!(!found[0].is_empty());
}

/// Logits of nothing but NaN end the sentence instead of looping or panicking.
#[test]
fn scores_that_are_no_numbers_end_the_search() {
    struct Broken(f32);
    impl Stepper for Broken {
        fn vocabulary(&self) -> regard_models::Vocabulary {
            regard_models::Vocabulary::new(VOCABULARY as usize)
        }
        fn step(&mut self, previous: &[u32], scores: &mut Vec<f32>) -> Option<Vec<f32>> {
            scores.clear();
            scores.resize(previous.len() * VOCABULARY as usize, self.0);
            None
        }
        fn select(&mut self, _: &[usize], _: bool) {}
    }
    for value in [f32::NAN, f32::NEG_INFINITY, f32::INFINITY] {
        for size in [1, 4] {
            let config = BeamConfig {
                size,
                n_best: size,
                limit: limit(5),
                ..Default::default()
            };
            let found = beam_search(&mut Broken(value), &[3, 1], &config);
            assert_eq!(found.len(), 2);
            assert!(found.iter().all(|hypotheses| !hypotheses.is_empty()));
        }
    }
}

/// Three tokens, of which none ends a text, each as likely as the others.
struct Three;

impl Stepper for Three {
    fn vocabulary(&self) -> regard_models::Vocabulary {
        regard_models::Vocabulary::new(3)
    }

    fn step(&mut self, previous: &[u32], scores: &mut Vec<f32>) -> Option<Vec<f32>> {
        assert!(previous.iter().all(|&token| token < 3));
        scores.clear();
        scores.resize(3 * previous.len(), 0.0);
        None
    }

    fn select(&mut self, _: &[usize], _: bool) {}
}

/// A text with which no token may go on ends there, if there is no token that ends a text.
#[test]
fn a_text_ends_where_every_token_is_forbidden() {
    for (size, stopping) in [
        (1, Stopping::Shrinking),
        (2, Stopping::Shrinking),
        (2, Stopping::Early),
        (2, Stopping::Never),
    ] {
        let search = |before: &[u32]| {
            let rules = WritingRules {
                no_repeat_ngram: 1,
                ..WritingRules::default()
            };
            let mut searching = Searching::new(Three, before, 0, &[], rules);
            let config = BeamConfig {
                size,
                stopping,
                n_best: size,
                limit: LengthLimit {
                    factor: 0.0,
                    constant: 5,
                    most: 5,
                },
                ..BeamConfig::default()
            };
            beam_search(&mut searching, &[0], &config).remove(0)
        };
        let texts = |found: &[Hypothesis]| -> Vec<Vec<u32>> {
            assert!(found.iter().all(|one| !one.finished && one.end.is_none()));
            assert!(found.iter().all(|one| one.score.is_finite()));
            found.iter().map(|one| one.tokens.clone()).collect()
        };
        assert_eq!(texts(&search(&[])), [[1, 2], [2, 1]][..size]);
        assert_eq!(texts(&search(&[1])), [[2]]);
        assert_eq!(texts(&search(&[1, 2])), [Vec::<u32>::new()]);
    }
}
