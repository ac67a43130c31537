use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;
use crate::vocabulary::Vocabulary;

/// The scores of the next token depend on the last one and on how many there were: for each row `table(last, step)`.
struct Chain<F> {
    table: F,
    steps: Vec<usize>,
}

impl<F: Fn(u32, usize) -> Vec<f32>> Chain<F> {
    fn new(rows: usize, table: F) -> Self {
        Self {
            table,
            steps: vec![0; rows],
        }
    }
}

impl<F: Fn(u32, usize) -> Vec<f32>> Stepper for Chain<F> {
    fn vocabulary(&self) -> Vocabulary {
        Vocabulary::new(0)
    }

    fn step(&mut self, previous: &[u32], scores: &mut Vec<f32>) -> Option<Vec<f32>> {
        assert_eq!(previous.len(), self.steps.len());
        scores.clear();
        for (&last, step) in previous.iter().zip(&mut self.steps) {
            scores.extend((self.table)(last, *step));
            *step += 1;
        }
        None
    }

    fn select(&mut self, rows: &[usize], _: bool) {
        self.steps = rows.iter().map(|&row| self.steps[row]).collect();
    }
}

/// Scores that are the same for the same numbers.
fn scores_of(last: u32, step: usize, vocabulary: usize) -> Vec<f32> {
    let mut random = ChaCha12Rng::seed_from_u64(u64::from(last) << 32 | step as u64);
    (0..vocabulary)
        .map(|_| 6.0 * uniform(&mut random) as f32 - 3.0)
        .collect()
}

fn prompt(stream: u64, tokens: &[u32]) -> Prompt {
    Prompt {
        tokens: tokens.to_vec(),
        stream,
    }
}

fn run(prompts: &[Prompt], config: &SampleConfig) -> Vec<Sampled> {
    let mut chain = Chain::new(prompts.len(), |last, step| scores_of(last, step, 30));
    sample(
        &mut chain,
        prompts,
        config,
        |_, _| ControlFlow::Continue(()),
    )
    .unwrap()
}

/// The probabilities with which tokens are drawn, by the plainest definition: all candidates are sorted, and sums are taken anew.
fn exact(scores: &[f32], config: &SampleConfig) -> BTreeMap<u32, f64> {
    let mut tokens: Vec<(f64, u32)> = scores
        .iter()
        .zip(0..)
        .filter(|(score, _)| **score > f32::NEG_INFINITY)
        .map(|(&score, token)| (f64::from(score) / config.temperature, token))
        .collect();
    tokens.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
    if config.top_k > 0 {
        tokens.truncate(config.top_k);
    }
    let shares = |tokens: &[(f64, u32)]| -> Vec<f64> {
        let weights: Vec<f64> = tokens
            .iter()
            .map(|(score, _)| (score - tokens[0].0).exp())
            .collect();
        let total: f64 = weights.iter().sum();
        weights.iter().map(|weight| weight / total).collect()
    };
    let of_k = shares(&tokens);
    let mut count = 1;
    while count < tokens.len() && of_k[..count].iter().sum::<f64>() < config.top_p {
        count += 1;
    }
    if config.top_p == 1.0 {
        // All of them, however small beside the rounding of the sum.
        count = tokens.len();
    }
    tokens.truncate(count);
    let of_p = shares(&tokens);
    let count = of_p
        .iter()
        .filter(|share| **share >= config.min_p * of_p[0])
        .count();
    tokens.truncate(count);
    let kept = shares(&tokens);
    tokens.iter().map(|(_, token)| *token).zip(kept).collect()
}

/// 200,000 draws against the exact distribution, by χ²; tokens that are expected less than 5 times are counted together.
#[test]
fn draws_have_the_exact_distribution() {
    const DRAWS: usize = 200_000;
    let scores = scores_of(7, 7, 50);
    let mut checked = 0;
    for (temperature, top_k, top_p, min_p) in [
        (1.0, 0, 1.0, 0.0),
        (0.7, 0, 1.0, 0.0),
        (2.5, 0, 1.0, 0.0),
        (1.0, 10, 1.0, 0.0),
        (1.0, 0, 0.9, 0.0),
        (1.0, 0, 1.0, 0.05),
        (0.8, 20, 0.95, 0.1),
    ] {
        let config = SampleConfig {
            temperature,
            top_k,
            top_p,
            min_p,
            seed: 5,
            limit: DRAWS,
            ..SampleConfig::default()
        };
        let mut chain = Chain::new(1, |_, _| scores.clone());
        let sampled = sample(&mut chain, &[prompt(0, &[1])], &config, |_, _| {
            ControlFlow::Continue(())
        });
        let sampled = &sampled.unwrap()[0];
        assert_eq!(sampled.end, SampleEnd::Limit);
        let mut counts = vec![0usize; scores.len()];
        for &token in &sampled.tokens {
            counts[token as usize] += 1;
        }
        let expected = exact(&scores, &config);
        let (mut squares, mut freedom, mut rare) = (0.0, -1.0, (0.0, 0.0));
        for (token, count) in counts.iter().enumerate() {
            let share = expected.get(&(token as u32)).copied().unwrap_or(0.0) * DRAWS as f64;
            if share == 0.0 {
                assert_eq!(*count, 0, "token {token}");
            } else if share < 5.0 {
                rare = (rare.0 + share, rare.1 + *count as f64);
            } else {
                squares += (*count as f64 - share).powi(2) / share;
                freedom += 1.0;
            }
        }
        if rare.0 > 0.0 {
            squares += (rare.1 - rare.0).powi(2) / rare.0.max(1.0);
            freedom += 1.0;
        }
        // χ² has this mean and variance; four standard deviations.
        assert!(
            squares < freedom + 4.0 * (2.0_f64 * freedom).sqrt(),
            "{squares} of {freedom}"
        );
        checked += 1;
    }
    assert_eq!(checked, 7);
}

#[test]
fn greedy_takes_the_likeliest_and_of_equals_the_first() {
    let found = &run(&[prompt(0, &[3])], &SampleConfig::greedy())[0];
    let (mut last, mut sum) = (3, 0.0);
    for (step, &token) in found.tokens.iter().enumerate() {
        let scores = scores_of(last, step, 30);
        let best = (0..30).max_by(|&a, &b| scores[a].total_cmp(&scores[b]).then(b.cmp(&a)));
        assert_eq!(token as usize, best.unwrap());
        sum += f64::from(scores[token as usize]);
        last = token;
    }
    assert_eq!(found.tokens.len(), 256);
    assert_eq!(found.log_probability, sum);
    assert_eq!(likeliest(&[1.0, 2.0, 2.0]), Some(1));
    assert_eq!(likeliest(&[f32::NEG_INFINITY; 3]), None);
    // With one token left, drawing is the same.
    for config in [
        SampleConfig {
            top_k: 1,
            ..SampleConfig::default()
        },
        SampleConfig {
            top_p: 1e-9,
            ..SampleConfig::default()
        },
        SampleConfig {
            min_p: 1.0,
            ..SampleConfig::default()
        },
        SampleConfig {
            temperature: 1e-300,
            ..SampleConfig::default()
        },
    ] {
        assert_eq!(run(&[prompt(0, &[3])], &config)[0].tokens, found.tokens);
    }
}

#[test]
fn a_row_is_the_same_alone_and_in_a_batch() {
    let prompts = [
        prompt(4, &[1, 2]),
        prompt(0, &[5]),
        prompt(9, &[1, 2]),
        prompt(4, &[1, 2]),
    ];
    for temperature in [0.0, 1.3] {
        let config = SampleConfig {
            temperature,
            top_p: 0.9,
            repetition_penalty: 1.3,
            stop: vec![2, 11],
            limit: 40,
            seed: 3,
            ..SampleConfig::default()
        };
        let together = run(&prompts, &config);
        for (prompt, row) in prompts.iter().zip(&together) {
            assert_eq!(&run(std::slice::from_ref(prompt), &config)[0], row);
        }
        assert_eq!(together[0], together[3]);
        assert_eq!(together[0] == together[2], temperature == 0.0);
        let again = SampleConfig { seed: 4, ..config };
        assert_eq!(run(&prompts, &again) == together, temperature == 0.0);
    }
    // The draws of a seed are fixed: these stand here so that no change goes unnoticed.
    let config = SampleConfig {
        seed: 1,
        limit: 12,
        ..SampleConfig::default()
    };
    assert_eq!(run(&[prompt(0, &[1])], &config)[0].tokens, FIXED);
}

const FIXED: [u32; 12] = [29, 16, 15, 5, 9, 26, 13, 18, 15, 4, 11, 0];

#[test]
fn rows_end_by_stop_limit_or_caller() {
    // Row by row: the token 5 after as many steps as the prompt says.
    let table = |last: u32, _| {
        let mut scores = vec![f32::NEG_INFINITY; 40];
        scores[if last <= 5 { 5 } else { last as usize - 1 }] = -0.5;
        scores
    };
    let prompts = [
        prompt(0, &[9]),
        prompt(0, &[30]),
        prompt(0, &[7]),
        prompt(0, &[6]),
    ];
    let config = SampleConfig {
        stop: vec![5],
        limit: 6,
        ..SampleConfig::default()
    };
    let mut told = vec![];
    let mut chain = Chain::new(4, table);
    let found = sample(&mut chain, &prompts, &config, |row, token| {
        told.push((row, token));
        if (row, token) == (2, 6) {
            ControlFlow::Break(())
        } else {
            ControlFlow::Continue(())
        }
    });
    let found = found.unwrap();
    let ends: Vec<_> = found
        .iter()
        .map(|row| (row.tokens.as_slice(), row.end))
        .collect();
    assert_eq!(
        ends,
        [
            (&[8, 7, 6][..], SampleEnd::Stop(5)),
            (&[29, 28, 27, 26, 25, 24], SampleEnd::Limit),
            (&[6], SampleEnd::Caller),
            (&[], SampleEnd::Stop(5)),
        ]
    );
    assert_eq!(found[0].log_probability, -2.0);
    assert_eq!(
        told,
        [
            (0, 8),
            (1, 29),
            (2, 6),
            (0, 7),
            (1, 28),
            (0, 6),
            (1, 27),
            (1, 26),
            (1, 25),
            (1, 24)
        ]
    );
    let nothing = SampleConfig { limit: 0, ..config };
    let found = sample(&mut chain, &prompts, &nothing, |_, _| unreachable!()).unwrap();
    assert!(
        found
            .iter()
            .all(|row| row.tokens.is_empty() && row.end == SampleEnd::Limit)
    );
    assert_eq!(
        sample(
            &mut Chain::new(0, table),
            &[],
            &nothing,
            |_, _| unreachable!()
        ),
        Ok(vec![])
    );
}

#[test]
fn what_cannot_be_drawn_is_an_error() {
    let with = |scores: &[f32], config: &SampleConfig| {
        let mut chain = Chain::new(1, |_, _| scores.to_vec());
        sample(&mut chain, &[prompt(0, &[0])], config, |_, _| {
            ControlFlow::Break(())
        })
    };
    for config in [SampleConfig::greedy(), SampleConfig::default()] {
        for bad in [f32::NAN, f32::INFINITY] {
            let error = with(&[0.0, bad], &config).unwrap_err();
            assert!(
                matches!(
                    error,
                    SampleError::Score {
                        row: 0,
                        token: 1,
                        ..
                    }
                ),
                "{error}"
            );
        }
        let none = with(&[f32::NEG_INFINITY; 2], &config);
        assert_eq!(none, Err(SampleError::NoToken { row: 0 }));
        assert_eq!(with(&[], &config), Err(SampleError::NoToken { row: 0 }));
        let mut chain = Chain::new(1, |_, _| vec![0.0]);
        let empty = sample(&mut chain, &[prompt(0, &[])], &config, |_, _| {
            ControlFlow::Break(())
        });
        assert_eq!(empty, Err(SampleError::EmptyPrompt { row: 0 }));
    }
    let plain = SampleConfig::default;
    for (config, message) in [
        (
            SampleConfig {
                temperature: -1.0,
                ..plain()
            },
            "temperature: found -1; expected at least 0",
        ),
        (
            SampleConfig {
                temperature: f64::NAN,
                ..plain()
            },
            "temperature: found NaN; expected at least 0",
        ),
        (
            SampleConfig {
                top_p: 0.0,
                ..plain()
            },
            "top_p: found 0; expected above 0 and at most 1",
        ),
        (
            SampleConfig {
                min_p: 1.5,
                ..plain()
            },
            "min_p: found 1.5; expected 0 to 1",
        ),
        (
            SampleConfig {
                repetition_penalty: 0.0,
                ..plain()
            },
            "repetition_penalty: found 0; expected above 0",
        ),
    ] {
        assert_eq!(with(&[0.0], &config).unwrap_err().to_string(), message);
    }
}

/// The formula of CTRL, over prompt and output; the sum of scores is the model's own.
#[test]
fn the_penalty_is_on_tokens_that_have_occurred() {
    let mut scores = [2.0, -2.0, 3.0, f32::NEG_INFINITY];
    let own = penalize(&mut scores, &[0, 1, 3, 99], 1.5);
    assert_eq!(scores, [2.0 / 1.5, -3.0, 3.0, f32::NEG_INFINITY]);
    assert_eq!(own, [2.0, -2.0, f32::NEG_INFINITY, f32::NEG_INFINITY]);
    let table = |_: u32, _| vec![1.0, 0.9, 0.8, 0.7];
    let config = SampleConfig {
        repetition_penalty: 10.0,
        limit: 5,
        ..SampleConfig::greedy()
    };
    let found = sample(
        &mut Chain::new(1, table),
        &[prompt(0, &[1, 1])],
        &config,
        |_, _| ControlFlow::Continue(()),
    );
    let found = &found.unwrap()[0];
    assert_eq!(found.tokens, [0, 2, 3, 0, 0]);
    let sum = [1.0f32, 0.8, 0.7, 1.0, 1.0]
        .map(f64::from)
        .iter()
        .sum::<f64>();
    assert!((found.log_probability - sum).abs() < 1e-12);
    let mut extreme = [f32::MAX, f32::MIN];
    penalize(&mut extreme, &[0, 1], 1e-30);
    penalize(&mut extreme, &[0, 1], 1e30);
    assert!(extreme.iter().all(|score| score.is_finite()));
}

fn a_score() -> impl Strategy<Value = f32> {
    // Few different values, so that ties are frequent.
    prop_oneof![8 => (-12i32..8).prop_map(|step| step as f32 / 4.0), 1 => Just(f32::NEG_INFINITY), 3 => -9f32..9.0]
}

proptest! {
    #[test]
    fn filters_keep_what_their_definition_says(
        scores in prop::collection::vec(a_score(), 1..60),
        temperature in 0.2f64..4.0,
        top_k in 0usize..70,
        top_p in prop_oneof![Just(1.0), 0.01f64..1.0],
        min_p in prop_oneof![Just(0.0), 0.0f64..1.0],
    ) {
        prop_assume!(scores.iter().any(|score| score.is_finite()));
        let config = SampleConfig { temperature, top_k, top_p, min_p, ..SampleConfig::default() };
        let expected = exact(&scores, &config);
        let mut candidates: Vec<Candidate> = temper(&scores, temperature).collect();
        if top_k > 0 {
            super::top_k(&mut candidates, top_k);
        }
        if top_p < 1.0 {
            super::top_p(&mut candidates, top_p);
        }
        if min_p > 0.0 {
            super::min_p(&mut candidates, min_p);
        }
        let mut kept: Vec<u32> = candidates.iter().map(|candidate| candidate.token).collect();
        kept.sort_unstable();
        prop_assert_eq!(kept, expected.keys().copied().collect::<Vec<_>>());
        // Every token that stays can be drawn, and no other.
        let mut buffer = vec![];
        for place in 0..40 {
            let token = draw(&scores, &config, &mut buffer, f64::from(place) / 40.0).unwrap();
            prop_assert!(expected.contains_key(&token));
        }
        let last = draw(&scores, &config, &mut buffer, 1.0 - f64::EPSILON / 2.0).unwrap();
        prop_assert!(expected.contains_key(&last));
    }

    #[test]
    fn a_constant_added_to_all_scores_changes_nothing(
        scores in prop::collection::vec((-16i32..16).prop_map(|step| step as f32 / 2.0), 1..40),
        shift in -8i32..8,
        uniform in 0f64..1.0,
    ) {
        let config = SampleConfig { temperature: 0.7, top_k: 9, top_p: 0.8, min_p: 0.05, ..SampleConfig::default() };
        let shifted: Vec<f32> = scores.iter().map(|score| score + shift as f32).collect();
        let drawn = |scores: &[f32]| draw(scores, &config, &mut vec![], uniform);
        prop_assert_eq!(drawn(&scores), drawn(&shifted));
    }
}
