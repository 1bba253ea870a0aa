"""A tiny random Llama with a tokenizer and a chat template, as a folder that can be served."""

import json
from pathlib import Path

from tests.support.models import Checkpoint
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

_SPECIAL = ["<pad>", "<s>", "</s>"]
TEMPLATE = "{% for m in messages %}{{ m['role'] }} {{ m['content'] }} {% endfor %}"


def make_tiny_folder(folder: Path, *, vocab_size: int = 199, max_model_len: int = 256) -> Path:
    """Write the folder; words w3, w4, … stand for the ids 3, 4, …."""
    Checkpoint.make(folder, "llama", vocab_size=vocab_size, max_position_embeddings=max_model_len)
    words = [*_SPECIAL, *(f"w{i}" for i in range(len(_SPECIAL), vocab_size))]
    tokenizer = Tokenizer(
        models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="<pad>")
    )
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.decoder = decoders.Fuse()
    tokenizer.add_special_tokens(_SPECIAL)
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "chat_template": TEMPLATE,
        "bos_token": "<s>",
        "eos_token": "</s>",
        "pad_token": "<pad>",
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings), "utf-8")
    return folder
