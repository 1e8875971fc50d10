// flotilla quantize on a small folder: texts, flags and messages. What it makes is tested in
// tests/quantize/.
#include "cli/quantize.h"

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

}  // namespace
}  // namespace flotilla::cli
