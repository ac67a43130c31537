//! `regard explain` of a whole layer or an algorithm.

use regard_nn::explain::topics::{Lesson, Topic};

use crate::{Explain, Page, Refused, Told, picture, print, refused};

/// Decimals unless an option says how many: tables are wider than those of single mechanisms.
const DIGITS: u8 = 4;

/// Prints and draws the worked example of a topic.
///
/// # Errors
/// An option that topics do not have.
pub fn tell(topic: &Topic, options: &Explain) -> Result<Told, Refused> {
    let lesson = work(topic, options)?;
    let text = text(topic, &lesson, options);
    let printed = match options.output.json {
        true => format!("{}\n", serde_json::to_string_pretty(&lesson)?),
        false => text.clone(),
    };
    let page = options.output.draws().then(|| Page {
        title: topic.name.to_owned(),
        text,
        svg: picture::lesson(&lesson).svg(),
    });
    Ok(Told { printed, page })
}

/// The worked example with the numbers that the options give.
///
/// # Errors
/// An option that the topic does not have, a number that it does not take.
pub fn work(topic: &Topic, options: &Explain) -> Result<Lesson, Refused> {
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
        return Err(Refused::Usage(format!(
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
