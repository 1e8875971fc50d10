// Sends the largest bodies over real sockets. Each is answered soon, and other clients do not wait.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "tests/router/http_fixture.h"
#include "tests/router/large_bodies.h"

namespace flotilla::router {
namespace {

double Since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// Asks for /health over one connection until it is destroyed.
class HealthWatch {
 public:
  explicit HealthWatch(std::uint16_t port) : thread_([this, port] { Watch(port); }) {}
  ~HealthWatch() { Stop(); }
  // Returns the longest time that an answer took.
  double Stop() {
    stop_ = true;
    if (thread_.joinable()) thread_.join();
    return slowest_;
  }

 private:
  void Watch(std::uint16_t port) {
    HttpClient client(port);
    while (!stop_) {
      const auto start = std::chrono::steady_clock::now();
      EXPECT_EQ(client.Call("GET", "/health").status, 200);
      slowest_ = std::max(slowest_, Since(start));
    }
  }

  std::atomic<bool> stop_ = false;
  double slowest_ = 0;
  std::thread thread_;
};

TEST_F(HttpTest, TheLargestBodiesStopNobody) {
  Serve();
  double slowest = 0, slowest_health = 0;
  for (const auto& [name, body] : LargeBodies(4u << 20)) {
    // Chooses the path that knows the fields of the body.
    const std::string path = body.find("\"messages\"") < 30 ? "/v1/chat/completions"
                             : name == "tokens"             ? "/detokenize"
                                                            : "/v1/completions";
    HealthWatch health(port_);
    const auto start = std::chrono::steady_clock::now();
    const HttpResponse response = Post(path, body);
    const double seconds = Since(start);
    const double health_seconds = health.Stop();
    EXPECT_EQ(response.status, name == "shared model" ? 404 : 400)
        << name << path << response.body.substr(0, 200);
    EXPECT_LT(response.body.size(), 2000u) << name;
    // On an idle machine these are 0.3 s and 50 ms. Both were minutes before bodies were parsed by
    // events and on the pool.
    EXPECT_LT(seconds, 10.0) << name;
    EXPECT_LT(health_seconds, 2.0) << name;
    slowest = std::max(slowest, seconds);
    slowest_health = std::max(slowest_health, health_seconds);
  }
  RecordProperty("slowest body, s", std::to_string(slowest));
  RecordProperty("slowest /health beside one, s", std::to_string(slowest_health));
}

// A valid long body is served like a short one.
TEST_F(HttpTest, ALongBodyIsServed) {
  Serve();
  Answer("Paris.");
  json body = {{"model", "m"}, {"prompt", "hi"}, {"metadata", {{"x", std::string(1 << 20, 'x')}}}};
  const HttpResponse response = Post("/v1/completions", body.dump());
  ASSERT_EQ(response.status, 200) << response.body;
  EXPECT_EQ(response.json()["choices"][0]["text"], "Paris.");
  body = {{"model", "m"}, {"prompt", std::string(100'000, '1')}};
  const json tokens = Post("/tokenize", body.dump()).json();
  EXPECT_EQ(tokens["count"], 100'000);
  EXPECT_EQ(tokens["tokens"].size(), 100'000u);
  const json back =
      Post("/detokenize", json{{"model", "m"}, {"tokens", tokens["tokens"]}}.dump()).json();
  EXPECT_EQ(back["prompt"], body["prompt"]);
}

// If a peer goes away while its body waits for the pool, nothing stays behind.
TEST_F(HttpTest, APeerMayGoWhileItsBodyIsParsed) {
  Serve();
  const std::string body =
      json{{"model", "m"}, {"prompt", "hi"}, {"user", std::string(1 << 20, 'x')}}.dump();
  for (int i = 0; i < 20; ++i) {
    HttpClient client(port_);
    client.SendRequest("POST", "/v1/completions", body);
  }
  EXPECT_EQ(Post("/v1/completions", body).status, 200);
}

TEST_F(HttpTest, AFullPoolRefusesALongBody) {
  Serve({.tokenizer_queue = 0});
  const HttpResponse response =
      Post("/detokenize", json{{"model", "m"}, {"tokens", std::vector<int>(50'000, 1)}}.dump());
  EXPECT_EQ(response.status, 429);
  EXPECT_TRUE(response.headers.contains("retry-after"));
}

}  // namespace
}  // namespace flotilla::router
