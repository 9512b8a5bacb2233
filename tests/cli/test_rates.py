"""Rates with their unit: requests a minute are not requests a second."""

from __future__ import annotations

import pytest

from sojourn.cli.rates import Rate, doubt, parse
from sojourn.errors import UsageError


@pytest.mark.parametrize(
    ("text", "per_s"),
    [
        ("2/s", 2.0),
        ("2", 2.0),
        ("120/min", 2.0),
        ("120 / minute", 2.0),
        ("7200/h", 2.0),
        ("120 rpm", 2.0),
        ("2rps", 2.0),
        ("2 requests/s", 2.0),
        ("172_800/day", 2.0),
        (".5/s", 0.5),
        ("1e3/min", 1000 / 60),
    ],
)
def test_units_are_read(text, per_s):
    assert parse(text).per_s == pytest.approx(per_s)
    assert parse(text).unit_given == (text != "2")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("0/s", "above 0"),
        ("-3/s", "above 0"),
        ("nan", "no rate"),
        ("inf/s", "no rate"),
        ("", "no rate"),
        ("fast", "no rate"),
        ("5/fortnight", "no unit"),
        ("5 tps", "no unit"),
        ("1e12/s", "more than any fleet"),
        ("1e400/s", "above 0"),
    ],
)
def test_what_is_no_rate_is_refused_with_what_is(text, words):
    with pytest.raises(UsageError, match=words):
        parse(text)


def test_a_rate_sixty_times_todays_is_doubted():
    assert doubt(Rate(2.0, unit_given=False), 1.5) is None
    minutes = doubt(Rate(120.0, unit_given=False), 2.0)
    assert minutes is not None
    assert "per minute, write 2" in minutes
    assert "without a unit" in minutes
    assert "without a unit" not in (doubt(Rate(120.0, unit_given=True), 2.0) or "")
    assert doubt(Rate(2.0, unit_given=True), 0.0) is None


def test_a_long_wrong_rate_is_cut_in_the_message():
    with pytest.raises(UsageError) as caught:
        parse("9" * 4_000 + "/s")
    assert len(str(caught.value)) < 300
