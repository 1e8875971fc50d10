#include "loadtest/request_body.h"

#include <cstddef>
#include <nlohmann/json.hpp>

#include "absl/strings/str_join.h"

namespace flotilla::loadtest {
namespace {
using Json = nlohmann::json;
}  // namespace

absl::Status CheckShape(const RequestShape& shape) {
  if (shape.extra.empty()) return absl::OkStatus();
  const Json extra = Json::parse(shape.extra, nullptr, /*allow_exceptions=*/false);
  if (!extra.is_object()) {
    return absl::InvalidArgumentError(
        "the extra fields of requests must be a JSON object, such as {\"top_p\": 0.9}");
  }
  return absl::OkStatus();
}

std::string RequestBody(const RequestShape& shape, const std::vector<std::string>& said,
                        std::uint32_t max_tokens) {
  Json body = {{"model", shape.model},
               {"stream", true},
               {"stream_options", {{"include_usage", true}}},
               {"max_tokens", max_tokens},
               {"temperature", shape.temperature}};
  if (shape.ignore_eos) body["ignore_eos"] = true;
  if (shape.chat) {
    Json& messages = body["messages"] = Json::array();
    for (std::size_t i = 0; i < said.size(); ++i) {
      messages.push_back({{"role", i % 2 == 0 ? "user" : "assistant"}, {"content", said[i]}});
    }
  } else {
    body["prompt"] = absl::StrJoin(said, " ");
  }
  if (!shape.extra.empty()) body.update(Json::parse(shape.extra, nullptr, false));
  // An answer in the history is what a server sent. The parser checks that it is UTF-8.
  return body.dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace flotilla::loadtest
