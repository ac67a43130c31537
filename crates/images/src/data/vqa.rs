//! Questions and answers of VQA version 2 (Goyal 2017), over COCO's images.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};

use serde::Deserialize;

use super::json::{image_path, read, unless_skipped};
use super::{Broken, Dataset, Example, Phrase, Question, Source, field};
use crate::ImagesError;

#[derive(Deserialize)]
struct Questions {
    questions: Vec<QuestionEntry>,
    #[serde(default)]
    data_subtype: String,
}

#[derive(Deserialize)]
struct QuestionEntry {
    question_id: u64,
    image_id: u64,
    question: String,
}

#[derive(Deserialize)]
struct Annotations {
    annotations: Vec<Annotation>,
}

#[derive(Deserialize)]
struct Annotation {
    question_id: u64,
    image_id: u64,
    #[serde(default)]
    question_type: String,
    multiple_choice_answer: String,
    answers: Vec<Answer>,
}

#[derive(Deserialize)]
struct Answer {
    answer: String,
}

/// The images that the questions are about, in the order of their first question, with their questions; `images` is the folder of
/// COCO's images. An image is sought by the name that COCO 2014 gave it (`COCO_train2014_000000000009.jpg`, if the file has a
/// `data_subtype`), then by that of 2017 (`000000000009.jpg`). Without `annotations`, as for a test set, answers are empty.
///
/// # Errors
/// [`ImagesError::Read`], [`ImagesError::Json`], [`ImagesError::Empty`] without questions; [`ImagesError::Field`] for a question
/// number that occurs twice, has no answer, or whose answer belongs to another image, and for an image that is missing, unless it is to
/// be skipped. It is also that for an annotation that belongs to no question or whose list of answers is empty.
pub fn vqa(
    questions: &Path,
    annotations: Option<&Path>,
    images: &Path,
    broken: Broken,
) -> Result<Dataset, ImagesError> {
    let asked: Questions = read(
        questions,
        "VQA questions: questions with question_id, image_id and question",
    )?;
    if asked.questions.is_empty() {
        return Err(ImagesError::Empty {
            path: questions.to_owned(),
            what: "question",
            expected: "at least one entry in questions".to_owned(),
        });
    }
    let mut answers = annotations
        .map(|path| answers(path).map(|found| (path, found)))
        .transpose()?;
    let mut dataset = Dataset::default();
    let mut places: HashMap<u64, Option<usize>> = HashMap::new();
    let mut ids = HashSet::new();
    for (i, entry) in asked.questions.into_iter().enumerate() {
        let name = |field: &str| format!("questions[{i}].{field}");
        if !ids.insert(entry.question_id) {
            let given = format!("{}, as of one before it", entry.question_id);
            let expected = "each number once";
            return Err(field(questions, name("question_id"), given, expected));
        }
        let mut question = Question {
            id: entry.question_id,
            phrase: Phrase::plain(entry.question),
            kind: String::new(),
            answer: String::new(),
            answers: vec![],
            objects: vec![],
        };
        if let Some((path, answers)) = &mut answers {
            let (_, found) = answers.remove(&entry.question_id).ok_or_else(|| {
                let given = format!("{}, which has no answer", entry.question_id);
                let expected = format!("a question_id of {}", path.display());
                field(questions, name("question_id"), given, expected)
            })?;
            if found.image_id != entry.image_id {
                let expected = format!(
                    "{}, the image of its answer in {}",
                    found.image_id,
                    path.display()
                );
                return Err(field(
                    questions,
                    name("image_id"),
                    entry.image_id.to_string(),
                    expected,
                ));
            }
            question.kind = found.question_type;
            question.answer = found.multiple_choice_answer;
            question.answers = found
                .answers
                .into_iter()
                .map(|answer| answer.answer)
                .collect();
        }
        let place = match places.entry(entry.image_id) {
            Entry::Occupied(place) => *place.get(),
            Entry::Vacant(place) => {
                let (name, subtype) = (name("image_id"), asked.data_subtype.as_str());
                let path = image(questions, name, images, entry.image_id, subtype);
                let path = unless_skipped(path, broken, &mut dataset.skipped)?;
                *place.insert(path.map(|path| {
                    dataset.examples.push(Example::new(Source::File(path)));
                    dataset.examples.len() - 1
                }))
            }
        };
        if let Some(place) = place {
            dataset.examples[place].questions.push(question);
        }
    }
    if let Some((path, answers)) = answers
        && let Some((i, id)) = answers.iter().map(|(id, (i, _))| (i, id)).min()
    {
        let expected = format!("a question_id of {}", questions.display());
        return Err(field(
            path,
            format!("annotations[{i}].question_id"),
            id.to_string(),
            expected,
        ));
    }
    Ok(dataset)
}

/// The file of the image `id`, which the field `name` of the questions states.
fn image(
    questions: &Path,
    name: String,
    images: &Path,
    id: u64,
    subtype: &str,
) -> Result<PathBuf, ImagesError> {
    let short = format!("{id:012}.jpg");
    let long = format!("COCO_{subtype}_{short}");
    let sought = match subtype {
        "" => vec![&short],
        _ => vec![&long, &short],
    };
    let mut found = sought
        .into_iter()
        .filter_map(|file| image_path(questions, &name, images, file).ok());
    found.next().ok_or_else(|| {
        let folder = images.display();
        let expected = match subtype {
            "" => format!(
                "{short} in {folder}; names of COCO 2014 need data_subtype, such as \"val2014\", beside the questions"
            ),
            _ => format!("{long} or {short} in {folder}"),
        };
        let given = format!("{id}, whose image is missing");
        field(questions, &name, given, expected)
    })
}

/// The answers by question, with their places in the file.
fn answers(path: &Path) -> Result<HashMap<u64, (usize, Annotation)>, ImagesError> {
    let file: Annotations = read(
        path,
        "VQA annotations: annotations with question_id, image_id, multiple_choice_answer and answers",
    )?;
    let mut answers = HashMap::new();
    for (i, annotation) in file.annotations.into_iter().enumerate() {
        if annotation.answers.is_empty() {
            let name = format!("annotations[{i}].answers");
            return Err(field(
                path,
                name,
                "an empty list",
                "what people answered, at least one",
            ));
        }
        let id = annotation.question_id;
        if answers.insert(id, (i, annotation)).is_some() {
            let name = format!("annotations[{i}].question_id");
            return Err(field(
                path,
                name,
                format!("{id}, as of one before it"),
                "each number once",
            ));
        }
    }
    Ok(answers)
}
