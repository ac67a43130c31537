//! What is said of scenes, and asked about them.

use super::{Colour, Kind, SceneConfig, SceneObject, Size};
use crate::Random;
use crate::data::{Phrase, Question, Word};

/// Answers to "where", by row and column of nine fields.
const PLACES: [[&str; 3]; 3] = [
    ["top left", "top", "top right"],
    ["left", "centre", "right"],
    ["bottom left", "bottom", "bottom right"],
];

const COUNTS: [&str; 4] = ["0", "1", "2", "3"];

/// A place relative to an object: the words, and the direction.
const RELATIONS: [(&str, Direction); 4] = [
    ("above", Direction::Above),
    ("below", Direction::Below),
    ("left of", Direction::Left),
    ("right of", Direction::Right),
];

#[derive(Clone, Copy, PartialEq, Eq)]
enum Direction {
    Above,
    Below,
    Left,
    Right,
}

/// Where `a` is, seen from `b`.
fn direction(a: &SceneObject, b: &SceneObject) -> Direction {
    let (across, down) = (a.x - b.x, a.y - b.y);
    match (down.abs() > across.abs(), down < 0.0, across < 0.0) {
        (true, true, _) => Direction::Above,
        (true, false, _) => Direction::Below,
        (false, _, true) => Direction::Left,
        (false, _, false) => Direction::Right,
    }
}

/// Whether `a` is on this side of `b`, however far it is to another side too.
fn beyond(a: &SceneObject, b: &SceneObject, to: Direction) -> bool {
    match to {
        Direction::Above => a.y < b.y,
        Direction::Below => a.y > b.y,
        Direction::Left => a.x < b.x,
        Direction::Right => a.x > b.x,
    }
}

pub(super) fn answers(config: &SceneConfig) -> Vec<String> {
    let kinds = config.kinds.iter().map(|kind| kind.name());
    let colours = config.colours.iter().map(|colour| colour.name());
    let others = COUNTS
        .into_iter()
        .chain(PLACES.into_iter().flatten())
        .chain(["yes", "no"]);
    let mut answers: Vec<String> = vec![];
    for answer in kinds.chain(colours).chain(others) {
        if !answers.iter().any(|known| known == answer) {
            answers.push(answer.to_owned());
        }
    }
    answers
}

/// Words with what they speak of, which become a phrase.
#[derive(Clone, Default)]
struct Sentence(Vec<(String, Option<usize>)>);

impl Sentence {
    fn of(words: &str) -> Self {
        Self::default().then(words)
    }

    /// Words that speak of no object.
    fn then(mut self, words: &str) -> Self {
        self.0
            .extend(words.split(' ').map(|word| (word.to_owned(), None)));
        self
    }

    /// A word that speaks of an object.
    fn about(mut self, word: &str, object: Option<usize>) -> Self {
        self.0.push((word.to_owned(), object));
        self
    }

    fn named(self, name: &Name, object: Option<usize>) -> Self {
        let words = [
            name.size.and_then(Size::word),
            name.colour.map(Colour::name),
        ];
        let sentence = words
            .into_iter()
            .flatten()
            .fold(self, |sentence, word| sentence.about(word, object));
        sentence.about(name.kind.map_or("object", Kind::name), object)
    }

    /// With "a" or "an" in front.
    fn one(self, name: &Name, object: Option<usize>) -> Self {
        let first = Self::default().named(name, object);
        let vowel = first.0[0].0.starts_with(['a', 'e', 'i', 'o', 'u', '8']);
        self.then(if vowel { "an" } else { "a" })
            .named(name, object)
    }

    fn phrase(self, end: &str) -> Phrase {
        let mut phrase = Phrase::default();
        for (word, object) in self.0 {
            if !phrase.text.is_empty() {
                phrase.text.push(' ');
            }
            let start = phrase.text.len();
            phrase.text.push_str(&word);
            phrase.words.push(Word {
                bytes: start..phrase.text.len(),
                object,
            });
        }
        phrase.text.push_str(end);
        phrase
    }
}

/// Some of an object's properties, by which it is referred to.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Name {
    size: Option<Size>,
    colour: Option<Colour>,
    kind: Option<Kind>,
}

impl Name {
    fn full(object: &SceneObject) -> Self {
        Self {
            size: Some(object.size),
            colour: Some(object.colour),
            kind: Some(object.kind),
        }
    }

    fn fits(&self, object: &SceneObject) -> bool {
        self.size.is_none_or(|size| size == object.size)
            && self.colour.is_none_or(|colour| colour == object.colour)
            && self.kind.is_none_or(|kind| kind == object.kind)
    }

    fn found(&self, objects: &[SceneObject]) -> Vec<usize> {
        (0..objects.len())
            .filter(|&i| self.fits(&objects[i]))
            .collect()
    }
}

/// Names that fit this object alone; of sizes only those that have a word. With `colour`, its colour may be named, with `kind` its
/// kind.
fn names(objects: &[SceneObject], object: usize, colour: bool, kind: bool) -> Vec<Name> {
    let mut names = vec![];
    for named in 0..8 {
        let has = |bit: usize| named >> bit & 1 == 1;
        let size = objects[object].size;
        let allowed =
            (colour || !has(1)) && (kind || !has(2)) && (size.word().is_some() || !has(0));
        let name = Name {
            size: has(0).then_some(size),
            colour: has(1).then_some(objects[object].colour),
            kind: has(2).then_some(objects[object].kind),
        };
        // "The object" alone is not said, and a size never without more.
        let enough = name.colour.is_some() || name.kind.is_some();
        if allowed && enough && name.found(objects).len() == 1 {
            names.push(name);
        }
    }
    names
}

/// "a red 7 above a small blue square and left of a green star".
pub(super) fn caption(objects: &[SceneObject]) -> Phrase {
    let mut sentence = Sentence::default();
    for (i, object) in objects.iter().enumerate() {
        if i > 0 {
            // The first of the order is above the others or left of them.
            let relation = match direction(&objects[0], object) {
                Direction::Above | Direction::Below => "above",
                Direction::Left | Direction::Right => "left of",
            };
            let joined = if i > 1 {
                sentence.then("and")
            } else {
                sentence
            };
            sentence = joined.then(relation);
        }
        sentence = sentence.one(&Name::full(object), Some(i));
    }
    sentence.phrase("")
}

/// A question before it has a number.
struct Draft {
    sentence: Sentence,
    answer: String,
    objects: Vec<usize>,
}

/// Up to as many questions as asked for, no two the same, kinds in turns.
pub(super) fn questions(
    config: &SceneConfig,
    objects: &[SceneObject],
    random: &mut Random,
) -> Vec<Question> {
    let mut kinds = ["what", "which colour", "how many", "where", "is there"];
    random.shuffle(&mut kinds);
    let mut questions: Vec<Question> = vec![];
    // Some kinds have fewer questions than their turns, or none: more rounds than questions, but not without end.
    for kind in kinds
        .into_iter()
        .cycle()
        .take(4 * (config.questions + kinds.len()))
    {
        if questions.len() == config.questions {
            break;
        }
        let draft = match kind {
            "what" => what(objects, random),
            "which colour" => which_colour(objects, random),
            "how many" => Some(how_many(config, objects, random)),
            "where" => place(config, objects, random),
            _ => is_there(config, objects, random),
        };
        let Some(draft) = draft else {
            continue;
        };
        let phrase = draft.sentence.phrase("?");
        if questions.iter().all(|question| question.phrase != phrase) {
            questions.push(Question {
                id: questions.len() as u64,
                phrase,
                kind: kind.to_owned(),
                answers: vec![draft.answer.clone()],
                answer: draft.answer,
                objects: draft.objects,
            });
        }
    }
    questions
}

fn chosen<T: Copy>(items: &[T], random: &mut Random) -> Option<T> {
    items.get(random.below(items.len())).copied()
}

/// "What is the red object?", "What is above the blue square?"
fn what(objects: &[SceneObject], random: &mut Random) -> Option<Draft> {
    let asked = random.below(objects.len());
    let answer = objects[asked].kind.name().to_owned();
    let start = Sentence::default().about("What", Some(asked)).then("is");
    if objects.len() == 1 || random.chance(0.4) {
        let name = chosen(&names(objects, asked, true, false), random)?;
        return Some(Draft {
            sentence: start.then("the").named(&name, Some(asked)),
            answer,
            objects: vec![asked],
        });
    }
    let other = (asked + 1 + random.below(objects.len() - 1)) % objects.len();
    let (relation, to) = RELATIONS
        .into_iter()
        .find(|&(_, to)| to == direction(&objects[asked], &objects[other]))?;
    // Nothing else is on that side, not even a little.
    let there = |i: &usize| *i != other && beyond(&objects[*i], &objects[other], to);
    if (0..objects.len()).filter(there).count() != 1 {
        return None;
    }
    let name = chosen(&names(objects, other, true, true), random)?;
    Some(Draft {
        sentence: start.then(relation).then("the").named(&name, Some(other)),
        answer,
        objects: vec![asked, other],
    })
}

/// "What colour is the square?"
fn which_colour(objects: &[SceneObject], random: &mut Random) -> Option<Draft> {
    let asked = random.below(objects.len());
    let name = chosen(&names(objects, asked, false, true), random)?;
    Some(Draft {
        sentence: Sentence::of("What colour is the").named(&name, Some(asked)),
        answer: objects[asked].colour.name().to_owned(),
        objects: vec![asked],
    })
}

/// "How many red objects are there?", also of a colour or kind that is absent.
fn how_many(config: &SceneConfig, objects: &[SceneObject], random: &mut Random) -> Draft {
    let shown = objects[random.below(objects.len())].clone();
    let present = random.chance(0.7);
    let sentence = Sentence::of("How many");
    let alone = |found: &[usize]| if let [one] = found { Some(*one) } else { None };
    let (sentence, found) = match random.below(4) {
        0 => {
            let found: Vec<usize> = (0..objects.len()).collect();
            (sentence.about("objects", alone(&found)), found)
        }
        1 => {
            let is_digit = |i: &usize| objects[*i].kind.digit().is_some();
            let found: Vec<usize> = (0..objects.len()).filter(is_digit).collect();
            (sentence.about("digits", alone(&found)), found)
        }
        2 => {
            let other = config.colours[random.below(config.colours.len())];
            let colour = if present { shown.colour } else { other };
            let found = Name {
                size: None,
                colour: Some(colour),
                kind: None,
            }
            .found(objects);
            let one = alone(&found);
            (
                sentence.about(colour.name(), one).about("objects", one),
                found,
            )
        }
        _ => {
            let other = config.kinds[random.below(config.kinds.len())];
            let kind = if present { shown.kind } else { other };
            let found = Name {
                size: None,
                colour: None,
                kind: Some(kind),
            }
            .found(objects);
            let plural = match kind {
                Kind::Cross => "crosses".to_owned(),
                kind => format!("{}s", kind.name()),
            };
            (sentence.about(&plural, alone(&found)), found)
        }
    };
    Draft {
        sentence: sentence.then("are there"),
        answer: COUNTS[found.len().min(3)].to_owned(),
        objects: found,
    }
}

/// "Where is the red 7?", of objects that are well inside one of nine fields.
fn place(config: &SceneConfig, objects: &[SceneObject], random: &mut Random) -> Option<Draft> {
    let asked = random.below(objects.len());
    let field = |at: f64, length: usize| {
        let thirds = 3.0 * at / length as f64;
        let clear = [1.0, 2.0]
            .iter()
            .all(|border| (thirds - border).abs() > 0.15);
        clear.then_some((thirds as usize).min(2))
    };
    let row = field(objects[asked].y, config.height)?;
    let column = field(objects[asked].x, config.width)?;
    let name = chosen(&names(objects, asked, true, true), random)?;
    Some(Draft {
        sentence: Sentence::of("Where is the").named(&name, Some(asked)),
        answer: PLACES[row][column].to_owned(),
        objects: vec![asked],
    })
}

/// "Is there a red square?", "Is there a star below the red 7?", as often with "no" as with "yes". What is asked for in vain differs
/// in one property from what is there.
fn is_there(config: &SceneConfig, objects: &[SceneObject], random: &mut Random) -> Option<Draft> {
    let asked = random.below(objects.len());
    let shown = &objects[asked];
    let wanted = random.chance(0.5);
    let start = Sentence::of("Is there");
    if objects.len() > 1 && random.chance(0.4) {
        let other = (asked + 1 + random.below(objects.len() - 1)) % objects.len();
        let name = Name {
            size: None,
            ..Name::full(shown)
        };
        // Where it is, or where it would be with the two exchanged: what is above may be a little to the left as well.
        let actual = match wanted {
            true => direction(shown, &objects[other]),
            false => direction(&objects[other], shown),
        };
        let (relation, _) = RELATIONS.into_iter().find(|&(_, to)| to == actual)?;
        let reference = chosen(&names(objects, other, true, true), random)?;
        return Some(Draft {
            sentence: start
                .one(&name, Some(asked))
                .then(relation)
                .then("the")
                .named(&reference, Some(other)),
            answer: if wanted { "yes" } else { "no" }.to_owned(),
            objects: vec![asked, other],
        });
    }
    let mut name = Name::full(shown);
    match random.below(4) {
        0 => name.colour = None,
        1 => name.kind = None,
        2 => {}
        _ => name.size = None,
    }
    if shown.size.word().is_none() {
        name.size = None;
    }
    if !wanted {
        let colour = config.colours[random.below(config.colours.len())];
        let kind = config.kinds[random.below(config.kinds.len())];
        if name.kind.is_none() || (name.colour.is_some() && random.chance(0.5)) {
            name.colour = Some(colour);
        } else {
            name.kind = Some(kind);
        }
    }
    let found = name.found(objects);
    if found.is_empty() == wanted {
        return None;
    }
    let one = if let [one] = found[..] {
        Some(one)
    } else {
        None
    };
    Some(Draft {
        sentence: start.one(&name, one),
        answer: if wanted { "yes" } else { "no" }.to_owned(),
        objects: found,
    })
}
