// MultipartReader: reads a multipart/form-data body (RFC 7578) that comes in pieces. It keeps the
// headers of one part and the end of a piece that may be a boundary, and nothing else, so its
// memory does not depend on the body. It knows no socket and no file. One thread.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace flotilla::router {

struct MultipartLimits {
  std::size_t parts = 16;
  std::size_t header_bytes = 4096;   // of one part
  std::size_t outside_bytes = 4096;  // before the first boundary and after the last one
};

// What the Content-Disposition of a part says.
struct MultipartPart {
  std::string name;       // of the field
  std::string file_name;  // as the client says it: hostile text, never a path
  bool is_file = false;   // there is a file name
};

// Takes the parts. The first error ends the reading.
class MultipartSink {
 public:
  virtual ~MultipartSink() = default;
  virtual absl::Status OnPart(const MultipartPart& part) = 0;
  virtual absl::Status OnData(std::string_view bytes) = 0;
  virtual absl::Status OnPartEnd() = 0;
};

// The boundary of a Content-Type. INVALID_ARGUMENT: this is no multipart/form-data, or its boundary
// is missing, is longer than the 70 bytes that RFC 2046 allows, or has other characters.
absl::StatusOr<std::string> MultipartBoundary(std::string_view content_type);

class MultipartReader {
 public:
  // `sink` outlives the reader.
  MultipartReader(std::string_view boundary, MultipartLimits limits, MultipartSink* sink)
      : limits_(limits), delimiter_("\r\n--"), sink_(*sink) {
    delimiter_ += boundary;
  }

  // Takes the next bytes of the body. INVALID_ARGUMENT: they are no such body, or exceed a limit;
  // other errors are the sink's. Not called after an error.
  absl::Status Read(std::string_view piece);
  // The body has ended. INVALID_ARGUMENT: it is not whole.
  absl::Status Finish() const;

 private:
  enum class State { kPreamble, kBoundary, kHeaders, kData, kEpilogue };

  // Each of these takes what it can from the front of buffer_. False: more is needed.
  absl::StatusOr<bool> Step();
  absl::StatusOr<bool> ReadPreamble();
  absl::StatusOr<bool> ReadBoundaryEnd();
  absl::StatusOr<bool> ReadHeaders();
  absl::StatusOr<bool> ReadData();
  absl::StatusOr<bool> ReadEpilogue();
  absl::Status StartPart(std::string_view headers);

  const MultipartLimits limits_;
  std::string delimiter_;  // a line end, two hyphens and the boundary
  MultipartSink& sink_;
  State state_ = State::kPreamble;
  // Not yet taken. It begins as if a line had ended, because the first boundary may come at once.
  std::string buffer_ = "\r\n";
  std::size_t parts_ = 0;
  std::size_t outside_ = 0;  // bytes behind the last boundary
  bool data_begun_ = false;  // some data of the part was passed on
};

}  // namespace flotilla::router
