#include "model/architectures/architecture.h"

namespace flotilla::model {

std::span<const Architecture* const> Architectures() {
  static constexpr const Architecture* kAll[] = {&kLlama, &kQwen3};
  return kAll;
}

}  // namespace flotilla::model
