#include "router/model_name.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"

namespace flotilla::router {
namespace {

// Whether `part` is a weight format, in any case: F16, F32, BF16, FP16, FP32, or as llama.cpp's
// tools write it, Q or IQ with a number of bits and perhaps more letters, digits and _.
bool IsFormat(absl::string_view part) {
  for (const char* name : {"f16", "f32", "bf16", "fp16", "fp32"}) {
    if (absl::EqualsIgnoreCase(part, name)) return true;
  }
  if (absl::StartsWithIgnoreCase(part, "i")) part.remove_prefix(1);
  if (!absl::StartsWithIgnoreCase(part, "q") || part.size() < 2) return false;
  part.remove_prefix(1);
  const bool bits = absl::ascii_isdigit(static_cast<unsigned char>(part.front()));
  return bits && std::all_of(part.begin(), part.end(),
                             [](unsigned char c) { return absl::ascii_isalnum(c) || c == '_'; });
}

}  // namespace

std::string_view WithoutFormat(std::string_view id) {
  const std::size_t last = id.find_last_of(".-");
  if (last == std::string_view::npos || last == 0) return id;
  const std::string_view part = id.substr(last + 1);
  return IsFormat({part.data(), part.size()}) ? id.substr(0, last) : id;
}

std::string_view ModelMeant(std::string_view name, const std::vector<std::string_view>& ids) {
  std::string_view meant;
  for (const std::string_view id : ids) {
    if (id == name) return id;
  }
  for (const std::string_view id : ids) {
    if (name.empty() || WithoutFormat(id) != name) continue;
    if (!meant.empty()) return {};
    meant = id;
  }
  return meant;
}

}  // namespace flotilla::router
