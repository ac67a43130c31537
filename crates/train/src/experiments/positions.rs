//! `positions`: attention alone sees a set. A Transformer reverses sequences, which it can only do if it is told the order; once with
//! each encoding of positions, and once with none (Vaswani 2017, section 3.5).

use super::{
    ExperimentError, Findings, Setting,
    trained::{self, Contest},
};

const ENCODINGS: [&str; 5] = ["none", "sinusoidal", "learned", "rotary", "alibi"];

const MODEL: &str = r#"
kind = "transformer"
d_model = 48
encoder_layers = 1
decoder_layers = 1
heads = 4
feed_forward = 96
max_length = 32
dropout = { embedding = 0.0, residual = 0.0, attention = 0.0, activation = 0.0 }

[data.filter]
max_tokens = 20

[translate]
max_source_tokens = 20

[translate.max_length]
absolute = 20
"#;

/// Names and recipes.
pub(super) fn recipes() -> Vec<(String, String)> {
    let task = trained::sequences("reverse", [2, 8], [12000, 500]);
    let model = |name: &str| format!("positions = \"{name}\"{MODEL}{task}");
    let recipe = |name: &str| trained::recipe(&model(name), 100, 800);
    ENCODINGS
        .map(|name| (name.to_owned(), recipe(name)))
        .to_vec()
}

pub(super) fn run(setting: &Setting<'_>) -> Result<Findings, ExperimentError> {
    let title = "Sequences reversed by a Transformer";
    let contest = Contest::hold(setting, title, "positions", &recipes())?;
    let [exact, right] = contest.scores[0];
    let mut words = vec![format!(
        "Without positions {exact} % of the sequences come out reversed, and {right} % of the symbols stand where they should: to attention \
         alone a source is a set, and the same symbols in another order look the same."
    )];
    let others = ENCODINGS.iter().enumerate().skip(1);
    words.extend(
        others.map(|(at, name)| format!("{name}: {}.", contest.beside(at, 0, "without positions"))),
    );
    Ok(Findings {
        table: contest.table,
        figure: vec![contest.figure],
        words,
    })
}
