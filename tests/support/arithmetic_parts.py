"""What the fake plugin's specs name, but for its executor. No torch."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pegboard.api.models import ConfigReader, ModelDescription
from pegboard.api.platforms import Detection, MemoryInfo, Platform
from pegboard.api.plugin import ComponentContext
from pegboard.api.tokenizers import Tokenizer

#: Ids 0 to 255 are bytes; these are special.
BOS, EOS = 256, 257
VOCAB_SIZE = 258


def detect() -> Detection:
    return Detection(available=True, reason="for tests", num_devices=1)


def no_loader(context: ComponentContext) -> Any:
    raise AssertionError("nothing loads weights here")


no_model = no_loader


class FakePlatform(Platform):
    def validate(self, config: Any) -> list[str]:
        return []

    def supported_dtypes(self) -> tuple[str, ...]:
        return ("float32", "bfloat16")

    def open_device(self, local_rank: int, local_world_size: int) -> Any:
        raise AssertionError("no device here")

    def memory_info(self) -> MemoryInfo:
        return MemoryInfo(total_bytes=1 << 30, free_bytes=1 << 30, used_bytes=0)

    def num_threads(self) -> int:
        return 1


class FakeReader(ConfigReader):
    """Reads a file "x.fake": a model of 4 layers and 1024 positions."""

    def recognises(self, path: str) -> str | None:
        return None if Path(path).suffix == ".fake" else "not a .fake file"

    def read(self, path: str) -> ModelDescription:
        return ModelDescription(
            path=path,
            format="fake",
            architectures=("FakeForCausalLM",),
            config={
                "hidden_size": 64,
                "num_hidden_layers": 4,
                "num_attention_heads": 4,
                "num_key_value_heads": 2,
                "intermediate_size": 96,
            },
            dtype="float32",
            vocab_size=VOCAB_SIZE,
            max_model_len=1024,
            loader="none",
            tokenizer="bytes",
            generation={"temperature": 0.5, "max_new_tokens": 9, "do_sample": True},
            eos_token_ids=(EOS,),
            quantization={"quant_method": "awq"} if "awq" in Path(path).name else None,
        )


class ByteTokenizer(Tokenizer):
    """One id a byte of UTF-8, so that most characters take several."""

    def __init__(self, context: ComponentContext, description: ModelDescription) -> None:
        super().__init__(context, description)

    @property
    def vocab_size(self) -> int:
        return VOCAB_SIZE

    @property
    def special_ids(self) -> frozenset[int]:
        return frozenset((BOS, EOS))

    @property
    def special_tokens(self) -> dict[str, str]:
        return {"bos_token": "<s>", "eos_token": "</s>"}

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        return list(text.encode())

    def decode(
        self,
        token_ids: Sequence[int],
        *,
        skip_special_tokens: bool = True,
        spaces_between_special_tokens: bool = True,
    ) -> str:
        special = {BOS: b"<s>", EOS: b"</s>"}
        parts = [
            special.get(t, b"") if t > 255 else bytes((t,))
            for t in token_ids
            if t < 256 or not skip_special_tokens
        ]
        return b"".join(parts).decode(errors="replace")

    def token(self, token_id: int) -> str | None:
        return chr(token_id) if token_id < 256 else None

    def token_id(self, token: str) -> int | None:
        return None

    def max_chars_per_token(self) -> int:
        return 4
