"""Damaged files for the campaign: texts, archives, JSON and YAML, damaged at random from a seed.

damaged(random.Random(1), "graph.fx.txt", content)      # the bytes of another file, of the same name
"""

from __future__ import annotations

import gzip
import io
import json
import re
import zipfile
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import random
    from collections.abc import Callable

#: Texts that have no business where they are put.
ODD = (
    *(
        "",
        " ",
        "-1",
        "0",
        "1e999",
        "nan",
        "9" * 400,
        "0x10",
        "None",
        "True",
        "~",
        "%",
        "*",
        "&a",
        "!!python/object:os.system",
    ),
    *(
        "\ufeff",
        "\u202e",
        "\u2028",
        "é",
        "\U0001d54f",
        "\x00",
        "\x1b[31m",
        "a" * 5000,
        "..",
        "/",
        "{",
        "[",
        "}",
        ")",
        "'",
        '"',
        "\\",
        ":",
        "- ",
    ),
)
VALUES: tuple[Any, ...] = (None, True, -1, 0, 1.5, 2**63, 10**400, "", "x", [], {}, [[]], {"": None}, float("nan"))
_NUMBER = re.compile(rb"(?<![\w.])\d+(?![\w.])")
_WORD = re.compile(rb"[A-Za-z_][\w.]*")


def damaged(chance: random.Random, name: str, content: bytes) -> bytes:
    """Another content for a file of that name; one to three damages."""
    for _ in range(chance.choice((1, 1, 1, 2, 3))):
        content = _once(chance, name, content)
    return content


def _once(chance: random.Random, name: str, content: bytes) -> bytes:
    if name.endswith(".gz"):
        return _packed(chance, content)
    if name.endswith(".pt2"):
        return _archive(chance, content)
    if name.endswith(".json") and chance.random() < 0.6:
        return _json(chance, content)
    return chance.choice(TEXT)(chance, content)


# texts


def flipped(chance: random.Random, content: bytes) -> bytes:
    made = bytearray(content)
    for _ in range(chance.choice((1, 1, 4))):
        if made:
            made[chance.randrange(len(made))] ^= 1 << chance.randrange(8)
    return bytes(made)


def cut(chance: random.Random, content: bytes) -> bytes:
    return content[: chance.randrange(len(content) + 1)]


def _lines(change: Callable[[random.Random, list[bytes]], None]) -> Callable[[random.Random, bytes], bytes]:
    def made(chance: random.Random, content: bytes) -> bytes:
        lines = content.splitlines(keepends=True)
        if lines:
            change(chance, lines)
        return b"".join(lines)

    return made


def _dropped(chance: random.Random, lines: list[bytes]) -> None:
    del lines[chance.randrange(len(lines))]


def _doubled(chance: random.Random, lines: list[bytes]) -> None:
    at = chance.randrange(len(lines))
    lines.insert(chance.randrange(len(lines) + 1), lines[at])


def _swapped(chance: random.Random, lines: list[bytes]) -> None:
    one, other = chance.randrange(len(lines)), chance.randrange(len(lines))
    lines[one], lines[other] = lines[other], lines[one]


def _nested(chance: random.Random, lines: list[bytes]) -> None:
    deep = chance.choice((20, 300, 5000))
    at = chance.randrange(len(lines))
    opened, closed = chance.choice(((b"[", b"]"), (b"(", b")"), (b"{'a':", b"}"), (b"-", b"")))
    lines[at] = lines[at].rstrip(b"\n") + b" " + opened * deep + b"1" + closed * deep + b"\n"


def odd_text(chance: random.Random, content: bytes) -> bytes:
    at = chance.randrange(len(content) + 1)
    return content[:at] + chance.choice(ODD).encode("utf-8", "surrogatepass") + content[at:]


def other_number(chance: random.Random, content: bytes) -> bytes:
    found = list(_NUMBER.finditer(content))
    if not found:
        return content
    match = chance.choice(found)
    number = chance.choice(
        (b"0", b"-1", b"1", b"2", b"7", b"1000000", str(2**63).encode(), b"9" * 400, b"1.5", b"s0", b"u0")
    )
    return content[: match.start()] + number + content[match.end() :]


def other_word(chance: random.Random, content: bytes) -> bytes:
    """A word becomes another word of the same file."""
    found = list(_WORD.finditer(content))
    if len(found) < 2:
        return content
    match, other = chance.choice(found), chance.choice(found)
    return content[: match.start()] + other[0] + content[match.end() :]


TEXT: tuple[Callable[[random.Random, bytes], bytes], ...] = (
    *(flipped, cut, odd_text, other_number, other_number, other_word, other_word),
    *(_lines(change) for change in (_dropped, _doubled, _swapped, _nested)),
)


# packed files, archives and JSON


def _packed(chance: random.Random, content: bytes) -> bytes:
    if chance.random() < 0.3:
        return chance.choice((flipped, cut))(chance, content)
    try:
        text = gzip.decompress(content)
    except (OSError, EOFError):
        return flipped(chance, content)
    except Exception:  # what zlib makes of damaged bytes
        return content
    return gzip.compress(chance.choice(TEXT)(chance, text), 1, mtime=0)


def _archive(chance: random.Random, content: bytes) -> bytes:
    """Damage one entry of a zip, or the zip."""
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            entries = {name: archive.read(name) for name in archive.namelist()}
    except Exception:  # it is damaged already
        return flipped(chance, content)
    if not entries or chance.random() < 0.15:
        return chance.choice((flipped, cut))(chance, content)
    name = chance.choice(sorted(entries))
    way = chance.randrange(8)
    if way == 0:
        del entries[name]
    elif way == 1:
        entries[chance.choice(("../x", name + "x", "archive/data/constants/evil.pt"))] = entries[name]
    elif name.endswith(".json"):
        entries[name] = _json(chance, entries[name])
    else:
        entries[name] = chance.choice((flipped, cut))(chance, entries[name])
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        for each, data in entries.items():
            archive.writestr(each, data)
    return packed.getvalue()


def _json(chance: random.Random, content: bytes) -> bytes:
    try:
        value = json.loads(content)
    except (ValueError, RecursionError):
        return chance.choice(TEXT)(chance, content)
    places = _places(value)
    place, key = chance.choice(places) if places else (None, None)
    if place is None:
        value = chance.choice(VALUES)
    elif isinstance(place, dict) and chance.random() < 0.2:
        del place[key]
    else:
        place[key] = chance.choice((*VALUES, chance.choice(ODD), chance.choice(places)[0]))
    try:
        return json.dumps(value).encode("utf-8", "surrogatepass")
    except (ValueError, RecursionError):  # a place put into itself
        return b"[" * 3000 + b"]" * 3000


def _places(value: Any) -> list[tuple[Any, Any]]:
    found: list[tuple[Any, Any]] = []
    stack = [value]
    while stack:
        at = stack.pop()
        inner = list(at.items()) if isinstance(at, dict) else list(enumerate(at)) if isinstance(at, list) else []
        found += [(at, key) for key, _ in inner]
        stack += [each for _, each in inner]
    return found
