"""Makes the engine's model folder: config.json of `model/`, and a tokenizer of one token a word."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from app.task import FIRST_WORD, VOCABULARY
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

CONFIG = Path(__file__).resolve().parent / "model" / "config.json"


def make_model(folder: Path) -> Path:
    """Write the folder; the weights are made up by the engine (`--load-format dummy`)."""
    vocabulary = {"<unk>": 0, "<s>": 1, "</s>": 2}
    vocabulary |= {f"w{number}": number for number in range(FIRST_WORD, VOCABULARY)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    wrapper: Any = PreTrainedTokenizerFast
    fast = wrapper(tokenizer_object=tokenizer, unk_token="<unk>", bos_token="<s>", eos_token="</s>")
    fast.save_pretrained(folder)
    shutil.copy(CONFIG, folder / "config.json")
    return folder
