// The table of parameters beside all that goes by it or must equal it: the protos and docs/api.md.
#include "common/types/parameters.h"

#include <fstream>
#include <map>
#include <regex>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "flotilla/v1/inference.pb.h"
#include "flotilla/v1/sampling.pb.h"
#include "gtest/gtest.h"
#include "router/generate_request.h"

namespace flotilla::router {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;

std::vector<std::string> LinesOf(const char* path) {
  std::ifstream file(path);
  EXPECT_TRUE(file.is_open()) << "run the test from the source folder";
  std::vector<std::string> lines;
  for (std::string line; std::getline(file, line);) lines.push_back(line);
  return lines;
}

bool IsNumber(const Parameter& row) {
  return std::holds_alternative<Parameter::Member<std::optional<double>>>(row.asked) ||
         std::holds_alternative<Parameter::Member<std::optional<std::int64_t>>>(row.asked);
}

// The rows of the table of the generation endpoints in docs/api.md, by columns.
std::vector<std::vector<std::string>> ManualRows() {
  std::vector<std::vector<std::string>> rows;
  bool in_table = false;
  for (const std::string& line : LinesOf("docs/api.md")) {
    if (line.starts_with("| field | meaning | range |")) in_table = true;
    if (in_table && !line.starts_with("|")) break;
    if (!in_table) continue;
    std::vector<std::string>& columns = rows.emplace_back();
    for (std::size_t at = 1; at < line.size();) {
      const std::size_t end = line.find('|', at);
      const std::string column = line.substr(at, end - at);
      const auto first = column.find_first_not_of(' '), last = column.find_last_not_of(' ');
      columns.push_back(first == column.npos ? "" : column.substr(first, last - first + 1));
      at = end + 1;
    }
  }
  return rows;
}

std::string ManualRange(const Parameter& row) {
  const Range& range = row.range;
  const std::string high = range.limit == Limit::kVocabulary  ? "the vocabulary"
                           : range.limit == Limit::kContext   ? "the context"
                           : range.limit == Limit::kMaxTokens ? "`max_tokens`"
                           : range.limit == Limit::kSequences ? "`max_sequences`"
                           : range.limit == Limit::kTimeout
                               ? absl::StrCat(RequestLimits().max_timeout_ms)
                               : absl::StrCat(range.high);
  if (range.above_low) return absl::StrCat("above ", range.low, ", up to ", high);
  const std::string text = absl::StrCat(range.low, " to ", high);
  if (!row.exceptions.also_default) return text;
  return absl::StrCat(text, ", or ", *row.exceptions.also_default, " for ", *row.default_value);
}

TEST(Parameters, AreInTheManualWithRangeAndDefault) {
  const auto rows = ManualRows();
  for (const Parameter& row : kParameters) {
    const std::string name = absl::StrCat("`", std::string(row.name), "`");
    bool found = false;
    for (const auto& columns : rows) {
      ASSERT_EQ(columns.size(), 4u) << columns[0];
      if (columns[0].find(name) == std::string::npos) continue;
      found = true;
      if (!IsNumber(row) || !row.exceptions.http) continue;
      EXPECT_EQ(columns[2], ManualRange(row)) << name;
      if (!row.default_value) continue;
      EXPECT_EQ(columns[3], absl::StrCat(*row.default_value)) << name;
    }
    EXPECT_TRUE(found) << name << " is not in docs/api.md";
  }
}

TEST(Parameters, OfTheSamplerAreAllFieldsOfTheInternalMessage) {
  std::set<std::string> fields;
  const Descriptor* message = v1::Sampling::descriptor();
  for (int i = 0; i < message->field_count(); ++i) fields.insert(message->field(i)->name());
  std::set<std::string> rows = {"seed",
                                "biased_tokens",
                                "biases",
                                "allowed_tokens",
                                "bad_word_tokens",
                                "bad_word_lengths",
                                "constraint",
                                "dry_heads",
                                "dry_tail_of_heads",
                                "dry_tail_tokens",
                                "dry_tail_lengths",
                                "thinking"};
  ForEachOfSampler([&rows](const Parameter& row, auto) { rows.insert(std::string(row.name)); });
  EXPECT_EQ(fields, rows);
}

// Fields that are no rows, because each API has them in a form of its own. Of every such field in
// docs/api.md: the field of GenerateRequest that is its counterpart, or, in parentheses, why
// there is none.
const std::map<std::string, std::string>& OtherFields() {
  static const std::map<std::string, std::string> fields = {
      {"model", "model"},
      {"messages", "chat.messages"},
      {"prompt", "text token_ids.ids"},
      {"max_completion_tokens", "max_tokens"},
      {"stream", "(a call always streams)"},
      {"stream_options.include_usage", "(the last message has the usage)"},
      {"stream_options.continuous_usage_stats", "(clients count tokens by return_token_ids)"},
      {"top_logprobs", "logprobs.output_top"},
      {"echo", "logprobs.prompt_top"},
      {"X-Request-Id", "(a header; request_id)"},
      {"traceparent", "(metadata of that name)"},
      {"return_tokens_as_token_ids", "(tokens come with id and bytes)"},
      {"response_format", "structured_outputs.json_schema structured_outputs.json_object"},
      {"structured_outputs",
       "structured_outputs.regex structured_outputs.grammar structured_outputs.choice "
       "structured_outputs.structural_tag"},
      {"tools", "chat.tools"},
      {"tool_choice", "chat.tool_choice chat.tool_choice_name"},
      {"parallel_tool_calls", "chat.parallel_tool_calls"},
      {"documents", "chat.documents"},
      {"chat_template_kwargs", "chat.chat_template_kwargs"},
      {"reasoning_effort", "chat.reasoning_effort"},
      {"add_generation_prompt", "chat.add_generation_prompt"},
      {"continue_final_message", "chat.continue_final_message"},
      {"include_reasoning", "chat.include_reasoning"},
      {"reasoning_format", "chat.split_reasoning"},
  };
  return fields;
}

// The fields in the first column of docs/api.md's table.
std::set<std::string> DocumentedFields() {
  std::set<std::string> fields;
  for (const auto& columns : ManualRows()) {
    static const std::regex quoted("`([A-Za-z_.-]+)`");
    for (std::sregex_iterator it(columns[0].begin(), columns[0].end(), quoted), end; it != end;
         ++it) {
      fields.insert((*it)[1]);
    }
  }
  return fields;
}

// "a.b" of a message; null if there is none.
const FieldDescriptor* FindField(const std::string& path) {
  const Descriptor* message = v1::GenerateRequest::descriptor();
  const FieldDescriptor* field = nullptr;
  std::stringstream names(path);
  for (std::string name; std::getline(names, name, '.');) {
    field = message == nullptr ? nullptr : message->FindFieldByName(name);
    if (field == nullptr) return nullptr;
    message = field->message_type();
  }
  return field;
}

TEST(Parameters, AndOtherFieldsAreOnBothApisOrHaveAReason) {
  std::map<std::string, std::string> counterparts = OtherFields();
  for (const Parameter& row : kParameters) {
    counterparts[std::string(row.name)] =
        row.grpc.empty() ? "(the call's deadline)" : std::string(row.grpc);
  }
  const std::set<std::string> documented = DocumentedFields();
  for (const std::string& name : documented) {
    EXPECT_TRUE(counterparts.contains(name)) << name << " has no counterpart, and no reason";
  }
  std::set<std::string> reached;
  for (const auto& [name, counterpart] : counterparts) {
    EXPECT_TRUE(documented.contains(name)) << name;
    if (counterpart.starts_with("(")) continue;
    std::stringstream paths(counterpart);
    for (std::string path; paths >> path;) {
      EXPECT_NE(FindField(path), nullptr) << path;
      reached.insert(path.substr(0, path.find('.')));
      reached.insert(path);
    }
  }
  // And nothing is over gRPC alone.
  const Descriptor* request = v1::GenerateRequest::descriptor();
  for (int i = 0; i < request->field_count(); ++i) {
    const FieldDescriptor* field = request->field(i);
    EXPECT_TRUE(reached.contains(field->name())) << field->name();
    const Descriptor* inner = field->message_type();
    for (int j = 0; inner != nullptr && j < inner->field_count(); ++j) {
      const std::string path = field->name() + "." + inner->field(j)->name();
      EXPECT_TRUE(reached.contains(path)) << path;
    }
  }
}

}  // namespace
}  // namespace flotilla::router
