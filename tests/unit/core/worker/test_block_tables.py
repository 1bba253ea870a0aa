"""Block tables: what rows hold, what a step sees of them, and slots."""

import pytest
import torch
from tests.support.models import reference_ops

from pegboard.api.kv import KVGroup
from pegboard.worker.block_tables import BlockTable


@pytest.fixture
def table():
    return BlockTable(
        KVGroup(group_type="full", layers=(0,), block_size=4),
        max_num_rows=5,
        max_num_tokens=40,
        max_model_len=30,
        device=torch.device("cpu"),
        ops=reference_ops(),
    )


def test_a_step_sees_its_rows_as_wide_as_its_longest_sequence(table):
    table.append(3, [7, 8])
    table.append(3, [9])
    table.append(1, [5])
    seen = table.gather(torch.tensor([1, 3]), max_seq_len=9)
    assert seen.tolist() == [[5, 0, 0], [7, 8, 9]]
    assert seen.is_contiguous()
    assert table.gather(torch.tensor([3]), max_seq_len=4).tolist() == [[7]]


def test_a_cleared_row_leads_nowhere(table):
    table.append(2, [4, 5, 6])
    table.clear(2)
    table.append(2, [9])
    assert table.gather(torch.tensor([2]), max_seq_len=12).tolist() == [[9, 0, 0]]


def test_slots_are_block_times_size_plus_offset(table):
    table.append(0, [3, 9])
    table.append(4, [6])
    seen = table.gather(torch.tensor([0, 4]), max_seq_len=7)
    requests, positions = torch.tensor([0, 0, 1, 0]), torch.tensor([0, 3, 2, 6])
    assert table.map_slots(seen, requests, positions).tolist() == [12, 15, 26, 38]


def test_more_blocks_than_a_sequence_can_have_are_refused(table):
    table.append(0, list(range(1, 9)))
    with pytest.raises(ValueError, match="row 0 would have 9 blocks; its table holds 8"):
        table.append(0, [9])
