"""Laws of capacity: physics is never beaten, more load never helps, more room never hurts."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.plan.conftest import call, make_engine, make_stream, station, visit

from sojourn.capacity import catalogue
from sojourn.capacity.records import Fleet
from sojourn.capacity.roofline import physical_floor_s
from sojourn.capacity.step_moves import Hardware
from sojourn.config import Config, Deployment
from sojourn.interval import Excuse
from sojourn.plan.load_runs import LoadRuns
from sojourn.plan.load_search import change, knees
from sojourn.plan.slo import judge
from sojourn.progress import silent
from sojourn.sim.scenario import Scenario
from sojourn.sim.simulate import simulate
from sojourn.trace.arrays import floats
from sojourn.workload.likeness import faster

MODELS = ("Llama-3.1-8B", "Llama-3.1-70B", "Qwen3-30B-A3B", "DeepSeek-V3", "gpt-oss-20b")
GPUS = ("H100-SXM", "H200", "B200", "A100-80GB-SXM", "L40S", "MI300X")
NOISE = 0.05
"""What a knee may move by luck where nothing changed for it: requests meet otherwise."""
quiet = settings(
    deadline=None, max_examples=25, suppress_health_check=[HealthCheck.too_slow], derandomize=True
)
few = settings(quiet, max_examples=8)


@st.composite
def hardware(draw):
    """A model on a card that may hold it or not: the law is of time, not of memory."""
    degree = draw(st.sampled_from((1, 2, 8)))
    return Hardware(
        catalogue.model(draw(st.sampled_from(MODELS))),
        catalogue.gpu(draw(st.sampled_from(GPUS))),
        Deployment(
            tensor_parallel=degree,
            weight_dtype=draw(st.sampled_from(("bf16", "fp8"))),
            kv_dtype=draw(st.sampled_from(("bf16", "fp8"))),
        ),
        context=draw(st.floats(100.0, 20_000.0)),
    )


def floor(at, **asked):
    return physical_floor_s(at.model, at.gpu, at.deployment, **asked)


@quiet
@given(at=hardware(), seed=st.integers(0, 99), slots=st.integers(1, 64), load=st.floats(0.1, 50.0))
def test_no_run_beats_the_physical_limit(at, seed, slots, load):
    """Time to first token, time per token, and tokens per second of a whole run."""
    rng = np.random.default_rng(seed)
    n = 60
    prompt, output = rng.integers(1, 6000, n), rng.integers(2, 300, n)
    rows = [
        (t, "short_chat", [call(int(p), int(o))])
        for t, p, o in zip(np.cumsum(rng.exponential(1 / load, n)), prompt, output, strict=True)
    ]
    engine = make_engine(
        step=at.roofline, max_num_seqs=slots, max_num_batched_tokens=8192, kv_blocks=200_000
    )
    calls = simulate(Scenario(make_stream(rows), Fleet(engine=engine))).tables.calls
    arrival, first, end = (floats(calls[c]) for c in ("arrival_s", "first_token_s", "end_s"))
    tokens, written = floats(calls["input_tokens"]), floats(calls["output_tokens"])
    assert np.isfinite(end).all()
    for i in range(n):
        asked = {"tokens": int(tokens[i]), "token_context": tokens[i] * (tokens[i] - 1) / 2}
        prefill = floor(at, batch=0, context_sum=0.0, **asked)
        decode = floor(at, batch=1, context_sum=float(tokens[i]))
        assert first[i] - arrival[i] >= prefill * (1 - 1e-9)
        assert end[i] - first[i] >= (written[i] - 1) * decode * (1 - 1e-9)
    alone = floor(at, batch=slots, context_sum=0.0) / slots
    span = end.max() - arrival.min()
    assert span >= (written - 1).sum() * alone * (1 - 1e-9)
    whole = floor(at, batch=0, context_sum=0.0, tokens=int(tokens.sum()), token_context=0.0)
    assert span >= whole * (1 - 1e-9)


@quiet
@given(at=hardware(), batch=st.integers(1, 512), context=st.integers(1, 30_000))
def test_no_step_beats_the_physical_limit(at, batch, context):
    step = at.roofline
    told = step.host_s + step.decode_step_s(batch, float(batch * context))
    assert told >= floor(at, batch=batch, context_sum=float(batch * context)) * (1 - 1e-9)


def case(seed, *, slots, blocks, servers, n=160):
    rng = np.random.default_rng(seed)
    work = rng.lognormal(np.log(0.2), 0.5, n)
    rows = [
        (t, "short_chat", [visit("tool", "kb", float(w)), call(int(p), int(o), group=1)])
        for t, w, p, o in zip(
            np.cumsum(rng.exponential(0.25, n)),
            work,
            rng.integers(50, 1500, n),
            rng.integers(5, 120, n),
            strict=True,
        )
    ]
    engine = make_engine(max_num_seqs=slots, kv_blocks=blocks, max_num_batched_tokens=2048)
    fleet = Fleet(engine=engine, stations={"kb": station("kb", "tool", work, servers)})
    return make_stream(rows), fleet


def config():
    return Config.from_dict({"slo": {"default": {"percentile": 0.9, "e2e_s": 3.0}}})


def held(stream, fleet, seeds=(0, 1, 2)):
    runs = LoadRuns(stream, fleet, config(), silent, seeds[0])
    return knees(runs.held, seeds, 1.0, runs.limits)


@few
@given(
    seed=st.integers(0, 999),
    slots=st.integers(2, 12),
    blocks=st.integers(150, 600),
    servers=st.integers(1, 4),
)
def test_more_room_never_holds_less_and_nothing_changed_is_no_change(seed, slots, blocks, servers):
    """More KV blocks, more slots at equal step times, more workers: beyond noise, never less. The
    same fleet again: the same knees, to the digit."""
    stream, fleet = case(seed, slots=slots, blocks=blocks, servers=servers)
    before = held(stream, fleet)
    assert held(stream, fleet) == before
    for more in (
        {"slots": slots, "blocks": 2 * blocks, "servers": servers},
        {"slots": 2 * slots, "blocks": blocks, "servers": servers},
        {"slots": slots, "blocks": blocks, "servers": servers + 1},
    ):
        after = held(stream, case(seed, **more)[1])
        if before[0].open or after[0].open:
            continue
        assert change(before, after, 0.9).mid > -NOISE, more


@few
@given(seed=st.integers(0, 999), slots=st.integers(2, 12), servers=st.integers(1, 4))
def test_more_load_never_meets_more_targets(seed, slots, servers):
    """The same requests closer together: attainment falls, or stays, beyond noise."""
    stream, fleet = case(seed, slots=slots, blocks=600, servers=servers)
    shares = []
    for load in (0.5, 1.0, 2.0, 4.0, 8.0):
        run = simulate(Scenario(faster(stream, load), fleet, 0))
        shares.append(float(judge(run, config()).good.mean()))
    assert all(later <= earlier + 0.03 for earlier, later in pairwise(shares))
    assert shares[-1] <= shares[0]


@few
@given(seed=st.integers(0, 999), slots=st.integers(2, 10))
def test_twice_the_fleet_holds_twice_the_load_and_a_little_more(seed, slots):
    """Replicas and workers doubled, nothing shared: at least 1.8 times (luck of a short recording)
    and, since two servers pool their luck, at times more than 2."""
    stream, fleet = case(seed, slots=slots, blocks=2000, servers=2, n=240)
    kb = fleet.stations["kb"].model_copy(update={"servers": 4})
    engine = fleet.engine.model_copy(update={"replicas": 2})
    double = fleet.model_copy(update={"engine": engine, "stations": {"kb": kb}})
    one, two = held(stream, fleet), held(stream, double)
    if one[0].open or two[0].open:
        return
    assert change(one, two, 0.9).mid >= 0.8


@pytest.mark.parametrize("model", MODELS)
def test_the_best_source_does_not_beat_the_limit_either(model):
    """Measured operator tables where they are installed, else the roofline again."""
    at = Hardware(
        catalogue.model(model), catalogue.gpu("H200"), Deployment(tensor_parallel=8), context=2000.0
    )
    step = at.step
    if isinstance(step, Excuse):
        pytest.skip(str(step))
    for batch in (1, 2, 16, 64, 256):
        for context in (1, 1000, 8000):
            total = float(batch * context)
            told = step.host_s + step.decode_step_s(batch, total)
            assert told >= floor(at, batch=batch, context_sum=total) * (1 - 1e-9)
    for tokens in (1, 128, 2048, 8192):
        seen = tokens * (tokens - 1) / 2
        told = step.host_s + step.decode_step_s(0, 0.0) + step.prefill_step_s(tokens)
        told += step.prefill_s_per_token_context * seen
        limit = floor(at, batch=0, context_sum=0.0, tokens=tokens, token_context=seen)
        assert told >= limit * (1 - 1e-9)
