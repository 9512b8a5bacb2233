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
WHY: Final[dict[str, str]] = {
    "lmbench": "every prompt is cached, so its time to first token is that of gateway, front end"
    " and the wait for a step. The front end slows down with the answers it streams: a fit to the"
    " calls knows it, step times of the hardware do not. Most rates lie above the knee, where a run"
    " of 252 requests is a transient and its tail is luck",
    "rtx": "one run, into overload: queues add up every per cent of step time",
    "mlperf": "submitters choose the largest rate that meets the limits, 95 to 98% of what the"
    " deployment can do, so in Server rows times are capacity over again: near 1 / (1 - load) one"
    " per cent of throughput moves them by ten or more. Layout, batch limit and number formats are"
    " not in the v4.1 rows; vLLM 0.4.3 spends more time on its host than on the GPU",
    "iog": "lengths are a shape scaled to the row's totals, not the 200 prompts themselves; models"
    " that leave little memory depend on a few per cent of the KV pool; one draw of 200 Poisson"
    " arrivals is compared with the mean of three others",
    "kubecon": "rates from 92 to 112/s lie on the knee: some per cent of step time decide whether a"
    " queue builds. The client is on another machine, and its way is part of every time to first"
    " token. The V0 rows run prompts first, so what a short prompt costs there is paid by every"
    " other answer",
    "blis": "output lengths are told by their limit only; some models were run at one load",
    "azure": "the version of the engine, the prompts and the links between the cards are not told",
    "gpustack": "a thousand requests at one instant: how many run at once follows from the KV pool,"
    " which is small on most of these cards, and several thousand tokens a second are more than one"
    " Python process streams, at the server (SGLang, trtllm-serve) as at the client. Commands are"
    " those last seen on the page before the result",
    "silicon sample": "lengths, their spread and the number of requests of the rows that are not"
    " InferenceX are not told; means of times to first token hang on how prompts of a closed loop"
    " fall together, and on the burst at its beginning",
    "SGLang cookbook": "few rows of few models",
    "token position": "the folder calls itself experimental, and the engine is a nightly build",
    "ML.ENERGY": "prompts and their lengths are not told, the batch is a mean over the run",
    "TensorRT-LLM maximum": "its bench tunes the batch limit and the token budget, which are not"
    " told",
    "Splitwise": "software of 2023; one step for all prompts of a batch is assumed",
    "Argonne": "engines of 2023 and 2024 in versions that are not told",
    "dstack": "versions are not told; of a batch only the whole time is",
    "anchors": "single figures out of posts and pages, of settings told in part",
}
"""Why a set misses, by its name on the command line."""
