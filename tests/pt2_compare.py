"""Programs compared down to the type of every argument and the hint of every size."""

from __future__ import annotations

import torch
from torch.utils import _pytree as pytree

from commcc.serialization.pt2.specs import same_argument, spec_of
from commcc.serialization.shapes import requires_grad_of

FIELDS = ("groups", "header", "provenance", "notes")


def described(val):
    """A value as plain data."""
    if isinstance(val, torch.Tensor):
        sizes = [described(n) for n in (*val.shape, *val.stride(), val.storage_offset())]
        return (str(val.dtype), str(val.device), requires_grad_of(val), *sizes)
    if isinstance(val, (list, tuple)):
        return type(val)(described(item) for item in val)
    if isinstance(val, (torch.SymInt, torch.SymFloat, torch.SymBool)):
        return type(val).__name__, str(val.node.expr), val.node.hint if val.node.has_hint() else None
    return val


def differences(left, right):
    """What differs between two programs, node by node; empty if nothing does."""
    out = list(_graphs(spec_of(left.graph, left.root), spec_of(right.graph, right.root), ""))
    fields = [(name, getattr(left, name), getattr(right, name)) for name in FIELDS]
    return out + [field for field in fields if field[1] != field[2]]


def _graphs(left, right, path):
    if [spec.name for spec in left.nodes] != [spec.name for spec in right.nodes]:
        yield path, "order", [spec.name for spec in left.nodes], [spec.name for spec in right.nodes]
        return
    for a, b in zip(left.nodes, right.nodes, strict=True):
        if (a.op, a.target) != (b.op, b.target) or not same_argument(a.args, b.args):
            yield path, a.name, (a.op, a.target, a.args), (b.op, b.target, b.args)
        if not same_argument(a.kwargs, b.kwargs):
            yield path, a.name, a.kwargs, b.kwargs
        yield from _metadata(a, b, path)
    if left.subgraphs.keys() != right.subgraphs.keys():
        yield path, "sub-graphs", list(left.subgraphs), list(right.subgraphs)
    for name in left.subgraphs:
        yield from _graphs(left.subgraphs[name], right.subgraphs[name], f"{path}/{name}")


def _metadata(a, b, path):
    for key in {**a.meta, **b.meta}:
        ours, theirs = a.meta.get(key, "missing"), b.meta.get(key, "missing")
        if key == "val":
            ours, theirs = described(ours), described(theirs)
        if type(ours) is not type(theirs) or ours != theirs:
            yield path, f"{a.name}.{key}", ours, theirs


def assert_bitwise(left, right):
    """Two results of a model are the same structure of the same bits."""
    ours, spec = pytree.tree_flatten(left)
    theirs, other = pytree.tree_flatten(right)
    assert spec == other
    for a, b in zip(ours, theirs, strict=True):
        assert type(a) is type(b)
        if isinstance(a, torch.Tensor):
            assert (a.dtype, a.shape, a.stride()) == (b.dtype, b.shape, b.stride())
            assert _bits(a) == _bits(b)
        else:
            assert a == b


def _bits(tensor):
    return tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
