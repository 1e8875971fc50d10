#include "worker/constraint/compile_messages.h"

#include <cstddef>
#include <cstring>

namespace flotilla::worker {
namespace {

template <typename Number>
void Put(Number value, std::string& out) {
  out.append(reinterpret_cast<const char*>(&value), sizeof value);  // both sides are one machine
}

// Takes values off the front of a message; after the first that is not there, ok() is false.
class Reader {
 public:
  explicit Reader(absl::string_view message) : left_(message) {}

  template <typename Number>
  Number Take() {
    Number value{};
    const absl::string_view bytes = TakeBytes(sizeof value);
    if (ok_) std::memcpy(&value, bytes.data(), sizeof value);
    return value;
  }
  absl::string_view TakeBytes(std::size_t size) {
    ok_ = ok_ && size <= left_.size();
    if (!ok_) return {};
    const absl::string_view bytes = left_.substr(0, size);
    left_.remove_prefix(size);
    return bytes;
  }
  // A count of things that have at least `bytes_each` in the message.
  std::size_t TakeCount(std::size_t bytes_each) {
    const auto count = Take<std::uint32_t>();
    ok_ = ok_ && count <= left_.size() / bytes_each;
    return ok_ ? count : 0;
  }
  bool ok() const { return ok_; }
  bool AtEnd() const { return ok_ && left_.empty(); }

 private:
  absl::string_view left_;
  bool ok_ = true;
};

}  // namespace

std::string EncodeSetup(const CompileSetup& setup) {
  std::string message;
  Put(setup.limits.cpu_us, message);
  Put(setup.limits.memory_bytes, message);
  Put(setup.limits.compiled_bytes, message);
  Put(static_cast<std::uint32_t>(setup.vocabulary.tokens.size()), message);
  for (const std::string& token : setup.vocabulary.tokens) {
    Put(static_cast<std::uint32_t>(token.size()), message);
    message += token;
  }
  for (const auto* tokens : {&setup.vocabulary.controls, &setup.vocabulary.stops}) {
    Put(static_cast<std::uint32_t>(tokens->size()), message);
    for (const TokenId token : *tokens) Put(token, message);
  }
  return message;
}

absl::StatusOr<CompileSetup> DecodeSetup(absl::string_view message) {
  Reader reader(message);
  CompileSetup setup;
  setup.limits.cpu_us = reader.Take<std::int64_t>();
  setup.limits.memory_bytes = reader.Take<std::uint64_t>();
  setup.limits.compiled_bytes = reader.Take<std::uint64_t>();
  setup.vocabulary.tokens.resize(reader.TakeCount(sizeof(std::uint32_t)));
  for (std::string& token : setup.vocabulary.tokens) {
    token = std::string(reader.TakeBytes(reader.Take<std::uint32_t>()));
  }
  for (auto* tokens : {&setup.vocabulary.controls, &setup.vocabulary.stops}) {
    tokens->resize(reader.TakeCount(sizeof(TokenId)));
    for (TokenId& token : *tokens) token = reader.Take<TokenId>();
  }
  if (!reader.AtEnd()) return absl::InvalidArgumentError("this is no vocabulary");
  return setup;
}

std::string EncodeConstraint(const Constraint& constraint) {
  std::string message;
  Put(constraint.kind, message);
  return message + constraint.text;
}

absl::StatusOr<Constraint> DecodeConstraint(absl::string_view message) {
  Reader reader(message);
  Constraint constraint{.kind = reader.Take<Constraint::Kind>()};
  if (!reader.ok() || constraint.kind > Constraint::Kind::kStructuralTag) {
    return absl::InvalidArgumentError("this is no constraint");
  }
  constraint.text = std::string(message.substr(sizeof constraint.kind));
  return constraint;
}

std::string EncodeCompiled(const absl::StatusOr<std::string>& compiled) {
  std::string message;
  Put(static_cast<std::uint8_t>(compiled.status().code()), message);
  return message + (compiled.ok() ? *compiled : std::string(compiled.status().message()));
}

absl::StatusOr<std::string> DecodeCompiled(absl::string_view message) {
  Reader reader(message);
  const auto code = static_cast<absl::StatusCode>(reader.Take<std::uint8_t>());
  if (!reader.ok()) return absl::InvalidArgumentError("this is no compiled grammar");
  message.remove_prefix(sizeof(std::uint8_t));
  if (code != absl::StatusCode::kOk) return absl::Status(code, message);
  return std::string(message);
}

}  // namespace flotilla::worker
