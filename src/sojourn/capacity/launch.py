"""Reads how an engine is started: a vLLM, SGLang or TensorRT-LLM command line, a shell script, a
Dockerfile, a compose file, a Kubernetes manifest or Helm values. Text is parsed, never executed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Final

from sojourn.capacity.launch_arguments import (
    Argument,
    Process,
    image_engine,
    image_version,
    launch_of,
    process,
)
from sojourn.capacity.launch_files import launches_of_documents
from sojourn.capacity.launch_records import Flag, Launch
from sojourn.capacity.launch_shell import Word, commands, here_documents
from sojourn.errors import InputError

__all__ = ["Flag", "Launch", "read_all", "read_launch"]

MAX_BYTES: Final = 500_000
"""Of a script or manifest: ten times the largest chart values published."""
_MAX_DEPTH: Final = 4
_SHELLS: Final = frozenset({"sh", "bash", "zsh", "ash", "dash"})
_RUNNERS: Final = frozenset({"docker", "podman", "nerdctl", "sudo"})
_YAML_KEY: Final = re.compile(r"^\s*(?:- )?[A-Za-z_\"'][\w.\-/\"']*:(?:\s|$)", re.MULTILINE)
_FEWEST_KEYS: Final = 3
_DOCKERFILE: Final = re.compile(r"^\s*FROM\s+\S+", re.MULTILINE)
_EXPECTED: Final = (
    "Give a command line (`vllm serve ...`, `python -m sglang.launch_server ...`,"
    " `trtllm-serve ...`), or the path of a script, Dockerfile, compose file, manifest or values"
)


def read_launch(text_or_path: str | Path, folder: Path | None = None) -> Launch:
    """How the engine is started; of several in one file the one that decodes, else the first.

    `folder`: where paths inside the text are looked for (default: beside the file).

    Raises:
        InputError: no file and no command, or one that cannot be read; names the place.
    """
    found = read_all(text_or_path, folder)
    decoding = [launch for launch in found if "decode" in launch.name.lower()]
    chosen = (decoding or found)[0]
    others = [launch.name or launch.where for launch in found if launch is not chosen]
    if others:
        note = (
            f"{len(found)} engines are started here; read: {chosen.name}, not: {', '.join(others)}"
        )
        chosen = chosen.model_copy(update={"notes": (*chosen.notes, note)})
    return chosen


def read_all(text_or_path: str | Path, folder: Path | None = None) -> tuple[Launch, ...]:
    """Every engine that is started, in order.

    Raises:
        InputError: as `read_launch`.
    """
    return _read_all(str(text_or_path), folder)


@lru_cache(maxsize=64)
def _cached(text: str, where: str, folder: Path | None) -> tuple[Launch, ...]:
    found = _of_text(text, where, folder)
    if not found:
        raise InputError("no engine is started here", path=where, todo=_EXPECTED)
    return found


def _read_all(given: str, folder: Path | None) -> tuple[Launch, ...]:
    path = _as_path(given)
    if path is None:
        return _cached(given, "launch", folder)
    return _cached(_content(path), str(path), folder or path.parent)


def _as_path(given: str) -> Path | None:
    """The file that is meant, or None where the text is the command itself."""
    if "\n" in given or len(given) > 1_000 or "\x00" in given:
        return None
    path = Path(given)
    try:
        if path.is_file():
            return path
    except OSError:
        return None
    plain = given.strip()
    if plain and len(plain.split()) == 1:
        problem = "is no file" if path.exists() else "does not exist"
        raise InputError(problem, path=plain, todo=_EXPECTED)
    return None


def _content(path: Path) -> str:
    try:
        if path.stat().st_size > MAX_BYTES:
            raise InputError(
                f"has more than {MAX_BYTES:,} bytes", path=path, todo="Cut out the engine's part"
            )
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise InputError(f"cannot be read ({error.strerror})", path=path, todo=_EXPECTED) from error
    except UnicodeDecodeError as error:
        raise InputError("is binary, not text", path=path, todo=_EXPECTED) from error
    if "\x00" in text:
        raise InputError("is binary, not text", path=path, todo=_EXPECTED)
    return text


def _of_text(text: str, where: str, folder: Path | None) -> tuple[Launch, ...]:
    if len(text) > MAX_BYTES:
        raise InputError(f"has more than {MAX_BYTES:,} characters", path=where, todo=_EXPECTED)
    if where.endswith((".yaml", ".yml")) or _looks_like_yaml(text):
        return launches_of_documents(text, where, folder, shell=_of_shell)
    if _DOCKERFILE.search(text) and re.search(r"^\s*(CMD|ENTRYPOINT)\b", text, re.MULTILINE):
        return _of_dockerfile(text, where, folder)
    return _of_shell(text, where, folder, {})


def _looks_like_yaml(text: str) -> bool:
    """Whether the first line that says anything is one of YAML, and three keys stand in it."""
    if len(_YAML_KEY.findall(text)) < _FEWEST_KEYS:
        return False
    lines = (line.strip() for line in text.splitlines())
    first = next((line for line in lines if line and not line.startswith("#")), "")
    return first == "---" or _YAML_KEY.match(first) is not None


def _of_shell(
    text: str, where: str, folder: Path | None, scope: Mapping[str, str], depth: int = 0
) -> tuple[Launch, ...]:
    """Engines started by shell text, shells inside it followed."""
    found: list[Launch] = []
    for variables, words in commands(text, where, scope):
        inner = _shell_string(words)
        if inner is not None and depth < _MAX_DEPTH:
            found += _of_shell(inner, where, folder, variables, depth + 1)
            continue
        launch = _of_words(words, where, folder, variables)
        if launch is not None:
            found.append(launch)
    if not found and depth == 0:
        for document in here_documents(text, where):
            if _looks_like_yaml(document):
                found += launches_of_documents(document, where, folder, shell=_of_shell)
    return tuple(found)


def _shell_string(words: list[Word]) -> str | None:
    """The text after `bash -c`, or None."""
    for index, word in enumerate(words[:-2]):
        if word.text.rsplit("/", 1)[-1] in _SHELLS and re.fullmatch(
            r"-[a-z]*c", words[index + 1].text
        ):
            return words[index + 2].text
    return None


def _of_words(
    words: list[Word], where: str, folder: Path | None, scope: Mapping[str, str]
) -> Launch | None:
    arguments = [Argument(w.text, f"line {w.line}") for w in words]
    runs = words[0].text.rsplit("/", 1)[-1] in _RUNNERS
    image_at = _image_at(words) if runs else None
    own = {**scope, **_docker_environment(words)} if runs else dict(scope)
    found = process(arguments if image_at is None else arguments[image_at + 1 :])
    image = None if image_at is None else words[image_at].text
    if found is None and image_at is not None:
        engine = image_engine(image)
        if engine is not None:
            found = Process(engine, tuple(arguments[image_at + 1 :]), positional_model=True)
    if found is None:
        return None
    launch = launch_of(found, where=where, folder=folder, scope=own)
    return launch.model_copy(
        update={
            "image": image,
            "version": image_version(image),
            "gpus": _devices(own, words if runs else [], launch),
            "name": launch.model or found.engine,
        }
    )


def _image_at(words: list[Word]) -> int | None:
    """Where `docker run` names an image that holds an engine."""
    for index, word in enumerate(words[1:], 1):
        text = word.text
        if re.search(r"[/:]", text) and not text.startswith("-") and image_engine(text):
            if "=" in text or text.startswith(("/", ".", "~")) or re.search(r":/", text):
                continue
            return index
    return None


def _docker_environment(words: list[Word]) -> dict[str, str]:
    found = {}
    for word, following in pairwise(words):
        text = following.text if word.text in ("-e", "--env") else ""
        text = text or (word.text[6:] if word.text.startswith("--env=") else "")
        name, equals, value = text.partition("=")
        if equals:
            found[name] = value
    return found


def _devices(scope: Mapping[str, str], words: list[Word], launch: Launch) -> int | None:
    """Accelerators of all nodes: `--gpus` of docker, or what CUDA_VISIBLE_DEVICES leaves."""
    found = _visible(scope)
    for word, following in pairwise(words):
        given = following.text if word.text == "--gpus" else ""
        given = given or (word.text[7:] if word.text.startswith("--gpus=") else "")
        ids = re.search(r"device=([\w,\-]+)", given)
        if ids is not None:
            found = len([part for part in ids[1].split(",") if part])
        elif given.isdigit():
            found = int(given)
    return None if found is None else found * int(launch.number("nodes") or 1)


def _visible(scope: Mapping[str, str]) -> int | None:
    """Accelerators that CUDA_VISIBLE_DEVICES leaves."""
    for name in ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES"):
        devices = [part for part in scope.get(name, "").split(",") if part.strip()]
        if devices and devices[0] not in ("all", "none", "void"):
            return len(devices)
    return None


def _of_dockerfile(text: str, where: str, folder: Path | None) -> tuple[Launch, ...]:
    """FROM, ENV, ENTRYPOINT and CMD of the last stage; JSON or shell form."""
    lines = re.sub(r"\\\s*\n", " ", text).splitlines()
    image: str | None = None
    entry: list[Argument] = []
    command: list[Argument] = []
    scope: dict[str, str] = {}
    for number, line in enumerate(lines, 1):
        keyword, _, rest = line.strip().partition(" ")
        if keyword == "FROM":
            image, entry, command = rest.split()[0] if rest.split() else None, [], []
        elif keyword in ("ENV", "ARG"):
            for local, _ in commands(f"export {_equals(rest)}; true", where, scope):
                scope.update(local)
        elif keyword in ("ENTRYPOINT", "CMD"):
            words = _docker_words(rest, where, scope, number)
            entry, command = (words, []) if keyword == "ENTRYPOINT" else (entry, words)
    arguments = entry + command
    joined = [Word(a.text, 1) for a in arguments]
    inner = _shell_string(joined)
    if inner is not None:
        found = _of_shell(inner, where, folder, scope)
    else:
        started = process(arguments)
        engine = image_engine(image)
        if started is None and engine is not None and not entry:
            started = Process(engine, tuple(arguments), positional_model=True)
        if started is None:
            return ()
        found = (launch_of(started, where=where, folder=folder, scope=scope),)
    version = image_version(image)
    return tuple(f.model_copy(update={"image": image, "version": version}) for f in found)


def _equals(text: str) -> str:
    """`ENV NAME value` as `NAME=value`."""
    name, _, value = text.strip().partition(" ")
    return text if "=" in name or not value else f"{name}={json.dumps(value.strip())}"


def _docker_words(text: str, where: str, scope: Mapping[str, str], number: int) -> list[Argument]:
    place = f"line {number}"
    if text.lstrip().startswith("["):
        try:
            words = json.loads(text)
        except (json.JSONDecodeError, RecursionError) as error:
            raise InputError(
                "this list is no JSON", path=where, row=number, todo="Quote each word in it"
            ) from error
        return [Argument(str(word), place) for word in words]
    return [Argument(w.text, place) for _, words in commands(text, where, scope) for w in words]
