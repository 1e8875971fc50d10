#include "router/api_keys.h"

#include <algorithm>
#include <array>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "router/core/token_bucket.h"

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

struct Option {
  absl::string_view name;
  std::int64_t least, most;
  std::int64_t* value;
  bool seen = false;
};

// Reads the class and the options, which are the words after the key. A word may be a key by
// mistake, so errors do not quote the words.
absl::Status ReadOptions(const std::vector<absl::string_view>& words, KeyOwner& owner,
                         OwnerLimits& limits) {
  std::array<Option, 3> options = {{
      {"max-priority", -100, 100, &owner.max_priority},
      {"tokens-per-minute", 1, TokenBucket::kMostTokens, &limits.tokens_per_minute},
      {"max-concurrent", 1, 1'000'000, &limits.max_concurrent},
  }};
  std::size_t first = 2;
  if (words.size() > first && (words[first] == "user" || words[first] == "admin")) {
    owner.is_admin = words[first++] == "admin";
  }
  for (std::size_t i = first; i < words.size(); ++i) {
    const std::vector<absl::string_view> parts = absl::StrSplit(words[i], absl::MaxSplits('=', 1));
    const auto option = std::find_if(options.begin(), options.end(), [&](const Option& one) {
      return parts.size() == 2 && one.name == parts[0];
    });
    if (option == options.end()) {
      return absl::InvalidArgumentError(
          "unknown option; a key may be followed by user or admin, and then by max-priority=N, "
          "tokens-per-minute=N and max-concurrent=N");
    }
    if (std::exchange(option->seen, true)) {
      return absl::InvalidArgumentError(absl::StrCat(option->name, " is given twice"));
    }
    if (!absl::SimpleAtoi(parts[1], option->value) || *option->value < option->least ||
        *option->value > option->most) {
      return absl::InvalidArgumentError(absl::StrCat(option->name, " must be a whole number from ",
                                                     option->least, " to ", option->most));
    }
  }
  return absl::OkStatus();
}

// Adds a limit to that of the line before, if any.
bool Join(std::int64_t limit, std::int64_t& known) {
  if (limit == 0 || known == limit) return true;
  if (known != 0) return false;
  known = limit;
  return true;
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
    OwnerLimits limits;
    if (const absl::Status options = ReadOptions(words, owner, limits); !options.ok()) {
      return wrong(std::string(options.message()));
    }
    OwnerLimits& known = keys.limits_[owner.name];
    if (!Join(limits.tokens_per_minute, known.tokens_per_minute) ||
        !Join(limits.max_concurrent, known.max_concurrent)) {
      return wrong("a line before gives this name another limit");
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
