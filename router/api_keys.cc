#include "router/api_keys.h"

#include <algorithm>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

namespace flotilla::router {
namespace {

constexpr std::string_view kDigestPrefix = "sha256:";

bool IsName(std::string_view name) {
  return !name.empty() && name.size() <= ApiKeys::kMaxNameBytes &&
         std::ranges::all_of(name, [](unsigned char c) {
           return absl::ascii_isalnum(c) || c == '.' || c == '_' || c == '-';
         });
}

bool IsKey(std::string_view key) {
  return key.size() >= ApiKeys::kMinKeyBytes && key.size() <= ApiKeys::kMaxKeyBytes &&
         std::ranges::all_of(key, [](unsigned char c) { return absl::ascii_isgraph(c); });
}

absl::StatusOr<SecretDigest> DigestOf(std::string_view key) {
  if (key.starts_with(kDigestPrefix)) {
    const auto digest = SecretDigest::FromHex(key.substr(kDigestPrefix.size()));
    if (digest.has_value()) return *digest;
    return absl::InvalidArgumentError("sha256: must be followed by 64 hexadecimal digits");
  }
  if (IsKey(key)) return SecretDigest::Of(key);
  return absl::InvalidArgumentError(absl::StrCat("a key must have ", ApiKeys::kMinKeyBytes, " to ",
                                                 ApiKeys::kMaxKeyBytes,
                                                 " printable ASCII characters"));
}

constexpr absl::string_view kMaxPriority = "max-priority=";

// Reads the options, which are the words after the key. A word may be a key by mistake, so
// errors do not quote the words.
absl::Status ReadOptions(const std::vector<absl::string_view>& words, KeyOwner& owner) {
  bool seen = false;
  for (std::size_t i = 2; i < words.size(); ++i) {
    if (!absl::StartsWith(words[i], kMaxPriority)) {
      return absl::InvalidArgumentError(
          "unknown option; a key may be followed by max-priority=N, and by nothing else");
    }
    if (std::exchange(seen, true)) return absl::InvalidArgumentError("max-priority is given twice");
    std::int64_t most = 0;
    if (!absl::SimpleAtoi(absl::StripPrefix(words[i], kMaxPriority), &most) || most < -100 ||
        most > 100) {
      return absl::InvalidArgumentError("max-priority must be a whole number from -100 to 100");
    }
    owner.max_priority = most;
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<ApiKeys> ApiKeys::Parse(std::string_view text) {
  ApiKeys keys;
  std::size_t number = 0;
  const auto wrong = [&number](std::string_view what) {
    return absl::InvalidArgumentError(
        absl::StrCat("line ", number, ": ", absl::string_view(what.data(), what.size())));
  };
  for (const absl::string_view line :
       absl::StrSplit(absl::string_view(text.data(), text.size()), '\n')) {
    ++number;
    const absl::string_view said = absl::StripAsciiWhitespace(line);
    if (said.empty() || said.front() == '#') continue;
    const std::vector<absl::string_view> words =
        absl::StrSplit(said, absl::ByAnyChar(" \t"), absl::SkipEmpty());
    if (words.size() < 2) return wrong("expected NAME KEY or NAME sha256:HEX");
    const std::string_view name(words[0].data(), words[0].size());
    if (!IsName(name)) {
      return wrong(absl::StrCat("a name must have 1 to ", kMaxNameBytes,
                                " letters, digits, '.', '_' and '-'"));
    }
    KeyOwner owner{.name = std::string(name)};
    if (const absl::Status options = ReadOptions(words, owner); !options.ok()) {
      return wrong(std::string(options.message()));
    }
    const auto digest = DigestOf({words[1].data(), words[1].size()});
    if (!digest.ok()) return wrong(std::string(digest.status().message()));
    for (const Key& other : keys.keys_) {
      if (other.digest == *digest) return wrong("this key occurs twice");
    }
    if (keys.keys_.size() == kMaxKeys) return wrong(absl::StrCat("more than ", kMaxKeys, " keys"));
    keys.keys_.push_back({std::move(owner), *digest});
  }
  if (keys.keys_.empty()) return absl::InvalidArgumentError("the file has no key");
  return keys;
}

std::optional<KeyOwner> ApiKeys::Find(std::string_view key) const {
  const SecretDigest digest = SecretDigest::Of(key);
  const Key* found = nullptr;
  for (const Key& one : keys_) {
    if (one.digest == digest) found = &one;
  }
  if (found == nullptr) return std::nullopt;
  return found->owner;
}

}  // namespace flotilla::router
