// The flags of `flotilla loadtest`. Only cli/ knows flags; the load generator takes its own
// options.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace CLI {
class App;
}  // namespace CLI

namespace flotilla::cli {

struct LoadtestFlags {
  // Server.
  std::string url;
  std::string model;
  bool completions = false;
  bool grpc = false;
  std::string api_key_file;
  std::string ca_file;
  bool insecure_tls = false;
  bool keep_alive = false;
  double temperature = 0;
  bool stop_at_eos = false;
  std::string extra_body;
  double timeout_s = 600;
  // Load.
  std::string arrivals;  // "": closed, or poisson if there is a rate
  double rate = 0;       // 0: none
  std::int64_t concurrency = 16;
  double burstiness = 1;
  std::int64_t burst = 10;
  std::int64_t requests = 0;  // 0: 100, or as many as the duration allows
  double duration_s = 0;
  std::int64_t max_in_flight = 10'000;
  std::int64_t seed = 1;
  // Requests.
  std::string prompt = "128";
  std::string output = "64";
  std::int64_t max_prompt = 1 << 20;
  std::int64_t max_output = 1 << 20;
  double prefix_share = 0;
  std::int64_t prefix_groups = 1;
  std::int64_t turns = 1;
  double think_s = 0;
  std::string trace;
  std::string trace_format;
  double speed = 1;
  // Goodput and sweeps.
  double slo_ttft_ms = 1000;
  double slo_itl_ms = 100;
  double slo_e2e_ms = 0;
  bool sweep = false;
  std::vector<double> sweep_rate;
  double sweep_share = 0.9;
  std::int64_t sweep_runs = 12;
  std::string predict;
  // Output.
  std::string label;
  std::string json;
  std::string report;
  std::vector<std::string> compare;
};

// Adds every flag and the examples to `app`. Parsing fills `flags`, which outlives `app`, and
// refuses values outside the bounds with a message that names them.
void AddLoadtestFlags(CLI::App& app, LoadtestFlags* flags);

}  // namespace flotilla::cli
