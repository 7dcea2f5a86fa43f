"""What attention does to samples: each attends within itself, whichever kernel computes it.

    sdpa(q, k, v)                   # rows of 4 samples along dimension 0, as q, k and v are; so is its log-sum-exp
    flex_attention(q, k, v, ...)    # likewise, if the mask does not look at the number of the sample

Told by the arguments that every such op has: ``query``, ``key`` and ``value``, and besides them masks, what the forward
pass saved, and seeds of random numbers. Limits: without dropout, and not where lengths of sequences are packed into
rows; what another argument does is not known.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import fx, nn

from commcc.graph.ops import is_getitem, op_name
from commcc.graph.ops.flexible import FLEX, arguments_of, looks_elsewhere, sample_graphs
from commcc.serialization.attributes import find
from commcc.verify.arguments import bind
from commcc.verify.clones import Kind, Mixed, Rows, shape_of

if TYPE_CHECKING:
    from collections.abc import Callable

    #: The kind of an argument; None for what is the same in every chunk.
    KindOf = Callable[[object], Kind | None]

#: Arguments of which every sample has its own: what is attended to, what was saved of it, and the gradient.
_OF_SAMPLES = ("query", "key", "value")
_SAVED = frozenset({"out", "logsumexp", "grad_out", "grad_out_"})
_MASKS = frozenset({"attn_bias", "attn_mask", "bias"})
#: Read where random numbers are drawn only.
_SEEDS = frozenset({"philox_seed", "philox_offset", "rng_state", "unused"})
#: The longest sequences, which are as long in every sample.
_LENGTHS = frozenset({"max_q", "max_k", "max_seqlen_q", "max_seqlen_k"})
#: Where sequences end that are packed into rows.
_PACKED = frozenset({"cum_seq_q", "cum_seq_k"})
#: Results of the forward pass that belong to samples, by name; the others are seeds and lengths, or for looking at.
_RESULTS = frozenset({"output", "logsumexp", "log_sumexp", "softmax_logsumexp"})


def is_attention(target: Any) -> bool:
    """Whether an op of ATen attends, told by its name and its arguments."""
    schema = getattr(target, "_schema", None)
    if schema is None or schema.is_mutable or "attention" not in schema.name or not schema.name.startswith("aten::"):
        return False
    return set(_OF_SAMPLES) <= {argument.name for argument in schema.arguments}


def attended(node: fx.Node, of: KindOf, root: nn.Module) -> Kind:
    """What attention gives of samples; raises :class:`Mixed` where it may look from one at another.

    root: holds the graphs that are handed to flex_attention.
    """
    name = op_name(node.target)
    if name in FLEX:
        return _flex(node, of, root)
    a = bind(node)
    samples, rank = _samples(a, of)
    for argument, value in a.items():
        if argument in (*_OF_SAMPLES, *_SAVED):
            _own(argument, value, samples, of)
        elif argument in _MASKS:
            _masked(argument, value, (samples, rank), of)
        elif argument == "dropout_p" and value != 0:
            raise Mixed("attention that drops at random")
        elif isinstance(value, fx.Node) and not _is_apart(argument, value, of):
            raise Mixed(f"attention with '{argument}'")
    target: Any = node.target
    if "grad_out" not in a and "grad_out_" not in a:
        kinds = [samples if out.name in _RESULTS or not at else () for at, out in enumerate(target._schema.returns)]
    else:  # gradients of queries, keys, values and, if asked for, of the mask
        mask = next((of(a[key]) for key in _MASKS if key in a), None)
        kinds = [samples, samples, samples, samples if mask is not None else ()][: len(target._schema.returns)]
    return kinds[0] if len(kinds) == 1 else tuple(kinds)


def _samples(a: dict[str, Any], of: KindOf) -> tuple[Rows, int]:
    """The samples of the queries, and how many dimensions these have."""
    kind, rank = of(a["query"]), len(shape_of(a["query"]))
    if not isinstance(kind, Rows) or rank < 3:
        raise Mixed("attention over the rows")
    return Rows(kind.order, 0), rank


def _own(argument: str, value: object, samples: Rows, of: KindOf) -> None:
    kind = of(value)
    if not isinstance(kind, Rows) or (kind.order, kind.dim) != (samples.order, 0):
        raise Mixed(f"'{argument}' of attention is not of the same samples")


def _masked(argument: str, value: object, given: tuple[Rows, int], of: KindOf) -> None:
    """A mask is of the samples, or one for all of them."""
    samples, rank = given
    if not isinstance(value, fx.Node):
        return
    kind, shape = of(value), shape_of(value)
    if kind is None and (len(shape) < rank or shape[0] == 1):
        return
    if not isinstance(kind, Rows) or (kind.order, kind.dim, len(shape)) != (samples.order, 0, rank):
        raise Mixed(f"'{argument}' of attention is not of the same samples")


def _is_apart(argument: str, value: fx.Node, of: KindOf) -> bool:
    """Whether what an argument says is not of samples: seeds that nobody draws from, the longest sequence, and ends of
    sequences that the forward pass does not give where none are packed.
    """
    if argument in _SEEDS:
        return True
    if argument in _LENGTHS:
        return of(value) in (None, ())
    source = value.args[0] if is_getitem(value.target) else None
    if argument not in _PACKED or not isinstance(source, fx.Node) or not is_attention(source.target):
        return False
    returns, at = source.target._schema.returns, value.args[1]  # type: ignore[union-attr]
    return isinstance(at, int) and 0 <= at < len(returns) and returns[at].name in _PACKED


def _flex(node: fx.Node, of: KindOf, root: nn.Module) -> Kind:
    a = arguments_of(node)
    samples, _ = _samples(a, of)
    for argument in (*_OF_SAMPLES, *sorted(_SAVED & set(a))):
        _own(argument, a[argument], samples, of)
    if a.get("grad_logsumexp") is not None:
        _own("grad_logsumexp", a["grad_logsumexp"], samples, of)
    for block in a["block_mask"][:-1]:
        if isinstance(block, fx.Node):
            _masked("block_mask", block, (samples, len(shape_of(block))), of)
    graphs = sample_graphs(node, lambda name: find(root, name))
    if graphs is None:
        raise Mixed("attention with a graph that is not there")
    for given in graphs:
        kinds = {place: of(table) for place, table in given.tables.items()}
        own = [place for place, kind in kinds.items() if kind is not None]
        for kind in kinds.values():
            if kind is not None and (not isinstance(kind, Rows) or (kind.order, kind.dim) != (samples.order, 0)):
                raise Mixed("attention with a table of something else than samples")
        if looks_elsewhere(given, own):
            raise Mixed("attention that looks at the number of the sample")
    if "joint" not in a:
        return (samples, samples, ())
    if any(isinstance(other, fx.Node) for other in a["score_others"]):
        raise Mixed("gradients of what scores are made of")
    return (samples, samples, samples, ())
