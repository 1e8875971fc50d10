// FileStore: the folder that a FileLedger and the data of its files live in.
//
//   DIR/lock      held by the process that uses the folder
//   DIR/journal   the records of the ledger (router/batch/file_journal.h)
//   DIR/data/ID   the bytes of a file, or the answers of a batch that is not over
//
// A change is on the disk before the ledger has it. Data is on the disk before a record names it,
// and it is removed after a record has: what a crash leaves without a name is removed when the
// folder is opened. The journal holds blocks of the disk beyond its end. Only what frees or ends
// something may use them, so a full disk can be freed. One thread.
//
// What a failed sync leaves in the journal is not believed (see Disk): the journal is then written
// anew, and until that works nothing changes. Neither does a process believe what another has left:
// it begins with a journal that it has itself written and synced as a whole.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/rt/unique_fd.h"
#include "router/batch/file_ledger.h"
#include "router/files/disk.h"

namespace flotilla::router {

class FileStore {
 public:
  // Opens the folder, or makes it, in a folder that exists. All that it makes is for this user
  // only. UNAVAILABLE: another process uses it, or the system's error. DATA_LOSS: the journal is
  // damaged, or missing beside data. Errors name the path. `disk` outlives the store.
  static absl::StatusOr<std::unique_ptr<FileStore>> Open(std::string folder, FileLimits limits,
                                                         Disk* disk);

  FileLedger& ledger() { return ledger_; }
  Disk& disk() { return disk_; }

  // Writes the record, applies it, and removes the data that nobody needs any more. UNAVAILABLE: it
  // cannot be written, or it adds a file or a batch, or begins to compute one, and the disk is
  // full; the ledger has not changed. With kFilesReadOnly: a sync failed. If it is then unknown
  // what the journal has on the disk, all later changes fail, too, until Repair works.
  absl::Status Commit(LedgerRecord record);

  // Whether what the journal has on the disk is unknown.
  bool broken() const { return broken_; }
  // If it is: UNAVAILABLE with kFilesReadOnly.
  absl::Status CheckJournal() const;
  // Replaces a journal that is broken or, if there is no room for another, writes it again in
  // place. UNAVAILABLE: the disk takes neither. INTERNAL: memory ran out while the ledger changed,
  // so only the next process knows what is in it. The data of a file goes that the last change
  // would have added, and did not.
  absl::Status Repair();

  // The path of the data of an id that this process or the ledger made.
  std::string DataPath(const std::string& id) const { return folder_ + "/data/" + id; }
  // Makes the data of a new file, for writing. UNAVAILABLE names the path.
  absl::StatusOr<UniqueFd> CreateData(const std::string& id);
  // Returns when the data and its name are on the disk.
  absl::Status SyncData(int fd);
  void RemoveData(const std::string& id);
  // For reading.
  absl::StatusOr<UniqueFd> OpenData(const std::string& id) const;
  // 0: there is none.
  std::uint64_t DataBytes(const std::string& id) const;

 private:
  FileStore(std::string folder, FileLimits limits, Disk* disk)
      : folder_(std::move(folder)), disk_(*disk), ledger_(limits) {}

  absl::Status Lock();
  bool SyncFolder(const std::string& path);
  // Returns what of the journal counts.
  absl::StatusOr<std::string> ReadJournal();
  // Replaces the journal by a snapshot of the ledger.
  absl::Status Rewrite();
  // Goes on with the journal that is there, which begins with `text`: writes this again in place,
  // and cuts off the rest. It needs no room on most disks.
  absl::Status Reopen(std::string_view text);
  // The same with what the journal has of the ledger. DATA_LOSS: it does not have all of it.
  absl::Status ReopenAsItIs();
  // Takes blocks of the disk beyond the end of the journal, as many as it is to hold. False: it has
  // fewer now, and errno says why. True also if this file system cannot.
  bool HoldBlocks();
  absl::Status RemoveStrays();
  absl::Status Error(const char* what, const std::string& path) const;

  const std::string folder_;
  Disk& disk_;
  FileLedger ledger_;
  UniqueFd lock_, data_folder_, journal_;
  std::uint64_t journal_bytes_ = 0, snapshot_bytes_ = 0;
  std::uint64_t held_end_ = 0;         // the journal holds blocks up to here
  std::vector<std::string> doubtful_;  // ids of files that the last change was to add
  bool broken_ = false;
  bool named_ = true;         // that journal_ is the journal is on the disk
  bool ledger_whole_ = true;  // it has no record in part
};

}  // namespace flotilla::router
