"""The small checkpoint's shape: what its two `config.json` files say. Every mechanism is there, every count is small.

Target, MTP layer and draft together stay under 4 MiB of BF16. The index budget of 128 tokens makes selection matter
in prompts of a few hundred tokens, and the activation's clamp at 2 makes it act.
"""

from typing import Any

from stack.training.tokenizer import END_ID, MASK_ID, PAD_ID, VOCAB_SIZE

_KDA, _DSA = "linear_attention", "deepseek_sparse_attention"
LAYER_TYPES = [_KDA, _KDA, _DSA, _KDA, _KDA, _DSA]
LINEAR = {
    "num_heads": 4,
    "head_dim": 32,
    "short_conv_kernel_size": 4,
    "gate_lower_bound": -5.0,
    "kda_layers": [0, 1, 3, 4],
    "full_attn_layers": [2, 5],
}
TEXT_CONFIG: dict[str, Any] = {
    "model_type": "glm5_next_text",
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 128,
    "intermediate_size": 256,
    "moe_intermediate_size": 32,
    "num_hidden_layers": len(LAYER_TYPES),
    "mlp_layer_types": ["dense", *["sparse"] * 5],
    "layer_types": LAYER_TYPES,
    "indexer_types": ["full"] * len(LAYER_TYPES),
    "first_k_dense_replace": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "q_lora_rank": 64,
    "kv_lora_rank": 64,
    "qk_nope_head_dim": 32,
    "qk_rope_head_dim": 0,
    "v_head_dim": 32,
    "mla_use_nope": True,
    "index_n_heads": 16,
    "index_head_dim": 32,
    "index_topk": 128,
    "index_kpool": 4,
    "index_kpool_compress": True,
    "index_kpool_always_select_tail": True,
    "index_share_for_mtp_iteration": True,
    "linear_attn_config": LINEAR,
    "mhc": True,
    "hc_mult": 4,
    "hc_eps": 1e-6,
    "hc_sinkhorn_iters": 20,
    "swiglu_limit": 2.0,
    "rms_norm_eps": 1e-5,
    "n_routed_experts": 8,
    "num_experts_per_tok": 2,
    "n_shared_experts": 1,
    "n_group": 1,
    "topk_group": 1,
    "norm_topk_prob": True,
    "routed_scaling_factor": 2.5,
    "scoring_func": "sigmoid",
    "topk_method": "noaux_tc",
    "num_nextn_predict_layers": 1,
    "max_position_embeddings": 4096,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "pad_token_id": PAD_ID,
    "eos_token_id": [END_ID],
}
DRAFT_CONFIG: dict[str, Any] = {
    "architectures": ["DFlash2DraftModel"],
    "model_type": "qwen3",
    "hidden_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "intermediate_size": 192,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-5,
    "attention_bias": False,
    "vocab_size": VOCAB_SIZE,
    "rope_theta": 10000,
    "is_causal": False,
    "layer_types": ["sliding_attention"] * 2,
    "sliding_window": 128,
    "max_position_embeddings": 4096,
    "num_target_layers": len(LAYER_TYPES),
    "dflash_config": {
        "block_size": 8,
        "mask_token_id": MASK_ID,
        "target_layer_ids": [1, 3, 5],
        "conv_kernel_size": 2,
        "conv_group_size": 16,
        "selector_rank": 16,
        "selector_top_k": 16,
    },
}
