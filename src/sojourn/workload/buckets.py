"""Which bucket a request belongs to: thresholds of the config over what calls and spans show."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from sojourn.config import BucketRule, Config
from sojourn.records import Bucket, Stage
from sojourn.trace.arrays import Bools, Floats
from sojourn.trace.tables import Issue, Quality, Tables
from sojourn.workload.hashing import combine, hash_strings, uniform
from sojourn.workload.hotdeck import Level, pick
from sojourn.workload.observed import STAGE_CODE, Observed, observe

_SALT: Final = 11


@dataclass(frozen=True)
class Evidence:
    """What the thresholds read, per request. NaN where no call tells."""

    largest_input: Floats
    last_output: Floats
    images: Bools
    agent: Bools

    @property
    def thin(self) -> Bools:
        """Requests that broke off before anything told their kind."""
        return np.isnan(self.largest_input) & ~self.images & ~self.agent


def assign(tables: Tables, config: Config) -> Tables:
    """Fill `requests.bucket` where it is null.

    Order: custom rules as listed, then multimodal (images or image tokens), tool_agent (a tool
    span, or two model calls in one attempt), long_document (largest input of a call),
    long_output (outputs of the last attempt together), else short_chat. Calling everything
    without tokens a short chat would hide the long requests that timed out; so a request that
    broke off before a call told its tokens gets the bucket of a completed request on the same
    route, of the same tenant and that passed the furthest station it reached (drawn by a hash of
    its id, the same every time; counted in `quality`).
    Wrong when: those that fail are of another kind than their likes that complete.
    """
    present = tables.requests.column("bucket")
    if tables.requests.num_rows == 0 or present.null_count == 0:
        return tables
    observed = observe(tables)
    evidence = gather(observed)
    names, custom = _by_threshold(tables.requests, evidence, config)
    known = np.asarray(pc.is_valid(present).to_numpy(), dtype=np.bool_)
    names[known] = np.asarray(present.to_pylist(), dtype=object)[known]
    quality = tables.quality
    thin = evidence.thin & ~known & ~custom
    if thin.any() and not thin.all():
        names[thin] = names[_likes(tables, observed, thin)]
        quality = quality.merged(Quality(issues=(_note(int(thin.sum())),)))
    place = tables.requests.schema.get_field_index("bucket")
    column = pa.chunked_array([pa.array(names.tolist(), type=pa.string())])
    return replace(
        tables, requests=tables.requests.set_column(place, "bucket", column), quality=quality
    )


def gather(observed: Observed) -> Evidence:
    """What the thresholds read."""
    calls, spans, size = observed.calls, observed.spans, observed.size
    largest = np.full(size, -np.inf)
    told = ~np.isnan(calls.input)
    np.maximum.at(largest, calls.request[told], calls.input[told])
    last = np.full(size, -1, dtype=np.int64)
    np.maximum.at(last, calls.request, calls.attempt)
    final = (calls.attempt == last[calls.request]) & ~np.isnan(calls.output)
    written = np.bincount(calls.request[final], calls.output[final], size).astype(np.float64)
    written[np.bincount(calls.request[final], minlength=size) == 0] = np.nan
    pictured = (calls.images > 0) | (calls.image > 0)
    agent = np.zeros(size, dtype=np.bool_)
    agent[spans.request[spans.stage == STAGE_CODE[Stage.TOOL]]] = True
    agent[calls.request[calls.ordinal >= 1]] = True
    images = np.zeros(size, dtype=np.bool_)
    images[calls.request[pictured]] = True
    largest[np.isneginf(largest)] = np.nan
    return Evidence(largest, written, images, agent)


def _by_threshold(
    requests: pa.Table, evidence: Evidence, config: Config
) -> tuple[npt.NDArray[np.object_], Bools]:
    rules = config.buckets
    conditions: list[Bools] = [_matches(requests, evidence, rule) for rule in rules.custom]
    choices: list[str] = [rule.name for rule in rules.custom]
    custom = np.any(conditions, axis=0) if conditions else np.zeros(len(requests), dtype=np.bool_)
    conditions += [
        evidence.images,
        evidence.agent,
        evidence.largest_input >= rules.long_document_min_input_tokens,
        evidence.last_output >= rules.long_output_min_output_tokens,
    ]
    choices += [
        Bucket.MULTIMODAL,
        Bucket.TOOL_AGENT,
        Bucket.LONG_DOCUMENT,
        Bucket.LONG_OUTPUT,
    ]
    names = np.full(len(requests), str(Bucket.SHORT_CHAT), dtype=object)
    for condition, name in reversed(list(zip(conditions, choices, strict=True))):
        names[condition] = str(name)
    return names, custom


def _matches(requests: pa.Table, evidence: Evidence, rule: BucketRule) -> Bools:
    result = np.ones(requests.num_rows, dtype=np.bool_)
    for column, wanted in (("tenant", rule.tenant), ("route", rule.route)):
        if wanted is not None:
            equal = pc.equal(requests.column(column), wanted).fill_null(False)
            result &= np.asarray(equal.to_numpy(), dtype=np.bool_)
    if rule.min_input_tokens is not None:
        result &= evidence.largest_input >= rule.min_input_tokens
    if rule.min_output_tokens is not None:
        result &= evidence.last_output >= rule.min_output_tokens
    return result


def _likes(tables: Tables, observed: Observed, thin: Bools) -> npt.NDArray[np.int64]:
    """For each thin request, the row of a request of known kind to take the bucket from."""
    requests, spans = tables.requests, observed.spans
    identity = hash_strings(requests.column("request_id"))
    route = hash_strings(requests.column("route")).view(np.int64)
    tenant = hash_strings(requests.column("tenant")).view(np.int64)
    stations = (spans.stage >= 0) & ~spans.engine
    who, name = spans.request[stations], spans.name.codes[stations]
    furthest = np.full(observed.size, -1, dtype=np.int64)
    by_time = np.argsort(spans.start[stations], kind="stable")
    furthest[who[by_time]] = name[by_time]
    width = len(spans.name.names) + 1
    visits = np.unique(who * width + name)
    visits = visits[~thin[visits // width]]
    passed, at = visits // width, visits % width
    known, wanting = np.flatnonzero(~thin), np.flatnonzero(thin)
    levels = [
        Level(
            combine(route[passed], tenant[passed], at),
            passed,
            combine(route[wanting], tenant[wanting], furthest[wanting]),
        ),
        Level(combine(route[passed], at), passed, combine(route[wanting], furthest[wanting])),
        Level(combine(route[known]), known, combine(route[wanting])),
        Level(np.zeros(known.size, "u8"), known, np.zeros(wanting.size, "u8")),
    ]
    return pick(levels, uniform(identity[wanting], 0, _SALT))


def _note(count: int) -> Issue:
    return Issue(
        action="noted",
        reason="bucket drawn from completed requests that took the same way, as the request broke"
        " off before a call told its tokens",
        count=count,
        source="workload.buckets",
    )
