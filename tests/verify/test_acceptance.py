"""Verdicts on pairs whose truth is known: gain, price, regression, mix, load, thin evidence."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa
import pytest
from tests.verify.pairs import config, window

from sojourn.config import Config
from sojourn.errors import InputError
from sojourn.trace.tables import Tables
from sojourn.verify.acceptance import GUARDS, JUDGED, accept
from sojourn.verify.records import Acceptance, Finding
from sojourn.verify.same_mix import P95, P99, SLO

QUESTIONS = 8


@pytest.fixture(scope="module")
def before():
    return window(seed=1)


def figures(acceptance):
    return {figure.name: figure for answer in acceptance.answers for figure in answer.figures}


def test_a_real_gain_is_accepted_and_every_question_answered(before):
    found = accept(before, window(seed=2, scale=0.5), config(), rollback=window(seed=3))
    assert found.accepted is True
    assert len(found.answers) == QUESTIONS
    finding = [answer.finding for answer in found.answers]
    assert finding[1:4] == [Finding.BETTER] * 3
    assert found.answers[6].finding is Finding.SAME
    assert found.answers[7].finding is Finding.SAME
    change = figures(found)[P95].change
    assert change is not None
    assert change.contains(-0.5)
    assert change.high < -0.4


def test_no_gain_at_twice_the_cost_is_refused(before):
    found = accept(before, window(seed=2), config(), after_config=config(replicas=2))
    assert found.accepted is False
    assert "costs 2.00 times" in found.reason
    assert found.answers[7].finding is Finding.WORSE
    assert figures(found)["cost per success"].change.mid == pytest.approx(1.0, abs=0.01)


def test_thirteen_to_eleven_seconds_at_twice_the_cost_is_not_worth_it():
    slo = {"default": {"e2e_s": 4.0, "percentile": 0.95}}
    found = accept(
        window(2000, seed=1),
        window(2000, seed=2, scale=11 / 13),
        config(slo=slo),
        after_config=config(replicas=2, slo=slo),
    )
    assert found.accepted is False
    assert found.reason.startswith("Not worth its price")
    assert figures(found)[P99].finding is Finding.BETTER


def test_a_gain_above_its_price_is_accepted(before):
    found = accept(before, window(seed=2, scale=0.4), config(), after_config=config(replicas=2))
    assert found.accepted is True
    assert figures(found)["cost per success"].finding is Finding.WORSE


def test_a_gain_below_its_price_is_accepted_where_the_slo_is_newly_held():
    slo = {"default": {"e2e_s": 9.0, "percentile": 0.95}}
    dear = config(replicas=2, slo=slo)
    old, new = window(2000, seed=1, scale=1.1), window(2000, seed=2, scale=0.75)
    found = accept(old, new, config(slo=slo), after_config=dear)
    assert found.accepted is True
    shrinks = 1 / (1 + found.same_mix[1].change.mid)
    assert shrinks < 2 * (1 + 0.05)
    without = accept(old, new, config(slo={}), after_config=config(replicas=2, slo={}))
    assert without.accepted is False


def test_the_slo_of_before_judges_both_windows(before):
    lax = config(slo={"default": {"e2e_s": 900.0}})
    found = accept(before, window(seed=2, scale=1.4), config(), after_config=lax)
    assert found.accepted is False
    assert figures(found)[SLO].after.mid < 0.97


def test_a_slower_window_is_a_regression(before):
    found = accept(before, window(seed=2, scale=1.4), config())
    assert found.accepted is False
    assert found.reason.startswith("A regression")


def test_errors_are_no_price_for_a_shorter_p99(before):
    found = accept(before, window(seed=2, scale=0.6, errors=0.1), config())
    assert found.accepted is False
    assert "errors worse" in found.reason
    assert figures(found)[P95].finding is Finding.BETTER


def test_errors_alone_are_a_regression(before):
    found = accept(before, window(seed=2, errors=0.1), config())
    assert found.accepted is False


def test_quality_is_no_price_either(before):
    graded = with_quality(before, 0.9), with_quality(window(seed=2, scale=0.5), 0.5)
    found = accept(*graded, config())
    assert found.accepted is False
    assert "quality score worse" in found.reason


def with_quality(tables, value):
    rows = tables.requests.num_rows
    place = tables.requests.schema.get_field_index("quality")
    column = pa.array([value] * rows, pa.float64())
    return replace(tables, requests=tables.requests.set_column(place, "quality", column))


@pytest.mark.parametrize("share", [0.02, 0.6])
def test_a_change_of_mix_alone_is_neither_gain_nor_regression(share):
    old, new = window(2000, seed=101, long_share=0.2), window(2000, seed=102, long_share=share)
    found = accept(old, new, config())
    assert found.accepted is None
    assert "under one mix" in found.reason
    plain = figures(found)[P99]
    assert abs(plain.change.mid) > 0.1
    assert found.mix_shift.change.mid == pytest.approx(plain.change.mid, abs=0.12)
    net = next(figure for figure in found.same_mix if figure.name == P99)
    assert net.change.contains(0.0)
    assert abs(net.change.mid) < 0.12


def test_a_gain_hidden_by_a_heavier_mix_is_seen():
    old = window(2000, seed=1, long_share=0.2)
    found = accept(old, window(2000, seed=2, long_share=0.6, scale=0.7), config())
    assert found.accepted is True
    assert figures(found)["end to end P50"].finding is not Finding.BETTER


def test_timeouts_that_hide_their_lengths_do_not_explain_a_cure_away():
    old = without_calls_of_the_slow(window(1000, seed=1))
    found = accept(old, window(1000, seed=2, scale=0.6), config())
    assert found.accepted is True
    assert abs(found.mix_shift.change.mid) < 0.12


def without_calls_of_the_slow(tables):
    """Requests over 7 s end in a timeout before a call told its tokens."""
    rows = tables.requests.to_pylist()
    slow = {row["request_id"] for row in rows if row["end_s"] - row["arrival_s"] > 7}
    status = ["timeout" if row["request_id"] in slow else "ok" for row in rows]
    place = tables.requests.schema.get_field_index("status")
    kept = [row["request_id"] not in slow for row in tables.calls.to_pylist()]
    return replace(
        tables,
        requests=tables.requests.set_column(place, "status", pa.array(status)),
        calls=tables.calls.filter(pa.array(kept)),
    )


def test_windows_without_a_kind_in_common_are_not_compared():
    found = accept(window(seed=1, long_share=0.0), window(seed=2, long_share=1.0), config())
    assert found.accepted is None
    assert found.unseen == 1.0
    assert found.answers[1].finding is Finding.UNKNOWN
    assert found.answers[1].excuse is not None
    assert "Only before: short chat. Only after: long document." in found.answers[1].text


def test_mixes_that_hardly_overlap_are_not_compared():
    found = accept(
        window(900, seed=1, long_share=0.03), window(900, seed=2, long_share=0.9), config()
    )
    assert found.accepted is None
    assert "overlap too little" in found.reason


def test_half_the_load_may_explain_a_gain_and_does_not_double_the_cost(before):
    found = accept(before, window(seed=2, scale=0.5, rate=1.0), config())
    assert found.accepted is None
    assert "less load" in found.reason
    assert figures(found)["cost per success"].finding is Finding.SAME
    assert "a success costs" in found.answers[7].text


def test_more_load_may_explain_a_loss(before):
    found = accept(before, window(seed=2, scale=1.5, rate=4.0), config())
    assert found.accepted is None
    assert "more load" in found.reason


def test_thin_windows_have_no_verdict():
    few = accept(window(20, seed=1), window(20, seed=2, scale=0.5), config())
    assert few.accepted is None
    assert "Only 20 requests" in few.reason
    noisy = accept(window(60, seed=1), window(60, seed=2, scale=0.95), config())
    assert noisy.accepted is None
    assert all(f.finding is Finding.UNKNOWN for f in noisy.same_mix if f.name in JUDGED)


def test_an_unsound_way_back_is_named(before):
    new = window(seed=2, scale=0.5)
    unsound = accept(before, new, config(), rollback=window(seed=3, scale=1.4)).answers[6]
    assert unsound.finding is Finding.WORSE
    assert "not as it was" in unsound.text
    failing = accept(before, new, config(), rollback=window(seed=3, errors=0.1)).answers[6]
    assert failing.finding is Finding.WORSE
    short = accept(before, new, config(), rollback=window(40, seed=3)).answers[6]
    assert short.finding is Finding.UNKNOWN
    assert short.excuse is not None
    untried = accept(before, new, config()).answers[6]
    assert untried.excuse is not None
    assert "--rollback" in str(untried.excuse)


def stripped(tables, *columns):
    requests = tables.requests
    for name in columns:
        place = requests.schema.get_field_index(name)
        nulls = pa.nulls(requests.num_rows, requests.schema.field(name).type)
        requests = requests.set_column(place, name, nulls)
    return replace(tables, requests=requests)


def bare(seed):
    return window(seed=seed, calls=False, spans=False)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (bare(1), bare(2)),
        (window(1, seed=1), window(1, seed=2)),
        (window(2, seed=1), window(600, seed=2)),
        (stripped(bare(1), "end_s", "status"), stripped(bare(2), "end_s", "status")),
        (stripped(bare(1), "end_s"), bare(2)),
        (stripped(window(seed=1), "status"), stripped(window(seed=2), "status")),
        (window(seed=1, errors=1.0), window(seed=2)),
        (window(40, seed=1, rate=1e9), window(40, seed=2, rate=1e9)),
        (window(600, seed=1, sigma=0.0), window(600, seed=2, sigma=0.0)),
    ],
    ids=["no calls", "one request", "two", "no end", "no end before", "no status", "all fail",
         "at once", "constant"],
)  # fmt: skip
@pytest.mark.parametrize("settings", [config(), Config()], ids=["configured", "default"])
def test_poor_windows_are_answered_and_saved(old, new, settings, tmp_path):
    found = accept(old, new, settings, rollback=old)
    assert len(found.answers) == QUESTIONS
    for answer in found.answers:
        assert answer.text
        if answer.finding is Finding.UNKNOWN:
            assert answer.excuse is not None
    if found.accepted is True:
        assert old.requests.num_rows >= 30
    found.save(tmp_path / "acceptance.json")
    assert Acceptance.load(tmp_path / "acceptance.json") == found


def test_an_empty_window_is_named(before):
    with pytest.raises(InputError, match="after the change holds no request"):
        accept(before, Tables(), config())


def test_every_figure_of_the_verdict_is_there(before):
    found = accept(with_quality(before, 0.9), with_quality(before, 0.9), config())
    assert {figure.name for figure in found.same_mix} == set(GUARDS)
