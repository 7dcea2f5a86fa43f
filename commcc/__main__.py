"""``python -m commcc`` is ``commcc``: for ``torchrun --nproc-per-node 2 -m commcc bench``."""

from __future__ import annotations

from commcc.cli.main import entry

if __name__ == "__main__":
    entry()
