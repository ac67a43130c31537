//! Two processes that sum the numbers of their cards: of two cards, or of one that is told to each as another machine's.

use std::{
    env,
    process::{Child, Command, Stdio},
};

use burn::tensor::{Device, Tensor};
use regard_nn::devices::{Communicator, cards};

/// What a process that the test starts is told: its rank, and the identity of the group in hexadecimal digits.
const TOLD: &str = "REGARD_TEST_COMMUNICATOR";
const RANKS: usize = 2;

/// The CUDA card of a rank, and whether it is the only one.
fn card(rank: usize) -> Option<(Device, bool)> {
    let cards: Vec<Device> = cards()
        .into_iter()
        .filter(|(name, _)| name.starts_with("cuda"))
        .map(|(_, card)| card)
        .collect();
    let single = cards.len() == 1;
    cards
        .get(if single { 0 } else { rank })
        .cloned()
        .map(|card| (card, single))
}

#[test]
fn numbers_of_two_processes_are_summed_on_their_cards() {
    if let Ok(told) = env::var(TOLD) {
        let (rank, identity) = told.split_once(' ').expect("a rank and an identity");
        return be(rank.parse().expect("a rank"), &bytes(identity));
    }
    let Some((device, single)) = card(0) else {
        return println!("skipped: there is no card of CUDA's");
    };
    if let Err(reason) = Communicator::check(&device) {
        return println!("skipped: {reason}");
    }
    let identity: String = (Communicator::identity().unwrap().iter())
        .map(|byte| format!("{byte:02x}"))
        .collect();
    let start = |rank: usize| -> Child {
        let mut process = Command::new(env::current_exe().unwrap());
        process
            .args([
                "--exact",
                "numbers_of_two_processes_are_summed_on_their_cards",
                "--nocapture",
            ])
            .env(TOLD, format!("{rank} {identity}"))
            .stdout(Stdio::inherit());
        if single {
            // NCCL refuses two processes of a machine that have the same card.
            process
                .env("NCCL_HOSTID", rank.to_string())
                .env("NCCL_SOCKET_IFNAME", "lo");
        }
        process.spawn().unwrap()
    };
    for mut process in (0..RANKS).map(start).collect::<Vec<_>>() {
        assert!(process.wait().unwrap().success());
    }
}

/// One of the two processes.
fn be(rank: usize, identity: &[u8]) {
    let (device, _) = card(rank).expect("there was a card");
    let communicator = Communicator::join(&device, identity, rank, RANKS).unwrap();
    for length in [1, 5, 1_000_003] {
        let own = |rank: usize| (0..length).map(move |at| (at % 1000) as f32 + rank as f32 / 4.0);
        let numbers: Vec<f32> = own(rank).collect();
        // What was computed just before is waited for.
        let numbers = Tensor::<1>::from_floats(&numbers[..], &device) * 2.0;
        let sum = communicator.sum(numbers).unwrap() + 1.0;
        let sum = sum.into_data().try_into_vec::<f32>().unwrap();
        let expected = own(0).zip(own(1)).map(|(a, b)| 2.0 * a + 2.0 * b + 1.0);
        assert!(sum.into_iter().eq(expected), "{length} numbers");
    }
}

fn bytes(hexadecimal: &str) -> Vec<u8> {
    let digits = hexadecimal.as_bytes().chunks(2);
    digits
        .map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap())
        .collect()
}
