// quantize_rows: a block of threads for each row and split.
#include <cmath>

#include "kernels/cuda/launches.h"
#include "kernels/cuda/reduce.h"
#include "kernels/packing/kind.h"

namespace flotilla::kernels::cuda::FLOTILLA_SIMT {
namespace {

constexpr int kThreads = 128;

struct QuantizeShared {
  PerWarp<uint32_t, kThreads> largest;
};

FLOTILLA_KERNEL(kThreads)
QuantizeKernel(const QuantizeArgs args) {
  QuantizeShared& shared = Shared<QuantizeShared>();
  const int row = BlockX(), split = BlockY();
  const int begin = split == 0 ? 0 : args.split_ends[split - 1], end = args.split_ends[split];
  const float* const x = args.x + row * args.x_stride;
  int16_t* const values = args.out.values + int64_t{row} * args.k;
  float* const sums = args.out.group_sums + int64_t{row} * (args.k / kSumSpan);
  // The bits of |x| order like |x| itself, with NaN above infinity.
  uint32_t largest = 0;
  for (int i = begin + Thread(); i < end; i += kThreads) {
    const uint32_t bits = FloatBits(x[i]) & 0x7FFFFFFFu;
    largest = bits > largest ? bits : largest;
  }
  largest = ReduceBlock<uint32_t, kThreads>(largest, shared.largest,
                                            [](uint32_t a, uint32_t b) { return a > b ? a : b; });
  const float max = BitsFloat(largest);
  const bool finite = largest < 0x7F800000u;
  const bool zero = !finite || max < 1e-30f;
  const float inverse = zero ? 0.0f : 32767.0f / max;
  // A warp has a group of 32, and all its lanes take part.
  static_assert(kActivationGroup == kWarp && kSumSpan == kWarp / 2);
  for (int i = begin + Thread(); i < end; i += kThreads) {
    const auto value = zero ? int16_t{0} : static_cast<int16_t>(std::nearbyint(x[i] * inverse));
    values[i] = value;
    int32_t sum = value;
    for (int half = kSumSpan / 2; half >= 1; half /= 2) sum += ShuffleXor(sum, half);
    const int32_t other = ShuffleXor(sum, kSumSpan);
    if (LaneOf(Thread()) == 0) {
      sums[i / kSumSpan] = static_cast<float>(sum + other);
      sums[i / kSumSpan + 1] = static_cast<float>(sum);
    }
  }
  if (Thread() == 0) {
    args.out.scales[int64_t{row} * args.split_count + split] = !finite ? BitsFloat(0x7FC00000u)
                                                               : zero  ? 0.0f
                                                                       : max / 32767.0f;
  }
}

}  // namespace

int QuantizeRows(const QuantizeArgs& args, Stream stream) {
  return Launch<QuantizeKernel, kThreads, QuantizeShared>(
      "quantize_rows", {.x = args.rows, .y = args.split_count}, args, stream);
}

}  // namespace flotilla::kernels::cuda::FLOTILLA_SIMT
