"""Tokens that do not depend on each other: each rule against execution, on chunks and on the whole."""

from __future__ import annotations

import operator
import random
from math import prod
from typing import Any

import pytest
import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from commcc.graph.ops import aliasing
from commcc.graph.ops.row_wise import ROW_RULES, is_elementwise
from commcc.verify.clones import SLICED, Column, Indices, Inverse, Mixed, Rows, Total
from commcc.verify.tokens import kinds_of
from tests.op_samples import find, sample, seeds

aten = torch.ops.aten
EXCHANGE = torch.ops._c10d_functional.all_to_all_single.default
TOKENS, CHUNKS = 6, (2, 4)
IN_PLACE = {
    *(aten.add_.Tensor, aten.mul_.Tensor, aten.copy_.default, aten.fill_.Scalar, aten.sub_.Scalar, aten.zero_.default),
    *(aten.index_put_.default, aten.index_add_.default, aten.index_copy_.default),
    *(aten.scatter_.value, aten.scatter_add_.default),
}


class Body:
    """A module under construction, run on the whole and on two chunks. values: of each node, whole first."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.graph = fx.Graph()
        self.values: dict[fx.Node, list[Any]] = {}
        self.shared: set[str] = set()
        self.body: dict[str, fx.Node] = {}
        self.cut: dict[str, tuple[int, ...]] = {}
        torch.manual_seed(seed)
        for name in "xy":
            whole = torch.randint(-9, 10, (TOKENS, 4)).double()
            self.entering = {"x": 0, "y": 0}
            self._give(name, [whole, *whole.split(CHUNKS)])
        for name in "vw":
            held = torch.randint(-3, 4, (4, 4) if name == "w" else (4,)).double()
            self._give(name, [held] * 3)
            self.shared.add(name)

    def dispatch(self) -> None:
        """Rows, one or two for each token, in the order of a number in them."""
        x = next(iter(self.values))
        flat = self.rng.choice(
            [
                lambda: self.call(aten.select.int, lambda n: (x, 1, 0)),
                lambda: self.call(
                    aten.reshape.default, lambda n: (self.call(aten.slice.Tensor, lambda m: (x, 1, 0, 2)), [-1])
                ),
            ]
        )()
        both = self.call(aten.sort.default, lambda n: (flat,))
        order = self.call(operator.getitem, lambda n: (both, 1))
        if flat is not None and flat.meta["val"].numel() > TOKENS:
            order = self.call(aten.floor_divide.default, lambda n: (order, 2))
        rows = self.call(aten.index.Tensor, lambda n: (x, [order]))
        self.call(aten.mul.Tensor, lambda n: (rows, 2.0))
        self.call(aten.zeros_like.default, lambda n: (x,))

    def fold(self) -> None:
        """All tokens of two ranks, rank by rank, in one dimension; other shapes of that, and a product over tokens."""
        x, y = list(self.values)[:2]
        wide = self.call(aten.unsqueeze.default, lambda n: (x, 0))
        ranks = self.call(aten.expand.default, lambda n: (wide, [2, -1, -1]))
        both = self.call(aten.reshape.default, lambda n: (ranks, [2 * n, 4]))
        twice = self.call(aten.mul.Tensor, lambda n: (both, 2.0))
        self.call(aten.mm.default, lambda n: (self.call(aten.t.default, lambda m: (twice,)), both))
        shape = self.rng.choice((lambda n: [2, n, 4], lambda n: [2, 2 * n, 2], lambda n: [4 * n, 2], lambda n: [8 * n]))
        self.call(aten.reshape.default, lambda n: (twice, shape(n)))
        turned = self.call(aten.transpose.int, lambda n: (ranks, 1, 2))
        self.call(aten.bmm.default, lambda n: (turned, ranks))
        self.call(aten.add.Tensor, lambda n: (y, both))

    def _give(self, name: str, values: list[Any]) -> None:
        node = self.graph.placeholder(name)
        node.meta["val"] = values[0]
        self.values[node] = values

    def call(self, target: Any, args: Any) -> fx.Node | None:
        """A node, if it runs and a rule takes it; ``args`` makes the arguments for so many tokens."""
        whole = args(TOKENS)
        node = self.graph.call_function(target, whole)
        memory = [value.untyped_storage() for values in self.values.values() for value in tensors(values)]
        kept = [(storage, storage.clone()) for storage in memory if target in IN_PLACE]
        try:
            values = []
            for at, tokens in enumerate((TOKENS, *CHUNKS)):
                given = fx.node.map_arg(args(tokens), lambda n, at=at: self.values[n][at])
                values.append(target(*given))
            node.meta["val"] = values[0]
            self.body[node.name] = node
            sizes = zip(whole[1], args(CHUNKS[0])[1], strict=True) if "new_" in str(target) else ()
            self.cut[node.name] = tuple(i for i, (a, b) in enumerate(sizes) if a != b)
            kind = self.kinds()[node.name]
            if isinstance(kind, Rows) and kind.order[0] in SLICED:  # what the verifier sees of the clones
                rows = [value.shape[kind.dim] * TOKENS for value in values]
                if rows != [prod(kind.order[1:]) * tokens for tokens in (TOKENS, *CHUNKS)]:
                    raise Mixed("another dimension is cut")
        except (RuntimeError, IndexError, Mixed):
            self.body.pop(node.name, None)
            self.graph.erase_node(node)
            for storage, old in kept:  # what no rule takes has not happened
                storage.copy_(old)
            return None
        self.values[node] = values
        return node

    def kinds(self) -> dict[str, Any]:
        def reads(name: str) -> set[str]:
            return {used.name for used in self.body[name].all_input_nodes} - self.shared

        return kinds_of(self.body, self.entering, reads, self.cut)[0]

    def pick(self, test: Any = lambda _kind: True) -> fx.Node:
        kinds = {"x": Rows(("tokens", TOKENS), 0), "y": Rows(("tokens", TOKENS), 0), **self.kinds()}
        found = [n for n in self.values if n.name in kinds and test(kinds[n.name])]
        return self.rng.choice(found or list(self.values)[:2])

    def step(self) -> None:
        """A random op on random operands; half of them would mix tokens."""
        rng, x, y = self.rng, self.pick(), self.pick()
        z = self.pick(lambda kind: isinstance(kind, (Rows, Total)))
        index = self.pick(lambda kind: isinstance(kind, (Indices, Inverse)))
        column = self.pick(lambda kind: isinstance(kind, Column))
        chosen = self.pick(lambda kind: isinstance(kind, Column))
        names = {node.name: node for node in self.values}
        v, w = names["v"], names["w"]
        dim, other = rng.choice((-1, 0, 1)), rng.choice((0, 1, 2))
        shapes: list[Any] = [lambda n: [-1], lambda n: [n, -1], lambda n: [n * 2, -1], lambda n: [n, 2, 2]]
        shapes += [lambda n: [2, n, -1], lambda n: [2, 2 * n, -1], lambda n: [4 * n, -1], lambda n: [2, -1, 4]]
        shape = rng.choice([*shapes, lambda n: [4, -1], lambda n: [2, n, 2]])
        rows = rng.choice((lambda n: [n, 4], lambda n: [2 * n], lambda n: [4, n], lambda n: [4, 4]))
        keep = rng.random() < 0.5
        choices: list[tuple[Any, Any]] = [
            (rng.choice((aten.relu.default, aten.neg.default, aten.t.default, aten.clone.default)), lambda n: (x,)),
            (rng.choice((aten.mul.Tensor, aten.add.Tensor, aten.sub.Tensor, aten.maximum.default)), lambda n: (x, y)),
            (rng.choice((aten.mul.Tensor, aten.add.Tensor, aten.mm.default)), lambda n: (z, rng_choice(v, w, 2.0))),
            (aten.mm.default, lambda n: rng_pair(x, y, w)),
            (aten.bmm.default, lambda n: (x, y)),
            (rng.choice((aten.view.default, aten.reshape.default)), lambda n: (x, shape(n))),
            (aten._softmax.default, lambda n: (x, dim, False)),
            (rng.choice((aten.cumsum.default, aten.unsqueeze.default)), lambda n: (x, dim)),
            (rng.choice((aten.sum.dim_IntList, aten.amax.default, aten.mean.dim)), lambda n: (z, [dim], keep)),
            (rng.choice((aten.topk.default, aten.select.int)), lambda n: (x, 1, dim)),
            (aten.sort.default, lambda n: (x,)),
            (aten.sort.default, lambda n: (x, dim)),
            (aten.sort.default, lambda n: (index,)),
            (aten.slice.Tensor, lambda n: (x, other, 0, 2)),
            (aten.split.Tensor, lambda n: (x, 2, other)),
            (aten.unbind.int, lambda n: (x, dim)),
            (aten.cat.default, lambda n: ([x, y], other)),
            (aten.transpose.int, lambda n: (x, 0, other)),
            (aten.squeeze.dim, lambda n: (x, dim)),
            (aten.expand.default, lambda n: (x, [2, -1, -1])),
            (aten.gather.default, lambda n: (x, other, y)),
            (aten.index.Tensor, lambda n: (x, [index])),
            (aten.index_select.default, lambda n: (x, 0, index)),
            (aten.floor_divide.default, lambda n: (index, 2)),
            (rng.choice((aten.zeros_like.default, aten.ones_like.default)), lambda n: (x,)),
            (rng.choice((aten.new_zeros.default, aten.new_ones.default)), lambda n: (x, rows(n))),
            (aten.index_add.default, lambda n: (y, 0, index, x)),
            (aten.index_copy.default, lambda n: (y, 0, index, x)),
            (aten.index_put.default, lambda n: (y, [index], x, keep)),
            (aten.histc.default, lambda n: (x, 4, 0, 4)),
            (rng.choice((aten.add_.Tensor, aten.mul_.Tensor, aten.copy_.default)), lambda n: (x, y)),
            (rng.choice((aten.add_.Tensor, aten.mul_.Tensor)), lambda n: (z, rng_choice(v, w, 2.0))),
            (rng.choice((aten.fill_.Scalar, aten.fill_.Scalar, aten.sub_.Scalar)), lambda n: (z, 3)),
            (aten.zero_.default, lambda n: (z,)),
            (aten.index_put_.default, lambda n: (y, [index], x, keep)),
            (aten.index_add_.default, lambda n: (y, 0, index, x)),
            (aten.index_copy_.default, lambda n: (y, 0, index, x)),
            (rng.choice((aten.scatter_.value, aten.scatter.value)), lambda n: (y, other, chosen, 1)),
            (rng.choice((aten.scatter_add.default, aten.scatter_add_.default)), lambda n: (y, other, column, x)),
            (aten.gather.default, lambda n: (x, 0, column)),
            (aten.empty_like.default, lambda n: (x,)),
            (aten.reshape.default, lambda n: (index, [-1, 1])),
            (aten.expand.default, lambda n: (column, [-1, 4])),
            (aten.native_layer_norm.default, lambda n: (x, [4], v, None, 1e-5)),
            (rng.choice((aten.max.dim, aten.argmax.default)), lambda n: (z, dim, keep)),
            (aten.stack.default, lambda n: ([x, y], dim)),
            (aten.select_backward.default, lambda n: (z, [3, *rows(n)], 0, 1)),
            (rng.choice((aten.std.correction, aten.logsumexp.default)), lambda n: (x, [dim])),
        ]
        lists = [n for n in self.values if isinstance(self.values[n][0], (tuple, list))]
        if lists:
            several, at = rng.choice(lists), rng.choice((0, 1))
            choices += [(operator.getitem, lambda n: (several, at))] * 8
        if isinstance(self.kinds().get(index.name), (Indices, Inverse)):
            choices += choices[21:24] * 2 + choices[26:29] * 3
        fixed = rng.random()

        def rng_choice(*options: Any) -> Any:
            return options[int(fixed * len(options))]

        def rng_pair(*options: Any) -> Any:
            return rng_choice((options[0], options[1]), (options[0], options[2]), (options[2], options[1]))

        self.call(*rng.choice(choices))


def tensors(values: Any) -> Any:
    """All tensors in a list of results."""
    for value in values:
        yield from tensors(value) if isinstance(value, (tuple, list)) else [value]


def agrees(whole: torch.Tensor, kind: Any, parts: list[torch.Tensor]) -> bool:
    """Whether the whole is made of its parts as its kind says."""
    if isinstance(kind, Total):
        return torch.allclose(whole.double(), sum(part.double() for part in parts))
    if not isinstance(kind, Rows) or kind.tag == "empty":
        return True
    shapes = {(*part.shape[: kind.dim], *part.shape[kind.dim + 1 :]) for part in (whole, *parts)}
    if len(shapes) > 1:
        return False
    blocks, at = kind.order[1] if kind.order[0] == "apart" else 1, kind.dim
    split = [part.reshape(*part.shape[:at], blocks, -1, *part.shape[at + 1 :]) for part in parts]
    joined = torch.cat(split, at + 1).reshape(whole.shape) if whole.numel() else torch.cat(parts, at)
    if kind.order[0] not in SLICED:  # sorted: as many rows, and the same numbers in all of them
        return joined.shape == whole.shape and torch.equal(joined.flatten().sort()[0], whole.flatten().sort()[0])
    return torch.equal(whole, joined)


@pytest.mark.full
@pytest.mark.parametrize("block", range(15))
def test_rules_say_what_happens(block):
    """Rows are the rows of the chunks one after another, sums the sums, and each chunk has rows of its own sorted."""
    seen: set[str] = set()
    for seed in (2 * block, 2 * block + 1):
        made = Body(seed)
        if seed % 2:
            made.dispatch()
        if seed % 3 == 0:
            made.fold()
        for _ in range(40):
            made.step()
        for name, kind in made.kinds().items():
            if name not in made.body:
                continue
            whole, *parts = made.values[made.body[name]]
            several = isinstance(kind, tuple)
            rows = list(zip(whole, kind, *parts, strict=True)) if several else [(whole, kind, *parts)]
            for one, each, *some in rows:
                assert agrees(one, each, some), (seed, name, each, [p.shape for p in some], made.graph)
            seen.add(str(made.body[name].target))
    assert len(seen) > 10


def elementwise_ops() -> list[Any]:
    """All ops of PyTorch on a tensor that are taken to work element by element."""
    packets = (getattr(aten, name) for name in dir(aten))
    found = [getattr(p, o) for p in packets if hasattr(p, "overloads") for o in p.overloads()]
    return [op for op in found if is_elementwise(op) and str(op._schema.arguments[0].type) == "Tensor"]


def test_element_by_element_is_what_pytorch_says_it_is():
    """Run on rows together and apart; none takes a dimension, a shape or a list."""
    generator = torch.Generator().manual_seed(0)
    tried = 0
    for op in elementwise_ops():
        names = {argument.name for argument in op._schema.arguments}
        assert not names & {"dim", "dims", "size", "shape", "index", "indices"}, op
        needed = [argument for argument in op._schema.arguments if not argument.has_default_value()]
        if any(str(argument.type) != "Tensor" or argument.kwarg_only for argument in needed):
            continue
        for dtype in (torch.float32, torch.int64):
            values = [torch.randint(1, 9, (6, 4), generator=generator).to(dtype) for _ in needed]
            try:
                whole = op(*values)
                parts = [op(*each) for each in zip(*(value.split(CHUNKS) for value in values), strict=True)]
            except (RuntimeError, NotImplementedError):  # not of this dtype
                continue
            if isinstance(whole, torch.Tensor):
                tried += 1
                assert torch.equal(torch.cat(parts).nan_to_num(), whole.nan_to_num()), op
    assert tried > 100


class Called:
    """An op on a sample of its arguments: ``rows`` are the operands that hold rows, each with their dimension."""

    def __init__(self, op: Any, arguments: Any, rows: dict[int, int]) -> None:
        self.op, (self.args, self.kwargs), self.rows = op, arguments, rows
        self.tokens = min(self.args[at].shape[dim] for at, dim in rows.items())

    def run(self, start: int, size: int) -> Any:
        """What it gives for so many rows."""
        cut = {at: self.args[at].narrow(dim, start, size) for at, dim in self.rows.items()}
        given = [cut.get(at, value) for at, value in enumerate(self.args)]
        given = [value.clone() if isinstance(value, torch.Tensor) else value for value in given]
        made = self.op(*given, **self.kwargs)
        return tuple(made) if isinstance(made, (tuple, list)) else (made,)

    def kinds(self) -> Any:
        """Of its results; raises :class:`Mixed`."""
        graph, stands = fx.Graph(), {}
        for at, value in enumerate(self.args):
            if isinstance(value, torch.Tensor):
                stands[at] = graph.placeholder(f"a{at}")
                stands[at].meta["val"] = value
        args = tuple(stands.get(at, value) for at, value in enumerate(self.args))
        node = graph.call_function(self.op, args, self.kwargs)
        made = self.op(*self.args, **self.kwargs)
        node.meta["val"] = made
        entering = {f"a{at}": dim for at, dim in self.rows.items()}
        kind = kinds_of({node.name: node}, entering, lambda _: set(entering), {})[0][node.name]
        return kind if isinstance(kind, tuple) else (kind,)


def called(op: Any, seed: int) -> list[Called]:
    """Every operand by itself as rows, and all that are as large together."""
    try:
        args, kwargs = sample(op, seed)
        op(*[value.clone() if isinstance(value, torch.Tensor) else value for value in args], **kwargs)
    except Exception:  # of another release
        return []
    sizes = {at: value.shape for at, value in enumerate(args) if isinstance(value, torch.Tensor)}
    apart = [{at: dim} for at, shape in sizes.items() for dim in range(len(shape))]
    alike = [
        {at: dim for at, s in sizes.items() if len(s) > dim and s[dim] == n} for dim in range(3) for n in range(2, 7)
    ]
    chosen = {tuple(sorted(rows.items())): rows for rows in (*apart, *alike) if rows}
    found = [Called(op, (args, kwargs), rows) for rows in chosen.values()]
    return [each for each in found if each.tokens > 1]


def close(one: torch.Tensor, other: torch.Tensor) -> bool:
    if one.shape != other.shape or not (one.is_floating_point() or one.is_complex()):
        return torch.equal(one, other)
    wide = [torch.view_as_real(t.resolve_conj().to(torch.complex128)).nan_to_num() for t in (one, other)]
    return torch.allclose(*wide, rtol=1e-2 if one.dtype is torch.bfloat16 else 1e-4, atol=1e-2)


def checked(each: Called) -> int:
    """How many results are what the rules say of them; none where these say nothing."""
    try:
        kinds = each.kinds()
    except Mixed:
        return 0
    whole = each.run(0, each.tokens)
    try:
        parts = each.run(0, 1), each.run(1, each.tokens - 1)
    except RuntimeError:  # too small a chunk for a kernel: it runs not at all
        return 0
    right = 0
    for at, (made, kind) in enumerate(zip(whole, kinds, strict=True)):
        some = [part[at] for part in parts]
        if isinstance(kind, Total) and made.dtype is not torch.bool:
            assert close(made, some[0] + some[1]), (each.op, each.args, each.rows)
            right += 1
        if isinstance(kind, Rows) and kind.order[0] == "tokens" and kind.tag != "empty":
            sizes = [part.shape[kind.dim] * each.tokens for part in some]
            if sizes == [made.shape[kind.dim] * size for size in (1, each.tokens - 1)]:  # else the clones tell
                assert close(made, torch.cat(some, kind.dim)), (each.op, each.args, each.rows)
                right += 1
    return right


@pytest.mark.parametrize("share", range(160))
@pytest.mark.sampled(2)
def test_what_is_derived_of_any_op_is_what_it_does(share):
    """Rules that follow from schemas and from PyTorch's decompositions, on rows together and apart."""
    table = seeds()
    for name in sorted(name for name in table if name.startswith("aten."))[share::160]:
        op = find(name)
        own = name.rpartition(".")[0] in ROW_RULES or is_elementwise(op)
        if own or torch.Tag.nondeterministic_seeded in op.tags or not aliasing(op).pure:
            continue
        for each in (each for seed in table[name] for each in called(op, seed)):
            checked(each)


def test_an_op_made_of_others_mixes_what_these_mix():
    """Norms over features leave rows apart; a norm over the batch does not, and neither does one whose sizes lie."""
    x, w = torch.randn(6, 4), torch.randn(4)

    def kinds(op: Any, *args: Any) -> Any:
        return Called(op, (args, {}), {0: 0}).kinds()

    assert [type(kind) for kind in kinds(aten.native_layer_norm.default, x, [4], w, None, 1e-5)] == [Rows] * 3
    for mixing in (
        (aten.native_layer_norm.default, x, [6, 4], torch.randn(6, 4), None, 1e-5),
        (aten._native_batch_norm_legit.no_stats, x, w, None, True, 0.1, 1e-5),
        (aten.max.dim, x, 0),
        (aten.logsumexp.default, x, [0]),
        (aten.roll.default, x, [1], [0]),
        (aten.tril.default, x),
        (aten.native_dropout.default, x, 0.5, True),
        # Its decomposition gives another shape than it does.
        (aten.multilabel_margin_loss_forward.default, torch.rand(4), torch.tensor([1, 0, -1, -1]), 0),
        (aten._remove_batch_dim.default, torch.randn(3), 4, 3, 3),  # as long as wide: both follow the rows
    ):
        with pytest.raises(Mixed):
            kinds(*mixing)


def test_rows_that_are_exchanged_by_their_place_are_others_in_a_chunk():
    """The first half of a chunk's rows is no part of the first half of all; of blocks every rank gets whole ones."""
    graph = fx.Graph()
    x = graph.placeholder("x")
    x.meta["val"] = torch.zeros(2, TOKENS, 4)
    halves = graph.call_function(aten.reshape.default, (x, [2 * TOKENS, 4]))
    halves.meta["val"] = torch.zeros(2 * TOKENS, 4)
    exchanged = graph.call_function(EXCHANGE, (halves, [TOKENS] * 2, [TOKENS] * 2, "0"))
    exchanged.meta["val"] = halves.meta["val"]

    def kind(dim: int) -> Any:
        body = {node.name: node for node in (halves, exchanged)}
        return kinds_of(body, {"x": dim}, lambda name: {used.name for used in body[name].all_input_nodes}, {})

    assert kind(1)[0][exchanged.name] == Rows(("apart", 2, TOKENS), 0)
    with pytest.raises(Mixed, match="exchanged by their place"):
        kind(0)
    exchanged.args = (halves, [TOKENS - 1, TOKENS + 1], [TOKENS - 1, TOKENS + 1], "0")
    with pytest.raises(Mixed, match="exchanged by their place"):
        kind(1)


def test_the_square_of_a_sum_is_no_sum():
    graph = fx.Graph()
    x = graph.placeholder("x")
    x.meta["val"] = torch.zeros(TOKENS, 4)
    total = graph.call_function(aten.sum.dim_IntList, (x, [0]))
    twice = graph.call_function(aten.mul.Tensor, (total, 2.0))
    square = graph.call_function(aten.mul.Tensor, (total, total))
    for node in (total, twice, square):
        node.meta["val"] = torch.zeros(4)

    def kinds(*nodes: fx.Node) -> Any:
        body = {node.name: node for node in nodes}
        return kinds_of(body, {"x": 0}, lambda name: {used.name for used in body[name].all_input_nodes}, {})[0]

    assert kinds(total, twice)[twice.name] == Total()
    with pytest.raises(Mixed, match="not linear"):
        kinds(total, square)


def test_rows_beside_what_is_as_long_as_a_run_says():
    """Whether that is one element, which is the same in every chunk, is not asked before it runs."""
    graph, symbols = fx.Graph(), ShapeEnv()
    x, other = graph.placeholder("x"), graph.placeholder("other")
    both = graph.call_function(aten.add.Tensor, (x, other))
    with FakeTensorMode(shape_env=symbols):
        for node in (x, other, both):
            node.meta["val"] = torch.zeros(TOKENS, 4)
        other.meta["val"] = torch.zeros(symbols.create_unbacked_symint(), 4)
    with pytest.raises(Mixed, match="every chunk reads all of 'other'"):
        kinds_of({"add": both}, {"x": 0}, lambda name: {"x"}, {})


@pytest.mark.parametrize(
    "kind", ["plain", "added", "from one", "by twos", "rounded", "other values", "another number of rows"]
)
def test_numbers_put_where_rows_come_from(kind):
    """Only the number of each row itself, once, says where each row went."""
    graph = fx.Graph()
    x = graph.placeholder("x")
    x.meta["val"] = torch.tensor([3.0, 1, 2, 0, 5, 4])

    def call(target, *args):
        node = graph.call_function(target, args)
        node.meta["val"] = target(*fx.node.map_arg(args, lambda used: used.meta["val"]))
        return node

    order = call(operator.getitem, call(aten.sort.default, x), 1)
    start, end, step = {"from one": (1, 7, 1), "by twos": (0, 12, 2)}.get(kind, (0, TOKENS, 1))
    numbers = call(aten.arange.start_step, start, end, step)
    empty = call(aten.empty_like.default, order)
    where = call(aten.floor_divide.default, order, 2) if kind == "rounded" else order
    table = call(aten.new_empty.default, order, [2 * TOKENS]) if kind == "another number of rows" else empty
    values = order if kind == "other values" else numbers
    put = call(aten.index_put.default, table, [where], values, kind == "added")
    body = {node.name: node for node in graph.nodes if node.op != "placeholder"}
    cut = {numbers.name: (0,), table.name: (0,)} if table is not empty else {numbers.name: (0,)}

    def made():
        return kinds_of(body, {"x": 0}, lambda name: {used.name for used in body[name].all_input_nodes}, cut)[0]

    if kind == "plain":
        assert made()[put.name] == Inverse(Indices(("tokens", TOKENS), "x"))
        return
    with pytest.raises(Mixed, match=r"at '(index_put|arange)"):
        made()
