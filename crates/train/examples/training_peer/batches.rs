//! Random sentences of one length: all batches have the same size, so that steps can be compared.

/// Ids below this one, marks among them, are not drawn.
pub const RESERVED: u32 = 4;

/// Sentences as ids, without markers.
pub type Sentences = Vec<Vec<u32>>;

/// How many different batches there are, taken in turn.
pub const BATCHES: usize = 8;

/// The shape of a batch.
#[derive(Debug, Clone, Copy)]
pub struct Shape {
    /// Sentences.
    pub batch: usize,
    /// Positions of a sentence, one of which holds a marker.
    pub tokens: usize,
}

impl Default for Shape {
    fn default() -> Self {
        Self {
            batch: 64,
            tokens: 20,
        }
    }
}

/// Source and target sentences beyond the reserved ids, from a fixed seed.
pub fn batches(shape: Shape, source: usize, target: usize) -> Vec<(Sentences, Sentences)> {
    let mut state = 0x2545_f491_4f6c_dd1du64;
    let mut id = |vocabulary: usize| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        RESERVED + (state >> 20) as u32 % (vocabulary as u32 - RESERVED)
    };
    let mut sentences = |vocabulary| -> Sentences {
        (0..shape.batch)
            .map(|_| (1..shape.tokens).map(|_| id(vocabulary)).collect())
            .collect()
    };
    (0..BATCHES)
        .map(|_| (sentences(source), sentences(target)))
        .collect()
}
