//! `regard explain` of a whole layer or an algorithm.

use regard_nn::explain::topics::{Lesson, Topic};

use super::{picture, print, refused};
use crate::{arguments::Explain, failure::Failure, output};

/// Decimals unless an option says how many: tables are wider than those of single mechanisms.
const DIGITS: u8 = 4;

/// Prints and draws the worked example of a topic.
///
/// # Errors
/// An option that topics do not have, a picture that cannot be written.
pub fn run(topic: &Topic, options: &Explain) -> Result<(), Failure> {
    let lesson = work(topic, options)?;
    let text = text(topic, &lesson, options);
    picture::write(options, topic.name, &text, || {
        picture::lesson(&lesson).svg()
    })?;
    match options.output.json {
        true => output::print(&format!("{}\n", serde_json::to_string_pretty(&lesson)?)),
        false => output::print(&text),
    }
}

/// The worked example with the numbers that the options give.
///
/// # Errors
/// An option that the topic does not have, a number that it does not take.
pub fn work(topic: &Topic, options: &Explain) -> Result<Lesson, Failure> {
    let settings = options.settings();
    let has = |name: &str| topic.settings.iter().any(|setting| setting.name == name);
    let foreign = settings
        .iter()
        .map(|(name, _)| *name)
        .find(|name| !has(name));
    if let Some(option) = options.of_examples().or(foreign.map(str::to_owned)) {
        let own = topic
            .settings
            .iter()
            .map(|setting| format!("--{}, ", setting.name));
        return Err(Failure::Usage(format!(
            "--{option} is no option of {}, which has {}--svg, --png, --html, --json, --digits and --quiet",
            topic.name,
            own.collect::<String>()
        )));
    }
    topic.lesson_with(&settings).map_err(refused)
}

/// The steps and remarks.
pub fn text(topic: &Topic, lesson: &Lesson, options: &Explain) -> String {
    let head = print::head(topic.name, topic.source, &[topic.summary, topic.formula]);
    let mut text = print::text(&head, &lesson.steps, DIGITS, options);
    if !options.output.quiet {
        text.push_str(&lesson.remarks.join("\n"));
        text.push('\n');
    }
    text
}
