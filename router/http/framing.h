// Checks that a request's head says unambiguously where the request ends and which host it is
// for (RFC 9112, 3.2 and 6.3). A head that two readers could understand in two ways is refused:
// behind a proxy, one of them could take for a request what the other takes for a body.
#pragma once

#include <string_view>

#include <boost/beast/http/fields.hpp>

namespace flotilla::router {

// Null, or what is wrong. `version` is 10 or 11. It refuses a Transfer-Encoding that is not
// just `chunked`, that is in HTTP/1.0, or that is beside a Content-Length; a Content-Length
// that is not one number; and a Host that is missing in HTTP/1.1, that occurs more than once,
// or that cannot be a host's name.
const char* FramingError(const boost::beast::http::fields& fields, unsigned version);

// Whether `host` is valid in a Host header: a name or an address (an IPv6 address in brackets)
// with an optional port; or empty.
bool IsHost(std::string_view host);

// The name or address of a Host header, without port and brackets.
std::string_view NameOfHost(std::string_view host);

}  // namespace flotilla::router
