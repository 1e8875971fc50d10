#include "tests/support/quantised_folder.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <numeric>
#include <string_view>
#include <utility>

#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "common/types/weight_panel.h"
#include "model/checkpoint.h"
#include "model/tensor.h"
#include "tests/support/hf_folder.h"
#include "tests/support/random.h"

namespace flotilla::testing {
namespace {

using Json = nlohmann::ordered_json;

// What a layer is written with.
class LayerWriter {
 public:
  LayerWriter(std::string name, std::uint64_t rows, std::uint64_t inputs, std::uint64_t seed,
              std::vector<HfTensor>& tensors)
      : rows(rows), inputs(inputs), name_(std::move(name)), random_(seed), tensors_(tensors) {}

  const std::uint64_t rows, inputs;
  std::string_view name() const { return name_; }

  // A tensor whose elements `make` returns.
  template <typename T>
  void Put(std::string_view suffix, const char* dtype, std::vector<std::uint64_t> shape,
           const std::function<T(Random&)>& make) {
    HfTensor& tensor = tensors_.emplace_back();
    tensor.name = absl::StrCat(name_, std::string(suffix));
    tensor.dtype = dtype;
    std::uint64_t elements = 1;
    for (const std::uint64_t size : shape) elements *= size;
    tensor.shape = std::move(shape);
    for (std::uint64_t i = 0; i < elements; ++i) {
      const T value = make(random_);
      tensor.data.append(reinterpret_cast<const char*>(&value), sizeof value);
    }
  }
  void Bits(std::string_view suffix, const char* dtype, std::vector<std::uint64_t> shape) {
    if (dtype[0] == 'I' && dtype[1] == '3') {
      return Put<std::uint32_t>(suffix, dtype, std::move(shape), [](Random& random) {
        return static_cast<std::uint32_t>(random.Next());
      });
    }
    Put<std::uint8_t>(suffix, dtype, std::move(shape),
                      [](Random& random) { return static_cast<std::uint8_t>(random.Next()); });
  }
  // Scales around one for which weights with codes of deviation `codes` are of the size that a
  // matrix keeps that of its input with.
  void Scales(std::string_view suffix, const char* dtype, std::vector<std::uint64_t> shape,
              double codes) {
    const double middle = 1 / (codes * std::sqrt(static_cast<double>(inputs)));
    const auto scale = [middle](Random& random) {
      return static_cast<float>(middle * (1 + 0.5 * random.Unit()));
    };
    const std::string_view type = dtype;
    if (type == "F16") {
      return Put<std::uint16_t>(suffix, dtype, std::move(shape),
                                [&](Random& random) { return model::FloatToHalf(scale(random)); });
    }
    if (type == "BF16") {
      return Put<std::uint16_t>(suffix, dtype, std::move(shape),
                                [&](Random& random) { return ToBf16(scale(random)); });
    }
    Put<float>(suffix, dtype, std::move(shape), scale);
  }
  void Text(std::string_view suffix, std::string_view text) {
    std::size_t at = 0;
    Put<char>(suffix, "U8", {text.size()}, [&](Random&) { return text[at++]; });
  }

 private:
  const std::string name_;
  Random random_;
  std::vector<HfTensor>& tensors_;
};

// Deviations of codes that are all equally likely.
constexpr double kDeviation2 = 1.1, kDeviation3 = 2.3, kDeviation4 = 4.6, kDeviation8 = 74;

std::uint8_t Fp8Below2(Random& random) {
  return static_cast<std::uint8_t>(random.Int(0, 0x3F) | random.Int(0, 1) << 7);
}

void PutShape(LayerWriter& layer) {
  std::uint64_t next = layer.rows;
  layer.Put<std::uint64_t>(".weight_shape", "I64", {2},
                           [&](Random&) { return std::exchange(next, layer.inputs); });
}

// Words of three-bit codes by chance, with the numbers that the words of a tile have in common, and
// an outlier in each hundred weights.
void WriteSpqr(LayerWriter& layer, bool ordered) {
  Random numbers(layer.rows * layer.inputs);
  const auto near = [&](double middle, double share) {
    return std::uint64_t{
        model::FloatToHalf(static_cast<float>(middle * (1 + share * numbers.Unit())))};
  };
  // Scales are about 7.5 steps, and codes less their zero have a deviation of about 2.5.
  const double step = 1 / (7.5 * 2.5 * std::sqrt(static_cast<double>(layer.inputs)));
  std::uint64_t at = 0, common = 0;
  layer.Put<std::uint64_t>(
      ".dense_weights", "I64", {layer.rows * layer.inputs / 16}, [&](Random& random) {
        const std::uint64_t row = at++ % 16;
        if (row == 0) {
          common =
              near(step, 0.5) | near(0.4, 0.2) << 16 | near(-4, 0.5) << 32 | near(-5, 0.3) << 48;
        }
        return random.Next() >> 10 | (common >> row / 2 * 8 & 0xFF) << 54;
      });
  std::vector<std::uint32_t> offsets = {0}, outliers;
  for (std::uint64_t row = 0; row < layer.rows; ++row) {
    for (std::uint64_t column = 0; column < layer.inputs; ++column) {
      if (numbers.Below(100) != 0) continue;
      outliers.push_back(static_cast<std::uint32_t>(near(12 * step, 2) << 16 | column));
    }
    offsets.push_back(static_cast<std::uint32_t>(outliers.size()));
  }
  const auto put = [&](std::string_view suffix, const std::vector<std::uint32_t>& list) {
    std::size_t next = 0;
    layer.Put<std::uint32_t>(suffix, "I32", {list.size()}, [&](Random&) { return list[next++]; });
  };
  put(".row_offsets", offsets);
  put(".col_vals", outliers);
  std::vector<std::uint32_t> order;
  if (ordered) {
    // The same for all layers with the same inputs; but not for V.
    Random same(layer.inputs + (layer.name().ends_with("v_proj") ? 1 : 0));
    std::vector<std::uint32_t> all(layer.inputs);
    std::iota(all.begin(), all.end(), 0);
    for (std::size_t i = all.size(); i > 1; --i) {
      std::swap(all[i - 1], all[same.Below(static_cast<std::uint32_t>(i))]);
    }
    for (std::size_t i = 0; i < all.size(); i += 2) order.push_back(all[i] | all[i + 1] << 16);
  }
  put(".in_perm", order);
}

constexpr std::uint64_t kGroup = 32;  // of all formats that have groups of any size

// The k of a group are anywhere. As GPTQ has it, they are the same for all layers with the same
// inputs; but not for V.
void PutOrder(LayerWriter& layer) {
  Random same(layer.inputs + (layer.name().ends_with("v_proj") ? 1 : 0));
  layer.Put<std::uint32_t>(".g_idx", "I32", {layer.inputs}, [&](Random&) {
    return same.Below(static_cast<std::uint32_t>(layer.inputs / kGroup));
  });
}

// Scales in fp16, and zeros by chance.
void WriteGptq(LayerWriter& layer, std::uint64_t bits, double deviation) {
  const std::uint64_t groups = layer.inputs / kGroup;
  layer.Bits(".qweight", "I32", {layer.inputs * bits / 32, layer.rows});
  layer.Bits(".qzeros", "I32", {groups, layer.rows * bits / 32});
  layer.Scales(".scales", "F16", {groups, layer.rows}, 2 * deviation);
}

// The values of FP4 that bitsandbytes has.
constexpr float kBitsAndBytesFp4Values[8] = {0.0f,        0.00520833f, 0.6666667f,  1.0f,
                                             0.33333334f, 0.5f,        0.16666667f, 0.25f};

// Blocks of 64 places of a table. `nested`: their scales are places, too.
void WriteBitsAndBytes(LayerWriter& layer, std::string_view type, bool nested) {
  const std::uint64_t weights = layer.rows * layer.inputs, blocks = weights / 64;
  layer.Bits(".weight", "U8", {weights / 2, 1});
  std::string more;
  if (nested) {
    const double middle = 1 / (0.55 * std::sqrt(static_cast<double>(layer.inputs)));
    layer.Bits(".weight.absmax", "U8", {blocks});
    layer.Scales(".weight.nested_absmax", "F32", {(blocks + 255) / 256}, 2 * 0.55);
    int at = 0;
    layer.Put<float>(".weight.nested_quant_map", "F32", {256},
                     [&](Random&) { return static_cast<float>(at++ - 127) / 128; });
    more = absl::StrCat(R"(, "nested_blocksize": 256, "nested_offset": )", middle);
  } else {
    layer.Scales(".weight.absmax", "F32", {blocks}, 0.55);
  }
  std::size_t at = 0;
  layer.Put<float>(".weight.quant_map", "F32", {16}, [&](Random&) {
    const std::size_t place = at++;
    if (type == "nf4") return kNf4Values[place];
    return place < 8 ? kBitsAndBytesFp4Values[place] : -kBitsAndBytesFp4Values[place - 8];
  });
  layer.Text(absl::StrCat(".weight.quant_state.bitsandbytes__", std::string(type)),
             absl::StrCat(R"({"quant_type": ")", std::string(type),
                          R"(", "blocksize": 64, "dtype": "bfloat16", "shape": [)", layer.rows,
                          ", ", layer.inputs, "]", more, "}"));
}

struct Format {
  const char* name;
  const char* method;
  void (*write)(LayerWriter& layer);
};

const Format kFormats[] = {
    {"gptq", "gptq",
     [](LayerWriter& layer) {
       const std::uint64_t groups = layer.inputs / kGroup;
       layer.Bits(".qweight", "I32", {layer.inputs / 8, layer.rows});
       layer.Put<std::uint32_t>(".qzeros", "I32", {groups, layer.rows / 8},
                                [](Random&) { return 0x77777777u; });
       layer.Scales(".scales", "F16", {groups, layer.rows}, kDeviation4);
     }},
    {"gptq_zero", "gptq",
     [](LayerWriter& layer) {
       const std::uint64_t groups = layer.inputs / kGroup;
       layer.Bits(".qweight", "I32", {layer.inputs / 8, layer.rows});
       layer.Bits(".qzeros", "I32", {groups, layer.rows / 8});
       layer.Scales(".scales", "BF16", {groups, layer.rows}, 2 * kDeviation4);
     }},
    {"gptq_order", "gptq",
     [](LayerWriter& layer) {
       WriteGptq(layer, 4, kDeviation4);
       PutOrder(layer);
     }},
    // Each matrix has an order of its own.
    {"gptq_own_order", "gptq",
     [](LayerWriter& layer) {
       WriteGptq(layer, 4, kDeviation4);
       layer.Put<std::uint32_t>(".g_idx", "I32", {layer.inputs}, [&](Random& random) {
         return random.Below(static_cast<std::uint32_t>(layer.inputs / kGroup));
       });
     }},
    {"gptq_2bit", "gptq_2bit", [](LayerWriter& layer) { WriteGptq(layer, 2, kDeviation2); }},
    {"gptq_3bit", "gptq_3bit", [](LayerWriter& layer) { WriteGptq(layer, 3, kDeviation3); }},
    {"gptq_8bit", "gptq_8bit", [](LayerWriter& layer) { WriteGptq(layer, 8, kDeviation8); }},
    {"gptq_8bit_order", "gptq_8bit",
     [](LayerWriter& layer) {
       WriteGptq(layer, 8, kDeviation8);
       PutOrder(layer);
     }},
    {"awq", "awq",
     [](LayerWriter& layer) {
       const std::uint64_t groups = layer.inputs / kGroup;
       layer.Bits(".qweight", "I32", {layer.inputs, layer.rows / 8});
       layer.Bits(".qzeros", "I32", {groups, layer.rows / 8});
       layer.Scales(".scales", "F16", {groups, layer.rows}, 2 * kDeviation4);
     }},
    {"spqr", "spqr", [](LayerWriter& layer) { WriteSpqr(layer, /*ordered=*/false); }},
    {"spqr_order", "spqr", [](LayerWriter& layer) { WriteSpqr(layer, /*ordered=*/true); }},
    {"fp8_blocks", "fp8",
     [](LayerWriter& layer) {
       layer.Put<std::uint8_t>(".weight", "F8_E4M3", {layer.rows, layer.inputs}, Fp8Below2);
       layer.Scales(".weight_scale_inv", "F32",
                    {(layer.rows + 127) / 128, (layer.inputs + 127) / 128}, 0.5);
     }},
    {"nf4", "bitsandbytes",
     [](LayerWriter& layer) { WriteBitsAndBytes(layer, "nf4", /*nested=*/false); }},
    {"nf4_nested", "bitsandbytes",
     [](LayerWriter& layer) { WriteBitsAndBytes(layer, "nf4", /*nested=*/true); }},
    {"fp4", "bitsandbytes",
     [](LayerWriter& layer) { WriteBitsAndBytes(layer, "fp4", /*nested=*/false); }},
    {"int8_rows", "bitsandbytes",
     [](LayerWriter& layer) {
       layer.Bits(".weight", "I8", {layer.rows, layer.inputs});
       layer.Scales(".SCB", "F32", {layer.rows}, kDeviation8 / 127);
       layer.Put<std::uint8_t>(".weight_format", "U8", {}, [](Random&) { return 0; });
     }},
    {"w4", "compressed-tensors",
     [](LayerWriter& layer) {
       layer.Bits(".weight_packed", "I32", {layer.rows, layer.inputs / 8});
       layer.Scales(".weight_scale", "BF16", {layer.rows, layer.inputs / kGroup}, kDeviation4);
       PutShape(layer);
     }},
    {"w8_zero", "compressed-tensors",
     [](LayerWriter& layer) {
       const std::uint64_t groups = layer.inputs / kGroup;
       layer.Bits(".weight_packed", "I32", {layer.rows, layer.inputs / 4});
       layer.Scales(".weight_scale", "BF16", {layer.rows, groups}, 2 * kDeviation8);
       layer.Bits(".weight_zero_point", "I32", {layer.rows / 4, groups});
       PutShape(layer);
     }},
    {"w2_zero", "compressed-tensors",
     [](LayerWriter& layer) {
       const std::uint64_t groups = layer.inputs / kGroup;
       layer.Bits(".weight_packed", "I32", {layer.rows, layer.inputs / 16});
       layer.Scales(".weight_scale", "BF16", {layer.rows, groups}, 2 * kDeviation2);
       layer.Bits(".weight_zero_point", "I32", {(layer.rows + 15) / 16, groups});
       PutShape(layer);
     }},
    {"int8", "compressed-tensors",
     [](LayerWriter& layer) {
       layer.Bits(".weight", "I8", {layer.rows, layer.inputs});
       layer.Scales(".weight_scale", "BF16", {layer.rows, 1}, kDeviation8);
     }},
    {"w8a8", "w8a8",
     [](LayerWriter& layer) {
       layer.Bits(".weight", "I8", {layer.rows, layer.inputs});
       layer.Scales(".weight_scale", "F32", {layer.rows, 1}, kDeviation8);
     }},
    // Each layer has activations of its own.
    {"w8a8_static", "w8a8_static",
     [](LayerWriter& layer) {
       layer.Bits(".weight", "I8", {layer.rows, layer.inputs});
       layer.Scales(".weight_scale", "BF16", {layer.rows, 1}, kDeviation8);
       layer.Put<float>(".input_scale", "F32", {1}, [](Random& random) {
         return static_cast<float>(0.02 + 0.01 * random.Unit());
       });
       layer.Put<std::int8_t>(".input_zero_point", "I8", {1}, [](Random& random) {
         return static_cast<std::int8_t>(random.Int(-20, 20));
       });
     }},
    {"fp8", "compressed-tensors",
     [](LayerWriter& layer) {
       layer.Put<std::uint8_t>(".weight", "F8_E4M3", {layer.rows, layer.inputs}, Fp8Below2);
       layer.Scales(".weight_scale", "BF16", {layer.rows, 1}, 0.5);
     }},
    {"nvfp4", "compressed-tensors",
     [](LayerWriter& layer) {
       layer.Bits(".weight_packed", "U8", {layer.rows, layer.inputs / 2});
       // Between 1 and 2.
       layer.Put<std::uint8_t>(
           ".weight_scale", "F8_E4M3", {layer.rows, layer.inputs / 16},
           [](Random& random) { return static_cast<std::uint8_t>(0x38 + random.Below(8)); });
       const double size = 3 * 1.5 * std::sqrt(static_cast<double>(layer.inputs));
       layer.Put<float>(".weight_global_scale", "F32", {1},
                        [&](Random&) { return static_cast<float>(size); });
     }},
    {"mxfp4", "compressed-tensors",
     [](LayerWriter& layer) {
       layer.Bits(".weight_packed", "U8", {layer.rows, layer.inputs / 2});
       layer.Put<std::uint8_t>(
           ".weight_scale", "U8", {layer.rows, layer.inputs / 32},
           [](Random& random) { return static_cast<std::uint8_t>(121 + random.Below(2)); });
     }},
};

Json QuantizationConfig(std::string_view method) {
  for (const auto& [name, bits] :
       {std::pair{"gptq_2bit", 2}, {"gptq_3bit", 3}, {"gptq", 4}, {"gptq_8bit", 8}}) {
    if (method != name) continue;
    return {{"quant_method", "gptq"}, {"bits", bits}, {"group_size", kGroup}};
  }
  if (method == "awq") return {{"quant_method", "awq"}, {"bits", 4}, {"group_size", kGroup}};
  if (method == "fp8") return {{"quant_method", "fp8"}, {"weight_block_size", {128, 128}}};
  if (method == "spqr") {
    return {{"quant_method", "spqr"}, {"bits", 3}, {"beta1", 16}, {"beta2", 16}};
  }
  if (method == "bitsandbytes") return {{"quant_method", "bitsandbytes"}};
  const auto group = [](int bits) -> Json {
    return {{"weights", {{"num_bits", bits}, {"group_size", kGroup}}}};
  };
  if (method.starts_with("w8a8")) {
    const bool dynamic = method == "w8a8";
    return {{"quant_method", "compressed-tensors"},
            {"format", "int-quantized"},
            {"config_groups",
             {{"group_0",
               {{"targets", {"Linear"}},
                {"weights", {{"num_bits", 8}, {"type", "int"}, {"strategy", "channel"}}},
                {"input_activations",
                 {{"num_bits", 8},
                  {"type", "int"},
                  {"symmetric", dynamic},
                  {"dynamic", dynamic},
                  {"strategy", dynamic ? "token" : "tensor"}}}}}}}};
  }
  return {{"quant_method", "compressed-tensors"},
          {"format", "mixed-precision"},
          {"config_groups", {{"group_0", group(4)}, {"group_1", group(8)}, {"group_2", group(2)}}}};
}

// Everything but weights and config.json.
void CopyOtherFiles(const std::string& from, const std::string& folder) {
  std::filesystem::create_directories(folder);
  for (const auto& entry : std::filesystem::directory_iterator(from)) {
    const std::string name = entry.path().filename();
    if (name == "config.json" || name.starts_with("model")) continue;
    std::filesystem::copy(entry.path(), folder + "/" + name);
  }
}

// The number of the layer that a matrix belongs to and may be quantised in; -1: none.
int LayerOf(const model::Tensor& tensor) {
  constexpr std::string_view kLayers = "model.layers.";
  const std::string_view name = tensor.name;
  if (tensor.rank != 2 || !name.starts_with(kLayers) || !name.ends_with(".weight")) return -1;
  if (name.ends_with("moe.gate.weight") || name.ends_with("mlp.gate.weight")) return -1;
  // Tools leave out what no group divides.
  if (tensor.dims[0] % kGroup != 0 || tensor.dims[1] % kGroup != 0) return -1;
  return std::stoi(std::string(name.substr(kLayers.size())));
}

}  // namespace

std::vector<QuantisedLayers> AllQuantisedLayers() {
  return {{"gptq", {"gptq", "gptq_zero", "gptq_order"}},
          {"gptq_2bit", {"gptq_2bit"}},
          {"gptq_3bit", {"gptq_3bit"}},
          {"gptq_8bit", {"gptq_8bit", "gptq_8bit_order"}},
          {"awq", {"awq"}},
          {"fp8", {"fp8_blocks"}},
          {"bitsandbytes", {"nf4", "int8_rows"}},
          {"bitsandbytes_4bit", {"nf4_nested", "fp4"}},
          {"spqr", {"spqr", "spqr_order"}},
          {"compressed_tensors", {"w4", "w8_zero", "int8", "w2_zero"}},
          {"compressed_tensors_float", {"fp8", "nvfp4", "mxfp4"}}};
}

std::vector<QuantisedLayers> W8A8Layers() {
  return {{"w8a8", {"w8a8"}}, {"w8a8_static", {"w8a8_static"}}};
}

void WriteQuantisedFolder(const std::string& from, const QuantisedLayers& layers,
                          std::uint64_t seed, const std::string& folder) {
  const auto file = model::OpenCheckpoint(from);
  ASSERT_TRUE(file.ok()) << file.status();
  CopyOtherFiles(from, folder);
  std::string method;
  std::vector<HfTensor> tensors;
  for (const model::Tensor& tensor : (*file)->tensors()) {
    const int layer = LayerOf(tensor);
    if (layer < 0) {
      tensors.push_back(CopyOf(tensor));
      continue;
    }
    const std::string& wanted =
        layers.formats[static_cast<std::size_t>(layer) % layers.formats.size()];
    const auto* format = std::find_if(std::begin(kFormats), std::end(kFormats),
                                      [&](const Format& each) { return each.name == wanted; });
    ASSERT_NE(format, std::end(kFormats)) << wanted;
    method = format->method;
    std::string name(
        tensor.name.substr(0, tensor.name.size() - std::string_view(".weight").size()));
    LayerWriter writer(std::move(name), tensor.dims[1], tensor.dims[0], ++seed, tensors);
    format->write(writer);
  }
  std::ifstream text(from + "/config.json");
  Json config = Json::parse(text);
  config["quantization_config"] = QuantizationConfig(method);
  WriteFile(folder + "/config.json", config.dump());
  WriteFile(folder + "/model.safetensors", Safetensors(tensors));
}

void WriteFp32Folder(const std::string& from, const model::Checkpoint& file,
                     const std::string& folder) {
  CopyOtherFiles(from, folder);
  std::vector<HfTensor> tensors;
  for (const model::Tensor& tensor : file.tensors()) {
    if (tensor.composite == nullptr) {
      tensors.push_back(CopyOf(tensor));
      continue;
    }
    HfTensor& plain = tensors.emplace_back();
    plain.name = tensor.name;
    plain.dtype = "F32";
    plain.shape = {tensor.dims[1], tensor.dims[0]};
    std::vector<float> row(tensor.dims[0]);
    for (std::uint64_t r = 0; r < tensor.dims[1]; ++r) {
      ASSERT_TRUE(model::DecodeRow(tensor, static_cast<std::int64_t>(r), row).ok());
      plain.data.append(reinterpret_cast<const char*>(row.data()), row.size() * sizeof(float));
    }
  }
  std::ifstream text(from + "/config.json");
  Json config = Json::parse(text);
  config.erase("quantization_config");
  WriteFile(folder + "/config.json", config.dump());
  WriteFile(folder + "/model.safetensors", Safetensors(tensors));
}

}  // namespace flotilla::testing
