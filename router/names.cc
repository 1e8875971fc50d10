#include "router/names.h"

#include <algorithm>
#include <array>
#include <utility>

#include "common/types/text.h"
#include "router/utf8.h"

namespace flotilla::router {
namespace {

constexpr std::size_t kComparedBytes = 64;
constexpr std::size_t kComparedNames = 256;
constexpr std::size_t kShownNames = 5;
constexpr std::size_t kShownBytes = 100;  // of one name

}  // namespace

std::size_t EditDistance(std::string_view a, std::string_view b) {
  a = a.substr(0, kComparedBytes);
  b = b.substr(0, kComparedBytes);
  // This is Wagner and Fischer's table, of which three rows are needed at a time: row[j] is the
  // distance of the bytes of `a` seen so far to the first j bytes of `b`.
  std::array<std::size_t, kComparedBytes + 1> before{}, last{}, row{};
  for (std::size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    before = std::exchange(last, row);
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      row[j] = std::min({last[j] + 1, row[j - 1] + 1, last[j - 1] + (a[i - 1] != b[j - 1])});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
        row[j] = std::min(row[j], before[j - 2] + 1);
      }
    }
  }
  return row[b.size()];
}

std::string NearestNames(std::string_view wrong, std::vector<std::string> names) {
  const std::size_t count = names.size();
  names.resize(std::min(count, kComparedNames));
  std::vector<std::pair<std::size_t, std::size_t>> order;  // distance, index
  for (std::size_t i = 0; i < names.size(); ++i) {
    order.emplace_back(EditDistance(wrong, names[i]), i);
  }
  std::sort(order.begin(), order.end());
  std::string text;
  const std::size_t shown = std::min(order.size(), kShownNames);
  for (std::size_t i = 0; i < shown; ++i) {
    if (i > 0) text += i + 1 == count ? " and " : ", ";
    const std::string_view name = names[order[i].second];
    text += Cat("'", RepairUtf8(name.substr(0, kShownBytes)), "'");
  }
  if (count > shown) text += Cat(" and ", count - shown, count - shown == 1 ? " other" : " others");
  return text;
}

}  // namespace flotilla::router
