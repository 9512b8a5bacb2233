"""Replicas for a target rate: counted, priced, ranked, refused."""

from __future__ import annotations

import numpy as np
import pytest

from sojourn.capacity import catalogue
from sojourn.capacity.demand import Demand
from sojourn.capacity.records import CapacityModel, Fleet, Resource, StepSpread
from sojourn.capacity.step_moves import Hardware
from sojourn.config import Config, Deployment
from sojourn.interval import Excuse, Interval, Provenance
from sojourn.plan.replica_candidates import Today, candidates
from sojourn.plan.replica_plan import HEADROOM, Target, replica_plan
from sojourn.plan.settling import LENGTHS
from sojourn.records import Bottleneck
from sojourn.report.replica_blocks import SHOWN, replicas

N = 200


@pytest.fixture(autouse=True)
def short_runs(monkeypatch):
    """What a long run would tell is told elsewhere; here a short one is enough."""
    monkeypatch.setattr("sojourn.plan.settling.LENGTHS", LENGTHS[:1])
    monkeypatch.setattr("sojourn.plan.replica_plan.SEEDS", 1)


def case(build, *, slo=None, spread=None, price=None, stations=None):
    rng = np.random.default_rng(1)
    prompt, output = rng.integers(200, 2000, N), rng.integers(50, 300, N)
    arrivals = np.cumsum(rng.exponential(0.2, N))
    stream = build.stream(
        [
            (t, "short_chat", [build.call(int(p), int(o))])
            for t, p, o in zip(arrivals, prompt, output, strict=True)
        ]
    )
    hardware = Hardware(
        catalogue.model("Llama-3.1-8B"),
        catalogue.gpu("H100-SXM"),
        Deployment(max_num_seqs=64, usd_per_replica_hour=price),
        context=1200.0,
    )
    step = hardware.roofline.model_copy(
        update={"provenance": Provenance.FITTED, "source": "a fit", "spread": spread}
    )
    engine = build.engine(
        step=step,
        max_num_seqs=64,
        max_num_batched_tokens=8192,
        kv_blocks=20_000,
        usd_per_replica_hour=price,
    )
    fleet = Fleet(engine=engine, stations=stations or {})
    asked = Demand(
        weight=np.full(N, 1 / N),
        prompt=prompt.astype(float),
        cached=np.zeros(N),
        output=output.astype(float),
        visits={"kb": 1.0} if stations else {},
        from_templates=True,
        image=np.zeros(N),
    )
    targets = {"ttft_s": 1.0, "tpot_s": 0.03} if slo is None else slo
    config = Config.from_dict(
        {"slo": {"default": {"percentile": 0.95, **targets}} if targets else {}}
    )
    resource = Resource(
        name="kb", bottleneck=Bottleneck.RETRIEVAL, capacity_per_s=Interval.exact(20.0),
        mean_load=0.2, peak_load=0.3, headroom=0.7, scale_by="workers",
        provenance=Provenance.MEASURED,
    )  # fmt: skip
    model = CapacityModel(fleet=fleet, resources=(resource,), engine_wait_s=0.0)
    return stream, config, model, Today(hardware, fleet, asked)


def plan(build, per_s, names, **more):
    stream, config, model, today = case(build, **more)
    gpus = [catalogue.gpu(name) for name in names]
    return replica_plan(Target(per_s, stream, config, model), today, gpus)


def test_replicas_carry_the_target_with_headroom_and_are_ranked_by_cost(build):
    found = plan(build, 40.0, ["H100-SXM", "A100-80GB-SXM"])
    assert {o.gpu for o in found.options} == {"H100-SXM", "A100-80GB-SXM"}
    costs = [o.usd_per_hour for o in found.options]
    assert costs == sorted(costs)
    for option in found.options:
        held = option.replicas * option.per_replica_per_s.mid
        assert held >= 40.0 * (1 + HEADROOM) * (1 - 1e-9)
        assert option.replicas_low <= option.replicas <= option.replicas_high
        assert option.headroom == pytest.approx(1 - 40.0 / held)
        card = catalogue.gpu(option.gpu).usd_per_hour
        price = option.replicas * option.gpus_per_replica * card
        assert option.usd_per_hour == pytest.approx(price)
        assert option.usd_per_success == pytest.approx(price / (40.0 * 3600), rel=0.05)
    assert found.options[0].confirmed is not None
    same = next(o for o in found.options if o.gpu == "H100-SXM" and o.tensor_parallel == 1)
    assert same.source == "a fit"


def test_twice_the_target_takes_about_twice_the_replicas(build):
    one, two = (plan(build, rate, ["A100-80GB-SXM"]) for rate in (60.0, 120.0))
    for a in one.options:
        b = next(o for o in two.options if o.tensor_parallel == a.tensor_parallel)
        assert 2 * a.replicas - 1 <= b.replicas <= 2 * a.replicas + 1


def test_an_own_price_is_that_of_the_own_accelerator(build):
    found = plan(build, 40.0, ["H100-SXM"], price=9.0)
    option = next(o for o in found.options if o.tensor_parallel == 1)
    assert option.usd_per_hour == pytest.approx(9.0 * option.replicas)
    double = next(o for o in found.options if o.tensor_parallel == 2)
    assert double.usd_per_hour == pytest.approx(18.0 * double.replicas)


def test_too_slow_and_too_small_cards_are_told_with_why(build):
    found = plan(build, 5.0, ["H100-SXM", "L4"], slo={"tpot_s": 0.02, "ttft_s": 1.0})
    slow = [u for u in found.unfit if u.gpu == "L4"]
    assert slow
    assert "nearly alone" in slow[0].excuse.reason
    stream, config, model, today = case(build)
    large = today.hardware.changed()
    big = Today(
        Hardware(catalogue.model("DeepSeek-V3"), large.gpu, large.deployment, large.context),
        today.fleet,
        today.asked,
    )
    fit, unfit = candidates(big, [catalogue.gpu("L4")])
    assert fit == []
    assert [u.gpu for u in unfit] == ["L4"]
    nothing = replica_plan(Target(5.0, stream, config, model), big, [catalogue.gpu("L4")])
    assert nothing.options == ()
    assert "Nothing tried" in replicas(nothing)[0].text


def test_a_spread_of_step_times_is_a_range_of_replicas(build):
    wide = StepSpread(decode=((0.6, 1.7),) * 12, prefill=(0.6, 1.7))
    step = case(build)[3].hardware.roofline
    spread = wide.model_copy(update={"decode": ((0.6, 1.7),) * len(step.batches)})
    known = plan(build, 80.0, ["H100-SXM"], spread=spread)
    option = next(o for o in known.options if o.tensor_parallel == 1)
    assert option.replicas_low < option.replicas < option.replicas_high


def test_stations_short_of_the_target_are_named(build):
    kb = build.station("kb", "retrieval", [0.1] * 20, 4)
    found = plan(build, 60.0, ["H100-SXM"], stations={"kb": kb})
    assert [(s.name, s.now, s.needed) for s in found.stations] == [("kb", 4, 14)]
    text = " ".join(getattr(b, "text", "") for b in replicas(found))
    assert "kb: 14 workers (now 4)" in text


def test_without_an_slo_nothing_can_be_counted(build):
    found = plan(build, 5.0, ["H100-SXM"], slo={})
    assert isinstance(found, Excuse)
    assert "slo" in found.collect[0]


def test_the_report_shows_the_cheapest_and_counts_the_rest(build):
    found = plan(build, 40.0, ["H100-SXM"])
    many = found.model_copy(update={"options": found.options[:1] * (SHOWN + 3)})
    table = next(b for b in replicas(many) if b.kind == "table")
    assert len(table.rows) == SHOWN
    assert "3 dearer ones" in table.caption
    assert "40 requests/s (2400 a minute)" in table.caption


def test_an_absurd_target_is_refused_and_its_unit_asked_about(build):
    found = plan(build, 900_000.0, ["H100-SXM"])
    assert found.options == ()
    assert all("More than 1,000 replicas" in u.excuse.reason for u in found.unfit)
    assert "unit" in found.unfit[0].excuse.collect[0]


def test_a_target_that_no_run_could_carry_through_is_told_so(build):
    found = plan(build, 1e-6, ["H100-SXM"])
    assert isinstance(found, Excuse)
    assert "nothing queues" in found.reason
    assert "unit" in found.collect[0]
