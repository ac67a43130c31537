//! Progress on standard error: a moving line on a terminal, plain lines elsewhere.

mod training;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

pub use training::Training;

use crate::ranks;

/// Counts things on a terminal, with or without a known total.
pub struct Counter(ProgressBar);

impl Counter {
    /// A counter of `unit` without a total; it prints nothing unless `shown`.
    pub fn new(unit: &str, shown: bool) -> Self {
        Self::with_length(unit, None, shown)
    }

    /// A counter up to `length`.
    pub fn up_to(length: usize, unit: &str, shown: bool) -> Self {
        Self::with_length(unit, Some(length as u64), shown)
    }

    fn with_length(unit: &str, length: Option<u64>, shown: bool) -> Self {
        let target = match shown && ranks::is_first() {
            true => ProgressDrawTarget::stderr(),
            false => ProgressDrawTarget::hidden(),
        };
        let template = match length {
            Some(_) => format!(
                "{{wide_bar}} {{human_pos}} of {{human_len}} {unit}, {{per_sec}}, {{eta}} left"
            ),
            None => format!("{{human_pos}} {unit}, {{per_sec}}"),
        };
        let bar = ProgressBar::with_draw_target(length, target);
        // With a wrong template the bar would keep its default style.
        if let Ok(style) = ProgressStyle::with_template(&template) {
            bar.set_style(style);
        }
        Self(bar)
    }

    /// Sets the number that is done.
    pub fn set(&self, done: usize) {
        self.0.set_position(done as u64);
    }

    /// Removes the line, when everything is done.
    pub fn finish(&self) {
        self.0.finish_and_clear();
    }
}

impl Drop for Counter {
    fn drop(&mut self) {
        self.finish();
    }
}

/// Says on a terminal what is being done.
pub struct Status(ProgressBar);

impl Status {
    /// About `name`; it prints nothing unless `shown`.
    pub fn new(name: &str, shown: bool) -> Self {
        let target = match shown && ranks::is_first() {
            true => ProgressDrawTarget::stderr(),
            false => ProgressDrawTarget::hidden(),
        };
        let bar = ProgressBar::with_draw_target(None, target).with_prefix(name.to_owned());
        // With a wrong template the bar would keep its default style.
        if let Ok(style) = ProgressStyle::with_template("{prefix}: {wide_msg} {elapsed}") {
            bar.set_style(style);
        }
        Self(bar)
    }

    /// Sets what is being done.
    pub fn set(&self, what: &str) {
        self.0.set_message(what.to_owned());
        self.0.tick();
    }
}

impl Drop for Status {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}
