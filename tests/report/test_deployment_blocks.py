"""The table of values in force, and findings beside it."""

from __future__ import annotations

from sojourn.config import Config
from sojourn.report import deployment_blocks
from sojourn.report.document import TableBlock, Text
from sojourn.trace.tables import Tables


def test_each_value_stands_with_its_source():
    launch = "vllm serve meta-llama/Llama-3.1-8B-Instruct --max-num-seqs 64 --frobnicate 1"
    config = Config.from_dict({"deployment": {"launch": launch, "block_size": 32}})
    told = deployment_blocks.blocks(Tables(meta={"num_gpu_blocks": "700"}), config)
    table = next(block for block in told if isinstance(block, TableBlock))
    rows = {row[0]: row[1:] for row in table.rows}
    assert rows["max_num_seqs"] == ("64", "launch: --max-num-seqs (line 1)")
    assert rows["block_size"] == ("32", "sojourn.yaml")
    assert rows["kv_blocks"] == ("700", "printed by the engine")
    assert rows["usd_per_replica_hour"] == ("–", "sojourn's default")
    texts = [block.text for block in told if isinstance(block, Text)]
    assert any("--frobnicate" in text for text in texts)


def test_nothing_is_said_of_an_unnamed_engine():
    assert deployment_blocks.blocks(Tables(), Config()) == []
