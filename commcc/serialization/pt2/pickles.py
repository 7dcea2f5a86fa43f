"""Says whether a ``torch.save`` file holds nothing but tensors and plain values, without unpickling it.

``torch.export.load`` unpickles the example inputs of a ``.pt2`` file, with all safety off as soon as the
safe way fails. commcc never does; it only carries that entry over, so it must know that it is harmless::

    check_tensor_file(stream, size)       # ValueError: "it calls 'os.system'"

The pickle inside is *simulated*: its instructions move descriptions of values about a stack, nothing is
imported or called, and an instruction, a name or a call that a file of tensors does not need is refused.
The zip around it must be laid out so that every reader finds the same pickle in it.

Limits: tensor subclasses, sparse and quantized tensors and user classes are refused.
"""

from __future__ import annotations

import json
import pickletools
import re
import struct
import zipfile
import zlib
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

MAX_PICKLE_BYTES = 64 << 20
_MAX_STACK = 1_000_000
#: Bytes of the records that end an archive: 64-bit directory end, its locator, directory end.
_TAIL = 56 + 20 + 22
_ENTRY = re.compile(r"(data\.pkl|data/\d+|version|byteorder|\.format_version|\.storage_alignment|\.data/\w+)")
_DTYPE = re.compile(r"(?:u?int\d+|b?float\d\w*|complex\d+|bool|half|double|float|long|short)")
_STORAGE = re.compile(r"[A-Z][A-Za-z0-9]{0,15}Storage")
_KEY = re.compile(r"[^\"'\\\x00-\x1f\x7f]*")
_CALLABLE = frozenset(
    {
        "collections OrderedDict",
        "torch Size",
        "torch device",
        "torch._utils _rebuild_tensor_v2",
        "torch._utils _rebuild_tensor_v3",
        "torch._utils _rebuild_parameter",
        "torch._utils _rebuild_meta_tensor_no_storage",
        "torch.serialization _get_layout",
        "_codecs encode",
        "__builtin__ complex",
        "builtins complex",
        "torch._export.serde.serialize _reconstruct_fake_tensor",
        "torch._tensor _rebuild_from_type_v2",
        "__builtin__ set",
    }
)
#: What may be named and is never called.
_NAMED = frozenset({"torch.storage UntypedStorage", "torch Tensor"})
#: What export and Dynamo write down on a tensor about its sizes; other attributes may change what a tensor does.
_MARK_ON_TENSOR = re.compile(r"_specialize_on|_dynamo_\w{1,60}")


@dataclass(frozen=True)
class _Global:
    name: str


@dataclass(frozen=True)
class _Result:
    """The result of a call, or of a storage look-up."""

    function: str
    args: Any = None


class _Mark:
    pass


def check_tensor_file(stream: IO[bytes], size: int) -> None:
    """Raise ``ValueError`` with the reason if the ``torch.save`` file in ``stream`` is more than tensors."""
    # An empty entry stands for no example inputs.
    if size == 0:
        return
    try:
        with zipfile.ZipFile(stream) as archive:
            infos = archive.infolist()
            _check_layout(stream, size, infos)
            data = archive.read(_pickle_entry(infos))
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, KeyError, RuntimeError, struct.error):
        raise ValueError("it is not a file that torch.save of PyTorch 1.6 or newer writes") from None
    _Machine().run(data)


def _pickle_entry(infos: list[zipfile.ZipInfo]) -> zipfile.ZipInfo:
    root = infos[0].filename.split("/", 1)[0] + "/"
    for info in infos:
        if not info.filename.startswith(root) or not _ENTRY.fullmatch(info.filename[len(root) :]):
            raise ValueError(f"it holds an entry {info.filename[:60]!r} that tensors do not need")
    pickles = [info for info in infos if info.filename == f"{root}data.pkl"]
    if not pickles or pickles[0].file_size > MAX_PICKLE_BYTES:
        raise ValueError("its pickle is missing or too large")
    return pickles[0]


def _check_layout(stream: IO[bytes], size: int, infos: list[zipfile.ZipInfo]) -> None:
    """Entries must tile the file from its first byte and agree with their own headers.

    Between two entries there is space for one data descriptor (24 bytes) only, and the directory ends the
    file, so that no second directory with another pickle can hide where another reader would find it.
    """
    if not infos or len({info.filename.casefold() for info in infos}) != len(infos):
        raise ValueError("its zip directory is empty or names an entry twice")
    end = 0
    for info in sorted(infos, key=lambda item: item.header_offset):
        if info.compress_type != zipfile.ZIP_STORED or not 0 <= info.header_offset - end <= 24:
            raise ValueError("its zip entries are not laid out as torch.save lays them out")
        stream.seek(info.header_offset)
        header = stream.read(30)
        if header[:4] != b"PK\x03\x04":
            raise ValueError("its zip directory points to something that is no entry")
        name_size, extra_size = struct.unpack("<HH", header[26:30])
        if stream.read(name_size) != info.filename.encode():
            raise ValueError("its zip directory and its entries disagree")
        end = info.header_offset + 30 + name_size + extra_size + info.file_size
    _check_directory(stream, size, end)


def _check_directory(stream: IO[bytes], size: int, end: int) -> None:
    if size < _TAIL:
        raise ValueError("it is too short")
    stream.seek(size - 22)
    tail = stream.read(22)
    count, length, start = struct.unpack("<HII", tail[10:20])
    if tail[:4] != b"PK\x05\x06" or tail[20:] != b"\0\0" or not 0 <= start - end <= 24:
        raise ValueError("its zip directory does not end the file")
    stream.seek(size - _TAIL)
    tail = stream.read(_TAIL - 22)
    # Bytes before the end that no record accounts for.
    gap = size - 22 - start - length
    if tail[56:60] == b"PK\x06\x07":
        large_count, large_length, large_start = struct.unpack("<QQQ", tail[32:56])
        gap -= 76
        if tail[:4] != b"PK\x06\x06" or (large_count, large_length, large_start) != (count, length, start):
            raise ValueError("it has two zip directories")
    if gap:
        raise ValueError("it has bytes that belong to no zip entry")


class _Machine:
    """Runs pickle instructions on descriptions of values."""

    def __init__(self) -> None:
        self.stack: list[Any] = []
        self.memo: dict[int, Any] = {}

    def run(self, data: bytes) -> None:
        end = 0
        try:
            for opcode, argument, position in pickletools.genops(data):
                handler = _HANDLERS.get(opcode.name)
                if handler is None:
                    raise ValueError(f"its pickle uses {opcode.name}, which tensors do not need")
                handler(self, argument)
                if len(self.stack) > _MAX_STACK:
                    raise ValueError("its pickle is too large")
                end = position or 0
        except (IndexError, KeyError, TypeError, RecursionError, struct.error) as error:
            raise ValueError(f"its pickle is damaged ({type(error).__name__})") from None
        # Another reader might go on with what follows.
        if data[end:] != b".":
            raise ValueError("its pickle goes on after its end")

    def push(self, value: Any) -> None:
        self.stack.append(value)

    def pop_mark(self) -> list[Any]:
        values: list[Any] = []
        while not isinstance(value := self.stack.pop(), _Mark):
            values.append(value)
        return values[::-1]

    def find_global(self, argument: Any) -> None:
        module, _, name = argument.partition(" ")
        harmless = module == "torch" and (_DTYPE.fullmatch(name) or _STORAGE.fullmatch(name))
        if argument not in _CALLABLE and argument not in _NAMED and not harmless:
            raise ValueError(f"it calls {module[:60]}.{name[:60]}")
        self.push(_Global(argument))

    def reduce(self, _argument: Any) -> None:
        args, function = self.stack.pop(), self.stack.pop()
        self.push(self.call(function, args))

    def call(self, function: Any, args: Any) -> _Result:
        if not isinstance(function, _Global) or function.name not in _CALLABLE or not isinstance(args, tuple):
            raise ValueError("it calls something that does not make a tensor")
        # Bytes are pickled as text in latin1; any other codec may be a program.
        if function.name == "_codecs encode" and (len(args) != 2 or args[1] != "latin1" or type(args[0]) is not str):
            raise ValueError("it decodes bytes in an unusual way")
        if function.name.endswith("_reconstruct_fake_tensor"):
            _check_fake_tensor(args)
        if function.name.endswith("_rebuild_from_type_v2"):
            self.check_marked_tensor(args)
        return _Result(function.name, args)

    def check_marked_tensor(self, args: tuple[Any, ...]) -> None:
        """A tensor with attributes: made by a call that is checked like any other, of no class of its own."""
        if len(args) != 4 or args[1] != _Global("torch Tensor") or not isinstance(args[3], dict):
            raise ValueError("it makes a tensor of a class of its own")
        for name, value in args[3].items():
            if not (isinstance(name, str) and _MARK_ON_TENSOR.fullmatch(name) and _is_plain(value)):
                raise ValueError(f"it sets the attribute {str(name)[:60]!r} of a tensor")
        made = self.call(args[0], args[2])
        if not made.function.startswith("torch._utils _rebuild_"):
            raise ValueError("it makes a tensor in an unusual way")

    def build(self, _argument: Any) -> None:
        state, target = self.stack.pop(), self.stack[-1]
        if not (
            isinstance(target, _Result) and target.function == "collections OrderedDict" and isinstance(state, dict)
        ):
            raise ValueError("it sets the state of an object")

    def set_items(self, values: list[Any]) -> None:
        target = self.stack[-1]
        for key in values[::2]:
            # PyTorch puts the keys of example inputs between quotes into Python code.
            if not (_KEY.fullmatch(key) if isinstance(key, str) else isinstance(key, (int, float))):
                raise ValueError("it has keys that are neither plain strings nor numbers")
        if isinstance(target, dict):
            target.update(zip(values[::2], values[1::2], strict=True))
        elif not (isinstance(target, _Result) and target.function == "collections OrderedDict"):
            raise ValueError("it sets items of an object")

    def append(self, values: list[Any]) -> None:
        if not isinstance(self.stack[-1], list):
            raise ValueError("it appends to an object")
        self.stack[-1].extend(values)

    def put(self, argument: Any) -> None:
        self.memo[argument] = self.stack[-1]

    def persistent(self, _argument: Any) -> None:
        self.stack.pop()
        self.push(_Result("storage"))

    def take(self, count: int) -> list[Any]:
        if len(self.stack) < count:
            raise IndexError
        values = self.stack[-count:]
        del self.stack[-count:]
        return values


def _check_fake_tensor(args: tuple[Any, ...]) -> None:
    """A fake tensor is rebuilt from JSON whose symbolic sizes are evaluated as code; only numbers may pass."""
    source = args[0] if args else None
    text = source.args[0] if isinstance(source, _Result) and source.function == "_codecs encode" else source
    if not isinstance(text, (str, bytes)):
        raise ValueError("it describes a fake tensor in an unusual way")
    try:
        meta = json.loads(text)
        sizes = [*meta["sizes"], *meta["strides"], meta["storage_offset"]]
        plain = all(list(size) == ["as_int"] and type(size["as_int"]) is int for size in sizes)
    except (KeyError, TypeError, ValueError, RecursionError):
        plain = False
    if not plain:
        raise ValueError("it describes a fake tensor with symbolic sizes, which PyTorch evaluates as code")


def _is_plain(value: Any) -> bool:
    """Whether a value is made of numbers and texts alone."""
    if isinstance(value, _Result):
        return value.function == "__builtin__ set" and _is_plain(value.args)
    if isinstance(value, dict):
        return _is_plain([*value.keys(), *value.values()])
    if isinstance(value, (list, tuple)):
        return all(_is_plain(item) for item in value)
    return value is None or isinstance(value, (bool, int, float, str))


def _constant(value: Any) -> Callable[[_Machine, Any], None]:
    return lambda machine, _argument: machine.push(value)


def _tuple(count: int) -> Callable[[_Machine, Any], None]:
    return lambda machine, _argument: machine.push(tuple(machine.take(count)))


def _literal(machine: _Machine, argument: Any) -> None:
    machine.push(argument)


_HANDLERS: dict[str, Callable[[_Machine, Any], None]] = {
    "PROTO": lambda _machine, _argument: None,
    "STOP": lambda _machine, _argument: None,
    "MARK": lambda machine, _argument: machine.push(_Mark()),
    "GLOBAL": _Machine.find_global,
    "REDUCE": _Machine.reduce,
    "BUILD": _Machine.build,
    "BINPERSID": _Machine.persistent,
    **dict.fromkeys(("BINPUT", "LONG_BINPUT"), _Machine.put),
    **dict.fromkeys(("BINGET", "LONG_BINGET"), lambda machine, argument: machine.push(machine.memo[argument])),
    **dict.fromkeys(("BINUNICODE", "BININT", "BININT1", "BININT2", "LONG1", "BINFLOAT", "BINBYTES"), _literal),
    **dict.fromkeys(("SHORT_BINBYTES", "SHORT_BINUNICODE"), _literal),
    "NONE": _constant(None),
    "NEWTRUE": _constant(True),
    "NEWFALSE": _constant(False),
    "EMPTY_TUPLE": _constant(()),
    "EMPTY_DICT": lambda machine, _argument: machine.push({}),
    "EMPTY_LIST": lambda machine, _argument: machine.push([]),
    "TUPLE": lambda machine, _argument: machine.push(tuple(machine.pop_mark())),
    "TUPLE1": _tuple(1),
    "TUPLE2": _tuple(2),
    "TUPLE3": _tuple(3),
    "APPEND": lambda machine, _argument: machine.append(machine.take(1)),
    "APPENDS": lambda machine, _argument: machine.append(machine.pop_mark()),
    "SETITEM": lambda machine, _argument: machine.set_items(machine.take(2)),
    "SETITEMS": lambda machine, _argument: machine.set_items(machine.pop_mark()),
}
