// Files and batches on a disk, with a handler that stands in for the service: how batches go on,
// and that a process that dies at any point loses no line and answers none twice.
#include "router/files/files_room.h"

#include <sched.h>
#include <sys/mount.h>
#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "router/batch/batch_line.h"
#include "router/batch/file_journal.h"
#include "router/errors.h"
#include "tests/router/files_fixture.h"

namespace flotilla::router {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

namespace fs = std::filesystem;

class FilesRoomTest : public FilesTest {};

TEST_F(FilesRoomTest, ABatchIsAnsweredInTwoFiles) {
  Restart();
  const std::string input = Upload("a", Input(6));
  const std::string id = Order("a", input);
  EXPECT_EQ(Batch("a", id).status, BatchStatus::kValidating);
  Steps();
  EXPECT_EQ(Batch("a", id).status, BatchStatus::kInProgress);
  ASSERT_EQ(handler_.requests.size(), 4u);  // the concurrency
  EXPECT_TRUE(handler_.requests[0].background && handler_.requests[0].client_named);
  EXPECT_TRUE(handler_.requests[0].is_line);
  EXPECT_EQ(handler_.requests[0].tenant, "a");
  handler_.Answer(400);
  handler_.Answer();
  Steps();
  EXPECT_EQ(Batch("a", id).counts, (RequestCounts{.total = 6, .completed = 1, .failed = 1}));
  Finish();
  const StoredBatch batch = Batch("a", id);
  EXPECT_EQ(batch.status, BatchStatus::kCompleted);
  EXPECT_EQ(batch.counts, (RequestCounts{.total = 6, .completed = 5, .failed = 1}));
  EXPECT_THAT(Ids(Content("a", batch.output_id)), ElementsAre("r1", "r2", "r3", "r4", "r5"));
  EXPECT_THAT(Ids(Content("a", batch.error_id)), ElementsAre("r0"));
  EXPECT_TRUE(absl::IsNotFound(room_->OpenFile("b", batch.output_id).status()));
  const std::string page = registry_.Render();
  EXPECT_THAT(page, HasSubstr("flotilla_router_batch_requests_total{result=\"completed\"} 5"));
  EXPECT_THAT(page, HasSubstr("flotilla_router_batches_total{status=\"completed\"} 1"));
  EXPECT_THAT(page, HasSubstr("flotilla_router_files 3"));
}

TEST_F(FilesRoomTest, RefusalsForLoadAndForATimeWithoutServiceAreNoAnswers) {
  Restart();
  const std::string id = Order("a", Upload("a", Input(1)));
  for (int i = 0; i < 30; ++i) {
    Steps();
    ASSERT_EQ(handler_.waiting.size(), 1u);
    handler_.Answer(i % 2 == 0 ? 503 : 429);
    Steps();
    clock_.AdvanceNs(3'000'000'000);
  }
  Finish();
  EXPECT_EQ(Batch("a", id).counts.completed, 1u);
}

TEST_F(FilesRoomTest, AModelThatARouterHasNotMetYetMayCome) {
  Restart();
  const std::string id = Order("a", Upload("a", Input(1)));
  Steps();
  handler_.Answer(404);
  Steps();
  EXPECT_EQ(Batch("a", id).counts.failed, 0u);
  clock_.AdvanceNs(61'000'000'000);
  Steps();
  handler_.Answer(404);
  Finish();
  EXPECT_EQ(Batch("a", id).counts.failed, 1u);
}

TEST_F(FilesRoomTest, ABatchWithWrongLinesFails) {
  Restart();
  const std::string chat = R"({"custom_id":"c","url":"/v1/chat/completions","body":{}})";
  const std::string input = InputLine(0) + "{\n" + InputLine(0) + "\n" + chat + "\n";
  const std::string id = Order("a", Upload("a", input));
  Steps();
  const StoredBatch batch = Batch("a", id);
  EXPECT_EQ(batch.status, BatchStatus::kFailed);
  std::vector<std::string> errors;
  for (const BatchError& error : batch.errors) {
    errors.push_back(absl::StrCat(error.line, " ", error.code));
  }
  EXPECT_THAT(errors, ElementsAre("2 invalid_request", "3 duplicate_custom_id",
                                  "4 invalid_json_line", "5 mismatched_endpoint"));
  EXPECT_TRUE(handler_.requests.empty());
  EXPECT_EQ(Data().size(), 1u);  // the input
  const std::string empty = Order("a", Upload("a", "\n\n"));
  Steps();
  EXPECT_EQ(Batch("a", empty).errors.at(0).code, "empty_file");
}

TEST_F(FilesRoomTest, ATenantsBatchesGoOneAfterAnotherAndTenantsShare) {
  Restart();
  const std::string first = Order("a", Upload("a", Input(3)));
  const std::string second = Order("a", Upload("a", Input(1)));
  const std::string other = Order("b", Upload("b", Input(9)));
  Steps();
  EXPECT_EQ(Batch("a", second).status, BatchStatus::kValidating);
  std::map<std::string, int> running;
  for (const HttpRequest& request : handler_.requests) ++running[request.tenant];
  EXPECT_EQ(running["b"], 2);  // half of the concurrency
  Finish();
  for (const auto& [tenant, id] : {std::pair{"a", first}, {"a", second}, {"b", other}}) {
    EXPECT_EQ(Batch(tenant, id).status, BatchStatus::kCompleted);
  }
}

TEST_F(FilesRoomTest, ABatchThatIsCancelledLeavesWhatItHas) {
  Restart();
  const std::string id = Order("a", Upload("a", Input(6)));
  Steps();
  handler_.Answer();
  EXPECT_EQ(room_->CancelBatch("a", id)->status, BatchStatus::kCancelling);
  Steps();
  const StoredBatch batch = Batch("a", id);
  EXPECT_EQ(batch.status, BatchStatus::kCancelled);
  EXPECT_TRUE(handler_.waiting.empty());  // what was in flight is dropped
  EXPECT_EQ(batch.counts.total, 6u);
  const std::string waiting = Order("a", Upload("a", Input(2)));
  room_->CancelBatch("a", waiting).IgnoreError();
  Steps();
  EXPECT_EQ(Batch("a", waiting).status, BatchStatus::kCancelled);
  EXPECT_EQ(store_->ledger().UsedBytes("a"), Input(6).size() + Input(2).size());
}

TEST_F(FilesRoomTest, ABatchWhoseWindowIsOverSaysSoForEachLine) {
  Restart();
  const std::string id = Order("a", Upload("a", Input(6)));
  const std::string late = Order("a", Upload("a", Input(6)));
  Steps();
  handler_.Answer();
  Steps();
  now_s_ += 86'400;
  Steps();
  const StoredBatch batch = Batch("a", id);
  EXPECT_EQ(batch.status, BatchStatus::kExpired);
  EXPECT_EQ(batch.counts, (RequestCounts{.total = 6, .completed = 1, .failed = 5}));
  EXPECT_THAT(Ids(Content("a", batch.output_id)), ElementsAre("r0"));
  EXPECT_THAT(Ids(Content("a", batch.error_id)), ElementsAre("r1", "r2", "r3", "r4", "r5"));
  EXPECT_THAT(Content("a", batch.error_id), HasSubstr(R"("code":"batch_expired")"));
  EXPECT_EQ(Batch("a", late).status, BatchStatus::kExpired);  // its turn never came
}

TEST_F(FilesRoomTest, AnswersBeyondTheQuotaEndTheBatch) {
  FileLimits limits;
  limits.tenant_bytes = Input(6).size() + 300;
  Restart(limits, /*concurrency=*/1);
  const std::string id = Order("a", Upload("a", Input(6)));
  Finish();
  const StoredBatch batch = Batch("a", id);
  EXPECT_EQ(batch.status, BatchStatus::kFailed);
  EXPECT_EQ(batch.errors.at(0).code, kQuotaExceeded);
  EXPECT_EQ(batch.counts.completed, Ids(Content("a", batch.output_id)).size());
  EXPECT_LE(store_->ledger().UsedBytes("a"), limits.tenant_bytes);
}

TEST_F(FilesRoomTest, UploadsAreBoundedAndDropped) {
  FileLimits limits;
  limits.file_bytes = 10;
  limits.tenant_bytes = 15;
  Restart(limits);
  {
    auto file = room_->BeginFile("a");
    EXPECT_TRUE((*file)->Write("0123456789").ok());
    EXPECT_EQ(ErrorField((*file)->Write("x")), "file");
    auto other = room_->BeginFile("a");
    EXPECT_EQ(ErrorCode((*other)->Write("012345")), kQuotaExceeded);
    auto third = room_->BeginFile("a"), fourth = room_->BeginFile("a");
    EXPECT_TRUE(absl::IsResourceExhausted(room_->BeginFile("a").status()));
    EXPECT_TRUE(room_->BeginFile("b").ok());
  }
  EXPECT_THAT(Data(), IsEmpty());
  EXPECT_EQ(store_->ledger().UsedBytes("a"), 0u);
}

TEST_F(FilesRoomTest, FilesExpire) {
  Restart();
  const std::string id = Upload("a", "x");
  now_s_ += 31 * 86'400;
  EXPECT_TRUE(absl::IsNotFound(room_->GetFile("a", id).status()));
  Steps();
  EXPECT_THAT(Data(), IsEmpty());
}

TEST_F(FilesRoomTest, AFullDiskStopsABatchUntilThereIsRoom) {
  Restart();
  const std::string id = Order("a", Upload("a", Input(3)));
  Steps();
  const StoredBatch batch = Batch("a", id);
  handler_.Answer();
  Steps();
  End();
  // A folder where the answers should be stands in for a disk that takes nothing.
  const std::string path = folder_ + "/data/" + batch.error_id;
  fs::remove(path);
  fs::create_directory(path);
  Restart();
  Steps();
  EXPECT_TRUE(handler_.waiting.empty());
  EXPECT_EQ(Batch("a", id).status, BatchStatus::kInProgress);
  fs::remove(path);
  clock_.AdvanceNs(31'000'000'000);
  Finish();
  EXPECT_THAT(Ids(Content("a", batch.output_id)), ElementsAre("r0", "r1", "r2"));
}

// On a file system of 16 MiB that only this process sees. Making one needs rights.
TEST_F(FilesRoomTest, AFullDiskCanBeFreed) {
  if (unshare(CLONE_NEWNS) != 0 || mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0)
    GTEST_SKIP() << "this user may not mount file systems";
  const std::string disk = scratch_.path() + "/disk";
  fs::create_directory(disk);
  ASSERT_EQ(mount("none", disk.c_str(), "tmpfs", 0, "size=16m"), 0);
  folder_ = disk + "/files";
  const std::string filler = disk + "/filler";
  const auto fill = [&] {
    std::ofstream file(filler, std::ios::binary | std::ios::app);
    const std::string page(4096, 'x');
    while (file.write(page.data(), 4096).flush().good()) continue;
  };
  FileLimits limits;
  limits.tenant_bytes = std::uint64_t{1} << 30;
  Restart(limits);
  const std::string input = Upload("a", Input(3));
  const std::string batch = Order("a", input), unused = Upload("a", std::string(1 << 20, 'x'));
  const BatchOrder order = {.input_file_id = input,
                            .window_s = 86'400,
                            .metadata = '"' + std::string(100'000, 'x') + '"'};
  // Batches that are added until the journal holds no more than it must.
  std::string last;
  const auto added = [&] {
    for (int i = 0; i < 100; ++i) {
      const auto one = room_->AddBatch("a", order);
      if (one.ok()) {
        last = one->id;
        continue;
      }
      EXPECT_TRUE(absl::IsUnavailable(one.status())) << one.status();
      EXPECT_THAT(std::string(one.status().message()), HasSubstr("no room on the disk"));
      return i;
    }
    return 100;
  };
  fill();
  // What adds is refused, what frees is not; and so it is after a new start.
  EXPECT_LE(added(), 42);
  EXPECT_EQ(added(), 0);
  EXPECT_TRUE(room_->CancelBatch("a", batch).ok());
  Restart(limits);
  fill();
  EXPECT_EQ(added(), 0);
  EXPECT_TRUE(room_->CancelBatch("a", last).ok());  // a record of 100 kB
  Steps();
  EXPECT_EQ(Batch("a", batch).status, BatchStatus::kCancelled);
  EXPECT_TRUE(room_->RemoveFile("a", unused).ok());
  fs::remove(filler);
  EXPECT_TRUE(room_->AddBatch("a", order).ok());
  End();
  ASSERT_EQ(umount2(disk.c_str(), MNT_DETACH), 0);
}

TEST_F(FilesRoomTest, TheFolderIsForOneProcessAndOneUser) {
  Restart();
  EXPECT_THAT(std::string(FileStore::Open(folder_, {}, &disk_).status().message()),
              HasSubstr("another process keeps files in"));
  Upload("a", "x");
  struct stat stat {};
  ASSERT_EQ(::stat(folder_.c_str(), &stat), 0);
  EXPECT_EQ(stat.st_mode & 0777, 0700u);
  End();
  fs::remove(folder_ + "/journal");
  const absl::Status lost = FileStore::Open(folder_, {}, &disk_).status();
  EXPECT_TRUE(absl::IsDataLoss(lost)) << lost;
  EXPECT_THAT(std::string(lost.message()), HasSubstr("restore the journal"));
}

TEST_F(FilesRoomTest, TheJournalStaysShort) {
  FileLimits limits;
  limits.tenant_batches = 2;
  Restart(limits);
  const std::string input = Upload("a", Input(1));
  std::uintmax_t longest = 0;
  for (int i = 0; i < 60; ++i) {
    const auto batch = room_->AddBatch("a", {.input_file_id = input,
                                             .window_s = 86'400,
                                             .metadata = '"' + std::string(10'000, 'x') + '"'});
    ASSERT_TRUE(batch.ok()) << batch.status();
    ASSERT_TRUE(room_->CancelBatch("a", batch->id).ok());
    Steps(2);
    longest = std::max(longest, fs::file_size(folder_ + "/journal"));
  }
  EXPECT_GT(longest, 1'000'000u);  // of 1.8 MB that were written
  EXPECT_LT(longest, 1'300'000u);
  Restart(limits);
  EXPECT_EQ(room_->ListBatches("a", {})->first.size(), 2u);
  EXPECT_LT(fs::file_size(folder_ + "/journal"), 30'000u);
}

// What a process that dies leaves is a beginning of its journal, and, while the batch is in
// progress, of each file of answers; and an upload that nobody was told of.
TEST_F(FilesRoomTest, AProcessThatDiesAnywhereLosesNoLineAndAnswersNoneTwice) {
  constexpr int kLines = 12;
  Restart();
  const std::string id = Order("a", Upload("a", Input(kLines)));
  const StoredBatch ordered = Batch("a", id);
  Steps();
  handler_.Answer(400);
  handler_.Answer(400);
  Finish();
  End();
  const std::string journal = Read(folder_ + "/journal");
  const std::string output = Read(folder_ + "/data/" + ordered.output_id);
  const std::string errors = Read(folder_ + "/data/" + ordered.error_id);
  const std::string input = Read(folder_ + "/data/" + ordered.order.input_file_id);
  std::vector<std::size_t> ends;  // of records: file, batch, in progress, finalizing, completed
  for (std::size_t at = 0; (at = journal.find('\n', at)) != std::string::npos;)
    ends.push_back(++at);
  ASSERT_EQ(ends.size(), 5u);

  for (std::uint32_t seed = 1; seed <= 50; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    const std::size_t bytes = ends[0] + random() % (journal.size() - ends[0] + 1);
    const auto whole =
        static_cast<std::size_t>(std::upper_bound(ends.begin(), ends.end(), bytes) - ends.begin());
    fs::remove_all(folder_);
    fs::create_directories(folder_ + "/data");
    const auto write = [](const std::string& path, const std::string& text) {
      std::ofstream(path, std::ios::binary) << text;
    };
    write(folder_ + "/journal", journal.substr(0, bytes));
    write(folder_ + "/data/" + ordered.order.input_file_id, input);
    write(folder_ + "/data/file-upload", "half");
    const bool all = whole >= 4;
    if (whole >= 3) {
      write(folder_ + "/data/" + ordered.output_id,
            output.substr(0, all ? output.size() : random() % (output.size() + 1)));
      write(folder_ + "/data/" + ordered.error_id,
            errors.substr(0, all ? errors.size() : random() % (errors.size() + 1)));
    }
    Restart();
    if (whole < 2) {  // the client was not told of the batch
      EXPECT_TRUE(absl::IsNotFound(room_->GetBatch("a", id).status()));
      EXPECT_EQ(Data(), std::set<std::string>{ordered.order.input_file_id});
      continue;
    }
    EXPECT_FALSE(Data().contains("file-upload"));
    Finish();
    const StoredBatch batch = Batch("a", id);
    ASSERT_EQ(batch.status, BatchStatus::kCompleted);
    EXPECT_EQ(batch.counts.completed + batch.counts.failed, static_cast<std::uint64_t>(kLines));
    const std::string answers = Content("a", batch.output_id) +
                                (batch.has_errors ? Content("a", batch.error_id) : std::string());
    EXPECT_EQ(Ids(answers).size(), static_cast<std::size_t>(kLines));
    EXPECT_EQ(store_->ledger().UsedBytes("a"), input.size() + answers.size());
  }
}

}  // namespace
}  // namespace flotilla::router
