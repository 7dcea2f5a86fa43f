"""Damaged ``.pt2`` files: whatever a byte or a JSON value becomes, the reader says no in its own words, or reads."""

from __future__ import annotations

import io
import json
import random
import zipfile

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from commcc.base.errors import CommccError
from commcc.serialization.pt2.program import read_pt2, write_pt2
from tests.effort import examples
from tests.pt2_files import MODEL, changed, document, saved
from tests.pt2_graphs import GRAPHS, write

BOUNDED = settings(max_examples=examples(150), deadline=None, suppress_health_check=list(HealthCheck))
ODD = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.floats(allow_nan=False, allow_infinity=False),
    st.sampled_from(["", "x", "add_", "as_tensor", "__import__('os')", "é", "u0", "Symbol('u0')", "a" * 5000, "\n"]),
    st.just([]),
    st.just({}),
    st.just([[[]]]),
    st.just({"as_int": 1}),
    st.just({"as_expr": {"expr_str": "Mod(Symbol('u1'), Integer(0))", "hint": None}}),
)


def read_or_refuse(path):
    """Nothing but commcc's own errors; what is read can be written, or is refused by the writer."""
    try:
        program = read_pt2(path)
        write_pt2(program, io.BytesIO())
    except CommccError as error:
        assert "\n" not in str(error)


def positions(data, path=()):
    """Where a value can be replaced: the path of every key and item."""
    if isinstance(data, (dict, list)):
        for key in data if isinstance(data, dict) else range(len(data)):
            yield (*path, key)
            yield from positions(data[key], (*path, key))


#: Not before the first example: the model is exported for it.
PLACES = st.deferred(lambda: st.sampled_from(list(positions(document()))))


def replaced(data, place, value):
    parent = data
    for key in place[:-1]:
        parent = parent[key]
    if value is _REMOVED:
        del parent[place[-1]]
    else:
        parent[place[-1]] = value
    return data


_REMOVED = object()


@BOUNDED
@given(PLACES, st.one_of(ODD, st.just(_REMOVED)))
def test_a_value_of_the_graph_file(tmp_path, place, value):
    read_or_refuse(changed(tmp_path, {MODEL: json.dumps(replaced(document(), place, value))}))


@BOUNDED
@given(PLACES, PLACES)
def test_a_value_of_the_graph_file_put_elsewhere(tmp_path, place, source):
    data = document()
    value = data
    for key in source:
        value = value[key]
    if source[: len(place)] != place and place[: len(source)] != source:
        read_or_refuse(changed(tmp_path, {MODEL: json.dumps(replaced(data, place, value))}))


@BOUNDED
@given(st.data())
def test_bytes_of_the_graph_file(tmp_path, data):
    content = bytearray(saved()[MODEL])
    for _ in range(data.draw(st.integers(1, 4))):
        position = data.draw(st.integers(0, len(content) - 1))
        content[position : position + data.draw(st.integers(0, 3))] = data.draw(st.binary(max_size=3))
    read_or_refuse(changed(tmp_path, {MODEL: bytes(content)}))


@BOUNDED
@given(st.data())
def test_bytes_of_the_archive(tmp_path, data):
    path = changed(tmp_path, {})
    content = bytearray(path.read_bytes())
    directory = content.rfind(b"PK\x01\x02archive"[:4], 0, len(content) // 2)
    for _ in range(data.draw(st.integers(1, 4))):
        position = data.draw(st.integers(max(directory, 0), len(content) - 1))
        content[position : position + data.draw(st.integers(0, 3))] = data.draw(st.binary(max_size=3))
    path.write_bytes(bytes(content))
    read_or_refuse(path)


@BOUNDED
@given(st.data())
def test_a_value_of_the_sidecar(tmp_path, data):
    name = data.draw(st.sampled_from(sorted(GRAPHS)))
    entries = entries_of(name)
    sidecar = json.loads(entries["archive/extra/commcc.json"])
    place = data.draw(st.sampled_from(list(positions(sidecar))))
    sidecar = replaced(sidecar, place, data.draw(st.one_of(ODD, st.just(_REMOVED))))
    path = tmp_path / "sidecar.pt2"
    with zipfile.ZipFile(path, "w") as target:
        for entry, content in {**entries, "archive/extra/commcc.json": json.dumps(sidecar).encode()}.items():
            target.writestr(entry, content)
    program = read_pt2(path)  # never refused: the graph itself is fine
    write_pt2(program, io.BytesIO())


_WRITTEN: dict = {}


def entries_of(name):
    if name not in _WRITTEN:
        with zipfile.ZipFile(io.BytesIO(write(GRAPHS[name])[0])) as source:
            _WRITTEN[name] = {entry: source.read(entry) for entry in source.namelist()}
    return _WRITTEN[name]


@pytest.mark.parametrize("seed", range(3))
def test_many_changes_at_once(tmp_path, seed):
    chance = random.Random(seed)
    for _ in range(60):
        content = bytearray(saved()[MODEL])
        for _ in range(chance.randint(1, 30)):
            position = chance.randrange(len(content))
            content[position] = chance.choice(b'{}[]",:0123456789abcdeftnu\\ ')
        read_or_refuse(changed(tmp_path, {MODEL: bytes(content)}))
