#include "tests/support/speculation_load.h"

#include <algorithm>
#include <ctime>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "common/rt/clock.h"

namespace flotilla::testing {
namespace {

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

std::vector<TokenizedRequest> Requests(const model::Tokenizer& tokenizer,
                                       const SpeculationTask& task, int batch) {
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

}  // namespace

std::vector<SpeculationTask> SpeculationTasks() {
  const std::string misspelled = absl::StrReplaceAll(kPassage, {{"fog", "fogg"}, {"word", "wrod"}});
  return {{"copy: repeat a passage",
           Chat(absl::StrCat("Repeat this text word for word.\n\n", kPassage)), 0, 200, true},
          {"copy: correct the spelling",
           Chat(absl::StrCat("Correct the spelling of this text and give the whole text:\n\n",
                             misspelled)),
           0, 200, true},
          {"copy: quote a passage",
           Chat(absl::StrCat("Quote the sentences of this text that speak of the pilot.\n\n",
                             kPassage)),
           0, 200, true},
          {"mixed: change a program",
           Chat(absl::StrCat("Here is a Python file:\n\n", kProgram,
                             "\nWrite the whole file again, with `rate` renamed to `tax_rate`.")),
           0, 200, false},
          {"prose, sampled", Chat("Tell me a long story about a lighthouse and a clock maker."),
           1.0f, 200, false},
          {"essay, sampled", Chat("Write an essay about how rivers shape the land they cross."),
           0.8f, 200, false}};
}

double SpeculationTimes::Gain() const {
  return *std::min_element(seconds.begin(), seconds.end()) /
         *std::min_element(seconds_with.begin(), seconds_with.end());
}

SpeculationLoad::SpeculationLoad(std::shared_ptr<const model::Checkpoint> file,
                                 EngineRunner::Options with)
    : off_(file, {}),
      on_(file, std::move(with)),
      tokenizer_(model::Tokenizer::Create(*file->ReadTokenizer())) {}

absl::StatusOr<SpeculationTimes> SpeculationLoad::Measure(const SpeculationTask& task, int batch,
                                                          int rounds) {
  if (!tokenizer_.ok()) return tokenizer_.status();
  const std::vector<TokenizedRequest> requests = Requests(*tokenizer_, task, batch);
  off_.Run(requests);
  on_.Run(requests);
  const auto counters = [this] { return on_.engine().probe().Read().core.counters; };
  const scheduler::CoreCounters before = counters();
  SpeculationTimes times;
  for (int round = 0; round < rounds; ++round) {
    const Timed plain = Time(off_, requests), drafted = Time(on_, requests);
    times.tokens = 0;
    for (std::size_t i = 0; i < requests.size(); ++i) {
      times.tokens += plain.answers[i].tokens.size();
      if (plain.answers[i].Bits() == drafted.answers[i].Bits()) continue;
      return absl::InternalError(
          absl::StrCat("answers differ: request ", i, " of '", task.name, "'"));
    }
    times.seconds.push_back(plain.seconds);
    times.seconds_with.push_back(drafted.seconds);
    times.cpu_seconds.push_back(plain.cpu_seconds);
    times.cpu_seconds_with.push_back(drafted.cpu_seconds);
  }
  const scheduler::CoreCounters after = counters();
  times.drafted = after.drafted_tokens - before.drafted_tokens;
  times.accepted = after.accepted_tokens - before.accepted_tokens;
  return times;
}

EngineRunner::Options NgramOptions(std::uint32_t draft_tokens) {
  EngineRunner::Options options;
  options.rank.speculation = worker::Speculation::kNgram;
  options.rank.draft_tokens = draft_tokens;
  options.core.max_draft_tokens = draft_tokens;
  return options;
}

}  // namespace flotilla::testing
