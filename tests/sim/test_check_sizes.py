"""Numbers that no engine could hold, or no machine: refused in words, before anything is run."""

from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pytest
from tests.sim.making import call, engine, fleet, scenario, station, step_model

from sojourn.capacity.policies import (
    Admission,
    AdmissionPolicy,
    Autoscaler,
    Client,
    Encoder,
    Ladder,
    PrefillPool,
    PrefixCache,
    Router,
    Rung,
)
from sojourn.errors import UsageError
from sojourn.sim.checks import check
from sojourn.sim.kernel import memory
from sojourn.sim.kernel.packing import pack
from sojourn.sim.lowering import lower
from sojourn.sim.scenario import Scenario
from sojourn.sim.simulate import simulate
from sojourn.workload.stream import Stream


def one(the_fleet):
    return scenario([0.0], [[call(40, 5)]], the_fleet)


def with_engine(**options):
    return one(fleet(engine().model_copy(update=options)))


def refused(made, message):
    with pytest.raises(UsageError, match=message):
        check(made)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_num_seqs": 10**7, "max_num_batched_tokens": 10**7}, "max_num_seqs is 10,000,000;"),
        (
            {"max_num_batched_tokens": 10**9},
            "max_num_batched_tokens is 1,000,000,000; .* 4,194,304",
        ),
        ({"kv_blocks": 10**12}, "kv_blocks is 1,000,000,000,000; the simulator takes at most"),
        ({"replicas": 10**8}, "replicas is 100,000,000;"),
        ({"autoscaler": Autoscaler(target=1, most=10**9)}, "autoscaler.most is 1,000,000,000;"),
        ({"autoscaler": Autoscaler(target=1e12, most=2)}, "autoscaler.target is 1,0"),
        ({"autoscaler": Autoscaler(target=1, most=2, every_s=1e-12)}, "every_s is 1e-12 s; exp"),
        ({"router": Router(load_weight_tokens=1e12)}, "load_weight_tokens is 1,0"),
        ({"encoder": Encoder(servers=2**62)}, "encoder.servers is"),
        ({"prefix_cache": PrefixCache(tokens_per_hash=2**62)}, "tokens_per_hash is"),
    ],
)
def test_a_pool_too_large_for_whole_numbers_is_refused(options, message):
    refused(with_engine(**options), f"pool 'default': .*{message}")


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"ladder": Ladder(every_s=1e-9, rungs=(Rung(above=1, below=0),))}, "ladder.every_s is"),
        (
            {"ladder": Ladder(rungs=(Rung(above=1, below=0, output_most=2**40),))},
            "ladder rung 0: output_most is 1,099,511,627,776",
        ),
        ({"client": Client(retry_budget_most=float("inf"))}, "retry_budget_most is inf"),
    ],
)
def test_a_policy_too_large_or_too_quick_is_refused(changed, message):
    refused(one(fleet().model_copy(update=changed)), message)


def test_a_station_whose_times_overflow_is_refused():
    refused(
        one(fleet(stations=[station("s", 1, rate_per_s=1e-4, burst=100)])),
        r"'s': burst / rate_per_s, .*is 1e\+06 s",
    )
    check(one(fleet(stations=[station("s", 1, rate_per_s=1e-4, burst=50)])))
    refused(
        one(fleet(stations=[station("s", 1, samples=[1e5], drift=((0.0, 6.0),))])),
        "service_samples_s times the largest factor of its drift is 600000 s",
    )
    refused(one(fleet(stations=[station("s", 2**40)])), "station 's': servers is 1,099")


@pytest.mark.parametrize(
    "step",
    [
        step_model(slope=1e5),
        step_model().model_copy(update={"prefill_s_per_token_context": 1e5}),
        step_model().model_copy(update={"prefill_tokens": (0, 512), "prefill_base_s": (0.0, 1e6)}),
        step_model().model_copy(update={"host_s": float("inf")}),
    ],
)
def test_a_step_longer_than_any_run_is_refused(step):
    refused(one(fleet(engine(step=step))), "a full step with contexts of 45 tokens would take")


def test_what_grows_with_a_call_is_held_against_its_longest():
    moved = engine().model_copy(update={"prefill": PrefillPool(pool="p", transfer_s_per_token=2e4)})
    both = fleet(moved).model_copy(update={"pools": {"p": engine()}})
    refused(one(both), "to move a prompt of 40 tokens takes 800000 s")
    seen = engine().model_copy(update={"encoder": Encoder(s_per_token=2e5)})
    made = scenario([0.0], [[call(40, 5, image_tokens=3, image_id=1)]], fleet(seen))
    refused(made, "an image of 3 tokens takes 600000 s")


def changed_stream(**columns):
    """Two requests of a call each, with one column replaced."""
    made = scenario([0.0, 1.0], [[call(10, 5)], [call(10, 5)]])
    tables = {"requests": made.stream.requests, "steps": made.stream.steps}
    for name, values in columns.items():
        where = "requests" if name in tables["requests"].column_names else "steps"
        table = tables[where]
        place = table.schema.get_field_index(name)
        kind = table.schema.field(name)
        tables[where] = table.set_column(place, kind, pa.array(values, kind.type))
    return Scenario(Stream(**tables), made.fleet)


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"request": [0, 2**40]}, "do not fit the requests"),
        ({"request": [None, 1]}, "do not fit the requests"),
        ({"group": [0, 2**32]}, "step 1: group must be a number from 0 to"),
        ({"group": [None, 0]}, "step 0: group must be a number"),
        ({"priority": [0, 2**63 - 1]}, "request 1: priority must be within"),
        ({"output_tokens": [2**31 - 1, 1]}, "call 0: input_tokens \\+ output_tokens must be at"),
    ],
)
def test_a_stream_whose_numbers_would_wrap_is_refused(columns, message):
    refused(changed_stream(**columns), message)


@pytest.mark.parametrize("seed", [2**63, -(2**63) - 1, 1.5, None, "a"])
def test_a_seed_is_a_whole_number_of_64_bits(seed):
    made = changed_stream()
    refused(Scenario(made.stream, made.fleet, seed), "expected a whole number of 64 bits")
    for known in (2**63 - 1, -1):
        assert simulate(Scenario(made.stream, made.fleet, known)).counts["ok"] == 2


def test_a_stream_is_of_two_arrow_tables():
    made = changed_stream().stream
    with pytest.raises(TypeError, match="two Arrow tables, not of a NoneType"):
        Stream(made.requests, None)
    with pytest.raises(TypeError, match="two Arrow tables, not of a DataFrame"):
        Stream(made.requests.to_pandas(), made.steps)


def test_memory_that_the_machine_lacks_is_asked_for_in_words(monkeypatch):
    lowered = lower(with_engine(replicas=1000, block_size=10**6))
    monkeypatch.setattr(memory, "machine_bytes", lambda: 2.0 * (1 << 30))
    with pytest.raises(
        UsageError, match=r"needs 3\.7 GiB for the blocks of decodes: replicas x bl"
    ):
        pack(lowered)
    monkeypatch.setattr(memory, "machine_bytes", lambda: float("inf"))
    monkeypatch.setattr(memory, "np", SimpleNamespace(zeros=_no_memory, dtype=np.dtype))
    with pytest.raises(UsageError, match="this machine has inf GiB"):
        pack(lowered)


def _no_memory(*_args, **_more):
    raise MemoryError


def test_arrays_take_the_memory_of_what_can_happen_not_of_what_is_allowed():
    made = with_engine(
        replicas=1000, kv_blocks=10**6, prefix_cache=PrefixCache(tokens_per_hash=16),
        encoder=Encoder(cache_images=10**9), max_num_seqs=60_000, max_num_batched_tokens=10**6,
    )  # fmt: skip
    the_fleet = made.fleet.model_copy(update={"client": Client(closed_loop=10**9)})
    run = pack(lower(Scenario(made.stream, the_fleet)))
    assert run.bytes < 20e6
    program = [call(40, 5), *(call(4, 2, group=1) for _ in range(3000))]
    wide = pack(lower(scenario([0.0] * 3, [program] * 3, fleet(engine(seqs=1000, budget=8192)))))
    steps = 3 * 3000
    assert wide.world[0]["margin"] == 2 * steps + 4 * 3 + 2 + 64


def test_a_cache_larger_than_its_table_changes_nothing():
    """Blocks that no call could ever fill have no entry, and none is missed."""
    rng = np.random.default_rng(5)
    programs = [
        [call(int(n), 3, block_hashes=[int(h) for h in rng.integers(0, 9, n // 16)])]
        for n in rng.integers(16, 200, 60)
    ]
    pool = engine(blocks=50_000).model_copy(
        update={"prefix_cache": PrefixCache(tokens_per_hash=16), "replicas": 2}
    )
    made = scenario(np.arange(60) / 50, programs, fleet(pool))
    one_run, other = simulate(made, engine="kernel"), simulate(made, engine="reference")
    assert one_run.log.same(other.log)
    assert one_run.log.calls["cached"].sum() > 0


def test_a_predicted_wait_beyond_64_bits_is_a_long_wait():
    """59 wait, 40,000 s apart: 2.4 million seconds are more than 2^63 ticks."""
    pool = engine(step=step_model(base=40_000.0), seqs=1)
    gate = Admission(policy=AdmissionPolicy.PREDICTED_MISS, wait_s=400_000.0)
    arrivals = [0.0, *([1.0] * 60), 50_000.0]
    the_fleet = fleet(pool, attempt_timeout_s=100_000.0).model_copy(update={"admission": gate})
    made = scenario(arrivals, [[call(1, 1)] for _ in arrivals], the_fleet)
    found, expected = simulate(made, engine="kernel"), simulate(made, engine="reference")
    assert found.counts["shed"] == expected.counts["shed"] == 1
    assert found.log.same(expected.log)
