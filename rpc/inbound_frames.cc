#include "rpc/inbound_frames.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace flotilla::rpc {
namespace {

// "PRI * HTTP/2.0 ... ": no frame begins with P, for that would be one of 5 MB, and 16 KiB are
// what gRPC takes.
constexpr std::uint8_t kPrefaceBegin = 'P';
constexpr std::uint64_t kPrefaceBytes = 24;

enum FrameType : std::uint8_t {
  kHeaders = 1,
  kResetStream = 3,
  kPushPromise = 5,
  kPing = 6,
  kContinuation = 9
};
constexpr std::uint8_t kAck = 1, kEndHeaders = 4;

}  // namespace

bool Allowance::Take(std::int64_t now_ns) {
  const double seconds = static_cast<double>(now_ns - std::exchange(last_ns_, now_ns)) * 1e-9;
  left_ = std::min(burst_, left_ + std::max(0.0, seconds) * per_second_);
  if (left_ < 1) return false;
  left_ -= 1;
  return true;
}

absl::Status InboundFrames::Read(absl::Span<const std::uint8_t> bytes, std::int64_t now_ns) {
  if (!begun_ && !bytes.empty()) {
    begun_ = true;
    if (bytes[0] == kPrefaceBegin) skip_ = kPrefaceBytes;
  }
  while (!bytes.empty()) {
    if (skip_ > 0) {
      const auto skipped = static_cast<std::size_t>(std::min<std::uint64_t>(skip_, bytes.size()));
      skip_ -= skipped;
      bytes.remove_prefix(skipped);
      continue;
    }
    header_[header_bytes_++] = bytes[0];
    bytes.remove_prefix(1);
    if (header_bytes_ < kFrameHeader) continue;
    header_bytes_ = 0;
    if (absl::Status status = BeginFrame(now_ns); !status.ok()) return status;
  }
  return absl::OkStatus();
}

absl::Status InboundFrames::BeginFrame(std::int64_t now_ns) {
  const std::uint32_t length = std::uint32_t{header_[0]} << 16 | header_[1] << 8 | header_[2];
  const std::uint8_t type = header_[3], flags = header_[4];
  skip_ = length;
  switch (type) {
    case kHeaders:
    case kPushPromise:
    case kContinuation:
      return BeginHeaders(length, type, flags);
    case kPing:
      // Answers come only to PINGs of this end.
      if ((flags & kAck) != 0 || pings_.Take(now_ns)) return absl::OkStatus();
      return absl::ResourceExhaustedError("too many PING frames");
    case kResetStream:
      if (resets_.Take(now_ns)) return absl::OkStatus();
      return absl::ResourceExhaustedError("too many streams were reset");
    default:  // in the middle of a block, gRPC refuses it
      return absl::OkStatus();
  }
}

absl::Status InboundFrames::BeginHeaders(std::uint32_t length, std::uint8_t type,
                                         std::uint8_t flags) {
  if (type != kContinuation) block_bytes_ = 0, continuations_ = 0;
  block_bytes_ += kFrameHeader + length;
  continuations_ += type == kContinuation ? 1 : 0;
  if (block_bytes_ > kMaxHeaderBlockBytes || continuations_ > kMaxContinuations) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "a header block of ", block_bytes_, " bytes and more, with ", continuations_,
        " continuations; ", kMaxHeaderBlockBytes, " and ", kMaxContinuations, " are allowed"));
  }
  if ((flags & kEndHeaders) != 0) block_bytes_ = 0, continuations_ = 0;
  return absl::OkStatus();
}

}  // namespace flotilla::rpc
