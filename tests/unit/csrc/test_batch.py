"""The persistent batch's bookkeeping; the conformance kit compares it with the references."""

import pytest
import torch

from pegboard_kernels import KernelError, KernelLibrary
from pegboard_kernels.batch import append_tokens, prepare_inputs, slot_mapping


def _prepare(rows: list[int], scheduled: list[int], computed: list[int]) -> tuple:
    total = sum(scheduled)
    table = torch.arange(4 * 10, dtype=torch.int32).reshape(4, 10)
    outputs = [torch.full((total,), -1, dtype=torch.int64) for _ in range(3)]
    lengths = torch.full((len(rows),), -1, dtype=torch.int32)
    done = torch.tensor(computed, dtype=torch.int32)
    counts = torch.tensor(scheduled, dtype=torch.int32)
    prepare_inputs(table, done, torch.tensor(rows), counts, counts, *outputs, lengths)
    return done, *outputs, lengths


def test_tokens_are_gathered_from_where_each_row_stands(library: KernelLibrary) -> None:
    done, ids, positions, requests, lengths = _prepare([2, 0], [1, 3], [4, 0, 6, 0])
    assert ids.tolist() == [26, 4, 5, 6]
    assert positions.tolist() == [6, 4, 5, 6]
    assert requests.tolist() == [0, 1, 1, 1]
    assert lengths.tolist() == [7, 7]
    assert done.tolist() == [7, 0, 7, 0]


@pytest.mark.parametrize(
    ("rows", "scheduled", "computed", "words"),
    [
        ([4], [1], [0, 0, 0, 0], r"row 4 is outside \[0, 4\)"),
        ([1], [5], [0, 6, 0, 0], r"position 10 is outside \[0, 10\)"),
    ],
)
def test_rows_and_positions_outside_are_refused(
    library: KernelLibrary, rows: list, scheduled: list, computed: list, words: str
) -> None:
    with pytest.raises(KernelError, match=words):
        _prepare(rows, scheduled, computed)


def test_slots_follow_the_block_table(library: KernelLibrary) -> None:
    table = torch.tensor([[7, 3, 0], [5, 0, 0]], dtype=torch.int32)
    slots = torch.empty(3, dtype=torch.int64)
    slot_mapping(table, torch.tensor([0, 0, 1]), torch.tensor([5, 31, 0]), 16, slots)
    assert slots.tolist() == [7 * 16 + 5, 3 * 16 + 15, 5 * 16]
    with pytest.raises(KernelError, match="position 48 is outside"):
        slot_mapping(table, torch.tensor([0]), torch.tensor([48]), 16, slots[:1])


def test_tokens_are_appended_and_a_full_row_keeps_its_place(library: KernelLibrary) -> None:
    table = torch.zeros(2, 3, dtype=torch.int32)
    counts = torch.tensor([1, 3], dtype=torch.int32)
    append_tokens(table, counts, torch.tensor([1, 0]), torch.tensor([8, 9]))
    assert table.tolist() == [[0, 9, 0], [0, 0, 8]]
    assert counts.tolist() == [2, 4]
