"""Makes a random checkpoint, runs it through an engine, and asks transformers for the same."""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from pegboard.api.engine import TokensPrompt
from pegboard.api.outputs import PositionLogprobs, RequestOutput
from pegboard.api.sampling_params import SamplingParams
from pegboard.conformance.kit import NotApplicable, Subject, load_target
from pegboard.engine.llm import LLM

__all__ = ["ModelRig", "model_rig"]

_MAX_TOKENS = 6


class ModelRig:
    """A random checkpoint in a folder, and transformers' model of it.

    Attributes:
        folder: config.json, model.safetensors and a tokenizer of one word a token.
        vocab_size: of the checkpoint.
    """

    def __init__(self, subject: Subject, folder: Path, dtype: str = "float32") -> None:
        """Make the checkpoint.

        Raises:
            NotApplicable: the spec brings no example, or transformers lacks the architecture.
        """
        self.subject, self.folder, self.dtype = subject, folder, dtype
        if subject.spec.example is None:
            raise NotApplicable("the spec brings no example configuration")
        config = dict(load_target(subject.spec.example)())
        self.vocab_size: int = config["vocab_size"]
        self.random = torch.Generator().manual_seed(subject.seed)
        self.oracle = self._transformers(config, folder)
        saved = json.loads((folder / "config.json").read_text())
        saved["architectures"] = [subject.spec.name]
        (folder / "config.json").write_text(json.dumps(saved))
        (folder / "tokenizer.json").write_text(json.dumps(_word_tokenizer(self.vocab_size)))

    def _transformers(self, config: dict[str, Any], folder: Path) -> Any:  # noqa: ANN401
        try:
            import transformers
        except ImportError as error:
            raise NotApplicable("transformers is not installed") from error
        model_type = config.pop("model_type")
        try:
            hf_config = transformers.AutoConfig.for_model(model_type, **config)
        except ValueError as error:
            raise NotApplicable(f"transformers has no {model_type}") from error
        torch.manual_seed(self.subject.seed)
        model = transformers.AutoModelForCausalLM.from_config(
            hf_config, attn_implementation="eager", dtype=torch.float32
        ).eval()
        with torch.no_grad():
            for parameter in model.parameters():
                # Distinct values everywhere, so that no two tensors can be confused unnoticed.
                scale = 0.3 if parameter.dim() == 1 else 0.08
                noise = torch.randn(parameter.shape, generator=self.random)
                parameter.add_(noise * scale)
        model.to(getattr(torch, self.dtype)).save_pretrained(folder)
        return model.float()

    def prompts(self, *lengths: int) -> list[list[int]]:
        """Return random prompts of these lengths."""
        return [
            torch.randint(3, self.vocab_size, (n,), generator=self.random).tolist() for n in lengths
        ]

    @contextmanager
    def engine(self, **settings: Any) -> Iterator[LLM]:  # noqa: ANN401 -- options by name
        """Start an engine on the checkpoint, in this process."""
        resolved = self.subject.catalog.resolved()
        defaults: dict[str, Any] = {
            "dtype": self.dtype,
            "max_model_len": 128,
            "max_logprobs": -1,
            "num_gpu_blocks_override": 64,
            "max_num_batched_tokens": 256,
            "max_num_seqs": 8,
            "disable_log_stats": True,
            "plugins": [
                r.target if r.target.endswith(".py") else r.name for r in resolved if r.enabled
            ],
        }
        with LLM(str(self.folder), in_process=True, **{**defaults, **settings}) as llm:
            yield llm

    def run(
        self, llm: LLM, prompts: Sequence[list[int]], *, prompt_logprobs: bool = True
    ) -> list[RequestOutput]:
        """Complete prompts greedily with every logprob reported."""
        params = SamplingParams(
            temperature=0,
            max_tokens=_MAX_TOKENS,
            ignore_eos=True,
            detokenize=False,
            logprobs=-1,
            prompt_logprobs=-1 if prompt_logprobs else None,
        )
        return llm.generate([TokensPrompt(prompt_token_ids=p) for p in prompts], params)

    def compare(self, outputs: Sequence[RequestOutput], tolerance: float = 1e-4) -> None:
        """Hold every reported logprob, and every token, to transformers' for the same tokens.

        Raises:
            AssertionError: with the position and both values.
        """
        for output in outputs:
            completion = output.outputs[0]
            tokens = output.prompt_token_ids + list(completion.token_ids)
            expected = self.expected(tokens)
            start = len(output.prompt_token_ids)
            positions = list(enumerate(output.prompt_logprobs or []))
            positions += [(start + i, p) for i, p in enumerate(completion.logprobs or [])]
            assert len(completion.logprobs or []) == _MAX_TOKENS, "logprobs are missing"
            for position, reported in positions:
                if reported is not None:
                    self._compare_position(position, reported, expected[position - 1], tolerance)
            for i, token in enumerate(completion.token_ids):
                row = expected[start + i - 1]
                gap = (row.max() - row[token]).item()
                assert gap <= max(1e-4, 4 * tolerance), (
                    f"token {i} is {token}; transformers takes {row.argmax().item()}"
                )

    def _compare_position(
        self,
        position: int,
        reported: PositionLogprobs,
        expected: torch.Tensor,
        tolerance: float,
    ) -> None:
        ids = torch.tensor(list(reported))
        got = torch.tensor([reported[i].logprob for i in reported])
        want = expected[ids]
        error = ((got - want).abs() / (1 + want.abs())).max().item()
        assert error <= tolerance, f"position {position}: error {error:.2e} over {tolerance:.0e}"

    def expected(self, tokens: list[int]) -> torch.Tensor:
        """Return transformers' [num_tokens, vocab] float32 logprobs of one sequence."""
        with torch.no_grad():
            logits = self.oracle(torch.tensor([tokens]), use_cache=False).logits[0]
        return logits.float().log_softmax(-1)


@contextmanager
def model_rig(subject: Subject, dtype: str = "float32") -> Iterator[ModelRig]:
    """Make a rig in a temporary folder."""
    with TemporaryDirectory(prefix="pegboard-kit-") as folder:
        yield ModelRig(subject, Path(folder), dtype)


def _word_tokenizer(vocab_size: int) -> dict[str, Any]:
    vocab = {f"t{i}": i for i in range(vocab_size)}
    return {
        "version": "1.0",
        "added_tokens": [],
        "pre_tokenizer": {"type": "Whitespace"},
        "model": {"type": "WordLevel", "vocab": vocab, "unk_token": "t0"},
    }
