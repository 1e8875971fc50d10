// Workload: the requests that a simulation serves, with their arrivals, lengths and
// tenants.
//
// A workload comes from a synthetic arrival process with a seed, from a preset of such
// parameters, or from a trace (trace.h). The same parameters give the same workload.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/types/request.h"

namespace flotilla::simulator {

struct SimulatedRequest {
  std::int64_t arrival_ns = 0;  // not used in closed loops
  std::uint32_t prompt_tokens = 1;
  std::uint32_t output_tokens = 1;  // then the model gives its stop token
  std::uint32_t tenant = 0;         // index into Workload::tenants
  std::int32_t priority = 0;
  std::int64_t deadline_ns = 0;  // after arrival; 0: none
  // Requests of one group begin with the same prefix_tokens tokens; 0: of none.
  std::uint32_t prefix_group = 0;
  std::uint32_t prefix_tokens = 0;
  std::uint32_t sequences = 1;
  std::uint32_t beams = 0;  // 0: no beam search

  bool operator==(const SimulatedRequest&) const = default;
};

struct Workload {
  std::string name;
  std::uint64_t seed = 0;
  std::vector<SimulatedRequest> requests;   // ascending arrivals
  std::vector<std::string> tenants = {""};  // names
  // Not 0: a closed loop. This many requests are in the system at any time; the next one
  // arrives when one ends.
  std::uint32_t concurrency = 0;
};

// Lengths with a log-normal distribution: `mean` tokens, `sigma` the standard
// deviation of the logarithm; from 1 to `max`. The mean is that after the cut.
struct LengthDistribution {
  double mean = 1;
  double sigma = 0;
  std::uint32_t max = 1;
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

// Request `index` as the scheduler gets it. Its seed is `index`, so that its
// SamplingParams lead to its SimulatedRequest. `now_ns` is its arrival.
// Without `length_known`, it stops at kStopToken and may have `max_tokens`; with
// it, max_tokens is its length.
inline constexpr TokenId kStopToken = 0;
TokenizedRequest MakeRequest(const Workload& workload, std::uint32_t index, std::int64_t now_ns,
                             bool length_known, std::uint32_t max_tokens);

}  // namespace flotilla::simulator
