// The description of the HTTP API for tools that read OpenAPI. It is made of
// router/http/openapi.json, which has all but the parameters and the usual errors, and of the table
// of parameters (common/types/parameters.h). docs/api.md explains the API to people.
#pragma once

#include <string>

namespace flotilla::router {

// An OpenAPI document as JSON. The first call makes it, in a millisecond. Any thread may call this.
const std::string& OpenApiText();

}  // namespace flotilla::router
