//! Gradients against finite differences in f64, for every weight and every input of every module.
//!
//! The derivative at `w` is estimated twice, with steps `h` and `2 h`. The difference of the two is three
//! times the error of the first, up to higher order, and the rounding of the losses adds a little: the
//! gradient may differ by this much, and no more.

use crate::support::{device, values};
use burn::{
    module::{Module, ModuleMapper, ModuleVisitor, Param},
    tensor::{DType, Gradients, Tensor, TensorData},
};
use regard_nn::{
    initialize::Initializer,
    mask::PaddingMask,
    vision::{
        Affinity, AnswerHeadConfig, AxialAttentionConfig, CaptionAttentionConfig, CbamConfig,
        MaskActivation, MaskBranchConfig, NonLocalConfig, PatchEmbeddingConfig,
        QuestionAttentionConfig, Regions, SpatialAttentionConfig, SqueezeExciteConfig,
    },
};
use std::collections::BTreeMap;

const STEP: f64 = 1.0 / 262144.0;

/// The path of the parameter that is being visited.
#[derive(Default)]
struct Path(Vec<String>);

impl Path {
    fn name(&self) -> String {
        self.0.join(".")
    }
}

/// Replaces every parameter by the result of `change` for its name and its values, in f64.
struct Change<F> {
    path: Path,
    change: F,
}

impl<F: FnMut(&str, Vec<f64>) -> Vec<f64>> ModuleMapper for Change<F> {
    fn enter_module(&mut self, name: &str, _: &str) {
        self.path.0.push(name.to_owned());
    }
    fn exit_module(&mut self, _: &str, _: &str) {
        self.path.0.pop();
    }
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let name = self.path.name();
        param.map(|tensor| {
            let (shape, tracked) = (tensor.dims(), tensor.is_require_grad());
            let old = tensor.clone().into_data().iter::<f64>().collect();
            let new = TensorData::new((self.change)(&name, old), shape);
            Tensor::from_data(new, (&tensor.device(), DType::F64)).set_require_grad(tracked)
        })
    }
}

fn change<M: Module>(module: M, change: impl FnMut(&str, Vec<f64>) -> Vec<f64>) -> M {
    let path = Path::default();
    module.map(&mut Change { path, change })
}

/// The gradient of every parameter that has one.
struct Collect<'a> {
    path: Path,
    gradients: &'a Gradients,
    found: BTreeMap<String, Vec<f64>>,
}

impl ModuleVisitor for Collect<'_> {
    fn enter_module(&mut self, name: &str, _: &str) {
        self.path.0.push(name.to_owned());
    }
    fn exit_module(&mut self, _: &str, _: &str) {
        self.path.0.pop();
    }
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let tensor = param.val();
        if !tensor.is_require_grad() {
            return;
        }
        let values = match tensor.grad(self.gradients) {
            Some(gradient) => gradient.into_data().iter::<f64>().collect(),
            None => vec![0.0; tensor.shape().num_elements()],
        };
        self.found.insert(self.path.name(), values);
    }
}

/// Checks the gradient of `output`, weighted with fixed numbers, with respect to every parameter of
/// `module`; inputs are parameters beside it in a tuple. Returns the number of derivatives that were
/// checked.
fn check<M: Module, const D: usize>(
    what: &str,
    module: M,
    output: impl Fn(&M) -> Tensor<D>,
) -> usize {
    let module = change(module, |name, old| {
        let drawn = values(&format!("{what}/{name}"), old.len(), 1.0);
        drawn.into_iter().map(f64::from).collect()
    });
    let loss = |module: &M| {
        let output = output(module);
        assert_eq!(output.dtype(), DType::F64, "{what}");
        let shape = output.dims();
        let weights = TensorData::new(values("loss", shape.iter().product(), 1.0), shape);
        (output * Tensor::from_data(weights.convert::<f64>(), (&device(), DType::F64))).sum()
    };
    let at = |name: &str, i: usize, step: f64| {
        let moved = change(module.clone(), |found, mut values| {
            if found == name {
                values[i] += step;
            }
            values
        });
        loss(&moved).into_scalar::<f64>()
    };

    let here = loss(&module);
    let size = here.clone().into_scalar::<f64>().abs().max(1.0);
    let rounding = size * f64::EPSILON * 64.0 / STEP;
    let mut collect = Collect {
        path: Path::default(),
        gradients: &here.backward(),
        found: BTreeMap::new(),
    };
    module.visit(&mut collect);
    let (mut checked, mut loose) = (0, 0);
    for (name, gradient) in collect.found {
        for (i, found) in gradient.into_iter().enumerate() {
            let slope = |step: f64| (at(&name, i, step) - at(&name, i, -step)) / (2.0 * step);
            let near = slope(STEP);
            checked += 1;
            if (found - near).abs() <= rounding {
                continue;
            }
            let allowed = (near - slope(2.0 * STEP)).abs() + rounding;
            assert!(
                (found - near).abs() <= allowed,
                "{what}: {name}[{i}] has gradient {found}, expected {near}, off by more than {allowed:.1e}"
            );
            loose += usize::from(allowed > 1e-6 * size);
        }
    }
    // Where a maximum or a ReLU switches within a step, the bound is loose: this must be rare.
    assert!(
        20 * loose <= checked,
        "{what}: {loose} of {checked} bounds are loose"
    );
    checked
}

fn initializer() -> Initializer {
    Initializer::new(1, &device())
}

/// A parameter for an input whose gradient is checked.
fn input<const D: usize>(shape: [usize; D]) -> Param<Tensor<D>> {
    initializer().zeros(shape)
}

const MAPS: [[usize; 4]; 3] = [[2, 4, 3, 5], [1, 4, 1, 1], [3, 4, 4, 1]];

#[test]
fn gates() {
    let init = &mut initializer();
    for (i, shape) in MAPS.into_iter().enumerate() {
        for bias in [false, true] {
            let config = SqueezeExciteConfig::new(4)
                .with_reduction(2)
                .with_bias(bias);
            let module = (config.init(init).unwrap(), input(shape));
            let checked = check(
                &format!("squeeze-excite {i} {bias}"),
                module,
                |(module, map)| module.forward(map.val()).unwrap(),
            );
            assert!(checked >= 16 + shape.iter().product::<usize>());
        }
        let module = SpatialAttentionConfig::new().with_kernel(3).init(init);
        check(
            &format!("spatial {i}"),
            (module.unwrap(), input(shape)),
            |(module, map)| module.forward(map.val()).unwrap(),
        );
        let module = CbamConfig::new(4)
            .with_reduction(2)
            .with_kernel(3)
            .init(init);
        check(
            &format!("cbam {i}"),
            (module.unwrap(), input(shape)),
            |(module, map)| module.forward(map.val()).unwrap(),
        );
    }
}

/// With batch statistics, as in training.
#[test]
fn mask_branch() {
    let init = &mut initializer();
    let mut checked = 0;
    for (activation, levels, shape) in [
        (MaskActivation::Mixed, 2, [3, 4, 5, 4]),
        (MaskActivation::Channel, 1, [2, 4, 3, 4]),
        (MaskActivation::Spatial, 1, [2, 4, 3, 4]),
    ] {
        let config = MaskBranchConfig::new(4)
            .with_levels(levels)
            .with_activation(activation);
        let module = (config.init(init).unwrap(), (input(shape), input(shape)));
        let what = format!("mask {levels} {activation:?}");
        checked += check(&what, module, |(module, (map, trunk))| {
            module.attend(map.val(), trunk.val()).unwrap().output
        });
    }
    assert!(checked > 1000, "{checked}");
}

#[test]
fn non_local() {
    let init = &mut initializer();
    for affinity in [
        Affinity::Gaussian,
        Affinity::EmbeddedGaussian,
        Affinity::Dot,
        Affinity::Concatenation,
    ] {
        for pool in [1, 2] {
            for (i, shape) in MAPS.into_iter().enumerate() {
                let config = NonLocalConfig::new(4)
                    .with_affinity(affinity)
                    .with_pool(pool)
                    .with_scaled(i == 0);
                let module = (config.init(init).unwrap(), input(shape));
                check(
                    &format!("{affinity:?} {pool} {i}"),
                    module,
                    |(module, map)| module.forward(map.val()).unwrap(),
                );
            }
        }
        let module = (
            NonLocalConfig::new(2).with_affinity(affinity).with_pool(2),
            input([1, 2, 2, 3, 2]),
        );
        let module = (module.0.init(init).unwrap(), module.1);
        check(&format!("{affinity:?} video"), module, |(module, map)| {
            module.forward(map.val()).unwrap()
        });
    }
}

#[test]
fn axial_attention() {
    let init = &mut initializer();
    for span in [None, Some(6)] {
        for (i, shape) in MAPS.into_iter().enumerate() {
            let config = AxialAttentionConfig::new(4).with_heads(2).with_span(span);
            let module = (config.init(init).unwrap(), input(shape));
            check(&format!("axial {span:?} {i}"), module, |(module, map)| {
                module.forward(map.val()).unwrap()
            });
        }
    }
}

#[test]
fn regions() {
    let init = &mut initializer();
    for counts in [[3, 3], [3, 1], [2, 0]] {
        let keep = PaddingMask::from_lengths(&counts, 3, &device());
        let module = CaptionAttentionConfig::new(4, 3, 2).init(init).unwrap();
        let module = (module, (input([2, 3, 4]), input([2, 3])));
        check(
            &format!("caption {counts:?}"),
            module,
            |(module, (features, state))| {
                let regions = Regions::new(features.val(), keep.clone()).unwrap();
                let prepared = module.prepare(&regions).unwrap();
                module.forward(state.val(), &prepared).unwrap().context
            },
        );
        let module = QuestionAttentionConfig::new(4, 3, 2).init(init).unwrap();
        let module = (module, (input([2, 3, 4]), input([2, 3])));
        check(
            &format!("question {counts:?}"),
            module,
            |(module, (features, question))| {
                let regions = Regions::new(features.val(), keep.clone()).unwrap();
                module.forward(question.val(), &regions).unwrap().context
            },
        );
    }
    let module = AnswerHeadConfig::new(3, 4, 2, 5).init(init).unwrap();
    let module = (module, (input([2, 3]), input([2, 4])));
    check("answers", module, |(module, (question, context))| {
        module.forward(question.val(), context.val()).unwrap()
    });
}

#[test]
fn patches() {
    let module = PatchEmbeddingConfig::new([4, 6], [2, 3], 2, 3).init(&mut initializer());
    let module = (module.unwrap(), input([2, 2, 4, 6]));
    check("patches", module, |(module, image)| {
        module.forward(image.val()).unwrap()
    });
}
