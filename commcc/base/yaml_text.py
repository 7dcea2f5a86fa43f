"""Plain data as YAML that people read and review, the same bytes for the same data::

    dump({"pass": "bucket", "members": ["ag_1", "ag_2"]})
    # pass: bucket
    # members: [ag_1, ag_2]

PyYAML writes it; what is chosen here is the layout. Lists of plain values are written on one line and broken where
that gets long, small mappings in a list on one line each. Keys keep their order. What is written reads back equal
with any YAML reader.

Limits: keys are texts; no comments, anchors or tags.
"""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Any

import yaml

if TYPE_CHECKING:
    from collections.abc import Mapping

    from commcc.base.terms import Json

#: A list is broken after the item that reaches this column; a mapping may end 20 further, else it has a line a key.
WIDTH = 90
_PLAIN = re.compile(r"[A-Za-z_](?:[\w./()%+-]| (?=[^ ]))*", re.ASCII)
#: Words that one or another version of YAML takes for something else than text.
_WORDS = frozenset({"true", "false", "yes", "no", "on", "off", "y", "n", "null"})


def dump(data: Mapping[str, Json]) -> str:
    """The whole document, with a newline at the end; ``ValueError`` for numbers that are not finite."""
    written: str = yaml.dump(dict(data), Dumper=_Dumper, width=WIDTH, sort_keys=False) if data else ""
    return written


class _Dumper(yaml.SafeDumper):
    """PyYAML's, in Python: where it is built with libyaml, that one would break other lines than the other does."""

    def ignore_aliases(self, data: Any) -> bool:
        return True

    def write_plain(self, text: str, split: bool = True) -> None:
        super().write_plain(text, False)  # broken inside, a text would be hard to look for

    def write_double_quoted(self, text: str, split: bool = True) -> None:
        super().write_double_quoted(text, False)

    def text(self, value: str) -> yaml.ScalarNode:
        """In quotes unless every version of YAML takes it for a text; half characters, which none reads, as ``?``."""
        value = value.encode("utf-8", "replace").decode()
        plain = _PLAIN.fullmatch(value) and value.lower() not in _WORDS and len(value) <= WIDTH
        return self.represent_scalar("tag:yaml.org,2002:str", value, style=None if plain else '"')

    def number(self, value: float) -> yaml.ScalarNode:
        if not math.isfinite(value):
            raise ValueError(f"{value} cannot be written as YAML")
        digits = repr(value)
        # YAML 1.1 takes 1e+22 for a text.
        return self.represent_scalar("tag:yaml.org,2002:float", digits if "." in digits else digits.replace("e", ".0e"))

    def sequence(self, values: list[Json]) -> yaml.SequenceNode:
        node = self.represent_sequence("tag:yaml.org,2002:seq", values, flow_style=not any(map(_nested, values)))
        for value, child in zip(values, node.value, strict=True):
            if isinstance(value, dict) and not any(map(_nested, value.values())):
                child.flow_style = sum(len(part.value) + 2 for pair in child.value for part in pair) <= WIDTH + 20
        return node

    def mapping(self, values: dict[str, Json]) -> yaml.MappingNode:
        return self.represent_mapping("tag:yaml.org,2002:map", values, flow_style=not values)


def _nested(value: Json) -> bool:
    return isinstance(value, (dict, list))


_Dumper.add_representer(str, _Dumper.text)
_Dumper.add_representer(float, _Dumper.number)
_Dumper.add_representer(list, _Dumper.sequence)
_Dumper.add_representer(dict, _Dumper.mapping)
