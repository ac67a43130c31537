//! Images for attention models: decoding, transforms, data sets, and scenes whose answers are known.
//!
//! ```text
//! Image    u8  [height, width, channels]     channels: 1 (grey) or 3 (red, green, blue)
//! values   f32 [channels, height, width]     (pixel / 255 - mean) / deviation
//! ```
//!
//! | what | where |
//! |---|---|
//! | PNG, JPEG, WebP to pixels: upright, opaque, 8 bits, of a limited size; pixels to PNG | [`Image`], [`Decoding`] |
//! | resize as Pillow does, crop, pad, mirror | [`Image::resize`], [`Image::fitted`], [`Image::centre_crop`], [`Image::random_crop`] |
//! | numbers for a network | [`Normalize`] |
//! | random changes of training images | [`Augment`], [`Operation`] |
//! | class folders, MNIST, CIFAR, COCO, VQA in one form; loading on other threads | [`data`] |
//! | boxes and masks | [`Bounds`], [`Mask`], [`Region`] |
//! | drawn images with captions, questions, boxes and masks | [`scenes`] |
//!
//! No tensors and no model: files in, numbers out. Everything random comes from a seeded [`Random`] that is an argument, with the
//! same numbers on every machine. Errors ([`ImagesError`]) name the file and the field.
//!
//! ```
//! use regard_images::scenes::{Scene, SceneConfig};
//! use regard_images::{Augment, Normalize, Random};
//!
//! let scene = Scene::generate(1, 7, &SceneConfig::default())?;
//! assert_eq!(scene.caption.text, "a red cross above a small yellow 2 and above a small yellow 8");
//! assert_eq!(scene.questions[1].phrase.text, "What colour is the cross?");
//! assert_eq!(scene.questions[1].answer, "red");
//!
//! let augment = Augment { padding: 4, ..Augment::default() };
//! let image = augment.apply(&scene.image, &mut Random::new(1, 7))?;
//! let values = Normalize::imagenet().apply(&image.resize(32, 32)?)?;
//! assert_eq!(values.len(), 3 * 32 * 32);
//! # Ok::<(), regard_images::ImagesError>(())
//! ```

mod augment;
pub mod data;
mod error;
mod image;
mod mask;
mod random;
pub mod scenes;
mod transform;

pub use augment::{Augment, Operation};
pub use error::ImagesError;
pub use image::{Channels, Decoding, Image, MAX_PIXELS};
pub use mask::{Bounds, Mask, Region};
pub use random::Random;
pub use transform::{Filter, Normalize};
