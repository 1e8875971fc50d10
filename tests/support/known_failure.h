// KnownFailure: marks a test that fails today for a known reason.
//
// While an object of this class lives, failed expectations of its thread are collected instead of
// reported. If there was none when it ends, the test fails: the subject was mended, and the mark
// must go. The first line of a test makes the object:
//
//   TEST(Planner, AnUrgentRequestStartsAtOnce) {
//     const KnownFailure mark("chunks of begun prompts take the whole budget");
#pragma once

#include <gtest/gtest-spi.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>

namespace flotilla::testing {

class KnownFailure {
 public:
  explicit KnownFailure(std::string why)
      : why_(std::move(why)),
        collector_(std::make_unique<::testing::ScopedFakeTestPartResultReporter>(
            ::testing::ScopedFakeTestPartResultReporter::INTERCEPT_ONLY_CURRENT_THREAD,
            &results_)) {}
  KnownFailure(const KnownFailure&) = delete;
  KnownFailure& operator=(const KnownFailure&) = delete;

  ~KnownFailure() {
    collector_.reset();  // from here on failures are reported again
    for (int i = 0; i < results_.size(); ++i) {
      if (results_.GetTestPartResult(i).failed()) return;
    }
    ADD_FAILURE() << "This test was marked as a known failure (" << why_
                  << "), and it passes. Remove the mark.";
  }

 private:
  const std::string why_;
  ::testing::TestPartResultArray results_;
  std::unique_ptr<::testing::ScopedFakeTestPartResultReporter> collector_;
};

}  // namespace flotilla::testing
