// Measures how speculation changes the time of an answer, at the Engine seam on the real model. It
// runs the same requests with and without speculation, in turns, and prints the ratio.
//
//   speculation_benchmark [ngram|draft] [depth, default 8]
//                         [draft layers, or shortest n-gram; 0: the default]
//                         [batch sizes, default 1 4 8]
//
// Some answers copy from their prompt (a passage repeated, corrected, quoted). One hardly does: a
// small model that is asked to change a program writes another one. Sampled prose does not repeat
// itself. Prompts are in the prefix cache after the first round, so only decode is timed. The
// program ends if an answer differs.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "model/tokenizer.h"
#include "tests/support/engine_runner.h"

namespace flotilla::testing {
namespace {

constexpr int kRounds = 7;

constexpr char kPassage[] =
    "The harbour pilot came aboard at half past four, when the fog had begun to lift from the "
    "lower channel. He carried a brass telescope, two oilskin charts and a letter from the "
    "customs house, which he handed to the mate without a word. By sunrise the schooner had "
    "passed the second beacon and was standing out to sea under all plain sail, with the tide "
    "behind her and a fresh breeze on the quarter. Nobody on deck spoke of the cargo, nor of the "
    "man who had paid for it in silver and had not come down to see it loaded.";

constexpr char kProgram[] =
    "def total_price(items, rate):\n    total = 0\n    for item in items:\n        if item.count > "
    "0:\n            total += item.count * item.price\n    tax = total * rate\n    return total + "
    "tax\n\n\ndef cheapest(items):\n    best = None\n    for item in items:\n        if best is "
    "None or item.price < best.price:\n            best = item\n    return best\n\n\ndef "
    "count_all(items):\n    total = 0\n    for item in items:\n        total += item.count\n    "
    "return total\n";

std::string Chat(const std::string& user) {
  return absl::StrCat("<|im_start|>user\n", user, "<|im_end|>\n<|im_start|>assistant\n");
}

struct Task {
  const char* name;
  std::string text;
  float temperature;
  std::uint32_t max_tokens;
};

std::vector<Task> Tasks() {
  return {{"copy: repeat a passage",
           Chat(absl::StrCat("Repeat this text word for word.\n\n", kPassage)), 0, 200},
          {"copy: correct the spelling",
           Chat(absl::StrCat("Correct the spelling of this text and give the whole text:\n\n",
                             absl::StrReplaceAll(kPassage, {{"fog", "fogg"}, {"word", "wrod"}}))),
           0, 200},
          {"copy: quote a passage",
           Chat(absl::StrCat("Quote the sentences of this text that speak of the pilot.\n\n",
                             kPassage)),
           0, 200},
          {"mixed: change a program",
           Chat(absl::StrCat("Here is a Python file:\n\n", kProgram,
                             "\nWrite the whole file again, with `rate` renamed to `tax_rate`.")),
           0, 200},
          {"prose, sampled", Chat("Tell me a long story about a lighthouse and a clock maker."),
           1.0f, 200},
          {"essay, sampled", Chat("Write an essay about how rivers shape the land they cross."),
           0.8f, 200}};
}

std::vector<TokenizedRequest> Requests(const model::Tokenizer& tokenizer, const Task& task,
                                       int batch) {
  std::vector<TokenizedRequest> requests(batch);
  for (int i = 0; i < batch; ++i) {
    requests[i].id = {1, static_cast<std::uint64_t>(i)};
    requests[i].prompt = tokenizer.Encode(task.text, {.parse_special = true}).value();
    requests[i].sampling = {.temperature = task.temperature,
                            .seed = 11 + static_cast<std::uint64_t>(i)};
    requests[i].stop = {{2}, task.max_tokens};
  }
  return requests;
}

struct Timed {
  double seconds;
  double cpu_seconds;
  std::vector<Answer> answers;
};

Timed Time(EngineRunner& runner, const std::vector<TokenizedRequest>& requests) {
  const SteadyClock clock;
  const std::int64_t start = clock.NowNs();
  const std::clock_t cpu_start = std::clock();
  std::vector<Answer> answers = runner.Run(requests);
  return {static_cast<double>(clock.NowNs() - start) * 1e-9,
          static_cast<double>(std::clock() - cpu_start) / CLOCKS_PER_SEC, std::move(answers)};
}

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

void Measure(EngineRunner& off, EngineRunner& on, const model::Tokenizer& tokenizer,
             const Task& task, int batch) {
  const std::vector<TokenizedRequest> requests = Requests(tokenizer, task, batch);
  off.Run(requests);
  on.Run(requests);
  const scheduler::CoreCounters before = on.engine().probe().Read().core.counters;
  std::vector<double> without, with, ratios, cpu_ratios;
  std::size_t tokens = 0;
  for (int round = 0; round < kRounds; ++round) {
    const Timed plain = Time(off, requests), drafted = Time(on, requests);
    tokens = 0;
    for (std::size_t i = 0; i < requests.size(); ++i) {
      tokens += plain.answers[i].tokens.size();
      if (plain.answers[i].Bits() == drafted.answers[i].Bits()) continue;
      std::printf("answers differ: request %zu of '%s'\n", i, task.name);
      std::exit(1);
    }
    without.push_back(plain.seconds);
    with.push_back(drafted.seconds);
    ratios.push_back(plain.seconds / drafted.seconds);
    cpu_ratios.push_back(plain.cpu_seconds / drafted.cpu_seconds);
  }
  const scheduler::CoreCounters after = on.engine().probe().Read().core.counters;
  const auto drafted = after.drafted_tokens - before.drafted_tokens;
  const auto accepted = after.accepted_tokens - before.accepted_tokens;
  // Other work on the machine can only make a round longer.
  const double fastest = *std::min_element(without.begin(), without.end());
  const double fastest_with = *std::min_element(with.begin(), with.end());
  std::printf(
      "B=%-2d %-26s off %7.1f tok/s, on %7.1f tok/s: best rounds %.2fx, median %.2fx, "
      "its processor time %.2fx; drafted %.2f per token, %2.0f %% right\n",
      batch, task.name, static_cast<double>(tokens) / fastest,
      static_cast<double>(tokens) / fastest_with, fastest / fastest_with, Median(ratios),
      Median(cpu_ratios), static_cast<double>(drafted) / static_cast<double>(tokens * kRounds),
      drafted == 0 ? 0 : 100.0 * static_cast<double>(accepted) / static_cast<double>(drafted));
  std::fflush(stdout);
}

}  // namespace
}  // namespace flotilla::testing

int main(int argc, char** argv) {
  using flotilla::testing::EngineRunner;
  const auto file = flotilla::testing::OpenRealModel();
  if (file == nullptr) return 1;
  const auto number = [&](int index, int fallback) {
    return argc > index ? std::max(0, std::atoi(argv[index])) : fallback;
  };
  EngineRunner::Options options;
  EngineRunner off(file, options);
  const bool draft = argc > 1 && std::string(argv[1]) == "draft";
  options.rank.speculation =
      draft ? flotilla::worker::Speculation::kDraft : flotilla::worker::Speculation::kNgram;
  options.rank.draft_tokens = static_cast<std::uint32_t>(std::max(1, number(2, 8)));
  const auto third = static_cast<std::uint32_t>(number(3, 0));
  if (draft) options.rank.draft_layers = third;
  if (!draft && third > 0) options.rank.ngram.min_n = third;
  options.core.max_draft_tokens = options.rank.draft_tokens;
  EngineRunner on(file, options);
  const auto tokenizer = flotilla::model::Tokenizer::Create(*file->ReadTokenizer());
  if (!tokenizer.ok()) return 1;
  std::vector<int> batches;
  for (int i = 4; i < argc; ++i) batches.push_back(std::max(1, std::atoi(argv[i])));
  if (batches.empty()) batches = {1, 4, 8};
  for (const int batch : batches) {
    for (const flotilla::testing::Task& task : flotilla::testing::Tasks()) {
      flotilla::testing::Measure(off, on, *tokenizer, task, batch);
    }
  }
}
