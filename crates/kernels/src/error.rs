//! The error type of this crate: it names the argument that was wrong in a call, and what was wrong
//! with it.

/// Why a call was refused. Nothing has been read or written when one of these comes back.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum KernelError {
    /// A slice has another length than the stated sizes ask for.
    #[error(
        "`{argument}` holds {found} numbers, expected {expected} ({shape}): pass a contiguous \
         slice of exactly that shape"
    )]
    Length {
        /// Name of the argument.
        argument: &'static str,
        /// The shape that the length follows from, in words, such as `[batch, keys, dim]`.
        shape: &'static str,
        /// Numbers expected.
        expected: usize,
        /// Numbers found.
        found: usize,
    },
    /// The product of the stated sizes does not fit a `usize`.
    #[error(
        "`{argument}` of shape {shape} would hold more numbers than can be addressed: check the sizes"
    )]
    TooLarge {
        /// Name of the argument.
        argument: &'static str,
        /// The shape in words.
        shape: &'static str,
    },
    /// One entry of an index-like argument is out of range.
    #[error("`{argument}` holds {found} at position {position}, expected {expected}")]
    Entry {
        /// Name of the argument.
        argument: &'static str,
        /// The index of the entry.
        position: usize,
        /// What would have been accepted.
        expected: String,
        /// The entry found.
        found: String,
    },
    /// A view reaches past the end of its slice.
    #[error(
        "`{argument}` of shape {shape:?} with strides {strides:?} needs {expected} numbers, found {found}: \
         pass a longer slice or correct the shape or the strides"
    )]
    Extent {
        /// Name of the argument.
        argument: &'static str,
        /// `[batch, heads, length, dim]`
        shape: [usize; 4],
        /// Strides of batch, heads and length.
        strides: [usize; 3],
        /// Numbers needed.
        expected: usize,
        /// Numbers found.
        found: usize,
    },
    /// Rows of an output share numbers.
    #[error(
        "`{argument}` of shape {shape:?} has strides {strides:?}, by which its rows overlap: an output \
         needs a place of its own for every number"
    )]
    Overlap {
        /// Name of the argument.
        argument: &'static str,
        /// `[batch, heads, length, dim]`
        shape: [usize; 4],
        /// Strides of batch, heads and length.
        strides: [usize; 3],
    },
    /// A size differs from the same size of another argument.
    #[error("`{argument}` has {axis} {found}, expected {expected}: {reason}")]
    Size {
        /// Name of the argument.
        argument: &'static str,
        /// The name of the size.
        axis: &'static str,
        /// The size expected.
        expected: usize,
        /// The size found.
        found: usize,
        /// Where the expectation comes from.
        reason: &'static str,
    },
    /// A scalar option is outside its range.
    #[error("`{argument}` is {found}, expected {expected}")]
    Value {
        /// Name of the argument.
        argument: &'static str,
        /// What would have been accepted.
        expected: &'static str,
        /// The value found.
        found: f64,
    },
}

/// The product of `sizes`, or an error naming `argument` if it overflows.
pub(crate) fn product(
    argument: &'static str,
    shape: &'static str,
    sizes: &[usize],
) -> Result<usize, KernelError> {
    sizes
        .iter()
        .try_fold(1usize, |total, &size| total.checked_mul(size))
        .filter(|&total| total <= isize::MAX as usize / size_of::<f64>())
        .ok_or(KernelError::TooLarge { argument, shape })
}

/// Checks that `found` is the product of `sizes`.
pub(crate) fn check_length(
    argument: &'static str,
    shape: &'static str,
    sizes: &[usize],
    found: usize,
) -> Result<(), KernelError> {
    let expected = product(argument, shape, sizes)?;
    if expected == found {
        Ok(())
    } else {
        Err(KernelError::Length {
            argument,
            shape,
            expected,
            found,
        })
    }
}

/// Checks that one size of `argument` is what `reason` asks for.
pub(crate) fn check_size(
    argument: &'static str,
    axis: &'static str,
    found: usize,
    expected: usize,
    reason: &'static str,
) -> Result<(), KernelError> {
    if found == expected {
        Ok(())
    } else {
        Err(KernelError::Size {
            argument,
            axis,
            expected,
            found,
            reason,
        })
    }
}

/// Checks that a scalar option satisfies `accepted`.
pub(crate) fn check_value(
    argument: &'static str,
    expected: &'static str,
    found: f64,
    accepted: bool,
) -> Result<(), KernelError> {
    if accepted {
        Ok(())
    } else {
        Err(KernelError::Value {
            argument,
            expected,
            found,
        })
    }
}
