#include "tests/gpu_check/twins.h"

#include "kernels/cuda/ptx.h"
#include "kernels/cuda/simt.h"

namespace flotilla::kernels::cuda::FLOTILLA_SIMT {
namespace {

template <Twin kTwin>
FLOTILLA_DEVICE void ApplyWord(const uint32_t* in, uint64_t* out) {
  if constexpr (kTwin == Twin::kShuffleXor) {
    for (int mask = 0; mask < kWarp; ++mask) out[mask] = ShuffleXor(in[0], mask);
  } else if constexpr (kTwin == Twin::kShuffleDown) {
    for (int delta = 0; delta < kWarp; ++delta) out[delta] = ShuffleDown(in[0], delta);
  } else if constexpr (kTwin == Twin::kBytePermute) {
    out[0] = BytePermute(in[0], in[1], in[2]);
  } else {
    const uint32_t a[4] = {in[0], in[1], in[2], in[3]};
    const uint32_t b[2] = {in[4], in[5]};
    int32_t d[4];
    for (int i = 0; i < 4; ++i) d[i] = static_cast<int32_t>(in[6 + i]);
    if constexpr (kTwin == Twin::kMultiplyS8) {
      MultiplyS8(d, a, b);
    } else {
      MultiplyU8(d, a, b);
    }
    for (int i = 0; i < 4; ++i) out[i] = static_cast<uint32_t>(d[i]);
  }
}

template <Twin kTwin>
FLOTILLA_KERNEL(kTwinThreads)
ApplyTwin(const TwinArgs args) {
  const int64_t i = static_cast<int64_t>(BlockX()) * kTwinThreads + Thread();
  const uint32_t* const in = args.operands + i * OperandsOf(kTwin);
  uint64_t* const out = args.results + i * ResultsOf(kTwin);
  if constexpr (IsWord(kTwin)) {
    ApplyWord<kTwin>(in, out);
  } else {
    out[0] = Evaluate<kTwin>(in[0], in[1], in[2]);
  }
}

// Launches the twin that is number `kTwin` or a later one.
template <int kTwin = 0>
int LaunchFrom(Twin twin, const TwinArgs& args, Stream stream) {
  if constexpr (kTwin < kTwins) {
    if (static_cast<int>(twin) != kTwin) return LaunchFrom<kTwin + 1>(twin, args, stream);
    return Launch<ApplyTwin<Twin{kTwin}>, kTwinThreads, NothingShared>(
        "twin", {.x = args.count / kTwinThreads}, args, stream);
  } else {
    return 0;
  }
}

}  // namespace

int RunTwin(Twin twin, const TwinArgs& args, Stream stream) {
  return LaunchFrom(twin, args, stream);
}

}  // namespace flotilla::kernels::cuda::FLOTILLA_SIMT
