"""What a recorded engine run tells of step times and of the front end."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sojourn.capacity import interval_times, step_log
from sojourn.capacity.calibration_front import Front, factors_at, levels
from sojourn.capacity.records import StepModel
from sojourn.capacity.step_log import StepLog
from sojourn.interval import Excuse
from sojourn.trace.arrays import Bools, Floats, Ints, floats, rows_of, whole
from sojourn.trace.engine_recording import EngineRecording

SAMPLES: Final = 200
"""Quantiles that stand for the front end's times."""


@dataclass(frozen=True)
class _Steps:
    """When all steps of a run began and ended."""

    start: Floats
    end: Floats


def steps(recording: EngineRecording) -> StepLog:
    """The steps that computed something, but for the last. A period ends where the next step
    begins: after a step that computed something the engine schedules another one at once, were it
    an empty one."""
    table = recording.steps
    start = floats(table["step_start_s"])
    log = StepLog(
        period_s=np.diff(start),
        decodes=floats(table["generation_requests"])[:-1],
        context=floats(table["generation_context"])[:-1],
        prompt=floats(table["context_tokens"])[:-1],
        attended=floats(table["context_pairs"])[:-1],
    )
    return log.take((log.decodes > 0) | (log.prompt > 0))


def step_model(recording: EngineRecording) -> StepModel | Excuse:
    """Step times fitted on the step log, the front end's times on the requests.

    The front end's time of a request is what the client sees beside queue and steps: from sending
    to the engine's input queue, and from the end of the step that made its first token to the
    first chunk at the client. The simulator spends both before the queue, so first tokens and
    ends come as the client sees them. See `front`.
    """
    found = step_log.fit(steps(recording))
    if isinstance(found, Excuse):
        return found
    host = front(recording)
    return found.model_copy(
        update={"front_s": host.mean_s, "front_samples_s": host.samples_s, "front_load": host.load}
    )


def front(recording: EngineRecording) -> Front:
    """Time before the queue plus delivery, its mean, spread and growth with load.

    The engine looks into its input between steps, so the time before the queue lies between the
    look before the one that found the request and that one (`interval_times.distribution`).
    Delivery is known exactly for requests that were never preempted. The two are taken as
    independent given the load.
    Wrong when: the engine's input thread waits for the engine (a lock both need): a part of the
    waiting for steps then counts as front end.
    """
    table = recording.requests
    log = _times(recording.steps)
    send, arrived, found_after = _arrivals(recording, log)
    known = np.isfinite(arrived)
    low, high = found_after - send, arrived - send
    places, shares = interval_times.distribution(low[known], high[known])
    before = interval_times.expected(low, high, places, shares)
    delivery = deliveries(recording)
    gone = np.searchsorted(np.sort(floats(table["end_s"])), send, side="left")
    load = np.arange(1, len(send) + 1) - gone
    usable = known & np.isfinite(delivery)
    by_load = levels((before + delivery)[usable], load[usable].astype(np.float64))
    factor = factors_at(by_load, load.astype(np.float64))
    places, shares = interval_times.distribution((low / factor)[known], (high / factor)[known])
    first = interval_times.quantiles(places, shares, SAMPLES)
    second = np.quantile((delivery / factor)[usable], (np.arange(SAMPLES) + 0.5) / SAMPLES)
    samples = np.quantile(np.add.outer(first, second), (np.arange(SAMPLES) + 0.5) / SAMPLES)
    kept = tuple(by_load) if len(by_load) > 1 else ()
    return Front(float(samples.mean()), tuple(samples.tolist()), kept)


def deliveries(recording: EngineRecording) -> Floats:
    """From the end of the step with the first token to the first chunk at the client, seconds, by
    request; NaN where the run does not tell that step (preempted before its first token)."""
    step = first_token_steps(recording)
    end = _times(recording.steps).end
    chunk = floats(recording.requests["first_chunk_s"])
    return np.where(step >= 0, chunk - end[np.maximum(step, 0)], np.nan)


def first_token_steps(recording: EngineRecording) -> Ints:
    """Number of the step that made each request's first token, -1 where unknown.

    Prompts are computed in the order of admission, one after the other: a request has its first
    token in the step in which the prompt tokens of all steps reach the sum of its own and those
    before it. Stops at the first preemption, which puts prompt tokens of others in between.
    """
    order = _admissions(recording)
    table = recording.requests
    tokens = whole(table["prompt_tokens"]) - whole(table["cached_tokens"])
    done = np.cumsum(whole(recording.steps["context_tokens"]))
    reached = np.searchsorted(done, np.cumsum(tokens[order]))
    found = np.full(table.num_rows, -1, dtype=np.int64)
    found[order] = np.where(reached < _first_preemption(recording), reached, -1)
    return found


def _first_preemption(recording: EngineRecording) -> int:
    events = recording.events
    lost = events.filter(pc.equal(events["event"], "preempt"))
    return int(whole(lost["step"]).min()) if lost.num_rows else recording.steps.num_rows


def _admissions(recording: EngineRecording) -> Ints:
    """Rows of the requests in the order of their first admission."""
    events = recording.events.filter(pc.equal(recording.events["event"], "admit"))
    rows = rows_of(events["request_id"], recording.requests["request_id"])
    return rows[rows >= 0]


def _arrivals(recording: EngineRecording, log: _Steps) -> tuple[Floats, Floats, Floats]:
    """By request: when it was sent, when the engine found it, when it had looked last."""
    table = recording.requests
    events = recording.events.filter(pc.equal(recording.events["event"], "arrive"))
    rows = rows_of(events["request_id"], table["request_id"])
    kept: Bools = rows >= 0
    arrived, after = (np.full(table.num_rows, np.nan) for _ in range(2))
    arrived[rows[kept]] = floats(events["t_s"])[kept]
    step = whole(events["step"])[kept]
    after[rows[kept]] = np.where(step >= 0, log.start[np.maximum(step, 0)], -np.inf)
    return floats(table["send_s"]), arrived, after


def _times(table: pa.Table) -> _Steps:
    start = floats(table["step_start_s"])
    return _Steps(start, start + floats(table["elapsed_s"]))
