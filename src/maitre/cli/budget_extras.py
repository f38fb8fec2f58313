"""What a server may have beside the usual flags: LoRA, speculative decoding, and no use of windows."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from maitre.cli.numbers import Count

if TYPE_CHECKING:
    from maitre.kv_budget import Extras, LoraSlots, Speculation


@Parameter(name="*")
@dataclass(frozen=True)
class ExtraOptions:
    """What takes its share of the memory when it is on."""

    _: KW_ONLY
    disable_hybrid_kv_cache_manager: Annotated[bool, Parameter(negative="")] = False
    """Layers with a window keep every token, as under vLLM's flag of this name."""
    max_loras: Count | None = None
    """LoRA adapters at once; with it or --max-lora-rank, LoRA is on."""
    max_lora_rank: Count | None = None
    """Largest rank of an adapter; vLLM's default is 16."""
    num_speculative_tokens: Count | None = None
    """Tokens that speculative decoding proposes at once; with it, speculative decoding is on."""
    speculative_method: Literal["ngram", "mtp", "draft"] | None = None
    """Where they come from: the prompt, the model's own extra layers, or --draft-model."""
    draft_model: str | None = None
    """A draft model's directory, config.json or name."""

    def extras(self, *, with_weights: bool) -> Extras:
        """What the flags turn on.

        Args:
            with_weights: the draft's weights are needed too, not its cache alone.

        Raises:
            UsageError: flags that go together come alone.
        """
        from maitre.kv_budget import Extras

        return Extras(
            disable_hybrid_kv_cache_manager=self.disable_hybrid_kv_cache_manager,
            speculation=self._speculation(with_weights=with_weights),
            lora=self._lora(),
        )

    def _lora(self) -> LoraSlots | None:
        from maitre.kv_budget import LoraSlots

        if self.max_loras is None and self.max_lora_rank is None:
            return None
        return LoraSlots(max_loras=self.max_loras or 1, max_lora_rank=self.max_lora_rank or 16)

    def _speculation(self, *, with_weights: bool) -> Speculation | None:
        from maitre.errors import UsageError
        from maitre.kv_budget import Speculation
        from maitre.models import load_attention, load_checkpoint

        method = self.speculative_method or ("draft" if self.draft_model else None)
        if method is None and self.num_speculative_tokens is None:
            return None
        if (
            method is None
            or self.num_speculative_tokens is None
            or (method == "draft") != (self.draft_model is not None)
        ):
            raise UsageError(
                "speculative decoding needs its method and its number of tokens",
                "--speculative-method ngram|mtp --num-speculative-tokens 4, or --draft-model M "
                "--num-speculative-tokens 4",
            )
        load = load_checkpoint if with_weights else load_attention
        draft = load(self.draft_model) if self.draft_model else None
        return Speculation(method=method, num_speculative_tokens=self.num_speculative_tokens, draft_model=draft)


NO_EXTRA_OPTIONS = ExtraOptions()
"""Nothing on: the default of a verb's parameter."""
