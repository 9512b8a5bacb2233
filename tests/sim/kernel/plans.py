"""Scenarios in whole numbers, built by hand: times in these tests are ticks, small and exact."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from sojourn.capacity.policies import (
    AdmissionPolicy,
    LoadMetric,
    Order,
    RouterPolicy,
    ScaleMetric,
)
from sojourn.sim.lowered import (
    ADMISSIONS,
    CALL,
    DELAY,
    METRICS,
    ORDERS,
    ROUTERS,
    SCALES,
    STATION,
    AdmissionPlan,
    ClientPlan,
    EncoderPlan,
    LadderPlan,
    Lowered,
    PoolPlan,
    Requests,
    RetryPlan,
    RungPlan,
    ScalerPlan,
    StationPlan,
    Steps,
)
from sojourn.sim.ticks import NEVER

FOREVER = 1 << 40
"""So long that no sample is taken."""


@dataclass(frozen=True)
class Todo:
    """One step of a program."""

    kind: int
    group: int
    station: int = -1
    pool: int = 0
    service: int = 0
    prompt: int = 1
    cached: int = 0
    output: int = 1
    image_tokens: int = 0
    image: int = 0
    hashes: tuple[int, ...] = ()


def visit(service, *, station=0, group=0):
    return Todo(STATION, group, station=station, service=service)


def delay(service, *, group=0):
    return Todo(DELAY, group, service=service)


def call(prompt=4, output=1, *, group=0, **more):
    return Todo(CALL, group, prompt=prompt, output=output, **more)


def ints(values):
    return np.array(list(values), dtype=np.int64)


def station(queue=0, **changes):
    plan = StationPlan(
        queue=queue, timeout=-1, stops=False, optional=False, queue_limit=-1, interval=-1,
        burst=1, samples=ints([]), drift_start=ints([]), drift_factor=np.zeros(0),
    )  # fmt: skip
    return replace(plan, **changes)


def pool(first=0, replicas=1, *, router=RouterPolicy.ROUND_ROBIN, seqs=4, **changes):
    """A step takes 10 ticks, and 1 for each prompt token."""
    budget = changes.pop("budget", 64)
    plan = PoolPlan(
        first=first, replicas=replicas, room=changes.pop("room", replicas), seqs=seqs,
        budget=budget, block=4, blocks=64, base=ints([10] * (seqs + 1)),
        slope=ints([0] * (seqs + 1)), prompt=ints(range(budget + 1)), context=0,
        front=ints([0]), order=ORDERS.index(Order.FCFS), cap=-1, full_input=True, watermark=0,
        unit=-1, accept=ints([]), router=ROUTERS.index(router), load_weight=0, prefill_pool=-1,
        transfer=0, transfer_token=0, encoder=None, scaler=None, abort=True,
        front_load=ints([]), front_factor=np.zeros(0),
    )  # fmt: skip
    return replace(plan, **changes)


def encoder(servers=1, base=100, per_token=0, cache=0):
    return EncoderPlan(servers, base, per_token, cache)


def scaler(metric=ScaleMetric.OUTSTANDING, **changes):
    plan = ScalerPlan(
        metric=SCALES.index(metric), target=1000, every=100, cold_start=50, least=1, most=3,
        after=0, tolerance=0,
    )  # fmt: skip
    return replace(plan, **changes)


def retry(**changes):
    most = changes.get("most", 1)
    plan = RetryPlan(
        timeout=-1, most=most, backoff=ints([100] * most), jitter=0.0, on_timeout=True,
        on_error=False, degrade=False, budget_gain=-1, budget_most=0,
    )  # fmt: skip
    return replace(plan, **changes)


def admission(policy, metric=LoadMetric.IN_FLIGHT, *, low=0.0, high=0.0, wait=0):
    return AdmissionPlan(ADMISSIONS.index(policy), METRICS.index(metric), low, high, wait)


def rung(above, below, **changes):
    plan = RungPlan(above, below, skip=0, output=-1, attempts=-1, shed_from=NEVER)
    return replace(plan, **changes)


def ladder(*rungs, metric=LoadMetric.IN_FLIGHT, every=100):
    return LadderPlan(METRICS.index(metric), every, rungs)


def lowered(programs, arrivals, *, stations=(), servers=(), pools=(), **changes):
    """`programs[i]` are the steps of request i, which arrives at `arrivals[i]`."""
    steps = [step for program in programs for step in program]
    lengths = [len(step.hashes) for step in steps]
    column = {name: ints(getattr(s, name) for s in steps) for name in _COLUMNS}
    pools = tuple(pools) or (pool(),)
    plan = Lowered(
        origin_s=0.0, seed=7,
        requests=Requests(
            arrival=ints(arrivals),
            identity=np.arange(1, len(programs) + 1, dtype=np.uint64),
            session=np.array(changes.pop("sessions", [0] * len(programs)), dtype=np.uint64),
            priority=ints(changes.pop("priorities", [0] * len(programs))),
            first_step=ints(np.cumsum([0, *(len(program) for program in programs)])),
        ),
        steps=Steps(
            **column, first_hash=ints(np.cumsum([0, *lengths])),
            hashes=ints(h for s in steps for h in s.hashes),
        ),
        pools=pools, pool_names=tuple(f"p{i}" for i in range(len(pools))),
        stations=tuple(stations), station_names=tuple(f"s{i}" for i in range(len(stations))),
        servers=ints(servers), retry=retry(), client=ClientPlan(-1, -1, ints([0])),
        admission=None, ladder=None, sample_every=FOREVER,
    )  # fmt: skip
    return replace(plan, **changes)


_COLUMNS = (
    "group", "kind", "station", "pool", "service", "prompt", "cached", "output", "image_tokens",
    "image",
)  # fmt: skip


def closed(clients, think=(0,)):
    return ClientPlan(clients, -1, ints(think))


def capped(cap):
    return ClientPlan(-1, cap, ints([0]))


THRESHOLD, PROBABILISTIC, PREDICTED_MISS = (
    AdmissionPolicy.THRESHOLD, AdmissionPolicy.PROBABILISTIC, AdmissionPolicy.PREDICTED_MISS,
)  # fmt: skip


def rows(table, *names):
    """Fields of a log's rows, as tuples."""
    return [tuple(row[name].item() for name in names) for row in table]
