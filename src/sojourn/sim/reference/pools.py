"""A pool of replicas: its router, its autoscaler, and how fast its queue moves (rule book:
"Routers", "Autoscaler", "Admission")."""

from __future__ import annotations

from typing import Final

from sojourn.capacity.policies import RouterPolicy, ScaleMetric
from sojourn.sim.log import DRAINING as LOG_DRAINING
from sojourn.sim.log import NONE, READY
from sojourn.sim.log import STARTING as LOG_STARTING
from sojourn.sim.log import STOPPED as LOG_STOPPED
from sojourn.sim.lowered import ROUTERS, SCALES, PoolPlan, ScalerPlan
from sojourn.sim.reference.engine import ACTIVE, DRAINING, STARTING, STOPPED, Replica
from sojourn.sim.reference.events import CONTROL, READY_KEY, Events
from sojourn.sim.reference.journal import Journal
from sojourn.sim.reference.sequence import Sequence

ROUND_ROBIN, LEAST_LOADED, PREFIX_AWARE, SESSION = (
    ROUTERS.index(r)
    for r in (
        RouterPolicy.ROUND_ROBIN,
        RouterPolicy.LEAST_LOADED,
        RouterPolicy.PREFIX_AWARE,
        RouterPolicy.SESSION,
    )
)
WAITING, RUNNING, OUTSTANDING = (
    SCALES.index(m) for m in (ScaleMetric.WAITING, ScaleMetric.RUNNING, ScaleMetric.OUTSTANDING)
)
GAP_SHIFT: Final = 3
"""A new gap counts an eighth."""


class Pool:
    """Replicas of one kind behind a router."""

    def __init__(self, events: Events, plan: PoolPlan, journal: Journal) -> None:
        self.plan = plan
        self.replicas = [Replica(events, plan, plan.first + i, self) for i in range(plan.room)]
        for replica in self.replicas[plan.replicas :]:
            replica.state = STOPPED
        self.gap = 0
        """Mean time between two admissions from the queue. 0 as long as there is none."""
        self._gap_known = False
        self._last_scheduled = NONE
        self._last_chosen = NONE
        self._events = events
        self._journal = journal

    @property
    def active(self) -> list[Replica]:
        """Replicas that calls are routed to."""
        return [r for r in self.replicas if r.state == ACTIVE]

    @property
    def waiting(self) -> int:
        """Sequences that wait, over all replicas."""
        return sum(len(r.waiting) for r in self.replicas)

    # The router

    def route(self, sequence: Sequence, session: int) -> Replica:
        """The replica of a call, which is counted in its load from now on."""
        policy = self.plan.router
        active = self.active
        if policy == LEAST_LOADED:
            chosen = min(active, key=lambda r: (r.load, r.number))
        elif policy == PREFIX_AWARE:
            chosen = min(active, key=lambda r: (-self._worth(r, sequence), r.load, r.number))
        elif policy == SESSION and session:
            chosen = active[session % len(active)]
        else:
            chosen = self._next(active)
        chosen.load += 1
        return chosen

    def _worth(self, replica: Replica, sequence: Sequence) -> int:
        hit = replica.blocks.hit(sequence).tokens
        return 1000 * hit - self.plan.load_weight * replica.load

    def _next(self, active: list[Replica]) -> Replica:
        later = [r for r in active if r.number > self._last_chosen]
        chosen = (later or active)[0]
        self._last_chosen = chosen.number
        return chosen

    # What replicas tell

    def scheduled(self, *, waited: bool) -> None:
        """A sequence was scheduled for the first time in this pool: the mean gap moves on."""
        now, last = self._events.now, self._last_scheduled
        self._last_scheduled = now
        if not waited or last == NONE:
            return
        if self._gap_known:
            self.gap += (now - last - self.gap) >> GAP_SHIFT
        else:
            self.gap, self._gap_known = now - last, True

    def emptied(self, replica: Replica) -> None:
        """A draining replica stops when its load is 0."""
        if replica.state == DRAINING:
            self._become(replica, STOPPED, LOG_STOPPED)

    # The states of replicas

    def start(self, replica: Replica, cold_start: int) -> None:
        """A stopped replica starts."""
        self._become(replica, STARTING, LOG_STARTING)
        key = (READY_KEY + replica.number,)
        self._events.at(self._events.now + cold_start, CONTROL, key, lambda: self.activate(replica))

    def activate(self, replica: Replica) -> None:
        """A replica is ready, or drains no longer."""
        self._become(replica, ACTIVE, READY)

    def drain(self, replica: Replica) -> None:
        """A replica gets no more calls, and stops when it has none."""
        self._become(replica, DRAINING, LOG_DRAINING)
        if not replica.load:
            self.emptied(replica)

    def _become(self, replica: Replica, state: int, what: int) -> None:
        replica.state = state
        self._journal.changes.append((self._events.now, what, replica.number))


class Scaler:
    """The autoscaler of a pool."""

    def __init__(self, events: Events, pool: Pool, plan: ScalerPlan) -> None:
        self._events = events
        self._pool = pool
        self._plan = plan
        self._less_since = NONE

    def look(self) -> None:
        """Compare what there is with what is wanted, and act."""
        active = self._pool.active
        starting = [r for r in self._pool.replicas if r.state == STARTING]
        current = len(active) + len(starting)
        desired = self._desired(active, current)
        if desired < current:
            self._fewer(active, current - desired)
            return
        self._less_since = NONE
        if desired > current:
            self._more(desired - current)

    def _desired(self, active: list[Replica], current: int) -> int:
        plan = self._plan
        total = sum(self._metric(r) for r in active)
        wanted = plan.target * len(active)
        if abs(total - wanted) * 1000 <= plan.tolerance * wanted:
            return current
        return min(max(-(-total // plan.target), plan.least), plan.most)

    def _metric(self, replica: Replica) -> int:
        """In thousandths."""
        metric = self._plan.metric
        if metric == WAITING:
            return 1000 * len(replica.waiting)
        if metric == RUNNING:
            return 1000 * len(replica.running)
        if metric == OUTSTANDING:
            return 1000 * replica.load
        return 1000 * replica.blocks.used // replica.blocks.total

    def _more(self, count: int) -> None:
        pool = self._pool
        draining = [r for r in pool.replicas if r.state == DRAINING][:count]
        for replica in draining:
            pool.activate(replica)
        stopped = [r for r in pool.replicas if r.state == STOPPED]
        for replica in stopped[: count - len(draining)]:
            pool.start(replica, self._plan.cold_start)

    def _fewer(self, active: list[Replica], count: int) -> None:
        now = self._events.now
        if self._less_since == NONE:
            self._less_since = now
        if now - self._less_since < self._plan.after:
            return
        self._less_since = now
        for replica in active[::-1][: min(count, len(active) - 1)]:
            self._pool.drain(replica)
