// Tests the parts of the forecast alone: what they learn, on recorded steps and answers, and that
// hostile measurements stay in bounds.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <set>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "scheduler/core/forecast/forecast.h"
#include "tests/support/random.h"

namespace flotilla::scheduler {
namespace {

// The rows of a CSV file, without comments and the header.
std::vector<std::vector<std::string>> ReadCsv(const char* path) {
  std::ifstream file(path);
  EXPECT_TRUE(file.good()) << path;
  std::vector<std::vector<std::string>> rows;
  std::string line;
  bool header = true;
  while (std::getline(file, line)) {
    if (line.empty() || line[0] == '#') continue;
    if (!std::exchange(header, false)) {
      std::stringstream cells(line);
      rows.emplace_back();
      for (std::string cell; std::getline(cells, cell, ',');) rows.back().push_back(cell);
    }
  }
  return rows;
}

TEST(Calibration, StepsOfARealMachineArePredictedWithinATenth) {
  StepTimeModel model(400'000, 4'000'000);
  std::vector<double> errors;
  int below = 0;
  bool judge = false;
  for (const auto& row : ReadCsv("tests/data/forecast/steps.csv")) {
    const StepShape shape{.prefill_rows = std::stoull(row[0]),
                          .decode_rows = std::stoull(row[1]),
                          .prefill_context = std::stoull(row[2]),
                          .decode_context = std::stoull(row[3])};
    const std::int64_t ns = std::stoll(row[4]);
    if (judge) {  // every other step is fitted
      errors.push_back(std::abs(static_cast<double>(model.PredictNs(shape) - ns)) /
                       static_cast<double>(ns));
      below += ns <= model.QuantileNs(shape, 900);
    } else {
      model.Observe(shape, ns);
    }
    judge = !judge;
  }
  ASSERT_GT(errors.size(), 400u);
  std::sort(errors.begin(), errors.end());
  const double share = below / static_cast<double>(errors.size());
  std::printf("median error %.1f %%, p90 %.1f %%; %.1f %% of steps below the predicted p90\n",
              100 * errors[errors.size() / 2], 100 * errors[errors.size() * 9 / 10], 100 * share);
  EXPECT_LE(errors[errors.size() / 2], 0.10);
  EXPECT_GE(share, 0.85);
  EXPECT_LE(share, 0.95);
}

TEST(Calibration, LengthsOfAnswersAreForecastByTheirClasses) {
  OutputLengths lengths(700);
  int below = 0, judged = 0;
  double forecast = 0, real = 0, ratio = 0;
  bool judge = false;
  for (const auto& row : ReadCsv("tests/data/forecast/answer_lengths.csv")) {
    const auto max_tokens = static_cast<std::uint32_t>(std::stoul(row[1]));
    const auto prompt = static_cast<std::uint32_t>(std::stoul(row[2]));
    const auto outputs = static_cast<std::uint32_t>(std::stoul(row[3]));
    const AnswerClass answers = AnswerClass::Of(row[0], max_tokens, max_tokens > 0, prompt);
    if (judge) {
      const OutputForecast said =
          lengths.Predict(answers, 0, max_tokens > 0 ? max_tokens : 16384 - prompt);
      below += outputs <= said.upper;
      forecast += said.mean;
      real += outputs;
      ratio += 1;
      ++judged;
    } else {
      lengths.Learn(answers, outputs);
    }
    judge = !judge;
    if (lengths.classes() > 0 && judged == 300) {  // until then classes are being learned
      below = 0, judged = 301, forecast = real = ratio = 0;
    }
  }
  const double share = below / ratio;
  std::printf("%.0f answers: %.1f %% within the upper forecast; mean forecast %.0f, real %.0f\n",
              ratio, 100 * share, forecast / ratio, real / ratio);
  EXPECT_GE(share, 0.90);
  EXPECT_LE(share, 0.98);
  EXPECT_NEAR(forecast / real, 1, 0.1);
}

// An answer of a real model, as one of six applications asked for it.
struct RecordedAnswer {
  AnswerClass answers;
  std::uint32_t most = 0, outputs = 0;
  std::int64_t sent = 0, ended = 0;  // ms
  std::uint32_t reported = 0;        // as in Sequence
};

std::vector<RecordedAnswer> ReadAnswers() {
  constexpr std::uint32_t kContext = 1024;  // of the server that gave them
  std::vector<RecordedAnswer> all;
  for (const auto& row : ReadCsv("tests/data/forecast/recorded_answers.csv")) {
    const auto max_tokens = static_cast<std::uint32_t>(std::stoul(row[1]));
    const auto prompt = static_cast<std::uint32_t>(std::stoul(row[2]));
    all.push_back({.answers = AnswerClass::Of(row[0], max_tokens, max_tokens > 0, prompt),
                   .most = max_tokens > 0 ? max_tokens : kContext - prompt,
                   .outputs = static_cast<std::uint32_t>(std::stoul(row[3])),
                   .sent = std::stoll(row[4]),
                   .ended = std::stoll(row[5])});
  }
  return all;
}

struct LengthErrors {
  std::vector<double> of_median;  // relative to the answers
  double below_p90 = 0, within_upper = 0;
  double means = 0, outputs = 0;
};

// 1 if the answer is shorter than the predicted p90, 0 if it is longer. Many answers have all of
// max_tokens. Where that is several quantiles at once, the part of them below p90 counts.
double BelowP90(const OutputLengths& lengths, const RecordedAnswer& one) {
  constexpr std::uint32_t kP90 = 900;
  std::uint32_t below = 0, within = 0;  // permille
  for (std::uint32_t permille = 1; permille <= 1000; ++permille) {
    const std::uint32_t value = std::min(lengths.Least(one.answers, permille), one.most);
    below += value < one.outputs;
    within += value <= one.outputs;
  }
  if (within <= below) return below < kP90 ? 1 : 0;
  return std::clamp((static_cast<double>(kP90) - below) / (within - below), 0.0, 1.0);
}

// Forecasts each answer when it is sent, by those that have ended and those under way, once 50 of
// its class have ended.
LengthErrors JudgeAnswers(std::vector<RecordedAnswer> all) {
  std::vector<std::pair<std::int64_t, RecordedAnswer*>> events;
  for (RecordedAnswer& one : all) {
    events.emplace_back(one.sent, &one);
    events.emplace_back(one.ended, &one);
  }
  std::stable_sort(events.begin(), events.end(),
                   [](const auto& a, const auto& b) { return a.first < b.first; });
  OutputLengths lengths(700);
  std::set<RecordedAnswer*> open;
  LengthErrors errors;
  for (const auto& [at, one] : events) {
    for (RecordedAnswer* other : open) {  // each makes its tokens at a steady rate
      const auto made = static_cast<std::uint32_t>(other->outputs * (at - other->sent) /
                                                   (other->ended - other->sent));
      lengths.Report(other->answers, std::exchange(other->reported, made), made);
    }
    if (!open.insert(one).second) {
      open.erase(one);
      lengths.Report(one->answers, one->reported, 0);
      lengths.Learn(one->answers, one->outputs);
      continue;
    }
    const double median = lengths.Least(one->answers, 500);
    if (median == 0) continue;
    const OutputForecast said = lengths.Predict(one->answers, 0, one->most);
    errors.of_median.push_back(std::abs(median - one->outputs) / one->outputs);
    errors.below_p90 += BelowP90(lengths, *one);
    errors.within_upper += one->outputs <= said.upper;
    errors.means += said.mean;
    errors.outputs += one->outputs;
  }
  std::sort(errors.of_median.begin(), errors.of_median.end());
  return errors;
}

TEST(Calibration, LengthsOfARealModelsAnswersAreForecast) {
  const LengthErrors errors = JudgeAnswers(ReadAnswers());
  ASSERT_GT(errors.of_median.size(), 150u);
  const auto judged = static_cast<double>(errors.of_median.size());
  const double median = errors.of_median[errors.of_median.size() / 2];
  std::printf(
      "%.0f answers: median error %.0f %%, %.1f %% below p90, %.1f %% within the upper forecast; "
      "mean forecast %.0f, real %.0f\n",
      judged, 100 * median, 100 * errors.below_p90 / judged, 100 * errors.within_upper / judged,
      errors.means / judged, errors.outputs / judged);
  EXPECT_LE(median, 0.45);
  EXPECT_GE(errors.below_p90 / judged, 0.85);
  EXPECT_LE(errors.below_p90 / judged, 0.95);
  EXPECT_GE(errors.within_upper / judged, 0.90);
}

TEST(StepTimeModel, FollowsStepsAndSeparatesTheirTerms) {
  StepTimeModel model(1000, 50'000);
  testing::Random random(3);
  const auto truth = [](const StepShape& s) {
    return static_cast<std::int64_t>(3'000'000 + 20'000 * s.prefill_rows + s.prefill_context * 6 +
                                     60'000 * s.decode_rows + s.decode_context * 30);
  };
  const auto shape = [&] {
    StepShape one;
    for (std::uint64_t i = random.Below(32); i > 0; --i) one.AddDecode(random.Between(10, 4000));
    if (random.OneIn(3) || one.decode_rows == 0) {
      one.AddChunk(random.Below(8000), random.Between(1, 256));
    }
    return one;
  };
  for (int i = 0; i < 600; ++i) {
    const StepShape one = shape();
    // A paused machine gives a step of ten seconds once in a hundred.
    model.Observe(one, i % 100 == 77 ? 10'000'000'000 : truth(one));
  }
  for (int i = 0; i < 100; ++i) {
    const StepShape one = shape();
    EXPECT_NEAR(static_cast<double>(model.PredictNs(one)) / static_cast<double>(truth(one)), 1,
                0.25);
  }
  StepShape decodes;
  decodes.AddDecode(100);
  const std::uint32_t rows =
      model.RowsWithin({.ns = 9'000'000, .strict = true}, decodes, 4000, 2000);
  decodes.AddChunk(4000, rows);
  EXPECT_LE(truth(decodes), 9'900'000);
  EXPECT_GE(truth(decodes), 6'000'000);
}

// What the description says is wrong by any factor. Until there are 100 steps, three in a row that
// are far off on one side correct it.
TEST(StepTimeModel, AWrongDescriptionIsCorrectedInThreeSteps) {
  for (const std::int64_t step_ns : {std::int64_t{40'000}, std::int64_t{4'000'000}}) {
    StepTimeModel model(10'000, 400'000);
    StepShape decodes;
    for (int i = 0; i < 8; ++i) decodes.AddDecode(500);
    for (int i = 0; i < 3; ++i) model.Observe(decodes, step_ns);
    EXPECT_GT(model.PredictNs(decodes), step_ns * 6 / 10);
    EXPECT_LT(model.PredictNs(decodes), step_ns * 14 / 10);
  }
}

TEST(StepTimeModel, AMachineThatBecomesSlowerIsNoticedInTwentySteps) {
  StepTimeModel model(1000, 50'000);
  StepShape decodes;
  for (int i = 0; i < 8; ++i) decodes.AddDecode(500);
  for (int i = 0; i < 500; ++i) model.Observe(decodes, 4'000'000);
  EXPECT_NEAR(static_cast<double>(model.PredictNs(decodes)), 4e6, 4e4);
  for (int i = 0; i < 20; ++i) model.Observe(decodes, 12'000'000);
  EXPECT_NEAR(static_cast<double>(model.PredictNs(decodes)), 12e6, 2e6);
}

// The first steps after a change do not separate the terms, so what they say of other shapes may be
// wrong by any factor.
TEST(StepTimeModel, NothingIsSurelyLateJustAfterAChange) {
  StepTimeModel model(1000, 50'000);
  StepShape decodes;
  for (int i = 0; i < 8; ++i) decodes.AddDecode(500);
  for (int i = 0; i < 500; ++i) model.Observe(decodes, 4'000'000);
  EXPECT_GT(model.QuickestNs(4'000'000, {}), 1'500'000);
  int unknown = 0;
  for (int i = 0; i < 100; ++i) {
    model.Observe(decodes, 12'000'000);
    unknown += model.QuickestNs(12'000'000, {}) == 0;
  }
  EXPECT_EQ(unknown, 32);
  EXPECT_GT(model.QuickestNs(12'000'000, {}), 4'500'000);
}

// Steps of 40 rows do not say what of their time a step of one row has.
TEST(StepTimeModel, StepsOfFewerRowsThanAllMayBeQuick) {
  StepTimeModel model(1000, 4'000'000);
  StepShape many, one;
  for (int i = 0; i < 40; ++i) many.AddDecode(500);
  one.AddDecode(500);
  for (int i = 0; i < 500; ++i) model.Observe(many, 4'000'000);
  EXPECT_GT(model.PredictNs(one), 1'000'000);  // it takes most of the time for fixed
  EXPECT_EQ(model.SureNs(one), model.PredictNs(one) / 40);
  EXPECT_EQ(model.SureNs(many), model.PredictNs(many));
  model.Observe(one, 2'000'000);
  EXPECT_EQ(model.SureNs(one), model.PredictNs(one));
  for (int i = 0; i < 100; ++i) model.Observe(many, 20'000'000);  // all times have changed
  EXPECT_EQ(model.SureNs(one), model.PredictNs(one) / 40);
}

// What context costs is a guess from small ones. Nobody is ended for it.
TEST(StepTimeModel, SureTimesHaveNoMoreContextThanWasSeen) {
  StepTimeModel model(0, 1'000'000);
  testing::Random random(4);
  const auto decodes = [](std::uint64_t context) {
    StepShape shape;
    for (int i = 0; i < 2; ++i) shape.AddDecode(context);
    return shape;
  };
  for (std::uint64_t i = 1; i <= 400; ++i) {
    const std::uint64_t context = 100 * (1 + random.Below(200));
    model.Observe(decodes(context), static_cast<std::int64_t>(900'000 + 100 * context));
  }
  EXPECT_GT(model.PredictNs(decodes(2'000'000)), 10 * model.PredictNs(decodes(20'000)));
  EXPECT_EQ(model.SureNs(decodes(2'000'000)), model.PredictNs(decodes(20'000)));
  EXPECT_EQ(model.SureNs(decodes(100)), model.PredictNs(decodes(100)));
}

TEST(StepTimeModel, HostileTimingsStayInBounds) {
  StepTimeModel model(-5, INT64_MAX);
  testing::Random random(9);
  for (int i = 0; i < 20'000; ++i) {
    const auto wild = [&] {
      return (std::uint64_t{random.Below(UINT32_MAX)} << 32 | random.Below(UINT32_MAX)) >>
             random.Below(64);
    };
    const StepShape shape{.prefill_rows = random.OneIn(2) ? wild() : 0,
                          .decode_rows = wild(),
                          .prefill_context = wild(),
                          .decode_context = wild()};
    model.Observe(shape, i % 40 < 20   ? static_cast<std::int64_t>(wild())
                         : i % 80 < 40 ? 1
                                       : INT64_MAX);
    const std::int64_t ns = model.PredictNs(shape);
    ASSERT_GE(ns, 1);
    ASSERT_LE(ns, StepTimeModel::kMostNs);
    ASSERT_LE(model.QuantileNs(shape, 900), StepTimeModel::kMostNs);
    ASSERT_LE(model.RowsWithin({.ns = 1'000'000}, shape, wild(), 512), 512u);
  }
  EXPECT_EQ(Forecast::RetryAfterMs(-1), 100);
  EXPECT_EQ(Forecast::RetryAfterMs(INT64_MAX), 60'000);
}

// Each step of a prompt takes what a step takes whatever its rows.
TEST(Forecast, APromptTakesAsManyStepsAsItHas) {
  Forecast forecast(700);
  forecast.Begin(20'000, 1'000'000);
  const std::int64_t fixed = forecast.steps().PredictNs({});
  EXPECT_EQ(fixed, 1'000'000);
  const std::int64_t whole = forecast.PrefillNs(0, 2560, 2560);
  EXPECT_EQ(forecast.PrefillNs(0, 2560, 256), whole + 9 * fixed);
  EXPECT_EQ(forecast.PrefillNs(0, 2561, 2561) + 10 * fixed, forecast.PrefillNs(0, 2561, 256));
  EXPECT_EQ(forecast.PrefillNs(100, 0, 256), 0);
}

TEST(OutputLengths, MemoryIsBoundedAndOldTenantsAreForgotten) {
  OutputLengths lengths(700);
  const auto of = [](int tenant) {
    return AnswerClass::Of(std::to_string(tenant), 1000, true, 100);
  };
  for (int tenant = 0; tenant < 5000; ++tenant) {
    for (int i = 0; i < 2; ++i) lengths.Learn(of(tenant), 40);
  }
  EXPECT_LE(lengths.classes(), OutputLengths::kMostTenantClasses + 2);
  // What all tenants have in common is still known.
  EXPECT_NEAR(lengths.Predict(of(5000), 0, 1000).mean, 40, 5);
  EXPECT_EQ(lengths.Predict(of(0), 1000, 1000).mean, 1000u);
  EXPECT_NEAR(lengths.Predict(of(0), 500, 1000).mean, 563, 5);  // beyond all others
}

// Half of all answers have 10 tokens and half have 1,000. One that has 50 is of the latter.
TEST(OutputLengths, AForecastIsConditionalOnTheTokensThatAnAnswerHas) {
  OutputLengths lengths(700);
  const AnswerClass answers = AnswerClass::Of("", 2000, true, 100);
  for (int i = 0; i < 100; ++i) lengths.Learn(answers, i % 2 == 0 ? 10 : 1000);
  EXPECT_NEAR(lengths.Predict(answers, 0, 2000).mean, 505, 50);
  EXPECT_NEAR(lengths.Predict(answers, 50, 2000).mean, 1000, 100);
}

// A sequence that ends in the same step whatever happens.
ForecastWork Work(std::uint64_t steps, std::uint64_t blocks = 10) {
  ForecastWork work;
  work.parts.fill({.steps = steps, .blocks = blocks});
  return work;
}

TEST(Forecast, StepsUntilAPlaceIsFree) {
  ForecastQueue queue{.sequences = 2, .blocks = 100, .rows = 10};
  queue.own = Work(5);
  EXPECT_EQ(WaitUntilStart(queue).steps, 0u);
  queue.begun_tokens = 35;  // prompts that fill three steps
  EXPECT_EQ(WaitUntilStart(queue).steps, 3u);
  queue.running = {Work(7), Work(4)};
  EXPECT_EQ(WaitUntilStart(queue).steps, 4u);
  EXPECT_EQ(WaitUntilStart(queue).decodes, 2u);
  queue.requests = 1;
  queue.mean = Work(20);
  EXPECT_EQ(WaitUntilStart(queue).steps, 7u);
  queue.own = Work(5, 95);
  EXPECT_EQ(WaitUntilStart(queue).steps, 24u);
  queue.requests = 1'000'000'000;
  EXPECT_GT(WaitUntilStart(queue).steps, 9'000'000'000u);
}

// Of two answers, each of which ends after 10 or after 90 steps, one has ended after 10 steps if
// both are as likely, and not after the mean of 50.
TEST(Forecast, AnswersThatMayBeShortLeaveTheirPlacesEarly) {
  ForecastQueue queue{.sequences = 2, .blocks = 100, .rows = 10};
  queue.own = Work(5);
  ForecastWork either = Work(10);
  std::fill(either.parts.begin() + either.parts.size() / 2, either.parts.end(),
            ForecastWork::Part{.steps = 90, .blocks = 10});
  queue.running = {either, either};
  EXPECT_EQ(WaitUntilStart(queue).steps, 10u);
  // One that waits takes that place, and half of it is free again after 20 steps. The rest comes
  // after 90.
  queue.requests = 1;
  queue.mean = either;
  EXPECT_EQ(WaitUntilStart(queue).steps, 90u);
}

TEST(DecayingHistogram, PartsHaveEqualWeightAndKeepTheMean) {
  DecayingHistogram<3, 24> values(1024);
  for (const std::uint64_t value : {1, 2, 3, 4, 5, 6, 7, 8}) values.Add(value);
  EXPECT_EQ(values.PartMeans<4>(), (std::array<std::uint64_t, 4>{1, 3, 5, 7}));
  EXPECT_EQ(values.PartMeans<2>(5), (std::array<std::uint64_t, 2>{5, 7}));
  EXPECT_EQ(values.PartMeans<2>(100), (std::array<std::uint64_t, 2>{100, 100}));
  EXPECT_EQ((DecayingHistogram<3, 24>(8).PartMeans<2>()), (std::array<std::uint64_t, 2>{0, 0}));
}

// What is known of open answers only, in part, weighs what it weighs, however few have ended.
TEST(Calibration, OpenAnswersWeighAsManyAsTheyAre) {
  using Lengths = DecayingHistogram<3, 24>;
  Lengths closed(1024), open(1 << 20);
  for (int i = 0; i < 50; ++i) closed.Add(20 + i % 10);
  closed.Add(4000);
  for (int i = 0; i < 512; ++i) open.Add(static_cast<std::uint64_t>(1 + i * 4));
  const Lengths all = closed.WithOpen(open);
  EXPECT_NEAR(all.count(), 51 + 512, 6);
  EXPECT_LE(all.Mean(), 4600u);
  // In a steady state of equally long answers the mean is theirs.
  Lengths equal(1024), begun(1 << 20);
  for (int i = 0; i < 1000; ++i) equal.Add(400);
  for (int i = 0; i < 4000; ++i) begun.Add(static_cast<std::uint64_t>(i / 10));
  EXPECT_NEAR(equal.WithOpen(begun).Mean(), 400, 40);
}

}  // namespace
}  // namespace flotilla::scheduler
