"""The packaged recordings: the right verdict, the right repair, and the doubling predicted.

One recording of each kind: `incident` (the time is outside the engine, retries multiply) and
`saturated` (the engine is full). The bars are those of the product, not fitted to them.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from sojourn import loop
from sojourn.capacity.records import CapacityModel
from sojourn.cli.options import CONFIG_NAME, load_config
from sojourn.config import Config
from sojourn.plan import slo
from sojourn.plan.records import Plan
from sojourn.records import Bottleneck
from sojourn.trace.tables import Tables

ROOT = Path(__file__).resolve().parents[2]
RECORDINGS = ROOT / "src" / "sojourn" / "recordings"
CONTROLS = ROOT / "examples" / "incident" / "controls"

OUTSIDE = {Bottleneck.RETRIEVAL, Bottleneck.TOOL, Bottleneck.RETRY_AMPLIFICATION}
ENGINE = {
    Bottleneck.QUEUE_ADMISSION,
    Bottleneck.BATCH_SLOTS,
    Bottleneck.PREFILL_COMPUTE,
    Bottleneck.DECODE_BANDWIDTH,
}
WITHIN = 0.20


@dataclass(frozen=True)
class Before:
    """What the loop makes of a recording before the change."""

    seen: loop.Seen
    model: CapacityModel
    plan: Plan


def recording(folder: Path) -> tuple[Tables, Config]:
    config = load_config(folder / CONFIG_NAME, [], None)
    return loop.read(folder, config=config), config


@cache
def before(scenario: str) -> Before:
    tables, config = recording(RECORDINGS / scenario / "before")
    seen = loop.look(tables, config)
    model = loop.capacity_of(seen)
    assert isinstance(model, CapacityModel)
    plan = loop.plan_for(seen, model)
    assert isinstance(plan, Plan)
    return Before(seen, model, plan)


def p99(tables: Tables, config: Config) -> float:
    return slo.outcome(tables, config).e2e_s["all"]["p99"].mid


def test_the_incident_is_outside_the_engine() -> None:
    diagnosis = before("incident").seen.diagnosis
    named = [v.bottleneck for v in diagnosis.verdicts if v.bucket == "all" and v.confidence > 0.5]
    assert diagnosis.top.bottleneck in OUTSIDE
    assert Bottleneck.RETRY_AMPLIFICATION in named
    assert {Bottleneck.RETRIEVAL, Bottleneck.TOOL} & set(named)
    assert not ENGINE & set(named)
    assert diagnosis.engine_bound is False


def test_adding_gpus_to_the_incident_is_priced_and_refused() -> None:
    plan = before("incident").plan
    assert "scale_out" not in {item.name for item in plan.ranked}
    refused = next(item for item in plan.refused if item.name == "scale_out")
    assert refused.p99_change_s is not None
    assert refused.price.usd_per_hour > 0
    assert "P99" in refused.excuse.reason


def test_the_incident_gets_its_repairs() -> None:
    names = {item.name for item in before("incident").plan.ranked}
    assert names & {"degrade_on_timeout", "no_blind_retries"}


def test_the_saturated_engine_is_named_and_scaled() -> None:
    found = before("saturated")
    assert found.seen.diagnosis.top.bottleneck in ENGINE
    assert found.seen.diagnosis.engine_bound is True
    assert "scale_out" in {item.name for item in found.plan.ranked}


@pytest.mark.parametrize("scenario", ["incident", "saturated"])
@pytest.mark.parametrize(("side", "replicas"), [("before", 1), ("after", 2)])
def test_the_p99_is_predicted(scenario: str, side: str, replicas: int) -> None:
    """From the recording before alone; within 20%, or within the spread of the controls."""
    found = before(scenario)
    real, config = recording(RECORDINGS / scenario / side)
    recorded = p99(real, config)
    predicted = []
    for seed in range(3):
        seen = loop.reseeded(found.seen, seed)
        run, _fleet = loop.simulated(seen, found.model.fleet, replicas=replicas)
        predicted.append(p99(run.tables, config))
    controls = [recording(f) for f in sorted((CONTROLS / scenario).glob(f"{side}-control-*"))]
    spread = max((abs(p99(*control) / recorded - 1) for control in controls), default=0.0)
    assert abs(float(np.mean(predicted)) / recorded - 1) <= max(WITHIN, spread)


def test_two_takes_of_one_system_are_no_change_once_repeats_are_known() -> None:
    """A saturated engine's backlog adds up every difference of the machine: P99 28, 32 and 37 s."""
    takes = [recording(CONTROLS / "saturated" / f"before-control-{n}") for n in (2, 1)]
    (old, config), (new, _config) = takes
    repeat, _config = recording(RECORDINGS / "saturated" / "before")
    extreme = loop.accept(old, repeat, config, controls=[new])
    assert extreme.accepted is None, extreme.reason
    blind = loop.accept(old, new, config)
    assert blind.accepted is not False
    assert blind.accepted is None or "--control" in blind.reason


def test_a_real_change_is_beyond_what_repeats_differ_by() -> None:
    old, config = recording(RECORDINGS / "saturated" / "before")
    new, after = recording(RECORDINGS / "saturated" / "after")
    repeats = [recording(CONTROLS / "saturated" / f"before-control-{n}")[0] for n in (1, 2)]
    assert loop.accept(old, new, config, after_config=after, controls=repeats).accepted is True


@pytest.mark.parametrize(("scenario", "accepted"), [("incident", False), ("saturated", True)])
def test_the_doubling_is_judged(scenario: str, *, accepted: bool) -> None:
    old, config = recording(RECORDINGS / scenario / "before")
    new, after = recording(RECORDINGS / scenario / "after")
    verdict = loop.accept(old, new, config, after_config=after)
    assert len(verdict.answers) == 8
    assert verdict.accepted is accepted, verdict.reason
