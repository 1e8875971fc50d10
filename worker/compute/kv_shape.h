// The sizes of the K and V of one rank.
#pragma once

#include <cstdint>

#include "kernels/kv_layout.h"

namespace flotilla::worker {

struct KvShape {
  kernels::KvFormat format = kernels::KvFormat::kBf16;
  int layers = 0;  // for which a page has room (model/kv_groups.h)
  int kv_heads = 0;
  kernels::KvDims dims;

  // Bytes of one block of kKvBlockTokens tokens.
  std::int64_t bytes_per_block() const {
    return std::int64_t{layers} * kv_heads * kernels::KvRecordBytes(format, dims);
  }
};

}  // namespace flotilla::worker
