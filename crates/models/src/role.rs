//! What models do, and how an architecture is described.
//!
//! A [`Role`] is what a kind of model does; the type that holds any model of the role stands for it:
//!
//! | role | its models | beside the configuration, a model is sized by |
//! |---|---|---|
//! | [`AnyGenerator`] | write tokens ([`Generator`]) | two vocabularies |
//! | [`AnyTextModel`] | predict tokens of a text ([`TextModel`]) | a vocabulary |
//! | [`AnyClassifier`] | give sentences labels ([`Classifier`]) | a vocabulary, classes |
//! | [`AnyImageClassifier`] | give images classes ([`ImageClassifier`]) | images, classes |
//! | [`AnyDetector`] | find objects in images ([`Detector`]) | images, classes |
//! | [`AnyQuestionAnswerer`] | answer questions about images ([`QuestionAnswerer`]) | images, a vocabulary, answers |
//! | [`Captioner`] | write captions of images | images, a vocabulary |
//!
//! A [`ModelConfig`] is the section `[model]` of a recipe, and stands in a model file beside the weights. It and the trait of the role
//! are all that an architecture implements. [`AnyModelConfig`] is any configuration of a role, and [`RoleOf`] finds it in a configuration
//! whose type is known at run time only.
//!
//! ```
//! use burn::{module::Module, tensor::Device};
//! use regard_models::{LuongConfig, ModelConfig, Vocabularies};
//!
//! let luong = LuongConfig { hidden: 8, embedding: 8, ..LuongConfig::default() };
//! let model = luong.init(&Vocabularies::new(10, 12), 1, &Device::flex())?;
//! assert!(model.num_params() > 0);
//! # Ok::<(), regard_models::ModelError>(())
//! ```

use std::fmt;

use burn::{module::Module, tensor::Device};
use regard_config::{AnyConfig, Config};
use regard_nn::{initialize::Initializer, weights::Arrays};

use crate::{
    AnyClassifier, AnyDetector, AnyGenerator, AnyImageClassifier, AnyQuestionAnswerer,
    AnyTextModel, Captioner, Classifier, Detector, Generator, ImageClassifier, QuestionAnswerer,
    TextModel,
    classifier::ClassifierSizes,
    error::{ModelError, checked, drawn, expect_layers},
    image::{CaptionerSizes, DetectorSizes, ImageSizes, QuestionSizes},
    text_model::Objective,
    vocabulary::{Vocabularies, Vocabulary},
};

/// What a kind of model does. The type is that of any model of this role.
pub trait Role: Module + Sync + 'static {
    /// What a model is sized by, beside its configuration.
    type Sizes: Sizes;

    /// What a configuration says of its models before there is one.
    type Properties: Default;
}

/// What a model is sized by, beside its configuration: vocabularies, classes, images.
pub trait Sizes {
    /// Checks that a model can have these sizes.
    ///
    /// # Errors
    /// Too few classes, or images without pixels.
    fn check(&self) -> Result<(), ModelError> {
        Ok(())
    }
}

/// Sizes and choices of a model.
pub trait ModelConfig: Config {
    /// What its models do.
    type Role: Role + From<Self::Model>;

    /// The model that they describe.
    type Model: Module;

    /// Draws a model. The caller has checked that every range holds and that the sizes are possible.
    ///
    /// # Errors
    /// Sizes that do not go together.
    fn draw(
        &self,
        sizes: &<Self::Role as Role>::Sizes,
        initializer: &mut Initializer,
    ) -> Result<Self::Model, ModelError>;

    /// The number of layers that have weights of their own, in the deepest stack.
    fn layers(&self) -> usize;

    /// What is known of its models.
    fn properties(&self) -> <Self::Role as Role>::Properties {
        Default::default()
    }

    /// Draws a model from `seed`.
    ///
    /// # Errors
    /// What [`Config::check`], [`Sizes::check`] and [`ModelConfig::draw`] find; more weights than can be held.
    fn init(
        &self,
        sizes: &<Self::Role as Role>::Sizes,
        seed: u64,
        device: &Device,
    ) -> Result<Self::Model, ModelError> {
        checked(self)?;
        sizes.check()?;
        drawn(|init| self.draw(sizes, init), seed, device)
    }

    /// A model without values, for the weights `arrays` of a file: [`weights::apply`](regard_nn::weights::apply) gives them to
    /// it. No weight is drawn or allocated. The number of layers, which may come from the file, is checked against the
    /// number of arrays.
    ///
    /// # Errors
    /// As [`ModelConfig::init`]; more layers than weights.
    fn without_values(
        &self,
        sizes: &<Self::Role as Role>::Sizes,
        arrays: &Arrays,
        device: &Device,
    ) -> Result<Self::Model, ModelError> {
        checked(self)?;
        sizes.check()?;
        expect_layers(self.layers(), arrays)?;
        self.draw(sizes, &mut Initializer::deferred(device))
    }
}

/// Any [`ModelConfig`] of the role `R`.
pub trait AnyModelConfig<R: Role>: AnyConfig {
    /// As [`ModelConfig::init`].
    ///
    /// # Errors
    /// The same.
    fn build(&self, sizes: &R::Sizes, seed: u64, device: &Device) -> Result<R, ModelError>;

    /// As [`ModelConfig::without_values`].
    ///
    /// # Errors
    /// The same.
    fn build_without_values(
        &self,
        sizes: &R::Sizes,
        arrays: &Arrays,
        device: &Device,
    ) -> Result<R, ModelError>;

    /// As [`ModelConfig::properties`].
    fn properties(&self) -> R::Properties;
}

impl<C: ModelConfig> AnyModelConfig<C::Role> for C {
    fn build(
        &self,
        sizes: &<C::Role as Role>::Sizes,
        seed: u64,
        device: &Device,
    ) -> Result<C::Role, ModelError> {
        Ok(self.init(sizes, seed, device)?.into())
    }

    fn build_without_values(
        &self,
        sizes: &<C::Role as Role>::Sizes,
        arrays: &Arrays,
        device: &Device,
    ) -> Result<C::Role, ModelError> {
        Ok(self.without_values(sizes, arrays, device)?.into())
    }

    fn properties(&self) -> <C::Role as Role>::Properties {
        ModelConfig::properties(self)
    }
}

/// Finds the configuration of a model of role `R` in a configuration whose type is known at run time only.
pub struct RoleOf<R>(fn(&dyn AnyConfig) -> Option<&dyn AnyModelConfig<R>>);

impl<R: Role> RoleOf<R> {
    /// For configurations of type `C`.
    pub fn config<C: ModelConfig<Role = R>>() -> Self {
        Self(|config| config.downcast_ref::<C>().map(|config| config as _))
    }

    /// `config` as that of a model.
    ///
    /// # Panics
    /// If `config` is of another type than that which this was made for.
    pub fn of<'a>(&self, config: &'a dyn AnyConfig) -> &'a dyn AnyModelConfig<R> {
        (self.0)(config).expect("a configuration is of its own architecture")
    }
}

impl<R> Clone for RoleOf<R> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<R> Copy for RoleOf<R> {}

impl<R> fmt::Debug for RoleOf<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RoleOf<{}>", std::any::type_name::<R>())
    }
}

/// What a configuration says of a model that writes tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct GeneratorProperties {
    /// Whether source and target must have one vocabulary.
    pub needs_joint_vocabulary: bool,
    /// The longest source or target that the model can read, in tokens with its marks; `None` for no limit.
    pub longest: Option<usize>,
}

/// What a configuration says of a model of text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TextProperties {
    /// What the model predicts.
    pub objective: Objective,
    /// The length of the texts that it is trained on, in tokens.
    pub context: usize,
}

/// What a configuration says of a model that gives sentences labels.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ClassifierProperties {
    /// The longest sentence that the model can read, in tokens without its marks; `None` for no limit.
    pub longest: Option<usize>,
}

/// What a configuration says of a detector.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct DetectorProperties {
    /// The most objects that the model finds in an image.
    pub most_objects: usize,
}

/// What a configuration says of a model that answers questions about images.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct QuestionProperties {
    /// Whether the model looks at the image.
    pub looks: bool,
}

/// Declares roles: the type that holds any model, the trait of its models, their sizes and properties.
macro_rules! roles {
    ($($any:ident: $models:ident, $sizes:ty, $properties:ty;)+) => { $(
        impl Role for $any {
            type Sizes = $sizes;
            type Properties = $properties;
        }

        impl<M: $models> From<M> for $any {
            fn from(model: M) -> Self {
                Self::new(model)
            }
        }
    )+ };
}

roles! {
    AnyGenerator: Generator, Vocabularies, GeneratorProperties;
    AnyTextModel: TextModel, Vocabulary, TextProperties;
    AnyClassifier: Classifier, ClassifierSizes, ClassifierProperties;
    AnyImageClassifier: ImageClassifier, ImageSizes, ();
    AnyDetector: Detector, DetectorSizes, DetectorProperties;
    AnyQuestionAnswerer: QuestionAnswerer, QuestionSizes, QuestionProperties;
}

impl Role for Captioner {
    type Sizes = CaptionerSizes;
    type Properties = ();
}

impl Sizes for Vocabularies {}
impl Sizes for Vocabulary {}
