#include "router/dry_breakers.h"

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <map>
#include <optional>
#include <string_view>

#include "common/types/parameters.h"
#include "common/types/text.h"
#include "model/text/tokenizer.h"
#include "router/errors.h"
#include "router/utf8.h"

namespace flotilla::router {
namespace {

constexpr char kField[] = "dry_sequence_breakers";
// Looking at a token for one text takes as long as encoding this many bytes: 20 ns against 100 ns
// for a byte.
constexpr std::size_t kTokensPerByte = 5;

using Tail = std::vector<TokenId>;

// The tokens behind the first `begin` bytes of a text. None if they cannot be encoded by
// themselves, because a character begins before.
std::optional<Tail> TailOf(std::string_view text, std::size_t begin,
                           const model::Tokenizer& tokenizer) {
  const std::string_view rest = text.substr(begin);
  if (!IsValidUtf8(rest)) return std::nullopt;
  absl::StatusOr<Tail> tail = tokenizer.Encode(rest);
  if (!tail.ok()) return std::nullopt;
  tail->resize(std::min(tail->size(), DryBreakers::kMaxTailTokens));
  return *std::move(tail);
}

// Adds a pair of head and tail for each token that contains the text, or ends with its beginning.
// Returns false if there are too many.
bool AddText(std::string_view text, const model::Tokenizer& tokenizer,
             std::vector<std::pair<TokenId, Tail>>& pairs) {
  std::vector<std::optional<Tail>> tails(text.size());  // by the bytes in front
  for (std::size_t begin = 1; begin < text.size(); ++begin) {
    tails[begin] = TailOf(text, begin, tokenizer);
  }
  const auto vocab_size = static_cast<TokenId>(tokenizer.vocab_size());
  for (TokenId token = 0; token < vocab_size; ++token) {
    const std::string_view bytes = tokenizer.TokenBytes(token);
    if (bytes.find(text) != std::string_view::npos) {
      pairs.emplace_back(token, Tail());
    } else {
      for (std::size_t begin = 1; begin < std::min(text.size(), bytes.size() + 1); ++begin) {
        if (tails[begin].has_value() && bytes.ends_with(text.substr(0, begin))) {
          pairs.emplace_back(token, *tails[begin]);
        }
      }
    }
    if (pairs.size() > DryBreakers::kMaxHeads) return false;
  }
  return true;
}

DryBreakers FromPairs(std::vector<std::pair<TokenId, Tail>> pairs) {
  std::sort(pairs.begin(), pairs.end());
  pairs.erase(std::unique(pairs.begin(), pairs.end()), pairs.end());
  std::map<Tail, std::uint32_t> numbers;
  for (const auto& [head, tail] : pairs) numbers.emplace(tail, 0);
  DryBreakers breakers;
  for (auto& [tail, number] : numbers) {
    number = static_cast<std::uint32_t>(breakers.tails.size());
    breakers.tails.push_back(tail);
  }
  for (const auto& [head, tail] : pairs) {
    breakers.heads.push_back(head);
    breakers.tail_of.push_back(numbers[tail]);
  }
  return breakers;
}

}  // namespace

absl::StatusOr<DryBreakers> DryBreakerFinder::Find(const std::vector<std::string>& texts) const {
  if (const auto kept = FindKept(texts)) return *kept;
  std::vector<std::string_view> wanted(texts.begin(), texts.end());
  if (wanted.empty()) wanted.assign(std::begin(kDefaultDryBreakers), std::end(kDefaultDryBreakers));
  std::vector<std::pair<TokenId, Tail>> pairs;
  for (const std::string_view text : wanted) {
    if (!AddText(text, *tokenizer_, pairs)) {
      return InvalidField(kField, Cat(kField, ": more than ", DryBreakers::kMaxHeads,
                                      " tokens contain or begin these texts; leave out '", text,
                                      "', or one before it"));
    }
  }
  auto found = std::make_shared<const DryBreakers>(FromPairs(std::move(pairs)));
  absl::MutexLock lock(&mu_);
  kept_.emplace_front(texts, found);
  if (kept_.size() > kMaxKept) kept_.pop_back();
  return *found;
}

std::size_t DryBreakerFinder::Cost(const std::vector<std::string>& texts) const {
  if (FindKept(texts) != nullptr) return 0;
  const std::size_t count = texts.empty() ? std::size(kDefaultDryBreakers) : texts.size();
  return count * tokenizer_->vocab_size() / kTokensPerByte;
}

std::shared_ptr<const DryBreakers> DryBreakerFinder::FindKept(
    const std::vector<std::string>& texts) const {
  absl::MutexLock lock(&mu_);
  for (const auto& [of, found] : kept_) {
    if (of == texts) return found;
  }
  return nullptr;
}

}  // namespace flotilla::router
