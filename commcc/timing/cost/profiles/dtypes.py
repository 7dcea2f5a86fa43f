"""Names of dtypes in traces, as PyTorch's own names without ``torch.``.

    tensor_dtype("c10::BFloat16")       # 'bfloat16', from 'Input type' of an op
    message_dtype("BFloat16")           # 'bfloat16', from 'dtype' of a collective
    ITEM_BYTES["bfloat16"]              # 2

An op's types are C++ type names (``caffe2::TypeMeta::name``, as the compiler spells them); a
collective's are names of ``c10::ScalarType`` (``c10::toString``). Checked against a trace of PyTorch 2.13
that holds every dtype. Limits: quantised and sub-byte dtypes are unknown.
"""

from __future__ import annotations

from typing import Final

ITEM_BYTES: Final[dict[str, int]] = {
    **dict.fromkeys(("bool", "uint8", "int8"), 1),
    **dict.fromkeys(("float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu"), 1),
    **dict.fromkeys(("float16", "bfloat16", "int16", "uint16"), 2),
    **dict.fromkeys(("float32", "int32", "uint32", "complex32"), 4),
    **dict.fromkeys(("float64", "int64", "uint64", "complex64"), 8),
    "complex128": 16,
}

#: By dtype: C++ names (GCC's, then clang's), and the name of its scalar type.
_NAMES: Final[dict[str, tuple[tuple[str, ...], str]]] = {
    "bool": (("bool",), "Bool"),
    "uint8": (("unsigned char",), "Byte"),
    "int8": (("signed char",), "Char"),
    "int16": (("short int", "short"), "Short"),
    "uint16": (("short unsigned int", "unsigned short"), "UInt16"),
    "int32": (("int",), "Int"),
    "uint32": (("unsigned int",), "UInt32"),
    "int64": (("long int", "long", "long long"), "Long"),
    "uint64": (("long unsigned int", "unsigned long", "unsigned long long"), "UInt64"),
    "float16": (("c10::Half",), "Half"),
    "bfloat16": (("c10::BFloat16",), "BFloat16"),
    "float32": (("float",), "Float"),
    "float64": (("double",), "Double"),
    "complex32": (("c10::complex<c10::Half>",), "ComplexHalf"),
    "complex64": (("c10::complex<float>",), "ComplexFloat"),
    "complex128": (("c10::complex<double>",), "ComplexDouble"),
    "float8_e4m3fn": (("c10::Float8_e4m3fn",), "Float8_e4m3fn"),
    "float8_e4m3fnuz": (("c10::Float8_e4m3fnuz",), "Float8_e4m3fnuz"),
    "float8_e5m2": (("c10::Float8_e5m2",), "Float8_e5m2"),
    "float8_e5m2fnuz": (("c10::Float8_e5m2fnuz",), "Float8_e5m2fnuz"),
    "float8_e8m0fnu": (("c10::Float8_e8m0fnu",), "Float8_e8m0fnu"),
}
_CPP: Final[dict[str, str]] = {cpp: dtype for dtype, (names, _) in _NAMES.items() for cpp in names}
_SCALAR_TYPES: Final[dict[str, str]] = {scalar: dtype for dtype, (_, scalar) in _NAMES.items()}


def tensor_dtype(name: object) -> str | None:
    """Dtype of a tensor argument; None for arguments that are no tensor, and for dtypes that are not known."""
    return _CPP.get(name) if isinstance(name, str) else None


def message_dtype(name: object) -> str | None:
    """Dtype of a collective's message, also by PyTorch's own names."""
    if not isinstance(name, str):
        return None
    return name if name in ITEM_BYTES else _SCALAR_TYPES.get(name)
