#include "model/huggingface/hf_configuration.h"

#include <algorithm>
#include <initializer_list>
#include <span>
#include <utility>

#include "common/types/text.h"
#include "model/huggingface/class_defaults.h"

namespace flotilla::model {
namespace {

// Which names a key has in config.json: the first one that is there counts.
struct Names {
  std::string_view key;
  std::string_view names[4];
};
constexpr Names kNames[] = {
    {"block_count", {"num_hidden_layers", "n_layer", "num_layers"}},
    {"embedding_length", {"hidden_size", "n_embd", "n_embed"}},
    {"feed_forward_length", {"intermediate_size", "n_inner", "ffn_dim", "ffn_hidden_size"}},
    {"feed_forward.activation",
     {"hidden_act", "hidden_activation", "activation_function", "activation"}},
    {"feed_forward.gate_activation", {"hidden_activation"}},
    {"context_length", {"max_position_embeddings", "n_positions"}},
    {"attention.head_count", {"num_attention_heads", "n_head"}},
    {"attention.head_count_kv", {"num_key_value_heads", "num_kv_heads"}},
    {"attention.key_length", {"head_dim"}},
    {"attention.value_length", {"v_head_dim", "head_dim"}},
    {"attention.layer_norm_rms_epsilon", {"rms_norm_eps"}},
    {"attention.layer_norm_epsilon", {"layer_norm_eps", "layer_norm_epsilon", "norm_epsilon"}},
    {"attention.sliding_window", {"sliding_window"}},
    {"attention.sliding_window_pattern", {"layer_types", "sliding_window_pattern"}},
    {"attention.scale", {"attention_multiplier"}},
    {"attention.query_pre_attn_scalar", {"query_pre_attn_scalar"}},
    {"attention.use_qk_norm", {"use_qk_norm", "qk_layernorm"}},
    {"attn_logit_softcapping", {"attn_logit_softcapping"}},
    {"final_logit_softcapping", {"final_logit_softcapping"}},
    {"embedding_scale", {"embedding_multiplier"}},
    {"residual_scale", {"residual_multiplier"}},
    {"logit_scale", {"logit_scale", "logits_scaling"}},
    {"use_parallel_residual", {"use_parallel_residual"}},
    {"alibi", {"alibi"}},
    {"multi_query", {"multi_query"}},
    {"parallel_attn", {"parallel_attn"}},
    {"new_decoder_architecture", {"new_decoder_architecture"}},
    {"num_ln_in_parallel_attn", {"num_ln_in_parallel_attn"}},
    {"do_layer_norm_before", {"do_layer_norm_before"}},
    {"word_embed_proj_dim", {"word_embed_proj_dim"}},
    {"apply_residual_connection_post_layernorm", {"apply_residual_connection_post_layernorm"}},
    {"scale_attn_weights", {"scale_attn_weights"}},
    {"scale_attn_by_inverse_layer_idx", {"scale_attn_by_inverse_layer_idx"}},
    {"max_window_layers", {"max_window_layers"}},
    {"rope.layers", {"no_rope_layers"}},
    {"rope.layer_interval", {"no_rope_layer_interval"}},
    {"attention.bidirectional", {"use_bidirectional_attention"}},
    {"rope.dimension_count", {"rotary_dim"}},
    {"expert_count", {"num_local_experts", "num_experts", "n_routed_experts"}},
    {"expert_used_count", {"num_experts_per_tok"}},
    {"expert_feed_forward_length", {"moe_intermediate_size"}},
    {"expert_shared_feed_forward_length", {"shared_expert_intermediate_size"}},
    {"expert_weights_norm", {"norm_topk_prob"}},
    {"interleave_moe_layer_step", {"decoder_sparse_step"}},
    {"mlp_only_layers", {"mlp_only_layers"}},
    {"expert_shared_count", {"n_shared_experts"}},
    {"expert_weights_scale", {"routed_scaling_factor"}},
    {"expert_group_count", {"n_group"}},
    {"expert_group_used_count", {"topk_group"}},
    {"leading_dense_block_count", {"first_k_dense_replace"}},
    {"nextn_predict_layers", {"num_nextn_predict_layers"}},
    {"moe_layer_freq", {"moe_layer_freq"}},
    {"topk_method", {"topk_method"}},
    {"scoring_func", {"scoring_func"}},
    {"attention.q_lora_rank", {"q_lora_rank"}},
    {"attention.kv_lora_rank", {"kv_lora_rank"}},
    {"attention.nope_length", {"qk_nope_head_dim"}},
    {"attention.rope_length", {"qk_rope_head_dim"}},
    {"attention.value_length_mla", {"v_head_dim"}},
    {"rope_interleave", {"rope_interleave"}},
    {"swiglu_limit", {"swiglu_limit"}},
    {"swiglu_alpha", {"swiglu_alpha"}},
    {"vocab_size", {"vocab_size"}},
    {"tie_word_embeddings", {"tie_word_embeddings"}},
    {"attention_bias", {"attention_bias"}},
    {"use_bias", {"use_bias", "enable_bias"}},
    {"mlp_bias", {"mlp_bias"}},
    {"qkv_bias", {"qkv_bias", "use_qkv_bias"}},
    {"bias", {"bias"}},
    {"layer_norm_elementwise_affine", {"layer_norm_elementwise_affine"}},
};
// In the object of RoPE.
constexpr Names kRopeNames[] = {
    {"rope.freq_base", {"rope_theta", "rotary_emb_base"}},
    {"rope.freq_base_swa", {"rope_local_base_freq"}},
    {"rope.scaling.type", {"rope_type", "type"}},
    {"rope.scaling.factor", {"factor"}},
    {"rope.scaling.low_freq_factor", {"low_freq_factor"}},
    {"rope.scaling.high_freq_factor", {"high_freq_factor"}},
    {"rope.scaling.original_context_length", {"original_max_position_embeddings"}},
    {"rope.scaling.attn_factor", {"attention_factor"}},
    {"rope.scaling.yarn_beta_fast", {"beta_fast"}},
    {"rope.scaling.yarn_beta_slow", {"beta_slow"}},
    {"rope.scaling.yarn_truncate", {"truncate"}},
    {"rope.scaling.mscale", {"mscale"}},
    {"rope.scaling.mscale_all_dim", {"mscale_all_dim"}},
    {"rope.scaling.short_factor", {"short_factor"}},
    {"rope.scaling.long_factor", {"long_factor"}},
};

const Names* FindNames(std::span<const Names> all, std::string_view key) {
  const auto found = std::ranges::find(all, key, &Names::key);
  return found == all.end() ? nullptr : &*found;
}

const Json* FirstOf(const Json* object, std::span<const std::string_view> names) {
  for (const std::string_view name : names) {
    if (name.empty()) continue;
    if (const Json* value = Member(object, name); value != nullptr) return value;
  }
  return nullptr;
}

// " = VALUE", if it is short.
std::string Shown(const Json& value) {
  return value.is_primitive() ? Cat(" = ", value.dump().substr(0, 40)) : std::string();
}

// Whether the object has a member with one of the names, which may be null.
bool States(const Json* object, std::span<const std::string_view> names) {
  return object != nullptr && std::ranges::any_of(names, [&](std::string_view name) {
           return !name.empty() && object->contains(std::string(name));
         });
}

}  // namespace

HfConfiguration::HfConfiguration(Json config, std::string title)
    : config_(std::move(config)),
      title_(std::move(title)),
      quantization_(FindQuantization(config_)),
      text_(Member(&config_, "text_config")) {
  const auto is_object = [&](const Json* value, std::string_view name) {
    if (value == nullptr || value->is_object()) return value != nullptr;
    problem_ = Cat("config.json: ", name, " is not an object");
    return false;
  };
  if (!is_object(text_, "text_config")) text_ = &config_;
  const auto type_of = [](const Json* object) {
    const Json* type = Member(object, "model_type");
    return type != nullptr && type->is_string()
               ? std::string_view(type->get_ref<const std::string&>())
               : std::string_view();
  };
  type_ = type_of(text_);
  if (type_.empty() && is_part()) type_ = DefaultTextType(type_of(&config_));
  defaults_ = ClassDefaults(type_);
  CheckNulls();
  constexpr std::string_view kRope[] = {"rope_parameters", "rope_scaling"};
  rope_ = FindText(kRope);
  if (!is_object(rope_, "rope_parameters or rope_scaling")) rope_ = nullptr;
  if (const Json* used = Member(text_, "use_sliding_window");
      used != nullptr && !used->is_boolean()) {
    problem_ = "config.json: use_sliding_window is not true or false";
  }
  // Kinds of layers may have numbers of their own: `rope_` is then that of full attention.
  if (const Json* full = Member(rope_, "full_attention"); full != nullptr && full->is_object()) {
    local_rope_ = Member(rope_, "sliding_attention");
    rope_ = full;
    const Json* scaling = Member(local_rope_, "rope_type");
    if (scaling != nullptr && *scaling != "default") {
      problem_ = Cat("config.json: rope_type of sliding_attention is ",
                     scaling->dump().substr(0, 40), ", and not \"default\"");
    }
  }
  ReadPartOfHead();
}

const Json* HfConfiguration::FindText(std::span<const std::string_view> names) const {
  const Json* usual = FirstOf(&defaults_, names);
  if (!States(text_, names)) return usual;
  const Json* value = FirstOf(text_, names);
  return value == nullptr && usual != nullptr && usual->is_boolean() ? &false_ : value;
}

// Transformers fails where it computes with such a null.
void HfConfiguration::CheckNulls() {
  for (const auto& [name, value] : defaults_.items()) {
    if (!(value.is_number() || value.is_string()) || MayBeNull(name)) continue;
    const auto stated = text_->find(name);
    if (stated != text_->end() && stated->is_null()) {
      problem_ = Cat("config.json: ", name, " is null");
    }
  }
}

// The elements of a head that are rotated.
void HfConfiguration::ReadPartOfHead() {
  const Json* part = nullptr;
  std::string_view part_name;
  for (const Json* object : std::initializer_list<const Json*>{text_, rope_, &defaults_}) {
    for (const std::string_view name : {"partial_rotary_factor", "rotary_pct"}) {
      if (part != nullptr) continue;
      part = Member(object, name);
      part_name = name;
    }
  }
  const auto head_dim = Uint("attention.key_length");
  const auto hidden = Uint("embedding_length"), heads = Uint("attention.head_count");
  uint64_t dimension = head_dim.value_or(0);
  if (dimension == 0 && hidden.ok() && heads.value_or(0) > 0) dimension = *hidden / *heads;
  if (part == nullptr) return;
  const bool of_class = defaults_.contains("partial_rotary_factor") ||
                        defaults_.contains("rotary_pct") || defaults_.empty();
  if (!of_class && *part != 1) {
    problem_ = Cat("config.json: ", part_name, " = ", part->dump().substr(0, 40),
                   ", which models of type ", type_, " do not have");
  }
  if (!(part->is_number() && part->get<double>() > 0 && part->get<double>() <= 1)) {
    problem_ = Cat("config.json: ", part_name, " = ", part->dump().substr(0, 40),
                   " is not above 0 and up to 1");
  }
  if (part->is_number() && dimension > 0 && dimension < 1 << 20) {
    const double rotated = part->get<double>() * static_cast<double>(dimension);
    rope_dimension_ = rotated >= 1 && rotated <= 1 << 20 ? static_cast<uint64_t>(rotated) : 1;
  }
}

absl::StatusOr<std::string_view> HfConfiguration::architecture() const {
  if (!problem_.empty()) return InvalidArgument(problem_);
  if (!quantization_.ok()) return quantization_.status();
  if (type_.empty()) return absl::InvalidArgumentError("config.json has no model_type");
  return type_;
}

// A name that the class has counts, and no other: what transformers does not read says nothing.
// Sizes have their usual names in all classes, too.
HfConfiguration::NameList HfConfiguration::OwnNames(
    std::string_view key, std::span<const std::string_view, 4> names) const {
  constexpr std::string_view kSizes[] = {"block_count", "embedding_length", "context_length",
                                         "attention.head_count", "expert_count"};
  NameList own;
  const bool size = std::ranges::find(kSizes, key) != std::end(kSizes);
  const auto of_class = [&](std::string_view name) {
    return !name.empty() && defaults_.contains(std::string(name));
  };
  auto* end = std::ranges::copy_if(names, own.begin(), of_class).out;
  if (end == own.begin() || size) {
    std::ranges::copy_if(names, end, [&](std::string_view name) { return !of_class(name); });
  }
  return own;
}

std::string HfConfiguration::NameOf(std::string_view key) const {
  if (key == "rope.dimension_count" && rope_dimension_ > 0) {
    return "config.json: partial_rotary_factor of a head";
  }
  if (key == "rope.freq_base_swa" && local_rope_ != nullptr) {
    return "config.json: rope_theta of sliding_attention";
  }
  const Names* names = FindNames(kNames, key);
  const bool of_rope = names == nullptr;
  if (of_rope) names = FindNames(kRopeNames, key);
  if (names == nullptr) return Cat("config.json: ", key);
  const NameList own = of_rope ? std::to_array(names->names) : OwnNames(key, names->names);
  for (const std::string_view name : own) {
    if (name.empty()) continue;
    if (Member(of_rope ? rope_ : text_, name) != nullptr) return Cat("config.json: ", name);
  }
  for (const std::string_view name : own) {
    if (name.empty() || Member(&defaults_, name) == nullptr) continue;
    return Cat("config.json: ", name, ", which has the default of ", type_, ",");
  }
  return Cat("config.json: ", own[0]);
}

const Json* HfConfiguration::Find(std::string_view key) const {
  if (key == "rope.freq_base_swa" && local_rope_ != nullptr) {
    return Member(local_rope_, "rope_theta");
  }
  if (const Names* names = FindNames(kRopeNames, key); names != nullptr) {
    const Json* value = FirstOf(rope_, names->names);
    // These may stand beside the object, too.
    const bool outside =
        key.starts_with("rope.freq_base") || key == "rope.scaling.original_context_length";
    return value != nullptr || !outside ? value : FindText(names->names);
  }
  const Names* names = FindNames(kNames, key);
  if (names == nullptr) return nullptr;
  if (key == "attention.sliding_window") {
    constexpr std::string_view kUsed[] = {"use_sliding_window"};
    const Json* used = FindText(kUsed);
    if (used != nullptr && used->is_boolean() && !used->get<bool>()) return nullptr;
  }
  // The part of a head that GPT-J's class names.
  if (key == "rope.dimension_count" && !defaults_.empty() && !defaults_.contains("rotary_dim")) {
    return nullptr;
  }
  return FindText(OwnNames(key, names->names));
}

bool HfConfiguration::Has(std::string_view key) const {
  if (key == "rope.dimension_count" && rope_dimension_ > 0) return true;
  return Find(key) != nullptr;
}

absl::StatusOr<uint64_t> HfConfiguration::Uint(std::string_view key) const {
  if (key == "rope.dimension_count" && rope_dimension_ > 0) return rope_dimension_;
  const Json* value = Find(key);
  if (value == nullptr) return absl::NotFoundError(Cat(NameOf(key), " is missing"));
  if (value->is_number_unsigned()) return value->get<uint64_t>();
  return InvalidArgument(NameOf(key), Shown(*value), " is not a non-negative integer");
}

absl::StatusOr<double> HfConfiguration::Float(std::string_view key) const {
  const Json* value = Find(key);
  if (value == nullptr) return absl::NotFoundError(Cat(NameOf(key), " is missing"));
  if (value->is_number()) return value->get<double>();
  return InvalidArgument(NameOf(key), Shown(*value), " is not a number");
}

absl::StatusOr<std::string_view> HfConfiguration::String(std::string_view key) const {
  const Json* value = Find(key);
  if (value == nullptr) return absl::NotFoundError(Cat(NameOf(key), " is missing"));
  if (!value->is_string()) {
    return InvalidArgument(NameOf(key), Shown(*value), " is not a string");
  }
  const std::string_view text = value->get_ref<const std::string&>();
  // What GGUF calls no scaling.
  return key == "rope.scaling.type" && text == "default" ? std::string_view("none") : text;
}

absl::StatusOr<bool> HfConfiguration::Bool(std::string_view key) const {
  const Json* value = Find(key);
  if (value == nullptr) return absl::NotFoundError(Cat(NameOf(key), " is missing"));
  if (value->is_boolean()) return value->get<bool>();
  return InvalidArgument(NameOf(key), Shown(*value), " is not true or false");
}

absl::StatusOr<std::vector<double>> HfConfiguration::Numbers(std::string_view key) const {
  const Json* value = Find(key);
  if (value == nullptr) return absl::NotFoundError(Cat(NameOf(key), " is missing"));
  std::vector<double> numbers;
  const auto add = [&](const Json& element) {
    if (element.is_boolean()) {
      numbers.push_back(element.get<bool>() ? 1 : 0);
    } else if (element.is_number()) {
      numbers.push_back(element.get<double>());
    } else if (element == "sliding_attention" || element == "full_attention") {
      numbers.push_back(element == "sliding_attention" ? 1 : 0);
    } else {
      return false;
    }
    return true;
  };
  bool good = true;
  if (value->is_array()) {
    for (const Json& element : *value) good = good && add(element);
  } else {
    good = add(*value);
  }
  if (!good) return InvalidArgument(NameOf(key), " has a value that is unknown");
  return numbers;
}

}  // namespace flotilla::model
