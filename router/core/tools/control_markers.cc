#include "router/core/tools/control_markers.h"

#include <cstddef>
#include <string_view>
#include <utility>

namespace flotilla::router {
namespace {

// A text as formats: constant strings, and tokens.
struct Parts {
  std::vector<OrderedJson> formats;
  bool has_tokens = false;
  bool ends = false;  // by a token that ends the answer
};

const ControlToken* LongestAt(std::string_view text, const std::vector<ControlToken>& tokens) {
  const ControlToken* longest = nullptr;
  for (const ControlToken& token : tokens) {
    if (!text.starts_with(token.text)) continue;
    if (longest == nullptr || token.text.size() > longest->text.size()) longest = &token;
  }
  return longest;
}

Parts PartsOf(std::string_view text, const std::vector<ControlToken>& tokens) {
  Parts parts;
  std::string spelled;
  const auto close = [&] {
    if (spelled.empty()) return;
    parts.formats.push_back({{"type", "const_string"}, {"value", std::exchange(spelled, {})}});
  };
  while (!text.empty()) {
    const ControlToken* token = LongestAt(text, tokens);
    if (token == nullptr) {
      spelled.push_back(text.front());
      text.remove_prefix(1);
      continue;
    }
    close();
    parts.has_tokens = true;
    parts.ends = token->ends;
    if (token->ends) return parts;
    parts.formats.push_back({{"type", "token"}, {"token", token->id}});
    text.remove_prefix(token->text.size());
  }
  close();
  return parts;
}

// What a tag may begin or end with: a string, or a token as an object.
OrderedJson Edge(const OrderedJson& part) {
  return part["type"] == "const_string" ? part["value"] : part;
}

OrderedJson SequenceOf(std::vector<OrderedJson> elements) {
  if (elements.size() == 1) return std::move(elements.front());
  return {{"type", "sequence"}, {"elements", std::move(elements)}};
}

OrderedJson TagOf(OrderedJson begin, OrderedJson content, OrderedJson end) {
  return {{"type", "tag"},
          {"begin", std::move(begin)},
          {"content", std::move(content)},
          {"end", std::move(end)}};
}

// A tag whose content ends where its `end` begins, so the rest of `end` comes behind it.
OrderedJson OpenTag(const Parts& begin, OrderedJson content, const Parts& end) {
  std::vector<OrderedJson> elements(begin.formats.begin(), begin.formats.end());
  OrderedJson first = "";
  if (!elements.empty()) {
    first = Edge(elements.back());
    elements.pop_back();
  }
  elements.push_back(TagOf(std::move(first), std::move(content),
                           end.formats.empty() ? OrderedJson("") : Edge(end.formats.front())));
  for (std::size_t i = 1; i < end.formats.size(); ++i) elements.push_back(end.formats[i]);
  return SequenceOf(std::move(elements));
}

// A tag of a list, which must be one: the rest of `begin` and `end` is part of its content.
OrderedJson ListedTag(const Parts& begin, OrderedJson content, const Parts& end) {
  std::vector<OrderedJson> elements;
  for (std::size_t i = 1; i < begin.formats.size(); ++i) elements.push_back(begin.formats[i]);
  elements.push_back(std::move(content));
  for (std::size_t i = 0; i + 1 < end.formats.size(); ++i) elements.push_back(end.formats[i]);
  return TagOf(begin.formats.empty() ? OrderedJson("") : Edge(begin.formats.front()),
               SequenceOf(std::move(elements)),
               end.formats.empty() ? OrderedJson("") : Edge(end.formats.back()));
}

OrderedJson TagWith(const OrderedJson& tag, const std::vector<ControlToken>& tokens,
                    bool is_listed) {
  OrderedJson content = WithControlTokens(tag["content"], tokens);
  const Parts begin = PartsOf(tag["begin"].get_ref<const std::string&>(), tokens);
  const Parts end = PartsOf(tag["end"].get_ref<const std::string&>(), tokens);
  if (!begin.has_tokens && !end.has_tokens)
    return TagOf(tag["begin"], std::move(content), tag["end"]);
  return is_listed ? ListedTag(begin, std::move(content), end)
                   : OpenTag(begin, std::move(content), end);
}

}  // namespace

OrderedJson WithControlTokens(const OrderedJson& format, const std::vector<ControlToken>& tokens) {
  OrderedJson written = format;
  const std::string& type = format["type"].get_ref<const std::string&>();
  if (type == "const_string") {
    Parts parts = PartsOf(format["value"].get_ref<const std::string&>(), tokens);
    return parts.has_tokens ? SequenceOf(std::move(parts.formats)) : written;
  }
  if (type == "tag") return TagWith(format, tokens, /*is_listed=*/false);
  if (type == "tags_with_separator") {
    for (OrderedJson& tag : written["tags"]) tag = TagWith(tag, tokens, /*is_listed=*/true);
    if (PartsOf(format["separator"].get_ref<const std::string&>(), tokens).has_tokens) {
      written["separator"] = "";
      written["stop_after_first"] = true;
    }
  }
  if (type == "sequence" || type == "or") {
    for (OrderedJson& element : written["elements"]) element = WithControlTokens(element, tokens);
  }
  if (type == "optional") written["content"] = WithControlTokens(format["content"], tokens);
  return written;
}

}  // namespace flotilla::router
