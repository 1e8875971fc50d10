#include "model/tokenizer.h"

#include <chrono>
#include <cstdio>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "model/detokenizer.h"
#include "model/utf8.h"
#include "tests/support/test_model.h"
#include "tests/support/tiny_gguf.h"

namespace flotilla {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// The real vocabulary, loaded once.
const Tokenizer& SmolLm2() {
  static const Tokenizer* tokenizer = [] {
    const auto file = GgufFile::Open(testing::ModelPath());
    if (!file.ok()) {
      std::fprintf(stderr, "the test model is missing (scripts/test fetches it): %s\n",
                   file.status().ToString().c_str());
      std::abort();
    }
    auto loaded = Tokenizer::FromGguf(*file);
    if (!loaded.ok()) {
      std::fprintf(stderr, "%s\n", loaded.status().ToString().c_str());
      std::abort();
    }
    return new Tokenizer(*std::move(loaded));
  }();
  return *tokenizer;
}

TEST(Tokenizer, GoldenTextsInBothModes) {
  const auto cases = testing::ReadJsonLines("smollm2/tokenize.jsonl");
  ASSERT_EQ(cases.size(), 217u);
  for (const auto& test : cases) {
    const std::string text = test["text"];
    const auto plain = SmolLm2().Encode(text);
    ASSERT_TRUE(plain.ok()) << plain.status();
    EXPECT_EQ(*plain, test["ids"].get<std::vector<TokenId>>()) << test["text"];
    const auto parsed = SmolLm2().Encode(text, {.parse_special = true});
    ASSERT_TRUE(parsed.ok()) << parsed.status();
    EXPECT_EQ(*parsed, test["ids_parse_special"].get<std::vector<TokenId>>()) << test["text"];
  }
}

TEST(Tokenizer, LoadTime) {
  const auto file = GgufFile::Open(testing::ModelPath());
  ASSERT_TRUE(file.ok()) << file.status();
  const auto begin = std::chrono::steady_clock::now();
  ASSERT_TRUE(Tokenizer::FromGguf(*file).ok());
  const std::chrono::duration<double, std::milli> took = std::chrono::steady_clock::now() - begin;
  std::printf("49,152 tokens loaded in %.1f ms\n", took.count());
}

}  // namespace
}  // namespace flotilla
