//! Scores of models that look at images, with the intervals and comparisons that a bootstrap over the images gives them.

use regard_evaluate::{Confidence, Looking, Ratio, Resampled};
use serde_json::{Value, json};

use super::{bootstrap, report::Comparison};
use crate::{arguments::Evaluate, failure::Failure};

/// How a score is printed.
#[derive(Debug, Clone, Copy)]
pub struct Unit {
    /// What it is multiplied by.
    pub factor: f64,
    /// Decimals in tables and comparisons.
    pub decimals: usize,
    /// What follows it.
    pub sign: &'static str,
}

impl Unit {
    /// A share, in percent.
    pub const PERCENT: Self = Self {
        factor: 100.0,
        decimals: 2,
        sign: " %",
    };

    /// As it is.
    pub const fn plain(decimals: usize) -> Self {
        Self {
            factor: 1.0,
            decimals,
            sign: "",
        }
    }
}

/// A score that any choice of the images has.
pub struct OfImages<'a> {
    /// Its key in JSON.
    pub key: &'static str,
    /// Its name in tables and comparisons; without one it is in neither.
    pub name: Option<&'static str>,
    /// How it is printed.
    pub unit: Unit,
    /// The score.
    pub score: Box<dyn Resampled + 'a>,
}

/// The score of this key and name.
pub fn of_images<'a>(
    key: &'static str,
    name: Option<&'static str>,
    unit: Unit,
    score: impl Resampled + 'a,
) -> OfImages<'a> {
    OfImages {
        key,
        name,
        unit,
        score: Box::new(score),
    }
}

/// Where a model looked in each image, at the pixels and at the boxes of objects.
pub fn looks(images: &[[Looking; 2]]) -> Vec<OfImages<'static>> {
    let at = |place: usize| images.iter().map(move |looks| &looks[place]);
    let share = |key, name, score: Ratio| of_images(key, name, Unit::PERCENT, score);
    vec![
        share("inside", Some("inside"), Looking::inside_of(at(0))),
        share("pointing", Some("pointing"), Looking::pointing_of(at(0))),
        share("inside_box", None, Looking::inside_of(at(1))),
        share("pointing_box", None, Looking::pointing_of(at(1))),
    ]
}

/// Intervals of scores.
#[derive(Debug, Default)]
pub struct Intervals(Vec<(&'static str, Unit, Confidence)>);

impl Intervals {
    /// Those of the scores that the images have.
    ///
    /// # Errors
    /// A number of resamples that cannot be drawn.
    pub fn of(scores: &[OfImages<'_>], options: &Evaluate) -> Result<Self, Failure> {
        let bootstrap = bootstrap(options);
        let mut all = vec![];
        for one in scores {
            if let Some(interval) = bootstrap.confidence_of(&*one.score)? {
                all.push((one.key, one.unit, interval));
            }
        }
        Ok(Self(all))
    }

    /// "93.40 to 96.20", of the score of this key.
    fn ends(&self, key: &str, decimals: usize) -> Option<String> {
        let (_, unit, interval) = self.0.iter().find(|(own, ..)| *own == key)?;
        let [low, high] = [interval.lower, interval.upper].map(|end| unit.factor * end);
        Some(format!("{low:.decimals$} to {high:.decimals$}"))
    }

    /// "95 % interval 93.40 to 96.20" between `before` and `after`; nothing if the score of this key has none.
    pub fn words(&self, key: &str, decimals: usize, [before, after]: [&str; 2]) -> String {
        self.ends(key, decimals).map_or_else(String::new, |ends| {
            format!("{before}95 % interval {ends}{after}")
        })
    }

    /// The ends of each by the keys of the scores.
    pub fn json(&self) -> Value {
        let all = self.0.iter();
        let all = all.map(|(key, _, interval)| {
            let ends = json!([interval.lower, interval.upper]);
            ((*key).to_owned(), ends)
        });
        Value::Object(all.collect())
    }

    /// Names of `scores`, and what stands below them in a table; without those that the images do not have.
    pub fn columns(&self, scores: &[OfImages<'_>]) -> Vec<(&'static str, String)> {
        let columns = scores.iter().filter_map(|one| {
            let Unit {
                factor,
                decimals,
                sign,
            } = one.unit;
            let (name, score) = (one.name?, factor * one.score.all()?);
            let ends = self.ends(one.key, decimals);
            let ends = ends.map_or_else(String::new, |ends| format!(" ({ends})"));
            Some((name, format!("{score:.decimals$}{sign}{ends}")))
        });
        columns.collect()
    }
}

/// How much a model looked at what was spoken of, in words.
pub fn looked(looking: &Looking, intervals: &Intervals) -> String {
    let Looking { looks, hits, .. } = looking;
    let [inside, best, pointing] =
        [looking.inside(), looking.best(), looking.pointing()].map(|share| 100.0 * share);
    let [of_inside, of_pointing] =
        ["inside", "pointing"].map(|key| intervals.words(key, 1, ["; ", ""]));
    format!(
        "weight inside the object {inside:.1} % (of at most {best:.1} %{of_inside}), pointing {pointing:.1} % ({hits} of {looks} \
         looks{of_pointing})"
    )
}

/// The same of the boxes of objects.
pub fn looked_at_boxes(looking: &Looking, intervals: &Intervals) -> String {
    let [inside, pointing] = [looking.inside(), looking.pointing()].map(|share| 100.0 * share);
    let [of_inside, of_pointing] =
        ["inside_box", "pointing_box"].map(|key| intervals.words(key, 1, [" (", ")"]));
    format!("weight inside {inside:.1} %{of_inside}, pointing {pointing:.1} %{of_pointing}")
}

/// The scores of the model of this place compared with those of the first model, on the same resamples of the images; nothing for the
/// first itself, and where the two have not as many images.
///
/// # Errors
/// A number of resamples that cannot be drawn.
pub fn compared(
    place: usize,
    first: &[OfImages<'_>],
    own: &[OfImages<'_>],
    options: &Evaluate,
) -> Result<Vec<Comparison>, Failure> {
    let mut all = vec![];
    if place == 0 {
        return Ok(all);
    }
    for system in own {
        let baseline = first.iter().find(|first| first.key == system.key);
        let (Some(name), Some(baseline)) = (system.name, baseline) else {
            continue;
        };
        let (baseline, score) = (&*baseline.score, &*system.score);
        if baseline.examples() != score.examples() {
            continue;
        }
        if let Some(result) = bootstrap(options).paired_of(baseline, score)? {
            all.push(Comparison {
                metric: name.to_owned(),
                signature: None,
                unit: system.unit,
                baseline: options.model[0].name.clone(),
                system: options.model[place].name.clone(),
                result,
            });
        }
    }
    Ok(all)
}
