"""Makes the logits processors that the configuration names."""

import torch

from pegboard.api.sampling import LogitsProcessorConfig, LogitsProcessorQuery, LogitsProcessorSpec
from pegboard.catalog import Catalog
from pegboard.config.engine import EngineConfig
from pegboard.sampling.processors import NamedProcessor, ProcessorChain

__all__ = ["build_processors"]


def build_processors(
    config: EngineConfig, catalog: Catalog, vocab_size: int, device: torch.device
) -> ProcessorChain:
    """Make the processors of `model.logits_processors`, in that order.

    Raises:
        SelectionError: a name is not a component's.
    """
    bounds = LogitsProcessorConfig(
        max_num_rows=config.scheduler.max_num_seqs, vocab_size=vocab_size, device=str(device)
    )
    made: list[NamedProcessor] = []
    for name in config.model.logits_processors:
        entry = catalog.select("logits_processors", LogitsProcessorQuery(name=name)).entry
        spec = entry.spec
        assert isinstance(spec, LogitsProcessorSpec)
        processor = catalog.create(entry, bounds, config=config)
        made.append(NamedProcessor(entry.name, entry.plugin, processor, spec.argmax_invariant))
    return ProcessorChain(made)
