"""FlashMLA's sparse forward for Hopper: 64 or 128 heads, BF16 latents, prefill.

The package's own kernel takes one flat tensor of rows and an index whose width is a multiple of 128, so indices are
rewritten first: the pool is read where it is. 64 heads are the rows of its matrix instruction; with fewer, most of each
product would be padding, and a decode step's rows of 16 heads have other implementations. T rows, H heads.
"""

from torch import Tensor

from stack.kernels.devices import hopper_only, package_missing

HEADS = (64, 128)
LATENT = 512
INDEX_MULTIPLE = 128
"""Two of its blocks of 64 keys."""


def missing(device: str) -> str | None:
    """Needs Hopper, and a FlashMLA that loads and still has its kernels."""
    if reason := hopper_only(device) or package_missing("flash_mla"):
        return reason
    import flash_mla

    return None if flash_mla.has_legacy() else "this build of flash_mla is without its kernels for Hopper"


def unserved(q_THL: Tensor, latent_NPL: Tensor, index_TW: Tensor, **options: object) -> str | None:
    """Why it does not take such a call, or None."""
    if q_THL.shape[1] not in HEADS or q_THL.shape[2] != LATENT:
        return f"flash_mla takes 64 or 128 heads of width {LATENT}, not {q_THL.shape[1]} of width {q_THL.shape[2]}"
    if q_THL.element_size() != 2 or latent_NPL.dtype != q_THL.dtype:
        return f"flash_mla takes bfloat16 q and latents, not {q_THL.dtype} and {latent_NPL.dtype}"
    return None


def sparse_mla(
    q_THL: Tensor, latent_NPL: Tensor, index_TW: Tensor, *, scale: float, num_splits: int | None = None
) -> Tensor:
    """See the op's contract. A row's keys are never split."""
    import flash_mla

    from stack.kernels.sparse_mla.flat_index import flat_index, flat_rows

    if reason := unserved(q_THL, latent_NPL, index_TW):
        raise ValueError(reason)
    if num_splits not in (None, 1):
        raise ValueError(f"flash_mla takes a row's keys in one part, not {num_splits}")
    if q_THL.shape[0] == 0:
        return q_THL.clone()
    out, _, _ = flash_mla.flash_mla_sparse_fwd(
        q_THL, flat_rows(latent_NPL), flat_index(index_TW, latent_NPL, INDEX_MULTIPLE), scale, LATENT,
        use_legacy=True, return_log2_lse=False,
    )  # fmt: skip
    attended: Tensor = out
    return attended
