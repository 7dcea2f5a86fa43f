"""Saved ``.pt2`` files to damage, and what it means that the reader refuses one."""

from __future__ import annotations

import builtins
import io
import json
import zipfile
from functools import lru_cache

import pytest
import torch

from commcc.base.errors import InputError
from commcc.serialization.pt2.program import read_pt2
from tests.pt2_models import make

MODEL = "models/model.json"
SAMPLES = "data/sample_inputs/model.pt"
CONSTANTS = "data/constants/model_constants_config.json"
WEIGHTS = "data/weights/model_weights_config.json"


class Payload:
    """Unpickling it creates a file."""

    def __init__(self, path):
        self.path = str(path)

    def __reduce__(self):
        return builtins.open, (self.path, "w")


@lru_cache(maxsize=1)
def saved():
    """The entries of a saved model, by name without the root folder."""
    stream = io.BytesIO()
    torch.export.save(make("everything").exported, stream)
    with zipfile.ZipFile(stream) as source:
        return {name.split("/", 1)[1]: source.read(name) for name in source.namelist()}


def document():
    """The graph file of the saved model."""
    return json.loads(saved()[MODEL])


def changed(folder, entries, *, compression=zipfile.ZIP_STORED):
    """A copy of the saved model with some entries changed, added or (None) removed."""
    path = folder / "changed.pt2"
    with zipfile.ZipFile(path, "w", compression) as target:
        for name, data in {**saved(), **entries}.items():
            if data is not None:
                target.writestr(f"archive/{name}", data)
    return path


def with_document(folder, data):
    """A copy of the saved model with another graph file."""
    return changed(folder, {MODEL: json.dumps(data)})


def refused(path, *words, marker=None):
    """The reader refuses ``path`` in one line that holds ``words``, and runs nothing."""
    with pytest.raises(InputError) as caught:
        read_pt2(path)
    text = str(caught.value)
    assert "\n" not in text
    for word in (path.name, *words):
        assert word in text
    assert len(text) < 500
    assert marker is None or not marker.exists()
    return text


def saved_tensors(value):
    """What ``torch.save`` writes."""
    stream = io.BytesIO()
    torch.save(value, stream, pickle_protocol=2)
    return stream.getvalue()
