//! `regard translate`: one line in, one line out, and what the model looked at.

use std::{
    fs::File,
    io::{self, BufRead, BufReader, IsTerminal, Read},
    path::{Path, PathBuf},
};

use burn::tensor::Device;
use regard_serve::{
    Generation,
    models::{generation, listed},
};
use regard_trace::Trace;
use regard_train::{
    TextToText, Translated, Translator, corpus::CorpusError, familiarity::Unfamiliar,
    recipe::Translation as Settings, translator::LineError,
};
use regard_view::{Heatmap, label::visible};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::pretrained;
use crate::{
    arguments::{Attention, Translate},
    failure::{CommandError, Failure},
    input::{self, Group, Groups},
    models,
    output::{self, Output},
    pictures::{self, Kept, Screen, expect_drawn},
    progress::Counter,
    ranks,
};

/// Batches that are collected before they are translated: sorting more lines by length wastes less,
/// but the first answer comes later.
const BATCHES_AT_ONCE: usize = 8;

/// The most unfamiliar lines that are warned of one by one; further ones are counted.
const WARNED: usize = 5;

/// Translates arguments, a file or standard input.
///
/// # Errors
/// Options that contradict each other, a model, line or file that is wrong.
pub fn run(options: &Translate) -> Result<(), Failure> {
    options
        .compute
        .run(None, |device| translate(options, device))
}

/// A model of ours, or a pretrained one.
enum Model {
    Own(Box<Translator>),
    Pretrained(Box<TextToText>),
}

impl Model {
    /// Also what it is read from, if it is not the embedded one.
    fn open(options: &Translate, device: &Device) -> Result<(Self, Option<PathBuf>), Failure> {
        if let Some(name) = options.model.as_deref().and_then(models::pretrained) {
            let prefix = options.prefix.as_deref().unwrap_or_default();
            let (storage, quiet) = (options.weights.storage(), options.quiet);
            let opened = pretrained::find(&name, quiet)?;
            let folder = opened.path.clone();
            let model = pretrained::text_to_text(opened, storage, prefix, quiet)?;
            return Ok((Self::Pretrained(Box::new(model)), Some(folder)));
        }
        for (option, given) in [
            ("--prefix", options.prefix.is_some()),
            ("--weights", options.weights.storage().is_some()),
        ] {
            if given {
                let message =
                    format!("{option} is for pretrained models; this is one of `regard train`");
                return Err(Failure::Usage(message));
            }
        }
        let (model, description) = models::open(options.model.as_deref(), device)?;
        let translator = Translator::new(model, description, device);
        Ok((Self::Own(Box::new(translator)), options.model.clone()))
    }

    /// The search that its files ask for.
    fn settings(&self) -> Settings {
        match self {
            Self::Own(model) => model.settings().clone(),
            Self::Pretrained(model) => model.settings(),
        }
    }
}

fn translate(options: &Translate, device: &Device) -> Result<(), Failure> {
    let (mut model, files) = Model::open(options, device)?;
    let mut settings = options.search.over(&model.settings());
    match (&model, options.search.max_length()) {
        (Model::Own(translator), _) => {
            models::expect_search(&translator.description().model, &options.search, &settings)?;
        }
        (Model::Pretrained(_), Some(longest)) => {
            settings.max_length = TextToText::at_most(longest);
        }
        (Model::Pretrained(_), None) => {}
    }
    settings.n_best = options.n_best.unwrap_or(1);
    if settings.n_best > settings.beam {
        return Err(Failure::Usage(format!(
            "--n-best {0} is more than the beam of {1} finds; give --beam {0} or a smaller --n-best",
            settings.n_best, settings.beam
        )));
    }
    if settings.coverage_penalty != 0.0 && matches!(model, Model::Pretrained(_)) {
        let message = "--coverage-penalty: a pretrained model is searched without it; leave it out";
        return Err(Failure::Usage(message.to_owned()));
    }
    let prefix = options.prefix.as_deref().map(visible);
    let asked = [
        serde_json::to_string_pretty(&settings)?,
        ranks::option("--n-best", options.n_best),
        format!("--json {}\n--resume {}", options.json, options.resume),
        ranks::option("--prefix", prefix),
        ranks::option("--weights", options.weights.typed()),
    ]
    .join("\n");
    // Lines of files are read by rank 0 for all.
    ranks::expect_same(files, &options.text, &asked)?;
    let at_once = settings.batch_sentences.max(1) * BATCHES_AT_ONCE * ranks::all().count();
    // Opened before the output is emptied: for a misspelt name nothing is lost.
    let groups = match options.text.is_empty() {
        true => Some(Groups::read(options.input.as_deref(), at_once)?),
        false => None,
    };
    let (writer, done) = Writer::new(options)?;
    if let Model::Own(translator) = model {
        model = Model::Own(Box::new(translator.looking(writer.looking)));
    }
    let mut work = Work {
        model,
        writer,
        settings,
        name: match (&options.input, options.text.is_empty()) {
            (Some(path), _) => input::name(path),
            (None, true) => "standard input".to_owned(),
            (None, false) => "the command line".to_owned(),
        },
        quiet: options.quiet,
        line: 0,
        unfinished: 0,
        unfamiliar: 0,
    };
    let Some(groups) = groups else {
        return match work.translate(&options.text) {
            Ok(()) => work.finish(),
            Err(error) => work.end(error),
        };
    };
    let typed = options.input.is_none() && io::stdin().is_terminal();
    if typed && !options.quiet {
        output::say("one sentence a line; Ctrl-D ends");
    }
    let shown = !options.quiet && !typed && !work.writer.is_on_terminal();
    let counter = Counter::new("lines", shown);
    for group in groups {
        let Group { mut lines, error } = group?;
        // What is done already is read, and no more.
        let skipped = lines.len().min(done.saturating_sub(work.line));
        lines.drain(..skipped);
        work.line += skipped;
        if let Err(error) = work.translate(&lines) {
            return work.end(error);
        }
        counter.set(work.line);
        if let Some(error) = error {
            return work.end(error.into());
        }
    }
    counter.finish();
    if work.line < done {
        return Err(Failure::Usage(format!(
            "--resume: the output has {done} lines already, the input only {}; give the same input as before, or leave --resume out",
            work.line
        )));
    }
    if work.line == 0 {
        match &options.input {
            Some(path) => return Err(CorpusError::Empty { path: path.clone() }.into()),
            None if !typed && !options.quiet => output::warn("standard input had no lines"),
            None => {}
        }
    }
    work.finish()
}

/// The state of the command while it translates.
struct Work<'a> {
    model: Model,
    settings: Settings,
    writer: Writer<'a>,
    /// Where the lines come from.
    name: String,
    quiet: bool,
    /// Lines done.
    line: usize,
    /// Translations that the length limit ended.
    unfinished: usize,
    /// Lines that are far from the model's training text.
    unfamiliar: usize,
}

impl Work<'_> {
    fn translated(&self, lines: &[String]) -> Result<Vec<Translated>, LineError> {
        match &self.model {
            Model::Own(model) => model.translate(lines, &self.settings),
            Model::Pretrained(model) => model.translate(lines, &self.settings, self.writer.looking),
        }
    }

    /// How line `number` is searched for.
    fn search(&self, line: &str, number: usize) -> Result<Generation, Failure> {
        let settings = &self.settings;
        let found = match &self.model {
            Model::Own(model) => model.search_tree(line, settings, listed(settings)),
            Model::Pretrained(model) => model.search_tree(line, settings, listed(settings)),
        };
        let (found, tree) = found.map_err(|error| self.refused(error.of_line(number)))?;
        let traces = found.into_iter().map(|one| one.trace).collect();
        let following = |context: &[u32], tokens: &[u32]| {
            let texts = match &self.model {
                Model::Own(model) => model.following(context, tokens).map_err(LineError::from),
                Model::Pretrained(model) => {
                    model.following(context, tokens).map_err(LineError::from)
                }
            };
            texts.map_err(|error| error.to_string())
        };
        generation(tree, traces, following).map_err(Failure::Usage)
    }

    fn translate(&mut self, lines: &[String]) -> Result<(), Failure> {
        let done = self.line;
        let answers = ranks::all().spread(lines, |begin, own| self.answers(done + begin, own))?;
        self.write(lines, answers)
    }

    /// The answers to `lines`, which stand behind `before` others.
    fn answers(&mut self, before: usize, lines: &[String]) -> Result<Vec<Answer>, Failure> {
        let error = match self.translated(lines) {
            Ok(translated) => return self.answered(before, lines, &translated),
            Err(error) => error,
        };
        let Some(line) = error.line() else {
            return Err(error.into());
        };
        // The lines before the refused one are still translated, unless other processes have theirs in front of it.
        if ranks::all().is_alone() {
            let whole = &lines[..(line - 1).min(lines.len())];
            let answers = self.answers(before, whole)?;
            self.write(whole, answers)?;
        }
        Err(self.refused(error.after(before)))
    }

    /// The same of what they were `translated` to. If a search cannot be shown, all of them are written before the error.
    fn answered(
        &mut self,
        before: usize,
        lines: &[String],
        translated: &[Translated],
    ) -> Result<Vec<Answer>, Failure> {
        let answers = self.writer.answers(before, lines, translated)?;
        if !self.writer.kept.shows_search() {
            return Ok(answers);
        }
        let mut refused = None;
        for (line, number) in lines.iter().zip(before + 1..) {
            match self.search(line, number) {
                Ok(generation) => self.writer.kept.searched(number, generation),
                Err(error) => refused = refused.or(Some(error)),
            }
        }
        match refused {
            None => Ok(answers),
            Some(error) => {
                self.write(lines, answers)?;
                Err(error)
            }
        }
    }

    /// Why a line was refused, whose number counts all lines.
    fn refused(&self, source: LineError) -> Failure {
        let (name, source) = (self.name.clone(), Box::new(source));
        CommandError::Line { name, source }.into()
    }

    /// Writes the pictures, and prints warnings about the whole input.
    fn finish(&mut self) -> Result<(), Failure> {
        self.warn_of_all();
        self.writer.finish()
    }

    /// The same of the lines before `error`, which ends the command.
    fn end(&self, error: Failure) -> Result<(), Failure> {
        self.warn_of_all();
        self.writer.kept.end(error)
    }

    fn warn_of_all(&self) {
        if self.unfinished > 0 && !self.quiet {
            output::warn(&format!(
                "{} of {} translations were ended by the length limit (--max-length)",
                self.unfinished, self.line
            ));
        }
        if self.unfamiliar > WARNED && !self.quiet {
            output::warn(&format!(
                "{} of {} sentences are far from what the model was trained on; the first {WARNED} were named",
                self.unfamiliar, self.line
            ));
        }
    }

    /// Warns of a sentence that is far from the model's training text.
    fn warn_of(&mut self, source: &str, why: &str) {
        self.unfamiliar += 1;
        if self.quiet || self.unfamiliar > WARNED {
            return;
        }
        let place = match self.writer.options.text.len() {
            1 => String::new(),
            _ => format!("{}: line {}: ", self.name, self.line),
        };
        output::warn(&format!(
            "{place}\"{}\" is far from what the model was trained on, and its translation may be nonsense: {}",
            visible(&shortened(source.trim())),
            visible(why)
        ));
    }

    fn write(&mut self, lines: &[String], answers: Vec<Answer>) -> Result<(), Failure> {
        for (source, answer) in lines.iter().zip(answers) {
            self.line += 1;
            if let Some(length) = answer.cut_from
                && !self.quiet
            {
                output::warn(&format!(
                    "{}: line {} has {length} tokens; only the first {} are translated (--max-source-tokens)",
                    self.name, self.line, self.settings.max_source_tokens
                ));
            }
            self.unfinished += usize::from(answer.unfinished);
            self.writer.output.text(&answer.text)?;
            if let Some(why) = &answer.unfamiliar {
                self.warn_of(source, why);
            }
        }
        self.writer.flush()
    }
}

/// What is written about a line.
#[derive(Serialize, Deserialize)]
struct Answer {
    /// For standard output, or the file of `--output`.
    text: String,
    /// The line's tokens, if it was cut.
    cut_from: Option<usize>,
    /// Whether the length limit ended the best translation.
    unfinished: bool,
    /// Why the line is far from what the model was trained on, if it is.
    unfamiliar: Option<String>,
}

/// The first sixty characters.
fn shortened(text: &str) -> String {
    const MOST: usize = 60;
    match text.char_indices().nth(MOST) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

/// Writes translations and pictures.
struct Writer<'a> {
    options: &'a Translate,
    output: Output,
    is_terminal: bool,
    screen: Option<Screen>,
    kept: Kept<'a>,
    /// Whether any attention weights are printed or written to a file, so that they must be recorded.
    looking: bool,
    /// The model without attention whose heat map was asked for.
    unattended: Option<String>,
}

#[derive(Serialize)]
struct JsonLine<'a> {
    line: usize,
    source: &'a str,
    /// The line's tokens, if it was cut.
    #[serde(skip_serializing_if = "Option::is_none")]
    cut_from: Option<usize>,
    /// Why the line is far from what the model was trained on, if it is.
    #[serde(skip_serializing_if = "Option::is_none")]
    unfamiliar: Option<&'a Unfamiliar>,
    translations: Vec<JsonTranslation<'a>>,
}

#[derive(Serialize)]
struct JsonTranslation<'a> {
    rank: usize,
    text: &'a str,
    score: f64,
    log_probability: f64,
    finished: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    attention: Option<JsonAttention>,
}

/// The weights of one map, or several maps.
#[derive(Serialize)]
#[serde(untagged)]
enum JsonAttention {
    One(JsonMap),
    Several(Vec<JsonMap>),
}

/// `weights[target][source]`, or `[query][key]` for self-attention.
#[derive(Serialize)]
struct JsonMap {
    /// The name of the map, for a model that has several.
    #[serde(skip_serializing_if = "String::is_empty")]
    map: String,
    source: Vec<String>,
    target: Vec<String>,
    weights: Vec<Vec<f32>>,
}

/// The bytes of the first line of an output that are looked at: as many as a line of input may have.
const LONGEST: u64 = 1 << 28;

/// Refuses to go on with a file in another form: with lines of text by `json`, or with those of `--json` without it.
fn expect_form(path: &Path, json: bool) -> Result<(), Failure> {
    let mut line = vec![];
    let first = |file: File| BufReader::new(file.take(LONGEST)).read_until(b'\n', &mut line);
    let read = File::open(path).and_then(first);
    // What is not there, or has no whole line, is begun anew; what cannot be read is told as it is opened for writing.
    if !ranks::is_first() || read.is_err() || !line.ends_with(b"\n") {
        return Ok(());
    }
    let found = serde_json::from_slice::<Value>(&line);
    let (holds, advice) = match found.is_ok_and(|found| found["translations"].is_array()) {
        is_json if is_json == json => return Ok(()),
        true => ("lines of JSON", "add --json"),
        false => ("lines of text", "leave --json out"),
    };
    Err(Failure::Usage(format!(
        "--resume: {} holds {holds}, which others would be mixed with; {advice}, or name another --output",
        path.display()
    )))
}

impl<'a> Writer<'a> {
    /// Also how many lines were written before.
    fn new(options: &'a Translate) -> Result<(Self, usize), Failure> {
        let is_terminal = options.output.is_none() && io::stdout().is_terminal();
        let drawn = match options.attention {
            Attention::Never => false,
            Attention::Auto => is_terminal && options.text.len() == 1,
            Attention::Always => true,
        };
        let as_json = options.json && options.attention == Attention::Always;
        let pictures = &options.pictures;
        expect_drawn(pictures, drawn || as_json, "--attention always")?;
        if options.resume && (drawn || options.n_best.is_some() && !options.json) {
            let message = "--resume needs a line of output for each line of input; leave --n-best and --attention out, or add --json";
            return Err(Failure::Usage(message.to_owned()));
        }
        let kept = Kept::new(pictures, &options.trace, options.model.as_ref())?;
        let model = options.model.iter().flat_map(output::model_files);
        let written = options.output.iter().map(|path| (path, false));
        output::expect_apart(model.chain(options.input.clone()), written)?;
        kept.expect_apart(options.input.iter().chain(&options.output), true)?;
        let screen = (drawn && !options.json).then(|| Screen::detect(&options.pictures));
        let looking =
            screen.is_some() || kept.is_wanted() || options.attention == Attention::Always;
        if looking && !ranks::all().is_alone() {
            let message = "attention is shown, and written to files, by one process; start this without mpirun";
            return Err(Failure::Usage(message.to_owned()));
        }
        let (output, done) = match &options.output {
            Some(path) if options.resume => {
                expect_form(path, options.json)?;
                Output::resumed(path)?
            }
            path => (Output::open(path.as_deref())?, 0),
        };
        let writer = Self {
            options,
            kept,
            output,
            is_terminal,
            screen,
            looking,
            unattended: None,
        };
        Ok((writer, done))
    }

    fn is_on_terminal(&self) -> bool {
        self.is_terminal
    }

    /// The answers to `lines`, which stand behind `before` others; pictures of them are kept.
    fn answers(
        &mut self,
        before: usize,
        lines: &[String],
        translated: &[Translated],
    ) -> Result<Vec<Answer>, Failure> {
        let lines = lines.iter().zip(translated).zip(before + 1..);
        let answer = |((source, translated), line): ((&String, &Translated), usize)| {
            let best = translated.n_best.first();
            Ok(Answer {
                text: self.text(line, source, translated)?,
                cut_from: translated.cut_from,
                unfinished: best.is_some_and(|best| !best.finished),
                unfamiliar: translated.unfamiliar.as_ref().map(ToString::to_string),
            })
        };
        lines.map(answer).collect()
    }

    fn text(
        &mut self,
        line: usize,
        source: &str,
        translated: &Translated,
    ) -> Result<String, Failure> {
        let mut all = String::new();
        if self.options.json {
            all += &self.json(line, source, translated)?;
            all.push('\n');
        }
        for (index, translation) in translated.n_best.iter().enumerate() {
            let rank = index + 1;
            if !self.options.json {
                let text = self.one_line(&translation.text);
                all += &match self.options.n_best {
                    Some(_) => format!(
                        "{line} ||| {rank} ||| {text} ||| {:.4}\n",
                        translation.score
                    ),
                    None => text + "\n",
                };
            }
            if translation.trace.maps.is_empty() && !source.trim().is_empty() {
                self.unattended = Some(translation.trace.model.clone());
            }
            if let Some(screen) = &self.screen {
                all += &screen.draw(&translation.trace)?;
            }
            self.kept.push(line, rank, &translation.trace)?;
        }
        Ok(all)
    }

    /// A translation on a single line, without characters that could control a terminal.
    fn one_line(&self, text: &str) -> String {
        text.chars()
            .map(|c| match c {
                '\n' | '\r' => ' ',
                c if self.is_terminal && c.is_control() && c != '\t' => '\u{fffd}',
                c => c,
            })
            .collect()
    }

    fn json(&self, line: usize, source: &str, translated: &Translated) -> Result<String, Failure> {
        let translations = translated
            .n_best
            .iter()
            .zip(1..)
            .map(|(translation, rank)| {
                let wanted = self.options.attention == Attention::Always;
                let attention = match wanted {
                    true => self.attention(&translation.trace)?,
                    false => None,
                };
                Ok(JsonTranslation {
                    rank,
                    text: &translation.text,
                    score: translation.score,
                    log_probability: translation.log_probability,
                    finished: translation.finished,
                    attention,
                })
            })
            .collect::<Result<_, Failure>>()?;
        Ok(serde_json::to_string(&JsonLine {
            line,
            source,
            cut_from: translated.cut_from,
            unfamiliar: translated.unfamiliar.as_ref(),
            translations,
        })?)
    }

    fn attention(&self, trace: &Trace) -> Result<Option<JsonAttention>, Failure> {
        let trace = pictures::shown(trace, self.options.pictures.subwords);
        let maps = self.options.pictures.choice().heatmaps(&trace)?;
        let json = |map: &Heatmap| JsonMap {
            map: map.title().to_owned(),
            source: map.columns().to_vec(),
            target: map.rows().to_vec(),
            weights: map
                .values()
                .chunks(map.columns().len().max(1))
                .map(<[f32]>::to_vec)
                .collect(),
        };
        Ok(match maps.as_slice() {
            [] => None,
            [map] => Some(JsonAttention::One(json(map))),
            maps => Some(JsonAttention::Several(maps.iter().map(json).collect())),
        })
    }

    fn flush(&mut self) -> Result<(), Failure> {
        self.output.flush()
    }

    /// Writes the pictures.
    fn finish(&mut self) -> Result<(), Failure> {
        self.output.flush()?;
        if let Some(model) = &self.unattended
            && self.options.attention == Attention::Always
            && !self.options.quiet
        {
            pictures::warn_of_nothing(model);
        }
        self.kept.write()
    }
}
