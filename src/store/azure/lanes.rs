//! MD5 of eight messages of one length at once, each in a lane of AVX2's vectors. The names are those of RFC 1321.

use std::{
    arch::x86_64::{
        __m256i, _mm256_add_epi32, _mm256_and_si256, _mm256_extract_epi32, _mm256_loadu_si256, _mm256_or_si256,
        _mm256_permute2x128_si256, _mm256_set1_epi32, _mm256_setzero_si256, _mm256_slli_epi32, _mm256_srli_epi32,
        _mm256_unpackhi_epi32, _mm256_unpackhi_epi64, _mm256_unpacklo_epi32, _mm256_unpacklo_epi64, _mm256_xor_si256,
    },
    array,
};

use super::sums::LANES;

const BLOCK: usize = 64;

#[target_feature(enable = "avx2")]
pub fn md5(messages: &[&[u8]; LANES]) -> [[u8; 16]; LANES] {
    let length = messages[0].len();
    let whole = length - length % BLOCK;
    let mut state = [0x6745_2301_u32, 0xefcd_ab89, 0x98ba_dcfe, 0x1032_5476].map(|word| _mm256_set1_epi32(word as i32));
    compress(&mut state, &messages.map(|message| &message[..whole]));
    let ends = messages.map(|message| end(&message[whole..], length));
    compress(&mut state, &array::from_fn(|lane| &ends[lane][..]));
    let words = state.map(|word| lanes(word));
    array::from_fn(|lane| {
        let mut sum = [0; 16];
        sum.as_chunks_mut().0.iter_mut().zip(words).for_each(|(bytes, word)| *bytes = word[lane].to_le_bytes());
        sum
    })
}

/// The end of a message after its whole blocks: the rest, a one, zeros, and the length in bits.
fn end(rest: &[u8], length: usize) -> Vec<u8> {
    let mut end = rest.to_vec();
    end.push(0x80);
    end.resize((end.len() + 8).next_multiple_of(BLOCK) - 8, 0);
    end.extend((length as u64 * 8).to_le_bytes());
    end
}

#[target_feature(enable = "avx2")]
fn lanes(word: __m256i) -> [i32; LANES] {
    [
        _mm256_extract_epi32::<0>(word),
        _mm256_extract_epi32::<1>(word),
        _mm256_extract_epi32::<2>(word),
        _mm256_extract_epi32::<3>(word),
        _mm256_extract_epi32::<4>(word),
        _mm256_extract_epi32::<5>(word),
        _mm256_extract_epi32::<6>(word),
        _mm256_extract_epi32::<7>(word),
    ]
}

macro_rules! step {
    ($mix:expr, $a:ident, $b:ident, $c:ident, $d:ident, $word:expr, $sine:expr, $by:literal) => {
        let mixed = _mm256_add_epi32(_mm256_add_epi32($a, _mm256_add_epi32($word, $sine)), $mix($b, $c, $d));
        let turned = _mm256_or_si256(_mm256_slli_epi32::<$by>(mixed), _mm256_srli_epi32::<{ 32 - $by }>(mixed));
        $a = _mm256_add_epi32($b, turned);
    };
}

/// 16 steps; step `i` takes the word `factor * i + first`.
macro_rules! round {
    ($number:literal, $mix:expr, [$a:ident, $b:ident, $c:ident, $d:ident], ($words:ident, $factor:literal, $first:literal), $sines:ident,
     [$by0:literal, $by1:literal, $by2:literal, $by3:literal]) => {
        for i in (0..16).step_by(4) {
            let word = |i: usize| $words[($factor * i + $first) % 16];
            let sine = |i: usize| _mm256_set1_epi32($sines[16 * $number + i] as i32);
            step!($mix, $a, $b, $c, $d, word(i), sine(i), $by0);
            step!($mix, $d, $a, $b, $c, word(i + 1), sine(i + 1), $by1);
            step!($mix, $c, $d, $a, $b, word(i + 2), sine(i + 2), $by2);
            step!($mix, $b, $c, $d, $a, word(i + 3), sine(i + 3), $by3);
        }
    };
}

#[target_feature(enable = "avx2")]
#[allow(clippy::many_single_char_names, reason = "the names of RFC 1321")]
fn compress(state: &mut [__m256i; 4], messages: &[&[u8]; LANES]) {
    let sines: [u32; 64] = array::from_fn(|step| (f64::sin(step as f64 + 1.0).abs() * 4_294_967_296.0) as u32);
    let ones = _mm256_set1_epi32(-1);
    for at in (0..messages[0].len()).step_by(BLOCK) {
        let words = words(messages, at);
        let [mut a, mut b, mut c, mut d] = *state;
        let f = |x, y, z| _mm256_xor_si256(z, _mm256_and_si256(x, _mm256_xor_si256(y, z)));
        let g = |x, y, z| f(z, x, y);
        let h = |x, y, z| _mm256_xor_si256(x, _mm256_xor_si256(y, z));
        let i = |x, y, z| _mm256_xor_si256(y, _mm256_or_si256(x, _mm256_xor_si256(z, ones)));
        round!(0, f, [a, b, c, d], (words, 1, 0), sines, [7, 12, 17, 22]);
        round!(1, g, [a, b, c, d], (words, 5, 1), sines, [5, 9, 14, 20]);
        round!(2, h, [a, b, c, d], (words, 3, 5), sines, [4, 11, 16, 23]);
        round!(3, i, [a, b, c, d], (words, 7, 0), sines, [6, 10, 15, 21]);
        for (before, word) in state.iter_mut().zip([a, b, c, d]) {
            *before = _mm256_add_epi32(*before, word);
        }
    }
}

/// The 16 words of the block at `at`, each with a lane for each message: two squares of 8 by 8 words, turned.
#[target_feature(enable = "avx2")]
fn words(messages: &[&[u8]; LANES], at: usize) -> [__m256i; 16] {
    let mut words = [_mm256_setzero_si256(); 16];
    for (half, words) in words.chunks_exact_mut(8).enumerate() {
        let from = at + 32 * half;
        let rows = messages.map(|message| load(&message[from..from + 32]));
        let (mut pairs, mut quads) = (rows, rows);
        for i in 0..4 {
            pairs[2 * i] = _mm256_unpacklo_epi32(rows[2 * i], rows[2 * i + 1]);
            pairs[2 * i + 1] = _mm256_unpackhi_epi32(rows[2 * i], rows[2 * i + 1]);
        }
        for i in [0, 1, 4, 5] {
            let to = i / 4 * 4 + i % 4 * 2;
            quads[to] = _mm256_unpacklo_epi64(pairs[i], pairs[i + 2]);
            quads[to + 1] = _mm256_unpackhi_epi64(pairs[i], pairs[i + 2]);
        }
        let (first, second) = words.split_at_mut(4);
        for (((first, second), left), right) in first.iter_mut().zip(second).zip(&quads[..4]).zip(&quads[4..]) {
            *first = _mm256_permute2x128_si256::<0x20>(*left, *right);
            *second = _mm256_permute2x128_si256::<0x31>(*left, *right);
        }
    }
    words
}

#[inline]
#[target_feature(enable = "avx2")]
fn load(bytes: &[u8]) -> __m256i {
    assert_eq!(bytes.len(), 32);
    // SAFETY: there are 32 bytes.
    unsafe { _mm256_loadu_si256(bytes.as_ptr().cast()) }
}
