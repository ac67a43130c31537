//! Texts that belong to images: COCO's captions, and the questions and answers of VQA.

use std::fs;

use regard_images::data::{Broken, coco_captions, vqa};
use serde_json::{Value, json};

use super::{folder, refused, write};

#[test]
fn coco_captions_are_read() {
    let root = folder(&["a.png", "b.png"]);
    let file = json!({
        "images": [{ "id": 1, "file_name": "a.png" }, { "id": 2, "file_name": "b.png" }],
        "annotations": [
            { "image_id": 2, "id": 1, "caption": "A dog." },
            { "image_id": 1, "id": 2, "caption": "A cat." },
            { "image_id": 2, "id": 3, "caption": "One dog." },
        ],
    });
    let path = write(&root.path().join("captions.json"), file.to_string());
    let data = coco_captions(&path, root.path(), Broken::Error).unwrap();
    let texts = |i: usize| {
        data.examples[i]
            .captions
            .iter()
            .map(|c| c.text.as_str())
            .collect::<Vec<_>>()
    };
    assert_eq!(
        (texts(0), texts(1)),
        (vec!["A cat."], vec!["A dog.", "One dog."])
    );
    fs::remove_file(root.path().join("b.png")).unwrap();
    refused(
        coco_captions(&path, root.path(), Broken::Error),
        &["captions.json", "images[1].file_name", "b.png"],
    );
    let data = coco_captions(&path, root.path(), Broken::Skip).unwrap();
    assert_eq!((data.examples.len(), data.skipped.len()), (1, 1));
    refused(
        coco_captions(&root.path().join("none.json"), root.path(), Broken::Skip),
        &["none.json", "cannot read"],
    );
}

#[test]
fn vqa_is_read() {
    let root = folder(&["COCO_val2014_000000000042.jpg", "000000000007.jpg"]);
    let questions = json!({
        "data_subtype": "val2014",
        "questions": [
            { "question_id": 420, "image_id": 42, "question": "What colour is the dog?" },
            { "question_id": 70, "image_id": 7, "question": "Is it raining?" },
            { "question_id": 421, "image_id": 42, "question": "How many dogs?" },
        ],
    });
    let annotation = |question: u64, image: u64, answer: &str| {
        json!({ "question_id": question, "image_id": image, "question_type": "what", "answer_type": "other",
            "multiple_choice_answer": answer,
            "answers": [{ "answer": answer, "answer_confidence": "yes", "answer_id": 1 }, { "answer": "dark" }] })
    };
    let annotations = json!({ "annotations": [
        annotation(421, 42, "2"), annotation(420, 42, "black"), annotation(70, 7, "no"),
    ] });
    let read = |questions: &Value, annotations: Option<&Value>, broken| {
        let asked = write(&root.path().join("questions.json"), questions.to_string());
        let answers =
            annotations.map(|file| write(&root.path().join("answers.json"), file.to_string()));
        vqa(&asked, answers.as_deref(), root.path(), broken)
    };
    let data = read(&questions, Some(&annotations), Broken::Error).unwrap();
    assert_eq!(data.examples.len(), 2);
    let first = &data.examples[0].questions;
    assert_eq!(
        (
            first.len(),
            first[0].answer.as_str(),
            first[1].answer.as_str()
        ),
        (2, "black", "2")
    );
    assert_eq!(first[0].answers, ["black", "dark"]);
    assert_eq!(data.examples[1].questions[0].phrase.text, "Is it raining?");
    let test = read(&questions, None, Broken::Error).unwrap();
    assert_eq!(test.examples[0].questions[0].answer, "");

    let changed = |file: &Value, pointer: &str, value: Value| {
        let mut file = file.clone();
        *file.pointer_mut(pointer).unwrap() = value;
        file
    };
    let asked = changed(&questions, "/questions/1/image_id", json!(8));
    refused(
        read(&asked, None, Broken::Error),
        &[
            "questions.json",
            "questions[1].image_id",
            "COCO_val2014_000000000008.jpg",
        ],
    );
    assert_eq!(read(&asked, None, Broken::Skip).unwrap().skipped.len(), 1);
    let mut nameless = questions.clone();
    nameless.as_object_mut().unwrap().remove("data_subtype");
    let text = refused(
        read(&nameless, None, Broken::Error),
        &[
            "questions[0].image_id is 42",
            "000000000042.jpg",
            "data_subtype",
        ],
    );
    assert!(!text.contains("COCO_"), "{text}");
    refused(
        read(&asked, Some(&annotations), Broken::Error),
        &["questions[1].image_id is 8", "answers.json"],
    );
    let asked = changed(&questions, "/questions/1/question_id", json!(420));
    for annotations in [Some(&annotations), None] {
        refused(
            read(&asked, annotations, Broken::Error),
            &["questions[1].question_id is 420, as of one before it"],
        );
    }
    let answers = changed(&annotations, "/annotations/2/question_id", json!(71));
    refused(
        read(&questions, Some(&answers), Broken::Error),
        &["questions[1].question_id is 70"],
    );
    let answers = changed(&annotations, "/annotations/2/question_id", json!(420));
    refused(
        read(&questions, Some(&answers), Broken::Error),
        &["answers.json", "annotations[2].question_id is 420"],
    );
    let asked = changed(&questions, "/questions", json!([questions["questions"][0]]));
    refused(
        read(&asked, Some(&annotations), Broken::Error),
        &["answers.json", "annotations[0].question_id is 421"],
    );
    let answers = changed(&annotations, "/annotations/1/answers", json!([]));
    refused(
        read(&questions, Some(&answers), Broken::Error),
        &["answers.json: annotations[1].answers is an empty list"],
    );
    let asked = changed(&questions, "/questions", json!([]));
    refused(
        read(&asked, None, Broken::Error),
        &["questions.json", "holds no question"],
    );
}
