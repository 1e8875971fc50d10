// `flotilla quantize`: makes a quantised model folder of one in float32, float16 or bfloat16, and
// with --type a GGUF file of one.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"

namespace CLI {
class App;
}  // namespace CLI

namespace flotilla::cli {

struct QuantizeFlags {
  std::string model;
  std::string out;
  std::string type;  // of a GGUF file; empty: a folder is made
  std::string method = "gptq";
  std::int64_t bits = 4;
  std::optional<std::int64_t> group_size;  // else 128 or less
  bool zeros = false;
  std::string calibration;
  std::int64_t calibration_tokens = 32768;
  std::vector<std::string> evaluation;
  std::int64_t evaluation_tokens = 8192;
  std::string activations;  // "int8", or empty: they are not quantised
  double alpha = 0.5;
  double damp = 0.01;
  double outliers = 1;  // percent
  std::string order = "importance";
  std::int64_t threads = 0;
  bool resume = false;
  // The names of those that the command line has, such as "--bits".
  std::set<std::string> given;
};

// Adds every flag and the examples to `app`. Parsing fills `flags`, which outlives `app`.
void AddQuantizeFlags(CLI::App& app, QuantizeFlags* flags);

// Shows progress on standard error, and the result on standard output.
absl::Status RunQuantize(const QuantizeFlags& flags);

}  // namespace flotilla::cli
