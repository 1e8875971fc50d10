#include "model/huggingface/hf_text_steps.h"

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <utility>

#include "absl/strings/escaping.h"
#include "common/types/text.h"

namespace flotilla::model {
namespace {

using Kind = TextStep::Kind;
using Behavior = TextStep::Behavior;

const Json kNull;

constexpr size_t kMostSteps = 16;

std::string_view StepType(const Json& part) { return JsonText(JsonAt(part, "type")); }

uint32_t FlagIf(bool set, TextStep::Flag flag) { return set ? flag : 0u; }

// Reads the steps of one part of the file. The first failure sticks.
class StepReader {
 public:
  // `part` names it: normalizer, pre_tokenizer or decoder. `list`: where a sequence has its steps.
  StepReader(std::string_view part, const char* list) : part_(part), list_(list) {}

  absl::StatusOr<std::vector<TextStep>> Read(const Json& json) && {
    if (!json.is_null()) Add(json, /*nested=*/0);
    if (!status_.ok()) return status_;
    return std::move(steps_);
  }

 private:
  void Fail(absl::Status status) {
    if (status_.ok()) status_ = std::move(status);
  }
  void Unknown(std::string_view what, std::string_view value) {
    Fail(Unimplemented("tokenizer.json: the ", part_, what, value, " is not supported"));
  }

  void Add(const Json& json, int nested) {
    const std::string_view type = StepType(json);
    if (type == "Sequence") {
      const Json& all = JsonAt(json, list_);
      if (!all.is_array() || nested > 2) return Unknown("'s Sequence of ", "sequences");
      for (const Json& each : all) {
        if (status_.ok()) Add(each, nested + 1);
      }
      return;
    }
    if (steps_.size() == kMostSteps) return Unknown(" of more steps than ", Cat(kMostSteps));
    TextStep step;
    const bool known = part_ == "normalizer"      ? Change(json, type, step)
                       : part_ == "pre-tokenizer" ? Split(json, type, step)
                                                  : Decode(json, type, step);
    if (!known) return Unknown(" ", Quoted(type));
    steps_.push_back(std::move(step));
  }

  // Steps without settings.
  static bool Plain(std::string_view type, TextStep& step) {
    constexpr std::pair<std::string_view, Kind> kPlain[] = {
        {"NFC", Kind::kNfc},
        {"NFD", Kind::kNfd},
        {"NFKC", Kind::kNfkc},
        {"NFKD", Kind::kNfkd},
        {"Lowercase", Kind::kLowercase},
        {"StripAccents", Kind::kStripAccents},
        {"Nmt", Kind::kNmt},
    };
    const auto found = std::ranges::find(kPlain, type, &std::pair<std::string_view, Kind>::first);
    if (found == std::end(kPlain)) return false;
    step.kind = found->second;
    return true;
  }

  bool Change(const Json& json, std::string_view type, TextStep& step) {
    if (Plain(type, step)) return true;
    if (type == "BertNormalizer") {
      const bool lower = JsonFlag(json, "lowercase", true);
      step.kind = Kind::kBertNormalizer;
      step.flags = FlagIf(JsonFlag(json, "clean_text", true), TextStep::kCleanText) |
                   FlagIf(JsonFlag(json, "handle_chinese_chars", true), TextStep::kChinese) |
                   FlagIf(JsonFlag(json, "strip_accents", lower), TextStep::kAccents) |
                   FlagIf(lower, TextStep::kLower);
      return true;
    }
    if (type == "Strip") {
      step.kind = Kind::kStrip;
      step.flags = FlagIf(JsonFlag(json, "strip_left", true), TextStep::kLeft) |
                   FlagIf(JsonFlag(json, "strip_right", true), TextStep::kRight);
      return true;
    }
    if (type == "Prepend") {
      step.kind = Kind::kPrepend;
      step.text = JsonText(JsonAt(json, "prepend"));
      return true;
    }
    if (type == "Precompiled") {
      step.kind = Kind::kPrecompiled;
      if (!absl::Base64Unescape(ToAbsl(JsonText(JsonAt(json, "precompiled_charsmap"))),
                                &step.text)) {
        Fail(InvalidArgument("tokenizer.json: precompiled_charsmap is not base64"));
      }
      return true;
    }
    return type == "Replace" && Replace(json, step);
  }

  // A pattern, which is a text or a regular expression.
  bool ReadPattern(const Json& json, TextStep& step) {
    const Json& pattern = JsonAt(json, "pattern");
    const Json& regex = JsonAt(pattern, "Regex");
    step.pattern = JsonText(regex.is_string() ? regex : JsonAt(pattern, "String"));
    step.flags |= FlagIf(regex.is_string(), TextStep::kRegex);
    return regex.is_string() || JsonAt(pattern, "String").is_string();
  }
  bool Replace(const Json& json, TextStep& step) {
    step.kind = Kind::kReplace;
    step.text = JsonText(JsonAt(json, "content"));
    return ReadPattern(json, step);
  }

  static bool ReadBehavior(const Json& json, TextStep& step) {
    constexpr std::string_view kNames[] = {"Removed", "Isolated", "MergedWithPrevious",
                                           "MergedWithNext", "Contiguous"};
    const auto found = std::ranges::find(kNames, JsonText(JsonAt(json, "behavior")));
    if (found == std::end(kNames)) return false;
    step.behavior = static_cast<Behavior>(found - std::begin(kNames));
    return true;
  }

  static bool Metaspace(const Json& json, TextStep& step) {
    step.kind = Kind::kMetaspace;
    const std::string_view scheme = JsonText(JsonAt(json, "prepend_scheme"));
    const bool old = JsonFlag(json, "add_prefix_space", true);
    if (scheme == "first") {
      step.flags |= TextStep::kSpaceFirst;
    } else if (scheme == "always" || (scheme.empty() && old)) {
      step.flags |= TextStep::kSpaceAlways;
    } else if (scheme != "never" && !scheme.empty()) {
      return false;
    }
    step.flags |= FlagIf(JsonFlag(json, "split", true), TextStep::kEach);
    return JsonText(JsonAt(json, "replacement")) == "\xe2\x96\x81";
  }

  bool Split(const Json& json, std::string_view type, TextStep& step) {
    if (type == "Whitespace" || type == "WhitespaceSplit" || type == "BertPreTokenizer") {
      step.kind = type == "Whitespace"        ? Kind::kWhitespace
                  : type == "WhitespaceSplit" ? Kind::kWhitespaceSplit
                                              : Kind::kBertPreTokenizer;
      return true;
    }
    if (type == "Digits") {
      step.kind = Kind::kDigits;
      step.flags = FlagIf(JsonFlag(json, "individual_digits", false), TextStep::kEach);
      return true;
    }
    if (type == "Punctuation") {
      step.kind = Kind::kPunctuation;
      return ReadBehavior(json, step);
    }
    if (type == "CharDelimiterSplit") {
      step.kind = Kind::kSplit;
      step.pattern = JsonText(JsonAt(json, "delimiter"));
      return !step.pattern.empty();
    }
    if (type == "Split") {
      step.kind = Kind::kSplit;
      step.flags = FlagIf(JsonFlag(json, "invert", false), TextStep::kInvert);
      return ReadPattern(json, step) && ReadBehavior(json, step);
    }
    if (type == "ByteLevel") {
      step.kind = Kind::kByteLevel;
      step.flags = FlagIf(JsonFlag(json, "add_prefix_space", true), TextStep::kSpaceAlways) |
                   FlagIf(JsonFlag(json, "use_regex", true), TextStep::kRegexSplits);
      return true;
    }
    return type == "Metaspace" && Metaspace(json, step);
  }

  static uint32_t Count(const Json& value) {
    return value.is_number_unsigned()
               ? static_cast<uint32_t>(std::min<uint64_t>(value.get<uint64_t>(), UINT32_MAX))
               : 0;
  }

  bool Decode(const Json& json, std::string_view type, TextStep& step) {
    if (type == "ByteLevel" || type == "ByteFallback" || type == "Fuse") {
      step.kind = type == "ByteLevel"      ? Kind::kByteLevel
                  : type == "ByteFallback" ? Kind::kByteFallback
                                           : Kind::kFuse;
      return true;
    }
    if (type == "WordPiece") {
      step.kind = Kind::kWordPiece;
      step.pattern = JsonText(JsonAt(json, "prefix"));
      step.flags = FlagIf(JsonFlag(json, "cleanup", true), TextStep::kCleanUp);
      return true;
    }
    if (type == "Strip") {
      step.kind = Kind::kStrip;
      step.pattern = JsonText(JsonAt(json, "content"));
      step.start = Count(JsonAt(json, "start"));
      step.stop = Count(JsonAt(json, "stop"));
      return true;
    }
    if (type == "Metaspace") return Metaspace(json, step);
    return type == "Replace" && Replace(json, step);
  }

  const std::string_view part_;
  const char* const list_;
  std::vector<TextStep> steps_;
  absl::Status status_;
};

// Puts the tokens of one post-processor around those that are there.
absl::Status AddTemplate(const Json& post, uint64_t tokens, TemplateTokens& all) {
  const std::string_view type = StepType(post);
  absl::Status status;
  std::vector<TokenId> front, behind;
  const auto add = [&](const Json& id, std::vector<TokenId>& to) {
    if (!id.is_number_unsigned() || id.get<uint64_t>() >= tokens) {
      status = InvalidArgument("tokenizer.json: the post_processor ", type,
                               " has a token without an id below ", tokens);
    } else {
      to.push_back(static_cast<TokenId>(id.get<uint64_t>()));
    }
  };
  if (type == "BertProcessing" || type == "RobertaProcessing") {
    for (const auto& [name, to] : {std::pair("cls", &front), std::pair("sep", &behind)}) {
      const Json& pair = JsonAt(post, name);
      add(pair.is_array() && pair.size() == 2 ? pair[1] : kNull, *to);
    }
  } else if (type == "TemplateProcessing") {
    constexpr size_t kMostParts = 64;
    const Json& single = JsonAt(post, "single");
    if (!single.is_array() || single.size() > kMostParts) {
      return InvalidArgument("tokenizer.json: TemplateProcessing has no list single of at most ",
                             kMostParts, " parts");
    }
    bool in_front = true;
    for (const Json& part : single) {
      const Json& special = JsonAt(part, "SpecialToken");
      if (special.is_null()) {
        in_front = false;
        continue;
      }
      const std::string name(JsonText(JsonAt(special, "id")));
      const Json& ids = JsonAt(JsonAt(JsonAt(post, "special_tokens"), name.c_str()), "ids");
      if (!ids.is_array() || ids.size() > kMostParts) add(kNull, front);
      for (size_t i = 0; status.ok() && i < ids.size(); ++i) add(ids[i], in_front ? front : behind);
    }
  } else if (type != "ByteLevel" && !post.is_null()) {
    return Unimplemented("tokenizer.json: the post_processor ", Quoted(type), " is not supported");
  }
  all.prefix.insert(all.prefix.begin(), front.begin(), front.end());
  all.suffix.insert(all.suffix.end(), behind.begin(), behind.end());
  return status;
}

}  // namespace

const Json& JsonAt(const Json& object, const char* name) {
  if (!object.is_object()) return kNull;
  const auto found = object.find(name);
  return found == object.end() ? kNull : *found;
}

std::string_view JsonText(const Json& value) {
  return value.is_string() ? std::string_view(value.get_ref<const std::string&>())
                           : std::string_view();
}

bool JsonFlag(const Json& object, const char* name, bool fallback) {
  const Json& value = JsonAt(object, name);
  return value.is_boolean() ? value.get<bool>() : fallback;
}

std::string Quoted(std::string_view text) {
  return Cat("'", absl::CHexEscape(ToAbsl(text.substr(0, 80))), "'");
}

AddedTokenRule ReadAddedRule(TokenId id, const Json& token) {
  return {.id = id,
          .strips_left = JsonFlag(token, "lstrip", false),
          .strips_right = JsonFlag(token, "rstrip", false),
          .whole_word = JsonFlag(token, "single_word", false),
          .normalized = JsonFlag(token, "normalized", false)};
}

absl::StatusOr<TextSteps> ReadTextSteps(const Json& tokenizer) {
  auto normalizer = StepReader("normalizer", "normalizers").Read(JsonAt(tokenizer, "normalizer"));
  if (!normalizer.ok()) return normalizer.status();
  auto splitter =
      StepReader("pre-tokenizer", "pretokenizers").Read(JsonAt(tokenizer, "pre_tokenizer"));
  if (!splitter.ok()) return splitter.status();
  const Json& decoder_json = JsonAt(tokenizer, "decoder");
  auto decoder = StepReader("decoder", "decoders").Read(decoder_json);
  if (!decoder.ok()) return decoder.status();
  if (decoder_json.is_null()) decoder->push_back({.kind = Kind::kJoin});
  return TextSteps{*std::move(normalizer), *std::move(splitter), *std::move(decoder)};
}

absl::StatusOr<TemplateTokens> ReadTemplateTokens(const Json& post_processor, uint64_t tokens) {
  TemplateTokens all;
  const Json& parts = JsonAt(post_processor, "processors");
  if (StepType(post_processor) != "Sequence") {
    if (absl::Status status = AddTemplate(post_processor, tokens, all); !status.ok()) return status;
    return all;
  }
  if (parts.size() > kMostSteps) {
    return InvalidArgument("tokenizer.json: the post-processor has ", parts.size(),
                           " parts; at most ", kMostSteps, " are possible");
  }
  for (size_t i = 0; parts.is_array() && i < parts.size(); ++i) {
    if (absl::Status status = AddTemplate(parts[i], tokens, all); !status.ok()) return status;
  }
  return all;
}

}  // namespace flotilla::model
