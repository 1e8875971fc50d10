// BatchRunner: runs a batch (router/files/line_runner.h) until it is over, or until a signal.
//
// All of it runs on the thread that calls Run, which is the I/O thread of the service.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "cli/signals.h"
#include "common/rt/clock.h"
#include "router/batch/batch_core.h"
#include "router/files/answer_file.h"
#include "router/files/line_runner.h"
#include "router/http/exchange.h"
#include "router/service.h"

namespace flotilla::cli {

class BatchRunner final : private router::Dispatcher {
 public:
  struct Parts {
    router::InferenceService* service = nullptr;
    const Clock* clock = nullptr;
    Signals* signals = nullptr;
    router::BatchCore* core = nullptr;  // knows all lines, and where they are
    int input = -1;                     // a file; its offset does not matter
    router::AnswerFile* output = nullptr;
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
  // Dispatcher. Any thread may call it.
  void Post(std::function<void()> work) override;

  void RunPosted();
  // Waits until there is something to do. False: the run ends at once.
  bool Wait();
  bool OnEvent(Signals::Event event);  // the same

  const Parts parts_;
  absl::Mutex mu_;
  std::deque<std::function<void()>> posted_ ABSL_GUARDED_BY(mu_);
  std::unique_ptr<router::IoLoop> io_loop_;
  std::unique_ptr<router::HttpHandler> handler_;
  router::LineRunner lines_;
  bool stopping_ = false;
};

}  // namespace flotilla::cli
