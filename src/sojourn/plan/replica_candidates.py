"""Accelerators and layouts that could serve a model: which fit, what one replica carries, by the
closed form."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from sojourn.capacity.catalogue import Gpu
from sojourn.capacity.demand import Demand
from sojourn.capacity.engine_limits import curve_of, engine_limits
from sojourn.capacity.records import EngineModel, Fleet
from sojourn.capacity.step_moves import Hardware, moved_engine
from sojourn.interval import Excuse
from sojourn.plan.capacity_records import Unfit

DEGREES: Final = (1, 2, 4, 8)
"""Tensor-parallel degrees of one node."""


@dataclass(frozen=True)
class Candidate:
    """One replica of an accelerator and layout. `closed_per_s`: attempts a second at which its
    tightest limit is full; `usd_per_hour`: of one replica, None where no price is known."""

    hardware: Hardware
    engine: EngineModel
    closed_per_s: float
    usd_per_hour: float | None

    @property
    def gpu(self) -> str:
        """Catalogue name."""
        return self.hardware.gpu.name

    @property
    def degree(self) -> int:
        """Tensor-parallel degree."""
        return self.hardware.deployment.tensor_parallel


@dataclass(frozen=True)
class Today:
    """The fleet there is: its hardware as sojourn.yaml names it, its fleet, what a request asks."""

    hardware: Hardware
    fleet: Fleet
    asked: Demand


def candidates(today: Today, gpus: Sequence[Gpu]) -> tuple[list[Candidate], list[Unfit]]:
    """Every accelerator in each layout whose memory holds the model; and those that hold it in
    none, each once."""
    found: list[Candidate] = []
    unfit: list[Unfit] = []
    for gpu in gpus:
        reasons: list[Unfit] = []
        some = False
        for degree in DEGREES:
            made = _candidate(today, gpu, degree)
            if isinstance(made, Excuse):
                reasons.append(Unfit(gpu=gpu.name, tensor_parallel=degree, excuse=made))
            else:
                found.append(made)
                some = True
        if not some:
            unfit.append(reasons[-1])
    return found, unfit


def _candidate(today: Today, gpu: Gpu, degree: int) -> Candidate | Excuse:
    model, engine = today.hardware.model, today.fleet.engine
    if model.hidden_size % degree or model.intermediate_size % degree:
        return Excuse(reason=f"{model.name} cannot be split over {degree} accelerators")
    layout = {"tensor_parallel": degree, "pipeline_parallel": 1, "data_parallel": 1}
    after = today.hardware.changed(gpu, **layout)
    moved = moved_engine(engine, today.hardware, after, quick=True)
    if isinstance(moved, Excuse):
        return moved
    return _sized(today, after, moved)


def _sized(today: Today, after: Hardware, moved: EngineModel) -> Candidate:
    slots = after.deployment.max_num_seqs  # of a whole replica: no pipeline shares them here
    budget = max(after.deployment.max_num_batched_tokens, slots)
    update = {"replicas": 1, "max_num_seqs": slots, "max_num_batched_tokens": budget}
    one = moved.model_copy(update=update)
    limits = engine_limits(one, today.asked, curve_of(one, today.asked))
    closed = min(limit.attempts_per_s for limit in limits) / today.asked.calls
    return Candidate(after, one, closed, _price(today, after))


def refined(today: Today, item: Candidate) -> Candidate | Excuse:
    """The same with step times of the best source that covers it; candidates come with those of
    the quickest, which rank a hundred layouts in a second."""
    moved = moved_engine(today.fleet.engine, today.hardware, item.hardware)
    return moved if isinstance(moved, Excuse) else _sized(today, item.hardware, moved)


def _price(today: Today, after: Hardware) -> float | None:
    """Of one replica an hour: sojourn.yaml's for today's layout, else the catalogue's."""
    now = today.hardware
    own = now.deployment.usd_per_replica_hour
    if own is not None and after.gpu.name == now.gpu.name:
        return own * after.gpus / now.gpus
    price = after.gpu.usd_per_hour
    return None if price is None else price * after.gpus
