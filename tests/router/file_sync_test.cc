// Syncs that fail: what a client was told stays true when the machine then dies, and a process that
// comes later believes nothing that is not on the disk.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/rt/write_to_file.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "router/errors.h"
#include "tests/router/files_fixture.h"

namespace flotilla::router {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr std::int64_t kRetryNs = 31'000'000'000;

class FileSyncTest : public FilesTest {
 protected:
  // Syncs of files whose path has `part` fail from now on.
  void Fail(const std::string& part) {
    disk_.fails = [part](std::string_view path) {
      return path.find(part) != std::string_view::npos;
    };
  }
  // Only the next of them fails.
  void FailOnce(const std::string& end) {
    disk_.fails = [end, done = false](std::string_view path) mutable {
      return !done && (done = path.ends_with(end));
    };
  }
  void Heal() { disk_.fails = nullptr; }
  // The time after which a batch that could not go on is tried again.
  void Wait() {
    clock_.AdvanceNs(kRetryNs);
    Steps(8);
  }
  // A batch of six lines. Two answers are on the disk, and two more are written and not yet synced.
  std::string AnswerFour() {
    Restart();
    const std::string id = Order("a", Upload("a", Input(6)));
    Steps();
    for (int i = 0; i < 2; ++i) handler_.Answer();
    Steps();
    clock_.AdvanceNs(200'000'000);
    Steps();
    for (int i = 0; i < 2; ++i) handler_.Answer();
    Steps();
    EXPECT_EQ(Batch("a", id).counts.completed, 4u);
    EXPECT_EQ(disk_.Lost(folder_), 0u);
    return id;
  }
  // The sync of those two fails.
  void LoseTwo() {
    Fail("/data/file-");
    clock_.AdvanceNs(200'000'000);
    Steps();
    EXPECT_TRUE(handler_.waiting.empty());  // no answer is computed for a file that keeps none
  }
  // What the batch counts is in its file, also when the machine has died.
  void ExpectKept(const std::string& id, BatchStatus status, const std::vector<std::string>& ids) {
    for (const bool crashed : {false, true}) {
      SCOPED_TRACE(crashed ? "after the crash" : "before the crash");
      const StoredBatch batch = Batch("a", id);
      EXPECT_EQ(batch.status, status);
      EXPECT_EQ(batch.counts.completed, ids.size());
      EXPECT_EQ(Ids(Content("a", batch.output_id)), ids);
      EXPECT_EQ(disk_.Lost(folder_), 0u);
      if (crashed) continue;
      End();
      disk_.Crash(folder_);
      Restart();
    }
  }
};

TEST_F(FileSyncTest, ABatchInProgressKeepsItsAnswersAndEndsOnceTheyAreOnTheDisk) {
  const std::string id = AnswerFour();
  LoseTwo();
  EXPECT_GT(disk_.Lost(folder_), 0u);
  Wait();  // the disk still fails
  EXPECT_EQ(Batch("a", id).status, BatchStatus::kInProgress);
  Heal();
  Wait();
  Finish();
  ExpectKept(id, BatchStatus::kCompleted, {"r0", "r1", "r2", "r3", "r4", "r5"});
  const auto sent = [this](const std::string& line) {
    return std::count_if(handler_.requests.begin(), handler_.requests.end(),
                         [&](const HttpRequest& request) { return request.request_id == line; });
  };
  EXPECT_EQ(sent("r0"), 1);
  EXPECT_EQ(sent("r3"), 1);  // its answer was there, and is not computed again
}

TEST_F(FileSyncTest, ABatchIsNotCancelledBeforeItsAnswersAreOnTheDisk) {
  const std::string id = AnswerFour();
  EXPECT_TRUE(room_->CancelBatch("a", id).ok());
  LoseTwo();
  EXPECT_GT(disk_.Lost(folder_), 0u);
  EXPECT_EQ(Batch("a", id).status, BatchStatus::kCancelling);
  Heal();
  Wait();
  ExpectKept(id, BatchStatus::kCancelled, {"r0", "r1", "r2", "r3"});
}

TEST_F(FileSyncTest, ABatchDoesNotExpireBeforeItsAnswersAreOnTheDisk) {
  const std::string id = AnswerFour();
  now_s_ += 86'400;
  LoseTwo();
  EXPECT_GT(disk_.Lost(folder_), 0u);
  EXPECT_EQ(Batch("a", id).status, BatchStatus::kInProgress);
  Heal();
  Wait();
  ExpectKept(id, BatchStatus::kExpired, {"r0", "r1", "r2", "r3"});
  const StoredBatch batch = Batch("a", id);
  EXPECT_EQ(batch.counts.failed, 2u);
  EXPECT_THAT(Ids(Content("a", batch.error_id)), ElementsAre("r4", "r5"));
}

TEST_F(FileSyncTest, TheNextProcessDoesNotBelieveWhatASyncHasLost) {
  const std::string id = AnswerFour();
  EXPECT_TRUE(room_->CancelBatch("a", id).ok());
  LoseTwo();
  Heal();
  Restart();
  Steps(8);
  ExpectKept(id, BatchStatus::kCancelled, {"r0", "r1", "r2", "r3"});
}

TEST_F(FileSyncTest, AnswersThatAreGoneDoNotCount) {
  // Some systems drop what a failed sync was to write, so it cannot be read any more.
  const std::string cancelled = AnswerFour();
  EXPECT_TRUE(room_->CancelBatch("a", cancelled).ok());
  LoseTwo();
  disk_.Crash(folder_);
  Heal();
  Wait();
  ExpectKept(cancelled, BatchStatus::kCancelled, {"r0", "r1"});
}

TEST_F(FileSyncTest, AnswersThatAreGoneAreComputedAgain) {
  const std::string id = AnswerFour();
  LoseTwo();
  disk_.Crash(folder_);
  Heal();
  Wait();
  EXPECT_EQ(Batch("a", id).counts.completed, 2u);
  Finish();
  ExpectKept(id, BatchStatus::kCompleted, {"r0", "r1", "r2", "r3", "r4", "r5"});
  const StoredBatch batch = Batch("a", id);
  EXPECT_EQ(store_->ledger().UsedBytes("a"),
            Input(6).size() + Content("a", batch.output_id).size());
}

TEST_F(FileSyncTest, ABatchWhoseWindowIsOverStaysExpiredWhenItsEndIsTriedAgain) {
  Restart();
  const std::string id = Order("a", Upload("a", Input(6)));
  Steps();
  handler_.Answer();
  Steps();
  now_s_ += 86'400;
  Fail("/data/file-");
  Steps();
  EXPECT_EQ(Batch("a", id).status, BatchStatus::kInProgress);
  Heal();
  Wait();
  const StoredBatch batch = Batch("a", id);
  EXPECT_EQ(batch.status, BatchStatus::kExpired);
  EXPECT_EQ(batch.counts, (RequestCounts{.total = 6, .completed = 1, .failed = 5}));
}

TEST_F(FileSyncTest, ABatchExpiresOnceTheRecordOfItIsKept) {
  const std::string id = AnswerFour();
  now_s_ += 86'400;
  FailOnce("/journal");
  Steps();
  EXPECT_EQ(Batch("a", id).status, BatchStatus::kInProgress);
  EXPECT_FALSE(store_->broken());
  Wait();
  ExpectKept(id, BatchStatus::kExpired, {"r0", "r1", "r2", "r3"});
  const StoredBatch batch = Batch("a", id);
  EXPECT_EQ(batch.counts, (RequestCounts{.total = 6, .completed = 4, .failed = 2}));
  EXPECT_TRUE(batch.errors.empty());
}

TEST_F(FileSyncTest, ABatchThatNeverBeganExpiresOnceTheRecordOfItIsKept) {
  Restart();
  const std::string id = Order("a", Upload("a", Input(6)));
  now_s_ += 86'400;
  FailOnce("/journal");
  Steps();
  EXPECT_EQ(Batch("a", id).status, BatchStatus::kValidating);
  Wait();
  EXPECT_EQ(Batch("a", id).status, BatchStatus::kExpired);
  EXPECT_TRUE(Batch("a", id).errors.empty());
}

TEST_F(FileSyncTest, ABatchThatIsAnsweredCompletesAfterItsWindow) {
  const std::string id = AnswerFour();
  FailOnce("/journal");
  Finish();
  EXPECT_EQ(handler_.requests.size(), 6u);
  now_s_ += 86'400;
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(Batch("a", id).status, BatchStatus::kInProgress);
    FailOnce("/journal");
    Wait();
  }
  Wait();
  ExpectKept(id, BatchStatus::kCompleted, {"r0", "r1", "r2", "r3", "r4", "r5"});
  EXPECT_TRUE(Batch("a", id).errors.empty());
}

TEST_F(FileSyncTest, AnswersThatThisProcessHasSyncedAreNotWrittenAgain) {
  const std::string id = AnswerFour();
  FailOnce("/journal");
  Finish();
  for (int i = 0; i < 3; ++i) {
    FailOnce("/journal");
    Wait();
    EXPECT_EQ(Batch("a", id).status, BatchStatus::kInProgress);
    EXPECT_EQ(disk_.written_again, 0u);
  }
  Restart();  // another process knows nothing of them
  Steps(8);
  ExpectKept(id, BatchStatus::kCompleted, {"r0", "r1", "r2", "r3", "r4", "r5"});
  EXPECT_EQ(disk_.written_again, Content("a", Batch("a", id).output_id).size());
}

TEST_F(FileSyncTest, AnUploadThatTheDiskDoesNotKeepLeavesNothing) {
  Restart();
  const std::string mib(1 << 20, 'x');
  for (const char* end : {"", "/data"}) {  // the file, or its name in the folder
    SCOPED_TRACE(end);
    auto file = room_->BeginFile("a");
    ASSERT_TRUE(file.ok() && (*file)->Write(mib).ok());
    FailOnce(*end == 0 ? *Data().begin() : end);
    EXPECT_TRUE(absl::IsUnavailable(room_->AddFile(**file, "in.jsonl", 0).status()));
    file->reset();
    EXPECT_TRUE(Data().empty());
  }
  auto long_file = room_->BeginFile("a");  // which is synced while it comes
  ASSERT_TRUE(long_file.ok());
  FailOnce(*Data().begin());
  absl::Status written;
  int mibs = 0;
  while (written.ok() && mibs < 20) {
    written = (*long_file)->Write(mib);
    ++mibs;
  }
  EXPECT_TRUE(absl::IsUnavailable(written)) << written;
  EXPECT_EQ(mibs, 8);
  long_file->reset();
  EXPECT_TRUE(Data().empty());
  EXPECT_TRUE(room_->ListFiles("a", {})->entries.empty());
  EXPECT_EQ(store_->ledger().UsedBytes("a"), 0u);
}

TEST_F(FileSyncTest, AChangeThatTheJournalDoesNotKeepIsUndone) {
  Restart();
  const std::string input = Upload("a", Input(1)), unused = Upload("a", "unused");
  const std::string kept = Order("a", input);
  FailOnce("/journal");
  const absl::Status lost =
      room_->AddBatch("a", {.input_file_id = input, .window_s = 1, .metadata = "null"}).status();
  EXPECT_TRUE(absl::IsUnavailable(lost)) << lost;
  EXPECT_EQ(ErrorCode(lost), kFilesReadOnly);
  EXPECT_EQ(RetryAfterMs(lost), 1000);
  EXPECT_EQ(lost.message().find(folder_), std::string::npos) << lost;
  EXPECT_FALSE(store_->broken());  // the journal was written anew
  FailOnce("/journal");
  EXPECT_TRUE(absl::IsUnavailable(room_->RemoveFile("a", unused)));
  auto file = room_->BeginFile("a");
  ASSERT_TRUE(file.ok() && (*file)->Write("x").ok());
  FailOnce("/journal");
  EXPECT_TRUE(absl::IsUnavailable(room_->AddFile(**file, "in.jsonl", 0).status()));
  file->reset();
  EXPECT_EQ(Data(), (std::set<std::string>{input, unused}));
  Steps();
  EXPECT_THAT(registry_.Render(), HasSubstr("flotilla_router_file_sync_failures_total 3"));
  const std::string later = Upload("a", "later");
  for (const bool crashed : {false, true}) {
    SCOPED_TRACE(crashed);
    EXPECT_EQ(room_->ListBatches("a", {})->first.size(), 1u);
    EXPECT_EQ(Batch("a", kept).order.input_file_id, input);
    EXPECT_EQ(Content("a", unused), "unused");
    EXPECT_EQ(Content("a", later), "later");
    EXPECT_EQ(disk_.Lost(folder_), 0u);
    if (crashed) continue;
    End();
    disk_.Crash(folder_);
    Restart();
  }
}

TEST_F(FileSyncTest, NothingChangesUntilAJournalCanBeWritten) {
  Restart();
  const std::string input = Upload("a", Input(6)), unused = Upload("a", "unused");
  const std::string id = Order("a", input);
  Steps();
  Fail("/journal");  // and its successor
  const absl::Status lost = room_->RemoveFile("a", unused);
  EXPECT_TRUE(store_->broken());
  for (const absl::Status& refused :
       {lost, room_->BeginFile("a").status(), room_->CancelBatch("a", id).status(),
        room_->RemoveFile("a", unused), room_->AddBatch("a", {.input_file_id = input}).status()}) {
    EXPECT_TRUE(absl::IsUnavailable(refused)) << refused;
    EXPECT_EQ(ErrorCode(refused), kFilesReadOnly);
    EXPECT_EQ(RetryAfterMs(refused), 30'000);
  }
  // What is there can be read, and answers are still computed; but no batch ends.
  Finish();
  EXPECT_EQ(Content("a", unused), "unused");
  EXPECT_EQ(Batch("a", id).status, BatchStatus::kInProgress);
  EXPECT_THAT(registry_.Render(), HasSubstr("flotilla_router_files_read_only 1"));
  Wait();
  EXPECT_GT(room_->Step(), 0);  // it rests until the next try
  Heal();
  Steps();  // the next try is later
  EXPECT_TRUE(store_->broken());
  Wait();
  EXPECT_FALSE(store_->broken());
  EXPECT_THAT(registry_.Render(), HasSubstr("flotilla_router_files_read_only 0"));
  Wait();
  ExpectKept(id, BatchStatus::kCompleted, {"r0", "r1", "r2", "r3", "r4", "r5"});
  EXPECT_TRUE(room_->RemoveFile("a", unused).ok());
}

TEST_F(FileSyncTest, AnUploadWhoseRecordMayBeKeptGoesWhenTheJournalIsWrittenAnew) {
  Restart();
  const std::string kept = Upload("a", "kept");
  auto file = room_->BeginFile("a");
  ASSERT_TRUE(file.ok() && (*file)->Write("x").ok());
  Fail("/journal");  // and its successor
  EXPECT_FALSE(room_->AddFile(**file, "in.jsonl", 0).ok());
  file->reset();
  EXPECT_EQ(Data().size(), 2u);  // the next process may find the record
  Steps();
  EXPECT_EQ(Data().size(), 2u);
  Heal();
  Wait();
  EXPECT_EQ(Data(), std::set<std::string>{kept});
  EXPECT_EQ(store_->ledger().UsedBytes("a"), 4u);
}

TEST_F(FileSyncTest, AJournalThatHasNoRoomForASuccessorIsWrittenInPlace) {
  Restart();
  const std::string input = Upload("a", Input(1)), path = folder_ + "/journal";
  const auto held = [&path] {
    struct stat stat {};
    EXPECT_EQ(::stat(path.c_str(), &stat), 0);
    return stat.st_blocks;
  };
  const auto before = held();
  // As if the disk were full.
  disk_.fails = [done = false](std::string_view path) mutable {
    if (path.ends_with("/journal")) return !std::exchange(done, true);
    return path.ends_with("/journal.new");
  };
  const BatchOrder order = {.input_file_id = input, .window_s = 86'400, .metadata = "null"};
  EXPECT_EQ(ErrorCode(room_->AddBatch("a", order).status()), kFilesReadOnly);
  EXPECT_FALSE(store_->broken());
  EXPECT_GE(held(), before);  // what is held for changes that free the disk
  EXPECT_EQ(disk_.Lost(folder_), 0u);
  const std::string id = Order("a", input);
  End();
  disk_.Crash(folder_);
  Heal();
  Restart();
  EXPECT_EQ(room_->ListBatches("a", {})->first.size(), 1u);
  EXPECT_EQ(Batch("a", id).order.input_file_id, input);
}

TEST_F(FileSyncTest, AJournalThatIsGoneIsNotWrittenInPlace) {
  Restart();
  const std::string input = Upload("a", Input(1));
  Fail("/journal");  // and its successor
  EXPECT_FALSE(room_->RemoveFile("a", input).ok());
  // Some systems drop what a failed sync was to write, and here more than that.
  std::ofstream(folder_ + "/journal", std::ios::in).put('?');
  Fail("/journal.new");
  Wait();
  EXPECT_TRUE(store_->broken());
  Heal();
  Wait();
  EXPECT_FALSE(store_->broken());
  Restart();
  EXPECT_EQ(Content("a", input), Input(1));
}

TEST_F(FileSyncTest, AJournalWhoseNameMayBeLostIsWrittenAgain) {
  Restart();
  const std::string input = Upload("a", "x");
  const BatchOrder order = {.input_file_id = input,
                            .window_s = 86'400,
                            .metadata = '"' + std::string(100'000, 'x') + '"'};
  disk_.fails = [](std::string_view path) { return path.ends_with("/files"); };
  int added = 0;
  while (!store_->broken() && added < 20) added += room_->AddBatch("a", order).ok() ? 1 : 0;
  EXPECT_EQ(added, 11);  // when the journal had more than 1 MiB, and was shortened
  EXPECT_EQ(ErrorCode(room_->AddBatch("a", order).status()), kFilesReadOnly);
  Fail("/journal.new");  // to write the journal in place would not name it again
  Steps();
  EXPECT_TRUE(store_->broken());
  Heal();
  Wait();
  EXPECT_FALSE(store_->broken());
  EXPECT_TRUE(room_->AddBatch("a", order).ok());
  Restart();
  EXPECT_EQ(room_->ListBatches("a", {})->first.size(), 12u);
}

TEST_F(FileSyncTest, AChangeThatIsKeptInAJournalThatIsNotWakesTheRoom) {
  Restart();
  disk_.fails = [](std::string_view path) { return path.ends_with("/files"); };
  int wakes = 0;
  for (int i = 0; !store_->broken() && i < 20; ++i) {
    auto file = room_->BeginFile("a");
    ASSERT_TRUE(file.ok()) << file.status();
    wakes = wakes_;
    EXPECT_TRUE(room_->AddFile(**file, std::string(100'000, 'x'), 0).ok());
  }
  EXPECT_TRUE(store_->broken());
  EXPECT_GT(wakes_, wakes);
}

TEST_F(FileSyncTest, WhatFailedWhileTheFolderWasOpenedIsTold) {
  Restart();
  End();
  FailOnce("/journal.new");
  Restart();
  Steps();
  EXPECT_THAT(registry_.Render(), HasSubstr("flotilla_router_file_sync_failures_total 1"));
}

TEST_F(FileSyncTest, TheNextProcessDoesNotSeeARecordThatWasNotKept) {
  Restart();
  const std::string input = Upload("a", Input(1));
  Fail("/journal");
  EXPECT_FALSE(room_->AddBatch("a", {.input_file_id = input, .window_s = 1}).ok());
  End();
  Heal();
  Fail("/journal.new");  // so the next process goes on with the journal that is there
  Restart();
  EXPECT_TRUE(room_->ListBatches("a", {})->first.empty());
  EXPECT_EQ(disk_.Lost(folder_), 0u);
  EXPECT_EQ(Content("a", input), Input(1));
}

TEST_F(FileSyncTest, TheNextProcessWritesTheRecordsThatItBelieves) {
  Restart();
  const std::string input = Upload("a", Input(1)), path = folder_ + "/journal";
  const auto before = static_cast<off_t>(std::filesystem::file_size(path));
  const std::string id = Order("a", input);
  const std::string record = Read(path).substr(static_cast<std::size_t>(before));
  End();
  {  // a process that was killed when a sync had just lost its last record
    const UniqueFd journal(open(path.c_str(), O_RDWR | O_APPEND));
    ASSERT_EQ(ftruncate(journal.get(), before), 0);
    ASSERT_TRUE(disk_.Sync(journal.get()) && WriteToFile(journal.get(), record));
    Fail("/journal");
    EXPECT_FALSE(disk_.Sync(journal.get()));
  }
  EXPECT_EQ(disk_.Lost(folder_), record.size());
  EXPECT_TRUE(absl::IsUnavailable(FileStore::Open(folder_, {}, &disk_).status()));
  Heal();
  Fail("/journal.new");
  Restart();
  const std::string later = Upload("a", "later");
  End();
  disk_.Crash(folder_);
  Heal();
  Restart();
  EXPECT_EQ(Batch("a", id).order.input_file_id, input);
  EXPECT_EQ(Content("a", later), "later");
}

}  // namespace
}  // namespace flotilla::router
