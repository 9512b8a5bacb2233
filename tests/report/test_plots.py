"""Curves in characters: where points, lines and marks stand."""

from __future__ import annotations

from sojourn.report.plots import GUTTER, HEIGHT, WIDTH, Axes, Curve, plot


def rows(text):
    """The drawing itself, without labels."""
    return [line[GUTTER + 2 :].ljust(WIDTH) for line in text.splitlines()[1 : HEIGHT + 1]]


def test_a_rising_line_goes_from_corner_to_corner():
    axes = Axes("load", "seconds", "{:.3g}".format)
    text = plot([Curve("a", "o", ((0.0, 0.0), (1.0, 5.0), (2.0, 10.0)))], axes)
    found = rows(text)
    assert found[-1][0] == "o"
    assert found[0][-1] == "o"
    assert found[HEIGHT // 2][(WIDTH - 1) // 2 : (WIDTH + 2) // 2].count("o") == 1
    assert sum(line.count("·") for line in found) == WIDTH - 3
    assert text.splitlines()[0] == "seconds"
    assert "10 |" in text
    assert "o a" in text


def test_values_far_apart_are_drawn_on_a_logarithmic_axis():
    points = ((1.0, 1.0), (2.0, 10.0), (3.0, 100.0))
    text = plot([Curve("", "o", points)], Axes("x", "y", "{:.3g}".format))
    assert "(logarithmic)" in text
    assert rows(text)[HEIGHT // 2].strip(" ·") == "o"
    linear = plot([Curve("", "o", points)], Axes("x", "y", "{:.3g}".format, may_log=False))
    assert "logarithmic" not in linear


def test_marks_and_level_are_named_and_stay_inside():
    axes = Axes("x", "y", "{:.3g}".format, ((1.5, "today"), (9.0, "outside")), (2.0, "target"))
    text = plot([Curve("", "o", ((1.0, 1.0), (2.0, 4.0)))], axes)
    assert sum("¦" in line for line in rows(text)) == HEIGHT - 1  # the curve crosses it once
    assert "today (1.5)" in text
    assert "- target (2)" in text
    assert max(len(line) for line in text.splitlines()) <= GUTTER + 2 + WIDTH


def test_nothing_is_drawn_of_a_single_load_or_of_none():
    axes = Axes("x", "y", "{:.3g}".format)
    assert plot([], axes) == ""
    assert plot([Curve("", "o", ((1.0, 2.0),))], axes) == ""


def test_a_flat_zero_is_drawn():
    assert "o" in plot([Curve("", "o", ((1.0, 0.0), (2.0, 0.0)))], Axes("x", "y", str))
