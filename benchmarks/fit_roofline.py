"""Fits the roofline's end-to-end constants on the measured rows beside the checkout; prints errors.

    python benchmarks/fit_roofline.py [path of ground_truth] [--fit] [--folds 3] [--groups]

Without --fit it scores the shipped constants. With it, it fits on all groups (model x format x
card) but one fold's, scores that fold, for each fold; then fits on all and prints the constants as
`capacity/roofline_constants.py` holds them, and the spreads as `roofline_spread.py` does.
Rows and their assumptions: `roofline_rows.py`. Closed-form surrogates stand for the simulator: a
mean step carries (batch / output) prompts.
"""

from __future__ import annotations

import argparse
import dataclasses
import zlib
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import roofline_ranges
from roofline_rows import Measured, load
from roofline_surrogates import factors, ratios, without_front
from scipy.optimize import least_squares
from scipy.sparse import lil_matrix

from sojourn.capacity.roofline_constants import CONSTANTS, Constants, engine_kind

Floats = npt.NDArray[np.float64]
ROWS_OF_A_SHAPE = 4
"""Of one deployment at most so many rows take part in a fit, spread over its loads; of engines of
2023 and 2024 two."""
OLD = {"Argonne vLLM", "Argonne TensorRT-LLM", "Splitwise"}
"""Sets of engines of 2023 and 2024: they weigh half."""
PRIOR = {
    "": 0.12, "link": 0.5, "memory": 0.5, "kv": 0.5, "compute": 0.6, "experts_memory": 0.4,
    "prefill_attention": 0.5, "routing": 0.4, "skew": 0.4, "state": 0.5, "linear_flops": 0.5,
    "quantise": 0.3, "experts_compute": 0.3, "launch": 0.5,
}  # fmt: skip
"""Weight of staying at the start, by field: a log-unit off costs as much as the square of that many
groups off by as much. Shares and launches start at what the operator tables say, and weigh more."""

SHARES = {
    "memory": (0.5, 1.0), "compute": (0.3, 1.0), "kv": (0.5, 1.0),
    "experts_memory": (0.3, 1.0), "experts_compute": (0.2, 1.0),
    "prefill_attention": (0.3, 1.0), "launch": (0.4, 2.0),
    "routing": (0.6, 1.0), "sampler_passes": (1.0, 40.0), "link": (0.3, 1.0),
    "quantise": (0.1, 1.0), "front_token_s": (1e-7, 2e-5),
    "skew": (0.1, 3.0), "state": (0.2, 1.0), "linear_flops": (0.01, 0.5),
}  # fmt: skip
ENGINE_FIELDS = {
    "step_s": (1e-5, 2e-2), "sequence_s": (1e-7, 2e-4), "launch_s": (1e-5, 2e-3),
    "front_s": (1e-3, 5e-2), "kernels": (1.0, 15.0), "reduce": (0.3, 6.0),
    "routing_s": (1e-7, 1e-4),
}  # fmt: skip


def neutral() -> Constants:
    """Where every fit starts: kernels as the tables have them, all engines alike (assumed)."""
    same = {"step_s": 1e-3, "sequence_s": 1.5e-5, "launch_s": 2e-4, "front_s": 1e-2,
            "kernels": 5.0, "reduce": 1.1, "routing_s": 1e-5}  # fmt: skip
    engines = {k: dataclasses.replace(e, **same) for k, e in CONSTANTS.engines.items()}
    first = engines["vllm 2023"]  # one Python process in lock step with Ray workers
    engines["vllm 2023"] = dataclasses.replace(first, step_s=1e-2)
    return dataclasses.replace(
        CONSTANTS, memory=0.97, compute=0.9, kv=0.95, experts_memory=0.9, experts_compute=0.9,
        prefill_attention=0.85, launch=1.0, routing=0.9, sampler_passes=6.0, link=0.8,
        quantise=0.8, front_token_s=3e-6, skew=1.0, state=0.8, linear_flops=0.1,
        engines=engines,
    )  # fmt: skip


def names(constants: Constants) -> list[tuple[str, str]]:
    """Every number of the constants that is fitted: (engine or empty, field)."""
    own = [("", name) for name in SHARES]
    return own + [(kind, name) for kind in constants.engines for name in ENGINE_FIELDS]


def bounds(name: str) -> tuple[float, float]:
    """Range of a field."""
    return SHARES.get(name) or ENGINE_FIELDS[name]


def values(constants: Constants) -> Floats:
    """Logarithms of all fitted numbers."""
    picked = [
        getattr(constants.engines[kind] if kind else constants, name)
        for kind, name in names(constants)
    ]
    return np.log(np.array(picked))


def constants_of(x: Floats, start: Constants) -> Constants:
    """The constants with these numbers."""
    own: dict[str, float] = {}
    engines: dict[str, dict[str, float]] = defaultdict(dict)
    for (kind, name), value in zip(names(start), np.exp(x).tolist(), strict=True):
        (engines[kind] if kind else own)[name] = value
    changed = {
        kind: dataclasses.replace(engine, **engines[kind]) for kind, engine in start.engines.items()
    }
    return dataclasses.replace(start, **own, engines=changed)


def weights(rows: Sequence[Measured]) -> Floats:
    """Every group and kind weighs the same; single published rows little."""
    count: dict[tuple[str, str, str], int] = defaultdict(int)
    for r in rows:
        count[r.set, r.group, r.kind] += 1

    return np.array([
        (0.5 if r.set in OLD or r.kind == "ttft" else 1.0)
        / max(count[r.set, r.group, r.kind], 4)
        for r in rows
    ]) ** 0.5  # fmt: skip


def thinned(rows: Sequence[Measured]) -> list[Measured]:
    """At most `ROWS_OF_A_SHAPE` rows of a deployment and kind, evenly over its loads."""
    shapes: dict[tuple[str, str, str], list[Measured]] = defaultdict(list)
    for r in rows:
        shapes[r.set, r.shape, r.kind].append(r)
    kept = []
    for own in shapes.values():
        own.sort(key=lambda r: (r.batch, r.prompt, r.output))
        most = 2 if own[0].set in OLD else ROWS_OF_A_SHAPE
        at = np.unique(np.linspace(0, len(own) - 1, most).round().astype(int))
        kept += [own[i] for i in at]
    return kept


def fit(rows: Sequence[Measured], start: Constants, steps: int = 15) -> Constants:
    """Robust least squares on log ratios, with a pull to the start."""
    rows = thinned(rows)
    weight = weights(rows)
    more = factors(rows, start)
    begin = values(start)
    low = np.log([bounds(name)[0] for _, name in names(start)])
    high = np.log([bounds(name)[1] for _, name in names(start)])
    pull = np.array([PRIOR.get(name, PRIOR[""]) for _, name in names(start)])
    begin = np.clip(begin, low + 1e-3, high - 1e-3)

    def residual(x: Floats) -> Floats:
        told = weight * _soft(ratios(rows, constants_of(x, start), more))
        return np.concatenate([told, pull * (x - begin)])

    found = least_squares(
        residual, begin, bounds=(low, high), max_nfev=steps, diff_step=1e-3,
        jac_sparsity=_pattern(rows, start), tr_solver="lsmr",
    )  # fmt: skip
    return constants_of(found.x, start)


def _pattern(rows: Sequence[Measured], start: Constants) -> lil_matrix:
    """Which number moves which residual: an engine's only its own rows."""
    columns = names(start)
    pattern = lil_matrix((len(rows) + len(columns), len(columns)), dtype=int)
    kinds = [engine_kind(r.deployment.engine) for r in rows]
    for j, (kind, _) in enumerate(columns):
        pattern[len(rows) + j, j] = 1
        for i, own in enumerate(kinds):
            if kind in ("", own):
                pattern[i, j] = 1
    return pattern


def _soft(x: Floats, scale: float = 0.10) -> Floats:
    """Square root of the soft-L1 loss, with sign: linear beyond `scale`."""
    return np.sign(x) * scale * np.sqrt(2 * (np.sqrt(1 + (x / scale) ** 2) - 1))


def report(title: str, rows: Sequence[Measured], log_ratio: Floats, groups: bool) -> None:
    """Median absolute error by set and kind, and by group where asked."""
    error = np.exp(log_ratio) - 1
    print(f"\n{title}: {len(rows)} rows")
    by: dict[tuple[str, str], list[int]] = defaultdict(list)
    fine: dict[tuple[str, str, str], list[int]] = defaultdict(list)
    for i, r in enumerate(rows):
        by[r.kind, r.set].append(i)
        by[r.kind, "ALL"].append(i)
        fine[r.kind, r.set, r.shape].append(i)
    for (kind, name), at in sorted(by.items()):
        e = error[at]
        shapes = [np.median(np.abs(error[v])) for k, v in fine.items() if k[0] == kind
                  and name in (k[1], "ALL")]  # fmt: skip
        print(f"  {kind:8}{name:22} n={len(at):4} median |e| {np.median(np.abs(e)):6.1%}"
              f"  of groups {np.median(shapes):6.1%}  bias {np.median(e):+6.1%}")  # fmt: skip
    if groups:
        for (kind, name, shape), at in sorted(fine.items()):
            e = error[at]
            print(f"    {kind:8}{name:16}{shape:62} n={len(at):3} |e| {np.median(np.abs(e)):6.1%}"
                  f" bias {np.median(e):+6.1%} [{e.min():+.0%} {e.max():+.0%}]")  # fmt: skip


def shown(constants: Constants) -> str:
    """The constants as the module holds them."""
    lines = [f"    {name}: float = {getattr(constants, name):.4g}" for name in SHARES]
    for kind, e in constants.engines.items():
        lines.append(
            f'    "{kind}": Engine({e.step_s:.3g}, {e.sequence_s:.3g}, {e.overlap}, '
            f"{e.launch_s:.3g}, {e.front_s:.3g}, {e.kernels:.3g}, {e.reduce:.3g}, {e.routing_s:.3g}"
            f"{'' if e.graphs else ', graphs=False'}),"
        )
    return "\n".join(lines)


@dataclasses.dataclass
class Held:
    """Rows scored under constants fitted on the other folds."""

    rows: list[Measured] = dataclasses.field(default_factory=list)
    told: list[float] = dataclasses.field(default_factory=list)
    """log(told / measured)."""
    real: list[float] = dataclasses.field(default_factory=list)
    """log(real / told), the front end taken from both where a row has one."""
    fold: list[int] = dataclasses.field(default_factory=list)


def folded(rows: Sequence[Measured], folds: int, start: Constants) -> Held:
    """Every row under constants fitted on the folds that its group is not in."""
    held = Held()
    for fold in range(folds):
        own = [r for r in rows if zlib.crc32(r.group.encode()) % folds == fold]
        others = [r for r in rows if zlib.crc32(r.group.encode()) % folds != fold]
        if not own:
            continue
        fitted = fit(others, start)
        told = ratios(own, fitted, factors(own, fitted))
        held.rows += own
        held.told += told.tolist()
        held.real += without_front(own, told, fitted)
        held.fold += [fold] * len(own)
    return held


def main() -> None:
    """Score, and fit where asked."""
    parser = argparse.ArgumentParser(description=__doc__)
    project = Path(__file__).resolve().parent.parent
    parser.add_argument("root", nargs="?", type=Path,
                        default=project.parent / "shared" / "data" / "ground_truth")  # fmt: skip
    parser.add_argument("--fit", action="store_true")
    parser.add_argument("--folds", type=int, default=3)
    parser.add_argument("--groups", action="store_true")
    given = parser.parse_args()
    if not given.root.is_dir():
        print(f"no measured rows at {given.root}: nothing to score")
        return
    rows, missing = load(given.root)
    print(f"{len(rows)} rows; left out, not in the catalogue: {dict(missing)}")
    shipped = ratios(rows, CONSTANTS, factors(rows, CONSTANTS))
    report("shipped constants", rows, shipped, given.groups)
    if given.fit:
        whole = fit(rows, neutral())
        told = ratios(rows, whole, factors(rows, whole))
        report("fitted on all", rows, told, given.groups)
        print(shown(whole))
        if given.folds > 1:
            held = folded(rows, given.folds, neutral())
            report("groups left out of the fit", held.rows, np.array(held.told), given.groups)
            roofline_ranges.report(held.rows, np.array(held.real), held.fold)


if __name__ == "__main__":
    main()
