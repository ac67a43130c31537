//! A world with known answers: seeded scenes of coloured shapes and digits on textured ground, with captions, questions, boxes and
//! masks, and for each word and question the object that it speaks of.
//!
//! ```text
//! scene (seed, index)   1 to 3 objects of one kind, colour and size each, no two alike in kind and colour, apart from each other
//! order                 by x + y of the centres: from the upper left to the lower right
//! relation              "above" where centres differ more in y than in x, else "left of"; never close to equal
//! caption               "a red 7 above a small blue square and left of a green star": each relation is that of the first
//! ```
//!
//! What copy and reverse are for text: attention over these images can be scored, not only admired. A scene depends on seed,
//! index and configuration alone, so that any can be made at any time on any thread, with the same pixels on every machine:
//! objects are drawn by tiny-skia, the rasterizer of resvg, in fixed point, and laid over the ground by integers.
//!
//! Objects are in the order of the caption. A mask has the pixels of which the object, drawn alone, covers at least half; a box
//! is the smallest around the mask. Questions are unambiguous: "the square" is said only where there is one square, and
//! positions near a border between two answers are not asked for.
//!
//! ```
//! use regard_images::scenes::{Scene, SceneConfig};
//!
//! let scene = Scene::generate(1, 0, &SceneConfig::default())?;
//! assert_eq!(scene.image.height(), 64);
//! assert_eq!(scene.objects.len(), scene.masks.len());
//! for (word, object) in scene.caption.words() {
//!     if let Some(object) = object {
//!         println!("{word} speaks of {}", scene.objects[object].description());
//!     }
//! }
//! # Ok::<(), regard_images::ImagesError>(())
//! ```

mod digits;
mod draw;
mod words;

use crate::data::{Example, Object, Phrase, Question, Source};
use crate::{Bounds, Image, ImagesError, Mask, Random, Region};

/// What scenes are made of.
#[derive(Clone, Debug, PartialEq)]
pub struct SceneConfig {
    /// Rows, from 32 to 2,048. Default 64.
    pub height: usize,
    /// Columns, from 32 to 2,048. Default 64.
    pub width: usize,
    /// The fewest objects, from 1; there are fewer where so many find no place. Default 1.
    pub min_objects: usize,
    /// The most objects, up to 3. Default 3.
    pub max_objects: usize,
    /// The shapes and digits. Default all.
    pub kinds: Vec<Kind>,
    /// The colours. Default all.
    pub colours: Vec<Colour>,
    /// The sizes. Default all.
    pub sizes: Vec<Size>,
    /// How strong the texture of the ground is, from 0 (one colour) to 1. Default 0.5.
    pub texture: f64,
    /// Questions for each image, if so many are unambiguous. Default 4.
    pub questions: usize,
}

impl Default for SceneConfig {
    fn default() -> Self {
        Self {
            height: 64,
            width: 64,
            min_objects: 1,
            max_objects: 3,
            kinds: Kind::all(),
            colours: Colour::ALL.to_vec(),
            sizes: Size::ALL.to_vec(),
            texture: 0.5,
            questions: 4,
        }
    }
}

impl SceneConfig {
    /// Checks the ranges.
    ///
    /// # Errors
    /// [`ImagesError::Option`].
    pub fn check(&self) -> Result<(), ImagesError> {
        let refuse = |option, given: String, expected: &str| {
            Err(ImagesError::Option {
                option,
                given,
                expected: expected.to_owned(),
            })
        };
        for (option, side) in [("height", self.height), ("width", self.width)] {
            if !(32..=2048).contains(&side) {
                return refuse(
                    option,
                    side.to_string(),
                    "a number of pixels from 32 to 2048",
                );
            }
        }
        let (fewest, most) = (self.min_objects, self.max_objects);
        if fewest == 0 || fewest > most || most > 3 {
            return refuse(
                "min_objects and max_objects",
                format!("{fewest} and {most}"),
                "numbers from 1 to 3, the first not above the second",
            );
        }
        if !(0.0..=1.0).contains(&self.texture) {
            return refuse("texture", self.texture.to_string(), "a number from 0 to 1");
        }
        if self.questions > 1000 {
            return refuse("questions", self.questions.to_string(), "at most 1000");
        }
        if self.sizes.is_empty() {
            return refuse("sizes", "empty".to_owned(), "at least one size");
        }
        if self.kinds.iter().any(|kind| kind.digit() > Some(9)) {
            return refuse("kinds", format!("{:?}", self.kinds), "digits from 0 to 9");
        }
        if unlike(&self.kinds) * unlike(&self.colours) < most {
            return refuse(
                "kinds and colours",
                format!(
                    "{} and {} different ones",
                    unlike(&self.kinds),
                    unlike(&self.colours)
                ),
                "at least as many pairs of kind and colour as objects",
            );
        }
        Ok(())
    }

    /// Names of the kinds, which are the classes of the objects: `objects[i].class` of an example is an index into it.
    pub fn classes(&self) -> Vec<String> {
        self.kinds
            .iter()
            .map(|kind| kind.name().to_owned())
            .collect()
    }

    /// Every answer that a question can have, in a fixed order, each once.
    pub fn answers(&self) -> Vec<String> {
        words::answers(self)
    }
}

fn unlike<T: PartialEq>(items: &[T]) -> usize {
    let first = |&(i, item): &(usize, &T)| !items[..i].contains(item);
    items.iter().enumerate().filter(first).count()
}

/// What an object is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A disc.
    Circle,
    /// A square, its sides upright.
    Square,
    /// A triangle, its tip above.
    Triangle,
    /// A star of five points.
    Star,
    /// A square on its corner, narrowed.
    Diamond,
    /// A plus.
    Cross,
    /// A heart.
    Heart,
    /// A digit from 0 to 9.
    Digit(u8),
}

impl Kind {
    /// The shapes, without the digits.
    pub const SHAPES: [Self; 7] = [
        Self::Circle,
        Self::Square,
        Self::Triangle,
        Self::Star,
        Self::Diamond,
        Self::Cross,
        Self::Heart,
    ];

    /// The shapes, then the digits.
    pub fn all() -> Vec<Self> {
        Self::SHAPES
            .into_iter()
            .chain((0..10).map(Self::Digit))
            .collect()
    }

    /// The noun: `circle`, ..., or the digit.
    pub fn name(self) -> &'static str {
        match self {
            Self::Circle => "circle",
            Self::Square => "square",
            Self::Triangle => "triangle",
            Self::Star => "star",
            Self::Diamond => "diamond",
            Self::Cross => "cross",
            Self::Heart => "heart",
            Self::Digit(digit) => {
                const NAMES: [&str; 10] = ["0", "1", "2", "3", "4", "5", "6", "7", "8", "9"];
                NAMES.get(usize::from(digit)).copied().unwrap_or("no digit")
            }
        }
    }

    /// The kind of this name.
    ///
    /// # Errors
    /// [`ImagesError::Option`], which lists the names.
    pub fn named(name: &str) -> Result<Self, ImagesError> {
        named("a kind of scenes", name, &Self::all(), Self::name)
    }

    fn digit(self) -> Option<u8> {
        match self {
            Self::Digit(digit) => Some(digit),
            _ => None,
        }
    }
}

/// The colour of an object; shades vary a little.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names say it")]
pub enum Colour {
    Red,
    Orange,
    Yellow,
    Green,
    Blue,
    Purple,
    White,
}

impl Colour {
    /// All colours.
    pub const ALL: [Self; 7] = [
        Self::Red,
        Self::Orange,
        Self::Yellow,
        Self::Green,
        Self::Blue,
        Self::Purple,
        Self::White,
    ];

    /// Its word.
    pub fn name(self) -> &'static str {
        match self {
            Self::Red => "red",
            Self::Orange => "orange",
            Self::Yellow => "yellow",
            Self::Green => "green",
            Self::Blue => "blue",
            Self::Purple => "purple",
            Self::White => "white",
        }
    }

    /// The colour of this name.
    ///
    /// # Errors
    /// [`ImagesError::Option`], which lists the names.
    pub fn named(name: &str) -> Result<Self, ImagesError> {
        named("a colour of scenes", name, &Self::ALL, Self::name)
    }
}

/// The size of an object: its radius as a share of the image's shorter side, to 4 %.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Size {
    /// 0.115.
    Small,
    /// 0.165; no word is said for it.
    Medium,
    /// 0.235.
    Large,
}

impl Size {
    /// All sizes.
    pub const ALL: [Self; 3] = [Self::Small, Self::Medium, Self::Large];

    /// Its name in a configuration.
    pub fn name(self) -> &'static str {
        match self {
            Self::Small => "small",
            Self::Medium => "medium",
            Self::Large => "large",
        }
    }

    /// The size of this name.
    ///
    /// # Errors
    /// [`ImagesError::Option`], which lists the names.
    pub fn named(name: &str) -> Result<Self, ImagesError> {
        named("a size of scenes", name, &Self::ALL, Self::name)
    }

    /// The word that captions and questions have for it.
    pub fn word(self) -> Option<&'static str> {
        (self != Self::Medium).then(|| self.name())
    }

    fn share(self) -> f64 {
        match self {
            Self::Small => 0.115,
            Self::Medium => 0.165,
            Self::Large => 0.235,
        }
    }
}

fn named<T: Copy>(
    option: &'static str,
    name: &str,
    all: &[T],
    name_of: fn(T) -> &'static str,
) -> Result<T, ImagesError> {
    let found = all.iter().copied().find(|&item| name_of(item) == name);
    found.ok_or_else(|| ImagesError::Option {
        option,
        given: format!("{name:?}"),
        expected: format!(
            "one of {}",
            all.iter()
                .map(|&item| name_of(item))
                .collect::<Vec<_>>()
                .join(", ")
        ),
    })
}

/// An object of a scene.
#[derive(Clone, Debug, PartialEq)]
pub struct SceneObject {
    /// What it is.
    pub kind: Kind,
    /// Its colour.
    pub colour: Colour,
    /// Its size.
    pub size: Size,
    /// Column of its centre, in pixels.
    pub x: f64,
    /// Row of its centre, in pixels.
    pub y: f64,
    /// Its radius, in pixels.
    pub radius: f64,
    /// The smallest box around its mask.
    pub bounds: Bounds,
}

impl SceneObject {
    /// Size (unless medium), colour and kind: "small blue square".
    pub fn description(&self) -> String {
        let words = self
            .size
            .word()
            .into_iter()
            .chain([self.colour.name(), self.kind.name()]);
        words.collect::<Vec<_>>().join(" ")
    }
}

/// An image with all that is known of it.
#[derive(Clone, Debug)]
pub struct Scene {
    /// The image, `[height, width, 3]`.
    pub image: Image,
    /// What it shows, in the order of the caption.
    pub objects: Vec<SceneObject>,
    /// The pixels of each object.
    pub masks: Vec<Mask>,
    /// The one sentence that describes it.
    pub caption: Phrase,
    /// Questions with their answers.
    pub questions: Vec<Question>,
}

impl Scene {
    /// The scene of this number among those of the seed.
    ///
    /// # Errors
    /// Those of [`SceneConfig::check`].
    pub fn generate(seed: u64, index: u64, config: &SceneConfig) -> Result<Self, ImagesError> {
        config.check()?;
        // Separate streams, so that a change of the texture or of the questions leaves the objects as they are.
        let random = |purpose| Random::for_purpose(seed, index, purpose);
        let mut objects = placed(config, &mut random(1));
        let (image, masks) = draw::scene(config, &objects, &mut random(2))?;
        for (object, mask) in objects.iter_mut().zip(&masks) {
            object.bounds = mask.bounds().unwrap_or(object.bounds);
        }
        let caption = words::caption(&objects);
        let questions = words::questions(config, &objects, &mut random(3));
        Ok(Self {
            image,
            objects,
            masks,
            caption,
            questions,
        })
    }

    /// The scene in the form of all data sets; classes are those of [`SceneConfig::classes`].
    pub fn example(self, config: &SceneConfig) -> Example {
        let objects = self
            .objects
            .iter()
            .zip(self.masks)
            .map(|(object, mask)| Object {
                class: config
                    .kinds
                    .iter()
                    .position(|&kind| kind == object.kind)
                    .unwrap_or(0),
                bounds: object.bounds,
                region: Some(Region::Pixels(mask)),
                crowd: false,
            });
        Example {
            objects: objects.collect(),
            size: Some([self.image.height(), self.image.width()]),
            captions: vec![self.caption],
            questions: self.questions,
            ..Example::new(Source::Pixels(self.image))
        }
    }
}

/// Draws what there is and where, in the order of captions. If there is no room for an object, there is one less.
fn placed(config: &SceneConfig, random: &mut Random) -> Vec<SceneObject> {
    let mut count = config.min_objects + random.below(config.max_objects - config.min_objects + 1);
    loop {
        for _ in 0..100 {
            if let Some(mut objects) = arranged(config, count, random) {
                objects.sort_by(|a, b| (a.x + a.y).total_cmp(&(b.x + b.y)));
                return objects;
            }
        }
        count -= 1;
    }
}

/// One attempt at so many objects: `None` if two are alike, touch, or have no clear relation. A single object always fits.
fn arranged(config: &SceneConfig, count: usize, random: &mut Random) -> Option<Vec<SceneObject>> {
    let short = config.height.min(config.width) as f64;
    let mut objects: Vec<SceneObject> = vec![];
    for _ in 0..count {
        let kind = config.kinds[random.below(config.kinds.len())];
        let colour = config.colours[random.below(config.colours.len())];
        let size = config.sizes[random.below(config.sizes.len())];
        let radius = short * size.share() * random.between(0.96, 1.04);
        let margin = radius + short / 64.0;
        let x = random.between(margin, config.width as f64 - margin);
        let y = random.between(margin, config.height as f64 - margin);
        for other in &objects {
            let (across, down) = ((x - other.x).abs(), (y - other.y).abs());
            let apart = across.max(down) > radius + other.radius + short / 32.0;
            let related = (across - down).abs() > 0.1 * short;
            if (kind, colour) == (other.kind, other.colour) || !apart || !related {
                return None;
            }
        }
        let bounds = Bounds {
            x: (x - radius) as f32,
            y: (y - radius) as f32,
            width: (2.0 * radius) as f32,
            height: (2.0 * radius) as f32,
        };
        objects.push(SceneObject {
            kind,
            colour,
            size,
            x,
            y,
            radius,
            bounds,
        });
    }
    Some(objects)
}
