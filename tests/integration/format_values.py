"""Whether a text is a value of a format of JSON Schema, as Python's own modules read it. They read no
line of the patterns that workers compile."""

import datetime
import ipaddress
import re
import urllib.parse
import uuid


def matches(pattern):
    def check(text):
        assert re.fullmatch(pattern, text), text
    return check


def check_reference(text):
    parts = urllib.parse.urlsplit(text)
    assert parts.port is None or parts.port > 0, text
    return parts


def check_host(text, labels=1):
    assert len(text) <= 253 and len(text.split(".")) >= labels, text
    for label in text.split("."):
        matches("[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")(label)


def check_email(text):
    local, domain = text.rsplit("@", 1)
    assert 0 < len(local) <= 64, text
    matches(r"[\w+-]+(\.[\w+-]+)*")(local)
    check_host(domain, labels=2)


def check_uri(text):
    parts = check_reference(text)
    matches("[a-z][a-z0-9+.-]*")(parts.scheme)
    check_host(parts.hostname)


def check_uuid(text):
    assert uuid.UUID(text).hex == text.replace("-", ""), text


# Each raises for a text that is no such value.
CHECKS = {
    "date": datetime.date.fromisoformat,
    "time": lambda text: datetime.time.fromisoformat(text.replace("Z", "+00:00")),
    "date-time": lambda text: datetime.datetime.fromisoformat(text.replace("Z", "+00:00")),
    # ISO 8601: weeks, or days and times of which one at least is there.
    "duration": matches(r"P(\d+W|(?=.)(\d+D)?(T(?=.)(\d+H)?(\d+M)?(\d+S)?)?)"),
    "email": check_email,
    "hostname": check_host,
    "ipv4": ipaddress.IPv4Address,
    "ipv6": ipaddress.IPv6Address,
    "uuid": check_uuid,
    "uri": check_uri,
    "uri-reference": check_reference,
    "json-pointer": matches("(/([^~/]|~[01])*)*"),
}
