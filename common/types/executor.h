// StepExecutor: the seam between a scheduler and its worker group.
//
// Implementations: in-process and processes under mpirun (worker), remote (gRPC), fake.
// All pass tests/contract. The events of an epoch come in this order: Ready, then one
// Result per plan in step order, then at most one Lost. After Lost, all KV memory is gone
// and the next Ready has a higher epoch.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/types/engine.h"
#include "common/types/ids.h"
#include "common/types/plan.h"

namespace flotilla {

// A set of layers that keep K and V of the same positions.
struct KvGroup {
  enum class Kind : std::uint8_t {
    kFull,    // every position
    kWindow,  // those that the next row sees: its own and the window - 1 before it
    kState,   // one fixed record per sequence
  };
  Kind kind = Kind::kFull;
  std::uint32_t window = 0;            // kWindow only
  std::uint32_t tokens_per_block = 0;  // slots of a block
  std::uint64_t bytes_per_block = 0;   // on one rank

  // The leading blocks that a sequence of `length` positions needs no more, because its next row
  // and those after it see no position of them.
  constexpr std::uint32_t UnneededBlocks(std::uint32_t length) const {
    const bool keeps_all = kind != Kind::kWindow || length < window;
    return keeps_all ? 0 : (length + 1 - window) / tokens_per_block;
  }

  bool operator==(const KvGroup&) const = default;
};

// A place for KV blocks outside the pool, which is slower and larger. Its slots are
// numbered from 0.
struct KvTier {
  enum class Kind : std::uint8_t { kHost, kDisk };
  Kind kind = Kind::kHost;
  std::uint32_t block_count = 0;
  // The measured times to write a block to the tier and to read it back.
  std::int64_t out_ns_per_block = 0;
  std::int64_t in_ns_per_block = 0;

  bool operator==(const KvTier&) const = default;
};

struct ExecutorDescription {
  std::string model_id;
  std::uint32_t vocab_size = 0;
  std::uint32_t max_context = 0;
  std::uint64_t numerics_id = 0;
  Exactness exactness = Exactness::kBitwise;
  std::vector<KvGroup> groups;
  // Pages of the pool, block 0 (null) included.
  std::uint32_t block_count = 0;
  // K and V of some layers are encoded by runs of so many positions, from multiples of it on, which
  // are also blocks of every group. Until a run is full, the sequence has it apart from its blocks.
  // So a fork ends at a multiple of this, or in the run of its parent's last row; and draft tokens
  // end with the run of the row before them. 0: there are no runs.
  std::uint32_t run_tokens = 0;
  // Fastest first. Their content is lost with the epoch, as that of the pool is.
  std::vector<KvTier> tiers;
  // Handles are below this.
  std::uint32_t max_sequences = 0;
  // Upper bound of tokens in one plan.
  std::uint32_t max_step_tokens = 0;
  // Pipeline depth L: up to L + 1 plans may be unanswered.
  std::uint32_t lag = 1;
  // The most tokens that a decode can draft ahead (Speculate); 0: it never does.
  std::uint32_t max_draft_tokens = 0;
  // Measured at warm-up. They are integers, so that cores need no floating point.
  std::int64_t prefill_ns_per_token = 0;
  std::int64_t decode_ns_per_step = 0;

  bool operator==(const ExecutorDescription&) const = default;
};

struct Lost {
  Epoch epoch;
  enum class Cause : std::uint8_t {
    kDied,         // a member exited or was killed
    kStuck,        // heartbeat or step deadline missed
    kDigest,       // the two sides disagreed
    kInvalidPlan,  // an operation that the state does not allow
    kStopped,      // the worker was asked to stop, and has said so
  };
  Cause cause = Cause::kDied;
  std::string detail;
  // The steps that had started and not finished when the group was lost.
  std::vector<Step> started;
  // Whether a request of these steps may be what ended the group: a rank crashed, was killed for
  // its memory, or did not finish its step. False: the end came from outside, such as a signal that
  // somebody sent or an announced stop, or it says nothing about the requests.
  bool blames_requests = false;
  // kDigest and kInvalidPlan: the step whose plan was refused. None if no plan of the group's was,
  // as after EndEpoch.
  std::optional<Step> refused;

  bool operator==(const Lost&) const = default;
};

class ExecutorListener {
 public:
  virtual ~ExecutorListener() = default;
  // The executor calls these on its own threads, one at a time. They must not block.
  virtual void OnReady(Epoch epoch, const ExecutorDescription& description) = 0;
  virtual void OnResult(StepResult result) = 0;
  virtual void OnLost(const Lost& lost) = 0;
};

class StepExecutor {
 public:
  virtual ~StepExecutor() = default;

  // Brings up the first epoch and reports it by OnReady. It is called once. The listener
  // must live until the executor is stopped or destroyed. Fails when the group can never
  // come up (bad model file, not enough memory).
  virtual absl::Status Start(ExecutorListener* listener) = 0;

  // Queues a plan for execution; never blocks. FAILED_PRECONDITION: the plan is not for
  // the current epoch and is dropped; OnLost was or will be called. RESOURCE_EXHAUSTED:
  // more than lag + 1 plans would be unanswered. A plan that cannot be applied ends the
  // epoch by OnLost(kDigest or kInvalidPlan).
  virtual absl::Status Execute(StepPlan plan) = 0;

  // Ends `epoch` if it is the current one. A scheduler calls this when a result does not
  // answer its plan. OnLost(kDigest) follows, then a new epoch. Results that were on their
  // way may still come before OnLost. Never blocks.
  virtual void EndEpoch(Epoch epoch) = 0;

  // Ends all threads. No event comes after it returns. Idempotent.
  virtual void Stop() = 0;
};

}  // namespace flotilla
