"""What the account of memory needs to know of the engine beyond `Deployment`: its kind, its
version, and the flags of its command line that move memory."""

from __future__ import annotations

import math
import re
from typing import NamedTuple

from sojourn.capacity.launch import read_launch
from sojourn.capacity.launch_flags import json_object
from sojourn.config import Deployment
from sojourn.units import GIB

_VERSION = re.compile(r"v?(\d+)\.(\d+)(?:\.(\d+))?")


class Knobs(NamedTuple):
    """Flags beside those of `Deployment`. Sizes in GiB."""

    engine: str = "vllm"
    version: tuple[int, ...] = ()
    kv_cache_gib: float | None = None
    cpu_offload_gib: float = 0.0
    context_parallel: int = 1
    hybrid_blocks: bool | None = None
    draft_model: str | None = None
    draft_tokens: int = 0
    swa_ratio: float = 0.8
    state_ratio: float = 0.9
    graph_batch: int | None = None
    flashinfer_sampler: bool | None = None
    text_only: bool = False

    def older_than(self, *version: int) -> bool:
        """Whether the engine is known to be older; an unnamed version counts as new."""
        return bool(self.version) and self.version < version


def engine_version(text: str) -> tuple[str, tuple[int, ...]]:
    """Name and version of `vllm 0.18.0`, `sglang==0.5.6`, `trtllm`: ("vllm", (0, 18, 0))."""
    name = re.split(r"[\s=:@/]", text.strip().lower(), maxsplit=1)[0].replace("-", "")
    known = {"tensorrtllm": "trtllm", "trt": "trtllm", "tensorrt_llm": "trtllm"}
    found = _VERSION.search(text)
    numbers = tuple(int(part) for part in found.groups("0")) if found else ()
    return known.get(name, name), numbers


def _no_images(limits: str | None) -> bool:
    """Whether `--limit-mm-per-prompt` lets no image in."""
    if limits is None:
        return False
    try:
        allowed = json_object(limits)
    except ValueError:
        return False
    return bool(allowed) and not any(allowed.values())


def knobs(deployment: Deployment) -> Knobs:
    """Read from `deployment.engine` and, where there is one, the command line.

    Raises:
        InputError: `deployment.launch` cannot be read.
    """
    engine, version = engine_version(deployment.engine)
    found = Knobs(engine=engine, version=version)
    if deployment.launch is None:
        return found
    launch = read_launch(deployment.launch)
    named = "engine" in deployment.model_fields_set
    ratio = launch.number("swa_full_tokens_ratio")
    state = launch.number("mamba_full_memory_ratio")
    cache_bytes = launch.number("kv_cache_memory_bytes")
    graph = launch.number("cuda_graph_max_bs")
    return found._replace(
        engine=engine if named or launch.engine is None else launch.engine,
        version=version or engine_version(f"x {launch.version or ''}")[1],
        kv_cache_gib=None if cache_bytes is None else cache_bytes / GIB,
        cpu_offload_gib=launch.number("cpu_offload_gb") or 0.0,
        context_parallel=max(1, int(launch.number("decode_context_parallel") or 1)),
        hybrid_blocks=False if launch.truth("disable_hybrid_blocks") else None,
        draft_model=launch.text("draft_model"),
        draft_tokens=int(launch.number("draft_tokens") or 0),
        swa_ratio=0.8 if ratio is None or not math.isfinite(ratio) else ratio,
        state_ratio=0.9 if state is None or not math.isfinite(state) else state,
        graph_batch=None if graph is None else int(graph),
        flashinfer_sampler=launch.truth("flashinfer_sampler"),
        text_only=bool(launch.truth("skip_encoder")) or _no_images(launch.text("image_limits")),
    )
