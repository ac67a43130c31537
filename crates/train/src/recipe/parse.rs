//! From text to a recipe, with the place of every mistake.

use toml::de::DeTable;

use super::check;
use super::error::RecipeError;
use super::section::{Key, Section};
use super::source::Source;
use super::{
    Adadelta, Adam, AdamW, Batching, Constant, Data, Gnmt, InverseSquareRoot, Lstm, Lstmn, Luong,
    Model, Optimizer, Plateau, Recipe, Rnnsearch, Schedule, SelfAttentive, Seq2seq, Sgd, Training,
    Transformer, Translation, Validation, overrides,
};

/// The sections of a recipe, in order.
pub(super) const SECTIONS: [&str; 8] = [
    "model",
    "data",
    "batch",
    "optimizer",
    "schedule",
    "training",
    "validation",
    "translate",
];

/// What `kind` may be in the sections that have one, with the keys that go with it.
pub(super) fn kinds(section: &str) -> &'static [(&'static str, &'static [Key])] {
    match section {
        "model" => &[
            ("rnnsearch", Rnnsearch::KEYS),
            ("luong", Luong::KEYS),
            ("transformer", Transformer::KEYS),
            ("seq2seq", Seq2seq::KEYS),
            ("lstmn", Lstmn::KEYS),
            ("lstm", Lstm::KEYS),
            ("self-attentive", SelfAttentive::KEYS),
            ("gnmt", Gnmt::KEYS),
        ],
        "optimizer" => &[
            ("adam", Adam::KEYS),
            ("adamw", AdamW::KEYS),
            ("adadelta", Adadelta::KEYS),
            ("sgd", Sgd::KEYS),
        ],
        "schedule" => &[
            ("constant", Constant::KEYS),
            ("inverse-square-root", InverseSquareRoot::KEYS),
            ("plateau", Plateau::KEYS),
        ],
        _ => &[],
    }
}

/// The keys of a section without kinds.
pub(super) fn plain_keys(section: &str) -> &'static [Key] {
    match section {
        "data" => Data::KEYS,
        "batch" => Batching::KEYS,
        "training" => Training::KEYS,
        "validation" => Validation::KEYS,
        "translate" => Translation::KEYS,
        _ => &[],
    }
}

pub(super) fn utf8(bytes: Vec<u8>, name: &str) -> Result<String, RecipeError> {
    String::from_utf8(bytes).map_err(|error| {
        let place = error.utf8_error().valid_up_to();
        let start = String::from_utf8_lossy(&error.as_bytes()[..place]).into_owned();
        RecipeError::Syntax {
            place: Source::new(&start, name, &[]).place(&(place..place)),
            message: format!("byte offset {place} is not UTF-8"),
        }
    })
}

pub(super) fn recipe(text: &str, name: &str, overrides: &[String]) -> Result<Recipe, RecipeError> {
    let mut source = Source::new(text, name, overrides);
    let mut root = DeTable::parse(text)
        .map_err(|error| RecipeError::Syntax {
            place: source.place(&error.span().unwrap_or(0..0)),
            message: error.message().replace('\n', "; "),
        })?
        .into_inner();
    for (index, text) in overrides.iter().enumerate() {
        overrides::apply(&mut root, text, source.override_span(index))?;
    }
    source.sections(&root)?;
    let model = match source.kind(&mut root, "model", None)? {
        "rnnsearch" => Model::Rnnsearch(source.section(&mut root, "model")?),
        "luong" => Model::Luong(source.section(&mut root, "model")?),
        "transformer" => Model::Transformer(source.section(&mut root, "model")?),
        "seq2seq" => Model::Seq2seq(source.section(&mut root, "model")?),
        "lstmn" => Model::Lstmn(source.section(&mut root, "model")?),
        "lstm" => Model::Lstm(source.section(&mut root, "model")?),
        "self-attentive" => Model::SelfAttentive(source.section(&mut root, "model")?),
        _ => Model::Gnmt(source.section(&mut root, "model")?),
    };
    let data = source.section(&mut root, "data")?;
    let batch = source.section(&mut root, "batch")?;
    let optimizer = match source.kind(&mut root, "optimizer", Some("adam"))? {
        "adam" => Optimizer::Adam(source.section(&mut root, "optimizer")?),
        "adamw" => Optimizer::AdamW(source.section(&mut root, "optimizer")?),
        "adadelta" => Optimizer::Adadelta(source.section(&mut root, "optimizer")?),
        _ => Optimizer::Sgd(source.section(&mut root, "optimizer")?),
    };
    let schedule = match source.kind(&mut root, "schedule", Some("constant"))? {
        "constant" => Schedule::Constant(source.section(&mut root, "schedule")?),
        "inverse-square-root" => {
            Schedule::InverseSquareRoot(source.section(&mut root, "schedule")?)
        }
        _ => Schedule::Plateau(source.section(&mut root, "schedule")?),
    };
    let recipe = Recipe {
        model,
        data,
        batch,
        optimizer,
        schedule,
        training: source.section(&mut root, "training")?,
        validation: source.section(&mut root, "validation")?,
        translate: source.section(&mut root, "translate")?,
    };
    match check::problems(&recipe).into_iter().next() {
        None => Ok(recipe),
        Some(problem) => {
            let place = source.place_of_key(&problem.key);
            Err(problem.at(place))
        }
    }
}
