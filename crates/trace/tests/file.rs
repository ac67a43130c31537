//! The file format: round trip, and hostile input.

mod common;

use std::fs;

use proptest::collection::vec;
use proptest::prelude::*;
use regard_trace::{
    AttentionMap, Axis, Bounds, Image, Kind, Mask, Region, Regions, Token, Tokens, Trace,
    TraceError, diagnose, from_bytes, read, to_bytes, write,
};
use safetensors::tensor::{Dtype, TensorView};

fn sample() -> Trace {
    let words = Tokens::from_words("a b");
    let map = AttentionMap::new(
        Kind::Cross,
        words.clone(),
        words,
        1,
        vec![0.25, 0.75, 1.0, 0.0],
    )
    .expect("valid");
    Trace::new("copy", "a b", "a b")
        .with_score(-0.5)
        .with_rank(0)
        .with_map(map)
}

/// A safetensors file with one tensor `map.0.weights` and the given description.
fn forged(json: &str, dtype: Dtype, shape: &[usize]) -> Vec<u8> {
    let data = vec![0u8; shape.iter().product::<usize>() * dtype.bitsize() / 8];
    let view = TensorView::new(dtype, shape.to_vec(), &data).expect("consistent");
    let metadata = [("regard.trace".to_owned(), json.to_owned())].into();
    safetensors::serialize([("map.0.weights", view)], Some(metadata)).expect("small")
}

fn description(queries: usize, axis: &str) -> String {
    format!(
        r#"{{"version":1,"axes":[{axis}],"traces":[{{"model":"m","source":"s","target":"t","maps":[
            {{"tensor":"map.0.weights","name":"n","kind":"cross","layer":0,"heads":1,
              "normalized":true,"queries":{queries},"keys":0}}]}}]}}"#
    )
}

const TWO: &str = r#"{"type":"positions","length":2}"#;

#[test]
fn a_forged_file_is_read_when_it_is_right() {
    let traces = from_bytes(&forged(&description(0, TWO), Dtype::F32, &[1, 2, 2])).expect("valid");
    assert_eq!(traces[0].maps[0].shape(), [1, 2, 2]);
}

#[test]
fn wrong_descriptions_name_what_is_wrong() {
    let f32s = |json: &str| from_bytes(&forged(json, Dtype::F32, &[1, 2, 2])).unwrap_err();
    let error = f32s("[1, 2");
    assert!(matches!(error, TraceError::Description { .. }), "{error}");
    let error = f32s(r#"{"version":99}"#);
    assert!(
        matches!(error, TraceError::Version { found: 99, .. }),
        "{error}"
    );
    let error = f32s(&description(7, TWO));
    assert!(
        error.to_string().contains("uses axis 7, but there are 1"),
        "{error}"
    );
    let error = f32s(&description(0, r#"{"type":"positions","length":3}"#));
    assert!(
        error
            .to_string()
            .contains("expected F32 [1, 3, 3], found F32 [1, 2, 2]"),
        "{error}"
    );
    let vast = r#"{"type":"image","rows":18446744073709551615,"columns":18446744073709551615}"#;
    assert!(matches!(
        f32s(&description(0, vast)),
        TraceError::Tensor { .. }
    ));
    let error = f32s(&description(0, TWO).replace("map.0.weights", "map.9.weights"));
    assert!(error.to_string().contains("no such tensor"), "{error}");
    let deep = format!("{}{}", "[".repeat(100_000), "]".repeat(100_000));
    assert!(matches!(f32s(&deep), TraceError::Description { .. }));

    let error = from_bytes(&forged(&description(0, TWO), Dtype::F16, &[1, 2, 2])).unwrap_err();
    assert!(error.to_string().contains("found F16"), "{error}");
    let no_trace = safetensors::serialize(Vec::<(&str, TensorView)>::new(), None).expect("empty");
    assert!(matches!(
        from_bytes(&no_trace),
        Err(TraceError::Foreign { .. })
    ));
}

#[test]
fn a_vast_map_without_weights_is_refused() {
    let axes =
        r#"{"type":"positions","length":0},{"type":"positions","length":1152921504606846976}"#;
    let bytes = forged(&description(1, axes), Dtype::F32, &[1, 1 << 60, 0]);
    assert!(matches!(from_bytes(&bytes), Err(TraceError::Empty { .. })));
    let heads = description(0, r#"{"type":"positions","length":0}"#)
        .replace(r#""heads":1"#, r#""heads":4611686018427387904"#);
    let bytes = forged(&heads, Dtype::F32, &[1 << 62, 0, 0]);
    assert!(matches!(from_bytes(&bytes), Err(TraceError::Empty { .. })));
}

/// Files of version 1 stay readable, and the format of version 1 does not change. `REGARD_BLESS=1` writes
/// the file anew, which only a new version of the format may need.
#[test]
fn version_1_is_what_it_was() {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/v1.safetensors");
    let image = Axis::Image {
        prefix: Tokens::from(vec![Token::special("[CLS]")]),
        rows: 1,
        columns: 2,
    };
    let looked = AttentionMap::unnormalized(
        Kind::Other,
        Axis::Positions { length: 1 },
        image,
        2,
        vec![0.5, 0.25, 0.0, 1.0, 2.0, 0.125],
    );
    let mut second =
        Trace::new("vit", "", "").with_map(looked.expect("valid").at_layer(3).named("cls"));
    second.metadata.insert("seed".into(), "1".into());
    assert_eq!(read(&path).expect("readable"), [sample(), second]);
}

/// A decoder at "<s> ein Mann", which wrote "ein Mann </s>".
fn decoder() -> AttentionMap {
    let tokens = [Token::special("<s>"), Token::new("ein"), Token::new("Mann")];
    let read: Tokens = tokens.iter().cloned().collect();
    let end = Token::special("</s>");
    let written: Tokens = tokens[1..].iter().cloned().chain([end]).collect();
    let weights = vec![1.0, 0.0, 0.0, 0.5, 0.5, 0.0, 0.25, 0.5, 0.25];
    AttentionMap::new(Kind::DecoderSelf, read.clone(), read, 1, weights)
        .and_then(|map| map.predicting(written))
        .expect("valid")
}

#[test]
fn version_2_is_what_it_was() {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/v2.safetensors");
    let traces = [sample(), Trace::new("m", "s", "t").with_map(decoder())];
    let bytes = to_bytes(&traces).expect("small");
    if std::env::var_os("REGARD_BLESS").is_some_and(|value| value == "1") {
        fs::write(&path, &bytes).expect("written");
    }
    assert_eq!(read(&path).expect("readable"), traces);
    assert_eq!(fs::read(&path).expect("there"), bytes);
}

/// Version 1 named the queries of a decoder's self-attention by what was written there.
#[test]
fn a_decoder_of_version_1_gets_the_tokens_that_it_read() {
    let tokens = r#"[{"text":"<s>","special":true},{"text":"ein"},{"text":"Mann"}]"#;
    let written = r#"[{"text":"ein"},{"text":"Mann"},{"text":"</s>","special":true}]"#;
    let json = |version: u64, kind: &str| {
        format!(
            r#"{{"version":{version},"axes":[{{"type":"tokens","tokens":{written}}},{{"type":"tokens","tokens":{tokens}}}],
                "traces":[{{"model":"m","source":"s","target":"t","maps":[{{"tensor":"map.0.weights","name":"n",
                "kind":"{kind}","layer":0,"heads":1,"normalized":true,"queries":0,"keys":1}}]}}]}}"#
        )
    };
    let open = |version, kind| {
        let traces = from_bytes(&forged(&json(version, kind), Dtype::F32, &[1, 3, 3]));
        traces.expect("valid").remove(0).maps.remove(0)
    };
    let map = open(1, "decoder_self");
    assert_eq!(map.queries(), decoder().queries());
    assert_eq!(map.predictions(), decoder().predictions());
    assert_eq!(open(1, "other").predictions(), None);
    // A file of version 2 is not converted.
    let map = open(2, "decoder_self");
    assert_eq!(map.predictions(), None);
    assert_eq!(map.queries().labels(), ["ein", "Mann", "</s>"]);
}

#[test]
fn predictions_stand_beside_the_queries() {
    let map = decoder();
    assert_eq!(map.row_labels(), ["<s> (ein)", "ein (Mann)", "Mann (</s>)"]);
    let words = Tokens::from_words("one two");
    let error = map.predicting(words).unwrap_err().to_string();
    assert!(error.contains("2 predictions for 3 queries"), "{error}");
    // Between words: "rid|ing" was read in two steps, and "down" was written after it.
    let read = Tokens::from(vec![
        Token::special("<s>"),
        Token::new("rid").in_word(0),
        Token::new("ing").in_word(0),
    ]);
    let written = Tokens::from(vec![
        Token::new("rid").in_word(0),
        Token::new("ing").in_word(0),
        Token::new("down").in_word(1),
    ]);
    let weights = vec![1.0, 0.0, 0.0, 0.5, 0.5, 0.0, 0.2, 0.4, 0.4];
    let map = AttentionMap::new(Kind::DecoderSelf, read.clone(), read, 1, weights).unwrap();
    let words = map.predicting(written).unwrap().merge_words();
    assert_eq!(words.row_labels(), ["<s> (riding)", "riding (down)"]);
    assert_eq!(words.mean_heads().predictions(), words.predictions());
    assert_eq!(words.head(0).unwrap().row_labels(), words.row_labels());
}

#[test]
fn writing_replaces_the_file_or_leaves_it() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("look.safetensors");
    write(&path, &[sample()]).expect("written");
    write(&path, &[sample(), sample()]).expect("replaced");
    assert_eq!(read(&path).expect("read"), [sample(), sample()]);
    assert_eq!(
        fs::read_dir(folder.path()).expect("listed").count(),
        1,
        "a temporary file stayed"
    );

    let error = write(folder.path().join("no/such/folder"), &[sample()]).unwrap_err();
    assert!(error.to_string().contains("no/such/folder"), "{error}");
    let error = read(folder.path().join("missing")).unwrap_err();
    assert!(matches!(error, TraceError::Io { .. }) && error.to_string().contains("missing"));
    assert!(matches!(read(folder.path()), Err(TraceError::Io { .. })));
    let cut = folder.path().join("cut");
    let bytes = to_bytes(&[sample()]).expect("small");
    fs::write(&cut, &bytes[..bytes.len() - 1]).expect("written");
    let error = read(&cut).unwrap_err().to_string();
    assert!(
        error.contains("cut") && error.contains("safetensors"),
        "{error}"
    );
}

#[cfg(unix)]
#[test]
fn a_link_keeps_pointing_and_permissions_are_usual() {
    use std::os::unix::fs::{PermissionsExt, symlink};
    let folder = tempfile::tempdir().expect("a temporary folder");
    let (path, link) = (folder.path().join("look"), folder.path().join("link"));
    write(&path, &[]).expect("written");
    symlink(&path, &link).expect("linked");
    write(&link, &[sample()]).expect("written through the link");
    assert!(fs::symlink_metadata(&link).expect("there").is_symlink());
    assert_eq!(read(&path).expect("read").len(), 1);
    let plain = folder.path().join("plain");
    fs::write(&plain, "").expect("written");
    let mode = |p| fs::metadata(p).expect("there").permissions().mode();
    assert_eq!(mode(&path), mode(&plain));
}

/// The zeros are never written to memory.
#[test]
fn what_could_not_be_read_again_is_not_written() {
    let [queries, keys] = [1 << 14, (1 << 14) + 1].map(|length| Axis::Positions { length });
    let map = AttentionMap::new(
        Kind::Cross,
        queries,
        keys,
        1,
        vec![0.0; (1 << 28) + (1 << 14)],
    );
    let trace = Trace::new("m", "", "").with_map(map.expect("all is masked"));
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("vast");
    let error = write(&path, &[trace]).unwrap_err().to_string();
    for part in ["vast", "1073807360 bytes", "1073741824", "write fewer"] {
        assert!(error.contains(part), "{part}: {error}");
    }
    assert!(!path.exists());
}

#[test]
fn a_score_that_json_cannot_hold_is_left_out() {
    let bytes = to_bytes(&[sample().with_score(f64::NEG_INFINITY)]).expect("small");
    assert_eq!(from_bytes(&bytes).expect("valid")[0].score, None);
}

#[test]
fn shared_axes_are_stored_once() {
    let words = Tokens::from_words("the very same words in every layer of this model");
    let map = |layer| {
        AttentionMap::new(
            Kind::EncoderSelf,
            words.clone(),
            words.clone(),
            1,
            vec![0.1; 100],
        )
        .expect("valid")
        .at_layer(layer)
    };
    let deep = (0..12).fold(Trace::default(), |trace, layer| trace.with_map(map(layer)));
    let bytes = to_bytes(&[deep]).expect("small");
    assert_eq!(
        bytes.windows(4).filter(|window| window == b"same").count(),
        1
    );
}

proptest! {
    #[test]
    fn round_trip_and_same_bytes(traces in vec(common::trace(), 0..3)) {
        let bytes = to_bytes(&traces).expect("small");
        prop_assert_eq!(&bytes, &to_bytes(&traces).expect("small"));
        prop_assert_eq!(from_bytes(&bytes).expect("own bytes"), traces);
    }

    #[test]
    fn random_bytes_are_refused(bytes in vec(any::<u8>(), 0..300)) {
        prop_assert!(from_bytes(&bytes).is_err());
    }

    #[test]
    fn damaged_files_never_panic(trace in common::trace(), cut in any::<prop::sample::Index>(),
                                 at in any::<prop::sample::Index>(), byte in any::<u8>()) {
        let mut bytes = to_bytes(&[trace]).expect("small");
        prop_assert!(from_bytes(&bytes[..cut.index(bytes.len())]).is_err());
        let at = at.index(bytes.len());
        bytes[at] = byte;
        let _ = from_bytes(&bytes);
    }

    #[test]
    fn any_description_never_panics(json in any::<String>(), length in 0usize..4) {
        let _ = from_bytes(&forged(&json, Dtype::F32, &[1, length, 2]));
    }
}

/// SplitMix64.
fn next(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let bits = (*state ^ (*state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ (bits >> 31)
}

/// A copy of a file with something wrong: cut, bits turned, or numbers of its header replaced by extreme ones.
fn mutated(file: &[u8], state: &mut u64) -> Vec<u8> {
    const EXTREMES: [&str; 12] = [
        "0",
        "1",
        "2",
        "5",
        "65536",
        "4294967296",
        "4611686018427387904",
        "9223372036854775808",
        "18446744073709551615",
        "18446744073709551616",
        "-1",
        "1e308",
    ];
    let mut below = |bound: usize| (next(state) % bound as u64) as usize;
    let length = u64::from_le_bytes(file[..8].try_into().unwrap()) as usize;
    match below(8) {
        0 => return file[..below(file.len())].to_vec(),
        1 => {
            let mut file = file.to_vec();
            for _ in 0..1 + below(4) {
                let at = below(file.len());
                file[at] ^= 1 << below(8);
            }
            return file;
        }
        _ => {}
    }
    let mut header = String::from_utf8(file[8..8 + length].to_vec()).unwrap();
    for _ in 0..1 + below(3) {
        let starts: Vec<usize> = (1..header.len())
            .filter(|&at| {
                let digit = |at: usize| header.as_bytes()[at].is_ascii_digit();
                digit(at) && !digit(at - 1)
            })
            .collect();
        let start = starts[below(starts.len())];
        let digits = header[start..].bytes().take_while(u8::is_ascii_digit);
        let end = start + digits.count();
        header.replace_range(start..end, EXTREMES[below(EXTREMES.len())]);
    }
    let mut mutated = (header.len() as u64).to_le_bytes().to_vec();
    mutated.extend_from_slice(header.as_bytes());
    mutated.extend_from_slice(&file[8 + length..]);
    mutated
}

#[test]
fn a_mutated_file_is_read_or_refused() {
    let words = Tokens::from(vec![
        Token::new("rid").in_word(0),
        Token::new("ing").in_word(0),
        Token::special("</s>"),
    ]);
    let image = Axis::Image {
        prefix: Tokens::from(vec![Token::special("[CLS]")]),
        rows: 1,
        columns: 2,
    };
    let length = Axis::Positions { length: 3 };
    let mask = Mask::new(2, 2, vec![1, 2, 1]).unwrap();
    let bounds = Bounds {
        x: 1.0,
        y: 2.0,
        width: 3.0,
        height: 4.0,
    };
    let region = Region::new("cat", bounds).and_then(|region| region.scored(0.5));
    let boxes = Axis::from(Regions::from(vec![region.unwrap().masked(mask); 3]));
    let map = |kind, queries: Axis, keys: Axis| {
        AttentionMap::new(kind, queries, keys, 2, vec![1.0 / 3.0; 18]).unwrap()
    };
    let file = to_bytes(&[
        sample(),
        Trace::new("m", "s", "t")
            .with_map(map(
                Kind::EncoderSelf,
                words.clone().into(),
                words.clone().into(),
            ))
            .with_map(map(Kind::EncoderSelf, words.clone().into(), words.into()).at_layer(1))
            .with_map(map(Kind::Cross, length, image))
            .with_map(map(Kind::Cross, boxes.clone(), boxes))
            .with_image(pixels()),
    ])
    .unwrap();
    let (mut opened, mut refused) = (0, 0);
    for seed in 0..4_000 {
        match from_bytes(&mutated(&file, &mut { seed })) {
            Ok(traces) => {
                // A trace that was read can be used without a panic.
                for trace in traces {
                    let trace = trace.merge_words();
                    for map in &trace.maps {
                        let heads = diagnose::heads(map);
                        heads.iter().for_each(|head| {
                            diagnose::report::describe(map, head);
                        });
                        diagnose::report::uncovered(map, &heads);
                        map.mean_heads().align_argmax();
                    }
                    for (_, layers) in diagnose::stacks(&trace) {
                        let _ = diagnose::rollout(&layers);
                        let _ = diagnose::flow(&layers);
                    }
                    to_bytes(&[trace]).unwrap();
                }
                opened += 1;
            }
            Err(_) => refused += 1,
        }
    }
    assert!(opened > 100 && refused > 1_000, "{opened}, {refused}");
}

#[test]
fn a_tensor_serves_one_map_and_layers_have_an_end() {
    let map = r#"{"tensor":"map.0.weights","name":"n","kind":"cross","layer":0,"heads":1,"normalized":true,"queries":0,"keys":0}"#;
    let file = |maps: &str| {
        let json = format!(
            r#"{{"version":1,"axes":[{TWO}],"traces":[{{"model":"m","source":"s","target":"t","maps":[{maps}]}}]}}"#
        );
        from_bytes(&forged(&json, Dtype::F32, &[1, 2, 2]))
    };
    assert!(file(map).is_ok());
    let error = file(&format!("{map},{map}")).unwrap_err().to_string();
    assert!(error.contains("two maps have the tensor"), "{error}");
    let error = file(&map.replace("\"layer\":0", "\"layer\":18446744073709551615"))
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("is of layer 18446744073709551615"),
        "{error}"
    );
    // Nor is written what could not be read.
    let written = |layer: usize| {
        let map = sample().maps.remove(0).at_layer(layer);
        to_bytes(&[Trace::new("m", "", "").with_map(map)])
    };
    let last = u32::MAX as usize - 1;
    assert!(from_bytes(&written(last).expect("the last layer")).is_ok());
    let error = written(last + 1).unwrap_err();
    assert!(matches!(error, TraceError::Layer { .. }), "{error}");
    assert!(!error.to_string().contains("damaged"), "{error}");
}

/// What shows a trace keeps numbers of each head, and heads without weights, or with one each, take next to no room in a file.
#[test]
fn heads_have_an_end() {
    let empty = |traces: usize, maps: usize| {
        let of = |number: usize| format!("map.{number}.weights");
        let trace = |first: usize| {
            let map = |number: usize| {
                let tensor = of(number);
                format!(
                    r#"{{"tensor":"{tensor}","name":"n","kind":"other","layer":0,"heads":65536,"normalized":true,"queries":0,"keys":0}}"#
                )
            };
            let maps: Vec<String> = (first * maps..(first + 1) * maps).map(map).collect();
            let maps = maps.join(",");
            format!(r#"{{"model":"m","source":"s","target":"t","maps":[{maps}]}}"#)
        };
        let all: Vec<String> = (0..traces).map(trace).collect();
        let json = format!(
            r#"{{"version":1,"axes":[{{"type":"positions","length":0}}],"traces":[{}]}}"#,
            all.join(",")
        );
        let view = |number: usize| {
            let view = TensorView::new(Dtype::F32, vec![1 << 16, 0, 0], &[]);
            (of(number), view.expect("consistent"))
        };
        let metadata = [("regard.trace".to_owned(), json)].into();
        let views = (0..traces * maps).map(view);
        from_bytes(&safetensors::serialize(views, Some(metadata)).expect("small"))
    };
    assert_eq!(empty(4, 1).expect("as many as there may be").len(), 4);
    for (traces, maps, told) in [
        (1, 2, "131072 heads of a trace; a trace file may have 65536"),
        (
            5,
            1,
            "327680 heads of less than 64 weights each in all traces; a trace file may have 262144",
        ),
    ] {
        let error = empty(traces, maps).unwrap_err();
        assert!(matches!(error, TraceError::TooManyHeads { .. }), "{error}");
        assert!(error.to_string().contains(told), "{error}");
    }
    let written = |traces: usize, heads: usize, keys: usize| {
        let [query, keys] = [1, keys].map(|length| Axis::Positions { length });
        let weights = vec![0.5; heads * keys.len()];
        let map = AttentionMap::unnormalized(Kind::Other, query, keys, heads, weights);
        let trace = Trace::new("m", "", "").with_map(map.expect("valid"));
        to_bytes(&vec![trace; traces])
    };
    assert!(written(1, 1 << 16, 1).is_ok());
    for (traces, heads, keys) in [(1, (1 << 16) + 1, 1), (5, 1 << 16, 1), (257, 1024, 63)] {
        let error = written(traces, heads, keys).unwrap_err();
        assert!(matches!(error, TraceError::TooManyHeads { .. }), "{error}");
        assert!(!error.to_string().contains("damaged"), "{error}");
    }
    // Larger heads take room in a file, which has a limit of its own.
    let bytes = written(257, 1024, 64).expect("many heads");
    assert_eq!(from_bytes(&bytes).expect("as written").len(), 257);
}

fn pixels() -> Image {
    Image::new(2, 2, 3, (0..12).collect::<Vec<u8>>()).expect("valid")
}

/// A description of a trace without maps, whose image is `image.0.pixels`, or as it is forged.
fn forged_image(dtype: Dtype, shape: &[usize], name: &str) -> Result<Vec<Trace>, TraceError> {
    let json = format!(
        r#"{{"version":2,"axes":[],"traces":[{{"model":"m","source":"s","target":"t","image":"{name}","maps":[]}}]}}"#
    );
    let data = vec![7u8; shape.iter().product::<usize>() * dtype.bitsize() / 8];
    let view = TensorView::new(dtype, shape.to_vec(), &data).expect("consistent");
    let metadata = [("regard.trace".to_owned(), json)].into();
    from_bytes(&safetensors::serialize([("image.0.pixels", view)], Some(metadata)).expect("small"))
}

#[test]
fn an_image_is_stored_once_and_shared() {
    let about = |target: &str| Trace::new("captioner", "a.png", target).with_image(pixels());
    let traces = [about("one"), about("two"), sample()];
    let bytes = to_bytes(&traces).expect("small");
    let read = from_bytes(&bytes).expect("own bytes");
    assert_eq!(read, traces);
    let stored = safetensors::SafeTensors::deserialize(&bytes).expect("a container");
    assert_eq!(
        stored.tensor("image.0.pixels").expect("there").shape(),
        [2, 2, 3]
    );
    assert!(stored.tensor("image.1.pixels").is_err());
    let of = |trace: &Trace| trace.image.as_ref().map(|image| image.pixels().as_ptr());
    assert_eq!(of(&read[0]), of(&read[1]));
    assert_eq!(of(&read[2]), None);
}

#[test]
fn lying_images_are_refused() {
    let open = |dtype, shape: &[usize]| forged_image(dtype, shape, "image.0.pixels");
    assert_eq!(
        open(Dtype::U8, &[2, 3, 1]).expect("valid")[0].image,
        Some(Image::new(2, 3, 1, vec![7; 6]).expect("valid"))
    );
    for (dtype, shape, said) in [
        (Dtype::F32, &[2usize, 2, 3][..], "found F32 [2, 2, 3]"),
        (
            Dtype::U8,
            &[2, 2],
            "expected U8 [height, width, channels], found U8 [2, 2]",
        ),
        (Dtype::U8, &[2, 2, 4], "1 or 3 channels"),
        (Dtype::U8, &[0, 1 << 40, 3], "0 values"),
    ] {
        let error = open(dtype, shape).unwrap_err().to_string();
        assert!(error.contains(said), "{error}");
    }
    let error = forged_image(Dtype::U8, &[1, 1, 1], "image.7.pixels")
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("\"image.7.pixels\"") && error.contains("no such tensor"),
        "{error}"
    );
}

/// Files without regions keep version 2, so that older readers read them; those with regions say that they need a newer one.
#[test]
fn regions_are_version_3() {
    let bounds = |x| Bounds {
        x,
        y: 0.0,
        width: 1.5,
        height: 2.0,
    };
    let mask = Mask::new(2, 2, vec![1, 2, 1]).expect("full");
    let regions = Regions::from(vec![
        Region::new("cat", bounds(0.25))
            .and_then(|region| region.scored(0.875))
            .expect("valid")
            .masked(mask),
        Region::new("", bounds(-1.0)).expect("valid"),
    ]);
    let map = AttentionMap::new(
        Kind::Cross,
        Tokens::from_words("what"),
        regions,
        1,
        vec![0.75, 0.25],
    );
    let map = map.expect("valid");
    let trace = Trace::new("vqa", "what?", "cat")
        .with_image(pixels())
        .with_map(map.clone());
    let traces = [trace];
    let bytes = to_bytes(&traces).expect("small");
    assert_eq!(from_bytes(&bytes).expect("own bytes"), traces);
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/v3.safetensors");
    if std::env::var_os("REGARD_BLESS").is_some_and(|value| value == "1") {
        fs::write(&path, &bytes).expect("written");
    }
    assert_eq!(fs::read(&path).expect("there"), bytes);
    let has = |bytes: &[u8], text: &str| String::from_utf8_lossy(bytes).contains(text);
    assert!(has(&bytes, r#"\"version\":3"#));
    let plain = to_bytes(&[sample().with_image(pixels())]).expect("small");
    assert!(has(&plain, r#"\"version\":2"#));

    // What works with tokens works with regions.
    let words = traces[0].merge_words();
    assert_eq!(words.maps[0].keys().labels(), ["cat", ""]);
    assert_eq!(
        diagnose::heads(&map)[0].top_key.map(|(key, _)| key),
        Some(0)
    );
    assert_eq!(map.align_argmax().to_string(), "0-0");
}

#[test]
fn impossible_regions_and_masks_are_refused() {
    let region = |text: &str| {
        let axis = format!(r#"{{"type":"regions","regions":[{text}]}}"#);
        from_bytes(&forged(&description(0, &axis), Dtype::F32, &[1, 1, 1])).map(|_| ())
    };
    let with = |width: &str, mask: &str| {
        region(&format!(
            r#"{{"label":"cat","box":{{"x":0,"y":0,"width":{width},"height":1}}{mask}}}"#
        ))
    };
    assert!(with("1", "").is_ok());
    let error = with("-1", "").unwrap_err().to_string();
    assert!(error.contains("region \"cat\": width is -1"), "{error}");
    let error = with("1", r#","mask":{"height":2,"width":2,"runs":[5]}"#)
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("mask of 2 x 2 pixels: its runs have 5"),
        "{error}"
    );
    let vast = r#","mask":{"height":4294967296,"width":4294967296,"runs":[]}"#;
    assert!(
        with("1", vast)
            .unwrap_err()
            .to_string()
            .contains("at most 67108864")
    );
    // Of such a mask each column would be told.
    for sides in [
        r#""height":0,"width":18446744073709551615"#,
        r#""height":67108865,"width":0"#,
    ] {
        let mask = format!(r#","mask":{{{sides},"runs":[]}}"#);
        let error = with("1", &mask).unwrap_err().to_string();
        assert!(error.contains("67108864, also of each side"), "{error}");
    }
    assert!(with("1", r#","mask":{"height":0,"width":3,"runs":[]}"#).is_ok());
    assert!(with("1e99", "").is_err());
    let nan = Bounds {
        x: f32::NAN,
        y: 0.0,
        width: 1.0,
        height: 1.0,
    };
    let error = Region::new("dog", nan).unwrap_err().to_string();
    assert!(error.contains("region \"dog\": x is NaN"), "{error}");
    let unit = Bounds {
        x: 0.0,
        y: 0.0,
        width: 1.0,
        height: 1.0,
    };
    let error = Region::new("dog", unit).and_then(|region| region.scored(f32::INFINITY));
    assert!(error.unwrap_err().to_string().contains("score is inf"));
}

proptest! {
    #[test]
    fn columns_of_a_mask_are_its_runs(bits in vec(any::<bool>(), 12), height in prop_oneof![Just(1usize), Just(3), Just(4), Just(12)]) {
        let mut runs = vec![0u32];
        for (at, &bit) in bits.iter().enumerate() {
            // A run of 0 now and then, which changes nothing.
            let turns = bit != (runs.len() % 2 == 0);
            if turns { runs.push(0) } else if at % 5 == 4 { runs.extend([0, 0]) }
            *runs.last_mut().unwrap() += 1;
        }
        let mask = Mask::new(height, 12 / height, runs).unwrap();
        let mut found = vec![false; 12];
        for (x, ranges) in mask.columns().enumerate() {
            prop_assert!(ranges.windows(2).all(|pair| pair[0].end < pair[1].start));
            ranges.into_iter().flatten().for_each(|y| found[x * height + y] = true);
        }
        prop_assert_eq!(found, bits);
    }
}
