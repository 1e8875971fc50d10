// BatchRunner over a scripted engine: what is refused starts again, and what stops stays whole.
#include "cli/batch_runner.h"

#include <fcntl.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "model/checkpoint.h"
#include "model/text/tokenizer.h"
#include "tests/support/fake_engine.h"
#include "tests/support/scratch_directory.h"
#include "tests/support/test_model.h"

namespace flotilla::cli {
namespace {

using ::testing::ElementsAre;
using ::testing::Pair;

class BatchRunnerTest : public ::testing::Test {
 protected:
  BatchRunnerTest() {
    const auto file = model::OpenCheckpoint(testing::ModelPath());
    EXPECT_TRUE(file.ok()) << "the model file is missing: " << file.status();
    tokenizer_ =
        std::make_unique<model::Tokenizer>(*model::Tokenizer::Create(*(*file)->ReadTokenizer()));
    service_ = router::InferenceService::Create({}, &clock_);
    service_->AddModel({.id = "m", .engine = &engine_, .tokenizer = tokenizer_.get()});
  }

  static testing::FakeEngineOptions EngineOptions() {
    testing::FakeEngineOptions options;
    options.description.vocab_size = 49152;
    return options;
  }
  static std::string Line(int i) {
    return absl::StrCat(R"({"custom_id":"r)", i,
                        R"(","url":"/v1/completions","body":{"model":"m","prompt":[5,6],)",
                        R"("max_tokens":2}})", "\n");
  }
  void Refuse(absl::Status status, int times) {
    for (int i = 0; i < times; ++i) engine_.Script({.refusal = status, .retry_after_ms = 1});
  }

  // Runs a batch of so many lines to its end.
  absl::Status Run(int lines, std::uint32_t concurrency, const std::string& output = "out") {
    core_ = std::make_unique<router::BatchCore>(concurrency);
    std::ofstream in(folder_.path() + "/in");
    for (int i = 0; i < lines; ++i) {
      const std::string line = Line(i);
      const auto begin = static_cast<std::uint64_t>(in.tellp());
      in << line;
      EXPECT_TRUE(
          core_->Add(absl::StrCat("r", i), {begin, static_cast<std::uint32_t>(line.size() - 1)})
              .ok());
    }
    in.close();
    const UniqueFd fd(open((folder_.path() + "/in").c_str(), O_RDONLY));
    absl::StatusOr<router::AnswerFile> file =
        router::AnswerFile::Open(output == "out" ? folder_.path() + "/out" : output, &disk_);
    if (!file.ok()) return file.status();
    BatchRunner runner({.service = service_.get(),
                        .clock = &clock_,
                        .signals = &signals_,
                        .core = core_.get(),
                        .input = fd.get(),
                        .output = &*file,
                        .on_progress = [] {},
                        .progress_ns = 10'000'000'000,
                        .on_stopping = [this] { ++stops_; }});
    return runner.Run();
  }
  // The ids in the output.
  std::vector<std::string> Written() const {
    std::vector<std::string> ids;
    std::ifstream file(folder_.path() + "/out");
    for (std::string line; std::getline(file, line);) {
      ids.push_back(router::ReadBatchAnswer(line)->custom_id);
    }
    return ids;
  }

  Signals signals_;  // first, because it blocks the signals of later threads
  const SteadyClock clock_;
  const testing::ScratchDirectory folder_;
  router::Disk disk_;
  testing::FakeEngine engine_{EngineOptions()};
  std::unique_ptr<model::Tokenizer> tokenizer_;
  std::unique_ptr<router::InferenceService> service_;
  std::unique_ptr<router::BatchCore> core_;
  int stops_ = 0;
};

TEST_F(BatchRunnerTest, WhatTheEngineRefusesForLoadStartsAgain) {
  Refuse(absl::ResourceExhaustedError("the queue is full"), 25);
  ASSERT_TRUE(Run(40, 8).ok());
  EXPECT_THAT(core_->counts().by_status, ElementsAre(Pair(200, 40)));
  EXPECT_EQ(core_->counts().completion_tokens, 80u);
  EXPECT_EQ(engine_.submitted().size(), 65u);
  const std::vector<std::string> ids = Written();
  EXPECT_EQ(std::set<std::string>(ids.begin(), ids.end()).size(), 40u);
  EXPECT_EQ(ids.size(), 40u);
}

TEST_F(BatchRunnerTest, ALineThatFindsNoServiceForLongIsAnsweredSo) {
  // Three lines take turns, so the first one is refused as often as it may be, and no other.
  Refuse(absl::UnavailableError("no worker group"), 3 * router::BatchCore::kMaxUnavailable - 2);
  ASSERT_TRUE(Run(3, 1).ok());
  EXPECT_THAT(core_->counts().by_status, ElementsAre(Pair(200, 2), Pair(503, 1)));
}

// The seed of a request is made of its name, so it is the same in whatever order requests run.
TEST_F(BatchRunnerTest, SeedsDoNotDependOnTheRun) {
  const auto seeds = [this] {
    std::set<std::uint64_t> all;
    for (const TokenizedRequest& request : engine_.submitted()) all.insert(request.sampling.seed);
    return all;
  };
  ASSERT_TRUE(Run(20, 1).ok());
  const std::set<std::uint64_t> first = seeds();
  EXPECT_EQ(first.size(), 20u);
  Refuse(absl::ResourceExhaustedError("the queue is full"), 7);
  std::filesystem::remove(folder_.path() + "/out");
  ASSERT_TRUE(Run(20, 7).ok());
  EXPECT_EQ(seeds(), first);
}

TEST_F(BatchRunnerTest, ARequestToStopBeforeTheBeginStartsNothing) {
  signals_.Stop();
  ASSERT_TRUE(Run(5, 2).ok());
  EXPECT_EQ(stops_, 1);
  EXPECT_TRUE(core_->over() && !core_->complete());
  EXPECT_TRUE(engine_.submitted().empty());
}

TEST_F(BatchRunnerTest, AFullDiskEndsTheRun) {
  const absl::Status status = Run(5, 2, "/dev/full");
  EXPECT_EQ(std::string(status.message()), "cannot write to /dev/full: No space left on device");
}

TEST_F(BatchRunnerTest, ABatchWithoutLinesEnds) {
  ASSERT_TRUE(Run(0, 2).ok());
  EXPECT_TRUE(core_->complete());
}

}  // namespace
}  // namespace flotilla::cli
