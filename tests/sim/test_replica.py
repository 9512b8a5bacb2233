"""One replica, step by step, against schedules worked out by hand."""

import pytest
from tests.sim.making import call, columns, engine, fleet, scenario, step_model

from sojourn.sim.simulate import ENGINES, simulate

EACH = pytest.mark.parametrize("kind", sorted(ENGINES))
MARKS = ("request_id", "arrival_s", "scheduled_s", "first_token_s", "end_s")


def run(arrivals, calls, model, kind):
    tables = simulate(scenario(arrivals, [[c] for c in calls], fleet(model)), engine=kind).tables
    rows = sorted(zip(*columns(tables.calls, *MARKS), strict=True))
    return tables, [row[1:] for row in rows]


@EACH
def test_one_call_is_a_prompt_step_and_a_step_per_further_token(kind):
    """Step 1: 0.1 + 100 x 0.001 + attended 100 x 101/2 x 1e-5. Then contexts 101, 102, 103."""
    model = engine(step_model(base=0.1, token=1e-3, context=1e-5, slope=1e-4, front=0.5))
    _, rows = run([2.0], [call(100, 4)], model, kind)
    first = 2.5 + 0.1 + 0.1 + 5050e-5
    last = first + 3 * 0.1 + (101 + 102 + 103) * 1e-4
    assert rows[0] == pytest.approx((2.0, 2.5, first, last))


@EACH
def test_a_step_costs_what_the_step_model_says(kind):
    """Decodes and a chunk share a step: the duration is `StepModel.step_s` of that mix."""
    step = step_model(base=0.05, per_decode=0.01, slope=1e-4, token=1e-3, context=1e-6)
    _, rows = run([0.0, 0.01], [call(10, 50), call(20, 1)], engine(step), kind)
    first = step.step_s(0, 0, 10, 55)
    joined = first + step.step_s(1, 11, 20, 210)
    assert rows[0][2] == pytest.approx(first)
    assert rows[1] == pytest.approx((0.01, first, joined, joined))


@EACH
def test_long_prompts_are_cut_to_the_budget_and_decodes_go_first(kind):
    """Budget 8: the second prompt (20) gets 7 beside the decode, thrice; the third waits for
    the step in which budget is left over, and shares it."""
    model = engine(step_model(base=1.0), budget=8, seqs=8)
    _, rows = run([0.0, 0.5, 0.6], [call(3, 20), call(20, 2), call(1, 1)], model, kind)
    assert rows[0] == pytest.approx((0.0, 0.0, 1.0, 20.0))
    assert rows[1] == pytest.approx((0.5, 1.0, 4.0, 5.0))  # 7 + 7 + 6
    assert rows[2] == pytest.approx((0.6, 3.0, 4.0, 4.0))


@EACH
def test_slots_are_taken_in_order_of_arrival(kind):
    model = engine(step_model(base=1.0), seqs=2)
    _, rows = run([0.0] * 4, [call(1, 2), call(1, 5), call(1, 1), call(1, 1)], model, kind)
    assert [row[1] for row in rows] == pytest.approx([0.0, 0.0, 2.0, 3.0])


@EACH
def test_cached_tokens_need_no_compute_but_hold_blocks(kind):
    step = step_model(base=0.0, token=0.01)
    whole = engine(step, block=10, blocks=12)
    tables, rows = run([0.0, 0.0], [call(100, 1, cached=90), call(30, 1)], whole, kind)
    assert rows[0] == pytest.approx((0.0, 0.0, 0.1, 0.1))
    # 12 blocks, 10 held by the first although it computes 10 tokens: the second (3) must wait
    assert rows[1] == pytest.approx((0.0, 0.1, 0.4, 0.4))
    sample = tables.engine_samples.to_pylist()[0]
    assert sample["prefix_hit_tokens_total"] == 90
    assert sample["prefix_query_tokens_total"] == 130


@EACH
@pytest.mark.parametrize("cached", [50, 51, 10_000])
def test_a_prompt_cached_whole_still_computes_a_token(kind, cached):
    _, rows = run([0.0], [call(50, 1, cached=cached)], engine(step_model(base=0, token=1)), kind)
    assert rows[0] == pytest.approx((0.0, 0.0, 1.0, 1.0))


@EACH
def test_without_a_block_the_youngest_is_preempted_and_computed_anew(kind):
    """Blocks of 4, seven in all. Two prompts of 8 hold two each, and a third from the step that
    computes token 9. In step 6 (token 13) the older takes the last free block and the younger
    finds none: being the youngest it goes itself. It comes back when the older has ended, at 10,
    and computes prompt and written tokens (13) in one chunk."""
    model = engine(step_model(base=1.0), block=4, blocks=7)
    tables, rows = run([0.0, 0.0], [call(8, 10), call(8, 10)], model, kind)
    assert rows[0] == pytest.approx((0.0, 0.0, 1.0, 10.0))
    # tokens 1 to 5 by step 5; preempted at step 6; back at 10: token 6 at 11, token 10 at 15
    assert rows[1] == pytest.approx((0.0, 0.0, 1.0, 15.0))
    assert sorted(tables.calls.column("preemptions").to_pylist()) == [0, 1]
    assert tables.engine_samples.column("preemptions_total").to_pylist()[-1] == 1


@EACH
def test_the_head_of_the_queue_is_not_overtaken(kind):
    """The second needs more blocks than are free, so the third waits too, though it would fit."""
    model = engine(step_model(base=1.0), block=4, blocks=8)
    calls = [call(20, 4), call(16, 1), call(4, 1)]
    _, rows = run([0.0, 0.1, 0.2], calls, model, kind)
    assert [row[1] for row in rows] == pytest.approx([0.0, 4.0, 4.0])


@EACH
def test_a_call_that_no_replica_can_hold_is_refused_and_counted(kind):
    model = engine(step_model(base=1.0), block=4, blocks=8)
    made = scenario(
        [0.0, 0.0],
        [[call(30, 3)], [call(30, 4)]],
        fleet(model, max_attempts=3, attempt_timeout_s=99),
    )
    run = simulate(made, engine=kind)
    assert run.tables.requests.column("status").to_pylist() == ["ok", "error"]
    assert run.tables.requests.column("attempts").to_pylist() == [1, 1]
    assert [(issue.action, issue.count) for issue in run.tables.quality.issues] == [("noted", 1)]


@EACH
def test_gauges_once_a_second(kind):
    """A call of 10 tokens of prompt and 40 of output, steps of 0.1 s, blocks of 10."""
    model = engine(step_model(base=0.1), block=10, blocks=20)
    tables, _ = run([0.05, 0.05], [call(10, 40)] * 2, model, kind)
    rows = tables.engine_samples.to_pylist()
    assert [row["t_s"] for row in rows] == [1.0, 2.0, 3.0, 4.0, 5.0]
    assert [row["running"] for row in rows] == [2, 2, 2, 2, 0]
    # at 1.0: nine steps have ended, the tenth is under way and computes token 10 + 9
    assert [row["generation_tokens_total"] for row in rows] == [18, 38, 58, 78, 80]
    assert [row["kv_usage"] for row in rows] == pytest.approx([0.2, 0.3, 0.4, 0.5, 0.0])
    assert [row["gpu_busy"] for row in rows] == pytest.approx([0.95, 1, 1, 1, 0.05])
    assert [row["prompt_tokens_total"] for row in rows] == [20] * 5


@EACH
def test_an_aborted_call_leaves_at_the_end_of_the_step(kind):
    """The deadline at 2.25 falls into the third step; the engine is busy until that ends."""
    step = step_model(base=0.5, per_decode=0.25)
    made = scenario(
        [0.0, 0.0], [[call(1, 40)], [call(1, 4)]], fleet(engine(step), attempt_timeout_s=2.25)
    )
    run = simulate(made, engine=kind)
    calls = {row["request_id"]: row for row in run.tables.calls.to_pylist()}
    assert run.tables.requests.column("status").to_pylist() == ["timeout", "timeout"]
    # step 1 takes 0.5 (no decodes), then 1.0 each: two tokens by 2.25
    assert [calls[name]["output_tokens"] for name in ("r0", "r1")] == [2, 2]
    assert [calls[name]["end_s"] for name in ("r0", "r1")] == [2.25, 2.25]
    busy = sum(run.tables.engine_samples.column("gpu_busy").to_pylist())
    assert busy == pytest.approx(2.5)


@EACH
def test_a_call_without_output_writes_a_token_all_the_same(kind):
    """An engine cannot end before its first token; a recorded 0 means that nobody counted it."""
    tables, rows = run([0.0], [call(10, 0)], engine(step_model(base=1.0)), kind)
    assert rows[0] == (0.0, 0.0, 1.0, 1.0)
    assert tables.calls.column("output_tokens").to_pylist() == [1]


@EACH
def test_the_preempted_comes_before_those_who_wait(kind):
    """As above, with a third call in the queue that would fit in the blocks set free."""
    model = engine(step_model(base=1.0), block=4, blocks=7, seqs=2)
    _, rows = run([0.0, 0.0, 0.5], [call(8, 10), call(8, 10), call(2, 1)], model, kind)
    assert [row[3] for row in rows] == pytest.approx([10.0, 15.0, 11.0])
    assert rows[2][1] == pytest.approx(10.0)
