"""The blocks of a capacity answer: what is said where parts are missing, and the drawn charts."""

from __future__ import annotations

import json

import pytest
from tests.report.capacity_documents import answer, holding, model, settled

from sojourn.interval import Excuse, Interval
from sojourn.plan.holding_records import Sustained
from sojourn.plan.traps import binding_first, traps
from sojourn.report import capacity_blocks, capacity_charts
from sojourn.report.document import Chart
from sojourn.report.html import draw
from sojourn.sim.stability import Trend

REFUSED = Excuse(reason="No SLO is set", collect=("set `slo`",))


def text(blocks):
    return "\n".join(
        str(getattr(b, name)) for b in blocks for name in ("text", "answer") if hasattr(b, name)
    )


def test_every_refusal_says_what_to_set():
    blocks = capacity_blocks.answer(
        answer(holding=REFUSED, sustained=REFUSED, replicas=REFUSED), None
    )
    assert text(blocks).count("set `slo`") >= 3
    assert capacity_blocks.verdict(answer(holding=REFUSED)) == (str(REFUSED), 4)
    assert capacity_blocks.verdict(REFUSED) == (str(REFUSED), 4)


def test_a_load_held_nowhere_is_said_as_such():
    none = holding().model_copy(
        update={"load_factor": Interval.exact(0.0), "rate_per_s": Interval.exact(0.0), "points": ()}
    )
    sentence, code = capacity_blocks.verdict(answer(holding=none))
    assert code == 3
    assert sentence.startswith("At no level of load")
    blocks = capacity_blocks.answer(answer(holding=none), None)
    assert "At no level of load" in text(blocks)


@pytest.mark.parametrize(
    ("bounds", "code", "words"),
    [
        ((1.0, 1.1, 1.2), 0, "Holds to"),
        ((0.8, 0.9, 0.99), 3, "past it"),
        ((0.9, 1.05, 1.2), 4, "Too near to tell"),
    ],
)
def test_the_exit_code_counts_the_whole_interval(bounds, code, words):
    low, mid, high = bounds
    held = holding().model_copy(update={"load_factor": Interval(low=low, mid=mid, high=high)})
    sentence, found = capacity_blocks.verdict(answer(holding=held))
    assert found == code
    assert words in sentence


def test_a_queue_that_does_not_settle_is_a_warning():
    held = holding().model_copy(update={"settled": settled(Trend.TOO_SHORT)})
    blocks = capacity_blocks.holding(held, 2.0)
    assert any("neither to stay nor to grow" in getattr(b, "text", "") for b in blocks)
    lowered = Sustained(
        rate_per_s=Interval.exact(3.0), settled=settled(days=0), lowered=True, replications=4
    )
    assert "longer ones did not" in text(capacity_blocks.for_ever(lowered))


def test_charts_are_drawn_and_written_in_characters():
    for target in (2.0, None):
        for block in capacity_blocks.holding(holding(), target):
            if isinstance(block, Chart):
                svg = draw(block)
                assert "<svg" in svg
                assert block.plain.count("\n") > 10
    spec = json.dumps(capacity_charts.latency(holding(), 2.0))
    assert '"log"' in spec, "from 1 s to 60 s"
    assert "holds to here" in spec
    assert "holds to here (1.25)" in capacity_charts.throughput_text(holding())


def test_traps_carry_the_figures_and_apply_only_where_they_do(build_profile):
    found = traps(model(), holding(), build_profile, deployment(4096), busy=0.93)
    said = "\n".join(found)
    assert "93%" in said
    assert "50%" in said
    assert "only builds queue: offered 8" in said
    assert "not the peak: 2 requests/s on average, 4 in the busiest 60 s" in said
    calm = holding().model_copy(update={"points": holding().points[:2]})
    quiet = traps(model(), calm, build_profile, deployment(None), busy=0.5)
    assert not any("utilisation" in trap or "queue" in trap for trap in quiet)
    assert traps(model(), REFUSED, build_profile, deployment(None), busy=None)


def deployment(longest):
    from sojourn.config import Deployment

    return Deployment(max_model_len=longest)


@pytest.fixture
def build_profile():
    from tests.capacity.test_resources import make_profile

    return make_profile(rate=2.0, peak=4.0)


def test_the_first_sentence_names_what_is_full_first():
    assert "engine time is full first, at 8 [" in binding_first(model())
