// Quantises a model of a Hugging Face folder into another folder, layer by layer: what is in memory
// is one layer, and what calibration carries from one layer to the next.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/rt/clock.h"
#include "kernels/ops.h"
#include "model/checkpoint.h"
#include "quantize/evaluation.h"
#include "quantize/layer_quantizer.h"

namespace flotilla::quantize {

struct QuantizeJob {
  std::string from;  // the folder; a model in float32, float16 or bfloat16
  std::string to;    // another folder, which is made
  Settings settings;
  bool halve_group = false;  // until settings.group divides the rows of all matrices, or is 32
  std::vector<std::vector<TokenId>> calibration;  // texts; at least one if the method calibrates
  std::vector<Evaluation> evaluations;
  bool resume = false;  // goes on with layers that an earlier run of the same job has written
  int threads = 1;
  kernels::Isa isa = kernels::Isa::kReference;
};

struct QuantizeReport {
  std::vector<MatrixReport> matrices;          // in the order of the layers
  double bits = 0;                             // per weight of the matrices
  std::vector<PerplexityReport> perplexities;  // of the evaluations
};

// `to` is a model when this returns: until then its config.json is missing, and each layer's file
// is whole or not there. The result depends on the job and not on threads or the instruction path.
// INVALID_ARGUMENT: the folder or the settings cannot be used, rows are no multiples of the group,
// which compressed-tensors does not read, or `to` is the same folder;
// ALREADY_EXISTS: `to` has a model, or what another job has begun; UNIMPLEMENTED as
// LayerQuantizer::Check; errors by errno.
absl::StatusOr<QuantizeReport> QuantizeModel(const QuantizeJob& job,
                                             std::shared_ptr<const model::Checkpoint> file,
                                             const Clock& clock, const LayerDone& done);

// The report as Markdown, with the job's settings.
std::string ReportText(const QuantizeJob& job, const QuantizeReport& report);

}  // namespace flotilla::quantize
