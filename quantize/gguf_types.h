// Which type each tensor of a GGUF file gets. The rules are those of llama.cpp's quantize without
// its mixtures (src/llama-quant.cpp): all matrices of the layers have one type. Pure functions.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "model/ggml_type.h"
#include "model/tensor.h"

namespace flotilla::quantize {

// A type that a file can be quantised to.
struct GgufTarget {
  std::string_view name;  // of --type
  model::GgmlType type;
  uint32_t file_type;  // llama.cpp's LLAMA_FTYPE, the value of general.file_type
};

std::span<const GgufTarget> GgufTargets();
// "q4_0, q4_1, ..."
std::string GgufTargetNames();
// INVALID_ARGUMENT: there is no such target; the message lists them.
absl::StatusOr<GgufTarget> FindGgufTarget(std::string_view name);

// Whether the tensor is a matrix that is quantised: the token vectors, the output, and the matrices
// of the layers but for routers. Norms, biases, and vectors of positions are not.
bool IsQuantized(const model::Tensor& tensor);

// The type of such a matrix. The output, or the token vectors if they are the output, is Q6_K,
// or Q8_0 with the target Q8_0 and in models of the architecture "falcon". Rows that are no whole
// blocks have the fallback of FitRow.
model::GgmlType TypeOf(const model::Tensor& tensor, model::GgmlType target, bool is_output,
                       std::string_view architecture);

// The type of rows of `elements` weights: `wanted`, or if these are no whole blocks of it, Q5_0 for
// Q4_K, Q8_0 for Q6_K, and F16 for rows that are no multiple of 32.
model::GgmlType FitRow(uint64_t elements, model::GgmlType wanted);

}  // namespace flotilla::quantize
