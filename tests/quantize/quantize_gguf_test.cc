// GGUF files: types of tensors, metadata, bytes, and what is refused.
#include "quantize/quantize_gguf.h"

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/rt/clock.h"
#include "model/gguf/gguf_file.h"
#include "model/gguf/gguf_writer.h"
#include "model/load_spec.h"
#include "quantize/ggml_rows.h"
#include "tests/support/random.h"
#include "tests/support/scratch_directory.h"
#include "tests/support/tiny_gguf.h"

namespace flotilla::quantize {
namespace {

namespace fs = std::filesystem;
using model::GgmlType;
using model::GgufFile;
using ::testing::HasSubstr;

std::string Bytes(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

void WriteBytes(const std::string& path, const std::vector<std::byte>& bytes) {
  std::ofstream file(path, std::ios::binary);
  file.write(reinterpret_cast<const char*>(bytes.data()),
             static_cast<std::streamsize>(bytes.size()));
}

model::Tensor Matrix(std::string_view name, uint64_t inputs, uint32_t rank = 2) {
  return {.name = name,
          .rank = rank,
          .dims = {inputs, rank > 1 ? 64u : 1u, 1, 1},
          .type = GgmlType::kF32,
          .data = {}};
}

class QuantizeGgufTest : public ::testing::Test {
 protected:
  std::string Path(const std::string& name) const { return scratch_.path() + "/" + name; }

  // A model in F32 and BF16 whose rows are those of K quants, but for those of one matrix.
  static testing::TinyModelOptions Model(bool tied = true) {
    return {.hidden = 256,
            .ffn = 288,
            .tied_embedding = tied,
            .matrix_type = GgmlType::kF32,
            .other_type = GgmlType::kBF16,
            .embedding_type = GgmlType::kF16};
  }

  absl::StatusOr<GgufReport> Run(const std::string& from, const std::string& to,
                                 std::string_view type, int threads = 2,
                                 const WeightsDone& done = nullptr) const {
    const auto target = FindGgufTarget(type);
    if (!target.ok()) return target.status();
    const GgufJob job{.from = Path(from), .to = Path(to), .target = *target, .threads = threads};
    const auto file = model::OpenCheckpoint(job.from);
    if (!file.ok()) return file.status();
    return QuantizeGguf(job, **file, done);
  }
  std::string Error(const std::string& from, const std::string& to, std::string_view type) const {
    return std::string(Run(from, to, type).status().message());
  }

  const testing::ScratchDirectory scratch_;
  SteadyClock clock_;
};

TEST(GgufTypesTest, TypesAreThoseOfLlamaCpp) {
  const auto type = [](std::string_view name, uint64_t inputs, GgmlType target, bool output = false,
                       std::string_view architecture = "llama") {
    return TypeOf(Matrix(name, inputs), target, output, architecture);
  };
  constexpr char kQuery[] = "blk.0.attn_q.weight";
  for (const GgufTarget& target : GgufTargets()) {
    EXPECT_EQ(type(kQuery, 512, target.type), target.type);
    // Rows that are no whole blocks.
    const GgmlType odd = target.type == GgmlType::kQ4_K   ? GgmlType::kQ5_0
                         : target.type == GgmlType::kQ6_K ? GgmlType::kQ8_0
                                                          : target.type;
    EXPECT_EQ(type(kQuery, 576, target.type), odd);
    EXPECT_EQ(type(kQuery, 80, target.type), GgmlType::kF16);
    // The output.
    const bool eight = target.type == GgmlType::kQ8_0;
    EXPECT_EQ(type("output.weight", 512, target.type, true),
              eight ? GgmlType::kQ8_0 : GgmlType::kQ6_K);
    EXPECT_EQ(type("output.weight", 576, target.type, true), GgmlType::kQ8_0);
    EXPECT_EQ(type("output.weight", 512, target.type, true, "falcon"), GgmlType::kQ8_0);
    EXPECT_EQ(type("token_embd.weight", 512, target.type), target.type);
  }
  for (const char* name : {kQuery, "blk.12.ffn_down_exps.weight", "token_embd.weight",
                           "output.weight", "blk.1.attn_kv_b.weight"}) {
    EXPECT_TRUE(IsQuantized(Matrix(name, 512))) << name;
    EXPECT_FALSE(IsQuantized(Matrix(name, 512, 1))) << name;
  }
  for (const char* name :
       {"blk.0.ffn_gate_inp.weight", "blk.0.attn_q_norm.weight", "blk.0.attn_q.bias",
        "position_embd.weight", "blk.0.ffn_gate_exps.bias", "blk.0.ffn_gate_inp_shexp.weight"}) {
    EXPECT_FALSE(IsQuantized(Matrix(name, 512))) << name;
  }
  EXPECT_EQ(FindGgufTarget("q4_k")->file_type, 14u);
  EXPECT_THAT(std::string(FindGgufTarget("q3_k").status().message()),
              HasSubstr("'q3_k' is none of q4_0, q4_1, q5_0, q5_1, q8_0, q4_k, q6_k"));
}

TEST_F(QuantizeGgufTest, MakesAModelThatLosesLittle) {
  const std::map<std::string, double> most = {{"q4_0", 0.02},  {"q4_1", 0.01},   {"q5_0", 0.005},
                                              {"q5_1", 0.003}, {"q8_0", 0.0001}, {"q4_k", 0.01},
                                              {"q6_k", 0.0006}};
  for (const bool tied : {true, false}) {
    testing::WriteTinyGguf(Path("in"), Model(tied));
    const auto before = GgufFile::Open(Path("in"));
    ASSERT_TRUE(before.ok()) << before.status();
    for (const GgufTarget& target : GgufTargets()) {
      const std::string name = std::string(target.name) + (tied ? "" : "-untied");
      SCOPED_TRACE(name);
      uint64_t ran = 0, all = 0;
      const auto report = Run("in", name, target.name, 2, [&](uint64_t done, uint64_t weights) {
        EXPECT_GT(done, ran);
        ran = done;
        all = weights;
      });
      ASSERT_TRUE(report.ok()) << report.status();
      EXPECT_EQ(ran, all);
      EXPECT_FALSE(fs::exists(Path(name) + ".unfinished"));
      EXPECT_EQ(report->bytes, fs::file_size(Path(name)));
      const auto after = GgufFile::Open(Path(name));
      ASSERT_TRUE(after.ok()) << after.status();
      // The metadata, byte for byte.
      EXPECT_EQ(after->values().size(), before->values().size() + 1);
      for (const auto& [key, value] : before->values()) {
        const model::GgufValue* const now = after->Find(key);
        ASSERT_NE(now, nullptr) << key;
        EXPECT_EQ(now->type, value.type);
        EXPECT_EQ(now->count, value.count);
        EXPECT_TRUE(std::ranges::equal(now->bytes, value.bytes)) << key;
      }
      EXPECT_EQ(after->GetUint("general.file_type").value(), target.file_type);
      EXPECT_EQ(after->GetUint("general.quantization_version").value(), 2u);
      // The tensors: blocks of the rows, or what they were.
      ASSERT_EQ(after->tensors().size(), before->tensors().size());
      uint64_t matrices = 0;
      for (size_t i = 0; i < before->tensors().size(); ++i) {
        const model::Tensor& old = before->tensors()[i];
        const model::Tensor& now = after->tensors()[i];
        const GgufTensorReport& each = report->tensors[i];
        ASSERT_EQ(now.name, old.name);
        EXPECT_TRUE(std::ranges::equal(now.dims, old.dims));
        EXPECT_EQ(each.name, old.name);
        EXPECT_EQ(each.quantized, old.rank == 2) << old.name;
        if (old.rank == 1) {
          EXPECT_EQ(now.type, old.type);
          EXPECT_TRUE(std::ranges::equal(now.data, old.data)) << old.name;
          continue;
        }
        ++matrices;
        const bool output = old.name == (tied ? "token_embd.weight" : "output.weight");
        EXPECT_EQ(now.type, TypeOf(old, target.type, output, "llama")) << old.name;
        std::vector<float> weights(old.elements());
        ASSERT_TRUE(model::DequantizeRow(old.type, old.data, weights).ok());
        std::vector<std::byte> blocks(now.data.size());
        ASSERT_TRUE(EncodeRow(now.type, weights, blocks).ok());
        EXPECT_TRUE(std::ranges::equal(now.data, blocks)) << old.name;
        EXPECT_GT(each.error, 0) << old.name;
        EXPECT_LT(each.error, most.at(std::string(target.name))) << old.name;
      }
      EXPECT_EQ(matrices, 14u + (tied ? 1 : 2));
      EXPECT_LT(report->matrix_bits(), report->file_bits());
      const auto target_page = ReportText({.from = "", .to = "", .target = target}, *report);
      EXPECT_THAT(target_page, HasSubstr("bits per weight of the file"));
      EXPECT_THAT(target_page, HasSubstr("| `blk.0.attn_q.weight` | F32 | "));
    }
  }
}

TEST_F(QuantizeGgufTest, PredictsAlmostAsBefore) {
  testing::WriteTinyGguf(Path("in"), Model());
  const auto before = model::OpenCheckpoint(Path("in"));
  ASSERT_TRUE(before.ok());
  testing::Random random(4);
  std::vector<TokenId> text;
  for (int i = 0; i < 60; ++i) text.push_back(static_cast<TokenId>(random.Below(300)));
  const std::vector<Evaluation> evaluations = {{.name = "a", .texts = {text}},
                                               {.name = "b", .texts = {text, text}}};
  for (const char* type : {"q4_k", "q8_0"}) {
    ASSERT_TRUE(Run("in", type, type).ok());
    const auto after = model::OpenCheckpoint(Path(type));
    ASSERT_TRUE(after.ok());
    uint32_t ran = 0;
    const auto reports = Evaluate(**before, **after, evaluations, kernels::DetectIsas().back(), 2,
                                  clock_, [&](uint32_t done, uint32_t layers) {
                                    EXPECT_EQ(done, ++ran);
                                    EXPECT_EQ(layers, 8u);
                                  });
    ASSERT_TRUE(reports.ok()) << reports.status();
    EXPECT_EQ(ran, 8u);
    ASSERT_EQ(reports->size(), 2u);
    const bool eight = std::string(type) == "q8_0";
    for (const PerplexityReport& each : *reports) {
      EXPECT_NEAR(each.change(), 0, eight ? 0.01 : 0.1);
      EXPECT_GT(each.top5_error, 0);
      EXPECT_LT(each.top5_error, eight ? 0.02 : 0.2);
    }
    EXPECT_NEAR((*reports)[0].before, (*reports)[1].before, 1e-6);
    EXPECT_THAT(PerplexityText(*reports), HasSubstr("| a | "));
  }
}

TEST_F(QuantizeGgufTest, TheSameJobMakesTheSameBytes) {
  testing::TinyModelOptions options = Model(false);
  options.experts = 4;
  testing::WriteTinyGguf(Path("in"), options);
  ASSERT_TRUE(Run("in", "one", "q4_k", 1).ok());
  ASSERT_TRUE(Run("in", "three", "q4_k", 3).ok());
  EXPECT_EQ(Bytes(Path("one")), Bytes(Path("three")));
  // Routers stay; the experts of a layer are one tensor.
  const auto file = GgufFile::Open(Path("one"));
  ASSERT_TRUE(file.ok());
  EXPECT_EQ(file->FindTensor("blk.0.ffn_gate_inp.weight")->type, GgmlType::kF32);
  EXPECT_EQ(file->FindTensor("blk.0.ffn_gate_exps.weight")->type, GgmlType::kQ4_K);
  EXPECT_EQ(file->FindTensor("blk.0.ffn_down_exps.weight")->type, GgmlType::kQ5_0);
}

TEST_F(QuantizeGgufTest, WhatCannotBeDoneIsRefusedByName) {
  testing::WriteTinyGguf(Path("in"), Model());
  EXPECT_THAT(Error("in", "in", "q8_0"), HasSubstr("in exists; move it away"));
  WriteBytes(Path("there"), {});
  EXPECT_EQ(Run("in", "there", "q8_0").status().code(), absl::StatusCode::kAlreadyExists);
  EXPECT_EQ(Bytes(Path("there")), "");
  EXPECT_THAT(Error("in", "no/such/folder", "q8_0"), HasSubstr("No such file"));
  testing::WriteTinyGguf(Path("quantised"), {});
  EXPECT_THAT(Error("quantised", "out", "q8_0"),
              HasSubstr("tensor token_embd.weight is Q8_0: the model is quantised already. --type "
                        "needs the model in F32, F16 or BF16"));
  const auto parts = testing::TinyGgufBuilder(Model()).BuildParts(2);
  WriteBytes(Path("m-00001-of-00002.gguf"), parts[0]);
  WriteBytes(Path("m-00002-of-00002.gguf"), parts[1]);
  EXPECT_THAT(Error("m-00001-of-00002.gguf", "out", "q8_0"),
              HasSubstr("one of several parts. Join them first"));
  // A weight of the last matrix is infinite. Nothing is left behind.
  std::vector<std::byte> bytes = testing::TinyGguf(Model(false));
  const auto file = GgufFile::Parse(bytes);
  ASSERT_TRUE(file.ok());
  const model::Tensor& last = file->tensors().back();
  const uint16_t infinite = 0x7c00;  // fp16
  std::memcpy(bytes.data() + (last.data.data() - bytes.data()) + last.dims[0] * 2 * 3, &infinite,
              sizeof infinite);
  WriteBytes(Path("infinite"), bytes);
  EXPECT_THAT(Error("infinite", "out", "q8_0"),
              HasSubstr("tensor output.weight, row 3: a weight is infinite or no number"));
  EXPECT_FALSE(fs::exists(Path("out")));
  EXPECT_FALSE(fs::exists(Path("out.unfinished")));
}

// The writer by itself: order, alignment, and files that are not whole.
TEST_F(QuantizeGgufTest, TheWriterKeepsOrderAndAlignment) {
  testing::GgufBuilder builder;
  builder.AddString("z.first", "");
  builder.AddUint64("general.file_type", 7);
  builder.AddUint32("general.alignment", 128);
  builder.AddStrings("a.last", {"x", ""});
  const std::vector<std::byte> bytes = builder.Build();
  const auto file = GgufFile::Parse(bytes);
  ASSERT_TRUE(file.ok()) << file.status();
  model::GgufMetadata metadata(*file);
  metadata.SetUint32("general.file_type", 2);
  const std::vector<model::GgufWriter::Tensor> tensors = {
      {.name = "v", .dims = {3}, .type = GgmlType::kF32},
      {.name = "m", .dims = {32, 2}, .type = GgmlType::kQ8_0}};
  const std::vector<std::byte> data(68, std::byte{7});
  {
    auto writer = model::GgufWriter::Create(Path("half"), metadata, tensors);
    ASSERT_TRUE(writer.ok()) << writer.status();
    EXPECT_TRUE(fs::exists(Path("half.unfinished")));
    EXPECT_TRUE((*writer)->Write(std::span(data).first(12)).ok());
    EXPECT_EQ((*writer)->Finish().status().code(), absl::StatusCode::kFailedPrecondition);
  }
  EXPECT_FALSE(fs::exists(Path("half")));
  EXPECT_FALSE(fs::exists(Path("half.unfinished")));
  auto writer = model::GgufWriter::Create(Path("out"), metadata, tensors);
  ASSERT_TRUE(writer.ok()) << writer.status();
  ASSERT_TRUE((*writer)->Write(std::span(data).first(8)).ok());
  EXPECT_FALSE((*writer)->Write(std::span(data).first(8)).ok());
  ASSERT_TRUE((*writer)->Write(std::span(data).first(4)).ok());
  ASSERT_TRUE((*writer)->Write(data).ok());
  EXPECT_FALSE((*writer)->Write(std::span(data).first(1)).ok());
  const auto size = (*writer)->Finish();
  ASSERT_TRUE(size.ok()) << size.status();
  EXPECT_EQ(*size, fs::file_size(Path("out")));
  EXPECT_EQ(*size % 128, 0u);
  const auto made = GgufFile::Open(Path("out"));
  ASSERT_TRUE(made.ok()) << made.status();
  EXPECT_EQ(made->GetUint("general.file_type").value(), 2u);
  EXPECT_EQ(made->GetString("z.first").value(), "");
  EXPECT_THAT(made->GetStrings("a.last").value(), ::testing::ElementsAre("x", ""));
  EXPECT_TRUE(std::ranges::equal(made->FindTensor("m")->data, data));
  // The order of the keys is that of the other file.
  const auto at = [&](std::string_view key) { return made->values().find(key)->first.data(); };
  EXPECT_LT(at("z.first"), at("general.file_type"));
  EXPECT_LT(at("general.file_type"), at("general.alignment"));
  EXPECT_LT(at("general.alignment"), at("a.last"));
}

}  // namespace
}  // namespace flotilla::quantize
