//! What recurrent operations have in common: operands that are declared once, checked once and handed on by name.
//!
//! An [`Operation`] says what its operands are with two structs that are generic over what they hold: shapes, slices to read,
//! slices to write, a framework's tensors. One declaration (`fields!`) gives the struct, the operands' names and their
//! shapes, so nothing else lists them: lengths are checked here for every operation, gradients are the same struct with
//! slices to write, and a bridge to an autodiff needs one implementation for all.
//!
//! ```
//! use regard_kernels::{Fields, Operation, Unit, sequence::{Layer, LayerFields, LayerWritten}};
//!
//! let layer = Layer { steps: 2, batch: 1, hidden: 3, ..Layer::new(Unit::Lstm) };
//! let (inputs, written) = layer.shapes()?;
//! assert_eq!(inputs.recurrent.sizes, [3, 12]);
//! assert_eq!(inputs.recurrent.words, "[hidden, gates]");
//! assert_eq!(written.states.len()?, 2 * 1 * 6);
//! assert_eq!(LayerFields::<()>::NAMES, ["x_projection", "recurrent", "initial"]);
//! # Ok::<(), regard_kernels::KernelError>(())
//! ```

use std::fmt::Debug;

use crate::error::{KernelError, check_length};
use crate::simd::Level;

/// Something for each of an operation's operands, in the order in which they are declared.
pub trait Fields<T>: Sized {
    /// The operands' names.
    const NAMES: &'static [&'static str];
    /// Their gradients' names.
    const GRADIENTS: &'static [&'static str];

    /// `each(0)` for the first operand, `each(1)` for the next, and so on.
    fn from_fn(each: impl FnMut(usize) -> T) -> Self;

    /// The values, in the order of declaration.
    fn into_vec(self) -> Vec<T>;

    /// References to the values, in the order of declaration.
    fn each(&self) -> Vec<&T>;

    /// As many of `items` as there are operands, in order.
    ///
    /// # Panics
    /// If `items` ends before.
    fn collect(items: impl IntoIterator<Item = T>) -> Self {
        let mut items = items.into_iter();
        Self::from_fn(|_| items.next().expect("an item for each operand"))
    }
}

/// The shape of an operand.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shape {
    /// What its sizes are, such as `[steps, batch, 4 hidden]`.
    pub words: &'static str,
    /// The sizes, such as `[20, 64, 1024]`.
    pub sizes: Vec<usize>,
}

impl Shape {
    /// Numbers of an operand of this shape.
    ///
    /// # Errors
    /// [`KernelError::TooLarge`] if that is more than can be addressed.
    pub fn len(&self) -> Result<usize, KernelError> {
        crate::error::product("shape", self.words, &self.sizes)
    }

    /// Whether an operand of this shape holds nothing.
    pub fn is_empty(&self) -> bool {
        self.sizes.contains(&0)
    }
}

/// A differentiable operation on contiguous slices. Sizes, options and masks are its own fields.
pub trait Operation: Debug + Send + Sync + 'static {
    /// The inputs, each of which has a gradient.
    type Inputs<T>: Fields<T>;
    /// What the forward pass writes. The results come first ([`Self::RESULTS`] of them), and the first of these is
    /// differentiable; the rest is only for the backward pass.
    type Written<T>: Fields<T>;
    /// How many fields of [`Self::Written`] are results.
    const RESULTS: usize;

    /// The shapes of all operands.
    ///
    /// # Errors
    /// [`KernelError`] naming an option or a mask that does not fit the sizes.
    #[allow(clippy::type_complexity)] // two words, spelt out
    fn shapes(&self) -> Result<(Self::Inputs<Shape>, Self::Written<Shape>), KernelError>;

    /// [`Self::forward`], after all lengths have been checked.
    fn forward_checked(
        &self,
        checked: Checked,
        inputs: Self::Inputs<&[f32]>,
        written: Self::Written<&mut [f32]>,
    );

    /// [`Self::backward`], after all lengths have been checked.
    fn backward_checked(
        &self,
        checked: Checked,
        inputs: Self::Inputs<&[f32]>,
        written: Self::Written<&[f32]>,
        d_result: &[f32],
        gradients: Self::Inputs<&mut [f32]>,
    );

    /// Overwrites the slices in `written`. If there will be no backward pass, those that only it reads may be left empty, all
    /// of them; this changes no number.
    ///
    /// # Errors
    /// [`KernelError`] naming the slice whose length does not fit the sizes.
    fn forward(
        &self,
        inputs: Self::Inputs<&[f32]>,
        written: Self::Written<&mut [f32]>,
    ) -> Result<(), KernelError> {
        forward_at(self, Level::current(), inputs, written)
    }

    /// Overwrites `gradients` with the gradients of a loss, given `d_result`, its gradient with respect to the first result,
    /// and what [`Self::forward`] wrote.
    ///
    /// # Errors
    /// [`KernelError`] naming the slice whose length does not fit the sizes.
    fn backward(
        &self,
        inputs: Self::Inputs<&[f32]>,
        written: Self::Written<&[f32]>,
        d_result: &[f32],
        gradients: Self::Inputs<&mut [f32]>,
    ) -> Result<(), KernelError> {
        backward_at(self, Level::current(), inputs, written, d_result, gradients)
    }
}

/// Proof that this module has checked all lengths. It holds the instruction set to use, which this machine supports.
#[derive(Debug, Clone, Copy)]
pub struct Checked(Level);

impl Checked {
    /// The instruction set.
    pub(crate) fn level(self) -> Level {
        self.0
    }
}

/// [`Operation::forward`] on an instruction set that this machine has.
pub(crate) fn forward_at<O: Operation + ?Sized>(
    operation: &O,
    level: Level,
    inputs: O::Inputs<&[f32]>,
    written: O::Written<&mut [f32]>,
) -> Result<(), KernelError> {
    let (of_inputs, of_written) = operation.shapes()?;
    check(O::Inputs::<()>::NAMES, &of_inputs, &inputs)?;
    let names = O::Written::<()>::NAMES;
    let kept = &written.each()[O::RESULTS..];
    let saving = kept.iter().any(|slice| !slice.is_empty());
    let names = if saving { names } else { &names[..O::RESULTS] };
    check(names, &of_written, &written)?;
    operation.forward_checked(Checked(level), inputs, written);
    Ok(())
}

/// [`Operation::backward`] on an instruction set that this machine has.
pub(crate) fn backward_at<O: Operation + ?Sized>(
    operation: &O,
    level: Level,
    inputs: O::Inputs<&[f32]>,
    written: O::Written<&[f32]>,
    d_result: &[f32],
    gradients: O::Inputs<&mut [f32]>,
) -> Result<(), KernelError> {
    let (of_inputs, of_written) = operation.shapes()?;
    check(O::Inputs::<()>::NAMES, &of_inputs, &inputs)?;
    check(O::Inputs::<()>::GRADIENTS, &of_inputs, &gradients)?;
    check(O::Written::<()>::NAMES, &of_written, &written)?;
    let of_result = of_written.each()[0];
    check_length(
        "d_result",
        of_result.words,
        &of_result.sizes,
        d_result.len(),
    )?;
    operation.backward_checked(Checked(level), inputs, written, d_result, gradients);
    Ok(())
}

/// Checks the lengths of as many operands as there are `names`.
fn check<T: AsRef<[f32]>>(
    names: &[&'static str],
    shapes: &impl Fields<Shape>,
    operands: &impl Fields<T>,
) -> Result<(), KernelError> {
    let operands = shapes.each().into_iter().zip(operands.each());
    for (&name, (shape, operand)) in names.iter().zip(operands) {
        check_length(name, shape.words, &shape.sizes, operand.as_ref().len())?;
    }
    Ok(())
}

/// Declares operands: their names, what they are, and their shapes in the sizes of a struct. A size is one of its fields,
/// perhaps a multiple of it, or the sum of two.
///
/// ```text
/// fields! {
///     /// What a layer reads.
///     LayerFields in Sizes {
///         /// Recurrent weights.
///         recurrent: [hidden, 4 hidden],
///     }
/// }
/// ```
/// gives `struct LayerFields<T> { recurrent: T }`, `impl Fields<T> for LayerFields<T>` and
/// `LayerFields::<Shape>::of(&Sizes)`.
macro_rules! fields {
    ($(#[$doc:meta])* $name:ident in $sizes:ty {
        $(
            $(#[$about:meta])*
            $field:ident: [$($($times:literal)? $size:ident $(+ $more:ident)?),*],
        )*
    }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
        pub struct $name<T> {
            $(
                $(#[$about])*
                ///
                #[doc = concat!("`[", stringify!($($($times)? $size $(+ $more)?),*), "]`")]
                pub $field: T,
            )*
        }

        impl<T> $crate::operation::Fields<T> for $name<T> {
            const NAMES: &'static [&'static str] = &[$(stringify!($field)),*];
            const GRADIENTS: &'static [&'static str] =
                &[$(concat!("gradients.", stringify!($field))),*];

            fn from_fn(mut each: impl FnMut(usize) -> T) -> Self {
                let mut at = 0..;
                let mut next = || each(at.next().unwrap_or(usize::MAX));
                Self { $($field: next()),* }
            }

            fn into_vec(self) -> Vec<T> {
                vec![$(self.$field),*]
            }

            fn each(&self) -> Vec<&T> {
                vec![$(&self.$field),*]
            }
        }

        impl<T: AsRef<[f32]>> $name<T> {
            /// The values as slices to read.
            pub fn slices(&self) -> $name<&[f32]> {
                $name { $($field: self.$field.as_ref()),* }
            }
        }

        impl<T: AsMut<[f32]>> $name<T> {
            /// The values as slices to write.
            pub fn slices_mut(&mut self) -> $name<&mut [f32]> {
                $name { $($field: self.$field.as_mut()),* }
            }
        }

        impl $name<$crate::operation::Shape> {
            /// Zeros of these shapes.
            ///
            /// # Errors
            /// [`KernelError::TooLarge`](crate::KernelError::TooLarge) if one holds more than can be addressed.
            pub fn zeros(&self) -> Result<$name<Vec<f32>>, $crate::KernelError> {
                Ok($name { $($field: vec![0.0; self.$field.len()?]),* })
            }

            /// The operands' shapes.
            fn of(sizes: &$sizes) -> Self {
                Self {
                    $($field: $crate::operation::Shape {
                        words: concat!("[", stringify!($($($times)? $size $(+ $more)?),*), "]"),
                        sizes: vec![$(
                            sizes.$size$(.saturating_mul($times))?$(.saturating_add(sizes.$more))?
                        ),*],
                    },)*
                }
            }
        }
    };
}
pub(crate) use fields;
