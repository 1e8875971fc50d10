// InboundFrames: whether the frames that an HTTP/2 connection brings stay within bounds, read
// from its bytes alone. Pure.
//
// A header block is a HEADERS frame (or PUSH_PROMISE) and the CONTINUATION frames after it,
// until one says that it is the last. HTTP/2 does not bound their number, and gRPC 1.51 keeps
// what it cannot decode yet: a string or a number that goes on for ever.
//
// Besides, gRPC answers each PING and keeps something of each stream that is reset (rapid
// reset, CVE-2023-44487), as fast as they come and whether or not answers are read. Both are
// allowed at a rate here.
#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "rpc/frame_reader.h"

namespace flotilla::rpc {

// Frames of a block with their headers. gRPC takes 8 KiB of metadata by default; a block within
// that is refused as a call, one beyond this ends the connection.
inline constexpr std::size_t kMaxHeaderBlockBytes = 32 << 10;
// Each may bring some: gRPC counts metadata anew in each frame.
inline constexpr int kMaxContinuations = 4;

// The allowed rate of an event: so many at once, and so many a second in the long run.
class Allowance {
 public:
  Allowance(double burst, double per_second)
      : burst_(burst), per_second_(per_second), left_(burst) {}
  // Takes one; false: there is none just now. `now_ns` of a monotonic clock.
  bool Take(std::int64_t now_ns);

 private:
  const double burst_, per_second_;
  double left_;
  std::int64_t last_ns_ = 0;
};

// A gRPC client may send a PING for a DATA frame that comes while none of its PINGs is
// unanswered (grpc-go does: so it measures the connection). So there is at most one a round
// trip, and at most one a DATA frame: some hundred a second for a stream of tokens, and a
// thousand for a connection of many streams, whose frames come at once with each step. The
// burst is what comes late, all at once, from a network that stood still.
inline constexpr double kPingBurst = 3000, kPingsPerSecond = 1000;
// Calls that are cancelled: all of a connection at once (1,024), then as fast as a gateway's
// users lose patience.
inline constexpr double kResetBurst = 1024, kResetsPerSecond = 200;

// One end of one connection. Its owner calls it in the order of the bytes.
class InboundFrames {
 public:
  // Reads on, at `now_ns` of a monotonic clock. RESOURCE_EXHAUSTED: a frame begins in `bytes`
  // that is too much; the connection is to be closed before these bytes are used. The first
  // bytes of a client may be HTTP/2's preface.
  absl::Status Read(absl::Span<const std::uint8_t> bytes, std::int64_t now_ns);

 private:
  absl::Status BeginFrame(const FrameHeader& frame, std::int64_t now_ns);
  absl::Status BeginHeaders(const FrameHeader& frame);

  FrameReader reader_;
  std::size_t block_bytes_ = 0;  // 0: none is open
  int continuations_ = 0;
  Allowance pings_{kPingBurst, kPingsPerSecond};
  Allowance resets_{kResetBurst, kResetsPerSecond};
};

}  // namespace flotilla::rpc
