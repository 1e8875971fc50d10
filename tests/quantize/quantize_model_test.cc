// Whole folders: what is written is a model, whose weights are those that were measured.
#include "quantize/quantize_model.h"

#include <cmath>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <set>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/rt/clock.h"
#include "model/load_spec.h"
#include "model/tensor.h"
#include "tests/support/fused_folder.h"
#include "tests/support/random.h"
#include "tests/support/scratch_directory.h"
#include "tests/support/with_kv_scales.h"

namespace flotilla::quantize {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

constexpr char kLlama[] = "tests/data/tiny/llama";

std::vector<std::vector<TokenId>> Texts(uint64_t seed, size_t texts, size_t length,
                                        uint32_t vocabulary) {
  testing::Random random(seed);
  std::vector<std::vector<TokenId>> result(texts);
  for (auto& text : result) {
    // Tokens that come again, so that some inputs matter more than others.
    for (size_t i = 0; i < length; ++i) text.push_back(random.Below(vocabulary) % (7 + i % 50));
  }
  return result;
}

std::map<std::string, std::string> Files(const std::string& folder) {
  std::map<std::string, std::string> files;
  for (const auto& entry : fs::directory_iterator(folder)) {
    std::ifstream file(entry.path(), std::ios::binary);
    files[entry.path().filename()] = {std::istreambuf_iterator<char>(file), {}};
  }
  return files;
}

class QuantizeModelTest : public ::testing::Test {
 protected:
  absl::StatusOr<QuantizeReport> Run(const QuantizeJob& job, const LayerDone& done = nullptr) {
    const auto file = model::OpenCheckpoint(job.from);
    if (!file.ok()) return file.status();
    return QuantizeModel(job, *file, clock_, done);
  }
  QuantizeJob Job(const std::string& out, const Settings& settings) const {
    return {.from = kLlama,
            .to = scratch_.path() + "/" + out,
            .settings = settings,
            .calibration = Texts(1, 3, 70, 256),
            .evaluations = {{"a", Texts(2, 2, 40, 256)}, {"b", Texts(3, 1, 70, 256)}},
            .threads = 2,
            .isa = kernels::DetectIsas().back()};
  }

  const testing::ScratchDirectory scratch_;
  SteadyClock clock_;
};

const Settings kAllSettings[] = {
    {.method = Method::kRtn, .bits = 8, .group = 0},
    {.method = Method::kRtn, .bits = 4, .symmetric = false, .group = 32},
    {.method = Method::kGptq, .bits = 4, .group = 32},
    {.method = Method::kGptq, .bits = 3, .symmetric = false, .group = 32, .by_importance = false},
    {.method = Method::kAwq, .bits = 4, .symmetric = false, .group = 32},
    {.method = Method::kAwq, .bits = 2, .symmetric = false, .group = 32},
    {.method = Method::kRtn, .bits = 8, .group = 0, .int8_activations = true},
    {.method = Method::kGptq, .bits = 8, .group = 0, .int8_activations = true},
    {.method = Method::kSmoothQuant, .bits = 8, .group = 0, .int8_activations = true},
    Settings::Spqr(),
};

TEST_F(QuantizeModelTest, MakesAModelThatLosesLittle) {
  const auto before = model::OpenCheckpoint(kLlama);
  ASSERT_TRUE(before.ok());
  for (const Settings& settings : kAllSettings) {
    const std::string name = "model" + std::to_string(&settings - kAllSettings);
    SCOPED_TRACE(name);
    const QuantizeJob job = Job(name, settings);
    std::vector<uint32_t> progress;
    const auto report = Run(job, [&](uint32_t done, uint32_t) { progress.push_back(done); });
    ASSERT_TRUE(report.ok()) << report.status();
    const auto after = model::OpenCheckpoint(job.to);
    ASSERT_TRUE(after.ok()) << after.status();
    const auto spec = model::LoadSpec(**after);
    ASSERT_TRUE(spec.ok()) << spec.status();
    EXPECT_EQ(progress.size(), spec->layers.size());
    EXPECT_EQ(report->matrices.size(), spec->layers.size() * 7);
    std::set<std::string> quantized;
    for (const MatrixReport& matrix : report->matrices) {
      quantized.insert(matrix.name);
      EXPECT_NE((*after)->FindTensor(matrix.name)->composite, nullptr) << matrix.name;
      if (!settings.calibrates()) continue;
      EXPECT_GT(matrix.error, 0) << matrix.name;
      EXPECT_LT(matrix.error, settings.bits == 2 ? 1 : 0.1) << matrix.name;
      // Matrices by themselves may lose more with factors that are best for all of them.
      if (settings.makes_good() || settings.method == Method::kSpqr) {
        EXPECT_LT(matrix.error, matrix.nearest_error);
      }
    }
    for (const model::Tensor& tensor : (*after)->tensors()) {
      const WeightEncoding fast = model::FastEncodingOf(tensor);
      EXPECT_EQ(fast.activations.kind == ActivationScheme::Kind::kDynamic,
                settings.int8_activations && tensor.composite != nullptr)
          << tensor.name;
    }
    // All others are as they were, but for the norms that AWQ and SmoothQuant divide.
    for (const model::Tensor& tensor : (*before)->tensors()) {
      if (quantized.contains(std::string(tensor.name))) continue;
      const model::Tensor* const now = (*after)->FindTensor(tensor.name);
      ASSERT_NE(now, nullptr) << tensor.name;
      const bool divided = settings.balances() && tensor.rank == 1 &&
                           tensor.name.find("layers") != std::string_view::npos;
      EXPECT_EQ(std::ranges::equal(now->data, tensor.data), !divided) << tensor.name;
    }
    ASSERT_EQ(report->perplexities.size(), settings.int8_activations ? 4u : 2u);
    if (settings.int8_activations) {
      EXPECT_EQ(report->perplexities[3].name, "b, --compute fast");
      EXPECT_EQ(report->perplexities[3].before, report->perplexities[1].before);
      EXPECT_NE(report->perplexities[3].after, report->perplexities[1].after);
    }
    for (const PerplexityReport& each : report->perplexities) {
      EXPECT_GT(each.before, 1);
      EXPECT_NEAR(each.change(), 0, settings.bits == 2 ? 0.5 : 0.1) << each.name;
      EXPECT_GT(each.top5_error, 0) << each.name;
      EXPECT_GT(each.uncertainty, 0) << each.name;
      EXPECT_LT(each.uncertainty, each.top5_error) << each.name;
      EXPECT_LT(each.top5_error, settings.bits == 2 ? 1 : 0.2) << each.name;
    }
    EXPECT_THAT(Files(job.to)["quantization.md"], HasSubstr("bits per weight"));
  }
}

// Factors change how weights are rounded and not what the model computes: with 8 bits hardly
// anything is lost.
TEST_F(QuantizeModelTest, FactorsKeepTheModel) {
  for (const std::string model : {"llama", "qwen2"}) {
    SCOPED_TRACE(model);
    QuantizeJob job = Job(model + "_plain", {.method = Method::kRtn, .bits = 8, .group = 32});
    job.from = "tests/data/tiny/" + model;
    const auto plain = Run(job);
    ASSERT_TRUE(plain.ok()) << plain.status();
    job.settings.method = Method::kAwq;
    job.to += "_awq";
    const auto awq = Run(job);
    ASSERT_TRUE(awq.ok()) << awq.status();
    // The columns of all matrices but o_proj, whose inputs nothing is divided for, have changed.
    const auto before = model::OpenCheckpoint(job.from), after = model::OpenCheckpoint(job.to);
    ASSERT_TRUE(before.ok() && after.ok());
    for (const MatrixReport& matrix : awq->matrices) {
      if (matrix.name.find("o_proj") != std::string::npos) continue;
      std::vector<float> row(static_cast<size_t>(matrix.inputs)), other = row;
      ASSERT_TRUE(model::DecodeRow(*(*before)->FindTensor(matrix.name), 0, row).ok());
      ASSERT_TRUE(model::DecodeRow(*(*after)->FindTensor(matrix.name), 0, other).ok());
      float change = 0;
      for (size_t i = 0; i < row.size(); ++i) {
        if (row[i] != 0) change = std::max(change, std::fabs(other[i] / row[i] - 1));
      }
      EXPECT_GT(change, 0.05f) << matrix.name;
    }
    for (size_t i = 0; i < plain->perplexities.size(); ++i) {
      EXPECT_LT(awq->perplexities[i].top5_error, 2 * plain->perplexities[i].top5_error);
    }
  }
}

// The same bytes on one thread and on several, on each instruction path, and by a run that was
// interrupted after each layer.
class SameBytesTest : public QuantizeModelTest, public ::testing::WithParamInterface<Settings> {};
INSTANTIATE_TEST_SUITE_P(
    Methods, SameBytesTest,
    ::testing::Values(
        Settings{.method = Method::kGptq, .bits = 4, .symmetric = false, .group = 32},
        Settings{.method = Method::kAwq, .bits = 4, .group = 32},
        Settings{.method = Method::kRtn, .bits = 8, .group = 0, .int8_activations = true},
        Settings{.method = Method::kGptq, .bits = 8, .group = 0, .int8_activations = true},
        Settings{.method = Method::kSmoothQuant, .bits = 8, .group = 0, .int8_activations = true},
        Settings::Spqr()));

TEST_P(SameBytesTest, TheSameJobMakesTheSameBytes) {
  const Settings& settings = GetParam();
  const QuantizeJob job = Job("whole", settings);
  ASSERT_TRUE(Run(job).ok());
  const auto expected = Files(job.to);
  ASSERT_GT(expected.size(), 4u);
  for (const kernels::Isa isa : kernels::DetectIsas()) {
    QuantizeJob other = Job("isa" + std::to_string(static_cast<int>(isa)), settings);
    other.isa = isa;
    other.threads = 1;
    ASSERT_TRUE(Run(other).ok());
    EXPECT_EQ(Files(other.to), expected) << kernels::GetOps(isa).name;
  }
  struct Interrupted {};
  QuantizeJob again = Job("again", settings);
  again.resume = true;
  int runs = 0;
  for (bool done = false; !done; ++runs) {
    ASSERT_LT(runs, 10);
    try {
      const auto report = Run(again, [](uint32_t, uint32_t) { throw Interrupted(); });
      ASSERT_TRUE(report.ok()) << report.status();
      done = true;
    } catch (const Interrupted&) {
      EXPECT_FALSE(model::OpenCheckpoint(again.to).ok());
    }
  }
  EXPECT_GT(runs, 2);
  EXPECT_EQ(Files(again.to), expected);
}

// Changes that are twice as large are twice as uncertain, and those of fewer tokens are more so.
TEST(EvaluationTest, TheUncertaintyIsTheStandardError) {
  const std::vector<double> before = {-1, -2, -3, -4, -1, -2, -3, -4};
  std::vector<double> after = before;
  EXPECT_EQ(UncertaintyOf(before, after), 0);
  for (size_t i = 0; i < after.size(); ++i) after[i] += i % 2 == 0 ? 0.01 : -0.01;
  const double eight = UncertaintyOf(before, after);
  EXPECT_NEAR(eight, 0.01 / std::sqrt(7), 1e-12);
  EXPECT_NEAR(UncertaintyOf(std::span(before).first(4), after), 0.01 / std::sqrt(3), 1e-12);
  for (size_t i = 0; i < after.size(); ++i) after[i] += i % 2 == 0 ? 0.01 : -0.01;
  EXPECT_NEAR(UncertaintyOf(before, after), 2 * eight, 1e-12);
  for (double& logprob : after) logprob -= std::log(2);  // the ratio is 2
  EXPECT_NEAR(UncertaintyOf(before, after), 4 * eight, 1e-12);
  EXPECT_EQ(UncertaintyOf(std::span(before).first(1), after), 0);
}

// compressed-tensors reads whole groups only.
TEST_F(QuantizeModelTest, GroupsDivideRows) {
  QuantizeJob job = Job("groups", {.method = Method::kRtn, .bits = 4, .group = 64});
  EXPECT_THAT(std::string(Run(job).status().message()),
              HasSubstr("model.layers.0.mlp.down_proj.weight: its rows of 160 are no multiples of "
                        "64, the size of a group"));
  EXPECT_FALSE(fs::exists(job.to));
  job.settings.group = 128;
  job.halve_group = true;
  ASSERT_TRUE(Run(job).ok());
  EXPECT_THAT(Files(job.to)["config.json"], HasSubstr("\"group_size\": 32"));
  EXPECT_THAT(Files(job.to)["quantization.md"], HasSubstr("groups of 32"));
}

TEST_F(QuantizeModelTest, ScalesOfKAndVWouldBeLost) {
  const QuantizeJob job = Job("scales", {.method = Method::kRtn, .bits = 4, .group = 32});
  const auto file = std::make_shared<testing::WithKvScales>(*model::OpenCheckpoint(kLlama),
                                                            std::vector<model::KvScales>{{1, 1}});
  EXPECT_THAT(std::string(QuantizeModel(job, file, clock_, nullptr).status().message()),
              HasSubstr("the model has scales of K and V, which the result would not have"));
  EXPECT_FALSE(fs::exists(job.to));
}

// It is called embed_out in the file, and lm_head in transformers.
TEST_F(QuantizeModelTest, TheHeadStaysAsItIs) {
  QuantizeJob job = Job("head", {.method = Method::kRtn, .bits = 4, .group = 32});
  job.from = "tests/data/tiny/gpt_neox";
  ASSERT_TRUE(Run(job).ok());
  const std::string config = Files(job.to)["config.json"];
  EXPECT_THAT(config, HasSubstr("\"embed_out\""));
  EXPECT_THAT(config, HasSubstr("\"lm_head\""));
}

TEST_F(QuantizeModelTest, WhatCannotBeDoneIsRefusedByName) {
  const auto error = [&](const QuantizeJob& job) {
    return std::string(Run(job).status().message());
  };
  QuantizeJob job = Job("new", {.method = Method::kGptq, .bits = 4, .group = 32});
  job.to = kLlama;
  EXPECT_THAT(error(job), HasSubstr("is the folder of the model itself"));
  job = Job("moe", job.settings);
  job.from = "tests/data/tiny/mixtral";
  EXPECT_THAT(error(job), HasSubstr("models with experts or a latent"));
  job.settings.method = Method::kRtn;
  QuantizeJob fused = Job("fused", job.settings);
  const testing::ScratchDirectory folder;
  testing::WriteFusedFolder(job.from, folder.path());
  fused.from = folder.path();
  EXPECT_THAT(error(fused), HasSubstr("mlp.experts.gate_up_proj has the matrices of all experts"));
  EXPECT_EQ(error(job), "");
  EXPECT_THAT(error(job), HasSubstr("has a model"));
  QuantizeJob twice = Job("twice", job.settings);
  twice.from = job.to;
  EXPECT_THAT(error(twice), HasSubstr("no matrix can be quantised: the model is quantised"));
  // Another job's folder.
  job = Job("begun", {.method = Method::kGptq, .bits = 4, .group = 32});
  struct Interrupted {};
  EXPECT_THROW(static_cast<void>(Run(job, [](uint32_t, uint32_t) { throw Interrupted(); })),
               Interrupted);
  EXPECT_THAT(error(job), HasSubstr("--resume goes on with it"));
  job.resume = true;
  job.settings.bits = 8;
  EXPECT_THAT(error(job), HasSubstr("another job has begun"));
  // The same job, but of another model of that family.
  job = Job("weights", {.method = Method::kGptq, .bits = 4, .group = 32});
  job.from = scratch_.path() + "/from";
  fs::copy(kLlama, job.from);
  EXPECT_THROW(static_cast<void>(Run(job, [](uint32_t, uint32_t) { throw Interrupted(); })),
               Interrupted);
  job.resume = true;
  const std::string weights = job.from + "/model.safetensors";
  {
    std::fstream file(weights, std::ios::binary | std::ios::in | std::ios::out);
    file.seekp(static_cast<std::streamoff>(fs::file_size(weights)) - 4);
    file.put('\x01');
  }
  EXPECT_THAT(error(job), HasSubstr("another job has begun"));
  // What others own is not copied, since people publish the folder.
  job.to = scratch_.path() + "/links";
  job.settings = {.method = Method::kRtn, .bits = 8, .group = 0};
  fs::create_symlink("/etc/hostname", job.from + "/more.json");
  EXPECT_THAT(error(job), HasSubstr("more.json is a link out of its folder"));
  // A norm after attention.
  job = Job("gemma", {.method = Method::kAwq, .bits = 4, .group = 32});
  job.from = "tests/data/tiny/olmo2";
  EXPECT_THAT(error(job), HasSubstr("AWQ needs layers with a norm before attention"));
  job = Job("smooth",
            {.method = Method::kSmoothQuant, .bits = 8, .group = 0, .int8_activations = true});
  job.from = "tests/data/tiny/olmo2";
  EXPECT_THAT(error(job), HasSubstr("SmoothQuant needs layers with a norm before attention and "
                                    "another before a gated FFN; --method gptq --activations int8 "
                                    "needs none"));
  job.settings.group = 32;
  EXPECT_THAT(error(job), HasSubstr("matrices for activations of 8 bits have weights of 8 bits"));
}

}  // namespace
}  // namespace flotilla::quantize
