#include "model/huggingface/hf_configuration.h"

#include <algorithm>
#include <span>
#include <utility>

#include "common/types/text.h"

namespace flotilla::model {
namespace {

// Which names a key has in config.json: the first one that is there counts.
struct Names {
  std::string_view key;
  std::string_view names[3];
};
constexpr Names kNames[] = {
    {"block_count", {"num_hidden_layers", "n_layer", "num_layers"}},
    {"embedding_length", {"hidden_size", "n_embd"}},
    {"feed_forward_length", {"intermediate_size", "n_inner", "ffn_dim"}},
    {"feed_forward.activation", {"hidden_act", "hidden_activation", "activation_function"}},
    {"context_length", {"max_position_embeddings", "n_positions"}},
    {"attention.head_count", {"num_attention_heads", "n_head"}},
    {"attention.head_count_kv", {"num_key_value_heads"}},
    {"attention.key_length", {"head_dim"}},
    {"attention.value_length", {"head_dim"}},
    {"attention.layer_norm_rms_epsilon", {"rms_norm_eps"}},
    {"attention.sliding_window", {"sliding_window"}},
    {"expert_count", {"num_local_experts", "num_experts"}},
    {"vocab_size", {"vocab_size"}},
};
// In the object of RoPE.
constexpr Names kRopeNames[] = {
    {"rope.freq_base", {"rope_theta"}},
    {"rope.scaling.type", {"rope_type", "type"}},
    {"rope.scaling.factor", {"factor"}},
    {"rope.scaling.low_freq_factor", {"low_freq_factor"}},
    {"rope.scaling.high_freq_factor", {"high_freq_factor"}},
    {"rope.scaling.original_context_length", {"original_max_position_embeddings"}},
};

const Json* Member(const Json* object, std::string_view name) {
  if (object == nullptr || !object->is_object() || name.empty()) return nullptr;
  const auto found = object->find(std::string(name));
  return found == object->end() || found->is_null() ? nullptr : &*found;
}

const Names* FindNames(std::span<const Names> all, std::string_view key) {
  const auto found = std::ranges::find(all, key, &Names::key);
  return found == all.end() ? nullptr : &*found;
}

const Json* FirstOf(const Json* object, const Names& names) {
  for (const std::string_view name : names.names) {
    if (const Json* value = Member(object, name); value != nullptr) return value;
  }
  return nullptr;
}

}  // namespace

HfConfiguration::HfConfiguration(Json config, std::string title)
    : config_(std::move(config)), title_(std::move(title)), text_(Member(&config_, "text_config")) {
  if (text_ == nullptr || !text_->is_object()) text_ = &config_;
  rope_ = Member(text_, "rope_parameters");
  if (rope_ == nullptr) rope_ = Member(text_, "rope_scaling");
  // A part of each head is rotated.
  const Json* part = Member(text_, "partial_rotary_factor");
  if (part == nullptr) part = Member(rope_, "partial_rotary_factor");
  const auto head_dim = Uint("attention.key_length");
  const auto hidden = Uint("embedding_length"), heads = Uint("attention.head_count");
  uint64_t dimension = head_dim.value_or(0);
  if (dimension == 0 && hidden.ok() && heads.value_or(0) > 0) dimension = *hidden / *heads;
  if (part != nullptr && part->is_number() && dimension > 0 && dimension < 1 << 20) {
    const double rotated = part->get<double>() * static_cast<double>(dimension);
    rope_dimension_ = rotated >= 1 && rotated <= 1 << 20 ? static_cast<uint64_t>(rotated) : 1;
  }
}

absl::StatusOr<std::string_view> HfConfiguration::architecture() const {
  const Json* type = Member(text_, "model_type");
  if (type == nullptr || !type->is_string()) {
    return absl::InvalidArgumentError("config.json has no model_type");
  }
  return std::string_view(type->get_ref<const std::string&>());
}

std::string HfConfiguration::NameOf(std::string_view key) const {
  const Names* names = FindNames(kNames, key);
  if (names == nullptr) names = FindNames(kRopeNames, key);
  return Cat("config.json: ", names == nullptr ? key : names->names[0]);
}

const Json* HfConfiguration::Find(std::string_view key) const {
  if (const Names* names = FindNames(kRopeNames, key); names != nullptr) {
    // Kinds of layers have numbers of their own.
    static const Json kByLayer = "different for kinds of layers";
    const bool by_layer = rope_ != nullptr && rope_->is_object() &&
                          std::any_of(rope_->begin(), rope_->end(),
                                      [](const Json& value) { return value.is_object(); });
    if (by_layer && key == "rope.scaling.type") return &kByLayer;
    const Json* value = FirstOf(rope_, *names);
    return value != nullptr || key != "rope.freq_base" ? value : FirstOf(text_, *names);
  }
  const Names* names = FindNames(kNames, key);
  if (names == nullptr) return nullptr;
  if (key == "attention.sliding_window") {
    const Json* used = Member(text_, "use_sliding_window");
    if (used != nullptr && used->is_boolean() && !used->get<bool>()) return nullptr;
  }
  return FirstOf(text_, *names);
}

bool HfConfiguration::Has(std::string_view key) const {
  if (key == "rope.dimension_count") return rope_dimension_ > 0;
  return Find(key) != nullptr;
}

absl::StatusOr<uint64_t> HfConfiguration::Uint(std::string_view key) const {
  if (key == "rope.dimension_count" && rope_dimension_ > 0) return rope_dimension_;
  const Json* value = Find(key);
  if (value == nullptr) return absl::NotFoundError(Cat(NameOf(key), " is missing"));
  if (value->is_number_unsigned()) return value->get<uint64_t>();
  return InvalidArgument(NameOf(key), " is not a non-negative integer");
}

absl::StatusOr<double> HfConfiguration::Float(std::string_view key) const {
  const Json* value = Find(key);
  if (value == nullptr) return absl::NotFoundError(Cat(NameOf(key), " is missing"));
  if (value->is_number()) return value->get<double>();
  return InvalidArgument(NameOf(key), " is not a number");
}

absl::StatusOr<std::string_view> HfConfiguration::String(std::string_view key) const {
  const Json* value = Find(key);
  if (value == nullptr) return absl::NotFoundError(Cat(NameOf(key), " is missing"));
  if (!value->is_string()) return InvalidArgument(NameOf(key), " is not a string");
  const std::string_view text = value->get_ref<const std::string&>();
  // What GGUF calls no scaling.
  return key == "rope.scaling.type" && text == "default" ? std::string_view("none") : text;
}

}  // namespace flotilla::model
