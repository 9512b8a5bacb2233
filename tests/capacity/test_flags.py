"""Every value of `deployment`, from the best source there is, and which that was."""

from __future__ import annotations

from pathlib import Path

import pytest

from sojourn.capacity import fleet
from sojourn.capacity.flags import findings, flag, resolve, with_launch
from sojourn.capacity.records import Fleet
from sojourn.config import Config
from sojourn.errors import ConfigError, InputError, UsageError
from sojourn.interval import Provenance
from sojourn.trace.tables import Tables, from_rows

LAUNCH = (
    "docker run --gpus all vllm/vllm-openai:v0.11.0 --model meta-llama/Llama-3.1-70B-Instruct"
    " -tp 4 --max-num-seqs 128 --quantization fp8 --kv-cache-dtype fp8 --max-model-len 16384"
)


def configured(**deployment):
    return Config.from_dict({"deployment": deployment})


def resolved(config, **meta):
    deployment, table = resolve(config, Tables(meta=meta))
    return deployment, {row.name: row for row in table}


def test_each_value_remembers_its_source():
    config = configured(launch=LAUNCH, accelerator="H100", max_num_seqs=64)
    deployment, table = resolved(config, num_gpu_blocks="5000", max_num_seqs="99")
    assert deployment.max_num_seqs == 64
    assert table["max_num_seqs"].source == "sojourn.yaml"
    assert deployment.tensor_parallel == 4
    assert table["tensor_parallel"].source == "launch: -tp (line 1)"
    assert deployment.kv_blocks == 5000
    assert table["kv_blocks"].source == "printed by the engine"
    assert deployment.max_num_batched_tokens == 8192
    assert table["max_num_batched_tokens"].source.startswith("default of vLLM 0.11.0, server")
    assert table["max_num_batched_tokens"].provenance is Provenance.CATALOGUE
    assert deployment.engine == "vllm 0.11.0"
    assert (deployment.weight_dtype, deployment.kv_dtype) == ("fp8", "fp8")
    assert deployment.prefix_caching is True
    assert table["pipeline_parallel"].source == "sojourn's default"
    assert table["pipeline_parallel"].provenance is Provenance.ASSUMED
    assert set(table) == set(type(deployment).model_fields) - {"launch"}
    for row in table.values():
        assert getattr(deployment, row.name) == row.value


def test_flag_reads_the_launch_too():
    config = configured(launch=LAUNCH)
    assert flag("max_num_seqs", Tables(meta={"max_num_seqs": "7"}), config)[0] == 128
    assert flag("block_size", Tables(), config) == (16, Provenance.ASSUMED)
    assert flag("kv_blocks", Tables(meta={"num_gpu_blocks": "12.0"}), config)[0] == 12


def test_nothing_changes_without_a_launch():
    deployment, table = resolved(Config())
    assert deployment == Config().deployment
    assert {row.provenance for row in table.values()} == {Provenance.ASSUMED}


def test_replicas_named_in_the_telemetry():
    rows = [
        {"call_id": f"{i}", "request_id": f"{i}", "arrival_s": i * 1.0, "replica": f"pod-{i % 3}"}
        for i in range(9)
    ]
    tables = Tables(calls=from_rows("calls", rows))
    deployment, _ = resolve(Config(), tables)
    assert deployment.replicas == 3
    assert resolve(configured(replicas=2), tables)[0].replicas == 2


@pytest.mark.parametrize(
    ("launch", "expected"),
    [
        (
            "python -m sglang.launch_server --model-path deepseek-ai/DeepSeek-V3 --tp 16 --dp 8"
            " --enable-dp-attention --ep-size 16 --chunked-prefill-size 65536"
            " --max-running-requests 1024",
            {
                "tensor_parallel": 2,
                "data_parallel": 8,
                "expert_parallel": True,
                "max_num_batched_tokens": 8192,
                "max_num_seqs": 128,
            },
        ),
        (
            "python -m sglang.launch_server --model-path m/x --tp 2 --dp 4",
            {"tensor_parallel": 2, "data_parallel": 4},
        ),
        (
            "trtllm-serve m/x --tp_size 8 --enable_attention_dp --ep_size 8",
            {"tensor_parallel": 1, "data_parallel": 8, "expert_parallel": True},
        ),
        (
            "python -m sglang.launch_server --model-path m/x --max-total-tokens 64000",
            {"kv_blocks": 64_000, "block_size": 1, "prefix_caching": True},
        ),
        (
            "python -m sglang.launch_server --model-path m/x --page-size 64"
            " --max-total-tokens 64000 --chunked-prefill-size -1",
            {"kv_blocks": 1_000, "block_size": 64, "max_num_batched_tokens": 16_384},
        ),
        (
            "vllm serve m/x -q awq --dtype half --kv-cache-dtype fp8_e5m2 --max-model-len -1",
            {"weight_dtype": "int4", "kv_dtype": "fp8", "max_model_len": None},
        ),
    ],
)
def test_flags_in_the_words_of_the_deployment(launch, expected):
    deployment, _ = resolved(configured(launch=launch))
    assert {name: getattr(deployment, name) for name in expected} == expected


def test_a_model_the_catalogue_lacks_does_not_stop_a_fit():
    deployment, _ = resolved(configured(launch="vllm serve acme/secret-model"))
    assert deployment.model is None
    said = [str(f) for f in findings(configured(launch="vllm serve acme/secret-model"), Tables())]
    assert any("acme/secret-model" in text and "config.json" in text for text in said)


@pytest.mark.parametrize(
    ("deployment", "says"),
    [
        ({"launch": "vllm serve m --gpu-memory-utilization 90"}, "Write 0.9"),
        ({"launch": "vllm serve m --max-num-seqs 512 --max-num-batched-tokens 256"}, "refuses"),
        (
            {"launch": "vllm serve m --no-enable-chunked-prefill --max-model-len 16384"
             " --max-num-batched-tokens 2048"}, "without chunked prefill",
        ),
        ({"launch": "vllm serve meta-llama/Llama-3.1-8B-Instruct -tp 3"}, "does not divide"),
        ({"launch": "CUDA_VISIBLE_DEVICES=0,1 vllm serve m -tp 4"}, "needs 4 accelerators"),
        ({"launch": "vllm serve m --block-size 17"}, "17"),
        ({"launch": "vllm serve m --kv-cache-memory-bytes 40"}, "write 40g"),
        ({"launch": "vllm serve m --speculative-config '{\"method\": \"ngram\"}'"},
         "num_speculative_tokens"),
        ({"launch": "vllm serve openai/gpt-oss-20b --quantization awq"}, "checkpoint is mxfp4"),
        ({"launch": "vllm serve m -tp 0"}, "tensor_parallel"),
        ({"usd_per_replica_hour": 20_000.0}, "per month"),
        ({"max_model_len": 32}, "32,000"),
    ],
)  # fmt: skip
def test_no_engine_would_start_so(deployment, says):
    with pytest.raises(UsageError) as caught:
        resolve(configured(**deployment), Tables())
    assert says in str(caught.value)


@pytest.mark.parametrize(
    ("deployment", "says"),
    [
        ({"model": "Qwen3-8B", "launch": "vllm serve Qwen/Qwen3-32B"}, "says Qwen3-8B"),
        ({"launch": "vllm serve Qwen/Qwen3-32B --enable-expert-parallel -tp 2"}, "no routed"),
        ({"launch": "vllm serve Qwen/Qwen3-32B -tp 16"}, "held 2 times"),
        ({"launch": "vllm serve deepseek-ai/DeepSeek-V3 -tp 8"}, "holds all of it"),
        ({"launch": "vllm serve Qwen/Qwen3-8B --kv-cache-dtype fp8", "accelerator": "A100"},
         "no fp8 units"),
        ({"launch": "vllm serve Qwen/Qwen3-8B --max-model-len 131072"}, "40960 positions"),
        ({"launch": "vllm serve m --num-gpu-blocks-override 64 --max-num-seqs 128"}, "one block"),
        ({"launch": "vllm serve m --frobnicate 2"}, "--frobnicate"),
        ({"launch": "vllm serve m --max-num-seqs $N"}, "$N"),
        ({"launch": "CUDA_VISIBLE_DEVICES=0,1,2,3 vllm serve m -tp 2"}, "2 idle"),
        ({"launch": "vllm serve m --swap-space 16"}, "no effect"),
        ({"launch": "vllm serve m --kv-cache-memory-bytes 40g --gpu-memory-utilization 0.9"},
         "no effect"),
    ],
)  # fmt: skip
def test_what_is_shown_beside_the_answer(deployment, says):
    config = configured(**deployment)
    found = findings(config, Tables())
    assert any(says in str(finding) for finding in found), [str(f) for f in found]
    assert not any(finding.error for finding in found)
    resolve(config, Tables())


def test_a_launch_of_another_engine_than_recorded_is_said():
    config = configured(launch="vllm serve m --max-num-seqs 128")
    said = [str(f) for f in findings(config, Tables(meta={"max_num_seqs": "64"}))]
    assert any("printed 64" in text for text in said)


def test_a_plain_command_has_nothing_to_say():
    config = configured(launch=LAUNCH, accelerator="H100")
    assert findings(config, Tables()) == ()


@pytest.mark.parametrize("engine", ["", "tgi 3.1", "vlm"])
def test_an_unknown_engine_is_said(engine):
    said = [str(finding) for finding in findings(configured(engine=engine), Tables())]
    assert any("engine" in text and "not known" in text and "sglang" in text for text in said)


def test_relative_files_lie_beside_sojourn_yaml(tmp_path, monkeypatch):
    (tmp_path / "fleet").mkdir()
    (tmp_path / "fleet" / "serve.sh").write_text("vllm serve m/x --max-num-seqs 5\n")
    file = tmp_path / "fleet" / "sojourn.yaml"
    file.write_text("deployment: {launch: serve.sh}\n", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    config = Config.load(file)
    assert Path(config.deployment.launch).is_absolute() or config.deployment.launch.startswith("f")
    assert resolve(config, Tables())[0].max_num_seqs == 5
    merged = with_launch(config)
    assert merged.deployment.max_num_seqs == 5
    where = {row.name: row.source for row in resolve(merged, Tables())[1]}
    assert where["max_num_seqs"].startswith("launch: ")
    with pytest.raises(UsageError, match="max_num_seqs"):
        with_launch(configured(launch="vllm serve m/x --max-num-seqs 9999999999999999"))
    command = " ".join(["vllm serve m/x --max-num-seqs 6", *["--zap"] * 100])
    file.write_text(f"deployment: {{launch: '{command}'}}\n", encoding="utf-8")
    assert resolve(Config.load(file), Tables())[0].max_num_seqs == 6


def test_a_launch_that_cannot_be_read_names_the_place():
    with pytest.raises(InputError, match="does not exist"):
        resolve(configured(launch="gone.sh"), Tables())
    with pytest.raises(ConfigError):
        configured(launch=3)


def test_defaults_by_engine_and_card():
    for engine, card, budget, sequences in (
        ("vllm 0.11.0", "H100", 8192, 1024),
        ("vllm 0.11.0", "A100", 2048, 256),
        ("vllm 0.11.0", "L40S", 2048, 256),
        ("vllm 0.32.0", "B200", 16_384, 1024),
        ("sglang 0.5.6", "H100", 8192, 2048),
        ("sglang 0.5.6", "L4", 2048, 2048),
        ("trtllm 1.0.0", "H100", 8192, 2048),
    ):
        deployment, _ = resolved(configured(engine=engine, accelerator=card))
        assert deployment.max_num_batched_tokens == budget, engine
        assert deployment.max_num_seqs == sequences, engine
    assert resolved(configured(engine="vllm 0.6.3"))[0].prefix_caching is False
    assert resolved(configured(engine="vllm 0.32.0"))[0].gpu_memory_utilization == 0.92


def test_the_fleet_is_built_from_the_launch():
    """gpt-oss: the engine's blocks are of groups; the simulator's are of whole contexts."""
    rows = [
        {
            "call_id": f"{i}",
            "request_id": f"{i}",
            "arrival_s": i * 0.1,
            "input_tokens": 1500,
            "output_tokens": 300,
        }
        for i in range(50)
    ]
    tables = Tables(calls=from_rows("calls", rows))
    launch = "docker run vllm/vllm-openai:v0.11.0 --model openai/gpt-oss-20b --max-num-seqs 96"
    config = configured(launch=f"{launch} --num-gpu-blocks-override 10000", accelerator="H100")
    built = fleet.build(tables, config)
    assert isinstance(built, Fleet)
    assert built.engine.max_num_seqs == 96
    assert built.engine.max_num_batched_tokens == 8192
    assert 5_000 < built.engine.kv_blocks < 10_000
    assert built.engine.kv_blocks_provenance is Provenance.MEASURED
    assert built.engine.memory.concurrency_at_profile > 50
