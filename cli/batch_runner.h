// BatchRunner: answers the lines of a batch by the service of this process. It stands in for the
// HTTP server: requests come from a file instead of sockets, and answers go to one.
//
// All of it runs on the thread that calls Run, which is the I/O thread of the service. It writes an
// answer to the file as soon as it has it, so that it outlives the process, and syncs the file at
// most every 100 ms, so that it soon outlives the machine.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "cli/answer_file.h"
#include "cli/line_reader.h"
#include "cli/signals.h"
#include "common/rt/clock.h"
#include "router/batch/batch_core.h"
#include "router/batch/batch_line.h"
#include "router/http/exchange.h"
#include "router/service.h"

namespace flotilla::cli {

class BatchRunner final : private router::Dispatcher {
 public:
  struct Parts {
    router::InferenceService* service = nullptr;
    const Clock* clock = nullptr;
    Signals* signals = nullptr;
    router::BatchCore* core = nullptr;  // knows all lines
    LineReader* input = nullptr;        // at the first line
    AnswerFile* output = nullptr;
    // Called when the counts may have changed, and after `progress_ns` at the latest.
    std::function<void()> on_progress;
    std::int64_t progress_ns = 0;
    // Called at the first request to stop. What is in flight still ends.
    std::function<void()> on_stopping;
  };

  // All parts outlive the runner.
  explicit BatchRunner(Parts parts);
  ~BatchRunner() override;

  // Runs until all lines are answered, or until a request to stop and the end of what was in flight
  // then. A second request to stop drops what is in flight. In the end all answers are synced.
  // Errors: the output cannot be written, or the input has changed.
  absl::Status Run();

 private:
  class Flight;  // a line that has started

  // Dispatcher. Any thread may call it.
  void Post(std::function<void()> work) override;

  void RunPosted();
  absl::Status StartLines();
  // Reads the line with this index.
  absl::StatusOr<router::BatchRequest> Read(std::size_t line);
  void Send(std::size_t line, Flight& flight);
  // Takes what has ended: writes answers, and gives refused lines back to the core.
  absl::Status TakeEnded();
  absl::Status SyncIfDue(bool now);
  // Waits until there is something to do. False: the run ends at once.
  bool Wait();
  bool OnEvent(Signals::Event event);  // the same

  const Parts parts_;
  absl::Mutex mu_;
  std::deque<std::function<void()>> posted_ ABSL_GUARDED_BY(mu_);
  std::unique_ptr<router::IoLoop> io_loop_;
  std::unique_ptr<router::HttpHandler> handler_;
  // By line: those in flight, and those that were refused and start again.
  std::unordered_map<std::size_t, std::unique_ptr<Flight>> flights_;
  std::vector<std::size_t> ended_;           // lines whose reply has come
  std::size_t read_ = 0;                     // lines read from the input
  std::optional<std::int64_t> unsynced_ns_;  // since when answers wait for a sync
  bool stopping_ = false;
};

}  // namespace flotilla::cli
