//! Key/value caches return what was put in, in order, however it came.

use crate::support::{device, numbers, values};
use burn::tensor::{Tensor, TensorData};
use proptest::prelude::*;
use regard_nn::cache::{Cached, KeyValueCache};

fn drawn(name: &str, shape: [usize; 4]) -> Tensor<4> {
    let data = TensorData::new(values(name, shape.iter().product(), 1.0), shape);
    Tensor::from_data(data, &device().inner())
}

/// What a cache must give: the tokens `first..end` of the whole.
fn expect(cached: &Cached, keys: &Tensor<4>, values: &Tensor<4>, first: usize, end: usize) {
    assert_eq!(cached.first, first);
    let part = |x: &Tensor<4>| x.clone().narrow(2, first, end - first);
    assert_eq!(numbers(&cached.keys), numbers(&part(keys)));
    assert_eq!(numbers(&cached.values), numbers(&part(values)));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..Default::default() })]

    /// Chunks of any sizes, windows of any size: the cache returns the visible past, then the new tokens, in order.
    #[test]
    fn what_went_in_comes_out(
        chunks in prop::collection::vec(1usize..40, 1..12),
        window in prop::option::of(1usize..50),
        heads in 1usize..3,
    ) {
        let total: usize = chunks.iter().sum();
        let keys = drawn("keys", [2, heads, total, 3]);
        let values = drawn("values", [2, heads, total, 2]);
        let mut cache = match window {
            Some(window) => KeyValueCache::rolling(window).unwrap(),
            None => KeyValueCache::growing(),
        };
        assert_eq!(cache.window(), window);
        let mut end = 0;
        for chunk in chunks {
            let past = window.map_or(end, |window| end.min(window - 1));
            assert_eq!((cache.next_position(), cache.visible()), (end, past));
            let new = |x: &Tensor<4>| x.clone().narrow(2, end, chunk);
            let cached = cache.append(new(&keys), new(&values)).unwrap();
            expect(&cached, &keys, &values, end - past, end + chunk);
            end += chunk;
        }
    }
}

/// What an append returned does not change, whatever is appended later.
#[test]
fn what_was_given_does_not_change() {
    for mut cache in [KeyValueCache::growing(), KeyValueCache::rolling(5).unwrap()] {
        let keys = drawn("keys", [1, 1, 60, 2]);
        let mut given = vec![];
        for t in 0..60 {
            let new = keys.clone().narrow(2, t, 1);
            let cached = cache.append(new.clone(), new).unwrap();
            given.push((t, cached));
        }
        for (t, cached) in given {
            expect(&cached, &keys, &keys, cached.first, t + 1);
        }
    }
}

/// A copy is independent, as the hypotheses of a beam are.
#[test]
fn rows_are_selected_and_copies_part() {
    let keys = drawn("keys", [3, 2, 4, 2]);
    let mut cache = KeyValueCache::growing();
    cache.append(keys.clone(), keys.clone()).unwrap();
    let mut beam = cache.clone();
    beam.select(&[2, 0, 2, 1]).unwrap();
    let new = drawn("new", [4, 2, 1, 2]);
    let cached = beam.append(new.clone(), new.clone()).unwrap();
    let rows = [2, 0, 2, 1]
        .map(|row| keys.clone().narrow(0, row, 1))
        .to_vec();
    let expected = Tensor::cat(vec![Tensor::cat(rows, 0), new], 2);
    assert_eq!(numbers(&cached.keys), numbers(&expected));
    assert_eq!(cached.values.dims(), [4, 2, 5, 2]);

    let new = drawn("other", [3, 2, 1, 2]);
    let cached = cache.append(new.clone(), new.clone()).unwrap();
    assert_eq!(
        numbers(&cached.keys),
        numbers(&Tensor::cat(vec![keys, new], 2))
    );
    KeyValueCache::growing().select(&[5]).unwrap();
}

/// After a text far longer than the window, no buffer of its size remains.
#[test]
fn a_rolling_cache_stays_small() {
    let mut cache = KeyValueCache::rolling(8).unwrap();
    let long = drawn("long", [1, 1, 4000, 2]);
    cache.append(long.clone(), long).unwrap();
    let mut most = 0;
    for t in 0..200 {
        let new = drawn("new", [1, 1, 1, 2]);
        let cached = cache.append(new.clone(), new).unwrap();
        assert_eq!((cached.first, cached.keys.dims()[2]), (4000 + t - 7, 8));
        most = most.max(cache.capacity());
    }
    assert_eq!(most, 8 + 16);
}

/// Room is made as tokens come, however large the window: no more than twice what is kept, until there is room for a
/// window and a quarter.
#[test]
fn a_rolling_cache_grows_by_doubling() {
    let new = || drawn("new", [1, 1, 1, 2]);
    for window in [131_072, 1 << 40, usize::MAX] {
        let mut cache = KeyValueCache::rolling(window).unwrap();
        for t in 0..100 {
            let cached = cache.append(new(), new()).unwrap();
            assert_eq!((cached.first, cached.keys.dims()[2]), (0, t + 1));
            assert!(cache.capacity() <= (2 * t).max(16), "{}", cache.capacity());
        }
    }
    let mut cache = KeyValueCache::rolling(40).unwrap();
    let mut rooms = vec![];
    for _ in 0..200 {
        cache.append(new(), new()).unwrap();
        rooms.push(cache.capacity());
    }
    rooms.dedup();
    assert_eq!(rooms, [16, 32, 40 + 16]);
}

#[test]
fn gradients_pass_through() {
    let device = device();
    let leaf = |name: &str, length| {
        let shape = [1, 1, length, 2];
        let data = TensorData::new(values(name, 2 * length, 1.0), shape);
        Tensor::<4>::from_data(data, &device).require_grad()
    };
    let (first, second) = (leaf("first", 3), leaf("second", 1));
    let mut cache = KeyValueCache::growing();
    cache.append(first.clone(), first.clone()).unwrap();
    let cached = cache.append(second.clone(), second.clone()).unwrap();
    let gradients = (cached.keys.powi_scalar(2).sum() + cached.values.sum()).backward();
    for x in [first, second] {
        let expected = x.clone().inner() * 2.0 + 1.0;
        assert_eq!(numbers(&x.grad(&gradients).unwrap()), numbers(&expected));
    }
}

#[test]
fn refusals() {
    let error = KeyValueCache::rolling(0).unwrap_err().to_string();
    assert!(
        error.contains("`window` is 0, expected at least 1"),
        "{error}"
    );
    let mut cache = KeyValueCache::growing();
    let x = |shape| drawn("x", shape);
    for (keys, values, field) in [
        ([2, 2, 3, 4], [2, 2, 2, 4], "values"),
        ([2, 2, 3, 4], [2, 1, 3, 4], "values"),
        ([2, 2, 3, 4], [1, 2, 3, 4], "values"),
    ] {
        let error = cache.append(x(keys), x(values)).unwrap_err().to_string();
        assert!(
            error.contains(field) && error.contains(&format!("{values:?}")),
            "{error}"
        );
    }
    cache.append(x([2, 2, 3, 4]), x([2, 2, 3, 5])).unwrap();
    for (keys, values, field) in [
        ([1, 2, 1, 4], [1, 2, 1, 5], "keys"),
        ([2, 1, 1, 4], [2, 1, 1, 5], "keys"),
        ([2, 2, 1, 5], [2, 2, 1, 5], "keys"),
        ([2, 2, 1, 4], [2, 2, 1, 4], "values"),
    ] {
        let error = cache.append(x(keys), x(values)).unwrap_err().to_string();
        assert!(error.contains(&format!("`{field}`")), "{error}");
    }
    assert_eq!(
        cache.next_position(),
        3,
        "a refused append leaves the cache as it was"
    );
    let error = cache.select(&[0, 2]).unwrap_err().to_string();
    assert!(
        error.contains("`rows` is 2, expected less than 2"),
        "{error}"
    );
}
