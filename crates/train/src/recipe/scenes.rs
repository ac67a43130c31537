//! `[data.scenes]`: images that the program draws, of which everything is known.

use regard_config::{Check, PROBABILITY, Range, SIZE, config};
use regard_images::{
    ImagesError,
    scenes::{Kind, Scene, SceneConfig},
};

use super::Split;

const SIDE: Range<usize> = Range {
    holds: |pixels| (32..=2048).contains(&pixels),
    expected: "32 to 2048",
};

const OBJECTS: Range<usize> = Range {
    holds: |count| (1..=3).contains(&count),
    expected: "1 to 3",
};

const COUNT: Range<usize> = Range {
    holds: |count| (1..=100_000_000).contains(&count),
    expected: "1 to 100000000",
};

config! {
    /// Drawn scenes: coloured shapes and digits on textured ground, with captions, questions, boxes and masks
    /// (`regard_images::scenes`). They are drawn when they are read, so that a million needs no memory.
    pub struct SceneData {
        /// Training scenes.
        train: usize = 50_000, in COUNT;
        /// Validation scenes.
        valid: usize = 500, in COUNT;
        /// Test scenes, for `regard evaluate` and `compare`.
        test: usize = 1_000, in COUNT;
        /// Height and width of a scene, in pixels.
        size: usize = 64, in SIDE;
        /// Most objects in a scene.
        objects: usize = 3, in OBJECTS;
        /// Whether there are digits among the objects.
        digits: bool = true;
        /// How strong the texture of the ground is, from 0 (one colour) to 1.
        texture: f64 = 0.5, in PROBABILITY;
        /// Most questions about a scene.
        questions: usize = 4, in SIZE;
    }
    check SceneData::agree
}

impl SceneData {
    fn agree(&self, check: &mut Check) {
        check.require(
            self.questions <= 1000,
            "questions",
            self.questions,
            "at most 1000",
        );
    }

    /// What the scenes are made of.
    pub fn config(&self) -> SceneConfig {
        SceneConfig {
            height: self.size,
            width: self.size,
            max_objects: self.objects,
            kinds: match self.digits {
                true => Kind::all(),
                false => Kind::SHAPES.to_vec(),
            },
            texture: self.texture,
            questions: self.questions,
            ..SceneConfig::default()
        }
    }

    /// The scenes of a part. The same `seed` draws the same scenes; each part has its own.
    pub fn part(&self, split: Split, seed: u64) -> SceneSet {
        SceneSet {
            config: self.config(),
            seed: split.seed(seed),
            len: match split {
                Split::Train => self.train,
                Split::Valid => self.valid,
                Split::Test => self.test,
            },
        }
    }
}

/// Scenes, which are drawn when they are asked for.
#[derive(Debug, Clone, PartialEq)]
pub struct SceneSet {
    config: SceneConfig,
    seed: u64,
    len: usize,
}

impl SceneSet {
    /// What the scenes are made of.
    pub fn config(&self) -> &SceneConfig {
        &self.config
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The scene of this number, from 0.
    ///
    /// # Errors
    /// Those of [`SceneConfig::check`].
    pub fn scene(&self, index: usize) -> Result<Scene, ImagesError> {
        Scene::generate(self.seed, index as u64, &self.config)
    }
}
