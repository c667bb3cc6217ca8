"""The views of pages and states that a forward pass may touch. Owns nothing; `stack.cache` fills it in.

N pages of P tokens (or entries of the replay ring), Q = P / kpool pools a page, S state slots, H heads, K = V = D
widths,
L KDA layers, W rows of a verify, X convolution channels.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class PagedLayer:
    """One sparse-attention layer's part of every page and slot."""

    latent_NPL: "Tensor"
    """Latent rows, strided over the page pool."""
    codes_NQD: "Tensor"
    """Pooled index keys: E4M3 codes, or plain values."""
    scale_NQ: "Tensor | None"
    """FP32 scale of each pooled key; None when `codes_NQD` holds plain values."""
    tail_SR2D: "Tensor"
    """Ring of un-pooled keys and gates, position mod R."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayRing:
    """Inputs of the rows of a verify; with a leading L where it spans layers."""

    k_NWHD: "Tensor"
    v_NWHD: "Tensor"
    g_NWHD: "Tensor"
    beta_NWH: "Tensor"
    x_NWX: "Tensor"


@dataclass(frozen=True, slots=True, kw_only=True)
class KdaLayer:
    """One linear-attention layer's part of every slot."""

    state_SHKV: "Tensor"
    conv_SHCDW: "Tensor"
    ring: ReplayRing | None
    snapshots_NWHKV: "Tensor | None"


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftLayer:
    """A DFlash2 layer's context rows: a ring of the window per slot [S, window, G, D], or in pages [N, P, G, D]."""

    k: "Tensor"
    v: "Tensor"


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelMemory:
    """Everything a model reads and writes besides its weights."""

    paged: tuple[PagedLayer, ...]
    """DSA layers in order, then the MTP layer where there is one."""
    kda: tuple[KdaLayer, ...]
    """KDA layers in order."""
    draft: tuple[DraftLayer, ...]
    """DFlash2 layers in order; empty without that drafter."""
    state_SHLKV: "Tensor"
    """All KDA layers of every slot, as `kda_commit` takes them."""
    conv_SHLCDW: "Tensor"
    """All convolution windows of every slot."""
    ring_all: ReplayRing | None
    """The replay ring over all layers."""
    snapshots_LNWHKV: "Tensor | None"
    """States after each row of a verify, for commit by snapshot."""
    index_workspace_bytes: int
    """Cap of the index scores' workspace; work beyond it is tiled."""
