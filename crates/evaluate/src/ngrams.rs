//! Clipped n-gram matches of a hypothesis with its references, for all orders in one sort.
//!
//! For order `n`: `match_n = Σ_g min(count_hyp(g), max_r count_ref_r(g))` over the n-grams `g`.
//! The windows of up to `order` symbols that start at each position of all sequences are sorted
//! together; two neighbours share an n-gram exactly when their common prefix has n symbols, so
//! one walk over the sorted list counts every order. A hash table per order needs one insertion
//! for each n-gram and owns its keys; this needs no hash and no copy, and cannot collide.

/// `matches[n - 1]` for `n` in `1..=order`; the symbols are words or characters.
pub(crate) fn clipped_matches<T: Ord>(
    hypothesis: &[T],
    references: &[&[T]],
    order: usize,
) -> Vec<u64> {
    let sequences = 1 + references.len();
    let symbols = hypothesis.len()
        + references
            .iter()
            .map(|reference| reference.len())
            .sum::<usize>();
    let mut windows: Vec<(&[T], usize)> = Vec::with_capacity(symbols);
    for (sequence, symbols) in std::iter::once(hypothesis)
        .chain(references.iter().copied())
        .enumerate()
    {
        for start in 0..symbols.len() {
            windows.push((&symbols[start..symbols.len().min(start + order)], sequence));
        }
    }
    windows.sort_unstable_by(|left, right| left.0.cmp(right.0));

    let mut matches = vec![0; order];
    let mut counts = vec![0u64; order * sequences]; // [order, sequence]: of the current n-gram
    let mut finish = |counts: &mut [u64], shared: usize| {
        for (matched, counts) in matches
            .iter_mut()
            .zip(counts.chunks_exact_mut(sequences))
            .skip(shared)
        {
            let allowed = counts[1..].iter().copied().max().unwrap_or(0);
            *matched += counts[0].min(allowed);
            counts.fill(0);
        }
    };
    let mut previous: &[T] = &[];
    for &(window, sequence) in &windows {
        let shared = previous
            .iter()
            .zip(window)
            .take_while(|(left, right)| left == right)
            .count();
        finish(&mut counts, shared);
        for counts in counts.chunks_exact_mut(sequences).take(window.len()) {
            counts[sequence] += 1;
        }
        previous = window;
    }
    finish(&mut counts, 0);
    matches
}

/// Number of n-grams in a sequence of `length` symbols.
pub(crate) fn ngram_count(length: usize, order: usize) -> u64 {
    (length + 1).saturating_sub(order) as u64
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;

    fn count(symbols: &[u8], order: usize) -> HashMap<&[u8], u64> {
        let mut counts = HashMap::new();
        for window in symbols.windows(order) {
            *counts.entry(window).or_insert(0) += 1;
        }
        counts
    }

    proptest! {
        #[test]
        fn equals_counting_by_hash(
            hypothesis in proptest::collection::vec(0u8..4, 0..40),
            references in proptest::collection::vec(proptest::collection::vec(0u8..4, 0..40), 1..4),
        ) {
            let views: Vec<&[u8]> = references.iter().map(Vec::as_slice).collect();
            let matches = clipped_matches(&hypothesis, &views, 6);
            for order in 1..=6 {
                let tables: Vec<_> = views.iter().map(|reference| count(reference, order)).collect();
                let expected: u64 = count(&hypothesis, order)
                    .iter()
                    .map(|(gram, &n)| n.min(tables.iter().filter_map(|t| t.get(gram)).copied().max().unwrap_or(0)))
                    .sum();
                prop_assert_eq!(matches[order - 1], expected);
                prop_assert_eq!(ngram_count(hypothesis.len(), order), hypothesis.windows(order).count() as u64);
            }
        }
    }
}
