#include "tests/support/throughput.h"

#include <random>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace flotilla::testing {
namespace {

EngineRunner::Options WithoutPrefixCache(EngineRunner::Options options) {
  options.core.prefix_cache = false;
  return options;
}

}  // namespace

absl::StatusOr<double> TimeRun(EngineRunner& runner,
                               const std::vector<TokenizedRequest>& requests) {
  const SteadyClock clock;
  const scheduler::SchedulerSnapshot before = runner.engine().probe().Read();
  const std::int64_t start_ns = clock.NowNs();
  const std::vector<Answer> answers = runner.Run(requests);
  const std::int64_t end_ns = clock.NowNs();
  const scheduler::SchedulerSnapshot after = runner.engine().probe().Read();

  std::uint64_t prompt_rows = 0, decode_rows = 0;
  for (std::size_t i = 0; i < requests.size(); ++i) {
    if (!answers[i].status.ok()) return answers[i].status;
    prompt_rows += requests[i].prompt.size();
    decode_rows += requests[i].stop.max_tokens - 1;
  }
  const std::uint64_t decoded = after.decode_rows - before.decode_rows;
  const std::uint64_t prefilled = after.rows - before.rows - decoded;
  if (prefilled != prompt_rows || decoded < decode_rows) {
    return absl::FailedPreconditionError(absl::StrCat("the model computed ", prefilled, " of ",
                                                      prompt_rows, " prompt rows and ", decoded,
                                                      " of ", decode_rows, " decode rows"));
  }
  return static_cast<double>(end_ns - start_ns) * 1e-9;
}

ThroughputMeter::ThroughputMeter(std::shared_ptr<const model::Checkpoint> file,
                                 EngineRunner::Options options)
    : runner_(std::move(file), WithoutPrefixCache(std::move(options))) {
  const auto description = runner_.engine().Describe();
  if (description.ok()) vocab_size_ = description->vocab_size;
}

absl::StatusOr<Throughput> ThroughputMeter::Measure(const ThroughputLoad& load) {
  const absl::StatusOr<double> prefill = TimeRun(runner_, Requests(load, 1));
  if (!prefill.ok()) return prefill.status();
  const absl::StatusOr<double> both = TimeRun(runner_, Requests(load, 1 + load.decode_tokens));
  if (!both.ok()) return both.status();
  const auto batch = static_cast<std::uint64_t>(load.batch);
  return Throughput{.prefill_seconds = *prefill,
                    .seconds = *both,
                    .prefill_rows = batch * load.prompt_tokens,
                    .decode_rows = batch * load.decode_tokens};
}

std::vector<TokenizedRequest> ThroughputMeter::Requests(const ThroughputLoad& load,
                                                        std::uint32_t outputs) {
  std::vector<TokenizedRequest> requests(vocab_size_ == 0 ? 0 : load.batch);
  for (TokenizedRequest& request : requests) {
    const std::uint64_t number = requests_++;
    std::mt19937_64 random(number);
    request.id = {1, number};
    request.prompt = {static_cast<TokenId>(number % vocab_size_),
                      static_cast<TokenId>(number / vocab_size_ % vocab_size_)};
    while (request.prompt.size() < load.prompt_tokens) {
      request.prompt.push_back(static_cast<TokenId>(random() % vocab_size_));
    }
    request.sampling.temperature = 0;
    request.stop.max_tokens = outputs;
  }
  return requests;
}

}  // namespace flotilla::testing
