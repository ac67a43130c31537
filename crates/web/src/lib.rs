//! regard in the browser: the page of its viewer, with models and worked examples that compute there.
//!
//! `.ci/web` builds the page as a folder (`target/page`) that any server of files can serve. The page asks a worker (`worker.js`) what it
//! would ask `regard serve`; the worker asks a `Viewer` (`browser.rs`), which answers by [`regard_serve::Local`].
//!
//! | model | does |
//! |---|---|
//! | `multi30k-en-de` | translates |
//! | `scenes-captioner` | describes an image |
//! | none | explains mechanisms, shows traces |
#![deny(missing_docs)]

#[cfg(target_family = "wasm")]
pub mod browser;

use std::error::Error;

use burn::tensor::Device;
use regard_explain::Explanations;
use regard_models::{TransformerConfig, image::CaptionerConfig};
use regard_serve::{
    Contents, Local, Model,
    models::{Translations, captions},
};
use regard_train::{
    ImageCaptioner, Translator, model_from_bytes,
    tasks::{Captioning, Translation},
};

/// Looks of the model that are kept, and the bytes that their weights may take.
const KEPT: usize = 8;
const KEPT_BYTES: usize = 256 << 20;

/// Why there is no viewer.
pub type Refused = Box<dyn Error + Send + Sync>;

/// The answers of the page with a model, from the bytes of its file.
///
/// # Errors
/// A name that is not known; whatever is wrong with the file.
pub fn viewer(model: Option<(&str, &[u8])>) -> Result<Local, Refused> {
    let model = model.map(|(name, bytes)| open(name, bytes)).transpose()?;
    let contents = Contents {
        model,
        explainer: Some(Box::new(Explanations)),
        ..Contents::default()
    };
    Ok(Local::new(contents, KEPT, KEPT_BYTES))
}

fn open(name: &str, bytes: &[u8]) -> Result<Box<dyn Model>, Refused> {
    let device = &Device::flex();
    Ok(match name {
        "multi30k-en-de" => {
            let (model, description) = model_from_bytes::<TransformerConfig, Translation>(
                "transformer",
                bytes,
                name,
                device,
            )?;
            let translator = Translator::new(model, description, device).looking(true);
            Box::new(Translations::new(name, translator))
        }
        "scenes-captioner" => {
            let (model, description) =
                model_from_bytes::<CaptionerConfig, Captioning>("captioner", bytes, name, device)?;
            captions(name, ImageCaptioner::new(model, description, device))
        }
        _ => {
            return Err(
                format!("no model {name}; expected one of those in the folder `models`").into(),
            );
        }
    })
}
