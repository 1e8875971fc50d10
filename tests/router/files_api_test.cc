// The routes of files and batches without sockets: who gets how many downloads, and how long a page
// is. The test says when the files thread and the I/O thread go on.
#include "router/http/files_api.h"

#include <cstddef>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "router/files/files_service.h"
#include "tests/router/files_fixture.h"

namespace flotilla::router {
namespace {

struct ApiReply final : HttpReply {
  void Send(int code, std::string_view, std::string text, const HttpHeaders& fields) override {
    status = code;
    body = std::move(text);
    headers = fields;
    over = true;
  }
  void Begin(int code, std::string_view, const HttpHeaders&) override { status = code; }
  void Write(std::string_view text) override { body += text; }
  void End() override { over = true; }
  void Fail() override { status = -1; }

  int status = 0;  // 0: there is no answer yet
  std::string body;
  HttpHeaders headers;
  bool over = false;
};

class FilesApiTest : public FilesTest {
 protected:
  struct Files final : FilesService {
    void Post(std::function<void(FilesRoom&)> work) override { posted.push_back(std::move(work)); }
    void StopBatches() override {}
    std::uint64_t max_file_bytes() const override { return 0; }
    std::deque<std::function<void(FilesRoom&)>> posted;
  };
  struct Io final : Dispatcher {
    void Post(std::function<void()> work) override { posted.push_back(std::move(work)); }
    std::deque<std::function<void()>> posted;
  };
  struct Call {
    std::unique_ptr<ApiReply> reply = std::make_unique<ApiReply>();
    std::unique_ptr<HttpExchange> exchange;  // null: it was answered at once
  };

  static HttpRequest Request(const std::string& tenant, const std::string& query = "") {
    HttpRequest request;
    request.method = "GET";
    request.tenant = tenant;
    request.query = query;
    return request;
  }
  Call Download(const std::string& tenant, const std::string& id) {
    Call call;
    HttpRequest request = Request(tenant);
    call.exchange = api_.GetContent(request, id, *call.reply);
    return call;
  }
  std::vector<Call> Downloads(std::size_t count, const std::string& tenant, const std::string& id) {
    std::vector<Call> calls;
    for (std::size_t i = 0; i < count; ++i) {
      calls.push_back(Download(tenant, id));
      EXPECT_EQ(calls.back().reply->status, 0) << i;
    }
    return calls;
  }
  // Both threads do what they have.
  void Run() {
    while (!files_.posted.empty() || !io_.posted.empty()) {
      for (const auto& work : std::exchange(files_.posted, {})) work(*room_);
      for (const auto& work : std::exchange(io_.posted, {})) work();
    }
  }
  nlohmann::json ListBatches(const std::string& tenant, const std::string& query) {
    ApiReply reply;
    HttpRequest request = Request(tenant, query);
    const std::unique_ptr<HttpExchange> exchange = api_.ListBatches(request, "", reply);
    Run();
    EXPECT_EQ(reply.status, 200) << reply.body;
    EXPECT_LT(reply.body.size(), (512u << 10) + 110'000);
    return nlohmann::json::parse(reply.body);
  }
  // Adds batches with metadata of 100 kB. Returns their ids, newest first.
  std::vector<std::string> AddLongBatches(const std::string& tenant, int count) {
    const std::string input = Upload(tenant, Input(1));
    std::vector<std::string> ids;
    for (int i = 0; i < count; ++i) {
      const auto batch =
          room_->AddBatch(tenant, {.input_file_id = input,
                                   .window_s = 86'400,
                                   .metadata = '"' + std::string(100'000, 'x') + '"'});
      EXPECT_TRUE(batch.ok()) << batch.status();
      ids.insert(ids.begin(), batch->id);
    }
    return ids;
  }
  static std::vector<std::string> IdsOf(const nlohmann::json& page) {
    std::vector<std::string> ids;
    for (const auto& object : page.at("data")) ids.push_back(object.at("id"));
    return ids;
  }

  Files files_;
  Io io_;
  FilesApi api_{&files_, &metrics_, &io_};
};

TEST_F(FilesApiTest, AClientHas32Downloads) {
  Restart();
  const std::string id = Upload("a", "text"), other = Upload("b", "other");
  std::vector<Call> running = Downloads(32, "a", id);
  const Call refused = Download("a", id);
  EXPECT_EQ(refused.reply->status, 429);
  EXPECT_EQ(refused.exchange, nullptr);
  EXPECT_EQ(refused.reply->headers.at(0),
            (std::pair<std::string, std::string>("retry-after", "1")));
  std::vector<Call> of_b = Downloads(32, "b", other);  // which has its own
  Run();
  for (const Call& call : running) {
    EXPECT_TRUE(call.reply->over);
    EXPECT_EQ(call.reply->status, 200);
    EXPECT_EQ(call.reply->body, "text");
  }
  EXPECT_EQ(of_b.at(31).reply->body, "other");
  EXPECT_EQ(Download("a", id).reply->status, 429);  // they have ended, and are not gone
  running.pop_back();
  Call next = Download("a", "no-such-file");
  EXPECT_EQ(next.reply->status, 0);
  Run();
  EXPECT_EQ(next.reply->status, 404);
  EXPECT_EQ(Download("a", id).reply->status, 429);
  next.exchange.reset();
  EXPECT_EQ(Downloads(1, "a", id).size(), 1u);
}

TEST_F(FilesApiTest, AllClientsHave128Downloads) {
  Restart();
  const std::string id = Upload("a", "text");
  std::vector<std::vector<Call>> running;
  for (const char* tenant : {"a", "b", "c", "d"}) running.push_back(Downloads(32, tenant, id));
  EXPECT_EQ(Download("e", id).reply->status, 503);
  EXPECT_EQ(Download("", id).reply->status, 503);
  running.at(1).pop_back();
  EXPECT_EQ(Downloads(1, "e", id).size(), 1u);
}

TEST_F(FilesApiTest, ClientsWithoutKeysShareAllDownloads) {
  Restart();
  const std::string id = Upload("", "text");
  std::vector<Call> running = Downloads(128, "", id);
  EXPECT_EQ(Download("", id).reply->status, 503);
  running.pop_back();
  EXPECT_EQ(Downloads(1, "", id).size(), 1u);
}

TEST_F(FilesApiTest, ADownloadReadsAPieceWhenTheOneBeforeWasSent) {
  Restart();
  const std::string text = std::string(64 << 10, 'a') + std::string(64 << 10, 'b') + "c";
  const Call call = Download("a", Upload("a", text));
  for (const std::size_t bytes : {64u << 10, 128u << 10, (128u << 10) + 1}) {
    Run();
    EXPECT_EQ(call.reply->body, text.substr(0, bytes));
    EXPECT_EQ(call.reply->over, bytes == text.size());
    if (!call.reply->over) call.exchange->OnSent();
  }
}

TEST_F(FilesApiTest, APageOfBatchesEndsOnceItHas512KiB) {
  Restart();
  const std::vector<std::string> ids = AddLongBatches("a", 20);
  std::vector<std::string> found;
  std::vector<std::size_t> lengths;
  bool has_more = true;
  while (has_more && lengths.size() < 10) {
    const std::string after = found.empty() ? "" : "&after=" + found.back();
    const nlohmann::json page = ListBatches("a", "limit=100" + after);
    for (const std::string& id : IdsOf(page)) found.push_back(id);
    lengths.push_back(page.at("data").size());
    EXPECT_EQ(page.at("last_id"), found.back());
    has_more = page.at("has_more");
  }
  EXPECT_EQ(found, ids);
  EXPECT_EQ(lengths, (std::vector<std::size_t>{6, 6, 6, 2}));
  const nlohmann::json few = ListBatches("a", "limit=3");
  EXPECT_EQ(IdsOf(few), (std::vector<std::string>{ids[0], ids[1], ids[2]}));
  EXPECT_EQ(few.at("has_more"), true);
}

TEST_F(FilesApiTest, APageThatEndsWithTheLastBatchHasNoMore) {
  Restart();
  const std::vector<std::string> ids = AddLongBatches("a", 6);
  const nlohmann::json page = ListBatches("a", "limit=100");
  EXPECT_EQ(IdsOf(page), ids);
  EXPECT_EQ(page.at("has_more"), false);
}

}  // namespace
}  // namespace flotilla::router
