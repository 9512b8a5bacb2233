"""Command lines, scripts and manifests as people have them; and the parser's laws."""

from __future__ import annotations

import json
import shlex

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sojourn.capacity.launch import read_all, read_launch
from sojourn.capacity.launch_flags import SGLANG, TABLES, TRTLLM, VLLM, human_integer
from sojourn.capacity.launch_shell import commands
from sojourn.errors import InputError


def values(text, folder=None):
    return {flag.name: flag.value for flag in read_launch(text, folder).flags}


def test_vllm_serve_in_all_its_spellings():
    text = """VLLM_USE_V1=1 CUDA_VISIBLE_DEVICES=0,1,2,3 \\
      vllm serve meta-llama/Llama-3.1-70B-Instruct \\
      -tp 4 --max-model-len 32k --max_num_seqs=128 --max-num-batched-tokens 16K \\
      --gpu-memory-utilization 0.92 --kv-cache-dtype fp8 --no-enable-prefix-caching \\
      --enable-expert-parallel --enforce-eager --block-size 32 --num-gpu-blocks-override 4096 \\
      --kv-cache-memory-bytes 12g --cpu-offload-gb 4 --swap-space 8 -q fp8 --dtype bfloat16 \\
      --host 0.0.0.0 --port 8000 --trust-remote-code --served-model-name llama -O3 \\
      --speculative-config '{"method": "eagle3", "model": "x/draft", "num_speculative_tokens": 3}'
    """
    launch = read_launch(text)
    found = values(text)
    assert launch.engine == "vllm"
    assert launch.model == "meta-llama/Llama-3.1-70B-Instruct"
    assert launch.gpus == 4
    assert launch.unknown == ()
    expected = {
        "tensor_parallel": 4,
        "max_model_len": 32_000,
        "max_num_seqs": 128,
        "max_num_batched_tokens": 16_384,
        "gpu_memory_utilization": 0.92,
        "kv_dtype": "fp8",
        "prefix_caching": False,
        "expert_parallel": True,
        "enforce_eager": True,
        "block_size": 32,
        "kv_blocks": 4096,
        "kv_cache_memory_bytes": 12 * 10**9,
        "cpu_offload_gb": 4.0,
        "quantization": "fp8",
        "dtype": "bfloat16",
        "draft_model": "x/draft",
        "draft_tokens": 3,
    }
    assert {name: found[name] for name in expected} == expected
    assert next(f for f in launch.flags if f.name == "max_num_seqs").where == "line 3"


@pytest.mark.parametrize(
    ("text", "engine", "expected"),
    [
        (
            "python3 -m vllm.entrypoints.openai.api_server --model m/x -pp 2 -dp 2 -dcp 2",
            "vllm",
            {"model": "m/x", "pipeline_parallel": 2, "data_parallel": 2,
             "decode_context_parallel": 2},
        ),
        (
            "python -m sglang.launch_server --model-path m/x --tp 8 --dp-size 8"
            " --enable-dp-attention --mem-fraction-static 0.85 --max-running-requests 512"
            " --chunked-prefill-size -1 --max-total-tokens 100000 --page-size 64"
            " --disable-radix-cache --ep-size 8 --moe-a2a-backend deepep --context-length 32768",
            "sglang",
            {"tensor_parallel": 8, "data_parallel": 8, "dp_attention": True,
             "gpu_memory_utilization": 0.85, "max_num_seqs": 512, "max_num_batched_tokens": -1,
             "kv_tokens": 100_000, "block_size": 64, "prefix_caching": False,
             "expert_parallel_size": 8, "max_model_len": 32_768},
        ),
        (
            "mpirun -n 8 trtllm-llmapi-launch trtllm-serve m/x --tp_size 8 --max_batch_size 256"
            " --max_num_tokens 4096 --kv_cache_free_gpu_memory_fraction 0.8 --backend pytorch",
            "trtllm",
            {"model": "m/x", "tensor_parallel": 8, "max_num_seqs": 256,
             "max_num_batched_tokens": 4096, "gpu_memory_utilization": 0.8},
        ),
        (
            "trtllm-build --checkpoint_dir ./ckpt --max_batch_size 64 --max_seq_len 8192",
            "trtllm",
            {"model": "./ckpt", "max_num_seqs": 64, "max_model_len": 8192},
        ),
        (
            "docker run --gpus all --ipc=host -v ~/.cache:/root/.cache -p 8000:8000"
            " --env VLLM_USE_FLASHINFER_SAMPLER=1 vllm/vllm-openai:v0.11.0 --model m/x -tp 2",
            "vllm",
            {"model": "m/x", "tensor_parallel": 2, "flashinfer_sampler": True},
        ),
        (
            "docker run lmsysorg/sglang:v0.5.6-cu126 python3 -m sglang.launch_server"
            " --model-path m/x --tp-size 2",
            "sglang",
            {"model": "m/x", "tensor_parallel": 2},
        ),
        (
            "sh -c 'export TP=4; exec vllm serve $MODEL --tensor-parallel-size ${TP:-1}'",
            "vllm",
            {"tensor_parallel": 4},
        ),
    ],
)  # fmt: skip
def test_commands(text, engine, expected):
    launch = read_launch(text)
    found = values(text)
    assert launch.engine == engine
    assert {name: found.get(name) for name in expected} == expected


def test_versions_come_from_image_tags():
    for image, version in (
        ("vllm/vllm-openai:v0.11.0", "0.11.0"),
        ("registry.local:5000/vllm/vllm-openai:v0.9.2-cu126", "0.9.2"),
        ("vllm/vllm-openai:latest", None),
        ("vllm/vllm-openai", None),
        ("ghcr.io/llm-d/llm-d-cuda:v0.3.1", None),  # llm-d's own version, not the engine's
    ):
        assert read_launch(f"docker run {image} --model m/x").version == version


def test_variables_are_put_in_and_substitutions_are_not_run(tmp_path):
    marker = tmp_path / "ran"
    text = f"""#!/bin/bash
MODEL=m/x            # set once
export TP=2
vllm serve "$MODEL" --tensor-parallel-size "$TP" --max-num-seqs $(touch {marker}; echo 8) \\
    --max-model-len ${{LEN:-4096}} --block-size $BLOCK
"""
    launch = read_launch(text)
    assert values(text) == {"model": "m/x", "tensor_parallel": 2, "max_model_len": 4096}
    assert [f.name for f in launch.unresolved] == ["max_num_seqs", "block_size"]
    assert not marker.exists()


def test_unknown_flags_are_listed_and_the_last_of_a_flag_wins():
    launch = read_launch("vllm serve m/x --frobnicate 3 --max-num-seqs 4 --max-num-seqs 8 --zap")
    assert [(f.spelled, f.value) for f in launch.unknown] == [
        ("--frobnicate", "3"),
        ("--zap", True),
    ]
    assert launch.number("max_num_seqs") == 8


def test_of_several_engines_the_rest_is_named():
    launch = read_launch(
        "vllm serve a/prefiller --max-num-seqs 4 &\nvllm serve b/x --max-num-seqs 8\n"
    )
    assert launch.model == "a/prefiller"
    assert "b/x" in launch.notes[0]
    assert len(read_all("vllm serve a\nvllm serve b")) == 2


def test_what_is_left_out_is_told(tmp_path):
    """A dash from a text processor makes no flag, a word no number of accelerators."""
    pasted = read_launch("vllm serve m/x \N{EM DASH}max-model-len 5 --max-num-seqs 4")
    assert pasted.model == "m/x"
    assert "no hyphen" in pasted.notes[0]
    path = tmp_path / "pod.yaml"
    path.write_text(
        "kind: Pod\nspec:\n  containers:\n  - image: vllm/vllm-openai:v0.9.0\n"
        "    args: [--model, m/x]\n    resources: {limits: {nvidia.com/gpu: many}}\n",
        encoding="utf-8",
    )
    told = read_launch(path)
    assert told.gpus is None
    assert "'many' is no whole number" in told.notes[0]


def bomb():
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 12)]
    return "\n".join([*lines, "services:", "  x: {image: 'vllm/vllm-openai', args: *a11}"])


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("a.sh", b"\x7fELF\x00\x01\x02", "binary"),
        ("a.sh", b"\xff\xfe\x00binary", "binary"),
        ("a.yaml", b"a: [1, 2\nb: {", "not YAML"),
        ("a.yaml", b"args: [{{ .Values.args }}]\n", "helm template"),
        ("a.yaml", b"x: 1\n", "no engine"),
        ("a.sh", b"vllm serve 'm/x --max-num-seqs 4\n", "never closed"),
        ("a.sh", b"vllm serve m --max-num-seqs many\n", "--max-num-seqs 'many' (line 1)"),
        ("a.sh", b"vllm serve m --max-num-seqs\n", "has no value"),
        ("a.sh", b"vllm serve m --max-num-seqs --port 1\n", "has no value"),
        ("a.sh", b"vllm serve m --speculative-config {broken\n", "JSON"),
        ("a.yaml", bomb().encode(), "values"),
        ("a.yaml", b"a: 1\n" * 1_000_000, "more than"),
        ("Dockerfile", b'FROM vllm/vllm-openai\nCMD ["--model, x]\n', "no JSON"),
        ("a.sh", b"vllm serve m --gpu-memory-utilization 90%\n", "90% is 0.9"),
        ("a.sh", b"vllm serve m --gpu-memory-utilization nan\n", "a share such as"),
        ("a.sh", b"vllm serve m --enforce-eager=maybe\n", "true or false"),
        ("a.sh", b"vllm serve m --max-num-seqs " + b"9" * 5_000, "up to 30 digits"),
        ("a.sh", b"A=xx\n" + b"A=$A$A\n" * 60 + b"vllm serve $A", "one another"),
        ("a.sh", b"A=(x)\n" + b'A+=("${A[@]}")\n' * 60 + b"vllm serve m", "one another"),
        ("a.sh", b"".join(b"A%d=1\nvllm\n" % i for i in range(2_000)), "variables"),
        ("a.yaml", b"- [1, 2, 3]\n" * 9_000, "values"),
        ("a.yaml", b"- " * 5_000, "nest"),
        ("a.sh", b"vllm serve " + b"x " * 300_000, "more than"),
        ("a.sh", b"echo hello\n", "no engine"),
        ("a.sh", b"", "no engine"),
    ],
)
def test_bad_input_is_explained(tmp_path, name, content, says):
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(InputError) as caught:
        read_launch(path)
    assert says in str(caught.value)
    assert str(path) in str(caught.value)


def test_a_path_that_is_not_there():
    with pytest.raises(InputError, match="does not exist"):
        read_launch("nowhere/serve.sh")


def test_numbers_as_vllm_reads_them():
    told = {"1k": 1_000, "1K": 1_024, "25.6k": 25_600, "2M": 2 * 2**20, "-1": -1, "8192": 8192}
    assert {text: human_integer(text) for text in told} == told
    for wrong in ("1.5K", "many", "", "1 k", "0x10", "1.0001"):
        with pytest.raises(ValueError, match="whole number"):
            human_integer(wrong)


WORDS = st.text(
    st.characters(codec="utf-8", exclude_characters="\x00", exclude_categories=("Cs",)), max_size=12
)


@settings(max_examples=200, deadline=None)
@given(st.lists(WORDS, min_size=1, max_size=6))
def test_words_are_those_of_a_shell(words):
    """Quoted by the standard library, read back as they were."""
    found = commands("run " + shlex.join(words).replace("\r\n", "\n"), "x")
    whole = [word.text for _, command in found for word in command]
    assert whole == ["run", *(word.replace("\r\n", "\n") for word in words)]


def flag_values(kind):
    return {
        "count": st.integers(1, 10**9),
        "share": st.floats(0.01, 0.99).map(lambda value: round(value, 4)),
        "gb": st.integers(1, 512).map(float),
        "word": st.from_regex(r"[a-z][a-z0-9_]{0,8}", fullmatch=True),
        "truth": st.booleans(),
        "json": st.just('{"a": "it\'s $HOME"}'),
        "on": st.none(),
        "off": st.none(),
    }[kind]


@st.composite
def lines(draw):
    """A command line of random flags, and what it must be read as."""
    engine = draw(st.sampled_from(sorted(TABLES)))
    starts = {
        "vllm": ["vllm", "serve", "m/x"],
        "sglang": ["python3", "-m", "sglang.launch_server", "--model-path", "m/x"],
        "trtllm": ["trtllm-serve", "m/x"],
    }
    words, expected = list(starts[engine]), {"model": "m/x"}
    skipped = ("options_file", "speculative", "draft_model", "draft_tokens", "model")
    usable = sorted(k for k, (name, _) in TABLES[engine].items() if name not in skipped)
    for spelled in draw(st.lists(st.sampled_from(usable), max_size=12)):
        name, kind = TABLES[engine][spelled]
        value = draw(flag_values(kind))
        if value is None:
            words.append(spelled)
            expected[name] = kind == "on"
            continue
        text = json.dumps(value) if isinstance(value, bool) else str(value)
        words += draw(st.sampled_from([[spelled, text], [f"{spelled}={text}"]]))
        expected[name] = value
    return engine, words, expected


@settings(max_examples=300, deadline=None)
@given(lines(), st.sampled_from([" ", " \\\n  "]))
def test_a_rendered_command_is_read_back(line, between):
    engine, words, expected = line
    text = between.join(shlex.quote(word) for word in words)
    launch = read_launch(text + "\n")
    assert launch.engine == engine
    assert launch.unknown == launch.unresolved == ()
    assert {name: launch.flag(name).value for name in expected} == expected


@settings(max_examples=200, deadline=None)
@given(st.text(max_size=200))
def test_any_text_is_read_or_refused(text):
    """No other error than the one that names the place."""
    try:
        found = read_all(f"vllm serve m {text}\n")
    except InputError:
        return
    assert found


@settings(max_examples=100, deadline=None)
@given(st.text(max_size=300))
def test_any_yaml_is_read_or_refused(text):
    try:
        read_all(f"apiVersion: v1\nkind: Pod\nmetadata: {{name: x}}\nspec:\n  {text}\n")
    except InputError:
        return


def test_every_table_names_kinds_that_are_read():
    kinds = {"count", "share", "gb", "word", "json", "on", "off", "truth"}
    for table in (VLLM, SGLANG, TRTLLM):
        assert {kind for _, kind in table.values()} <= kinds


def test_scripts_with_arrays_and_unquoted_options():
    text = """set -e
TP=${TP:-8}
OPTS="--cuda-graph-max-bs 128 --page-size 64"
ARGS=(
    --tp-size $TP        # as many as there are
    --model-path "/models/a b"
)
if [ "$X" = 1 ]; then ARGS+=(--disable-radix-cache); fi
python3 -m sglang.launch_server "${ARGS[@]}" $OPTS 2>&1 | tee log.txt
"""
    assert values(text) == {
        "tensor_parallel": 8,
        "model": "/models/a b",
        "prefix_caching": False,
        "cuda_graph_max_bs": 128,
        "block_size": 64,
    }
    assert read_launch(text).unknown == ()


def test_accelerators_of_a_container():
    image = "lmsysorg/sglang python3 -m sglang.launch_server --model-path m --tp 16"
    assert read_launch(f"docker run --gpus '\"device=0,1,2\"' {image}").gpus == 3
    assert read_launch(f"docker run --gpus 8 {image} --nnodes 2 --node-rank 0").gpus == 16
    assert read_launch(f"docker run --gpus all {image}").gpus is None
