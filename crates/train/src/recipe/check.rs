//! Ranges, and keys that must agree with each other.

use std::fmt::Display;

use super::error::{Place, RecipeError};
use super::model::{
    AttentionKind, Cell, ClassifierDropout, Dropout, Model, Score, StackDropout, Task, Tie,
};
use super::optimization::{Optimizer, Schedule};
use super::{
    Data, Every, LabelledData, Measure, Positions, Recipe, Training, Transformer, Translation,
    Validation,
};
use crate::tokenizer::MINIMUM_VOCABULARY_SIZE;

/// A key whose value does not fit.
#[derive(Debug)]
pub(super) struct Problem {
    pub(super) key: String,
    found: String,
    expected: String,
}

impl Problem {
    pub(super) fn at(self, place: Place) -> RecipeError {
        RecipeError::Value {
            place,
            key: self.key,
            found: self.found,
            expected: self.expected,
        }
    }
}

/// Sizes beyond this are slips of the keyboard.
const LARGEST_SIZE: usize = 1 << 20;

#[derive(Default)]
struct Check {
    problems: Vec<Problem>,
}

impl Check {
    fn fail(&mut self, key: &str, found: impl Into<String>, expected: impl Into<String>) {
        self.problems.push(Problem {
            key: key.to_owned(),
            found: found.into(),
            expected: expected.into(),
        });
    }

    fn require(&mut self, holds: bool, key: &str, value: impl Display, expected: &str) {
        if !holds {
            self.fail(key, format!("found {value}"), expected);
        }
    }

    fn fraction(&mut self, key: &str, value: f64) {
        let holds = (0.0..1.0).contains(&value);
        self.require(holds, key, value, "at least 0 and below 1");
    }

    fn positive(&mut self, key: &str, value: f64) {
        let holds = value > 0.0 && value.is_finite();
        self.require(holds, key, value, "a number above 0");
    }

    fn not_negative(&mut self, key: &str, value: f64) {
        let holds = value >= 0.0 && value.is_finite();
        self.require(holds, key, value, "a number of at least 0");
    }

    fn some_positive(&mut self, key: &str, value: Option<f64>) {
        if let Some(value) = value {
            self.positive(key, value);
        }
    }

    fn size(&mut self, key: &str, value: usize) {
        let holds = (1..=LARGEST_SIZE).contains(&value);
        self.require(holds, key, value, "1 to 1048576");
    }

    fn count(&mut self, key: &str, value: u64) {
        let holds = (1..=i64::MAX.unsigned_abs()).contains(&value);
        self.require(holds, key, value, "at least 1");
    }

    fn some_count(&mut self, key: &str, value: Option<u64>) {
        if let Some(value) = value {
            self.count(key, value);
        }
    }
}

/// Everything in `recipe` that does not fit, in the order of its sections.
pub(super) fn problems(recipe: &Recipe) -> Vec<Problem> {
    let mut check = Check::default();
    model(&mut check, &recipe.model);
    data(&mut check, &recipe.data, recipe.model.task());
    if recipe.model.tie() == Tie::All
        && recipe.data.synthetic.is_none()
        && !recipe.data.vocabulary.joint
    {
        check.fail(
            "model.tie",
            "found \"all\" with data.vocabulary.joint = false",
            "a joint vocabulary, or \"none\" or \"target\"",
        );
    }
    if let Model::Transformer(model) = &recipe.model {
        learned_positions(&mut check, model, recipe);
    }
    batch(&mut check, recipe);
    optimizer(&mut check, &recipe.optimizer);
    schedule(&mut check, &recipe.schedule);
    training(&mut check, &recipe.training);
    if recipe.model.task() == Task::Classification && recipe.training.scheduled_sampling.is_some() {
        let expected = "no such section: a classifier does not read its own words";
        check.fail(
            "training.scheduled_sampling",
            "set for a classifier",
            expected,
        );
    }
    validation(&mut check, &recipe.validation, recipe.model.task());
    translate(&mut check, &recipe.translate);
    check.problems
}

/// What of the search settings does not fit, of a recipe or of a model file.
pub(super) fn search_problems(settings: &Translation) -> Vec<Problem> {
    let mut check = Check::default();
    translate(&mut check, settings);
    check.problems
}

fn model(check: &mut Check, model: &Model) {
    match model {
        Model::Rnnsearch(model) => {
            check.size("model.embedding", model.embedding);
            check.size("model.hidden", model.hidden);
            check.size("model.attention_dimension", model.attention_dimension);
            check.size("model.maxout", model.maxout);
            let Dropout {
                embedding,
                annotation,
                output,
            } = model.dropout;
            check.fraction("model.dropout.embedding", embedding);
            check.fraction("model.dropout.annotation", annotation);
            check.fraction("model.dropout.output", output);
        }
        Model::Luong(model) => {
            check.size("model.embedding", model.embedding);
            check.size("model.hidden", model.hidden);
            check.size("model.layers", model.layers);
            check.size("model.attention_dimension", model.attention_dimension);
            check.size("model.max_source_length", model.max_source_length);
            check.size("model.window", model.window);
            stack_dropout(check, &model.dropout);
            if model.score == Score::Location && model.attention != AttentionKind::Global {
                check.fail(
                    "model.score",
                    "found \"location\" with local attention",
                    "\"dot\", \"general\" or \"concat\", or attention = \"global\"",
                );
            }
        }
        Model::Transformer(model) => transformer(check, model),
        Model::Seq2seq(model) => {
            check.size("model.embedding", model.embedding);
            check.size("model.hidden", model.hidden);
            check.size("model.layers", model.layers);
            check.size("model.maxout", model.maxout);
            stack_dropout(check, &model.dropout);
            if model.cell == Cell::GruContext && model.layers > 1 {
                check.fail(
                    "model.layers",
                    format!("found {} with cell = \"gru-context\"", model.layers),
                    "1, or cell = \"lstm\"",
                );
            }
        }
        Model::Lstmn(model) => {
            check.size("model.attention_dimension", model.attention_dimension);
            let sizes = [model.embedding, model.hidden, model.layers, model.readout];
            classifier(check, sizes, &model.dropout);
        }
        Model::Lstm(model) => {
            let sizes = [model.embedding, model.hidden, model.layers, model.readout];
            classifier(check, sizes, &model.dropout);
            if model.bidirectional {
                halves(check, model.hidden);
            }
        }
        Model::SelfAttentive(model) => {
            check.size("model.attention_dimension", model.attention_dimension);
            check.size("model.hops", model.hops);
            check.not_negative("model.penalty", model.penalty);
            let sizes = [model.embedding, model.hidden, model.layers, model.readout];
            classifier(check, sizes, &model.dropout);
            halves(check, model.hidden);
        }
        Model::Gnmt(model) => {
            check.size("model.embedding", model.embedding);
            check.size("model.hidden", model.hidden);
            check.size("model.layers", model.layers);
            check.size("model.attention_dimension", model.attention_dimension);
            stack_dropout(check, &model.dropout);
            let expected = "at least 2: one that reads both ways and one above it";
            check.require(model.layers > 1, "model.layers", model.layers, expected);
        }
    }
}

fn transformer(check: &mut Check, model: &Transformer) {
    for (key, size) in [
        ("model_size", Some(model.model_size)),
        ("encoder_layers", Some(model.encoder_layers)),
        ("decoder_layers", Some(model.decoder_layers)),
        ("heads", Some(model.heads)),
        ("key_value_heads", model.key_value_heads),
        ("feed_forward", Some(model.feed_forward)),
        ("max_length", Some(model.max_length)),
        ("reach", Some(model.reach)),
        ("window", model.window),
    ] {
        if let Some(size) = size {
            check.size(&format!("model.{key}"), size);
        }
    }
    let divides = |part: usize, whole: usize| part > 0 && whole.is_multiple_of(part);
    let expected = format!("a divisor of model.model_size ({})", model.model_size);
    let holds = divides(model.heads, model.model_size);
    check.require(holds, "model.heads", model.heads, &expected);
    if let Some(heads) = model.key_value_heads {
        let expected = format!("a divisor of model.heads ({})", model.heads);
        check.require(
            divides(heads, model.heads),
            "model.key_value_heads",
            heads,
            &expected,
        );
    }
    if model.positions == Positions::Rotary && holds {
        let size = model.model_size / model.heads;
        let expected = "heads of an even size (model_size / heads) for positions = \"rotary\"";
        check.require(
            size.is_multiple_of(2),
            "model.heads",
            format!("heads of {size}"),
            expected,
        );
    }
    let dropout = &model.dropout;
    check.fraction("model.dropout.embedding", dropout.embedding);
    check.fraction("model.dropout.residual", dropout.residual);
    check.fraction("model.dropout.attention", dropout.attention);
    check.fraction("model.dropout.activation", dropout.activation);
}

/// A trained position for everything that training and translation can meet; a mark is added to each sentence.
fn learned_positions(check: &mut Check, model: &Transformer, recipe: &Recipe) {
    if model.positions != Positions::Learned {
        return;
    }
    for (key, longest) in [
        ("data.filter.max_tokens", recipe.data.filter.max_tokens),
        (
            "translate.max_source_tokens",
            recipe.translate.max_source_tokens,
        ),
        (
            "translate.max_length.absolute",
            recipe.translate.max_length.absolute,
        ),
    ] {
        let expected = format!(
            "at most {}: positions = \"learned\" has model.max_length = {} of them, one for a mark",
            model.max_length.saturating_sub(1),
            model.max_length
        );
        check.require(longest < model.max_length, key, longest, &expected);
    }
}

/// What every classifier has: `embedding, hidden, layers, readout` and dropout.
fn classifier(check: &mut Check, sizes: [usize; 4], dropout: &ClassifierDropout) {
    let keys = ["embedding", "hidden", "layers", "readout"];
    for (key, size) in keys.into_iter().zip(sizes) {
        check.size(&format!("model.{key}"), size);
    }
    check.fraction("model.dropout.word", dropout.word);
    check.fraction("model.dropout.embedding", dropout.embedding);
    check.fraction("model.dropout.layers", dropout.layers);
    check.fraction("model.dropout.output", dropout.output);
}

fn halves(check: &mut Check, hidden: usize) {
    let expected = "an even number: each direction has half of the units";
    check.require(hidden.is_multiple_of(2), "model.hidden", hidden, expected);
}

fn stack_dropout(check: &mut Check, dropout: &StackDropout) {
    check.fraction("model.dropout.embedding", dropout.embedding);
    check.fraction("model.dropout.layers", dropout.layers);
    check.fraction("model.dropout.annotation", dropout.annotation);
    check.fraction("model.dropout.output", dropout.output);
}

fn labelled(check: &mut Check, data: &Data) {
    let files = [
        ("train_source", &data.train_source),
        ("train_target", &data.train_target),
        ("valid_source", &data.valid_source),
        ("valid_target", &data.valid_target),
        ("test_source", &data.test_source),
        ("test_target", &data.test_target),
    ];
    for (key, _) in files.into_iter().filter(|(_, file)| file.is_some()) {
        let expected = "the files of [data.labelled] alone";
        check.fail(&format!("data.{key}"), "set for a classifier", expected);
    }
    let Some(LabelledData { train, valid, .. }) = &data.labelled else {
        check.fail(
            "data.labelled",
            "missing",
            "a section [data.labelled] with train and valid, which a classifier learns from",
        );
        return;
    };
    for (key, file) in [("train", train), ("valid", valid)] {
        if file.is_none() {
            let key = format!("data.labelled.{key}");
            check.fail(&key, "missing", "a file of labelled sentences");
        }
    }
    if data.synthetic.is_some() {
        let expected = "labelled sentences or a task of translation, not both";
        check.fail(
            "data.synthetic",
            "set together with data.labelled",
            expected,
        );
    }
}

fn data(check: &mut Check, data: &Data, task: Task) {
    match task {
        Task::Translation => parallel(check, data),
        Task::Classification => labelled(check, data),
    }
    common_data(check, data);
}

fn parallel(check: &mut Check, data: &Data) {
    let files = [
        ("train", &data.train_source, &data.train_target),
        ("valid", &data.valid_source, &data.valid_target),
        ("test", &data.test_source, &data.test_target),
    ];
    for (part, source, target) in files {
        let (source_key, target_key) =
            (format!("data.{part}_source"), format!("data.{part}_target"));
        match (source, target, &data.synthetic) {
            (None, None, _) | (Some(_), Some(_), None) => {}
            (Some(_), None, None) => check.fail(
                &target_key,
                format!("missing, though {source_key} is set"),
                "both sides or none",
            ),
            (None, Some(_), None) => check.fail(
                &source_key,
                format!("missing, though {target_key} is set"),
                "both sides or none",
            ),
            (Some(_), _, Some(_)) => check.fail(
                &source_key,
                "set together with data.synthetic",
                "files or a synthetic task, not both",
            ),
            (None, Some(_), Some(_)) => check.fail(
                &target_key,
                "set together with data.synthetic",
                "files or a synthetic task, not both",
            ),
        }
        let needed = part != "test" && data.synthetic.is_none();
        if needed && source.is_none() && target.is_none() {
            check.fail(
                &source_key,
                "missing",
                "a file for each side, or a section [data.synthetic]",
            );
        }
    }
    if data.labelled.is_some() {
        let expected = "no [data.labelled], or one of the kinds of model that classify sentences";
        check.fail("data.labelled", "set for a model that translates", expected);
    }
}

fn common_data(check: &mut Check, data: &Data) {
    let size = data.vocabulary.size;
    check.require(
        (MINIMUM_VOCABULARY_SIZE..=LARGEST_SIZE).contains(&size),
        "data.vocabulary.size",
        size,
        "260 (the reserved tokens and the bytes) to 1048576",
    );
    check.size("data.filter.max_tokens", data.filter.max_tokens);
    if let Some(most) = data.filter.max_words {
        check.size("data.filter.max_words", most);
    }
    if let Some(ratio) = data.filter.max_ratio {
        let holds = ratio >= 1.0 && ratio.is_finite();
        check.require(holds, "data.filter.max_ratio", ratio, "at least 1");
    }
    if let Some(task) = &data.synthetic {
        check.size("data.synthetic.symbols", task.symbols);
        check.size("data.synthetic.min_length", task.min_length);
        check.size("data.synthetic.max_length", task.max_length);
        check.require(
            task.max_length >= task.min_length,
            "data.synthetic.max_length",
            task.max_length,
            "at least min_length",
        );
        for (key, sentences) in [
            ("data.synthetic.sentences", task.sentences),
            ("data.synthetic.valid_sentences", task.valid_sentences),
            ("data.synthetic.test_sentences", task.test_sentences),
        ] {
            let holds = (1..=100_000_000).contains(&sentences);
            check.require(holds, key, sentences, "1 to 100000000");
        }
    }
}

fn batch(check: &mut Check, recipe: &Recipe) {
    let batch = &recipe.batch;
    if let Some(tokens) = batch.tokens {
        check.size("batch.tokens", tokens);
    }
    if let Some(sentences) = batch.sentences {
        check.size("batch.sentences", sentences);
    }
    check.count("batch.pool", batch.pool as u64);
}

fn optimizer(check: &mut Check, optimizer: &Optimizer) {
    match optimizer {
        Optimizer::Adam(adam) => {
            check.fraction("optimizer.beta1", adam.beta1);
            check.fraction("optimizer.beta2", adam.beta2);
            check.positive("optimizer.epsilon", adam.epsilon);
        }
        Optimizer::AdamW(adamw) => {
            check.fraction("optimizer.beta1", adamw.beta1);
            check.fraction("optimizer.beta2", adamw.beta2);
            check.positive("optimizer.epsilon", adamw.epsilon);
            check.not_negative("optimizer.weight_decay", adamw.weight_decay);
        }
        Optimizer::Adadelta(adadelta) => {
            check.fraction("optimizer.rho", adadelta.rho);
            check.positive("optimizer.epsilon", adadelta.epsilon);
        }
        Optimizer::Sgd(sgd) => {
            check.fraction("optimizer.momentum", sgd.momentum);
            if sgd.nesterov && sgd.momentum == 0.0 {
                check.fail(
                    "optimizer.nesterov",
                    "found true with momentum = 0",
                    "false, or a momentum above 0",
                );
            }
        }
    }
    if let Some(norm) = optimizer.clip_norm() {
        check.not_negative("optimizer.clip_norm", norm);
    }
}

fn schedule(check: &mut Check, schedule: &Schedule) {
    check.positive("schedule.learning_rate", schedule.learning_rate());
    match schedule {
        Schedule::Constant(_) => {}
        Schedule::InverseSquareRoot(schedule) => check.count("schedule.warmup", schedule.warmup),
        Schedule::Plateau(schedule) => {
            let factor = schedule.factor;
            let holds = factor > 0.0 && factor < 1.0;
            check.require(holds, "schedule.factor", factor, "above 0 and below 1");
            check.count("schedule.patience", schedule.patience);
            let least = schedule.min_learning_rate;
            check.require(
                (0.0..=schedule.learning_rate).contains(&least),
                "schedule.min_learning_rate",
                least,
                "0 to learning_rate",
            );
        }
    }
}

fn training(check: &mut Check, training: &Training) {
    let holds = i64::try_from(training.seed).is_ok();
    check.require(
        holds,
        "training.seed",
        training.seed,
        "0 to 9223372036854775807",
    );
    check.some_count("training.epochs", training.epochs);
    check.some_count("training.steps", training.steps);
    check.some_positive("training.minutes", training.minutes);
    check.some_count("training.tokens", training.tokens);
    let limited = training.epochs.is_some()
        || training.steps.is_some()
        || training.minutes.is_some()
        || training.tokens.is_some();
    if !limited {
        let expected = "epochs, steps, minutes or tokens (or several)";
        check.fail("training", "found no limit", expected);
    }
    check.fraction("training.label_smoothing", training.label_smoothing);
    if let Every::Steps(steps) = training.validate_every {
        check.count("training.validate_every", steps);
    }
    check.some_count("training.patience", training.patience);
    let average = training.average;
    let holds = (1..=100).contains(&average);
    check.require(holds, "training.average", average, "1 to 100");
    check.count("training.log_every", training.log_every);
    if let Some(threads) = training.threads {
        let holds = (1..=1024).contains(&threads);
        check.require(holds, "training.threads", threads, "1 to 1024");
    }
    if let Some(sampling) = &training.scheduled_sampling {
        let probability = sampling.final_probability;
        check.require(
            (0.0..=1.0).contains(&probability),
            "training.scheduled_sampling.final_probability",
            probability,
            "0 to 1",
        );
        check.count(
            "training.scheduled_sampling.decay_steps",
            sampling.decay_steps,
        );
    }
}

fn validation(check: &mut Check, validation: &Validation, task: Task) {
    let refused = match (task, validation.measure) {
        (Task::Translation, Some(Measure::Accuracy)) => Some(("accuracy", "bleu")),
        (Task::Classification, Some(Measure::Bleu)) => Some(("bleu", "accuracy")),
        _ => None,
    };
    if let Some((found, expected)) = refused {
        let expected = format!("{expected:?} or \"loss\" for this kind of model");
        check.fail("validation.measure", format!("found {found:?}"), expected);
    }
    beam(check, "validation.beam", validation.beam);
    if let Some(most) = validation.max_sentences {
        check.count("validation.max_sentences", most as u64);
    }
    check.size("validation.batch_sentences", validation.batch_sentences);
}

fn translate(check: &mut Check, translate: &Translation) {
    beam(check, "translate.beam", translate.beam);
    check.not_negative("translate.length_penalty", translate.length_penalty);
    check.not_negative("translate.coverage_penalty", translate.coverage_penalty);
    check.require(
        (1..=translate.beam).contains(&translate.n_best),
        "translate.n_best",
        translate.n_best,
        "1 to translate.beam",
    );
    check.require(
        translate.no_repeat_ngram <= LARGEST_SIZE,
        "translate.no_repeat_ngram",
        translate.no_repeat_ngram,
        "0 to 1048576",
    );
    check.size("translate.batch_sentences", translate.batch_sentences);
    check.size("translate.max_source_tokens", translate.max_source_tokens);
    check.positive("translate.max_length.factor", translate.max_length.factor);
    check.require(
        translate.max_length.extra <= LARGEST_SIZE,
        "translate.max_length.extra",
        translate.max_length.extra,
        "0 to 1048576",
    );
    check.size(
        "translate.max_length.absolute",
        translate.max_length.absolute,
    );
}

fn beam(check: &mut Check, key: &str, beam: usize) {
    let holds = (1..=1_000).contains(&beam);
    check.require(holds, key, beam, "1 to 1000");
}
