"""The prefix cache, rule by rule, against hand-made schedules, to the tick.

A prompt token takes a second, all else next to nothing (a tick a step): the time of a call tells
what it had to compute. Blocks hold 4 tokens.
"""

from dataclasses import replace

import numpy as np
import pytest
from tests.sim.making import call, engine, fleet, scenario, step_model, told

from sojourn.capacity.policies import PrefixCache, Router, RouterPolicy
from sojourn.sim.lowering import lower
from sojourn.sim.simulate import ENGINES

pytestmark = pytest.mark.parametrize("kind", sorted(ENGINES))
TOKENS = step_model(base=0.0, token=1.0)


def cached(*, blocks=100, unit=1, **more):
    cache = PrefixCache(tokens_per_hash=4 * unit)
    return engine(TOKENS, block=4, blocks=blocks, prefix_cache=cache, **more)


def run(kind, arrivals, calls, model, **retry):
    return ENGINES[kind](
        lower(scenario(arrivals, [[c] for c in calls], fleet(model, **retry)))
    )  # fmt: skip


def hits(log):
    return [row[0] for row in told(log.calls, "cached")]


def computed(log):
    """Prompt tokens computed: whole seconds between the first time in a step and the token."""
    rows = told(log.calls, "scheduled", "first")
    return [round(first - scheduled) for scheduled, first in rows]


def chain(name, count):
    return [100 * name + i for i in range(count)]


def test_leading_hashes_are_hit_up_to_the_last_known_token_but_one(kind):
    log = run(
        kind,
        [0.0, 100.0, 200.0, 300.0],
        [
            call(13, 1, block_hashes=chain(1, 3)),
            call(13, 1, block_hashes=chain(1, 3)),
            call(12, 1, block_hashes=chain(1, 3)),
            call(40, 1, block_hashes=[*chain(1, 2), *chain(2, 1), chain(1, 3)[2]]),
        ],
        cached(),
    )
    assert hits(log) == [0, 12, 8, 8]
    assert computed(log) == [13, 1, 4, 32]


def test_recorded_cached_tokens_are_not_believed(kind):
    log = run(kind, [0.0], [call(13, 1, cached=8, block_hashes=chain(1, 3))], cached())
    assert hits(log) == [0]


def test_hashes_are_there_for_the_next_call_of_the_same_step(kind):
    calls = [call(13, 1, block_hashes=chain(1, 3))] * 2
    log = run(kind, [0.0, 0.0], calls, cached())
    assert hits(log) == [0, 12]
    assert told(log.calls, "first") == [(14.0,), (14.0,)]
    # five blocks in all: three shared, and one each
    assert log.samples["used_blocks"][0] == 5


def test_a_hash_is_registered_when_all_of_it_is_taken_into_a_step(kind):
    """Budget 6: the first takes 6 and 6 and 1 of 13. The second comes in the second step, when
    three hashes are there; the third sees but what has been taken: one."""
    calls = [call(13, 1, block_hashes=chain(1, 3))] * 2
    log = run(kind, [0.0, 7.0], calls, cached(budget=6, seqs=2))
    assert hits(log) == [0, 12]
    log = run(kind, [0.0, 0.5], [calls[0], call(9, 1, block_hashes=chain(1, 2))],
              cached(budget=14, seqs=2))  # fmt: skip
    assert hits(log) == [0, 8]


def test_shared_blocks_need_not_be_free(kind):
    """Six blocks. The first holds four while it writes; the second shares three of them and
    needs one of its own."""
    model = engine(
        step_model(base=1.0), block=4, blocks=6, prefix_cache=PrefixCache(tokens_per_hash=4)
    )
    calls = [call(13, 3, block_hashes=chain(1, 3)), call(14, 1, block_hashes=chain(1, 3))]
    log = run(kind, [0.0, 0.5], calls, model)
    assert told(log.calls, "scheduled", "cached") == [(0.0, 0), (1.0, 12)]
    log = run(kind, [0.0, 0.5], [calls[0], call(14, 1)], model)
    assert told(log.calls, "scheduled", "cached") == [(0.0, 0), (3.0, 0)]


def test_the_last_hashes_go_first(kind):
    """Six blocks: the first leaves four kept hashes; the second takes the two clean ones, and one
    kept: the last of the chain."""
    log = run(
        kind,
        [0.0, 100.0, 200.0],
        [
            call(16, 1, block_hashes=chain(1, 4)),
            call(12, 1),
            call(17, 1, block_hashes=chain(1, 4)),
        ],
        cached(blocks=6),
    )
    assert hits(log) == [0, 0, 12]


def test_the_least_recently_used_prefix_goes_first(kind):
    """Eight blocks: two prefixes of three. The first is used again, so the second gives way."""
    log = run(
        kind,
        [0.0, 100.0, 200.0, 300.0, 400.0, 500.0],
        [
            call(12, 1, block_hashes=chain(1, 3)),
            call(12, 1, block_hashes=chain(2, 3)),
            call(13, 1, block_hashes=chain(1, 3)),
            call(16, 1),
            call(13, 1, block_hashes=chain(1, 3)),
            call(13, 1, block_hashes=chain(2, 3)),
        ],
        cached(blocks=8),
    )
    assert hits(log)[:5] == [0, 0, 12, 0, 12]
    assert hits(log)[5] < 12


def test_a_hash_of_two_blocks_goes_whole(kind):
    """Five blocks: two hashes of two blocks are kept, one block is clean. Two are needed: a hash
    goes, and of it a block becomes clean."""
    log = run(
        kind,
        [0.0, 100.0, 200.0],
        [
            call(17, 1, block_hashes=chain(1, 2)),
            call(8, 1),
            call(17, 1, block_hashes=chain(1, 2)),
        ],
        cached(blocks=5, unit=2),
    )
    assert hits(log) == [0, 0, 8]


def test_what_was_written_is_registered_at_the_end(kind):
    first = call(4, 5, block_hashes=chain(1, 2))
    second = call(9, 1, block_hashes=chain(1, 2))
    assert hits(run(kind, [0.0, 100.0], [first, second], cached())) == [0, 8]
    # tokens 4 + 4 are computed at the end of an output of 5, one less of an output of 4
    shorter = call(4, 4, block_hashes=chain(1, 2))
    assert hits(run(kind, [0.0, 100.0], [shorter, second], cached())) == [0, 4]


def test_what_was_written_is_not_registered_by_an_abort(kind):
    """Given up at 9.5, when the first has written long since all but the last of its tokens."""
    model = engine(
        step_model(base=1.0), block=4, blocks=100, prefix_cache=PrefixCache(tokens_per_hash=4)
    )
    first = call(4, 40, block_hashes=chain(1, 3))
    log = run(kind, [0.0, 100.0], [first, call(13, 1, block_hashes=chain(1, 3))], model,
              attempt_timeout_s=30.5)  # fmt: skip
    assert hits(log) == [0, 4]


def test_registering_ends_at_the_first_hash_that_is_present(kind):
    """The second has the second hash of the first, not its first: it registers 9, stops at 101,
    and so 55 is not there for the third."""
    log = run(
        kind,
        [0.0, 100.0, 200.0],
        [
            call(8, 1, block_hashes=[100, 101]),
            call(12, 1, block_hashes=[9, 101, 55]),
            call(13, 1, block_hashes=[9, 101, 55]),
        ],
        cached(),
    )
    assert hits(log) == [0, 0, 8]


def preempting(blocks, **more):
    step = step_model(base=1.0, token=0.125)
    cache = PrefixCache(tokens_per_hash=4)
    return engine(step, block=4, blocks=blocks, prefix_cache=cache, **more)


def test_a_preempted_call_finds_what_is_left_of_its_own_tail(kind):
    """Seven blocks, two prompts of 8. At 7 (two steps of 16 tokens' prompt: 1 + 2 s) both need a
    fourth block; the second goes, three blocks of it are kept. The first needs one more to write
    its tenth token: the last of the three. So the second comes back to 8 tokens of 13."""
    log = run(kind, [0.0, 0.0], [call(8, 10), call(8, 10)], preempting(7))
    assert told(log.calls, "preemptions", "first", "end") == [
        (0, 3.0, 12.0), (1, 3.0, 12.0 + 1 + 5 / 8 + 4),
    ]  # fmt: skip


def test_a_preempted_call_finds_its_hashes_and_its_tail(kind):
    """As above, its first block being a hash."""
    calls = [call(8, 10), call(8, 10, block_hashes=chain(1, 1))]
    log = run(kind, [0.0, 0.0], calls, preempting(7))
    # the least recent of what it left is its tail of two, and the last of them goes
    assert told(log.calls, "preemptions", "end") == [(0, 12.0), (1, 12.0 + 1 + 5 / 8 + 4)]


def test_the_router_asks_the_caches_without_touching_them(kind):
    """Three replicas: the second call goes where its prefix is, the third, with none, to a
    replica without load."""
    router = Router(policy=RouterPolicy.PREFIX_AWARE, load_weight_tokens=4.0)
    model = cached(replicas=3, router=router)
    calls = [
        call(13, 1, block_hashes=chain(1, 3)), call(13, 1, block_hashes=chain(1, 3)),
        call(13, 1, block_hashes=chain(2, 3)), call(13, 1, block_hashes=chain(1, 3)),
    ]  # fmt: skip
    log = run(kind, [0.0, 1.0, 2.0, 3.0], calls, model)
    # the fourth: 12 tokens hit less 4 x 2 of load beats nothing hit and no load
    assert told(log.calls, "replica") == [(0,), (0,), (1,), (0,)]


def test_no_hashes_no_cache(kind):
    """A cache that nobody can hit changes nothing: what is kept is free."""
    rng = np.random.default_rng(1)
    calls = [call(int(p), int(o)) for p, o in rng.integers(1, 40, (30, 2))]
    bare = engine(step_model(base=1.0), block=4, blocks=25)
    made = scenario(np.arange(30) / 4, [[c] for c in calls], fleet(bare))
    with_cache = bare.model_copy(update={"prefix_cache": PrefixCache(tokens_per_hash=4)})
    log = ENGINES[kind](lower(made))
    other = ENGINES[kind](lower(replace(made, fleet=fleet(with_cache))))
    if log.calls["preemptions"].any():  # who is preempted may find its tail again
        assert told(log.calls, "request") == told(other.calls, "request")
    else:
        assert log.same(other)
