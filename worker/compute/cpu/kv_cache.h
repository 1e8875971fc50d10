// KvCache: the memory behind the block ids of one rank.
//
// The cache is one mapping of `blocks` pages. A page holds K and V of 16 or 64 tokens for the
// layers of one KV group (model/kv_groups.h) and all KV heads (kernels/kv_layout.h). Layers may
// have records of different formats. A page is large enough for every group, so that granting,
// freeing and copying a block never depends on the model. The scheduler decides which sequence a
// block belongs to. Memory is reserved at once and taken from the system when blocks are first
// written, so starting is instant. The executor's compute threads write the cache, each its own
// records.
//
// A second mapping has the open runs of sequences, if K or V of a layer is kept by runs. Which is
// whose is said in worker/compute/open_runs.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "common/types/ids.h"
#include "kernels/kv_layout.h"
#include "kernels/ops.h"
#include "worker/compute/host/tier_store.h"
#include "worker/compute/kv_shape.h"

namespace flotilla::worker {

class KvCache final : public TieredBlocks {
 public:
  // Reserves `blocks` >= 1 blocks, the null block included, and so many open runs if the shape has
  // any. ResourceExhausted for more than the machine's memory.
  static absl::StatusOr<KvCache> Create(const KvShape& shape, uint32_t blocks,
                                        uint32_t open_runs = 0);

  // The cache of one layer as kernels see it; the caller sets block_table.
  kernels::KvView Layer(int layer) const;
  // The same of its open runs; the caller sets first_block, too. Without a base if it has none.
  kernels::KvView OpenRuns(int layer) const;

  // Copies a block in every layer. Both ids are below block_count().
  void CopyBlock(BlockId from, BlockId to);

  // Copies an open run with position 0 of its sequence, in every layer; and without it, in one.
  void CopyRun(int32_t from, int32_t to);
  void CopyRun(int layer, int32_t from, int32_t to);

  // Fills a block with NaN, so that a read of unwritten memory shows in the output.
  void Poison(BlockId block);
  // The same of an open run and position 0 of its sequence. Without open runs it does nothing.
  void PoisonRun(int32_t run);

  // The bytes of a block, bytes_per_block() of them.
  std::byte* Block(BlockId block) const {
    return memory_.get() + block.value() * shape_.bytes_per_block();
  }

  // ---- As tiers see it.
  int64_t bytes_per_block() const override { return shape_.bytes_per_block(); }
  absl::StatusOr<std::byte*> Reserve(uint32_t blocks) override;
  absl::Status CopyOut(BlockId from, std::byte* to) override;
  absl::Status CopyIn(const std::byte* from, BlockId to) override;

  uint32_t block_count() const { return blocks_; }
  const KvShape& shape() const { return shape_; }

 private:
  struct Unmap {
    size_t bytes;
    void operator()(std::byte* memory) const;
  };
  using Mapping = std::unique_ptr<std::byte, Unmap>;
  static absl::StatusOr<Mapping> Reserve(int64_t each, uint32_t count, const char* what);
  std::byte* OpenRun(int32_t run) const { return open_.get() + run * shape_.open_bytes; }

  KvShape shape_;
  uint32_t blocks_ = 0;
  Mapping memory_, open_;
  std::vector<Mapping> reserved_;
};

}  // namespace flotilla::worker
