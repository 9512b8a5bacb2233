"""Engines in YAML: Kubernetes manifests (Deployment, StatefulSet, Pod, LeaderWorkerSet, KServe,
llm-d), compose files and Helm values, as many documents as there are."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

import yaml

from sojourn.capacity.launch_arguments import (
    Argument,
    Process,
    Reading,
    image_engine,
    image_version,
    launch_of,
    process,
)
from sojourn.capacity.launch_records import Launch
from sojourn.capacity.launch_shell import commands, expand
from sojourn.errors import InputError

Shell = Callable[[str, str, Path | None, Mapping[str, str]], tuple[Launch, ...]]
_MAX_VALUES: Final = 20_000
_MAX_DEPTH: Final = 60
_LOADER: Final = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""The C one where PyYAML has it: ten times as fast."""
_GPU: Final = re.compile(r"(?:nvidia|amd|gpu\.intel|habana)\.com/(?:gpu|gaudi|mig-.*|i915)$")
_PRODUCT: Final = re.compile(
    r"(?:gpu[.\-/]product|gke-accelerator$|gpu\.nvidia\.com/(?:class|model)|gpu-model$|gpu-type$"
    r"|accelerator$|instance-gpu-name$|instance-type$|karpenter.*gpu-name$)"
)
_INSTANCES: Final = (
    (r"^p5en?\.|h200", "H200"),
    (r"^p5\.|_h100|^a3-", "H100"),
    (r"^p4de\.|^a2-ultra", "A100-80GB-SXM"),
    (r"^p4d\.|^a2-high", "A100-40GB"),
    (r"^p6", "B200"),
    (r"^g6e\.", "L40S"),
    (r"^g6\.|^g2-", "L4"),
    (r"^g5\.", "A10G"),
)
"""What clouds put into an instance type (AWS, GCP, Azure)."""
_PARALLEL: Final = {"tensor": "tensor_parallel_size", "data": "data_parallel_size"}
_SHELLS: Final = frozenset({"sh", "bash", "/bin/sh", "/bin/bash", "/usr/bin/bash", "zsh"})


class _Place(NamedTuple):
    """Where a container stands: what is known from above it."""

    name: str = ""
    replicas: int | None = None
    product: str | None = None
    pods: int = 1
    model: str | None = None
    parallelism: tuple[tuple[str, int], ...] = ()


def launches_of_documents(
    text: str, where: str, folder: Path | None, *, shell: Shell
) -> tuple[Launch, ...]:
    """Every engine in a YAML text.

    Raises:
        InputError: no YAML, templates left in it, too large, or a flag that cannot be read.
    """
    found: list[Launch] = []
    for document in _documents(text, where):
        for container, place, path in _containers(document, _Place(), ""):
            found += _of_container(container, place, path, (where, folder, shell))
    return tuple(found)


def _documents(text: str, where: str) -> list[Any]:
    try:
        documents = list(yaml.load_all(text, Loader=_LOADER))
    except yaml.YAMLError as error:
        if "{{" in text:
            raise InputError(
                "holds Helm templates", path=where, todo="Render it first: `helm template ...`"
            ) from error
        raise InputError(
            f"is not YAML: {str(error)[:200]}", path=where, todo="Correct the file"
        ) from error
    except RecursionError as error:
        raise InputError("is nested too deeply", path=where, todo="Correct the file") from error
    except ValueError as error:
        raise InputError(f"holds a value that cannot be: {error}", path=where) from error
    count, left = 0, list(documents)
    while left:
        item = left.pop()
        count += 1
        if count > _MAX_VALUES:
            raise InputError(
                f"grows to more than {_MAX_VALUES:,} values",
                path=where,
                todo="Look for nested aliases; give the engine's part alone",
            )
        left.extend(item.values() if isinstance(item, dict) else ())
        left.extend(item if isinstance(item, list) else ())
    return documents


def _containers(
    node: object, place: _Place, path: str, depth: int = 0
) -> Iterator[tuple[dict[Any, Any], _Place, str]]:
    """Mappings that say how a process is started, with what stands above them."""
    if depth > _MAX_DEPTH:
        return
    if isinstance(node, list):
        for index, item in enumerate(node):
            yield from _containers(item, place, f"{path}[{index}]", depth + 1)
        return
    if not isinstance(node, dict):
        return
    place = _seen(node, place, path)
    if _starts(node):
        yield node, place, path
    for key, value in node.items():
        if key in (
            "initContainers",
            "livenessProbe",
            "readinessProbe",
            "startupProbe",
            "lifecycle",
        ):
            continue
        if path == "services" or path.endswith(".services"):
            inner = place._replace(name=str(key))
        else:
            inner = place
        yield from _containers(value, inner, f"{path}.{key}" if path else str(key), depth + 1)


def _starts(node: dict[Any, Any]) -> bool:
    listed = any(isinstance(node.get(key), list | str) for key in ("args", "command", "extraArgs"))
    named = isinstance(node.get("image"), str) and image_engine(node["image"]) is not None
    return listed or named or isinstance(node.get("vllmConfig"), dict)


def _count(value: object) -> int | None:
    try:
        return int(str(value)) if not isinstance(value, bool) and value is not None else None
    except ValueError:
        return None


def _seen(node: dict[Any, Any], place: _Place, path: str) -> _Place:
    """What this mapping adds to what is known of the containers below it."""
    metadata = node.get("metadata")
    if isinstance(metadata, dict) and metadata.get("name") and node.get("kind"):
        place = place._replace(name=f"{node['kind']}/{metadata['name']}")
    for role in ("prefill", "decode"):
        if path.endswith(role):
            place = place._replace(name=f"{place.name} {role}".strip())
    for key in ("replicas", "minReplicas", "replicaCount"):
        replicas = _count(node.get(key))
        if replicas is not None and replicas > 0:
            place = place._replace(replicas=replicas)
            break
    if path.endswith("leaderWorkerTemplate"):
        place = place._replace(pods=_count(node.get("size")) or 1)
    given = node.get("parallelism")
    if isinstance(given, dict):
        sizes = ((name, _count(given.get(key))) for key, name in _PARALLEL.items())
        place = place._replace(parallelism=tuple((n, size) for n, size in sizes if size))
    model = node.get("model")
    if isinstance(model, dict) and isinstance(model.get("uri"), str):
        place = place._replace(model=re.sub(r"^\w+://", "", model["uri"]))
    return place._replace(product=_product(node) or place.product)


def _product(node: dict[Any, Any]) -> str | None:
    """An accelerator that a node selector, an affinity or a label names."""
    selector = node.get("nodeSelector")
    pairs = list(selector.items()) if isinstance(selector, dict) else []
    if isinstance(node.get("key"), str) and isinstance(node.get("values"), list):
        pairs += [(node["key"], value) for value in node["values"][:1]]
    terms = node.get("affinity")
    if isinstance(terms, dict):
        pairs += list(_terms(terms))
    for key, value in pairs:
        if not _PRODUCT.search(str(key)):
            continue
        if str(key).endswith("instance-type"):
            hits = (card for form, card in _INSTANCES if re.search(form, str(value).lower()))
            found = next(hits, None)
            if found:
                return found
            continue
        return str(value)
    return None


def _terms(node: object, depth: int = 0) -> Iterator[tuple[str, str]]:
    if depth > _MAX_DEPTH:
        return
    if isinstance(node, dict):
        if isinstance(node.get("key"), str) and isinstance(node.get("values"), list):
            yield from ((node["key"], str(value)) for value in node["values"][:1])
        for value in node.values():
            yield from _terms(value, depth + 1)
    elif isinstance(node, list):
        for item in node:
            yield from _terms(item, depth + 1)


def _environment(container: dict[Any, Any]) -> dict[str, str]:
    """Variables with a value of their own; secrets and field references have none."""
    given = container.get("env", container.get("environment"))
    if isinstance(given, dict):
        return {str(k): str(v) for k, v in given.items() if isinstance(v, str | int | float)}
    found: dict[str, str] = {}
    for item in given if isinstance(given, list) else []:
        if isinstance(item, dict) and item.get("value") is not None:
            found[str(item.get("name"))] = expand(str(item["value"]), found)
        elif isinstance(item, str) and "=" in item:
            name, _, value = item.partition("=")
            found[name] = value
    return found


def _words(value: object, where: str, path: str, scope: Mapping[str, str]) -> list[Argument]:
    """A command or args: a list of words, or one string."""
    if isinstance(value, str):
        split = commands(value, where, scope)
        return [Argument(w.text, path) for _, words in split for w in words]
    if not isinstance(value, list):
        return []
    return [
        Argument(expand(str(item), scope), f"{path}[{i}]")
        for i, item in enumerate(value)
        if isinstance(item, str | int | float)
    ]


def _of_container(
    container: dict[Any, Any], place: _Place, path: str, context: tuple[str, Path | None, Shell]
) -> list[Launch]:
    where, folder, shell = context
    scope = _environment(container)
    words: list[Argument] = []
    for key in ("entrypoint", "command", "args", "extraArgs"):
        words += _words(container.get(key), where, f"{path}.{key}", scope)
    image = container.get("image") if isinstance(container.get("image"), str) else None
    texts = [w.text for w in words]
    if texts[1:] and texts[0] in _SHELLS:
        script = next((t for t in texts[1:] if not t.startswith("-")), "")
        found = list(shell(script, where, folder, scope))
    else:
        started = process(words) or _implied(container, words, image, path)
        if started is None:
            return []
        found = [launch_of(started, where=where, folder=folder, scope=scope)]
    return [_placed(launch, container, place, image) for launch in found]


def _implied(
    container: dict[Any, Any], words: list[Argument], image: str | None, path: str
) -> Process | None:
    """Arguments of an image's own program, or of a chart that adds it."""
    if isinstance(container.get("vllmConfig"), dict):
        return Process("vllm", (*_chart(container, path), *words), positional_model=False)
    engine = image_engine(image)
    if engine is None and str(container.get("modelCommand", "")).lower().startswith("vllm"):
        engine = "vllm"
    if engine is None and isinstance(container.get("modelFormat"), dict):
        engine = "vllm"  # KServe's Hugging Face runtime hands its arguments to vLLM
    flags = [w.text for w in words if w.text.startswith("-")]
    if engine is None and any("tensor-parallel" in f or "gpu-memory-util" in f for f in flags):
        engine = "vllm"
    if engine is None or (container.get("command") and not flags):
        return None
    return Process(engine, tuple(words), positional_model=True)


def _chart(container: dict[Any, Any], path: str) -> Iterator[Argument]:
    """vLLM's production stack: camel-case keys of `vllmConfig` are flags."""
    if isinstance(container.get("modelURL"), str):
        yield Argument(f"--model={container['modelURL']}", f"{path}.modelURL")
    for key, value in container["vllmConfig"].items():
        place = f"{path}.vllmConfig.{key}"
        if isinstance(value, list):
            yield from (Argument(str(v), place) for v in value if isinstance(v, str | int | float))
            continue
        flag = "--" + re.sub(r"(?<!^)(?=[A-Z])", "-", str(key)).lower()
        if isinstance(value, bool):
            bare = flag if flag.startswith("--enable") else f"--enable-{flag[2:]}"
            yield Argument(bare if value else f"--no-{bare[2:]}", place)
        elif isinstance(value, str | int | float):
            yield Argument(f"{flag}={value}", place)


def _gpus(container: dict[Any, Any]) -> int | None:
    """Accelerators of one pod: limits, requests, compose reservations, a chart's key."""
    resources = container.get("resources")
    for part in ("limits", "requests"):
        asked = resources.get(part) if isinstance(resources, dict) else None
        for key, value in asked.items() if isinstance(asked, dict) else ():
            if _GPU.search(str(key)):
                return _count(value)
    if container.get("requestGPU") is not None:
        return _count(container["requestGPU"])
    deploy = container.get("deploy")
    devices: Any = deploy
    for key in ("resources", "reservations", "devices"):
        devices = devices.get(key, {}) if isinstance(devices, dict) else {}
    for device in devices if isinstance(devices, list) else ():
        if isinstance(device, dict):
            ids = device.get("device_ids")
            return len(ids) if isinstance(ids, list) else _count(device.get("count"))
    return None


def _unread(container: dict[Any, Any]) -> tuple[str, ...]:
    """Counts of a container that are no whole numbers, for a note."""
    resources, deploy = container.get("resources"), container.get("deploy")
    asked: list[tuple[object, object]] = [("requestGPU", container.get("requestGPU"))]
    for part in ("limits", "requests"):
        limits = resources.get(part) if isinstance(resources, dict) else None
        if isinstance(limits, dict):
            asked += [(key, value) for key, value in limits.items() if _GPU.search(str(key))]
    if isinstance(deploy, dict):
        asked.append(("deploy.replicas", deploy.get("replicas")))
    return tuple(
        f"{key}: {str(value)[:40]!r} is no whole number: it was left out"
        for key, value in asked
        if value is not None and _count(value) is None
    )


def _placed(launch: Launch, container: dict[Any, Any], place: _Place, image: str | None) -> Launch:
    reading = Reading(launch.engine or "vllm", launch.where, None)
    for name, size in place.parallelism:  # llm-d says some of the layout beside the arguments
        reading.mapped(name, size, "parallelism")
    if launch.model is None and place.model:
        reading.take("--model", place.model, "model.uri")
    gpus, nodes = _gpus(container), int(launch.number("nodes") or 1)
    deploy = container.get("deploy")
    composed = _count(deploy.get("replicas")) if isinstance(deploy, dict) else None
    return launch.model_copy(
        update={
            "name": place.name or str(container.get("name") or image or launch.engine),
            "image": image,
            "version": image_version(image),
            "gpus": None if gpus is None else gpus * max(place.pods, nodes),
            "replicas": composed or place.replicas,
            "accelerator": _product(container) or place.product,
            "flags": (*reading.flags, *launch.flags),
            "notes": (*launch.notes, *_unread(container)),
        }
    )
