//! Models whose type is chosen at run time: [`AnyGenerator`], [`AnyTextModel`] and [`AnyClassifier`] are Burn modules themselves,
//! so that the code that trains, saves and searches is compiled once, not once for every architecture.

use std::{any::Any, fmt};

use burn::tensor::{Device, Int, Tensor};
use regard_nn::{any_module, dropout::DropoutRng, mask::PaddingMask};

use crate::{
    batch::{SourceBatch, TargetBatch},
    classifier::{Classified, Classifier, ClassifierMap},
    generator::{AttentionMaps, DecoderState, Generator, Output, Packed, Scored},
    image::{
        Detected, Detector, DetectorLook, ImageClassifier, ImageLook, QuestionAnswerer,
        QuestionBatch, QuestionLook,
    },
    pretrained::PackedText,
    text_model::TextModel,
    vocabulary::{Vocabularies, Vocabulary},
};

/// A model that finds objects in images, of any architecture.
pub struct AnyDetector(Box<dyn DynDetector>);

/// A model that answers questions about images, of any architecture.
pub struct AnyQuestionAnswerer(Box<dyn DynQuestionAnswerer>);

/// A model that gives an image a class, of any architecture.
pub struct AnyImageClassifier(Box<dyn DynImageClassifier>);

/// A model that writes tokens, of any architecture.
pub struct AnyGenerator(Box<dyn DynGenerator>);

/// A model that gives a sentence a label, of any architecture.
pub struct AnyClassifier(Box<dyn DynClassifier>);

/// A model of text, of any architecture.
pub struct AnyTextModel(Box<dyn DynTextModel>);

/// The state of a model that goes step by step, of any architecture.
pub struct AnyState(Box<dyn StateFace>);

any_module!(AnyGenerator, Generator, DynGenerator, Some(M::NAME), {
    /// As [`Generator::vocabularies`].
    fn vocabularies(&self) -> Vocabularies;
    /// As [`Generator::forward`].
    fn forward(&self, source: &SourceBatch, target: &TargetBatch, noise: &mut DropoutRng) -> Scored;
    /// As [`Generator::encode`].
    fn encode(&self, source: &SourceBatch, noise: &mut DropoutRng) -> AnyState;
    /// As [`Generator::step`].
    ///
    /// # Panics
    /// When `state` is of another architecture.
    fn step(&self, previous: Tensor<1, Int>, state: AnyState, observe: bool) -> (Output, AnyState);
    /// As [`Generator::look`].
    fn look(&self, source: &SourceBatch, target: &TargetBatch) -> Option<AttentionMaps>;
    /// As [`Generator::is_normalized`].
    fn is_normalized(&self) -> bool;
    /// As [`Generator::pack`].
    fn pack(&self) -> Option<Box<dyn Packed>>;
} {
    fn vocabularies(&self) -> Vocabularies {
        self.vocabularies()
    }
    fn forward(&self, source: &SourceBatch, target: &TargetBatch, noise: &mut DropoutRng) -> Scored {
        self.forward(source, target, noise)
    }
    fn encode(&self, source: &SourceBatch, noise: &mut DropoutRng) -> AnyState {
        AnyState(Box::new(self.encode(source, noise)))
    }
    fn step(&self, previous: Tensor<1, Int>, state: AnyState, observe: bool) -> (Output, AnyState) {
        let (output, state) = self.step(previous, state.of::<M::State>(), observe);
        (output, AnyState(Box::new(state)))
    }
    fn look(&self, source: &SourceBatch, target: &TargetBatch) -> Option<AttentionMaps> {
        self.look(source, target)
    }
    fn is_normalized(&self) -> bool {
        self.is_normalized()
    }
    fn pack(&self) -> Option<Box<dyn Packed>> {
        self.pack()
    }
});

any_module!(AnyClassifier, Classifier, DynClassifier, None, {
    /// As [`Classifier::vocabulary`].
    fn vocabulary(&self) -> Vocabulary;
    /// As [`Classifier::reads_start`].
    fn reads_start(&self) -> bool;
    /// As [`Classifier::forward`].
    fn forward(&self, source: &SourceBatch, noise: &mut DropoutRng) -> Classified;
    /// As [`Classifier::look`].
    fn look(&self, source: &SourceBatch) -> Option<Vec<ClassifierMap>>;
} {
    fn vocabulary(&self) -> Vocabulary {
        self.vocabulary()
    }
    fn reads_start(&self) -> bool {
        self.reads_start()
    }
    fn forward(&self, source: &SourceBatch, noise: &mut DropoutRng) -> Classified {
        self.forward(source, noise)
    }
    fn look(&self, source: &SourceBatch) -> Option<Vec<ClassifierMap>> {
        self.look(source)
    }
});

any_module!(AnyImageClassifier, ImageClassifier, DynImageClassifier, None, {
    /// As [`ImageClassifier::forward`].
    fn forward(&self, images: Tensor<4>, noise: &mut DropoutRng) -> Tensor<2>;
    /// As [`ImageClassifier::look`].
    fn look(&self, images: Tensor<4>) -> ImageLook;
    /// As [`ImageClassifier::has_stack`].
    fn has_stack(&self) -> bool;
} {
    fn forward(&self, images: Tensor<4>, noise: &mut DropoutRng) -> Tensor<2> {
        self.forward(images, noise)
    }
    fn look(&self, images: Tensor<4>) -> ImageLook {
        self.look(images)
    }
    fn has_stack(&self) -> bool {
        self.has_stack()
    }
});

any_module!(AnyDetector, Detector, DynDetector, None, {
    /// As [`Detector::forward`].
    fn forward(&self, images: Tensor<4>, noise: &mut DropoutRng) -> Detected;
    /// As [`Detector::look`].
    fn look(&self, images: Tensor<4>) -> DetectorLook;
    /// As [`Detector::has_masks`].
    fn has_masks(&self) -> bool;
    /// As [`Detector::masks`].
    ///
    /// # Panics
    /// As that.
    fn masks(&self, found: &Detected, chosen: &[[usize; 2]], size: [usize; 2]) -> Option<Tensor<3>>;
} {
    fn forward(&self, images: Tensor<4>, noise: &mut DropoutRng) -> Detected {
        self.forward(images, noise)
    }
    fn look(&self, images: Tensor<4>) -> DetectorLook {
        self.look(images)
    }
    fn has_masks(&self) -> bool {
        self.has_masks()
    }
    fn masks(&self, found: &Detected, chosen: &[[usize; 2]], size: [usize; 2]) -> Option<Tensor<3>> {
        self.masks(found, chosen, size)
    }
});

any_module!(AnyQuestionAnswerer, QuestionAnswerer, DynQuestionAnswerer, None, {
    /// As [`QuestionAnswerer::vocabulary`].
    fn vocabulary(&self) -> Vocabulary;
    /// As [`QuestionAnswerer::forward`].
    fn forward(&self, images: Tensor<4>, questions: &QuestionBatch, noise: &mut DropoutRng) -> QuestionLook;
    /// As [`QuestionAnswerer::look`].
    fn look(&self, images: Tensor<4>, questions: &QuestionBatch) -> QuestionLook;
} {
    fn vocabulary(&self) -> Vocabulary {
        self.vocabulary()
    }
    fn forward(&self, images: Tensor<4>, questions: &QuestionBatch, noise: &mut DropoutRng) -> QuestionLook {
        self.forward(images, questions, noise)
    }
    fn look(&self, images: Tensor<4>, questions: &QuestionBatch) -> QuestionLook {
        self.look(images, questions)
    }
});

any_module!(AnyTextModel, TextModel, DynTextModel, None, {
    /// As [`TextModel::vocabulary`].
    fn vocabulary(&self) -> Vocabulary;
    /// As [`TextModel::longest`].
    fn longest(&self) -> Option<usize>;
    /// As [`TextModel::forward`].
    fn forward(&self, ids: Tensor<2, Int>, keep: &PaddingMask, noise: &mut DropoutRng) -> Scored;
    /// As [`TextModel::begin`].
    fn begin(&self, rows: usize, device: &Device) -> Option<AnyState>;
    /// As [`TextModel::step`].
    ///
    /// # Panics
    /// When `state` is of another architecture.
    fn step(&self, ids: Tensor<1, Int>, state: AnyState) -> (Output, AnyState);
    /// As [`TextModel::read`].
    ///
    /// # Panics
    /// When `state` is of another architecture.
    fn read(&self, ids: Tensor<2, Int>, state: AnyState) -> AnyState;
    /// As [`TextModel::look`].
    fn look(&self, ids: Tensor<2, Int>, keep: &PaddingMask) -> Vec<Tensor<4>>;
    /// As [`TextModel::is_normalized`].
    fn is_normalized(&self) -> bool;
    /// As [`TextModel::pack`].
    fn pack(&self) -> Option<PackedText>;
} {
    fn vocabulary(&self) -> Vocabulary {
        self.vocabulary()
    }
    fn longest(&self) -> Option<usize> {
        self.longest()
    }
    fn forward(&self, ids: Tensor<2, Int>, keep: &PaddingMask, noise: &mut DropoutRng) -> Scored {
        self.forward(ids, keep, noise)
    }
    fn begin(&self, rows: usize, device: &Device) -> Option<AnyState> {
        Some(AnyState(Box::new(self.begin(rows, device)?)))
    }
    fn step(&self, ids: Tensor<1, Int>, state: AnyState) -> (Output, AnyState) {
        let (output, state) = self.step(ids, state.of::<M::State>());
        (output, AnyState(Box::new(state)))
    }
    fn read(&self, ids: Tensor<2, Int>, state: AnyState) -> AnyState {
        AnyState(Box::new(self.read(ids, state.of::<M::State>())))
    }
    fn look(&self, ids: Tensor<2, Int>, keep: &PaddingMask) -> Vec<Tensor<4>> {
        self.look(ids, keep)
    }
    fn is_normalized(&self) -> bool {
        self.is_normalized()
    }
    fn pack(&self) -> Option<PackedText> {
        self.pack()
    }
});

trait StateFace: fmt::Debug {
    fn boxed(&self) -> Box<dyn StateFace>;
    fn selected(self: Box<Self>, rows: &[usize], same_sources: bool) -> Box<dyn StateFace>;
    fn any(self: Box<Self>) -> Box<dyn Any>;
}

impl<S: DecoderState> StateFace for S {
    fn boxed(&self) -> Box<dyn StateFace> {
        Box::new(self.clone())
    }
    fn selected(self: Box<Self>, rows: &[usize], same_sources: bool) -> Box<dyn StateFace> {
        Box::new((*self).select(rows, same_sources))
    }
    fn any(self: Box<Self>) -> Box<dyn Any> {
        self
    }
}

impl DecoderState for AnyState {
    fn select(self, rows: &[usize], same_sources: bool) -> Self {
        Self::select(self, rows, same_sources)
    }
}

impl AnyState {
    /// As [`DecoderState::select`].
    pub fn select(self, rows: &[usize], same_sources: bool) -> Self {
        Self(self.0.selected(rows, same_sources))
    }

    /// The state of a model whose states are `S`.
    fn of<S: DecoderState>(self) -> S {
        let state = self.0.any().downcast();
        *state.expect("a state is of the model's own architecture")
    }
}

impl Clone for AnyState {
    fn clone(&self) -> Self {
        Self(self.0.boxed())
    }
}

impl fmt::Debug for AnyState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
