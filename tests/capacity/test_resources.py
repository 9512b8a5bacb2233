"""Capacity per resource, against figures computed by hand on a small profile and fleet."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sojourn.capacity.queueing import allen_cunneen_wait
from sojourn.capacity.records import EngineModel, Fleet, StationModel, StepModel
from sojourn.capacity.resources import capacity
from sojourn.config import Retry
from sojourn.interval import Excuse, Interval, Provenance
from sojourn.records import Bottleneck
from sojourn.workload.profile_records import (
    Arrivals,
    BucketProfile,
    Profile,
    StationProfile,
    Step,
    StepKind,
    Summary,
    Template,
    Window,
)


def constant(value: float, count: int = 100) -> Summary:
    return Summary(
        count=count, mean=value, p50=value, p90=value, p95=value, p99=value, max=value, cv2=0.0
    )


def make_profile(
    *,
    rate: float = 2.0,
    peak: float = 4.0,
    prompt: int = 1000,
    cached: int = 0,
    output: int = 100,
    visits: int = 1,
    attempts: float = 1.0,
    templates: bool = True,
) -> Profile:
    steps = [
        Step(group=0, kind=StepKind.STATION, stage="retrieval", name="retrieval kb", service_s=0.1)
        for _ in range(visits)
    ]
    steps.append(
        Step(
            group=1,
            kind=StepKind.CALL,
            stage="decode",
            name="m",
            input_tokens=prompt,
            cached_tokens=cached,
            output_tokens=output,
        )
    )
    bucket = BucketProfile(
        name="short_chat",
        requests=1000,
        share=1.0,
        rate_per_s=rate,
        peak_rate_per_s=peak,
        input=constant(prompt),
        output=constant(output),
        input_call=constant(prompt),
        calls_per_request=1.0,
        tool_rounds=0.0,
        templates=(Template(steps=tuple(steps)),) if templates else (),
    )
    return Profile(
        arrivals=Arrivals(
            requests=1000,
            duration_s=1000 / rate,
            rate_per_s=rate,
            peak=Window(start_s=0.0, length_s=60.0, requests=round(peak * 60)),
            cv_interarrival=1.0,
            dispersion={"1s": 1.0, "10s": 1.0, "60s": 1.0},
            windows=(),
        ),
        buckets={"short_chat": bucket},
        stations={},
        models={"m": 1.0},
        routes={},
        tenants={},
        long_context_share=0.0,
        multimodal_share=0.0,
        attempts_per_request=Interval.exact(attempts),
        prefix=None,
        concentration=(),
    )


def make_station(*, servers: int | None = 2, service_s: float = 0.1) -> StationModel:
    return StationModel(
        name="retrieval kb",
        stage="retrieval",
        servers=servers,
        service_s=constant(service_s),
        service_samples_s=(service_s,) * 10,
    )


def make_fleet(
    *,
    replicas: int = 1,
    slots: int = 16,
    kv_blocks: int = 10_000,
    base_s: tuple[float, float, float] = (0.010, 0.010, 0.026),
    stations: tuple[StationModel, ...] = (),
    max_attempts: int = 1,
) -> Fleet:
    step = StepModel(
        batches=(0, 1, 17),
        base_s=base_s,
        slope_s_per_token=(0.0, 0.0, 0.0),
        prefill_s_per_token=1e-5,
        provenance=Provenance.FITTED,
        source="by hand",
        held_out_error=0.05,
        valid_batch=(0, 17),
        valid_context=(0, 10_000),
    )
    engine = EngineModel(
        step=step,
        replicas=replicas,
        max_num_seqs=slots,
        max_num_batched_tokens=2048,
        kv_blocks=kv_blocks,
    )
    return Fleet(
        engine=engine,
        stations={s.name: s for s in stations},
        retry=Retry(max_attempts=max_attempts),
    )


def by_name(profile, fleet):
    return {r.name: r for r in capacity(profile, fleet).resources}


def test_engine_capacities_by_hand():
    """P = 1000 tokens x 10 us = 10 ms; a step of 16 decodes = 10 + 15 x 1 = 25 ms; 100 tokens.

    Slots: 1 / (10 ms + 100 x 25 ms / 16) = 6.015/s. Prefill alone 100/s. KV: 160,000 tokens over
    1,050 + 8 = 151.2 requests, beyond the slots.
    """
    found = by_name(make_profile(), make_fleet())
    assert found["batch slots"].capacity_per_s.mid == pytest.approx(
        1 / (0.010 + 100 * 0.025 / 16), rel=2e-3
    )
    assert found["prefill compute"].capacity_per_s.mid == pytest.approx(100.0)
    assert found["decode"].capacity_per_s.mid == pytest.approx(16 / (100 * 0.025))
    assert found["KV tokens"].capacity_per_s.mid > found["batch slots"].capacity_per_s.mid
    slots = found["batch slots"]
    assert slots.mean_load == pytest.approx(2.0 / slots.capacity_per_s.mid)
    assert slots.headroom == pytest.approx(1 - 4.0 / slots.capacity_per_s.mid)


def test_fixed_point_holds_little_law():
    """At the capacity of n slots, lambda x tokens x step time is n (Little)."""
    for slots in (2, 8, 16):
        rate = by_name(make_profile(), make_fleet(slots=slots))["batch slots"].capacity_per_s.mid
        decode = 0.010 + (slots - 1) * 0.001
        step = decode / (1 - rate * 0.010)
        assert rate * 100 * step == pytest.approx(slots, rel=5e-3)


def test_slots_bind_when_more_of_them_would_carry_more():
    model = capacity(make_profile(), make_fleet(slots=4))
    assert model.binding.bottleneck is Bottleneck.BATCH_SLOTS


def test_engine_binds_when_more_slots_would_not_help():
    """A step that grows in proportion to the batch: bandwidth, not slots."""
    fleet = make_fleet(slots=16, base_s=(0.0005, 0.0205, 0.3405))
    assert capacity(make_profile(), fleet).binding.bottleneck is Bottleneck.DECODE_BANDWIDTH


def test_prefill_binds_with_long_prompts_and_short_outputs():
    profile = make_profile(prompt=30_000, output=2)
    fleet = make_fleet(kv_blocks=1_000_000)
    assert capacity(profile, fleet).binding.bottleneck is Bottleneck.PREFILL_COMPUTE


def test_kv_binds_when_memory_is_short():
    model = capacity(make_profile(), make_fleet(kv_blocks=200))
    assert model.binding.bottleneck is Bottleneck.KV_CAPACITY
    assert model.binding.headroom < 0


def test_station_capacity_is_servers_over_busy_time():
    """2 servers, 3 visits of 0.1 s: 6.67 requests/s; with 2 attempts each, half of it."""
    fleet = make_fleet(stations=(make_station(),), replicas=10)
    one = by_name(make_profile(visits=3), fleet)["retrieval kb"]
    two = by_name(make_profile(visits=3, attempts=2.0), fleet)["retrieval kb"]
    assert one.capacity_per_s.mid == pytest.approx(2 / 0.3)
    assert two.capacity_per_s.mid == pytest.approx(2 / 0.6)
    assert one.bottleneck is Bottleneck.RETRIEVAL


def test_station_without_a_known_limit_is_named_and_not_invented():
    model = capacity(make_profile(), make_fleet(stations=(make_station(servers=None),)))
    assert all(r.name != "retrieval kb" for r in model.resources)
    assert any("retrieval kb" in note for note in model.notes)


def test_station_cut_at_its_timeout_frees_its_server_when_work_stops():
    slow = make_station(service_s=1.0).model_copy(
        update={"timeout_s": 0.25, "stops_on_cancel": True}
    )
    fleet = make_fleet(stations=(slow,))
    assert by_name(make_profile(), fleet)["retrieval kb"].capacity_per_s.mid == pytest.approx(8.0)


def test_retry_budget_is_the_vulnerable_point_and_comes_last():
    """With 3 attempts the tightest limit, in attempts, over 3."""
    model = capacity(make_profile(attempts=1.5), make_fleet(max_attempts=3))
    last = model.resources[-1]
    assert last.name == "retry budget"
    assert last.capacity_per_s.mid == pytest.approx(model.binding.capacity_per_s.mid * 1.5 / 3)
    assert model.binding.bottleneck is not Bottleneck.RETRY_AMPLIFICATION


def test_engine_wait_is_allen_cunneen_at_the_peak_fixed_point():
    model = capacity(make_profile(peak=4.0), make_fleet())
    step = 0.010
    for _ in range(200):  # t = d(4 x 100 t) / (1 - 4 P), by iteration
        batch = 4.0 * 100 * step
        step = (0.010 + max(batch - 1, 0) * 0.001) / (1 - 4.0 * 0.010)
    expected = allen_cunneen_wait(4.0, 0.010 + 100 * step, 16, ca2=1.0, cs2=0.0)
    assert model.engine_wait_s == pytest.approx(expected, rel=0.05)


def test_engine_wait_is_refused_near_and_beyond_saturation():
    for peak in (5.9, 50.0):
        wait = capacity(make_profile(peak=peak), make_fleet()).engine_wait_s
        assert isinstance(wait, Excuse)
        assert "simulate" in wait.collect[0]


def test_profile_without_calls_or_stations_says_so():
    profile = make_profile(visits=0, templates=False)
    empty = profile.buckets["short_chat"].model_copy(update={"requests": 0})
    profile = profile.model_copy(update={"buckets": {"short_chat": empty}})
    model = capacity(profile, make_fleet())
    assert model.binding.bottleneck is Bottleneck.INSUFFICIENT_EVIDENCE
    assert isinstance(model.engine_wait_s, Excuse)


def test_summaries_serve_where_no_program_was_recorded():
    with_programs = by_name(make_profile(), make_fleet())["batch slots"]
    without = by_name(make_profile(templates=False), make_fleet())["batch slots"]
    assert without.capacity_per_s.mid == pytest.approx(with_programs.capacity_per_s.mid)


def test_counts_of_every_attempt_are_not_multiplied_again():
    """4 visits counted over 2 attempts are 2 an attempt: 2 servers / (4 x 0.1 s)."""
    seen = StationProfile(
        name="retrieval kb",
        stage="retrieval",
        visits=4000,
        visits_per_request=4.0,
        duration_s=constant(0.1),
    )
    profile = make_profile(templates=False, attempts=2.0).model_copy(
        update={"stations": {"retrieval kb": seen}}
    )
    found = by_name(profile, make_fleet(stations=(make_station(),)))
    assert found["retrieval kb"].capacity_per_s.mid == pytest.approx(2 / 0.4)


def test_record_survives_its_file(tmp_path):
    model = capacity(make_profile(), make_fleet(stations=(make_station(),), max_attempts=2))
    model.save(tmp_path / "capacity.json")
    assert type(model).load(tmp_path / "capacity.json") == model


@settings(max_examples=60, deadline=None)
@given(
    prompt=st.integers(1, 20_000),
    output=st.integers(1, 2_000),
    slots=st.integers(1, 64),
    blocks=st.integers(2_000, 50_000),
    attempts=st.floats(1.0, 4.0),
)
def test_laws_of_capacity(prompt, output, slots, blocks, attempts):
    """Sorted by headroom; more KV, slots, replicas or cache never lower a capacity; attempts
    divide it; every bound is ordered."""
    profile = make_profile(prompt=prompt, output=output, attempts=attempts)
    base = by_name(profile, make_fleet(slots=slots, kv_blocks=blocks))
    heads = [r.headroom for r in base.values()]
    assert heads == sorted(heads)
    more = (
        by_name(profile, make_fleet(slots=slots, kv_blocks=2 * blocks)),
        by_name(profile, make_fleet(slots=2 * slots, kv_blocks=blocks)),
        by_name(profile, make_fleet(slots=slots, kv_blocks=blocks, replicas=2)),
        by_name(
            make_profile(prompt=prompt, output=output, cached=prompt // 2, attempts=attempts),
            make_fleet(slots=slots, kv_blocks=blocks),
        ),
    )
    tight = min(r.capacity_per_s.mid for r in base.values())
    for other in more:
        assert min(r.capacity_per_s.mid for r in other.values()) >= tight * (1 - 1e-9)
    single = by_name(
        make_profile(prompt=prompt, output=output), make_fleet(slots=slots, kv_blocks=blocks)
    )
    for name, resource in base.items():
        assert resource.capacity_per_s.mid * attempts == pytest.approx(
            single[name].capacity_per_s.mid
        )
        assert math.isfinite(resource.capacity_per_s.high)


def test_prefill_of_prompts_alone_by_hand():
    """100 tokens see 50 before them on average; of 100 with 60 cached, 40 see 80."""
    step = StepModel(
        batches=(0,),
        base_s=(0.0,),
        slope_s_per_token=(0.0,),
        prefill_s_per_token=1e-3,
        prefill_s_per_token_context=1e-6,
        provenance=Provenance.ASSUMED,
        source="by hand",
    )
    found = step.prefill_s(np.array([100.0, 100.0, 0.0]), np.array([0.0, 60.0, 0.0]))
    np.testing.assert_allclose(found, [0.1 + 100 * 50e-6, 0.04 + 40 * 80e-6, 0.0])
    table = {"prefill_tokens": (0, 1, 50), "prefill_base_s": (0.0, 0.02, 0.069)}
    found = step.model_copy(update=table).prefill_s(
        np.array([100.0, 100.0, 0.0]), np.array([0.0, 60.0, 0.0])
    )
    tabled = [0.069 + 50 * 1e-3, 0.02 + 39 * 1e-3, 0.0]  # beyond 50 as between 1 and 50
    np.testing.assert_allclose(found, np.add([0.105, 0.0432, 0.0], tabled))
