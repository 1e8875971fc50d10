#include "tests/support/hf_folder.h"

#include <bit>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <utility>

#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "model/load_spec.h"
#include "model/tensor.h"
#include "tests/support/encode_weights.h"

namespace flotilla::testing {

HfTensor CopyOf(const model::Tensor& tensor) {
  HfTensor copy{std::string(tensor.name), std::string(model::GgmlTypeName(tensor.type)), {}, {}};
  for (std::uint32_t d = tensor.rank; d-- > 0;) copy.shape.push_back(tensor.dims[d]);
  copy.data.assign(reinterpret_cast<const char*>(tensor.data.data()), tensor.data.size());
  return copy;
}

std::uint16_t ToBf16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  return static_cast<std::uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

namespace {

using Json = nlohmann::ordered_json;

// The name that Hugging Face gives to a tensor of llama.cpp's.
std::string HfName(const model::TensorRow& row, std::uint32_t layer) {
  static const std::pair<model::TensorRole, const char*> kNames[] = {
      {model::TensorRole::kAttentionNorm, "input_layernorm"},
      {model::TensorRole::kQuery, "self_attn.q_proj"},
      {model::TensorRole::kKey, "self_attn.k_proj"},
      {model::TensorRole::kValue, "self_attn.v_proj"},
      {model::TensorRole::kAttentionOutput, "self_attn.o_proj"},
      {model::TensorRole::kFfnNorm, "post_attention_layernorm"},
      {model::TensorRole::kGate, "mlp.gate_proj"},
      {model::TensorRole::kUp, "mlp.up_proj"},
      {model::TensorRole::kDown, "mlp.down_proj"}};
  for (const auto& [role, name] : kNames) {
    if (row.role == role) return absl::StrCat("model.layers.", layer, ".", name, ".weight");
  }
  if (row.role == model::TensorRole::kTokenEmbedding) return "model.embed_tokens.weight";
  return row.role == model::TensorRole::kHead ? "lm_head.weight" : "model.norm.weight";
}

// Its values in Hugging Face's order: pairs of q and k are half a head apart.
HfTensor HfTensorOf(const model::Tensor& tensor, const model::TensorRow& row, std::uint32_t layer,
                    std::uint32_t head_dim) {
  HfTensor result{.name = HfName(row, layer), .dtype = "BF16", .shape = {}, .data = {}};
  for (std::uint32_t d = tensor.rank; d-- > 0;) result.shape.push_back(tensor.dims[d]);
  std::vector<float> values(tensor.elements());
  EXPECT_TRUE(model::DequantizeRow(tensor.type, tensor.data, values).ok());
  const bool pairs = row.role == model::TensorRole::kQuery || row.role == model::TensorRole::kKey;
  const std::uint64_t columns = tensor.dims[0];
  std::vector<std::uint16_t> halves(values.size());
  for (std::uint64_t at = 0; at < values.size(); ++at) {
    const model::RowMap halves_of_heads{.head = head_dim, .pairs = pairs ? head_dim : 0};
    const auto row_at = static_cast<std::int64_t>(at / columns);
    const auto to = static_cast<std::uint64_t>(halves_of_heads.At(row_at));
    halves[to * columns + at % columns] = ToBf16(values[at]);
  }
  result.data.assign(reinterpret_cast<const char*>(halves.data()), halves.size() * 2);
  return result;
}

}  // namespace

std::string Safetensors(std::string_view header, std::string_view data) {
  const std::uint64_t size = header.size();
  std::string bytes(reinterpret_cast<const char*>(&size), sizeof size);
  return bytes.append(header).append(data);
}

std::string Safetensors(const std::vector<HfTensor>& tensors) {
  Json header = {{"__metadata__", {{"format", "pt"}}}};
  std::string data;
  for (const HfTensor& tensor : tensors) {
    header[tensor.name] = {{"dtype", tensor.dtype},
                           {"shape", tensor.shape},
                           {"data_offsets", {data.size(), data.size() + tensor.data.size()}}};
    data += tensor.data;
  }
  return Safetensors(header.dump(), data);
}

void WriteFile(const std::string& path, std::string_view text) {
  std::ofstream(path, std::ios::binary) << text;
}

Json TokenizerJson(const TokenizerBundle& bundle) {
  Json vocabulary = Json::object(), added = Json::array(), merges = Json::array();
  for (std::size_t id = 0; id < bundle.tokens.size(); ++id) {
    if (bundle.kinds[id] == TokenKind::kNormal) {
      vocabulary[bundle.tokens[id]] = id;
      continue;
    }
    added.push_back({{"id", id},
                     {"content", bundle.tokens[id]},
                     {"single_word", false},
                     {"lstrip", false},
                     {"rstrip", false},
                     {"normalized", false},
                     {"special", bundle.kinds[id] == TokenKind::kControl}});
  }
  for (const std::string& merge : bundle.merges) {  // the newer form
    const std::size_t space = merge.find(' ');
    merges.push_back({merge.substr(0, space), merge.substr(space + 1)});
  }
  const Json bytes = {{"type", "ByteLevel"},
                      {"add_prefix_space", false},
                      {"trim_offsets", true},
                      {"use_regex", true}};
  return {{"version", "1.0"},
          {"added_tokens", added},
          {"normalizer", nullptr},
          {"pre_tokenizer",
           {{"type", "Sequence"},
            {"pretokenizers",
             Json::array({{{"type", "Digits"}, {"individual_digits", true}}, bytes})}}},
          {"post_processor", nullptr},
          {"decoder", bytes},
          {"model", {{"type", "BPE"}, {"vocab", vocabulary}, {"merges", merges}}}};
}

Json TokenizerConfigJson(const TokenizerBundle& bundle) {
  const auto text = [&](TokenId id) -> Json {
    return id < 0 ? Json(nullptr) : Json(bundle.tokens[static_cast<std::size_t>(id)]);
  };
  Json config = {{"bos_token", text(bundle.bos)}, {"eos_token", {{"content", text(bundle.eos)}}}};
  if (bundle.add_bos.has_value()) config["add_bos_token"] = *bundle.add_bos;
  if (bundle.chat_template.has_value()) config["chat_template"] = *bundle.chat_template;
  return config;
}

void WriteLlamaFolder(const model::Checkpoint& llama, const std::string& folder,
                      std::uint32_t layers) {
  auto spec = model::LoadSpec(llama);
  ASSERT_TRUE(spec.ok()) << spec.status();
  if (layers > 0) spec->layers.resize(layers);
  const model::AttentionSpec& attention = spec->attention();
  const auto base = llama.configuration().Float("rope.freq_base");
  const Json config = {{"architectures", {"LlamaForCausalLM"}},
                       {"model_type", "llama"},
                       {"hidden_act", "silu"},
                       {"hidden_size", spec->hidden},
                       {"intermediate_size", spec->ffn().width},
                       {"max_position_embeddings", spec->context_length},
                       {"num_attention_heads", attention.heads},
                       {"num_hidden_layers", spec->layers.size()},
                       {"num_key_value_heads", attention.kv_heads},
                       {"rms_norm_eps", spec->output_norm.eps},
                       {"rope_theta", base.value_or(10000)},
                       {"rope_scaling", nullptr},
                       {"torch_dtype", "bfloat16"},
                       {"vocab_size", spec->vocab}};
  std::filesystem::create_directories(folder);
  WriteFile(folder + "/config.json", config.dump());
  std::vector<HfTensor> parts[2];
  Json map = Json::object();
  const char* const names[] = {"model-00001-of-00002.safetensors",
                               "model-00002-of-00002.safetensors"};
  for (const model::TensorRow& row : spec->tensors) {
    const std::size_t count = model::IsPerLayer(row) ? spec->layers.size() : 1;
    for (std::uint32_t layer = 0; layer < count; ++layer) {
      const std::size_t part = layer % 2;
      const model::Tensor* tensor = llama.FindTensor(model::NameInFile(row, layer));
      parts[part].push_back(HfTensorOf(*tensor, row, layer, attention.head_dim));
      map[parts[part].back().name] = names[part];
    }
  }
  for (std::size_t part = 0; part < 2; ++part) {
    WriteFile(absl::StrCat(folder, "/", names[part]), Safetensors(parts[part]));
  }
  WriteFile(folder + "/model.safetensors.index.json", Json{{"weight_map", map}}.dump());
  const auto tokenizer = llama.ReadTokenizer();
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  WriteFile(folder + "/tokenizer.json", TokenizerJson(*tokenizer).dump());
  WriteFile(folder + "/tokenizer_config.json", TokenizerConfigJson(*tokenizer).dump());
}

void WriteMxfp4Folder(const std::string& folder, bool quantised) {
  const std::string from = "tests/data/tiny/gpt_oss";
  const auto file = model::OpenCheckpoint(from);
  ASSERT_TRUE(file.ok()) << file.status();
  std::vector<HfTensor> tensors;
  for (const model::Tensor& tensor : (*file)->tensors()) {
    const std::string name(tensor.name);
    std::vector<std::uint64_t> shape;
    for (std::uint32_t d = tensor.rank; d-- > 0;) shape.push_back(tensor.dims[d]);
    if (!name.ends_with("experts.gate_up_proj") && !name.ends_with("experts.down_proj")) {
      tensors.push_back({name,
                         std::string(model::GgmlTypeName(tensor.type)),
                         shape,
                         {reinterpret_cast<const char*>(tensor.data.data()), tensor.data.size()}});
      continue;
    }
    // The file has [experts, inputs, outputs].
    const std::uint64_t experts = shape[0], inputs = shape[1], outputs = shape[2];
    const auto in_file = [&](std::uint64_t i) {
      const std::uint64_t expert = i / (inputs * outputs), k = i % inputs;
      return (expert * inputs + k) * outputs + i / inputs % outputs;
    };
    std::vector<float> values(tensor.elements()), rows(values.size());
    ASSERT_TRUE(model::DequantizeRow(tensor.type, tensor.data, values).ok());
    for (std::uint64_t i = 0; i < rows.size(); ++i) rows[i] = values[in_file(i)];
    const auto blocks = EncodeTensor(model::GgmlType::kMXFP4, rows);
    if (!quantised) {
      ASSERT_TRUE(model::DequantizeRow(model::GgmlType::kMXFP4, blocks, rows).ok());
      std::vector<std::uint16_t> halves(rows.size());
      for (std::uint64_t i = 0; i < rows.size(); ++i) halves[in_file(i)] = ToBf16(rows[i]);
      tensors.push_back({name, "BF16", shape, {}});
      tensors.back().data.assign(reinterpret_cast<const char*>(halves.data()), halves.size() * 2);
      continue;
    }
    // A block of GGUF is an exponent and 16 bytes, which have the elements j and j + 16.
    HfTensor nibbles{name + "_blocks", "U8", {experts, outputs, inputs / 32, 16}, {}};
    HfTensor scales{name + "_scales", "U8", {experts, outputs, inputs / 32}, {}};
    for (std::size_t at = 0; at < blocks.size(); at += 17) {
      scales.data += static_cast<char>(blocks[at]);
      const auto place = [&](int element) {
        const auto byte = std::to_integer<unsigned>(blocks[at + 1 + element % 16]);
        return element < 16 ? byte & 15 : byte >> 4;
      };
      for (int j = 0; j < 16; ++j) {
        nibbles.data += static_cast<char>(place(2 * j) | place(2 * j + 1) << 4);
      }
    }
    tensors.push_back(std::move(nibbles));
    tensors.push_back(std::move(scales));
  }
  std::ifstream text(from + "/config.json");
  Json config = Json::parse(text);
  if (quantised) {
    config["quantization_config"] = {{"modules_to_not_convert", {"model.layers.*.self_attn"}},
                                     {"quant_method", "mxfp4"}};
  }
  std::filesystem::create_directories(folder);
  WriteFile(folder + "/config.json", config.dump());
  WriteFile(folder + "/model.safetensors", Safetensors(tensors));
}

}  // namespace flotilla::testing
