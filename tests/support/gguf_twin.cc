#include "tests/support/gguf_twin.h"
#include "tests/support/encode_weights.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <span>
#include <sstream>
#include <utility>

#include "absl/strings/str_replace.h"
#include "common/types/text.h"
#include "tests/support/tiny_gguf.h"

namespace flotilla::testing {
namespace {

// What Hugging Face calls a tensor: the first name that a folder has counts. "#" stands for the
// expert.
struct Names {
  std::string_view llama_cpp;
  std::vector<std::string_view> hugging_face;
};
const Names kModelNames[] = {
    {"token_embd",
     {"model.embed_tokens", "transformer.word_embeddings", "transformer.wte", "gpt_neox.embed_in"}},
    {"token_embd_norm", {"transformer.word_embeddings_layernorm"}},
    {"position_embd", {"transformer.wpe"}},
    {"output_norm",
     {"model.norm", "model.final_layernorm", "transformer.ln_f", "gpt_neox.final_layer_norm"}},
    {"output", {"lm_head", "embed_out"}},
};
const std::string_view kLayers[] = {"model.layers.", "transformer.h.", "gpt_neox.layers."};
const Names kLayerNames[] = {
    {"attn_norm", {"input_layernorm", "ln_1", "ln_mlp"}},
    {"attn_norm_2", {"ln_attn"}},
    {"attn_q", {"self_attn.q_proj"}},
    {"attn_k", {"self_attn.k_proj"}},
    {"attn_v", {"self_attn.v_proj"}},
    {"attn_qkv",
     {"self_attn.qkv_proj", "self_attention.query_key_value", "attention.query_key_value",
      "attn.c_attn"}},
    {"attn_q_norm", {"self_attn.q_norm"}},
    {"attn_k_norm", {"self_attn.k_norm"}},
    {"attn_sinks", {"self_attn.sinks"}},
    {"attn_q_a", {"self_attn.q_a_proj"}},
    {"attn_q_a_norm", {"self_attn.q_a_layernorm"}},
    {"attn_q_b", {"self_attn.q_b_proj"}},
    {"attn_kv_a_mqa", {"self_attn.kv_a_proj_with_mqa"}},
    {"attn_kv_a_norm", {"self_attn.kv_a_layernorm"}},
    {"attn_k_b", {"self_attn.kv_b_proj"}},
    {"attn_v_b", {"self_attn.kv_b_proj"}},
    {"attn_kv_b", {"self_attn.kv_b_proj"}},
    {"exp_probs_b", {"mlp.gate.e_score_correction"}},
    {"attn_output",
     {"self_attn.o_proj", "self_attn.dense", "self_attention.dense", "attention.dense",
      "attn.c_proj"}},
    {"post_attention_norm", {"post_self_attn_layernorm", "post_attention_layernorm"}},
    {"ffn_norm", {"pre_feedforward_layernorm", "post_attention_layernorm", "ln_2"}},
    {"ffn_gate", {"mlp.gate_proj"}},
    {"ffn_up", {"mlp.up_proj", "mlp.gate_up_proj", "mlp.dense_h_to_4h", "mlp.c_fc", "mlp.fc1"}},
    {"ffn_down", {"mlp.down_proj", "mlp.dense_4h_to_h", "mlp.c_proj", "mlp.fc2"}},
    {"post_ffw_norm", {"post_feedforward_layernorm", "post_mlp_layernorm"}},
    {"ffn_gate_inp", {"mlp.gate", "mlp.router", "block_sparse_moe.gate"}},
    {"ffn_gate_exps",
     {"mlp.experts.#.gate_proj", "mlp.experts.gate_up_proj", "block_sparse_moe.experts.#.w1"}},
    {"ffn_up_exps",
     {"mlp.experts.#.up_proj", "mlp.experts.gate_up_proj", "block_sparse_moe.experts.#.w3"}},
    {"ffn_down_exps",
     {"mlp.experts.#.down_proj", "mlp.experts.down_proj", "block_sparse_moe.experts.#.w2"}},
    {"ffn_gate_inp_shexp", {"mlp.shared_expert_gate"}},
    {"ffn_gate_shexp", {"mlp.shared_expert.gate_proj", "mlp.shared_experts.gate_proj"}},
    {"ffn_up_shexp", {"mlp.shared_expert.up_proj", "mlp.shared_experts.up_proj"}},
    {"ffn_down_shexp", {"mlp.shared_expert.down_proj", "mlp.shared_experts.down_proj"}},
};

// In which order the rows of a matrix, or the elements of a bias, are those of the folder.
enum class Order : uint8_t {
  kSame,
  kQueryPairs,  // of each head the first half and the second half in turn
  kKeyPairs,    // the same of KV heads
  kSections,    // all q, all k, all v; the folder has q, k and v of each KV head together
  kEven,        // every other row, from the first
  kOdd,         // those between
};
struct Rule {
  std::string_view architecture, part;
  Order order = Order::kSame;
  bool transposed = false;  // the folder has the inputs of a matrix along its rows
};
constexpr Rule kRules[] = {
    {"llama", "attn_q", Order::kQueryPairs},       {"llama", "attn_k", Order::kKeyPairs},
    {"granite", "attn_q", Order::kQueryPairs},     {"granite", "attn_k", Order::kKeyPairs},
    {"smollm3", "attn_q", Order::kQueryPairs},     {"smollm3", "attn_k", Order::kKeyPairs},
    {"bloom", "attn_qkv", Order::kSections},       {"falcon", "attn_qkv", Order::kSections},
    {"gptneox", "attn_qkv", Order::kSections},     {"gpt2", "attn_qkv", Order::kSame, true},
    {"gpt2", "attn_output", Order::kSame, true},   {"gpt2", "ffn_up", Order::kSame, true},
    {"gpt2", "ffn_down", Order::kSame, true},      {"gpt-oss", "ffn_gate_exps", Order::kEven, true},
    {"gpt-oss", "ffn_up_exps", Order::kOdd, true}, {"gpt-oss", "ffn_down_exps", Order::kSame, true},
};

// "blk.3.attn_q.weight" in parts; no layer: empty.
struct Name {
  std::string layer, part, suffix;
};
Name Split(std::string_view name) {
  Name result;
  if (name.starts_with("blk.")) {
    const size_t end = name.find('.', 4);
    result.layer = name.substr(4, end - 4);
    name.remove_prefix(end + 1);
  }
  const size_t dot = name.rfind('.');
  result.part = name.substr(0, dot);
  result.suffix = name.substr(dot);
  return result;
}

// The tensors of the folder that a tensor comes from: one, or one of each expert.
std::vector<const model::Tensor*> Sources(const model::Checkpoint& folder, const Name& name) {
  const auto find = [&](const std::string& stem) {
    const model::Tensor* tensor = folder.FindTensor(stem + name.suffix);
    // Experts in one tensor, and sinks.
    if (tensor == nullptr) {
      tensor = folder.FindTensor(name.suffix == ".bias" ? stem + "_bias" : stem);
    }
    return tensor;
  };
  const auto all = [&](const std::string& stem) {
    std::vector<const model::Tensor*> tensors;
    const bool experts = stem.find('#') != std::string::npos;
    do {
      const model::Tensor* tensor = find(absl::StrReplaceAll(stem, {{"#", Cat(tensors.size())}}));
      if (tensor == nullptr) break;
      tensors.push_back(tensor);
    } while (experts);
    return tensors;
  };
  for (const Names& names : kModelNames) {
    for (const std::string_view each : names.hugging_face) {
      if (!name.layer.empty() || names.llama_cpp != name.part) continue;
      if (auto tensors = all(std::string(each)); !tensors.empty()) return tensors;
    }
  }
  for (const Names& names : kLayerNames) {
    for (const std::string_view each : names.hugging_face) {
      for (const std::string_view layers : kLayers) {
        if (name.layer.empty() || names.llama_cpp != name.part) continue;
        auto tensors = all(Cat(layers, name.layer, ".", each));
        if (!tensors.empty()) return tensors;
      }
    }
  }
  return {};
}

// Which row of the folder is row `row` of the file.
uint64_t SourceRow(Order order, uint64_t row, uint64_t rows, uint64_t heads, uint64_t kv_heads) {
  switch (order) {
    case Order::kSame:
      break;
    case Order::kEven:
      return 2 * row;
    case Order::kOdd:
      return 2 * row + 1;
    case Order::kQueryPairs:
    case Order::kKeyPairs: {
      const uint64_t dim = rows / (order == Order::kQueryPairs ? heads : kv_heads);
      const uint64_t at = row % dim;
      return row - at + at / 2 + at % 2 * (dim / 2);
    }
    case Order::kSections: {
      const uint64_t dim = rows / (heads + 2 * kv_heads), queries = heads / kv_heads;
      uint64_t head = row / dim, group = head / queries, in_group = head % queries;
      if (head >= heads) {
        group = (head - heads) % kv_heads;
        in_group = queries + (head - heads) / kv_heads;
      }
      return (group * (queries + 2) + in_group) * dim + row % dim;
    }
  }
  return row;
}

// What frequencies are divided by to scale them as Llama 3 does, or the numbers that the folder has
// for LongRoPE.
std::vector<float> RopeFactors(const model::Configuration& configuration, std::string_view name) {
  const auto number = [&](std::string_view key) {
    return static_cast<float>(configuration.Float(Cat("rope.", key)).value());
  };
  if (name != "rope_freqs.weight") {
    const auto numbers =
        configuration
            .Numbers(name == "rope_factors_long.weight" ? "rope.scaling.long_factor"
                                                        : "rope.scaling.short_factor")
            .value();
    return {numbers.begin(), numbers.end()};
  }
  const uint64_t dim = configuration.Uint("attention.key_length").value();
  const float context = number("scaling.original_context_length");
  const float low = number("scaling.low_freq_factor"), high = number("scaling.high_freq_factor");
  const float factor = number("scaling.factor");
  std::vector<float> factors;
  for (uint64_t i = 0; i < dim; i += 2) {
    const float exponent = static_cast<float>(i) / static_cast<float>(dim);
    const float frequency = 1.0f / std::pow(number("freq_base"), exponent);
    const float wave = static_cast<float>(2 * M_PI) / frequency;
    const float smooth = (context / wave - low) / (high - low);
    factors.push_back(wave < context / high  ? 1.0f
                      : wave > context / low ? factor
                                             : 1.0f / ((1.0f - smooth) / factor + smooth));
  }
  return factors;
}

// Of each expert the rows of gate, and then those of up.
TwinTensor GateAndUp(TwinTensor gate, const TwinTensor& up) {
  if (gate.data.empty()) return {};
  const std::size_t bytes = gate.data.size() / gate.dims.back();
  std::vector<std::byte> both;
  for (std::size_t at = 0; at < gate.data.size(); at += bytes) {
    for (const TwinTensor* half : {&std::as_const(gate), &up}) {
      const auto own = std::span(half->data).subspan(at, bytes);
      both.insert(both.end(), own.begin(), own.end());
    }
  }
  gate.dims[gate.dims.size() - 2] *= 2;
  gate.data = std::move(both);
  return gate;
}

// The K or the V of each head, which the folder has together: [heads][K, then V][latent]. The file
// has the K of a head with its axes changed.
TwinTensor HeadTensor(const model::Tensor& source, const GgufManifest& manifest, bool keys) {
  const auto number = [&](std::string_view key) { return std::stoull(manifest.Value(key)); };
  const uint64_t heads = number("attention.head_count"), latent = source.dims[0];
  const uint64_t nope = number("attention.key_length_mla") - number("rope.dimension_count");
  const uint64_t value = number("attention.value_length_mla");
  std::vector<float> all(source.elements()), values;
  if (!model::DequantizeRow(source.type, source.data, all).ok()) return {};
  for (uint64_t head = 0; head < heads; ++head) {
    const float* const own = all.data() + head * (nope + value) * latent;
    for (uint64_t i = 0; i < (keys ? nope : value) * latent; ++i) {
      values.push_back(keys ? own[i % nope * latent + i / nope] : own[nope * latent + i]);
    }
  }
  return {model::GgmlType::kBF16,
          keys ? std::vector<uint64_t>{nope, latent, heads}
               : std::vector<uint64_t>{latent, value, heads},
          EncodeTensor(model::GgmlType::kBF16, values)};
}

}  // namespace

std::string GgufManifest::Value(std::string_view key) const {
  for (const Key& each : keys) {
    if (each.name.substr(each.name.find('.') + 1) == key) return each.value;
  }
  return "";
}

std::optional<GgufManifest> ReadGgufManifest(const std::string& case_folder) {
  std::ifstream file(case_folder + "/gguf.tsv");
  if (!file) return std::nullopt;
  GgufManifest manifest;
  for (std::string kind, line; std::getline(file, kind, '\t') && std::getline(file, line);) {
    std::istringstream fields(line);
    const auto next = [&] {
      std::string text;
      std::getline(fields, text, '\t');
      return text;
    };
    if (kind == "kv") {
      manifest.keys.push_back({next(), next(), next()});
      continue;
    }
    GgufManifest::Tensor& tensor = manifest.tensors.emplace_back();
    tensor.name = next();
    tensor.type = next();
    std::istringstream axes(next());
    for (std::string axis; std::getline(axes, axis, ',');) tensor.dims.push_back(std::stoull(axis));
    tensor.sha256 = next();
  }
  return manifest;
}

void FuseExperts(GgufManifest& manifest) {
  std::erase_if(manifest.tensors, [](const GgufManifest::Tensor& tensor) {
    return Split(tensor.name).part == "ffn_up_exps";
  });
  for (GgufManifest::Tensor& tensor : manifest.tensors) {
    tensor.name = absl::StrReplaceAll(tensor.name, {{"ffn_gate_exps", "ffn_gate_up_exps"}});
  }
}

TwinTensor MakeTwinTensor(const model::Checkpoint& folder, const GgufManifest& manifest,
                          std::string_view name, std::set<std::string>& used) {
  if (name.starts_with("rope_f")) {
    const std::vector<float> factors = RopeFactors(folder.configuration(), name);
    return {model::GgmlType::kF32, {factors.size()}, EncodeTensor(model::GgmlType::kF32, factors)};
  }
  const Name parts = Split(name);
  if (parts.part == "ffn_gate_up_exps") {
    const auto half = [&](std::string_view part) {
      const std::string own = Cat("blk.", parts.layer, ".", part, parts.suffix);
      return MakeTwinTensor(folder, manifest, own, used);
    };
    return GateAndUp(half("ffn_gate_exps"), half("ffn_up_exps"));
  }
  const std::string architecture =
      nlohmann::json::parse(manifest.Value("architecture")).get<std::string>();
  const auto found = std::ranges::find_if(kRules, [&](const Rule& rule) {
    return rule.architecture == architecture && rule.part == parts.part;
  });
  const Rule rule = found == std::end(kRules) ? Rule{} : *found;
  const auto heads_of = [&](std::string_view key, uint64_t fallback) {
    const std::string value = manifest.Value(key);
    return value.empty() ? fallback : std::stoull(value);
  };
  const uint64_t heads = heads_of("attention.head_count", 0);
  const uint64_t kv_heads = heads_of("attention.head_count_kv", heads);
  const auto sources = Sources(folder, parts);
  if (sources.empty()) return {};
  if (parts.part == "attn_k_b" || parts.part == "attn_v_b") {
    used.emplace(sources[0]->name);
    return HeadTensor(*sources[0], manifest, parts.part == "attn_k_b");
  }

  // A source is a matrix or a vector, or one of each expert.
  const model::Tensor& first = *sources[0];
  const bool vector = first.rank == 1 || parts.suffix == ".bias";
  const bool transposed = rule.transposed && !vector;
  uint64_t columns = vector ? 1 : first.dims[0], rows = vector ? first.dims[0] : first.dims[1];
  if (transposed) std::swap(columns, rows);
  const bool half = rule.order == Order::kEven || rule.order == Order::kOdd;
  const uint64_t rows_in_file = half ? rows / 2 : rows;
  const float plus = architecture.starts_with("gemma") && name.ends_with("norm.weight") ? 1 : 0;
  std::vector<float> values;
  for (const model::Tensor* source : sources) {
    used.emplace(source->name);
    std::vector<float> all(source->elements());
    if (!model::DequantizeRow(source->type, source->data, all).ok()) return {};
    for (uint64_t start = 0; start < all.size(); start += rows * columns) {
      for (uint64_t row = 0; row < rows_in_file; ++row) {
        const uint64_t at = SourceRow(rule.order, row, rows, heads, kv_heads);
        for (uint64_t column = 0; column < columns; ++column) {
          values.push_back(all[start + (transposed ? column * rows + at : at * columns + column)] +
                           plus);
        }
      }
    }
  }
  TwinTensor tensor;
  if (!vector) tensor.dims.push_back(columns);
  tensor.dims.push_back(rows_in_file);
  const uint64_t experts = values.size() / (columns * rows_in_file);
  if (parts.part.ends_with("_exps")) tensor.dims.push_back(experts);
  // The converter keeps routers, positions and norms of each head in fp32.
  const bool whole = vector || parts.part == "position_embd" ||
                     parts.part.starts_with("ffn_gate_inp") || parts.part.ends_with("_norm");
  tensor.type = whole ? model::GgmlType::kF32 : model::GgmlType::kBF16;
  tensor.data = EncodeTensor(tensor.type, values);
  return tensor;
}

std::vector<std::byte> GgufTwin(const model::Checkpoint& folder, const GgufManifest& manifest,
                                const std::vector<GgufManifest::Key>& mended) {
  GgufBuilder file;
  std::vector<GgufManifest::Key> keys = mended;
  for (const GgufManifest::Key& key : manifest.keys) {
    if (!std::ranges::count(mended, key.name, &GgufManifest::Key::name)) keys.push_back(key);
  }
  for (const GgufManifest::Key& key : keys) {
    const nlohmann::json value = nlohmann::json::parse(key.value);
    if (key.type == "uint32") file.AddUint32(key.name, value.get<uint32_t>());
    if (key.type == "float32") file.AddFloat(key.name, value.get<float>());
    if (key.type == "bool") file.AddBool(key.name, value.get<bool>());
    if (key.type == "string") file.AddString(key.name, value.get<std::string>());
  }
  std::set<std::string> used;
  for (const GgufManifest::Tensor& each : manifest.tensors) {
    TwinTensor tensor = MakeTwinTensor(folder, manifest, each.name, used);
    file.AddTensor(each.name, tensor.dims, tensor.type, std::move(tensor.data));
  }
  return file.Build();
}

}  // namespace flotilla::testing
