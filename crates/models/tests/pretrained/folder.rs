//! Weights in folders.

use std::fs;

use regard_models::pretrained::{Folder, Names, PretrainedError};
use regard_nn::weights::{Difference, Dtype, Values, WeightsError};
use serde_json::json;

use crate::common::{Files, safetensors, safetensors_of, write_shards};

fn message(files: &Files) -> String {
    let error = Folder::open(files.path()).unwrap_err().to_string();
    error.replace(&files.path().display().to_string(), "M")
}

/// The value whose bits the bytes from `start` are.
fn f32_at(start: u8) -> f32 {
    f32::from_le_bytes([start, start + 1, start + 2, start + 3])
}

#[test]
fn tensors_are_read_one_by_one() {
    let files = Files::with_config();
    write_shards(&files);
    let folder = Folder::open(files.path()).unwrap();
    assert_eq!(folder.config().text("model_type").unwrap(), "gpt2");
    assert_eq!(folder.path(), files.path());
    let tensors: Vec<_> = folder
        .tensors()
        .map(|it| (it.name, it.shape.to_vec(), it.dtype))
        .collect();
    assert_eq!(
        tensors,
        [
            ("x", vec![2, 3], Dtype::F32),
            ("y", vec![4], Dtype::BF16),
            ("z", vec![2], Dtype::F16)
        ]
    );
    let x = folder.read("x").unwrap();
    assert_eq!(x.shape, [2, 3]);
    assert_eq!(
        x.values,
        Values::F32((0..6).map(|i| f32_at(4 * i)).collect())
    );
    // A bf16 is the upper half of an f32.
    let y = folder.read("y").unwrap().values;
    assert!(matches!(&y, Values::Bf16(values) if values.len() == 4));
    let expected: Vec<f32> = (0..4)
        .map(|i| f32::from_le_bytes([0, 0, 24 + 2 * i, 25 + 2 * i]))
        .collect();
    assert_eq!(y.into_f32(), expected);
    let z = folder.read("z").unwrap().values;
    assert!(matches!(&z, Values::F16(values) if values[1].to_bits() == 0x0302));
    let error = folder.read("w").unwrap_err().to_string();
    assert!(error.ends_with("no tensor is named \"w\""), "{error}");

    // One file, whatever its name; `model.safetensors` is preferred.
    let files = Files::with_config();
    files.write(
        "other.safetensors",
        safetensors(&[("a", "F32", &[]), ("ids", "I64", &[1, 2])]),
    );
    let folder = Folder::open(files.path()).unwrap();
    assert_eq!(folder.read("a").unwrap().values.into_f32(), [f32_at(0)]);
    let error = folder.read("ids").unwrap_err().to_string();
    assert!(
        error.ends_with("tensor `ids` is stored as I64; expected F32, F16 or BF16"),
        "{error}"
    );
    files.write("model.safetensors", safetensors(&[("b", "F32", &[1])]));
    let folder = Folder::open(files.path()).unwrap();
    assert_eq!(
        folder.tensors().map(|it| it.name).collect::<Vec<_>>(),
        ["b"]
    );
}

/// The file was written by PyTorch; see `golden/pickle_golden.py`.
#[test]
fn a_checkpoint_of_pytorch_is_read_too() {
    let checkpoint = include_bytes!("../golden/pickle/pytorch_model.bin");
    let files = Files::with_config();
    files.write("pytorch_model.bin", checkpoint);
    let folder = Folder::open(files.path()).unwrap();
    let tensors: Vec<_> = folder
        .tensors()
        .map(|it| (it.name, it.shape.to_vec(), it.dtype))
        .collect();
    assert_eq!(
        tensors,
        [
            ("bf16", vec![2, 2], Dtype::BF16),
            ("f16", vec![3], Dtype::F16),
            ("f32", vec![2, 3], Dtype::F32),
            ("i64", vec![2], Dtype::I64),
            ("transposed", vec![3, 2], Dtype::F32),
            ("wide", vec![1000, 1000], Dtype::F32),
        ]
    );
    let values = |name| folder.read(name).unwrap().values;
    assert_eq!(
        values("f32"),
        Values::F32(vec![0.0, 1.0, 2.0, 3.0, 4.0, 5.0])
    );
    assert_eq!(
        values("transposed"),
        Values::F32(vec![0.0, 3.0, 1.0, 4.0, 2.0, 5.0])
    );
    assert!(matches!(values("f16"), Values::F16(_)) && matches!(values("bf16"), Values::Bf16(_)));
    assert_eq!(values("f16").into_f32(), [0.5, -1.5, 2.0]);
    assert_eq!(values("bf16").into_f32(), [0.5, -1.5, 2.0, 256.0]);
    // A million values that share one number in the file.
    let error = folder.read("wide").unwrap_err().to_string();
    assert!(
        error.contains("`wide` has 4000000 bytes, more than the file"),
        "{error}"
    );
    // The same in two parts.
    let files = Files::with_config();
    files.write("a.bin", checkpoint).json(
        "pytorch_model.bin.index.json",
        &json!({"weight_map": {"f32": "a.bin", "f16": "a.bin"}}),
    );
    assert_eq!(Folder::open(files.path()).unwrap().tensors().count(), 6);
    files.write(
        "pytorch_model.bin",
        b"\x80\x02cos\nsystem\nX\x04\x00\x00\x00true\x85R.",
    );
    assert!(
        message(&files)
            .starts_with("M/pytorch_model.bin: not a checkpoint of PyTorch that can be read: ")
    );
}

#[test]
fn a_whole_model_is_compared_in_one_error() {
    let files = Files::with_config();
    files.write(
        "model.safetensors",
        safetensors(&[
            ("transformer.wte.weight", "F32", &[4, 2]),
            ("transformer.h.0.ln_1.gamma", "F32", &[2]),
            ("transformer.h.0.attn.bias", "U8", &[1, 1, 3, 3]),
            ("transformer.h.0.mlp.weight", "BF16", &[2, 3]),
            ("lm_head.weight", "F32", &[4, 2]),
        ]),
    );
    let folder = Folder::open(files.path()).unwrap();
    let names = Names {
        prefixes: &["transformer."],
        renamed: &[("ln_1.gamma", "ln_1.weight")],
        ignored: &["*.attn.bias", "lm_head.weight"],
    };
    let expected = |list: &[(&str, &[usize])]| -> Vec<(String, Vec<usize>)> {
        list.iter()
            .map(|(name, shape)| ((*name).to_owned(), shape.to_vec()))
            .collect()
    };
    let good: [(&str, &[usize]); 3] = [
        ("wte.weight", &[4, 2]),
        ("h.0.ln_1.weight", &[2]),
        ("transformer.h.0.mlp.weight", &[2, 3]),
    ];
    let weights = folder.weights(expected(&good), &names).unwrap();
    for (name, shape) in good {
        assert_eq!(weights.read(name).unwrap().shape, shape);
    }
    assert!(folder.find("lm_head.weight", &names).is_some());
    assert_eq!(
        folder.find("wte.weight", &names).unwrap().name,
        "transformer.wte.weight"
    );
    assert!(folder.find("score.weight", &names).is_none());

    let bad: [(&str, &[usize]); 3] = [
        ("wte.weight", &[5, 2]),
        ("h.0.ln_1.bias", &[2]),
        ("h.0.mlp.weight", &[2, 3]),
    ];
    let without = Names {
        ignored: &["*.attn.bias"],
        ..names
    };
    let error = folder.weights(expected(&bad), &without).unwrap_err();
    let PretrainedError::Weights {
        source: WeightsError::Different(differences),
        ..
    } = error
    else {
        panic!("{error}");
    };
    let of = |name: &str| name.to_owned();
    assert_eq!(
        differences,
        [
            Difference::Shape {
                name: of("transformer.wte.weight"),
                expected: vec![5, 2],
                found: vec![4, 2]
            },
            Difference::Missing {
                name: of("[transformer.]h.0.ln_1.bias"),
                shape: vec![2]
            },
            Difference::Unexpected {
                name: of("lm_head.weight"),
                shape: vec![4, 2]
            },
            Difference::Unexpected {
                name: of("transformer.h.0.ln_1.gamma"),
                shape: vec![2]
            },
        ]
    );

    // The same weight twice, and a value that no model has.
    let nan = |name: &str| {
        let mut file = safetensors(&[(name, "F32", &[2]), ("x", "F32", &[1])]);
        let place = file.len() - 8;
        file[place..place + 4].copy_from_slice(&f32::NAN.to_le_bytes());
        file
    };
    files.write("model.safetensors", nan("transformer.x"));
    let folder = Folder::open(files.path()).unwrap();
    let error = folder.weights([], &names).unwrap_err().to_string();
    assert!(
        error.contains("\"transformer.x\" and \"x\" are the same weight"),
        "{error}"
    );
    files.write("model.safetensors", nan("y"));
    let folder = Folder::open(files.path()).unwrap();
    let weights = folder
        .weights(expected(&[("y", &[2]), ("x", &[1])]), &names)
        .unwrap();
    assert!(weights.read("x").is_ok());
    let error = weights.read("y").unwrap_err().to_string();
    assert!(
        error.contains("weight `y` holds a value that is not finite, at index 1"),
        "{error}"
    );
}

#[test]
fn folders_without_what_is_needed_say_what_to_do() {
    let files = Files::new();
    assert!(message(&files).starts_with("M/config.json: cannot read: "));
    let files = Files::with_config();
    assert!(message(&files).ends_with("(found: config.json); download model.safetensors into it"));
    files.write("tf_model.h5", "");
    let found = message(&files);
    assert!(
        found.contains("found: config.json, tf_model.h5") && found.contains("save_pretrained('M')"),
        "{found}"
    );
    files.write("q4.gguf", "");
    assert!(message(&files).contains("gguf files are not read"));
    files.write("a.safetensors", "").write("b.safetensors", "");
    assert!(message(&files).contains("several files of weights (a.safetensors, b.safetensors)"));
    assert!(matches!(
        Folder::open("/nowhere"),
        Err(PretrainedError::Read { .. })
    ));
}

#[test]
fn damaged_shards_are_named() {
    let open = |change: &dyn Fn(&Files)| {
        let files = Files::with_config();
        write_shards(&files);
        change(&files);
        message(&files)
    };
    let cut = |files: &Files, by: usize| {
        let file = fs::read(files.file("a.safetensors")).unwrap();
        files.write("a.safetensors", &file[..file.len() - by]);
    };
    assert!(
        open(&|files| cut(files, 1))
            .starts_with("M/a.safetensors: not a complete safetensors file")
    );
    assert!(open(&|files| cut(files, 40)).starts_with("M/a.safetensors: "));
    let missing = open(&|files| {
        files.remove("b.safetensors");
    });
    assert_eq!(
        missing,
        "M/model.safetensors.index.json: z is in M/b.safetensors, which is missing; download it again"
    );
    let lacks = open(&|files| {
        files.write("b.safetensors", safetensors(&[("w", "F16", &[2])]));
    });
    assert_eq!(
        lacks,
        "M/b.safetensors: it lacks z, which the index says it has; the shards are not of one model"
    );
    let twice = open(&|files| {
        files.write(
            "b.safetensors",
            safetensors(&[("z", "F16", &[2]), ("y", "F16", &[2])]),
        );
    });
    assert_eq!(
        twice,
        "M/b.safetensors: y is also in M/a.safetensors; expected each tensor once"
    );
    for outside in [
        "../b.safetensors",
        "/etc/passwd",
        "..",
        "",
        "x/b.safetensors",
    ] {
        let found = open(&|files| {
            files.json(
                "model.safetensors.index.json",
                &json!({"weight_map": {"z": outside}}),
            );
        });
        assert!(
            found.contains("expected the name of a file in the same folder"),
            "{found}"
        );
    }
    for index in [json!([]), json!({}), json!({"weight_map": {"z": 5}})] {
        let found = open(&|files| {
            files.json("model.safetensors.index.json", &index);
        });
        assert!(
            found.starts_with("M/model.safetensors.index.json: unexpected JSON: "),
            "{found}"
        );
    }
}

#[test]
fn headers_are_checked_before_anything_is_allocated() {
    let entry = |name: &str, shape: &str, begin: u64, end: u64| {
        format!(
            "\"{name}\":{{\"dtype\":\"F32\",\"shape\":{shape},\"data_offsets\":[{begin},{end}]}}"
        )
    };
    let (x, y) = (entry("x", "[2]", 0, 8), entry("y", "[2]", 8, 16));
    let good = safetensors_of(&format!("{{{x},{y}}}"), 16);
    let open = |file: &[u8]| {
        let files = Files::with_config();
        files.write("model.safetensors", file);
        Folder::open(files.path())
            .map(|_| ())
            .map_err(|error| error.to_string())
    };
    assert_eq!(open(&good), Ok(()));
    let huge = 4_000_000_000_000_000_000;
    for (what, header, values) in [
        (
            "10^18 elements",
            entry("x", "[1000000000,1000000000]", 0, huge),
            16,
        ),
        (
            "more elements than a number can say",
            entry("x", "[4294967296,4294967296,4294967296]", 0, 16),
            16,
        ),
        (
            "a size that overflows",
            entry("x", "[18446744073709551615]", 0, 16),
            16,
        ),
        ("a shape of another size", entry("x", "[5]", 0, 16), 16),
        (
            "a name twice",
            format!("{x},{}", entry("x", "[2]", 8, 16)),
            16,
        ),
        (
            "values that overlap",
            format!("{x},{}", entry("y", "[2]", 4, 12)),
            12,
        ),
        ("a gap", format!("{x},{}", entry("y", "[2]", 12, 20)), 20),
        ("an end before the beginning", entry("x", "[2]", 8, 0), 8),
        ("values beyond the end", format!("{x},{y}"), 12),
        ("bytes behind the values", format!("{x},{y}"), 20),
        ("an unknown type", x.replace("F32", "F31"), 8),
        ("a shape that is no list", x.replace("[2]", "2"), 8),
        ("a negative size", x.replace("[2]", "[-2]"), 8),
    ] {
        let found = open(&safetensors_of(&format!("{{{header}}}"), values));
        assert!(found.is_err(), "{what}");
    }
    let with_length = |length: u64| [&length.to_le_bytes()[..], &good[8..]].concat();
    for length in [0, 1, good.len() as u64, 99_999_999, 100_000_001, u64::MAX] {
        assert!(open(&with_length(length)).is_err(), "{length}");
    }
    assert!(open(&[]).is_err() && open(&good[..7]).is_err() && open(b"GGUF and so on").is_err());
}
