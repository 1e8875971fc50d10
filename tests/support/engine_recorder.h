// EngineRecorder: an EventSink that keeps the events of each request and, as they come,
// checks the order that common/types/event.h promises.
#pragma once

#include <cstdint>
#include <map>
#include <utility>
#include <variant>
#include <vector>

#include <gtest/gtest.h>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "common/types/engine.h"

namespace flotilla::testing {

// The events of one request so far.
struct RecordedAnswer {
  bool accepted = false;
  std::vector<std::vector<TokenEvent>> tokens;  // [sequences]
  // [sequences]: the position of tokens[sequence][0], which is the length of the prefix.
  std::vector<std::uint32_t> first_position;
  std::vector<PromptLogprobs> prompt;
  std::vector<SequenceEnd> sequence_ends;
  std::vector<RequestEnd> ends;  // one, once it has ended

  std::vector<TokenId> token_ids(std::uint32_t sequence = 0) const {
    std::vector<TokenId> ids;
    for (const TokenEvent& event : tokens[sequence]) ids.push_back(event.sampled.token);
    return ids;
  }
};

class EngineRecorder : public EventSink {
 public:
  // Call it before the request is submitted with this sink.
  void Expect(const TokenizedRequest& request) {
    absl::MutexLock lock(&mu_);
    Entry& entry = entries_[request.id];
    entry = {};
    entry.attempt = request.attempt;
    entry.prompt_tokens = static_cast<std::uint32_t>(request.prompt.size());
    entry.answer.tokens.resize(request.sequences);
    entry.answer.first_position.resize(request.sequences);
    for (std::size_t i = 0; i < request.output_prefix.size(); ++i) {
      entry.answer.first_position[i] = static_cast<std::uint32_t>(request.output_prefix[i].size());
    }
  }

  void Post(std::vector<EngineEvent> events) override {
    absl::MutexLock lock(&mu_);
    EXPECT_FALSE(events.empty()) << "an empty batch";
    for (EngineEvent& event : events) {
      const auto [id, attempt] = EventKey(event);
      const auto it = entries_.find(id);
      ASSERT_NE(it, entries_.end()) << "event of a request that was not submitted";
      EXPECT_EQ(attempt, it->second.attempt);
      EXPECT_TRUE(it->second.answer.ends.empty()) << "event after RequestEnd";
      std::visit([&](auto& e) { Take(it->second, std::move(e)); }, event);
    }
  }

  RecordedAnswer Answer(const RequestId& id) const {
    absl::MutexLock lock(&mu_);
    return entries_.at(id).answer;
  }
  bool Ended(const RequestId& id) const {
    absl::MutexLock lock(&mu_);
    return !entries_.at(id).answer.ends.empty();
  }
  std::size_t TokenCount(const RequestId& id, std::uint32_t sequence = 0) const {
    absl::MutexLock lock(&mu_);
    return entries_.at(id).answer.tokens.at(sequence).size();
  }

 private:
  struct Entry {
    Attempt attempt;
    std::uint32_t prompt_tokens = 0;
    std::uint32_t prompt_next = 1;
    RecordedAnswer answer;
  };

  static bool SequenceEnded(const RecordedAnswer& answer, SequenceIndex sequence) {
    for (const SequenceEnd& end : answer.sequence_ends) {
      if (end.sequence == sequence) return true;
    }
    return false;
  }
  static void Take(Entry& entry, Accepted) {
    EXPECT_FALSE(entry.answer.accepted) << "accepted twice";
    entry.answer.accepted = true;
  }
  static void Take(Entry& entry, PromptLogprobs event) {
    EXPECT_TRUE(entry.answer.accepted);
    EXPECT_EQ(event.first, entry.prompt_next) << "prompt log-probabilities without gaps";
    entry.prompt_next += static_cast<std::uint32_t>(event.tokens.size());
    EXPECT_LE(entry.prompt_next, entry.prompt_tokens);
    entry.answer.prompt.push_back(std::move(event));
  }
  static void Take(Entry& entry, TokenEvent event) {
    RecordedAnswer& answer = entry.answer;
    EXPECT_TRUE(answer.accepted);
    ASSERT_LT(event.sequence.value(), answer.tokens.size());
    EXPECT_FALSE(SequenceEnded(answer, event.sequence)) << "token after SequenceEnd";
    auto& tokens = answer.tokens[event.sequence.value()];
    EXPECT_EQ(event.position, answer.first_position[event.sequence.value()] + tokens.size())
        << "positions without gaps";
    tokens.push_back(std::move(event));
  }
  static void Take(Entry& entry, CrashCount) { EXPECT_TRUE(entry.answer.accepted); }
  static void Take(Entry& entry, SequenceEnd event) {
    EXPECT_TRUE(entry.answer.accepted);
    EXPECT_FALSE(SequenceEnded(entry.answer, event.sequence)) << "two ends of a sequence";
    entry.answer.sequence_ends.push_back(event);
  }
  static void Take(Entry& entry, RequestEnd event) {
    RecordedAnswer& answer = entry.answer;
    if (answer.accepted) {
      EXPECT_EQ(answer.sequence_ends.size(), answer.tokens.size())
          << "RequestEnd before SequenceEnd";
    } else {
      EXPECT_FALSE(event.status.ok()) << "neither accepted nor refused";
    }
    answer.ends.push_back(std::move(event));
  }

  mutable absl::Mutex mu_;
  std::map<RequestId, Entry> entries_ ABSL_GUARDED_BY(mu_);
};

}  // namespace flotilla::testing
