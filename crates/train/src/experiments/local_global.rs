//! `local-global`: attention to the whole source beside attention to a window of it (Luong 2015, section 3.2): around the place that
//! the decoder has reached (local-m), and around a place that it predicts (local-p). Copying goes along the source, reversing against it.

use super::{
    ExperimentError, Findings, Setting,
    trained::{self, Contest},
};

const ATTENTIONS: [&str; 3] = ["global", "local-m", "local-p"];
const TASKS: [&str; 2] = ["copy", "reverse"];

const MODEL: &str = r#"
kind = "luong"
window = 2
embedding = 32
hidden = 32
layers = 1
max_source_length = 32
dropout = { embedding = 0.0, layers = 0.0, annotation = 0.0, output = 0.0 }
"#;

/// Names and recipes, all of a task together.
pub(super) fn recipes() -> Vec<(String, String)> {
    let of_task = |task: &'static str| {
        let data = trained::sequences(task, [6, 10], [12000, 500]);
        ATTENTIONS.map(move |attention| {
            let model = format!("attention = \"{attention}\"{MODEL}{data}");
            (
                format!("{task}, {attention}"),
                trained::recipe(&model, 50, 1200),
            )
        })
    };
    TASKS.iter().flat_map(|task| of_task(task)).collect()
}

pub(super) fn run(setting: &Setting<'_>) -> Result<Findings, ExperimentError> {
    let title = "Attention to all of the source, and to five words of it";
    let contest = Contest::hold(setting, title, "task, attention", &recipes())?;
    let mut words = vec![];
    for (task, first) in TASKS.iter().zip([0, ATTENTIONS.len()]) {
        for (at, attention) in ATTENTIONS.iter().enumerate().skip(1) {
            words.push(format!(
                "{task}, {attention}: {}.",
                contest.beside(first + at, first, "with global attention")
            ));
        }
    }
    words.push(
        "A window around the decoder's own place sees what is copied, and of a source to be reversed only what lies in the middle; a window \
         around a predicted place can go anywhere, if the prediction is learned."
            .to_owned(),
    );
    Ok(Findings {
        table: contest.table,
        figure: vec![contest.figure],
        words,
    })
}
