//! `regard model`: describes a model, and writes it in another form.

use std::path::Path;

use burn::{module::Module, tensor::Device};
use regard_models::{AnyGenerator, Objective};
use regard_nn::weights::{self, Storage};
use regard_train::{
    Registry, Translator,
    familiarity::Familiarity,
    image_classifier::Preparation,
    recipe::{Model, Split, Texts},
    tasks::{
        Captioning, Classification, Detection, ImageClassification, LanguageModelling, Task,
        Translation, VisualQuestions,
    },
    translator::Description,
};
use regard_view::label::visible;
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
    let written = options.f16.iter().chain(&options.f32);
    let model = options.path.iter().flat_map(output::model_files);
    output::expect_apart(
        model.chain(options.familiarity.clone()),
        written.clone().map(|path| (path, false)),
    )?;
    for path in written {
        output::expect_writable(path)?;
    }
    options.compute.run(None, |device| work(options, device))
}

fn work(options: &ModelFile, device: &Device) -> Result<(), Failure> {
    if let Some(path) = options.path.as_deref()
        && is_other(path, options)?
    {
        return Ok(());
    }
    let (model, mut description) = models::open(options.path.as_deref(), device)?;
    if let Some(recipe) = &options.familiarity {
        let translator = Translator::new(model.clone(), description.clone(), device).looking(false);
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
        false => describe(&visible(&name), &model, &description),
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

/// What there is to say of a model that does not translate.
struct About {
    model: Model,
    /// A title and what stands behind it.
    lines: Vec<(&'static str, String)>,
    /// The same as keys.
    keys: Value,
}

/// Describes or writes a model that does not translate; whether it is one.
fn is_other(path: &Path, options: &ModelFile) -> Result<bool, Failure> {
    Ok(other::<Classification>(path, options, |described| {
        let vocabulary = described.tokenizers.source().vocabulary_size();
        About {
            model: described.model.clone(),
            lines: vec![labels(&described.labels), tokens(vocabulary)],
            keys: json!({"labels": described.labels, "vocabulary": vocabulary}),
        }
    })? || other::<LanguageModelling>(path, options, |described| {
        let vocabulary = described.tokenizers.source().vocabulary_size();
        let what = match described.texts.objective {
            Objective::Causal => "the next token",
            Objective::Masked => "masked tokens",
        };
        let of = match described.texts.texts {
            Texts::File => "parts of a file",
            Texts::Lines => "lines",
        };
        let context = described.texts.context;
        let predicts = format!("{what}, trained on {of} of {context} tokens");
        About {
            model: described.model.clone(),
            lines: vec![("predicts", predicts), tokens(vocabulary)],
            keys: json!({"texts": described.texts, "vocabulary": vocabulary}),
        }
    })? || other::<ImageClassification>(path, options, |described| About {
        model: described.model.clone(),
        lines: vec![labels(&described.labels), images(&described.preparation)],
        keys: json!({"labels": described.labels, "size": described.preparation.size}),
    })? || other::<Detection>(path, options, |described| About {
        model: described.model.clone(),
        lines: vec![labels(&described.labels), images(&described.preparation)],
        keys: json!({"labels": described.labels, "size": described.preparation.size}),
    })? || other::<Captioning>(path, options, |described| {
        let vocabulary = described.tokenizers.target().vocabulary_size();
        About {
            model: described.model.clone(),
            lines: vec![images(&described.preparation), tokens(vocabulary)],
            keys: json!({"size": described.preparation.size, "vocabulary": vocabulary}),
        }
    })? || other::<VisualQuestions>(path, options, |described| {
        let vocabulary = described.tokenizers.source().vocabulary_size();
        About {
            model: described.model.clone(),
            lines: vec![
                ("answers", listed(&described.answers)),
                images(&described.preparation),
                tokens(vocabulary),
            ],
            keys: json!({
                "answers": described.answers,
                "size": described.preparation.size,
                "vocabulary": vocabulary,
            }),
        }
    })?)
}

fn labels(labels: &[String]) -> (&'static str, String) {
    ("labels", listed(labels))
}

/// Labels are names of folders, or what else stands in data.
fn listed(labels: &[String]) -> String {
    let labels: Vec<String> = labels.iter().map(|label| visible(label)).collect();
    labels.join(", ")
}

fn tokens(vocabulary: usize) -> (&'static str, String) {
    ("vocabulary", format!("{vocabulary} tokens"))
}

fn images(preparation: &Preparation) -> (&'static str, String) {
    let [height, width] = preparation.size;
    ("images", format!("{width} x {height}"))
}

/// Describes or writes the model at `path` if it is of the task `T`; whether it is.
fn other<T: Task>(
    path: &Path,
    options: &ModelFile,
    about: fn(&T::Description) -> About,
) -> Result<bool, Failure> {
    let registry = Registry::default();
    if !registry.holds::<T>(path) {
        return Ok(false);
    }
    if options.familiarity.is_some() {
        return Err(Failure::Usage(format!(
            "--familiarity is for models that translate; this is {}",
            T::MODEL
        )));
    }
    let (model, description) = registry.open::<T>(path, &Device::flex())?;
    let about = about(&description);
    let written = write::<T>(options, &about.model, &model, &description)?;
    if written && !options.json {
        return Ok(true);
    }
    let (name, parameters) = (path.display(), model.num_params());
    let text = match options.json {
        true => {
            let mut all = json!({
                "name": name.to_string(),
                "parameters": parameters,
                "model": about.model,
            });
            if let (Some(all), Value::Object(keys)) = (all.as_object_mut(), about.keys) {
                all.extend(keys);
            }
            serde_json::to_string_pretty(&all)?
        }
        false => {
            let first = [
                (
                    "architecture",
                    format!("{}, {}", about.model.kind, T::MODEL),
                ),
                ("parameters", parameters.to_string()),
            ];
            let lines = first.into_iter().chain(about.lines);
            lines.fold(visible(&name.to_string()), |text, (title, what)| {
                format!("{text}\n{title:<14}{what}")
            })
        }
    };
    output::print(&format!("{text}\n"))?;
    Ok(true)
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
