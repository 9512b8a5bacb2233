"""Which of a file's columns is which of ours: published traces, known words, the user's map."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from sojourn.config import Config


@dataclass(frozen=True)
class Layout:
    """Which of their columns is which of ours."""

    name: str
    columns: dict[str, str]
    """Ours to theirs. Ours is `requests.x`, `calls.x`, `engine_samples.x`, or a duration that
    is added to the arrival: `requests.duration_s`, `calls.ttft_s`."""
    unit: str = ""
    """Of the arrival, where the header cannot tell: s, ms, us, ns."""
    zero_output_failed: bool = False
    """Whether a row without output tokens is a failed request."""
    notes: tuple[str, ...] = field(default=())


LAYOUTS: Final = (
    Layout(
        "Azure LLM inference 2023/2024",
        {
            "requests.arrival_s": "TIMESTAMP",
            "calls.input_tokens": "ContextTokens",
            "calls.output_tokens": "GeneratedTokens",
            "calls.images": "NumImages",
        },
        notes=("times without zone are taken as UTC",),
    ),
    Layout(
        "BurstGPT",
        {
            "requests.arrival_s": "Timestamp",
            "requests.session_id": "Session ID",
            "requests.duration_s": "Elapsed time",
            "requests.route": "Log Type",
            "calls.model": "Model",
            "calls.input_tokens": "Request tokens",
            "calls.output_tokens": "Response tokens",
        },
        unit="s",
        zero_output_failed=True,
        notes=("rows without response tokens are failed requests",),
    ),
    Layout(
        "Vidur / Splitwise",
        {
            "requests.arrival_s": "arrived_at",
            "calls.input_tokens": "num_prefill_tokens",
            "calls.output_tokens": "num_decode_tokens",
        },
        unit="s",
    ),
    Layout(
        "Splitwise",
        {
            "requests.request_id": "request_id",
            "requests.arrival_s": "arrival_timestamp",
            "calls.input_tokens": "prompt_size",
            "calls.output_tokens": "token_size",
        },
        unit="s",
    ),
    Layout(
        "LLMServingSim",
        {
            "requests.arrival_s": "arrival_time_ns",
            "calls.input_tokens": "input_toks",
            "calls.output_tokens": "output_toks",
        },
        unit="ns",
    ),
)
OPTIONAL: Final = frozenset(
    {
        "calls.images",
        "requests.session_id",
        "requests.duration_s",
        "requests.route",
        "requests.request_id",
    }
)
ALIASES: Final[dict[str, tuple[str, ...]]] = {
    "requests.arrival_s": (
        "arrival", "arrivaltime", "arrivaltimestamp", "arrivedat", "starttime", "startedat",
        "requesttime", "timestamp", "time", "ts", "createdat", "start",
    ),
    "requests.end_s": ("end", "endtime", "endedat", "finishtime", "completedat"),
    "requests.duration_s": (
        "duration", "latency", "e2e", "elapsed", "elapsedtime", "e2elatency", "requestlatency",
        "totaltime",
    ),
    "requests.request_id": ("requestid", "xrequestid", "reqid", "id"),
    "requests.session_id": ("sessionid", "conversationid", "chatid"),
    "requests.tenant": ("tenant", "team", "teamid", "customer", "userid", "user", "enduser"),
    "requests.route": ("route", "routename", "endpoint", "path", "modelgroup"),
    "requests.status": ("status", "statuscode", "responsecode", "httpstatus"),
    "calls.model": ("model", "modelname", "genairesponsemodel", "genairequestmodel"),
    "calls.input_tokens": (
        "inputtokens", "prompttokens", "contexttokens", "inputlength", "numprefilltokens",
        "inputtoks", "requesttokens", "genaiusageinputtokens", "promptlen", "inputlen",
        "promptlength",
    ),
    "calls.cached_tokens": ("cachedtokens", "cachereadinputtokens", "prefixtokens"),
    "calls.output_tokens": (
        "outputtokens", "completiontokens", "generatedtokens", "outputlength", "numdecodetokens",
        "outputtoks", "responsetokens", "genaiusageoutputtokens", "outputlen",
    ),
    "calls.ttft_s": ("ttft", "timetofirsttoken", "firsttokenlatency"),
}  # fmt: skip
"""Header words of home-made logs, without case and punctuation; tried when no layout fits."""
TIMES: Final = frozenset({"requests.arrival_s", "calls.arrival_s", "engine_samples.t_s"})
LENGTH_NAMES: Final = frozenset({"input_length", "num_prefill_tokens", "prompt_len", "input_len"})
_PLAIN: Final = re.compile(r"[^a-z0-9]")
_UNIT: Final = re.compile(r"[ _.(-]+(ns|us|ms|s|sec|secs|seconds|milliseconds)\)?$")
DURATIONS: Final = {"requests.duration_s": "requests.end_s", "calls.ttft_s": "calls.first_token_s"}
UNIT_SUFFIX: Final = (("_ns", "ns"), ("_us", "us"), ("_ms", "ms"), ("_s", "s"), ("(ms)", "ms"))


def layout_of(names: Sequence[str], config: Config) -> Layout | None:
    """The layout of a header: the user's map, a published trace, or known words."""
    if config.columns:
        return Layout("sojourn.yaml columns", dict(config.columns))
    present = set(names)
    for layout in LAYOUTS:
        needed = {theirs for ours, theirs in layout.columns.items() if ours not in OPTIONAL}
        if needed <= present:
            kept = {ours: theirs for ours, theirs in layout.columns.items() if theirs in present}
            return Layout(layout.name, kept, layout.unit, layout.zero_output_failed, layout.notes)
    found = _by_words(names)
    if "calls.input_tokens" not in found or (
        "requests.arrival_s" not in found and not present & LENGTH_NAMES
    ):
        return None
    told = ", ".join(f"{ours} from {theirs!r}" for ours, theirs in sorted(found.items()))
    return Layout("columns by name", found, notes=(f"columns taken by name: {told}",))


def _by_words(names: Sequence[str]) -> dict[str, str]:
    """Our columns found by word. A duration is taken only when its name says its unit."""
    words: dict[str, str] = {}
    for name in reversed(names):
        base = _UNIT.sub("", name.lower())
        has_unit = base != name.lower()
        for word in (_PLAIN.sub("", base), _PLAIN.sub("", name.lower())):
            words[word] = name
            if has_unit:
                words[f"{word} in units"] = name
    found: dict[str, str] = {}
    for ours, known in ALIASES.items():
        for word in known:
            key = f"{word} in units" if ours in DURATIONS else word
            if key in words:
                found[ours] = words[key]
                break
    return found


def has_arrivals(layout: Layout) -> bool:
    """Whether rows have a time."""
    return bool(TIMES & set(layout.columns))
