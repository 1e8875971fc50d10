// How a router of a mixture of experts makes scores of its logits.
#pragma once

#include <cstdint>

namespace flotilla {

enum class ExpertScores : uint8_t {
  kSoftmax,        // over all experts
  kSigmoid,        // of each expert by itself
  kChosenSoftmax,  // the logits themselves choose; weights are a softmax over the chosen experts
};

}  // namespace flotilla
