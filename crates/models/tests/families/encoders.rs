//! Models that read.

use regard_models::pretrained::{Folder, Input, Look, TextEncoder};
use safetensors::{SafeTensors, tensor::TensorView};
use serde_json::json;

use super::{Golden, Weights, close, copied, open, real};

const CASES: [&str; 18] = [
    "bert",
    "bert-answer",
    "bert-classes",
    "bert-first",
    "bert-sentence",
    "bert-tokens",
    "bert-untied",
    "distilbert",
    "distilbert-answer",
    "distilbert-classes",
    "distilbert-untied",
    "longformer",
    "longformer-answer",
    "longformer-classes",
    "longformer-tokens",
    "roberta",
    "roberta-classes",
    "roberta-untied",
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
        let globals: Option<Vec<Vec<usize>>> =
            golden.ids.contains_key("global_attention_mask").then(|| {
                let rows = golden.rows("global_attention_mask");
                let of = |row: &Vec<u32>| (0..row.len()).filter(|&at| row[at] == 1).collect();
                rows.iter().map(of).collect()
            });
        let inputs: Vec<Input> = texts
            .iter()
            .enumerate()
            .map(|(row, (ids, types))| Input {
                ids,
                types,
                global: globals.as_ref().map(|globals| &globals[row][..]),
            })
            .collect();
        let mut weights = Weights::default();
        let states = model.states(&inputs, Some(&mut weights)).unwrap();
        assert_eq!(
            states,
            model.states(&inputs, None).unwrap(),
            "{case}: looking"
        );
        let pool = rayon::ThreadPoolBuilder::new().num_threads(3);
        let elsewhere = pool
            .build()
            .unwrap()
            .install(|| model.states(&inputs, None));
        assert_eq!(states, elsewhere.unwrap(), "{case}: threads");
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

/// The states of one text with other settings, or why they are refused.
fn changed(
    case: &str,
    change: impl Fn(&mut serde_json::Value),
    input: Input<'_>,
) -> Result<Vec<f32>, String> {
    let copy = copied(case);
    let path = copy.path().join("config.json");
    let mut settings = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    change(&mut settings);
    std::fs::write(&path, settings.to_string()).unwrap();
    let folder = Folder::open(copy.path()).map_err(|error| error.to_string())?;
    let model = TextEncoder::open(&folder, None).map_err(|error| error.to_string())?;
    let states = model.states(&[input], None);
    states
        .map(|states| states[0].clone())
        .map_err(|error| error.to_string())
}

#[test]
fn windows_and_global_tokens_are_checked() {
    let ids = [9, 8, 7, 6, 5, 4, 9, 8, 7, 6];
    let input = Input {
        ids: &ids,
        ..Default::default()
    };
    let states = |window: serde_json::Value| {
        let change = |settings: &mut serde_json::Value| {
            settings["attention_window"] = window.clone();
        };
        changed("longformer", change, input)
    };
    // One size for all layers; without a size it is 512, all of this text.
    assert_eq!(states(json!(4)).unwrap(), states(json!([4, 4])).unwrap());
    assert_ne!(states(json!(4)).unwrap(), states(json!([4, 8])).unwrap());
    assert_eq!(states(json!(null)), states(json!(512)));
    for window in [json!(3), json!([4]), json!([4, 8, 4]), json!([4, 5])] {
        let error = states(window).unwrap_err();
        let expected = "an even number, or a list of one for each of 2 layers";
        let both = error.contains("attention_window") && error.contains(expected);
        assert!(both, "{error}");
    }
    for window in [json!(0), json!("wide"), json!([0, 4])] {
        let error = states(window).unwrap_err();
        assert!(error.contains("attention_window"), "{error}");
    }

    let with = |case: &str, global: &[usize]| {
        let global = Some(global);
        changed(case, |_| (), Input { global, ..input })
    };
    for global in [&[10][..], &[0, 0], &[5, 2]] {
        let error = with("longformer", global).unwrap_err();
        assert!(error.contains("ascending positions below 10"), "{error}");
    }
    let error = with("roberta", &[0]).unwrap_err();
    assert!(
        error.contains("for a model or a text without them"),
        "{error}"
    );
    let of_head = |case: &str| changed(case, |_| (), input).unwrap();
    assert_eq!(with("roberta", &[]).unwrap(), of_head("roberta"));
    // A head chooses unless the caller does; a text without a separator has no question.
    let classes = "longformer-classes";
    assert_eq!(with(classes, &[0]).unwrap(), of_head(classes));
    assert_ne!(with(classes, &[]).unwrap(), of_head(classes));
    let answer = "longformer-answer";
    assert_eq!(with(answer, &[]).unwrap(), of_head(answer));
    let change = |settings: &mut serde_json::Value| settings["sep_token_id"] = json!(7);
    let other = changed(answer, change, input).unwrap();
    assert_eq!(with(answer, &[0, 1]).unwrap(), other);
}

/// As transformers has it: a decoder is another model, and DistilBERT's norms have a constant of their own.
#[test]
fn keys_mean_what_their_class_says() {
    let input = Input {
        ids: &[2, 5, 6, 3],
        ..Default::default()
    };
    for case in ["bert", "roberta"] {
        let error = changed(case, |settings| settings["is_decoder"] = json!(true), input);
        let error = error.unwrap_err();
        assert!(
            error.contains("is_decoder: found true; expected false"),
            "{error}"
        );
    }
    let with = |case: &str, epsilon: f64| {
        let change = |settings: &mut serde_json::Value| settings["layer_norm_eps"] = json!(epsilon);
        changed(case, change, input).unwrap()
    };
    assert_eq!(with("distilbert", 0.5), with("distilbert", 1e-5));
    assert_ne!(with("bert", 0.5), with("bert", 1e-5));
}

/// Padding inside a text takes no position, and has a row of its own (`create_position_ids_from_input_ids` of transformers 5.24): the same
/// vectors as those of another word in a model whose rows stand in that order.
#[test]
fn padding_inside_a_text_takes_no_position() {
    let copy = copied("roberta");
    let path = copy.path().join("model.safetensors");
    let bytes = std::fs::read(&path).unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    // Some rows with the values of others.
    let changed = |name: &str, rows: &[(usize, usize)]| {
        let view = file.tensor(name).unwrap();
        let (old, mut new) = (view.data(), view.data().to_vec());
        let row = old.len() / view.shape()[0];
        for (to, from) in rows {
            new[to * row..][..row].copy_from_slice(&old[from * row..][..row]);
        }
        new
    };
    let words = "roberta.embeddings.word_embeddings.weight";
    let positions = "roberta.embeddings.position_embeddings.weight";
    let new = [
        (words, changed(words, &[(50, 1)])),
        (positions, changed(positions, &[(4, 1), (5, 4), (6, 5)])),
    ];
    let tensors = file.tensors().into_iter().map(|(name, view)| {
        let data = new.iter().find(|(other, _)| *other == name);
        let data = data.map_or(view.data(), |(_, data)| data.as_slice());
        let view = TensorView::new(view.dtype(), view.shape().to_vec(), data).unwrap();
        (name, view)
    });
    std::fs::write(&path, safetensors::serialize(tensors, None).unwrap()).unwrap();
    let states = |folder: Folder, ids: &[u32]| {
        let model = TextEncoder::open(&folder, None).unwrap();
        let input = Input {
            ids,
            ..Default::default()
        };
        model.states(&[input], None).unwrap()
    };
    let found = states(open("roberta"), &[0, 9, 1, 8, 2]);
    let expected = states(Folder::open(copy.path()).unwrap(), &[0, 9, 50, 8, 2]);
    assert_eq!(found, expected);
}

/// One weight, one head: what a look shows is what all weights show.
#[test]
fn a_look_shows_global_tokens() {
    let golden = Golden::of("longformer");
    let model = TextEncoder::open(&open("longformer"), None).unwrap();
    let ids = &golden.rows("ids")[0];
    let input = Input {
        ids,
        types: &[],
        global: Some(&[0, 5]),
    };
    for query in [None, Some(0), Some(5), Some(7)] {
        for head in [None, Some(1)] {
            let mut look = Look::new(ids.len());
            (look.query, look.head) = (query, head);
            model.states(&[input], Some(&mut look)).unwrap();
            for map in look.maps() {
                let all = golden.row(&format!("attention.{}", map.layer), 0);
                let length = ids.len();
                let heads = all.chunks(length * length).enumerate();
                let heads = heads.filter(|(at, _)| head.is_none_or(|head| head == *at));
                let rows = heads.flat_map(|(_, rows)| rows.chunks(length).enumerate());
                let rows = rows.filter(|(at, _)| query.is_none_or(|query| query == *at));
                let expected: Vec<f32> = rows.flat_map(|(_, row)| row).copied().collect();
                close("what was looked at", &map.weights, &expected, 1e-5);
            }
        }
    }
}
