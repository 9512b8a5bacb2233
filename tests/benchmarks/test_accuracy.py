"""The accuracy harness on constructed measurements: what is right is a hit, what is off a miss."""

from __future__ import annotations

import csv
import json
from dataclasses import replace

import numpy as np
import pytest
from accuracy import __main__ as command
from accuracy import fitting, page, predicting, running, scoring, sources
from accuracy.engines import settings
from accuracy.figures import Calls, figures, replica_gaps
from accuracy.predicting import Predicted, arrivals, mean_context, one_run, predict, stream
from accuracy.rows import Arrivals, Load, Loaded, Row
from accuracy.sets_open import kubecon

from sojourn.capacity import catalogue
from sojourn.capacity.policies import Order
from sojourn.capacity.records import Fleet, StepModel
from sojourn.config import Deployment
from sojourn.interval import Excuse, Provenance
from sojourn.sim.scenario import Scenario
from sojourn.sim.simulate import simulate

FILE = "inference_perf_kubecon2025_llama31_8b_h100.csv"
FIGURES = {
    "req_per_s": ("requests_per_s", 1.0),
    "out_tok_per_s": ("output_tokens_per_s", 1.0),
    "e2e_mean_ms": ("e2e_mean_s", 1e3),
    "ttft_mean_ms": ("ttft_mean_s", 1e3),
    "ttft_median_ms": ("ttft_p50_s", 1e3),
    "ttft_p99_ms": ("ttft_p99_s", 1e3),
    "tpot_true_mean_ms": ("tpot_mean_s", 1e3),
}
SENT = ("variant", "stage", "requested_rate", "achieved_rate", "ok", "in_mean", "out_mean")
COLUMNS = (*SENT, *FIGURES)


@pytest.fixture(autouse=True)
def readable(monkeypatch):
    """The readable engine: nothing is compiled, and it writes the same log."""
    monkeypatch.setattr(predicting, "KERNEL", "reference")


def step(base=0.01, prompt=1e-5, slope=0.0, front=0.0) -> StepModel:
    return StepModel(
        batches=(0, 1, 512), base_s=(base, base, base), slope_s_per_token=(slope,) * 3,
        prefill_s_per_token=prompt, front_s=front, provenance=Provenance.ASSUMED, source="test",
    )  # fmt: skip


def row(load: Load, measured=None, **deployment) -> Row:
    return Row(
        set="made", id="row", model="Llama-3.1-8B", gpu="H100-SXM",
        deployment=Deployment(**deployment), load=load, measured=measured or {"itl_mean_s": 0.01},
    )  # fmt: skip


def load(how=Arrivals.CLOSED, count=12, prompt=100, output=11, **more) -> Load:
    return Load(how, np.full(count, prompt), np.full(count, output), **more)


def write(folder, rows) -> None:
    with (folder / FILE).open("w", encoding="utf-8") as stream_:
        stream_.write("# SOURCE: constructed\n")
        writer = csv.DictWriter(stream_, COLUMNS)
        writer.writeheader()
        writer.writerows(rows)


def constructed(folder, factor: float) -> None:
    """Runs at two rates, their latencies `factor` times what the roofline says of them."""
    plain = [
        {"variant": "vllm", "stage": i, "requested_rate": rate, "achieved_rate": rate, "ok": 40,
         "in_mean": 200, "out_mean": 20, "e2e_mean_ms": 1.0}
        for i, rate in enumerate((2.0, 8.0))
    ]  # fmt: skip
    write(folder, plain)
    for cells, one in zip(plain, kubecon(folder).rows, strict=True):
        told = predict(one, sources.roofline)
        assert isinstance(told, Predicted)
        for column, (name, unit) in FIGURES.items():
            off = factor if column.endswith("_ms") else 1.0
            cells[column] = told.mid[name] * unit * off
    write(folder, plain)


def scored_page(folder, factor: float) -> tuple[str, list[dict]]:
    constructed(folder, factor)
    options = ["--only", "kubecon", "--source", "roofline", "--jobs", "1"]
    files = {"--page": folder / "page.md", "--json": folder / "rows.json"}
    paths = [text for name, path in files.items() for text in (name, str(path))]
    assert command.main(["--ground-truth", str(folder), *options, *paths]) == 0
    told = json.loads(files["--json"].read_text(encoding="utf-8"))
    return files["--page"].read_text(encoding="utf-8"), told["errors"]


def bars(text: str, source: str) -> dict[str, str]:
    """Verdict of each figure in the table of bars."""
    table = text.split("## Bars")[1].split("##", maxsplit=1)[0]
    cells = [
        [c.strip() for c in line.split("|")[1:-1]] for line in table.splitlines() if "|" in line
    ]
    return {line[1]: line[-1] for line in cells if line[0] == source}


def test_measurements_as_predicted_are_hits(tmp_path):
    text, errors = scored_page(tmp_path, 1.0)
    assert max(abs(e["error"]) for e in errors) < 1e-9
    told = bars(text, "roofline")
    assert (told["ITL"], told["TTFT"], told["E2E mean"]) == ("hit", "hit", "hit")


def test_measurements_half_as_long_again_are_misses(tmp_path):
    text, errors = scored_page(tmp_path, 1.5)
    latencies = [e["error"] for e in errors if e["kind"] in ("ITL", "TTFT mean", "E2E mean")]
    assert latencies == pytest.approx([1 / 1.5 - 1] * len(latencies))
    told = bars(text, "roofline")
    assert (told["ITL"], told["TTFT"], told["E2E mean"]) == ("MISS", "MISS", "MISS")
    assert "| kubecon | roofline | ITL" in text
    assert bars(text, "silicon")["ITL"].startswith("not scored")
    reasons = text.partition("## Why sets miss")[2].partition("##")[0]
    assert "**kubecon** (roofline ITL, roofline TTFT mean, roofline E2E mean)" in reasons


def test_without_the_files_nothing_is_scored_nor_written(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(command, "MEASURED", tmp_path / "none")
    target = tmp_path / "page.md"
    assert command.main(["--page", str(target)]) == 0
    assert "nothing scored" in capsys.readouterr().out
    assert not target.exists()


def test_a_folder_that_is_asked_for_must_be_there(tmp_path, capsys):
    with pytest.raises(SystemExit, match="2"):
        command.main(["--ground-truth", str(tmp_path / "none")])
    assert "is no folder" in capsys.readouterr().err


def test_a_row_of_an_unknown_model_is_counted(tmp_path):
    one = replace(row(load(concurrency=2)), model="no-such-model-9B")
    told = predict(one, sources.roofline)
    assert isinstance(told, Excuse)
    errors, left_out = scoring.scored([one], "roofline", [told])
    assert not errors
    assert left_out == {"no such model in the catalogue: no-such-model-9B": 1}


class TestReplay:
    def test_a_client_alone_sees_its_own_steps(self):
        one = row(load(concurrency=1), block_size=16)
        engine = settings(one, catalogue.model(one.model), catalogue.gpu(one.gpu))
        told = one_run(one, step(base=0.01, prompt=1e-5), engine, 0)
        assert told["ttft_mean_s"] == pytest.approx(0.01 + 100e-5)
        assert told["itl_mean_s"] == pytest.approx(0.01)
        assert told["output_tokens_per_s"] == pytest.approx(11 / (0.011 + 10 * 0.01))

    def test_the_front_end_is_in_the_time_to_first_token(self):
        one = row(load(concurrency=1))
        engine = settings(one, catalogue.model(one.model), catalogue.gpu(one.gpu))
        fast, slow = (one_run(one, step(front=f), engine, 0)["ttft_mean_s"] for f in (0.0, 0.02))
        assert slow - fast == pytest.approx(0.02)

    def test_what_the_client_holds_back_has_not_been_sent(self):
        """Twelve at once, one in flight: each is timed from when it is let go."""
        one = row(load(Arrivals.BURST, concurrency=1))
        engine = settings(one, catalogue.model(one.model), catalogue.gpu(one.gpu))
        told = one_run(one, step(), engine, 0)
        assert told["ttft_p99_s"] == pytest.approx(0.011)

    def test_first_requests_can_be_left_out(self):
        one = row(load(Arrivals.CONSTANT, count=6, rate_per_s=1.0, skip=4))
        engine = settings(one, catalogue.model(one.model), catalogue.gpu(one.gpu))
        told = one_run(one, step(), engine, 0)
        assert told["requests_per_s"] == pytest.approx(2 / (1.0 + 0.011 + 10 * 0.01))

    def test_ends_of_the_interval_enclose_the_figure(self):
        from sojourn.capacity.records import StepSpread

        spread = StepSpread(decode=((0.8, 1.3),) * 3, prefill=(0.9, 1.2))
        model = step().model_copy(update={"spread": spread})
        one = row(load(concurrency=2))
        engine = settings(one, catalogue.model(one.model), catalogue.gpu(one.gpu))
        told = predicting.run(one, model, engine)
        assert told.low["itl_mean_s"] == pytest.approx(0.8 * told.mid["itl_mean_s"], rel=0.05)
        assert told.high["itl_mean_s"] == pytest.approx(1.3 * told.mid["itl_mean_s"], rel=0.05)
        assert told.low["output_tokens_per_s"] < told.mid["output_tokens_per_s"]

    def test_poisson_arrivals_have_their_rate_and_differ_by_seed(self):
        many = load(Arrivals.POISSON, count=4000, rate_per_s=5.0)
        first, again, other = (arrivals(many, seed) for seed in (0, 0, 1))
        assert np.array_equal(first, again)
        assert not np.array_equal(first, other)
        assert len(first) / first[-1] == pytest.approx(5.0, rel=0.05)

    def test_contexts_count_as_long_as_they_are_decoded(self):
        two = Load(Arrivals.STATIC, np.array([100, 1000]), np.array([300, 100]))
        assert mean_context(two) == pytest.approx((300 * 250 + 100 * 1050) / 400)


class TestEngines:
    def of(self, engine, **more):
        one = row(load(count=2000, concurrency=64), engine=engine, **more)
        return settings(one, catalogue.model(one.model), catalogue.gpu(one.gpu))

    def test_order_by_engine_and_version(self):
        orders = {name: self.of(name).order for name in ("vllm 0.11.0", "vllm 0.4.3", "sglang")}
        assert orders["vllm 0.11.0"] is Order.FCFS
        assert orders["vllm 0.4.3"] is orders["sglang"] is Order.PREFILL_FIRST

    def test_a_pipeline_shares_slots_and_blocks(self):
        whole, half = self.of("vllm", kv_blocks=1000), None
        half = self.of("vllm", kv_blocks=1000, pipeline_parallel=2)
        assert (half.engines, half.slots) == (2 * whole.engines, whole.slots // 2)
        assert half.kv_tokens == whole.kv_tokens // 2

    def test_ranks_are_engines_of_their_own(self):
        assert self.of("vllm", data_parallel=4, kv_blocks=1000, replicas=2).engines == 8

    def test_an_engine_that_reserves_runs_no_more_than_will_fit(self):
        assert self.of("trtllm", kv_blocks=100, max_num_seqs=512).slots == 1600 // 111
        assert self.of("vllm", kv_blocks=100, max_num_seqs=512).slots == 512

    def test_what_ran_although_it_does_not_fit_is_said(self):
        one = replace(row(load(concurrency=4)), model="Llama-3.1-405B")
        told = settings(one, catalogue.model(one.model), catalogue.gpu(one.gpu))
        assert any("does not fit" in note or "do not fit" in note for note in told.notes)
        assert told.kv_tokens >= 111


class TestGaps:
    """Gaps between single tokens, told from a log without single steps."""

    def gaps(self, order, arrival, prompt=1000):
        count = len(arrival)
        sent = Load(
            Arrivals.RECORDED, np.full(count, prompt), np.full(count, 21), times_s=np.array(arrival)
        )
        one = row(sent, engine="sglang" if order is Order.PREFILL_FIRST else "vllm 0.11.0")
        engine = settings(one, catalogue.model(one.model), catalogue.gpu(one.gpu))
        assert engine.order is order
        fleet = Fleet(engine=engine.engine(step(base=0.01, prompt=1e-4)))
        run = simulate(Scenario(stream(sent, arrivals(sent, 0)), fleet), engine="reference")
        return run, Calls.of(run, sent.inputs), fleet.engine, sent

    def test_a_prompt_that_comes_meanwhile_lengthens_one_gap(self):
        run, calls, engine, _ = self.gaps(Order.FCFS, [0.0, 0.155])
        gap, weight = replica_gaps(calls, np.ones(2, bool), engine)
        assert gap[weight > 0].min() == pytest.approx(0.01, rel=0.02)
        assert gap[weight > 0].max() == pytest.approx(0.11, rel=0.02)
        assert weight.sum() == pytest.approx(2 * 20, abs=1)
        assert float(np.average(gap, weights=weight)) == pytest.approx(
            figures(run, np.full(2, 1000))["itl_mean_s"], rel=0.02
        )

    def test_decodes_stand_still_while_prompts_go_first(self):
        _, calls, engine, _ = self.gaps(Order.PREFILL_FIRST, [0.0, 0.155])
        gap, weight = replica_gaps(calls, np.ones(2, bool), engine)
        longest = gap[weight > 0].max()
        assert longest == pytest.approx(0.11 + 0.01, rel=0.05)  # the prompt's step, then its own

    def test_median_and_tail_are_told_where_they_are_measured(self):
        run, _, _, sent = self.gaps(Order.FCFS, [0.0, 0.155])
        told = figures(run, sent.inputs, wanted=frozenset({"itl_p50_s"}))
        assert told["itl_p50_s"] == pytest.approx(0.01, rel=0.05)
        assert told["itl_p99_s"] == pytest.approx(0.11, rel=0.05)
        assert "itl_p50_s" not in figures(run, sent.inputs, wanted=frozenset({"itl_mean_s"}))


class TestScoring:
    def error(self, told=1.1, measured=1.0, **more):
        given = {
            "set": "s", "source": "roofline", "kind": "ITL", "figure": "itl_mean_s", "row": "r",
            "group": "g", "measured": measured, "told": told, "low": None, "high": None,
            "below_knee": True,
        } | more  # fmt: skip
        return scoring.Error(**given)

    def test_medians_and_cover(self):
        errors = [self.error(1.1, low=0.9, high=1.2), self.error(0.7, low=0.6, high=0.8)]
        told = scoring.Summary.of(errors)
        assert (told.rows, told.groups) == (2, 1)
        assert told.median == pytest.approx(0.2)
        assert told.bias == pytest.approx(-0.1)
        assert told.coverage == 0.5
        assert scoring.Summary.of([self.error()]).coverage is None

    def test_throughput_below_the_knee_is_no_prediction(self):
        offered = load(Arrivals.CONSTANT, rate_per_s=10.0)
        below = row(offered, {"requests_per_s": 9.9})
        above = row(offered, {"requests_per_s": 7.0})
        assert scoring.below_knee(below)
        assert not scoring.saturated(below)
        assert not scoring.below_knee(above)
        assert scoring.saturated(above)
        told = Predicted({"requests_per_s": 9.0})
        assert not scoring.errors(below, "roofline", told)
        assert scoring.errors(above, "roofline", told)[0].error == pytest.approx(9 / 7 - 1)

    def test_a_figure_that_a_row_cannot_test_is_not_scored(self):
        one = replace(row(load(concurrency=1), {"ttft_mean_s": 1.0, "itl_mean_s": 1.0}),
                      scored=("itl_mean_s",))  # fmt: skip
        told = Predicted({"ttft_mean_s": 1.0, "itl_mean_s": 1.0})
        assert [e.kind for e in scoring.errors(one, "roofline", told)] == ["ITL"]

    def test_the_tail_bar_counts_rows_below_the_knee_only(self):
        bar = next(b for b in scoring.BARS if b.kind == "TTFT P99")
        some = [
            self.error(5.0, source="fitted", kind="TTFT P99", below_knee=False),
            self.error(1.1, source="fitted", kind="TTFT P99"),
        ]
        assert len(scoring.of_bar(bar, some)) == 1
        assert scoring.hit(bar, some)
        assert scoring.hit(bar, []) is None

    def test_groups_are_named_by_the_catalogue(self):
        names = {
            scoring.group_of(replace(row(load(concurrency=1)), model=name))
            for name in ("Llama-3.1-8B", "meta-llama/Llama-3.1-8B-Instruct")
        }
        assert len(names) == 1


class TestFits:
    def rows(self, count):
        return [
            replace(row(load(concurrency=c + 1), {"itl_mean_s": 0.01}), id=str(c), server="s")
            for c in range(count)
        ]

    @pytest.mark.parametrize("count", [2, 5, 8])
    def test_no_row_is_scored_by_a_fit_that_saw_it(self, count, monkeypatch):
        seen = []

        def fit(runs, start):
            seen.append({run.label for run in runs})
            return step()

        monkeypatch.setattr(fitting, "fit_sweep", fit)
        monkeypatch.setattr(fitting.step_sources, "step_model", lambda *_, **__: step())
        rows = self.rows(count)
        told = fitting.fitted(rows)
        assert [r.id for r, _ in told] == [r.id for r in rows]
        assert all(isinstance(one, Predicted) for _, one in told)
        folds = list(fitting.folds(rows))
        assert sorted(place for fold in folds for place in fold) == list(range(count))
        for fold, fitted_on in zip(folds, seen, strict=True):
            assert fitted_on == {r.id for i, r in enumerate(rows) if i not in fold}

    def test_a_run_alone_cannot_be_left_out(self):
        ((_, told),) = fitting.fitted(self.rows(1))
        assert isinstance(told, Excuse)
        assert "only run" in told.reason

    def test_servers_are_sampled_evenly(self, monkeypatch):
        rows = [replace(r, server=f"s{i}") for i in range(10) for r in self.rows(2)]
        assert len(running.servers(rows)) == 10
        monkeypatch.setattr(running, "MOST_FITTED", 24 * 5)
        kept = [each[0].server for each in running.servers(rows)]
        assert kept == [f"s{i}" for i in range(0, 10, 2)]


def test_pools_alone_ask_for_no_step_times():
    kv = row(load(Arrivals.STATIC, count=1), {"kv_tokens": 400_000.0})
    work = running.tasks({"kv": Loaded(rows=[kv])}, ["roofline", "silicon"])
    assert [task.source for task in work] == ["memory"]
    ((_, told),) = running.done(work[0])
    assert isinstance(told, Predicted)
    assert told.mid["kv_tokens"] > 100_000


def test_reasons_that_differ_by_numbers_are_one_line():
    loaded = Loaded()
    loaded.skip("no data for Key { a: 1 }")
    loaded.skip("no data for Key { a: 2 }")
    report = page.Report({"s": loaded}, [], {"silicon": "not installed"})
    assert "- s: 2 rows: no data for Key" in report.left_out()
    assert "not installed" in report.bars()


@pytest.mark.parametrize("option", ["--json", "--page"])
def test_a_place_that_cannot_be_written_is_told_before_any_work(option, tmp_path, capsys):
    with pytest.raises(SystemExit) as caught:
        command.main(["--ground-truth", str(tmp_path), option, str(tmp_path / "none" / "x")])
    assert caught.value.code == 2
    assert "cannot be written" in capsys.readouterr().err
