// HeldMessages: counts how much gRPC holds of unfinished messages, for one connection on which
// calls come in. It needs only the connection's bytes. Pure.
//
// gRPC 1.51 buffers a message while it comes, up to the port's limit, on every stream of every
// connection, and waits for the rest as long as the peer likes.
#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/container/flat_hash_map.h"
#include "absl/types/span.h"
#include "rpc/frame_reader.h"

namespace flotilla::rpc {

// The bound for all connections of the process together. A message to a server is no longer
// than this (rpc/endpoint.h).
inline constexpr std::size_t kMaxHeldBytes = 16 << 20;
// The least cost of a frame: however short it is, it keeps the buffer that it was read into.
inline constexpr std::size_t kLeastHeldBytes = 8 << 10;

// The owner makes these calls in the order in which gRPC does what they report.
class HeldMessages {
 public:
  // gRPC has a call of this stream, or has it no longer. It does not hold bytes of other streams.
  void Begin(std::uint32_t stream) { streams_.try_emplace(stream); }
  void End(std::uint32_t stream);
  // gRPC has read these bytes, at `now_ns` of a monotonic clock.
  void Read(absl::Span<const std::uint8_t> bytes, std::int64_t now_ns);

  std::size_t bytes() const { return bytes_; }
  // The sum over all unfinished messages of the bytes held times the time since the message
  // began, in byte seconds. A connection that holds many bytes for long has a large sum; a
  // message that comes as fast as it can adds little.
  double ByteSeconds(std::int64_t now_ns) const;

 private:
  static constexpr std::size_t kPrefix = 5;  // of a gRPC message: a flag, and its length

  struct Stream {
    std::uint8_t prefix[kPrefix] = {};
    std::size_t prefix_bytes = 0;  // 0: between messages
    std::uint32_t left = 0;        // bytes of the message to come, once the prefix is there
    std::size_t held = 0;          // bytes, in whole frames
    std::int64_t since_ns = 0;     // when the message began
  };

  void BeginFrame(const FrameHeader& frame, std::int64_t now_ns);
  void ReadPayload(absl::Span<const std::uint8_t> bytes, std::int64_t now_ns);
  static std::size_t ReadMessage(Stream& stream, absl::Span<const std::uint8_t> bytes);
  void Hold(Stream& stream, std::size_t bytes);

  FrameReader reader_;
  FrameHeader frame_;             // the last one
  std::uint32_t frame_left_ = 0;  // of its payload
  absl::flat_hash_map<std::uint32_t, Stream> streams_;
  std::size_t bytes_ = 0;  // of all streams
};

}  // namespace flotilla::rpc
