//! `regard compare`: several recipes under one budget, and their results.
//!
//! | file | what |
//! |---|---|
//! | here | the recipes, trained one after the other |
//! | [`judge`] | the finished models, scored as `regard evaluate` scores them |
//! | [`report`] | everything as tables, plots and JSON |

mod judge;
mod report;

use std::{
    path::{Component, Path, PathBuf},
    sync::atomic::{AtomicBool, Ordering},
};

use burn::tensor::Device;
use regard_nn::devices::is_card;
use regard_train::{
    Registry,
    compare::{self, Contender, Measured, Standing},
    files,
    learner::{Event, Reason, Run},
    ranks::Alone,
    recipe::Split,
    tasks::Translation,
};

use super::train::{SAVING, listen, stopped};
use crate::{
    allocator,
    arguments::{Compare, Named},
    commands::evaluate::recipe_data,
    failure::Failure,
    models, output,
    pictures::expect_drawable,
    progress::Training,
};

/// Trains the recipes that are not trained yet, judges all, and prints the results.
///
/// # Errors
/// Recipes that cannot be compared, whatever training or judging finds wrong; an interruption.
pub fn run(options: &Compare) -> Result<(), Failure> {
    let contenders = contenders(options)?;
    let registry = Registry::default();
    let split = compare::judged_by(&registry, &contenders)?;
    let recipe = &contenders[0].recipe;
    if !registry.serves::<Translation>(recipe) && options.lengths.asked() {
        let does = registry.does(recipe);
        return Err(Failure::Usage(format!(
            "--buckets, --least-sentences, --svg, --png and --html show translations by length; a model of these recipes {does}"
        )));
    }
    let drawing = &options.lengths.drawing;
    if drawing.any() {
        // It may lie in the folder of the comparison, which training would make.
        files::create_folder(&options.folder)?;
        let recipes = || contenders.iter().map(|contender| &contender.recipe);
        let starts = recipes().filter_map(|recipe| recipe.training.start.as_ref());
        let read = contenders.iter().map(|contender| contender.path.clone());
        let read = read.chain(recipes().flat_map(recipe_data));
        expect_drawable(drawing, read.chain(starts.flat_map(output::model_files)))?;
    }
    allocator::keep_freed_memory();
    let threads = contenders[0].recipe.training.threads;
    options.compute.run(threads, |device| {
        compare(options, &contenders, split, device)
    })
}

fn compare(
    options: &Compare,
    contenders: &[Contender],
    split: Split,
    device: &Device,
) -> Result<(), Failure> {
    let stop = listen((!options.quiet).then_some(SAVING), stopped)?;
    for (index, contender) in contenders.iter().enumerate() {
        if !options.quiet {
            output::say(&format!(
                "{} ({} of {}), {}",
                contender.name,
                index + 1,
                contenders.len(),
                options.budget
            ));
        }
        train(contender, options, device, &stop)?;
    }
    let outcomes = contenders
        .iter()
        .map(|contender| compare::outcome(&folder(options, contender), options.budget))
        .collect::<Result<Vec<_>, _>>()?;
    let judgement = judge::judge(contenders, split, options)?;
    report::tell(contenders, &outcomes, split, &judgement, options)
}

/// The recipes under their names, limited by the budget.
fn contenders(options: &Compare) -> Result<Vec<Contender>, Failure> {
    let read = |named: &Named| -> Result<Contender, Failure> {
        let recipe = Registry::default().load(&named.path, &options.set)?;
        Ok(Contender {
            name: name(named)?,
            path: named.path.clone(),
            recipe: options.budget.limit(recipe),
        })
    };
    options.recipes.iter().map(read).collect()
}

/// The given name, or that of the file without `.toml`; it must be possible as a folder's name.
fn name(named: &Named) -> Result<String, Failure> {
    let own = named.path.file_name() == Some(named.name.as_ref());
    let name = match own {
        true => named.name.strip_suffix(".toml").unwrap_or(&named.name),
        false => named.name.as_str(),
    };
    let mut parts = Path::new(name).components();
    match (parts.next(), parts.next()) {
        (Some(Component::Normal(part)), None) if part == name => Ok(name.to_owned()),
        _ => Err(Failure::Usage(format!(
            "{name:?} cannot be the name of a folder; give another one, NAME={}",
            named.path.display()
        ))),
    }
}

fn folder(options: &Compare, contender: &Contender) -> PathBuf {
    options.folder.join(&contender.name)
}

/// Trains a contender as far as the budget goes, unless that is done.
fn train(
    contender: &Contender,
    options: &Compare,
    device: &Device,
    stop: &AtomicBool,
) -> Result<(), Failure> {
    let folder = folder(options, contender);
    let registry = Registry::default();
    let standing = compare::standing(&registry, &folder, &contender.recipe, options.budget)?;
    if standing == Standing::Done {
        if !options.quiet {
            output::say("trained already");
        }
        return Ok(());
    }
    if standing == Standing::New {
        models::fetch_start(contender.recipe.training.start.as_deref(), options.quiet)?;
    }
    let run = Run {
        folder: &folder,
        device,
        stop,
        ranks: &Alone,
    };
    let mut progress = (!options.quiet).then(|| Training::new(contender.recipe.training.minutes));
    let mut report = |event: &Event| {
        if let Some(progress) = &mut progress {
            progress.show(event);
        }
    };
    let (trained, peak) = allocator::extra_bytes(|| match standing {
        Standing::New => registry.train(&contender.recipe, &run, &mut report),
        _ => registry.resume(&[], &run, &mut report),
    });
    // The progress bar must be gone before anything else is printed.
    drop(progress);
    let summary = trained?;
    // A card's memory is not counted.
    if !is_card(device) {
        Measured::add(&folder, peak as u64)?;
    }
    // The training checks the flag only while it runs; between two recipes it is checked here.
    if summary.reason == Reason::Interrupted || stop.load(Ordering::SeqCst) {
        return Err(Failure::Interrupted(format!(
            "interrupted and saved; the same command goes on in {}",
            options.folder.display()
        )));
    }
    Ok(())
}
