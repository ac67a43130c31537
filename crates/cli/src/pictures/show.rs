//! What a model looked at, beside its results.

use std::path::Path;

use regard_trace::{AttentionMap, Trace};
use serde_json::{Value, json};

use super::{Figure, Kept, Screen, expect_drawn, expect_figure, is_blank, shown, warn_of_nothing};
use crate::{arguments::Show, failure::Failure, output::Output};

/// What models looked at, beside their results: on standard output, as files, or as JSON.
pub struct Shown<'a> {
    screen: Option<Screen>,
    weights: bool,
    kept: Kept<'a>,
    quiet: bool,
    /// Whether some trace had a map.
    attended: bool,
    /// The model of a trace that had none, though there was something to look at.
    unattended: Option<String>,
}

impl<'a> Shown<'a> {
    /// As the options ask, of `model`.
    ///
    /// # Errors
    /// As [`Kept::new`]'s.
    pub fn new(show: &'a Show, model: Option<impl AsRef<Path>>) -> Result<Self, Failure> {
        expect_drawn(&show.pictures, show.attention && !show.json, "--attention")?;
        expect_figure(&show.pictures, show.over_image)?;
        let screen = || Screen::detect(&show.pictures);
        Ok(Self {
            screen: (show.attention && !show.json).then(screen),
            weights: show.attention && show.json,
            kept: Kept {
                over_image: show.over_image,
                ..Kept::new(&show.pictures, &show.trace, model)?
            },
            quiet: show.quiet,
            attended: false,
            unattended: None,
        })
    }

    /// Whether traces are needed.
    pub fn is_wanted(&self) -> bool {
        self.screen.is_some() || self.weights || self.kept.is_wanted()
    }

    /// Refuses a choice of maps that a trace of the same model does not have.
    ///
    /// # Errors
    /// A usage error that says which there are.
    pub fn expect_choice(&self, trace: &Trace) -> Result<(), Failure> {
        if self.screen.is_some() || self.kept.files.draws_chosen() {
            Figure::of(trace, self.kept.files.choice())?;
        }
        Ok(())
    }

    /// Prints a trace, and keeps it for files.
    ///
    /// # Errors
    /// A map that the trace does not have, more traces than anyone can look at.
    pub fn push(&mut self, out: &mut Output, line: usize, trace: &Trace) -> Result<(), Failure> {
        if let Some(screen) = &self.screen {
            out.text(&screen.draw(trace)?)?;
        }
        match trace.maps.is_empty() {
            false => self.attended = true,
            true if is_blank(trace) => {}
            true => self.unattended = Some(trace.model.clone()),
        }
        self.kept.push(line, 1, trace)
    }

    /// Its maps as JSON, `weights[head][query][key]`, if they are wanted so.
    pub fn json(&self, trace: &Trace) -> Option<Value> {
        let map = |map: &AttentionMap| {
            let [heads, queries, _] = map.shape();
            let rows = |head| -> Vec<&[f32]> { (0..queries).map(|q| map.row(head, q)).collect() };
            json!({
                "name": map.name(),
                "layer": map.layer(),
                "queries": map.queries().labels(),
                "keys": map.keys().labels(),
                "weights": (0..heads).map(rows).collect::<Vec<_>>(),
            })
        };
        let trace = shown(trace, self.kept.files.subwords);
        self.weights
            .then(|| trace.maps.iter().map(map).collect::<Vec<_>>().into())
    }

    /// As [`Kept::expect_apart`].
    ///
    /// # Errors
    /// As [`Kept::expect_apart`]'s.
    pub fn expect_apart<P: AsRef<Path>>(
        &self,
        used: impl IntoIterator<Item = P>,
        several: bool,
    ) -> Result<(), Failure> {
        self.kept.expect_apart(used, several)
    }

    /// Writes the files, and warns if the model looked at nothing that could be shown.
    ///
    /// # Errors
    /// Nothing to draw, or a file that cannot be written.
    pub fn write(&self) -> Result<(), Failure> {
        self.kept.write()?;
        if let Some(model) = &self.unattended
            && self.is_wanted()
            && !self.attended
            && !self.quiet
        {
            warn_of_nothing(model);
        }
        Ok(())
    }

    /// As [`Kept::end`].
    ///
    /// # Errors
    /// As [`Kept::end`]'s.
    pub fn end(&self, error: impl Into<Failure>) -> Result<(), Failure> {
        self.kept.end(error.into())
    }
}
