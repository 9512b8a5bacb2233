"""What is known of a load beside its number: whether its queue settles, points of the knee."""

from __future__ import annotations

from pydantic import Field

from sojourn.interval import Interval
from sojourn.records import Record
from sojourn.sim.stability import Trend
from sojourn.units import format_share


class Settled(Record):
    """Whether the queue stays or grows at a load, as far as it was run."""

    trend: Trend
    requests: int = Field(description="Of the longest run.")
    days: int = Field(description="Repeats of the recording in it; 0: steady traffic at one rate.")
    arrival_per_s: float
    growth: Interval | None = Field(
        description="Growth of the number in flight as a share of the arrivals; None: too few."
    )
    in_flight: int = Field(description="At the last arrival.")

    def describe(self) -> str:
        """In a sentence, for people."""
        how = f"{self.requests:,} requests"
        if self.days:
            how += f" (the recording {self.days} times in a row)"
        if self.trend is Trend.STABLE:
            return f"the queue is stable over {how}"
        grown = "" if self.growth is None else f" by {self.growth.format(format_share)} of arrivals"
        if self.trend is Trend.GROWING:
            return (
                f"the queue GROWS over {how}{grown}; {self.in_flight:,} were in flight at the last"
                " arrival, and waits get longer as long as this load lasts"
            )
        return f"over {how} the queue is seen neither to stay nor to grow (it changes{grown})"


class Sustained(Record):
    """The largest steady rate with the SLO held: for as long as anyone likes."""

    rate_per_s: Interval
    settled: Settled | None = Field(description="At that rate; None: not looked at.")
    lowered: bool = Field(False, description="Shorter runs held more; longer ones did not.")
    replications: int


class KneePoint(Record):
    """One load: what is offered, what comes of it. Latencies in seconds, None where nothing ended.

    Throughput is what ended well a second, while requests arrive (put off by the median stay at
    little load); good is what of it met every target. Below the knee both follow what is offered.
    """

    load_factor: float
    offered_per_s: float
    p50_s: float | None
    p99_s: float | None
    ttft_p99_s: float | None
    attainment: float | None
    throughput_per_s: float
    good_per_s: float
