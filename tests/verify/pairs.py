"""Windows made by rule: known latencies, lengths, endings and prices."""

from __future__ import annotations

import numpy as np

from sojourn.config import Config
from sojourn.trace.tables import Tables, from_rows

SLO = {"default": {"e2e_s": 9.0, "percentile": 0.95, "max_error_share": 0.05}}


def config(replicas=1, price=2.0, slo=None):
    return Config.from_dict(
        {
            "deployment": {"replicas": replicas, "usd_per_replica_hour": price},
            "slo": SLO if slo is None else slo,
        }
    )


def window(
    n=600,
    *,
    scale=1.0,
    seed=0,
    rate=2.0,
    errors=0.0,
    long_share=0.2,
    sigma=0.35,
    spans=True,
    calls=True,
):
    """Requests of two kinds: short chats (median 3 s) and long documents (median 6 s), x scale.

    Retrieval takes 60% of the time, the model call the rest; a share of requests ends in error.
    """
    rng = np.random.default_rng(seed)
    arrivals = np.cumsum(rng.exponential(1 / rate, n))
    long = rng.random(n) < long_share
    took = scale * np.where(long, 6.0, 3.0) * rng.lognormal(0, sigma, n)
    failed = rng.random(n) < errors
    requests, call_rows, span_rows = [], [], []
    for i in range(n):
        start, end = float(arrivals[i]), float(arrivals[i] + took[i])
        middle = start + 0.6 * float(took[i])
        requests.append(
            {
                "request_id": f"r{i}",
                "route": "docs" if long[i] else "chat",
                "arrival_s": start,
                "end_s": end,
                "status": "error" if failed[i] else "ok",
                "attempts": 1,
            }
        )
        span_rows.append(
            {
                "span_id": f"s{i}",
                "request_id": f"r{i}",
                "attempt": 0,
                "stage": "retrieval",
                "name": "kb",
                "start_s": start,
                "end_s": middle,
                "status": "ok",
            }
        )
        call_rows.append(
            {
                "call_id": f"c{i}",
                "request_id": f"r{i}",
                "attempt": 0,
                "turn": 0,
                "input_tokens": int(rng.integers(6000, 7000) if long[i] else 300),
                "output_tokens": 80,
                "arrival_s": middle,
                "scheduled_s": middle,
                "first_token_s": middle + 0.1,
                "end_s": end,
                "status": "ok",
            }
        )
    return Tables(
        requests=from_rows("requests", requests),
        calls=from_rows("calls", call_rows if calls else []),
        spans=from_rows("spans", span_rows if spans else []),
    )
