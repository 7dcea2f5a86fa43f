"""The table of op facts against what ops really do: run on small tensors, and looked at afterwards."""

from __future__ import annotations

import contextlib
import gzip
import importlib
import re
import sys
import unittest
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

from commcc.base.errors import InputError
from commcc.graph.ops import facts, undeclared
from commcc.graph.ops.allowed import refusal
from commcc.serialization.targets import path_of, resolve
from tests.effort import FULL
from tests.op_runs import CannotRun, Observed, contradictions, observe
from tests.op_samples import find, sample, seeds

if TYPE_CHECKING:
    from collections.abc import Iterable

ROOT = Path(__file__).parents[1]
for module in ("torch._prims", "torch._inductor.inductor_prims"):
    importlib.import_module(module)  # they register ops

SEEDS = seeds()
X = torch.rand(4, 3)
#: Where the largest number of each window of a pooling was.
CORNERS = torch.tensor([[0, 2], [8, 10]]).expand(1, 2, 2, 2).contiguous()
#: Arguments that nobody finds by chance.
OWN: dict[str, list[tuple[Any, ...]]] = {
    "aten._grouped_mm.default": [(torch.rand(4, 8), torch.rand(2, 8, 8), torch.tensor([2, 4], dtype=torch.int32))],
    "aten._int_mm.default": [(torch.ones(32, 8, dtype=torch.int8), torch.ones(8, 8, dtype=torch.int8))],
    "aten.view_as_complex.default": [(torch.rand(3, 2),)],
    "aten.convolution_backward.default": [
        (
            *(torch.rand(1, 3, 4, 4), torch.rand(1, 2, 6, 6), torch.rand(3, 2, 3, 3), [3], [1, 1], [0, 0], [1, 1]),
            *(False, [0, 0], 1, [True, True, True]),
        )
    ],
    "aten.unsafe_split.Tensor": [(X, 2), (X, 4)],
    "aten.type_as.default": [(X, X.clone()), (X, X.double())],
    "aten.bmm.default": [(torch.rand(2, 3, 4), torch.rand(2, 4, 5))],
    "aten.baddbmm.default": [(torch.rand(2, 3, 5), torch.rand(2, 3, 4), torch.rand(2, 4, 5))],
    "aten.addmv.default": [(torch.rand(4), X, torch.rand(3))],
    "aten.convolution.default": [
        (torch.rand(1, 2, 6, 6), torch.rand(3, 2, 3, 3), None, [1, 1], [0, 0], [1, 1], False, [0, 0], 1),
    ],
    "aten.native_batch_norm.default": [(X, None, None, torch.zeros(3), torch.ones(3), True, 0.5, 1e-5)],
    "aten.native_batch_norm_backward.default": [
        (X, X + 1, torch.ones(3), None, None, torch.zeros(3), torch.ones(3), True, 1e-5, [True] * 3),
    ],
    "aten._batch_norm_impl_index.default": [
        (X, None, None, torch.zeros(3), torch.ones(3), True, 0.5, 1e-5, False),
    ],
    "aten.batch_norm_update_stats.default": [(X, torch.zeros(3), torch.ones(3), 0.5)],
    "aten.smooth_l1_loss_backward.default": [(X, X + 1, X.flip(0), 0, 1.0)],
    "aten.unfold_backward.default": [(torch.rand(2, 3, 2), [4, 3], 0, 2, 2)],
    "aten.max_pool2d_with_indices_backward.default": [
        (torch.rand(1, 2, 2, 2), torch.rand(1, 2, 4, 4), *([number] * 2 for number in (2, 2, 0, 1)), False, CORNERS)
    ],
    "aten.max_pool3d_with_indices_backward.default": [
        (
            *(torch.rand(1, 1, 2, 2, 2), torch.rand(1, 1, 4, 4, 4)),
            *(
                *([number] * 3 for number in (2, 2, 0, 1)),
                False,
                CORNERS[:, :1, None].expand(1, 1, 2, 2, 2).contiguous(),
            ),
        )
    ],
    "aten.cumprod_backward.default": [(torch.rand(1), torch.rand(1), 0, torch.rand(1))],
    "aten.cartesian_prod.default": [([torch.rand(3)],)],
    **{
        f"aten._cast_{name}.default": [(torch.ones(3, dtype=dtype),)]
        for name, dtype in {
            "Byte": torch.uint8,
            "Char": torch.int8,
            "Double": torch.double,
            "Float": torch.float,
            "Half": torch.half,
            "Int": torch.int,
            "Long": torch.long,
            "Short": torch.short,
        }.items()
    },
    "prims.copy_strided.default": [(X, [1, 4])],
    "aten.dropout.default": [(X, 0.5, False), (X, 0.5, True)],
    "aten.feature_dropout.default": [(X, 0.5, False)],
    "aten.alpha_dropout.default": [(X, 0.5, False)],
    "aten.feature_alpha_dropout.default": [(X, 0.5, False)],
    "aten.einsum.default": [("ij->ji", [X]), ("ij,jk->ik", [X, X.T])],
    "aten.atleast_1d.Sequence": [([X, X],)],
    "aten.atleast_2d.Sequence": [([X, X],)],
    "aten.atleast_3d.Sequence": [([torch.rand(2, 2, 2)] * 2,)],
    "aten.meshgrid.default": [([torch.rand(3), torch.rand(3)],)],
    "aten.broadcast_tensors.default": [([X, X],)],
    "aten.unflatten_dense_tensors.default": [(torch.rand(12), [X])],
    "aten.chain_matmul.default": [([X],)],
    "aten.as_strided_scatter.default": [(X, torch.ones(2, 2), [2, 2], [1, 1], 6)],
    "aten.as_strided.default": [(X, [2, 2], [1, 1], 6)],
    "prims.as_strided.default": [(X, [2, 2], [1, 1], 6)],
    "prims.as_strided_scatter.default": [(X, torch.ones(2, 2), [2, 2], [1, 1], 6)],
    "aten.histogramdd.TensorList_bins": [(torch.rand(5, 2), [torch.tensor([0.0, 0.5, 1.0])] * 2)],
    "aten.batch_norm.default": [
        (torch.rand(4, 3), None, None, torch.zeros(3), torch.ones(3), True, 0.5, 1e-5, False),
    ],
    "aten.instance_norm.default": [
        (torch.rand(2, 3, 4), None, None, torch.zeros(3), torch.ones(3), True, 0.5, 1e-5, False),
    ],
    "aten._scaled_dot_product_flash_attention_for_cpu.default": [tuple(torch.rand(3, 1, 2, 4, 8))],
    "prims.device_put.default": [(X, torch.device("cpu"))],
    "prims.inductor_force_stride_order.default": [(X, [3, 1])],
    "prims.inductor_random.default": [([3], torch.tensor(1), "rand")],
    "prims.inductor_randint.default": [(0, 9, [3], torch.tensor(1))],
    "aten.pin_memory.default": [(X,)],
}
#: Entries of the tables that cannot be seen on a CPU, or not at all here, and why.
UNSEEN = {
    **dict.fromkeys(("aten.pin_memory", "aten.to_mkldnn_backward", "aten.to_dense_backward"), "needs another device"),
    **dict.fromkeys(("aten.cudnn_batch_norm", "aten.miopen_batch_norm"), "needs another device"),
    "inductor_prims.inductor_reserve_rng_state": "needs a CUDA generator",
    "aten.set_data": "writes an attribute of the tensor",
    "aten.to_sparse": "its operand is sparse where it is handed on",
    **dict.fromkeys(("aten.chain_matmul", "prims.inductor_force_stride_order"), "copies, in this PyTorch"),
    **dict.fromkeys(("aten.rrelu_with_noise", "aten.rrelu_with_noise_"), "draws numbers, in the order of memory"),
    **dict.fromkeys((f"aten._fused_{name}_" for name in ("adam", "adamw", "adagrad")), "lists that lie alike here"),
    "aten._scaled_dot_product_flash_attention_for_cpu": "its guard refuses other strides",
    "aten.set": "functional forms do not run on plain tensors",
}


def all_samples(name: str, *, whole: bool = FULL) -> list[tuple[tuple[Any, ...], dict[str, Any]]]:
    known = SEEDS.get(name, [])
    made = [sample(find(name), seed) for seed in (known if whole or name in OWN else known[:1])]
    return [*((args, {}) for args in OWN.get(name, [])), *made]


def runs(name: str, *, whole: bool = FULL) -> list[Observed]:
    found = []
    for args, kwargs in all_samples(name, whole=whole):
        with contextlib.suppress(CannotRun):
            found.append(observe(find(name), args, kwargs))
    return found


def registered(name: str) -> bool:
    """Whether this PyTorch has the op."""
    try:
        find(name)
    except AttributeError:
        return False
    return True


NAMES = sorted(name for name in {*SEEDS, *OWN} if registered(name) and refusal(find(name)) is None)


def wrong_of(calls: Iterable[tuple[str, tuple[Any, ...], dict[str, Any]]]) -> tuple[set[str], set[str]]:
    """Ops that could be run, and what they do that the table does not say."""
    executed, wrong = set(), set()
    for name, args, kwargs in calls:
        with contextlib.suppress(CannotRun):
            seen = observe(find(name), args, kwargs)
            executed.add(name)
            wrong |= {f"{name} {text}" for text in contradictions(facts(find(name)), seen)}
    return executed, wrong


def test_no_op_does_what_the_table_does_not_say():
    names = [name for number, name in enumerate(NAMES) if FULL or name in OWN or number % 4 == 0]
    executed, wrong = wrong_of((name, *sample) for name in names for sample in all_samples(name))
    print(f"{len(executed)} of {len(names)} ops executed")
    assert sorted(wrong) == []
    # Other versions of PyTorch refuse some of the arguments.
    assert len(executed) > 0.95 * len(names) and len(NAMES) > 2400


class Calls(TorchDispatchMode):
    """Notes what is called, with copies of the arguments; of each op the first few calls on small tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: dict[str, list[Any]] = {}

    def __torch_dispatch__(self, func, _types, args=(), kwargs=None):
        noted = self.calls.setdefault(str(func), [])
        tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        plain = all(t.layout is torch.strided and not t.is_quantized and t.numel() < 2_000 for t in tensors)
        if len(noted) < 3 and plain:
            noted.append(tree_map_only(torch.Tensor, lambda t: t.detach().clone(), (args, kwargs or {})))
        return func(*args, **(kwargs or {}))


def samples_of(info: Any) -> Iterable[Any]:
    """A few inputs of each dtype from PyTorch's own tests."""
    for dtype in (torch.float32, torch.int64, torch.bool):
        # Some are for other devices, or cannot be made here.
        with contextlib.suppress(Exception):
            yield from islice(info.sample_inputs("cpu", dtype), 2) if info.supports_dtype(dtype, "cpu") else ()


@pytest.mark.full
def test_no_op_that_pytorchs_own_samples_call_does_what_the_table_does_not_say(monkeypatch):
    # Only PyTorch's own test cases need it.
    monkeypatch.setitem(sys.modules, "expecttest", SimpleNamespace(TestCase=unittest.TestCase))
    op_db = importlib.import_module("torch.testing._internal.common_methods_invocations").op_db
    calls = Calls()
    for info in op_db:
        for one in samples_of(info):
            with contextlib.suppress(Exception), calls:
                info.op(one.input, *one.args, **one.kwargs)
    known = {name for name in calls.calls if name.startswith(("aten.", "prims.")) and refusal(find(name)) is None}
    executed, wrong = wrong_of((name, *call) for name in sorted(known) for call in calls.calls[name])
    print(f"{len(executed)} ops of op_db executed, {len(executed - {*NAMES})} of them not in the list")
    assert sorted(wrong) == []
    assert len(executed) > 400


def overloads(op: str) -> list[str]:
    return [name for name in NAMES if name.rpartition(".")[0] == op]


def seen_of(op: str) -> Observed:
    """All that was seen of an op's overloads."""
    whole = Observed()
    for each in (seen for name in overloads(op) for seen in runs(name, whole=True)):
        for key in ("shares", "writes", "moved", "joined", "outside"):
            getattr(whole, key).update(getattr(each, key))
        for key in ("strides", "storage", "random"):
            setattr(whole, key, getattr(whole, key) or getattr(each, key))
    return whole


def entries(table: Any) -> list[str]:
    tested = (op for op in table if op.split(".")[0] in ("aten", "prims") and op not in UNSEEN)
    return [op for op in tested if overloads(op)]


@pytest.mark.parametrize("op", entries({**undeclared.VIEWS, **undeclared.SOMETIMES}))
def test_undeclared_views_are_views(op):
    names = {*undeclared.VIEWS.get(op, ()), *undeclared.SOMETIMES.get(op, ())}
    assert seen_of(op).shares & names


@pytest.mark.parametrize("op", entries(sorted(undeclared.WRITES)))
def test_undeclared_writes_are_writes(op):
    assert seen_of(op).writes >= {*undeclared.WRITES[op]}


@pytest.mark.parametrize("op", entries(sorted(undeclared.RANDOM)))
def test_undeclared_random_numbers_are_drawn(op):
    assert seen_of(op).random


def test_set_joins():
    assert seen_of("aten.set_").joined == {("self", "source")}


@pytest.mark.parametrize("op", entries(("aten.as_strided", "aten.as_strided_scatter", "prims.as_strided_scatter")))
def test_ops_that_look_at_storage_do(op):
    assert seen_of(op).storage


@pytest.mark.parametrize("op", entries(sorted(undeclared.STRIDES)))
def test_ops_that_look_at_strides_do(op):
    assert seen_of(op).strides


def named_in(paths: list[Path], pattern: str) -> set[str]:
    found = set()
    for path in paths:
        data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
        text = data.decode()
        found.update(match[1] for match in re.finditer(pattern, text))
    return found


#: Ops of samples and tests without a kernel for CPUs, that few matrices suit, or that are not run at all.
ELSEWHERE = re.compile(
    r"aten\.(_scaled_dot_product_(flash|cudnn|efficient)_attention(_backward)?|_flash_attention_forward\w*|_scaled_grouped_mm|cudnn_convolution"
    r"|linalg_cholesky|_cudnn_rnn_flatten_weight|batch_norm_gather_stats_with_counts|_scaled_mm|_sparse_coo_tensor_with_dims_and_tensors|_reshape_alias|retain_grad|from_file|record_stream|save|warn|_print|initial_seed|_check_is_size)\."
)


def test_every_op_of_the_samples_is_run():
    samples = [path for path in (ROOT / "sample_graphs").iterdir() if path.name.endswith((".txt", ".gz"))]
    named = named_in(samples, r"torch\.ops\.((?:aten|prims)\.\w+\.\w+)\(")
    assert len(named) > 80
    assert sorted(name for name in named - {*NAMES} if not ELSEWHERE.match(name)) == []


def test_every_op_of_the_tests_is_run():
    texts = [path for path in (ROOT / "tests").rglob("*") if path.name.endswith((".txt", ".test", ".txt.gz", ".py"))]
    named = named_in(texts, r"(?:torch\.ops\.)?\b((?:aten|prims)\.\w+\.(?:default|Tensor|Scalar|int|dim|sizes|self))\b")
    known = {name for name in named if is_op(name) and refusal(find(name)) is None}
    assert len(known) > 150
    assert sorted(name for name in known - {*NAMES} if not ELSEWHERE.match(name)) == []


def is_op(name: str) -> bool:
    try:
        return torch._C._dispatch_has_kernel(find(name)._schema.name)
    except (AttributeError, RuntimeError):
        return False


# What the runs see


@pytest.fixture(scope="module")
def lying():
    library = torch.library.Library("commcc_lying", "DEF")
    bodies = {
        "view": lambda x: x.view(-1),
        "write": lambda x: x.add_(1).clone(),
        "around": lambda x: x.as_strided((1,), (1,), 0).fill_(7).clone(),
        "draw": torch.rand_like,
        "strides": lambda x: x + x.stride(0),
        "storage": lambda x: x.as_strided((1,), (1,), x.storage_offset() + x.numel()).clone(),
        "turn": lambda x: x.t_().clone(),
        "fine": lambda x: x + 1,
    }
    for name, body in bodies.items():
        library.define(f"{name}(Tensor x) -> Tensor")
        library.impl(name, body, "CPU")
    return library


@pytest.mark.parametrize(
    ("op", "found"),
    [
        ("view", ["shares x"]),
        ("write", ["writes x"]),
        ("around", ["writes around x"]),
        ("draw", ["draws random numbers"]),
        ("strides", ["looks at strides"]),
        ("storage", ["looks at storage"]),
        ("turn", ["changes the shape or storage of x"]),
        ("fine", []),
    ],
)
def test_runs_see_what_a_schema_hides(lying, op, found):
    target = getattr(torch.ops.commcc_lying, op).default
    assert set(found) <= set(contradictions(facts(target), observe(target, (torch.rand(3, 3),))))
    assert bool(found) == bool(contradictions(facts(target), observe(target, (torch.rand(3, 3),))))


def test_levels_of_vmap_are_barriers_and_have_names():
    enter = resolve("torch._functorch.predispatch._vmap_increment_nesting")
    add = resolve("torch._functorch.predispatch._add_batch_dim")
    assert path_of(add) == "torch._functorch.predispatch._add_batch_dim"
    assert facts(enter).barrier
    assert facts(add).barrier
    with pytest.raises(InputError):
        resolve("torch._functorch.predispatch.threading")


def test_running_statistics_are_written():
    """By all that is given them, on devices that no test has too, unless the name says otherwise."""
    reads = ("_functional", "_no_training", "_no_update", "_backward")
    for schema in torch._C._jit_get_all_schemas():
        given = {argument.name for argument in schema.arguments}
        if not schema.name.startswith("aten::") or not given >= {"running_mean", "running_var"}:
            continue
        name = schema.name.removeprefix("aten::")
        op = getattr(getattr(torch.ops.aten, name), schema.overload_name or "default")
        written = {"running_mean", "running_var"} <= set(facts(op).writes)
        assert written != name.endswith(reads), name
