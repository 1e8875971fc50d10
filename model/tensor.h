// One tensor of a model file.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "model/ggml_type.h"

namespace flotilla::model {

// A tensor by view: name and data lie in the checkpoint. dims[0] is the contiguous dimension (a
// row), so this is the usual shape [rows, columns] reversed; dims past `rank` are 1. `data` is
// whole blocks of `type`.
struct Tensor {
  std::string_view name;
  uint32_t rank;
  uint64_t dims[4];
  GgmlType type;
  std::span<const std::byte> data;

  uint64_t elements() const { return dims[0] * dims[1] * dims[2] * dims[3]; }
};

}  // namespace flotilla::model
