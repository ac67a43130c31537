//! The recorded tree of a search against the search itself, which recording must not change.

use regard_models::{
    Vocabulary,
    generate::{BeamConfig, Prompt, Recorder, SampleConfig, SearchTree, beam_search, sample},
    generator::Stepper,
};

const MARKS: [f32; 3] = [f32::NEG_INFINITY; 3];

/// Proposes 4, 5, 6 and the end with scores that depend on the last token, and forgets nothing else.
struct Table;

impl Table {
    fn scores(previous: u32) -> Vec<f32> {
        let scores: [f32; 3] = match previous {
            4 => [0.1, 0.7, 0.2],
            5 => [0.6, 0.1, 0.3],
            6 => [0.3, 0.3, 0.4],
            _ => [0.5, 0.2, 0.3],
        };
        let end: f32 = if previous > 3 { 0.4 } else { 0.01 };
        let total = scores.iter().sum::<f32>() + end;
        let mut all = MARKS.to_vec();
        all[Self::marks().end as usize] = (end / total).ln();
        all.resize(4, f32::NEG_INFINITY);
        all.extend(scores.map(|score| (score / total).ln()));
        all
    }

    fn marks() -> Vocabulary {
        Vocabulary::new(7)
    }
}

impl Stepper for Table {
    fn vocabulary(&self) -> Vocabulary {
        Self::marks()
    }

    fn step(&mut self, previous: &[u32], scores: &mut Vec<f32>) -> Option<Vec<f32>> {
        *scores = previous
            .iter()
            .flat_map(|&token| Self::scores(token))
            .collect();
        None
    }

    fn select(&mut self, _: &[usize], _: bool) {}
}

/// The tokens from the first to the proposal at `place`, and the sum of their logarithms.
fn path(tree: &SearchTree, place: usize) -> (Vec<u32>, f64) {
    let (mut tokens, mut sum, mut next) = (vec![], 0.0, Some(place));
    while let Some(place) = next {
        let proposal = &tree.proposals[place];
        assert!(proposal.taken);
        tokens.insert(0, proposal.token);
        sum += proposal.log_probability;
        next = proposal.parent;
    }
    (tokens, sum)
}

#[test]
fn the_tree_of_a_beam_has_its_hypotheses() {
    let config = BeamConfig {
        size: 3,
        n_best: 3,
        ..BeamConfig::default()
    };
    let plain = beam_search(&mut Table, &[4], &config);
    let mut recorder = Recorder::new(Table);
    let found = beam_search(&mut recorder, &[4], &config);
    assert_eq!(found, plain);
    let texts: Vec<Vec<u32>> = found[0].iter().map(|one| one.with_end()).collect();
    let tree = recorder.tree(0, &texts, 2);
    assert_eq!(tree.leaves.len(), texts.len());
    for ((&leaf, text), one) in tree.leaves.iter().zip(&texts).zip(&found[0]) {
        let (tokens, sum) = path(&tree, leaf);
        assert_eq!(&tokens, text);
        assert_eq!(&tree.text(Some(leaf)), text);
        assert!((sum - one.log_probability).abs() < 1e-5);
    }
    assert!(tree.text(None).is_empty());
    // Every step lists its two likeliest tokens, and parents come before children.
    for (place, proposal) in tree.proposals.iter().enumerate() {
        assert!(proposal.parent.is_none_or(|parent| parent < place));
        let children = tree
            .proposals
            .iter()
            .filter(|one| one.parent == Some(place));
        let count = children.count();
        assert!(count == 0 || count >= 2, "{count}");
    }
    assert!(tree.proposals.iter().any(|one| !one.taken));
}

#[test]
fn the_tree_of_a_sampled_path_has_its_alternatives() {
    let config = SampleConfig {
        seed: 3,
        limit: 6,
        stop: vec![Table::marks().end],
        ..SampleConfig::default()
    };
    let prompts = [Prompt {
        tokens: vec![4],
        stream: 0,
    }];
    let go_on = |_, _| std::ops::ControlFlow::Continue(());
    let plain = sample(&mut Table, &prompts, &config, go_on).unwrap();
    let mut recorder = Recorder::new(Table);
    let found = sample(&mut recorder, &prompts, &config, go_on).unwrap();
    assert_eq!(found, plain);
    let text = found[0].with_end();
    let tree = recorder.tree(0, std::slice::from_ref(&text), 4);
    let (tokens, sum) = path(&tree, tree.leaves[0]);
    assert_eq!(tokens, text);
    assert!((sum - found[0].log_probability).abs() < 1e-5);
    assert_eq!(tree.proposals.len(), 4 * text.len());
    let first: f64 = tree.proposals[..4]
        .iter()
        .map(|one| one.log_probability.exp())
        .sum();
    assert!((first - 1.0).abs() < 1e-6);
}

#[test]
fn nothing_recorded_is_no_tree() {
    let recorder = Recorder::new(Table);
    assert_eq!(recorder.tree(0, &[vec![4]], 3), SearchTree::default());
}
