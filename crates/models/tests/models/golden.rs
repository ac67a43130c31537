//! Logits, weights, loss and gradients of every architecture against PyTorch:
//! `../golden/*_golden.py` and their output.
//!
//! The script computes sentence by sentence; here they run as one padded batch.

use crate::support::{GoldenFile, device};
use burn::tensor::{Bool, Tensor};
use regard_models::{
    AnyGenerator, GnmtConfig, LstmnTranslationConfig, LuongConfig, ModelConfig, RnnSearchConfig,
    Seq2SeqConfig, SourceBatch, TargetBatch, TransformerConfig, Vocabularies, former,
};
use regard_nn::{bridge::cross_entropy_mean, dropout::DropoutRng, initialize::Initializer};

const MODELS: &[u8] = include_bytes!("../golden/models.safetensors");
const GNMT: &[u8] = include_bytes!("../golden/gnmt.safetensors");
const LSTMN: &[u8] = include_bytes!("../golden/lstmn.safetensors");
const TRANSFORMER: &[u8] = include_bytes!("../golden/transformer.safetensors");

/// The files describe their models in the form of older model files.
fn check<C: ModelConfig<Role = AnyGenerator>>(golden: &[u8], kind: &str, expected_cases: usize)
where
    AnyGenerator: From<C::Model>,
{
    let golden = GoldenFile::read(golden);
    let cases = golden.cases(kind);
    assert_eq!(cases.len(), expected_cases);
    let device = device();
    let marks = Vocabularies::new(9, 8);
    let sources = [vec![5, 7, 4, 8], vec![6], vec![8, 5, 5]];
    let source = SourceBatch::new(&sources, &marks.source, &device);
    let targets = [vec![4, 6], vec![7, 5, 6, 4], vec![5]];
    let target = TargetBatch::new(&targets, &marks.target, &device);
    let [steps, batch] = target.inputs.dims();
    let padded: Tensor<2, Bool> = target
        .outputs
        .clone()
        .equal_elem(marks.target.padding as i32)
        .reshape([steps, batch]);
    for mut case in cases {
        let described = former::generator(&case.description["config"]).unwrap();
        let vocabularies: Vocabularies = serde_json::from_value(described.sizes).unwrap();
        let config: C = serde_json::from_value(described.config).unwrap();
        // Drawn unchecked: location scores with local attention are computed, though no recipe may ask for them.
        let model = config.draw(&vocabularies, &mut Initializer::new(1, &device));
        let model = case.fill(AnyGenerator::from(model.unwrap()));
        let scored = model.forward(&source, &target, &mut DropoutRng::none());

        let vocabulary = vocabularies.target.size;
        let logits: Tensor<3> = scored.logits().reshape([steps, batch, vocabulary]);
        let hidden = padded.clone().unsqueeze_dim::<3>(2).expand(logits.dims());
        case.output("logits", &logits.mask_fill(hidden, 0.0));
        if let Some(weights) = &scored.weights {
            let hidden = padded.clone().swap_dims(0, 1).unsqueeze_dim::<3>(2);
            let hidden = hidden.expand(weights.dims());
            case.output("weights", &weights.clone().mask_fill(hidden, 0.0));
        }

        let outputs = target.outputs.clone();
        let whole = cross_entropy_mean(
            scored.logits(),
            outputs.clone(),
            marks.target.padding as usize,
            0.1,
        );
        let result = scored.cross_entropy(outputs, 0.1);
        let apart = (whole.nll - result.nll).abs();
        assert!(apart <= 1e-5 * whole.nll, "{apart}");
        assert_eq!(result.tokens, target.tokens);
        case.output("loss", &result.loss);
        case.output(
            "nll",
            &Tensor::<1>::from_floats([result.nll as f32], &device),
        );
        let gradients = result.loss.backward();
        case.gradients(&model, &gradients);
        case.close();
    }
}

#[test]
fn rnnsearch() {
    check::<RnnSearchConfig>(MODELS, "rnnsearch", 3);
}

#[test]
fn luong() {
    check::<LuongConfig>(MODELS, "luong", 31);
}

#[test]
fn seq2seq() {
    check::<Seq2SeqConfig>(MODELS, "seq2seq", 6);
}

#[test]
fn gnmt() {
    check::<GnmtConfig>(GNMT, "gnmt", 6);
}

#[test]
fn lstmn() {
    check::<LstmnTranslationConfig>(LSTMN, "lstmn-translation", 4);
}

#[test]
fn transformer() {
    check::<TransformerConfig>(TRANSFORMER, "transformer", 7);
}
