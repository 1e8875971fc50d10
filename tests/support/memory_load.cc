#include "tests/support/memory_load.h"

#include <algorithm>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "simulator/workload.h"
#include "tests/support/test_model.h"

namespace flotilla::testing {
namespace {

constexpr std::uint32_t kBlockTokens = 16;

std::vector<TokenId> Text() {
  return ReadJsonLines("smollm2/text_gpl3_long.json")[0]["ids"].get<std::vector<TokenId>>();
}

simulator::Workload Lengths(const char* preset, std::uint32_t count) {
  simulator::SyntheticOptions options = simulator::FindPreset(preset).value();
  options.requests = count;
  options.seed = kMemorySeed;
  return simulator::MakeWorkload(options).value();
}

std::uint64_t Blocks(std::uint64_t positions) {
  return (positions + kBlockTokens - 1) / kBlockTokens;
}

}  // namespace

std::string MemoryCase::Name() const {
  if (width == 1) return absl::StrCat(preset, ", one sequence");
  return absl::StrCat(preset, ", ", width, beams ? " beams" : " samples");
}

std::vector<TokenizedRequest> MakeMemoryRequests(const MemoryCase& one, std::uint32_t count) {
  const std::vector<TokenId> text = Text();
  std::vector<TokenizedRequest> requests;
  for (const simulator::SimulatedRequest& lengths : Lengths(one.preset, count).requests) {
    TokenizedRequest& request = requests.emplace_back();
    const std::size_t index = requests.size();
    request.id = {1, index};
    const std::size_t from = index * 1013 % (text.size() - lengths.prompt_tokens);
    request.prompt.assign(text.begin() + from, text.begin() + from + lengths.prompt_tokens);
    request.sampling.seed = index;
    request.stop.max_tokens = lengths.output_tokens;
    request.sequences = one.width;
    if (one.beams) request.beam = BeamOptions{.beams = one.width};
  }
  return requests;
}

double PossibleSaving(const MemoryCase& one, std::uint32_t count) {
  double shared = 0, unshared = 0;
  for (const simulator::SimulatedRequest& lengths : Lengths(one.preset, count).requests) {
    // Each sequence writes the prompt's last position itself.
    const std::uint32_t whole = (lengths.prompt_tokens - 1) / kBlockTokens;
    for (std::uint32_t output = 0; output < lengths.output_tokens; ++output) {
      unshared += one.width * static_cast<double>(Blocks(lengths.prompt_tokens + output));
      shared += (one.width - 1.0) * whole;
    }
  }
  return shared / unshared;
}

MemoryLoad::MemoryLoad(std::shared_ptr<const model::Checkpoint> file, std::uint32_t blocks)
    : blocks_(blocks) {
  EngineRunner::Options options;
  options.rank.kv_blocks = blocks;
  options.core.max_seqs = kMemorySequences;
  options.core.prefix_cache = false;
  options.core.expected_output_permille = 1000;  // answers are as long as they may be
  options.on_planned = [this](const scheduler::SchedulerCore& core) { meter_.Sample(core); };
  runner_ = std::make_unique<EngineRunner>(std::move(file), std::move(options));
}

MemoryLoad::~MemoryLoad() = default;

MemoryRun MemoryLoad::Run(const std::vector<TokenizedRequest>& requests) {
  const auto preemptions = [this] {
    return runner_->engine().probe().Read().core.counters.preemptions;
  };
  MemoryRun run;
  run.pool_blocks = blocks_;
  const std::uint64_t before = preemptions();
  const std::int64_t start_ns = clock_.NowNs();
  meter_.Take();
  const std::vector<Answer> answers = runner_->Run(requests);
  run.use = meter_.Take();
  run.seconds = 1e-9 * static_cast<double>(clock_.NowNs() - start_ns);
  run.preemptions = preemptions() - before;
  for (std::size_t i = 0; i < answers.size(); ++i) {
    EXPECT_TRUE(answers[i].status.ok()) << answers[i].status;
    for (const Answer::Sequence& sequence : answers[i].sequences) {
      EXPECT_EQ(sequence.tokens.size(), requests[i].stop.max_tokens) << "request " << i;
      run.output_tokens += sequence.tokens.size();
    }
  }
  return run;
}

std::uint32_t MemoryPool(absl::string_view preset) { return preset == "long" ? 768 : 192; }

}  // namespace flotilla::testing
