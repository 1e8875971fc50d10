#include "loadtest/core/answer_event.h"

#include <array>
#include <cstddef>
#include <nlohmann/json.hpp>
#include <vector>

namespace flotilla::loadtest {
namespace {

using Json = nlohmann::json;

constexpr std::size_t kMaxDepth = 32;

enum class Key : std::uint8_t {
  kOther,
  kRoot,
  kChoices,
  kDelta,
  kText,
  kFinishReason,
  kUsage,
  kCompletionTokens,
  kPromptTokens,
  kPromptDetails,
  kCachedTokens,
  kError,
  kCode,
  kType,
};

struct KeyName {
  absl::string_view name;
  Key key;
};
constexpr auto kKeys = std::to_array<KeyName>({{"choices", Key::kChoices},
                                               {"delta", Key::kDelta},
                                               {"content", Key::kText},
                                               {"reasoning_content", Key::kText},
                                               {"reasoning", Key::kText},
                                               {"text", Key::kText},
                                               {"finish_reason", Key::kFinishReason},
                                               {"usage", Key::kUsage},
                                               {"completion_tokens", Key::kCompletionTokens},
                                               {"prompt_tokens", Key::kPromptTokens},
                                               {"prompt_tokens_details", Key::kPromptDetails},
                                               {"cached_tokens", Key::kCachedTokens},
                                               {"error", Key::kError},
                                               {"code", Key::kCode},
                                               {"type", Key::kType}});

// Takes the values of the keys above, each below the right parent.
class Reader final : public Json::json_sax_t {
 public:
  explicit Reader(AnswerEvent& event) : event_(event) {}

  bool null() override { return true; }
  bool boolean(bool) override { return true; }
  bool number_integer(number_integer_t value) override {
    if (Is(Key::kError, Key::kCode)) SetCode(std::to_string(value), true);
    return true;
  }
  bool number_unsigned(number_unsigned_t value) override {
    if (Is(Key::kUsage, Key::kCompletionTokens)) event_.completion_tokens = value;
    if (Is(Key::kUsage, Key::kPromptTokens)) event_.prompt_tokens = value;
    if (Is(Key::kPromptDetails, Key::kCachedTokens)) event_.cached_tokens = value;
    if (Is(Key::kError, Key::kCode)) SetCode(std::to_string(value), true);
    return true;
  }
  bool number_float(number_float_t, const string_t&) override { return true; }
  bool string(string_t& value) override {
    if (Is(Key::kDelta, Key::kText) || Is(Key::kChoices, Key::kText)) event_.text += value;
    if (Is(Key::kChoices, Key::kFinishReason)) event_.finished = true;
    if (Is(Key::kError, Key::kCode)) SetCode(value, true);
    if (Is(Key::kError, Key::kType)) SetCode(value, false);
    // Some servers have a text in place of an object.
    if (Is(Key::kRoot, Key::kError)) event_.failed = true;
    return true;
  }
  bool binary(binary_t&) override { return true; }
  bool start_object(std::size_t) override {
    if (Is(Key::kRoot, Key::kError)) event_.failed = true;
    return Enter();
  }
  bool start_array(std::size_t) override { return Enter(); }
  bool end_object() override { return Leave(); }
  bool end_array() override { return Leave(); }
  bool key(string_t& name) override {
    key_ = Key::kOther;
    for (const KeyName& row : kKeys) {
      if (row.name == absl::string_view(name)) key_ = row.key;
    }
    return true;
  }
  bool parse_error(std::size_t, const std::string&, const Json::exception&) override {
    return false;
  }

 private:
  // Whether the value is that of `key` in an object, or an array of objects, named `parent`.
  bool Is(Key parent, Key key) const {
    return key_ == key && !parents_.empty() && parents_.back() == parent;
  }
  bool Enter() {
    parents_.push_back(parents_.empty() ? Key::kRoot : key_);
    return parents_.size() <= kMaxDepth;
  }
  bool Leave() {
    key_ = parents_.back();
    parents_.pop_back();
    return true;
  }
  void SetCode(const std::string& code, bool strong) {
    if (strong || event_.error_code.empty()) event_.error_code = code;
  }

  AnswerEvent& event_;
  Key key_ = Key::kRoot;  // of the value that comes next
  std::vector<Key> parents_;
};

}  // namespace

std::optional<AnswerEvent> ReadAnswerEvent(absl::string_view json) {
  AnswerEvent event;
  Reader reader(event);
  if (!Json::sax_parse(json.begin(), json.end(), &reader)) return std::nullopt;
  return event;
}

}  // namespace flotilla::loadtest
