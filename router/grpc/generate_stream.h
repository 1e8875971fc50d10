// GenerateStream: one Generate call, from the first byte to the last.
//
// It connects two sides that both call back: gRPC (on the poller's thread; each callback
// only posts to the I/O loop) and the generation (on the I/O loop). All state belongs to the
// I/O loop's thread. It owns itself: it is created when the call arrives, and deleted after
// gRPC's OnDone.
//
// One write is in flight; the rest waits in the outbox. A client that leaves more
// than the cap unread for as long as the stall timeout is cut off, and sooner when all calls
// together hold too much. The client's
// cancel, its deadline, a lost connection and a stalled client all arrive as
// gRPC's OnCancel and become one cancel of the generation.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "common/rt/steady_now.h"
#include "flotilla/v1/inference.grpc.pb.h"
#include "grpcpp/grpcpp.h"
#include "router/grpc/codec.h"
#include "router/grpc/io_thread.h"
#include "router/grpc/outbox.h"
#include "router/grpc/readable.h"
#include "router/grpc/unread_output.h"
#include "router/key_gate.h"
#include "router/service.h"
#include "rpc/writer.h"

namespace flotilla::router {

class GenerateStream final
    : private rpc::ServerWriter<Readable<v1::GenerateRequest>, v1::GenerateResponse>,
      private GenerationListener {
 public:
  using Call = ServerWriter::Call;

  // The state that all calls of a server share. It outlives them.
  struct Shared {
    InferenceService* service = nullptr;
    IoThread* thread = nullptr;
    IoLoop* io_loop = nullptr;
    std::string tenant_metadata;  // GrpcOptions
    KeyGate* gate = nullptr;      // the same
    std::size_t buffer_bytes = 0;
    absl::Duration stall_timeout;
    UnreadOutput* unread = nullptr;
  };

  // Called on the poller's thread. `generate` is the request, or why it is refused at once.
  GenerateStream(std::unique_ptr<Call> call, const Shared& shared,
                 absl::StatusOr<ApiRequest> generate);
  // Called on the I/O loop.
  ~GenerateStream() override;

 private:
  // gRPC calls these on the poller's thread.
  void OnWriteDone(bool ok) override;
  void OnCancel() override;
  void OnDone() override;

  // The generation calls these on the I/O loop.
  void OnPrompt(const PromptInfo& prompt) override;
  void OnAccepted() override;
  void OnPromptScores(PromptScores scores) override;
  void OnDelta(Delta delta) override;
  void OnChoiceEnd(const ChoiceEnd& end) override;
  void OnDone(const GenerationEnd& end) override;

  // The rest is called on the I/O loop.
  void Begin(absl::StatusOr<ApiRequest> call);
  // Cancels the generation and drops the waiting messages, because the client is gone.
  void Abandon();
  // Writes after the current batch of work, so that all news of an engine step
  // makes one message.
  void ScheduleFlush();
  // Starts the next write, or finishes the call when nothing is left to write.
  void Flush();
  // Starts or stops the stall timer when the unread bytes rise above or fall below the cap.
  void WatchStall();
  // Tells how much is held for the client, unless it is little.
  void CountUnread();

  const Shared& shared_;
  const absl::Time begun_ = absl::Now();
  const bool return_token_ids_;
  Outbox outbox_;
  std::unique_ptr<Generation> generation_;  // while it may call back
  v1::Accepted accepted_;                   // filled before it is sent
  bool missed_deadline_ = false;            // a choice ended by its deadline

  std::size_t in_flight_bytes_ = 0;  // of what is being written
  bool writing_ = false;
  bool flush_scheduled_ = false;
  std::optional<grpc::Status> final_status_;  // no more news; not finished yet
  bool finished_ = false;                     // gRPC has the status
  std::optional<IoThread::Timer> stall_timer_;
  absl::Time taken_ = SteadyNow();  // when the client last took a message
  bool cut_ = false;                // it is being cut off, for holding too much
};

}  // namespace flotilla::router
