"""Checks the books: who holds which block and row. For tests, and for an engine that is idle."""

from collections import Counter

from pegboard.kv.manager import BlockTables, KVCacheManager
from pegboard.scheduler.batch import Batch
from pegboard.scheduler.request import Request, RequestStatus

__all__ = ["audit"]


def audit(
    kv: KVCacheManager, batch: Batch, *, num_rows: int, num_lookahead_tokens: int
) -> list[str]:
    """Return one line for everything that is wrong; empty if nothing is. Changes nothing.

    Args:
        kv: the cache.
        batch: all requests.
        num_rows: of the persistent batch.
        num_lookahead_tokens: drafts that a row may have had slots for and not used.
    """
    tables: list[BlockTables] = [request.kv.tables for request in batch.running]
    tables += batch.steps.held_tables()
    holders = Counter(block.block_id for groups in tables for table in groups for block in table)
    holders.pop(kv.pool.null_block.block_id, None)
    wrong = kv.pool.audit(holders)
    rows = [request.row for request in batch.running]
    if len(set(rows)) != len(rows) or len(rows) + batch.rows.num_free != num_rows:
        wrong.append(f"rows {sorted(rows)} are held and {batch.rows.num_free} free of {num_rows}")
    for request in batch.running:
        wrong += _audit_running(request, kv, num_lookahead_tokens)
    for request in batch.waiting:
        if request.status not in (RequestStatus.WAITING, RequestStatus.PREEMPTED):
            wrong.append(f"{request} is in the queue")
        if any(request.kv.tables):
            wrong.append(f"{request} waits and holds blocks")
    return wrong


def _audit_running(request: Request, kv: KVCacheManager, num_lookahead_tokens: int) -> list[str]:
    wrong = []
    if request.status is not RequestStatus.RUNNING:
        wrong.append(f"{request} is among the running")
    if not request.num_confirmed <= request.num_computed <= request.target:
        wrong.append(f"{request} is confirmed to {request.num_confirmed}")
    for group, table in zip(kv.groups, request.kv.tables, strict=True):
        num_used = request.num_computed + num_lookahead_tokens
        if len(table) * group.block_size - num_used >= group.block_size:
            wrong.append(f"{request} holds {len(table)} blocks of {group.block_size} tokens")
    return wrong
