"""Predicted against published measured runs, once step times are fitted on a part of each.

    python benchmarks/ground_truth.py [--shared ../shared] [--only rtx-pro-6000|exp-4]

RTX PRO 6000 (vLLM 0.19, one run of 300 requests into overload): fitted on the first third of the
requests, the whole run replayed, the other two thirds scored. LMBench exp-4 (28 rates, constant
arrivals, several engines): fitted on every second rate, the others replayed as the same finite
runs and scored. Needs the measured files beside the checkout (they may not be passed on here).
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Final, Protocol

import numpy as np
from measured import llmservingsim, lmbench
from measured.runs import Floats, Run, joined, stream, tables

from sojourn.capacity import calibration
from sojourn.capacity.records import EngineModel, Fleet
from sojourn.config import Config
from sojourn.interval import Excuse
from sojourn.sim.matching import Case, Match, match
from sojourn.sim.scenario import Scenario
from sojourn.sim.simulate import simulate
from sojourn.trace.tables import Tables

ROOT: Final = Path(__file__).resolve().parents[1]
SEEDS: Final = range(3)
E2E_BAR, TTFT_BAR = 0.05, 0.15
EXP4_FLAGS: Final = {"max_num_seqs": 256, "max_num_batched_tokens": 8192}
"""Not recorded: the defaults of that vLLM's API server on an H100."""
ENGINE: Final = "kernel"
PLENTY: Final = 100_000
"""KV blocks of 16 tokens where a run does not tell them and was never short of them."""


@dataclass(frozen=True)
class Figures:
    """What is compared: seconds, and output tokens per second."""

    e2e_mean: float
    e2e_p50: float
    e2e_p99: float
    ttft_mean: float
    ttft_p50: float
    ttft_p99: float
    tpot_mean: float
    tokens_per_s: float

    @classmethod
    def of(cls, runs: Sequence[Run], scored: Sequence[Run] | None = None) -> Figures:
        """Of the calls of `scored` (default: all); throughput is that of the whole runs."""
        parts = scored or runs
        e2e, ttft = (np.concatenate([getattr(r, n) for r in parts]) for n in ("e2e", "ttft"))
        steps = np.concatenate([r.output - 1 for r in parts])
        tpot = ((e2e - ttft)[steps > 0] / steps[steps > 0]).mean()
        spans = sum(float(r.end.max() - r.arrival.min()) for r in runs)
        return cls(
            *_three(e2e),
            *_three(ttft),
            float(tpot),
            sum(float(r.output.sum()) for r in runs) / spans,
        )


def _three(values: Floats) -> tuple[float, float, float]:
    return float(values.mean()), *(float(v) for v in np.quantile(values, [0.5, 0.99]))


NAMES: Final = tuple(field.name for field in fields(Figures))


@dataclass(frozen=True)
class Bar:
    """A bar, what was reached, and whether that is enough."""

    what: str
    error: float
    bar: float

    def __str__(self) -> str:
        verdict = "hit" if abs(self.error) <= self.bar else "MISS"
        return f"{self.what}: {self.error:+.1%} (bar {self.bar:.0%}): {verdict}"


def fleet_of(measured: Tables, flags: dict[str, int]) -> Fleet:
    """The engine behind measured calls.

    Raises:
        SystemExit: the calls do not tell step times.
    """
    step = calibration.fit(measured, Config.from_dict({"deployment": flags}))
    if isinstance(step, Excuse):
        raise SystemExit(f"no fit: {step}")
    return Fleet(engine=EngineModel(step=step, replicas=1, kv_blocks=PLENTY, **flags))


def predicted(run: Run, fleet: Fleet, seed: int) -> tuple[Run, tuple[Floats, Floats, Floats]]:
    """The run as simulated, and its gauges: seconds, running, waiting."""
    told = simulate(Scenario(stream(run), fleet, seed), engine=ENGINE).tables
    calls = told.calls.sort_by("request_id")
    arrival, scheduled, first, end, output = (
        calls.column(name).to_numpy().astype(float)
        for name in ("arrival_s", "scheduled_s", "first_token_s", "end_s", "output_tokens")
    )
    samples = told.engine_samples
    gauges = tuple(samples.column(n).to_numpy() for n in ("t_s", "running", "waiting"))
    return Run(arrival, scheduled, first, end, run.input, run.cached, output), gauges


def table(rows: Iterable[tuple[str, Figures, Figures]]) -> None:
    """Measured / predicted and the error, per row and figure."""
    heads = [name.replace("_", " ") for name in NAMES]
    print(f"| run | {' | '.join(heads)} |")
    print(f"| --- |{' ---: |' * len(heads)}")
    for name, real, told in rows:
        cells = []
        for figure in NAMES:
            seen, said = getattr(real, figure), getattr(told, figure)
            cells.append(f"{_number(seen)} / {_number(said)} {said / seen - 1:+.1%}")
        print(f"| {name} | {' | '.join(cells)} |")


def _number(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.2f}" if value >= 1 else f"{value:.4f}"


def off(told: float, real: float) -> float:
    """Relative error."""
    return told / real - 1


def told_of(matched: Match) -> None:
    """What simulate-and-match did."""
    turns = ", ".join(f"{name} x{factor:.3f}" for name, factor in matched.factors.items())
    print(
        f"simulate and match: {turns}; residual on the calls not turned on"
        f" {matched.before:.1%} -> {matched.after:.1%}, {matched.simulations} simulations\n"
    )


def rtx_pro_6000(shared: Path) -> list[Bar]:
    """Fit on the first third, replay all, score the rest."""
    recorded = llmservingsim.load(shared)
    if recorded is None:
        print(f"RTX PRO 6000: {shared / llmservingsim.FOLDER} is absent, nothing scored")
        return []
    run = recorded.run
    third = np.arange(len(run)) < len(run) // 3
    flags = {
        "max_num_seqs": recorded.max_num_seqs,
        "max_num_batched_tokens": recorded.max_num_batched_tokens,
    }
    fleet = fleet_of(tables(run, known=third), flags)
    matched = match([Case(stream(run), tables(run, known=third).calls)], fleet, engine=ENGINE)
    print(f"\n## RTX PRO 6000\n\n{fleet.engine.step.source}\n")
    told_of(matched)
    sims = [predicted(run, matched.fleet, seed) for seed in SEEDS]
    rows = []
    for name, chosen in (("first third (fitted)", third), ("rest", ~third)):
        real = Figures.of([run], [run.take(chosen)])
        rows.append(
            (name, real, Figures.of([s for s, _ in sims], [s.take(chosen) for s, _ in sims]))
        )
    table(rows)
    print()
    _gauges(recorded, [gauges for _, gauges in sims])
    _, real, told = rows[1]
    return [
        Bar("RTX PRO 6000, rest: E2E mean", off(told.e2e_mean, real.e2e_mean), E2E_BAR),
        Bar("RTX PRO 6000, rest: TTFT P99", off(told.ttft_p99, real.ttft_p99), TTFT_BAR),
    ]


def _gauges(recorded: llmservingsim.Recorded, sims: list[tuple[Floats, Floats, Floats]]) -> None:
    print("| each second | measured mean | mean absolute error | correlation |")
    print("| --- | ---: | ---: | ---: |")
    for place, name in ((1, "running"), (2, "waiting")):
        real = getattr(recorded, name)
        told = np.mean([np.interp(recorded.t_s, s[0], s[place], right=0.0) for s in sims], axis=0)
        error, related = np.abs(told - real).mean(), np.corrcoef(told, real)[0, 1]
        print(f"| {name} | {real.mean():.1f} | {error:.2f} | {related:.4f} |")


def exp_4(shared: Path) -> list[Bar]:
    """Fit on every second rate, replay and score the others."""
    sweeps = lmbench.load(shared)
    if sweeps is None:
        print(f"LMBench exp-4: {shared / lmbench.FILE} is absent, nothing scored")
        return []
    rates = sorted({s.rate for s in sweeps})
    fitted = [s for s in sweeps if s.rate in rates[::2]]
    rest = [s for s in sweeps if s.rate in rates[1::2]]
    print("\n## LMBench exp-4\n")
    way = chosen_way(fitted)
    engines = way(fitted, sorted({part.sweep for part in rest}), said=True)
    real: dict[float, list[Run]] = {}
    told: dict[float, list[Run]] = {}
    for part in rest:
        real.setdefault(part.rate, []).append(part.run)
        sims = [predicted(part.run, engines[part.sweep], seed)[0] for seed in SEEDS]
        told.setdefault(part.rate, []).extend(sims)
    rows = [(f"{r:g}/s", Figures.of(real[r]), Figures.of(told[r])) for r in rates[1::2]]
    every = [Figures.of([run for runs in side.values() for run in runs]) for side in (real, told)]
    rows.append(("all of the rest", every[0], every[1]))
    table(rows)
    print()
    spread(rest)
    bars = []
    for name, seen, said in reversed(rows):
        bars.append(Bar(f"exp-4, {name}: E2E mean", off(said.e2e_mean, seen.e2e_mean), E2E_BAR))
        bars.append(Bar(f"exp-4, {name}: TTFT P99", off(said.ttft_p99, seen.ttft_p99), TTFT_BAR))
    return bars


class Way(Protocol):
    """How the sweeps' engines are fitted: the engine of each sweep that is asked for."""

    def __call__(
        self, parts: list[lmbench.Sweep], sweeps: list[int], *, said: bool
    ) -> dict[int, Fleet]: ...


def one_engine(parts: list[lmbench.Sweep], sweeps: list[int], *, said: bool) -> dict[int, Fleet]:
    """One engine stands for all sweeps."""
    return dict.fromkeys(sweeps, turned_to(parts, fitted_to(parts, said=said), said=said))


def own_engines(parts: list[lmbench.Sweep], sweeps: list[int], *, said: bool) -> dict[int, Fleet]:
    """Every sweep has an engine of its own."""
    return {
        sweep: one_engine([p for p in parts if p.sweep == sweep], [sweep], said=said)[sweep]
        for sweep in sweeps
    }


def kindred_engines(
    parts: list[lmbench.Sweep], sweeps: list[int], *, said: bool
) -> dict[int, Fleet]:
    """One engine fitted to all sweeps, its factors turned for each of them."""
    common = fitted_to(parts, said=said)
    return {
        sweep: turned_to([p for p in parts if p.sweep == sweep], common, said=said)
        for sweep in sweeps
    }


WAYS: Final[dict[str, Way]] = {
    "one engine for all sweeps": one_engine,
    "an engine per sweep": own_engines,
    "one engine, turned for each sweep": kindred_engines,
}


def chosen_way(fitted: list[lmbench.Sweep]) -> Way:
    """The way that tells every second of the fitting rates best from the others."""
    rates = sorted({s.rate for s in fitted})
    sweeps = sorted({s.sweep for s in fitted})
    inner = [s for s in fitted if rates.index(s.rate) % 2 == 0]
    outer = [s for s in fitted if rates.index(s.rate) % 2 == 1]
    errors = {}
    for name, way in WAYS.items():
        engines = way(inner, sweeps, said=False)
        missed = []
        for part in outer:
            run = predicted(part.run, engines[part.sweep], 0)[0]
            missed.append(abs(off(run.e2e.mean(), part.run.e2e.mean())))
        errors[name] = float(np.mean(missed))
        print(
            f"- {name}: mean absolute error of E2E mean {errors[name]:.1%} inside the fitting part"
        )
    best = min(errors, key=lambda name: errors[name])
    print(f"\nchosen: {best}\n")
    return WAYS[best]


def fitted_to(parts: list[lmbench.Sweep], *, said: bool) -> Fleet:
    """The engine that the calls of runs tell."""
    run, names = joined([part.run for part in parts])
    fleet = fleet_of(tables(run, names), EXP4_FLAGS)
    if said:
        print(f"{fleet.engine.step.source}\n")
    return fleet


def turned_to(parts: list[lmbench.Sweep], fleet: Fleet, *, said: bool) -> Fleet:
    """The engine with its factors turned until simulations match the runs."""
    cases = [Case(stream(part.run), tables(part.run).calls) for part in parts]
    matched = match(cases, fleet, engine=ENGINE)
    if said:
        told_of(matched)
    return matched.fleet


def spread(parts: list[lmbench.Sweep]) -> None:
    """What repeats of one rate differ by: the floor of any prediction."""
    print("| repeats of a rate | E2E mean s | TTFT P99 s |")
    print("| --- | ---: | ---: |")
    for rate in sorted({part.rate for part in parts}):
        each = [Figures.of([part.run]) for part in parts if part.rate == rate]
        cells = [
            " ".join(_number(getattr(f, name)) for f in each) for name in ("e2e_mean", "ttft_p99")
        ]
        print(f"| {rate:g}/s | {' | '.join(cells)} |")


def main(arguments: list[str] | None = None) -> None:
    """Score what is there."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shared", type=Path, default=ROOT.parent / "shared")
    parser.add_argument("--only", choices=("rtx-pro-6000", "exp-4"))
    given = parser.parse_args(arguments)
    parts: dict[str, Callable[[Path], list[Bar]]] = {"rtx-pro-6000": rtx_pro_6000, "exp-4": exp_4}
    bars = [
        bar
        for name, part in parts.items()
        if given.only in (None, name)
        for bar in part(given.shared)
    ]
    print("\n## Bars\n")
    for bar in bars:
        print(f"- {bar}")


if __name__ == "__main__":
    main()
