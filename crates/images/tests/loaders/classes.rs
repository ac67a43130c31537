//! Images that have a class: folders, and the files of MNIST and CIFAR.

use std::fs;
use std::io::Write;

use flate2::Compression;
use flate2::write::GzEncoder;
use regard_images::Decoding;
use regard_images::data::{Source, cifar10, cifar100, class_folders, mnist};

use super::{folder, refused, write};

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

pub(super) fn idx(magic: u32, sizes: &[u32], bytes: &[u8]) -> Vec<u8> {
    let header = [magic]
        .into_iter()
        .chain(sizes.iter().copied())
        .flat_map(u32::to_be_bytes);
    header.chain(bytes.iter().copied()).collect()
}

pub(super) fn gzip(bytes: &[u8]) -> Vec<u8> {
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
