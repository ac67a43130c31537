//! Bits of a square of bytes.

/// For each column `j`, bit `i` is set where byte `(i, j)` is not 0.
#[inline(always)]
pub(crate) fn column_bits(square: &[[u8; 16]; 16]) -> [u16; 16] {
    #[cfg(target_arch = "x86_64")]
    {
        x86::column_bits(square)
    }
    #[cfg(not(target_arch = "x86_64"))]
    {
        portable(square)
    }
}

#[cfg(any(test, not(target_arch = "x86_64")))]
fn portable(square: &[[u8; 16]; 16]) -> [u16; 16] {
    std::array::from_fn(|j| (0..16).fold(0, |bits, i| bits | u16::from(square[i][j] != 0) << i))
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::*;

    /// With SSE2, which every x86-64 machine has: the square is transposed by four rounds of
    /// interleaving row `i` with row `i + 8`, then the bits of each row are taken by one instruction.
    #[inline(always)]
    pub(super) fn column_bits(square: &[[u8; 16]; 16]) -> [u16; 16] {
        // SAFETY: SSE2 is part of x86-64; loads and stores are of arrays of 16 bytes.
        unsafe {
            let mut rows = [_mm_setzero_si128(); 16];
            for (row, bytes) in rows.iter_mut().zip(square) {
                *row = _mm_loadu_si128(bytes.as_ptr().cast());
            }
            for _ in 0..4 {
                let mut next = rows;
                for i in 0..8 {
                    next[2 * i] = _mm_unpacklo_epi8(rows[i], rows[i + 8]);
                    next[2 * i + 1] = _mm_unpackhi_epi8(rows[i], rows[i + 8]);
                }
                rows = next;
            }
            let mut bits = [0u16; 16];
            for (bits, row) in bits.iter_mut().zip(rows) {
                let zero = _mm_movemask_epi8(_mm_cmpeq_epi8(row, _mm_setzero_si128()));
                *bits = !zero as u16;
            }
            bits
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_become_bits() {
        let square: [[u8; 16]; 16] = std::array::from_fn(|i| {
            std::array::from_fn(|j| ((i * 31 + j * 17) % 5 / 2 * 64) as u8)
        });
        assert_eq!(column_bits(&square), portable(&square));
    }
}
