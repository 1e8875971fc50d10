#include "model/architectures/architecture.h"

namespace flotilla::model {

// The rows: each is a file of this folder.
extern const Architecture kLlama, kMistral, kQwen3;

std::span<const Architecture* const> Architectures() {
  static constexpr const Architecture* kAll[] = {&kLlama, &kMistral, &kQwen3};
  return kAll;
}

}  // namespace flotilla::model
