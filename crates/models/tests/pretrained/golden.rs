//! What `tokenizers` and `transformers` give for tokenizers of each kind: `golden/tokenizers_golden.py`.

use std::{fs, ops::Range, path::PathBuf};

use regard_models::pretrained::{ChatTemplate, Folder, Message, Tokenizer};
use regard_nn::weights::Dtype;
use serde::Deserialize;
use serde_json::Value;

#[derive(Deserialize)]
struct Golden {
    encodings: Vec<Encoded>,
    #[serde(default)]
    pairs: Vec<Pair>,
    #[serde(default)]
    chats: Vec<Chat>,
}

#[derive(Deserialize)]
struct Encoded {
    text: String,
    ids: Vec<u32>,
    /// Marian's: the ids as a translation, which are decoded.
    as_target: Option<Vec<u32>>,
    /// In characters; absent where the library gives none.
    offsets: Option<Vec<(usize, usize)>>,
    with_special: Vec<u32>,
    decoded: String,
    decoded_without_special: String,
}

#[derive(Deserialize)]
struct Pair {
    texts: (String, String),
    ids: Vec<u32>,
    types: Vec<u32>,
    offsets: Vec<(usize, usize)>,
}

#[derive(Deserialize)]
struct Chat {
    messages: Vec<Message>,
    add_generation_prompt: bool,
    text: Option<String>,
    error: Option<String>,
}

fn folder(kind: &str) -> PathBuf {
    PathBuf::from(concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/tests/golden/tokenizers"
    ))
    .join(kind)
}

fn golden(kind: &str) -> Golden {
    let file = fs::read(folder(kind).join("golden.json")).unwrap();
    serde_json::from_slice(&file).unwrap()
}

/// A range of bytes as one of characters.
fn characters(text: &str, bytes: &Range<usize>) -> (usize, usize) {
    let count = |end| text[..end].chars().count();
    (count(bytes.start), count(bytes.end))
}

const KINDS: [&str; 13] = [
    "bert",
    "bert-cased-files",
    "bert-files",
    "chatml",
    "gemma",
    "gpt2",
    "gpt2-files",
    "llama",
    "llama-files",
    "roberta",
    "roberta-files",
    "t5",
    "t5-files",
];

#[test]
fn ids_offsets_and_texts_are_those_of_the_libraries() {
    let (mut texts, mut pairs) = (0, 0);
    for kind in KINDS {
        let tokenizer = Tokenizer::open(folder(kind)).unwrap();
        let golden = golden(kind);
        for case in golden.encodings {
            let text = case.text.as_str();
            let found = tokenizer.encode(text, false).unwrap();
            assert_eq!(found.ids, case.ids, "{kind}: {text:?}");
            if let Some(expected) = case.offsets {
                let offsets: Vec<_> = found
                    .offsets
                    .iter()
                    .map(|at| characters(text, at))
                    .collect();
                assert_eq!(offsets, expected, "{kind}: {text:?}");
            }
            let ids = tokenizer.encode(text, true).unwrap().ids;
            assert_eq!(ids, case.with_special, "{kind}: {text:?}");
            for (skip, expected) in [(false, case.decoded), (true, case.decoded_without_special)] {
                assert_eq!(
                    tokenizer.decode(&ids, skip).unwrap(),
                    expected,
                    "{kind}: {text:?}"
                );
                let mut stream = tokenizer.stream(&[], skip).unwrap();
                let mut streamed: String = ids.iter().map(|&id| stream.push(id).unwrap()).collect();
                streamed.push_str(&stream.finish().unwrap());
                assert_eq!(streamed, expected, "{kind}: {text:?}");
            }
            assert_eq!(tokenizer.pieces(&ids).unwrap().len(), ids.len());
            texts += 1;
        }
        for case in golden.pairs {
            let (first, second) = (case.texts.0.as_str(), case.texts.1.as_str());
            let found = tokenizer.encode_pair(first, second).unwrap();
            assert_eq!(
                (found.ids, found.types),
                (case.ids, case.types),
                "{kind}: {first:?}, {second:?}"
            );
            let offsets: Vec<_> = found
                .offsets
                .iter()
                .zip(&found.texts)
                .map(|(at, of)| characters(if *of == Some(1) { second } else { first }, at))
                .collect();
            assert_eq!(offsets, case.offsets, "{kind}: {first:?}, {second:?}");
            pairs += 1;
        }
    }
    assert_eq!((texts, pairs), (362, 15));
}

/// Marian numbers the pieces of a text by a vocabulary of its own. Here texts are decoded from the ids that they have as
/// translations.
#[test]
fn ids_of_marian_are_those_of_transformers() {
    let tokenizer = Tokenizer::open(folder("marian-files")).unwrap();
    let writes = Tokenizer::open_target(folder("marian-files")).unwrap();
    let cases = golden("marian-files").encodings;
    assert_eq!(cases.len(), 27);
    for case in cases {
        let text = case.text.as_str();
        assert_eq!(
            tokenizer.encode(text, false).unwrap().ids,
            case.ids,
            "{text:?}"
        );
        let found = tokenizer.encode(text, true).unwrap();
        assert_eq!(found.ids, case.with_special, "{text:?}");
        assert_eq!(
            (found.special.last(), found.offsets.len()),
            (Some(&true), found.ids.len())
        );
        let target = case.as_target.unwrap();
        assert_eq!(writes.encode(text, true).unwrap().ids, target, "{text:?}");
        // The library writes a space behind every special token.
        let bare = |text: &str| text.replace(' ', "");
        let decoded = tokenizer.decode(&target, false).unwrap();
        assert_eq!(bare(&decoded), bare(&case.decoded), "{text:?}");
        let decoded = tokenizer.decode(&target, true).unwrap();
        assert_eq!(decoded.trim_end(), case.decoded_without_special, "{text:?}");
    }
    let pair = tokenizer.encode_pair("A man", "rides").unwrap().ids;
    let single = |text| tokenizer.encode(text, false).unwrap().ids;
    let end = tokenizer.special().eos.clone();
    assert_eq!(pair, [single("A man"), single("rides"), end].concat());
}

#[test]
fn special_ids_are_those_that_the_files_name() {
    for kind in KINDS {
        let tokenizer = Tokenizer::open(folder(kind)).unwrap();
        let special = tokenizer.special();
        let config = fs::read(folder(kind).join("tokenizer_config.json")).unwrap();
        let config: Value = serde_json::from_slice(&config).unwrap();
        let id = |role: &str| {
            let token = &config[format!("{role}_token")];
            token
                .as_str()
                .or_else(|| token["content"].as_str())
                .and_then(|token| tokenizer.id(token))
        };
        let found = [
            special.bos,
            special.pad,
            special.mask,
            special.unk,
            special.cls,
            special.sep,
        ];
        assert_eq!(
            found,
            ["bos", "pad", "mask", "unk", "cls", "sep"].map(id),
            "{kind}"
        );
        assert_eq!(special.eos, Vec::from_iter(id("eos")), "{kind}");
    }
}

#[test]
fn chats_are_those_of_transformers() {
    let (mut good, mut refused) = (0, 0);
    for kind in ["chatml", "gemma", "llama"] {
        let template = ChatTemplate::open(folder(kind)).unwrap();
        for chat in golden(kind).chats {
            match (
                template.render(&chat.messages, chat.add_generation_prompt),
                chat.text,
                chat.error,
            ) {
                (Ok(found), Some(expected), _) => {
                    assert_eq!(found, expected, "{kind}: {:?}", chat.messages);
                    good += 1;
                }
                (Err(found), None, Some(expected)) => {
                    assert!(found.to_string().contains(&expected), "{found}: {expected}");
                    refused += 1;
                }
                (found, expected, _) => panic!("{kind}: {found:?}, {expected:?}"),
            }
        }
    }
    assert_eq!((good, refused), (24, 12));
}

/// `golden/pretrained_golden.py`: safetensors, shards and a checkpoint of PyTorch.
#[test]
fn every_checkpoint_can_be_read() {
    let folders = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/pretrained");
    let mut opened = 0;
    for folder in fs::read_dir(folders).unwrap() {
        let folder = folder.unwrap().path();
        // `golden.safetensors` beside the weights holds what they give.
        let model = Folder::open(&folder).unwrap();
        for tensor in model.tensors().filter(|tensor| tensor.dtype != Dtype::I64) {
            let stored = model.read(tensor.name).unwrap();
            assert_eq!(stored.values.len(), tensor.shape.iter().product::<usize>());
        }
        assert!(model.config().text("model_type").is_ok());
        opened += 1;
    }
    assert!(opened > 30);
}
