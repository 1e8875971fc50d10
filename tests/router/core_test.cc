// Tests router/core: stop strings against a naive matcher; attempts, replay and deduplication
// against an invented engine that loses requests, repeats events and gives requests back.
#include <algorithm>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "router/core/request_tracker.h"
#include "router/core/stop_matcher.h"
#include "tests/support/requests.h"

namespace flotilla::router {
namespace {

TEST(StopMatcher, PassesTextThroughWithoutStops) {
  StopMatcher matcher(std::vector<std::string>{});
  EXPECT_EQ(matcher.Append("abc").text, "abc");
  EXPECT_EQ(matcher.Flush(), "");
}

TEST(StopMatcher, FindsAStopAcrossPieces) {
  StopMatcher matcher({"</end>"});
  EXPECT_EQ(matcher.Append("text <").text, "text ");
  EXPECT_EQ(matcher.Append("/e").text, "");
  EXPECT_EQ(matcher.held_bytes(), 3u);
  const auto result = matcher.Append("nd> more");
  EXPECT_EQ(result.text, "");
  EXPECT_EQ(result.stop, 0u);
  EXPECT_EQ(matcher.Append("more").text, "");
  EXPECT_EQ(matcher.Flush(), "");
}

TEST(StopMatcher, DeliversWhatTurnsOutNotToBeAStop) {
  StopMatcher matcher({"aab"});
  EXPECT_EQ(matcher.Append("aa").text, "");
  EXPECT_EQ(matcher.Append("a").text, "a");  // "aa" may still become "aab"
  EXPECT_EQ(matcher.Append("c").text, "aac");
  EXPECT_EQ(matcher.Append("aa").text, "");
  EXPECT_EQ(matcher.Flush(), "aa");
}

TEST(StopMatcher, TheFirstToBeCompleteWinsAndThenTheLongest) {
  StopMatcher matcher({"c", "abc", "b c"});
  const auto result = matcher.Append("x abc");
  EXPECT_EQ(result.text, "x ");
  EXPECT_EQ(result.stop, 1u);
  StopMatcher inner({"abcd", "bc"});
  EXPECT_EQ(inner.Append("abcd").text, "a");
}

// Longest suffix of `text` that is a proper prefix of a stop.
std::size_t NaiveHeld(const std::string& text, const std::vector<std::string>& stops) {
  std::size_t held = 0;
  for (const std::string& stop : stops) {
    for (std::size_t n = 1; n < stop.size() && n <= text.size(); ++n) {
      if (text.compare(text.size() - n, n, stop, 0, n) == 0) held = std::max(held, n);
    }
  }
  return held;
}

TEST(StopMatcher, AgreesWithANaiveMatcherHoweverTheTextIsCut) {
  for (std::uint32_t seed = 1; seed <= 3000; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937 random(seed);
    const auto word = [&](std::size_t longest) {
      std::string s(1 + random() % longest, 'a');
      for (char& c : s) c = static_cast<char>('a' + random() % 3);
      return s;
    };
    std::vector<std::string> stops;
    for (std::size_t i = 0, n = 1 + random() % 4; i < n; ++i) stops.push_back(word(6));
    const std::string text = word(60);

    StopMatcher matcher(stops);
    std::string fed, delivered;
    bool stopped = false;
    for (std::size_t at = 0; at < text.size() && !stopped;) {
      const std::size_t n = std::min<std::size_t>(1 + random() % 5, text.size() - at);
      const auto result = matcher.Append(text.substr(at, n));
      delivered += result.text;
      // The naive matcher compares every stop string at every byte.
      std::size_t longest = 0;
      std::size_t end = at;
      while (end < at + n && longest == 0) {
        fed.push_back(text[end++]);
        for (const std::string& stop : stops) {
          if (fed.ends_with(stop)) longest = std::max(longest, stop.size());
        }
      }
      at += n;
      stopped = longest > 0;
      ASSERT_EQ(result.stop.has_value(), stopped);
      if (stopped) {
        ASSERT_EQ(stops[*result.stop].size(), longest);
        ASSERT_EQ(delivered, fed.substr(0, fed.size() - longest));
      } else {
        ASSERT_EQ(delivered, fed.substr(0, fed.size() - NaiveHeld(fed, stops)));
      }
    }
    if (!stopped) {
      ASSERT_EQ(delivered + matcher.Flush(), text);
    }
  }
}

TokenizedRequest RequestFor(std::uint32_t sequences) {
  TokenizedRequest request = testing::TestRequest({7, 9}, {1, 2, 3}, 16);
  request.sequences = sequences;
  return request;
}

TokenEvent Token(const RequestTracker& t, std::uint32_t sequence, std::uint32_t position,
                 TokenId token) {
  return {t.id(), t.request().attempt, SequenceIndex(sequence), position, {.token = token}};
}

using Verdict = RequestTracker::TokenVerdict;
using EndVerdict = RequestTracker::EndVerdict;

TEST(RequestTracker, ReplaysFromTheTokensReceived) {
  RequestTracker tracker(RequestFor(1), 3);
  EXPECT_TRUE(tracker.Submission().output_prefix.empty());
  EXPECT_TRUE(tracker.Apply(Accepted{tracker.id(), Attempt(0)}));
  EXPECT_EQ(tracker.Apply(Token(tracker, 0, 0, 50)), Verdict::kNew);
  const TokenEvent late = Token(tracker, 0, 1, 51);
  EXPECT_FALSE(tracker.Apply(
      SequenceEnd{tracker.id(), Attempt(0), SequenceIndex(0), FinishReason::kMoved, 1}));
  EXPECT_EQ(tracker.Apply(RequestEnd{tracker.id(), Attempt(0)}), EndVerdict::kReplay);

  const TokenizedRequest again = tracker.Submission();
  EXPECT_EQ(again.attempt, Attempt(1));
  EXPECT_EQ(again.prompt, (std::vector<TokenId>{1, 2, 3}));
  EXPECT_EQ(again.output_prefix, (std::vector<std::vector<TokenId>>{{50}}));
  EXPECT_EQ(tracker.Apply(late), Verdict::kDrop);
  EXPECT_FALSE(tracker.Apply(Accepted{tracker.id(), Attempt(1)}));  // told once
  EXPECT_EQ(tracker.Apply(Token(tracker, 0, 0, 50)), Verdict::kDrop);
  EXPECT_EQ(tracker.Apply(Token(tracker, 0, 1, 51)), Verdict::kNew);
  EXPECT_TRUE(tracker.Apply(
      SequenceEnd{tracker.id(), Attempt(1), SequenceIndex(0), FinishReason::kStop, 2}));
  EXPECT_EQ(tracker.Apply(RequestEnd{tracker.id(), Attempt(1)}), EndVerdict::kFinal);
  EXPECT_EQ(tracker.CountedUsage({}).output_tokens, 2u);
  EXPECT_EQ(tracker.Apply(Token(tracker, 0, 2, 52)), Verdict::kDrop);
}

TEST(RequestTracker, GivesUpAfterTheLastAttempt) {
  RequestTracker tracker(RequestFor(1), 2);
  for (std::uint32_t attempt = 0; attempt < 2; ++attempt) {
    tracker.Apply(
        SequenceEnd{tracker.id(), Attempt(attempt), SequenceIndex(0), FinishReason::kMoved, 0});
    EXPECT_EQ(tracker.Apply(RequestEnd{tracker.id(), Attempt(attempt)}),
              attempt == 0 ? EndVerdict::kReplay : EndVerdict::kFinal);
  }
  EXPECT_TRUE(tracker.exhausted());
}

TEST(RequestTracker, CancelKeepsWhatWasCountedAndIsNotReplayed) {
  RequestTracker tracker(RequestFor(2), 3);
  for (std::uint32_t i = 0; i < 4; ++i) tracker.Apply(Token(tracker, 0, i, 10));
  const auto cancel = tracker.EndSequence(SequenceIndex(0), 3);
  ASSERT_TRUE(cancel.has_value());
  EXPECT_EQ(cancel->sequence, SequenceIndex(0));
  EXPECT_EQ(cancel->keep_tokens, 3u);
  EXPECT_FALSE(tracker.EndSequence(SequenceIndex(0), 3).has_value());
  EXPECT_EQ(tracker.Apply(Token(tracker, 0, 4, 10)), Verdict::kDrop);
  // The engine gives both sequences back. Only sequence 1 still has tokens to make.
  for (std::uint32_t b = 0; b < 2; ++b) {
    tracker.Apply(SequenceEnd{tracker.id(), Attempt(0), SequenceIndex(b), FinishReason::kMoved, 0});
  }
  EXPECT_EQ(tracker.Apply(RequestEnd{tracker.id(), Attempt(0)}), EndVerdict::kReplay);
  ASSERT_EQ(tracker.CancelsOfEnded().size(), 1u);
  EXPECT_EQ(tracker.CancelsOfEnded()[0].keep_tokens, 3u);
  EXPECT_EQ(tracker.EndAll().size(), 1u);
  tracker.Apply(SequenceEnd{tracker.id(), Attempt(1), SequenceIndex(1), FinishReason::kMoved, 0});
  EXPECT_EQ(tracker.Apply(RequestEnd{tracker.id(), Attempt(1)}), EndVerdict::kFinal);
  EXPECT_FALSE(tracker.exhausted());
  EXPECT_EQ(tracker.CountedUsage({}).output_tokens, 3u);
}

TEST(RequestTracker, ABeamSearchStartsAgainFromNothing) {
  TokenizedRequest request = RequestFor(2);
  request.beam = BeamOptions{.beams = 4};
  RequestTracker tracker(request, 3);
  EXPECT_EQ(tracker.Apply(Token(tracker, 0, 0, 50)), Verdict::kNew);
  EXPECT_TRUE(tracker.Apply(
      SequenceEnd{tracker.id(), Attempt(0), SequenceIndex(0), FinishReason::kStop, 1, -0.5f}));
  EXPECT_FALSE(tracker.Apply(
      SequenceEnd{tracker.id(), Attempt(0), SequenceIndex(1), FinishReason::kMoved, 0}));
  EXPECT_EQ(tracker.Apply(RequestEnd{tracker.id(), Attempt(0)}), EndVerdict::kReplay);
  EXPECT_TRUE(tracker.Submission().output_prefix.empty());
  EXPECT_TRUE(tracker.CancelsOfEnded().empty());
  // If the engine repeats earlier tokens, nothing is delivered twice.
  EXPECT_EQ(tracker.Apply(Token(tracker, 0, 0, 50)), Verdict::kDrop);
  EXPECT_EQ(tracker.Apply(Token(tracker, 1, 0, 60)), Verdict::kNew);
}

TEST(RequestTracker, ABeamSearchIsCancelledAndChargedAsAWhole) {
  TokenizedRequest request = RequestFor(2);
  request.beam = BeamOptions{.beams = 4};
  RequestTracker tracker(request, 3);
  const std::vector<CancelRequest> cancels = tracker.EndAll();
  ASSERT_EQ(cancels.size(), 1u);
  EXPECT_EQ(cancels[0].request, tracker.id());
  EXPECT_FALSE(cancels[0].sequence.has_value());
  EXPECT_EQ(cancels[0].keep_tokens, 0u);
  EXPECT_TRUE(tracker.EndAll().empty());
  const Usage usage = tracker.CountedUsage({.prompt_tokens = 9, .output_tokens = 77});
  EXPECT_EQ(usage.prompt_tokens, 3u);
  EXPECT_EQ(usage.output_tokens, 77u);
}

TEST(RequestTracker, MissingPositionsAndForeignSequencesAreGaps) {
  RequestTracker tracker(RequestFor(1), 1);
  EXPECT_EQ(tracker.Apply(Token(tracker, 0, 1, 5)), Verdict::kGap);
  EXPECT_EQ(tracker.Apply(Token(tracker, 1, 0, 5)), Verdict::kGap);
}

TEST(RequestTracker, PromptLogprobsArriveOnceEach) {
  RequestTracker tracker(RequestFor(1), 2);
  PromptLogprobs all{tracker.id(), Attempt(0), 1, {{2, -1}, {3, -2}}};
  PromptLogprobs first{tracker.id(), Attempt(0), 1, {{2, -1}}};
  EXPECT_TRUE(tracker.Apply(first));
  EXPECT_TRUE(tracker.Apply(all));
  EXPECT_EQ(all.first, 2u);
  EXPECT_EQ(all.tokens, (std::vector<SampledToken>{{3, -2}}));
  PromptLogprobs beyond{tracker.id(), Attempt(0), 3, {{4, -3}}};
  EXPECT_FALSE(tracker.Apply(beyond));
}

TEST(RequestTracker, PromptLogprobsHaveTheTokensOfThePrompt) {
  RequestTracker tracker(RequestFor(1), 2);
  PromptLogprobs unnamed{tracker.id(), Attempt(0), 1, {{0, -1}, {0, -2}}};
  EXPECT_TRUE(tracker.Apply(unnamed));
  EXPECT_EQ(unnamed.tokens, (std::vector<SampledToken>{{2, -1}, {3, -2}}));
}

// An engine that stops at random places, gives requests back and repeats events
// of earlier attempts: every token must be delivered exactly once, in order.
TEST(RequestTracker, ExactlyOnceUnderRandomLoss) {
  for (std::uint32_t seed = 1; seed <= 2000; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937 random(seed);
    const std::uint32_t sequences = 1 + random() % 3;
    std::vector<std::vector<TokenId>> truth(sequences), got(sequences);
    for (auto& tokens : truth) {
      tokens.resize(random() % 20);
      for (TokenId& token : tokens) token = static_cast<TokenId>(random() % 100);
    }
    RequestTracker tracker(RequestFor(sequences), 1000);
    std::vector<TokenEvent> history;
    std::vector<bool> ended(sequences, false);
    bool over = false;
    for (int attempt = 0; !over && attempt < 1000; ++attempt) {
      const TokenizedRequest submission = tracker.Submission();
      const bool move = attempt < 20 && random() % 4 != 0;
      for (std::uint32_t b = 0; b < sequences; ++b) {
        // A sloppy engine repeats a few tokens of the prefix.
        std::uint32_t at = submission.output_prefix.empty()
                               ? 0
                               : static_cast<std::uint32_t>(submission.output_prefix[b].size());
        at -= std::min<std::uint32_t>(at, random() % 3);
        const auto until = move ? at + random() % 8 : truth[b].size();
        for (; at < truth[b].size() && at < until; ++at) {
          if (!history.empty() && random() % 5 == 0) {
            const TokenEvent old = history[random() % history.size()];
            if (tracker.Apply(old) == Verdict::kNew) ADD_FAILURE() << "delivered twice";
          }
          const TokenEvent event = Token(tracker, b, at, truth[b][at]);
          history.push_back(event);
          const Verdict verdict = tracker.Apply(event);
          ASSERT_NE(verdict, Verdict::kGap);
          if (verdict == Verdict::kNew) got[b].push_back(event.sampled.token);
        }
        const bool whole = at >= truth[b].size();
        const bool told =
            tracker.Apply(SequenceEnd{tracker.id(), submission.attempt, SequenceIndex(b),
                                      whole ? FinishReason::kStop : FinishReason::kMoved, at});
        if (told) {
          ASSERT_FALSE(ended[b]);
          ended[b] = true;
        }
      }
      over = tracker.Apply(RequestEnd{tracker.id(), submission.attempt}) == EndVerdict::kFinal;
    }
    ASSERT_TRUE(over);
    ASSERT_EQ(got, truth);
    ASSERT_EQ(ended, std::vector<bool>(sequences, true));
  }
}

}  // namespace
}  // namespace flotilla::router
