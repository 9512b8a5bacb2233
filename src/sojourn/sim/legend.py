"""What the numbers of a log mean: names of replicas and stations, first steps, units of time.

A `Legend` is what is kept of a `Lowered` once its run is over: 8 bytes a request.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import numpy as np

from sojourn.sim.lowered import Ints, Lowered


@dataclass(frozen=True, eq=False)
class Legend:
    """Names and sizes by number.

    `first_step[r]`: first step of request r among the stream's. `replicas` are named over all
    pools, the pool's name in front where there are several. `blocks`: KV blocks by replica.
    `moves`: by pool, whether its prompts are computed elsewhere. `sample_every` in ticks.
    """

    origin_s: float
    first_step: Ints
    stations: tuple[str, ...]
    replicas: tuple[str, ...]
    blocks: Ints
    moves: tuple[bool, ...]
    sample_every: int

    @classmethod
    def of(cls, lowered: Lowered) -> Self:
        """Of the scenario that was run."""
        pools = list(zip(lowered.pool_names, lowered.pools, strict=True))
        several = len(pools) > 1
        return cls(
            origin_s=lowered.origin_s,
            first_step=lowered.requests.first_step,
            stations=lowered.station_names,
            replicas=tuple(
                f"{name}/{k}" if several else str(k)
                for name, pool in pools
                for k in range(pool.room)
            ),
            blocks=np.repeat([p.blocks for _, p in pools], [p.room for _, p in pools]),
            moves=tuple(pool.prefill_pool >= 0 for _, pool in pools),
            sample_every=lowered.sample_every,
        )
