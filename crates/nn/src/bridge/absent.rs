//! Replaces `fused.rs` where the feature `kernels` is off: no tensor is accepted, so nothing is ever fused, and every
//! operation takes its plain path on whatever backend the tensor lives.
// The results of fused operations, which are never read here.
#![allow(dead_code)]

use burn::{
    backend::DispatchTensor,
    tensor::{DType, Shape, Tensor},
};
use regard_kernels::View;

pub(super) use super::operation::{Forward, Operation, Reads};

/// A tensor that kernels could read: there can be none.
#[derive(Debug, Clone)]
pub(super) enum FlexTensor {}

impl FlexTensor {
    pub(super) fn layout(&self) -> &Layout {
        match *self {}
    }

    pub(super) fn to_contiguous(&self) -> Self {
        match *self {}
    }

    pub(super) fn transpose(&self, _first: usize, _second: usize) -> Self {
        match *self {}
    }

    pub(super) fn reshape(&self, _shape: Shape) -> Self {
        match *self {}
    }

    pub(super) fn dtype(&self) -> DType {
        match *self {}
    }

    pub(super) fn storage<T>(&self) -> &[T] {
        match *self {}
    }

    pub(super) fn storage_mut<T>(&mut self) -> &mut [T] {
        match *self {}
    }

    pub(super) fn try_storage_mut<T>(&mut self) -> Option<&mut [T]> {
        match *self {}
    }
}

/// The layout of a [`FlexTensor`].
#[derive(Debug)]
pub(super) enum Layout {}

impl Layout {
    pub(super) fn shape(&self) -> &Shape {
        match *self {}
    }

    pub(super) fn strides(&self) -> &[isize] {
        match *self {}
    }

    pub(super) fn start_offset(&self) -> usize {
        match *self {}
    }

    pub(super) fn num_elements(&self) -> usize {
        match *self {}
    }
}

/// Whether the fused operations can take `tensor`: never.
pub(super) fn takes<const D: usize>(_tensor: &Tensor<D>) -> bool {
    false
}

pub(super) fn run(
    operation: impl Operation,
    _inputs: Vec<DispatchTensor>,
) -> (DispatchTensor, Option<DispatchTensor>) {
    panic!("{operation:?} needs the feature `kernels` of regard-nn and tensors on the Flex backend")
}

pub(super) fn untracked(_inputs: Vec<DispatchTensor>, _reads: Reads) -> Vec<FlexTensor> {
    panic!("this needs the feature `kernels` of regard-nn and tensors on the Flex backend")
}

pub(super) fn view(tensor: &FlexTensor) -> View<'_> {
    match *tensor {}
}

pub(super) fn view_of<'a, T>(tensor: &FlexTensor, _storage: &'a [T]) -> View<'a, T> {
    match *tensor {}
}

pub(super) fn numbers(tensor: &FlexTensor) -> &[f32] {
    match *tensor {}
}

pub(super) fn tensor(_numbers: Vec<f32>, _shape: impl Into<Shape>) -> FlexTensor {
    unreachable!(
        "only a fused operation makes a tensor, and none runs without the feature `kernels`"
    )
}

pub(super) fn dims<const D: usize>(tensor: &FlexTensor) -> [usize; D] {
    match *tensor {}
}
