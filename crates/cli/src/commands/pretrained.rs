//! What the commands for pretrained models share.

use std::path::Path;

use burn::tensor::Device;
use regard_kernels::matmul::Storage;
use regard_models::pretrained::{Encoding, Heads, Input, Look, Pooling, TextEncoder};
use regard_nn::devices::is_card;
use regard_trace::Trace;
use regard_train::{
    TextToText,
    opened::{Opened, TextModel, expect_room, input_of},
};

use crate::{
    devices,
    failure::{CommandError, Failure},
    input, models, output,
};

/// Finds a model by a path or a name, as [`Opened::find`] does; the progress of a download is shown unless `quiet`.
///
/// # Errors
/// What is wrong with its files.
pub fn find(name: &str, quiet: bool) -> Result<Opened, Failure> {
    Ok(Opened::find(name, |name| models::folder(name, quiet))?)
}

/// Reads the weights onto `device` if that is a card and computes the model, and packs them for the kernels of the CPU otherwise, with a
/// warning that says why.
///
/// # Errors
/// What is wrong with its files.
pub fn model_on(
    device: &Device,
    opened: &Opened,
    storage: Option<Storage>,
    quiet: bool,
) -> Result<TextModel, Failure> {
    if !is_card(device) {
        return model(opened, storage, quiet);
    }
    let narrow = storage.is_some_and(|storage| storage != Storage::F32);
    match (!narrow).then(|| opened.on_card(device)) {
        None => devices::tell_cpu_as(&opened.name, "weights have 32 bits on a card"),
        Some(Ok(model)) => {
            warn_of_tokens(opened.tokenizer.without_rows(), quiet);
            return Ok(model);
        }
        Some(Err(reason)) => devices::tell_cpu_as(&opened.name, &reason.to_string()),
    }
    model(opened, storage, quiet)
}

/// Reads the weights and packs them for the kernels of the CPU, with a warning of what the tokenizer has and the model has not.
///
/// # Errors
/// What is wrong with its files.
pub fn model(opened: &Opened, storage: Option<Storage>, quiet: bool) -> Result<TextModel, Failure> {
    devices::tell_cpu(&opened.name);
    let model = opened.model(storage)?;
    warn_of_tokens(opened.tokenizer.without_rows(), quiet);
    Ok(model)
}

/// Warns of tokens without an embedding, unless `quiet`.
fn warn_of_tokens(warning: Option<String>, quiet: bool) {
    if let (false, Some(warning)) = (quiet, warning) {
        output::warn(&warning);
    }
}

/// Reads an encoder-decoder that has `prefix` in front of every text, with warnings of tokens without an embedding and of settings of its
/// files that its search does not obey, unless `quiet`.
///
/// # Errors
/// What is wrong with its files.
pub fn text_to_text(
    opened: Opened,
    storage: Option<Storage>,
    prefix: &str,
    quiet: bool,
) -> Result<TextToText, Failure> {
    let name = opened.name.clone();
    devices::tell_cpu(&name);
    let model = TextToText::read(opened, storage, prefix)?;
    warn_of_tokens(model.without_rows(), quiet);
    warn_of_ignored(&name, model.ignored(), quiet);
    Ok(model)
}

/// Warns of settings in the files of the model `name` that are not obeyed, unless `quiet`.
pub fn warn_of_ignored(name: &str, ignored: &[&str], quiet: bool) {
    if !ignored.is_empty() && !quiet {
        let ignored = ignored.join(", ");
        output::warn(&format!(
            "{name}: {ignored} of its files are not obeyed; what transformers writes may differ"
        ));
    }
}

/// Refuses `--weights` for a model of which there is one form only.
///
/// # Errors
/// A usage error.
pub fn expect_no_weights(storage: Option<Storage>) -> Result<(), Failure> {
    match storage {
        None => Ok(()),
        Some(_) => Err(Failure::Usage(
            "--weights is for pretrained models of texts, and for CLIP; the weights of this one stay as they are, leave it out"
                .to_owned(),
        )),
    }
}

/// Refuses results of the model `name` that are no numbers.
///
/// # Errors
/// [`CommandError::NotFinite`].
pub fn expect_finite(
    name: &str,
    numbers: impl IntoIterator<Item = impl Into<f64>>,
) -> Result<(), Failure> {
    match numbers.into_iter().all(|number| number.into().is_finite()) {
        true => Ok(()),
        false => Err(CommandError::NotFinite {
            model: name.to_owned(),
        }
        .into()),
    }
}

/// Why an encoder that is looked at computes on the CPU.
pub const SEEN: &str = "there it can be seen what an encoder looked at";

/// The states of a text, `[tokens, model]`, and what the model looked at.
type ReadText = (Vec<f32>, Option<Trace>);

/// An encoder of texts with its tokenizer.
pub struct Encoder {
    /// Its folder and tokenizer.
    pub opened: Opened,
    /// The model.
    pub model: TextEncoder,
}

impl Encoder {
    /// Finds and opens a model, as [`find`] and [`model_on`] do.
    ///
    /// # Errors
    /// What is wrong with its files.
    pub fn open(
        name: &str,
        device: &Device,
        storage: Option<Storage>,
        quiet: bool,
    ) -> Result<Self, Failure> {
        let opened = find(name, quiet)?;
        match model_on(device, &opened, storage, quiet)? {
            TextModel::Reads(model) => Ok(Self {
                model: *model,
                opened,
            }),
            _ => Err(opened
                .other("one of the encoders, which read a text as a whole, such as BERT")
                .into()),
        }
    }

    /// The error for a head of another kind.
    pub fn other_head(&self, expected: &'static str) -> Failure {
        let (found, command) = match self.model.purpose() {
            None => ("no head", "embed"),
            Some(Heads::MaskedTokens) => ("a head for masked words", "fill"),
            Some(Heads::Classes(_)) => ("a head for classes of texts", "classify"),
            Some(Heads::TokenClasses(_)) => ("a head for classes of tokens", "classify"),
            Some(Heads::Span) => ("a head for spans of answers", "answer"),
        };
        let folder = self.opened.path.clone();
        CommandError::OtherHead {
            folder,
            found,
            expected,
            command,
        }
        .into()
    }

    /// How texts become vectors: behind the prompt of this name, or the default one.
    ///
    /// # Errors
    /// Files that cannot be read, or a name that no prompt of the model has.
    pub fn pooling(&self, prompt: Option<&str>) -> Result<Pooling, Failure> {
        let pooling = Pooling::open(&self.opened.path)?;
        let Some(name) = prompt else {
            return Ok(pooling);
        };
        let names: Vec<&str> = pooling.prompts().collect();
        let problem = match names.is_empty() {
            true => "the model has no prompts; leave --prompt out".to_owned(),
            false => format!("no such prompt; expected one of {}", names.join(", ")),
        };
        let other = || Failure::Usage(format!("--prompt {name}: {problem}"));
        pooling.with_prompt(name)?.ok_or_else(other)
    }

    /// Texts as tokens, as `pooling` reads them.
    ///
    /// # Errors
    /// A tokenizer that fails.
    pub fn encode_by(&self, pooling: &Pooling, texts: &[String]) -> Result<Vec<Encoding>, Failure> {
        let tokenizer = &self.opened.tokenizer;
        let each = texts
            .iter()
            .map(|text| Ok(pooling.encode(tokenizer, text)?));
        each.collect()
    }

    /// Texts as tokens, with the model's special tokens around each.
    ///
    /// # Errors
    /// A tokenizer that fails.
    pub fn encode(&self, texts: &[String]) -> Result<Vec<Encoding>, Failure> {
        let tokenizer = &self.opened.tokenizer;
        let each = texts.iter().map(|text| Ok(tokenizer.encode(text, true)?));
        each.collect()
    }

    /// The states of texts, `[tokens, model]` of each, and what the model looked at if `looking`: it reads them together, or one by
    /// one if it is looked at.
    ///
    /// # Errors
    /// As [`Encoder::batch`] and [`Encoder::states`].
    pub fn read(
        &self,
        texts: &[String],
        encoded: &[Encoding],
        looking: bool,
    ) -> Result<Vec<ReadText>, Failure> {
        if looking {
            let each = texts.iter().zip(encoded);
            return each
                .map(|(text, encoded)| self.states(text, encoded, true))
                .collect();
        }
        let states = self.batch(encoded)?.into_iter();
        Ok(states.map(|states| (states, None)).collect())
    }

    /// The states of texts, `[tokens, model]` of each.
    ///
    /// # Errors
    /// A text that is too long.
    pub fn batch(&self, encoded: &[Encoding]) -> Result<Vec<Vec<f32>>, Failure> {
        let inputs: Vec<Input> = encoded.iter().map(input_of).collect();
        Ok(self.model.states(&inputs, None)?)
    }

    /// The states of a text, and what the model looked at if `looking`.
    ///
    /// # Errors
    /// A text that is too long, or without tokens; more weights than are kept.
    pub fn states(
        &self,
        text: &str,
        encoded: &Encoding,
        looking: bool,
    ) -> Result<ReadText, Failure> {
        if encoded.ids.is_empty() {
            return Err(no_tokens(text));
        }
        let mut look = looking.then(|| Look::new(encoded.ids.len()));
        if let Some(look) = &look {
            let stack = self.model.stack();
            expect_room(look, stack.blocks().len(), stack.sizes().heads)?;
            devices::tell_cpu_as(&self.opened.name, SEEN);
        }
        let observer = look.as_mut().map(|look| look as _);
        let states = self.model.states(&[input_of(encoded)], observer)?;
        let trace = look.map(|look| self.opened.trace(text, &encoded.ids, look));
        Ok((states.into_iter().flatten().collect(), trace.transpose()?))
    }
}

/// The error for a text without tokens.
pub fn no_tokens(text: &str) -> Failure {
    Failure::Usage(format!("{text:?} has no tokens; give some text"))
}

/// How many characters stand before a byte of a text.
pub fn characters(text: &str, byte: usize) -> usize {
    text[..byte].chars().count()
}

/// The texts of the command line, or else the lines of standard input, without empty ones.
///
/// # Errors
/// Standard input that cannot be read, or has no text.
pub fn texts(given: &[String]) -> Result<Vec<String>, Failure> {
    if !given.is_empty() {
        return Ok(given.to_vec());
    }
    let input = Path::new("-");
    let text = input::text(input)?;
    let lines = text.lines().map(str::trim_end);
    let lines: Vec<String> = lines
        .filter(|line| !line.is_empty())
        .map(str::to_owned)
        .collect();
    match lines.is_empty() {
        true => Err(input::no_text(input)),
        false => Ok(lines),
    }
}
