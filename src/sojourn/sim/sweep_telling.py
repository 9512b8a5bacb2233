"""What a fit to benchmark summaries may claim: errors on runs left out, spread, range, and what to
record next."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from sojourn.capacity.records import StepModel, StepSpread
from sojourn.capacity.step_turning import Turns, parts
from sojourn.capacity.sweep_runs import SweepRun
from sojourn.interval import Provenance
from sojourn.sim.finite_runs import FiniteRun
from sojourn.trace.arrays import Floats

CONFIDENCE: Final = 0.8
USUAL_GAP: Final = 0.02
USUAL_FIRST: Final = 0.06
USUAL: Final = 4.0
"""How far a run's gaps and times to first token lie from a model that is right, and how many runs
that counts for."""
FARTHEST: Final = 1.5
"""A range is told up to this logarithm only; beyond it the fit says nothing."""
OUTLIER: Final = 4.0
DECODE: Final = ("itl_mean_s", "tpot_mean_s", "tpot_p50_s")
WHOLE: Final = ("e2e_mean_s", "e2e_p50_s", "output_tokens_per_s")
FIRST: Final = ("ttft_mean_s", "ttft_p50_s")


@dataclass(frozen=True)
class Posterior:
    """The mode, and around it: covariance of the factors' logarithms; per figure: its run, its
    name, log(replayed / measured), weight (1 / noise, less for outliers), weighted derivatives."""

    model: StepModel
    start: StepModel
    turns: Turns
    covariance: Floats
    run: npt.NDArray[np.int64]
    names: tuple[str, ...]
    error: Floats
    weighted: Floats
    weight: Floats

    def left_out(self) -> Floats:
        """Errors (logarithms) of each run's figures by the solution without that run."""
        hat: Floats = self.weighted @ self.covariance @ self.weighted.T
        scaled = self.error * self.weight
        found = np.empty(len(self.error))
        for run in np.unique(self.run):
            own = self.run == run
            block = np.eye(int(own.sum())) - hat[np.ix_(own, own)]
            found[own] = np.linalg.solve(block + 1e-9 * np.eye(len(block)), scaled[own])
        return np.asarray(np.clip(found / self.weight, -FARTHEST, FARTHEST), dtype=np.float64)

    def missed(self) -> float:
        """Root mean square of the errors of runs left out, in units of their noise; each at most
        `OUTLIER`, so that one run that went wrong decides nothing."""
        size = np.abs(self.left_out()) * self.weight
        return float(np.sqrt(np.mean(np.minimum(size, OUTLIER) ** 2)))

    def scatter(self, kinds: tuple[tuple[str, ...], ...], usual: float) -> tuple[float, float]:
        """Standard deviation of the logarithm of one run's figures (of the first of `kinds` there
        is) around what the model says, and its degrees of freedom. The figures of a run go
        together, so a run counts once; `usual` counts as `USUAL` runs (inverse gamma prior)."""
        chosen = np.zeros(len(self.names), dtype=bool)
        for kind in kinds:
            if not chosen.any():
                chosen = np.array([name in kind for name in self.names])
        runs, places = np.unique(self.run[chosen], return_inverse=True)
        if not len(runs):
            return usual, USUAL
        means = np.bincount(places, self.error[chosen]) / np.bincount(places)
        rows = self.weighted[chosen]
        used = np.einsum("ij,jk,ik->", rows, self.covariance, rows) * len(runs) / len(rows)
        free = max(len(runs) - float(used), 0.0)
        squares = float((np.clip(means, -FARTHEST, FARTHEST) ** 2).sum())
        return float(np.sqrt((USUAL * usual**2 + squares) / (USUAL + free))), USUAL + free


def told_model(
    found: Posterior, runs: Sequence[SweepRun], replays: Sequence[FiniteRun]
) -> StepModel:
    """The model with what is known of it."""
    missed = found.left_out() if len(runs) > 1 else found.error
    decode = _first_named(found.names, missed, (DECODE, WHOLE))
    error = float(np.median(np.abs(np.expm1(decode)))) if len(decode) else None
    low, high = batch_range(found.model, replays)
    middle = [float(np.mean(run.inputs) + np.mean(run.outputs) / 2) for run in runs]
    contexts = [(int(run.inputs.min()), int((run.inputs + run.outputs).max())) for run in runs]
    chunks = [_chunk(run) for run in runs]
    return found.model.model_copy(
        update={
            "provenance": Provenance.FITTED,
            "source": _source(found, runs, error),
            "held_out_error": error,
            "valid_batch": (low, high),
            "valid_context": (min(c for c, _ in contexts), max(c for _, c in contexts)),
            "valid_chunk": (min(c for c, _ in chunks), max(c for _, c in chunks)),
            "spread": spread(found, float(np.mean(middle))),
            "to_narrow": to_narrow(found, runs, (low, high)),
        }
    )


def _first_named(
    names: tuple[str, ...], values: Floats, kinds: tuple[tuple[str, ...], ...]
) -> Floats:
    """The values of the first kind of figures of which there are any."""
    for kind in kinds:
        chosen = np.array([name in kind for name in names])
        if chosen.any():
            return np.asarray(values[chosen], dtype=np.float64)
    return values


def _chunk(run: SweepRun) -> tuple[int, int]:
    computed = run.inputs if run.cached is None else run.inputs - run.cached
    return max(1, int(computed.min())), max(1, min(int(computed.max()), run.max_num_batched_tokens))


def batch_range(step: StepModel, replays: Sequence[FiniteRun]) -> tuple[int, int]:
    """1st and 99th percentile over time of the decodes in flight on a replica, of all replays."""
    ends = []
    for replay in replays:
        running, lasted = replay.batches(step)
        lasted = np.where(running > 0, lasted, 0.0)
        if lasted.sum() <= 0:
            continue
        order = np.argsort(running, kind="stable")
        share = np.cumsum(lasted[order]) / lasted.sum()
        ends.append([running[order][np.searchsorted(share, q)] for q in (0.01, 0.99)])
    if not ends:
        return 1, 1
    low, high = np.min(ends, axis=0)[0], np.max(ends, axis=0)[1]
    return max(1, round(float(low))), max(1, round(float(high)))


def spread(found: Posterior, context: float) -> StepSpread:
    """80% ranges of a run's step times: the scatter of runs around the model, and how well the
    factors are known together at each batch with sequences of `context` tokens, both by the
    scatter that was seen."""
    from scipy.special import stdtrit  # noqa: PLC0415  (scipy.stats takes half a second to load)

    batches = np.array(found.model.batches, dtype=np.float64)
    contexts = batches * context * np.array(found.model.slope_s_per_token)
    rows = np.column_stack([parts(found.model, found.turns.knots, batches), contexts])
    rows /= rows.sum(axis=1, keepdims=True)
    size = rows.shape[1]
    own = np.einsum("ij,jk,ik->i", rows, found.covariance[:size, :size], rows)

    def ends(
        variance: float, kinds: tuple[tuple[str, ...], ...], usual: float
    ) -> tuple[float, float]:
        scatter, free = found.scatter(kinds, usual)
        reach = float(stdtrit(free, 0.5 + CONFIDENCE / 2))
        log = min(reach * scatter * float(np.sqrt(1 + variance / usual**2)), FARTHEST)
        return float(np.exp(-log)), float(np.exp(log))

    return StepSpread(
        confidence=CONFIDENCE,
        decode=tuple(ends(float(value), (DECODE, WHOLE), USUAL_GAP) for value in own),
        prefill=ends(float(found.covariance[size, size]), (FIRST, WHOLE), USUAL_FIRST),
    )


def to_narrow(found: Posterior, runs: Sequence[SweepRun], batch: tuple[int, int]) -> str:
    """What to record, cheapest first."""
    said: list[str] = []
    names = {name for run in runs for name in run.measured}
    if not names & set(FIRST):
        said.append("keep mean TTFT of each run: nothing tells what prompts cost")
    lengths = {round(float(np.mean(run.inputs))) for run in runs}
    if max(lengths) < 2 * min(lengths):
        said.append(
            f"one more run with prompts of some {4 * max(lengths)} tokens: all had about"
            f" {max(lengths)}, so what contexts cost is not told apart from the batch"
        )
    slots = max(run.max_num_seqs for run in runs)
    if batch[1] * 2 <= slots:
        said.append(
            f"a run at {2 * batch[1]} requests in flight or more: batches above {batch[1]} were"
            f" not seen, the engine takes {slots}"
        )
    if batch[0] >= 4:
        said.append(f"a run with one client: batches below {batch[0]} were not seen")
    if len(runs) == 1:
        said.append("a second run at another load: one run cannot be left out to test the fit")
    return "; ".join(said)


def _source(found: Posterior, runs: Sequence[SweepRun], error: float | None) -> str:
    turns = found.turns
    rises = ", ".join(
        f"x{np.exp(value):.2f} from batch {knot}"
        for knot, value in zip(turns.knots, turns.rises, strict=True)
    )
    factors = f"x{np.exp(turns.fixed):.2f} without decodes, what each adds {rises}"
    others = (
        f"contexts x{np.exp(turns.context):.2f}, prompts x{np.exp(turns.prefill):.2f},"
        f" front end {found.model.front_s * 1e3:.1f} ms"
    )
    tested = "" if error is None else f"; runs left out missed by {error:.1%}"
    return (
        f"fitted to the summaries of {len(runs)} benchmark runs by replaying them; departs from"
        f" {found.start.source}: steps {factors}; {others}{tested}"
    )
