// What tests of files and batches share: a room on a disk that can fail, with a handler that stands
// in for the service.
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <filesystem>
#include <fstream>
#include <memory>
#include <set>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "router/batch/batch_line.h"
#include "router/files/files_room.h"
#include "tests/router/failing_disk.h"
#include "tests/support/manual_clock.h"
#include "tests/support/scratch_directory.h"

namespace flotilla::router {

// Keeps requests until the test answers them.
class BatchHandler final : public HttpHandler {
 public:
  HttpAdmission Admit(const HttpHead&) override { return {}; }
  std::unique_ptr<HttpExchange> Handle(HttpRequest request, HttpReply& reply) override {
    class Exchange final : public HttpExchange {
     public:
      explicit Exchange(BatchHandler* handler, HttpReply* reply)
          : handler_(*handler), reply_(reply) {}
      ~Exchange() override {
        std::erase_if(handler_.waiting, [this](const auto& one) { return one.second == reply_; });
      }

     private:
      BatchHandler& handler_;
      HttpReply* const reply_;
    };
    requests.push_back(std::move(request));
    waiting.emplace_back(requests.back().request_id, &reply);
    return std::make_unique<Exchange>(this, &reply);
  }
  // Answers the request that has waited for longest.
  void Answer(int status = 200) {
    auto [id, reply] = waiting.front();
    waiting.pop_front();
    reply->Send(status, "", R"({"usage":{"prompt_tokens":1,"completion_tokens":1}})", {});
  }

  std::vector<HttpRequest> requests;
  std::deque<std::pair<std::string, HttpReply*>> waiting;
};

class FilesTest : public ::testing::Test {
 protected:
  static std::string InputLine(int i) {
    return absl::StrCat(R"({"custom_id":"r)", i,
                        R"(","url":"/v1/completions","body":{"model":"m","prompt":"x"}})", "\n");
  }
  static std::string Input(int lines) {
    std::string text;
    for (int i = 0; i < lines; ++i) text += InputLine(i);
    return text;
  }
  static std::string Read(const std::string& path) {
    std::stringstream text;
    text << std::ifstream(path, std::ios::binary).rdbuf();
    return text.str();
  }
  // Ends the process, and begins another one with the folder that it leaves.
  void Restart(FileLimits limits = {}, std::uint32_t concurrency = 4) {
    End();
    absl::StatusOr<std::unique_ptr<FileStore>> store = FileStore::Open(folder_, limits, &disk_);
    ASSERT_TRUE(store.ok()) << store.status();
    store_ = *std::move(store);
    room_ = std::make_unique<FilesRoom>(FilesRoom::Parts{
        .store = store_.get(),
        .handler = &handler_,
        .clock = &clock_,
        .now_s = [this] { return now_s_; },
        .new_id =
            [this](std::string_view prefix) { return absl::StrCat(std::string(prefix), ++ids_); },
        .log = &log_,
        .metrics = &metrics_,
        .on_reply = [this] { ++wakes_; },
        .concurrency = concurrency});
  }
  void End() {
    if (room_ != nullptr) room_->Stop();
    room_.reset();
    store_.reset();
    handler_.waiting.clear();
  }
  std::string Upload(const std::string& tenant, const std::string& bytes) {
    auto file = room_->BeginFile(tenant);
    EXPECT_TRUE(file.ok()) << file.status();
    EXPECT_TRUE((*file)->Write(bytes).ok());
    const auto added = room_->AddFile(**file, "in.jsonl", 0);
    EXPECT_TRUE(added.ok()) << added.status();
    return added->id;
  }
  std::string Order(const std::string& tenant, const std::string& input) {
    const auto batch = room_->AddBatch(tenant, {.input_file_id = input,
                                                .endpoint = "/v1/completions",
                                                .completion_window = "24h",
                                                .window_s = 86'400,
                                                .metadata = "null"});
    EXPECT_TRUE(batch.ok()) << batch.status();
    return batch->id;
  }
  void Steps(int count = 4) {
    for (int i = 0; i < count; ++i) room_->Step();
  }
  // Answers all requests with 200, until nothing is left to do.
  void Finish() {
    for (Steps(); !handler_.waiting.empty(); Steps()) {
      while (!handler_.waiting.empty()) handler_.Answer();
      clock_.AdvanceNs(200'000'000);
    }
  }
  StoredBatch Batch(const std::string& tenant, const std::string& id) {
    const auto batch = room_->GetBatch(tenant, id);
    EXPECT_TRUE(batch.ok()) << batch.status();
    return *batch;
  }
  std::string Content(const std::string& tenant, const std::string& id) {
    const auto content = room_->OpenFile(tenant, id);
    EXPECT_TRUE(content.ok()) << content.status();
    const std::string text = Read(store_->DataPath(id));
    EXPECT_EQ(text.size(), content->bytes);
    return text;
  }
  // The ids of answers, in order. An id that comes twice fails the test.
  static std::vector<std::string> Ids(const std::string& answers) {
    std::vector<std::string> ids;
    std::istringstream lines(answers);
    for (std::string line; std::getline(lines, line);) {
      const auto answer = ReadBatchAnswer(line);
      EXPECT_TRUE(answer.ok()) << line;
      EXPECT_EQ(std::count(ids.begin(), ids.end(), answer->custom_id), 0) << line;
      ids.push_back(answer->custom_id);
    }
    std::sort(ids.begin(), ids.end());
    return ids;
  }
  std::set<std::string> Data() const {
    std::set<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(folder_ + "/data")) {
      names.insert(entry.path().filename());
    }
    return names;
  }

  const testing::ScratchDirectory scratch_;
  std::string folder_ = scratch_.path() + "/files";
  testing::ManualClock clock_;
  std::int64_t now_s_ = 1'000'000;
  int ids_ = 0, wakes_ = 0;
  Logger log_{LogLevel::kError};
  Metrics registry_;
  FilesMetrics metrics_{registry_};
  FailingDisk disk_;
  BatchHandler handler_;
  std::unique_ptr<FileStore> store_;
  std::unique_ptr<FilesRoom> room_;
};

}  // namespace flotilla::router
