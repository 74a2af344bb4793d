"""Values of a config.json that change nothing a server computes."""

from __future__ import annotations

NAMES = frozenset(
    """
    architectures model_type transformers_version torch_dtype dtype auto_map use_cache pad_token_id bos_token_id
    eos_token_id sep_token_id cls_token_id decoder_start_token_id forced_bos_token_id forced_eos_token_id
    tokenizer_class unk_token_id cache_implementation
    begin_suppress_tokens suppress_tokens bad_words_ids prefix finetuning_task task_specific_params problem_type
    id2label label2id num_labels is_decoder is_encoder_decoder return_dict return_dict_in_generate output_scores
    output_attentions output_hidden_states torchscript chunk_size_feed_forward use_bfloat16 pruned_heads
    initializer_range init_std init_device initializer_factor gradient_checkpointing max_length min_length do_sample
    early_stopping num_beams num_beam_groups diversity_penalty temperature top_k top_p typical_p repetition_penalty
    length_penalty no_repeat_ngram_size encoder_no_repeat_ngram_size num_return_sequences remove_invalid_values
    exponential_decay_length_penalty tf_legacy_loss attn_implementation
    attention_dropout hidden_dropout resid_pdrop embd_pdrop emb_pdrop attn_pdrop embed_dropout embedding_dropout
    residual_dropout classifier_dropout dropout activation_dropout layerdrop ffn_dropout
    summary_type summary_use_proj summary_activation summary_proj_to_labels summary_first_dropout
    output_router_logits router_aux_loss_coef router_jitter_noise router_z_loss_coef aux_loss_alpha seq_aux
    attention_probs_dropout_prob hidden_dropout_prob
    pretraining_tp attention_softmax_in_fp32 scale_attention_softmax_in_fp32 use_flash_attn max_sequence_length
    model_max_length unsloth_version unsloth_fixed is_llama_config transformers.js_config
    """.split()
)


def harmless(name: str, value: object) -> bool:
    """Whether the value is one of those, private to a library, or says nothing (null, false, 0, empty)."""
    return name in NAMES or name.startswith("_") or not value
