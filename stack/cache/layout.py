"""Where every byte of a page and of a slot lies, from the model's geometry and the configuration.

Knows nothing of tensors, devices or pool sizes. Two instances can exchange pages and slots exactly when their
`layout_hash` agrees; `explain_mismatch` names what does not.

Page (one span): latents [paged layer][token][latent]; index blocks [paged layer][codes of all pools, their FP32
scales, room for further rows with `cache.index_layout: per_token`]; draft rows [draft layer][k,v][token][kv head][d]
for `cache.draft_kv: full`. Paged layers are the DSA layers in order, then the MTP layer when MTP drafts.

Slot (one span): state [head][layer][k][v]; windows [head][layer][q,k,v][d][3]; tails [paged layer][ring][k,gate][d];
the draft's ring [draft layer][k,v][window][kv head][d] for `cache.draft_kv: ring`.
"""

import hashlib
import json
from dataclasses import asdict, dataclass
from pathlib import Path

from stack.config import Dtype, EngineConfig
from stack.core.draft_geometry import DraftGeometry
from stack.core.errors import ConfigError
from stack.core.geometry import ModelGeometry

ITEM_BYTES: dict[Dtype, int] = {"float32": 4, "bfloat16": 2, "fp8_e4m3": 1}
SCALE_BYTES = 4
SPAN_ALIGNMENT = 256
"""Pages, slots and the parts of a slot start at multiples of this: whole cache lines, and strides that TMA accepts."""
BLOCK_ALIGNMENT = 16
"""Index blocks inside a page start at multiples of this."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftRows:
    """The DFlash2 draft's context rows, in pages (`full`) or in a ring of every slot (`ring`)."""

    place: str
    num_layers: int
    num_kv_heads: int
    head_dim: int
    window: int
    dtype: Dtype

    @property
    def row_bytes(self) -> int:
        """One token's K (or V) of one layer."""
        return self.num_kv_heads * self.head_dim * ITEM_BYTES[self.dtype]

    @property
    def token_bytes(self) -> int:
        """One token's K and V of all layers."""
        return self.num_layers * 2 * self.row_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheLayout:
    """Byte layout of one page and one slot; all sizes and offsets are bytes."""

    page_size: int
    """Tokens of a page."""
    kpool: int
    """Tokens behind one pooled index key."""
    num_paged_layers: int
    latent_dim: int
    kv_dtype: Dtype
    index_dim: int
    index_dtype: Dtype
    index_rows: int
    """Index rows that each layer has room for in a page: one a pooled key, or one a token with
    `cache.index_layout: per_token`. Pooled keys fill the first ones; the rest is held and travels, and never read."""
    num_kda_layers: int
    num_heads: int
    head_dim: int
    conv_window: int
    state_dtype: Dtype
    conv_dtype: Dtype
    tail_ring: int
    """Tokens of the index tail: an open pool and the rows of a verify."""
    compute_dtype: Dtype
    verify_width: int
    draft: DraftRows | None
    drafter: str
    """`off`, `mtp` or `dflash2`: what else the prefill instance must have computed."""
    model: str
    """Digest of the model's geometry and of the rule that made its weights."""

    @property
    def pools_per_page(self) -> int:
        """Pooled index keys of one page and layer."""
        return self.page_size // self.kpool

    @property
    def latent_row_bytes(self) -> int:
        """One token's latent of one layer."""
        return self.latent_dim * ITEM_BYTES[self.kv_dtype]

    @property
    def index_row_bytes(self) -> int:
        """One pooled key of one layer, its scale included."""
        scale = SCALE_BYTES if self.index_dtype == "fp8_e4m3" else 0
        return self.index_dim * ITEM_BYTES[self.index_dtype] + scale

    @property
    def index_block_bytes(self) -> int:
        """One layer's index rows in a page: codes and scales of the pooled keys, rows without a key, padding."""
        return _up(self.index_rows * self.index_row_bytes, BLOCK_ALIGNMENT)

    def latent_offset(self, layer: int) -> int:
        """Start of a paged layer's latents in a page."""
        return layer * self.page_size * self.latent_row_bytes

    def codes_offset(self, layer: int) -> int:
        """Start of a paged layer's index codes in a page."""
        return self.latent_offset(self.num_paged_layers) + layer * self.index_block_bytes

    def scales_offset(self, layer: int) -> int:
        """Start of a paged layer's index scales in a page; meaningless where the index is not FP8."""
        return self.codes_offset(layer) + self.pools_per_page * self.index_dim * ITEM_BYTES[self.index_dtype]

    def draft_page_offset(self, layer: int, part: int) -> int:
        """Start of a draft layer's K (part 0) or V (part 1) rows in a page, for `draft_kv: full`."""
        rows = self._draft_token_bytes("full") * self.page_size
        return self.codes_offset(self.num_paged_layers) + (2 * layer + part) * rows // self._num_draft_parts

    @property
    def page_parts(self) -> dict[str, int]:
        """Bytes of a page by what they hold."""
        empty = self.num_paged_layers * (self.index_rows - self.pools_per_page) * self.index_row_bytes
        parts = {
            "latents": self.latent_offset(self.num_paged_layers),
            "index": self.num_paged_layers * self.index_block_bytes - empty,
            "empty_index": empty,
            "draft": self._draft_token_bytes("full") * self.page_size,
        }
        return parts | {"padding": -sum(parts.values()) % SPAN_ALIGNMENT}

    @property
    def page_bytes(self) -> int:
        """One page over all layers."""
        return sum(self.page_parts.values())

    @property
    def state_layer_bytes(self) -> int:
        """One head's state of one layer."""
        return self.head_dim * self.head_dim * ITEM_BYTES[self.state_dtype]

    @property
    def conv_layer_bytes(self) -> int:
        """One head's q, k and v windows of one layer."""
        return 3 * self.head_dim * self.conv_window * ITEM_BYTES[self.conv_dtype]

    @property
    def state_head_bytes(self) -> int:
        """One head's states of all layers: neighbours, so any share of heads is one span."""
        return self.num_kda_layers * self.state_layer_bytes

    @property
    def conv_head_bytes(self) -> int:
        """One head's windows of all layers."""
        return self.num_kda_layers * self.conv_layer_bytes

    @property
    def conv_offset(self) -> int:
        """Start of the convolution windows in a slot; the states start at 0."""
        return _up(self.num_heads * self.state_head_bytes, SPAN_ALIGNMENT)

    @property
    def tail_offset(self) -> int:
        """Start of the index tails in a slot."""
        return self.conv_offset + _up(self.num_heads * self.conv_head_bytes, SPAN_ALIGNMENT)

    @property
    def tail_layer_bytes(self) -> int:
        """One paged layer's ring of un-pooled keys and gates."""
        return self.tail_ring * 2 * self.index_dim * ITEM_BYTES[self.compute_dtype]

    @property
    def draft_ring_offset(self) -> int:
        """Start of the draft's ring in a slot."""
        return self.tail_offset + _up(self.num_paged_layers * self.tail_layer_bytes, SPAN_ALIGNMENT)

    def draft_slot_offset(self, layer: int, part: int) -> int:
        """Start of a draft layer's K (part 0) or V (part 1) ring in a slot, for `draft_kv: ring`."""
        rows = self._draft_token_bytes("ring") * (self.draft.window if self.draft else 0)
        return self.draft_ring_offset + (2 * layer + part) * rows // self._num_draft_parts

    @property
    def slot_parts(self) -> dict[str, int]:
        """Bytes of a slot by what they hold."""
        parts = {
            "state": self.num_heads * self.state_head_bytes,
            "conv": self.num_heads * self.conv_head_bytes,
            "tails": self.num_paged_layers * self.tail_layer_bytes,
            "draft": self._draft_token_bytes("ring") * (self.draft.window if self.draft else 0),
        }
        end = _up(self.draft_ring_offset + parts["draft"], SPAN_ALIGNMENT)
        return parts | {"padding": end - sum(parts.values())}

    @property
    def slot_bytes(self) -> int:
        """One slot."""
        return sum(self.slot_parts.values())

    @property
    def ring_entry_bytes(self) -> int:
        """Replay inputs of one verify of one request over all KDA layers; 0 without speculation."""
        if self.verify_width == 1:
            return 0
        values = self.num_heads * self.head_dim
        item = ITEM_BYTES[self.compute_dtype]
        row = 2 * values * item + 4 * values + 4 * self.num_heads + 3 * values * item
        return self.num_kda_layers * self.verify_width * row

    @property
    def snapshot_entry_bytes(self) -> int:
        """States after each row of one verify of one request (commit by snapshot)."""
        return self.verify_width * self.num_heads * self.state_head_bytes

    @property
    def description(self) -> dict[str, str]:
        """Everything two instances must agree on, by name; plain text so that it travels in any message."""
        flat: dict[str, str] = {}
        for name, value in asdict(self).items():
            if isinstance(value, dict):
                flat |= {f"{name}.{part}": str(item) for part, item in value.items()}
            else:
                flat[name] = str(value)
        return flat | {"page_bytes": str(self.page_bytes), "slot_bytes": str(self.slot_bytes)}

    @property
    def layout_hash(self) -> str:
        """16 hex digits that agree exactly when `description` does."""
        return description_hash(self.description)

    def _draft_token_bytes(self, place: str) -> int:
        return self.draft.token_bytes if self.draft and self.draft.place == place else 0

    @property
    def _num_draft_parts(self) -> int:
        return 2 * self.draft.num_layers if self.draft else 1


def cache_layout(geometry: ModelGeometry, config: EngineConfig, draft: DraftGeometry | None = None) -> CacheLayout:
    """The layout of `geometry` (one rank's share) under `config`. `draft` is needed for `speculation.method: dflash2`.

    Raises ConfigError for a page that would cut a pool, or a drafter whose parts are missing.
    """
    cache, method = config.cache, config.speculation.method
    _check_drafter(geometry, config, draft)
    if cache.page_size % geometry.index_kpool:
        raise ConfigError(
            f"cache.page_size must be a multiple of the model's index_kpool ({geometry.index_kpool}), "
            f"not {cache.page_size}"
        )
    return CacheLayout(
        page_size=cache.page_size,
        kpool=geometry.index_kpool,
        num_paged_layers=len(geometry.dsa_layers) + (geometry.num_mtp_layers if method == "mtp" else 0),
        latent_dim=geometry.kv_lora_rank,
        kv_dtype=cache.kv_dtype,
        index_dim=geometry.index_head_dim,
        index_dtype=cache.index_dtype,
        index_rows=cache.page_size if cache.index_layout == "per_token" else cache.page_size // geometry.index_kpool,
        num_kda_layers=len(geometry.kda_layers),
        num_heads=geometry.kda_num_heads,
        head_dim=geometry.kda_head_dim,
        conv_window=geometry.conv_kernel_size - 1,
        state_dtype=cache.state_dtype,
        conv_dtype=cache.conv_dtype,
        tail_ring=geometry.index_kpool + config.speculation.width,
        compute_dtype=config.model.compute_dtype,
        verify_width=config.speculation.width,
        draft=_draft_rows(config, draft) if draft and method == "dflash2" else None,
        drafter=method,
        model=_model_digest(geometry, config),
    )


def layout_from_config(config: EngineConfig) -> CacheLayout:
    """The layout from the `config.json` files that `config` points at. Raises ConfigError as they do."""
    return cache_layout(*geometries(config))


def geometries(config: EngineConfig) -> tuple[ModelGeometry, EngineConfig, DraftGeometry | None]:
    """What `cache_layout` takes: the model's geometry, cut to `model.num_layers` unless `cache.all_layers`, and the
    draft's where one drafts."""
    num_layers = None if config.cache.all_layers else config.model.num_layers
    whole = ModelGeometry.from_file(Path(config.model.path))
    geometry = whole.truncated(num_layers)
    if not whole.dsa_layers:
        raise ConfigError(
            f"the model in {config.model.path} has no layer of sparse attention, and pages hold the rows of "
            "such layers alone: point model.path at a checkpoint whose layer_types name one"
        )
    if not geometry.dsa_layers:
        raise ConfigError(
            f"model.num_layers must be at least {whole.dsa_layers[0] + 1}, not {num_layers}: pages need a layer of "
            "sparse attention; or set cache.all_layers"
        )
    if config.speculation.method != "dflash2":
        return geometry, config, None
    return geometry, config, DraftGeometry.from_file(Path(config.speculation.draft_path))


def description_hash(description: dict[str, str]) -> str:
    """16 hex digits that are equal only for equal descriptions."""
    return hashlib.sha256(json.dumps(description, sort_keys=True).encode()).hexdigest()[:16]


def explain_mismatch(ours: dict[str, str], theirs: dict[str, str], *, here: str = "here", there: str = "there") -> str:
    """One sentence that names each field of two `description`s that differ, with both values; empty when none does."""
    names = [name for name in ours | theirs if ours.get(name) != theirs.get(name)]
    pairs = [f"{name} is {ours.get(name, 'absent')} {here} and {theirs.get(name, 'absent')} {there}" for name in names]
    return f"the two instances lay out their caches differently: {'; '.join(pairs)}" if pairs else ""


def _check_drafter(geometry: ModelGeometry, config: EngineConfig, draft: DraftGeometry | None) -> None:
    method = config.speculation.method
    if method == "mtp" and geometry.num_mtp_layers == 0:
        raise ConfigError("speculation.method: mtp needs a model with an MTP layer; use dflash2 or off")
    if method == "dflash2" and draft is None:
        raise ConfigError("speculation.method: dflash2 needs speculation.draft_path to name the draft's folder")
    if method == "dflash2" and draft and config.speculation.verify_width > draft.block_size:
        raise ConfigError(
            f"speculation.verify_width ({config.speculation.verify_width}) must not exceed the draft's block "
            f"of {draft.block_size}"
        )


def _draft_rows(config: EngineConfig, draft: DraftGeometry) -> DraftRows:
    return DraftRows(
        place=config.cache.draft_kv,
        num_layers=draft.num_layers,
        num_kv_heads=draft.num_kv_heads,
        head_dim=draft.head_dim,
        window=draft.window,
        dtype=config.model.compute_dtype,
    )


def _model_digest(geometry: ModelGeometry, config: EngineConfig) -> str:
    model = config.model
    weights = f"random seed {model.random_seed}" if model.weights == "random" else "checkpoint"
    return f"{description_hash({'geometry': repr(geometry)})} {weights}"


def _up(num_bytes: int, alignment: int) -> int:
    return -(-num_bytes // alignment) * alignment
