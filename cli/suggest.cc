#include "cli/suggest.h"

#include <algorithm>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"

namespace flotilla {
namespace {

constexpr std::size_t kMaxTyped = 64;
constexpr std::size_t kMaxNames = 3;
constexpr std::size_t kAllWords = 3;  // half errors

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

std::size_t EditDistance(std::string_view a, std::string_view b, std::size_t limit) {
  // Rows of the usual table, for the first i - 2, i - 1 and i letters of a.
  std::vector<std::size_t> before(b.size() + 1), last(b.size() + 1), row(b.size() + 1);
  for (std::size_t j = 0; j <= b.size(); ++j) last[j] = j;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      row[j] = std::min({last[j] + 1, row[j - 1] + 1, last[j - 1] + (a[i - 1] != b[j - 1])});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
        row[j] = std::min(row[j], before[j - 2] + 1);
      }
    }
    std::swap(before, last);
    std::swap(last, row);
  }
  return std::min(last[b.size()], limit + 1);
}

std::vector<std::string> NamesLike(std::string_view typed, const std::vector<std::string>& names) {
  if (typed.size() > kMaxTyped) return {};
  const std::string wanted = Normal(typed);
  // Dashes in front are in every flag and say nothing about which.
  const std::size_t letters =
      wanted.size() - std::min(wanted.find_first_not_of('-'), wanted.size());
  const std::size_t limit = std::min<std::size_t>(3, (letters + 2) / 3);
  std::vector<std::pair<std::size_t, std::string>> near;  // how far in half errors, and what
  for (const std::string& name : names) {
    const std::size_t errors = EditDistance(wanted, Normal(name), limit);
    if (errors <= limit) near.emplace_back(2 * errors, name);
  }
  for (const std::string& name : names) {
    if (HasAllWordsOf(Normal(name), wanted)) near.emplace_back(kAllWords, name);
  }
  std::stable_sort(near.begin(), near.end(),
                   [](const auto& a, const auto& b) { return a.first < b.first; });
  // Who is nearer than others is meant.
  std::vector<std::string> best;
  for (const auto& [far, name] : near) {
    if (far == near.front().first && best.size() < kMaxNames) best.push_back(name);
  }
  return best;
}

}  // namespace flotilla
