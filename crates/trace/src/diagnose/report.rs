//! Diagnostics in words.
//!
//! One line for each head ([`describe`]), which says the first of the following that is true of it; and what is remarkable
//! about a whole trace ([`summary`]).
//!
//! | a head that | is described as |
//! |---|---|
//! | had no row with a choice | without a choice |
//! | is 98 % uniform or more | uniform |
//! | puts half of its weight or more on one key | a sink if that key is the first or a special token, else by that key |
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
//! assert_eq!(text, "layer 3 head 1: uniform over about 4 keys: no key is preferred");
//! // `diagnose::check` says why, given queries and keys.
//! # Ok::<(), regard_trace::TraceError>(())
//! ```

use super::head::{HeadDiagnostics, heads};
use crate::{AttentionMap, Kind, Trace};

/// A head with at least this share of the largest entropy is called uniform.
pub const UNIFORM: f64 = 0.98;

/// A head is named after the place (a key, the token before, ..) that has at least this mean weight.
pub const DOMINANT: f64 = 0.5;

/// A head with at least this diagonality follows the diagonal.
pub const DIAGONAL: f64 = 0.9;

/// A head with at least this mean largest weight looks at one key at a time.
pub const SHARP: f64 = 0.9;

/// A key whose weights over all queries sum to less than this was hardly looked at.
pub const UNCOVERED: f64 = 0.1;

/// One head in a line: ``layer 2 head 5: 92 % on `<s>`, a sink``, counted from 1 as in pictures. `head` is one of
/// [`heads`] of `map`.
pub fn describe(map: &AttentionMap, head: &HeadDiagnostics) -> String {
    format!(
        "layer {} head {}: {}",
        map.layer() + 1,
        head.head + 1,
        verdict(map, head)
    )
}

/// How a head is described; the table at the top of this page has the bounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Role {
    /// No query had a choice between keys.
    NoChoice,
    /// All keys alike.
    Uniform,
    /// Most weight on the first key or on a special token.
    Sink,
    /// Most weight on one key, whatever the query.
    OneKey,
    /// Most weight on the token before.
    PreviousToken,
    /// Most weight on earlier tokens of the same text.
    DuplicateToken,
    /// Along the diagonal.
    Diagonal,
    /// One key at a time.
    Sharp,
    /// None of these.
    Spread,
}

impl Role {
    /// The roles that a summary lists, in that order.
    const REMARKABLE: [Self; 7] = [
        Self::PreviousToken,
        Self::DuplicateToken,
        Self::Diagonal,
        Self::Sharp,
        Self::Sink,
        Self::OneKey,
        Self::Uniform,
    ];

    /// A head of this role in one or two words: `sink`, `previous token`.
    ///
    /// ```
    /// use regard_trace::diagnose::report::Role;
    ///
    /// assert_eq!(Role::PreviousToken.name(), "previous token");
    /// ```
    pub fn name(self) -> &'static str {
        match self {
            Self::NoChoice => "no choice",
            Self::Uniform => "uniform",
            Self::Sink => "sink",
            Self::OneKey => "one key",
            Self::PreviousToken => "previous token",
            Self::DuplicateToken => "duplicate token",
            Self::Diagonal => "diagonal",
            Self::Sharp => "one at a time",
            Self::Spread => "spread out",
        }
    }

    /// What several heads of this role are called.
    fn plural(self) -> &'static str {
        match self {
            Self::NoChoice => "without a choice between keys",
            Self::Uniform => {
                "uniform, about the same weight on every key (share of the largest entropy)"
            }
            Self::Sink => "sinks, most weight on the first or a special token whatever the query",
            Self::OneKey => "on one key, whatever the query",
            Self::PreviousToken => "previous-token heads, most weight on the token before",
            Self::DuplicateToken => {
                "duplicate-token heads, most weight on earlier tokens of the same text"
            }
            Self::Diagonal => "along the diagonal",
            Self::Sharp => "one key at a time",
            Self::Spread => "spread out",
        }
    }

    /// The role of a head, and how much of one it is, 0 to 1. `head` is one of [`heads`] of `map`.
    pub fn of(map: &AttentionMap, head: &HeadDiagnostics) -> (Self, f64) {
        let at_least = |measure: Option<f64>, bound: f64| measure.filter(|&value| value >= bound);
        if head.effective_keys.is_none() {
            return (Self::NoChoice, 0.0);
        }
        if let Some(share) = at_least(head.uniformity, UNIFORM) {
            return (Self::Uniform, share);
        }
        if let Some((key, weight)) = head.top_key.filter(|&(_, weight)| weight >= DOMINANT)
            && head.rows > 1
        {
            return match key == 0 || map.keys().is_special(key) {
                true => (Self::Sink, weight),
                false => (Self::OneKey, weight),
            };
        }
        for (role, measure, bound) in [
            (Self::PreviousToken, head.previous_token, DOMINANT),
            (Self::DuplicateToken, head.duplicate_token, DOMINANT),
            (Self::Diagonal, head.diagonality, DIAGONAL),
            (Self::Sharp, head.largest_weight, SHARP),
        ] {
            if let Some(value) = at_least(measure, bound) {
                return (role, value);
            }
        }
        (Self::Spread, 0.0)
    }
}

fn verdict(map: &AttentionMap, head: &HeadDiagnostics) -> String {
    let (role, value) = Role::of(map, head);
    let keys = head.effective_keys.unwrap_or_default();
    let span = head.effective_span.unwrap_or_default();
    let label = || {
        let key = head.top_key.map_or(0, |(key, _)| key);
        map.keys().label(key)
    };
    let share = percent(value);
    let how = match role {
        Role::NoChoice => return "no query had a choice between keys".to_owned(),
        Role::Uniform => {
            return format!("uniform over about {keys:.0} keys: no key is preferred");
        }
        Role::Sink => return format!("{share} on `{}`, a sink", label()),
        Role::OneKey => return format!("{share} on `{}`, whatever the query", label()),
        Role::PreviousToken => {
            return format!("{share} on the token before, a previous-token head");
        }
        Role::DuplicateToken => {
            return format!("{share} on earlier tokens of the same text, a duplicate-token head");
        }
        Role::Diagonal if head.largest_weight.is_some_and(|weight| weight >= SHARP) => {
            "one key at a time, along the diagonal"
        }
        Role::Diagonal => "along the diagonal",
        Role::Sharp => "one key at a time",
        Role::Spread => "spread out",
    };
    format!("{how}; it looks at about {keys:.1} keys, 90 % within {span:.1} neighbours")
}

/// What is remarkable about a trace, line by line: the maps there are, the one most like an alignment, the heads that have a
/// [`Role`], the most pronounced first, and the source words that cross-attention hardly looked at. Empty without maps.
///
/// ```
/// use regard_trace::{AttentionMap, Kind, Tokens, Trace, diagnose::report};
///
/// let words = Tokens::from_words("one two three");
/// #[rustfmt::skip]
/// let weights = vec![1.0, 0.0, 0.0,
///                    0.8, 0.1, 0.1,
///                    0.1, 0.8, 0.1];
/// let map = AttentionMap::new(Kind::EncoderSelf, words.clone(), words, 1, weights)?;
/// let trace = Trace::new("m", "one two three", "").with_map(map);
/// assert_eq!(report::summary(&trace), [
///     "1 head in 1 map: encoder.self",
///     "previous-token heads, most weight on the token before:",
///     "  encoder.self layer 1 head 1: 80 %",
/// ]);
/// # Ok::<(), regard_trace::TraceError>(())
/// ```
pub fn summary(trace: &Trace) -> Vec<String> {
    /// Heads named of each role.
    const NAMED: usize = 4;
    let measured: Vec<(&AttentionMap, Vec<HeadDiagnostics>)> =
        trace.maps.iter().map(|map| (map, heads(map))).collect();
    if measured.is_empty() {
        return vec![];
    }
    let all: usize = trace.maps.iter().map(AttentionMap::heads).sum();
    let mut lines = vec![format!(
        "{} in {}: {}",
        counted(all, "head"),
        counted(trace.maps.len(), "map"),
        names(trace)
    )];
    let layers = trace.maps.iter().filter(|map| map.kind() == Kind::Cross);
    if let (Some(map), 2..) = (trace.most_aligned(), layers.count()) {
        lines.push(format!(
            "most like an alignment of words: {} layer {} ({:.2} of 1)",
            map.name(),
            map.layer() + 1,
            map.alignedness()
        ));
    }
    let mut told = 0;
    for role in Role::REMARKABLE {
        let mut found: Vec<(f64, String)> = vec![];
        for (map, heads) in &measured {
            for head in heads {
                let (is, value) = Role::of(map, head);
                if is != role {
                    continue;
                }
                let share = match (role, head.top_key) {
                    (Role::Sink | Role::OneKey, Some((key, _))) => {
                        format!("{} on `{}`", percent(value), map.keys().label(key))
                    }
                    (Role::Diagonal, _) => format!("{value:.2} of 1"),
                    _ => percent(value),
                };
                let (layer, head) = (map.layer() + 1, head.head + 1);
                found.push((
                    value,
                    format!("  {} layer {layer} head {head}: {share}", map.name()),
                ));
            }
        }
        if found.is_empty() {
            continue;
        }
        told += found.len();
        found.sort_by(|a, b| b.0.total_cmp(&a.0));
        lines.push(format!("{}:", role.plural()));
        let more = found.len().saturating_sub(NAMED);
        lines.extend(found.into_iter().take(NAMED).map(|(_, line)| line));
        if more > 0 {
            lines.push(format!("  and {more} more"));
        }
    }
    let without = count(&measured, Role::NoChoice);
    for (role, count) in [
        (Role::NoChoice, without),
        (Role::Spread, all - told - without),
    ] {
        let what = if told == 0 { "head" } else { "other head" };
        if count > 0 {
            lines.push(format!("{}: {}", role.plural(), counted(count, what)));
        }
        told += count;
    }
    lines.extend(unread(&measured));
    lines
}

/// How many heads have a role.
fn count(measured: &[(&AttentionMap, Vec<HeadDiagnostics>)], role: Role) -> usize {
    let heads = measured
        .iter()
        .flat_map(|(map, heads)| heads.iter().map(move |head| Role::of(map, head).0));
    heads.filter(|&is| is == role).count()
}

/// The source words that no head of cross-attention looked at.
fn unread(measured: &[(&AttentionMap, Vec<HeadDiagnostics>)]) -> Option<String> {
    let mut cross = measured.iter().filter(|(map, _)| map.kind() == Kind::Cross);
    let (first, heads) = cross.next()?;
    let mut keys = uncovered(first, heads);
    for (map, heads) in cross {
        // In ascending order.
        let of_map = uncovered(map, heads);
        keys.retain(|key| of_map.binary_search(key).is_ok());
    }
    (!keys.is_empty()).then(|| format!("hardly looked at by the decoder: {}", named(first, &keys)))
}

/// `decoder.cross (4 layers), encoder.self`: the names of a trace's maps, each once.
fn names(trace: &Trace) -> String {
    let mut names: Vec<(&str, usize)> = vec![];
    for map in &trace.maps {
        match names.iter_mut().find(|(name, _)| *name == map.name()) {
            Some((_, count)) => *count += 1,
            None => names.push((map.name(), 1)),
        }
    }
    let names = names.iter().map(|&(name, count)| match count {
        1 => name.to_owned(),
        _ => format!("{name} ({count} layers)"),
    });
    names.collect::<Vec<_>>().join(", ")
}

/// `1 head`, `2 heads`.
fn counted(count: usize, what: &str) -> String {
    let plural = if count == 1 { "" } else { "s" };
    format!("{count} {what}{plural}")
}

/// The keys that were hardly looked at by any query of any head, special tokens aside: a translation
/// may have left them out.
pub fn uncovered(map: &AttentionMap, heads: &[HeadDiagnostics]) -> Vec<usize> {
    (0..map.keys().len())
        .filter(|&key| !map.keys().is_special(key))
        .filter(|&key| heads.iter().all(|head| head.column_sums[key] < UNCOVERED))
        .collect()
}

/// Keys of a map by their labels: all words, and of what is no word, such as cells of an image, the first ten.
pub fn named(map: &AttentionMap, keys: &[usize]) -> String {
    const NAMED: usize = 10;
    let most = match map.keys().tokens() {
        Some(_) => keys.len(),
        None => NAMED,
    };
    let names = keys.iter().take(most);
    let names: Vec<String> = names
        .map(|&key| format!("`{}`", map.keys().label(key)))
        .collect();
    match keys.len() - names.len() {
        0 => names.join(", "),
        more => format!("{} and {more} more", names.join(", ")),
    }
}

/// `0.92` as `92 %`.
fn percent(share: f64) -> String {
    format!("{:.0} %", 100.0 * share)
}
