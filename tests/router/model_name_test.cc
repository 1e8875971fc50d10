#include "router/model_name.h"

#include <gtest/gtest.h>

namespace flotilla::router {
namespace {

TEST(ModelNameTest, TheFormatIsTheLastPartOfAFilesName) {
  EXPECT_EQ(WithoutFormat("SmolLM2-135M-Instruct.Q4_1"), "SmolLM2-135M-Instruct");
  EXPECT_EQ(WithoutFormat("Llama-3.2-1B-Instruct-Q4_K_M"), "Llama-3.2-1B-Instruct");
  EXPECT_EQ(WithoutFormat("m-q8_0"), "m");
  EXPECT_EQ(WithoutFormat("m.IQ4_XS"), "m");
  EXPECT_EQ(WithoutFormat("m.f16"), "m");
  EXPECT_EQ(WithoutFormat("m-BF16"), "m");
  for (const char* whole : {"", "m", "Llama-3.2-1B", "qwen-7b", "m.q", "m-iq", "Q4_1", ".Q4_1",
                            "m.Q4_1 ", "gpt-4", "m-instruct", "smollm2", "m.quick"}) {
    EXPECT_EQ(WithoutFormat(whole), whole);
  }
}

TEST(ModelNameTest, AModelIsMeantByItsNameOrByWhatNoOtherIsCalled) {
  EXPECT_EQ(ModelMeant("m.Q4_1", {"m.Q4_1"}), "m.Q4_1");
  EXPECT_EQ(ModelMeant("m", {"n", "m.Q4_1"}), "m.Q4_1");
  EXPECT_EQ(ModelMeant("m", {"m.Q4_1", "m"}), "m") << "the name itself goes before";
  EXPECT_EQ(ModelMeant("m", {"m.Q4_1", "m.Q8_0"}), "") << "either could be meant";
  EXPECT_EQ(ModelMeant("m.Q8_0", {"m.Q4_1", "m.Q8_0"}), "m.Q8_0");
  EXPECT_EQ(ModelMeant("m.Q8_0", {"m.Q4_1"}), "") << "another format is another model";
  EXPECT_EQ(ModelMeant("m.Q4_1", {"m"}), "");
  EXPECT_EQ(ModelMeant("", {"m.Q4_1"}), "");
  EXPECT_EQ(ModelMeant("m", {}), "");
}

}  // namespace
}  // namespace flotilla::router
