"""A G/G/c queue, first come first served, for the laws of stations; and its spans."""

from __future__ import annotations

import heapq

import numpy as np

from sojourn.trace.tables import Tables, from_rows


def fifo(arrival, service, servers):
    """Starts of service and departures."""
    free = [-np.inf] * servers
    starts = []
    for came, work in zip(arrival, service, strict=True):
        start = max(came, free[0])
        heapq.heapreplace(free, start + work)
        starts.append(start)
    starts = np.array(starts)
    return starts, starts + service


def shared(arrival, work, servers, patience):
    """The same, but a caller leaves after `patience`: while waiting it takes no server, while
    served the server works on. Returns starts (inf: never), ends as the caller sees them."""
    free = [-np.inf] * servers
    starts, ends = [], []
    for came, need, patient in zip(arrival, work, patience, strict=True):
        start = max(came, free[0])
        if start >= came + patient:
            starts.append(np.inf)
        else:
            heapq.heapreplace(free, start + need)
            starts.append(start)
        ends.append(min(start + need, came + patient))
    return np.array(starts), np.array(ends)


def spans_of(name, stage, start, end, *, wait=None, status=None, first=0):
    """Rows of one station."""
    return [
        {
            "span_id": f"{name}-{i}",
            "request_id": f"q{first + i}",
            "attempt": 0,
            "stage": stage,
            "name": name,
            "start_s": float(start[i]),
            "end_s": float(end[i]),
            "wait_s": None if wait is None or not np.isfinite(wait[i]) else float(wait[i]),
            "status": "ok" if status is None else status[i],
        }
        for i in range(len(start))
    ]


def tables_of(rows):
    """Tables with these spans."""
    return Tables(spans=from_rows("spans", rows))
