//! `regard explain` of a whole layer or an algorithm.

use regard_nn::explain::topics::Topic;

use super::{picture, print, refused};
use crate::{arguments::Explain, failure::Failure, output};

/// Decimals unless an option says how many: tables are wider than those of single mechanisms.
const DIGITS: u8 = 4;

/// Prints and draws the worked example of a topic.
///
/// # Errors
/// An option that topics do not have, a picture that cannot be written.
pub fn run(topic: &Topic, options: &Explain) -> Result<(), Failure> {
    if let Some(option) = options.of_examples() {
        return Err(Failure::Usage(format!(
            "--{option} is no option of {}, whose example is fixed; it has --svg, --png, --html, --json, --digits and --quiet",
            topic.name
        )));
    }
    let lesson = topic.lesson().map_err(refused)?;
    let head = print::head(topic.name, topic.source, &[topic.summary, topic.formula]);
    let mut text = print::text(&head, &lesson.steps, DIGITS, options);
    if !options.output.quiet {
        text.push_str(&lesson.remarks.join("\n"));
        text.push('\n');
    }
    picture::write(options, topic.name, &text, || {
        picture::lesson(&lesson).svg()
    })?;
    match options.output.json {
        true => output::print(&format!("{}\n", serde_json::to_string_pretty(&lesson)?)),
        false => output::print(&text),
    }
}
