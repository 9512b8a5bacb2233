"""Limits beside the device: host, front end, encoder, shared pools, rate limits; warnings."""

from __future__ import annotations

import numpy as np
import pytest
from tests.capacity.test_resources import by_name, make_fleet, make_profile, make_station

from sojourn.capacity.demand import Demand
from sojourn.capacity.engine_limits import decode_s
from sojourn.capacity.host_limits import HostGauge, encoder, front_end, host_gauge, measured_host
from sojourn.capacity.policies import Encoder
from sojourn.capacity.resources import capacity
from sojourn.capacity.validity import warnings
from sojourn.records import Bottleneck
from sojourn.trace.tables import Tables, from_rows
from sojourn.workload.profile_records import Arrivals, Window


def asked(**more):
    fields = {
        "weight": np.array([1.0, 0.5]),
        "prompt": np.array([1000.0, 4000.0]),
        "cached": np.array([0.0, 1000.0]),
        "output": np.array([100.0, 200.0]),
        "visits": {},
        "from_templates": True,
        "image": np.array([0.0, 600.0]),
    }
    return Demand(**(fields | more))


def engine(**changes):
    return make_fleet().engine.model_copy(update=changes)


def test_the_busiest_core_is_full_at_the_rate_over_its_share():
    limit = measured_host(HostGauge(0.25, 0.5), 8.0)
    assert limit is not None
    assert limit.attempts_per_s == pytest.approx(32.0)
    assert measured_host(HostGauge(0.0, 0.0), 8.0) is None


def test_the_gauge_is_read_in_the_peak_window_and_beside_it():
    """60 s at 10%, then 60 s at 50% with most arrivals; what was sampled before does not count."""
    times = np.arange(-60.0, 120.0, 10.0)
    busy = np.where(times < 0, 0.9, np.where(times < 60, 0.1, 0.5))
    samples = [
        {"t_s": float(t), "host_cpu": float(share)} for t, share in zip(times, busy, strict=True)
    ]
    came = np.concatenate([np.linspace(0, 59, 30), np.linspace(60, 119, 300)])
    requests = [{"request_id": f"r{i}", "arrival_s": float(t)} for i, t in enumerate(came)]
    tables = Tables(
        requests=from_rows("requests", requests),
        engine_samples=from_rows("engine_samples", samples),
    )
    peak = Window(start_s=60.0, length_s=60.0, requests=300)
    first = Window(start_s=0.0, length_s=60.0, requests=30)
    arrivals = Arrivals(
        requests=330,
        duration_s=119.0,
        rate_per_s=330 / 119,
        peak=peak,
        cv_interarrival=1.0,
        dispersion={},
        windows=(first, peak),
    )
    found = host_gauge(tables, arrivals)
    assert found is not None
    assert found.peak == pytest.approx(0.5)
    assert found.mean == pytest.approx(0.3)


def test_a_measured_host_replaces_the_assumed_front_end():
    fleet = make_fleet()
    front = fleet.model_copy(
        update={"engine": fleet.engine.model_copy(
            update={"step": fleet.engine.step.model_copy(update={"front_s": 0.05})})}
    )  # fmt: skip
    guessed = capacity(make_profile(), front)
    names = [r.name for r in guessed.resources]
    assert names[-1] == "engine front end"
    assert guessed.resources[-1].capacity_per_s.mid == pytest.approx(20.0)
    known = capacity(make_profile(), front, host=HostGauge(0.5, 0.8))
    names = {r.name: r for r in known.resources}
    assert "engine front end" not in names
    assert names["host CPU"].bottleneck is Bottleneck.HOST_CPU
    assert names["host CPU"].mean_load == pytest.approx(0.5)


def test_the_front_end_works_on_one_call_at_a_time_per_replica():
    step = engine().step.model_copy(update={"front_samples_s": (0.01, 0.03)})
    limit = front_end(engine(step=step, replicas=3), asked())
    assert limit is not None
    assert limit.attempts_per_s == pytest.approx(3 / (0.02 * 1.5))
    assert front_end(engine(), asked(weight=np.array([]))) is None


def test_the_encoder_works_on_calls_with_images_only():
    limit = encoder(engine(encoder=Encoder(servers=2, base_s=0.1, s_per_token=0.001)), asked())
    assert limit is not None
    assert limit.attempts_per_s == pytest.approx(2 / (0.5 * 0.7))
    assert limit.bottleneck is Bottleneck.ENCODER
    assert encoder(engine(), asked()) is None


def test_stations_of_one_pool_share_its_workers():
    """Two stations of 0.1 s behind 2 workers carry half of what each alone would."""
    one = make_station()
    both = (one.model_copy(update={"pool": "shared"}),)
    alone = by_name(make_profile(visits=1), make_fleet(stations=(one,)))["retrieval kb"]
    pooled = by_name(make_profile(visits=1), make_fleet(stations=both))["shared"]
    assert pooled.capacity_per_s.mid == pytest.approx(alone.capacity_per_s.mid)


def test_a_rate_limit_is_a_resource():
    limited = make_station().model_copy(update={"rate_per_s": 6.0})
    found = by_name(make_profile(visits=3), make_fleet(stations=(limited,)))
    assert found["retrieval kb, rate limit"].capacity_per_s.mid == pytest.approx(2.0)


def test_host_time_is_part_of_a_step():
    plain, hosted = engine(), engine(step=engine().step.model_copy(update={"host_s": 0.003}))
    assert decode_s(hosted, 4.0, 100.0) - decode_s(plain, 4.0, 100.0) == pytest.approx(0.003)


@pytest.mark.parametrize(
    ("seen", "words"),
    [
        ({"valid_batch": (1, 8)}, "batches of 1 to 8"),
        ({"valid_context": (10, 2000)}, "33% of calls"),
        ({"valid_chunk": (1, 512)}, "known up to 512"),
        ({"valid_batch": (1, 8), "to_narrow": "record more load"}, "record more load"),
    ],
)
def test_use_outside_the_range_of_the_steps_is_said(seen, words):
    step = engine().step.model_copy(update=seen)
    said = warnings(engine(step=step, max_num_batched_tokens=8192), asked(), 64.0)
    assert words in " ".join(said)


def test_a_range_that_holds_or_is_not_known_is_not_spoken_of():
    known = {"valid_batch": (1, 64), "valid_context": (1, 8000), "valid_chunk": (1, 8192)}
    step = engine().step.model_copy(update=known)
    assert warnings(engine(step=step), asked(), 64.0) == ()
    unknown = {"valid_batch": (0, 0), "valid_context": (0, 0), "valid_chunk": (0, 0)}
    step = engine().step.model_copy(update=unknown)
    assert warnings(engine(step=step), asked(), 64.0) == ()
