"""How the simulator's benchmarks measure: one core, the best and the median of repeats, saturation
by a closed loop, memory as the peak of a fresh process."""

from __future__ import annotations

import ctypes
import gc
import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import TypeVar

import numpy as np
import pyarrow as pa

from sojourn.capacity.records import EngineModel
from sojourn.progress import silent
from sojourn.sim.log import Log
from sojourn.sim.lowered import Lowered
from sojourn.sim.lowering import lower
from sojourn.sim.scenario import Scenario
from sojourn.sim.simulate import ENGINES
from sojourn.sim.ticks import PER_S

Run = Callable[[Lowered], Log]
T = TypeVar("T")


@dataclass(frozen=True)
class Figure:
    """One measured number, and its ratio to what `of` says. With a `bar`, the ratio is 1 or more
    where the bar is met (bar over value for a greatest value)."""

    section: str
    what: str
    value: float | None
    unit: str
    ratio: float | None = None
    of: str = ""
    bar: float | None = None

    @property
    def line(self) -> str:
        """The figure as printed."""
        value = "-" if self.value is None else f"{self.value:,.5g}"
        head = f"{self.section:14} {self.what:58} {value:>12} {self.unit:14}"
        if self.ratio is None:
            return head.rstrip()
        if self.bar is None:
            return f"{head} {self.ratio:,.4g} x {self.of}"
        met = "met" if self.ratio >= 1 else "MISSED"
        return f"{head} bar {self.bar:,.4g}: {met} ({self.ratio:.3g} x)"


def at_least(section: str, what: str, value: float, unit: str, bar: float) -> Figure:
    """A figure whose bar is a least value."""
    return Figure(section, what, value, unit, value / bar, "bar", bar)


def at_most(section: str, what: str, value: float, unit: str, bar: float) -> Figure:
    """A figure whose bar is a greatest value."""
    return Figure(section, what, value, unit, bar / max(value, 1e-9), "bar", bar)


def show(figures: Iterable[Figure], *, as_json: bool) -> None:
    """Each figure as it comes, or all of them as one JSON array."""
    if as_json:
        json.dump([asdict(f) for f in figures], sys.stdout, indent=1)
        print()
        return
    for figure in figures:
        print(figure.line, flush=True)


def say(text: str) -> None:
    """Progress."""
    print(text, file=sys.stderr, flush=True)


def on_one_core() -> str:
    """Keep this process and its children on one core where the system lets us; what was done."""
    os.environ["NUMBA_NUM_THREADS"] = "1"
    if not hasattr(os, "sched_setaffinity"):
        return "not pinned: this system has no way to"
    core = max(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {core})
    return f"pinned to core {core}"


def engine(name: str) -> Run:
    """An engine: `Lowered` in, `Log` out."""
    found = ENGINES.get(name)
    if found is None:
        raise SystemExit(f"no engine {name!r} in this checkout; there are {', '.join(ENGINES)}")
    return lambda lowered: found(lowered, silent)


@dataclass(frozen=True)
class Walls:
    """Wall and processor times of repeats, seconds."""

    times_s: tuple[float, ...]
    cpu_s: tuple[float, ...]

    @property
    def best_s(self) -> float:
        """The shortest."""
        return min(self.times_s)

    @property
    def median_s(self) -> float:
        """The middle one."""
        return statistics.median(self.times_s)

    @property
    def work_s(self) -> float:
        """The least processor time: what a run costs, whoever else is using the core."""
        return min(self.cpu_s)

    @property
    def core_share(self) -> float:
        """How much of the core the run with the shortest wall time had: well below 1 where
        others were using it, and then the machine was measured and not the program."""
        return self.cpu_s[self.times_s.index(self.best_s)] / self.best_s


def walls(work: Callable[[], T], repeat: int) -> tuple[Walls, T]:
    """Times of `repeat` runs and what the last gave."""
    times, cpu = [], []
    for left in reversed(range(repeat)):
        gc.collect()
        began, used = time.perf_counter(), time.process_time()
        result = work()
        times.append(time.perf_counter() - began)
        cpu.append(time.process_time() - used)
        if left:
            del result
    return Walls(tuple(times), tuple(cpu)), result


def saturation_per_s(scenario: Scenario, run: Run) -> float:
    """Requests per second that the engines finish when there is always more to do.

    A closed loop of twice as many clients as there are batch slots (a quarter of the requests at
    most), without thinking, retries or limits of the stations; the rate of the middle half of
    the ends. Wrong when: fewer requests than some times the slots (then the start counts).
    """
    fleet, count = scenario.fleet, scenario.stream.requests.num_rows
    slots = fleet.engine.replicas * fleet.engine.max_num_seqs
    clients = max(1, min(2 * slots, count // 4))
    free = {n: s.model_copy(update={"servers": None}) for n, s in fleet.stations.items()}
    calm = fleet.model_copy(
        update={
            "stations": free,
            "retry": type(fleet.retry)(),
            "client": fleet.client.model_copy(update={"closed_loop": clients}),
        }
    )
    ends = np.sort(run(lower(replace(scenario, fleet=calm))).ends["end"])
    low, high = count // 4, 3 * count // 4
    return (high - low) * PER_S / float(ends[high] - ends[low])


def mean_in_flight(log: Log) -> float:
    """Requests in the system on average, by Little's law."""
    time_in = (log.ends["end"] - log.ends["arrival"]).astype(np.float64)
    return float(time_in.sum() / max(log.ends["end"].max() - log.ends["arrival"].min(), 1))


def e2e_quantile_s(log: Log, share: float) -> float:
    """A quantile of the requests' time in the system, seconds."""
    return float(np.quantile((log.ends["end"] - log.ends["arrival"]) / PER_S, share))


def nbytes(record: object) -> int:
    """Bytes of the arrays in a record, records inside it included."""
    if isinstance(record, np.ndarray):
        return record.nbytes
    if isinstance(record, tuple):
        return sum(nbytes(item) for item in record)
    if not hasattr(record, "__dataclass_fields__"):
        return 0
    return sum(nbytes(getattr(record, f.name)) for f in fields(record))


def give_back() -> None:
    """Return freed memory to the system, so that it is seen when it is taken again."""
    gc.collect()
    pa.default_memory_pool().release_unused()
    if sys.platform == "linux":
        ctypes.CDLL(None).malloc_trim(0)


def resident_bytes(field: str) -> int:
    """`VmRSS` (now) or `VmHWM` (the most since `forget_peak`) of this process, Linux."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) * 1024
    raise SystemExit(f"/proc/self/status has no {field}: memory is measured on Linux")


def forget_peak() -> None:
    """The peak counts from now (Linux)."""
    Path("/proc/self/clear_refs").write_text("5")


def cost_ns(wall_s: float, requests: int) -> float:
    """Nanoseconds a request."""
    return wall_s / requests * 1e9


def without_kv_limit(model: EngineModel, tokens: int) -> EngineModel:
    """KV blocks enough for every slot at `tokens` tokens."""
    blocks = model.max_num_seqs * (-(-tokens // model.block_size) + 1)
    return model.model_copy(update={"kv_blocks": blocks})
