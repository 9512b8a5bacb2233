"""The request profile: what the traffic looks like, per bucket. Before any figure of resources."""

from __future__ import annotations

import math
from statistics import NormalDist
from typing import Final

import numpy as np

from sojourn.config import Config
from sojourn.interval import Interval
from sojourn.records import Stage
from sojourn.trace.arrays import Floats
from sojourn.trace.tables import Tables, require_requests
from sojourn.workload import arrivals, buckets, prefix
from sojourn.workload.bucket_profiles import bucket_profiles
from sojourn.workload.concentration import concentrations
from sojourn.workload.distributions import shares, summarize
from sojourn.workload.observed import STAGE_CODE, STAGES, Spans, observe
from sojourn.workload.profile_records import Profile, StationProfile

NO_STATION: Final = (Stage.NETWORK, Stage.BACKOFF, Stage.UNEXPLAINED)
"""Stages whose spans are no work of a part of the chain."""


def profile(tables: Tables, config: Config) -> Profile:
    """Profile the requests of tables. Requests without a bucket are put into one first.

    Raises:
        InputError: the tables hold no request.
    """
    require_requests(tables)
    tables = buckets.assign(tables, config)
    observed = observe(tables)
    names = np.asarray(tables.requests.column("bucket").to_pylist(), dtype=np.str_)
    arriving = arrivals.describe(
        observed.arrival, peak_window_s=config.analysis.peak_window_s, buckets=names
    )
    evidence = buckets.gather(observed)
    long = evidence.largest_input >= config.buckets.long_document_min_input_tokens
    return Profile(
        arrivals=arriving,
        buckets=bucket_profiles(tables, observed, arriving, config.analysis.seed),
        stations=_stations(observed.spans, observed.size),
        models=shares(tables.calls.column("model")),
        routes=shares(tables.requests.column("route")),
        tenants=shares(tables.requests.column("tenant")),
        long_context_share=float(long.mean()),
        multimodal_share=float(evidence.images.mean()),
        attempts_per_request=mean_interval(
            observed.attempts_made(), config.analysis.confidence, floor=1.0
        ),
        prefix=prefix.reuse(tables, config),
        concentration=concentrations(observed, tables.requests, config),
        input_call=summarize(observed.calls.input),
        output_call=summarize(observed.calls.output),
        source=", ".join(tables.quality.sources),
    )


def mean_interval(values: Floats, confidence: float, *, floor: float) -> Interval:
    """Mean and its interval by the central limit theorem: mean +- z s / sqrt(n), not below floor.

    Wrong when: n is small and the values skewed, or requests fail in bursts (not independent).
    """
    mean = max(float(values.mean()), floor)
    if values.size < 2 or float(values.std()) == 0:
        return Interval(low=mean, mid=mean, high=mean, confidence=confidence)
    z = NormalDist().inv_cdf(0.5 + confidence / 2)
    half = z * float(values.std(ddof=1)) / math.sqrt(values.size)
    return Interval(low=max(mean - half, floor), mid=mean, high=mean + half, confidence=confidence)


def _stations(spans: Spans, requests: int) -> dict[str, StationProfile]:
    """Parts of the chain outside the engine, by span name, most time first. All attempts."""
    mine = (spans.stage >= 0) & spans.leaf & ~spans.engine & (spans.name.codes >= 0)
    mine &= ~np.isin(spans.stage, [STAGE_CODE[stage] for stage in NO_STATION])
    rows = np.flatnonzero(mine)
    rows = rows[np.argsort(spans.name.codes[rows], kind="stable")]
    if rows.size == 0:
        return {}
    codes, first = np.unique(spans.name.codes[rows], return_index=True)
    found = []
    for code, visits in zip(codes, np.split(rows, first[1:]), strict=True):
        duration = spans.end[visits] - spans.start[visits]
        wait = spans.wait[visits]
        stage = np.bincount(spans.stage[visits]).argmax()
        profile_ = StationProfile(
            name=spans.name.names[code],
            stage=str(STAGES[stage]),
            visits=visits.size,
            visits_per_request=visits.size / requests,
            duration_s=summarize(duration),
            wait_s=None if np.isnan(wait).all() else summarize(wait),
        )
        found.append((float(duration.sum()), profile_))
    found.sort(key=lambda pair: (-pair[0], pair[1].name))
    return {station.name: station for _, station in found}
