//! Images for attention models: decoding, transforms, data sets.
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
//!
//! No tensors and no model: files in, numbers out. Everything random comes from a seeded [`Random`] that is an argument, with the
//! same numbers on every machine. Errors ([`ImagesError`]) name the file and the field.

mod augment;
pub mod data;
mod error;
mod image;
mod mask;
mod random;
mod transform;

pub use augment::{Augment, Operation};
pub use error::ImagesError;
pub use image::{Channels, Decoding, Image, MAX_PIXELS};
pub use mask::{Bounds, Mask, Region};
pub use random::Random;
pub use transform::Normalize;
