//! BPE-dropout (Provilkov, Emelianenko and Voita 2020, arXiv:1910.13267): a text cut in another way each time it is trained on.
//!
//! Byte-pair encoding cuts a word in one way only, so that a model of little data sees few of the ways in which its sub-words
//! go together. Here every merge that is possible is left out with probability `p` before the first of the others in
//! the order of learning is made, again and again, until none is left to make: `p = 0` is the usual encoding, `p = 1` gives bytes.

use std::collections::HashMap;

use regard_models::text::split_words;

use super::subword::{Model, SubwordTokenizer, position};
use crate::corpus::Random;

/// What a merge gives, by the two tokens that it joins.
#[derive(Debug, Clone)]
pub(super) struct Merges {
    /// Place in the order of learning, and the joined token.
    joined: HashMap<(u32, u32), (usize, u32)>,
    /// The token of each single byte.
    byte: Vec<u32>,
}

impl Merges {
    /// `merges` with the token that each makes, in the order of learning; `bytes[id]` are those of a token.
    pub(super) fn new(merges: &[(u32, u32)], bytes: &[Vec<u8>]) -> Self {
        let ids: HashMap<&[u8], u32> = bytes.iter().map(Vec::as_slice).zip(0..).collect();
        let join = |&(left, right): &(u32, u32)| {
            let joined = [left, right].map(|id| bytes[position(id)].as_slice());
            ids[joined.concat().as_slice()]
        };
        Self {
            joined: merges
                .iter()
                .enumerate()
                .map(|(rank, pair)| (*pair, (rank, join(pair))))
                .collect(),
            byte: (0..=255).map(|byte: u8| ids[[byte].as_slice()]).collect(),
        }
    }

    fn encode(&self, word: &str, dropout: f64, random: &mut Random) -> Vec<u32> {
        let mut tokens: Vec<u32> = word
            .bytes()
            .map(|byte| self.byte[usize::from(byte)])
            .collect();
        loop {
            let next = tokens
                .windows(2)
                .enumerate()
                .filter_map(|(at, pair)| {
                    let &(rank, joined) = self.joined.get(&(pair[0], pair[1]))?;
                    (random.uniform() >= dropout).then_some((rank, at, joined))
                })
                .min();
            let Some((_, at, joined)) = next else {
                return tokens;
            };
            tokens.splice(at..at + 2, [joined]);
        }
    }
}

impl SubwordTokenizer {
    /// Whether [`encode_again`](Self::encode_again) can leave out merges.
    pub fn has_merges(&self) -> bool {
        matches!(self.model, Model::Bytes { .. })
    }

    /// The text of `ids` cut anew, each possible merge left out with probability `dropout` (see the
    /// [paper](https://arxiv.org/abs/1910.13267)). The ids come back as they are if their text was cut inside a character, or
    /// where the tokenizer has no merges of its own (whole symbols, a `tokenizer.json`).
    ///
    /// ```
    /// use regard_train::{corpus::Random, tokenizer::SubwordTokenizer};
    /// let tokenizer = SubwordTokenizer::learn(["a man rides", "a man sees"].iter(), 270, false)?;
    /// let ids = tokenizer.encode("a man rides")?;
    /// let mut random = Random::new(&[1]);
    /// let again = tokenizer.encode_again(&ids, 0.5, &mut random);
    /// assert!(again.len() > ids.len());
    /// assert_eq!(tokenizer.decode(&again)?, "a man rides");
    /// assert_eq!(tokenizer.encode_again(&ids, 0.0, &mut random), ids);
    /// # Ok::<(), regard_train::tokenizer::TokenizerError>(())
    /// ```
    pub fn encode_again(&self, ids: &[u32], dropout: f64, random: &mut Random) -> Vec<u32> {
        let Model::Bytes { joins, bytes, .. } = &self.model else {
            return ids.to_vec();
        };
        let text = ids.iter().filter_map(|&id| bytes.get(position(id)));
        let Ok(text) = String::from_utf8(text.flatten().copied().collect()) else {
            return ids.to_vec();
        };
        split_words(&text)
            .flat_map(|word| joins.encode(word, dropout, random))
            .collect()
    }
}
