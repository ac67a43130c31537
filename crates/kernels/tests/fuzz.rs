//! The first cases of the fuzzer (`fuzz/main.rs`): valid calls compute the right result, damaged ones are
//! refused by name.

#[path = "../fuzz/additive.rs"]
mod additive;
#[path = "../fuzz/batch_norm.rs"]
mod batch_norm;
#[path = "../fuzz/bounds.rs"]
mod bounds;
#[path = "../fuzz/check.rs"]
mod check;
#[path = "../fuzz/convolution.rs"]
mod convolution;
#[path = "../fuzz/damage.rs"]
mod damage;
#[path = "../fuzz/dice.rs"]
mod dice;
#[path = "../fuzz/pool.rs"]
mod pool;
#[path = "../fuzz/problem.rs"]
mod problem;
#[path = "../fuzz/rotary.rs"]
mod rotary;
#[path = "../fuzz/stored.rs"]
mod stored;

#[test]
fn random_calls() {
    let (mut refused, mut compared) = (0, 0);
    for seed in 0..20_000 {
        match check::case(seed) {
            Ok(verdict) => {
                refused += usize::from(verdict.what == "refused by name");
                compared += usize::from(verdict.compared);
            }
            Err(message) => panic!("seed {seed}: {message}"),
        }
    }
    assert!(
        refused > 2000 && compared > 2000,
        "{refused} refused, {compared} compared"
    );
}
