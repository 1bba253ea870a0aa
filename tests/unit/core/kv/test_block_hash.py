"""Block hashes: equal exactly for equal prefixes with equal extras."""

from pegboard.api.messages import LoraRequest, MediaInput
from pegboard.kv.block_hash import BlockHasher, HashExtras


def hashes(token_ids: list[int], extras: HashExtras | None = None) -> list[bytes]:
    result: list[bytes] = []
    BlockHasher(4).extend(result, token_ids, len(token_ids), extras)
    return result


def image(offset: int, content_hash: str = "h", length: int = 3) -> MediaInput:
    return MediaInput(modality="image", content_hash=content_hash, offset=offset, length=length)


def test_only_full_blocks_are_hashed() -> None:
    assert len(hashes(list(range(11)))) == 2


def test_equal_prefixes_have_equal_hashes_and_no_others() -> None:
    one, other = hashes([1, 2, 3, 4, 5, 6, 7, 8]), hashes([1, 2, 3, 4, 5, 6, 7, 9])

    assert one[0] == other[0]
    assert one[1] != other[1]


def test_same_block_after_another_prefix_differs() -> None:
    assert hashes([1, 2, 3, 4, 9, 9, 9, 9])[1] != hashes([1, 2, 3, 5, 9, 9, 9, 9])[1]


def test_extending_step_by_step_gives_the_same_chain() -> None:
    tokens, grown = list(range(16)), []
    for num_tokens in (3, 4, 9, 16):
        BlockHasher(4).extend(grown, tokens, num_tokens)

    assert grown == hashes(tokens)


def test_salt_and_adapter_change_the_whole_chain() -> None:
    tokens = list(range(8))
    lora = LoraRequest(name="a", lora_id=1, path="p")
    chains = [
        hashes(tokens),
        hashes(tokens, HashExtras(cache_salt="a")),
        hashes(tokens, HashExtras(cache_salt="b")),
        hashes(tokens, HashExtras(lora=lora)),
        hashes(tokens, HashExtras(lora=LoraRequest(name="a", lora_id=2, path="p"))),
        hashes(tokens, HashExtras(lora=lora, cache_salt="a")),
    ]

    assert len({block for chain in chains for block in chain}) == 2 * len(chains)


def test_empty_salt_is_not_no_salt() -> None:
    assert hashes([1, 2, 3, 4], HashExtras(cache_salt="")) != hashes([1, 2, 3, 4])


def test_media_changes_blocks_from_the_one_it_touches() -> None:
    tokens = [7] * 12
    plain = hashes(tokens)
    with_media = hashes(tokens, HashExtras(media=[image(5)]))

    assert with_media[0] == plain[0]
    assert with_media[1] != plain[1]
    assert with_media[2] != plain[2]


def test_media_content_and_place_both_count() -> None:
    tokens = [7] * 12
    variants = [
        hashes(tokens, HashExtras(media=[image(5, "h")])),
        hashes(tokens, HashExtras(media=[image(5, "i")])),
        hashes(tokens, HashExtras(media=[image(4, "h")])),
        hashes(tokens, HashExtras(media=[image(3, "h")])),
    ]

    assert len({variant[1] for variant in variants}) == len(variants)
