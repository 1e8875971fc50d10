// A tokenizer that was taken out of a model file gives the same results as in the file.
#include "model/tokenizer_file.h"

#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "model/chat_template.h"
#include "model/config.h"
#include "model/content_hash.h"
#include "model/tokenizer.h"
#include "tests/support/tiny_gguf.h"

namespace flotilla::model {
namespace {

TEST(TokenizerFile, SaysWhatTheModelFileSays) {
  const std::vector<std::byte> bytes = testing::TinyGguf();
  const auto model = GgufFile::Parse(bytes);
  ASSERT_TRUE(model.ok()) << model.status();
  const std::string content = TokenizerFile(*model);
  EXPECT_LT(content.size(), bytes.size());
  const auto file = GgufFile::Parse(std::as_bytes(std::span(content)));
  ASSERT_TRUE(file.ok()) << file.status();

  EXPECT_EQ(TokenizerHash(*file), TokenizerHash(*model));
  EXPECT_EQ(LoadStopTokens(*file).value(), LoadConfig(*model)->stop_ids);
  EXPECT_EQ(file->GetString("tokenizer.chat_template").value(),
            model->GetString("tokenizer.chat_template").value());
  const auto before = Tokenizer::FromGguf(*model), after = Tokenizer::FromGguf(*file);
  ASSERT_TRUE(before.ok() && after.ok());
  const std::string text = "Hello, <|im_start|>world!\n\xc3\xa9 12";
  EXPECT_EQ(after->Encode(text, {.parse_special = true}).value(),
            before->Encode(text, {.parse_special = true}).value());
  EXPECT_EQ(TokenizerFile(*file), content);  // nothing is lost when it is passed on
}

}  // namespace
}  // namespace flotilla::model
