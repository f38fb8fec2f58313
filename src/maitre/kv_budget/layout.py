"""How vLLM lays a model's cache out: pages of equal size, groups of layers that share block tables, one pool.

vLLM 0.32.0: `v1/core/kv_cache_utils.py`, `get_kv_cache_groups`, and `platforms/interface.py`,
`_align_hybrid_block_size`.
"""

from __future__ import annotations

import math
from typing import Literal

from pydantic import Field, SerializeAsAny

from maitre.errors import UnsupportedError, UsageError
from maitre.kv_budget.cache_bytes import dtype_bytes, state_bytes, token_bytes
from maitre.kv_budget.pages import Counts, LayerPages
from maitre.kv_budget.weights import check_tensor_parallel
from maitre.models import AttentionGeometry, AttentionLayers, CacheKind
from maitre.records import Record

KERNEL_BLOCK = 16
"""Smallest block of the attention kernels (vLLM `v1/attention/backends/flash_attn.py`)."""

LATENT_BLOCK = 128
"""A latent beside recurrent layers needs blocks of a multiple of this (`_align_hybrid_block_size`)."""


class Speculation(Record):
    """Speculative decoding: what it adds to the cache of the model."""

    method: Literal["ngram", "mtp", "draft"]
    """ngram keeps nothing of its own, mtp the model's own extra layers, draft those of `draft_model`."""
    num_speculative_tokens: int = Field(ge=1)
    draft_model: SerializeAsAny[AttentionGeometry] | None = None


class CacheFlags(Record):
    """vLLM's flags that decide how the cache is laid out."""

    kv_cache_dtype: str = "auto"
    dtype: str = "auto"
    tensor_parallel_size: int = Field(default=1, ge=1)
    block_size: int = Field(default=16, ge=1)
    disable_hybrid_kv_cache_manager: bool = False
    """Windows are not exploited: every attention layer keeps every token."""
    enable_prefix_caching: bool = False
    """Recurrent layers keep two states or more instead of one (vLLM's mode `align`)."""
    mamba_ssm_cache_dtype: str = "auto"
    """Data type of the recurrent state; auto is what the model's config says."""
    speculation: Speculation | None = None


class KvLayout(Record):
    """The cache of a model on one GPU."""

    kind: CacheKind
    block_size: int
    """Tokens in a block of the layers that keep all; vLLM raises it where a recurrent state needs larger pages."""
    bytes_per_block: int
    """What one block takes from the pool: a page for each layer of the largest group."""
    pages: tuple[LayerPages, ...]
    num_lookahead_tokens: int = 0
    """Slots that a drafted continuation takes in advance."""

    @property
    def kv_bytes_per_token(self) -> int:
        """Bytes that one more token of a long sequence adds: only the layers that keep all of them grow."""
        return sum(pages.num_layers * pages.token_bytes for pages in self.pages if pages.keeps == "all")

    def fixed_bytes_per_seq(self, max_model_len: int, in_flight_tokens: int = 1) -> int:
        """Bytes that a sequence longer than its windows holds whatever its length.

        Args:
            max_model_len: no window is longer.
            in_flight_tokens: 1 for a decoding sequence; with `max_num_batched_tokens` what one prefill may hold.
        """
        return sum(
            pages.num_layers * pages.page_bytes * pages.reserved(max_model_len, in_flight_tokens)
            for pages in self.pages
            if pages.keeps != "all"
        )

    def blocks_reserved(self, num_tokens: int, in_flight_tokens: int) -> int:
        """Most blocks that one sequence of so many tokens may hold; vLLM's "Maximum concurrency" counts these."""
        return sum(pages.num_groups * pages.reserved(num_tokens, in_flight_tokens) for pages in self.pages)

    def blocks_held(self, num_tokens: Counts) -> Counts:
        """Blocks that a decoding sequence holds at its token number `num_tokens`."""
        slots = num_tokens + self.num_lookahead_tokens
        total: Counts = sum((pages.num_groups * pages.held(slots) for pages in self.pages), 0 * slots)
        return total

    def blocks_held_between(self, first: Counts, last: Counts) -> Counts:
        """Sum of `blocks_held` over the tokens `first` … `last`."""
        low, high = first - 1 + self.num_lookahead_tokens, last + self.num_lookahead_tokens
        parts = (pages.num_groups * (pages.held_up_to(high) - pages.held_up_to(low)) for pages in self.pages)
        total: Counts = sum(parts, 0 * high)
        return total


def kv_layout(model: AttentionGeometry, flags: CacheFlags) -> KvLayout:
    """The cache of a model under these flags.

    Raises:
        UsageError: flags that vLLM refuses, or heads that cannot be shared out.
        UnsupportedError: a cache that is not computed.
    """
    check_tensor_parallel(model, flags.tensor_parallel_size)
    if flags.disable_hybrid_kv_cache_manager and model.states:
        raise UsageError(
            f"{model.name} keeps recurrent states: vLLM does not start it with --disable-hybrid-kv-cache-manager",
            "leave the flag out",
        )
    attention = _attention_pages(model, flags)
    states = _state_pages(model, flags)
    if states:
        widest = max(pages.token_bytes for pages in attention)
        block_size = _hybrid_block_size(model, flags.block_size, widest, max(state.page_bytes for state in states))
        attention = [_with_block(pages, block_size) for pages in attention]
    pages = _grouped(_merged(_equal_pages(attention + states)))
    speculation = flags.speculation
    return KvLayout(
        kind=model.kind,
        block_size=attention[0].block_size,
        bytes_per_block=_bytes_per_block(pages),
        pages=tuple(pages),
        num_lookahead_tokens=speculation.num_speculative_tokens if speculation and speculation.method != "ngram" else 0,
    )


def _attention_pages(model: AttentionGeometry, flags: CacheFlags) -> list[LayerPages]:
    item = dtype_bytes(model, flags.dtype)
    kv_cache_dtype = model.kv_cache_dtype if flags.kv_cache_dtype == "auto" else flags.kv_cache_dtype
    pages = []
    for layers in (*model.attention, *_drafting_layers(model, flags.speculation)):
        num_bytes = token_bytes(layers, kv_cache_dtype, flags.tensor_parallel_size, item)
        keeps_all = layers.keeps == "all" or flags.disable_hybrid_kv_cache_manager
        pages.append(
            LayerPages(
                keeps="all" if keeps_all else layers.keeps,
                span=0 if keeps_all else layers.span,
                num_layers=layers.num_layers,
                token_bytes=num_bytes,
                page_bytes=num_bytes * flags.block_size,
                block_size=flags.block_size,
            )
        )
    return pages


def _drafting_layers(model: AttentionGeometry, speculation: Speculation | None) -> tuple[AttentionLayers, ...]:
    """The layers that speculative decoding adds to the cache.

    Raises:
        UsageError: no draft model, or a model without layers for it.
        UnsupportedError: layers whose attention the config does not tell.
    """
    if speculation is None or speculation.method == "ngram":
        return ()
    if speculation.method == "draft":
        if speculation.draft_model is None:
            raise UsageError("a draft needs a model", "name the draft model")
        return speculation.draft_model.attention
    if not model.num_mtp_layers:
        raise UsageError(f"{model.name} has no layers for multi-token prediction", "choose another method")
    if model.kind == "sliding":
        raise UnsupportedError(f"the MTP layers of {model.name}: whether they keep a window is not known", "")
    return (model.attention[0].model_copy(update={"num_layers": model.num_mtp_layers}),)


def _state_pages(model: AttentionGeometry, flags: CacheFlags) -> list[LayerPages]:
    drafts = flags.speculation.num_speculative_tokens if flags.speculation else 0
    item = dtype_bytes(model, flags.dtype)
    dtype = flags.mamba_ssm_cache_dtype
    pages = []
    for states in model.states:
        asked = states if dtype == "auto" else states.model_copy(update={"state_dtype": dtype})
        cached = (1 + states.num_checkpoints) * flags.enable_prefix_caching
        pages.append(
            LayerPages(
                keeps="state",
                num_layers=states.num_layers,
                token_bytes=0,
                page_bytes=state_bytes(asked, flags.tensor_parallel_size, item, drafts),
                block_size=1,
                num_states=1 + cached + drafts,
            )
        )
    return pages


def _hybrid_block_size(model: AttentionGeometry, block_size: int, token: int, state: int) -> int:
    """Tokens in a block whose page holds a whole state."""
    latent = any(layers.is_latent for layers in model.attention)
    step = max(LATENT_BLOCK if latent else KERNEL_BLOCK, block_size)
    return max(block_size, step * -(-state // (step * token)))


def _with_block(pages: LayerPages, block_size: int, page_bytes: int | None = None) -> LayerPages:
    size = page_bytes or pages.token_bytes * block_size
    return pages.model_copy(update={"block_size": block_size, "page_bytes": size})


def _equal_pages(pages: list[LayerPages]) -> list[LayerPages]:
    """Pages of one size: a smaller one takes more tokens where that divides evenly, else it is padded.

    Layers that all keep the same need no equal pages: they share one block table (`unify_kv_cache_spec_page_size`).
    """
    largest = max(page.page_bytes for page in pages)
    if _is_uniform(pages):
        return pages
    return [
        _with_block(page, page.block_size * (largest // page.page_bytes), largest)
        if page.keeps != "state" and largest % page.page_bytes == 0
        else page.model_copy(update={"page_bytes": largest})
        for page in pages
    ]


def _is_uniform(pages: list[LayerPages]) -> bool:
    return len({(page.keeps, page.span) for page in pages}) == 1 and pages[0].keeps != "state"


def _merged(pages: list[LayerPages]) -> list[LayerPages]:
    """Layers of one kind together."""
    found: dict[LayerPages, int] = {}
    for page in pages:
        kind = page.model_copy(update={"num_layers": 0})
        found[kind] = found.get(kind, 0) + page.num_layers
    return [kind.model_copy(update={"num_layers": number}) for kind, number in found.items()]


def _grouped(pages: list[LayerPages]) -> list[LayerPages]:
    """The block tables of each kind of layer: groups of the rarest kind's size, or of the commonest's if near.

    `_get_kv_cache_groups_uniform_page_size`.
    """
    if _is_uniform(pages):
        return [pages[0], *(page.model_copy(update={"num_groups": 0}) for page in pages[1:])]
    size = _group_size(pages)
    return [page.model_copy(update={"num_groups": math.ceil(page.num_layers / size)}) for page in pages]


def _group_size(pages: list[LayerPages]) -> int:
    fewest, most = min(page.num_layers for page in pages), max(page.num_layers for page in pages)
    return most if most < 1.5 * fewest else fewest


def _bytes_per_block(pages: list[LayerPages]) -> int:
    if _is_uniform(pages):
        return sum(page.num_layers * page.page_bytes for page in pages)
    return _group_size(pages) * pages[0].page_bytes
