"""The verifier on .pt2 files: what a file says besides its graph, and what it holds, is part of the program."""

from __future__ import annotations

import json
import struct
import zipfile

import pytest
import torch

from commcc.serialization import load, save
from commcc.verify import verify
from tests.verify_graphs import texts


class Model(torch.nn.Module):
    def __init__(self, constant: float = 1.0) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.a, self.b = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)
        self.register_buffer("count", torch.zeros(4))
        self.register_buffer("seen", torch.zeros(4))
        self.register_buffer("mask", torch.ones(4), persistent=False)
        self.table = torch.arange(4.0) * constant

    def forward(self, x, *, scale, shift, power=2):
        self.count.add_(1)
        self.seen.copy_(x[0])
        y = self.b(self.a(x)) * scale + shift * power + self.mask + self.table
        return {"y": y, "z": (x + 1, self.count + self.seen)}


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """One model, exported with mutations as outputs."""
    path = tmp_path_factory.mktemp("pt2") / "model.pt2"
    ones = torch.ones(4)
    program = torch.export.export(Model(), (torch.ones(2, 4),), {"scale": ones, "shift": ones, "power": 3})
    torch.export.save(program.run_decompositions(), path)
    return path


def edited(source, target, change=None, weights=None):
    """A copy of an archive with its JSON changed (``change(document, configs)``) or an entry's bytes."""
    with zipfile.ZipFile(source) as old:
        entries = {info.filename: old.read(info) for info in old.infolist()}
    model = next(name for name in entries if name.endswith("models/model.json"))
    configs = {
        kind: next((n for n in entries if n.endswith(f"{kind}_config.json")), "") for kind in ("weights", "constants")
    }
    documents = {name: json.loads(entries[name]) for name in (model, *filter(None, configs.values()))}
    if change is not None:
        change(documents[model], {kind: documents[name]["config"] for kind, name in configs.items() if name})
    entries.update({name: json.dumps(document).encode() for name, document in documents.items()})
    if weights is not None:
        weights(entries)
    with zipfile.ZipFile(target, "w") as new:
        for name, data in entries.items():
            new.writestr(name, data)
    return target


def _inputs(document):
    return document["graph_module"]["signature"]["input_specs"]


def _outputs(document):
    return document["graph_module"]["signature"]["output_specs"]


def _call(document):
    return document["graph_module"]["module_call_graph"][0]["signature"]


def _of(specs, kind):
    return [spec[kind] for spec in specs if kind in spec]


def _exchange(items, key):
    items[0][key], items[1][key] = items[1][key], items[0][key]


def parameters(document, _):
    """a.weight and b.weight exchanged."""
    found = [p for p in _of(_inputs(document), "parameter") if p["parameter_name"].endswith("weight")]
    _exchange(found, "parameter_name")


def buffers(document, _):
    _exchange(_of(_inputs(document), "buffer"), "buffer_name")


def mutations(document, _):
    """The new contents of two buffers go to each other."""
    _exchange(_of(_outputs(document), "buffer_mutation"), "buffer_name")


def mutation_is_output(document, _):
    spec = next(spec for spec in _outputs(document) if "buffer_mutation" in spec)
    spec["user_output"] = {"arg": {"as_tensor": spec.pop("buffer_mutation")["arg"]}}


def mutation_of_input(document, _):
    spec = next(spec for spec in _outputs(document) if "buffer_mutation" in spec)
    found = spec.pop("buffer_mutation")
    spec["user_input_mutation"] = {"arg": found["arg"], "user_input_name": "x"}


def parameter_is_buffer(document, _):
    spec = next(spec for spec in _inputs(document) if "parameter" in spec)
    found = spec.pop("parameter")
    spec["buffer"] = {"arg": found["arg"], "buffer_name": found["parameter_name"], "persistent": True}


def persistent(document, _):
    _of(_inputs(document), "buffer")[-1]["persistent"] = True


def keywords(document, _):
    """The names by which two arguments are given."""
    call = _call(document)
    call["in_spec"] = call["in_spec"].replace("scale", "?").replace("shift", "scale").replace("?", "shift")


def results(document, _):
    call = _call(document)
    call["out_spec"] = call["out_spec"].replace('\\"y\\"', '\\"?\\"').replace('\\"z\\"', '\\"y\\"').replace("?", "z")


def argument_names(document, _):
    _call(document)["forward_arg_names"] = ["x", "shift", "scale", "power"]


def constant_input(document, _):
    """In the signature and in the graph, which must agree."""
    (place,) = (at for at, spec in enumerate(_inputs(document)) if "constant_input" in spec)
    _inputs(document)[place]["constant_input"]["value"] = {"as_int": 7}
    document["graph_module"]["graph"]["inputs"][place] = {"as_int": 7}


def constant_name(document, _):
    _of(_inputs(document), "tensor_constant")[0]["tensor_constant_name"] = "other"


def signature_order(document, _):
    """The signature takes the outputs of the graph for one another; the graph stays as it is."""
    specs = _of(_outputs(document), "buffer_mutation")
    specs[0]["arg"], specs[1]["arg"] = specs[1]["arg"], specs[0]["arg"]


def strides(_, configs):
    weight = configs["weights"]["a.weight"]["tensor_meta"]
    weight["strides"] = [{"as_int": 1}, {"as_int": 4}]


def stored_under(_, configs):
    weights = configs["weights"]
    weights["a.weight"]["path_name"], weights["b.weight"]["path_name"] = (
        weights["b.weight"]["path_name"],
        weights["a.weight"]["path_name"],
    )


def tied(_, configs):
    configs["weights"]["b.weight"]["path_name"] = configs["weights"]["a.weight"]["path_name"]


def weight_gone(_, configs):
    del configs["weights"]["b.bias"]


SIGNATURE = (parameters, buffers, mutations, mutation_is_output, mutation_of_input, parameter_is_buffer, persistent)
NAMES = (keywords, results, argument_names, constant_input, constant_name, signature_order)
STORED = (strides, stored_under, tied, weight_gone)


@pytest.mark.parametrize("change", [*SIGNATURE, *NAMES, *STORED], ids=lambda change: change.__name__)
def test_what_a_file_says_besides_the_graph(exported, tmp_path, change):
    verdict = verify(load(exported), load(edited(exported, tmp_path / "edited.pt2", change)))
    assert verdict.status == "different", change.__name__


@pytest.mark.parametrize("which", ["weights/weight_0", "constants/tensor_0", "constants/tensor_1"])
@pytest.mark.parametrize("value", [2.0, -0.0, float("nan")])
def test_what_a_file_holds(exported, tmp_path, which, value):
    """One element of a weight, of a buffer that is not saved with the others, and of a lifted constant."""

    def change(entries):
        name = next(name for name in entries if name.endswith(which))
        entries[name] = struct.pack("<f", value) + entries[name][4:]

    copy = edited(exported, tmp_path / "copy.pt2", weights=change)
    assert verify(load(exported), load(copy)).status == "different"
    again = edited(copy, tmp_path / "again.pt2")
    verdict = verify(load(copy), load(again))
    assert verdict.status == "proved", texts(verdict)


def test_the_same_file_written_again(exported, tmp_path):
    program = load(exported)
    for name in ("model.pt2", "model.fx.txt"):
        save(program, tmp_path / name)
        verdict = verify(program, load(tmp_path / name))
        assert verdict.status == "proved", texts(verdict)
    assert "no .pt2 file" in str(verdict.notes[0])


def test_a_file_that_is_gone(exported, tmp_path):
    copy = edited(exported, tmp_path / "copy.pt2")
    after = load(copy)
    copy.unlink()
    verdict = verify(load(exported), after)
    assert verdict.status == "unproved"
    assert "the weights cannot be compared" in texts(verdict)


class Counts(torch.nn.Module):
    def forward(self, x):
        rows = x.nonzero().shape[0]
        torch._check(rows >= 2)
        torch._check(rows <= 20)
        return torch.zeros(rows + 1, dtype=x.dtype) + 1


def no_range(document):
    document["range_constraints"].clear()


def wider_range(document):
    next(iter(document["range_constraints"].values()))["max_val"] += 1


def size_is_its_symbol(document):
    sizes = document["graph_module"]["graph"]["sym_int_values"]
    sizes["add"] = next(size for name, size in sizes.items() if name != "add")


def size_is_one_more(document):
    sizes = document["graph_module"]["graph"]["sym_int_values"]
    sizes[next(name for name in sizes if name != "add")] = sizes["add"]


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (no_range, "range of 'u0' is missing"),
        (wider_range, "range of 'u0' is"),
        (size_is_its_symbol, "add: its val says u0, it is 1 more"),
        (size_is_one_more, "its val says u0 + 1, it is 1 less"),
    ],
)
def test_what_a_file_says_of_sizes_known_at_run_time(tmp_path, change, text):
    torch.export.save(torch.export.export(Counts(), (torch.ones(4, 5),)), tmp_path / "counts.pt2")
    program = load(tmp_path / "counts.pt2")
    copy = edited(tmp_path / "counts.pt2", tmp_path / "copy.pt2", lambda document, _: change(document))
    verdict = verify(program, load(copy))
    assert verdict.status == "different"
    assert text in texts(verdict)
    again = edited(copy, tmp_path / "again.pt2")
    assert verify(load(copy), load(again)).status == "proved"
