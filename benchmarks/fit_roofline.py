"""Fits the roofline's end-to-end constants on the measured rows beside the checkout; prints errors.

    python benchmarks/fit_roofline.py [path of ground_truth] [--fit] [--folds 5] [--groups]

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
from roofline_loop import Steps, closed_loop
from roofline_rows import Measured, load
from scipy.optimize import least_squares
from scipy.sparse import lil_matrix

from sojourn.capacity import catalogue
from sojourn.capacity import roofline_attention as attention
from sojourn.capacity.roofline import base_s, prompt_s
from sojourn.capacity.roofline_constants import CONSTANTS, Constants, Engine, engine_kind
from sojourn.capacity.roofline_setting import Setting, setting_of

Floats = npt.NDArray[np.float64]
CHUNK = 8192
ROWS_OF_A_SHAPE = 6
"""Of one deployment at most so many rows take part in a fit, spread over its loads."""
PRIOR = 0.12
"""Weight of staying at the start: a log-unit off costs as much as this many groups off by as much;
it decides only where rows do not."""

SHARES = {
    "memory": (0.5, 1.0), "compute": (0.3, 1.0), "kv": (0.5, 1.0),
    "experts_memory": (0.3, 1.0), "experts_compute": (0.2, 1.0),
    "prefill_attention": (0.3, 1.0), "launch": (0.4, 2.0), "routing_s": (1e-6, 1e-4),
    "routing": (0.6, 1.0), "sampler_passes": (1.0, 40.0), "link": (0.1, 0.9),
    "reduce": (0.7, 6.0), "skew": (0.1, 3.0), "state": (0.2, 1.0), "linear_flops": (0.01, 0.5),
}  # fmt: skip
ENGINE_FIELDS = {
    "step_s": (1e-5, 2e-2), "sequence_s": (1e-7, 2e-4), "launch_s": (1e-5, 2e-3),
    "front_s": (1e-3, 5e-2), "kernels": (1.0, 15.0),
}  # fmt: skip


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


def _setting(row: Measured, constants: Constants, context: float) -> Setting:
    return setting_of(
        catalogue.model(row.model), catalogue.gpu(row.gpu), row.deployment,
        mean_context=max(context, 1.0), constants=constants,
    )  # fmt: skip


def _prompt(s: Setting, length: float) -> float:
    """What one prompt adds, cut in chunks."""
    whole, rest = divmod(int(length), CHUNK)
    looks = attention.prefill_context_s(s) * length * length / 2
    return whole * prompt_s(s, CHUNK) + (prompt_s(s, rest) if rest else 0.0) + looks


def predict(row: Measured, constants: Constants) -> float:
    """The row's time, seconds."""
    if row.kind in ("itl", "tpot"):
        s = _setting(row, constants, row.context)
        step = base_s(s, row.batch) + row.batch * row.context * attention.slope_s(s)
        if row.kind == "tpot" and row.output:
            step += max(row.batch - 1, 0.0) / row.output * _prompt(s, row.prompt)
        return step
    s = _setting(row, constants, row.prompt)
    if row.kind == "ttft":
        around = base_s(s, row.batch - 1) - base_s(s, 0) if row.batch > 1 else 0.0
        looks = (row.batch - 1) * row.context * attention.slope_s(s) if row.batch > 1 else 0.0
        own = base_s(s, 0) + _prompt(s, row.prompt) + s.engine.front_s
        return own + max(around + looks, 0.0)
    tokens = row.prompt * row.batch
    looks = attention.prefill_context_s(s) * row.batch * row.prompt * row.prompt / 2
    steps = max(round(tokens / CHUNK), 1)
    prefill = steps * (base_s(s, 0) + prompt_s(s, int(tokens / steps))) + looks
    if row.kind == "prefill":
        return prefill
    middle = row.prompt + row.output / 2
    s = _setting(row, constants, middle)
    step = base_s(s, row.batch) + row.batch * middle * attention.slope_s(s)
    return prefill + (row.output - 1) * step


def factors(rows: Sequence[Measured], constants: Constants) -> Floats:
    """log(mean of the closed loop / surrogate) of each row; 0 where no loop was run."""
    return np.array([_factor(r, constants) for r in rows])


def _factor(row: Measured, constants: Constants) -> float:
    if not row.loop:
        return 0.0
    s = _setting(row, constants, row.context)
    known: dict[int, float] = {}
    prompts: dict[int, float] = {}

    def base(batch: int) -> float:
        if batch not in known:
            known[batch] = base_s(s, batch)
        return known[batch]

    def prompt(tokens: int) -> float:
        at = max(round(tokens / 64) * 64, 16)
        if at not in prompts:
            prompts[at] = prompt_s(s, at)
        return prompts[at]

    steps = Steps(base, attention.slope_s(s), prompt, attention.prefill_context_s(s),
                  mixed="sglang" not in row.deployment.engine)  # fmt: skip
    ttft, tpot = closed_loop(
        steps, clients=int(row.batch), prompt=row.prompt, output=row.output, even=row.even
    )
    told = tpot if row.kind == "tpot" else ttft + s.engine.front_s
    return float(np.log(told / predict(row, constants)))


def ratios(rows: Sequence[Measured], constants: Constants, more: Floats) -> Floats:
    """log(told / measured), `more` the rows' `factors`."""
    return more + np.log(np.array([predict(r, constants) / r.seconds for r in rows]))


def weights(rows: Sequence[Measured]) -> Floats:
    """Every group and kind weighs the same; single published rows little."""
    count: dict[tuple[str, str, str], int] = defaultdict(int)
    for r in rows:
        count[r.set, r.group, r.kind] += 1
    return np.array([1 / max(count[r.set, r.group, r.kind], 4) for r in rows]) ** 0.5


def thinned(rows: Sequence[Measured]) -> list[Measured]:
    """At most `ROWS_OF_A_SHAPE` rows of a deployment and kind, evenly over its loads."""
    shapes: dict[tuple[str, str, str], list[Measured]] = defaultdict(list)
    for r in rows:
        shapes[r.set, r.shape, r.kind].append(r)
    kept = []
    for own in shapes.values():
        own.sort(key=lambda r: (r.batch, r.prompt, r.output))
        at = np.unique(np.linspace(0, len(own) - 1, ROWS_OF_A_SHAPE).round().astype(int))
        kept += [own[i] for i in at]
    return kept


def fit(rows: Sequence[Measured], start: Constants, steps: int = 25) -> Constants:
    """Robust least squares on log ratios, with a pull to the start."""
    rows = thinned(rows)
    weight = weights(rows)
    more = factors(rows, start)
    begin = values(start)
    low = np.log([bounds(name)[0] for _, name in names(start)])
    high = np.log([bounds(name)[1] for _, name in names(start)])
    begin = np.clip(begin, low + 1e-3, high - 1e-3)

    def residual(x: Floats) -> Floats:
        told = weight * _soft(ratios(rows, constants_of(x, start), more))
        return np.concatenate([told, PRIOR * (x - begin)])

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


def _soft(x: Floats, scale: float = 0.15) -> Floats:
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
            f"{e.launch_s:.3g}, {e.front_s:.3g}, {e.kernels:.3g}"
            f"{'' if e.graphs else ', graphs=False'}),"
        )
    return "\n".join(lines)


def folded(rows: Sequence[Measured], folds: int, start: Constants) -> tuple[list[Measured], Floats]:
    """Rows with their ratios under constants fitted on the other folds."""
    out: list[Measured] = []
    told: list[Floats] = []
    for fold in range(folds):
        held = [r for r in rows if zlib.crc32(r.group.encode()) % folds == fold]
        others = [r for r in rows if zlib.crc32(r.group.encode()) % folds != fold]
        if held:
            out += held
            fitted = fit(others, start)
            told.append(ratios(held, fitted, factors(held, fitted)))
    return out, np.concatenate(told)


def main() -> None:
    """Score, and fit where asked."""
    parser = argparse.ArgumentParser(description=__doc__)
    project = Path(__file__).resolve().parent.parent
    parser.add_argument("root", nargs="?", type=Path,
                        default=project.parent / "shared" / "data" / "ground_truth")  # fmt: skip
    parser.add_argument("--fit", action="store_true")
    parser.add_argument("--folds", type=int, default=5)
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
        whole = fit(rows, CONSTANTS)
        told = ratios(rows, whole, factors(rows, whole))
        report("fitted on all", rows, told, given.groups)
        print(shown(whole))
        if given.folds > 1:
            report(
                "groups left out of the fit", *folded(rows, given.folds, CONSTANTS), given.groups
            )


__all__ = ["Engine", "fit", "folded", "predict", "ratios"]
if __name__ == "__main__":
    main()
