#include "simulator/workload.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/traces/lengths.h"
#include "common/traces/seeded_random.h"
#include "simulator/machine.h"

namespace flotilla::simulator {
namespace {

// Spreads: in published histograms of both data sets, prompts are spread widely and
// answers less. Cuts: 2,048 positions in all, as in the paper.
const SyntheticOptions kPresets[] = {
    {.name = "short",
     .prompt = {.mean = 19, .sigma = 0.5, .max = 512},
     .output = {.mean = 58, .sigma = 0.9, .max = 1024}},
    {.name = "long",
     .prompt = {.mean = 161, .sigma = 1.2, .max = 1024},
     .output = {.mean = 338, .sigma = 0.8, .max = 1024}},
};

absl::Status OutOfRange(absl::string_view name, absl::string_view range) {
  return absl::InvalidArgumentError(absl::StrCat(name, " must be ", range));
}

absl::Status Check(const SyntheticOptions& o) {
  if (absl::Status s = CheckLengths("prompt", o.prompt); !s.ok()) return s;
  if (absl::Status s = CheckLengths("output", o.output); !s.ok()) return s;
  if (o.requests < 1 || o.requests > 10'000'000) return OutOfRange("requests", "1..10000000");
  if (!(o.rate >= 1e-6) || !(o.rate <= 1e6)) return OutOfRange("rate", "0.000001..1000000");
  if (!(o.gamma_shape >= 0.01) || !(o.gamma_shape <= 100)) {
    return OutOfRange("burstiness", "0.01..100");
  }
  if (o.arrivals == SyntheticOptions::Arrivals::kClosed && o.concurrency < 1) {
    return OutOfRange("concurrency", "at least 1");
  }
  if (o.think_ns < 0) return OutOfRange("think time", "0 or more");
  if (o.turns < 1 || o.turns > 1000) return OutOfRange("turns", "1..1000");
  if (o.arrivals != SyntheticOptions::Arrivals::kClosed && (o.turns > 1 || o.think_ns > 0)) {
    return absl::InvalidArgumentError("turns and think time need closed arrivals");
  }
  if (o.turns > 1 && o.prefix_groups > 0) {
    return absl::InvalidArgumentError("chats of several turns have no prefix groups");
  }
  if (o.tenants < 1 || o.tenants > 10'000) return OutOfRange("tenants", "1..10000");
  if (o.priorities < 1 || o.priorities > 100) return OutOfRange("priorities", "1..100");
  if (o.prefix_tokens > 1 << 24) return OutOfRange("prefix tokens", "0..2^24");
  if (o.deadline_ns < 0) return OutOfRange("deadline", "0 or more");
  if (o.last_deadline_ns != 0 && (o.deadline_ns == 0 || o.last_deadline_ns < o.deadline_ns)) {
    return OutOfRange("last deadline", "0, or a deadline's or more");
  }
  return absl::OkStatus();
}

// Tenant i with weight 1 / (i + 1).
class TenantSource {
 public:
  explicit TenantSource(std::uint32_t tenants) {
    for (std::uint32_t i = 0; i < tenants; ++i) {
      ends_.push_back((ends_.empty() ? 0 : ends_.back()) + 1.0 / (i + 1));
    }
  }
  std::uint32_t Draw(SeededRandom& random) const {
    if (ends_.size() == 1) return 0;
    const double x = random.Uniform() * ends_.back();
    return static_cast<std::uint32_t>(
        std::min<std::ptrdiff_t>(std::upper_bound(ends_.begin(), ends_.end(), x) - ends_.begin(),
                                 static_cast<std::ptrdiff_t>(ends_.size()) - 1));
  }

 private:
  std::vector<double> ends_;  // cumulative weights
};

// Token `position` of a prompt: that of its block or, below prefix_tokens, of its group, or its
// own.
TokenId PromptToken(const Workload& workload, std::uint32_t index, std::uint32_t position) {
  const SimulatedRequest& request = workload.requests[index];
  const bool shared = request.prefix_group != 0 && position < request.prefix_tokens;
  std::uint64_t source = shared ? request.prefix_group : (std::uint64_t{1} << 33) + index;
  if (const std::size_t block = position / kTraceBlockTokens; block < request.blocks.size()) {
    source = MixBits(request.blocks[block]);
  }
  const std::uint64_t hash = MixBits(MixBits(workload.seed ^ source << 24) ^ position);
  return static_cast<TokenId>(1 + hash % (kSimulatedVocabulary - 1));  // never kStopToken
}

void AppendPrompt(const Workload& workload, std::uint32_t index, std::vector<TokenId>& prompt) {
  const SimulatedRequest& request = workload.requests[index];
  if (request.history_tokens > 0) {
    const std::uint32_t last = index - workload.concurrency;
    AppendPrompt(workload, last, prompt);
    for (std::uint32_t i = 0; i < workload.requests[last].output_tokens; ++i) {
      prompt.push_back(SimulatedToken(workload, last, SequenceIndex(0), i));
    }
  }
  while (prompt.size() < request.prompt_tokens) {
    prompt.push_back(PromptToken(workload, index, static_cast<std::uint32_t>(prompt.size())));
  }
}

// Makes chats of single requests: a request continues the chat of its user.
void JoinChats(const SyntheticOptions& options, Workload& workload) {
  workload.chats = true;
  std::vector<std::uint32_t> turns(workload.concurrency);  // that each user's chat has had
  for (std::size_t i = 0; i < workload.requests.size(); ++i) {
    std::uint32_t& turn = turns[i % workload.concurrency];
    if (i < workload.concurrency) {
      turn = 1 + static_cast<std::uint32_t>(i) % options.turns;
      continue;
    }
    SimulatedRequest& request = workload.requests[i];
    const SimulatedRequest& last = workload.requests[i - workload.concurrency];
    const std::uint32_t history = last.prompt_tokens + last.output_tokens;
    request.tenant = last.tenant;
    request.priority = last.priority;
    if (turn == options.turns ||
        history + request.prompt_tokens + request.output_tokens > options.max_chat_tokens) {
      turn = 1;
      continue;
    }
    ++turn;
    request.history_tokens = history;
    request.prompt_tokens += history;
  }
}

}  // namespace

std::vector<std::string> PresetNames() {
  std::vector<std::string> names;
  for (const SyntheticOptions& preset : kPresets) names.push_back(preset.name);
  return names;
}

absl::StatusOr<SyntheticOptions> FindPreset(absl::string_view name) {
  for (const SyntheticOptions& preset : kPresets) {
    if (preset.name == name) return preset;
  }
  return absl::NotFoundError(absl::StrCat("no preset named \"", name, "\"; there are ",
                                          absl::StrJoin(PresetNames(), ", ")));
}

absl::StatusOr<Workload> MakeWorkload(const SyntheticOptions& options) {
  if (absl::Status s = Check(options); !s.ok()) return s;
  const bool closed = options.arrivals == SyntheticOptions::Arrivals::kClosed;
  const double shape =
      options.arrivals == SyntheticOptions::Arrivals::kGamma ? options.gamma_shape : 1;
  Workload workload;
  workload.name = options.name;
  workload.seed = options.seed;
  workload.concurrency = closed ? options.concurrency : 0;
  workload.tenants.clear();
  for (std::uint32_t i = 0; i < options.tenants; ++i) {
    workload.tenants.push_back(absl::StrCat("tenant-", i));
  }
  const TenantSource tenants(options.tenants);
  const LengthSource prompts(options.prompt), outputs(options.output);
  // Each quantity has its own random stream. So another rate, deadlines or priorities do not change
  // the lengths.
  SeededRandom gaps(options.seed), lengths(options.seed + (1ull << 40)),
      deadlines(options.seed + (2ull << 40)), priorities(options.seed + (3ull << 40)),
      thinking(options.seed + (4ull << 40));
  double at_ns = 0;
  workload.requests.reserve(options.requests);
  for (std::uint32_t i = 0; i < options.requests; ++i) {
    SimulatedRequest& request = workload.requests.emplace_back();
    request.arrival_ns = closed ? 0 : static_cast<std::int64_t>(at_ns);
    at_ns += 1e9 / options.rate * (shape == 1 ? gaps.Exponential() : gaps.Gamma(shape) / shape);
    if (options.think_ns > 0) {
      request.think_ns =
          static_cast<std::int64_t>(static_cast<double>(options.think_ns) * thinking.Exponential());
    }
    request.prompt_tokens = prompts.Draw(lengths);
    request.output_tokens = outputs.Draw(lengths);
    request.tenant = tenants.Draw(lengths);
    request.priority = static_cast<std::int32_t>(priorities.Below(options.priorities));
    request.deadline_ns = options.deadline_ns;
    if (options.last_deadline_ns > 0) {
      const auto spread = static_cast<double>(options.last_deadline_ns - options.deadline_ns);
      request.deadline_ns += static_cast<std::int64_t>(deadlines.Uniform() * spread);
    }
    if (options.prefix_groups > 0) {
      request.prefix_group = static_cast<std::uint32_t>(1 + lengths.Below(options.prefix_groups));
      request.prefix_tokens = options.prefix_tokens;
      request.prompt_tokens += options.prefix_tokens;
    }
  }
  if (options.turns > 1) JoinChats(options, workload);
  return workload;
}

Workload WorkloadOf(const RequestTrace& trace) {
  Workload workload;
  workload.name = "trace";
  workload.tenants = trace.tenants;
  workload.requests.reserve(trace.requests.size());
  for (const TracedRequest& request : trace.requests) {
    workload.requests.push_back({.arrival_ns = request.arrival_ns,
                                 .prompt_tokens = request.prompt_tokens,
                                 .output_tokens = request.output_tokens,
                                 .tenant = request.tenant,
                                 .priority = request.priority,
                                 .deadline_ns = request.deadline_ns,
                                 .prefix_group = request.prefix_group,
                                 .prefix_tokens = request.prefix_tokens,
                                 .sequences = request.sequences,
                                 .beams = request.beams,
                                 .blocks = request.blocks});
  }
  return workload;
}

TokenId SimulatedToken(const Workload& workload, std::uint64_t request, SequenceIndex sequence,
                       std::uint32_t output_index) {
  if (output_index + 1 >= workload.requests[request].output_tokens) return kStopToken;
  const std::uint64_t hash = MixBits(MixBits(workload.seed ^ request << 24 ^ sequence.value()) ^
                                     ~std::uint64_t{output_index});
  return static_cast<TokenId>(1 + hash % (kSimulatedVocabulary - 1));
}

TokenizedRequest MakeRequest(const Workload& workload, std::uint32_t index, std::int64_t now_ns,
                             bool length_known, std::uint32_t max_tokens) {
  const SimulatedRequest& from = workload.requests[index];
  TokenizedRequest request;
  request.id = {.incarnation = 1, .counter = index};
  request.prompt.reserve(from.prompt_tokens);
  AppendPrompt(workload, index, request.prompt);
  request.sampling.seed = index;
  if (length_known) {
    request.stop.max_tokens = from.output_tokens;
  } else {
    request.stop.max_tokens = max_tokens;
    request.stop.stop_tokens = {kStopToken};
  }
  request.sequences = from.sequences;
  if (from.beams > 0) request.beam = BeamOptions{.beams = from.beams};
  if (from.deadline_ns > 0) request.deadline_ns = now_ns + from.deadline_ns;
  request.priority = from.priority;
  request.tenant = workload.tenants[from.tenant];
  return request;
}

}  // namespace flotilla::simulator
