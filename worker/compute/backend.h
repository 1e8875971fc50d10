// Backend: what computes. It owns a rank's weights, KV memory and activations, its threads or
// streams, and the partition of work. The decoder (decoder/) writes the model's graph once, over
// these operations; nobody above it sees an address of a backend's memory.
//
// Bits: an operation gives the bits of the steps of kernels/ops.h that its comment names, in their
// order, for each row by itself. A backend may fuse neighbouring operations, may hold rows, weights
// and K and V in any order, and may pad rows, as long as the bits are these.
//
// Time: between Start and Finish, operations may compute or only enqueue, and callers are right
// either way. They therefore take handles and constants of the model only, and return nothing. What
// varies by step is in StepInputs. An operation belongs to the step started last. Up to lag + 1
// steps may be started and not finished; Finish is about the oldest, and every step needs one, also
// one without rows.
//
// Errors come from the Finish of the step that failed, which still waits for the end of the step,
// and every later Finish fails too. A backend whose step fails aborts the exchange at once, so that
// no rank waits for this one; the owner makes another backend. After an abort of the exchange, by
// any rank, the outcome of a step means nothing, and Finish may say so or not: the owner asks the
// communicator.
//
// One thread at a time calls a backend. TakeRow, and what OnHost calls, may run at the same time,
// for different steps; neither may call the backend. A backend that is destroyed drops what has not
// begun, and waits for what runs; exchange and receivers must live until then.
//
// Implementations: CpuBackend (cpu/), and one in tests/support that shares only the reference
// kernels with it, and the values that these read.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/rt/available_memory.h"
#include "common/rt/clock.h"
#include "common/rt/load_progress.h"
#include "common/types/executor.h"
#include "common/types/ids.h"
#include "kernels/ops.h"
#include "model/page_releaser.h"
#include "model/spec.h"
#include "model/tensor.h"
#include "worker/comm/communicator.h"
#include "worker/comm/exchange.h"
#include "worker/compute/block_count.h"
#include "worker/compute/kv_shape.h"
#include "worker/compute/recipe.h"
#include "worker/compute/row_partials.h"
#include "worker/compute/step_inputs.h"
#include "worker/core/sharding.h"

namespace flotilla::worker {

// Names of what a backend owns; a backend gives them out and nobody else can read them. A handle
// that was never given out is not `valid`.
template <class Tag>
class BackendHandle {
 public:
  constexpr BackendHandle() = default;
  constexpr explicit BackendHandle(std::int32_t index) : index_(index) {}
  constexpr bool valid() const { return index_ >= 0; }
  constexpr std::int32_t index() const { return index_; }

 private:
  std::int32_t index_ = -1;
};
using BufferHandle = BackendHandle<struct BufferTag>;          // activations, a row per token
using VectorHandle = BackendHandle<struct VectorTag>;          // a norm's weight
using RopeHandle = BackendHandle<struct RopeTag>;              // cosines and sines
using EmbeddingHandle = BackendHandle<struct EmbeddingTag>;    // the table of token vectors
using MatrixHandle = BackendHandle<struct MatrixTag>;          // weights with whole sums
using ProjectionHandle = BackendHandle<struct ProjectionTag>;  // weights whose sums ranks share
using ExpertsHandle = BackendHandle<struct ExpertsTag>;        // weights of a mixture of experts
using HeadMatricesHandle = BackendHandle<struct HeadMatricesTag>;  // one for each query head
using HeadHandle = BackendHandle<struct HeadTag>;                  // weights of the logits

// Rows of a tensor of the model file, which are outputs of a product. Tensors outlive Load.
struct MatrixPart {
  const model::Tensor* tensor = nullptr;
  IndexRange rows;  // in the canonical order
  model::RowMap map;
  bool transposed = false;  // the tensor has its outputs along the contiguous axis
  // Outputs that the part has in the matrix, those behind its rows being zero; 0: as many as rows.
  std::uint32_t outputs = 0;
  // Whether the matrix follows the checkpoint's activations (Recipe::kFast). The backend says it.
  bool fast = false;

  std::uint32_t count() const { return outputs == 0 ? rows.size() : outputs; }
  // That of the panels that are read of it.
  WeightEncoding encoding() const {
    if (transposed) return model::TransposedEncodingOf(*tensor);
    return fast ? model::FastEncodingOf(*tensor) : model::EncodingOf(*tensor);
  }
};

// A row-parallel product, whose sums over K are cut into splits. Rows of its activations are laid
// out as worker/core/split_layout.h says; a rank has those of its own splits, and what no split
// owns is zero.
struct ProjectionSource {
  const model::Tensor* tensor = nullptr;
  bool transposed = false;               // as MatrixPart::transposed
  std::vector<std::int32_t> split_ends;  // of the whole model, ascending
  std::vector<IndexRange> splits;        // of each rank of the stage
  std::vector<float> bias;               // [outputs], added to the sums; empty: none
};

// A mixture of experts, with what this rank has of each expert.
struct ExpertsSource {
  struct Expert {
    std::vector<MatrixPart> gate_up;  // as for AddMatrix, and so is the bias
    std::vector<float> bias;
    ProjectionSource down;  // the splits are the same for all experts
  };
  model::MoeSpec spec;
  MatrixPart router;                        // an output for each expert
  std::vector<float> router_bias;           // [experts]; empty: none
  std::vector<float> choice_bias;           // [experts], ChooseExpertsArgs::bias; empty: none
  std::optional<MatrixPart> shared_router;  // one output
  std::vector<Expert> experts;
};

// The table of token vectors, and what else makes the first residual.
struct EmbeddingSource {
  const model::Tensor* table = nullptr;
  float factor = 1;  // of the token's vector
  // Vectors of positions, which are added then: that of position p is row p + offset. Null: none.
  const model::Tensor* positions = nullptr;
  std::uint32_t position_offset = 0;
};

// The head: the rows of this rank's shard of the vocabulary.
struct HeadSource {
  MatrixPart part;              // may have no rows
  VocabularyShard shard;        // the same entries
  std::int64_t vocabulary = 0;  // the entries of a row of logits
  std::vector<float> bias;      // [rows of the part]; empty: none
  float factor = 1;             // of the logits
  float softcap = 0;            // after the factor; 0: none
};

// A norm of rows (rms_norm or layer_norm).
struct NormOp {
  model::NormSpec spec;
  VectorHandle weight;
  VectorHandle bias;  // not valid: none
};

// What an FFN does between its products.
struct FfnOp {
  Activation activation = Activation::kSilu;
  bool gated = true;
};

// How latent attention makes the q and k that AttentionOp wants (model::LatentSpec). The rank of
// the latent is the number of outputs of a head's matrix, and `nope` the number of its inputs.
struct LatentOp {
  HeadMatricesHandle keys;
  NormOp norm;
  int rope_dim = 0;
};

// One attention. A row of q, k and v has `projected_heads` heads of q, `projected_kv_heads` of k,
// and then `kv_heads` of v, or none where V is a prefix of K. This rank attends with `heads` of the
// q, from first_head on, and keeps `kv_heads` of the k; more are there only for the norm over all
// of them.
struct AttentionOp {
  int layer = 0;  // its number in the stage, as in KvShape
  GroupIndex group{0};
  int heads = 0;     // query heads of this rank
  int kv_heads = 0;  // of this rank
  int projected_heads = 0, projected_kv_heads = 0;
  int first_head = 0, first_kv_head = 0;
  // Of a head of q and k, and of one of v. Those that a model does not have are zero.
  kernels::KvDims dims;
  int head_dim = 0;           // those of q and k that it has, which their norms are of
  int result_dim = 0;         // those of v that it has, which are written
  int rope_at = 0;            // the first element of a head that is rotated
  model::KvScales kv_scales;  // of K and V in a cache of FP8; 0: each token has its own
  float scale = 0;            // of the scores
  int window = 0;             // as in kernels::AttentionArgs, and so are softcap, slopes and sinks
  float softcap = 0;
  VectorHandle slopes, sinks;  // [heads]; not valid: none
  RopeHandle rope;             // not valid: q and k are not rotated
  // The norms of q and k, before RoPE.
  model::HeadNorms head_norms = model::HeadNorms::kNone;
  NormOp query_norm, key_norm;
  // Where the result of each head begins in a row of the output.
  std::vector<std::int32_t> head_places;
};

// Tiers below the KV memory.
struct TierOptions {
  std::uint32_t host_blocks = 0;  // 0: no such tier
  std::uint32_t disk_blocks = 0;
  std::string disk_directory;  // where the file is made; empty: /tmp
};

// Takes the whole rows of a step (RowRequest::full_row).
class RowReceiver {
 public:
  virtual ~RowReceiver() = default;
  // Called once per row that this rank gets, between Start and the end of Finish, on any of the
  // backend's host threads, several at a time. `request` is the index into StepInputs::requests;
  // `logits` [vocabulary] are valid during the call.
  virtual void TakeRow(int request, absl::Span<const float> logits) = 0;
};

class Backend {
 public:
  // Rows of logits that exist at a time. This bounds their memory (12 MiB for 96 Ki tokens), and a
  // batch of 32 decodes still reads the head once.
  static constexpr int kLogitRows = 32;

  virtual ~Backend() = default;

  // ---- Loading. Everything is added once, before the first step.

  // UNIMPLEMENTED: the backend cannot compute such a model; the message says why.
  virtual absl::Status Check(const model::ModelSpec& spec) const = 0;

  // A buffer of `width` floats for each row of a step. Operations take the sizes of rows from the
  // widths of buffers.
  virtual BufferHandle AddBuffer(std::int64_t width) = 0;
  virtual VectorHandle AddVector(std::vector<float> values) = 0;
  // Rotations of twice as many elements of a head: pair i turns by position * frequencies[i], and
  // cosine and sine are multiplied by the magnitude.
  virtual RopeHandle AddRope(const model::RopeSpec& rope) = 0;
  // Rows of the tables are read where the file has them.
  virtual EmbeddingHandle AddEmbedding(const EmbeddingSource& source) = 0;
  // Adds weights, which Load reads from the file. The outputs of the parts follow each other, and
  // each gets its element of the bias, unless that is empty. Parts of different formats are each
  // multiplied as theirs wants it, by the same activations, which are quantised for each that wants
  // them so. INVALID_ARGUMENT: the sizes do not fit;
  // RESOURCE_EXHAUSTED: not enough memory.
  virtual absl::StatusOr<MatrixHandle> AddMatrix(std::vector<MatrixPart> parts,
                                                 std::vector<float> bias) = 0;
  // Adds the matrices of this rank's query heads, which have the same sizes. The inputs of a matrix
  // are filled up to a multiple of 32, and the activations there are zero.
  virtual absl::StatusOr<HeadMatricesHandle> AddHeadMatrices(std::vector<MatrixPart> parts) = 0;
  virtual absl::StatusOr<ProjectionHandle> AddProjection(const ProjectionSource& source) = 0;
  virtual absl::StatusOr<ExpertsHandle> AddExperts(const ExpertsSource& source) = 0;
  virtual absl::StatusOr<HeadHandle> AddHead(const HeadSource& source) = 0;
  // Says what RopeAndStore and Attend will be asked, to a backend that needs memory for it.
  virtual void AddAttention(const AttentionOp& /*attention*/) {}
  // Reads all weights that were added. The file is not needed afterwards but for embeddings. An
  // error names the tensor.
  virtual absl::Status Load() = 0;

  // ---- KV memory: blocks of 16 or 64 tokens of all heads of this rank, for the layers of one KV
  // group. Those of 64 go with layers whose K or V is kept by runs (worker/compute/open_runs.h).

  // Names the memory that blocks will lie in, so that ranks know who shares it.
  virtual std::string memory_id() const { return ""; }
  // The number of blocks of shape `own`, the null block included, when the operator names none.
  // The sharers of `needs` have memory of this rank's memory_id, and all have loaded. The ranks
  // take the lowest number of all.
  virtual BlockChoice DefaultBlockCount(const KvShape& own, const BlockNeeds& needs) const = 0;
  // Makes the memory and the tiers, once, after Load. K and V behind the last position that was
  // written mean nothing. RESOURCE_EXHAUSTED: not enough of either; UNAVAILABLE: no file
  // can be made in the directory; UNIMPLEMENTED: the backend has no such layers.
  virtual absl::Status CreateKv(const KvShape& shape, std::uint32_t blocks,
                                const TierOptions& tiers) = 0;
  // The tiers that exist, with the times that were measured.
  virtual const std::vector<KvTier>& tiers() const = 0;
  // Returns the ids of background copies that have ended since the last call, ascending. With
  // `wait` it first waits until one has ended, unless none is under way; without it, it waits for
  // nothing. Copies run in the order of StepInputs, after all reads and writes of earlier steps;
  // those of a step that has not begun are under way, too. UNAVAILABLE: a tier failed, and nothing
  // that tiers keep can be relied on.
  virtual absl::StatusOr<std::vector<std::uint64_t>> TakeCopiesDone(bool wait) = 0;
  // Forgets all background copies, and returns when none runs.
  virtual void ForgetCopies() = 0;

  // ---- A step: Start, operations in order, Finish.

  // `receiver` outlives the step; null: there are no full rows. Without rows no operation may
  // follow.
  virtual void Start(StepInputs inputs, RowReceiver* receiver) = 0;

  // out = the first residual of the step's tokens, in fp32: their vectors * the factor (scale),
  // plus those of their positions (add).
  virtual void Embed(EmbeddingHandle table, BufferHandle out) = 0;
  // x = what the stage before sent. SendResidual gives x to the next stage.
  virtual void ReceiveResidual(BufferHandle x) = 0;
  virtual void SendResidual(BufferHandle x) = 0;

  // x = norm(x).
  virtual void NormInPlace(BufferHandle x, const NormOp& norm) = 0;
  // out = norm(x), in the form that the next product multiplies (quantize_rows, where
  // the recipe and the matrix want it), and filled up with zeros to a multiple of 32, for which
  // `out` has room. Only a Multiply or GateUp by `next` may read `out`, before
  // the next Norm, AddProjection, Project or Head. `out` is not `x`.
  virtual void Norm(BufferHandle x, const NormOp& norm, MatrixHandle next, BufferHandle out) = 0;
  // The same without a norm: out = x.
  virtual void Prepare(BufferHandle x, MatrixHandle next, BufferHandle out) = 0;
  // out = x * matrix (matmul_i16, matmul_i8 or matmul_f32), plus its bias (add); x comes from Norm
  // or Prepare.
  virtual void Multiply(BufferHandle x, MatrixHandle matrix, BufferHandle out) = 0;
  // out = activate(x * gate, x * up), each with its bias as in Multiply. The matrix has gate's
  // outputs, then up's, or without a gate only these; out has room for all of them, and begins
  // with the result.
  virtual void GateUp(BufferHandle x, MatrixHandle gate_up, const FfnOp& ffn, BufferHandle out) = 0;
  // residual += x * projection, += bias: each rank's part is quantised by the splits and multiplied
  // by the rank's own weights; the partial sums of all ranks are added in the tree of splits.
  virtual void AddProjection(BufferHandle x, ProjectionHandle projection,
                             BufferHandle residual) = 0;
  // out = x * projection, and then += bias: the sums of AddProjection by themselves.
  virtual void Project(BufferHandle x, ProjectionHandle projection, BufferHandle out) = 0;
  // ---- A mixture of experts: RouteRows, then GateUpExperts, and at last AddMixture or Mix.
  // Between them nothing may be routed. The results of a row do not depend on who else has its
  // experts.

  // out = norm(x), or x where there is no norm. Each row's logits are out * router (matmul_f32),
  // plus its bias (add), and choose_experts names its experts. `out` is not `x`.
  virtual void RouteRows(BufferHandle x, const std::optional<NormOp>& norm, ExpertsHandle experts,
                         BufferHandle out) = 0;
  // out = activate(x * gate, x * up) of each of the row's experts, as in GateUp; x is what
  // RouteRows made. `out` has room for the outputs of as many experts as a row goes through; only
  // AddMixture and Mix may read it.
  virtual void GateUpExperts(BufferHandle x, ExpertsHandle experts, const FfnOp& ffn,
                             BufferHandle out) = 0;
  // residual += the mixture: in each split of the down products the row's experts follow each
  // other by ascending id, sum = fma(weight, partial, sum) from 0 on; then the sums of all ranks
  // are added in the tree of splits. Then for each expert, in the same order, residual =
  // fma(weight, its bias, residual), if there are biases.
  virtual void AddMixture(BufferHandle x, ExpertsHandle experts, BufferHandle residual) = 0;
  // out = the sums of AddMixture by themselves.
  virtual void Mix(BufferHandle x, ExpertsHandle experts, BufferHandle out) = 0;
  // x *= 1 / (1 + Exp(-logit)): the row's logit is the product of what RouteRows made with the
  // shared router (matmul_f32).
  virtual void ScaleShared(ExpertsHandle experts, BufferHandle x) = 0;

  // residual = fma(factor, x, residual).
  virtual void AddScaled(BufferHandle x, float factor, BufferHandle residual) = 0;

  // ---- Latent attention: Absorb, RopeAndStore, Attend, and then MultiplyHeads.

  // qkv = for each head [its query without the rotated part * its matrix, the rotated part], then
  // [norm(latent), its rotated part]. A query is as many floats as its matrix has inputs, and then
  // rope_dim; `latent` has the latent, and then rope_dim. The product is that of MultiplyHeads.
  virtual void Absorb(const LatentOp& latent_op, BufferHandle queries, BufferHandle latent,
                      BufferHandle qkv) = 0;
  // out = x of each head * its matrix (matmul_i16 or matmul_f32, x quantised by head), at the
  // head's place, and zeros elsewhere. The heads of x follow each other.
  virtual void MultiplyHeads(BufferHandle x, HeadMatricesHandle matrices,
                             const std::vector<std::int32_t>& places, BufferHandle out) = 0;

  // qkv has q, k and v of each row. Norms q and k if the part does, rotates them (rope), and
  // writes k and v to the KV memory (kv_write; then kv_seal of the runs that they fill).
  virtual void RopeAndStore(const AttentionOp& attention, BufferHandle qkv) = 0;
  // out = paged_attention of q at the places of the heads, and zeros elsewhere. All K and V of the
  // step are written before any are read.
  virtual void Attend(const AttentionOp& attention, BufferHandle qkv, BufferHandle out) = 0;

  // The logits of the requested rows: norm(x) * head (+ bias, * factor, softcap), in tiles of
  // kLogitRows requests. Reduces each row to a RowPartial; a full row goes to the receiver of one
  // rank of the stage (rank number request % tensor_ranks), or to those of all. Ranks share a tile
  // if it has a full row. Head or SendResidual is the last operation of a step.
  virtual void Head(BufferHandle x, const NormOp& norm, HeadHandle head) = 0;

  // Waits for the oldest step that is not finished, and returns a partial for each of its requests;
  // those of full rows are empty.
  virtual absl::StatusOr<std::vector<RowPartial>> Finish() = 0;

  // ---- The host's side.

  // Calls fn(i) once for every i below `count` on the backend's host threads, several at a time,
  // and returns when all calls have.
  virtual void OnHost(std::int64_t count, absl::FunctionRef<void(std::int64_t)> fn) = 0;

  virtual std::int64_t weight_bytes() const = 0;  // of all matrices
  virtual std::int64_t buffer_bytes() const = 0;  // of all activations
};

struct BackendOptions {
  Recipe recipe = Recipe::kAccurate;
  kernels::Isa isa = kernels::Isa::kReference;  // of the host's kernels; must be supported
  int threads = 1;                              // of the host, the caller's included
  int max_rows = 0;                             // of one step
  int max_positions = 0;                        // of one sequence
  int max_sequences = 1;                        // handles of sequences are below
  int max_steps = 2;                            // started and not finished, at a time
  const Clock* clock = nullptr;                 // outlives the backend
  // With several ranks in the stage, or several stages: how this rank exchanges activations. Null:
  // there is one rank.
  Exchange* exchange = nullptr;
  // The communicator of the group, for a backend that makes an exchange of its own; null with one
  // rank.
  Communicator* communicator = nullptr;
  std::uint32_t tensor_ranks = 1;  // of the stage
  std::uint32_t tensor_rank = 0;
  // Load says here how much it has read, and other calls that they get further. Outlives the
  // backend; null: nobody wants to know.
  LoadProgress* progress = nullptr;
  // Load says here what it has read of the file, likewise.
  model::PageReleaser* pages = nullptr;
  // The memory that a backend of CPUs may take; null: that of the kernel's files.
  std::function<AvailableMemory()> available_memory;
};

using BackendMaker = std::function<std::unique_ptr<Backend>(const BackendOptions&)>;

}  // namespace flotilla::worker
