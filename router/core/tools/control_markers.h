// Markers of a structural tag that are control tokens of the model. Pure.
//
// A grammar's text is made of tokens that have bytes, and control tokens have none. So where a
// model marks calls or thoughts by control tokens (gpt-oss, Mistral), the tag must name them by
// their ids.
#pragma once

#include <string>
#include <vector>

#include "common/types/ids.h"
#include "router/core/constraint/ordered_json.h"

namespace flotilla::router {

struct ControlToken {
  std::string text;  // not empty
  TokenId id = 0;
  bool ends = false;  // it ends an answer
};

// Returns a format of a structural tag with these tokens in place of their texts in tags and
// constant strings. What follows a token that ends an answer is dropped with it, because a grammar
// is complete there. A list of tags whose separator has such a token ends after its first tag. The
// format is one of tool_constraint.h.
OrderedJson WithControlTokens(const OrderedJson& format, const std::vector<ControlToken>& tokens);

}  // namespace flotilla::router
