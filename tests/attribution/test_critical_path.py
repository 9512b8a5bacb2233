"""The partition of a request's time: exact on any spans, and right on known ones."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sojourn.attribution.critical_path import CODE, CONTAINER, STAGES, Forest, partition
from sojourn.records import Stage


def forest(*spans: tuple) -> Forest:
    """Spans as (id, parent, stage or None, start, end[, attempt[, call[, name]]])."""
    filled = [(*s, *(-1, None, "")[len(s) - 5 :]) for s in spans]
    return Forest(
        ids=[s[0] for s in filled],
        parents=[s[1] for s in filled],
        stages=[CODE[s[2]] if s[2] else CONTAINER for s in filled],
        starts=[float(s[3]) for s in filled],
        ends=[float(s[4]) for s in filled],
        attempts=[s[5] for s in filled],
        calls=[s[6] for s in filled],
        names=[s[7] for s in filled],
    )


def parts(spans: Forest, arrival: float = 0.0, end: float = 10.0) -> dict[str, float]:
    split = partition(spans, arrival, end)
    return {stage.value: value for stage, value in zip(STAGES, split, strict=True) if value > 0}


def test_no_span_is_unexplained():
    assert parts(forest()) == {"unexplained": 10.0}


def test_own_time_of_a_container_is_unexplained_and_of_a_stage_its_own():
    spans = forest(
        ("root", None, None, 0, 10), ("g", "root", "gateway", 1, 9), ("t", "g", "tool", 2, 5)
    )
    assert parts(spans) == {"unexplained": 2.0, "gateway": 5.0, "tool": 3.0}


def test_of_parallel_tools_the_one_that_finishes_last_counts():
    spans = forest(
        ("root", None, None, 0, 10),
        ("a", "root", "tool", 0, 4),
        ("b", "root", "retrieval", 0, 7),
        ("c", "root", "rerank", 7, 10),
    )
    assert parts(spans) == {"retrieval": 7.0, "rerank": 3.0}


def test_overlapping_siblings_share_the_time_where_the_later_starts():
    spans = forest(("a", None, "tool", 0, 6), ("b", None, "retrieval", 4, 10))
    assert parts(spans) == {"tool": 4.0, "retrieval": 6.0}


def test_a_child_longer_than_its_parent_is_clamped():
    spans = forest(("g", None, "gateway", 2, 6), ("t", "g", "tool", 0, 30))
    assert parts(spans) == {"unexplained": 6.0, "tool": 4.0}


def test_a_client_call_with_engine_detail_has_network_around_it():
    spans = forest(
        ("root", None, None, 0, 10),
        ("c", "root", None, 1, 9, 0, "c", "chat llama"),
        ("e", "c", None, 2, 8, 0, "c", "llm_request"),
        ("q", "e", "queue", 2, 3, 0, "c", "queue"),
        ("p", "e", "prefill", 3, 4, 0, "c", "prefill"),
        ("d", "e", "decode", 4, 8, 0, "c", "decode"),
    )
    found = {"unexplained": 2.0, "network": 2.0, "queue": 1.0, "prefill": 1.0, "decode": 4.0}
    assert parts(spans) == found


def test_a_gap_between_attempts_is_backoff():
    spans = forest(
        ("root", None, None, 0, 10, 0),
        ("a0", "root", None, 0, 4, 0),
        ("t0", "a0", "tool", 0, 4, 0),
        ("a1", "root", None, 5, 10, 1),
        ("t1", "a1", "retrieval", 5, 10, 1),
    )
    assert parts(spans) == {"tool": 4.0, "backoff": 1.0, "retrieval": 5.0}


def test_work_of_an_attempt_given_up_does_not_count_in_the_next():
    spans = forest(
        ("a0", None, "tool", 0, 30, 0),
        ("a1", None, "retrieval", 4, 6, 1),
        ("b1", None, "rerank", 8, 10, 1),
    )
    assert parts(spans) == {"tool": 4.0, "retrieval": 2.0, "unexplained": 2.0, "rerank": 2.0}


def test_spans_without_their_parent_go_below_the_container_that_covers_them():
    spans = forest(
        ("root", None, None, 0, 10),
        ("att", "root", None, 1, 9),
        ("q", "lost", "queue", 2, 8),
    )
    assert parts(spans) == {"unexplained": 4.0, "queue": 6.0}


def test_loops_and_equal_ids_lose_no_time():
    spans = forest(
        ("a", "b", "tool", 0, 5),
        ("b", "a", "retrieval", 5, 10),
        ("b", "a", "retrieval", 5, 10),
        ("z", "z", "queue", 3, 3),
    )
    assert sum(parts(spans).values()) == pytest.approx(10.0)


def test_an_end_before_the_arrival_has_no_time():
    assert parts(forest(("a", None, "tool", 0, 5)), 5.0, 3.0) == {}


times = st.floats(-5, 30, allow_nan=False).map(lambda x: round(x, 3))
ids = st.integers(0, 9).map(str)


@st.composite
def random_forests(draw):
    spans = draw(
        st.lists(
            st.tuples(
                ids,
                st.one_of(st.none(), ids),
                st.one_of(st.none(), st.sampled_from([s.value for s in Stage])),
                times,
                times,
                st.integers(-1, 3),
                st.one_of(st.none(), st.sampled_from(["c1", "c2"])),
                st.sampled_from(["chat m", "x"]),
            ),
            max_size=14,
        )
    )
    return forest(*spans)


@settings(max_examples=400, deadline=None)
@given(random_forests(), st.floats(0, 5), st.floats(0, 25))
def test_parts_are_not_negative_and_sum_to_the_interval(spans, arrival, length):
    split = partition(spans, arrival, arrival + length)
    assert all(part >= 0 for part in split)
    assert sum(split) == pytest.approx(length, abs=1e-6)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(st.floats(0, 3), st.floats(0, 3)), min_size=1, max_size=8))
def test_steps_one_after_the_other_get_their_own_length(steps):
    now, spans, work, idle = 0.0, [], 0.0, 0.0
    for k, (gap, length) in enumerate(steps):
        now += gap
        spans.append((f"s{k}", None, "tool", now, now + length))
        now, work, idle = now + length, work + length, idle + gap
    split = partition(forest(*spans), 0.0, now)
    assert split[CODE["tool"]] == pytest.approx(work, abs=1e-6)
    assert split[CODE["unexplained"]] == pytest.approx(idle, abs=1e-6)
