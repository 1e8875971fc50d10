#include "model/architectures/architecture.h"

namespace flotilla::model {

// The rows: each is a file of this folder.
extern const Architecture kLlama, kQwen3;

std::span<const Architecture* const> Architectures() {
  static constexpr const Architecture* kAll[] = {&kLlama, &kQwen3};
  return kAll;
}

}  // namespace flotilla::model
