// Makes JSON bodies that cost a parser the most for their size, one body of each kind.
#pragma once

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

namespace flotilla::router {

// Returns `before`, then `piece` as often as it fits into `bytes`, then `after`. The last piece
// loses its comma.
inline std::string Filled(std::size_t bytes, const std::string& before, const std::string& piece,
                          const std::string& after) {
  std::string body = before;
  body.reserve(bytes);
  while (body.size() + piece.size() + after.size() <= bytes) body += piece;
  if (body.back() == ',') body.pop_back();
  return body + after;
}

// Returns pairs of a name, for messages, and a body. Each body begins with `{"model":"m",`.
inline std::vector<std::pair<std::string, std::string>> LargeBodies(std::size_t bytes) {
  const std::string model = R"({"model":"m",)";
  const std::string turn = R"({"role":"user","content":"x"})";
  const auto list = [&](const std::string& name, const std::string& piece) {
    return Filled(bytes, model + '"' + name + "\":[", piece, "]}");
  };
  const auto text = [&](const std::string& piece) {
    return Filled(bytes, model + R"("prompt":")", piece, R"("})");
  };
  // Returns a body with as many different keys as fit.
  const auto keys = [&](const std::string& before, const std::string& value,
                        const std::string& after) {
    std::string body = model + before;
    for (std::size_t i = 0; body.size() + 20 + value.size() + after.size() < bytes; ++i) {
      body += '"' + std::to_string(i) + "\":" + value + ",";
    }
    body.pop_back();
    return body + after;
  };
  const std::string deep = std::string(50, '[') + std::string(50, ']') + ',';
  std::string prompts = R"("prompt":[)";
  for (int i = 0; i < 32; ++i) prompts += i == 0 ? R"("")" : R"(,"")";
  prompts += "],";
  // Returns a body with 32 prompts and a field that all of them share.
  const auto shared = [&](const std::string& before, const std::string& piece,
                          const std::string& after) {
    return Filled(bytes, model + prompts + before, piece, after + "}");
  };
  return {
      {"shared stop", shared(R"("stop":")", "x", "\"")},
      {"shared salt", shared(R"("cache_salt":")", "x", "\"")},
      {"shared name", shared(R"("request_id":")", "x", "\"")},
      {"shared model", Filled(bytes, '{' + prompts + R"("model":")", "m", "\"}")},
      {"shared biases", keys(prompts + R"("logit_bias":{)", "1", "}}")},
      {"shared stop tokens", shared(R"("stop_token_ids":[)", "1111111,", "]")},
      {"empty messages", list("messages", "{},")},
      {"empty lists as messages", list("messages", "[],")},
      {"messages", list("messages", turn + ',')},
      {"parts of a message", Filled(bytes, model + R"("messages":[{"role":"user","content":[)",
                                    R"({"type":"text","text":"x"},)", "]}]}")},
      {"empty parts of a message",
       Filled(bytes, model + R"("messages":[{"role":"user","content":[)", "{},", "]}]}")},
      {"a long message",
       Filled(bytes, model + R"("messages":[{"role":"user","content":")", "word ", R"("}]})")},
      {"prompts that are empty objects", list("prompt", "{},")},
      {"prompts that are empty lists", list("prompt", "[],")},
      {"prompts that are empty strings", list("prompt", "\"\",")},
      {"one-digit token ids", list("prompt", "1,")},
      {"token ids", list("prompt", "12345,")},
      {"tokens", list("tokens", "12345,")},
      {"floats", list("prompt", "0.1234567890123456789,")},
      {"long numbers", list("prompt", std::string(1000, '1') + ',')},
      {"nulls", list("prompt", "null,")},
      {"deep nests", list("prompt", deep)},
      {"one nest without end", model + "\"prompt\":" + std::string(bytes - 30, '[')},
      {"a text", text("word ")},
      {"escapes", text("\\u0000")},
      {"surrogate pairs", text("\\ud83d\\ude00")},
      {"quotes", text("\\\"")},
      {"characters of four bytes", text("\xf0\x9f\x98\x80")},
      {"invalid UTF-8", text("\xff")},
      {"invalid UTF-8 at the end", text("word ") + "\xff"},
      {"a string without end", Filled(bytes, model + R"("prompt":")", "x", "")},
      {"unknown fields", keys("", "1", "}")},
      {"unknown fields with objects", keys("", "{}", "}")},
      {"biases", keys(R"("prompt":"x","logit_bias":{)", "1", "}}")},
      {"keys with a long common start",
       Filled(bytes, model, '"' + std::string(100'000, 'k') + "\":1,", "}")},
      {"stops", list("stop", "\"x\",")},
      {"stop tokens", list("stop_token_ids", "1,")},
      {"unknown lists of objects", list("tools", "{\"a\":{}},")},
      {"blanks", Filled(bytes, model, " ", "}")},
      {"no JSON", std::string(bytes, '}')},
  };
}

}  // namespace flotilla::router
