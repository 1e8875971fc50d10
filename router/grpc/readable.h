// Readable<Message>: a request of a gRPC call that may not be what the client should have
// sent. gRPC itself ends a call whose bytes are no message with INTERNAL, which blames the
// server and which clients try again; with this type the handler learns of it. A call that ends
// without a message stays INTERNAL: gRPC asks nobody about it.
#pragma once

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "grpcpp/grpcpp.h"
#include "router/errors.h"

namespace flotilla {

template <class Message>
struct Readable {
  Message message;
  bool is_readable = false;  // else `message` is not to be used

  // OK, or INVALID_ARGUMENT. Protobuf's parser does not tell which of both it was.
  absl::Status status() const {
    if (is_readable) return absl::OkStatus();
    return WithField(absl::InvalidArgumentError(absl::StrCat(
                         "the request is not a readable ", Message::descriptor()->full_name(),
                         ": its bytes are not that message, or a string in it is not UTF-8")),
                     "", "invalid_protobuf");
  }
};

}  // namespace flotilla

template <class Message>
class grpc::SerializationTraits<flotilla::Readable<Message>> {
 public:
  static grpc::Status Deserialize(grpc::ByteBuffer* bytes, flotilla::Readable<Message>* request) {
    request->is_readable =
        grpc::SerializationTraits<Message>::Deserialize(bytes, &request->message).ok();
    return grpc::Status::OK;
  }
};
