// Tests what the scheduler's estimates are worth, in virtual time: deadlines, refusals, chunks and
// memory under machines and answer lengths that it has to learn.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdio>
#include <map>
#include <numeric>
#include <set>

#include <gtest/gtest.h>

#include "tests/scheduler/core_harness.h"
#include "tests/support/random.h"

namespace flotilla::scheduler {
namespace {

ExecutorDescription ForecastGroup(std::uint32_t blocks = 4000, std::uint32_t context = 16384) {
  ExecutorDescription group = testing::FakeExecutorOptions::DefaultDescription();
  group.vocab_size = 1000;
  group.max_context = context;
  group.groups = {KvGroup{.tokens_per_block = 16}};
  group.block_count = blocks;
  group.max_sequences = 512;
  group.max_step_tokens = 8192;
  group.prefill_ns_per_token = 20'000;
  group.decode_ns_per_step = 1'000'000;
  return group;
}

// A prompt that shares no block with those of other ids. Its tokens are below 900.
std::vector<TokenId> PromptOf(std::uint64_t id, std::uint32_t tokens) {
  std::vector<TokenId> prompt;
  for (std::uint64_t i = 0; i < tokens; ++i) {
    prompt.push_back(static_cast<TokenId>((id * 7919 + i * 31 + id * i) % 900));
  }
  return prompt;
}

constexpr TokenId kStop = 999;

TokenizedRequest LiveRequest(std::uint64_t id, std::uint32_t prompt, std::uint32_t max_tokens) {
  TokenizedRequest request = CoreHarness::Request(id, 1, max_tokens);
  request.prompt = PromptOf(id, prompt);
  request.stop.stop_tokens = {kStop};
  return request;
}

TEST(Forecast, ADeadlineThatCanBeMetIsMetAfterManyShortPrompts) {
  CoreHarness harness({.max_step_tokens = 2048, .max_chunk_tokens = 2048}, ForecastGroup(), "edf");
  harness.step_ns = [](std::uint32_t prefill, std::uint32_t decodes) {
    return std::max<std::int64_t>(4'000'000, std::int64_t{20'000} * (prefill + decodes));
  };
  for (std::uint64_t id = 1; id <= 40; ++id) {
    harness.Submit(id, 20, 2);
    harness.RunAll();
  }
  TokenizedRequest request = CoreHarness::Request(100, 8000, 2);
  request.deadline_ns = harness.now_ns + 1'000'000'000;
  harness.core.Submit(harness.now_ns, request);
  harness.RunAll();
  EXPECT_EQ(harness.ReasonOf(100), FinishReason::kLength);
}

// Requests that ended for their deadlines: before they had a token, and later. Some of them would
// have met these if they had run next.
struct Mix {
  int dropped = 0, could_start = 0;
  int ended = 0, could_go_on = 0;
};

// Serves a seeded mix under edf on a machine of random costs. What is left of a request that is
// ended for its deadline is computed by the true costs as if it ran next beside those that decode.
Mix DropsOf(std::uint64_t seed) {
  testing::Random random(seed);
  const std::int64_t fixed = random.Between(200'000, 5'000'000);
  const std::int64_t row = random.Between(5'000, 400'000);
  const std::int64_t context = random.Between(0, 200), decode_context = random.Between(0, 800);
  const auto chunk_ns = [=](std::int64_t begin, std::int64_t rows) {
    return row * rows + context * (rows * begin + rows * (rows + 1) / 2);
  };
  const auto decode_ns = [=](std::int64_t length) { return row + decode_context * length; };
  CoreHarness harness({.max_seqs = 8, .prefix_cache = false}, ForecastGroup(), "edf");
  harness.batch_ns = [=](const worker::Batch& batch) {
    std::int64_t ns = fixed;
    for (const worker::BatchItem& item : batch.items) {
      ns += item.decode ? decode_ns(item.first_position + 1)
                        : chunk_ns(item.first_position, item.row_count);
    }
    return ns;
  };
  struct Sent {
    std::int64_t prompt, outputs, deadline;
  };
  struct Begun {
    std::int64_t computed = 0, made = 0;
    bool decodes = false;
  };
  std::map<std::uint64_t, Sent> sent;
  std::map<std::uint64_t, Begun> begun;  // at the last call of `look`, when no plan is in flight
  const auto look = [&] {
    begun.clear();
    for (const OpenSequenceView& view : harness.core.OpenSequences()) {
      const std::uint64_t id = view.request.counter;
      begun[id] = {.computed = view.length.computed,
                   .made = static_cast<std::int64_t>(view.tokens.size()) - sent[id].prompt,
                   .decodes = view.state == SequenceState::kDecode};
    }
  };
  const auto needs_ns = [&](std::uint64_t id) {
    const Sent& one = sent[id];
    const Begun own = begun.contains(id) ? begun[id] : Begun{};
    std::vector<std::pair<std::int64_t, std::int64_t>> others;  // length, outputs left
    for (const auto& [other, has] : begun) {
      if (other == id || !has.decodes || harness.EndOf(other).has_value()) continue;
      others.emplace_back(sent[other].prompt + has.made, sent[other].outputs - has.made);
    }
    std::int64_t ns = 0, step = 0;
    const auto beside = [&] {
      std::int64_t sum = fixed;
      for (const auto& [length, left] : others) sum += left > step ? decode_ns(length + step) : 0;
      ++step;
      return sum;
    };
    const auto chunk = std::int64_t{256} - static_cast<std::int64_t>(others.size());
    for (std::int64_t at = own.computed; at < one.prompt; at += chunk) {
      ns += beside() + chunk_ns(at, std::min(chunk, one.prompt - at));
    }
    for (std::int64_t i = std::max<std::int64_t>(own.made, 1); i < one.outputs; ++i) {
      ns += beside() + decode_ns(one.prompt + i);
    }
    return ns;
  };
  Mix mix;
  std::set<std::uint64_t> ended;
  for (std::uint64_t id = 1; id <= 60 || harness.core.live_requests() > 0;) {
    look();
    while (id <= 60 && (harness.core.live_requests() < 4 || random.OneIn(6))) {
      Sent& one = sent[id];
      one.prompt = static_cast<std::int64_t>(random.Between(4, random.OneIn(4) ? 3000 : 200));
      one.outputs = static_cast<std::int64_t>(random.Between(1, 60));
      one.deadline = harness.now_ns +
                     static_cast<std::int64_t>(random.Between(needs_ns(id) / 2, 6 * needs_ns(id)));
      TokenizedRequest request = LiveRequest(id, static_cast<std::uint32_t>(one.prompt),
                                             static_cast<std::uint32_t>(one.outputs));
      request.stop.stop_tokens.clear();
      request.deadline_ns = one.deadline;
      harness.core.Submit(harness.now_ns, request);
      ++id;
    }
    const StallReason stall = harness.Plan();
    for (const auto& [counter, one] : sent) {
      if (ended.contains(counter)) continue;
      const std::optional<RequestEnd> end = harness.EndOf(counter);
      if (!end.has_value()) continue;
      ended.insert(counter);
      if (!absl::IsDeadlineExceeded(end->status) || harness.now_ns >= one.deadline) continue;
      const bool could = harness.now_ns + needs_ns(counter) <= one.deadline;
      const bool is_drop = harness.TokensOf(counter) == 0;
      ++(is_drop ? mix.dropped : mix.ended);
      (is_drop ? mix.could_start : mix.could_go_on) += could;
    }
    if (stall != StallReason::kNone && harness.plans.empty()) continue;
    harness.Answer();
  }
  return mix;
}

TEST(Forecast, WhoIsDroppedCouldNotHaveMetItsDeadline) {
  Mix all;
  for (std::uint64_t seed = 1; seed <= 1000; ++seed) {
    const Mix mix = DropsOf(seed);
    all.dropped += mix.dropped;
    all.ended += mix.ended;
    all.could_start += mix.could_start;
    all.could_go_on += mix.could_go_on;
  }
  std::printf(
      "in 1,000 mixes %d dropped before and %d after their first token; %d and %d of them could "
      "have "
      "met their deadline\n",
      all.dropped, all.ended, all.could_start, all.could_go_on);
  EXPECT_GT(all.dropped, 1000);
  EXPECT_GT(all.ended, 1000);
  EXPECT_LE(all.could_start * 100, all.dropped);
  EXPECT_LE(all.could_go_on * 100, all.ended);
}

TEST(Forecast, ChunksBehindALongContextKeepToTheInterTokenTarget) {
  CoreHarness harness(
      {.max_step_tokens = 512, .max_chunk_tokens = 512, .itl_target_ns = 60'000'000},
      ForecastGroup(8000));
  harness.batch_ns = ThisCpuNs;
  const TokenizedRequest base = CoreHarness::Request(9, 8000, 2);
  harness.core.Submit(0, base);
  harness.RunAll();  // 8,000 tokens are cached
  harness.Submit(1, 4, 3000);
  for (int i = 0; i < 50; ++i) {
    harness.Plan();
    harness.Answer();
  }
  int over = 0, mixed = 0;
  std::int64_t worst = 0;
  for (std::uint64_t k = 0; k < 12; ++k) {
    TokenizedRequest request = k % 2 ? CoreHarness::Request(100 + k, 600, 1) : base;
    request.id.counter = 100 + k;
    request.stop.max_tokens = 1;
    for (std::uint64_t i = 0; k % 2 == 0 && i < 400; ++i) {
      request.prompt.push_back(static_cast<TokenId>((k * 17 + i * 3) % 1000));
    }
    harness.core.Submit(harness.now_ns, request);
    while (!harness.EndOf(100 + k).has_value()) {
      harness.Plan();
      const StepResult result = harness.Answer();
      if (result.timings.rows == result.timings.decode_rows) continue;
      ++mixed;
      over += result.timings.compute_ns > 66'000'000;
      worst = std::max(worst, result.timings.compute_ns);
    }
  }
  std::printf("%d of %d mixed steps above 66 ms, the worst %.0f ms\n", over, mixed,
              static_cast<double>(worst) * 1e-6);
  EXPECT_LE(over * 20, mixed);
}

TEST(Forecast, NobodyIsRefusedWhilePlacesAreFree) {
  CoreHarness harness({.max_seqs = 64, .max_wait_ns = 1'000'000'000}, ForecastGroup());
  harness.step_ns = [](std::uint32_t prefill, std::uint32_t decodes) {
    return 3'000'000 + std::int64_t{30'000} * prefill + std::int64_t{100'000} * decodes;
  };
  harness.Submit(1, 20, 300);
  for (int i = 0; i < 200; ++i) {
    harness.Plan();
    harness.Answer();
  }
  for (std::uint64_t id = 10; id < 30; ++id) {
    harness.Submit(id, 150, 400);
    EXPECT_FALSE(harness.EndOf(id).has_value()) << id;
  }
}

// Serves `count` requests whose answers have `outputs` of 1,000 tokens. Returns what the core
// expects of the next one.
std::uint64_t ExpectedAfter(CoreHarness& harness, std::uint64_t first_id, int count,
                            std::uint32_t outputs, bool max_tokens_absent = false) {
  harness.token_of = [outputs](const worker::BatchItem&, std::uint32_t output) {
    return output + 1 >= outputs ? kStop : static_cast<TokenId>(output % 900);
  };
  const auto submit = [&](std::uint64_t id) {
    TokenizedRequest request = LiveRequest(id, 100, 1000);
    request.max_tokens_absent = max_tokens_absent;
    harness.core.Submit(harness.now_ns, request);
    harness.TakeEvents();
  };
  for (int i = 0; i < count; ++i) submit(first_id++);
  harness.RunAll(100'000);
  submit(first_id);
  const std::uint64_t expected =
      std::get<Accepted>(harness.events[first_id].front()).expected_outputs;
  EXPECT_EQ(harness.core.Snapshot().load.outstanding_tokens, 100 + expected);
  harness.RunAll();
  EXPECT_EQ(harness.core.Snapshot().load.outstanding_tokens, 0u);
  return expected;
}

TEST(Forecast, LoadReportsCountWhatAnswersAreExpectedToHave) {
  CoreHarness harness({}, ForecastGroup());
  EXPECT_EQ(ExpectedAfter(harness, 1, 0, 30), 700u);  // the prior
  EXPECT_NEAR(static_cast<double>(ExpectedAfter(harness, 100, 100, 30)), 30, 4);
}

TEST(Forecast, RequestsWithoutMaxTokensAreAClass) {
  CoreHarness harness({}, ForecastGroup());
  EXPECT_NEAR(static_cast<double>(ExpectedAfter(harness, 1, 60, 30, true)), 30, 4);
  EXPECT_NEAR(static_cast<double>(ExpectedAfter(harness, 1000, 60, 300)), 300, 30);
  EXPECT_NEAR(static_cast<double>(ExpectedAfter(harness, 2000, 0, 30, true)), 30, 4);
}

// Requests of 100 tokens, of whose answers 15 in 100 have 1,500 tokens and the others 30.
std::uint32_t OutputsOf(std::uint64_t seed) {
  return (seed * 2654435761u >> 7) % 100 < 85 ? 30u : 1500u;
}

// The max_tokens that a client sends for an answer of so many tokens. None: it leaves them out, and
// the server allows what the context has left.
using MaxTokensOf = std::function<std::optional<std::uint32_t>(std::uint32_t outputs)>;

TokenizedRequest RequestWith(std::uint64_t id, std::uint32_t prompt, std::uint32_t outputs,
                             const MaxTokensOf& max_tokens_of) {
  constexpr std::uint32_t kContext = 8192;
  const std::optional<std::uint32_t> max_tokens = max_tokens_of(outputs);
  TokenizedRequest request = LiveRequest(id, prompt, max_tokens.value_or(kContext - prompt));
  request.max_tokens_absent = !max_tokens.has_value();
  return request;
}

std::optional<std::uint32_t> ExactMax(std::uint32_t outputs) { return outputs; }
std::optional<std::uint32_t> TwentyTimes(std::uint32_t outputs) {
  return std::min(20 * outputs, 8000u);
}
std::optional<std::uint32_t> NoMax(std::uint32_t) { return std::nullopt; }

// How many steps 300 of them take in 600 blocks, after some have been seen, 50 of the long ones.
std::uint64_t StepsWith(const MaxTokensOf& max_tokens_of, std::uint32_t max_preemptions) {
  CoreHarness harness(
      {.max_seqs = 64, .max_queued_tokens = 1 << 20, .max_preemptions = max_preemptions},
      ForecastGroup(601, 8192));
  harness.token_of = [&](const worker::BatchItem& item, std::uint32_t output) {
    return output + 1 >= OutputsOf(item.sampling->seed) ? kStop
                                                        : static_cast<TokenId>(output % 900);
  };
  std::uint64_t id = 1;
  const auto send = [&] {
    const std::uint32_t outputs = OutputsOf(LiveRequest(id, 100, 1).sampling.seed);
    harness.core.Submit(0, RequestWith(id, 100, outputs, max_tokens_of));
    ++id;
  };
  const auto run = [&] {
    std::uint64_t steps = 0;
    while (harness.core.live_requests() > 0 && steps < 200'000) {
      EXPECT_EQ(harness.Plan(), StallReason::kNone);
      harness.Answer();
      ++steps;
    }
    return steps;
  };
  for (int seen = 0; seen < 50; send())
    seen += OutputsOf(LiveRequest(id, 100, 1).sampling.seed) > 30;
  run();
  for (int i = 0; i < 300; ++i) send();
  return run();
}

TEST(Forecast, MaxTokensThatAreTooLargeCostNoSteps) {
  for (const std::uint32_t max_preemptions : {3u, 1000u}) {
    const std::uint64_t best = StepsWith(ExactMax, max_preemptions);
    const std::uint64_t with_twenty = StepsWith(TwentyTimes, max_preemptions);
    const std::uint64_t with_absent = StepsWith(NoMax, max_preemptions);
    std::printf(
        "at most %u preemptions: %llu steps with exact max_tokens, %llu with 20 times as "
        "much, %llu with none\n",
        max_preemptions, static_cast<unsigned long long>(best),
        static_cast<unsigned long long>(with_twenty), static_cast<unsigned long long>(with_absent));
    EXPECT_LE(with_twenty, best * 105 / 100);
    EXPECT_LE(with_absent, best * 105 / 100);
  }
}

// The mean times to the first token, of answers of 20 and of 400 tokens, under srpt. The prompts
// of the latter have `long_prompt` tokens.
std::pair<double, double> SrptWaits(std::uint32_t long_prompt, const MaxTokensOf& max_tokens_of) {
  CoreHarness harness({.max_seqs = 4}, ForecastGroup(), "srpt");
  const auto outputs_of = [](std::uint64_t seed) { return seed % 2 == 0 ? 20u : 400u; };
  harness.token_of = [&](const worker::BatchItem& item, std::uint32_t output) {
    return output + 1 >= outputs_of(item.sampling->seed) ? kStop
                                                         : static_cast<TokenId>(output % 900);
  };
  harness.step_ns = [](std::uint32_t prefill, std::uint32_t decodes) {
    return 1'000'000 + std::int64_t{20'000} * (prefill + decodes);
  };
  std::map<std::uint64_t, std::int64_t> sent, first;
  const auto step = [&] {
    if (harness.Plan() != StallReason::kNone && harness.plans.empty()) return false;
    harness.Answer();
    for (const auto& [id, events] : harness.events) {
      if (!first.contains(id) && harness.TokensOf(id) > 0) first[id] = harness.now_ns;
    }
    for (const auto& [id, at] : first) harness.events.erase(id);
    return true;
  };
  for (std::uint64_t id = 1; id <= 300; ++id) {
    while (id <= 121 && step()) {  // until 60 answers of each class have been seen
    }
    TokenizedRequest request =
        RequestWith(id, id % 2 == 0 ? 20 : long_prompt, outputs_of(id), max_tokens_of);
    request.sampling.seed = id;
    sent[id] = harness.now_ns;
    harness.core.Submit(harness.now_ns, request);
    for (int s = 0; id % 2 == 0 && s < 100; ++s) step();
  }
  while (step()) {
  }
  double waits[2] = {0, 0};
  int count[2] = {0, 0};
  for (const auto& [id, at] : first) {
    if (id <= 120) continue;
    waits[id % 2] += static_cast<double>(at - sent[id]) * 1e-6;
    ++count[id % 2];
  }
  return {waits[0] / count[0], waits[1] / count[1]};
}

// The lengths of answers are known by the class of max_tokens. If all leave it out, they are known
// by the class of the prompt's length.
TEST(Forecast, SrptOrdersByAnswersAndNotByMaxTokens) {
  const struct {
    const char* what;
    std::uint32_t long_prompt;
    MaxTokensOf max_tokens_of;
  } cases[] = {
      {"4,000 for the short answers", 20,
       [](std::uint32_t outputs) { return outputs == 20 ? 4000 : outputs; }},
      {"20 times as much for all", 20, TwentyTimes},
      {"none for the short answers and as much for the long ones", 20,
       [](std::uint32_t outputs) { return outputs == 20 ? NoMax(20) : 8172; }},
      {"none for the long answers and as much for the short ones", 20,
       [](std::uint32_t outputs) { return outputs == 400 ? NoMax(400) : 8172; }},
      {"none for all", 200, NoMax},
  };
  for (const auto& one : cases) {
    SCOPED_TRACE(one.what);
    const auto [exact_short, exact_long] = SrptWaits(one.long_prompt, ExactMax);
    const auto [short_answers, long_answers] = SrptWaits(one.long_prompt, one.max_tokens_of);
    std::printf("first token with exact max_tokens: %.0f and %.0f ms; with %s: %.0f and %.0f ms\n",
                exact_short, exact_long, one.what, short_answers, long_answers);
    EXPECT_LE(short_answers, 1.2 * exact_short);
    EXPECT_LE(long_answers, 1.2 * exact_long);
  }
}

TEST(Forecast, ProtectedRequestsReserveWhatTheyAreExpectedToNeed) {
  const auto steps = [](const MaxTokensOf& max_tokens_of) {
    CoreHarness harness({.max_seqs = 64,
                         .max_queued_tokens = 1 << 20,
                         .watermark_blocks = 0,
                         .expected_output_permille = 0},
                        ForecastGroup(601, 8192));
    harness.token_of = [](const worker::BatchItem& item, std::uint32_t output) {
      return output >= 250 + item.sampling->seed % 50 ? kStop : static_cast<TokenId>(output % 900);
    };
    std::uint64_t plans = 0;
    for (std::uint64_t id = 1; id <= 260; ++id) {
      harness.core.Submit(0, RequestWith(id, 100, 300, max_tokens_of));
      if (id != 60 && id != 260) continue;  // the first 60 show how long answers are
      plans = 0;
      while (harness.core.live_requests() > 0 && plans < 100'000) {
        EXPECT_EQ(harness.Plan(), StallReason::kNone);
        harness.Answer();
        ++plans;
      }
    }
    return plans;
  };
  const std::uint64_t exact = steps(ExactMax), large = steps(TwentyTimes), none = steps(NoMax);
  std::printf("%llu steps with max_tokens 300, %llu with 6,000, %llu with none\n",
              static_cast<unsigned long long>(exact), static_cast<unsigned long long>(large),
              static_cast<unsigned long long>(none));
  EXPECT_LE(large, exact * 105 / 100);
  EXPECT_LE(none, exact * 105 / 100);
}

// What a closed loop of `concurrency` clients gets from this CPU with the default options.
struct Stream {
  double median_ms = 0, p99_ms = 0, tokens_per_s = 0, ttft_p99_ms = 0;
};
Stream ClosedLoop(const CoreOptions& options, std::uint64_t concurrency, std::uint64_t count) {
  ExecutorDescription group = ForecastGroup();
  group.prefill_ns_per_token = kThisCpuPrefillNs;
  group.decode_ns_per_step = kThisCpuDecodeNs;
  CoreHarness harness(options, group);
  harness.batch_ns = ThisCpuNs;
  std::map<std::uint64_t, std::int64_t> last;
  std::vector<double> gaps, firsts;
  std::uint64_t id = 0, tokens = 0, live = 0;
  while (live > 0 || id < count) {
    for (; live < concurrency && id < count; ++live) {
      harness.core.Submit(harness.now_ns, LiveRequest(++id, 130, 96));
      last[id] = -harness.now_ns;
    }
    harness.Plan();
    harness.Answer();
    for (const auto& [counter, events] : harness.events) {
      for (const EngineEvent& event : events) {
        live -= std::holds_alternative<RequestEnd>(event);
        if (!std::holds_alternative<TokenEvent>(event)) continue;
        std::int64_t& before = last[counter];
        const double gap = static_cast<double>(harness.now_ns - std::abs(before)) * 1e-6;
        (before > 0 ? gaps : firsts).push_back(gap);
        ++tokens;
        before = harness.now_ns;
      }
    }
    harness.events.clear();
  }
  const auto quantile = [](std::vector<double>& all, std::size_t percent) {
    std::sort(all.begin(), all.end());
    return all[all.size() * percent / 100];
  };
  return {.median_ms = quantile(gaps, 50),
          .p99_ms = quantile(gaps, 99),
          .tokens_per_s = static_cast<double>(tokens) * 1e9 / static_cast<double>(harness.now_ns),
          .ttft_p99_ms = quantile(firsts, 99)};
}

// A first round of all clients at once, too, on a machine of which nothing but the description is
// known.
TEST(Forecast, ByDefaultChunksFollowTheTimeOfSteps) {
  for (const std::uint64_t count : {96, 960}) {
    for (const std::uint64_t concurrency : {8, 32}) {
      const Stream stream = ClosedLoop({}, concurrency, count);
      const Stream whole = ClosedLoop({.itl_permille = 0}, concurrency, count);
      std::printf(
          "%d requests, %d at once: a token each %.1f ms in the median, %.1f ms at p99 (%.1f with "
          "whole chunks), first token at p99 after %.0f ms (%.0f), %.0f tokens/s (%.0f)\n",
          static_cast<int>(count), static_cast<int>(concurrency), stream.median_ms, stream.p99_ms,
          whole.p99_ms, stream.ttft_p99_ms, whole.ttft_p99_ms, stream.tokens_per_s,
          whole.tokens_per_s);
      EXPECT_LE(stream.p99_ms, 3 * stream.median_ms);
      EXPECT_GE(stream.tokens_per_s, 0.97 * whole.tokens_per_s);
      EXPECT_LE(stream.ttft_p99_ms, 1.5 * whole.ttft_p99_ms);
    }
  }
}

// On a machine whose time the model has learned, chunks fill steps up to 2.5 times what the decodes
// take alone, and not beyond.
TEST(Forecast, ByDefaultStepsWithChunksTakeTwoAndAHalfTimesAsLongAsDecodesAlone) {
  CoreHarness harness({.max_step_tokens = 2048, .max_chunk_tokens = 2048}, ForecastGroup());
  harness.step_ns = [](std::uint32_t prefill, std::uint32_t decodes) {
    return 3'000'000 + std::int64_t{30'000} * prefill + std::int64_t{100'000} * decodes;
  };
  // The decodes of the prompt that is computed count, too.
  const double alone_ns = 3'000'000 + 100'000 * 32;
  for (std::uint64_t id = 1; id <= 31; ++id) harness.Submit(id, 20, 2000);
  std::vector<double> ratios;
  for (std::uint64_t id = 100; id < 130; ++id) {
    harness.Submit(id, 3000, 1);
    while (!harness.EndOf(id).has_value()) {
      ASSERT_EQ(harness.Plan(), StallReason::kNone);
      const StepResult result = harness.Answer();
      const bool last = harness.EndOf(id).has_value();
      if (id < 120 || last || result.timings.rows == result.timings.decode_rows) continue;
      ratios.push_back(static_cast<double>(result.timings.compute_ns) / alone_ns);
    }
  }
  const auto [least, most] = std::minmax_element(ratios.begin(), ratios.end());
  std::printf("%zu steps with chunks take %.2f to %.2f times as long as decodes alone\n",
              ratios.size(), *least, *most);
  EXPECT_GT(ratios.size(), 80u);
  EXPECT_LE(*most, 2.5 * 1.03);
  EXPECT_GE(*least, 2.5 * 0.97);
}

// Prompts come without end. At least one step in 66 has none, and shows what decodes take.
TEST(Forecast, DecodesAloneAreMeasuredHoweverManyPromptsWait) {
  CoreHarness harness({}, ForecastGroup());
  harness.batch_ns = ThisCpuNs;
  harness.Submit(1, 4, 1500);
  int since = 0;
  for (std::uint64_t id = 2; id < 500; ++id) {
    harness.Submit(id, 300, 1);
    ASSERT_EQ(harness.Plan(), StallReason::kNone);
    const StepResult result = harness.Answer();
    since = result.timings.rows == result.timings.decode_rows ? 0 : since + 1;
    ASSERT_LE(since, 66) << id;
  }
}

// Steps of 100 ms, so that none of the eight can make its 1,000 tokens within 60 s.
std::int64_t SlowNs(const worker::Batch&) { return 100'000'000; }

void RunSteps(CoreHarness& harness, int steps) {
  for (int i = 0; i < steps; ++i) {
    ASSERT_EQ(harness.Plan(), StallReason::kNone);
    harness.Answer();
  }
}

TEST(Forecast, TheServersOwnLimitEndsARequestAndPlansNothing) {
  CoreHarness harness({}, ForecastGroup());
  harness.batch_ns = SlowNs;
  const auto submit = [&](std::uint64_t id) {
    TokenizedRequest request = LiveRequest(id, 4, 1000);
    request.stop.stop_tokens.clear();
    request.deadline_ns = 60'000'000'000;
    request.deadline_absent = true;
    harness.core.Submit(harness.now_ns, request);
  };
  for (const std::uint64_t id : {1, 2}) submit(id);
  RunSteps(harness, 40);  // the forecast knows the steps
  for (std::uint64_t id = 3; id <= 8; ++id) submit(id);
  RunSteps(harness, 4);
  for (std::uint64_t id = 1; id <= 8; ++id) EXPECT_GT(harness.TokensOf(id), 0) << id;
  while (harness.core.live_requests() > 0) {
    const bool over = harness.now_ns >= 60'000'000'000;
    if (harness.Plan() == StallReason::kNone) harness.Answer();
    ASSERT_EQ(harness.core.live_requests(), over ? 0u : 8u);
  }
  EXPECT_TRUE(absl::IsDeadlineExceeded(harness.EndOf(8)->status));
  EXPECT_EQ(harness.core.Snapshot().counters.ended_late, 0u);
}

TEST(Forecast, ARequestWithoutADeadlineNeverWaitsForThoseThatHaveOne) {
  CoreHarness harness({}, ForecastGroup());
  harness.batch_ns = [](const worker::Batch& batch) {
    return static_cast<std::int64_t>(1'000'000 + 1'000'000 * batch.items.size());
  };
  for (std::uint64_t id = 100; id < 200; ++id) {  // the forecast learns what a row costs
    harness.Submit(id, 4, 1 + id % 7);
    RunSteps(harness, 2);
  }
  harness.RunAll();
  const auto submit = [&](std::uint64_t id, std::optional<std::int64_t> ms) {
    TokenizedRequest request = LiveRequest(id, 4, 1000);
    request.stop.stop_tokens.clear();
    if (ms.has_value()) request.deadline_ns = harness.now_ns + *ms * 1'000'000;
    harness.core.Submit(harness.now_ns, request);
  };
  for (const std::uint64_t id : {1, 2, 3}) submit(id, 3'800);
  RunSteps(harness, 10);
  submit(4, 50'000);
  RunSteps(harness, 4);
  // By the forecast the others take 3.6 s as they are, and 3.9 s beside one more.
  EXPECT_EQ(harness.TokensOf(4), 0u);
  submit(5, std::nullopt);
  RunSteps(harness, 4);
  EXPECT_GT(harness.TokensOf(5), 0u);
}

// The time of ThisCpuNs on a machine that others use, too: for some steps all are slower or faster,
// by up to a third, and each is by up to a fifth.
class NoisyCpu {
 public:
  std::int64_t operator()(const worker::Batch& batch) {
    if (left_-- == 0) {
      left_ = 20 + random_.Below(60);
      speed_ = 0.7 + 0.6e-3 * random_.Below(1000);
    }
    const double own = 0.8 + 0.4e-3 * random_.Below(1000);
    return static_cast<std::int64_t>(static_cast<double>(ThisCpuNs(batch)) * speed_ * own);
  }

 private:
  testing::Random random_{12};
  std::uint32_t left_ = 0;
  double speed_ = 1;
};

// The requests per second that are served within 4 s, of `rate` that arrive. With fair share
// half of them are one tenant's, a quarter another's, and an eighth each of two more.
double Goodput(const char* policy, bool fair_share, double rate) {
  CoreHarness harness({.fair_share = fair_share}, ForecastGroup(), policy);
  harness.batch_ns = NoisyCpu();
  testing::Random random(11);
  const auto uniform = [&] { return (random.Below(1 << 30) + 0.5) / (1 << 30); };
  constexpr std::int64_t kEnd = 60'000'000'000;
  double next_ns = 0;
  int met = 0;
  std::uint64_t id = 0;
  while (harness.now_ns < kEnd) {
    while (next_ns <= static_cast<double>(harness.now_ns)) {
      TokenizedRequest request = LiveRequest(++id, 130, 96);
      request.deadline_ns = static_cast<std::int64_t>(next_ns) + 4'000'000'000;
      if (fair_share) request.tenant = std::string(1, 'a' + std::countr_zero(id | 8));
      harness.core.Submit(harness.now_ns, request);
      next_ns -= 1e9 / rate * std::log(uniform());
    }
    if (harness.Plan() == StallReason::kNone || !harness.plans.empty()) {
      harness.Answer();
    } else {
      harness.now_ns = static_cast<std::int64_t>(next_ns) + 1;
    }
    harness.TakeEvents();
    for (const auto& [counter, events] : harness.events) {
      for (const EngineEvent& event : events) {
        const auto* end = std::get_if<RequestEnd>(&event);
        met += end != nullptr && end->status.ok();
      }
    }
    harness.events.clear();
  }
  return met * 1e9 / static_cast<double>(kEnd);
}

void ExpectGoodputHolds(bool fair_share) {
  for (const absl::string_view name : PolicyNames()) {
    const std::string policy(name);
    double peak = 0, at_peak = 0;
    std::map<double, double> overloads;
    for (const double rate : {4.0, 6.0, 8.0, 10.0, 12.0, 16.0, 45.0}) {
      const double goodput = Goodput(policy.c_str(), fair_share, rate);
      if (goodput > peak) at_peak = rate;
      peak = std::max(peak, goodput);
      if (rate > 8) overloads[rate] = goodput;
    }
    std::printf("%s%s: %.2f requests/s in time at the peak (%.0f/s)\n", policy.c_str(),
                fair_share ? " and fair share" : "", peak, at_peak);
    for (const auto& [rate, goodput] : overloads) {
      std::printf("    %.2f at %.0f/s\n", goodput, rate);
      EXPECT_GE(goodput, 0.8 * peak);
    }
  }
}

TEST(Forecast, GoodputHoldsAtFiveTimesTheCapacityUnderEveryPolicy) { ExpectGoodputHolds(false); }

TEST(Forecast, GoodputHoldsUnderFairShareToo) { ExpectGoodputHolds(true); }

}  // namespace
}  // namespace flotilla::scheduler
