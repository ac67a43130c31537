//! What is stated beside a tokenizer's own file, as transformers 5.24 obeys it: ids and texts are those that it gives.

use std::{fs, path::PathBuf};

use regard_models::pretrained::{PretrainedError, Tokenizer};
use serde_json::{Value, json};

use crate::common::Files;

/// A copy of a golden tokenizer.
fn copied(kind: &str) -> Files {
    let golden = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden/tokenizers");
    let files = Files::new();
    for file in fs::read_dir(golden.join(kind)).unwrap() {
        let path = file.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap();
        files.write(name, fs::read(&path).unwrap());
    }
    files
}

/// Changes a JSON file of a folder.
fn change(files: &Files, name: &str, change: impl FnOnce(&mut Value)) {
    let mut content: Value = serde_json::from_slice(&fs::read(files.file(name)).unwrap()).unwrap();
    change(&mut content);
    files.json(name, &content);
}

/// The golden tokenizer `kind` with these keys in `tokenizer_config.json`.
fn with(kind: &str, keys: &Value) -> Result<Tokenizer, PretrainedError> {
    let files = copied(kind);
    change(&files, "tokenizer_config.json", |config| {
        for (key, value) in keys.as_object().unwrap() {
            config[key.as_str()] = value.clone();
        }
    });
    Tokenizer::open(files.path())
}

fn ids(tokenizer: &Tokenizer, text: &str) -> Vec<u32> {
    tokenizer.encode(text, false).unwrap().ids
}

fn token(content: &str, special: bool) -> Value {
    json!({"content": content, "lstrip": false, "normalized": false, "rstrip": false, "single_word": false, "special": special})
}

#[test]
fn tokens_are_added_by_each_file_that_names_them() {
    for (kind, first, [the, blank, x]) in [
        ("llama-files", 420u32, [262, 364, 123]),
        ("t5-files", 122, [6, 3, 2]),
    ] {
        let listed = json!({"added_tokens_decoder": {
            (first + 1).to_string(): token("<n2>", false), first.to_string(): token("<new>", true),
        }});
        let further = json!({"additional_special_tokens": ["<new>", "<n2>", "</s>"]});
        let files = copied(kind);
        files.json(
            "added_tokens.json",
            &json!({"<n2>": first + 1, "<new>": first}),
        );
        for (tokenizer, special) in [
            (with(kind, &listed).unwrap(), [true, false]),
            (with(kind, &further).unwrap(), [true, true]),
            (Tokenizer::open(files.path()).unwrap(), [false, false]),
        ] {
            assert_eq!(
                ids(&tokenizer, "the<new>x<n2>"),
                [the, first, blank, x, first + 1],
                "{kind}"
            );
            assert_eq!(tokenizer.size(), first as usize + 2);
            assert_eq!(
                [first, first + 1].map(|id| tokenizer.is_special(id)),
                special,
                "{kind}"
            );
        }
    }
    // Beside a tokenizer.json.
    for keys in [
        json!({"added_tokens_decoder": {"420": token("<new>", true)}}),
        json!({"additional_special_tokens": ["<new>"]}),
        json!({"extra_special_tokens": {"image_token": "<new>"}}),
    ] {
        let tokenizer = with("llama", &keys).unwrap();
        assert_eq!(ids(&tokenizer, "the<new>x"), [262, 420, 364, 123]);
        assert_eq!(
            tokenizer.decode(&[262, 420, 364, 123], true).unwrap(),
            "the x"
        );
    }
    let files = copied("llama");
    files.json("added_tokens.json", &json!({"<new>": 420}));
    let tokenizer = Tokenizer::open(files.path()).unwrap();
    assert_eq!(ids(&tokenizer, "the<new>x"), [262, 63, 276, 376, 65, 123]);
}

#[test]
fn a_token_with_a_role_is_found_before_a_text_is_split() {
    let files = copied("llama");
    change(&files, "tokenizer.json", |document| {
        let added = document["added_tokens"].as_array_mut().unwrap();
        added.retain(|token| token["content"] != "</s>");
    });
    let tokenizer = Tokenizer::open(files.path()).unwrap();
    assert_eq!(ids(&tokenizer, "a</s>b"), [264, 2, 277]);
    assert!(tokenizer.is_special(2));
    assert_eq!(tokenizer.decode(&[264, 2], true).unwrap(), "a");
}

/// Behind the vocabulary if they are not in it: in the order of the roles, before further special tokens.
#[test]
fn tokens_with_a_role_are_added() {
    let keys =
        json!({"mask_token": "<m>", "pad_token": "[P]", "additional_special_tokens": ["<x>"]});
    for (kind, expected) in [
        ("llama", &[264u32, 420, 277, 421, 287, 422][..]),
        ("llama-files", &[264, 420, 277, 421, 287, 422]),
        ("gpt2", &[65, 330, 66, 331, 67, 332]),
        ("gpt2-files", &[65, 330, 66, 331, 67, 332]),
        ("roberta", &[69, 330, 70, 331, 71, 332]),
        ("bert", &[67, 157, 71, 158, 75, 159]),
        ("t5", &[9, 122, 29, 123, 3, 37, 124]),
        // Without a tokenizer.json the tokens of special_tokens_map.json come first: those of all roles, or pad's alone.
        ("roberta-files", &[69, 63, 52, 65, 70, 32, 81, 34, 71, 330]),
        ("bert-files", &[67, 1, 110, 1, 71, 1, 100, 1, 75, 157]),
        ("t5-files", &[9, 2, 76, 2, 35, 122, 3, 37, 123]),
    ] {
        let tokenizer = with(kind, &keys).unwrap();
        assert_eq!(ids(&tokenizer, "a[P]b<m>c<x>"), expected, "{kind}");
        assert_eq!(
            tokenizer.special().pad,
            tokenizer.id(match kind {
                "roberta-files" | "t5-files" => "<pad>",
                "bert-files" => "[PAD]",
                _ => "[P]",
            })
        );
    }
}

/// The flags that are listed count, but a token with a role is a special one.
#[test]
fn listed_flags_replace_those_of_a_document() {
    let listed = |text: &str| {
        let mut token = token(text, false);
        token["rstrip"] = true.into();
        token
    };
    for kind in ["llama", "llama-files"] {
        let keys = json!({"added_tokens_decoder": {"2": listed("</s>")}});
        let tokenizer = with(kind, &keys).unwrap();
        assert_eq!(ids(&tokenizer, "a</s> b"), [264, 2, 277], "{kind}");
        assert_eq!(tokenizer.decode(&[264, 2], true).unwrap(), "a");
        let keys = json!({
            "added_tokens_decoder": {"420": listed("[PAD]"), "421": listed("<n>")},
            "pad_token": "[PAD]",
            "additional_special_tokens": ["<n>"],
        });
        let tokenizer = with(kind, &keys).unwrap();
        let found = ids(&tokenizer, "a[PAD] b<n> a");
        assert_eq!(found, [264, 420, 277, 421, 264], "{kind}");
        assert!(tokenizer.is_special(420) && !tokenizer.is_special(421));
    }
}

#[test]
fn flags_set_the_steps_of_a_document() {
    let names = |kind: &str, keys: Value, text: &str| {
        let tokenizer = with(kind, &keys).unwrap();
        let ids = ids(&tokenizer, text).into_iter();
        ids.map(|id| tokenizer.token(id).unwrap())
            .collect::<Vec<_>>()
    };
    let lower = names("bert", json!({}), "The café");
    assert_eq!(lower, ["the", "cafe"]);
    let cased = json!({"do_lower_case": false});
    assert_eq!(names("bert", cased, "The café"), ["[UNK]", "[UNK]"]);
    let accents = json!({"strip_accents": false});
    assert_eq!(names("bert", accents, "The café"), ["the", "[UNK]"]);
    // Such a class takes its steps from tokenizer.json alone.
    for class in ["PreTrainedTokenizerFast", "TokenizersBackend"] {
        let plain = json!({"do_lower_case": false, "tokenizer_class": class});
        assert_eq!(names("bert", plain, "The café"), lower);
    }
    for kind in ["gpt2", "roberta"] {
        let bare = names(kind, json!({}), "the man");
        let behind = names(kind, json!({"add_prefix_space": true}), "the man");
        assert_eq!(behind, names(kind, json!({}), " the man"), "{kind}");
        assert_ne!(behind, bare, "{kind}");
    }
    let error = with("chatml", &json!({"split_special_tokens": true})).unwrap_err();
    let said = "tokenizer_config.json: split_special_tokens: found true; expected false";
    assert!(error.to_string().contains(said), "{error}");
}

/// Only the former Llama puts a space behind every mark, and, as SentencePiece does, in front of a text that begins with one.
#[test]
fn a_llama_that_is_not_legacy_puts_a_space_before_the_first_word_alone() {
    for (legacy, after, extra) in [
        (json!(true), &[262][..], &[364][..]),
        (json!(false), &[369, 259], &[]),
        (Value::Null, &[369, 259], &[]),
    ] {
        let tokenizer = with("llama-files", &json!({"legacy": legacy})).unwrap();
        let expected = [&[262, 364, 290, 2][..], after].concat();
        assert_eq!(ids(&tokenizer, "the man</s>the"), expected, "{legacy}");
        let spaced = [extra, &[364, 264, 364, 277]].concat();
        assert_eq!(ids(&tokenizer, "  a  b"), spaced, "{legacy}");
        let behind = [&[2][..], extra, &[277]].concat();
        assert_eq!(ids(&tokenizer, "</s> b"), behind, "{legacy}");
        assert!(ids(&tokenizer, "").is_empty());
        assert_eq!(tokenizer.decode(&[262, 364, 290], true).unwrap(), "the man");
    }
}

/// Spaces before punctuation go where a folder says so, token by token too, but not from byte pairs.
#[test]
fn spaces_are_cleaned_up_where_a_folder_says_so() {
    let text = "the man ! do n't , the ' . a ' , ' the ' a .";
    for (kind, cleaned) in [("t5", true), ("gpt2", false), ("llama", false)] {
        let plain = with(kind, &json!({})).unwrap();
        let cleans = with(kind, &json!({"clean_up_tokenization_spaces": true})).unwrap();
        let ids = ids(&plain, text);
        let decoded = plain.decode(&ids, true).unwrap();
        assert!(decoded.contains(" !"), "{kind}: {decoded}");
        let mut expected = decoded.clone();
        if cleaned {
            for (from, to) in [
                (" .", "."),
                (" !", "!"),
                (" ,", ","),
                (" ' ", "'"),
                (" n't", "n't"),
            ] {
                expected = expected.replace(from, to);
            }
        }
        assert_eq!(cleans.decode(&ids, true).unwrap(), expected, "{kind}");
        for end in 0..=ids.len() {
            let mut stream = cleans.stream(&[], true).unwrap();
            let parts = ids[..end].iter().map(|&id| stream.push(id).unwrap());
            let parts: Vec<String> = parts.collect();
            let joined = parts.concat() + &stream.finish().unwrap();
            assert_eq!(joined, cleans.decode(&ids[..end], true).unwrap(), "{kind}");
        }
        // A picture shows what each token stands for.
        assert_eq!(cleans.pieces(&ids).unwrap(), plain.pieces(&ids).unwrap());
    }
}
