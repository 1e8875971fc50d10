// OutputLengths: how long answers become, as the ends of earlier ones show.
//
// Answers are counted by class: tenant, the power of two of max_tokens, and the power of two of
// the prompt's length. A forecast is conditional on the tokens that an answer already has. It
// comes from the most specific class that has seen enough answers: that of the tenant with both
// lengths, of the tenant with max_tokens, of all tenants with both lengths, of all tenants with
// max_tokens. Until the last one has seen enough, its forecast is mixed with a prior, which is a
// share of max_tokens. Answers that have not ended count by the tokens that they have: long ones
// end last, so without them answers would seem to be short. Integers only; memory is bounded: the
// classes of tenants that were used least recently are forgotten.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>

#include "absl/strings/string_view.h"
#include "scheduler/core/forecast/decaying_histogram.h"

namespace flotilla::scheduler {

// What a request's answers are expected to have in common with others.
struct AnswerClass {
  std::uint64_t tenant = 0;                 // a hash of its name
  std::uint8_t max_tokens = 0, prompt = 0;  // powers of two

  // `max_is_given` is false if the client left max_tokens out; such answers are a class.
  static AnswerClass Of(absl::string_view tenant, std::uint32_t max_tokens, bool max_is_given,
                        std::uint32_t prompt_tokens);
};

// The output tokens that an answer is expected to have in all.
struct OutputForecast {
  // Answers of a class differ, so some end long before the mean one. Each part is as likely.
  static constexpr std::size_t kParts = 8;

  std::uint32_t mean = 0;
  std::uint32_t upper = 0;  // kUpperPermille of the answers have no more; at least `mean`
  std::array<std::uint32_t, kParts> parts{};  // the mean of each part, ascending

  // An answer that will surely have so many.
  static OutputForecast Exactly(std::uint32_t outputs) {
    OutputForecast exact{.mean = outputs, .upper = outputs};
    exact.parts.fill(outputs);
    return exact;
  }
};

class OutputLengths {
 public:
  static constexpr std::uint32_t kUpperPermille = 950;
  // So many answers of a class are enough.
  static constexpr std::uint32_t kEnough = 50;
  // The most classes of single tenants.
  static constexpr std::size_t kMostTenantClasses = 512;

  // The prior is `prior_permille` of max_tokens.
  explicit OutputLengths(std::uint32_t prior_permille) : prior_permille_(prior_permille) {}

  // Records an answer that ended by itself after `outputs` tokens.
  void Learn(const AnswerClass& answers, std::uint32_t outputs);

  // An answer that had `before` tokens when it was last reported has `made` now. 0: it is not, or
  // no longer, under way.
  void Report(const AnswerClass& answers, std::uint32_t before, std::uint32_t made);

  // Forecasts an answer that has `made` tokens and may have `most`. All results are from
  // made + 1 to `most`, or `most` if it has them all.
  OutputForecast Predict(const AnswerClass& answers, std::uint32_t made, std::uint32_t most) const;
  // The length that stands for an answer that was ended when it had `made` tokens: the mean of
  // those that are longer. If hardly any is known, twice as much, since answers that never end in
  // time would otherwise be taken for short ones.
  std::uint32_t Impute(const AnswerClass& answers, std::uint32_t made, std::uint32_t most) const;
  // Whether kEnough such answers were seen. Before, a forecast is little more than max_tokens.
  bool Knows(const AnswerClass& answers) const;
  // The tokens that all but `permille` of such answers reach. 0 unless enough were seen.
  std::uint32_t Least(const AnswerClass& answers, std::uint32_t permille) const;

  std::size_t classes() const { return of_all_.size() + of_tenant_.size(); }

 private:
  static constexpr std::uint8_t kAnyPrompt = 0xff;
  using Key = std::array<std::uint64_t, 2>;  // the tenant; both lengths
  using Lengths = DecayingHistogram<3, 24>;
  struct Class {
    Lengths outputs{1024};
    Lengths open{1 << 20};   // what answers have that have not ended
    std::uint64_t used = 0;  // the time, in answers, of the last one
  };
  static Key KeyOf(const AnswerClass& answers, bool tenant, bool prompt);
  // The most specific class with enough answers, or else that of all tenants with
  // max_tokens; null if that has none.
  const Class* Find(const AnswerClass& answers) const;

  std::uint32_t prior_permille_;
  std::uint64_t answers_ = 0;
  std::map<Key, Class> of_all_, of_tenant_;
};

}  // namespace flotilla::scheduler
