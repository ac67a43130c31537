//! The commands, one file for each.

mod answer;
mod ask;
mod bench;
mod caption;
mod classify;
mod compare;
mod completions;
mod detect;
mod embed;
mod evaluate;
mod experiment;
mod explain;
mod fill;
mod generate;
mod inspect;
mod look;
mod man;
mod model;
mod pretrained;
mod serve;
mod similar;
mod train;
mod translate;
mod view;

use std::path::{Path, PathBuf};

use regard_images::{Decoding, Image, ImagesError, data};
use regard_train::image_classifier::{Preparation, Resizing};

use crate::{
    arguments::{Command, Compute},
    failure::Failure,
};

/// Runs a command.
///
/// # Errors
/// Why it ended early.
pub fn run(command: Command) -> Result<(), Failure> {
    match command {
        Command::Translate(options) => translate::run(&options),
        Command::Generate(options) => generate::run(&options),
        Command::Look(options) => look::run(&options),
        Command::Fill(options) => fill::run(&options),
        Command::Caption(options) => caption::run(&options),
        Command::Classify(options) => classify::run(&options),
        Command::Detect(options) => detect::run(&options),
        Command::Answer(options) => answer::run(&options),
        Command::Ask(options) => ask::run(&options),
        Command::Similar(options) => similar::run(&options),
        Command::Embed(options) => embed::run(&options),
        Command::Train(options) => train::run(&options),
        Command::Evaluate(options) => evaluate::run(&options),
        Command::Compare(options) => compare::run(&options),
        Command::View(options) => {
            Compute::expect_environment()?;
            view::run(&options)
        }
        Command::Serve(options) => serve::run(&options),
        Command::Inspect(options) => {
            Compute::expect_environment()?;
            inspect::run(&options)
        }
        Command::Explain(options) => {
            Compute::expect_environment()?;
            // There is little to compute, and the stacks of many threads take address space.
            Compute::default().run(Some(1), |_| explain::run(&options))
        }
        Command::Experiment(options) => experiment::run(&options),
        Command::Model(options) => model::run(&options),
        Command::Bench(options) => bench::run(&options),
        Command::Completions(options) => completions::run(&options),
        Command::Man(options) => man::run(&options),
    }
}

/// The images of files up to the first that cannot be read, each as `kept` makes it, and what is wrong with that one. No more are read
/// where they have `enough` pixels together.
fn open_images(
    files: &[PathBuf],
    decoding: &Decoding,
    enough: usize,
    kept: impl Fn(Image) -> Image,
) -> (Vec<Image>, Option<ImagesError>) {
    let (mut images, mut pixels) = (vec![], 0);
    for file in files {
        if pixels >= enough {
            break;
        }
        match Image::open(file, decoding) {
            Ok(image) => {
                let image = kept(image);
                pixels += image.height() * image.width();
                images.push(image);
            }
            Err(error) => return (images, Some(error)),
        }
    }
    (images, None)
}

/// An image as `preparation` resizes it, if it is smaller so; the middle is still to be cut out of some. What
/// [`fit`](Preparation::fit) makes of it is the same.
fn reduced(image: Image, preparation: &Preparation) -> Image {
    let size = match preparation.resizing {
        Resizing::Cover => preparation.size,
        Resizing::Stretch(whole, _) => whole,
        Resizing::Shorter(side, _) => image.size_with_shorter(side),
        // It would be resized a second time.
        Resizing::Within(..) | Resizing::Inside(..) => return image,
    };
    let [height, width] = size;
    if height.saturating_mul(width) >= image.height() * image.width() {
        return image;
    }
    let small = match preparation.resizing {
        Resizing::Stretch(_, filter) | Resizing::Shorter(_, filter) => {
            image.resized(height, width, filter)
        }
        _ => preparation.fit(&image),
    };
    // What is wrong is told as the model reads it.
    small.unwrap_or(image)
}

/// The image files that arguments name: those in a folder, for a folder.
fn image_paths(arguments: &[impl AsRef<Path>]) -> Result<Vec<PathBuf>, Failure> {
    let mut all = vec![];
    for argument in arguments {
        let argument: &Path = argument.as_ref();
        match argument.is_dir() {
            true => all.extend(data::image_files(argument)?),
            false => all.push(argument.to_owned()),
        }
    }
    Ok(all)
}

/// The same as texts; a name that is not UTF-8 is refused.
fn image_files(arguments: &[String]) -> Result<Vec<String>, Failure> {
    let names = image_paths(arguments)?.into_iter().map(|path| {
        path.into_os_string().into_string().map_err(|name| {
            Failure::Usage(format!(
                "{}: the file's name is not UTF-8; rename it",
                name.display()
            ))
        })
    });
    names.collect()
}

#[cfg(test)]
mod tests {
    use regard_images::{Filter, Normalize, Random};

    use super::*;

    #[test]
    fn no_more_images_are_read_than_are_enough() {
        let folder = tempfile::tempdir().unwrap();
        let mut files: Vec<PathBuf> = (0..3)
            .map(|i| folder.path().join(format!("{i}.png")))
            .collect();
        for file in &files {
            let image = Image::filled(4, 5, &[7]).unwrap();
            image.save_png(file).unwrap();
        }
        files.push(folder.path().join("none.png"));
        for (enough, count, broken) in
            [(1, 1, false), (21, 2, false), (60, 3, false), (61, 3, true)]
        {
            let (images, error) = open_images(&files, &Decoding::default(), enough, |image| image);
            assert_eq!((images.len(), error.is_some()), (count, broken), "{enough}");
        }
    }

    #[test]
    fn a_reduced_image_is_read_as_the_whole_one() {
        let normalize = Normalize::new(vec![0.5; 3], vec![0.5; 3]).unwrap();
        let mut random = Random::new(3, 0);
        let mut smaller = 0;
        for [height, width] in [[61, 40], [33, 97], [24, 24], [20, 90], [9, 7], [300, 2]] {
            let pixels = (0..3 * height * width).map(|_| random.below(256) as u8);
            let image = Image::new(height, width, 3, pixels.collect()).unwrap();
            for resizing in [
                Resizing::Cover,
                Resizing::Stretch([24, 24], Filter::Bicubic),
                Resizing::Stretch([28, 26], Filter::Bilinear),
                Resizing::Stretch([20, 30], Filter::Bicubic),
                Resizing::Shorter(24, Filter::Bicubic),
                Resizing::Shorter(29, Filter::Bilinear),
                Resizing::Shorter(20, Filter::Bicubic),
                Resizing::Within(20, 30, Filter::Bilinear),
                Resizing::Inside([20, 30], Filter::Bilinear),
            ] {
                let preparation = Preparation {
                    resizing,
                    ..Preparation::new([24, 24], normalize.clone())
                };
                let small = reduced(image.clone(), &preparation);
                smaller += usize::from(small != image);
                assert_eq!(
                    preparation.fit(&small).unwrap(),
                    preparation.fit(&image).unwrap(),
                    "{height} x {width}, {resizing:?}"
                );
            }
        }
        assert!(smaller > 10, "{smaller}");
    }
}
