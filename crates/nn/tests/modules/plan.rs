//! Which kernel serves a call: every plan, every reason why there is none, and that a call does what its plan says, reports it
//! when no kernel serves, and gives the same numbers either way.

use std::{cell::RefCell, fmt, sync::Once};

use burn::tensor::{DType, Tensor};
use regard_nn::{
    Attention, AttentionOptions, KernelPlan, Observe, Path, Unserved,
    bridge::without_kernels,
    dropout::DropoutRng,
    heads::MultiHeadConfig,
    initialize::Initializer,
    mask::{Mask, PaddingMask, PositionPredictor},
    normalize::{Normalize, Sink},
    position::{Alibi, PositionConfig},
    score::{Additive, Cosine, Distance, General, Score},
};
use tracing::{
    Event, Metadata, Subscriber,
    field::{Field, Visit},
    span,
    subscriber::Interest,
};

use crate::{
    mechanisms::{SIZE, drawn, same_bits},
    support::device,
};

thread_local! {
    static HEARD: RefCell<Option<Vec<String>>> = const { RefCell::new(None) };
}

/// Collects the messages of threads that want them.
struct Listener;

impl Subscriber for Listener {
    fn register_callsite(&self, _metadata: &'static Metadata<'static>) -> Interest {
        Interest::sometimes()
    }
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        let ours = metadata.target().starts_with("regard_nn");
        ours && HEARD.with_borrow(Option::is_some)
    }
    fn new_span(&self, _span: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }
    fn record(&self, _span: &span::Id, _values: &span::Record<'_>) {}
    fn record_follows_from(&self, _span: &span::Id, _follows: &span::Id) {}
    fn event(&self, event: &Event<'_>) {
        struct Message(String);
        impl Visit for Message {
            fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
                if field.name() == "message" {
                    self.0 = format!("{value:?}");
                }
            }
        }
        let mut message = Message(String::new());
        event.record(&mut message);
        HEARD.with_borrow_mut(|heard| heard.iter_mut().for_each(|all| all.push(message.0.clone())));
    }
    fn enter(&self, _span: &span::Id) {}
    fn exit(&self, _span: &span::Id) {}
}

/// The result of `work`, and the events during it.
fn heard<T>(work: impl FnOnce() -> T) -> (T, Vec<String>) {
    static LISTEN: Once = Once::new();
    LISTEN.call_once(|| tracing::subscriber::set_global_default(Listener).unwrap());
    HEARD.set(Some(vec![]));
    let result = work();
    (result, HEARD.take().unwrap())
}

fn additive(init: &mut Initializer) -> Attention {
    Attention::new(Score::Additive(Additive::new(SIZE, SIZE, 3, init)))
}

fn dot() -> Attention {
    Attention::new(Score::scaled_dot())
}

#[test]
fn every_reason_is_given_told_and_harmless() {
    let init = &mut Initializer::new(2, &device());
    let x = drawn("x", [1, 2, 3, SIZE], 1.0);
    let large = drawn("x", [1, 2, 3, 257], 1.0);
    let alibi = Alibi::new(2).unwrap();
    let bias = |value: f32| {
        let row = Tensor::<4>::from_floats([[[[0.0, 0.0, f32::NEG_INFINITY]]]], &device());
        row + value
    };
    let poisoned = || {
        let nan = Tensor::full([1, 2, 1, SIZE], f32::NAN, &device());
        Tensor::cat(vec![x.clone().narrow(2, 0, 2), nan], 2)
    };
    let padding = || Mask::padding(PaddingMask::from_lengths(&[2], 3, &device()));
    let distance = Attention::new(Score::Distance(Distance::default()));
    let sparse = dot().with_normalize(Normalize::sparsemax());
    let general = Attention::new(Score::General(General::new(SIZE, SIZE, init)));
    let learned_sink = {
        let mut sink = Sink::learned(2, init);
        sink.logits = sink
            .logits
            .map(|logits| logits.map(|logits| logits * f32::NAN));
        dot().with_normalize(Normalize::Sink(sink))
    };
    type Call<'a> = Box<dyn Fn() -> AttentionOptions<'a> + 'a>;
    let plain: fn() -> AttentionOptions<'static> = AttentionOptions::default;
    let weights = || AttentionOptions::new(Observe::Weights);
    // The mechanism, query and value, keys, the call, the reason; whether the reason can be found without the numbers.
    let cases: Vec<(Attention, &Tensor<4>, Tensor<4>, Call<'_>, Unserved, bool)> = vec![
        (
            dot(),
            &x,
            x.clone(),
            Box::new(move || weights().path(Path::Plain)),
            Unserved::Asked,
            true,
        ),
        (
            distance,
            &x,
            x.clone(),
            Box::new(plain),
            Unserved::Score("L2 distance"),
            true,
        ),
        (
            sparse,
            &x,
            x.clone(),
            Box::new(plain),
            Unserved::Normalizer("sparsemax"),
            true,
        ),
        (
            additive(init).with_normalize(Normalize::Sink(Sink::fixed(0.0))),
            &x,
            x.clone(),
            Box::new(plain),
            Unserved::Normalizer("softmax with a sink"),
            true,
        ),
        (
            dot().with_predictor(PositionPredictor::new(SIZE, 2, init)),
            &x,
            x.clone(),
            Box::new(plain),
            Unserved::Predictor,
            true,
        ),
        (
            dot(),
            &x,
            x.clone(),
            Box::new(move || weights().differentiable()),
            Unserved::Differentiable,
            true,
        ),
        (
            dot(),
            &large,
            large.clone(),
            Box::new(plain),
            Unserved::Size(257),
            true,
        ),
        (
            additive(init).with_mask(Mask::causal()),
            &x,
            x.clone(),
            Box::new(plain),
            Unserved::Mask,
            true,
        ),
        (
            additive(init).with_softcap(2.0),
            &x,
            x.clone(),
            Box::new(plain),
            Unserved::Around("a softcap"),
            true,
        ),
        (
            additive(init),
            &x,
            x.clone(),
            Box::new(|| plain().alibi(&alibi)),
            Unserved::Around("ALiBi"),
            true,
        ),
        (
            learned_sink,
            &x,
            x.clone(),
            Box::new(plain),
            Unserved::NotFinite("a sink that is not finite"),
            false,
        ),
        (
            general,
            &x,
            poisoned(),
            Box::new(|| plain().mask(padding())),
            Unserved::NotFinite("keys that are not finite"),
            false,
        ),
        (
            dot(),
            &x,
            poisoned(),
            Box::new(|| plain().bias(bias(0.0))),
            Unserved::NotFinite("keys or values that are not finite, hidden by a bias of -inf"),
            false,
        ),
        (
            dot(),
            &x,
            x.clone(),
            Box::new(|| plain().bias(bias(f32::MAX) + f32::MAX)),
            Unserved::NotFinite("scores that are not finite, beside or behind a bias of -inf"),
            false,
        ),
    ];
    for (attention, x, key, call, why, known) in &cases {
        let plan = attention.plan(x, x, &call());
        match known {
            true => assert_eq!(plan.as_ref(), Err(why)),
            false => assert_eq!(
                plan,
                Ok(KernelPlan::Dot {
                    scale: scale(attention)
                }),
                "{why}"
            ),
        }
        let read = |call: AttentionOptions<'_>| {
            attention.forward_with(x.to_owned().clone(), key.clone(), (*x).clone(), call)
        };
        if *why != Unserved::Asked {
            let refused = read(call().path(Path::Fused)).unwrap_err().to_string();
            let expected = format!(
                "`path` is Fused, which cannot be combined with {}: use Path::Auto",
                why.what()
            );
            assert_eq!(refused, expected);
        }
        let (auto, told) = heard(|| read(call()).unwrap());
        assert_eq!(
            told,
            [format!("no kernel serves {}: plain operations", why.what())]
        );
        let plain = read(call().path(Path::Plain)).unwrap();
        assert!(same_bits(&auto.context, &plain.context), "{why}");
    }
    // Dropout on the weights, where there is noise.
    let dropped = additive(init).with_dropout(0.5);
    assert_eq!(dropped.plan(&x, &x, &plain()), Ok(KernelPlan::Additive));
    let noise = &mut DropoutRng::seeded(1);
    let why = Unserved::Around("dropout on the weights");
    assert_eq!(dropped.plan(&x, &x, &plain().noise(noise)), Err(why));
    // Other tensors, and kernels that are off.
    let wide = x.clone().cast(DType::F64);
    assert_eq!(dot().plan(&wide, &wide, &plain()), Err(Unserved::Tensors));
    let off = without_kernels(|| dot().plan(&x, &x, &plain()));
    assert_eq!(off, Err(Unserved::Tensors));
}

fn scale(attention: &Attention) -> f64 {
    match attention.score {
        Score::ScaledDot(_) => 0.5,
        _ => 1.0,
    }
}

/// A call that a kernel serves emits no event, and the plan names the kernel.
#[test]
fn plans_of_what_is_served() {
    let init = &mut Initializer::new(2, &device());
    let x = drawn("x", [1, 2, 3, SIZE], 1.0);
    let alibi = Alibi::new(2).unwrap();
    let served = KernelPlan::Dot { scale: 0.5 };
    for (attention, call, plan) in [
        (dot(), AttentionOptions::default(), served),
        (
            dot().with_mask(!Mask::causal()),
            AttentionOptions::new(Observe::TopK(1)),
            served,
        ),
        (
            dot().with_softcap(3.0),
            AttentionOptions::default().alibi(&alibi),
            served,
        ),
        (
            Attention::new(Score::Cosine(Cosine::learned(SIZE, init))),
            AttentionOptions::default(),
            KernelPlan::Dot { scale: 1.0 },
        ),
        (
            additive(init),
            AttentionOptions::new(Observe::Entropy),
            KernelPlan::Additive,
        ),
    ] {
        assert_eq!(attention.plan(&x, &x, &call), Ok(plan));
        let (read, told) = heard(|| attention.forward_with(x.clone(), x.clone(), x.clone(), call));
        assert!(read.is_ok() && told.is_empty(), "{told:?}");
    }
}

/// Plans of heads that add steps of their own say so; the others use the operation with projections where it serves.
#[test]
fn plans_of_heads() {
    let init = &mut Initializer::new(2, &device());
    let x = Tensor::<3>::ones([2, 5, 16], &device());
    let of_values = PositionConfig::Relative {
        max_distance: 2,
        values: true,
    };
    for config in [
        MultiHeadConfig {
            talking_heads: true,
            ..MultiHeadConfig::new(16, 4)
        },
        MultiHeadConfig {
            position: of_values,
            ..MultiHeadConfig::new(16, 4)
        },
    ] {
        let layer = config.init(init).unwrap();
        let plan = layer.plan(&x, None, &AttentionOptions::default());
        assert_eq!(plan, Err(Unserved::BetweenWords));
        let (read, told) = heard(|| layer.forward(x.clone(), AttentionOptions::default()));
        assert!(read.is_ok());
        assert_eq!(told, [Unserved::BetweenWords.to_string()]);
        let refused = layer.forward(x.clone(), AttentionOptions::default().path(Path::Fused));
        let refused = refused.unwrap_err().to_string();
        assert!(
            refused.contains("talking heads or Shaw's vectors"),
            "{refused}"
        );
    }
    let layer = MultiHeadConfig::new(16, 4).init(init).unwrap();
    let observing = layer.plan(&x, None, &AttentionOptions::new(Observe::Weights));
    assert_eq!(observing, Ok(KernelPlan::Dot { scale: 0.5 }));
    let cross = layer.plan(&x, Some(&x), &AttentionOptions::default());
    assert_eq!(cross, Ok(KernelPlan::Projected { scale: 0.5 }));
    let two = Tensor::<3>::ones([1, 5, 16], &device());
    let other_batch = layer.plan(&x, Some(&two), &AttentionOptions::default());
    assert_eq!(other_batch, Ok(KernelPlan::Dot { scale: 0.5 }));
}
