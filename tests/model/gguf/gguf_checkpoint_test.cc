// What a GGUF file holds, seen as a checkpoint.
#include "model/gguf/gguf_checkpoint.h"

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <span>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "model/content_hash.h"
#include "model/stop_tokens.h"
#include "tests/support/tiny_gguf.h"

namespace flotilla::model {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(GgufCheckpoint, ConfigurationHasTheFilesNames) {
  const auto bytes = testing::TinyGguf();
  const auto file = ParseCheckpoint(bytes);
  ASSERT_TRUE(file.ok()) << file.status();
  const Configuration& configuration = (*file)->configuration();
  EXPECT_EQ(configuration.architecture().value(), "llama");
  EXPECT_EQ(configuration.title(), "tiny");
  EXPECT_EQ(configuration.NameOf("block_count"), "llama.block_count");
  EXPECT_TRUE(configuration.Has("block_count"));
  EXPECT_EQ(configuration.Uint("block_count").value(), testing::TinyModelOptions().layers);
  EXPECT_FALSE(configuration.Has("no_such_key"));
  EXPECT_TRUE(absl::IsNotFound(configuration.Uint("no_such_key").status()));
  EXPECT_THAT(std::string(configuration.String("block_count").status().message()),
              HasSubstr("llama.block_count"));
  EXPECT_EQ((*file)->format(), "GGUF v3");
  EXPECT_EQ((*file)->token_count(), testing::TinyModelOptions().vocab);
}

// The bytes of this process that cache files.
std::int64_t CachedFileBytes() {
  std::int64_t all = 0, resident = 0, shared = 0;
  std::ifstream("/proc/self/statm") >> all >> resident >> shared;
  return shared * sysconf(_SC_PAGESIZE);
}

TEST(GgufCheckpoint, PagesThatWereReadCanBeReleased) {
  constexpr std::int64_t kBytes = 8 << 20;
  testing::GgufBuilder builder;
  std::vector<std::byte> data(kBytes);
  for (std::size_t i = 0; i < data.size(); ++i) data[i] = static_cast<std::byte>(i * 7);
  builder.AddTensor("t", {kBytes / 4}, GgmlType::kF32, data);
  const std::string path = ::testing::TempDir() + "/release_pages.gguf";
  const std::vector<std::byte> bytes = builder.Build();
  std::ofstream(path, std::ios::binary)
      .write(reinterpret_cast<const char*>(bytes.data()),
             static_cast<std::streamsize>(bytes.size()));
  const auto file = OpenGguf(path);
  ASSERT_TRUE(file.ok()) << file.status();
  const std::span<const std::byte> tensor = (*file)->FindTensor("t")->data;
  EXPECT_TRUE(std::ranges::equal(tensor, data));
  const std::int64_t before = CachedFileBytes();
  (*file)->ReleasePages();
  EXPECT_LE(CachedFileBytes(), before - kBytes / 4 * 3);
  EXPECT_TRUE(std::ranges::equal(tensor, data));
  std::filesystem::remove(path);
  // There is nothing to release of a file in memory.
  const auto parsed = ParseCheckpoint(bytes);
  ASSERT_TRUE(parsed.ok());
  (*parsed)->ReleasePages();
  EXPECT_TRUE(std::ranges::equal((*parsed)->FindTensor("t")->data, data));
}

TEST(GgufCheckpoint, TokenizerSaysWhatTheFileSays) {
  const auto bytes = testing::TinyGguf();
  const auto file = ParseCheckpoint(bytes);
  ASSERT_TRUE(file.ok()) << file.status();
  const auto tokenizer = (*file)->ReadTokenizer();
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  EXPECT_EQ(tokenizer->kind, "gpt2");
  EXPECT_EQ(tokenizer->pretokenizer, "smollm");
  EXPECT_EQ(tokenizer->tokens.size(), testing::TinyModelOptions().vocab);
  EXPECT_EQ(tokenizer->tokens[testing::kTinyImEnd], "<|im_end|>");
  EXPECT_EQ(tokenizer->kinds[testing::kTinyImEnd], TokenKind::kControl);
  EXPECT_EQ(tokenizer->kinds[testing::kTinyFirstByte], TokenKind::kNormal);
  EXPECT_FALSE(tokenizer->merges.empty());
  EXPECT_TRUE(tokenizer->scores.empty());
  EXPECT_EQ(tokenizer->bos, testing::kTinyImStart);
  EXPECT_EQ(tokenizer->eos, testing::kTinyImEnd);
  EXPECT_EQ(tokenizer->unknown, -1);
  EXPECT_EQ(tokenizer->add_bos, false);
  EXPECT_EQ(tokenizer->add_eos, std::nullopt);
  EXPECT_TRUE(tokenizer->chat_template.has_value());
  EXPECT_THAT(StopTokens(*tokenizer), ElementsAre(testing::kTinyEndOfText, testing::kTinyImEnd));
  // The value that versions before the bundle computed from the file.
  EXPECT_EQ(TokenizerHash(*tokenizer), 0x308c3f25dc501df1);
}

// Values that other servers do not read either are no reason to refuse a file.
TEST(GgufCheckpoint, SamplingAndPaddingAreWhatTheFileSays) {
  const auto read = [](void (*change)(testing::GgufBuilder&)) {
    testing::GgufBuilder builder;
    builder.AddString("general.architecture", "llama");
    builder.AddString("tokenizer.ggml.model", "gpt2");
    builder.AddStrings("tokenizer.ggml.tokens", {"a", "b"});
    builder.AddInts("tokenizer.ggml.token_type", {1, 1});
    change(builder);
    const auto bytes = builder.Build();
    const auto tokenizer = (*ParseCheckpoint(bytes))->ReadTokenizer();
    EXPECT_TRUE(tokenizer.ok()) << tokenizer.status();
    return *tokenizer;
  };
  const TokenizerBundle none = read([](auto&) {});
  EXPECT_EQ(none.pad, -1);
  EXPECT_TRUE(none.sampling.empty());
  const TokenizerBundle some = read([](auto& builder) {
    builder.AddUint32("tokenizer.ggml.padding_token_id", 1);
    builder.AddFloat("general.sampling.temp", 0.5f);
    builder.AddUint32("general.sampling.top_k", 20);
    builder.AddFloat("general.sampling.penalty_repeat", 1.25f);
    builder.AddUint32("general.sampling.mirostat", 2);
    builder.AddString("general.sampling.sequence", "kt");
  });
  EXPECT_EQ(some.pad, 1);
  EXPECT_EQ(some.sampling, (std::vector<SamplingDefault>{
                               {"temperature", 0.5}, {"top_k", 20}, {"repetition_penalty", 1.25}}));
  EXPECT_EQ(TokenizerHash(some), TokenizerHash(none)) << "text becomes tokens as without them";
  const TokenizerBundle wrong = read([](auto& builder) {
    builder.AddUint32("tokenizer.ggml.padding_token_id", 2);
    builder.AddString("general.sampling.top_p", "0.5");
  });
  EXPECT_EQ(wrong.pad, -1);
  ASSERT_EQ(wrong.sampling.size(), 1u);
  EXPECT_EQ(wrong.sampling[0].name, "top_p");
  EXPECT_TRUE(std::isnan(wrong.sampling[0].value));
}

std::string Refusal(void (*change)(testing::GgufBuilder&)) {
  testing::GgufBuilder builder;
  builder.AddString("general.architecture", "llama");
  builder.AddString("tokenizer.ggml.model", "gpt2");
  builder.AddStrings("tokenizer.ggml.tokens", {"a", "b"});
  change(builder);
  const auto bytes = builder.Build();
  const auto file = ParseCheckpoint(bytes);
  EXPECT_TRUE(file.ok()) << file.status();
  const auto tokenizer = (*file)->ReadTokenizer();
  EXPECT_TRUE(absl::IsInvalidArgument(tokenizer.status())) << tokenizer.status();
  return std::string(tokenizer.status().message());
}

TEST(GgufCheckpoint, RefusesTokenizersThatContradictThemselves) {
  EXPECT_THAT(Refusal([](auto&) {}), HasSubstr("token_type"));
  EXPECT_THAT(Refusal([](auto& b) { b.AddInts("tokenizer.ggml.token_type", {1}); }),
              HasSubstr("2 tokens and 1 token types"));
  EXPECT_THAT(Refusal([](auto& b) {
                b.AddInts("tokenizer.ggml.token_type", {1, 7});
              }),
              HasSubstr("token 1 has type 7"));
  EXPECT_THAT(Refusal([](auto& b) {
                b.AddInts("tokenizer.ggml.token_type", {1, 1});
                b.AddUint32("tokenizer.ggml.eos_token_id", 2);
              }),
              HasSubstr("tokenizer.ggml.eos_token_id = 2 is outside the vocabulary of 2"));
  EXPECT_THAT(Refusal([](auto& b) {
                b.AddInts("tokenizer.ggml.token_type", {1, 1});
                b.AddString("tokenizer.ggml.merges", "a b");
              }),
              HasSubstr("tokenizer.ggml.merges"));
}

}  // namespace
}  // namespace flotilla::model
