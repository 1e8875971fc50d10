#include "model/text/splitter.h"

#include <unicode/uchar.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

#include "common/types/text.h"
#include "model/text/byte_level.h"
#include "model/text/characters.h"
#include "model/text/space_mark.h"
#include "model/text/utf8.h"

namespace flotilla::model {
namespace {

using Kind = TextStep::Kind;
using Behavior = TextStep::Behavior;

constexpr size_t kMostSplitters = 16;
constexpr std::string_view kByteLevelSplit =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

// As the reference tokenizers have it, whose tables are those of Unicode 8.
bool IsPunctuation(uint32_t c) {
  if (c < 0x80) {
    return (c >= 0x21 && c <= 0x2f) || (c >= 0x3a && c <= 0x40) || (c >= 0x5b && c <= 0x60) ||
           (c >= 0x7b && c <= 0x7e);
  }
  if (c == 0x166d || c == 0x111c9) return true;  // that later became something else
  UVersionInfo age;
  u_charAge(static_cast<UChar32>(c), age);
  return age[0] <= 8 && (U_GET_GC_MASK(static_cast<UChar32>(c)) & U_GC_P_MASK) != 0;
}

bool IsNumeric(uint32_t c) {
  return c < 0x80 ? c >= '0' && c <= '9'
                  : (U_GET_GC_MASK(static_cast<UChar32>(c)) & U_GC_N_MASK) != 0;
}

// Calls `part` with each character for which `matches` and with what is between them, until it does
// not return true.
template <class Matches, class Part>
absl::StatusOr<bool> SplitCharacters(std::string_view text, const Matches& matches,
                                     const Part& part) {
  size_t begin = 0;
  for (size_t at = 0; at < text.size();) {
    const Utf8Part character = ReadUtf8(text, at);
    const size_t end = at + character.bytes;
    if (matches(character.code_point)) {
      if (at > begin) {
        const absl::StatusOr<bool> more = part(text.substr(begin, at - begin), false);
        if (!more.ok() || !*more) return more;
      }
      const absl::StatusOr<bool> more = part(text.substr(at, end - at), true);
      if (!more.ok() || !*more) return more;
      begin = end;
    }
    at = end;
  }
  return begin == text.size() ? absl::StatusOr<bool>(true) : part(text.substr(begin), false);
}

}  // namespace

// The pieces of one text.
class Splitter::Run {
 public:
  Run(const Splitter& splitter, Piece piece)
      : steps_(splitter.steps_), in_alphabet_(splitter.ends_in_alphabet_), piece_(piece) {}

  // Splits what the steps before `stage` leave. False: `piece` wants no more.
  absl::StatusOr<bool> Split(size_t stage, std::string_view text, bool first) {
    if (text.empty()) return true;
    if (stage == steps_.size()) return in_alphabet_ ? Bytes(text) : piece_(text);
    const Step& by = steps_[stage];
    const TextStep& step = by.step;
    const auto next = [&](std::string_view part) {
      return Split(stage + 1, part, first && part.data() == text.data());
    };
    switch (step.kind) {
      case Kind::kWhitespace:
        return Words(text, next);
      case Kind::kWhitespaceSplit:
        return By(text, IsWhiteSpace, Behavior::kRemoved, next);
      case Kind::kBertPreTokenizer:
        return By(text, IsWhiteSpace, Behavior::kRemoved, [&](std::string_view word) {
          return By(word, IsPunctuation, Behavior::kIsolated, next);
        });
      case Kind::kDigits:
        return By(text, IsNumeric,
                  step.has(TextStep::kEach) ? Behavior::kIsolated : Behavior::kContiguous, next);
      case Kind::kPunctuation:
        return By(text, IsPunctuation, step.behavior, next);
      case Kind::kSplit:
        return Merge(
            step, [&](const auto& part) { return by.pattern->Split(text, part); }, next);
      case Kind::kByteLevel:
        return ByteLevel(stage, text);
      default:
        return Metaspace(stage, text, first);
    }
  }

 private:
  // Passes on what the behaviour of a step makes of parts. `parts` calls its argument with them.
  template <class Parts, class Next>
  static absl::StatusOr<bool> Merge(const TextStep& step, const Parts& parts, const Next& next) {
    std::string_view held;  // a part that may grow
    bool held_matches = false;
    const auto take = [&](std::string_view part, bool is_match) -> absl::StatusOr<bool> {
      const bool matches = is_match != step.has(TextStep::kInvert);
      switch (step.behavior) {
        case Behavior::kRemoved:
          return matches ? absl::StatusOr<bool>(true) : next(part);
        case Behavior::kIsolated:
          return next(part);
        default:
          break;
      }
      const bool joins = step.behavior == Behavior::kContiguous ? matches == held_matches
                         : step.behavior == Behavior::kMergedWithPrevious
                             ? matches && !held_matches
                             : !matches && held_matches;
      held_matches = matches;
      if (!held.empty() && joins) {
        held = {held.data(), held.size() + part.size()};
        return true;
      }
      const std::string_view whole = std::exchange(held, part);
      return whole.empty() ? absl::StatusOr<bool>(true) : next(whole);
    };
    const absl::StatusOr<bool> more = parts(take);
    if (!more.ok() || !*more || held.empty()) return more;
    return next(held);
  }

  template <class Next>
  static absl::StatusOr<bool> By(std::string_view text, bool (*matches)(uint32_t),
                                 Behavior behavior, const Next& next) {
    TextStep step;
    step.behavior = behavior;
    return Merge(
        step, [&](const auto& part) { return SplitCharacters(text, matches, part); }, next);
  }

  // Runs of word characters, and runs of others that are no white space.
  template <class Next>
  static absl::StatusOr<bool> Words(std::string_view text, const Next& next) {
    enum class Class : uint8_t { kSpace, kWord, kOther };
    Class open = Class::kSpace;
    size_t begin = 0;
    for (size_t at = 0; at < text.size();) {
      const Utf8Part part = ReadUtf8(text, at);
      const Class own = IsWhiteSpace(part.code_point)      ? Class::kSpace
                        : IsWordCharacter(part.code_point) ? Class::kWord
                                                           : Class::kOther;
      if (own != open) {
        if (open != Class::kSpace) {
          const absl::StatusOr<bool> more = next(text.substr(begin, at - begin));
          if (!more.ok() || !*more) return more;
        }
        open = own;
        begin = at;
      }
      at += part.bytes;
    }
    return open == Class::kSpace ? absl::StatusOr<bool>(true) : next(text.substr(begin));
  }

  absl::StatusOr<bool> ByteLevel(size_t stage, std::string_view text) {
    const Step& by = steps_[stage];
    std::string with_space;
    if (by.step.has(TextStep::kSpaceAlways) && text[0] != ' ') {
      with_space = Cat(" ", text);
      text = with_space;
    }
    const auto next = [&](std::string_view part) {
      // What nothing splits any more stays as it is.
      if (stage + 1 == steps_.size()) return Split(stage + 1, part, false);
      std::string in_alphabet;
      AppendInByteLevel(part, in_alphabet);
      return Split(stage + 1, in_alphabet, false);
    };
    if (!by.pattern.has_value()) return next(text);
    return by.pattern->Split(text, [&](std::string_view part, bool) { return next(part); });
  }

  absl::StatusOr<bool> Bytes(std::string_view text) {
    std::string bytes;
    if (!AppendByteLevel(text, bytes)) {
      return absl::InternalError("a character behind ByteLevel stands for no byte");
    }
    return piece_(bytes);
  }

  absl::StatusOr<bool> Metaspace(size_t stage, std::string_view text, bool first) {
    const TextStep& step = steps_[stage].step;
    const bool prefix =
        step.has(TextStep::kSpaceAlways) || (step.has(TextStep::kSpaceFirst) && first);
    std::string marked;
    marked.reserve(text.size() + text.size() / 4 + kSpaceMark.size());
    if (prefix && text[0] != ' ' && !text.starts_with(kSpaceMark)) marked += kSpaceMark;
    for (size_t at = 0; at < text.size();) {
      const size_t space = std::min(text.find(' ', at), text.size());
      marked += text.substr(at, space - at);
      if (space < text.size()) marked += kSpaceMark;
      at = space + 1;
    }
    const std::string_view all = marked;
    size_t begin = 0;
    while (step.has(TextStep::kEach)) {
      const size_t end = all.find(kSpaceMark, begin + 1);
      if (end == all.npos) break;
      const auto more = Split(stage + 1, all.substr(begin, end - begin), first && begin == 0);
      if (!more.ok() || !*more) return more;
      begin = end;
    }
    return Split(stage + 1, all.substr(begin), first && begin == 0);
  }

  const std::vector<Step>& steps_;
  const bool in_alphabet_;
  const Piece piece_;
};

absl::StatusOr<Splitter> Splitter::Create(std::span<const TextStep> steps) {
  if (steps.size() > kMostSplitters) {
    return Unimplemented("a pre-tokenizer of ", steps.size(), " steps, not at most ",
                         kMostSplitters);
  }
  Splitter splitter;
  bool byte_level = false;
  int to_bytes_steps = 0;
  for (const TextStep& step : steps) {
    if (step.kind < Kind::kWhitespace || step.kind > Kind::kMetaspace) {
      return Unimplemented("a pre-tokenizer that does not split text");
    }
    const bool to_bytes = step.kind == Kind::kByteLevel;
    // Each one doubles the bytes of what is not ASCII.
    if (to_bytes && ++to_bytes_steps > 2) {
      return Unimplemented("a pre-tokenizer with more than two steps ByteLevel");
    }
    byte_level = byte_level || to_bytes;
    if (byte_level && step.kind == Kind::kMetaspace) {
      return Unimplemented("the pre-tokenizer Metaspace with ByteLevel in front of it");
    }
    splitter.ends_in_alphabet_ = byte_level && !to_bytes;
    Step made{.step = step};
    const bool gpt2 = step.kind == Kind::kByteLevel && step.has(TextStep::kRegexSplits);
    if (gpt2 || step.kind == Kind::kSplit) {
      const bool regex = gpt2 || step.has(TextStep::kRegex);
      auto pattern = regex ? Pattern::Regex(gpt2 ? kByteLevelSplit : std::string_view(step.pattern))
                           : absl::StatusOr<Pattern>(Pattern::Text(step.pattern));
      if (!pattern.ok()) return pattern.status();
      made.pattern = *std::move(pattern);
    }
    splitter.steps_.push_back(std::move(made));
  }
  return splitter;
}

absl::Status Splitter::Split(std::string_view text, bool first, Piece piece) const {
  return Run(*this, piece).Split(0, text, first).status();
}

}  // namespace flotilla::model
