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

void OutputLengths::Report(const AnswerClass& answers, std::uint32_t before, std::uint32_t made) {
  const auto report = [&](std::map<Key, Class>& classes, const Key& key, bool may_add) {
    auto at = classes.find(key);
    if (at == classes.end() && may_add && made > 0) at = classes.try_emplace(key).first;
    if (at == classes.end()) return;
    if (before > 0) at->second.open.Remove(before);
    if (made > 0) at->second.open.Add(made);
  };
  for (const bool prompt : {false, true}) {
    report(of_all_, KeyOf(answers, false, prompt), true);
    report(of_tenant_, KeyOf(answers, true, prompt), of_tenant_.size() < kMostTenantClasses);
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
  if (made >= most) return OutputForecast::Exactly(most);
  const Class* const known = Find(answers);
  const std::uint64_t prior =
      std::max<std::uint64_t>(std::uint64_t{most} * prior_permille_ / 1000, made + 1);
  // An answer that is longer than all others is expected to go on for another eighth.
  const std::uint64_t longer = std::uint64_t{made} + made / 8 + 1;
  const std::uint32_t seen = known == nullptr ? 0 : std::min(known->outputs.count(), kEnough);
  const Lengths lengths = seen == 0 ? Lengths(1) : known->outputs.WithOpen(known->open);
  const bool longest = lengths.CountAbove(made + 1) == 0;
  const auto forecast = [&](std::uint64_t of_known, std::uint64_t without, std::uint64_t least) {
    const std::uint64_t value =
        ((longest ? longer : of_known) * seen + without * (kEnough - seen)) / kEnough;
    return static_cast<std::uint32_t>(std::clamp<std::uint64_t>(value, least, most));
  };
  OutputForecast all;
  all.mean = forecast(lengths.Mean(made + 1), prior, made + 1);
  all.upper = forecast(lengths.Quantile(kUpperPermille, made + 1), most, all.mean);
  const auto parts = lengths.PartMeans<OutputForecast::kParts>(made + 1);
  for (std::size_t i = 0; i < parts.size(); ++i) {
    all.parts[i] = forecast(parts[i], prior, made + 1);
  }
  return all;
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

bool OutputLengths::Knows(const AnswerClass& answers) const {
  const Class* const known = Find(answers);
  return known != nullptr && known->outputs.count() >= kEnough;
}

std::uint32_t OutputLengths::Least(const AnswerClass& answers, std::uint32_t permille) const {
  const Class* const known = Find(answers);
  if (known == nullptr || known->outputs.count() < kEnough) return 0;
  return static_cast<std::uint32_t>(known->outputs.Quantile(permille));
}

}  // namespace flotilla::scheduler
