"""vLLM's own scheduler, with a log of every step: `--scheduler-cls bench.steplog.StepLogScheduler`.

Runs inside the engine core process. Nothing is decided here: each method calls the engine's own and
notes what it did. Written are a file of fixed-size records (`STEP`), one a step, and a file of text
lines, one each time a request arrives, is admitted, preempted, resumed or finished.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import numpy as np
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.engine import EngineCoreOutputs
from vllm.v1.request import Request

from bench.step_format import DIRECTORY_VARIABLE, EVENTS, SETTINGS, STEP, STEPS


class StepLogScheduler(Scheduler):
    """The engine's scheduler; notes when each step began, what was in it and how long it took."""

    def __init__(self, *arguments: object, **options: object) -> None:
        super().__init__(*arguments, **options)
        folder = Path(os.environ[DIRECTORY_VARIABLE])
        self._steps = (folder / STEPS).open("wb", buffering=1 << 20)
        self._events = (folder / EVENTS).open("w", encoding="ascii", buffering=1 << 20)
        self._row = np.zeros(1, dtype=STEP)
        self._step = -1
        self._preempted = 0
        self._admitted: set[str] = set()
        text = json.dumps(self._settings(), indent=1)
        (folder / SETTINGS).write_text(text, encoding="utf-8")

    def _settings(self) -> dict[str, Any]:
        """What the scheduler works with, read from itself and not from what it was asked."""
        pool, config = self.kv_cache_manager.block_pool, self.scheduler_config
        return {
            "policy": self.policy.value,
            "async_scheduling": bool(config.async_scheduling),
            "max_num_running_reqs": self.max_num_running_reqs,
            "max_num_scheduled_tokens": self.max_num_scheduled_tokens,
            "max_num_batched_tokens": config.max_num_batched_tokens,
            "long_prefill_token_threshold": config.long_prefill_token_threshold,
            "long_prefill_token_threshold_adaptive": self.adaptive_long_prefill_threshold,
            "enable_chunked_prefill": config.enable_chunked_prefill,
            "scheduler_reserve_full_isl": self.scheduler_reserve_full_isl,
            "watermark": config.watermark,
            "watermark_blocks": self.kv_cache_manager.watermark_blocks,
            "num_lookahead_tokens": self.num_lookahead_tokens,
            "stream_interval": config.stream_interval,
            "block_size": self.block_size,
            "hash_block_size": self.hash_block_size,
            "num_gpu_blocks": pool.num_gpu_blocks,
            "free_blocks_when_idle": pool.get_num_free_blocks(),
            "enable_prefix_caching": self.cache_config.enable_prefix_caching,
            "max_model_len": self.max_model_len,
            "model_runner_v2": self.use_v2_model_runner,
        }

    def schedule(self, *arguments: object, **options: object) -> SchedulerOutput:
        """Schedule as the engine does, and note what was scheduled."""
        self._step += 1
        self._preempted = 0
        epoch, began = time.time(), time.perf_counter()
        output = super().schedule(*arguments, **options)
        ended = time.perf_counter()
        self._note_scheduled(output.num_scheduled_tokens, epoch)
        row = self._row[0]
        row["t_s"] = epoch
        row["schedule_s"] = ended - began
        row["running"] = len(self.running)
        row["waiting"] = len(self.waiting)
        row["free_blocks"] = self.kv_cache_manager.block_pool.get_num_free_blocks()
        row["preempted"] = self._preempted
        self._scheduled_at = time.perf_counter()
        return output

    def update_from_output(
        self, *arguments: object, **options: object
    ) -> dict[int, EngineCoreOutputs]:
        """Take the model's output as the engine does; the step's record is complete after it."""
        ready = time.perf_counter()
        result = super().update_from_output(*arguments, **options)
        row = self._row[0]
        row["model_s"] = ready - self._scheduled_at
        row["update_s"] = time.perf_counter() - ready
        self._steps.write(self._row.tobytes())
        if not self.running and not self.waiting:
            self._steps.flush()
            self._events.flush()
        return result

    def add_request(self, request: Request) -> None:
        """A request reaches the scheduler."""
        self._event("arrive", request.request_id, 0, request.num_prompt_tokens, time.time())
        super().add_request(request)

    def _preempt_request(self, request: Request, *arguments: object, **options: object) -> None:
        computed, tokens = request.num_computed_tokens, request.num_tokens
        super()._preempt_request(request, *arguments, **options)
        self._preempted += 1
        self._admitted.discard(request.request_id)
        self._event("preempt", request.request_id, computed, tokens, time.time())

    def _free_request(
        self, request: Request, *arguments: object, **options: object
    ) -> tuple[dict[str, Any] | None, dict[str, Any] | None]:
        self._admitted.discard(request.request_id)
        computed, tokens = request.num_computed_tokens, request.num_tokens
        self._event("finish", request.request_id, computed, tokens, time.time())
        return super()._free_request(request, *arguments, **options)

    def _note_scheduled(self, scheduled: dict[str, int], epoch: float) -> None:
        """Count prefill and decode apart: a decode computes the one token sampled last."""
        prefills = prefill_tokens = pairs = decodes = context = 0
        for name, count in scheduled.items():
            request = self.requests[name]
            before = request.num_computed_tokens - count
            if name not in self._admitted:
                self._admitted.add(name)
                kind = "resume" if request.num_preemptions else "admit"
                self._event(kind, name, before, request.num_tokens, epoch)
            if before >= request.num_prompt_tokens and before + 1 == request.num_tokens:
                decodes += 1
                context += before + 1
            else:
                prefills += 1
                prefill_tokens += count
                pairs += count * before + count * (count + 1) // 2
        row = self._row[0]
        row["context_requests"], row["context_tokens"] = prefills, prefill_tokens
        row["generation_requests"], row["generation_tokens"] = decodes, decodes
        row["context_pairs"], row["generation_context"] = pairs, context

    def _event(self, kind: str, name: str, computed: int, tokens: int, epoch: float) -> None:
        self._events.write(f"{epoch:.6f},{self._step},{kind},{name},{computed},{tokens}\n")
