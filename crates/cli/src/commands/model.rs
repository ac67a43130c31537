//! `regard model`: describes a model, and writes it in another form.

use std::path::Path;

use burn::{module::Module, tensor::Device};
use regard_models::{AnyGenerator, Objective};
use regard_nn::weights::{self, Storage};
use regard_train::{
    Registry, Translator,
    familiarity::Familiarity,
    recipe::{Model, Split, Texts},
    tasks::{Classification, LanguageModelling, Task, Translation},
    translator::Description,
};
use serde_json::{Value, json};

use crate::{
    arguments::ModelFile,
    failure::{CommandError, Failure},
    models::{self, EMBEDDED_NAME},
    output,
};

/// Describes or writes a model.
///
/// # Errors
/// Whatever is wrong with the model, or a file that cannot be written.
pub fn run(options: &ModelFile) -> Result<(), Failure> {
    if let Some(path) = options.path.as_deref() {
        let registry = Registry::default();
        if registry.holds::<Classification>(path) {
            return one_sided::<Classification>(path, options, |described| About {
                model: described.model.clone(),
                vocabulary: described.tokenizers.source().vocabulary_size(),
                line: format!("labels        {}", described.labels.join(", ")),
                keys: json!({"labels": described.labels}),
            });
        }
        if registry.holds::<LanguageModelling>(path) {
            return one_sided::<LanguageModelling>(path, options, |described| About {
                model: described.model.clone(),
                vocabulary: described.tokenizers.source().vocabulary_size(),
                line: format!(
                    "predicts      {}, trained on {} of {} tokens",
                    match described.texts.objective {
                        Objective::Causal => "the next token",
                        Objective::Masked => "masked tokens",
                    },
                    match described.texts.texts {
                        Texts::File => "parts of a file",
                        Texts::Lines => "lines",
                    },
                    described.texts.context
                ),
                keys: json!({"texts": described.texts}),
            });
        }
    }
    let device = Device::flex();
    let (model, mut description) = models::open(options.path.as_deref(), &device)?;
    if let Some(recipe) = &options.familiarity {
        let translator =
            Translator::new(model.clone(), description.clone(), &device).looking(false);
        description.familiarity = Some(familiarity(&translator, recipe)?);
    }
    let written = write::<Translation>(options, &description.model, &model, &description)?;
    if written && !options.json {
        return Ok(());
    }
    let name = match &options.path {
        Some(path) => path.display().to_string(),
        None => EMBEDDED_NAME.to_owned(),
    };
    let text = match options.json {
        true => serde_json::to_string_pretty(&json!({
            "name": name,
            "languages": description.languages,
            "parameters": model.num_params(),
            "vocabulary": [
                description.tokenizers.source().vocabulary_size(),
                description.tokenizers.target().vocabulary_size(),
            ],
            "joint_vocabulary": description.tokenizers.is_joint(),
            "model": description.model,
            "translate": description.translate,
            "familiarity": description.familiarity.is_some(),
        }))?,
        false => describe(&name, &model, &description),
    };
    output::print(&format!("{text}\n"))
}

/// The familiarity statistics of `translator`, measured on the data of the recipe at `path`.
fn familiarity(translator: &Translator, path: &Path) -> Result<Familiarity, Failure> {
    let recipe = Registry::default().load(path, &[])?;
    let load = |split, part| match recipe.data.load(split, recipe.training.seed)? {
        Some(loaded) => Ok(loaded.text),
        None => Err(Failure::from(CommandError::NothingFamiliar {
            recipe: path.to_owned(),
            part,
        })),
    };
    let training = load(Split::Train, "training")?;
    let held_out = load(Split::Valid, "validation")?;
    let measured = Familiarity::measure(translator, training.source(), held_out.source());
    Ok(measured?)
}

/// What there is to say of a model with one vocabulary.
struct About {
    model: Model,
    vocabulary: usize,
    /// A line of its own.
    line: String,
    /// The same as keys.
    keys: Value,
}

/// Describes or writes a model that reads one kind of text.
fn one_sided<T: Task>(
    path: &Path,
    options: &ModelFile,
    about: fn(&T::Description) -> About,
) -> Result<(), Failure> {
    if options.familiarity.is_some() {
        return Err(Failure::Usage(format!(
            "--familiarity is for models that translate; this is {}",
            T::MODEL
        )));
    }
    let (model, description) = Registry::default().open::<T>(path, &Device::flex())?;
    let about = about(&description);
    let written = write::<T>(options, &about.model, &model, &description)?;
    if written && !options.json {
        return Ok(());
    }
    let (name, parameters, vocabulary) = (path.display(), model.num_params(), about.vocabulary);
    let text = match options.json {
        true => {
            let mut all = json!({
                "name": name.to_string(),
                "parameters": parameters,
                "vocabulary": vocabulary,
                "model": about.model,
            });
            if let (Some(all), Value::Object(keys)) = (all.as_object_mut(), about.keys) {
                all.extend(keys);
            }
            serde_json::to_string_pretty(&all)?
        }
        false => format!(
            "{name}\n\
             architecture  {}, {}\n\
             {}\n\
             parameters    {parameters}\n\
             vocabulary    {vocabulary} tokens",
            about.model.kind,
            T::MODEL,
            about.line,
        ),
    };
    output::print(&format!("{text}\n"))
}

/// Writes the model in the forms that are asked for; whether there is one.
fn write<T: Task>(
    options: &ModelFile,
    kind: &Model,
    model: &T::Model,
    description: &T::Description,
) -> Result<bool, Failure> {
    for (path, storage) in [(&options.f16, Storage::F16), (&options.f32, Storage::F32)] {
        if let Some(path) = path {
            let arrays = weights::collect(model);
            let bytes = Registry::default().to_bytes::<T>(kind, &arrays, description, storage)?;
            output::write_file(path, &bytes)?;
        }
    }
    Ok(options.f16.is_some() || options.f32.is_some())
}

fn describe(name: &str, model: &AnyGenerator, description: &Description) -> String {
    let tokenizers = &description.tokenizers;
    let settings = &description.translate;
    let vocabulary = match tokenizers.is_joint() {
        true => format!("{} tokens, joint", tokenizers.source().vocabulary_size()),
        false => format!(
            "{} source and {} target tokens",
            tokenizers.source().vocabulary_size(),
            tokenizers.target().vocabulary_size()
        ),
    };
    format!(
        "{name}\n\
         architecture  {}\n\
         languages     {} to {}\n\
         parameters    {}\n\
         vocabulary    {vocabulary}\n\
         search        beam {}, length penalty {}, coverage penalty {}\n\
         warns         {}",
        description.model.kind,
        description.languages.source,
        description.languages.target,
        model.num_params(),
        settings.beam,
        settings.length_penalty,
        settings.coverage_penalty,
        match description.familiarity {
            Some(_) => "of sentences far from its training text",
            None => "never; `regard model --familiarity` makes it warn of unfamiliar sentences",
        },
    )
}
