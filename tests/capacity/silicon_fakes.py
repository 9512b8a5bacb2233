"""Operator tables that are not the package's: plausible ones, and ones with a fault of choice."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from sojourn.capacity import catalogue, roofline
from sojourn.capacity.records import StepModel
from sojourn.capacity.roofline_constants import CONSTANTS
from sojourn.capacity.roofline_links import all_reduce_s
from sojourn.capacity.roofline_setting import setting_of
from sojourn.capacity.silicon_tables import Op
from sojourn.config import Deployment

MODEL = "Llama-3.1-8B"


@dataclass
class Tables:
    """Times of the roofline as if measured: matrices and attention, and all-reduces.

    `decode_fault(batch, context)` and `prefill_fault(tokens)` multiply the matrices' time,
    `reduce_fault` the all-reduces'.
    """

    gpu: str = "H100"
    deployment: Deployment = field(default_factory=Deployment)
    version: str = "9.9"
    decode_fault: Callable[[int, int], float] = lambda batch, context: 1.0
    prefill_fault: Callable[[int], float] = lambda tokens: 1.0
    reduce_fault: float = 1.0

    def __post_init__(self) -> None:
        model, gpu = catalogue.model(MODEL), catalogue.gpu(self.gpu)
        self.step: StepModel = roofline.step_model(model, gpu, self.deployment)
        self.setting = setting_of(
            model, gpu, self.deployment, mean_context=None, constants=CONSTANTS
        )

    def _reduce(self, tokens: int) -> list[Op]:
        each = all_reduce_s(self.setting, tokens) * self.setting.model.layers
        return [Op(f"x_ar_{i}", each * self.reduce_fault, True) for i in (1, 2)]

    def decode(self, batch: int, context: int) -> list[Op]:
        fault = self.decode_fault(batch, context)
        attention = self.step.decode_step_s(batch, batch * context)
        attention -= self.step.decode_step_s(batch, 0)
        return [
            Op("generation_qkv_gemm", self.step.decode_step_s(batch, 0) * fault, True),
            Op("generation_attention", attention * fault, True),
            *self._reduce(batch),
        ]

    def prefill(self, tokens: int, prefix: int) -> list[Op]:
        step = self.step
        attended = tokens * prefix + tokens**2 / 2
        return [
            Op(
                "context_qkv_gemm",
                (step.base_s[0] + step.prefill_step_s(tokens)) * self.prefill_fault(tokens),
                True,
            ),
            Op("context_attention", step.prefill_s_per_token_context * attended, True),
            *self._reduce(tokens),
        ]

    def mixed(self, tokens: int, batch: int, context: int) -> list[Op]:
        step = self.step
        return [
            Op(
                "context_qkv_gemm",
                step.decode_step_s(batch, 0) + step.prefill_step_s(tokens),
                True,
            ),
            Op("context_attention", step.prefill_s_per_token_context * tokens**2 / 2, True),
            Op(
                "generation_attention",
                step.decode_step_s(batch, batch * context) - step.decode_step_s(batch, 0),
                True,
            ),
            *self._reduce(tokens + batch),
        ]
