"""Kernels: plain functions over arrays, compiled to machine code when they are first called in a process.

    @compiled                          # called by other kernels only
    def push(heap, key, place): ...

    @kernel                            # called from Python; schedule.python is the function itself
    def schedule(graph, base): ...

Integers only, so a kernel gives the same result on every machine, compiled or not. What kernels may contain says
:mod:`commcc.base.kernel_code`; arguments are integers, arrays of 64-bit integers or of records of these, and named
tuples. LLVM compiles the largest kernel in a third of a second; :mod:`commcc.base.kernel_cache` keeps what it made.
"""

from __future__ import annotations

import ctypes
from array import array
from functools import cache, update_wrapper
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, ParamSpec, TypeVar, cast

from commcc.base.kernel_cache import SUFFIX, KernelCache
from commcc.base.kernel_code import Module
from commcc.base.kernel_types import BOOL, INT, WORD, Array, Compiled, Group, Records, Several, Table, Type
from commcc.base.progress import detailed

if TYPE_CHECKING:
    from collections.abc import Callable

    from llvmlite.binding import ModuleRef, TargetMachine

#: Functions of no more weight than this are inlined where they have several callers.
_INLINED = 50

P = ParamSpec("P")
R = TypeVar("R")


def compiled(function: Callable[P, R]) -> Callable[P, R]:
    """A function that kernels call."""
    return cast("Callable[P, R]", Compiled(function))


class Kernel(Generic[P, R]):
    """A function that Python calls. python: the same, not compiled."""

    def __init__(self, function: Callable[P, R]) -> None:
        self.python = function
        self.codes: dict[tuple[object, ...], tuple[_Code, Type]] = {}
        update_wrapper(self, function)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Run it; compile it before where arguments of these types were not there before."""
        words, kinds = _first_words(args[0])
        for argument in args[1:]:
            _hand_over(argument, words, kinds)
        asked = tuple(kinds)
        if asked not in self.codes:
            text, returned = Module().kernel(self.python, tuple(map(_type_of, args)))
            self.codes[asked] = _Code(text, self.python.__name__.strip("_")), returned
        code, returned = self.codes[asked]
        given, result = array("q", words), array("q", (0,) * max(1, len(returned.parts)))
        code.run(given.buffer_info()[0], result.buffer_info()[0])
        return cast("R", _result(returned, result.tolist()))


def kernel(function: Callable[P, R]) -> Kernel[P, R]:
    """A function that Python calls; its arguments are numbers, arrays and named tuples of these."""
    return Kernel(function)


#: The first argument of the last call where that was a tuple, with what kernels get of it and its kinds.
_last_first: tuple[Any, list[int], list[object]] | None = None


def _first_words(argument: Any) -> tuple[list[int], list[object]]:
    """What a kernel gets of its first argument, and the kinds: most calls share it with the call before."""
    global _last_first
    last = _last_first
    if last is not None and last[0] is argument:
        return last[1].copy(), last[2].copy()
    words: list[int] = []
    kinds: list[object] = []
    _hand_over(argument, words, kinds)
    if isinstance(argument, tuple):
        _last_first = argument, words.copy(), kinds.copy()
    return words, kinds


def _hand_over(argument: Any, words: list[int], kinds: list[object]) -> None:
    """Append what a kernel gets of an argument, and what its type follows from; quicker than the type."""
    if isinstance(argument, tuple):
        kinds.append(type(argument))
        for item in argument:
            _hand_over(item, words, kinds)
    elif isinstance(argument, (known := _array()).kind):
        shape = known.shape(argument)
        words += _address(argument, known), *shape
        kinds += known.dtype(argument), len(shape), known.flags(argument).c_contiguous
    elif hasattr(argument, "__index__"):
        words.append(int(argument))
        kinds.append(int)
    else:
        raise TypeError(f"no kernel takes {type(argument).__name__}: {argument!r:.60}")


def _address(argument: Any, known: _Array) -> int:
    """Where an array begins. Asked of a buffer, which takes a third of the time; empty and read-only ones give none."""
    try:
        return ctypes.addressof(ctypes.c_char.from_buffer(argument))
    except (TypeError, ValueError):
        return int(known.ctypes(argument).data)


class _Array(NamedTuple):
    """The class of arrays, and how to get its attributes: arrays of records look through their fields for each."""

    kind: type
    ctypes: Callable[[Any], Any]
    shape: Callable[[Any], tuple[int, ...]]
    dtype: Callable[[Any], object]
    flags: Callable[[Any], Any]


@cache
def _array() -> _Array:
    import numpy as np

    return _Array(np.ndarray, *(getattr(np.ndarray, name).__get__ for name in _Array._fields[1:]))


def _type_of(argument: Any) -> Type:
    import numpy as np

    if isinstance(argument, tuple):
        names = argument._fields  # type: ignore[attr-defined]
        return Group(tuple((name, _type_of(item)) for name, item in zip(names, argument, strict=True)))
    if not isinstance(argument, np.ndarray):
        return INT
    if not argument.flags.c_contiguous:
        raise TypeError(f"no kernel takes {type(argument).__name__}: {argument!r:.60}")
    if argument.dtype.names is not None and argument.itemsize == WORD * len(argument.dtype.names):
        return Records(tuple(argument.dtype.names))
    if argument.dtype != np.int64 or argument.ndim > 2:
        raise TypeError(f"no kernel takes {argument.ndim} dimensions of {argument.dtype}")
    return Array(WORD) if argument.ndim == 1 else Table()


def _result(returned: Type, words: list[int]) -> Any:
    if isinstance(returned, Several):
        values = [bool(w) if kind == BOOL else w for w, kind in zip(words, returned.items, strict=False)]
        return None if not values else tuple(values) if returned.named is None else returned.named(*values)
    return bool(words[0]) if returned == BOOL else words[0]


class _Code:
    """The machine code of a module's function ``kernel``."""

    def __init__(self, text: str, name: str) -> None:
        import llvmlite.binding as llvm

        llvm.initialize_native_target()
        llvm.initialize_native_asmprinter()
        cpu, features = llvm.get_host_cpu_name(), llvm.get_host_cpu_features().flatten()
        machine = llvm.Target.from_default_triple().create_target_machine(cpu=cpu, features=features, opt=2, jit=True)
        compiler = llvm.llvm_version_info, _INLINED, machine.triple, cpu, features
        cache, file = KernelCache.usual(), sha256(repr((text, *compiler)).encode()).hexdigest() + SUFFIX
        code = cache.read(file)
        if code is None:
            with detailed(f"compiling kernel '{name}'"):
                code = machine.emit_object(_optimized(text, machine))
            cache.write(file, code)
        # The engine owns the code.
        self.engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), machine)
        self.engine.add_object_file(llvm.ObjectFileRef.from_data(code))
        self.engine.finalize_object()
        self.run = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p)(self.engine.get_function_address("kernel"))


def _optimized(text: str, machine: TargetMachine) -> ModuleRef:
    """A module as it is made into machine code."""
    import llvmlite.binding as llvm

    module = llvm.parse_assembly(text)
    module.triple, module.data_layout = machine.triple, str(machine.target_data)
    # Little is inlined beyond what has one caller, and no loop is unrolled: compiling would take half as long
    # again, and running no less. Without vectors, which are quickly made, running would take twice as long.
    tuning = llvm.create_pipeline_tuning_options(speed_level=1)
    tuning.inlining_threshold = _INLINED
    tuning.loop_unrolling = False
    passes = llvm.create_pass_builder(machine, tuning)
    passes.getModulePassManager().run(module, passes)
    return module
