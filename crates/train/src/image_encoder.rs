//! Images as vectors in the space of texts (CLIP, Radford et al. 2021), and what the model looked at.

use burn::tensor::{Device, Tensor};
use regard_images::{Image, ImagesError};
use regard_models::pretrained::{ClipImages, Folder, PretrainedError};
use regard_trace::Trace;

use crate::image_classifier::{ImageClassifier, LookError, Preparation, normalized};

/// The tower of images of CLIP. That of texts is a [`TextEncoder`](regard_models::pretrained::TextEncoder).
#[derive(Debug)]
pub struct ImageEncoder {
    /// Its class scores are the vector of an image.
    network: ImageClassifier,
    size: usize,
    scale: f32,
}

impl ImageEncoder {
    /// The tower in a folder as the Hugging Face libraries store CLIP.
    ///
    /// # Errors
    /// [`PretrainedError`]; means and deviations that no images have.
    pub fn pretrained(folder: &Folder, device: &Device) -> Result<Self, PretrainedError> {
        let ClipImages { tower, scale } = ClipImages::open(folder)?;
        Ok(Self {
            size: tower.sizes.classes,
            network: ImageClassifier::of(folder, tower, device)?,
            scale,
        })
    }

    /// How an image becomes numbers.
    pub fn preparation(&self) -> &Preparation {
        &self.network.description().preparation
    }

    /// How many numbers a vector has.
    pub fn size(&self) -> usize {
        self.size
    }

    /// What the cosine of an image and a text is multiplied with to be a score.
    pub fn scale(&self) -> f32 {
        self.scale
    }

    /// The vector of each image, of length 1.
    ///
    /// # Errors
    /// Those of [`Preparation::fit`].
    pub fn vectors(&self, images: &[Image]) -> Result<Vec<Vec<f32>>, ImagesError> {
        Ok(self.network.outputs(images)?.map_or_else(Vec::new, rows))
    }

    /// The same, and for each image what the model looked at, layer by layer, over the image as the model read it.
    ///
    /// # Errors
    /// Those of [`Preparation::fit`]; numbers that are no weights.
    pub fn look(&self, images: &[Image]) -> Result<Vec<(Vec<f32>, Trace)>, LookError> {
        let Some((outputs, seen)) = self.network.seen(images)? else {
            return Ok(vec![]);
        };
        let nameless = images.iter().map(|_| "");
        let traces = self.network.traces(seen, nameless)?;
        Ok(rows(outputs).into_iter().zip(traces).collect())
    }

    /// A classifier whose classes, called `labels`, are texts with these vectors of length 1, one for each: the probabilities are
    /// `softmax(s · cos(image, text))`.
    ///
    /// # Panics
    /// If there are no texts, or their vectors are not of the size of the images'.
    pub fn classifier(self, labels: Vec<String>, texts: &[Vec<f32>]) -> ImageClassifier {
        let size = self.size;
        let fit = texts.iter().all(|text| text.len() == size) && labels.len() == texts.len();
        assert!(
            fit && !texts.is_empty(),
            "{} labels; expected a vector of {size} numbers for each",
            labels.len()
        );
        self.network.with_texts(labels, texts, self.scale)
    }
}

fn rows(outputs: Tensor<2>) -> Vec<Vec<f32>> {
    let [_, size] = outputs.dims();
    let data = normalized(outputs).into_data();
    let numbers: Vec<f32> = data.iter::<f32>().collect();
    numbers.chunks_exact(size).map(<[f32]>::to_vec).collect()
}
