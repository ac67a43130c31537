//! Objects of images, with boxes and masks, as COCO's files list them.

use std::fs;

use regard_images::data::{Broken, coco_instances};
use regard_images::{Decoding, ImagesError};
use serde_json::{Value, json};

use super::{folder, golden, refused, write};

pub(super) fn instances() -> Value {
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

pub(super) fn read_instances(
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
    file["categories"] = json!([]);
    refused(
        read_instances(&file, Broken::Error),
        &["instances.json: categories is an empty list"],
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
