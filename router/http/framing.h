// Whether a request's head says without doubt where the request ends and whom it is for
// (RFC 9112, 3.2 and 6.3). Whatever two readers could take in two ways is refused: behind a
// proxy, what one of them thinks is a body would be a request to the other.
#pragma once

#include <string_view>

#include <boost/beast/http/fields.hpp>

namespace flotilla {

// Null, or what is wrong. `version` is 10 or 11. Refused are: Transfer-Encoding other than
// `chunked` alone, in HTTP/1.0, or beside Content-Length; Content-Length that is not one
// number; no Host in HTTP/1.1, several, or one that cannot be a host's name.
const char* FramingError(const boost::beast::http::fields& fields, unsigned version);

// Whether `host` may stand in a Host header: a name or an address, in brackets if of IPv6,
// and a port if there is one; or nothing.
bool IsHost(std::string_view host);

// The name or address of a Host header, without port and brackets.
std::string_view NameOfHost(std::string_view host);

}  // namespace flotilla
