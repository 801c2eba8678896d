//! Lengths of the texts in a parquet file: the library takes the numbers of a page for lengths as they are, so they are looked at
//! before it does.

use parquet::basic::Encoding;
use parquet::column::page::{Page, PageMetadata, PageReader};
use parquet::errors::{ParquetError, Result};

/// Values of the fullest page: the library keeps their lengths.
const MOST_VALUES: u64 = 4 << 20;
/// Values of the largest block; writers take 128.
const LARGEST_BLOCK: u64 = 1 << 20;

/// The pages of a column, each looked at before it is handed on.
pub struct Checked {
    pub pages: Box<dyn PageReader>,
    /// Whether a value may be null, which is in front of the values.
    pub has_levels: bool,
    /// A dictionary came: the library ends the program at a page of its entries without one.
    pub has_dictionary: bool,
}

impl Iterator for Checked {
    type Item = Result<Page>;

    fn next(&mut self) -> Option<Self::Item> {
        self.get_next_page().transpose()
    }
}

impl PageReader for Checked {
    fn get_next_page(&mut self) -> Result<Option<Page>> {
        let Some(mut page) = self.pages.get_next_page()? else { return Ok(None) };
        if check(&page, self.has_levels).is_none() {
            return Err(ParquetError::General("the lengths of a page are not those of its texts".to_owned()));
        }
        self.has_dictionary |= matches!(page, Page::DictionaryPage { .. });
        if !self.has_dictionary && matches!(page.encoding(), Encoding::RLE_DICTIONARY | Encoding::PLAIN_DICTIONARY) {
            return Err(ParquetError::General("a page has entries of a dictionary that is not there".to_owned()));
        }
        if is_plain(&page) {
            end(&mut page);
        }
        Ok(Some(page))
    }

    fn peek_next_page(&mut self) -> Result<Option<PageMetadata>> {
        self.pages.peek_next_page()
    }

    fn skip_next_page(&mut self) -> Result<()> {
        self.pages.skip_next_page()
    }

    fn at_record_boundary(&mut self) -> Result<bool> {
        self.pages.at_record_boundary()
    }
}

/// `None` when the lengths are not those of the texts.
fn check(page: &Page, has_levels: bool) -> Option<()> {
    let (encoding, levels) = match page {
        Page::DataPage { encoding, .. } if !has_levels => (encoding, 0),
        Page::DataPage { encoding, buf, def_level_encoding: Encoding::RLE, .. } => (encoding, 4 + u32_at_start(buf)?),
        // A bit for each value: a column at the top has one level.
        Page::DataPage { encoding, num_values, .. } => (encoding, num_values.div_ceil(8) as usize),
        Page::DataPageV2 { encoding, def_levels_byte_len, rep_levels_byte_len, .. } => {
            (encoding, *def_levels_byte_len as usize + *rep_levels_byte_len as usize)
        }
        Page::DictionaryPage { buf, .. } => return tile(buf),
    };
    let values = || page.buffer().get(levels..);
    let most = u64::from(page.num_values()).min(MOST_VALUES);
    match encoding {
        Encoding::PLAIN => tile(values()?),
        Encoding::DELTA_LENGTH_BYTE_ARRAY => {
            let (lengths, texts) = numbers(values()?, most)?;
            fit(&lengths, texts)
        }
        Encoding::DELTA_BYTE_ARRAY => {
            let (shared, rest) = numbers(values()?, most)?;
            let (lengths, texts) = numbers(rest, most)?;
            let mut last = 0;
            let is_sound = shared.iter().zip(&lengths).all(|(shared, length)| {
                let is_there = *shared <= last;
                last = shared + length;
                is_there
            });
            fit(&lengths, texts).filter(|()| is_sound && shared.len() == lengths.len())
        }
        _ => Some(()),
    }
}

fn is_plain(page: &Page) -> bool {
    matches!(page, Page::DictionaryPage { .. }) || page.encoding() == Encoding::PLAIN
}

/// Whether lengths and texts fill these bytes in turns.
fn tile(mut bytes: &[u8]) -> Option<()> {
    while !bytes.is_empty() {
        let length = u32_at_start(bytes)?;
        bytes = bytes.get(4..)?.get(length..)?;
    }
    Some(())
}

/// Puts a length behind the last text that no text has. How many texts a page has is not known before its nulls are counted, and
/// the library panics where it looks for one more than there are.
fn end(page: &mut Page) {
    let (Page::DataPage { buf, .. } | Page::DataPageV2 { buf, .. } | Page::DictionaryPage { buf, .. }) = page;
    *buf = [&buf[..], &[0xff; 4]].concat().into();
}

fn u32_at_start(bytes: &[u8]) -> Option<usize> {
    bytes.first_chunk().map(|bytes| u32::from_le_bytes(*bytes) as usize)
}

fn fit(lengths: &[u64], texts: &[u8]) -> Option<()> {
    (lengths.iter().sum::<u64>() <= texts.len() as u64).then_some(())
}

/// Numbers from 0 to 2³¹ - 1, packed as differences, `most` at most; and the bytes after them.
fn numbers(mut data: &[u8], most: u64) -> Option<(Vec<u64>, &[u8])> {
    let [block, parts, count] = [varint(&mut data)?, varint(&mut data)?, varint(&mut data)?];
    let of_part = block.checked_div(parts)?;
    let is_sound = block <= LARGEST_BLOCK && block.is_multiple_of(128) && block.is_multiple_of(parts) && of_part.is_multiple_of(32);
    if !is_sound || block == 0 || count > most {
        return None;
    }
    let mut last = signed(varint(&mut data)?);
    let length = |number: i64| u64::try_from(i32::try_from(number).ok()?).ok();
    let mut numbers = Vec::new();
    if count > 0 {
        numbers.push(length(last)?);
    }
    let mut left = count.saturating_sub(1);
    while left > 0 {
        let smallest = signed(varint(&mut data)?);
        for width in data.split_off(..usize::try_from(parts).ok()?)?.iter().copied() {
            if left == 0 {
                break;
            }
            let packed = data.split_off(..usize::from(width) * of_part as usize / 8).filter(|_| width <= 32)?;
            for place in 0..of_part.min(left) {
                last = last.checked_add(smallest)?.checked_add(bits(packed, place * u64::from(width), width))?;
                numbers.push(length(last)?);
            }
            left -= of_part.min(left);
        }
    }
    Some((numbers, data))
}

/// A number of up to 32 bits from bit `at` on.
fn bits(packed: &[u8], at: u64, width: u8) -> i64 {
    let mut window = [0; 8];
    let bytes = packed.iter().skip((at / 8) as usize);
    window.iter_mut().zip(bytes).for_each(|(slot, byte)| *slot = *byte);
    ((u64::from_le_bytes(window) >> (at % 8)) & ((1 << width) - 1)) as i64
}

fn varint(data: &mut &[u8]) -> Option<u64> {
    let mut value = 0;
    for shift in (0..64).step_by(7) {
        let byte = data.split_off_first()?;
        value |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Some(value);
        }
    }
    None
}

/// Positive and negative numbers take turns.
fn signed(value: u64) -> i64 {
    (value >> 1) as i64 ^ -((value & 1) as i64)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 128 values in four parts, of which the first three are there: 5, and then 2 more each time.
    fn packed(count: u8) -> Vec<u8> {
        [&[0x80, 1, 4, count, 10][..], &[2, 1, 1, 1, 1], &[0xff; 12], b"rest"].concat()
    }

    #[test]
    fn differences_become_numbers() {
        let bytes = packed(65);
        let (found, rest) = numbers(&bytes, 65).unwrap();
        assert_eq!(found, (0..65).map(|number| 5 + 2 * number).collect::<Vec<_>>());
        assert_eq!(rest, [&[0xff; 4][..], b"rest"].concat(), "two parts of 32, of which the last value is in the second");
        assert_eq!(numbers(&[0x80, 1, 4, 1, 8, 7], 1).unwrap(), (vec![4], &[7][..]));
        assert_eq!(numbers(&[0x80, 1, 4, 0, 0], 0).unwrap(), (vec![], &[][..]));
    }

    #[test]
    fn a_page_of_plain_texts_ends_with_the_last_and_is_ended_for_the_library() {
        let two = b"\x03\0\0\0abc\0\0\0\0";
        assert_eq!((tile(b""), tile(two)), (Some(()), Some(())));
        for cut in (1..7).chain(8..two.len()) {
            assert_eq!(tile(&two[..cut]), None, "{cut}");
        }
        let dictionary = |buf: &[u8]| Page::DictionaryPage {
            buf: buf.to_vec().into(),
            num_values: 3,
            encoding: Encoding::PLAIN,
            is_sorted: false,
        };
        let mut page = dictionary(two);
        assert!(check(&page, false).is_some() && check(&dictionary(&two[..5]), false).is_none() && is_plain(&page));
        end(&mut page);
        assert_eq!(&page.buffer()[..], [&two[..], &[0xff; 4]].concat());
    }

    #[test]
    fn what_cannot_be_lengths_is_refused() {
        assert_eq!(numbers(&packed(65), 64), None, "more than the page has values");
        assert_eq!(numbers(&[0x80, 1, 4, 1, 7], 1), None, "negative");
        for header in [&[0, 4][..], &[0x80, 1, 0], &[1, 1], &[0x80, 1, 0x80, 1], &[0x80, 0x80, 0x80, 1, 4]] {
            assert_eq!(numbers(&[header, &[1, 8]].concat(), 1), None, "{header:?}");
        }
        for length in 0..packed(65).len() - 8 {
            assert_eq!(numbers(&packed(65)[..length], 65), None, "{length}");
        }
    }
}
