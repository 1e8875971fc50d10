// The formats of the K and V of a model's layers, and where those of one rank lie in a page.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kernels/kv_layout.h"
#include "worker/core/sharding.h"

namespace flotilla::worker {

// What K and V of each layer of a model are: one format, but for some layers.
struct KvFormats {
  struct Some {
    IndexRange layers;
    kernels::KvFormat format;

    bool operator==(const Some&) const = default;
  };

  // NOLINTNEXTLINE(google-explicit-constructor): most models have one.
  KvFormats(kernels::KvFormat all) : most(all) {}

  kernels::KvFormat Of(std::uint32_t layer) const;
  // Whether K or V of any layer is kept by runs. Then all blocks hold runs.
  bool has_runs() const;
  int block_tokens() const { return has_runs() ? kernels::kKvRunTokens : kernels::kKvRecordTokens; }
  // E.g. "int8; layers 0-1: bf16". Equal formats have equal names.
  std::string Name() const;

  bool operator==(const KvFormats&) const = default;

  kernels::KvFormat most;
  std::vector<Some> some;  // ranges ascend and do not overlap
};

// The K and V of a layer in a page, head by head (kernels/kv_layout.h).
struct KvLayer {
  kernels::KvFormat format = kernels::KvFormat::kBf16;
  std::int64_t offset = 0;       // of its first head, from a page's begin
  std::int64_t open_offset = 0;  // the same from the begin of an open run
};

struct KvShape {
  int kv_heads = 0;
  kernels::KvDims dims;
  std::vector<KvLayer> layers;  // of the stage; those of one KV group do not overlap
  int block_tokens = kernels::kKvRecordTokens;  // or kKvRunTokens
  std::int64_t page_bytes = 0;
  std::int64_t open_bytes = 0;  // of the open run of a sequence; 0: there are none

  // Bytes of one block.
  std::int64_t bytes_per_block() const { return page_bytes; }
  // Adds a layer whose heads begin at `end` in a page, and moves `end` behind them.
  void AddLayer(kernels::KvFormat format, std::int64_t& end);

  // So many layers of one format and one KV group.
  static KvShape Equal(kernels::KvFormat format, int layers, int kv_heads,
                       const kernels::KvDims& dims);
};

}  // namespace flotilla::worker
