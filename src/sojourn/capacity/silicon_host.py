"""What a step takes beyond its operators, by engine and version; and how far off the sum still is.

The constants are fitted on public runs of vLLM, SGLang and TensorRT-LLM (1,266 rows, 30 models x
cards): `benchmarks/fit_silicon_host.py` fits them again and prints the errors on those left out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from sojourn.capacity.catalogue import Gpu
from sojourn.capacity.model_records import ModelSpec
from sojourn.capacity.records import StepSpread
from sojourn.capacity.roofline_constants import ENGINES, engine_kind
from sojourn.config import Deployment

VOCABULARY: Final = 150_000
"""Entries that `Host.sampling_s` is given for; sorting logits grows with them."""


@dataclass(frozen=True)
class Host:
    """Times of a decode step that no operator table holds, s; all >= 0.

    `step_s` scheduling, launching and answering; `sequence_s` of each sequence in the step;
    `sampling_s` of each where logits are sorted (top-p, top-k), for 150,000 entries;
    `routed_layer_s` of each layer with routed experts: what sorts tokens by expert and puts them
    back, beside the matrices; `fp8_routed_layer_s` more of it where experts are in FP8.
    """

    step_s: float
    sequence_s: float
    sampling_s: float = 0.0
    routed_layer_s: float = 0.0
    fp8_routed_layer_s: float = 0.0


VLLM_SYNCHRONOUS: Final = Host(
    step_s=0.74e-3,
    sequence_s=26e-6,
    sampling_s=30e-6,
    routed_layer_s=16e-6,
    fp8_routed_layer_s=120e-6,
)
"""vLLM before 0.14: schedules, samples and answers between two steps; sorts logits in PyTorch, and
its FP8 experts are not tuned for the card."""
VLLM: Final = Host(step_s=0.25e-3, sequence_s=4e-6)
"""vLLM from 0.14 on, and where no version is named: the next step is scheduled while one runs. The
fit alone says 0.15 ms and 1 us; its rows are four models, and one of them is told too long by the
tables themselves, so this stays between it and what the roofline fits on other runs."""
SGLANG: Final = Host(step_s=0.31e-3, sequence_s=19e-6, routed_layer_s=41e-6)
TRTLLM: Final = Host(step_s=0.15e-3, sequence_s=17e-6)
SKEW_S: Final = 5.6e-6
"""How long each all-reduce waits for the last card to arrive, which a benchmark that does nothing
else does not see; over NVLink of the fifth generation half of it."""
FAST_SKEW_LINK: Final = 600e9
HELD_OUT_ERROR: Final = 0.077
"""Median on models and cards left out (`benchmarks/fit_silicon_host.py`)."""


FITTED: Final = {
    "vllm v1": VLLM_SYNCHRONOUS,
    "vllm async": VLLM,
    "sglang": SGLANG,
    "trtllm": TRTLLM,
}
"""By kind of engine as `roofline_constants.engine_kind` names it."""


def host_of(engine: str) -> Host:
    """The host times of an engine as `deployment.engine` names it; of older ones as the roofline
    has them."""
    kind = engine_kind(engine)
    if kind in FITTED:
        return FITTED[kind]
    old = ENGINES[kind]
    return Host(step_s=old.step_s, sequence_s=old.sequence_s)


def fixed_s(host: Host, model: ModelSpec, gpu: Gpu, deployment: Deployment, dtype: str) -> float:
    """Of a step, whatever it computes: host, routing of every routed layer, skew of all-reduces."""
    routed = sum(m.layers for m in model.mlp if m.experts)
    layer = host.routed_layer_s + (host.fp8_routed_layer_s if dtype == "fp8" else 0.0)
    return host.step_s + routed * layer + skew_s(model, gpu, deployment)


def skew_s(model: ModelSpec, gpu: Gpu, deployment: Deployment) -> float:
    """Of the two all-reduces of every layer."""
    if deployment.tensor_parallel == 1:
        return 0.0
    one = SKEW_S if gpu.link_bytes_per_s < FAST_SKEW_LINK else SKEW_S / 2
    return 2 * model.layers * one


def sequence_s(host: Host, model: ModelSpec) -> float:
    """Of each decoding sequence. Logits are sorted where the model's published generation settings
    filter them (top-p, top-k), which engines follow; those of gpt-oss do not."""
    if model.architecture == "gpt_oss":
        return host.sequence_s
    return host.sequence_s + host.sampling_s * model.vocab_size / VOCABULARY


def spread(batches: tuple[int, ...]) -> StepSpread:
    """80% range of real / told, on models and cards left out of the fit: wider where a step
    computes as much as it reads. That of prompts is of replayed runs, time to first token: it is
    told too short, by 17% at the median."""
    return StepSpread(
        decode=tuple((0.82, 1.17) if batch <= 24 else (0.76, 1.25) for batch in batches),
        prefill=(0.73, 1.9),
    )
