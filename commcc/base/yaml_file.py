"""Untrusted YAML, read strictly: every value knows its line, and all mistakes are said in one message.

    file = read_yaml("coll.yaml")                    # InputError when it is no YAML at all
    fields = file.root.mapping({"group", "points"}, {"unit"})
    group = fields["group"].text()
    sizes = [point.number(above=0) for point in fields["points"].items()]
    file.check()                                     # InputError: coll.yaml:3: unknown key 'gruop' (did you ...

A reader that finds something wrong notes it and returns a stand-in (``""``, ``0.0``, nothing), so that
the reading goes on to the next mistake; call :meth:`YamlFile.check` before using anything that was read.

Nothing is constructed from the text, so no tag can run code and no value changes its type behind the
author's back: a scalar is what the caller asks for, ``1e-3`` is a number and ``no`` is a word. Limits:
no anchors, aliases, tags, repeated keys or second documents; 64 MiB, 3 million values, 40 levels.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from commcc.base.errors import InputError
from commcc.base.text import shown
from commcc.base.yaml_node import Node, YamlFile

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["Node", "YamlFile", "parse_yaml", "read_text", "read_yaml"]

MAX_BYTES = 64 << 20
MAX_VALUES = 3_000_000
MAX_DEPTH = 40


def read_yaml(path: str | Path) -> YamlFile:
    """Read a file of one YAML document; :class:`InputError` when it cannot be read or is not such a file."""
    return parse_yaml(read_text(path), str(path))


def parse_yaml(text: str, path: str) -> YamlFile:
    """As :func:`read_yaml`, of a text that is there already; ``path`` is for messages."""
    import yaml

    file = YamlFile(path)
    try:
        file.root = _Builder(file).build(yaml.parse(text, Loader=_loader()))
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = f":{mark.line + 1}" if mark is not None else ""
        raise InputError(f"not YAML: {error.problem or error.context}", where=f"{path}{line}") from None
    except (yaml.YAMLError, RecursionError) as error:
        bad = yaml.reader.Reader.NON_PRINTABLE.search(text)
        line = f":{text.count(chr(10), 0, bad.start()) + 1}" if bad else ""
        raise InputError(f"not YAML: {'control characters' if bad else error}", where=f"{path}{line}") from None
    return file


def read_text(path: str | Path) -> str:
    """The text of a file of at most 64 MiB; :class:`InputError` when it cannot be read or is no UTF-8."""
    where = str(path)
    try:
        with Path(path).open("rb") as stream:
            data = stream.read(MAX_BYTES + 1)
    except FileNotFoundError:
        raise InputError("no such file", where=where) from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise InputError(f"cannot be read: {reason}", where=where) from None
    if len(data) > MAX_BYTES:
        raise InputError(f"is larger than {MAX_BYTES >> 20} MiB", where=where)
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise InputError("is not UTF-8 text", where=f"{where}:{line}") from None


def _loader() -> Any:
    """libyaml's parser where PyYAML was built with it, about ten times as fast."""
    import yaml

    return getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class _Builder:
    """Makes nodes of parse events, with a stack of its own so that no nesting can exhaust Python's."""

    def __init__(self, file: YamlFile) -> None:
        self._file = file
        self._open: list[Node] = []
        self._keys: list[tuple[str, int] | None] = []
        self._root: Node | None = None

    def build(self, events: Iterator[Any]) -> Node:
        documents = 0
        for count, event in enumerate(events):
            kind = type(event).__name__
            if count > MAX_VALUES:
                raise self._refuse(event, f"more than {MAX_VALUES} values")
            if kind == "DocumentStartEvent":
                documents += 1
                if documents > 1:
                    raise self._refuse(event, "a second document ('---')")
            elif kind in ("SequenceEndEvent", "MappingEndEvent"):
                self._open.pop()
                self._keys.pop()
            elif kind in ("AliasEvent", "ScalarEvent", "SequenceStartEvent", "MappingStartEvent"):
                self._value(event, kind)
        return self._root if self._root is not None else Node(self._file, 1, "", plain=True)

    def _value(self, event: Any, kind: str) -> None:
        if event.anchor is not None:
            raise self._refuse(event, "anchors and aliases ('&', '*') are not allowed")
        if event.tag is not None and not (kind == "ScalarEvent" and event.tag == "!"):
            raise self._refuse(event, f"tags are not allowed ('{shown(event.tag)}')")
        parent = self._open[-1].value if self._open else None
        if isinstance(parent, dict) and self._keys[-1] is None:
            self._key(event, kind, parent)
            return
        node = self._node(event, kind)
        self._place(node, parent)
        if kind != "ScalarEvent":
            self._open.append(node)
            self._keys.append(None)
            if len(self._open) > MAX_DEPTH:
                raise self._refuse(event, f"nested deeper than {MAX_DEPTH} levels")

    def _key(self, event: Any, kind: str, parent: dict[str, Node]) -> None:
        if kind != "ScalarEvent":
            raise self._refuse(event, "a key must be a word, not a list or mapping")
        if event.value in parent:
            raise self._refuse(event, f"key '{shown(event.value)}' is given twice")
        self._keys[-1] = (event.value, event.start_mark.line + 1)

    def _node(self, event: Any, kind: str) -> Node:
        key = self._keys[-1] if self._keys else None
        above = self._open[-1].name if self._open else ""
        name, line = key if key is not None else (above, event.start_mark.line + 1)
        if kind == "ScalarEvent":
            return Node(self._file, line, event.value, plain=event.style in (None, "") and event.tag is None, name=name)
        return Node(self._file, line, [] if kind == "SequenceStartEvent" else {}, name=name)

    def _place(self, node: Node, parent: object) -> None:
        key = self._keys[-1] if self._keys else None
        if isinstance(parent, dict) and key is not None:
            parent[key[0]] = node
            self._keys[-1] = None
        elif isinstance(parent, list):
            parent.append(node)
        else:
            self._root = node

    def _refuse(self, event: Any, what: str) -> InputError:
        return InputError(what, where=f"{self._file.path}:{event.start_mark.line + 1}")
