// Layers as GPTQ, AWQ, compressed-tensors, FP8 checkpoints, bitsandbytes and SpQR have them
// (tests/data/quantised, made by tests/golden/make/make_quantised.py with those libraries): codes,
// scales and weights are those of the libraries, bit by bit.
#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <functional>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "common/types/text.h"
#include "model/huggingface/quantization/quantization.h"
#include "model/huggingface/safetensors_file.h"
#include "model/tensor.h"
#include "tests/support/hf_folder.h"
#include "tests/support/sha256.h"
#include "tests/support/weight_case.h"

namespace flotilla::model {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr char kFolder[] = "tests/data/quantised/";

struct Case {
  std::string name;
  Json entry;

  int64_t rows() const { return entry["rows"]; }
  int64_t inputs() const { return entry["inputs"]; }
};

std::vector<Case> Cases() {
  std::ifstream file(absl::StrCat(kFolder, "cases.json"));
  std::vector<Case> cases;
  for (const Json& entry : Json::parse(file)) cases.push_back({entry["name"], entry});
  return cases;
}

Case CaseNamed(std::string_view name) {
  for (const Case& each : Cases()) {
    if (each.name == name) return each;
  }
  ADD_FAILURE() << "no case " << name;
  return {};
}

// A layer of a folder, with the file that it lies in.
struct Layer {
  absl::Status status;
  std::unique_ptr<SafetensorsFile> file;
  std::string bytes;  // of a file that a test made
  FolderTensors folder;

  const Tensor* weight() const {
    const auto found = std::ranges::find(folder.tensors, "layer.weight", &Tensor::name);
    return found == folder.tensors.end() ? nullptr : &*found;
  }
};

void Join(const Json& quantization, Layer& layer) {
  layer.folder.tensors.assign(layer.file->tensors().begin(), layer.file->tensors().end());
  const Json config = {{"quantization_config", quantization}};
  const auto found = FindQuantization(config);
  layer.status = found.ok() ? found->method->join(*found->settings, layer.folder) : found.status();
}

std::unique_ptr<Layer> Open(const Case& each) {
  auto layer = std::make_unique<Layer>();
  auto file = SafetensorsFile::Open(absl::StrCat(kFolder, each.name, ".safetensors"));
  if (!file.ok()) {
    layer->status = file.status();
    return layer;
  }
  layer->file = std::make_unique<SafetensorsFile>(*std::move(file));
  Join(each.entry["quantization_config"], *layer);
  return layer;
}

std::vector<float> Weights(const Tensor& tensor) {
  std::vector<float> weights(tensor.elements());
  const size_t inputs = tensor.dims[0];
  for (size_t row = 0; row < tensor.dims[1]; ++row) {
    const std::span<float> out = std::span(weights).subspan(row * inputs, inputs);
    EXPECT_TRUE(DecodeRow(tensor, static_cast<int64_t>(row), out).ok());
  }
  return weights;
}

TEST(QuantisedLayersTest, HaveTheWeightsOfTheirLibraries) {
  std::set<std::string> methods;
  for (const Case& each : Cases()) {
    SCOPED_TRACE(each.name);
    const auto layer = Open(each);
    ASSERT_TRUE(layer->status.ok()) << layer->status;
    const Tensor* weight = layer->weight();
    ASSERT_NE(weight, nullptr);
    ASSERT_EQ(weight->dims[0], each.inputs());
    ASSERT_EQ(weight->dims[1], each.rows());
    // Nothing is left that has no meaning.
    EXPECT_EQ(layer->folder.tensors.size(), 1);
    const std::vector<float> weights = Weights(*weight);
    EXPECT_EQ(testing::Sha256(std::as_bytes(std::span(weights))), each.entry["weights_sha256"]);
    methods.insert(each.entry["quantization_config"]["quant_method"]);
  }
  EXPECT_THAT(methods, ::testing::ElementsAre("awq", "bitsandbytes", "compressed-tensors", "fp8",
                                              "gptq", "spqr"));
}

// Two groups of equal shapes, of which one has zeros: a layer is in the one that its tensors show,
// whichever comes first.
TEST(QuantisedLayersTest, ZerosTellGroupsOfOneShapeApart) {
  for (const Case& each : Cases()) {
    if (!each.name.starts_with("compressed_tensors_w4")) continue;
    SCOPED_TRACE(each.name);
    Json quantization = each.entry["quantization_config"];
    Json& groups = quantization["config_groups"];
    const Json own = groups["group_0"];
    const bool symmetric = own["weights"]["symmetric"];
    Json other = own;
    other["weights"]["symmetric"] = !symmetric;
    for (const auto& [first, second] : {std::pair(own, other), std::pair(other, own)}) {
      groups["group_0"] = first;
      groups["group_1"] = second;
      const auto layer = Open(each);
      Join(quantization, *layer);
      ASSERT_TRUE(layer->status.ok()) << layer->status;
      const std::vector<float> weights = Weights(*layer->weight());
      EXPECT_EQ(testing::Sha256(std::as_bytes(std::span(weights))), each.entry["weights_sha256"]);
    }
  }
}

// The scale of a group of a panel, in fp32.
float ScaleOf(const WeightEncoding& encoding, const WeightRow& row, int group) {
  if (encoding.scales == WeightEncoding::Scales::kFp32) return row.wide_scales[group];
  const uint16_t bits = row.scales[group];
  return encoding.scales == WeightEncoding::Scales::kFp16
             ? HalfToFloat(bits)
             : std::bit_cast<float>(uint32_t{bits} << 16);
}

// Panels of any part of a row mean the same, and their codes and scales are those of the library.
TEST(QuantisedLayersTest, PanelsHaveTheCodesOfTheirLibraries) {
  int compared = 0, scales_compared = 0;
  for (const Case& each : Cases()) {
    SCOPED_TRACE(each.name);
    const auto layer = Open(each);
    ASSERT_TRUE(layer->status.ok()) << layer->status;
    const Tensor& tensor = *layer->weight();
    const std::vector<float> weights = Weights(tensor);
    const WeightEncoding encoding = EncodingOf(tensor);
    const bool codes = encoding.numbers == WeightEncoding::Numbers::kCodes;
    std::vector<int16_t> integers(weights.size());
    // Scales of rows or groups that follow each other; the file's groups are multiples of 32.
    const Json& shape = each.entry["scales_shape"];
    const bool has_scales = encoding.order == 0 &&
                            encoding.scales != WeightEncoding::Scales::kCoded && shape.size() == 2;
    const int64_t groups = has_scales ? shape[1].get<int64_t>() : 1;
    int64_t group_size = 32;
    while ((each.inputs() + group_size - 1) / group_size > groups) group_size += 32;
    std::vector<float> scales(static_cast<size_t>(each.rows() * groups));
    const auto panel = std::make_unique<WeightPanel>();
    for (int64_t row = 0; row < each.rows(); ++row) {
      const std::vector<int64_t> rows = {row};
      for (int64_t begin = 0; begin < each.inputs();) {
        // Of a window the first 32 elements, then the rest.
        const int64_t most = begin % kPanelWindow == 0 ? 32 : kPanelWindow - begin % kPanelWindow;
        const int64_t end = std::min(begin + most, each.inputs());
        const absl::Status status = ReadPanel(tensor, rows, begin, end, encoding, *panel);
        ASSERT_TRUE(status.ok()) << status;
        for (int64_t k = begin; k < end; ++k) {
          const WeightRow& at = panel->rows[0];
          const auto place = static_cast<int>(k % kPanelWindow);
          ASSERT_EQ(static_cast<float>(testing::WeightOf(encoding, at, place)),
                    weights[row * each.inputs() + k])
              << row << " " << k;
          const int zero = encoding.has_zeros ? at.zeros[place / encoding.scale_group] : 0;
          integers[row * each.inputs() + k] = static_cast<int16_t>(at.codes[place] - zero);
          if (has_scales) {
            scales[row * groups + k / group_size] =
                ScaleOf(encoding, at, place / encoding.scale_group);
          }
        }
        begin = end;
      }
    }
    if (!codes || encoding.values != WeightEncoding::Values::kAll) continue;
    ++compared;
    EXPECT_EQ(testing::Sha256(std::as_bytes(std::span(integers))), each.entry["codes_sha256"]);
    if (!has_scales) continue;
    ++scales_compared;
    EXPECT_EQ(testing::Sha256(std::as_bytes(std::span(scales))), each.entry["scales_sha256"]);
  }
  EXPECT_EQ(compared, 31);
  EXPECT_EQ(scales_compared, 24);
}

// What is not read in fp32, and how many bits of the file each weight has.
TEST(QuantisedLayersTest, StayPacked) {
  std::vector<std::string> unpacked;
  for (const Case& each : Cases()) {
    const auto layer = Open(each);
    ASSERT_TRUE(layer->status.ok()) << each.name << ": " << layer->status;
    const bool codes = EncodingOf(*layer->weight()).numbers == WeightEncoding::Numbers::kCodes;
    if (!codes && each.inputs() % 32 == 0) unpacked.push_back(each.name);
  }
  // Another table of values.
  EXPECT_THAT(unpacked, ::testing::ElementsAre("bitsandbytes_fp4"));
}

// A layer with other tensors or another configuration than a case has.
struct Change {
  std::string name;
  std::function<void(std::vector<testing::HfTensor>& tensors, Json& quantization)> change;
  std::string error;
};

testing::HfTensor& Named(std::vector<testing::HfTensor>& tensors, std::string_view name) {
  return *std::ranges::find(tensors, Cat("layer.", name), &testing::HfTensor::name);
}

std::string ErrorOf(const Change& change) {
  const Case base = CaseNamed(change.name);
  auto file = SafetensorsFile::Open(absl::StrCat(kFolder, base.name, ".safetensors"));
  if (!file.ok()) return std::string(file.status().message());
  std::vector<testing::HfTensor> tensors;
  for (const Tensor& tensor : file->tensors()) {
    tensors.push_back(testing::CopyOf(tensor));
  }
  Json quantization = base.entry["quantization_config"];
  change.change(tensors, quantization);
  Layer layer;
  layer.bytes = testing::Safetensors(tensors);
  auto changed = SafetensorsFile::Parse(std::as_bytes(std::span(layer.bytes)));
  if (!changed.ok()) return std::string(changed.status().message());
  layer.file = std::make_unique<SafetensorsFile>(*std::move(changed));
  Join(quantization, layer);
  if (!layer.status.ok()) return std::string(layer.status.message());
  // What only the weights themselves show is found when they are read.
  const Tensor* weight = layer.weight();
  if (weight == nullptr) return "no weight";
  const auto panel = std::make_unique<WeightPanel>();
  for (int64_t row = 0; row < static_cast<int64_t>(weight->dims[1]); ++row) {
    for (int64_t k = 0; k < static_cast<int64_t>(weight->dims[0]); k += kPanelWindow) {
      const int64_t end =
          std::min<int64_t>(k + kPanelWindow, static_cast<int64_t>(weight->dims[0]));
      const std::vector<int64_t> rows = {row};
      const absl::Status status = ReadPanel(*weight, rows, k, end, EncodingOf(*weight), *panel);
      if (!status.ok()) return std::string(status.message());
    }
  }
  return "";
}

using Tensors = std::vector<testing::HfTensor>;

void Resize(testing::HfTensor& tensor, std::vector<std::uint64_t> shape) {
  std::uint64_t before = 1, after = 1;
  for (const std::uint64_t size : tensor.shape) before *= size;
  for (const std::uint64_t size : shape) after *= size;
  tensor.data.resize(tensor.data.size() / before * after);
  tensor.shape = std::move(shape);
}

void Remove(Tensors& tensors, std::string_view name) {
  std::erase_if(tensors, [&](const auto& each) { return each.name == Cat("layer.", name); });
}

// compressed-tensors leaves it at -1 in layers that nobody has put in an order.
TEST(QuantisedLayersTest, AnOrderOfMinusOneIsNone) {
  EXPECT_EQ(ErrorOf({"compressed_actorder_w4_32",
                     [](std::vector<testing::HfTensor>& tensors, Json&) {
                       std::string& order = Named(tensors, "weight_g_idx").data;
                       order.assign(order.size(), '\xFF');
                     },
                     ""}),
            "");
}

TEST(QuantisedLayersTest, RefuseTensorsThatDoNotFit) {
  const auto set = [](Json& quantization, const char* key, const Json& value) {
    quantization[key] = value;
  };
  const std::vector<Change> changes = {
      // GPTQ.
      {"gptq_4bit_asym_32", [](Tensors& t, Json&) { Remove(t, "scales"); },
       "tensor layer.scales is missing"},
      {"gptq_4bit_asym_32",
       [](Tensors& t, Json&) {
         Resize(Named(t, "qzeros"), {3, 4});
       },
       "tensor layer.qzeros is [3, 4], not [3, 8]"},
      {"gptq_4bit_asym_32",
       [](Tensors& t, Json&) {
         Resize(Named(t, "qweight"), {12, 0});
       },
       "tensor layer.qweight is empty"},
      {"gptq_4bit_asym_32", [](Tensors& t, Json&) { Resize(Named(t, "qweight"), {768}); },
       "tensor layer.qweight is [768], not [1, 768]"},
      {"gptq_4bit_asym_32", [](Tensors& t, Json&) { Named(t, "qweight").dtype = "F32"; },
       "tensor layer.qweight is F32, not I32"},
      {"gptq_4bit_asym_32", [&](Tensors&, Json& q) { set(q, "bits", 1); },
       "bits = 1 is not supported; supported: 2, 3, 4, 8"},
      {"gptq_4bit_asym_32", [&](Tensors&, Json& q) { set(q, "bits", 64); }, "bits = 64"},
      {"gptq_4bit_asym_32", [&](Tensors&, Json& q) { set(q, "bits", "4"); },
       "bits is no whole number in range"},
      {"gptq_4bit_asym_32", [&](Tensors&, Json& q) { q.erase("bits"); }, "bits is missing"},
      {"gptq_4bit_asym_32", [&](Tensors&, Json& q) { set(q, "bits", 8); },
       "tensor layer.qzeros is"},
      {"gptq_4bit_asym_32", [&](Tensors&, Json& q) { set(q, "group_size", 0); }, "group_size = 0"},
      {"gptq_4bit_asym_32", [&](Tensors&, Json& q) { set(q, "group_size", 128); },
       "group_size = 128, but layer.qweight has 96 inputs"},
      {"gptq_4bit_asym_32", [&](Tensors&, Json& q) { set(q, "group_size", -2); },
       "group_size is no whole number in range"},
      {"gptq_4bit_asym_32", [&](Tensors&, Json& q) { set(q, "group_size", UINT64_MAX); },
       "group_size is no whole number in range"},
      {"gptq_4bit_asym_32", [&](Tensors&, Json& q) { set(q, "checkpoint_format", "marlin"); },
       "checkpoint_format = 'marlin' is not supported; supported: gptq, gptq_v2"},
      {"gptq_4bit_asym_32_desc_act",
       [](Tensors& t, Json&) {
         Named(t, "g_idx").data.replace(20, 4, std::string("\x08\0\0\0", 4));
       },
       "tensor layer.g_idx: element 5 is 8, but there are 8 groups"},
      {"gptq_4bit_asym_32_desc_act",
       [](Tensors& t, Json&) { Named(t, "g_idx").data.replace(20, 4, "\xFF\xFF\xFF\xFF"); },
       "tensor layer.g_idx: element 5 is -1"},
      {"gptq_4bit_asym_32_desc_act",
       [](Tensors& t, Json&) {
         std::string& order = Named(t, "g_idx").data;
         order.assign(order.size(), '\xFF');
       },
       "tensor layer.g_idx: element 0 is -1"},
      {"gptq_4bit_asym_32",
       [](Tensors& t, Json&) { Named(t, "scales").data.replace(2, 2, std::string("\0\x7C", 2)); },
       "row 1: a scale is infinite"},
      {"gptq_4bit_asym_32", [](Tensors& t, Json&) { t.resize(0); },
       "quant_method = 'gptq', but no tensor ends with .qweight"},
      {"gptq_4bit_asym_32_desc_act", [](Tensors& t, Json&) { Remove(t, "g_idx"); },
       "tensor layer.g_idx is missing"},
      {"gptq_4bit_asym_32", [&](Tensors&, Json& q) { set(q, "group_size", 48); },
       "tensor layer.qzeros is [3, 8], not [2, 8]; quantization_config says bits = 4 and "
       "group_size = 48"},
      {"gptq_4bit_asym_32", [&](Tensors&, Json& q) { set(q, "desc_act", "no"); },
       "desc_act is neither true nor false"},
      // AWQ.
      {"awq_gemm_32", [&](Tensors&, Json& q) { set(q, "bits", 3); }, "bits = 3 is not supported"},
      {"awq_gemm_32", [&](Tensors&, Json& q) { set(q, "version", "gemv"); },
       "version = 'gemv' is not supported; supported: gemm"},
      {"awq_gemm_32", [&](Tensors&, Json& q) { set(q, "group_size", 97); }, "group_size = 97"},
      {"awq_gemm_32", [&](Tensors&, Json& q) { set(q, "group_size", 0); }, "group_size = 0"},
      {"awq_gemm_32",
       [](Tensors& t, Json&) {
         Resize(Named(t, "qweight"), {0, 12});
       },
       "tensor layer.qweight is empty"},
      {"awq_gemm_32",
       [](Tensors& t, Json&) {
         Resize(Named(t, "scales"), {3, 95});
       },
       "tensor layer.scales is [3, 95], not [3, 96]"},
      // FP8.
      {"fp8_block", [](Tensors& t, Json&) { Remove(t, "weight_scale_inv"); },
       "tensor layer.weight has neither layer.weight_scale_inv nor layer.weight_scale"},
      {"fp8_block",
       [&](Tensors&, Json& q) {
         set(q, "weight_block_size", {128, 0});
       },
       "weight_block_size is not two positive numbers"},
      {"fp8_block",
       [&](Tensors&, Json& q) {
         set(q, "weight_block_size", {64, 64});
       },
       "tensor layer.weight_scale_inv is [2, 9], not [4, 18]"},
      {"fp8_block", [&](Tensors&, Json& q) { q.erase("weight_block_size"); },
       "tensor layer.weight_scale_inv is [2, 9], not [1, 1]"},
      {"fp8_block", [&](Tensors&, Json& q) { set(q, "fmt", "e5m2"); }, "fmt = 'e5m2'"},
      {"fp8_block_ue8m0", [](Tensors& t, Json&) { Named(t, "weight").data[290] = '\x7F'; },
       "row 1: a weight is no number"},
      {"fp8_block_ue8m0", [](Tensors& t, Json&) { Named(t, "weight_scale_inv").data[0] = '\xFF'; },
       "row 0: a scale is no number"},
      // compressed-tensors.
      {"compressed_tensors_w4_32", [&](Tensors&, Json& q) { set(q, "format", "marlin-24"); },
       "format = 'marlin-24' is not supported; supported: pack-quantized"},
      {"compressed_tensors_w4_32",
       [&](Tensors&, Json& q) {
         set(q, "sparsity_config", {{"format", "sparse-24-bitmask"}});
       },
       "sparsity_config: format = 'sparse-24-bitmask' is not supported"},
      {"compressed_tensors_w4_32", [&](Tensors&, Json& q) { q.erase("config_groups"); },
       "quantization_config has no config_groups"},
      {"compressed_tensors_w4_32",
       [](Tensors&, Json& q) { q["config_groups"]["group_0"]["weights"]["num_bits"] = 8; },
       "which no config group of 2, 3, 4 or 8 bits says"},
      {"compressed_tensors_w4_32",
       [](Tensors&, Json& q) { q["config_groups"]["group_0"]["weights"]["group_size"] = 0; },
       "group_size = 0"},
      {"compressed_tensors_w4_32",
       [](Tensors&, Json& q) {
         for (int i = 1; i <= 256; ++i) q["config_groups"][Cat("group_", i)] = Json::object();
       },
       "config_groups has 257 groups, not at most 256"},
      {"compressed_tensors_w4_32", [](Tensors& t, Json&) { Remove(t, "weight_shape"); },
       "tensor layer.weight_shape is missing"},
      {"compressed_tensors_w4_32",
       [](Tensors& t, Json&) {
         Named(t, "weight_shape").data.replace(0, 8, std::string(8, '\xFF'));
       },
       "tensor layer.weight_shape: element 0 is -1"},
      {"compressed_tensors_w4_32",
       [](Tensors& t, Json&) { Named(t, "weight_shape").data.replace(0, 1, "\x41"); },
       "tensor layer.weight_packed is [64, 12], not [65, 12]"},
      {"compressed_actorder_w4_32",
       [](Tensors& t, Json&) {
         Named(t, "weight_g_idx").data.replace(20, 4, std::string("\x63\0\0\0", 4));
       },
       "tensor layer.weight_g_idx: element 5 is 99"},
      {"compressed_tensors_nvfp4", [](Tensors& t, Json&) { Remove(t, "weight_global_scale"); },
       "tensor layer.weight_global_scale is missing"},
      {"compressed_tensors_nvfp4",
       [](Tensors& t, Json&) { Named(t, "weight_global_scale").data = std::string(4, '\0'); },
       "tensor layer.weight_global_scale is 0, which is no divisor of scales"},
      {"compressed_tensors_nvfp4",
       [](Tensors& t, Json&) {
         Named(t, "weight_global_scale").data = std::string("\0\0\x80\x7f", 4);
       },
       "tensor layer.weight_global_scale is inf, which is no divisor of scales"},
      {"compressed_tensors_int8_asym_channel",
       [](Tensors&, Json& q) { q["config_groups"]["group_0"]["weights"]["num_bits"] = 4; },
       "tensor layer.weight is I8, but no config group says 8 bits"},
      {"compressed_tensors_w4_32",
       [](Tensors&, Json& q) { q["config_groups"]["group_0"]["weights"]["num_bits"] = 64; },
       "which no config group of 2, 3, 4 or 8 bits says"},
      {"compressed_tensors_w4_32",
       [](Tensors&, Json& q) { q["config_groups"]["group_0"]["weights"]["group_size"] = 1 << 20; },
       "which no config group of 2, 3, 4 or 8 bits says"},
      {"compressed_tensors_int8_asym_channel",
       [](Tensors& t, Json&) { Resize(Named(t, "weight_zero_point"), {72}); },
       "tensor layer.weight_zero_point is [72], not [72, 1]"},
      {"compressed_tensors_w4_asym_32", [](Tensors& t, Json&) { Remove(t, "weight_zero_point"); },
       "tensor layer.weight_zero_point is missing"},
      {"compressed_tensors_int8_asym_channel",
       [](Tensors& t, Json&) { Remove(t, "weight_zero_point"); },
       "tensor layer.weight_zero_point is missing"},
      // bitsandbytes.
      {"bitsandbytes_nf4", [](Tensors& t, Json&) { Remove(t, "weight.absmax"); },
       "tensor layer.weight.absmax is missing"},
      {"bitsandbytes_nf4",
       [](Tensors& t, Json&) { Named(t, "weight.quant_state.bitsandbytes__nf4").data[0] = 'x'; },
       "tensor layer.weight.quant_state.bitsandbytes__nf4"},
      {"bitsandbytes_nf4", [](Tensors& t, Json&) { Resize(Named(t, "weight.absmax"), {4607}); },
       "tensor layer.weight.absmax is [4607], not [4608]"},
      {"bitsandbytes_nf4_double",
       [](Tensors& t, Json&) { Resize(Named(t, "weight.nested_quant_map"), {255}); },
       "tensor layer.weight.nested_quant_map is [255], not [256]"},
      {"bitsandbytes_nf4",
       [](Tensors& t, Json&) {
         Named(t, "weight.quant_map").data.replace(0, 4, std::string("\0\0\x80\x7F", 4));
       },
       "tensor layer.weight.quant_map: element 0 is no finite number"},
      {"bitsandbytes_int8", [](Tensors& t, Json&) { Remove(t, "SCB"); },
       "tensor layer.SCB is missing"},
      {"bitsandbytes_nf4",
       [](Tensors& t, Json&) { Remove(t, "weight.quant_state.bitsandbytes__nf4"); },
       "tensor layer.weight.quant_state.bitsandbytes__nf4 (or .weight.quant_state.bitsandbytes__"
       "fp4) is missing"},
      {"bitsandbytes_nf4",
       [](Tensors& t, Json&) {
         Resize(Named(t, "weight"), {100, 1});
       },
       "tensor layer.weight has 100 bytes, not 147456 for 256 x 1152 weights"},
      {"bitsandbytes_int8", [](Tensors& t, Json&) { Named(t, "weight_format").data = "\x01"; },
       "tensor layer.weight_format is not 0"},
      {"bitsandbytes_int8",
       [](Tensors& t, Json&) {
         Named(t, "SCB").data.replace(0, 4, std::string("\0\0\x80\x7F", 4));
       },
       "row 0: a weight is"},
      // SpQR.
      {"spqr_64x96", [&](Tensors&, Json& q) { set(q, "bits", 4); },
       "bits = 4 is not supported; supported: 3"},
      {"spqr_64x96", [&](Tensors&, Json& q) { set(q, "beta1", 8); },
       "beta1 = 8 is not supported; supported: 16"},
      {"spqr_64x96", [&](Tensors&, Json& q) { set(q, "beta2", "16"); },
       "beta2 is no whole number in range"},
      {"spqr_64x96", [&](Tensors&, Json& q) { set(q, "shapes", 3); }, "shapes is no object"},
      {"spqr_64x96", [](Tensors&, Json& q) { q["shapes"]["layer.dense_weights.shape"] = 385; },
       "layer.dense_weights.shape = 385, but the tensor is [384]"},
      {"spqr_64x96", [](Tensors&, Json& q) { q["shapes"]["layer.in_perm.shape"] = "0"; },
       "layer.in_perm.shape = \"0\", but the tensor is [0]"},
      {"spqr_64x96", [](Tensors& t, Json&) { Remove(t, "dense_weights"); },
       "quant_method = 'spqr', but no tensor ends with .dense_weights"},
      {"spqr_64x96", [](Tensors& t, Json&) { Remove(t, "row_offsets"); },
       "tensor layer.row_offsets is missing"},
      {"spqr_64x96", [](Tensors& t, Json&) { Remove(t, "col_vals"); },
       "tensor layer.col_vals is missing"},
      {"spqr_64x96", [](Tensors& t, Json&) { Named(t, "col_vals").dtype = "F32"; },
       "tensor layer.col_vals is F32, not I32"},
      {"spqr_64x96",
       [](Tensors& t, Json&) {
         Named(t, "dense_weights").shape = {4, 96};
       },
       "tensor layer.dense_weights is [4, 96], not a list"},
      {"spqr_64x96",
       [](Tensors& t, Json& q) {
         q.erase("shapes");
         Resize(Named(t, "dense_weights"), {383});
       },
       "tensor layer.dense_weights is [383], but 64 rows, which layer.row_offsets has, take a "
       "multiple of 64 words"},
      {"spqr_64x96",
       [](Tensors& t, Json& q) {
         q.erase("shapes");
         Resize(Named(t, "dense_weights"), {0});
       },
       "tensor layer.dense_weights is [0], but 64 rows"},
      {"spqr_64x96",
       [](Tensors& t, Json& q) {
         q.erase("shapes");
         Resize(Named(t, "row_offsets"), {1});
       },
       "tensor layer.row_offsets is [1], which is that of no rows"},
      {"spqr_64x96",
       [](Tensors& t, Json&) {
         Named(t, "row_offsets").data.replace(12, 4, std::string("\x3E\0\0\0", 4));
       },
       "tensor layer.row_offsets: element 3 is 62 after"},
      {"spqr_64x96",
       [](Tensors& t, Json&) { Named(t, "row_offsets").data.replace(128, 4, "\xFF\xFF\xFF\xFF"); },
       "tensor layer.row_offsets: element 32 is -1 after"},
      {"spqr_64x96", [](Tensors& t, Json&) { Named(t, "row_offsets").data.replace(0, 1, "\x01"); },
       "tensor layer.row_offsets: element 0 is 1 after 0"},
      {"spqr_64x96",
       [](Tensors& t, Json& q) {
         q.erase("shapes");
         Resize(Named(t, "col_vals"), {60});
       },
       "but layer.col_vals has 60 outliers"},
      // The last row has 97 outliers of 0 more.
      {"spqr_64x96",
       [](Tensors& t, Json& q) {
         q.erase("shapes");
         testing::HfTensor& values = Named(t, "col_vals");
         Resize(values, {values.shape[0] + 97});
         const auto count = static_cast<std::uint32_t>(values.shape[0]);
         std::memcpy(&Named(t, "row_offsets").data[std::size_t{64} * 4], &count, sizeof count);
       },
       "outliers, but 96 inputs"},
      {"spqr_64x96",
       [](Tensors& t, Json&) {
         Named(t, "col_vals").data.replace(20, 2, std::string("\x60\0", 2));
       },
       "is of column 96, but there are 96"},
      {"spqr_64x96",
       [](Tensors& t, Json&) {
         Named(t, "col_vals").data.replace(22, 2, std::string("\0\x7C", 2));
       },
       "tensor layer.col_vals: element 5 of row "},
      {"spqr_40x288",
       [](Tensors& t, Json&) {
         Named(t, "col_vals").data.replace(4, 2, Named(t, "col_vals").data, 0, 2);
       },
       "which has another outlier"},
      {"spqr_64x320_order",
       [](Tensors& t, Json&) {
         Named(t, "in_perm").data.replace(0, 2, std::string("\x40\x01", 2));
       },
       "tensor layer.in_perm: place 0 is 320, but there are 320 inputs"},
      {"spqr_64x320_order",
       [](Tensors& t, Json&) {
         Named(t, "in_perm").data.replace(2, 2, Named(t, "in_perm").data, 0, 2);
       },
       "which another place is already"},
      {"spqr_64x320_order",
       [](Tensors& t, Json& q) {
         q.erase("shapes");
         Resize(Named(t, "in_perm"), {159});
       },
       "tensor layer.in_perm has 318 inputs, but layer.dense_weights has 320"},
      // The zero of zeros of the first tile is infinite: the last bytes of it are 0x7C and 0.
      {"spqr_64x96",
       [](Tensors& t, Json&) {
         std::string& words = Named(t, "dense_weights").data;
         for (const int row : {12, 13, 14, 15}) {
           std::uint64_t word;
           std::memcpy(&word, words.data() + row * 8, 8);
           word = (word & ~(std::uint64_t{0xFF} << 54)) | std::uint64_t{row < 14 ? 0u : 0x7Cu}
                                                              << 54;
           std::memcpy(words.data() + row * 8, &word, 8);
         }
       },
       "row 0: a zero is infinite"},
  };
  for (const Change& change : changes) {
    const std::string error = ErrorOf(change);
    EXPECT_THAT(error, HasSubstr(change.error)) << change.name;
  }
  // Without a change there is no error.
  for (const Case& each : Cases()) {
    EXPECT_THAT(ErrorOf({each.name, [](Tensors&, Json&) {}, ""}), IsEmpty()) << each.name;
  }
}

}  // namespace
}  // namespace flotilla::model
