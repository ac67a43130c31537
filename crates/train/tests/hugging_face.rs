//! Tokenizers of the Hugging Face library: golden output of `golden/hugging_face_golden.py`, models that use such tokenizers, and
//! files that are damaged on purpose.

use std::{fs, path::Path, sync::atomic::AtomicBool};

use burn::tensor::Device;
use regard_models::Vocabulary;
use regard_train::ranks::Alone;
use regard_train::{
    Registry,
    corpus::Random,
    learner::Run,
    recipe::Recipe,
    tokenizer::{SpecialTokens, SubwordTokenizer, TokenizerError, TokenizerPair, split_words},
};
use serde_json::{Value, json};

const GOLDEN: &str = include_str!("golden/hugging_face.json");

fn golden() -> Vec<(String, Value)> {
    let golden: serde_json::Map<String, Value> = serde_json::from_str(GOLDEN).unwrap();
    assert_eq!(golden.len(), 6);
    golden.into_iter().collect()
}

/// The tokens that have to be named for tokenizers without the usual ones.
fn special(name: &str) -> SpecialTokens<'static> {
    match name {
        "split" => SpecialTokens {
            padding: Some("<|reserved|>"),
            start: Some("<|endoftext|>"),
            end: Some("<|endoftext|>"),
            ..SpecialTokens::default()
        },
        "sentencepiece_model" => SpecialTokens {
            start: Some("<pad>"),
            ..SpecialTokens::default()
        },
        "byte_fallback" => SpecialTokens {
            padding: Some("<unk>"),
            ..SpecialTokens::default()
        },
        _ => SpecialTokens::default(),
    }
}

fn read(document: &Value, special: &SpecialTokens<'_>) -> Result<SubwordTokenizer, TokenizerError> {
    SubwordTokenizer::from_hugging_face(document.to_string().as_bytes(), special, false)
}

fn all() -> Vec<(String, SubwordTokenizer, Vec<Value>)> {
    golden()
        .into_iter()
        .map(|(name, family)| {
            let tokenizer = read(&family["tokenizer"], &special(&name)).unwrap();
            (name, tokenizer, family["cases"].as_array().unwrap().clone())
        })
        .collect()
}

#[test]
fn ids_and_texts_are_those_of_the_library_in_python() {
    for (name, tokenizer, cases) in all() {
        assert!(cases.len() > 15);
        // What was stored and read again is the same tokenizer.
        let stored = tokenizer.to_bytes();
        let again = SubwordTokenizer::from_bytes(&stored).unwrap();
        assert_eq!(again.to_bytes(), stored, "{name}");
        assert_eq!(again.vocabulary(), tokenizer.vocabulary());
        for tokenizer in [tokenizer, again] {
            for case in &cases {
                let text = case["text"].as_str().unwrap();
                let ids = tokenizer.encode(text).unwrap();
                assert_eq!(json!(ids), case["ids"], "{name}: {text:?}");
                let decoded = tokenizer.decode(&ids).unwrap();
                assert_eq!(json!(decoded), case["decoded"], "{name}: {text:?}");
            }
            assert!(tokenizer.encode("").unwrap().is_empty());
            assert_eq!(tokenizer.decode(&[]).unwrap(), "");
        }
    }
}

#[test]
fn marks_are_found_by_their_names() {
    let marks = |name: &str| -> Vocabulary {
        let all = all();
        all.iter().find(|of| of.0 == name).unwrap().1.vocabulary()
    };
    let expect = |name: &str, padding, start, end| {
        let found = marks(name);
        let size = found.size;
        let expected = Vocabulary {
            size,
            padding,
            start,
            end,
        };
        assert_eq!(found, expected, "{name}");
    };
    expect("byte_level", 1, 0, 2);
    expect("wordpiece", 0, 2, 3);
    expect("unigram", 1, 0, 2);
    expect("sentencepiece_model", 0, 0, 1);
    expect("byte_fallback", 0, 1, 2);
    let split = marks("split");
    assert_eq!(split.size, 382);
    assert_eq!((split.padding, split.start, split.end), (381, 380, 380));
}

/// The words of a picture are those of the text, however the tokenizer writes its tokens.
#[test]
fn pieces_join_to_the_words_of_the_text() {
    let visible = |text: &str| -> String { text.chars().filter(|c| !c.is_whitespace()).collect() };
    for (name, tokenizer, cases) in all() {
        for case in &cases {
            let text = case["text"].as_str().unwrap();
            let ids = tokenizer.encode(text).unwrap();
            let pieces = tokenizer.pieces(&ids).unwrap();
            assert_eq!(pieces.len(), ids.len());
            let shown = pieces.iter().zip(&ids);
            let shown: String = shown
                .filter(|(_, id)| !tokenizer.is_special(**id))
                .map(|(piece, _)| piece.text.as_str())
                .collect();
            let decoded = case["decoded"].as_str().unwrap();
            assert_eq!(visible(&shown), visible(decoded), "{name}: {text:?}");
            for pair in pieces.windows(2) {
                assert!(pair[1].word - pair[0].word <= 1, "{name}: {pieces:?}");
            }
            // These have tokens that hold a word together with the full stop after it.
            let joins =
                ["unigram", "sentencepiece_model", "byte_fallback"].contains(&name.as_str());
            if joins || ids.iter().any(|&id| tokenizer.is_special(id)) {
                continue;
            }
            let mut words = vec![String::new(); pieces.last().map_or(0, |last| last.word + 1)];
            for piece in &pieces {
                words[piece.word].push_str(&piece.text);
            }
            words.retain(|word| !word.trim().is_empty());
            let expected: Vec<&str> = split_words(decoded).map(str::trim).collect();
            let expected: Vec<&str> = expected
                .into_iter()
                .filter(|word| !word.is_empty())
                .collect();
            assert_eq!(words, expected, "{name}: {text:?}");
        }
    }
}

#[test]
fn words_begin_where_a_tokenizer_says() {
    for (name, tokenizer, _) in all() {
        let lengths: Vec<usize> = ["riding", " in", " bicycleses"]
            .iter()
            .scan(String::new(), |text, word| {
                text.push_str(word);
                Some(tokenizer.encode(text).unwrap().len())
            })
            .collect();
        let ids = tokenizer.encode("riding in bicycleses").unwrap();
        let words: Vec<usize> = tokenizer
            .pieces(&ids)
            .unwrap()
            .iter()
            .map(|p| p.word)
            .collect();
        let expected: Vec<usize> = (0..ids.len())
            .map(|i| lengths.iter().filter(|&&length| length <= i).count())
            .collect();
        assert_eq!(words, expected, "{name}");
        assert!(words.len() > 3, "{name}: more tokens than words");
    }
}

#[test]
fn a_character_of_several_tokens_is_shown_with_the_first() {
    for (name, tokenizer, _) in all() {
        if !["byte_level", "split", "byte_fallback"].contains(&name.as_str()) {
            continue;
        }
        let ids = tokenizer.encode("a人b").unwrap();
        let texts: Vec<String> = tokenizer
            .pieces(&ids)
            .unwrap()
            .into_iter()
            .map(|p| p.text)
            .collect();
        let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
        assert!(texts.ends_with(&["人", "", "", "b"]), "{name}: {texts:?}");
        let broken = [&ids[..ids.len() - 2], &ids[ids.len() - 1..]].concat();
        assert!(
            tokenizer.decode(&broken).unwrap().contains('\u{fffd}'),
            "{name}"
        );
        assert_eq!(tokenizer.pieces(&broken).unwrap().len(), broken.len());
    }
}

#[test]
fn special_tokens_are_words_of_their_own_and_no_text() {
    for (name, tokenizer, _) in all() {
        let Vocabulary {
            padding,
            start,
            end,
            ..
        } = tokenizer.vocabulary();
        let riding = tokenizer.encode("riding").unwrap();
        let ids = [&[start][..], &riding, &[end, padding]].concat();
        assert_eq!(tokenizer.decode(&ids).unwrap().trim(), "riding", "{name}");
        let pieces = tokenizer.pieces(&ids).unwrap();
        assert_eq!(pieces[0].text, tokenizer.token(start).unwrap());
        let words: Vec<usize> = pieces.iter().map(|piece| piece.word).collect();
        let riding = vec![1; riding.len()];
        assert_eq!(words, [&[0][..], &riding, &[2, 3]].concat(), "{name}");
        let huge = [u32::MAX, tokenizer.vocabulary().size as u32];
        assert_eq!(tokenizer.decode(&huge).unwrap(), "", "{name}");
        assert_eq!(tokenizer.pieces(&huge).unwrap().len(), 2);
    }
}

#[test]
fn lower_casing_comes_before_the_file() {
    let golden = golden();
    let (_, family) = golden.iter().find(|(name, _)| name == "unigram").unwrap();
    let bytes = family["tokenizer"].to_string();
    let lower =
        SubwordTokenizer::from_hugging_face(bytes.as_bytes(), &SpecialTokens::default(), true);
    let lower = lower.unwrap();
    assert_eq!(
        lower.encode("A MAN").unwrap(),
        lower.encode("a man").unwrap()
    );
    assert!(
        SubwordTokenizer::from_bytes(&lower.to_bytes())
            .unwrap()
            .lowercases()
    );
}

fn family(name: &str) -> Value {
    let mut golden = golden();
    let place = golden.iter().position(|(known, _)| known == name).unwrap();
    golden.swap_remove(place).1["tokenizer"].take()
}

#[test]
fn what_cannot_be_found_is_named_with_what_there_is() {
    let refused = |name: &str, special: SpecialTokens<'_>| {
        let error = read(&family(name), &special).unwrap_err();
        assert!(matches!(error, TokenizerError::Malformed { .. }));
        error.to_string()
    };
    let none = SpecialTokens::default();
    let message = refused("split", none);
    assert!(message.contains("`padding`"), "{message}");
    assert!(
        message.ends_with("its special tokens are: <|endoftext|>, <|reserved|>"),
        "{message}"
    );
    let message = refused("sentencepiece_model", none);
    assert!(
        message.contains("its start (<s>, [BOS], <bos>, [CLS])"),
        "{message}"
    );
    let end = Some("</end>");
    let message = refused("wordpiece", SpecialTokens { end, ..none });
    assert!(message.contains("its end (</end>)"), "{message}");
    let end = Some("[PAD]");
    let message = refused("wordpiece", SpecialTokens { end, ..none });
    assert!(message.contains("both pads and ends"), "{message}");
    let unknown = Some("[unk]");
    let message = refused("wordpiece", SpecialTokens { unknown, ..none });
    assert!(message.contains("its unknown ([unk])"), "{message}");

    let mut document = family("unigram");
    document["model"]["unk_id"] = Value::Null;
    let message = read(&document, &none).unwrap_err().to_string();
    assert!(message.contains("`unknown`"), "{message}");
    let unknown = Some("<unk>");
    let named = read(&document, &SpecialTokens { unknown, ..none }).unwrap();
    let whole = read(&family("unigram"), &none).unwrap();
    assert_eq!(named.encode("xyz").unwrap(), whole.encode("xyz").unwrap());
}

/// The file's own padding is taken, whatever it is called.
#[test]
fn padding_is_asked_of_the_file_first() {
    let mut document = family("byte_level");
    assert_eq!(document["padding"]["pad_token"], "<pad>");
    document["padding"]["pad_token"] = "<mask>".into();
    let tokenizer = read(&document, &SpecialTokens::default()).unwrap();
    assert_eq!(
        tokenizer.token(tokenizer.vocabulary().padding),
        Some("<mask>")
    );
}

#[test]
fn files_that_would_take_any_memory_are_refused() {
    let refused = |document: &Value| {
        let error = read(document, &SpecialTokens::default()).unwrap_err();
        error.to_string()
    };
    // Each step doubles the text.
    let doubling = json!({"type": "Replace", "pattern": {"String": "a"}, "content": "aa"});
    for (key, list) in [("normalizer", "normalizers"), ("decoder", "decoders")] {
        let mut document = family("wordpiece");
        document[key] = json!({"type": "Sequence", list: vec![doubling.clone(); 60]});
        let message = refused(&document);
        assert!(message.contains("times longer"), "{message}");
    }
    let mut document = family("wordpiece");
    let bytes = json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false});
    document["pre_tokenizer"] = json!({"type": "Sequence", "pretokenizers": vec![bytes; 60]});
    assert!(refused(&document).contains("times longer"));

    let mut document = family("sentencepiece_model");
    let table = document["normalizer"]["precompiled_charsmap"]
        .as_str()
        .unwrap()
        .to_owned();
    assert!(read(&document, &special("sentencepiece_model")).is_ok());
    // The first four bytes say how long the table is.
    document["normalizer"]["precompiled_charsmap"] = format!("/////{}", &table[5..]).into();
    let message = refused(&document);
    assert!(message.contains("longer than its bytes"), "{message}");

    let mut document = family("wordpiece");
    document["model"]["vocab"]["far"] = 4_000_000_000u32.into();
    let message = refused(&document);
    assert!(message.contains("4000000000"), "{message}");
}

/// A regular expression that runs without end is an error, not a panic.
#[test]
fn a_text_that_a_damaged_file_cannot_read_is_an_error() {
    let mut document = family("split");
    document["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = "(x+x+)+y".into();
    let tokenizer = read(&document, &special("split")).unwrap();
    assert!(tokenizer.encode("a man").is_ok());
    let error = tokenizer.encode(&"x".repeat(120)).unwrap_err();
    assert!(matches!(error, TokenizerError::Failed { .. }), "{error}");
}

#[test]
fn damaged_files_are_read_or_refused() {
    for (seed, (name, family)) in golden().into_iter().enumerate() {
        let whole = family["tokenizer"].to_string().into_bytes();
        let special = special(&name);
        for way in 0..400 {
            let mut random = Random::new(&[seed as u64, way]);
            let mut bytes = whole.clone();
            match random.below(4) {
                0 => bytes.truncate(random.below(whole.len())),
                1 => {
                    let start = random.below(whole.len());
                    let end = (start + random.below(40)).min(whole.len());
                    bytes.drain(start..end);
                }
                _ => {
                    for _ in 0..1 + random.below(4) {
                        let place = random.below(whole.len());
                        bytes[place] = match random.below(2) {
                            0 => b"0123456789-\"{}[],:"[random.below(18)],
                            _ => bytes[place] ^ 1 << random.below(8),
                        };
                    }
                }
            }
            let Ok(tokenizer) = SubwordTokenizer::from_hugging_face(&bytes, &special, false) else {
                continue;
            };
            let size = tokenizer.vocabulary().size as u32;
            if let Ok(ids) = tokenizer.encode("A man's naïve 人 bicycle, 12.") {
                assert!(ids.iter().all(|&id| id < size));
                let _ = (tokenizer.decode(&ids), tokenizer.pieces(&ids));
            }
            let _ = SubwordTokenizer::from_bytes(&tokenizer.to_bytes());
        }
    }
}

#[test]
fn stored_files_that_lie_are_refused() {
    let tokenizer = read(&family("wordpiece"), &SpecialTokens::default()).unwrap();
    let stored: Value = serde_json::from_slice(&tokenizer.to_bytes()).unwrap();
    for (key, value, problem) in [
        ("tokenizer", Value::Null, "needs `tokenizer` and `marks`"),
        ("tokenizer", json!("text"), "expected a JSON object"),
        ("marks", Value::Null, "needs `tokenizer` and `marks`"),
        (
            "marks",
            json!({"size": 1, "padding": 0, "start": 0, "end": 0}),
            "expected 1 tokens",
        ),
        (
            "marks",
            json!({"size": tokenizer.vocabulary().size, "padding": 0, "start": 2, "end": 9_999}),
            "end 9999",
        ),
        (
            "marks",
            json!({"size": tokenizer.vocabulary().size, "padding": 3, "start": 2, "end": 3}),
            "both pads and ends",
        ),
        ("kind", json!("bytes"), "must start with"),
    ] {
        let mut stored = stored.clone();
        stored[key] = value;
        let error = SubwordTokenizer::from_bytes(stored.to_string().as_bytes()).unwrap_err();
        assert!(
            error.to_string().contains(problem),
            "{error} lacks {problem:?}"
        );
    }
}

#[test]
fn errors_name_the_file() {
    let folder = tempfile::tempdir().unwrap();
    let load = |name: &str, text: &str| {
        let path = folder.path().join(name);
        fs::write(&path, text).unwrap();
        SubwordTokenizer::load_hugging_face(path, &SpecialTokens::default(), false)
    };
    for text in [
        "",
        "{}",
        "[]",
        "{\"model\": 1}",
        &family("split").to_string(),
        &family("unigram").to_string()[..900],
    ] {
        let error = load("odd.json", text).unwrap_err().to_string();
        assert!(error.contains("odd.json"), "{error}");
    }
    let nowhere = folder.path().join("nowhere.json");
    let error = SubwordTokenizer::load_hugging_face(nowhere, &SpecialTokens::default(), false);
    assert!(matches!(error, Err(TokenizerError::Read { .. })));
}

const RECIPE: &str = r#"
[model]
kind = "KIND"
[batch]
sentences = 8
[optimizer]
kind = "adam"
[training]
epochs = 1
[data]
lowercase = true
"#;

fn write(folder: &Path, name: &str, text: &str) -> String {
    let path = folder.join(name);
    fs::write(&path, text).unwrap();
    format!("\"{}\"", path.display())
}

/// Trains what the recipe says in `folder/run`.
fn trained(folder: &Path, recipe: &Recipe) -> std::path::PathBuf {
    let run = folder.join("run");
    let (device, stop) = (Device::flex(), AtomicBool::new(false));
    let settings = Run {
        folder: &run,
        device: &device,
        stop: &stop,
        ranks: &Alone,
    };
    Registry::default()
        .train(recipe, &settings, &mut |_| {})
        .unwrap();
    run
}

const ENGLISH: [&str; 4] = [
    "A man is riding a bicycle.",
    "Two dogs are running.",
    "A man in a red shirt.",
    "Two men in the street.",
];

const GERMAN: [&str; 4] = [
    "Ein Mann fährt Fahrrad.",
    "Zwei Hunde laufen.",
    "Ein Mann in einem roten Hemd.",
    "Zwei Männer auf der Straße.",
];

#[test]
fn a_model_that_translates_keeps_its_tokenizers() {
    for (kind, source, target) in [
        ("rnnsearch", "wordpiece", Some("unigram")),
        ("transformer", "byte_level", None),
        ("luong", "split", Some("sentencepiece_model")),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path();
        let english = write(folder, "en", &ENGLISH.join("\n"));
        let german = write(folder, "de", &GERMAN.join("\n"));
        let mut overrides: Vec<String> = ["train", "valid"]
            .into_iter()
            .flat_map(|part| {
                [
                    format!("data.{part}_source={english}"),
                    format!("data.{part}_target={german}"),
                ]
            })
            .collect();
        overrides.push("translate.max_length.absolute=6".to_owned());
        for (key, name) in [("tokenizer", Some(source)), ("target_tokenizer", target)] {
            let Some(name) = name else { continue };
            let path = write(folder, &format!("{key}.json"), &family(name).to_string());
            overrides.push(format!("data.{key}.path={path}"));
            let SpecialTokens {
                padding,
                start,
                end,
                ..
            } = special(name);
            for (part, token) in [("padding", padding), ("start", start), ("end", end)] {
                overrides.extend(token.map(|token| format!("data.{key}.{part}=\"{token}\"")));
            }
        }
        let registry = Registry::default();
        let recipe = registry
            .parse(&RECIPE.replace("KIND", kind), "r.toml", &overrides)
            .unwrap();
        assert_eq!(
            registry
                .parse(&recipe.to_toml().unwrap(), "r.toml", &[])
                .unwrap(),
            recipe
        );
        let run = trained(folder, &recipe);
        // A model is one file: the files of the tokenizers are not needed any more.
        fs::remove_file(folder.join("tokenizer.json")).unwrap();
        let translator = registry.translator(&run, &Device::flex()).unwrap();
        let tokenizers = &translator.description().tokenizers;
        assert_eq!(tokenizers.is_joint(), target.is_none());
        let expected = read(&family(source), &special(source)).unwrap();
        assert_eq!(tokenizers.source().vocabulary(), expected.vocabulary());
        assert!(tokenizers.source().lowercases());
        let settings = translator.settings().clone();
        let found = translator
            .translate(&["A man is riding."], &settings)
            .unwrap();
        let trace = &found[0].n_best[0].trace;
        let axis = trace.maps[0].keys().tokens().unwrap();
        let words: Vec<&str> = axis.iter().map(|token| token.text.as_str()).collect();
        assert!(
            words.concat().starts_with("amanisriding."),
            "{kind}: {words:?}"
        );
        assert!(axis.iter().last().unwrap().special, "{kind}: {words:?}");
        let rides = axis.iter().filter(|token| {
            token.word == axis.iter().find(|t| t.text.starts_with('r')).unwrap().word
        });
        assert_eq!(
            rides.map(|token| token.text.as_str()).collect::<String>(),
            "riding"
        );
        let stored = TokenizerPair::load(run.join("tokenizer.json")).unwrap();
        assert_eq!(stored.to_bytes(), tokenizers.to_bytes());
    }
}

#[test]
fn a_classifier_has_one_too() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let lines: String = ENGLISH
        .iter()
        .map(|line| {
            format!(
                "{line}\t{}\n",
                if line.contains("Two") { "two" } else { "one" }
            )
        })
        .collect();
    let text = write(folder, "text.tsv", &lines);
    let tokenizer = write(folder, "tokenizer.json", &family("wordpiece").to_string());
    let overrides = [
        format!("data.labelled.train={text}"),
        format!("data.labelled.valid={text}"),
        format!("data.tokenizer.path={tokenizer}"),
    ];
    let registry = Registry::default();
    let recipe = RECIPE.replace("KIND", "lstmn");
    let recipe = registry.parse(&recipe, "r.toml", &overrides).unwrap();
    let run = trained(folder, &recipe);
    let classifier = registry.classifier(&run, &Device::flex()).unwrap();
    let found = classifier.classify(&["Two men are riding"]).unwrap();
    let trace = &found[0].trace;
    let axis = trace.maps[0].keys().tokens().unwrap();
    assert_eq!(axis.iter().last().unwrap().text, "[SEP]");
}

#[test]
fn recipes_that_contradict_themselves_are_refused() {
    let refused = |kind: &str, overrides: &[&str]| {
        let overrides: Vec<String> = overrides.iter().map(ToString::to_string).collect();
        let text = RECIPE.replace("KIND", kind);
        let refused = Registry::default().parse(&text, "r.toml", &overrides);
        refused.unwrap_err().to_string()
    };
    let files = [
        "train_source",
        "train_target",
        "valid_source",
        "valid_target",
    ];
    let files: Vec<String> = files.map(|key| format!("data.{key}=\"x\"")).into();
    let with = |more: &[&'static str]| -> Vec<String> {
        files
            .iter()
            .cloned()
            .chain(more.iter().map(ToString::to_string))
            .collect()
    };
    for (kind, overrides, expected) in [
        (
            "rnnsearch",
            with(&["data.target_tokenizer.path=\"t\""]),
            "data.target_tokenizer: set alone",
        ),
        (
            "rnnsearch",
            with(&["data.tokenizer.start=\"t\""]),
            "data.tokenizer.path: missing",
        ),
        (
            "transformer",
            with(&[
                "model.tie=\"all\"",
                "data.tokenizer.path=\"t\"",
                "data.target_tokenizer.path=\"u\"",
            ]),
            "model.tie: found \"all\" with data.target_tokenizer",
        ),
        (
            "lstmn",
            vec![
                "data.labelled.train=\"x\"".into(),
                "data.labelled.valid=\"x\"".into(),
                "data.tokenizer.path=\"t\"".into(),
                "data.target_tokenizer.path=\"u\"".into(),
            ],
            "data.target_tokenizer: set for a classifier",
        ),
        (
            "rnnsearch",
            vec![
                "data.synthetic.task=\"copy\"".into(),
                "data.tokenizer.path=\"t\"".into(),
            ],
            "data.tokenizer: set together with data.synthetic",
        ),
        (
            "rnnsearch",
            vec![
                "data.synthetic.task=\"copy\"".into(),
                "data.vocabulary.dropout=0.1".into(),
            ],
            "data.vocabulary.dropout: found 0.1",
        ),
    ] {
        let overrides: Vec<&str> = overrides.iter().map(String::as_str).collect();
        let message = refused(kind, &overrides);
        assert!(message.contains(expected), "{message}");
    }
}

/// Nodes of a document, itself first.
fn nodes(document: &Value) -> usize {
    1 + match document {
        Value::Array(items) => items.iter().map(nodes).sum(),
        Value::Object(fields) => fields.values().map(nodes).sum::<usize>(),
        _ => 0,
    }
}

/// The node of a number in the order of [`nodes`].
fn node(document: &mut Value, number: usize) -> &mut Value {
    if number == 0 {
        return document;
    }
    let mut rest = number - 1;
    let children: Box<dyn Iterator<Item = &mut Value>> = match document {
        Value::Array(items) => Box::new(items.iter_mut()),
        Value::Object(fields) => Box::new(fields.iter_mut().map(|(_, value)| value)),
        _ => unreachable!("a leaf has one node"),
    };
    for child in children {
        let count = nodes(child);
        if rest < count {
            return node(child, rest);
        }
        rest -= count;
    }
    unreachable!("the number is below the count")
}

/// A copy of a document with something wrong: a field outside the vocabulary is replaced by something else, by another field of
/// the document, or removed; or the text is cut off or has a wrong byte.
fn damaged(document: &Value, random: &mut Random) -> Vec<u8> {
    let mut damaged = document.clone();
    let text = document.to_string().into_bytes();
    match random.below(8) {
        0 => return text[..random.below(text.len())].to_vec(),
        1 => {
            let mut text = text;
            let at = random.below(text.len());
            text[at] ^= 1 << random.below(8);
            return text;
        }
        _ => {}
    }
    for _ in 0..1 + random.below(3) {
        // The vocabulary has nearly all nodes: most changes are made elsewhere.
        let keys = [
            "added_tokens",
            "normalizer",
            "pre_tokenizer",
            "post_processor",
            "decoder",
            "model",
        ];
        let part = &mut damaged[keys[random.below(keys.len())]];
        let other = document[keys[random.below(keys.len())]].clone();
        let place = random.below(nodes(part).min(40));
        let found = node(part, place);
        *found = match random.below(12) {
            0 => Value::Null,
            1 => json!(0),
            2 => json!(-1),
            3 => json!(u64::MAX),
            4 => json!(1e308),
            5 => json!(""),
            6 => json!("("),
            7 => json!([]),
            8 => json!({}),
            9 => {
                json!({ "type": "Sequence", "normalizers": [], "pretokenizers": [], "decoders": [] })
            }
            10 => json!([found.clone(), found.clone()]),
            _ => other,
        };
    }
    damaged.to_string().into_bytes()
}

#[test]
fn a_damaged_file_is_read_or_refused() {
    for (seed, (name, family)) in golden().into_iter().enumerate() {
        let (mut read, mut refused) = (0, 0);
        for way in 0..400 {
            let random = &mut Random::new(&[seed as u64, way]);
            let file = damaged(&family["tokenizer"], random);
            match SubwordTokenizer::from_hugging_face(&file, &special(&name), way % 2 == 0) {
                Ok(tokenizer) => {
                    // What was read can be used without a panic, and stored.
                    for text in ["", "Two red dogs.", "Ça\u{301} 中 🐕\u{0}"] {
                        if let Ok(ids) = tokenizer.encode(text) {
                            assert!(
                                ids.iter()
                                    .all(|&id| (id as usize) < tokenizer.vocabulary().size)
                            );
                            let _ = tokenizer.decode(&ids);
                            let _ = tokenizer.pieces(&ids);
                        }
                    }
                    let _ = SubwordTokenizer::from_bytes(&tokenizer.to_bytes());
                    read += 1;
                }
                Err(error) => {
                    assert!(!error.to_string().is_empty());
                    refused += 1;
                }
            }
        }
        assert!(read > 20 && refused > 100, "{name}: {read}, {refused}");
    }
}
