"""Predicted against recorded: a real engine under six loads, step times fitted on one of them.

    python benchmarks/real_engine.py [--json] [--seeds 10] [--run load ...]
    python benchmarks/real_engine.py --fit load      (another run is fitted: not the bar)
    python benchmarks/real_engine.py --own-steps     (a test of the rules alone)
    python benchmarks/real_engine.py --steps         (a test of the step times alone)

Step times and the front end's time are fitted on `base` alone; each run is then simulated from
what was sent (times, lengths, block hashes) and the engine's settings. All times are the client's:
from sending to the first chunk (TTFT), to the end (E2E), and between first and last token (TPOT).
Each figure is the mean over seeds of the front end's luck. `floor` is how far the run's repeat
(same requests, same seed, recorded later) is from it. A pair hits if its error is within the bar,
or within the floor where that is larger.

`drift` is the same prediction with all steps as much faster or slower as equal loads were in the
controls before, between and after (`DRIFTS`; nothing else is taken from them): a recorded value in
that range is a miss that the machine's drift can explain, and is counted apart.

`--own-steps` fits the steps of each run on itself (not the front end): what is missed then, the
scheduler's rules miss. `--steps` prints real over told step time, by decodes in the step.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from sojourn.capacity import recorded_engine, step_log
from sojourn.capacity.policies import PrefixCache, Scheduler
from sojourn.capacity.records import EngineModel, Fleet, StepModel
from sojourn.capacity.step_log import StepLog
from sojourn.interval import Excuse
from sojourn.sim.scenario import Scenario, SimRun
from sojourn.sim.simulate import simulate
from sojourn.trace.engine_recording import EngineRecording, read
from sojourn.workload.stream import STREAM_IDENTITIES, STREAM_REQUESTS, STREAM_STEPS, Stream

ROOT: Final = Path(__file__).resolve().parents[1]
RECORDINGS: Final = ROOT / "src" / "sojourn" / "recordings" / "engine"
CONTROLS: Final = ROOT / "examples" / "engine" / "controls"
FITTED: Final = "base"
PREDICTED: Final = ("load", "lengths", "scarcity", "sharing", "shortage")
ENGINE: Final = "kernel"
BARS: Final = {
    "TTFT P50": 0.10, "TTFT P99": 0.20, "TPOT P50": 0.08, "TPOT P99": 0.08,
    "E2E P50": 0.08, "E2E P99": 0.08, "requests/s": 0.03, "preemptions": 0.20,
}  # fmt: skip
DRIFTS: Final = (
    "base-before", "base-repeat", "base-after", "base-life-2-before", "base-life-2-after",
)  # fmt: skip
"""Controls with the load of the run that is fitted."""
STEP_BATCHES: Final = ((0, 0), (1, 1), (2, 2), (3, 4), (5, 8), (9, 12), (13, 16), (17, 24))

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Pair:
    """One quantity of one run: seconds, requests per second or a count. `spread`: standard
    deviation of the prediction over seeds. `floor`: NaN without a repeat."""

    run: str
    quantity: str
    recorded: float
    predicted: float
    spread: float
    floor: float
    bar: float
    drift: tuple[float, float]

    @property
    def error(self) -> float:
        """Relative error; a count that was 0 and is 0 has none."""
        if self.recorded == 0:
            return 0.0 if self.predicted == 0 else float("inf")
        return self.predicted / self.recorded - 1

    @property
    def hit(self) -> bool:
        """Within the bar, or within what equal runs differ by."""
        return abs(self.error) <= max(self.bar, np.nan_to_num(self.floor))

    @property
    def in_drift(self) -> bool:
        """Whether the recorded value is one that the machine's drift can make."""
        return self.drift[0] <= self.recorded <= self.drift[1]


def recording(run: str) -> EngineRecording:
    """A run or a control by its name."""
    folder = RECORDINGS / run
    return read(folder if folder.is_dir() else CONTROLS / run)


def fleet(run: EngineRecording, step: StepModel) -> Fleet:
    """The engine as its scheduler was set."""
    said = run.facts["scheduler"]
    return Fleet(
        engine=EngineModel(
            step=step,
            replicas=1,
            max_num_seqs=said["max_num_running_reqs"],
            max_num_batched_tokens=said["max_num_scheduled_tokens"],
            block_size=said["block_size"],
            kv_blocks=said["free_blocks_when_idle"],
            scheduler=Scheduler(
                long_prompt_cap=said["long_prefill_token_threshold"] or None,
                admit_full_input=said["scheduler_reserve_full_isl"],
                watermark=said["watermark"],
            ),
            prefix_cache=PrefixCache(tokens_per_hash=said["hash_block_size"]),
        )
    )


def stream(run: EngineRecording) -> Stream:
    """What was sent: when, how long, with which blocks."""
    sent = run.requests
    count = sent.num_rows
    arrival = sent["send_s"].to_numpy()
    order = np.argsort(arrival, kind="stable")
    sent = sent.take(pa.array(order))
    nothing: dict[str, Any] = {"tenant": None, "route": None, "session_id": None}
    requests = {
        "request_id": sent["request_id"], "arrival_s": sent["send_s"].to_numpy() - arrival.min(),
        **{name: [value] * count for name, value in nothing.items()},
        "priority": [0] * count, "bucket": ["short_chat"] * count,
    }  # fmt: skip
    steps = {
        "request": np.arange(count), "group": [0] * count, "kind": ["call"] * count,
        "stage": ["inference"] * count, "name": ["m"] * count, "service_s": [0.0] * count,
        "pool": ["default"] * count, "input_tokens": sent["prompt_tokens"],
        "cached_tokens": [0] * count, "output_tokens": sent["output_tokens"],
        "image_tokens": [0] * count, "block_hashes": _hashes(sent),
    }  # fmt: skip
    hashes = STREAM_IDENTITIES.field("block_hashes")
    schema = STREAM_STEPS.append(hashes)
    return Stream(
        pa.table([_column(requests[f.name], f) for f in STREAM_REQUESTS], schema=STREAM_REQUESTS),
        pa.table([_column(steps[f.name], f) for f in schema], schema=schema),
    )


def _hashes(sent: pa.Table) -> list[list[int]]:
    """Of prompt and answer where they are known, else of the prompt."""
    whole, prompt = sent["computed_block_hashes"].to_pylist(), sent["block_hashes"].to_pylist()
    return [own or first or [] for own, first in zip(whole, prompt, strict=True)]


def _column(values: Any, field: pa.Field) -> pa.Array:  # noqa: ANN401  whatever Arrow takes
    if isinstance(values, pa.ChunkedArray):
        return values.combine_chunks().cast(field.type)
    return pa.array(values, field.type)


def recorded_figures(run: EngineRecording) -> dict[str, float]:
    """What the client saw, and the engine's count of preemptions."""
    names = ("send_s", "first_chunk_s", "last_chunk_s", "end_s", "output_tokens")
    send, first, last, end, output = (run.requests[n].to_numpy() for n in names)
    preempted = run.events["event"].to_pylist().count("preempt")
    return _figures(send, first, last, end, output.astype(float), preempted)


def simulated_figures(run: SimRun) -> dict[str, float]:
    """The same of a simulated run."""
    log = run.log.calls
    seconds = {name: log[name] * 2.0**-42 for name in ("arrival", "first", "end")}
    written = log["written"].astype(float)
    preempted = int(log["preemptions"].sum())
    arrival, first, end = seconds["arrival"], seconds["first"], seconds["end"]
    return _figures(arrival, first, end, end, written, preempted)


def _figures(
    send: Floats, first: Floats, last: Floats, end: Floats, output: Floats, preempted: int
) -> dict[str, float]:
    several = output > 1
    columns = {
        "TTFT": first - send,
        "TPOT": (last - first)[several] / (output[several] - 1),
        "E2E": end - send,
    }
    found = {
        f"{name} P{percent}": float(np.percentile(values, percent))
        for name, values in columns.items()
        for percent in (50, 99)
    }
    found["requests/s"] = len(send) / float(end.max() - send.min())
    found["preemptions"] = float(preempted)
    return found


def fitted(run: EngineRecording) -> StepModel:
    """Step model of a run.

    Raises:
        SystemExit: the run does not tell one.
    """
    step = recorded_engine.step_model(run)
    if isinstance(step, Excuse):
        raise SystemExit(str(step))
    return step


def own_steps(name: str, base: StepModel) -> StepModel:
    """Step times of a run fitted on itself, with the front end of another.

    Raises:
        SystemExit: the run does not tell them.
    """
    step = step_log.fit(recorded_engine.steps(recording(name)))
    if isinstance(step, Excuse):
        raise SystemExit(str(step))
    front = ("front_s", "front_samples_s", "front_load")
    return step.model_copy(update={field: getattr(base, field) for field in front})


def drift(step: StepModel) -> tuple[float, float]:
    """Step time of the slowest and the fastest of the controls over what the model says of it, as
    far as they are on either side of 1."""
    logs = [recorded_engine.steps(recording(name)) for name in DRIFTS]
    ratios = [float(log.period_s.sum() / told(step, log).sum()) for log in logs]
    return min(1.0, *ratios), max(1.0, *ratios)


def told(step: StepModel, log: StepLog) -> Floats:
    """Step times as the model has them, s."""
    rows = zip(log.decodes, log.context, log.prompt, log.attended, strict=True)
    return np.array([step.step_s(int(b), c, int(n), a) for b, c, n, a in rows])


def predicted(run: EngineRecording, step: StepModel, seeds: int) -> dict[str, Floats]:
    """Each quantity, one value per seed."""
    sent, engines = stream(run), fleet(run, step)
    each = [
        simulated_figures(simulate(Scenario(sent, engines, seed), engine=ENGINE))
        for seed in range(seeds)
    ]
    return {quantity: np.array([figures[quantity] for figures in each]) for quantity in BARS}


def pairs(name: str, step: StepModel, drifts: tuple[float, float], seeds: int) -> Iterator[Pair]:
    """Each quantity of a run."""
    run = recording(name)
    real, again = recorded_figures(run), recorded_figures(recording(f"{name}-repeat"))
    plain, fast, slow = (predicted(run, step.scaled(f), seeds) for f in (1.0, *drifts))
    for quantity, bar in BARS.items():
        base, mean = real[quantity], float(plain[quantity].mean())
        reach = [mean, float(fast[quantity].mean()), float(slow[quantity].mean())]
        yield Pair(
            run=name,
            quantity=quantity,
            recorded=base,
            predicted=mean,
            spread=float(plain[quantity].std()),
            floor=abs(again[quantity] / base - 1) if base else 0.0,
            bar=bar,
            drift=(min(reach), max(reach)),
        )


def step_ratios(step: StepModel, runs: list[str]) -> None:
    """Print real over told step time of each run, by decodes in the step."""
    heads = [f"{a}" if a == b else f"{a} to {b}" for a, b in STEP_BATCHES]
    print(f"| run | all | {' | '.join(heads)} | with prompt |")
    print("| --- |" + " ---: |" * (len(heads) + 2))
    for name in runs:
        log = recorded_engine.steps(recording(name))
        model = told(step, log)
        chosen = [(log.decodes >= a) & (log.decodes <= b) for a, b in STEP_BATCHES]
        cells = [
            f"{log.period_s[c].sum() / model[c].sum():.3f}" if c.any() else ""
            for c in (log.decodes >= 0, *chosen, log.prompt > 0)
        ]
        print(f"| {name} | {' | '.join(cells)} |")


def show(found: list[Pair]) -> None:
    """Print the table and the counts."""
    print(
        "| run | quantity | recorded | predicted | seeds' spread | error | floor | bar | drift | |"
    )
    print("| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | --- |")
    for pair in found:
        values = (pair.recorded, pair.predicted, pair.spread)
        scale, unit = (1.0, "") if pair.quantity in ("requests/s", "preemptions") else (1e3, " ms")
        cells = " | ".join(f"{value * scale:.4g}{unit}" for value in values)
        low, high = (f"{value * scale:.4g}" for value in pair.drift)
        verdict = "hit" if pair.hit else "**miss**, in drift" if pair.in_drift else "**miss**"
        print(
            f"| {pair.run} | {pair.quantity} | {cells} | {pair.error:+.1%} | {pair.floor:.1%} |"
            f" {pair.bar:.0%} | {low} to {high} | {verdict} |"
        )
    print()
    for run in dict.fromkeys(pair.run for pair in found):
        own = [pair for pair in found if pair.run == run]
        within = sum(abs(pair.error) <= pair.bar for pair in own)
        drifted = sum(not pair.hit and pair.in_drift for pair in own)
        print(
            f"- {run}: {sum(p.hit for p in own)} of {len(own)} hit ({within} within the bar"
            f" itself); of the misses {drifted} in the drift"
        )


def main(arguments: list[str] | None = None) -> None:
    """Print the table, or the pairs as JSON."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--run", nargs="*", default=[FITTED, *PREDICTED])
    parser.add_argument("--fit", default=FITTED, help="the run that is fitted; the bar's is base")
    parser.add_argument("--own-steps", action="store_true")
    parser.add_argument("--steps", action="store_true")
    given = parser.parse_args(arguments)
    step = fitted(recording(given.fit))
    if given.steps:
        step_ratios(step, [run for name in given.run for run in (name, f"{name}-repeat")])
        return
    drifts = drift(step)
    steps = {name: own_steps(name, step) if given.own_steps else step for name in given.run}
    found = [p for name, model in steps.items() for p in pairs(name, model, drifts, given.seeds)]
    if given.json:
        print(
            json.dumps(
                [
                    {**asdict(p), "error": p.error, "hit": p.hit, "in_drift": p.in_drift}
                    for p in found
                ],
                indent=1,
            )
        )
        return
    print(f"Step model: {step.source}; drift of the controls {drifts[0]:.3f} to {drifts[1]:.3f}\n")
    show(found)


if __name__ == "__main__":
    main()
