"""What the annotations of a graph say about expert parallelism and chunks, node by node.

    notes = annotations_of(program, index)
    notes[363].exchange          # 'dispatch': launches a token exchange
    notes[363].module            # 'layers.1.moe'
    notes[717].backward          # True

Keys are read at the top level of ``node.meta`` and in ``meta["custom"]``; the top level wins. What commcc writes
(:func:`marked`) it writes to both, so that text dumps keep it and other tools can read it.

A node without a mark that reads a backward node is one. Where no node has ``autograd_backward``, a node is backward
when gradient outputs (and no other output and no write to an input) depend on it, or when it depends on a tangent.
Gradients are outputs described as ``GradAOTOutput``, tangents inputs described as ``TangentAOTInput`` or named
``tangents_*``.

Where that tells nothing and the first output is a loss, of a step in one graph, all is backward that stands behind the
gradient of the loss and that the loss does not need.

All-to-alls without annotations are told by what they exchange: whole numbers are token counts, and of the others every
second one brings tokens back, where no annotation names any.

Limits: values are untrusted; a wrong type or an unknown word is an :class:`InputError` that names the node. Printed
dumps cut values of more than 40 characters: a region whose name was cut is refused.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, cast

from commcc.base.errors import InputError, closest
from commcc.base.terms import Kind

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from torch import fx

    from commcc.graph.index import GraphIndex
    from commcc.graph.program import Program

Part = Literal["compute", "dispatch", "combine"]
Exchange = Literal["dispatch", "combine"]
RegionRole = Literal["body", "split_boundary", "chunk_input", "materialization"]
Producer = Literal["graph", "eager"]

REGION, ROLE, CHUNK = "chunked_region_fqn", "chunked_region_role", "chunk_id"
REGION_BACKWARD, PRODUCER, ORIGINAL = "chunked_region_is_backward", "chunked_region_producer", "chunked_original_name"
PROOF = "chunked_materialization_proof"
EXCHANGE, EXCHANGE_WAIT = "EP_token_exchange", "EP_token_exchange_wait"
#: The keys that chunking writes.
CHUNK_KEYS = (REGION, ROLE, CHUNK, REGION_BACKWARD, PRODUCER, ORIGINAL, PROOF)
#: Numbers for the symbols in a shape that stand for tokens.
HINTS = "torchtitan_chunk_symbol_hints"
#: What a token exchange can be.
EXCHANGES = ("dispatch", "combine")
_WORDS: dict[str, tuple[str, ...]] = {
    "EP": ("compute", "dispatch", "combine"),
    "EP_token_count_exchange": ("dispatch",),
    "EP_token_count_sync": ("dispatch",),
    EXCHANGE: EXCHANGES,
    EXCHANGE_WAIT: EXCHANGES,
    ROLE: ("body", "split_boundary", "chunk_input", "materialization"),
    PRODUCER: ("graph", "eager"),
}
#: No graph is cut in more chunks than this.
MOST_CHUNKS = 4096


@dataclass(frozen=True)
class Annotation:
    """What the annotations say of one node.

    module: cleaned path, empty for the root or where nothing tells it. part: of expert parallelism. exchange: the
    token exchange that it launches or waits for; exchange_wait: the one that the scheduler says it waits for.
    count_exchange, count_sync: it exchanges token counts, brings them to the host. region, role, chunk: of a chunked
    graph. producer: what chunked it. original: the node that it was cloned from.
    """

    module: str = ""
    part: Part | None = None
    count_exchange: bool = False
    count_sync: bool = False
    exchange: Exchange | None = None
    exchange_wait: Exchange | None = None
    backward: bool = False
    region: str | None = None
    role: RegionRole | None = None
    chunk: int | None = None
    producer: Producer = "graph"
    original: str | None = None


def annotations_of(program: Program, index: GraphIndex) -> tuple[Annotation, ...]:
    """The annotations of every node, by number. Raises :class:`InputError` for values that cannot be."""
    nodes = list(program.graph.nodes)
    backward = backward_nodes(program, index)
    return _with_exchanges(index, [_read(node, index.modules[i] or "", i in backward) for i, node in enumerate(nodes)])


def _with_exchanges(index: GraphIndex, notes: list[Annotation]) -> tuple[Annotation, ...]:
    """What no annotation says of exchanges: whole numbers are token counts; where no other is annotated either, rows go
    to the experts and come back in turn, in the backward pass the other way round.
    """
    launches = [n for n, launch in index.launches.items() if launch.kind is Kind.ALL_TO_ALL]
    unknown = [n for n in sorted(launches) if notes[n].exchange is None and not notes[n].count_exchange]
    counts = [n for n in unknown if all(_whole(index, source) for source in index.launches[n].inputs)]
    rows = [] if any(notes[n].exchange for n in launches) else [n for n in unknown if n not in counts]
    for node in counts:
        notes[node] = replace(notes[node], count_exchange=True)
    seen: Counter[object] = Counter()
    for node in rows:
        note = notes[node]
        key = (note.region or note.module, note.backward, note.chunk)
        label = EXCHANGES[(seen[key] + note.backward) % 2]
        seen[key] += 1
        notes[node] = replace(note, exchange=cast("Exchange", label))
    # The copies to the host that the sizes of an exchange come from.
    if (counts or rows) and not any(note.count_sync for note in notes):
        sizes = (size for n in launches for size in index.data_preds[n] if size not in index.launches[n].inputs)
        for node in _ancestors(index, sizes) & index.host_copies.keys():
            notes[node] = replace(notes[node], count_sync=True)
    return tuple(notes)


def _whole(index: GraphIndex, node: int) -> bool:
    tensor = index.tensors[node]
    return tensor is not None and tensor.dtype.removeprefix("torch.").startswith(("int", "uint"))


def _read(node: fx.Node, module: str, backward: bool) -> Annotation:
    custom = _custom(node)
    if not (custom or REGION in node.meta or ROLE in node.meta):
        return Annotation(module, backward=backward)
    return Annotation(
        module=module,
        part=cast("Part | None", _word(node, "EP")),
        count_exchange=_word(node, "EP_token_count_exchange") is not None,
        count_sync=_word(node, "EP_token_count_sync") is not None,
        exchange=cast("Exchange | None", _word(node, EXCHANGE)),
        exchange_wait=cast("Exchange | None", _word(node, EXCHANGE_WAIT)),
        backward=_backward_region(node, backward),
        region=_region(node),
        role=cast("RegionRole | None", _word(node, ROLE)),
        chunk=_chunk(node),
        producer=cast("Producer", _word(node, PRODUCER) or "graph"),
        original=_text(node, ORIGINAL),
    )


def _custom(node: fx.Node) -> Mapping[str, Any]:
    custom = node.meta.get("custom")
    if custom is None:
        return {}
    if not isinstance(custom, dict):
        raise _wrong(node, "custom", custom, "a dictionary is needed")
    return custom


def _value(node: fx.Node, key: str) -> Any:
    value = node.meta.get(key)
    return value if value is not None else _custom(node).get(key)


def _wrong(node: fx.Node, key: str, value: object, why: str) -> InputError:
    return InputError(f"annotation '{key}' is {value!r:.60}: {why}", where=f"node '{node.name}'")


def _text(node: fx.Node, key: str) -> str | None:
    value = _value(node, key)
    if value is not None and not isinstance(value, str):
        raise _wrong(node, key, value, "a name is needed")
    return value


def _word(node: fx.Node, key: str) -> str | None:
    value = _text(node, key)
    if value is not None and value not in _WORDS[key]:
        known = _WORDS[key]
        raise _wrong(node, key, value, f"expected {' or '.join(known)}{closest(value, known)}")
    return value


def _region(node: fx.Node) -> str | None:
    value = _text(node, REGION)
    if value is not None and (not value or value.endswith("...")):
        raise _wrong(node, REGION, value, "the name was cut when the graph was printed" if value else "it is empty")
    return value


def _chunk(node: fx.Node) -> int | None:
    value = _value(node, CHUNK)
    if value is None:
        return None
    if isinstance(value, str) and value.isdecimal() and value.isascii() and len(value) <= 4:  # printed annotations
        value = int(value)
    if type(value) is not int or not 0 <= value < MOST_CHUNKS:
        raise _wrong(node, CHUNK, value, f"a number from 0 to {MOST_CHUNKS - 1} is needed")
    return value


def _backward_region(node: fx.Node, backward: bool) -> bool:
    value = _value(node, REGION_BACKWARD)
    if value is None:
        return backward
    if not isinstance(value, bool):
        raise _wrong(node, REGION_BACKWARD, value, "True or False is needed")
    return value


def backward_nodes(program: Program, index: GraphIndex) -> frozenset[int]:
    """Numbers of the nodes of the backward pass; see the module docstring for how they are told."""
    told: set[int] = set()
    seen = False
    for i, node in enumerate(program.graph.nodes):
        value = _value(node, "autograd_backward")
        if value is None:
            # Derivatives written by hand carry no mark, and no forward node reads a gradient.
            if node.op == "call_function" and not told.isdisjoint(index.data_preds[i]):
                told.add(i)
            continue
        if type(value) not in (bool, int):
            raise _wrong(node, "autograd_backward", value, "True or False is needed")
        seen = True
        if value:
            told.add(i)
    return frozenset(told) if seen else _inferred(index) or _behind_loss(index)


def _behind_loss(index: GraphIndex) -> frozenset[int]:
    """The backward pass of a step whose first output is its loss: from the gradient of the loss on, whatever the loss
    does not need. Nothing where such a gradient is not in the graph.
    """
    from commcc.graph.ops.constants import SEEDS

    loss = index.outputs[0] if index.outputs else None
    tensor = None if loss is None else index.tensors[loss]
    if loss is None or tensor is None or tensor.shape != () or "float" not in tensor.dtype:
        return frozenset()
    forward = _ancestors(index, [loss])
    shapes = {node: getattr(index.tensors[node], "shape", None) for node in range(loss, len(index))}
    seeds = (node for node, shape in shapes.items() if shape == () and index.ops[node] in SEEDS)
    seed = next((node for node in seeds if node not in forward), None)
    if seed is None:
        return frozenset()
    kept = ("output", "get_attr", "placeholder")
    return frozenset(n for n in range(seed, len(index)) if n not in forward and index.ops[n] not in kept)


def _inferred(index: GraphIndex) -> frozenset[int]:
    described = zip(index.outputs, index.output_descriptors, strict=True)
    ends = [(node, bool(text and text.startswith("GradAOTOutput"))) for node, text in described if node is not None]
    gradients = _ancestors(index, (node for node, is_gradient in ends if is_gradient))
    forward = _ancestors(index, (node for node, is_gradient in ends if not is_gradient))
    effects = (node for node in index.writes if node not in gradients)
    forward |= _ancestors(index, effects)
    behind = {i for i in index.placeholders if is_tangent(index, i)}
    for node in range(len(index)):
        if any(pred in behind for pred in index.data_preds[node]):
            behind.add(node)
    backward = ((gradients - forward) | behind) - set(index.placeholders)
    return frozenset(i for i in backward if index.ops[i] not in ("output", "get_attr"))


def is_tangent(index: GraphIndex, node: int) -> bool:
    """Whether an input is the gradient of an output."""
    return index.descriptors.get(node, "").startswith("TangentAOTInput") or index.names[node].startswith("tangents_")


def _ancestors(index: GraphIndex, ends: Iterable[int]) -> set[int]:
    """``ends`` and all that they depend on."""
    ancestors: set[int] = set()
    stack = list(ends)
    while stack:
        node = stack.pop()
        if node not in ancestors:
            ancestors.add(node)
            stack.extend(index.data_preds[node])
    return ancestors


@dataclass(frozen=True)
class Mark:
    """What to write on a node of a chunked graph. proof: why partial results may be summed."""

    region: str
    role: RegionRole
    backward: bool
    chunk: int | None = None
    original: str | None = None
    proof: str | None = None


def marked(meta: Mapping[str, Any], mark: Mark) -> dict[str, Any]:
    """Metadata with ``mark`` written to it, at the top level and in ``custom``.

    Bodies keep their module; nodes at a boundary belong to the module above the region.
    """
    keys: dict[str, Any] = {REGION: mark.region, ROLE: mark.role, REGION_BACKWARD: mark.backward, PRODUCER: "graph"}
    optional = {CHUNK: mark.chunk, ORIGINAL: mark.original, PROOF: mark.proof}
    keys |= {key: value for key, value in optional.items() if value is not None}
    plain = {key: value for key, value in meta.items() if key not in CHUNK_KEYS and key != "autograd_backward"}
    custom = {key: value for key, value in dict(plain.get("custom") or {}).items() if key not in CHUNK_KEYS}
    if mark.role != "body":
        custom.pop("module_fqn", None)
        if parent := mark.region.rpartition(".")[0]:
            custom["module_fqn"] = parent
    if mark.backward:
        plain["autograd_backward"] = True
    return {**plain, "custom": {**custom, **keys}, **keys}
