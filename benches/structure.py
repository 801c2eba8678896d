#!/usr/bin/env python3
"""The shape of the code and the length of its words, in figures, for one revision or for several beside each other.

    python3 benches/structure.py [REVISION...]      without one: HEAD

Product code only: `src/` and `trainer/src/` without files of tests. A function's lines are those from its `fn` to its closing brace. The
rooms of the trainer are its folders; an arrow is a pair of rooms of which one names the other.
"""

import io
import pathlib
import re
import statistics
import subprocess
import sys
import tarfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
# Comments, strings and characters, in which braces mean nothing; a lifetime is no character.
NO_CODE = re.compile(
    r'//[^\n]*|/\*.*?\*/|b?r(#*)".*?"\1|b?"(?:\\.|[^"\\])*"|b?\'(?:\\(?:u\{[^}]*\}|x..|.)|[^\\\'])\'', re.DOTALL
)
FUNCTION = re.compile(r"\bfn\s+\w+")
TESTS = re.compile(r"#\[cfg\(test\)\]\s*mod \w+ \{.*", re.DOTALL)


def main():
    revisions = sys.argv[1:] or ["HEAD"]
    columns = [measures(files(revision)) for revision in revisions]
    print("| measure |" + "".join(f" {revision} |" for revision in revisions))
    print("|---|" + "---|" * len(revisions))
    for name in columns[0]:
        print(f"| {name} |" + "".join(f" {column[name]:,} |" for column in columns))


def files(revision):
    archive = subprocess.run(["git", "archive", revision], cwd=ROOT, capture_output=True, check=True).stdout
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        return {entry.name: tar.extractfile(entry).read().decode(errors="replace") for entry in tar if entry.isfile()}


def measures(texts):
    sources = {name: text for name, text in texts.items() if is_product(name)}
    lines = [text.count("\n") for text in sources.values()]
    functions = [length for text in sources.values() for length in function_lengths(text)]
    trainer = {name.removeprefix("trainer/src/"): text for name, text in sources.items() if name.startswith("trainer/src/")}
    rooms = {room(name) for name in trainer}
    readme = prose(texts["README.md"])
    return {
        "files": len(sources),
        "lines of a file, p90": percentile(lines, 90),
        "lines of a file, most": max(lines),
        "functions": len(functions),
        "lines of a function, median": round(statistics.median(functions)),
        "lines of a function, p90": percentile(functions, 90),
        "lines of a function, p99": percentile(functions, 99),
        "lines of a function, most": max(functions),
        "trainer: files outside a room": sum("/" not in name for name in trainer),
        "trainer: rooms": len(rooms),
        "trainer: arrows between rooms": len(arrows(trainer, rooms)),
        "README: lines": texts["README.md"].count("\n"),
        "README: words": sum(len(sentence.split()) for sentence in readme),
        "README: words of a sentence, median": round(statistics.median(len(sentence.split()) for sentence in readme)),
    }


def is_product(name):
    of_tests = name.endswith("/tests.rs") or "/tests/" in name
    return name.endswith(".rs") and name.startswith(("src/", "trainer/src/")) and not of_tests


def percentile(numbers, percent):
    ordered = sorted(numbers)
    return ordered[min(len(ordered) - 1, len(ordered) * percent // 100)]


def code(text):
    """The text with everything blank that is no code, line by line in the same place."""
    return NO_CODE.sub(lambda match: re.sub(r"[^\n]", " ", match[0]), text)


def function_lengths(text):
    text = TESTS.sub("", code(text))
    for match in FUNCTION.finditer(text):
        opened = body(text, match.end())
        if opened is None:
            continue
        depth = 0
        for brace in re.compile(r"[{}]").finditer(text, opened):
            depth += 1 if brace[0] == "{" else -1
            if depth == 0:
                yield text.count("\n", match.start(), brace.end()) + 1
                break


def body(text, start):
    """Where a function's body begins; None where it has none. The semicolon of an array's type ends no declaration."""
    depth = 0
    for sign in re.compile(r"[()\[\]{;]").finditer(text, start):
        depth += {"(": 1, "[": 1, ")": -1, "]": -1}.get(sign[0], 0)
        if depth == 0 and sign[0] in "{;":
            return sign.start() if sign[0] == "{" else None
    return None


def room(name):
    """A file beside a folder of its name is that folder's."""
    return name.rsplit("/", 1)[0] if "/" in name else name.removesuffix(".rs")


def arrows(trainer, rooms):
    found = set()
    for name, text in trainer.items():
        text = TESTS.sub("", code(text))
        here = room(name)
        if here in ("lib", "main"):
            continue
        for path in re.findall(r"\bcrate::([\w:]+)", text) + grouped(text):
            parts = path.split("::")
            # The longest folder, or file outside one, that the path begins with.
            target = next((t for n in range(len(parts), 0, -1) if (t := "/".join(parts[:n])) in rooms), None)
            if target and target != here:
                found.add((here, target))
    return found


def grouped(text):
    """Paths of `use crate::{a::b, c::{d, e}}`."""
    paths = []
    for match in re.finditer(r"\buse crate::\{", text):
        depth, prefix, word = 1, [""], ""
        for letter in text[match.end():]:
            if letter in "{},":
                if letter == "{":
                    prefix.append(prefix[-1] + word)
                elif word:
                    paths.append(prefix[-1] + word)
                if letter == "}":
                    prefix.pop()
                depth += {"{": 1, "}": -1, ",": 0}[letter]
                word = ""
                if depth == 0:
                    break
            elif not letter.isspace():
                word += letter
    return paths


def prose(markdown):
    """The sentences of a page, without its code and its tables."""
    text = re.sub(r"```.*?```", "", markdown, flags=re.DOTALL)
    kept = [line for line in text.splitlines() if line and not line.startswith(("|", "#", "<", "!", "    "))]
    return [sentence for sentence in re.split(r"(?<=[.!?:])\s+", " ".join(kept)) if len(sentence.split()) > 1]


if __name__ == "__main__":
    main()
