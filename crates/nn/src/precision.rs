//! The operands of an operation must have one precision: Burn panics where `f32` is combined with `f64`.

use burn::{
    module::{Module, ModuleVisitor, Param},
    tensor::{DType, Tensor},
};

use crate::attention::AttentionError;

/// The precision for steps that divide by numbers far below 1: in `f16`, numbers below 6e-8 are 0.
pub(crate) fn wide(dtype: DType) -> DType {
    match dtype {
        DType::F16 | DType::BF16 => DType::F32,
        other => other,
    }
}

/// The precision to which numbers stored as `found` are converted for a computation in `dtype`: half precision beside `f32`
/// is storage, which is widened as it is read.
pub(crate) fn as_read(found: DType, dtype: DType) -> DType {
    match (found, dtype) {
        (DType::F16 | DType::BF16, DType::F32) => dtype,
        _ => found,
    }
}

/// Checks that `field` has the precision `expected`, that of `owner`.
pub(crate) fn check_precision(
    field: &'static str,
    found: DType,
    expected: DType,
    owner: &str,
) -> Result<(), AttentionError> {
    if found == expected {
        return Ok(());
    }
    Err(AttentionError::value(
        field,
        found.name(),
        format!("{}, as {owner}", expected.name()),
        "cast one of them",
    ))
}

/// Checks that `field` has the precision of the weights of `module`, if it has some.
pub(crate) fn check_weights<M: Module>(
    field: &'static str,
    found: DType,
    module: &M,
) -> Result<(), AttentionError> {
    match unlike(found, module) {
        None => Ok(()),
        Some(expected) => check_precision(field, found, expected, "the weights"),
    }
}

/// The precision of a weight of `module` that differs from `found`, if there is one.
pub(crate) fn unlike<M: Module>(found: DType, module: &M) -> Option<DType> {
    struct Visitor {
        found: DType,
        unlike: Option<DType>,
    }
    impl ModuleVisitor for Visitor {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            let dtype = param.dtype();
            if dtype != self.found {
                self.unlike = Some(dtype);
            }
        }
    }
    let mut visitor = Visitor {
        found,
        unlike: None,
    };
    module.visit(&mut visitor);
    visitor.unlike
}
