"""What a shell completes: commands, options, graphs of a file, passes with their options.

    eval "$(_COMMCC_COMPLETE=bash_source commcc)"
    commcc inspect run.log::<TAB>                  run.log::0_0/aot_forward_graph  run.log::0_0/aot_backward_graph
    commcc run g.fx.txt --passes tag,bu<TAB>       tag,bucket

Limits: names of graphs take as long as PyTorch takes to load; zsh completes what stands in braces in quotes only. The
scripts are our own: bash splits words at ``:`` and ``=``, and those of click for zsh and fish cut words at commas and
lose the option of ``--option=VALUE``.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

from click.shell_completion import (
    BashComplete,
    CompletionItem,
    FishComplete,
    ShellComplete,
    ZshComplete,
    split_arg_string,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    import click

_BASH = r"""
%(complete_func)s() {
    local IFS=$'\n' response completion type value word strip="" breaks=""
    word="${COMP_LINE:0:COMP_POINT}"
    response=$(env COMP_WORDS="$word" COMP_CWORD=-1 %(complete_var)s=bash_complete "$1" 2> /dev/null)
    word="${word##*[[:space:]]}"
    # Bash replaces what follows the last of these characters, outside of quotes.
    [[ $COMP_WORDBREAKS == *:* ]] && breaks+=":"
    [[ $COMP_WORDBREAKS == *=* ]] && breaks+="="
    if [[ -n $breaks && $word != [\'\"]* && $word == *[$breaks]* ]]; then
        strip="${word%%"${word##*[$breaks]}"}"
    fi
    COMPREPLY=()
    for completion in $response; do
        type="${completion%%%%,*}"
        value="${completion#*,}"
        if [[ $type == dir ]]; then
            compopt -o dirnames
        elif [[ $type == file ]]; then
            compopt -o default
        elif [[ $type == plain ]]; then
            COMPREPLY+=("${value#"$strip"}")
            [[ $value == *[={] ]] && compopt -o nospace
        fi
    done
    return 0
}
complete -o nosort -F %(complete_func)s %(prog_name)s
"""

_ZSH = r"""#compdef %(prog_name)s

%(complete_func)s() {
    local type key descr
    local -a response described plain open
    (( ! $+commands[%(prog_name)s] )) && return 1
    # Zsh has begun to expand such a word before it asks anybody.
    if [[ "$words[CURRENT]" == [^\'\"]*"{"* ]]; then
        _message "a word with braces has to be quoted"
        return 1
    fi
    response=("${(@f)$(env COMP_WORDS="${words[*]}" COMP_CWORD=$((CURRENT-1)) \
        %(complete_var)s=zsh_complete %(prog_name)s 2> /dev/null)}")
    for type key descr in ${response}; do
        if [[ $type == dir || $type == file ]]; then
            [[ $PREFIX == --*=* ]] && compset -P "*="
            if [[ $type == dir ]]; then _path_files -/; else _path_files -f; fi
        elif [[ $type == plain && $descr != _ ]]; then
            described+=("$key":"$descr")
        elif [[ $type == plain && $key == *= ]]; then
            open+=("$key")
        elif [[ $type == plain ]]; then
            plain+=("$key")
        fi
    done
    (( $#described )) && _describe -V unsorted described -U
    (( $#plain )) && compadd -U -V unsorted -a plain
    # What takes a value is followed by that, and by no space.
    (( $#open )) && compadd -U -V unsorted -S "" -a open
    return 0
}

if [[ $zsh_eval_context[-1] == loadautofunc ]]; then
    %(complete_func)s "$@"
else
    compdef %(complete_func)s %(prog_name)s
fi
"""

_FISH = r"""
function %(complete_func)s
    set -lx %(complete_var)s fish_complete
    set -lx COMP_WORDS (commandline -cp)
    set -lx COMP_CWORD (commandline -ct)
    for completion in (%(prog_name)s 2> /dev/null)
        set -l parts (string split --max 1 "," -- $completion)
        switch $parts[1]
            case dir
                __fish_complete_directories $parts[2]
            case file
                __fish_complete_path $parts[2]
            case plain
                echo $parts[2]
        end
    end
end
complete --no-files --command %(prog_name)s --arguments "(%(complete_func)s)"
"""


class _WholeWords(ShellComplete):
    """Of ``--option=VALUE`` the whole word is offered, as shells replace the whole word."""

    def get_completions(self, args: list[str], incomplete: str) -> list[CompletionItem]:
        """What click offers, behind the option that the word begins with."""
        items = super().get_completions(args, incomplete)
        option, assigned, _ = incomplete.partition("=")
        if not assigned or not option.startswith("--"):
            return items
        return [
            CompletionItem(f"{option}={item.value}", item.type, item.help) if item.type == "plain" else item
            for item in items
        ]


class Bash(_WholeWords, BashComplete):
    """Completion for bash of words that hold ``:`` and ``=``."""

    source_template = _BASH

    def get_completion_args(self) -> tuple[list[str], str]:
        """The words before the cursor, and the one at it."""
        if os.environ["COMP_CWORD"] != "-1":  # a script of click's
            return super().get_completion_args()
        line = os.environ["COMP_WORDS"]
        words = split_arg_string(line)[1:]
        return (words, "") if not words or line[-1].isspace() else (words[:-1], words[-1])


class Zsh(_WholeWords, ZshComplete):
    """Completion for zsh: values that go on get no space, and errors stay out of the terminal."""

    source_template = _ZSH


class Fish(_WholeWords, FishComplete):
    """Completion for fish of words that hold commas, as pipelines do."""

    source_template = _FISH


def graphs(_ctx: click.Context, _parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Files, and behind ``FILE::`` the graphs in the file."""
    file, separator, start = incomplete.partition("::")
    if not separator:
        return [CompletionItem(incomplete, type="file")]
    from commcc.base.errors import CommccError
    from commcc.base.text import one_line
    from commcc.serialization import list_graphs

    try:
        names = [one_line(entry.name) for entry in list_graphs(Path(file).expanduser()) if entry.loadable]
    except (CommccError, OSError):
        return []
    return _items(f"{file}::", names, start)


def passes(_ctx: click.Context, _parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """A pipeline: names of passes, and in braces their options and what these may be."""
    from commcc.base.options import options_of
    from commcc.passes import registry

    opened = re.fullmatch(r"((?:.*,)?\s*([a-z-]+)\{(?:[^{}]*,)?\s*)([^{},]*)", incomplete)
    if opened is None:
        before, start = re.fullmatch(r"(.*[,}]|)(.*)", incomplete, re.DOTALL).groups()  # type: ignore[union-attr]
        return _items(before, registry.names(), start)
    before, name, start = opened.groups()
    if name not in registry.names():
        return []
    options = options_of(registry.get(name))
    key, assigned, value = start.partition("=")
    if not assigned:
        return _items(before, (f"{option_name}=" for option_name in options), start)
    if key not in options:
        return []
    option = options[key]
    words = [*option.choices, *(["true", "false"] if option.kind == "bool" else []), *["none"] * option.optional]
    return _items(f"{before}{key}=", words, value)


def pass_or_preset(_ctx: click.Context, _parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """What ``commcc passes`` takes."""
    from commcc.passes import registry
    from commcc.run.forms import preset_names

    return _items("", (*registry.names(), *preset_names()), incomplete)


def _items(before: str, words: Iterable[str], start: str) -> list[CompletionItem]:
    return [CompletionItem(before + word) for word in words if word.startswith(start)]
