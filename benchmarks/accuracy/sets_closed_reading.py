"""How the loaders of closed-loop and static sets read a file: tolerant rows, names, lengths.

Nothing here raises on what a file holds: a row that cannot be used is counted by its reason.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final, TypeVar

import numpy as np
from pydantic import ValidationError

from sojourn.capacity import catalogue
from sojourn.errors import SojournError

from .rows import Ints, Loaded, Row

Item = TypeVar("Item")
MOST: Final = 10_000_000
"""No count of tokens, requests or GPUs in a published row is larger: it is a shifted column."""
QUANTISED: Final = re.compile(
    r"[-_ ](?:fp8(?:[-_]dynamic|[-_]block)?|nvfp4|mxfp4|fp4|int4|int8|bf16|awq|gptq|w4a16|w8a8"
    r"|quantized\.w\w+)$",
    re.IGNORECASE,
)
DTYPES: Final = {
    "nvfp4": "nvfp4", "fp4": "nvfp4", "mxfp4": "mxfp4", "fp8_block": "fp8", "fp8": "fp8",
    "int4_wo": "int4", "int4": "int4", "awq": "int4", "gptq": "int4", "w4a16": "int4",
    "int8": "int8", "w8a8": "int8", "bfloat16": "bf16", "float16": "fp16", "fp16": "fp16",
    "bf16": "bf16",
}  # fmt: skip
"""Spellings of published files, and the catalogue's; the first that occurs in a text wins."""


class LeftOut(Exception):  # noqa: N818  (a reason to count, not an error)
    """A row that cannot be used; its text is the reason."""


@dataclass(frozen=True)
class Record:
    """One line of a file, by column. A column that is absent reads as blank."""

    cells: Mapping[str, str]

    def text(self, name: str) -> str:
        """The cell without blanks at its ends."""
        return (self.cells.get(name) or "").strip()

    def number(self, name: str) -> float | None:
        """A finite number, or None for a blank or for what is no number."""
        try:
            value = float(self.text(name))
        except ValueError:
            return None
        return value if np.isfinite(value) else None

    def positive(self, name: str) -> float:
        """A number over 0.

        Raises:
            LeftOut: the cell has none.
        """
        value = self.number(name)
        if value is None or value <= 0:
            raise LeftOut(f"no {name}")
        return value

    def count(self, name: str) -> int:
        """A whole number from 1.

        Raises:
            LeftOut: the cell has none.
        """
        value = self.positive(name)
        if value != int(value) or value > MOST:
            raise LeftOut(f"{name} is no count")
        return int(value)

    def count_or(self, name: str, default: int) -> int:
        """A whole number from 1; the default for a blank or 0."""
        value = self.number(name)
        return default if value is None or value == 0 else self.count(name)

    def flag(self, name: str) -> bool:
        """Whether the cell says true."""
        return self.text(name).casefold() in ("true", "1", "1.0", "yes")


def records(path: Path, loaded: Loaded) -> list[Record]:
    """The lines of a CSV but its `#` lines; a file that is not there is a reason."""
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        loaded.skip(f"the file {path.name} is not there")
        return []
    lines = (line for line in text.replace("\0", "").splitlines() if not line.startswith("#"))
    found = []
    reader = csv.DictReader(lines)
    try:
        for raw in reader:
            cells = {k: v for k, v in raw.items() if isinstance(k, str) and isinstance(v, str)}
            found.append(Record(cells))
    except csv.Error:
        loaded.skip("a line that is no CSV; the rest of the file is not read")
    return found


def collect(
    items: Iterable[Item], build: Callable[[Item], Iterable[Row]], loaded: Loaded
) -> Loaded:
    """Rows of every item; one that is left out counts under its reason."""
    for item in items:
        try:
            loaded.rows.extend(build(item))
        except LeftOut as reason:
            loaded.skip(str(reason))
        except ValidationError as error:
            field = ".".join(str(part) for part in error.errors()[0]["loc"])
            loaded.skip(f"{field} cannot be that of a deployment")
    return loaded


def model_name(text: str) -> str:
    """The catalogue's name of the model where it has one, so that one model is one group whatever
    a file calls it; else the text as it stands."""
    if not text:
        raise LeftOut("no model named")
    return _known_model(text) or text


@cache
def _known_model(text: str) -> str | None:
    plain = re.sub(r"\s*\(.*\)$", "", text)
    short = plain.rsplit("/", 1)[-1]
    tried = [text, plain, short]
    tried += [QUANTISED.sub("", name) for name in (plain, short)]
    tried += [re.sub(r"-(?:Instruct|Chat|it|hf)$", "", name) for name in tried[-2:]]
    for name in tried:
        try:
            return catalogue.model(name).name
        except SojournError:
            continue
    return None


def gpu_name(text: str) -> str:
    """The catalogue's name of the card where it has one; else the text as it stands."""
    if not text:
        raise LeftOut("no accelerator named")
    return _known_gpu(text) or text


@cache
def _known_gpu(text: str) -> str | None:
    plain = re.sub(r"\(\s*\d+\s*x?\s*\)|\b\d+\s*x\s*(?=[A-Za-z])|\bGPUs?\b", " ", text)
    plain = re.sub(r"\s+", " ", plain).strip()
    bare = re.sub(r"^(?:NVIDIA|AMD|Intel|Instinct)\s+", "", plain, flags=re.IGNORECASE)
    for name in (text, plain, bare, bare.split("_")[0], bare.split(" ")[0]):
        try:
            return catalogue.gpu(name).name
        except (SojournError, OSError):
            continue
    return None


def weight_dtype(model: str, *told: str) -> str:
    """The weights' dtype: as told, else by the checkpoint's name, else 16 bits.

    gpt-oss is published in mxfp4 and nothing else, whatever a file calls four bits.
    """
    if "gpt-oss" in model.casefold():
        return "mxfp4"
    for text in (*told, model):
        for spelling, dtype in DTYPES.items():
            if spelling in text.casefold():
                return dtype
    return "bf16"


PEAK_SHARE: Final = 0.6
"""Prompt FLOPs over the card's peak: what is above was not computed but found in a cache."""


def prompt_flops(row: Row, tokens: float) -> float | None:
    """FLOPs of so many prompt tokens over the peak of the row's cards, s: 2 x active parameters x
    tokens, without attention. None where the catalogue has not the model or the card."""
    try:
        model, gpu = catalogue.model(row.model), catalogue.gpu(row.gpu)
    except SojournError:
        return None
    told = row.deployment
    cards = told.tensor_parallel * told.pipeline_parallel * told.data_parallel * told.replicas
    peak = cards * gpu.flops(told.weight_dtype)
    return 2 * model.active_block_parameters * tokens / peak


def burst_floor_s(row: Row, prompts: Ints) -> float | None:
    """Nine tenths of what these prompts take at 60% of the peak, s."""
    whole = prompt_flops(row, float(prompts.sum()))
    return None if whole is None else 0.9 * whole / PEAK_SHARE


def expert_layers(model: str) -> bool:
    """Whether the catalogue knows the model for one with routed experts."""
    try:
        return any(layer.experts for layer in catalogue.model(model).mlp)
    except SojournError:
        return False


def same(value: int, count: int) -> Ints:
    """`count` requests of one length."""
    return np.full(count, value, dtype=np.int64)


def uniform(low: int, high: int, count: int, *, rng: np.random.RandomState) -> Ints:
    """Lengths from low to high, both included, as `benchmark_serving` draws them."""
    return np.asarray(rng.randint(low, high + 1, size=count), dtype=np.int64)


def spread(mean: float, cv: float, count: int, *, seed: int) -> Ints:
    """Log-normal lengths of that mean and coefficient of variation; their sum is exact to a token
    a request."""
    sigma2 = np.log1p(cv**2)
    drawn = np.random.default_rng(seed).lognormal(-sigma2 / 2, np.sqrt(sigma2), count)
    return np.asarray(np.maximum(np.rint(drawn / drawn.mean() * mean), 1), dtype=np.int64)


def milliseconds(record: Record, names: Mapping[str, str]) -> dict[str, float]:
    """Figures (by name) of cells (by column) in ms, those that are there and over 0, in seconds."""
    found = {}
    for column, figure in names.items():
        value = record.number(column)
        if value is not None and value > 0:
            found[figure] = value / 1e3
    return found
