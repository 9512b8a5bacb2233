"""Values in another unit than their field: caught, explained, and never converted."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sojourn.capacity import catalogue
from sojourn.capacity.plausible import (
    GPU_RANGES,
    check_config,
    check_gpu,
    check_lengths,
    check_rate,
    check_times,
)
from sojourn.config import Config

H100 = catalogue.gpu("H100")


def said(config):
    return " ".join(str(finding) for finding in check_config(Config.from_dict(config)))


@pytest.mark.parametrize(
    ("config", "says"),
    [
        ({"slo": {"default": {"ttft_s": 800}}}, "write 0.8"),
        ({"slo": {"chat": {"tpot_s": 50}}}, "write 0.05"),
        ({"slo": {"chat": {"ttft_per_input_token_s": 0.2}}}, "milliseconds"),
        ({"slo": {"chat": {"ttft_s": 5, "e2e_s": 2}}}, "first token may take 5 s"),
        ({"retry": {"attempt_timeout_s": 300_000}}, "write 300"),
        ({"stations": {"kb": {"timeout_s": 600_000}}}, "write 600"),
        ({"deployment": {"max_model_len": 32}}, "write 32,000"),
        ({"deployment": {"usd_per_replica_hour": 9_000}}, "per month"),
    ],
)
def test_keys_of_the_file(config, says):
    assert says in said(config)


def test_usual_files_pass():
    usual = {
        "slo": {"default": {"ttft_s": 2.0, "tpot_s": 0.05, "e2e_s": 60}},
        "deployment": {"max_model_len": 131_072, "usd_per_replica_hour": 98.3},
        "retry": {"attempt_timeout_s": 30, "backoff_s": 0.5},
        "stations": {"kb": {"timeout_s": 2}},
    }
    assert check_config(Config.from_dict(usual)) == ()
    assert check_config(Config()) == ()


@pytest.mark.parametrize(
    ("field", "value", "says"),
    [
        ("bandwidth_bytes_per_s", 3350.0, "write 3.35e+12"),
        ("bandwidth_bytes_per_s", 3.35e12 * 16, "bits per second"),
        ("bf16_flops", 989.4, "TFLOP/s"),
        ("link_bytes_per_s", 450.0, "GB/s"),
        ("link_bytes_per_s", 900e9, "both directions"),
        ("link_bytes_per_s", 400e9, "write 5e+10"),
        ("memory_gib", 81_559.0, "write 79.6475"),
        ("memory_gib", 80.0, "size on the box"),
        ("tdp_w", 700_000.0, "milliwatts"),
        ("usd_per_hour", 1_800.0, "per month"),
        ("bf16_flops", 1978.9e12 * 1.2, "sparsity"),
    ],
)
def test_rows_of_an_accelerator(field, value, says):
    found = check_gpu(H100.model_copy(update={field: value}))
    assert says in " ".join(str(finding) for finding in found)


def test_every_card_of_the_catalogue_is_believed():
    for card in catalogue.gpus().values():
        found = check_gpu(card)
        assert not any(finding.error for finding in found), [str(f) for f in found]


@settings(deadline=None)
@given(st.sampled_from(sorted(GPU_RANGES)), st.floats(1e-300, 1e300))
def test_an_error_names_the_field_and_nothing_is_converted(field, value):
    card = H100.model_copy(update={field: value})
    for finding in check_gpu(card):
        assert finding.what
        assert field in finding.where or not finding.error
    assert getattr(card, field) == value


def test_rates_per_minute():
    """A public page heads `requests per minute` what is per second: 1 / 5.19 s = 0.193."""
    assert "per minute" in str(check_rate(600.0, option="--target", measured_per_s=10.0))
    assert "per hour" in str(check_rate(36_000.0, option="--target", measured_per_s=10.5))
    assert "minute" in str(check_rate(0.193, option="--target", measured_per_s=11.6))
    assert check_rate(20.0, option="--target", measured_per_s=10.0) is None
    assert check_rate(20.0, option="--target") is None
    assert "per minute" in str(check_rate(6e6, option="--target"))


def test_characters_for_tokens():
    finding = check_lengths(12_000.0, where="calls.input_tokens", max_model_len=4096)
    assert "3,000" in str(finding)
    assert check_lengths(900.0, where="x", max_model_len=4096) is None
    assert check_lengths(900.0, where="x") is None


def test_milliseconds_for_seconds():
    found = check_times("run.json", tpot_s=35.0, ttft_s=0.4)
    assert len(found) == 1
    assert "write 0.035" in str(found[0])
