//! The progress of training.

use std::{
    io::{self, IsTerminal},
    time::{Duration, Instant},
};

use indicatif::{HumanDuration, ProgressBar, ProgressStyle};
use regard_train::learner::{
    Event, Quality, Reason, Started, Summary, TrainMetrics, ValidationMetrics, Vocabularies,
};

use regard_trace::diagnose::{LayerMeasures, layer::by_kind};

use crate::output;

/// The number of parts of the bar, which shows a share and not a count.
const PARTS: u64 = 1000;

/// Shows the events of training.
pub struct Training {
    bar: Option<ProgressBar>,
    started: Instant,
    limits: Limits,
    /// The share that was done when this session began, for the time left.
    done_before: Option<f64>,
    units: Units,
    /// What the last validation found, in words.
    last: Option<String>,
    /// The signature of BLEU, once it has been printed.
    signature: Option<String>,
}

/// What the numbers of a report mean.
#[derive(Clone, Copy)]
struct Units {
    /// What the speed counts.
    counted: &'static str,
    /// Whether the loss is a mean over words, which has a perplexity.
    of_words: bool,
}

/// When training ends at the latest.
#[derive(Default)]
struct Limits {
    updates: Option<u64>,
    seconds: Option<f64>,
}

impl Limits {
    /// How much is done, from 0 to 1.
    fn share(&self, step: u64, seconds: f64) -> Option<f64> {
        let by_updates = self.updates.map(|last| step as f64 / last.max(1) as f64);
        let by_time = self.seconds.map(|last| seconds / last);
        let share = by_updates.into_iter().chain(by_time).reduce(f64::max)?;
        Some(share.min(1.0))
    }
}

impl Training {
    /// Progress of a training of at most `minutes`; a bar if standard error is a terminal.
    pub fn new(minutes: Option<f64>) -> Self {
        let bar = io::stderr().is_terminal().then(|| {
            let bar = ProgressBar::new(PARTS);
            if let Ok(style) =
                ProgressStyle::with_template("{spinner} {bar:20} {percent:>3} % {wide_msg}")
            {
                bar.set_style(style);
            }
            bar.enable_steady_tick(Duration::from_millis(200));
            bar.set_message("reading data");
            bar
        });
        Self {
            bar,
            started: Instant::now(),
            limits: Limits {
                updates: None,
                seconds: minutes.map(|minutes| minutes * 60.0),
            },
            done_before: None,
            units: Units {
                counted: "tokens",
                of_words: false,
            },
            last: None,
            signature: None,
        }
    }

    /// Shows an event.
    pub fn show(&mut self, event: &Event) {
        match event {
            Event::Started(started) => {
                self.limits.updates = started.last_update;
                self.units = Units {
                    counted: started.counted,
                    of_words: started.of_words,
                };
                self.started = Instant::now();
                self.line(&describe(started));
                if let Some(bar) = &self.bar {
                    bar.set_message("the first updates");
                }
            }
            Event::Train(metrics) => self.train(metrics),
            Event::Validation(metrics) => {
                let loss = || format!("validation loss {:.4}", metrics.loss);
                self.last = Some(match metrics.quality {
                    Quality::Likelihood { .. } => loss(),
                    Quality::Answers { accuracy, .. } => share("accuracy", accuracy),
                    _ => quality(&metrics.quality).unwrap_or_else(loss),
                });
                if let Quality::Bleu { signature, .. } = &metrics.quality
                    && self.signature.as_ref() != Some(signature)
                {
                    self.line(&format!("BLEU is {signature}"));
                    self.signature = Some(signature.clone());
                }
                self.line(&validation("validation", metrics));
                self.lines(&attention(metrics));
            }
            Event::Saved { .. } => {}
            Event::Averaged {
                checkpoints,
                taken,
                validation: judged,
            } => {
                let verdict = match taken {
                    true => "taken as the final model",
                    false => "not taken, the best checkpoint is better",
                };
                self.line(&format!(
                    "average of the last {checkpoints} checkpoints: {verdict}"
                ));
                if let Some(metrics) = judged {
                    self.line(&validation("  its validation", metrics));
                    self.lines(&attention(metrics));
                }
            }
            Event::Finished(summary) => {
                self.clear();
                output::say(&ending(summary));
            }
        }
    }

    /// Removes the bar.
    pub fn clear(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }

    fn train(&mut self, metrics: &TrainMetrics) {
        let share = self.limits.share(metrics.step, metrics.seconds);
        let left = share.and_then(|share| self.time_left(share));
        let last = self.last.as_deref();
        let text = numbers(metrics, self.units, self.limits.updates, last, left);
        match &self.bar {
            Some(bar) => {
                if let Some(share) = share {
                    bar.set_position((share * PARTS as f64) as u64);
                }
                bar.set_message(text);
            }
            None => output::say(&text),
        }
    }

    /// The time left at the rate of this session; it needs two reports.
    fn time_left(&mut self, share: f64) -> Option<Duration> {
        let Some(before) = self.done_before else {
            self.done_before = Some(share);
            self.started = Instant::now();
            return None;
        };
        let done = share - before;
        let seconds = self.started.elapsed().as_secs_f64() / done * (1.0 - share);
        (done > 0.0)
            .then(|| Duration::try_from_secs_f64(seconds).ok())
            .flatten()
    }

    fn lines(&self, lines: &[String]) {
        lines.iter().for_each(|line| self.line(line));
    }

    fn line(&self, text: &str) {
        match &self.bar {
            Some(bar) => bar.println(output::safe(text)),
            None => output::say(text),
        }
    }
}

impl Drop for Training {
    fn drop(&mut self) {
        self.clear();
    }
}

fn describe(started: &Started) -> String {
    let corpus = &started.corpus;
    let dropped = corpus.empty + corpus.too_long + corpus.ratio;
    let mut text = format!(
        "{}: {} parameters{}\n{}",
        started.model,
        started.parameters,
        vocabulary(started),
        output::counted(corpus.kept, started.examples),
    );
    if dropped > 0 {
        text.push_str(&format!(
            " ({dropped} dropped: {} empty, {} too long, {} of too different lengths)",
            corpus.empty, corpus.too_long, corpus.ratio
        ));
    }
    if corpus.broken > 0 {
        text.push_str(&format!(
            " (left out, as images or objects cannot be read: {})",
            corpus.broken
        ));
    }
    if corpus.cut > 0 {
        text.push_str(&format!(", {} of them cut", corpus.cut));
    }
    text.push_str(&format!(
        ", {} for validation; {} an epoch, {:.1} % padding; run folder {}",
        started.validation_pairs,
        output::counted(started.updates_per_epoch, "updates"),
        100.0 * started.padding,
        started.folder.display()
    ));
    if let Some(step) = started.resumed_at {
        text.push_str(&match step {
            0 => "\nresumed before its first update: it begins with the recipe in its folder"
                .to_owned(),
            _ => format!("\nresumed after update {step}"),
        });
    }
    if !started.drawn.is_empty() {
        text.push_str(&drawn(&started.drawn));
    }
    if let Some(sums) = &started.sums {
        text.push_str(&format!("\ngradients are summed {sums}"));
    }
    text
}

/// What a model to begin with did not have.
fn drawn(names: &[String]) -> String {
    const SHOWN: usize = 5;
    let shown = names[..names.len().min(SHOWN)].join(", ");
    let more = match names.len().saturating_sub(SHOWN) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    format!(
        "\n{} drawn, as training.start has none of that name and shape: {shown}{more}",
        output::counted(names.len(), "weights")
    )
}

fn vocabulary(started: &Started) -> String {
    match started.vocabulary {
        None => String::new(),
        Some(Vocabularies {
            source,
            shared: true,
            ..
        }) => format!(", vocabulary of {source}"),
        Some(Vocabularies { source, target, .. }) => {
            format!(", vocabularies of {source} (source) and {target} (target)")
        }
    }
}

/// The numbers of a report, the most wanted first: a narrow terminal cuts the line off.
fn numbers(
    metrics: &TrainMetrics,
    units: Units,
    last: Option<u64>,
    last_validation: Option<&str>,
    left: Option<Duration>,
) -> String {
    let of = last.map_or_else(String::new, |last| format!("/{last}"));
    let quality = last_validation.map_or_else(String::new, |found| format!(", {found}"));
    let left = left.map_or_else(String::new, |left| {
        format!(", {:#} left", HumanDuration(left))
    });
    let perplexity = match units.of_words {
        true => format!(", perplexity {:.2}", metrics.perplexity),
        false => String::new(),
    };
    format!(
        "update {}{of}{left}, loss {:.4}{perplexity}{quality}, epoch {}, rate {:.2e}, {:.0} {}/s",
        metrics.step,
        metrics.loss,
        metrics.epoch,
        metrics.learning_rate,
        metrics.tokens_per_second,
        units.counted,
    )
}

fn validation(title: &str, metrics: &ValidationMetrics) -> String {
    let best = if metrics.improved {
        ", the best so far"
    } else {
        ""
    };
    let perplexity = match metrics.quality {
        Quality::Bleu { .. } => format!(", perplexity {:.2} (teacher-forced)", metrics.perplexity),
        Quality::Accuracy { .. } | Quality::Answers { .. } | Quality::Detection { .. } => {
            String::new()
        }
        Quality::Captions { .. } | Quality::Likelihood { .. } => {
            format!(", perplexity {:.2}", metrics.perplexity)
        }
    };
    let quality =
        quality(&metrics.quality).map_or_else(String::new, |quality| format!(", {quality}"));
    format!(
        "{title} at update {} (epoch {:.2}): loss {:.4}{perplexity}{quality}{best}",
        metrics.step, metrics.epoch, metrics.loss,
    )
}

/// A line for each kind of attention that was measured.
fn attention(metrics: &ValidationMetrics) -> Vec<String> {
    let line = |of: LayerMeasures| {
        let number = |value: Option<f64>| {
            value.map_or_else(|| "-".to_owned(), |value| format!("{value:.3}"))
        };
        format!(
            "  {}: entropy {} nats, diagonality {}, {} dead and {} of {}",
            of.map,
            number(of.entropy),
            number(of.diagonality),
            of.dead,
            output::counted(of.sinks, "sinks"),
            output::counted(of.heads, "heads"),
        )
    };
    by_kind(&metrics.attention).into_iter().map(line).collect()
}

fn quality(quality: &Quality) -> Option<String> {
    match quality {
        Quality::Bleu { bleu, .. } => Some(format!("BLEU {bleu:.2}")),
        Quality::Accuracy { accuracy, .. } => Some(share("accuracy", *accuracy)),
        Quality::Answers {
            accuracy,
            kinds,
            pointing,
            ..
        } => {
            let mut parts: Vec<String> = kinds
                .iter()
                .map(|(kind, mean)| share(kind, *mean))
                .collect();
            parts.extend(pointing.map(|pointing| share("pointing", pointing)));
            let all = share("accuracy", *accuracy);
            Some(format!("{all} ({})", parts.join(", ")))
        }
        Quality::Detection {
            average_precision,
            average_precision_50,
            mean_iou,
        } => {
            let masks = mean_iou.map_or_else(String::new, |iou| format!(", mean IoU {iou:.3}"));
            Some(format!(
                "AP {average_precision:.3}, AP50 {average_precision_50:.3}{masks}"
            ))
        }
        Quality::Captions {
            bleu,
            exact,
            inside,
            ..
        } => {
            let inside = inside.map(|inside| format!(", inside {:.1} %", 100.0 * inside));
            let inside = inside.unwrap_or_default();
            Some(format!(
                "BLEU-4 {bleu:.2}, exact {:.1} %{inside}",
                100.0 * exact
            ))
        }
        Quality::Likelihood { bits_per_byte } => {
            bits_per_byte.map(|bits| format!("{bits:.3} bits per byte"))
        }
    }
}

fn share(name: &str, share: f64) -> String {
    format!("{name} {:.2} %", 100.0 * share)
}

fn ending(summary: &Summary) -> String {
    let reason = match summary.reason {
        Reason::Limit => "done",
        Reason::EarlyStop => "stopped early: validation did not improve any more",
        Reason::Interrupted => "interrupted",
    };
    let time = HumanDuration(Duration::try_from_secs_f64(summary.seconds).unwrap_or_default());
    let best = summary.best.map_or_else(String::new, |(step, measure)| {
        format!("; the best validation was {measure:.4} at update {step}")
    });
    format!(
        "{reason} after {} updates, {time} of training{best}",
        summary.step
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_limit_counts() {
        let limits = Limits {
            updates: Some(200),
            seconds: Some(60.0),
        };
        assert_eq!(limits.share(50, 6.0), Some(0.25));
        assert_eq!(limits.share(50, 30.0), Some(0.5));
        assert_eq!(limits.share(500, 30.0), Some(1.0));
        assert_eq!(Limits::default().share(50, 30.0), None);
    }

    #[test]
    fn weights_that_the_start_lacks_are_told() {
        let names = |count: usize| (0..count).map(|i| format!("w{i}")).collect::<Vec<_>>();
        assert_eq!(
            drawn(&names(1)),
            "\n1 weight drawn, as training.start has none of that name and shape: w0"
        );
        let many = drawn(&names(7));
        assert!(many.contains("7 weights drawn"), "{many}");
        assert!(many.ends_with(": w0, w1, w2, w3, w4 and 2 more"), "{many}");
    }

    #[test]
    fn what_is_wanted_most_comes_first() {
        let metrics = TrainMetrics {
            step: 120,
            epoch: 3,
            loss: 2.5,
            perplexity: 12.18,
            learning_rate: 0.001,
            gradient_norm: 1.0,
            tokens_per_second: 1830.4,
            seconds: 60.0,
        };
        let words = Units {
            counted: "tokens",
            of_words: true,
        };
        let text = numbers(
            &metrics,
            words,
            Some(400),
            Some("BLEU 21.30"),
            Some(Duration::from_secs(480)),
        );
        assert_eq!(
            text,
            "update 120/400, 8m left, loss 2.5000, perplexity 12.18, BLEU 21.30, epoch 3, rate 1.00e-3, 1830 tokens/s"
        );
        let images = Units {
            counted: "images",
            of_words: false,
        };
        assert_eq!(
            numbers(&metrics, images, None, None, None),
            "update 120, loss 2.5000, epoch 3, rate 1.00e-3, 1830 images/s"
        );
    }
}
