"""The documents of `ftctl prepare` against the rows of Hugging Face's `datasets`, on files as programs and people write them.

Usage: python text_files.py [PATH/TO/ftctl]

`load_dataset` reads each file as the example scripts of `transformers` do, and the column is the one that those take. Both have
the same texts in the same order, or both refuse the file: `ftctl` with exit code 2 and a sentence that names it. A null and an
empty text are no document, because `transformers` makes no token of an empty text and fails on a null. DIFFERENT says where ftctl
differs on purpose, what it does there, and why. Exit code 1 when a file is read in another way, or one of those differs no longer.
"""

import csv
import gzip
import io
import json
import os
import random
import subprocess
import sys
import tempfile
from pathlib import Path

# The library reads these when it is loaded.
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["HF_DATASETS_OFFLINE"] = "1"
SCRATCH = tempfile.TemporaryDirectory()
FOLDER = Path(SCRATCH.name)
SMALL = FOLDER / "small"
os.environ["HF_HOME"] = str(FOLDER / "cache")
os.environ["HF_DATASETS_CACHE"] = str(FOLDER / "cache" / "datasets")

import datasets  # noqa: E402
import pyarrow  # noqa: E402
import pyarrow.parquet  # noqa: E402
import zstandard  # noqa: E402
from tokenizer import program, stored_documents  # noqa: E402
from tokenizers import Tokenizer  # noqa: E402

datasets.disable_progress_bars()
datasets.logging.set_verbosity(datasets.logging.CRITICAL)

REFUSED = "refused"

ROWS = [
    "plain",
    'with, comma; "quotes" and \t tab',
    "two\nlines",
    "\n\nlines around\n",
    "  space around  ",
    "\u00e9dge \u6f22\u5b57 \U0001f600 e\u0301",
    "line\u2028separator, paragraph\u2029separator, next\u0085line, tab\x0bof lines, form\x0cfeed, file\x1cseparator",
    "\ufeffa mark inside",
    "back\\slash \\n /slash",
    '{"text": "a row inside"}',
    "",
    "last",
]


def lines(rows, **how):
    return "".join(json.dumps({"id": number, "text": row}, **how) + "\n" for number, row in enumerate(rows)).encode()


def table(rows, **how):
    out = io.StringIO(newline="")
    csv.writer(out, **how).writerows([["id", "text"], *enumerate(rows)])
    return out.getvalue().encode()


def parquet(column, **how):
    out = io.BytesIO()
    columns = {"id": pyarrow.array(range(len(column))), "text": column}
    pyarrow.parquet.write_table(pyarrow.table(columns), out, **how)
    return out.getvalue()


def random_rows():
    rng = random.Random(11)
    marks = ["\r\n", "\r", "\t", " ", ",", ";", "\"", "'", "\\", "\u0085", "\u2028", "\U0001f469\u200d"]
    parts = [*ROWS, *marks, "a", "word ", "1", "\\u0041"]
    return ["x" + "".join(rng.choice(parts) for _ in range(rng.randrange(1, 9))) for _ in range(2000)]


def json_files():
    many = lines(random_rows())
    yield "lines.jsonl", lines(ROWS)
    yield "raw.jsonl", lines(ROWS, ensure_ascii=False)
    yield "many.jsonl", many
    yield "many.json", many
    yield "many.ndjson", many
    yield "many-raw.jsonl", lines(random_rows(), ensure_ascii=False)
    yield "list.json", json.dumps([{"text": row} for row in ROWS]).encode()
    yield "list-indented.json", json.dumps([{"text": row, "more": {"x": [1, {}]}} for row in ROWS], indent=2).encode()
    yield "list-of-texts.json", json.dumps(ROWS).encode()
    yield "list-of-lines.json", b'[{"text": "a"},\n{"text": "b"}]\n'
    yield "object.json", b'{"text": "a"}'
    yield "object-indented.json", json.dumps({"text": "a", "x": [1, 2]}, indent=2).encode()
    yield "objects-indented.json", b"".join(json.dumps({"text": row}, indent=2).encode() + b"\n" for row in ["a", "b", "c"])
    yield "columns.json", b'{"text": ["a", "b"]}'
    yield "columns-by-row.json", b'{"text": {"0": "a", "1": "b"}}'
    yield "records-below.json", b'{"data": [{"text": "a"}, {"text": "b"}]}'
    yield "records-below-indented.json", json.dumps({"version": "1", "data": [{"text": "a"}, {"text": "b"}]}, indent=1).encode()
    yield "one-line.jsonl", b'{"text": "a"} {"text": "b"}\n{"text": "c"}'
    yield "commas.jsonl", b'{"text": "a"},\n{"text": "b"},\n'
    yield "mark.jsonl", b"\xef\xbb\xbf" + lines(ROWS)
    yield "mark-list.json", b"\xef\xbb\xbf" + json.dumps([{"text": row} for row in ROWS]).encode()
    yield "mark-later.jsonl", b'{"text": "a"}\n\xef\xbb\xbf{"text": "b"}\n'
    yield "no-end.jsonl", b'{"text": "a"}\n{"text": "b"}'
    yield "crlf.jsonl", b'{"text": "a"}\r\n{"text": "b"}\r\n'
    yield "cr.jsonl", b'{"text": "a"}\r{"text": "b"}\r'
    yield "blank-lines.jsonl", b'\n{"text": "a"}\n\n  \n\t\r\n{"text": "b"}\n\n'
    yield "space-before.jsonl", b'  {"text": "a"}\n\t{"text": "b"}  \n'
    yield "space-inside.jsonl", b'{ "text" :\t"a" , "x" : [ ] }\n{"text": "b"}\n'
    yield "space-list.json", b' [{"text": "a"}, {"text": "b"}]'
    yield "null.jsonl", b'{"text": "a"}\n{"text": null}\n{"text": "b"}\n'
    yield "null-first.jsonl", b'{"text": null}\n{"text": "b"}\n'
    yield "nulls.jsonl", b'{"text": null}\n{"text": null}\n'
    yield "empty.jsonl", b'{"text": ""}\n{"text": "b"}\n'
    yield "empties.jsonl", b'{"text": ""}\n'
    yield "no-lines.jsonl", b""
    yield "no-rows.json", b"[]"
    yield "blank-only.jsonl", b"\n \n"
    yield "escapes.jsonl", rb'{"text": "\u00e9\n\ud83d\ude00 \/ \b\f\t\" \u2028 \uFEFF"}'
    yield "escaped-name.jsonl", rb'{"\u0074ext": "a"}'
    yield "surrogate.jsonl", b'{"text": "a"}\n{"text": "\\ud800"}\n'
    yield "surrogate-low.jsonl", b'{"text": "\\ude00 x"}\n'
    yield "surrogates-swapped.jsonl", b'{"text": "\\ude00\\ud83d"}\n'
    yield "surrogate-elsewhere.jsonl", b'{"text": "a", "x": "\\ud800"}\n'
    yield "control.jsonl", b'{"text": "a\tb\x01"}\n'
    yield "delete.jsonl", b'{"text": "a\x7fb"}\n'
    yield "nul.jsonl", b'{"text": "a\\u0000b"}\n'
    yield "bad-escape.jsonl", b'{"text": "a\\qb"}\n'
    yield "not-utf-8.jsonl", b'{"text": "caf\xe9"}\n'
    yield "not-utf-8-elsewhere.jsonl", b'{"text": "a", "x": "caf\xe9"}\n'
    yield "single-quotes.jsonl", b"{'text': 'a'}\n"
    yield "cut.jsonl", b'{"text": "a"}\n{"text": "b'
    yield "cut-first.jsonl", b'{"text": "a\n{"text": "b"}\n'
    yield "rubbish.jsonl", b'{"text": "a"}\nno row\n{"text": "b"}\n'
    yield "list-open.json", b'[{"text": "a"}, {"text": "b"}'
    yield "list-comma.json", b'[{"text": "a"}, {"text": "b"},]'
    yield "comment.jsonl", b'// rows\n{"text": "a"}\n'
    yield "more-columns.jsonl", b'{"text": "a"}\n{"text": "b", "id": 5}\n{"id": 6, "text": "c"}\n'
    yield "missing.jsonl", b'{"text": "a"}\n{"title": "b"}\n{"text": "c"}\n'
    yield "missing-first.jsonl", b'{"meta": 1}\n{"text": "a"}\n'
    yield "other-name.jsonl", b'{"body": "a"}\n{"body": "b"}\n'
    yield "other-names.jsonl", b'{"body": "a", "id": 1}\n{"body": "b", "id": 2}\n'
    yield "other-then-text.jsonl", b'{"body": "a"}\n{"text": "b"}\n'
    yield "no-text.jsonl", b'{"id": 1, "title": "a"}\n'
    yield "twice.jsonl", b'{"text": "a", "text": "b"}\n'
    yield "capitals.jsonl", b'{"Text": "a"}\n'
    yield "number.jsonl", b'{"text": 5}\n'
    yield "numbers-among.jsonl", b'{"text": "a"}\n{"text": 5}\n'
    yield "truth.jsonl", b'{"text": true}\n'
    yield "list-inside.jsonl", b'{"text": ["a"]}\n'
    yield "object-inside.jsonl", b'{"text": {"a": "b"}}\n'
    yield "mixed-elsewhere.jsonl", b'{"text": "a", "x": 1}\n{"text": "b", "x": "y"}\n{"text": "c", "x": [1]}\n'
    yield "nested.jsonl", b'{"x": [[{"text": "no"}]], "text": "a"}\n{"x": [], "text": "b"}\n'
    yield "nan-elsewhere.jsonl", b'{"text": "a", "x": NaN}\n{"text": "b", "x": -Infinity}\n'
    yield "large-elsewhere.jsonl", b'{"text": "a", "x": 123456789012345678901234567890}\n{"text": "b", "x": 1e999}\n'
    yield "date.jsonl", b'{"text": "2024-01-31"}\n{"text": "2024-02-01 10:00:00"}\n'
    yield "date-among.jsonl", b'{"text": "2024-01-31"}\n{"text": "a"}\n'
    yield "digits.jsonl", b'{"text": "12"}\n{"text": "007"}\n{"text": "1e5"}\n'
    yield "digits.json", b'[{"text": "12"}, {"text": "007"}, {"text": "1e5"}]'
    yield "words.jsonl", b'{"text": "null"}\n{"text": "NA"}\n{"text": "NaN"}\n{"text": "true"}\n'
    yield "white.jsonl", b'{"text": " "}\n{"text": "\\n"}\n{"text": "a"}\n'
    yield "long.jsonl", lines(["a word and another " * 100_000, "b"])
    yield "lines.jsonl.gz", gzip.compress(lines(ROWS))
    yield "lines.json.gz", gzip.compress(lines(ROWS))
    yield "list.json.gz", gzip.compress(json.dumps([{"text": row} for row in ROWS]).encode())
    yield "members.jsonl.gz", gzip.compress(lines(ROWS)) + gzip.compress(lines(["of another member"]))
    yield "lines.jsonl.zst", zstandard.compress(lines(ROWS))
    yield "frames.jsonl.zst", zstandard.compress(lines(ROWS)) + zstandard.compress(lines(["of another frame"]))
    yield "cut.jsonl.gz", gzip.compress(lines(random_rows()))[:-5000]
    yield "cut.jsonl.zst", zstandard.compress(lines(random_rows()))[:-5000]


def csv_files():
    yield "rows.csv", table(ROWS)
    yield "quoted.csv", table(ROWS, quoting=csv.QUOTE_ALL)
    yield "lf.csv", table(ROWS, lineterminator="\n")
    yield "many.csv", table(random_rows())
    yield "many.tsv", table(random_rows(), delimiter="\t")
    yield "mark.csv", b"\xef\xbb\xbf" + table(ROWS)
    yield "mark-quoted.csv", b"\xef\xbb\xbf" + b'"text","id"\n"a",1\n'
    yield "one.csv", b"text\na\nb\n"
    yield "one-other.csv", b"body\na\nb\n"
    yield "no-end.csv", b"text\na\nb"
    yield "cr.csv", b"text,id\ra,1\rb,2\r"
    yield "cr-semicolons.csv", b"text\ra;b\rc\td\r"
    yield "blank-lines.csv", b"\ntext\n\na\n\n\nb\n\n"
    yield "white-lines.csv", b"text\na\n  \n\t\nb\n"
    yield "white-quoted.csv", b'text\n"  "\na\n'
    yield "line-ends-quoted.csv", b'text\n"\n"\na\n" \r\n "\n'
    yield "blank-lines-of-two.csv", b"text,id\n\na,1\n  \nb,2\n\n"
    yield "empty-fields.csv", b'text,id\n,1\n"",2\na,3\n'
    yield "only-empty.csv", b'text\n""\na\n'
    yield "crlf-inside.csv", b'text,id\r\n"a\r\nb",1\r\n"c\nd",2\r\n"e\rf",3\r\n'
    yield "quotes-inside.csv", b'text,id\na "b" c,1\n5" disk,2\n"d"e,3\n"f""g",4\n'
    yield "space-before-quote.csv", b'text,id\n "a",1\nb, "c"\n'
    yield "quote-open.csv", b'text,id\n"a,1\nb,2\n'
    yield "space-around.csv", b"text,id\n  a  ,1\n"
    yield "space-in-header.csv", b"id, text\n1, a\n"
    yield "header-only.csv", b"text,id\n"
    yield "no-bytes.csv", b""
    yield "short.csv", b"text,id,x\na,1,y\nb\nc,2\n"
    yield "short-before-text.csv", b"id,text\n1,a\n2\n3,c\n"
    yield "field-more.csv", b"text,id\na,1\nb,2,3\n"
    yield "comma-at-end.csv", b"id,text\n1,a,\n2,b,\n"
    yield "comma-at-end-of-header.csv", b"id,text,\n1,a,\n2,b,\n"
    yield "field-more-first.csv", b"id,text\n1,a,x\n2,b,y\n"
    yield "twice.csv", b"text,text\na,b\n"
    yield "other-names.csv", b"body,id\na,1\n"
    yield "no-header.csv", b"a,b\nc,d\n"
    yield "index.csv", b",text\n0,a\n1,b\n"
    yield "semicolon.csv", b"id;text\n1;a\n2;b, c\n"
    yield "semicolons-inside.csv", b"text,id\na;b,1\n"
    yield "pipes-in-one.csv", b"text\na|b\nc;d\n"
    yield "words.csv", b"text,id\nNA,1\nnull,2\nNone,3\na,4\n"
    yield "numbers.csv", b"text,id\n1,1\n2,2\n"
    yield "numbers-among.csv", b"text,id\n007,1\n1.50,2\na,3\n"
    yield "truths.csv", b"text\nTrue\nFalse\n"
    yield "date.csv", b"text\n2024-01-31\n"
    yield "nul.csv", b"text,id\na\0b,1\n"
    yield "not-utf-8.csv", b"text,id\ncaf\xe9,1\n"
    yield "not-utf-8-elsewhere.csv", b"text,id\na,caf\xe9\n"
    yield "backslash.csv", b'text,id\n"a \\" b",1\n'
    yield "hash.csv", b"text\n# a\nb\n"
    yield "separators.csv", "text,id\na\u2028b\u0085c\x0bd\x0ce\x1cf,1\n".encode()
    yield "long.csv", table(["a word and another " * 50_000, "b"])
    yield "rows.csv.gz", gzip.compress(table(ROWS))
    yield "rows.csv.zst", zstandard.compress(table(ROWS))


def parquet_files():
    texts = [*ROWS, None, *random_rows()]
    plain = pyarrow.array(texts, pyarrow.string())
    for codec in ["none", "snappy", "gzip", "zstd", "lz4", "brotli"]:
        yield f"{codec}.parquet", parquet(plain, compression=codec)
    yield "plain.parquet", parquet(plain, use_dictionary=False)
    yield "words.parquet", parquet(pyarrow.array(["a", "b", None, "a", ""] * 5000), use_dictionary=True)
    yield "dictionary.parquet", parquet(plain.dictionary_encode())
    yield "large.parquet", parquet(plain.cast(pyarrow.large_string()))
    yield "view.parquet", parquet(plain.cast(pyarrow.string_view()))
    yield "groups.parquet", parquet(plain, row_group_size=100)
    yield "pages.parquet", parquet(plain, data_page_size=1000, use_dictionary=False)
    yield "pages-2.parquet", parquet(plain, data_page_size=1000, data_page_version="2.0", version="2.6")
    yield "delta.parquet", parquet(plain, use_dictionary=False, column_encoding={"text": "DELTA_BYTE_ARRAY"})
    yield "delta-length.parquet", parquet(plain, use_dictionary=False, column_encoding={"text": "DELTA_LENGTH_BYTE_ARRAY"})
    yield "checksums.parquet", parquet(plain, write_page_checksum=True)
    yield "no-statistics.parquet", parquet(plain, write_statistics=False, store_schema=False)
    yield "no-nulls.parquet", parquet(pyarrow.array(["a", "b"]))
    yield "nulls.parquet", parquet(pyarrow.array([None, None], pyarrow.string()))
    yield "no-rows.parquet", parquet(pyarrow.array([], pyarrow.string()))
    yield "binary.parquet", parquet(pyarrow.array([b"a", b"b"]))
    yield "numbers.parquet", parquet(pyarrow.array([1, 2]))
    yield "lists.parquet", parquet(pyarrow.array([["a"], ["b"]]))
    yield "structs.parquet", parquet(pyarrow.array([{"a": "b"}]))
    yield "null-type.parquet", parquet(pyarrow.nulls(2))
    yield "cut.parquet", parquet(plain)[:-9]
    yield "no.parquet", b"text\na\n"


def text_files():
    yield "plain.txt", b"one\ntwo\n\nthree\n"
    yield "no-end.txt", b"one\ntwo"
    yield "separators.txt", "one\u2028two\u0085three\x0bfour\x0cfive\x1csix\n".encode()
    yield "many.txt", "".join(row.replace("\r", "") + "\n" for row in random_rows()).encode()
    yield "white.txt", b"  \n\n\t\n"
    yield "crlf.txt", b"one\r\ntwo\r\n"
    yield "mark.txt", b"\xef\xbb\xbfone\n"
    yield "nul.txt", b"one\0two\n"
    yield "not-utf-8.txt", b"caf\xe9\n"
    yield "utf-16.txt", "one\n".encode("utf-16")
    yield "no-bytes.txt", b""
    yield "plain.txt.gz", gzip.compress(b"one\ntwo\n")
    yield "plain.txt.zst", zstandard.compress(b"one\ntwo\n")


def written_files():
    """The same rows as other programs write them."""
    source = FOLDER / "source.jsonl"
    # Python's csv may write a carriage return without quotation marks, which all read as the end of a row.
    source.write_bytes(lines([row for row in [*ROWS, *random_rows()] if row and "\r" not in row]))
    rows = load("json", [source])
    frame = rows.to_pandas()
    for name, write in {
        "datasets.jsonl": rows.to_json,
        "datasets.csv": rows.to_csv,
        "datasets.parquet": rows.to_parquet,
        "pandas.jsonl": lambda out: frame.to_json(out, orient="records", lines=True),
        "pandas-list.json": lambda out: frame.to_json(out, orient="records", indent=1),
        "pandas-index.csv": frame.to_csv,
        "pandas.parquet": frame.to_parquet,
    }.items():
        out = io.BytesIO()
        write(out)
        yield name, out.getvalue()


ASKS = "ftctl asks for the column where transformers takes the first"
BELOW = "rows inside an object are taken out of it by the user, and a message says how"
LOST = "a row without the text is a mistake until the user says that it may be left out"
OTHER = "only the column of the text is read"
NUL = "a NUL byte is of another encoding, or of what is no text"
WORD = "a text is what is written, and not the date, the number or the missing value that it could be"
SKIP = ["--on-bad-row", "skip"]

# What ftctl does on purpose: its documents, or what its refusal says; why; and the flags under which it does what datasets does.
DIFFERENT = {
    "records-below-indented.json": ("are a list in `data` of one object", BELOW, None),
    "other-names.jsonl": ("more than one to choose from: `body`, `id`", ASKS, ["--column", "body"]),
    "other-names.csv": ("more than one to choose from: `body`, `id`", ASKS, ["--column", "body"]),
    "no-header.csv": ("more than one to choose from: `a`, `b`", ASKS, ["--column", "a"]),
    "missing.jsonl": ("no column `text` in line 2", LOST, SKIP),
    "missing-first.jsonl": ("column `meta`", LOST, SKIP),
    "other-then-text.jsonl": ("a later one has: `text`", LOST, SKIP),
    "short-before-text.csv": ("in line 3: it has 1 fields, the header has 2", LOST, SKIP),
    "surrogate-elsewhere.jsonl": (["a"], OTHER, None),
    "large-elsewhere.jsonl": (["a", "b"], OTHER, None),
    "not-utf-8-elsewhere.csv": (["a"], OTHER, None),
    "twice.jsonl": (["b"], "the last of two values with one name counts, as for Python's json", None),
    "nul.jsonl": ("NUL byte in line 1", NUL, None),
    "nul.csv": ("NUL byte in line 2", NUL, None),
    "nul.txt": ("NUL byte at offset 3", NUL, None),
    "date.jsonl": (["2024-01-31", "2024-02-01 10:00:00"], WORD, None),
    "words.csv": (["NA", "null", "None", "a"], WORD, None),
    "numbers.csv": (["1", "2"], WORD, None),
    "truths.csv": (["True", "False"], WORD, None),
    "white-quoted.csv": (["a"], "a line of white space alone is no row, quoted or not", None),
    "field-more-first.csv": ("in line 2: it has 3 fields, the header has 2", "a field without a name is no index of rows", None),
    "semicolon.csv": (["a", "b, c"], "the header tells what parts the fields", None),
    "brotli.parquet": ("packed by Brotli; write it with zstd", "hardly a program packs pages so", None),
    "binary.parquet": (["a", "b"], "bytes that are UTF-8 are text", None),
    "crlf.txt": (["one\r\ntwo\r\n"], "a text file is taken as it is", None),
    "mark.txt": (["one\n"], "a byte-order mark is no part of the text", None),
}


def load(kind, paths, **how):
    return datasets.load_dataset(kind, data_files=[str(path) for path in paths], split="train", **how)


def theirs(kind, paths):
    """The texts of the rows; REFUSED where nothing can be trained on."""
    how = {"keep_linebreaks": True} if kind == "text" else {"sep": "\t"} if paths[0].suffix == ".tsv" else {}
    try:
        rows = load(kind, paths, **how)
        # As run_clm.py chooses.
        column = rows["text" if "text" in rows.column_names else rows.column_names[0]][:]
    except Exception as error:
        if isinstance(error.__cause__ or error, ImportError):
            raise
        return REFUSED
    if not all(text is None or isinstance(text, str) for text in column):
        return REFUSED
    if kind == "text":
        # It puts the lines together again.
        column = ["".join(column)]
        assert column == load(kind, paths, sample_by="document")["text"][:], paths
    return [text for text in column if text] or REFUSED


def prepare(paths, flags):
    """A dataset with nothing held out, or what was said when there is none."""
    out = Path(tempfile.mkdtemp(dir=FOLDER)) / "out"
    command = [program(), "prepare", "--quiet", "--validation-fraction", "0", "--out", out, *flags, *paths]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode == 0:
        return out, ""
    said = done.stderr.strip()
    is_named = paths[0].name in said or "the training text contains no text" in said
    assert done.returncode == 2 and said.startswith("error: ") and "\n" not in said and is_named, (done.returncode, said)
    return None, said


def ours(paths, flags):
    """The documents and nothing; REFUSED, and what was said."""
    out, said = prepare(paths, [*flags, "--tokenizer-from", SMALL])
    if out is None:
        return REFUSED, said
    decoder = Tokenizer.from_file(str(out / "tokenizer.json"))
    return [decoder.decode(ids, skip_special_tokens=False) for ids in stored_documents(out)[0]], ""


def fault(kind, name, paths):
    """How the two differ, if that is not meant."""
    wanted, (found, said) = theirs(kind, paths), ours(paths, [])
    if name not in DIFFERENT:
        return "" if found == wanted else f"{first_of(found, wanted)} {said}"
    meant, _, flags = DIFFERENT[name]
    if found == wanted:
        return "is listed as different, and is not"
    if not (found == meant or isinstance(meant, str) and meant in said):
        return f"differs in another way than is listed: {found if found != REFUSED else said}"
    return "" if flags is None or ours(paths, flags)[0] == wanted else f"is not the same with {' '.join(flags)}"


def first_of(found, wanted):
    if REFUSED in (found, wanted):
        return f"ftctl: {found!s:.200}, datasets: {wanted!s:.200}"
    at = next((at for at, pair in enumerate(zip(found, wanted)) if pair[0] != pair[1]), min(len(found), len(wanted)))
    ours, theirs = found[at : at + 1], wanted[at : at + 1]
    return f"{len(found)} documents, {len(wanted)} there; number {at + 1} is {ours!r:.200}, there {theirs!r:.200}"


def loader(name):
    """The one of `datasets` for a file, by its name."""
    extension = name.removesuffix(".gz").removesuffix(".zst").rpartition(".")[2]
    return {"jsonl": "json", "ndjson": "json", "tsv": "csv", "txt": "text"}.get(extension, extension)


def main():
    words = FOLDER / "words.txt"
    words.write_text("the town by the sea, the towns of the others, and the end of them all. " * 60)
    out, said = prepare([words], ["--tokenizer", "train", "--vocabulary", "280"])
    assert out, said
    out.rename(SMALL)
    failed, seen = 0, set()
    for files in [json_files, csv_files, parquet_files, text_files, written_files]:
        before = len(seen)
        for name, content in files():
            path = FOLDER / name
            path.write_bytes(content)
            seen.add(name)
            if found := fault(loader(name), name, [path]):
                failed += 1
                print(f"FAILED {name}: {found}")
        print(f"{files.__name__.replace('_', ' ')}: {len(seen) - before}", flush=True)
    several = [FOLDER / name for name in ["many.jsonl", "list.json", "crlf.jsonl", "lines.jsonl.zst", "lines.json.gz"]]
    if found := fault("json", "several", several):
        failed += 1
        print(f"FAILED several files: {found}")
    assert seen.issuperset(DIFFERENT), set(DIFFERENT) - seen
    verdict = "FAIL" if failed else "ok"
    meant = f"{len(DIFFERENT)} are read differently on purpose"
    print(f"{verdict}: {len(seen)} files and datasets {datasets.__version__}; {meant}, {failed} by mistake")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
