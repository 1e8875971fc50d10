#include "model/architectures/architecture.h"

namespace flotilla::model {

// Each is in a file of this folder.
// clang-format off
#define FLOTILLA_ARCHITECTURES(ROW) \
  ROW(kBloom) \
  ROW(kCohere) \
  ROW(kCohere2) \
  ROW(kDeepSeek2) \
  ROW(kDeepSeek3) \
  ROW(kErnie45) \
  ROW(kFalcon) \
  ROW(kGemma) \
  ROW(kGemma2) \
  ROW(kGemma3) \
  ROW(kGlm4) \
  ROW(kGpt2) \
  ROW(kGptBigCode) \
  ROW(kGptJ) \
  ROW(kGptNeoX) \
  ROW(kGptOss) \
  ROW(kGranite) \
  ROW(kLlama) \
  ROW(kMistral) \
  ROW(kMixtral) \
  ROW(kOlmo2) \
  ROW(kOpt) \
  ROW(kPhi) \
  ROW(kPhi3) \
  ROW(kQwen2) \
  ROW(kQwen2Moe) \
  ROW(kQwen3) \
  ROW(kQwen3Moe) \
  ROW(kSmolLm3) \
  ROW(kStableLm) \
  ROW(kStarCoder2)
// clang-format on

#define DECLARE(name) extern const Architecture name;
FLOTILLA_ARCHITECTURES(DECLARE)
#undef DECLARE

std::span<const Architecture* const> Architectures() {
#define ADDRESS(name) &name,
  static constexpr const Architecture* kAll[] = {FLOTILLA_ARCHITECTURES(ADDRESS)};
#undef ADDRESS
  return kAll;
}

}  // namespace flotilla::model
