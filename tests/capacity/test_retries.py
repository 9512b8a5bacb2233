"""The retry policy, read from the attempts."""

from __future__ import annotations

import numpy as np
import pytest

from sojourn.capacity import retries, stations
from sojourn.config import Config
from sojourn.trace.tables import Tables, from_rows


def _incident(requests=300, limit=5.0, seed=0, backoff=0.4):
    """Requests whose one tool may take too long: three attempts, each cut at the limit."""
    rng = np.random.default_rng(seed)
    spans, rows = [], []
    for q in range(requests):
        now = arrival = float(q)
        status = "timeout"
        for attempt in range(3):
            work = rng.lognormal(0.8, 0.9)
            lasted = min(work, limit + rng.uniform(0, 0.01))
            ok = work < limit
            spans.append(
                {
                    "span_id": f"{q}-{attempt}",
                    "request_id": f"{q}",
                    "attempt": attempt,
                    "stage": "tool",
                    "name": "execute_tool web",
                    "start_s": now,
                    "end_s": now + lasted,
                    "status": "ok" if ok else "error",
                }
            )
            now += lasted
            if ok:
                status = "ok"
                break
            if attempt < 2:
                wait = backoff * 2**attempt * rng.uniform(0.5, 1.5)
                spans.append(
                    {
                        **spans[-1],
                        "span_id": f"{q}b{attempt}",
                        "stage": "backoff",
                        "name": "backoff",
                        "start_s": now,
                        "end_s": now + wait,
                        "status": "ok",
                    }
                )
                now += wait
        rows.append(
            {
                "request_id": f"{q}",
                "arrival_s": arrival,
                "end_s": now,
                "status": status,
                "attempts": attempt + 1,
            }
        )
    return Tables(requests=from_rows("requests", rows), spans=from_rows("spans", spans))


def test_policy_is_read_from_the_attempts():
    found = retries.detect(_incident(), Config())
    assert found.attempt_timeout_s == pytest.approx(5.0, rel=0.01)
    assert found.max_attempts == 3
    assert found.backoff_s == pytest.approx(0.4, rel=0.15)
    assert found.backoff_factor == pytest.approx(2.0, rel=0.3)
    assert found.jitter == pytest.approx(0.5, abs=0.1)


def test_what_the_file_says_wins():
    told = Config.from_dict({"retry": {"attempt_timeout_s": 9.0, "max_attempts": 2}})
    found = retries.detect(_incident(), told)
    assert found.attempt_timeout_s == 9.0
    assert found.max_attempts == 2
    assert found.backoff_s == pytest.approx(0.4, rel=0.15)


def test_no_timeout_is_seen_where_failures_last_any_time():
    rng = np.random.default_rng(0)
    tables = _incident(limit=1e9)
    assert retries.detect(tables, Config()).attempt_timeout_s is None
    assert retries.detect(tables, Config()).max_attempts == 1
    failed = tables.requests.set_column(
        tables.requests.column_names.index("status"),
        "status",
        [["error" if x else "ok" for x in rng.random(300) < 0.2]],
    )
    scattered = Tables(requests=failed, spans=tables.spans)
    assert retries.detect(scattered, Config()).attempt_timeout_s is None
    assert retries.detect(Tables(), Config()) == Config().retry


def test_errors_at_the_timeout_are_cut_work():
    _, models = stations.infer(_incident(), Config())
    service = models["execute_tool web"].service_s
    # a lognormal(0.8, 0.9) has its P90 at 7.05 s: beyond what any attempt could show
    assert "cut by their caller" in models["execute_tool web"].note
    assert service.p50 == pytest.approx(np.exp(0.8), rel=0.1)
