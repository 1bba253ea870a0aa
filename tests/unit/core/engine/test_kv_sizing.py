"""The pool is as large as was asked for, and a longest sequence that does not fit is refused."""

from pathlib import Path
from typing import Any

import pytest
from tests.support.arithmetic import fake_config

from pegboard.api.errors import ConfigError
from pegboard.api.kv import KVGroup, KVGroupType, KVLayerNeed
from pegboard.engine.kv_sizing import KVPlan, plan_kv
from pegboard.kv.groups.full import FullGroup
from pegboard.kv.groups.sliding_window import SlidingWindowGroup

FULL = [KVLayerNeed(layer=i, group_type="full", bytes_per_token=64) for i in range(4)]
_BLOCK = 16 * 64 * 4


def _group_type(group: KVGroup) -> KVGroupType:
    return FullGroup(group) if group.window is None else SlidingWindowGroup(group)


def _plan(folder: Path, available: int, needs: list[KVLayerNeed], **settings: Any) -> KVPlan:
    config, _ = fake_config(folder, num_gpu_blocks_override=None, **settings)
    return plan_kv(config, needs, available, _group_type)


def test_bytes_become_whole_blocks(tmp_path: Path) -> None:
    plan = _plan(tmp_path, 100 * _BLOCK + 17, FULL)
    assert (plan.num_blocks, plan.block_bytes, plan.kv_bytes) == (100, _BLOCK, 100 * _BLOCK)
    assert plan.max_tokens == 1024


def test_sequence_that_does_not_fit_is_refused_with_the_length_that_does(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"max_model_len is 1024.*--max-model-len 304") as caught:
        _plan(tmp_path, 20 * _BLOCK, FULL)
    assert f"--kv-cache-memory-bytes {65 * _BLOCK}" in str(caught.value)
    assert _plan(tmp_path, 20 * _BLOCK, FULL, max_model_len=304).max_tokens == 304
    with pytest.raises(ConfigError, match="305"):
        _plan(tmp_path, 20 * _BLOCK, FULL, max_model_len=305)
    assert _plan(tmp_path, 65 * _BLOCK, FULL).max_tokens == 1024


def test_pool_without_room_for_a_block_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--kv-cache-memory-bytes"):
        _plan(tmp_path, _BLOCK - 1, FULL)


def test_windows_need_less_than_the_whole_sequence(tmp_path: Path) -> None:
    windows = [
        KVLayerNeed(layer=i, group_type="sliding_window", bytes_per_token=64, window=32)
        for i in range(4)
    ]
    assert _plan(tmp_path, 20 * _BLOCK, windows).max_tokens == 1024


def test_count_that_is_forced_is_checked_too(tmp_path: Path) -> None:
    config, _ = fake_config(tmp_path, num_gpu_blocks_override=5)
    with pytest.raises(ConfigError, match="num_gpu_blocks_override is 5; set it to 65"):
        plan_kv(config, FULL, 0, _group_type)
