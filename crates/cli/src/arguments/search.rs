//! How translations are searched for.

use std::{fmt::Display, ops::RangeInclusive, str::FromStr};

use clap::{Args, ValueEnum};
use regard_config::LARGEST_SIZE;
use regard_evaluate::MAX_RESAMPLES;
use regard_train::{
    recipe::{LongSource, Translation},
    text_to_text::WIDEST_BEAM,
};

/// Settings of beam search; those that are not given are taken from the model's recipe.
#[derive(Debug, Default, Args)]
pub struct Search {
    /// Hypotheses kept at every step; 1 is greedy search
    #[arg(long, value_name = "N", value_parser = beam, help_heading = "Search")]
    beam: Option<usize>,
    /// Exponent A of the length penalty ((5 + length) / 6)^A, of pretrained models length^A: larger prefers longer translations;
    /// 0 ranks by probability alone, under which even the empty translation may win
    #[arg(long, value_name = "A", value_parser = not_negative, help_heading = "Search")]
    length_penalty: Option<f64>,
    /// Weight of the coverage penalty (Wu et al. 2016); larger leaves fewer words untranslated
    #[arg(long, value_name = "B", value_parser = not_negative, help_heading = "Search")]
    coverage_penalty: Option<f64>,
    /// Forbid any run of N tokens to occur twice; 0 allows all
    #[arg(long, value_name = "N", value_parser = whole::<usize>, help_heading = "Search")]
    no_repeat_ngram: Option<usize>,
    /// Most tokens of a translation
    #[arg(long, value_name = "N", value_parser = at_least_one, help_heading = "Search")]
    max_length: Option<usize>,
    /// Most tokens of a source line
    #[arg(long, value_name = "N", value_parser = at_least_one, help_heading = "Search")]
    max_source_tokens: Option<usize>,
    /// What to do with a longer source line: cut it with a warning, or stop with an error
    #[arg(long, value_name = "WHAT", help_heading = "Search")]
    long_lines: Option<LongLines>,
    /// Sentences translated together; changes the speed, not the result
    #[arg(long, value_name = "N", value_parser = within(1..=LARGEST_SIZE), help_heading = "Search")]
    batch_sentences: Option<usize>,
}

/// What happens to a source line that is too long.
#[derive(Debug, Clone, Copy, ValueEnum)]
enum LongLines {
    /// Its start is translated, with a warning.
    Cut,
    /// It is an error.
    Error,
}

impl Search {
    /// The most tokens of a translation, if the command line gives it.
    pub fn max_length(&self) -> Option<usize> {
        self.max_length
    }

    /// The weight of the coverage penalty, if the command line gives it.
    pub fn coverage_penalty(&self) -> Option<f64> {
        self.coverage_penalty
    }

    /// The first of the options about the lines of a source that the command line gives.
    pub fn of_source(&self) -> Option<&'static str> {
        match (self.max_source_tokens, self.long_lines) {
            (Some(_), _) => Some("--max-source-tokens"),
            (None, Some(_)) => Some("--long-lines"),
            (None, None) => None,
        }
    }

    /// The first of these options that the command line gives.
    pub fn given(&self) -> Option<&'static str> {
        let all = [
            ("--beam", self.beam.is_some()),
            ("--length-penalty", self.length_penalty.is_some()),
            ("--coverage-penalty", self.coverage_penalty.is_some()),
            ("--no-repeat-ngram", self.no_repeat_ngram.is_some()),
            ("--max-length", self.max_length.is_some()),
            ("--max-source-tokens", self.max_source_tokens.is_some()),
            ("--long-lines", self.long_lines.is_some()),
            ("--batch-sentences", self.batch_sentences.is_some()),
        ];
        let mut given = all.into_iter().filter(|(_, given)| *given);
        given.next().map(|(option, _)| option)
    }

    /// `settings` with those that the command line gives replaced. One translation a sentence.
    pub fn over(&self, settings: &Translation) -> Translation {
        let mut settings = settings.clone();
        settings.n_best = 1;
        let replace = |value: &mut usize, by: Option<usize>| *value = by.unwrap_or(*value);
        replace(&mut settings.beam, self.beam);
        replace(&mut settings.no_repeat_ngram, self.no_repeat_ngram);
        replace(&mut settings.max_length.absolute, self.max_length);
        replace(&mut settings.max_source_tokens, self.max_source_tokens);
        replace(&mut settings.batch_sentences, self.batch_sentences);
        if let Some(penalty) = self.length_penalty {
            settings.length_penalty = penalty;
        }
        if let Some(penalty) = self.coverage_penalty {
            settings.coverage_penalty = penalty;
        }
        match self.long_lines {
            Some(LongLines::Cut) => settings.long_lines = LongSource::Cut,
            Some(LongLines::Error) => settings.long_lines = LongSource::Error,
            None => {}
        }
        settings
    }
}

/// A width of the beam.
pub fn beam(text: &str) -> Result<usize, String> {
    within(1..=WIDEST_BEAM)(text)
}

/// A number of at least 1.
pub fn at_least_one(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(number) if number > 0 => Ok(number),
        _ => Err("expected a whole number of at least 1".to_owned()),
    }
}

/// A number of at least 0.
pub fn whole<T: FromStr>(text: &str) -> Result<T, String> {
    let expected = |_| "expected a whole number of at least 0".to_owned();
    text.parse::<T>().map_err(expected)
}

/// A number of `range`.
pub fn within<T>(
    range: RangeInclusive<T>,
) -> impl Fn(&str) -> Result<T, String> + Clone + Send + Sync + 'static
where
    T: FromStr + PartialOrd + Display + Clone + Send + Sync + 'static,
{
    move |text: &str| match text.parse::<T>() {
        Ok(number) if range.contains(&number) => Ok(number),
        _ => {
            let (first, last) = (range.start(), range.end());
            Err(format!("expected a whole number from {first} to {last}"))
        }
    }
}

/// A number of resamples, as many as [`Bootstrap`](regard_evaluate::Bootstrap) draws.
pub fn resamples(text: &str) -> Result<usize, String> {
    within(1..=MAX_RESAMPLES)(text)
}

/// A finite number of at least 0.
pub fn not_negative(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(number) if number >= 0.0 && number.is_finite() => Ok(number),
        _ => Err("expected a number of at least 0, such as 0.6".to_owned()),
    }
}
