// Quantised folders: their weights, and what is refused.
#include "model/huggingface/quantization/quantization.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "model/checkpoint.h"
#include "model/huggingface/safetensors_file.h"
#include "model/load_spec.h"
#include "model/tensor.h"
#include "tests/support/hf_folder.h"
#include "tests/support/quantised_folder.h"
#include "tests/support/scratch_directory.h"

namespace flotilla::model {
namespace {

using ::testing::HasSubstr;
using Ordered = nlohmann::ordered_json;

constexpr char kGateUp[] = "model.layers.0.mlp.experts.gate_up_proj";

class Mxfp4Test : public ::testing::Test {
 protected:
  Mxfp4Test() { testing::WriteMxfp4Folder(folder_.path(), /*quantised=*/true); }

  std::string Read(const std::string& name) const {
    std::ifstream file(absl::StrCat(folder_.path(), "/", name), std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  // Changes the header of the tensors, whose data stays.
  void ChangeTensors(const std::function<void(Ordered& header, std::string& data)>& change) const {
    const std::string all = Read("model.safetensors");
    std::uint64_t length = 0;
    std::memcpy(&length, all.data(), sizeof length);
    Ordered header = Ordered::parse(all.substr(8, length));
    std::string data = all.substr(8 + length);
    change(header, data);
    testing::WriteFile(folder_.path() + "/model.safetensors",
                       testing::Safetensors(header.dump(), data));
  }
  void SetConfig(const Ordered& quantization) const {
    Ordered config = Ordered::parse(Read("config.json"));
    config["quantization_config"] = quantization;
    testing::WriteFile(folder_.path() + "/config.json", config.dump());
  }
  std::string Error() const {
    const auto file = OpenCheckpoint(folder_.path());
    if (!file.ok()) return std::string(file.status().message());
    return std::string(LoadSpec(**file).status().message());
  }

  const testing::ScratchDirectory folder_;
};

TEST_F(Mxfp4Test, HasTheWeightsOfBf16) {
  const testing::ScratchDirectory plain;
  testing::WriteMxfp4Folder(plain.path(), /*quantised=*/false);
  const auto file = OpenCheckpoint(folder_.path()), want = OpenCheckpoint(plain.path());
  ASSERT_TRUE(file.ok() && want.ok()) << file.status() << want.status();
  EXPECT_EQ(Error(), "");
  int compared = 0;
  for (const Tensor& tensor : (*file)->tensors()) {
    const Tensor* same = (*want)->FindTensor(tensor.name);
    ASSERT_NE(same, nullptr) << tensor.name;
    if (tensor.composite == nullptr) continue;
    ++compared;
    EXPECT_EQ(TypeName(tensor), "MXFP4");
    EXPECT_EQ(tensor.bytes() * 8, tensor.elements() * 17 / 4);  // 4.25 bits
    std::vector<float> values(same->elements()), row(tensor.dims[0]);
    ASSERT_TRUE(DequantizeRow(same->type, same->data, values).ok());
    const uint64_t inputs = tensor.dims[0], outputs = tensor.dims[1];
    for (uint64_t r = 0; r < outputs * tensor.dims[2]; ++r) {
      ASSERT_TRUE(DecodeRow(tensor, static_cast<int64_t>(r), row).ok());
      for (uint64_t k = 0; k < inputs; ++k) {
        ASSERT_EQ(row[k], values[(r / outputs * inputs + k) * outputs + r % outputs])
            << tensor.name << ", row " << r << ", element " << k;
      }
    }
  }
  EXPECT_EQ(compared, 6);
}

TEST_F(Mxfp4Test, RefusesTensorsThatDoNotFit) {
  const auto error = [&](const std::function<void(Ordered&)>& change) {
    const std::string before = Read("model.safetensors");
    ChangeTensors([&](Ordered& header, std::string&) { change(header); });
    const std::string message = Error();
    testing::WriteFile(folder_.path() + "/model.safetensors", before);
    return message;
  };
  const std::string blocks = absl::StrCat(kGateUp, "_blocks"),
                    scales = absl::StrCat(kGateUp, "_scales");
  EXPECT_THAT(error([&](Ordered& header) {
                header[blocks]["shape"] = {4, 320, 4, 8};
              }),
              HasSubstr(absl::StrCat("tensor ", blocks, " is [4, 320, 4, 8], not U8 of")));
  EXPECT_THAT(error([&](Ordered& header) {
                header[blocks]["shape"] = {4, 320, 32};
              }),
              HasSubstr(absl::StrCat("tensor ", blocks, " is [4, 320, 32], not U8 of")));
  EXPECT_THAT(error([&](Ordered& header) {
                header[blocks]["shape"] = {2, 640, 2, 16};
              }),
              HasSubstr(absl::StrCat("tensor ", scales, " is [4, 320, 2], but ", blocks)));
  EXPECT_THAT(error([&](Ordered& header) {
                header[absl::StrCat(kGateUp, "_other")] = header[scales];
                header.erase(scales);
              }),
              HasSubstr(absl::StrCat("tensor ", scales, " is missing")));
  // A matrix that is there twice.
  EXPECT_THAT(error([&](Ordered& header) {
                header[kGateUp] = header["model.norm.weight"];
                header.erase("model.norm.weight");
              }),
              HasSubstr(absl::StrCat("tensor ", kGateUp, " is there twice")));
  EXPECT_EQ(Error(), "");
  // Scales without blocks.
  ChangeTensors([&](Ordered& header, std::string& data) {
    header["left_over_scales"] = {
        {"dtype", "U8"}, {"shape", {1, 1, 2}}, {"data_offsets", {data.size(), data.size() + 2}}};
    data += "12";
  });
  EXPECT_THAT(Error(), HasSubstr("tensor left_over_scales has no meaning in this architecture"));
}

TEST_F(Mxfp4Test, RefusesConfigurationsThatDoNotFit) {
  SetConfig(nullptr);
  EXPECT_THAT(Error(), HasSubstr("mlp.experts.gate_up_proj is missing"));
  SetConfig({{"bits", 4}});
  EXPECT_THAT(Error(), HasSubstr("quantization_config has no quant_method"));
  SetConfig({{"quant_method", "quip"}});
  EXPECT_THAT(Error(), HasSubstr("quant_method = 'quip' is not supported; supported: awq, "
                                 "bitsandbytes, compressed-tensors, fp8, gptq, mxfp4, "
                                 "spqr;"));
  // It can still be looked at.
  EXPECT_TRUE(OpenCheckpoint(folder_.path()).ok());
  testing::WriteMxfp4Folder(folder_.path(), /*quantised=*/false);
  SetConfig({{"quant_method", "mxfp4"}});
  EXPECT_THAT(Error(), HasSubstr("'mxfp4', but no tensor ends with _blocks"));
}

// A folder of a model in another method.
class QuantisedFolderTest : public ::testing::Test {
 protected:
  void Write(const char* format) const {
    testing::WriteQuantisedFolder("tests/data/tiny/llama", {format, {format}}, /*seed=*/1,
                                  folder_.path());
  }
  std::string Path(const char* name) const { return folder_.path() + "/" + name; }
  // Changes config.json and all tensors.
  void Change(const std::function<void(Ordered& config, std::vector<testing::HfTensor>& tensors)>&
                  change) const {
    const auto file = SafetensorsFile::Open(Path("model.safetensors"));
    ASSERT_TRUE(file.ok()) << file.status();
    std::vector<testing::HfTensor> tensors;
    for (const Tensor& tensor : file->tensors()) tensors.push_back(testing::CopyOf(tensor));
    std::ifstream text(Path("config.json"));
    Ordered config = Ordered::parse(text);
    change(config, tensors);
    testing::WriteFile(Path("config.json"), config.dump());
    testing::WriteFile(Path("model.safetensors"), testing::Safetensors(tensors));
  }
  std::string Error() const {
    const auto file = OpenCheckpoint(folder_.path());
    if (!file.ok()) return std::string(file.status().message());
    return std::string(LoadSpec(**file).status().message());
  }

  const testing::ScratchDirectory folder_;
};

TEST_F(QuantisedFolderTest, SaysThatItsConfigurationIsMissing) {
  for (const auto& [format, tensor] : {std::pair{"gptq", ".qweight"},
                                       {"w4", ".weight_packed"},
                                       {"fp8_blocks", ".weight_scale_inv"},
                                       {"nf4", ".weight.absmax"},
                                       {"int8_rows", ".SCB"}}) {
    std::filesystem::remove_all(folder_.path());
    Write(format);
    EXPECT_EQ(Error(), "");
    Change([](Ordered& config, auto&) { config.erase("quantization_config"); });
    EXPECT_THAT(Error(),
                HasSubstr(absl::StrCat(tensor,
                                       " is that of a quantised layer, but config.json has no "
                                       "quantization_config")));
  }
}

// Old tools gave each layer a bias, and scales of KV.
TEST_F(QuantisedFolderTest, TakesBiasesOfZeros) {
  Write("gptq");
  const auto add = [&](char last) {
    Change([&](Ordered&, std::vector<testing::HfTensor>& tensors) {
      std::erase_if(tensors, [](const auto& each) { return each.name.ends_with(".bias"); });
      std::string zeros(64 * 2, '\0');
      zeros.back() = last;
      tensors.push_back({"model.layers.0.self_attn.q_proj.bias", "F16", {64}, zeros});
    });
  };
  add('\0');
  EXPECT_EQ(Error(), "");
  add('\x40');
  EXPECT_THAT(Error(), HasSubstr("q_proj.bias: the configuration says that there is no such bias"));
}

TEST_F(QuantisedFolderTest, TakesQuantConfigJsonOfAwq) {
  Write("awq");
  Change([](Ordered& config, auto&) { config.erase("quantization_config"); });
  testing::WriteFile(Path("quant_config.json"), R"({"zero_point": true, "q_group_size": 32,
                                                    "w_bit": 4, "version": "GEMM"})");
  EXPECT_EQ(Error(), "");
}

// Every byte that says what weights are is among those that are hashed.
TEST_F(QuantisedFolderTest, PartsAreAllTensorsOfALayer) {
  for (const char* format : {"gptq_order", "awq", "fp8_blocks", "nf4", "int8_rows", "w4", "w8_zero",
                             "int8", "w8a8", "w8a8_static", "fp8", "nvfp4", "mxfp4"}) {
    SCOPED_TRACE(format);
    std::filesystem::remove_all(folder_.path());
    Write(format);
    const auto raw = SafetensorsFile::Open(Path("model.safetensors"));
    const auto file = OpenCheckpoint(folder_.path());
    ASSERT_TRUE(raw.ok() && file.ok()) << raw.status() << file.status();
    size_t want = 0, parts = 0;
    for (const Tensor& tensor : raw->tensors()) {
      // Says only that rows have the one order there is.
      if (!tensor.name.ends_with(".weight_format")) want += tensor.data.size();
    }
    for (const Tensor& tensor : (*file)->tensors()) {
      parts += tensor.data.size();
      if (tensor.composite == nullptr) continue;
      for (const std::span<const std::byte> part : tensor.composite->parts()) parts += part.size();
    }
    EXPECT_EQ(parts, want);
  }
}

// What recipe fast multiplies weights by.
TEST_F(QuantisedFolderTest, ReadsTheActivationsOfW8A8) {
  using Kind = ActivationScheme::Kind;
  const auto schemes = [&] {
    std::vector<ActivationScheme> found;
    const auto file = OpenCheckpoint(folder_.path());
    EXPECT_TRUE(file.ok()) << file.status();
    for (const Tensor& tensor : (*file)->tensors()) {
      if (tensor.composite == nullptr) continue;
      WeightEncoding fast = FastEncodingOf(tensor);
      found.push_back(fast.activations);
      fast.activations = {};
      EXPECT_EQ(fast, EncodingOf(tensor));
    }
    return found;
  };
  const auto all = [&](Kind kind) {
    const auto found = schemes();
    return !found.empty() && std::ranges::all_of(found, [&](const ActivationScheme& scheme) {
      return scheme.kind == kind;
    });
  };
  const auto change = [&](std::string_view key, const Ordered& value) {
    Change([&](Ordered& config, auto&) {
      config["quantization_config"]["config_groups"]["group_0"]["input_activations"]
            [std::string(key)] = value;
    });
  };
  Write("w8a8_static");
  EXPECT_TRUE(all(Kind::kStatic));
  for (const ActivationScheme& scheme : schemes()) {
    EXPECT_GE(scheme.scale, 0.01f);
    EXPECT_LE(scheme.scale, 0.03f);
    EXPECT_LE(std::abs(scheme.zero), 20);
  }
  const auto with_scale = [&](float scale) {
    Change([&](Ordered&, std::vector<testing::HfTensor>& tensors) {
      for (testing::HfTensor& tensor : tensors) {
        if (!tensor.name.ends_with("q_proj.input_scale")) continue;
        std::memcpy(tensor.data.data(), &scale, sizeof scale);
      }
    });
    return Error();
  };
  for (const float scale : {0.0f, -1.0f, std::numeric_limits<float>::infinity(),
                            std::numeric_limits<float>::quiet_NaN()}) {
    EXPECT_THAT(with_scale(scale), HasSubstr("q_proj.input_scale is "));
  }
  EXPECT_EQ(with_scale(1), "");
  Change([](Ordered&, std::vector<testing::HfTensor>& tensors) {
    std::erase_if(tensors, [](const testing::HfTensor& tensor) {
      return tensor.name.ends_with("input_zero_point");
    });
  });
  EXPECT_TRUE(all(Kind::kStatic));
  Change([](Ordered&, std::vector<testing::HfTensor>& tensors) {
    std::erase_if(tensors, [](const testing::HfTensor& tensor) {
      return tensor.name.ends_with("down_proj.input_scale");
    });
  });
  EXPECT_THAT(Error(), HasSubstr("down_proj.input_scale is missing"));

  std::filesystem::remove_all(folder_.path());
  Write("w8a8");
  EXPECT_TRUE(all(Kind::kDynamic));
  // What `fast` does not follow, it computes as `accurate`.
  for (const auto& [key, value] : {std::pair<const char*, Ordered>{"symmetric", false},
                                   {"dynamic", "local"},
                                   {"strategy", "tensor"},
                                   {"num_bits", 4},
                                   {"type", "float"}}) {
    SCOPED_TRACE(key);
    std::ifstream text(Path("config.json"));
    const std::string before{std::istreambuf_iterator<char>(text), {}};
    change(key, value);
    EXPECT_TRUE(all(Kind::kNone));
    testing::WriteFile(Path("config.json"), before);
  }
  EXPECT_TRUE(all(Kind::kDynamic));
}

// The bytes of a number of fp32.
std::string Float(float value) {
  std::string bytes(sizeof value, '\0');
  std::memcpy(bytes.data(), &value, sizeof value);
  return bytes;
}

testing::HfTensor KvScale(const char* name, float value) {
  return {absl::StrCat("model.layers.", name), "F32", {}, Float(value)};
}

TEST_F(QuantisedFolderTest, TakesScalesOfKAndV) {
  Write("fp8_blocks");
  EXPECT_TRUE((*OpenCheckpoint(folder_.path()))->kv_scales().empty());
  Change([](Ordered&, std::vector<testing::HfTensor>& tensors) {
    for (const auto& [name, value] : {std::pair{"1.self_attn.k_proj.k_scale", 0.5f},
                                      {"1.self_attn.k_scale", 0.5f},
                                      {"1.self_attn.attn.v_scale", 0.25f},
                                      {"0.self_attn.v_proj.output_scale", 4.0f},
                                      {"0.self_attn.q_proj.input_scale", 3.0f}}) {
      tensors.push_back(KvScale(name, value));
    }
    // bf16 of 2.
    tensors.push_back(
        {"model.layers.4.self_attn.kv_scale", "BF16", {1}, std::string("\x00\x40", 2)});
  });
  const auto file = OpenCheckpoint(folder_.path());
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_THAT((*file)->kv_scales(), ::testing::ElementsAre(KvScales{0, 4}, KvScales{0.5f, 0.25f},
                                                           KvScales(), KvScales(), KvScales{2, 2}));
  EXPECT_TRUE((*file)->skipped_tensors().empty());
  // The model has only three layers.
  EXPECT_THAT(
      Error(),
      HasSubstr("there are scales of K and V for layer 4, but the model has only 3 layers"));
  Change([](Ordered&, std::vector<testing::HfTensor>& tensors) {
    std::erase_if(tensors, [](const auto& each) { return each.name.ends_with("kv_scale"); });
  });
  EXPECT_EQ(Error(), "");
  const auto spec = LoadSpec(**OpenCheckpoint(folder_.path()));
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_EQ(spec->KvScalesOf(1), (KvScales{0.5f, 0.25f}));
}

TEST_F(QuantisedFolderTest, RefusesScalesOfKAndVThatAreNone) {
  Write("fp8_blocks");
  const auto error = [&](const std::vector<testing::HfTensor>& more) {
    std::filesystem::copy(Path("model.safetensors"), Path("before"));
    Change([&](Ordered&, std::vector<testing::HfTensor>& tensors) {
      tensors.insert(tensors.end(), more.begin(), more.end());
    });
    const std::string message = Error();
    std::filesystem::rename(Path("before"), Path("model.safetensors"));
    return message;
  };
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  for (const float bad : {1e-31f, 1e31f, kInfinity, -kInfinity, std::nanf("")}) {
    EXPECT_THAT(error({KvScale("1.self_attn.v_scale", bad)}),
                ::testing::AllOf(HasSubstr("tensor model.layers.1.self_attn.v_scale is "),
                                 HasSubstr(", but a scale of K or V is from 1e-30 to 1e30")))
        << bad;
  }
  EXPECT_THAT(error({KvScale("1.self_attn.v_scale", 1), KvScale("1.self_attn.kv_scale", 2)}),
              HasSubstr("kv_scale is 2, but another scale of this layer is 1"));
  EXPECT_THAT(error({{"model.layers.0.self_attn.k_scale", "I32", {1}, Float(1)}}),
              HasSubstr("k_scale is I32, not F32 or BF16 or F16"));
}

// Those of heads, of no layer or attention, and those that nobody has calibrated are counted, for
// inspect.
TEST_F(QuantisedFolderTest, CountsScalesOfKAndVThatAreNotUsed) {
  Write("fp8_blocks");
  Change([](Ordered&, std::vector<testing::HfTensor>& tensors) {
    tensors.push_back({"model.layers.0.self_attn.k_scale", "F32", {2, 1, 1}, Float(1) + Float(2)});
    tensors.push_back({"model.kv_scale", "F32", {1}, Float(1)});
    tensors.push_back({"model.layers.4096.self_attn.v_scale", "F32", {1}, Float(1)});
    tensors.push_back(KvScale("1.self_attn.k_scale", 0));
    tensors.push_back(KvScale("2.self_attn.k_scale", -1));
    tensors.push_back(KvScale("2.mlp.k_scale", 1));
    tensors.push_back(KvScale("0.self_attn.experts.3.v_scale", 1));
    // These are none of K and V, and have no use.
    tensors.push_back(KvScale("0.self_attn.q_scale", 1));
    tensors.push_back(KvScale("0.self_attn.prob_output_scale", 1));
  });
  EXPECT_EQ(Error(), "");
  const auto file = OpenCheckpoint(folder_.path());
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_TRUE((*file)->kv_scales().empty());
  ASSERT_EQ((*file)->skipped_tensors().size(), 1u);
  EXPECT_EQ((*file)->skipped_tensors()[0].prefix, "scales of K and V");
  EXPECT_EQ((*file)->skipped_tensors()[0].count, 7u);
  EXPECT_EQ((*file)->skipped_tensors()[0].bytes, 32u);
}

TEST_F(QuantisedFolderTest, TakesScalesOfKAndVByTheSchemeOfTheCache) {
  Write("w8_zero");
  Change([](Ordered&, std::vector<testing::HfTensor>& tensors) {
    tensors.push_back(KvScale("0.self_attn.k_scale", 0.5f));
    tensors.push_back(KvScale("1.self_attn.k_proj.output_scale", 0.5f));
  });
  const auto with = [&](const Ordered& scheme) {
    Change(
        [&](Ordered& config, auto&) { config["quantization_config"]["kv_cache_scheme"] = scheme; });
    return OpenCheckpoint(folder_.path());
  };
  const auto count = [&](const Ordered& scheme) -> std::size_t {
    const auto file = with(scheme);
    EXPECT_TRUE(file.ok()) << file.status();
    EXPECT_EQ(Error(), "");
    return file.ok() ? (*file)->kv_scales().size() : 0;
  };
  EXPECT_EQ(count(nullptr), 1u);  // outputs may be quantised for other reasons
  EXPECT_EQ(count({{"num_bits", 8}, {"type", "int"}}), 0u);
  EXPECT_EQ(count({{"num_bits", 4}, {"type", "float"}}), 0u);
  EXPECT_EQ(count({{"num_bits", 8}, {"type", "float"}, {"symmetric", false}}), 0u);
  EXPECT_EQ(count({{"num_bits", 8}, {"type", "float"}, {"strategy", "tensor"}}), 2u);
  EXPECT_THAT(std::string(with("fp8").status().message()),
              HasSubstr("kv_cache_scheme is no object"));
  for (const Ordered& bad : {Ordered{{"num_bits", "8"}}, Ordered{{"type", 8}}}) {
    EXPECT_THAT(std::string(with(bad).status().message()), HasSubstr("kv_cache_scheme: "));
  }
}

// Only K and V are quantised.
TEST_F(QuantisedFolderTest, TakesMatricesAsTheyAre) {
  std::filesystem::copy("tests/data/tiny/llama", folder_.path(),
                        std::filesystem::copy_options::recursive);
  Change([](Ordered& config, std::vector<testing::HfTensor>& tensors) {
    config["quantization_config"] = {{"quant_method", "compressed-tensors"},
                                     {"format", "dense"},
                                     {"config_groups", Ordered::object()},
                                     {"kv_cache_scheme", {{"num_bits", 8}, {"type", "float"}}}};
    tensors.push_back(KvScale("0.self_attn.v_scale", 0.5f));
  });
  EXPECT_EQ(Error(), "");
  const auto file = OpenCheckpoint(folder_.path());
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_THAT((*file)->kv_scales(), ::testing::ElementsAre(KvScales{0, 0.5f}));
}

// What old tools wrote beside config.json counts if that says nothing.
TEST_F(Mxfp4Test, TakesQuantizeConfigJson) {
  Ordered config = Ordered::parse(Read("config.json"));
  const Ordered settings = config["quantization_config"];
  const auto write = [&](const std::string& name, const Ordered& content) {
    testing::WriteFile(folder_.path() + "/" + name, content.dump());
  };
  config.erase("quantization_config");
  write("config.json", config);
  const auto before = OpenCheckpoint(folder_.path());
  write("quantize_config.json", settings);
  EXPECT_EQ(Error(), "");
  const auto after = OpenCheckpoint(folder_.path());
  ASSERT_TRUE(before.ok() && after.ok()) << before.status() << after.status();
  EXPECT_NE((*before)->MetadataHash(), (*after)->MetadataHash());
  write("quantize_config.json", {{"bits", 5}});
  EXPECT_THAT(Error(), HasSubstr("quantization_config: group_size is missing"));
  // That of config.json counts, if there is one; also in the object of the text model.
  config["text_config"] = {{"quantization_config", {{"quant_method", "quip"}}}};
  write("config.json", config);
  std::filesystem::remove(folder_.path() + "/quantize_config.json");
  EXPECT_THAT(Error(), HasSubstr("quant_method = 'quip' is not supported"));
}

// An exponent whose weights no fp32 holds is found when the weights are read.
TEST_F(Mxfp4Test, RefusesExponentsThatAreTooLarge) {
  for (const unsigned char exponent : {252, 253, 255}) {
    ChangeTensors([&](Ordered& header, std::string& data) {
      const auto begin = header[absl::StrCat(kGateUp, "_scales")]["data_offsets"][0];
      data[begin.get<std::size_t>() + 3] = static_cast<char>(exponent);  // of row 1
    });
    const auto file = OpenCheckpoint(folder_.path());
    ASSERT_TRUE(file.ok()) << file.status();
    const Tensor& tensor = *(*file)->FindTensor(kGateUp);
    const auto panel = std::make_unique<WeightPanel>();
    const std::vector<int64_t> rows = {0, 1};
    const auto status = ReadPanel(tensor, rows, 0, 64, EncodingOf(tensor), *panel);
    EXPECT_EQ(status.message(), exponent == 252 ? "" : "row 1: a scale is no number");
  }
}

}  // namespace
}  // namespace flotilla::model
