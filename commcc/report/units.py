"""Numbers as people read them: ``1,234``, ``25.0 MiB``, ``-192 (-66.2 %)``."""

from __future__ import annotations

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


def size(count: float | None) -> str:
    """Bytes in binary units, three or four digits; ``?`` when unknown."""
    if count is None:
        return "?"
    value, unit = float(count), 0
    while abs(value) >= 1024 and unit < len(_UNITS) - 1:
        value, unit = value / 1024, unit + 1
    return f"{value:,.0f} B" if unit == 0 else f"{value:,.1f} {_UNITS[unit]}"


def count(number: float | None) -> str:
    """A number with thousands separators; ``?`` when unknown."""
    if number is None:
        return "?"
    return f"{number:,}" if isinstance(number, int) else f"{number:,.3f}"


def milliseconds(value: float | None) -> str:
    """A time in milliseconds, to the microsecond; ``?`` when unknown."""
    return "?" if value is None else f"{value:,.3f} ms"


def share(value: float | None) -> str:
    """A share in percent; nothing when there is nothing to share."""
    return "" if value is None else f"{value:.1%}".replace("%", " %")


def change(before: float | None, after: float | None) -> str:
    """How ``after`` differs from ``before``, relative where that says something; ``=`` when it does not."""
    if before is None or after is None:
        return ""
    if before == after:
        return "="
    if not before:
        return "new"
    return f"{(after - before) / before:+.1%}".replace("%", " %")


def plural(number: int, noun: str, nouns: str | None = None) -> str:
    """``1 bucket``, ``2 buckets``."""
    return f"{number:,} {noun if number == 1 else nouns or noun + 's'}"


def sentence(text: str) -> str:
    """The text with a capital letter first and a full stop last."""
    return text[:1].upper() + text[1:].rstrip(".") + "."


def printable(text: str) -> str:
    """The text with control characters spelt out, so that names in a file cannot drive the terminal."""
    return text if text.isprintable() else "".join(c if c.isprintable() or c == "\n" else ascii(c)[1:-1] for c in text)
