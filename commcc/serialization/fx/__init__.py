"""FX graph text, read with ``ast`` and written; nothing in it is ever executed."""
