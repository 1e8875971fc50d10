// What dense decoders have in common: pre-norm attention and a gated FFN in every layer, all of one
// size.
#pragma once

#include "model/architectures/architecture.h"

namespace flotilla::model {

// How an architecture differs from Llama.
struct DenseOptions {
  TensorFix pairs = TensorFix::kNone;  // how llama.cpp orders the pairs of q and k
  bool head_norms = false;             // AttentionSpec::head_norms
};

// Reads and bounds sizes, and makes the layers and the tensor table. UNIMPLEMENTED goes to `in` for
// experts, sliding windows, unknown scalings of RoPE and RoPE over a part of the head.
void ReadDense(const Checkpoint& checkpoint, ConfigReader& in, const DenseOptions& options,
               ModelSpec& spec);

}  // namespace flotilla::model
