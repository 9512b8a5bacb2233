"""Architectures (model_type of a config.json) whose layers are counted as their code has them."""

from __future__ import annotations

from typing import Final

_DENSE: Final = frozenset(
    {"llama", "mistral", "ministral", "ministral3", "qwen2", "qwen3", "qwen2_vl", "qwen2_vl_text"}
    | {"qwen2_5_vl", "qwen2_5_vl_text", "qwen3_vl", "qwen3_vl_text", "qwen3_5", "qwen3_5_text"}
    | {"phi", "phi3", "phi3_v", "phi4mm", "gemma", "gemma2", "gemma3", "gemma3_text", "gemma4"}
    | {"gemma4_text", "cohere", "cohere2", "granite", "seed_oss", "exaone", "exaone4", "olmo"}
    | {"olmo2", "olmo3", "starcoder2", "internlm2", "internlm3", "baichuan", "aquila", "yi"}
    | {"stablelm", "glm", "glm4", "glm4v_text", "chatglm", "smollm3", "mimo", "ernie4_5"}
    | {"hunyuan_v1_dense", "nemotron", "nemotron-nas", "apertus", "arcee", "deci", "decilm"}
    | {"gpt2", "gpt_bigcode", "opt", "bloom", "falcon", "gpt_neox", "gptj", "mpt", "codegen"}
    | {"mllama_text_model", "xverse", "orion", "persimmon", "solar", "step3_text", "minicpm"}
)
_ROUTED: Final = frozenset(
    {"mixtral", "qwen2_moe", "qwen3_moe", "qwen3_vl_moe", "qwen3_vl_moe_text", "qwen3_next"}
    | {"qwen3_5_moe", "qwen3_5_moe_text", "qwen3_omni_moe_text", "phimoe", "gpt_oss", "llama4"}
    | {"llama4_text", "deepseek", "deepseek_v2", "deepseek_v3", "deepseek_v32", "deepseek_v4"}
    | {"deepseek_ref"}
    | {"kimi_k2", "glm4_moe", "glm4_moe_lite", "glm4v_moe_text", "glm_moe_dsa", "minimax_m2"}
    | {"minimax_m3", "minimax_m3_vl", "dbrx", "grok-1", "hunyuan_v1_moe", "ernie4_5_moe"}
    | {"olmoe", "granitemoe", "step3p5", "step3p7", "mimo_v2_flash", "bailing_moe"}
    | {"bailing_moe_v2", "dots1", "deepseek_vl_v2", "mistral_large_3", "phi3_v"}
)
_HYBRID: Final = frozenset(
    {"jamba", "bamba", "nemotron_h", "granitemoehybrid", "kimi_linear", "lfm2", "lfm2_moe"}
    | {"minimax_m1", "minimax_text_01", "minimax"}
)
KNOWN: Final = _DENSE | _ROUTED | _HYBRID
"""Every architecture; another one is refused, since its layers would be guessed."""
