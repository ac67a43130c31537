//! `hard-soft`: a decoder that reads the mean of all words of the source, weighted (soft), beside one that draws a single word and
//! reads only that (hard; Xu 2015), trained by three estimates of the gradient that a draw does not have.

use super::{
    ExperimentError, Findings, Setting,
    trained::{self, Contest},
};

/// Name, and the recipe's normaliser.
const NORMALIZERS: [(&str, &str); 4] = [
    ("soft", "\"softmax\""),
    ("straight-through", "\"hard-straight-through\""),
    ("gumbel", "\"hard-gumbel\""),
    ("reinforce", "{ kind = \"hard-reinforce\", entropy = 0.01 }"),
];

const MODEL: &str = r#"
kind = "rnnsearch"
embedding = 32
hidden = 32
attention_dimension = 32
maxout = 32
dropout = { embedding = 0.0, annotation = 0.0, output = 0.0 }
"#;

/// Names and recipes.
pub(super) fn recipes() -> Vec<(String, String)> {
    let task = trained::sequences("reverse", [2, 8], [8000, 500]);
    let model = |normalizer: &str| format!("normalizer = {normalizer}{MODEL}{task}");
    let recipe = |normalizer: &str| trained::recipe(&model(normalizer), 50, 800);
    NORMALIZERS
        .map(|(name, normalizer)| (name.to_owned(), recipe(normalizer)))
        .to_vec()
}

pub(super) fn run(setting: &Setting<'_>) -> Result<Findings, ExperimentError> {
    let title = "Sequences reversed, attention soft and hard";
    let contest = Contest::hold(setting, title, "attention", &recipes())?;
    let hard = NORMALIZERS.iter().enumerate().skip(1);
    let mut words: Vec<String> = hard
        .map(|(at, (name, _))| {
            format!(
                "hard, {name}: {}.",
                contest.beside(at, 0, "with soft attention")
            )
        })
        .collect();
    words.push(
        "All were trained equally often. A drawn word has no gradient: straight-through and Gumbel take one that is not the draw's, and \
         REINFORCE rewards draws, which is right in the mean and noisy."
            .to_owned(),
    );
    Ok(Findings {
        table: contest.table,
        figure: vec![contest.figure],
        words,
    })
}
