// FileLedger: the files and batches that a router keeps for its clients: which there are, what a
// client may add, and which status follows which. Pure: times come as values, and the owner reads
// and writes.
//
// Each change is a LedgerRecord. The methods that make one change nothing: the owner first writes
// the record where it outlives the process (router/batch/file_journal.h), and then applies it.
//
//   absl::StatusOr<LedgerRecord> record = ledger.AddFile(std::move(file), now_s);
//   if (record.ok() && journal.Append(*record).ok()) ledger.Apply(*std::move(record));
//
// The same records in the same order always make the same ledger.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace flotilla::router {

// All times are Unix times in seconds; 0: none.
struct StoredFile {
  std::string id;
  std::uint64_t number = 0;  // files and batches are numbered in the order in which they came
  std::string tenant;
  std::string name;     // as the client calls it; never a path
  std::string purpose;  // "batch", or "batch_output" of what a batch has made
  std::uint64_t bytes = 0;
  std::int64_t created_s = 0;
  std::int64_t expires_s = 0;

  bool operator==(const StoredFile&) const = default;
};

enum class BatchStatus : std::uint8_t {
  kValidating,  // its lines are still to be read
  kFailed,
  kInProgress,
  kFinalizing,
  kCompleted,
  kExpired,
  kCancelling,
  kCancelled,
};
inline constexpr std::size_t kBatchStatuses = 8;

// The name that clients see.
std::string_view NameOf(BatchStatus status);
std::optional<BatchStatus> BatchStatusNamed(std::string_view name);
// No other status follows.
bool IsOver(BatchStatus status);
// Whether a batch goes from one status to the other.
bool Follows(BatchStatus before, BatchStatus after);

// Why a batch failed.
struct BatchError {
  std::string code;
  std::string message;
  std::string param;       // the field at fault; may be empty
  std::uint64_t line = 0;  // of the input, from 1 on; 0: none

  bool operator==(const BatchError&) const = default;
};

// What a client orders.
struct BatchOrder {
  std::string input_file_id;
  std::string endpoint;            // the `url` of all its lines
  std::string completion_window;   // as the client wrote it
  std::int64_t window_s = 0;       // the same
  std::string metadata;            // JSON, an object or null
  std::int64_t output_life_s = 0;  // of its output files; 0: FileLimits::life_s

  bool operator==(const BatchOrder&) const = default;
};

struct RequestCounts {
  std::uint64_t total = 0, completed = 0, failed = 0;

  bool operator==(const RequestCounts&) const = default;
};

struct StoredBatch {
  std::string id;
  std::uint64_t number = 0;
  std::string tenant;
  BatchOrder order;
  BatchStatus status = BatchStatus::kValidating;
  std::array<std::int64_t, kBatchStatuses> since_s = {};  // when it came to each status
  std::int64_t expires_s = 0;                             // the end of its window
  std::string output_id, error_id;                        // the files that its answers go to
  bool has_output = false, has_errors = false;  // they are the client's: some line is in them
  RequestCounts counts;                         // once it is over
  std::vector<BatchError> errors;

  std::int64_t created_s() const { return since_s[0]; }
  bool operator==(const StoredBatch&) const = default;
};

struct LedgerRecord {
  std::vector<StoredFile> files;     // new ones
  std::optional<StoredBatch> batch;  // new, or in another status
  std::vector<std::string> removed;  // ids of files and batches

  bool operator==(const LedgerRecord&) const = default;
};

struct FileLimits {
  std::uint64_t file_bytes = std::uint64_t{200} << 20;  // OpenAI's, of a batch's input
  // Of one tenant: bytes of files, of uploads, and of what its batches have written; files; and
  // batches, of which the oldest that are over are forgotten.
  std::uint64_t tenant_bytes = std::uint64_t{1} << 30;
  std::uint64_t tenant_files = 1000;
  std::uint64_t tenant_batches = 1000;
  // Files and batches of all tenants. Each takes about a kilobyte of memory, a batch with all
  // metadata that is allowed ten.
  std::uint64_t entries = 50'000;
  std::int64_t life_s = 30 * 86'400;  // of files and of batches that are over
};

// What a batch has come to.
struct BatchEnd {
  BatchStatus status = BatchStatus::kCompleted;
  RequestCounts counts;
  std::uint64_t output_bytes = 0, error_bytes = 0;
  std::vector<BatchError> errors;
};

// A part of a list, and whether there is more of it.
template <class Entry>
struct LedgerPage {
  std::vector<const Entry*> entries;
  bool has_more = false;
};

struct PageOrder {
  std::size_t limit = 20;
  std::string after;  // the id before the page; empty: the page is the first
  bool newest_first = true;
  std::string purpose;  // files only; empty: any
};

class FileLedger {
 public:
  explicit FileLedger(FileLimits limits) : limits_(limits) {}

  // Takes a record that this class made, maybe in an earlier process. DATA_LOSS: the record does
  // not fit what is there, and nothing has changed.
  absl::Status Apply(LedgerRecord record);
  // What Apply would return.
  absl::Status Check(const LedgerRecord& record) const;
  // Records that make a ledger equal to this one.
  std::vector<LedgerRecord> Snapshot() const;

  // Counts `bytes` more of what a tenant is writing, until they are released: once they are a
  // file, or are dropped.
  // RESOURCE_EXHAUSTED with kQuotaExceeded: it has no room for them.
  absl::Status Reserve(const std::string& tenant, std::uint64_t bytes);
  // The same for bytes that are there already, so they count whatever the quota.
  void Hold(const std::string& tenant, std::uint64_t bytes);
  void Release(const std::string& tenant, std::uint64_t bytes);
  // Whether the tenant may have one more file. RESOURCE_EXHAUSTED: as above.
  absl::Status CheckRoomForFile(const std::string& tenant) const;

  // A file that is written. Its number and, unless it is set, its expiry are filled in.
  // RESOURCE_EXHAUSTED: as above.
  absl::StatusOr<LedgerRecord> AddFile(StoredFile file) const;
  // NOT_FOUND: the tenant has no such file. FAILED_PRECONDITION: a batch still reads it.
  absl::StatusOr<LedgerRecord> RemoveFile(const std::string& tenant, std::string_view id,
                                          std::int64_t now_s) const;
  // A batch with these ids, which are new. NOT_FOUND: there is no such input file;
  // INVALID_ARGUMENT: it has another purpose. RESOURCE_EXHAUSTED: as above.
  absl::StatusOr<LedgerRecord> AddBatch(const std::string& tenant, BatchOrder order, std::string id,
                                        std::string output_id, std::string error_id,
                                        std::int64_t now_s) const;
  // The batch becomes kCancelling; no record: it is so already. NOT_FOUND; FAILED_PRECONDITION: it
  // is over, or about to be.
  absl::StatusOr<std::optional<LedgerRecord>> Cancel(const std::string& tenant, std::string_view id,
                                                     std::int64_t now_s) const;
  // The batch, which exists, comes to a status that follows its own.
  LedgerRecord Advance(std::string_view id, BatchStatus status, std::int64_t now_s) const;
  // The same for a status that ends it. What it has written becomes files.
  LedgerRecord End(std::string_view id, BatchEnd end, std::int64_t now_s) const;
  // What goes because its time is over. No record: nothing does.
  std::optional<LedgerRecord> Expire(std::int64_t now_s) const;
  // When Expire next has something. None: never, as things are.
  std::optional<std::int64_t> next_expiry_s() const;

  // Null: the tenant has no such file, or its time is over. The pointers stay until the next Apply.
  const StoredFile* FindFile(const std::string& tenant, std::string_view id,
                             std::int64_t now_s) const;
  const StoredBatch* FindBatch(const std::string& tenant, std::string_view id) const;
  const StoredBatch* FindBatch(std::string_view id) const;
  // NOT_FOUND: the tenant has nothing that is called PageOrder::after.
  absl::StatusOr<LedgerPage<StoredFile>> Files(const std::string& tenant, const PageOrder& order,
                                               std::int64_t now_s) const;
  absl::StatusOr<LedgerPage<StoredBatch>> Batches(const std::string& tenant,
                                                  const PageOrder& order) const;
  // Batches that are not over, oldest first.
  std::vector<const StoredBatch*> Open() const;
  // Whether data of this id is to be kept: of a file, or of a batch that is not over.
  bool Needs(std::string_view id) const;

  std::uint64_t UsedBytes(const std::string& tenant) const;
  std::size_t file_count() const { return files_.size(); }
  std::uint64_t file_bytes() const { return file_bytes_; }
  const FileLimits& limits() const { return limits_; }

 private:
  struct Tenant {
    std::set<std::uint64_t> files, batches;  // their numbers
    std::uint64_t bytes = 0;                 // of files
    std::uint64_t reserved = 0;
    bool empty() const { return files.empty() && batches.empty() && reserved == 0; }
  };

  std::uint64_t NumberOf(std::string_view id) const;  // 0: there is none
  const Tenant* TenantOf(const std::string& name) const;
  bool Reads(const std::string& file_id) const;
  // When the batch is forgotten, or the file; 0: not as things are.
  std::int64_t ExpiryOf(const StoredBatch& batch) const;
  std::int64_t ExpiryOf(const StoredFile& file) const;
  void Put(StoredFile file);
  void Put(StoredBatch batch);
  void Remove(std::string_view id);
  void DropIfEmpty(const std::string& tenant);
  // Notes when the entry goes, after that may have changed. 0: it has gone, or does not go.
  void Watch(std::uint64_t number, std::int64_t expiry_s);

  const FileLimits limits_;
  std::uint64_t next_number_ = 1;
  std::map<std::uint64_t, StoredFile> files_;
  std::map<std::uint64_t, StoredBatch> batches_;
  absl::flat_hash_map<std::string, std::uint64_t> numbers_;  // by id
  absl::flat_hash_map<std::string, Tenant> tenants_;
  std::set<std::uint64_t> open_;                               // batches that are not over
  absl::flat_hash_map<std::string, std::uint64_t> readers_;    // open batches, by input
  absl::flat_hash_map<std::string, std::uint64_t> outputs_;    // open batches, by output
  std::set<std::pair<std::int64_t, std::uint64_t>> expiries_;  // and the number
  absl::flat_hash_map<std::uint64_t, std::int64_t> watched_;   // the same by number
  std::uint64_t file_bytes_ = 0;
};

}  // namespace flotilla::router
