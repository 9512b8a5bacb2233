"""Decomposition of whole tables: the law holds for every request, with spans or without."""

from __future__ import annotations

import time

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sojourn.attribution.decompose import STAGE_COLUMNS, decompose, stage_matrix
from sojourn.attribution.infer import envelope, phases, quantile_line
from sojourn.records import Stage
from sojourn.trace.tables import Tables, from_rows

times = st.one_of(st.none(), st.floats(-2, 30).map(lambda x: round(x, 3)))
moment = st.floats(0, 20).map(lambda x: round(x, 3))
request_ids = st.sampled_from(["r0", "r1", "r2", "stranger"])


def make(requests, calls=(), spans=()) -> Tables:
    return Tables.of(
        {
            "requests": from_rows("requests", requests),
            "calls": from_rows("calls", calls),
            "spans": from_rows("spans", spans),
        }
    )


def row(table: pa.Table, k: int = 0) -> dict[str, float]:
    return {n: table[n][k].as_py() for n in STAGE_COLUMNS if table[n][k].as_py()}


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.tuples(moment, times), min_size=3, max_size=3),
    st.lists(
        st.tuples(
            request_ids, moment, times, times, times, st.one_of(st.none(), st.integers(0, 2))
        ),
        max_size=8,
    ),
    st.lists(
        st.tuples(
            request_ids,
            moment,
            moment,
            st.one_of(st.none(), st.sampled_from(STAGE_COLUMNS)),
            st.one_of(st.none(), st.integers(0, 2)),
        ),
        max_size=8,
    ),
)
def test_stages_sum_to_the_total_whatever_the_rows(requests, calls, spans):
    tables = make(
        [{"request_id": f"r{k}", "arrival_s": a, "end_s": e} for k, (a, e) in enumerate(requests)],
        [
            {
                "call_id": f"c{k}",
                "request_id": r,
                "arrival_s": a,
                "scheduled_s": s,
                "first_token_s": f,
                "end_s": e,
                "attempt": n,
            }
            for k, (r, a, s, f, e, n) in enumerate(calls)
        ],
        [
            {
                "span_id": f"s{k}",
                "request_id": r,
                "start_s": a,
                "end_s": b,
                "stage": g,
                "attempt": n,
                "parent": f"s{k // 2}",
            }
            for k, (r, a, b, g, n) in enumerate(spans)
        ],
    )
    table = decompose(tables)
    assert table["request_id"].to_pylist() == ["r0", "r1", "r2"]
    matrix = stage_matrix(table)
    for k, total in enumerate(table["total_s"].to_pylist()):
        if total is None:
            assert np.isnan(matrix[k]).all()
        else:
            assert (matrix[k] >= 0).all()
            assert matrix[k].sum() == pytest.approx(total, abs=1e-6)
            end = tables.requests["end_s"][k].as_py()
            if end is not None:
                arrival = tables.requests["arrival_s"][k].as_py()
                assert total == pytest.approx(max(end - arrival, 0.0))


def test_calls_alone_with_all_their_times():
    tables = make(
        [{"request_id": "r", "arrival_s": 0, "end_s": 10}],
        [
            {
                "call_id": "a",
                "request_id": "r",
                "attempt": 0,
                "arrival_s": 1,
                "scheduled_s": 2,
                "first_token_s": 3,
                "end_s": 5,
            },
            {
                "call_id": "b",
                "request_id": "r",
                "attempt": 1,
                "arrival_s": 6,
                "scheduled_s": 7,
                "first_token_s": 8,
                "end_s": 9,
            },
        ],
    )
    found = {"queue": 2.0, "prefill": 2.0, "decode": 3.0, "backoff": 1.0, "unexplained": 2.0}
    assert row(decompose(tables)) == found


def test_a_call_with_its_end_alone_is_unexplained():
    tables = make(
        [{"request_id": "r", "arrival_s": 0, "end_s": 10}],
        [{"call_id": "a", "request_id": "r", "arrival_s": 1, "end_s": 9}],
    )
    assert row(decompose(tables)) == {"unexplained": 10.0}


def test_a_request_without_an_end_ends_with_its_last_call_or_is_null():
    tables = make(
        [{"request_id": "a", "arrival_s": 0}, {"request_id": "b", "arrival_s": 0}],
        [{"call_id": "c", "request_id": "a", "arrival_s": 0, "end_s": 4}],
    )
    assert decompose(tables)["total_s"].to_pylist() == [4.0, None]


def test_first_scheduled_origin_has_no_queue():
    tables = make(
        [{"request_id": "r", "arrival_s": 0, "end_s": 3}],
        [
            {
                "call_id": "c",
                "request_id": "r",
                "arrival_s": 0,
                "first_token_s": 1,
                "end_s": 3,
                "ttft_origin": "first_scheduled",
            }
        ],
    )
    assert row(decompose(tables)) == {"prefill": 1.0, "decode": 2.0}


def test_calls_without_engine_spans_are_split_below_their_client_span():
    tables = make(
        [{"request_id": "r", "arrival_s": 0, "end_s": 10}],
        [
            {
                "call_id": "c",
                "request_id": "r",
                "attempt": 0,
                "arrival_s": 3,
                "scheduled_s": 4,
                "first_token_s": 5,
                "end_s": 9,
            }
        ],
        [
            {"span_id": "root", "request_id": "r", "name": "POST", "start_s": 0, "end_s": 10},
            {
                "span_id": "t",
                "request_id": "r",
                "stage": "tool",
                "name": "tool web",
                "parent": "root",
                "start_s": 0,
                "end_s": 2,
            },
            {
                "span_id": "chat",
                "request_id": "r",
                "call_id": "c",
                "name": "chat m",
                "parent": "root",
                "start_s": 2,
                "end_s": 10,
            },
        ],
    )
    found = {"tool": 2.0, "queue": 1.0, "prefill": 1.0, "decode": 4.0, "network": 2.0}
    assert row(decompose(tables)) == found


def test_empty_tables():
    assert decompose(Tables()).num_rows == 0
    assert phases(Tables().calls).cuts.shape == (0, 4)


def test_the_envelope_finds_the_prefill_line_under_a_queue():
    rng = np.random.default_rng(3)
    tokens = rng.integers(50, 4000, 3000).astype(float)
    alone = 0.03 + 2e-4 * tokens
    waits = np.where(rng.random(3000) < 0.8, rng.exponential(1.0, 3000), 0.0)
    line = envelope(tokens, alone + waits)
    assert line is not None
    assert line[0] == pytest.approx(0.03, abs=0.01)
    assert line[1] == pytest.approx(2e-4, rel=0.05)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(st.floats(0, 1e4), st.floats(0, 10)), min_size=2, max_size=60))
def test_about_the_quantile_of_points_lies_below_the_line(points):
    x, y = np.array(points).T
    level, slope = quantile_line(x, y, 0.25)
    assert level >= 0
    assert slope >= 0
    below = np.mean(y < level + slope * x - 1e-6)
    assert below <= 0.25 + 2 / len(x) or level == 0


def test_too_few_calls_give_no_split():
    calls = [
        {
            "call_id": f"c{k}",
            "request_id": "r",
            "arrival_s": 0,
            "first_token_s": 1,
            "end_s": 2,
            "input_tokens": 10,
        }
        for k in range(19)
    ]
    cut = phases(from_rows("calls", calls))
    assert not cut.inferred.any()
    cut = phases(from_rows("calls", [*calls, {**calls[0], "call_id": "one more"}]))
    assert cut.inferred.all()


def test_parallel_calls_are_not_counted_twice():
    tables = make(
        [{"request_id": "r", "arrival_s": 0, "end_s": 10}],
        [
            {
                "call_id": f"c{k}",
                "request_id": "r",
                "arrival_s": 0,
                "scheduled_s": 0,
                "first_token_s": 1,
                "end_s": end,
            }
            for k, end in enumerate((6.0, 10.0))
        ],
    )
    assert row(decompose(tables)) == {"prefill": 1.0, "decode": 9.0}


def test_a_million_calls_are_split_in_whole_arrays():
    count = 200_000
    arrival = np.arange(count) * 0.01
    ids = pa.array([str(k) for k in range(count)])
    tables = Tables.of(
        {
            "requests": pa.table({"request_id": ids, "arrival_s": arrival, "end_s": arrival + 3}),
            "calls": pa.table(
                {
                    "call_id": ids,
                    "request_id": ids,
                    "arrival_s": arrival + 0.5,
                    "scheduled_s": arrival + 1,
                    "first_token_s": arrival + 1.5,
                    "end_s": arrival + 3,
                }
            ),
        }
    )
    began = time.perf_counter()
    table = decompose(tables)
    assert time.perf_counter() - began < 5
    assert row(table) == {
        Stage.UNEXPLAINED: 0.5,
        Stage.QUEUE: 0.5,
        Stage.PREFILL: 0.5,
        Stage.DECODE: 1.5,
    }


def cut_off(count: int, status: str) -> Tables:
    """Calls a second apart, 1 s of queue, 2 s of prefill; the last is given up after `count`."""
    calls = [
        {
            "call_id": f"c{k}",
            "request_id": "r",
            "replica": "0",
            "arrival_s": float(k),
            "scheduled_s": k + 1.0,
            "first_token_s": k + 3.0,
            "end_s": k + 5.0,
            "status": "ok",
        }
        for k in range(count)
    ]
    calls.append(
        {
            "call_id": "lost",
            "request_id": "x",
            "replica": "0",
            "arrival_s": 30.0,
            "end_s": 40.0,
            "status": status,
        }
    )
    return make([{"request_id": "x", "arrival_s": 30.0, "end_s": 40.0}], calls)


@pytest.mark.parametrize("status", ["timeout", "cancelled", "error"])
def test_a_call_cut_off_borrows_the_phases_of_those_around_it(status):
    tables = cut_off(60, status)
    assert phases(tables.calls).borrowed.sum() == 1
    assert row(decompose(tables)) == {"queue": 1.0, "prefill": 2.0, "decode": 7.0}


def test_a_call_that_succeeded_or_has_no_neighbours_borrows_nothing():
    assert row(decompose(cut_off(60, "ok"))) == {"unexplained": 10.0}
    assert row(decompose(cut_off(19, "timeout"))) == {"unexplained": 10.0}
