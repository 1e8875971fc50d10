// FrameReader: splits the bytes of an HTTP/2 connection into its frames. Pure.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/types/span.h"

namespace flotilla::rpc {

struct FrameHeader {
  std::uint32_t length = 0;  // of the payload
  std::uint8_t type = 0, flags = 0;
  std::uint32_t stream = 0;
};

// Reads the bytes of one end of one connection, in their order. The first bytes of a client may
// be HTTP/2's preface.
class FrameReader {
 public:
  static constexpr std::size_t kHeaderBytes = 9;

  // Calls `begin` with the header of each frame, and `payload` with each piece of its payload;
  // no piece is empty. `begin` returns a status. Ends at the first error, and returns it.
  template <class Begin, class Payload>
  absl::Status Read(absl::Span<const std::uint8_t> bytes, Begin begin, Payload payload) {
    if (!begun_ && !bytes.empty()) {
      begun_ = true;
      if (bytes[0] == kPrefaceBegin) preface_ = kPrefaceBytes;
    }
    while (!bytes.empty()) {
      if (const std::size_t some = std::min<std::size_t>(preface_ + left_, bytes.size())) {
        if (preface_ == 0) payload(bytes.first(some));
        (preface_ > 0 ? preface_ : left_) -= static_cast<std::uint32_t>(some);
        bytes.remove_prefix(some);
        continue;
      }
      header_[header_bytes_++] = bytes[0];
      bytes.remove_prefix(1);
      if (header_bytes_ < kHeaderBytes) continue;
      header_bytes_ = 0;
      const FrameHeader header = Decode();
      left_ = header.length;
      if (absl::Status status = begin(header); !status.ok()) return status;
    }
    return absl::OkStatus();
  }

 private:
  // The preface is "PRI * HTTP/2.0 ... ". The first frame cannot begin with P: it would have
  // 5 MB, and a client begins with SETTINGS.
  static constexpr std::uint8_t kPrefaceBegin = 'P';
  static constexpr std::uint32_t kPrefaceBytes = 24;

  FrameHeader Decode() const {
    return {.length = std::uint32_t{header_[0]} << 16 | std::uint32_t{header_[1]} << 8 | header_[2],
            .type = header_[3],
            .flags = header_[4],
            .stream = std::uint32_t{header_[5] & 0x7fU} << 24 | std::uint32_t{header_[6]} << 16 |
                      std::uint32_t{header_[7]} << 8 | header_[8]};
  }

  bool begun_ = false;         // the first byte was seen
  std::uint32_t preface_ = 0;  // bytes of the preface still to come; no frame has begun then
  std::uint32_t left_ = 0;     // bytes of the payload still to come
  std::uint8_t header_[kHeaderBytes] = {};
  std::size_t header_bytes_ = 0;
};

}  // namespace flotilla::rpc
