#include "model/architectures/architecture.h"

namespace flotilla::model {

// The rows: each is in a file of this folder.
extern const Architecture kBloom, kCohere, kCohere2, kDeepSeek2, kDeepSeek3, kErnie45, kFalcon,
    kGemma, kGemma2, kGemma3, kGlm4, kGpt2, kGptBigCode, kGptJ, kGptNeoX, kGptOss, kGranite, kLlama,
    kMistral, kMixtral, kOlmo2, kOpt, kPhi, kPhi3, kQwen2, kQwen2Moe, kQwen3, kQwen3Moe, kSmolLm3,
    kStableLm, kStarCoder2;

std::span<const Architecture* const> Architectures() {
  static constexpr const Architecture* kAll[] = {
      &kBloom,   &kCohere,   &kCohere2,   &kDeepSeek2, &kDeepSeek3, &kErnie45,    &kFalcon,
      &kGemma,   &kGemma2,   &kGemma3,    &kGlm4,      &kGpt2,      &kGptBigCode, &kGptJ,
      &kGptNeoX, &kGptOss,   &kGranite,   &kLlama,     &kMistral,   &kMixtral,    &kOlmo2,
      &kOpt,     &kPhi,      &kPhi3,      &kQwen2,     &kQwen2Moe,  &kQwen3,      &kQwen3Moe,
      &kSmolLm3, &kStableLm, &kStarCoder2};
  return kAll;
}

}  // namespace flotilla::model
