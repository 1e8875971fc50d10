// Fingerprints of a model file, cheap enough for start-up. They tell whether two processes
// use the same model. They are not a defence against forgery.
#pragma once

#include <cstdint>

#include "model/gguf.h"

namespace flotilla::model {

// XXH64 over everything that decides how text becomes tokens and back: the
// vocabulary, merges, token types, special ids and flags, and the chat template.
uint64_t TokenizerHash(const GgufFile& file);

// XXH64 over all metadata (tensor names, shapes, types and places included)
// and the first and last 4 KiB of each tensor. A full read of the weights would cost
// seconds; this costs a few milliseconds. The hash sees every change of shape,
// quantisation or training, but not a flipped bit in mid-tensor.
uint64_t WeightsHash(const GgufFile& file);

}  // namespace flotilla::model
