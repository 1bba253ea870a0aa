"""Runs the kernels in Triton's interpreter; a program, since the mode is set for a process.

The conformance kit drives them, on few head sizes and without bfloat16, which the interpreter
cannot multiply.
"""

import os
import sys

os.environ["TRITON_INTERPRET"] = "1"

from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[4]))

import tests.support.triton_interpreter  # noqa: F401 -- before any kernel runs

# isort: split
import secrets
import warnings

import msgspec
import torch

from pegboard.catalog import build_catalog
from pegboard.config.plugins import PluginsConfig
from pegboard.conformance import attention, kit

#: Checks of attention that together reach every branch; the others run on a GPU.
CHECKS = {
    "layout_is_consistent",
    "mixed_batch_matches_dense_attention",
    "padding_is_not_written",
    "soft_cap_matches_dense_attention",
}
_SIZES = {"float32": [80], "float16": [64]}


class Narrowed:
    """An entry whose spec claims fewer dtypes."""

    def __init__(self, entry, dtype):
        self.entry = entry
        self.spec = msgspec.structs.replace(entry.spec, dtypes=(dtype,))

    def __getattr__(self, name):
        return getattr(self.entry, name)


class NarrowCatalog:
    """A catalog that unwraps narrowed entries."""

    def __init__(self, catalog, dtype):
        self.catalog, self.dtype = catalog, dtype

    def __getattr__(self, name):
        return getattr(self.catalog, name)

    def entries(self, name):
        found = self.catalog.entries(name)
        if name != "attention_backends":
            return found
        return [Narrowed(e, self.dtype) for e in found if e.plugin == "triton"]

    def load(self, entry):
        return self.catalog.load(getattr(entry, "entry", entry))

    def create(self, entry, *args, **options):
        return self.catalog.create(getattr(entry, "entry", entry), *args, **options)


def main(dtype):
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    attention._head_sizes = lambda subject: _SIZES[dtype]
    catalog = NarrowCatalog(build_catalog(PluginsConfig(enabled=())), dtype)
    failures = 0
    for kind in ("attention_backends", "op_implementations"):
        for entry in catalog.catalog.entries(kind):
            if entry.plugin != "triton":
                continue
            subject = kit.Subject(catalog, Narrowed(entry, dtype), secrets.randbits(31))
            for check in kit.checks_of(kind):
                wanted = kind != "attention_backends" or check.name in CHECKS
                failures += wanted and not passes(check, subject)
    return failures


def passes(check, subject):
    try:
        check.function(subject)
    except kit.NotApplicable:
        return True
    except Exception as error:
        sys.stdout.write(f"{subject.spec.name} {check.name} seed {subject.seed}: {error}\n")
        return False
    return True


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
