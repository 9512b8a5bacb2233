"""Step times from operator tables: guards act on faulty tables, excuses name their reason, and no
step beats the physics. Tables are fakes unless the package is installed."""

import functools
import subprocess
import sys
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.capacity.silicon_fakes import MODEL, Tables

from sojourn.capacity import (
    catalogue,
    roofline,
    silicon,
    silicon_host,
    silicon_query,
    silicon_tables,
)
from sojourn.capacity.records import StepModel, fast_and_slow
from sojourn.capacity.roofline_constants import ENGINES
from sojourn.capacity.silicon_guards import sustained
from sojourn.capacity.silicon_host import Host
from sojourn.capacity.silicon_tables import PACKAGE, VERSION, Query, Refused, installed_version
from sojourn.config import Deployment
from sojourn.interval import Excuse, Provenance

installed = pytest.mark.skipif(
    installed_version() != VERSION,
    reason=f"{PACKAGE} {VERSION} is not installed (pip install 'sojourn[silicon]')",
)
BARE = Host(0.0, 0.0)
FALLEN = (1, 4, 16, 64, 128, 256, 512)
"""Every other batch of the grid."""


@pytest.fixture(autouse=True)
def fresh():
    """What one test lets be found by shape, no other sees."""
    silicon_query._shapes.cache_clear()
    yield
    silicon_query._shapes.cache_clear()


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch):
    """A step model from given tables (a `Tables`, or the reason they refuse with)."""

    def build(tables: Tables | str, *, host: Host | None = BARE, **kwargs) -> StepModel | Excuse:
        gpu = tables.gpu if isinstance(tables, Tables) else "H100"
        deployment = tables.deployment if isinstance(tables, Tables) else Deployment()

        def opened(query: Query) -> Tables:
            if isinstance(tables, str):
                raise Refused(tables)
            return tables

        monkeypatch.setattr(silicon_tables, "open_tables", opened)
        monkeypatch.setattr(silicon_tables, "known_models", tuple)
        monkeypatch.setattr(silicon_tables, "check_installed", lambda: None)
        monkeypatch.setattr(
            silicon_tables,
            "system_bandwidth",
            lambda system: catalogue.gpu(gpu).bandwidth_bytes_per_s,
        )
        model = catalogue.model(MODEL)
        return silicon.step_model(model, catalogue.gpu(gpu), deployment, host=host, **kwargs)

    return build


def test_the_tables_come_back_from_what_was_asked(told) -> None:
    tables = Tables()
    step = told(tables, mean_context=1024.0)
    for batch in (1, 16, 128, 512):
        for context in (512, 1024, 3000):
            products = tables.step.decode_step_s(batch, 0) * (sustained(batch) - 1)
            assert step.step_s(batch, batch * context, 0, 0) == pytest.approx(
                tables.step.decode_step_s(batch, batch * context) + products, rel=0.01
            )
    for tokens in (256, 1024, 8192):
        assert step.step_s(0, 0, tokens, tokens**2 / 2) == pytest.approx(
            tables.step.step_s(0, 0, tokens, tokens**2 / 2) * sustained(tokens), rel=0.15
        )


def test_it_says_what_it_is(told) -> None:
    step = told(Tables(), host=None)
    assert step.provenance is Provenance.CATALOGUE
    assert f"{PACKAGE} {VERSION}" in step.source
    assert "vllm 9.9 on h100_sxm" in step.source
    assert "KV cache bfloat16" in step.source
    assert "host time of vllm" in step.source
    assert "lines miss the decode grid by" in step.source
    assert step.valid_batch == (1, 1024)
    assert fast_and_slow(step) is not None
    assert step.to_narrow


def test_host_time_is_added_once(told) -> None:
    bare = told(Tables(), host=BARE)
    with_host = told(Tables(), host=Host(step_s=1e-3, sequence_s=20e-6))
    assert with_host.step_s(64, 64_000, 0, 0) - bare.step_s(64, 64_000, 0, 0) == pytest.approx(
        1e-3 + 64 * 20e-6
    )


def test_a_dip_at_one_batch_is_mended(told) -> None:
    plain = told(Tables())
    dip = told(Tables(decode_fault=lambda batch, context: 0.85 if batch == 64 else 1.0))
    assert "monotone in batch and context" in dip.source
    times = [dip.decode_step_s(b, b * 1024) for b in dip.batches[1:]]
    assert (np.diff(times) >= 0).all()
    assert dip.decode_step_s(1, 1024) == pytest.approx(plain.decode_step_s(1, 1024), rel=0.01)


def test_tables_that_fall_with_batch_are_refused(told) -> None:
    found = told(Tables(decode_fault=lambda batch, context: 3.0 if batch in FALLEN else 1.0))
    assert isinstance(found, Excuse)
    assert "fall with batch" in found.reason


def test_single_times_under_the_floor_are_lifted(told) -> None:
    found = told(Tables(decode_fault=lambda batch, context: 0.6 if batch == 1 else 1.0))
    assert "lifted to the physical floor" in found.source
    gpu = catalogue.gpu("H100")
    model = catalogue.model(MODEL)
    floor = roofline.physical_floor_s(model, gpu, Deployment(), batch=1, context_sum=128)
    assert found.decode_step_s(1, 128) >= floor * 0.999


def test_tables_faster_than_the_card_are_refused(told) -> None:
    found = told(Tables(decode_fault=lambda batch, context: 0.3))
    assert isinstance(found, Excuse)
    assert "shorter than the card can read" in found.reason


def test_tables_slower_than_believable_are_refused(told) -> None:
    found = told(Tables(decode_fault=lambda batch, context: 100.0))
    assert isinstance(found, Excuse)
    assert "longest believed" in found.reason


def test_all_reduces_that_no_link_explains_are_ours(told) -> None:
    deployment = Deployment(tensor_parallel=4)
    plain = told(Tables(gpu="L40S", deployment=deployment))
    slow = told(Tables(gpu="L40S", deployment=deployment, reduce_fault=6.0))
    assert "all-reduce of 4 x L40S by our link model" in slow.source
    assert slow.decode_step_s(64, 64_000) == pytest.approx(
        plain.decode_step_s(64, 64_000), rel=0.01
    )
    assert slow.prefill_step_s(4096) == pytest.approx(plain.prefill_step_s(4096), rel=0.01)


def test_one_prompt_size_that_costs_less_than_a_shorter_one_is_levelled(told) -> None:
    found = told(Tables(prefill_fault=lambda tokens: 0.5 if tokens == 2048 else 1.0))
    costs = [found.prefill_step_s(n) for n in found.prefill_tokens]
    assert (np.diff(costs) >= -1e-12).all()


def test_a_query_problem_is_an_excuse_with_the_reason(told) -> None:
    found = told("PerfDataNotAvailableError: GEMM perf data missing")
    assert isinstance(found, Excuse)
    assert "GEMM perf data missing" in found.reason
    assert found.collect


@pytest.mark.parametrize("version", [None, "0.13.0"])
def test_not_installed_or_another_version(monkeypatch: pytest.MonkeyPatch, version) -> None:
    monkeypatch.setattr(silicon_tables, "installed_version", lambda: version)
    silicon_tables.known_models.cache_clear()
    found = silicon.step_model(catalogue.model(MODEL), catalogue.gpu("H100"), Deployment())
    assert isinstance(found, Excuse)
    assert VERSION in found.reason or "not installed" in found.reason
    assert silicon.missing() is not None


def test_a_model_that_does_not_fit_is_an_excuse(told, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(silicon_tables, "open_tables", lambda query: Tables())
    monkeypatch.setattr(silicon_tables, "known_models", tuple)
    monkeypatch.setattr(silicon_tables, "system_bandwidth", lambda system: 3.35e12)
    found = silicon.step_model(
        catalogue.model("Llama-3.1-405B"), catalogue.gpu("H100"), Deployment()
    )
    assert isinstance(found, Excuse)
    assert "fit" in found.reason


@pytest.mark.parametrize(
    ("engine", "host"),
    [
        ("vllm 0.11.1", silicon_host.VLLM_SYNCHRONOUS),
        ("vllm 0.18.0", silicon_host.VLLM),
        ("vllm", silicon_host.VLLM),
        ("sglang 0.5.9", silicon_host.SGLANG),
        ("trtllm 1.0.0rc3", silicon_host.TRTLLM),
        ("TensorRT-LLM 1.2", silicon_host.TRTLLM),
        ("vllm 0.4.2", Host(ENGINES["vllm v0"].step_s, ENGINES["vllm v0"].sequence_s)),
    ],
)
def test_hosts_by_engine_and_version(engine: str, host: Host) -> None:
    assert silicon_host.host_of(engine) == host


def test_skew_is_of_tensor_parallel_groups_alone() -> None:
    model, gpu = catalogue.model(MODEL), catalogue.gpu("H100")
    assert silicon_host.skew_s(model, gpu, Deployment()) == 0.0
    two = silicon_host.skew_s(model, gpu, Deployment(tensor_parallel=2))
    assert two == pytest.approx(2 * 32 * silicon_host.SKEW_S)
    fast = silicon_host.skew_s(model, catalogue.gpu("B200"), Deployment(tensor_parallel=2))
    assert fast == pytest.approx(two / 2)


CASES = [
    ("Llama-3.1-8B", "H100", Deployment()),
    ("Llama-3.1-8B", "A100", Deployment(engine="sglang")),
    ("Llama-3.1-70B", "H200", Deployment(tensor_parallel=4, weight_dtype="fp8", kv_dtype="fp8")),
    ("Llama-2-13B", "L40S", Deployment(tensor_parallel=2)),
    ("Qwen3-30B-A3B", "H100", Deployment(tensor_parallel=2, expert_parallel=True)),
    ("gpt-oss-120b", "B200", Deployment(weight_dtype="mxfp4", engine="trtllm")),
    ("DeepSeek-V3", "H200", Deployment(tensor_parallel=8, weight_dtype="fp8", engine="sglang")),
]


@functools.cache
def of_package(index: int) -> StepModel:
    model, gpu, deployment = CASES[index]
    found = silicon.step_model(catalogue.model(model), catalogue.gpu(gpu), deployment)
    assert not isinstance(found, Excuse), found.reason
    return found


@installed
@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(
    index=st.sampled_from(range(len(CASES))),
    batch=st.integers(0, 1024),
    context=st.integers(1, 30_000),
    tokens=st.integers(0, 16_000),
)
def test_no_step_beats_the_physical_floor(index, batch, context, tokens) -> None:
    model, gpu, deployment = CASES[index]
    floor = roofline.physical_floor_s(
        catalogue.model(model), catalogue.gpu(gpu), deployment,
        batch=batch, context_sum=batch * context, tokens=tokens, token_context=tokens**2 / 2,
    )  # fmt: skip
    assert of_package(index).step_s(batch, batch * context, tokens, tokens**2 / 2) >= floor * 0.999


@installed
@pytest.mark.slow
@pytest.mark.parametrize("index", range(len(CASES)))
def test_steps_grow_with_what_they_hold(index) -> None:
    step = of_package(index)
    by_batch = [step.step_s(b, b * 1024, 0, 0) for b in step.batches[1:]]
    assert (np.diff(by_batch) >= 0).all()
    assert step.step_s(64, 64 * 4096, 0, 0) > step.step_s(64, 64 * 1024, 0, 0)
    prompts = [step.step_s(0, 0, n, n**2 / 2) for n in (1, 100, 1000, 10_000)]
    assert (np.diff(prompts) > 0).all()
    assert min(step.base_s) > 0


@installed
@pytest.mark.slow
def test_recorded_steps() -> None:
    """As told when this was written: a change of guards, fit or host shows here."""
    step = silicon.step_model(
        catalogue.model("Llama-3.1-70B"), catalogue.gpu("H100"), Deployment(tensor_parallel=4)
    )
    assert step.step_s(8, 8 * 350, 0, 0) == pytest.approx(16.5e-3, rel=0.05)
    assert step.step_s(0, 0, 8192, 8192**2 / 2) == pytest.approx(551e-3, rel=0.08)
    assert "meta-llama/Meta-Llama-3.1-70B" in step.source


@installed
@pytest.mark.slow
def test_the_second_model_of_a_card_takes_little() -> None:
    gpu = catalogue.gpu("H100")
    silicon.step_model(catalogue.model("Llama-3.1-8B"), gpu, Deployment())
    began = time.process_time()
    silicon.step_model(catalogue.model("Qwen3-14B"), gpu, Deployment())
    assert time.process_time() - began < 0.5


@installed
@pytest.mark.slow
def test_the_smallest_install_is_enough() -> None:
    """`--no-deps`: of its dependencies it needs packaging and PyYAML here, and those are ours."""
    code = (
        "import sys; sys.modules['pandas'] = None\n"
        "from sojourn.capacity import catalogue, silicon\n"
        "from sojourn.config import Deployment\n"
        "s = silicon.step_model(catalogue.model('Qwen3-8B'), catalogue.gpu('H100'), Deployment())\n"
        "assert 'operator tables' in s.source, s\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""


@installed
@pytest.mark.slow
def test_all_reduces_of_l40s_are_mended_so_that_more_cards_are_not_slower() -> None:
    gpu = catalogue.gpu("L40S")
    told = {
        tp: silicon.step_model(catalogue.model(MODEL), gpu, Deployment(tensor_parallel=tp))
        for tp in (2, 4, 8)
    }
    assert "link model" not in told[2].source
    assert "all-reduce of 4 x L40S by our link model" in told[4].source
    assert "all-reduce of 8 x L40S by our link model" in told[8].source
    for batch in (1, 64, 256):
        times = [told[tp].step_s(batch, batch * 1024, 0, 0) for tp in (2, 4, 8)]
        assert times == sorted(times, reverse=True)
