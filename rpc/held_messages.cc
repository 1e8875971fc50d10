#include "rpc/held_messages.h"

#include <algorithm>

namespace flotilla::rpc {
namespace {

constexpr std::uint8_t kData = 0, kEndStream = 1;

std::size_t Cost(const FrameHeader& frame) {
  return frame.length == 0 ? 0 : std::max<std::size_t>(frame.length, kLeastHeldBytes);
}

}  // namespace

void HeldMessages::End(std::uint32_t stream) {
  const auto found = streams_.find(stream);
  if (found == streams_.end()) return;
  Hold(found->second, 0);
  streams_.erase(found);
}

void HeldMessages::Read(absl::Span<const std::uint8_t> bytes, std::int64_t now_ns) {
  reader_
      .Read(
          bytes,
          [&](const FrameHeader& frame) {
            BeginFrame(frame, now_ns);
            return absl::OkStatus();
          },
          [&](absl::Span<const std::uint8_t> payload) { ReadPayload(payload, now_ns); })
      .IgnoreError();  // there is none
}

double HeldMessages::ByteSeconds(std::int64_t now_ns) const {
  double sum = 0;
  for (const auto& [id, stream] : streams_) {
    // The age is at least a microsecond, so that a held message always has one.
    const auto ns = std::max<std::int64_t>(1000, now_ns - stream.since_ns);
    sum += static_cast<double>(stream.held) * static_cast<double>(ns) * 1e-9;
  }
  return sum;
}

void HeldMessages::BeginFrame(const FrameHeader& frame, std::int64_t now_ns) {
  frame_ = frame;
  frame_left_ = frame.length;
  if (frame.type != kData) return;
  const auto found = streams_.find(frame.stream);
  if (found == streams_.end()) return;
  Stream& stream = found->second;
  if (stream.held == 0) stream.since_ns = now_ns;
  Hold(stream, stream.held + Cost(frame));
  if (frame.length == 0 && (frame.flags & kEndStream) != 0) Hold(stream, 0);
}

void HeldMessages::ReadPayload(absl::Span<const std::uint8_t> bytes, std::int64_t now_ns) {
  frame_left_ -= static_cast<std::uint32_t>(bytes.size());
  if (frame_.type != kData) return;
  const auto found = streams_.find(frame_.stream);
  if (found == streams_.end()) return;
  Stream& stream = found->second;
  while (!bytes.empty()) {
    bytes.remove_prefix(ReadMessage(stream, bytes));
    if (stream.prefix_bytes < kPrefix || stream.left > 0) continue;
    // The message is whole. At most this frame is held for the next one.
    stream.prefix_bytes = 0;
    stream.since_ns = now_ns;
    Hold(stream, std::min(stream.held, Cost(frame_)));
  }
  const bool ended = (frame_.flags & kEndStream) != 0;
  if (frame_left_ == 0 && (ended || stream.prefix_bytes == 0)) Hold(stream, 0);
}

// Reads on, at most to the end of the prefix or of the message. Returns the number of bytes read.
std::size_t HeldMessages::ReadMessage(Stream& stream, absl::Span<const std::uint8_t> bytes) {
  if (stream.prefix_bytes == kPrefix) {
    const std::size_t some = std::min<std::size_t>(stream.left, bytes.size());
    stream.left -= static_cast<std::uint32_t>(some);
    return some;
  }
  stream.prefix[stream.prefix_bytes++] = bytes[0];
  const std::uint8_t* length = stream.prefix + 1;
  if (stream.prefix_bytes == kPrefix) {
    stream.left = std::uint32_t{length[0]} << 24 | std::uint32_t{length[1]} << 16 |
                  std::uint32_t{length[2]} << 8 | length[3];
  }
  return 1;
}

void HeldMessages::Hold(Stream& stream, std::size_t bytes) {
  bytes_ = bytes_ - stream.held + bytes;
  stream.held = bytes;
}

}  // namespace flotilla::rpc
