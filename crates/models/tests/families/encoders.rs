//! Models that read.

use regard_models::pretrained::{Input, TextEncoder};

use super::{Golden, Weights, close, open, real};

const CASES: [&str; 11] = [
    "bert",
    "bert-answer",
    "bert-classes",
    "bert-first",
    "bert-sentence",
    "bert-tokens",
    "distilbert",
    "distilbert-answer",
    "distilbert-classes",
    "roberta",
    "roberta-classes",
];

#[test]
fn states_weights_and_heads_are_those_of_the_original() {
    for case in CASES {
        let golden = Golden::of(case);
        let model =
            TextEncoder::open(&open(case), None).unwrap_or_else(|error| panic!("{case}: {error}"));
        let (ids, masks) = (golden.rows("ids"), golden.rows("attention_mask"));
        let types = match golden.ids.contains_key("token_types") {
            true => golden.rows("token_types"),
            false => vec![vec![]; ids.len()],
        };
        // What is padding there is not read here.
        let kept = |row: &[u32], mask: &[u32]| -> Vec<u32> {
            let kept = row.iter().zip(mask).filter(|(_, mask)| **mask == 1);
            kept.map(|(id, _)| *id).collect()
        };
        let texts: Vec<_> = (0..ids.len())
            .map(|row| (kept(&ids[row], &masks[row]), kept(&types[row], &masks[row])))
            .collect();
        let inputs: Vec<Input> = texts
            .iter()
            .map(|(ids, types)| Input { ids, types })
            .collect();
        let mut weights = Weights::default();
        let states = model.states(&inputs, Some(&mut weights)).unwrap();
        assert_eq!(
            states,
            model.states(&inputs, None).unwrap(),
            "{case}: looking"
        );
        let layers = model.stack().blocks().len();
        for (row, states) in states.iter().enumerate() {
            let what = |part: &str| format!("{case}: {part} of row {row}");
            let mask = &masks[row];
            let last = golden.row(&format!("hidden.{layers}"), row);
            close(
                &what("states"),
                states,
                &real(last, mask, model.size()),
                1e-4,
            );
            assert_eq!(states, &model.states(&inputs[row..=row], None).unwrap()[0]);
            for layer in 0..layers {
                let name = format!("attention.{layer}");
                let width = mask.len();
                let expected: Vec<f32> = golden
                    .row(&name, row)
                    .chunks(width * width)
                    .flat_map(|head| real(head, mask, width))
                    .collect();
                let expected: Vec<f32> = expected
                    .chunks(width)
                    .flat_map(|keys| real(keys, mask, 1))
                    .collect();
                close(&what(&name), &weights.0[&(layer, row)], &expected, 1e-5);
            }
            for (name, each) in [("logits", true), ("tokens", true), ("classes", false)] {
                // With padding on the left, the original takes the state of a padding token for the text's.
                let padded_left = !each && mask[0] == 0;
                if golden.numbers.contains_key(name) && !padded_left {
                    let (shape, _) = &golden.numbers[name];
                    let expected = golden.row(name, row);
                    let expected = match each {
                        true => real(expected, mask, shape[2]),
                        false => expected.to_vec(),
                    };
                    close(
                        &what(name),
                        &model.outputs(states).unwrap(),
                        &expected,
                        1e-4,
                    );
                }
            }
            if golden.numbers.contains_key("start") {
                let spans = model.spans(states).unwrap();
                close(
                    &what("start"),
                    &spans.start,
                    &real(golden.row("start", row), mask, 1),
                    1e-4,
                );
                close(
                    &what("end"),
                    &spans.end,
                    &real(golden.row("end", row), mask, 1),
                    1e-4,
                );
            }
            if golden.numbers.contains_key("pooled") {
                let pooled = model.pooled(states).unwrap();
                close(&what("pooled"), &pooled, golden.row("pooled", row), 1e-4);
            }
        }
    }
}
