// The real model at the Engine seam against the reference results of HF
// transformers in fp32 (tests/data/smollm2): greedy chats token for token,
// log-probabilities and perplexity.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <memory>
#include <utility>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "model/load_spec.h"
#include "tests/support/engine_runner.h"
#include "tests/support/requests.h"
#include "tests/support/simulated_gpu.h"
#include "tests/support/test_model.h"
#include "tests/support/with_kv_scales.h"

namespace flotilla::testing {
namespace {

using nlohmann::ordered_json;

constexpr TokenId kImEnd = 2;

struct Chat {
  std::vector<TokenId> prompt, greedy;
  // [steps][5] token and log-probability
  std::vector<std::vector<std::pair<TokenId, double>>> top5;
};

std::vector<Chat> ReadChats() {
  std::vector<Chat> chats;
  for (const ordered_json& line : testing::ReadJsonLines("smollm2/greedy.jsonl")) {
    chats.push_back({line["prompt_ids"], line["greedy_ids"], line["top5"]});
  }
  EXPECT_EQ(chats.size(), 16u);
  if (testing::kSanitized) chats.resize(3);
  return chats;
}

TokenizedRequest MakeRequest(std::uint64_t id, std::vector<TokenId> prompt) {
  TokenizedRequest request = TestRequest({1, id}, std::move(prompt), 64);
  request.sampling.temperature = 0;
  request.stop.stop_tokens = {kImEnd};
  return request;
}

// |log-probability - reference| over the reference's five best at every golden
// step, teacher-forced. A token missing from the 20 best counts as the 20th.
std::vector<double> TopFiveErrors(EngineRunner& runner, const std::vector<Chat>& chats) {
  std::vector<TokenizedRequest> requests;
  for (const Chat& chat : chats) {
    std::vector<TokenId> tokens = chat.prompt;
    tokens.insert(tokens.end(), chat.greedy.begin(), chat.greedy.end());
    requests.push_back(MakeRequest(requests.size(), std::move(tokens)));
    requests.back().stop.max_tokens = 0;
    requests.back().logprobs.prompt_top = 20;
  }
  const std::vector<Answer> answers = runner.Run(requests);
  std::vector<double> errors;
  for (std::size_t c = 0; c < chats.size(); ++c) {
    EXPECT_TRUE(answers[c].status.ok()) << answers[c].status;
    EXPECT_EQ(answers[c].prompt_top.size() + 1, requests[c].prompt.size());
    for (std::size_t step = 0; step < chats[c].top5.size(); ++step) {
      const auto& top = answers[c].prompt_top.at(chats[c].prompt.size() - 1 + step);
      EXPECT_EQ(top.size(), 20u);
      for (const auto& [token, logprob] : chats[c].top5[step]) {
        const auto found = std::find_if(top.begin(), top.end(),
                                        [t = token](const TopLogprob& p) { return p.token == t; });
        errors.push_back(std::abs((found != top.end() ? *found : top.back()).logprob - logprob));
      }
    }
  }
  return errors;
}

double Mean(const std::vector<double>& values) {
  double sum = 0;
  for (double v : values) sum += v;
  return sum / static_cast<double>(values.size());
}

double Median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + values.size() / 2, values.end());
  return values[values.size() / 2];
}

void Record(const std::string& what, double value) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.6g", value);
  std::printf("%s: %s\n", what.c_str(), text);
  ::testing::Test::RecordProperty(what, text);
}

// A text of tests/data/smollm2: its tokens, and the reference's perplexity on them.
struct Text {
  std::string name;
  std::vector<TokenId> ids;
  double perplexity = 0;
};

Text ReadText(const std::string& name) {
  std::ifstream file("tests/data/smollm2/" + name);
  EXPECT_TRUE(file.is_open()) << name;
  const ordered_json text = ordered_json::parse(file);
  EXPECT_EQ(text["ids"].size(), text["positions"].get<std::size_t>() + 1);
  return {name, text["ids"], text["perplexity"]};
}

// Perplexity on texts, divided by the reference's. Each text begins the next one. So the
// log-probabilities of the last one, which is computed, are those of all.
std::vector<double> PerplexityRatios(EngineRunner& runner, const std::vector<Text>& texts) {
  TokenizedRequest request = MakeRequest(1, texts.back().ids);
  request.stop.max_tokens = 0;
  request.logprobs.prompt_top = 0;
  const std::vector<Answer> answers = runner.Run({request});
  EXPECT_TRUE(answers[0].status.ok()) << answers[0].status;
  const std::vector<float>& logprobs = answers[0].prompt_logprobs;
  EXPECT_EQ(logprobs.size() + 1, texts.back().ids.size());
  std::vector<double> ratios;
  for (const Text& text : texts) {
    EXPECT_TRUE(std::equal(text.ids.begin(), text.ids.end(), texts.back().ids.begin()))
        << text.name;
    double sum = 0;
    for (std::size_t i = 0; i + 1 < text.ids.size(); ++i) sum -= logprobs.at(i);
    const double perplexity = std::exp(sum / static_cast<double>(text.ids.size() - 1));
    ratios.push_back(perplexity / text.perplexity);
    Record(text.name + ", perplexity over reference", ratios.back());
  }
  return ratios;
}

// The texts, each with those that begin with it.
std::vector<std::vector<Text>> Texts() {
  std::vector<std::vector<Text>> texts = {{ReadText("text_statistics_py.json")}};
  if (testing::kSanitized) return texts;
  texts.push_back({ReadText("text_gpl3.json"), ReadText("text_gpl3_long.json")});
  return texts;
}

EngineRunner::Options MakeOptions(worker::Recipe recipe, kernels::KvFormat format) {
  EngineRunner::Options options;
  options.rank.recipe = recipe;
  options.rank.kv_format = format;
  options.rank.kv_blocks = 1024;
  options.rank.poison_blocks = true;
  return options;
}

TEST(GoldenTest, Fp32IsTheReference) {
  const auto file = testing::OpenRealModel();
  ASSERT_NE(file, nullptr);
  EngineRunner runner(file, MakeOptions(worker::Recipe::kFp32, kernels::KvFormat::kF32));
  const std::vector<Chat> chats = ReadChats();

  std::vector<TokenizedRequest> requests;
  for (const Chat& chat : chats) requests.push_back(MakeRequest(requests.size(), chat.prompt));
  const std::vector<Answer> answers = runner.Run(requests);
  int equal = 0;
  for (std::size_t c = 0; c < chats.size(); ++c) {
    EXPECT_EQ(answers[c].ids(), chats[c].greedy) << "chat " << c;
    equal += answers[c].ids() == chats[c].greedy;
    EXPECT_EQ(answers[c].reason,
              chats[c].greedy.back() == kImEnd ? FinishReason::kStop : FinishReason::kLength);
  }

  Record("chats equal token for token", equal);
  const std::vector<double> errors = TopFiveErrors(runner, chats);
  Record("top-5 error, median", Median(errors));
  EXPECT_LE(Median(errors), 2e-4);
  for (const std::vector<Text>& texts : Texts()) {
    for (const double ratio : PerplexityRatios(runner, texts)) EXPECT_NEAR(ratio, 1, 1e-4);
  }
}

TEST(GoldenTest, DefaultRecipeIsClose) {
  const auto file = testing::OpenRealModel();
  ASSERT_NE(file, nullptr);
  EngineRunner runner(file, MakeOptions(worker::Recipe::kAccurate, kernels::KvFormat::kBf16));
  const std::vector<double> errors = TopFiveErrors(runner, ReadChats());
  Record("top-5 error, mean", Mean(errors));
  EXPECT_LE(Mean(errors), 0.08);
  for (const std::vector<Text>& texts : Texts()) {
    for (const double ratio : PerplexityRatios(runner, texts)) EXPECT_LE(ratio, 1.003);
  }
}

// What KV types lose against bf16, in the same recipe.
TEST(GoldenTest, KvTypesAreClose) {
  using enum kernels::KvType;
  const auto file = testing::OpenRealModel();
  ASSERT_NE(file, nullptr);
  const Text text =
      ReadText(testing::LongTests() ? "text_gpl3_long.json" : "text_statistics_py.json");
  double bf16 = 0;
  struct Type {
    kernels::KvFormat format;
    double perplexity;       // at most this part more
    double top5;             // the mean error
    bool only_long = false;  // others are enough for every run
    // Of every layer, as if the file had them: large enough for the text, whose K is at most 26.4
    // and whose V at most 17.8, so that nothing is cut off. More is lost in K than with scales of
    // tokens, which make its largest element nearly exact (docs/formats.md).
    model::KvScales scales = {};
  };
  const std::vector<Chat> chats = ReadChats();
  const std::size_t layers = model::LoadSpec(*file)->layers.size();
  for (const Type& type :
       {Type{{kBf16, kBf16}, 0, 0.08}, Type{{kF16, kF16}, 0.0006, 0.003},
        Type{{kInt8, kInt8}, 0.002, 0.05}, Type{{kFp8, kFp8}, 0.02, 0.15},
        Type{{kInt8, kFp8}, 0.02, 0.08, true}, Type{{kInt8, kInt4}, 0.004, 0.08},
        Type{{kInt4, kInt4}, 0.015, 0.09, true}, Type{{kInt4, kInt2}, 0.06, 0.25},
        Type{{kInt2, kInt2}, 0.6, 0.5, true}, Type{{kFp8E5m2, kFp8E5m2}, 0.2, 0.4, true},
        Type{{kFp8, kFp8}, 0.025, 0.16, true, {0.06f, 0.04f}}}) {
    if (type.only_long && !testing::LongTests()) continue;
    const bool given = type.scales != model::KvScales();
    const std::string name =
        kernels::KvFormatName(type.format) + (given ? " with scales of the file" : "");
    SCOPED_TRACE(name);
    const std::vector<model::KvScales> scales(given ? layers : 0, type.scales);
    EngineRunner runner(std::make_shared<testing::WithKvScales>(file, scales),
                        MakeOptions(worker::Recipe::kAccurate, type.format));
    const double ratio = PerplexityRatios(runner, {text}).front();
    if (bf16 == 0) bf16 = ratio;
    Record("KV " + name + ", perplexity over that of bf16", ratio / bf16);
    EXPECT_LE(std::abs(ratio / bf16 - 1), type.perplexity);
    const double error = Mean(TopFiveErrors(runner, chats));
    Record("KV " + name + ", top-5 error, mean", error);
    EXPECT_LE(error, type.top5);
  }
}

// The kernels of GPUs, as fibers, with all widths of a real model: 16 tokens of the shortest chat
// that has as many.
TEST(GoldenTest, KernelsOnFibersGiveTheBitsOfTheCpu) {
  if (!testing::LongTests()) GTEST_SKIP() << "set FLOTILLA_LONG=1";
  if (testing::kSanitized) GTEST_SKIP() << "fibers of a real model take too long";
  const auto file = testing::OpenRealModel();
  ASSERT_NE(file, nullptr);
  const std::vector<Chat> chats = ReadChats();
  const auto rank = [](const Chat& chat) {
    return std::pair(chat.greedy.size() < 16, chat.prompt.size());
  };
  const auto shortest = std::min_element(
      chats.begin(), chats.end(), [&](const Chat& a, const Chat& b) { return rank(a) < rank(b); });
  TokenizedRequest request = MakeRequest(1, shortest->prompt);
  request.stop.max_tokens = 16;
  request.logprobs.output_top = 5;
  EngineRunner::Options options = MakeOptions(worker::Recipe::kAccurate, kernels::KvFormat::kBf16);
  options.rank.kv_blocks = 16;
  options.rank.max_context = 256;
  std::vector<Answer> answers;
  for (const bool fibers : {false, true}) {
    if (fibers) options.rank.make_backend = MakeSimulatedGpus(/*seed=*/1, GpuMode::kFibers);
    EngineRunner runner(file, options);
    answers.push_back(runner.Run({request}).front());
    ASSERT_TRUE(answers.back().status.ok()) << answers.back().status;
  }
  EXPECT_EQ(answers[0].tokens.size(), 16u);
  EXPECT_EQ(answers[1].Bits(), answers[0].Bits());
}

}  // namespace
}  // namespace flotilla::testing
