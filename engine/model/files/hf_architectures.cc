#include "engine/model/files/hf_architectures.h"

namespace kvblend::model {
namespace {

using enum HfFieldKind;

constexpr HfField kCommonFields[] = {
    {"max_position_embeddings", kRead, {}, true},
    {"hidden_size", kInteger, "embedding_length", true},
    {"num_hidden_layers", kInteger, "block_count", true},
    {"intermediate_size", kInteger, "feed_forward_length", true},
    {"num_attention_heads", kInteger, "attention.head_count", true},
    {"rms_norm_eps", kNumber, "attention.layer_norm_rms_epsilon", true},
    {"num_key_value_heads", kRead},
    {"head_dim", kRead},
    {"vocab_size", kRead},
    {"rope_theta", kRead},
    {"rope_scaling", kRead},
    {"rope_parameters", kRead},
    {"original_max_position_embeddings", kRead},
    {"layer_types", kRead},
    {"sliding_window", kRead},
    {"use_sliding_window", kRead},
    {"tie_word_embeddings", kRead},
    {"quantization_config", kRead},
    {"model_type", kRead},
    {"hidden_act", kRead},
    {"hidden_activation", kRead},
    {"bos_token_id", kRead},
    {"eos_token_id", kRead},
    {"rope_interleaved", kMustBe, "false"},
    {"use_mrope", kMustBe, "false"},
    {"is_encoder_decoder", kMustBe, "false"},
    {"add_cross_attention", kMustBe, "false"},
    {"attention_bias", kHarmless},  // whether there is one, the tensors tell
    {"mlp_bias", kHarmless},
    {"architectures", kHarmless},
    {"auto_map", kHarmless},  // code for libraries that do not know the architecture yet
    {"torch_dtype", kHarmless},
    {"dtype", kHarmless},
    {"transformers_version", kHarmless},
    {"transformers.js_config", kHarmless},
    {"_name_or_path", kHarmless},
    {"name_or_path", kHarmless},
    {"_attn_implementation", kHarmless},
    {"_attn_implementation_autoset", kHarmless},
    {"attn_implementation", kHarmless},
    {"use_cache", kHarmless},
    {"cache_implementation", kHarmless},
    {"initializer_range", kHarmless},
    {"attention_dropout", kHarmless},  // of training, as the next three
    {"attn_pdrop", kHarmless},
    {"embd_pdrop", kHarmless},
    {"resid_pdrop", kHarmless},
    {"pad_token_id", kHarmless},
    {"pretraining_tp", kHarmless},
    {"max_window_layers", kHarmless},  // without a sliding window
    {"is_llama_config", kHarmless},
    {"unsloth_fixed", kHarmless},
    {"unsloth_version", kHarmless},
    {"return_dict", kHarmless},
    {"output_attentions", kHarmless},
    {"output_hidden_states", kHarmless},
    {"output_router_logits", kHarmless},
    {"router_aux_loss_coef", kHarmless},
    {"neftune_noise_alpha", kHarmless},
    {"max_sequence_length", kHarmless},  // of training
    {"tokenizer_class", kHarmless},      // tokenizer.json says it
    {"chunk_size_feed_forward", kHarmless},
    {"do_sample", kHarmless},  // how to sample is the request's; as the next seven
    {"max_length", kHarmless},
    {"min_length", kHarmless},
    {"num_beams", kHarmless},
    {"repetition_penalty", kHarmless},
    {"temperature", kHarmless},
    {"top_k", kHarmless},
    {"top_p", kHarmless},
};

constexpr HfField kSmolLm3Fields[] = {
    {"no_rope_layers", kRead},
    {"no_rope_layer_interval", kMustBe, "4"},
};
constexpr HfField kMixtralFields[] = {
    {"num_local_experts", kInteger, "expert_count", true},
    {"num_experts_per_tok", kInteger, "expert_used_count", true},
    {"router_jitter_noise", kHarmless},  // of training
};
constexpr HfField kQwen3MoeFields[] = {
    {"num_experts", kInteger, "expert_count"},  // under the one name or the other, by transformers' version
    {"num_local_experts", kInteger, "expert_count"},
    {"num_experts_per_tok", kInteger, "expert_used_count", true},
    {"moe_intermediate_size", kInteger, "expert_feed_forward_length", true},
    {"norm_topk_prob", kSwitch, "expert_weights_norm", true},
    {"decoder_sparse_step", kMustBe, "1"},
    {"mlp_only_layers", kMustBe, "[]"},
    {"qkv_bias", kMustBe, "false"},
    {"use_qk_norm", kMustBe, "true"},
    {"shared_expert_intermediate_size", kMustBe, "0"},
};
constexpr HfField kGemma2Fields[] = {
    {"attn_logit_softcapping", kNumberOrNull, "attn_logit_softcapping"},
    {"final_logit_softcapping", kNumberOrNull, "final_logit_softcapping"},
    {"sliding_window_size", kSameAs, "sliding_window"},
    {"query_pre_attn_scalar", kRead},
    {"use_bidirectional_attention", kMustBe, "false"},
};
constexpr HfField kGemma3Fields[] = {
    {"attn_logit_softcapping", kMustBe, "null"},
    {"final_logit_softcapping", kMustBe, "null"},
    {"query_pre_attn_scalar", kRead},
    {"rope_local_base_freq", kRead},
    {"sliding_window_pattern", kMustBe, "6"},
    {"_sliding_window_pattern", kMustBe, "6"},
    {"use_bidirectional_attention", kMustBe, "false"},
};
constexpr HfField kPhi3Fields[] = {
    {"partial_rotary_factor", kRead},
    {"full_attn_mod", kMustBe, "1"},
    {"interpolate_factor", kMustBe, "1"},
    {"lm_head_bias", kMustBe, "false"},
};
constexpr HfField kGraniteFields[] = {
    {"attention_multiplier", kNumber, "attention.scale", true},
    {"embedding_multiplier", kNumber, "embedding_scale", true},
    {"residual_multiplier", kNumber, "residual_scale", true},
    {"logits_scaling", kNumber, "logit_scale", true},
};

constexpr HfField kGptOssFields[] = {
    {"num_local_experts", kInteger, "expert_count", true},
    {"num_experts", kSameAs, "num_local_experts"},
    {"num_experts_per_tok", kInteger, "expert_used_count", true},
    {"experts_per_token", kSameAs, "num_experts_per_tok"},
    {"swiglu_limit", kMustBe, "7.0"},
    {"swiglu_alpha", kMustBe, "1.702"},
    {"initial_context_length", kHarmless},  // RoPE's scaling says it too
};

// Tensors that nearly all architectures have.
#define KVBLEND_ATTENTION_TENSORS                                                                    \
  {"input_layernorm.weight", "attn_norm.weight"}, {"self_attn.q_proj.weight", "attn_q.weight"},      \
      {"self_attn.q_proj.bias", "attn_q.bias"}, {"self_attn.k_proj.weight", "attn_k.weight"},        \
      {"self_attn.k_proj.bias", "attn_k.bias"}, {"self_attn.v_proj.weight", "attn_v.weight"},        \
      {"self_attn.v_proj.bias", "attn_v.bias"}, {"self_attn.o_proj.weight", "attn_output.weight"}, { \
    "self_attn.o_proj.bias", "attn_output.bias"                                                      \
  }
#define KVBLEND_QUERY_KEY_NORM_TENSORS \
  {"self_attn.q_norm.weight", "attn_q_norm.weight"}, { "self_attn.k_norm.weight", "attn_k_norm.weight" }
#define KVBLEND_MLP_TENSORS                                                             \
  {"mlp.gate_proj.weight", "ffn_gate.weight"}, {"mlp.gate_proj.bias", "ffn_gate.bias"}, \
      {"mlp.up_proj.weight", "ffn_up.weight"}, {"mlp.up_proj.bias", "ffn_up.bias"},     \
      {"mlp.down_proj.weight", "ffn_down.weight"}, {                                    \
    "mlp.down_proj.bias", "ffn_down.bias"                                               \
  }

constexpr HfTensorName kLlamaTensors[] = {
    KVBLEND_ATTENTION_TENSORS,
    KVBLEND_MLP_TENSORS,
    {"post_attention_layernorm.weight", "ffn_norm.weight"},
};
constexpr HfTensorName kQwen3Tensors[] = {
    KVBLEND_ATTENTION_TENSORS,
    KVBLEND_QUERY_KEY_NORM_TENSORS,
    KVBLEND_MLP_TENSORS,
    {"post_attention_layernorm.weight", "ffn_norm.weight"},
};
constexpr HfTensorName kGemmaTensors[] = {
    KVBLEND_ATTENTION_TENSORS,
    KVBLEND_QUERY_KEY_NORM_TENSORS,
    KVBLEND_MLP_TENSORS,
    {"post_attention_layernorm.weight", "post_attention_norm.weight"},
    {"pre_feedforward_layernorm.weight", "ffn_norm.weight"},
    {"post_feedforward_layernorm.weight", "post_ffw_norm.weight"},
};
constexpr HfTensorName kPhi3Tensors[] = {
    {"input_layernorm.weight", "attn_norm.weight"},    {"self_attn.qkv_proj.weight", "attn_qkv.weight"},
    {"self_attn.o_proj.weight", "attn_output.weight"}, {"mlp.gate_up_proj.weight", "ffn_up.weight"},
    {"mlp.down_proj.weight", "ffn_down.weight"},       {"post_attention_layernorm.weight", "ffn_norm.weight"},
};
constexpr HfTensorName kMixtralTensors[] = {
    KVBLEND_ATTENTION_TENSORS,
    {"block_sparse_moe.gate.weight", "ffn_gate_inp.weight"},
    {"post_attention_layernorm.weight", "ffn_norm.weight"},
};
constexpr HfTensorName kMixtralExperts[] = {
    {"w1.weight", "ffn_gate_exps.weight"},
    {"w2.weight", "ffn_down_exps.weight"},
    {"w3.weight", "ffn_up_exps.weight"},
};
constexpr HfTensorName kQwen3MoeTensors[] = {
    KVBLEND_ATTENTION_TENSORS,
    KVBLEND_QUERY_KEY_NORM_TENSORS,
    {"mlp.gate.weight", "ffn_gate_inp.weight"},
    {"post_attention_layernorm.weight", "ffn_norm.weight"},
};
constexpr HfTensorName kQwen3MoeExperts[] = {
    {"gate_proj.weight", "ffn_gate_exps.weight"},
    {"down_proj.weight", "ffn_down_exps.weight"},
    {"up_proj.weight", "ffn_up_exps.weight"},
};

constexpr HfTensorName kGptOssTensors[] = {
    KVBLEND_ATTENTION_TENSORS,
    {"self_attn.sinks", "attn_sinks.weight"},
    {"mlp.router.weight", "ffn_gate_inp.weight"},
    {"mlp.router.bias", "ffn_gate_inp.bias"},
    {"post_attention_layernorm.weight", "post_attention_norm.weight"},
};

#undef KVBLEND_ATTENTION_TENSORS
#undef KVBLEND_QUERY_KEY_NORM_TENSORS
#undef KVBLEND_MLP_TENSORS

const HfArchitecture kFolderArchitectures[] = {
    {.model_type = "llama",
     .architecture = "llama",
     .permuted = true,
     .default_rope_theta = 10000,
     .writes_vocab_size = true,
     .tensors = kLlamaTensors},
    {.model_type = "mistral",
     .architecture = "llama",
     .permuted = true,
     .has_window = true,
     .default_window = 4096,
     .default_rope_theta = 10000,
     .writes_vocab_size = true,
     .tensors = kLlamaTensors},
    {.model_type = "mixtral",
     .architecture = "llama",
     .permuted = true,
     .has_window = true,
     .writes_vocab_size = true,
     .fields = kMixtralFields,
     .tensors = kMixtralTensors,
     .experts = kMixtralExperts,
     .expert_prefix = "block_sparse_moe.experts."},
    {.model_type = "smollm3",
     .architecture = "smollm3",
     .permuted = true,
     .switches_window = true,
     .unrotated_layer_period = 4,
     .default_rope_theta = 2000000,
     .writes_vocab_size = true,
     .fields = kSmolLm3Fields,
     .tensors = kLlamaTensors},
    {.model_type = "qwen2",
     .architecture = "qwen2",
     .switches_window = true,
     .default_rope_theta = 10000,
     .tensors = kLlamaTensors},
    {.model_type = "qwen3",
     .architecture = "qwen3",
     .switches_window = true,
     .default_rope_theta = 10000,
     .tensors = kQwen3Tensors},
    {.model_type = "qwen3_moe",
     .architecture = "qwen3moe",
     .switches_window = true,
     .default_rope_theta = 10000,
     .fields = kQwen3MoeFields,
     .tensors = kQwen3MoeTensors,
     .experts = kQwen3MoeExperts,
     .expert_prefix = "mlp.experts."},
    {.model_type = "gemma2",
     .architecture = "gemma2",
     .norms_add_one = true,
     .gelu = true,
     .window_pattern = 2,
     .default_rope_theta = 10000,
     .fields = kGemma2Fields,
     .tensors = kGemmaTensors},
    {.model_type = "gemma3_text",
     .architecture = "gemma3",
     .norms_add_one = true,
     .gelu = true,
     .window_pattern = 6,
     .default_rope_theta = 1000000,
     .fields = kGemma3Fields,
     .tensors = kGemmaTensors},
    {.model_type = "phi3",
     .architecture = "phi3",
     .has_window = true,
     .default_rope_theta = 10000,
     .fields = kPhi3Fields,
     .tensors = kPhi3Tensors},
    {.model_type = "granite",
     .architecture = "granite",
     .permuted = true,
     .default_rope_theta = 10000,
     .writes_vocab_size = true,
     .fields = kGraniteFields,
     .tensors = kLlamaTensors},
    {.model_type = "gpt_oss",
     .architecture = "gpt-oss",
     .window_pattern = 2,
     .default_rope_theta = 150000,
     .states_rope_scaling = true,
     .fields = kGptOssFields,
     .tensors = kGptOssTensors,
     .fused_experts = true},
};

}  // namespace

absl::Span<const HfField> HfCommonFields() { return kCommonFields; }

absl::Span<const HfArchitecture> HfArchitectures() { return kFolderArchitectures; }

}  // namespace kvblend::model
