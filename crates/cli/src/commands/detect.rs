//! `regard detect`.

use std::{path::PathBuf, slice};

use burn::tensor::Device;
use regard_images::{Bounds, Image};
use regard_models::pretrained::Folder;
use regard_trace::Trace;
use regard_train::{DetectedObject, Detector, Registry};
use regard_view::label::visible;
use serde_json::{Value, json};

use super::{image_paths, open_images};
use crate::{
    arguments::Detect,
    failure::{CommandError, Failure},
    models::{folder, pretrained},
    output::{self, Output},
    pictures::Shown,
};

/// Most images that are read together, and how many pixels of them are enough: they stay as they are, since boxes, masks and pictures are
/// of their sizes.
const AT_ONCE: usize = 32;
const PIXELS_AT_ONCE: usize = 1 << 25;

/// Finds the objects in images.
///
/// # Errors
/// A model or an image that is wrong, a picture that cannot be written.
pub fn run(options: &Detect) -> Result<(), Failure> {
    options.compute.run(None, |device| work(options, device))
}

fn work(options: &Detect, device: &Device) -> Result<(), Failure> {
    let detector = match pretrained(&options.model) {
        Some(name) => {
            let folder = Folder::open(folder(&name, options.show.quiet)?)?;
            Detector::pretrained(&folder, device)?
        }
        None => Registry::default().detector(&options.model, device)?,
    };
    if options.masks && !detector.has_masks() {
        return Err(Failure::Usage(
            "--masks: the model was trained without masks; leave it out, or train with model.masks=true (of DETR's published models the panoptic ones have masks)".to_owned(),
        ));
    }
    let mut writer = Writer {
        options,
        detector,
        out: Output::standard(),
        shown: Shown::new(&options.show, Some(&options.model))?,
        line: 0,
        pictures: 0,
        looked_closer: false,
    };
    let files = image_paths(&options.images)?;
    writer.shown.expect_apart(&files, files.len() > 1)?;
    let mut files = files.as_slice();
    while !files.is_empty() {
        let read = writer.detect(&files[..files.len().min(AT_ONCE)])?;
        files = &files[read..];
    }
    if writer.pictures > 0 {
        return writer.shown.write();
    }
    if writer.shown.is_wanted() && !options.show.quiet {
        output::warn(&format!(
            "no object has a probability of at least {}, so there is no picture; give a lower --threshold",
            options.threshold
        ));
    }
    Ok(())
}

/// Writes what was found, and pictures.
struct Writer<'a> {
    options: &'a Detect,
    detector: Detector,
    out: Output,
    shown: Shown<'a>,
    line: usize,
    /// Images in which something was found.
    pictures: usize,
    /// Whether an image without objects was looked at once more.
    looked_closer: bool,
}

impl Writer<'_> {
    /// Reads the first of the files together, at least one, and gives their number.
    fn detect(&mut self, files: &[PathBuf]) -> Result<usize, Failure> {
        let Detect {
            threshold, masks, ..
        } = *self.options;
        let decoding = self.detector.description().preparation.decoding();
        let (images, broken) = open_images(files, &decoding, PIXELS_AT_ONCE, |image| image);
        let found: Vec<_> = match self.shown.is_wanted() {
            true => {
                let seen = self.detector.look(&images, threshold, masks)?.into_iter();
                seen.map(|(found, trace)| (found, Some(trace))).collect()
            }
            false => {
                let found = self.detector.detect(&images, threshold, masks)?.into_iter();
                found.map(|found| (found, None)).collect()
            }
        };
        for (((found, trace), image), file) in found.into_iter().zip(&images).zip(files) {
            self.line += 1;
            self.expect_finite(image, &found)?;
            let file = &file.display().to_string();
            let trace = trace.map(|trace| Trace {
                source: file.clone(),
                ..trace
            });
            match self.options.show.json {
                true => {
                    let mut line = self.json(file, image, &found);
                    if let Some(maps) = trace.as_ref().and_then(|trace| self.shown.json(trace)) {
                        line["maps"] = maps;
                    }
                    self.out.line(&line.to_string())?;
                }
                false => self.text(file, &found)?,
            }
            // An image without objects has no picture, but its number.
            self.pictures += usize::from(trace.is_some() && !found.is_empty());
            if let Some(trace) = &trace {
                self.shown.push(&mut self.out, self.line, trace)?;
            }
        }
        self.out.flush()?;
        if let Some(error) = broken {
            self.shown.end(error)?;
        }
        Ok(images.len())
    }

    /// Refuses results that are no numbers. Such objects are never found; so the first image without objects is looked at once more:
    /// without a threshold every query finds one.
    fn expect_finite(&mut self, image: &Image, found: &[DetectedObject]) -> Result<(), Failure> {
        let is_finite = |object: &DetectedObject| {
            let Bounds {
                x,
                y,
                width,
                height,
            } = object.bounds;
            [object.score, x, y, width, height]
                .iter()
                .all(|number| number.is_finite())
        };
        let mut all_finite = found.iter().all(is_finite);
        if found.is_empty() && !self.looked_closer {
            self.looked_closer = true;
            let any = self.detector.detect(slice::from_ref(image), 0.0, false)?;
            all_finite = any.iter().all(|objects| !objects.is_empty());
        }
        match all_finite {
            true => Ok(()),
            false => Err(CommandError::NotFinite {
                model: self.options.model.display().to_string(),
            }
            .into()),
        }
    }

    fn label(&self, object: &DetectedObject) -> &str {
        &self.detector.description().labels[object.class]
    }

    fn text(&mut self, file: &str, found: &[DetectedObject]) -> Result<(), Failure> {
        let objects = match found.len() {
            0 => "no object".to_owned(),
            1 => "1 object".to_owned(),
            many => format!("{many} objects"),
        };
        self.out.line(&format!("{}: {objects}", visible(file)))?;
        for object in found {
            let Bounds {
                x,
                y,
                width,
                height,
            } = object.bounds;
            let mask = match &object.mask {
                Some(mask) => format!(", {} pixels", mask.area()),
                None => String::new(),
            };
            let line = format!(
                "  {} ({:.1} %): {width:.1} x {height:.1} at ({x:.1}, {y:.1}){mask}",
                visible(self.label(object)),
                100.0 * object.score,
            );
            self.out.line(&line)?;
        }
        Ok(())
    }

    fn json(&self, file: &str, image: &Image, found: &[DetectedObject]) -> Value {
        let objects = found.iter().map(|object| {
            let Bounds {
                x,
                y,
                width,
                height,
            } = object.bounds;
            let mut found = json!({
                "label": self.label(object),
                "probability": object.score,
                "box": [x, y, width, height],
            });
            if let Some(mask) = &object.mask {
                let size = [mask.height(), mask.width()];
                found["mask"] = json!({ "size": size, "counts": mask.runs() });
            }
            found
        });
        json!({
            "line": self.line,
            "image": file,
            "height": image.height(),
            "width": image.width(),
            "objects": objects.collect::<Value>(),
        })
    }
}
