// JSON whose objects keep the order of their members, for templates: they write such objects into
// prompts, where the order is part of what a model was trained on. Pure functions on hostile text.
#pragma once

#include <cstddef>
#include <optional>
#include <string_view>

#include "nlohmann/json.hpp"

namespace flotilla::router {

using OrderedJson = nlohmann::ordered_json;

// Looking for a member takes time in proportion to the object's size. 1 MiB of objects of this size
// takes some 0.1 s.
inline constexpr std::size_t kMaxTemplateMembers = 256;
inline constexpr int kMaxTemplateDepth = 64;
// A value takes a hundred bytes of memory and may have two of text.
inline constexpr std::size_t kMaxTemplateValues = 1 << 18;

// Parses one JSON value. None: the text is no JSON, is nested more than kMaxTemplateDepth deep,
// has an object with more than kMaxTemplateMembers members, or more than kMaxTemplateValues values.
std::optional<OrderedJson> ParseTemplateJson(std::string_view text);

// The text of the value of member `name` of an object, without the white space around it. `object`
// is valid JSON. Empty: there is no such member, or it is null.
std::string_view MemberText(std::string_view object, std::string_view name);

}  // namespace flotilla::router
