"""What the rows of the silicon sample say of each other: faults of the file, prompts that a cache
served, clients and front ends that could not keep up, a batch slot that was missing.

Nothing here looks at a prediction.
"""

from __future__ import annotations

from dataclasses import replace
from statistics import median
from typing import Final, NamedTuple

from .rows import Row
from .sets_closed_reading import PEAK_SHARE, prompt_flops

FALLS: Final = 0.7
"""A TPOT this far below that of fewer clients of the same server is not of the same run."""
WAITS: Final = (0.7, 1.3)
"""Requests that always wait, by Little's law, where one batch slot was missing."""
CONNECTIONS: Final = 100
LATER: Final = 1.3
LATE: Final = "TTFT longer than on fewer GPUs: the client or its front end was slow; not scored"
FEW: Final = 32
"""Clients up to which the initial burst does not hide that."""


class Run(NamedTuple):
    """A row and its nominal lengths (those drawn differ with the number of requests)."""

    row: Row
    isl: int
    osl: int


def fallen(runs: list[Run]) -> set[int]:
    """Rows whose TPOT is a fault of the file; versions of an engine count as one server."""
    found: dict[tuple[object, ...], list[Row]] = {}
    for row, isl, osl in runs:
        told = row.deployment
        name = told.engine.split(" ")[0]
        key = (row.group, name, told.tensor_parallel, told.data_parallel, told.replicas, isl, osl)
        found.setdefault(key, []).append(row)
    bad: set[int] = set()
    for group in found.values():
        most = 0.0
        for row in sorted(group, key=lambda r: r.load.concurrency or 0):
            tpot = row.measured.get("tpot_mean_s", 0.0)
            if 0 < tpot < FALLS * most:
                bad.add(id(row))
            most = max(most, tpot)
    return bad


def held_back(runs: list[Run]) -> set[int]:
    """Rows in which, by Little's law, at most 100 of four times as many clients were in decode:
    100 connections are the default of the client's HTTP library, and TTFT counts the wait for one.
    """
    bad: set[int] = set()
    for run in runs:
        clients, told = run.row.load.concurrency or 1, run.row.measured
        if clients < 4 * CONNECTIONS or not {"ttft_mean_s", "tpot_mean_s"} <= set(told):
            continue
        decode = _decode_s(run)
        if clients * decode / (told["ttft_mean_s"] + decode) <= CONNECTIONS:
            bad.add(id(run.row))
    return bad


def prompt_share(row: Row) -> float | None:
    """FLOPs of the row's prompts over the peak of its cards, prompts per second by Little's law."""
    tpot, ttft = row.measured.get("tpot_mean_s"), row.measured.get("ttft_mean_s")
    if tpot is None or ttft is None:
        return None
    whole = ttft + tpot * (float(row.load.outputs.mean()) - 1)
    per_s = (row.load.concurrency or 1) / whole
    return prompt_flops(row, per_s * float(row.load.inputs.mean()))


def cached(runs: list[Run]) -> set[int]:
    """Rows of every server of which one row's prompts cannot have been computed."""
    rows = [run.row for run in runs]
    fast = [row for row in rows if (prompt_share(row) or 0.0) > PEAK_SHARE]
    names = {(row.group, row.deployment.engine) for row in fast}
    return {id(row) for row in rows if (row.group, row.deployment.engine) in names}


def unhurried(runs: list[Run]) -> list[Run]:
    """Runs whose TTFT is over 1.3 times that of the same load on fewer GPUs test TPOT alone.

    More GPUs do not make a prompt slower: the client, or the front end that streams to it, could
    not keep up (under TensorRT-LLM on H100, from about 9,000 tokens a second on).
    """
    alike: dict[tuple[object, ...], list[Run]] = {}
    for run in runs:
        told = run.row.deployment
        key = (run.row.group, told.engine, told.data_parallel, told.replicas, told.expert_parallel,
               run.row.load.concurrency, *run[1:])  # fmt: skip
        alike.setdefault(key, []).append(run)
    late: set[int] = set()
    for group in alike.values():
        least = float("inf")
        for run in sorted(group, key=lambda r: r.row.deployment.tensor_parallel):
            ttft = run.row.measured.get("ttft_mean_s", 0.0)
            if ttft > LATER * least:
                late.add(id(run.row))
            elif ttft:
                least = min(least, ttft)
    return [
        run._replace(row=_tpot_alone(run.row, LATE)) if id(run.row) in late else run for run in runs
    ]


def _tpot_alone(row: Row, note: str) -> Row:
    return replace(row, scored=("tpot_mean_s",), notes=(*row.notes, note))


def one_slot_less(runs: list[Run]) -> list[Row]:
    """Slots less one where the rows of a server show that one request always waits.

    With longer outputs the mean TTFT then grows by 1/c of the whole time that a request runs
    (Little's law: c x that share is the requests that wait). In the 16-bit rows of TensorRT-LLM
    1.0 the share is 0.8 to 1.2 for c = 8 to 32, in the fp8 rows 0.0: a slot went to the padding of
    its CUDA graphs or to a request that had ended.
    """
    alike: dict[tuple[str, int, int], list[Run]] = {}
    for run in runs:
        batch = run.row.deployment.max_num_seqs
        told = {"ttft_mean_s", "tpot_mean_s"} <= set(run.row.measured)
        if told and batch == run.row.load.concurrency and batch <= FEW:
            alike.setdefault((run.row.server, batch, run.isl), []).append(run)
    waits: dict[str, list[float]] = {}
    for (server, batch, _), group in alike.items():
        short, long = min(group, key=_decode_s), max(group, key=_decode_s)
        gap = _decode_s(long) - _decode_s(short)
        if gap > 0:
            grown = long.row.measured["ttft_mean_s"] - short.row.measured["ttft_mean_s"]
            waits.setdefault(server, []).append(batch * grown / gap)
    short_of = {s for s, shares in waits.items() if WAITS[0] < median(shares) < WAITS[1]}
    return [_with_a_slot_less(r.row) if r.row.server in short_of else r.row for r in runs]


def _decode_s(run: Run) -> float:
    return run.row.measured["tpot_mean_s"] * (float(run.row.load.outputs.mean()) - 1)


def _with_a_slot_less(row: Row) -> Row:
    slots = max(1, row.deployment.max_num_seqs - 1)
    told = row.deployment.model_copy(update={"max_num_seqs": slots})
    note = "one request always waits in this server's rows: a batch slot less"
    return replace(row, deployment=told, notes=(*row.notes, note))
