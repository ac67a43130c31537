//! Burn modules behind object-safe traits, so that a type can be chosen at run time, also in another crate: the scores and
//! normalisers of [`Score::Custom`](crate::score::Score::Custom) and
//! [`Normalize::Custom`](crate::normalize::Normalize::Custom), the models of `regard-models`.
//!
//! For a trait, [`any_module!`](crate::any_module) makes an object-safe version and a module that holds any implementation of
//! it. A module that contains it is trained, saved and moved like any other: visitors and mappers see the same parameters
//! under the same names.

use std::any::Any;

use burn::{
    module::{Flag, Module, ModuleMapper, ModuleVisitor, Param},
    tensor::{Bool, Device, Float, Int, Tensor},
};

/// Declares `$face`, the object-safe trait of every module that is a `$role`, and `$any`, the module that holds one of them.
/// `$prefix`, if given, is prepended to the names of its weights. The first block declares the methods of `$face` beyond those
/// of a module, the second implements them for every `$role`.
#[macro_export]
macro_rules! any_module {
    ($any:ident, $role:ident, $face:ident, $prefix:expr, { $($asked:tt)* } { $($answered:tt)* }) => {
        #[doc = concat!("Object-safe form of the trait [`", stringify!($role), "`]: the methods that any implementation has.")]
        pub trait $face: ::std::fmt::Debug + Send + Sync {
            #[doc(hidden)]
            fn boxed(&self) -> Box<dyn $face>;
            #[doc(hidden)]
            fn devices(&self, devices: Vec<$crate::burn::tensor::Device>) -> Vec<$crate::burn::tensor::Device>;
            #[doc(hidden)]
            fn inner(&self) -> Box<dyn $face>;
            #[doc(hidden)]
            fn change(self: Box<Self>, change: $crate::erased::Change<'_>) -> Box<dyn $face>;
            #[doc(hidden)]
            fn visited(&self, visitor: &mut dyn $crate::erased::AnyVisitor);
            $($asked)*
        }

        impl<M: $role + $crate::burn::module::Module + Sync + 'static> $face for M {
            fn boxed(&self) -> Box<dyn $face> {
                Box::new(self.clone())
            }
            fn devices(&self, devices: Vec<$crate::burn::tensor::Device>) -> Vec<$crate::burn::tensor::Device> {
                self.collect_devices(devices)
            }
            fn inner(&self) -> Box<dyn $face> {
                Box::new(self.valid())
            }
            fn change(self: Box<Self>, change: $crate::erased::Change<'_>) -> Box<dyn $face> {
                Box::new(change.of(*self, $prefix))
            }
            fn visited(&self, visitor: &mut dyn $crate::erased::AnyVisitor) {
                $crate::erased::visit(self, $prefix, visitor);
            }
            $($answered)*
        }

        impl $any {
            /// A module whose type is erased.
            #[allow(clippy::implied_bounds_in_impls)] // some roles ask for a module themselves
            pub fn new(module: impl $role + $crate::burn::module::Module + 'static) -> Self {
                Self(Box::new(module))
            }
        }

        impl ::std::ops::Deref for $any {
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

        impl ::std::fmt::Debug for $any {
            fn fmt(&self, f: &mut ::std::fmt::Formatter<'_>) -> ::std::fmt::Result {
                ::std::fmt::Debug::fmt(&self.0, f)
            }
        }

        impl $crate::burn::module::Module for $any {
            fn collect_devices(&self, devices: Vec<$crate::burn::tensor::Device>) -> Vec<$crate::burn::tensor::Device> {
                self.0.devices(devices)
            }
            fn fork(self, device: &$crate::burn::tensor::Device) -> Self {
                Self(self.0.change($crate::erased::Change::Fork(device)))
            }
            fn to_device(self, device: &$crate::burn::tensor::Device) -> Self {
                Self(self.0.change($crate::erased::Change::Move(device)))
            }
            fn train(self) -> Self {
                Self(self.0.change($crate::erased::Change::Train))
            }
            fn valid(&self) -> Self {
                Self(self.0.inner())
            }
            fn materialize(self) -> Self {
                Self(self.0.change($crate::erased::Change::Materialize))
            }
            fn visit<V: $crate::burn::module::ModuleVisitor>(&self, visitor: &mut V) {
                self.0.visited(visitor);
            }
            fn map<M: $crate::burn::module::ModuleMapper>(self, mapper: &mut M) -> Self {
                Self(self.0.change($crate::erased::Change::Map(mapper)))
            }
        }

        impl $crate::burn::module::ModuleDisplay for $any {}

        impl $crate::burn::module::ModuleDisplayDefault for $any {
            fn content(&self, content: $crate::burn::module::Content) -> Option<$crate::burn::module::Content> {
                Some(content.add_formatted(&format!("{:?}", self.0)))
            }
        }
    };
}

/// The type name that visitors and mappers are told for a module with a prefix.
const MODEL: &str = "Struct:Model";

/// A change to be made to a module.
pub enum Change<'a> {
    /// [`Module::fork`]
    Fork(&'a Device),
    /// [`Module::to_device`]
    Move(&'a Device),
    /// [`Module::train`]
    Train,
    /// [`Module::materialize`]
    Materialize,
    /// [`Module::map`]
    Map(&'a mut dyn AnyMapper),
}

impl Change<'_> {
    /// The changed module. A mapper sees its weights under `prefix`.
    pub fn of<M: Module>(self, module: M, prefix: Option<&str>) -> M {
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

/// [`Module::visit`] by a visitor whose type is erased; it sees the weights under `prefix`.
pub fn visit<M: Module>(module: &M, prefix: Option<&str>, visitor: &mut dyn AnyVisitor) {
    prefix.inspect(|name| visitor.enter(name, MODEL));
    module.visit(&mut Through(&mut *visitor));
    prefix.inspect(|name| visitor.exit(name, MODEL));
}

/// A visitor or mapper whose type is erased; parameters are passed as [`Any`], since their ranks are types.
struct Through<'a, T: ?Sized>(&'a mut T);

/// Any [`ModuleVisitor`].
#[allow(missing_docs, reason = "the methods of that trait")]
pub trait AnyVisitor {
    fn enter(&mut self, name: &str, container: &str);
    fn exit(&mut self, name: &str, container: &str);
    fn float(&mut self, param: &dyn Any);
    fn int(&mut self, param: &dyn Any);
    fn bool(&mut self, param: &dyn Any);
    fn flag(&mut self, param: &Param<Flag>);
}

/// Any [`ModuleMapper`].
#[allow(missing_docs, reason = "the methods of that trait")]
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

/// What a mapper returned, at the rank that it was given.
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
