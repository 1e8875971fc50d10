#include "worker/compute/cpu/kv_cache.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"

namespace flotilla::worker {

void KvCache::Unmap::operator()(std::byte* memory) const { munmap(memory, bytes); }

namespace {

int64_t PhysicalMemory() { return int64_t{sysconf(_SC_PHYS_PAGES)} * sysconf(_SC_PAGESIZE); }

}  // namespace

absl::StatusOr<KvCache::Mapping> KvCache::Reserve(int64_t each, uint32_t count, const char* what) {
  size_t bytes;
  if (__builtin_mul_overflow(static_cast<size_t>(each), size_t{count}, &bytes) ||
      bytes > static_cast<size_t>(PhysicalMemory())) {
    return absl::ResourceExhaustedError(absl::StrCat("KV cache of ", count, " ", what, " of ", each,
                                                     " bytes is more than the machine's memory"));
  }
  // Pages come zeroed and page-aligned, so records are aligned to 64 bytes.
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) {
    return absl::ResourceExhaustedError(absl::StrCat("cannot reserve ", bytes, " bytes of KV"));
  }
  madvise(memory, bytes, MADV_HUGEPAGE);  // a hint: failure costs only speed
  return Mapping(static_cast<std::byte*>(memory), Unmap{bytes});
}

absl::StatusOr<KvCache> KvCache::Create(const KvShape& shape, uint32_t blocks, uint32_t open_runs) {
  KvCache cache;
  cache.shape_ = shape;
  cache.blocks_ = blocks;
  auto memory = Reserve(shape.bytes_per_block(), blocks, "blocks");
  if (!memory.ok()) return memory.status();
  cache.memory_ = *std::move(memory);
  if (shape.open_bytes == 0 || open_runs == 0) return cache;
  auto open = Reserve(shape.open_bytes, open_runs, "open runs");
  if (!open.ok()) return open.status();
  cache.open_ = *std::move(open);
  return cache;
}

kernels::KvView KvCache::Layer(int layer) const {
  const KvLayer& place = shape_.layers[static_cast<size_t>(layer)];
  kernels::KvView view;
  view.format = place.format;
  view.dims = shape_.dims;
  view.head_stride = kernels::KvHeadBytes(place.format, shape_.dims, shape_.block_tokens);
  view.block_stride = shape_.bytes_per_block();
  view.block_tokens = shape_.block_tokens;
  view.base = memory_.get() + place.offset;
  return view;
}

kernels::KvView KvCache::OpenRuns(int layer) const {
  const KvLayer& place = shape_.layers[static_cast<size_t>(layer)];
  kernels::KvView view;
  if (!place.format.has_runs()) return view;
  view.format = kernels::KvFormat::kBf16;
  view.dims = kernels::KvOpenDims(place.format, shape_.dims);
  view.head_stride = kernels::KvOpenBytes(place.format, shape_.dims);
  view.block_stride = shape_.open_bytes;
  view.block_tokens = kernels::kKvRunTokens;
  view.base = open_.get() + place.open_offset;
  return view;
}

void KvCache::CopyRun(int32_t from, int32_t to) {
  if (shape_.open_bytes == 0) return;  // the stage has no layer that is kept by runs
  std::memcpy(OpenRun(to), OpenRun(from), shape_.open_bytes);
}

void KvCache::CopyRun(int layer, int32_t from, int32_t to) {
  const KvLayer& place = shape_.layers[static_cast<size_t>(layer)];
  const int64_t stride = kernels::KvOpenBytes(place.format, shape_.dims);
  const int64_t bytes = kernels::KvFirstOffset(kernels::KvOpenDims(place.format, shape_.dims));
  for (int head = 0; head < shape_.kv_heads; ++head) {
    const int64_t at = place.open_offset + head * stride;
    std::memcpy(OpenRun(to) + at, OpenRun(from) + at, static_cast<size_t>(bytes));
  }
}

void KvCache::CopyBlock(BlockId from, BlockId to) {
  std::memcpy(Block(to), Block(from), shape_.bytes_per_block());
}

absl::StatusOr<std::byte*> KvCache::Reserve(uint32_t blocks) {
  auto memory = Reserve(shape_.bytes_per_block(), blocks, "blocks");
  if (!memory.ok()) return memory.status();
  reserved_.push_back(*std::move(memory));
  return reserved_.back().get();
}

absl::Status KvCache::CopyOut(BlockId from, std::byte* to) {
  std::memcpy(to, Block(from), shape_.bytes_per_block());
  return absl::OkStatus();
}

absl::Status KvCache::CopyIn(const std::byte* from, BlockId to) {
  std::memcpy(Block(to), from, shape_.bytes_per_block());
  return absl::OkStatus();
}

void KvCache::Poison(BlockId block) {
  // All ones is a NaN in fp32, fp16 and bf16, so also in the scales of fp8 and int8.
  std::memset(Block(block), 0xFF, shape_.bytes_per_block());
}

void KvCache::PoisonRun(int32_t run) {
  if (open_ != nullptr) std::memset(OpenRun(run), 0xFF, shape_.open_bytes);
}

}  // namespace flotilla::worker
