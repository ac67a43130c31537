//! Errors in the sizes of a vision module, found before anything is computed.

use burn::{module::Module, tensor::DType};

use crate::precision::unlike;

/// Why a vision module cannot be built, or cannot take its input.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum VisionError {
    /// A size of a configuration is too small.
    #[error("`{field}` is {found}; it must be at least {least}")]
    TooSmall {
        /// The size.
        field: &'static str,
        /// Its value.
        found: usize,
        /// The smallest value that works.
        least: usize,
    },
    /// A size that must be divisible by another is not.
    #[error(
        "`{field}` is {found} and `{divisor_field}` is {divisor}, which does not divide it; \
         the nearest `{divisor_field}` that does is {nearest}"
    )]
    NotDivisible {
        /// The size to be divided.
        field: &'static str,
        /// Its value.
        found: usize,
        /// The size that should divide it.
        divisor_field: &'static str,
        /// Its value.
        divisor: usize,
        /// The divisor of `found` that is nearest to `divisor`.
        nearest: usize,
    },
    /// The size of a convolution's window is even, so the window has no centre.
    #[error("`{field}` is {found}; it must be odd, so that the map keeps its size: {} or {}", found - 1, found + 1)]
    Even {
        /// The size.
        field: &'static str,
        /// Its value.
        found: usize,
    },
    /// A line of the map is longer than the module has learned distances for.
    #[error(
        "`{field}` is {found}; it must be at most `span` = {span}: build the module with a larger `span`"
    )]
    TooLong {
        /// The size of the map.
        field: &'static str,
        /// Its value.
        found: usize,
        /// The longest line that works.
        span: usize,
    },
    /// A tensor has another precision than what it is combined with.
    #[error("`{field}` is {found}; it must be {expected}, as {owner} are: cast one of them")]
    Precision {
        /// The tensor.
        field: &'static str,
        /// Its precision, e.g. `f64`.
        found: &'static str,
        /// That of `owner`.
        expected: &'static str,
        /// What it is combined with: the weights of the module, say.
        owner: &'static str,
    },
    /// A tensor has another shape than the module takes.
    #[error("`{field}` is {found:?}; expected {expected}, no size 0")]
    Shape {
        /// The tensor.
        field: &'static str,
        /// Its shape.
        found: Vec<usize>,
        /// The shape that the module takes, e.g. `[batch, channels = 8, height, width]`.
        expected: String,
    },
}

/// One size of the shape that a module takes.
#[derive(Debug, Clone, Copy)]
pub(super) enum Extent {
    /// Any size but 0.
    Any(&'static str),
    /// One size only.
    Exactly(&'static str, usize),
}

/// Checks that `found` is the shape of a tensor with `expected` sizes.
pub(super) fn check_shape(
    field: &'static str,
    found: &[usize],
    expected: &[Extent],
) -> Result<(), VisionError> {
    let fits = |(&found, extent): (&usize, &Extent)| match *extent {
        Extent::Any(_) => found > 0,
        Extent::Exactly(_, size) => found == size,
    };
    if found.len() == expected.len() && found.iter().zip(expected).all(fits) {
        return Ok(());
    }
    let expected: Vec<String> = expected
        .iter()
        .map(|extent| match extent {
            Extent::Any(name) => (*name).to_owned(),
            Extent::Exactly(name, size) => format!("{name} = {size}"),
        })
        .collect();
    Err(VisionError::Shape {
        field,
        found: found.to_vec(),
        expected: format!("[{}]", expected.join(", ")),
    })
}

/// Checks that `found` is the shape of a feature map `[batch, channels, height, width]`.
pub(super) fn check_map(
    field: &'static str,
    found: [usize; 4],
    channels: usize,
) -> Result<(), VisionError> {
    let expected = [
        Extent::Any("batch"),
        Extent::Exactly("channels", channels),
        Extent::Any("height"),
        Extent::Any("width"),
    ];
    check_shape(field, &found, &expected)
}

/// Checks that `found` is the precision of the weights of `module`.
pub(super) fn check_precision<M: Module>(
    field: &'static str,
    found: DType,
    module: &M,
) -> Result<(), VisionError> {
    match unlike(found, module) {
        None => Ok(()),
        Some(expected) => Err(VisionError::Precision {
            field,
            found: found.name(),
            expected: expected.name(),
            owner: "the weights",
        }),
    }
}

/// Checks that a size is not 0.
pub(super) fn check_positive(field: &'static str, found: usize) -> Result<(), VisionError> {
    if found == 0 {
        return Err(VisionError::TooSmall {
            field,
            found,
            least: 1,
        });
    }
    Ok(())
}

/// `found / divisor`, both at least 1 and without a remainder.
pub(super) fn divide(
    (field, found): (&'static str, usize),
    (divisor_field, divisor): (&'static str, usize),
) -> Result<usize, VisionError> {
    check_positive(field, found)?;
    check_positive(divisor_field, divisor)?;
    if found.is_multiple_of(divisor) {
        return Ok(found / divisor);
    }
    // Searches outwards from the divisor; 1 always divides.
    let nearest = (1..divisor)
        .flat_map(|away| [divisor - away, divisor.saturating_add(away)])
        .find(|&candidate| found.is_multiple_of(candidate))
        .unwrap_or(1);
    Err(VisionError::NotDivisible {
        field,
        found,
        divisor_field,
        divisor,
        nearest,
    })
}

/// Checks that the window of a convolution has a centre.
pub(super) fn check_odd(field: &'static str, found: usize) -> Result<(), VisionError> {
    check_positive(field, found)?;
    if found.is_multiple_of(2) {
        return Err(VisionError::Even { field, found });
    }
    Ok(())
}
