//! Classifiers: what stands in the padding plays no part, every weight learns, bad sizes are refused.

use burn::tensor::{Device, Tensor};
use regard_models::{
    Classified, Classifier, ClassifierConfig, SourceBatch, classifier::EncoderConfig,
};
use regard_nn::{dropout::Noise, weights};

use crate::support;

fn configurations() -> [ClassifierConfig; 4] {
    let tiny = ClassifierConfig::tiny;
    let with = |encoder| ClassifierConfig { encoder, ..tiny() };
    let (hidden, attention) = (6, 5);
    [
        tiny(),
        with(EncoderConfig::Lstmn {
            hidden,
            layers: 2,
            attention,
        }),
        with(EncoderConfig::Lstm {
            hidden,
            layers: 2,
            bidirectional: true,
        }),
        with(EncoderConfig::SelfAttentive {
            hidden,
            layers: 1,
            attention,
            hops: 3,
            penalty: 0.5,
        }),
    ]
}

fn numbers<const D: usize>(tensor: Tensor<D>) -> Vec<f32> {
    tensor.into_data().iter().collect()
}

fn forward(model: &Classifier, sentences: &[Vec<u32>], device: &Device) -> Classified {
    model.forward(&SourceBatch::new(sentences, device), &mut Noise::none())
}

#[test]
fn a_sentence_in_a_batch_is_the_sentence_alone() {
    let device = Device::flex();
    let sentences = [vec![5, 6, 7, 8, 9], vec![10], vec![4, 11, 12]];
    for config in configurations() {
        let model = config.init(3, &device).unwrap();
        let together = forward(&model, &sentences, &device);
        for (row, sentence) in sentences.iter().enumerate() {
            let alone = forward(&model, std::slice::from_ref(sentence), &device);
            let here = together.logits.clone().narrow(0, row, 1);
            let error = numbers((here - alone.logits).abs().max())[0];
            // A few dozen additions of numbers of size 1.
            assert!(error < 4e-6, "{}: {error}", config.name());
            for (map, own) in together.maps.iter().zip(&alone.maps) {
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
    for config in configurations() {
        // Of a handful of rectified units all may be silent at first; of so many, some are not.
        let config = ClassifierConfig {
            readout: 32,
            ..config
        };
        let model = config.init(3, &device).unwrap();
        let sentences = [vec![5, 6, 7, 8, 9], vec![10, 4, 3], vec![4, 11, 12, 13]];
        let classified = forward(&model, &sentences, &device);
        let penalty = classified.penalty;
        assert_eq!(penalty.is_some(), config.name() == "self-attentive");
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
            assert!(largest > 0.0, "{}: {name} learns nothing", config.name());
            assert!(array.values.iter().all(|g| g.is_finite()), "{name}");
        }
    }
}

#[test]
fn dropout_is_replayed_by_its_seed_and_changes_something() {
    let device = Device::flex();
    let config = ClassifierConfig {
        word_dropout: 0.2,
        embedding_dropout: 0.3,
        layer_dropout: 0.3,
        output_dropout: 0.3,
        ..configurations()[1].clone()
    };
    let model = config.init(3, &device).unwrap();
    let batch = SourceBatch::new(&[vec![5, 6, 7, 8], vec![9, 10]], &device);
    let run = |mut noise: Noise| numbers(model.forward(&batch, &mut noise).logits);
    assert_eq!(run(Noise::seeded(1)), run(Noise::seeded(1)));
    assert_ne!(run(Noise::seeded(1)), run(Noise::seeded(2)));
    assert_ne!(run(Noise::seeded(1)), run(Noise::none()));
}

#[test]
fn sizes_that_no_classifier_can_have() {
    let refused = |change: &dyn Fn(&mut ClassifierConfig)| {
        let mut config = configurations()[3].clone();
        change(&mut config);
        config.init(1, &Device::flex()).unwrap_err().to_string()
    };
    assert!(refused(&|c| c.classes = 1).contains("number of classes is 1; expected at least 2"));
    assert!(refused(&|c| c.embedding = 0).contains("embedding is 0"));
    assert!(refused(&|c| c.readout = 0).contains("readout is 0"));
    let encoder = |hidden, layers, attention, hops| EncoderConfig::SelfAttentive {
        hidden,
        layers,
        attention,
        hops,
        penalty: 0.0,
    };
    for (encoder, expected) in [
        (encoder(0, 1, 5, 3), "hidden is 0"),
        (encoder(7, 1, 5, 3), "hidden is 7, expected an even number"),
        (encoder(6, 0, 5, 3), "layers is 0"),
        (encoder(6, 1, 0, 3), "attention size is 0"),
        (encoder(6, 1, 5, 0), "hops is 0"),
    ] {
        let message = refused(&|c| c.encoder = encoder.clone());
        assert!(message.contains(expected), "{message}");
    }
}
