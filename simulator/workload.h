// Workload: the requests that a simulation serves, with their arrivals, lengths and
// tenants.
//
// A workload comes from a synthetic arrival process with a seed, from a preset of such
// parameters, or from a trace (common/traces/request_trace.h). The same parameters give the same
// workload.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/traces/lengths.h"
#include "common/traces/request_trace.h"
#include "common/types/request.h"

namespace flotilla::simulator {

struct SimulatedRequest {
  std::int64_t arrival_ns = 0;  // not used in closed loops
  // Closed loops: how long the user waits before the request, after the end of the last one.
  std::int64_t think_ns = 0;
  std::uint32_t prompt_tokens = 1;
  std::uint32_t output_tokens = 1;  // then the model gives its stop token
  std::uint32_t tenant = 0;         // index into Workload::tenants
  std::int32_t priority = 0;
  std::int64_t deadline_ns = 0;  // after arrival; 0: none
  // Requests of one group begin with the same prefix_tokens tokens; 0: of none.
  std::uint32_t prefix_group = 0;
  std::uint32_t prefix_tokens = 0;
  // Chats: the prompt begins with prompt and answer of the user's last request, in this many
  // tokens. 0: the request begins a chat.
  std::uint32_t history_tokens = 0;
  std::uint32_t sequences = 1;
  std::uint32_t beams = 0;  // 0: no beam search
  // The ids of the prompt's first blocks, of kTraceBlockTokens tokens each (TracedRequest).
  std::vector<std::uint64_t> blocks;

  bool operator==(const SimulatedRequest&) const = default;
};

struct Workload {
  std::string name;
  std::uint64_t seed = 0;
  std::vector<SimulatedRequest> requests;   // ascending arrivals
  std::vector<std::string> tenants = {""};  // names
  // Not 0: a closed loop of this many users. Each has one request at a time, and thinks before the
  // next one.
  std::uint32_t concurrency = 0;
  // Closed loops. True: user u sends the requests u, u + concurrency, ... False: each request is
  // sent by the user whose turn it is first.
  bool chats = false;
};

struct SyntheticOptions {
  enum class Arrivals : std::uint8_t {
    kPoisson,  // independent of each other
    kGamma,    // gaps of a Gamma distribution: the lower the shape, the burstier
    kClosed,   // `concurrency` clients, each with one request at a time
  };
  std::string name = "synthetic";
  Arrivals arrivals = Arrivals::kPoisson;
  double rate = 1;         // requests per second
  double gamma_shape = 1;  // kGamma: 1 is Poisson; the gaps' variance is 1 / shape
  std::uint32_t concurrency = 1;
  // kClosed: the mean time that a user thinks, exponentially distributed.
  std::int64_t think_ns = 0;
  // kClosed: the requests of a chat. The prompt of each begins with all that was said before; the
  // drawn lengths are those of the new message and of its answer. A user whose chat ends begins
  // another one. 1: each request stands alone. The first chats of some users are shorter, so
  // that users are not in step.
  std::uint32_t turns = 1;
  // A chat ends early if it would become longer than this.
  std::uint32_t max_chat_tokens = 8192;
  std::uint32_t requests = 1000;
  LengthDistribution prompt, output;
  // Each request gets a random tenant; tenant i has weight 1 / (i + 1).
  std::uint32_t tenants = 1;
  // Each request gets one of so many priorities: 0, 1, ... with equal chances.
  std::uint32_t priorities = 1;
  // The number of groups. Each request belongs to one; its prompt begins with the group's
  // tokens, and has its own length after them. 0: no shared prefixes.
  std::uint32_t prefix_groups = 0;
  std::uint32_t prefix_tokens = 0;
  // The deadline of each request, after its arrival; 0: none. If last_deadline_ns is set, the
  // deadline is drawn evenly between the two.
  std::int64_t deadline_ns = 0;
  std::int64_t last_deadline_ns = 0;
  std::uint64_t seed = 1;
};

// Returns the parameters of a named distribution of lengths. Arrivals have their defaults.
//   short: mean 19 tokens in, 58 out (Alpaca, as in Kwon et al. 2023, fig. 11)
//   long:  mean 161 tokens in, 338 out (ShareGPT, same place)
// The paper gives means only; the spreads are assumptions. NOT_FOUND lists names.
absl::StatusOr<SyntheticOptions> FindPreset(absl::string_view name);
std::vector<std::string> PresetNames();

// INVALID_ARGUMENT: a parameter out of range, by name.
absl::StatusOr<Workload> MakeWorkload(const SyntheticOptions& options);

// The requests of a recorded trace, in open loop.
Workload WorkloadOf(const RequestTrace& trace);

// Request `index` as the scheduler gets it. Its seed is `index`, so that its
// SamplingParams lead to its SimulatedRequest. `now_ns` is its arrival.
// Without `length_known`, it stops at kStopToken and may have `max_tokens`; with
// it, max_tokens is its length.
inline constexpr TokenId kStopToken = 0;
// The token that the simulated model samples as output `output_index`: the stop
// token at the end of the answer, else a hash.
TokenId SimulatedToken(const Workload& workload, std::uint64_t request, SequenceIndex sequence,
                       std::uint32_t output_index);
TokenizedRequest MakeRequest(const Workload& workload, std::uint32_t index, std::int64_t now_ns,
                             bool length_known, std::uint32_t max_tokens);

}  // namespace flotilla::simulator
