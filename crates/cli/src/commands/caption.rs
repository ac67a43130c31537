//! `regard caption`.

use burn::tensor::Device;
use regard_trace::Trace;
use regard_view::label::visible;
use serde_json::json;

use super::{image_paths, open_images, reduced};
use crate::{arguments::Caption, failure::Failure, models, output::Output, pictures::Shown};

/// Images that are read and captioned together.
const AT_ONCE: usize = 64;

/// Captions image files.
///
/// # Errors
/// A model or an image that is wrong, a picture that cannot be written.
pub fn run(options: &Caption) -> Result<(), Failure> {
    options.compute.run(None, |device| work(options, device))
}

fn work(options: &Caption, device: &Device) -> Result<(), Failure> {
    let captioner = models::captioner(options.model.as_deref(), device)?;
    let mut settings = captioner.settings().clone();
    settings.n_best = 1;
    settings.beam = options.beam.unwrap_or(settings.beam);
    let preparation = &captioner.description().preparation;
    let (mut out, mut shown) = (
        Output::standard(),
        Shown::new(&options.show, options.model.as_ref())?,
    );
    let files = image_paths(&options.images)?;
    shown.expect_apart(&files, files.len() > 1)?;
    let mut line = 0;
    for files in files.chunks(AT_ONCE) {
        let (images, broken) = open_images(files, &preparation.decoding(), usize::MAX, |image| {
            reduced(image, preparation)
        });
        let found = captioner.caption(&images, &settings)?;
        let best = found
            .into_iter()
            .filter_map(|n_best| n_best.into_iter().next());
        for (best, file) in best.zip(files) {
            line += 1;
            let file = file.display().to_string();
            let trace = Trace {
                source: file.clone(),
                ..best.trace
            };
            match options.show.json {
                true => {
                    let mut object = json!({
                        "line": line,
                        "image": file,
                        "caption": best.text,
                        "score": best.score,
                        "log_probability": best.log_probability,
                        "finished": best.finished,
                    });
                    if let Some(maps) = shown.json(&trace) {
                        object["maps"] = maps;
                    }
                    out.line(&object.to_string())?;
                }
                false => out.line(&format!("{}: {}", visible(&best.text), visible(&file)))?,
            }
            shown.push(&mut out, line, &trace)?;
        }
        out.flush()?;
        if let Some(error) = broken {
            return shown.end(error);
        }
    }
    shown.write()
}
