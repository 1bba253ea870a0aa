"""The cases of this part's ops, run on the references themselves."""

import importlib

import pytest
import torch

from pegboard.builtin.plugin import op_definitions

DEFINITIONS = [
    definition
    for definition in op_definitions()
    if definition.target.startswith(("pegboard.worker.", "pegboard.sampling."))
]


def load(target):
    module, _, name = target.partition(":")
    return getattr(importlib.import_module(module), name)


@pytest.mark.parametrize("definition", DEFINITIONS, ids=lambda d: d.name)
def test_the_reference_runs_on_its_cases_and_changes_what_the_schema_marks(definition):
    reference = load(definition.target)
    marked = ["!" in p for p in definition.schema.partition("(")[2].split(",")]
    random = torch.Generator().manual_seed(torch.seed() % 2**63)
    cases = list(load(definition.cases)(random, torch.float32))
    assert cases
    changed = [False] * len(cases[0].args)
    for case in cases:
        args = [a.clone() if isinstance(a, torch.Tensor) else a for a in case.args]
        result = reference(*args)
        if definition.fake is not None:
            fake = load(definition.fake)(*case.args)
            pairs = zip(
                *((r,) if isinstance(r, torch.Tensor) else r for r in (result, fake)), strict=True
            )
            assert all((a.shape, a.dtype) == (b.shape, b.dtype) for a, b in pairs)
        for i, (now, before) in enumerate(zip(args, case.args, strict=True)):
            if isinstance(now, torch.Tensor):
                changed[i] |= not torch.equal(now.nan_to_num(), before.nan_to_num())
    assert changed == marked[: len(changed)]
