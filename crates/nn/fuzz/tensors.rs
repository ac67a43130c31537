//! Random numbers and random layouts of tensors.

use burn::tensor::{DType, Device, Tensor, TensorData};

use crate::dice::Dice;

/// The numbers that are drawn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Spread {
    /// Around 1.
    Moderate,
    /// Small whole numbers, whose products and sums are exact in `f32`.
    Exact,
    /// From the whole of `f32`.
    Wild,
}

/// Numbers at the edges of `f32`.
const EDGES: [f32; 16] = [
    0.0,
    -0.0,
    1e-3,
    1e9,
    -1e9,
    1e20,
    -1e20,
    1e30,
    -1e30,
    f32::MAX,
    f32::MIN,
    f32::MIN_POSITIVE,
    1e-30,
    -1e-45,
    88.8,
    -104.0,
];

impl Spread {
    pub fn number(self, dice: &mut Dice) -> f32 {
        match self {
            Self::Moderate => dice.number(2.0),
            Self::Exact => dice.below(7) as f32 - 3.0,
            Self::Wild => match dice.below(4) {
                0 => dice.pick(&EDGES),
                1 => {
                    let any = f32::from_bits(dice.next() as u32);
                    if any.is_finite() { any } else { 1.0 }
                }
                _ => dice.number(3.0),
            },
        }
    }

    /// A number that may be added to scores; used for whole rows of one number, and for single huge
    /// keys.
    pub fn bias(self, dice: &mut Dice) -> f32 {
        match self {
            Self::Moderate => dice.number(3.0),
            _ => dice.pick(&EDGES),
        }
    }
}

/// One step from a tensor in memory to a view of it.
#[derive(Debug, Clone, Copy)]
enum Step {
    Swap(usize, usize),
    /// Leaves out numbers at the beginning and at the end.
    Slice(usize, usize),
    /// Repeats one entry along an axis.
    Expand,
    Flip(usize),
}

/// A tensor of a call: the numbers in memory, and the steps to the view of them.
#[derive(Debug, Clone)]
pub struct Input<const D: usize> {
    data: Vec<f32>,
    /// The shape in memory.
    base: [usize; D],
    /// The shapes after each step.
    steps: Vec<(Step, [usize; D])>,
    pub shape: [usize; D],
}

impl<const D: usize> Input<D> {
    pub fn new(dice: &mut Dice, shape: [usize; D], mut make: impl FnMut(&mut Dice) -> f32) -> Self {
        let mut steps = vec![];
        let mut base = shape;
        // Goes from the shape of the view back to the one in memory. In Burn, an empty view must
        // not begin beyond its memory.
        let plain = shape.contains(&0) || dice.once_in(2);
        let most = if plain { 0 } else { 3 };
        for _ in 0..dice.below(most + 1) {
            let axis = dice.below(D);
            let (step, before) = match dice.below(4) {
                0 => {
                    let other = dice.below(D);
                    let mut swapped = base;
                    swapped.swap(axis, other);
                    (Step::Swap(axis, other), swapped)
                }
                1 if base[axis] < 1_000 => {
                    let (first, behind) = (dice.below(3), dice.below(3));
                    let mut longer = base;
                    longer[axis] += first + behind;
                    (Step::Slice(axis, first), longer)
                }
                2 if base[axis] > 0 => {
                    let mut one = base;
                    one[axis] = 1;
                    (Step::Expand, one)
                }
                3 => (Step::Flip(axis), base),
                _ => continue,
            };
            steps.push((step, base));
            base = before;
        }
        steps.reverse();
        let count = match base.contains(&0) {
            true => 0,
            false => base.iter().product(),
        };
        Self {
            data: (0..count).map(|_| make(dice)).collect(),
            base,
            steps,
            shape,
        }
    }

    /// The tensor of a call; a leaf where gradients are recorded.
    pub fn leaf(&self, dtype: DType, device: &Device) -> Tensor<D> {
        let data = TensorData::new(self.data.clone(), self.base);
        let memory = Tensor::<D>::from_data(data, (device, DType::F32)).cast(dtype);
        let view = self
            .steps
            .iter()
            .fold(memory, |x, (step, shape)| match *step {
                Step::Swap(a, b) => x.swap_dims(a, b),
                Step::Slice(axis, first) => x.narrow(axis, first, shape[axis]),
                Step::Expand => x.expand(*shape),
                Step::Flip(axis) => x.flip([axis as isize]),
            });
        let view = view.detach();
        if device.is_autodiff() {
            view.require_grad()
        } else {
            view
        }
    }

    /// The largest magnitude.
    pub fn largest(&self) -> f64 {
        largest(self.data.iter().map(|&x| f64::from(x)))
    }
}

pub fn largest(of: impl IntoIterator<Item = f64>) -> f64 {
    of.into_iter().map(f64::abs).fold(0.0, f64::max)
}

/// The numbers of a tensor.
pub fn numbers<const D: usize>(x: &Tensor<D>) -> Vec<f64> {
    x.clone().into_data().iter::<f64>().collect()
}

/// A length: mostly short, sometimes 0.
pub fn length(dice: &mut Dice) -> usize {
    match dice.below(64) {
        0..4 => 0,
        4..6 => 16 + dice.below(50),
        6..20 => 1,
        _ => 1 + dice.below(9),
    }
}
