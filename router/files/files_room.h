// FilesRoom: all that the files thread owns: the files and batches of clients, and the batches that
// are being worked on. Everything here runs on that thread (router/files/files_service.h), reads
// and writes the disk, and takes milliseconds.
//
// A tenant's batches go one after another, and those of several tenants beside each other, oldest
// first. They share the requests in flight.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/obs/log.h"
#include "common/rt/clock.h"
#include "common/rt/unique_fd.h"
#include "router/batch/file_ledger.h"
#include "router/files/batch_work.h"
#include "router/files/file_store.h"
#include "router/files/metrics.h"
#include "router/http/exchange.h"

namespace flotilla::router {

// A file that a client sends. Its bytes are dropped with it unless it was added. The room outlives
// it.
class IncomingFile {
 public:
  IncomingFile(FileStore* store, std::string tenant, std::string id, UniqueFd fd,
               std::function<void()> on_gone)
      : store_(*store),
        tenant_(std::move(tenant)),
        id_(std::move(id)),
        fd_(std::move(fd)),
        on_gone_(std::move(on_gone)) {}
  ~IncomingFile();

  // RESOURCE_EXHAUSTED with kQuotaExceeded: the tenant has no room. INVALID_ARGUMENT: the file is
  // longer than files may be. UNAVAILABLE: the disk.
  absl::Status Write(std::string_view bytes);

 private:
  friend class FilesRoom;

  FileStore& store_;
  const std::string tenant_;
  const std::string id_;
  UniqueFd fd_;
  const std::function<void()> on_gone_;
  std::uint64_t bytes_ = 0;
  std::uint64_t unsynced_ = 0;
  bool added_ = false;
};

// The bytes of a file. They stay while it is open, even if the file is deleted.
struct FileContent {
  UniqueFd fd;
  std::uint64_t bytes = 0;
};

class FilesRoom {
 public:
  struct Parts {
    FileStore* store = nullptr;
    HttpHandler* handler = nullptr;  // answers the lines of batches
    const Clock* clock = nullptr;
    std::function<std::int64_t()> now_s;                         // Unix time
    std::function<std::string(std::string_view prefix)> new_id;  // unguessable, unique
    Logger* log = nullptr;
    FilesMetrics* metrics = nullptr;
    std::function<void()> on_reply;  // Step has something to do
    std::uint32_t concurrency = 1;   // requests of batches in flight
  };
  // Batches that are worked on at a time; BatchWork says what each takes.
  static constexpr std::size_t kMaxWorks = 8;
  // Uploads at a time, of one tenant that has a key, and of all.
  static constexpr std::size_t kTenantUploads = 4, kMaxUploads = 64;

  explicit FilesRoom(Parts parts);

  // Files. The errors are those of FileLedger and FileStore; tenants see only what is theirs.
  absl::StatusOr<std::unique_ptr<IncomingFile>> BeginFile(const std::string& tenant);
  // The file is on the disk when it returns. `life_s`: 0 means FileLimits::life_s.
  absl::StatusOr<StoredFile> AddFile(IncomingFile& file, std::string name, std::int64_t life_s);
  absl::StatusOr<StoredFile> GetFile(const std::string& tenant, std::string_view id) const;
  absl::StatusOr<LedgerPage<StoredFile>> ListFiles(const std::string& tenant,
                                                   const PageOrder& order) const;
  absl::Status RemoveFile(const std::string& tenant, std::string_view id);
  absl::StatusOr<FileContent> OpenFile(const std::string& tenant, std::string_view id) const;

  // Batches, with the counts of now.
  absl::StatusOr<StoredBatch> AddBatch(const std::string& tenant, BatchOrder order);
  absl::StatusOr<StoredBatch> GetBatch(const std::string& tenant, std::string_view id) const;
  absl::StatusOr<std::pair<std::vector<StoredBatch>, bool>> ListBatches(
      const std::string& tenant, const PageOrder& order) const;
  absl::StatusOr<StoredBatch> CancelBatch(const std::string& tenant, std::string_view id);

  // Goes on with the batches, and drops what is too old. Returns how long it has nothing to do, in
  // nanoseconds, unless a reply comes.
  std::int64_t Step();
  // Drops what batches have in flight, and starts nothing any more. What was answered is synced.
  void Stop();

 private:
  // Tells of syncs that failed, and repairs the journal from time to time if it is broken.
  void WatchDisk();
  absl::Status Commit(LedgerRecord record);
  // Starts to work on batches, as many as may be.
  void StartWorks();
  // Goes on with one. False: the batch is over.
  absl::StatusOr<bool> StepWork(BatchWork& work);
  absl::StatusOr<bool> EndWork(BatchWork& work, BatchStatus status);
  // The work failed. False: the batch is over. True: the work begins anew, later.
  bool Retry(BatchWork& work, const absl::Status& why);
  absl::Status Advance(const BatchWork& work, BatchStatus status);
  absl::Status CommitEnd(std::string_view id, BatchEnd end);
  void Count(const BatchWork& work);
  void ExpireOld();
  StoredBatch WithCounts(const StoredBatch& batch) const;

  const FileLedger& ledger() const { return parts_.store->ledger(); }

  const Parts parts_;
  const std::int64_t models_due_ns_;
  absl::flat_hash_map<std::string, std::size_t> uploads_;  // by tenant
  std::size_t all_uploads_ = 0;
  std::map<std::string, std::unique_ptr<BatchWork>> works_;  // by id
  absl::flat_hash_map<std::string, RequestCounts> counted_;  // what metrics know of each work
  absl::flat_hash_map<std::string, std::int64_t> retry_ns_;  // by id of a batch whose work failed
  absl::flat_hash_map<std::string, KeptAnswers> kept_;       // the same, until the batch is over
  std::int64_t expire_ns_ = 0;      // before then, nothing too old is dropped
  std::uint64_t failed_syncs_ = 0;  // of which the log has; some came before the room
  std::int64_t repair_ns_ = 0;      // before then, the journal is not repaired
  bool stopped_ = false;
};

}  // namespace flotilla::router
