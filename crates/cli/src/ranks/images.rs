//! Images that the ranks share out: compared by what their files hold, as each rank reads its own.

use std::path::Path;

use regard_images::data::{Dataset, Source, coco_captions, vqa};
use regard_train::{
    ranks::Ranks,
    recipe::{Data, QuestionFiles, Split},
};

use super::{all, content};
use crate::failure::Failure;

/// Files that are compared at once.
const AT_ONCE: usize = 1000;

/// Checks that `files` are as many on all ranks, with the same names below `folder`, and hold the same. A process that is alone reads
/// nothing for it.
///
/// # Errors
/// The first file that differs, on all ranks; a file that cannot be read.
pub fn expect_same_files(folder: &Path, files: &[impl AsRef<Path>]) -> Result<(), Failure> {
    compare(all(), folder, files)
}

/// The same of the images of a data set that lies in `folder`, if they are files of their own.
///
/// # Errors
/// As [`expect_same_files`].
pub fn expect_same_images(folder: &Path, dataset: &Dataset) -> Result<(), Failure> {
    compare(all(), folder, &files(dataset))
}

/// The same of a part of a recipe's data, if that is images with captions, questions or objects: the files that say these, and then the
/// images.
///
/// # Errors
/// As [`expect_same_files`]; files that are wrong.
pub fn expect_same_part(data: &Data, split: Split) -> Result<(), Failure> {
    compare_part(all(), data, split)
}

fn compare(ranks: &dyn Ranks, folder: &Path, files: &[impl AsRef<Path>]) -> Result<(), Failure> {
    if ranks.is_alone() {
        return Ok(());
    }
    ranks.expect_same(&[("the number of input files", files.len().to_string())])?;
    for files in files.chunks(AT_ONCE) {
        let held = files.iter().map(|file| content(folder, file.as_ref()));
        let held: Vec<String> = held.collect::<Result<_, _>>()?;
        ranks.expect_same(&[("the input files", held.join("\n"))])?;
    }
    Ok(())
}

fn compare_part(ranks: &dyn Ranks, data: &Data, split: Split) -> Result<(), Failure> {
    if ranks.is_alone() {
        return Ok(());
    }
    let (annotations, folder, dataset) = if let Some(captions) = &data.captions
        && let Some((file, folder)) = captions.paths(split)
    {
        let dataset = coco_captions(file, folder, captions.broken())?;
        (vec![file], folder, dataset)
    } else if let Some(objects) = &data.objects
        && let [Some(folder), Some(file)] = objects.paths(split)
        && let Some(dataset) = objects.read(split)?
    {
        (vec![file], folder, dataset)
    } else if let Some(questions) = &data.questions
        && let Some(QuestionFiles {
            images: Some(folder),
            questions: Some(asked),
            annotations: Some(answers),
        }) = questions.files(split)
    {
        let dataset = vqa(asked, Some(answers), folder, questions.broken.policy())?;
        let annotations = vec![asked.as_path(), answers.as_path()];
        (annotations, folder.as_path(), dataset)
    } else {
        return Ok(());
    };
    for file in annotations {
        compare(ranks, file, &[file])?;
    }
    compare(ranks, folder, &files(&dataset))
}

/// The files of the images of a data set.
fn files(dataset: &Dataset) -> Vec<&Path> {
    let examples = dataset.examples.iter();
    let files = examples.filter_map(|example| match &example.source {
        Source::File(path) => Some(path.as_path()),
        Source::Pixels(_) => None,
    });
    files.collect()
}

#[cfg(test)]
mod tests {
    use regard_images::Image;
    use regard_train::recipe::CaptionData;

    use super::*;
    use crate::ranks::tests::{both, file};

    #[test]
    fn ranks_with_other_images_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path();
        let own = ["0", "1"].map(|rank| root.join(rank));
        let write = |name: &str, content: &str| file(root, name, content);
        let compared = |names: [&[&str]; 2]| {
            both(|ranks| {
                let folder = &own[ranks.rank()];
                let files = names[ranks.rank()].iter().map(|name| folder.join(name));
                compare(ranks, folder, &files.collect::<Vec<_>>())
            })
        };
        for name in ["0/cats/a.png", "1/cats/a.png", "0/b.png", "1/b.png"] {
            write(name, "pixels");
        }
        let names: &[&str] = &["cats/a.png", "b.png"];
        assert_eq!(compared([names; 2]), Ok(()));
        let differ = compared([names, &names[..1]]).unwrap_err();
        let expected =
            "rank 1 differs from rank 0 in the number of input files: `1` in place of `2`";
        assert!(differ.contains(expected), "{differ}");
        // As long, and of the same name, but after as many as are compared at once.
        let mut many = vec![names[0]; AT_ONCE];
        many.push(names[1]);
        assert_eq!(compared([many.as_slice(); 2]), Ok(()));
        write("1/b.png", "pixelz");
        let differ = compared([many.as_slice(); 2]).unwrap_err();
        let expected = "rank 1 differs from rank 0 in the input files: `b.png, 6 bytes of hash ";
        assert!(differ.contains(expected), "{differ}");
    }

    #[test]
    fn ranks_with_other_images_of_a_recipe_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path();
        let captions = r#"{"images": [{"id": 1, "file_name": "a.png"}], "annotations": [{"image_id": 1, "caption": "a cat"}]}"#;
        let data = ["0", "1"].map(|rank| {
            let images = root.join(rank);
            let test = file(&images, "captions.json", captions);
            let image = Image::filled(4, 5, &[7]).unwrap();
            image.save_png(images.join("a.png")).unwrap();
            let captions = CaptionData {
                test: Some(test),
                test_images: Some(images),
                ..CaptionData::default()
            };
            Data {
                captions: Some(captions),
                ..Data::default()
            }
        });
        let compared = |split: Split| both(|ranks| compare_part(ranks, &data[ranks.rank()], split));
        assert_eq!(compared(Split::Test), Ok(()));
        let image = Image::filled(4, 5, &[8]).unwrap();
        image.save_png(root.join("1/a.png")).unwrap();
        let differ = compared(Split::Test).unwrap_err();
        assert!(differ.contains("in the input files: `a.png, "), "{differ}");
        file(root, "1/captions.json", &captions.replace("cat", "dog"));
        let differ = compared(Split::Test).unwrap_err();
        assert!(
            differ.contains("in the input files: `captions.json, "),
            "{differ}"
        );
        // A part that the recipe does not name.
        assert_eq!(compared(Split::Valid), Ok(()));
    }
}
