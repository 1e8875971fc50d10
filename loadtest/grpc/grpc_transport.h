// GrpcTransport: requests to the gRPC service of a flotilla router (flotilla.v1.Inference), all on
// one channel. gRPC's threads receive, and hand every message to the io_context.
#pragma once

#include <memory>

#include "loadtest/http_transport.h"
#include "loadtest/transport.h"

namespace flotilla::loadtest {

// Prepare returns INVALID_ARGUMENT for options that only HTTP has (other fields, no check of the
// server's certificate) and for a file of certificates that cannot be read.
std::unique_ptr<Transport> MakeGrpcTransport(const ServerOptions& options);

}  // namespace flotilla::loadtest
