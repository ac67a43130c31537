//! Memory for what operations compute, filled on all threads: it is far larger than the caches, and while one thread cleared it the
//! others waited, for an eighth of a training step of a vision Transformer.

use std::mem::MaybeUninit;

use rayon::prelude::*;

/// Numbers that a thread fills at once; fewer are filled by the calling thread.
const PART: usize = 1 << 16;

/// `[length]` zeros.
pub(super) fn zeros(length: usize) -> Vec<f32> {
    full(length, 0.0)
}

/// `[length]` times `number`.
pub(super) fn full(length: usize, number: f32) -> Vec<f32> {
    if length <= PART {
        return vec![number; length];
    }
    filled(length, PART, |_, part| {
        part.iter_mut().for_each(|x| {
            x.write(number);
        });
    })
}

/// A copy of `numbers`.
pub(super) fn copy(numbers: &[f32]) -> Vec<f32> {
    filled(numbers.len(), PART, |first, part| {
        part.write_copy_of_slice(&numbers[first..][..part.len()]);
    })
}

/// `[rows, width]`, every row of which is `row [width]`: the start of a product with a bias.
pub(super) fn repeat(row: &[f32], count: usize) -> Vec<f32> {
    rows(count, row.len(), |_| row)
}

/// `[count, width]`, whose row `i` is `row(i) [width]`.
pub(super) fn rows<'a>(
    count: usize,
    width: usize,
    row: impl Fn(usize) -> &'a [f32] + Sync,
) -> Vec<f32> {
    let of_row = width.max(1);
    filled(
        count * width,
        PART.next_multiple_of(of_row),
        |first, part| {
            for (index, to) in part.chunks_exact_mut(of_row).enumerate() {
                to.write_copy_of_slice(row(first / of_row + index));
            }
        },
    )
}

/// `[length]` numbers, which `write` writes.
///
/// # Safety
/// Where `write` succeeds, it has written every number.
pub(super) unsafe fn written<E>(
    length: usize,
    write: impl FnOnce(&mut [MaybeUninit<f32>]) -> Result<(), E>,
) -> Result<Vec<f32>, E> {
    let only = |[room]: [Option<&mut [_]>; 1]| write(room.unwrap_or_default());
    // SAFETY: the caller vouches for it.
    let [numbers] = unsafe { all_written([Some(length)], only) }?;
    Ok(numbers.unwrap_or_default())
}

/// [`written`] for several pieces of memory, of which those without a length are not there.
///
/// # Safety
/// Where `write` succeeds, it has written every number of every piece.
pub(super) unsafe fn all_written<E, const N: usize>(
    lengths: [Option<usize>; N],
    write: impl FnOnce([Option<&mut [MaybeUninit<f32>]>; N]) -> Result<(), E>,
) -> Result<[Option<Vec<f32>>; N], E> {
    let mut pieces = lengths.map(|length| Some((length?, Vec::with_capacity(length?))));
    write(pieces.each_mut().map(|piece| {
        let (length, numbers) = piece.as_mut()?;
        Some(&mut numbers.spare_capacity_mut()[..*length])
    }))?;
    Ok(pieces.map(|piece| {
        let (length, mut numbers) = piece?;
        // SAFETY: the capacity is at least `length`, and the caller vouches that all numbers have been written.
        unsafe { numbers.set_len(length) };
        Some(numbers)
    }))
}

/// `[length]` numbers: `fill(first, part)` writes all numbers of the part that begins with number `first`.
fn filled(
    length: usize,
    part: usize,
    fill: impl Fn(usize, &mut [MaybeUninit<f32>]) + Sync,
) -> Vec<f32> {
    let mut numbers = Vec::with_capacity(length);
    let room = &mut numbers.spare_capacity_mut()[..length];
    let parts = room.par_chunks_mut(part).enumerate();
    parts.for_each(|(index, numbers)| fill(index * part, numbers));
    // SAFETY: the capacity is at least `length`, and each of the functions above writes every number of every part.
    unsafe { numbers.set_len(length) };
    numbers
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_number_is_written() {
        for length in [0, 1, PART, PART + 1, 3 * PART - 5] {
            assert_eq!(zeros(length), vec![0.0; length]);
            assert_eq!(full(length, 2.0), vec![2.0; length]);
            let numbers: Vec<f32> = (0..length).map(|i| i as f32).collect();
            assert_eq!(copy(&numbers), numbers);
        }
        for (width, rows) in [(0, 3), (3, 0), (1, 5), (7, 20_000), (PART + 1, 3)] {
            let row: Vec<f32> = (0..width).map(|i| i as f32).collect();
            assert_eq!(repeat(&row, rows), row.repeat(rows), "{width} x {rows}");
        }
    }
}
