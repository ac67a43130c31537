//! Classifiers: padding has no influence, every weight learns, bad sizes are refused.

use burn::tensor::{Device, Tensor};
use regard_models::{
    AnyClassifier, AnyModelConfig, Classified, ClassifierSizes, ModelConfig, SourceBatch,
    Vocabulary,
    attention::{
        AddressingConfig, GumbelConfig, MonotonicConfig, NormalizerConfig, ReinforceConfig,
        SigmoidConfig, SinkConfig,
    },
    config::Choice,
    former,
    sentence::{LstmConfig, LstmnConfig, SelfAttentiveConfig, SentenceDropout},
};
use regard_nn::{dropout::DropoutRng, weights};

use crate::support;

const SIZES: ClassifierSizes = ClassifierSizes {
    vocabulary: Vocabulary::new(16),
    classes: 2,
};

/// One of each kind, with a hidden layer of this size.
fn configurations(readout: usize) -> Vec<(&'static str, Box<dyn AnyModelConfig<AnyClassifier>>)> {
    let lstmn = |layers| LstmnConfig {
        layers,
        readout,
        ..LstmnConfig::tiny()
    };
    let lstm = LstmConfig {
        layers: 2,
        bidirectional: true,
        readout,
        ..LstmConfig::tiny()
    };
    let mut all: Vec<(&str, Box<dyn AnyModelConfig<AnyClassifier>>)> = vec![
        ("lstmn", Box::new(lstmn(1))),
        ("lstmn of two layers", Box::new(lstmn(2))),
        ("lstm", Box::new(lstm)),
    ];
    for normalizer in [
        NormalizerConfig::Softmax,
        NormalizerConfig::Sink(SinkConfig::default()),
        NormalizerConfig::Sparsemax,
        NormalizerConfig::Entmax15,
        NormalizerConfig::Sigmoid(SigmoidConfig::default()),
        NormalizerConfig::HardGumbel(GumbelConfig::default()),
        NormalizerConfig::Monotonic(MonotonicConfig::default()),
    ] {
        let name = normalizer.kind();
        let self_attentive = SelfAttentiveConfig {
            normalizer,
            readout,
            ..SelfAttentiveConfig::tiny()
        };
        all.push((name, Box::new(self_attentive)));
    }
    all
}

fn init(config: &dyn AnyModelConfig<AnyClassifier>, device: &Device) -> AnyClassifier {
    config.build(&SIZES, 3, device).unwrap()
}

fn numbers<const D: usize>(tensor: Tensor<D>) -> Vec<f32> {
    tensor.into_data().iter().collect()
}

fn forward(model: &AnyClassifier, sentences: &[Vec<u32>], device: &Device) -> Classified {
    model.forward(
        &SourceBatch::new(sentences, &SIZES.vocabulary, device),
        &mut DropoutRng::none(),
    )
}

#[test]
fn a_sentence_in_a_batch_is_the_sentence_alone() {
    let device = Device::flex();
    let sentences = [vec![5, 6, 7, 8, 9], vec![10], vec![4, 11, 12]];
    for (name, config) in configurations(7) {
        let model = init(&*config, &device);
        let together = forward(&model, &sentences, &device);
        for (row, sentence) in sentences.iter().enumerate() {
            let alone = forward(&model, std::slice::from_ref(sentence), &device);
            let here = together.logits.clone().narrow(0, row, 1);
            let error = numbers((here - alone.logits).abs().max())[0];
            // A few dozen additions of numbers of size 1.
            assert!(error < 4e-6, "{name}: {error}");
            for (map, own) in together.maps.iter().zip(&alone.maps) {
                let (map, own) = (&map.weights, &own.weights);
                let [_, _, queries, keys] = own.dims();
                let map = map.clone().narrow(0, row, 1);
                let here = map.narrow(2, 0, queries).narrow(3, 0, keys);
                assert!(numbers((here - own.clone()).abs().max())[0] < 4e-6);
            }
        }
    }
}

#[test]
fn every_weight_learns() {
    let device = Device::flex().autodiff();
    // All of a handful of ReLU units may be 0 at first; of 32, some are not.
    for (kind, config) in configurations(32) {
        let model = init(&*config, &device);
        let sentences = [vec![5, 6, 7, 8, 9], vec![10, 4, 3], vec![4, 11, 12, 13]];
        let classified = forward(&model, &sentences, &device);
        let penalty = classified.penalty;
        assert_eq!(penalty.is_some(), !kind.contains("lstm"));
        let mut loss = (classified.logits.clone() * classified.logits).sum();
        if let Some(penalty) = penalty {
            loss = loss + penalty;
        }
        let gradients = loss.backward();
        let found = support::gradients(&model, &gradients);
        assert_eq!(found.len(), weights::collect(&model).len());
        for (name, array) in found {
            let largest = array
                .values
                .iter()
                .fold(0.0, |most: f32, g| most.max(g.abs()));
            assert!(largest > 0.0, "{kind}: {name} learns nothing");
            assert!(array.values.iter().all(|g| g.is_finite()), "{name}");
        }
    }
}

#[test]
fn dropout_is_replayed_by_its_seed_and_changes_something() {
    let device = Device::flex();
    let config = LstmnConfig {
        layers: 2,
        dropout: SentenceDropout {
            word: 0.2,
            embedding: 0.3,
            layers: 0.3,
            output: 0.3,
        },
        ..LstmnConfig::tiny()
    };
    let model = init(&config, &device);
    let sentences = [vec![5, 6, 7, 8], vec![9, 10]];
    let batch = SourceBatch::new(&sentences, &SIZES.vocabulary, &device);
    let run = |mut noise: DropoutRng| numbers(model.forward(&batch, &mut noise).logits);
    assert_eq!(run(DropoutRng::seeded(1)), run(DropoutRng::seeded(1)));
    assert_ne!(run(DropoutRng::seeded(1)), run(DropoutRng::seeded(2)));
    assert_ne!(run(DropoutRng::seeded(1)), run(DropoutRng::none()));
}

#[test]
fn sizes_that_no_classifier_can_have() {
    let refused = |classes: usize, change: &dyn Fn(&mut SelfAttentiveConfig)| {
        let mut config = SelfAttentiveConfig::tiny();
        change(&mut config);
        let sizes = ClassifierSizes { classes, ..SIZES };
        let refused = ModelConfig::init(&config, &sizes, 1, &Device::flex());
        refused.unwrap_err().to_string()
    };
    let message = refused(1, &|_| ());
    assert!(message.contains("number of classes is 1; expected at least 2"));
    let check = |change: &dyn Fn(&mut SelfAttentiveConfig), expected: &str| {
        let message = refused(2, change);
        assert!(message.contains(expected), "{message}");
    };
    check(&|c| c.embedding = 0, "embedding: found 0");
    check(&|c| c.readout = 0, "readout: found 0");
    check(&|c| c.hidden = 0, "hidden: found 0");
    check(
        &|c| c.hidden = 7,
        "hidden: found 7; expected an even number",
    );
    check(&|c| c.layers = 0, "layers: found 0");
    check(
        &|c| c.attention_dimension = 0,
        "attention_dimension: found 0",
    );
    check(&|c| c.hops = 0, "hops: found 0");
    check(
        &|c| c.layers = 2000,
        "layers: found 2000; expected 1 to 1024",
    );
    // Counted before a number is drawn: these would be some terabytes.
    check(
        &|c| (c.hidden, c.attention_dimension) = (1 << 20, 1 << 20),
        "weights; expected at most 1073741824",
    );
    check(
        &|c| c.normalizer = NormalizerConfig::HardReinforce(ReinforceConfig::default()),
        "normalizer: found \"hard-reinforce\"; expected \"hard-straight-through\"",
    );
    check(
        &|c| c.normalizer = NormalizerConfig::Addressing(AddressingConfig::default()),
        "normalizer: found \"addressing\"; expected one that looks at scores alone",
    );
}

/// Former files held sizes beside choices, the encoder in a table of its own, and dropout key by key.
#[test]
fn what_files_once_said_is_still_read() {
    let former = serde_json::json!({
        "vocabulary": 300, "classes": 3, "embedding": 20,
        "encoder": { "kind": "self-attentive", "hidden": 12, "layers": 2, "attention": 7, "hops": 5, "penalty": 0.25 },
        "readout": 9, "word_dropout": 0.1, "embedding_dropout": 0.2, "layer_dropout": 0.3, "output_dropout": 0.4,
    });
    let described = former::classifier(&former).unwrap();
    assert_eq!(described.kind, "self-attentive");
    let sizes: ClassifierSizes = serde_json::from_value(described.sizes).unwrap();
    assert_eq!((sizes.vocabulary, sizes.classes), (Vocabulary::new(300), 3));
    let config: SelfAttentiveConfig = serde_json::from_value(described.config).unwrap();
    let expected = SelfAttentiveConfig {
        embedding: 20,
        hidden: 12,
        layers: 2,
        attention_dimension: 7,
        hops: 5,
        normalizer: NormalizerConfig::Softmax,
        penalty: 0.25,
        readout: 9,
        dropout: SentenceDropout {
            word: 0.1,
            embedding: 0.2,
            layers: 0.3,
            output: 0.4,
        },
    };
    assert_eq!(config, expected);
    for encoder in ["lstmn", "lstm"] {
        let mut former = former.clone();
        former["encoder"] = serde_json::json!({ "kind": encoder, "hidden": 12, "layers": 1 });
        assert_eq!(former::classifier(&former).unwrap().kind, encoder);
    }
}
