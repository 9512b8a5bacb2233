"""What the summary of a benchmark run says against itself: minutes for seconds, seconds for
milliseconds, a rate that its own lengths exclude. Such a run teaches a fit a wrong engine."""

from __future__ import annotations

from collections import Counter
from typing import Final

from sojourn.capacity.sweep_runs import Arrivals, SweepRun

SLACK: Final = 1.5
"""Means of one run agree to a few percent; by half as much again they are not of one run."""
IDLE: Final = 20.0
"""Clients of a closed loop wait for answers nearly always: a twentieth of the time is a unit."""
LONGEST_S: Final = 1e5
"""Of a mean latency: a day."""
ROUNDS: Final = 1
"""Requests per client; with fewer not all clients are ever at work."""


def doubt(run: SweepRun) -> str | None:
    """Why a run cannot be as its summary says, or None.

    Little's law: requests in flight = rate x mean time; clients bound them from above, and in a
    closed loop they nearly are that many. Wrong when: clients think between requests.
    """
    output = float(run.outputs.mean())
    longest = max((v for n, v in run.measured.items() if "per_s" not in n), default=0.0)
    if longest > LONGEST_S:
        return f"a time of {longest:.3g} s"
    first, whole = run.measured.get("ttft_mean_s"), run.measured.get("e2e_mean_s")
    gap = run.measured.get("tpot_mean_s") or run.measured.get("itl_mean_s")
    parts = (first or 0.0) + (gap or 0.0) * max(output - 1, 0)
    if whole is not None and parts > SLACK * whole:
        return f"first token and gaps take {parts:.3g} s, the whole request {whole:.3g} s"
    rate, tokens = run.measured.get("requests_per_s"), run.measured.get("output_tokens_per_s")
    if rate and tokens and not 1 / SLACK < tokens / (rate * output) < SLACK:
        return (
            f"{rate:.3g} requests of {output:.0f} output tokens a second, and {tokens:.3g} tokens"
        )
    return _in_flight(run, rate, whole or (parts if first and gap else None))


def _in_flight(run: SweepRun, rate: float | None, whole: float | None) -> str | None:
    clients = run.concurrency
    if not rate or not whole or clients is None:
        return None
    flying = rate * whole
    many = len(run) >= ROUNDS * clients
    idle = run.arrivals == Arrivals.CLOSED and many and flying < clients / IDLE
    if flying > SLACK * clients or idle:
        return (
            f"{rate:.3g} requests/s of {whole:.3g} s are {flying:.3g} in flight, by"
            f" {clients} clients: check the units of its times"
        )
    return None


def _other(run: SweepRun, usual: str) -> str | None:
    """A fit is of one engine, which serves one model."""
    return None if run.model in ("", usual) else f"of {run.model}, the others of {usual or 'none'}"


def believed(runs: list[SweepRun]) -> tuple[list[SweepRun], tuple[str, ...]]:
    """Runs that may be as they say, and what is said against each of the others."""
    usual = Counter(run.model for run in runs).most_common(1)
    doubts = [(run, _other(run, usual[0][0]) or doubt(run)) for run in runs]
    kept = [run for run, why in doubts if why is None]
    return kept, tuple(f"{run.label or 'a run'}: {why}" for run, why in doubts if why is not None)
