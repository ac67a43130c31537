//! The results, as text and as JSON.

use std::fmt::Write as _;

use regard_evaluate::{
    Aer, ExactMatch, LengthTable, PairedBootstrap, Perplexity, Score, Signature,
};
use serde_json::{Value, json};

use super::{data::Data, intervals::Unit, systems::System};
use crate::{arguments::Evaluate, failure::Failure};

/// The fewest decimals of an alignment error rate, which is between 0 and 1.
const AER_DIGITS: usize = 4;

/// One system's scores.
pub struct Judged {
    /// The system.
    pub name: String,
    /// One for each metric.
    pub scores: Vec<Score>,
    /// Lines that equal the first reference; counted for models.
    exact: Option<ExactMatch>,
    lines: usize,
    perplexity: Option<Perplexity>,
    /// The alignment error rate of its attention, if the true alignment is known.
    pub alignment: Option<Aer>,
}

/// Two systems on the same resamples.
pub struct Comparison {
    /// The metric.
    pub metric: String,
    /// Its settings, if it has some.
    pub signature: Option<Signature>,
    /// How its scores are printed.
    pub unit: Unit,
    /// The first system.
    pub baseline: String,
    /// The system that is compared with it.
    pub system: String,
    /// The result of the paired bootstrap.
    pub result: PairedBootstrap,
}

/// All results.
pub struct Report {
    /// System by system.
    pub systems: Vec<Judged>,
    /// The first system against each other one.
    pub comparisons: Vec<Comparison>,
    /// One for each metric, if asked for.
    pub by_length: Vec<LengthTable>,
}

impl Judged {
    /// The results that need no metric: perplexity, alignment, exact lines. Scores are added later.
    ///
    /// # Errors
    /// None that is known: system and data have the same number of lines, which was checked when they were read.
    pub fn new(system: &System, data: &Data) -> Result<Self, Failure> {
        let exact = || ExactMatch::of(&system.lines, &data.references[0]);
        let links = system.links.as_deref().zip(data.gold.as_deref());
        Ok(Self {
            name: system.name.clone(),
            scores: vec![],
            exact: system.is_model.then(exact).transpose()?,
            lines: system.lines.len(),
            perplexity: system.perplexity,
            alignment: links
                .map(|(found, gold)| Aer::of(found, gold))
                .transpose()?,
        })
    }

    fn text(&self, width: usize, prefix: &str) -> String {
        let mut text = String::new();
        let mut line = |line: String| {
            // Writing to a string cannot fail.
            let _ = writeln!(text, "{prefix}{line}");
        };
        self.scores.iter().for_each(|score| line(score.line(width)));
        if let Some(exact) = self.exact {
            line(exact.to_string());
        }
        if let Some(perplexity) = &self.perplexity {
            line(perplexity.to_string());
        }
        if let Some(alignment) = &self.alignment {
            let digits = width.max(AER_DIGITS);
            line(format!(
                "{alignment:.digits$}, by the attention of its translations"
            ));
        }
        text
    }

    /// The system's results as JSON.
    ///
    /// # Errors
    /// None that is known: numbers and strings always have a JSON form.
    pub fn json(&self, width: usize) -> Result<Value, Failure> {
        let scores = self
            .scores
            .iter()
            .map(|score| serde_json::from_str(&score.json(width)));
        let scores: Vec<Value> = scores.collect::<Result<_, _>>()?;
        Ok(json!({
            "name": self.name,
            "lines": self.lines,
            "scores": scores,
            "exact": self.exact.map(|exact| exact.exact),
            "perplexity": self.perplexity.map(|perplexity| json!({
                "value": perplexity.value(),
                "conditioning": perplexity.conditioning(),
                "tokens": perplexity.tokens(),
            })),
            "alignment": self.alignment.as_ref().map(aer_json),
        }))
    }
}

impl Comparison {
    /// The two scores, the interval of their difference, and the verdict, as a line.
    pub fn text(&self) -> String {
        let Self {
            metric,
            signature,
            unit,
            baseline,
            system,
            result,
        } = self;
        let Unit {
            factor,
            decimals,
            sign,
        } = *unit;
        let settings = match signature {
            Some(signature) => format!("|{signature}"),
            None => ":".to_owned(),
        };
        let interval = &result.difference_confidence;
        let difference = [result.difference(), interval.lower, interval.upper];
        let [difference, low, high] = difference.map(|points| factor * points);
        let [first, second] = [result.baseline, result.system].map(|score| factor * score);
        let verdict = match result.is_significant() {
            true => "significant",
            false => "not significant",
        };
        format!(
            "{metric}{settings} {baseline} = {first:.decimals$}{sign}, {system} = {second:.decimals$}{sign}, difference \
             {difference:+.decimals$} (95 % {low:+.decimals$} to {high:+.decimals$}), p = {:.4}: {verdict}; {system} is higher in \
             {:.1} % of resamples\n",
            result.p_value,
            100.0 * result.wins,
        )
    }

    /// The comparison as JSON.
    ///
    /// # Errors
    /// None that is known: numbers and strings always have a JSON form.
    pub fn json(&self) -> Result<Value, Failure> {
        Ok(json!({
            "metric": self.metric,
            "signature": self.signature,
            "baseline": self.baseline,
            "system": self.system,
            "difference": self.result.difference(),
            "result": serde_json::to_value(self.result)?,
        }))
    }
}

impl Report {
    /// A report on systems.
    pub fn new(systems: Vec<Judged>) -> Self {
        Self {
            systems,
            comparisons: vec![],
            by_length: vec![],
        }
    }

    /// The text to print.
    ///
    /// # Errors
    /// None that is known: numbers and strings always have a JSON form.
    pub fn print(&self, options: &Evaluate) -> Result<String, Failure> {
        let width = usize::from(options.digits);
        if options.json {
            return self.json(width);
        }
        let scores = || self.systems.iter().flat_map(|system| &system.scores);
        if options.score_only {
            return Ok(scores().map(|score| score.number(width) + "\n").collect());
        }
        let mut text = String::new();
        for system in &self.systems {
            let prefix = match self.systems.len() {
                1 => String::new(),
                _ => format!("{}: ", system.name),
            };
            text.push_str(&system.text(width, &prefix));
        }
        self.comparisons
            .iter()
            .for_each(|comparison| text.push_str(&comparison.text()));
        for table in &self.by_length {
            // Writing to a string cannot fail.
            let _ = write!(text, "\n{table}");
        }
        Ok(text)
    }

    fn json(&self, width: usize) -> Result<String, Failure> {
        let plain = self.comparisons.is_empty() && self.by_length.is_empty();
        if let [system] = self.systems.as_slice()
            && system.exact.is_none()
            && plain
        {
            let scores: Vec<String> = system
                .scores
                .iter()
                .map(|score| score.json(width))
                .collect();
            return Ok(match scores.as_slice() {
                [single] => format!("{single}\n"),
                several => format!("[\n{}\n]\n", several.join(",\n")),
            });
        }
        let systems: Vec<Value> = self
            .systems
            .iter()
            .map(|system| system.json(width))
            .collect::<Result<_, _>>()?;
        let comparisons: Vec<Value> = self
            .comparisons
            .iter()
            .map(Comparison::json)
            .collect::<Result<_, _>>()?;
        let all = json!({
            "systems": systems,
            "bootstrap": comparisons,
            "by_length": serde_json::to_value(&self.by_length)?,
        });
        Ok(format!("{}\n", serde_json::to_string_pretty(&all)?))
    }
}

/// An alignment error rate alone.
///
/// # Errors
/// None that is known: numbers always have a JSON form.
pub fn alignment(aer: &Aer, options: &Evaluate) -> Result<String, Failure> {
    let digits = usize::from(options.digits).max(AER_DIGITS);
    Ok(match (options.json, options.score_only) {
        (true, _) => format!("{}\n", serde_json::to_string_pretty(&aer_json(aer))?),
        (_, true) => format!("{:.digits$}\n", aer.error_rate()),
        _ => format!("{aer:.digits$}\n"),
    })
}

fn aer_json(aer: &Aer) -> Value {
    json!({
        "error_rate": aer.error_rate(),
        "precision": aer.precision(),
        "recall": aer.recall(),
        "found": aer.found,
        "sure": aer.sure,
        "found_sure": aer.found_sure,
        "found_possible": aer.found_possible,
    })
}
