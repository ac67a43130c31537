//! The tokenizer as its users see it: without loss, and the same every time.

use std::process::Command;

use proptest::prelude::*;
use regard_train::corpus::Random;
use regard_train::tokenizer::{
    MINIMUM_VOCABULARY_SIZE, SPECIAL_TOKENS, SubwordTokenizer, TokenizerError, TokenizerPair,
    lowercase,
};

/// The ids of the reserved tokens of a vocabulary that is learned.
const PAD: u32 = 0;
const BOS: u32 = 1;
const EOS: u32 = 2;
const UNK: u32 = 3;

const LINES: [&str; 12] = [
    "A man in a red shirt is riding a bicycle.",
    "A man in a blue shirt is riding a horse.",
    "Two men are riding bicycles in the street.",
    "Ein Mann in einem roten Hemd fährt Fahrrad.",
    "Ein Mann in einem blauen Hemd reitet ein Pferd.",
    "Zwei Männer fahren auf der Straße Fahrrad.",
    "The man's dog isn't here, they're outside.",
    "人骑自行车。 人骑马。",
    "رجل يركب دراجة",
    "हिन्दी में एक वाक्य",
    "😀😀 👩‍👩‍👧 e\u{301}e\u{301}",
    "",
];

fn learned(size: usize, lower: bool) -> SubwordTokenizer {
    SubwordTokenizer::learn(LINES.iter(), size, lower).unwrap()
}

/// Text in which awkward characters are frequent.
fn any_text() -> impl Strategy<Value = String> {
    prop_oneof![
        any::<String>(),
        "\\PC{0,40}",
        "[ \\t\\n\\r\u{0}\u{7}\u{a0}\u{2028}\u{feff}a']{0,20}",
        "( ?(A|man|Männer|</s>|<pad>|<s>|<unk>|Ġ|’s|'re|骑)){0,12} {0,3}",
        prop::collection::vec(any::<char>(), 0..30).prop_map(String::from_iter),
    ]
}

proptest! {
    #[test]
    fn decoding_gives_back_what_was_encoded(text in any_text()) {
        for size in [MINIMUM_VOCABULARY_SIZE, 400] {
            let tokenizer = learned(size, false);
            let ids = tokenizer.encode(&text).unwrap();
            prop_assert_eq!(tokenizer.decode(&ids).unwrap(), text.as_str());
            prop_assert!(ids.iter().all(|&id| (4..tokenizer.vocabulary_size() as u32).contains(&id)));
        }
    }

    #[test]
    fn dropped_merges_change_the_cut_and_not_the_text(text in any_text(), seed: u64) {
        let tokenizer = learned(400, false);
        let ids = tokenizer.encode(&text).unwrap();
        let again = |dropout| tokenizer.encode_again(&ids, dropout, &mut Random::new(&[seed]));
        prop_assert_eq!(&again(0.0), &ids);
        prop_assert_eq!(again(0.3), again(0.3));
        prop_assert!(again(0.3).len() >= ids.len());
        for dropout in [0.3, 1.0] {
            prop_assert_eq!(tokenizer.decode(&again(dropout)).unwrap(), text.as_str());
        }
        // A space is put in front of a text.
        let bytes = if text.is_empty() { 0 } else { text.len() + 1 };
        prop_assert_eq!(again(1.0).len(), bytes);
    }

    #[test]
    fn lower_casing_is_the_only_loss(text in any_text()) {
        let tokenizer = learned(400, true);
        prop_assert_eq!(tokenizer.decode(&tokenizer.encode(&text).unwrap()).unwrap(), lowercase(&text));
    }

    #[test]
    fn pieces_join_to_the_text(text in any_text()) {
        let tokenizer = learned(400, false);
        let ids = tokenizer.encode(&text).unwrap();
        let pieces = tokenizer.pieces(&ids).unwrap();
        prop_assert_eq!(pieces.len(), ids.len());
        let visible = |text: &str| text.chars().filter(|c| !c.is_whitespace()).collect::<String>();
        let joined: String = pieces.iter().map(|piece| piece.text.as_str()).collect();
        prop_assert_eq!(visible(&joined), visible(&text));
        prop_assert!(pieces.first().is_none_or(|piece| piece.word == 0));
        for pair in pieces.windows(2) {
            prop_assert!(pair[1].word - pair[0].word <= 1);
        }
    }

    #[test]
    fn no_ids_are_too_strange_to_show(ids in prop::collection::vec(0u32..500, 0..40), huge in any::<u32>()) {
        let tokenizer = learned(400, false);
        let mut ids = ids;
        ids.push(huge);
        let pieces = tokenizer.pieces(&ids).unwrap();
        prop_assert_eq!(pieces.len(), ids.len());
        for pair in pieces.windows(2) {
            prop_assert!(pair[1].word >= pair[0].word);
        }
        tokenizer.decode(&ids).unwrap();
    }

    #[test]
    fn foreign_bytes_are_refused(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        prop_assert!(SubwordTokenizer::from_bytes(&bytes).is_err());
        prop_assert!(TokenizerPair::from_bytes(&bytes).is_err());
    }

    #[test]
    fn a_damaged_file_never_panics(place in any::<prop::sample::Index>(), byte in any::<u8>(), cut in any::<bool>()) {
        let mut bytes = learned(300, false).to_bytes();
        let place = place.index(bytes.len());
        if cut { bytes.truncate(place) } else { bytes[place] = byte }
        if let Ok(tokenizer) = SubwordTokenizer::from_bytes(&bytes) {
            // If the file is still accepted, only a token's spelling or a merge has changed.
            tokenizer.decode(&tokenizer.encode("A man").unwrap()).unwrap();
        }
    }
}

#[test]
fn a_word_is_the_same_at_the_start_and_inside() {
    let tokenizer = learned(400, false);
    let alone = tokenizer.encode("man").unwrap();
    let mut twice = alone.clone();
    twice.extend(&alone);
    assert_eq!(tokenizer.encode("man man").unwrap(), twice);
}

#[test]
fn reserved_tokens_cannot_be_written() {
    let tokenizer = learned(400, false);
    for (id, name) in (0u32..).zip(SPECIAL_TOKENS) {
        assert_eq!(tokenizer.token(id), Some(name));
        assert!(!tokenizer.encode(name).unwrap().contains(&id));
        assert!(
            tokenizer
                .encode(name)
                .unwrap()
                .iter()
                .all(|&token| token > UNK)
        );
    }
    assert!(tokenizer.encode("").unwrap().is_empty());
}

#[test]
fn reserved_tokens_are_not_text_but_are_pieces() {
    let tokenizer = learned(400, false);
    let mut ids = vec![BOS];
    ids.extend(tokenizer.encode("riding bicycles").unwrap());
    ids.extend([EOS, PAD]);
    assert_eq!(tokenizer.decode(&ids).unwrap(), "riding bicycles");
    let pieces = tokenizer.pieces(&ids).unwrap();
    assert_eq!(pieces[0].text, "<s>");
    assert_eq!(pieces[1].word, 1);
    let last_two: Vec<(&str, usize)> = pieces[ids.len() - 2..]
        .iter()
        .map(|piece| (piece.text.as_str(), piece.word))
        .collect();
    assert_eq!(last_two, [("</s>", 3), ("<pad>", 4)]);
    assert_eq!(tokenizer.decode(&[UNK]).unwrap(), "<unk>");
}

#[test]
fn pieces_know_their_words() {
    let tokenizer = learned(MINIMUM_VOCABULARY_SIZE, false);
    let pieces = tokenizer
        .pieces(&tokenizer.encode("ä 骑's\n!").unwrap())
        .unwrap();
    let shown: Vec<(&str, usize)> = pieces.iter().map(|p| (p.text.as_str(), p.word)).collect();
    assert_eq!(
        shown,
        [
            ("", 0),
            ("ä", 0),
            ("", 0),
            ("", 1),
            ("骑", 1),
            ("", 1),
            ("", 1),
            ("'", 2),
            ("s", 2),
            ("\n", 3),
            ("!", 4)
        ]
    );
}

#[test]
fn tokens_are_told_as_they_follow_others() {
    let tokenizer = learned(MINIMUM_VOCABULARY_SIZE, false);
    let ids = tokenizer.encode("ä b").unwrap();
    let told = (0..ids.len()).map(|at| tokenizer.following(&ids[..at], &ids[at..=at]).unwrap());
    // What is no text, or not yet, has its name.
    assert_eq!(
        told.flatten().collect::<Vec<_>>(),
        ["Ġ", "Ã", "ä", " ", "b"]
    );
    let told = tokenizer.following(&ids, &[EOS, UNK]).unwrap();
    assert_eq!(told, ["</s>", " <unk>"]);
}

#[test]
fn pieces_of_broken_utf8_are_replacement_characters() {
    let tokenizer = learned(MINIMUM_VOCABULARY_SIZE, false);
    let ids = tokenizer.encode("ä").unwrap();
    let pieces = tokenizer.pieces(&ids[..2]).unwrap();
    assert_eq!(pieces[1].text, "\u{fffd}");
    assert_eq!(tokenizer.decode(&ids[..2]).unwrap(), "\u{fffd}");
}

#[test]
fn frequent_words_become_tokens() {
    let lines = ["der Mann und der Hund und der Mann"; 10];
    let tokenizer = SubwordTokenizer::learn(lines.iter(), 300, false).unwrap();
    assert_eq!(tokenizer.encode("der Hund und der Mann").unwrap().len(), 5);
    assert!(tokenizer.vocabulary_size() < 300, "nothing more to merge");
}

#[test]
fn learning_does_not_depend_on_the_order_of_lines() {
    let mut backwards = LINES;
    backwards.reverse();
    let learned_backwards = SubwordTokenizer::learn(backwards.iter(), 400, false).unwrap();
    assert_eq!(learned_backwards.to_bytes(), learned(400, false).to_bytes());
}

/// Words over two or three letters: most pairs are equally frequent, and there are many ways to
/// come to the same token.
fn tied_lines() -> Vec<String> {
    let mut random = regard_train::corpus::Random::new(&[5]);
    let mut word = |letters: usize| -> String {
        let length = 1 + random.below(14);
        (0..length)
            .map(|_| char::from(b"abc"[random.below(letters)]))
            .collect()
    };
    (0..60)
        .map(|line| format!("{} {}", word(2 + line % 2), word(2)))
        .collect()
}

#[test]
fn ties_are_broken_the_same_way_every_time() {
    let lines = tied_lines();
    let learn = || {
        SubwordTokenizer::learn(lines.iter(), 500, false)
            .unwrap()
            .to_bytes()
    };
    let first = learn();
    for _ in 0..20 {
        assert_eq!(learn(), first);
    }
}

const CHILD_FILE: &str = "REGARD_TEST_TOKENIZER_FILE";

/// Run by `learning_is_the_same_in_every_process`, in processes of its own.
#[test]
fn child_writes_a_tokenizer() {
    if let Some(path) = std::env::var_os(CHILD_FILE) {
        let tokenizer = SubwordTokenizer::learn(tied_lines().iter(), 500, false).unwrap();
        tokenizer.save(path).unwrap();
    }
}

#[test]
fn learning_is_the_same_in_every_process() {
    let folder = tempfile::tempdir().unwrap();
    let here = SubwordTokenizer::learn(tied_lines().iter(), 500, false).unwrap();
    for threads in ["1", "2", "3"] {
        let path = folder.path().join(threads);
        let status = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "child_writes_a_tokenizer"])
            .env(CHILD_FILE, &path)
            .env("RAYON_NUM_THREADS", threads)
            .stdout(std::process::Stdio::null())
            .status()
            .unwrap();
        assert!(status.success());
        assert_eq!(std::fs::read(&path).unwrap(), here.to_bytes());
    }
}

#[test]
fn a_saved_tokenizer_is_the_same_tokenizer() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tokenizer.json");
    for tokenizer in [
        learned(400, true),
        SubwordTokenizer::learn_words(["c a b", "b"].iter(), false).unwrap(),
    ] {
        tokenizer.save(&path).unwrap();
        let loaded = SubwordTokenizer::load(&path).unwrap();
        assert_eq!(loaded.to_bytes(), tokenizer.to_bytes());
        assert_eq!(loaded.lowercases(), tokenizer.lowercases());
        assert_eq!(loaded.is_word_level(), tokenizer.is_word_level());
        let text = "A man b 骑 Männer";
        assert_eq!(
            loaded.encode(text).unwrap(),
            tokenizer.encode(text).unwrap()
        );
    }
}

#[test]
fn a_pair_is_joint_or_separate_after_loading_too() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tokenizers.json");
    let (source, target) = (&LINES[..3], &LINES[3..6]);
    for joint in [true, false] {
        let pair = TokenizerPair::learn(source, target, joint, 300, true).unwrap();
        pair.save(&path).unwrap();
        let loaded = TokenizerPair::load(&path).unwrap();
        assert_eq!(loaded.is_joint(), joint);
        assert_eq!(loaded.to_bytes(), pair.to_bytes());
        let differ = loaded.source().to_bytes() != loaded.target().to_bytes();
        assert_eq!(differ, !joint);
    }
}

#[test]
fn word_level_tokens_are_symbols() {
    let tokenizer = SubwordTokenizer::learn_words(["b  a", "c <s> <unk>"].iter(), false).unwrap();
    assert_eq!(tokenizer.vocabulary_size(), 7);
    assert_eq!(tokenizer.encode(" a\tc  <s> z").unwrap(), [4, 6, UNK, UNK]);
    assert_eq!(
        tokenizer.decode(&[BOS, 4, 6, UNK, EOS, PAD, 99]).unwrap(),
        "a c <unk>"
    );
    let pieces = tokenizer.pieces(&[4, EOS]).unwrap();
    assert_eq!(
        (pieces[0].text.as_str(), pieces[1].text.as_str()),
        ("a", "</s>")
    );
    assert_eq!((pieces[0].word, pieces[1].word), (0, 1));
}

#[test]
fn impossible_vocabularies_are_refused() {
    let error = SubwordTokenizer::learn(LINES.iter(), 259, false).unwrap_err();
    assert!(matches!(
        error,
        TokenizerError::VocabularyTooSmall {
            size: 259,
            minimum: 260
        }
    ));
    assert!(matches!(
        SubwordTokenizer::learn(LINES.iter(), usize::MAX, false),
        Err(TokenizerError::VocabularyTooLarge { .. })
    ));
    assert!(matches!(
        SubwordTokenizer::learn(["", ""].iter(), 300, false),
        Err(TokenizerError::NoText)
    ));
    assert!(matches!(
        SubwordTokenizer::learn_words([" ", ""].iter(), false),
        Err(TokenizerError::NoText)
    ));
}

#[test]
fn files_that_lie_are_refused() {
    let good = String::from_utf8(learned(300, false).to_bytes()).unwrap();
    assert!(good.starts_with("{\"format\":\"regard-tokenizer\",\"version\":1,\"kind\":\"bytes\""));
    for (from, to, problem) in [
        ("regard-tokenizer", "other", "expected format"),
        ("\"version\":1", "\"version\":2", "version 2"),
        ("\"kind\":\"bytes\"", "\"kind\":\"words\"", "has no merges"),
        ("\"kind\":\"bytes\"", "\"kind\":\"foo\"", "unknown variant"),
        ("<pad>", "<pat>", "must start with"),
        ("\"!\",", "", "byte 0x21"),
        ("\"!\",", "\"\\\"\",", "twice"),
        ("\"!\",", "\"!\",\"中\",", "stand for no byte"),
        ("\"!\",", "\"!\",\"\",", "empty"),
        ("\"merges\":[", "\"merges\":[[0,5],", "merge [0, 5]"),
        ("\"merges\":[", "\"merges\":[[4,99999],", "merge [4, 99999]"),
        ("\"merges\":[", "\"merges\":[[4,4],", "merge [4, 4]"),
        ("\"merges\":[", "\"merges\":[[-1,4],", "invalid value"),
        (
            "\"lowercase\":",
            "\"more\":1,\"lowercase\":",
            "unknown field",
        ),
    ] {
        assert!(good.contains(from), "{from}");
        let bad = good.replacen(from, to, 1);
        let error = SubwordTokenizer::from_bytes(bad.as_bytes()).unwrap_err();
        assert!(matches!(error, TokenizerError::Malformed { .. }));
        assert!(
            error.to_string().contains(problem),
            "{error} lacks {problem:?}"
        );
    }
}

#[test]
fn file_errors_name_the_file() {
    let folder = tempfile::tempdir().unwrap();
    let missing = folder.path().join("missing.json");
    let error = SubwordTokenizer::load(&missing).unwrap_err();
    assert!(matches!(error, TokenizerError::Read { .. }));
    assert!(error.to_string().contains("missing.json"), "{error}");

    let foreign = folder.path().join("foreign.json");
    std::fs::write(&foreign, "{}").unwrap();
    let error = TokenizerPair::load(&foreign).unwrap_err();
    assert!(matches!(error, TokenizerError::Malformed { .. }));
    assert!(error.to_string().contains("foreign.json"), "{error}");

    let nowhere = folder.path().join("no such folder").join("t.json");
    let error = learned(300, false).save(&nowhere).unwrap_err();
    assert!(matches!(error, TokenizerError::Write { .. }));
}

/// One merge: it is left out with the probability that was asked for.
#[test]
fn merges_are_dropped_as_often_as_asked() {
    let tokenizer = SubwordTokenizer::learn(["aa aa aa"].iter(), 261, false).unwrap();
    let ids = tokenizer.encode("aa").unwrap();
    let mut random = Random::new(&[7]);
    let counts = (0..20_000).map(|_| tokenizer.encode_again(&ids, 0.1, &mut random).len());
    let dropped = counts.filter(|&count| count > ids.len()).count();
    assert!((1_850..2_150).contains(&dropped), "{dropped} of 20000");
}
