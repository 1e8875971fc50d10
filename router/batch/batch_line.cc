#include "router/batch/batch_line.h"

#include <algorithm>
#include <array>
#include <initializer_list>
#include <optional>
#include <utility>
#include <vector>

#include "common/types/text.h"
#include "nlohmann/json.hpp"
#include "router/errors.h"
#include "router/http/json_document.h"
#include "router/http/json_input.h"
#include "router/http/json_text.h"
#include "router/template_json.h"

namespace flotilla::router {
namespace {

constexpr std::array<std::string_view, 2> kUrls = {"/v1/chat/completions", "/v1/completions"};
// Answers nest far less deep.
constexpr std::size_t kMaxAnswerDepth = 64;

// The error of ParseJsonObject, which calls what it reads a body.
absl::Status NotAnObject(const absl::Status& status) {
  constexpr std::string_view kBody = "the request body ";
  std::string message(status.message());
  if (message.starts_with(kBody)) message.replace(0, kBody.size(), "the line ");
  return absl::Status(status.code(), message);
}

absl::Status CheckCustomId(const std::optional<std::string>& id) {
  if (!id.has_value() || id->empty()) return InvalidField("custom_id", "'custom_id' is missing");
  if (id->size() > kMaxCustomIdBytes) {
    return InvalidField("custom_id", Cat("'custom_id' has ", id->size(), " bytes; at most ",
                                         kMaxCustomIdBytes, " are allowed"));
  }
  return absl::OkStatus();
}

// Collects the summary from the events of nlohmann's SAX parser, which keeps no document.
class AnswerReader {
 public:
  explicit AnswerReader(AnswerSummary* summary) : summary_(*summary) {}

  // The line says why there is no answer.
  bool failed() const { return failed_; }

  // The events. False ends the parse.
  bool null() { return true; }
  bool boolean(bool) { return true; }
  bool number_integer(std::int64_t) { return true; }
  bool number_unsigned(std::uint64_t value) {
    if (IsAt({"response", "status_code"})) {
      summary_.status = static_cast<int>(std::min<std::uint64_t>(value, 999));
    }
    if (IsAt({"response", "body", "usage", "prompt_tokens"})) summary_.prompt_tokens = value;
    if (IsAt({"response", "body", "usage", "completion_tokens"})) {
      summary_.completion_tokens = value;
    }
    return true;
  }
  bool number_float(double, const std::string&) { return true; }
  bool string(std::string& value) {
    if (IsAt({"custom_id"})) summary_.custom_id = std::move(value);
    if (IsAt({"error", "code"})) failed_ = true;
    return true;
  }
  bool binary(Json::binary_t&) { return false; }  // text has none
  bool start_object(std::size_t) { return Open(); }
  bool start_array(std::size_t) { return Open(); }
  bool end_object() { return Close(); }
  bool end_array() { return Close(); }
  bool key(std::string& name) {
    path_.back() = std::move(name);
    return true;
  }
  bool parse_error(std::size_t, const std::string&, const Json::exception&) { return false; }

 private:
  bool Open() {
    path_.emplace_back();
    return path_.size() <= kMaxAnswerDepth;
  }
  bool Close() {
    path_.pop_back();
    return true;
  }
  bool IsAt(std::initializer_list<std::string_view> path) const {
    return std::equal(path.begin(), path.end(), path_.begin(), path_.end());
  }

  AnswerSummary& summary_;
  bool failed_ = false;
  std::vector<std::string> path_;  // the key in each open object; empty in a list
};

}  // namespace

absl::StatusOr<BatchRequest> ParseBatchRequest(std::string_view line) {
  absl::StatusOr<JsonDocument> json = ParseJsonObject(line);
  if (!json.ok()) return NotAnObject(json.status());
  ObjectReader reader(json->root(), "");
  BatchRequest request;
  const std::optional<std::string> custom_id = reader.String("custom_id");
  const std::string method = reader.String("method").value_or("POST");
  request.url = reader.String("url").value_or("");
  const Json* body = reader.Value("body");
  if (absl::Status s = reader.Finish(/*permissive=*/false, nullptr); !s.ok()) return s;
  if (absl::Status s = CheckCustomId(custom_id); !s.ok()) return s;
  request.custom_id = *custom_id;
  if (method != "POST") return InvalidField("method", "'method' must be POST");
  if (std::find(kUrls.begin(), kUrls.end(), request.url) == kUrls.end()) {
    return InvalidField("url", Cat("'url' must be ", kUrls[0], " or ", kUrls[1]));
  }
  if (body == nullptr || !body->is_object()) {
    return InvalidField("body", body == nullptr ? "'body' is missing" : "'body' must be an object");
  }
  if (const auto stream = body->find("stream"); stream != body->end() && *stream == true) {
    return InvalidField("stream", "'body.stream' must be false: a batch has no streams");
  }
  request.body = MemberText(line, "body");  // its members stay in their order
  return request;
}

std::string BatchAnswerLine(std::uint64_t line, std::string_view custom_id, int status,
                            std::string_view body) {
  std::string id;
  AppendJsonString(custom_id, id);
  return Cat(R"({"id":"batch_req_)", line, R"(","custom_id":)", id,
             R"(,"response":{"status_code":)", status, R"(,"request_id":)", id, R"(,"body":)", body,
             "},\"error\":null}\n");
}

std::string BatchFailureLine(std::uint64_t line, std::string_view custom_id, std::string_view code,
                             std::string_view message) {
  std::string id, why;
  AppendJsonString(custom_id, id);
  AppendJsonString(message, why);
  return Cat(R"({"id":"batch_req_)", line, R"(","custom_id":)", id,
             R"(,"response":null,"error":{"code":")", code, R"(","message":)", why, "}}\n");
}

absl::StatusOr<AnswerSummary> ReadBatchAnswer(std::string_view line) {
  AnswerSummary summary;
  AnswerReader reader(&summary);
  if (!Json::sax_parse(line.begin(), line.end(), &reader) || summary.custom_id.empty() ||
      (summary.status == 0 && !reader.failed())) {
    return InvalidArgument("the line is not an answer of a batch");
  }
  return summary;
}

}  // namespace flotilla::router
