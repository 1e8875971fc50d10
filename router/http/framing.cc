#include "router/http/framing.h"

#include <algorithm>

#include <boost/beast/core/string.hpp>
#include <boost/beast/http/field.hpp>

#include "absl/strings/ascii.h"

namespace flotilla::router {
namespace {

namespace http = boost::beast::http;

// The marks that a name may have: unreserved ones, delimiters, and escapes (RFC 3986, 3.2.2).
constexpr std::string_view kNameMarks = "-._~!$&'()*+,;=%";
constexpr std::string_view kAddressMarks = ":.";  // of IPv6, in brackets

bool AllDigits(std::string_view text) {
  return std::all_of(text.begin(), text.end(),
                     [](unsigned char c) { return absl::ascii_isdigit(c); });
}

bool AllOf(std::string_view text, std::string_view marks) {
  return std::all_of(text.begin(), text.end(), [marks](unsigned char c) {
    return absl::ascii_isalnum(c) || marks.find(static_cast<char>(c)) != std::string_view::npos;
  });
}

std::string_view ValueOf(const http::fields& fields, http::field name) {
  const auto value = fields[name];
  return {value.data(), value.size()};
}

}  // namespace

const char* FramingError(const http::fields& fields, unsigned version) {
  const std::size_t lengths = fields.count(http::field::content_length);
  const std::size_t encodings = fields.count(http::field::transfer_encoding);
  if (encodings > 0) {
    if (version < 11) return "a request of HTTP/1.0 has a Transfer-Encoding";
    if (lengths > 0) return "the request has both a Transfer-Encoding and a Content-Length";
    if (encodings > 1 ||
        !boost::beast::iequals(fields[http::field::transfer_encoding], "chunked")) {
      return "the Transfer-Encoding is something other than just chunked";
    }
  }
  if (lengths > 1) return "the request has several Content-Length headers";
  if (lengths == 1) {
    const std::string_view length = ValueOf(fields, http::field::content_length);
    if (length.empty() || !AllDigits(length)) return "the Content-Length is not a number";
  }
  const std::size_t hosts = fields.count(http::field::host);
  if (hosts > 1) return "the request has several Host headers";
  if (hosts == 0 && version >= 11) return "the request has no Host header";
  if (!IsHost(ValueOf(fields, http::field::host))) {
    return "the Host header is not the name or address of a host";
  }
  return nullptr;
}

bool IsHost(std::string_view host) {
  const std::string_view name = NameOfHost(host);
  const bool bracketed = host.starts_with('[');
  if (!AllOf(name, bracketed ? kAddressMarks : kNameMarks)) return false;
  if (bracketed && (name.empty() || host.size() < name.size() + 2)) return false;
  const std::string_view rest = host.substr(name.size() + (bracketed ? 2 : 0));
  if (rest.empty()) return true;
  const std::string_view port = rest.substr(1);
  return rest.front() == ':' && !name.empty() && port.size() <= 5 && AllDigits(port);
}

std::string_view NameOfHost(std::string_view host) {
  if (host.starts_with('[')) return host.substr(1, std::min(host.find(']'), host.size()) - 1);
  return host.substr(0, host.find(':'));
}

}  // namespace flotilla::router
