"""The gateway and what is looked at now and then: ladder, admission, retry budget, samples (rule
book: "Controllers", "Samples")."""

from __future__ import annotations

from collections.abc import Callable

from sojourn.capacity.policies import AdmissionPolicy, LoadMetric
from sojourn.sim.log import LEVEL
from sojourn.sim.lowered import ADMISSIONS, CALL, METRICS, AdmissionPlan, LadderPlan, Lowered
from sojourn.sim.luck import SHED, draw, uniform
from sojourn.sim.reference.engine import STOPPED
from sojourn.sim.reference.events import CONTROL, LADDER_KEY, SAMPLE, SCALER_KEY, Events
from sojourn.sim.reference.journal import Journal
from sojourn.sim.reference.pools import Pool, Scaler
from sojourn.sim.ticks import NEVER

IN_FLIGHT = METRICS.index(LoadMetric.IN_FLIGHT)
THRESHOLD, PROBABILISTIC = (
    ADMISSIONS.index(p) for p in (AdmissionPolicy.THRESHOLD, AdmissionPolicy.PROBABILISTIC)
)
RETRY = 1000
"""A whole retry, in the thousandths of the budget."""


class Traffic:
    """Requests begun and not ended (`in_flight`), and those not ended (`left`)."""

    def __init__(self, requests: int) -> None:
        self.in_flight = 0
        self.left = requests


class Load:
    """The metrics that ladder and admission look at."""

    def __init__(self, traffic: Traffic, pools: list[Pool]) -> None:
        self._traffic = traffic
        self._pools = pools

    def metric(self, which: int) -> float:
        """Requests in flight, or sequences that wait per active replica."""
        if which == IN_FLIGHT:
            return float(self._traffic.in_flight)
        active = [replica for pool in self._pools for replica in pool.active]
        return sum(len(r.waiting) for r in active) / len(active)


class Ladder:
    """The degrade ladder. Rungs 0..level-1 are in force."""

    def __init__(self, plan: LadderPlan | None, events: Events, journal: Journal) -> None:
        self.level = 0
        self._plan = plan
        self._events = events
        self._journal = journal
        self._rungs = plan.rungs if plan else ()

    def look(self, load: Load) -> None:
        """Climb or descend one rung."""
        if self._plan is None:
            return
        metric = load.metric(self._plan.metric)
        if self.level < len(self._rungs) and metric >= self._rungs[self.level].above:
            self._move(+1)
        elif self.level > 0 and metric < self._rungs[self.level - 1].below:
            self._move(-1)

    def _move(self, by: int) -> None:
        self.level += by
        self._journal.changes.append((self._events.now, LEVEL, self.level))

    def skips(self, station: int) -> bool:
        """Whether a station is left out now."""
        return any(rung.skip >> station & 1 for rung in self._rungs[: self.level])

    def output(self, wanted: int) -> int:
        """Output tokens of a call."""
        return min([wanted, *(r.output for r in self._rungs[: self.level] if r.output >= 0)])

    def attempts(self, allowed: int) -> int:
        """Attempts of a request."""
        return min([allowed, *(r.attempts for r in self._rungs[: self.level] if r.attempts >= 0)])

    @property
    def shed_from(self) -> int:
        """The lowest priority number that is shed."""
        return min([NEVER, *(rung.shed_from for rung in self._rungs[: self.level])])


class Gateway:
    """What decides on attempts: whether one begins, and whether another may follow."""

    def __init__(self, plan: Lowered, ladder: Ladder, load: Load, pools: list[Pool]) -> None:
        self.ladder = ladder
        self._plan = plan
        self._load = load
        self._pools = pools
        self._budget = plan.retry.budget_most

    def sheds(self, row: int, attempt: int) -> bool:
        """The ladder first, then admission."""
        if self._plan.requests.priority[row] >= self.ladder.shed_from:
            return True
        admission = self._plan.admission
        return admission is not None and self._refuses(admission, row, attempt)

    def _refuses(self, admission: AdmissionPlan, row: int, attempt: int) -> bool:
        if admission.policy == THRESHOLD:
            return self._load.metric(admission.metric) >= admission.high
        if admission.policy == PROBABILISTIC:
            identity = self._plan.requests.identity[row]
            luck = uniform(draw(self._plan.seed, identity, attempt, 0, SHED))
            over = self._load.metric(admission.metric) - admission.low
            return luck < over / (admission.high - admission.low)
        pool = self._first_pool(row)
        return pool is not None and pool.waiting * pool.gap > admission.wait

    def _first_pool(self, row: int) -> Pool | None:
        """The pool of the request's first call."""
        first, end = self._plan.requests.first_step[row : row + 2]
        steps = self._plan.steps
        for step in range(first, end):
            if steps.kind[step] == CALL:
                return self._pools[int(steps.pool[step])]
        return None

    def succeeded(self) -> None:
        """The retry budget gains."""
        retry = self._plan.retry
        if retry.budget_gain >= 0:
            self._budget = min(self._budget + retry.budget_gain, retry.budget_most)

    def grants_retry(self, attempt: int) -> bool:
        """Whether one more may follow after this attempt; if so the budget has paid."""
        retry = self._plan.retry
        if attempt + 1 >= self.ladder.attempts(retry.most):
            return False
        if retry.budget_gain < 0:
            return True
        if self._budget < RETRY:
            return False
        self._budget -= RETRY
        return True


class Clocks:
    """What happens every so often: ladder, autoscalers, samples."""

    def __init__(self, events: Events, traffic: Traffic, pools: list[Pool]) -> None:
        self._events = events
        self._traffic = traffic
        self._pools = pools

    def start(self, plan: Lowered, ladder: Ladder, load: Load, journal: Journal) -> None:
        """Set the first time of each."""
        if plan.ladder is not None:
            self._every(plan.ladder.every, CONTROL, LADDER_KEY, lambda: ladder.look(load))
        for place, pool in enumerate(self._pools):
            if pool.plan.scaler is not None:
                look = Scaler(self._events, pool, pool.plan.scaler).look
                self._every(pool.plan.scaler.every, CONTROL, SCALER_KEY + place, look)
        self._every(plan.sample_every, SAMPLE, 0, lambda: self._sample(journal))

    def _every(self, ticks: int, kind: int, key: int, action: Callable[[], None]) -> None:
        """Every `ticks` from the origin; after each time the next is set while a request is in
        flight or to come."""

        def turn() -> None:
            action()
            self._every(ticks, kind, key, action)

        if self._traffic.left:
            self._events.at(self._events.now + ticks, kind, (key,), turn)

    def _sample(self, journal: Journal) -> None:
        """One row per replica that is not stopped, by number."""
        for replica in (r for pool in self._pools for r in pool.replicas if r.state != STOPPED):
            total = replica.total
            journal.samples.append(
                (
                    self._events.now, replica.busy, total.prompt, total.written, total.hit,
                    total.query, total.preemptions, replica.blocks.used, len(replica.running),
                    len(replica.waiting), replica.number,
                )
            )  # fmt: skip
