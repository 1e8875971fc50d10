#include "rpc/inbound_frames.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace flotilla::rpc {
namespace {

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
  return reader_.Read(
      bytes, [&](const FrameHeader& frame) { return BeginFrame(frame, now_ns); },
      [](absl::Span<const std::uint8_t>) {});
}

absl::Status InboundFrames::BeginFrame(const FrameHeader& frame, std::int64_t now_ns) {
  switch (frame.type) {
    case kHeaders:
    case kPushPromise:
    case kContinuation:
      return BeginHeaders(frame);
    case kPing:
      // An ACK only answers a PING of this end, so it needs no allowance.
      if ((frame.flags & kAck) != 0 || pings_.Take(now_ns)) return absl::OkStatus();
      return absl::ResourceExhaustedError("too many PING frames");
    case kResetStream:
      if (resets_.Take(now_ns)) return absl::OkStatus();
      return absl::ResourceExhaustedError("too many streams were reset");
    default:  // gRPC refuses such a frame in the middle of a block
      return absl::OkStatus();
  }
}

absl::Status InboundFrames::BeginHeaders(const FrameHeader& frame) {
  if (frame.type != kContinuation) block_bytes_ = 0, continuations_ = 0;
  block_bytes_ += FrameReader::kHeaderBytes + frame.length;
  continuations_ += frame.type == kContinuation ? 1 : 0;
  if (block_bytes_ > kMaxHeaderBlockBytes || continuations_ > kMaxContinuations) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "a header block of ", block_bytes_, " bytes and more, with ", continuations_,
        " continuations; ", kMaxHeaderBlockBytes, " and ", kMaxContinuations, " are allowed"));
  }
  if ((frame.flags & kEndHeaders) != 0) block_bytes_ = 0, continuations_ = 0;
  return absl::OkStatus();
}

}  // namespace flotilla::rpc
