// The lines of a batch's files, in the format of OpenAI's batches. A line of the input is a
// request:
//
//   {"custom_id":"a","method":"POST","url":"/v1/chat/completions","body":{"model":...}}
//
// A line of the output is its answer, whatever its status:
//
//   {"id":"batch_req_1","custom_id":"a","response":{"status_code":200,"request_id":"a",
//    "body":{"id":"chatcmpl-...",...}},"error":null}
//
// Pure functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace flotilla::router {

// The most bytes of a line of the input: as many as a body may have over HTTP.
inline constexpr std::size_t kMaxBatchLineBytes = 4u << 20;
// The most bytes of a custom_id: as many as a request_id may have over HTTP.
inline constexpr std::size_t kMaxCustomIdBytes = 256;

struct BatchRequest {
  std::string custom_id;
  std::string url;   // one that a batch can ask
  std::string body;  // a JSON object
};

// Reads a line of the input, without its line end. INVALID_ARGUMENT says what is wrong and names
// the field. What is wrong inside of the body is for the API to say, except that it must not ask
// for a stream.
absl::StatusOr<BatchRequest> ParseBatchRequest(std::string_view line);

// A line of the output, with its line end. `line` is the number of the request's line, from 1 on.
// `body` is JSON.
std::string BatchAnswerLine(std::uint64_t line, std::string_view custom_id, int status,
                            std::string_view body);

// A line of the output for a request that was never answered, with its line end.
std::string BatchFailureLine(std::uint64_t line, std::string_view custom_id, std::string_view code,
                             std::string_view message);

// What a batch counts of an answer.
struct AnswerSummary {
  std::string custom_id;
  int status = 0;  // of HTTP; 0: the request was never answered
  std::uint64_t prompt_tokens = 0;
  std::uint64_t completion_tokens = 0;
};

// Reads a line of the output, without its line end. Takes memory for its longest string only.
// INVALID_ARGUMENT: the line is not JSON, or has no custom_id, or neither status_code nor error.
absl::StatusOr<AnswerSummary> ReadBatchAnswer(std::string_view line);

}  // namespace flotilla::router
