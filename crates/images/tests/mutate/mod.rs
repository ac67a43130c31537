//! Files with random damage.

use regard_images::Random;

/// One to eight changes: a bit, a byte, a run removed, doubled or filled, or the end cut off.
pub fn mutated(mut bytes: Vec<u8>, random: &mut Random) -> Vec<u8> {
    for _ in 0..1 + random.below(8) {
        if bytes.is_empty() {
            break;
        }
        let at = random.below(bytes.len());
        let end = (at + 1 + random.below(16)).min(bytes.len());
        match random.below(7) {
            0 | 1 => bytes[at] ^= 1 << random.below(8),
            2 => bytes[at] = random.below(256) as u8,
            3 => drop(bytes.drain(at..end)),
            4 => {
                let run = bytes[at..end].to_vec();
                bytes.splice(at..at, run);
            }
            5 => bytes[at..end].fill([0, 0xff][random.below(2)]),
            _ => bytes.truncate(bytes.len() - random.below(bytes.len() / 8 + 1)),
        }
    }
    bytes
}
