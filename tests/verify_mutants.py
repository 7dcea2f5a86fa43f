"""Damage to any graph, one kind a function: what a verifier has to find in the result of a pass.

::

    for name, damage in KINDS.items():
        broken = damage(copied(graph), random.Random(1))     # the damaged graph, None where there is nothing to damage

Each function changes one thing, at a place that the generator picks among those that matter, so that the
program is another one: another value, another effect, another order where order counts. Limits: a change
may still be without consequence in a graph where two tensors happen to hold the same elements.
"""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any

import torch
from torch.fx.node import map_arg

from commcc.graph.ops import aliasing, collective_of, facts, is_assertion, is_wait, op_name

if TYPE_CHECKING:
    import random
    from collections.abc import Callable

    from torch import fx

aten = torch.ops.aten
c10d = torch.ops._c10d_functional

#: Ops whose result does not change when two operands of one shape change places.
_COMMUTATIVE = frozenset(f"aten.{name}" for name in ("add", "add_", "mul", "mul_", "maximum", "minimum", "eq", "ne"))
#: Ops that only hand on what they are given; an exchange among them may be one of equal elements.
_CONSTANT = frozenset(
    f"aten.{name}" for name in ("zeros", "ones", "full", "zeros_like", "ones_like", "full_like", "empty")
)


def live_nodes(graph: fx.Graph) -> set[str]:
    """Names of the nodes that outputs, writes, random numbers or effects need."""
    live: set[fx.Node] = set()
    for node in reversed(graph.nodes):
        acts = node.op == "call_function" and not facts(node.target).pure
        if node.op == "output" or node in live or acts:
            live.add(node)
            live.update(node.all_input_nodes)
    return {node.name for node in live}


def _calls(graph: fx.Graph, *names: str) -> list[fx.Node]:
    """Live calls, of the ops with these names or of all."""
    live = live_nodes(graph)
    calls = [n for n in graph.nodes if n.op == "call_function" and n.name in live]
    return [n for n in calls if op_name(n.target) in names] if names else calls


def _launches(graph: fx.Graph, kind: str = "") -> list[fx.Node]:
    found = [(n, collective_of(n.target)) for n in _calls(graph)]
    return [n for n, fact in found if fact is not None and kind in fact.kind.value]


class Number(int):
    """Stands for a node in a printed argument, unlike the number itself."""

    def __repr__(self) -> str:
        return f"%{int(self)}"


def _looks(node: Any) -> Any:
    val = node.meta.get("val")
    return (str(tuple(val.shape)), val.dtype) if isinstance(val, torch.Tensor) else None


def _pick(rng: random.Random, sites: list[Any]) -> Any:
    return rng.choice(sites) if sites else None


def _origin(node: fx.Node) -> fx.Node:
    """What a tensor is a view of, as far as views go."""
    while node.op == "call_function" and aliasing(node.target).views and node.all_input_nodes:
        node = node.all_input_nodes[0]
    return node


def _values(graph: fx.Graph) -> dict[fx.Node, int]:
    """Equal numbers for nodes that compute the same by the same ops, so that exchanging them changes nothing."""
    numbers: dict[Any, int] = {}
    found: dict[fx.Node, int] = {}
    for node in graph.nodes:
        if node.op == "output":
            continue
        key: Any = (node.op, node.name)
        if node.op == "call_function" and not aliasing(node.target).writes:
            key = (str(node.target), str(map_arg((node.args, node.kwargs), lambda n: Number(found[n]))))
        found[node] = numbers.setdefault(key, len(numbers))
    return found


def _members(parts: list[fx.Node]) -> list[fx.Node]:
    """What went into the merged collective whose result is split into these parts; empty when that is not found."""
    node = parts[0].args[0]
    while node.op == "call_function" and node.all_input_nodes:
        joined = node.args[0]
        if isinstance(joined, (list, tuple)) and len(joined) == len(parts):
            return list(joined)
        node = node.all_input_nodes[0]
    return []


def _differ(values: dict[fx.Node, int], parts: list[fx.Node], first: fx.Node, second: fx.Node) -> bool:
    """Whether two parts of one result are of different members."""
    members = _members(parts)
    if not members:
        return True
    a, b = (members[part.args[1]] for part in (first, second))
    return values[a] != values[b]


def _earlier_twins(graph: fx.Graph) -> dict[fx.Node, list[fx.Node]]:
    """For each tensor, tensors before it that look the same and are not views of the same thing."""
    seen: dict[Any, list[fx.Node]] = {}
    twins: dict[fx.Node, list[fx.Node]] = {}
    values = _values(graph)
    for node in graph.nodes:
        looks = _looks(node)
        if looks is None or op_name(node.target) in _CONSTANT or collective_of(node.target) is not None:
            continue
        earlier = (other for other in seen.get(looks, [])[-8:] if _origin(other) is not _origin(node))
        twins[node] = [other for other in earlier if values[other] != values[node]]
        seen.setdefault(looks, []).append(node)
    return twins


# Values


def other_operand(graph: fx.Graph, rng: random.Random) -> bool:
    """An op reads another tensor that looks the same. What asks for a size is told the same by both."""
    twins = _earlier_twins(graph)
    readers = [n for n in _calls(graph) if not is_wait(n.target) and "sym_" not in op_name(n.target)]
    sites = [(n, a) for n in readers for a in n.all_input_nodes if twins.get(a)]
    site = _pick(rng, sites)
    if site is None:
        return False
    site[0].replace_input_with(site[1], rng.choice(twins[site[1]]))
    return True


def exchanged_operands(graph: fx.Graph, rng: random.Random) -> bool:
    """The first two operands of an op change places."""
    sites = [
        n
        for n in _calls(graph)
        if len(n.args) >= 2
        and all(hasattr(a, "op") for a in n.args[:2])
        and n.args[0] is not n.args[1]
        and _looks(n.args[0]) is not None
        and _looks(n.args[0]) == _looks(n.args[1])
        and op_name(n.target) not in _COMMUTATIVE
        and _origin(n.args[0]) is not _origin(n.args[1])
    ]
    node = _pick(rng, sites)
    if node is None:
        return False
    node.args = (node.args[1], node.args[0], *node.args[2:])
    return True


def other_scalar(graph: fx.Graph, rng: random.Random) -> bool:
    """A constant of arithmetic is another one."""
    names = [f"aten.{name}" for name in ("mul", "add", "div", "sub", "pow", "add_", "mul_", "rsub")]
    sites = [(n, i) for n in _calls(graph, *names) for i, a in enumerate(n.args) if isinstance(a, (int, float))]
    site = _pick(rng, sites)
    if site is None:
        return False
    node, at = site
    node.args = (*node.args[:at], node.args[at] + 1, *node.args[at + 1 :])
    return True


def other_op(graph: fx.Graph, rng: random.Random) -> bool:
    """An op is replaced by one with the same arguments."""
    other = {
        aten.add.Tensor: aten.mul.Tensor,
        aten.mul.Tensor: aten.add.Tensor,
        aten.sub.Tensor: aten.add.Tensor,
        aten.silu.default: aten.sigmoid.default,
        aten.rsqrt.default: aten.sqrt.default,
        aten.neg.default: aten.abs.default,
        aten.exp.default: aten.sin.default,
    }
    node = _pick(rng, [n for n in _calls(graph) if n.target in other])
    if node is None:
        return False
    node.target = other[node.target]
    return True


def other_dimension(graph: fx.Graph, rng: random.Random) -> bool:
    """A sum or a mean is over another dimension of the same length; a permutation is another one."""
    sites = []
    for node in _calls(graph, "aten.permute", "aten.transpose"):
        dims = node.args[1] if op_name(node.target) == "aten.permute" else node.args[1:3]
        if len(dims) >= 2 and len(set(map(str, node.args[0].meta["val"].shape))) > 1:
            sites.append(node)
    node = _pick(rng, sites)
    if node is None:
        return False
    if op_name(node.target) == "aten.permute":
        dims = list(node.args[1])
        dims[0], dims[1] = dims[1], dims[0]
        if node.args[0].meta["val"].shape[dims[0]] == node.args[0].meta["val"].shape[dims[1]] == 1:
            return False
        node.args = (node.args[0], dims)
    else:
        node.args = (node.args[0], node.args[1], node.args[1])
    return True


def other_precision(graph: fx.Graph, rng: random.Random) -> bool:
    """A conversion is to another floating-point type."""
    sites = [
        n
        for n in _calls(graph, "aten._to_copy", "prims.convert_element_type")
        if torch.dtype in map(type, (*n.args, *n.kwargs.values()))
    ]
    node = _pick(rng, sites)
    if node is None:
        return False

    def change(value: Any) -> Any:
        return (
            (torch.float16 if value is not torch.float16 else torch.bfloat16)
            if isinstance(value, torch.dtype)
            else value
        )

    node.args = tuple(map(change, node.args))
    node.kwargs = {name: change(value) for name, value in node.kwargs.items()}
    return True


# Merged collectives


def _merged_parts(graph: fx.Graph) -> list[list[fx.Node]]:
    """Parts of splits of what collectives returned, at least two."""
    found = []
    for split in _calls(graph, "aten.split_with_sizes", "aten.split"):
        parts = [user for user in split.users if user.target is operator.getitem]
        if len(parts) > 1:
            found.append(parts)
    return found


def exchanged_parts(graph: fx.Graph, rng: random.Random) -> bool:
    """Two parts of one result go where the other belongs."""
    values = _values(graph)
    sites = [
        (a, b)
        for parts in _merged_parts(graph)
        for i, a in enumerate(parts)
        for b in parts[i + 1 :]
        if _looks(a) == _looks(b) and _differ(values, parts, a, b)
    ]
    pair = _pick(rng, sites)
    if pair is None:
        return False
    pair[0].args, pair[1].args = (pair[0].args[0], pair[1].args[1]), (pair[1].args[0], pair[0].args[1])
    return True


def repeated_part(graph: fx.Graph, rng: random.Random) -> bool:
    """One part of a result is used for two members."""
    values = _values(graph)
    sites = [
        (a, b)
        for parts in _merged_parts(graph)
        for a in parts
        for b in parts
        if a is not b and _looks(a) == _looks(b) and _differ(values, parts, a, b)
    ]
    pair = _pick(rng, sites)
    if pair is None:
        return False
    pair[0].args = pair[1].args
    return True


def shifted_sizes(graph: fx.Graph, rng: random.Random) -> bool:
    """A split cuts one element to the left; parts keep their sizes in number, not in place."""
    sites = [
        n
        for n in _calls(graph, "aten.split_with_sizes")
        if all(isinstance(s, int) for s in n.args[1]) and len(set(n.args[1])) > 1
    ]
    node = _pick(rng, sites)
    if node is None:
        return False
    sizes = list(node.args[1])
    at = next(i for i in range(len(sizes) - 1) if sizes[i] != sizes[i + 1])
    sizes[at], sizes[at + 1] = sizes[at + 1], sizes[at]
    node.args = (node.args[0], sizes, *node.args[2:])
    return True


def _joins(graph: fx.Graph) -> list[tuple[fx.Node, int, int]]:
    """Joins with two operands that look alike but are not the same tensor."""
    found, values = [], _values(graph)
    for node in _calls(graph, "aten.cat", "aten.stack", "bucketing._pre_bucket_all_gather"):
        parts = node.args[0]
        pairs = [(i, j) for i in range(len(parts)) for j in range(i)]
        found.extend(
            (node, i, j)
            for i, j in pairs
            if _looks(parts[i]) == _looks(parts[j]) and values[parts[i]] != values[parts[j]]
        )
    return found


def _rejoined(graph: fx.Graph, rng: random.Random, *, exchange: bool) -> bool:
    site = _pick(rng, _joins(graph))
    if site is None:
        return False
    node, i, j = site
    parts = list(node.args[0])
    parts[i], parts[j] = parts[j], parts[i] if exchange else parts[j]
    node.args = (parts, *node.args[1:])
    return True


def exchanged_members(graph: fx.Graph, rng: random.Random) -> bool:
    """Two operands of a join change places."""
    return _rejoined(graph, rng, exchange=True)


def lost_member(graph: fx.Graph, rng: random.Random) -> bool:
    """A join takes one operand twice and another not at all."""
    return _rejoined(graph, rng, exchange=False)


# Collectives


def _with(node: fx.Node, name: str, change: Callable[[Any], Any]) -> bool:
    """Change an argument by schema name."""
    names = [argument.name for argument in node.target._schema.arguments]
    at = names.index(name) if name in names else -1
    if at < 0:
        return False
    if at < len(node.args):
        node.args = (*node.args[:at], change(node.args[at]), *node.args[at + 1 :])
    else:
        node.kwargs = {**node.kwargs, name: change(node.kwargs.get(name))}
    return True


def other_group(graph: fx.Graph, rng: random.Random) -> bool:
    node = _pick(rng, _launches(graph))
    return node is not None and _with(node, "group_name", lambda name: f"{name}9")


def other_reduction(graph: fx.Graph, rng: random.Random) -> bool:
    node = _pick(rng, [*_launches(graph, "reduce_scatter"), *_launches(graph, "all_reduce")])
    return node is not None and _with(node, "reduce_op", lambda op: "avg" if op != "avg" else "sum")


def no_reduction(graph: fx.Graph, rng: random.Random) -> bool:
    """What an all-reduce returned is what it was given."""
    waits = [n for n in _calls(graph) if is_wait(n.target) and n.args[0] in _launches(graph, "all_reduce")]
    wait = _pick(rng, waits)
    if wait is None:
        return False
    launch = wait.args[0]
    wait.replace_all_uses_with(launch.args[0])
    graph.erase_node(wait)
    graph.erase_node(launch)
    return True


def exchanged_launches(graph: fx.Graph, rng: random.Random) -> bool:
    """A launch takes the operand of another one."""
    values = _values(graph)
    sites = [
        (a, b)
        for kind in ("all_gather", "reduce_scatter", "all_to_all")
        for i, a in enumerate(_launches(graph, kind))
        for b in _launches(graph, kind)[i + 1 : i + 40]
        if a.target is b.target
        and a.args[1:] == b.args[1:]
        and hasattr(a.args[0], "op")
        and _looks(a.args[0]) == _looks(b.args[0])
        and values[a.args[0]] != values[b.args[0]]
    ]
    pair = _pick(rng, sites)
    if pair is None:
        return False
    first, second = (node.args[0] for node in pair)
    latest = max((pair[0], pair[1]), key=list(graph.nodes).index)
    earliest = pair[0] if latest is pair[1] else pair[1]
    latest.args = (earliest.args[0], *latest.args[1:])  # the other way round would read ahead of the definition
    return first is not second


def other_splits(graph: fx.Graph, rng: random.Random) -> bool:
    """An all-to-all sends and receives by each other's sizes."""
    sites = [n for n in _launches(graph, "all_to_all") if n.args[1] != n.args[2]]
    node = _pick(rng, sites)
    if node is None:
        return False
    node.args = (node.args[0], node.args[2], node.args[1], *node.args[3:])
    return True


# Waits and order


def _waits(graph: fx.Graph) -> list[fx.Node]:
    """Waits for a launch that nothing else waits for; a second wait changes nothing."""
    launches = set(_launches(graph))
    waits = [n for n in _calls(graph) if is_wait(n.target) and n.args[0] in launches]
    return [n for n in waits if not any(is_wait(user.target) for user in (*n.users, *n.args[0].users) if user is not n)]


def no_wait(graph: fx.Graph, rng: random.Random) -> bool:
    """What a launch returns is read without waiting."""
    wait = _pick(rng, [n for n in _waits(graph) if n.users])
    if wait is None:
        return False
    wait.replace_all_uses_with(wait.args[0])
    graph.erase_node(wait)
    return True


def late_wait(graph: fx.Graph, rng: random.Random) -> bool:
    """The first reader of a result comes ahead of the wait, and reads the launch."""
    reads = [n for n in _calls(graph) if not aliasing(n.target).views and "sym_" not in op_name(n.target)]
    sites = [(wait, user) for wait in _waits(graph) for user in reads if user in wait.users]
    site = _pick(rng, sites)
    if site is None:
        return False
    wait, reader = site
    reader.replace_input_with(wait, wait.args[0])
    reader.append(wait)
    for user in list(wait.users):
        if list(graph.nodes).index(user) < list(graph.nodes).index(wait):
            user.replace_input_with(wait, wait.args[0])
    return True


def use_before_definition(graph: fx.Graph, rng: random.Random) -> bool:
    node = _pick(rng, [n for n in _calls(graph) if n.all_input_nodes and n.all_input_nodes[-1].op == "call_function"])
    if node is None:
        return False
    node.all_input_nodes[-1].prepend(node)
    return True


# Memory


def _writes(graph: fx.Graph) -> list[fx.Node]:
    found = [n for n in _calls(graph) if aliasing(n.target).writes and collective_of(n.target) is None]
    return [n for n in found if isinstance(n.args[0], type(n))]


def lost_write(graph: fx.Graph, rng: random.Random) -> bool:
    """Something is not written."""
    write = _pick(rng, _writes(graph))
    if write is None:
        return False
    write.replace_all_uses_with(write.args[0])
    graph.erase_node(write)
    return True


def late_write(graph: fx.Graph, rng: random.Random) -> bool:
    """A write comes after the read that should have seen it."""
    order = {node: i for i, node in enumerate(graph.nodes)}
    sites = []
    for write in _writes(graph):
        target = _origin(write.args[0])
        readers = [
            n
            for n in graph.nodes
            if order[n] > order[write]
            and n.op == "call_function"
            and n not in write.users
            and any(_origin(a) is target for a in n.all_input_nodes)
            and not aliasing(n.target).views
        ]
        if readers and not any(order[user] <= order[readers[0]] for user in write.users):
            sites.append((write, readers[0]))
    site = _pick(rng, sites)
    if site is None:
        return False
    site[1].append(site[0])
    return True


# The boundary


def exchanged_outputs(graph: fx.Graph, rng: random.Random) -> bool:
    output = next(n for n in graph.nodes if n.op == "output")
    values, numbers = list(output.args[0]), _values(graph)
    pairs = [
        (i, j)
        for i in range(len(values))
        for j in range(i)
        if None not in (values[i], values[j]) and numbers[values[i]] != numbers[values[j]]
    ]
    pair = _pick(rng, pairs)
    if pair is None:
        return False
    i, j = pair
    values[i], values[j] = values[j], values[i]
    output.args = (tuple(values),)
    return True


def lost_output(graph: fx.Graph, rng: random.Random) -> bool:
    output = next(n for n in graph.nodes if n.op == "output")
    values = list(output.args[0])
    at = _pick(rng, [i for i, value in enumerate(values) if value is not None])
    if at is None:
        return False
    values[at] = None
    output.args = (tuple(values),)
    return True


def exchanged_inputs(graph: fx.Graph, rng: random.Random) -> bool:
    """Two inputs change places in the signature."""
    inputs = [n for n in graph.nodes if n.op == "placeholder"]
    if len(inputs) < 2:
        return False
    at = rng.randrange(len(inputs) - 1)
    inputs[at].prepend(inputs[at + 1])
    return True


def other_input(graph: fx.Graph, rng: random.Random) -> bool:
    """An input is read in place of another that looks the same."""
    inputs = [n for n in graph.nodes if n.op == "placeholder" and n.users and _looks(n) is not None]
    sites = [(a, b) for a in inputs for b in inputs if a is not b and _looks(a) == _looks(b)]
    site = _pick(rng, sites)
    if site is None:
        return False
    live = live_nodes(graph)
    users = [user for user in site[0].users if user.name in live]
    if not users or site[1] in users[0].all_input_nodes:
        return False
    users[0].replace_input_with(site[0], site[1])
    return True


def lost_check(graph: fx.Graph, rng: random.Random) -> bool:
    """An assertion is gone."""
    node = _pick(rng, [n for n in graph.nodes if n.op == "call_function" and is_assertion(n.target) and not n.users])
    if node is None:
        return False
    graph.erase_node(node)
    return True


def doubled_launch(graph: fx.Graph, rng: random.Random) -> bool:
    """The same collective is launched and waited for twice, for half of its readers each."""
    waits = [n for n in _calls(graph) if is_wait(n.target) and isinstance(n.args[0], type(n))]
    waits = [n for n in waits if collective_of(n.args[0].target) and not n.args[0].kwargs.get("out")]
    wait = _pick(rng, [n for n in waits if len(n.args[0].users) == 1 and len(n.users) >= 1])
    if wait is None:
        return False
    launch = wait.args[0]
    with graph.inserting_after(wait):
        again = graph.node_copy(launch, lambda n: n)
    again.name = f"{launch.name}_again"
    with graph.inserting_after(again):
        waited = graph.node_copy(wait, lambda n: again if n is launch else n)
    waited.name = f"{wait.name}_again"
    user = list(wait.users)[-1]
    user.replace_input_with(wait, waited)
    return True


def shifted_slice(graph: fx.Graph, rng: random.Random) -> bool:
    """A slice or a selection starts one further on."""
    sites = [
        n
        for n in _calls(graph, "aten.slice", "aten.select")
        if len(n.args) >= 3
        and isinstance(n.args[2], int)
        and n.args[2] >= 0
        and isinstance(n.args[0].meta["val"].shape[n.args[1]], int)
        and n.args[2] + 1 < n.args[0].meta["val"].shape[n.args[1]]
    ]
    node = _pick(rng, sites)
    if node is None:
        return False
    node.args = (*node.args[:2], node.args[2] + 1, *node.args[3:])
    return True


def other_part(graph: fx.Graph, rng: random.Random) -> bool:
    """Another of several results is taken."""
    sites = []
    for node in _calls(graph):
        if node.target is operator.getitem and isinstance(node.args[0].meta.get("val"), (tuple, list)):
            count = len(node.args[0].meta["val"])
            sites.extend((node, i) for i in range(count) if i != node.args[1])
    site = _pick(rng, sites)
    if site is None:
        return False
    site[0].args = (site[0].args[0], site[1])
    return True


KINDS: dict[str, Callable[[fx.Graph, random.Random], bool]] = {
    made.__name__.replace("_", " "): made
    for made in (
        other_operand,
        exchanged_operands,
        other_scalar,
        other_op,
        other_dimension,
        other_precision,
        exchanged_parts,
        repeated_part,
        shifted_sizes,
        exchanged_members,
        lost_member,
        other_group,
        other_reduction,
        no_reduction,
        exchanged_launches,
        doubled_launch,
        other_splits,
        no_wait,
        late_wait,
        use_before_definition,
        lost_write,
        late_write,
        exchanged_outputs,
        lost_output,
        exchanged_inputs,
        other_input,
        lost_check,
        shifted_slice,
        other_part,
    )
}
