"""The vocabulary's ends: tied or not, divided or not, the padding never shows."""

import pytest
import torch
from tests.support.models import SimpleModelContext, ThreadGroup

from pegboard.layers import LmHead, VocabEmbedding, packed_bytes

CONFIG = {"max_position_embeddings": 8}
VOCAB, HIDDEN = 19, 6


def load(layer, name: str, tensor: torch.Tensor) -> None:
    dict(layer.slots(name))[f"{name}.weight"].store(tensor)


@pytest.mark.parametrize("size", [1, 2, 3, 4])
@pytest.mark.parametrize("tied", [False, True])
def test_embedding_and_logits_are_whole_on_every_rank(size: int, tied: bool) -> None:
    rows, other_rows = torch.randn(VOCAB, HIDDEN), torch.randn(VOCAB, HIDDEN)
    ids = torch.tensor([0, 18, 9, 10, 4, 18])
    hidden = torch.randn(3, HIDDEN)

    def rank(group: ThreadGroup) -> tuple[torch.Tensor, torch.Tensor]:
        context = SimpleModelContext(CONFIG, tensor_parallel=group)
        embed = VocabEmbedding(context, VOCAB, HIDDEN, tied=tied)
        head = LmHead(context, VOCAB, HIDDEN, embedding=embed if tied else None)
        load(embed, "embed", rows)
        load(head, "head", other_rows)
        return embed(ids), head(hidden)

    for embedded, logits in ThreadGroup.run(size, rank):
        assert torch.equal(embedded, rows[ids])
        assert logits.shape == (3, VOCAB)
        assert logits.dtype == torch.float32
        torch.testing.assert_close(logits, hidden @ (rows if tied else other_rows).T)


def test_a_tied_matrix_is_held_once() -> None:
    context = SimpleModelContext(CONFIG, dtype=torch.bfloat16)
    embed = VocabEmbedding(context, VOCAB, HIDDEN, tied=True)
    head = LmHead(context, VOCAB, HIDDEN, embedding=embed)
    rows = torch.randn(VOCAB, HIDDEN)
    load(embed, "embed", rows)
    load(head, "head", rows)

    assert packed_bytes(embed) + packed_bytes(head) == VOCAB * HIDDEN * 2


def test_an_untied_embedding_keeps_no_reference_to_what_it_was_given() -> None:
    embed = VocabEmbedding(SimpleModelContext(CONFIG), VOCAB, HIDDEN)
    rows = torch.randn(VOCAB, HIDDEN)
    load(embed, "embed", rows)
    kept = rows.clone()
    rows.zero_()
    assert torch.equal(embed(torch.arange(VOCAB)), kept)


def test_the_scale_is_rounded_to_the_activations_dtype() -> None:
    context = SimpleModelContext(CONFIG, dtype=torch.bfloat16)
    embed = VocabEmbedding(context, VOCAB, HIDDEN, scale=3072**0.5)
    rows = torch.randn(VOCAB, HIDDEN, dtype=torch.bfloat16)
    load(embed, "embed", rows)

    got = embed(torch.arange(VOCAB))

    assert torch.equal(got, rows * torch.tensor(55.5, dtype=torch.bfloat16))
    assert torch.equal(embed(torch.arange(VOCAB)), got), "the matrix itself is not scaled"


def test_logits_are_capped() -> None:
    context = SimpleModelContext(CONFIG)
    head = LmHead(context, VOCAB, HIDDEN, soft_cap=2.0)
    rows = torch.randn(VOCAB, HIDDEN) * 5
    load(head, "head", rows)
    hidden = torch.randn(2, HIDDEN)
    torch.testing.assert_close(head(hidden), torch.tanh(hidden @ rows.T / 2) * 2)
