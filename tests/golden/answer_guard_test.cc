// Two golden chats of 32 tokens give, in each recipe, KV type and layout, the tokens and the
// bits of log-probabilities whose hashes are in tests/data/answer_hashes.txt: a change that
// is about names, rooms or speed leaves every answer as it was. The file's first line is the
// recipe's version, which is part of the numerics id: other bits are never taken for these.
#include <bit>
#include <cstdint>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "tests/support/engine_runner.h"
#include "tests/support/recorded_lines.h"
#include "tests/support/test_model.h"

namespace flotilla::testing {
namespace {

constexpr std::size_t kChats = 2;
constexpr std::uint32_t kOutputTokens = 32;

struct Layout {
  worker::ParallelShape shape;
  worker::ShardBalance balance = worker::ShardBalance::kStep;
};
constexpr Layout kLayouts[] = {{{1, 1}}, {{3, 1}}, {{2, 1}}, {{2, 1}, worker::ShardBalance::kBytes},
                               {{1, 2}}, {{2, 2}}};

// FNV-1a of 32-bit words (Fowler, Noll, Vo), by bytes from the lowest.
class Hash {
 public:
  void Add(std::uint32_t word) {
    for (int byte = 0; byte < 4; ++byte, word >>= 8) {
      value_ = (value_ ^ (word & 0xff)) * 0x100000001b3u;
    }
  }
  std::uint64_t value() const { return value_; }

 private:
  std::uint64_t value_ = 0xcbf29ce484222325u;
};

std::vector<TokenizedRequest> Chats() {
  std::vector<TokenizedRequest> requests;
  for (const auto& line : testing::ReadJsonLines("smollm2/greedy.jsonl")) {
    TokenizedRequest& request = requests.emplace_back();
    request.id = {1, requests.size()};
    request.prompt = line["prompt_ids"].get<std::vector<TokenId>>();
    request.stop.max_tokens = kOutputTokens;
    request.sampling.temperature = 0;
    request.logprobs = {.output_top = 20, .prompt_top = 20};
    if (requests.size() == kChats) break;
  }
  return requests;
}

// Returns the answers of the chats as "<hash of tokens> <hash of log-probabilities>".
std::string Serve(worker::Recipe recipe, kernels::KvFormat format, const Layout& layout) {
  EngineRunner::Options options;
  options.rank.recipe = recipe;
  options.rank.kv_format = format;
  options.rank.shape = layout.shape;
  options.rank.balance = layout.balance;
  options.rank.kv_blocks = 64;
  EngineRunner runner(testing::OpenRealModel(), options);
  Hash tokens, logprobs;
  for (const Answer& answer : runner.Run(Chats())) {
    EXPECT_TRUE(answer.status.ok()) << answer.status;
    EXPECT_EQ(answer.tokens.size(), kOutputTokens);
    for (const TokenId token : answer.ids()) tokens.Add(static_cast<std::uint32_t>(token));
    for (const std::uint32_t word : answer.Bits()) logprobs.Add(word);
  }
  return absl::StrFormat("%016x %016x", tokens.value(), logprobs.value());
}

TEST(AnswerGuard, AnswersAreWhatTheyWere) {
  const std::size_t layouts = testing::kSanitized ? 1 : std::size(kLayouts);
  std::vector<std::string> hashes;
  for (const worker::Recipe recipe : {worker::Recipe::kAccurate, worker::Recipe::kFp32}) {
    for (const auto format : {kernels::KvFormat::kBf16, kernels::KvFormat::kF32}) {
      const std::string name = absl::StrCat(std::string(worker::RecipeName(recipe)),
                                            format == kernels::KvFormat::kF32 ? " fp32" : " bf16");
      // What runs with each recipe by default is compared among layouts by parallel_test.
      const bool by_default =
          (recipe == worker::Recipe::kFp32) == (format == kernels::KvFormat::kF32);
      for (std::size_t i = 0; i < (by_default ? 1 : layouts); ++i) {
        const std::string line = absl::StrCat(name, " ", Serve(recipe, format, kLayouts[i]));
        if (i == 0) hashes.push_back(line);
        EXPECT_EQ(line, hashes.back())
            << "tp" << kLayouts[i].shape.tensor << "pp" << kLayouts[i].shape.pipeline;
      }
    }
  }
  testing::ExpectAsRecorded(absl::StrCat("recipe version ", worker::kRecipeVersion), hashes,
                            "tests/data/answer_hashes.txt");
}

TEST(AnswerGuard, OtherHashesNeedAnotherRecipeVersion) {
  const std::vector<std::string> recorded = {"recipe version 1", "a", "b"};
  EXPECT_TRUE(testing::MayReplace({}, recorded));
  EXPECT_TRUE(testing::MayReplace(recorded, recorded));
  EXPECT_TRUE(testing::MayReplace(recorded, {"recipe version 2", "a", "c"}));
  EXPECT_FALSE(testing::MayReplace(recorded, {"recipe version 1", "a", "c"}));
  EXPECT_FALSE(testing::MayReplace(recorded, {"recipe version 1", "a"}));
}

}  // namespace
}  // namespace flotilla::testing
