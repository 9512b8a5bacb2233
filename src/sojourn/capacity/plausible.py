"""Values that are likely in another unit than their field: caught and explained, never converted.

Public threads hold each of these: requests per minute taken for per second, Gbit/s for GB/s, both
directions of a link for one, the size on the box for what the driver reports, milliseconds for
seconds, characters for tokens. A `Finding` says what is wrong, why, and what the value would be.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Final, NamedTuple

from pydantic import Field

from sojourn.capacity.catalogue import Gpu, gpu
from sojourn.config import Config, Deployment, Slo
from sojourn.errors import UsageError
from sojourn.records import Record
from sojourn.units import S_PER_HOUR


class Finding(Record):
    """Something in the input that contradicts itself or is hardly meant so.

    An error stops the answer: no engine would start so, or no machine is like that. A warning is
    shown beside it.
    """

    error: bool = False
    where: str = Field(description="Key, flag or option.")
    what: str
    todo: str = ""

    def __str__(self) -> str:
        tail = f". {self.todo}" if self.todo else ""
        return f"{self.where}: {self.what}{tail}"


class Range(NamedTuple):
    """Where a value is believed, and what a value beyond is likely to be.

    `above`, `below`: (factor, unit): value x factor would be the value meant.
    """

    low: float
    high: float
    unit: str
    above: tuple[float, str] | None = None
    below: tuple[float, str] | None = None


_MS: Final = (1e-3, "milliseconds")
SLO_RANGES: Final = {
    "ttft_s": Range(0.002, 600, "s", _MS),
    "ttft_per_input_token_s": Range(0, 0.05, "s per token", _MS),
    "tpot_s": Range(0.0002, 5, "s per token", _MS),
    "e2e_s": Range(0.005, 86_400, "s", _MS),
}
"""A reader waits no ten minutes for the first word; the fastest chips take 0.2 ms for a token."""
DEPLOYMENT_RANGES: Final = {
    "max_num_seqs": Range(1, 65_536, "sequences"),
    "max_num_batched_tokens": Range(16, 4_000_000, "tokens", None, (1_000, "thousands of tokens")),
    "max_model_len": Range(64, 20_000_000, "tokens", None, (1_000, "thousands of tokens")),
    "block_size": Range(1, 8_192, "tokens", None, None),
    "usd_per_replica_hour": Range(0.01, 2_000, "USD per hour", (1 / 730, "USD per month")),
}
"""The longest context sold is 10 million tokens; 730 hours are a month."""
WAIT_RANGES: Final = {
    "timeout_s": Range(0.001, 86_400, "s", _MS),
    "attempt_timeout_s": Range(0.01, 86_400, "s", _MS),
    "backoff_s": Range(0, 3_600, "s", _MS),
    "peak_window_s": Range(1, 7 * 86_400, "s", _MS),
}
GPU_RANGES: Final = {
    "memory_gib": Range(2, 2_048, "GiB", (1 / 1024, "MiB, as nvidia-smi prints")),
    "bandwidth_bytes_per_s": Range(1e10, 4e13, "B/s", (1 / 8, "bits per second"), (1e9, "GB/s")),
    "bf16_flops": Range(1e12, 3e16, "FLOP/s", None, (1e12, "TFLOP/s")),
    "fp16_flops": Range(1e12, 3e16, "FLOP/s", None, (1e12, "TFLOP/s")),
    "fp8_flops": Range(1e12, 6e16, "FLOP/s", None, (1e12, "TFLOP/s")),
    "fp4_flops": Range(1e12, 2e17, "FLOP/s", None, (1e12, "TFLOP/s")),
    "int8_ops": Range(1e12, 6e16, "op/s", None, (1e12, "TOP/s")),
    "link_bytes_per_s": Range(1e9, 4e12, "B/s", (1 / 8, "bits per second"), (1e9, "GB/s")),
    "tdp_w": Range(5, 5_000, "W", (1e-3, "milliwatts")),
    "usd_per_hour": Range(0.005, 200, "USD per hour", (1 / 730, "USD per month")),
}
"""From a laptop's chip to past the largest accelerator announced (Rubin: 22e12 B/s, 3.6e12 B/s)."""
RATE_RANGE: Final = Range(1e-5, 1e6, "requests per second", (1 / 60, "requests per minute"))

_BOXES_GB: Final = (16, 24, 32, 40, 48, 64, 80, 94, 96, 128, 141, 144, 180, 192, 256, 279, 288)
_BOTH_WAYS: Final = {600e9: "NVLink 3", 900e9: "NVLink 4", 1800e9: "NVLink 5", 3600e9: "NVLink 6"}
_NETWORK_GBIT: Final = (25, 40, 100, 200, 400, 800, 1600)
_SPARSE_INTENSITY: Final = 600.0
"""FLOP per byte of memory bandwidth: dense 16-bit rates of accelerators give 120 to 420."""
_PERIODS: Final = ((60.0, "minute"), (S_PER_HOUR, "hour"), (86_400.0, "day"))
_CHARACTERS_PER_TOKEN: Final = 4.0
"""English text with common tokenisers: 3.5 to 4.5; Chinese about 1.5."""


def _number(value: float) -> str:
    return f"{value:,.6g}" if 1e-4 <= abs(value) < 1e7 else f"{value:.4g}"


def in_range(where: str, value: float | None, known: Range) -> Finding | None:
    """A finding where the value lies outside, with the unit it is likely in."""
    if value is None or math.isnan(value) or known.low <= value <= known.high:
        return None
    high = value > known.high
    guess = known.above if high else known.below
    bound = known.high if high else known.low
    todo = f"Values from {_number(known.low)} to {_number(known.high)} {known.unit} are believed"
    if guess is not None and known.low <= value * guess[0] <= known.high:
        meant = _number(value * guess[0])
        todo = f"If it is in {guess[1]}, write {meant} ({_number(value)} {guess[1]} = {meant})"
    side = "more" if high else "less"
    what = f"{_number(value)} {known.unit} is {side} than {_number(bound)}"
    return Finding(error=True, where=where, what=what, todo=todo)


def check_config(config: Config) -> tuple[Finding, ...]:
    """Every key of sojourn.yaml that is likely in another unit."""
    found: list[Finding | None] = []
    for bucket, slo in config.slo.items():
        found += _ranges(f"slo.{bucket}", slo, SLO_RANGES)
        found += _slo(bucket, slo)
    found += check_deployment(config.deployment)
    for name, station in config.stations.items():
        found += _ranges(f"stations.{name}", station, WAIT_RANGES)
    found += _ranges("retry", config.retry, WAIT_RANGES)
    found += _ranges("analysis", config.analysis, WAIT_RANGES)
    return tuple(f for f in found if f is not None)


def check_deployment(deployment: Deployment) -> list[Finding | None]:
    """Keys of `deployment` outside what any engine takes."""
    return _ranges("deployment", deployment, DEPLOYMENT_RANGES)


def _ranges(section: str, values: object, ranges: dict[str, Range]) -> list[Finding | None]:
    return [
        in_range(f"{section}.{name}", getattr(values, name, None), known)
        for name, known in ranges.items()
    ]


def _slo(bucket: str, slo: Slo) -> Iterator[Finding]:
    """Targets that exclude each other."""
    if slo.ttft_s is not None and slo.e2e_s is not None and slo.ttft_s > slo.e2e_s:
        yield Finding(
            where=f"slo.{bucket}.ttft_s",
            what=f"the first token may take {slo.ttft_s:g} s, the whole request {slo.e2e_s:g} s",
            todo="Check that both are in seconds",
        )
    if slo.tpot_s is not None and slo.e2e_s is not None and slo.tpot_s > slo.e2e_s:
        yield Finding(
            where=f"slo.{bucket}.tpot_s",
            what=f"one token may take {slo.tpot_s:g} s, the whole request {slo.e2e_s:g} s",
            todo="Check that both are in seconds",
        )


def credible_gpu(name: str) -> Gpu:
    """An accelerator by name or path, its figures believed.

    Raises:
        UsageError: unknown, or a figure of its file is of no machine (bits for bytes, GB for
            bytes). InputError: the file is no row.
    """
    found = gpu(name)
    wrong = [finding for finding in check_gpu(found) if finding.error]
    if wrong and name.endswith((".yaml", ".yml")):
        raise UsageError("; ".join(str(finding) for finding in wrong))
    return found


def check_gpu(gpu: Gpu) -> tuple[Finding, ...]:
    """Figures of an accelerator of the user's own that are likely in another unit."""
    where = f"accelerator {gpu.name}"
    found = [in_range(f"{where}: {n}", getattr(gpu, n), r) for n, r in GPU_RANGES.items()]
    errors = tuple(f for f in found if f is not None)
    return errors or tuple(_suspicious(gpu, where))


def _suspicious(gpu: Gpu, where: str) -> Iterator[Finding]:
    """Figures a machine can have, but that are well-known figures of another kind."""
    if gpu.memory_gib in _BOXES_GB:
        yield Finding(
            where=f"{where}: memory_gib",
            what=f"{gpu.memory_gib:g} is the size on the box, not what the driver reports",
            todo="Write what the driver reports: `nvidia-smi` in MiB / 1024 (an 80 GB H100: 79.18)",
        )
    link = _BOTH_WAYS.get(gpu.link_bytes_per_s)
    if link is not None and not (link == "NVLink 4" and gpu.bf16_flops > 1.5e15):
        yield Finding(
            where=f"{where}: link_bytes_per_s",
            what=f"{gpu.link_bytes_per_s:.3g} B/s is what {link} moves in both directions together",
            todo=f"Write one direction: {gpu.link_bytes_per_s / 2:.3g}",
        )
    gbit = gpu.link_bytes_per_s / 1e9
    if gbit in _NETWORK_GBIT:
        yield Finding(
            where=f"{where}: link_bytes_per_s",
            what=f"{gbit:g} is a common speed of network cards in Gbit/s",
            todo=f"If it is Gbit/s, write {gbit / 8 * 1e9:.4g} (bits / 8)",
        )
    intensity = gpu.bf16_flops / gpu.bandwidth_bytes_per_s
    if intensity > _SPARSE_INTENSITY:
        yield Finding(
            where=f"{where}: bf16_flops",
            what=f"{intensity:.0f} FLOP per byte of bandwidth is more than dense rates have",
            todo="Data sheets print rates with sparsity, twice the dense ones: halve it if so",
        )


def check_rate(
    rate_per_s: float, *, option: str, measured_per_s: float | None = None
) -> Finding | None:
    """A target rate that is likely per minute, hour or day: by itself, or beside the measured one.

    Within a quarter of 60 (3,600, 86,400) times what was measured it is taken for another period.
    """
    finding = in_range(option, rate_per_s, RATE_RANGE)
    if finding is not None or not measured_per_s or measured_per_s <= 0:
        return finding
    for seconds, period in _PERIODS:
        if 0.75 <= rate_per_s / measured_per_s / seconds <= 1.25:
            return Finding(
                where=option,
                what=f"{_number(rate_per_s)} requests per second is {seconds:,.0f} times the"
                f" {_number(measured_per_s)} per second of the data",
                todo=f"If it is per {period}, write {_number(rate_per_s / seconds)}",
            )
        if 0.75 <= measured_per_s / rate_per_s / seconds <= 1.25:
            return Finding(
                where=option,
                what=f"{_number(rate_per_s)} requests per second is one {seconds:,.0f}th of the"
                f" {_number(measured_per_s)} per second of the data",
                todo=f"If the data's rate was per {period}, check their time column",
            )
    return None


def check_lengths(
    mean_input_tokens: float, *, where: str, max_model_len: int | None = None
) -> Finding | None:
    """Lengths that exceed what the model takes by about as much as characters exceed tokens."""
    if max_model_len is None or mean_input_tokens <= max_model_len:
        return None
    guess = mean_input_tokens / _CHARACTERS_PER_TOKEN
    fits = guess <= max_model_len
    return Finding(
        error=True,
        where=where,
        what=f"prompts have {mean_input_tokens:,.0f} tokens in the mean, the model takes"
        f" {max_model_len:,}",
        todo=f"If they are characters, tokens are about a quarter ({guess:,.0f})"
        if fits
        else "Check the column and max_model_len",
    )


def check_times(where: str, *, tpot_s: float | None, ttft_s: float | None) -> tuple[Finding, ...]:
    """Measured medians that are likely milliseconds."""
    pairs = (("time per output token", tpot_s, "tpot_s"), ("time to first token", ttft_s, "ttft_s"))
    found = (in_range(f"{where}: {n}", v, SLO_RANGES[key]) for n, v, key in pairs)
    return tuple(f for f in found if f is not None)
