#include "kernels/cuda/weight_kind.h"

#include <type_traits>

#include "kernels/packing/kinds.h"

namespace flotilla::kernels::cuda {

std::optional<WeightKind> WeightKindOf(PackedKind kind) {
  std::optional<WeightKind> found;
  VisitKind(kind, [&]<class Kind>() {
    if constexpr (std::is_same_v<Kind, Floats>) found = WeightKind::kFloats;
    if constexpr (std::is_same_v<Kind, Fp16>) found = WeightKind::kFp16;
    if constexpr (std::is_same_v<Kind, Bf16>) found = WeightKind::kBf16;
    if constexpr (std::is_same_v<Kind, Nibbles>) found = WeightKind::kNibbles;
    if constexpr (std::is_same_v<Kind, Bytes>) found = WeightKind::kBytes;
  });
  return found;
}

}  // namespace flotilla::kernels::cuda
