"""A recording as the workload of a scenario: as it was, or its calls sent through another chain."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pyarrow.compute as pc

from sojourn.config import Config
from sojourn.errors import InputError
from sojourn.sim.scenario_chain import Chain
from sojourn.sim.scenario_records import RequestClass, ScenarioFile
from sojourn.sim.scenario_requests import Crowd
from sojourn.sim.scenario_stream import programs
from sojourn.trace.arrays import whole
from sojourn.trace.tables import Tables
from sojourn.workload.profile_records import StepKind
from sojourn.workload.scaling import scale
from sojourn.workload.stream import Stream
from sojourn.workload.variates import fixed


@dataclass(frozen=True)
class Recording:
    """What `workload.replay` names: its tables, its requests as a stream, and what its own
    sojourn.yaml says of the fleet."""

    tables: Tables
    stream: Stream
    config: Config = field(default_factory=Config)


def through(file: ScenarioFile, chain: Chain, recording: Recording, seed: int) -> Stream:
    """The recorded requests at `workload.load` times their rate. With a `chain` in the file each
    request takes its steps, the calls with the tokens of the recorded call.

    Raises:
        InputError: no request is left, a call goes to a pool that is not there, or there is a
            chain and requests are not one model call each.
    """
    stream = scale(recording.stream, file.workload.load, seed=seed)
    if stream.requests.num_rows == 0:
        raise InputError(
            "no request is left", field="workload.load", todo="Raise it, or replay another file"
        )
    if not file.chain:
        return stream
    steps = stream.steps
    calls = steps.filter(pc.equal(steps.column("kind"), StepKind.CALL.value))
    visits = pc.sum(pc.equal(steps.column("kind"), StepKind.STATION.value)).as_py()
    each = np.bincount(calls.column("request").to_numpy(), minlength=stream.requests.num_rows)
    if visits or (each != 1).any():
        raise InputError(
            "the recorded requests have steps of their own (stations, or not one model call each)",
            field="chain",
            todo="Take `chain` out to replay them as they were, or replay a trace of single calls",
        )
    count = stream.requests.num_rows
    zero = np.zeros(count, dtype=np.int64)
    crowd = Crowd(
        name="replay",
        ids=(zero, zero),
        arrival=stream.requests.column("arrival_s").to_numpy(),
        conversation=np.arange(count),
        fresh=np.maximum(whole(calls.column("input_tokens")), 1),
        output=np.maximum(whole(calls.column("output_tokens")), 1),
        prefix=zero,
        group=np.zeros(count, np.uint64),
        image_tokens=zero,
        image=zero,
        tenant=zero,
    )
    kind = RequestClass(name="replay", input_tokens=fixed(1), output_tokens=fixed(1))
    return Stream(stream.requests, programs(file, chain, kind, crowd, seed))
