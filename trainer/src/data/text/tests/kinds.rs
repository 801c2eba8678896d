//! Files as other programs write them, kind by kind.

use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::symlink;

use super::*;
use crate::data::tokenizer::{Special, Specials, usual_specials};
use crate::settings::OnBadRow;

const SKIP: Reading<'static> = Reading { column: None, on_bad_row: OnBadRow::Skip, split: None };

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut packer = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
    packer.write_all(bytes).unwrap();
    packer.finish().unwrap()
}

fn zstandard(bytes: &[u8]) -> Vec<u8> {
    zstd::stream::encode_all(bytes, 3).unwrap()
}

/// Sound files, one by one.
#[test]
fn files_are_what_their_content_is() {
    let folder = Folder::new();
    let cases: [(&str, &[u8], &[&str]); 35] = [
        ("lines.json", b"{\"text\": \"a\"}\n{\"text\": \"b\"}\n", &["a", "b"]),
        ("list.json", b"[{\"text\": \"a\"}, {\"text\": \"b\"}]", &["a", "b"]),
        ("pretty-list.json", b" [\n  {\n \"text\": \"a]}\\\"\"\n }\n, {\"text\": \"b\", \"x\": [1, {}]}\n]\n", &["a]}\"", "b"]),
        ("pretty.json", b"{\n  \"text\": \"a\",\n  \"n\": {\n  }\n}\n{\n  \"text\": \"b\"\n}", &["a", "b"]),
        ("one.json", b"{\"text\": \"a\"}", &["a"]),
        ("texts.json", b"[\"a\", \"b\"]", &["a", "b"]),
        ("list.jsonl", b"[{\"text\": \"a\"},\n{\"text\": \"b\"}]", &["a", "b"]),
        ("empty.json", b"[]", &[]),
        ("nothing.json", b"\n \n", &[]),
        ("bom.jsonl", b"\xef\xbb\xbf{\"text\": \"a\"}\n{\"text\": \"b\"}", &["a", "b"]),
        ("bom.json", b"\xef\xbb\xbf[{\"text\": \"a\"}]", &["a"]),
        ("bom.csv", b"\xef\xbb\xbftext,id\na,1\n", &["a"]),
        ("cr.jsonl", b"{\"text\": \"a\"}\r\n\r\n{\"text\": \"b\"}\r\n", &["a", "b"]),
        ("old-mac.jsonl", b"{\"text\": \"a\"}\r{\"text\": \"b\"}\r", &["a", "b"]),
        ("no-ends.jsonl", b"{\"text\": \"a\"}{\"text\": \"{}\"} {\"text\": \"b\"}\n\n{\"text\": \"c\"}", &["a", "{}", "b", "c"]),
        ("white.csv", b"id,text\n1,a\n  \t\n2,b\n \n", &["a", "b"]),
        ("white-of-one.csv", b"text\na\n  \n b \n\"\n\"\n", &["a", " b ", "\n"]),
        ("tabs.tsv", b"id\ttext\n1\ta, b\n", &["a, b"]),
        ("old-mac.csv", b"text\ra;b\rc\td\r", &["a;b", "c\td"]),
        ("blank-first.csv", b"\r\n\nid;text\n1;a, b\n", &["a, b"]),
        ("semicolons.csv", b"id;text\n1;\"a;b\"\n", &["a;b"]),
        ("excel.csv", b"sep=;\r\nid;text\r\n1;\"a;b\"\r\n", &["a;b"]),
        ("excel-bom.csv", b"\xef\xbb\xbfsep=:\nid:text\n1:a, b\n", &["a, b"]),
        ("no-excel.csv", b"sep=a,text\n1,a\n", &["a"]),
        ("bytes.csv", b"id,text\n\xff\xfe,a\n", &["a"]),
        ("bytes.jsonl", b"{\"text\": \"a\", \"raw\": \"\xff\"}", &["a"]),
        ("nan.jsonl", b"{\"x\": NaN, \"y\": [-Infinity, Infinity], \"text\": \"a\"}", &["a"]),
        ("surrogate.jsonl", b"{\"x\": \"\\ud800\", \"text\": \"a\"}", &["a"]),
        ("name.jsonl", b"{\"\\ud800\": 1, \"\\u0074ext\": \"a\"}", &["a"]),
        ("long.jsonl", b"{\"x\": 1e999, \"y\": 123456789012345678901234567890, \"text\": \"a\"}", &["a"]),
        ("twice.jsonl", b"{\"text\": \"a\", \"text\": \"b\"}", &["b"]),
        ("null.jsonl", b"{\"text\": null}\n{\"text\": \"b\"}", &["b"]),
        ("more.jsonl", b"{\"body\": \"a\"}\n{\"body\": \"b\", \"id\": 5}", &["a", "b"]),
        ("escapes.jsonl", b"{\"text\": \"\\u00e9\\n\\ud83d\\ude00\"}", &["\u{e9}\n\u{1f600}"]),
        ("plain.JSON", b"{\"text\": \"a\"}", &["a"]),
    ];
    for (name, content, expected) in cases {
        assert_eq!(read(&folder.file(name, content), None).unwrap(), expected, "{name}");
        let mark = if name.contains("bytes") { continue } else { name };
        for (end, packed) in [("gz", gzip(content)), ("zst", zstandard(content))] {
            let path = folder.file(&format!("{mark}.{end}"), packed);
            assert_eq!(read(&path, None).unwrap(), expected, "{}", path.display());
        }
    }
}

#[test]
fn packed_text_is_a_stream_of_any_length() {
    let folder = Folder::new();
    let text = "añ漢👩 fn main() {}\n".repeat(400_000);
    let parts = [gzip(text.as_bytes()), vec![0; 7], gzip(b" and more"), vec![0; 20_000]].concat();
    assert!(read(&folder.file("a.txt.gz", parts), None).unwrap() == [format!("{text} and more")], "two members are one text");
    assert!(read(&folder.file("no-name", zstandard(text.as_bytes())), None).unwrap() == [text.as_str()]);
    // A frame of four bytes that is to be skipped, as pzstd writes first.
    let skipped = [&b"\x50\x2a\x4d\x18\x04\0\0\0\xff\xff\0\0"[..], &zstandard(text.as_bytes())].concat();
    assert!(read(&folder.file("skipped.txt.zst", skipped), None).unwrap() == [text.as_str()]);
    let rows = "text\na\nb\n";
    assert_eq!(read(&folder.file("rows.csv.gz", gzip(rows.as_bytes())), None).unwrap(), ["a", "b"]);
    assert_eq!(read(&folder.file("rows.csv.gz", rows), None).unwrap(), [rows], "the name alone packs nothing, and tells nothing");
}

/// Fewer bytes than the text of one page become more than fits on a disk.
#[test]
fn a_packed_file_does_not_fill_the_machine() {
    let folder = Folder::new();
    let mut frame = zstd::stream::write::Encoder::new(Vec::new(), 19).unwrap();
    let block = vec![b' '; 1 << 20];
    (0..256).for_each(|_| frame.write_all(&block).unwrap());
    let bomb = frame.finish().unwrap();
    let path = folder.file("bomb.txt.zst", &bomb);
    let mut bytes = 0;
    let refused = documents(&path, &Reading::default(), &mut |part| {
        bytes += part.text.len();
        Ok(())
    });
    let message = refused.unwrap_err().to_string();
    assert!(
        message.contains("bomb.txt.zst is malformed in its Zstandard stream: so few bytes cannot be so much text"),
        "{message}"
    );
    assert!(bomb.len() < 1 << 16 && bytes < 256 << 20, "{} became {bytes}", bomb.len());
}

#[test]
fn rows_in_a_list_of_an_object_are_refused_with_the_way_out() {
    let folder = Folder::new();
    for (name, content, column) in [
        ("a.json", "{\"data\": [{\"text\": \"a\"}, {\"text\": \"b\"}]}\n", "data"),
        ("b.json", "{\n \"version\": \"1\",\n \"data\": [\n  {\"title\": \"a\"}\n ]\n}\n", "data"),
        ("c.jsonl", "{\"count\": 1, \"rows\": [{\"id\": 1, \"text\": \"a\"}]}", "rows"),
    ] {
        let path = folder.file(name, content);
        let told = format!(
            "the rows of {0} are a list in `{column}` of one object; take them out of it: jq -c '.[\"{column}\"][]' {0} > rows.jsonl",
            path.display()
        );
        assert_eq!(read(&path, None).unwrap_err().to_string(), told);
    }
    // The turns of a conversation are no rows, and a text beside a list is one.
    let turns = read(&folder.file("turns.jsonl", "{\"messages\": [{\"role\": \"user\"}]}\n"), None).unwrap_err().to_string();
    assert!(turns.contains("column `messages` of") && turns.contains("is not text"), "{turns}");
    assert_eq!(read(&folder.file("both.jsonl", "{\"text\": \"a\", \"data\": [{\"text\": \"b\"}]}"), None).unwrap(), ["a"]);
    let second = read(&folder.file("second.csv", "sep=;\ntext;id\na;1\n\"b;2\n"), None).unwrap_err().to_string();
    assert!(second.contains("line 4: a quotation mark is never closed"), "{second}");
}

/// By the name that iconv has to be given: without a mark it takes little-endian for what UTF-16 is.
#[test]
fn text_of_wide_characters_is_named_by_its_encoding() {
    let folder = Folder::new();
    let encoded = |name: &str, text: &str| -> Vec<u8> {
        let units = text.encode_utf16();
        match name {
            "UTF-16LE" => units.flat_map(u16::to_le_bytes).collect(),
            "UTF-16BE" => units.flat_map(u16::to_be_bytes).collect(),
            "UTF-32LE" => text.chars().flat_map(|letter| u32::from(letter).to_le_bytes()).collect(),
            _ => text.chars().flat_map(|letter| u32::from(letter).to_be_bytes()).collect(),
        }
    };
    for (file, text) in
        [("a.txt", "hello"), ("a.txt", "\n中"), ("a.jsonl", "{\"text\": \"a\"}"), ("a.csv", "text\na\n"), ("a", "[1]")]
    {
        for name in ["UTF-16LE", "UTF-16BE", "UTF-32LE", "UTF-32BE"] {
            for (mark, told) in [("", name), ("\u{feff}", &name[..6])] {
                let bytes = encoded(name, &format!("{mark}{text}"));
                for (end, bytes) in [("", bytes.clone()), (".gz", gzip(&bytes))] {
                    let message = read(&folder.file(&format!("{file}{end}"), bytes), None).expect_err(name).to_string();
                    let expected = format!("it is {told} text; convert it (iconv -f {told} -t UTF-8)");
                    assert!(message.ends_with(&expected), "{file}{end}, {name}: {message}");
                }
            }
        }
    }
}

#[test]
fn what_holds_no_text_is_named() {
    let folder = Folder::new();
    let mut tar = vec![0; 512];
    tar[257..262].copy_from_slice(b"ustar");
    let whole = gzip(b"some text that is long enough to be cut somewhere in the middle");
    let stray = [&whole[..], b"8 bytes!"].concat();
    let mut wide = zstd::stream::write::Encoder::new(Vec::new(), 1).unwrap();
    wide.window_log(28).unwrap();
    wide.write_all(&vec![b'a'; 1 << 16]).unwrap();
    let wide = wide.finish().unwrap();
    let llm_c = [20_240_520_u32, 1].map(u32::to_le_bytes).concat();
    let cases: [(&str, &[u8], &str); 27] = [
        ("stray.txt.gz", &stray, "in its gzip stream: something else follows where it ends, which gzip -dc leaves out; correct it"),
        ("wide.zst", &wide, "it is packed by Zstandard with a window of more than 128 MiB; unpack it (zstd -d --long=31)"),
        ("a.zip", b"PK\x03\x04rest", "it is a zip archive; unpack it, and name the files that were in it"),
        ("a.jsonl", b"PK\x03\x04rest", "it is a zip archive"),
        (
            "a.xlsx",
            b"PK\x03\x04..........................[Content_Types].xml..",
            "it is an Office document; export it as plain text, a table",
        ),
        ("a.epub", b"PK\x03\x04..........................mimetypeapplication/epub+zip", "it is an e-book or an OpenDocument file"),
        ("a.pkl", b"\x80\x04\x95\x10\0\0\0", "it is a pickle of Python; write its rows as JSON Lines"),
        ("a.tar", &tar, "it is a tar archive; unpack it (tar -x)"),
        ("a.tar.gz", &gzip(&tar), "it is a tar archive"),
        ("a.txt.xz", b"\xfd7zXZ\0rest", "it is packed by xz; unpack it (xz -d)"),
        ("a.txt.bz2", b"BZh91AY&SYrest", "it is packed by bzip2"),
        ("a.7z", b"7z\xbc\xaf\x27\x1crest", "it is a 7z archive"),
        ("a.rar", b"Rar!\x1a\x07\0", "it is a rar archive"),
        ("a.pdf", b"%PDF-1.7 ...", "it is a PDF"),
        ("u.txt", b"\xff\xfeh\0i\0", "it is UTF-16 text; convert it (iconv -f UTF-16 -t UTF-8)"),
        ("u.jsonl", b"\xff\xfe{\0", "it is UTF-16 text"),
        ("v.txt", b"\xff\xfe\0\0h\0\0\0", "it is UTF-32 text; convert it (iconv -f UTF-32 -t UTF-8)"),
        ("a.arrow", b"ARROW1\0\0", "it is an Arrow file; write it as parquet"),
        ("a.npy", b"\x93NUMPY\x01", "it is an array of numpy"),
        ("t.bin", &llm_c, "it is a token file of llm.c; say data.format = \"llm-c\""),
        ("train.bin", &[15_496_u16, 995, 198].map(u16::to_le_bytes).concat(), "it is called .bin, as files of tokens are"),
        ("zero.bin", b"a\0", "set data.format (ftctl prepare: --format) to the program that wrote it (\"nanogpt\""),
        ("p.parquet", b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 5\n", "is a pointer of git-lfs"),
        ("p.txt", b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 5\n", "`git lfs pull`"),
        ("p.parquet.gz", &gzip(b"PAR1"), "a parquet file, packed by gzip once more; unpack it"),
        ("t.gz.gz", &gzip(&gzip(b"text")), "a packed file, packed by gzip once more; unpack it"),
        ("cut.txt.gz", &whole[..whole.len() - 12], "cut.txt.gz is malformed in its gzip stream: it ends too early"),
    ];
    for (name, content, expected) in cases {
        let message = read(&folder.file(name, content), None).expect_err(name).to_string();
        assert!(message.contains(expected) && message.contains(name), "{name}: {message}");
    }
    assert_eq!(read(&folder.file("b.txt", "BZh is a word"), None).unwrap(), ["BZh is a word"]);
}

/// One column for the whole file: no row has another for its text.
#[test]
fn a_file_has_one_column() {
    let folder = Folder::new();
    let cases: [(&str, &str, &str); 5] = [
        ("o.jsonl", "{\"text\": \"a\"}\n{\"title\": \"b\"}", "o.jsonl has no column `text` in line 2; that row has: `title`"),
        ("b.jsonl", "{\"body\": \"a\"}\n{\"text\": \"b\"}", "`body` of DIR/b.jsonl was taken for the text"),
        ("c.jsonl", "{\"body\": \"a\"}\n{\"title\": \"b\"}", "c.jsonl has no column `body` in line 2; that row has: `title`"),
        ("l.json", "[{\"text\": \"a\"}, {\"x\": \"b\"}]", "l.json has no column `text` in row 2; that row has: `x`"),
        ("d.json", "[\"a\", {\"x\": \"b\"}]", "d.json has no column `text` in row 2"),
    ];
    for (name, content, expected) in cases {
        let message = read(&folder.file(name, content), None).expect_err(name).to_string();
        assert!(message.contains(&expected.replace("DIR", folder.0.path().to_str().unwrap())), "{name}: {message}");
    }
}

/// A file, its bytes, how many of its rows are bad, what the first is, and the texts of the others.
type BadRows<'a> = (&'a str, &'a [u8], u64, &'a str, &'a [&'a str]);

#[test]
fn bad_rows_are_left_out_where_that_is_wished() {
    let folder = Folder::new();
    let cases: [BadRows<'_>; 10] = [
        (
            "s.jsonl",
            b"{\"text\": \"a\"}\n{\"text\": \"\\ud800\"}\n{\"text\": \"b\"}",
            1,
            "malformed in line 2: half of a surrogate pair",
            &["a", "b"],
        ),
        (
            "r.jsonl",
            b"{\"text\": \"a\"} {\"text\": 5}\n{\"text\": \"b\"} {\"text\"\n{\"text\": \"c\"}",
            2,
            "is not text in line 1",
            &["a", "c"],
        ),
        ("u.jsonl", b"{\"text\": \"\xff\"}\n{\"text\": \"b\"}", 1, "invalid UTF-8 byte in line 1", &["b"]),
        (
            "m.jsonl",
            b"{\"text\": \"a\"}\n{\"text\": \"b\"\n{}\n\"c\"\n{\"text\": \"d\"}",
            2,
            "malformed in line 2: ",
            &["a", "c", "d"],
        ),
        ("z.jsonl", b"{\"text\": \"a\"}\n{\"text\": \"\\u0000\"}", 1, "a NUL byte in line 2", &["a"]),
        ("l.json", b"[{\"text\": \"a\"}, 7, {\"text\": \"b\"}]", 1, "malformed in row 2: invalid type: integer", &["a", "b"]),
        ("w.jsonl", "\"a\"\n\"b\"\u{3e2}\n\"c\"d\n\"e\"".as_bytes(), 2, "malformed in line 2: ", &["a", "e"]),
        ("f.csv", b"id,text\n1,a\n2\n3,b,c\n4,d\n", 2, "malformed in line 3: it has 1 fields, the header has 2", &["a", "d"]),
        ("u.csv", b"text\na\n\xff\nb\n", 1, "invalid UTF-8 byte in line 3", &["a", "b"]),
        ("z.csv.gz", &gzip(b"text\na\n\xff\nb\n"), 1, "invalid UTF-8 byte in line 3", &["a", "b"]),
    ];
    for (name, content, rows, first, expected) in cases {
        let path = folder.file(name, content);
        let refused = read(&path, None).expect_err(name).to_string();
        assert!(refused.contains(first) && refused.contains("`on_bad_row = \"skip\"` leaves such rows out"), "{name}: {refused}");
        let (found, left_out) = read_as(&path, &SKIP).expect(name);
        assert!(found == expected && left_out.left_out == rows, "{name}: {found:?} {left_out:?}");
        assert!(left_out.first.as_deref().is_some_and(|message| message.contains(first)), "{name}: {left_out:?}");
    }
    let short = folder.file("short.csv", "text,id,note\na,1,x\nb\nc,2\n");
    let (found, findings) = read_as(&short, &Reading::default()).unwrap();
    assert!(found == ["a", "b", "c"] && (findings.short, findings.left_out) == (2, 0), "{findings:?}");
    let nulls = folder.file("nulls.jsonl", "{\"text\": null}\n{\"text\": \"a\"}\n{\"text\": null}\n");
    let (found, findings) = read_as(&nulls, &Reading::default()).unwrap();
    assert!(found == ["a"] && (findings.nulls, findings.left_out) == (2, 0), "{findings:?}");
    let long = format!("{{\"text\": \"a\"}}\n{{\"text\": \"{}\"}}\n{{\"text\": \"b\"}}", "x".repeat(33 << 20));
    let (found, left_out) = read_as(&folder.file("long.jsonl", long), &SKIP).unwrap();
    assert!(found == ["a", "b"] && left_out.left_out == 1, "{left_out:?}");
    let all = folder.file("all.jsonl", "{\"x\": 1}\n{\"y\": 2}");
    let message = read_as(&all, &SKIP).unwrap_err().to_string();
    assert!(message.contains("all.jsonl is not text in line 1") && message.contains("2 of the 2 rows of"), "{message}");
    let most = folder.file("most.jsonl", "{\"body\": \"a\"}\n{\"title\": \"b\"}\n{\"title\": \"c\"}");
    let message = read_as(&most, &SKIP).unwrap_err().to_string();
    assert!(message.contains("2 of the 3 rows of") && message.contains("is for a few. The first: "), "{message}");
}

#[test]
fn a_first_line_that_was_cut_is_one_bad_row() {
    let folder = Folder::new();
    let rest = "\n{\"text\": \"b\"}\n{\"text\": \"c\"}\n".repeat(5);
    for cut in [
        "{\"text\": \"a",
        "{\"text\": \"a\"",
        "{\"text\"",
        "{\"text\": [1, ",
        "{\"text\": \"a\\",
        "{\"text\": \"a\n{\"text\": \"q",
        "{\n",
    ] {
        let path = folder.file("cut.jsonl", format!("{cut}{rest}"));
        let (found, left_out) = read_as(&path, &SKIP).expect(cut);
        assert_eq!(
            (found, left_out.left_out),
            (["b", "c"].repeat(5).iter().map(ToString::to_string).collect(), cut.trim().lines().count() as u64),
            "{cut}"
        );
        let message = read(&path, None).expect_err(cut).to_string();
        assert!(message.contains("cut.jsonl is malformed in line 1: EOF while parsing"), "{message}");
    }
}

/// A header, or another row without it, at the beginning of the file.
#[test]
fn the_usual_column_is_taken_before_one_that_is_guessed() {
    let folder = Folder::new();
    let rows = "{\"text\": \"a\"}\n{\"text\": \"b\", \"id\": 1}\n";
    for (name, first) in
        [("m.jsonl", "{\"meta\": \"x\"}\n"), ("e.jsonl", "{\"x\": \"y\"}\n{\"text\": \"\"}\n"), ("b.jsonl", "no row\n{}\n")]
    {
        let (found, left_out) = read_as(&folder.file(name, format!("{first}{rows}")), &SKIP).expect(name);
        assert_eq!(found, ["a", "b"], "{name}");
        assert!(left_out.left_out > 0 && left_out.first.is_some_and(|message| message.contains("line 1")), "{name}");
    }
    let list = folder.file("l.json", "[{\"meta\": \"x\"}, {\"text\": \"a\"}, {\"text\": \"b\"}]");
    assert_eq!(read_as(&list, &SKIP).unwrap().0, ["a", "b"]);
    let guessed = folder.file("g.jsonl", "{\"body\": \"a\"}\n{\"body\": \"b\"}\n{}");
    assert_eq!(read_as(&guessed, &SKIP).unwrap().0, ["a", "b"], "no row has the usual one");
}

#[test]
fn a_list_that_is_broken_is_refused() {
    let folder = Folder::new();
    let cases: [(&[u8], &str); 6] = [
        (b"[{\"text\": \"a\"}", "the list never ends"),
        (b"[{\"text\": \"a\"", "the file ends inside a row"),
        (b"[{\"text\": \"a\"} {\"text\": \"b\"}]", "there is no comma between two rows"),
        (b"[{\"text\": \"a\"}]\n[]", "malformed in line 2: there is more after the list"),
        (b"[{\"text\": \"a\"},", "the list never ends"),
        (b"{\n\"text\": ]", "malformed in row 1: "),
    ];
    for (content, expected) in cases {
        for reading in [Reading::default(), SKIP] {
            let message = read_as(&folder.file("l.json", content), &reading).expect_err(expected).to_string();
            assert!(message.contains(expected), "{message}");
        }
    }
}

#[test]
fn links_to_directories_are_followed_once() {
    let (folder, elsewhere) = (Folder::new(), Folder::new());
    folder.file("a.txt", "a");
    elsewhere.file("deep/b.txt", "b");
    symlink(elsewhere.0.path(), folder.0.path().join("linked")).unwrap();
    symlink(folder.0.path(), elsewhere.0.path().join("deep/circle")).unwrap();
    let root = folder.0.path().to_str().unwrap();
    let found = find(&[root.to_owned()]).unwrap();
    let names: Vec<_> = found.iter().map(|path| path.strip_prefix(root).unwrap().to_str().unwrap()).collect();
    assert_eq!(names, ["a.txt", "linked/deep/b.txt"]);
}

#[test]
fn a_pattern_finds_what_a_directory_has() {
    let folder = Folder::new();
    let odd = std::ffi::OsStr::from_bytes(b"d/\xff.txt").to_string_lossy().into_owned();
    let root = folder.0.path().to_str().unwrap().to_owned();
    for name in ["d/b.txt", "d/a/z.txt", "d/a/y.csv", "d/.venv/lib/x.txt", "d/a/.x.txt", "d/c/d/w.txt"] {
        folder.file(name, "text");
    }
    std::fs::write(folder.0.path().join(std::ffi::OsStr::from_bytes(b"d/\xff.txt")), "text").unwrap();
    for (link, to) in [("d/a/up", ".."), ("d/c/up", "../.."), ("d/other", "a"), ("d/link.txt", "b.txt")] {
        symlink(to, folder.0.path().join(link)).unwrap();
    }
    let found = |names: &[&str]| {
        let names: Vec<String> = names.iter().map(|name| format!("{root}/{name}")).collect();
        let strip = |path: PathBuf| path.strip_prefix(&root).unwrap().to_string_lossy().into_owned();
        find(&names).unwrap().into_iter().map(strip).collect::<Vec<_>>()
    };
    let all = ["d/a/y.csv", "d/a/z.txt", "d/b.txt", "d/c/d/w.txt", "d/link.txt", &odd];
    for name in ["d", "d/", "d/**", "d/**/*", "d/**/**/*", "d/**/*.*", "d/../d/**/*"] {
        let names = found(&[name]).into_iter().map(|name| name.replace("d/../", "")).collect::<Vec<_>>();
        assert_eq!(names, all, "{name}");
    }
    let cases: [(&[&str], &[&str]); 8] = [
        (&["d/**/*.txt"], &["d/a/z.txt", "d/b.txt", "d/c/d/w.txt", "d/link.txt", &odd]),
        (&["d/*.txt"], &["d/b.txt", "d/link.txt", &odd]),
        (&["d/?.txt"], &["d/b.txt", &odd]),
        (&["d/*/?.*"], &["d/a/y.csv", "d/a/z.txt"]),
        (&["d/.venv/**/*.txt"], &["d/.venv/lib/x.txt"]),
        (&["d/.*/*/*", "d/**/.x*"], &["d/.venv/lib/x.txt", "d/a/.x.txt"]),
        (&["d/a/up/b.txt", "d/b.txt", "d/b.*"], &["d/a/up/b.txt"]),
        (&["d/other/z.txt", "d/a/*.*"], &["d/other/z.txt", "d/a/y.csv"]),
    ];
    for (names, expected) in cases {
        assert_eq!(found(names), expected, "{names:?}");
    }
}

/// A text that is not there is missed, and not passed over.
#[test]
fn links_that_lead_to_nothing_are_named() {
    let (folder, elsewhere) = (Folder::new(), Folder::new());
    folder.file("a.txt", "a");
    symlink("gone.txt", elsewhere.0.path().join("b.txt")).unwrap();
    symlink(elsewhere.0.path(), folder.0.path().join("linked")).unwrap();
    let root = folder.0.path().display();
    for name in [format!("{root}"), format!("{root}/linked"), format!("{root}/**/*.txt"), format!("{root}/linked/b.*")] {
        let message = find(std::slice::from_ref(&name)).expect_err(&name).to_string();
        assert!(message.contains("linked/b.txt is a link to gone.txt, which does not exist"), "{message}");
    }
    elsewhere.file("gone.txt", "b");
    assert_eq!(find(&[root.to_string()]).unwrap().len(), 3, "it leads to a text now");
    symlink("gone too", elsewhere.0.path().join(".hidden")).unwrap();
    assert_eq!(find(&[root.to_string()]).unwrap().len(), 3, "hidden ones are skipped");
}

#[test]
fn a_text_ends_where_it_says_so() {
    let folder = Folder::new();
    let usual = usual_specials(0).unwrap();
    let split = Reading { split: Some(&usual), ..Reading::default() };
    let cases: [(&str, &[&str]); 6] = [
        ("Hello<|endoftext|>World", &["Hello", "World"]),
        ("Hello<|endoftext|>", &["Hello"]),
        ("<|endoftext|>a<|endoftext|><|endoftext|>b", &["", "a", "", "b"]),
        ("plain", &["plain"]),
        ("", &[]),
        ("<|endoftext|>", &[""]),
    ];
    for (text, expected) in cases {
        assert_eq!(read_as(&folder.file("a.txt", text), &split).unwrap().0, expected, "{text}");
        let row = serde_json::json!({ "text": text }).to_string();
        assert_eq!(read_as(&folder.file("a.jsonl", row), &split).unwrap().0, expected, "{text}");
        assert_eq!(read(&folder.file("a.txt", text), None).unwrap().concat(), text, "literal");
    }
    // Over the border of a block, with white space inside the token's name.
    let spaced = Specials::new(vec![Special::plain(0, "the  end of it")], 0).unwrap();
    let text = format!("{}the  end of it{}", "word ".repeat((4 << 20) / 5 - 1), " more".repeat(900_000));
    for pad in 0..16 {
        let padded = format!("{}{text}", "x".repeat(pad));
        let reading = Reading { split: Some(&spaced), ..Reading::default() };
        let found = read_as(&folder.file("b.txt", &padded), &reading).unwrap().0;
        assert!(found.len() == 2 && found.concat().len() + 14 == padded.len(), "{pad}: {}", found.len());
    }
}
