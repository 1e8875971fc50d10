#include "simulator/variants.h"

#include <array>
#include <utility>
#include <variant>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

namespace flotilla::simulator {
namespace {

using scheduler::CoreOptions;

constexpr std::size_t kMaxVariants = 64;

struct OptionRow {
  absl::string_view name;
  std::variant<std::uint32_t CoreOptions::*, std::int64_t CoreOptions::*, bool CoreOptions::*>
      field;
  std::uint32_t min = 0, max = 1;  // of numbers
};

constexpr auto kOptions = std::to_array<OptionRow>({
    {"max_seqs", &CoreOptions::max_seqs, 1, 1 << 16},
    {"max_step_tokens", &CoreOptions::max_step_tokens, 1, 1 << 20},
    {"max_chunk_tokens", &CoreOptions::max_chunk_tokens, 1, 1 << 20},
    {"max_queued_requests", &CoreOptions::max_queued_requests, 1, 1u << 30},
    {"max_queued_tokens", &CoreOptions::max_queued_tokens, 1, 1u << 31},
    {"watermark_blocks", &CoreOptions::watermark_blocks, 0, 1 << 16},
    {"expected_output_permille", &CoreOptions::expected_output_permille, 0, 1000},
    {"max_preemptions", &CoreOptions::max_preemptions, 0, 1 << 16},
    {"max_overtaken_rows", &CoreOptions::max_overtaken_rows, 0, 1u << 31},
    {"itl_target_ns", &CoreOptions::itl_target_ns, 0, ~0u},
    {"max_wait_ns", &CoreOptions::max_wait_ns, 0, ~0u},
    {"fair_share", &CoreOptions::fair_share},
    {"prefix_cache", &CoreOptions::prefix_cache},
});

constexpr absl::string_view kFairShare = "+fair_share";

// Sets the policy, and fair share if the name ends with it.
absl::Status SetPolicy(absl::string_view name, Variant* variant) {
  if (absl::ConsumeSuffix(&name, kFairShare)) variant->core.fair_share = true;
  if (absl::Status s = CheckPolicy(name); !s.ok()) return s;
  variant->policy = std::string(name);
  return absl::OkStatus();
}

absl::Status Add(const std::string& name, const std::vector<std::string>& values,
                 std::vector<Variant>& variants) {
  std::vector<Variant> all;
  for (const Variant& variant : variants) {
    for (const std::string& value : values) {
      Variant& next = all.emplace_back(variant);
      if (name == "policy") {
        if (absl::Status s = SetPolicy(value, &next); !s.ok()) return s;
      } else if (name == "host_tokens") {
        if (!absl::SimpleAtoi(value, &next.host_tokens.emplace())) {
          return absl::InvalidArgumentError("host_tokens is a number");
        }
      } else if (absl::Status s = SetCoreOption(name, value, &next.core); !s.ok()) {
        return s;
      }
      absl::StrAppend(&next.label, next.label.empty() ? "" : " ", name, "=", value);
      if (all.size() > kMaxVariants) {
        return absl::InvalidArgumentError(
            absl::StrCat("more than ", kMaxVariants, " combinations to compare"));
      }
    }
  }
  variants = std::move(all);
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckPolicy(absl::string_view name) {
  if (scheduler::MakePolicy(name) != nullptr) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("no policy named \"", name, "\"; there are ",
                                                 absl::StrJoin(scheduler::PolicyNames(), ", ")));
}

std::vector<std::string> CoreOptionNames() {
  std::vector<std::string> names;
  for (const OptionRow& row : kOptions) names.emplace_back(row.name);
  return names;
}

absl::Status SetCoreOption(absl::string_view name, absl::string_view value, CoreOptions* options) {
  for (const OptionRow& row : kOptions) {
    if (row.name != name) continue;
    if (const auto* flag = std::get_if<bool CoreOptions::*>(&row.field)) {
      if (absl::SimpleAtob(value, &(options->*(*flag)))) return absl::OkStatus();
      return absl::InvalidArgumentError(absl::StrCat(name, " is true or false"));
    }
    std::uint32_t number = 0;
    if (!absl::SimpleAtoi(value, &number) || number < row.min || number > row.max) {
      return absl::InvalidArgumentError(
          absl::StrCat(name, " is a number in ", row.min, "..", row.max));
    }
    if (const auto* field = std::get_if<std::int64_t CoreOptions::*>(&row.field)) {
      options->*(*field) = number;
    } else {
      options->*std::get<std::uint32_t CoreOptions::*>(row.field) = number;
    }
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat("no option named \"", name, "\"; there are ",
                                                 absl::StrJoin(CoreOptionNames(), ", ")));
}

absl::StatusOr<std::vector<Variant>> ExpandVariants(const CoreOptions& base,
                                                    const std::vector<std::string>& axes,
                                                    const std::vector<std::string>& policies) {
  std::vector<Variant> variants = {
      {.label = "", .core = base, .policy = "priority", .host_tokens = {}}};
  if (policies.size() == 1) {
    if (absl::Status s = SetPolicy(policies[0], &variants[0]); !s.ok()) return s;
  } else if (!policies.empty()) {
    if (absl::Status s = Add("policy", policies, variants); !s.ok()) return s;
  }
  for (const std::string& axis : axes) {
    const std::pair<std::string, std::string> parts = absl::StrSplit(axis, absl::MaxSplits('=', 1));
    const std::vector<std::string> values = absl::StrSplit(parts.second, ',', absl::SkipEmpty());
    if (values.empty()) {
      return absl::InvalidArgumentError(
          absl::StrCat("\"", axis, "\" is not of the form option=value,value"));
    }
    if (absl::Status s = Add(parts.first, values, variants); !s.ok()) return s;
  }
  return variants;
}

}  // namespace flotilla::simulator
