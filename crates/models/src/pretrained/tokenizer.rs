//! The tokenizer of a model's folder.

mod former;
mod sentence_piece;
mod stated;

use std::{
    collections::{BTreeMap, HashSet},
    ops::Range,
    path::{Path, PathBuf},
    sync::OnceLock,
};

use serde_json::{Map, Value, json};

use super::{
    error::PretrainedError,
    folder::{files, names},
    images,
    json::{LARGEST_LIST, json, settings},
};
use crate::text::{Alone, Library, LibraryError, Piece, Stream, pieces, split_words};

/// The special tokens by role, each a text or an object with a text and its settings.
type Roles = BTreeMap<&'static str, Value>;

/// The roles of special tokens, in the order in which their tokens are added to a vocabulary: their keys, without `_token`.
const ROLES: [&str; 7] = ["bos", "eos", "unk", "sep", "pad", "cls", "mask"];

/// The ids of tokens with a role, of those that a model has.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SpecialIds {
    /// Starts a text.
    pub bos: Option<u32>,
    /// Each of them ends a text.
    pub eos: Vec<u32>,
    /// Fills a batch up to its longest text.
    pub pad: Option<u32>,
    /// Stands for a token that a masked language model is asked for.
    pub mask: Option<u32>,
    /// Stands for text outside the vocabulary.
    pub unk: Option<u32>,
    /// Starts a text that is classified.
    pub cls: Option<u32>,
    /// Ends each of a pair of texts.
    pub sep: Option<u32>,
}

/// A text as tokens: all lists have one entry for each token.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Encoding {
    /// The ids.
    pub ids: Vec<u32>,
    /// The bytes of its text that a token stands for, empty for special tokens.
    pub offsets: Vec<Range<usize>>,
    /// The word of a token, counted from 0 without gaps: words as [`split_words`] cuts them. A special token is a word of its own.
    pub words: Vec<usize>,
    /// Whether a token is a special one.
    pub special: Vec<bool>,
    /// Which of a pair of texts a token belongs to (0 or 1), if to any.
    pub texts: Vec<Option<usize>>,
    /// The type id, for models with an embedding of types.
    pub types: Vec<u32>,
}

/// An end of a text.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Side {
    /// Its start.
    Left,
    /// Its end.
    #[default]
    Right,
}

impl Encoding {
    /// The tokens at `places`, in that order.
    #[must_use]
    pub fn select(&self, places: impl Iterator<Item = usize> + Clone) -> Self {
        Self {
            ids: places.clone().map(|at| self.ids[at]).collect(),
            offsets: places.clone().map(|at| self.offsets[at].clone()).collect(),
            words: places.clone().map(|at| self.words[at]).collect(),
            special: places.clone().map(|at| self.special[at]).collect(),
            texts: places.clone().map(|at| self.texts[at]).collect(),
            types: places.map(|at| self.types[at]).collect(),
        }
    }

    /// The same cut to at most `most` tokens at one end of the text: the special tokens before and behind it stay, where there is room
    /// for them.
    #[must_use]
    pub fn truncated(&self, most: usize, side: Side) -> Self {
        let tokens = self.ids.len();
        let special = |text: &&Option<usize>| text.is_none();
        let ends = self
            .texts
            .iter()
            .rev()
            .take_while(special)
            .count()
            .min(most);
        let kept = most.min(tokens) - ends;
        let starts = match side {
            Side::Right => kept,
            Side::Left => self.texts.iter().take_while(special).count().min(kept),
        };
        let last = ends + kept - starts;
        self.select((0..starts).chain(tokens - last..tokens))
    }

    /// The tokens of the first text that stand for any of its bytes `range`.
    pub fn tokens_of(&self, range: &Range<usize>) -> Vec<usize> {
        let stands = |at: &usize| {
            let offset = &self.offsets[*at];
            self.texts[*at] == Some(0) && offset.start < range.end && range.start < offset.end
        };
        (0..self.ids.len()).filter(stands).collect()
    }
}

/// The tokenizer of a model, as the library `tokenizers` has it.
///
/// ```no_run
/// use regard_models::pretrained::Tokenizer;
///
/// let tokenizer = Tokenizer::open("gpt2")?;
/// let ids = tokenizer.encode("Once upon a time", true)?.ids;
/// assert_eq!(tokenizer.decode(&ids, true)?, "Once upon a time");
/// # Ok::<(), regard_models::pretrained::PretrainedError>(())
/// ```
#[derive(Debug, Clone)]
pub struct Tokenizer {
    /// The file, or the folder of several.
    path: PathBuf,
    library: Library,
    /// Where the pieces of a text are numbered in another way than tokens: the library that makes them.
    pieces: Option<Library>,
    special: SpecialIds,
    /// The ids of all special tokens.
    without_text: HashSet<u32>,
    /// How many embeddings its model has, if they are fewer than the tokens.
    rows: OnceLock<usize>,
    /// Where a text that is too long is cut.
    truncation_side: Side,
}

impl Tokenizer {
    /// The tokenizer of a folder: `tokenizer.json`; where there is none, `vocab.json` and `merges.txt` (the byte-level BPE of GPT-2
    /// and RoBERTa), `vocab.txt` (BERT's WordPiece), or a model of SentencePiece: `spiece.model` (T5), `tokenizer.model` (Llama) or
    /// `source.spm` with `vocab.json` (Marian). `tokenizer_config.json` and the files beside it may name more tokens, and state flags of
    /// its steps.
    ///
    /// # Errors
    /// [`PretrainedError`] if there is no such file, or a damaged one.
    pub fn open(folder: impl AsRef<Path>) -> Result<Self, PretrainedError> {
        Self::of(folder.as_ref(), "source.spm", "vocab.json")
    }

    /// The tokenizer of what an encoder-decoder writes: that of what it reads, except for a Marian with `target.spm`, and perhaps
    /// `target_vocab.json`.
    ///
    /// # Errors
    /// As [`open`](Self::open)'s.
    pub fn open_target(folder: impl AsRef<Path>) -> Result<Self, PretrainedError> {
        let folder = folder.as_ref();
        let or = |name, other| match folder.join(name).exists() {
            true => name,
            false => other,
        };
        let vocabulary = or("target_vocab.json", "vocab.json");
        Self::of(folder, or("target.spm", "source.spm"), vocabulary)
    }

    /// With the files of a Marian.
    fn of(folder: &Path, marian: &str, vocabulary: &str) -> Result<Self, PretrainedError> {
        let file = |name: &str| folder.join(name);
        let config = settings(&file("tokenizer_config.json"))?;
        let model = settings(&file("config.json"))?;
        let mut tokens = special_tokens(folder, &config)?;
        let (mut path, mut pieces) = (file("tokenizer.json"), None);
        let of_library = path.exists();
        let model_of_pieces = ["spiece.model", "tokenizer.model"].map(file);
        let model_of_pieces = model_of_pieces.into_iter().find(|path| path.exists());
        // Its words end with `</w>`, and are in lower case: another library's file than GPT-2's.
        let is_clip = model.get("model_type").and_then(Value::as_str) == Some("clip");
        let mut document: Value = if of_library {
            json(&path, LARGEST_LIST)?
        } else if !is_clip && file("vocab.json").exists() && file("merges.txt").exists() {
            path = folder.to_owned();
            former::byte_level(folder, &config, &model, &mut tokens)?
        } else if file("vocab.txt").exists() {
            path = file("vocab.txt");
            former::word_piece(folder, &config, &model, &mut tokens)?
        } else if let Some(found) = model_of_pieces {
            path = found;
            former::sentence_pieces(&path, &config, &model, &mut tokens)?
        } else if file(vocabulary).exists() && file(marian).exists() {
            path = folder.to_owned();
            let (of_text, of_ids) = former::marian(&file(marian), &file(vocabulary), &mut tokens)?;
            pieces = Some(of_text);
            of_ids
        } else {
            let found = names(&files(folder)?);
            let of_images = match model.get("model_type").and_then(Value::as_str) {
                Some(model_type) => images::no_text(folder, model_type)?,
                None => None,
            };
            let problem = of_images.unwrap_or_else(|| {
                format!(
                    "no tokenizer that can be read (found: {found}); {}",
                    convert(folder)
                )
            });
            return Err(PretrainedError::malformed(folder, problem));
        };
        stated::steps(folder, &config, &mut document)?;
        if pieces.is_none() {
            stated::tokens(folder, &config, of_library, &tokens, &mut document)?;
        }
        let cleans = stated::cleans(&config, &document);
        let truncation_side = stated::truncation_side(folder, &config, &document)?;
        let read =
            |document: &mut Value| Library::new(document).map_err(|error| damaged(&path, error));
        let library = read(&mut document)?.cleaning(cleans);
        let pieces = pieces.as_mut().map(read).transpose()?;
        let special = special_ids(folder, &library, &tokens, &model)?;
        let tokens = library.special_tokens().into_iter();
        let without_text = tokens.filter_map(|token| library.id(&token)).collect();
        Ok(Self {
            path,
            library,
            pieces,
            special,
            without_text,
            rows: OnceLock::new(),
            truncation_side,
        })
    }

    /// The tokenizer of a model that was trained here, from the `document` of its library: `special` are the tokens with a role, and
    /// a text is put between those of `around`.
    ///
    /// # Errors
    /// [`PretrainedError::Malformed`] for a document that cannot be used; errors call it `name`.
    pub fn trained(
        mut document: Value,
        special: SpecialIds,
        around: [Option<u32>; 2],
        name: impl Into<PathBuf>,
    ) -> Result<Self, PretrainedError> {
        let path = name.into();
        let library =
            |document: &mut Value| Library::new(document).map_err(|error| damaged(&path, error));
        let plain = library(&mut document)?;
        let mark = |id: Option<u32>| Some((id?, plain.token(id?)?));
        let [start, end] = around.map(mark);
        let part =
            |(_, token): &(u32, String)| json!({"SpecialToken": {"id": token, "type_id": 0}});
        let text = json!({"Sequence": {"id": "A", "type_id": 0}});
        let single: Vec<Value> = start
            .iter()
            .map(part)
            .chain([text])
            .chain(end.iter().map(part))
            .collect();
        let marks = start.iter().chain(&end).map(|(id, token)| {
            let about = json!({"id": token, "ids": [id], "tokens": [token]});
            (token.clone(), about)
        });
        let second = json!({"Sequence": {"id": "B", "type_id": 0}});
        let pair = single.iter().cloned().chain([second]);
        let pair: Vec<Value> = pair.chain(end.iter().map(part)).collect();
        document["post_processor"] = json!({
            "type": "TemplateProcessing",
            "single": single,
            "pair": pair,
            "special_tokens": marks.collect::<Map<String, Value>>(),
        });
        let library = library(&mut document)?;
        let tokens = library.special_tokens().into_iter();
        let without_text = tokens.filter_map(|token| library.id(&token)).collect();
        Ok(Self {
            path,
            library,
            pieces: None,
            special,
            without_text,
            rows: OnceLock::new(),
            truncation_side: Side::Right,
        })
    }

    /// The same for texts in lower case: they become so before all else, but for special tokens, as sentence-transformers has it
    /// where a model is `do_lower_case`. A tokenizer that has this step already stays as it is.
    ///
    /// # Errors
    /// [`PretrainedError::Malformed`] for a tokenizer that cannot be written.
    pub fn lower_cased(&self) -> Result<Self, PretrainedError> {
        let document = self.encoder().document();
        let document = document.map_err(|error| damaged(&self.path, error))?;
        let document: Result<Value, _> = serde_json::from_str(&document);
        let mut document =
            document.map_err(|error| PretrainedError::malformed(&self.path, error.to_string()))?;
        let lower_case = json!({"type": "Lowercase"});
        let mut steps = match document["normalizer"].take() {
            Value::Null => vec![],
            Value::Object(mut step) if step.get("type") == Some(&json!("Sequence")) => {
                match step.remove("normalizers") {
                    Some(Value::Array(steps)) => steps,
                    _ => vec![],
                }
            }
            step => vec![step],
        };
        if !steps.contains(&lower_case) {
            steps.insert(0, lower_case);
        }
        document["normalizer"] = json!({"type": "Sequence", "normalizers": steps});
        let library = Library::new(&mut document).map_err(|error| damaged(&self.path, error))?;
        let library = library.cleaning(self.encoder().cleans());
        let mut lower_cased = self.clone();
        match &mut lower_cased.pieces {
            Some(pieces) => *pieces = library,
            None => lower_cased.library = library,
        }
        Ok(lower_cased)
    }

    /// Where a text that is too long for its model is cut.
    pub fn truncation_side(&self) -> Side {
        self.truncation_side
    }

    /// The ids of tokens with a role.
    pub fn special(&self) -> &SpecialIds {
        &self.special
    }

    /// Whether a token stands for no text.
    pub fn is_special(&self, id: u32) -> bool {
        self.without_text.contains(&id)
    }

    /// The tokenizer as a `tokenizer.json`, whatever files it was read from.
    ///
    /// # Errors
    /// [`PretrainedError::Malformed`] for one that needs two such files (Marian's).
    pub fn document(&self) -> Result<String, PretrainedError> {
        if self.pieces.is_some() {
            let problem =
                "pieces are numbered in another way than tokens; no tokenizer.json can say so";
            return Err(PretrainedError::malformed(&self.path, problem));
        }
        let document = self.library.document();
        document.map_err(|error| damaged(&self.path, error))
    }

    /// The number of ids: all are below it. A model may have a few rows more in its table of embeddings.
    pub fn size(&self) -> usize {
        self.library.size()
    }

    /// The id of a token, written as in the vocabulary.
    pub fn id(&self, token: &str) -> Option<u32> {
        self.library.id(token)
    }

    /// The token of an id, as the vocabulary writes it (a space may be `Ġ` or `▁`).
    pub fn token(&self, id: u32) -> Option<String> {
        self.library.token(id)
    }

    /// Checks that a model with `rows` embeddings has one for every token.
    ///
    /// # Errors
    /// [`PretrainedError::Malformed`] if the tokenizer is of another model.
    pub fn expect_rows(&self, rows: usize) -> Result<(), PretrainedError> {
        match self.size() <= rows {
            true => Ok(()),
            false => Err(PretrainedError::malformed(
                &self.path,
                format!(
                    "a vocabulary of {} tokens, but the model has {rows} embeddings; expected at most as many: it is the \
                     tokenizer of another model",
                    self.size()
                ),
            )),
        }
    }

    /// As [`expect_rows`](Self::expect_rows), but a few of the last tokens may be without an embedding, up to 64 or a sixteenth of the
    /// rows: often a token for padding was added, and the model left as it was. Texts with such a token are refused from then on.
    ///
    /// # Errors
    /// As [`expect_rows`](Self::expect_rows)'s.
    pub fn expect_most_rows(&self, rows: usize) -> Result<(), PretrainedError> {
        const FEW: usize = 64;
        match self.size().saturating_sub(rows) {
            0 => Ok(()),
            more if more <= FEW.max(rows / 16) => {
                self.rows.get_or_init(|| rows);
                Ok(())
            }
            _ => self.expect_rows(rows),
        }
    }

    /// What to warn of if some tokens have no embedding, as [`expect_most_rows`](Self::expect_most_rows) found.
    pub fn without_rows(&self) -> Option<String> {
        let (rows, size) = (*self.rows.get()?, self.size());
        let first = self.token(rows as u32).unwrap_or_default();
        Some(format!(
            "{}: {size} tokens, but the model has {rows} embeddings; texts with one of the last {}, from {first:?} on, are refused",
            self.path.display(),
            size - rows
        ))
    }

    /// Checks that the model has an embedding for each of `ids`.
    ///
    /// # Errors
    /// [`PretrainedError::Malformed`] that names the first token without one, if
    /// [`expect_most_rows`](Self::expect_most_rows) has found any.
    pub fn expect_embedded(&self, ids: &[u32]) -> Result<(), PretrainedError> {
        let Some(&rows) = self.rows.get() else {
            return Ok(());
        };
        match ids.iter().find(|&&id| id as usize >= rows) {
            None => Ok(()),
            Some(&id) => {
                let token = self.token(id).unwrap_or_default();
                let problem = format!(
                    "the text has the token {token:?} ({id}), for which the model has no embedding among its {rows}; expected a text \
                     without it"
                );
                Err(PretrainedError::malformed(&self.path, problem))
            }
        }
    }

    /// The tokens of a text. `special` says whether the model's own special tokens are put around it; text that spells a special
    /// token becomes that token in any case.
    ///
    /// # Errors
    /// [`PretrainedError::Malformed`] if a damaged file cannot encode the text, or as
    /// [`expect_embedded`](Self::expect_embedded)'s.
    pub fn encode(&self, text: &str, special: bool) -> Result<Encoding, PretrainedError> {
        let found = self.encoder().encode(text, special);
        let found = found.map_err(|error| damaged(&self.path, error))?;
        self.encoding(found, &[text], special)
    }

    /// The tokens of a pair of texts, such as a question and its context, with the model's special tokens around them.
    ///
    /// # Errors
    /// As [`encode`](Self::encode)'s.
    pub fn encode_pair(&self, first: &str, second: &str) -> Result<Encoding, PretrainedError> {
        let found = self.encoder().encode((first, second), true);
        let found = found.map_err(|error| damaged(&self.path, error))?;
        self.encoding(found, &[first, second], true)
    }

    fn encoder(&self) -> &Library {
        self.pieces.as_ref().unwrap_or(&self.library)
    }

    fn encoding(
        &self,
        found: tokenizers::Encoding,
        texts: &[&str],
        special: bool,
    ) -> Result<Encoding, PretrainedError> {
        let mut of_text = found.get_sequence_ids();
        let mut types = found.get_type_ids().to_vec();
        let offsets = found.get_offsets().iter();
        let mut offsets: Vec<Range<usize>> = offsets.map(|&(start, end)| start..end).collect();
        let mut ids = found.get_ids().to_vec();
        if self.pieces.is_some() {
            let unknown = self.special.unk.unwrap_or_default();
            for (id, piece) in ids.iter_mut().zip(found.get_tokens()) {
                *id = self.library.id(piece).unwrap_or(unknown);
            }
            if let Some(&end) = self.special.eos.first().filter(|_| special) {
                ids.push(end);
                offsets.push(0..0);
                of_text.push(None);
                types.push(0);
            }
        }
        self.expect_embedded(&ids)?;
        // A token of some bytes of a character stands for the character.
        for (offset, text) in offsets.iter_mut().zip(&of_text) {
            let text = text.and_then(|text| texts.get(text)).unwrap_or(&"");
            let start = text.floor_char_boundary(offset.start);
            *offset = start..text.ceil_char_boundary(offset.end).max(start);
        }
        let added = found.get_special_tokens_mask().iter().chain([&1]);
        let special: Vec<bool> = ids
            .iter()
            .zip(added)
            .map(|(id, &added)| added != 0 || self.is_special(*id))
            .collect();
        Ok(Encoding {
            words: words(texts, &offsets, &special, &of_text),
            types,
            texts: of_text,
            ids,
            offsets,
            special,
        })
    }

    /// The text of `ids`; ids outside the vocabulary have none. `skip_special` leaves special tokens out.
    ///
    /// # Errors
    /// As [`encode`](Self::encode)'s.
    pub fn decode(&self, ids: &[u32], skip_special: bool) -> Result<String, PretrainedError> {
        let text = self.library.decode(ids, skip_special);
        text.map_err(|error| damaged(&self.path, error))
    }

    /// Decodes token by token what follows `context`, whose text is not given again.
    ///
    /// # Errors
    /// As [`encode`](Self::encode)'s.
    ///
    /// ```no_run
    /// # use regard_models::pretrained::Tokenizer;
    /// # let tokenizer = Tokenizer::open("gpt2")?;
    /// let mut stream = tokenizer.stream(&tokenizer.encode("Once upon", true)?.ids, true)?;
    /// for id in tokenizer.encode(" a time", false)?.ids {
    ///     print!("{}", stream.push(id).unwrap());
    /// }
    /// print!("{}", stream.finish().unwrap());
    /// # Ok::<(), regard_models::pretrained::PretrainedError>(())
    /// ```
    pub fn stream(
        &self,
        context: &[u32],
        skip_special: bool,
    ) -> Result<Stream<'_>, PretrainedError> {
        let stream = self.library.stream_after(context, skip_special);
        stream.map_err(|error| damaged(&self.path, error))
    }

    /// The text that each of `tokens` adds if it follows `context`: alone, many a decoder would take its space away. One that adds no
    /// text, such as a part of a character, is called by its name in the vocabulary.
    ///
    /// # Errors
    /// As [`encode`](Self::encode)'s.
    pub fn following(
        &self,
        context: &[u32],
        tokens: &[u32],
    ) -> Result<Vec<String>, PretrainedError> {
        let texts = self.library.following(context, tokens);
        texts.map_err(|error| damaged(&self.path, error))
    }

    /// One [`Piece`] for each of `ids`, for the axes of a picture.
    ///
    /// # Errors
    /// As [`encode`](Self::encode)'s.
    pub fn pieces(&self, ids: &[u32]) -> Result<Vec<Piece>, PretrainedError> {
        let alone = |id| {
            self.is_special(id).then(|| Alone {
                name: self.token(id).unwrap_or_default(),
                starts_text: true,
            })
        };
        let texts = |run: &[u32]| {
            let parts = self.library.parts(run)?;
            Ok(parts.into_iter().map(String::into_bytes).collect())
        };
        pieces(ids, alone, texts).map_err(|error| damaged(&self.path, error))
    }
}

/// The word of each token.
fn words(
    texts: &[&str],
    offsets: &[Range<usize>],
    special: &[bool],
    of_text: &[Option<usize>],
) -> Vec<usize> {
    // Where the words of each text end.
    let ends: Vec<Vec<usize>> = texts
        .iter()
        .map(|text| {
            let words = split_words(text);
            words
                .scan(0, |end, word| {
                    *end += word.len();
                    Some(*end)
                })
                .collect()
        })
        .collect();
    let (mut words, mut word, mut former) = (vec![], 0, None);
    for ((offset, &special), &text) in offsets.iter().zip(special).zip(of_text) {
        // A token that takes a space and a part of the word after it is of that word.
        let place = text.filter(|_| !special).and_then(|text| {
            let (ends, bytes) = (ends.get(text)?, texts.get(text)?.as_bytes());
            let blank = bytes.get(offset.start) == Some(&b' ') && offset.len() > 1;
            let start = offset.start + usize::from(blank);
            Some((text, ends.partition_point(|&end| end <= start)))
        });
        if !words.is_empty() && (place.is_none() || place != former) {
            word += 1;
        }
        former = place;
        words.push(word);
    }
    words
}

/// What to run for a folder whose tokenizer has another form.
fn convert(folder: &Path) -> String {
    format!(
        "make a tokenizer.json with python3 -c \"from transformers import AutoTokenizer; \
         AutoTokenizer.from_pretrained('{0}').save_pretrained('{0}')\"",
        folder.display()
    )
}

fn damaged(path: &Path, error: LibraryError) -> PretrainedError {
    PretrainedError::malformed(path, error.to_string())
}

/// The special tokens of `tokenizer_config.json` and `special_tokens_map.json` by role, each with its settings if the file has
/// them. The map comes first where there is neither a `tokenizer.json` nor a list of added tokens, as transformers has it.
pub(super) fn special_tokens(
    folder: &Path,
    config: &Map<String, Value>,
) -> Result<Roles, PretrainedError> {
    let map = settings(&folder.join("special_tokens_map.json"))?;
    let former =
        !folder.join("tokenizer.json").exists() && !config.contains_key("added_tokens_decoder");
    let files = match former {
        true => [&map, config],
        false => [config, &map],
    };
    let mut found = BTreeMap::new();
    for role in ROLES {
        let key = format!("{role}_token");
        let token = files.into_iter().find_map(|file| {
            let token = file.get(&key)?;
            content(token).map(|_| token.clone())
        });
        found.extend(token.map(|token| (role, token)));
    }
    Ok(found)
}

/// The text of a token, which is a string or an object.
pub(super) fn content(token: &Value) -> Option<&str> {
    token.as_str().or_else(|| token["content"].as_str())
}

/// A generation ends at the ids that `generation_config.json` names, or else `config.json`, or else the tokenizer's own. The other
/// roles are the tokenizer's; where it names no token for one, the ids of these files.
fn special_ids(
    folder: &Path,
    library: &Library,
    tokens: &Roles,
    model: &Map<String, Value>,
) -> Result<SpecialIds, PretrainedError> {
    let generation = settings(&folder.join("generation_config.json"))?;
    let stated = |role: &str| -> Vec<u32> {
        let key = format!("{role}_token_id");
        let lists = [&generation, model]
            .into_iter()
            .filter_map(|file| file.get(&key));
        let ids = lists.map(|value| {
            let list = value
                .as_array()
                .map_or(std::slice::from_ref(value), Vec::as_slice);
            let ids = list
                .iter()
                .filter_map(|id| u32::try_from(id.as_u64()?).ok());
            ids.collect::<Vec<_>>()
        });
        ids.into_iter()
            .find(|ids| !ids.is_empty())
            .unwrap_or_default()
    };
    let named = |role: &str| library.id(content(tokens.get(role)?)?);
    let one = |role| named(role).or_else(|| stated(role).first().copied());
    let mut eos = stated("eos");
    if eos.is_empty() {
        eos.extend(named("eos"));
    }
    Ok(SpecialIds {
        bos: one("bos"),
        eos,
        pad: one("pad"),
        mask: one("mask"),
        unk: one("unk"),
        cls: one("cls"),
        sep: one("sep"),
    })
}
