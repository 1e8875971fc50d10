// Readable<Message>: a request of a gRPC call whose bytes may not be a valid message. gRPC
// itself would end such a call with INTERNAL, which blames the server and which clients try
// again. With this type the handler gets the call and can refuse it. A call that ends without
// a message is still INTERNAL, because gRPC calls no code of ours for it.
#pragma once

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "grpcpp/grpcpp.h"
#include "router/errors.h"

namespace flotilla::router {

template <class Message>
struct Readable {
  Message message;
  bool is_readable = false;  // else `message` is not to be used

  // OK, or INVALID_ARGUMENT. Protobuf's parser does not say which of the two reasons applies.
  absl::Status status() const {
    if (is_readable) return absl::OkStatus();
    return WithField(absl::InvalidArgumentError(absl::StrCat(
                         "the request is not a readable ", Message::descriptor()->full_name(),
                         ": its bytes are not that message, or a string in it is not UTF-8")),
                     "", "invalid_protobuf");
  }
};

}  // namespace flotilla::router

template <class Message>
class grpc::SerializationTraits<flotilla::router::Readable<Message>> {
 public:
  static grpc::Status Deserialize(grpc::ByteBuffer* bytes,
                                  flotilla::router::Readable<Message>* request) {
    request->is_readable =
        grpc::SerializationTraits<Message>::Deserialize(bytes, &request->message).ok();
    return grpc::Status::OK;
  }
};
