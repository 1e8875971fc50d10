// Quantises a GGUF file into another one, tensor by tensor and without calibration.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "model/checkpoint.h"
#include "model/ggml_type.h"
#include "quantize/evaluation.h"
#include "quantize/gguf_types.h"

namespace flotilla::quantize {

struct GgufJob {
  std::string from;  // a GGUF file in F32, F16 or BF16
  std::string to;    // another file, which is made
  GgufTarget target;
  int threads = 1;
};

// What became of a tensor.
struct GgufTensorReport {
  std::string name;
  model::GgmlType before = model::GgmlType::kF32;
  model::GgmlType after = model::GgmlType::kF32;
  uint64_t weights = 0;
  uint64_t bytes = 0;  // in the new file
  // It is a matrix that IsQuantized names. The others are copied.
  bool quantized = false;
  // The squares of what quantisation changed, over those of the weights. 0 for what is copied.
  double error = 0;
};

struct GgufReport {
  std::vector<GgufTensorReport> tensors;  // in the order of the file
  uint64_t bytes = 0;                     // of the file
  std::vector<PerplexityReport> perplexities;

  // Bits per weight of the whole file, and of the matrices that are quantised.
  double file_bits() const;
  double matrix_bits() const;
};

// Called as weights of the matrices are done.
using WeightsDone = std::function<void(uint64_t done, uint64_t weights)>;

// Makes the file. Tensors have the types of gguf_types.h, in the order of `from`; all metadata are
// copied byte for byte, but for general.file_type and general.quantization_version. In memory are
// the header and some rows. The file has its name when it is whole, and its bytes do not depend on
// threads. `file` is that of `from`.
// INVALID_ARGUMENT: `from` is no GGUF file, cannot be read as a model, or has matrices that are
// quantised already or weights that are infinite or too large; the message names the tensor.
// UNIMPLEMENTED: the file is one of several parts. ALREADY_EXISTS: there is something at `to`.
// Other errors are by errno.
absl::StatusOr<GgufReport> QuantizeGguf(const GgufJob& job, const model::Checkpoint& file,
                                        const WeightsDone& done);

// The report as Markdown.
std::string ReportText(const GgufJob& job, const GgufReport& report);

}  // namespace flotilla::quantize
