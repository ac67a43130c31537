//! The printed forms of a score: sacrebleu's line, its JSON, and its signature.
//!
//! A BLEU without its settings is worth little: tokenisation and case move it by points. So each
//! score carries its [`Signature`], in sacrebleu's fields and order. Only the version differs:
//! `version:2.6.0+regard.0.1.0` says *the definition of sacrebleu 2.6.0, computed by regard 0.1.0*
//! (a PEP 440 local version, which sorts and matches as 2.6.0). All other fields may be compared
//! with a sacrebleu signature letter by letter.
//!
//! ```
//! use regard_evaluate::{Bleu, Tokenizer};
//! let bleu = Bleu { lowercase: true, tokenizer: Tokenizer::International, ..Bleu::default() };
//! let signature = bleu.corpus(&["Hallo Welt !"], &[["hallo welt!"]])?.signature;
//! assert_eq!(
//!     signature.to_string(),
//!     format!("nrefs:1|case:lc|eff:no|tok:intl|smooth:exp|version:2.6.0+regard.{}", env!("CARGO_PKG_VERSION")),
//! );
//! assert!(signature.short().starts_with("#:1|c:lc|e:no|tok:intl|s:exp|v:2.6.0"));
//! # Ok::<(), regard_evaluate::EvaluateError>(())
//! ```

use std::fmt;
use std::str::FromStr;

use serde::ser::SerializeMap;
use serde::{Deserialize, Serialize, Serializer};
use serde_json::ser::{PrettyFormatter, Serializer as JsonSerializer};

use crate::EvaluateError;

/// The value of a signature's `version` field: the sacrebleu release whose numbers are reproduced,
/// then our own version.
pub const VERSION: &str = concat!("2.6.0+regard.", env!("CARGO_PKG_VERSION"));

/// The settings behind a score, as `key:value` fields joined by `|`; serialised as that string.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct Signature {
    fields: Vec<(String, String)>,
}

impl Signature {
    /// `nrefs`, then the metric's own fields in order, then `version`.
    pub(crate) fn new(references: usize, fields: &[(&str, String)]) -> Self {
        let own = fields
            .iter()
            .map(|(key, value)| ((*key).to_owned(), value.clone()));
        let fields = std::iter::once(("nrefs".to_owned(), references.to_string()))
            .chain(own)
            .chain([("version".to_owned(), VERSION.to_owned())])
            .collect();
        Self { fields }
    }

    /// The same signature with the fields of a bootstrap: `bs` and `seed` follow `nrefs`.
    pub fn with_bootstrap(&self, resamples: usize, seed: u64) -> Self {
        let mut fields = self.fields.clone();
        fields.retain(|(key, _)| key != "bs" && key != "seed");
        let after = fields
            .iter()
            .position(|(key, _)| key == "nrefs")
            .map_or(0, |at| at + 1);
        let added = [("bs", resamples.to_string()), ("seed", seed.to_string())];
        fields.splice(
            after..after,
            added.map(|(key, value)| (key.to_owned(), value)),
        );
        Self { fields }
    }

    /// The value of one field, such as `tok`.
    pub fn get(&self, key: &str) -> Option<&str> {
        self.fields
            .iter()
            .find(|(name, _)| name == key)
            .map(|(_, value)| value.as_str())
    }

    /// The fields in order.
    pub fn fields(&self) -> impl Iterator<Item = (&str, &str)> {
        self.fields
            .iter()
            .map(|(key, value)| (key.as_str(), value.as_str()))
    }

    /// sacrebleu's `--short` form, with abbreviated keys.
    pub fn short(&self) -> String {
        let metric_has_spaces = self.get("space").is_some();
        self.write(|key| match key {
            "version" => "v",
            "nrefs" => "#",
            "seed" => "rs",
            "case" => "c",
            "eff" => "e",
            "smooth" if !metric_has_spaces => "s",
            "space" => "s",
            other => other,
        })
    }

    fn write<'a>(&'a self, name: impl Fn(&'a str) -> &'a str) -> String {
        let fields: Vec<String> = self
            .fields()
            .map(|(key, value)| format!("{}:{value}", name(key)))
            .collect();
        fields.join("|")
    }
}

impl fmt::Display for Signature {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.pad(&self.write(|key| key))
    }
}

impl From<Signature> for String {
    fn from(signature: Signature) -> Self {
        signature.to_string()
    }
}

impl FromStr for Signature {
    type Err = EvaluateError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let fields = text.split('|').map(|field| {
            field
                .split_once(':')
                .map(|(key, value)| (key.to_owned(), value.to_owned()))
        });
        fields
            .collect::<Option<Vec<_>>>()
            .map(|fields| Self { fields })
            .ok_or_else(|| EvaluateError::InvalidOption {
                option: "a signature",
                given: text.to_owned(),
                expected: "`key:value` fields joined by `|`".to_owned(),
            })
    }
}

impl TryFrom<String> for Signature {
    type Error = EvaluateError;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        text.parse()
    }
}

/// A 95 % interval from bootstrap resamples of the segments (see [`crate::Bootstrap`]).
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Confidence {
    /// Mean score of the resamples.
    pub mean: f64,
    /// Half the width of the interval, `(upper - lower) / 2`: what sacrebleu prints after `±`.
    pub half_width: f64,
    /// The 2.5 % quantile of the resampled scores.
    pub lower: f64,
    /// The 97.5 % quantile of the resampled scores.
    pub upper: f64,
    /// How many resamples were drawn.
    pub resamples: usize,
    /// The seed of the generator.
    pub seed: u64,
}

/// Any metric's score with what must be printed beside it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Score {
    /// The metric, such as `BLEU` or `chrF2++`.
    pub name: String,
    /// The score, from 0 to 100, unrounded.
    pub score: f64,
    /// The settings.
    pub signature: Signature,
    /// The metric's details as sacrebleu prints them after the score; BLEU has some, chrF none.
    pub verbose: Option<String>,
    /// The interval, when a bootstrap was made.
    pub confidence: Option<Confidence>,
}

impl Score {
    /// The same score with an interval, which is named in its signature (`bs` and `seed`).
    pub fn with_confidence(self, confidence: Confidence) -> Self {
        let signature = self
            .signature
            .with_bootstrap(confidence.resamples, confidence.seed);
        Self {
            signature,
            confidence: Some(confidence),
            ..self
        }
    }

    /// The score alone with `width` decimals, and `(μ = .. ± ..)` when there is an interval:
    /// sacrebleu's `--score-only`.
    pub fn number(&self, width: usize) -> String {
        let number = format!("{:.width$}", self.score);
        match self.printed_confidence(width) {
            Some((_, _, text)) => format!("{number} ({text})"),
            None => number,
        }
    }

    /// sacrebleu's text line, `name|signature = score details`, with `width` decimals.
    pub fn line(&self, width: usize) -> String {
        let mut line = format!("{}|{} = {}", self.name, self.signature, self.number(width));
        if let Some(verbose) = &self.verbose {
            line.push(' ');
            line.push_str(verbose);
        }
        line
    }

    /// sacrebleu's JSON object (`--format json`), same keys in the same order and the same
    /// indentation, the score rounded to `width` decimals.
    pub fn json(&self, width: usize) -> String {
        let mut bytes = Vec::new();
        let mut serializer =
            JsonSerializer::with_formatter(&mut bytes, PrettyFormatter::with_indent(b" "));
        // Writing strings and finite numbers into memory cannot fail; if it did, the result would be
        // an empty string.
        match self.serialize_as_sacrebleu(&mut serializer, width) {
            Ok(()) => String::from_utf8(bytes).unwrap_or_default(),
            Err(_) => String::new(),
        }
    }

    fn serialize_as_sacrebleu<S: Serializer>(
        &self,
        serializer: S,
        width: usize,
    ) -> Result<S::Ok, S::Error> {
        let rounded = |text: &str| text.parse::<f64>().unwrap_or(f64::NAN);
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("name", &self.name)?;
        map.serialize_entry("score", &rounded(&format!("{:.width$}", self.score)))?;
        map.serialize_entry("signature", &self.signature)?;
        if let Some((mean, half_width, text)) = self.printed_confidence(width) {
            map.serialize_entry("confidence_mean", &rounded(&mean))?;
            map.serialize_entry("confidence_var", &rounded(&half_width))?;
            map.serialize_entry("confidence", &text)?;
        }
        if let Some(verbose) = &self.verbose {
            map.serialize_entry("verbose_score", verbose)?;
        }
        for (key, value) in self.signature.fields() {
            map.serialize_entry(key, value)?;
        }
        map.end()
    }

    /// Mean, half width and their text; sacrebleu prints none when the mean is 0.
    fn printed_confidence(&self, width: usize) -> Option<(String, String, String)> {
        let confidence = self.confidence.filter(|confidence| confidence.mean > 0.0)?;
        let mean = format!("{:.width$}", confidence.mean);
        let half_width = format!("{:.width$}", confidence.half_width);
        let text = format!("μ = {mean} ± {half_width}");
        Some((mean, half_width, text))
    }
}

impl fmt::Display for Score {
    /// The text line with two decimals.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.pad(&self.line(2))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ties_round_to_even_as_in_python() {
        let rounded: Vec<String> = [0.25, 0.35, 12.5, 13.5, 2.675]
            .iter()
            .map(|value| format!("{value:.1}"))
            .collect();
        assert_eq!(rounded, ["0.2", "0.3", "12.5", "13.5", "2.7"]);
        assert_eq!(format!("{:.0} {:.0}", 12.5, 13.5), "12 14");
    }

    #[test]
    fn signatures_parse_and_take_a_bootstrap() {
        let signature: Signature = "nrefs:2|case:mixed|version:2.6.0".parse().unwrap();
        let marked = signature.with_bootstrap(1000, 12345).with_bootstrap(10, 1);
        assert_eq!(
            marked.to_string(),
            "nrefs:2|bs:10|seed:1|case:mixed|version:2.6.0"
        );
        assert_eq!(marked.get("bs"), Some("10"));
        assert!("nonsense".parse::<Signature>().is_err());
        let json = serde_json::to_string(&signature).unwrap();
        assert_eq!(serde_json::from_str::<Signature>(&json).unwrap(), signature);
    }
}
