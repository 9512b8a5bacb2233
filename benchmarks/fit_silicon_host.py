"""Fits what a step takes beyond its operators (`silicon_host`), and prints errors left out of it.

    python benchmarks/fit_silicon_host.py [path of ground_truth]

Rows are those of `silicon_check` whose prompts take less than a third of the time. Six folds over
models x cards: what is printed as held out was told by constants that saw neither. Host times are
kept >= 0; the operator tables themselves are not touched.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from scipy.optimize import least_squares
from silicon_check import LOADERS, Row, decode, spec

from sojourn.capacity import catalogue, silicon, silicon_host
from sojourn.capacity.memory import weight_dtype
from sojourn.capacity.records import StepModel
from sojourn.capacity.roofline_constants import engine_kind
from sojourn.capacity.silicon_host import Host
from sojourn.errors import SojournError
from sojourn.interval import Excuse

FOLDS = 6
PROMPT_SHARE = 0.35
"""Rows whose prompts take more of the time test the prompt costs, not the decode step."""
FIELDS = ("step_s", "sequence_s", "sampling_s", "routed_layer_s", "fp8_routed_layer_s")
KINDS = ("vllm v1", "vllm async", "sglang", "trtllm")
SYNCHRONOUS_ONLY = ("sampling_s", "fp8_routed_layer_s")
"""Seen with old vLLM alone; newer runs in the files do not sample with filters."""


@dataclass(frozen=True)
class Sample:
    """A measured decode step and what goes into its host time."""

    row: Row
    real_s: float
    operators_s: float
    batch: float
    routed: int
    fp8: bool
    sorts: float
    skews: float

    @property
    def kind(self) -> str:
        """Of engine."""
        return engine_kind(self.row.deployment.engine)

    @property
    def group(self) -> str:
        """Model and card."""
        return f"{self.row.model.split('/')[-1]} | {self.row.gpu}"


def samples(root: Path) -> list[Sample]:
    """Decode steps of the rows, prompts taken out by their told cost."""
    found = []
    told: dict[object, StepModel | Excuse] = {}
    for row in (r for load in LOADERS.values() for r in load(root)):
        model = spec(row.model)
        if model is None or (row.tpot_s is None and row.itl_s is None):
            continue
        context = row.inputs + row.outputs / 2
        try:
            gpu = catalogue.gpu(row.gpu)
            key = (row.model, row.gpu, row.deployment, round(context))
            if key not in told:
                told[key] = silicon.step_model(
                    model, gpu, row.deployment, mean_context=context, host=Host(0.0, 0.0)
                )
            step = told[key]
        except SojournError:
            continue
        if isinstance(step, Excuse):
            continue
        ranks = row.deployment.data_parallel * row.deployment.pipeline_parallel
        clients, batch, share = row.clients / ranks, row.clients / ranks, 0.0
        if row.tpot_s is not None:
            prompt = step.prefill_step_s(round(row.inputs))
            prompt += step.prefill_s_per_token_context * row.inputs**2 / 2
            cycle = (row.ttft_s or 0.0) + (row.outputs - 1) * row.tpot_s
            share = (clients - 1) / cycle * prompt if clients > 1 else 0.0
            batch = max(1.0, clients * (row.outputs - 1) * row.tpot_s / cycle)
        if share > PROMPT_SHARE or engine_kind(row.deployment.engine) not in KINDS:
            continue
        skew = silicon_host.skew_s(model, gpu, row.deployment)
        found.append(
            Sample(
                row=row,
                real_s=(row.tpot_s or row.itl_s or 0.0) * (1 - share),
                operators_s=decode(step, batch, context) - skew,
                batch=batch,
                routed=sum(m.layers for m in model.mlp if m.experts),
                fp8=weight_dtype(model, row.deployment) == "fp8",
                sorts=0.0
                if model.architecture == "gpt_oss"
                else batch * model.vocab_size / silicon_host.VOCABULARY,
                skews=skew / silicon_host.SKEW_S,
            )
        )
    return found


def columns() -> list[tuple[str, str]]:
    """(kind, field) of each constant; the last is the skew of an all-reduce."""
    own = [
        (kind, field)
        for kind in KINDS
        for field in FIELDS
        if kind == "vllm v1" or field not in SYNCHRONOUS_ONLY
    ]
    return [*own, ("all", "skew_s")]


def matrix(found: list[Sample]) -> np.ndarray:
    """What each constant, in microseconds, adds to each sample, s."""
    names = columns()
    table = np.zeros((len(found), len(names)))
    for i, s in enumerate(found):
        values = {
            "step_s": 1.0,
            "sequence_s": s.batch,
            "sampling_s": s.sorts,
            "routed_layer_s": s.routed,
            "fp8_routed_layer_s": s.routed * s.fp8,
        }
        for j, (kind, field) in enumerate(names):
            if kind == "all":
                table[i, j] = s.skews
            elif kind == s.kind:
                table[i, j] = values[field]
    return table * 1e-6


def fit(found: list[Sample], table: np.ndarray, chosen: np.ndarray) -> np.ndarray:
    """Constants, microseconds: robust least squares of log errors, every group of one weight."""
    base = np.array([s.operators_s for s in found])
    real = np.array([s.real_s for s in found])
    counts: dict[str, int] = defaultdict(int)
    for s in found:
        counts[s.group] += 1
    weight = np.array([3 / np.sqrt(counts[s.group]) for s in found])

    def misses(constants: np.ndarray) -> np.ndarray:
        told = base[chosen] + table[chosen] @ constants
        return weight[chosen] * np.log(told / real[chosen])

    start = np.full(table.shape[1], 5.0)
    limits = (np.zeros_like(start), np.full_like(start, 6000.0))
    return least_squares(misses, start, bounds=limits, loss="soft_l1", f_scale=0.1).x


def held_out(found: list[Sample], table: np.ndarray) -> np.ndarray:
    """Told by constants that saw neither the model on that card nor the card with that model."""
    groups = sorted({s.group for s in found})
    np.random.default_rng(0).shuffle(groups)
    base = np.array([s.operators_s for s in found])
    told = np.empty(len(found))
    for fold in range(FOLDS):
        left = set(groups[fold::FOLDS])
        out = np.array([s.group in left for s in found])
        constants = fit(found, table, np.flatnonzero(~out))
        told[out] = base[out] + table[out] @ constants
    return told


def line(name: str, ratios: np.ndarray) -> str:
    """Errors of real / told."""
    low, high = np.quantile(ratios, [0.1, 0.9])
    errors = 1 / ratios - 1
    return (
        f"{len(ratios):5d}  median {np.median(errors):+6.1%} |{np.median(np.abs(errors)):5.1%}|"
        f"  real/told 10-90% {low:.2f}-{high:.2f}  {name}"
    )


def main(arguments: list[str]) -> None:
    """Fits, prints."""
    root = Path(arguments[0]) if arguments else Path("../shared/data/ground_truth")
    found = samples(root)
    table = matrix(found)
    constants = fit(found, table, np.arange(len(found)))
    for (kind, field), value in zip(columns(), constants, strict=True):
        print(f"{kind:12s} {field:20s} {value:8.1f} us")
    real = np.array([s.real_s for s in found])
    told = np.array([s.operators_s for s in found]) + table @ constants
    print(line("in sample", real / told))
    ratios = real / held_out(found, table)
    print(line("held out", ratios))
    for name in ("batch", "kind", "group"):
        groups: dict[str, list[int]] = defaultdict(list)
        for i, s in enumerate(found):
            size = f"batch about {4 ** round(np.log2(s.batch) / 2):4d}"
            groups[{"batch": size, "kind": s.kind, "group": s.group}[name]].append(i)
        for key, members in sorted(groups.items()):
            print(line(key, ratios[members]))
    medians = [np.median(np.abs(1 / ratios[m] - 1)) for m in groups.values()]
    print(f"median of the groups' medians {np.median(medians):.1%}")


if __name__ == "__main__":
    main(sys.argv[1:])
