"""Checks of model architectures: against transformers, through the whole engine."""

from collections.abc import Callable
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from pegboard.api.errors import PegboardError
from pegboard.conformance.kit import NotApplicable, Subject, check
from pegboard.conformance.model_rig import ModelRig, model_rig

__all__: list[str] = []

_KIND = "model_architectures"


@check(_KIND)
def logprobs_match_transformers(subject: Subject) -> None:
    """Prompts of mixed lengths in one batch: every logprob of prompt and output, in float32."""
    with model_rig(subject) as rig, rig.engine() as llm:
        rig.compare(rig.run(llm, rig.prompts(1, 40, 17, 5)))


@check(_KIND)
def chunked_prefill_matches_transformers(subject: Subject) -> None:
    """The same with a budget that cuts prompts in odd chunks, beside decodes."""
    with model_rig(subject) as rig, rig.engine(max_num_batched_tokens=11) as llm:
        rig.compare(rig.run(llm, rig.prompts(30, 3, 47, 12)))


@check(_KIND)
def prefix_hits_match_transformers(subject: Subject) -> None:
    """A prompt that shares cached blocks with an earlier one gives what it gives alone."""
    with model_rig(subject) as rig, rig.engine() as llm:
        first, tail = rig.prompts(64, 9)
        rig.compare(rig.run(llm, [first], prompt_logprobs=False))
        outputs = rig.run(llm, [first + tail], prompt_logprobs=False)
        assert outputs[0].num_cached_tokens > 0, "no block was shared"
        rig.compare(outputs)


@check(_KIND)
def preemption_matches_transformers(subject: Subject) -> None:
    """With too few blocks for all, requests give way and come back with the same result."""
    with model_rig(subject) as rig, rig.engine(num_gpu_blocks_override=14, max_model_len=64) as llm:
        rig.compare(rig.run(llm, rig.prompts(44, 45, 46, 47), prompt_logprobs=False))


@check(_KIND)
def bfloat16_is_close(subject: Subject) -> None:
    """In bfloat16 the logprobs stay within what rounding explains."""
    with model_rig(subject, "bfloat16") as rig, rig.engine() as llm:
        rig.compare(rig.run(llm, rig.prompts(23, 7)), tolerance=8e-2)


def _refuses(rig: ModelRig, change: Callable[[dict[str, torch.Tensor]], str], what: str) -> None:
    """Change the stored tensors and expect a start that fails and names the tensor."""
    path = Path(rig.folder) / "model.safetensors"
    tensors = load_file(path)
    name = change(tensors)
    save_file(tensors, path, metadata={"format": "pt"})
    try:
        with rig.engine():
            pass
    except PegboardError as error:
        assert name in str(error), f"{what}: the error does not name {name}: {error}"
        return
    raise AssertionError(f"{what} ({name}) was not noticed")


@check(_KIND)
def missing_tensor_is_named(subject: Subject) -> None:
    """A checkpoint without one of its tensors does not start; the error names it."""

    def drop(tensors: dict[str, torch.Tensor]) -> str:
        name = sorted(n for n in tensors if "layers.1." in n)[0]
        del tensors[name]
        return name

    with model_rig(subject) as rig:
        if not any("layers.1." in n for n in load_file(rig.folder / "model.safetensors")):
            raise NotApplicable("the example has no second layer")
        _refuses(rig, drop, "a missing tensor")


@check(_KIND)
def unexpected_tensor_is_named(subject: Subject) -> None:
    """A tensor that the architecture does not have is named, not ignored."""

    def add(tensors: dict[str, torch.Tensor]) -> str:
        tensors["model.layers.0.surprise.weight"] = torch.ones(3)
        return "surprise"

    with model_rig(subject) as rig:
        _refuses(rig, add, "an unexpected tensor")


@check(_KIND)
def wrong_shape_is_named(subject: Subject) -> None:
    """A tensor of the wrong shape is named with what was expected."""

    def widen(tensors: dict[str, torch.Tensor]) -> str:
        name = sorted(n for n, t in tensors.items() if t.dim() == 2)[0]
        tensors[name] = torch.cat([tensors[name], tensors[name][:1]])
        return name

    with model_rig(subject) as rig:
        _refuses(rig, widen, "a wrong shape")
