"""Launch texts in the files people have: manifests, charts, scripts, images."""

from __future__ import annotations

import pytest

from sojourn.capacity.launch import read_launch


def values(text, folder=None):
    return {flag.name: flag.value for flag in read_launch(text, folder).flags}


MANIFEST = """
apiVersion: v1
kind: Service
metadata: {name: front}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: llama}
spec:
  replicas: 3
  template:
    spec:
      nodeSelector:
        nvidia.com/gpu.product: NVIDIA-H100-80GB-HBM3
      initContainers:
        - name: wait
          image: busybox
          command: [sh, -c, "sleep 1"]
      containers:
        - name: vllm
          image: vllm/vllm-openai:v0.15.1
          command: ["vllm", "serve"]
          args:
            - $(MODEL)
            - --tensor-parallel-size=$(TP)
            - --max-num-seqs
            - "64"
          env:
            - {name: MODEL, value: meta-llama/Llama-3.1-70B-Instruct}
            - {name: TP, value: "4"}
            - name: HF_TOKEN
              valueFrom: {secretKeyRef: {name: hf, key: token}}
          resources:
            limits: {nvidia.com/gpu: "4"}
"""


def test_a_kubernetes_deployment(tmp_path):
    path = tmp_path / "llama.yaml"
    path.write_text(MANIFEST, encoding="utf-8")
    launch = read_launch(path)
    assert (launch.name, launch.replicas, launch.gpus) == ("Deployment/llama", 3, 4)
    assert (launch.engine, launch.version) == ("vllm", "0.15.1")
    assert launch.accelerator == "NVIDIA-H100-80GB-HBM3"
    assert launch.model == "meta-llama/Llama-3.1-70B-Instruct"
    assert launch.number("tensor_parallel") == 4
    assert launch.number("max_num_seqs") == 64
    place = next(f.where for f in launch.flags if f.name == "tensor_parallel")
    assert place == "spec.template.spec.containers[0].args[1]"
    assert read_launch(MANIFEST) == launch.model_copy(update={"where": "launch"})


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (  # a shell inside a pod
            """
kind: Pod
metadata: {name: a}
spec:
  containers:
    - image: lmsysorg/sglang:v0.5.6
      command: ["/bin/bash", "-c"]
      args:
        - |
          python3 -m sglang.launch_server --model-path m/x \\
            --tp $TP --mem-fraction-static 0.9
      env: [{name: TP, value: "2"}]
      resources: {requests: {nvidia.com/gpu: 2}}
""",
            {"engine": "sglang", "gpus": 2, "tensor_parallel": 2},
        ),
        (  # pods of one group
            """
kind: LeaderWorkerSet
metadata: {name: lws}
spec:
  replicas: 2
  leaderWorkerTemplate:
    size: 2
    leaderTemplate:
      spec:
        containers:
          - image: vllm/vllm-openai:v0.11.0
            args: [--model, m/x, -tp, "8", -pp, "2"]
            resources: {limits: {nvidia.com/gpu: 8}}
""",
            {"replicas": 2, "gpus": 16, "tensor_parallel": 8, "pipeline_parallel": 2},
        ),
        (  # KServe
            """
kind: InferenceService
metadata: {name: k}
spec:
  predictor:
    minReplicas: 2
    model:
      modelFormat: {name: huggingface}
      args: [--model_name=llama, --model_id=m/x, --max-model-len=8192]
      resources: {limits: {nvidia.com/gpu: "1"}}
""",
            {"engine": "vllm", "replicas": 2, "gpus": 1, "max_model_len": 8192},
        ),
        (  # llm-d
            """
modelArtifacts: {uri: "hf://m/x"}
decode:
  replicas: 2
  parallelism: {tensor: 4, data: 1}
  containers:
    - name: vllm
      image: ghcr.io/llm-d/llm-d-cuda:v0.3.1
      modelCommand: vllmServe
      args: ["--max-num-seqs", "32"]
      resources: {limits: {nvidia.com/gpu: "4"}}
prefill:
  replicas: 1
  containers:
    - name: vllm
      image: ghcr.io/llm-d/llm-d-cuda:v0.3.1
      args: ["--max-num-seqs", "8"]
""",
            {"name": "decode", "replicas": 2, "gpus": 4, "tensor_parallel": 4, "max_num_seqs": 32},
        ),
        (  # vLLM production stack
            """
servingEngineSpec:
  modelSpec:
    - name: llama
      repository: vllm/vllm-openai
      modelURL: m/x
      replicaCount: 2
      requestGPU: 2
      vllmConfig: {tensorParallelSize: 2, maxModelLen: 4096, enablePrefixCaching: false,
                   extraArgs: ["--max-num-seqs", "16"]}
""",
            {"model": "m/x", "replicas": 2, "gpus": 2, "tensor_parallel": 2,
             "prefix_caching": False, "max_num_seqs": 16},
        ),
        (  # compose
            """
services:
  web: {image: nginx}
  llm:
    image: vllm/vllm-openai:v0.10.2
    command: --model m/x --tensor-parallel-size 2 --max-num-seqs 16
    environment: {VLLM_USE_FLASHINFER_SAMPLER: "1"}
    deploy:
      replicas: 2
      resources: {reservations: {devices: [{driver: nvidia, count: 2, capabilities: [gpu]}]}}
""",
            {"name": "llm", "version": "0.10.2", "replicas": 2, "gpus": 2, "model": "m/x",
             "tensor_parallel": 2},
        ),
        (  # Dockerfile
            """FROM vllm/vllm-openai:v0.11.0
ENV MODEL=m/x
CMD ["--model", "m/x", \\
     "--max-num-seqs", "12"]
""",
            {"version": "0.11.0", "model": "m/x", "max_num_seqs": 12},
        ),
        (
            """FROM nvcr.io/nvidia/pytorch:25.01-py3
ENV TP 4
ENTRYPOINT vllm serve m/x --tensor-parallel-size $TP
""",
            {"engine": "vllm", "tensor_parallel": 4},
        ),
    ],
)  # fmt: skip
def test_files_people_have(text, expected):
    launch = read_launch(text)
    flags = {flag.name: flag.value for flag in launch.flags}
    found = {n: flags[n] if n in flags else getattr(launch, n, None) for n in expected}
    assert found == expected


def test_options_beside_the_file(tmp_path):
    (tmp_path / "extra.yaml").write_text(
        "kv_cache_config: {free_gpu_memory_fraction: 0.75, enable_block_reuse: false, dtype: fp8}\n"
        "enable_attention_dp: true\nmax_batch_size: 96\n",
        encoding="utf-8",
    )
    script = tmp_path / "serve.sh"
    script.write_text(
        "trtllm-serve m/x --tp_size 8 --extra_llm_api_options extra.yaml\n", encoding="utf-8"
    )
    found = values(script)
    assert found["gpu_memory_utilization"] == 0.75
    assert found["prefix_caching"] is False
    assert found["kv_dtype"] == "fp8"
    assert found["dp_attention"] is True
    assert found["max_num_seqs"] == 96
    assert "not here" in " ".join(read_launch("trtllm-serve m --config gone.yaml").notes)


def test_here_documents_are_no_commands():
    script = f"""cat <<'EOF' > pod.yaml
{MANIFEST}
# it's written, not run
EOF
kubectl apply -f pod.yaml
"""
    assert read_launch(script).name == "Deployment/llama"
    after = "cat <<EOF\nit's text\nEOF\nvllm serve m/x --max-num-seqs 3\n"
    assert values(after)["max_num_seqs"] == 3
