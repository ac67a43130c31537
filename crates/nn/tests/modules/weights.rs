//! Weights to and from safetensors: exact, checked, and safe against any bytes.

use std::collections::HashMap;

use burn::tensor::Device;
use proptest::prelude::*;
use regard_nn::{
    initialize::Initializer,
    recurrent::LstmStack,
    weights::{self, Array, Arrays, Difference, Storage, WeightsError},
};

fn stack(seed: u64) -> LstmStack {
    LstmStack::new(2, 3, 5, &mut Initializer::new(seed, &Device::flex())).unwrap()
}

fn bits(arrays: &Arrays) -> Vec<(&String, &Vec<usize>, Vec<u32>)> {
    arrays
        .iter()
        .map(|(name, array)| {
            (
                name,
                &array.shape,
                array.values.iter().map(|v| v.to_bits()).collect(),
            )
        })
        .collect()
}

#[test]
fn f32_is_exact_and_keeps_metadata() {
    let arrays = weights::collect(&stack(1));
    assert_eq!(arrays.len(), 6);
    let metadata = HashMap::from([("recipe".to_owned(), "ü \"quoted\"\n".to_owned())]);
    let bytes = weights::to_bytes(&arrays, metadata.clone(), Storage::F32).unwrap();
    let (read, read_metadata) = weights::from_bytes(&bytes).unwrap();
    assert_eq!(bits(&read), bits(&arrays));
    assert_eq!(read_metadata, metadata);
    let model = weights::apply(stack(2), read).unwrap();
    assert_eq!(bits(&weights::collect(&model)), bits(&arrays));
}

/// Files of the same content do not differ, and are as the library writes them, whose order of metadata is another one in every map.
#[test]
fn the_same_content_gives_the_same_bytes() {
    let arrays = weights::collect(&stack(1));
    let entry = |i: usize| (format!("key.{i}"), format!("\"{i}\" ü\n"));
    for storage in [Storage::F32, Storage::F16] {
        let write = |entries: usize| {
            let metadata = (0..entries).map(entry).collect();
            weights::to_bytes(&arrays, metadata, storage).unwrap()
        };
        let bytes = write(20);
        for _ in 0..5 {
            assert!(write(20) == bytes, "{storage:?}");
        }
        let metadata: HashMap<String, String> = (0..20).map(entry).collect();
        assert_eq!(weights::from_bytes(&bytes).unwrap().1, metadata);
        for entries in 0..2 {
            let bytes = write(entries);
            let read = safetensors::SafeTensors::deserialize(&bytes).unwrap();
            let metadata = (0..entries).map(entry).collect();
            let library = safetensors::serialize(read.tensors(), Some(metadata)).unwrap();
            assert!(library == bytes, "{storage:?}, {entries} entries");
        }
    }
    let mut wrong = arrays;
    wrong.get_mut("layers.1.recurrent").unwrap().shape = vec![5, 21];
    let error = weights::to_bytes(&wrong, HashMap::new(), Storage::F32).unwrap_err();
    assert!(matches!(error, WeightsError::Format(_)), "{error}");
}

#[test]
fn f16_rounds_to_nearest_and_then_is_exact() {
    let mut arrays = weights::collect(&stack(1));
    let awkward = [0.0, -0.0, 1.0, 65504.0, 6e-8, 1e-10, 0.1, -0.333_333_3];
    arrays.get_mut("layers.0.input.bias").unwrap().values[..8].copy_from_slice(&awkward);
    let write = |arrays: &Arrays| weights::to_bytes(arrays, HashMap::new(), Storage::F16).unwrap();
    let bytes = write(&arrays);
    let (read, _) = weights::from_bytes(&bytes).unwrap();
    for (name, array) in &arrays {
        for (&value, &read) in array.values.iter().zip(&read[name].values) {
            // Half a unit in the last of 11 bits, or of the smallest subnormal, 2^-24.
            let tolerance = (value.abs() / 2048.0).max(2f32.powi(-25));
            assert!(
                (read - value).abs() <= tolerance,
                "{name}: {value} became {read}"
            );
        }
    }
    assert_eq!(write(&read), bytes);
    let f32_bytes = weights::to_bytes(&arrays, HashMap::new(), Storage::F32).unwrap();
    let count: usize = arrays.values().map(|array| array.values.len()).sum();
    // Two bytes less for each value; the headers differ by a few digits.
    assert!((f32_bytes.len() - bytes.len()).abs_diff(2 * count) < 64);
}

#[test]
fn what_does_not_fit_is_named() {
    let arrays = weights::collect(&stack(1));
    let name = "layers.1.recurrent";
    let error = |change: &dyn Fn(&mut Arrays)| {
        let mut changed = arrays.clone();
        change(&mut changed);
        weights::apply(stack(2), changed).unwrap_err()
    };

    let missing = error(&|arrays| drop(arrays.remove(name)));
    assert!(
        matches!(only(&missing), Difference::Missing { name: n, shape } if n == name && shape == &[5, 20])
    );
    assert!(
        missing.to_string().contains("`layers.1.recurrent` [5, 20]"),
        "{missing}"
    );

    let extra = error(&|arrays| {
        arrays.insert(
            "layers.9.recurrent".to_owned(),
            Array {
                shape: vec![1],
                values: vec![0.0],
            },
        );
    });
    assert!(
        matches!(only(&extra), Difference::Unexpected { name, shape } if name == "layers.9.recurrent" && shape == &[1])
    );
    assert!(
        extra.to_string().contains("`layers.9.recurrent` [1]"),
        "{extra}"
    );

    let shape = error(&|arrays| arrays.get_mut(name).unwrap().shape = vec![20, 5]);
    let Difference::Shape {
        expected, found, ..
    } = only(&shape)
    else {
        panic!("{shape}")
    };
    assert_eq!(
        (expected.as_slice(), found.as_slice()),
        (&[5, 20][..], &[20, 5][..])
    );
    assert!(shape.to_string().contains(name), "{shape}");

    for value in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        let error = error(&|arrays| arrays.get_mut(name).unwrap().values[7] = value);
        assert!(matches!(&error, WeightsError::NotFinite { name: n, index: 7 } if n == name));
        assert!(error.to_string().contains("index 7"), "{error}");
    }
}

fn only(error: &WeightsError) -> &Difference {
    match error {
        WeightsError::Different(differences) if differences.len() == 1 => &differences[0],
        other => panic!("{other}"),
    }
}

/// With the wrong file, the error lists all differences at once.
#[test]
fn all_differences_are_listed() {
    let mut arrays = weights::collect(&stack(1));
    arrays.remove("layers.0.recurrent");
    arrays.get_mut("layers.1.recurrent").unwrap().shape = vec![20, 5];
    let odd = Array {
        shape: vec![2],
        values: vec![f32::NAN, 0.0],
    };
    arrays.insert("other".to_owned(), odd);
    let message = weights::apply(stack(2), arrays).unwrap_err().to_string();
    for part in [
        "of another model",
        "`layers.0.recurrent` [5, 20] is missing",
        "`layers.1.recurrent` has shape [20, 5] in the file, [5, 20] in the model",
        "`other` [2] of the file is not in the model",
    ] {
        assert!(message.contains(part), "{message}");
    }
    let many = (0..30).map(|i| {
        let (shape, values) = (vec![1], vec![0.0]);
        (format!("other{i}"), Array { shape, values })
    });
    let many: Arrays = weights::collect(&stack(1))
        .into_iter()
        .chain(many)
        .collect();
    let message = weights::apply(stack(2), many).unwrap_err().to_string();
    assert!(message.ends_with("; and 20 more"), "{message}");
}

#[test]
fn a_name_that_stands_twice_is_refused() {
    let entry = "\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}";
    let file = |header: &str| {
        let length = (header.len() as u64).to_le_bytes();
        [&length, header.as_bytes(), &[0; 4]].concat()
    };
    assert!(weights::from_bytes(&file(&format!("{{{entry}}}"))).is_ok());
    let error = weights::from_bytes(&file(&format!("{{{entry},{entry}}}"))).unwrap_err();
    assert!(
        matches!(&error, WeightsError::Twice(name) if name == "a"),
        "{error}"
    );
}

/// The size that the system reported may have changed when the file is read.
#[test]
fn a_file_that_shrinks_or_grows_is_an_error() {
    let bytes = file();
    let size = bytes.len() as u64;
    let (read, _) = weights::read(bytes.as_slice(), size).unwrap();
    assert_eq!(bits(&read), bits(&weights::collect(&stack(1))));
    assert!(
        weights::metadata(bytes.as_slice(), size)
            .unwrap()
            .is_empty()
    );
    let error = weights::read(&bytes[..bytes.len() - 1], size).unwrap_err();
    assert!(matches!(error, WeightsError::Read(_)), "{error}");
    for wrong in [0, 7, 8, size - 1, size + 1, u64::MAX] {
        let error = weights::read(bytes.as_slice(), wrong).unwrap_err();
        assert!(matches!(error, WeightsError::Format(_)), "{wrong}: {error}");
        assert!(weights::metadata(bytes.as_slice(), wrong).is_err());
    }
}

#[test]
fn bfloat16_is_widened() {
    let data: Vec<u8> = [1.0f32, -0.0, 3.5]
        .iter()
        .flat_map(|v| v.to_le_bytes()[2..].to_vec())
        .collect();
    let view =
        safetensors::tensor::TensorView::new(safetensors::Dtype::BF16, vec![3], &data).unwrap();
    let bytes = safetensors::serialize([("a", view)], None).unwrap();
    let (arrays, _) = weights::from_bytes(&bytes).unwrap();
    assert_eq!(arrays["a"].values, [1.0, -0.0, 3.5]);
}

#[test]
fn foreign_types_are_refused() {
    let data = [0u8; 32];
    let view =
        safetensors::tensor::TensorView::new(safetensors::Dtype::I32, vec![8], &data).unwrap();
    let bytes = safetensors::serialize([("ids", view)], None).unwrap();
    let error = weights::from_bytes(&bytes).unwrap_err();
    assert!(
        matches!(&error, WeightsError::Dtype { name, .. } if name == "ids"),
        "{error}"
    );
    assert!(error.to_string().contains("I32"), "{error}");
}

fn file() -> Vec<u8> {
    weights::to_bytes(&weights::collect(&stack(1)), HashMap::new(), Storage::F32).unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, failure_persistence: None, ..Default::default() })]

    #[test]
    fn a_file_cut_short_is_an_error(share in 0.0f64..1.0) {
        let bytes = file();
        let cut = (share * bytes.len() as f64) as usize;
        prop_assert!(weights::from_bytes(&bytes[..cut]).is_err());
    }

    #[test]
    fn any_bytes_are_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        let _ = weights::from_bytes(&bytes);
    }

    /// A damaged header or damaged values give an error, or arrays that `apply` checks; never a panic.
    #[test]
    fn damage_is_survived(places in prop::collection::vec((0.0f64..1.0, any::<u8>()), 1..6), in_header: bool) {
        let mut bytes = file();
        let header = 8 + u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
        let end = if in_header { header } else { bytes.len() };
        for (place, value) in places {
            bytes[(place * end as f64) as usize] = value;
        }
        if let Ok((arrays, _)) = weights::from_bytes(&bytes) {
            for array in arrays.values() {
                prop_assert_eq!(array.values.len(), array.shape.iter().product::<usize>());
            }
            let _ = weights::apply(stack(2), arrays);
        }
    }

    /// Headers that state what the file does not hold: huge lengths, overlaps, wrong products.
    #[test]
    fn lying_headers_are_refused(
        length in prop_oneof![Just(u64::MAX), Just(u64::MAX / 2), 0u64..1000],
        shape in prop::collection::vec(prop_oneof![Just(u64::MAX), 0u64..5], 0..4),
        start in 0u64..64, end in prop_oneof![Just(u64::MAX), 0u64..64],
        honest: bool,
    ) {
        let header = format!(
            "{{\"w\":{{\"dtype\":\"F32\",\"shape\":{shape:?},\"data_offsets\":[{start},{end}]}}}}"
        );
        let length = if honest { header.len() as u64 } else { length };
        let mut bytes = length.to_le_bytes().to_vec();
        bytes.extend(header.as_bytes());
        bytes.extend([0; 32]);
        if let Ok((arrays, _)) = weights::from_bytes(&bytes) {
            for array in arrays.values() {
                prop_assert_eq!(array.values.len(), array.shape.iter().product::<usize>());
            }
        }
    }
}
