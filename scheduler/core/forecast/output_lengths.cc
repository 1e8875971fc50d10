#include "scheduler/core/forecast/output_lengths.h"

#include <algorithm>
#include <bit>

namespace flotilla::scheduler {

AnswerClass AnswerClass::Of(absl::string_view tenant, std::uint32_t max_tokens, bool max_is_given,
                            std::uint32_t prompt_tokens) {
  constexpr std::uint8_t kAbsent = 33;  // above every power of two
  // FNV-1a, because plans must not depend on the process.
  std::uint64_t hash = 0xcbf29ce484222325;
  for (const char c : tenant) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  return {
      .tenant = hash,
      .max_tokens = max_is_given ? static_cast<std::uint8_t>(std::bit_width(max_tokens)) : kAbsent,
      .prompt = static_cast<std::uint8_t>(std::bit_width(prompt_tokens))};
}

OutputLengths::Key OutputLengths::KeyOf(const AnswerClass& answers, bool tenant, bool prompt) {
  const std::uint64_t lengths =
      std::uint64_t{answers.max_tokens} << 8 | (prompt ? answers.prompt : kAnyPrompt);
  return {tenant ? answers.tenant : 0, lengths};
}

void OutputLengths::Learn(const AnswerClass& answers, std::uint32_t outputs) {
  ++answers_;
  for (const bool prompt : {false, true}) {
    of_all_[KeyOf(answers, false, prompt)].outputs.Add(outputs);
    Class& own = of_tenant_[KeyOf(answers, true, prompt)];
    own.outputs.Add(outputs);
    own.used = answers_;
  }
  while (of_tenant_.size() > kMostTenantClasses) {
    of_tenant_.erase(std::min_element(
        of_tenant_.begin(), of_tenant_.end(),
        [](const auto& a, const auto& b) { return a.second.used < b.second.used; }));
  }
}

const OutputLengths::Class* OutputLengths::Find(const AnswerClass& answers) const {
  const Class* last = nullptr;
  for (const auto& [tenant, prompt] : {std::pair{true, true}, std::pair{true, false},
                                       std::pair{false, true}, std::pair{false, false}}) {
    const std::map<Key, Class>& classes = tenant ? of_tenant_ : of_all_;
    const auto found = classes.find(KeyOf(answers, tenant, prompt));
    last = found == classes.end() ? nullptr : &found->second;
    if (last != nullptr && last->outputs.count() >= kEnough) return last;
  }
  return last;
}

OutputForecast OutputLengths::Predict(const AnswerClass& answers, std::uint32_t made,
                                      std::uint32_t most) const {
  if (made >= most) return {.mean = most, .upper = most};
  const Class* const known = Find(answers);
  const std::uint64_t prior =
      std::max<std::uint64_t>(std::uint64_t{most} * prior_permille_ / 1000, made + 1);
  // An answer that is longer than all others is expected to go on for another eighth.
  const std::uint64_t longer = std::uint64_t{made} + made / 8 + 1;
  std::uint64_t mean = prior, upper = most;
  if (known != nullptr) {
    const std::uint32_t seen = std::min(known->outputs.count(), kEnough);
    const bool longest = known->outputs.CountAbove(made + 1) == 0;
    mean = longest ? longer : known->outputs.Mean(made + 1);
    upper = longest ? longer : known->outputs.Quantile(kUpperPermille, made + 1);
    mean = (mean * seen + prior * (kEnough - seen)) / kEnough;
    upper = (upper * seen + std::uint64_t{most} * (kEnough - seen)) / kEnough;
  }
  mean = std::clamp<std::uint64_t>(mean, made + 1, most);
  return {.mean = static_cast<std::uint32_t>(mean),
          .upper = static_cast<std::uint32_t>(std::clamp<std::uint64_t>(upper, mean, most))};
}

std::uint32_t OutputLengths::Impute(const AnswerClass& answers, std::uint32_t made,
                                    std::uint32_t most) const {
  constexpr std::uint32_t kFew = 4;
  const Class* const known = Find(answers);
  const std::uint64_t longer = known != nullptr && known->outputs.CountAbove(made + 1) >= kFew
                                   ? known->outputs.Mean(made + 1)
                                   : std::uint64_t{2} * made;
  return static_cast<std::uint32_t>(std::min<std::uint64_t>(longer, most));
}

std::uint32_t OutputLengths::Least(const AnswerClass& answers, std::uint32_t permille) const {
  const Class* const known = Find(answers);
  if (known == nullptr || known->outputs.count() < kEnough) return 0;
  return static_cast<std::uint32_t>(known->outputs.Quantile(permille));
}

}  // namespace flotilla::scheduler
