// The rows of kRows are printed by tests/golden/make/make_class_defaults.py, from transformers
// 4.57.1. They have the keys that hf_configuration.cc reads, without those whose default is None.
#include "model/huggingface/class_defaults.h"

#include <algorithm>
#include <iterator>

namespace flotilla::model {
namespace {

struct Row {
  std::string_view model_type;
  std::string_view defaults;  // a JSON object
};
constexpr Row kRows[] = {
    // clang-format off
    {"bloom", R"(
     {"tie_word_embeddings": true, "vocab_size": 250880, "hidden_size": 64, "n_layer": 2,
      "n_head": 8, "layer_norm_epsilon": 1e-05,
      "apply_residual_connection_post_layernorm": false})"},
    {"cohere", R"(
     {"tie_word_embeddings": true, "vocab_size": 256000, "hidden_size": 8192,
      "intermediate_size": 22528, "logit_scale": 0.0625, "num_hidden_layers": 40,
      "num_attention_heads": 64, "hidden_act": "silu", "max_position_embeddings": 8192,
      "layer_norm_eps": 1e-05, "rope_theta": 10000.0, "attention_bias": false,
      "use_qk_norm": false})"},
    {"cohere2", R"(
     {"tie_word_embeddings": true, "vocab_size": 256000, "hidden_size": 8192,
      "intermediate_size": 22528, "logit_scale": 0.0625, "num_hidden_layers": 40,
      "num_attention_heads": 64, "hidden_act": "silu", "max_position_embeddings": 8192,
      "layer_norm_eps": 1e-05, "rope_theta": 10000.0, "attention_bias": false,
      "sliding_window": 4096})"},
    {"deepseek_v2", R"(
     {"vocab_size": 32000, "hidden_size": 4096, "intermediate_size": 11008,
      "num_hidden_layers": 32, "num_attention_heads": 32, "hidden_act": "silu",
      "max_position_embeddings": 2048, "rms_norm_eps": 1e-06, "rope_theta": 10000.0,
      "attention_bias": false, "first_k_dense_replace": 0, "kv_lora_rank": 512,
      "q_lora_rank": 1536, "n_routed_experts": 64, "n_shared_experts": 2,
      "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "routed_scaling_factor": 1.0,
      "topk_method": "greedy", "v_head_dim": 128, "norm_topk_prob": false,
      "moe_intermediate_size": 1407})"},
    {"deepseek_v3", R"(
     {"vocab_size": 129280, "hidden_size": 7168, "intermediate_size": 18432,
      "moe_intermediate_size": 2048, "num_hidden_layers": 61, "num_attention_heads": 128,
      "num_key_value_heads": 128, "n_shared_experts": 1, "n_routed_experts": 256,
      "routed_scaling_factor": 2.5, "kv_lora_rank": 512, "q_lora_rank": 1536,
      "qk_rope_head_dim": 64, "v_head_dim": 128, "qk_nope_head_dim": 128, "n_group": 8,
      "topk_group": 4, "num_experts_per_tok": 8, "first_k_dense_replace": 3,
      "norm_topk_prob": true, "hidden_act": "silu", "max_position_embeddings": 4096,
      "rms_norm_eps": 1e-06, "rope_theta": 10000.0, "rope_interleave": true,
      "attention_bias": false})"},
    {"ernie4_5", R"(
     {"tie_word_embeddings": true, "vocab_size": 103424, "hidden_size": 1024,
      "intermediate_size": 3072, "num_hidden_layers": 18, "num_attention_heads": 16,
      "num_key_value_heads": 2, "hidden_act": "silu", "max_position_embeddings": 131072,
      "rms_norm_eps": 1e-05, "rope_theta": 500000.0, "use_bias": false, "head_dim": 128})"},
    {"falcon", R"(
     {"tie_word_embeddings": true, "vocab_size": 65024, "hidden_size": 4544,
      "num_hidden_layers": 32, "num_attention_heads": 71, "layer_norm_epsilon": 1e-05,
      "alibi": false, "new_decoder_architecture": false, "multi_query": true,
      "parallel_attn": true, "max_position_embeddings": 2048, "rope_theta": 10000.0,
      "activation": "gelu"})"},
    {"gemma", R"(
     {"tie_word_embeddings": true, "vocab_size": 256000, "hidden_size": 3072,
      "intermediate_size": 24576, "num_hidden_layers": 28, "num_attention_heads": 16,
      "num_key_value_heads": 16, "head_dim": 256, "hidden_act": "gelu_pytorch_tanh",
      "max_position_embeddings": 8192, "rms_norm_eps": 1e-06, "rope_theta": 10000.0,
      "attention_bias": false})"},
    {"gemma2", R"(
     {"tie_word_embeddings": true, "vocab_size": 256000, "hidden_size": 2304,
      "intermediate_size": 9216, "num_hidden_layers": 26, "num_attention_heads": 8,
      "num_key_value_heads": 4, "head_dim": 256, "hidden_activation": "gelu_pytorch_tanh",
      "max_position_embeddings": 8192, "rms_norm_eps": 1e-06, "rope_theta": 10000.0,
      "attention_bias": false, "query_pre_attn_scalar": 256, "sliding_window": 4096,
      "final_logit_softcapping": 30.0, "attn_logit_softcapping": 50.0})"},
    {"gemma3_text", R"(
     {"tie_word_embeddings": true, "vocab_size": 262208, "hidden_size": 2304,
      "intermediate_size": 9216, "num_hidden_layers": 26, "num_attention_heads": 8,
      "num_key_value_heads": 4, "head_dim": 256, "hidden_activation": "gelu_pytorch_tanh",
      "max_position_embeddings": 131072, "rms_norm_eps": 1e-06, "rope_theta": 1000000.0,
      "attention_bias": false, "query_pre_attn_scalar": 256, "sliding_window": 4096,
      "rope_local_base_freq": 10000.0, "use_bidirectional_attention": false})"},
    {"glm4", R"(
     {"vocab_size": 151552, "hidden_size": 4096, "intermediate_size": 13696,
      "num_hidden_layers": 40, "num_attention_heads": 32, "num_key_value_heads": 2,
      "partial_rotary_factor": 0.5, "head_dim": 128, "hidden_act": "silu",
      "max_position_embeddings": 131072, "rms_norm_eps": 1.5625e-07, "rope_theta":
      10000.0, "attention_bias": true})"},
    {"gpt2", R"(
     {"tie_word_embeddings": true, "vocab_size": 50257, "n_positions": 1024, "n_embd":
      768, "n_layer": 12, "n_head": 12, "activation_function": "gelu_new",
      "layer_norm_epsilon": 1e-05, "scale_attn_weights": true,
      "scale_attn_by_inverse_layer_idx": false})"},
    {"gpt_bigcode", R"(
     {"tie_word_embeddings": true, "vocab_size": 50257, "n_positions": 1024, "n_embd":
      768, "n_layer": 12, "n_head": 12, "activation_function": "gelu_pytorch_tanh",
      "layer_norm_epsilon": 1e-05, "scale_attn_weights": true, "multi_query": true})"},
    {"gpt_neox", R"(
     {"vocab_size": 50432, "hidden_size": 6144, "num_hidden_layers": 44,
      "num_attention_heads": 64, "intermediate_size": 24576, "hidden_act": "gelu",
      "rotary_pct": 0.25, "rotary_emb_base": 10000, "max_position_embeddings": 2048,
      "layer_norm_eps": 1e-05, "use_parallel_residual": true, "attention_bias": true})"},
    {"gpt_oss", R"(
     {"num_hidden_layers": 36, "num_local_experts": 128, "vocab_size": 201088,
      "hidden_size": 2880, "intermediate_size": 2880, "head_dim": 64,
      "num_attention_heads": 64, "num_key_value_heads": 8, "sliding_window": 128,
      "rope_theta": 150000.0, "hidden_act": "silu", "max_position_embeddings": 131072,
      "rms_norm_eps": 1e-05, "rope_scaling": {"rope_type": "yarn", "factor": 32.0,
      "beta_fast": 32.0, "beta_slow": 1.0, "truncate": false,
      "original_max_position_embeddings": 4096}, "num_experts_per_tok": 4})"},
    {"gptj", R"(
     {"vocab_size": 50400, "n_positions": 2048, "n_embd": 4096, "n_layer": 28, "n_head":
      16, "rotary_dim": 64, "activation_function": "gelu_new", "layer_norm_epsilon":
      1e-05})"},
    {"granite", R"(
     {"vocab_size": 32000, "hidden_size": 4096, "intermediate_size": 11008,
      "num_hidden_layers": 32, "num_attention_heads": 32, "hidden_act": "silu",
      "max_position_embeddings": 2048, "rms_norm_eps": 1e-06, "rope_theta": 10000.0,
      "attention_bias": false, "embedding_multiplier": 1.0, "logits_scaling": 1.0,
      "residual_multiplier": 1.0, "attention_multiplier": 1.0})"},
    {"llama", R"(
     {"vocab_size": 32000, "hidden_size": 4096, "intermediate_size": 11008,
      "num_hidden_layers": 32, "num_attention_heads": 32, "hidden_act": "silu",
      "max_position_embeddings": 2048, "rms_norm_eps": 1e-06, "rope_theta": 10000.0,
      "attention_bias": false})"},
    {"mistral", R"(
     {"vocab_size": 32000, "hidden_size": 4096, "intermediate_size": 14336,
      "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8,
      "hidden_act": "silu", "max_position_embeddings": 131072, "rms_norm_eps": 1e-06,
      "rope_theta": 10000.0, "sliding_window": 4096})"},
    {"mixtral", R"(
     {"vocab_size": 32000, "hidden_size": 4096, "intermediate_size": 14336,
      "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8,
      "hidden_act": "silu", "max_position_embeddings": 131072, "rms_norm_eps": 1e-05,
      "rope_theta": 1000000.0, "num_experts_per_tok": 2, "num_local_experts": 8})"},
    {"olmo2", R"(
     {"vocab_size": 50304, "hidden_size": 4096, "intermediate_size": 11008,
      "num_hidden_layers": 32, "num_attention_heads": 32, "hidden_act": "silu",
      "max_position_embeddings": 2048, "rope_theta": 10000.0, "attention_bias": false,
      "rms_norm_eps": 1e-05})"},
    {"opt", R"(
     {"tie_word_embeddings": true, "vocab_size": 50272, "hidden_size": 768,
      "num_hidden_layers": 12, "ffn_dim": 3072, "max_position_embeddings": 2048,
      "do_layer_norm_before": true, "num_attention_heads": 12, "activation_function":
      "relu", "enable_bias": true})"},
    {"phi", R"(
     {"vocab_size": 51200, "hidden_size": 2048, "intermediate_size": 8192,
      "num_hidden_layers": 24, "num_attention_heads": 32, "hidden_act": "gelu_new",
      "max_position_embeddings": 2048, "layer_norm_eps": 1e-05, "rope_theta": 10000.0,
      "partial_rotary_factor": 0.5, "qk_layernorm": false})"},
    {"phi3", R"(
     {"vocab_size": 32064, "hidden_size": 3072, "intermediate_size": 8192,
      "num_hidden_layers": 32, "num_attention_heads": 32, "hidden_act": "silu",
      "max_position_embeddings": 4096, "original_max_position_embeddings": 4096,
      "rms_norm_eps": 1e-05, "rope_theta": 10000.0, "partial_rotary_factor": 1.0})"},
    {"qwen2", R"(
     {"vocab_size": 151936, "hidden_size": 4096, "intermediate_size": 22016,
      "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 32,
      "hidden_act": "silu", "max_position_embeddings": 32768, "rms_norm_eps": 1e-06,
      "rope_theta": 10000.0, "use_sliding_window": false, "sliding_window": 4096,
      "max_window_layers": 28})"},
    {"qwen2_moe", R"(
     {"vocab_size": 151936, "hidden_size": 2048, "intermediate_size": 5632,
      "num_hidden_layers": 24, "num_attention_heads": 16, "num_key_value_heads": 16,
      "hidden_act": "silu", "max_position_embeddings": 32768, "rms_norm_eps": 1e-06,
      "rope_theta": 10000.0, "use_sliding_window": false, "sliding_window": 4096,
      "max_window_layers": 28, "decoder_sparse_step": 1, "moe_intermediate_size": 1408,
      "shared_expert_intermediate_size": 5632, "num_experts_per_tok": 4, "num_experts":
      60, "norm_topk_prob": false})"},
    {"qwen3", R"(
     {"vocab_size": 151936, "hidden_size": 4096, "intermediate_size": 22016,
      "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 32,
      "head_dim": 128, "hidden_act": "silu", "max_position_embeddings": 32768,
      "rms_norm_eps": 1e-06, "rope_theta": 10000.0, "attention_bias": false,
      "use_sliding_window": false, "sliding_window": 4096, "max_window_layers": 28})"},
    {"qwen3_moe", R"(
     {"vocab_size": 151936, "hidden_size": 2048, "intermediate_size": 6144,
      "num_hidden_layers": 24, "num_attention_heads": 32, "num_key_value_heads": 4,
      "hidden_act": "silu", "max_position_embeddings": 32768, "rms_norm_eps": 1e-06,
      "rope_theta": 10000.0, "attention_bias": false, "use_sliding_window": false,
      "sliding_window": 4096, "decoder_sparse_step": 1, "moe_intermediate_size": 768,
      "num_experts_per_tok": 8, "num_experts": 128, "norm_topk_prob": false})"},
    {"smollm3", R"(
     {"tie_word_embeddings": true, "vocab_size": 128256, "hidden_size": 2048,
      "intermediate_size": 11008, "num_hidden_layers": 36, "num_attention_heads": 16,
      "num_key_value_heads": 4, "hidden_act": "silu", "max_position_embeddings": 32768,
      "rms_norm_eps": 1e-06, "rope_theta": 2000000.0, "use_sliding_window": false,
      "no_rope_layer_interval": 4, "attention_bias": false})"},
    {"stablelm", R"(
     {"vocab_size": 50304, "intermediate_size": 6912, "hidden_size": 2560,
      "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 32,
      "hidden_act": "silu", "max_position_embeddings": 4096, "layer_norm_eps": 1e-05,
      "rope_theta": 10000, "qk_layernorm": false, "use_parallel_residual": false,
      "partial_rotary_factor": 0.25})"},
    {"starcoder2", R"(
     {"tie_word_embeddings": true, "vocab_size": 49152, "hidden_size": 3072,
      "intermediate_size": 12288, "num_hidden_layers": 30, "num_attention_heads": 24,
      "num_key_value_heads": 2, "hidden_act": "gelu_pytorch_tanh",
      "max_position_embeddings": 4096, "norm_epsilon": 1e-05, "rope_theta": 10000.0,
      "use_bias": true})"},
    // clang-format on
};

struct TextType {
  std::string_view model_type, text;
};
constexpr TextType kTextTypes[] = {
    {"gemma3", "gemma3_text"},
    {"llava", "llama"},
    {"mistral3", "mistral"},
};

constexpr std::string_view kNullable[] = {
    "attn_logit_softcapping", "final_logit_softcapping", "head_dim",
    "n_shared_experts",       "num_key_value_heads",     "q_lora_rank",
    "sliding_window"};

}  // namespace

Json ClassDefaults(std::string_view model_type) {
  const auto* row = std::ranges::find(kRows, model_type, &Row::model_type);
  return row == std::end(kRows) ? Json::object() : Json::parse(row->defaults);
}

std::string_view DefaultTextType(std::string_view model_type) {
  const auto* row = std::ranges::find(kTextTypes, model_type, &TextType::model_type);
  return row == std::end(kTextTypes) ? std::string_view() : row->text;
}

bool MayBeNull(std::string_view name) {
  return std::ranges::find(kNullable, name) != std::end(kNullable);
}

}  // namespace flotilla::model
