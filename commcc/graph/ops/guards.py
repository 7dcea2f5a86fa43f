"""What must hold of the arguments of ops that do not check it themselves, so that no graph reads or writes elsewhere.

    guarded(torch.ops.aten._log_softmax_backward_data.default)(grad, output, -1, torch.float32)
    # ValueError: 'grad_output' is [2, 3], 'output' [2, 1]

PyTorch's kernels for its own use trust their callers: with tensors of other sizes they leave the tensors they were
given. Those that training graphs hold are called behind these checks; :mod:`commcc.graph.ops.allowed` refuses the rest.

Limits: a storage that a graph makes smaller keeps its bytes.
"""

from __future__ import annotations

from functools import wraps
from math import prod
from typing import TYPE_CHECKING, Any

from commcc.graph.ops.functions import bounded
from commcc.graph.ops.names import argument_names, op_name

if TYPE_CHECKING:
    from collections.abc import Callable

    #: Raises ValueError for arguments, by name, that do not fit.
    Rule = Callable[[dict[str, Any]], None]


def is_guarded(target: Any) -> bool:
    """Whether there is something to check."""
    return op_name(target) in {*_RULES, _RESIZE}


def guarded(target: Any) -> Callable[..., Any]:
    """The op, which raises ValueError for arguments that it would not check; the op itself where there is nothing."""
    rules = _RULES.get(op_name(target), ())
    if op_name(target) == _RESIZE:
        return wraps(target)(_grown)
    if not rules:
        return bounded(target)
    names = argument_names(target)

    @wraps(target)
    def checked(*args: Any, **kwargs: Any) -> Any:
        given = {**dict(zip(names, args, strict=False)), **kwargs}
        for rule in rules:
            rule(given)
        return target(*args, **kwargs)

    return checked


def _grown(variable: Any, new_size: int) -> None:
    """Give a storage more bytes, and never fewer: tensors that still look at it would read out of bounds."""
    storage = variable.untyped_storage()
    if storage.nbytes() < new_size:
        storage.resize_(new_size)


def _refuse(name: str, value: Any, other: str, wanted: Any) -> None:
    raise ValueError(f"'{name}' is {_shown(value)}, '{other}' {_shown(wanted)}")


def _shown(value: Any) -> str:
    return str(list(value.shape)) if hasattr(value, "shape") else str(value)


def _same(*names: str) -> Rule:
    """Tensors of one shape."""

    def rule(given: dict[str, Any]) -> None:
        first, *others = (name for name in names if given.get(name) is not None)
        for name in others:
            if given[name].shape != given[first].shape:
                _refuse(name, given[name], first, given[first])

    return rule


def _one_or(name: str, other: str) -> Rule:
    """A single number, or a tensor of the shape of another."""

    def rule(given: dict[str, Any]) -> None:
        if given[name].numel() != 1 and given[name].shape != given[other].shape:
            _refuse(name, given[name], other, given[other])

    return rule


def _floating(name: str) -> Rule:
    """No whole numbers, by which the op would divide."""

    def rule(given: dict[str, Any]) -> None:
        if not given[name].is_floating_point():
            raise ValueError(f"'{name}' is {given[name].dtype}")

    return rule


def _unfolded(given: dict[str, Any]) -> None:
    """``unfold_backward``: the gradient is as large as what ``unfold`` gives for these sizes."""
    grad, sizes, dim, size, step = (given[name] for name in ("grad_in", "input_sizes", "dim", "size", "step"))
    dim = dim + len(sizes) if dim < 0 else dim
    if not 0 <= dim < len(sizes) or step < 1 or not 0 < size <= sizes[dim]:
        raise ValueError(f"nothing is unfolded from dimension {dim} of {list(sizes)} by {size}")
    wanted = [*sizes[:dim], (sizes[dim] - size) // step + 1, *sizes[dim + 1 :], size]
    if list(grad.shape) != wanted:
        raise ValueError(f"'grad_in' is {list(grad.shape)}, not {wanted}")


def _channels(of: str, *names: str) -> Rule:
    """One number for each channel, which is the second dimension."""

    def rule(given: dict[str, Any]) -> None:
        whole = given[of]
        for name in names:
            part = given.get(name)
            # An empty tensor stands for none.
            if part is not None and part.numel() and (whole.dim() < 2 or tuple(part.shape) != (whole.shape[1],)):
                _refuse(name, part, of, whole)

    return rule


def _statistics(trains: bool | str, *in_training: str) -> Rule:
    """Without training the running statistics, which the op does not ask for; in training those that it names.

    trains: whether it is training, or the argument that says so.
    """

    def rule(given: dict[str, Any]) -> None:
        training = given.get(trains, True) if isinstance(trains, str) else trains
        for name in in_training if training else ("running_mean", "running_var"):
            if given.get(name) is None or not given[name].numel():
                raise ValueError(f"'{name}' is missing")

    return rule


def _alike(first: str, *names: str) -> Rule:
    """Lists of tensors, each as large as the one in the same place of the first list."""

    def rule(given: dict[str, Any]) -> None:
        for name in names:
            parts = given.get(name) or []
            if parts and [part.shape for part in parts] != [part.shape for part in given[first]]:
                raise ValueError(f"the tensors in '{name}' are not as large as those in '{first}'")

    return rule


def _numbers(of: str, *names: str) -> Rule:
    """Lists of single numbers, one for each tensor of the first list."""

    def rule(given: dict[str, Any]) -> None:
        for name in names:
            parts = given.get(name) or []
            if parts and [part.numel() for part in parts] != [1] * len(given[of]):
                raise ValueError(f"'{name}' does not have one number for each tensor in '{of}'")

    return rule


def _chunks(given: dict[str, Any]) -> None:
    """``_chunk_cat``: a dimension that all tensors have, equal sizes before it, at least one chunk."""
    tensors, dim = given["tensors"], given["dim"]
    if not tensors or given["num_chunks"] < 1 or not 0 <= dim < min(tensor.dim() for tensor in tensors):
        raise ValueError(f"no chunks along dimension {dim} into {given['num_chunks']}")
    if len({tensor.shape[:dim] for tensor in tensors}) > 1:
        raise ValueError(f"tensors differ before dimension {dim}")


def _pooled(dimensions: int) -> Rule:
    """Gradients of a maximum of windows over the last dimensions: each goes where its index says, within its plane."""

    def rule(given: dict[str, Any]) -> None:
        whole, grad, places = given["self"], given["grad_output"], given["indices"]
        if whole.dim() <= dimensions or grad.shape[:-dimensions] != whole.shape[:-dimensions]:
            _refuse("grad_output", grad, "self", whole)
        if places.shape != grad.shape:
            _refuse("indices", places, "grad_output", grad)
        plane = prod(whole.shape[-dimensions:])
        if places.numel() and not 0 <= int(places.min()) <= int(places.max()) < plane:
            raise ValueError(f"'indices' are not all within 0 to {plane - 1}")

    return rule


def _attention(given: dict[str, Any]) -> None:
    """Attention on the CPU: sizes that belong together, and a last dimension in one piece, which it relies on."""
    query, key, value = given["query"], given["key"], given["value"]
    if query.dim() != 4 or key.shape != value.shape or key.dim() != 4:
        raise ValueError(f"query {_shown(query)}, key {_shown(key)}, value {_shown(value)} do not belong together")
    heads = key.shape[1] and query.shape[1] % key.shape[1] == 0
    if not heads or (key.shape[0], key.shape[3]) != (query.shape[0], query.shape[3]):
        _refuse("key", key, "query", query)
    for name in ("out", "grad_out"):
        if given.get(name) is not None and given[name].shape != query.shape:
            _refuse(name, given[name], "query", query)
    sums = given.get("logsumexp")
    if sums is not None and sums.numel() != query.shape[0] * query.shape[1] * query.shape[2]:
        _refuse("logsumexp", sums, "query", query)
    for name in ("query", "key", "value", "out", "grad_out", "attn_mask"):
        tensor = given.get(name)
        if tensor is not None and tensor.numel() and tensor.shape[-1] > 1 and tensor.stride(-1) != 1:
            raise ValueError(f"the last dimension of '{name}' is not in one piece")


_RESIZE = "inductor.resize_storage_bytes_"
_PER_CHANNEL = ("weight", "bias", "running_mean", "running_var", "save_mean", "save_invstd", "save_var", "reserve_mean")
_NORMALISING = (_channels("input", *_PER_CHANNEL),)
_SAVED = ("save_mean", "save_invstd")
_FUSED = (
    _alike("self", "grads", "exp_avgs", "exp_avg_sqs", "max_exp_avg_sqs", "momentum_buffer_list", "state_sums"),
    _numbers("self", "state_steps"),
)
_RULES: dict[str, tuple[Rule, ...]] = {
    "aten._log_softmax_backward_data": (_same("grad_output", "output"),),
    "aten._softmax_backward_data": (_same("grad_output", "output"),),
    "aten._masked_softmax_backward": (_same("grad_output", "output", "mask"),),
    "aten._scaled_dot_product_flash_attention_for_cpu": (_attention,),
    "aten._scaled_dot_product_flash_attention_for_cpu_backward": (_attention,),
    **dict.fromkeys(
        (
            *("aten.native_batch_norm", "aten._native_batch_norm_legit", "aten._native_batch_norm_legit_functional"),
            *("aten._batch_norm_with_update", "aten._batch_norm_with_update_functional"),
        ),
        (*_NORMALISING, _statistics("training")),
    ),
    **dict.fromkeys(
        ("aten._native_batch_norm_legit_no_training", "aten._batch_norm_no_update"),
        (*_NORMALISING, _statistics(False)),
    ),
    "aten.native_batch_norm_backward": (_same("grad_out", "input"), *_NORMALISING, _statistics("train", *_SAVED)),
    "aten.batch_norm_backward": (
        *(_same("grad_out", "input"), _channels("input", *_PER_CHANNEL, "save_var")),
        _statistics("update", "save_mean", "save_var"),
    ),
    "aten.smooth_l1_loss_backward": (_same("self", "target"), _one_or("grad_output", "self"), _floating("self")),
    "aten.unfold_backward": (_unfolded,),
    "aten.max_pool2d_with_indices_backward": (_pooled(2),),
    "aten.max_pool3d_with_indices_backward": (_pooled(3),),
    **dict.fromkeys(
        (f"aten._fused_{name}_" for name in ("adam", "adamw", "sgd", "adagrad")),
        _FUSED,
    ),
    "aten._chunk_cat": (_chunks,),
    "fsdp.chunk_cat": (_chunks,),
}
