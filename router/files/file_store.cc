#include "router/files/file_store.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <string_view>
#include <utility>
#include <vector>

#include "common/rt/write_to_file.h"
#include "common/types/text.h"
#include "router/batch/file_journal.h"
#include "router/errors.h"
#include "router/files/file_io.h"

namespace flotilla::router {
namespace {

constexpr mode_t kOnlyMe = 0600, kOnlyMyFolder = 0700;
// The journal is written anew when it has this many bytes more than 4 times its snapshot.
constexpr std::uint64_t kJournalSlack = 1 << 20;
// The blocks that are held beyond the end of the journal: some 40 records of the longest kind.
constexpr std::uint64_t kHeldBytes = 4 << 20;
// A client may ask again after this time: FilesRoom repairs the journal as often.
constexpr std::int64_t kRepairMs = 30'000;
// The same after a change that was undone, when the journal is repaired.
constexpr std::int64_t kUndoneMs = 1000;
constexpr std::string_view kFilePrefix = "file-";

// False: errno says why not.
bool ReadAll(int fd, std::string& text) {
  std::array<char, 64 << 10> chunk;
  while (true) {
    const ssize_t got = read(fd, chunk.data(), chunk.size());
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return got == 0;
    text.append(chunk.data(), static_cast<std::size_t>(got));
  }
}

bool MakeFolder(const std::string& path) {
  return mkdir(path.c_str(), kOnlyMyFolder) == 0 || errno == EEXIST;
}

// Whether the record adds a file of a client or a batch, or begins to compute one.
bool Adds(const LedgerRecord& record) {
  if (!record.batch.has_value()) return !record.files.empty();
  return record.batch->status == BatchStatus::kValidating ||
         record.batch->status == BatchStatus::kInProgress;
}

// The names in a folder that are ids of files.
std::vector<std::string> IdsIn(const std::string& path) {
  std::vector<std::string> ids;
  DIR* const folder = opendir(path.c_str());
  if (folder == nullptr) return ids;
  while (const dirent* entry = readdir(folder)) {
    const std::string_view name = entry->d_name;
    if (name.starts_with(kFilePrefix)) ids.emplace_back(name);
  }
  closedir(folder);
  return ids;
}

}  // namespace

absl::Status FileStore::Error(const char* what, const std::string& path) const {
  return absl::UnavailableError(Cat(what, " ", path, ": ", std::strerror(errno)));
}

absl::StatusOr<std::unique_ptr<FileStore>> FileStore::Open(std::string folder, FileLimits limits,
                                                           Disk* disk) {
  std::unique_ptr<FileStore> store(new FileStore(std::move(folder), limits, disk));
  if (absl::Status s = store->Lock(); !s.ok()) return s;
  const absl::StatusOr<std::string> journal = store->ReadJournal();
  if (!journal.ok()) return journal.status();
  if (absl::Status s = store->Rewrite(); !s.ok()) {
    if (store->broken_ || !store->Reopen(*journal).ok()) return s;
    store->snapshot_bytes_ = journal->size();
  }
  if (absl::Status s = store->RemoveStrays(); !s.ok()) return s;
  store->HoldBlocks();
  return store;
}

bool FileStore::SyncFolder(const std::string& path) {
  const UniqueFd folder(open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  return folder.ok() && disk_.Sync(folder.get());
}

absl::Status FileStore::Lock() {
  if (!MakeFolder(folder_)) return Error("cannot make the folder", folder_);
  const std::string data = folder_ + "/data", lock = folder_ + "/lock";
  if (!MakeFolder(data)) return Error("cannot make the folder", data);
  data_folder_.Reset(open(data.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!data_folder_.ok()) return Error("cannot open the folder", data);
  lock_.Reset(open(lock.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, kOnlyMe));
  if (!lock_.ok()) return Error("cannot open", lock);
  if (flock(lock_.get(), LOCK_EX | LOCK_NB) == 0) return absl::OkStatus();
  if (errno != EWOULDBLOCK) return Error("cannot lock", lock);
  return absl::UnavailableError(
      Cat("another process keeps files in ", folder_, "; each router needs a folder of its own"));
}

absl::StatusOr<std::string> FileStore::ReadJournal() {
  const std::string path = folder_ + "/journal";
  const UniqueFd journal(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!journal.ok() && errno == ENOENT) {
    if (IdsIn(folder_ + "/data").empty()) return std::string();
    return absl::DataLossError(Cat(path, " is missing, but ", folder_,
                                   "/data has files: restore the journal, or empty the folder"));
  }
  std::string text;
  if (!journal.ok() || !ReadAll(journal.get(), text)) return Error("cannot read", path);
  const absl::StatusOr<std::size_t> whole = ReplayJournal(text, ledger_);
  if (!whole.ok()) return absl::DataLossError(Cat(path, " ", whole.status().message()));
  text.resize(*whole);
  return text;
}

absl::Status FileStore::Reopen(std::string_view text) {
  const std::string path = folder_ + "/journal";
  UniqueFd journal(open(path.c_str(), O_RDWR | O_APPEND | O_CLOEXEC));
  struct stat stat {};
  if (!journal.ok() || fstat(journal.get(), &stat) != 0) return Error("cannot open", path);
  journal_ = std::move(journal);
  // To cut off nothing would cut off the blocks behind the end.
  const bool torn = static_cast<std::uint64_t>(stat.st_size) != text.size();
  if ((torn && ftruncate(journal_.get(), static_cast<off_t>(text.size())) != 0) ||
      !disk_.WriteAgain(journal_.get(), 0, text) || !disk_.Sync(journal_.get()) ||
      !SyncFolder(folder_)) {
    return Error("cannot go on with", path);
  }
  journal_bytes_ = text.size();
  return absl::OkStatus();
}

absl::Status FileStore::ReopenAsItIs() {
  const std::string path = folder_ + "/journal";
  std::string text(journal_bytes_, '\0');
  if (!ReadAt(journal_.get(), 0, text)) return Error("cannot read", path);
  // Some systems drop what a failed sync was to write.
  FileLedger ledger(ledger_.limits());
  const absl::StatusOr<std::size_t> whole = ReplayJournal(text, ledger);
  if (!whole.ok() || *whole != text.size()) return absl::DataLossError(Cat(path, " is damaged"));
  return Reopen(text);
}

bool FileStore::HoldBlocks() {
  const std::uint64_t least = journal_bytes_ + kHeldBytes;
  if (held_end_ >= least) return true;
  // Some file systems let go of all that they were asked for if they have not enough. So less is
  // asked for then, and never what is held already.
  int why = ENOSPC;
  for (std::uint64_t bytes = 2 * kHeldBytes; bytes >= kHeldBytes / 8; bytes /= 2) {
    const std::uint64_t begin = std::max(held_end_, journal_bytes_), end = journal_bytes_ + bytes;
    if (end <= begin) break;
    int held = 0;
    do {
      held = fallocate(journal_.get(), FALLOC_FL_KEEP_SIZE, static_cast<off_t>(begin),
                       static_cast<off_t>(end - begin));
    } while (held != 0 && errno == EINTR);
    if (held != 0 && errno != EOPNOTSUPP) {
      why = errno;
      continue;
    }
    held_end_ = end;
    break;
  }
  if (held_end_ >= least) return true;
  errno = why;
  return false;
}

absl::Status FileStore::Rewrite() {
  const std::string path = folder_ + "/journal", next = folder_ + "/journal.new";
  UniqueFd file(open(next.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_APPEND | O_CLOEXEC, kOnlyMe));
  if (!file.ok()) return Error("cannot make", next);
  std::string text;
  for (const LedgerRecord& record : ledger_.Snapshot()) text += JournalLine(record);
  if (!WriteToFile(file.get(), text) || !disk_.Sync(file.get()) ||
      rename(next.c_str(), path.c_str()) != 0) {
    const absl::Status error = Error("cannot replace", path);
    unlink(next.c_str());
    return error;
  }
  // From here on the old journal may be gone, so changes must not go there.
  journal_ = std::move(file);
  journal_bytes_ = snapshot_bytes_ = text.size();
  held_end_ = 0;
  named_ = SyncFolder(folder_);
  broken_ = !named_;
  return broken_ ? Error("cannot sync the folder", folder_) : absl::OkStatus();
}

absl::Status FileStore::RemoveStrays() {
  for (const std::string& id : IdsIn(folder_ + "/data")) {
    if (!ledger_.Needs(id)) RemoveData(id);
  }
  return absl::OkStatus();
}

absl::Status FileStore::CheckJournal() const {
  if (!broken_) return absl::OkStatus();
  return WithRetryAfter(
      WithField(absl::UnavailableError("files and batches cannot change now, because the disk of "
                                       "this server does not keep what changes"),
                "", kFilesReadOnly),
      kRepairMs);
}

absl::Status FileStore::Repair() {
  if (!ledger_whole_) {
    return absl::InternalError(
        Cat("memory ran out while a record of ", folder_, "/journal was applied; start again"));
  }
  // The end of the journal goes first, so that nobody takes it for kept if the journal stays. If
  // this fails, the next process still writes all that it believes.
  held_end_ = 0;
  [[maybe_unused]] const bool cut =
      ftruncate(journal_.get(), static_cast<off_t>(journal_bytes_)) == 0;
  absl::Status s = OrNoMemory([this] { return Rewrite(); });
  if (!s.ok() && named_ && OrNoMemory([this] { return ReopenAsItIs(); }).ok()) {
    broken_ = false;
    s = absl::OkStatus();
  }
  if (s.ok()) {
    for (const std::string& id : std::exchange(doubtful_, {})) {
      if (!ledger_.Needs(id)) RemoveData(id);
    }
  }
  HoldBlocks();  // also if the journal stays broken: they are free now, and for changes to come
  return s;
}

absl::Status FileStore::Commit(LedgerRecord record) {
  if (absl::Status s = ledger_.Check(record); !s.ok()) return s;
  if (absl::Status s = CheckJournal(); !s.ok()) return s;
  const std::string line = JournalLine(record);
  if (Adds(record) && !HoldBlocks()) {
    return Error("there is no room on the disk of", folder_);
  }
  doubtful_.clear();
  for (const StoredFile& file : record.files) doubtful_.push_back(file.id);
  broken_ = true;  // until all is done, whatever ends this function
  if (!WriteToFile(journal_.get(), line)) {
    const absl::Status error = Error("cannot write to the journal of", folder_);
    broken_ = ftruncate(journal_.get(), static_cast<off_t>(journal_bytes_)) != 0;
    held_end_ = 0;
    return error;
  }
  if (!disk_.Sync(journal_.get())) {
    Repair().IgnoreError();
    if (absl::Status s = CheckJournal(); !s.ok()) return s;
    return WithRetryAfter(
        WithField(absl::UnavailableError("the disk of this server did not keep this change, which "
                                         "is undone"),
                  "", kFilesReadOnly),
        kUndoneMs);
  }
  std::vector<std::string> dropped = record.removed;
  if (record.batch.has_value()) {
    dropped.push_back(record.batch->output_id);
    dropped.push_back(record.batch->error_id);
  }
  ledger_whole_ = false;
  journal_bytes_ += line.size();  // to here the journal has what the ledger has
  if (absl::Status s = ledger_.Apply(std::move(record)); !s.ok()) return s;
  ledger_whole_ = true;
  broken_ = false;
  for (const std::string& id : dropped) {
    if (id.starts_with(kFilePrefix) && !ledger_.Needs(id)) RemoveData(id);
  }
  // If this fails, the journal that is there goes on.
  if (journal_bytes_ > kJournalSlack + 4 * snapshot_bytes_) {
    OrNoMemory([this] { return Rewrite(); }).IgnoreError();
  }
  HoldBlocks();  // of what has just become free, if the disk was full
  return absl::OkStatus();
}

absl::StatusOr<UniqueFd> FileStore::CreateData(const std::string& id) {
  const std::string path = DataPath(id);
  UniqueFd fd(open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, kOnlyMe));
  if (!fd.ok()) return Error("cannot make", path);
  return fd;
}

absl::Status FileStore::SyncData(int fd) {
  if (!disk_.Sync(fd) || !disk_.Sync(data_folder_.get())) {
    return Error("cannot sync a file in", folder_);
  }
  return absl::OkStatus();
}

void FileStore::RemoveData(const std::string& id) { unlink(DataPath(id).c_str()); }

absl::StatusOr<UniqueFd> FileStore::OpenData(const std::string& id) const {
  const std::string path = DataPath(id);
  UniqueFd fd(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd.ok()) return Error("cannot open", path);
  return fd;
}

std::uint64_t FileStore::DataBytes(const std::string& id) const {
  struct stat stat {};
  return ::stat(DataPath(id).c_str(), &stat) == 0 ? static_cast<std::uint64_t>(stat.st_size) : 0;
}

}  // namespace flotilla::router
