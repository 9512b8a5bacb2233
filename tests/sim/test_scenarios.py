"""The random scenarios do what they are for: every rule has an effect in some of them.

Effects that a log does not show (an eviction, a hit of a preempted call's own tail) are counted
where they happen in the reference.
"""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import numpy as np
import pytest
from tests.sim.making import log_of
from tests.sim.scenarios import random_scenario

from sojourn.capacity.policies import Order, RouterPolicy, ScaleMetric
from sojourn.sim.log import (
    CANCELLED,
    DRAINING,
    ERROR,
    FIRST_SKIP,
    LEVEL,
    NONE,
    OK,
    PARTIAL_ANSWER,
    READY,
    SHED,
    SHORT_ANSWER,
    STARTING,
    STOPPED,
    TIMEOUT,
)
from sojourn.sim.reference.engine import Replica
from sojourn.sim.reference.prefix import PrefixBlocks
from sojourn.sim.reference.sequence import Batch
from sojourn.workload.profile_records import StepKind

SEEDS = range(300)
STATUSES = {
    "ok": OK, "error": ERROR, "timeout": TIMEOUT, "cancelled": CANCELLED, "shed": SHED,
}  # fmt: skip
CHANGES = {
    "starting": STARTING, "ready": READY, "draining": DRAINING, "stopped": STOPPED, "level": LEVEL,
}  # fmt: skip


def test_a_seed_gives_one_scenario():
    one, other = random_scenario(7), random_scenario(7)
    assert one.stream.requests.equals(other.stream.requests)
    assert one.stream.steps.equals(other.stream.steps)
    assert (one.fleet, one.seed) == (other.fleet, other.seed)
    assert not one.stream.steps.equals(random_scenario(8).stream.steps)


class Seen:
    """How often each effect was seen."""

    def __init__(self, patch) -> None:
        self.counts = Counter()
        self._spy(patch, PrefixBlocks, "_evict", self._evicted)
        self._spy(patch, PrefixBlocks, "admit", lambda s, a, r: None, before=self._admitted)
        self._spy(patch, PrefixBlocks, "leave", lambda s, a, r: None, before=self._left)
        self._spy(patch, Batch, "drop", lambda s, a, r: None, before=self._dropped)
        self._spy(patch, Replica, "give_up", lambda s, a, r: self.count("given up in the engine"))

    def count(self, what: str, times: int = 1) -> None:
        self.counts[what] += int(times)

    def _spy(self, patch, owner, name, after, *, before=lambda s, a: None) -> None:
        real = getattr(owner, name)

        def spying(this, *args):
            before(this, args)
            result = real(this, *args)
            after(this, args, result)
            return result

        patch.setattr(owner, name, spying)

    def _evicted(self, blocks, args, freed) -> None:
        self.count("block evicted", freed)
        self.count("hash evicted whole for less", freed > args[0])

    def _admitted(self, blocks, args) -> None:
        sequence, hit = args
        self.count(
            "kept hash used again", any(not blocks.users[h] for h in sequence.hashes[: hit.hashes])
        )
        self.count("block shared", hit.shared)
        if sequence.tail is not None and sequence.tail.blocks:
            whole = hit.blocks - hit.hashes * blocks.unit
            self.count("own tail hit", whole > 0)
            self.count(
                "own tail behind more hashes than registered", hit.hashes > sequence.registered
            )

    def _left(self, blocks, args) -> None:
        sequence, why = args
        registered = min(sequence.computed, sequence.prompt) // (blocks.unit * blocks.block)
        beyond = sequence.computed // (blocks.unit * blocks.block) > registered
        self.count("written hash", beyond and len(sequence.hashes) > registered and not why)
        self.count("registering ended", not sequence.registering and sequence.blocks > 0)

    def _dropped(self, batch, args) -> None:
        victim = args[0]
        self.count("victim out of the batch", victim in batch.decodes)

    def log(self, made, log) -> None:
        """What a run's log shows."""
        self._ends(log)
        self._visits(log, made)
        self._calls(log, made)
        self._client(log, made)
        for name, what in CHANGES.items():
            self.count(f"change {name}", (log.changes["what"] == what).sum())
        levels = log.changes["which"][log.changes["what"] == LEVEL]
        self.count("ladder down", (np.diff(levels) < 0).any())

    def _ends(self, log) -> None:
        for name, status in STATUSES.items():
            for table in ("ends", "calls", "visits", "attempts"):
                rows = getattr(log, table)
                self.count(f"{table} {name}", (rows["status"] == status).sum())
        degraded = log.ends["degraded"].tolist()
        self.count("partial answer", any(d >> PARTIAL_ANSWER & 1 for d in degraded))
        self.count("short answer", any(d >> SHORT_ANSWER & 1 for d in degraded))
        self.count("station left out", any(d >> FIRST_SKIP for d in degraded))
        self.count("backoff", (log.attempts["backoff"] > 0).sum())
        self.count("backoff of 0", (log.attempts["backoff"] == 0).sum())

    def _visits(self, log, made) -> None:
        visits = log.visits
        waited = visits["started"] > visits["entered"]
        self.count("visit waited", waited.sum())
        never = visits["started"] == NONE
        self.count("visit refused", (never & (visits["status"] == ERROR)).sum())
        self.count("visit given up waiting", (never & (visits["status"] == CANCELLED)).sum())
        self.count("visit timed out waiting", (never & (visits["status"] == TIMEOUT)).sum())
        self.count("visit timed out served", (~never & (visits["status"] == TIMEOUT)).sum())
        self.count("visit of no time", (visits["ended"] == visits["started"]).sum())
        self.count("delay", (visits["station"] == NONE).sum())
        retried = (visits["attempt"] > 0) & (visits["station"] != NONE)
        drifting = any(s.drift for s in made.fleet.stations.values())
        self.count("retried visit", retried.sum())
        self.count("retried visit under drift", drifting and retried.sum())

    def _calls(self, log, made) -> None:
        calls = log.calls
        for name, field in (("transfer", "moved"), ("encoding", "encode")):
            self.count(name, (calls[field] != NONE).sum())
        self.count("image hit", self._image_hits(calls, made))
        self.count("encoder queue", (calls["encode_start"] > calls["encode"]).sum())
        self.count("given up moving", self._between(calls, "first", "moved", made))
        self.count("refused call", ((calls["status"] == ERROR) & (calls["replica"] == NONE)).sum())
        self.count("preemption", calls["preemptions"].sum())
        self.count("waited for the engine", (calls["scheduled"] > calls["queued"]).sum())
        self.count("token cached", calls["cached"].sum())
        for pool, engine in enumerate((made.fleet.engine, *made.fleet.pools.values())):
            mine = calls[calls["pool"] == pool]
            self._pool(mine, engine)

    def _pool(self, mine, engine) -> None:
        preempted = mine["preemptions"].sum()
        for order in Order:
            if engine.scheduler.order == order:
                self.count(f"preemption {order}", preempted)
        for policy in RouterPolicy:
            if engine.router.policy == policy and engine.replicas > 1:
                self.count(f"router {policy}", len(set(mine["replica"].tolist())) > 1)
        if engine.prefill is not None:
            self.count(
                "preemption after a transfer", (preempted > 0 and mine["resumed"] != NONE).sum()
            )
        if engine.speculative is not None:
            self.count("drafted call", len(mine))
            self.count("preemption of drafted", preempted)
        if engine.prefix_cache is not None:
            units = engine.prefix_cache.tokens_per_hash // engine.block_size
            self.count(f"hit of unit {units}", mine["cached"].sum())

    def _client(self, log, made) -> None:
        client, retry = made.fleet.client, made.fleet.retry
        started = log.attempts[log.attempts["attempt"] == 0]
        first = dict(zip(started["request"].tolist(), started["started"].tolist(), strict=True))
        late = sum(first.get(r, a) > a for r, a in enumerate(log.ends["arrival"].tolist()))
        self.count("held back at the client", late)
        self.count("closed loop", client.closed_loop is not None and len(log.ends) > 3)
        failed = log.attempts["status"] == ERROR
        self.count("error tried again", (failed & (log.attempts["backoff"] != NONE)).sum())
        if client.retry_budget_per_success is not None and retry.max_attempts > 1:
            denied = (log.attempts["status"] == TIMEOUT) & (log.attempts["backoff"] == NONE)
            early = log.attempts["attempt"] + 1 < retry.max_attempts
            if retry.retry_on_timeout and not retry.degrade_on_timeout and not made.fleet.ladder:
                self.count("retry denied by the budget", (denied & early).sum())
        if made.fleet.admission is not None and made.fleet.ladder is None:
            self.count(f"shed {made.fleet.admission.policy}", (log.ends["status"] == SHED).sum())
        if made.fleet.ladder is not None and made.fleet.admission is None:
            self.count("shed by the ladder", (log.ends["status"] == SHED).sum())
        for engine in (made.fleet.engine, *made.fleet.pools.values()):
            for metric in ScaleMetric:
                if engine.autoscaler is not None and engine.autoscaler.metric == metric:
                    self.count(f"scaled by {metric}", (log.changes["what"] != LEVEL).sum())
        arrivals = np.sort(log.ends["arrival"])
        self.count("equal arrivals", any(a == b for a, b in pairwise(arrivals.tolist())))

    def _image_hits(self, calls, made) -> int:
        """An encoder that takes time, and an encoding that took none."""
        engines = (made.fleet.engine, *made.fleet.pools.values())
        if any(e.encoder is not None and e.encoder.base_s == 0 for e in engines):
            return 0
        at_once = (calls["encode"] != NONE) & (calls["encode_start"] == calls["encode"])
        return int((at_once & (calls["queued"] == calls["encode"])).sum())

    def _between(self, calls, before, after, made) -> int:
        """Calls given up after one mark and before the next, where the pool has both."""
        pools = [None, *made.fleet.pools.values()]
        moving = [p is not None and p.prefill is not None for p in pools]
        given_up = (calls["status"] == CANCELLED) & (calls[before] != NONE)
        return int((given_up & (calls[after] == NONE) & np.array(moving)[calls["pool"]]).sum())


EXPECTED = [
    *(f"ends {s}" for s in ("ok", "error", "timeout", "shed")),
    *(f"calls {s}" for s in ("ok", "error", "cancelled")),
    *(f"visits {s}" for s in ("ok", "error", "timeout", "cancelled")),
    *(f"attempts {s}" for s in ("ok", "error", "timeout", "shed")),
    *(f"change {name}" for name in CHANGES), "ladder down",
    "partial answer", "short answer", "station left out", "backoff", "backoff of 0",
    "visit waited", "visit refused", "visit given up waiting", "visit timed out waiting",
    "visit timed out served", "visit of no time", "delay", "retried visit",
    "retried visit under drift", "transfer", "encoding", "image hit", "encoder queue",
    "given up moving", "given up in the engine", "refused call", "preemption",
    "waited for the engine", "token cached", *(f"preemption {order}" for order in Order),
    *(f"router {policy}" for policy in RouterPolicy), "preemption after a transfer",
    "drafted call", "preemption of drafted", "hit of unit 1", "hit of unit 2",
    "held back at the client", "closed loop", "error tried again", "retry denied by the budget",
    "shed threshold", "shed probabilistic", "shed predicted_miss", "shed by the ladder",
    *(f"scaled by {metric}" for metric in ScaleMetric), "equal arrivals",
    "block evicted", "hash evicted whole for less", "kept hash used again", "block shared",
    "own tail hit", "own tail behind more hashes than registered",
    "written hash", "registering ended", "victim out of the batch",
]  # fmt: skip


def test_every_rule_has_an_effect_in_some_scenario(monkeypatch):
    seen = Seen(monkeypatch)
    kinds = set()
    for seed in SEEDS:
        made = random_scenario(seed)
        kinds |= set(made.stream.steps.column("kind").to_pylist())
        seen.log(made, log_of(made))
    assert kinds == {k.value for k in StepKind}
    missing = [what for what in EXPECTED if not seen.counts[what]]
    assert not missing, f"in {len(SEEDS)} scenarios nothing of: {missing}"


@pytest.mark.parametrize("what", ["ends", "calls", "visits", "attempts", "samples", "changes"])
def test_what_is_counted_is_in_the_log(what):
    logs = [log_of(random_scenario(seed)) for seed in range(10)]
    assert sum(len(getattr(log, what)) for log in logs) > 0
