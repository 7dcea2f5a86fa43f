"""Files in which users describe ops of other libraries, and programs with those descriptions in them.

::

    # ops.yaml
    torchtitan.deterministic_scatter_add:
      arguments: [self, index, src]
      like: aten.scatter_add(self, 0, index, src)
    mylib.glu:
      arguments: [x, gate]
      shape: x                      # or a formula for each size: x[0], gate[1]
      tokens: {x: 0, gate: 0, result: 0}
      flops: 4 * x[0] * x[1]
    deepep.combine:
      arguments: [x, handle]
      communicates: true            # through channels of its own: collectives may pass it

    descriptions = read_ops("ops.yaml")
    program = described(program, descriptions)      # its nodes' ops know what they are like
    undescribed(program)                            # with the ops as they were

Where the op can be loaded, ``arguments`` may be left out, and what the file says is compared with what the op does, on
random tensors (:func:`check`).

Limits: a description holds for all overloads of an op, and in the graph itself, not in its sub-graphs.
"""

from __future__ import annotations

import ast
import hashlib
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import fx
from torch._ops import OpOverload, OpOverloadPacket
from torch.utils import _pytree as pytree

from commcc.base.errors import OptionError
from commcc.base.yaml_file import read_yaml
from commcc.graph import ops
from commcc.graph.ops.allowed import imported_ops, refusal
from commcc.graph.ops.communication import sounds_like_communication
from commcc.graph.ops.described import LONGEST, RESULT, Description, evaluated
from commcc.graph.ops.guards import guarded
from commcc.graph.ops.libraries import NATIVE
from commcc.serialization.targets import path_of, resolve

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping
    from pathlib import Path

    from commcc.base.yaml_file import Node
    from commcc.graph.program import Program

#: Of an op that is not registered, behind its name, in what is noted of a file.
NOT_UNDERSTOOD = "is not registered with this PyTorch; it is kept, but not understood"
_KEYS = ("arguments", "like", "writes", "tokens", "shape", "flops", "communicates")


def read_ops(path: str | Path, imported: frozenset[str] | None = None) -> dict[str, Description]:
    """Descriptions by library and op; :class:`InputError` names everything that is wrong, with its line.

    imported: the ops of other libraries that may be called, None for all that are registered; of PyTorch's a file
    names only those that a graph may call as well.
    """
    file = read_yaml(path)
    descriptions = {}
    for name, node in file.root.entries().items():
        if name.count(".") != 1 or not all(part.isidentifier() for part in name.split(".")):
            node.fail(f"'{name}' is no op: LIBRARY.OP is needed, as in mylib.glu")
            continue
        if name.partition(".")[0] in NATIVE:
            node.fail(f"{name} is PyTorch's: only ops of other libraries are described")
            continue
        description = _description(name, node, imported)
        if description is not None:
            descriptions[name] = description
    file.check()
    return descriptions


def read_with(path: str | None, imports: Collection[str]) -> dict[str, Description]:
    """As :func:`read_ops`, with the modules imported before that register the ops; nothing for no file."""
    imported = imported_ops(imports) if imports else frozenset()
    return {} if path is None else read_ops(path, imported)


def _description(name: str, node: Node, imported: frozenset[str] | None) -> Description | None:
    fields = node.mapping((), _KEYS)
    loaded = _loaded(name)
    own = tuple(child.text() for child in fields["arguments"].items()) if "arguments" in fields else ()
    if loaded is not None and not own:
        own = tuple(a.name for a in loaded._schema.arguments)
    if not own:
        node.fail(f"{name} is not registered here: name its arguments, or import its library")
        return None
    if len(set(own)) < len(own) or RESULT in own or not all(argument.isidentifier() for argument in own):
        node.fail(f"{name} has arguments that are no names, or two of one name: {', '.join(own)}")
        return None
    like: Any = None
    names, constants = own, dict[str, Any]()
    if "like" in fields:
        try:
            like, names, constants = _like(fields["like"].text(), own)
        except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError) as error:
            text = str(error)[:200] or "it cannot be read"
            fields["like"].fail(
                f"{text}: an op with its arguments is needed, as in aten.scatter_add(self, 0, index, src)"
            )
    elif not any(key in fields for key in _KEYS[2:]):
        node.fail(f"nothing is said of {name}: give like, or some of {', '.join(_KEYS[2:])}")
    communicates = "communicates" in fields and fields["communicates"].flag()
    if like is None and "communicates" not in fields and sounds_like_communication(name, own):
        what = "by its name or its arguments: say 'communicates: true' if it does so through channels of its own"
        node.fail(f"{name} communicates {what}, or false")
    if like is not None and (more := [key for key in _KEYS[2:] if key in fields]):
        node.fail(f"{name} is like another op, which says all else: leave out {', '.join(more)}")
    tokens = (
        {key: child.integer(least=0) for key, child in fields["tokens"].entries().items()} if "tokens" in fields else {}
    )
    writes = tuple(child.text() for child in fields["writes"].items()) if "writes" in fields else ()
    for key in (*tokens, *writes):
        if key not in own and (key != RESULT or key in writes):
            node.fail(f"{name} has no argument '{key}': {', '.join(own)}")
    problem = _contradiction(name, own, dict(zip(own, names, strict=True)), like, writes, communicates)
    if problem is not None:
        node.fail(f"{name} is registered here, and {problem}")
    return Description(
        name,
        names,
        like,
        tuple(sorted(constants.items())),
        writes,
        tuple(tokens.items()),
        _shape(fields["shape"], own) if "shape" in fields else None,
        _formula(fields["flops"], fields["flops"].text(), own) if "flops" in fields else None,
        communicates,
        loaded if imported is None or (loaded is not None and refusal(loaded, imported) is None) else None,
    )


def _contradiction(
    name: str,
    own: tuple[str, ...],
    theirs: Mapping[str, str],
    like: Any,
    writes: tuple[str, ...],
    communicates: bool,
) -> str | None:
    """What the schemas of an op that is registered say and its description does not: writes, views, random numbers.

    theirs: what the op that it is like calls each argument.
    """
    facts = ops.facts(like) if like is not None else None
    written = {argument for argument in own if theirs[argument] in facts.writes} if facts is not None else set(writes)
    shown = {argument for argument in own if facts is not None and theirs[argument] in facts.views} | written
    for op in _overloads(name):
        schema = op._schema
        named = [argument.name for argument in schema.arguments]
        if op is _loaded(name) and list(own) != named[: len(own)]:
            return f"its schema calls its arguments {', '.join(named)}"
        marked = [
            (argument.name, argument.alias_info) for argument in schema.arguments if argument.alias_info is not None
        ]
        unsaid = [argument for argument, info in marked if info.is_write and argument not in written]
        if unsaid:
            return f"its schema says that it writes {', '.join(unsaid)}"
        given = {mark for result in schema.returns if result.alias_info for mark in result.alias_info.before_set}
        lists = any("List[Tensor" in str(result.type) for result in schema.returns)  # whose marks PyTorch drops
        views = [
            n for n, info in marked if (info.before_set & given or (lists and not info.is_write)) and n not in shown
        ]
        if views:
            return f"its schema says that it gives a view of {', '.join(views)}"
        draws = torch.Tag.nondeterministic_seeded in op.tags
        if draws and not communicates and not (facts is not None and facts.random):
            return "it draws random numbers, by its tags"
    return None


def _overloads(name: str) -> list[OpOverload]:
    library, op = name.split(".")
    packet = getattr(getattr(torch.ops, library), op, None)
    if not isinstance(packet, OpOverloadPacket):
        return []
    names: list[str] = packet.overloads()  # type: ignore[no-untyped-call]
    return [getattr(packet, overload) for overload in names]


def _loaded(name: str) -> OpOverload | None:
    """The only overload of an op that is registered here, or its default one."""
    overloads = _overloads(name)
    return next((op for op in overloads if op._overloadname == "default"), overloads[0] if overloads else None)


def _like(text: str, own: tuple[str, ...]) -> tuple[Any, tuple[str, ...], dict[str, Any]]:
    """The op, the names that it has for each of the own arguments, and its arguments that are constants."""
    if len(text) > LONGEST:
        raise ValueError(f"a call has at most {LONGEST} characters")
    call = ast.parse(text, mode="eval").body
    if not isinstance(call, ast.Call):
        raise ValueError(f"'{text}' is no call")
    name = ast.unparse(call.func)
    others = [op._overloadname for op in _overloads(name)] if name.count(".") == 1 else []
    target = resolve(f"torch.ops.{name}" + (".default" if name.count(".") == 1 else ""))
    if not isinstance(target, OpOverload):
        raise ValueError(f"{name} is no op of PyTorch")
    schema = [a.name for a in target._schema.arguments]
    given = dict(zip(schema, call.args, strict=False)) | {str(k.arg): k.value for k in call.keywords}
    theirs = {value.id: key for key, value in given.items() if isinstance(value, ast.Name)}
    constants = {k: _fixed(ast.literal_eval(value)) for k, value in given.items() if not isinstance(value, ast.Name)}
    strange = [argument for argument in (*own, *theirs) if (argument in theirs) != (argument in own)]
    if strange or len(call.args) > len(schema):
        raise ValueError(f"'{text}' and the arguments {', '.join(own)} do not agree on {', '.join(strange)}")
    if (reason := refusal(target)) is not None:
        form = f", name a form, as {name}.Tensor" if "Tensor" in others else ""
        raise ValueError(f"{name} is not called for a file: {reason}{form}")
    return target, tuple(theirs[argument] for argument in own), constants


def _fixed(value: Any) -> Any:
    """Lists as tuples: descriptions are compared and looked up by what they hold."""
    if isinstance(value, (dict, set)):
        raise ValueError(f"{value} is no argument of an op")
    return tuple(map(_fixed, value)) if isinstance(value, (list, tuple)) else value


def _shape(node: Node, own: tuple[str, ...]) -> str | tuple[str, ...]:
    text = node.text()
    if text.isidentifier() and text not in own:
        node.fail(f"'{text}' is no argument: {', '.join(own)}, or sizes such as {own[0]}[0], 64")
    return text if text.isidentifier() else tuple(_formula(node, size.strip(), own) for size in text.split(","))


def _formula(node: Node, text: str, own: tuple[str, ...]) -> str:
    try:
        evaluated(text, {name: [7 + place for place in range(16)] for name in own})
    except (ValueError, SyntaxError) as error:
        node.fail(f"'{text[:80]}': {error}")
    return text


def hash_of(descriptions: Mapping[str, Description]) -> str:
    """The same for descriptions that say the same, whether or not their ops can be loaded."""
    said = [str(replace(descriptions[name], runs=None)) for name in sorted(descriptions)]
    return hashlib.sha256("\n".join(said).encode()).hexdigest()[:12]


def described(program: Program, descriptions: Mapping[str, Description]) -> Program:
    """The program, its graph in place, with the descriptions of the ops that its nodes call."""
    understood: set[str] = set()
    for node in program.graph.nodes if descriptions else ():
        if node.op != "call_function" or not isinstance(node.target, (OpOverload, OpOverloadPacket, ops.OpaqueOp)):
            continue
        path = path_of(node.target).removeprefix("torch.ops.")
        known = descriptions.get(".".join(path.split(".")[:2]))
        if known is not None:
            node.target = ops.OpaqueOp(path, known)
            understood.add(f"{path} {NOT_UNDERSTOOD}")
    if not understood:
        return program
    return replace(program, notes=tuple(note for note in program.notes if note.text not in understood))


def undescribed(program: Program) -> Program:
    """The program with the ops themselves where descriptions stand for them; the very program where none does."""
    if all(ops.described_as(node.target) is None for node in program.graph.nodes):
        return program
    graph = program.copied_graph()
    for node in graph.nodes:
        if ops.described_as(node.target) is not None:
            node.target = resolve(path_of(node.target))
    return replace(program, graph=graph)


def check(program: Program, descriptions: Iterable[Description]) -> list[str]:
    """Compare descriptions of ops that are loaded with what the ops do, on random tensors of the sizes in the graph.

    Raises :class:`OptionError` where they differ; returns the names of those that could not be run here.
    """
    unchecked = []
    for description in descriptions:
        uses = (
            n for n in program.graph.nodes if isinstance(n.target, ops.OpaqueOp) and n.target.described == description
        )
        node = next(uses, None)
        if description.runs is None or node is None:
            continue
        if description.communicates:  # which needs other ranks
            unchecked.append(description.name)
            continue
        try:
            problem = _difference(description, node)
        except (RuntimeError, NotImplementedError, TypeError, ValueError, IndexError, KeyError, AttributeError):
            # The op has no kernel here, or not for random numbers in the place of indices, or nothing is said of sizes.
            unchecked.append(description.name)
            continue
        if problem is not None:
            raise OptionError(f"{description.name} is not what its description says: {problem}", where="--ops")
    return unchecked


def _difference(description: Description, node: fx.Node) -> str | None:
    generator = torch.Generator().manual_seed(0)
    args, kwargs = fx.node.map_arg((node.args, node.kwargs), lambda n: _random(n.meta["val"], generator))
    before = pytree.tree_map_only(torch.Tensor, torch.clone, (args, kwargs))
    again = pytree.tree_map_only(torch.Tensor, torch.clone, (args, kwargs))
    result = description.runs(*args, **kwargs)
    bound, own = description.bound(args, kwargs), description.bound(*before)
    changed = _changed(bound, own)
    shared = _shared(bound, result)
    if not _close(result, description.runs(*again[0], **again[1])):
        return "it does not give the same twice"
    if description.like is None:
        if unsaid := sorted(changed - set(description.writes)):
            return f"it writes {', '.join(unsaid)}"
        if unsaid := sorted(shared - set(description.writes)):
            return f"its result is in the memory of {', '.join(unsaid)}"
        sizes = description.sizes(*before)
        if sizes is not None and list(result.shape) != list(sizes[1]):
            return f"its result has the shape {list(result.shape)}, not {list(sizes[1])}"
        return _by_rows(description, before, result) if description.tokens else None
    others = pytree.tree_map_only(torch.Tensor, torch.clone, before)
    theirs, named = description.as_like(*others)
    try:
        other = guarded(description.like)(*theirs, **named)
    except (RuntimeError, IndexError) as error:
        # The op itself took them.
        return f"{description.like} does not take what it takes ({str(error).splitlines()[0][:120]})"
    there = description.bound(*others)
    if changed != _changed(there, own):
        return f"it does not write what {description.like} writes"
    if shared != _shared(there, other):
        return f"its result is not in the memory in which that of {description.like} is"
    return None if _close(result, other) else f"its result differs from that of {description.like}"


def _changed(bound: Mapping[str, Any], before: Mapping[str, Any]) -> set[str]:
    """Arguments that hold something else than before."""
    return {name for name, v in bound.items() if isinstance(v, torch.Tensor) and not torch.equal(v, before[name])}


def _shared(bound: Mapping[str, Any], result: Any) -> set[str]:
    """Arguments in whose memory results are."""
    given = {leaf.untyped_storage().data_ptr() for leaf in pytree.tree_leaves(result) if isinstance(leaf, torch.Tensor)}
    tensors = {name: value for name, value in bound.items() if isinstance(value, torch.Tensor) and value.numel()}
    return {name for name, value in tensors.items() if value.untyped_storage().data_ptr() in given}


def _close(result: Any, other: Any) -> bool:
    """Whether two results are the same, within what kernels of one op differ by."""
    pairs = [pytree.tree_leaves(each) for each in (result, other)]
    if len(pairs[0]) != len(pairs[1]):
        return False
    tensors = [
        (a, b) for a, b in zip(*pairs, strict=True) if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor)
    ]
    return all(
        a.shape == b.shape and torch.allclose(a.double(), b.double(), rtol=1e-2, atol=1e-2, equal_nan=True)
        for a, b in tensors
    )


def _by_rows(description: Description, inputs: tuple[Any, Any], result: torch.Tensor) -> str | None:
    """The op on the first and the second half of the tokens gives the two halves of its result."""
    tokens = dict(description.tokens)
    bound = description.bound(*inputs)
    halves = []
    for half in (0, 1):
        parts = {k: v.chunk(2, tokens[k])[half].contiguous() if k in tokens else v for k, v in bound.items()}
        halves.append(description.runs(*(parts[name] for name in description.arguments if name in parts)))
    whole = torch.cat(halves, tokens.get(RESULT, 0))
    same = whole.shape == result.shape and torch.allclose(whole.double(), result.double(), rtol=1e-2, atol=1e-2)
    return None if same else "of half of the tokens it does not give half of its result"


def _random(val: Any, generator: torch.Generator) -> Any:
    """A tensor on the CPU: normal numbers, or indices that fit any dimension; of sizes that are not known, 8."""
    if not isinstance(val, torch.Tensor):
        return 8 if isinstance(val, torch.SymInt) else val
    shape = [min(size, 64) if type(size) is int else 64 for size in val.shape]
    if val.dtype.is_floating_point or val.dtype.is_complex:
        return torch.randn(shape, generator=generator).to(val.dtype)
    return torch.randint(0, 2, shape, generator=generator).to(val.dtype)
