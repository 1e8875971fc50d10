#include "model/architectures/dense.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>
#include <vector>

#include "common/types/text.h"

namespace flotilla::model {
namespace {

// Bounds of accepted values. They are several times those of the largest published model,
// and small enough that products of two stay far below 2^63.
constexpr uint64_t kMaxLayers = 512;
constexpr uint64_t kMaxHidden = 1 << 16;
constexpr uint64_t kMaxHeads = 1 << 10;
constexpr uint64_t kMaxHeadDim = 256;  // as kernels have
constexpr uint64_t kMaxFfn = 1 << 20;
constexpr uint64_t kMaxExperts = 1024;

TensorRole BiasOf(TensorRole role) {
  return static_cast<TensorRole>(static_cast<uint8_t>(role) + 1);
}

std::optional<Activation> ActivationOf(std::string_view name) {
  static constexpr std::pair<std::string_view, Activation> kNames[] = {
      {"silu", Activation::kSilu},          {"swish", Activation::kSilu},
      {"gelu", Activation::kGelu},          {"gelu_new", Activation::kGeluTanh},
      {"gelu_fast", Activation::kGeluTanh}, {"gelu_pytorch_tanh", Activation::kGeluTanh},
      {"relu", Activation::kRelu},
  };
  for (const auto& [known, activation] : kNames) {
    if (known == name) return activation;
  }
  return std::nullopt;
}

}  // namespace

DenseReader::DenseReader(const Checkpoint& checkpoint, ConfigReader& in, ModelSpec& spec,
                         std::string_view hf_layer)
    : checkpoint_(checkpoint), in_(in), spec_(spec), hf_layer_(hf_layer) {}

void DenseReader::ReadSizes(NormKind norms, uint32_t ffn_factor) {
  layers_ = in_.Uint("block_count", 1, kMaxLayers);
  spec_.hidden = in_.Uint("embedding_length", 32, kMaxHidden);
  AttentionSpec& attention = layer_.attention;
  attention.heads = in_.Uint("attention.head_count", 1, kMaxHeads);
  attention.kv_heads = kv_heads_ != 0
                           ? kv_heads_
                           : in_.Uint("attention.head_count_kv", 1, kMaxHeads, attention.heads);
  layer_.ffn.width =
      in_.Uint("feed_forward_length", 1, kMaxFfn,
               ffn_factor == 0 ? std::nullopt
                               : std::optional<uint64_t>(uint64_t{ffn_factor} * spec_.hidden));
  spec_.context_length = in_.Uint("context_length", 1, kMaxContext,
                                  ffn_factor == 0 ? std::nullopt : std::optional<uint64_t>(2048));
  spec_.longest_context = spec_.context_length;
  if (spec_.served_context == 0) spec_.served_context = spec_.context_length;
  if (!in_.status().ok()) return;
  const uint64_t default_dim = spec_.hidden / attention.heads;
  if (!attention.latent.has_value()) {
    attention.head_dim = in_.Uint("attention.key_length", 2, kMaxHeadDim, default_dim);
    attention.value_dim = in_.Uint("attention.value_length", 1, kMaxHeadDim, default_dim);
  }
  layer_.norm = {.kind = norms,
                 .eps = norm_eps_ != 0
                            ? norm_eps_
                            : in_.Float(norms == NormKind::kRms ? "attention.layer_norm_rms_epsilon"
                                                                : "attention.layer_norm_epsilon",
                                        1e-12, 1e-1, std::nullopt)};
  if (!in_.status().ok()) return;
  in_.Require(spec_.hidden % 32 == 0, "embedding_length", "is not a multiple of 32");
  in_.Require(attention.heads % attention.kv_heads == 0, "attention.head_count",
              Cat("is not a multiple of ", in_.Stated("attention.head_count_kv")));
  if (!layer_.moe.has_value()) in_.RefuseIfSet("expert_count");
  in_.Require(!in_.Bool("attention.bidirectional", false), "attention.bidirectional",
              "is true, which is not supported");
  in_.Require(in_.Bool("attention.causal", true), "attention.causal",
              "is false, which is not supported");
  attention.scale = 1.0f / std::sqrt(static_cast<float>(attention.head_dim));
  spec_.output_norm = layer_.norm;
  ReadActivation();
}

bool DenseReader::ReadExperts(const MoeSpec& moe) {
  if (in_.UintOrNone("expert_count", kMaxExperts) == 0) return false;
  layer_.moe = moe;
  layer_.moe->experts = in_.Uint("expert_count", 1, kMaxExperts);
  layer_.moe->chosen = in_.Uint("expert_used_count", 1, std::max(layer_.moe->experts, 1u));
  return true;
}

void DenseReader::FinishExperts(std::optional<Activation> activation) {
  if (!layer_.moe.has_value() || !in_.status().ok()) return;
  MoeSpec& moe = *layer_.moe;
  moe.expert.activation = activation.value_or(layer_.ffn.activation);
  moe.expert.width = in_.Uint("expert_feed_forward_length", 1, kMaxFfn, layer_.ffn.width);
  moe.shared.activation = moe.expert.activation;
  moe.shared.width = in_.UintOrNone("expert_shared_feed_forward_length", kMaxFfn);
  moe.normalised = in_.Bool("expert_weights_norm", moe.normalised);
  // Layers without experts.
  const uint32_t step = in_.Uint("interleave_moe_layer_step", 1, kMaxLayers, 1);
  const uint32_t first = in_.Uint("leading_dense_block_count", 0, layers_, 0);
  if (!in_.status().ok()) return;
  has_experts_.resize(layers_);
  for (uint32_t i = 0; i < layers_; ++i) has_experts_[i] = i >= first && (i + 1) % step == 0;
  constexpr std::string_view kDense = "mlp_only_layers";
  const auto dense = checkpoint_.configuration().Numbers(kDense);
  in_.Require(dense.ok() || !checkpoint_.configuration().Has(kDense), kDense, "is no list");
  for (const double layer : dense.value_or(std::vector<double>())) {
    const bool exists = layer >= 0 && layer < layers_ && layer == std::floor(layer);
    in_.Require(exists, kDense,
                Cat("has ", layer, ", which is no whole number in 0..", layers_ - 1));
    if (exists) has_experts_[static_cast<size_t>(layer)] = false;
  }
}

void DenseReader::ReadActivation(std::string_view key) {
  const auto name = checkpoint_.configuration().String(key);
  if (absl::IsInvalidArgument(name.status())) in_.Fail(name.status());
  if (!name.ok()) return;
  const auto activation = ActivationOf(*name);
  if (activation.has_value()) {
    layer_.ffn.activation = *activation;
  } else {
    in_.Fail(Unimplemented(checkpoint_.configuration().NameOf(key), " = '", name->substr(0, 64),
                           "' is not supported"));
  }
}

void DenseReader::ReadWindow(uint32_t period) {
  window_ = in_.UintOrNone("attention.sliding_window", kMaxContext);
  window_period_ = period;
}

void DenseReader::Finish() {
  if (!in_.status().ok()) return;
  constexpr std::string_view kPattern = "attention.sliding_window_pattern";
  spec_.layers.assign(layers_, layer_);
  std::vector<bool> slides(layers_);
  for (uint32_t i = 0; i < layers_; ++i) {
    slides[i] = window_ > 0 && (window_period_ == 0 || (i + 1) % window_period_ != 0);
  }
  const auto pattern = checkpoint_.configuration().Numbers(kPattern);
  if (window_ > 0 && pattern.ok() && pattern->size() == 1) {
    const uint32_t stated = in_.Uint(kPattern, 1, kMaxLayers);
    for (uint32_t i = 0; i < layers_ && stated > 0; ++i) slides[i] = (i + 1) % stated != 0;
  } else if (window_ > 0 && checkpoint_.configuration().Has(kPattern)) {
    slides = in_.Flags(kPattern, layers_);
    slides.resize(layers_);
  }
  for (uint32_t i = 0; i < has_experts_.size(); ++i) {
    if (!has_experts_[i]) spec_.layers[i].moe.reset();
  }
  for (uint32_t i = 0; i < layers_; ++i) {
    AttentionSpec& attention = spec_.layers[i].attention;
    if (!slides[i]) continue;
    attention.window = window_;
    if (spec_.ropes.size() > 1) attention.rope = 1;
  }
}

// ---- Tensors.

TensorRow& DenseReader::Add(TensorRole role, std::string llama_cpp, std::string hugging_face,
                            Extent columns, Extent rows) {
  return spec_.tensors.emplace_back(
      TensorRow{.role = role,
                .name = hf() ? std::move(hugging_face) : std::move(llama_cpp),
                .columns = columns,
                .rows = rows,
                .map = {}});
}

std::string DenseReader::LayerName(std::string_view llama_cpp,
                                   std::string_view hugging_face) const {
  return hf() ? Cat(hf_layer_, hugging_face) : Cat("blk.*.", llama_cpp);
}

bool DenseReader::Has(std::string_view llama_cpp, std::string_view hugging_face) const {
  const TensorRow row{
      .role = {}, .name = LayerName(llama_cpp, hugging_face), .columns = {}, .map = {}};
  return checkpoint_.FindTensor(NameInFile(row, 0)) != nullptr;
}

void DenseReader::Embedding(std::string_view hugging_face) {
  Add(TensorRole::kTokenEmbedding, "token_embd.weight", Cat(hugging_face, ".weight"),
      Extent::kHidden, Extent::kVocabulary);
}

void DenseReader::Head(std::string_view hugging_face, bool hf_bias) {
  const std::string name = hf() ? std::string(hugging_face) : "output";
  const bool in_file = checkpoint_.FindTensor(name + ".weight") != nullptr;
  spec_.tied_embedding = hf() ? in_.Bool("tie_word_embeddings", !in_file) : !in_file;
  if (spec_.tied_embedding) {
    if (in_file) Unused({name + ".weight"});
  } else {
    Add(TensorRole::kHead, name + ".weight", name + ".weight", Extent::kHidden,
        Extent::kVocabulary);
  }
  if (hf() ? hf_bias : checkpoint_.FindTensor(name + ".bias") != nullptr) {
    Add(TensorRole::kHeadBias, name + ".bias", name + ".bias", Extent::kVocabulary);
  }
}

Bias DenseReader::Stated(std::string_view key, bool otherwise) {
  if (!hf()) return Bias::kUsual;
  return in_.Bool(key, otherwise) ? Bias::kAlways : Bias::kNever;
}

bool DenseReader::HasBias(Bias bias, bool in_file) const {
  if (bias != Bias::kUsual) return bias == Bias::kAlways;
  return hf() ? linear_bias_ : in_file;
}

void DenseReader::Unused(std::initializer_list<std::string> names) {
  spec_.unused_tensors.insert(spec_.unused_tensors.end(), names);
}

void DenseReader::AddNorm(TensorRole role, std::string name) {
  Add(role, name + ".weight", name + ".weight", Extent::kHidden).plus = hf() ? norm_plus_ : 0;
  const TensorRow row{.role = {}, .name = name + ".bias", .columns = {}, .map = {}};
  const bool biased = hf() ? norm_bias_ : checkpoint_.FindTensor(NameInFile(row, 0)) != nullptr;
  if (biased && layer_.norm.kind == NormKind::kLayer) {
    Add(BiasOf(role), name + ".bias", name + ".bias", Extent::kHidden);
  }
}

void DenseReader::Norm(TensorRole role, std::string_view llama_cpp, std::string_view hugging_face) {
  AddNorm(role, std::string(hf() ? hugging_face : llama_cpp));
}

void DenseReader::LayerNorm(TensorRole role, std::string_view llama_cpp,
                            std::string_view hugging_face) {
  AddNorm(role, LayerName(llama_cpp, hugging_face));
}

void DenseReader::Linear(TensorRole role, std::string_view llama_cpp, std::string_view hugging_face,
                         Extent columns, Extent rows, Bias bias, const RowMap& map,
                         uint64_t rows_in_file, bool transposed) {
  const std::string name = LayerName(llama_cpp, hugging_face);
  TensorRow& weight = Add(role, name + ".weight", name + ".weight", columns, rows);
  weight.map = map;
  weight.rows_in_file = rows_in_file;
  weight.transposed = transposed;
  if (!HasBias(bias, Has(Cat(llama_cpp, ".bias"), Cat(hugging_face, ".bias")))) return;
  TensorRow& row = Add(BiasOf(role), name + ".bias", name + ".bias", rows);
  row.map = map;
  row.rows_in_file = rows_in_file;
}

RowMap DenseReader::PairsMap() const {
  if (!halves_) return {};
  return {.head = layer_.attention.head_dim, .pairs = rope_dim_};
}

void DenseReader::Qkv(std::string_view hf_query, std::string_view hf_key, std::string_view hf_value,
                      Bias bias) {
  const bool all = layer_.attention.head_norms == HeadNorms::kAllHeads;
  Linear(TensorRole::kQuery, "attn_q", hf_query, Extent::kHidden,
         all ? Extent::kAllQueries : Extent::kQueries, bias, PairsMap());
  Linear(TensorRole::kKey, "attn_k", hf_key, Extent::kHidden,
         all ? Extent::kAllKeys : Extent::kKeys, bias, PairsMap());
  Linear(TensorRole::kValue, "attn_v", hf_value, Extent::kHidden, Extent::kValues, bias);
}

void DenseReader::Fused(std::string_view llama_cpp, std::string_view hugging_face,
                        FusedQkv hf_layout, Bias bias, bool transposed) {
  if (!in_.status().ok()) return;
  const AttentionSpec& attention = layer_.attention;
  const int64_t dim = attention.head_dim, value_dim = attention.value_dim;
  const int64_t heads = attention.heads, kv_heads = attention.kv_heads;
  const uint64_t rows = (heads + kv_heads) * dim + kv_heads * value_dim;
  RowMap query = PairsMap(), key = PairsMap(), value;
  if (hf() && hf_layout == FusedQkv::kGroups) {
    const int64_t queries = heads / kv_heads * dim;
    for (RowMap* map : {&query, &key, &value}) {
      map->stride = queries + dim + value_dim;
    }
    query.run = queries;
    key.run = dim;
    value.run = value_dim;
    key.first = queries;
    value.first = queries + dim;
  } else {
    key.first = heads * dim;
    value.first = (heads + kv_heads) * dim;
  }
  const bool turned = hf() && transposed;
  Linear(TensorRole::kQuery, llama_cpp, hugging_face, Extent::kHidden, Extent::kQueries, bias,
         query, rows, turned);
  Linear(TensorRole::kKey, llama_cpp, hugging_face, Extent::kHidden, Extent::kKeys, bias, key, rows,
         turned);
  Linear(TensorRole::kValue, llama_cpp, hugging_face, Extent::kHidden, Extent::kValues, bias, value,
         rows, turned);
}

void DenseReader::FusedGateUp(std::string_view hugging_face) {
  const int64_t width = layer_.ffn.width;
  Linear(TensorRole::kGate, "ffn_up", hugging_face, Extent::kHidden, Extent::kFfn, Bias::kUsual, {},
         2 * width);
  Linear(TensorRole::kUp, "ffn_up", hugging_face, Extent::kHidden, Extent::kFfn, Bias::kUsual,
         {.first = width}, 2 * width);
}

bool DenseReader::HasInExperts(const std::string& name) const {
  const auto layer = std::ranges::find(has_experts_, true) - has_experts_.begin();
  const TensorRow row{.role = {}, .name = name, .columns = {}, .map = {}};
  return checkpoint_.FindTensor(NameInFile(row, static_cast<uint32_t>(layer))) != nullptr;
}

void DenseReader::ExpertLinear(TensorRole role, std::string_view llama_cpp,
                               std::string_view hugging_face, Extent columns, Extent rows,
                               Bias bias) {
  std::string name = LayerName(llama_cpp, hugging_face);
  // llama.cpp once had a tensor for each expert: ffn_gate.0, not ffn_gate_exps.
  constexpr std::string_view kAll = "_exps";
  if (!hf() && name.ends_with(kAll) && !HasInExperts(name + ".weight")) {
    const std::string older = name.substr(0, name.size() - kAll.size()) + ".#";
    if (HasInExperts(older + ".weight")) name = older;
  }
  Add(role, name + ".weight", name + ".weight", columns, rows);
  if (HasBias(bias, HasInExperts(name + ".bias"))) {
    Add(BiasOf(role), name + ".bias", name + ".bias", rows);
  }
}

void DenseReader::LayerVector(TensorRole role, std::string_view llama_cpp,
                              std::string_view hugging_face, Extent columns) {
  const std::string name = LayerName(llama_cpp, hugging_face);
  Add(role, name, name, columns);
}

void DenseReader::Experts(const ExpertNames& names, Bias bias) {
  using enum Extent;
  using enum TensorRole;
  // Newer files may have gate and up of all experts in one tensor, and Hugging Face's have its name
  // without a suffix.
  const std::string gate_up = LayerName("ffn_gate_up_exps", "mlp.experts.gate_up_proj");
  const std::string suffix = hf() ? "" : ".weight";
  const bool fused = HasInExperts(gate_up + suffix);
  ExpertLinear(kRouter, "ffn_gate_inp", fused ? kQwenExperts.router : names.router, kHidden,
               kExperts, bias);
  if (!fused) {
    ExpertLinear(kExpertGate, "ffn_gate_exps", names.gate, kHidden, kExpertFfn, bias);
    ExpertLinear(kExpertUp, "ffn_up_exps", names.up, kHidden, kExpertFfn, bias);
    ExpertLinear(kExpertDown, "ffn_down_exps", names.down, kExpertFfn, kHidden, bias);
    return;
  }
  const uint64_t width = expert_width();
  const auto add = [&](TensorRole role, const std::string& name, Extent columns, Extent rows) {
    const bool is_up = role == kExpertUp || role == kExpertUpBias;
    TensorRow& row = Add(role, name, name, columns, rows);
    row.map.first = is_up ? static_cast<int64_t>(width) : 0;
    row.rows_in_file = 2 * width;
  };
  const bool biased = HasBias(bias, HasInExperts(gate_up + ".bias"));
  for (const TensorRole role : {kExpertGate, kExpertUp}) {
    add(role, gate_up + suffix, kHidden, kExpertFfn);
    if (biased) add(BiasOf(role), gate_up + ".bias", kExpertFfn, kOne);
  }
  if (hf()) {
    Add(kExpertDown, "", LayerName("", "mlp.experts.down_proj"), kExpertFfn, kHidden);
  } else {
    ExpertLinear(kExpertDown, "ffn_down_exps", "", kExpertFfn, kHidden, bias);
  }
}

void DenseReader::HeadNormRows(Extent query, Extent key) {
  const auto add = [&](TensorRole role, std::string_view llama_cpp, std::string_view hugging_face,
                       Extent columns) {
    const std::string name = LayerName(llama_cpp, hugging_face);
    TensorRow& row = Add(role, name, name, columns);
    row.map = PairsMap();
    row.plus = hf() ? norm_plus_ : 0;
  };
  add(TensorRole::kQueryNorm, "attn_q_norm.weight", "self_attn.q_norm.weight", query);
  add(TensorRole::kKeyNorm, "attn_k_norm.weight", "self_attn.k_norm.weight", key);
}

void DenseReader::OwnHeadNormRows() {
  const auto add = [&](TensorRole role, std::string_view llama_cpp, std::string_view hugging_face,
                       Extent heads) {
    const std::string name = LayerName(llama_cpp, hugging_face);
    Add(role, name, name, Extent::kHeadDim, heads);
  };
  add(TensorRole::kQueryNorm, "attn_q_norm.weight", "self_attn.q_norm.weight", Extent::kHeads);
  add(TensorRole::kKeyNorm, "attn_k_norm.weight", "self_attn.k_norm.weight", Extent::kKvHeads);
}

void ReadDense(const Checkpoint& checkpoint, ConfigReader& in, const DenseOptions& options,
               ModelSpec& spec) {
  DenseReader reader(checkpoint, in, spec);
  reader.layer().ffn.activation = options.activation;
  reader.SetNormPlus(options.norm_plus);
  const bool experts =
      !options.experts.router.empty() && reader.ReadExperts({.normalised = options.normalised});
  reader.ReadSizes(options.norms);
  reader.FinishExperts();
  reader.ReadRope(options.hf_pairs, options.llama_cpp_pairs);
  if (options.has_window) {
    reader.ReadWindow(options.window_period);
  } else {
    in.RefuseIfSet("attention.sliding_window");
  }
  using enum TensorRole;
  using enum Extent;
  reader.Embedding("model.embed_tokens");
  reader.LayerNorm(kAttentionNorm, "attn_norm", "input_layernorm");
  const auto bias = [&](std::string_view key, bool otherwise) {
    if (!key.empty() && reader.hf()) return reader.Stated(key, otherwise);
    return otherwise ? Bias::kAlways : Bias::kUsual;
  };
  reader.Qkv("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj",
             bias(options.qkv_bias_key, options.qkv_bias));
  reader.Linear(kAttentionOutput, "attn_output", "self_attn.o_proj", kResults, kHidden,
                bias(options.output_bias_key, false));
  reader.LayerNorm(kFfnNorm, "ffn_norm", "post_attention_layernorm");
  const Bias ffn_bias = bias(options.ffn_bias_key, false);
  reader.Linear(kGate, "ffn_gate", "mlp.gate_proj", kHidden, kFfn, ffn_bias);
  reader.Linear(kUp, "ffn_up", "mlp.up_proj", kHidden, kFfn, ffn_bias);
  reader.Linear(kDown, "ffn_down", "mlp.down_proj", kFfn, kHidden, ffn_bias);
  if (experts) reader.Experts(options.experts);
  if (reader.layer().moe.has_value() && reader.layer().moe->shared.width > 0) {
    reader.ExpertLinear(kSharedRouter, "ffn_gate_inp_shexp", "mlp.shared_expert_gate", kHidden,
                        kOne);
    reader.ExpertLinear(kSharedGate, "ffn_gate_shexp", "mlp.shared_expert.gate_proj", kHidden,
                        kSharedFfn);
    reader.ExpertLinear(kSharedUp, "ffn_up_shexp", "mlp.shared_expert.up_proj", kHidden,
                        kSharedFfn);
    reader.ExpertLinear(kSharedDown, "ffn_down_shexp", "mlp.shared_expert.down_proj", kSharedFfn,
                        kHidden);
  }
  reader.Norm(kOutputNorm, "output_norm", "model.norm");
  if (options.head_norms) {
    reader.attention().head_norms = HeadNorms::kShared;
    reader.attention().head_norm = reader.layer().norm;
    reader.HeadNormRows(kHeadDim, kHeadDim);
  }
  reader.Head("lm_head");
  // What old folders of Llama hold, computed from rope_theta.
  if (reader.hf()) reader.Unused({"model.layers.*.self_attn.rotary_emb.inv_freq"});
  reader.Finish();
}

}  // namespace flotilla::model
