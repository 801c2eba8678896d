//! Thrift's compact protocol, in which a parquet file has its footer and the headers of its pages.

use std::fs::File;
use std::io::{self, BufReader, ErrorKind, Read, Take, copy, sink};

use self::Kind::{Byte, Bytes, Fields, List, Number, Truth};

/// The kinds of values in the format's own description (parquet.thrift), as far as footers and headers have them.
pub enum Kind {
    Truth,
    Byte,
    Number,
    Bytes,
    List(&'static Kind),
    Fields(&'static [Field]),
}

/// A field of a structure by its number.
pub type Field = (i16, Kind);

pub const HEADER: &[Field] = &[
    (1, Number),
    (2, Number),
    (3, Number),
    (4, Number),
    (5, Fields(&[(1, Number), (2, Number), (3, Number), (4, Number), (5, Fields(STATISTICS))])),
    (6, Fields(&[])),
    (7, Fields(&[(1, Number), (2, Number), (3, Truth)])),
    (8, Fields(DATA_V2)),
];
const DATA_V2: &[Field] =
    &[(1, Number), (2, Number), (3, Number), (4, Number), (5, Number), (6, Number), (7, Truth), (8, Fields(STATISTICS))];
pub const FOOTER: &[Field] = &[
    (1, Number),
    (2, List(&Fields(ELEMENT))),
    (3, Number),
    (4, List(&Fields(GROUP))),
    (5, List(&Fields(PAIR))),
    (6, Bytes),
    (7, List(&Fields(&[]))),
    (8, Fields(&[])),
    (9, Bytes),
];
const ELEMENT: &[Field] = &[
    (1, Number),
    (2, Number),
    (3, Number),
    (4, Bytes),
    (5, Number),
    (6, Number),
    (7, Number),
    (8, Number),
    (9, Number),
    (10, Fields(LOGICAL)),
];
const LOGICAL: &[Field] =
    &[(5, Fields(&[(1, Number), (2, Number)])), (7, Fields(TIME)), (8, Fields(TIME)), (10, Fields(&[(1, Byte), (2, Truth)]))];
const TIME: &[Field] = &[(1, Truth), (2, Fields(&[]))];
const GROUP: &[Field] = &[
    (1, List(&Fields(CHUNK))),
    (2, Number),
    (3, Number),
    (4, List(&Fields(&[(1, Number), (2, Truth), (3, Truth)]))),
    (5, Number),
    (6, Number),
    (7, Number),
];
const CHUNK: &[Field] = &[
    (1, Bytes),
    (2, Number),
    (3, Fields(COLUMN)),
    (4, Number),
    (5, Number),
    (6, Number),
    (7, Number),
    (8, Fields(&[])),
    (9, Bytes),
];
const COLUMN: &[Field] = &[
    (1, Number),
    (2, List(&Number)),
    (3, List(&Bytes)),
    (4, Number),
    (5, Number),
    (6, Number),
    (7, Number),
    (8, List(&Fields(PAIR))),
    (9, Number),
    (10, Number),
    (11, Number),
    (12, Fields(STATISTICS)),
    (13, List(&Fields(&[(1, Number), (2, Number), (3, Number)]))),
    (14, Number),
    (15, Number),
    (16, Fields(&[(1, Number), (2, List(&Number)), (3, List(&Number))])),
];
const PAIR: &[Field] = &[(1, Bytes), (2, Bytes)];
const STATISTICS: &[Field] = &[(1, Bytes), (2, Bytes), (3, Number), (4, Number), (5, Bytes), (6, Bytes), (7, Truth), (8, Truth)];

/// Thrift's compact protocol, as far as footers and headers of pages use it.
pub struct Compact {
    pub from: Take<BufReader<File>>,
}

/// Structures and lists within each other; a footer has nine.
const DEEPEST: usize = 16;

fn malformed() -> io::Error {
    io::Error::new(ErrorKind::InvalidData, "it is malformed")
}

impl Compact {
    /// Tells each number with the path of field numbers that leads to it.
    pub fn structure(&mut self, fields: &[Field], path: &mut Vec<i16>, tell: &mut dyn FnMut(&[i16], i64)) -> io::Result<()> {
        let mut field = 0_i16;
        loop {
            let head = self.byte()?;
            if head == 0 {
                return Ok(());
            }
            field = match head >> 4 {
                0 => i16::try_from(self.number()?).map_err(|_| malformed())?,
                step => field.wrapping_add(i16::from(step)),
            };
            let known = fields.iter().find(|(number, _)| *number == field).map(|(_, kind)| kind);
            self.value(head & 0xf, known, (path, field), tell)?;
        }
    }

    /// Goes through a value, which must be of the kind that is known of it.
    fn value(
        &mut self,
        kind: u8,
        known: Option<&Kind>,
        (path, field): (&mut Vec<i16>, i16),
        tell: &mut dyn FnMut(&[i16], i64),
    ) -> io::Result<()> {
        if path.len() >= DEEPEST {
            return Err(malformed());
        }
        path.push(field);
        match (kind, known) {
            (1 | 2, None | Some(Truth)) => tell(path, i64::from(kind == 1)),
            (3, None | Some(Byte)) => drop(self.byte()?),
            (4..=6, None | Some(Number)) => tell(path, self.number()?),
            (7, None) => self.skip(8)?,
            (8, None | Some(Bytes)) => {
                let length = self.varint()?;
                self.skip(length)?;
            }
            (9 | 10, None | Some(List(_))) => {
                let inner = known.and_then(|known| if let List(inner) = known { Some(*inner) } else { None });
                let head = self.byte()?;
                let (count, kind) = (if head >> 4 == 15 { self.varint()? } else { u64::from(head >> 4) }, head & 0xf);
                if count > 0 && kind <= 2 {
                    return Err(malformed());
                }
                (0..count).try_for_each(|_| self.value(kind, inner, (&mut *path, 0), tell))?;
            }
            (12, None) => self.structure(&[], path, tell)?,
            (12, Some(Fields(fields))) => self.structure(fields, path, tell)?,
            _ => return Err(malformed()),
        }
        path.pop();
        Ok(())
    }

    fn byte(&mut self) -> io::Result<u8> {
        let mut byte = [0];
        self.from.read_exact(&mut byte)?;
        Ok(byte[0])
    }

    fn varint(&mut self) -> io::Result<u64> {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            value |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err(io::Error::new(ErrorKind::InvalidData, "a number in it does not end"))
    }

    /// Positive and negative numbers take turns.
    fn number(&mut self) -> io::Result<i64> {
        let value = self.varint()?;
        Ok((value >> 1) as i64 ^ -((value & 1) as i64))
    }

    fn skip(&mut self, bytes: u64) -> io::Result<()> {
        let skipped = copy(&mut self.from.by_ref().take(bytes), &mut sink())?;
        if skipped == bytes { Ok(()) } else { Err(ErrorKind::UnexpectedEof.into()) }
    }
}
