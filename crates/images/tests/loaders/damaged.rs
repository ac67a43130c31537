//! Files of data sets with random damage, and of random bytes.

use proptest::prelude::*;
use regard_images::Random;
use regard_images::data::{Broken, cifar10, coco_captions, coco_instances, mnist, vqa};
use serde_json::{Value, json};

use super::{
    classes::{gzip, idx},
    folder,
    instances::{instances, read_instances},
    mutate::mutated,
    write,
};

/// Every file of a data set with random damage: it is read, with classes that exist, or refused by name.
#[test]
fn mutated_data_sets_are_read_or_refused() {
    let root = folder(&["a.png", "b.png", "c/d.png", "000000000007.jpg"]);
    let at = |name: &str| root.path().join(name);
    let images = idx(0x0803, &[2, 2, 3], &[1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12]);
    let labels = idx(0x0801, &[2], &[7, 0]);
    let record: Vec<u8> = (0..3073).map(|i| (i % 10) as u8).collect();
    let captions = json!({
        "images": [{ "id": 1, "file_name": "a.png" }, { "id": 2, "file_name": "b.png" }],
        "annotations": [
            { "image_id": 2, "id": 1, "caption": "A dog." },
            { "image_id": 1, "id": 2, "caption": "A cat." },
        ],
    });
    let questions = json!({
        "data_subtype": "val2014",
        "questions": [{ "question_id": 70, "image_id": 7, "question": "Is it raining?" }],
    });
    let answers = json!({ "annotations": [{ "question_id": 70, "image_id": 7, "question_type": "is",
        "answer_type": "yes/no", "multiple_choice_answer": "no", "answers": [{ "answer": "no", "answer_id": 1 }] }] });
    let text = |value: &Value| value.to_string().into_bytes();
    let whole = [
        ("images.idx", images.clone()),
        ("labels.idx", labels.clone()),
        ("images.gz", gzip(&images)),
        ("labels.gz", gzip(&labels)),
        ("one.bin", record),
        ("instances.json", text(&instances())),
        ("captions.json", text(&captions)),
        ("questions.json", text(&questions)),
        ("answers.json", text(&answers)),
    ];
    for (name, bytes) in &whole {
        write(&at(name), bytes);
    }
    let read = |name: &str, broken| match name {
        "images.idx" | "labels.idx" => mnist(&at("images.idx"), &at("labels.idx")),
        "images.gz" | "labels.gz" => mnist(&at("images.gz"), &at("labels.gz")),
        "one.bin" => cifar10(root.path(), &["one.bin"]),
        "instances.json" => coco_instances(&at(name), root.path(), broken),
        "captions.json" => coco_captions(&at(name), root.path(), broken),
        _ => vqa(
            &at("questions.json"),
            Some(&at("answers.json")),
            root.path(),
            broken,
        ),
    };
    let mut random = Random::new(2001, 0);
    let (mut good, mut bad) = (0, 0);
    for case in 0..2000 {
        let (name, bytes) = &whole[case % whole.len()];
        write(&at(name), mutated(bytes.clone(), &mut random));
        let broken = [Broken::Error, Broken::Skip][random.below(2)];
        match read(name, broken) {
            Ok(data) => {
                for example in &data.examples {
                    let mut classes = example.objects.iter().map(|object| object.class);
                    assert!(classes.all(|class| class < data.classes.len()));
                    assert!(example.label.is_none_or(|label| label < data.classes.len()));
                }
                good += 1;
            }
            Err(error) => {
                // Of two files that do not go together, the error may name the other.
                let error = error.to_string();
                let pairs = ["images", "labels", "questions", "answers"];
                let named = pairs.iter().any(|other| error.contains(other));
                assert!(
                    error.contains(name) || named,
                    "case {case}, {name}: {error}"
                );
                bad += 1;
            }
        }
        write(&at(name), bytes);
    }
    assert!(good > 50 && bad > 1000, "{good} read, {bad} refused");
}

proptest! {
    #[test]
    fn any_bytes_are_data_or_an_error(bytes in prop::collection::vec(any::<u8>(), 0..64), magic: bool) {
        let folder = tempfile::tempdir().unwrap();
        let start: &[u8] = if magic { &[0, 0, 8, 3, 0, 0, 0] } else { &[] };
        let images = write(&folder.path().join("images"), [start, &bytes].concat());
        let start: &[u8] = if magic { &[0, 0, 8, 1, 0, 0, 0] } else { &[] };
        let labels = write(&folder.path().join("labels"), [start, &bytes].concat());
        let _ = mnist(&images, &labels);
        let _ = cifar10(folder.path(), &["images"]);
        let _ = coco_captions(&images, folder.path(), Broken::Skip);
        let _ = vqa(&images, Some(&labels), folder.path(), Broken::Skip);
    }

    #[test]
    fn any_annotations_are_objects_or_an_error(
        bbox in prop::collection::vec(prop_oneof![-3.0..50.0, any::<f64>()], 0..6),
        counts in prop_oneof![
            "[0-z]{0,12}".prop_map(Value::from),
            prop::collection::vec(any::<u32>(), 0..5).prop_map(Value::from),
        ],
        corners in prop::collection::vec(-1.0..25.0, 6..14),
    ) {
        let mut file = instances();
        file["annotations"][2]["bbox"] = json!(bbox);
        file["annotations"][1]["segmentation"]["counts"] = counts;
        file["annotations"][0]["segmentation"] = json!([corners]);
        let data = read_instances(&file, Broken::Skip).map_err(|error| TestCaseError::fail(error.to_string()));
        if bbox.iter().all(|number: &f64| number.is_finite()) {
            for example in &data?.examples {
                for object in &example.objects {
                    let bounds = object.bounds;
                    prop_assert!(bounds.x >= 0.0 && bounds.y >= 0.0 && bounds.width > 0.0 && bounds.height > 0.0);
                    prop_assert!(bounds.x + bounds.width <= 40.001 && bounds.y + bounds.height <= 24.001);
                    if let Some(region) = &object.region {
                        prop_assert!(region.mask(24, 40).is_ok());
                    }
                }
            }
        }
    }
}
