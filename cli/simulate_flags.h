// The flags of `flotilla simulate`. Only cli/ knows flags; the simulator takes its
// own options.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace CLI {
class App;
}  // namespace CLI

namespace flotilla::cli {

struct SimulateFlags {
  // Machine.
  std::string machine = "h200";
  std::int64_t kv_tokens = 0;             // 0: the machine's number
  std::vector<std::uint32_t> kv_windows;  // [KV groups], empty: the machine's
  std::int64_t host_tokens = 0;
  double round_trip_us = 0;
  // Workload.
  std::string trace;
  std::string preset = "short";
  std::string arrivals = "poisson";
  double rate = 10;
  double burstiness = 1;
  std::int64_t concurrency = 16;
  double think_s = 0;
  std::int64_t turns = 1;
  std::int64_t requests = 1000;
  std::int64_t seed = 1;
  double prompt_mean = 0, prompt_sigma = -1;  // out of range: the preset's value
  double output_mean = 0, output_sigma = -1;
  std::int64_t tenants = 1;
  std::int64_t priorities = 1;
  std::int64_t prefix_groups = 0;
  std::int64_t prefix_tokens = 0;
  double deadline_s = 0;
  double last_deadline_s = 0;
  std::int64_t max_tokens = 1024;
  bool known_lengths = false;
  // These flags say what is compared.
  std::vector<std::string> set;      // option=value
  std::vector<std::string> compare;  // option=value,value
  std::vector<std::string> policies;
  std::vector<double> sweep_rate;
  std::vector<double> sweep_concurrency;
  bool memory_baselines = false;
  std::int64_t reserve = 2048;
  // These flags say what is printed and written.
  double slo_ttft_ms = 1000;
  double slo_itl_ms = 100;
  bool json = false;
  std::string out;
  // These flags ask for something other than a simulation.
  std::string fit;
  std::string measure;
  double measure_seconds = 6;
  std::int64_t threads = 0;
  bool list_machines = false;
};

// Adds every flag and the examples to `app`. Parsing fills `flags`, which outlives
// `app`, and refuses values outside the bounds with a message that names them.
void AddSimulateFlags(CLI::App& app, SimulateFlags* flags);

}  // namespace flotilla::cli
