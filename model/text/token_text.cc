#include "model/text/token_text.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "common/types/text.h"
#include "model/text/byte_level.h"
#include "model/text/space_mark.h"
#include "model/text/utf8.h"

namespace flotilla::model {
namespace {

using Kind = TextStep::Kind;

constexpr size_t kMostDecoders = 16;
constexpr size_t kMostPutIn = 256;  // bytes of what is put in; published ones have at most 3

void ReplaceAll(std::string& text, std::string_view from, std::string_view to) {
  size_t at = text.find(from);
  if (at == std::string::npos) return;
  std::string out;
  out.reserve(text.size());
  size_t begin = 0;
  for (; at != std::string::npos; at = text.find(from, begin)) {
    out.append(text, begin, at - begin).append(to);
    begin = at + from.size();
  }
  out.append(text, begin);
  text = std::move(out);
}

// What BERT's decoder does with spaces before punctuation, token by token.
void CleanUp(std::string& text) {
  constexpr std::pair<std::string_view, std::string_view> kPairs[] = {
      {" .", "."},     {" ?", "?"},           {" !", "!"},   {" ,", ","},     {" ' ", "'"},
      {" n't", "n't"}, {" do not", " don't"}, {" 's", "'s"}, {" 've", "'ve"}, {" 're", "'re"},
  };
  for (const auto& [from, to] : kPairs) {
    if (from == " do not") ReplaceAll(text, " 'm", "'m");
    ReplaceAll(text, from, to);
  }
}

// Removes up to `start` times what the pattern says at the beginning, and `stop` times at the end.
void Strip(const TextStep& step, std::string& text) {
  if (step.pattern.empty()) return;
  size_t begin = 0, end = text.size();
  for (uint32_t i = 0; i < step.start; ++i) {
    if (!std::string_view(text).substr(begin).starts_with(step.pattern)) break;
    begin += step.pattern.size();
  }
  for (uint32_t i = 0; i < step.stop; ++i) {
    if (!std::string_view(text).substr(begin, end - begin).ends_with(step.pattern)) break;
    end -= step.pattern.size();
  }
  text = text.substr(begin, end - begin);
}

}  // namespace

absl::StatusOr<TokenText> TokenText::Create(std::span<const TextStep> steps) {
  if (steps.size() > kMostDecoders) {
    return Unimplemented("a decoder of ", steps.size(), " steps, not at most ", kMostDecoders);
  }
  TokenText result;
  bool fused = false;
  for (const TextStep& step : steps) {
    const bool one_space =
        step.kind == Kind::kStrip && step.pattern == " " && step.start <= 1 && step.stop == 0;
    if (fused) {
      if (!one_space) return Unimplemented("a decoder with more than Strip of a space behind Fuse");
      result.strips_first_space_ = step.start == 1;
      continue;
    }
    Step made{.step = step};
    switch (step.kind) {
      case Kind::kFuse:
        fused = true;
        continue;
      case Kind::kReplace: {
        if (step.text.size() > kMostPutIn) {
          return Unimplemented("a decoder that puts ", step.text.size(), " bytes, not at most ",
                               kMostPutIn);
        }
        result.has_patterns_ = result.has_patterns_ || step.has(TextStep::kRegex);
        auto pattern = step.has(TextStep::kRegex)
                           ? Pattern::Regex(step.pattern)
                           : absl::StatusOr<Pattern>(Pattern::Text(step.pattern));
        if (!pattern.ok()) return pattern.status();
        made.pattern = *std::move(pattern);
        break;
      }
      case Kind::kJoin:
      case Kind::kWordPiece:
        result.first_differs_ = true;
        break;
      case Kind::kMetaspace:
        result.first_differs_ = result.first_differs_ || step.has(TextStep::kSpaceFirst) ||
                                step.has(TextStep::kSpaceAlways);
        break;
      case Kind::kStrip:
      case Kind::kByteLevel:
      case Kind::kByteFallback:
        break;
      default:
        return Unimplemented("a decoder with a step that is not for tokens");
    }
    result.steps_.push_back(std::move(made));
  }
  return result;
}

absl::StatusOr<std::string> TokenText::Of(std::string_view token, bool first) const {
  const size_t most = 32 * token.size() + 4096;
  std::string text(token);
  for (const Step& by : steps_) {
    const TextStep& step = by.step;
    switch (step.kind) {
      case Kind::kByteLevel: {
        std::string bytes;
        if (AppendByteLevel(text, bytes)) text = std::move(bytes);
        break;
      }
      case Kind::kByteFallback:
        if (const auto byte = ByteOf(text); byte.has_value()) {
          text.assign(1, static_cast<char>(*byte));
        }
        break;
      case Kind::kReplace: {
        if (FindInvalidUtf8(text) != std::string::npos) break;
        std::string out;
        const auto all = by.pattern->Split(
            text, [&](std::string_view part, bool matches) -> absl::StatusOr<bool> {
              out += matches ? std::string_view(step.text) : part;
              return out.size() <= most;
            });
        if (out.size() > most) {
          return InvalidArgument("tokenizer: the decoder makes a token of ", token.size(),
                                 " bytes longer than ", most);
        }
        if (all.ok()) text = std::move(out);
        break;
      }
      case Kind::kStrip:
        Strip(step, text);
        break;
      case Kind::kMetaspace:
        ReplaceAll(text, kSpaceMark,
                   first && (step.has(TextStep::kSpaceFirst) || step.has(TextStep::kSpaceAlways))
                       ? ""
                       : " ");
        break;
      case Kind::kWordPiece:
        if (!first) {
          if (!step.pattern.empty() && text.starts_with(step.pattern)) {
            text.erase(0, step.pattern.size());
          } else {
            text.insert(0, " ");
          }
        }
        if (step.has(TextStep::kCleanUp)) CleanUp(text);
        break;
      default:  // kJoin
        if (!first) text.insert(0, " ");
    }
  }
  return text;
}

}  // namespace flotilla::model
