"""`CapacityAnswer`: how much the fleet takes, for how long, what moves it, what would be enough."""

from __future__ import annotations

from pydantic import Field

from sojourn.capacity.records import CapacityModel
from sojourn.interval import Excuse, Interval
from sojourn.plan.holding_records import Settled, Sustained
from sojourn.plan.records import Holding
from sojourn.records import Record


class FlagMove(Record):
    """What one flag does to the load held, today's pattern, other things equal.

    `change` is relative, paired seed by seed; its interval holds 0 where the flag changes nothing
    that the runs can tell.
    """

    flag: str
    now: str
    then: str
    change: Interval | Excuse
    note: str = ""

    @property
    def none(self) -> bool:
        """Whether no change is seen."""
        return isinstance(self.change, Interval) and self.change.contains(0.0)


class ReplicaOption(Record):
    """Replicas of one accelerator and layout that carry the target, with what they cost.

    `replicas` is for the middle of the step times and holds the headroom; `replicas_low` and
    `replicas_high` are those for steps as fast and as slow as their spread allows (equal where
    no spread is known). Prices are the catalogue's indications, or sojourn.yaml's.
    """

    gpu: str
    tensor_parallel: int
    gpus_per_replica: int
    per_replica_per_s: Interval
    replicas: int
    replicas_low: int
    replicas_high: int
    headroom: float = Field(description="1 - target / what so many replicas hold.")
    simulated: bool = Field(description="Else the closed form, scaled by what was simulated.")
    confirmed: Settled | None = Field(
        None, description="The whole of them, run at the target rate; None: not run."
    )
    usd_per_hour: float | None
    usd_per_million_tokens: float | None = Field(None, description="Read and written ones.")
    usd_per_success: float | None = None
    source: str
    note: str = ""


class Unfit(Record):
    """An accelerator and layout that cannot serve the target, and why."""

    gpu: str
    tensor_parallel: int
    excuse: Excuse


class StationNeed(Record):
    """Workers that a station outside the engine needs at the target rate."""

    name: str
    now: int
    needed: int


class ReplicaPlan(Record):
    """Which accelerators, and how many, carry a target rate within the SLO; cheapest first."""

    target_per_s: float
    headroom: float = Field(description="Added to the target when replicas are counted.")
    options: tuple[ReplicaOption, ...]
    unfit: tuple[Unfit, ...] = ()
    stations: tuple[StationNeed, ...] = Field((), description="Short of the target today.")
    notes: tuple[str, ...] = ()


class CapacityAnswer(Record):
    """The whole answer of `sojourn capacity`."""

    model: CapacityModel
    holding: Holding | Excuse = Field(description="At today's pattern, its peaks included.")
    sustained: Sustained | Excuse = Field(description="At one rate for ever.")
    flags: tuple[FlagMove, ...] = ()
    replicas: ReplicaPlan | Excuse | None = Field(None, description="None: no target was named.")
    traps: tuple[str, ...] = Field((), description="What these figures are often mistaken for.")
    warnings: tuple[str, ...] = Field(
        (), description="Settings that contradict each other or are likely in another unit."
    )
