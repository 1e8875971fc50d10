// Engine: the seam between a router and a scheduler, at token level.
//
// Implementations: in-process (scheduler/server), remote (gRPC), fake. All pass
// tests/contract. A router holds engines by pointer. The code that creates router and
// engines owns the engines, which outlive every request.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/types/event.h"
#include "common/types/request.h"

namespace flotilla {

// How closely two computations of the same request agree.
enum class Exactness : std::uint8_t {
  kBitwise,     // the same bits, whatever the batch
  kConsistent,  // last bits may differ (a GPU at full speed)
};

struct EngineDescription {
  std::string model_id;  // as clients name it
  std::uint32_t vocab_size = 0;
  std::uint32_t max_context = 0;     // prompt + output tokens of a request
  std::uint64_t tokenizer_hash = 0;  // content of tokenizer and chat template
  // A hash of weights, recipe, the recipe's version and KV type. Equal ids give bit-equal
  // answers, on every CPU and in every parallel layout.
  std::uint64_t numerics_id = 0;
  Exactness exactness = Exactness::kBitwise;
  std::uint32_t max_sequences = 0;     // of one request
  std::uint32_t max_queue_tokens = 0;  // admission limit

  bool operator==(const EngineDescription&) const = default;
};

// The tokenizer and template of a model, for a router that has no model file.
struct TokenizerContent {
  std::string model_id;    // the model's name for clients
  std::uint64_t hash = 0;  // EngineDescription::tokenizer_hash
  std::string content;     // bytes that model/ can read
};

struct EngineLoad {
  std::uint32_t running_requests = 0;
  std::uint32_t waiting_requests = 0;
  std::uint64_t outstanding_tokens = 0;  // prompt tokens to prefill + outputs expected
  std::uint32_t blocks_total = 0;        // without the null block
  std::uint32_t blocks_used = 0;
  bool ready = false;  // a worker group is up
  bool draining = false;

  bool operator==(const EngineLoad&) const = default;
};

// A receiver of the events of requests. One sink usually serves one I/O thread.
class EventSink {
 public:
  virtual ~EventSink() = default;
  // Receives all events of one step, in order, for the requests submitted with this sink.
  // The engine calls it on its own thread. It must not block and must not call back into
  // the engine.
  virtual void Post(std::vector<EngineEvent> events) = 0;
};

// Ends a sequence early. A stop string, a disconnect, an abort and a deadline in the
// router all lead to this one call.
struct CancelRequest {
  RequestId request;
  std::optional<SequenceIndex> sequence;  // none: all sequences
  // The number of the sequence's output tokens that count for usage.
  std::uint32_t keep_tokens = 0;
};

class Engine {
 public:
  virtual ~Engine() = default;

  // Describes what this engine serves. It is constant while the engine lives, except that
  // a new epoch may change numerics_id. Any thread may call it. UNAVAILABLE before the
  // first worker group is ready.
  virtual absl::StatusOr<EngineDescription> Describe() const = 0;

  // Hands a request over; never blocks. Its events go to `sink`, which the
  // engine keeps alive until the RequestEnd. A refusal is a RequestEnd without
  // Accepted: RESOURCE_EXHAUSTED with a retry hint (queue full), UNAVAILABLE
  // (draining), INVALID_ARGUMENT (this engine cannot serve it). A replay (attempt above 0)
  // is accepted even if queues are full or the engine drains. Any thread may call it.
  virtual void Submit(TokenizedRequest request, std::shared_ptr<EventSink> sink) = 0;

  // Cancels; unknown or ended requests are ignored. The blocks are free at the next plan.
  // SequenceEnd and RequestEnd still follow. Any thread may call it.
  virtual void Cancel(const CancelRequest& cancel) = 0;

  // Returns a recent snapshot, which is at most one step old. Any thread may call it.
  virtual EngineLoad Load() const = 0;

  // Returns the tokenizer and chat template as bytes that model/ can read, so that a
  // router needs no model file. Any thread may call it.
  virtual absl::StatusOr<std::string> TokenizerBytes() const = 0;

  // Refuses new requests from now on and calls `done` once, when the last
  // accepted one has ended. Any thread may call it.
  virtual void Drain(std::function<void()> done) = 0;
};

}  // namespace flotilla
