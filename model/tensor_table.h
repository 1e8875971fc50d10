// The tensor table of an architecture: one row for each weight, with its name in the file, its
// shape in the model's own sizes, and what must be mended at load. Checking, loading, sharding and
// inspecting a file all read this table.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "model/checkpoint.h"

namespace flotilla::model {

struct ModelSpec;

enum class TensorRole : uint8_t {
  kTokenEmbedding,
  kAttentionNorm,
  kQuery,
  kKey,
  kValue,
  kQueryNorm,
  kKeyNorm,
  kAttentionOutput,
  kFfnNorm,
  kGate,
  kUp,
  kDown,
  kOutputNorm,
  kHead,
  kRopeFactors,  // what RoPE's frequencies are divided by; read by LoadSpec
};

// The length of a tensor's axis. It also says how the axis is sharded: kQueries and kKeys by KV
// head groups, kFfn by FFN splits, kVocabulary by chunks of the vocabulary, the others not at all.
enum class Extent : uint8_t { kOne, kHidden, kHeadDim, kPairs, kQueries, kKeys, kFfn, kVocabulary };

// What the loader changes to get the canonical form (spec.h).
enum class TensorFix : uint8_t {
  kNone,
  // Each head has its pairs at (i, i + dim/2): rows, or elements of a vector, are reordered.
  kInterleavePairs,
};

// Where the file has the element or row `index` of the canonical order, if heads of `pairs_of`
// elements have their pairs half a head apart; 0: the orders are the same.
int64_t IndexInFile(int64_t index, int64_t pairs_of);

struct TensorRow {
  TensorRole role;
  std::string_view name;       // "*" stands for the layer's index
  Extent columns;              // the contiguous axis: inputs of a matrix
  Extent rows = Extent::kOne;  // kOne: a vector
  TensorFix fix = TensorFix::kNone;
};

// E.g. "attention output".
std::string_view RoleName(TensorRole role);
uint64_t SizeOf(Extent extent, const ModelSpec& spec);

// Whether there is one tensor for each layer.
bool IsPerLayer(const TensorRow& row);
std::string NameInFile(const TensorRow& row, uint32_t layer);

// The tensor that is the head: one of its own, or the table of token vectors.
TensorRole HeadRole(const ModelSpec& spec);

// The row of `role`; null if the model has no such tensor.
const TensorRow* FindRow(const ModelSpec& spec, TensorRole role);

// Checks that the file has every tensor of spec.tensors with its shape and a type that can be
// decoded, and no other. INVALID_ARGUMENT or UNIMPLEMENTED names the tensor.
absl::Status CheckTensors(const Checkpoint& checkpoint, const ModelSpec& spec);

}  // namespace flotilla::model
