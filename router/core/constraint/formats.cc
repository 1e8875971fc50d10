#include "router/core/constraint/formats.h"

#include <iterator>

namespace flotilla::router {
namespace {

struct Format {
  std::string_view name, pattern;
};

// RFC 3339. The year 0000 is no year for many readers.
#define FLOTILLA_DATE                                                                     \
  "(?:[1-9][0-9]{3}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|(?:0[469]|11)-(?:0[" \
  "1-9]|[12][0-9]|30)|02-(?:0[1-9]|1[0-9]|2[0-8])))"
#define FLOTILLA_TIME                                                               \
  "(?:(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\\.[0-9]{1,6})?(?:Z|[+-](?:[01]" \
  "[0-9]|2[0-3]):[0-5][0-9]))"
#define FLOTILLA_BYTE "(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
#define FLOTILLA_IPV4 "(?:" FLOTILLA_BYTE "\\.){3}" FLOTILLA_BYTE
// A label has 63 characters at most, and no hyphen at its ends.
#define FLOTILLA_LABEL "[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?"
#define FLOTILLA_HOST FLOTILLA_LABEL "(?:\\." FLOTILLA_LABEL "){0,2}"
// An e-mail domain has a dot, and ends in letters.
#define FLOTILLA_DOMAIN "(?:" FLOTILLA_LABEL "\\.){1,2}[a-z]{2,12}"
// Without percent-encoding: the masks of a repeated group with alternatives take too long.
#define FLOTILLA_PATH "[A-Za-z0-9._~!$&'()*+,;=:@/-]{0,250}"
#define FLOTILLA_QUERY "[A-Za-z0-9._~!$&'()*+,;=:@/?-]{0,100}"
#define FLOTILLA_END "(?:\\?" FLOTILLA_QUERY ")?(?:#" FLOTILLA_QUERY ")?"
#define FLOTILLA_REST "(?:/" FLOTILLA_PATH ")?" FLOTILLA_END
// After two slashes comes a host.
#define FLOTILLA_REFERENCE "(?:/(?:[A-Za-z0-9._~!$&'()*+,;=:@-]" FLOTILLA_PATH ")?)?" FLOTILLA_END

constexpr Format kFormats[] = {
    {"date", "^" FLOTILLA_DATE "$"},
    {"time", "^" FLOTILLA_TIME "$"},
    {"date-time", "^" FLOTILLA_DATE "T" FLOTILLA_TIME "$"},
    // ISO 8601, with days, hours, minutes and seconds, or weeks.
    {"duration",
     "^P(?:[0-9]{1,4}W|[0-9]{1,6}D|(?:[0-9]{1,6}D)?T(?:[0-9]{1,4}H(?:[0-9]{1,4}M(?:[0-9]{1,4}S)?)?|"
     "[0-"
     "9]{1,4}M(?:[0-9]{1,4}S)?|[0-9]{1,4}S))$"},
    // A local part has 64 characters at most, and a dot only between others.
    {"email",
     "^[A-Za-z0-9_+-](?:[A-Za-z0-9_+-]{0,28}[A-Za-z0-9_+-])?(?:\\.[A-Za-z0-9_+-]{1,30})?"
     "@" FLOTILLA_DOMAIN "$"},
    {"hostname", "^" FLOTILLA_HOST "$"},
    {"ipv4", "^" FLOTILLA_IPV4 "$"},
    // In full, or with one gap after at least one group.
    {"ipv6",
     "^(?:(?:[0-9a-f]{1,4}:){7}[0-9a-f]{1,4}|(?:[0-9a-f]{1,4}:){1,6}:[0-9a-f]{1,4}|::(?:[0-9a-f]{1,"
     "4})?)$"},
    {"uuid", "^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$"},
    // RFC 3986, with a host.
    {"uri", "^[a-z][a-z0-9+.-]{1,15}://" FLOTILLA_HOST "(?::[1-9][0-9]{0,3})?" FLOTILLA_REST "$"},
    {"uri-reference", "^" FLOTILLA_REFERENCE "$"},
    {"json-pointer", "^(?:/(?:[^~/]|~[01])*)*$"},
};

}  // namespace

std::string_view PatternOfFormat(std::string_view format) {
  for (const Format& row : kFormats) {
    if (row.name == format) return row.pattern;
  }
  return {};
}

}  // namespace flotilla::router
