"""Arguments of one engine process: from words to named flags."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any, Final, NamedTuple

from sojourn.capacity.launch_flags import (
    BESIDE,
    ENVIRONMENT,
    READ,
    SWITCHES,
    TABLES,
    Value,
    json_object,
)
from sojourn.capacity.launch_records import Flag, Launch
from sojourn.capacity.launch_shell import unresolved
from sojourn.errors import InputError
from sojourn.yaml_file import YamlError, read_yaml

_MODULES: Final = {
    "vllm.entrypoints.openai.api_server": "vllm",
    "vllm.entrypoints.api_server": "vllm",
    "sglang.launch_server": "sglang",
    "dynamo.vllm": "vllm",
    "dynamo.sglang": "sglang",
    "dynamo.trtllm": "trtllm",
}
_FILES: Final = {"api_server.py": "vllm", "launch_server.py": "sglang"}
_PROGRAMS: Final = {"trtllm-serve": "trtllm", "trtllm-build": "trtllm"}
_IMAGES: Final = (
    (re.compile(r"vllm"), "vllm"),
    (re.compile(r"llm-d"), "vllm"),
    (re.compile(r"sglang|sgl-"), "sglang"),
    (re.compile(r"tensorrt-?llm|trt-?llm"), "trtllm"),
)
_TAG: Final = re.compile(r"(?:^|[-_v])(\d+\.\d+(?:\.\d+)?)")
_FLAG: Final = re.compile(r"--?[A-Za-z][\w.\-]*")


_DASHES: Final = tuple("\N{HYPHEN}\N{NON-BREAKING HYPHEN}\N{EN DASH}\N{EM DASH}\N{MINUS SIGN}")


class Argument(NamedTuple):
    """One word of an argument list, and where it stands."""

    text: str
    where: str


class Process(NamedTuple):
    """An engine process: its arguments, without the program's own name."""

    engine: str
    arguments: tuple[Argument, ...]
    positional_model: bool


def image_engine(image: str | None) -> str | None:
    """The engine an image's name says it holds, or None."""
    name = (image or "").lower()
    return next((engine for pattern, engine in _IMAGES if pattern.search(name)), None)


def image_version(image: str | None) -> str | None:
    """The version in an image's tag: `vllm/vllm-openai:v0.11.0` gives 0.11.0."""
    if not image or ":" not in image.rsplit("/", 1)[-1]:
        return None
    tag = image.rsplit(":", 1)[1].split("@", 1)[0]
    found = _TAG.search(tag)
    own = image_engine(image.rsplit(":", 1)[0])
    return found[1] if found and own and "llm-d" not in image else None


def process(arguments: Sequence[Argument]) -> Process | None:
    """The engine process in a list of words, or None where no engine is started."""
    words = [a.text for a in arguments]
    for index, word in enumerate(words):
        following = words[index + 1] if index + 1 < len(words) else ""
        rest = tuple(arguments[index + 1 :])
        base = PurePosixPath(word).name
        if base in ("vllm", "sglang") and following == "serve":
            return Process(base, rest[1:], positional_model=True)
        if base in _PROGRAMS:
            served = following == "serve"
            return Process(_PROGRAMS[base], rest[1:] if served else rest, base == "trtllm-serve")
        if word in _MODULES:
            return Process(_MODULES[word], rest, positional_model=False)
        if base in _FILES and ("vllm" in word or "sglang" in word or "entrypoints" in word):
            return Process(_FILES[base], rest, positional_model=False)
    return None


def _spelled(text: str, engine: str) -> str:
    """As the engine's table spells it: hyphens, but underscores for TensorRT-LLM."""
    if not text.startswith("--"):
        return text
    head, dot, tail = text[2:].partition(".")
    own = head.replace("-", "_") if engine == "trtllm" else head.replace("_", "-")
    return f"--{own}{dot}{tail}"


def _pairs(found: Process) -> Iterator[tuple[str, str | None, str]]:
    """(flag, value or None, where); a positional word comes as flag "" ."""
    table = TABLES[found.engine]
    arguments = list(found.arguments)
    at = 0
    while at < len(arguments):
        text, where = arguments[at]
        at += 1
        if not _FLAG.match(text):
            yield "", text, where
            continue
        name, joined, value = text.partition("=")
        name = _spelled(name, found.engine)
        kind = table.get(name, ("", ""))[1]
        if joined:
            yield name, value, where
        elif kind in ("on", "off") or (not kind and SWITCHES.fullmatch(name)):
            yield name, None, where
        elif at < len(arguments) and _takes(arguments[at].text, kind):
            yield name, arguments[at].text, where
            at += 1
        else:
            yield name, None, where


def _takes(following: str, kind: str) -> bool:
    """Whether the next word is this flag's value: a negative number is, a flag is not."""
    if not following.startswith("-"):
        return True
    return bool(kind) and bool(re.fullmatch(r"-\d+(?:\.\d+)?", following))


class Reading:
    """Flags as they are met."""

    def __init__(self, engine: str, where: str, folder: Path | None) -> None:
        self.engine = engine
        self.where = where
        self.folder = folder
        self.flags: list[Flag] = []
        self.unknown: list[Flag] = []
        self.unresolved: list[Flag] = []
        self.notes: list[str] = []

    def take(self, spelled: str, text: str | None, where: str) -> None:
        """One flag.

        Raises:
            InputError: a flag that matters has no value, or one that cannot be read.
        """
        known = TABLES[self.engine].get(spelled)
        if known is None:
            self._other(spelled, text, where)
            return
        name, kind = known
        if name == "options_file":
            self.options(text, where)
            return
        if text is not None and kind != "json" and unresolved(text):
            self.unresolved.append(Flag(name=name, spelled=spelled, value=text, where=where))
            return
        value = self._value(spelled, kind, text, where)
        self.flags.append(Flag(name=name, spelled=spelled, value=value, where=where))
        if kind == "json":
            self._nested(name, str(value), spelled, where)

    def _value(self, spelled: str, kind: str, text: str | None, where: str) -> Value:
        if text is None and kind in ("on", "off", "truth"):
            return kind != "off"
        if text is None:
            raise InputError(
                f"{spelled} has no value ({where})", path=self.where, todo="Give the flag its value"
            )
        try:
            value = READ["truth" if kind in ("on", "off") else kind](text)
        except (ValueError, OverflowError) as error:
            raise InputError(
                f"{spelled} {text[:60]!r} ({where}): {error}",
                path=self.where,
                todo="Correct the flag, or set the value in sojourn.yaml",
            ) from error
        return not value if kind == "off" else value

    def _nested(self, name: str, text: str, spelled: str, where: str) -> None:
        """What matters of a flag that holds JSON."""
        try:
            inner = json_object(text)
        except ValueError as error:
            raise InputError(
                f"{spelled} ({where}): {error}", path=self.where, todo="Quote it as one JSON value"
            ) from error
        keys = {"model": "draft_model", "num_speculative_tokens": "draft_tokens"}
        for key, value in inner.items():
            if name == "speculative" and key in keys and isinstance(value, str | int):
                self.flags.append(
                    Flag(name=keys[key], spelled=f"{spelled} {key}", value=value, where=where)
                )

    def _other(self, spelled: str, text: str | None, where: str) -> None:
        if BESIDE.match(spelled):
            return
        near = [known for known in TABLES[self.engine] if known.startswith(spelled)]
        if spelled.startswith("--") and len({TABLES[self.engine][k] for k in near}) == 1:
            self.take(near[0], text, where)  # argparse takes a prefix that is not ambiguous
            return
        value: Value = True if text is None else text
        self.unknown.append(
            Flag(name=spelled.lstrip("-"), spelled=spelled, value=value, where=where)
        )

    def options(self, text: str | None, where: str) -> None:
        """A file of options, where it lies beside what is read."""
        path = None if text is None or self.folder is None else self.folder / text
        if text is None or path is None or not path.is_file():
            self.notes.append(
                f"{text or 'an options file'} ({where}) is not here: its flags are not known"
            )
            return
        try:
            values = read_yaml(path)
        except YamlError as error:
            raise InputError(str(error), path=path, todo="Correct the options file") from error
        if isinstance(values, dict):
            for key, value in _flat(values):
                self.mapped(key, value, f"{text}: {key}")

    def mapped(self, key: str, value: object, where: str) -> None:
        """One key of a mapping, as the flag of that name."""
        spelled = _spelled(f"--{key}", self.engine)
        kind = TABLES[self.engine].get(spelled, ("", ""))[1]
        if value is None or isinstance(value, list | dict):
            return
        text = str(value).lower() if isinstance(value, bool) else str(value)
        if kind in ("on", "off") or kind or not isinstance(value, bool):
            self.take(spelled, text, where)

    def environment(self, scope: Mapping[str, str], where: str) -> None:
        """Variables that move memory."""
        for name, (own, kind) in ENVIRONMENT.items():
            if name in scope and not unresolved(scope[name]):
                value = self._value(name, kind, scope[name], where)
                self.flags.append(Flag(name=own, spelled=name, value=value, where=where))


def _flat(values: Mapping[Any, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in values.items():
        name = f"{prefix}{key}"
        if isinstance(value, dict) and len(prefix) < 200:
            yield from _flat(value, f"{name}.")
        else:
            yield name, value


def launch_of(
    found: Process, *, where: str, folder: Path | None, scope: Mapping[str, str]
) -> Launch:
    """The process as a `Launch`.

    Raises:
        InputError: a flag that matters cannot be read.
    """
    reading = Reading(found.engine, where, folder)
    place = found.arguments[0].where if found.arguments else where
    reading.environment(scope, place)
    model_named = not found.positional_model
    for spelled, text, at in _pairs(found):
        if spelled:
            reading.take(spelled, text, at)
        elif text is not None and text.startswith(_DASHES):
            reading.notes.append(
                f"{text[:40]} ({at}) begins with a dash that is no hyphen, as text processors"
                " write it: it was left out"
            )
        elif not model_named and text is not None:
            model_named = True
            reading.take("--model", text, at)
    return Launch(
        engine=found.engine,
        where=where,
        flags=tuple(reading.flags),
        unknown=tuple(reading.unknown),
        unresolved=tuple(reading.unresolved),
        notes=tuple(reading.notes),
    )
