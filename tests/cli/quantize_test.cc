// flotilla quantize on a small folder: texts, flags and messages. What it makes is tested in
// tests/quantize/.
#include "cli/quantize.h"

#include <CLI/CLI.hpp>
#include <cstddef>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "model/checkpoint.h"
#include "tests/support/hf_folder.h"
#include "tests/support/scratch_directory.h"
#include "tests/support/tiny_gguf.h"

namespace flotilla::cli {
namespace {

using ::testing::HasSubstr;

class QuantizeTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const std::vector<std::byte> gguf = testing::TinyGguf();
    const auto file = model::ParseCheckpoint(gguf);
    ASSERT_TRUE(file.ok()) << file.status();
    testing::WriteLlamaFolder(**file, flags_.model);
    std::string text;
    for (int i = 0; i < 400; ++i) text += "number " + std::to_string(i * i) + " ";
    testing::WriteFile(flags_.calibration, text);
  }

  const testing::ScratchDirectory scratch_;
  QuantizeFlags flags_{.model = scratch_.path() + "/model",
                       .out = scratch_.path() + "/out",
                       .group_size = 32,
                       .calibration = scratch_.path() + "/text",
                       .calibration_tokens = 300,
                       .evaluation = {scratch_.path() + "/text"},
                       .evaluation_tokens = 50,
                       .threads = 1};
};

TEST_F(QuantizeTest, MakesAFolder) {
  ::testing::internal::CaptureStdout();
  const absl::Status status = RunQuantize(flags_);
  const std::string said = ::testing::internal::GetCapturedStdout();
  ASSERT_TRUE(status.ok()) << status;
  EXPECT_THAT(said, HasSubstr("out: 14 matrices, 4.500 bits per weight\ntext: perplexity"));
  EXPECT_TRUE(model::OpenCheckpoint(flags_.out).ok());
  std::ifstream plot(flags_.out + "/quantization.svg");
  const std::string svg{std::istreambuf_iterator<char>(plot), {}};
  EXPECT_THAT(svg, HasSubstr("mlp.down_proj"));
}

// Its rows have 128 and 288 weights.
TEST_F(QuantizeTest, GroupsDivideRows) {
  flags_.method = "rtn";
  flags_.group_size = 64;
  EXPECT_THAT(RunQuantize(flags_).message(), HasSubstr("its rows of 288 are no multiples of 64"));
  flags_.group_size.reset();
  ::testing::internal::CaptureStdout();
  const absl::Status status = RunQuantize(flags_);
  const std::string said = ::testing::internal::GetCapturedStdout();
  ASSERT_TRUE(status.ok()) << status;
  EXPECT_THAT(said, HasSubstr("out: 14 matrices, 4.500 bits per weight"));
}

TEST_F(QuantizeTest, SaysWhatIsMissing) {
  flags_.calibration = "";
  EXPECT_THAT(RunQuantize(flags_).message(),
              HasSubstr("--method gptq needs --calibration, a text file"));
  flags_.calibration = scratch_.path() + "/nowhere";
  EXPECT_THAT(RunQuantize(flags_).message(), HasSubstr("nowhere"));
  testing::WriteFile(scratch_.path() + "/empty", "");
  flags_.calibration = scratch_.path() + "/empty";
  EXPECT_THAT(RunQuantize(flags_).message(), HasSubstr("empty has no text"));
  testing::WriteFile(scratch_.path() + "/empty", "\xFF");
  EXPECT_THAT(RunQuantize(flags_).message(), HasSubstr("empty: "));
}

TEST_F(QuantizeTest, MakesAFolderForActivationsOf8Bits) {
  for (const char* method : {"smoothquant", "gptq", "rtn"}) {
    SCOPED_TRACE(method);
    flags_.method = method;
    flags_.activations = flags_.method == "smoothquant" ? "" : "int8";
    flags_.out = scratch_.path() + "/" + method;
    ::testing::internal::CaptureStdout();
    const absl::Status status = RunQuantize(flags_);
    const std::string said = ::testing::internal::GetCapturedStdout();
    ASSERT_TRUE(status.ok()) << status;
    EXPECT_THAT(said, HasSubstr("14 matrices, 8."));
    EXPECT_THAT(said, HasSubstr("\ntext: perplexity "));
    EXPECT_THAT(said, HasSubstr("\ntext, --compute fast: perplexity "));
    std::ifstream config(flags_.out + "/config.json");
    const std::string text{std::istreambuf_iterator<char>(config), {}};
    EXPECT_THAT(text, HasSubstr("\"format\": \"int-quantized\""));
  }
}

TEST_F(QuantizeTest, RefusesWhatActivationsOf8BitsDoNotHave) {
  flags_.activations = "int8";
  for (const std::string method : {"awq", "spqr"}) {
    flags_.method = method;
    EXPECT_EQ(RunQuantize(flags_).message(), "--activations int8 does not go with --method " +
                                                 method +
                                                 "; it goes with rtn, gptq and smoothquant");
  }
  flags_.method = "smoothquant";
  flags_.given = {"--bits"};
  EXPECT_THAT(RunQuantize(flags_).message(), HasSubstr("--bits says something else"));
  flags_.given = {"--group-size"};
  EXPECT_THAT(RunQuantize(flags_).message(), HasSubstr("--group-size says something else"));
  flags_.given = {};
  flags_.zeros = true;
  EXPECT_THAT(RunQuantize(flags_).message(), HasSubstr("--zeros says something else"));
  flags_.zeros = false;
  flags_.calibration = "";
  EXPECT_THAT(RunQuantize(flags_).message(),
              HasSubstr("--method smoothquant needs --calibration, a text file"));
}

class QuantizeGgufTest : public ::testing::Test {
 protected:
  void SetUp() override {
    testing::WriteTinyGguf(flags_.model, {.hidden = 256, .matrix_type = model::GgmlType::kBF16});
    std::string text;
    for (int i = 0; i < 60; ++i) text += "number " + std::to_string(i * i) + " ";
    testing::WriteFile(flags_.evaluation[0], text);
  }

  // The flags of a command line.
  QuantizeFlags Parse(const std::string& words) const {
    CLI::App app;
    QuantizeFlags flags;
    AddQuantizeFlags(app, &flags);
    app.parse("--model " + flags_.model + " --out " + flags_.out + " " + words);
    return flags;
  }

  const testing::ScratchDirectory scratch_;
  QuantizeFlags flags_{.model = scratch_.path() + "/in.gguf",
                       .out = scratch_.path() + "/out.gguf",
                       .type = "q4_k",
                       .evaluation = {scratch_.path() + "/text"},
                       .evaluation_tokens = 50,
                       .threads = 1};
};

TEST_F(QuantizeGgufTest, MakesAFileAndAPage) {
  // The token vectors are quantised already, so this model is refused first.
  EXPECT_THAT(
      RunQuantize(flags_).message(),
      HasSubstr("in.gguf: tensor token_embd.weight is Q8_0: the model is quantised already"));
  testing::WriteTinyGguf(flags_.model, {.hidden = 256,
                                        .matrix_type = model::GgmlType::kBF16,
                                        .embedding_type = model::GgmlType::kBF16});
  ::testing::internal::CaptureStdout();
  const absl::Status status = RunQuantize(flags_);
  const std::string said = ::testing::internal::GetCapturedStdout();
  ASSERT_TRUE(status.ok()) << status;
  EXPECT_THAT(said, HasSubstr("out.gguf: 15 matrices, "));
  EXPECT_THAT(said, HasSubstr("\ntext: perplexity "));
  EXPECT_TRUE(model::OpenCheckpoint(flags_.out).ok());
  std::ifstream page(flags_.out + ".md");
  const std::string text{std::istreambuf_iterator<char>(page), {}};
  EXPECT_THAT(text, HasSubstr("| `token_embd.weight` | BF16 | Q6_K | "));
  EXPECT_THAT(text, HasSubstr("| text | "));
  EXPECT_THAT(RunQuantize(flags_).message(), HasSubstr("out.gguf exists"));
}

TEST_F(QuantizeGgufTest, FlagsThatDoNotGoWithTheTypeAreNamed) {
  EXPECT_THAT(RunQuantize(Parse("--type q4_k --method gptq")).message(),
              HasSubstr("--method gptq does not go with --type: a GGUF file is made without "
                        "calibration, by --method rtn"));
  EXPECT_THAT(RunQuantize(Parse("--type q4_k --method awq")).message(), HasSubstr("--method awq"));
  for (const std::string flag : {"--bits 4", "--group-size 128", "--zeros", "--calibration x",
                                 "--damp 0.01", "--order natural"}) {
    EXPECT_THAT(RunQuantize(Parse("--type q6_k " + flag)).message(),
                HasSubstr(flag.substr(0, flag.find(' ')) +
                          " does not go with --type: --type q6_k says how weights are stored"));
  }
  EXPECT_THAT(RunQuantize(Parse("--type q6_k --resume")).message(),
              HasSubstr("--resume does not go with --type: a GGUF file is made in one run; leave "
                        "--resume out, and the file is made from its beginning"));
  // Those that do go on to the file.
  EXPECT_THAT(RunQuantize(Parse("--type q6_k --method rtn --threads 1")).message(),
              HasSubstr("quantised already"));
  EXPECT_THROW(Parse("--type q3_k"), CLI::ValidationError);
  flags_.evaluation.clear();
  flags_.model = scratch_.path() + "/folder";
  const std::vector<std::byte> gguf = testing::TinyGguf();
  testing::WriteLlamaFolder(**model::ParseCheckpoint(gguf), flags_.model);
  EXPECT_THAT(
      RunQuantize(flags_).message(),
      HasSubstr("folder is a Hugging Face folder. --type makes a GGUF file of a GGUF file"));
}

}  // namespace
}  // namespace flotilla::cli
