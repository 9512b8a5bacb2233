"""The border to the package of operator tables: every fault of it becomes a refusal."""

import math
import re
from pathlib import Path
from typing import Any

import pytest

from sojourn.capacity import silicon_tables
from sojourn.capacity.silicon_tables import (
    PACKAGE,
    VERSION,
    Fastest,
    Op,
    Query,
    Refused,
    check_installed,
    installed_version,
    open_tables,
)

QUERY = Query(
    model="meta-llama/Meta-Llama-3.1-8B", system="h100_sxm", backend="vllm", tp=1, pp=1, dp=1,
    moe_tp=1, moe_ep=1, gemm="bfloat16", moe="bfloat16", kv="bfloat16", fmha="bfloat16",
)  # fmt: skip
installed = pytest.mark.skipif(
    installed_version() != VERSION,
    reason=f"{PACKAGE} {VERSION} is not installed (pip install 'sojourn[silicon]')",
)


class PanicException(BaseException):
    """As the Rust side raises it: no `Exception`, and of a module that cannot be imported."""


class Engine:
    """Stands for the package's compiled engine: answers, or does what it is told to."""

    def __init__(self, does: Any) -> None:
        self.does = does

    def _answer(self) -> Any:
        if isinstance(self.does, BaseException):
            raise self.does
        return self.does

    def decode_step_per_op(self, *_: int) -> Any:
        return self._answer()

    def run_static_per_op(self, **_: Any) -> Any:
        return self._answer(), []

    def mixed_step_breakdown_per_op(self, *_: int) -> Any:
        return self._answer(), [], []


def tables(does: Any) -> Any:
    return silicon_tables._Tables(Engine(does), "1.0")


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        (RuntimeError("GEMM perf data missing"), "RuntimeError: GEMM perf data missing"),
        (PanicException("index out of bounds"), "PanicException: index out of bounds"),
        (KeyError("foo"), "KeyError"),
        (ValueError(""), "no message"),
        ([("attention", math.nan, 0.0, "silicon")], "nan s for attention"),
        ([("attention", -1.0, 0.0, "silicon")], "-0.001 s for attention"),
        ([("attention", math.inf, 0.0, "silicon")], "inf s for attention"),
        ([], "no time for the step"),
        ([("attention", 0.0, 0.0, "silicon")], "no time for the step"),
    ],
)
def test_every_fault_of_a_query_is_a_refusal(fault: Any, said: str) -> None:
    for ask in (
        lambda t: t.decode(8, 1024),
        lambda t: t.prefill(512, 0),
        lambda t: t.mixed(512, 8, 1024),
    ):
        with pytest.raises(Refused, match=said.replace("(", r"\(")):
            ask(tables(fault))


@pytest.mark.parametrize("stop", [KeyboardInterrupt(), SystemExit(3)])
def test_a_user_who_stops_it_is_obeyed(stop: BaseException) -> None:
    with pytest.raises(type(stop)):
        tables(stop).decode(8, 1024)


def test_milliseconds_become_seconds_and_computed_ones_are_marked() -> None:
    ops = tables([("qkv_gemm", 2.0, 0.0, "silicon"), ("norm", 1.0, 0.0, "empirical")]).decode(1, 9)
    assert ops == [Op("qkv_gemm", 2e-3, True), Op("norm", 1e-3, False)]


def test_a_long_message_is_cut() -> None:
    with pytest.raises(Refused) as caught:
        tables(RuntimeError("x " * 900)).decode(1, 9)
    assert len(str(caught.value)) < 400


def test_not_installed_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(silicon_tables, "installed_version", lambda: None)
    with pytest.raises(Refused, match=r"not installed.*sojourn\[silicon\]"):
        check_installed()


def test_another_version_names_the_expected_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(silicon_tables, "installed_version", lambda: "0.13.0")
    with pytest.raises(Refused, match=f"0.13.0 is installed, {VERSION} was checked"):
        check_installed()


class Fixed:
    version = "1"

    def __init__(self, **ms: float) -> None:
        self.ops = [Op(name, s, True) for name, s in ms.items()]

    def decode(self, batch: int, context: int) -> list[Op]:
        return self.ops

    def prefill(self, tokens: int, prefix: int) -> list[Op]:
        return self.ops

    def mixed(self, tokens: int, batch: int, context: int) -> list[Op]:
        return self.ops


class Silent(Fixed):
    def decode(self, batch: int, context: int) -> list[Op]:
        raise Refused("no tables")


def test_shared_kernels_are_the_fastest_attention_is_its_own() -> None:
    own = Fixed(qkv_gemm=6.0, moe=3.0, generation_ar_1=2.0, generation_attention=4.0, norm=1.0)
    other = Fixed(qkv_gemm=1.0, moe=5.0, generation_ar_1=0.5, generation_attention=0.1, norm=0.1)
    for ops in (
        Fastest(own, [other], experts=True).decode(1, 1),
        Fastest(own, [other], experts=True).prefill(1, 0),
        Fastest(own, [other, Silent(qkv_gemm=0.0)], experts=True).mixed(1, 1, 1),
    ):
        told = {op.name: op.s for op in ops}
        expected = {"moe": 3.0, "generation_ar_1": 0.5, "generation_attention": 4.0, "norm": 1.0}
        assert {k: v for k, v in told.items() if k != "qkv_gemm"} == expected
    assert Fastest(own, [other], experts=True).decode(1, 1)[0].s == 1.0


def test_experts_of_an_old_engine_are_its_own() -> None:
    own, other = Fixed(moe=1.5, qkv_gemm=2.0), Fixed(moe=1.0, qkv_gemm=1.0)
    told = [op.s for op in Fastest(own, [other], experts=False).decode(1, 1)]
    assert told == [1.5, 1.0]
    faulty = Fixed(moe=2.5, qkv_gemm=2.0)
    assert Fastest(faulty, [other], experts=False).decode(1, 1)[0].s == 1.0


def test_engines_without_tables_do_not_count() -> None:
    own = Fixed(qkv_gemm=6.0)
    assert Fastest(own, [Silent(qkv_gemm=0.1)], experts=True).decode(1, 1)[0].s == 6.0


@installed
def test_the_package_answers() -> None:
    """Recorded: Llama-3.1-8B in bf16 on an H100, vLLM 0.24.0 tables of 0.12.0."""
    found = open_tables(QUERY)
    assert found.version == "0.24.0"
    step = found.decode(8, 1024)
    assert sum(op.s for op in step) == pytest.approx(6.59e-3, rel=0.01)
    assert {op.name for op in step if op.measured} >= {
        "generation_attention",
        "generation_qkv_gemm",
    }
    assert sum(op.s for op in found.decode(256, 1024)) == pytest.approx(19.55e-3, rel=0.01)
    prompt = sum(op.s for op in found.prefill(2048, 0))
    assert prompt < sum(op.s for op in found.prefill(2048, 8192))
    alone = prompt + sum(op.s for op in found.decode(64, 4096))
    assert prompt < sum(op.s for op in found.mixed(2048, 64, 4096)) < alone


@installed
@pytest.mark.parametrize(
    "change",
    [{"system": "l4"}, {"tp": 3}, {"gemm": "nothing"}, {"gemm": "int4_wo"}, {"backend": "other"}],
)
def test_what_it_has_no_tables_for_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(Refused, match=PACKAGE):
        open_tables(Query(**{**QUERY.__dict__, **change})).decode(8, 1024)


def test_no_other_module_imports_the_package() -> None:
    source = Path(silicon_tables.__file__).parents[1]
    importing = [
        path.name
        for path in source.rglob("*.py")
        if re.search(rf"(import|from|\")\s*{silicon_tables.MODULE}", path.read_text("utf-8"))
    ]
    assert importing == ["silicon_tables.py"]
