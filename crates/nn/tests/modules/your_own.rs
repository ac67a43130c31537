//! A score, a normaliser and a mask of another crate: they are trained, saved, moved and checked like those of this one, and a
//! kernel serves them where they declare it.

use burn::{
    module::{Module, ModuleMapper, Param},
    tensor::{DType, Device, Tensor, TensorData},
};
use regard_nn::{
    Attention, AttentionError, AttentionOptions, KernelPlan, Observe, Path, Unserved,
    initialize::Initializer,
    mask::{Mask, PaddingMask},
    normalize::{Normalize, NormalizeFunction, NormalizeOptions, Normalized, masked_softmax},
    score::{Dot, KernelForm, Score, ScoreFunction, Sizes},
    weights,
};

use crate::{
    mechanisms::{SIZE, attend, drawn, inputs, same_bits},
    support::{device, numbers, values},
};

/// `Σ_d g_d s_d (W h)_d`, which can be computed as a dot product.
#[derive(Module, Debug)]
struct Weighted {
    gains: Param<Tensor<1>>,
    keys: Param<Tensor<2>>,
}

impl ScoreFunction for Weighted {
    fn name(&self) -> &'static str {
        "weighted"
    }
    fn sizes(&self) -> Sizes {
        let [annotation, size] = self.keys.dims();
        Sizes::Made {
            query: size,
            annotation,
            key: size,
        }
    }
    fn prepared_keys(&self, annotations: &Tensor<4>) -> Option<Tensor<4>> {
        let keys = self.keys.val().unsqueeze::<4>();
        Some(regard_nn::bridge::matmul(annotations.clone(), keys))
    }
    fn score(&self, query: Tensor<4>, keys: Tensor<4>) -> Tensor<4> {
        Dot.forward(self.prepared_query(query), keys) * 0.5
    }
    fn check(&self, _normalize: &Normalize, _dtype: DType) -> Result<(), AttentionError> {
        match self.gains.dims() {
            [0] => Err(AttentionError::Value {
                field: "gains",
                found: "0".to_owned(),
                expected: "at least 1".to_owned(),
                advice: "one a feature",
            }),
            _ => Ok(()),
        }
    }
    fn form(&self, _query_size: usize) -> Option<KernelForm> {
        Some(KernelForm::Dot { scale: 0.5 })
    }
    fn prepared_query(&self, query: Tensor<4>) -> Tensor<4> {
        query * self.gains.val().unsqueeze::<4>()
    }
}

/// `r · m_t k`, where `m_t` is the sum of all queries so far: it carries state.
#[derive(Module, Debug)]
struct Summed {
    rate: Param<Tensor<1>>,
}

impl Summed {
    fn sums(&self, query: Tensor<4>, before: Option<Tensor<4>>) -> Tensor<4> {
        let sums = query.cumsum(2);
        match before {
            Some(before) => sums + before,
            None => sums,
        }
    }
}

impl ScoreFunction for Summed {
    fn name(&self) -> &'static str {
        "summed"
    }
    fn sizes(&self) -> Sizes {
        Sizes::Equal
    }
    fn score(&self, query: Tensor<4>, keys: Tensor<4>) -> Tensor<4> {
        self.score_after(query, keys, None).0
    }
    fn score_after(
        &self,
        query: Tensor<4>,
        keys: Tensor<4>,
        carried: Option<Tensor<4>>,
    ) -> (Tensor<4>, Option<Tensor<4>>) {
        let queries = query.dims()[2];
        if query.dims().contains(&0) {
            return (Dot.forward(query, keys), carried);
        }
        let sums = self.sums(query, carried);
        let last = sums.clone().narrow(2, queries - 1, 1);
        let scores = Dot.forward(sums, keys) * self.rate.val().unsqueeze::<4>();
        (scores, Some(last))
    }
    fn carried_size(&self) -> Option<usize> {
        Some(SIZE)
    }
}

/// `softmax(t · s)` over the visible keys, with a trained `t`.
#[derive(Module, Debug)]
struct Sharpened {
    sharpness: Param<Tensor<1>>,
}

impl NormalizeFunction for Sharpened {
    fn name(&self) -> &'static str {
        "sharpened"
    }
    fn normalize(&self, scores: Tensor<4>, options: NormalizeOptions<'_>) -> Normalized {
        if scores.dims().contains(&0) {
            return Normalized::new(scores);
        }
        let scores = scores * self.sharpness.val().unsqueeze::<4>();
        Normalized::new(masked_softmax(scores, options.seen))
    }
}

/// A normaliser that ignores the mask: the weights of hidden keys are set to 0 all the same.
#[derive(Module, Debug)]
struct Careless;

impl NormalizeFunction for Careless {
    fn name(&self) -> &'static str {
        "careless"
    }
    fn normalize(&self, scores: Tensor<4>, _options: NormalizeOptions<'_>) -> Normalized {
        Normalized::new(scores.exp())
    }
}

fn weighted(init: &mut Initializer) -> Score {
    Score::custom(Weighted {
        gains: init.uniform([SIZE], 1.0),
        keys: init.uniform([SIZE, SIZE], 0.7),
    })
}

fn sharpened(init: &mut Initializer) -> Normalize {
    Normalize::custom(Sharpened {
        sharpness: init.constant([1], 1.5),
    })
}

fn odd() -> Mask {
    Mask::function("odd distances and itself", |at| {
        at.query == at.key || (at.query + at.key) % 2 == 1
    })
}

/// An attention with all three of another crate.
fn foreign() -> Attention {
    let init = &mut Initializer::new(7, &device());
    Attention::new(weighted(init))
        .with_normalize(sharpened(init))
        .with_mask(odd())
}

#[test]
fn weights_are_found_saved_loaded_and_moved() {
    let attention = foreign();
    assert_eq!(attention.num_params(), SIZE + SIZE * SIZE + 1);
    let arrays = weights::collect(&attention);
    let names: Vec<&str> = arrays.keys().map(String::as_str).collect();
    let expected = [
        "normalize.Custom.sharpness",
        "score.Custom.gains",
        "score.Custom.keys",
    ];
    assert_eq!(names, expected);
    let bytes = weights::to_bytes(&arrays, Default::default(), weights::Storage::F32).unwrap();
    let init = &mut Initializer::new(8, &device());
    let other = Attention::new(weighted(init))
        .with_normalize(sharpened(init))
        .with_mask(odd());
    let x = inputs(2, 2, 3, 3);
    let read = |attention: &Attention| {
        attend(attention, &x, AttentionOptions::new(Observe::Weights)).context
    };
    assert!(!same_bits(&read(&attention), &read(&other)));
    let other = weights::apply(other, weights::from_bytes(&bytes).unwrap().0).unwrap();
    assert!(same_bits(&read(&attention), &read(&other)));
    // A clone is another module, and without autodiff the numbers are the same.
    let plain = attention.clone().valid().to_device(&Device::flex());
    assert_eq!(plain.collect_devices(vec![]), [Device::flex()]);
    let [query, key, value] = x.clone().map(|x| x.inner());
    let without = plain.forward(query, key, value, Observe::Nothing).unwrap();
    assert_eq!(numbers(&without.context), numbers(&read(&attention)));
    assert!(format!("{attention}").contains("Weighted"), "{attention}");
}

/// Every weight and every input, by finite differences in f64.
#[test]
fn gradients_equal_differences() {
    struct Wide(Option<(usize, usize, f64)>, usize);
    impl ModuleMapper for Wide {
        fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
            let (id, tensor, mapper) = param.consume();
            let shape = tensor.dims();
            let mut numbers: Vec<f64> = tensor.into_data().iter::<f64>().collect();
            if let Some((weight, at, by)) = self.0
                && weight == self.1
            {
                numbers[at] += by;
            }
            self.1 += 1;
            let data = TensorData::new(numbers, shape);
            let tensor = Tensor::from_data(data, (&device(), DType::F64)).require_grad();
            Param::from_mapped_value(id, tensor, mapper)
        }
    }
    let x = inputs(2, 1, 3, 3).map(|x| x.cast(DType::F64).detach().require_grad());
    let init = &mut Initializer::new(7, &device());
    let summed = Score::custom(Summed {
        rate: init.constant([1], 0.4),
    });
    let carrying = Attention::new(summed).with_normalize(sharpened(init));
    for attention in [foreign(), carrying] {
        let loss = |nudge| {
            let attention = attention.clone().map(&mut Wide(nudge, 0));
            let read = attend(&attention, &x, AttentionOptions::new(Observe::Nothing));
            let shape = read.context.dims();
            let upstream = values("upstream", shape.iter().product(), 1.0);
            let upstream = Tensor::<4>::from_data(TensorData::new(upstream, shape), &device());
            let loss = (read.context * upstream.cast(DType::F64)).sum();
            (attention, loss)
        };
        let (wide, at_rest) = loss(None);
        let slopes = at_rest.backward();
        assert!(x.iter().all(|x| x.grad(&slopes).is_some()));
        let slopes = crate::support::gradients(&wide, &slopes);
        // The order of a module's own fields: the score's, then the normaliser's.
        let order = |name: &&String| (!name.starts_with("score"), (*name).clone());
        let mut names: Vec<&String> = slopes.keys().collect();
        names.sort_by_key(order);
        let mut checked = 0;
        for (weight, name) in names.into_iter().enumerate() {
            for (at, &slope) in slopes[name].values.iter().enumerate() {
                let at_step = |by: f64| loss(Some((weight, at, by))).1.into_scalar::<f64>();
                let difference = (at_step(1e-4) - at_step(-1e-4)) / 2e-4;
                let off = (f64::from(slope) - difference).abs();
                assert!(off < 1e-6, "{name}[{at}]: {slope} and {difference}");
                checked += 1;
            }
        }
        assert!(checked >= 2);
    }
}

/// The form that a score declares is what a kernel computes: the same numbers, fused and plain.
#[test]
fn a_kernel_serves_what_says_so() {
    let init = &mut Initializer::new(7, &device());
    let attention = Attention::new(weighted(init)).with_mask(odd());
    let x = inputs(2, 1, 5, 6);
    let padding = || Mask::padding(PaddingMask::from_lengths(&[6, 4], 6, &device()));
    let call = |path| {
        AttentionOptions::new(Observe::Weights)
            .mask(padding())
            .path(path)
    };
    assert_eq!(
        attention.plan(&x[0], &x[2], &call(Path::Auto)),
        Ok(KernelPlan::Dot { scale: 0.5 })
    );
    let [fused, plain] = [Path::Fused, Path::Plain].map(|path| {
        let x = x.clone().map(|x| x.detach().require_grad());
        let read = attend(&attention, &x, call(path));
        let slopes = read.context.clone().powi_scalar(2).sum().backward();
        let mut found = vec![numbers(&read.context), numbers(&read.weights.unwrap())];
        found.extend(x.iter().map(|x| numbers(&x.grad(&slopes).unwrap())));
        let of_weights = crate::support::gradients(&attention, &slopes);
        found.extend(of_weights.into_values().map(|array| array.values));
        found
    });
    assert_eq!(fused.len(), 7);
    for (fused, plain) in fused.iter().zip(&plain) {
        let off = fused.iter().zip(plain).map(|(a, b)| (a - b).abs());
        assert!(off.fold(0.0, f32::max) < 1e-5);
    }
    // For the others, the plan says that no kernel serves.
    let found = foreign().plan(&x[0], &x[2], &AttentionOptions::default());
    assert_eq!(found, Err(Unserved::Normalizer("sharpened")));
}

/// The state that a score carries continues from step to step.
#[test]
fn what_is_carried_goes_on() {
    let init = &mut Initializer::new(7, &device());
    let attention = Attention::new(Score::custom(Summed {
        rate: init.constant([1], 0.4),
    }));
    let x = inputs(2, 2, 3, 4);
    let whole = attend(&attention, &x, AttentionOptions::new(Observe::Weights));
    let whole = numbers(&whole.weights.unwrap().narrow(2, 2, 1));
    let mut carried = None;
    for step in 0..3 {
        let [query, key, value] = x.clone();
        let call = AttentionOptions::new(Observe::Weights).carried(carried);
        let read = attend(&attention, &[query.narrow(2, step, 1), key, value], call);
        carried = read.carried;
        if step == 2 {
            let found = numbers(&read.weights.unwrap());
            let off = found.iter().zip(&whole).map(|(a, b)| (a - b).abs());
            assert!(off.fold(0.0, f32::max) < 1e-6);
        }
    }
    let [query, key, value] = x.clone();
    let wrong = Tensor::zeros([2, 2, 1, SIZE + 1], &device());
    let call = AttentionOptions::default().carried(Some(wrong));
    let error = attention
        .forward_with(query, key, value, call)
        .unwrap_err()
        .to_string();
    assert!(
        error.starts_with("`carried` has shape [2, 2, 1, 5], expected [2, 2, 1, 4]"),
        "{error}"
    );
    let none = drawn("query", [2, 2, 0, SIZE], 1.0);
    let [_, key, value] = x;
    let read = attention
        .forward(none, key, value, Observe::Nothing)
        .unwrap();
    assert_eq!(read.context.dims(), [2, 2, 0, 3]);
}

/// A hidden key has weight 0 and no influence, whatever a normaliser of another crate does.
#[test]
fn nobody_sees_what_is_hidden() {
    let init = &mut Initializer::new(7, &device());
    for normalize in [Normalize::custom(Careless), sharpened(init)] {
        let attention = Attention::new(weighted(init)).with_normalize(normalize);
        let mut x = inputs(1, 1, 2, 4);
        let nan = Tensor::full([2, 1, 1, SIZE], f32::NAN, &device());
        x[1] = Tensor::cat(vec![x[1].clone().narrow(2, 0, 3), nan], 2);
        let x = x.map(|x| x.detach().require_grad());
        let padding = Mask::padding(PaddingMask::from_lengths(&[3, 0], 4, &device()));
        let call = AttentionOptions::new(Observe::Weights).mask(padding);
        let read = attend(&attention, &x, call);
        let weights = numbers(&read.weights.unwrap());
        assert!(weights.chunks(4).all(|row| row[3] == 0.0));
        assert!(weights[8..].iter().all(|&weight| weight == 0.0));
        let slopes = read.context.sum().backward();
        for x in &x {
            let slope = numbers(&x.grad(&slopes).unwrap());
            assert!(slope.iter().all(|slope| slope.is_finite()));
        }
    }
}

#[test]
fn what_does_not_fit_is_refused_by_name() {
    let attention = foreign();
    let x = drawn("x", [1, 1, 2, SIZE + 1], 1.0);
    let message = |attention: &Attention, x: &Tensor<4>| {
        let read = attention.forward(x.clone(), x.clone(), x.clone(), Observe::Nothing);
        read.unwrap_err().to_string()
    };
    let found = message(&attention, &x);
    assert!(
        found.contains("size 4, which the weighted score was made for"),
        "{found}"
    );
    let none = Weighted {
        gains: Initializer::new(1, &device()).zeros([0]),
        keys: Initializer::new(1, &device()).uniform([SIZE, SIZE], 1.0),
    };
    let x = drawn("x", [1, 1, 2, SIZE], 1.0);
    let found = message(&Attention::new(Score::custom(none)), &x);
    assert_eq!(found, "`gains` is 0, expected at least 1: one a feature");
}
