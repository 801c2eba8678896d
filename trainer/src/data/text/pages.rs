//! The footer of a parquet file and the headers of its pages, read before the library does, which believes them: a page of a few
//! bytes may become two gigabytes, and a list of a few keep a processor busy for hours.

use std::fs::File;
use std::io::{self, Read, copy, sink};

use flate2::read::MultiGzDecoder;
use parquet::basic::Compression;
use parquet::file::metadata::ColumnChunkMetaData;
use parquet::file::reader::ChunkReader;

use super::thrift::{Compact, FOOTER, HEADER};

/// Bytes of the largest page: writers make pages of a megabyte, or of 100 when they write one for many rows.
const MOST_PAGE: u64 = 128 << 20;
/// No text becomes smaller by packing than this many times, ...
const MOST_PACKED: u64 = 1_000;
/// ... once it has so many bytes.
const SLACK: u64 = 16 << 20;
/// Entries of the largest dictionary; the library holds 32 bytes of each beside its page.
const MOST_ENTRIES: i64 = 4 << 20;
/// A byte of a stream of LZ4 gives as many at most, and the library does not stop before its end.
const LZ4_RATIO: u64 = 255;
/// Bytes after the footer: its length, and the name of the format.
const TAIL: u64 = 8;
/// Those of texts: PLAIN, both names of dictionaries, and two of differences.
const ENCODINGS: [i64; 5] = [0, 2, 6, 7, 8];

/// Fails with the error in the pages of a column in one row group of `file`.
pub fn check(file: &File, chunk: &ColumnChunkMetaData) -> Result<(), String> {
    let first = chunk.dictionary_page_offset().unwrap_or(chunk.data_page_offset());
    let [mut at, bytes] = [first, chunk.compressed_size()].map(|place| u64::try_from(place).unwrap_or(u64::MAX));
    let length = file.metadata().map_err(|error| error.to_string())?.len();
    let end = at.checked_add(bytes).filter(|end| *end <= length).ok_or("its pages do not lie in the file")?;
    while at < end {
        let unreadable = |error: io::Error| format!("the page at byte {at}: {error}");
        let (header, body) = Header::read(file, at, end).map_err(unreadable)?;
        header.fits(chunk.compression(), end - body).map_err(|reason| format!("the page at byte {at} {reason}"))?;
        if matches!(chunk.compression(), Compression::GZIP(_)) && header.is_packed {
            header.fits_gzip(file, body).map_err(unreadable)?;
        }
        at = body + header.packed;
    }
    Ok(())
}

/// Fails with the error in the footer of `file`. The library skips lists that it does not know, and in one of truth values it goes
/// through as many as the list says it has without reading a byte. The format has none of those. And it reads a field that it knows
/// as the kind that it knows, whatever kind the file says: where the two differ, it reads other fields than are looked at here.
pub fn check_footer(file: &File) -> Result<(), String> {
    let unreadable = |error: io::Error| format!("its footer: {error}");
    let length = file.metadata().map_err(unreadable)?.len();
    // The library says what is wrong with a file that does not end so.
    let Some(end) = length.checked_sub(TAIL) else { return Ok(()) };
    let mut tail = [0; 4];
    file.get_read(end).and_then(|mut from| Ok(from.read_exact(&mut tail)?)).map_err(|error| error.to_string())?;
    let Some(start) = end.checked_sub(u32::from_le_bytes(tail).into()) else { return Ok(()) };
    let from = file.get_read(start).map_err(|error| error.to_string())?;
    Compact { from: from.take(end - start) }.structure(FOOTER, &mut Vec::new(), &mut |_, _| {}).map_err(unreadable)
}

/// The numbers of a page's header that decide over memory.
#[derive(Default)]
struct Header {
    /// Bytes of the page in memory, and in the file.
    unpacked: u64,
    packed: u64,
    /// Bytes at the beginning of both that are never packed.
    levels: u64,
    is_packed: bool,
    entries: i64,
    encoding: i64,
}

impl Header {
    /// The header at `at`, and where it ends.
    fn read(file: &File, at: u64, end: u64) -> io::Result<(Self, u64)> {
        let from = file.get_read(at).map_err(io::Error::other)?;
        let mut compact = Compact { from: from.take(end - at) };
        let mut header = Self { is_packed: true, ..Self::default() };
        let size = |number: i64| u64::try_from(number).unwrap_or(u64::MAX);
        // Numbers of PageHeader in the format's own description.
        compact.structure(HEADER, &mut Vec::new(), &mut |path, number| match path {
            [2] => header.unpacked = size(number),
            [3] => header.packed = size(number),
            [5, 2] | [8, 4] => header.encoding = number,
            [7, 1] => header.entries = number,
            [8, 5 | 6] => header.levels = header.levels.saturating_add(size(number)),
            [8, 7] => header.is_packed = number != 0,
            _ => {}
        })?;
        Ok((header, end - compact.from.limit()))
    }

    fn fits(&self, compression: Compression, room: u64) -> Result<(), String> {
        let most = match compression {
            Compression::UNCOMPRESSED => u64::MAX,
            Compression::LZ4 if self.packed > 2 * MOST_PAGE / LZ4_RATIO => 0,
            _ => SLACK.saturating_add(self.packed.saturating_mul(MOST_PACKED)),
        };
        let bytes = self.unpacked.max(self.packed);
        match () {
            () if self.packed > room => Err("ends after its column".to_owned()),
            () if bytes > most.min(MOST_PAGE) => {
                Err(format!("has {} bytes and unpacks to {}, which is too much", self.packed, self.unpacked))
            }
            () if !(0..=MOST_ENTRIES).contains(&self.entries) => Err(format!("is a dictionary of {} entries", self.entries)),
            () if self.levels > self.packed.min(self.unpacked) => Err("has more levels than bytes".to_owned()),
            () if !ENCODINGS.contains(&self.encoding) => Err(format!("has encoding {}, which is none of texts", self.encoding)),
            () => Ok(()),
        }
    }

    /// The library looks at the length of such a page when it is unpacked, whatever it has become.
    fn fits_gzip(&self, file: &File, body: u64) -> io::Result<()> {
        let packed = file.get_read(body + self.levels).map_err(io::Error::other)?.take(self.packed - self.levels);
        let most = self.unpacked - self.levels;
        let found = if most == 0 { 0 } else { copy(&mut MultiGzDecoder::new(packed).take(most + 1), &mut sink())? };
        if found == most { Ok(()) } else { Err(io::Error::other("it unpacks to another length than it says")) }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use flate2::write::GzEncoder;

    use super::*;

    fn file(content: &[u8]) -> File {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(content).unwrap();
        file
    }

    /// A header of a data page (V1), in the compact protocol by hand.
    fn header(unpacked: u32, packed: u32) -> Vec<u8> {
        let number = |value: u32| {
            let mut value = u64::from(value) << 1;
            let mut bytes = Vec::new();
            while value >= 0x80 {
                bytes.push(value as u8 | 0x80);
                value >>= 7;
            }
            bytes.push(value as u8);
            bytes
        };
        [&[0x15, 0][..], &[0x15], &number(unpacked), &[0x15], &number(packed), &[0x2c, 0x15, 2, 0x15, 0, 0x15, 6, 0x15, 6, 0, 0]]
            .concat()
    }

    fn read(content: &[u8]) -> io::Result<(Header, u64)> {
        Header::read(&file(content), 0, content.len() as u64)
    }

    #[test]
    fn a_list_of_a_footer_has_the_bytes_that_it_says() {
        let footer = |content: &[u8]| {
            let length = u32::try_from(content.len()).unwrap().to_le_bytes();
            check_footer(&file(&[&b"PAR1"[..], content, &length, b"PAR1"].concat()))
        };
        let most = [0xff, 0xff, 0xff, 0xff, 7];
        for (list, is_refused) in
            [(&[0x29, 2, 4][..], false), (&[0xf9], true), (&[0xf1], true), (&[0x21, 1, 1], true), (&[0x01], false)]
        {
            let most = if list[0] >> 4 == 15 { &most[..] } else { &[] };
            // Of a field that the format has not.
            let told = footer(&[&[0xd9], &list[..1], most, &list[1..], &[0]].concat());
            assert_eq!(told.is_err(), is_refused, "{list:?}: {told:?}");
        }
        assert!(footer(&[0xdc; 64]).is_err() && footer(&[0xd9; 64]).is_err(), "structures and lists without end");
        assert!(footer(&[0x15, 2, 0x19, 0x0c, 0]).is_ok() && footer(&[0x18, 0, 0]).is_err(), "a version is a number");
        assert!(footer(&[0xdb, 1, 0x11, 0]).is_err(), "a map, which the format has not");
        assert_eq!(check_footer(&file(b"PAR1")), Ok(()), "the library says what that is");
    }

    #[test]
    fn a_header_is_read_to_its_end() {
        let bytes = header(300, 70_000);
        let (header, end) = read(&[&bytes[..], b"page"].concat()).unwrap();
        assert_eq!((header.unpacked, header.packed, end), (300, 70_000, bytes.len() as u64));
        for length in 0..bytes.len() {
            assert!(read(&bytes[..length]).is_err(), "{length}");
        }
        for place in 0..bytes.len() {
            for byte in 0..=u8::MAX {
                let mut changed = bytes.clone();
                changed[place] = byte;
                // Whatever it says: it is read, or refused.
                let _ = read(&changed).map(|(header, _)| header.fits(Compression::SNAPPY, 4));
            }
        }
        assert!(read(&[0x1c; 64]).is_err(), "structures without end");
    }

    #[test]
    fn a_page_is_held_against_its_bytes() {
        let fits = |unpacked, packed, compression| read(&header(unpacked, packed)).unwrap().0.fits(compression, 1 << 30);
        let zstd = Compression::ZSTD(parquet::basic::ZstdLevel::default());
        assert_eq!(fits(100 << 20, 1 << 20, zstd), Ok(()), "a page of many rows");
        assert_eq!(fits(10 << 20, 10, zstd), Ok(()), "a small page of one letter");
        assert!(fits(100 << 20, 10_000, zstd).unwrap_err().contains("which is too much"));
        assert!(fits(u32::MAX >> 1, 8 << 20, zstd).unwrap_err().contains("which is too much"));
        assert!(fits(10, 129 << 20, Compression::UNCOMPRESSED).unwrap_err().contains("which is too much"));
        assert!(fits(5 << 20, 2 << 20, Compression::LZ4).unwrap_err().contains("which is too much"));
        assert!(read(&header(10, 10)).unwrap().0.fits(zstd, 9).unwrap_err().contains("ends after"));
    }

    #[test]
    fn a_page_of_gzip_is_as_long_as_it_says() {
        let mut encoder = GzEncoder::new(Vec::new(), flate2::Compression::default());
        encoder.write_all(&vec![b'a'; 1 << 20]).unwrap();
        let packed = encoder.finish().unwrap();
        let check = |says: u64| {
            let header = Header { unpacked: says, packed: packed.len() as u64, is_packed: true, ..Header::default() };
            header.fits_gzip(&file(&packed), 0).is_ok()
        };
        assert!(check(1 << 20) && !check((1 << 20) - 1) && !check((1 << 20) + 1) && !check(10));
    }
}
