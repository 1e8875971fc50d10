// LineRunner: answers the lines of a batch by the service of this process. It stands in for the
// HTTP server: requests come from a file instead of sockets, and answers go to files.
//
// All of it runs on one thread, which is the I/O thread that the handler lives on. It writes an
// answer as soon as it has it, so that the answer outlives the process, and syncs the files at most
// every 100 ms, so that it soon outlives the machine.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/rt/clock.h"
#include "router/batch/batch_core.h"
#include "router/batch/batch_line.h"
#include "router/files/answer_file.h"
#include "router/http/exchange.h"

namespace flotilla::router {

class LineRunner {
 public:
  struct Parts {
    HttpHandler* handler = nullptr;
    const Clock* clock = nullptr;
    BatchCore* core = nullptr;     // knows all lines, and where they are
    int input = -1;                // a file; its offset does not matter
    AnswerFile* output = nullptr;  // for answers with status 200
    AnswerFile* errors = nullptr;  // for the others; may be `output`
    std::string tenant = {};       // whose requests they are
    bool background = false;       // see HttpRequest
    // Until then 404 is no answer: the model may be one that this process has not met yet.
    std::int64_t models_due_ns = std::numeric_limits<std::int64_t>::min();
    // Called before lines are written, with their bytes. Its error is that of Step. May be empty.
    std::function<absl::Status(std::size_t bytes)> reserve = {};
    // Called when a reply has come, from within the handler: Step has something to do. May be
    // empty.
    std::function<void()> on_reply = {};
  };

  // All parts outlive the runner.
  explicit LineRunner(Parts parts);
  ~LineRunner();

  // Writes the answers that have come and starts lines, as the core says. Syncs the files if that
  // is due, and when the batch is over. Errors: an answer cannot be written, or the input has
  // changed; no further step is then made.
  absl::Status Step();
  // When Step is due although no reply comes, at most `rest_ns` from now.
  std::int64_t due_ns(std::int64_t now_ns, std::int64_t rest_ns) const;
  // Returns when all that was written is on the disk.
  absl::Status Sync();
  // Drops what is in flight. No line may start any more.
  void Drop();

 private:
  class Flight;  // a line that has started

  absl::Status StartLines();
  // Reads the line with this index.
  absl::StatusOr<BatchRequest> Read(std::size_t line);
  void Send(std::size_t line, Flight& flight);
  // Takes what has ended: writes answers, and gives refused lines back to the core.
  absl::Status TakeEnded();
  absl::Status Write(const std::string& output, const std::string& errors);

  const Parts parts_;
  std::unordered_map<std::size_t, std::unique_ptr<Flight>> flights_;  // by line
  std::vector<std::size_t> ended_;                                    // lines whose reply has come
  std::optional<std::int64_t> unsynced_ns_;  // since when answers wait for a sync
};

}  // namespace flotilla::router
