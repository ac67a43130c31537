//! Scenes: the same on every machine, drawn as they say, described and asked about without ambiguity.

use std::collections::{BTreeMap, HashSet};

use regard_images::data::{Question, Source};
use regard_images::scenes::{Colour, Kind, Scene, SceneConfig, SceneObject, Size};
use regard_images::{Decoding, ImagesError};

fn scenes(count: u64) -> impl Iterator<Item = Scene> {
    (0..count).map(|index| Scene::generate(3, index, &SceneConfig::default()).unwrap())
}

/// FNV-1a.
fn hash(bytes: impl IntoIterator<Item = u8>) -> u64 {
    bytes.into_iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3)
    })
}

#[test]
fn scenes_are_the_same_on_every_machine() {
    let sizes = [(64, 64), (32, 32), (97, 250)];
    let hashes = sizes.map(|(height, width)| {
        let config = SceneConfig {
            height,
            width,
            ..SceneConfig::default()
        };
        let bytes = (0..40).flat_map(|index| {
            let scene = Scene::generate(11, index, &config).unwrap();
            let asked = scene
                .questions
                .iter()
                .map(|question| format!("{}{}", question.phrase.text, question.answer));
            let text = asked.collect::<String>() + &scene.caption.text;
            scene
                .image
                .into_pixels()
                .into_iter()
                .chain(text.into_bytes())
        });
        hash(bytes)
    });
    assert_eq!(hashes, HASHES);
}

const HASHES: [u64; 3] = [
    17478064629114848402,
    14725160083008768008,
    732642984517420031,
];

#[test]
fn a_scene_depends_on_seed_index_and_configuration_alone() {
    let config = SceneConfig::default();
    let make = |seed, index| Scene::generate(seed, index, &config).unwrap();
    let alone = make(1, 5);
    let beside: Vec<Scene> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..4).map(|_| scope.spawn(|| make(1, 5))).collect();
        threads
            .into_iter()
            .map(|thread| thread.join().unwrap())
            .collect()
    });
    for other in beside {
        assert_eq!(
            (&other.image, &other.objects),
            (&alone.image, &alone.objects)
        );
        assert_eq!(
            (&other.caption, &other.questions),
            (&alone.caption, &alone.questions)
        );
    }
    let different: HashSet<Vec<u8>> = (0..3)
        .flat_map(|seed| (0..30).map(move |index| (seed, index)))
        .map(|(seed, index)| make(seed, index).image.into_pixels())
        .collect();
    assert_eq!(different.len(), 90);
    // Texture and questions are drawn apart from the objects.
    let plain = SceneConfig {
        texture: 0.0,
        questions: 0,
        ..SceneConfig::default()
    };
    let plain = Scene::generate(1, 5, &plain).unwrap();
    assert_eq!((plain.objects, plain.questions.len()), (alone.objects, 0));
}

#[test]
fn boxes_and_masks_are_where_the_objects_are() {
    let config = SceneConfig::default();
    for scene in scenes(300) {
        let mut owners = vec![None; 64 * 64];
        for (i, (object, mask)) in scene.objects.iter().zip(&scene.masks).enumerate() {
            assert_eq!(mask.bounds(), Some(object.bounds));
            assert!(mask.area() >= 25, "{object:?} has {} pixels", mask.area());
            let (x, y) = (
                object.bounds.x + object.bounds.width / 2.0,
                object.bounds.y + object.bounds.height / 2.0,
            );
            assert!(
                (f64::from(x) - object.x).abs() < 2.0 && (f64::from(y) - object.y).abs() < 2.5,
                "{object:?}"
            );
            assert!(
                f64::from(object.bounds.height) <= 2.2 * object.radius + 1.0,
                "{object:?}"
            );
            for place in mask
                .iter()
                .enumerate()
                .filter(|(_, set)| *set)
                .map(|(place, _)| place)
            {
                assert_eq!(owners[place].replace(i), None, "masks overlap");
            }
        }
        // Objects stand out: their mean colour is far from that of the ground.
        let mean = |owner: Option<usize>| {
            let pixels = scene
                .image
                .pixels()
                .chunks_exact(3)
                .zip(&owners)
                .filter(|(_, o)| **o == owner);
            let (mut sum, mut count) = ([0.0; 3], 0.0);
            for (pixel, _) in pixels {
                count += 1.0;
                sum.iter_mut()
                    .zip(pixel)
                    .for_each(|(sum, &value)| *sum += f64::from(value));
            }
            sum.map(|sum| sum / count)
        };
        let ground = mean(None);
        for i in 0..scene.objects.len() {
            let distance: f64 = mean(Some(i))
                .iter()
                .zip(ground)
                .map(|(a, b)| (a - b).powi(2))
                .sum();
            assert!(
                distance.sqrt() > 70.0,
                "{:?} on {ground:?}",
                scene.objects[i]
            );
        }

        let (objects, masks) = (scene.objects.clone(), scene.masks.clone());
        let example = scene.example(&config);
        assert_eq!(example.size, Some([64, 64]));
        for ((object, known), mask) in example.objects.iter().zip(&objects).zip(masks) {
            assert_eq!(config.classes()[object.class], known.kind.name());
            assert_eq!(object.region.as_ref().unwrap().mask(64, 64).unwrap(), mask);
        }
        assert!(
            matches!(example.source, Source::Pixels(_))
                && example.image(&Decoding::default()).is_ok()
        );
    }
}

/// "above" or "left of", by the larger difference.
fn relation(a: &SceneObject, b: &SceneObject) -> &'static str {
    let (across, down) = (a.x - b.x, a.y - b.y);
    assert!(
        (across.abs() - down.abs()).abs() > 6.0,
        "close to a diagonal: {a:?} {b:?}"
    );
    match (down.abs() > across.abs(), across < 0.0, down < 0.0) {
        (true, _, true) => "above",
        (true, _, false) => "below",
        (false, true, _) => "left of",
        (false, false, _) => "right of",
    }
}

/// Whether what a word says of an object is so.
fn is_true(word: &str, object: &SceneObject) -> bool {
    let singular = word
        .strip_suffix("es")
        .filter(|word| *word == "cross")
        .or(word.strip_suffix('s'));
    let kind = |name: &str| Kind::named(name).is_ok_and(|kind| kind == object.kind);
    matches!(word, "What" | "object" | "objects")
        || word == object.size.name()
        || word == object.colour.name()
        || kind(word)
        || singular.is_some_and(kind)
        || (word == "digits" && matches!(object.kind, Kind::Digit(_)))
}

fn article(text: &str) -> String {
    let vowel = ["orange", "8"].iter().any(|start| text.starts_with(start));
    format!("{} {text}", if vowel { "an" } else { "a" })
}

#[test]
fn captions_say_what_is_there() {
    for scene in scenes(400) {
        let objects = &scene.objects;
        let names: Vec<String> = objects
            .iter()
            .map(|object| article(&object.description()))
            .collect();
        let mut expected = names[0].clone();
        for i in 1..objects.len() {
            let relation = relation(&objects[0], &objects[i]);
            assert!(
                ["above", "left of"].contains(&relation),
                "the first is upper left of all"
            );
            let and = if i > 1 { " and" } else { "" };
            expected += &format!("{and} {relation} {}", names[i]);
        }
        assert_eq!(scene.caption.text, expected);
        let joined: Vec<&str> = scene.caption.words().map(|(word, _)| word).collect();
        assert_eq!(joined.join(" "), expected);
        let mut mentioned = HashSet::new();
        for (word, object) in scene.caption.words() {
            let says_nothing = ["a", "an", "and", "above", "left", "of"].contains(&word);
            assert_eq!(says_nothing, object.is_none(), "{word}");
            if let Some(object) = object {
                assert!(
                    is_true(word, &objects[object]),
                    "{word} of {:?}",
                    objects[object]
                );
                mentioned.insert(object);
            }
        }
        assert_eq!(mentioned.len(), objects.len());
        let alike: HashSet<(&str, &str)> = objects
            .iter()
            .map(|o| (o.colour.name(), o.kind.name()))
            .collect();
        assert_eq!(alike.len(), objects.len());
    }
}

/// The objects that a name such as "small red 7" fits.
fn found(objects: &[SceneObject], name: &str) -> Vec<usize> {
    let fits = |object: &SceneObject| name.split(' ').all(|word| is_true(word, object));
    (0..objects.len()).filter(|&i| fits(&objects[i])).collect()
}

fn one(objects: &[SceneObject], name: &str) -> usize {
    let found = found(objects, name);
    assert_eq!(found.len(), 1, "{name:?} is ambiguous in {objects:?}");
    found[0]
}

/// "the red 7" after a relation.
fn related(text: &str) -> Option<(&str, &'static str, &str)> {
    ["above", "below", "left of", "right of"]
        .into_iter()
        .find_map(|relation| {
            let (before, name) = text.split_once(relation)?;
            Some((before.trim(), relation, name.trim().strip_prefix("the ")?))
        })
}

/// Answers by the text alone: what is to be looked at, and the answer.
fn answer(objects: &[SceneObject], text: &str) -> (Vec<usize>, String) {
    let text = text.strip_suffix('?').unwrap();
    if let Some(name) = text.strip_prefix("What colour is the ") {
        let i = one(objects, name);
        (vec![i], objects[i].colour.name().to_owned())
    } else if let Some(name) = text.strip_prefix("What is the ") {
        let i = one(objects, name);
        (vec![i], objects[i].kind.name().to_owned())
    } else if let Some(rest) = text.strip_prefix("What is ") {
        let (_, side, name) = related(rest).unwrap();
        let other = one(objects, name);
        let beyond = |i: &usize| {
            let (a, b) = (&objects[*i], &objects[other]);
            match side {
                "above" => a.y < b.y,
                "below" => a.y > b.y,
                "left of" => a.x < b.x,
                _ => a.x > b.x,
            }
        };
        let there: Vec<usize> = (0..objects.len())
            .filter(|i| *i != other)
            .filter(beyond)
            .collect();
        assert_eq!(there.len(), 1, "{text} {objects:?}");
        assert_eq!(relation(&objects[there[0]], &objects[other]), side);
        (
            vec![there[0], other],
            objects[there[0]].kind.name().to_owned(),
        )
    } else if let Some(rest) = text.strip_prefix("How many ") {
        let found = found(objects, rest.strip_suffix(" are there").unwrap());
        let count = found.len().to_string();
        (found, count)
    } else if let Some(name) = text.strip_prefix("Where is the ") {
        let i = one(objects, name);
        let third = |at: f64, names: [&'static str; 3]| {
            assert!(
                [64.0 / 3.0, 128.0 / 3.0]
                    .iter()
                    .all(|border| (at - border).abs() > 3.0),
                "{text}"
            );
            names[(at / 64.0 * 3.0) as usize]
        };
        let place = [
            third(objects[i].y, ["top", "", "bottom"]),
            third(objects[i].x, ["left", "", "right"]),
        ];
        let place = place.join(" ").trim().to_owned();
        (
            vec![i],
            if place.is_empty() {
                "centre".to_owned()
            } else {
                place
            },
        )
    } else {
        let rest = text.strip_prefix("Is there a").unwrap();
        let rest = rest.strip_prefix('n').unwrap_or(rest).trim();
        let say = |yes: bool| if yes { "yes" } else { "no" }.to_owned();
        match related(rest) {
            None => {
                let found = found(objects, rest);
                let yes = say(!found.is_empty());
                (found, yes)
            }
            Some((name, side, other)) => {
                let (i, other) = (one(objects, name), one(objects, other));
                let actual = relation(&objects[i], &objects[other]);
                let opposite = relation(&objects[other], &objects[i]);
                assert!(side == actual || side == opposite, "{text}");
                (vec![i, other], say(side == actual))
            }
        }
    }
}

#[test]
fn questions_have_one_right_answer() {
    let answers: HashSet<String> = SceneConfig::default().answers().into_iter().collect();
    let mut kinds: BTreeMap<String, BTreeMap<String, usize>> = BTreeMap::new();
    let mut counts = [0; 4];
    for scene in scenes(1500) {
        counts[scene.objects.len()] += 1;
        assert_eq!(scene.questions.len(), 4, "{:?}", scene.objects);
        let texts: HashSet<&str> = scene
            .questions
            .iter()
            .map(|q| q.phrase.text.as_str())
            .collect();
        assert_eq!(texts.len(), 4);
        for (
            id,
            Question {
                phrase,
                kind,
                answer: given,
                answers: all,
                objects,
                ..
            },
        ) in scene.questions.iter().enumerate()
        {
            assert_eq!(scene.questions[id].id, id as u64);
            let (looked_at, right) = answer(&scene.objects, &phrase.text);
            assert_eq!((given, objects), (&right, &looked_at), "{}", phrase.text);
            assert_eq!(all, std::slice::from_ref(&right));
            assert!(answers.contains(&right), "{right}");
            for (word, object) in phrase.words() {
                assert!(!word.is_empty() && !word.ends_with('?'));
                if let Some(object) = object {
                    assert!(
                        is_true(word, &scene.objects[object]),
                        "{word} in {}",
                        phrase.text
                    );
                    assert!(objects.contains(&object), "{word} in {}", phrase.text);
                }
            }
            *kinds
                .entry(kind.clone())
                .or_default()
                .entry(right)
                .or_default() += 1;
        }
    }
    // Everything is asked for, and no answer is right too often without a look.
    assert_eq!(kinds.len(), 5);
    for (kind, answers) in &kinds {
        let all: usize = answers.values().sum();
        let most = *answers.values().max().unwrap();
        assert!(all > 500, "{kind}: {all}");
        assert!(most as f64 / (all as f64) < 0.62, "{kind}: {answers:?}");
    }
    assert_eq!(
        (
            kinds["where"].len(),
            kinds["which colour"].len(),
            kinds["what"].len()
        ),
        (9, 7, 17)
    );
    assert!(counts[1..].iter().all(|&count| count > 350), "{counts:?}");
}

#[test]
fn other_sizes_and_choices_are_drawn() {
    let config = SceneConfig {
        height: 40,
        width: 300,
        min_objects: 3,
        kinds: vec![Kind::Star, Kind::Digit(3)],
        colours: vec![Colour::Red, Colour::White],
        sizes: vec![Size::Medium],
        ..SceneConfig::default()
    };
    for index in 0..50 {
        let scene = Scene::generate(0, index, &config).unwrap();
        assert_eq!(
            (
                scene.image.height(),
                scene.image.width(),
                scene.objects.len()
            ),
            (40, 300, 3)
        );
        for object in &scene.objects {
            assert!(config.kinds.contains(&object.kind) && config.colours.contains(&object.colour));
        }
        assert!(!scene.caption.text.contains("small") && !scene.caption.text.contains("large"));
    }
    let large = SceneConfig {
        height: 1024,
        width: 1024,
        ..SceneConfig::default()
    };
    let scene = Scene::generate(0, 0, &large).unwrap();
    let small = Scene::generate(0, 0, &SceneConfig::default()).unwrap();
    assert_eq!(
        scene.caption, small.caption,
        "the same scene in another size"
    );
}

#[test]
fn configurations_are_checked() {
    let usual = SceneConfig::default;
    for (wrong, names) in [
        (
            SceneConfig {
                height: 31,
                ..usual()
            },
            ["height", "31"],
        ),
        (
            SceneConfig {
                width: usize::MAX,
                ..usual()
            },
            ["width", "2048"],
        ),
        (
            SceneConfig {
                min_objects: 0,
                ..usual()
            },
            ["min_objects", "1 to 3"],
        ),
        (
            SceneConfig {
                max_objects: 4,
                ..usual()
            },
            ["max_objects", "4"],
        ),
        (
            SceneConfig {
                min_objects: 3,
                max_objects: 2,
                ..usual()
            },
            ["min_objects", "3 and 2"],
        ),
        (
            SceneConfig {
                texture: f64::NAN,
                ..usual()
            },
            ["texture", "NaN"],
        ),
        (
            SceneConfig {
                kinds: vec![],
                ..usual()
            },
            ["kinds", "0"],
        ),
        (
            SceneConfig {
                kinds: vec![Kind::Digit(10)],
                ..usual()
            },
            ["kinds", "10"],
        ),
        (
            SceneConfig {
                kinds: vec![Kind::Star; 9],
                colours: vec![Colour::Red; 9],
                ..usual()
            },
            ["colours", "1 and 1"],
        ),
        (
            SceneConfig {
                sizes: vec![],
                ..usual()
            },
            ["sizes", "empty"],
        ),
        (
            SceneConfig {
                questions: usize::MAX,
                ..usual()
            },
            ["questions", "1000"],
        ),
    ] {
        let error = Scene::generate(0, 0, &wrong).unwrap_err();
        assert!(matches!(error, ImagesError::Option { .. }));
        let text = error.to_string();
        assert!(names.iter().all(|name| text.contains(name)), "{text}");
    }
    for kind in Kind::all() {
        assert_eq!(Kind::named(kind.name()).unwrap(), kind);
    }
    for colour in Colour::ALL {
        assert_eq!(Colour::named(colour.name()).unwrap(), colour);
    }
    for size in Size::ALL {
        assert_eq!(Size::named(size.name()).unwrap(), size);
    }
    assert!(
        Kind::named("ellipse")
            .unwrap_err()
            .to_string()
            .contains("heart")
    );
    let many = SceneConfig {
        questions: 1000,
        ..SceneConfig::default()
    };
    assert!(Scene::generate(0, 0, &many).unwrap().questions.len() > 10);
}
