//! Models of the library SentencePiece, as the `tokenizer.json` that they make.

use std::{
    collections::{HashMap, HashSet},
    path::Path,
};

use serde_json::{Map, Value, json};

use crate::{
    pretrained::{error::PretrainedError, json::bytes},
    text::MAXIMUM_VOCABULARY_SIZE,
};

/// The longest piece in bytes. Those of published models have less than 100.
const LONGEST_PIECE: usize = 512;
/// The largest file: those of 256,000 pieces have 5 MB.
const LARGEST_MODEL: u64 = 32 << 20;
/// The memory that the merges of a model may take, about: those of 256,000 pieces take 45 MB.
const LARGEST_MERGES: usize = 256 << 20;
/// What a merge takes beside its text.
const OF_A_MERGE: usize = 64;

/// A model: its pieces in the order of their ids, and how it prepares a text.
#[derive(Debug)]
pub(super) struct SentencePieces {
    pub(super) pieces: Vec<Piece>,
    /// Whether pieces are merged pair by pair. Otherwise the likeliest pieces are taken.
    merges: bool,
    /// Whether what no piece has is written as bytes.
    bytes: bool,
    /// Replacements of characters.
    table: Vec<u8>,
}

#[derive(Debug)]
pub(super) struct Piece {
    pub(super) text: String,
    score: f32,
    kind: Kind,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Text,
    Unknown,
    /// Stands for no text.
    Control,
    /// Is found in a text before it is split.
    Whole,
}

/// One field of a message in the format of protocol buffers.
enum Field<'a> {
    Number(u64),
    Bytes(&'a [u8]),
}

impl SentencePieces {
    pub(super) fn read(path: &Path) -> Result<Self, PretrainedError> {
        let malformed = |problem: &str| Err(PretrainedError::malformed(path, problem));
        let file = bytes(path, LARGEST_MODEL)?;
        let Some(model) = Self::parse(&file) else {
            return malformed("it is cut short, or no model of SentencePiece");
        };
        if model.pieces.len() > MAXIMUM_VOCABULARY_SIZE {
            let most = format!("expected at most {MAXIMUM_VOCABULARY_SIZE}");
            return malformed(&format!("{} pieces; {most}", model.pieces.len()));
        }
        match model.twice() {
            Some(text) => malformed(&format!(
                "the piece {text:?} is there twice; expected each once"
            )),
            None => Ok(model),
        }
    }

    /// A piece that is there twice.
    fn twice(&self) -> Option<String> {
        let mut known = HashSet::new();
        let mut pieces = self.pieces.iter();
        let twice = pieces.find(|piece| !known.insert(piece.text.as_str()));
        twice.map(|piece| piece.text.clone())
    }

    fn parse(file: &[u8]) -> Option<Self> {
        let mut model = Self {
            pieces: vec![],
            merges: false,
            bytes: false,
            table: vec![],
        };
        each(file, |number, field| {
            let Field::Bytes(message) = field else {
                return Some(());
            };
            match number {
                1 => model.pieces.push(Piece::parse(message)?),
                2 => each(message, |number, field| {
                    match (number, field) {
                        (3, Field::Number(kind @ (1 | 2))) => model.merges = kind == 2,
                        // Whole words or characters.
                        (3, _) => return None,
                        (35, Field::Number(number)) => model.bytes = number != 0,
                        _ => {}
                    }
                    Some(())
                })?,
                3 => each(message, |number, field| {
                    if let (2, Field::Bytes(table)) = (number, field) {
                        model.table = table.to_vec();
                    }
                    Some(())
                })?,
                _ => {}
            }
            Some(())
        })?;
        (!model.pieces.is_empty()).then_some(model)
    }

    /// The document of a model that takes the likeliest pieces, with `more` pieces behind its own, which are special tokens.
    pub(super) fn unigram(&self, more: &[String], around: &Value) -> Value {
        let pieces = self
            .pieces
            .iter()
            .map(|piece| json!([piece.text, piece.score]));
        let pieces: Vec<Value> = pieces
            .chain(more.iter().map(|text| json!([text, 0.0])))
            .collect();
        let unknown = self
            .pieces
            .iter()
            .position(|piece| piece.kind == Kind::Unknown);
        let mut added = self.added();
        added.extend(
            (self.pieces.len()..)
                .zip(more)
                .map(|(id, text)| token(id, text, true)),
        );
        let table = (!self.table.is_empty())
            .then(|| json!({"type": "Precompiled", "precompiled_charsmap": base64(&self.table)}));
        json!({
            "added_tokens": added,
            "normalizer": table,
            "pre_tokenizer": {"type": "Sequence", "pretokenizers": [{"type": "WhitespaceSplit"}, metaspace("always")]},
            "post_processor": around,
            "decoder": metaspace("always"),
            "model": {"type": "Unigram", "unk_id": unknown, "vocab": pieces, "byte_fallback": self.bytes},
        })
    }

    /// The document of a model that merges pairs: every split of a piece into two is a merge, those of better pieces first. `▁` stands in
    /// front of a text, and if `always`, behind every token that is found before it is split.
    ///
    /// # Errors
    /// More merges than any model has; errors call the model `path`.
    pub(super) fn byte_pairs(
        &self,
        path: &Path,
        around: &Value,
        always: bool,
    ) -> Result<Value, PretrainedError> {
        let ids: HashMap<&str, usize> = self
            .pieces
            .iter()
            .map(|piece| piece.text.as_str())
            .zip(0..)
            .collect();
        let (mut merges, mut size) = (vec![], 0);
        for piece in &self.pieces {
            let cuts = piece.text.char_indices().skip(1);
            let mut splits: Vec<_> = cuts
                .filter_map(|(cut, _)| {
                    let (left, right) = piece.text.split_at(cut);
                    Some((ids.get(left)?, ids.get(right)?, left, right))
                })
                .collect();
            splits.sort_unstable();
            size += splits.len() * (OF_A_MERGE + piece.text.len());
            if size > LARGEST_MERGES {
                let problem = format!(
                    "its pieces are made of each other in more than {} ways; expected a model of SentencePiece",
                    merges.len()
                );
                return Err(PretrainedError::malformed(path, problem));
            }
            merges.extend(
                splits
                    .into_iter()
                    .map(|(_, _, left, right)| (piece.score, [left, right])),
            );
        }
        merges.sort_by(|a, b| b.0.total_cmp(&a.0));
        let merges: Vec<Value> = merges.into_iter().map(|(_, pair)| json!(pair)).collect();
        let unknown = self.pieces.iter().find(|piece| piece.kind == Kind::Unknown);
        let (normalizer, pre_tokenizer) = match always {
            true => {
                let first = json!({"type": "Prepend", "prepend": "▁"});
                let rest = json!({"type": "Replace", "pattern": {"String": " "}, "content": "▁"});
                let steps = json!({"type": "Sequence", "normalizers": [first, rest]});
                (steps, Value::Null)
            }
            false => {
                let mut first = metaspace("first");
                first["split"] = false.into();
                (Value::Null, first)
            }
        };
        Ok(json!({
            "added_tokens": self.added(),
            "normalizer": normalizer,
            "pre_tokenizer": pre_tokenizer,
            "post_processor": around,
            "decoder": {"type": "Sequence", "decoders": [
                {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}, {"type": "ByteFallback"}, {"type": "Fuse"},
                {"type": "Strip", "content": " ", "start": 1, "stop": 0},
            ]},
            "model": {
                "type": "BPE",
                "unk_token": unknown.map(|piece| piece.text.as_str()),
                "fuse_unk": true,
                "byte_fallback": self.bytes,
                "vocab": ids,
                "merges": merges,
            },
        }))
    }

    pub(super) fn merges(&self) -> bool {
        self.merges
    }

    fn added(&self) -> Vec<Value> {
        let pieces = self.pieces.iter().enumerate();
        let added = pieces.filter(|(_, piece)| piece.kind != Kind::Text);
        added
            .map(|(id, piece)| token(id, &piece.text, piece.kind != Kind::Whole))
            .collect()
    }
}

impl Piece {
    fn parse(message: &[u8]) -> Option<Self> {
        let mut piece = Self {
            text: String::new(),
            score: 0.0,
            kind: Kind::Text,
        };
        each(message, |number, field| {
            match (number, field) {
                (1, Field::Bytes(text)) if text.len() <= LONGEST_PIECE => {
                    piece.text = str::from_utf8(text).ok()?.to_owned();
                }
                (1, _) => return None,
                (2, Field::Number(bits)) => piece.score = f32::from_bits(u32::try_from(bits).ok()?),
                (3, Field::Number(kind)) => {
                    piece.kind = match kind {
                        2 => Kind::Unknown,
                        3 => Kind::Control,
                        4 => Kind::Whole,
                        _ => Kind::Text,
                    };
                }
                _ => {}
            }
            Some(())
        })?;
        piece.score.is_finite().then_some(piece)
    }
}

/// A token that is found in a text before it is split.
pub(super) fn token(id: usize, text: &str, special: bool) -> Value {
    json!({
        "id": id, "content": text, "single_word": false, "lstrip": false, "rstrip": false, "normalized": false, "special": special,
    })
}

/// Spaces as `▁`, which stands `always`, `never` or `first` in front of a text too: of every part between tokens, or of the first alone.
pub(super) fn metaspace(first: &str) -> Value {
    json!({"type": "Metaspace", "replacement": "▁", "prepend_scheme": first, "split": true})
}

/// A template of special tokens, each with its id, and of the texts `$A` and `$B`.
pub(super) fn template(single: &[&str], pair: &[&str], ids: &[(&str, usize)]) -> Value {
    let part = |part: &&str| match part.strip_prefix('$') {
        Some(text) => json!({"Sequence": {"id": text, "type_id": 0}}),
        None => json!({"SpecialToken": {"id": part, "type_id": 0}}),
    };
    let special: Map<String, Value> = ids
        .iter()
        .map(|(token, id)| {
            (
                (*token).to_owned(),
                json!({"id": token, "ids": [id], "tokens": [token]}),
            )
        })
        .collect();
    json!({
        "type": "TemplateProcessing",
        "single": single.iter().map(part).collect::<Vec<_>>(),
        "pair": pair.iter().map(part).collect::<Vec<_>>(),
        "special_tokens": special,
    })
}

/// Calls `field` with the number and the content of each field of a message; `None` for a damaged message.
fn each<'a>(
    mut message: &'a [u8],
    mut field: impl FnMut(u64, Field<'a>) -> Option<()>,
) -> Option<()> {
    while !message.is_empty() {
        let key = number(&mut message)?;
        let content = match key & 7 {
            0 => Field::Number(number(&mut message)?),
            1 => Field::Number(u64::from_le_bytes(take(&mut message, 8)?.try_into().ok()?)),
            2 => {
                let length = usize::try_from(number(&mut message)?).ok()?;
                Field::Bytes(take(&mut message, length)?)
            }
            5 => Field::Number(u32::from_le_bytes(take(&mut message, 4)?.try_into().ok()?).into()),
            _ => return None,
        };
        field(key >> 3, content)?;
    }
    Some(())
}

/// A number in groups of seven bits, the lowest first.
fn number(message: &mut &[u8]) -> Option<u64> {
    let mut number = 0;
    for place in 0..10 {
        let byte = take(message, 1)?[0];
        number |= u64::from(byte & 0x7f) << (7 * place);
        if byte < 0x80 {
            return Some(number);
        }
    }
    None
}

fn take<'a>(message: &mut &'a [u8], length: usize) -> Option<&'a [u8]> {
    let (taken, rest) = message.split_at_checked(length)?;
    *message = rest;
    Some(taken)
}

fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for three in bytes.chunks(3) {
        let bits = three
            .iter()
            .fold(0u32, |bits, byte| bits << 8 | u32::from(*byte))
            << (8 * (3 - three.len()));
        for place in 0..4 {
            let digit = DIGITS[(bits >> (18 - 6 * place) & 63) as usize];
            text.push(if place <= three.len() {
                char::from(digit)
            } else {
                '='
            });
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A model of these pieces, which merges pairs.
    fn merging<'a>(pieces: impl Iterator<Item = &'a str>) -> Vec<u8> {
        let length = |bytes: usize| [bytes as u8 & 0x7f | 0x80, (bytes >> 7) as u8];
        let mut file = vec![0x12, 2, 0x18, 2];
        for piece in pieces {
            file.push(0x0a);
            file.extend(length(piece.len() + 3));
            file.push(0x0a);
            file.extend(length(piece.len()));
            file.extend(piece.as_bytes());
        }
        file
    }

    /// Neither many copies of long pieces nor many pieces of the same characters take any amount of memory.
    #[test]
    fn models_with_too_many_merges_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("tokenizer.model");
        let read = |file: Vec<u8>| {
            std::fs::write(&path, file).unwrap();
            let model = SentencePieces::read(&path)?;
            model.byte_pairs(&path, &Value::Null, true)
        };
        let letters: Vec<String> = ('a'..='j')
            .map(|letter| letter.to_string().repeat(511))
            .collect();
        let small = read(merging("a b ab".split(' '))).unwrap();
        assert_eq!(small["model"]["merges"], json!([["a", "b"]]));
        let error = read(merging("a ab a".split(' '))).unwrap_err();
        assert!(
            error
                .to_string()
                .ends_with("the piece \"a\" is there twice; expected each once"),
            "{error}"
        );
        let pieces = letters
            .iter()
            .flat_map(|text| (1..=text.len()).map(|end| &text[..end]));
        let error = read(merging(pieces)).unwrap_err().to_string();
        assert!(error.contains("made of each other in more than"), "{error}");
    }

    #[test]
    fn bytes_are_written_in_base64() {
        for (bytes, text) in [
            ("", ""),
            ("f", "Zg=="),
            ("fo", "Zm8="),
            ("foo", "Zm9v"),
            ("foob\u{ff}", "Zm9vYsO/"),
        ] {
            assert_eq!(base64(bytes.as_bytes()), text);
        }
    }

    #[test]
    fn damaged_messages_are_refused() {
        let piece = [0x0a, 0x08, 0x0a, 0x01, b'a', 0x15, 0, 0, 0x80, 0x3f];
        let model = SentencePieces::parse(&piece).unwrap();
        assert_eq!(
            (model.pieces[0].text.as_str(), model.pieces[0].score),
            ("a", 1.0)
        );
        for end in 0..piece.len() {
            assert!(SentencePieces::parse(&piece[..end]).is_none(), "{end}");
        }
        assert!(SentencePieces::parse(&[0xff; 12]).is_none());
        assert!(SentencePieces::parse(&[0x0b]).is_none());
        assert!(
            SentencePieces::parse(&[
                0x0a, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01
            ])
            .is_none()
        );
    }
}
