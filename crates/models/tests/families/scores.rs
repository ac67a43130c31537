//! What is read off models: perplexities, classes, answers, words (`tests/golden/scores_golden.py`).

use std::{collections::BTreeMap, fs};

use regard_evaluate::{Conditioning, NextToken};
use regard_kernels::stack::Point;
use regard_models::{
    pretrained::{
        Answers, ContextWindows, Encoding, Folder, Heads, Input, LanguageModel, Side, TextEncoder,
        Tokenizer, WordStates, entities, occurrences, sentence_around,
    },
    scoring::{self, Windows},
};
use serde_json::Value;

use super::{close, copied, open};

fn golden(name: &str) -> Value {
    let path = super::folder("../scores").join(name);
    serde_json::from_slice(&fs::read(path).unwrap()).unwrap()
}

fn tokenizer() -> Tokenizer {
    let copy = tempfile::tempdir().unwrap();
    let path = super::folder("../scores/tokenizer.json");
    fs::copy(path, copy.path().join("tokenizer.json")).unwrap();
    Tokenizer::open(copy.path()).unwrap()
}

fn ids(value: &Value) -> Vec<u32> {
    let ids = value.as_array().unwrap().iter();
    ids.map(|id| id.as_u64().unwrap() as u32).collect()
}

fn numbers(value: &Value) -> Vec<f32> {
    let numbers = value.as_array().unwrap().iter();
    numbers.map(|x| x.as_f64().unwrap() as f32).collect()
}

fn count(value: &Value) -> usize {
    value.as_u64().unwrap() as usize
}

#[test]
fn perplexities_in_windows_are_those_of_the_original() {
    let golden = golden("scores.json");
    let model = LanguageModel::open(&open("gpt2"), None).unwrap();
    let text = ids(&golden["ids"]);
    for case in golden["perplexity"].as_array().unwrap() {
        let windows = Windows {
            context: count(&case["context"]),
            stride: count(&case["stride"]),
        };
        let mut score = NextToken::new(Conditioning::TeacherForced);
        let mut each = vec![];
        let mut next = 1;
        scoring::score(&model, &text, windows, |at, found| {
            assert_eq!(at, next);
            next += 1;
            each.push(found.loss as f32);
            score.add(found.loss, found.correct).unwrap();
        })
        .unwrap();
        close("losses", &each, &numbers(&case["each"]), 1e-4);
        let mean = case["loss"].as_f64().unwrap() / case["tokens"].as_f64().unwrap();
        assert!(
            (score.perplexity().mean().unwrap() - mean).abs() < 1e-5,
            "{windows:?}"
        );
        let share = case["correct"].as_f64().unwrap() / case["tokens"].as_f64().unwrap();
        assert_eq!(score.accuracy(), Some(share), "{windows:?}");
    }
}

#[test]
fn free_running_reads_what_the_model_writes() {
    let golden = golden("scores.json");
    let golden = &golden["free_running"];
    let model = LanguageModel::open(&open("gpt2"), None).unwrap();
    let rows: Vec<Vec<u32>> = golden["rows"].as_array().unwrap().iter().map(ids).collect();
    let texts: Vec<&[u32]> = rows.iter().map(Vec::as_slice).collect();
    let prompt = count(&golden["prompt"]);
    let length = rows[0].len() - prompt;
    let mut losses = vec![vec![0.0f32; length]; rows.len()];
    let mut correct = vec![vec![false; length]; rows.len()];
    scoring::free_running(&model, &texts, prompt, |row, at, found| {
        losses[row][at] = found.loss as f32;
        correct[row][at] = found.correct;
    })
    .unwrap();
    for (row, (losses, correct)) in losses.iter().zip(&correct).enumerate() {
        close(
            "free running",
            losses,
            &numbers(&golden["losses"][row]),
            1e-4,
        );
        assert_eq!(
            serde_json::json!(correct),
            golden["correct"][row],
            "row {row}"
        );
        // Until the first wrong token it is teacher forcing.
        let right = correct.iter().take_while(|right| **right).count();
        let mut forced = vec![];
        scoring::teacher_forced(&model, texts[row], prompt, |at, found| {
            assert_eq!(at, forced.len());
            forced.push(found.loss as f32);
        })
        .unwrap();
        close(
            "teacher forcing",
            &forced[..=right],
            &losses[..=right],
            1e-4,
        );
    }
    let long = vec![1; 98];
    assert!(scoring::free_running(&model, &[&long], 5, |_, _, _| ()).is_err());
    assert!(scoring::teacher_forced(&model, &[1, 53], 1, |_, _| ()).is_err());
    scoring::teacher_forced(&model, &[], 1, |_, _| panic!("no token")).unwrap();
}

#[test]
fn classes_are_those_of_the_pipeline() {
    let (golden, tokenizer) = (golden("scores.json"), tokenizer());
    let texts = golden["texts"].as_array().unwrap();
    for case in golden["classes"].as_array().unwrap() {
        let copy = copied("bert-classes");
        let config = copy.path().join("config.json");
        let mut settings: Value = serde_json::from_slice(&fs::read(&config).unwrap()).unwrap();
        settings["problem_type"] = case["problem"].clone();
        fs::write(&config, settings.to_string()).unwrap();
        let model = TextEncoder::open(&Folder::open(copy.path()).unwrap(), None).unwrap();
        let Some(Heads::Classes(labels)) = model.purpose() else {
            panic!("a head for classes");
        };
        for (text, found) in texts.iter().zip(case["found"].as_array().unwrap()) {
            let encoded = tokenizer.encode(text.as_str().unwrap(), true).unwrap();
            let (ids, types) = (&encoded.ids, &encoded.types);
            let states = model
                .states(
                    &[Input {
                        ids,
                        types,
                        ..Default::default()
                    }],
                    None,
                )
                .unwrap();
            let scores = model.classes(&states[0]).unwrap();
            assert_eq!(model.token_classes(&states[0]), None);
            for found in found.as_array().unwrap() {
                let label = labels
                    .iter()
                    .position(|label| label == found["label"].as_str().unwrap());
                let score = found["score"].as_f64().unwrap() as f32;
                close(
                    &case["problem"].to_string(),
                    &[scores[label.unwrap()]],
                    &[score],
                    1e-4,
                );
            }
        }
    }
}

#[test]
fn tokens_of_a_class_are_merged_as_by_the_pipeline() {
    let (golden, tokenizer) = (golden("scores.json"), tokenizer());
    let model = TextEncoder::open(&open("bert-tokens"), None).unwrap();
    let compare = |text: &str, probabilities: &[f32], labels: &[String], expected: &Value| {
        let encoded = tokenizer.encode(text, true).unwrap();
        let found = entities(&encoded, probabilities, labels);
        let expected = expected.as_array().unwrap();
        assert_eq!(found.len(), expected.len(), "{text}: {found:?}");
        for (found, expected) in found.iter().zip(expected) {
            assert_eq!(found.label, expected["entity_group"]);
            let range = [found.range.start, found.range.end];
            assert_eq!(range, [count(&expected["start"]), count(&expected["end"])]);
            let score = expected["score"].as_f64().unwrap();
            assert!(
                (found.probability - score).abs() < 1e-5,
                "{text}: {found:?}"
            );
        }
    };
    for case in golden["tokens"].as_array().unwrap() {
        let labels: Vec<String> = serde_json::from_value(case["labels"].clone()).unwrap();
        let texts = golden["texts"].as_array().unwrap().iter();
        for (text, expected) in texts.zip(case["found"].as_array().unwrap()) {
            let text = text.as_str().unwrap();
            let encoded = tokenizer.encode(text, true).unwrap();
            let (ids, types) = (&encoded.ids, &encoded.types);
            let states = model
                .states(
                    &[Input {
                        ids,
                        types,
                        ..Default::default()
                    }],
                    None,
                )
                .unwrap();
            compare(
                text,
                &model.token_classes(&states[0]).unwrap(),
                &labels,
                expected,
            );
        }
        let mut drawn: Vec<f32> = case["logits"]
            .as_array()
            .unwrap()
            .iter()
            .flat_map(numbers)
            .collect();
        regard_kernels::loss::log_softmax(&mut drawn, labels.len());
        drawn.iter_mut().for_each(|x| *x = x.exp());
        compare(
            golden["long"].as_str().unwrap(),
            &drawn,
            &labels,
            &case["drawn"],
        );
    }
}

#[test]
fn answers_are_those_of_the_pipeline_window_by_window() {
    let tokenizer = tokenizer();
    let model = TextEncoder::open(&open("bert-answer"), None).unwrap();
    for case in golden("answers.json").as_array().unwrap() {
        let text = |key: &str| case[key].as_str().unwrap();
        let (question, context) = (text("question"), text("context"));
        let overlap = count(&case["overlap"]);
        let windows = ContextWindows::new(&tokenizer, question, context, 16, overlap).unwrap();
        let expected = case["windows"].as_array().unwrap();
        assert_eq!(windows.count(), expected.len(), "{question}");
        let (mut all, mut every) = (Answers::new(5, 6), Answers::new(usize::MAX, 6));
        for (number, expected) in expected.iter().enumerate() {
            let window = windows.window(number);
            let (ids_of, types) = (&window.ids, &window.types);
            assert_eq!(
                *ids_of,
                ids(&expected["ids"]),
                "{question}: window {number}"
            );
            assert_eq!(
                *types,
                ids(&expected["types"]),
                "{question}: window {number}"
            );
            let states = model
                .states(
                    &[Input {
                        ids: ids_of,
                        types,
                        ..Default::default()
                    }],
                    None,
                )
                .unwrap();
            let spans = model.spans(&states[0]).unwrap();
            let mut here = Answers::new(5, 6);
            here.add(number, &window, &spans);
            all.add(number, &window, &spans);
            every.add(number, &window, &spans);
            // Spans of the same words are one answer.
            let mut answers: BTreeMap<[usize; 2], f64> = BTreeMap::new();
            for span in expected["spans"].as_array().unwrap() {
                let characters = [count(&span["characters"][0]), count(&span["characters"][1])];
                *answers.entry(characters).or_default() += span["score"].as_f64().unwrap();
            }
            let mut answers: Vec<([usize; 2], f64)> = answers.into_iter().collect();
            answers.sort_by(|a, b| b.1.total_cmp(&a.1));
            for (answer, (characters, score)) in here.best().iter().zip(answers) {
                assert_eq!(
                    [answer.range.start, answer.range.end],
                    characters,
                    "{question}"
                );
                assert!(
                    (answer.score - score).abs() < 1e-5,
                    "{question}: {answer:?}"
                );
            }
        }
        let none = case["no_answer"].as_f64().unwrap();
        assert!((all.no_answer().unwrap() - none).abs() < 1e-6, "{question}");
        assert!(all.best().is_sorted_by(|a, b| a.score >= b.score) && all.best().len() == 5);
        assert!(every.best().len() > 5, "{question}");
    }
}

#[test]
fn a_word_is_followed_through_the_stack() {
    let golden = golden("scores.json");
    let points = [Point::Input, Point::Attention, Point::FeedForward];
    for case in ["bert", "gpt2"] {
        let of = &golden["words"][case];
        let (ids, places) = (ids(&of["ids"]), ids(&of["places"]));
        let mut word = WordStates::new(places.iter().map(|&at| at as usize).collect());
        match case {
            "bert" => {
                let model = TextEncoder::open(&open(case), None).unwrap();
                let input = Input {
                    ids: &ids,
                    types: &[],
                    ..Default::default()
                };
                model.states(&[input], Some(&mut word)).unwrap();
            }
            _ => {
                let model = LanguageModel::open(&open(case), None).unwrap();
                // In two passes: the word is in the second.
                let mut reading = model.begin(1, Default::default());
                reading.read(&[&ids[..2]], Some(&mut word)).unwrap();
                reading.read(&[&ids[2..]], Some(&mut word)).unwrap();
            }
        }
        let mut seen = 0;
        for (layer, point, vector) in word.points() {
            let part = points.iter().position(|known| *known == point).unwrap();
            let expected = &of["points"][layer][part];
            if !expected.is_null() {
                close(
                    &format!("{case} {layer} {point:?}"),
                    vector,
                    &numbers(expected),
                    1e-4,
                );
                seen += 1;
            }
        }
        // Three points of two layers, two points of three.
        assert_eq!(seen, 6);
    }
}

#[test]
fn words_and_sentences_are_found_in_texts() {
    let bank = |text: &str| occurrences(text, "bank");
    assert_eq!(
        bank("bank, bank-bank; Bank banks bank_"),
        [0..4, 6..10, 11..15]
    );
    assert_eq!(bank("BANK Bankier"), vec![0..4; 1]);
    assert_eq!(occurrences("Äpfel und äpfel", "äpfel"), vec![11..17; 1]);
    assert_eq!(occurrences("the river bank", "river bank"), vec![4..14; 1]);
    assert!(occurrences("a b", "").is_empty());
    assert!(occurrences("", "a").is_empty());
    let text = "One. \"Two?\" Three\n \nfour\n1.5 e.\u{301} 東京。大阪 end";
    let around = |part: &str| {
        let start = text.find(part).unwrap();
        &text[sentence_around(text, &(start..start + part.len()))]
    };
    assert_eq!(around("One"), "One.");
    assert_eq!(around("Two"), "\"Two?\"");
    assert_eq!(around("Three"), "Three");
    assert_eq!(around("1.5"), "four\n1.5 e.\u{301} 東京。");
    assert_eq!(around("end"), "大阪 end");
    assert_eq!(around("Two?\" Three"), "\"Two?\" Three");
    assert_eq!(sentence_around("", &(0..0)), 0..0);
    let endless = "wörd ".repeat(1000);
    let found = &endless[sentence_around(&endless, &(3000..3005))];
    assert!(
        found.len() < 900 && found.split(' ').all(|word| word == "wörd"),
        "{found}"
    );
    let solid = "ö".repeat(1000);
    assert!(sentence_around(&solid, &(1000..1002)).len() > 100);
}

#[test]
fn a_text_is_cut_between_the_tokens_around_it() {
    let tokenizer = tokenizer();
    let whole = tokenizer.encode("the banks of the river", true).unwrap();
    // [CLS] the bank ##s of the river [SEP]
    assert_eq!(whole.tokens_of(&(4..9)), [2, 3]);
    assert!(whole.tokens_of(&(3..4)).is_empty());
    let kept = |most: usize, side: Side| {
        // Places in the whole: no two tokens have the same id and word.
        let cut = whole.truncated(most, side);
        let of = |text: &Encoding, at: usize| (text.ids[at], text.words[at]);
        let place = |at: usize| (0..8).find(|&whole_at| of(&whole, whole_at) == of(&cut, at));
        (0..cut.ids.len()).filter_map(place).collect::<Vec<_>>()
    };
    for (most, of_end, of_start) in [
        (4, vec![0, 1, 2, 7], vec![0, 5, 6, 7]),
        (2, vec![0, 7], vec![0, 7]),
        (1, vec![7], vec![7]),
        (0, vec![], vec![]),
    ] {
        assert_eq!(kept(most, Side::Right), of_end);
        assert_eq!(kept(most, Side::Left), of_start);
    }
    for side in [Side::Left, Side::Right] {
        assert_eq!(whole.truncated(100, side), whole);
    }
}

/// Several tokens of bytes make a character; each stands for all of it.
#[test]
fn tokens_of_bytes_stand_for_characters() {
    let tokenizer = Tokenizer::open(super::folder("../tokenizers/gpt2")).unwrap();
    let text = "aé 日本 😀.";
    let encoded = tokenizer.encode(text, true).unwrap();
    assert!(encoded.ids.len() > text.chars().count());
    for offset in &encoded.offsets {
        assert!(text.get(offset.clone()).is_some(), "{offset:?}");
    }
    let place = occurrences(text, "日本")[0].clone();
    let tokens = encoded.tokens_of(&place);
    let ids: Vec<u32> = tokens.iter().map(|&at| encoded.ids[at]).collect();
    assert_eq!(tokenizer.decode(&ids, true).unwrap().trim(), "日本");
}

#[test]
fn what_scores_mean_is_checked() {
    let copy = copied("bert-classes");
    let config = copy.path().join("config.json");
    let text = fs::read_to_string(&config).unwrap();
    let odd = text.replacen('{', "{\"problem_type\": \"single_label_clasification\",", 1);
    fs::write(&config, odd).unwrap();
    let opened = TextEncoder::open(&Folder::open(copy.path()).unwrap(), None);
    let error = opened.unwrap_err().to_string();
    assert!(
        error.contains("problem_type") && error.contains("single_label_classification"),
        "{error}"
    );
}
