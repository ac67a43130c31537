//! Subwords to words: sum over keys, mean over queries.
//!
//! A key word that was cut into subwords gets the sum of their weights. A query word that was written
//! in several steps has a row of weights for each step, and gets the mean of these rows:
//!
//! `A_WV = (1/|W|) Σ_{q ∈ W} Σ_{k ∈ V} α_qk`
//!
//! Rows that summed to 1 still do. Steps whose every key was masked take no part in the mean.

use std::ops::Range;

use crate::map::as_weight;
use crate::{AttentionMap, Axis, Token, Tokens};

impl AttentionMap {
    /// The map between words, `[heads, query words, key words]`: weights are summed over a key
    /// word's subwords and averaged over a query word's. Other axes stay as they are.
    ///
    /// ```
    /// use regard_trace::{AttentionMap, Kind, Token, Tokens};
    ///
    /// let queries = Tokens::from(vec![Token::new("Rad").in_word(0), Token::new("fahrer").in_word(0)]);
    /// let keys = Tokens::from(vec![
    ///     Token::new("the"),
    ///     Token::new("cycl").in_word(1),
    ///     Token::new("ist").in_word(1),
    /// ]);
    /// let weights = vec![0.0, 0.75, 0.25, 0.5, 0.25, 0.25];
    /// let words = AttentionMap::new(Kind::Cross, queries, keys, 1, weights)?.merge_words();
    /// assert_eq!(words.keys().labels(), ["the", "cyclist"]);
    /// assert_eq!(words.weights(), [0.25, 0.75]);
    /// # Ok::<(), regard_trace::TraceError>(())
    /// ```
    pub fn merge_words(&self) -> Self {
        let (query_words, key_words) = (self.queries().words(), self.keys().words());
        let [heads, queries, keys] = self.shape();
        if query_words.len() == queries && key_words.len() == keys {
            return self.clone();
        }
        let mut weights = Vec::with_capacity(heads * query_words.len() * key_words.len());
        for head in 0..heads {
            for word in &query_words {
                let mean = self.mean_rows(word.clone().map(|query| self.row(head, query)), keys);
                weights.extend(key_words.iter().map(|word| {
                    let sum: f64 = mean[word.clone()].iter().map(|&w| f64::from(w)).sum();
                    as_weight(sum)
                }));
            }
        }
        let (queries, keys) = (self.queries().merge_words(), self.keys().merge_words());
        let predictions = self
            .predictions()
            .map(|predictions| words_after(predictions, &query_words));
        Self {
            predictions,
            ..self.with_weights(heads, queries, keys, weights)
        }
    }
}

/// The word that was predicted after each of `words`, which are ranges of queries: the whole word to which the prediction at
/// the last piece of a range belongs.
fn words_after(predictions: &Axis, words: &[Range<usize>]) -> Axis {
    let merged = predictions.merge_words();
    let ranges = predictions.words();
    let after = words.iter().map(|word| {
        let last = word.end - 1;
        let place = ranges.partition_point(|range| range.end <= last);
        Token {
            text: merged.label(place),
            word: None,
            special: merged.is_special(place),
        }
    });
    after.collect::<Tokens>().into()
}
