#include "router/http/multipart.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "common/types/text.h"
#include "router/errors.h"

namespace flotilla::router {
namespace {

constexpr std::size_t kMaxBoundary = 70;

std::string_view Trim(std::string_view text) {
  const absl::string_view trimmed = absl::StripAsciiWhitespace(ToAbsl(text));
  return {trimmed.data(), trimmed.size()};
}

bool IsBoundaryCharacter(char c) {
  return absl::ascii_isalnum(static_cast<unsigned char>(c)) ||
         std::string_view("'()+_,-./:=? ").find(c) != std::string_view::npos;
}

// Takes the next `; name=value` of a header from the front of `rest`. None: there is no other, or
// it is not well-formed, and then `rest` is not empty.
struct HeaderParameter {
  std::string_view name;
  std::string value;
};
std::optional<HeaderParameter> NextParameter(std::string_view& rest) {
  std::string_view at = Trim(rest);
  if (at.empty()) {
    rest = {};
    return std::nullopt;
  }
  const std::size_t equals = at.find('=');
  if (at.front() != ';' || equals == std::string_view::npos) return std::nullopt;
  HeaderParameter parameter{.name = Trim(at.substr(1, equals - 1)), .value = {}};
  at = Trim(at.substr(equals + 1));
  if (at.empty() || at.front() != '"') {
    const std::size_t end = std::min(at.find(';'), at.size());
    parameter.value = Trim(at.substr(0, end));
    rest = at.substr(end);
    return parameter;
  }
  // In quotes, a backslash stands before a quote or itself. Browsers and others write a file's
  // name with plain backslashes, which stay.
  for (std::size_t i = 1; i < at.size(); ++i) {
    if (at[i] == '"') {
      rest = at.substr(i + 1);
      return parameter;
    }
    const bool escaped =
        at[i] == '\\' && i + 1 < at.size() && (at[i + 1] == '"' || at[i + 1] == '\\');
    parameter.value.push_back(at[escaped ? ++i : i]);
  }
  return std::nullopt;
}

// Reads a Content-Disposition. None: it is none of a form's field.
std::optional<MultipartPart> PartOf(std::string_view disposition) {
  const std::size_t end = std::min(disposition.find(';'), disposition.size());
  if (!absl::EqualsIgnoreCase(ToAbsl(Trim(disposition.substr(0, end))), "form-data")) {
    return std::nullopt;
  }
  std::string_view rest = disposition.substr(end);
  MultipartPart part;
  bool has_name = false;
  while (std::optional<HeaderParameter> parameter = NextParameter(rest)) {
    if (absl::EqualsIgnoreCase(ToAbsl(parameter->name), "name")) {
      if (std::exchange(has_name, true)) return std::nullopt;
      part.name = std::move(parameter->value);
    } else if (absl::EqualsIgnoreCase(ToAbsl(parameter->name), "filename")) {
      if (std::exchange(part.is_file, true)) return std::nullopt;
      part.file_name = std::move(parameter->value);
    }
  }
  if (!rest.empty() || !has_name) return std::nullopt;
  return part;
}

}  // namespace

absl::StatusOr<std::string> MultipartBoundary(std::string_view content_type) {
  const std::size_t end = std::min(content_type.find(';'), content_type.size());
  if (!absl::EqualsIgnoreCase(ToAbsl(Trim(content_type.substr(0, end))), "multipart/form-data")) {
    return InvalidArgument("a file is uploaded with the Content-Type multipart/form-data");
  }
  std::string_view rest = content_type.substr(end);
  std::optional<std::string> boundary;
  while (std::optional<HeaderParameter> parameter = NextParameter(rest)) {
    if (!absl::EqualsIgnoreCase(ToAbsl(parameter->name), "boundary")) continue;
    if (boundary.has_value()) return InvalidArgument("the Content-Type has two boundaries");
    boundary = std::move(parameter->value);
  }
  if (!rest.empty() || !boundary.has_value() || boundary->empty() ||
      boundary->size() > kMaxBoundary || boundary->back() == ' ' ||
      !std::all_of(boundary->begin(), boundary->end(), IsBoundaryCharacter)) {
    return InvalidArgument("the Content-Type multipart/form-data needs a boundary of 1 to ",
                           kMaxBoundary, " characters");
  }
  return *std::move(boundary);
}

absl::Status MultipartReader::Read(std::string_view piece) {
  buffer_ += piece;
  while (true) {
    const absl::StatusOr<bool> stepped = Step();
    if (!stepped.ok()) return stepped.status();
    if (!*stepped) return absl::OkStatus();
  }
}

absl::Status MultipartReader::Finish() const {
  if (state_ == State::kEpilogue) return absl::OkStatus();
  return InvalidArgument("the form ends before its last boundary");
}

absl::StatusOr<bool> MultipartReader::Step() {
  switch (state_) {
    case State::kPreamble:
      return ReadPreamble();
    case State::kBoundary:
      return ReadBoundaryEnd();
    case State::kHeaders:
      return ReadHeaders();
    case State::kData:
      return ReadData();
    case State::kEpilogue:
      return ReadEpilogue();
  }
  return false;
}

absl::StatusOr<bool> MultipartReader::ReadPreamble() {
  const std::size_t at = buffer_.find(delimiter_);
  if (at != std::string::npos && at <= limits_.outside_bytes) {
    buffer_.erase(0, at + delimiter_.size());
    state_ = State::kBoundary;
    return true;
  }
  // A boundary at the limit may be here in part.
  if (buffer_.size() < limits_.outside_bytes + delimiter_.size()) return false;
  return InvalidArgument("the form does not begin with its boundary");
}

// What follows a boundary: a line end, or two hyphens behind the last one. Spaces may come between.
absl::StatusOr<bool> MultipartReader::ReadBoundaryEnd() {
  if (buffer_.size() < 2) return false;
  if (buffer_.starts_with("--")) {
    state_ = State::kEpilogue;
    return true;
  }
  const std::size_t at = buffer_.find_first_not_of(" \t");
  if (std::min(at, buffer_.size()) > limits_.header_bytes) {
    return InvalidArgument("too many spaces follow a boundary of the form");
  }
  if (at == std::string::npos || buffer_.size() < at + 2) return false;
  if (buffer_.compare(at, 2, "\r\n") != 0) {
    return InvalidArgument("no line end follows a boundary of the form");
  }
  if (++parts_ > limits_.parts) {
    return InvalidArgument("the form has more than ", limits_.parts, " parts");
  }
  buffer_.erase(0, at);  // the line end stays: headers may be none
  state_ = State::kHeaders;
  return true;
}

absl::StatusOr<bool> MultipartReader::ReadHeaders() {
  constexpr std::string_view kEnd = "\r\n\r\n";
  const std::size_t at = buffer_.find(kEnd);
  // An end at the limit may be here in part.
  const std::size_t least =
      std::min(at, buffer_.size() - std::min(buffer_.size(), kEnd.size() - 1));
  if (least > limits_.header_bytes) {
    return InvalidArgument("the headers of a part of the form are longer than ",
                           limits_.header_bytes, " bytes");
  }
  if (at == std::string::npos) return false;
  if (absl::Status s = StartPart(std::string_view(buffer_).substr(0, at)); !s.ok()) return s;
  // The line end stays in front of the data, because a boundary may follow at once.
  buffer_.erase(0, at + kEnd.size() - 2);
  state_ = State::kData;
  data_begun_ = false;
  return true;
}

absl::Status MultipartReader::StartPart(std::string_view headers) {
  std::optional<MultipartPart> part;
  while (!headers.empty()) {
    headers.remove_prefix(2);  // the line end
    const std::size_t end = std::min(headers.find("\r\n"), headers.size());
    const std::string_view line = headers.substr(0, end);
    headers.remove_prefix(end);
    const std::size_t colon = line.find(':');
    if (colon == std::string_view::npos) break;
    if (!absl::EqualsIgnoreCase(ToAbsl(line.substr(0, colon)), "content-disposition")) continue;
    if (part.has_value()) return InvalidArgument("a part of the form has two dispositions");
    part = PartOf(line.substr(colon + 1));
    if (!part.has_value()) break;
  }
  if (!part.has_value()) {
    return InvalidArgument(
        "each part of the form needs the header Content-Disposition: form-data; name=\"...\"");
  }
  return sink_.OnPart(*part);
}

absl::StatusOr<bool> MultipartReader::ReadData() {
  // The line end behind the headers is in front of the data until the first byte is passed on.
  const std::size_t begin = data_begun_ ? 0 : 2;
  const std::size_t at = buffer_.find(delimiter_);
  if (at == std::string::npos) {
    // What may be the begin of a delimiter stays.
    const std::size_t kept = std::min(buffer_.size(), delimiter_.size() - 1);
    const std::size_t end = buffer_.size() - kept;
    if (end <= begin) return false;
    if (absl::Status s = sink_.OnData(std::string_view(buffer_).substr(begin, end - begin));
        !s.ok()) {
      return s;
    }
    data_begun_ = true;
    buffer_.erase(0, end);
    return false;
  }
  if (at > begin) {
    if (absl::Status s = sink_.OnData(std::string_view(buffer_).substr(begin, at - begin));
        !s.ok()) {
      return s;
    }
  }
  if (absl::Status s = sink_.OnPartEnd(); !s.ok()) return s;
  buffer_.erase(0, at + delimiter_.size());
  state_ = State::kBoundary;
  return true;
}

absl::StatusOr<bool> MultipartReader::ReadEpilogue() {
  outside_ += buffer_.size();
  buffer_.clear();
  if (outside_ > limits_.outside_bytes) {
    return InvalidArgument("too much follows the last boundary of the form");
  }
  return false;
}

}  // namespace flotilla::router
