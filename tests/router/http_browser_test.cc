// Tests that a web page cannot make its reader's browser send requests that the server accepts.
#include <string>

#include <gtest/gtest.h>

#include "router/http/host_policy.h"
#include "tests/router/http_fixture.h"

namespace flotilla::router {
namespace {

constexpr char kBody[] = R"({"model":"m","prompt":"hi","max_tokens":2})";

TEST_F(HttpTest, APageNeedsTheTypeOfJson) {
  Serve();
  const std::string origin = "origin: https://page.example\r\n";
  for (const char* type :
       {"text/plain", "application/x-www-form-urlencoded", "", "text/json",
        "multipart/form-data; boundary=application/json", "application/json-patch+json"}) {
    HttpClient client(port_);
    const HttpResponse response =
        client.Call("POST", "/v1/completions", kBody, origin + "content-type: " + type + "\r\n");
    EXPECT_EQ(response.status, 415) << type;
    EXPECT_TRUE(client.AtEnd());
  }
  EXPECT_EQ(Post("/v1/completions", kBody, origin).status, 415);
  EXPECT_EQ(Post("/v1/completions", kBody, "origin: null\r\n").status, 415);
  const std::string json = "content-type: application/json\r\n";
  EXPECT_EQ(Post("/v1/completions", kBody, origin + json + json).status, 415);
  EXPECT_TRUE(engine_->submitted().empty());

  for (const char* type : {"application/json", "Application/JSON",
                           "application/json; charset=utf-8", "application/json ;x"}) {
    const HttpResponse response =
        Post("/v1/completions", kBody, origin + "content-type: " + type + "\r\n");
    EXPECT_EQ(response.status, 200) << type;
    for (const auto& [name, value] : response.headers) {
      EXPECT_FALSE(name.starts_with("access-control")) << name;
    }
  }
  // A client without an Origin header is no browser, and may send any type.
  EXPECT_EQ(Post("/v1/completions", kBody, "content-type: text/plain\r\n").status, 200);
  // Before a browser sends JSON to another site it asks with OPTIONS. The server does not allow it.
  const HttpResponse preflight =
      HttpClient(port_).Call("OPTIONS", "/v1/completions", "",
                             origin +
                                 "access-control-request-method: POST\r\n"
                                 "access-control-request-headers: content-type\r\n");
  EXPECT_EQ(preflight.status, 405);
  EXPECT_FALSE(preflight.headers.contains("access-control-allow-origin"));
}

int AskAs(std::uint16_t port, const std::string& path, const std::string& host) {
  HttpClient client(port);
  client.Send("GET " + path + " HTTP/1.1\r\nhost: " + host + "\r\n\r\n");
  return client.Read().status;
}

TEST_F(HttpTest, ALoopbackAddressAnswersToItsOwnNamesOnly) {
  Serve();
  for (const char* path : {"/v1/models", "/health", "/metrics", "/nothing"}) {
    for (const char* host : {"page.example", "page.example:8080", "localhost.page.example",
                             "127.0.0.1.page.example", "10.0.0.1", "[fe80::1]", "0x7f.1"}) {
      EXPECT_EQ(AskAs(port_, path, host), 403) << path << host;
    }
  }
  EXPECT_EQ(AskAs(port_, "/v1/models", "localhost:1"), 200);
}

TEST_F(HttpTest, FurtherHostsAreAllowedByName) {
  Fixture setup;
  setup.http.allowed_hosts = {"proxy.example"};
  Serve(setup);
  EXPECT_EQ(AskAs(port_, "/health", "Proxy.Example:443"), 200);
  EXPECT_EQ(AskAs(port_, "/health", "localhost"), 200);
  EXPECT_EQ(AskAs(port_, "/health", "page.example"), 403);
}

TEST(HostPolicyTest, OtherAddressesAnswerEverybodyUnlessToldWhom) {
  EXPECT_TRUE(HostPolicy("0.0.0.0", {}).Allows("any.example"));
  EXPECT_TRUE(HostPolicy("10.0.0.1", {}).Allows(""));
  EXPECT_FALSE(HostPolicy("::1", {}).Allows("any.example"));
  EXPECT_TRUE(HostPolicy("127.0.0.2", {}).Allows(""));
  EXPECT_TRUE(HostPolicy("127.0.0.1", {"*"}).Allows("any.example"));
  EXPECT_FALSE(HostPolicy("0.0.0.0", {"a.example"}).Allows("b.example"));
  EXPECT_TRUE(HostPolicy("0.0.0.0", {"b", " a.Example "}).Allows("A.example:80"));
}

}  // namespace
}  // namespace flotilla::router
