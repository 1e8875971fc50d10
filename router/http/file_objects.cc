#include "router/http/file_objects.h"

#include <algorithm>
#include <cstddef>
#include <optional>

#include "absl/strings/numbers.h"
#include "common/types/text.h"
#include "router/errors.h"
#include "router/http/json_document.h"
#include "router/http/json_input.h"
#include "router/http/json_text.h"
#include "router/utf8.h"

namespace flotilla::router {
namespace {

// OpenAI's bounds.
constexpr std::size_t kMaxBatchesPage = 100, kMaxFilesPage = 10'000;
constexpr std::size_t kMaxMetadata = 16, kMaxMetadataKey = 64, kMaxMetadataValue = 512;
constexpr std::int64_t kMinLifeS = 3600, kMaxLifeS = 2'592'000;
constexpr std::int64_t kHourS = 3600, kMaxWindowHours = 168;

void Append(std::string_view name, std::string_view text, std::string& out) {
  out += Cat(",\"", name, "\":");
  AppendJsonString(text, out);
}
void AppendOrNull(std::string_view name, std::string_view text, std::string& out) {
  if (!text.empty()) return Append(name, text, out);
  out += Cat(",\"", name, "\":null");
}
// 0 is null.
void AppendTime(std::string_view name, std::int64_t unix_s, std::string& out) {
  out += Cat(",\"", name, "\":", unix_s == 0 ? "null" : std::to_string(unix_s));
}

void AppendErrors(const std::vector<BatchError>& errors, std::string& out) {
  if (errors.empty()) {
    out += R"(,"errors":null)";
    return;
  }
  out += R"(,"errors":{"object":"list","data":[)";
  for (std::size_t i = 0; i < errors.size(); ++i) {
    out += i == 0 ? "{" : ",{";
    out += R"("code":)";
    AppendJsonString(errors[i].code, out);
    Append("message", errors[i].message, out);
    AppendOrNull("param", errors[i].param, out);
    AppendTime("line", static_cast<std::int64_t>(errors[i].line), out);
    out += '}';
  }
  out += "]}";
}

// "24h" as seconds.
absl::StatusOr<std::int64_t> WindowSeconds(std::string_view window) {
  std::int64_t hours = 0;
  if (!window.ends_with('h') ||
      !absl::SimpleAtoi(ToAbsl(window.substr(0, window.size() - 1)), &hours) || hours < 1 ||
      hours > kMaxWindowHours) {
    return InvalidField("completion_window",
                        Cat("'completion_window' must be 1h to ", kMaxWindowHours, "h, as in 24h"));
  }
  return hours * kHourS;
}

// Returns the metadata as JSON text.
absl::StatusOr<std::string> MetadataText(const Json* metadata) {
  if (metadata == nullptr) return std::string("null");
  const auto wrong = [](std::string_view what) {
    return InvalidField("metadata", Cat("'metadata' ", what));
  };
  if (!metadata->is_object()) return wrong("must be an object of texts");
  if (metadata->size() > kMaxMetadata) return wrong(Cat("has more than ", kMaxMetadata, " pairs"));
  for (const auto& [key, value] : metadata->items()) {
    if (!value.is_string()) return wrong("must be an object of texts");
    if (Utf8Length(key) > kMaxMetadataKey ||
        Utf8Length(value.get_ref<const std::string&>()) > kMaxMetadataValue) {
      return wrong(Cat("may have keys of ", kMaxMetadataKey, " characters and values of ",
                       kMaxMetadataValue));
    }
  }
  return metadata->dump();
}

absl::StatusOr<std::int64_t> OutputLife(const Json* expires) {
  if (expires == nullptr) return 0;
  constexpr std::string_view kField = "output_expires_after";
  if (!expires->is_object()) return InvalidField(kField, Cat("'", kField, "' must be an object"));
  ObjectReader reader(*expires, "output_expires_after.");
  const std::string anchor = reader.String("anchor").value_or("");
  const std::int64_t seconds = reader.Int("seconds").value_or(0);
  if (absl::Status s = reader.Finish(/*permissive=*/false, nullptr); !s.ok()) return s;
  return CheckLife(kField, anchor, seconds);
}

}  // namespace

std::string FileJson(const StoredFile& file) {
  std::string out = R"({"id":)";
  AppendJsonString(file.id, out);
  out += Cat(R"(,"object":"file","bytes":)", file.bytes);
  AppendTime("created_at", file.created_s, out);
  AppendTime("expires_at", file.expires_s, out);
  Append("filename", file.name, out);
  Append("purpose", file.purpose, out);
  return out += R"(,"status":"processed","status_details":null})";
}

std::string BatchJson(const StoredBatch& batch) {
  std::string out = R"({"id":)";
  AppendJsonString(batch.id, out);
  out += R"(,"object":"batch")";
  Append("endpoint", batch.order.endpoint, out);
  AppendErrors(batch.errors, out);
  Append("input_file_id", batch.order.input_file_id, out);
  Append("completion_window", batch.order.completion_window, out);
  Append("status", NameOf(batch.status), out);
  AppendOrNull("output_file_id", batch.has_output ? batch.output_id : "", out);
  AppendOrNull("error_file_id", batch.has_errors ? batch.error_id : "", out);
  AppendTime("created_at", batch.created_s(), out);
  for (std::size_t i = 1; i < kBatchStatuses; ++i) {
    AppendTime(Cat(NameOf(static_cast<BatchStatus>(i)), "_at"), batch.since_s[i], out);
  }
  AppendTime("expires_at", batch.expires_s, out);
  out += Cat(R"(,"request_counts":{"total":)", batch.counts.total, R"(,"completed":)",
             batch.counts.completed, R"(,"failed":)", batch.counts.failed, R"(},"metadata":)",
             batch.order.metadata, "}");
  return out;
}

std::string ListJson(const std::vector<std::pair<std::string, std::string>>& objects,
                     bool has_more) {
  std::string out = R"({"object":"list","data":[)";
  for (std::size_t i = 0; i < objects.size(); ++i) {
    if (i > 0) out += ',';
    out += objects[i].second;
  }
  out += ']';
  AppendOrNull("first_id", objects.empty() ? "" : objects.front().first, out);
  AppendOrNull("last_id", objects.empty() ? "" : objects.back().first, out);
  return out += Cat(R"(,"has_more":)", has_more ? "true" : "false", "}");
}

absl::StatusOr<PageOrder> ParsePage(std::string_view query, bool of_files) {
  PageOrder page;
  if (of_files) page.limit = kMaxFilesPage;
  const std::size_t max_limit = of_files ? kMaxFilesPage : kMaxBatchesPage;
  while (!query.empty()) {
    const std::string_view pair = query.substr(0, query.find('&'));
    query.remove_prefix(std::min(query.size(), pair.size() + 1));
    const std::size_t equals = std::min(pair.find('='), pair.size());
    const std::string name = DecodePercent(pair.substr(0, equals));
    const std::string value = DecodePercent(pair.substr(std::min(equals + 1, pair.size())));
    if (name.empty()) continue;
    if (name == "limit") {
      if (!absl::SimpleAtoi(value, &page.limit) || page.limit < 1 || page.limit > max_limit) {
        return InvalidField("limit", Cat("'limit' must be a number from 1 to ", max_limit));
      }
    } else if (name == "after") {
      page.after = value;
    } else if (of_files && name == "order" && (value == "asc" || value == "desc")) {
      page.newest_first = value == "desc";
    } else if (of_files && name == "order") {
      return InvalidField("order", "'order' must be asc or desc");
    } else if (of_files && name == "purpose") {
      page.purpose = value;
    } else {
      return WithField(InvalidArgument("the query has an unknown parameter '",
                                       std::string_view(name).substr(0, 64), "'"),
                       name.substr(0, 64), kUnknownField);
    }
  }
  return page;
}

absl::StatusOr<BatchOrder> ParseBatchOrder(std::string_view body) {
  const absl::StatusOr<JsonDocument> json = ParseJsonObject(body);
  if (!json.ok()) return json.status();
  ObjectReader reader(json->root(), "");
  BatchOrder order;
  order.input_file_id = reader.String("input_file_id").value_or("");
  order.endpoint = reader.String("endpoint").value_or("");
  order.completion_window = reader.String("completion_window").value_or("");
  const Json* const metadata = reader.Value("metadata");
  const Json* const expires = reader.Value("output_expires_after");
  if (absl::Status s = reader.Finish(/*permissive=*/false, nullptr); !s.ok()) return s;
  if (order.input_file_id.empty()) {
    return InvalidField("input_file_id", "'input_file_id' is missing");
  }
  if (order.endpoint != "/v1/chat/completions" && order.endpoint != "/v1/completions") {
    return InvalidField("endpoint", "'endpoint' must be /v1/chat/completions or /v1/completions");
  }
  const absl::StatusOr<std::int64_t> window_s = WindowSeconds(order.completion_window);
  if (!window_s.ok()) return window_s.status();
  order.window_s = *window_s;
  absl::StatusOr<std::string> text = MetadataText(metadata);
  if (!text.ok()) return text.status();
  order.metadata = *std::move(text);
  const absl::StatusOr<std::int64_t> life_s = OutputLife(expires);
  if (!life_s.ok()) return life_s.status();
  order.output_life_s = *life_s;
  return order;
}

absl::StatusOr<std::int64_t> CheckLife(std::string_view field, std::string_view anchor,
                                       std::int64_t seconds) {
  if (anchor != "created_at") {
    return InvalidField(field, Cat("the anchor of '", field, "' must be created_at"));
  }
  if (seconds < kMinLifeS || seconds > kMaxLifeS) {
    return InvalidField(field,
                        Cat("the seconds of '", field, "' must be ", kMinLifeS, " to ", kMaxLifeS));
  }
  return seconds;
}

std::string DecodePercent(std::string_view text) {
  const auto hex = [](char c) {
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    if (c >= 'A' && c <= 'F') return c - 'A' + 10;
    return -1;
  };
  std::string out;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '%' && i + 2 < text.size() && hex(text[i + 1]) >= 0 && hex(text[i + 2]) >= 0) {
      out.push_back(static_cast<char>(hex(text[i + 1]) * 16 + hex(text[i + 2])));
      i += 2;
    } else {
      out.push_back(text[i]);
    }
  }
  return out;
}

}  // namespace flotilla::router
