//! `regard inspect --model`: a sentence's label, and what the classifier looked at.

use std::path::Path;

use burn::tensor::Device;
use regard_trace::AttentionMap;
use regard_train::{Classification, Registry, SentenceClassifier, corpus::CorpusError};
use serde_json::{Value, json};

use crate::{
    arguments::Inspect,
    failure::Failure,
    input::{Group, Groups},
    output::{self, Output},
    pictures::{self, Kept, Screen},
};

/// Most sentences that are classified together.
const AT_ONCE: usize = 32;

/// Classifies arguments, a file or standard input, and shows what was looked at.
///
/// # Errors
/// A model or a file that is wrong, a picture that cannot be written.
pub fn run(options: &Inspect, model: &Path) -> Result<(), Failure> {
    let compute = &options.sentences.compute;
    compute.run(None, |device| inspect(options, model, device))
}

fn inspect(options: &Inspect, model: &Path, device: &Device) -> Result<(), Failure> {
    let classifier = Registry::default().classifier(model, device)?;
    let mut writer = Writer {
        options,
        classifier: &classifier,
        output: Output::standard(),
        screen: Screen::detect(&options.sentences.pictures),
        kept: Kept::new(&options.sentences.pictures, &options.sentences.trace),
        line: 0,
    };
    if !options.subjects.is_empty() {
        writer.classify(&options.subjects)?;
        return writer.finish();
    }
    for Group { lines, error } in Groups::read(options.sentences.input.as_deref(), AT_ONCE) {
        writer.classify(&lines)?;
        if let Some(error) = error {
            // The sentences classified before the error still get their pictures.
            writer.finish()?;
            return Err(error.into());
        }
    }
    if let (0, Some(path)) = (writer.line, &options.sentences.input) {
        return Err(CorpusError::Empty { path: path.clone() }.into());
    }
    writer.finish()
}

/// Writes answers and pictures.
struct Writer<'a> {
    options: &'a Inspect,
    classifier: &'a SentenceClassifier,
    output: Output,
    screen: Screen,
    kept: Kept<'a>,
    line: usize,
}

impl Writer<'_> {
    fn classify(&mut self, lines: &[String]) -> Result<(), Failure> {
        for (text, found) in lines.iter().zip(self.classifier.classify(lines)?) {
            self.line += 1;
            if let Some(length) = found.cut_from {
                output::warn(&format!(
                    "sentence {} has {length} tokens; only the first {} are read",
                    self.line,
                    self.classifier.description().max_tokens
                ));
            }
            match self.options.json {
                true => self.output.line(&self.json(text, &found).to_string())?,
                false => {
                    let text = regard_view::label::visible(text);
                    let share = 100.0 * found.probability();
                    let label = regard_view::label::visible(&found.label);
                    self.output
                        .line(&format!("{label} ({share:.1} %): {text}"))?;
                    self.output.text(&self.screen.draw(&found.trace)?)?;
                }
            }
            self.kept.push(self.line, 1, &found.trace)?;
        }
        self.output.flush()
    }

    fn json(&self, text: &str, found: &Classification) -> Value {
        let labels = &self.classifier.description().labels;
        let probabilities: serde_json::Map<String, Value> = labels
            .iter()
            .zip(&found.probabilities)
            .map(|(label, &probability)| (label.clone(), json!(probability)))
            .collect();
        let trace = pictures::shown(&found.trace, self.options.sentences.pictures.subwords);
        json!({
            "line": self.line,
            "text": text,
            "label": found.label,
            "probabilities": probabilities,
            "maps": trace.maps.iter().map(map).collect::<Vec<_>>(),
        })
    }

    /// Writes the pictures.
    fn finish(&mut self) -> Result<(), Failure> {
        self.output.flush()?;
        self.kept.write()
    }
}

/// `weights[head][query][key]`.
fn map(map: &AttentionMap) -> Value {
    let [heads, queries, _] = map.shape();
    let head = |head| -> Vec<&[f32]> { (0..queries).map(|q| map.row(head, q)).collect() };
    json!({
        "name": map.name(),
        "layer": map.layer(),
        "queries": map.queries().labels(),
        "keys": map.keys().labels(),
        "weights": (0..heads).map(head).collect::<Vec<_>>(),
    })
}
