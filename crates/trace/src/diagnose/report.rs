//! Diagnostics in words.
//!
//! One line a head, with the most telling thing about it, in this order:
//!
//! | a head that | is said to be |
//! |---|---|
//! | had no row with a choice | without a choice |
//! | is 98 % uniform or more | uniform |
//! | puts half of its weight or more on one key | a sink, if that key is the first or a special token |
//! | puts half of its weight or more on the token before | a previous-token head |
//! | puts half of its weight or more on earlier equal tokens | a duplicate-token head |
//! | has a diagonality of .9 or more | along the diagonal |
//! | has a mean largest weight of .9 or more | one key at a time |
//! | does none of these | spread out |
//!
//! ```
//! use regard_trace::{AttentionMap, Kind, Tokens, diagnose::{heads, report}};
//!
//! let words = Tokens::from_words("one two three four");
//! let map = AttentionMap::new(Kind::EncoderSelf, words.clone(), words, 1, vec![0.25; 16])?.at_layer(2);
//! let text = report::describe(&map, &heads(&map)[0]);
//! assert_eq!(text, "layer 3 head 1: uniform over about 4 keys; it learned nothing, or `regard_trace::diagnose::check` says why");
//! # Ok::<(), regard_trace::TraceError>(())
//! ```

use super::head::HeadDiagnostics;
use crate::AttentionMap;

/// From this share of the largest entropy on a head is called uniform.
pub const UNIFORM: f64 = 0.98;

/// From this mean weight on one place names the head.
pub const DOMINANT: f64 = 0.5;

/// From this diagonality on a head follows the diagonal.
pub const DIAGONAL: f64 = 0.9;

/// From this mean largest weight on a head looks at one key at a time.
pub const SHARP: f64 = 0.9;

/// A key whose weights over all queries sum to less was hardly looked at.
pub const UNCOVERED: f64 = 0.1;

/// One head in a line: ``layer 2 head 5: 92 % on `<s>`, a sink``, counted from 1 as in pictures. `head` is one of
/// [`heads`](super::heads) of `map`.
pub fn describe(map: &AttentionMap, head: &HeadDiagnostics) -> String {
    format!(
        "layer {} head {}: {}",
        map.layer() + 1,
        head.head + 1,
        verdict(map, head)
    )
}

fn verdict(map: &AttentionMap, head: &HeadDiagnostics) -> String {
    let at_least = |measure: Option<f64>, bound: f64| measure.filter(|&value| value >= bound);
    let (Some(effective), Some(span)) = (head.effective_keys, head.effective_span) else {
        return "no query had a choice between keys".to_owned();
    };
    if at_least(head.uniformity, UNIFORM).is_some() {
        return format!(
            "uniform over about {effective:.0} keys; it learned nothing, or \
             `regard_trace::diagnose::check` says why"
        );
    }
    if let Some((key, weight)) = head.top_key.filter(|&(_, weight)| weight >= DOMINANT)
        && head.rows > 1
    {
        let label = map.keys().label(key);
        let sink = match key == 0 || map.keys().is_special(key) {
            true => "a sink",
            false => "whatever the query",
        };
        return format!("{} on `{label}`, {sink}", percent(weight));
    }
    if let Some(weight) = at_least(head.previous_token, DOMINANT) {
        return format!(
            "{} on the token before, a previous-token head",
            percent(weight)
        );
    }
    if let Some(weight) = at_least(head.duplicate_token, DOMINANT) {
        return format!(
            "{} on earlier tokens of the same text, a duplicate-token head",
            percent(weight)
        );
    }
    let how = match (
        at_least(head.diagonality, DIAGONAL),
        at_least(head.largest_weight, SHARP),
    ) {
        (Some(_), Some(_)) => "one key at a time, along the diagonal",
        (Some(_), None) => "along the diagonal",
        (None, Some(_)) => "one key at a time",
        (None, None) => "spread out",
    };
    format!("{how}; it looks at about {effective:.1} keys, 90 % within {span:.1} neighbours")
}

/// The keys that were hardly looked at by any query of any head, special tokens aside: a translation
/// may have left them out.
pub fn uncovered(map: &AttentionMap, heads: &[HeadDiagnostics]) -> Vec<usize> {
    (0..map.keys().len())
        .filter(|&key| !map.keys().is_special(key))
        .filter(|&key| heads.iter().all(|head| head.column_sums[key] < UNCOVERED))
        .collect()
}

/// `0.92` as `92 %`.
fn percent(share: f64) -> String {
    format!("{:.0} %", 100.0 * share)
}
