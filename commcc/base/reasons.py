"""Why a pass decided something: a code and its fields as data, worded in the table here and nowhere else.

    reason = Reason.of("used_early", node="mm_3")
    str(reason)              # "its result is used by 'mm_3' before it is waited for"
    reason.general           # "its result is used by '...' before it is waited for"

Plan files and the records of nodes hold the words.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from commcc.base.terms import MIB

#: The words for each code. ``bytes`` is a size; ``node``, ``launch`` and ``user`` are names of nodes.
WORDS = {
    # a text from a plan file
    "stated": "{text}",
    # what no pass merges
    "used_early": "its result is used by '{node}' before it is waited for",
    "returned_early": "its result is returned before it is waited for",
    "waits": "has {waits} waits",
    "written": "its result is written in place by '{node}'",
    "control_edge": "is held in place by a control edge",
    # what bucket leaves out
    "other_role": "is not a gather of one parameter or a reduction of a gradient",
    "made_of_several": "is made of several values, of which not all are known to be parameters",
    "made_into_others": "its result is put together with other values, and not only with gradients",
    "is_bucket": "is a bucket already",
    "coalesced": "is a coalesced launch",
    "writes_buffer": "writes into a given buffer",
    "group_from_node": "takes its process group from another node",
    "group_left_out": "group '{group}' does not take part",
    "group_size_unknown": "the size of its group is not known",
    "shape_unknown": "the shape of '{node}' is not known",
    "symbolic": "the size of '{node}' is symbolic ({symbols})",
    "empty": "is empty",
    "uneven": "'{node}' has {rows} rows, which {ranks} ranks cannot share evenly",
    "not_contiguous": "its result is not contiguous",
    "alone": "alone in its bucket (closed for {closed_by})",
    "alone_at_end": "alone in its bucket (no more candidates)",
    "alone_in_entry": "alone in its bucket of {entry}",
    "all_reduce": "is an all-reduce (include_all_reduce takes it)",
    "module_unknown": "its module is not known",
    "no_entry": "no entry covers {module}",
    "does_not_pay": "merging it does not pay",
    "no_partner": "nothing to merge it with",
    "no_partner_here": "nothing to merge it with on its side of '{node}', across which nothing moves",
    "no_room": "no bucket has room for it",
    "no_place": "no merge leaves the compute that hides it in its place",
    "cycle": "no merge keeps what hides it",
    "too_long": "merged, it would take longer than what hides it",
    "memory": "merged, memory would pass the budget",
    "copies": "copies would take longer than merging saves",
    "exposed": "merged, it would be exposed",
    "exposes_others": "merged, it would expose others",
    "longer_step": "merged, it would make the step longer",
    "not_tried": "not tried within {simulations} simulations",
    # why a bucket is one, and stands where it does
    "closed": "{members} members, {bytes}, span {span}; closed for {closed_by}",
    "at_end": "{members} members, {bytes}, span {span}; no more candidates",
    "entry": "{members} members of {entry}, {bytes}",
    "entry_again": "{members} members of {entry}, round {round}, {bytes}",
    "stay_hidden": "{members} members, {bytes}, {hidden} of them hidden and kept so",
    "shorter_step": "{members} members, {bytes}; the simulated step is shorter",
    "launched_ahead": "launched before the wait of {entry}",
    "waited_behind": "waited for after the launch of {entry}",
    # dedup
    "one_value": "{gathers} gathers of one value within {nodes} nodes",
    "far_apart": "stands {nodes} nodes behind '{node}'",
    "pays_not": "without it, and with the result of '{node}' held until then, the step would be no shorter",
    "behind_barrier": "stands behind '{node}', across which nothing moves",
    "both_returned": "its result and that of '{node}' are both returned",
    "held_too_long": "holding the result of '{node}' until then would pass the memory budget by {gib:.2f} GiB",
    # groups
    "shared_group": "{wanted} shared group '{group}' with {others}",
    # reorder{control_deps=true}
    "nothing_to_hold": "no compute node beside it can be held",
    "runs_meanwhile": "runs while '{launch}' moves bytes",
    "hides": "'{node}' hides '{launch}'",
    # inline
    "region_quiet": "its sub-graph does not communicate",
    "region_unlike": "its sub-graph is not called in a way that commcc knows",
    "region_whole": "its result is used as a whole",
    "region_layout": "'{node}' is not known to have the layout that the sub-graph takes or returns",
    "region_constant": "its sub-graph holds the constant '{node}'",
    "region_symbols": "its sub-graph has sizes that are known only when it runs ({symbols})",
    # cleanup
    "unused": "nothing uses its result",
    "feeds_removed": "only what is removed uses its result",
    # ep-dense
    "needs_activations": "it needs more than parameters",
    "waited_early": "it is waited for before the first dense product in {where}",
    "result_needed": "'{node}' depends on its result",
    "held_back": "dependences keep it from where it should be gathered at the first dense product in {where}",
    "gathered": "gathered at the first dense product in {where}",
    "reduced": "reduced at the first dense product in the backward pass of layer {layer}",
    "waited_late": "waited for late",
    "waited_at_end": "waited for at the end",
    # ep-schedule, ep-concretize
    "host_waits": "the host waits at the last copy of its group",
    "last_copy": "the last copy of its group",
    "fixed": "{source}; {values} values depend on these",
    # split
    "in_chunk": "belongs to a chunk already",
    "split_small": "is smaller than min_mb ({bytes})",
    "split_sizes": "its sizes are not known",
    "split_kind": "no part of an {kind} is known to be apart from others",
    "split_form": "is no launch with one operand and a wait",
    "split_no_rows": "nothing in front of it or behind it works slice by slice",
    "split_pays_not": "its parts would take as long as it does",
    "split_longer": "split, it would make the step no shorter",
    "split_memory": "split, memory would pass the budget",
    # async-tp
    "tp_unknown_form": "what surrounds it is no form that PyTorch's pass knows",
    "tp_left": "PyTorch's pass left it",
    "tp_scaled": "its matmul is scaled, which commcc cannot verify",
    "tp_symbols": "its sizes are known only at run time",
    "tp_small_shard": "gathers the last dimension, and its shard of {shard} is smaller than {smallest}",
    "tp_no_matmul": "no matmul takes what it gathers as its left operand (it goes to {users})",
    "tp_other_operand": "the other operand of its matmul depends on what it gathers",
    "tp_both_kinds": "both plain and scaled matmuls take what it gathers",
    "tp_last_dimension": "gathers the last dimension, and not only matmuls use it",
    "tp_no_product": "what it reduces is no result of a matmul ({input})",
    "tp_other_users": "the result of its matmul has other users too",
    "tp_operand": "an operand of its matmul depends on what it scatters",
    "tp_overwritten": "an operand of its matmul is written to before the fused op would read it",
    "tp_gathers": "gathers dimension {dim} for {matmuls}",
    "tp_scatters": "scatters dimension {dim} of a matmul's result",
}
#: What is counted as one, where that is not the words with ``...`` in place of names of nodes.
_GENERAL = {
    "far_apart": "stands nodes behind '...'",
    "held_too_long": "holding the result of '...' until then would pass the memory budget",
    "split_small": "is smaller than min_mb",
}
_NODES = ("node", "launch", "user")


@dataclass(frozen=True)
class Reason:
    """One reason. code: a key of :data:`WORDS`. fields: what its words name. also: another reason, said after it."""

    code: str
    fields: tuple[tuple[str, str | int | float], ...] = ()
    also: Reason | None = None

    @classmethod
    def of(cls, code: str, **fields: str | int | float) -> Reason:
        """A reason with these fields."""
        return cls(code, tuple(fields.items()))

    def __str__(self) -> str:
        words = WORDS[self.code].format_map({name: _shown(name, value) for name, value in self.fields})
        return words if self.also is None else f"{words}; {self.also}"

    @property
    def general(self) -> str:
        """The words without names of nodes, so that equal reasons can be counted."""
        plain = ((name, "..." if name in _NODES else value) for name, value in self.fields)
        return _GENERAL.get(self.code) or str(replace(self, fields=tuple(plain)))


def _shown(name: str, value: str | int | float) -> str | int | float:
    """``12.5 MiB``, or ``384 bytes`` for little; what is no size stays as it is."""
    if name != "bytes" or isinstance(value, str):
        return value
    return f"{value / MIB:.1f} MiB" if value >= MIB // 10 else f"{value} bytes"
