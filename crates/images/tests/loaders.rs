//! Data sets: what their files say, what is wrong with files that lie, and loading on other threads.

use std::fs;
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use flate2::Compression;
use flate2::write::GzEncoder;
use proptest::prelude::*;
use regard_images::data::{
    Broken, Loader, Loading, Source, cifar10, cifar100, class_folders, coco_captions,
    coco_instances, mnist, vqa,
};
use regard_images::{Decoding, Image, ImagesError, Random};
use serde_json::{Value, json};
use tempfile::TempDir;

mod mutate;

use mutate::mutated;

fn golden(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("tests/golden")
        .join(name)
}

/// A folder with files of these names; those of images have an image of 40 x 24 pixels.
fn folder(files: &[&str]) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    for file in files {
        let path = folder.path().join(file);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::copy(golden("colour.png"), path).unwrap();
    }
    folder
}

fn write(path: &Path, bytes: impl AsRef<[u8]>) -> PathBuf {
    fs::write(path, bytes).unwrap();
    path.to_owned()
}

/// The error's text, which names these.
fn refused<T>(result: Result<T, ImagesError>, names: &[&str]) -> String {
    let text = match result {
        Ok(_) => panic!("no error that names {names:?}"),
        Err(error) => error.to_string(),
    };
    for name in names {
        assert!(text.contains(name), "{text:?} does not name {name:?}");
    }
    text
}

#[test]
fn class_folders_are_sorted_by_name() {
    let root = folder(&[
        "dog/b.PNG",
        "dog/a.png",
        "cat/c.jpeg",
        "cat/d.webp",
        "cat/e.jpg",
        "cat/.f.png",
    ]);
    write(&root.path().join("cat/notes.txt"), "no image");
    write(&root.path().join("labels.csv"), "no folder");
    let data = class_folders(root.path(), None).unwrap();
    assert_eq!(data.classes, ["cat", "dog"]);
    let found: Vec<(String, usize)> = data
        .examples
        .iter()
        .map(|example| match &example.source {
            Source::File(path) => (
                path.file_name().unwrap().to_str().unwrap().to_owned(),
                example.label.unwrap(),
            ),
            Source::Pixels(_) => panic!("in memory"),
        })
        .collect();
    let expected = [
        ("c.jpeg", 0),
        ("d.webp", 0),
        ("e.jpg", 0),
        ("a.png", 1),
        ("b.PNG", 1),
    ];
    assert_eq!(
        found,
        expected.map(|(name, class)| (name.to_owned(), class))
    );
    assert_eq!(
        data.examples[0]
            .image(&Decoding::default())
            .unwrap()
            .width(),
        40
    );

    // The order of another set; a class without a folder is no error, a folder without a class is.
    let classes = ["dog", "horse", "cat"].map(str::to_owned);
    let data = class_folders(root.path(), Some(&classes)).unwrap();
    assert_eq!(data.classes, classes);
    assert_eq!(data.examples[0].label, Some(2));
    refused(
        class_folders(root.path(), Some(&classes[..2])),
        &["cat", "dog, horse"],
    );

    fs::create_dir(root.path().join("empty")).unwrap();
    refused(
        class_folders(root.path(), None),
        &["empty", "holds no image"],
    );
    refused(
        class_folders(&root.path().join("cat"), None),
        &["cat", "holds no folder"],
    );
    refused(
        class_folders(&root.path().join("none"), None),
        &["none", "cannot read"],
    );
}

fn idx(magic: u32, sizes: &[u32], bytes: &[u8]) -> Vec<u8> {
    let header = [magic]
        .into_iter()
        .chain(sizes.iter().copied())
        .flat_map(u32::to_be_bytes);
    header.chain(bytes.iter().copied()).collect()
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(vec![], Compression::default());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

#[test]
fn mnist_is_read_plain_and_packed() {
    let folder = tempfile::tempdir().unwrap();
    let images = idx(0x0803, &[2, 2, 3], &[1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12]);
    let labels = idx(0x0801, &[2], &[7, 0]);
    for pack in [<[u8]>::to_vec, gzip] {
        let images = write(&folder.path().join("images"), pack(&images));
        let labels = write(&folder.path().join("labels"), pack(&labels));
        let data = mnist(&images, &labels).unwrap();
        assert_eq!(data.classes.len(), 10);
        assert_eq!(
            data.examples
                .iter()
                .map(|e| e.label.unwrap())
                .collect::<Vec<_>>(),
            [7, 0]
        );
        let second = data.examples[1].image(&Decoding::default()).unwrap();
        assert_eq!(
            (second.height(), second.width(), second.channels()),
            (2, 3, 3)
        );
        assert_eq!(second.into_grey().pixels(), [7, 8, 9, 10, 11, 12]);
    }
}

#[test]
fn lying_idx_headers_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let labels = write(&folder.path().join("labels"), idx(0x0801, &[1], &[3]));
    let right = idx(0x0803, &[1, 2, 2], &[1, 2, 3, 4]);
    let path = folder.path().join("images");
    let cases: [(Vec<u8>, &[&str]); 9] = [
        (vec![], &["header", "0 bytes"]),
        (right[..10].to_vec(), &["header", "10 bytes", "16 bytes"]),
        (
            idx(0x0801, &[1, 2, 2], &[0; 4]),
            &["magic number", "0x00000801", "0x00000803"],
        ),
        (
            right[..19].to_vec(),
            &["bytes behind the header is 3", "expected 4"],
        ),
        (
            [&right[..], &[0]].concat(),
            &["bytes behind the header is more", "expected 4"],
        ),
        (idx(0x0803, &[1, 0, 2], &[]), &["number of rows is 0"]),
        (idx(0x0803, &[0, 2, 2], &[]), &["number of images is 0"]),
        (
            idx(0x0803, &[u32::MAX; 3], &[0; 9]),
            &["size", "4294967295"],
        ),
        (
            idx(0x0803, &[1, 60_000, 60_000], &[0; 9]),
            &["size", "60000"],
        ),
    ];
    for (bytes, names) in &cases {
        for pack in [<[u8]>::to_vec, gzip] {
            let images = write(&path, pack(bytes));
            let names: Vec<&str> = names.iter().copied().chain(["images"]).collect();
            refused(mnist(&images, &labels), &names);
        }
    }
    // 4 GB stated, 9 bytes there: nothing of that size is made.
    let images = write(&path, idx(0x0803, &[1 << 16, 256, 256], &[0; 9]));
    refused(mnist(&images, &labels), &["bytes behind the header is 9"]);
    let packed = gzip(&right);
    let images = write(&path, &packed[..packed.len() - 9]);
    refused(mnist(&images, &labels), &["images", "cannot read"]);
    let images = write(&path, &right);
    let two = write(&folder.path().join("two"), idx(0x0801, &[2], &[3, 4]));
    refused(
        mnist(&images, &two),
        &["two", "number of labels is 2", "expected 1"],
    );
    refused(
        mnist(&images, &folder.path().join("none")),
        &["none", "cannot read"],
    );
    assert!(mnist(&images, &labels).is_ok());
}

#[test]
fn cifar_is_read() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    // Red is the column, green the row, blue 9.
    let planes: Vec<u8> = [|_, x| x, |y, _| y, |_, _| 9_u8]
        .iter()
        .flat_map(|plane: &fn(u8, u8) -> u8| {
            (0..32).flat_map(move |y| (0..32).map(move |x| plane(y, x)))
        })
        .collect();
    let record = |labels: &[u8]| [labels, &planes].concat();
    write(&at("one.bin"), [record(&[3]), record(&[9])].concat());
    write(&at("two.bin"), record(&[0]));
    let data = cifar10(folder.path(), &["one.bin", "two.bin"]).unwrap();
    assert_eq!(
        data.examples
            .iter()
            .map(|e| e.label.unwrap())
            .collect::<Vec<_>>(),
        [3, 9, 0]
    );
    assert_eq!(data.classes[3], "cat");
    let image = data.examples[2].image(&Decoding::default()).unwrap();
    assert_eq!(image.pixel(4, 7), Some(&[7, 4, 9][..]));

    write(&at("train.bin"), record(&[1, 99]));
    let data = cifar100(folder.path(), &["train.bin"]).unwrap();
    assert_eq!(
        (data.examples[0].label, data.classes.len()),
        (Some(99), 100)
    );
    write(&at("fine_label_names.txt"), "apple\nbear\n");
    refused(
        cifar100(folder.path(), &["train.bin"]),
        &["fine_label_names.txt", "is 2", "100"],
    );

    write(&at("wrong.bin"), [record(&[3]), record(&[10])].concat());
    refused(
        cifar10(folder.path(), &["wrong.bin"]),
        &["wrong.bin", "record 1 is 10", "0 to 9"],
    );
    write(&at("short.bin"), &record(&[3])[1..]);
    refused(
        cifar10(folder.path(), &["short.bin"]),
        &["short.bin", "3072 bytes", "3073"],
    );
    write(&at("none.bin"), []);
    refused(
        cifar10(folder.path(), &["none.bin"]),
        &["none.bin", "0 bytes"],
    );
    refused(
        cifar10(folder.path(), &["missing.bin"]),
        &["missing.bin", "cannot read"],
    );
}

fn instances() -> Value {
    json!({
        "info": { "year": 2017 },
        "images": [
            { "id": 9, "file_name": "a.png", "height": 24, "width": 40 },
            { "id": 4, "file_name": "b.png", "height": 24, "width": 40 },
        ],
        "categories": [{ "id": 18, "name": "dog" }, { "id": 17, "name": "cat", "supercategory": "animal" }],
        "annotations": [
            { "id": 1, "image_id": 4, "category_id": 18, "bbox": [1.0, 2.0, 3.5, 4], "iscrowd": 0,
              "segmentation": [[1, 2, 4.5, 2, 4.5, 6, 1, 6]] },
            { "id": 2, "image_id": 9, "category_id": 17, "bbox": [-0.5, 0, 40.8, 24.0], "iscrowd": 1,
              "segmentation": { "size": [24, 40], "counts": [10, 20, 930] } },
            { "id": 3, "image_id": 9, "category_id": 17, "bbox": [5, 5, 2, 2] },
        ],
    })
}

fn read_instances(
    file: &Value,
    broken: Broken,
) -> Result<regard_images::data::Dataset, ImagesError> {
    let root = folder(&["a.png", "b.png", "c/d.png"]);
    let path = write(&root.path().join("instances.json"), file.to_string());
    coco_instances(&path, root.path(), broken)
}

#[test]
fn coco_instances_are_read() {
    let data = read_instances(&instances(), Broken::Error).unwrap();
    assert_eq!(data.classes, ["cat", "dog"]);
    let [a, b] = &data.examples[..] else {
        panic!("{data:?}");
    };
    assert_eq!(
        (a.objects.len(), b.objects.len(), a.size),
        (2, 1, Some([24, 40]))
    );
    let dog = &b.objects[0];
    assert_eq!((dog.class, dog.crowd, dog.bounds.width), (1, false, 3.5));
    let mask = dog.region.as_ref().unwrap().mask(24, 40).unwrap();
    assert!(
        (12..=16).contains(&mask.area()) && mask.get(3, 2),
        "{mask:?}"
    );
    let crowd = &a.objects[0];
    assert!(crowd.crowd);
    assert_eq!(
        (crowd.bounds.x, crowd.bounds.width),
        (0.0, 40.0),
        "cut at the border"
    );
    let mask = crowd.region.as_ref().unwrap().mask(24, 40).unwrap();
    assert_eq!(
        (mask.area(), mask.get(10, 0), mask.get(9, 0), mask.get(5, 1)),
        (20, true, false, true)
    );
    assert_eq!(a.objects[1].region, None);
}

#[test]
fn packed_masks_are_those_of_pycocotools() {
    let numbers: Value = serde_json::from_slice(&fs::read(golden("golden.json")).unwrap()).unwrap();
    for case in numbers["polygons"].as_array().unwrap() {
        let (height, width) = (&case["height"], &case["width"]);
        let file = json!({
            "images": [{ "id": 1, "file_name": "a.png", "height": height, "width": width }],
            "categories": [{ "id": 1, "name": "x" }],
            "annotations": [{ "image_id": 1, "category_id": 1, "bbox": [0, 0, 1, 1],
                "segmentation": { "size": [height, width], "counts": case["packed"] } }],
        });
        let data = read_instances(&file, Broken::Error).unwrap();
        let region = data.examples[0].objects[0].region.as_ref().unwrap();
        let [height, width] = data.examples[0].size.unwrap();
        assert_eq!(
            json!(region.mask(height, width).unwrap().runs()),
            case["runs"]
        );
    }
}

#[test]
fn wrong_annotations_name_file_and_field() {
    let cases: [(&str, Value, &[&str]); 21] = [
        (
            "/annotations/0/bbox",
            json!([30, 2, 12, 4]),
            &["annotations[0].bbox", "30", "40 x 24"],
        ),
        (
            "/annotations/0/bbox",
            json!([-3, 2, 12, 4]),
            &["annotations[0].bbox", "-3"],
        ),
        (
            "/annotations/2/bbox",
            json!([3, 2, 0, 4]),
            &["annotations[2].bbox"],
        ),
        (
            "/annotations/2/bbox",
            json!([3, 2, 4]),
            &["annotations[2].bbox", "x, y, width, height"],
        ),
        (
            "/annotations/2/bbox",
            json!([1e300, 2, 4, 5]),
            &["annotations[2].bbox"],
        ),
        (
            "/annotations/2/bbox",
            json!("all"),
            &["annotations[2].bbox: invalid type", "line 1 column"],
        ),
        (
            "/annotations/1/image_id",
            json!(5),
            &["annotations[1].image_id is 5"],
        ),
        (
            "/annotations/1/category_id",
            json!(5),
            &["annotations[1].category_id is 5"],
        ),
        (
            "/annotations/0/segmentation",
            json!([[1, 2, 3, 4]]),
            &["annotations[0].segmentation", "4 numbers"],
        ),
        (
            "/annotations/0/segmentation",
            json!([[1, 2, 3, 4, 5, 99]]),
            &["annotations[0].segmentation", "y = 99"],
        ),
        (
            "/annotations/1/segmentation/size",
            json!([40, 24]),
            &["annotations[1].segmentation.size", "[40, 24]"],
        ),
        (
            "/annotations/1/segmentation/counts",
            json!([1, 2]),
            &["annotations[1].segmentation", "3 pixels"],
        ),
        (
            "/annotations/1/segmentation/counts",
            json!([4_294_967_296_u64, 1]),
            &[
                "annotations[1].segmentation: neither",
                "from 0 to 4294967295",
            ],
        ),
        (
            "/annotations/0/segmentation",
            json!([["1", 2, 3, 4, 5, 6]]),
            &["annotations[0].segmentation: neither polygons (lists of x1"],
        ),
        (
            "/annotations/1/segmentation/counts",
            json!("n~"),
            &["annotations[1].segmentation.counts", "character 1"],
        ),
        (
            "/annotations/1/segmentation/counts",
            json!("oooooooooo"),
            &["segmentation.counts", "too long"],
        ),
        (
            "/images/1/file_name",
            json!("z.png"),
            &["images[1].file_name", "z.png", "missing"],
        ),
        (
            "/images/1/file_name",
            json!("../b.png"),
            &["images[1].file_name", "inside the folder"],
        ),
        ("/images/1/id", json!(9), &["images[1].id is 9"]),
        (
            "/images/1/height",
            json!(0),
            &["images[1].height and width", "0 and 40"],
        ),
        (
            "/images/1/width",
            json!(4_000_000_000_u32),
            &["images[1].height and width"],
        ),
    ];
    for (pointer, value, names) in cases {
        let mut file = instances();
        *file.pointer_mut(pointer).unwrap() = value;
        let names: Vec<&str> = names.iter().copied().chain(["instances.json"]).collect();
        refused(read_instances(&file, Broken::Error), &names);
    }
    let mut file = instances();
    file["images"][1].as_object_mut().unwrap().remove("height");
    refused(
        read_instances(&file, Broken::Error),
        &["annotations[0].image_id", "height and width"],
    );
    file["images"][1]
        .as_object_mut()
        .unwrap()
        .remove("file_name");
    refused(
        read_instances(&file, Broken::Error),
        &["instances.json", "images[1]: missing field `file_name`"],
    );
    refused(
        read_instances(&json!([]), Broken::Error),
        &["instances.json", "expected COCO instances"],
    );
    let empty = json!({ "images": [], "annotations": [], "categories": [] });
    refused(
        read_instances(&empty, Broken::Error),
        &["instances.json", "holds no image"],
    );
    let mut file = instances();
    file["categories"][0]["id"] = json!(17);
    refused(
        read_instances(&file, Broken::Error),
        &["instances.json", "17 twice"],
    );
    file = instances();
    file["categories"][0]["name"] = json!("cat");
    refused(
        read_instances(&file, Broken::Error),
        &["instances.json", "\"cat\" of both 17 and 18"],
    );
    // Three corners, and an outline that would take a gigabyte.
    file = instances();
    file["images"][1]["height"] = json!(1);
    file["images"][1]["width"] = json!(1 << 26);
    file["annotations"][0]["bbox"] = json!([0, 0, 9, 1]);
    file["annotations"][0]["segmentation"] = json!([[0, 0, 1 << 26, 1, 0, 1]]);
    refused(
        read_instances(&file, Broken::Error),
        &["annotations[0].segmentation", "134217729 pixels"],
    );
    file = instances();
    file["images"][0]["file_name"] = json!("c/d.png");
    assert!(read_instances(&file, Broken::Error).is_ok());
}

#[test]
fn what_is_broken_is_skipped_and_counted() {
    let mut file = instances();
    file["images"][1]["file_name"] = json!("missing.png");
    file["annotations"][2]["bbox"] = json!([50, 50, 2, 2]);
    let data = read_instances(&file, Broken::Skip).unwrap();
    assert_eq!(
        (data.examples.len(), data.examples[0].objects.len()),
        (1, 1)
    );
    assert_eq!(data.skipped.len(), 2);
    assert!(data.skipped[0].to_string().contains("missing.png"));
    // What belongs to nothing is no broken image.
    file["annotations"][1]["image_id"] = json!(77);
    refused(
        read_instances(&file, Broken::Skip),
        &["annotations[1].image_id"],
    );
}

#[test]
fn stated_sizes_are_compared_with_the_file() {
    let root = folder(&["a.png", "b.png"]);
    let mut file = instances();
    file["images"][0]["width"] = json!(41);
    file["annotations"] = json!([]);
    let path = write(&root.path().join("instances.json"), file.to_string());
    let data = coco_instances(&path, root.path(), Broken::Error).unwrap();
    let result = data.examples[0].image(&Decoding::default());
    assert!(result.as_ref().is_err_and(ImagesError::is_broken_image));
    refused(result, &["a.png", "40 x 24", "41 x 24"]);
    assert!(data.examples[1].image(&Decoding::default()).is_ok());
}

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
    refused(
        read(&asked, Some(&annotations), Broken::Error),
        &["questions[1].question_id is 420"],
    );
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
    let asked = changed(&questions, "/questions", json!([]));
    refused(
        read(&asked, None, Broken::Error),
        &["questions.json", "holds no question"],
    );
}

fn loading(threads: usize, ahead: usize, broken: Broken) -> Loading {
    Loading {
        threads,
        ahead,
        broken,
    }
}

#[test]
fn examples_come_in_the_order_asked_for() {
    let order: Vec<usize> = (0..50).map(|i| i * 7 % 50).collect();
    for threads in [1, 2, 3, 8, 64] {
        for ahead in [1, 5] {
            let make = |i: usize| {
                if i.is_multiple_of(5) {
                    std::thread::yield_now();
                }
                Ok(i)
            };
            let loader =
                Loader::start(order.clone(), &loading(threads, ahead, Broken::Error), make)
                    .unwrap();
            let found: Vec<usize> = loader.map(Result::unwrap).collect();
            assert_eq!(found, order, "{threads} threads");
        }
    }
    let mut none = Loader::start(vec![], &Loading::default(), Ok).unwrap();
    assert!(none.next().is_none());
    for wrong in [
        loading(0, 1, Broken::Error),
        loading(1, 0, Broken::Error),
        loading(usize::MAX, 1, Broken::Error),
    ] {
        assert!(matches!(
            Loader::start(vec![1], &wrong, Ok),
            Err(ImagesError::Option { .. })
        ));
    }
}

fn broken(i: usize) -> ImagesError {
    ImagesError::Truncated {
        name: format!("{i}.png"),
    }
}

#[test]
fn errors_reach_the_consumer_in_their_place() {
    for threads in [1, 3] {
        let make = |i| if i == 4 { Err(broken(i)) } else { Ok(i) };
        let mut loader =
            Loader::start((0..10).collect(), &loading(threads, 2, Broken::Error), make).unwrap();
        for i in 0..4 {
            assert_eq!(loader.next().unwrap().unwrap(), i);
        }
        refused(loader.next().unwrap(), &["4.png"]);
        assert!(loader.next().is_none(), "an error ends it");

        let loader =
            Loader::start((0..10).collect(), &loading(threads, 2, Broken::Skip), make).unwrap();
        let mut loader = loader;
        let found: Vec<usize> = loader.by_ref().map(Result::unwrap).collect();
        assert_eq!(found, [0, 1, 2, 3, 5, 6, 7, 8, 9]);
        assert_eq!(loader.skipped().len(), 1);

        // What is no broken image is not skipped, nor is a panic.
        let wrong = |i| {
            if i == 4 {
                Image::filled(0, 0, &[]).map(|_| i)
            } else {
                Ok(i)
            }
        };
        let loader =
            Loader::start((0..10).collect(), &loading(threads, 2, Broken::Skip), wrong).unwrap();
        assert_eq!(loader.filter(Result::is_err).count(), 1);
        let panics = |i| if i == 4 { panic!("number {i}") } else { Ok(i) };
        let mut loader = Loader::start(
            (0..10).collect(),
            &loading(threads, 2, Broken::Skip),
            panics,
        )
        .unwrap();
        refused(
            loader.find(Result::is_err).unwrap(),
            &["example 4", "number 4"],
        );
    }
}

#[test]
fn queues_are_bounded_and_dropping_stops_the_threads() {
    let made = Arc::new(AtomicUsize::new(0));
    let counted = made.clone();
    let make = move |i| {
        counted.fetch_add(1, Ordering::SeqCst);
        Ok(i)
    };
    let mut loader =
        Loader::start((0..100_000).collect(), &loading(2, 3, Broken::Error), make).unwrap();
    for i in 0..10 {
        assert_eq!(loader.next().unwrap().unwrap(), i);
    }
    drop(loader);
    // The threads have ended: theirs is the last count. Each is at most its queue and one example ahead.
    assert_eq!(Arc::strong_count(&made), 1);
    assert!(made.load(Ordering::SeqCst) <= 10 + 2 * (3 + 1), "{made:?}");
}

#[test]
fn images_are_decoded_on_other_threads() {
    let root = folder(&["a/1.png", "a/2.png", "b/3.png"]);
    write(&root.path().join("b/0.png"), "no image");
    let data = Arc::new(class_folders(root.path(), None).unwrap());
    let make = |data: &Arc<regard_images::data::Dataset>| {
        let data = data.clone();
        move |i: usize| {
            Ok((
                data.examples[i].image(&Decoding::default())?,
                data.examples[i].label,
            ))
        }
    };
    let mut loader =
        Loader::start((0..4).collect(), &loading(2, 1, Broken::Skip), make(&data)).unwrap();
    let labels: Vec<_> = loader
        .by_ref()
        .map(|example| example.unwrap().1.unwrap())
        .collect();
    assert_eq!(labels, [0, 0, 1]);
    assert!(
        loader.skipped()[0]
            .to_string()
            .contains("0.png: not an image")
    );
    let loader =
        Loader::start((0..4).collect(), &loading(2, 1, Broken::Error), make(&data)).unwrap();
    assert!(loader.last().unwrap().is_err());
}

#[test]
#[cfg(unix)]
fn what_is_no_file_is_skipped_and_counted() {
    let root = folder(&["a/1.png"]);
    fs::create_dir(root.path().join("a/folder.png")).unwrap();
    std::os::unix::fs::symlink("nowhere", root.path().join("a/link.png")).unwrap();
    let data = Arc::new(class_folders(root.path(), None).unwrap());
    let load = |broken| {
        let data = data.clone();
        let make = move |i: usize| data.examples[i].image(&Decoding::default());
        Loader::start((0..3).collect(), &loading(1, 1, broken), make).unwrap()
    };
    let mut loader = load(Broken::Skip);
    assert_eq!(loader.by_ref().map(Result::unwrap).count(), 1);
    let texts: Vec<String> = loader.skipped().iter().map(ToString::to_string).collect();
    assert!(
        texts[0].contains("folder.png: no file") && texts[1].contains("link.png: no file"),
        "{texts:?}"
    );
    refused(load(Broken::Error).last().unwrap(), &["folder.png"]);
}

/// What a process may not read is left out as a damaged image is; another failure of the system ends the loading.
#[test]
fn what_may_not_be_read_is_skipped_and_named() {
    let load = |kind: ErrorKind, broken| {
        let make = move |i: usize| match i {
            1 => Err(ImagesError::Read {
                path: PathBuf::from("locked.png"),
                source: kind.into(),
            }),
            _ => Ok(i),
        };
        Loader::start((0..3).collect(), &loading(1, 1, broken), make).unwrap()
    };
    let mut loader = load(ErrorKind::PermissionDenied, Broken::Skip);
    let made: Vec<usize> = loader.by_ref().map(Result::unwrap).collect();
    assert_eq!(made, [0, 2]);
    assert_eq!(loader.skipped().len(), 1);
    let told = loader.skipped()[0].to_string();
    assert!(told.contains("locked.png: cannot read"), "{told}");
    let denied = load(ErrorKind::PermissionDenied, Broken::Error);
    refused(denied.last().unwrap(), &["locked.png"]);
    let failed = load(ErrorKind::TimedOut, Broken::Skip);
    refused(failed.last().unwrap(), &["locked.png"]);
}

/// The same of a file whose owner forbids it.
#[test]
#[cfg(unix)]
fn a_locked_image_is_broken() {
    use std::os::unix::fs::PermissionsExt;
    let root = folder(&["a/1.png"]);
    let path = root.path().join("a/1.png");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o000)).unwrap();
    if fs::File::open(&path).is_ok() {
        eprintln!("not tested, this user may read all files: locked images");
        return;
    }
    let data = class_folders(root.path(), None).unwrap();
    let result = data.examples[0].image(&Decoding::default());
    assert!(result.as_ref().is_err_and(ImagesError::is_broken_image));
    refused(result, &["1.png: cannot read"]);
}

#[test]
fn choices_have_names() {
    for broken in [Broken::Error, Broken::Skip] {
        assert_eq!(Broken::named(broken.name()).unwrap(), broken);
    }
    refused(Broken::named("drop"), &["broken", "drop", "skip"]);
}

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
