#include "router/http/logprob_text.h"

#include <algorithm>
#include <cstdint>

#include "absl/types/span.h"
#include "common/types/text.h"
#include "router/http/json_text.h"
#include "router/utf8.h"

namespace flotilla::router {

std::string TokenName(std::string_view bytes) {
  if (IsValidUtf8(bytes)) return std::string(bytes);
  static constexpr char kHex[] = "0123456789abcdef";
  std::string name = "bytes:";
  for (char c : bytes) {
    const auto byte = static_cast<std::uint8_t>(c);
    name += "\\x";
    name.push_back(kHex[byte >> 4]);
    name.push_back(kHex[byte & 15]);
  }
  return name;
}

void AppendPromptLogprobs(const SampledToken& token, std::size_t most, const TokenBytesOf& bytes_of,
                          std::string& out) {
  const auto add = [&](TokenId id, float logprob, std::size_t rank) {
    out += Cat(out.back() == '{' ? "\"" : ",\"", id, R"(":{"logprob":)");
    AppendJsonFloat(logprob, out);
    out += rank == 0 ? R"(,"rank":null)" : Cat(R"(,"rank":)", rank);
    out += R"(,"decoded_token":)";
    AppendJsonString(TokenName(bytes_of(id)), out);
    out.push_back('}');
  };
  out.push_back('{');
  bool chosen = false;
  for (std::size_t i = 0; i < std::min(most, token.top.size()); ++i) {
    add(token.top[i].token, token.top[i].logprob, i + 1);
    chosen = chosen || token.top[i].token == token.token;
  }
  if (!chosen) add(token.token, token.logprob, 0);
  out.push_back('}');
}

std::string LogprobText::Name(TokenId token) const {
  return style_.tokens_as_token_ids ? Cat("token_id:", token) : TokenName(bytes_of_(token));
}

void LogprobText::AppendChatToken(TokenId token, float logprob, std::string& out) const {
  out += R"({"token":)";
  AppendJsonString(Name(token), out);
  out += R"(,"logprob":)";
  AppendJsonFloat(logprob, out);
  out += R"(,"bytes":[)";
  bool first = true;
  for (char c : bytes_of_(token)) {
    if (!first) out.push_back(',');
    first = false;
    AppendJsonInt(static_cast<int>(static_cast<std::uint8_t>(c)), out);
  }
  out.push_back(']');
}

void LogprobText::Add(const SampledToken& token, std::size_t most) {
  const auto best = absl::MakeConstSpan(token.top).first(std::min(most, token.top.size()));
  if (style_.chat) {
    if (count_++ > 0) tokens_.push_back(',');
    AppendChatToken(token.token, token.logprob, tokens_);
    tokens_ += R"(,"top_logprobs":[)";
    for (std::size_t i = 0; i < best.size(); ++i) {
      if (i > 0) tokens_.push_back(',');
      AppendChatToken(best[i].token, best[i].logprob, tokens_);
      tokens_.push_back('}');
    }
    tokens_ += "]}";
    return;
  }
  std::string logprob;
  AppendJsonFloat(token.logprob, logprob);
  // The chosen token is in the map even when it is not among the best.
  std::string top = "{";
  bool chosen = false;
  for (const TopLogprob& entry : best) {
    if (top.size() > 1) top.push_back(',');
    AppendJsonString(Name(entry.token), top);
    top.push_back(':');
    AppendJsonFloat(entry.logprob, top);
    chosen = chosen || entry.token == token.token;
  }
  if (!chosen) {
    if (top.size() > 1) top.push_back(',');
    AppendJsonString(Name(token.token), top);
    top += ":" + logprob;
  }
  top.push_back('}');
  AddColumns(token.token, logprob, top);
}

void LogprobText::AddUnscored(TokenId token) { AddColumns(token, "null", "null"); }

void LogprobText::AddColumns(TokenId token, std::string_view logprob, std::string_view top) {
  if (count_++ > 0) {
    for (std::string* column : {&tokens_, &logprobs_, &top_, &offsets_}) column->push_back(',');
  }
  AppendJsonString(Name(token), tokens_);
  logprobs_ += logprob;
  top_ += top;
  AppendJsonInt(offset_, offsets_);
  // Bytes that continue a character count for the token that began it.
  offset_ += Utf8Length(bytes_of_(token));
}

void LogprobText::Take(std::string& out) {
  if (style_.chat) {
    out += R"({"content":[)" + tokens_ + "]}";
  } else {
    out += R"({"tokens":[)" + tokens_ + R"(],"token_logprobs":[)" + logprobs_ +
           R"(],"top_logprobs":[)" + top_ + R"(],"text_offset":[)" + offsets_ + "]}";
  }
  count_ = 0;
  for (std::string* column : {&tokens_, &logprobs_, &top_, &offsets_}) column->clear();
}

}  // namespace flotilla::router
