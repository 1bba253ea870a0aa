import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import tokenizers
from tests.support.texts import TEXTS
from tokenizers import AddedToken, decoders, models, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

from pegboard.api.errors import InvalidRequest, ModelError
from pegboard.api.models import ModelDescription
from pegboard.api.plugin import ComponentContext
from pegboard.builtin.hf_tokenizer import HfTokenizer


def write(folder: Path, **side_files: Any) -> Path:
    """Train a small byte-level tokenizer on the spot, with two special tokens."""
    backend = tokenizers.Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=["<s>", "</s>"],
        show_progress=False,
    )
    backend.train_from_iterator(TEXTS, trainer)
    backend.add_tokens([AddedToken("<plain>", special=False)])
    backend.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", backend.token_to_id("<s>"))]
    )
    backend.save(str(folder / "tokenizer.json"))
    for name, value in side_files.items():
        text = value if isinstance(value, str) else json.dumps(value)
        (folder / f"{name}.json").write_text(text)
    return folder


def description(folder: Path, vocab_size: int = 500) -> ModelDescription:
    return ModelDescription(
        path=str(folder),
        format="hf",
        architectures=("A",),
        config={},
        dtype="float32",
        vocab_size=vocab_size,
        max_model_len=8,
        loader="safetensors",
        tokenizer="hf",
    )


def tokenizer(folder: Path, context: ComponentContext | None = None) -> HfTokenizer:
    return HfTokenizer(context or ComponentContext(plugin="builtin"), description(folder))


CONFIG = {"bos_token": {"content": "<s>", "lstrip": False}, "eos_token": "</s>"}


def test_ids_and_text_equal_transformers(tmp_path: Path) -> None:
    ours = tokenizer(write(tmp_path, tokenizer_config=CONFIG))
    theirs = PreTrainedTokenizerFast(
        tokenizer_file=str(tmp_path / "tokenizer.json"), bos_token="<s>", eos_token="</s>"
    )
    for text in [*TEXTS, "<s>a</s><plain>b"]:
        for add in (True, False):
            ids = theirs(text, add_special_tokens=add)["input_ids"]
            assert ours.encode(text, add_special_tokens=add) == ids
            for skip in (True, False):
                expected = theirs.decode(
                    ids, skip_special_tokens=skip, clean_up_tokenization_spaces=False
                )
                assert ours.decode(ids, skip_special_tokens=skip) == expected


def test_roles_come_from_the_side_files(tmp_path: Path) -> None:
    special = {"bos_token": "<other>", "pad_token": "<pad>", "additional_special_tokens": ["x"]}
    ours = tokenizer(write(tmp_path, tokenizer_config=CONFIG, special_tokens_map=special))
    assert ours.special_tokens == {
        "bos_token": "<s>",
        "eos_token": "</s>",
        "pad_token": "<pad>",
    }
    assert ours.special_ids == {ours.token_id("<s>"), ours.token_id("</s>")}


def test_token_that_the_config_makes_special_is_skipped(tmp_path: Path) -> None:
    config = {**CONFIG, "pad_token": "<plain>"}
    ours = tokenizer(write(tmp_path, tokenizer_config=config))
    assert ours.decode(ours.encode("a<plain>", add_special_tokens=False)) == "a"


def test_path_of_the_configuration_outranks_the_checkpoints(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    folder = write(tmp_path / "other")
    for path in (folder, folder / "tokenizer.json"):
        config = SimpleNamespace(model=SimpleNamespace(tokenizer_path=str(path)))
        ours = HfTokenizer(ComponentContext(plugin="builtin", config=config), description(tmp_path))
        assert ours.encode("a")


def test_incomplete_bytes_become_the_replacement_character(tmp_path: Path) -> None:
    ours = tokenizer(write(tmp_path))
    first_byte = ours.token_id(pre_tokenizers.ByteLevel().pre_tokenize_str("\U0010fffd")[0][0][1])
    assert first_byte is not None
    assert ours.decode([first_byte]) == "\ufffd"


def test_padding_ids_of_the_model_are_legal_and_stand_for_nothing(tmp_path: Path) -> None:
    ours = tokenizer(write(tmp_path))
    assert ours.decode([499]) == ""
    assert ours.token(499) is None


@pytest.mark.parametrize("token_id", [-1, 500, 2**40])
def test_id_outside_the_vocabulary_is_the_requests_fault(tmp_path: Path, token_id: int) -> None:
    ours = tokenizer(write(tmp_path))
    with pytest.raises(InvalidRequest, match="outside the vocabulary"):
        ours.decode([token_id])
    assert ours.token(token_id) is None


@pytest.mark.parametrize("text", ["\ud800", "a\udfffb"])
def test_lone_surrogate_is_the_requests_fault(tmp_path: Path, text: str) -> None:
    with pytest.raises(InvalidRequest, match="surrogate"):
        tokenizer(write(tmp_path)).encode(text)


def test_longest_token_bounds_every_text(tmp_path: Path) -> None:
    ours = tokenizer(write(tmp_path))
    for text in TEXTS:
        assert len(text) <= len(ours.encode(text)) * ours.max_chars_per_token()


def test_padding_and_truncation_of_the_file_are_off(tmp_path: Path) -> None:
    write(tmp_path)
    backend = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    backend.enable_truncation(max_length=3)
    backend.enable_padding(length=50)
    backend.save(str(tmp_path / "tokenizer.json"))
    assert 3 < len(tokenizer(tmp_path).encode("one two three four")) < 50


@pytest.mark.parametrize("text", ["", "{", "{}", "[]", '{"version": "1.0", "model": {}}'])
def test_malformed_tokenizer_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "tokenizer.json").write_text(text)
    with pytest.raises(ModelError, match=r"tokenizer\.json") as caught:
        tokenizer(tmp_path)
    assert "\n" not in str(caught.value)


def test_folder_without_a_tokenizer_says_so(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="--tokenizer"):
        tokenizer(tmp_path)


@pytest.mark.parametrize("text", ["{", "[]", "7"])
def test_malformed_side_file_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(ModelError, match=r"tokenizer_config\.json"):
        tokenizer(write(tmp_path, tokenizer_config=text))
