// The tensor table of an architecture: one row for each weight, with its name in the file, its
// shape in the model's own sizes, and what must be mended at load. Checking, loading, sharding and
// inspecting a file all read this table.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "model/checkpoint.h"

namespace flotilla::model {

struct LayerSpec;
struct ModelSpec;

// A bias follows its weight; DenseReader counts on it.
enum class TensorRole : uint8_t {
  kTokenEmbedding,
  kPositionEmbedding,  // a vector for each position, added to that of the token
  kEmbeddingNorm,
  kEmbeddingNormBias,
  kAttentionNorm,
  kAttentionNormBias,
  kQuery,
  kQueryBias,
  kKey,
  kKeyBias,
  kValue,
  kValueBias,
  kQueryNorm,
  kKeyNorm,
  kSinks,      // a score of each head without a value
  kQueryDown,  // from the residual to what queries are made of
  kQueryDownBias,
  kQueryDownNorm,
  kLatent,  // from the residual to the latent, and to the rotated part of K
  kLatentBias,
  kLatentNorm,
  kLatentKeys,    // of each head: from its query to the latent
  kLatentValues,  // of each head: from the latent to its V
  kAttentionOutput,
  kAttentionOutputBias,
  kAttentionPostNorm,
  kFfnNorm,  // absent where attention and FFN share a norm
  kFfnNormBias,
  kGate,
  kGateBias,
  kUp,
  kUpBias,
  kDown,
  kDownBias,
  kRouter,  // of a mixture of experts: a logit for each expert
  kRouterBias,
  kExpertBias,  // of the choice alone
  kExpertGate,
  kExpertGateBias,
  kExpertUp,
  kExpertUpBias,
  kExpertDown,
  kExpertDownBias,
  kSharedRouter,  // the logit of the shared expert
  kSharedGate,
  kSharedGateBias,
  kSharedUp,
  kSharedUpBias,
  kSharedDown,
  kSharedDownBias,
  kFfnPostNorm,
  kOutputNorm,
  kOutputNormBias,
  kHead,
  kHeadBias,
  kRopeFactors,  // what RoPE's frequencies are divided by; read by LoadSpec
};

// The length of a tensor's axis. It also says how the axis is sharded: kQueries, kKeys, kValues,
// kResults, kHeads and kKvHeads by attention splits, kFfn, kExpertFfn and kSharedFfn by FFN splits,
// kVocabulary by chunks of the vocabulary, the others not at all. kAllQueries and kAllKeys are as
// long as kQueries and kKeys.
enum class Extent : uint8_t {
  kOne,
  kHidden,
  kHeadDim,
  kPairs,  // of RoPE
  kHeads,
  kKvHeads,
  kQueries,
  kKeys,
  kValues,
  kResults,  // of all heads, as the output product reads them
  kAllQueries,
  kAllKeys,
  kQueryRank,
  kLatentRank,
  kLatentKey,  // the latent and the rotated part of K
  kNopeDim,
  kValueDim,
  kFfn,
  kExpertFfn,
  kSharedFfn,
  kExperts,
  kVocabulary,
  kPositions,
};

// Where a file has the rows of a matrix, or the elements of a vector, in the canonical order
// (spec.h). Without numbers the orders are the same.
struct RowMap {
  int64_t first = 0;  // row 0 is here
  // The rows lie in runs of `run`, one every `stride` rows; 0: all of them in one.
  int64_t run = 0;
  int64_t stride = 0;
  // Heads have `head` rows. The first `pairs` of each are in the file with their pairs half of
  // `pairs` apart: (i, i + pairs / 2).
  int64_t head = 0;
  int64_t pairs = 0;

  // Where the file has row `index`.
  int64_t At(int64_t index) const;

  bool operator==(const RowMap&) const = default;
};

struct TensorRow {
  TensorRole role;
  // "*" stands for the layer's index, "#" for that of the expert. Weights of experts without a "#"
  // are one tensor of a layer, whose last axis is the expert.
  std::string name;
  Extent columns;              // the contiguous axis: inputs of a matrix
  Extent rows = Extent::kOne;  // kOne: a vector
  RowMap map;
  // How many rows (or elements) the file's tensor has, if that is not what `rows` (or `columns`)
  // says: other weights are in it, too. With it a weight of each head is a run of rows of one
  // matrix, `map` says which; without it the heads are the last axis of the file's tensor.
  uint64_t rows_in_file = 0;
  bool transposed = false;  // the file has the outputs along the contiguous axis
  float plus = 0;           // added to each element of a vector
};

// E.g. "attention output".
std::string_view RoleName(TensorRole role);
uint64_t SizeOf(Extent extent, const ModelSpec& spec);

// Whether there is one tensor for each layer, or at least for each layer that has such a part.
bool IsPerLayer(const TensorRow& row);
// Whether the role is in such a layer. Roles of no layer are in each.
bool IsInLayer(TensorRole role, const LayerSpec& layer);
// Whether each expert, or each query head, has such a weight.
bool IsPerExpert(TensorRole role);
bool IsPerHead(TensorRole role);
std::string NameInFile(const TensorRow& row, uint32_t layer, uint32_t expert = 0);
// The names of all tensors of the row: one of each layer that has such a part, or one of each of
// its experts.
std::vector<std::string> NamesInFile(const TensorRow& row, const ModelSpec& spec);
// The row's weight in a layer, and of an expert if each has one. NOT_FOUND: the file has no such
// tensor, and the message names it. The tensor must have the shape that CheckTensors wants.
absl::StatusOr<Tensor> FindWeight(const Checkpoint& checkpoint, const ModelSpec& spec,
                                  const TensorRow& row, uint32_t layer, uint32_t expert = 0);

// The same of a query head, as a matrix by itself.
absl::StatusOr<Tensor> FindHeadWeight(const Checkpoint& checkpoint, const ModelSpec& spec,
                                      const TensorRow& row, uint32_t layer, uint32_t head);

// The tensor that is the head: one of its own, or the table of token vectors.
TensorRole HeadRole(const ModelSpec& spec);

// The row of `role`; null if the model has no such tensor.
const TensorRow* FindRow(const ModelSpec& spec, TensorRole role);

// Checks that the file has every tensor of spec.tensors with its shape and a type that can be
// decoded, and no other. INVALID_ARGUMENT or UNIMPLEMENTED names the tensor.
absl::Status CheckTensors(const Checkpoint& checkpoint, const ModelSpec& spec);

}  // namespace flotilla::model
