"""One self-contained HTML page of a shell, its main part, styles, scripts and data.

    page = Page("simulate", main="html/main.html", picture="timeline", ...)
    assemble(page, title="x", document={})

The page loads nothing; its content security policy lets exactly this style and this script run, by their
hashes, so that a name from a graph could not run anything even if it got into the markup. Names get there
as text only, on one line and with control characters spelt out: in the data they stand as JSON in which
``<``, ``>`` and ``&`` are escaped.

The shell, ``html/shell.html``, is the same for all pages, and has places such as ``{{title}}``. Equal documents
give equal pages to the byte. Limits: files are those of this package, in ``commcc/report``.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
from dataclasses import dataclass
from importlib import resources
from typing import TYPE_CHECKING

from commcc.base.text import escaped, one_line

if TYPE_CHECKING:
    from collections.abc import Mapping

    from commcc.base.terms import Json

_PLACE = re.compile(r"\{\{(\w+)\}\}")
#: No text in JSON can close the script element or open a comment in it.
_ESCAPES = {ord("<"): "\\u003c", ord(">"): "\\u003e", ord("&"): "\\u0026"}


@dataclass(frozen=True)
class Page:
    """One kind of page. command: that makes it. main: the file with what is in its ``main`` element.

    picture, pictures: what it draws, in words. skip_to: the section behind that. styles, scripts: files; each
    script may use what the ones before it define.
    """

    command: str
    main: str
    picture: str
    pictures: str
    skip_to: str
    styles: tuple[str, ...]
    scripts: tuple[str, ...]


def assemble(page: Page, *, title: str, document: Mapping[str, Json]) -> str:
    """The text of the page, ASCII only."""
    style = "\n".join(map(_source, page.styles))
    # All scripts are the body of one function, so that nothing becomes global.
    body = "\n".join(map(_source, page.scripts))
    script = f'(() => {{\n"use strict";\n{body}}})();\n'
    data = json.dumps(escaped(document), separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    parts = {
        "title": html.escape(one_line(title)),
        "policy": f"default-src 'none'; style-src {_hash(style)}; script-src {_hash(script)}; img-src data:",
        "style": style,
        "script": script,
        "data": data.translate(_ESCAPES),
        "command": page.command,
        "picture": page.picture,
        "pictures": page.pictures,
        "skip_to": page.skip_to,
        "main": _source(page.main),
    }
    text = _PLACE.sub(lambda place: parts[place[1]], _source("html/shell.html"))
    return text.encode("ascii", "xmlcharrefreplace").decode("ascii")


def _source(name: str) -> str:
    """A file of the page; Windows line ends would change the hashes."""
    text = resources.files("commcc.report").joinpath(*name.split("/")).read_text(encoding="utf-8")
    return text.replace("\r\n", "\n")


def _hash(text: str) -> str:
    """A source expression for a content security policy."""
    digest = hashlib.sha256(text.encode("utf-8")).digest()
    return f"'sha256-{base64.b64encode(digest).decode('ascii')}'"
