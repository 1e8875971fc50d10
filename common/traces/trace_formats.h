// The formats of recorded workloads: flotilla's own (request_trace.h) and those of public traces.
//
//   Mooncake (JSON lines): timestamp (ms), input_length, output_length, and hash_ids, which name
//   the
//     blocks of 512 tokens of the prompt; equal ids are equal tokens. Qin et al. 2024.
//   BurstGPT (CSV): Timestamp (s), Request tokens, Response tokens; the other columns are not read.
//     Rows without response tokens are failures of the recorded service, and are left out. Wang et
//     al. 2024.
//   Azure (CSV): TIMESTAMP (a date and time), ContextTokens, GeneratedTokens. Patel et al. 2024.
//
// Pure: text in, values out. The text is hostile.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/traces/request_trace.h"

namespace flotilla {

enum class TraceFormat : std::uint8_t { kFlotilla, kMooncake, kBurstGpt, kAzure };

// The names that flags take: flotilla, mooncake, burstgpt, azure.
std::vector<std::string> TraceFormatNames();
// NOT_FOUND lists the names.
absl::StatusOr<TraceFormat> FindTraceFormat(absl::string_view name);

// The format that the first line of `text` is in. What is like no other is kFlotilla.
TraceFormat DetectTraceFormat(absl::string_view text);

// Reads a trace. Arrivals of public traces are counted from the first one. INVALID_ARGUMENT names
// line and column of what cannot be used.
absl::StatusOr<RequestTrace> ReadTrace(absl::string_view text, TraceFormat format);

}  // namespace flotilla
