"""Highest live bytes of a graph, counted on its nodes: no index, no buffers, no hints of commcc's.

Which storage a result lies in is read off schemas; sizes are PyTorch's own expressions with numbers put in for symbols.
"""

from __future__ import annotations

import torch


def number(size, numbers):
    """A size with the numbers of its symbols."""
    if isinstance(size, int):
        return size
    expr = size.node.expr
    return int(expr.subs({symbol: numbers[str(symbol)] for symbol in expr.free_symbols}))


def reach(value, numbers):
    """Bytes from a tensor's first element to its last."""
    sizes, strides = ([number(n, numbers) for n in each] for each in (value.shape, value.stride()))
    if 0 in sizes:
        return 0
    return (1 + sum((n - 1) * step for n, step in zip(sizes, strides, strict=True))) * value.element_size()


def copies(node, numbers):
    """Whether a reshape cannot be a view of what it reshapes, as PyTorch itself says."""
    if "reshape" not in str(node.target):
        return False
    sizes, strides = ([number(n, numbers) for n in each] for each in _layout(node.all_input_nodes[0]))
    try:
        torch.empty_strided(sizes, strides, device="meta").view([number(n, numbers) for n in _layout(node)[0]])
    except RuntimeError:
        return True
    return False


def _layout(node):
    return node.meta["val"].shape, node.meta["val"].stride()


def home_of(node, home, numbers):
    """The node that made the storage of a result: an operand's for views, the node's own otherwise."""
    if node.op != "call_function" or copies(node, numbers):
        return node
    schema = getattr(node.target, "_schema", None)
    returns = schema.returns if schema is not None else ()
    aliased = [i for i, arg in enumerate(schema.arguments) if arg.alias_info is not None] if returns else []
    # The one view that its schema takes for a result of its own.
    view = len(returns) == 1 and (returns[0].alias_info is not None or "_unsafe_view" in str(node.target))
    sources = node.all_input_nodes
    if view and sources:
        source = node.args[aliased[0]] if aliased and len(node.args) > aliased[0] else sources[0]
        return home[source]
    if "getitem" in str(node.target):
        made = sources[0]
        schema = getattr(made.target, "_schema", None)
        if schema is not None and len(schema.returns) == 1 and schema.returns[0].alias_info is not None:
            return home[made]  # split gives views
        return node
    return home[sources[0]] if "wait_tensor" in str(node.target) else node


def counted_peak(program, numbers=None):
    """The peak; ``numbers`` by symbol."""
    numbers = numbers or {}
    nodes = list(program.graph.nodes)
    place = {node: i for i, node in enumerate(nodes)}
    home, size, last = {}, {}, {}
    for node in nodes:
        home[node] = home_of(node, home, numbers)
        value = node.meta.get("val")
        if isinstance(value, torch.Tensor):
            size[home[node]] = max(size.get(home[node], 0), reach(value, numbers))
        for near in (node, *node.all_input_nodes):
            last[home[near]] = place[node]
            # What a collective sends is there until it has ended.
            if "wait_tensor" in str(node.target) and near.op == "call_function":
                last.update({home[sent]: place[node] for sent in near.all_input_nodes})
    kept = {home[node] for node in nodes if node.op in ("placeholder", "get_attr")}
    kept |= {home[node] for node in nodes[-1].all_input_nodes}
    now, peak = sum(size.get(node, 0) for node in kept if node.op in ("placeholder", "get_attr")), 0
    ends = {}
    for at, where in last.items():
        ends.setdefault(where, []).append(at)
    born = {node for node in kept if node.op in ("placeholder", "get_attr")}
    made_at = {}
    for node in nodes:
        made_at.setdefault(place[home[node]], set()).add(home[node])
    for i in range(len(nodes)):
        for at in made_at.get(i, ()):
            if at not in born:
                born.add(at)
                now += size.get(at, 0)
        peak = max(peak, now)
        now -= sum(size.get(at, 0) for at in ends.get(i, ()) if at not in kept and at in born)
    return peak
