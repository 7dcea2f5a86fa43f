"""Whether this process is one of many that torchrun or SLURM's srun has started, read from the environment.

    me = joined(os.environ)             # None in a shell
    me.rank, me.world, me.starter       # 1, 4, 'torchrun'

``torchrun`` is known by the five variables that it sets, ``srun`` by a step of several tasks. A shell inside
``salloc``, a batch script and a step of one task (``srun --pty bash``) have nobody to join: they start ranks.

Limits: other starters (mpirun) are known only if they set what torchrun sets.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from commcc.base.errors import OptionError

if TYPE_CHECKING:
    from collections.abc import Mapping

TORCHRUN, SLURM = "torchrun", "srun"
_TORCHRUN = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
#: Numbers of steps from here on are SLURM's own: batch scripts, interactive shells and the like (slurm.h).
_SPECIAL_STEPS = 0xFFFFFFF0
#: Ports of jobs: below those that Linux hands out to connections, above those of well-known services.
_FIRST_PORT, _PORTS = 15000, 15000
_MOST_RANKS = 1 << 20


@dataclass(frozen=True)
class Joined:
    """One rank among ``world``.

    local_rank: its number on its machine, local_world: of how many there, None where that is not known; both count
    those that share what this one sees of the machine. address, port: where rank 0 is to be found.
    """

    starter: str
    rank: int
    world: int
    local_rank: int
    local_world: int | None
    address: str
    port: int

    @property
    def environment(self) -> dict[str, str]:
        """What ``torch.distributed`` reads, for starters that do not set it."""
        return {
            "RANK": str(self.rank),
            "WORLD_SIZE": str(self.world),
            "LOCAL_RANK": str(self.local_rank),
            "MASTER_ADDR": self.address,
            "MASTER_PORT": str(self.port),
        }


def joined(environment: Mapping[str, str]) -> Joined | None:
    """What the environment says about this process; None where it is on its own.

    Raises :class:`OptionError` for variables that contradict each other.
    """
    if all(environment.get(name) for name in _TORCHRUN):
        names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_PORT")
        rank, world, local, port = (_number(environment, name) for name in names)
        here = _number(environment, "LOCAL_WORLD_SIZE") if environment.get("LOCAL_WORLD_SIZE") else None
        return _checked(Joined(TORCHRUN, rank, world, local, here, environment["MASTER_ADDR"], port))
    step = environment.get("SLURM_STEP_ID") or environment.get("SLURM_STEPID") or ""
    if not step.isdigit() or int(step) >= _SPECIAL_STEPS or not environment.get("SLURM_PROCID"):
        return None
    # One variable has the tasks of the step, the other one may have the job's.
    tasks = "SLURM_STEP_NUM_TASKS" if environment.get("SLURM_STEP_NUM_TASKS") else "SLURM_NTASKS"
    world = _number(environment, tasks)
    return _task(environment, int(step), world) if world > 1 else None


def _task(environment: Mapping[str, str], step: int, world: int) -> Joined:
    """One of so many tasks of a SLURM step."""
    rank, local = _number(environment, "SLURM_PROCID"), _number(environment, "SLURM_LOCALID")
    nodes = environment.get("SLURM_STEP_NODELIST") or environment.get("SLURM_NODELIST") or ""
    address = environment.get("MASTER_ADDR") or first_host(nodes)
    if not address:
        raise OptionError(f"SLURM_STEP_NODELIST is '{nodes}', which names no machine", hint="set MASTER_ADDR")
    # The same port for all tasks of a step, another one for other jobs, and mostly for other steps of the job.
    job = re.sub(r"\D", "", environment.get("SLURM_JOB_ID") or environment.get("SLURM_JOBID") or "")
    port = _FIRST_PORT + (int(job or 0) * 7 + step) % _PORTS
    if environment.get("MASTER_PORT"):
        port = _number(environment, "MASTER_PORT")
    # Tasks on each machine are told as 4 or 4(x2), or, where machines have different numbers, as 4,3.
    alike = re.fullmatch(r"(\d+)(\(x\d+\))?", environment.get("SLURM_STEP_TASKS_PER_NODE", ""))
    here = int(alike[1]) if alike else None
    devices = environment.get("CUDA_VISIBLE_DEVICES", "")
    if devices and "," not in devices:
        local, here = 0, 1  # with --gpus-per-task a task sees its own device alone
    return _checked(Joined(SLURM, rank, world, local, here, address, port))


def first_host(nodes: str) -> str:
    """The first machine of SLURM's list: ``gpu03`` of ``gpu[03-05,9],login1``, ``r1n02`` of ``r[1-2]n[02,04]``."""
    entry = re.match(r"(?:[^,\[\]]|\[[^\]]*\])*", nodes)
    return re.sub(r"\[([^\],-]*)[^\]]*\]", r"\1", entry[0]).strip() if entry else ""


def _number(environment: Mapping[str, str], name: str) -> int:
    text = environment.get(name, "").strip()
    if not text.isdigit() or int(text) > _MOST_RANKS:
        raise OptionError(f"{name} is '{text}', not a number", hint="unset it, or set what torchrun sets")
    return int(text)


def _checked(me: Joined) -> Joined:
    if not me.rank < me.world:
        raise OptionError(f"{me.starter} says that this is rank {me.rank} of {me.world}")
    if me.port > 65535:
        raise OptionError(f"MASTER_PORT {me.port} is no port")
    return me
