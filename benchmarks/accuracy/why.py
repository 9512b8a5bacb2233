"""What the page says in words: figures that others published, what replays leave out, and why a
set misses. Words of a set are printed beside its own figures, so they name no figure themselves."""

from __future__ import annotations

from typing import Final

PUBLISHED: Final = (
    ("BLIS (trained on runs of the same kind)", "5.3%", "5.5%", "20.6%"),
    ("aiconfigurator 0.9", "21.5%", "13.2%", "662%"),
    ("a roofline alone", "37.6%", "45.2%", "549%"),
    ("Vidur (2 runs)", "339%", "203%", "11,593%"),
)
"""Median absolute error of means (E2E, ITL, TTFT) of whole runs on H100."""
PUBLISHED_SOURCE: Final = (
    "Measured by the authors of BLIS on their own runs"
    " (github.com/inference-sim/sim-to-real-accuracy-validation, `results_iter36` and"
    " `results_trainval`): what those runs measured is the set BLIS below, the training part of it."
)
NOT_EXPRESSED: Final = (
    "Pipeline parallelism: a replica of depth d is d equal engines, each with its share of slots"
    " and KV, whose steps take the whole depth. Bubbles between unequal batches are left out.",
    "TensorRT-LLM: in-flight batching is run as mixed steps within `max_num_tokens`; contexts may"
    " be cut (they are not without chunked context). It admits a request only when its whole"
    " output will fit: slots are limited to what the KV pool holds at the mean length.",
    "SGLang: prompts first, in steps of their own of at most the chunk size, decodes stand still"
    " meanwhile. Its estimate of future KV (new token ratio) is left out: it may retract requests"
    " at other times than the simulator preempts them.",
    "vLLM before 0.8 (V0): prompts first, never mixed. Its budget counts padded prompts there.",
    "vLLM's asynchronous scheduling: a call that comes during a step joins the next one here, the"
    " one after there.",
    "Data-parallel ranks: the router sends each call to the rank with the fewest; steps of ranks"
    " are not held together by their collectives.",
    "The client and the server's front end: the step model's time per call, without limit. Where a"
    " thousand requests come at one instant the front end itself is a queue.",
)
WHY: Final[dict[str, str]] = {}
"""Why a set misses, by its name on the command line."""
