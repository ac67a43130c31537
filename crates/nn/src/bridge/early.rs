//! Gradients of weights that are complete before the backward pass is over.
//!
//! Burn hands out all gradients at the end of the backward pass. But a weight's gradient is complete as soon as every operation that read
//! the weight has been gone back through, and then it can be sent to other processes while the rest is computed. [`EarlyGradients`] counts
//! how often fused operations read each weight in the forward pass, and hands its gradient out when as many have added their parts to it.
//!
//! Operations of Burn's own are not counted. A weight that only they read is never handed out; if both kinds read it, it may be handed out
//! before its gradient is complete, which [`EarlyGradients::has_sent`] tells afterwards.

use std::{cell::RefCell, collections::HashMap, marker::PhantomData, rc::Rc};

use burn::{
    backend::{
        Autodiff, DispatchTensorKind, Flex,
        autodiff::{NodeId, grads::Gradients},
        tensor::FloatTensor,
    },
    module::{Module, ModuleVisitor, Param},
    tensor::{Tensor, TensorData},
};

use super::fused::FlexTensor;

thread_local! {
    static WATCHED: RefCell<HashMap<NodeId, Watched>> = RefCell::default();
}

/// What is done with the gradient of a weight, after the weight's place.
type Complete = Rc<dyn Fn(usize, TensorData)>;

/// Sees the fused operations of this thread that read the weights of a module, until it is dropped. A thread has one at a time: a new one
/// ends the former.
///
/// ```
/// use std::sync::mpsc;
///
/// use burn::{nn::LinearConfig, tensor::{Device, Tensor}};
/// use regard_nn::bridge::{EarlyGradients, apply};
///
/// let device = Device::flex().autodiff();
/// let linear = LinearConfig::new(2, 3).init(&device);
/// let (sender, receiver) = mpsc::channel();
/// let early = EarlyGradients::watch(&linear, |_| true, move |index, gradient| {
///     sender.send((index, gradient)).unwrap();
/// });
/// let mut gradients = apply(&linear, Tensor::<2>::ones([4, 2], &device)).sum().backward();
/// let (index, sent) = receiver.recv()?;
/// assert_eq!((index, sent.num_elements()), (0, 2 * 3));
/// assert!(early.has_sent(0, &linear.weight.val().grad_remove(&mut gradients).unwrap()));
/// # Ok::<(), mpsc::RecvError>(())
/// ```
#[derive(Debug)]
pub struct EarlyGradients(
    /// It belongs to the thread that made it.
    PhantomData<*const ()>,
);

/// A weight of the module.
struct Watched {
    index: usize,
    weight: FloatTensor<Autodiff<Flex>>,
    /// Operations that have read it and have not been gone back through.
    readers: usize,
    sent: Option<FlexTensor>,
    complete: Complete,
}

impl EarlyGradients {
    /// Calls `complete` with the gradient of each weight of `module` as soon as it is complete, and with the weight's place among the
    /// module's floating-point tensors. Only those are watched that `wanted` accepts by that place.
    pub fn watch<M: Module>(
        module: &M,
        wanted: impl Fn(usize) -> bool,
        complete: impl Fn(usize, TensorData) + 'static,
    ) -> Self {
        WATCHED.with_borrow_mut(HashMap::clear);
        module.visit(&mut Visitor {
            wanted,
            index: 0,
            complete: Rc::new(complete),
        });
        Self(PhantomData)
    }

    /// Whether `gradient`, that of weight `index` at the end of the backward pass, is what was sent: nothing was added to it since.
    pub fn has_sent<const D: usize>(&self, index: usize, gradient: &Tensor<D>) -> bool {
        let DispatchTensorKind::Flex(tensor) = gradient.clone().into_dispatch().kind else {
            return false;
        };
        let gradient = tensor.float();
        WATCHED.with_borrow(|all| {
            let sent = all.values().find(|watched| watched.index == index);
            let sent = sent.and_then(|watched| watched.sent.as_ref());
            sent.is_some_and(|sent| std::ptr::eq(sent.bytes(), gradient.bytes()))
        })
    }
}

impl Drop for EarlyGradients {
    fn drop(&mut self) {
        WATCHED.with_borrow_mut(HashMap::clear);
    }
}

struct Visitor<F> {
    wanted: F,
    index: usize,
    complete: Complete,
}

impl<F: Fn(usize) -> bool> ModuleVisitor for Visitor<F> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let index = self.index;
        self.index += 1;
        if !(self.wanted)(index) {
            return;
        }
        let DispatchTensorKind::Autodiff(kind) = param.val().into_dispatch().kind else {
            return;
        };
        if let DispatchTensorKind::Flex(tensor) = *kind {
            let weight = tensor.autodiff();
            let watched = Watched {
                index,
                weight: weight.clone(),
                readers: 0,
                sent: None,
                complete: Rc::clone(&self.complete),
            };
            WATCHED.with_borrow_mut(|all| all.insert(weight.id(), watched));
        }
    }
}

/// A fused operation reads tensors, and will be gone back through.
pub(super) fn read(nodes: &[NodeId]) {
    WATCHED.with_borrow_mut(|all| {
        for node in nodes {
            if let Some(watched) = all.get_mut(node) {
                watched.readers += 1;
            }
        }
    });
}

/// A fused operation that has read a tensor was gone back through.
pub(super) fn gone_back(node: NodeId, gradients: &Gradients) {
    WATCHED.with_borrow_mut(|all| {
        let Some(watched) = all.get_mut(&node) else {
            return;
        };
        watched.readers = watched.readers.saturating_sub(1);
        if watched.readers == 0
            && let Some(gradient) = gradients.get::<Flex>(&watched.weight)
        {
            watched.sent = Some(gradient.clone());
            (watched.complete)(watched.index, gradient.into_data());
        }
    });
}
