"""The engine, rule by rule, against schedules worked out by hand, to the tick.

Unless a test says otherwise a step takes one second whatever is in it.
"""

import pytest
from tests.sim.making import call, engine, fleet, log_of, scenario, step_model, told

from sojourn.capacity.policies import Order, PrefillPool, Scheduler, Speculative
from sojourn.sim.lowering import lower
from sojourn.sim.luck import ACCEPT, draw, mixed
from sojourn.sim.simulate import ENGINES
from sojourn.sim.ticks import PER_S

pytestmark = pytest.mark.parametrize("kind", sorted(ENGINES))
SECOND = step_model(base=1.0)


def run(kind, arrivals, calls, model, *, priorities=None, pools=None, **retry):
    """One call per request; the log."""
    the_fleet = fleet(model, **retry).model_copy(update={"pools": pools or {}})
    made = scenario(arrivals, [[c] for c in calls], the_fleet, priorities=priorities)
    return log_of(made, kind)


def marks(log):
    """Scheduled, first token, end of every call."""
    return told(log.calls, "scheduled", "first", "end")


def scheduled(log):
    return [row[0] for row in told(log.calls, "scheduled")]


def test_a_step_takes_at_least_a_tick(kind):
    log = run(kind, [0.0], [call(5, 4)], engine(step_model(base=0.0)))
    assert log.calls["end"].tolist() == [4]
    assert log.calls["first"].tolist() == [1]


def test_a_call_that_comes_as_a_step_ends_is_in_the_next(kind):
    log = run(kind, [0.0, 2.0], [call(1, 9), call(1, 1)], engine(SECOND))
    assert marks(log)[1] == (2.0, 3.0, 3.0)


def test_a_long_prompt_is_capped_only_beside_others(kind):
    model = engine(SECOND, scheduler=Scheduler(long_prompt_cap=4))
    assert marks(run(kind, [0.0], [call(12, 1)], model)) == [(0.0, 1.0, 1.0)]
    together = run(kind, [0.0, 0.0], [call(12, 1), call(12, 1)], model)
    assert marks(together) == [(0.0, 3.0, 3.0)] * 2
    # alone when its first step began, capped in the second: 12 of 16, 4, then the other's 4
    budget = engine(SECOND, budget=12, scheduler=Scheduler(long_prompt_cap=4), seqs=2)
    log = run(kind, [0.0, 0.5], [call(16, 1), call(4, 1)], budget)
    assert marks(log) == [(0.0, 2.0, 2.0), (1.0, 2.0, 2.0)]


@pytest.mark.parametrize(("whole", "begins"), [(True, 4.0), (False, 1.0)])
def test_blocks_for_the_whole_input_or_the_first_chunk(kind, whole, begins):
    """Eight blocks of 4. At 1 the first decodes with 5 of them, three are free: enough for a
    chunk of 4 tokens, not for the prompt of 16."""
    model = engine(
        SECOND, block=4, blocks=8, budget=64,
        scheduler=Scheduler(admit_full_input=whole, long_prompt_cap=4),
    )  # fmt: skip
    log = run(kind, [0.0, 0.5], [call(16, 4), call(16, 1)], model)
    assert scheduled(log) == [0.0, begins]


def test_the_whole_input_must_be_free_but_is_not_taken(kind):
    """Ten blocks of 1: both prompts of 6 fit one after the other only, but where the first has
    computed 2 tokens (2 blocks) the second's 6 are still free."""
    model = engine(
        SECOND, block=1, blocks=10, budget=64, scheduler=Scheduler(long_prompt_cap=2)
    )  # fmt: skip
    log = run(kind, [0.0, 0.0], [call(6, 1), call(6, 1)], model)
    assert scheduled(log) == [0.0, 0.0]
    # 2 and 2, 4 and 4; then the first takes its last two, the second finds none and goes; alone it
    # is not capped
    assert told(log.calls, "preemptions", "end") == [(0, 3.0), (1, 4.0)]


@pytest.mark.parametrize(("share", "begins"), [(0.2, 1.0), (0.3, 4.0)])
def test_the_watermark_counts_while_others_run(kind, share, begins):
    """Ten blocks of 4; at 1 the first decodes in two of them, and the second's six would leave
    two free: as many as 0.2 asks for. Alone it may have all."""
    model = engine(SECOND, block=4, blocks=10, scheduler=Scheduler(watermark=share))
    log = run(kind, [0.0, 0.5], [call(4, 4), call(24, 1)], model)
    assert scheduled(log) == [0.0, begins]


def test_priorities_order_the_queue_and_equal_ones_their_coming(kind):
    model = engine(SECOND, seqs=1, scheduler=Scheduler(order=Order.PRIORITY))
    calls = [call(1, 2)] + [call(1, 1)] * 4
    log = run(kind, [0.0, 0.1, 0.2, 0.3, 0.4], calls, model, priorities=[-5, -2, 0, -2, -1])
    assert scheduled(log) == [0.0, 4.0, 2.0, 5.0, 3.0]


def test_the_least_important_is_preempted_first_though_in_the_batch(kind):
    """Seven blocks of 4, two prompts of 8. At 5 both need a fourth block: the first takes the last
    free one, then the second asks, and the first, of less importance, leaves the batch."""
    order = Scheduler(order=Order.PRIORITY)
    model = engine(SECOND, block=4, blocks=7, scheduler=order)
    log = run(kind, [0.0, 0.0], [call(8, 10), call(8, 10)], model, priorities=[-1, 0])
    assert told(log.calls, "preemptions", "first", "end") == [(1, 1.0, 15.0), (0, 1.0, 10.0)]


def test_a_victims_tokens_go_back_to_the_budget(kind):
    """Eleven blocks of 4, budget 8. From 1 on two decodes leave 6 tokens to the long prompt: 24 by
    5. Then the first takes the last free block; the second asks and the first, of less
    importance, leaves the batch and gives its token back: the prompt's last 7 fit."""
    order = Scheduler(order=Order.PRIORITY, admit_full_input=False)
    model = engine(SECOND, block=4, blocks=11, budget=8, seqs=3, scheduler=order)
    calls = [call(4, 20), call(4, 20), call(31, 1)]
    log = run(kind, [0.0, 0.0, 0.5], calls, model, priorities=[-1, 0, 0])
    assert marks(log)[2] == (1.0, 6.0, 6.0)
    assert told(log.samples, "t", "preemptions")[4:6] == [(5.0, 0), (6.0, 1)]


def test_a_prompt_in_the_batch_may_be_the_victim(kind):
    """Blocks of 1, eighteen; the second prompt, more important, comes when the first has 8
    tokens. With chunks of 2 they have 12 and 4 at 3; the first takes the last two blocks, the
    second asks, and the first leaves the batch. It is back at 4: 2 tokens, 8 and 6."""
    order = Scheduler(order=Order.PRIORITY, admit_full_input=False, long_prompt_cap=2)
    model = engine(SECOND, block=1, blocks=18, budget=8, seqs=2, scheduler=order)
    log = run(kind, [0.0, 0.5], [call(16, 1), call(8, 1)], model, priorities=[-5, 0])
    assert told(log.calls, "scheduled", "first", "preemptions") == [(0.0, 7.0, 1), (1.0, 5.0, 0)]


def test_nothing_is_admitted_in_a_step_that_preempts(kind):
    """As in the test of priorities, with a third call that comes at 4.5 and would fit."""
    order = Scheduler(order=Order.PRIORITY)
    model = engine(SECOND, block=4, blocks=7, budget=16, seqs=3, scheduler=order)
    log = run(
        kind, [0.0, 0.0, 4.5], [call(8, 10), call(8, 10), call(2, 1)], model, priorities=[-1, 0, 0]
    )
    assert told(log.calls, "preemptions", "scheduled") == [(1, 0.0), (0, 0.0), (0, 6.0)]


def test_prefill_first_lets_decodes_wait(kind):
    calls = [call(4, 5), call(4, 1), call(4, 1)]
    fcfs = run(kind, [0.0, 0.5, 1.5], calls, engine(SECOND))
    assert marks(fcfs) == [(0.0, 1.0, 5.0), (1.0, 2.0, 2.0), (2.0, 3.0, 3.0)]
    order = Scheduler(order=Order.PREFILL_FIRST)
    log = run(kind, [0.0, 0.5, 1.5], calls, engine(SECOND, scheduler=order))
    assert marks(log) == [(0.0, 1.0, 7.0), (1.0, 2.0, 2.0), (2.0, 3.0, 3.0)]


def test_prefill_first_decodes_when_the_head_does_not_fit(kind):
    order = Scheduler(order=Order.PREFILL_FIRST)
    model = engine(SECOND, block=4, blocks=3, scheduler=order)
    log = run(kind, [0.0, 0.5], [call(4, 5), call(12, 1)], model)
    assert marks(log) == [(0.0, 1.0, 5.0), (5.0, 6.0, 6.0)]


def speculating(accept, **more):
    return engine(SECOND, speculative=Speculative(acceptance=accept), **more)


def test_a_draft_that_is_accepted_is_written_at_once(kind):
    log = run(kind, [0.0], [call(5, 7)], speculating((1.0, 1.0)))
    assert told(log.calls, "first", "end", "written") == [(1.0, 3.0, 7)]  # 1 + 3 + 3
    log = run(kind, [0.0], [call(5, 6)], speculating((1.0, 1.0)))
    assert told(log.calls, "first", "end", "written") == [(1.0, 3.0, 6)]  # not beyond the output
    log = run(kind, [0.0], [call(5, 4)], speculating((0.0, 1.0)))
    assert told(log.calls, "first", "end", "written") == [(1.0, 4.0, 4)]


def test_acceptance_is_drawn_for_every_verification(kind):
    accept, output = (0.5, 0.5, 0.5), 40
    made = scenario([0.0], [[call(5, output)]], fleet(speculating(accept)), seed=4)
    luck = draw(4, int(lower(made).requests.identity[0]), 0, 0, ACCEPT)
    written, steps = 1, 1
    while written < output:
        hits = [mixed(luck + 16 * (steps - 1) + i) >> 11 < 1 << 52 for i in range(3)]
        written += 1 + next((i for i, hit in enumerate([*hits, False]) if not hit), 3)
        steps += 1
    assert told(log_of(made, kind).calls, "end") == [(float(steps),)]
    assert steps < output


def test_drafts_take_budget_and_blocks_ahead(kind):
    """Budget 6, a decode takes 3 of it: the second prompt of 6 takes 3 and 3."""
    log = run(
        kind, [0.0, 0.5], [call(1, 20), call(6, 1)], speculating((0.0, 0.0), budget=6, seqs=2)
    )
    assert marks(log)[1] == (1.0, 3.0, 3.0)
    # blocks of 1: 5 tokens of the prompt, and 3 for the decode: 8 in use at 1.5, read at 2
    log = run(kind, [0.0], [call(5, 9)], speculating((0.0, 0.0), block=1, blocks=30))
    assert told(log.samples, "t", "used_blocks")[:3] == [(1.0, 5), (2.0, 8), (3.0, 9)]


def test_a_call_given_up_in_a_step_leaves_at_its_end(kind):
    calls = [call(1, 40), call(1, 1)]
    log = run(kind, [0.0, 1.25], calls, engine(SECOND, seqs=1), attempt_timeout_s=1.5)
    assert told(log.calls, "scheduled", "end", "written") == [(0.0, 1.5, 1), (2.0, 2.75, 0)]


def test_a_call_given_up_while_it_waits_leaves_at_once(kind):
    """The second is given up at 3; the third is next although it came later."""
    log = run(
        kind, [0.0, 0.5, 2.5], [call(1, 2), call(1, 9), call(1, 2)],
        engine(step_model(base=1.75), seqs=1), attempt_timeout_s=3.5,
    )  # fmt: skip
    assert told(log.calls, "scheduled", "end") == [(0.0, 3.5), (3.5, 4.0), (5.25, 6.0)]


def test_without_abort_a_call_stays_to_its_end_unseen(kind):
    model = engine(SECOND, seqs=1, abort_on_cancel=False)
    calls = [call(1, 6), call(1, 1)]
    log = run(kind, [0.0, 1.25], calls, model, attempt_timeout_s=5.5)
    assert told(log.calls, "scheduled", "end", "written") == [(0.0, 5.5, 5), (6.0, 6.75, 0)]
    log = run(kind, [0.0, 1.25], calls, model, attempt_timeout_s=5.75)  # the second ends on it
    assert told(log.calls, "scheduled", "end", "written") == [(0.0, 5.75, 5), (6.0, 7.0, 1)]


def split(prefill, decode, **transfer):
    """Calls to `far`: prompts in `near`, the rest in `far`."""
    moved = decode.model_copy(update={"prefill": PrefillPool(pool="near", **transfer)})
    return {"far": moved, "near": prefill}


def test_a_disaggregated_call_moves_after_its_first_token(kind):
    """Prompt at 1, KV of 10 tokens moves in 0.5 + 10 x 0.125, then one step for each token."""
    pools = split(
        engine(SECOND), engine(SECOND), transfer_base_s=0.5, transfer_s_per_token=0.125
    )  # fmt: skip
    log = run(kind, [0.0], [call(10, 4, pool="far")], engine(SECOND), pools=pools)
    names = ("queued", "scheduled", "first", "moved", "resumed", "end", "written", "replica")
    assert told(log.calls, *names) == [(0.0, 0.0, 1.0, 2.75, 2.75, 5.75, 4, 1)]
    log = run(kind, [0.0], [call(10, 1, pool="far")], engine(SECOND), pools=pools)
    assert told(log.calls, *names) == [(0.0, 0.0, 1.0, None, None, 1.0, 1, 2)]


def test_the_token_left_after_a_transfer_is_timed_as_a_decode(kind):
    step = step_model(base=1.0, per_decode=0.5, slope=0.25, token=8.0)
    pools = split(engine(SECOND), engine(step))
    log = run(kind, [0.0], [call(10, 3, pool="far")], engine(SECOND), pools=pools)
    first, second = 1.5 + 0.25 * 11, 1.5 + 0.25 * 12
    assert told(log.calls, "resumed", "end") == [(1.0, 1.0 + first + second)]


def test_blocks_stay_held_while_kv_moves(kind):
    """The prefill replica has room for one prompt: the second begins when the first has moved,
    or is given up on its way."""
    pools = split(engine(SECOND, block=4, blocks=2), engine(SECOND), transfer_base_s=3.0)
    calls = [call(8, 2, pool="far")] * 2
    log = run(kind, [0.0, 0.25], calls, engine(SECOND), pools=pools)
    assert told(log.calls, "scheduled", "moved") == [(0.0, 4.0), (4.0, 8.0)]
    log = run(kind, [0.0, 0.25], calls, engine(SECOND), pools=pools, attempt_timeout_s=2.5)
    names = ("scheduled", "first", "moved", "end")
    assert told(log.calls, *names) == [(0.0, 1.0, None, 2.5), (2.5, None, None, 2.75)]


def test_after_a_preemption_in_the_decode_pool_nothing_is_cached(kind):
    """Seven blocks of 4 hold two sequences of 9 until both need a fourth block; the later one
    comes back when the first has ended and computes 13 tokens or more at once: a prompt of 13 at
    a tenth of a second each, and not one decode."""
    step = step_model(base=1.0, token=0.125)
    pools = split(engine(SECOND), engine(step, block=4, blocks=7))
    calls = [call(8, 10, pool="far")] * 2
    log = run(kind, [0.0, 0.0], calls, engine(SECOND), pools=pools)
    # both moved at 1; tokens 2 to 5 by 5; at 5 the second goes; the first's tokens 6 to 10 by 10
    # the second: 13 tokens by 10 + 1 + 13/8, and four more
    assert told(log.calls, "preemptions", "resumed", "end") == [
        (0, 1.0, 10.0), (1, 1.0, 10.0 + 1 + 13 / 8 + 4),
    ]  # fmt: skip


def test_counters_of_a_disaggregated_call(kind):
    pools = split(engine(SECOND), engine(SECOND))
    log = run(kind, [0.0], [call(10, 4, cached=3, pool="far")], engine(SECOND), pools=pools)
    names = ("query_tokens", "hit_tokens", "prompt_tokens", "written_tokens")
    last = log.samples[log.samples["t"] == log.samples["t"].max()]
    assert told(last, "replica", *names) == [
        (0, 0, 0, 0, 0), (1, 0, 0, 0, 3), (2, 10, 3, 10, 1),
    ]  # fmt: skip


def test_busy_counts_the_step_under_way(kind):
    log = run(kind, [0.25], [call(1, 1)], engine(step_model(base=3.5)))
    assert told(log.samples, "t", "busy") == [
        (1.0, 0.75), (2.0, 1.75), (3.0, 2.75), (4.0, 3.5),
    ]  # fmt: skip
    assert log.samples["t"][-1] == 4 * PER_S
