// Mutated forms of uploads. An input is a line with the limits and the sizes of pieces, a line with
// the Content-Type, and the body. However the body is cut into pieces, its parts are the same, and
// so is the error.
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "router/http/multipart.h"
#include "tests/fuzz/input_limits.h"
#include "tests/fuzz/split_text.h"

namespace {

using flotilla::router::MultipartLimits;
using flotilla::router::MultipartPart;

[[noreturn]] void Fail(const char* what, const std::string& which) {
  std::fprintf(stderr, "%s: %s\n", what, which.c_str());
  std::abort();
}

// Writes down all that comes, and checks its order.
class Sink final : public flotilla::router::MultipartSink {
 public:
  absl::Status OnPart(const MultipartPart& part) override {
    if (open_) Fail("a part begins within another one", part.name);
    open_ = true;
    ++parts_;
    text_ += "part " + part.name + (part.is_file ? " of file " + part.file_name : "") + ": ";
    return absl::OkStatus();
  }
  absl::Status OnData(std::string_view bytes) override {
    if (!open_ || bytes.empty()) Fail("data comes outside of a part, or is empty", text_);
    text_ += bytes;
    return absl::OkStatus();
  }
  absl::Status OnPartEnd() override {
    if (!open_) Fail("a part ends that is none", text_);
    open_ = false;
    text_ += '\n';
    return absl::OkStatus();
  }
  const std::string& text() const { return text_; }
  std::size_t parts() const { return parts_; }

 private:
  std::string text_;
  std::size_t parts_ = 0;
  bool open_ = false;
};

// What comes of the pieces, and how it ends.
std::string Read(const std::vector<std::string_view>& pieces, const std::string& boundary,
                 MultipartLimits limits) {
  Sink sink;
  flotilla::router::MultipartReader reader(boundary, limits, &sink);
  absl::Status status;
  for (const std::string_view piece : pieces) {
    status = reader.Read(piece);
    if (!status.ok()) break;
  }
  if (status.ok()) status = reader.Finish();
  if (sink.parts() > limits.parts) Fail("there are more parts than the limit", sink.text());
  return sink.text() + status.ToString();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* input, size_t size) {
  std::string_view body(reinterpret_cast<const char*>(input), size);
  const flotilla::testing::InputLimits limits_of_input(size);
  const std::string_view sizes = flotilla::testing::TakeLine(body);
  const std::string_view content_type = flotilla::testing::TakeLine(body);
  const auto at = [sizes](std::size_t i) -> std::size_t {
    return i < sizes.size() ? static_cast<unsigned char>(sizes[i]) : 'z';
  };
  // Small limits are reached by small inputs. 'z' stands for those of a server.
  MultipartLimits limits;
  if (at(0) != 'z') limits.parts = at(0) % 16;
  if (at(1) != 'z') limits.header_bytes = at(1);
  if (at(2) != 'z') limits.outside_bytes = at(2);
  const absl::StatusOr<std::string> boundary = flotilla::router::MultipartBoundary(content_type);
  if (!boundary.ok()) return 0;
  if (boundary->empty() || boundary->size() > 70) Fail("this is no boundary", *boundary);
  const std::string whole = Read({body}, *boundary, limits);
  for (const std::string_view each : {sizes, std::string_view()}) {
    const std::string pieces = Read(flotilla::testing::Pieces(body, each), *boundary, limits);
    if (pieces != whole) Fail("pieces give another result than the whole", pieces + "\n" + whole);
  }
  return 0;
}
