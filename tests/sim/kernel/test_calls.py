"""Calls outside the engine: front end, encoder, routers, KV transfer and giving up, to the tick.

In these plans a step takes 10 ticks and 1 for each prompt token.
"""

from __future__ import annotations

import pytest
from tests.sim.kernel.plans import call, encoder, ints, lowered, pool, retry, rows, station, visit

from sojourn.capacity.policies import RouterPolicy
from sojourn.sim.log import CANCELLED, ERROR, OK
from sojourn.sim.luck import FRONT, draw, pick


def test_the_front_end_draws_its_time(run):
    samples = [5, 6, 7, 8]
    log = run(lowered([[call(4, 3)]] * 3, [0, 100, 200], pools=[pool(front=ints(samples))]))
    fronts = [pick(samples, draw(7, r + 1, 0, 0, FRONT)) for r in range(3)]
    assert rows(log.calls, "arrival", "queued", "scheduled", "first", "end") == [
        (t, t + f, t + f, t + f + 14, t + f + 34)
        for t, f in zip([0, 100, 200], fronts, strict=True)
    ]


def test_an_encoder_serves_one_by_one_and_remembers_the_last_image(run):
    image = {"image_tokens": 10}
    programs = [
        [call(image=7, **image)], [call(image=8, **image)], [call(image=8, **image)],
        [call(image=7, **image)], [call(image=0, **image)], [call(image=9)],
    ]  # fmt: skip
    pools = [pool(encoder=encoder(base=90, per_token=1, cache=1))]
    log = run(lowered(programs, [0, 1, 300, 400, 600, 600], pools=pools))
    assert sorted(rows(log.calls, "request", "encode", "encode_start", "queued")) == [
        (0, 0, 0, 100), (1, 1, 100, 200), (2, 300, 300, 300), (3, 400, 400, 500),
        (4, 600, 600, 700), (5, -1, -1, 600),
    ]  # fmt: skip


def test_a_call_that_no_replica_can_hold_fails_for_good(run):
    pools = [pool(blocks=4)]
    plan = retry(most=3, on_error=True)
    log = run(lowered([[call(14, 3)], [call(14, 4)]], [0, 0], pools=pools, retry=plan))
    assert sorted(rows(log.calls, "request", "replica", "queued", "end", "status")) == [
        (0, 0, 0, 44, OK), (1, -1, -1, 0, ERROR),
    ]  # fmt: skip
    assert rows(log.ends, "attempts", "status") == [(1, OK), (1, ERROR)]


def split(**changes):
    """Prompts in pool 1 (replica 1), decodes in pool 0 (replica 0)."""
    return [pool(prefill_pool=1, transfer=7, transfer_token=2, **changes), pool(first=1)]


def test_kv_moves_from_the_prefill_pool_to_the_decode_pool(run):
    log = run(lowered([[call(4, 3)], [call(4, 1)]], [0, 100], pools=split()))
    assert rows(log.calls, "queued", "first", "moved", "resumed", "end", "replica", "written") == [
        (0, 14, 29, 29, 49, 0, 3), (100, 114, -1, -1, 114, 1, 1),
    ]  # fmt: skip


def test_a_prompt_too_long_for_the_prefill_pool_is_refused(run):
    pools = [pool(prefill_pool=1), pool(first=1, blocks=2)]
    log = run(lowered([[call(8, 3)], [call(9, 3)]], [0, 0], pools=pools))
    assert sorted(rows(log.ends, "status")) == sorted([(OK,), (ERROR,)])
    assert rows(log.calls, "request", "status")[0] == (1, ERROR)


@pytest.mark.parametrize(
    ("moment", "written"), [(3, 0), (50, 0), (101, 0), (118, 1), (130, 1), (136, 2)]
)
def test_a_call_is_given_up_wherever_it_is(run, moment, written):
    """Front end to 5, encoder to 100, prompt to 114, transfer to 129, decodes from there: 139..."""
    front = {"front": ints([5]), "encoder": encoder(base=95)}
    pools = [pool(prefill_pool=1, transfer=7, transfer_token=2), pool(first=1, **front)]
    if moment == 136:
        pools[0] = pool(prefill_pool=1, transfer=1, transfer_token=0)  # decodes from 115
    program = [call(4, 50, image_tokens=1), visit(10_000)]
    programs = [program, [call(4, 2, image_tokens=1)]]
    stations = [station(timeout=moment)]
    log = run(lowered(programs, [0, moment], pools=pools, stations=stations, servers=[-1]))
    assert rows(log.calls, "request", "end", "written", "status")[0] == (
        0, moment, written + (moment == 136), CANCELLED,
    )  # fmt: skip
    assert rows(log.calls, "encode_start", "queued", "first")[1] == (
        moment + 5, moment + 100, moment + 114,
    )  # fmt: skip


def test_without_abort_a_call_stays_unseen_to_its_natural_end(run):
    programs = [[call(4, 50), visit(10_000)], [call(4, 1)]]
    stations = [station(timeout=20)]
    slow = pool(abort=False, seqs=1)
    log = run(lowered(programs, [0, 30], pools=[slow], stations=stations, servers=[-1]))
    assert rows(log.calls, "end", "scheduled", "written", "status") == [
        (20, 0, 1, CANCELLED), (14 + 490 + 14, 14 + 490, 1, OK),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("router", "replicas"),
    [
        (RouterPolicy.ROUND_ROBIN, [0, 1, 2, 0, 1, 2]),
        (RouterPolicy.LEAST_LOADED, [0, 1, 2, 1, 1, 0]),
        (RouterPolicy.SESSION, [0, 2, 2, 1, 2, 1]),
    ],
)
def test_routers(run, router, replicas):
    """Request 0 decodes long, 1 and 2 end at 14; so do 3 and 4, begun at 20 and 40."""
    programs = [[call(4, 100)], *[[call(4, 1)]] * 4, [call(4, 1)]]
    log = run(
        lowered(
            programs, [0, 0, 0, 20, 40, 2000], pools=[pool(replicas=3, router=router)],
            sessions=[0, 5, 2**64 - 2, 0, 2, 1],
        )
    )  # fmt: skip
    chosen = dict(rows(log.calls, "request", "replica"))
    assert [chosen[r] for r in range(6)] == replicas
