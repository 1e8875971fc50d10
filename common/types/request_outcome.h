// How a whole request ended, for records of it. FinishReason (event.h) says why a sequence did.
#pragma once

#include <cstdint>

namespace flotilla {

enum class RequestOutcome : std::uint8_t {
  kFinished,
  kCancelled,  // by the client, or by an abort
  kDeadline,   // its time was over, whether it was accepted by then or not
  kRefused,    // it was never accepted
  kFailed,     // it was accepted before
};

}  // namespace flotilla
