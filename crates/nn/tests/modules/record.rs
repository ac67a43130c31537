//! What mechanisms report of their steps.

use std::panic::{AssertUnwindSafe, catch_unwind};

use burn::tensor::{Device, Tensor, TensorData};
use regard_nn::{
    Attention, AttentionOptions, Observe, Path,
    mask::Mask,
    normalize::Normalize,
    record::{recorded, report},
    score::Score,
};

use crate::support::{numbers, values};

fn input(name: &str) -> Tensor<4> {
    let values = values(name, 2 * 3 * 5 * 4, 1.0);
    Tensor::from_data(TensorData::new(values, [2, 3, 5, 4]), &Device::flex())
}

fn read(attention: &Attention) -> Vec<f32> {
    let options = AttentionOptions::new(Observe::Weights).path(Path::Plain);
    let attended = attention.forward_with(input("q"), input("k"), input("v"), options);
    let attended = attended.unwrap();
    let weights = attended.weights.unwrap();
    [numbers(&attended.context), numbers(&weights)].concat()
}

#[test]
fn a_record_changes_no_number_and_holds_those_that_are_given() {
    for normalize in [Normalize::softmax(), Normalize::entmax15()] {
        let attention = Attention::new(Score::scaled_dot())
            .with_mask(Mask::causal())
            .with_normalize(normalize)
            .with_softcap(2.0);
        let alone = read(&attention);
        let (given, record) = recorded(|| read(&attention));
        assert_eq!(given, alone);
        let reported = |name| record.rows(name).concat();
        let both: Vec<f64> = ["context", "weights"]
            .into_iter()
            .flat_map(reported)
            .collect();
        assert_eq!(
            both,
            alone.iter().map(|&x| f64::from(x)).collect::<Vec<_>>()
        );
        let capped: Vec<f64> = reported("capped scores");
        for (score, capped) in reported("scores").iter().zip(capped) {
            assert!((2.0 * (score / 2.0).tanh() - capped).abs() < 1e-6);
        }
        let seen = record.get("seen").next().unwrap();
        assert_eq!(
            seen.num_elements(),
            5 * 5,
            "one mask for all sentences and heads"
        );
        assert!(record.rows("whatever").is_empty());
    }
}

#[test]
fn a_recording_ends_with_its_work() {
    let one = |name| report(name, || Tensor::<1>::ones([1], &Device::flex()));
    let names =
        |record: &regard_nn::record::Record| ["a", "b", "c"].map(|name| record.rows(name).len());
    let (inner, outer) = recorded(|| {
        one("a");
        let (_, inner) = recorded(|| one("b"));
        one("c");
        one("c");
        inner
    });
    assert_eq!((names(&inner), names(&outer)), ([0, 1, 0], [1, 0, 2]));
    // A panic ends the recording too, and without a recording nothing is computed.
    let panicked = catch_unwind(AssertUnwindSafe(|| recorded(|| panic!("within"))));
    assert!(panicked.is_err());
    report("a", || -> Tensor<1> { unreachable!("nobody records") });
}
