#include "worker/compute/kv_shape.h"

#include <cstdint>

#include <gtest/gtest.h>

namespace flotilla::worker {
namespace {

using kernels::KvFormat;
using kernels::KvType;

// The bytes of a sequence in SmolLM2-135M's shape, all counted: its blocks, the last of which is
// not full, and its open run.
std::int64_t SequenceBytes(const KvFormat& format, std::int64_t tokens) {
  const KvShape shape = KvShape::Equal(format, 30, 3, {.key = 64, .value = 64});
  const std::int64_t blocks = (tokens + shape.block_tokens - 1) / shape.block_tokens;
  return blocks * shape.bytes_per_block() + shape.open_bytes;
}

TEST(KvShape, SmallerTypesTakeSoMuchLessMemory) {
  struct Case {
    KvFormat format;
    double times;  // smaller than in bf16
  };
  constexpr std::int64_t kTokens = 6000;
  const auto bf16 = static_cast<double>(SequenceBytes(KvFormat::kBf16, kTokens));
  EXPECT_EQ(bf16, 30 * 3 * 2 * 2 * 64 * kTokens);
  for (const Case& one : {Case{KvFormat::Both(KvType::kF16), 1},
                          {KvFormat::Both(KvType::kInt8), 1.85},
                          {KvFormat::Both(KvType::kFp8), 1.9},
                          {KvFormat::Both(KvType::kFp8E5m2), 2},
                          {KvFormat::Both(KvType::kInt4), 3.4},
                          {{.key = KvType::kInt8, .value = KvType::kInt4}, 2.4},
                          {{.key = KvType::kInt4, .value = KvType::kInt2}, 4.3},
                          {KvFormat::Both(KvType::kInt2), 5.9}}) {
    EXPECT_GE(bf16 / static_cast<double>(SequenceBytes(one.format, kTokens)), one.times)
        << kernels::KvFormatName(one.format);
  }
}

}  // namespace
}  // namespace flotilla::worker
