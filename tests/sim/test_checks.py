"""What no engine can run is refused before it is tried, with the place and what was expected."""

import pyarrow as pa
import pytest
from tests.sim.making import call, delay, engine, fleet, scenario, station, step_model, visit
from tests.sim.scenarios import random_scenario

from sojourn.capacity.policies import (
    Autoscaler,
    Client,
    Ladder,
    PrefillPool,
    PrefixCache,
    Rung,
    Speculative,
)
from sojourn.errors import UsageError
from sojourn.sim.checks import check
from sojourn.sim.scenario import Scenario
from sojourn.sim.ticks import LONGEST_S
from sojourn.workload.stream import STREAM_IDENTITIES, STREAM_STEPS, Stream


def refused(made, message):
    with pytest.raises(UsageError, match=message):
        check(made)


def with_steps(made, **changes):
    steps = made.stream.steps
    for name, values in changes.items():
        index = steps.schema.get_field_index(name)
        column = pa.array(values, steps[name].type)
        steps = steps.set_column(index, STREAM_STEPS.field(index), column)
    return Scenario(Stream(made.stream.requests, steps), made.fleet)


def plain(the_fleet=None):
    programs = [[visit("s", 1.0)], [call(5, 5), delay(1.0, group=1)]]
    return scenario([0.0, 1.0], programs, the_fleet)


@pytest.mark.parametrize("seed", range(0, 400, 8))
def test_scenarios_with_every_rule_in_them_pass(seed):
    check(random_scenario(seed))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"service_s": [-1.0, 0.0, 0.0]}, "step 0: service_s must be seconds"),
        ({"service_s": [1.0, 0.0, float("nan")]}, "step 2: service_s"),
        (
            {"service_s": [1.0, 0.0, 2e6]},
            r"step 2: service_s must be at most [\d,]+ s \(\d+ days",
        ),
        ({"kind": ["station", "robot", "delay"]}, "step 1: kind must be one of station"),
        ({"kind": ["station", None, "delay"]}, "step 1: kind"),
        ({"input_tokens": [0, -5, 0]}, "step 1: input_tokens must be tokens, 0 or more"),
        ({"output_tokens": [0, 2**31, 0]}, "step 1: output_tokens must be tokens, at most"),
        ({"request": [0, 0, 0]}, "every request needs a step"),
        ({"request": [0, 1, 2]}, "do not fit"),
        ({"request": [1, 0, 1]}, "sorted"),
        ({"group": [0, 1, 0]}, "sorted"),
    ],
)
def test_a_broken_stream_is_refused_with_the_place(changes, message):
    refused(with_steps(plain(), **changes), message)


def test_arrivals_are_sorted_numbers_within_the_longest_run():
    programs = [[visit("s", 1.0)]] * 2
    refused(scenario([1.0, 0.0], programs), "request 1 arrives before the one above it; sort")
    refused(scenario([0.0, float("nan")], programs), "request 1: arrival_s is no number")
    refused(
        scenario([0.0, 1.2e6], programs), "spans 1,200,000 s from first to last.*check the unit"
    )
    check(scenario([1.7e9, 1.7e9 + LONGEST_S], programs))


def test_block_hashes_hold_no_null():
    made = scenario([0.0], [[call(5, 5)]])
    field = STREAM_IDENTITIES.field("block_hashes")
    for hashes, fine in ([1, None], False), ([1, 2], True), (None, True):
        steps = made.stream.steps.append_column(field, pa.array([hashes], field.type))
        case = Scenario(Stream(made.stream.requests, steps), made.fleet)
        if fine:
            check(case)
        else:
            refused(case, "block_hashes must hold no null")


def test_a_call_to_a_pool_that_the_fleet_lacks_goes_to_the_engine():
    check(with_steps(plain(), pool=["default", "elsewhere", "default"]))


def pools(**others):
    return plain(fleet().model_copy(update={"pools": others}))


def moving(pool):
    return engine().model_copy(update={"prefill": PrefillPool(pool=pool)})


@pytest.mark.parametrize(
    ("others", "message"),
    [
        ({"small": moving("big")}, "pool 'small': no prefill pool 'big'; there are: default$"),
        ({"small": moving("small")}, "pool 'small' names itself as its prefill pool"),
        ({"a": moving("b"), "b": moving("a")}, "pool 'a': its prefill pool 'b' has prompts.*cycle"),
        ({"a": moving("b"), "b": moving("default")}, "pool 'a': its prefill pool 'b'.*chain"),
        ({"default": engine()}, "pool 'default' is the fleet's engine"),
    ],
)
def test_prompts_are_computed_in_another_pool_that_is_there(others, message):
    refused(pools(**others), message)


def test_several_pools_may_share_a_prefill_pool():
    check(pools(a=moving("p"), b=moving("p"), p=engine()))


def changed(**options):
    return plain(fleet(engine().model_copy(update=options)))


def scaler(**options):
    return {"autoscaler": Autoscaler(target=1.0, **options)}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"prefix_cache": PrefixCache(tokens_per_hash=24)},
            "pool 'default': tokens_per_hash 24 must be a multiple of block_size 16",
        ),
        (
            {"max_num_batched_tokens": 63},
            "max_num_batched_tokens 63 is too few for max_num_seqs 64 decodes; at least 64",
        ),
        (
            {"max_num_batched_tokens": 191, "speculative": Speculative(acceptance=(0.5, 0.5))},
            r"191 is too few for max_num_seqs 64 decodes of 3 tokens \(1 and 2 drafted\).*192",
        ),
        (scaler(least=3, most=2), r"autoscaler's most \(2\) is below its least \(3\)"),
        (scaler(least=2, most=4), "keeps at least 2 replicas, but it begins with 1; raise"),
        (scaler(most=4, cold_start_s=2e6), "pool 'default': autoscaler.cold_start_s is 2e"),
        ({"step": step_model(front=3e7)}, "pool 'default': front_s is 3e"),
    ],
)
def test_a_pool_whose_settings_contradict_each_other_is_refused(options, message):
    refused(changed(**options), message)


def test_settings_on_their_limits_pass():
    check(changed(prefix_cache=PrefixCache(tokens_per_hash=32), max_num_batched_tokens=64))
    check(changed(replicas=2, **scaler(least=2, most=2)))
    check(changed(step=step_model(base=0.0)))
    client = Client(closed_loop=50)
    check(plain(fleet().model_copy(update={"client": client})))


def test_a_time_beyond_any_run_is_refused_but_a_limit_beyond_it_is_no_limit():
    refused(
        plain(fleet(stations=[station("s", 1, samples=[-0.5])])), "'s': service_samples_s is -0"
    )
    refused(plain(fleet(backoff_s=1e9, max_attempts=2)), "retry's last backoff is 2e.*days")
    refused(plain(fleet(stations=[station("s", 1, rate_per_s=1e-9)])), "1 / rate_per_s is 1e")
    check(plain(fleet(stations=[station("s", 1, timeout_s=1e9)], attempt_timeout_s=1e9)))


def test_a_ladder_leaves_out_stations_that_there_are():
    rungs = (Rung(above=2.0, below=1.0, skip=("s",)), Rung(above=3.0, below=1.0, skip=("nobody",)))
    the_fleet = fleet(stations=[station("kb", 1)]).model_copy(
        update={"ladder": Ladder(rungs=rungs)}
    )
    refused(plain(the_fleet), "ladder rung 1: no station 'nobody' to leave out; there are: kb, s$")


def test_a_pool_that_can_hold_none_of_its_calls_is_refused_with_blocks_needed_and_had():
    small = engine(block=16, blocks=2)
    calls = [[call(40, 5)], [call(30, 9)]]
    refused(
        scenario([0.0, 0.0], calls, fleet(small)),
        r"pool 'default': no call fits into a replica. The shortest needs 3 KV blocks \(38 tokens,"
        r" 16 a block\), kv_blocks is 2",
    )
    check(scenario([0.0, 0.0], [*calls[:1], [call(30, 3)]], fleet(small)))


def test_a_prefill_pool_needs_room_for_prompts_alone():
    both = fleet(moving("p")).model_copy(update={"pools": {"p": engine(blocks=2)}})
    check(scenario([0.0], [[call(32, 500)]], both))
    refused(
        scenario([0.0], [[call(33, 500)]], both),
        "pool 'p': no call fits.*needs 3 KV blocks \\(33 tokens",
    )
