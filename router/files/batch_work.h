// BatchWork: one batch of a client while the files thread works on it. First its lines are read and
// checked, then what an earlier process has answered is read, both a slice at a time, and then the
// others are answered. The room (router/files/files_room.h) says when, and keeps the status.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "common/rt/clock.h"
#include "common/rt/unique_fd.h"
#include "router/batch/batch_core.h"
#include "router/batch/file_ledger.h"
#include "router/files/answer_file.h"
#include "router/files/file_store.h"
#include "router/files/line_reader.h"
#include "router/files/line_runner.h"

namespace flotilla::router {

// The most lines of a client's batch, as OpenAI's. A batch that is worked on takes some 100 bytes
// of memory for each, besides its custom_id.
inline constexpr std::size_t kMaxClientLines = 50'000;

// AnswerFile::kept of a batch's files.
struct KeptAnswers {
  std::uint64_t output = 0, errors = 0;
};

class BatchWork {
 public:
  struct Parts {
    FileStore* store = nullptr;
    HttpHandler* handler = nullptr;
    const Clock* clock = nullptr;
    std::function<void()> on_reply;  // this and the next: see LineRunner
    std::int64_t models_due_ns = 0;
  };
  enum class Phase {
    kReading,     // Read is to be called again
    kWrong,       // some line is wrong: errors() says which
    kRead,        // Begin is to be called, once the batch is in progress
    kRecovering,  // Recover is to be called again
    kAnswering,   // Step is to be called
  };

  // The store outlives it. `batch` is copied. `kept`: of an earlier work of this process.
  BatchWork(const Parts& parts, const StoredBatch& batch, const KeptAnswers& kept = {});
  ~BatchWork();

  const std::string& id() const { return batch_.id; }
  const std::string& tenant() const { return batch_.tenant; }
  Phase phase() const { return phase_; }

  // Reads and checks the next slice of the input. UNAVAILABLE: it cannot be read.
  absl::Status Read();
  const std::vector<BatchError>& errors() const { return errors_; }

  // Opens the files of answers. Errors: those of AnswerFile.
  absl::Status Begin();
  // Takes the next slice of what an earlier process, or an earlier work, has answered. Errors:
  // those of AnswerFile; those of BatchCore if the answers are not this batch's.
  absl::Status Recover();
  // Whether some of these were damaged, and do not count.
  bool damaged() const { return damaged_; }
  // At most so many lines are in flight from now on.
  void SetConcurrency(std::uint32_t lines) { core_.set_concurrency(lines); }
  // As LineRunner::Step. RESOURCE_EXHAUSTED with kQuotaExceeded: the tenant has no room for the
  // answers; those that were written before stay.
  absl::Status Step();
  std::int64_t due_ns(std::int64_t now_ns, std::int64_t rest_ns) const;
  bool complete() const { return core_.complete(); }
  // What it ends as once it is complete. FailTheRest may have written its last lines before, and
  // the record of its end was not kept.
  BatchStatus complete_status() const {
    return core_.counts().by_status.contains(0) ? BatchStatus::kExpired : BatchStatus::kCompleted;
  }

  // Drops what is in flight. No line starts any more.
  void Stop();
  // After Stop: writes for each line without an answer that its time was over.
  absl::Status FailTheRest();
  // Returns when all answers that count are on the disk. After an error all later calls fail, too;
  // a new work recovers the answers, and can sync them.
  absl::Status Sync();
  // Which answers a later work of this process need not write and sync again.
  KeptAnswers kept() const;

  RequestCounts counts() const;
  // What the batch has come to, once it was stopped or is complete, and was synced.
  BatchEnd End(BatchStatus status) const;

 private:
  absl::Status AddLine(const TextLine& line);
  void AddError(BatchError error) { errors_.push_back(std::move(error)); }
  void BeginAnswering();
  absl::Status Reserve(std::size_t bytes, bool within_quota);

  const Parts parts_;
  const StoredBatch batch_;
  const KeptAnswers kept_;  // when it began
  Phase phase_ = Phase::kReading;
  BatchCore core_;
  UniqueFd input_;
  std::optional<LineReader> reader_;
  std::uint64_t empty_ = 0;  // the first of some empty lines; 0: there is none
  std::vector<BatchError> errors_;
  std::optional<AnswerFile> output_, error_output_;
  bool output_recovered_ = false;  // the other file is next
  bool damaged_ = false;
  std::uint64_t reserved_ = 0;  // bytes of the tenant
  std::optional<LineRunner> runner_;
};

}  // namespace flotilla::router
