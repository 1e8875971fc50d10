#include "cli/suggest.h"

#include <algorithm>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "router/names.h"

namespace flotilla::cli {
namespace {

constexpr std::size_t kMaxTyped = 64;
constexpr std::size_t kMaxNames = 3;
constexpr std::size_t kAllWords = 3;  // the distance of a name with all words, in half errors

std::string Normal(std::string_view name) {
  return absl::StrReplaceAll(absl::AsciiStrToLower({name.data(), name.size()}), {{"_", "-"}});
}

std::vector<std::string> Words(const std::string& name) {
  return absl::StrSplit(name, '-', absl::SkipEmpty());
}

bool HasAllWordsOf(const std::string& name, const std::string& typed) {
  const std::vector<std::string> has = Words(name), wanted = Words(typed);
  return !wanted.empty() && std::all_of(wanted.begin(), wanted.end(), [&](const auto& word) {
    return std::find(has.begin(), has.end(), word) != has.end();
  });
}

}  // namespace

std::vector<std::string> NamesLike(std::string_view typed, const std::vector<std::string>& names) {
  if (typed.size() > kMaxTyped) return {};
  const std::string wanted = Normal(typed);
  // Every flag begins with dashes, so they say nothing about which flag was meant.
  const std::size_t letters =
      wanted.size() - std::min(wanted.find_first_not_of('-'), wanted.size());
  const std::size_t limit = std::min<std::size_t>(3, (letters + 2) / 3);
  std::vector<std::pair<std::size_t, std::string>> near;  // distance in half errors, name
  for (const std::string& name : names) {
    const std::size_t errors = router::EditDistance(wanted, Normal(name));
    if (errors <= limit) near.emplace_back(2 * errors, name);
  }
  for (const std::string& name : names) {
    if (HasAllWordsOf(Normal(name), wanted)) near.emplace_back(kAllWords, name);
  }
  std::stable_sort(near.begin(), near.end(),
                   [](const auto& a, const auto& b) { return a.first < b.first; });
  // The user most probably meant the nearest name, or one of several equally near ones.
  std::vector<std::string> best;
  for (const auto& [far, name] : near) {
    if (far == near.front().first && best.size() < kMaxNames) best.push_back(name);
  }
  return best;
}

}  // namespace flotilla::cli
