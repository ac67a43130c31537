//! Tokenizers of folders.

use proptest::prelude::*;
use regard_models::pretrained::{Side, SpecialIds, Tokenizer};
use serde_json::{Value, json};

use crate::common::{Files, byte_fallback_document, byte_level, byte_level_document};

fn of(document: &Value) -> Tokenizer {
    let files = Files::new();
    files.json("tokenizer.json", document);
    Tokenizer::open(files.path()).unwrap()
}

fn tokens(tokenizer: &Tokenizer, ids: &[u32]) -> Vec<String> {
    ids.iter().map(|&id| tokenizer.token(id).unwrap()).collect()
}

/// The files of BERT's tokenizer.
fn word_piece() -> Files {
    let files = Files::new();
    let vocabulary = "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nrid\n##ing\na\nman\n,\nÉté\nete\n骑\n";
    files.write("vocab.txt", vocabulary);
    files
}

fn former_byte_level() -> Files {
    let files = Files::new();
    let (vocabulary, merges) = byte_level();
    files.json("vocab.json", &vocabulary.into());
    files.write(
        "merges.txt",
        format!("#version: 0.2\n{}\n", merges.join("\n")),
    );
    files
}

#[test]
fn a_text_has_ids_offsets_and_words() {
    let tokenizer = of(&byte_level_document());
    let text = "the man, in人";
    let found = tokenizer.encode(text, true).unwrap();
    assert_eq!(
        tokens(&tokenizer, &found.ids),
        ["<|endoftext|>", "the", "Ġman", ",", "Ġ", "in", "äºº"]
    );
    let offsets: Vec<_> = found.offsets.iter().map(|at| &text[at.clone()]).collect();
    assert_eq!(offsets, ["", "the", " man", ",", " ", "in", "人"]);
    assert_eq!(found.words, [0, 1, 2, 3, 4, 4, 4]);
    assert_eq!(
        found.special,
        [true, false, false, false, false, false, false]
    );
    assert_eq!(
        found.texts,
        [None, Some(0), Some(0), Some(0), Some(0), Some(0), Some(0)]
    );
    // Truncation to 2, padding to 9 and dropout, which the file asks for, are settings of a training.
    let bare = tokenizer.encode(text, false).unwrap();
    assert_eq!(bare.ids, found.ids[1..]);
    assert_eq!(tokenizer.encode("", true).unwrap().ids.len(), 1);
    assert!(tokenizer.encode("", false).unwrap().ids.is_empty());
    assert_eq!(tokenizer.decode(&found.ids, true).unwrap(), text);
    assert_eq!(
        tokenizer.decode(&found.ids, false).unwrap(),
        format!("<|endoftext|>{text}")
    );
    assert_eq!(tokenizer.decode(&[u32::MAX], false).unwrap(), "");
    // Text that spells a special token is that token.
    let spelled = tokenizer.encode("a<|endoftext|>in", false).unwrap();
    assert_eq!(spelled.special, [false, true, false]);
    assert_eq!(spelled.words, [0, 1, 2]);
    let pieces = tokenizer.pieces(&found.ids).unwrap();
    let pieces: Vec<_> = pieces
        .iter()
        .map(|piece| (piece.text.as_str(), piece.word))
        .collect();
    assert_eq!(
        pieces,
        [
            ("<|endoftext|>", 0),
            ("the", 1),
            ("man", 2),
            (",", 3),
            ("", 4),
            ("in", 4),
            ("人", 4)
        ]
    );
}

#[test]
fn a_pair_has_types() {
    let tokenizer = of(&byte_level_document());
    let found = tokenizer.encode_pair("the", "a man").unwrap();
    assert_eq!(
        tokens(&tokenizer, &found.ids),
        ["the", "<|endoftext|>", "a", "Ġman"]
    );
    assert_eq!(found.types, [0, 0, 1, 1]);
    assert_eq!(found.texts, [Some(0), None, Some(1), Some(1)]);
    assert_eq!(found.words, [0, 1, 2, 3]);
    assert_eq!(found.offsets[3], 1..5);
}

#[test]
fn words_of_tokens_without_spaces_are_those_of_the_text() {
    let tokenizer = of(&byte_fallback_document());
    let found = tokenizer.encode("the man there, a dog", true).unwrap();
    assert_eq!(
        tokens(&tokenizer, &found.ids),
        [
            "<s>", "▁the", "▁man", "▁the", "r", "e", ",", "▁a", "▁", "d", "o", "g"
        ]
    );
    assert_eq!(found.words, [0, 1, 2, 3, 3, 3, 4, 5, 6, 6, 6, 6]);
}

#[test]
fn former_files_make_the_same_tokenizer() {
    let files = former_byte_level();
    let tokenizer = Tokenizer::open(files.path()).unwrap();
    let expected = of(&byte_level_document());
    for text in ["the man, in人", " a<|endoftext|>the", "\n\n a"] {
        let found = tokenizer.encode(text, true).unwrap();
        assert_eq!(
            found.ids,
            expected.encode(text, false).unwrap().ids,
            "{text:?}"
        );
        assert_eq!(tokenizer.decode(&found.ids, false).unwrap(), text);
    }
    let end = expected.id("<|endoftext|>");
    assert_eq!(tokenizer.special().bos, end);
    assert_eq!(tokenizer.special().eos, [end.unwrap()]);
    assert!(tokenizer.is_special(end.unwrap()) && !tokenizer.is_special(5));

    // RoBERTa's: its tokens are not in this vocabulary.
    files.json("config.json", &json!({"model_type": "roberta"}));
    let error = Tokenizer::open(files.path()).unwrap_err().to_string();
    assert!(error.contains("lacks the tokenizer's"), "{error}");
    files.json(
        "added_tokens.json",
        &json!({"<s>": 268, "</s>": 269, "<mask>": 270}),
    );
    files.json(
        "special_tokens_map.json",
        &json!({"mask_token": {"content": "<mask>", "lstrip": true}}),
    );
    let tokenizer = Tokenizer::open(files.path()).unwrap();
    let found = tokenizer.encode("the <mask>", true).unwrap();
    assert_eq!(
        tokens(&tokenizer, &found.ids),
        ["<s>", "the", "<mask>", "</s>"]
    );
    assert_eq!(tokenizer.special().mask, Some(270));
    let pair = tokenizer.encode_pair("the", "a").unwrap();
    assert_eq!(
        tokens(&tokenizer, &pair.ids),
        ["<s>", "the", "</s>", "</s>", "a", "</s>"]
    );

    files.json(
        "tokenizer_config.json",
        &json!({"tokenizer_class": "Qwen2Tokenizer"}),
    );
    let error = Tokenizer::open(files.path()).unwrap_err().to_string();
    assert!(
        error.contains("found \"Qwen2Tokenizer\" without a tokenizer.json")
            && error.contains("save_pretrained"),
        "{error}"
    );
}

#[test]
fn word_pieces_are_cut_as_bert_does() {
    let files = word_piece();
    let open = || Tokenizer::open(files.path()).unwrap();
    let tokenizer = open();
    let found = tokenizer.encode("A Man, riding ÉTÉ骑x", true).unwrap();
    let names = |found: &[u32]| tokens(&tokenizer, found).join(" ");
    assert_eq!(
        names(&found.ids),
        "[CLS] a man , rid ##ing ete 骑 [UNK] [SEP]"
    );
    assert_eq!(found.words, [0, 1, 2, 3, 4, 4, 5, 5, 6, 7]);
    assert_eq!(
        tokenizer.decode(&found.ids, true).unwrap(),
        "a man, riding ete 骑"
    );
    let pair = tokenizer.encode_pair("man", "a [MASK]").unwrap();
    assert_eq!(names(&pair.ids), "[CLS] man [SEP] a [MASK] [SEP]");
    assert_eq!(pair.types, [0, 0, 0, 1, 1, 1]);
    let special = SpecialIds {
        pad: Some(0),
        unk: Some(1),
        cls: Some(2),
        sep: Some(3),
        mask: Some(4),
        ..SpecialIds::default()
    };
    files.json(
        "special_tokens_map.json",
        &json!({"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]", "mask_token": "[MASK]"}),
    );
    assert_eq!(*open().special(), special);
    files.json(
        "tokenizer_config.json",
        &json!({"do_lower_case": false, "tokenize_chinese_chars": false, "strip_accents": false}),
    );
    let found = open().encode("Été Man 骑骑", false).unwrap();
    assert_eq!(names(&found.ids), "Été [UNK] [UNK]");
    files.json(
        "tokenizer_config.json",
        &json!({"do_lower_case": false, "strip_accents": true}),
    );
    assert_eq!(
        names(&open().encode("ete 骑骑", false).unwrap().ids),
        "ete 骑 骑"
    );
}

#[test]
fn the_side_on_which_texts_are_cut_comes_from_either_file() {
    let files = word_piece();
    let open = || Tokenizer::open(files.path());
    assert_eq!(open().unwrap().truncation_side(), Side::Right);
    for (said, side) in [("left", Side::Left), ("right", Side::Right)] {
        files.json("tokenizer_config.json", &json!({"truncation_side": said}));
        assert_eq!(open().unwrap().truncation_side(), side);
    }
    files.json("tokenizer_config.json", &json!({"truncation_side": "both"}));
    let error = open().unwrap_err().to_string();
    assert!(
        error.contains("truncation_side is \"both\"; expected \"left\" or \"right\""),
        "{error}"
    );

    let files = Files::new();
    let mut document = byte_fallback_document();
    document["truncation"] =
        json!({"direction": "Left", "max_length": 100, "strategy": "LongestFirst", "stride": 0});
    files.json("tokenizer.json", &document);
    let open = || Tokenizer::open(files.path()).unwrap();
    assert_eq!(open().truncation_side(), Side::Left);
    files.json(
        "tokenizer_config.json",
        &json!({"truncation_side": "right"}),
    );
    assert_eq!(open().truncation_side(), Side::Right);
}

#[test]
fn special_ids_come_from_all_files() {
    let files = Files::new();
    files.json("tokenizer.json", &byte_fallback_document());
    let open = || Tokenizer::open(files.path()).unwrap();
    assert_eq!(*open().special(), SpecialIds::default());
    files.json(
        "special_tokens_map.json",
        &json!({"eos_token": "</s>", "unk_token": null}),
    );
    files.json(
        "tokenizer_config.json",
        &json!({"bos_token": {"content": "<s>", "lstrip": false}, "unk_token": "<unk>"}),
    );
    let special = SpecialIds {
        bos: Some(1),
        eos: vec![2],
        unk: Some(0),
        ..SpecialIds::default()
    };
    assert_eq!(*open().special(), special);
    files.json(
        "config.json",
        &json!({"eos_token_id": 7, "pad_token_id": -1, "bos_token_id": 9}),
    );
    assert_eq!(
        *open().special(),
        SpecialIds {
            eos: vec![7],
            ..special.clone()
        }
    );
    files.json(
        "generation_config.json",
        &json!({"eos_token_id": [2, 5], "pad_token_id": 3}),
    );
    assert_eq!(
        *open().special(),
        SpecialIds {
            eos: vec![2, 5],
            pad: Some(3),
            ..special.clone()
        }
    );
    // One that is not in the vocabulary is behind it.
    files.json(
        "special_tokens_map.json",
        &json!({"eos_token": "</s>", "pad_token": "<none>"}),
    );
    assert_eq!(
        *open().special(),
        SpecialIds {
            eos: vec![2, 5],
            pad: Some(283),
            ..special
        }
    );
}

#[test]
fn a_few_tokens_may_lack_an_embedding() {
    let open = || of(&byte_level_document());
    let whole = open();
    whole.expect_most_rows(268).unwrap();
    assert_eq!(whole.without_rows(), None);
    whole.encode("the man", true).unwrap();
    for (rows, first) in [(267, "\"<|endoftext|>\""), (264, "\"ing\"")] {
        let tokenizer = open();
        tokenizer.expect_most_rows(rows).unwrap();
        let warning = tokenizer.without_rows().unwrap();
        let expected = format!(
            "268 tokens, but the model has {rows} embeddings; texts with one of the last {}, from {first} on",
            268 - rows
        );
        assert!(warning.contains(&expected), "{warning}");
        tokenizer.encode("the man", false).unwrap();
        let error = tokenizer.encode("the man", true).unwrap_err().to_string();
        let expected = "the token \"<|endoftext|>\" (267), for which the model has no embedding";
        assert!(error.contains(expected), "{error}");
        tokenizer.encode_pair("a", "a").unwrap_err();
        tokenizer.expect_embedded(&[0, 263]).unwrap();
        tokenizer.expect_embedded(&[267]).unwrap_err();
    }
    // Far fewer are another model's.
    open().expect_most_rows(204).unwrap();
    let error = open().expect_most_rows(203).unwrap_err().to_string();
    assert!(error.contains("tokenizer of another model"), "{error}");
}

#[test]
fn a_tokenizer_of_another_model_is_refused() {
    let tokenizer = of(&byte_level_document());
    assert_eq!(tokenizer.size(), 268);
    assert!(tokenizer.expect_rows(268).is_ok() && tokenizer.expect_rows(300).is_ok());
    let error = tokenizer.expect_rows(267).unwrap_err().to_string();
    assert!(
        error.contains("a vocabulary of 268 tokens, but the model has 267 embeddings"),
        "{error}"
    );
    // Ids of the template are those of the vocabulary.
    let mut document = byte_level_document();
    document["post_processor"]["special_tokens"]["<|endoftext|>"]["ids"] =
        json!([4_000_000_000u32]);
    let error = of(&document).encode("the", true).unwrap_err().to_string();
    assert!(
        error.contains("4000000000; expected one below 268"),
        "{error}"
    );
}

#[test]
fn templates_that_repeat_a_text_without_end_are_refused() {
    let files = Files::new();
    let mut document = byte_level_document();
    document["post_processor"]["single"] =
        vec![json!({"Sequence": {"id": "A", "type_id": 0}}); 70_000].into();
    files.json("tokenizer.json", &document);
    let error = Tokenizer::open(files.path()).unwrap_err().to_string();
    assert!(
        error.contains("post_processor can make a text 70000 times longer"),
        "{error}"
    );
}

#[test]
fn models_of_images_have_no_tokenizer() {
    for (kind, command) in [
        ("vit", "classify"),
        ("deit", "classify"),
        ("resnet", "classify"),
        ("detr", "detect"),
    ] {
        let files = Files::new();
        files.json("config.json", &json!({"model_type": kind}));
        let error = Tokenizer::open(files.path()).unwrap_err().to_string();
        let what = format!("(model_type {kind:?}), which reads no text");
        assert!(error.contains(&what), "{error}");
        let advice = format!("use `regard {command}`");
        assert!(
            error.contains(&advice) && !error.contains("python3"),
            "{error}"
        );
    }
}

#[test]
fn models_of_images_that_are_not_known_are_told_those_that_are() {
    let message = |kind: &str, files: &Files| {
        files.json("config.json", &json!({"model_type": kind}));
        Tokenizer::open(files.path()).unwrap_err().to_string()
    };
    for (name, content) in [
        (
            "preprocessor_config.json",
            json!({"image_processor_type": "ViTImageProcessor"}),
        ),
        (
            "preprocessor_config.json",
            json!({"image_mean": [0.5, 0.5, 0.5]}),
        ),
        (
            "processor_config.json",
            json!({"image_processor": {"size": 32}}),
        ),
    ] {
        let files = Files::new();
        files.json(name, &content);
        let error = message("swin", &files);
        let expected = "a model of images whose model_type \"swin\" is not known; expected one of vit, deit, resnet (`regard classify`), detr (`regard detect`) or clip";
        assert!(error.contains(expected), "{error}");
        // One that reads texts too, known or not, has lost its tokenizer.
        let error = message("clip", &files);
        assert!(error.contains("make a tokenizer.json"), "{error}");
        files.json("tokenizer_config.json", &json!({}));
        let error = message("siglip", &files);
        assert!(error.contains("make a tokenizer.json"), "{error}");
    }
    let sounds = Files::new();
    let content = json!({"feature_extractor_type": "Wav2Vec2FeatureExtractor"});
    sounds.json("preprocessor_config.json", &content);
    let error = message("wav2vec2", &sounds);
    assert!(error.contains("make a tokenizer.json"), "{error}");
}

#[test]
fn folders_without_a_tokenizer_say_what_to_do() {
    let files = Files::new();
    let message = || Tokenizer::open(files.path()).unwrap_err().to_string();
    assert!(message().contains(
        "no tokenizer that can be read (found: none); make a tokenizer.json with python3"
    ));
    files
        .write("sentencepiece.bpe.model", "")
        .write("merges.txt", "");
    assert!(
        message().contains("(found: merges.txt, sentencepiece.bpe.model)"),
        "{}",
        message()
    );
    files.write("spiece.model", b"\x0a\x05\x0a");
    assert!(
        message().ends_with("spiece.model: it is cut short, or no model of SentencePiece"),
        "{}",
        message()
    );
    files.json(
        "tokenizer_config.json",
        &json!({"tokenizer_class": "XLNetTokenizer"}),
    );
    assert!(message().contains(
        "found \"XLNetTokenizer\" without a tokenizer.json; expected one of T5, MT5, Llama"
    ));
    files.write("tokenizer.json", "{\"model\": 5}");
    assert!(
        message().contains("tokenizer.json: not a usable tokenizer"),
        "{}",
        message()
    );
}

#[test]
fn damaged_merges_are_no_damaged_tokenizer_json() {
    let files = former_byte_level();
    files.write("merges.txt", "#version: 0.2\na b c d\n");
    let error = Tokenizer::open(files.path()).unwrap_err().to_string();
    assert!(
        error.contains("not a usable tokenizer") && !error.contains("tokenizer.json"),
        "{error}"
    );
}

#[test]
fn tokens_are_told_as_they_follow_others() {
    let tokenizer = of(&byte_fallback_document());
    let ids = |tokens: &[&str]| -> Vec<u32> {
        let ids = tokens.iter().map(|token| tokenizer.id(token));
        ids.map(Option::unwrap).collect()
    };
    for (context, tokens, told) in [
        (
            &["▁man"][..],
            &["▁the", "the", "<0xE9>", "</s>"][..],
            &[" the", "the", "<0xE9>", "</s>"][..],
        ),
        (&[], &["▁the", "the"], &["the", "the"]),
        (&["▁man", "<0xE9>"], &["<0xAA>"], &["<0xAA>"]),
        (&["▁man", "<0xE9>", "<0xAA>"], &["<0x91>"], &["骑"]),
    ] {
        let found = tokenizer.following(&ids(context), &ids(tokens));
        assert_eq!(found.unwrap(), told, "{context:?}");
    }
}

/// The texts that a stream gives, one for each token, and the rest.
fn streamed(tokenizer: &Tokenizer, context: &[u32], ids: &[u32]) -> Vec<String> {
    let mut stream = tokenizer.stream(context, true).unwrap();
    let mut texts: Vec<String> = ids.iter().map(|&id| stream.push(id).unwrap()).collect();
    texts.push(stream.finish().unwrap());
    texts
}

#[test]
fn a_stream_never_gives_half_a_character() {
    let tokenizer = of(&byte_level_document());
    let ids = tokenizer.encode("a骑é", false).unwrap().ids;
    assert_eq!(
        streamed(&tokenizer, &[], &ids),
        ["a", "", "", "骑", "", "é", ""]
    );
    assert_eq!(
        streamed(&tokenizer, &[], &ids[..3]),
        ["a", "", "", "\u{fffd}"]
    );
    // A byte that begins no character, before others.
    let broken = [ids[1], ids[0], ids[2], ids[0]];
    assert_eq!(
        streamed(&tokenizer, &[], &broken),
        ["", "\u{fffd}a", "", "\u{fffd}a", ""]
    );
    let tokenizer = of(&byte_fallback_document());
    let ids = tokenizer.encode("骑 man", false).unwrap().ids;
    assert_eq!(
        streamed(&tokenizer, &[], &ids),
        ["", "", "", "骑", " man", ""]
    );
    // After other text a word keeps the space in front of it.
    let man = tokenizer.id("▁man").unwrap();
    assert_eq!(streamed(&tokenizer, &[], &[man, man]), ["man", " man", ""]);
    assert_eq!(streamed(&tokenizer, &[1, man], &[man, 2]), [" man", "", ""]);
    // A sentence longer than the window.
    let text = "the man, in 人. ".repeat(50);
    let ids = tokenizer.encode(&text, true).unwrap().ids;
    assert_eq!(streamed(&tokenizer, &[], &ids).concat(), text);
    // Special tokens do not make the next word the first.
    let many = [&[man][..], &[2; 100], &[man]].concat();
    assert_eq!(
        streamed(&tokenizer, &[], &many).concat(),
        tokenizer.decode(&many, true).unwrap()
    );
}

proptest! {
    #[test]
    fn streamed_texts_join_to_the_decoded_text(
        ids in prop::collection::vec(0u32..268, 0..60), context in prop::collection::vec(0u32..268, 0..50),
    ) {
        let tokenizer = of(&byte_level_document());
        let texts = streamed(&tokenizer, &[], &ids).concat();
        prop_assert_eq!(texts, tokenizer.decode(&ids, true).unwrap());
        streamed(&tokenizer, &context, &ids);
        let pieces = tokenizer.pieces(&ids).unwrap();
        prop_assert_eq!(pieces.len(), ids.len());
    }

    #[test]
    fn any_text_can_be_streamed(text in "(\\PC|[ \\n人é🚲]){0,40}") {
        for document in [byte_level_document(), byte_fallback_document()] {
            let tokenizer = of(&document);
            let found = tokenizer.encode(&text, false).unwrap();
            prop_assert_eq!(streamed(&tokenizer, &[], &found.ids).concat(), tokenizer.decode(&found.ids, true).unwrap());
            // Words are counted without gaps, and offsets are inside the text.
            for pair in found.words.windows(2) {
                prop_assert!(pair[1] == pair[0] || pair[1] == pair[0] + 1);
            }
            for at in &found.offsets {
                prop_assert!(text.get(at.clone()).is_some());
            }
        }
    }

    #[test]
    fn any_bytes_can_be_streamed(ids in prop::collection::vec(0u32..290, 0..200)) {
        streamed(&of(&byte_fallback_document()), &[], &ids);
    }
}
