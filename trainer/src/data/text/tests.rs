mod kinds;

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parquet::basic::{Compression, Encoding, ZstdLevel};
use parquet::data_type::{ByteArray, ByteArrayType, Int32Type};
use parquet::file::properties::{EnabledStatistics, WriterProperties, WriterPropertiesBuilder, WriterVersion};
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::parser::parse_message_type;

use super::*;
use crate::data::DataError;

/// Text that a table has to quote or escape.
const ROWS: [&str; 5] = ["plain", "with, comma and \"quotes\"", "two\nlines\r\n", " édge\u{3000}漢字 ", "last"];

/// The documents of a file, put together from their parts.
fn read(path: &Path, column: Option<&str>) -> Result<Vec<String>, DataError> {
    read_as(path, &Reading { column, ..Reading::default() }).map(|(found, _)| found)
}

/// The same, and what was left out.
fn read_as(path: &Path, reading: &Reading<'_>) -> Result<(Vec<String>, Findings), DataError> {
    let mut found = vec![String::new()];
    let left_out = documents(path, reading, &mut |part: Part<'_>| {
        found.last_mut().expect("never empty").push_str(part.text);
        if part.last {
            found.push(String::new());
        }
        Ok(())
    })?;
    assert_eq!(found.pop().as_deref(), Some(""), "the last document ended");
    Ok((found, left_out))
}

/// Encodings of texts that are no dictionary's.
const ENCODINGS: [Encoding; 3] = [Encoding::PLAIN, Encoding::DELTA_LENGTH_BYTE_ARRAY, Encoding::DELTA_BYTE_ARRAY];

struct Folder(tempfile::TempDir);

impl Folder {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn file(&self, name: &str, content: impl AsRef<[u8]>) -> PathBuf {
        let path = self.0.path().join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, content).unwrap();
        path
    }

    /// A parquet file with one column of texts, all of them in one page.
    fn one_page(&self, name: &str, rows: &[ByteArray], properties: WriterPropertiesBuilder) -> PathBuf {
        let path = self.0.path().join(name);
        let schema = Arc::new(parse_message_type("message rows { REQUIRED BINARY text (UTF8); }").unwrap());
        let properties = properties.set_data_page_size_limit(usize::MAX).set_statistics_enabled(EnabledStatistics::None).build();
        let mut writer = SerializedFileWriter::new(File::create(&path).unwrap(), schema, Arc::new(properties)).unwrap();
        let mut group = writer.next_row_group().unwrap();
        let mut texts = group.next_column().unwrap().unwrap();
        texts.typed::<ByteArrayType>().write_batch(rows, None, None).unwrap();
        texts.close().unwrap();
        group.close().unwrap();
        writer.close().unwrap();
        path
    }

    /// A parquet file with a number and a nullable string column.
    fn parquet(&self, name: &str, column: &str, rows: &[Option<&str>], compression: Compression) -> PathBuf {
        let path = self.0.path().join(name);
        let schema = format!("message rows {{ REQUIRED INT32 id; OPTIONAL BINARY {column} (UTF8); }}");
        let properties = WriterProperties::builder().set_compression(compression).build();
        let schema = Arc::new(parse_message_type(&schema).unwrap());
        let mut writer = SerializedFileWriter::new(File::create(&path).unwrap(), schema, Arc::new(properties)).unwrap();
        for rows in rows.chunks(3) {
            let mut group = writer.next_row_group().unwrap();
            let mut ids = group.next_column().unwrap().unwrap();
            let numbers: Vec<i32> = (0..rows.len() as i32).collect();
            ids.typed::<Int32Type>().write_batch(&numbers, None, None).unwrap();
            ids.close().unwrap();
            let mut texts = group.next_column().unwrap().unwrap();
            let values: Vec<ByteArray> = rows.iter().flatten().map(|text| ByteArray::from(*text)).collect();
            let levels: Vec<i16> = rows.iter().map(|text| i16::from(text.is_some())).collect();
            texts.typed::<ByteArrayType>().write_batch(&values, Some(&levels), None).unwrap();
            texts.close().unwrap();
            group.close().unwrap();
        }
        writer.close().unwrap();
        path
    }
}

#[test]
fn csv_rows_are_documents() {
    let folder = Folder::new();
    let path = folder.0.path().join("rows.csv");
    let mut writer = csv::Writer::from_path(&path).unwrap();
    writer.write_record(["id", "text", "body"]).unwrap();
    for row in ROWS {
        writer.write_record(["1", row, &row.to_uppercase()]).unwrap();
    }
    writer.write_record(["1", "", "no document of the column text"]).unwrap();
    writer.flush().unwrap();
    assert_eq!(read(&path, None).unwrap(), ROWS);
    assert_eq!(read(&path, Some("body")).unwrap()[0], "PLAIN");
    assert_eq!(read(&folder.file("one.CSV", "\u{feff}whatever\na\nb\n"), None).unwrap(), ["a", "b"]);
}

#[test]
fn jsonl_rows_are_documents() {
    let folder = Folder::new();
    let line = |row: &str| format!("{}\n", serde_json::json!({"id": 1, "text": row, "body": row.to_uppercase()}));
    let content: String = ROWS.map(line).concat() + "\n{\"text\": null}\n{\"text\": \"\"}\n";
    let path = folder.file("rows.jsonl", content);
    assert_eq!(read(&path, None).unwrap(), ROWS);
    assert_eq!(read(&folder.file("one.ndjson", "{\"only\": \"a\"}\r\n{\"only\": \"b\"}"), None).unwrap(), ["a", "b"]);
    assert_eq!(read(&folder.file("two.jsonl", "{\"x\": \"a\", \"y\": \"b\"}"), Some("y")).unwrap(), ["b"]);
}

#[test]
fn parquet_rows_are_documents_under_every_codec() {
    let folder = Folder::new();
    let mut rows = ROWS.map(Some).to_vec();
    rows.insert(2, None);
    let codecs = [
        Compression::UNCOMPRESSED,
        Compression::SNAPPY,
        Compression::GZIP(parquet::basic::GzipLevel::default()),
        Compression::ZSTD(parquet::basic::ZstdLevel::default()),
        Compression::LZ4_RAW,
    ];
    for codec in codecs {
        let path = folder.parquet("rows.parquet", "text", &rows, codec);
        assert_eq!(read(&path, None).unwrap(), ROWS, "{codec}");
    }
    let path = folder.parquet("body.parquet", "body", &rows, Compression::SNAPPY);
    assert_eq!(read(&path, Some("body")).unwrap(), ROWS);
}

/// The error of reading this file, and the number of documents before it.
fn refused(path: &Path) -> (String, u64) {
    let mut documents = 0;
    let read = super::documents(path, &Reading::default(), &mut |_| {
        documents += 1;
        Ok(())
    });
    (read.expect_err("must be refused").to_string(), documents)
}

#[test]
fn parquet_files_that_swell_are_refused() {
    let folder = Folder::new();
    let zstd = || WriterProperties::builder().set_compression(Compression::ZSTD(ZstdLevel::default()));
    let plain = || zstd().set_dictionary_enabled(false);
    // 40 MiB of one letter in one page, which has some thousand bytes.
    let path = folder.one_page("page.parquet", &vec![vec![b'a'; 8 << 20].into(); 5], plain());
    assert!(path.metadata().unwrap().len() < 20_000);
    let (reason, documents) = refused(&path);
    assert!(reason.contains("unpacks to 41943060, which is too much") && documents == 0, "{reason}");
    // A dictionary of one word, and a run of it.
    let path = folder.one_page("run.parquet", &vec![ByteArray::from("x"); 2_000_000], zstd());
    let (reason, documents) = refused(&path);
    assert!(reason.contains("bytes cannot be so much text") && documents < 1_500_000, "{documents}: {reason}");
    let path = folder.one_page("words.parquet", &vec![vec![b'a'; 1 << 16].into(); 5_000], zstd());
    let (reason, documents) = refused(&path);
    assert!(reason.contains("bytes cannot be so much text") && documents < 1_000, "{documents}: {reason}");
    let long = plain().set_compression(Compression::UNCOMPRESSED);
    let (reason, _) = refused(&folder.one_page("long.parquet", &[vec![b'a'; (32 << 20) + 1].into()], long));
    assert!(reason.contains("row 1: a row has 32 MiB at most"), "{reason}");
    // Values that share all of a long first one.
    let shared = plain().set_encoding(Encoding::DELTA_BYTE_ARRAY);
    let path = folder.one_page("shared.parquet", &vec![vec![b'a'; 1 << 20].into(); 100], shared);
    assert!(path.metadata().unwrap().len() < 10_000);
    let (reason, documents) = refused(&path);
    assert!(reason.contains("bytes cannot be so much text") && documents < 20, "{documents}: {reason}");
}

/// The library is compiled without the packer, so the footer of a file that is not packed says it.
#[test]
fn parquet_pages_of_a_rare_packer_are_named() {
    let folder = Folder::new();
    let whole = std::fs::read(folder.parquet("r.parquet", "text", &[Some("x")], Compression::UNCOMPRESSED)).unwrap();
    let brotli = |place: &usize| {
        let mut changed = whole.clone();
        changed[*place] = 8;
        let refused = read(&folder.file("brotli.parquet", changed), Some("text")).err().map(|error| error.to_string());
        refused.is_some_and(|message| message.contains("whose pages are packed by Brotli; write it with zstd"))
    };
    assert_eq!((0..whole.len()).filter(brotli).count(), 1);
}

#[test]
fn parquet_rows_are_documents_in_every_encoding() {
    let folder = Folder::new();
    let rows: Vec<String> =
        (0..500).map(|number| format!("{} {number} {}", ROWS[number % 5], "and so on ".repeat(number % 7))).collect();
    let values: Vec<ByteArray> = rows.iter().map(|row| ByteArray::from(row.as_str())).collect();
    for encoding in ENCODINGS {
        for version in [WriterVersion::PARQUET_1_0, WriterVersion::PARQUET_2_0] {
            let properties =
                WriterProperties::builder().set_dictionary_enabled(false).set_encoding(encoding).set_writer_version(version);
            assert_eq!(read(&folder.one_page("rows.parquet", &values, properties), None).unwrap(), rows, "{encoding}");
        }
    }
}

#[test]
fn whatever_a_byte_of_a_parquet_file_says_it_is_read_or_refused() {
    let folder = Folder::new();
    let rows = ROWS.map(Some);
    let codecs = [Compression::UNCOMPRESSED, Compression::SNAPPY, Compression::GZIP(parquet::basic::GzipLevel::default())];
    let compressed = codecs.map(|codec| folder.parquet(&format!("{codec}.parquet"), "text", &rows, codec));
    let texts = ROWS.map(ByteArray::from);
    let encoded = ENCODINGS.map(|encoding| {
        let properties = WriterProperties::builder().set_dictionary_enabled(false).set_encoding(encoding);
        folder.one_page(&format!("{encoding}.parquet"), &texts, properties)
    });
    for path in compressed.iter().chain(&encoded) {
        let whole = std::fs::read(path).unwrap();
        for place in 0..whole.len() {
            for change in [0x01, 0x80, 0xff] {
                let mut changed = whole.clone();
                changed[place] ^= change;
                let _ = read(&folder.file("changed.parquet", changed), Some("text"));
            }
        }
    }
}

#[test]
fn rows_without_end_are_refused() {
    let folder = Folder::new();
    let long = "a\n".repeat(17 << 20);
    let too_long = "a row has 32 MiB at most; put a longer text into a file of its own";
    let (reason, documents) = refused(&folder.file("q.csv", format!("text\nfirst\n\"{long}")));
    assert!(reason.contains("in line 2: ") && reason.contains(too_long) && documents == 1, "{reason}");
    let line = long.replace('\n', " ");
    let (reason, _) = refused(&folder.file("l.jsonl", format!("{{\"text\": \"first\"}}\n{{\"text\": \"{line}")));
    assert!(reason.contains("in line 2: ") && reason.contains(too_long), "{reason}");
    let columns: Vec<String> = (0..10_001).map(|number| format!("\"{number}\": 0")).collect();
    let (reason, _) = refused(&folder.file("w.jsonl", format!("{{{}}}", columns.join(", "))));
    assert!(reason.contains("it has more than 10000 columns"), "{reason}");
    let nested = format!("{{\"x\": {}0{}, \"text\": \"kept\", \"y\": [1, {{}}]}}", "[".repeat(100), "]".repeat(100));
    assert_eq!(read(&folder.file("n.jsonl", nested), None).unwrap(), ["kept"]);
}

#[test]
fn a_text_file_is_one_document_of_any_length() {
    let folder = Folder::new();
    // Longer than a block, with characters of one to four bytes across its border, on one line and without white space.
    let words = "añ漢👩 ".repeat(1 << 19);
    let run = "añ漢👩".repeat(1 << 19);
    for text in ["short", " ", words.as_str(), run.as_str()] {
        assert!(read(&folder.file("a.txt", text), None).unwrap() == [text]);
    }
    assert_eq!(read(&folder.file("bom.md", "\u{feff}text"), None).unwrap(), ["text"]);
    assert_eq!(read(&folder.file("empty.txt", ""), None).unwrap(), [""; 0]);
}

#[test]
fn parts_of_a_long_document_have_the_pieces_of_the_whole() {
    let folder = Folder::new();
    let text = "fn main() {\n    println!(\"don't\");\n\n\n}\n".repeat(250_000);
    let path = folder.file("long.rs", &text);
    let tokenizer = crate::data::tokenizer::Tokenizer::gpt2().unwrap();
    let mut ids = Vec::new();
    let mut count = 0;
    documents(&path, &Reading::default(), &mut |part: Part<'_>| {
        count += 1;
        ids.extend(tokenizer.encode(part.text));
        Ok(())
    })
    .unwrap();
    assert!(count > 2 && ids == tokenizer.encode(&text));
}

#[test]
fn directories_and_patterns_give_sorted_visible_files_once() {
    let folder = Folder::new();
    for name in ["b.txt", "a/z.txt", "a/y.csv", ".hidden", ".git/config", "a/.x"] {
        folder.file(name, "text");
    }
    let root = folder.0.path().to_str().unwrap();
    let names = |patterns: &[&str]| {
        let patterns: Vec<String> = patterns.iter().map(|pattern| format!("{root}{pattern}")).collect();
        let strip = |path: PathBuf| path.strip_prefix(root).unwrap().to_str().unwrap().to_owned();
        find(&patterns).unwrap().into_iter().map(strip).collect::<Vec<_>>()
    };
    assert_eq!(names(&[""]), ["a/y.csv", "a/z.txt", "b.txt"]);
    assert_eq!(names(&["/b.txt", "/**/*.txt"]), ["b.txt", "a/z.txt"]);
    assert_eq!(names(&["/a/[yz].*"]), ["a/y.csv", "a/z.txt"]);
    folder.file("[odd].txt", "text");
    assert_eq!(names(&["/[odd].txt"]), ["[odd].txt"], "an existing file is no pattern");
}

/// Every mistake in the text has a message of its own that names the file, the place and what to do.
#[test]
fn mistakes_in_the_text_are_named() {
    let folder = Folder::new();
    folder.parquet("r.parquet", "body", &[Some("x")], Compression::SNAPPY);
    folder.parquet("cut.parquet", "text", &[Some("x")], Compression::SNAPPY);
    let whole = std::fs::read(folder.0.path().join("cut.parquet")).unwrap();
    folder.file("cut.parquet", &whole[..whole.len() - 9]);
    folder.file("u.txt", [&b"ok ".repeat(3_000_000)[..], b"\xff"].concat());
    folder.file("cut.txt", b"caf\xc3");
    let bytes = [ByteArray::from("a"), ByteArray::from(vec![0xff])];
    folder.one_page("u.parquet", &bytes, WriterProperties::builder());
    let long = &"x".repeat(300);
    let cases: [(&str, &[u8], Option<&str>, &str); 27] = [
        ("no.txt", b"-", None, "no.txt does not exist; correct the path"),
        ("dir", b"-", None, "cannot read DIR/dir: Is a directory (os error 21); choose another file"),
        ("cut.txt/", b"-", None, "cut.txt/: Not a directory (os error 20); correct the path"),
        (long, b"-", None, "File name too long (os error 36); correct the path"),
        ("u.txt", b"-", None, "u.txt is not UTF-8 text: invalid byte at offset 9000000; convert it (iconv"),
        ("cut.txt", b"-", None, "cut.txt is not UTF-8 text: invalid byte at offset 3;"),
        (
            "n.txt",
            b"ab\0c",
            None,
            "n.txt has a NUL byte at offset 2: it is UTF-16BE (iconv -f UTF-16BE -t UTF-8 converts it), or not text",
        ),
        ("m.txt", b"\x14\x04b\0c", None, "m.txt has a NUL byte at offset 3: it is UTF-16LE (iconv -f UTF-16LE -t UTF-8"),
        ("o.csv", b"i\x1b[2J,b\n1,a\n", None, "to choose from: `i\u{fffd}[2J`, `b`."),
        ("n.csv", b"text\na\nb\0\n", None, "n.csv has a NUL byte in line 3; remove the byte or the row"),
        ("n.jsonl", b"{\"text\": \"\\u0000\"}", None, "n.jsonl has a NUL byte in line 1;"),
        ("u.csv", b"text\na\n\xff\n", None, "u.csv has an invalid UTF-8 byte in line 3;"),
        ("u.jsonl", b"{\"text\": \"a\"}\n{\"text\": \"\xff\"}", None, "u.jsonl has an invalid UTF-8 byte in line 2;"),
        (
            "c.csv",
            b"id,body\n1,a\n",
            None,
            "c.csv has no column `text` and more than one to choose from: `id`, `body`. Set `column`",
        ),
        ("c.csv", b"id,body\n1,a\n", Some("txt"), "c.csv has no column `txt`; its columns are: `id`, `body`. Set `column` to one"),
        ("l.csv", b"id,text\n1,a\n2\n", None, "l.csv is malformed in line 3: it has 1 fields, the header has 2; correct it"),
        ("q.csv", b"text\n\"a\nb\nc\n", None, "q.csv is malformed in line 2: a quotation mark is never closed; correct it"),
        ("e.jsonl", b"{}\n{\"text\": \"a\"}", None, "e.jsonl is malformed in line 1: it has no columns; correct it"),
        ("m.json", b"[{\"text\": \"a\"},]", None, "a bracket closes where a row should begin, as after a comma too many;"),
        ("c.jsonl", b"{\"a\": \"x\", \"b\": 1}", None, "c.jsonl has no column `text` and more than one to choose from: `a`, `b`."),
        (
            "m.jsonl",
            b"{\"body\": \"x\"}\n\n{\"id\": 1}",
            Some("body"),
            "m.jsonl has no column `body` in line 3; that row has: `id`.",
        ),
        (
            "t.jsonl",
            b"{\"text\": \"x\"}\n{\"text\": 5}",
            None,
            "column `text` of DIR/t.jsonl is not text in line 2; choose a column",
        ),
        (
            "j.jsonl",
            b"{\"text\": \"x\"}\n{\"text\"",
            None,
            "j.jsonl is malformed in line 2: EOF while parsing an object at column 7; correct",
        ),
        ("u.parquet", b"-", None, "u.parquet has an invalid UTF-8 byte in row 2; convert it"),
        ("r.parquet", b"-", Some("text"), "r.parquet has no column `text`; its columns are: `id`, `body`. Set `column`"),
        ("r.parquet", b"-", Some("id"), "column `id` of DIR/r.parquet is not text in row 1; choose a column of strings"),
        ("cut.parquet", b"-", None, "cut.parquet is malformed in its structure: "),
    ];
    std::fs::create_dir(folder.0.path().join("dir")).unwrap();
    for (name, content, column, expected) in cases {
        if content != b"-" {
            folder.file(name, content);
        }
        let error = read(&folder.0.path().join(name), column).expect_err(name);
        let message = error.to_string();
        assert!(message.contains(&expected.replace("DIR", folder.0.path().to_str().unwrap())), "{name}: {message}");
        assert_eq!(error.class(), crate::data::error::Class::Input, "{name}");
    }
}

#[test]
fn names_that_lead_to_no_file_are_named() {
    let folder = Folder::new();
    std::fs::create_dir_all(folder.0.path().join("empty/.git")).unwrap();
    let root = folder.0.path().display().to_string();
    let cases = [
        ("/gone.txt", "gone.txt does not exist; correct the path"),
        ("/*.parquet", "*.parquet` matches no file; correct it"),
        ("/a[", "is not valid: Pattern syntax error"),
        ("/empty", "empty contains no file (hidden files are skipped)"),
    ];
    for (name, expected) in cases {
        let message = find(&[format!("{root}{name}")]).expect_err(name).to_string();
        assert!(message.contains(expected), "{message}");
    }
    let message = find(&["/dev/null".to_owned()]).expect_err("a device").to_string();
    assert!(message.contains("/dev/null is neither a file nor a directory"), "{message}");
    let message = read(Path::new("/proc/self/mem"), None).expect_err("nothing is mapped at 0").to_string();
    assert!(message.contains("cannot read /proc/self/mem: "), "{message}");
}
