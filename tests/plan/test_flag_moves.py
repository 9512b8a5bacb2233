"""One flag at a time: what moves the load held, what does not, what cannot be told."""

from __future__ import annotations

import numpy as np
import pytest

from sojourn.capacity import catalogue
from sojourn.capacity.records import Fleet
from sojourn.capacity.step_moves import Hardware
from sojourn.config import Config, Deployment
from sojourn.interval import Excuse, Interval
from sojourn.plan.flag_moves import flag_moves, variants


def case(build, cached=0, rate=6.0, n=250, **engine):
    rng = np.random.default_rng(3)
    arrivals, prompts = np.cumsum(rng.exponential(1 / rate, n)), rng.integers(300, 900, n)
    rows = [
        (t, "short_chat", [build.call(int(p), 60, cached=cached)])
        for t, p in zip(arrivals, prompts, strict=True)
    ]
    stream = build.stream(rows)
    return stream, Fleet(engine=build.engine(**engine))


def config(replications=2):
    return Config.from_dict(
        {
            "slo": {"default": {"percentile": 0.95, "ttft_s": 1.0}},
            "analysis": {"replications": replications},
        }
    )


def moved(moves):
    return {(m.flag, m.then): m for m in moves}


def test_slots_bind_and_more_of_them_hold_more(build):
    """Four slots for a step that hardly grows with its batch: eight carry nearly twice."""
    stream, fleet = case(build, max_num_seqs=4)
    found = moved(flag_moves(stream, fleet, config(), hardware=None))
    doubled, halved = found["max_num_seqs", "8"], found["max_num_seqs", "2"]
    assert doubled.change.low > 0.2
    assert halved.change.high < -0.2
    assert not doubled.none


def test_what_does_not_bind_changes_nothing(build):
    stream, fleet = case(build, max_num_seqs=4)
    found = moved(flag_moves(stream, fleet, config(), hardware=None))
    for key in (("max_num_batched_tokens", "4,096"), ("kv_dtype", "fp8")):
        assert found[key].none
        assert found[key].change.width < 0.05


def test_a_prefix_cache_taken_away_is_paid_in_prompts(build):
    stream, fleet = case(build, cached=250, max_num_seqs=16)
    found = moved(flag_moves(stream, fleet, config(), hardware=None))
    assert found["prefix cache", "off"].change.high < 0


def test_what_needs_the_hardware_says_so(build):
    stream, fleet = case(build)
    told = {v.flag: v.fleet for v in variants(stream, fleet, None)}
    for flag in ("gpu_memory_utilization", "tensor_parallel x replicas"):
        assert isinstance(told[flag], Excuse)
        assert "deployment.accelerator" in told[flag].collect[0]
    assert isinstance(told["prefix cache"], Excuse)
    assert "cached_tokens" in told["prefix cache"].collect[0]


def test_with_hardware_the_layouts_and_pools_are_tried(build):
    stream, fleet = case(build, replicas=2)
    hardware = Hardware(
        catalogue.model("Llama-3.1-8B"), catalogue.gpu("H100-SXM"), Deployment(replicas=2)
    )
    fleet = fleet.model_copy(
        update={"engine": fleet.engine.model_copy(update={"step": hardware.roofline})}
    )
    found = {(v.flag, v.then): v for v in variants(stream, fleet, hardware)}
    same = found["tensor_parallel x replicas", "2 x 1"]
    assert same.note == "as many GPUs"
    assert same.fleet.engine.replicas == 1
    assert found["tensor_parallel x replicas", "1 x 4"].fleet.engine.replicas == 4
    less = found["gpu_memory_utilization", "0.80"].fleet.engine
    assert less.kv_blocks < fleet.engine.kv_blocks
    eight = found["kv_dtype", "fp8"].fleet.engine
    assert eight.kv_blocks > 1.5 * fleet.engine.kv_blocks


def test_a_flag_that_changes_nothing_changes_nothing(build):
    """The law: the same fleet, paired, is no change, to the digit."""
    stream, fleet = case(build, max_num_seqs=8)
    moves = flag_moves(stream, fleet, config(), hardware=None)
    cap = moved(moves)["chunk size cap", "1,024"]
    assert cap.change.mid == pytest.approx(0.0, abs=0.02)
    assert isinstance(cap.change, Interval)
    assert flag_moves(stream, fleet, config(), hardware=None) == moves
