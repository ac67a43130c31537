//! Models whose type is chosen at run time: [`AnyGenerator`] and [`AnyClassifier`] are Burn modules themselves, so that whatever
//! trains, saves and searches is compiled once, not once for every architecture.

use std::{any::Any, fmt, ops::Deref};

use burn::{
    module::{Flag, Module, ModuleMapper, ModuleVisitor, Param},
    tensor::{Bool, Device, Float, Int, Tensor},
};
use regard_config::AnyConfig;
use regard_nn::{dropout::DropoutRng, weights::Arrays};

use crate::{
    batch::{SourceBatch, TargetBatch},
    classifier::{Classified, Classifier, ClassifierConfig, ClassifierSizes},
    error::ModelError,
    generator::{AttentionMaps, DecoderState, Generator, GeneratorConfig, Output, Packed, Scored},
    vocabulary::{Vocabularies, Vocabulary},
};

/// Any [`GeneratorConfig`].
pub trait AnyGeneratorConfig: AnyConfig {
    /// As [`GeneratorConfig::init`].
    ///
    /// # Errors
    /// The same.
    fn build(
        &self,
        vocabularies: &Vocabularies,
        seed: u64,
        device: &Device,
    ) -> Result<AnyGenerator, ModelError>;

    /// As [`GeneratorConfig::without_values`].
    ///
    /// # Errors
    /// The same.
    fn build_without_values(
        &self,
        vocabularies: &Vocabularies,
        arrays: &Arrays,
        device: &Device,
    ) -> Result<AnyGenerator, ModelError>;

    /// As [`GeneratorConfig::needs_joint_vocabulary`].
    fn needs_joint_vocabulary(&self) -> bool;

    /// As [`GeneratorConfig::longest`].
    fn longest(&self) -> Option<usize>;
}

impl<C: GeneratorConfig> AnyGeneratorConfig for C {
    fn build(
        &self,
        vocabularies: &Vocabularies,
        seed: u64,
        device: &Device,
    ) -> Result<AnyGenerator, ModelError> {
        Ok(AnyGenerator::new(self.init(vocabularies, seed, device)?))
    }

    fn build_without_values(
        &self,
        vocabularies: &Vocabularies,
        arrays: &Arrays,
        device: &Device,
    ) -> Result<AnyGenerator, ModelError> {
        let model = self.without_values(vocabularies, arrays, device)?;
        Ok(AnyGenerator::new(model))
    }

    fn needs_joint_vocabulary(&self) -> bool {
        GeneratorConfig::needs_joint_vocabulary(self)
    }

    fn longest(&self) -> Option<usize> {
        GeneratorConfig::longest(self)
    }
}

/// Any [`ClassifierConfig`].
pub trait AnyClassifierConfig: AnyConfig {
    /// As [`ClassifierConfig::init`].
    ///
    /// # Errors
    /// The same.
    fn build(
        &self,
        sizes: &ClassifierSizes,
        seed: u64,
        device: &Device,
    ) -> Result<AnyClassifier, ModelError>;

    /// As [`ClassifierConfig::without_values`].
    ///
    /// # Errors
    /// The same.
    fn build_without_values(
        &self,
        sizes: &ClassifierSizes,
        arrays: &Arrays,
        device: &Device,
    ) -> Result<AnyClassifier, ModelError>;
}

impl<C: ClassifierConfig> AnyClassifierConfig for C {
    fn build(
        &self,
        sizes: &ClassifierSizes,
        seed: u64,
        device: &Device,
    ) -> Result<AnyClassifier, ModelError> {
        Ok(AnyClassifier::new(self.init(sizes, seed, device)?))
    }

    fn build_without_values(
        &self,
        sizes: &ClassifierSizes,
        arrays: &Arrays,
        device: &Device,
    ) -> Result<AnyClassifier, ModelError> {
        let model = self.without_values(sizes, arrays, device)?;
        Ok(AnyClassifier::new(model))
    }
}

/// A model that writes tokens, whichever it is.
pub struct AnyGenerator(Box<dyn DynGenerator>);

/// A model that gives a sentence a label, whichever it is.
pub struct AnyClassifier(Box<dyn DynClassifier>);

/// A generator's state, whichever it is.
pub struct AnyState(Box<dyn StateFace>);

/// What both faces have of a module, and the module that this makes of `$any`; `$prefix` stands before the names of weights.
macro_rules! any_module {
    ($any:ident, $role:ident, $face:ident, $prefix:expr, { $($asked:tt)* } { $($answered:tt)* }) => {
        #[doc = concat!("What can be asked of any [`", stringify!($role), "`]; see there.")]
        pub trait $face: fmt::Debug + Send + Sync {
            #[doc(hidden)]
            fn boxed(&self) -> Box<dyn $face>;
            #[doc(hidden)]
            fn devices(&self, devices: Vec<Device>) -> Vec<Device>;
            #[doc(hidden)]
            fn inner(&self) -> Box<dyn $face>;
            #[doc(hidden)]
            fn change(self: Box<Self>, change: Change<'_>) -> Box<dyn $face>;
            #[doc(hidden)]
            fn visited(&self, visitor: &mut dyn AnyVisitor);
            $($asked)*
        }

        impl<M: $role> $face for M {
            fn boxed(&self) -> Box<dyn $face> {
                Box::new(self.clone())
            }
            fn devices(&self, devices: Vec<Device>) -> Vec<Device> {
                self.collect_devices(devices)
            }
            fn inner(&self) -> Box<dyn $face> {
                Box::new(self.valid())
            }
            fn change(self: Box<Self>, change: Change<'_>) -> Box<dyn $face> {
                Box::new(change.of(*self, $prefix))
            }
            fn visited(&self, visitor: &mut dyn AnyVisitor) {
                let prefix: Option<&str> = $prefix;
                prefix.inspect(|name| visitor.enter(name, MODEL));
                self.visit(&mut Through(&mut *visitor));
                prefix.inspect(|name| visitor.exit(name, MODEL));
            }
            $($answered)*
        }

        impl $any {
            /// The model, its type forgotten.
            pub fn new(model: impl $role) -> Self {
                Self(Box::new(model))
            }
        }

        impl Deref for $any {
            type Target = dyn $face;
            fn deref(&self) -> &Self::Target {
                &*self.0
            }
        }

        impl Clone for $any {
            fn clone(&self) -> Self {
                Self(self.0.boxed())
            }
        }

        impl fmt::Debug for $any {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }

        impl Module for $any {
            fn collect_devices(&self, devices: Vec<Device>) -> Vec<Device> {
                self.0.devices(devices)
            }
            fn fork(self, device: &Device) -> Self {
                Self(self.0.change(Change::Fork(device)))
            }
            fn to_device(self, device: &Device) -> Self {
                Self(self.0.change(Change::Move(device)))
            }
            fn train(self) -> Self {
                Self(self.0.change(Change::Train))
            }
            fn valid(&self) -> Self {
                Self(self.0.inner())
            }
            fn materialize(self) -> Self {
                Self(self.0.change(Change::Materialize))
            }
            fn visit<V: ModuleVisitor>(&self, visitor: &mut V) {
                self.0.visited(visitor);
            }
            fn map<M: ModuleMapper>(self, mapper: &mut M) -> Self {
                Self(self.0.change(Change::Map(mapper)))
            }
        }
    };
}

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
        let state = state.0.any().downcast::<M::State>();
        let state = state.expect("the decoder state is of the model's own architecture");
        let (output, state) = self.step(previous, *state, observe);
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
    /// As [`Classifier::forward`].
    fn forward(&self, source: &SourceBatch, noise: &mut DropoutRng) -> Classified;
} {
    fn vocabulary(&self) -> Vocabulary {
        self.vocabulary()
    }
    fn forward(&self, source: &SourceBatch, noise: &mut DropoutRng) -> Classified {
        self.forward(source, noise)
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

impl AnyState {
    /// As [`DecoderState::select`].
    pub fn select(self, rows: &[usize], same_sources: bool) -> Self {
        Self(self.0.selected(rows, same_sources))
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

/// What visitors and mappers are told of the type of a model.
const MODEL: &str = "Struct:Model";

/// What may be made of a module.
pub enum Change<'a> {
    Fork(&'a Device),
    Move(&'a Device),
    Train,
    Materialize,
    Map(&'a mut dyn AnyMapper),
}

impl Change<'_> {
    fn of<M: Module>(self, module: M, prefix: Option<&str>) -> M {
        match self {
            Self::Fork(device) => module.fork(device),
            Self::Move(device) => module.to_device(device),
            Self::Train => module.train(),
            Self::Materialize => module.materialize(),
            Self::Map(mapper) => {
                prefix.inspect(|name| mapper.enter(name, MODEL));
                let module = module.map(&mut Through(&mut *mapper));
                prefix.inspect(|name| mapper.exit(name, MODEL));
                module
            }
        }
    }
}

/// A visitor or mapper whose type is forgotten; parameters go through as [`Any`], since their ranks are types.
struct Through<'a, T: ?Sized>(&'a mut T);

/// Any [`ModuleVisitor`].
pub trait AnyVisitor {
    fn enter(&mut self, name: &str, container: &str);
    fn exit(&mut self, name: &str, container: &str);
    fn float(&mut self, param: &dyn Any);
    fn int(&mut self, param: &dyn Any);
    fn bool(&mut self, param: &dyn Any);
    fn flag(&mut self, param: &Param<Flag>);
}

/// Any [`ModuleMapper`].
pub trait AnyMapper {
    fn enter(&mut self, name: &str, container: &str);
    fn exit(&mut self, name: &str, container: &str);
    fn float(&mut self, param: Box<dyn Any>) -> Box<dyn Any>;
    fn int(&mut self, param: Box<dyn Any>) -> Box<dyn Any>;
    fn bool(&mut self, param: Box<dyn Any>) -> Box<dyn Any>;
    fn flag(&mut self, param: Param<Flag>) -> Param<Flag>;
}

const RANK: &str = "a parameter has 1 to 8 axes";

/// `$visitor.$visit(param)` with `$param` at its true rank.
macro_rules! visit_ranked {
    ($visitor:ident.$visit:ident($param:ident: $kind:ty), $($rank:literal)+) => {{
        $(if let Some(param) = $param.downcast_ref::<Param<Tensor<$rank, $kind>>>() {
            return $visitor.$visit(param);
        })+
        unreachable!("{RANK}")
    }};
}

/// `$mapper.$map(param)` with `$param` at its true rank.
macro_rules! map_ranked {
    ($mapper:ident.$map:ident($param:ident: $kind:ty), $($rank:literal)+) => {{
        $(let $param = match $param.downcast::<Param<Tensor<$rank, $kind>>>() {
            Ok(param) => return Box::new($mapper.$map(*param)),
            Err(param) => param,
        };)+
        unreachable!("{RANK}; found {:?}", $param.type_id())
    }};
}

impl<V: ModuleVisitor> AnyVisitor for V {
    fn enter(&mut self, name: &str, container: &str) {
        self.enter_module(name, container);
    }
    fn exit(&mut self, name: &str, container: &str) {
        self.exit_module(name, container);
    }
    fn float(&mut self, param: &dyn Any) {
        visit_ranked!(self.visit_float(param: Float), 1 2 3 4 5 6 7 8)
    }
    fn int(&mut self, param: &dyn Any) {
        visit_ranked!(self.visit_int(param: Int), 1 2 3 4 5 6 7 8)
    }
    fn bool(&mut self, param: &dyn Any) {
        visit_ranked!(self.visit_bool(param: Bool), 1 2 3 4 5 6 7 8)
    }
    fn flag(&mut self, param: &Param<Flag>) {
        self.visit_flag(param);
    }
}

impl<M: ModuleMapper> AnyMapper for M {
    fn enter(&mut self, name: &str, container: &str) {
        self.enter_module(name, container);
    }
    fn exit(&mut self, name: &str, container: &str) {
        self.exit_module(name, container);
    }
    fn float(&mut self, param: Box<dyn Any>) -> Box<dyn Any> {
        map_ranked!(self.map_float(param: Float), 1 2 3 4 5 6 7 8)
    }
    fn int(&mut self, param: Box<dyn Any>) -> Box<dyn Any> {
        map_ranked!(self.map_int(param: Int), 1 2 3 4 5 6 7 8)
    }
    fn bool(&mut self, param: Box<dyn Any>) -> Box<dyn Any> {
        map_ranked!(self.map_bool(param: Bool), 1 2 3 4 5 6 7 8)
    }
    fn flag(&mut self, param: Param<Flag>) -> Param<Flag> {
        self.map_flag(param)
    }
}

impl ModuleVisitor for Through<'_, dyn AnyVisitor + '_> {
    fn enter_module(&mut self, name: &str, container: &str) {
        self.0.enter(name, container);
    }
    fn exit_module(&mut self, name: &str, container: &str) {
        self.0.exit(name, container);
    }
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        self.0.float(param);
    }
    fn visit_int<const D: usize>(&mut self, param: &Param<Tensor<D, Int>>) {
        self.0.int(param);
    }
    fn visit_bool<const D: usize>(&mut self, param: &Param<Tensor<D, Bool>>) {
        self.0.bool(param);
    }
    fn visit_flag(&mut self, param: &Param<Flag>) {
        self.0.flag(param);
    }
}

/// What a mapper gave, at the rank that it was given.
fn returned<P: Any>(param: Box<dyn Any>) -> P {
    *param.downcast().expect("a mapper keeps the type")
}

impl ModuleMapper for Through<'_, dyn AnyMapper + '_> {
    fn enter_module(&mut self, name: &str, container: &str) {
        self.0.enter(name, container);
    }
    fn exit_module(&mut self, name: &str, container: &str) {
        self.0.exit(name, container);
    }
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        returned(self.0.float(Box::new(param)))
    }
    fn map_int<const D: usize>(&mut self, param: Param<Tensor<D, Int>>) -> Param<Tensor<D, Int>> {
        returned(self.0.int(Box::new(param)))
    }
    fn map_bool<const D: usize>(
        &mut self,
        param: Param<Tensor<D, Bool>>,
    ) -> Param<Tensor<D, Bool>> {
        returned(self.0.bool(Box::new(param)))
    }
    fn map_flag(&mut self, param: Param<Flag>) -> Param<Flag> {
        self.0.flag(param)
    }
}
