// Quantised folders: `quantization_config` of config.json names a method, whose tensors are made
// into those that the tensor table knows. Each method is a file of this folder and a row in
// quantization.cc.
#pragma once

#include <deque>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "model/checkpoint.h"
#include "model/composite_tensor.h"
#include "model/huggingface/json_file.h"
#include "model/tensor.h"

namespace flotilla::model {

// The tensors of a folder, and what those that are made need.
struct FolderTensors {
  std::vector<Tensor> tensors;
  std::deque<std::string> names;
  std::vector<std::unique_ptr<const CompositeTensor>> composites;
  std::vector<KvScales> kv_scales;  // by layer
  // Those that no cache of flotilla uses.
  SkippedTensors unused_kv_scales{.prefix = "scales of K and V", .are_a_part = false};
};

struct QuantizationMethod {
  std::string_view name;  // `quant_method`
  // Puts composites in the place of the tensors that they are made of. `settings` is the object
  // quantization_config. INVALID_ARGUMENT names the tensor or the key that is wrong.
  absl::Status (*join)(const Json& settings, FolderTensors& tensors);
};

// How a folder is quantised.
struct Quantization {
  const QuantizationMethod* method = nullptr;  // null: it is not
  const Json* settings = nullptr;              // a part of the object that it was found in
};

// Finds quantization_config in `config`, the object of config.json, or in its text_config.
// INVALID_ARGUMENT or UNIMPLEMENTED: it names no method that is known.
absl::StatusOr<Quantization> FindQuantization(const Json& config);

// The shape as Hugging Face writes it, e.g. "[4, 320, 2, 16]".
std::string HfShape(const Tensor& tensor);

}  // namespace flotilla::model
